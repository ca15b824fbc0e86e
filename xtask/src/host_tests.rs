//! Runs cargo's checks on the host and counts them: each named check is one test, and so is each test of `cargo test`.

use std::env;
use std::num::NonZero;
use std::thread;

use anyhow::Result;

use crate::place::{Place, cargo};
use crate::printer::{Outcome, Printer};
use crate::tally::Tally;

/// A check that passes or fails as a whole, and the cargo subcommand whose absence skips it.
struct Check {
    name: &'static str,
    needs: &'static str,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const CHECKS: &[Check] = &[
    Check { name: "formatting", needs: "fmt", arguments: &["fmt", "--all", "--check"], environment: &[] },
    Check {
        name: "lints",
        needs: "clippy",
        arguments: &["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"],
        environment: &[],
    },
    // Clippy checks it for the host, since it has no compiler for BPF. BPF has no unwinding, hence the panic strategy.
    Check {
        name: "lints of the eBPF programs",
        needs: "clippy",
        arguments: &[
            "clippy",
            "--config",
            "profile.dev.panic=\"abort\"",
            "--package",
            "viptrace-ebpf",
            "--bin",
            "viptrace-bpf",
            "--features",
            "bpf",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        environment: &[],
    },
    // They run only with libFuzzer and a sanitizer (`cargo xtask fuzz`). To check them, the build script of libfuzzer-sys need not
    // compile libFuzzer: it takes this library, and nothing is linked.
    Check {
        name: "lints of the fuzz targets",
        needs: "clippy",
        arguments: &[
            "clippy",
            "--manifest-path",
            "tests/fuzz/Cargo.toml",
            "--bins",
            "--locked",
            "--",
            "-D",
            "warnings",
        ],
        environment: &[
            ("CUSTOM_LIBFUZZER_PATH", "/nowhere/libfuzzer.a"),
            ("CUSTOM_LIBFUZZER_STD_CXX", "none"),
        ],
    },
];

/// The variable with the number of tests of a program that run at once.
const THREADS: &str = "RUST_TEST_THREADS";

/// Formatting and lints.
pub(crate) fn checks(place: &Place, printer: &Printer) -> Result<Tally> {
    let mut tally = Tally::default();
    for check in CHECKS {
        let present = cargo("find a cargo subcommand").args([check.needs, "--version"]).output()?;
        let checked = if present.status.success() {
            let call = cargo(format!("check {}", check.name)).args(check.arguments);
            let call = check.environment.iter().fold(call, |call, (name, value)| call.env(name, value));
            // The fuzz targets are a workspace of their own, and share what is compiled.
            let call = call.env("CARGO_TARGET_DIR", &place.target);
            call.directory(&place.repository).stream().map(|()| Outcome::Done(String::new()))
        } else {
            Ok(Outcome::Skipped(format!("`cargo {}` is not installed", check.needs)))
        };
        tally.check(printer, check.name, checked);
    }
    Ok(tally)
}

/// `cargo test` of the whole workspace, with its output on stderr.
pub(crate) fn cargo_test(place: &Place, printer: &Printer) -> Result<Tally> {
    let mut tally = Tally::default();
    let threads = env::var_os(THREADS).unwrap_or_else(|| threads().to_string().into());
    let call = cargo("run the host's tests").args(["test", "--workspace", "--locked", "--no-fail-fast"]);
    let command = call.env(THREADS, threads).directory(&place.repository);
    let status = command.lines(|line| {
        printer.say(line);
        if let Some(test) = failed_test(line) {
            printer.failed(&format!("host  {test}"));
        }
        if let Some(counts) = parse(line) {
            tally.add(counts);
        }
    })?;
    if !status.success() && tally.failed == 0 {
        // The tests did not compile, or a test binary died before it printed its counts.
        printer.failed(&format!("host  cargo test exited with {status} and counted no failure"));
        tally.failed += 1;
    }
    printer.data(&format!("{}  host  cargo test: {}", verb(tally), tally.line()));
    Ok(tally)
}

/// Two for each processor: the tests of streams and watches wait most of their time.
fn threads() -> usize {
    2 * thread::available_parallelism().map_or(1, NonZero::get)
}

fn verb(tally: Tally) -> &'static str {
    if tally.failed == 0 { "passed " } else { "failed " }
}

/// Reads `test a::b ... FAILED`.
fn failed_test(line: &str) -> Option<&str> {
    line.strip_prefix("test ")?.strip_suffix(" ... FAILED")
}

/// Reads "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; …". Ignored tests count as skipped.
fn parse(line: &str) -> Option<Tally> {
    let counts = line.trim().strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |name: &str| {
        counts.split("; ").find_map(|part| part.strip_suffix(name)?.strip_suffix(' ')?.parse::<u64>().ok())
    };
    Some(Tally { passed: count("passed")?, failed: count("failed")?, skipped: count("ignored")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read() {
        let good =
            "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(parse(good), Some(Tally { passed: 12, failed: 0, skipped: 1 }));
        let bad = "test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.50s";
        assert_eq!(parse(bad), Some(Tally { passed: 1, failed: 2, skipped: 0 }));
    }

    #[test]
    fn failed_tests_are_named() {
        assert_eq!(failed_test("test flow::tests::ends ... FAILED"), Some("flow::tests::ends"));
        assert_eq!(failed_test("test flow::tests::ends ... ok"), None);
        assert_eq!(failed_test("test result: FAILED. 1 passed; 2 failed"), None);
    }

    #[test]
    fn other_lines_are_not_counts() {
        for line in
            ["", "test a::b ... ok", "test result: ok", "test result: ok. many passed; 0 failed; 0 ignored"]
        {
            assert_eq!(parse(line), None, "{line}");
        }
    }
}
