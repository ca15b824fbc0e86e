//! Converts an API object from JSON to the small structs of `model`.
//!
//! Owns the tolerance: the result is a trimmed object, or an [`Oddity`] that names the object, whatever the object
//! contains. Must not keep any of the JSON, do I/O or panic.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery},
    apimachinery::pkg::{apis::meta::v1::Time, util::intstr::IntOrString},
};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::{
    cluster::model::{
        AddressType, Conditions, ContainerPort, DEFAULT_TERMINATION_GRACE, Endpoint, EndpointSlice, Key,
        Kind, Node, Object, Phase, Pod, PodRef, Service, ServicePort, ServiceType, SlicePort, TargetPort,
        TrafficPolicy, Trimmed, Uid, Unfit,
    },
    net::{Cidr, Protocol, parse_address},
    time::Timestamp,
};

mod probes;
#[cfg(test)]
mod tests;
mod wire;

use wire::{Meta, Resource, Slice};

/// The longest name that the API accepts (DNS subdomain, RFC 1123), in bytes.
const MAX_NAME_BYTES: usize = 253;

/// The maximum number of endpoints and ports of one slice: the API server's limits (`maxEndpoints` and `maxPorts` of
/// `pkg/apis/discovery/validation`).
const MAX_SLICE_ENDPOINTS: usize = 1000;
const MAX_SLICE_PORTS: usize = 20_000;

/// Kubernetes' default of `sessionAffinityConfig.clientIP.timeoutSeconds`.
const DEFAULT_AFFINITY: Duration = Duration::from_hours(3);

/// An unusable part of an object. The rest of the object is used, unless `what` states otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oddity {
    /// `Service shop/cart`, escaped, and cut if the name is too long.
    pub object: String,
    pub what: String,
}

impl std::fmt::Display for Oddity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.object, self.what)
    }
}

/// Trims one object, from text ([`serde_json::value::RawValue`]) or from a [`serde_json::Value`]. `None` if the whole
/// object is unusable; `odd` then has the reason.
pub fn trim<'de, S: Source<'de>>(kind: Kind, source: S, odd: &mut Vec<Oddity>) -> Option<Trimmed> {
    let mut notes = Notes { describe: &|| describe(kind, source), odd };
    match kind {
        Kind::Service => {
            let parsed: Resource<core::ServiceSpec, core::ServiceStatus> = notes.parse(source)?;
            let (key, written) = notes.meta(&parsed.metadata)?;
            let object = service(key, parsed, &mut notes);
            Some(written.with(Object::Service(Arc::new(object))))
        }
        Kind::EndpointSlice => {
            let parsed: Slice = notes.parse(source)?;
            let (key, written) = notes.meta(&parsed.metadata)?;
            let object = slice(key, parsed, &mut notes)?;
            Some(written.with(Object::EndpointSlice(Arc::new(object))))
        }
        Kind::Pod => {
            let parsed: Resource<core::PodSpec, core::PodStatus> = notes.parse(source)?;
            let (key, written) = notes.meta(&parsed.metadata)?;
            let object = pod(key, parsed, &mut notes);
            Some(written.with(Object::Pod(Arc::new(object))))
        }
        Kind::Node => {
            let parsed: Resource<core::NodeSpec, core::NodeStatus> = notes.parse(source)?;
            let (mut key, written) = notes.meta(&parsed.metadata)?;
            key.namespace = "".into();
            let object = node(key, parsed, &mut notes);
            Some(written.with(Object::Node(Arc::new(object))))
        }
    }
}

/// An object's JSON, which can be read more than once.
pub trait Source<'de>: Deserializer<'de, Error = serde_json::Error> + Copy {}

impl<'de, S: Deserializer<'de, Error = serde_json::Error> + Copy> Source<'de> for S {}

/// The part of an object that names it; invalid values count as absent.
#[derive(Default, Deserialize)]
struct Named {
    #[serde(default)]
    metadata: Value,
}

impl Named {
    fn of<'de>(source: impl Source<'de>) -> Self {
        Self::deserialize(source).unwrap_or_default()
    }

    fn text(&self, field: &str) -> &str {
        self.metadata.get(field).and_then(Value::as_str).unwrap_or_default()
    }
}

