//! What happened: the causes with their beginning and end, who was hit, and what changed around them.
//!
//! Takes the judgements of a [`Timeline`](super::Timeline) in the order of time. Owns when a failure counts as over, the
//! counts by client, endpoint and node, and the rate over time, all bounded. Must not judge: the causes and their order
//! are those of the verdicts, and a change before a failure is a correlation.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::{rate::Rate, timeline::Timeline};
use crate::{
    class::{Class, Kind},
    session::{Folded, Judged, Pipeline, Summary},
    time::Timestamp,
    verdict::{NearbyChange, ServiceRef, Verdict},
};

/// The most causes told apart; flows of others are counted only.
const MAX_CHAPTERS: usize = 256;
/// The most clients, endpoints or nodes counted apart for one cause.
const MAX_NAMES: usize = 256;
/// The most changes kept of one cause.
const MAX_CHANGES: usize = 64;
/// The most Services whose rate is kept.
const MAX_RATES: usize = 1024;
/// The most failed flows whose verdicts a story keeps, of one cause and of all, each a few KiB.
const MAX_RECORDS_OF_ONE: usize = 200;
const MAX_RECORDS: usize = 2_000;
/// How far before the first failure changes are listed.
pub(crate) const BEFORE: Duration = Duration::from_hours(1);
/// How long after the last failure changes are listed: what ended it may be noticed late.
const AFTER: Duration = Duration::from_secs(30);
/// A failure is over if the Service was observed for at least so long after the last failed flow.
const QUIET: Duration = Duration::from_secs(30);
/// Failed flows that are farther apart are of different bouts: a fault that hits one connection of many, at a Service with
/// little traffic, shows itself more often.
pub(crate) const APART: Duration = Duration::from_mins(10);
/// The most bouts of one cause; later flows belong to the last one.
const MAX_BOUTS: usize = 64;
/// The changes of different nodes that are one, if they are no farther apart.
const SAME: Duration = Duration::from_secs(15);

/// The subjects of a change that each node has for itself (`verdict::NearbyChange::subject`).
const OF_NODE: [&str; 4] = ["this node", "kube-proxy", "API server", "viptrace"];

/// The story so far.
#[derive(Debug, Default)]
pub struct Story {
    chapters: BTreeMap<(Class, Option<ServiceRef>), Chapter>,
    /// Failed flows of causes beyond the limit.
    pub left_out: u64,
    rates: BTreeMap<ServiceRef, Rate>,
    /// By Service: the latest flow that was answered.
    answered: BTreeMap<ServiceRef, Timestamp>,
    /// How many more verdicts of failed flows it keeps.
    room: usize,
}

/// One cause at one Service port.
#[derive(Clone, Debug)]
pub struct Chapter {
    /// The first verdict with it.
    pub first: Box<Verdict>,
    /// The most certain one.
    pub verdict: Box<Verdict>,
    /// Flows whose last verdict it is.
    pub flows: u64,
    /// The times in which they failed, in their order, at least [`APART`] from each other.
    bouts: Vec<Bout>,
    /// The last failed flow.
    pub last: Timestamp,
    /// The first flow of the Service that was answered after it.
    pub answered: Option<Timestamp>,
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

impl Names {
    fn add(&mut self, name: String) {
        if self.counts.len() < MAX_NAMES || self.counts.contains_key(&name) {
            *self.counts.entry(name).or_default() += 1;
        } else {
            self.others += 1;
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

/// A trace beside the story: its objects and changes, and both clocks.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    pub pipeline: &'a Pipeline,
    pub timeline: &'a Timeline,
    /// An index of [`Timeline::tracks`].
    pub track: usize,
}

/// The end of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The Service answered this flow and failed none after it.
    Answered(Timestamp),
    /// The recording ends too soon after the last failed flow to tell.
    Open,
    /// No later flow of the Service was observed.
    NoFlow,
}

impl Story {
    /// A story that keeps failed flows' verdicts: the first 200 of each cause, and 2,000 in all.
    pub fn with_records() -> Self {
        Self { room: MAX_RECORDS, ..Self::default() }
    }

    /// Takes one judged flow of a trace.
    pub fn add(&mut self, judged: &Judged, beside: Beside<'_>) {
        let Some(chapter) = self.count(judged) else { return };
        if chapter.flows == 1 || judged.verdict.time > chapter.changes_until {
            chapter.note_changes(beside);
        }
    }

