//! The packets of one connection in a capture: which sightings are one packet, what was sent again, what ended it.
//!
//! Owns the rule by which two sightings are the same packet (N3): the same content and IP identification within a second,
//! or, without an identification, the same content at another place within a tenth of a second. Every list is bounded.

use std::{
    collections::{BTreeSet, VecDeque},
    net::IpAddr,
    time::Duration,
};

use super::head::{Content, Head, Place};
use crate::{
    net::{Tuple, flag},
    time::Timestamp,
};

/// The most tuples of one connection, interfaces of one tuple, and entries of each list.
const MAX_WAYS: usize = 16;
const MAX_PLACES: usize = 32;
const MAX_LISTED: usize = 8;
/// The most packets of one connection that are listed; the others are counted.
const MAX_PACKETS: usize = 64;
/// The most sightings of one packet that are listed.
const MAX_SEEN: usize = 8;
/// How many packets back a sighting of the same packet is found.
const MAX_RECENT: usize = 32;
/// Two sightings of one packet are at most so far apart: with an IP identification, and without one.
pub(super) const SAME_ID: Duration = Duration::from_secs(1);
const SAME_CONTENT: Duration = Duration::from_millis(100);

/// One connection.
#[derive(Debug)]
pub(super) struct Connection {
    /// From the client to the address that it connected to, as far as the capture shows the client.
    pub(super) tuple: Tuple,
    /// The beginning of the connection or a recording shows which end is the client.
    pub(super) is_oriented: bool,
    pub(super) first: Option<Timestamp>,
    pub(super) last: Option<Timestamp>,
    pub(super) packets: u64,
    pub(super) sightings: u64,
    /// Packets that carry data or a flag that was sent before.
    pub(super) retransmits: u64,
    pub(super) syns: Times,
    pub(super) syn_acks: u64,
    pub(super) ways: Vec<Way>,
    pub(super) resets: Listed<Reset>,
    pub(super) icmp_errors: Listed<Icmp>,
    pub(super) lines: Vec<Line>,
    /// The initial sequence number of the client.
    pub(super) isn: Option<u32>,
    recent: VecDeque<Recent>,
}

/// A tuple that packets of the connection have, in the client's direction.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) tuple: Tuple,
    pub(super) places: BTreeSet<Place>,
    pub(super) sightings: u64,
}

/// The first times, and the number of all.
#[derive(Debug, Default)]
pub(super) struct Times {
    pub(super) first: Vec<Timestamp>,
    pub(super) count: u64,
}

/// The first entries, and the number of all.
#[derive(Debug)]
pub(super) struct Listed<T> {
    pub(super) first: Vec<T>,
    pub(super) count: u64,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { first: Vec::new(), count: 0 }
    }
}

impl<T> Listed<T> {
    fn push(&mut self, entry: T) {
        self.count += 1;
        if self.first.len() < MAX_LISTED {
            self.first.push(entry);
        }
    }
}

/// A RST, with every address from which it was seen to come.
#[derive(Clone, Debug)]
pub(super) struct Reset {
    pub(super) time: Option<Timestamp>,
    pub(super) from_client: bool,
    /// The tuples of its sightings, in the client's direction.
    pub(super) tuples: Vec<Tuple>,
    packet: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Icmp {
    pub(super) time: Option<Timestamp>,
    pub(super) from: IpAddr,
    pub(super) kind: u8,
    pub(super) code: u8,
}

/// A packet in the list.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) from_client: bool,
    pub(super) content: Content,
    pub(super) is_retransmit: bool,
    pub(super) seen: Vec<Seen>,
    pub(super) sightings: u64,
}

/// One sighting of a packet, its tuple in the packet's direction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) time: Option<Timestamp>,
    pub(super) tuple: Tuple,
    pub(super) place: Place,
}

/// A packet of which further sightings can follow.
#[derive(Debug)]
struct Recent {
    number: u64,
    from_client: bool,
    content: Content,
    ip_id: Option<u16>,
    time: Option<Timestamp>,
    /// The first sightings' places.
    spots: Vec<(Place, Tuple)>,
}

impl Connection {
    pub(super) fn new(tuple: Tuple, is_oriented: bool) -> Self {
        Self {
            tuple,
            is_oriented,
            first: None,
            last: None,
            packets: 0,
            sightings: 0,
            retransmits: 0,
            syns: Times::default(),
            syn_acks: 0,
            ways: Vec::new(),
            resets: Listed::default(),
            icmp_errors: Listed::default(),
            lines: Vec::new(),
            isn: None,
            recent: VecDeque::new(),
        }
    }

    /// Whether this SYN begins another connection with the same addresses (N6).
    pub(super) fn is_followed_by(&self, content: &Content) -> bool {
        let Content::Tcp { seq, .. } = *content else { return false };
        content.opens() && self.packets > 0 && self.isn != Some(seq)
    }

