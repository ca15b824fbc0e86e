//! One cause at one Service port: its failed flows in time, who was hit, and what changed around them.
//!
//! Owns the limits of a chapter. A later verdict on a flow takes the earlier one back.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::story::Beside;
use crate::{
    session::{Judged, weight},
    time::Timestamp,
    verdict::{FlowRef, NearbyChange, Verdict},
};

/// The most clients, endpoints or nodes counted apart for one cause.
const MAX_NAMES: usize = 256;
/// The most changes kept of one cause before its first failure, the nearest ones, and as many after it, the latest ones.
const MAX_CHANGES: usize = 32;
/// The most failed flows whose verdicts are kept of one cause, each a few KiB, for a story with records.
const MAX_RECORDS: usize = 200;
/// The most of its earliest verdicts: one of them is the first, also if others are taken back.
const MAX_EARLIEST: usize = 8;
/// The most different times of its failures. Beyond them, those in the middle count for none.
const MAX_TIMES: usize = 1024;
/// How far before the first failure changes are listed.
pub(super) const BEFORE: Duration = Duration::from_hours(1);
/// How long after the last failure changes are listed: what ended it may be noticed late.
const AFTER: Duration = Duration::from_secs(30);
/// Failed flows that are farther apart are of different bouts: a fault that hits one connection of many, at a Service with
/// little traffic, shows itself more often.
pub(crate) const APART: Duration = Duration::from_mins(10);
/// The most bouts of one cause; later flows belong to the last one.
const MAX_BOUTS: usize = 64;
/// The changes of different nodes that are one, if they are no farther apart.
const SAME: Duration = Duration::from_secs(15);

/// The subjects of a change that each node has for itself (`verdict::NearbyChange::subject`).
const OF_NODE: [&str; 4] = ["this node", "kube-proxy", "API server", "viptrace"];

/// One cause at one Service port.
#[derive(Clone, Debug)]
pub struct Chapter {
    /// The verdicts of the earliest failures, in the order of the failures' times.
    earliest: Vec<(Timestamp, Verdict)>,
    /// The one that shows the cause best; of equals the first.
    pub verdict: Box<Verdict>,
    /// Flows whose last verdict it is.
    pub flows: u64,
    /// When they failed.
    times: BTreeMap<Timestamp, u64>,
    /// The times in which they failed, in their order, at least [`APART`] from each other.
    bouts: Vec<Bout>,
    /// The first flow of the Service that was answered after the last failure.
    pub(super) answered: Option<Timestamp>,
    pub clients: Names,
    pub endpoints: Names,
    pub nodes: Names,
    /// The verdicts of the first of its flows, if the story keeps them; in the order in which they were judged.
    pub records: Vec<Verdict>,
    /// In the order of time.
    pub changes: Vec<Change>,
    /// Until when `changes` is complete.
    changes_until: Timestamp,
}

/// Failed flows of one cause without a long pause between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bout {
    pub first: Timestamp,
    pub last: Timestamp,
    pub flows: u64,
}

/// A change with the node that noticed it, if it concerns that node only.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    pub node: Option<String>,
    #[serde(flatten)]
    pub change: NearbyChange,
}

/// Names with counts.
#[derive(Clone, Debug, Default)]
pub struct Names {
    counts: BTreeMap<String, u64>,
    /// Flows of further names.
    others: u64,
}

impl Chapter {
    pub(super) fn new(judged: &Judged) -> Self {
        Self {
            earliest: Vec::new(),
            verdict: Box::new(judged.verdict.clone()),
            flows: 0,
            times: BTreeMap::new(),
            bouts: Vec::new(),
            answered: None,
            clients: Names::default(),
            endpoints: Names::default(),
            nodes: Names::default(),
            records: Vec::new(),
            changes: Vec::new(),
            changes_until: Timestamp::MIN,
        }
    }

    /// The verdict on the flow that failed first, as far as it is kept.
    pub fn first(&self) -> &Verdict {
        let began = self.began();
        let first = self.earliest.first().filter(|(time, _)| *time == began);
        first.map_or(&*self.verdict, |(_, verdict)| verdict)
    }

    /// When the first flow failed.
    pub fn began(&self) -> Timestamp {
        self.times.first_key_value().map_or(self.verdict.flow.started, |(time, _)| *time)
    }

    /// When the last flow failed.
    pub fn last(&self) -> Timestamp {
        self.times.last_key_value().map_or_else(|| self.began(), |(time, _)| *time)
    }

