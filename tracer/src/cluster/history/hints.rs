//! Topology hints: the ready endpoints of a Service that hints assign to a node or its zone.

use std::{net::SocketAddr, sync::Arc};

use super::{History, Vip};
use crate::time::Timestamp;

/// The hints of one endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hints<'a> {
    pub zones: &'a [Arc<str>],
    pub nodes: &'a [Arc<str>],
}

/// Whether kube-proxy of this node sends to each of these ready endpoints. `None` if it does not follow the hints and
/// uses all endpoints: one has no hint, or no hint names this node or its zone (`CategorizeEndpoints` in
/// `pkg/proxy/topology.go`).
pub(crate) fn meant_for(ready: &[Hints<'_>], node: &str, zone: Option<&str>) -> Option<Vec<bool>> {
    let chosen = |here: &str, names: for<'a> fn(&Hints<'a>) -> &'a [Arc<str>]| {
        let is_here = |hints| names(hints).iter().any(|name| name.as_ref() == here);
        let meant: Vec<bool> = ready.iter().map(is_here).collect();
        let all_hinted = ready.iter().all(|hints| !names(hints).is_empty());
        (all_hinted && meant.contains(&true)).then_some(meant)
    };
    // A hint for this node takes precedence over one for its zone (1.34).
    chosen(node, |hints| hints.nodes).or_else(|| chosen(zone?, |hints| hints.zones))
}

/// The ready endpoints that topology hints leave to one node (C25).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hinted {
    pub endpoints: Vec<SocketAddr>,
    /// The number of all ready endpoints.
    pub of: usize,
    /// `trafficDistribution`, or the annotation that requested the hints.
    pub asked_by: Option<Arc<str>>,
}

impl History {
    /// The endpoints that topology hints leave to connections to the VIP that arrive on `node`; `None` if the hints
    /// exclude no ready endpoint. `follows_nodes`: kube-proxy follows the hints for nodes, too.
    pub fn hinted(&self, vip: &Vip<'_>, node: &str, follows_nodes: bool, at: Timestamp) -> Option<Hinted> {
        let family = vip.family();
        let Vip { service, port, .. } = self.vip_at(vip, at)?;
        let mut ready: Vec<(SocketAddr, Hints<'_>)> = Vec::new();
        for slice in self.slices_at(&service.key, at).filter(|slice| slice.address_type == family) {
            let Some(number) = slice.port_for(port) else { continue };
            for endpoint in slice.endpoints.iter().filter(|endpoint| endpoint.conditions.ready) {
                let Some(ip) = endpoint.addresses.first() else { continue };
                let nodes = if follows_nodes { &*endpoint.for_nodes } else { &[] };
                let hints = Hints { zones: &endpoint.for_zones, nodes };
                ready.push((SocketAddr::new(*ip, number), hints));
            }
        }
        ready.sort_by_key(|(addr, _)| *addr);
        ready.dedup_by_key(|(addr, _)| *addr);
        let zone = self.node(node, at).and_then(|node| node.zone.as_deref());
        let hints: Vec<Hints<'_>> = ready.iter().map(|(_, hints)| *hints).collect();
        let meant = meant_for(&hints, node, zone)?;
        let endpoints: Vec<SocketAddr> =
            ready.iter().zip(&meant).filter(|(_, meant)| **meant).map(|((addr, _), _)| *addr).collect();
        let asked_by = service.traffic_distribution.clone();
        (endpoints.len() < ready.len()).then_some(Hinted { endpoints, of: ready.len(), asked_by })
    }
}
