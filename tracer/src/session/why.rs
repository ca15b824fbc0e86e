//! Why a Service fails: the checks of the nodes and the flows that were observed there, joined to one first cause.
//!
//! A fault that observed flows met leads, since it is why they failed; the checks' evidence for the same class supports it.
//! Without such a flow the checks' first fault leads.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use schemars::JsonSchema;
use serde::Serialize;

use super::{Arrival, Cause, Counts, Fate};
use crate::{
    class::{Class, Confidence},
    diagnosis::{
        cause_behind,
        finding::Finding,
        triage::{
            FindingRecord, Level, State,
            nodes::{NodesReport, SharedFinding, place},
        },
    },
    text::count,
    verdict::{Evidence, EvidenceType, FlowRef, Mitigation, Text, Verdict},
};

/// The answer to why a Service fails.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Why {
    /// `namespace/name`.
    pub service: String,
    pub state: State,
    /// One line: the first cause, or that none was found.
    pub summary: String,
    /// `null` if nothing is broken, or nothing explains it.
    pub cause: Option<FirstCause>,
    /// Other faults and unexplained failures, one line each.
    pub also: Vec<String>,
    /// The observed flows by result.
    pub flows: Counts,
    pub probes: Vec<Probe>,
    /// Why no node could be traced; `null` if one was.
    pub no_trace: Option<String>,
    /// Facts that could not be observed.
    pub gaps: Vec<String>,
    /// The checks of the nodes.
    pub check: NodesReport,
}

/// The part of an answer that comes from the trace.
#[derive(Clone, Debug, Default)]
pub struct Observed<'a> {
    /// The causes of the flows, the first one first.
    pub causes: &'a [&'a Cause],
    pub counts: Counts,
    pub probes: Vec<Probe>,
    /// Why no node could be traced; `None` if one was.
    pub no_trace: Option<String>,
    /// Facts that could not be observed.
    pub gaps: Vec<String>,
}

/// The first cause with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct FirstCause {
    pub class: Class,
    /// `domain — detail`.
    pub root_cause: Text,
    pub confidence: Confidence,
    /// Where it is, in words: `on every node`, `only on worker-1`.
    pub place: Option<String>,
    /// The observed flows that it explains.
    pub flows: u64,
    /// The endpoints and clients of these flows that `root_cause` does not name: `at 1 other endpoint: 10.244.2.7:53`.
    pub others: Vec<String>,
    /// From the kernel, the rules and the node, and the API.
    pub evidence: Vec<Evidence>,
    pub against: Vec<Evidence>,
    pub unseen: Vec<Text>,
    pub mitigation: Mitigation,
}

/// The flows that arrived at the endpoints' nodes, so that a fault on the path between two nodes is shown from both ends.
/// Bounded: beyond [`MAX_ENDS`] flows, new ones are left out, and no absence is reported.
#[derive(Clone, Debug, Default)]
pub struct Ends {
    flows: BTreeMap<(SocketAddr, SocketAddr), BTreeMap<String, Fate>>,
    is_full: bool,
}

/// A verdict has this among its unseen facts where only the endpoint's node knows it (`diagnosis/flows/network_path.rs`).
const UNKNOWN_ARRIVAL: &str = "whether the packet reached";
/// The most flows whose arrival is kept.
const MAX_ENDS: usize = 16_384;

/// A flow at its endpoint's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FarEnd {
    /// The node that judged the flow; `None`: the verdict does not name it.
    pub from: Option<String>,
    pub node: String,
    pub client: SocketAddr,
    pub endpoint: SocketAddr,
    /// `None`: the node never saw it.
    pub fate: Option<Fate>,
}

impl Ends {
    pub fn add(&mut self, node: &str, arrival: &Arrival) {
        let key = (arrival.client, arrival.to);
        if self.flows.len() >= MAX_ENDS && !self.flows.contains_key(&key) {
            self.is_full = true;
            return;
        }
        self.flows.entry(key).or_default().insert(node.to_owned(), arrival.fate);
    }

