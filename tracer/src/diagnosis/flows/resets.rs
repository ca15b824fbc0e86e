//! Resets that conntrack caused: after an invalid packet (C18), by a mid-stream pickup (C19); packets that are dropped
//! as invalid (C18b); and for every reset its sender and arrival.

use std::{net::SocketAddr, time::Duration};

use super::{
    Case, Finding,
    case::BEFORE_SILENCE,
    stale_endpoints::{UNSEEN_CLOSE, termination_grace},
    text::{length, times},
    withdrawal::began_to_end,
};
use crate::{
    class::{Class, Confidence, Severity, action},
    flow::{
        Answer, Decision, End, Ended, Flow, Invalid, MAX_REPETITION, Occurrences, Outcome, ResetBy,
        SocketEnd, StackReset,
    },
    sighting::{Hook, TcpState},
    time::Timestamp,
    verdict::EvidenceType,
};

/// The client's stack answered a packet that came from the endpoint's own address.
fn untranslated_answer<'a>(case: &Case<'a>) -> Option<&'a StackReset> {
    let resets = &case.trouble()?.stack_resets;
    resets.iter().find(|reset| reset.by == End::Client && reset.untranslated && !reset.to_syn)
}

/// The client's stack dropped an answer that came from the endpoint's own address, while the entry lived that would have
/// translated it.
fn untranslated_datagram(case: &Case<'_>) -> Option<Occurrences> {
    let Answer::NotSeen { until } = case.flow.answer() else { return None };
    let drops = &case.trouble()?.drops;
    let dropped = drops.iter().find(|drop| drop.untranslated && drop.is("NO_SOCKET"))?.occurrences;
    (dropped.first <= until).then_some(dropped)
}

/// The entry that a segment of the endpoint created, because that of its connection was gone.
fn entry_of_answer<'a>(case: &Case<'a>, reset: &StackReset) -> Option<&'a Decision> {
    let known = case.decision?;
    case.flow.decisions.iter().find(|entry| {
        entry.midstream == Some(true)
            && entry.netns == known.netns
            && entry.ct.orig == known.ct.reply
            && entry.time <= reset.occurrences.first
    })
}

/// Whether the client's socket was open at that moment, as far as it was observed.
fn client_lived(flow: &Flow, at: Timestamp) -> Option<bool> {
    let client = &flow.client;
    if !client.is_seen() {
        return None;
    }
    Some(
        client.established.is_none_or(|since| since <= at)
            && client.closed.is_none_or(|closed| closed.time >= at),
    )
}

/// Whether the client may have been connected. A trace that began later knows the opposite from its repeated SYN, or from a socket
/// that closed before an answer.
fn may_have_connected(flow: &Flow) -> bool {
    let client = &flow.client;
    let gave_up = || client.closed.is_some_and(|closed| closed.from == TcpState::SynSent);
    let is_opening = || client.syn_retransmits().is_seen() || gave_up();
    client.was_connected() || !client.is_seen() || flow.partial && !is_opening()
}

/// C18 (kubernetes/kubernetes#74839).
/// Mechanism: conntrack classifies an answer as invalid (out of window), so it is not translated back, and without a
/// rule that drops it, it reaches the client from the endpoint's own address. The client's stack has no such connection
/// and resets the endpoint's; the client's own connection, to the VIP, hangs until the endpoint answers it with a RST
/// too.
/// For: the fingerprint, a RST without a socket to the endpoint's address from the port of a socket that is connected
/// to the VIP; the invalid packet.
/// Against: an answer on another path than the request is not translated either (C31).
pub(super) fn after_invalid(case: &Case<'_>) -> Option<Finding> {
    let reset = untranslated_answer(case)?;
    if entry_of_answer(case, reset).is_some() {
        return None;
    }
    let lived = client_lived(case.flow, reset.occurrences.first);
    if lived == Some(false) || !may_have_connected(case.flow) {
        return None;
    }
    let invalid = invalid_answer(case.flow);
    if lived.is_none() && invalid.is_none() {
        return None;
    }
    let endpoint = case.endpoint_name();
    let mut finding = case
        .finding(
            Class::C18,
            format_args!(
                "an answer reached the client from {endpoint}, not from {}, and the client's host reset it: NAT did not \
                 translate it back",
                case.flow.orig.dst
            ),
        )
        .confidence(match (invalid.is_some(), lived) {
            (true, Some(true)) => Confidence::High,
            _ => Confidence::Medium,
        });
    if invalid.is_none() {
        finding = finding.unobserved(if case.has_hook(Hook::InvalidLog) {
            "that conntrack called the answer invalid"
        } else {
            "whether conntrack called the answer invalid: this trace has no hook there"
        });
        finding = finding.against(
            EvidenceType::Kernel,
            None,
            "an answer that bypasses this node's conntrack on its way back looks the same (C31)",
        );
    }
    Some(finding)
}

