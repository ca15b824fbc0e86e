//! The rules that kube-proxy should have written on this node for the Services and `EndpointSlices` of one moment.
//!
//! Computed only from the cluster's history, without the existing rules.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use super::{
    Context,
    topology::{self, Endpoints},
};
use crate::{
    cluster::{
        Address, History, Kind, Membership, Via,
        model::{Service, ServicePort, ServiceType},
    },
    diagnosis::left_out::LeftOut,
    net::Family,
    node::{ProxyMode, Release},
    rules::{AddressRange, Frontend, Origin},
    time::Timestamp,
};

/// The expected state of the node.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    pub ports: Vec<ExpectedPort>,
    /// The addresses of this node that serve node ports, from the Node object.
    pub node_addresses: Vec<IpAddr>,
    /// Facts that the cluster's objects do not contain.
    pub gaps: Vec<String>,
    /// When a Service gave up each former address or port, to name leftovers.
    pub(super) gone: BTreeMap<Frontend, (Arc<str>, Timestamp)>,
    /// Frontends that may have rules and need none: those of a Service that is left out (C5d), and those of a load balancer that is a
    /// proxy.
    pub(super) others: BTreeSet<Frontend>,
    /// The addresses of all Services, whether or not they have a port that kube-proxy serves.
    pub(super) addresses: BTreeSet<IpAddr>,
    /// Every frontend, with the indices of its Service ports in `ports`. Of several, kube-proxy writes the rules in the
    /// random order of a map, so any of the ports may have them.
    owners: BTreeMap<(Family, Frontend), Vec<usize>>,
}

/// One port of a Service in one family.
#[derive(Clone, Debug)]
pub struct ExpectedPort {
    pub service: Arc<Service>,
    pub port: ServicePort,
    pub family: Family,
    pub endpoints: Endpoints,
    /// The endpoints as other releases and builds of kube-proxy sort them, if this one may be among them.
    pub(super) other_endpoints: Vec<Endpoints>,
    pub frontends: Vec<ExpectedFrontend>,
    /// When the Service or its slices last changed; `None` if they do not record it.
    pub changed: Option<Timestamp>,
    /// When each former endpoint left or became unusable, as far as the history goes.
    pub left: BTreeMap<SocketAddr, Timestamp>,
}

#[derive(Clone, Debug)]
pub struct ExpectedFrontend {
    pub frontend: Frontend,
    pub via: Via,
    /// The clients admitted at a load balancer's address; empty: every client.
    pub ranges: Vec<AddressRange>,
    /// Whether a load balancer's address admits itself and the Service's other such addresses, from which the node's
    /// own connections to them may come: if the ranges contain the node (`allowFromNode` in
    /// `pkg/proxy/iptables/proxier.go` and in the other modes). `None` if that is unknown.
    pub admits_itself: Option<bool>,
}

impl ExpectedFrontend {
    pub(super) fn admits(&self, source: IpAddr) -> bool {
        self.ranges.is_empty() || self.ranges.iter().any(|range| range.contains(source))
    }
}

/// The expected result of a new connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// Distributed evenly among these.
    Endpoints(Arc<[SocketAddr]>),
    Refused,
    Dropped,
    /// kube-proxy does not define it.
    Any,
}

impl Expected {
    /// The rules that kube-proxy should write for the cluster at [`Context::at`].
    pub fn new(history: &History, context: &Context) -> Self {
        let mut expected = Self::default();
        match history.node(&context.node, context.at) {
            Some(node) => expected.node_addresses.clone_from(&node.addresses),
            None => expected.gaps.push(format!(
                "the Node {} is not known, so its addresses and its zone are unknown: node ports are judged only where \
                 the rules name their addresses",
                context.node
            )),
        }
        for kind in [Kind::Service, Kind::EndpointSlice] {
            if !history.knows(kind) {
                expected.gaps.push(format!("the {} are not known", kind.plural()));
            }
        }
        for service in history.services() {
            let Some(service) = history.service(&service.key, context.at) else { continue };
            expected.add(history, service, context);
        }
        expected.ports.sort_by(|a, b| {
            (&a.service.key, &a.port.name, a.port.protocol, a.family).cmp(&(
                &b.service.key,
                &b.port.name,
                b.port.protocol,
                b.family,
            ))
        });
        for (index, port) in expected.ports.iter().enumerate() {
            for known in &port.frontends {
                expected.owners.entry((port.family, known.frontend)).or_default().push(index);
            }
        }
        expected
    }

