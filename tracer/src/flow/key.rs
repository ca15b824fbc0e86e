//! The index of the flows: by a connection's two ends, whatever the direction of a packet.
//!
//! Owns only normal forms of addresses. It does not decide which sightings belong together in time.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    net::{Ipv4Addr, Ipv6Addr},
};

use foldhash::fast::RandomState;

use super::slots::Life;
use crate::net::{Netns, Protocol, Tuple};

/// The flow at each key. IPv4 has a table of its own: with short keys more of it stays in the processor's cache, and every
/// sighting is looked up.
///
/// A flow that ends leaves its keys behind, because its memory and theirs have left that cache: they lead to a [`Life`] that is
/// over. When a table is full, those of the flows that are left move to a new one.
#[derive(Debug, Default)]
pub(super) struct Index {
    v4: Table<Ends<u32>>,
    v6: Table<Ends<u128>>,
}

type Table<K> = HashMap<K, Life, RandomState>;

/// The most keys that one sighting adds.
const MARGIN: usize = 8;
/// A table with room for fewer keys would be moved too often.
const LEAST: usize = 512;

impl Index {
    pub(super) fn get(&self, key: &Key) -> Option<Life> {
        match key {
            Key::V4(ends) => self.v4.get(ends).copied(),
            Key::V6(ends) => self.v6.get(ends).copied(),
        }
    }

    /// Returns the flow that had the key.
    pub(super) fn insert(&mut self, key: Key, flow: Life) -> Option<Life> {
        match key {
            Key::V4(ends) => self.v4.insert(ends, flow),
            Key::V6(ends) => self.v6.insert(ends, flow),
        }
    }

    /// Removes the key if it is this flow's.
    pub(super) fn remove(&mut self, key: &Key, flow: Life) {
        match key {
            Key::V4(ends) => remove(&mut self.v4, ends, flow),
            Key::V6(ends) => remove(&mut self.v6, ends, flow),
        }
    }

    /// Forgets the keys of flows that have ended, if there is no room for further ones.
    pub(super) fn make_room(&mut self, is_alive: impl Fn(Life) -> bool) {
        make_room(&mut self.v4, &is_alive);
        make_room(&mut self.v6, &is_alive);
    }

    pub(super) fn clear(&mut self) {
        self.v4.clear();
        self.v6.clear();
    }
}

fn remove<K: Eq + Hash>(table: &mut Table<K>, key: &K, flow: Life) {
    if table.get(key) == Some(&flow) {
        table.remove(key);
    }
}

fn make_room<K: Eq + Hash>(table: &mut Table<K>, is_alive: impl Fn(Life) -> bool) {
    if table.len() + MARGIN <= table.capacity() {
        return;
    }
    // Half as many again as there are keep the moves rare, and the table small.
    let alive = table.values().filter(|flow| is_alive(**flow)).count();
    let mut next =
        Table::with_capacity_and_hasher((alive + alive / 2 + 2 * MARGIN).max(LEAST), RandomState::default());
    next.extend(table.drain().filter(|(_, flow)| is_alive(*flow)));
    *table = next;
}

/// The two ends of a connection: a packet and its answer have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    V4(Ends<u32>),
    V6(Ends<u128>),
}

/// The ends in the order of their addresses and ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ends<A> {
    low: A,
    high: A,
    ports: u32,
    /// Loopback and IPv6 link-local addresses mean another host in each namespace; all others mean the same host
    /// everywhere on a node.
    scope: u32,
    protocol: Protocol,
}

impl Key {
    pub(super) fn new(tuple: &Tuple, netns: Netns) -> Self {
        match (tuple.src.ipv4_bits(), tuple.dst.ipv4_bits()) {
            (Some(src), Some(dst)) => Self::V4(Ends::new(src, dst, tuple, netns, is_scoped_v4)),
            _ => Self::V6(Ends::new(tuple.src.bits(), tuple.dst.bits(), tuple, netns, is_scoped_v6)),
        }
    }
}