    /// Takes a failed flow. Keeps its record if there is room. Returns whether it did.
    pub(super) fn add(&mut self, judged: &Judged, has_room: bool) -> bool {
        let (verdict, at) = (&judged.verdict, judged.failed);
        self.flows += 1;
        if self.flows == 1 || weight(verdict) > weight(&self.verdict) {
            *self.verdict = verdict.clone();
        }
        self.add_to_bouts(at);
        self.add_to_times(at);
        let place = self.earliest.partition_point(|(time, _)| *time <= at);
        if place < MAX_EARLIEST {
            self.earliest.insert(place, (at, verdict.clone()));
            self.earliest.truncate(MAX_EARLIEST);
        }
        let last = self.last();
        self.answered = self.answered.filter(|answered| *answered > last);
        self.name(&verdict.flow, Names::add);
        let is_kept = has_room && self.records.len() < MAX_RECORDS;
        if is_kept {
            self.records.push(verdict.clone());
        }
        is_kept
    }

    /// The names of those that a flow hit.
    fn name(&mut self, flow: &FlowRef, count: fn(&mut Names, &str)) {
        match &flow.client_pod {
            Some(pod) => count(&mut self.clients, pod),
            None => count(&mut self.clients, &flow.client.ip().to_string()),
        }
        if let Some(endpoint) = flow.endpoint {
            let pod = flow.endpoint_pod.as_ref().map(|pod| format!(" {pod}")).unwrap_or_default();
            count(&mut self.endpoints, &format!("{endpoint}{pod}"));
        }
        if let Some(node) = &flow.node {
            count(&mut self.nodes, node);
        }
    }

    fn add_to_times(&mut self, at: Timestamp) {
        if self.times.len() >= MAX_TIMES && !self.times.contains_key(&at) {
            let middle = self.times.keys().nth(MAX_TIMES / 2).copied();
            middle.and_then(|middle| self.times.remove(&middle));
        }
        *self.times.entry(at).or_default() += 1;
    }

    /// The times in which its flows failed: several if there were long pauses.
    pub fn bouts(&self) -> impl Iterator<Item = Bout> {
        self.bouts.iter().copied().filter(|bout| bout.flows > 0)
    }

    fn add_to_bouts(&mut self, failed: Timestamp) {
        let at = self.bouts.partition_point(|bout| bout.first <= failed);
        self.bouts.insert(at, Bout { first: failed, last: failed, flows: 1 });
        let mut room = MAX_BOUTS;
        self.bouts.dedup_by(|later, earlier| {
            let is_one = later.first.since(earlier.last) < APART || room <= 1;
            if is_one {
                earlier.last = earlier.last.max(later.last);
                earlier.flows += later.flows;
            } else {
                room -= 1;
            }
            is_one
        });
    }

    /// Takes back a flow that has a later verdict. Returns the number of records less.
    pub(super) fn take_back(&mut self, later: &Judged) -> usize {
        self.flows = self.flows.saturating_sub(1);
        let is_same = |verdict: &Verdict| identity(&verdict.flow) == identity(&later.verdict.flow);
        if let Some(at) = later.failed_before
            && let Some(flows) = self.times.get_mut(&at)
        {
            *flows -= 1;
            if *flows == 0 {
                self.times.remove(&at);
            }
            let place = self.bouts.partition_point(|bout| bout.first <= at);
            if let Some(bout) = place.checked_sub(1).and_then(|place| self.bouts.get_mut(place)) {
                bout.flows = bout.flows.saturating_sub(1);
            }
        }
        let before = self.records.len();
        self.records.retain(|record| !is_same(record));
        self.earliest.retain(|(_, verdict)| !is_same(verdict));
        if is_same(&self.verdict) {
            let earliest = self.earliest.first().map(|(_, verdict)| verdict);
            if let Some(other) = earliest.or(self.records.first()) {
                *self.verdict = other.clone();
            }
        }
        self.name(&later.verdict.flow, Names::take_back);
        before - self.records.len()
    }

    /// Whether a flow at this time may have changes that the chapter does not have yet.
    pub(super) fn lacks_changes(&self, time: Timestamp) -> bool {
        self.flows == 1 || time > self.changes_until
    }