/// Only the key of an object, for deletions; `None` if it has no usable name.
pub fn key_of<'de>(kind: Kind, source: impl Source<'de>) -> Option<Key> {
    let named = Named::of(source);
    let (namespace, name) = (named.text("namespace"), named.text("name"));
    let namespace = if kind == Kind::Node { "" } else { namespace };
    (!name.is_empty() && is_sane(name) && is_sane(namespace)).then(|| Key::new(namespace, name))
}

/// `Service shop/cart`, safe to print.
fn describe<'de>(kind: Kind, source: impl Source<'de>) -> String {
    let named = Named::of(source);
    let text = |field: &str| {
        named.text(field).chars().take(MAX_NAME_BYTES).flat_map(char::escape_default).collect::<String>()
    };
    match (text("namespace"), text("name")) {
        (_, name) if name.is_empty() => format!("{kind} without a name"),
        (namespace, name) if namespace.is_empty() => format!("{kind} {name}"),
        (namespace, name) => format!("{kind} {namespace}/{name}"),
    }
}

/// Whether a name can be printed and kept: names reach terminals and records.
fn is_sane(name: &str) -> bool {
    name.len() <= MAX_NAME_BYTES && name.bytes().all(|byte| byte.is_ascii_graphic())
}

/// When an object was written, and as which version.
struct Written {
    created: Option<Timestamp>,
    changed: Option<Timestamp>,
    version: Option<u64>,
}

impl Written {
    fn with(self, object: Object) -> Trimmed {
        let Self { created, changed, version } = self;
        Trimmed { object, created, changed, version }
    }
}

struct Notes<'a> {
    describe: &'a dyn Fn() -> String,
    odd: &'a mut Vec<Oddity>,
}

impl Notes<'_> {
    fn note(&mut self, what: String) {
        let object = (self.describe)();
        self.odd.push(Oddity { object, what });
    }

    fn parse<'de, T: Deserialize<'de>>(&mut self, source: impl Source<'de>) -> Option<T> {
        match T::deserialize(source) {
            Ok(parsed) => Some(parsed),
            Err(error) => {
                self.note(format!("left out, it does not match the API: {error}"));
                None
            }
        }
    }

    fn meta(&mut self, meta: &Meta) -> Option<(Key, Written)> {
        let name = meta.name.as_deref().unwrap_or_default();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        if name.is_empty() || !is_sane(name) || !is_sane(namespace) {
            self.note("left out, its name is not one that Kubernetes accepts".to_owned());
            return None;
        }
        let managed = meta.managed_fields.iter().flatten().filter_map(|write| timestamp(write.time.as_ref()));
        // deletionTimestamp is later by the grace period: the change was made at the deletion request.
        let deleted = timestamp(meta.deletion_timestamp.as_ref())
            .map(|at| at.saturating_sub(seconds(meta.deletion_grace_period_seconds.unwrap_or(0))));
        let written = Written {
            created: timestamp(meta.creation_timestamp.as_ref()),
            changed: managed.chain(deleted).max(),
            version: meta.resource_version.as_deref().and_then(|version| version.parse().ok()),
        };
        Some((Key::new(namespace, name), written))
    }

    fn ip(&mut self, text: &str, field: &str) -> Option<IpAddr> {
        if let Some(ip) = parse_address(text) {
            return Some(ip.to_canonical());
        }
        self.note(format!("{field} {:?} is not an IP address, skipped", cut(text)));
        None
    }

    fn cidr(&mut self, text: &str, field: &str) -> Option<Cidr> {
        let cidr = Cidr::parse(text);
        if cidr.is_none() {
            self.note(format!("{field} {:?} is not an address range, skipped", cut(text)));
        }
        cidr
    }

    fn ips<'t>(&mut self, texts: impl IntoIterator<Item = &'t String>, field: &str) -> Vec<IpAddr> {
        exact(texts.into_iter().filter_map(|text| self.ip(text, field)))
    }

    fn port(&mut self, number: i32, field: &str) -> Option<u16> {
        match u16::try_from(number) {
            Ok(port) if port > 0 => Some(port),
            _ => {
                self.note(format!("{field} {number} is not a port number, skipped"));
                None
            }
        }
    }

    fn protocol(&mut self, name: Option<&str>) -> Option<Protocol> {
        match name {
            None | Some("" | "TCP") => Some(Protocol::TCP),
            Some("UDP") => Some(Protocol::UDP),
            Some("SCTP") => Some(Protocol::SCTP),
            Some(other) => {
                self.note(format!("protocol {:?} is not TCP, UDP or SCTP, port skipped", cut(other)));
                None
            }
        }
    }
}

