//! The result of a trace: counts of verdicts, connect times, and the causes in the order in which to examine them.
//!
//! Counts the last verdict of each flow. The ranking is the triage order of the runbooks (K13): no endpoints, then
//! kube-proxy not running, then rules, then conntrack, then the path; within a rank, the more frequent.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Connections, Folded, Judged, NotJudged, Pipeline,
    latency::{Latencies, Latency},
    others::Ends,
};
use crate::{
    class::{Class, Domain, Kind, Severity},
    cluster::Key,
    diagnosis::{
        cause_behind,
        triage::nodes::{SharedText, shared},
    },
    text::list,
    time::Timestamp,
    verdict::{FlowRef, ServiceRef, Verdict, VerdictKey},
};

/// The most causes kept apart, each with a verdict of a few KiB; others are counted only by class.
const MAX_CAUSES: usize = 1000;
/// The most Services counted apart.
const MAX_SERVICES: usize = 20_000;

/// Flows by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Flows", description = "The observed flows of the Service.")]
pub struct Counts {
    pub ok: u64,
    pub normal: u64,
    pub faults: u64,
    pub unknown: u64,
    /// The unknown ones that failed. The others look healthy, and events were lost while they were watched.
    #[serde(skip)]
    pub unexplained: u64,
}

impl Counts {
    fn of(flows: &Flows) -> Self {
        let mut counts = Self { unexplained: flows.unexplained, ..Self::default() };
        for (class, count) in &flows.of_class {
            *match class.kind() {
                Kind::Ok => &mut counts.ok,
                Kind::Normal => &mut counts.normal,
                Kind::Fault => &mut counts.faults,
                Kind::Unknown => &mut counts.unknown,
            } += count;
        }
        counts
    }

    pub const fn total(self) -> u64 {
        self.ok + self.normal + self.faults + self.unknown
    }
}

/// The number of flows in each class, and of the unknown ones that failed.
#[derive(Clone, Debug, Default)]
struct Flows {
    of_class: BTreeMap<Class, u64>,
    unexplained: u64,
}

impl Flows {
    fn add(&mut self, verdict: &Verdict, count: u64) {
        *self.of_class.entry(verdict.class).or_default() += count;
        if verdict.is_unexplained() {
            self.unexplained += count;
        }
    }

    fn take_back(&mut self, key: &VerdictKey) {
        if let Some(count) = self.of_class.get_mut(&key.class) {
            *count = count.saturating_sub(1);
        }
        self.of_class.retain(|_, count| *count > 0);
        if key.class == Class::Unknown && key.has_failed {
            self.unexplained = self.unexplained.saturating_sub(1);
        }
    }
}

/// One cause of one Service.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// The one that shows the cause best; of equals the first.
    pub verdict: Verdict,
    /// The number of flows that it explains.
    pub flows: u64,
    ends: Ends,
}

impl Cause {
    /// Without further flows.
    #[cfg(test)]
    pub(super) fn of(verdict: Verdict, flows: u64) -> Self {
        Self { verdict, flows, ends: Ends::default() }
    }

    /// The endpoints and clients that the verdict's sentence stands for and does not name.
    pub fn others(&self) -> Vec<String> {
        self.ends.beside(&self.verdict)
    }
}

/// How well a verdict shows its cause, to be compared with those on other flows of that cause.
pub(crate) fn weight(verdict: &Verdict) -> impl Ord + use<> {
    // A later flow may show why the rules are old, which an earlier one could not.
    (verdict.confidence, verdict.severity, cause_behind(verdict).is_some())
}

/// Verdicts so far. Bounded: the number of classes is fixed, causes and Services are capped.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    flows: Flows,
    services: BTreeMap<ServiceRef, Flows>,
    /// The further flows of these Services, which only their class keeps out.
    beside: BTreeMap<ServiceRef, u64>,
    causes: BTreeMap<(Class, Option<ServiceRef>), Cause>,
    latencies: Latencies,
    unjudged: BTreeMap<Option<ServiceRef>, u64>,
    /// The connections that a recorder in the kernel counted, whether or not they have a verdict.
    pub connections: Connections,
}

impl Summary {
    /// Counts a flow. Its earlier verdict is subtracted first.
    pub fn add(&mut self, judged: &Judged) {
        let Judged { verdict, before, connect_time, .. } = judged;
        if let Some(before) = before {
            self.take_back(before, &verdict.flow);
        }
        self.count(verdict, 1);
        if let (Class::Ok, Some(service), Some(time)) = (verdict.class, &verdict.service, connect_time) {
            self.latencies.record(service, &[*time]);
        }
        self.blame(verdict, 1, |ends| ends.add(&verdict.flow));
    }

