//! The differences between two versions of an API object, in words.
//!
//! Owns the definition of a change. The first list of a kind has none: only a version that follows another, or an object
//! that a complete list lacked. An endpoint that moves from one slice of its Service to another has not changed.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{Change, Subject};
use crate::{
    cluster::{
        Event, History, Key, Kind, Update,
        model::{
            Change as ObjectChange, Conditions, EndpointSlice, Node, Object, Phase, Pod, Service,
            ServicePort, Trimmed,
        },
    },
    text,
    time::Timestamp,
    verdict::ChangeKind,
};

/// The most addresses or fields that a sentence names.
const MAX_NAMED: usize = 3;
/// The longest value that a sentence quotes, in characters.
const MAX_VALUE: usize = 80;

/// The changes that this update brings to the objects of the history.
pub(super) fn differences(update: &Update, history: &History) -> Vec<Change> {
    let mut out = Found { time: update.received, version: None, history, changes: Vec::new() };
    match &update.event {
        Event::Listed(trimmed) => {
            // A list after a gap: the object records when it changed.
            out.time = trimmed.changed.unwrap_or(update.received).min(update.received);
            out.put(trimmed);
        }
        Event::Changed(ObjectChange::Put(trimmed)) => out.put(trimmed),
        Event::Changed(ObjectChange::Delete(kind, key)) => out.delete(*kind, key),
        Event::Synced | Event::Heard | Event::Lost(_) | Event::Denied(_) | Event::Odd(_) => {}
    }
    out.changes
}

/// The changes found so far.
struct Found<'a> {
    time: Timestamp,
    /// Of the object that brings the changes.
    version: Option<u64>,
    history: &'a History,
    changes: Vec<Change>,
}

