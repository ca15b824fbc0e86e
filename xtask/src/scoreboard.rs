//! `cargo xtask scoreboard`: of each class, how often it was caused, detected and missed, and the false alarms, from
//! the constructed cases, the corpus of recordings, and the last run of each scenario in a guest.
//!
//! The host's tests count the first two (`tracer/tests/it/scoreboard`), `cargo xtask test` keeps the third. This file
//! adds them up, prints the tables and writes them to `docs/scoreboard.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;

use anyhow::{Context as _, Result};
use clap::Args;
use viptrace_class::{Class, Kind, Seen};

use crate::matrix::markdown;
use crate::place::{Place, cargo};
use crate::printer::Printer;
use crate::scores::{Results, Row, Scores};
use crate::test;

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// First run every scenario on every kernel, which takes an hour or more
    #[arg(long)]
    matrix: bool,
}

/// Prints the scoreboard and writes it. Returns false if a class was missed, a fault was reported without a cause, or a
/// class that viptrace reports has no case.
pub(crate) fn run(printer: &Printer, options: &Options) -> Result<bool> {
    let place = Place::find()?;
    let mut good = !options.matrix || test::run(printer, &test::Options::whole_matrix());
    let results = Results::read(&place.scores())?;
    let board = Board { host: host(printer, &place)?, matrix: results.scores(), results };
    let text = board.text();
    for line in text.lines() {
        printer.data(line);
    }
    let path = place.repository.join("docs/scoreboard.md");
    fs::write(&path, &text).with_context(|| format!("could not write {}", path.display()))?;
    for fault in board.faults() {
        printer.failed(&fault);
        good = false;
    }
    printer.failures();
    Ok(good)
}

/// Runs the host's cases and reads their counts.
fn host(printer: &Printer, place: &Place) -> Result<Scores> {
    let file = place.target.join("scoreboard.json");
    if file.exists() {
        fs::remove_file(&file).with_context(|| format!("could not remove {}", file.display()))?;
    }
    printer.say("==> constructed cases, corpus and mutations");
    let call = cargo("judge the cases of the scoreboard");
    call.args(["test", "--package", "viptrace", "--test", "it", "--locked", "scoreboard"])
        .env("VIPTRACE_SCOREBOARD", &file)
        .directory(&place.repository)
        .stream()?;
    let text = fs::read(&file).with_context(|| {
        format!("the tests of the scoreboard passed and did not write {}", file.display())
    })?;
    serde_json::from_slice(&text).with_context(|| format!("could not parse {}", file.display()))
}

/// The counts of some rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    caused: u64,
    detected: u64,
    missed: u64,
    false_alarms: u64,
}

impl Counts {
    fn of<'r>(rows: impl Iterator<Item = &'r Row>) -> Self {
        rows.fold(Self::default(), |sum, row| Self {
            caused: sum.caused + row.caused,
            detected: sum.detected + row.detected,
            missed: sum.missed + row.missed,
            false_alarms: sum.false_alarms + row.false_alarms,
        })
    }

    /// `detected/caused`; empty where nothing was caused.
    fn share(self) -> String {
        if self.caused == 0 { String::new() } else { format!("{}/{}", self.detected, self.caused) }
    }
}

#[derive(Debug)]
struct Board {
    /// The constructed cases, the corpus and the mutations.
    host: Scores,
    matrix: Scores,
    results: Results,
}

impl Board {
    fn rows(&self) -> impl Iterator<Item = &Row> {
        self.host.rows.iter().chain(&self.matrix.rows)
    }

    fn counts(&self, class: Class, is_meant: impl Fn(&Row) -> bool) -> Counts {
        Counts::of(self.rows().filter(|row| row.class == class.id() && is_meant(row)))
    }

