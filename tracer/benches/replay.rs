//! Measures the speed, size and memory of a recording's replay.
//!
//! `cargo xtask bench replay` runs it. The traffic consists of a real kernel's records; see `recording_support`. Each
//! replay has its own process: decompress, decode, flows, verdicts with healthy flows folded, as in the default view.
//! The verdicts are not printed.
//!
//! `plain zstd` is the size, in bytes an event, of the same records compressed as the kernel wrote them, without the
//! columns of `recording::records`. `counted` is the speed at which `replay -o counts` reads the same file. In the usual mix
//! one connection of a hundred fails, in the broken one 90 do. Each has two lengths, and the broken one a third row with a
//! smaller table of flows: its memory is that of the table. Both are those of a node with 10,000 connections a second; the usual one
//! has rows with fewer, since a table of fewer flows fits into the processor's caches. The rows take turns. The benchmark fails if
//! the broken mix is much slower than half the usual one, as long and in the same round.
//!
//! `--make FILE EVENTS [FAILING [RATE]]` makes a recording, and `--play FILE` replays it: for a profile.
//!
//! `--query` compares queries by the index with a replay of everything, each as the program runs it: see `query`.

#![expect(clippy::panic, clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

#[path = "replay/query.rs"]
mod query;
#[path = "../tests/it/recording_support.rs"]
mod recording_support;

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use recording_support::{Live, Traffic, corpus, header};
use viptrace::{
    flow::Limits,
    recording::{EventCounter, EventCounts, Header, Player, Step},
    session::Detail,
    time::Timestamp,
};

/// Whose records the traffic consists of.
const KERNEL: &str = "debian-6.12";
/// The connections each second of the busiest node.
const BUSY: u32 = 10_000;
/// Those of the other rows.
const RATES: [u32; 2] = [100, 1_000];
const ROUNDS: usize = 3;
/// The mixes, and the failing connections of a hundred.
const FAILING: [(&str, u64); 2] = [("usual", 1), ("broken", 90)];
/// The least speed of the broken mix, in percent of that of the usual one. The target is 50; the noise of a busy machine
/// takes some.
const LEAST_PERCENT: u64 = 45;

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["--play", path] => play(Path::new(path)),
        ["--count", path] => count(Path::new(path)),
        ["--make", path, events, rest @ ..] => {
            let number = |at: usize| rest.get(at).map(|text: &&str| text.parse().unwrap());
            let failing = number(0).unwrap_or(FAILING[0].1);
            let rate = number(1).map_or(BUSY, |rate: u64| u32::try_from(rate).unwrap());
            let max_flows = Limits::default().max_flows;
            make(Path::new(path), events.parse().unwrap(), Mix { failing, rate, max_flows });
        }
        _ => {
            let events = arguments.iter().find_map(|argument| argument.strip_prefix("--events="));
            // `cargo test` runs benchmarks too. Then a small one checks that it works.
            let is_bench = arguments.iter().any(|argument| argument == "--bench");
            let small = if is_bench { 1_000_000 } else { 20_000 };
            let events = events.map_or(small, |events| events.parse().unwrap());
            if arguments.iter().any(|argument| argument == "--query") {
                query::compare(events);
            } else {
                compare(events, is_bench);
            }
            if !is_bench {
                query::compare(events);
            }
        }
    }
}

/// Replays a file and prints the measurements.
fn play(path: &Path) {
    let (begun, begun_on_cpu) = (Instant::now(), on_cpu_ns());
    let mut player = Player::open(File::open(path).unwrap(), Detail::Causes).unwrap();
    let (mut judged, mut folded) = (0_u64, 0_u64);
    let mut ended = false;
    while let Some(step) = player.step().unwrap() {
        match step {
            Step::Judged { judgements, .. } => {
                judged += judgements.judged.len() as u64;
                folded += judgements.folded.iter().map(|folded| folded.count).sum::<u64>();
            }
            Step::Ended(_) => ended = true,
        }
    }
    assert!(ended && player.damage().1 == 0);
    let (took, took_on_cpu) = (begun.elapsed(), on_cpu_ns() - begun_on_cpu);
    let events = player.pipeline().counters().sightings;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("?").trim().to_owned();
    println!("{events} {took_on_cpu} {} {judged} {folded} {peak}", took.as_nanos());
}