/// Collects without the room for further items that a list of unknown length gets: the objects are kept for long.
fn exact<T>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut all: Vec<T> = items.collect();
    all.shrink_to_fit();
    all
}

fn cut(text: &str) -> String {
    text.chars().take(64).collect()
}

fn timestamp(time: Option<&Time>) -> Option<Timestamp> {
    let ns = time?.0.as_nanosecond();
    u64::try_from(ns).ok().map(Timestamp::from_unix_ns)
}

fn seconds(count: i64) -> Duration {
    Duration::from_secs(u64::try_from(count).unwrap_or(0))
}

/// Names reach terminals and every kept version: unprintable characters are escaped, and overlong text is cut.
fn text(value: Option<String>) -> Arc<str> {
    let mut text = value.unwrap_or_default();
    text.truncate(text.floor_char_boundary(MAX_NAME_BYTES));
    if text.chars().any(char::is_control) { text.escape_default().to_string().into() } else { text.into() }
}

fn uid(value: Option<String>) -> Uid {
    text(value).as_ref().into()
}

fn service(
    key: Key,
    parsed: Resource<core::ServiceSpec, core::ServiceStatus>,
    notes: &mut Notes<'_>,
) -> Service {
    let spec = parsed.spec.unwrap_or_default();
    let kind = match spec.type_.as_deref() {
        Some("NodePort") => ServiceType::NodePort,
        Some("LoadBalancer") => ServiceType::LoadBalancer,
        Some("ExternalName") => ServiceType::ExternalName,
        _ => ServiceType::ClusterIp,
    };
    let headless = spec.cluster_ip.as_deref() == Some("None");
    // Old API servers fill only clusterIP.
    let listed = match spec.cluster_ips {
        Some(ips) if !ips.is_empty() => ips,
        _ => spec.cluster_ip.into_iter().collect(),
    };
    let listed: Vec<_> = listed.into_iter().filter(|ip| ip != "None" && !ip.is_empty()).collect();
    let ingress =
        parsed.status.and_then(|status| status.load_balancer).and_then(|lb| lb.ingress).unwrap_or_default();
    let ingress = ingress.into_iter().filter(|_| kind == ServiceType::LoadBalancer).filter_map(|entry| {
        let ip = entry.ip.filter(|ip| !ip.is_empty())?;
        Some((ip, entry.ip_mode.as_deref() == Some("Proxy")))
    });
    let (proxied, ingress): (Vec<_>, Vec<_>) = ingress.partition(|(_, is_proxied)| *is_proxied);
    let policy = |name: Option<String>| match name.as_deref() {
        Some("Local") => TrafficPolicy::Local,
        _ => TrafficPolicy::Cluster,
    };
    let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
        let configured = spec.session_affinity_config.and_then(|config| config.client_ip);
        configured.and_then(|config| config.timeout_seconds).map_or(DEFAULT_AFFINITY, |s| seconds(s.into()))
    });
    let mut labels = parsed.metadata.labels.unwrap_or_default();
    let mut annotations = parsed.metadata.annotations.unwrap_or_default();
    // Older than the field, and used only if the field is empty (pkg/proxy/topology.go, endpointslice/topologycache).
    let topology = ["service.kubernetes.io/topology-mode", "service.kubernetes.io/topology-aware-hints"]
        .into_iter()
        .find_map(|name| annotations.remove(name))
        .filter(|mode| mode.eq_ignore_ascii_case("auto"));
    let has_node_ports = matches!(kind, ServiceType::NodePort | ServiceType::LoadBalancer);
    Service {
        key,
        uid: uid(parsed.metadata.uid),
        r#type: kind,
        cluster_ips: if kind == ServiceType::ExternalName {
            Vec::new()
        } else {
            notes.ips(&listed, "clusterIP")
        },
        headless,
        external_ips: notes.ips(spec.external_ips.iter().flatten(), "externalIP"),
        load_balancer_ips: notes.ips(ingress.iter().map(|(ip, _)| ip), "load balancer IP"),
        proxied_ips: notes.ips(proxied.iter().map(|(ip, _)| ip), "load balancer IP"),
        ports: exact(spec.ports.into_iter().flatten().filter_map(|p| service_port(p, has_node_ports, notes))),
        selector: spec.selector.unwrap_or_default().into(),
        external_traffic_policy: policy(spec.external_traffic_policy),
        internal_traffic_policy: policy(spec.internal_traffic_policy),
        affinity,
        proxy_name: labels.remove("service.kubernetes.io/service-proxy-name").map(Into::into),
        labelled_headless: labels.contains_key("service.kubernetes.io/headless"),
        publish_not_ready_addresses: spec.publish_not_ready_addresses.unwrap_or(false),
        source_ranges: spec
            .load_balancer_source_ranges
            .into_iter()
            .flatten()
            .filter(|_| kind == ServiceType::LoadBalancer)
            .filter_map(|range| notes.cidr(&range, "loadBalancerSourceRanges"))
            .collect(),
        health_check_node_port: spec
            .health_check_node_port
            .filter(|port| *port != 0)
            .and_then(|port| notes.port(port, "healthCheckNodePort")),
        traffic_distribution: spec
            .traffic_distribution
            .filter(|name| !name.is_empty())
            .or(topology)
            .map(|name| text(Some(name))),
        external_name: spec
            .external_name
            .filter(|name| kind == ServiceType::ExternalName && !name.is_empty())
            .map(|name| text(Some(name))),
    }
}

