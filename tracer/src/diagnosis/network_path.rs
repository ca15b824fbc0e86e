//! C29: the endpoint is current and silent, or cannot be reached.

use super::{Case, Finding, Membership, hairpin, text::word};
use crate::{
    flow::Outcome,
    verdict::{Confidence, Domain, EvidenceType, Safety, Severity},
};

/// Mechanism: NAT did its work and the SYN left; no answer came. On this node the Pod is gone, paused or filtered; on
/// another node the tunnel, a security group or the node.
/// For: repeated SYNs, or an unresolved neighbour, to an endpoint that is listed.
/// Against: one client's view: the same client straight to the Pod's address decides.
pub(super) fn silent(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let failed =
        matches!(case.outcome, Outcome::Stalled | Outcome::Unreachable | Outcome::Dropped | Outcome::Silent);
    if !failed || !matches!(case.membership, Some(Membership::Member { .. })) {
        return None;
    }
    // A program on the host's network that gets an endpoint there never meets a bridge.
    let on_host = case.ctx.node.is_own_address(endpoint.ip()) == Some(true);
    if endpoint.ip() == case.flow.orig.src.ip() && !on_host {
        return Some(hairpin::itself(case));
    }
    let node = match &case.membership {
        Some(Membership::Member { node: Some(node), .. }) => Some(node.clone()),
        _ => case.ctx.cluster.pod_by_ip(endpoint.ip(), case.decided).and_then(|pod| pod.node),
    };
    let local = node.as_deref().is_some_and(|node| Some(node) == case.ctx.node_name);
    let dropped = case
        .trouble()
        .and_then(|trouble| trouble.drops.iter().find(|drop| drop.stage != crate::flow::Stage::Reply))
        .and_then(|drop| drop.reason.clone());
    let what = match (case.outcome, dropped.as_deref()) {
        (Outcome::Unreachable, Some(reason)) => {
            format!("cannot be reached: no way to the next hop ({reason})")
        }
        (Outcome::Dropped, Some(reason)) => format!("was not reached: packets were dropped ({reason})"),
        (Outcome::Silent, _) => "answered and then fell silent".to_owned(),
        _ => "does not answer".to_owned(),
    };
    let mut finding =
        Finding::new("C29", Domain::NetworkPath, format!("{} of {} {what}", case.endpoint_name(), case.name()))
            .confidence(if case.outcome == Outcome::Unreachable { Confidence::High } else { Confidence::Medium })
            .severity(if case.outcome == Outcome::Silent { Severity::Low } else { Severity::Medium })
            .api(None, format!("{endpoint} is an endpoint of {}", case.name()))
            .action(
                format!(
                    "ask the Pod directly from the same client: {endpoint}; if that fails too, kube-proxy is exonerated; \
                     kubectl get pods -A -o wide --field-selector status.podIP={}",
                    endpoint.ip()
                ),
                "give the Pod a readiness probe, so that a silent one leaves the endpoints; watch the CNI's tunnel and the node",
                Safety::ReadOnly,
            )
            .see(&["C29"]);
    match node.as_deref() {
        Some(name) if case.ctx.cluster.node_ready(name, case.decided) == Some(false) => {
            finding = finding.api(None, format!("the endpoint's node {name} is not Ready"));
            finding.mitigation.immediate =
                format!("kubectl describe node {}; {}", word(name), finding.mitigation.immediate);
        }
        Some(name) if !local => {
            finding = finding.unseen(format!("whether the SYN reached node {name}: a trace there tells"));
        }
        Some(_) => {}
        None => finding = finding.unseen("on which node the endpoint is"),
    }
    if case.outcome == Outcome::Silent {
        finding = finding.against(
            EvidenceType::Kernel,
            None,
            "small packets went through: full-size ones that vanish point at the MTU (C33)",
        );
    }
    Some(finding)
}
