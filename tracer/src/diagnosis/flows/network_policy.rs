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

/// Drops of programs that are no netfilter rules: those of tc at an interface, and of a cgroup.
const PROGRAMS: [(&str, &str); 3] = [
    ("TC_INGRESS", "a tc program at the incoming interface"),
    ("TC_EGRESS", "a tc program at the outgoing interface"),
    ("BPF_CGROUP_EGRESS", "an eBPF program of the sender's cgroup"),
];

/// Mechanism: a policy drops the packet after kube-proxy chose a current endpoint.
/// For: `NETFILTER_DROP` after NAT, or the drop of a tc or cgroup program. Against: an INVALID packet dropped by
/// KUBE-FORWARD looks the same (C18b).
pub(super) fn dropped(case: &Case<'_>) -> Option<Finding> {
    if !matches!(case.outcome, Outcome::Dropped | Outcome::Stalled) {
        return None;
    }
    let drops = &case.trouble()?.drops;
    let by_program = drops
        .iter()
        .filter(|drop| drop.opening)
        .find_map(|drop| PROGRAMS.iter().find(|(reason, _)| drop.is(reason)).map(|(_, program)| *program));
    if let Some(program) = by_program {
        return Some(
            Finding::new(Class::C30, format!("{program} drops packets of connections to {}", case.name()))
                .confidence(Confidence::High)
                .unobserved("which program it is: `bpftool net show`, `bpftool cgroup tree`"),
        );
    }
    let drop = case.rule_drop()?;
    case.endpoint?;
    if !drop.opening {
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