    /// The arrival of the first of these flows of which something can be concluded. `node_of` gives the node of a flow's
    /// endpoint, and whether it was observed all the time since the flow began. A flow that began before the endpoint's node was
    /// traced shows nothing, and a later one of the same cause may.
    pub fn first_of<'v>(
        &self,
        verdicts: impl IntoIterator<Item = &'v Verdict>,
        mut node_of: impl FnMut(IpAddr, &FlowRef) -> Option<(String, bool)>,
    ) -> Option<FarEnd> {
        verdicts.into_iter().find_map(|verdict| {
            let (node, is_observed) = node_of(verdict.flow.endpoint?.ip(), &verdict.flow)?;
            self.of(verdict, &node, is_observed)
        })
    }

    /// The arrival at the endpoint's node of a flow that another node judged; `None` if nothing can be concluded.
    /// `is_observed`: that node's hooks were attached during all of the flow, and lost nothing.
    pub fn of(&self, verdict: &Verdict, node: &str, is_observed: bool) -> Option<FarEnd> {
        let endpoint = verdict.flow.endpoint?;
        if verdict.flow.node.as_deref() == Some(node) {
            return None;
        }
        let at = |client| self.flows.get(&(client, endpoint)).and_then(|nodes| nodes.get(node)).copied();
        let fate = at(verdict.flow.client);
        // A translated source has another address there, which the verdict does not have.
        let is_masqueraded = verdict.evidence.iter().any(|evidence| evidence.content.contains("masqueraded"));
        if fate.is_none() && (is_masqueraded || self.is_full || !is_observed) {
            return None;
        }
        let from = verdict.flow.node.as_deref().map(ToOwned::to_owned);
        Some(FarEnd { from, node: node.to_owned(), client: verdict.flow.client, endpoint, fate })
    }
}

/// A connection that viptrace made itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Probe {
    /// The node that it was made on.
    pub node: String,
    /// The Pod that it was made from (`namespace/name`); `null`: from the node's own network.
    pub pod: Option<String>,
    #[schemars(with = "String")]
    pub to: SocketAddr,
    /// Its result, in words.
    pub result: String,
    pub is_established: bool,
    /// From the first packet to the result, milliseconds.
    pub milliseconds: u64,
}

impl Probe {
    pub(crate) fn new(
        node: &str,
        pod: Option<String>,
        to: SocketAddr,
        is_established: bool,
        result: String,
        took: Duration,
    ) -> Self {
        let milliseconds = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        Self { node: node.to_owned(), pod, to, result, is_established, milliseconds }
    }
}

impl FarEnd {
    /// What it shows, in words. `was_sent`: see [`was_sent`].
    pub(crate) fn in_words(&self, was_sent: bool) -> String {
        let Self { from, node, client, endpoint, fate } = self;
        let flow = format!("the connection from {client} to {endpoint}");
        match fate {
            Some(Fate::Answered) => format!("{node}, the endpoint's node, saw {flow} answered"),
            Some(Fate::Stopped) => {
                format!("{node}, the endpoint's node, saw {flow}, and a rule there dropped it")
            }
            Some(Fate::Other) => format!("{node}, the endpoint's node, saw {flow} arrive and fail there"),
            None => match from.as_ref().filter(|_| was_sent) {
                Some(from) => format!(
                    "{from} sent the packets of {flow}, and {node}, the endpoint's node, never saw one: they were lost \
                     between the nodes"
                ),
                None => format!("{node}, the endpoint's node, never saw {flow}"),
            },
        }
    }
}

/// Whether packets left the client's node without an answer, by a verdict's unseen facts: its rule asks this where that node
/// dropped nothing and heard nothing.
pub(crate) fn was_sent(unseen: &[Text]) -> bool {
    unseen.iter().any(|unseen| unseen.contains(UNKNOWN_ARRIVAL))
}

