//! The timeline of changes for an export: each change once, in the order in which it was noted.

use std::{
    collections::{HashSet, VecDeque},
    hash::{BuildHasher as _, RandomState},
};

use super::Changes;
use crate::{session::Pipeline, text::clean, time::Timestamp, verdict::ChangeKind};

/// The most changes by which a repetition is found: several times what a timeline keeps.
const MAX_SEEN: usize = 16_384;

/// A change, apart from any flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ListedChange {
    pub(crate) time: Timestamp,
    /// The earliest time, if only an interval is known.
    pub(crate) after: Option<Timestamp>,
    pub(crate) kind: ChangeKind,
    /// As in a verdict: `Service NAMESPACE/NAME`, `this node` and so on.
    pub(crate) subject: String,
    pub(crate) text: String,
    /// As in a verdict.
    pub(crate) resource_version: Option<u64>,
}

/// Lists the changes of one trace. Each segment of its recording begins with those of the hour before: they are listed once.
#[derive(Debug, Default)]
pub(crate) struct ChangeLister {
    /// How often the timeline was replaced by that of a segment, and the number of the last change that was listed.
    restored: u64,
    number: u64,
    /// The hashes of the latest changes that were listed, also in their order.
    key: RandomState,
    seen: HashSet<u64>,
    order: VecDeque<u64>,
}

impl ChangeLister {
    /// The changes since the last call. Those that the timeline forgot meanwhile are missing. Times are those of the wall
    /// clock, unless the trace stays on its own.
    pub(crate) fn list(&mut self, pipeline: &Pipeline) -> Vec<ListedChange> {
        let mut found = self.new_in(&pipeline.changes);
        for change in &mut found {
            change.time = pipeline.wall_clock.unix_then(change.time);
            change.after = change.after.map(|after| pipeline.wall_clock.unix_then(after));
        }
        found
    }

    /// The changes since the last call, on the clock of the trace.
    pub(super) fn new_in(&mut self, changes: &Changes) -> Vec<ListedChange> {
        if self.restored != changes.restored {
            (self.restored, self.number) = (changes.restored, 0);
        }
        let mut found = changes.noted_after(self.number);
        self.number = changes.noted;
        found.retain(|change| self.is_new(change));
        found
    }

    fn is_new(&mut self, change: &ListedChange) -> bool {
        let hash = self.key.hash_one(change);
        if !self.seen.insert(hash) {
            return false;
        }
        self.order.push_back(hash);
        if self.order.len() > MAX_SEEN
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }
}

impl Changes {
    /// The changes that were noted after the one with this number; 0 for all.
    fn noted_after(&self, number: u64) -> Vec<ListedChange> {
        if number == self.noted {
            return Vec::new();
        }
        let lines = self.shelves.iter().flat_map(|shelf| shelf.of.values().flatten());
        let mut found: Vec<_> = lines.filter(|(noted, _)| *noted > number).collect();
        found.sort_unstable_by_key(|(noted, _)| *noted);
        let listed = found.into_iter().map(|(_, change)| ListedChange {
            time: change.time,
            after: change.after,
            kind: change.kind,
            subject: clean(change.subject.to_string()),
            text: clean(change.text.to_string()),
            resource_version: change.version,
        });
        listed.collect()
    }
}