    fn add(&mut self, history: &History, service: &Arc<Service>, context: &Context) {
        // `pkg/proxy/util`, ShouldSkipService.
        if service.r#type == ServiceType::ExternalName || service.headless || service.cluster_ips.is_empty() {
            return;
        }
        self.addresses.extend(service.cluster_ips.iter().chain(&service.external_ips));
        self.addresses.extend(&service.load_balancer_ips);
        // kube-proxy serves a load balancer's addresses with `ipMode: Proxy` too until the gate LoadBalancerIPMode, which
        // is on by default since 1.30 and always since 1.32 (`pkg/features/kube_features.go`, KEP-1860).
        if context.may_precede(Release(1, 32)) {
            self.others.extend(proxied(service));
        }
        for port in &service.ports {
            for family in Family::ALL {
                let frontends = self.frontends(service, port, family, context);
                // A Service is served only in the families of its ClusterIPs.
                if !service.cluster_ips.iter().any(|ip| Family::of(*ip) == family) {
                    continue;
                }
                if LeftOut::of(service, context.release).is_some() {
                    self.others.extend(frontends.iter().map(|known| known.frontend));
                    continue;
                }
                let (endpoints, other_endpoints) =
                    topology::endpoints(history, service, port, family, context);
                let slices = history.endpoints_changed(&service.key, context.at);
                let changed = slices.max(history.service_changed(&service.key, context.at));
                self.ports.push(ExpectedPort {
                    service: Arc::clone(service),
                    port: port.clone(),
                    family,
                    endpoints,
                    other_endpoints,
                    frontends,
                    changed: changed.filter(|at| *at != Timestamp::MIN),
                    left: BTreeMap::new(),
                });
            }
        }
    }

    /// The addresses at which kube-proxy serves the port.
    fn frontends(
        &self,
        service: &Service,
        port: &ServicePort,
        family: Family,
        context: &Context,
    ) -> Vec<ExpectedFrontend> {
        let mut found = Vec::<ExpectedFrontend>::new();
        let mut add = |address: Option<IpAddr>, port_number: u16, via: Via, ranges: &[AddressRange]| {
            let frontend = Frontend { address, protocol: port.protocol, port: port_number };
            if address.is_some_and(|ip| Family::of(ip) != family)
                || found.iter().any(|known| known.frontend == frontend)
            {
                return;
            }
            let admits_itself = self.admits_itself(ranges, family, context);
            found.push(ExpectedFrontend { frontend, via, ranges: ranges.to_vec(), admits_itself });
        };
        for ip in &service.cluster_ips {
            add(Some(*ip), port.port, Via::ClusterIp, &[]);
        }
        let ranges = service.source_ranges.iter().map(|cidr| AddressRange::from(*cidr));
        let ranges: Vec<_> = ranges.filter(|range| Family::of(range.first) == family).collect();
        // An address that is an external IP and a load balancer's too: in iptables mode the external IP's rule is the
        // first and lets every client in. The other modes filter the source before.
        let external = || service.external_ips.iter().map(|ip| (*ip, Via::ExternalIp));
        let balanced = || service.load_balancer_ips.iter().map(|ip| (*ip, Via::LoadBalancerIp));
        let both: Vec<_> = match context.mode {
            ProxyMode::Iptables => external().chain(balanced()).collect(),
            ProxyMode::Nftables | ProxyMode::Ipvs => balanced().chain(external()).collect(),
        };
        for (ip, via) in both {
            add(Some(ip), port.port, via, if via == Via::LoadBalancerIp { &ranges } else { &[] });
        }
        if let Some(number) = port.node_port {
            add(None, number, Via::NodePort, &[]);
        }
        found
    }

    fn admits_itself(&self, ranges: &[AddressRange], family: Family, context: &Context) -> Option<bool> {
        let contains = |ip: &IpAddr| ranges.iter().any(|range| range.contains(*ip));
        if context.node_ip(&self.node_addresses, family).is_some_and(|ip| contains(&ip)) {
            // Up to 1.28 the node's address can be the zero address, which no range has, in either family
            // (`NewDualStackProxier` receives `bindAddress`; kubernetes/kubernetes#119524).
            let is_bound = context.bind_address(family).is_some();
            return (is_bound || !context.may_precede(Release(1, 29))).then_some(true);
        }
        // Older versions choose another of the node's addresses. Without any, kube-proxy uses 127.0.0.1 or ::1.
        let own = self.node_addresses.iter().chain(context.own_addresses.iter().flatten());
        let mut own = own.filter(|ip| Family::of(**ip) == family).peekable();
        let is_known = own.peek().is_some();
        (is_known && !own.any(contains)).then_some(false)
    }

    /// Whether a Service port is served at this address and port.
    pub(super) fn has_frontend(&self, family: Family, frontend: Frontend) -> bool {
        self.owners.contains_key(&(family, frontend))
    }

    /// The Service ports that claim this frontend, by their indices in `ports`.
    pub(super) fn owners(&self, family: Family, frontend: Frontend) -> &[usize] {
        self.owners.get(&(family, frontend)).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn has(&self, family: Family) -> bool {
        self.ports.iter().any(|port| port.family == family)
    }

    /// Adds the history of endpoints and frontends that the rules still have; it queries only those.
    pub fn trace_back(&mut self, history: &History, rules: &crate::rules::Ruleset, context: &Context) {
        for port in &mut self.ports {
            for slice in history.past_endpoints(&port.service.key, &port.port, context.at) {
                if Family::of(slice.ip()) == port.family
                    && let Membership::Left { at, .. } =
                        history.membership_in(&port.service.key, &port.port, slice, context.at)
                {
                    port.left.insert(slice, at);
                }
            }
        }
        for family in Family::ALL {
            for frontend in rules.frontends(family).into_keys() {
                let Some(ip) = frontend.address else { continue };
                let addr = SocketAddr::new(ip, frontend.port);
                let found = history.lookup(addr, frontend.protocol, context.at);
                if let Address::Gone { service, since } = found {
                    self.gone.insert(frontend, (service.key.to_string().into(), since));
                }
            }
        }
    }
}