/// C31, the direct answer.
/// Mechanism: client and endpoint share a bridge whose frames do not pass the rules (bridge-nf-call-iptables=0), or the
/// answer takes another path: it arrives from the endpoint's own address, and the client, which waits for the VIP,
/// resets it before there is a connection.
/// For: that RST; of a datagram, the drop of the answer, because no socket of the client waits for the endpoint itself.
/// Against: an answer that came after its entry had ended is not translated either: a later state of the entry shows that it
/// lived, and saw no answer.
pub(super) fn answered_directly(case: &Case<'_>) -> Option<Finding> {
    let refused = if case.flow.is_tcp() {
        let reset = untranslated_answer(case)?;
        reset.occurrences
    } else {
        untranslated_datagram(case)?
    };
    if case.flow.is_tcp() && may_have_connected(case.flow) {
        return None;
    }
    Some(
        case.finding(
            Class::C31,
            format_args!(
                "{} answered the client directly and not through {}, and the client's host refused the answer {}",
                case.endpoint_name(),
                case.flow.orig.dst,
                times(refused.count)
            ),
        )
        .confidence(Confidence::High)
        .severity(Severity::High)
        .unobserved("the way of the answer: it passed no NAT")
        .now(&[action::SHOW_BYPASS])
        // An invalid answer of an established connection looks the same without its events (C18).
        .if_nothing_was_lost(),
    )
}

/// A connection whose entry was created again while it was open.
struct Recreated {
    at: Timestamp,
    /// The destination of its packets since then.
    chosen: SocketAddr,
    /// The destination before, and the end of the earlier entry.
    before: Option<(SocketAddr, Option<Ended>)>,
}

fn recreated(case: &Case<'_>) -> Option<Recreated> {
    // If the client's socket is on this node, the flow is known to be the same.
    if let Some(picked_up) = case.trouble().and_then(|trouble| trouble.picked_up.as_ref()) {
        let before = case.endpoint.map(|endpoint| (endpoint, case.flow.deleted));
        let chosen = picked_up.ct.endpoint().filter(|chosen| case.endpoint != Some(*chosen))?;
        return Some(Recreated { at: picked_up.time, chosen, before });
    }
    let decision = case.decision.filter(|decision| decision.midstream == Some(true))?;
    let before = case.flow.previous.as_deref().map(|previous| (previous.endpoint, previous.ended));
    Some(Recreated { at: case.decided, chosen: decision.endpoint()?, before })
}