impl Found<'_> {
    fn push(&mut self, kind: ChangeKind, subject: Subject, text: String) {
        let version = self.version;
        self.changes.push(Change { version, ..Change::at(self.time, kind, subject, text) });
    }

    fn put(&mut self, Trimmed { object, version, .. }: &Trimmed) {
        self.version = *version;
        let (history, is_known) = (self.history, self.history.knows(object.kind()));
        match object {
            Object::Service(after) => match history.service(&after.key, Timestamp::MAX) {
                Some(before) => self.service(before, after),
                None if is_known => {
                    let text = format!("Service {} was created", after.key);
                    self.push(ChangeKind::ServiceCreated, Subject::Service(after.key.clone()), text);
                }
                None => {}
            },
            Object::EndpointSlice(after) => match history.slice(&after.key, Timestamp::MAX) {
                Some(before) => self.slice(Some(before), Some(after)),
                None if is_known => self.slice(None, Some(after)),
                None => {}
            },
            Object::Pod(after) => {
                if let Some(before) = history.pod(&after.key, Timestamp::MAX) {
                    self.pod(before, after);
                }
            }
            Object::Node(after) => match history.node(&after.key.name, Timestamp::MAX) {
                Some(before) => self.node(before, after),
                None if is_known => {
                    let text = format!("Node {} was added", after.key);
                    self.push(ChangeKind::NodeAdded, Subject::Node(after.key.name.clone()), text);
                }
                None => {}
            },
        }
    }

    fn delete(&mut self, kind: Kind, key: &Key) {
        let history = self.history;
        match kind {
            Kind::Service => {
                if history.service(key, Timestamp::MAX).is_some() {
                    let text = format!("Service {key} was deleted");
                    self.push(ChangeKind::ServiceDeleted, Subject::Service(key.clone()), text);
                }
            }
            Kind::EndpointSlice => self.slice(history.slice(key, Timestamp::MAX).map(|it| &**it), None),
            Kind::Pod => {
                // A requested deletion was noted when it was requested.
                let pod = history.pod(key, Timestamp::MAX);
                if let Some(pod) = pod.filter(|pod| pod.deletion.is_none() && pod.holds_addresses()) {
                    self.push(ChangeKind::PodDeleted, subject_of(pod), format!("Pod {key} was deleted"));
                }
            }
            Kind::Node => {
                if history.node(&key.name, Timestamp::MAX).is_some() {
                    let text = format!("Node {key} was removed");
                    self.push(ChangeKind::NodeRemoved, Subject::Node(key.name.clone()), text);
                }
            }
        }
    }

    fn service(&mut self, before: &Service, after: &Service) {
        let subject = || Subject::Service(after.key.clone());
        if before.uid != after.uid {
            let text = format!("Service {} was deleted and created again", after.key);
            self.push(ChangeKind::ServiceCreated, subject(), text);
        }
        let mut fields = Fields::default();
        fields.compare("type", &before.r#type, &after.r#type, |it| format!("{it:?}"));
        fields.compare("clusterIPs", &before.cluster_ips, &after.cluster_ips, |it| joined(it));
        fields.compare("ports", &before.ports, &after.ports, |it| joined(it.iter().map(port)));
        fields.compare("selector", &before.selector, &after.selector, |it| {
            joined(it.iter().map(|(label, value)| format!("{label}={value}")))
        });
        let policy = |it: &_| format!("{it:?}");
        let (was, is) = (before.external_traffic_policy, after.external_traffic_policy);
        fields.compare("externalTrafficPolicy", &was, &is, policy);
        let (was, is) = (before.internal_traffic_policy, after.internal_traffic_policy);
        fields.compare("internalTrafficPolicy", &was, &is, policy);
        fields.compare("session affinity", &before.affinity, &after.affinity, |it| {
            it.map_or_else(|| "none".to_owned(), |limit| format!("ClientIP for {} s", limit.as_secs()))
        });
        fields.compare("externalIPs", &before.external_ips, &after.external_ips, |it| joined(it));
        let (was, is) = (&before.load_balancer_ips, &after.load_balancer_ips);
        fields.compare("load balancer IPs", was, is, |it| joined(it));
        let (was, is) = (&before.source_ranges, &after.source_ranges);
        fields.compare("loadBalancerSourceRanges", was, is, |it| joined(it));
        let (was, is) = (&before.health_check_node_port, &after.health_check_node_port);
        fields.compare("healthCheckNodePort", was, is, |it| joined(it));
        let (was, is) = (&before.traffic_distribution, &after.traffic_distribution);
        fields.compare("trafficDistribution", was, is, |it| joined(it));
        let (was, is) = (&before.publish_not_ready_addresses, &after.publish_not_ready_addresses);
        fields.compare("publishNotReadyAddresses", was, is, bool::to_string);
        fields.compare("proxy", &before.proxy_name, &after.proxy_name, |it| joined(it));
        let (was, is) = (before.labelled_headless, after.labelled_headless);
        fields.compare("label service.kubernetes.io/headless", &was, &is, |it| {
            if *it { "set" } else { "not set" }.to_owned()
        });
        fields.compare("externalName", &before.external_name, &after.external_name, |it| joined(it));
        if let Some(changed) = fields.in_words() {
            let text = format!("Service {} {changed}", after.key);
            self.push(ChangeKind::ServiceChanged, subject(), text);
        }
    }

    /// A slice before and after; `None` where it does not exist.
    fn slice(&mut self, before: Option<&EndpointSlice>, after: Option<&EndpointSlice>) {
        let of = |slice: Option<&EndpointSlice>| slice.and_then(|slice| slice.service.clone());
        let (was, is) = (of(before), of(after));
        if was == is {
            if let Some(service) = is {
                self.endpoints(&service, before, after);
            }
            return;
        }
        if let Some(service) = was {
            self.endpoints(&service, before, None);
        }
        if let Some(service) = is {
            self.endpoints(&service, None, after);
        }
    }

    fn endpoints(&mut self, service: &Key, before: Option<&EndpointSlice>, after: Option<&EndpointSlice>) {
        let (was, is) = (listed(before), listed(after));
        let mut gone: BTreeSet<IpAddr> = was.keys().filter(|ip| !is.contains_key(*ip)).copied().collect();
        let mut new: BTreeSet<IpAddr> = is.keys().filter(|ip| !was.contains_key(*ip)).copied().collect();
        if let Some(slice) = before.or(after).filter(|_| !(gone.is_empty() && new.is_empty())) {
            let others = self.history.slices_at(service, Timestamp::MAX).filter(|it| it.key != slice.key);
            for ip in others.flat_map(|it| &it.endpoints).filter_map(|it| it.addresses.first()) {
                gone.remove(ip);
                new.remove(ip);
            }
        }
        let subject = || Subject::Service(service.clone());
        if !gone.is_empty() {
            let text = format!("{} left Service {service}", endpoints(&gone));
            self.push(ChangeKind::EndpointRemoved, subject(), text);
        }
        for (conditions, ips) in by_conditions(is.iter().filter(|(ip, _)| new.contains(*ip))) {
            let state = if conditions == "ready" { String::new() } else { format!(", {conditions}") };
            let text = format!("{} joined Service {service}{state}", endpoints(&ips));
            self.push(ChangeKind::EndpointAdded, subject(), text);
        }
        let changed = is.iter().filter(|(ip, now)| was.get(*ip).is_some_and(|then| then != *now));
        for (conditions, ips) in by_conditions(changed) {
            let verb = if ips.len() == 1 { "became" } else { "each became" };
            let text = format!("{} of Service {service} {verb} {conditions}", endpoints(&ips));
            self.push(ChangeKind::EndpointChanged, subject(), text);
        }
        if let (Some(before), Some(after)) = (before, after)
            && before.ports != after.ports
        {
            let ports = |slice: &EndpointSlice| {
                joined(slice.ports.iter().map(|it| named(&it.name, &format!("{}/{}", it.port, it.protocol))))
            };
            let text = format!(
                "the endpoints of Service {service} changed their ports from {} to {}",
                ports(before),
                ports(after)
            );
            self.push(ChangeKind::EndpointChanged, subject(), text);
        }
    }

    fn pod(&mut self, before: &Pod, after: &Pod) {
        let (key, subject) = (&after.key, || subject_of(after));
        if before.uid != after.uid {
            let text = format!("Pod {key} was replaced by a new one of the same name");
            self.push(ChangeKind::PodRestarted, subject(), text);
            return;
        }
        let why = after.trouble.as_ref().map(|why| format!(" ({})", short(why))).unwrap_or_default();
        if after.restarts > before.restarts {
            let times = text::times(after.restarts - before.restarts);
            let text = format!("a container of Pod {key} restarted {times}{why}");
            self.push(ChangeKind::PodRestarted, subject(), text);
        }
        if after.phase == Phase::Failed && before.phase != Phase::Failed {
            self.push(ChangeKind::PodFailed, subject(), format!("Pod {key} failed{why}"));
        }
        if before.deletion.is_none() && after.deletion.is_some() && after.holds_addresses() {
            let text = format!("the deletion of Pod {key} was requested");
            self.push(ChangeKind::PodDeleted, subject(), text);
        }
    }

    fn node(&mut self, before: &Node, after: &Node) {
        let (name, subject) = (&after.key.name, || Subject::Node(after.key.name.clone()));
        if before.ready != after.ready {
            let state = match after.ready {
                Some(true) => "became ready",
                Some(false) => "became not ready",
                None => "stopped reporting: its condition Ready is Unknown",
            };
            self.push(ChangeKind::NodeChanged, subject(), format!("Node {name} {state}"));
        }
        let conditions = [
            (&after.pressure, &before.pressure, "has"),
            (&before.pressure, &after.pressure, "no longer has"),
        ];
        for (of, other, verb) in conditions {
            let only: Vec<_> = of.iter().filter(|one| !other.contains(one)).take(MAX_NAMED).collect();
            if !only.is_empty() {
                let text = format!("Node {name} {verb} {}", text::list(&only));
                self.push(ChangeKind::NodeChanged, subject(), text);
            }
        }
        if before.unschedulable != after.unschedulable {
            let verb = if after.unschedulable { "cordoned" } else { "uncordoned" };
            self.push(ChangeKind::NodeChanged, subject(), format!("Node {name} was {verb}"));
        }
        let mut fields = Fields::default();
        fields.compare("addresses", &before.addresses, &after.addresses, |it| joined(it));
        fields.compare("Pod CIDRs", &before.pod_cidrs, &after.pod_cidrs, |it| joined(it));
        if let Some(changed) = fields.in_words() {
            self.push(ChangeKind::NodeChanged, subject(), format!("Node {name} {changed}"));
        }
        if before.kubelet_version != after.kubelet_version && !before.kubelet_version.is_empty() {
            let (was, is) = (short(&before.kubelet_version), short(&after.kubelet_version));
            let text = format!("the kubelet of Node {name} changed from {was} to {is}");
            self.push(ChangeKind::Upgraded, subject(), text);
        }
    }
}

