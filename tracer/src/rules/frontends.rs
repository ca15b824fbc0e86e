//! The addresses and ports that the rules handle, whether or not they should.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::{IpAddr, SocketAddr},
};

use super::{Chain, Datum, Family, Key, NFTABLES_TABLE, Name, Rule, Ruleset, Step, Table, Verdict, Writer};
use crate::{net::Protocol, rules::ipset};

/// An address that clients connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frontend {
    /// `None`: a node port, on all the node's addresses that accept node ports.
    pub address: Option<IpAddr>,
    pub protocol: Protocol,
    pub port: u16,
}

/// `10.96.0.10:53/UDP`, `node port 30080/TCP`.
impl fmt::Display for Frontend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(ip) => write!(f, "{}/{}", SocketAddr::new(ip, self.port), self.protocol),
            None => write!(f, "node port {}/{}", self.port, self.protocol),
        }
    }
}

/// A place in the rules that names a frontend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub writer: Writer,
    /// The name of the chain, map or ipset.
    pub place: Name,
    /// `namespace/name:port`, if a comment or a chain's name contains it.
    pub service: Option<Box<str>>,
}

/// iptables chains whose rules name frontends. The rules of IPVS mode name them in ipsets.
const CHAINS: [(&str, &str); 5] = [
    ("nat", "KUBE-SERVICES"),
    ("nat", "KUBE-NODEPORTS"),
    ("filter", "KUBE-SERVICES"),
    ("filter", "KUBE-EXTERNAL-SERVICES"),
    ("filter", "KUBE-PROXY-FIREWALL"),
];

/// ipsets whose elements are frontends (`pkg/proxy/ipvs/ipset.go`), without the prefix of the IPv6 ones.
const IPSETS: [&str; 13] = [
    "CLUSTER-IP",
    "EXTERNAL-IP",
    "EXTERNAL-IP-LOCAL",
    "LOAD-BALANCER",
    "LOAD-BALANCER-LOCAL",
    "LOAD-BALANCER-FW",
    "LOAD-BALANCER-SOURCE-CIDR",
    "NODE-PORT-TCP",
    "NODE-PORT-UDP",
    "NODE-PORT-SCTP-HASH",
    "NODE-PORT-LOCAL-TCP",
    "NODE-PORT-LOCAL-UDP",
    "NODE-PORT-LOCAL-SCTP-HASH",
];

impl Ruleset {
    /// Every frontend of this family that kube-proxy's rules name, with the first place of each writer.
    pub fn frontends(&self, family: Family) -> BTreeMap<Frontend, Vec<Named>> {
        let mut found = BTreeMap::<Frontend, Vec<Named>>::new();
        let mut add = |frontend: Frontend, named: Named| {
            let places = found.entry(frontend).or_default();
            if !places.iter().any(|known| known.writer == named.writer && known.place == named.place) {
                places.push(named);
            }
        };
        for table in self.tables.iter().filter(|table| table.family == family) {
            if table.writer == Writer::Nftables {
                if table.name.as_ref() == NFTABLES_TABLE {
                    of_maps(table, &mut add);
                }
            } else {
                for (_, name) in CHAINS.iter().filter(|(of, _)| *of == table.name.as_ref()) {
                    if let Some(chain) = table.chain(name) {
                        of_chain(table, chain, &mut add);
                    }
                }
            }
        }
        for server in self.servers.iter().flatten() {
            if Family::of(server.address.ip()) == family {
                let frontend = Frontend {
                    address: Some(server.address.ip()),
                    protocol: server.protocol,
                    port: server.address.port(),
                };
                add(frontend, Named { writer: Writer::Ipvs, place: "IPVS".into(), service: None });
            }
        }
        for set in &self.sets {
            let known = |name: &str| ipset_name(name, family).as_str() == set.name.as_ref();
            if !IPSETS.iter().any(|name| known(name)) {
                continue;
            }
            let protocol = ipset::protocol_of(&set.name);
            for (key, _) in set.iter() {
                if let Some(frontend) = of_element(key, protocol) {
                    add(frontend, Named { writer: Writer::Ipvs, place: set.name.clone(), service: None });
                }
            }
        }
        found
    }
}

