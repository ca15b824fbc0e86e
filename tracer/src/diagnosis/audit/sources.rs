//! The origins of the audit's connections: an address of a Pod, of the node, and of another host.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use super::{
    Context, Expected,
    compare::{after, before},
};
use crate::{
    net::Family,
    rules::{AddressRange, LocalTraffic, Origin, Ruleset, sources::nowhere},
};

/// The most addresses of the Pods' range tried as an example.
const MAX_EXAMPLES: usize = 4096;

/// Example sources of one family.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    pub(super) traffic: LocalTraffic,
    /// Whether kube-proxy's configuration determines `traffic`. Otherwise the rules do.
    is_configured: bool,
    pod: IpAddr,
    interface: Option<Box<str>>,
    node: IpAddr,
    outside: IpAddr,
}

impl Sources {
    pub(super) fn new(expected: &Expected, rules: &Ruleset, context: &Context, family: Family) -> Self {
        let configured = context.local_traffic(family);
        let is_configured = configured.is_some();
        let traffic = configured.unwrap_or_else(|| rules.local_traffic(family));
        // A client that may reach a load balancer's address is not "another host".
        let mut ranges = expected
            .ports
            .iter()
            .flat_map(|port| port.frontends.iter().flat_map(|known| known.ranges.iter().copied()))
            .collect::<Vec<_>>();
        if let LocalTraffic::Range(range) = &traffic {
            ranges.push(*range);
        }
        let (example, interface) = traffic.example(family);
        let (pod, outside) = match &traffic {
            LocalTraffic::Range(range) => {
                let taken = special(expected, context);
                // The nearest address shows whether the rules have a wider range.
                (client_in(*range, example, &taken), beside(*range, &ranges, &taken))
            }
            _ => (example, None),
        };
        let outside = outside.unwrap_or_else(|| nowhere(family, &ranges));
        let of_node = expected.node_addresses.iter().find(|ip| Family::of(**ip) == family);
        ranges.push(AddressRange::host(outside));
        Self {
            pod,
            interface: interface.map(Into::into),
            node: of_node.copied().unwrap_or_else(|| nowhere(family, &ranges)),
            outside,
            traffic,
            is_configured,
        }
    }

    /// Source and interface of a connection from this origin.
    pub(super) fn of(&self, origin: Origin) -> (IpAddr, Option<&str>) {
        match origin {
            Origin::Pod => (self.pod, self.interface.as_deref()),
            Origin::Node => (self.node, None),
            Origin::Outside => (self.outside, None),
        }
    }

    /// The origin as which kube-proxy's rules treat a connection: an address in the Pods' range is a Pod's, wherever it
    /// comes from, and without `detectLocalMode` no connection is.
    pub(super) fn seen_as(&self, origin: Origin, source: IpAddr) -> Origin {
        match &self.traffic {
            LocalTraffic::Range(range) if range.contains(source) => Origin::Pod,
            LocalTraffic::Unmarked if self.is_configured && origin == Origin::Pod => Origin::Outside,
            _ => origin,
        }
    }

    /// Whether the rules show no distinction, and kube-proxy's configuration does not show whether they should.
    pub(super) fn are_indistinct(&self) -> bool {
        self.traffic == LocalTraffic::Unmarked && !self.is_configured
    }
}

/// An address of the Pods' range that belongs to no endpoint and not to the node, whose connections are special.
fn client_in(range: AddressRange, first: IpAddr, taken: &BTreeSet<IpAddr>) -> IpAddr {
    let below = |ip: &IpAddr| before(*ip).filter(|ip| range.contains(*ip));
    let free = std::iter::successors(Some(first), below).take(MAX_EXAMPLES).find(|ip| !taken.contains(ip));
    free.unwrap_or(first)
}

/// A usual address next to the Pods' range, outside all these ranges.
fn beside(pods: AddressRange, ranges: &[AddressRange], taken: &BTreeSet<IpAddr>) -> Option<IpAddr> {
    let usual = |ip: &IpAddr| !ip.is_loopback() && !ip.is_multicast() && !ip.is_unspecified();
    let free =
        |ip: &IpAddr| usual(ip) && !taken.contains(ip) && !ranges.iter().any(|range| range.contains(*ip));
    [after(pods.last), before(pods.first)].into_iter().flatten().find(free)
}

/// The addresses of endpoints, of Services and of the node: their connections are no other client's.
fn special(expected: &Expected, context: &Context) -> BTreeSet<IpAddr> {
    let endpoints = expected.ports.iter().flat_map(|port| {
        port.endpoints.cluster.iter().chain(port.endpoints.local.iter()).chain(port.endpoints.here.iter())
    });
    let mut addresses = endpoints.map(SocketAddr::ip).collect::<BTreeSet<_>>();
    addresses.extend(&expected.addresses);
    addresses.extend(expected.node_addresses.iter().chain(context.own_addresses.iter().flatten()));
    addresses
}