fn service_port(
    parsed: core::ServicePort,
    has_node_ports: bool,
    notes: &mut Notes<'_>,
) -> Option<ServicePort> {
    let protocol = notes.protocol(parsed.protocol.as_deref())?;
    let port = notes.port(parsed.port, "port")?;
    let target = match parsed.target_port {
        Some(IntOrString::Int(number)) if number != 0 => {
            TargetPort::Number(notes.port(number, "targetPort")?)
        }
        Some(IntOrString::String(name)) if !name.is_empty() => TargetPort::Name(name.into()),
        _ => TargetPort::Number(port),
    };
    let node_port = match parsed.node_port {
        Some(number) if has_node_ports && number != 0 => notes.port(number, "nodePort"),
        _ => None,
    };
    Some(ServicePort { name: text(parsed.name), protocol, port, target, node_port })
}

fn slice(key: Key, parsed: Slice, notes: &mut Notes<'_>) -> Option<EndpointSlice> {
    let address_type = match parsed.address_type.as_str() {
        "IPv4" => AddressType::Ipv4,
        "IPv6" => AddressType::Ipv6,
        "FQDN" => AddressType::Fqdn,
        other => {
            notes.note(format!("left out, addressType {:?} is not IPv4, IPv6 or FQDN", cut(other)));
            return None;
        }
    };
    let mut labels = parsed.metadata.labels.unwrap_or_default();
    let service = labels.remove("kubernetes.io/service-name").filter(|name| !name.is_empty());
    let service = match service {
        Some(name) if !is_sane(&name) => {
            notes.note("left out, the name in its Service label is invalid".to_owned());
            return None;
        }
        name => name.map(|name| Key { namespace: Arc::clone(&key.namespace), name: name.into() }),
    };
    let (endpoints, ports) = (parsed.endpoints.len(), parsed.ports.as_ref().map_or(0, Vec::len));
    if endpoints > MAX_SLICE_ENDPOINTS || ports > MAX_SLICE_PORTS {
        notes.note(format!(
            "{endpoints} endpoints and {ports} ports, but at most {MAX_SLICE_ENDPOINTS} and {MAX_SLICE_PORTS} are \
                possible"
        ));
    }
    // A port without a number means "all ports"; kube-proxy writes no rule for it.
    let ports = parsed.ports.into_iter().flatten().take(MAX_SLICE_PORTS).filter_map(|port| {
        let protocol = notes.protocol(port.protocol.as_deref())?;
        Some(SlicePort { name: text(port.name), protocol, port: notes.port(port.port?, "port")? })
    });
    let ports = exact(ports);
    let listed = parsed.endpoints.into_iter().take(MAX_SLICE_ENDPOINTS);
    let listed = listed.filter(|_| address_type != AddressType::Fqdn);
    let endpoints =
        exact(listed.filter_map(|endpoint| slice_endpoint(endpoint, address_type, &key.namespace, notes)));
    let generation = parsed.metadata.generation;
    Some(EndpointSlice {
        key,
        uid: uid(parsed.metadata.uid),
        service,
        address_type,
        ports,
        endpoints,
        generation,
    })
}

