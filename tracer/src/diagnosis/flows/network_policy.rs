//! C30: a rule of a program other than kube-proxy stopped the packet.

use super::{Case, Finding};
use crate::{
    class::{Class, Confidence},
    flow::{Outcome, RefusalKind, Stage},
};

/// Mechanism: a network policy or host firewall rejects, after NAT or with a code that kube-proxy never uses (9, 10, 13
/// of ICMP, 1, 5, 6 of `ICMPv6`: administratively prohibited; a forged RST if endpoints exist).
/// For: the rejection and its place. Against: the CNI's own rules were not read.
pub(super) fn prohibited(case: &Case<'_>) -> Option<Finding> {
    let refusal = case.trouble()?.refusal?;
    let foreign = match refusal.kind {
        RefusalKind::Unreachable { code } if case.flow.orig.dst.is_ipv4() => {
            matches!(code, Some(9 | 10 | 13))
        }
        RefusalKind::Unreachable { code } => matches!(code, Some(1 | 5 | 6)),
        RefusalKind::Reset => case.has_usable() == Some(true),
        RefusalKind::NoDestination => false,
    };
    let elsewhere = case.ctx.node_netns.is_some_and(|netns| refusal.netns != netns && refusal.netns.0 != 0);
    if case.outcome != Outcome::Rejected || !(foreign || refusal.stage == Stage::After || elsewhere) {
        return None;
    }
    let place = if elsewhere {
        format!("in netns {}, which is not the node's", refusal.netns.0)
    } else {
        "on this node".to_owned()
    };
    Some(finding(format!("a rule {place} that is not kube-proxy's refuses {}", case.name())))
}

/// Mechanism: a policy drops the packet after kube-proxy chose a current endpoint.
/// For: `NETFILTER_DROP` after NAT. Against: an INVALID packet dropped by KUBE-FORWARD looks the same (C18b).
pub(super) fn dropped(case: &Case<'_>) -> Option<Finding> {
    let drop = case.rule_drop()?;
    case.endpoint?;
    if !drop.opening || !matches!(case.outcome, Outcome::Dropped | Outcome::Stalled) {
        return None;
    }
    let what =
        format!("a rule drops packets to endpoint {} of {}, after NAT", case.endpoint_name(), case.name());
    Some(finding(what))
}

fn finding(detail: String) -> Finding {
    Finding::new(Class::C30, detail)
        .confidence(Confidence::Medium)
        .unobserved("which chain or table stopped it")
}
