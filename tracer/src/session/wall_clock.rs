//! The wall clock beside the clock of a trace.
//!
//! A trace lives on a clock that is never stepped. Owns the wall clock's distance from it as last measured, its steps,
//! and the conversion of the times that are shown: each is what the wall clock showed then.

use std::{collections::VecDeque, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{text, time::Timestamp};

/// A smaller change is the inaccuracy of two measurements.
const MIN_STEP_NS: u64 = 50_000_000;
/// The most steps listed; the others are counted.
const MAX_STEPS: usize = 16;

/// The distance from a time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WallStep {
    /// When it was measured, on the clock of the trace.
    pub at: Timestamp,
    /// By how many nanoseconds the wall clock is ahead of the clock of the trace.
    pub ahead_ns: i64,
}

/// The most distances kept.
const MAX_DISTANCES: usize = 1024;

/// The distance over time, as a recording notes it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct WallSteps {
    /// That before the first step.
    before_ns: i64,
    steps: VecDeque<WallStep>,
}

impl WallSteps {
    /// Without a step.
    pub(crate) fn constant(ahead_ns: i64) -> Self {
        Self { before_ns: ahead_ns, ..Self::default() }
    }

    /// Takes the next step in a recording that began at `began`: only one from its beginning says how far the wall clock was
    /// ahead before.
    pub(crate) fn note(&mut self, step: WallStep, began: Timestamp) {
        if step.at <= began {
            self.begin(step.ahead_ns);
        }
        self.add(step);
    }

    /// The distance at the beginning, if no step is known yet.
    fn begin(&mut self, ahead_ns: i64) {
        if self.steps.is_empty() {
            self.before_ns = ahead_ns;
        }
    }

    fn add(&mut self, step: WallStep) {
        // A later segment of a recording repeats the distance at its beginning.
        if self.steps.back().map_or(self.before_ns, |last| last.ahead_ns) == step.ahead_ns {
            return;
        }
        if self.steps.len() >= MAX_DISTANCES
            && let Some(oldest) = self.steps.pop_front()
        {
            self.before_ns = oldest.ahead_ns;
        }
        self.steps.push_back(step);
    }

    /// A time of the trace as the wall clock counted it then.
    pub(crate) fn unix(&self, time: Timestamp) -> Timestamp {
        if time == Timestamp::MIN || time == Timestamp::MAX {
            return time;
        }
        let last = self.steps.iter().rev().find(|step| step.at <= time);
        time.shifted(last.map_or(self.before_ns, |step| step.ahead_ns))
    }

    /// The latest time of the trace at which the wall clock showed this one. If it never did, because it was set forward
    /// past it, a time after that step.
    pub(crate) fn own(&self, unix: Timestamp) -> Timestamp {
        if unix == Timestamp::MIN || unix == Timestamp::MAX {
            return unix;
        }
        let own = |ahead_ns: i64| unix.shifted(ahead_ns.saturating_neg());
        let last = self.steps.iter().rev().find(|step| own(step.ahead_ns) >= step.at);
        own(last.map_or(self.before_ns, |step| step.ahead_ns))
    }

    /// How far times of the trace's clock are from those of the wall clock, in words; `None` if they are the same.
    pub(crate) fn difference(&self) -> Option<String> {
        if self.before_ns != 0 {
            let direction = if self.before_ns < 0 { "behind" } else { "ahead of" };
            let apart = apart(self.before_ns);
            return Some(format!(
                "the wall clock was {apart} {direction} that of the trace when the recording began: all times here are \
                 those of the trace's clock"
            ));
        }
        let step = self.steps.front()?;
        Some(format!(
            "{} at {}: all times here are those of the clock as it was set before",
            in_words(step.ahead_ns),
            step.at.to_the_millisecond()
        ))
    }

    fn is_zero(&self) -> bool {
        self.before_ns == 0 && self.steps.is_empty()
    }
}