/// N16: a segment after its connection.
/// Mechanism: a late segment or retransmit of a connection that has ended finds no entry and creates one
/// (`nf_conntrack_tcp_loose`). The endpoint that NAT then chooses resets it, and no socket receives the RST.
/// For: an entry for a segment without SYN, the endpoint's RST, and a client on this node without an open socket.
/// Against: the client's socket was not observed because the hook on received RSTs is missing. Without the RST the
/// connection may be older than the trace and open: an idle socket has no events.
pub(super) fn stray(case: &Case<'_>) -> Option<Finding> {
    let decision = case.decision.filter(|decision| decision.midstream == Some(true))?;
    let watched = [Hook::TcpReceiveReset, Hook::SockEstablished, Hook::SockClosed]
        .iter()
        .all(|hook| case.has_hook(*hook));
    if case.flow.client.is_seen() || case.flow.server.is_seen() || !watched || case.flow.lost > 0 {
        return None;
    }
    let trouble = case.trouble()?;
    let reset = trouble.stack_resets.iter().any(|reset| reset.by == End::Endpoint)
        || trouble.transit_resets.iter().any(|reset| reset.by == End::Endpoint);
    if !reset {
        return None;
    }
    (case.is_client_here() == Some(true)).then(|| {
        case.finding(
            Class::N16,
            format_args!(
                "a late segment of an ended connection to {} passed: no socket of the client had it",
                case.name()
            ),
        )
        .confidence(Confidence::Medium)
        .kernel(
            Some(decision.time),
            "the entry was created for a segment without SYN, and no socket event followed",
        )
        .related(&[Class::C19])
    })
}

/// N5, or C19 if the connection still had data to send.
/// Mechanism: the entry of an idle connection times out or is deleted. A FIN finds no entry and cannot create one
/// (`tcp_conntracks` of `nf_conntrack_proto_tcp.c`: FIN in state NONE is invalid), so it is not translated: the close is
/// retransmitted until the socket gives up, after the application has finished. Data creates an entry only with
/// `nf_conntrack_tcp_loose=1`.
/// For: the end of the entry, and retransmits only after it.
/// Against: nothing here; an endpoint that ended at the same time would look the same.
pub(super) fn entry_gone(case: &Case<'_>) -> Option<Finding> {
    let ended = case.flow.deleted?;
    if case.outcome != Outcome::Silent || case.trouble().is_some_and(|trouble| trouble.picked_up.is_some()) {
        return None;
    }
    // The entries of an endpoint that left are cleaned up (N9, C7).
    if case.endpoint.is_some_and(|endpoint| removed(case, endpoint, ended.time).is_some()) {
        return None;
    }
    let ends = [("client", &case.flow.client), ("endpoint", &case.flow.server)];
    let mut retransmitting = ends.into_iter().filter(|(_, end)| end.retransmits().is_seen());
    let (who, end) = retransmitting.next()?;
    let first = end.retransmits().first;
    if retransmitting.next().is_some() || first <= ended.time {
        return None;
    }
    let ago = length(first.since(ended.time));
    let how = match ended.deleted_by {
        Some(port) => format!("was deleted through netlink (port {port})"),
        None => "timed out or was ended by the kernel".to_owned(),
    };
    let evidence = format!("its conntrack entry {how} {ago} before the first retransmit");
    if end.retransmitted_only_its_end() {
        return Some(
            case.finding(
                Class::N5,
                format_args!(
                    "an idle connection to {} outlived its conntrack entry: only its close was lost",
                    case.name()
                ),
            )
            .severity(Severity::Low)
            .confidence(Confidence::Medium)
            .kernel(Some(ended.time), evidence)
            .unobserved(format_args!("whether data waited before the {who}'s close"))
            .related(&[Class::C19]),
        );
    }
    Some(
        case.finding(
            Class::C19,
            format_args!(
                "the connection to {} continued after its conntrack entry had ended: nothing translates it",
                case.name()
            ),
        )
        .confidence(Confidence::Medium)
        .kernel(Some(ended.time), evidence)
        .unobserved("whether the endpoint still had the connection: a trace on its node shows it"),
    )
}

