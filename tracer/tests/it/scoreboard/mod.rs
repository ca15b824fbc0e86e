//! The host's half of the scoreboard: every class and look-alike caused on purpose, and what the verbs find.
//!
//! Cases are grouped by symptom: the cases of a group look alike and have different causes, so that each is the twin of
//! the others. `VIPTRACE_SCOREBOARD=FILE` writes the counts as JSON.

mod board;
mod constructed;
mod corpus;
mod mutations;
mod trace_answered;
mod trace_broken;
mod trace_chosen;
mod trace_refused;
mod trace_untranslated;

use std::{collections::BTreeSet, env, fs};

use viptrace::{class::Class, node::ProxyMode};

use board::{Board, Place, Source, Verb, found_as, not_seen};
use constructed::Traced;

use ProxyMode::{Iptables, Ipvs, Nftables};

const MODES: &[ProxyMode] = &[Iptables, Nftables, Ipvs];

/// A cause, built in each mode that it is possible in.
struct Case<Scene> {
    name: &'static str,
    class: Class,
    modes: &'static [ProxyMode],
    build: fn(ProxyMode) -> Scene,
}

/// In every mode.
const fn case<S>(class: Class, name: &'static str, build: fn(ProxyMode) -> S) -> Case<S> {
    case_in(MODES, class, name, build)
}

const fn case_in<S>(
    modes: &'static [ProxyMode],
    class: Class,
    name: &'static str,
    build: fn(ProxyMode) -> S,
) -> Case<S> {
    Case { name, class, modes, build }
}

/// Cases with one symptom.
struct Group<Scene> {
    symptom: &'static str,
    cases: Vec<Case<Scene>>,
}

fn traces() -> Vec<Group<Traced>> {
    [
        trace_refused::groups(),
        trace_untranslated::groups(),
        trace_chosen::groups(),
        trace_broken::groups(),
        trace_answered::groups(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn constructed(verb: Verb, mode: ProxyMode) -> Place {
    Place { source: Source::Constructed, verb, mode: mode.to_string(), kernel: None }
}

fn board() -> Board {
    let mut board = Board::default();
    for group in traces() {
        for case in group.cases {
            for mode in case.modes {
                let scene = (case.build)(*mode);
                let found = found_as(case.class, scene.found(&|_, _| false));
                let name = format!("{}: {} ({mode})", group.symptom, case.name);
                board.count(&constructed(Verb::Trace, *mode), &name, &[case.class], &found);
            }
        }
    }
    corpus::count(&mut board);
    board
}

#[test]
fn every_class_is_found_and_nothing_else() {
    let board = board();
    let mutations = mutations::run();
    if let Some(file) = env::var_os("VIPTRACE_SCOREBOARD") {
        fs::write(file, board.written(&mutations)).unwrap();
    }
    println!("{:?}", board.totals());
    for mutation in &mutations {
        println!("without {}: missed {}", mutation.rule, mutation.missed.join(", "));
    }
    assert_eq!(board.errors(), [""; 0]);
    assert_eq!(board.empty(Verb::Trace), []);
    let silent: Vec<&str> =
        mutations.iter().filter(|it| it.missed.is_empty()).map(|it| it.rule.as_str()).collect();
    assert_eq!(silent, [""; 0], "no case needs these rules");
}

/// Every case has a twin: the same symptom with another cause.
fn has_twins<S>(groups: &[Group<S>]) {
    let mut names = BTreeSet::new();
    for group in groups {
        let classes: BTreeSet<Class> = group.cases.iter().map(|case| case.class).collect();
        assert!(classes.len() > 1, "{}: no case has a twin", group.symptom);
        for case in &group.cases {
            assert!(!case.modes.is_empty(), "{}", case.name);
            assert!(names.insert((group.symptom, case.class, case.name)), "{} twice", case.name);
        }
    }
}

#[test]
fn each_case_has_a_twin_of_another_class() {
    has_twins(&traces());
}

#[test]
fn a_class_that_no_verb_reports_has_its_reason() {
    assert!(not_seen().all(|(class, reason)| reason.len() > 20 || panic!("{class}")));
}
