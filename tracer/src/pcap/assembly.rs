//! From packets to connections: every packet of a capture goes to its connection, under whichever tuple it was seen.
//!
//! Owns the ways by which a tuple finds its connection: the translations that a recording shows, a SYN that was seen
//! under another tuple just before, or the tuple itself. The number of connections and of listed packets is bounded.

use std::collections::{HashMap, VecDeque};

use foldhash::fast::RandomState;

use super::{
    MAX_TUPLES, Packet, Recorded, canonical,
    clock::Beginnings,
    connection::{Connection, SAME_ID},
    head,
    head::{Content, Head},
};
use crate::{
    net::{Tuple, flag},
    text::count,
    time::Timestamp,
};

/// The most connections: a tuple can have several, one after the other.
const MAX_CONNECTIONS: usize = 2 * MAX_TUPLES;
/// The most packets listed, over all connections.
const MAX_LINES: usize = 1 << 18;
/// The most SYNs among which one under another tuple is found.
const MAX_SYNS: usize = 256;

/// The connections of a capture.
#[derive(Debug, Default)]
pub struct Assembly {
    pub(super) connections: Vec<Connection>,
    /// The latest connection of each tuple that a client used, in canonical form.
    current: HashMap<Tuple, usize, RandomState>,
    /// Tuples of which a SYN shows the connection.
    aliases: HashMap<Tuple, Alias, RandomState>,
    syns: VecDeque<Syn>,
    lines: usize,
    /// Packets whose connections had no room.
    without_room: u64,
}

/// Another tuple of a connection. Both have the client's direction.
#[derive(Clone, Copy, Debug)]
struct Alias {
    tuple: Tuple,
    orig: Tuple,
}

#[derive(Debug)]
struct Syn {
    time: Option<Timestamp>,
    content: Content,
    ip_id: u16,
    orig: Tuple,
    tuple: Tuple,
}

impl Assembly {
    /// Takes one packet. Packets without a tuple are counted by [`Tuples`](super::Tuples).
    pub fn add(&mut self, packet: &Packet<'_>, recorded: &Recorded) {
        let Ok(head) = head(packet) else { return };
        let (orig, from_client, is_oriented) = self.route(&head, packet.time, recorded);
        let key = canonical(orig);
        let current = self.current.get(&key).copied().filter(|at| {
            !(from_client
                && self.connections.get(*at).is_some_and(|found| found.is_followed_by(&head.content)))
        });
        let at = match current {
            Some(at) => at,
            None if self.connections.len() < MAX_CONNECTIONS => {
                self.connections.push(Connection::new(orig, is_oriented));
                self.current.insert(key, self.connections.len() - 1);
                self.connections.len() - 1
            }
            None => {
                self.without_room += 1;
                return;
            }
        };
        let Some(connection) = self.connections.get_mut(at) else { return };
        // An ICMP error travels against the packet that it is about.
        let from_client = from_client != matches!(head.content, Content::Icmp { .. });
        let lists = self.lines < MAX_LINES;
        self.lines += usize::from(connection.add(&head, packet.time, from_client, lists));
    }

    /// When the connections began of which a SYN was captured, by their tuples in canonical form.
    pub(super) fn beginnings(&self) -> Beginnings {
        let mut beginnings = Beginnings::default();
        for connection in self.connections.iter().filter(|connection| connection.isn.is_some()) {
            if let Some(first) = connection.first {
                beginnings.add(canonical(connection.tuple), first);
            }
        }
        beginnings
    }

    /// The packets without room, in words.
    pub(crate) fn remark(&self) -> Option<String> {
        (self.without_room > 0)
            .then(|| format!("{} of further connections are left out", count(self.without_room, "packet")))
    }

    /// The connection's tuple in the client's direction, whether the client sent a packet of this tuple, and whether
    /// that is certain.
    fn route(&mut self, head: &Head, time: Option<Timestamp>, recorded: &Recorded) -> (Tuple, bool, bool) {
        let key = canonical(head.tuple);
        if let Some(found) = recorded.translation(key, time) {
            return (found.orig, head.tuple == found.tuple, true);
        }
        if let Some(alias) = self.aliases.get(&key) {
            return (alias.orig, head.tuple == alias.tuple, true);
        }
        let known = self.current.get(&key).and_then(|at| self.connections.get_mut(*at));
        if let Some(connection) = known {
            // A SYN of the other end is a connection of its own.
            if !head.content.opens() || connection.tuple == head.tuple {
                return (connection.tuple, head.tuple == connection.tuple, connection.is_oriented);
            }
        }
        let opens = head.content.opens();
        if let (true, Some(ip_id)) = (opens, head.ip_id) {
            if let Some(syn) = self.syns.iter().rev().find(|syn| syn.is(head, ip_id, time)) {
                let alias = Alias { tuple: head.tuple, orig: syn.orig };
                if self.aliases.len() < MAX_TUPLES {
                    self.aliases.insert(key, alias);
                }
                return (alias.orig, true, true);
            }
            if self.syns.len() >= MAX_SYNS {
                self.syns.pop_front();
            }
            let (content, tuple) = (head.content, head.tuple);
            self.syns.push_back(Syn { time, content, ip_id, orig: tuple, tuple });
        }
        if head.content.has(flag::SYN) && !opens {
            return (head.tuple.reversed(), false, true);
        }
        (head.tuple, true, opens)
    }
}

impl Syn {
    /// Whether this is the same SYN under another tuple.
    fn is(&self, head: &Head, ip_id: u16, time: Option<Timestamp>) -> bool {
        let near = match (self.time, time) {
            (Some(a), Some(b)) => a.max(b).since(a.min(b)) <= SAME_ID,
            _ => false,
        };
        near && self.ip_id == ip_id && self.content == head.content && self.tuple != head.tuple
    }
}