/// C19.
/// Mechanism: the entry of an open connection disappeared (deleted, flushed, timed out, or the path moved to this
/// node). Its next packet creates a new entry mid-stream (`nf_conntrack_tcp_loose`), NAT chooses again, and an endpoint
/// without this connection resets it.
/// For: an entry that was confirmed for a segment without SYN; the RST of a stack without a socket.
/// Against: NAT chose the same endpoint again: then the endpoint knew the connection.
pub(super) fn midstream(case: &Case<'_>) -> Option<Finding> {
    if let Some(entry) = untranslated_answer(case).and_then(|reset| entry_of_answer(case, reset)) {
        let what = format_args!(
            "an answer of {} met no conntrack entry of its connection to {}: it was not translated back, and the client's \
             stack reset it",
            case.endpoint_name(),
            case.name()
        );
        let why = "the entry was created for a segment of the endpoint";
        return Some(
            case.finding(Class::C19, what)
                .confidence(Confidence::High)
                .kernel(Some(entry.time), why)
                .if_nothing_was_lost(),
        );
    }
    let found = recreated(case)?;
    let sender = case.trouble().and_then(|trouble| {
        trouble.stack_resets.iter().find(|reset| reset.by == End::Endpoint && !reset.to_syn)
    });
    let reset = sender.is_some()
        || matches!(case.outcome, Outcome::Reset(ResetBy::Endpoint | ResetBy::Unknown) | Outcome::Refused);
    if !reset {
        return None;
    }
    if let Some((endpoint, _)) = found.before
        && let Some(removed) = removed(case, endpoint, found.at)
    {
        // The connection with its whole life is judged by another rule.
        return (case.endpoint != Some(endpoint)).then(|| left_before(case, endpoint, found.at, removed));
    }
    let mut finding = case
        .finding(
            Class::C19,
            format_args!(
                "the connection to {} continued without its conntrack entry: NAT chose {} mid-stream, \
             which does not know it",
                case.name(),
                found.chosen
            ),
        )
        .confidence(if sender.is_some() && case.flow.client.is_seen() {
            Confidence::High
        } else {
            Confidence::Medium
        })
        // Without the event of its end, a connection that was over looks the same (N16).
        .if_nothing_was_lost();
    if !case.flow.client.is_seen() {
        finding = finding.unobserved(
            "whether the client still had the connection: a late segment of an ended one looks the same (N16), and a \
             trace on the client's node decides",
        );
    }
    match found.before {
        Some((endpoint, ended)) => {
            let ended = ended.map_or("its end was not observed".to_owned(), |ended| {
                let how = match ended.deleted_by {
                    Some(port) => format!("it was deleted through netlink (port {port})"),
                    None => "it timed out or the kernel killed it".to_owned(),
                };
                format!("{how} {} before", length(found.at.since(ended.time)))
            });
            let what = format!("the previous entry led to {endpoint}; {ended}");
            if endpoint == found.chosen {
                finding = finding.against(EvidenceType::Kernel, Some(found.at), what);
            } else {
                finding = finding.kernel(Some(found.at), what);
            }
        }
        None => {
            finding =
                finding.unobserved("the end of the previous entry: it was gone before this trace knew it");
        }
    }
    Some(finding)
}

/// N9, or C7 after the termination grace, in the place of C19.
/// Mechanism: the earlier endpoint left the slices, and a CNI (Calico's Felix) or kube-proxy cleaned its entries up. A client
/// that ignored its close sends on, and its segment begins a new entry.
/// For: the endpoint's removal before the new entry.
fn left_before(case: &Case<'_>, endpoint: SocketAddr, at: Timestamp, removed: Timestamp) -> Finding {
    let membership = case.ctx.cluster.membership(&case.vip, endpoint, at);
    let after = at.since(removed);
    let grace = termination_grace(case, membership.state(), endpoint.ip());
    let began = began_to_end(case, endpoint, &membership, at).unwrap_or(removed);
    let is_draining = at.since(began) <= grace.saturating_add(case.ctx.grace);
    let class = if is_draining { Class::N9 } else { Class::C7 };
    let what = format_args!(
        "the connection continued {} after its endpoint {endpoint} left {}, and its conntrack entry was gone",
        length(after),
        case.name()
    );
    let finding = case
        .finding(class, what)
        .severity(if is_draining { Severity::Low } else { class.entry().severity })
        .confidence(Confidence::Medium)
        .api(Some(removed), format_args!("{endpoint} left the usable endpoints of {}", case.name()))
        .related(&[Class::C19]);
    if is_draining || case.flow.client.is_seen() {
        return finding;
    }
    finding.unobserved(UNSEEN_CLOSE).related(&[Class::N9])
}