/// Counts a file's events and prints the measurements.
fn count(path: &Path) {
    let (begun, begun_on_cpu) = (Instant::now(), on_cpu_ns());
    let (mut counts, mut counter) =
        (EventCounts::default(), EventCounter::new(Timestamp::MIN, Timestamp::MAX));
    let lacks = counter.count(File::open(path).unwrap(), &mut counts).unwrap();
    counter.finish(&mut counts);
    assert_eq!((lacks.damage.1, counts.undecodable), (0, 0));
    println!("{} {} {}", counts.events, on_cpu_ns() - begun_on_cpu, begun.elapsed().as_nanos());
}

/// The CPU time of this thread in nanoseconds (the first number of `schedstat`), which does not depend on other load.
fn on_cpu_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

/// The traffic of a recording, and the trace that wrote it.
#[derive(Clone, Copy)]
struct Mix {
    /// Of a hundred connections.
    failing: u64,
    /// Connections each second.
    rate: u32,
    /// The size of the table of flows.
    max_flows: usize,
}

impl Mix {
    fn traffic(self) -> Traffic {
        Traffic::new(&corpus(KERNEL), 42, self.rate.into()).failing(self.failing)
    }
}

/// Makes a recording of this many events, and returns its size in bytes.
fn make(path: &Path, events: usize, mix: Mix) -> u64 {
    let mut traffic = mix.traffic();
    let limits = Limits { max_flows: mix.max_flows, ..Limits::default() };
    let mut live = Live::new(&Header { limits, ..header(&corpus(KERNEL)) }, Detail::Faults, path);
    let mut left = events;
    while left > 0 {
        // A live trace reads these events after its 50 ms.
        let batch: Vec<_> = traffic.by_ref().take(left.min(mix.rate as usize / 4)).collect();
        left -= batch.len();
        live.turn(batch.iter().map(Vec::as_slice));
        live.lines.clear();
        if live.recorded.pipeline().wants_node() && left % 50_000 < 2_500 {
            live.read_node();
        }
        live.catch_up();
    }
    live.pass(Duration::from_secs(10));
    let (_, finished) = live.end();
    assert_eq!(finished.records, events as u64);
    finished.bytes
}

/// The bytes of the same events without packing: each record after its length, in zstd frames as large and of the same
/// level as a recording's blocks.
fn plain_bytes(events: usize, mix: Mix) -> u64 {
    const BLOCK_RECORDS: usize = 16_384;
    const LEVEL: i32 = 3;
    let mut traffic = mix.traffic().take(events).peekable();
    let mut bytes = 0;
    while traffic.peek().is_some() {
        let mut block = Vec::new();
        for record in traffic.by_ref().take(BLOCK_RECORDS) {
            block.extend_from_slice(&u16::try_from(record.len()).unwrap().to_le_bytes());
            block.extend_from_slice(&record);
        }
        bytes += zstd::bulk::compress(&block, LEVEL).unwrap().len() as u64;
    }
    bytes
}

/// A replay or a count in a process of its own.
fn run(how: &str, path: &Path) -> Run {
    let output = Command::new(env::current_exe().unwrap()).arg(how).arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let words: Vec<_> = text.split_whitespace().collect();
    let number = |at: usize| words[at].parse().unwrap();
    (number(1), number(2), number(0), words.get(5..).unwrap_or_default().join(" "))
}

/// The measurements of one run: the CPU time and the time in nanoseconds, the events, and the rest.
type Run = (u64, u64, u64, String);

/// The middle one of several runs, by CPU time.
fn median(runs: &[Run]) -> Run {
    let mut runs = runs.to_vec();
    runs.sort();
    runs.swap_remove(runs.len() / 2)
}

