//! The timeline of changes for an export: each change once, in the order in which it was noted.

use super::Changes;
use crate::{text::clean, time::Timestamp, verdict::ChangeKind};

/// A change, apart from any flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedChange {
    pub(crate) time: Timestamp,
    /// The earliest time, if only an interval is known.
    pub(crate) after: Option<Timestamp>,
    pub(crate) kind: ChangeKind,
    /// As in a verdict: `Service NAMESPACE/NAME`, `this node` and so on.
    pub(crate) subject: String,
    pub(crate) text: String,
}

impl Changes {
    /// The changes that were noted after the one with this number, and the number of the last; 0 for all. Changes that the
    /// timeline forgot meanwhile are missing.
    pub(in crate::session) fn noted_after(&self, number: u64) -> (Vec<ListedChange>, u64) {
        if number == self.noted {
            return (Vec::new(), number);
        }
        // A recording's own timeline, which begins anew, replaces what was there.
        let number = if number > self.noted { 0 } else { number };
        let lines = self.shelves.iter().flat_map(|shelf| shelf.of.values().flatten());
        let mut found: Vec<_> = lines.filter(|(noted, _)| *noted > number).collect();
        found.sort_unstable_by_key(|(noted, _)| *noted);
        let listed = found.into_iter().map(|(_, change)| ListedChange {
            time: change.time,
            after: change.after,
            kind: change.kind,
            subject: clean(change.subject.to_string()),
            text: clean(change.text.to_string()),
        });
        (listed.collect(), self.noted)
    }
}
