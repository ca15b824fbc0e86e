//! The host's half of the scoreboard: every class and look-alike caused on purpose, and what the verbs find.
//!
//! Cases are grouped by symptom: the cases of a group look alike and have different causes, so that each is the twin of
//! the others. `VIPTRACE_SCOREBOARD=FILE` writes the counts as JSON. (What the audit finds of rules broken one by one
//! is in `audit/mutations.rs` and `audit/suite_mutations.rs`.)

mod board;
mod captured;
mod case;
mod check_kernel;
mod check_node;
mod check_service;
mod constructed;
mod corpus;
mod gaps;
mod mutations;
mod trace_answered;
mod trace_broken;
mod trace_chosen;
mod trace_refused;
mod trace_untranslated;

use std::{collections::BTreeSet, env, fs};

use viptrace::{class::Class, node::ProxyMode};

use board::{Board, Verb, not_seen};
use captured::Checked;
use case::{Group, Subject, subjects};
use constructed::Traced;

use ProxyMode::{Iptables, Ipvs, Nftables};

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

fn checks() -> Vec<Group<Checked>> {
    [check_node::groups(), check_kernel::groups(), check_service::groups()].into_iter().flatten().collect()
}

fn board(subjects: &[Subject]) -> Board {
    let mut board = Board::default();
    for subject in subjects {
        board.count(&subject.place(), &subject.case, &subject.caused, &subject.found);
    }
    corpus::count(&mut board);
    board
}

#[test]
fn every_class_is_found_and_nothing_else() {
    let subjects = subjects(Verb::Trace, &traces())
        .into_iter()
        .chain(subjects(Verb::Check, &checks()))
        .collect::<Vec<_>>();
    let board = board(&subjects);
    let mutations = mutations::run(&subjects);
    if let Some(file) = env::var_os("VIPTRACE_SCOREBOARD") {
        fs::write(file, board.written(&mutations)).unwrap();
    }
    println!("{:?}", board.totals());
    for mutation in &mutations {
        println!("without {}: missed {}", mutation.rule, mutation.missed.join(", "));
    }
    assert_eq!(board.errors(), [""; 0]);
    assert_eq!(board.empty(Verb::Trace), []);
    assert_eq!(board.empty(Verb::Check), []);
    let silent = mutations.iter().filter(|mutation| mutation.missed.is_empty());
    let silent: Vec<&str> = silent.map(|mutation| mutation.rule.as_str()).collect();
    assert_eq!(silent, [""; 0], "no case needs these rules");
}

/// Every case has a twin: the same symptom with another cause.
fn has_twins<S>(groups: &[Group<S>]) {
    let mut names = BTreeSet::new();
    for group in groups {
        let classes: BTreeSet<Class> = group.cases.iter().map(|case| case.class).collect();
        assert!(classes.len() > 1, "{}: no case has a twin", group.symptom);
        for case in &group.cases {
            for mode in case.modes {
                let is_new = names.insert((group.symptom, case.class, case.name, mode.as_str()));
                assert!(is_new, "{}, {}: twice in {mode}", group.symptom, case.name);
            }
        }
    }
}

#[test]
fn each_case_has_a_twin_of_another_class() {
    has_twins(&traces());
    has_twins(&checks());
}

#[test]
fn a_class_that_no_verb_reports_has_its_reason() {
    for (class, reason) in not_seen() {
        assert!(reason.len() > 20, "{class}: {reason}");
    }
}