    /// Counts flows that share a verdict.
    pub fn add_folded(&mut self, folded: &Folded) {
        let Folded { verdict, count, connect_times, clients, .. } = folded;
        self.count(verdict, *count);
        if let (Class::Ok, Some(service)) = (verdict.class, &verdict.service) {
            self.latencies.record(service, connect_times);
        }
        self.blame(verdict, *count, |ends| ends.add_folded(&verdict.flow, *count, clients));
    }

    /// Counts flows that failed under their cause.
    fn blame(&mut self, verdict: &Verdict, flows: u64, note: impl FnOnce(&mut Ends)) {
        if !verdict.has_failed() {
            return;
        }
        let key = (verdict.class, verdict.service.clone());
        if let Some(known) = self.causes.get_mut(&key) {
            known.flows += flows;
            note(&mut known.ends);
            if weight(verdict) > weight(&known.verdict) {
                known.verdict = verdict.clone();
            }
        } else if self.causes.len() < MAX_CAUSES {
            let mut cause = Cause { verdict: verdict.clone(), flows, ends: Ends::default() };
            note(&mut cause.ends);
            self.causes.insert(key, cause);
        }
    }

    /// Counts flows of a Service that are not of a wanted class: the share of the others depends on them.
    pub fn add_beside(&mut self, verdict: &Verdict, flows: u64) {
        let Some(service) = &verdict.service else { return };
        if let Some(known) = self.beside.get_mut(service) {
            *known += flows;
        } else if self.beside.len() < MAX_SERVICES {
            self.beside.insert(service.clone(), flows);
        }
    }

    /// Takes back [`Self::add_beside`]: the flow has a wanted class now.
    pub fn take_beside(&mut self, verdict: &Verdict) {
        if let Some(known) = verdict.service.as_ref().and_then(|service| self.beside.get_mut(service)) {
            *known = known.saturating_sub(1);
        }
    }

    /// The number of all flows of a Service port, also of classes that are not wanted.
    pub fn total_of(&self, service: &ServiceRef) -> u64 {
        let counted = self.services.get(service).map_or(0, |flows| Counts::of(flows).total());
        counted + self.beside.get(service).copied().unwrap_or_default()
    }

    /// Counts flows that have no verdict.
    pub fn add_unjudged(&mut self, flows: &NotJudged) {
        let is_counted_apart =
            self.unjudged.len() < MAX_SERVICES || self.unjudged.contains_key(&flows.service);
        let service = flows.service.clone().filter(|_| is_counted_apart);
        *self.unjudged.entry(service).or_default() += flows.count;
    }

    /// The flows without a verdict of each Service port, and of no known one.
    pub fn unjudged(&self) -> impl Iterator<Item = (Option<&ServiceRef>, u64)> {
        self.unjudged.iter().map(|(service, count)| (service.as_ref(), *count))
    }

    fn count(&mut self, verdict: &Verdict, count: u64) {
        self.flows.add(verdict, count);
        let Some(service) = &verdict.service else { return };
        if let Some(known) = self.services.get_mut(service) {
            known.add(verdict, count);
        } else if self.services.len() < MAX_SERVICES {
            self.services.entry(service.clone()).or_default().add(verdict, count);
        }
    }

    /// No longer counts this flow, which had this verdict.
    pub fn take_back(&mut self, key: &VerdictKey, flow: &FlowRef) {
        self.flows.take_back(key);
        if let Some(flows) = key.service.as_ref().and_then(|service| self.services.get_mut(service)) {
            flows.take_back(key);
        }
        if !key.has_failed {
            return;
        }
        let cause = (key.class, key.service.clone());
        if let Some(known) = self.causes.get_mut(&cause) {
            known.flows = known.flows.saturating_sub(1);
            known.ends.take_back(key, flow);
            if known.flows == 0 {
                self.causes.remove(&cause);
            }
        }
    }

    /// All flows.
    pub fn counts(&self) -> Counts {
        Counts::of(&self.flows)
    }

    /// The number of flows in each class.
    pub fn classes(&self) -> impl Iterator<Item = (Class, u64)> {
        self.flows.of_class.iter().map(|(class, count)| (*class, *count))
    }

    /// The flows of each Service port.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceRef, Counts)> {
        self.services.iter().map(|(service, flows)| (service, Counts::of(flows)))
    }

    /// The causes in the order in which to examine them.
    pub fn causes(&self) -> Vec<&Cause> {
        let mut out: Vec<_> = self.causes.values().collect();
        out.sort_by(|a, b| {
            rank(&a.verdict)
                .cmp(&rank(&b.verdict))
                .then_with(|| b.flows.cmp(&a.flows))
                .then_with(|| a.verdict.root_cause.cmp(&b.verdict.root_cause))
        });
        out
    }

    /// The position of a cause in the triage order (K13).
    pub(crate) fn rank(verdict: &Verdict) -> u8 {
        rank(verdict)
    }

    /// Connect times of healthy flows, by Service port.
    pub fn latencies(&self) -> Vec<Latency> {
        self.latencies.summarize()
    }
}