/// A Pod on its node's network (kube-proxy, a network plugin) concerns the whole node.
fn subject_of(pod: &Pod) -> Subject {
    match &pod.node {
        Some(node) if pod.host_network => Subject::Node(node.clone()),
        _ => Subject::Pod(pod.key.clone()),
    }
}

/// The conditions of each endpoint.
fn listed(slice: Option<&EndpointSlice>) -> BTreeMap<IpAddr, Conditions> {
    let endpoints = slice.into_iter().flat_map(|slice| &slice.endpoints);
    endpoints.filter_map(|endpoint| Some((*endpoint.addresses.first()?, endpoint.conditions))).collect()
}

fn by_conditions<'a>(
    endpoints: impl Iterator<Item = (&'a IpAddr, &'a Conditions)>,
) -> BTreeMap<String, BTreeSet<IpAddr>> {
    let mut groups: BTreeMap<String, BTreeSet<IpAddr>> = BTreeMap::new();
    for (ip, conditions) in endpoints {
        groups.entry(conditions.to_string()).or_default().insert(*ip);
    }
    groups
}

/// `endpoint 10.244.1.7`, `endpoints 10.244.1.7 and 10.244.1.8`, `5 endpoints (10.244.1.7, 10.244.1.8, 10.244.1.9…)`.
fn endpoints(ips: &BTreeSet<IpAddr>) -> String {
    let names: Vec<String> = ips.iter().take(MAX_NAMED).map(IpAddr::to_string).collect();
    match ips.len() {
        1 => format!("endpoint {}", names.concat()),
        count if count <= MAX_NAMED => format!("endpoints {}", text::list(&names)),
        count => format!("{count} endpoints ({}…)", names.join(", ")),
    }
}