    /// The reasons why the scoreboard is not good.
    fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for &class in Class::ALL {
            let counts = self.counts(class, |_| true);
            if counts.missed > 0 {
                faults.push(format!("scoreboard: {class} was missed {} times", counts.missed));
            }
            if counts.false_alarms > 0 {
                faults.push(format!("scoreboard: {} false alarms of {class}", counts.false_alarms));
            }
            let seen = class.entry().seen;
            for (verb, is_seen) in [("trace", seen.by_trace()), ("check", seen.by_check())] {
                let is_of = |row: &Row| row.verb == verb;
                if is_seen && class.kind() != Kind::Unknown && self.counts(class, is_of).caused == 0 {
                    faults.push(format!("scoreboard: no case causes {class} for `viptrace {verb}`"));
                }
            }
        }
        let silent = self.host.mutations.iter().filter(|mutation| mutation.missed.is_empty());
        faults
            .extend(silent.map(|mutation| {
                format!("scoreboard: without the rule {}, nothing is missed", mutation.rule)
            }));
        faults
    }

    fn text(&self) -> String {
        let mut text = String::from(HEAD);
        let all = Counts::of(self.rows());
        let _written = write!(
            text,
            "\n**{} caused, {} detected, {} missed, {} false alarms.**\n",
            all.caused, all.detected, all.missed, all.false_alarms
        );
        let kernels = self.results.kernels();
        text += "\n## By source\n\nDetected of caused. `trace` judges flows; `check` reads a node without traffic.\n\n";
        text += &self.by_source(&kernels);
        text += "\n## By mode\n\n";
        text += &self.by_mode();
        text += "\n## Confused\n\n";
        text += &self.confused();
        text += "\n## Not reported\n\n";
        for &class in Class::ALL {
            let entry = class.entry();
            if entry.seen == Seen::Neither {
                let _written = writeln!(text, "- {class} ({}): {}", class.title(), entry.no_rule);
            }
        }
        text += "\n## Without a rule\n\n";
        text += MUTATIONS;
        for mutation in &self.host.mutations {
            let missed = if mutation.missed.is_empty() {
                "nothing is missed".to_owned()
            } else {
                mutation.missed.join(", ")
            };
            let _written = writeln!(text, "- `{}`: {missed}", mutation.rule);
        }
        text += "\n## Kernels\n\n";
        if kernels.is_empty() {
            text += "No scenario's result is known: run `cargo xtask scoreboard --matrix`.\n";
        }
        for (series, releases, scenarios) in &kernels {
            let _written = writeln!(text, "- {series}: {scenarios} scenarios on {}", releases.join(", "));
        }
        text
    }

    fn by_source(&self, kernels: &[(String, Vec<String>, usize)]) -> String {
        let heads = ["class", "", "verb", "constructed", "corpus"];
        let mut table = vec![heads.map(str::to_owned).to_vec()];
        if let Some(head) = table.first_mut() {
            head.extend(kernels.iter().map(|(series, ..)| series.clone()));
            head.extend(["missed", "false alarms"].map(str::to_owned));
        }
        for (class, verb) in self.of_each_class() {
            let is_of = |row: &Row| row.verb == verb;
            let from = |source: &str| self.counts(class, |row| is_of(row) && row.source == source).share();
            let on = |kernel: &str| {
                let is_there = |row: &Row| row.source == "matrix" && row.kernel.as_deref() == Some(kernel);
                self.counts(class, |row| is_of(row) && is_there(row)).share()
            };
            let mut line = vec![
                class.to_string(),
                class.title().to_owned(),
                verb.to_owned(),
                from("constructed"),
                from("corpus"),
            ];
            line.extend(kernels.iter().map(|(series, ..)| on(series)));
            let all = self.counts(class, is_of);
            line.extend([all.missed.to_string(), all.false_alarms.to_string()]);
            table.push(line);
        }
        lines(&table)
    }

    fn by_mode(&self) -> String {
        const MODES: [&str; 4] = ["iptables", "iptables-legacy", "nftables", "ipvs"];
        let mut table = vec![["class", "verb"].map(str::to_owned).to_vec()];
        if let Some(head) = table.first_mut() {
            head.extend(MODES.map(str::to_owned));
            head.push("any".to_owned());
        }
        for (class, verb) in self.of_each_class() {
            let mut line = vec![class.to_string(), verb.to_owned()];
            let of_mode = |mode: &str| self.counts(class, |row| row.verb == verb && row.mode == mode).share();
            line.extend(MODES.map(of_mode));
            let is_elsewhere = |row: &Row| row.verb == verb && !MODES.contains(&row.mode.as_str());
            line.push(self.counts(class, is_elsewhere).share());
            table.push(line);
        }
        lines(&table)
    }

    /// Each class with each verb that reports it or that should have.
    fn of_each_class(&self) -> impl Iterator<Item = (Class, &'static str)> {
        let both = Class::ALL.iter().flat_map(|&class| ["trace", "check"].map(|verb| (class, verb)));
        both.filter(|&(class, verb)| {
            let seen = class.entry().seen;
            let is_seen = if verb == "trace" { seen.by_trace() } else { seen.by_check() };
            is_seen || self.rows().any(|row| row.class == class.id() && row.verb == verb)
        })
    }

    fn confused(&self) -> String {
        let mut pairs: BTreeMap<(&str, &str), (u64, &str)> = BTreeMap::new();
        for pair in self.host.confused.iter().chain(&self.matrix.confused) {
            let (count, _) = pairs.entry((&pair.caused, &pair.found)).or_insert((0, &pair.case));
            *count += pair.count;
        }
        if pairs.is_empty() {
            return "No class was taken for another.\n".to_owned();
        }
        let mut text = String::new();
        for ((caused, found), (count, case)) in pairs {
            let _written = writeln!(text, "- {caused} taken for {found}: {count} times, first in {case}");
        }
        text
    }
}

