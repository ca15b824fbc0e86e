//! Step 1: the Services themselves (K9): missing endpoints with the reason, Local policies without local endpoints,
//! Services of another proxy.
//!
//! Owns C5d, C20, C21, C22, C23 (ranges without effect), C25, C26 (addresses), C27 and N19, as the API shows them.
//! `rules` checks the rules.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc};

use super::{Facts, Finding, Level, Scope};
use crate::{
    class::{Class, Confidence, Severity, action},
    cluster::{
        History, Key, NoEndpointsReason, Vip,
        model::{AddressType, Service, ServicePort, ServiceType, TrafficPolicy, Via},
    },
    diagnosis::{audit, left_out::LeftOut},
    net::Family,
    node::{ProxyMode, Release, Snapshot},
    time::Timestamp,
    verdict::EvidenceType,
};

/// The time of the judged state: the latest.
const AT: Timestamp = Timestamp::MAX;

pub(super) fn judge(facts: &Facts, scope: &Scope, findings: &mut Vec<Finding>) {
    let Some(history) = facts.services() else { return };
    let uses_terminating = facts.node.uses_terminating().unwrap_or(true);
    for service in history.services() {
        let asked = scope.service.as_ref() == Some(&service.key);
        if scope.service.is_some() && !asked {
            continue;
        }
        let left_out = LeftOut::of(service, facts.node.release());
        match (left_out, service.without_address()) {
            // Nobody else may serve it, so that its owner should know.
            (Some(label @ LeftOut::Headless { .. }), _) => findings.push(ignored(service, label)),
            (Some(label @ LeftOut::ToProxy(_)), _) if asked => findings.push(ignored(service, label)),
            (None, Some(why)) if asked => findings.push(not_proxied(service, Class::C27, why)),
            (None, None) => {
                no_endpoints(history, service, uses_terminating, asked, findings);
                if let Some(node) = facts.known_node() {
                    local_policies(history, service, node, &facts.node, findings);
                    if asked {
                        hints(history, service, node, facts.node.release(), findings);
                    }
                }
                no_address(service, findings);
                ranges_without_effect(service, facts.node.mode, findings);
            }
            _ => {}
        }
    }
    node_port_addresses(facts, history, scope, findings);
}

/// C5d: a label makes kube-proxy leave the Service out.
fn ignored(service: &Service, left_out: LeftOut<'_>) -> Finding {
    let LeftOut::Headless { is_certain } = left_out else {
        let why = "its label service.kubernetes.io/service-proxy-name gives it to another proxy";
        return not_proxied(service, Class::C5d, why);
    };
    let key = &service.key;
    let why =
        "its label service.kubernetes.io/headless makes kube-proxy ignore it, though it has a ClusterIP";
    let finding = if is_certain {
        not_proxied(service, Class::C5d, why)
    } else {
        not_served(service, Class::C5d, format!("kube-proxy may not serve {key}: {why} up to 1.34"), why)
            .confidence(Confidence::Medium)
    };
    let finding = finding.now(&[action::REMOVE_HEADLESS_LABEL, action::SHOW_SERVICE]);
    match left_out.unknown() {
        Some(what) => finding.unobserved(what),
        None => finding,
    }
}

fn not_proxied(service: &Service, class: Class, why: &str) -> Finding {
    not_served(service, class, format!("kube-proxy does not serve {}: {why}", service.key), why)
}

fn not_served(service: &Service, class: Class, detail: String, why: &str) -> Finding {
    let key = &service.key;
    Finding::new(class, detail)
        .level(Level::Note)
        .severity(Severity::None)
        .service(key, "*")
        .api(None, format!("Service {key}: {why}"))
        .now(&[action::SHOW_SERVICE])
}

/// The families in which the Service has an address.
fn families(service: &Service) -> BTreeSet<AddressFamily> {
    service.cluster_ips.iter().map(|ip| AddressFamily(ip.is_ipv6())).collect()
}

/// An order for the families: IPv4 first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AddressFamily(bool);

impl AddressFamily {
    const fn kind(self) -> AddressType {
        if self.0 { AddressType::Ipv6 } else { AddressType::Ipv4 }
    }
}

