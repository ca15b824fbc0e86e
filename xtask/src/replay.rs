//! `cargo xtask bench replay`: measures the speed, size and memory of recordings in a replay.
//!
//! The benchmark is `tracer/benches/replay.rs`; this file runs it and prints its results and the command.

use anyhow::Result;
use clap::Args;

use crate::place::{Place, cargo};
use crate::printer::Printer;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Events of the shorter recording; the longer one has four times as many
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    events: u64,
}

/// Measures and prints.
pub(crate) fn run(printer: &Printer, options: &Options) -> Result<bool> {
    let place = Place::find()?;
    let events = format!("--events={}", options.events);
    let text = cargo("measure recordings")
        .args([
            "bench",
            "--profile=dist",
            "--locked",
            "-p",
            "viptrace",
            "--bench",
            "replay",
            "--",
            events.as_str(),
        ])
        .directory(&place.repository)
        .hint("read the compiler's message above; for a missing BPF toolchain, type: cargo xtask setup")
        .read()?;
    for line in text.lines() {
        printer.data(line);
    }
    printer.data(&format!("command: cargo xtask bench replay --events {}", options.events));
    Ok(true)
}