    /// Takes the part of a judged flow that concerns its Service: it shows when a failure ended, also if its class is not wanted.
    pub fn note(&mut self, judged: &Judged) {
        let verdict = &judged.verdict;
        if let Some(before) = judged.before.as_ref().filter(|before| before.has_failed)
            && let Some(chapter) = self.chapters.get_mut(&(before.class, before.service.clone()))
        {
            self.room += chapter.forget(verdict);
        }
        if let Some(service) = &verdict.service {
            self.rate(service, verdict.flow.started, 1, verdict.has_failed());
            if verdict.class.kind() == Kind::Ok {
                self.was_answered(service, verdict.flow.started);
            }
        }
    }

    /// A story of these flows, all with these changes.
    #[cfg(test)]
    pub(crate) fn of(verdicts: impl IntoIterator<Item = Verdict>, changes: &[Change]) -> Self {
        let mut story = Self::with_records();
        for verdict in verdicts {
            let last_seen = verdict.time;
            let judged = Judged { verdict, before: None, connect_time: None, last_seen };
            if let Some(chapter) = story.count(&judged) {
                chapter.changes = changes.to_vec();
            }
        }
        story
    }

    /// Counts a flow. Returns its chapter if it failed.
    fn count(&mut self, judged: &Judged) -> Option<&mut Chapter> {
        self.note(judged);
        let verdict = &judged.verdict;
        if !verdict.has_failed() {
            return None;
        }
        let key = (verdict.class, verdict.service.clone());
        if !self.chapters.contains_key(&key) && self.chapters.len() >= MAX_CHAPTERS {
            self.left_out += 1;
            return None;
        }
        let chapter = self.chapters.entry(key).or_insert_with(|| Chapter::new(verdict));
        chapter.add(verdict);
        if self.room > 0 && chapter.records.len() < MAX_RECORDS_OF_ONE {
            self.room -= 1;
            chapter.records.push(verdict.clone());
        }
        Some(chapter)
    }

    /// Takes healthy flows that share a verdict.
    pub fn add_folded(&mut self, folded: &Folded) {
        if let Some(service) = &folded.verdict.service {
            self.rate(service, folded.last, folded.count, false);
            if folded.verdict.class.kind() == Kind::Ok {
                self.was_answered(service, folded.last);
            }
        }
    }

    /// The trace has come to its end, or to a time when it knows the changes that ended a failure.
    pub fn note_changes(&mut self, beside: Beside<'_>) {
        for chapter in self.chapters.values_mut() {
            chapter.note_changes(beside);
        }
    }

    /// The causes in the order in which to examine them, without those that later verdicts replaced.
    pub fn chapters(&self) -> Vec<&Chapter> {
        let mut all: Vec<_> = self.chapters.values().filter(|chapter| chapter.flows > 0).collect();
        all.sort_by(|a, b| {
            Summary::rank(&a.verdict)
                .cmp(&Summary::rank(&b.verdict))
                .then_with(|| b.flows.cmp(&a.flows))
                .then_with(|| a.first.flow.started.cmp(&b.first.flow.started))
        });
        all
    }

    /// The rate of a Service's flows.
    pub fn rate_of(&self, service: &ServiceRef) -> Option<&Rate> {
        self.rates.get(service)
    }

    /// When the chapter's failures ended, in a recording that ends at `end`.
    pub fn ended(&self, chapter: &Chapter, end: Timestamp) -> Ended {
        let latest = chapter.verdict.service.as_ref().and_then(|service| self.answered.get(service));
        match (chapter.answered, latest) {
            (Some(first), Some(latest)) if latest.since(chapter.last) >= QUIET => Ended::Answered(first),
            (None, _) if end.since(chapter.last) >= QUIET => Ended::NoFlow,
            _ => Ended::Open,
        }
    }

    fn rate(&mut self, service: &ServiceRef, time: Timestamp, count: u64, failed: bool) {
        if !self.rates.contains_key(service) && self.rates.len() >= MAX_RATES {
            return;
        }
        self.rates.entry(service.clone()).or_default().add(time, count, failed);
    }

