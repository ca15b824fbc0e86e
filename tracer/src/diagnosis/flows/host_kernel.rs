//! The node's own kernel drops the packet: reverse path filter or no forwarding (C32), larger than the path's MTU (C33).

use super::{
    Case, Finding,
    case::BEFORE_SILENCE,
    network_path::{Departure, departure},
};
use crate::{
    class::{Class, Confidence, Severity, action},
    flow::{Dropped, IcmpMeaning, Occurrences, Outcome, Stage, Stuck},
    verdict::EvidenceType,
};

/// C32.
/// Mechanism: with a strict `rp_filter` the kernel drops a packet that arrives by another interface than the one by which
/// its source would be reached (`fib_validate_source`), on nodes with several interfaces.
/// For: the drop reason `IP_RPFILTER` for a packet of this flow, which nothing else has, and a flow that failed.
pub(super) fn reverse_path(case: &Case<'_>) -> Option<Finding> {
    let drop = failed_drop(case, |drop| drop.is("IP_RPFILTER"))?;
    let which = if drop.stage == Stage::Reply { "answers" } else { "packets" };
    Some(
        case.finding(
            Class::C32,
            format_args!("the reverse path filter drops {which} of connections to {}", case.name()),
        )
        .confidence(Confidence::High)
        .unobserved("the interface, and net.ipv4.conf.*.rp_filter: `viptrace check` reads them"),
    )
}

/// C32, forwarding off.
/// Mechanism: a packet to another host reaches a node that does not forward: its route is an error, and `ip_error` drops
/// it with the reason `IP_INADDRERRORS` (net/ipv4/route.c, since 5.18), without an ICMP error.
/// For: that reason after NAT, for a packet to an endpoint.
pub(super) fn not_forwarded(case: &Case<'_>) -> Option<Finding> {
    case.endpoint?;
    let drop = failed_drop(case, |drop| drop.is("IP_INADDRERRORS") && drop.stage != Stage::Before)?;
    let family = if case.flow.orig.dst.is_ipv4() { "ipv4.ip_forward" } else { "ipv6.conf.all.forwarding" };
    Some(
        case.finding(
            Class::C32,
            format_args!("this node does not forward packets of connections to {}", case.name()),
        )
        .confidence(if drop.opening { Confidence::High } else { Confidence::Medium })
        .first(action::FORWARD)
        .fill("SETTING", format_args!("net.{family}"))
        .unobserved(format_args!(
            "the setting: `sysctl net.{family}`, and the incoming interface's forwarding"
        )),
    )
}

/// C33.
/// Mechanism: a packet is larger than a link's MTU and must not be fragmented. The kernel drops it (`PKT_TOO_BIG`) and
/// reports it to the sender by ICMP; if that is filtered or ignored, small packets pass and full ones never do.
/// For: that drop, or the ICMP error, in a flow that fell silent; datagrams that failed by it.
/// Against: a sender that heeds the error goes on with smaller packets, and nothing breaks.
pub(super) fn too_big(case: &Case<'_>) -> Option<Finding> {
    let stalled = case.outcome == Outcome::Silent || !case.flow.is_tcp();
    if !stalled {
        return None;
    }
    // A sender that heeded an earlier one went on.
    let since = case.flow.broke().map(|broke| broke.saturating_sub(BEFORE_SILENCE));
    let is_of_silence = |seen: &Occurrences| since.is_none_or(|since| seen.last >= since);
    let dropped = failed_drop(case, |drop| drop.is("PKT_TOO_BIG") && is_of_silence(&drop.occurrences));
    let told = case
        .trouble()?
        .icmp_errors
        .iter()
        .find(|error| error.meaning == IcmpMeaning::TooBig && is_of_silence(&error.occurrences));
    let told = told.filter(|_| case.failed());
    if dropped.is_none() && told.is_none() {
        return None;
    }
    let mut finding = case
        .finding(
            Class::C33,
            format_args!(
                "packets of the connection to {} are larger than a link on the path carries",
                case.name()
            ),
        )
        .confidence(if dropped.is_some() { Confidence::High } else { Confidence::Medium })
        .unobserved("the path's MTU");
    if dropped.is_none() {
        finding = finding.against(
            EvidenceType::Kernel,
            told.map(|error| error.occurrences.last),
            "the ICMP error passed this node: a sender that received it would send smaller packets",
        );
    }
    Some(finding)
}

/// Data of at least this length fills a segment on a path that is narrower than it seems: the smallest MTU of a tunnel over
/// Ethernet is above 1,280 (RFC 8200).
const LARGE_BYTES: u32 = 1_000;
/// Repetitions of one segment, the first of which may be an ordinary loss.
const MIN_REPEATS: u32 = 3;

/// C33 without an ICMP error.
/// Mechanism: a link drops full-size packets and reports nothing, or the report is filtered. The handshake and small
/// segments pass; a large one is repeated and never acknowledged.
/// For: a large segment that an end repeats, longer than everything that was acknowledged before, while data was
/// exchanged in the connection. Against: an endpoint or path that failed at that moment looks the same.
pub(super) fn only_large_ones(case: &Case<'_>) -> Option<Finding> {
    case.member()?;
    if case.outcome != Outcome::Silent {
        return None;
    }
    let ends = [("client", &case.flow.client), ("endpoint", &case.flow.server)];
    let (who, stuck) = ends.into_iter().find_map(|(who, end)| {
        let stuck = end.stuck()?;
        (stuck.repeats >= MIN_REPEATS && is_first_large(stuck, who == "client")).then_some((who, stuck))
    })?;
    if stuck.acked <= 1 && stuck.received == 0 {
        return None;
    }
    let gone = departure(case);
    if gone == Some(Departure::PodEnded) {
        return None;
    }
    let finding = case
        .finding(
            Class::C33,
            format_args!(
                "the {who}'s segments of {} bytes in the connection to {} are never acknowledged, although other data was \
                 exchanged",
                stuck.bytes,
                case.name()
            ),
        )
        .confidence(Confidence::Medium)
        .unobserved(
            "whether only large packets are lost: an endpoint or path that failed at that moment looks the same, and \
             `ping -M do -s 1422` from the client decides",
        )
        .related(&[Class::C29]);
    if gone != Some(Departure::Outside) {
        return Some(finding);
    }
    let what = "a client outside the cluster that left before the answer looks the same: several such flows of one client decide";
    Some(finding.confidence(Confidence::Low).severity(Severity::Low).against(
        EvidenceType::Kernel,
        None,
        what,
    ))
}

/// Whether it is large, and no segment of its length can have been acknowledged before. The SYN counts as one acknowledged
/// byte of the client (`tcp_snd_una_update`).
pub(super) fn is_first_large(stuck: &Stuck, is_client: bool) -> bool {
    stuck.bytes >= LARGE_BYTES && stuck.acked.saturating_sub(u64::from(is_client)) < u64::from(stuck.bytes)
}

/// The drop of a flow that failed.
fn failed_drop<'a>(case: &Case<'a>, is_it: impl Fn(&Dropped) -> bool) -> Option<&'a Dropped> {
    if !case.failed() {
        return None;
    }
    // An answered connection has recovered from the loss of its SYN, and from drops long before it ended.
    let explains = |drop: &Dropped| {
        let is_past = drop.opening && case.flow.is_tcp() && case.was_answered();
        !is_past && case.may_have_broken(drop.occurrences.last)
    };
    case.trouble()?.drops.iter().find(|drop| is_it(drop) && explains(drop))
}
