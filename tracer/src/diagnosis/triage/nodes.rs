//! The checks of several nodes as one: what is wrong everywhere, and what only on some of them (K12).

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use schemars::JsonSchema;
use serde::Serialize;

use super::{CheckReport, FindingRecord, Level, State};
use crate::{
    diagnosis::finding::Finding,
    text::{count, list},
    time::Timestamp,
    verdict::{ServiceRef, Text},
};

/// The checks of several nodes.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct NodesReport {
    /// The time of the last of the checks: RFC 3339, UTC.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The Service to which the checks were limited, `namespace/name`.
    pub service: Option<String>,
    /// The worst state of a node; `unknown` if a node could not be checked and none is broken. Nodes that run Windows or are
    /// virtual, which viptrace cannot observe, count only if the user named them.
    pub state: State,
    /// One line: whether something is broken, and where.
    pub summary: String,
    /// In the order of their names.
    pub nodes: Vec<NodeState>,
    /// Faults first; those of more nodes before those of fewer.
    pub findings: Vec<SharedFinding>,
    /// The facts that could not be checked, with the reasons, and the nodes on which.
    pub gaps: Vec<SharedText>,
    /// The facts in which the nodes differ.
    pub differences: Vec<SharedFact>,
}

/// The check of one node in a word.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct NodeState {
    pub node: String,
    /// `null` if it could not be checked.
    pub state: Option<State>,
    /// One line: whether something is broken there; or why it could not be checked.
    pub summary: String,
    pub kube_proxy_mode: Option<String>,
    pub kube_proxy_version: Option<String>,
}

/// A finding, and the nodes that have it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct SharedFinding {
    /// In the order of their names.
    pub nodes: Vec<String>,
    /// Whether every checked node has it.
    pub everywhere: bool,
    /// As the first of these nodes has it.
    #[serde(flatten)]
    pub finding: FindingRecord,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SharedText {
    pub nodes: Vec<String>,
    pub text: String,
}

/// A fact in which nodes differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct SharedFact {
    pub what: String,
    /// Each value with its nodes, that of the most nodes first.
    pub values: Vec<SharedText>,
}

/// Why a node was not checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotChecked {
    pub why: String,
    /// The checks are whole without the node.
    pub is_excused: bool,
}

impl From<String> for NotChecked {
    fn from(why: String) -> Self {
        Self { why, is_excused: false }
    }
}

impl From<&str> for NotChecked {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

impl NodesReport {
    /// Whether there is no fault, and a warning of connections that may fail now.
    pub fn is_possibly_broken(&self) -> bool {
        let is_possible = |shared: &SharedFinding| shared.finding.is_possible_fault();
        self.state == State::Warnings && self.findings.iter().any(is_possible)
    }