fn port(port: &ServicePort) -> String {
    let node_port = port.node_port.map(|port| format!(" (node port {port})")).unwrap_or_default();
    named(&port.name, &format!("{}/{} to {}{node_port}", port.port, port.protocol, port.target))
}

fn named(name: &str, value: &str) -> String {
    if name.is_empty() { value.to_owned() } else { format!("{name} {value}") }
}

fn joined(values: impl IntoIterator<Item = impl ToString>) -> String {
    let values: Vec<String> = values.into_iter().map(|value| value.to_string()).collect();
    if values.is_empty() { "none".to_owned() } else { short(&values.join(", ")) }
}

/// The beginning of a value.
fn short(value: &str) -> String {
    match value.char_indices().nth(MAX_VALUE) {
        Some((end, _)) => format!("{}…", value.get(..end).unwrap_or_default()),
        None => value.to_owned(),
    }
}

/// The fields of an object that differ.
#[derive(Default)]
struct Fields(Vec<(&'static str, String, String)>);

impl Fields {
    fn compare<T: PartialEq>(
        &mut self,
        name: &'static str,
        before: &T,
        after: &T,
        shown: impl Fn(&T) -> String,
    ) {
        if before != after {
            self.0.push((name, shown(before), shown(after)));
        }
    }

    /// `changed its selector from app=cart to app=kart; and 2 other fields`.
    fn in_words(&self) -> Option<String> {
        let named: Vec<String> = (self.0.iter().take(MAX_NAMED))
            .map(|(name, before, after)| format!("its {name} from {before} to {after}"))
            .collect();
        let more = self.0.len().saturating_sub(MAX_NAMED);
        let rest =
            if more > 0 { format!("; and {}", text::count(more, "other field")) } else { String::new() };
        (!named.is_empty()).then(|| format!("changed {}{rest}", named.join("; ")))
    }
}
