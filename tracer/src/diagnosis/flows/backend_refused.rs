//! C28: the endpoint is current and refuses the connection.

use super::{
    Case, Finding,
    network_path::{connect_command, refused_there},
    sidecar,
};
use crate::{
    class::{Class, Confidence, action},
    cluster::model::Uid,
    flow::{End, Outcome},
    net::Protocol,
    sighting::Hook,
    verdict::EvidenceType,
};

/// Whether both are known and differ: a Pod of a `StatefulSet` has the name of its predecessor.
pub(super) fn differ(one: &Uid, other: &Uid) -> bool {
    !one.is_empty() && !other.is_empty() && one != other
}

/// Mechanism: NAT worked, but nothing listens on the endpoint's port: a wrong targetPort, or the application is down
/// although its Pod is ready.
/// For: a RST to the SYN from the endpoint's stack, which has no socket for it; the endpoint is listed.
/// Or rules in the Pod's own namespace send the packet to a proxy there that does not run, whatever the application does.
/// Against: a stale endpoint whose address belongs to another Pod now is C6; a RST that only the client observed may
/// come from another host on the path.
pub(super) fn refused(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let member = case.member()?;
    if case.outcome != Outcome::Refused {
        return None;
    }
    let trouble = case.trouble();
    let sender =
        trouble.and_then(|trouble| trouble.stack_resets.iter().find(|reset| reset.by == End::Endpoint));
    let no_socket = trouble.and_then(|trouble| trouble.drops.iter().find(|drop| drop.is("NO_SOCKET")));
    // An ICMP port unreachable from the endpoint itself is equivalent to its RST.
    let told = trouble.and_then(|trouble| {
        let errors = &trouble.icmp_errors;
        errors.iter().find(|error| error.about_request && error.from == Some(endpoint.ip()))
    });
    let seen_at_endpoint = sender.is_some() || no_socket.is_some() || told.is_some();
    if !seen_at_endpoint && refused_there(case).is_some() {
        return None;
    }
    // Of SCTP, the refusal itself (an ABORT) passes no hook.
    let is_inferred = !seen_at_endpoint && case.flow.orig.protocol == Protocol::SCTP;
    let name = case.endpoint_name();
    let proxy = sidecar::before_endpoint(case);
    let why = match proxy {
        Some((_, proxy)) => case.said(format_args!(
            "rules in its own network namespace redirect them to port {}, as those of a service mesh's sidecar do, and \
             nothing listens there",
            proxy.port()
        )),
        None if is_inferred => case.said(format_args!(
            "an answer passed and no association was made, as where nothing listens on port {}",
            endpoint.port()
        )),
        None => case.said(format_args!("nothing listens on port {}", endpoint.port())),
    };
    let verb = if is_inferred { "seems to refuse associations" } else { "refuses connections" };
    let mut finding = case
        .finding(Class::C28, format_args!("{name} {verb} of {}: {why}", case.name()))
        .confidence(if seen_at_endpoint { Confidence::High } else { Confidence::Medium })
        .api(
            None,
            format_args!(
                "{endpoint} is an endpoint of {}, whose targetPort is {}",
                case.name(),
                case.vip.port.target
            ),
        );
    if case.is_no_pod() {
        finding = finding.now(&[action::ASK_OUTSIDE]).later(&[]);
        if finding.has_words() {
            finding = finding.fill("CONNECT", connect_command(case, endpoint));
        }
    }
    if let Some((decision, proxy)) = proxy {
        finding = finding
            .kernel(
                Some(decision.time),
                format_args!(
                    "rules in netns {} redirected it from port {} to {proxy}",
                    decision.netns.0,
                    endpoint.port()
                ),
            )
            .unobserved(
                "why the proxy does not listen: its log (`kubectl logs POD -c istio-proxy`, or linkerd-proxy); the Pod's \
                 application may listen on its own port",
            );
    }
    let killed = trouble.is_some_and(|trouble| trouble.killed.is_some());
    if !seen_at_endpoint && !killed && !case.flow.client.is_seen() {
        // That it was the answer to a SYN follows from the entry's missing answer.
        finding = finding.if_nothing_was_lost();
    }
    if !seen_at_endpoint {
        finding = if is_inferred {
            let ended = case.flow.deleted.or(case.flow.reread);
            finding
                .kernel(
                    ended.map(|ended| ended.time),
                    "the conntrack entry had seen an answer and was never established (ASSURED), as an ABORT leaves it",
                )
                .unobserved("the refusal itself, an ABORT, and who sent it: `tcpdump -ni any sctp` shows it")
        } else if !case.flow.is_tcp() {
            finding.unobserved("the sender of the refusal: only the refusal itself was observed")
        } else if case.has_hook(Hook::TcpSendReset) {
            finding.unobserved(
                "the sender of the RST: the endpoint is not on this node, or its event was not observed",
            )
        } else {
            finding.unobserved("the sender of the RST: this trace has no hook for sent RSTs")
        };
    }
    if let Some(listed) = member.pod
        && let Some(holder) = case.ctx.cluster.pod_by_ip(endpoint.ip(), case.decided)
        && (holder.key != listed.key || differ(&holder.uid, &listed.uid))
    {
        finding.doubt();
        finding = finding.against(
            EvidenceType::Api,
            None,
            format_args!(
                "Pod {} has the address {} now: the EndpointSlice may be outdated",
                holder.key,
                endpoint.ip()
            ),
        );
    }
    Some(finding)
}
