//! Compares replays with those of another commit's program, by turns: the speed of a shared machine changes from minute to
//! minute, and only what runs side by side compares.
//!
//! Each program replays its own recordings of the same traffic. The other commit's files and what is built of them stay below
//! `target/against`, so that a further comparison begins at once.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::Options;
use crate::bench::{Spread, grouped, spread};
use crate::call::Call;
use crate::place::{Place, cargo, make_empty};
use crate::printer::Printer;

/// The mixes of this program: the name, and the arguments after the number of events, as `benches/replay.rs` reads them.
const MIXES: [(&str, &[&str]); 3] =
    [("usual", &[]), ("usual, 60 connections a second", &["1", "60"]), ("broken", &["90"])];

/// A program with one of its recordings.
struct Player {
    root: PathBuf,
    program: PathBuf,
    recording: PathBuf,
}

/// Measures and prints.
pub(super) fn compare(
    printer: &Printer,
    place: &Place,
    commit: &str,
    events: u64,
    options: &Options,
) -> Result<()> {
    let hash = hash_of(place, commit)?;
    let folder = place.target.join("against");
    let other = folder.join(&hash);
    printer.say(&format!("==> the benchmark of {hash}"));
    check_out(place, &hash, &other)?;
    let theirs = built(&other, &folder.join("target"))?;
    printer.say("==> the benchmark of this tree");
    let ours = built(&place.repository, &place.target)?;
    printer.say("==> recordings");
    let recordings = folder.join("recordings");
    // A recording is never written over another.
    make_empty(&recordings)?;
    let reference = Player { root: other, program: theirs, recording: recordings.join("reference.viptrace") };
    reference.make(events, &[])?;
    let mut players = Vec::new();
    for (name, arguments) in MIXES {
        let recording = recordings.join(format!("{}.viptrace", players.len()));
        let player = Player { root: place.repository.clone(), program: ours.clone(), recording };
        player.make(events, arguments)?;
        players.push((name, player, Vec::new()));
    }
    let mut theirs = Vec::new();
    for round in 1..=options.rounds {
        theirs.push(reference.play()?);
        for (_, player, times) in &mut players {
            times.push(player.play()?);
        }
        printer.say(&format!("    round {round} of {} done", options.rounds));
    }
    printer
        .data(&format!("this tree's replays, in the speed of {hash} with \"usual\", {events} events each:"));
    for (name, _, times) in players {
        let Some(Speed { rounds: Spread { median, low, high }, fastest }) = Speed::of(&theirs, &times) else {
            continue;
        };
        let there = options.where_it_had.map_or_else(String::new, |speed| {
            let at = |ratio: f64| grouped(ratio * f64::from(speed));
            format!(
                "; where that has {} events a CPU second, {} ({} to {}), and {}",
                at(1.0),
                at(median),
                at(low),
                at(high),
                at(fastest)
            )
        });
        printer.data(&format!(
            "{name}: {median:.2} ({low:.2} to {high:.2}), the fastest runs {fastest:.2}{there}"
        ));
    }
    let there = options.where_it_had.map_or_else(String::new, |speed| format!(" --where-it-had {speed}"));
    printer.data(&format!(
        "command: cargo xtask bench replay --against {commit} --events {events} --rounds {}{there}",
        options.rounds
    ));
    Ok(())
}

/// How many times as fast one program's replays are as another's.
#[derive(Debug, PartialEq)]
struct Speed {
    /// By the rounds, in each of which both ran.
    rounds: Spread,
    /// By the fastest run of each: the nearest to a machine without other work.
    fastest: f64,
}

impl Speed {
    /// From the times of that program and of this one, by round. `None` without rounds.
    fn of(theirs: &[f64], ours: &[f64]) -> Option<Self> {
        let rounds = spread(theirs.iter().zip(ours).map(|(theirs, ours)| theirs / ours))?;
        let fastest = spread(theirs.iter().copied())?.low / spread(ours.iter().copied())?.low;
        Some(Self { rounds, fastest })
    }
}

/// The whole name of a commit.
fn hash_of(place: &Place, commit: &str) -> Result<String> {
    let hash = Call::new(format!("find the commit {commit}"), "git")
        .args(["rev-parse", "--verify", "--end-of-options"])
        .arg(format!("{commit}^{{commit}}"))
        .directory(&place.repository)
        .hint(
            "name a commit of this repository; a clone without its history gets it by: git fetch --unshallow",
        )
        .read()?;
    Ok(hash.trim().to_owned())
}

