//! The table of flows: finds the flow of each sighting.
//!
//! Every operation except `finish` is in constant time, on average. Owns the index and time. `queues.rs` ends the flows' waits,
//! `room.rs` evicts, `identity.rs` assigns entries to flows, `fold.rs` interprets facts, `outcome.rs` evaluates the
//! evidence.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use super::{
    Counters, Decision, End, Flow, Limits, SharedFlow, SocketEnd,
    fold::{Place, accepts, begins, is_embryo, may_open, waited},
    identity::{LATE, OVERTAKEN},
    key::{Index, Key},
    losses::Losses,
    queues::is_news,
    reorder::Reorder,
    room::{Displaced, Evicted},
    slots::{QUEUES, Queue, Slots},
};
use crate::{
    net::{Netns, Protocol, Tuple},
    sighting::{
        Conntrack, ConntrackFact, Fact, Hook, IpvsFact, PacketFact, Sighting, SocketEvent, SocketFact,
        Status, TcpState,
    },
    time::Timestamp,
};

/// All flows of a trace. See the module for the contract.
///
/// Time comes from sightings and [`advance`](Self::advance). A live caller advances to no later than the time at which
/// it began to read waiting events, so that a flow does not time out while its answer waits to be read. The caller owns
/// [drained](Self::drain_settled) flows and drains them after each batch: while a thousand of them wait, no further flow
/// is handed out.
#[derive(Debug)]
pub struct FlowTable {
    pub(super) limits: Limits,
    pub(super) slots: Slots,
    pub(super) index: Index,
    reorder: Reorder,
    /// A flow that stays in its slot is shared with it, and copied when later evidence changes one of the two.
    pub(super) settled: VecDeque<SharedFlow>,
    pub(super) unjudged: Evicted,
    pub(super) losses: Losses,
    pub(super) counters: Counters,
    /// The addresses of the entries to read again.
    pub(super) rereads: Vec<u64>,
    /// The flows whose wait for these entries has not begun.
    pub(super) unread: Vec<u32>,
    /// The flows of the last list of entries to read again.
    pub(super) asked: Vec<u32>,
    /// The last persistence template that IPVS created, and its time: the template's connection follows.
    pub(super) template: Option<(Timestamp, IpvsFact)>,
    pub(super) displaced: Displaced,
    /// When the sighting that is being folded left the kernel: the kernel hands over a decision long after its time.
    arrival: Timestamp,
    /// The latest known time. Never decreases.
    pub(super) clock: Timestamp,
}

