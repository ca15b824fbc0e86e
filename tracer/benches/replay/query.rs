//! The reading and the cost of queries of a long recording, beside a replay of everything.
//!
//! Runs `viptrace replay` as a user does, and takes what it read from its note. One flow of 20,000 is of a client that is
//! otherwise silent.

use std::{
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};

use viptrace::{session::Detail, time::Timestamp};

use crate::recording_support::{Live, RARE_CLIENT, Traffic, corpus, header};

/// So that 10 million events take nine hours, as on a node of some load.
const FLOWS_PER_SECOND: f64 = 60.0;
const RARE_EVERY: u64 = 20_000;
const ROUNDS: usize = 3;

/// Facts about the recording by which it is queried.
struct Made {
    bytes: u64,
    /// A client with its port, from the middle of the recording, and the time.
    flow: String,
    at: Timestamp,
}

fn make(path: &Path, events: usize) -> Made {
    let corpus = corpus("debian-6.12");
    let mut traffic = Traffic::new(&corpus, 42, FLOWS_PER_SECOND);
    traffic.rare_every = RARE_EVERY.min(events as u64 / 50);
    let mut live = Live::new(&header(&corpus), Detail::Faults, path);
    let (mut left, mut middle) = (events, None);
    while left > 0 {
        let batch: Vec<_> = traffic.by_ref().take(left.min(250)).collect();
        left -= batch.len();
        live.turn(batch.iter().map(Vec::as_slice));
        live.lines.clear();
        // A node whose flows fail now and then is read every half an hour.
        if live.recorded.pipeline().wants_node() && left % 500_000 < 250 {
            live.read_node();
        }
        live.catch_up();
        if middle.is_none() && left < events / 2 {
            let (client, port) = traffic.last;
            middle = Some((format!("{client}:{port}"), live.now));
        }
    }
    live.pass(Duration::from_secs(10));
    let (_, finished) = live.end();
    let (flow, at) = middle.unwrap();
    Made { bytes: finished.bytes, flow, at }
}

/// Prints a line for each query.
pub(crate) fn compare(events: usize) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("query.viptrace");
    let Made { bytes, flow, at } = make(&path, events);
    println!(
        "{events} events, {bytes} bytes, {}.{:02} B/event",
        bytes / events as u64,
        bytes % events as u64 * 100 / events as u64
    );
    println!("{:<34} {:>8} {:>9} {:>26} {:>18}", "query", "records", "ms", "bytes read", "blocks unpacked");
    let (since, until) = (at.to_string(), at.saturating_add(Duration::from_mins(1)).to_string());
    let client = RARE_CLIENT.to_string();
    let time = ["--since", since.as_str(), "--until", until.as_str()];
    let flow_then: Vec<&str> = ["--flow", flow.as_str()].into_iter().chain(time).collect();
    for (name, arguments) in [
        ("everything", [].as_slice()),
        ("--flow", ["--flow", flow.as_str()].as_slice()),
        ("--client, one flow of 20,000", ["--client", client.as_str()].as_slice()),
        ("--since, --until, one minute", time.as_slice()),
        ("--flow, --since, --until", flow_then.as_slice()),
    ] {
        let rounds = if arguments.is_empty() { 1 } else { ROUNDS };
        let mut runs: Vec<(Duration, Output)> = (0..rounds).map(|_| run(&path, arguments)).collect();
        runs.sort_by_key(|(took, _)| *took);
        let (took, output) = &runs[rounds / 2];
        let records = String::from_utf8_lossy(&output.stdout).lines().count();
        let (read, blocks) = read(&String::from_utf8_lossy(&output.stderr), bytes);
        println!("{name:<34} {records:>8} {:>9} {read:>26} {blocks:>18}", took.as_millis());
    }
}

fn run(path: &Path, arguments: &[&str]) -> (Duration, Output) {
    let begun = Instant::now();
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .arg("replay")
        .arg(path)
        .args(["-o", "json"])
        // Of everything, the healthy flows would be gigabytes of text.
        .args((!arguments.is_empty()).then_some("--all"))
        .args(arguments)
        .output()
        .unwrap();
    let took = begun.elapsed();
    // Faults and incomplete recordings have their own exit statuses.
    assert!(
        output.status.code().is_some_and(|code| code != 2),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    (took, output)
}

/// The bytes and the blocks in the note: "3 of 610 blocks and 5 of 9 bytes were read".
fn read(notes: &str, bytes: u64) -> (String, String) {
    let note = notes.lines().find_map(|line| {
        let (blocks, rest) = line.split_once(" blocks and ")?;
        let (bytes, _) = rest.split_once(" bytes were read")?;
        let blocks = blocks.rsplit(": ").next()?;
        Some((bytes.to_owned(), blocks.to_owned()))
    });
    note.unwrap_or_else(|| (format!("{bytes} of {bytes}"), "all".to_owned()))
}
