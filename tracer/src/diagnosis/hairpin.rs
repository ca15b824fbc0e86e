//! C31: a Pod that reaches itself through its Service, and answers that go past the node's NAT.

use super::{Case, Finding, text::word};
use crate::{
    flow::{End, Outcome},
    sighting::Status,
    verdict::{Confidence, Domain, Safety, Severity},
};

/// C31 (a).
/// Mechanism: NAT chose the client itself. Its packets come back only where the source is masqueraded (else the Pod's
/// stack meets its own address as a stranger's and drops it as a martian), and where the bridge sends a packet out of
/// the port that it came from (hairpin mode).
/// For: the endpoint is the client, nothing answered. Which of the two is missing, the reply tuple tells, unless the
/// packet ended before its source was decided: a bridge without hairpin mode drops it there.
/// Against: nothing seen here tells a Pod that does not listen to itself from one that is not reached.
pub(super) fn itself(case: &Case<'_>) -> Finding {
    let entry = case.decision.map(|decision| decision.ct);
    let masqueraded = entry.is_some_and(|ct| ct.masqueraded());
    let source_decided = entry.is_some_and(|ct| ct.status.has(Status::SRC_NAT_DONE));
    let (lacks, look, unseen) = if masqueraded {
        (
            "the source is masqueraded, so the bridge does not send them back: hairpin mode is off",
            "bridge -d link show | grep hairpin",
            "the bridge port's hairpin mode",
        )
    } else if source_decided {
        (
            "their source is not masqueraded, so the Pod drops them as its own",
            "iptables-save -t nat | grep KUBE-MARK-MASQ, or nft list table ip kube-proxy | grep -A3 endpoint-",
            "the rule that should mark it for masquerading",
        )
    } else {
        (
            "they end before their source is decided, as on a bridge port without hairpin mode",
            "bridge -d link show | grep hairpin",
            "the bridge port's hairpin mode, and whether a rule would masquerade the source",
        )
    };
    Finding::new(
        "C31",
        Domain::Hairpin,
        format!(
            "{} asked for {} and NAT chose itself: its packets do not come back; {lacks}",
            case.endpoint_name(),
            case.name()
        ),
    )
    .confidence(Confidence::Medium)
    .severity(Severity::Medium)
    .unseen(unseen)
    .action(
        look,
        "set the kubelet's hairpinMode to hairpin-veth or promiscuous-bridge, as the CNI asks",
        Safety::ReadOnly,
    )
    .see(&["C31"])
}

/// C31 (b).
/// Mechanism: client and endpoint are on one bridge and the bridge does not hand its packets to iptables
/// (bridge-nf-call-iptables is 0): the answer goes straight to the client from the endpoint's own address, which the
/// client never asked.
/// For: while the connection was being opened, the client's own stack answered the endpoint's packet with a RST, as it
/// has no socket for that address. An endpoint that answers has been reached: only the way back is wrong.
/// Against: the same fingerprint on an open connection is an answer that conntrack called invalid (C18).
pub(super) fn bypassed(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let reset = case.trouble()?.stack_resets.iter().find(|reset| reset.by == End::Client && !reset.to_syn)?;
    let opening = case.flow.client.established.is_none() && !case.flow.partial;
    if !opening || matches!(case.outcome, Outcome::Closed | Outcome::Established) {
        return None;
    }
    let same_node = case.ctx.cluster.pod_by_ip(endpoint.ip(), case.decided).and_then(|pod| pod.node);
    let local = match (same_node.as_deref(), case.ctx.node_name) {
        (Some(node), Some(here)) => Some(node == here),
        _ => None,
    };
    if local == Some(false) {
        return None;
    }
    let mut finding = Finding::new(
        "C31",
        Domain::Hairpin,
        format!(
            "{} answered {} directly, past the node's NAT: the client knows no connection to it and resets",
            case.endpoint_name(),
            case.flow.orig.src.ip()
        ),
    )
    .confidence(if local == Some(true) { Confidence::High } else { Confidence::Medium })
    .severity(Severity::High)
    .node(
        Some(reset.mark.first),
        format!(
            "the client's stack reset what came from {endpoint}, where it had asked for {}",
            case.flow.orig.dst
        ),
    )
    .action(
        if endpoint.is_ipv4() {
            "sysctl net.bridge.bridge-nf-call-iptables; modprobe br_netfilter and set it to 1"
        } else {
            "sysctl net.bridge.bridge-nf-call-ip6tables; modprobe br_netfilter and set it to 1"
        },
        "have the node's setup load br_netfilter and set both sysctls at boot, as the CNI plugin asks",
        Safety::Disruptive,
    )
    .see(&["C31"]);
    if local.is_none() {
        finding = finding.unseen("whether the endpoint is on this node");
    }
    if let Some(pod) = case.ctx.cluster.pod_by_ip(endpoint.ip(), case.decided) {
        finding = finding.api(None, format!("{} is Pod {}", endpoint.ip(), word(&pod.key())));
    }
    Some(finding)
}
