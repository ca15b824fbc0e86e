//! What diagnosis asks of the cluster's history and of the node.
//!
//! Owns the questions and the plain answers, so that the rules can be read and tested without either.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use crate::{
    net::{Cidr, Protocol},
    node::{IpvsSettings, Rule, Ruling},
    time::Timestamp,
};

/// The cluster as it was at a moment.
pub trait ClusterView {
    /// What this address meant.
    fn address(&self, addr: SocketAddr, protocol: Protocol, at: Timestamp) -> Address;
    /// What `endpoint` was to this Service port.
    fn membership(&self, service: &ServicePort, endpoint: SocketAddr, at: Timestamp) -> Membership;
    /// The endpoints that kube-proxy should send to, of the family of the address asked for; `node` is where the
    /// traffic arrived. `None` where the endpoints are not known at all.
    fn usable(&self, service: &ServicePort, node: Option<&str>, at: Timestamp) -> Option<Usable>;
    /// What topology hints leave to traffic that arrives on `node`; `None` where they leave no ready endpoint out.
    fn hinted(&self, _service: &ServicePort, _node: &str, _at: Timestamp) -> Option<Hinted> {
        None
    }
    /// Why there is no usable endpoint, in one sentence without a full stop; `None` where it cannot be told.
    fn no_endpoints_reason(&self, service: &ServicePort, at: Timestamp) -> Option<String>;
    /// The Pod that had this address, not one on the host's network.
    fn pod_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<Pod>;
    /// The Pod that last gave this address up, and when.
    fn last_pod_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<(Pod, Timestamp)>;
    fn node_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<Arc<str>>;
    /// The node's Ready condition; `None` where it is not known.
    fn node_ready(&self, node: &str, at: Timestamp) -> Option<bool>;
    /// The kubelet's probe that goes to this Pod address and port.
    fn probe(&self, ip: IpAddr, port: u16, at: Timestamp) -> Option<Probe>;
}

/// What an address and port meant.
#[derive(Clone, Debug, PartialEq)]
pub enum Address {
    Service(ServicePort),
    /// The address of a Service, but no port of it.
    UnknownPort {
        namespace: Arc<str>,
        service: Arc<str>,
    },
    /// It was a Service's until `since`.
    Gone {
        namespace: Arc<str>,
        service: Arc<str>,
        since: Timestamp,
        /// Why the Service has no address any more; `None` where it has another, or is gone itself.
        without: Option<&'static str>,
    },
    Other,
}

/// How a Service is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
    NodePort,
}

impl Via {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "ClusterIP",
            Self::ExternalIp => "external IP",
            Self::LoadBalancerIp => "load balancer IP",
            Self::NodePort => "node port",
        }
    }
}

/// A Service port, by the address that was asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct ServicePort {
    pub namespace: Arc<str>,
    pub service: Arc<str>,
    /// Empty where the Service's only port has no name.
    pub port_name: Arc<str>,
    pub port: u16,
    pub protocol: Protocol,
    pub asked: SocketAddr,
    pub via: Via,
    /// `spec.ports[].targetPort`, a number or a name.
    pub target: Arc<str>,
    /// Whether the traffic policy that holds for `via` admits only endpoints on the node where traffic arrives.
    pub local_only: bool,
    /// Label `service.kubernetes.io/service-proxy-name`.
    pub proxy_name: Option<Arc<str>>,
    /// `loadBalancerSourceRanges` of the family asked for; empty admits everybody. They hold for load balancer IPs.
    pub source_ranges: Vec<Cidr>,
    /// `sessionAffinity: ClientIP`.
    pub affinity: bool,
}

impl ServicePort {
    /// The port's name, or its number where it has none.
    pub fn label(&self) -> String {
        if self.port_name.is_empty() { self.port.to_string() } else { self.port_name.to_string() }
    }
}