/// `uses_terminating`: whether kube-proxy sends to terminating endpoints if no other is ready. `asked`: a person asks about this
/// Service alone.
fn no_endpoints(
    history: &History,
    service: &Service,
    uses_terminating: bool,
    asked: bool,
    findings: &mut Vec<Finding>,
) {
    let key = &service.key;
    // Ports that fail for the same reason in the same family share one finding.
    let mut found: Vec<(AddressType, NoEndpointsReason, Vec<&ServicePort>)> = Vec::new();
    for family in families(service) {
        for port in &service.ports {
            let reason = history.no_endpoints_reason(service, port, family.kind(), AT);
            let terminating = || history.only_terminating(service, port, family.kind(), AT);
            let Some(reason) = reason.or_else(|| terminating().filter(|_| !uses_terminating)) else {
                continue;
            };
            match found.iter_mut().find(|(other, known, _)| *other == family.kind() && *known == reason) {
                Some((.., ports)) => ports.push(port),
                None => found.push((family.kind(), reason, vec![port])),
            }
        }
    }
    let near = if found.is_empty() { None } else { history.nearly_selected(service, AT) };
    let several = families(service).len() > 1;
    for (family, reason, ports) in found {
        let all = ports.len() == service.ports.len();
        let labels: Vec<Arc<str>> = ports.iter().map(|port| port.label()).collect();
        let what = match (all, several) {
            (true, false) => key.to_string(),
            (true, true) => format!("{key} ({family})"),
            (false, false) => format!("{key} port {}", labels.join(", ")),
            (false, true) => format!("{key} port {} ({family})", labels.join(", ")),
        };
        let label = if let ([only], true) = (labels.as_slice(), ports.len() == 1) {
            Arc::clone(only)
        } else {
            "*".into()
        };
        if let Some(note) = switched_off(history, service, &reason, near.is_some(), &what, &label) {
            findings.push(note);
            continue;
        }
        let mut finding = Finding::new(Class::C20, format!("{what} has no endpoint: {reason}"))
            .service(key, &label)
            .since(history.endpoints_changed(key, AT))
            .api(
                None,
                format!(
                    "EndpointSlices of {key}: no endpoint that serves {} over {}",
                    labels.join(", "),
                    family
                ),
            );
        if let Some((pod, label)) = &near {
            finding = finding.api(None, format!("Pod {pod} has {label} and belongs to no Service"));
        }
        if reason == NoEndpointsReason::Unexplained {
            finding = finding
                .confidence(Confidence::Medium)
                .unobserved("the Pods, which would show whether the Service was switched off (N19)");
        }
        if !asked && near.is_none() && is_placeholder(history, key, &reason) {
            // A warning: a selector that has never matched may have a slip of the pen.
            let slices = match history.has_had_endpoints(key, AT) {
                Some(_) => "its EndpointSlices have never had an endpoint",
                None => "no EndpointSlice of it is known to have had an endpoint",
            };
            finding = finding
                .level(Level::Warning)
                .severity(Severity::Medium)
                .confidence(Confidence::Medium)
                .api(None, slices)
                .unobserved(
                    "whether any client uses it: its connections are refused, and a trace shows them",
                );
        }
        findings.push(finding.remedied(&reason));
    }
}

/// N19: no Pod is left of a Service that had endpoints. Whether that is intended is known to the owner of the workload
/// alone; its `replicas` would show it. A selector that has never matched, or nearly matches a Pod, is a fault.
fn switched_off(
    history: &History,
    service: &Service,
    reason: &NoEndpointsReason,
    nearly_selects: bool,
    what: &str,
    label: &str,
) -> Option<Finding> {
    let key = &service.key;
    let empty = matches!(
        reason,
        NoEndpointsReason::ScaledToZero { .. } | NoEndpointsReason::SelectorMatchesNothing { .. }
    );
    let never = history.has_had_endpoints(key, AT) == Some(false)
        && !matches!(reason, NoEndpointsReason::ScaledToZero { .. });
    if !empty || never || nearly_selects {
        return None;
    }
    let terms: Vec<String> =
        service.selector.iter().map(|(label, value)| format!("{label}={value}")).collect();
    let detail = format!("{what} is switched off: it has no endpoint, and no Pod has {}", terms.join(","));
    Some(
        Finding::new(Class::N19, detail)
            .level(Level::Note)
            .confidence(Confidence::Medium)
            .service(key, label)
            .since(history.endpoints_changed(key, AT))
            .api(None, format!("EndpointSlices of {key}: no endpoint, ready or not; {reason}"))
            .unobserved(
                "the workload's replicas, which show whether it was scaled to zero or its Pods are missing",
            )
            .related(&[Class::C20])
            .now(&[action::FIND_SCALER]),
    )
}

