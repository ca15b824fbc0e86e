//! IPVS's own facts: the real server that it chose, and connections that outlive their entries.
//!
//! Owns the folding of these facts. A flow does not need them if IPVS tracks its connections in conntrack: the
//! confirmed entry's reply tuple is then the better source, because it also shows masquerading.

use std::time::Duration;

use tracer_ebpf::SAME_IPVS_CALL_NS;

use super::{
    Chosen, Flow, FlowTable, PickedUp, Trouble, fold::Place, identity::OVERTAKEN, key::Key, table::is_tracked,
};
use crate::sighting::{Conntrack, EntryNote, Hook, IpvsFact, SocketEvent, SocketFact, TcpState};

const SAME_CALL: Duration = Duration::from_nanos(SAME_IPVS_CALL_NS);

impl FlowTable {
    pub(super) fn fold_ipvs(&mut self, fact: &IpvsFact, place: Place) -> Option<u32> {
        if fact.is_template() {
            self.template = Some((place.time, *fact));
            return None;
        }
        if !is_tracked(fact.tuple.protocol) {
            return None;
        }
        let first_of_client = self.template.take().is_some_and(|(time, template)| {
            time <= place.time
                && place.time.since(time) < SAME_CALL
                && template.tuple.dst.ip() == fact.tuple.dst.ip()
                && template.destination.ip() == fact.destination.ip()
        });
        let index = self.scheduled(fact, place);
        let flow = self.slots.get_mut(index)?;
        flow.touch(place.time);
        let chosen = Chosen {
            time: place.time,
            netns: place.netns,
            tuple: fact.tuple,
            destination: fact.destination,
            flags: fact.flags,
            first_of_client,
        };
        let before = flow.ipvs_mut().chosen.replace(chosen);
        if let Some(before) = before.filter(|before| before.reply() != chosen.reply()) {
            self.index.remove(&Key::new(&before.reply(), before.netns), self.slots.life(index));
        }
        if let Some(other) = self.set_known(&chosen.reply(), chosen.netns, index)
            && other != index
        {
            self.absorb(other, index, place.time);
        }
        Some(index)
    }

    /// A socket connects from the addresses of a flow whose entry was taken for a pickup: the entry belongs to a new
    /// connection, and the end of the previous one was not observed. Returns whether that is so, for the flow at `index`.
    pub(super) fn split_picked_up(&mut self, index: u32, fact: &SocketFact, place: Place) -> bool {
        let connects = matches!(
            fact.event,
            SocketEvent::State { old: TcpState::SynSent, .. }
                | SocketEvent::Retransmit { state: TcpState::SynSent, .. }
        );
        let Some(flow) = self.slots.get_mut(index).filter(|_| connects) else { return false };
        let picked_up = flow.trouble.as_ref().and_then(|trouble| trouble.picked_up.as_deref().copied());
        let Some(picked_up) = picked_up.filter(|known| flow.orig == fact.tuple && known.time <= place.time)
        else {
            return false;
        };
        if let Some(trouble) = &mut flow.trouble {
            trouble.picked_up = None;
        }
        flow.trouble = flow.trouble.take().filter(|trouble| **trouble != Trouble::default());
        let place = Place { time: picked_up.time, netns: picked_up.netns, hook: Hook::Confirm };
        let index = self.begin(picked_up.ct.orig, place, false);
        if let Some(flow) = self.slots.get_mut(index) {
            flow.fold_decision(picked_up.ct, place);
        }
        self.link(index, &picked_up.ct, place);
        true
    }

    /// The flow for which IPVS creates an entry: on a SYN (or any datagram), before its conntrack entry is confirmed.
    fn scheduled(&mut self, fact: &IpvsFact, place: Place) -> u32 {
        if let Some(index) = self.known(&fact.tuple, place.netns)
            && let Some(flow) = self.slots.get(index)
            && flow.orig == fact.tuple
        {
            let over = flow.ended.is_some_and(|ended| place.time > ended) && !flow.is_still_trying();
            // Answered facts that overtook this one within the reorder window belong to it.
            let answered = flow.is_tcp() && flow.was_answered();
            if !over && (!answered || flow.first_seen.saturating_add(OVERTAKEN) >= place.time) {
                return index;
            }
        }
        self.begin(fact.tuple, place, false)
    }
}

impl Flow {
    /// Whether the entry that is being confirmed was created mid-stream for this connection, whose own entry is gone.
    /// It contains nothing about the connection's beginning, so the earlier decision stays.
    pub(super) fn fold_pick_up(&mut self, ct: &Conntrack, note: EntryNote, place: Place) -> bool {
        if let Some(ipvs) = &mut self.ipvs {
            ipvs.old_entry = 0;
        }
        let established = self.client.established.is_some_and(|time| time < place.time);
        let decided = self
            .decision_for(ct, place.netns)
            .map(|known| known.confirmed.is_none_or(|confirmed| confirmed < place.time));
        let chosen = self.chosen_by_ipvs(None).is_some_and(|chosen| chosen.time < place.time);
        // An entry that a SYN created begins a connection.
        let by_syn = note.is_midstream() == Some(false);
        if by_syn || !self.is_tcp() || !self.is_open() || !established || !decided.unwrap_or(chosen) {
            return false;
        }
        let picked_up = PickedUp { time: place.time, netns: place.netns, ct: *ct };
        self.trouble_mut().picked_up.get_or_insert_with(|| Box::new(picked_up));
        true
    }
}
