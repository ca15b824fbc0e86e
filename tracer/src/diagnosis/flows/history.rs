//! The cluster's history as diagnosis asks for it.
//!
//! Owns the translation of questions and answers. What could not be read (a kind that RBAC forbids) is answered with
//! "not known", never with "there is none".

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use super::view;
use crate::{
    cluster::{
        self, History, Kind, Lookup, Membership, Via,
        model::{AddressType, Key, Pod, PodRef, ProbeKind, Service, TrafficPolicy},
    },
    net::{Cidr, Protocol},
    time::Timestamp,
};

/// Endpoints asked for their age, at most: the answer is the oldest of them.
const MAX_AGED: usize = 32;

impl view::ClusterView for History {
    fn address(&self, addr: SocketAddr, protocol: Protocol, at: Timestamp) -> view::Address {
        match self.service_for(addr.ip(), addr.port(), protocol, at) {
            Lookup::Port(found) => {
                let local_only = policy(&found.service, found.via) == TrafficPolicy::Local;
                view::Address::Service(view::ServicePort {
                    namespace: Arc::clone(&found.service.key.namespace),
                    service: Arc::clone(&found.service.key.name),
                    port_name: Arc::clone(&found.port.name),
                    port: found.port.port,
                    protocol: found.port.protocol,
                    asked: addr,
                    via: via(found.via),
                    target: found.port.target.to_string().into(),
                    local_only,
                    proxy_name: found.service.proxy_name.clone(),
                    source_ranges: source_ranges(&found.service, addr.ip()),
                    affinity: found.service.affinity.is_some(),
                })
            }
            // A node's own address is also an external or load balancer IP in many clusters (k3s, externalIPs): what is
            // asked for there beyond the Service's ports is the node's business.
            Lookup::UnknownPort { .. } | Lookup::Gone { .. }
                if Self::node_by_ip(self, addr.ip(), at).is_some() =>
            {
                view::Address::Other
            }
            Lookup::UnknownPort { service, .. } => view::Address::UnknownPort {
                namespace: Arc::clone(&service.key.namespace),
                service: Arc::clone(&service.key.name),
            },
            Lookup::Gone { service, since } => view::Address::Gone {
                namespace: Arc::clone(&service.key.namespace),
                service: Arc::clone(&service.key.name),
                since,
                without: self.service(&service.key, at).and_then(|now| now.without_address()),
            },
            Lookup::NotService => view::Address::Other,
        }
    }

    fn membership(
        &self,
        service: &view::ServicePort,
        endpoint: SocketAddr,
        at: Timestamp,
    ) -> view::Membership {
        let Some((found, port)) = self.port_of(service, at) else { return view::Membership::Unknown };
        if !self.knows(Kind::EndpointSlice) {
            return view::Membership::Unknown;
        }
        match Self::membership(self, &found.key, &port, endpoint, at) {
            Membership::Member { state, state_since, .. } => view::Membership::Member {
                ready: state.conditions.ready,
                serving: state.conditions.serving,
                terminating: state.conditions.terminating,
                since: state_since,
                node: state.node,
                pod: state.pod.as_ref().map(name),
            },
            Membership::Left { at, last } => view::Membership::Left { at, pod: last.pod.as_ref().map(name) },
            Membership::NeverSeen { since } => view::Membership::NeverSeen { since },
            Membership::Unknown { .. } => view::Membership::Unknown,
        }
    }

    fn usable(&self, service: &view::ServicePort, node: Option<&str>, at: Timestamp) -> Option<view::Usable> {
        if !self.knows(Kind::EndpointSlice) {
            return None;
        }
        let (found, port) = self.port_of(service, at)?;
        let family = AddressType::of(service.asked.ip());
        let all = Self::usable(self, &found.key, &port, family, None, at);
        let age = |endpoint: &cluster::EndpointState| match Self::membership(
            self,
            &found.key,
            &port,
            endpoint.addr,
            at,
        ) {
            Membership::Member { state_since, .. } => state_since,
            _ => at,
        };
        let since = if all.is_empty() {
            self.endpoints_changed(&found.key, at).unwrap_or(Timestamp::MIN)
        } else {
            all.iter().take(MAX_AGED).map(age).min().unwrap_or(at)
        };
        // A name that no Node bears (a host's name is not always its Node's) tells nothing of what is local.
        let node = node.filter(|node| !self.knows(Kind::Node) || self.node(node, at).is_some());
        let local = node.map(|node| Self::usable(self, &found.key, &port, family, Some(node), at).len());
        let terminating = !all.is_empty() && all.iter().all(|endpoint| !endpoint.conditions.ready);
        Some(view::Usable { count: all.len(), local, since, terminating })
    }

