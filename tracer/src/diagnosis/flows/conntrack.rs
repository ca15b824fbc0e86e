//! The conntrack table: full (C16), an entry that could not be inserted (C17), or one that a changed route ended (C34).

use std::time::Duration;

use super::{Case, Finding};
use crate::{
    class::{Class, Confidence},
    flow::{Answer, Dropped, Outcome, Stage},
    node::snapshot::ConntrackUse,
    rules::walk::Devices as _,
    sighting::Hook,
    verdict::EvidenceType,
};

/// C16.
/// Mechanism: every entry is in use, `early_drop` finds none to evict, and the first packet of a new connection is
/// dropped. Established connections continue.
/// For: `early_drop` failed just before on the CPU that dropped this packet.
/// Against: the table is below its limit when the node is read (it may have drained since; a failed memory allocation
/// looks the same).
pub(super) fn table_full(case: &Case<'_>) -> Option<Finding> {
    let full = case.trouble()?.table_full;
    if !full.is_seen() || !(case.failed() || case.outcome == Outcome::Pending) {
        return None;
    }
    // A connection that was answered has recovered from the loss of its SYN: a RST later has another cause.
    if matches!(case.outcome, Outcome::Reset(_)) || !case.may_have_broken(full.last) {
        return None;
    }
    let netns = case.trouble()?.full_netns;
    // Each namespace counts its own entries; the node's are not those of a Pod.
    if case.is_elsewhere(netns) {
        return Some(
            case.finding(
                Class::C16,
                format_args!(
                    "the conntrack table of netns {} is full, which is not the node's: its new connections are dropped",
                    netns.0
                ),
            )
            .unobserved("the entries of that namespace: `viptrace check` counts them by namespace"),
        );
    }
    let mut finding = case.finding(
        Class::C16,
        "the conntrack table is full: new connections are dropped, established ones continue",
    );
    if let Some(used) = case.ctx.node.conntrack_use {
        let ConntrackUse { count, max } = used.value;
        finding = finding.fill("MAX", max.max(count).saturating_mul(2).to_string());
        let use_of_table = format!("{count} of {max} conntrack entries in use");
        // Counted when the node was read, after the drop.
        finding = if max > 0 && count.saturating_mul(10) < max.saturating_mul(9) {
            finding.against(
                EvidenceType::Node,
                case.ctx.node.read_at(),
                format_args!("{use_of_table}, when it was read"),
            )
        } else {
            finding.node(case.ctx.node.read_at(), use_of_table)
        };
    }
    Some(finding)
}

/// C34.
/// Mechanism: a masquerading entry belongs to the interface by which its first packet left. When a route change sends a
/// packet by another one, `nf_nat_inet_fn` ends the entry and drops the packet (`nf_nat_oif_changed`,
/// `net/netfilter/nf_nat_core.c`). The next packet is translated again, with another port or endpoint.
/// For: a masqueraded connection whose entry was ended (`nf_ct_kill_acct`) in the moment of a rule's drop. The function's
/// other caller, a RST to an unreplied SYN, drops nothing.
/// Against: nothing here; the interfaces themselves are not observed.
pub(super) fn rerouted(case: &Case<'_>) -> Option<Finding> {
    let trouble = case.trouble()?;
    let killed = trouble.killed?;
    let masqueraded = case.decision.is_some_and(|decision| decision.ct.masqueraded());
    let at_once = |drop: &&Dropped| {
        let (first, last) = (drop.occurrences.first, drop.occurrences.last);
        drop.is("NETFILTER_DROP")
            && drop.stage != Stage::Reply
            && first <= killed.time.saturating_add(MOMENT)
            && last >= killed.time
    };
    let dropped = trouble.drops.iter().find(at_once)?;
    let broke = case.failed() || trouble.picked_up.is_some();
    if !masqueraded || !broke {
        return None;
    }
    let finding = case
        .finding(
            Class::C34,
            format_args!(
                "the masqueraded connection to {} left by another interface: its conntrack entry was ended",
                case.name()
            ),
        )
        .confidence(Confidence::Medium)
        .kernel(Some(dropped.occurrences.first), "its packet was dropped at once (nf_nat_inet_fn)");
    let node = case.ctx.node;
    let device = case.endpoint.and_then(|endpoint| node.routes.as_ref()?.device_to(endpoint.ip()));
    Some(match device {
        Some(device) => finding
            .node(node.read_at(), format_args!("packets to {} leave by {device} now", case.endpoint_name()))
            .unobserved("the interface before: `ip monitor route` shows the change of the route"),
        None => finding
            .unobserved("the interfaces before and after: `ip monitor route` shows the change of the route"),
    })
}

