//! The history, as diagnosis asks for it.
//!
//! Owns the translation from the history's answers to diagnosis's plain ones, and no judgement.

use std::{net::IpAddr, net::SocketAddr, sync::Arc};

use super::{
    history::{self, History, Lookup, PortMatch},
    model::{AddressType, Key, Pod as ModelPod, ServicePort as ModelPort, TrafficPolicy},
};
use crate::{
    diagnosis::{Address, ClusterView, Membership, Pod, Probe, ServicePort, Usable, Via},
    sighting::Protocol,
    time::Timestamp,
};

impl ClusterView for History {
    fn address(&self, addr: SocketAddr, protocol: Protocol, at: Timestamp) -> Address {
        match self.service_for(addr.ip(), addr.port(), protocol, at) {
            Lookup::Port(found) => Address::Service(service_port(found, addr)),
            Lookup::UnknownPort { service, .. } => Address::UnknownPort {
                namespace: Arc::clone(&service.key.namespace),
                service: Arc::clone(&service.key.name),
            },
            Lookup::Gone { service, since } => Address::Gone {
                namespace: Arc::clone(&service.key.namespace),
                service: Arc::clone(&service.key.name),
                since,
            },
            Lookup::NotService => Address::Other,
        }
    }

    fn membership(&self, service: &ServicePort, endpoint: SocketAddr, at: Timestamp) -> Membership {
        let Some((key, port)) = self.port_of(service, at) else { return Membership::Unknown };
        match self.membership(&key, &port, endpoint, at) {
            history::Membership::Member { state, state_since, .. } => Membership::Member {
                ready: state.conditions.ready,
                serving: state.conditions.serving,
                terminating: state.conditions.terminating,
                since: state_since,
                node: state.node,
                pod: state.pod.map(|pod| name(&pod.key)),
            },
            history::Membership::Left { at, last } => {
                Membership::Left { at, pod: last.pod.map(|pod| name(&pod.key)) }
            }
            history::Membership::NeverSeen { since } => Membership::NeverSeen { since },
            history::Membership::Unknown { .. } => Membership::Unknown,
        }
    }

    fn usable(&self, service: &ServicePort, node: Option<&str>, at: Timestamp) -> Usable {
        let Some((key, port)) = self.port_of(service, at) else { return Usable::default() };
        let family = AddressType::of(service.asked.ip());
        let all = self.usable(&key, &port, family, None, at);
        let local = node.map(|node| self.usable(&key, &port, family, Some(node), at).len());
        Usable {
            count: all.len(),
            local,
            since: self.usable_since(&key, &port, family, at),
            terminating: !all.is_empty() && all.iter().all(|endpoint| !endpoint.conditions.ready),
        }
    }

    fn no_endpoints_reason(&self, service: &ServicePort, at: Timestamp) -> Option<String> {
        let (key, port) = self.port_of(service, at)?;
        let service_at = self.service(&key, at)?;
        let family = AddressType::of(service.asked.ip());
        Some(self.no_endpoints_reason(&service_at, &port, family, at)?.to_string())
    }

    fn pod_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<Pod> {
        self.pod_by_ip(ip, at).map(|pod| plain(&pod))
    }

    fn last_pod_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<(Pod, Timestamp)> {
        self.last_pod_by_ip(ip, at).map(|(pod, since)| (plain(&pod), since))
    }

    fn node_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<Arc<str>> {
        self.node_by_ip(ip, at).map(|node| Arc::clone(&node.key.name))
    }

    fn node_ready(&self, node: &str, at: Timestamp) -> Option<bool> {
        self.node(node, at)?.ready
    }

    fn probe(&self, ip: IpAddr, port: u16, at: Timestamp) -> Option<Probe> {
        let (pod, probe) = self.is_probe_target(ip, port, at)?;
        Some(Probe { pod: plain(&pod), kind: Arc::from(probe.kind.as_str()), timeout: Some(probe.timeout) })
    }
}

impl History {
    /// The Service port that diagnosis means, in the words of the history.
    fn port_of(&self, service: &ServicePort, at: Timestamp) -> Option<(Key, ModelPort)> {
        let key = Key { namespace: Arc::clone(&service.namespace), name: Arc::clone(&service.service) };
        let object = self.service(&key, at)?;
        let port = object.port(service.port, service.protocol)?.clone();
        Some((key, port))
    }
}

fn service_port(found: PortMatch, asked: SocketAddr) -> ServicePort {
    let PortMatch { service, port, via } = found;
    let policy = match via {
        history::Via::ClusterIp => service.internal_traffic_policy,
        history::Via::ExternalIp | history::Via::LoadBalancerIp | history::Via::NodePort => {
            service.external_traffic_policy
        }
    };
    ServicePort {
        namespace: Arc::clone(&service.key.namespace),
        service: Arc::clone(&service.key.name),
        port_name: Arc::clone(&port.name),
        port: port.port,
        protocol: port.protocol,
        asked,
        via: match via {
            history::Via::ClusterIp => Via::ClusterIp,
            history::Via::ExternalIp => Via::ExternalIp,
            history::Via::LoadBalancerIp => Via::LoadBalancerIp,
            history::Via::NodePort => Via::NodePort,
        },
        target: Arc::from(port.target.to_string()),
        local_only: policy == TrafficPolicy::Local,
        proxy_name: service.proxy_name.clone(),
    }
}

fn plain(pod: &ModelPod) -> Pod {
    Pod {
        namespace: Arc::clone(&pod.key.namespace),
        name: Arc::clone(&pod.key.name),
        node: pod.node.clone(),
        ready: Some(pod.ready),
        // The object says when the Pod is to be gone: the request was its grace period earlier.
        deleted: pod.deletion.map(|gone| gone.saturating_sub(pod.termination_grace)),
        termination_grace: Some(pod.termination_grace),
    }
}

fn name(key: &Key) -> Arc<str> {
    Arc::from(key.to_string())
}