    /// Takes a sighting of a packet; `from_client` is its direction, `lists` whether there is room for another line.
    /// Returns whether a line was added.
    pub(super) fn add(
        &mut self,
        head: &Head,
        time: Option<Timestamp>,
        from_client: bool,
        lists: bool,
    ) -> bool {
        self.sightings += 1;
        self.first = earlier(self.first, time);
        self.last = self.last.max(time);
        let way = if from_client { head.tuple } else { head.tuple.reversed() };
        self.pass(way, head.interface);
        let seen = Seen { time, tuple: head.tuple, place: head.interface };
        if let Some(number) = self.same_packet(head, time, from_client) {
            if let Some(line) = usize::try_from(number).ok().and_then(|number| self.lines.get_mut(number)) {
                line.sightings += 1;
                if line.seen.len() < MAX_SEEN {
                    line.seen.push(seen);
                }
            }
            if let Some(reset) = self.resets.first.iter_mut().find(|reset| reset.packet == number)
                && reset.tuples.len() < MAX_WAYS
            {
                reset.tuples.push(way);
            }
            return false;
        }
        let number = self.packets;
        self.packets += 1;
        let is_retransmit = self.is_sent_before(&head.content, from_client);
        self.retransmits += u64::from(is_retransmit);
        self.note(&head.content, time, from_client, way, number);
        if self.recent.len() >= MAX_RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Recent {
            number,
            from_client,
            content: head.content,
            ip_id: head.ip_id,
            time,
            spots: vec![(head.interface, head.tuple)],
        });
        // Lines have the numbers of the first packets, so that later sightings find theirs.
        let is_listed = lists && self.lines.len() < MAX_PACKETS && self.lines.len() as u64 == number;
        if is_listed {
            let line =
                Line { from_client, content: head.content, is_retransmit, seen: vec![seen], sightings: 1 };
            self.lines.push(line);
        }
        is_listed
    }

    fn note(
        &mut self,
        content: &Content,
        time: Option<Timestamp>,
        from_client: bool,
        way: Tuple,
        packet: u64,
    ) {
        if let Content::Icmp { from, kind, code } = *content {
            self.icmp_errors.push(Icmp { time, from, kind, code });
            return;
        }
        if content.opens() {
            if let Content::Tcp { seq, .. } = *content {
                self.isn.get_or_insert(seq);
            }
            self.syns.count += 1;
            if self.syns.first.len() < MAX_LISTED {
                self.syns.first.extend(time);
            }
        } else if content.has(flag::SYN) {
            self.syn_acks += 1;
        }
        if content.has(flag::RST) {
            self.resets.push(Reset { time, from_client, tuples: vec![way], packet });
        }
    }

    fn pass(&mut self, tuple: Tuple, place: Place) {
        let way = match self.ways.iter_mut().position(|way| way.tuple == tuple) {
            Some(at) => self.ways.get_mut(at),
            None if self.ways.len() < MAX_WAYS => {
                self.ways.push(Way { tuple, places: BTreeSet::new(), sightings: 0 });
                self.ways.last_mut()
            }
            None => None,
        };
        let Some(way) = way else { return };
        way.sightings += 1;
        if way.places.len() < MAX_PLACES {
            way.places.insert(place);
        }
    }

    /// The number of the packet of which this is another sighting.
    fn same_packet(&mut self, head: &Head, time: Option<Timestamp>, from_client: bool) -> Option<u64> {
        let spot = (head.interface, head.tuple);
        let same = |recent: &&mut Recent| {
            recent.from_client == from_client && recent.content == head.content && {
                let apart = match (recent.time, time) {
                    (Some(a), Some(b)) => a.max(b).since(a.min(b)),
                    _ => Duration::ZERO,
                };
                match (recent.ip_id, head.ip_id) {
                    (Some(a), Some(b)) => a == b && apart <= SAME_ID,
                    (None, None) => {
                        apart <= SAME_CONTENT && (head.interface.is_any || !recent.spots.contains(&spot))
                    }
                    _ => false,
                }
            }
        };
        let recent = self.recent.iter_mut().rev().find(same)?;
        if recent.spots.len() < MAX_SEEN {
            recent.spots.push(spot);
        }
        Some(recent.number)
    }

    /// Whether a packet with the same data, or the same SYN or FIN, was sent before.
    fn is_sent_before(&self, content: &Content, from_client: bool) -> bool {
        let Content::Tcp { flags, seq, bytes, .. } = *content else { return false };
        let fixed = flag::SYN | flag::FIN | flag::RST;
        if flags & flag::RST != 0 || (bytes == 0 && flags & fixed == 0) {
            return false;
        }
        self.recent.iter().any(|recent| {
            let Content::Tcp { flags: other, seq: at, bytes: length, .. } = recent.content else {
                return false;
            };
            recent.from_client == from_client
                && at == seq
                && length == bytes
                && other & fixed == flags & fixed
        })
    }
}

fn earlier(a: Option<Timestamp>, b: Option<Timestamp>) -> Option<Timestamp> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
