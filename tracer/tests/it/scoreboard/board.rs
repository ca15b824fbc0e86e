//! The count: what was caused and what was found, by class, source, verb, mode and kernel.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use viptrace::class::{Class, Kind, Seen};

use super::case::Name;

/// Where the truth of a case comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Source {
    /// Built by a test.
    Constructed,
    /// Recorded or captured on a node.
    Corpus,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verb {
    Trace,
    Check,
}

/// The key of a row, besides the class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Place {
    pub(super) source: Source,
    pub(super) verb: Verb,
    pub(super) mode: String,
    /// `6.12`; `None` without a kernel.
    pub(super) kernel: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Tally {
    pub(super) caused: usize,
    pub(super) detected: usize,
    pub(super) missed: usize,
    pub(super) false_alarms: usize,
}

#[derive(Debug, Serialize)]
struct Row<'b> {
    class: Class,
    #[serde(flatten)]
    place: &'b Place,
    #[serde(flatten)]
    tally: Tally,
}

/// Another class than the one that was caused; `none` stands for no fault and for no record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Pair {
    caused: String,
    found: String,
    case: String,
}

#[derive(Debug, Serialize)]
struct Confused<'b> {
    #[serde(flatten)]
    pair: &'b Pair,
    count: usize,
}

/// A class that no verb reports.
#[derive(Debug, Serialize)]
struct NotSeen {
    class: Class,
    reason: &'static str,
}

/// The loss without a rule, or without one class that it gives.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Mutation {
    pub(super) rule: String,
    /// `C6 3 of 5 (became C5 2, unknown 1)`
    pub(super) missed: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Written<'b> {
    rows: Vec<Row<'b>>,
    confused: Vec<Confused<'b>>,
    mutations: &'b [Mutation],
    not_seen: Vec<NotSeen>,
}

#[derive(Debug, Default)]
pub(super) struct Board {
    rows: BTreeMap<(Class, Place), Tally>,
    confused: BTreeMap<Pair, usize>,
}

/// The names of which `of` has more than `others`.
fn more(of: &[Name], others: &[Name]) -> Vec<Name> {
    let mut others = others.to_vec();
    let is_more = |name: &&Name| match others.iter().position(|other| other == *name) {
        Some(position) => {
            others.swap_remove(position);
            false
        }
        None => true,
    };
    of.iter().filter(is_more).cloned().collect()
}

impl Board {
    /// Counts what was found where this was caused.
    ///
    /// A fault that was not caused is a false alarm of the class that was found.
    pub(super) fn count(&mut self, place: &Place, case: &str, caused: &[Name], found: &[Name]) {
        let (missed, surplus) = (more(caused, found), more(found, caused));
        for name in caused {
            self.row(name.class, place).caused += 1;
        }
        for name in more(caused, &missed) {
            self.row(name.class, place).detected += 1;
        }
        for name in &missed {
            self.row(name.class, place).missed += 1;
        }
        let alarms: Vec<&Name> = surplus.iter().filter(|name| name.class.is_fault()).collect();
        for name in &alarms {
            self.row(name.class, place).false_alarms += 1;
        }
        let text = |name: Option<&Name>| name.map_or_else(|| "none".to_owned(), ToString::to_string);
        let mut confuse = |caused: Option<&Name>, found: Option<&Name>| {
            let pair = Pair { caused: text(caused), found: text(found), case: case.to_owned() };
            *self.confused.entry(pair).or_default() += 1;
        };
        for name in &missed {
            confuse(Some(name), surplus.first());
        }
        for name in alarms.iter().filter(|_| missed.is_empty()) {
            confuse(caused.first(), Some(name));
        }
    }

    fn row(&mut self, class: Class, place: &Place) -> &mut Tally {
        self.rows.entry((class, place.clone())).or_default()
    }

    /// Every row with a miss or a false alarm, and every confused pair.
    pub(super) fn errors(&self) -> Vec<String> {
        let wrong = self.rows.iter().filter(|(_, tally)| tally.missed + tally.false_alarms > 0);
        let rows = wrong.map(|((class, place), tally)| format!("{class} {place:?}: {tally:?}"));
        let pairs = self.confused.iter().map(|(pair, count)| {
            format!("{} was found as {} {count} times: {}", pair.caused, pair.found, pair.case)
        });
        rows.chain(pairs).collect()
    }

    /// The classes that this verb reports and no constructed case causes.
    pub(super) fn empty(&self, verb: Verb) -> Vec<Class> {
        let caused: BTreeSet<Class> = self
            .rows
            .iter()
            .filter(|((_, place), tally)| {
                (place.source, place.verb) == (Source::Constructed, verb) && tally.caused > 0
            })
            .map(|((class, _), _)| *class)
            .collect();
        // A look-alike that no record names is recognised by a trace that reports no fault.
        let unnamed = |class: &Class| class.entry().seen == Seen::Neither && class.kind() == Kind::Normal;
        let reports = |class: &Class| match verb {
            Verb::Trace => class.entry().seen.by_trace() || unnamed(class),
            Verb::Check => class.entry().seen.by_check(),
        };
        Class::ALL.iter().copied().filter(|class| reports(class) && !caused.contains(class)).collect()
    }