    /// Takes the changes from [`BEFORE`] the first failure to [`AFTER`] the last one.
    pub(super) fn note_changes(&mut self, Beside { pipeline, timeline, track }: Beside<'_>) {
        let began = self.began();
        let end = self.last().saturating_add(AFTER);
        let node = pipeline.settings().node_name.clone();
        let mut first = self.first().clone();
        first.map_times(|time| timeline.own(track, time));
        for mut change in pipeline.changes_concerning(&first) {
            change.time = timeline.common(track, change.time);
            change.after = change.after.map(|after| timeline.common(track, after));
            if change.time.saturating_add(BEFORE) < began || change.after.unwrap_or(change.time) > end {
                continue;
            }
            let node = node.clone().filter(|_| OF_NODE.contains(&&*change.subject));
            let change = Change { node, change };
            if !self.changes.iter().any(|known| known.is_same(&change)) {
                self.changes.push(change);
            }
        }
        self.changes_until = end;
        self.keep_nearest();
    }

    fn keep_nearest(&mut self) {
        let began = self.began();
        self.changes.sort_by_key(|change| (change.earliest() > began, change.change.time));
        // In a lively incident the latest changes are many, and the cause is among those before it.
        let earlier = self.changes.partition_point(|it| it.earliest() <= began);
        let later = self.changes.len() - earlier;
        self.changes.drain(earlier..earlier + later.saturating_sub(MAX_CHANGES));
        self.changes.drain(..earlier.saturating_sub(MAX_CHANGES));
        for Change { change, .. } in &mut self.changes {
            change.seconds_before = seconds(change.time, began);
        }
    }
}

fn identity(flow: &FlowRef) -> impl PartialEq + '_ {
    (&flow.protocol, flow.client, flow.vip, flow.started)
}

impl Names {
    fn add(&mut self, name: &str) {
        if let Some(count) = self.counts.get_mut(name) {
            *count += 1;
        } else if self.counts.len() < MAX_NAMES {
            self.counts.insert(name.to_owned(), 1);
        } else {
            self.others += 1;
        }
    }

    fn take_back(&mut self, name: &str) {
        match self.counts.get_mut(name) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => {
                self.counts.remove(name);
            }
            None => self.others = self.others.saturating_sub(1),
        }
    }

    /// The most frequent first.
    pub fn by_count(&self) -> Vec<(&str, u64)> {
        let mut all: Vec<_> = self.counts.iter().map(|(name, count)| (name.as_str(), *count)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        all
    }

    /// Flows of names beyond those counted apart.
    pub fn others(&self) -> u64 {
        self.others
    }
}

impl Change {
    /// The earliest time at which it can have happened: a reading of the node finds it later, often because a flow failed.
    pub fn earliest(&self) -> Timestamp {
        self.change.after.unwrap_or(self.change.time)
    }

    /// Whether two nodes noticed one change.
    fn is_same(&self, other: &Self) -> bool {
        let (one, two) = (&self.change, &other.change);
        let apart = one.time.since(two.time).max(two.time.since(one.time));
        self.node == other.node && one.kind == two.kind && one.text == two.text && apart <= SAME
    }
}

/// Seconds from a change to a failure, to the millisecond; negative if the change came later.
fn seconds(change: Timestamp, failure: Timestamp) -> f64 {
    let seconds = if change > failure {
        -change.since(failure).as_secs_f64()
    } else {
        failure.since(change).as_secs_f64()
    };
    (seconds * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::{ChangeKind, fixture::fault};

    /// Hundreds of changes during an incident do not displace those before it.
    #[test]
    fn the_nearest_changes_before_the_first_failure_stay() {
        let mut chapter = Chapter::new(&Judged::of(fault()));
        chapter.add(&Judged::of(fault()), false);
        let began = chapter.began();
        let change = |seconds: i64| {
            let apart = Duration::from_secs(seconds.unsigned_abs());
            let time = if seconds < 0 { began.saturating_sub(apart) } else { began.saturating_add(apart) };
            let change = NearbyChange {
                time,
                after: None,
                seconds_before: 0.0,
                kind: ChangeKind::ServiceChanged,
                subject: "Service shop/cart".into(),
                text: format!("change {seconds}").into(),
                resource_version: None,
            };
            Change { node: None, change }
        };
        chapter.changes = (-100..0).chain(1..=200).map(change).collect();
        chapter.keep_nearest();
        let texts: Vec<&str> = chapter.changes.iter().map(|it| &*it.change.text).collect();
        assert_eq!(texts.len(), 2 * MAX_CHANGES);
        assert_eq!((texts[0], texts[MAX_CHANGES - 1]), ("change -32", "change -1"));
        assert_eq!((texts[MAX_CHANGES], texts[2 * MAX_CHANGES - 1]), ("change 169", "change 200"));
        assert!((chapter.changes[0].change.seconds_before - 32.0).abs() < 1e-9);
    }
}