/// The frontends at the addresses of a load balancer that is a proxy.
fn proxied(service: &Service) -> impl Iterator<Item = Frontend> {
    service.ports.iter().flat_map(|port| {
        let at = |ip: &IpAddr| Frontend { address: Some(*ip), protocol: port.protocol, port: port.port };
        service.proxied_ips.iter().map(at)
    })
}

impl ExpectedPort {
    /// The traffic policy for this kind of address.
    pub fn is_local(&self, via: Via) -> bool {
        self.service.is_local(via)
    }

    pub fn affinity(&self) -> Option<Duration> {
        self.service.affinity
    }

    /// The expected result of a new connection to this kind of address from this origin, without source ranges.
    /// `seen_as`: the origin as which the rules treat the source.
    pub fn expectation(&self, via: Via, origin: Origin, seen_as: Origin, mode: ProxyMode) -> Expectation {
        self.expectation_of(&self.endpoints, via, origin, seen_as, mode)
    }

    /// As [`Self::expectation`], if the port has these endpoints.
    pub(super) fn expectation_of(
        &self,
        endpoints: &Endpoints,
        via: Via,
        origin: Origin,
        seen_as: Origin,
        mode: ProxyMode,
    ) -> Expectation {
        let Endpoints { cluster, local, any, .. } = endpoints;
        if mode == ProxyMode::Ipvs {
            // Without a local endpoint IPVS mode sends to all (kubernetes/kubernetes#97081).
            let set = if self.is_local(via) && !local.is_empty() { local } else { cluster };
            return if set.is_empty() {
                Expectation::Refused
            } else {
                Expectation::Endpoints(Arc::clone(set))
            };
        }
        // In iptables mode a connection from the node itself to an external address passes no chain that refuses or
        // drops it.
        let unfiltered = mode == ProxyMode::Iptables
            && origin == Origin::Node
            && !matches!(via, Via::ClusterIp | Via::NodePort);
        if !any {
            return if unfiltered { Expectation::Any } else { Expectation::Refused };
        }
        let set = match (self.is_local(via), via, seen_as) {
            (true, Via::ClusterIp, _) | (true, _, Origin::Outside) => local,
            // Under `Local` too, Pods and the node itself reach the cluster's endpoints.
            (false, ..) | (true, _, Origin::Pod | Origin::Node) => cluster,
        };
        match set.is_empty() {
            false => Expectation::Endpoints(Arc::clone(set)),
            true if unfiltered => Expectation::Any,
            true => Expectation::Dropped,
        }
    }
}
