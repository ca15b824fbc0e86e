//! Measures an audit on the rules of a large cluster that a real kube-proxy wrote (alone, and within a whole `viptrace
//! check --from`), and on generated rules for up to 10,000 Services. Prints a table and writes a plot: `cargo xtask bench
//! audit`, or `cargo bench -p viptrace --bench audit`.
//!
//! Times depend on the machine and its load. The ratio does not: the cost of a Service must not grow with the number of
//! Services.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and panics on a wrong result"
)]

#[path = "audit/generate.rs"]
mod generate;
#[path = "audit/plot.rs"]
mod plot;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use tempfile::TempDir;
use viptrace::{
    cluster::{History, folder},
    diagnosis::audit::{Context, Expected, audit},
    node::ProxyMode,
    rules::{Ruleset, iptables, nftables},
};

/// Runs of each measurement. The fastest counts, because other load only slows a run down.
const RUNS: usize = 5;

struct Cost {
    parse: Duration,
    audit: Duration,
    rules: usize,
}

impl Cost {
    fn total(&self) -> Duration {
        self.parse + self.audit
    }
}

fn parse(mode: ProxyMode, listing: &str) -> Ruleset {
    match mode {
        ProxyMode::Iptables => iptables::parse(listing, iptables::Hint::default()),
        _ => nftables::parse(listing).unwrap(),
    }
}

/// Parses and audits rules that match the API.
fn measure(mode: ProxyMode, listing: &str, history: &History) -> Cost {
    let context = Context::new("worker-1", mode, generate::now());
    let once = || {
        let start = Instant::now();
        let rules = parse(mode, listing);
        let parsed = start.elapsed();
        let found = audit(&Expected::new(history, &context), &rules, &context);
        let cost = Cost { parse: parsed, audit: start.elapsed().saturating_sub(parsed), rules: rules.size() };
        assert!(found.discrepancies.is_empty(), "{:?}", found.discrepancies.first());
        cost
    };
    (0..RUNS).map(|_| once()).min_by_key(Cost::total).unwrap()
}

/// The highest memory use of this process since the last reset, in MiB.
fn peak_mib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib / 1024)
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/large")
}

/// The captured modes, and the file that kube-proxy's rules are in.
const CAPTURED: [(ProxyMode, &str); 2] =
    [(ProxyMode::Iptables, "iptables-save.txt"), (ProxyMode::Nftables, "nft-ruleset.json")];

/// A folder with the lists of the captured cluster.
fn large() -> TempDir {
    let lists = tempfile::tempdir().unwrap();
    for name in ["services.json", "endpointslices.json"] {
        let packed = fs::read(fixtures().join("cluster").join(format!("{name}.zst"))).unwrap();
        fs::write(lists.path().join(name), zstd::decode_all(packed.as_slice()).unwrap()).unwrap();
    }
    let nodes = fixtures().join("../cluster/nodes.json");
    fs::copy(nodes, lists.path().join("nodes.json")).unwrap();
    lists
}

fn listing(mode: ProxyMode, file: &str) -> String {
    let packed = fs::read(fixtures().join(mode.as_str()).join(format!("{file}.zst"))).unwrap();
    String::from_utf8(zstd::decode_all(packed.as_slice()).unwrap()).unwrap()
}

/// The whole process, from its start to its end: the command reads the folder, parses, audits and prints.
fn whole(mode: ProxyMode, file: &str) -> Duration {
    let folder = large();
    fs::write(folder.path().join(file), listing(mode, file)).unwrap();
    fs::write(folder.path().join("proxyMode.txt"), mode.as_str()).unwrap();
    let once = || {
        let mut check = Command::new(env!("CARGO_BIN_EXE_viptrace"));
        check.args(["check", "--node", "worker-1", "--from"]).arg(folder.path());
        let start = Instant::now();
        let status = check.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        let took = start.elapsed();
        // Two of the captured Services have no endpoints: a check that reports no fault has not read them.
        assert_eq!(status.code(), Some(3), "{mode}");
        took
    };
    (0..RUNS).map(|_| once()).min().unwrap()
}

fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn main() {
    // `cargo test --benches` only checks that it runs.
    let quick = std::env::args().any(|argument| argument == "--test");
    println!(
        "{:<34} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "rules", "number", "parse ms", "audit ms", "sum ms", "µs a Service"
    );
    let history = folder::read(large().path(), Duration::from_hours(1)).unwrap().history;
    for (mode, file) in CAPTURED {
        let cost = measure(mode, &listing(mode, file), &history);
        row(&format!("captured, 1,000 Services, {mode}"), &cost, 1000);
    }
    for (mode, file) in CAPTURED {
        println!("viptrace check --from, the same, {mode}, as a whole process: {} ms", ms(whole(mode, file)));
    }
    if let Some(peak) = peak_mib() {
        println!("peak memory so far, including cluster and listings: {peak} MiB");
    }
    let sizes: &[u32] = if quick { &[100] } else { &[1000, 2000, 4000, 7000, 10_000] };
    let mut lines = Vec::new();
    for mode in [ProxyMode::Iptables, ProxyMode::Nftables] {
        let mut points = Vec::new();
        for services in sizes {
            let cluster = generate::cluster(*services);
            let listing = match mode {
                ProxyMode::Iptables => generate::iptables(&cluster),
                _ => generate::nftables(&cluster),
            };
            let cost = measure(mode, &listing, &cluster.history);
            row(&format!("generated, {services} Services, {mode}"), &cost, *services);
            points.push((f64::from(*services), cost.total().as_secs_f64() * 1e3));
        }
        if let (Some(first), Some(last)) = (points.first(), points.last()) {
            println!(
                "{mode}: a Service costs {:.2} times as much with {} Services as with {}",
                last.1 / last.0 / (first.1 / first.0),
                last.0,
                first.0
            );
        }
        lines.push((mode.as_str(), points));
    }
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../target"), PathBuf::from);
    let path = target.join("bench/audit.svg");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(
        &path,
        plot::svg("Parse and audit of a node's rules", "Services (10 endpoints each)", "ms", &lines),
    )
    .unwrap();
    println!("plot: {}", path.display());
}

fn row(name: &str, cost: &Cost, services: u32) {
    let each = cost.total().as_secs_f64() * 1e6 / f64::from(services);
    println!(
        "{name:<34} {:>9} {:>9} {:>9} {:>9} {each:>12.1}",
        cost.rules,
        ms(cost.parse),
        ms(cost.audit),
        ms(cost.total())
    );
}