/// What an address was to a Service port.
#[derive(Clone, Debug, PartialEq)]
pub enum Membership {
    Member {
        ready: bool,
        serving: bool,
        terminating: bool,
        /// In this condition since then or longer.
        since: Timestamp,
        node: Option<Arc<str>>,
        pod: Option<Arc<str>>,
    },
    Left {
        at: Timestamp,
        pod: Option<Arc<str>>,
    },
    /// Listed by no slice in all the time that is known, which begins at `since`.
    NeverSeen {
        since: Timestamp,
    },
    /// The history does not reach that far.
    Unknown,
}

/// The endpoints that kube-proxy should send to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usable {
    pub count: usize,
    /// Those on the node where the traffic arrived; `None` where that node is not known.
    pub local: Option<usize>,
    /// There has been at least one since then or longer.
    pub since: Timestamp,
    /// None is ready: these serve while they terminate (N8).
    pub terminating: bool,
}

/// The ready endpoints that topology hints leave to one node (C25).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hinted {
    pub endpoints: Vec<SocketAddr>,
    /// How many are ready in all.
    pub of: usize,
    /// `trafficDistribution`, or the annotation that asked for the hints.
    pub asked_by: Option<Arc<str>>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Pod {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub node: Option<Arc<str>>,
    pub ready: Option<bool>,
    /// When its deletion was asked for.
    pub deleted: Option<Timestamp>,
    pub termination_grace: Option<Duration>,
}

impl Pod {
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Probe {
    pub pod: Pod,
    /// `liveness`, `readiness` or `startup`.
    pub kind: Arc<str>,
    pub timeout: Option<Duration>,
}

/// The node as it was last read. `None` means not known.
pub trait NodeView {
    /// `iptables`, `nftables` or `ipvs`.
    fn kube_proxy_mode(&self) -> Option<&str>;
    fn kube_proxy_version(&self) -> Option<&str>;
    fn kube_proxy_running(&self) -> Option<bool>;
    /// Another program than kube-proxy that is known to serve Services where kube-proxy does not, and has its network
    /// interfaces here.
    fn other_dataplane(&self) -> Option<&str> {
        None
    }
    /// Whether any of kube-proxy's rules stand, and packets get to them.
    fn has_proxy_rules(&self) -> Option<bool>;
    fn rule(&self, addr: SocketAddr, protocol: Protocol) -> Option<Rule>;
    /// The same of each writer that has rules of kube-proxy in this family, leftovers of another mode or backend among
    /// them, for a connection from `source` where that is known to matter. Empty where no rules were read.
    fn rulings(&self, _addr: SocketAddr, _protocol: Protocol, _source: IpAddr) -> Vec<Ruling> {
        Vec::new()
    }
    /// Another address of this node at which its rules serve this node port; `None` also where that is not known.
    fn serves_node_port_at(&self, _port: u16, _protocol: Protocol) -> Option<IpAddr> {
        None
    }
    /// Entries and the limit (`nf_conntrack_count`, `nf_conntrack_max`).
    fn conntrack_use(&self) -> Option<(u64, u64)>;
    /// Whether the address is one of this node's own, bridges included.
    fn is_own_address(&self, ip: IpAddr) -> Option<bool>;
    fn ipvs_settings(&self) -> Option<IpvsSettings> {
        None
    }
    /// When it was read.
    fn read_at(&self) -> Option<Timestamp>;
}

/// A node of which nothing is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnreadNode;

impl NodeView for UnreadNode {
    fn kube_proxy_mode(&self) -> Option<&str> {
        None
    }
    fn kube_proxy_version(&self) -> Option<&str> {
        None
    }
    fn kube_proxy_running(&self) -> Option<bool> {
        None
    }
    fn has_proxy_rules(&self) -> Option<bool> {
        None
    }
    fn rule(&self, _: SocketAddr, _: Protocol) -> Option<Rule> {
        None
    }
    fn conntrack_use(&self) -> Option<(u64, u64)> {
        None
    }
    fn is_own_address(&self, _: IpAddr) -> Option<bool> {
        None
    }
    fn read_at(&self) -> Option<Timestamp> {
        None
    }
}
