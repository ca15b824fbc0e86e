//! The conntrack table: full (C16), or an entry that could not be inserted (C17).

use super::{Case, Finding};
use crate::{
    class::{Class, Confidence},
    flow::{Answer, Outcome},
    node::snapshot::ConntrackUse,
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
    let mut finding = Finding::new(
        Class::C16,
        "the conntrack table is full: new connections are dropped, established ones continue",
    );
    if let Some(used) = case.ctx.node.conntrack_use {
        let ConntrackUse { count, max } = used.value;
        finding = finding.fill("MAX", max.saturating_mul(2).to_string());
        let use_of_table = format!("{count} of {max} conntrack entries in use");
        // Counted when the node was read, after the drop.
        finding = if max > 0 && count.saturating_mul(10) < max.saturating_mul(9) {
            finding.against(
                EvidenceType::Node,
                case.ctx.node.read_at(),
                format!("{use_of_table}, when it was read"),
            )
        } else {
            finding.node(case.ctx.node.read_at(), use_of_table)
        };
    }
    Some(finding)
}

/// C17.
/// Mechanism: two first packets race for one tuple (UDP from one socket, or two masqueraded sources for one port); one
/// entry cannot be inserted and its packet is dropped.
/// For: `nf_ct_resolve_clash`, then a drop of the unconfirmed packet.
/// Against: a retransmit that succeeded: the client had only a delay. A clash without a drop is resolved (N10).
pub(super) fn insertion_failed(case: &Case<'_>) -> Option<Finding> {
    let trouble = case.trouble()?;
    let clash = trouble.clashes;
    let lost = trouble.drops.iter().any(|drop| drop.unconfirmed && drop.occurrences.last >= clash.first);
    // The other of two datagrams of one socket may have been answered, but this one was lost.
    let datagrams = !case.flow.is_tcp();
    if !clash.is_seen() || !lost || !(datagrams || case.failed()) {
        return None;
    }
    let finding = Finding::new(
        if datagrams { Class::C17a } else { Class::C17 },
        "the conntrack entry could not be inserted: another packet took its tuple first, and \
         this one was dropped",
    )
    .confidence(Confidence::Medium)
    .unobserved("the insert_failed and clash_resolve counters over this moment: conntrack -S");
    Some(if datagrams { finding.related(&[Class::C17]) } else { finding })
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
    let mut finding = Finding::new(
        Class::N10,
        format!("two datagrams to {} raced for one conntrack entry, and the kernel resolved it", case.name()),
    )
    .confidence(if answered { Confidence::High } else { Confidence::Medium })
    .related(&[Class::C17a]);
    if !answered {
        finding = finding.unobserved("whether both were answered");
    }
    Some(finding)
}
