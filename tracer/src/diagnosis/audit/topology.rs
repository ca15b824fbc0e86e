//! The endpoints that kube-proxy sends to: `pkg/proxy/topology.go`, `CategorizeEndpoints`.
//!
//! Its releases sort the same endpoints in different ways ([`Sorting`]).

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use super::Context;
use crate::{
    cluster::{
        Hints, History, meant_for,
        model::{AddressType, Service, ServicePort, TrafficPolicy},
    },
    net::Family,
    node::Release,
    time::Timestamp,
};

/// The endpoints of one Service port in one family, as kube-proxy sorts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Endpoints {
    /// For the policy `Cluster`.
    pub cluster: Arc<[SocketAddr]>,
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

/// The topology hints that kube-proxy follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Followed {
    /// Those for nodes, and where none names this node, those for zones.
    NodesAndZones,
    Zones,
    Nothing,
}

impl Followed {
    /// The hints that kube-proxy of this release follows, the usual ones first. It follows those for nodes by the gate
    /// `PreferSameTrafficDistribution`: alpha in 1.33, on by default since 1.34, always on since 1.35
    /// (`pkg/features/kube_features.go`). A build without support for hints follows none.
    const fn of(release: Option<Release>) -> &'static [Self] {
        match release {
            Some(Release(1, ..=32)) => &[Self::Zones, Self::Nothing],
            Some(Release(1, 33)) => &[Self::Zones, Self::NodesAndZones, Self::Nothing],
            None | Some(Release(1, 34)) => &[Self::NodesAndZones, Self::Zones, Self::Nothing],
            Some(_) => &[Self::NodesAndZones, Self::Nothing],
        }
    }
}

/// How kube-proxy sorts endpoints, as far as its releases differ.
#[derive(Clone, Copy, Debug)]
struct Sorting {
    hints: Followed,
    /// Uses endpoints that serve while they terminate, if none is ready.
    terminating: bool,
    /// Uses the endpoints of this node alone, if it has any.
    prefers_here: bool,
}

impl Sorting {
    /// The ways in which kube-proxy may sort these endpoints, the usual one first.
    fn of(context: &Context, service: &Service, all: &[Endpoint]) -> Vec<Self> {
        let has_hints = all.iter().any(|endpoint| !endpoint.zones.is_empty() || !endpoint.nodes.is_empty());
        let hints = if has_hints { Followed::of(context.release) } else { &[Followed::Nothing] };
        let terminating: &[bool] = match context.uses_terminating {
            Some(false) => &[false],
            None if all.iter().any(|endpoint| endpoint.drains) => &[true, false],
            Some(true) | None => &[true],
        };
        let with_hints = |hints: &Followed| {
            let hints = *hints;
            let with =
                move |terminating: &bool| Self { hints, terminating: *terminating, prefers_here: false };
            terminating.iter().map(with)
        };
        let mut ways: Vec<Self> = hints.iter().flat_map(with_hints).collect();
        if is_dns_of_openshift(service) {
            ways.extend(ways.clone().into_iter().map(|way| Self { prefers_here: true, ..way }));
        }
        ways
    }
}

/// `OpenShift` SDN's kube-proxy (4.6 to 4.17) sends the cluster's DNS to the local endpoint: the patch "Prefer local
/// endpoint for cluster DNS service" in openshift/sdn.
fn is_dns_of_openshift(service: &Service) -> bool {
    (&*service.key.namespace, &*service.key.name) == ("openshift-dns", "dns-default")
}

/// The endpoints as kube-proxy sorts them, and as it may sort them if they differ by its release.
pub(super) fn endpoints(
    history: &History,
    service: &Service,
    port: &ServicePort,
    family: Family,
    context: &Context,
) -> (Endpoints, Vec<Endpoints>) {
    let (node, at) = (&*context.node, context.at);
    let all = listed(history, service, port, family, node, at);
    let here = Here { node, zone: history.node(node, at).and_then(|node| node.zone.clone()) };
    let external = externally_accessible(service, port, family);
    let sorted = |sorting: Sorting| sort(&all, service, external, &here, sorting);
    let mut ways = Sorting::of(context, service, &all).into_iter().map(sorted);
    let usual = ways.next().unwrap_or_default();
    let others = ways.filter(|other| *other != usual).collect();
    (usual, others)
}

/// This node, as hints name it.
struct Here<'a> {
    node: &'a str,
    zone: Option<Arc<str>>,
}

fn sort(all: &[Endpoint], service: &Service, external: bool, here: &Here<'_>, sorting: Sorting) -> Endpoints {
    let internal_local = service.internal_traffic_policy == TrafficPolicy::Local;
    let external_local = service.external_traffic_policy == TrafficPolicy::Local && external;
    let mut found = Endpoints::default();
    let addresses = |keep: &dyn Fn(&&Endpoint) -> bool| -> Arc<[SocketAddr]> {
        all.iter().filter(keep).map(|endpoint| endpoint.addr).collect()
    };
    let drains = |endpoint: &Endpoint| sorting.terminating && endpoint.drains;
    found.here = addresses(&|endpoint| endpoint.here);
    // An externally accessible port needs the cluster's endpoints even under the policy `Local`: Pods and the node
    // itself may use them.
    if !internal_local || external {
        let ready = addresses(&|endpoint| endpoint.ready);
        let all_nodes = if ready.is_empty() { addresses(&|endpoint| drains(endpoint)) } else { ready };
        found.cluster = hinted(all, here, sorting.hints).unwrap_or(all_nodes);
        let own = addresses(&|endpoint| endpoint.here && endpoint.ready);
        if sorting.prefers_here && !own.is_empty() {
            found.cluster = own;
        }
        found.any = !found.cluster.is_empty();
    }
    if internal_local || external_local {
        let ready = addresses(&|endpoint| endpoint.here && endpoint.ready);
        found.local =
            if ready.is_empty() { addresses(&|endpoint| endpoint.here && drains(endpoint)) } else { ready };
        found.any |= all.iter().any(|endpoint| endpoint.ready || drains(endpoint));
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
fn hinted(all: &[Endpoint], here: &Here<'_>, followed: Followed) -> Option<Arc<[SocketAddr]>> {
    if followed == Followed::Nothing {
        return None;
    }
    let ready: Vec<&Endpoint> = all.iter().filter(|endpoint| endpoint.ready).collect();
    let for_nodes = followed == Followed::NodesAndZones;
    let hints = ready.iter().map(|endpoint| Hints {
        zones: &endpoint.zones,
        nodes: if for_nodes { &endpoint.nodes } else { &[] },
    });
    let hints: Vec<Hints<'_>> = hints.collect();
    let meant = meant_for(&hints, here.node, here.zone.as_deref())?;
    Some(ready.iter().zip(meant).filter(|(_, meant)| *meant).map(|(endpoint, _)| endpoint.addr).collect())
}
