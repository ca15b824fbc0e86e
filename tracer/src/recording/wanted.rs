//! The addresses of the flows that a query wants, and the sightings and blocks that name them.
//!
//! Owns which addresses lead to a flow: it has other ones after NAT, which its own conntrack entry names. A reader that
//! learned of some late reads the file again. Judges nothing.

use std::{
    collections::HashSet,
    net::{IpAddr, SocketAddr},
};

use foldhash::fast::RandomState;

use super::index::{Addressed, FIRST_CLIENT_PORT, host, port, socket, template};
use crate::{
    net::{TransportAddr, Tuple},
    sighting::{Conntrack, Fact, Hook, Sighting},
    time::Timestamp,
};

/// The most addresses learned from the flows' entries.
const MAX_LEARNED: usize = 65_536;

/// The most blocks noted as having none of the flows.
const MAX_BARREN: usize = 1 << 20;

/// The part of a recording that is read.
#[derive(Clone, Debug, Default)]
pub enum Part {
    #[default]
    Whole,
    /// What can matter from the first wanted time on, by the index.
    Time,
    /// The flows of these addresses, of that time, by the index.
    Flows(Box<Wanted>),
}

/// A set of ports that may have others too: a query has few, and each record has several.
#[derive(Clone, Debug, Default)]
struct Ports([u64; 16]);

impl Ports {
    fn add(&mut self, port: u16) {
        if let Some(word) = self.0.get_mut(usize::from(port >> 6) % 16) {
            *word |= 1 << (port % 64);
        }
    }

    fn may_have(&self, port: u16) -> bool {
        self.0.get(usize::from(port >> 6) % 16).is_some_and(|word| word >> (port % 64) & 1 == 1)
    }
}

/// The addresses that a query wants.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    ips: HashSet<u128, RandomState>,
    ports: HashSet<u16, RandomState>,
    sockets: HashSet<TransportAddr, RandomState>,
    /// Those after NAT of the flows above.
    learned: HashSet<TransportAddr, RandomState>,
    /// The ports of both.
    socket_ports: Ports,
    /// Blocks that were read whole and have none of these flows, by the beginning of their file and their sequence number.
    barren: HashSet<(Timestamp, u32), RandomState>,
    /// A flow's other address is rather its endpoint's than its own: one for many flows.
    learns_endpoints: bool,
    has_overflown: bool,
}

impl Wanted {
    /// Nothing yet. The flows to be added have few endpoints, and many other addresses after NAT.
    pub fn of_service() -> Self {
        Self { learns_endpoints: true, ..Self::default() }
    }

    /// Adds the flows of a host. Returns whether they are new.
    pub fn add_ip(&mut self, ip: IpAddr) -> bool {
        self.ips.insert(bits(ip))
    }

    /// Adds the flows of one address with a port.
    pub fn add_socket(&mut self, address: SocketAddr) -> bool {
        self.socket_ports.add(address.port());
        !self.has_asked(address.into()) && self.sockets.insert(address.into())
    }

    /// Adds the flows with this port at any address; false for a port of clients, which the index does not have by itself.
    pub fn add_port(&mut self, port: u16) -> bool {
        let is_known = port < FIRST_CLIENT_PORT;
        if is_known {
            self.ports.insert(port);
        }
        is_known
    }

    /// Whether all flows between a client and an address are wanted.
    pub(crate) fn covers(&self, client: IpAddr, to: SocketAddr) -> bool {
        self.ips.contains(&bits(client)) || self.has_asked(to.into())
    }

    /// How many addresses are wanted.
    pub fn addresses(&self) -> usize {
        self.ips.len() + self.ports.len() + self.sockets.len() + self.learned.len()
    }

    /// Whether the flows have more addresses than are kept.
    pub fn has_overflown(&self) -> bool {
        self.has_overflown
    }

    /// The blocks that were read and have none of these flows are read again: there are further addresses.
    pub(crate) fn forget_barren(&mut self) {
        self.barren.clear();
    }

    /// Every record of this block was looked through, and none is of these flows.
    pub(super) fn add_barren(&mut self, file: Timestamp, sequence: u32) {
        if self.barren.len() < MAX_BARREN {
            self.barren.insert((file, sequence));
        }
    }

    pub(super) fn is_barren(&self, file: Timestamp, sequence: u32) -> bool {
        self.barren.contains(&(file, sequence))
    }

    fn has_asked(&self, address: TransportAddr) -> bool {
        self.ips.contains(&address.bits())
            || (self.socket_ports.may_have(address.port()) && self.sockets.contains(&address))
            || self.ports.contains(&address.port())
    }

    fn asks(&self, tuple: &Tuple) -> bool {
        self.has_asked(tuple.src) || self.has_asked(tuple.dst)
    }

    fn has(&self, tuple: &Tuple) -> bool {
        let is_learned = |address: &TransportAddr| {
            self.socket_ports.may_have(address.port()) && self.learned.contains(address)
        };
        self.asks(tuple) || is_learned(&tuple.src) || is_learned(&tuple.dst)
    }

    /// Whether a record of an entry or a socket with these addresses can be of a wanted flow.
    pub(super) fn may_take(&self, tuples: &[Option<Tuple>]) -> bool {
        tuples.iter().flatten().any(|tuple| self.has(tuple))
    }