fn lines(table: &[Vec<String>]) -> String {
    markdown(table).join("\n") + "\n"
}

const HEAD: &str = "\
# Scoreboard

How often each class was caused, and how often viptrace named it. Written by `cargo xtask scoreboard`; its numbers are
flows for `trace`, and findings for `check`.

- **constructed**: cases built from sightings and objects (`tracer/tests/it/scoreboard`), grouped by symptom. Each case
  has a twin: the same symptom with another cause.
- **corpus**: flows of recordings from real kernels (`tests/fixtures/recordings`, `tests/corpus`).
- **a kernel**: the scenarios of `tests/src/scenarios` in a guest with that kernel: real rules, real packets.

A cause that got another class counts as missed; a reported fault that nothing caused, as a false alarm.
";

const MUTATIONS: &str = "\
Each line is a run of the constructed cases and the corpus with one rule removed. A rule whose removal changes nothing
would be untested.

";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scores::{Confused, Mutation};

    fn row(class: Class, verb: &str, missed: u64, false_alarms: u64) -> Row {
        Row {
            class: class.id().to_owned(),
            source: "constructed".to_owned(),
            verb: verb.to_owned(),
            mode: "ipvs".to_owned(),
            kernel: None,
            caused: 5,
            detected: 5 - missed,
            missed,
            false_alarms,
        }
    }

    fn whole() -> Board {
        let verbs = |class: Class| {
            let seen = class.entry().seen;
            [("trace", seen.by_trace()), ("check", seen.by_check())]
                .map(move |(verb, seen)| (class, verb, seen))
        };
        let seen = Class::ALL.iter().flat_map(|&class| verbs(class)).filter(|(_, _, seen)| *seen);
        let rows = seen.map(|(class, verb, _)| row(class, verb, 0, 0)).collect();
        let mutations = vec![Mutation { rule: "a::b".into(), missed: vec!["C6 3 of 5".into()] }];
        let host = Scores { rows, confused: Vec::new(), mutations };
        Board { host, matrix: Scores::default(), results: Results::default() }
    }

    #[test]
    fn a_whole_board_is_good_and_each_gap_is_a_fault() {
        assert_eq!(whole().faults(), [""; 0]);
        let mut board = whole();
        board.host.rows.retain(|row| row.class != "C6");
        assert_eq!(board.faults().len(), 2, "{:?}", board.faults());
        let mut board = whole();
        board.host.rows.push(row(Class::C20, "trace", 1, 0));
        board.host.rows.push(row(Class::C30, "trace", 0, 2));
        board.host.mutations.push(Mutation { rule: "c::d".into(), missed: Vec::new() });
        assert_eq!(
            board.faults(),
            [
                "scoreboard: C20 was missed 1 times",
                "scoreboard: 2 false alarms of C30",
                "scoreboard: without the rule c::d, nothing is missed",
            ]
        );
    }

    #[test]
    fn the_text_shows_counts_confusions_and_mutations() {
        let mut board = whole();
        board.host.rows.push(row(Class::C6, "trace", 2, 0));
        board.host.confused.push(Confused {
            caused: "C6".into(),
            found: "C28".into(),
            count: 2,
            case: "stale and refusing".into(),
        });
        let text = board.text();
        let line = text.lines().find(|line| line.starts_with("| C6 ") && line.contains("trace")).unwrap();
        assert!(line.contains("8/10"), "{line}");
        assert!(text.contains("C6 taken for C28: 2 times, first in stale and refusing"), "{text}");
        assert!(text.contains("- `a::b`: C6 3 of 5"), "{text}");
        assert!(text.contains("- C35 ("), "{text}");
    }
}
