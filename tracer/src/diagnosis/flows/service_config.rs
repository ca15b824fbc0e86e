//! The Service is not what the client takes it for: wrong port (C5c), another proxy (C5d), a Local policy without a
//! local endpoint (C21, C22), no address at all (C27); and hints that narrow its endpoints (C25).

use super::{
    Case, Context, Finding, Rule,
    text::{length, word},
};
use crate::{
    class::{Class, Confidence, Domain, Safety, Severity},
    cluster::{Key, Via},
    flow::{Decision, Flow, Outcome},
    time::Timestamp,
};

/// C5c.
/// Mechanism: kube-proxy translates only the ports that the Service lists. In iptables mode the packet leaves
/// untranslated and nothing answers, nftables and ipvs refuse it.
/// For: the address is a Service's, the port is none of its ports, and the connection failed.
pub(super) fn unknown_port(flow: &Flow, ctx: &Context<'_>, service: &Key) -> Option<Finding> {
    let translated = flow.decision(ctx.node_netns).and_then(Decision::endpoint);
    if flow.outcome().is_success() || flow.outcome() == Outcome::Pending || translated.is_some() {
        return None;
    }
    let port = flow.orig.dst.port();
    let get = format!("kubectl -n {} get service {} -o wide", word(&service.namespace), word(&service.name));
    Some(
        Finding::new(
            Class::C5c,
            Domain::ServiceConfig,
            format!("{service} has no port {port}/{}", flow.orig.protocol),
        )
        .severity(Severity::Medium)
        .api(
            None,
            format!("{} is an address of {service}, which does not list port {port}", flow.orig.dst.ip()),
        )
        .action(
            format!("{get}; correct the client's port or the Service's ports"),
            "take ports from the Service's names rather than from numbers",
            Safety::ReadOnly,
        )
        .see(&["C5c"]),
    )
}

/// The Service was deleted, or gave the address up: C6 where a rule still translated it, else C5c; C27 where it has none
/// any more.
pub(super) fn gone(flow: &Flow, ctx: &Context<'_>, service: &Key, since: Timestamp) -> Option<Finding> {
    let decision = flow.decision(ctx.node_netns);
    let decided = decision.map_or(flow.first_seen, |decision| decision.time);
    if decided <= since.saturating_add(ctx.grace) {
        return None;
    }
    let ago = length(decided.since(since));
    let past = format!("{} was an address of {service} until then", flow.orig.dst.ip());
    if let Some(endpoint) = decision.and_then(Decision::endpoint) {
        return Some(
            Finding::new(
                Class::C6,
                Domain::StaleEndpoints,
                format!("the rules still send {} to {endpoint}, {ago} after {service} gave the address up", flow.orig.dst),
            )
            .confidence(Confidence::Medium)
            .severity(Severity::Medium)
            .api(Some(since), past)
            .unseen("why kube-proxy did not take the rule away: its log and metrics")
            .action(
                "kubectl -n kube-system logs -l k8s-app=kube-proxy: look for \"Failed to watch\" and failed syncs",
                "alert on kube-proxy's sync and watch failures",
                Safety::ReadOnly,
            )
            .see(&["C6"]),
        );
    }
    let failed = !flow.outcome().is_success() && flow.outcome() != Outcome::Pending;
    failed.then(|| {
        let asks = format!("the client asks for an address that {service} gave up {ago} before");
        let now = ctx.cluster.service(service, flow.first_seen);
        let finding = match now.and_then(|now| now.without_address()) {
            Some(why) => {
                Finding::new(Class::C27, Domain::ServiceConfig, format!("{asks}: {why}")).see(&["C27"])
            }
            None => Finding::new(Class::C5c, Domain::ServiceConfig, asks),
        };
        finding
            .severity(Severity::Low)
            .api(Some(since), past)
            .action(
                "find out where the client has the address from: a cached name, or its configuration",
                "resolve the Service's name for each connection",
                Safety::ReadOnly,
            )
            .see(&["C5c"])
    })
}

