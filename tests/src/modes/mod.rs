//! What the guest is there for, by `lab.mode` of the kernel's command line: `test` (the default), `traffic`
//! (the scenarios without viptrace: only what the clients see), `demo`, `bench`, `shell`.

mod bench;
mod demo;
mod test;

use std::{
    panic::{self, AssertUnwindSafe},
    path::Path,
    process::{Command, ExitCode},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    boot, console,
    world::{Watch, World},
};

/// Where the image holds the captured cluster and rules.
const FIXTURES: &str = "/fixtures/dualstack";

/// Runs the mode; the exit status is the run's.
pub fn run() -> ExitCode {
    let mode = boot::kernel_argument("lab.mode").unwrap_or_else(|| "test".to_owned());
    let filter = boot::kernel_argument("lab.filter").unwrap_or_default();
    // A panic is a bug of the lab, and still must be told as a failed run.
    let done = panic::catch_unwind(AssertUnwindSafe(|| run_mode(&mode, &filter)));
    match done {
        Ok(Ok(all_passed)) => ExitCode::from(u8::from(!all_passed)),
        Ok(Err(error)) => {
            console::say(format!("lab: {error:#}"));
            console::scenario(
                &format!("lab {mode}"),
                &console::Outcome::Failed(format!("{error:#}")),
                &[],
                Duration::ZERO,
            );
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
        "shell" => {
            let _world = build()?;
            Command::new("/bin/sh").status().context("running /bin/sh")?;
            Ok(true)
        }
        other => bail!("lab.mode={other} is none of test, traffic, demo, bench, shell"),
    }
}
