//! The flow of a conntrack entry: 5-tuples and even `struct nf_conn` addresses are reused.
//!
//! Owns the rules of identity in time; the table owns the index and the queues.

use std::time::Duration;

use super::{Flow, FlowTable, fold::Place};
use crate::sighting::{Conntrack, EntryNote, Hook, Status};

/// A fact that precedes its flow's first entry by at most this was reordered and does not belong to an older flow.
pub(super) const OVERTAKEN: Duration = Duration::from_millis(100);
/// The initial retransmission timeout (RFC 6298) less its tolerance: an earlier SYN after a refusal belongs to another
/// connection.
const FIRST_RETRANSMIT: Duration = Duration::from_millis(900);
/// A packet that waits for its next hop's address is dropped after 3 s by default (`mcast_solicit` times
/// `retrans_time_ms`), also if its connection has ended meanwhile. With a margin for a busy node.
pub(super) const HELD_BACK: Duration = Duration::from_secs(6);
/// Facts about a flow's last packets may arrive this long after its end.
pub(super) const LATE: Duration = Duration::from_secs(1);

impl FlowTable {
    /// The flow of an entry that is being confirmed; a new flow if the known one has another entry.
    pub(super) fn entry_to_confirm(&mut self, ct: &Conntrack, note: EntryNote, place: Place) -> u32 {
        if let Some(index) = self.known(&ct.orig, place.netns)
            && let Some(flow) = self.slots.get(index)
        {
            let over = flow.ended.is_some_and(|ended| place.time > ended) && !flow.is_still_trying();
            let may_be_picked_up = flow.is_tcp() && note.is_midstream() != Some(false);
            if may_be_picked_up && flow.is_open() && flow.orig == ct.orig && flow.first_seen <= place.time {
                // Its old entry is gone, and conntrack picked up the connection mid-stream (tcp_loose).
                return index;
            }
            // The same, by a segment of the endpoint: nothing translates it back.
            let is_answer = |known: &super::Decision| known.netns == place.netns && known.ct.reply == ct.orig;
            if note.is_midstream() == Some(true) && flow.is_open() && flow.decisions.iter().any(is_answer) {
                return index;
            }
            let same = match flow.decision_for(ct, place.netns) {
                Some(known) => match known.confirmed {
                    // A second copy of the sighting, or a late one.
                    Some(confirmed) if place.time <= confirmed => true,
                    // A copy from another CPU: the kernel's task moved there between the two programs that report it.
                    // Or two datagrams of one socket raced for one entry (C17, N10).
                    Some(confirmed) => {
                        (known.ct.id == ct.id || !flow.is_tcp())
                            && !over
                            && place.time.since(confirmed) < LATE
                    }
                    // The first packet was dropped, and a retransmit passed.
                    None => !over,
                },
                None if flow.decisions.is_empty() => {
                    !over && (!flow.was_answered() || flow.first_seen.saturating_add(OVERTAKEN) >= place.time)
                }
                // The entry of the same connection in another namespace or zone.
                None => !over && (!flow.was_answered() || flow.first_seen.saturating_add(LATE) >= place.time),
            };
            if same
                && (flow.orig == ct.orig
                    || flow.decisions.iter().any(|known| known.ct.reply.reversed() == ct.orig))
            {
                return index;
            }
        }
        self.begin(ct.orig, place, false)
    }

    /// The flow of an entry before its confirmation. `waited`: its packet was held back for seconds.
    pub(super) fn entry_unconfirmed(
        &mut self,
        ct: &Conntrack,
        place: Place,
        opening: bool,
        waited: bool,
    ) -> u32 {
        let mut reopened = false;
        if let Some(index) = self.known(&ct.orig, place.netns)
            && let Some(flow) = self.slots.get(index)
        {
            let known = flow.decision_for(ct, place.netns);
            let again = flow.ended.is_some_and(|ended| {
                // A client that ignored the first error tried on until it closed, and its packets waited until now.
                let closed = flow.client.closed.filter(|closed| closed.time <= place.time);
                let since = place.time.since(closed.map_or(ended, |closed| ended.max(closed.time)));
                let refused =
                    place.hook.is_unreach() || place.hook.is_forged_reset() || place.hook == Hook::IpVsLeave;
                let soon = since > Duration::from_millis(1) && since < FIRST_RETRANSMIT;
                let closed = closed.is_some_and(|closed| closed.time < place.time);
                let soon = refused && flow.is_tcp() && (soon || closed);
                let another = known.is_some_and(|known| known.ct.id != ct.id && known.confirmed.is_some());
                let late = since > LATE && !flow.is_still_trying();
                // IPVS drops a SYN with the entry of the port's previous connection.
                let port_again = place.hook == Hook::IpVsConnExpire && flow.is_tcp() && flow.was_answered();
                opening
                    && !(waited && since < HELD_BACK)
                    && (late || soon || port_again || (another && since > Duration::from_millis(1)))
            });
            if !(again || opening && !waited && has_unseen_end(flow, ct, place)) {
                return index;
            }
            reopened = place.hook == Hook::IpVsConnExpire;
        }
        let partial = ct.status.has(Status::CONFIRMED) && !reopened;
        self.begin(ct.orig, place, partial)
    }

    /// The flow whose entry ends. An entry that was never observed identifies no flow, unless a RST killed it: then its
    /// SYN was refused.
    pub(super) fn entry_to_end(&mut self, ct: &Conntrack, place: Place) -> Option<u32> {
        let known = self.known(&ct.orig, place.netns);
        if let Some(index) = known
            && let Some(flow) = self.slots.get(index)
            && flow.decision_for(ct, place.netns).is_none_or(|decision| decision.ct.id == ct.id)
        {
            if flow.ipvs.as_ref().is_some_and(|ipvs| ipvs.old_entry == ct.id) {
                return None;
            }
            return Some(index);
        }
        let refused = place.hook == Hook::KillAcct && known.is_none() && !ct.status.has(Status::SEEN_REPLY);
        refused.then(|| self.begin(ct.orig, place, true))
    }
}

/// Whether an unconfirmed entry of a first packet shows that the answered connection with these addresses has ended, where
/// no event shows its close.
fn has_unseen_end(flow: &Flow, ct: &Conntrack, place: Place) -> bool {
    flow.is_tcp()
        && flow.ended.is_none()
        && flow.was_answered()
        && !ct.status.has(Status::CONFIRMED)
        && place.time.since(flow.last_seen) > LATE
}
