//! The versions of one object, each with the time at which it came into force.
//!
//! Owns the order of versions and their removal. Must not know kinds, indexes or clocks.

use std::{sync::Arc, time::Duration};

use crate::{cluster::Few, time::Timestamp};

/// The maximum number of versions of one object; the oldest ones are removed and counted. Bounds the memory of an
/// object that flaps.
pub(super) const MAX_VERSIONS: usize = 256;

#[derive(Clone, Debug)]
pub(super) struct Version<T> {
    pub(super) from: Timestamp,
    /// `None`: deleted.
    pub(super) value: Option<Arc<T>>,
}

/// The state at a moment.
#[derive(Clone, Debug)]
pub(super) enum At<'a, T> {
    /// In force.
    In(&'a Arc<T>),
    /// The moment is before the first known version of an object that existed: its earliest version, which may not have
    /// been in force.
    Assumed(&'a Arc<T>),
    /// Deleted before that moment.
    Gone,
    /// Not yet created.
    NotYet,
}

impl<'a, T> At<'a, T> {
    /// The version in force, or the assumed one.
    pub(super) fn value(&self) -> Option<&'a Arc<T>> {
        match *self {
            Self::In(value) | Self::Assumed(value) => Some(value),
            Self::Gone | Self::NotYet => None,
        }
    }
}

/// A version with its period.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<'a, T> {
    /// The first version extends back to the object's creation, because earlier versions are unknown.
    pub(super) from: Timestamp,
    /// The time from which the version is known to have been in force.
    pub(super) known_from: Timestamp,
    /// `None`: it is still in force.
    pub(super) to: Option<Timestamp>,
    /// `None`: deleted.
    pub(super) value: Option<&'a Arc<T>>,
}

/// One object's history, oldest version first; never empty.
#[derive(Clone, Debug)]
pub(super) struct Timeline<T> {
    created: Option<Timestamp>,
    pub(super) versions: Few<Version<T>>,
}

impl<T> Timeline<T> {
    pub(super) const fn created(&self) -> Option<Timestamp> {
        self.created
    }

    /// From stored versions, which may be too many or out of order; `None` if there are none.
    pub(super) fn restore(
        created: Option<Timestamp>,
        mut stored: Vec<(Timestamp, Option<Arc<T>>)>,
    ) -> Option<Self> {
        stored.drain(..stored.len().saturating_sub(MAX_VERSIONS));
        let mut latest = Timestamp::MIN;
        let versions = stored.into_iter().map(|(from, value)| {
            latest = latest.max(from);
            Version { from: latest, value }
        });
        let versions: Vec<_> = versions.collect();
        (!versions.is_empty()).then_some(Self { created, versions: versions.into() })
    }
}

impl<T: PartialEq> Timeline<T> {
    pub(super) fn new(created: Option<Timestamp>, from: Timestamp, value: Arc<T>) -> Self {
        // An object cannot be in force before its creation; a clock ahead of ours is corrected.
        let from = created.filter(|created| *created > from && from == Timestamp::MIN).unwrap_or(from);
        Self { created, versions: vec![Version { from, value: Some(value) }].into() }
    }

    /// Adds a version. Returns whether it differs from the last one, and the number of old versions removed for it.
    /// Time never decreases within a timeline: an earlier `from` counts as the last version's.
    pub(super) fn push(&mut self, from: Timestamp, value: Option<Arc<T>>) -> (bool, usize) {
        let Some(last) = self.versions.last() else { return (false, 0) };
        if last.value == value {
            return (false, 0);
        }
        let from = from.max(last.from);
        self.versions.push(Version { from, value });
        let surplus = self.versions.len().saturating_sub(MAX_VERSIONS);
        self.versions.drop_first(surplus);
        (true, surplus)
    }

