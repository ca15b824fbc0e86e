//! What happened: the causes with their beginning and end, who was hit, and what changed around them.
//!
//! Takes the judgements of a [`Timeline`](super::Timeline) in the order of time. Owns when a failure counts as over and the
//! rate over time, all bounded; a [`Chapter`] has one cause. Must not judge: the causes and their order are those of the
//! verdicts, and a change before a failure is a correlation.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use super::{chapter::Chapter, rate::Rate, timeline::Timeline};
use crate::{
    class::{Class, Kind},
    session::{Folded, Judged, Pipeline, Summary},
    time::Timestamp,
    verdict::ServiceRef,
};
#[cfg(test)]
use crate::{incident::Change, verdict::Verdict};

/// The most causes told apart; flows of others are counted only.
const MAX_CHAPTERS: usize = 256;
/// The most Services whose rate is kept.
const MAX_RATES: usize = 1024;
/// The most failed flows whose verdicts a story keeps.
const MAX_RECORDS: usize = 2_000;
/// A failure is over if the Service was observed for at least so long after the last failed flow.
const QUIET: Duration = Duration::from_secs(30);

/// The story so far.
#[derive(Debug, Default)]
pub struct Story {
    chapters: BTreeMap<(Class, Option<ServiceRef>), Chapter>,
    /// Failed flows of causes beyond the limit.
    pub left_out: u64,
    /// Flows that look healthy and had lost events near them.
    pub uncertain: u64,
    rates: BTreeMap<ServiceRef, Rate>,
    /// By Service: the latest flow that was answered.
    answered: BTreeMap<ServiceRef, Timestamp>,
    /// How many more verdicts of failed flows it keeps.
    room: usize,
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
    /// The Service answered this flow, the first after the last failed one, and failed none after it.
    Answered(Timestamp),
    /// The same, and later flows of the Service failed for other causes.
    OthersFailed(Timestamp),
    /// The Service answered this flow, the last that was observed, too soon after the last failed one to tell.
    Quiet(Timestamp),
    /// The recording ends too soon after the last failed flow to tell.
    Open,
    /// No later flow of the Service was answered.
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
        if chapter.lacks_changes(judged.verdict.time) {
            chapter.note_changes(beside);
        }
    }

    /// Takes the part of a judged flow that concerns its Service: it shows when a failure ended, also if its class is not wanted.
    pub fn note(&mut self, judged: &Judged) {
        let verdict = &judged.verdict;
        self.uncertain += u64::from(verdict.is_healthy_near_a_loss());
        if let Some(before) = &judged.before {
            let was_uncertain = before.class == Class::Unknown && !before.has_failed;
            self.uncertain = self.uncertain.saturating_sub(u64::from(was_uncertain));
            if before.has_failed
                && let Some(chapter) = self.chapters.get_mut(&(before.class, before.service.clone()))
            {
                self.room += chapter.take_back(judged);
            }
            if let Some(rate) = before.service.as_ref().and_then(|service| self.rates.get_mut(service)) {
                let began = verdict.flow.started;
                let time = if before.has_failed { judged.failed_before.unwrap_or(began) } else { began };
                rate.take_back(time, before.has_failed);
            }
        }
        if let Some(service) = &verdict.service {
            let has_failed = verdict.has_failed();
            let time = if has_failed { judged.failed } else { verdict.flow.started };
            self.rate(service, time, 1, has_failed);
            if verdict.class.kind() == Kind::Ok || judged.was_answered && !has_failed {
                self.was_answered(service, verdict.flow.started);
            }
        }
    }

    /// A story of these flows, all with these changes.
    #[cfg(test)]
    pub(crate) fn of(verdicts: impl IntoIterator<Item = Verdict>, changes: &[Change]) -> Self {
        let mut story = Self::with_records();
        for verdict in verdicts {
            let judged = Judged::of(verdict);
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
        let chapter = self.chapters.entry(key).or_insert_with(|| Chapter::new(judged));
        if chapter.add(judged, self.room > 0) {
            self.room -= 1;
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
        let mut all: Vec<_> = self.known().collect();
        all.sort_by(|a, b| {
            Summary::rank(&a.verdict)
                .cmp(&Summary::rank(&b.verdict))
                .then_with(|| b.flows.cmp(&a.flows))
                .then_with(|| a.began().cmp(&b.began()))
        });
        all
    }

    fn known(&self) -> impl Iterator<Item = &Chapter> {
        self.chapters.values().filter(|chapter| chapter.flows > 0)
    }

    /// The rate of a Service's flows.
    pub fn rate_of(&self, service: &ServiceRef) -> Option<&Rate> {
        self.rates.get(service)
    }

    /// When the chapter's failures ended, in a recording that ends at `end`.
    pub fn ended(&self, chapter: &Chapter, end: Timestamp) -> Ended {
        let service = chapter.verdict.service.as_ref();
        let latest = service.and_then(|service| self.answered.get(service));
        let last = chapter.last();
        match (chapter.answered, latest) {
            (Some(first), Some(latest)) if latest.since(last) >= QUIET => {
                let mut others = self.known().filter(|other| other.verdict.service.as_ref() == service);
                if others.any(|other| other.last() > first) {
                    Ended::OthersFailed(first)
                } else {
                    Ended::Answered(first)
                }
            }
            _ if end.since(last) < QUIET => Ended::Open,
            (Some(_), Some(latest)) => Ended::Quiet(*latest),
            _ => Ended::NoFlow,
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
            if chapter.verdict.service.as_ref() == Some(service) && time > chapter.last() {
                chapter.answered.get_or_insert(time);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::verdict::fixture::{fault, ok};

    fn after(seconds: u64) -> Timestamp {
        fault().flow.started.saturating_add(Duration::from_secs(seconds))
    }

    /// A failed flow, of this port of the client, that began then.
    fn failed(port: u16, seconds: u64) -> Judged {
        let mut verdict = fault();
        verdict.flow.client.set_port(port);
        (verdict.flow.started, verdict.time) = (after(seconds), after(seconds + 3));
        Judged::of(verdict)
    }

    fn answered(seconds: u64) -> Judged {
        let mut verdict = ok(1);
        (verdict.flow.started, verdict.service) = (after(seconds), fault().service);
        Judged { was_answered: true, ..Judged::of(verdict) }
    }

    /// The story of these flows, and its only chapter of the fixture's class.
    fn story(flows: &[Judged]) -> (Story, Chapter) {
        let mut story = Story::with_records();
        for judged in flows {
            story.count(judged);
        }
        let class = fault().class;
        let of_class: Vec<Chapter> =
            story.chapters().into_iter().filter(|it| it.verdict.class == class).cloned().collect();
        let [chapter] = of_class.as_slice() else { panic!("{of_class:#?}") };
        (story, chapter.clone())
    }

    #[test]
    fn a_connection_that_breaks_fails_when_it_breaks() {
        let broken = |port, broke| Judged { failed: after(broke), ..failed(port, 0) };
        let (story, chapter) = story(&[broken(1, 10_800), answered(3_600), broken(2, 10_860)]);
        assert_eq!((chapter.began(), chapter.last()), (after(10_800), after(10_860)));
        assert_eq!(chapter.bouts().map(|bout| bout.first).collect::<Vec<_>>(), [after(10_800)]);
        assert_eq!(story.ended(&chapter, after(20_000)), Ended::NoFlow, "the answer was before");
        let failing: Vec<_> = story
            .rate_of(fault().service.as_ref().unwrap())
            .unwrap()
            .spans()
            .filter(|(_, span)| span.failed > 0)
            .collect();
        assert!(failing.iter().all(|(time, _)| *time >= after(10_000)), "{failing:?}");
    }

    #[test]
    fn the_end_of_a_failure_claims_what_was_observed() {
        let end = |flows: &[Judged], end| {
            let (story, chapter) = story(flows);
            story.ended(&chapter, after(end))
        };
        let others = |seconds| {
            let mut judged = failed(9, seconds);
            judged.verdict.class = Class::C29;
            judged
        };
        assert_eq!(end(&[failed(1, 0), answered(40)], 50), Ended::Answered(after(40)));
        assert_eq!(end(&[failed(1, 0), answered(20)], 25), Ended::Open);
        assert_eq!(end(&[failed(1, 0), answered(20)], 1_800), Ended::Quiet(after(20)), "no traffic since");
        assert_eq!(end(&[failed(1, 0), answered(40), others(300)], 400), Ended::OthersFailed(after(40)));
        assert_eq!(end(&[failed(1, 0), others(10), answered(40)], 400), Ended::Answered(after(40)));
        assert_eq!(end(&[failed(1, 0)], 400), Ended::NoFlow);
        // A client's own abort of an answered connection shows that the Service answers.
        let mut aborted = answered(40);
        aborted.verdict.class = Class::N4;
        assert_eq!(end(&[failed(1, 0), aborted], 50), Ended::Answered(after(40)));
    }

    #[test]
    fn a_flow_with_a_later_verdict_is_taken_back() {
        let recovered = || {
            let mut judged = answered(0);
            judged.verdict.flow = failed(1, 0).verdict.flow;
            judged.verdict.flow.client_pod = Some("shop/patient".into());
            judged.before = Some(Arc::new(failed(1, 0).verdict.key()));
            // An hour-old connection that stalled and went on.
            judged.failed_before = Some(after(3_600));
            judged
        };
        let mut first = Judged { failed: after(3_600), ..failed(1, 0) };
        first.verdict.flow.client_pod = Some("shop/patient".into());
        let (story, chapter) = story(&[first, failed(2, 60), recovered()]);
        assert_eq!((chapter.flows, chapter.began(), chapter.last()), (1, after(60), after(60)));
        assert_eq!(chapter.bouts().count(), 1);
        assert_eq!(chapter.first().flow.client.port(), 2);
        assert_eq!(chapter.verdict.flow.client.port(), 2);
        assert!(!chapter.clients.by_count().iter().any(|(name, _)| *name == "shop/patient"));
        let rate = story.rate_of(fault().service.as_ref().unwrap()).unwrap();
        let counts: Vec<_> = rate.spans().map(|(_, span)| (span.failed, span.others)).collect();
        let total = counts.iter().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        assert_eq!(total, (1, 1), "{counts:?}");
    }

    /// More connections than the verdicts that are kept of the earliest ones stalled for a moment.
    #[test]
    fn the_beginning_is_that_of_the_failures_that_stand() {
        let stalled = |port: u16| Judged { failed: after(10_000 + u64::from(port)), ..failed(port, 0) };
        let recovered = |port: u16| {
            let mut judged = Judged { failed_before: Some(stalled(port).failed), ..answered(0) };
            judged.verdict.flow = stalled(port).verdict.flow;
            judged.before = Some(Arc::new(stalled(port).verdict.key()));
            judged
        };
        let mut flows: Vec<Judged> = (0..20).map(stalled).collect();
        flows.extend((0..8).map(recovered));
        flows.push(Judged { failed: after(13_600), ..failed(99, 13_600) });
        let (_, chapter) = story(&flows);
        assert_eq!((chapter.flows, chapter.began(), chapter.last()), (13, after(10_008), after(13_600)));
        assert_eq!(chapter.first().flow.client.port(), 8);
    }
}
