//! Topology hints: which of a Service's ready endpoints are meant for a node or its zone.

use std::{net::SocketAddr, sync::Arc};

use super::History;
use crate::{
    cluster::model::{AddressType, Key, ServicePort},
    time::Timestamp,
};

/// What one endpoint's hints say.
#[derive(Clone, Copy, Debug)]
pub struct Hints<'a> {
    pub zones: &'a [Arc<str>],
    pub nodes: &'a [Arc<str>],
}

/// Which of these ready endpoints kube-proxy of this node sends to, one answer each. `None` where hints are not followed:
/// one endpoint without a hint, or none that is meant for here, and all are used (`CategorizeEndpoints` in
/// `pkg/proxy/topology.go`).
pub fn meant_for(ready: &[Hints<'_>], node: &str, zone: Option<&str>) -> Option<Vec<bool>> {
    let chosen = |here: &str, names: for<'a> fn(&Hints<'a>) -> &'a [Arc<str>]| {
        let is_here = |hints| names(hints).iter().any(|name| name.as_ref() == here);
        let meant: Vec<bool> = ready.iter().map(is_here).collect();
        let all_hinted = ready.iter().all(|hints| !names(hints).is_empty());
        (all_hinted && meant.contains(&true)).then_some(meant)
    };
    // A hint for this node goes before one for its zone (1.34).
    chosen(node, |hints| hints.nodes).or_else(|| chosen(zone?, |hints| hints.zones))
}

impl History {
    /// The ready endpoints of a Service port that hints leave to traffic on this node, and how many there are in all.
    /// `None` where hints leave none out.
    pub fn hinted(
        &self,
        service: &Key,
        port: &ServicePort,
        family: AddressType,
        node: &str,
        at: Timestamp,
    ) -> Option<(Vec<SocketAddr>, usize)> {
        let slices: Vec<_> =
            self.slices_at(service, at).filter(|slice| slice.address_type == family).collect();
        let mut ready: Vec<(SocketAddr, Hints<'_>)> = Vec::new();
        for slice in slices {
            let Some(number) = slice.port_for(port) else { continue };
            for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready) {
                let Some(ip) = endpoint.addresses.first() else { continue };
                let hints = Hints { zones: &endpoint.for_zones, nodes: &endpoint.for_nodes };
                ready.push((SocketAddr::new(*ip, number), hints));
            }
        }
        ready.sort_by_key(|(addr, _)| *addr);
        ready.dedup_by_key(|(addr, _)| *addr);
        let zone = self.node(node, at).and_then(|node| node.zone.clone());
        let hints: Vec<Hints<'_>> = ready.iter().map(|(_, hints)| *hints).collect();
        let meant = meant_for(&hints, node, zone.as_deref())?;
        let chosen: Vec<SocketAddr> =
            ready.iter().zip(&meant).filter(|(_, meant)| **meant).map(|((addr, _), _)| *addr).collect();
        (chosen.len() < ready.len()).then_some((chosen, ready.len()))
    }
}
