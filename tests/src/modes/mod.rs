//! The mode of the guest, from `lab.mode` on the kernel's command line: `test` (the default), `traffic` (the scenarios
//! without viptrace, checking only the clients' results), `demo`, `bench`, `memory`, `shell`, `node` (a node of a real
//! cluster, which the host directs).

mod bench;
mod demo;
mod memory;
mod node;
mod test;
mod workload;

use std::{
    panic::{self, AssertUnwindSafe},
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    boot, console,
    score::Scores,
    world::{Watch, World},
};

/// The image's folder with the captured cluster and rules.
const FIXTURES: &str = "/fixtures/dualstack";

/// Runs the mode and returns its exit status.
pub fn run() -> ExitCode {
    let mode = boot::kernel_argument("lab.mode").unwrap_or_else(|| "test".to_owned());
    let filter = boot::kernel_argument("lab.filter").unwrap_or_default();
    // A panic is a bug of the lab and must be reported as a failed run.
    let done = panic::catch_unwind(AssertUnwindSafe(|| run_mode(&mode, &filter)));
    match done {
        Ok(Ok(all_passed)) => ExitCode::from(u8::from(!all_passed)),
        Ok(Err(error)) => {
            console::print(format!("lab: {error:#}"));
            let of = console::Of {
                name: &format!("lab {mode}"),
                mode: None,
                cells: &[],
                scores: &Scores::default(),
            };
            console::scenario(of, &console::Outcome::Failed(format!("{error:#}")), Duration::ZERO);
            ExitCode::FAILURE
        }
        Err(_panic) => ExitCode::FAILURE,
    }
}

/// Returns whether everything passed.
fn run_mode(mode: &str, filter: &str) -> Result<bool> {
    let build = || World::build(Path::new(FIXTURES)).context("building the node");
    match mode {
        "test" => test::run(&build()?, filter, Watch::Json),
        "traffic" => test::run(&build()?, filter, Watch::Nobody),
        "demo" => demo::run(&build()?),
        "bench" => bench::run(&build()?, filter),
        "memory" => memory::run(&build()?),
        "node" => node::run(),
        "shell" => {
            let _world = build()?;
            Command::new("/bin/sh").status().context("running /bin/sh")?;
            Ok(true)
        }
        other => bail!("lab.mode={other} is not one of test, traffic, demo, bench, memory, shell, node"),
    }
}