    fn hinted(&self, service: &view::ServicePort, node: &str, at: Timestamp) -> Option<view::Hinted> {
        let (found, port) = self.port_of(service, at)?;
        let family = AddressType::of(service.asked.ip());
        let (endpoints, of) = Self::hinted(self, &found.key, &port, family, node, at)?;
        Some(view::Hinted { endpoints, of, asked_by: found.traffic_distribution.clone() })
    }

    fn no_endpoints_reason(&self, service: &view::ServicePort, at: Timestamp) -> Option<String> {
        let (found, port) = self.port_of(service, at)?;
        let reason = Self::no_endpoints_reason(self, &found, &port, AddressType::of(service.asked.ip()), at)?;
        (!matches!(reason, cluster::NoEndpointsReason::Unexplained)).then(|| reason.to_string())
    }

    fn pod_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<view::Pod> {
        Self::pod_by_ip(self, ip, at).map(|found| pod(&found))
    }

    fn last_pod_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<(view::Pod, Timestamp)> {
        Self::last_pod_by_ip(self, ip, at).map(|(found, until)| (pod(&found), until))
    }

    fn node_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<Arc<str>> {
        Self::node_by_ip(self, ip, at).map(|node| Arc::clone(&node.key.name))
    }

    fn node_ready(&self, node: &str, at: Timestamp) -> Option<bool> {
        self.node(node, at)?.ready
    }

    fn probe(&self, ip: IpAddr, port: u16, at: Timestamp) -> Option<view::Probe> {
        let (found, probe) = self.is_probe_target(ip, port, at)?;
        let kind = match probe.kind {
            ProbeKind::Liveness => "liveness",
            ProbeKind::Readiness => "readiness",
            ProbeKind::Startup => "startup",
        };
        Some(view::Probe { pod: pod(&found), kind: kind.into(), timeout: Some(probe.timeout) })
    }
}

impl History {
    /// The objects that a Service port was made from.
    fn port_of(
        &self,
        service: &view::ServicePort,
        at: Timestamp,
    ) -> Option<(Arc<Service>, cluster::model::ServicePort)> {
        let key = Key { namespace: Arc::clone(&service.namespace), name: Arc::clone(&service.service) };
        let asked = || match self.service_for(service.asked.ip(), service.asked.port(), service.protocol, at)
        {
            Lookup::Port(found) => Some((found.service, found.port)),
            _ => None,
        };
        let Some(found) = self.service(&key, at) else { return asked() };
        let same = |port: &&cluster::model::ServicePort| {
            port.name == service.port_name && port.protocol == service.protocol && port.port == service.port
        };
        let port = found.ports.iter().find(same).cloned();
        port.map(|port| (found, port)).or_else(asked)
    }
}

fn policy(service: &Service, via: Via) -> TrafficPolicy {
    if via == Via::ClusterIp { service.internal_traffic_policy } else { service.external_traffic_policy }
}

/// Those of the family: kube-proxy of each family knows no others.
fn source_ranges(service: &Service, asked: IpAddr) -> Vec<Cidr> {
    let same = |range: &&Cidr| range.base.is_ipv4() == asked.is_ipv4();
    service.source_ranges.iter().filter(same).copied().collect()
}

const fn via(via: Via) -> view::Via {
    match via {
        Via::ClusterIp => view::Via::ClusterIp,
        Via::ExternalIp => view::Via::ExternalIp,
        Via::LoadBalancerIp => view::Via::LoadBalancerIp,
        Via::NodePort => view::Via::NodePort,
    }
}

fn name(pod: &PodRef) -> Arc<str> {
    pod.key.to_string().into()
}

fn pod(pod: &Pod) -> view::Pod {
    view::Pod {
        namespace: Arc::clone(&pod.key.namespace),
        name: Arc::clone(&pod.key.name),
        node: pod.node.clone(),
        ready: Some(pod.ready),
        deleted: pod.deletion.map(|gone| gone.saturating_sub(pod.termination_grace)),
        termination_grace: Some(pod.termination_grace),
    }
}