/// Whether nothing shows that the Service is in use: it has no Pod and never had an endpoint, as a workload that starts at zero
/// replicas, or a Service that is made before its Pods. The API servers write the endpoints of default/kubernetes themselves.
fn is_placeholder(history: &History, key: &Key, reason: &NoEndpointsReason) -> bool {
    let is_empty =
        matches!(reason, NoEndpointsReason::SelectorMatchesNothing { .. } | NoEndpointsReason::NoSelector);
    let is_api = (&*key.namespace, &*key.name) == ("default", "kubernetes");
    is_empty && !is_api && history.has_had_endpoints(key, AT) != Some(true)
}

fn local_policies(
    history: &History,
    service: &Service,
    node: &str,
    snapshot: &Snapshot,
    findings: &mut Vec<Finding>,
) {
    let terminating = snapshot.uses_terminating().unwrap_or(true);
    let outside = matches!(service.r#type, ServiceType::NodePort | ServiceType::LoadBalancer)
        || !service.external_ips.is_empty();
    let policies = [
        (service.internal_traffic_policy, true, Class::C22),
        (service.external_traffic_policy, outside, Class::C21),
    ];
    for (policy, applies, class) in policies {
        if policy != TrafficPolicy::Local || !applies {
            continue;
        }
        for family in families(service) {
            let without = |port: &&ServicePort| {
                let is_served = |local| {
                    let usable = history.usable_endpoints(&service.key, port, family.kind(), local, AT);
                    usable.iter().any(|endpoint| endpoint.conditions.ready || terminating)
                };
                !is_served(Some(node)) && is_served(None)
            };
            let ports: Vec<&ServicePort> = service.ports.iter().filter(without).collect();
            if !ports.is_empty() {
                findings.push(no_local_endpoint(
                    history,
                    service,
                    node,
                    family.kind(),
                    &ports,
                    class,
                    snapshot,
                ));
            }
        }
    }
}

/// C21, C22: a warning, because connections fail only if a client sends any to this node. A Local policy without an endpoint
/// on each node is a common design (node agents, node ports behind a balancer that knows the nodes).
fn no_local_endpoint(
    history: &History,
    service: &Service,
    node: &str,
    family: AddressType,
    ports: &[&ServicePort],
    class: Class,
    snapshot: &Snapshot,
) -> Finding {
    let mode = snapshot.mode;
    let key = &service.key;
    let labels: Vec<Arc<str>> = ports.iter().map(|port| port.label()).collect();
    let label = if let [only] = labels.as_slice() { Arc::clone(only) } else { "*".into() };
    let (which, who) = if class == Class::C22 {
        ("internalTrafficPolicy", format!("connections from {node} and its Pods"))
    } else {
        ("externalTrafficPolicy", format!("connections from outside to {node}"))
    };
    // In ipvs mode a port that is reachable from outside has the endpoints of all nodes (`UsesClusterEndpoints` in
    // pkg/proxy/serviceport.go): a client outside the cluster receives answers from an address that it did not connect
    // to (kubernetes/kubernetes#97081), and inside the cluster the policy has no effect (kubernetes/kubernetes#106497).
    // Any other port has a virtual server without a real server, which refuses.
    let ignored =
        mode == Some(ProxyMode::Ipvs) && ports.iter().all(|port| is_external(service, port, family));
    let precedes = |minor| snapshot.release().is_some_and(|own| own < Release(1, minor));
    let fate = match (mode, class) {
        (Some(ProxyMode::Ipvs), Class::C22) if ignored => "go to other nodes nevertheless",
        (Some(ProxyMode::Ipvs), Class::C22) => "are refused",
        // Before kubernetes/kubernetes#97081 the virtual server has no real server.
        (Some(ProxyMode::Ipvs), _) if precedes(21) => "are refused",
        (Some(ProxyMode::Ipvs), _) => "are answered from a wrong address",
        // Before kubernetes/kubernetes#106497 kube-proxy counts this node's endpoints only, and refuses.
        (Some(ProxyMode::Iptables), Class::C22) if precedes(24) => "are refused",
        (Some(ProxyMode::Iptables), Class::C22) if snapshot.may_precede(Release(1, 24)) => {
            "time out or are refused"
        }
        _ => "time out",
    };
    let elsewhere: BTreeSet<&str> = ports
        .iter()
        .flat_map(|port| history.usable_endpoints(key, port, family, None, AT))
        .filter_map(|endpoint| endpoint.node)
        .collect();
    let elsewhere: Vec<&str> = elsewhere.into_iter().take(5).collect();
    let detail = format!("{key} is {which}: Local and has no endpoint on {node}: {who} {fate}");
    let finding = Finding::new(class, detail)
        .severity(Severity::Medium)
        .level(Level::Warning)
        .service(key, &label)
        .since(history.endpoints_changed(key, AT))
        .api(None, format!("Service {key}: {which}: Local"))
        .api(
            None,
            format!(
                "its endpoints are on {}",
                if elsewhere.is_empty() {
                    "nodes that it does not name".to_owned()
                } else {
                    elsewhere.join(", ")
                }
            ),
        );
    if class == Class::C22 {
        let unseen = format!("whether any client on {node} uses {key}: a trace shows it");
        return if ignored { finding } else { finding.unobserved(unseen) };
    }
    // A virtual server without a real server refuses every client.
    let has_exemption = !(mode == Some(ProxyMode::Ipvs) && precedes(21));
    let finding = if has_exemption {
        finding.against(EvidenceType::Api, None, exempt_clients(snapshot, family))
    } else {
        finding
    };
    match service.health_check_node_port {
        // A load balancer that uses the health check sends nothing to this node.
        Some(port) => finding.level(Level::Note).against(
            EvidenceType::Api,
            None,
            format!("a load balancer that checks healthCheckNodePort {port} excludes this node, as intended"),
        ),
        None => finding.unobserved(format!(
            "whether any client outside sends to {node}, or only to nodes with an endpoint: a trace shows it"
        )),
    }
}

/// The clients that a Local policy for external traffic does not concern. Some releases in nftables mode drop the node's
/// own connections before they translate them.
fn exempt_clients(snapshot: &Snapshot, family: AddressType) -> &'static str {
    let family = if family == AddressType::Ipv6 { Family::Ipv6 } else { Family::Ipv4 };
    if audit::drops_own_connections(&snapshot.rules, family) {
        "connections from this node's Pods are exempt"
    } else {
        "connections from this node and its Pods are exempt"
    }
}