    pub(super) fn totals(&self) -> Tally {
        self.rows.values().fold(Tally::default(), |sum, tally| Tally {
            caused: sum.caused + tally.caused,
            detected: sum.detected + tally.detected,
            missed: sum.missed + tally.missed,
            false_alarms: sum.false_alarms + tally.false_alarms,
        })
    }

    pub(super) fn written(&self, mutations: &[Mutation]) -> String {
        let rows =
            self.rows.iter().map(|((class, place), tally)| Row { class: *class, place, tally: *tally });
        let written = Written {
            rows: rows.collect(),
            confused: self.confused.iter().map(|(pair, count)| Confused { pair, count: *count }).collect(),
            mutations,
            not_seen: not_seen().map(|(class, reason)| NotSeen { class, reason }).collect(),
        };
        serde_json::to_string_pretty(&written).unwrap()
    }
}

/// The classes that no verb reports, each with its reason.
pub(super) fn not_seen() -> impl Iterator<Item = (Class, &'static str)> {
    let neither = Class::ALL.iter().filter(|class| class.entry().seen == Seen::Neither);
    neither.map(|class| (*class, class.entry().no_rule))
}

fn names(classes: &[Class]) -> Vec<Name> {
    classes.iter().map(|class| Name::from(*class)).collect()
}

fn place() -> Place {
    Place { source: Source::Constructed, verb: Verb::Trace, mode: "ipvs".to_owned(), kernel: None }
}

#[test]
fn a_miss_and_a_false_alarm_show_up() {
    let mut board = Board::default();
    board.count(&place(), "found", &names(&[Class::C6]), &names(&[Class::C6]));
    assert!(board.errors().is_empty());
    board.count(&place(), "missed", &names(&[Class::C6]), &names(&[Class::Unknown]));
    let row = |board: &Board, class| board.rows[&(class, place())];
    let tally = |caused, detected, missed, false_alarms| Tally { caused, detected, missed, false_alarms };
    assert_eq!(row(&board, Class::C6), tally(2, 1, 1, 0));
    board.count(&place(), "alarm", &names(&[Class::Ok]), &names(&[Class::C28]));
    assert_eq!(row(&board, Class::Ok), tally(1, 0, 1, 0));
    assert_eq!(row(&board, Class::C28), tally(0, 0, 0, 1));
    board.count(&place(), "surplus", &names(&[]), &names(&[Class::C1, Class::N4]));
    assert_eq!(row(&board, Class::C1), tally(0, 0, 0, 1));
    board.count(&place(), "twice", &names(&[Class::C5]), &names(&[Class::C5, Class::C5]));
    assert_eq!(row(&board, Class::C5), tally(1, 1, 0, 1));
    let errors = board.errors().join("\n");
    for pair in [
        "C6 was found as unknown 1 times: missed",
        "ok was found as C28 1 times: alarm",
        "none was found as C1 1 times: surplus",
        "C5 was found as C5 1 times: twice",
    ] {
        assert!(errors.contains(pair), "{pair}: {errors}");
    }
    assert_eq!(board.totals(), tally(4, 2, 2, 3));
}

#[test]
fn a_class_without_a_case_is_an_empty_row() {
    let mut board = Board::default();
    board.count(&place(), "found", &names(&[Class::C6]), &names(&[Class::C6]));
    let empty = board.empty(Verb::Trace);
    assert!(!empty.contains(&Class::C6) && empty.contains(&Class::C28) && !empty.contains(&Class::C2));
    assert!(board.empty(Verb::Check).contains(&Class::C6));
}

#[test]
fn the_file_has_the_fields_that_its_readers_expect() {
    let mut board = Board::default();
    board.count(&place(), "alarm", &names(&[Class::Ok]), &names(&[Class::C28]));
    let lost = Mutation { rule: "x".to_owned(), missed: vec!["C6 1 of 1 (became ok 1)".to_owned()] };
    let written: serde_json::Value = serde_json::from_str(&board.written(&[lost])).unwrap();
    let expected = serde_json::json!({
        "class": "C28", "source": "constructed", "verb": "trace", "mode": "ipvs", "kernel": null,
        "caused": 0, "detected": 0, "missed": 0, "false_alarms": 1,
    });
    assert_eq!(written["rows"][0], expected);
    let confused = serde_json::json!({"caused": "ok", "found": "C28", "count": 1, "case": "alarm"});
    assert_eq!(written["confused"][0], confused);
    assert_eq!(written["mutations"][0]["missed"][0], "C6 1 of 1 (became ok 1)");
    let not_seen = written["not_seen"].as_array().unwrap();
    assert!(not_seen.iter().any(|row| row["class"] == "N3" && row["reason"].as_str().unwrap().len() > 20));
}
