//! Replays the recording of each scenario's trace in the same guest. The output must be equal byte by byte.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{boot, console, invocation::Invocation, tool::Ended};

/// The path of a trace's recording, in memory. The next trace overwrites it.
pub const RECORDING: &str = "/tmp/trace.viptrace";
/// Judging thousands of flows again takes this long on an emulated machine.
const LIMIT: Duration = Duration::from_mins(2);

/// Replays `recording` and compares all output with that of the trace.
pub fn check(name: &str, recording: &str, live: &Ended) -> Result<()> {
    if boot::kernel_argument("lab.keep").as_deref() == Some("recordings") {
        let bytes = fs::read(recording).with_context(|| format!("reading {recording}"))?;
        console::binary(&format!("{name}.viptrace"), &bytes);
        console::file(&format!("{name}.jsonl"), &(live.stdout.join("\n") + "\n"));
    }
    let replayed = run(recording, &["-o", "json", "--all"])?;
    if replayed.status != live.status {
        bail!(
            "the trace ended with {}, its replay with {}: {}",
            live.status,
            replayed.status,
            replayed.stderr
        );
    }
    if replayed.stdout != live.stdout {
        let differing = live.stdout.iter().zip(&replayed.stdout).find(|(live, replayed)| live != replayed);
        let (live_lines, replayed_lines) = (live.stdout.len(), replayed.stdout.len());
        bail!(
            "the replay has {replayed_lines} records, the trace {live_lines}; the first that differ: {differing:?}\n{}",
            replayed.stderr
        );
    }
    let size = fs::metadata(recording).map_or(0, |meta| meta.len());
    console::print(format!(
        "{name}: {} records again, from a recording of {size} bytes",
        replayed.stdout.len()
    ));
    Ok(())
}

/// Replays a recording to its end.
pub fn run(recording: &str, arguments: &[&str]) -> Result<Ended> {
    let mut all = vec!["replay", recording];
    all.extend(arguments);
    Invocation::start(&all)?.end(LIMIT)
}
