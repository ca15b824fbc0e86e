//! The wall clock beside the clock of a trace.
//!
//! A trace lives on a clock that is never stepped. Owns the wall clock's distance from it as last measured, its steps,
//! and the conversion of the times in a verdict: they follow the wall clock as it is when the verdict is returned.

use std::time::Duration;

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
    /// The times of verdicts stay on the clock of the trace.
    is_ignored: bool,
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

    pub(super) const fn is_steady(&self) -> bool {
        self.ahead_ns == 0 || self.is_ignored
    }

    /// The distance now; `None` without a step.
    pub(super) const fn ahead_ns(&self) -> Option<i64> {
        if self.ahead_ns == 0 { None } else { Some(self.ahead_ns) }
    }

    /// A time of the trace as the wall clock counts it.
    pub(super) fn unix(&self, time: Timestamp) -> Timestamp {
        // The times of a trace's beginning and end stand for "before" and "after everything".
        if self.is_ignored || time == Timestamp::MIN || time == Timestamp::MAX {
            return time;
        }
        time.shifted(self.ahead_ns)
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
