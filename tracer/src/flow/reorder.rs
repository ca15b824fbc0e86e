//! A short buffer that sorts the sightings of several CPUs by time.
//!
//! The records of one CPU arrive in order, but one CPU's records may overtake another's. Held for a few milliseconds
//! and sorted, they leave in causal order (the kernel's monotonic clock is the same for all CPUs), so that later code
//! does not depend on the order of arrival.

use std::{collections::VecDeque, time::Duration};

use crate::{sighting::Sighting, time::Timestamp};

/// The maximum number of sightings held, whatever their times: a bound on memory (about 2 MiB) that 30 ms of a busy
/// node do not reach.
const CAPACITY: usize = 8192;

#[derive(Debug)]
pub(super) struct Reorder {
    window: Duration,
    /// Sorted by time; equal times in order of arrival. A decision that the kernel handed over late is older than the
    /// others and leaves at once.
    /// A sighting is large, so that each stays in its place from its decoding to its folding.
    held: VecDeque<Box<Sighting>>,
    /// The places of sightings that have left, for further ones.
    #[expect(clippy::vec_box, reason = "the places move between the two")]
    spare: Vec<Box<Sighting>>,
    /// The times of sightings that are left out, as if these were held; sorted.
    passed: VecDeque<Timestamp>,
    newest: Timestamp,
}

impl Reorder {
    pub(super) fn new(window: Duration) -> Self {
        Self {
            window,
            held: VecDeque::new(),
            spare: Vec::new(),
            passed: VecDeque::new(),
            newest: Timestamp::MIN,
        }
    }

    /// Takes the sighting that `fill` writes, and returns its time. Takes none if `fill` fails.
    pub(super) fn push_with<E>(
        &mut self,
        fill: impl FnOnce(&mut Sighting) -> Result<(), E>,
    ) -> Result<Timestamp, E> {
        let mut sighting = self.spare.pop().unwrap_or_else(|| Box::new(Sighting::blank()));
        if let Err(error) = fill(&mut sighting) {
            self.spare.push(sighting);
            return Err(error);
        }
        let time = sighting.time;
        self.newest = self.newest.max(time);
        if self.held.back().is_some_and(|last| last.time > time) {
            self.insert(sighting);
        } else {
            self.held.push_back(sighting);
        }
        Ok(time)
    }

    /// Takes a sighting that another CPU's overtook.
    #[inline(never)]
    fn insert(&mut self, sighting: Box<Sighting>) {
        let at = self.held.partition_point(|held| held.time <= sighting.time);
        self.held.insert(at, sighting);
    }

    /// As [`Self::push`] for a sighting that is left out.
    pub(super) fn pass(&mut self, time: Timestamp) {
        self.newest = self.newest.max(time);
        let at = self.passed.partition_point(|passed| *passed <= time);
        self.passed.insert(at, time);
    }

    /// The time of the next sighting, if it is left out and no other can overtake it.
    #[inline]
    pub(super) fn next_passed(&mut self) -> Option<Timestamp> {
        let next = *self.passed.front()?;
        let is_next = self.held.front().is_none_or(|held| next < held.time);
        let is_ready = next.saturating_add(self.window) <= self.newest || self.passed.len() > CAPACITY;
        if is_next && is_ready { self.passed.pop_front() } else { None }
    }

    /// Whether sightings wait.
    pub(super) fn is_holding(&self) -> bool {
        !self.held.is_empty() || !self.passed.is_empty()
    }

    /// Advances the time without a sighting.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.newest = self.newest.max(now);
    }

    /// The next sighting, if no other can overtake it. [`Self::reuse`] takes its place back.
    #[inline]
    pub(super) fn pop_ready(&mut self) -> Option<Box<Sighting>> {
        let is_full = self.held.len() > CAPACITY;
        let first = self.held.front()?;
        let is_ready = is_full || first.time.saturating_add(self.window) <= self.newest;
        if is_ready { self.held.pop_front() } else { None }
    }

    /// Takes the place of a sighting that was folded.
    pub(super) fn reuse(&mut self, sighting: Box<Sighting>) {
        self.spare.push(sighting);
    }

    /// After the last push: what is held is ready.
    pub(super) fn end(&mut self) {
        self.newest = Timestamp::MAX;
    }

    pub(super) fn next_deadline(&self) -> Option<Timestamp> {
        self.held.front().map(|first| first.time.saturating_add(self.window))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

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

    fn push(reorder: &mut Reorder, ms: u64) {
        let Ok(time) = reorder.push_with(|place| {
            *place = at(ms);
            Ok::<_, Infallible>(())
        });
        assert_eq!(time, at(ms).time);
    }

    fn pop(reorder: &mut Reorder) -> Option<Timestamp> {
        let sighting = reorder.pop_ready()?;
        let time = sighting.time;
        reorder.reuse(sighting);
        Some(time)
    }

    #[test]
    fn sightings_leave_in_the_order_of_time_once_the_window_has_passed() {
        let mut reorder = Reorder::new(Duration::from_millis(10));
        for ms in [5, 3, 9, 1] {
            push(&mut reorder, ms);
        }
        assert!(pop(&mut reorder).is_none());
        push(&mut reorder, 15);
        let out: Vec<_> =
            std::iter::from_fn(|| pop(&mut reorder)).map(|time| time.as_unix_ns() / 1_000_000).collect();
        assert_eq!(out, [1, 3, 5]);
        assert_eq!(reorder.next_deadline(), Some(Timestamp::from_unix_ns(19_000_000)));
    }

    #[test]
    fn a_sighting_that_cannot_be_written_leaves_nothing() {
        let mut reorder = Reorder::new(Duration::from_millis(10));
        push(&mut reorder, 1);
        let failed = reorder.push_with(|place| {
            *place = at(100);
            Err("unreadable")
        });
        assert_eq!(failed, Err("unreadable"));
        assert!(pop(&mut reorder).is_none(), "its time does not count");
        push(&mut reorder, 11);
        assert_eq!(pop(&mut reorder), Some(at(1).time));
        assert_eq!((reorder.held.len(), reorder.spare.len()), (1, 1));
    }

    #[test]
    fn memory_is_bounded_when_time_stands_still() {
        let mut reorder = Reorder::new(Duration::from_millis(10));
        let mut out = 0;
        for _ in 0..3 * CAPACITY {
            push(&mut reorder, 1);
            out += usize::from(pop(&mut reorder).is_some());
        }
        assert_eq!(out, 2 * CAPACITY);
        assert_eq!(reorder.held.len() + reorder.spare.len(), CAPACITY + 1);
    }
}