impl Why {
    /// Adds what the endpoint's node observed of the first cause's flow. A silence that a rule there explains becomes that
    /// rule's.
    pub fn add_far_end(&mut self, far: &FarEnd) {
        let Some(cause) = &mut self.cause else { return };
        let FarEnd { from, node, endpoint, fate, .. } = far;
        let was_sent = was_sent(&cause.unseen);
        let text = far.in_words(was_sent);
        cause.evidence.push(Evidence { r#type: EvidenceType::Kernel, time: None, content: text.into() });
        cause.unseen.retain(|unseen| !unseen.contains(UNKNOWN_ARRIVAL));
        if cause.class != Class::C29 {
            return;
        }
        if let (None, true, Some(from)) = (fate, was_sent, from) {
            let what =
                format!("{from} sends connections to {endpoint}, and they never arrive at {node}, its node");
            cause.root_cause = FindingRecord::of(Finding::new(Class::C29, what), Some(node)).root_cause;
            cause.place = Some(format!("between {from} and {node}"));
            self.summary = broken(&self.service, &cause.root_cause);
        }
        if *fate != Some(Fate::Stopped) {
            return;
        }
        let what = format!("a rule on {node}, the node of the endpoint {endpoint}, drops its connections");
        let found = FindingRecord::of(Finding::new(Class::C30, what), Some(node));
        cause.class = found.class;
        cause.root_cause = found.root_cause;
        cause.mitigation = found.mitigation;
        cause.place = Some(format!("on {node}"));
        self.summary = broken(&self.service, &cause.root_cause);
    }

    /// Whether there is no fault, but connections may fail now.
    pub fn is_possibly_broken(&self) -> bool {
        self.state == State::Warnings && is_possible(self.flows, &self.probes, &self.check)
    }

    /// Joins the checks and what was observed.
    pub fn of(service: String, check: NodesReport, observed: Observed<'_>) -> Self {
        let Observed { causes, counts, probes, no_trace, gaps } = observed;
        let checked = check.nodes.iter().filter(|node| node.state.is_some()).count();
        let faults: Vec<&SharedFinding> =
            check.findings.iter().filter(|shared| shared.finding.level == Level::Fault).collect();
        let observed = causes.iter().find(|cause| cause.verdict.class.is_fault());
        let of_class = |class| faults.iter().find(|shared| shared.finding.class == class);
        // What a flow met is a fault, also if a check only warns of it.
        let behind_flows = |class| {
            let is_it = |shared: &&SharedFinding| {
                shared.finding.class == class && shared.finding.level == Level::Warning
            };
            of_class(class).copied().or_else(|| check.findings.iter().find(is_it))
        };
        let found = || faults.first().copied().or_else(|| policy_of_a_probe(&check, &probes));
        let cause = match observed {
            Some(cause) => {
                // Rules that lag behind the API are an effect: kube-proxy's own fault is the cause.
                let proxy = KUBE_PROXY.iter().find_map(|class| of_class(*class));
                let is_behind = |shared: &&&SharedFinding| {
                    LAGGING.contains(&cause.verdict.class)
                        && cause.verdict.flow.node.as_ref().is_none_or(|node| shared.nodes.contains(node))
                };
                Some(match proxy.filter(is_behind) {
                    Some(shared) => FirstCause::behind(cause, shared, checked),
                    None => FirstCause::observed(cause, behind_flows(cause.verdict.class), checked),
                })
            }
            None => found().map(|shared| FirstCause::found(shared, checked)),
        };
        let mut also = Vec::new();
        for other in causes
            .iter()
            .filter(|other| observed.is_none_or(|first| first.verdict.class != other.verdict.class))
        {
            let text = &other.verdict.root_cause;
            also.push(format!("{} of {}: {text}", other.verdict.class, count(other.flows, "flow")));
        }
        for shared in faults {
            let is_said = cause.as_ref().is_some_and(|first| first.class == shared.finding.class)
                || causes.iter().any(|cause| cause.verdict.class == shared.finding.class);
            if !is_said {
                also.push(format!(
                    "{} {}: {}",
                    shared.finding.class,
                    place(shared, checked),
                    shared.finding.root_cause
                ));
            }
        }
        let failed_probe = probes.iter().any(|probe| !probe.is_established);
        let unseen = no_trace.is_some() && probes.is_empty();
        let state = match &cause {
            Some(_) => State::Broken,
            None if counts.unknown > 0 || failed_probe || unseen => State::Unknown,
            None => check.state,
        };
        let summary = match &cause {
            Some(cause) => broken(&service, &cause.root_cause),
            None if unseen && checked == 0 => format!("{service}: no node could be checked or traced"),
            None if unseen => {
                format!("no fault of {service} was found, but no node could be traced: {}", check.summary)
            }
            None => without_cause(&service, state, counts, &probes, &check),
        };
        Self { service, state, summary, cause, also, flows: counts, probes, no_trace, gaps, check }
    }
}

impl FirstCause {
    /// A fault that flows met, with the evidence of the checks for the same class. The class is that of kube-proxy's own fault,
    /// if the flows show it.
    fn observed(cause: &Cause, found: Option<&SharedFinding>, checked: usize) -> Self {
        let verdict = &cause.verdict;
        let mut first = Self {
            class: verdict.class,
            root_cause: verdict.root_cause.clone(),
            confidence: verdict.confidence,
            place: None,
            flows: cause.flows,
            others: cause.others(),
            evidence: verdict.evidence.clone(),
            against: verdict.against.clone(),
            unseen: verdict.unseen.clone(),
            mitigation: verdict.mitigation.clone(),
        };
        if let Some(class) = cause_behind(verdict) {
            first.class = class;
            let detail = Finding::detail_of(&verdict.root_cause).to_owned();
            first.root_cause = Finding::new(class, detail).root_cause();
        }
        let Some(shared) = found else { return first };
        first.place = (checked > 1).then(|| place(shared, checked));
        let more = shared
            .finding
            .evidence
            .iter()
            .filter(|evidence| !verdict.evidence.iter().any(|known| known.content == evidence.content));
        first.evidence.extend(more.cloned());
        first.evidence.sort_by_key(|evidence| evidence.r#type);
        first.confidence = first.confidence.max(shared.finding.confidence);
        first
    }

    /// A fault of kube-proxy that the checks know, with a flow that met its effect.
    fn behind(cause: &Cause, shared: &SharedFinding, checked: usize) -> Self {
        let verdict = &cause.verdict;
        let mut first = Self::found(shared, checked);
        first.flows = cause.flows;
        let effect = format!(
            "its effect on a connection ({}): {}",
            verdict.class,
            Finding::detail_of(&verdict.root_cause)
        );
        first.evidence.push(Evidence {
            r#type: EvidenceType::Kernel,
            time: Some(verdict.flow.started),
            content: effect.into(),
        });
        first.evidence.extend(verdict.evidence.iter().filter(|e| e.r#type == EvidenceType::Kernel).cloned());
        first.evidence.sort_by_key(|evidence| evidence.r#type);
        first
    }

    /// A fault that only the checks know.
    fn found(shared: &SharedFinding, checked: usize) -> Self {
        let finding = &shared.finding;
        let mut evidence = finding.evidence.clone();
        evidence.sort_by_key(|evidence| evidence.r#type);
        Self {
            class: finding.class,
            root_cause: finding.root_cause.clone(),
            confidence: finding.confidence,
            place: (checked > 1).then(|| place(shared, checked)),
            flows: 0,
            others: Vec::new(),
            evidence,
            against: finding.against.clone(),
            unseen: finding.unseen.clone(),
            mitigation: finding.mitigation.clone(),
        }
    }
}

/// The faults that connections meet where the rules lag behind the API.
const LAGGING: [Class; 6] = [Class::C4, Class::C5, Class::C6, Class::C8, Class::C12, Class::C13];
/// The reasons for that, in the order of the triage.
const KUBE_PROXY: [Class; 2] = [Class::C1, Class::C2];

/// Whether kube-proxy's own fault may be the cause of this flow's failure, and the flow does not show it.
pub(crate) fn may_lag(verdict: &Verdict) -> bool {
    LAGGING.contains(&verdict.class) && cause_behind(verdict).is_none()
}

/// That a Service is broken, and why.
pub(crate) fn broken(service: &str, root_cause: &str) -> String {
    format!("{service} is broken: {}", Finding::detail_of(root_cause))
}

/// The internal policy Local without an endpoint on the node of a probe that failed. A check only warns of it, because it
/// does not see whether a client connects there.
fn policy_of_a_probe<'c>(check: &'c NodesReport, probes: &[Probe]) -> Option<&'c SharedFinding> {
    let failed: Vec<&Probe> = probes.iter().filter(|probe| !probe.is_established).collect();
    check.findings.iter().find(|shared| {
        shared.finding.class == Class::C22
            && shared.finding.level == Level::Warning
            && failed.iter().any(|probe| shared.nodes.contains(&probe.node))
    })
}

/// Whether the checks warn of connections that may fail now, and none was observed that succeeded.
fn is_possible(counts: Counts, probes: &[Probe], check: &NodesReport) -> bool {
    let succeeded = counts.ok + counts.normal > 0 || probes.iter().any(|probe| probe.is_established);
    check.is_possibly_broken() && !succeeded
}

fn without_cause(
    service: &str,
    state: State,
    counts: Counts,
    probes: &[Probe],
    check: &NodesReport,
) -> String {
    let established = probes.iter().filter(|probe| probe.is_established).count();
    match state {
        State::Unknown if counts.unexplained > 0 => format!(
            "{service}: {} failed, and nothing that was observed explains it",
            count(counts.unexplained, "connection")
        ),
        State::Unknown if probes.len() > established => format!(
            "{service}: {} of {} failed, and nothing that was observed explains it",
            probes.len() - established,
            count(probes.len(), "probe")
        ),
        State::Unknown if counts.unknown > 0 => format!(
            "no fault of {service} was found, but events of {} were lost",
            count(counts.unknown, "connection")
        ),
        State::Unknown => format!("no fault of {service} was found, but {}", check.summary),
        _ => {
            let healthy = counts.ok + counts.normal;
            let seen = match (healthy, established) {
                (0, 0) => "none of its connections was observed: --probe makes one".to_owned(),
                (0, probes) => format!("{} succeeded", count(probes, "probe")),
                (flows, _) => format!("{} succeeded", count(flows, "connection")),
            };
            if is_possible(counts, probes, check) {
                // The checks' own words begin with "possibly broken".
                return format!("no fault of {service} was found, but it is {}; {seen}", check.summary);
            }
            format!("nothing wrong with {service} was found; {seen}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::Key,
        diagnosis::triage::{CheckReport, Facts, Scope, triage},
        time::Timestamp,
    };

    /// A flow on node a that failed by this class.
    fn verdict(class: &str) -> Verdict {
        let verdict = serde_json::json!({
            "time": "2026-01-02T03:04:05.000000006Z", "class": class, "root_cause": "x — it failed", "domain": "unknown",
            "confidence": "medium", "severity": "high",
            "service": {"namespace": "shop", "name": "cart", "port": "http"},
            "flow": {
                "protocol": "TCP", "client": "10.244.1.4:40001", "vip": "10.96.10.10:80", "endpoint": "10.244.2.5:8080",
                "client_pod": null, "endpoint_pod": null, "node": "a", "started": "2026-01-02T03:04:05.000000006Z",
            },
            "evidence": [], "against": [], "unseen": ["whether the packet reached node b: a trace there shows it"],
            "changes_around": [], "changes_left_out": 0, "lost_events": 0, "kube_proxy_mode": null,
            "kube_proxy_version": null, "metadata_age": null,
            "mitigation": {"immediate": "", "long_term": "", "safety": "read-only"}, "cross_reference": [],
        });
        serde_json::from_value(verdict).unwrap()
    }

    fn check(findings: Vec<Finding>) -> NodesReport {
        let state = if findings.is_empty() { State::Healthy } else { State::Broken };
        let report = CheckReport {
            state,
            findings: findings.into_iter().map(|finding| FindingRecord::of(finding, None)).collect(),
            gaps: Vec::new(),
            ..triage(&Facts::default(), &Scope::default())
        };
        NodesReport::of(vec![("a".into(), Ok(report.clone())), ("b".into(), Ok(report))], Timestamp::MIN)
    }

    fn no_endpoints() -> Finding {
        Finding::new(Class::C20, "shop/cart has no endpoints").service(&Key::new("shop", "cart"), "http")
    }

    fn why(check: NodesReport, causes: &[&Cause], counts: Counts, probes: Vec<Probe>) -> Why {
        Why::of("shop/cart".into(), check, Observed { causes, counts, probes, ..Observed::default() })
    }

    fn probe(is_established: bool) -> Probe {
        let to = "10.96.10.10:80".parse().unwrap();
        Probe::new("a", None, to, is_established, "refused".into(), Duration::from_millis(3))
    }

    #[test]
    fn the_fault_that_flows_met_leads() {
        let cause = Cause::of(verdict("C20"), 7);
        let counts = Counts { faults: 7, ..Counts::default() };
        let stopped = Finding::new(Class::C1, "kube-proxy does not run");
        let why = why(check(vec![stopped, no_endpoints()]), &[&cause], counts, Vec::new());
        let first = why.cause.as_ref().unwrap();
        assert_eq!(
            (first.class, first.flows, first.place.as_deref()),
            (Class::C20, 7, Some("on every node"))
        );
        assert_eq!(why.state, State::Broken);
        assert!(why.summary.starts_with("shop/cart is broken: "), "{}", why.summary);
        assert_eq!(why.also, ["C1 on every node: pod_crash — kube-proxy does not run"]);
    }

    #[test]
    fn what_a_connection_met_is_a_fault_although_a_check_only_warns_of_it() {
        let policy = || {
            let warning = Finding::new(Class::C22, "shop/cart has no endpoint on a").level(Level::Warning);
            check(vec![
                warning.service(&Key::new("shop", "cart"), "http").api(None, "its endpoints are on b"),
            ])
        };
        let cause = Cause::of(verdict("C22"), 2);
        let counts = Counts { faults: 2, ..Counts::default() };
        let observed = why(policy(), &[&cause], counts, Vec::new());
        let first = observed.cause.as_ref().unwrap();
        assert_eq!((observed.state, first.class, first.flows), (State::Broken, Class::C22, 2));
        assert!(first.evidence.iter().any(|piece| piece.content == "its endpoints are on b"), "{first:#?}");
        let probed = why(policy(), &[], Counts::default(), vec![probe(false)]);
        assert_eq!(probed.cause.map(|cause| cause.class), Some(Class::C22));
        assert_eq!(why(policy(), &[], Counts::default(), vec![probe(true)]).cause, None);
    }

    fn far_end(fate: Option<Fate>) -> Why {
        let cause = Cause::of(verdict("C29"), 2);
        let mut ends = Ends::default();
        if let Some(fate) = fate {
            let (client, to) = (cause.verdict.flow.client, cause.verdict.flow.endpoint.unwrap());
            ends.add("b", &Arrival { client, to, fate });
        }
        assert_eq!(ends.of(&cause.verdict, "a", true), None);
        assert_eq!(ends.of(&cause.verdict, "b", false).is_some(), fate.is_some());
        let counts = Counts { faults: 2, ..Counts::default() };
        let mut why = why(check(Vec::new()), &[&cause], counts, Vec::new());
        why.add_far_end(&ends.of(&cause.verdict, "b", true).unwrap());
        why
    }

    #[test]
    fn a_fault_between_two_nodes_is_shown_from_both_ends() {
        let lost = far_end(None);
        let cause = lost.cause.as_ref().unwrap();
        assert_eq!((cause.class, cause.place.as_deref()), (Class::C29, Some("between a and b")));
        let both = "a sent the packets of the connection from 10.244.1.4:40001 to 10.244.2.5:8080, and b, the endpoint's node, \
             never saw one";
        assert!(
            cause.evidence.iter().any(|evidence| evidence.content.starts_with(both)),
            "{:?}",
            cause.evidence
        );
        assert!(cause.unseen.is_empty());
        assert_eq!(
            lost.summary,
            "shop/cart is broken: a sends connections to 10.244.2.5:8080, and they never arrive at b, its node"
        );
        let stopped = far_end(Some(Fate::Stopped));
        assert_eq!(stopped.cause.as_ref().unwrap().class, Class::C30);
        assert_eq!(
            stopped.summary,
            "shop/cart is broken: a rule on b, the node of the endpoint 10.244.2.5:8080, drops its connections"
        );
        assert_eq!(far_end(Some(Fate::Answered)).cause.unwrap().class, Class::C29);
    }

    #[test]
    fn a_flow_from_before_the_other_trace_is_passed_over() {
        let early = verdict("C29");
        let mut late = early.clone();
        late.flow.started = early.flow.started.saturating_add(Duration::from_secs(1));
        late.flow.client = "10.244.1.4:40002".parse().unwrap();
        let observed_since = late.flow.started;
        let node_of = |_, flow: &FlowRef| Some(("b".to_owned(), flow.started >= observed_since));
        let far = Ends::default().first_of([&early, &late], node_of).unwrap();
        assert_eq!((far.client, far.fate), (late.flow.client, None));
        assert_eq!(Ends::default().first_of([&early], node_of), None);
    }

    #[test]
    fn a_packet_that_the_clients_node_dropped_was_not_sent() {
        let mut verdict = verdict("C29");
        verdict.unseen.clear();
        let cause = Cause::of(verdict, 2);
        let counts = Counts { faults: 2, ..Counts::default() };
        let mut why = why(check(Vec::new()), &[&cause], counts, Vec::new());
        let summary = why.summary.clone();
        why.add_far_end(&Ends::default().of(&cause.verdict, "b", true).unwrap());
        assert_eq!(why.summary, summary);
        let first = why.cause.unwrap();
        let far = first.evidence.last().unwrap();
        assert_eq!(
            far.content.to_string(),
            "b, the endpoint's node, never saw the connection from 10.244.1.4:40001 to 10.244.2.5:8080"
        );
        assert_eq!(first.place, None);
    }

    #[test]
    fn rules_that_lag_behind_are_an_effect_of_a_stopped_kube_proxy() {
        let cause = Cause::of(verdict("C6"), 3);
        let counts = Counts { faults: 3, ..Counts::default() };
        let stopped = Finding::new(Class::C1, "kube-proxy does not run");
        let first = why(check(vec![stopped]), &[&cause], counts, Vec::new()).cause.unwrap();
        assert_eq!((first.class, first.flows), (Class::C1, 3));
        assert!(first.evidence.iter().any(|evidence| evidence.content.contains("(C6)")));
        let alone = why(check(Vec::new()), &[&cause], counts, Vec::new()).cause.unwrap();
        assert_eq!(alone.class, Class::C6);
        assert!(may_lag(&cause.verdict));
    }

    #[test]
    fn a_flow_that_shows_kube_proxys_own_fault_leads_with_it() {
        let root_cause =
            "x — NAT chose a stale endpoint; kube-proxy has received no change since (C2)".into();
        let cause = Cause::of(Verdict { root_cause, ..verdict("C6") }, 3);
        assert!(!may_lag(&cause.verdict));
        let counts = Counts { faults: 3, ..Counts::default() };
        let why = why(check(Vec::new()), &[&cause], counts, Vec::new());
        let first = why.cause.unwrap();
        assert_eq!((first.class, first.flows), (Class::C2, 3));
        assert!(first.root_cause.starts_with("api_connectivity — NAT chose"), "{}", first.root_cause);
        assert_eq!(why.also, [""; 0]);
    }

    #[test]
    fn without_traffic_the_checks_answer() {
        let why = why(check(vec![no_endpoints()]), &[], Counts::default(), Vec::new());
        assert_eq!(why.cause.unwrap().class, Class::C20);
        assert_eq!(why.summary, "shop/cart is broken: shop/cart has no endpoints");
    }

    #[test]
    fn nothing_is_called_healthy_without_a_trace() {
        let untraced = |probes| {
            let observed = Observed { probes, no_trace: Some("refused".into()), ..Observed::default() };
            Why::of("shop/cart".into(), check(Vec::new()), observed)
        };
        let silent = untraced(Vec::new());
        assert_eq!(silent.state, State::Unknown);
        assert_eq!(
            silent.summary,
            "no fault of shop/cart was found, but no node could be traced: nothing broken on 2 nodes"
        );
        assert_eq!(silent.no_trace.as_deref(), Some("refused"));
        // Nothing succeeded in spite of a warning that connections may fail now.
        let warned = |probes| {
            let mut check = check(vec![no_endpoints().level(Level::Warning)]);
            check.state = State::Warnings;
            check.summary = "possibly broken on 2 nodes: it has none".to_owned();
            Why::of("shop/cart".into(), check, Observed { probes, ..Observed::default() })
        };
        let doubtful = warned(Vec::new());
        assert!(doubtful.is_possibly_broken());
        assert!(
            doubtful
                .summary
                .starts_with("no fault of shop/cart was found, but it is possibly broken on 2 nodes: it"),
            "{}",
            doubtful.summary
        );
        let disproved = warned(vec![probe(true)]);
        assert!(!disproved.is_possibly_broken() && disproved.summary.starts_with("nothing wrong"));
        let refused = ["a", "b"].map(|node| (node.to_owned(), Err("refused".into())));
        let observed = Observed { no_trace: Some("refused".into()), ..Observed::default() };
        let blind = Why::of("shop/cart".into(), NodesReport::of(refused.into(), Timestamp::MIN), observed);
        assert_eq!(blind.summary, "shop/cart: no node could be checked or traced");
        assert_eq!(untraced(vec![probe(true)]).state, State::Healthy);
        assert_eq!(untraced(vec![probe(false)]).state, State::Unknown);
    }

    #[test]
    fn a_healthy_service_is_not_called_so_without_a_connection() {
        let ok = Counts { ok: 3, ..Counts::default() };
        assert_eq!(
            why(check(Vec::new()), &[], ok, Vec::new()).summary,
            "nothing wrong with shop/cart was found; 3 connections succeeded"
        );
        let near_a_loss = why(check(Vec::new()), &[], Counts { unknown: 2, ..Counts::default() }, Vec::new());
        assert_eq!(near_a_loss.state, State::Unknown);
        assert_eq!(
            near_a_loss.summary,
            "no fault of shop/cart was found, but events of 2 connections were lost"
        );
        let broken = Counts { unknown: 2, unexplained: 1, ..Counts::default() };
        assert_eq!(
            why(check(Vec::new()), &[], broken, Vec::new()).summary,
            "shop/cart: 1 connection failed, and nothing that was observed explains it"
        );
        let silent = why(check(Vec::new()), &[], Counts::default(), Vec::new());
        assert!(silent.summary.ends_with("none of its connections was observed: --probe makes one"));
        let failed = why(check(Vec::new()), &[], Counts::default(), vec![probe(true), probe(false)]);
        assert_eq!(failed.state, State::Unknown);
        assert_eq!(
            failed.summary,
            "shop/cart: 1 of 2 probes failed, and nothing that was observed explains it"
        );
    }
}
