//! The `viptrace` command, and as `kubectl-viptrace` the plugin `kubectl viptrace`.

use std::process::ExitCode;

fn main() -> ExitCode {
    viptrace::cli::run(std::env::args_os())
}
