//! Flows of one cause that share the words of one verdict: each is judged, and the record of one in a second is written.
//!
//! Owns which flows have one cause, and how long its words stay fresh. To write a record costs four times as much as to judge
//! the flow, and a line that flows share shows the words of one of them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use foldhash::fast::RandomState;

use super::folded::{Folded, Tally};
use crate::{
    cluster::History,
    diagnosis::{self, Outline},
    flow::Flow,
    time::Timestamp,
    verdict::{Verdict, VerdictKey},
};

/// The most causes whose words are kept; beyond it all are dropped, and new flows have words again.
const MAX_CAUSES: usize = 4096;
/// How much later than the verdict's own flow, or earlier, another may end that shares it: one that waited comes after younger ones.
const FRESH: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Cause {
    tally: Tally,
    key: Arc<VerdictKey>,
    /// When the verdict's own flow ended.
    time: Timestamp,
}

/// The verdicts that flows can share, and the flows counted since they were last taken.
#[derive(Debug, Default)]
pub(super) struct CauseFolds {
    known: HashMap<Outline, usize, RandomState>,
    causes: Vec<Cause>,
    /// Those with a count to report.
    counted: Vec<usize>,
    /// The counts of dropped verdicts.
    retired: Vec<Folded>,
    /// The number of flows counted since they were last taken.
    len: usize,
}

impl CauseFolds {
    /// Counts the flow if a fresh verdict with this outline is known, and returns the key. The flow must not have been
    /// judged before.
    pub(super) fn fold(
        &mut self,
        flow: &Flow,
        outline: &Outline,
        history: &History,
    ) -> Option<&Arc<VerdictKey>> {
        let index = *self.known.get(outline)?;
        let cause = self.causes.get_mut(index)?;
        let time = diagnosis::verdict_time(flow);
        if time.since(cause.time).max(cause.time.since(time)) > FRESH {
            return None;
        }
        self.len += 1;
        if cause.tally.add(flow, history) {
            self.counted.push(index);
        }
        Some(&cause.key)
    }

    /// Keeps the verdict for later flows.
    pub(super) fn keep(&mut self, outline: Outline, verdict: &Verdict) {
        let key = Arc::new(outline.key.clone());
        let cause = Cause { tally: Tally::new(Arc::new(verdict.clone())), key, time: verdict.time };
        if let Some(known) = self.known.get(&outline).and_then(|index| self.causes.get_mut(*index)) {
            self.retired.extend(known.tally.take());
            *known = cause;
            return;
        }
        if self.causes.len() >= MAX_CAUSES {
            self.retire_all();
            self.known.clear();
            self.causes.clear();
        }
        self.known.insert(outline, self.causes.len());
        self.causes.push(cause);
    }

    /// The flows counted since the last call.
    pub(super) fn take(&mut self) -> Vec<Folded> {
        self.retire_all();
        self.len = 0;
        std::mem::take(&mut self.retired)
    }

    /// The number of flows that [`Self::take`] will return.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    fn retire_all(&mut self) {
        for index in self.counted.drain(..) {
            self.retired.extend(self.causes.get_mut(index).and_then(|cause| cause.tally.take()));
        }
    }
}