/// The part of a trace in which its wall clock shows the times of a span. A clock that is set back shows times again, and
/// one that is set forward shows them early.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Showing {
    /// On the wall clock.
    from: Timestamp,
    to: Timestamp,
    /// On the clock of the trace, as far as the steps are known.
    first: Timestamp,
    last: Timestamp,
    /// The distance after the latest step, and when that was.
    ahead_ns: i64,
    since: Timestamp,
}

impl Showing {
    /// Of a span that does not end before it begins.
    pub(crate) const fn of(from: Timestamp, to: Timestamp) -> Self {
        Self { from, to, first: Timestamp::MAX, last: Timestamp::MIN, ahead_ns: 0, since: Timestamp::MIN }
    }

    /// The next step.
    pub(crate) fn step(&mut self, step: WallStep) {
        let at = step.at.max(self.since);
        self.pass(at);
        (self.ahead_ns, self.since) = (step.ahead_ns, at);
    }

    /// The first and the last time of the trace in which the wall clock shows a time of the span, if it shows one.
    pub(crate) fn on_trace_clock(mut self) -> (Timestamp, Timestamp) {
        self.pass(Timestamp::MAX);
        (self.first, self.last)
    }

    /// The distance lasts until before `until`.
    fn pass(&mut self, until: Timestamp) {
        let own = |time: Timestamp| match time {
            Timestamp::MIN | Timestamp::MAX => time,
            _ => time.shifted(self.ahead_ns.saturating_neg()),
        };
        let (from, to) = (own(self.from), own(self.to));
        if from.max(self.since) < until && self.since <= to {
            self.first = self.first.min(from.max(self.since));
            self.last = self.last.max(to.min(until));
        }
    }
}

/// A step of this size in words, without the inaccuracy of its measurement.
pub(super) fn in_words(size_ns: i64) -> String {
    let direction = if size_ns < 0 { "back" } else { "forward" };
    format!("the wall clock was set {direction} by {}", apart(size_ns))
}

fn apart(ns: i64) -> impl std::fmt::Display {
    const UNIT_MS: u64 = 100;
    let ms = (ns.unsigned_abs() / 1_000_000 + UNIT_MS / 2) / UNIT_MS * UNIT_MS;
    text::length(Duration::from_millis(ms))
}

#[derive(Debug, Default)]
pub(super) struct WallClock {
    ahead_ns: i64,
    /// All times stay on the clock of the trace.
    is_ignored: bool,
    distances: WallSteps,
    /// Each step with its size in nanoseconds.
    steps: Vec<(Timestamp, i64)>,
    more: u64,
}

impl WallClock {
    /// Whether the distance differs from the last one by more than inaccuracy.
    pub(super) fn is_step(&self, ahead_ns: i64) -> bool {
        ahead_ns.abs_diff(self.ahead_ns) >= MIN_STEP_NS
    }

    pub(super) fn set(&mut self, WallStep { at, ahead_ns }: WallStep) {
        self.distances.add(WallStep { at, ahead_ns });
        let size = ahead_ns.saturating_sub(self.ahead_ns);
        self.ahead_ns = ahead_ns;
        // A later segment of a recording repeats the distance at its beginning.
        if size == 0 {
            return;
        }
        if self.steps.len() < MAX_STEPS {
            self.steps.push((at, size));
        } else {
            self.more += 1;
        }
    }

    /// From now on no time follows the wall clock.
    pub(super) const fn ignore(&mut self) {
        self.is_ignored = true;
    }

    /// Whether all times are shown as they are.
    pub(super) fn is_steady(&self) -> bool {
        self.is_ignored || self.distances.is_zero()
    }

    /// The distance now; `None` without a step.
    pub(super) const fn ahead_ns(&self) -> Option<i64> {
        if self.ahead_ns == 0 { None } else { Some(self.ahead_ns) }
    }

    /// A recording begins with these distances.
    pub(super) fn begin(&mut self, mut distances: WallSteps) {
        distances.steps.truncate(MAX_DISTANCES);
        if self.distances.steps.is_empty() {
            self.distances = distances;
        }
    }

