//! Flows without a sign of an answer: the conntrack entries to read again, and their later state.
//!
//! Owns the list of these entries and folds the results. The caller reads the kernel's memory. No hook observes the
//! answer to a datagram, but `IPS_SEEN_REPLY` in its conntrack entry records it.

use super::{Ended, Flow, FlowTable, Limits, Outcome, Reread, fold::Place, slots::Queue};
use crate::{
    net::Protocol,
    sighting::{Conntrack, EntryNote, Status},
    time::Timestamp,
};

/// The maximum number of entries in one list. Further flows wait and time out.
const MAX_REREADS: usize = 4096;

impl FlowTable {
    /// The entries to read again, by their kernel addresses. Take the list after each [`advance`](Self::advance), and
    /// [observe](Self::observe) the entries as sightings of
    /// [`Hook::EntryReread`](crate::sighting::Hook::EntryReread) within
    /// [`Limits::reread_wait`](super::Limits::reread_wait).
    pub fn take_rereads(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.rereads)
    }

    /// The same for all flows that [`finish`](Self::finish) would hand out without a sign of an answer.
    pub fn last_rereads(&mut self) -> Vec<u64> {
        let mut entries = self.take_rereads();
        for index in self.slots.indices() {
            if let Some(entry) = self.entry_to_reread(index) {
                entries.push(entry);
            }
        }
        entries.sort_unstable();
        entries.dedup();
        entries
    }

    /// Whether the flow waits for its entry to be read again before it is handed out.
    pub(super) fn wants_reread(&mut self, index: u32) -> bool {
        let Some(entry) = self.entry_to_reread(index) else { return false };
        // If the list is not taken, as in a replay, the flows wait all the same.
        if self.rereads.len() < MAX_REREADS {
            self.rereads.push(entry);
        }
        // The wait begins only when all sightings are folded, however many there are.
        self.slots.enqueue(index, Queue::Rereading, Timestamp::MAX);
        self.unread.push(index);
        true
    }

    /// Records that the caller took the list: from now on the flows wait for their entries.
    pub(super) fn begin_rereads(&mut self) {
        self.asked = std::mem::take(&mut self.unread);
        self.wait_for_rereads(self.clock);
    }

    /// The entries of the last list were read again at this time. On a node with more events than can be read, the table's
    /// clock is behind, and the flows wait from this time on. Call it before the next [`advance`](Self::advance).
    pub fn reread_at(&mut self, at: Timestamp) {
        self.wait_for_rereads(at.max(self.clock));
        self.asked.clear();
    }

    fn wait_for_rereads(&mut self, since: Timestamp) {
        let deadline = since.saturating_add(self.limits.reread_wait);
        for index in &self.asked {
            if self.slots.queue_of(*index) == Some(Queue::Rereading) {
                self.slots.enqueue(*index, Queue::Rereading, deadline);
            }
        }
    }

    fn entry_to_reread(&self, index: u32) -> Option<u64> {
        let flow = self.slots.get(index)?;
        let is_read = || flow.reread.is_some_and(|last| !may_answer_yet(flow, last, &self.limits));
        if flow.handed.is_some() || flow.deleted.is_some() || is_read() {
            return None;
        }
        let is_wanted = match self.limits.reread {
            Reread::Nothing => false,
            // A datagram that was dropped may be one of many that were answered: a probe for the path's MTU.
            Reread::Datagrams | Reread::All if !flow.is_tcp() => {
                let outcome = flow.outcome();
                outcome == Outcome::Pending || outcome == Outcome::Dropped && flow.may_pass_otherwise()
            }
            // Nothing else shows that a repeated SYN was answered after all, also one whose predecessor was dropped.
            Reread::Datagrams => {
                flow.client.closed.is_none() && matches!(flow.outcome(), Outcome::Stalled | Outcome::Dropped)
            }
            Reread::All => {
                !flow.client.is_seen() && !flow.server.is_seen() && flow.outcome() == Outcome::Pending
            }
        };
        if !is_wanted {
            return None;
        }
        let decision = flow.decision(None)?;
        (decision.confirmed.is_some() && decision.ct.id != 0).then_some(decision.ct.id)
    }

    /// Folds the later state of an entry. Another entry at the same address, and the entry of an evicted flow, change
    /// nothing.
    pub(super) fn fold_reread(&mut self, ct: Conntrack, note: EntryNote, place: Place) -> Option<u32> {
        if ct.id == 0 {
            return self.fold_listed(ct, note, place);
        }
        let index = self.known(&ct.orig, place.netns)?;
        let flow = self.slots.get_mut(index)?;
        let same = flow.decisions.iter().any(|known| known.ct.id == ct.id && is_same(&known.ct, &ct));
        if !same || !ct.status.has(Status::CONFIRMED) {
            return None;
        }
        let last = Ended { time: place.time, status: ct.status, deleted_by: None };
        flow.reread = Some(last);
        let until = flow.first_seen.saturating_add(self.limits.last_reading);
        let is_last = !may_answer_yet(flow, last, &self.limits);
        if self.slots.queue_of(index) == Some(Queue::Rereading) {
            if !is_last {
                self.slots.enqueue(index, Queue::Datagram, until);
                // Its queue stays: this reading is no event of the flow.
                return None;
            }
            self.settle_now(index, place.time);
        }
        Some(index)
    }

    /// Folds an entry from a listing, which may be older than the trace. Its flow is handed out (again), because the
    /// caller requested the listing.
    fn fold_listed(&mut self, ct: Conntrack, note: EntryNote, place: Place) -> Option<u32> {
        let known = self.known(&ct.orig, place.netns).filter(|index| {
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
        flow.reread = Some(Ended { time: place.time, status: ct.status, deleted_by: None });
        flow.last_packet = note.last_packet;
        self.settle_now(index, place.time);
        Some(index)
    }

    fn settle_now(&mut self, index: u32, time: Timestamp) {
        self.slots.enqueue(index, Queue::Settling, self.clock.max(time));
    }
}

/// Whether an answer may still come after this reading of a datagram's entry.
fn may_answer_yet(flow: &Flow, last: Ended, limits: &Limits) -> bool {
    flow.orig.protocol == Protocol::UDP
        && !last.status.has(Status::SEEN_REPLY)
        && last.time < flow.first_seen.saturating_add(limits.last_reading)
}

fn is_same(one: &Conntrack, other: &Conntrack) -> bool {
    one.orig == other.orig && one.reply == other.reply && one.zone == other.zone
}