fn slice_endpoint(
    parsed: discovery::Endpoint,
    family: AddressType,
    namespace: &Arc<str>,
    notes: &mut Notes<'_>,
) -> Option<Endpoint> {
    let mut addresses = notes.ips(&parsed.addresses, "endpoint address");
    let listed = addresses.len();
    addresses.retain(|ip| AddressType::of(*ip) == family);
    if addresses.len() < listed {
        notes.note(format!("an endpoint address is not {family}, skipped"));
    }
    if addresses.is_empty() {
        return None;
    }
    let conditions = parsed.conditions.unwrap_or_default();
    let pod = parsed.target_ref.filter(|target| target.kind.as_deref() == Some("Pod")).and_then(|target| {
        let namespace = target.namespace.map_or_else(|| Arc::clone(namespace), Into::into);
        let name = target.name.filter(|name| is_sane(name))?;
        Some(PodRef { key: Key { namespace, name: name.into() }, uid: uid(target.uid) })
    });
    let ready = conditions.ready.unwrap_or(true);
    let hints = parsed.hints.unwrap_or_default();
    Some(Endpoint {
        addresses: addresses.into(),
        conditions: Conditions {
            ready,
            serving: conditions.serving.unwrap_or(true),
            terminating: conditions.terminating.unwrap_or(false),
        },
        node: parsed.node_name.map(|name| text(Some(name))),
        pod,
        zone: parsed.zone.map(|zone| text(Some(zone))),
        for_zones: hints.for_zones.into_iter().flatten().map(|hint| text(Some(hint.name))).collect(),
        for_nodes: hints.for_nodes.into_iter().flatten().map(|hint| text(Some(hint.name))).collect(),
    })
}

fn pod(key: Key, parsed: Resource<core::PodSpec, core::PodStatus>, notes: &mut Notes<'_>) -> Pod {
    let spec = parsed.spec.unwrap_or_default();
    let status = parsed.status.unwrap_or_default();
    let mut ips: Vec<String> = status.pod_ips.into_iter().flatten().map(|entry| entry.ip).collect();
    if ips.is_empty() {
        ips.extend(status.pod_ip);
    }
    ips.retain(|ip| !ip.is_empty());
    let phase = match status.phase.as_deref() {
        Some("Pending") => Phase::Pending,
        Some("Running") => Phase::Running,
        Some("Succeeded") => Phase::Succeeded,
        Some("Failed") => Phase::Failed,
        _ => Phase::Unknown,
    };
    let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut ports = Vec::new();
    for port in containers().flat_map(|container| container.ports.iter().flatten()) {
        let protocol = notes.protocol(port.protocol.as_deref());
        let number = notes.port(port.container_port, "containerPort");
        if let (Some(protocol), Some(port_number)) = (protocol, number) {
            ports.push(ContainerPort { name: text(port.name.clone()), protocol, port: port_number });
        }
    }
    let probes = containers().flat_map(|container| probes::of(container, &mut *notes)).collect();
    let statuses = || status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let own_reason = status.reason.as_ref().filter(|why| phase == Phase::Failed && is_printable(why));
    let own_reason = own_reason.filter(|why| !why.is_empty()).map(|why| why.as_str().into());
    let restarts =
        statuses().map(|s| u32::try_from(s.restart_count).unwrap_or(0)).fold(0, u32::saturating_add);
    Pod {
        key,
        uid: uid(parsed.metadata.uid),
        node: spec.node_name.clone().filter(|name| !name.is_empty()).map(|name| text(Some(name))),
        ips: notes.ips(&ips, "podIP").into(),
        host_network: spec.host_network.unwrap_or(false),
        phase,
        ready: status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True"),
        deletion: timestamp(parsed.metadata.deletion_timestamp.as_ref()),
        termination_grace: spec.termination_grace_period_seconds.map_or(DEFAULT_TERMINATION_GRACE, seconds),
        labels: parsed.metadata.labels.unwrap_or_default().into(),
        ports: ports.into(),
        probes,
        restarts,
        trouble: own_reason.or_else(|| statuses().find_map(trouble)),
    }
}