/// Writes the commit's files, unless they are there.
fn check_out(place: &Place, hash: &str, to: &Path) -> Result<()> {
    if to.is_dir() {
        return Ok(());
    }
    let begun = to.with_extension("part");
    let archive = to.with_extension("tar");
    make_empty(&begun)?;
    Call::new("read the commit's files", "git")
        .args(["archive", "--format=tar", "-o"])
        .arg(&archive)
        .arg(hash)
        .directory(&place.repository)
        .stream()?;
    Call::new("unpack the commit's files", "tar").arg("-xf").arg(&archive).arg("-C").arg(&begun).stream()?;
    fs::remove_file(&archive).with_context(|| format!("could not remove {}", archive.display()))?;
    fs::rename(&begun, to).with_context(|| format!("could not rename {}", begun.display()))
}

/// The tree's benchmark, as it is published, or as it was built before there was a profile for that.
fn built(root: &Path, target: &Path) -> Result<PathBuf> {
    let manifest = root.join("Cargo.toml");
    let text =
        fs::read_to_string(&manifest).with_context(|| format!("could not read {}", manifest.display()))?;
    let profile = if text.contains("[profile.dist]") { "dist" } else { "bench" };
    let mut found = None;
    cargo("build the benchmark")
        .args(["bench", "--no-run", "--locked", "-p", "viptrace", "--bench", "replay"])
        .args(["--message-format=json-render-diagnostics", "--profile", profile])
        .env("CARGO_TARGET_DIR", target)
        .directory(root)
        .hint("read the message above; for a missing BPF toolchain, type: cargo xtask setup")
        .lines_of_success(|line| found = program_in(line).or(found.take()))?;
    found.with_context(|| format!("cargo names no program of the benchmark in {}", root.display()))
}

/// The program of the benchmark in a line of cargo's messages.
fn program_in(line: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let is_ours = message.pointer("/target/name")?.as_str()? == "replay";
    is_ours.then(|| message.get("executable")?.as_str().map(PathBuf::from))?
}

impl Player {
    fn make(&self, events: u64, arguments: &[&str]) -> Result<()> {
        Call::new("make a recording", &self.program)
            .arg("--make")
            .arg(&self.recording)
            .arg(events.to_string())
            .args(arguments)
            .directory(&self.root.join("tracer"))
            .read()
            .map(|_| ())
    }

    /// The CPU time of a replay, in nanoseconds.
    fn play(&self) -> Result<f64> {
        let text = Call::new("replay a recording", &self.program)
            .arg("--play")
            .arg(&self.recording)
            .directory(&self.root.join("tracer"))
            .read()?;
        let Some(time) = cpu_ns(&text) else {
            bail!("could not read the CPU time of a replay: {} printed {text:?}", self.program.display());
        };
        Ok(time)
    }
}

/// The second number of a replay's line, after that of the events.
fn cpu_ns(text: &str) -> Option<f64> {
    text.split_whitespace().nth(1)?.parse().ok().filter(|time| *time > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_that_of_the_benchmark() {
        let line = |name: &str, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","target":{{"name":"{name}"}},"executable":{executable}}}"#
            )
        };
        assert_eq!(program_in(&line("replay", r#""/t/replay-1""#)), Some("/t/replay-1".into()));
        assert_eq!(program_in(&line("judge", r#""/t/judge-1""#)), None);
        assert_eq!(program_in(&line("replay", "null")), None);
        assert_eq!(program_in("   Compiling viptrace"), None);
    }

    #[test]
    fn the_fastest_runs_need_not_be_of_one_round() {
        let speed = Speed::of(&[200.0, 800.0, 300.0], &[400.0, 200.0, 100.0]).unwrap();
        assert_eq!(speed, Speed { rounds: Spread { median: 3.0, low: 0.5, high: 4.0 }, fastest: 2.0 });
        assert_eq!(Speed::of(&[], &[]), None);
    }

    #[test]
    fn the_cpu_time_follows_the_events() {
        assert_eq!(cpu_ns("1000000 601648737 604613530 57 204058 47016 kB\n"), Some(601_648_737.0));
        assert_eq!(cpu_ns("1000000 0 1"), None);
        assert_eq!(cpu_ns("1000000"), None);
    }
}
