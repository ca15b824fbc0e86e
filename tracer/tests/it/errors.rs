//! Every error that a user can cause, as printed: what happened, and the hint.

use std::{fs, io, net::SocketAddr, time::Duration};

use insta::assert_snapshot;
use serde_json::Value;
use viptrace::{
    cluster::{Access, LOOK_BACK, Limits, Source},
    error::{Hint, sentence},
    kernel::{attach::AttachError, environment::Environment, running::KernelError},
    recording::CreateError,
};
use viptrace_lab::apiserver::{Absence, ApiServer};

use crate::terminal_support::{Terminal, fixture};

const RECORDING: &str = "recordings/debian-6.12-c20-no-endpoints.viptrace";

#[test]
fn usage() {
    let terminal = Terminal::new();
    assert_snapshot!(terminal.session(&[
        "",
        "tracr",
        "trace --all --faults-only",
        "trace --quick",
        "trace cart",
        "trace -n shop",
        "trace shop/cart -n other",
        "trace shop/Cart",
        "trace a/b/c/d",
        "trace 10.96.0",
        "trace 10.96.0.10:99999",
        "trace --duration soon",
        "trace --duration 30",
        "trace --duration 0s",
        "trace --buffer 1",
        "trace --max-flows 0",
        "trace --hooks most",
        "trace --without-hook nf_conntrack_in",
        "trace --cluster-from lists --kubeconfig config",
        "trace --force",
        "replay",
        "check pod/shop/cart-1",
        "check -n shop",
        "check --kernel --from lists",
        "capture",
        "schema flow",
    ]));
}

#[test]
fn where_the_objects_come_from() {
    let mut terminal = Terminal::new();
    let commands = ["trace", "check shop/cart", "trace --kubeconfig config", "trace --kubeconfig ."];
    let nothing = terminal.session(&commands);
    terminal.write("config", "users:\n- name: me\n  user:\n    token: s3cret\n   bad: [\n");
    terminal.write("other", viptrace_lab::apiserver::kubeconfig(([127, 0, 0, 1], 1).into()));
    terminal.write("nowhere", "apiVersion: v1\nkind: Config\n");
    terminal.set("KUBECONFIG", "other");
    let broken = terminal.session(&[
        "trace --kubeconfig config",
        "trace --kubeconfig nowhere",
        "trace --context production",
        "trace --kubeconfig other --context production",
    ]);
    terminal.set("KUBECONFIG", "elsewhere");
    let nowhere = terminal.session(&["trace"]);
    let folders = Terminal::new();
    fs::create_dir(folders.path().join("empty")).unwrap();
    folders.write("broken/services.json", "{\"kind\": \"ServiceList\",\n\"items\": [}");
    folders.write("one-file", "");
    let folders = folders.session(&[
        "trace --cluster-from missing",
        "trace --cluster-from one-file",
        "trace --cluster-from empty",
        "trace --cluster-from broken",
    ]);
    assert_snapshot!([nothing, broken, nowhere, folders].concat());
}

/// The API server of the fixtures, and a kubeconfig for it in the terminal's folder.
fn served(terminal: &Terminal) -> ApiServer {
    let list = |name: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(fixture("cluster").join(name)).unwrap()).unwrap()
    };
    let lists = ["services.json", "endpointslices.json", "pods.json", "nodes.json"].map(list);
    let server = ApiServer::start(SocketAddr::from(([127, 0, 0, 1], 0)), lists.into()).unwrap();
    terminal.write("config", server.kubeconfig());
    server
}

fn with_a_fixed_port(check: impl FnOnce()) {
    let mut settings = insta::Settings::clone_current();
    settings.add_filter(r"127\.0\.0\.1:\d+", "127.0.0.1:PORT");
    settings.bind(check);
}

#[test]
fn an_api_server_that_refuses() {
    let terminal = Terminal::new();
    let mut server = served(&terminal);
    let mut read = String::new();
    for (code, message) in [
        (401, "Unauthorized"),
        (403, "services is forbidden: User \"me\" cannot list resource \"services\" at the cluster scope"),
        (500, "etcdserver: request timed out"),
    ] {
        server.refuse("Service", code, message);
        read += &terminal.run("check shop/cart --kubeconfig config");
    }
    server.go_away(Absence::Refused);
    read += &terminal.run("check shop/cart --kubeconfig config");
    with_a_fixed_port(|| assert_snapshot!(read));
}

/// The output of a trace that waits for the lists.
async fn waiting(terminal: &Terminal) -> String {
    let limits = Limits {
        request: Duration::from_millis(300),
        sync: Duration::from_secs(1),
        retry: Duration::from_millis(20),
        ..Limits::default()
    };
    let access = Access { kubeconfig: Some(terminal.path().join("config")), limits, ..Access::default() };
    let mut opened = Source::Watch(access).open(LOOK_BACK).await.unwrap();
    printed(&opened.cluster.sync(&mut opened.feed).await.unwrap_err())
}