    /// Merges the checks of these nodes. An error is the reason why a node could not be checked. `now` is the time of the report
    /// if no node was.
    pub fn of(checks: Vec<(String, Result<CheckReport, NotChecked>)>, now: Timestamp) -> Self {
        let mut nodes = Vec::new();
        let is_partial = checks.iter().any(|(_, check)| check.as_ref().is_err_and(|not| !not.is_excused));
        let mut reports = Vec::new();
        for (node, check) in checks {
            match check {
                Ok(report) => {
                    nodes.push(NodeState {
                        node: node.clone(),
                        state: Some(report.state),
                        summary: report.summary.clone(),
                        kube_proxy_mode: report.kube_proxy_mode.clone(),
                        kube_proxy_version: report.kube_proxy_version.clone(),
                    });
                    reports.push((node, report));
                }
                Err(not) => nodes.push(NodeState {
                    node,
                    state: None,
                    summary: format!("not checked: {}", not.why),
                    kube_proxy_mode: None,
                    kube_proxy_version: None,
                }),
            }
        }
        nodes.sort_by(|a, b| a.node.cmp(&b.node));
        reports.sort_by(|(a, _), (b, _)| a.cmp(b));
        let findings = findings(&reports);
        let state = state(&nodes, is_partial);
        Self {
            time: reports.iter().map(|(_, report)| report.time).max().unwrap_or(now),
            service: reports.iter().find_map(|(_, report)| report.service.clone()),
            state,
            summary: summary(state, &nodes, &findings),
            gaps: shared(
                reports
                    .iter()
                    .flat_map(|(node, report)| report.gaps.iter().map(|gap| (node.clone(), gap.clone()))),
            ),
            differences: differences(&reports),
            nodes,
            findings,
        }
    }
}

/// The findings of all nodes, each once.
fn findings(reports: &[(String, CheckReport)]) -> Vec<SharedFinding> {
    // The texts may differ in counts and ages.
    type Key = (&'static str, Option<ServiceRef>, Level, Option<Text>);
    let mut shared: Vec<(Key, SharedFinding)> = Vec::new();
    for (node, report) in reports {
        for finding in &report.findings {
            let class = finding.class.id();
            // Without a Service, one class can have several findings on a node.
            let text = finding.service.is_none().then(|| without_numbers(&finding.root_cause));
            let key = (class, finding.service.clone(), finding.level, text);
            match shared.iter_mut().find(|(other, _)| *other == key) {
                Some((_, known)) => {
                    if known.nodes.last() != Some(node) {
                        known.nodes.push(node.clone());
                    }
                }
                None => shared.push((
                    key,
                    SharedFinding { nodes: vec![node.clone()], everywhere: false, finding: finding.clone() },
                )),
            }
        }
    }
    let mut shared: Vec<SharedFinding> = shared.into_iter().map(|(_, finding)| finding).collect();
    for finding in &mut shared {
        finding.everywhere = finding.nodes.len() == reports.len();
    }
    // Stable: within one node, the order is the rank.
    shared.sort_by_key(|finding| (finding.finding.level, Reverse(finding.nodes.len())));
    shared
}

fn without_numbers(text: &str) -> Text {
    text.chars().filter(|character| !character.is_ascii_digit()).collect::<String>().into()
}

/// Each text of a node once, with the nodes that have it.
pub(crate) fn shared(texts: impl Iterator<Item = (String, String)>) -> Vec<SharedText> {
    let mut by_text: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (node, text) in texts {
        by_text.entry(text).or_default().insert(node);
    }
    by_text.into_iter().map(|(text, nodes)| SharedText { nodes: nodes.into_iter().collect(), text }).collect()
}

/// A fact that a node lacks was not read there, which is no difference.
fn differences(reports: &[(String, CheckReport)]) -> Vec<SharedFact> {
    let names: BTreeSet<&String> = reports.iter().flat_map(|(_, report)| report.facts.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        let mut values = shared(
            reports.iter().filter_map(|(node, report)| Some((node.clone(), report.facts.get(name)?.clone()))),
        );
        if values.len() > 1 {
            values.sort_by_key(|value| Reverse(value.nodes.len()));
            found.push(SharedFact { what: name.clone(), values });
        }
    }
    found
}

/// `is_partial`: a node is missing without an excuse.
fn state(nodes: &[NodeState], is_partial: bool) -> State {
    let any = |wanted| nodes.iter().any(|node| node.state == Some(wanted));
    if any(State::Broken) {
        State::Broken
    } else if any(State::Unknown) || is_partial || nodes.iter().all(|node| node.state.is_none()) {
        State::Unknown
    } else if any(State::Warnings) {
        State::Warnings
    } else {
        State::Healthy
    }
}

fn summary(state: State, nodes: &[NodeState], findings: &[SharedFinding]) -> String {
    let checked = nodes.iter().filter(|node| node.state.is_some()).count();
    let missing: Vec<&str> =
        nodes.iter().filter(|node| node.state.is_none()).map(|node| node.node.as_str()).collect();
    let on = match (checked, nodes) {
        (1, [only]) => format!(" on {}", only.node),
        _ => format!(" on {}", count(checked, "node")),
    };
    let faults: Vec<&SharedFinding> =
        findings.iter().filter(|finding| finding.finding.level == Level::Fault).collect();
    let warnings: Vec<_> = findings
        .iter()
        .map(|finding| &finding.finding)
        .filter(|finding| finding.level == Level::Warning)
        .map(|finding| (finding.severity, Finding::detail_of(&finding.root_cause)))
        .collect();
    let unchecked =
        if missing.is_empty() { String::new() } else { format!("; {} could not be checked", list(&missing)) };
    let text = match (state, faults.as_slice()) {
        (State::Broken, [first, rest @ ..]) => {
            let place = place(first, checked);
            let cause = Finding::detail_of(&first.finding.root_cause);
            let more = if rest.is_empty() {
                String::new()
            } else {
                format!("; and {}", count(rest.len(), "more fault"))
            };
            format!("broken {place}: {cause}{more}")
        }
        (State::Unknown, _) if checked > 0 => {
            let of = nodes.iter().find(|node| node.state == Some(State::Unknown));
            of.map_or_else(|| format!("no fault found{on}"), |node| node.summary.clone())
        }
        (State::Unknown, _) => "nothing could be checked".to_owned(),
        (State::Warnings, _) => super::warned(&on, &warnings),
        _ => format!("nothing broken{on}"),
    };
    format!("{text}{unchecked}")
}

/// Where a finding is, in words.
pub(crate) fn place(finding: &SharedFinding, checked: usize) -> String {
    match (finding.everywhere, finding.nodes.as_slice()) {
        (true, [_, _, ..]) => "on every node".to_owned(),
        (_, nodes) if nodes.len() <= 3 => {
            let only = if checked > nodes.len() { "only " } else { "" };
            format!("{only}on {}", list(nodes))
        }
        (_, nodes) => format!(
            "on {} of {checked} nodes ({}, …)",
            nodes.len(),
            nodes.iter().take(2).cloned().collect::<Vec<_>>().join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        class::{Class, Severity},
        cluster::Key,
        diagnosis::triage::{Facts, Scope, triage},
    };

    fn report(findings: Vec<Finding>, facts: &[(&str, &str)]) -> CheckReport {
        let state = if findings.is_empty() { State::Healthy } else { State::Broken };
        CheckReport {
            state,
            findings: findings.into_iter().map(|finding| FindingRecord::of(finding, None)).collect(),
            facts: facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            gaps: Vec::new(),
            ..triage(&Facts::default(), &Scope::default())
        }
    }

    fn of(checks: Vec<(String, Result<CheckReport, NotChecked>)>) -> NodesReport {
        NodesReport::of(checks, Timestamp::from_unix_secs(9))
    }

    fn no_endpoints() -> Finding {
        Finding::new(Class::C20, "shop/cart has no endpoints").service(&Key::new("shop", "cart"), "http")
    }

    fn stopped(seconds: u32) -> Finding {
        Finding::new(Class::C1, format!("kube-proxy has not run for {seconds} s"))
    }

    #[test]
    fn a_fault_everywhere_and_one_on_a_single_node() {
        let merged = of(vec![
            ("b".into(), Ok(report(vec![stopped(9), no_endpoints()], &[("mode", "ipvs"), ("same", "1")]))),
            ("a".into(), Ok(report(vec![no_endpoints()], &[("mode", "iptables"), ("same", "1")]))),
            ("c".into(), Err("the node is not ready".into())),
        ]);
        assert_eq!(merged.state, State::Broken);
        let found: Vec<_> = merged.findings.iter().map(|f| (f.finding.class.id(), place(f, 2))).collect();
        assert_eq!(found, [("C20", "on every node".to_owned()), ("C1", "only on b".to_owned())]);
        assert_eq!(
            merged.summary,
            "broken on every node: shop/cart has no endpoints; and 1 more fault; c could not be checked"
        );
        let [difference] = merged.differences.as_slice() else { panic!("{:?}", merged.differences) };
        assert_eq!((difference.what.as_str(), difference.values.len()), ("mode", 2));
    }

    #[test]
    fn numbers_do_not_tell_findings_apart() {
        let merged = of(vec![
            ("a".into(), Ok(report(vec![stopped(9)], &[]))),
            ("b".into(), Ok(report(vec![stopped(31)], &[]))),
        ]);
        assert_eq!(merged.findings.len(), 1);
        assert!(merged.findings[0].everywhere);
    }

    #[test]
    fn an_unchecked_node_is_not_healthy() {
        let merged =
            of(vec![("a".into(), Ok(report(Vec::new(), &[]))), ("b".into(), Err("no route".into()))]);
        assert_eq!(merged.state, State::Unknown);
        assert!(merged.summary.ends_with("b could not be checked"), "{}", merged.summary);
        let none = of(vec![("a".into(), Err("no route".into()))]);
        assert_eq!((none.state, none.time), (State::Unknown, Timestamp::from_unix_secs(9)));
        let healthy = of(vec![("a".into(), Ok(report(Vec::new(), &[])))]);
        assert_eq!(healthy.summary, "nothing broken on a");
    }

    #[test]
    fn a_node_that_viptrace_cannot_observe_is_named_and_makes_no_check_partial() {
        let windows = NotChecked { why: "the node runs Windows".to_owned(), is_excused: true };
        let merged =
            of(vec![("a".into(), Ok(report(Vec::new(), &[]))), ("win".into(), Err(windows.clone()))]);
        assert_eq!(merged.state, State::Healthy);
        assert_eq!(merged.summary, "nothing broken on 1 node; win could not be checked");
        assert_eq!(of(vec![("win".into(), Err(windows.clone()))]).state, State::Unknown);
        let both = of(vec![
            ("a".into(), Ok(report(Vec::new(), &[]))),
            ("b".into(), Err("no route".into())),
            ("win".into(), Err(windows)),
        ]);
        assert_eq!(both.state, State::Unknown);
    }

    #[test]
    fn a_warning_of_high_severity_is_a_possible_fault() {
        let warned = |severity| {
            let finding = no_endpoints().level(Level::Warning).severity(severity);
            of(vec![("a".into(), Ok(CheckReport { state: State::Warnings, ..report(vec![finding], &[]) }))])
        };
        let high = warned(Severity::High);
        assert!(
            high.is_possibly_broken() && high.summary.starts_with("possibly broken on a"),
            "{}",
            high.summary
        );
        let low = warned(Severity::Low);
        assert!(!low.is_possibly_broken() && low.summary.starts_with("no fault found"), "{}", low.summary);
    }
}
