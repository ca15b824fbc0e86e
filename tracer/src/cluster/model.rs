//! The part of a Kubernetes object that viptrace keeps: small structs with only the fields that verdicts read.
//!
//! Owns the types, which recordings store as JSON: a new field needs `#[serde(default)]`, so that older recordings can
//! still be read. Must not parse (that is `trim`), do I/O or know a time other than those in the objects.

use std::{
    cmp::Ordering,
    fmt,
    hash::{Hash, Hasher},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use serde::{Deserialize, Serialize};
use strum::{Display, EnumString};

use crate::{
    cluster::Few,
    net::{Cidr, Protocol},
    time::Timestamp,
};

mod labels;
mod uid;

pub(crate) use labels::Label;
pub use labels::Labels;
pub use uid::Uid;

/// Kubernetes' default of `terminationGracePeriodSeconds`.
pub const DEFAULT_TERMINATION_GRACE: Duration = Duration::from_secs(30);

/// The kinds whose history is kept. Displayed and parsed in the spelling of `kind:`.
#[derive(
    Clone, Copy, Debug, Display, EnumString, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum Kind {
    Service,
    EndpointSlice,
    Pod,
    Node,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Service, Self::EndpointSlice, Self::Pod, Self::Node];

    /// For use in running text.
    pub const fn plural(self) -> &'static str {
        match self {
            Self::Service => "Services",
            Self::EndpointSlice => "EndpointSlices",
            Self::Pod => "Pods",
            Self::Node => "Nodes",
        }
    }

    /// The resource name in URLs and RBAC rules, with its API group.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Service => "services",
            Self::EndpointSlice => "endpointslices.discovery.k8s.io",
            Self::Pod => "pods",
            Self::Node => "nodes",
        }
    }

    /// Position in [`Kind::ALL`].
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// Namespace and name. The namespace of a Node is empty.
#[derive(Clone, Debug, Eq, Serialize, Deserialize)]
pub struct Key {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

/// Equal texts of one history are mostly the same text.
impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        is_same(&self.name, &other.name) && is_same(&self.namespace, &other.namespace)
    }
}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.namespace.hash(state);
        self.name.hash(state);
    }
}

/// As `==`, which compares the texts themselves.
pub(crate) fn is_same(one: &Arc<str>, other: &Arc<str>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

/// By namespace, then by name. Each query of the history compares several keys, most of which share their namespace.
impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        let in_namespace = || compare(&self.name, &other.name);
        if Arc::ptr_eq(&self.namespace, &other.namespace) {
            return in_namespace();
        }
        compare(&self.namespace, &other.namespace).then_with(in_namespace)
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// As `str::cmp`, which calls a function for any length.
#[inline]
fn compare(one: &str, other: &str) -> Ordering {
    if let (Some(one), Some(other)) = (one.as_bytes().first_chunk(), other.as_bytes().first_chunk()) {
        let (one, other) = (u64::from_be_bytes(*one), u64::from_be_bytes(*other));
        if one != other {
            return one.cmp(&other);
        }
    }
    one.cmp(other)
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// As it is displayed, in a single allocation: most verdicts name two Pods.
    pub(crate) fn text(&self) -> String {
        if self.namespace.is_empty() {
            self.name.as_ref().to_owned()
        } else {
            [&*self.namespace, "/", &*self.name].concat()
        }
    }
}

/// `namespace/name`, or only the name if there is no namespace.
impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// One trimmed object of any kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Object {
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    Pod(Arc<Pod>),
    Node(Arc<Node>),
}

impl Object {
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Pod(_) => Kind::Pod,
            Self::Node(_) => Kind::Node,
        }
    }

    pub fn key(&self) -> &Key {
        match self {
            Self::Service(object) => &object.key,
            Self::EndpointSlice(object) => &object.key,
            Self::Pod(object) => &object.key,
            Self::Node(object) => &object.key,
        }
    }
}