/// C25: topology hints leave only some of the ready endpoints to this node. By design, and worth knowing for the Service
/// that a person asks about.
fn hints(
    history: &History,
    service: &Service,
    node: &str,
    release: Option<Release>,
    findings: &mut Vec<Finding>,
) {
    let key = &service.key;
    let follows_nodes = Release::follows_node_hints(release);
    for (ip, port) in
        service.cluster_ips.iter().flat_map(|ip| service.ports.iter().map(move |port| (ip, port)))
    {
        let vip = Vip { addr: SocketAddr::new(*ip, port.port), via: Via::ClusterIp, service, port };
        let Some(hinted) = history.hinted(&vip, node, follows_nodes, AT) else { continue };
        let used: Vec<String> = hinted.endpoints.iter().take(5).map(ToString::to_string).collect();
        let asked_by = hinted.asked_by.map(|wish| format!(" ({wish})")).unwrap_or_default();
        findings.push(
            Finding::new(
                Class::C25,
                format!(
                    "topology hints{asked_by} leave {} of the {} ready endpoints of {key} to connections from {node}",
                    hinted.endpoints.len(),
                    hinted.of
                ),
            )
            .level(Level::Note)
            .severity(Severity::None)
            .service(key, &port.label())
            .api(None, format!("EndpointSlices of {key}: hints for {node} or its zone on {}", used.join(", "))),
        );
    }
}

/// Whether kube-proxy opens the port to connections of this family from outside the cluster.
fn is_external(service: &Service, port: &ServicePort, family: AddressType) -> bool {
    let addresses = || service.load_balancer_ips.iter().chain(&service.external_ips);
    port.node_port.is_some() || addresses().any(|ip| AddressType::of(*ip) == family)
}

