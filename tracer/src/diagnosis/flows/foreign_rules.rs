//! Rules that kube-proxy no longer maintains: in the other iptables backend (C3), or of another proxy mode (C10). They
//! still translate, and no program updates them. And those of other programs that translate a Service's address (N13).

use super::{Case, Finding};
use crate::{
    class::{Class, Confidence, Severity},
    cluster::{Membership, Via},
    diagnosis::path::Scene,
    node::{ProxyMode, RuleEffect, WriterEffect, routes::Routes},
    rules::Writer,
    verdict::EvidenceType,
};

/// C3, C10.
/// Mechanism: kube-proxy writes through one backend in one mode. Rules that it, or an older one, wrote through another
/// backend or mode remain and translate first or in addition, often to endpoints that no longer exist.
/// For: NAT chose an endpoint that no slice lists, kube-proxy's current rules do not send to it, and those of the other
/// writer do. Against: the rules were read after NAT's decision.
pub(super) fn chose(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let since = match &case.membership {
        Some(Membership::Left { at, .. }) => *at,
        Some(Membership::NeverSeen { since }) => *since,
        _ => return None,
    };
    if case.within_grace(since) || case.decided <= since {
        return None;
    }
    let effects = case.ctx.node.effects(case.vip.addr, case.vip.port.protocol, case.flow.orig.src.ip());
    let sends = |effect: &&WriterEffect| effect.endpoints.contains(&endpoint);
    let leftover = effects.iter().find(sends)?;
    let kept: Vec<&WriterEffect> = effects.iter().filter(|effect| effect.writer != leftover.writer).collect();
    let mode = case.ctx.node.mode;
    if kept.is_empty() || kept.iter().any(sends) || is_certainly_kept(mode, leftover, &kept) {
        return None;
    }
    let other_mode = mode.filter(|mode| !mode.writes(leftover.writer));
    let of_other_mode = other_mode.is_some();
    let kept_names = kept.iter().map(|effect| effect.writer.as_str()).collect::<Vec<_>>().join(" and ");
    let (class, what) = if let Some(mode) = other_mode {
        let what =
            format!("kube-proxy is in {mode} mode and rules of {} mode still translate", leftover.writer);
        (Class::C10, what)
    } else {
        (Class::C3, format!("kube-proxy's rules exist in both {} and {kept_names}", leftover.writer))
    };
    let chain = leftover.chain.as_deref().unwrap_or("a rule");
    let mut finding = case
        .finding(
            class,
            format_args!(
                "{what}: the {} rules sent {} to {}, which is no longer an endpoint",
                leftover.writer,
                case.name(),
                case.endpoint_name()
            ),
        )
        .confidence(if of_other_mode { Confidence::High } else { Confidence::Medium })
        .severity(if case.failed() { Severity::High } else { Severity::Medium })
        .api(Some(since), format_args!("no EndpointSlice of {} lists {endpoint}", case.name()))
        .node(
            case.ctx.node.read_at(),
            format_args!("{}: {chain} sends {} to {endpoint}", leftover.writer, case.vip.addr),
        );
    if let Some(mode) = other_mode {
        let of_nftables = mode == ProxyMode::Nftables || leftover.writer == Writer::Nftables;
        finding = finding.cleaned_by_restart(of_nftables);
    }
    for effect in kept {
        let verb = match effect.rule {
            RuleEffect::Forwards => "sends it to endpoints, and not to this one",
            RuleEffect::Refuses => "refuses it",
            RuleEffect::Drops => "drops it",
            RuleEffect::Missing => "does not name it",
        };
        finding = finding.node(case.ctx.node.read_at(), format_args!("{}: {verb}", effect.writer));
    }
    if case.was_answered() {
        finding = finding.against(
            EvidenceType::Kernel,
            case.flow.client.established,
            format_args!("the connection was answered: a host has the address {} now", endpoint.ip()),
        );
    }
    Some(finding.unobserved("which rules translated this very connection: they were read after it"))
}

/// The rule of another program that sent the connection of a Service without endpoints to an address that is none of them (N13).
/// Mechanism: a hostPort has the number of the Service's port at an address of the node, as those of k3s' `ServiceLB`: its Pods hold the
/// ports of each `LoadBalancer` (`CNI-HOSTPORT-DNAT`, plugins/meta/portmap of containernetworking/plugins). kube-proxy's rules come first,
/// and translate nothing where the Service has no endpoint.
/// For: the rules of all programs send the packet there, and none of kube-proxy's. Against: rules that changed since.
pub(super) fn of_another_program(case: &Case<'_>) -> Option<String> {
    let endpoint = case.endpoint?;
    let is_none_of_its = matches!(case.membership, Some(Membership::NeverSeen { .. }));
    let node = case.ctx.node;
    let may_be_taken = is_none_of_its && case.vip.via != Via::ClusterIp && node.rules_time.is_some();
    if !may_be_taken || case.has_usable() != Some(false) {
        return None;
    }
    let unknown = Routes::default();
    let scene = Scene::new(&node.rules, node.routes.as_ref().unwrap_or(&unknown));
    scene.foreign_translation(case.flow.orig, endpoint)
}

/// Whether this is kube-proxy's current writer: then its rules are stale, which is another class.
fn is_certainly_kept(mode: Option<ProxyMode>, candidate: &WriterEffect, others: &[&WriterEffect]) -> bool {
    let Some(mode) = mode else { return true };
    mode.writes(candidate.writer) && !others.iter().any(|other| mode.writes(other.writer))
}
