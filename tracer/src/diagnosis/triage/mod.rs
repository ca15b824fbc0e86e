//! The triage of a node: from what it and the API server say to ranked findings (K1–K13) and the procedures of K20.
//!
//! Pure: the facts come from a [`Capture`](crate::node::capture::Capture), live or from a folder, and the same facts
//! give the same report. One file for each step of the triage order; each finding says what was seen, what speaks
//! against it and what to do. What could not be checked is said, never taken for healthy.

mod audit;
pub mod compare;
mod conntrack;
pub mod facts;
pub mod finding;
mod path;
mod pods;
pub mod procedures;
mod proxy;
mod rules;
mod services;
mod sync;
mod versions;

use std::{
    cmp::{Ordering, Reverse},
    collections::BTreeSet,
};

pub use compare::{Difference, Saved};
pub use facts::Facts;
pub use finding::{CheckReport, Finding, Level, State, Step};

use crate::cluster::{Key, Kind};

/// What the report is narrowed to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only what concerns this Service; the node's own faults concern every Service.
    pub service: Option<Key>,
}

/// Judges the facts.
pub fn triage(facts: &Facts, scope: &Scope) -> CheckReport {
    let mut findings = Vec::new();
    services::judge(facts, scope, &mut findings);
    proxy::judge(facts, &mut findings);
    pods::judge(facts, &mut findings);
    versions::judge(facts, &mut findings);
    sync::judge(facts, &mut findings);
    rules::judge(facts, &mut findings);
    let unaudited = audit::judge(facts, &mut findings);
    conntrack::judge(facts, &mut findings);
    path::judge(facts, &mut findings);
    if let Some(service) = &scope.service {
        findings.retain(|finding| finding.concerns(service));
    }
    rank(&mut findings, scope);

    let mut gaps = facts.gaps.clone();
    gaps.extend(facts.missing());
    gaps.extend(unaudited);
    let mut seen = BTreeSet::new();
    gaps.retain(|gap| seen.insert(gap.clone()));
    let state = state(facts, &findings);
    CheckReport {
        time: facts.taken.unwrap_or_default(),
        node: facts.node.clone(),
        kube_proxy_mode: facts.mode().map(|mode| mode.as_str().to_owned()),
        kube_proxy_version: facts.proxy_version().map(str::to_owned),
        service: scope.service.as_ref().map(Key::to_string),
        state,
        summary: summary(state, &findings, facts),
        procedures: procedures::run(facts, &findings),
        findings,
        gaps,
        differences: Vec::new(),
        facts: facts.digest(),
    }
}

/// Faults first. For one Service in the order of K13: the first that explains its failure leads. For a node, what breaks
/// more than one Service leads, and the order of K13 decides among equals.
fn rank(findings: &mut [Finding], scope: &Scope) {
    let reach =
        |finding: &Finding| (scope.service.is_none() && finding.service.is_some(), Reverse(finding.severity));
    findings.sort_by(|a, b| {
        let by_reach = if scope.service.is_none() { reach(a).cmp(&reach(b)) } else { Ordering::Equal };
        a.level
            .cmp(&b.level)
            .then(by_reach)
            .then(a.step.cmp(&b.step))
            .then(b.severity.cmp(&a.severity))
            .then_with(|| a.service.cmp(&b.service))
            .then_with(|| a.class.cmp(&b.class))
    });
}

fn state(facts: &Facts, findings: &[Finding]) -> State {
    if findings.iter().any(|finding| finding.level == Level::Fault) {
        State::Broken
    } else if !facts.covers_the_dataplane() {
        State::Unknown
    } else if findings.iter().any(|finding| finding.level == Level::Warning) {
        State::Warnings
    } else {
        State::Healthy
    }
}

/// The first line that a person reads.
fn summary(state: State, findings: &[Finding], facts: &Facts) -> String {
    let on = facts.node.as_deref().map(|node| format!(" on {node}")).unwrap_or_default();
    let faults: Vec<&Finding> = findings.iter().filter(|finding| finding.level == Level::Fault).collect();
    let warnings = findings.iter().filter(|finding| finding.level == Level::Warning).count();
    match (state, faults.as_slice()) {
        (State::Broken, [first, rest @ ..]) => {
            let more = match rest.len() {
                0 => String::new(),
                1 => "; and 1 more fault".to_owned(),
                more => format!("; and {more} more faults"),
            };
            format!("broken{on}: {}{more}", first.root_cause)
        }
        (State::Unknown, _) => {
            let unchecked = facts.uncovered().join(", ");
            format!("no fault found{on}, but {unchecked} could not be checked")
        }
        (State::Warnings, _) if warnings == 1 => format!("nothing broken{on}; 1 warning"),
        (State::Warnings, _) => format!("nothing broken{on}; {warnings} warnings"),
        _ => format!("nothing broken{on}"),
    }
}

/// Whether the cluster's history knows what the Services are and who serves them.
fn knows_services(facts: &Facts) -> bool {
    facts
        .history
        .as_ref()
        .is_some_and(|history| history.knows(Kind::Service) && history.knows(Kind::EndpointSlice))
}
