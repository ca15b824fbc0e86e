//! The end of a trace: verdicts counted, and the cause that a person should look at first.
//!
//! Counts the last verdict of each flow. The ranking is the triage order of the runbooks (K13): no endpoints, then
//! kube-proxy not running, then rules, then conntrack, then the path; within a rank, the more frequent.

use std::collections::BTreeMap;

use crate::class::{Class, Domain, Severity};
use crate::verdict::{ServiceRef, Told, Verdict};

/// Causes kept apart, each with a verdict of a few KiB; more are counted by class only.
const MAX_CAUSES: usize = 1000;
/// Services counted apart.
const MAX_SERVICES: usize = 20_000;

/// How many flows ended in one class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassCount {
    pub class: Class,
    pub domain: Domain,
    pub count: u64,
}

/// One cause of one Service.
#[derive(Clone, Debug, PartialEq)]
pub struct RankedCause {
    /// The verdict that shows it best: the surest, of these the first.
    pub verdict: Verdict,
    /// How many flows it explains.
    pub flows: u64,
}

/// Verdicts so far. Bounded: the number of classes is fixed, causes and Services are capped.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    classes: BTreeMap<Class, (Domain, u64)>,
    services: BTreeMap<ServiceRef, BTreeMap<Class, u64>>,
    causes: BTreeMap<(Class, Option<ServiceRef>), RankedCause>,
    /// Flows judged.
    pub judged: u64,
    /// Flows that were none of ours.
    pub ignored: u64,
}

impl Summary {
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts a flow's verdict. A flow that is judged again gives what was told before, which is taken back.
    pub fn add(&mut self, verdict: &Verdict, before: Option<&Told>) {
        if let Some(before) = before {
            self.take_back(before);
        }
        self.count_in(verdict, 1);
        if !verdict.is_fault() && !verdict.is_unexplained() {
            return;
        }
        let key = (verdict.class, verdict.service.clone());
        if let Some(known) = self.causes.get_mut(&key) {
            known.flows += 1;
            let weight = |verdict: &Verdict| (verdict.confidence, verdict.severity);
            if weight(verdict) > weight(&known.verdict) {
                known.verdict = verdict.clone();
            }
        } else if self.causes.len() < MAX_CAUSES {
            self.causes.insert(key, RankedCause { verdict: verdict.clone(), flows: 1 });
        }
    }

    /// Counts `count` flows that all got this verdict, which is neither a fault nor unexplained.
    pub fn add_healthy(&mut self, verdict: &Verdict, count: u64) {
        self.count_in(verdict, count);
    }

    fn count_in(&mut self, verdict: &Verdict, count: u64) {
        self.judged += count;
        match self.classes.get_mut(&verdict.class) {
            Some((_, known)) => *known += count,
            None => _ = self.classes.insert(verdict.class, (verdict.domain, count)),
        }
        let Some(service) = &verdict.service else { return };
        if let Some(known) = self.services.get_mut(service).and_then(|known| known.get_mut(&verdict.class)) {
            *known += count;
        } else if self.services.len() < MAX_SERVICES || self.services.contains_key(service) {
            let classes = self.services.entry(service.clone()).or_default();
            *classes.entry(verdict.class).or_default() += count;
        }
    }

    /// How many flows ended in a class of which `is_meant` is true.
    pub fn count(&self, is_meant: impl Fn(Class) -> bool) -> u64 {
        self.classes.iter().filter(|(class, _)| is_meant(**class)).map(|(_, (_, count))| count).sum()
    }

    /// A flow for which there is no verdict.
    pub fn add_ignored(&mut self) {
        self.ignored += 1;
    }

    fn take_back(&mut self, told: &Told) {
        self.judged = self.judged.saturating_sub(1);
        if let Some((_, count)) = self.classes.get_mut(&told.class) {
            *count = count.saturating_sub(1);
        }
        self.classes.retain(|_, (_, count)| *count > 0);
        if let Some(service) = &told.service
            && let Some(count) =
                self.services.get_mut(service).and_then(|classes| classes.get_mut(&told.class))
        {
            *count = count.saturating_sub(1);
        }
        let key = (told.class, told.service.clone());
        if let Some(known) = self.causes.get_mut(&key) {
            known.flows = known.flows.saturating_sub(1);
            if known.flows == 0 {
                self.causes.remove(&key);
            }
        }
    }

    /// The most frequent first.
    pub fn classes(&self) -> Vec<ClassCount> {
        let mut out: Vec<_> = self
            .classes
            .iter()
            .map(|(class, (domain, count))| ClassCount { class: *class, domain: *domain, count: *count })
            .collect();
        out.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.class.cmp(&b.class)));
        out
    }

    /// For each Service port the number of flows by class.
    pub fn services(&self) -> impl Iterator<Item = (&ServiceRef, &BTreeMap<Class, u64>)> {
        self.services.iter()
    }

    /// What to look at, the first cause first.
    pub fn causes(&self) -> Vec<&RankedCause> {
        let mut out: Vec<_> = self.causes.values().collect();
        out.sort_by(|a, b| {
            rank(&a.verdict)
                .cmp(&rank(&b.verdict))
                .then_with(|| b.flows.cmp(&a.flows))
                .then_with(|| a.verdict.root_cause.cmp(&b.verdict.root_cause))
        });
        out
    }

    pub fn first_cause(&self) -> Option<&RankedCause> {
        self.causes().into_iter().next()
    }

    /// Whether a person has to act.
    pub fn has_faults(&self) -> bool {
        self.classes.keys().any(|class| class.is_fault())
    }
}

/// Position in the triage order (K13). What passes by itself and what nothing explains come last.
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
