//! The index key of a flow: a connection's two ends, whatever the direction of a packet.
//!
//! Owns only normal forms of addresses. It does not decide which sightings belong together in time.

use std::hash::{Hash, Hasher};

use crate::net::{Netns, Tuple};

/// The two ends of a connection, unordered: a packet and its answer have the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    low: u128,
    high: u128,
    ports: u32,
    /// Loopback and IPv6 link-local addresses mean another host in each namespace; all others mean the same host
    /// everywhere on a node.
    scope: u32,
    protocol: u8,
}

impl Key {
    pub(super) fn new(tuple: &Tuple, netns: Netns) -> Self {
        let (src, dst) = ((tuple.src.bits(), tuple.src.port()), (tuple.dst.bits(), tuple.dst.port()));
        let (low, high) = if src <= dst { (src, dst) } else { (dst, src) };
        let is_scoped = is_scoped(low.0) || is_scoped(high.0);
        Self {
            low: low.0,
            high: high.0,
            ports: u32::from(low.1) << 16 | u32::from(high.1),
            scope: if is_scoped { netns.0 } else { 0 },
            protocol: tuple.protocol.0,
        }
    }
}

impl Hash for Key {
    /// Feeds the keyed hash two words for IPv4, five for IPv6: this runs for every sighting.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.ports) << 32 | u64::from(self.scope ^ u32::from(self.protocol)));
        if is_mapped(self.low) && is_mapped(self.high) {
            state.write_u64((self.low as u64) << 32 | u64::from(self.high as u32));
        } else {
            for word in [self.low, self.high] {
                state.write_u64((word >> 64) as u64);
                state.write_u64(word as u64);
            }
        }
    }
}

/// Whether it is an IPv4 address.
const fn is_mapped(ip: u128) -> bool {
    ip >> 32 == 0xffff
}

/// Whether the address has a meaning only within its namespace: `127.0.0.0/8` (mapped), `::1` and `fe80::/10`.
const fn is_scoped(ip: u128) -> bool {
    const MAPPED_LOOPBACK: u128 = 0xffff_7f00_0000;
    ip >> 24 == MAPPED_LOOPBACK >> 24 || ip == 1 || ip >> 118 == 0xfe80 >> 6
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
}