    /// Whether the sighting is of a wanted flow. Learns the flow's other addresses.
    pub(crate) fn takes(&mut self, sighting: &Sighting) -> bool {
        match &sighting.fact {
            Fact::Conntrack(fact) => {
                // At this hook NAT is still being decided.
                if sighting.hook == Hook::NatSetup {
                    return self.has(&fact.ct.orig) || self.has(&fact.ct.reply);
                }
                self.takes_entry(&fact.ct)
            }
            Fact::Packet(fact) => {
                let by_entry = fact.ct.as_ref().is_some_and(|ct| self.takes_entry(ct));
                by_entry || fact.tuple.as_ref().is_some_and(|tuple| self.has(tuple))
            }
            Fact::Socket(fact) => self.has(&fact.tuple),
            // The connection follows its template.
            Fact::Ipvs(fact) => fact.is_template() || self.takes_pair(&fact.tuple, &fact.reply()),
            Fact::TableFull { .. } => false,
        }
    }

    fn takes_entry(&mut self, ct: &Conntrack) -> bool {
        self.takes_pair(&ct.orig, &ct.reply)
    }

    fn takes_pair(&mut self, orig: &Tuple, reply: &Tuple) -> bool {
        match (self.has(orig), self.has(reply)) {
            (true, true) => {}
            (false, false) => return false,
            (true, false) => {
                let is_masqueraded = reply.dst != orig.src;
                let by_endpoint = self.learns_endpoints || !is_masqueraded;
                self.learn(if by_endpoint { reply.src } else { reply.dst });
            }
            // An endpoint of wanted flows also serves others.
            (false, true) if !self.asks(reply) && self.learns_endpoints => {}
            (false, true) => self.learn(orig.src),
        }
        true
    }

    fn learn(&mut self, address: TransportAddr) {
        if self.learned.len() < MAX_LEARNED {
            self.socket_ports.add(address.port());
            self.learned.insert(address);
        } else {
            self.has_overflown |= !self.learned.contains(&address);
        }
    }

    /// Whether a frame with these addresses can have records of a wanted flow.
    pub(super) fn is_in(&self, addressed: &Addressed) -> bool {
        let Addressed { hosts, sockets } = addressed;
        let has_socket = |address: &TransportAddr| {
            let ip = address.bits();
            if !hosts.has(host(ip)) {
                return false;
            }
            let has_port = if address.port() < FIRST_CLIENT_PORT {
                hosts.has(port(address.port()))
            } else {
                sockets.has(socket(*address))
            };
            has_port || hosts.has(template(ip))
        };
        self.ips.iter().any(|ip| hosts.has(host(*ip)))
            || self.ports.iter().any(|number| hosts.has(port(*number)))
            || self.sockets.iter().chain(&self.learned).any(has_socket)
    }
}

fn bits(ip: IpAddr) -> u128 {
    TransportAddr::from(SocketAddr::new(ip, 0)).bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        net::{Netns, Protocol},
        sighting::{ConntrackFact, EntryNote, SocketEvent, SocketFact, Status, TcpState},
    };

    fn tuple(src: &str, dst: &str) -> Tuple {
        Tuple::new(Protocol::TCP, src.parse().unwrap(), dst.parse().unwrap())
    }

    fn sighting(hook: Hook, fact: Fact) -> Sighting {
        Sighting { time: Timestamp::MIN, cpu: 0, hook, netns: Netns(1), fact }
    }

    fn entry(orig: Tuple, reply: Tuple) -> Sighting {
        let ct = Conntrack { id: 1, zone: 0, status: Status(0), orig, reply };
        sighting(Hook::Confirm, Fact::Conntrack(ConntrackFact { ct, task: None, note: EntryNote::default() }))
    }

    fn at_socket(tuple: Tuple) -> Sighting {
        let event = SocketEvent::State { old: TcpState::SynSent, new: TcpState::Established };
        let fact = SocketFact { sk: 1, tuple, event, bytes_acked: 0, bytes_received: 0, task: None };
        sighting(Hook::SockEstablished, Fact::Socket(fact))
    }

    #[test]
    fn a_masqueraded_flow_is_followed_by_the_nodes_port() {
        let mut wanted = Wanted::default();
        wanted.add_socket("10.0.0.1:40000".parse().unwrap());
        let behind = at_socket(tuple("10.0.2.2:8080", "10.0.9.9:50000"));
        assert!(!wanted.takes(&behind));
        let entry = entry(tuple("10.0.0.1:40000", "10.96.0.1:80"), tuple("10.0.2.2:8080", "10.0.9.9:50000"));
        assert!(wanted.takes(&entry) && wanted.takes(&behind));
        assert!(!wanted.takes(&at_socket(tuple("10.0.2.2:8080", "10.0.9.9:50001"))));
        assert_eq!(wanted.addresses(), 2);
    }

    #[test]
    fn an_endpoint_of_a_service_is_learned_and_what_it_serves_besides_is_not() {
        let mut wanted = Wanted::of_service();
        wanted.add_ip("10.96.0.1".parse().unwrap());
        assert!(wanted.takes(&entry(
            tuple("10.0.0.1:40000", "10.96.0.1:80"),
            tuple("10.0.2.2:8080", "10.0.0.1:40000"),
        )));
        assert!(wanted.takes(&at_socket(tuple("10.0.2.2:8080", "10.0.0.1:40000"))));
        let other = entry(tuple("10.0.0.1:40002", "10.96.0.2:80"), tuple("10.0.2.2:8080", "10.0.0.1:40002"));
        assert!(wanted.takes(&other));
        assert_eq!(wanted.addresses(), 2);
    }

    #[test]
    fn the_client_of_a_wanted_endpoint_is_learned() {
        let mut wanted = Wanted::default();
        wanted.add_ip("10.0.2.2".parse().unwrap());
        let at_client = at_socket(tuple("10.0.0.1:40000", "10.96.0.1:80"));
        assert!(!wanted.takes(&at_client));
        assert!(wanted.takes(&entry(
            tuple("10.0.0.1:40000", "10.96.0.1:80"),
            tuple("10.0.2.2:8080", "10.0.0.1:40000"),
        )));
        assert!(wanted.takes(&at_client));
    }
}
