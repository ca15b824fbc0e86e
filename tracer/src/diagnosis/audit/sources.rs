//! The origins of the audit's connections: an address of a Pod, of the node, and of another host.

use std::net::IpAddr;

use super::{Context, Expected};
use crate::{
    net::Family,
    rules::{AddressRange, LocalTraffic, Origin, Ruleset, sources::nowhere},
};

/// Example sources of one family.
#[derive(Clone, Debug)]
pub(super) struct Sources {
    pub(super) traffic: LocalTraffic,
    pod: IpAddr,
    interface: Option<Box<str>>,
    node: IpAddr,
    outside: IpAddr,
}

impl Sources {
    pub(super) fn new(expected: &Expected, rules: &Ruleset, context: &Context, family: Family) -> Self {
        let told = context.cluster_cidrs.iter().map(|cidr| AddressRange::from(*cidr));
        let traffic = match told.into_iter().find(|range| Family::of(range.first) == family) {
            Some(range) => LocalTraffic::Range(range),
            None => rules.local_traffic(family),
        };
        // A client that may reach a load balancer's address is not "another host".
        let mut ranges = expected
            .ports
            .iter()
            .flat_map(|port| port.frontends.iter().flat_map(|known| known.ranges.iter().copied()))
            .collect::<Vec<_>>();
        if let LocalTraffic::Range(range) = &traffic {
            ranges.push(*range);
        }
        let outside = nowhere(family, &ranges);
        let (pod, interface) = traffic.example(family);
        let of_node = expected.node_addresses.iter().find(|ip| Family::of(**ip) == family);
        ranges.push(AddressRange::host(outside));
        Self {
            pod,
            interface: interface.map(Into::into),
            node: of_node.copied().unwrap_or_else(|| nowhere(family, &ranges)),
            outside,
            traffic,
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
}