/// A recording of a mix, and its replays and counts.
struct Row {
    name: &'static str,
    mix: Mix,
    events: usize,
    path: PathBuf,
    bytes: u64,
    plays: Vec<Run>,
    counts: Vec<Run>,
}

impl Row {
    fn make(
        folder: &Path,
        (name, failing): (&'static str, u64),
        rate: u32,
        events: usize,
        max_flows: usize,
    ) -> Self {
        let mix = Mix { failing, rate, max_flows };
        let path = folder.join(format!("{name}-{rate}-{events}-{max_flows}.viptrace"));
        let bytes = make(&path, events, mix);
        Self { name, mix, events, path, bytes, plays: Vec::new(), counts: Vec::new() }
    }

    fn print(&self) {
        let Self { name, mix, events, bytes, .. } = self;
        let (on_cpu_ns, took_ns, seen, peak) = median(&self.plays);
        let (counted_ns, _, counted, _) = median(&self.counts);
        assert_eq!((seen, counted), (*events as u64, seen));
        let per_event = |bytes: u64| format!("{}.{:02}", bytes / seen, bytes % seen * 100 / seen);
        println!(
            "{name:>7} {:>7} {seen:>10} {:>7} {bytes:>12} {:>9} {:>11} {:>14} {:>12} {:>14} {:>16} {peak:>12}",
            mix.rate,
            mix.max_flows,
            per_event(*bytes),
            per_event(plain_bytes(*events, *mix)),
            seen * 1_000_000_000 / on_cpu_ns,
            on_cpu_ns / seen,
            took_ns / seen,
            counted * 1_000_000_000 / counted_ns,
        );
    }
}

fn compare(events: usize, is_bench: bool) {
    let folder = tempfile::tempdir().unwrap();
    let [usual, broken] = FAILING;
    let table = Limits::default().max_flows;
    let slower = RATES.map(|rate| (usual, rate, events, table));
    // The pairs whose ratio is measured are neighbours, so that other load is the same for both.
    let busy = [
        (usual, BUSY, events, table),
        (broken, BUSY, events, table),
        (usual, BUSY, events * 4, table),
        (broken, BUSY, events * 4, table),
        (broken, BUSY, events * 4, table / 4),
    ];
    let make = |(mix, rate, events, max_flows)| Row::make(folder.path(), mix, rate, events, max_flows);
    let mut rows: Vec<_> = slower.into_iter().chain(busy).map(make).collect();
    for _ in 0..ROUNDS {
        for row in &mut rows {
            row.plays.push(run("--play", &row.path));
        }
        for row in &mut rows {
            row.counts.push(run("--count", &row.path));
        }
    }
    println!(
        "{:>7} {:>7} {:>10} {:>7} {:>12} {:>9} {:>11} {:>14} {:>12} {:>14} {:>16} {:>12}",
        "mix",
        "flows/s",
        "events",
        "table",
        "bytes",
        "B/event",
        "plain zstd",
        "events/CPU s",
        "CPU ns/event",
        "wall ns/event",
        "counted/CPU s",
        "peak RSS"
    );
    rows.iter().for_each(Row::print);
    let mut percents: Vec<_> =
        rows.windows(2).flat_map(|pair| percents_of_usual(&pair[0], &pair[1])).collect();
    percents.sort_unstable();
    let percent = percents[percents.len() / 2];
    println!("broken: {percent} % of the speed of usual, the target is 50 %");
    assert!(!is_bench || percent >= LEAST_PERCENT, "{percent} % of the speed of usual");
}

/// In each round, the speed of the broken mix in percent of that of the usual one beside it; none if the two are not a pair.
fn percents_of_usual(usual: &Row, broken: &Row) -> Vec<u64> {
    let is_pair = (usual.name, broken.name) == (FAILING[0].0, FAILING[1].0) && usual.events == broken.events;
    let rounds = usual.plays.iter().zip(&broken.plays).filter(|_| is_pair);
    rounds.map(|(usual, broken)| usual.0 * 100 / broken.0).collect()
}