impl<A: Copy + Ord> Ends<A> {
    #[inline]
    fn new(src: A, dst: A, tuple: &Tuple, netns: Netns, is_scoped: impl Fn(A) -> bool) -> Self {
        let (src, dst) = ((src, tuple.src.port()), (dst, tuple.dst.port()));
        let ((low, low_port), (high, high_port)) = if src <= dst { (src, dst) } else { (dst, src) };
        Self {
            low,
            high,
            ports: u32::from(low_port) << 16 | u32::from(high_port),
            scope: if is_scoped(low) || is_scoped(high) { netns.0 } else { 0 },
            protocol: tuple.protocol,
        }
    }
}

impl<A> Ends<A> {
    fn hash_rest<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.ports) << 32 | u64::from(self.scope ^ u32::from(self.protocol.0)));
    }
}

impl Hash for Ends<u32> {
    /// Feeds the keyed hash two words.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash_rest(state);
        state.write_u64(u64::from(self.low) << 32 | u64::from(self.high));
    }
}

impl Hash for Ends<u128> {
    /// Feeds the keyed hash five words.
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.hash_rest(state);
        for word in [self.low, self.high] {
            state.write_u64((word >> 64) as u64);
            state.write_u64(word as u64);
        }
    }
}

/// Whether the IPv4 address has a meaning only within its namespace.
const fn is_scoped_v4(ip: u32) -> bool {
    Ipv4Addr::from_bits(ip).is_loopback()
}

/// The same for IPv6.
const fn is_scoped_v6(ip: u128) -> bool {
    let ip = Ipv6Addr::from_bits(ip);
    ip.is_loopback() || ip.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::net::Protocol;

    fn tuple(src: &str, dst: &str) -> Tuple {
        Tuple::new(Protocol::TCP, src.parse::<SocketAddr>().unwrap(), dst.parse::<SocketAddr>().unwrap())
    }

    #[test]
    fn both_directions_have_one_key() {
        let t = tuple("10.0.0.1:1000", "10.0.0.2:80");
        assert_eq!(Key::new(&t, Netns(1)), Key::new(&t.reversed(), Netns(2)));
        assert_ne!(Key::new(&t, Netns(1)), Key::new(&tuple("10.0.0.1:80", "10.0.0.2:1000"), Netns(1)));
    }

    #[test]
    fn loopback_is_per_namespace() {
        let t = tuple("127.0.0.1:1000", "127.0.0.1:30080");
        assert_ne!(Key::new(&t, Netns(1)), Key::new(&t, Netns(2)));
    }

    #[test]
    fn a_link_local_address_is_per_namespace() {
        let t = tuple("[fe80::1]:1000", "[fe80::2]:80");
        assert_ne!(Key::new(&t, Netns(1)), Key::new(&t, Netns(2)));
        assert_eq!(Key::new(&t, Netns(1)), Key::new(&t.reversed(), Netns(1)));
    }

    #[test]
    fn a_dual_stack_socket_names_the_same_connection() {
        let mapped = tuple("[::ffff:10.0.0.1]:1000", "[::ffff:10.0.0.2]:80");
        assert_eq!(mapped, tuple("10.0.0.1:1000", "10.0.0.2:80"));
    }

    #[test]
    fn a_key_is_removed_by_its_own_flow_only() {
        for (src, dst) in [("10.0.0.1:1000", "10.0.0.2:80"), ("[fd00::1]:1000", "[fd00::2]:80")] {
            let key = Key::new(&tuple(src, dst), Netns(1));
            let mut index = Index::default();
            let [one, other] = [1, 2].map(|index| Life { index, number: 0 });
            assert_eq!((index.insert(key, one), index.insert(key, other)), (None, Some(one)));
            index.remove(&key, one);
            assert_eq!(index.get(&key), Some(other));
            index.remove(&key, other);
            assert_eq!(index.get(&key), None);
        }
    }

    #[test]
    fn keys_of_flows_that_ended_take_no_further_room() {
        let key = |number: u16| Key::new(&tuple(&format!("10.0.0.1:{number}"), "10.0.0.2:80"), Netns(1));
        let mut index = Index::default();
        let mut capacity = 0;
        for number in 0..u16::MAX {
            index.make_room(|flow| flow.number + 1000 > u32::from(number));
            index.insert(key(number), Life { index: 0, number: number.into() });
            capacity = capacity.max(index.v4.capacity());
        }
        assert!(capacity < 4000, "{capacity}");
        for number in u16::MAX - 999..u16::MAX {
            assert!(index.get(&key(number)).is_some(), "{number}");
        }
    }
}