/// A trimmed object with the times in it, and its version.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trimmed {
    pub object: Object,
    pub created: Option<Timestamp>,
    /// The latest of the `managedFields` times (whole seconds) and of the time of the deletion request.
    pub changed: Option<Timestamp>,
    /// Its `resourceVersion`; `None` if that is no number, or in a recording of an earlier viptrace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

impl Trimmed {
    /// Brings the object's times, which are of the wall clock, to the clock of the trace.
    pub(crate) fn make_trace_time(&mut self, wall_ahead_ns: i64) {
        let behind_ns = wall_ahead_ns.saturating_neg();
        let shift = |time: &mut Timestamp| *time = time.shifted(behind_ns);
        self.created.iter_mut().for_each(shift);
        self.changed.iter_mut().for_each(shift);
        if let Object::Pod(pod) = &mut self.object
            && pod.deletion.is_some()
        {
            Arc::make_mut(pod).deletion.iter_mut().for_each(shift);
        }
    }
}

/// A change of an object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Change {
    /// Added or modified.
    Put(Trimmed),
    Delete(Kind, Key),
}

/// Whether all endpoints serve, or only those on the node at which the traffic arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum TrafficPolicy {
    #[default]
    Cluster,
    Local,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServiceType {
    #[default]
    ClusterIp,
    NodePort,
    LoadBalancer,
    ExternalName,
}

/// The kind of address through which a Service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    ClusterIp,
    ExternalIp,
    LoadBalancerIp,
    NodePort,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Service {
    pub key: Key,
    pub uid: Uid,
    pub r#type: ServiceType,
    /// Empty for headless Services and `ExternalName`.
    pub cluster_ips: Vec<IpAddr>,
    /// `clusterIP: None`.
    pub headless: bool,
    pub external_ips: Vec<IpAddr>,
    /// Ingress IPs of the load balancer that kube-proxy serves: those without `ipMode: Proxy`.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Its ingress IPs with `ipMode: Proxy`, which kube-proxy serves too without the gate `LoadBalancerIPMode`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proxied_ips: Vec<IpAddr>,
    pub ports: Vec<ServicePort>,
    /// Empty if the `EndpointSlice` controller does not write the slices.
    pub selector: Labels,
    pub external_traffic_policy: TrafficPolicy,
    pub internal_traffic_policy: TrafficPolicy,
    /// `sessionAffinity: ClientIP` with its timeout.
    pub affinity: Option<Duration>,
    /// Label `service.kubernetes.io/service-proxy-name`: another proxy than kube-proxy serves it (C5d).
    pub proxy_name: Option<Arc<str>>,
    /// Label `service.kubernetes.io/headless`, with any value. The control plane sets it on `EndpointSlice`s; on a Service
    /// somebody else set it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub labelled_headless: bool,
    pub publish_not_ready_addresses: bool,
    /// The valid `loadBalancerSourceRanges`; an empty list admits every client.
    pub source_ranges: Vec<Cidr>,
    /// The port on which kube-proxy answers a load balancer's health checks, for a `Local` external policy.
    pub health_check_node_port: Option<u16>,
    /// `trafficDistribution` (`PreferClose`, `PreferSameZone`, `PreferSameNode`), or the value of the older annotation
    /// `service.kubernetes.io/topology-mode`.
    pub traffic_distribution: Option<Arc<str>>,
    /// The DNS name that an `ExternalName` points to.
    #[serde(default)]
    pub external_name: Option<Arc<str>>,
}

