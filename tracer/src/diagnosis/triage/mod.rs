//! The triage of a node: from the facts of the node and the API server to ranked findings (K1–K13) and the procedures
//! of K20.
//!
//! Pure: the facts come from a [`Capture`](crate::node::capture::Capture), live or from a folder, and the same facts
//! give the same report. One file for each step of the triage order. Each finding has the evidence for and against it,
//! and the actions. A part that could not be checked is reported, and never counts as healthy.
//!
//! High confidence: the cause itself was read on this node, in two readings where it may be of the moment. Medium: it
//! follows from one reading of things that change, or from an inference. Low: an effect is possible, and viptrace cannot
//! read the fact that decides. Below high, the finding has evidence against it or names the missing fact.

mod api;
mod audit;
pub mod compare;
mod confirm;
mod conntrack;
pub(crate) mod facts;
mod moment;
mod mtu;
pub mod nodes;
mod path;
mod pods;
pub mod procedures;
mod proxy;
mod report;
mod rules;
mod services;
mod settings;
mod slices;
mod sync;
mod versions;

use std::{
    cmp::{Ordering, Reverse},
    collections::{BTreeMap, BTreeSet},
};

pub use compare::Saved;
pub use confirm::Reading;
pub use facts::Facts;
pub use report::{CheckReport, FindingRecord, State};
pub(crate) use sync::in_flight_limit;

pub use crate::diagnosis::finding::Level;
pub(crate) use crate::diagnosis::finding::Step;
use crate::{
    class::{Class, Confidence, Severity},
    cluster::Key,
    diagnosis::finding::Finding,
    text::{count, list},
};

/// The scope of the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Only findings that affect this Service; the node's own faults affect every Service.
    pub service: Option<Key>,
}

/// The result of the checks.
#[derive(Debug, Default)]
struct Found {
    findings: Vec<Finding>,
    /// The reasons why checks could not judge.
    gaps: Vec<String>,
}

/// A check, its step of the triage, and every class that it can return.
struct Check {
    name: &'static str,
    judge: fn(&Facts, &Scope, &mut Found),
    step: Step,
    gives: &'static [Class],
}

/// In this order: later checks use the findings of earlier ones.
const CHECKS: [Check; 12] = [
    Check {
        name: "services",
        judge: |facts, scope, found| services::judge(facts, scope, &mut found.findings),
        step: Step::Endpoints,
        gives: &[
            Class::C5d,
            Class::C20,
            Class::C21,
            Class::C22,
            Class::C23,
            Class::C25,
            Class::C26,
            Class::C27,
            Class::N19,
        ],
    },
    Check {
        name: "slices",
        judge: |facts, _, found| slices::judge(facts, &mut found.findings),
        step: Step::Endpoints,
        gives: &[Class::C29],
    },
    Check {
        name: "proxy",
        judge: |facts, _, found| proxy::judge(facts, &mut found.findings),
        step: Step::KubeProxy,
        gives: &[Class::C1, Class::C2, Class::C8, Class::C9, Class::C10, Class::C11, Class::K1, Class::K3],
    },
    Check {
        name: "pods",
        judge: |facts, _, found| pods::judge(facts, &mut found.findings),
        step: Step::KubeProxy,
        gives: &[Class::C1, Class::C29, Class::K10],
    },
    Check {
        name: "versions",
        judge: |facts, _, found| versions::judge(facts, &mut found.findings),
        step: Step::KubeProxy,
        gives: &[Class::C9],
    },
    Check {
        name: "sync",
        judge: |facts, _, found| sync::judge(facts, &mut found.findings),
        step: Step::Rules,
        gives: &[Class::C4, Class::C5, Class::N15],
    },
    Check {
        name: "rules",
        judge: |facts, _, found| rules::judge(facts, &mut found.findings),
        step: Step::Rules,
        gives: &[Class::C1, Class::C3, Class::C5e, Class::C10, Class::C11],
    },
    Check {
        name: "audit",
        judge: |facts, _, found| found.gaps = audit::judge(facts, &mut found.findings),
        step: Step::Rules,
        gives: audit::GIVES,
    },
    Check {
        name: "other kinds",
        judge: |facts, _, found| api::other_kinds(facts, &mut found.findings),
        step: Step::KubeProxy,
        gives: &[Class::C2],
    },
    Check {
        name: "conntrack",
        judge: |facts, _, found| conntrack::judge(facts, &mut found.findings),
        step: Step::Conntrack,
        gives: &[Class::C16, Class::C17, Class::N7],
    },
    Check {
        name: "path",
        judge: |facts, _, found| path::judge(facts, &mut found.findings),
        step: Step::Path,
        gives: &[
            Class::C11,
            Class::C13,
            Class::C14,
            Class::C15,
            Class::C26,
            Class::C31,
            Class::C32,
            Class::K11,
        ],
    },
    Check {
        name: "mtu",
        judge: |facts, _, found| mtu::judge(facts, &mut found.findings),
        step: Step::Path,
        gives: &[Class::C33],
    },
];

/// The name of each check, and every class that it can return.
pub fn checks() -> impl Iterator<Item = (&'static str, &'static [Class])> {
    CHECKS.iter().map(|check| (check.name, check.gives))
}

/// Every class that a finding of a check can have.
pub fn gives() -> impl Iterator<Item = Class> {
    CHECKS.iter().flat_map(|check| check.gives).copied()
}

