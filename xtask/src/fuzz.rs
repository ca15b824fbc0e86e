//! `cargo xtask fuzz`: feeds inputs from libFuzzer to every parser of the tracer, for a few minutes each.
//!
//! The targets are in `tests/fuzz`. This file builds them, runs them one after the other and prints the results. Files
//! stay below `target/fuzz`: `seeds` (rewritten by each run), `corpus` (grows from run to run), `crashes`, and one log
//! for each target.

mod captures;
mod seeds;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::apt;
use crate::call::Call;
use crate::disk;
use crate::event::Verdict;
use crate::place::{Place, apart};
use crate::printer::{Outcome, Printer, indented};
use crate::tally::Tally;
use crate::toolchain;

/// One program of `tests/fuzz`.
struct Target {
    name: &'static str,
    /// The longest input, in bytes.
    max_bytes: u64,
    /// The largest single allocation that an input may cause, in MiB.
    allocation_mib: u64,
}

/// The largest allocation of a parser whose inputs are short.
const SMALL_MIB: u64 = 16;
/// The largest allocation for rules: the paths of one packet, 65,536 of some 450 bytes, in a list that doubles.
const RULES_MIB: u64 = 64;
/// The largest allocation for a packet capture: the buffer grows until the largest block fits, 16 MiB.
const CAPTURE_MIB: u64 = 32;
/// The largest allocation for a recording: an item joined from its pieces, 64 MiB, in a list that doubles as it grows.
const RECORDING_MIB: u64 = 128;

const TARGETS: &[Target] = &[
    Target { name: "btf", max_bytes: 64 << 10, allocation_mib: SMALL_MIB },
    Target { name: "check", max_bytes: 64 << 10, allocation_mib: RULES_MIB },
    Target { name: "config", max_bytes: 4 << 10, allocation_mib: SMALL_MIB },
    Target { name: "decode", max_bytes: 1 << 10, allocation_mib: SMALL_MIB },
    Target { name: "entries", max_bytes: 8 << 10, allocation_mib: SMALL_MIB },
    Target { name: "netlink", max_bytes: 8 << 10, allocation_mib: SMALL_MIB },
    Target { name: "objects", max_bytes: 16 << 10, allocation_mib: SMALL_MIB },
    Target { name: "pcap", max_bytes: 16 << 10, allocation_mib: CAPTURE_MIB },
    Target { name: "recording", max_bytes: 64 << 10, allocation_mib: RECORDING_MIB },
    Target { name: "replay", max_bytes: 96 << 10, allocation_mib: RECORDING_MIB },
    Target { name: "rules", max_bytes: 64 << 10, allocation_mib: RULES_MIB },
    Target { name: "stream", max_bytes: 8 << 10, allocation_mib: SMALL_MIB },
    Target { name: "tape", max_bytes: 128 << 10, allocation_mib: RECORDING_MIB },
    Target { name: "texts", max_bytes: 16 << 10, allocation_mib: SMALL_MIB },
];

/// All memory of a target, in MiB. The sanitizer holds back a quarter of it to find uses after free.
const MEMORY_MIB: u64 = 1536;
/// The longest time for one input, in seconds, with a sanitizer on a busy machine.
const INPUT_SECONDS: u64 = 20;
/// The compilation target: a sanitizer needs an explicit one.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";
/// The sanitizer mistakes Rust's statics for double definitions.
const SANITIZER: (&str, &str) = ("ASAN_OPTIONS", "detect_odr_violation=0");

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Only these targets
    #[arg(value_name = "TARGET", value_parser = PossibleValuesParser::new(TARGETS.iter().map(|target| target.name)))]
    targets: Vec<String>,
    /// Running time of each target, in minutes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    minutes: u64,
}

