//! The lab's binary. As process 1 of a guest it is init. Started by init, it runs the mode named on the kernel's
//! command line. Under the name `kube-proxy` it answers kube-proxy's endpoints.

use std::{env, path::Path, process::ExitCode};

use viptrace_lab::{boot, console, kube_proxy, modes};

fn main() -> ExitCode {
    let called_as = env::args().next().unwrap_or_default();
    if std::process::id() == 1 {
        return boot::as_init();
    }
    if Path::new(&called_as).file_name().is_some_and(|name| name == "kube-proxy") {
        return kube_proxy::serve();
    }
    if env::args().nth(1).as_deref() == Some(boot::RUN) {
        return modes::run();
    }
    console::print(
        "viptrace-lab is the init of viptrace's test guests; it changes the whole machine's network and does \
         nothing anywhere else. To run it, type: cargo xtask test",
    );
    ExitCode::from(2)
}