impl Check {
    fn run(&self, facts: &Facts, scope: &Scope, found: &mut Found, omits: &impl Fn(&str, Class) -> bool) {
        (self.judge)(facts, scope, found);
        // A check may also withdraw what an earlier one found.
        found.findings.retain(|finding| finding.check.is_some() || !omits(self.name, finding.class));
        for finding in found.findings.iter_mut().filter(|finding| finding.check.is_none()) {
            debug_assert!(self.gives.contains(&finding.class), "a check does not declare {}", finding.class);
            debug_assert!(
                finding.confidence == Confidence::High
                    || !finding.said().against.is_empty()
                    || !finding.said().unobserved.is_empty(),
                "{} is doubted without a reason: {}",
                finding.class,
                finding.said().detail
            );
            finding.step.get_or_insert(self.step);
            finding.check = Some(self.name);
        }
    }
}

/// Judges the facts. The caller adds their digest, which follows every Service through the rules.
pub fn triage(facts: &Facts, scope: &Scope) -> CheckReport {
    Reading::of(facts, scope).report()
}

/// The report if the checks of these names do not find these classes: what a check is needed for. Later checks do not
/// see these findings either.
pub fn triage_without(facts: &Facts, scope: &Scope, omits: &impl Fn(&str, Class) -> bool) -> CheckReport {
    Reading::without(facts, scope, omits).report()
}

fn find(facts: &Facts, scope: &Scope, omits: &impl Fn(&str, Class) -> bool) -> Found {
    let mut found = Found::default();
    for check in &CHECKS {
        check.run(facts, scope, &mut found, omits);
    }
    if let Some(service) = &scope.service {
        found.findings.retain(|finding| finding.concerns(service));
    }
    found
}

fn report(facts: &Facts, found: Found, scope: &Scope) -> CheckReport {
    let Found { mut findings, gaps: unaudited } = found;
    rank(&mut findings, scope);

    let mut gaps = facts.missing();
    gaps.extend(unaudited);
    let mut seen = BTreeSet::new();
    gaps.retain(|gap| seen.insert(gap.clone()));
    let state = state(facts, &findings);
    CheckReport {
        time: facts.taken.unwrap_or_default(),
        node: facts.node_name.clone(),
        kube_proxy_mode: facts.node.mode.map(|mode| mode.as_str().to_owned()),
        kube_proxy_version: facts.node.version.as_deref().map(str::to_owned),
        service: scope.service.as_ref().map(Key::to_string),
        state,
        summary: summary(state, &findings, facts),
        procedures: procedures::run(facts, &findings),
        findings: findings
            .into_iter()
            .map(|finding| FindingRecord::of(finding, facts.node_name.as_deref()))
            .collect(),
        gaps,
        differences: Vec::new(),
        facts: BTreeMap::new(),
    }
}

/// Sorts faults first. For one Service in the order of K13: the first fault that explains its failure leads. For a
/// node, faults of more than one Service lead, and the order of K13 decides among equals.
fn rank(findings: &mut [Finding], scope: &Scope) {
    let reach = |finding: &Finding| {
        (scope.service.is_none() && finding.said().service.is_some(), Reverse(finding.severity))
    };
    findings.sort_by(|a, b| {
        let by_reach = if scope.service.is_none() { reach(a).cmp(&reach(b)) } else { Ordering::Equal };
        a.level
            .cmp(&b.level)
            .then(by_reach)
            .then(a.step.cmp(&b.step))
            .then(b.severity.cmp(&a.severity))
            .then_with(|| a.said().service.cmp(&b.said().service))
            .then_with(|| a.class.cmp(&b.class))
    });
}

fn state(facts: &Facts, findings: &[Finding]) -> State {
    if findings.iter().any(|finding| finding.level == Level::Fault) {
        State::Broken
    } else if !facts.uncovered().is_empty() {
        State::Unknown
    } else if findings.iter().any(|finding| finding.level == Level::Warning) {
        State::Warnings
    } else {
        State::Healthy
    }
}

/// The first line of the report.
fn summary(state: State, findings: &[Finding], facts: &Facts) -> String {
    let on = facts.node_name.as_deref().map(|node| format!(" on {node}")).unwrap_or_default();
    let faults: Vec<&Finding> = findings.iter().filter(|finding| finding.level == Level::Fault).collect();
    let warnings: Vec<_> = findings
        .iter()
        .filter(|finding| finding.level == Level::Warning)
        .map(|finding| (finding.severity, &*finding.said().detail))
        .collect();
    match (state, faults.as_slice()) {
        (State::Broken, [first, rest @ ..]) => {
            let more = match rest.len() {
                0 => String::new(),
                more => format!("; and {}", count(more, "more fault")),
            };
            format!("broken{on}: {}{more}", first.said().detail)
        }
        (State::Unknown, _) => {
            let unchecked: Vec<String> = facts.uncovered().iter().map(ToString::to_string).collect();
            format!("no fault found{on}, but {} could not be checked", list(&unchecked))
        }
        (State::Warnings, _) => warned(&on, &warnings),
        _ => format!("nothing broken{on}"),
    }
}

/// The first line of a report without a fault. A warning of high severity is of connections that may fail now: only the
/// proof is missing.
fn warned(on: &str, warnings: &[(Severity, &str)]) -> String {
    match warnings.iter().find(|(severity, _)| *severity >= Severity::High) {
        Some((_, detail)) if warnings.len() == 1 => format!("possibly broken{on}: {detail}"),
        Some((_, detail)) => {
            format!("possibly broken{on}: {detail}; and {}", count(warnings.len() - 1, "more warning"))
        }
        None => format!("no fault found{on}; {}", count(warnings.len(), "warning")),
    }
}