impl Service {
    /// Why it has no address of its own and therefore no translation (C27); `None` if it has one.
    pub const fn without_address(&self) -> Option<&'static str> {
        match self.r#type {
            ServiceType::ExternalName => {
                Some("it is an ExternalName: a name in DNS without an address of its own")
            }
            _ if self.headless => {
                Some("it is headless: DNS gives out its Pods' addresses, nothing is translated")
            }
            _ => None,
        }
    }

    /// Its own addresses of every kind. A node port has those of the nodes.
    pub(crate) fn own_ips(&self) -> impl Iterator<Item = IpAddr> {
        [&self.cluster_ips, &self.external_ips, &self.load_balancer_ips].into_iter().flatten().copied()
    }

    /// The kind of its address `ip`; `None` if it does not have this address.
    pub fn via(&self, ip: IpAddr) -> Option<Via> {
        if self.cluster_ips.contains(&ip) {
            Some(Via::ClusterIp)
        } else if self.external_ips.contains(&ip) {
            Some(Via::ExternalIp)
        } else if self.load_balancer_ips.contains(&ip) {
            Some(Via::LoadBalancerIp)
        } else {
            None
        }
    }

    /// Whether the traffic policy for `via` admits only endpoints on the node at which the traffic arrives.
    pub fn is_local(&self, via: Via) -> bool {
        let policy = match via {
            Via::ClusterIp => self.internal_traffic_policy,
            Via::ExternalIp | Via::LoadBalancerIp | Via::NodePort => self.external_traffic_policy,
        };
        policy == TrafficPolicy::Local
    }

    /// The port with this number and protocol.
    pub fn port(&self, port: u16, protocol: Protocol) -> Option<&ServicePort> {
        self.ports.iter().find(|p| p.port == port && p.protocol == protocol)
    }

    /// The port that owns this nodePort.
    pub fn node_port(&self, port: u16, protocol: Protocol) -> Option<&ServicePort> {
        self.ports.iter().find(|p| p.node_port == Some(port) && p.protocol == protocol)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicePort {
    /// Empty where the Service's only port has no name.
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
    pub target: TargetPort,
    pub node_port: Option<u16>,
}

impl ServicePort {
    /// The name in a verdict: the port's name, or its number if it has none.
    pub fn label(&self) -> Arc<str> {
        if self.name.is_empty() { self.port.to_string().into() } else { Arc::clone(&self.name) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TargetPort {
    Number(u16),
    /// The name of a container port.
    Name(Arc<str>),
}

impl fmt::Display for TargetPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
pub enum AddressType {
    #[strum(to_string = "IPv4")]
    Ipv4,
    #[strum(to_string = "IPv6")]
    Ipv6,
    /// kube-proxy does not serve it.
    #[strum(to_string = "FQDN")]
    Fqdn,
}

impl AddressType {
    /// The family that serves `ip`.
    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EndpointSlice {
    pub key: Key,
    pub uid: Uid,
    /// Label `kubernetes.io/service-name`; `None` if no Service owns the slice.
    pub service: Option<Key>,
    pub address_type: AddressType,
    pub ports: Vec<SlicePort>,
    pub endpoints: Vec<Endpoint>,
    /// `metadata.generation`: 1 until the API server first sees other endpoints or ports in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
}

impl EndpointSlice {
    /// The slice port that serves `port`: by name and protocol, as kube-proxy matches them, never by number.
    pub fn port_for(&self, port: &ServicePort) -> Option<u16> {
        self.ports
            .iter()
            .find(|p| p.protocol == port.protocol && is_same(&p.name, &port.name))
            .map(|p| p.port)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlicePort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Only the first address is used, as by kube-proxy.
    pub addresses: Few<IpAddr>,
    pub conditions: Conditions,
    pub node: Option<Arc<str>>,
    pub pod: Option<PodRef>,
    pub zone: Option<Arc<str>>,
    /// `hints.forZones`: the zones whose nodes should use this endpoint. Empty without a hint.
    pub for_zones: Arc<[Arc<str>]>,
    /// `hints.forNodes` (1.34): the nodes that should use this endpoint. Empty without a hint.
    pub for_nodes: Arc<[Arc<str>]>,
}

/// An endpoint's conditions with the API's defaults applied: a missing `ready` or `serving` means true, a missing
/// `terminating` false (discovery.k8s.io/v1 `EndpointConditions`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    pub ready: bool,
    pub serving: bool,
    pub terminating: bool,
}

impl Conditions {
    /// Whether kube-proxy may send to it; if it terminates, only while no other endpoint is ready. One that serves, and is neither
    /// ready nor terminating, gets nothing (`CategorizeEndpoints`, `pkg/proxy/topology.go`): so are those that a slice without
    /// `serving` lists as not ready, such as a copy of an `Endpoints` object.
    pub const fn may_serve(self) -> bool {
        self.ready || self.serving && self.terminating
    }
}

/// `ready`, `serving, terminating`, `not ready`…
impl fmt::Display for Conditions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.ready, self.serving) {
            (true, _) => "ready",
            (false, true) => "serving",
            (false, false) => "not ready",
        })?;
        f.write_str(if self.terminating { ", terminating" } else { "" })
    }
}

/// The Pod in an endpoint's reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodRef {
    pub key: Key,
    /// Empty if the slice does not contain it.
    pub uid: Uid,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    #[default]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pod {
    pub key: Key,
    pub uid: Uid,
    pub node: Option<Arc<str>>,
    pub ips: Few<IpAddr>,
    /// Shares the node's addresses.
    pub host_network: bool,
    pub phase: Phase,
    /// Condition `Ready`.
    pub ready: bool,
    /// The deadline of the Pod's termination: the deletion request plus its grace period.
    pub deletion: Option<Timestamp>,
    pub termination_grace: Duration,
    pub labels: Labels,
    pub ports: Arc<[ContainerPort]>,
    pub probes: Arc<[Probe]>,
    /// The sum over all containers.
    pub restarts: u32,
    /// Why a container is not running (`CrashLoopBackOff`, `ImagePullBackOff`, `OOMKilled`…), from the first container
    /// that has a reason; for a failed Pod its own reason (`Evicted`), if it has one.
    pub trouble: Option<Arc<str>>,
}

