//! What an audit costs: on the rules of a large cluster as a real kube-proxy wrote them, and on generated ones up to 10,000
//! Services. Prints a table and writes a plot: `cargo xtask bench audit`, or `cargo bench -p viptrace --bench audit`.
//!
//! Times are of this machine at this moment; what holds elsewhere is the ratio: the cost of a Service must not grow
//! with their number.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a benchmark prints, and ends where something is not as it should be"
)]

#[path = "audit/generate.rs"]
mod generate;
#[path = "audit/plot.rs"]
mod plot;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use viptrace::{
    cluster::{History, folder},
    diagnosis::audit::{Context, Expected, audit},
    node::ProxyMode,
    rules::{Ruleset, iptables, nftables},
};

/// Runs of each measurement; the fastest counts: what slows a run down is not of this program.
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

fn parse(mode: ProxyMode, listing: &[u8]) -> Ruleset {
    match mode {
        ProxyMode::Iptables => iptables::parse(&String::from_utf8_lossy(listing), iptables::Hint::default()),
        _ => nftables::parse(listing).unwrap(),
    }
}

/// Parses and audits; the rules must be as they should.
fn measure(mode: ProxyMode, listing: &[u8], history: &History) -> Cost {
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

/// The most memory this process has had since it was last forgotten, in MiB.
fn peak_mib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib / 1024)
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/large")
}

fn large() -> History {
    let lists = tempfile::tempdir().unwrap();
    for name in ["services.json", "endpointslices.json"] {
        let packed = fs::read(fixtures().join("cluster").join(format!("{name}.zst"))).unwrap();
        fs::write(lists.path().join(name), zstd::decode_all(packed.as_slice()).unwrap()).unwrap();
    }
    let nodes = fixtures().join("../cluster/nodes.json");
    fs::copy(nodes, lists.path().join("nodes.json")).unwrap();
    folder::read(lists.path(), Duration::from_hours(1)).unwrap().history
}

fn ms(time: Duration) -> String {
    format!("{:.1}", time.as_secs_f64() * 1e3)
}

fn main() {
    // `cargo test --benches` only wants to know that it runs.
    let quick = std::env::args().any(|argument| argument == "--test");
    println!(
        "{:<34} {:>9} {:>9} {:>9} {:>9} {:>12}",
        "rules", "number", "parse ms", "audit ms", "sum ms", "µs a Service"
    );
    let history = large();
    for (mode, file) in [
        (ProxyMode::Iptables, "iptables/iptables-save.txt.zst"),
        (ProxyMode::Nftables, "nftables/nft-ruleset.json.zst"),
    ] {
        let packed = fs::read(fixtures().join(file)).unwrap();
        let listing = zstd::decode_all(packed.as_slice()).unwrap();
        let cost = measure(mode, &listing, &history);
        row(&format!("captured, 1,000 Services, {mode}"), &cost, 1000);
    }
    if let Some(peak) = peak_mib() {
        println!("peak memory of all so far, cluster and listings included: {peak} MiB");
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
            let cost = measure(mode, listing.as_bytes(), &cluster.history);
            row(&format!("generated, {services} Services, {mode}"), &cost, *services);
            points.push((f64::from(*services), cost.total().as_secs_f64() * 1e3));
        }
        if let (Some(first), Some(last)) = (points.first(), points.last()) {
            println!(
                "{mode}: a Service costs {:.2} times as much among {} as among {}",
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
