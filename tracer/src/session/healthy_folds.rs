//! Healthy flows that share one verdict: the first is judged, the others are counted.
//!
//! Owns the conditions for a shared verdict and how long they hold. A flow is folded only if judging it would repeat the
//! judgement of an earlier flow to the same address and endpoint word for word: nothing speaks against either flow
//! ([`diagnosis::is_plain`]), the reasons do not depend on the moment ([`diagnosis::Judgement::lasting`]), and the
//! objects concerned have not changed since before either flow began.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{Hash, Hasher},
    sync::Arc,
};

use foldhash::fast::RandomState;

use super::folded::{Folded, Tally};
use crate::{
    cluster::{self, History, Via},
    diagnosis::{self, Lasting},
    flow::{Flow, Outcome},
    net::{Protocol, TransportAddr},
    node::Snapshot,
    time::Timestamp,
    verdict::{Verdict, VerdictKey},
};

/// The most verdicts kept for folding; beyond it all are dropped, and new flows are judged again.
const MAX_TEMPLATES: usize = 4096;

/// The facts that flows with one verdict share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    dst: TransportAddr,
    endpoint: TransportAddr,
    protocol: Protocol,
    answered: bool,
}

impl Hash for Key {
    /// Few words for the keyed hash: this runs for every healthy flow.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u64::from(self.dst.port()) << 16 | u64::from(self.endpoint.port());
        state.write_u64(ports << 16 | u64::from(self.protocol.0) << 1 | u64::from(self.answered));
        for ip in [self.dst.bits(), self.endpoint.bits()] {
            if ip >> 64 != 0 {
                state.write_u64((ip >> 64) as u64);
            }
            state.write_u64(ip as u64);
        }
    }
}

impl Key {
    fn new(flow: &Flow, endpoint: TransportAddr) -> Self {
        Self {
            dst: flow.orig.dst,
            endpoint,
            protocol: flow.orig.protocol,
            answered: flow.handed_outcome() != Outcome::Pending,
        }
    }
}

#[derive(Debug)]
struct Template {
    tally: Tally,
    verdict_key: Arc<VerdictKey>,
    service: cluster::Key,
    is_cluster_ip: bool,
    /// Flows that began later are judged by the same versions of the same objects.
    since: Timestamp,
    /// The history's generation at which that was last checked.
    checked: u64,
}

/// The facts about a folded flow that the pipeline needs.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) verdict_key: &'a Arc<VerdictKey>,
    pub(super) is_cluster_ip: bool,
}

/// The verdicts that flows can share, and the flows folded since they were last taken.
#[derive(Debug, Default)]
pub(super) struct HealthyFolds {
    known: HashMap<Key, Template, RandomState>,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    /// The templates with a count to report.
    of: Vec<Key>,
    /// The counts of dropped templates.
    retired: Vec<Folded>,
}

impl HealthyFolds {
    /// Counts the flow if a template for it is known. The flow must not have been judged before.
    pub(super) fn fold(
        &mut self,
        flow: &Flow,
        endpoint: TransportAddr,
        history: &History,
    ) -> Option<Found<'_>> {
        if self.known.is_empty() || !diagnosis::is_plain(flow) {
            return None;
        }
        let key = Key::new(flow, endpoint);
        let Entry::Occupied(mut known) = self.known.entry(key) else { return None };
        if !known.get_mut().holds(history) {
            self.counts.retire(key, known.remove());
            return None;
        }
        let template = known.into_mut();
        if flow.first_seen <= template.since {
            return None;
        }
        if template.tally.add(flow, history) {
            self.counts.of.push(key);
        }
        Some(Found { verdict_key: &template.verdict_key, is_cluster_ip: template.is_cluster_ip })
    }

    /// Keeps the verdict for later flows, if the history has not changed since the flow began.
    pub(super) fn keep(
        &mut self,
        flow: &Flow,
        Lasting { service, via }: Lasting,
        verdict: Arc<Verdict>,
        verdict_key: Arc<VerdictKey>,
        history: &History,
    ) {
        let Some(endpoint) = verdict.flow.endpoint else { return };
        let settled = history.settled(&service);
        if flow.first_seen <= settled.since {
            return;
        }
        let key = Key::new(flow, endpoint.into());
        if let Some(template) = self.known.remove(&key) {
            self.counts.retire(key, template);
        } else if self.known.len() >= MAX_TEMPLATES {
            self.clear();
        }
        let template = Template {
            tally: Tally::new(verdict),
            verdict_key,
            service,
            is_cluster_ip: via == Via::ClusterIp,
            since: settled.since,
            checked: history.generation(),
        };
        self.known.insert(key, template);
    }

    /// Drops the verdicts if the node has changed in a fact that they depend on.
    pub(super) fn node_read(&mut self, before: &Snapshot, after: &Snapshot) {
        if !diagnosis::lasts_over(before, after) {
            self.clear();
        }
    }

    /// Drops all verdicts and keeps the counts.
    pub(super) fn clear(&mut self) {
        self.retire_all();
        self.known.clear();
    }

    /// The flows counted since the last call.
    pub(super) fn take(&mut self) -> Vec<Folded> {
        self.retire_all();
        std::mem::take(&mut self.counts.retired)
    }

    fn retire_all(&mut self) {
        let Counts { of, retired } = &mut self.counts;
        for key in of.drain(..) {
            retired.extend(self.known.get_mut(&key).and_then(|template| template.tally.take()));
        }
    }
}

impl Counts {
    /// Keeps the count of a dropped template.
    fn retire(&mut self, key: Key, mut template: Template) {
        if let Some(folded) = template.tally.take() {
            self.retired.push(folded);
            self.of.retain(|counted| *counted != key);
        }
    }
}

impl Template {
    /// Whether the history still returns the facts that the verdict rests on.
    fn holds(&mut self, history: &History) -> bool {
        let now = history.generation();
        if self.checked != now {
            if history.settled(&self.service).generation > self.checked {
                return false;
            }
            self.checked = now;
        }
        true
    }
}
