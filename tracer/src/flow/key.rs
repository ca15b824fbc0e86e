//! The index key of a flow: a connection's two ends, whatever the direction of a packet.
//!
//! Owns only normal forms of addresses. It does not decide which sightings belong together in time.

use std::{
    hash::{Hash, Hasher},
    net::{IpAddr, SocketAddr, SocketAddrV6},
};

use crate::{
    net::{Netns, Tuple},
    sighting::Conntrack,
};

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
        let (src, dst) = (end(&tuple.src), end(&tuple.dst));
        let (low, high) = if src <= dst { (src, dst) } else { (dst, src) };
        let is_scoped = [tuple.src.ip(), tuple.dst.ip()].into_iter().any(is_scoped);
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
    /// Feeds the keyed hash three words for IPv4, seven for IPv6: this runs for every sighting.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.ports) << 32 | u64::from(self.scope ^ u32::from(self.protocol)));
        for word in [self.low, self.high] {
            let upper = (word >> 64) as u64;
            state.write_u64(word as u64);
            if upper != 0 {
                state.write_u64(upper);
            }
        }
    }
}

/// Whether the address has a meaning only within its namespace.
fn is_scoped(ip: IpAddr) -> bool {
    ip.is_loopback() || matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn end(addr: &SocketAddr) -> (u128, u16) {
    let ip = match addr.ip() {
        IpAddr::V4(ip) => u128::from(ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => u128::from(ip),
    };
    (ip, addr.port())
}

/// Addresses in their plain form: a dual-stack socket writes an IPv4 peer as `::ffff:a.b.c.d`, conntrack as `a.b.c.d`.
/// Drops flow labels and scope ids, which conntrack does not have.
pub(super) fn make_plain(tuple: &mut Tuple) {
    make_plain_addr(&mut tuple.src);
    make_plain_addr(&mut tuple.dst);
}

pub(super) fn make_plain_entry(ct: &mut Conntrack) {
    make_plain(&mut ct.orig);
    make_plain(&mut ct.reply);
}

fn make_plain_addr(addr: &mut SocketAddr) {
    if let SocketAddr::V6(v6) = *addr {
        *addr = match v6.ip().to_ipv4_mapped() {
            Some(ip) => SocketAddr::new(IpAddr::V4(ip), v6.port()),
            None => SocketAddr::V6(SocketAddrV6::new(*v6.ip(), v6.port(), 0, 0)),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Protocol;

    fn tuple(src: &str, dst: &str) -> Tuple {
        Tuple::new(Protocol::TCP, src.parse().unwrap(), dst.parse().unwrap())
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
        let mut mapped = tuple("[::ffff:10.0.0.1]:1000", "[::ffff:10.0.0.2]:80");
        make_plain(&mut mapped);
        assert_eq!(mapped, tuple("10.0.0.1:1000", "10.0.0.2:80"));
    }
}
