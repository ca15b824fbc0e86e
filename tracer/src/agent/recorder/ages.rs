//! How old stored segments are, without the wall clock: one that jumps ahead must not delete the last hours.
//!
//! Owns the rule. A segment ages by the monotonic clock from the moment at which this recorder first saw it closed. One that
//! an earlier run left has aged, before that, by the time that later segments of such runs recorded. Time in which no agent
//! ran is unknown, since only a wall clock measures it, and makes no segment older. Pure.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use super::Segment;

/// A segment is closed at its age; its last block can be written that much later.
const SLACK: Duration = Duration::from_mins(1);

/// The facts that give a segment's age.
#[derive(Clone, Copy, Debug)]
struct Known {
    /// When this recorder saw it first.
    since: Instant,
    /// Its age then, at least.
    before: Duration,
}

/// The ages of the segments in a folder, by name.
#[derive(Debug, Default)]
pub(super) struct Ages(HashMap<String, Known>);

impl Ages {
    /// Takes what the folder has now, the oldest first. `longest` is the age at which a segment is closed.
    pub(super) fn see(&mut self, segments: &[Segment], longest: Duration, at: Instant) {
        let mut before = Duration::ZERO;
        for segment in segments.iter().rev().filter(|segment| !segment.open) {
            if self.0.contains_key(&segment.name) {
                continue;
            }
            self.0.insert(segment.name.clone(), Known { since: at, before });
            before = before.saturating_add(recorded(segment, longest));
        }
        let names: HashSet<&str> = segments.iter().map(|segment| segment.name.as_str()).collect();
        self.0.retain(|name, _| names.contains(name.as_str()));
    }

    /// The age of a segment, at least; zero if it was never seen closed.
    pub(super) fn age(&self, segment: &Segment, at: Instant) -> Duration {
        let known = self.0.get(&segment.name);
        known.map_or(Duration::ZERO, |known| {
            known.before.saturating_add(at.saturating_duration_since(known.since))
        })
    }
}

/// How long a closed segment was written. Zero if its times cannot be: the wall clock was set meanwhile.
fn recorded(segment: &Segment, longest: Duration) -> Duration {
    let began = segment.began().unwrap_or(segment.modified);
    let span = segment.modified.since(began);
    if span > longest.saturating_add(SLACK) { Duration::ZERO } else { span }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    const HOUR: Duration = Duration::from_hours(1);

    fn segment(number: u64, began: &str, modified: &str) -> Segment {
        let modified = Timestamp::parse(&format!("{modified}:00.000000000Z")).unwrap();
        let began: String = began.chars().filter(|c| !matches!(c, '-' | ':')).collect();
        Segment { name: format!("{number:08}-{began}00000Z.viptrace"), bytes: 1, modified, open: false }
    }

    fn minutes(ages: &Ages, segments: &[Segment], at: Instant) -> Vec<u64> {
        segments.iter().map(|segment| ages.age(segment, at).as_secs() / 60).collect()
    }

    #[test]
    fn segments_of_earlier_runs_age_by_what_was_recorded_after_them() {
        let found = [
            segment(1, "2026-01-01T10:00", "2026-01-01T11:00"),
            // The agent did not run for a week.
            segment(2, "2026-01-08T10:00", "2026-01-08T11:00"),
            segment(3, "2026-01-08T11:00", "2026-01-08T11:30"),
        ];
        let (mut ages, start) = (Ages::default(), Instant::now());
        ages.see(&found, HOUR, start);
        assert_eq!(minutes(&ages, &found, start), [90, 30, 0]);
        let later = start + HOUR;
        ages.see(&found, HOUR, later);
        assert_eq!(minutes(&ages, &found, later), [150, 90, 60], "from then on by the monotonic clock");
    }

    #[test]
    fn a_clock_that_jumped_while_a_segment_was_written_makes_none_older() {
        let found = [
            segment(1, "2026-01-01T10:00", "2026-01-01T11:00"),
            segment(2, "2026-01-01T11:00", "2027-01-01T11:30"),
            segment(3, "2027-01-01T11:30", "2026-01-01T12:00"),
            segment(4, "2026-01-01T12:00", "2026-01-01T12:10"),
        ];
        let (mut ages, start) = (Ages::default(), Instant::now());
        ages.see(&found, HOUR, start);
        assert_eq!(minutes(&ages, &found, start), [10, 10, 10, 0]);
    }

    #[test]
    fn an_open_segment_and_one_that_is_gone_have_no_age() {
        let mut found = [
            segment(1, "2026-01-01T10:00", "2026-01-01T11:00"),
            Segment { open: true, ..segment(2, "2026-01-01T11:00", "2026-01-01T11:30") },
        ];
        let (mut ages, start) = (Ages::default(), Instant::now());
        ages.see(&found, HOUR, start);
        assert_eq!(minutes(&ages, &found, start + HOUR), [60, 0]);
        found[1].open = false;
        ages.see(&found[1..], HOUR, start + HOUR);
        assert_eq!(minutes(&ages, &found, start + 2 * HOUR), [0, 60]);
    }
}