    fn was_answered(&mut self, service: &ServiceRef, time: Timestamp) {
        if self.answered.contains_key(service) || self.answered.len() < MAX_RATES {
            let latest = self.answered.entry(service.clone()).or_default();
            *latest = time.max(*latest);
        }
        for chapter in self.chapters.values_mut() {
            if chapter.verdict.service.as_ref() == Some(service) && time > chapter.last {
                chapter.answered.get_or_insert(time);
            }
        }
    }
}

impl Chapter {
    fn new(verdict: &Verdict) -> Self {
        Self {
            first: Box::new(verdict.clone()),
            verdict: Box::new(verdict.clone()),
            flows: 0,
            bouts: Vec::new(),
            last: verdict.flow.started,
            answered: None,
            clients: Names::default(),
            endpoints: Names::default(),
            nodes: Names::default(),
            records: Vec::new(),
            changes: Vec::new(),
            changes_until: Timestamp::MIN,
        }
    }

    fn add(&mut self, verdict: &Verdict) {
        self.flows += 1;
        let weight = |verdict: &Verdict| (verdict.confidence, verdict.severity);
        if weight(verdict) > weight(&self.verdict) {
            *self.verdict = verdict.clone();
        }
        let flow = &verdict.flow;
        self.add_to_bouts(flow.started);
        if flow.started < self.first.flow.started {
            *self.first = verdict.clone();
        }
        if flow.started >= self.last {
            self.last = flow.started;
            self.answered = self.answered.filter(|answered| *answered > self.last);
        }
        self.clients.add(flow.client_pod.clone().unwrap_or_else(|| flow.client.ip().to_string()));
        if let Some(endpoint) = flow.endpoint {
            let pod = flow.endpoint_pod.as_ref().map(|pod| format!(" {pod}")).unwrap_or_default();
            self.endpoints.add(format!("{endpoint}{pod}"));
        }
        self.nodes.extend(flow.node.clone());
    }

    /// The times in which its flows failed: several if there were long pauses.
    pub fn bouts(&self) -> impl Iterator<Item = Bout> {
        self.bouts.iter().copied().filter(|bout| bout.flows > 0)
    }

    fn add_to_bouts(&mut self, started: Timestamp) {
        let at = self.bouts.partition_point(|bout| bout.first <= started);
        self.bouts.insert(at, Bout { first: started, last: started, flows: 1 });
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

    /// Forgets a flow that has a later verdict, and its record. Returns the number of records less.
    fn forget(&mut self, later: &Verdict) -> usize {
        self.flows = self.flows.saturating_sub(1);
        let at = self.bouts.partition_point(|bout| bout.first <= later.flow.started);
        if let Some(bout) = at.checked_sub(1).and_then(|at| self.bouts.get_mut(at)) {
            bout.flows = bout.flows.saturating_sub(1);
        }
        let before = self.records.len();
        let flow = |verdict: &Verdict| {
            let flow = &verdict.flow;
            (flow.protocol.clone(), flow.client, flow.vip, flow.started)
        };
        self.records.retain(|record| flow(record) != flow(later));
        before - self.records.len()
    }

    /// Takes the changes from [`BEFORE`] the first failure to [`AFTER`] the last one.
    fn note_changes(&mut self, Beside { pipeline, timeline, track }: Beside<'_>) {
        let began = self.first.flow.started;
        let end = self.last.saturating_add(AFTER);
        let node = pipeline.settings().node_name.clone();
        let mut first = Verdict::clone(&self.first);
        first.map_times(|time| timeline.own(track, time));
        for mut change in pipeline.changes_concerning(&first) {
            change.time = timeline.common(track, change.time);
            change.after = change.after.map(|after| timeline.common(track, after));
            if change.time.saturating_add(BEFORE) < began || change.after.unwrap_or(change.time) > end {
                continue;
            }
            change.seconds_before = seconds(change.time, began);
            let node = node.clone().filter(|_| OF_NODE.contains(&&*change.subject));
            let change = Change { node, change };
            if !self.changes.iter().any(|known| known.is_same(&change)) {
                self.changes.push(change);
            }
        }
        self.changes_until = end;
        self.changes.sort_by_key(|change| change.change.time);
        let excess = self.changes.len().saturating_sub(MAX_CHANGES);
        self.changes.drain(..excess);
    }
}

impl Extend<String> for Names {
    fn extend<T: IntoIterator<Item = String>>(&mut self, names: T) {
        names.into_iter().for_each(|name| self.add(name));
    }
}

impl Change {
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