/// Within this time of the entry's end its packet is dropped.
const MOMENT: Duration = Duration::from_millis(1);

/// Within this time of `__nf_conntrack_confirm`'s entry a packet that it drops is dropped, on a busy CPU too. A drop later
/// on is of another packet.
const AT_ONCE: Duration = Duration::from_millis(10);

/// C17.
/// Mechanism: two first packets race for one tuple (UDP from one socket, or two masqueraded sources for one port); one
/// entry cannot be inserted and its packet is dropped.
/// Without a race (C17c) the hash chain is too long, or the entry is being deleted. Such a drop is no policy's: rules run
/// before the entry is confirmed (`nf_confirm` has the last priority).
/// For: `nf_ct_resolve_clash`, then a drop of the unconfirmed packet; or that drop at once after `__nf_conntrack_confirm`
/// was entered for it, in the same namespace.
/// Against: the drop of an answer, whose own entry is never confirmed where it bypassed NAT (C31).
/// Against: a retransmit that succeeded: the client had only a delay. A clash without a drop is resolved (N10).
pub(super) fn insertion_failed(case: &Case<'_>) -> Option<Finding> {
    let trouble = case.trouble()?;
    let clash = trouble.clashes;
    let in_confirm = |drop: &Dropped| {
        let entered =
            case.decision.filter(|decision| decision.netns == drop.netns).and_then(|it| it.confirmed);
        let first = drop.occurrences.first;
        let at_once = entered.is_some_and(|entered| first >= entered && first.since(entered) < AT_ONCE);
        let by_netfilter = drop.reason.is_none() || drop.is("NETFILTER_DROP");
        by_netfilter && at_once && drop.opening && drop.stage != Stage::Reply
    };
    let lost = trouble.drops.iter().any(|drop| {
        drop.unconfirmed
            && if clash.is_seen() { drop.occurrences.last >= clash.first } else { in_confirm(drop) }
    });
    // The other of two datagrams of one socket may have been answered, but this one was lost.
    let datagrams = !case.flow.is_tcp();
    if !lost || !(datagrams || case.failed() && !case.was_answered()) {
        return None;
    }
    if !clash.is_seen() {
        return Some(chain_too_long(case));
    }
    let finding = case
        .finding(
            if datagrams { Class::C17a } else { Class::C17 },
            "the conntrack entry could not be inserted: another packet took its tuple first, and \
         this one was dropped",
        )
        .confidence(Confidence::Medium)
        .unobserved("the insert_failed and clash_resolve counters over this moment: conntrack -S");
    Some(if datagrams { finding.related(&[Class::C17]) } else { finding })
}

fn chain_too_long(case: &Case<'_>) -> Finding {
    let finding = case.finding(
        Class::C17,
        "the conntrack entry could not be inserted, and its packet was dropped: no other packet took its tuple, so its \
         hash chain is too long or the entry was being deleted",
    )
    .confidence(Confidence::Medium)
    .if_nothing_was_lost()
    .unobserved("which of them: the chaintoolong counter over this moment, conntrack -S");
    if case.has_hook(Hook::ResolveClash) {
        finding
    } else {
        finding.unobserved(
            "whether another packet took its tuple: the event of nf_ct_resolve_clash can be missing",
        )
    }
}

/// N10.
/// Mechanism: the first two datagrams of one socket raced. The kernel gave the loser the winner's entry, or its own
/// entry for the answer only (`nf_ct_resolve_clash`). It forwarded both datagrams.
/// For: the race, and no drop after it.
pub(super) fn clash_resolved(case: &Case<'_>) -> Option<Finding> {
    let trouble = case.trouble()?;
    let calm = matches!(case.outcome, Outcome::Pending | Outcome::Established | Outcome::Closed);
    if !trouble.clashes.is_seen() || case.flow.is_tcp() || !calm {
        return None;
    }
    let answered = case.flow.answer() == Answer::Seen;
    let mut finding = case
        .finding(
            Class::N10,
            format_args!(
                "two datagrams to {} raced for one conntrack entry, and the kernel resolved it",
                case.name()
            ),
        )
        .confidence(if answered { Confidence::High } else { Confidence::Medium })
        .related(&[Class::C17a])
        // Without the event of a drop, a datagram that was lost looks the same.
        .if_nothing_was_lost();
    if !answered {
        finding = finding.unobserved("whether both were answered");
    }
    Some(finding)
}