/// Fuzzes. Returns false if a target fails on an input.
pub(crate) fn run(printer: &Printer, options: &Options) -> Result<bool> {
    let place = Place::find()?;
    let chosen = |target: &&Target| {
        options.targets.is_empty() || options.targets.iter().any(|name| name == target.name)
    };
    let targets: Vec<&Target> = TARGETS.iter().filter(chosen).collect();
    printer.step("disk space", || {
        let free = disk::require(&place.target, disk::WARM_BYTES)?;
        Ok(Outcome::Done(format!("{} free for {}", disk::gigabytes(free), place.target.display())))
    })?;
    printer.step("packages", || apt::ensure(apt::FUZZ))?;
    printer.step("cargo-fuzz", || toolchain::ensure_cargo_fuzz(&place))?;
    for target in &targets {
        printer.step(&format!("fuzz target {}", target.name), || build(&place, target))?;
    }
    let mut tally = Tally::default();
    for target in &targets {
        tally.count(fuzz(printer, &place, target, options.minutes)?);
    }
    printer.data(&tally.line());
    Ok(tally.is_good())
}

fn build(place: &Place, target: &Target) -> Result<Outcome> {
    apart(Call::new(
        format!("build the fuzz target {}", target.name),
        place.toolchain().join("bin/cargo-fuzz"),
    ))
    .args(["fuzz", "build", "--fuzz-dir", "tests/fuzz", "--target", TRIPLE, target.name])
    .directory(&place.repository)
    .env("CARGO_TARGET_DIR", folder(place))
    // Sanitizers are unstable; this enables them in a stable compiler.
    .env("RUSTC_BOOTSTRAP", "1")
    .hint("read the compiler's message above")
    .stream()?;
    Ok(Outcome::Done(String::new()))
}

/// Runs one target and prints its result.
fn fuzz(printer: &Printer, place: &Place, target: &Target, minutes: u64) -> Result<Verdict> {
    let name = target.name;
    let folder = folder(place);
    let (seeds, corpus) = (folder.join("seeds").join(name), folder.join("corpus").join(name));
    let (crashes, log) = (folder.join("crashes").join(name), folder.join(format!("{name}.log")));
    for made in [&corpus, &crashes] {
        fs::create_dir_all(made).with_context(|| format!("could not create {}", made.display()))?;
    }
    let count = seeds::write(target, &place.repository.join("tests"), &seeds)?;
    printer.say(&format!("==> fuzz {name} for {minutes} min, from {count} seeds; log: {}", log.display()));
    let binary = folder.join(TRIPLE).join("release").join(name);
    let into = File::create(&log).with_context(|| format!("could not write {}", log.display()))?;
    let status = Call::new(format!("run the fuzz target {name}"), &binary)
        .arg(&corpus)
        .arg(&seeds)
        .args([
            format!("-max_total_time={}", minutes * 60),
            format!("-max_len={}", target.max_bytes),
            format!("-malloc_limit_mb={}", target.allocation_mib),
            format!("-rss_limit_mb={MEMORY_MIB}"),
            format!("-timeout={INPUT_SECONDS}"),
            format!("-artifact_prefix={}/", crashes.display()),
            "-print_final_stats=1".to_owned(),
        ])
        .env(SANITIZER.0, SANITIZER.1)
        .directory(&place.repository)
        .logged(&into)?;
    let text = fs::read(&log).with_context(|| format!("could not read {}", log.display()))?;
    let end = End::read(&String::from_utf8_lossy(&text));
    if status.success() && end.is_whole() {
        printer.data(&format!("passed   fuzz  {name}: {}, clean", end.line()));
        return Ok(Verdict::Passed);
    }
    printer.data(&format!("failed   fuzz  {name}: {}{}", end.line(), crash(&end, &binary, &log)));
    Ok(Verdict::Failed)
}

/// The lines below the result of a failed target.
fn crash(end: &End, binary: &Path, log: &Path) -> String {
    let reason = end.reason.as_deref().unwrap_or("it ended before its time was over");
    let mut lines = vec![reason.to_owned()];
    match &end.input {
        Some(input) => {
            lines.push(format!("input: {input}"));
            lines.push(format!("to reproduce: {}={} {} {input}", SANITIZER.0, SANITIZER.1, binary.display()));
        }
        None => lines.push(format!("its last lines are in {}", log.display())),
    }
    indented(lines.iter().map(String::as_str))
}

fn folder(place: &Place) -> PathBuf {
    place.target.join("fuzz")
}

/// libFuzzer's report of a run.
#[derive(Debug, Default, PartialEq, Eq)]
struct End {
    runs: u64,
    runs_a_second: u64,
    /// Edges of the program that the inputs covered.
    coverage: u64,
    /// libFuzzer's features: edges by how often they were covered, and the like.
    features: u64,
    corpus: u64,
    peak_mib: u64,
    /// The first error.
    reason: Option<String>,
    /// The file with the input that caused it.
    input: Option<String>,
}