impl FlowTable {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            slots: Slots::new(),
            index: Index::default(),
            reorder: Reorder::new(limits.reorder),
            settled: VecDeque::new(),
            unjudged: Evicted::default(),
            losses: Losses::default(),
            counters: Counters::default(),
            rereads: Vec::new(),
            unread: Vec::new(),
            asked: Vec::new(),
            template: None,
            displaced: Displaced::default(),
            arrival: Timestamp::MIN,
            clock: Timestamp::MIN,
        }
    }

    /// Takes one sighting. It is folded once no other can overtake it.
    pub fn observe(&mut self, sighting: Sighting) {
        let Ok(_) = self.observe_with(|place| {
            *place = sighting;
            Ok::<_, Infallible>(())
        });
    }

    /// Takes the sighting that `fill` writes into the table, and returns its time. Takes none if `fill` fails.
    pub(crate) fn observe_with<E>(
        &mut self,
        fill: impl FnOnce(&mut Sighting) -> Result<(), E>,
    ) -> Result<Timestamp, E> {
        let time = self.reorder.push_with(fill)?;
        self.counters.sightings += 1;
        self.fold_ready();
        Ok(time)
    }

    /// Takes the time of a sighting whose flow is left out. Waits end with it as with the sighting.
    pub fn pass(&mut self, time: Timestamp) {
        self.reorder.pass(time);
        self.fold_ready();
    }

    /// Folds the sightings that no other can overtake.
    fn fold_ready(&mut self) {
        loop {
            if let Some(time) = self.reorder.next_passed() {
                self.expire(time);
                continue;
            }
            let Some(mut next) = self.reorder.pop_ready() else { return };
            self.fold(&mut next);
            self.reorder.reuse(next);
        }
    }

    /// Advances the time. No sighting from before `now` minus the reorder window may arrive after this call, except a
    /// decision that the kernel handed over late ([`EntryNote::handed_over`]).
    pub fn advance(&mut self, now: Timestamp) {
        self.reorder.advance(now);
        self.fold_ready();
        // A sighting that is still held back may belong to a flow that would expire now.
        self.expire(if self.reorder.is_holding() { now.saturating_sub(self.limits.reorder) } else { now });
        self.begin_rereads();
    }

    /// When [`advance`](Self::advance) will next have work; `None` while nothing waits.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        QUEUES
            .iter()
            .filter_map(|queue| self.slots.head(*queue).map(|(_, deadline)| deadline))
            .chain(self.reorder.next_deadline())
            .min()
    }

    /// Flows whose outcome became known, or changed, since the last call.
    pub fn drain_settled(&mut self) -> impl Iterator<Item = Flow> + '_ {
        self.settled.drain(..).map(SharedFlow::unwrap_or_clone)
    }

    /// Whether flows wait to be drained.
    pub fn has_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// All of them, the first one in front. [`Self::return_settled`] takes the rest back.
    pub fn take_settled(&mut self) -> VecDeque<SharedFlow> {
        std::mem::take(&mut self.settled)
    }

    /// Takes back flows of [`Self::take_settled`], in front of those that have settled since.
    pub fn return_settled(&mut self, mut flows: VecDeque<SharedFlow>) {
        flows.append(&mut self.settled);
        self.settled = flows;
    }

    /// Ends the trace: hands out all open flows as they are, in the order in which they began.
    pub fn finish(&mut self, now: Timestamp) {
        self.reorder.end();
        self.fold_ready();
        self.clock = self.clock.max(now);
        let mut rest = Vec::new();
        for queue in QUEUES {
            while let Some((index, _)) = self.slots.head(queue) {
                let Some(flow) = self.take(index) else { break };
                let outcome = flow.outcome();
                if flow.handed.is_none_or(|handed| is_news(handed, outcome)) {
                    rest.push((flow, outcome));
                }
            }
        }
        rest.sort_unstable_by_key(|(flow, _)| flow.id);
        for (mut flow, outcome) in rest {
            let handed = SharedFlow::make_mut(&mut flow);
            handed.hand_out(outcome, now, &self.limits, &self.losses, &mut self.counters);
            self.settled.push_back(flow);
        }
        self.index.clear();
    }

    pub fn counters(&self) -> Counters {
        let Counters { seen, settled, evicted, absorbed, .. } = self.counters;
        Counters { open: seen - settled - evicted - absorbed, ..self.counters }
    }

    /// The number of flows held, including those already handed out.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn fold(&mut self, sighting: &mut Sighting) {
        self.expire(sighting.time);
        self.arrival = match &sighting.fact {
            Fact::Conntrack(fact) => fact.note.handed_over.unwrap_or(sighting.time),
            _ => sighting.time,
        };
        let place = Place { time: sighting.time, netns: sighting.netns, hook: sighting.hook };
        let index = match &mut sighting.fact {
            Fact::Conntrack(fact) => self.fold_conntrack(fact, place),
            Fact::Packet(fact) => self.fold_packet(fact, place),
            Fact::Socket(fact) => self.fold_socket(fact, place),
            Fact::Ipvs(fact) => self.fold_ipvs(fact, place),
            Fact::TableFull { freed } => {
                self.counters.table_full += 1;
                self.counters.table_full_freed += u64::from(*freed);
                return;
            }
        };
        match index {
            Some(index) => self.place(index),
            // A reread entry for which no flow waits belongs to no flow.
            None => self.counters.unmatched += u64::from(place.hook != Hook::EntryReread),
        }
    }

    fn fold_conntrack(&mut self, fact: &ConntrackFact, place: Place) -> Option<u32> {
        let ct = &fact.ct;
        if !is_tracked(ct.orig.protocol) || place.hook == Hook::NatSetup {
            // At nf_nat_setup_info NAT is still being decided: its tuples are not final, the confirmed entry's are.
            return None;
        }
        if place.hook == Hook::EntryReread {
            return self.fold_reread(*ct, fact.note, place);
        }
        let index = match place.hook {
            Hook::Confirm => self.entry_to_confirm(ct, fact.note, place),
            Hook::Delete | Hook::KillAcct => self.entry_to_end(ct, place)?,
            _ => self.entry_unconfirmed(ct, place, false, false),
        };
        let flow = self.slots.get_mut(index)?;
        flow.touch(place.time);
        if place.hook == Hook::Confirm {
            if !flow.fold_pick_up(ct, fact.note, place) {
                flow.fold_decision(*ct, place);
                flow.fold_note(ct, fact.note, place);
            }
            if flow.confirm_task.is_none() {
                flow.confirm_task = fact.task;
            }
        } else {
            if flow.decisions.is_empty() {
                flow.fold_decision(*ct, place);
            }
            flow.fold_end_of_entry(ct, fact.note, place);
        }
        self.link(index, ct, place);
        Some(index)
    }

    fn fold_packet(&mut self, fact: &mut PacketFact, place: Place) -> Option<u32> {
        fact.ct = fact.ct.filter(|ct| is_tracked(ct.orig.protocol));
        let opening = may_open(fact);
        let index = if let Some(ct) = &fact.ct {
            // An ICMP error is about an earlier packet and rarely about a new attempt: an unreachable host is reported
            // only when its packet is given up.
            let index =
                self.entry_unconfirmed(ct, place, opening, waited(fact) || place.hook.is_icmp_error());
            let confirmed = ct.status.has(Status::CONFIRMED);
            let flow = self.slots.get_mut(index)?;
            if opening && confirmed && flow.is_tcp() && place.hook == Hook::IpVsConnExpire {
                // Belongs to the port's previous connection, which had another endpoint.
                flow.ipvs_mut().old_entry = ct.id;
            } else {
                let known = flow.decision_for(ct, place.netns);
                // A SYN that waited for its next hop's address, while a repeated one was answered.
                let held_back = opening && flow.is_tcp() && !confirmed && waited(fact);
                let is_handshake = held_back || flow.is_handshake();
                let may_differ = |known: &Decision| !confirmed && (known.confirmed.is_none() || is_handshake);
                if known.is_none_or(may_differ) {
                    flow.fold_attempt(*ct, place, is_handshake);
                }
                self.link(index, ct, place);
            }
            index
        } else {
            let tuple = fact.tuple.filter(|tuple| is_tracked(tuple.protocol))?;
            let known = self.known(&tuple, place.netns);
            let reused = known.and_then(|index| self.slots.get(index)).is_some_and(|flow| {
                opening
                    && flow.orig == tuple
                    && flow.ended.is_some_and(|ended| ended.saturating_add(LATE) < place.time)
            });
            match known {
                Some(index) if !reused => index,
                _ => self.begin(tuple, place, !opening),
            }
        };
        let flow = self.slots.get_mut(index)?;
        flow.touch(place.time);
        flow.fold_packet(fact, place);
        Some(index)
    }

    fn fold_socket(&mut self, fact: &SocketFact, place: Place) -> Option<u32> {
        if !is_tracked(fact.tuple.protocol) {
            return None;
        }
        let mut known = self.known(&fact.tuple, place.netns);
        if known.is_some_and(|index| self.split_picked_up(index, fact, place)) {
            known = self.known(&fact.tuple, place.netns);
        }
        let reused = known.and_then(|index| self.slots.get(index)).is_some_and(|flow| {
            let end = match flow.end_of(&fact.tuple) {
                Some(End::Client) => &flow.client,
                Some(_) => &flow.server,
                None => return true,
            };
            let another = end.is_seen()
                && end.sk != fact.sk
                && end.closed.is_some_and(|closed| !is_embryo(closed.from));
            // Nothing shows that the earlier one closed.
            let is_later = !self.limits.sees_closes
                && end.sk != fact.sk
                && end.was_connected()
                && place.time.since(flow.last_seen) > LATE;
            let repeats = matches!(fact.event, SocketEvent::Retransmit { .. }) && flow.is_still_trying();
            let over = flow.ended.is_some_and(|ended| ended.saturating_add(LATE) < place.time);
            is_later || begins(&fact.event) && (another || (over && !repeats))
        });
        let index = match known {
            Some(index) if !reused => index,
            None if self.is_of_displaced(fact, place) => return None,
            _ => {
                let orig = if accepts(&fact.event) { fact.tuple.reversed() } else { fact.tuple };
                // A retransmitted SYN is still the beginning; every other event comes later in a connection's life.
                self.begin(
                    orig,
                    place,
                    !matches!(fact.event, SocketEvent::Retransmit { state: TcpState::SynSent, .. }),
                )
            }
        };
        let flow = self.slots.get_mut(index)?;
        flow.touch(place.time);
        flow.fold_socket(fact, place).then_some(index)
    }

    /// Begins a flow and ends the earlier flow with its addresses.
    pub(super) fn begin(&mut self, orig: Tuple, place: Place, partial: bool) -> u32 {
        while self.slots.len() >= self.limits.max_flows.max(1) {
            self.evict();
        }
        self.counters.seen += 1;
        let flow = Flow::new(self.counters.seen, orig, place.netns, place.time, partial);
        let (queue, wait) = self.first_queue(orig.protocol);
        let index = self.slots.insert(flow, queue, self.after(wait));
        self.index.make_room(|flow| self.slots.alive(flow).is_some());
        if let Some(before) = self.set_known(&orig, place.netns, index) {
            let previous = self
                .slots
                .get(before)
                .filter(|flow| flow.orig == orig)
                .and_then(Flow::as_previous)
                .map(Box::new);
            if let Some(flow) = self.slots.get_mut(index) {
                flow.previous = previous;
            }
            self.supersede(before, place.time);
        }
        index
    }

    /// Whether the fact goes on with a flow that made room for others: it begins none.
    fn is_of_displaced(&self, fact: &SocketFact, place: Place) -> bool {
        let since = place.time.saturating_sub(self.limits.unanswered);
        let displaced = || self.displaced.since(&Key::new(&fact.tuple, place.netns), since);
        match fact.event {
            SocketEvent::State { old: TcpState::SynSent, new: TcpState::Close } => displaced().is_some(),
            // One that had no verdict yet gets another chance.
            SocketEvent::Retransmit { state: TcpState::SynSent, .. } => {
                displaced().is_some_and(|flow| flow.had_verdict)
            }
            _ => false,
        }
    }

    /// The end of a wait that begins now. The wait of a flow that begins with an old decision begins with its arrival.
    pub(super) fn after(&self, wait: Duration) -> Timestamp {
        self.clock.max(self.arrival).saturating_add(wait)
    }

    fn first_queue(&self, protocol: Protocol) -> (Queue, Duration) {
        if protocol == Protocol::TCP {
            (Queue::Opening, self.limits.answer)
        } else {
            (Queue::Datagram, self.limits.silence)
        }
    }

    /// A newer flow has its addresses: no more evidence can arrive.
    fn supersede(&mut self, index: u32, time: Timestamp) {
        let Some(flow) = self.slots.get_mut(index) else { return };
        flow.ended.get_or_insert(time);
        let (queue, wait) = match flow.handed {
            None => (Queue::Settling, self.limits.settle),
            Some(_) => (Queue::Lingering, self.limits.linger),
        };
        self.slots.enqueue(index, queue, self.clock.saturating_add(wait));
    }

    /// Indexes the flow by its addresses after NAT, and absorbs earlier sightings there.
    pub(super) fn link(&mut self, index: u32, ct: &Conntrack, place: Place) {
        // It was found, or begun, by the original tuple.
        if ct.endpoint().is_none() && !ct.masqueraded() {
            return;
        }
        match self.set_known(&ct.reply, place.netns, index) {
            Some(before) if before != index => self.absorb(before, index, place.time),
            _ => {}
        }
    }

    /// `other` was observed at addresses that turn out to be those of `index`: `other` is part of that flow if it had
    /// just begun without its own entry, otherwise it is an older flow.
    pub(super) fn absorb(&mut self, other: u32, index: u32, time: Timestamp) {
        let fresh = self.slots.get(other).is_some_and(|flow| {
            flow.decisions.is_empty()
                && flow.handed.is_none()
                && flow.first_seen.saturating_add(OVERTAKEN) >= time
        });
        if !fresh {
            self.supersede(other, time);
            return;
        }
        let Some(part) = self.take(other).map(SharedFlow::unwrap_or_clone) else { return };
        self.counters.absorbed += 1;
        let Some(flow) = self.slots.get_mut(index) else { return };
        flow.sightings = flow.sightings.saturating_add(part.sightings);
        flow.last_seen = flow.last_seen.max(part.last_seen);
        for end in [part.client, part.server].into_iter().filter(SocketEnd::is_seen) {
            // After NAT only the accepting socket can be found.
            if !flow.server.is_seen() {
                flow.server = end;
            }
        }
        if flow.trouble.is_none() {
            flow.trouble = part.trouble;
        }
    }

    /// Removes and returns the flow.
    pub(super) fn take(&mut self, index: u32) -> Option<SharedFlow> {
        self.slots.remove(index)
    }

    pub(super) fn forget(&mut self, index: u32) {
        self.slots.clear(index);
    }

    /// The flow with these ends.
    pub(super) fn known(&self, tuple: &Tuple, netns: Netns) -> Option<u32> {
        self.slots.alive(self.index.get(&Key::new(tuple, netns))?)
    }

    /// Gives the flow these ends, and returns the one that had them.
    pub(super) fn set_known(&mut self, tuple: &Tuple, netns: Netns, index: u32) -> Option<u32> {
        let before = self.index.insert(Key::new(tuple, netns), self.slots.life(index))?;
        self.slots.alive(before)
    }
}

pub(super) const fn is_tracked(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::TCP | Protocol::UDP | Protocol::SCTP)
}