/// A `LoadBalancer` that no controller has given an address.
fn no_address(service: &Service, findings: &mut Vec<Finding>) {
    if service.r#type != ServiceType::LoadBalancer || !service.load_balancer_ips.is_empty() {
        return;
    }
    let key = &service.key;
    findings.push(
        Finding::new(Class::C26, format!("LoadBalancer {key} has no ingress address that this node serves"))
            .level(Level::Note)
            .service(key, "*")
            .api(
                None,
                format!("Service {key}: status.loadBalancer.ingress has no IP address with ipMode VIP"),
            )
            .against(
                EvidenceType::Api,
                None,
                "a load balancer with a host name or with ipMode: Proxy reaches the Service through \
                 its node ports",
            )
            .now(&[action::READ_LOAD_BALANCER_EVENTS]),
    );
}

/// An address that is a load balancer's and an external IP too: the rule of the external IP comes first in
/// KUBE-SERVICES, so that iptables mode checks no source range (`pkg/proxy/iptables/proxier.go`, `syncProxyRules`).
fn ranges_without_effect(service: &Service, mode: Option<ProxyMode>, findings: &mut Vec<Finding>) {
    let both = service.load_balancer_ips.iter().find(|ip| service.external_ips.contains(ip));
    let Some(ip) = both.filter(|_| mode == Some(ProxyMode::Iptables) && !service.source_ranges.is_empty())
    else {
        return;
    };
    let key = &service.key;
    findings.push(
        Finding::new(
            Class::C23,
            format!(
                "{key}: loadBalancerSourceRanges keep no client from {ip}, which is an external IP of the Service too"
            ),
        )
        .level(Level::Note)
        .service(key, "*")
        .api(None, format!("Service {key}: {ip} is in externalIPs and in status.loadBalancer.ingress")),
    );
}

/// `nodePortAddresses` that contain no address of this node.
fn node_port_addresses(facts: &Facts, history: &History, scope: &Scope, findings: &mut Vec<Finding>) {
    let Some(config) = facts.node.config.as_ref() else { return };
    let ranges = &config.node_port_addresses;
    let Some(node) = facts.own_node() else { return };
    if ranges.is_empty() || ranges.iter().any(|range| range == "primary") || node.addresses.is_empty() {
        return;
    }
    let cidrs: Vec<_> = ranges.iter().filter_map(|range| crate::net::Cidr::parse(range)).collect();
    let listed = facts.node.interfaces.iter().flat_map(crate::node::interfaces::Interfaces::iter);
    let mut addresses: Vec<_> = node.addresses.clone();
    addresses.extend(listed.flat_map(|interface| interface.addresses.iter().map(|(address, _)| *address)));
    // Only iptables mode serves 127.0.0.1 (`--nodeport-addresses includes localhost but localhost NodePorts are not
    // supported` in pkg/proxy/nftables/proxier.go; IPVS mode skips loopback too).
    let localhost = facts.node.mode.is_none_or(|mode| mode == ProxyMode::Iptables)
        && config.localhost_node_ports != Some(false);
    let serves = |ip: &std::net::IpAddr| !ip.is_loopback() || localhost && ip.is_ipv4();
    let within = |ip: &std::net::IpAddr| cidrs.iter().any(|cidr| cidr.contains(*ip));
    if addresses.iter().any(|ip| serves(ip) && within(ip)) {
        return;
    }
    let only_loopback = addresses.iter().any(|ip| ip.is_loopback() && within(ip));
    let uses = |service: &Service| service.ports.iter().any(|port| port.node_port.is_some());
    let affected = history.services().filter(|service| uses(service));
    let affected =
        affected.filter(|service| scope.service.as_ref().is_none_or(|key| *key == service.key)).count();
    if affected == 0 {
        return;
    }
    let detail = match facts.node.mode {
        Some(mode) if only_loopback => format!(
            "nodePortAddresses ({}) admit no address of this node but 127.0.0.1, which {mode} mode does not serve here: no \
             node port is served",
            ranges.join(", ")
        ),
        _ => format!(
            "no address of this node is within nodePortAddresses ({}): no node port is served here",
            ranges.join(", ")
        ),
    };
    findings.push(
        Finding::new(Class::C26, detail)
            .severity(Severity::High)
            .node(None, format!("kube-proxy's configuration: nodePortAddresses: {}", ranges.join(", ")))
            .api(None, format!("Services with node ports: {affected}"))
            .now(&[action::CORRECT_NODE_PORT_ADDRESSES]),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_comes_first() {
        assert!(AddressFamily(false) < AddressFamily(true));
        assert_eq!(AddressFamily(true).kind(), AddressType::Ipv6);
    }
}
