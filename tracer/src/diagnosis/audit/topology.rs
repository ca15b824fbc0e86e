//! The endpoints that kube-proxy sends to: `pkg/proxy/topology.go`, `CategorizeEndpoints`.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use crate::{
    cluster::{
        Hints, History, meant_for,
        model::{AddressType, Service, ServicePort, TrafficPolicy},
    },
    net::Family,
    time::Timestamp,
};

/// The endpoints of one Service port in one family, as kube-proxy sorts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// For the policy `Cluster`.
    pub cluster: Arc<[SocketAddr]>,
    /// The same without topology hints, if hints change it: a kube-proxy without support for hints uses these.
    pub unhinted: Option<Arc<[SocketAddr]>>,
    /// For the policy `Local`.
    pub local: Arc<[SocketAddr]>,
    /// Whether any node has a usable endpoint. If none has, connections are refused, otherwise dropped.
    pub any: bool,
    /// The endpoints on this node, usable or not.
    pub here: Arc<[SocketAddr]>,
}

struct Endpoint {
    addr: SocketAddr,
    ready: bool,
    /// Serving while it terminates.
    drains: bool,
    here: bool,
    zones: Arc<[Arc<str>]>,
    nodes: Arc<[Arc<str>]>,
}

/// Whether the Service has an address of this family other than a `ClusterIP`. kube-proxy keeps only the addresses of
/// the proxier's own family (`newBaseServiceInfo` in `pkg/proxy/serviceport.go`).
fn externally_accessible(service: &Service, port: &ServicePort, family: Family) -> bool {
    let mut addresses = service.external_ips.iter().chain(&service.load_balancer_ips);
    port.node_port.is_some() || addresses.any(|ip| Family::of(*ip) == family)
}

pub(super) fn endpoints(
    history: &History,
    service: &Service,
    port: &ServicePort,
    family: Family,
    node: &str,
    at: Timestamp,
) -> Endpoints {
    let zone = history.node(node, at).and_then(|node| node.zone.clone());
    let all = listed(history, service, port, family, node, at);
    let external = externally_accessible(service, port, family);
    let internal_local = service.internal_traffic_policy == TrafficPolicy::Local;
    let external_local = service.external_traffic_policy == TrafficPolicy::Local && external;

    let mut found = Endpoints::default();
    let addresses = |keep: &dyn Fn(&&Endpoint) -> bool| -> Arc<[SocketAddr]> {
        all.iter().filter(keep).map(|endpoint| endpoint.addr).collect()
    };
    found.here = addresses(&|endpoint| endpoint.here);
    // An externally accessible port needs the cluster's endpoints even under the policy `Local`: Pods and the node
    // itself may use them.
    if !internal_local || external {
        let ready = addresses(&|endpoint| endpoint.ready);
        found.cluster = if ready.is_empty() { addresses(&|endpoint| endpoint.drains) } else { ready };
        let hinted = hinted(&all, node, zone.as_deref());
        if let Some(hinted) = hinted.filter(|hinted| *hinted != found.cluster) {
            found.unhinted = Some(std::mem::replace(&mut found.cluster, hinted));
        }
        found.any = !found.cluster.is_empty();
    }
    if internal_local || external_local {
        let ready = addresses(&|endpoint| endpoint.here && endpoint.ready);
        found.local =
            if ready.is_empty() { addresses(&|endpoint| endpoint.here && endpoint.drains) } else { ready };
        found.any |= all.iter().any(|endpoint| endpoint.ready || endpoint.drains);
    }
    found
}

/// All endpoints of the port, each once, by address.
fn listed(
    history: &History,
    service: &Service,
    port: &ServicePort,
    family: Family,
    node: &str,
    at: Timestamp,
) -> Vec<Endpoint> {
    let wanted = if family == Family::Ipv4 { AddressType::Ipv4 } else { AddressType::Ipv6 };
    let mut found = BTreeMap::<SocketAddr, Endpoint>::new();
    for slice in history.slices_at(&service.key, at).filter(|slice| slice.address_type == wanted) {
        let Some(number) = slice.port_for(port) else { continue };
        for endpoint in &slice.endpoints {
            let Some(ip) = endpoint.addresses.first().filter(|ip| Family::of(**ip) == family) else {
                continue;
            };
            let addr = SocketAddr::new(*ip, number);
            let conditions = endpoint.conditions;
            let read = Endpoint {
                addr,
                ready: conditions.ready,
                drains: conditions.serving && conditions.terminating,
                here: endpoint.node.as_deref() == Some(node),
                zones: endpoint.for_zones.clone(),
                nodes: endpoint.for_nodes.clone(),
            };
            // An endpoint that two slices list serves if either slice reports it as serving.
            match found.get(&addr) {
                Some(known) if (known.ready, known.drains) >= (read.ready, read.drains) => {}
                _ => {
                    found.insert(addr, read);
                }
            }
        }
    }
    found.into_values().collect()
}

/// The ready endpoints whose hints name this node or its zone. `None` if kube-proxy does not follow the hints.
fn hinted(all: &[Endpoint], node: &str, zone: Option<&str>) -> Option<Arc<[SocketAddr]>> {
    let ready: Vec<&Endpoint> = all.iter().filter(|endpoint| endpoint.ready).collect();
    let hints: Vec<Hints<'_>> =
        ready.iter().map(|endpoint| Hints { zones: &endpoint.zones, nodes: &endpoint.nodes }).collect();
    let meant = meant_for(&hints, node, zone)?;
    Some(ready.iter().zip(meant).filter(|(_, meant)| *meant).map(|(endpoint, _)| endpoint.addr).collect())
}