fn printed(error: &(impl Hint + 'static)) -> String {
    let hint = error.hint().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
    format!("error: {}\n{hint}\n", sentence(error))
}

#[tokio::test]
async fn a_trace_that_gets_no_lists() {
    let terminal = Terminal::new();
    let mut server = served(&terminal);
    let mut read = String::new();
    server.refuse("Service", 403, "services is forbidden: User \"me\" cannot list resource \"services\"");
    read += &waiting(&terminal).await;
    server.permit("Service");
    for kind in ["Service", "EndpointSlice", "Pod", "Node"] {
        server.refuse(kind, 401, "Unauthorized");
    }
    read += &waiting(&terminal).await;
    server.go_away(Absence::Hung);
    read += &waiting(&terminal).await;
    server.go_away(Absence::Refused);
    read += &waiting(&terminal).await;
    with_a_fixed_port(|| assert_snapshot!(read));
}

#[test]
fn recordings() {
    let terminal = Terminal::new();
    terminal.bring(RECORDING, "incident.viptrace");
    let whole = fs::read(fixture(RECORDING)).unwrap();
    terminal.write("cut.viptrace", &whole[..whole.len() - 100]);
    terminal.write("head.viptrace", &whole[..40]);
    terminal.write("empty.viptrace", "");
    terminal.write("notes.txt", "not a recording");
    let mut read = terminal.session(&[
        "replay missing.viptrace",
        "replay .",
        "replay notes.txt",
        "replay empty.viptrace",
        "replay head.viptrace",
        "replay cut.viptrace shop/nobody",
        "replay incident.viptrace shop/nobody",
        "replay incident.viptrace shop/db",
        "trace --record incident.viptrace",
    ]);
    read += &terminal.run_into("replay incident.viptrace", "/dev/full");
    assert_snapshot!(read);
}

#[test]
fn checks_and_captures() {
    let terminal = Terminal::new();
    terminal.write("notes/README.md", "nothing");
    terminal.bring("cluster", "node");
    terminal.write("saved.json", "{}");
    terminal.write("occupied/precious", "x");
    let mut read = terminal.session(&[
        "check --from missing",
        "check --from saved.json",
        "check --from notes",
        "check --from node shop/nobody",
        "check --from node --compare missing.json",
        "check --from node --compare saved.json",
        "capture occupied",
        "capture saved.json",
        "capture saved.json/below",
        "capture new --kubeconfig missing",
        "capture new --cluster-from missing",
    ]);
    read += &terminal.run_into("check --from node --save missing/saved.json", "/dev/null");
    read += &terminal.run_into("check --from node --save /dev/full", "/dev/null");
    read += &terminal.run_into("schema", "/dev/full");
    assert_snapshot!(read);
}

/// Hosts made of files, each with one missing requirement.
#[test]
fn kernels() {
    let host = |files: &[(&str, &str)]| {
        let terminal = Terminal::new();
        for (path, text) in [
            ("sys/kernel/btf/vmlinux", "btf"),
            ("proc/self/status", "CapEff:\t000001ffffffffff\n"),
            ("proc/sys/kernel/unprivileged_bpf_disabled", "2\n"),
            ("sys/bus/event_source/devices/kprobe/type", "8\n"),
        ]
        .iter()
        .chain(files)
        {
            terminal.write(path, text);
        }
        terminal
    };
    let mut read = String::new();
    for (what, host) in [
        ("not root", host(&[("proc/self/status", "CapEff:\t0\n")])),
        ("locked down", host(&[("sys/kernel/security/lockdown", "none integrity [confidentiality]")])),
        ("no kprobes", host(&[("sys/bus/event_source/devices/kprobe/type", "")])),
        ("another network namespace", {
            let host = host(&[]);
            for (process, namespace) in [("self", "net:[2]"), ("1", "net:[1]")] {
                let folder = host.path().join("proc").join(process).join("ns");
                fs::create_dir_all(&folder).unwrap();
                std::os::unix::fs::symlink(namespace, folder.join("net")).unwrap();
            }
            host
        }),
        ("no BTF", {
            let host = host(&[]);
            fs::remove_file(host.path().join("sys/kernel/btf/vmlinux")).unwrap();
            host
        }),
    ] {
        let gaps = Environment::inspect_at(host.path()).gaps();
        let lines = gaps.iter().map(|gap| format!("{:?}: {gap}\n", gap.severity));
        read = [read, format!("# {what}\n"), lines.collect(), "\n".to_owned()].concat();
    }
    let denied = || io::Error::from_raw_os_error(13);
    read += &printed(&KernelError::Read { path: "/sys/kernel/btf/vmlinux".into(), error: denied() });
    read += &printed(&AttachError::NoObject);
    read += &printed(&AttachError::Program {
        program: "confirm",
        symbol: "__nf_conntrack_confirm",
        error: "Permission denied".into(),
    });
    read += &printed(&AttachError::Map { name: "EVENTS" });
    read += &printed(&AttachError::Ring(denied()));
    let path = || "/recordings/incident.viptrace".into();
    read += &printed(&CreateError::Create { path: path(), error: denied() });
    read += &printed(&CreateError::Begin { path: path(), error: io::Error::from_raw_os_error(28) });
    assert_snapshot!(read);
}