/// When this endpoint left the slices or began to terminate, if that is known and was before `at`.
pub(super) fn removed(case: &Case<'_>, endpoint: SocketAddr, at: Timestamp) -> Option<Timestamp> {
    let since = case.ctx.cluster.membership(&case.vip, endpoint, at).ending_since();
    since.filter(|since| *since > Timestamp::MIN && *since <= at)
}

/// C18b (kubernetes/kubernetes#94861).
/// Mechanism: conntrack classifies legitimate packets as invalid, because it observed only one direction (asymmetric
/// routes, anycast, several uplinks) or lost track of a window, and a rule drops invalid packets (KUBE-FORWARD).
/// For: invalid packets, and rules' drops of packets without an entry, in a connection that then fell silent, or that an end
/// reset after it had repeated what was dropped.
/// Against: drops of invalid packets alone break nothing: they prevent C18.
pub(super) fn dropped_as_invalid(case: &Case<'_>) -> Option<Finding> {
    let trouble = case.trouble()?;
    let invalid = trouble.invalid.iter().min_by_key(|invalid| invalid.occurrences.first)?;
    let dropped = trouble.drops.iter().find(|drop| {
        drop.is("NETFILTER_DROP") && !drop.opening && drop.occurrences.last >= invalid.occurrences.first
    })?;
    let (dropped_last, broke) = (dropped.occurrences.last, case.flow.broke());
    // A RST by itself breaks nothing that a drop long before has not: an end repeats what is dropped, and its next repetition
    // was not due yet. One that passed was answered.
    let repeated = |end: &SocketEnd| {
        let repeats = end.retransmits();
        let waited = repeats.last.since(dropped_last);
        let next =
            if waited > Duration::ZERO { waited * 2 } else { BEFORE_SILENCE.max(end.next_repetition()) };
        repeats.is_seen()
            && repeats.last >= invalid.occurrences.first
            && waited <= MAX_REPETITION
            && broke.is_none_or(|broke| broke <= repeats.last.saturating_add(next))
    };
    let is_broken = match case.outcome {
        // Packets that were dropped long before it fell silent passed when they were repeated.
        Outcome::Silent => case.may_have_broken(dropped_last),
        Outcome::Stalled => true,
        Outcome::Reset(_) => [&case.flow.client, &case.flow.server].into_iter().any(repeated),
        _ => false,
    };
    if !is_broken {
        return None;
    }
    let why = invalid.why.as_deref().map(|why| format!(" ({why})")).unwrap_or_default();
    Some(
        case.finding(
            Class::C18b,
            format_args!(
                "packets of the connection to {} were dropped {} as invalid{why}, and it broke",
                case.name(),
                times(dropped.occurrences.count)
            ),
        )
        .confidence(Confidence::Medium)
        .unobserved("the rule that dropped them: KUBE-FORWARD drops INVALID packets in iptables mode"),
    )
}

fn invalid_answer(flow: &Flow) -> Option<&Invalid> {
    flow.trouble.as_ref()?.invalid.iter().find(|invalid| invalid.reply)
}

/// The gap in the record if no hook observed that the RST arrived at its receiver.
pub(super) fn arrival(case: &Case<'_>) -> Option<String> {
    let flow = case.flow;
    let (receiver, end) = match case.outcome {
        Outcome::Reset(ResetBy::Client) => ("endpoint", &flow.server),
        Outcome::Reset(ResetBy::Endpoint) | Outcome::Refused if flow.is_tcp() => ("client", &flow.client),
        _ => return None,
    };
    if end.reset_received().is_some() || !case.has_hook(Hook::TcpReceiveReset) {
        return None;
    }
    Some(if end.is_seen() {
        format!("the RST's arrival at the {receiver}'s socket: none was observed before it closed")
    } else {
        format!("whether the RST reached the {receiver}: its socket was not observed on this node")
    })
}