impl Pod {
    /// Whether the Pod still holds its addresses. The addresses of a finished Pod are reassigned.
    pub const fn holds_addresses(&self) -> bool {
        !matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    pub fn matches(&self, selector: &Labels) -> bool {
        selector.iter().all(|(label, value)| self.labels.get(label) == Some(value))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ContainerPort {
    pub name: Arc<str>,
    pub protocol: Protocol,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[strum(serialize_all = "lowercase")]
pub enum ProbeKind {
    Liveness,
    Readiness,
    Startup,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProbeHandler {
    HttpGet,
    TcpSocket,
    Grpc,
}

/// A probe that the kubelet makes over the network to the Pod's own address. `exec` probes and probes of another host
/// are left out, because they send no packet to the Pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Probe {
    pub kind: ProbeKind,
    pub handler: ProbeHandler,
    /// Resolved through the container's ports if the spec has a name.
    pub port: u16,
    pub period: Duration,
    pub timeout: Duration,
    pub initial_delay: Duration,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub key: Key,
    pub uid: Uid,
    /// All IP addresses, `InternalIP` before `ExternalIP`: kube-proxy uses the first of each family as the node's.
    pub addresses: Vec<IpAddr>,
    pub pod_cidrs: Vec<Arc<str>>,
    /// Condition `Ready`; `None` if it is `Unknown` (the kubelet does not report) or missing.
    pub ready: Option<bool>,
    /// Conditions other than `Ready` that are true: `MemoryPressure`, `DiskPressure`, `NetworkUnavailable`…
    pub pressure: Vec<Arc<str>>,
    pub kubelet_version: Arc<str>,
    /// Empty on clusters that no longer report it (deprecated in 1.31).
    pub kube_proxy_version: Arc<str>,
    pub zone: Option<Arc<str>>,
    /// `spec.unschedulable`: it was cordoned.
    #[serde(default)]
    pub unschedulable: bool,
    /// Why no Linux program runs there; `None` on nearly every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfit: Option<Unfit>,
}

/// A node that is no Linux machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unfit {
    Windows,
    /// A provider runs its Pods elsewhere (virtual kubelet, Fargate), or nowhere (kwok).
    Virtual,
}