/// C25.
/// Mechanism: hints in the `EndpointSlices` keep a node's traffic to the endpoints of its zone, or its own: what is wrong
/// with those few is not evened out by the others. By design, so said beside the fault, never as one.
/// For: the flow failed at one of the endpoints that hints leave to this node, and they leave out others that are ready.
/// Against: under a Local policy hints are not asked.
pub(super) fn with_hints(case: &Case<'_>, finding: Finding) -> Finding {
    let hinted = || {
        let endpoint = case.endpoint.filter(|_| case.failed() && !case.vip.is_local())?;
        let node = case.ctx.node_name?;
        let hinted = case.ctx.cluster.hinted(&case.vip, node, case.decided)?;
        hinted.endpoints.contains(&endpoint).then_some(hinted)
    };
    let Some(hinted) = hinted() else { return finding };
    let asked_by = hinted.asked_by.map(|wish| format!(" ({wish})")).unwrap_or_default();
    finding
        .api(
            None,
            format!(
                "by design, topology hints{asked_by} leave {} of the {} ready endpoints of {} to this node's traffic, this \
                 one among them",
                hinted.endpoints.len(),
                hinted.of,
                case.name()
            ),
        )
        .see(&["C25"])
}

/// C5d.
/// Mechanism: the label `service.kubernetes.io/service-proxy-name` tells kube-proxy to leave the Service alone.
/// For: the label, and no translation. Against: nothing here; the other proxy may be at fault.
pub(super) fn other_proxy(case: &Case<'_>) -> Option<Finding> {
    let proxy = case.vip.service.proxy_name.as_ref()?;
    if case.endpoint.is_some() || !(case.failed() || case.outcome == Outcome::Pending && case.untranslated())
    {
        return None;
    }
    Some(
        Finding::new(
            Class::C5d,
            Domain::ServiceConfig,
            format!("kube-proxy leaves {} to the proxy \"{proxy}\", which did not serve it here", case.name()),
        )
        .severity(Severity::Medium)
        .api(None, format!("the Service has the label service.kubernetes.io/service-proxy-name={proxy}"))
        .action(
            format!(
                "check that the proxy \"{proxy}\" runs on this node, or remove the label: kubectl -n {} get service {} \
                 --show-labels",
                word(&case.vip.service.key.namespace),
                word(&case.vip.service.key.name)
            ),
            "label only Services whose proxy runs on every node",
            Safety::ReadOnly,
        )
        .see(&["C5d"]),
    )
}

/// C23.
/// Mechanism: kube-proxy lets only `loadBalancerSourceRanges` in at a load balancer's IP. In iptables mode KUBE-FW does
/// not translate others, KUBE-PROXY-FIREWALL drops them; in nftables mode a `firewall-` chain drops them before NAT.
/// For: a load balancer IP, a source in none of its ranges, and a rule's drop before any endpoint was chosen.
/// Against: a drop that was not seen may have been another's. Node ports are not subject to the ranges.
pub(super) fn source_ranges(case: &Case<'_>) -> Option<Finding> {
    let (ranges, source) = (case.vip.source_ranges().collect::<Vec<_>>(), case.flow.orig.src.ip());
    let excluded = !ranges.is_empty() && !ranges.iter().any(|range| range.contains(source));
    if case.vip.via != Via::LoadBalancerIp || !excluded || case.endpoint.is_some() {
        return None;
    }
    let drop = case.rule_drop();
    let vanished = matches!(case.outcome, Outcome::Stalled | Outcome::Dropped | Outcome::Abandoned);
    let stopped = vanished || (case.failed() && drop.is_some());
    if !stopped {
        return None;
    }
    let listed: Vec<String> = ranges.iter().take(8).map(ToString::to_string).collect();
    let more = if ranges.len() > listed.len() { ", …" } else { "" };
    let mut finding = Finding::new(
        Class::C23,
        Domain::ServiceConfig,
        format!("{source} is in none of the loadBalancerSourceRanges of {}: its packets are dropped", case.name()),
    )
    .confidence(if drop.is_some() { Confidence::High } else { Confidence::Medium })
    .severity(Severity::Low)
    .api(None, format!("the Service admits {}{more}", listed.join(", ")))
    .action(
        format!(
            "if this source should be let in, add it: kubectl -n {} edit service {}",
            word(&case.vip.service.key.namespace),
            word(&case.vip.service.key.name)
        ),
        "keep the ranges beside the load balancer's own configuration; behind a proxy the source is the proxy's address",
        Safety::ReadOnly,
    )
    .see(&["C23"]);
    if drop.is_none() {
        finding = finding.unseen("the rule's drop: something else may have taken the packets");
    }
    Some(finding.with_ruling(case, Rule::Drops))
}

