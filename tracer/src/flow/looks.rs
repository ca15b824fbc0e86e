//! Flows without a sign of an answer: which entries are to be read again, and what they say.
//!
//! Owns the questions and the folding of the answers; who can read the kernel's memory asks them. No hook tells that a
//! datagram was answered, but `IPS_SEEN_REPLY` in its conntrack entry does.

use super::{Ended, FlowTable, LookAt, Outcome, fold::Place, key::Key, slots::Queue};
use crate::{
    sighting::{Conntrack, EntryNote, Status},
    time::Timestamp,
};

/// Entries asked about at once; flows beyond it wait in vain.
const MAX_LOOKS: usize = 4096;

impl FlowTable {
    /// The entries to be read again, by their kernel addresses, to be asked for after each [`advance`](Self::advance).
    /// What they are is to be [observed](Self::observe) as sightings of [`Hook::Look`](crate::sighting::Hook::Look),
    /// read within [`Limits::look_wait`](super::Limits::look_wait) of that.
    pub fn take_looks(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.looks)
    }

    /// The same for all flows that [`finish`](Self::finish) would hand out without a sign of an answer.
    pub fn last_looks(&mut self) -> Vec<u64> {
        let mut looks = self.take_looks();
        for index in self.slots.indices() {
            if let Some(entry) = self.entry_to_look_at(index) {
                looks.push(entry);
            }
        }
        looks.sort_unstable();
        looks.dedup();
        looks
    }

    /// Whether the flow's entry is read again before the flow is handed out: then it waits for that.
    pub(super) fn wants_look(&mut self, index: u32) -> bool {
        let Some(entry) = self.entry_to_look_at(index) else { return false };
        // Where nobody takes the questions, as in a replay, the flows wait the same.
        if self.looks.len() < MAX_LOOKS {
            self.looks.push(entry);
        }
        // Nobody asks before all that was seen is folded, however much that is: the wait begins then.
        self.slots.enqueue(index, Queue::Looking, Timestamp::MAX);
        self.asking.push(index);
        true
    }

    /// The questions are about to be taken: from now on the flows wait for the answers.
    pub(super) fn begin_looking(&mut self) {
        let deadline = self.clock.saturating_add(self.limits.look_wait);
        for index in std::mem::take(&mut self.asking) {
            if self.slots.queue_of(index) == Some(Queue::Looking) {
                self.slots.enqueue(index, Queue::Looking, deadline);
            }
        }
    }

    fn entry_to_look_at(&self, index: u32) -> Option<u64> {
        let flow = self.slots.get(index)?;
        let asks = match self.limits.look {
            LookAt::Nothing => false,
            LookAt::Datagrams => !flow.is_tcp(),
            LookAt::All => !flow.client.is_seen() && !flow.server.is_seen(),
        };
        let knows = flow.handed.is_some() || flow.deleted.is_some() || flow.looked.is_some();
        if !asks || knows || flow.outcome() != Outcome::Pending {
            return None;
        }
        let decision = flow.decision(None)?;
        (decision.confirmed.is_some() && decision.ct.id != 0).then_some(decision.ct.id)
    }

    /// What an entry is by now. Of another entry at the same address, and of a flow that is no more, it tells nothing.
    pub(super) fn fold_look(&mut self, ct: Conntrack, note: EntryNote, place: Place) -> Option<u32> {
        if ct.id == 0 {
            return self.fold_listed(ct, note, place);
        }
        let index = self.index.get(&Key::new(&ct.orig, place.netns)).copied()?;
        let flow = self.slots.get_mut(index)?;
        let same = flow.decisions.iter().any(|known| known.ct.id == ct.id && is_same(&known.ct, &ct));
        if !same || !ct.status.has(Status::CONFIRMED) {
            return None;
        }
        flow.looked = Some(Ended { time: place.time, status: ct.status, deleted_by: None });
        if self.slots.queue_of(index) == Some(Queue::Looking) {
            self.settle_now(index, place.time);
        }
        Some(index)
    }

    /// An entry that was listed, not met: it may be older than the trace. Its flow is handed out (again), for whoever
    /// had it listed wants to know.
    fn fold_listed(&mut self, ct: Conntrack, note: EntryNote, place: Place) -> Option<u32> {
        let known = self.index.get(&Key::new(&ct.orig, place.netns)).copied().filter(|index| {
            self.slots.get(*index).is_some_and(|flow| {
                flow.orig == ct.orig && flow.decisions.iter().any(|known| is_same(&known.ct, &ct))
            })
        });
        let index = known.unwrap_or_else(|| self.begin(ct.orig, place, true));
        let flow = self.slots.get_mut(index)?;
        flow.touch(place.time);
        if flow.decisions.is_empty() {
            flow.fold_decision(ct, place);
        }
        flow.looked = Some(Ended { time: place.time, status: ct.status, deleted_by: None });
        flow.last_packet = note.last_packet;
        self.settle_now(index, place.time);
        Some(index)
    }

    fn settle_now(&mut self, index: u32, time: Timestamp) {
        self.slots.enqueue(index, Queue::Settling, self.clock.max(time));
    }
}

fn is_same(one: &Conntrack, other: &Conntrack) -> bool {
    one.orig == other.orig && one.reply == other.reply && one.zone == other.zone
}
