//! `cargo xtask bench replay`: measures the speed, size and memory of recordings in a replay, and what a query reads.
//!
//! The benchmark is `tracer/benches/replay.rs`; this file runs it and prints its results and the command.

mod against;

use anyhow::Result;
use clap::Args;

use crate::place::{Place, cargo};
use crate::printer::Printer;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Events of the shorter recording; the longer one has four times as many [default: 1000000, with --query 10000000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1_000..=100_000_000))]
    events: Option<u64>,
    /// Compare queries by the index with a replay of everything, on one recording
    #[arg(long)]
    query: bool,
    /// Compare with the program of another commit by turns: each replays the same traffic as it recorded it
    #[arg(long, value_name = "COMMIT", conflicts_with = "query")]
    against: Option<String>,
    /// Runs of each program, with --against
    #[arg(long, value_name = "NUMBER", default_value_t = 9, requires = "against", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Events a CPU second of that commit on the machine of a target, with --against: prints what the ratios are there
    #[arg(long, value_name = "NUMBER", requires = "against")]
    where_it_had: Option<u32>,
}

/// Measures and prints.
pub(crate) fn run(printer: &Printer, options: &Options) -> Result<bool> {
    let place = Place::find()?;
    let number = options.events.unwrap_or(if options.query { 10_000_000 } else { 1_000_000 });
    if let Some(commit) = &options.against {
        against::compare(printer, &place, commit, number, options)?;
        return Ok(true);
    }
    let (events, query) = (format!("--events={number}"), if options.query { " --query" } else { "" });
    cargo("measure recordings")
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
        .args(options.query.then_some("--query"))
        .directory(&place.repository)
        .hint("read the message above; for a missing BPF toolchain, type: cargo xtask setup")
        .lines_of_success(|line| printer.data(line))?;
    printer.data(&format!("command: cargo xtask bench replay{query} --events {number}"));
    Ok(true)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::Options;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn what_compares_needs_a_commit() {
        let parse = |words: &[&str]| Line::try_parse_from([&["replay"], words].concat());
        assert!(parse(&[]).is_ok_and(|line| line.options.rounds == 9));
        assert!(parse(&["--against", "HEAD", "--rounds", "3", "--where-it-had", "5"]).is_ok());
        for lacking in [["--rounds", "3"], ["--where-it-had", "5"]] {
            assert!(parse(&lacking).is_err(), "{lacking:?}");
        }
    }
}