/// Why a container is not running, or why it last ended if it only waits for its restart.
fn trouble(status: &core::ContainerStatus) -> Option<Arc<str>> {
    let ended = |state: Option<&core::ContainerState>| {
        state.and_then(|s| s.terminated.as_ref()).filter(|t| t.exit_code != 0).and_then(|t| t.reason.clone())
    };
    let waiting =
        status.state.as_ref().and_then(|state| state.waiting.as_ref()).and_then(|w| w.reason.clone());
    let reason = match waiting.as_deref() {
        // Normal while a Pod starts.
        Some("ContainerCreating" | "PodInitializing") => None,
        Some("CrashLoopBackOff") => match ended(status.last_state.as_ref()).as_deref() {
            Some("OOMKilled") => Some("CrashLoopBackOff after OOMKilled".to_owned()),
            _ => waiting,
        },
        Some(_) => waiting,
        None => ended(status.state.as_ref()),
    };
    reason.filter(|reason| is_printable(reason)).map(Into::into)
}

fn is_printable(text: &str) -> bool {
    text.len() <= MAX_NAME_BYTES && !text.chars().any(char::is_control)
}

fn node(key: Key, parsed: Resource<core::NodeSpec, core::NodeStatus>, notes: &mut Notes<'_>) -> Node {
    let spec = parsed.spec.unwrap_or_default();
    let status = parsed.status.unwrap_or_default();
    // The order of GetNodeHostIPs in k8s.io/component-helpers/node/util/ips.go: kube-proxy takes the first of a family.
    let listed = || status.addresses.iter().flatten();
    let of_type = |kind: &'static str| listed().filter(move |address| address.type_ == kind);
    let addresses: Vec<_> =
        of_type("InternalIP").chain(of_type("ExternalIP")).map(|address| address.address.clone()).collect();
    let mut cidrs = spec.pod_cidrs.unwrap_or_default();
    if cidrs.is_empty() {
        cidrs.extend(spec.pod_cidr);
    }
    let conditions = status.conditions.unwrap_or_default();
    let ready = conditions.iter().find(|c| c.type_ == "Ready").and_then(|c| match c.status.as_str() {
        "True" => Some(true),
        "False" => Some(false),
        _ => None,
    });
    let pressure = conditions.into_iter().filter(|c| c.type_ != "Ready" && c.status == "True");
    let info = status.node_info.unwrap_or_default();
    let mut labels = parsed.metadata.labels.unwrap_or_default();
    Node {
        unfit: unfit(&labels, &info.operating_system),
        key,
        uid: uid(parsed.metadata.uid),
        addresses: notes.ips(&addresses, "node address"),
        pod_cidrs: cidrs.into_iter().map(Into::into).collect(),
        ready,
        pressure: pressure.map(|c| text(Some(c.type_))).collect(),
        kubelet_version: text(Some(info.kubelet_version)),
        kube_proxy_version: text(Some(info.kube_proxy_version)),
        zone: labels.remove("topology.kubernetes.io/zone").map(Into::into),
        unschedulable: spec.unschedulable.unwrap_or(false),
    }
}

/// Whether a node is no Linux machine, by its kubelet's own word and by the labels that virtual kubelets
/// (<https://virtual-kubelet.io>), kwok and EKS set.
fn unfit(labels: &BTreeMap<String, String>, system: &str) -> Option<Unfit> {
    let label = |name| labels.get(name).map(String::as_str);
    let is_virtual = matches!(label("type"), Some("virtual-kubelet" | "kwok"))
        || label("eks.amazonaws.com/compute-type") == Some("fargate");
    let is_windows = system == "windows" || label("kubernetes.io/os") == Some("windows");
    is_virtual.then_some(Unfit::Virtual).or(is_windows.then_some(Unfit::Windows))
}