impl Ruleset {
    /// The addresses to which the rules restrict node ports (`nodePortAddresses`); `None` if they serve every address
    /// of the node, or none. In IPVS mode each address has its servers instead.
    pub fn node_port_addresses(&self, family: Family) -> Option<BTreeSet<IpAddr>> {
        let mut found = BTreeSet::new();
        for table in self.tables.iter().filter(|table| table.family == family) {
            if table.writer == Writer::Nftables {
                let set = table.set("nodeport-ips").filter(|_| table.name.as_ref() == NFTABLES_TABLE);
                found.extend(set.iter().flat_map(|set| set.iter()).filter_map(
                    |(key, _)| match key.as_ref() {
                        [Datum::Address(ip)] => Some(*ip),
                        _ => None,
                    },
                ));
                continue;
            }
            let chain = table.chain("KUBE-SERVICES").filter(|_| table.name.as_ref() == "nat");
            let jumps = |rule: &&Rule| matches!(rule.steps.last(), Some(Step::Do(Verdict::Jump(to))) if **to == *"KUBE-NODEPORTS");
            for step in chain.iter().flat_map(|chain| chain.rules.iter()).filter(jumps).flat_map(|r| &r.steps)
            {
                if let Step::Destination(to) = step
                    && !to.is_negated()
                {
                    found.extend(to.ranges().filter_map(|range| range.as_host()));
                }
            }
        }
        (!found.is_empty()).then_some(found)
    }
}

/// The name of one of kube-proxy's ipsets: prefixed by family and cut at 31 characters.
pub(crate) fn ipset_name(name: &str, family: Family) -> String {
    let prefix = if family == Family::Ipv4 { "KUBE-" } else { "KUBE-6-" };
    prefix.chars().chain(name.chars()).take(31).collect()
}

fn of_chain(table: &Table, chain: &Chain, add: &mut impl FnMut(Frontend, Named)) {
    for rule in &chain.rules {
        if let Some(frontend) = of_rule(rule) {
            let service = rule.comment.as_deref().and_then(service_of_comment).map(Into::into);
            add(frontend, Named { writer: table.writer, place: chain.name.clone(), service });
        }
    }
}

/// The frontend of a rule that names an address, protocol and port; without an address it is a node port.
pub(crate) fn of_rule(rule: &Rule) -> Option<Frontend> {
    let (mut address, mut protocol, mut port) = (None, None, None);
    for step in &rule.steps {
        match step {
            Step::Destination(to) if !to.is_negated() => address = Some(to.host()?),
            Step::Protocol { protocol: of, negated: false } => protocol = Some(*of),
            Step::Port { first, last, negated: false } if first == last => port = Some(*first),
            _ => {}
        }
    }
    Some(Frontend { address, protocol: protocol?, port: port? })
}

fn of_maps(table: &Table, add: &mut impl FnMut(Frontend, Named)) {
    for set in &table.sets {
        for (key, verdict) in set.iter() {
            if let Some(verdict) = verdict
                && let Some(frontend) = of_element(key, Protocol::TCP)
            {
                let service = match verdict {
                    Verdict::Goto(chain) | Verdict::Jump(chain) => service_of_chain(chain),
                    _ => None,
                };
                add(frontend, Named { writer: table.writer, place: set.name.clone(), service });
            }
        }
    }
}

/// `default`: the protocol of a set whose elements are only ports.
fn of_element(key: &Key, default: Protocol) -> Option<Frontend> {
    match key.as_ref() {
        [Datum::Address(ip), Datum::Protocol(protocol), Datum::Port(port), ..] => {
            Some(Frontend { address: Some(*ip), protocol: *protocol, port: *port })
        }
        [Datum::Protocol(protocol), Datum::Port(port)] => {
            Some(Frontend { address: None, protocol: *protocol, port: *port })
        }
        [Datum::Port(port)] => Some(Frontend { address: None, protocol: default, port: *port }),
        _ => None,
    }
}

/// `namespace/name:port` at the start of kube-proxy's comments (`shop/cart:http cluster IP`).
pub(crate) fn service_of_comment(comment: &str) -> Option<&str> {
    let first = comment.split_ascii_whitespace().next()?;
    first.contains('/').then_some(first)
}

/// Parses `service-242WI43H-shop/cart/tcp/http`.
pub(crate) fn service_of_chain(chain: &str) -> Option<Box<str>> {
    let (_, rest) = chain.split_once('-')?;
    let (hash, rest) = rest.split_once('-')?;
    if hash.len() != 8 {
        return None;
    }
    let mut parts = rest.split("__").next()?.split('/');
    let (namespace, name, _protocol) = (parts.next()?, parts.next()?, parts.next()?);
    Some(match parts.next() {
        Some(port) if !port.is_empty() => format!("{namespace}/{name}:{port}").into(),
        _ => format!("{namespace}/{name}").into(),
    })
}
