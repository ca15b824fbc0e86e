//! Room for new flows: which flow leaves a full table.
//!
//! Owns the shares of the kinds of flows, so that no kind displaces another: answered flows never evict failing ones,
//! and a flood of datagrams or half-open connections evicts only its like. A flow that leaves without an outcome is
//! counted by the address that its client connected to.

use std::{collections::HashMap, hash::BuildHasher, net::SocketAddr};

use foldhash::fast::RandomState;

use super::{FlowTable, Outcome, key::Key, queues::MAX_SETTLED, slots::Queue};
use crate::{net::Protocol, time::Timestamp};

/// The kinds of flows in the order in which they leave a full table, each with its share of it in sixteenths. A kind may
/// exceed its share while there is room.
const KINDS: [(&[Queue], usize); 5] = [
    // Most were handed out, and all have an outcome or an answer. Those of which no further verdict is due leave first, then
    // the oldest answered ones.
    (&[Queue::HalfClosed, Queue::Answered, Queue::Lingering, Queue::Waiting], 1),
    (&[Queue::Live], 5),
    (&[Queue::Settling], 2),
    (&[Queue::Datagram, Queue::Rereading], 3),
    (&[Queue::Opening], 5),
];
const SHARES: usize = 16;

/// The most addresses whose evicted flows are counted apart between two calls of
/// [`FlowTable::take_unjudged`].
const MAX_ADDRESSES: usize = 1024;

/// The most connections that made room and are remembered, each about 100 bytes.
const PLACES: usize = 8 * 1024;

/// Flows that left a full table before they had an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unjudged {
    /// Where their clients connected to; `None` for the flows beyond the addresses counted apart.
    pub to: Option<(Protocol, SocketAddr)>,
    pub count: u64,
    /// When the first and the last of them began.
    pub first: Timestamp,
    pub last: Timestamp,
}

/// The evicted flows by address.
#[derive(Debug, Default)]
pub(super) struct Evicted {
    known: HashMap<Option<(Protocol, SocketAddr)>, Unjudged>,
}

impl Evicted {
    fn add(&mut self, to: (Protocol, SocketAddr), began: Timestamp) {
        let has_room = self.known.len() < MAX_ADDRESSES || self.known.contains_key(&Some(to));
        let to = has_room.then_some(to);
        let of = self.known.entry(to).or_insert(Unjudged { to, count: 0, first: began, last: began });
        of.count += 1;
        of.first = of.first.min(began);
        of.last = of.last.max(began);
    }
}

/// The connections that made room for others before their clients gave up, by their ends. Of the many in a flood some are
/// forgotten.
#[derive(Debug, Default)]
pub(super) struct Displaced {
    /// Empty until the first one.
    places: Vec<Option<(Key, Departed)>>,
    hashes: RandomState,
}

/// A connection that made room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Departed {
    at: Timestamp,
    pub(super) had_verdict: bool,
}

impl Displaced {
    fn place(&self, key: &Key) -> usize {
        self.hashes.hash_one(key) as usize % PLACES
    }

    fn add(&mut self, key: Key, departed: Departed) {
        if self.places.is_empty() {
            self.places = vec![None; PLACES];
        }
        let place = self.place(&key);
        if let Some(place) = self.places.get_mut(place) {
            *place = Some((key, departed));
        }
    }

    /// The connection with these ends, if it made room at this time or later.
    pub(super) fn since(&self, key: &Key, time: Timestamp) -> Option<Departed> {
        let (known, departed) = self.places.get(self.place(key))?.as_ref()?;
        (known == key && departed.at >= time).then_some(*departed)
    }
}

impl FlowTable {
    /// The flows that were evicted without an outcome since the last call, by address.
    pub fn take_unjudged(&mut self) -> Vec<Unjudged> {
        let mut taken: Vec<Unjudged> = self.unjudged.known.drain().map(|(_, of)| of).collect();
        taken.sort_unstable_by_key(|of| (of.first, of.to.map(|(protocol, dst)| (protocol.0, dst))));
        taken
    }

    /// Makes room for one flow: the oldest of the first kind that exceeds its share leaves.
    pub(super) fn evict(&mut self) {
        let max = self.limits.max_flows.max(1);
        let count = |queues: &[Queue]| queues.iter().map(|queue| self.slots.len_of(*queue)).sum::<usize>();
        let exceeds = |(queues, share): &&(&[Queue], usize)| count(queues) * SHARES > share * max;
        let kind = KINDS.iter().find(exceeds).or_else(|| KINDS.iter().find(|(queues, _)| count(queues) > 0));
        let Some((queues, _)) = kind else { return };
        let head = |queue: &Queue| self.slots.head(*queue).map(|(index, _)| (*queue, index));
        let Some((queue, index)) = queues.iter().find_map(head) else { return };
        let Some(flow) = self.slots.get(index) else { return };
        let is_first = flow.handed.is_none();
        let outcome = flow.handed.unwrap_or_else(|| flow.outcome());
        // A flow with an outcome is handed out, with the evidence so far.
        let has_outcome = queue == Queue::Settling || (is_first && outcome != Outcome::Pending);
        let is_judged = has_outcome && self.settled.len() < 2 * MAX_SETTLED;
        if flow.is_tcp() && flow.client.closed.is_none() && !outcome.is_success() {
            let departed = Departed { at: self.clock, had_verdict: is_judged || !is_first };
            self.displaced.add(Key::new(&flow.orig, flow.netns), departed);
        }
        if is_judged {
            self.release(index, self.clock);
            return;
        }
        if is_first {
            self.unjudged.add((flow.orig.protocol, flow.orig.dst.socket()), flow.first_seen);
            self.counters.evicted += 1;
        }
        self.forget(index);
    }
}