/// The position in the triage order (K13). Causes that resolve themselves and unexplained flows come last.
fn rank(verdict: &Verdict) -> u8 {
    let order = match verdict.domain {
        Domain::NoEndpoints => 0,
        Domain::PodCrash | Domain::ApiConnectivity | Domain::VersionSkew => 1,
        Domain::IptablesSync | Domain::IpvsModules | Domain::StaleEndpoints => 2,
        Domain::ServiceConfig => 3,
        Domain::Conntrack | Domain::HostKernel => 4,
        Domain::BackendRefused
        | Domain::NetworkPolicy
        | Domain::NetworkPath
        | Domain::Hairpin
        | Domain::Mtu => 5,
        Domain::Normal | Domain::Unknown => 7,
    };
    if order < 6 && verdict.severity <= Severity::Low { 6 } else { order }
}

/// The end of a trace and its gaps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// When the trace was ready and when it ended.
    pub started: Timestamp,
    pub ended: Timestamp,
    /// Flows without an outcome so far.
    pub flows_open: u64,
    /// Flows evicted to keep within the memory limit; they have no verdict.
    pub flows_evicted: u64,
    /// Events that the kernel could not deliver.
    pub lost_events: u64,
    /// Damaged and missing parts of recordings: the number of their events is unknown.
    #[serde(default)]
    pub uncounted_losses: u64,
    /// Events that the kernel suppressed, because a client or a Service had too many, and of these the ones of each Service.
    pub suppressed_events: u64,
    pub suppressed_by_service: Vec<(Key, u64)>,
    /// Time since the API server last sent data, or the age of the object files; `None` without metadata.
    pub metadata_age: Option<Duration>,
    /// Gaps: missing hooks, objects that may not be read, node facts.
    pub gaps: Vec<String>,
    /// The flows that a replay was to show, if not all.
    #[serde(skip)]
    pub selected: Option<SelectedFlows>,
}

/// A part of the flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectedFlows {
    /// Which ones, in words.
    pub only: String,
    /// The number of the others; `None` if it is not known, because blocks without wanted flows were not read.
    pub others: Option<u64>,
}

impl Ending {
    /// The endings of several nodes as one: sums, and each gap with the nodes that have it.
    pub fn of_nodes(nodes: impl IntoIterator<Item = (String, Self)>) -> Self {
        let mut all = Self { started: Timestamp::MAX, ..Self::default() };
        let (mut gaps, mut names) = (Vec::new(), BTreeSet::new());
        let mut suppressed: BTreeMap<Key, u64> = BTreeMap::new();
        for (name, ending) in nodes {
            all.started = all.started.min(ending.started);
            all.ended = all.ended.max(ending.ended);
            all.flows_open += ending.flows_open;
            all.flows_evicted += ending.flows_evicted;
            all.lost_events += ending.lost_events;
            all.uncounted_losses += ending.uncounted_losses;
            all.suppressed_events += ending.suppressed_events;
            all.metadata_age = all.metadata_age.max(ending.metadata_age);
            for (service, count) in ending.suppressed_by_service {
                *suppressed.entry(service).or_default() += count;
            }
            gaps.extend(ending.gaps.into_iter().map(|gap| (name.clone(), gap)));
            names.insert(name);
        }
        all.started = all.started.min(all.ended);
        all.suppressed_by_service = suppressed.into_iter().collect();
        let line = |SharedText { nodes, text }| {
            let is_all = nodes.len() == names.len() && nodes.len() > 1;
            format!("{}: {text}", if is_all { "every node".to_owned() } else { list(&nodes) })
        };
        all.gaps = shared(gaps.into_iter()).into_iter().map(line).collect();
        all
    }

    /// Adds the pipeline's gaps to `gaps`.
    pub fn new(pipeline: &Pipeline, started: Timestamp, ended: Timestamp, mut gaps: Vec<String>) -> Self {
        let cluster = pipeline.cluster();
        let status = &cluster.status;
        gaps.extend(status.gaps(ended));
        gaps.extend(cluster.history.losses());
        gaps.extend(pipeline.node().gap_lines());
        gaps.extend(pipeline.wall_clock_lines());
        gaps.extend(pipeline.changes_loss());
        gaps.extend(pipeline.left_to_other_nodes());
        let counters = pipeline.counters();
        Self {
            started,
            ended,
            flows_open: counters.open,
            flows_evicted: counters.evicted,
            lost_events: pipeline.lost_events().saturating_sub(pipeline.uncounted_losses()),
            uncounted_losses: pipeline.uncounted_losses(),
            suppressed_events: pipeline.suppressed_events(),
            suppressed_by_service: pipeline
                .suppressed_by_service()
                .map(|(service, count)| (service.clone(), count))
                .collect(),
            metadata_age: status.metadata_age(ended),
            gaps,
            selected: None,
        }
    }
}
