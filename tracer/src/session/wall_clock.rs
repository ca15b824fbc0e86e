//! The wall clock beside the clock of a trace.
//!
//! A trace lives on a clock that is never stepped. Owns the wall clock's distance from it as last measured, its steps,
//! and the conversion of the times in a verdict: they follow the wall clock as it is when the verdict is returned.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{text, time::Timestamp, verdict::Verdict};

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

/// A step of this size in words, without the inaccuracy of its measurement.
pub(super) fn in_words(size_ns: i64) -> String {
    const UNIT_MS: u64 = 100;
    let direction = if size_ns < 0 { "back" } else { "forward" };
    let ms = (size_ns.unsigned_abs() / 1_000_000 + UNIT_MS / 2) / UNIT_MS * UNIT_MS;
    format!("the wall clock was set {direction} by {}", text::length(Duration::from_millis(ms)))
}

#[derive(Debug, Default)]
pub(super) struct WallClock {
    ahead_ns: i64,
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
        let size = ahead_ns.saturating_sub(self.ahead_ns);
        self.ahead_ns = ahead_ns;
        if self.steps.len() < MAX_STEPS {
            self.steps.push((at, size));
        } else {
            self.more += 1;
        }
    }

    pub(super) const fn is_steady(&self) -> bool {
        self.ahead_ns == 0
    }

    /// The distance now; `None` without a step.
    pub(super) const fn ahead_ns(&self) -> Option<i64> {
        if self.is_steady() { None } else { Some(self.ahead_ns) }
    }

    /// A time of the trace as the wall clock counts it.
    pub(super) fn unix(&self, time: Timestamp) -> Timestamp {
        // The times of a trace's beginning and end stand for "before" and "after everything".
        if time == Timestamp::MIN || time == Timestamp::MAX { time } else { time.shifted(self.ahead_ns) }
    }

    /// Converts the times in a verdict.
    pub(super) fn stamp(&self, verdict: &mut Verdict) {
        verdict.time = self.unix(verdict.time);
        verdict.flow.started = self.unix(verdict.flow.started);
        for piece in &mut verdict.evidence {
            piece.time = piece.time.map(|time| self.unix(time));
        }
        for change in &mut verdict.changes_around {
            change.time = self.unix(change.time);
            change.after = change.after.map(|time| self.unix(time));
        }
    }

    /// A line for each step.
    pub(super) fn lines(&self) -> impl Iterator<Item = String> {
        let step = |(at, size): &(Timestamp, i64)| {
            format!(
                "{} at {} of the trace's own clock: no verdict depends on it, and later times follow the new setting",
                in_words(*size),
                at.to_the_millisecond()
            )
        };
        let more = (self.more > 0).then(|| format!("the wall clock was set {} more times", self.more));
        self.steps.iter().map(step).chain(more)
    }
}
