//! A short buffer that sorts the sightings of several CPUs by time.
//!
//! The records of one CPU arrive in order, but one CPU's records may overtake another's. Held for a few milliseconds
//! and sorted, they leave in causal order (the kernel's monotonic clock is the same for all CPUs), so that later code
//! does not depend on the order of arrival.

use std::{collections::VecDeque, time::Duration};

use crate::{
    sighting::{Hook, Sighting},
    time::Timestamp,
};

/// The maximum number of sightings held, whatever their times: a bound on memory (about 2 MiB) that 30 ms of a busy
/// node do not reach.
const CAPACITY: usize = 8192;

/// A sighting that is older than this when the next one arrives was handed over late. Less than any flow waits.
const HANDED_OVER_LATE: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Reorder {
    window: Duration,
    /// Sorted by time; equal times in order of arrival.
    held: VecDeque<Held>,
    /// Sightings from before the window, until the next one shows how late they are.
    late: Vec<Sighting>,
    /// The time of the last sighting, if it is a decision.
    last: Option<Timestamp>,
    newest: Timestamp,
}

#[derive(Debug)]
struct Held {
    sighting: Sighting,
    /// When it was handed over, if that was long after its time: the kernel keeps NAT's decisions until a failure meets
    /// their flow. The failure behind it shows it.
    arrival: Option<Timestamp>,
}

impl Reorder {
    pub(super) fn new(window: Duration) -> Self {
        Self { window, held: VecDeque::new(), late: Vec::new(), last: None, newest: Timestamp::MIN }
    }

    pub(super) fn push(&mut self, sighting: Sighting) {
        if sighting.time.saturating_add(self.window) < self.newest && self.late.len() < CAPACITY {
            self.late.push(sighting);
            return;
        }
        let time = sighting.time;
        self.newest = self.newest.max(time);
        self.release_late();
        let is_decision = sighting.hook == Hook::Confirm;
        // An entry that was read again on request is no failure.
        let is_failure = !is_decision && sighting.hook != Hook::EntryReread;
        let last = std::mem::replace(&mut self.last, is_decision.then_some(time));
        let is_late = |last: &Timestamp| last.saturating_add(HANDED_OVER_LATE) < time;
        if let Some(last) = last.filter(|last| is_failure && is_late(last)) {
            let before = self.held.partition_point(|held| held.sighting.time < last);
            if let Some(held) = self.held.get_mut(before).filter(|held| held.sighting.time == last) {
                held.arrival = Some(time);
            }
        }
        self.insert(Held { sighting, arrival: None });
    }

    fn release_late(&mut self) {
        for sighting in std::mem::take(&mut self.late) {
            let is_late = sighting.hook == Hook::Confirm
                && sighting.time.saturating_add(HANDED_OVER_LATE) < self.newest;
            self.insert(Held { arrival: is_late.then_some(self.newest), sighting });
        }
    }

    fn insert(&mut self, new: Held) {
        match self.held.back() {
            Some(last) if last.sighting.time > new.sighting.time => {
                let at = self.held.partition_point(|held| held.sighting.time <= new.sighting.time);
                self.held.insert(at, new);
            }
            _ => self.held.push_back(new),
        }
    }

    /// Advances the time without a sighting.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.newest = self.newest.max(now);
        self.release_late();
    }

    /// The next sighting that no other can overtake, and its arrival, if it was handed over late.
    pub(super) fn pop(&mut self) -> Option<(Sighting, Option<Timestamp>)> {
        let first = &self.held.front()?.sighting;
        if self.held.len() > CAPACITY || first.time.saturating_add(self.window) <= self.newest {
            return self.pop_front();
        }
        None
    }

    /// The next sighting, ready or not, after the last push.
    pub(super) fn pop_any(&mut self) -> Option<(Sighting, Option<Timestamp>)> {
        self.release_late();
        self.pop_front()
    }

    fn pop_front(&mut self) -> Option<(Sighting, Option<Timestamp>)> {
        self.held.pop_front().map(|held| (held.sighting, held.arrival))
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        let first = self.held.front().map(|first| first.sighting.time.saturating_add(self.window));
        if self.late.is_empty() { first } else { Some(self.newest) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        net::Netns,
        sighting::{Fact, Hook},
    };

    fn at(ms: u64) -> Sighting {
        Sighting {
            time: Timestamp::from_unix_ns(ms * 1_000_000),
            cpu: 0,
            hook: Hook::EarlyDrop,
            netns: Netns(1),
            fact: Fact::TableFull { freed: true },
        }
    }

    #[test]
    fn sightings_leave_in_the_order_of_time_once_the_window_has_passed() {
        let mut reorder = Reorder::new(Duration::from_millis(10));
        for ms in [5, 3, 9, 1] {
            reorder.push(at(ms));
        }
        assert!(reorder.pop().is_none());
        reorder.push(at(15));
        let out: Vec<_> =
            std::iter::from_fn(|| reorder.pop()).map(|(s, _)| s.time.as_unix_ns() / 1_000_000).collect();
        assert_eq!(out, [1, 3, 5]);
        assert_eq!(reorder.next_deadline(), Some(Timestamp::from_unix_ns(19_000_000)));
    }

    #[test]
    fn a_sighting_from_before_the_window_waits_for_the_next_one() {
        let mut reorder = Reorder::new(Duration::from_millis(10));
        reorder.advance(at(1_000).time);
        reorder.push(Sighting { hook: Hook::Confirm, ..at(5) });
        assert!(reorder.pop().is_none());
        assert_eq!(reorder.next_deadline(), Some(at(1_000).time));
        reorder.push(at(9_000));
        let times = |(sighting, arrival): (Sighting, Option<Timestamp>)| (sighting.time, arrival);
        assert_eq!(reorder.pop().map(times), Some((at(5).time, Some(at(9_000).time))));
        assert!(reorder.pop().is_none());
        reorder.push(at(8_500));
        assert_eq!(reorder.pop_any().map(times), Some((at(8_500).time, None)));
    }

    #[test]
    fn a_decision_is_late_if_the_failure_behind_it_is_much_newer() {
        let mut reorder = Reorder::new(Duration::from_millis(10));
        reorder.push(Sighting { hook: Hook::Confirm, ..at(5_000) });
        reorder.push(at(20_000));
        assert_eq!(reorder.pop().map(|(_, arrival)| arrival), Some(Some(at(20_000).time)));
        // The time alone shows nothing, nor do decisions in a row: the reader may have been slow.
        reorder.push(Sighting { hook: Hook::Confirm, ..at(25_000) });
        reorder.push(Sighting { hook: Hook::Confirm, ..at(30_000) });
        reorder.advance(at(40_000).time);
        let rest: Vec<_> = std::iter::from_fn(|| reorder.pop()).map(|(_, arrival)| arrival).collect();
        assert_eq!(rest, [None, None, None]);
    }

    #[test]
    fn memory_is_bounded_when_time_stands_still() {
        let mut reorder = Reorder::new(Duration::from_millis(10));
        let mut out = 0;
        for _ in 0..3 * CAPACITY {
            reorder.push(at(1));
            out += usize::from(reorder.pop().is_some());
        }
        assert_eq!(out, 2 * CAPACITY);
    }
}