impl End {
    fn read(log: &str) -> Self {
        let mut end = Self::default();
        for line in log.lines() {
            let number = |name: &str| line.strip_prefix(name)?.trim().parse::<u64>().ok();
            let word = |name: &str| {
                let mut words = line.split_whitespace().skip_while(|word| *word != name);
                words.nth(1)?.split('/').next()?.parse::<u64>().ok()
            };
            if let Some((run, _)) = line.strip_prefix('#').and_then(|rest| rest.split_once(['\t', ' '])) {
                end.runs = run.parse().unwrap_or(end.runs);
                end.coverage = word("cov:").unwrap_or(end.coverage);
                end.features = word("ft:").unwrap_or(end.features);
                end.corpus = word("corp:").unwrap_or(end.corpus);
            } else if let Some(rate) = number("stat::average_exec_per_sec:") {
                end.runs_a_second = rate;
            } else if let Some(peak) = number("stat::peak_rss_mb:") {
                end.peak_mib = peak;
            } else if let Some((_, path)) = line.split_once("Test unit written to ") {
                end.input.get_or_insert_with(|| path.trim().to_owned());
            } else if line.contains("panicked at ") || line.starts_with("==") && line.contains("ERROR: ") {
                end.reason.get_or_insert_with(|| line.trim().to_owned());
            }
        }
        end
    }

    /// Whether the run reached its end without an error.
    fn is_whole(&self) -> bool {
        self.runs > 0 && self.peak_mib > 0 && self.reason.is_none()
    }

    fn line(&self) -> String {
        let Self { runs, runs_a_second, coverage, features, corpus, peak_mib, .. } = self;
        format!(
            "{runs} runs, {runs_a_second}/s, coverage {coverage} edges and {features} features, corpus {corpus}, \
             {peak_mib} MiB"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clean_run_is_read() {
        let log = "INFO: Seed: 1\n#2\tINITED cov: 33 ft: 33 corp: 1/1b exec/s: 0 rss: 34Mb\n\
                   #1435297\tREDUCE cov: 762 ft: 1854 corp: 241/4636Kb lim: 32420 exec/s: 11669 rss: 452Mb\n\
                   #1435300\tDONE   cov: 763 ft: 1855 corp: 242/4636Kb lim: 32420 exec/s: 11669 rss: 452Mb\n\
                   Done 1435300 runs in 600 second(s)\nstat::number_of_executed_units: 1435300\n\
                   stat::average_exec_per_sec:     2388\nstat::peak_rss_mb:              452\n";
        let end = End::read(log);
        assert!(end.is_whole());
        assert_eq!(
            end.line(),
            "1435300 runs, 2388/s, coverage 763 edges and 1855 features, corpus 242, 452 MiB"
        );
    }

    #[test]
    fn a_crash_is_named_with_its_input() {
        let log = "#2\tINITED cov: 33 ft: 33 corp: 1/1b exec/s: 0 rss: 34Mb\n\
                   thread '<unnamed>' (1) panicked at src/time.rs:7:5:\nattempt to add with overflow\n\
                   ==7== ERROR: libFuzzer: deadly signal\n\
                   artifact_prefix='x/'; Test unit written to x/crash-1\nstat::peak_rss_mb: 34\n";
        let end = End::read(log);
        assert!(!end.is_whole());
        let text = crash(&end, Path::new("bin/t"), Path::new("t.log"));
        assert!(text.contains("src/time.rs:7:5") && text.contains("bin/t x/crash-1"), "{text}");
        assert!(!End::read("").is_whole());
    }

    #[test]
    fn every_target_of_the_manifest_is_run() {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fuzz/Cargo.toml");
        let text = fs::read_to_string(manifest).unwrap();
        let built: Vec<&str> = text
            .split("[[bin]]")
            .skip(1)
            .filter_map(|part| part.split_once("name = \"")?.1.split('"').next())
            .collect();
        assert_eq!(built, TARGETS.iter().map(|target| target.name).collect::<Vec<_>>());
    }
}
