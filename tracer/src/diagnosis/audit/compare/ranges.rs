//! Connections that should be refused: sources outside a load balancer's ranges, ports that a Service does not have.

use std::net::{IpAddr, SocketAddr};

use super::{Comparison, Fault, MAX_EDGES, Tried, lacks_set, lacks_target};
use crate::{
    cluster::Via,
    diagnosis::audit::{Aspect, Audit, Expectation, ExpectedFrontend, ExpectedPort, Kind},
    node::ProxyMode,
    rules::{AddressRange, Datum, End, Frontend, Name, Origin, Probe, Set, Step, Writer},
};

impl Comparison<'_> {
    /// Tries both sides of each edge of the source ranges, and of the ranges that the rules admit, and the load balancer's
    /// own addresses.
    pub(super) fn edges(
        &mut self,
        index: usize,
        port: &ExpectedPort,
        known: &ExpectedFrontend,
        destination: SocketAddr,
        audit: &mut Audit,
    ) {
        let mut tried = Vec::new();
        for range in known.ranges.iter().copied().chain(self.allowed(port, known)) {
            tried.extend(
                [Some(range.first), Some(range.last), before(range.first), after(range.last)]
                    .into_iter()
                    .flatten(),
            );
        }
        let of_family = |ip: &&IpAddr| ip.is_ipv4() == destination.is_ipv4();
        tried.extend(port.service.load_balancer_ips.iter().filter(of_family));
        tried.sort_unstable();
        tried.dedup();
        // The node's own addresses are tried as the node's. From another host no packet has a loopback address.
        tried.retain(|ip| !ip.is_loopback() && !self.is_own(*ip));
        for source in tried.into_iter().take(MAX_EDGES) {
            let probe = Probe {
                origin: Origin::Outside,
                source,
                interface: None,
                destination,
                protocol: known.frontend.protocol,
                local: false,
                hairpin: false,
            };
            let fate = self.walk(&probe, audit);
            let wanted = self.wanted(port, known, Origin::Outside, source);
            if lacks_set(&fate, audit) || lacks_target(&fate, &wanted, audit) {
                continue;
            }
            let gets_in = !fate.endpoints().is_empty();
            let tried = Tried { index, port, known, probe: &probe, fate: &fate };
            if gets_in && matches!(wanted, Expectation::Endpoints(_)) {
                self.judge(tried, &wanted, audit);
                continue;
            }
            if matches!(wanted, Expectation::Endpoints(_)) && self.settle(tried, &wanted).1.is_empty() {
                continue;
            }
            let (kind, text) = match wanted {
                Expectation::Endpoints(_) if known.admits(source) => (
                    Kind::Missing,
                    format!("connections from {source} are rejected, although a source range admits them"),
                ),
                Expectation::Endpoints(_) => (
                    Kind::Missing,
                    format!(
                        "connections from {source} are rejected: it is the load balancer's own address, which is admitted \
                         because a source range contains the node"
                    ),
                ),
                Expectation::Dropped if gets_in && !known.admits(source) => (
                    Kind::Wrong,
                    format!(
                        "connections from {source} are accepted, although no source range admits them{}",
                        self.why_ranges_fail()
                    ),
                ),
                Expectation::Refused | Expectation::Dropped if known.admits(source) => {
                    // The ranges admit them, and the Service or its traffic policy has no endpoint for them.
                    self.judge(tried, &wanted, audit);
                    continue;
                }
                _ => continue,
            };
            let (aspect, place) = (Aspect::SourceRanges, self.firewall_place(port));
            let fault = Fault { port: index, kind, aspect, endpoint: None, place, text };
            self.found.add(fault, known.frontend, Origin::Outside);
        }
    }

    /// Whether this is an address of the node itself.
    fn is_own(&self, ip: IpAddr) -> bool {
        let captured = self.context.own_addresses.as_ref().is_some_and(|own| own.contains(&ip));
        captured || self.expected.node_addresses.contains(&ip)
    }

    /// The source ranges that the rules have for this Service port.
    pub(super) fn allowed(&self, port: &ExpectedPort, known: &ExpectedFrontend) -> Vec<AddressRange> {
        let name = self.firewall_place(port);
        let chains =
            self.rules.tables.iter().filter(|t| t.family == self.family).filter_map(|t| t.chain(&name));
        let sources = chains.flat_map(|chain| chain.rules.iter()).flat_map(|rule| &rule.steps);
        let mut ranges = sources
            .filter_map(|step| match step {
                Step::Source(from) => Some(from.ranges()),
                _ => None,
            })
            .flatten()
            .collect::<Vec<_>>();
        for (key, _) in self.rules.sets.iter().filter(|set| *set.name == *name).flat_map(Set::iter) {
            if let [Datum::Address(ip), Datum::Protocol(_), Datum::Port(number), source] = key.as_ref()
                && Some(*ip) == known.frontend.address
                && *number == known.frontend.port
            {
                match source {
                    Datum::Range(range) => ranges.push(*range),
                    Datum::Address(ip) => ranges.push(AddressRange::host(*ip)),
                    _ => {}
                }
            }
        }
        ranges
    }

    /// A `ClusterIP` refuses ports that its Service does not have.
    pub(super) fn unlisted_port(&mut self, index: usize, port: &ExpectedPort, audit: &mut Audit) {
        let Some(number) =
            (9..=u16::MAX).find(|number| !port.service.ports.iter().any(|p| p.port == *number))
        else {
            return;
        };
        // IPVS mode assigns all of a Service's addresses to kube-ipvs0, and refuses ports that are not served there.
        let all = self.context.mode == ProxyMode::Ipvs;
        let frontends = port.frontends.iter().filter(|known| known.via == Via::ClusterIp || all);
        for known in frontends {
            // kube-proxy assigns no address that another interface has, so the node itself answers there.
            let Some(ip) = known.frontend.address.filter(|ip| !all || !self.is_own(*ip)) else { continue };
            for origin in [Origin::Pod, Origin::Outside] {
                if self.frame.unfiltered.contains(&origin) {
                    continue;
                }
                let (source, interface) = self.sources.of(origin);
                let probe = Probe {
                    origin,
                    source,
                    interface,
                    destination: SocketAddr::new(ip, number),
                    protocol: port.port.protocol,
                    // IPVS mode assigns the address to kube-ipvs0.
                    local: self.context.mode == ProxyMode::Ipvs,
                    hairpin: false,
                };
                let fate = self.walk(&probe, audit);
                if fate.branches.iter().all(|branch| branch.end == End::Refused) || lacks_set(&fate, audit) {
                    continue;
                }
                let place: Name = match self.writer {
                    Writer::Nftables => "cluster-ips".into(),
                    _ => "KUBE-IPVS-FILTER".into(),
                };
                let text = format!(
                    "connections to {ip}, port {number}, which the Service does not have, are not refused"
                );
                let frontend = Frontend { port: number, ..known.frontend };
                let fault = Fault {
                    port: index,
                    kind: Kind::Missing,
                    aspect: Aspect::UnlistedPort,
                    endpoint: None,
                    place,
                    text,
                };
                self.found.add(fault, frontend, origin);
            }
        }
    }
}

pub(in crate::diagnosis::audit) fn before(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_sub(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_sub(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

pub(in crate::diagnosis::audit) fn after(ip: IpAddr) -> Option<IpAddr> {
    match ip {
        IpAddr::V4(ip) => ip.to_bits().checked_add(1).map(|bits| IpAddr::V4(bits.into())),
        IpAddr::V6(ip) => ip.to_bits().checked_add(1).map(|bits| IpAddr::V6(bits.into())),
    }
}

/// Whether this is the first port of its Service: a Service's address is tried once.
pub(super) fn is_first(port: &ExpectedPort) -> bool {
    port.service.ports.first() == Some(&port.port)
}
