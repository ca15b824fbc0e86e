//! C20: the Service has no endpoint to send to; N19 if its workload was scaled to zero.

use std::fmt;

use super::{Case, Finding, case::port_unreachable, foreign_rules, service_config::lacks_family};
use crate::{
    class::{Class, Confidence},
    cluster::NoEndpointsReason,
    flow::{RefusalKind, Stage},
    node::RuleEffect,
};

/// Mechanism: kube-proxy writes a rule that rejects (ICMP port unreachable) for a Service port without usable
/// endpoints. This is not kube-proxy's fault: the API has none.
/// For: the rejection, before any endpoint was chosen; no usable endpoint in the API at that moment.
/// Against: nothing, if both were observed. A workload that was scaled to zero is refused by design (N19). If the API removed
/// the last endpoint within the grace after the rejection, kube-proxy knew it first.
pub(super) fn refused(case: &Case<'_>) -> Option<Finding> {
    let refusal = case.trouble()?.refusal.filter(|refusal| is_of_kube_proxy(refusal.kind, case))?;
    if refusal.stage != Stage::Before
        || case.endpoint.is_some()
        || case.has_usable() != Some(false)
        || !case.failed()
    {
        return None;
    }
    let confidence = if matches!(refusal.kind, RefusalKind::Unreachable { .. } | RefusalKind::NoDestination) {
        Confidence::High
    } else {
        Confidence::Medium
    };
    Some(finding(case, confidence))
}

/// Whether kube-proxy's rules can have refused like this: `REJECT` with its default, port unreachable
/// (`pkg/proxy/iptables/proxier.go`), `reject` of nftables, or IPVS. Forged RSTs come from another writer, or from a
/// rule of kube-proxy that a user changed.
fn is_of_kube_proxy(kind: RefusalKind, case: &Case<'_>) -> bool {
    match kind {
        RefusalKind::Unreachable { code } => code.is_none_or(|code| code == port_unreachable(case.flow)),
        RefusalKind::Reset | RefusalKind::NoDestination => true,
    }
}

/// Without an observed rejection: the address was not translated and the connection failed, or another program translated it.
pub(super) fn unanswered(case: &Case<'_>) -> Option<Finding> {
    if case.endpoint.is_some() {
        return past_kube_proxy(case);
    }
    let untranslated = case.untranslated()
        || case.is_refused_by_vip()
        || (case.decision.is_none() && case.flow.decisions.is_empty());
    let never_opened = case.failed() && !case.flow.was_answered();
    if case.has_usable() != Some(false) || !never_opened || !untranslated {
        return None;
    }
    if lacks_family(case) {
        return None;
    }
    let is_shown = case.untranslated() || case.is_refused_by_vip();
    let confidence = if is_shown { Confidence::Medium } else { Confidence::Low };
    let mut finding = finding(case, confidence);
    if case.has_hook(case.refusal_hook()) {
        finding = finding.unobserved("the rule's refusal: the packet may have taken another path");
    }
    Some(finding)
}

/// Mechanism: kube-proxy's rules refuse the address as it was before NAT, and the rule of a hostPort translated it first. What holds the
/// port sends it on to the Service, which refuses there, or does not listen.
/// For: the rule, an endpoint that is none of the Service's, and no usable endpoint in the API at that moment.
fn past_kube_proxy(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint.filter(|_| case.failed() && !case.flow.was_answered())?;
    let rule = foreign_rules::of_another_program(case)?;
    let holder = case.ctx.cluster.pod_by_ip(endpoint.ip(), case.decided);
    let holder = fmt::from_fn(|f| match holder {
        Some(pod) => write!(f, "{endpoint} (Pod {})", pod.key),
        None => write!(f, "{endpoint}"),
    });
    let finding = finding(case, Confidence::Medium)
        .node(
            case.ctx.node.read_at(),
            format_args!("{rule}, which is not kube-proxy's, sent the connection to {holder}"),
        )
        .unobserved(format_args!(
            "what {holder} did with it: as ServiceLB of k3s, it may send it on to the Service"
        ));
    Some(finding)
}

fn finding(case: &Case<'_>, confidence: Confidence) -> Finding {
    let reason = case.ctx.cluster.why_no_endpoints(&case.vip, case.lost_at().unwrap_or(case.decided));
    let since = case.usable().map(|usable| usable.since);
    let when = if case.lost_at().is_some() { "right after" } else { "at that moment" };
    let nothing = case.said(format_args!("no usable endpoint for {} {when}", case.name()));
    if let Some(NoEndpointsReason::ScaledToZero { last_endpoint }) = reason.as_deref() {
        return case
            .finding(
                Class::N19,
                format_args!(
                    "{} has no Pods: its workload was scaled to zero or deleted, and the rules refuse",
                    case.name()
                ),
            )
            .confidence(confidence.min(Confidence::Medium))
            .api(since, nothing)
            .api(Some(*last_endpoint), "the last endpoint left, and no Pod matches the selector any more")
            .unobserved("whether that is intended: the replicas of its Deployment or StatefulSet decide")
            .related(&[Class::C20])
            .with_late_loss(case)
            .with_effect(case, RuleEffect::Refuses);
    }
    let because = fmt::from_fn(|f| match &reason {
        Some(reason) => write!(f, ": {reason}"),
        None => Ok(()),
    });
    let detail = case.said(format_args!("{} has no usable endpoint{because}", case.name()));
    let mut finding = case.finding(Class::C20, detail).confidence(confidence).api(since, nothing);
    match &reason {
        Some(reason) => finding = finding.api(None, format_args!("{reason}")).remedied(reason),
        None if !case.uses_terminating() => {
            finding = finding.node(
                case.ctx.node.read_at(),
                "this kube-proxy does not send to terminating endpoints (ProxyTerminatingEndpoints, on since v1.26)",
            );
        }
        None => finding = finding.unobserved("the reason for the missing endpoints"),
    }
    finding.with_late_loss(case).with_effect(case, RuleEffect::Refuses)
}