/// C26.
/// Mechanism: kube-proxy serves node ports only at the addresses that `nodePortAddresses` admits; at the others the
/// packet is for the node itself, which has no such port.
/// For: this node's own address, a node port that its rules serve at another address of it and not at this one.
pub(super) fn node_port_not_here(case: &Case<'_>) -> Option<Finding> {
    let asked = case.vip.addr;
    if case.vip.via != Via::NodePort || case.endpoint.is_some() || !case.failed() {
        return None;
    }
    let node = case.ctx.node;
    let missing = node.rule(asked, case.vip.port.protocol) == Some(Rule::Missing);
    if !missing || node.is_own_address(asked.ip()) != Some(true) {
        return None;
    }
    let other = node.serves_node_port_at(asked.port(), case.vip.port.protocol)?;
    Some(
        Finding::new(
            Class::C26,
            Domain::ServiceConfig,
            format!(
                "node port {} of {} is not served at {}: nodePortAddresses leave that address out",
                asked.port(),
                case.name(),
                asked.ip()
            ),
        )
        .severity(Severity::Low)
        .node(
            node.read_at(),
            format!("the rules serve port {} at {other} and not at {}", asked.port(), asked.ip()),
        )
        .action(
            format!(
                "ask for {}, or admit the address: nodePortAddresses in kube-proxy's configuration",
                std::net::SocketAddr::new(other, asked.port())
            ),
            "give clients addresses that nodePortAddresses admit; 127.0.0.1 is served in iptables mode only",
            Safety::ReadOnly,
        )
        .see(&["C26"]),
    )
}

/// C21 (external), C22 (internal).
/// Mechanism: under a Local policy kube-proxy drops what arrives on a node without a local endpoint: a timeout, not a
/// refusal (kubernetes/kubernetes#121371).
/// For: a rule's drop before any endpoint was chosen, a Local policy, and no endpoint on this node.
/// Against: a load balancer that respects the health check port never sends here.
pub(super) fn no_local_endpoint(case: &Case<'_>) -> Option<Finding> {
    if !case.vip.is_local() || case.endpoint.is_some() || !case.failed() {
        return None;
    }
    let drop = case.rule_drop()?;
    let local = case.usable().and_then(|usable| usable.local);
    if local.is_some_and(|local| local > 0) {
        return None;
    }
    let external = case.vip.via != Via::ClusterIp;
    let (class, policy) =
        if external { (Class::C21, "externalTrafficPolicy") } else { (Class::C22, "internalTrafficPolicy") };
    let mut finding = Finding::new(
        class,
        Domain::ServiceConfig,
        format!("{policy} is Local and {} has no endpoint on this node: its packets are dropped", case.name()),
    )
    .confidence(if local == Some(0) && drop.reason.is_some() { Confidence::High } else { Confidence::Medium })
    .severity(Severity::High)
    .api(None, format!("{} usable endpoints in the cluster, none of them on this node", case.usable().map_or(0, |usable| usable.count)))
    .action(
        if external {
            "have the load balancer follow the Service's healthCheckNodePort, or send to a node with an endpoint"
        } else {
            "run an endpoint on this node, or use internalTrafficPolicy: Cluster"
        },
        "spread the endpoints over the nodes that get traffic, or use the policy Cluster",
        Safety::ReadOnly,
    )
    .see(&[class.id(), "kubernetes/kubernetes#121371"]);
    if drop.reason.is_none() {
        finding = finding.unseen("the drop's reason: this kernel gives none");
    }
    if local.is_none() {
        finding = finding.unseen("which endpoints are on this node: its name is not known");
    }
    Some(finding.with_ruling(case, Rule::Drops))
}