    pub(super) fn at(&self, at: Timestamp) -> At<'_, T> {
        let after = self.versions.partition_point(|version| version.from <= at);
        let Some(index) = after.checked_sub(1) else {
            let before_creation = self.created.is_some_and(|created| at < created);
            return match self.versions.first().and_then(|version| version.value.as_ref()) {
                Some(value) if !before_creation => At::Assumed(value),
                _ => At::NotYet,
            };
        };
        match self.versions.get(index) {
            Some(Version { value: Some(value), .. }) => At::In(value),
            Some(Version { value: None, .. }) => At::Gone,
            None => At::NotYet,
        }
    }

    /// Whether the version in force at `from` is known to be in force at `to` too.
    pub(super) fn is_constant(&self, from: Timestamp, to: Timestamp) -> bool {
        let after = self.versions.partition_point(|version| version.from <= to);
        let last = after.checked_sub(1).and_then(|last| self.versions.get(last));
        last.is_some_and(|last| last.from <= from)
    }

    /// The newest version; `None` if the object is deleted.
    pub(super) fn newest(&self) -> Option<&Arc<T>> {
        self.versions.last().and_then(|version| version.value.as_ref())
    }

    /// The end of the time in which the object existed unobserved: the first known version, unless the object was
    /// created with it.
    pub(super) fn unknown_until(&self) -> Timestamp {
        let first = self.versions.first().map_or(Timestamp::MIN, |version| version.from);
        if self.created.is_some_and(|created| created >= first) { Timestamp::MIN } else { first }
    }

    pub(super) fn spans(&self) -> impl Iterator<Item = Span<'_, T>> {
        self.versions.iter().enumerate().map(|(index, version)| {
            let from = match index {
                0 => self.created.unwrap_or(Timestamp::MIN).min(version.from),
                _ => version.from,
            };
            let to = self.versions.get(index + 1).map(|next| next.from);
            Span { from, known_from: version.from, to, value: version.value.as_ref() }
        })
    }

    /// Removes versions that were superseded before `horizon`. Returns their number, and whether the timeline is empty:
    /// the object was deleted before the horizon.
    pub(super) fn prune(&mut self, horizon: Timestamp) -> (usize, bool) {
        let in_force = self.versions.partition_point(|version| version.from <= horizon).saturating_sub(1);
        self.versions.drop_first(in_force);
        let over = matches!(&*self.versions, [Version { value: None, from }] if *from <= horizon);
        (in_force, over)
    }
}

/// The moment before which no version is kept.
pub(super) fn horizon(now: Timestamp, look_back: Duration) -> Timestamp {
    now.saturating_sub(look_back)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_unix_secs(secs)
    }

    #[test]
    fn a_version_is_in_force_from_its_time_until_the_next() {
        let mut line = Timeline::new(Some(at(5)), at(10), Arc::new("a"));
        assert_eq!(line.push(at(20), Some(Arc::new("b"))), (true, 0));
        assert_eq!(line.push(at(25), Some(Arc::new("b"))), (false, 0), "an equal version is not added");
        line.push(at(30), None);
        assert!(matches!(line.at(at(4)), At::NotYet));
        assert!(matches!(line.at(at(7)), At::Assumed(v) if **v == "a"));
        assert!(matches!(line.at(at(19)), At::In(v) if **v == "a"));
        assert!(matches!(line.at(at(20)), At::In(v) if **v == "b"));
        assert!(matches!(line.at(at(31)), At::Gone));
    }

    #[test]
    fn a_version_is_constant_between_two_changes() {
        let mut line = Timeline::new(Some(at(5)), at(10), Arc::new("a"));
        line.push(at(20), None);
        for (from, to, is_constant) in
            [(10, 19, true), (10, 20, false), (19, 25, false), (20, 25, true), (3, 7, false), (7, 10, false)]
        {
            assert_eq!(line.is_constant(at(from), at(to)), is_constant, "{from} to {to}");
        }
    }

    #[test]
    fn time_never_decreases() {
        let mut line = Timeline::new(None, at(10), Arc::new(1));
        line.push(at(3), Some(Arc::new(2)));
        assert_eq!(line.versions[1].from, at(10));
    }

    #[test]
    fn pruning_keeps_what_was_in_force_at_the_horizon() {
        let mut line = Timeline::new(None, Timestamp::MIN, Arc::new(0));
        for n in 1..=9_u64 {
            line.push(at(n * 10), Some(Arc::new(n)));
        }
        assert_eq!(line.prune(at(45)), (4, false));
        assert!(matches!(line.at(at(45)), At::In(v) if **v == 4));
        line.push(at(100), None);
        assert_eq!(line.prune(at(99)), (5, false));
        assert_eq!(line.prune(at(100)), (1, true));
    }

    #[test]
    fn a_flapping_object_stays_bounded() {
        let mut line = Timeline::new(None, Timestamp::MIN, Arc::new(0));
        let forgotten: usize = (1..1000_u64).map(|n| line.push(at(n), Some(Arc::new(n))).1).sum();
        assert_eq!((line.versions.len(), forgotten), (MAX_VERSIONS, 1000 - MAX_VERSIONS));
    }
}