    pub(super) const fn distances(&self) -> &WallSteps {
        &self.distances
    }

    /// A time of the trace as the wall clock counted it then.
    pub(super) fn unix_then(&self, time: Timestamp) -> Timestamp {
        if self.is_ignored { time } else { self.distances.unix(time) }
    }

    /// The reverse of [`Self::unix_then`].
    pub(super) fn own(&self, unix: Timestamp) -> Timestamp {
        if self.is_ignored { unix } else { self.distances.own(unix) }
    }

    /// A line for each step.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let shown = if self.is_ignored {
            "the times are those of the clock as it was set before"
        } else {
            "each time is the one that the clock showed then"
        };
        let step = move |(at, size): &(Timestamp, i64)| {
            format!(
                "{} at {} of the trace's own clock: no verdict depends on it, and {shown}",
                in_words(*size),
                at.to_the_millisecond()
            )
        };
        let more = (self.more > 0).then(|| format!("the wall clock was set {} more times", self.more));
        self.steps.iter().map(step).chain(more)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_time_outside_is_shown_in_the_span(
            steps in prop::collection::vec((100..200_u64, -50..50_i64), 0..5),
            from in 60..240_u64,
            length in 0..60_u64,
        ) {
            let at = Timestamp::from_unix_secs;
            let mut steps: Vec<_> = steps
                .into_iter()
                .map(|(second, ahead)| WallStep { at: at(second), ahead_ns: ahead * 1_000_000_000 })
                .collect();
            steps.sort_by_key(|step| step.at);
            let mut showing = Showing::of(at(from), at(from + length));
            let mut distances = WallSteps::default();
            for step in steps {
                showing.step(step);
                distances.add(step);
            }
            let (first, last) = showing.on_trace_clock();
            let is_shown = |second: &u64| (at(from)..=at(from + length)).contains(&distances.unix(at(*second)));
            let shown: Vec<u64> = (0..400).filter(is_shown).collect();
            prop_assert!(shown.iter().all(|second| first <= at(*second) && at(*second) <= last));
            if let [earliest, .., latest] = shown.as_slice() {
                prop_assert_eq!(first, at(*earliest));
                // A step ends the time before it.
                prop_assert!(last <= at(latest + 1));
            }
        }
    }

    #[test]
    fn a_span_without_bounds_has_none_on_the_clock_of_the_trace() {
        let mut showing = Showing::of(Timestamp::MIN, Timestamp::MAX);
        showing.step(WallStep { at: Timestamp::from_unix_secs(9), ahead_ns: -5_000_000_000 });
        assert_eq!(showing.on_trace_clock(), (Timestamp::MIN, Timestamp::MAX));
    }

    #[test]
    fn each_time_has_the_distance_of_then() {
        let at = Timestamp::from_unix_secs;
        let mut steps = WallSteps::default();
        steps.begin(-1_000_000_000);
        for (second, ahead_secs) in [(100, 20), (100, 20), (200, 5)] {
            steps.add(WallStep { at: at(second), ahead_ns: ahead_secs * 1_000_000_000 });
        }
        steps.begin(7);
        for (second, wall) in [(50, 49), (99, 98), (100, 120), (199, 219), (200, 205), (900, 905)] {
            assert_eq!(steps.unix(at(second)), at(wall), "{second}");
        }
        // It showed 219 twice, and never 110.
        for (wall, second) in [(49, 50), (98, 99), (120, 100), (219, 214), (905, 900), (110, 111)] {
            assert_eq!(steps.own(at(wall)), at(second), "{wall}");
        }
        assert_eq!(
            (steps.unix(Timestamp::MIN), steps.unix(Timestamp::MAX)),
            (Timestamp::MIN, Timestamp::MAX)
        );
        for second in 1000..5000 {
            steps.add(WallStep { at: at(second), ahead_ns: second.cast_signed() });
        }
        assert_eq!(steps.steps.len(), MAX_DISTANCES);
        assert_eq!(steps.unix(at(4999)), at(4999).shifted(4999));
    }
}
