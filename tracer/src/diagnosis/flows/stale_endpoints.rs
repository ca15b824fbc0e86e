//! Former endpoints: chosen although they had left (C6), or removed during the flow (N9, C7).

use std::{
    fmt::{self, Display},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{
    Case, Finding,
    backend_refused::differ,
    behind::with_cause,
    datagrams::unanswered_for,
    foreign_rules,
    iptables_sync::lag,
    text::{length, phrase, word},
    withdrawal::{began_to_end, is_still_ending, unserved_since, withdrawn_since},
};
use crate::{
    class::{Class, Confidence, Domain, Severity, action},
    cluster::{EndpointState, Kind, Membership, Via, model::DEFAULT_TERMINATION_GRACE},
    flow::{End, MAX_REPETITION, Outcome, ResetBy},
    net::Protocol,
    sighting::{Status, TcpState},
    time::Timestamp,
    verdict::EvidenceType,
};

/// Metadata older than this, in seconds, may have missed that the endpoint returned.
const OLD_METADATA_SECS: f64 = 30.0;

/// C6; within the grace C5.
/// Mechanism: kube-proxy's rules still name an endpoint that the API removed: it lost its connection to the API server
/// (C2), its sync fails (C4), or it does not run (C1). The address's current owner answers, or no host does.
/// For: NAT chose it for a new connection, after its removal and the grace.
/// Against: an answer (the Pod still runs, or another Pod has its address); a terminating endpoint that serves is not
/// stale while no other is ready (N8), nor is one that answers within its Pod's termination grace; a flow older than the
/// removal is a drain (N9, C7). An endpoint that another program's rule chose was never the Service's (N13).
pub(super) fn stale(case: &Case<'_>) -> Option<Finding> {
    kept_by_ipvs(case).or_else(|| chosen_stale(case))
}

/// C6 in ipvs mode, of datagrams by an old entry.
/// Mechanism: IPVS sends on by an entry only while its real server is one of the virtual server's: without it, the datagram is
/// dropped (`ip_vs_in_hook`, C13). kube-proxy removes a real server of UDP at once.
/// For: a datagram that failed on its way to the endpoint, longer after the removal than the grace.
fn kept_by_ipvs(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint.filter(|_| case.is_ipvs())?;
    let is_failed = matches!(case.outcome, Outcome::Refused | Outcome::Unreachable);
    let seen = case.flow.datagram_failed(endpoint).filter(|_| is_failed)?;
    let removed = unserved_since(case, endpoint, seen)?;
    let sent = seen.saturating_sub(NEIGHBOUR_WAIT);
    let is_late = sent > removed.at_latest().saturating_add(case.ctx.grace);
    // A choice after the removal and the grace is the rules' own.
    let is_old = case.decided <= removed || case.within_grace(removed);
    if removed == Timestamp::MIN || !is_late || !is_old {
        return None;
    }
    let name = case.endpoint_name();
    let finding = case
        .finding(
            Class::C6,
            format_args!(
                "IPVS still sends to {name}: a datagram failed there {} after the endpoint had left {}",
                length(seen.since(removed)),
                case.name()
            ),
        )
        .confidence(Confidence::Medium)
        .api(Some(removed), format_args!("{name} left the usable endpoints of {}", case.name()))
        .fill_rules_of(endpoint, case.ctx.node.mode)
        .unobserved(
            "whether the virtual server still has it: IPVS sends on by an entry only to one that it has",
        );
    Some(with_cause(case, Some(removed), finding))
}

fn chosen_stale(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    if case.is_ready() {
        return None;
    }
    let name = case.endpoint_name();
    let is_broken = case.has_failed_or_waits() && !case.is_own_abort();
    let withdrawn =
        || withdrawn_since(case.ctx, &case.vip, endpoint, case.membership.as_ref()?, case.decided);
    let (what, since, certain) = match case.membership.as_ref()? {
        Membership::Left { at, .. } => {
            if case.decided <= *at {
                return None;
            }
            (
                case.said(format_args!(
                    "{name} left the endpoints of {} {} before",
                    case.name(),
                    length(case.age(*at))
                )),
                Some(*at),
                true,
            )
        }
        Membership::Member { state, since } if !state.conditions.may_serve() => {
            let how_long = how_long(case, *since);
            (
                case.said(format_args!("{name} of {} was not ready {how_long}", case.name())),
                Some(*since),
                true,
            )
        }
        // While no other endpoint is ready, a terminating one is right (N8).
        Membership::Member { state, .. } if state.conditions.terminating => {
            let since = withdrawn()?;
            let how_long = how_long(case, since);
            (
                case.said(format_args!(
                    "{name} of {} was terminating, and others were ready, {how_long}",
                    case.name()
                )),
                Some(since),
                true,
            )
        }
        // The slices are known from their last change on: an endpoint that they do not list may have left then, or
        // before.
        Membership::NeverSeen { since } if *since > Timestamp::MIN => (
            case.said(format_args!(
                "no EndpointSlice of {} has listed {endpoint} for at least {}",
                case.name(),
                length(case.age(*since))
            )),
            Some(*since),
            false,
        ),
        Membership::NeverSeen { .. } => (
            case.said(format_args!(
                "no EndpointSlice of {} lists {endpoint}, as far back as is known",
                case.name()
            )),
            None,
            false,
        ),
        Membership::Member { .. } | Membership::Unknown => return None,
    };
    if may_be_older(case, since) {
        return None;
    }
    let confounder = if certain { None } else { unlisted_but_not_stale(case) };
    if confounder.is_some() && (!case.failed() || case.was_answered()) {
        // The connection was served, and its endpoint may be a valid one.
        return None;
    }
    if !certain && foreign_rules::of_another_program(case).is_some() {
        return None;
    }
    // The last step of its departure, and the one that ended kube-proxy's right to choose it.
    let (step, since) = (since, if certain { withdrawn().or(since) } else { since });
    if since.is_some_and(|since| case.within_grace(since)) {
        // kube-proxy may still be writing the change. A connection that succeeded broke nothing.
        return is_broken
            .then(|| lag(case, format_args!("NAT still chose an endpoint that had just gone: {what}")));
    }
    if !is_broken && since.is_some_and(|since| is_still_ending(case, endpoint, step, since)) {
        return None;
    }
    let answered = case.was_answered();
    let then = fmt::from_fn(|f| match case.instead {
        Some(endpoint) => {
            let end = if case.failed() { "" } else { ", which answered" };
            write!(f, "; a repeated packet went to {endpoint}{end}")
        }
        None => Ok(()),
    });
    let mut finding = case
        .finding(Class::C6, format_args!("NAT chose a stale endpoint: {what}{then}"))
        .confidence(match (certain, confounder) {
            (true, _) => Confidence::High,
            (false, None) => Confidence::Medium,
            (false, Some(_)) => Confidence::Low,
        })
        .severity(if case.failed() && !case.is_own_abort() { Severity::High } else { Severity::Medium })
        .api(step, what)
        .fill_rules_of(endpoint, case.ctx.node.mode);
    if let Some(since) = since.filter(|since| Some(*since) < step) {
        finding = finding.api(
            Some(since),
            format_args!(
                "kube-proxy's rules should not have chosen {endpoint} {}: first it was not ready, or was terminating while \
                 others were ready",
                how_long(case, since)
            ),
        );
    }
    if since.is_some_and(|since| may_be_within_grace(case, since)) {
        // Without the events of the packet's beginning, the choice looks younger than it is (C5).
        finding = finding.if_nothing_was_lost();
    }
    finding = with_cause(case, since, finding);
    if case.vip.service.affinity.is_some() {
        finding = finding
            .api(
                None,
                format_args!(
                    "{} has sessionAffinity ClientIP: clients pinned to this endpoint keep it",
                    case.name()
                ),
            )
            .related(&[Class::C24]);
    }
    if !certain || since.is_none_or(|since| since == Timestamp::MIN) {
        finding = finding.unobserved("when the endpoint was removed");
    }
    if answered {
        let who = fmt::from_fn(|f| match case.ctx.cluster.pod_by_ip(endpoint.ip(), case.decided) {
            Some(pod) => write!(f, "Pod {}", pod.key),
            None => f.write_str("a host"),
        });
        finding = finding.against(
            EvidenceType::Kernel,
            case.flow.client.established,
            format_args!("the connection was answered: {who} has the address {} now", endpoint.ip()),
        );
    } else if finding.has_words()
        && let Some((pod, until)) = case.ctx.cluster.last_pod_by_ip(endpoint.ip(), case.decided)
    {
        finding =
            finding.api(Some(until), format_args!("Pod {} gave up the address {}", pod.key, endpoint.ip()));
    }
    if let Some(confounder) = confounder {
        finding = finding.against(EvidenceType::Api, None, confounder);
    } else if case.ctx.metadata_age.is_some_and(|age| age > OLD_METADATA_SECS) {
        finding =
            finding.against(EvidenceType::Api, None, "the metadata is old: the endpoint may be listed again");
    }
    Some(finding)
}

/// A client repeats its SYN for as long (`tcp_syn_retries`: 6 times, at intervals that double from 1 s).
const SYN_LIFE: Duration = Duration::from_secs(127);

/// Whether the endpoint may have been chosen before it left at `since`: the event of the choice was not observed, and the
/// flow's first sighting is not its beginning, or may be the repetition of an earlier packet. A SYN without an answer is not
/// older than a client's patience.
fn may_be_older(case: &Case<'_>, since: Option<Timestamp>) -> bool {
    let flow = case.flow;
    let is_opening = || flow.is_tcp() && !flow.was_answered();
    let is_young = || {
        since.is_some_and(|since| {
            since > Timestamp::MIN && since.saturating_add(SYN_LIFE + case.ctx.grace) < case.decided
        })
    };
    is_undated(case) && !(is_opening() && is_young())
}

/// Whether the event of the choice was not observed, and only its entry shows it.
fn is_undated(case: &Case<'_>) -> bool {
    let flow = case.flow;
    case.decision.is_some_and(|decision| {
        let is_of_entry =
            decision.ct.status.has(Status::CONFIRMED) && flow.chosen_by_ipvs(case.ctx.node_netns).is_none();
        decision.confirmed.is_none() && (flow.partial || is_of_entry)
    })
}

/// A packet waits this long for its next hop's address before it is dropped: three requests, one a second
/// (`mcast_solicit` and `retrans_time`, net/core/neighbour.c and net/ipv4/arp.c).
const NEIGHBOUR_WAIT: Duration = Duration::from_secs(3);

/// Whether a choice that is known only from its packet's drop may have been made within the grace.
fn may_be_within_grace(case: &Case<'_>, since: Timestamp) -> bool {
    let is_dated = case.decision.is_none_or(|decision| decision.confirmed.is_some());
    !is_dated && since > Timestamp::MIN && case.within_grace(since.saturating_add(NEIGHBOUR_WAIT))
}

/// The time that the endpoint's Pod has for its end, or the default where no Pod is known. Of a Pod on the host's network, only
/// the slice says that the address is its own.
pub(super) fn termination_grace(
    case: &Case<'_>,
    endpoint: Option<&EndpointState<'_>>,
    ip: IpAddr,
) -> Duration {
    let cluster = case.ctx.cluster;
    let listed = endpoint.and_then(|state| cluster.pod(&state.pod?.key, case.decided));
    let pod = listed.filter(|pod| pod.ips.contains(&ip)).or_else(|| cluster.pod_by_ip(ip, case.decided));
    pod.map_or(DEFAULT_TERMINATION_GRACE, |pod| pod.termination_grace)
}

fn how_long(case: &Case<'_>, since: Timestamp) -> impl Display {
    let age = case.age(since);
    fmt::from_fn(move |f| match since {
        Timestamp::MIN => f.write_str("for an unknown time"),
        _ => write!(f, "for {}", length(age)),
    })
}

/// C5: the endpoint ends, and its last connections meet it closed.
/// Mechanism: a Pod that is deleted stops listening when its process exits. kube-proxy learns that the endpoint
/// terminates at about the same time, and while every endpoint terminates it still sends there (N8). Until the
/// `EndpointSlice` drops the endpoint, new connections are refused or unanswered. That ends within seconds where another
/// endpoint is ready; where none is, the Service is down until one is, and kube-proxy's choice was right.
/// For: the endpoint was terminating when it was chosen, or was removed within the grace after the failure; its Pod's
/// deletion had been requested.
/// Against: an endpoint that is only not ready has an application that is down (C28). One that is chosen although others
/// have been ready for longer than the grace is stale (C6).
pub(super) fn departing(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let member = case.member()?;
    let unanswered =
        matches!(case.outcome, Outcome::Refused | Outcome::Unreachable | Outcome::Stalled | Outcome::Dropped)
            || unanswered_for(case).is_some();
    if !unanswered {
        return None;
    }
    let ended = case.ended();
    let since = ending_since(case, endpoint, member)?;
    let verb = if case.outcome == Outcome::Refused { "refused" } else { "did not answer" };
    if is_last(case, member) && !case.within_grace(since) {
        return Some(last_one_ends(case, member, since, verb));
    }
    let when = if since <= ended {
        case.said(format_args!("{} before", length(ended.since(since))))
    } else {
        case.said(format_args!("{} later", length(since.since(ended))))
    };
    let mut finding = case
        .finding(
            Class::C5,
            format_args!(
                "{} of {} {verb} because it ends: it began to terminate, or left the endpoints, {when}",
                case.endpoint_name(),
                case.name()
            ),
        )
        .confidence(Confidence::Medium)
        .severity(Severity::Low)
        .api(Some(since), format_args!("{endpoint} terminates or left the endpoints of {}", case.name()))
        .unobserved("whether its application failed before the termination: its log shows it (C28)")
        .related(&[Class::N8, Class::C28])
        .now(&[action::WAIT]);
    if is_undated(case) {
        // One that was chosen long after it began to terminate is stale.
        finding = finding
            .unobserved("when it was chosen: long after that, the rules are stale (C6)")
            .related(&[Class::C6])
            .if_nothing_was_lost();
    }
    Some(finding)
}

/// Whether kube-proxy had nothing but endpoints that terminate.
fn is_last(case: &Case<'_>, member: &EndpointState<'_>) -> bool {
    member.conditions.terminating
        && case.usable().is_some_and(|usable| usable.terminating && usable.count > 0)
}

fn last_one_ends(case: &Case<'_>, member: &EndpointState<'_>, since: Timestamp, verb: &str) -> Finding {
    let count = case.usable().map_or(0, |usable| usable.count);
    let which = if count == 1 { "the last endpoint" } else { "one of the last endpoints" };
    let mut finding = case
        .finding(
            Class::C5,
            format_args!(
                "{} {verb}: it is {which} of {}, was terminating {}, and no other is ready",
                case.endpoint_name(),
                case.name(),
                how_long(case, since)
            ),
        )
        .domain(Domain::NoEndpoints)
        .confidence(Confidence::Medium)
        .api(
            Some(since),
            format_args!(
                "no endpoint of {} is ready; kube-proxy sends to those that serve while they terminate: {count}",
                case.name()
            ),
        )
        .unobserved("whether its application failed before the termination: its log shows it (C28)")
        .related(&[Class::N8, Class::C28])
        .now(&[action::FOLLOW_SUCCESSOR])
        .later(&[action::KEEP_SECOND_REPLICA]);
    if let Some(pod) = member.pod {
        finding = finding.fill("POD", word(&pod.key.name));
    }
    if is_undated(case) {
        finding = finding.unobserved("when it was chosen").if_nothing_was_lost();
    }
    finding
}

/// When this member began to end, up to the grace after the flow's own end.
fn ending_since(case: &Case<'_>, endpoint: SocketAddr, member: &EndpointState<'_>) -> Option<Timestamp> {
    let cluster = case.ctx.cluster;
    let soon = case.ended().saturating_add(case.ctx.grace);
    let removal = || cluster.membership(&case.vip, endpoint, soon).ending_since();
    let deletion = || {
        let listed = &member.pod?.key;
        let pod = cluster.pod(listed, soon).filter(|pod| pod.ips.contains(&endpoint.ip()))?;
        Some(pod.deletion?.saturating_sub(pod.termination_grace))
    };
    match &case.membership {
        Some(Membership::Member { state, since }) if state.conditions.terminating => Some(*since),
        _ => removal().or_else(deletion),
    }
}

/// Whether the metadata may still show that the endpoint, which refused, ends: its application knows that before the API does.
pub(super) fn may_depart(case: &Case<'_>) -> bool {
    let may_end = |endpoint| Some(ending_since(case, endpoint, case.member()?).is_none());
    case.outcome == Outcome::Refused && case.endpoint.and_then(may_end).unwrap_or(false)
}

/// The first attempt of a handshake that went to a stale endpoint, if the outcome is due to another attempt: the client
/// lost time there, or gave up because of it.
pub(super) fn stale_attempt<'a>(case: &Case<'a>) -> Option<(Case<'a>, Finding)> {
    let stale = |attempt: Case<'a>| {
        let of_kube_proxy = || stale(&attempt).filter(|finding| finding.class == Class::C6);
        let finding = foreign_rules::chose(&attempt).or_else(of_kube_proxy)?;
        Some((attempt, finding))
    };
    case.other_attempts().find_map(stale)
}

/// C8 (kubernetes/kubernetes#112604, #127318).
/// Mechanism: a UDP sender without answers refreshes its conntrack entry with each datagram, and the entry still leads
/// to an endpoint that has since left. Rules are evaluated only for new entries, so no rule helps, not even the REJECT
/// of a Service without endpoints; kube-proxy should have deleted the entry.
/// For: a datagram by the entry after the endpoint had left: the entry's listing shows when the last one was sent, and so does
/// one that was refused, or had no next hop.
/// Against: an entry created after the removal comes from the rules (C6); an endpoint that answered and whose Pod still
/// runs may go on to answer (N9), unless it refused; in ipvs mode a datagram fails by the entry of IPVS (C13).
pub(super) fn stale_entry(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let LastDatagram { seen, sent, failed } = last_datagram(case, endpoint)?;
    let (removed, certain) = match case.ctx.cluster.membership(&case.vip, endpoint, seen) {
        Membership::NeverSeen { since } => (since, false),
        _ => (unserved_since(case, endpoint, seen)?, true),
    };
    // Another program's entry (a hostPort, a load balancer on the node) never had an endpoint of the Service.
    if !certain && unlisted_but_not_stale(case).is_some() {
        return None;
    }
    // An entry of the grace after the removal is as old: kube-proxy should have deleted it with its next sync.
    let older = case.flow.partial || case.decided <= removed || case.within_grace(removed);
    if removed == Timestamp::MIN || !older || sent <= removed.saturating_add(case.ctx.grace) {
        return None;
    }
    // No hook observes further answers of an entry that has seen one.
    let answered = case.flow.was_answered() && !failed;
    let former = case.ctx.cluster.last_pod_by_ip(endpoint.ip(), seen);
    let former = former.filter(|(_, until)| until.saturating_add(case.ctx.grace) >= removed);
    if answered && former.is_none() && case.ctx.cluster.pod_by_ip(endpoint.ip(), seen).is_some() {
        return None;
    }
    let orig = &case.flow.orig;
    let name = case.endpoint_name();
    let gone = if certain {
        phrase!("{name} left the endpoints of {}", case.name())
    } else {
        phrase!(
            "no EndpointSlice of {} has listed {endpoint} for at least {}",
            case.name(),
            length(seen.since(removed))
        )
    };
    let (what, when) = if failed { ("failed", seen) } else { ("went", sent) };
    let mut finding = case
        .finding(
            Class::C8,
            format_args!(
                "{} still sends to {name} by an old conntrack entry: a datagram {what} there {} after the endpoint \
                 had left",
                orig.src,
                length(when.since(removed))
            ),
        )
        .confidence(if certain { Confidence::High } else { Confidence::Medium })
        .api(Some(removed), gone);
    if !failed {
        finding = finding.kernel(Some(sent), "the last datagram so far renewed the entry, to the second");
    } else if case.flow.partial {
        finding = finding
            .confidence(Confidence::Medium)
            .unobserved("when the entry was created: after the removal, the rules are stale (C6)")
            .related(&[Class::C6]);
    }
    if !certain {
        finding = finding.unobserved("when the endpoint was removed");
    }
    if answered {
        finding = finding.unobserved("whether anything still answers: the entry saw an answer earlier");
        finding = match former {
            Some((pod, until)) => finding
                .api(Some(until), format_args!("Pod {} gave up the address {}", pod.key, endpoint.ip())),
            None => finding.confidence(Confidence::Medium),
        };
    }
    Some(finding)
}

/// The last datagram that is known of an entry.
struct LastDatagram {
    /// When the entry, or the failure, was observed.
    seen: Timestamp,
    /// When it was sent, at the earliest.
    sent: Timestamp,
    failed: bool,
}

fn last_datagram(case: &Case<'_>, endpoint: SocketAddr) -> Option<LastDatagram> {
    let flow = case.flow;
    let has_failed = matches!(case.outcome, Outcome::Refused | Outcome::Unreachable) && !case.is_ipvs();
    if let Some(seen) = flow.datagram_failed(endpoint).filter(|_| has_failed) {
        return Some(LastDatagram { seen, sent: seen.saturating_sub(NEIGHBOUR_WAIT), failed: true });
    }
    let listed = flow.reread.filter(|_| flow.orig.protocol == Protocol::UDP)?;
    Some(LastDatagram { seen: listed.time, sent: flow.last_packet?, failed: false })
}

/// Why an endpoint that no slice is known to have listed may be valid.
fn unlisted_but_not_stale(case: &Case<'_>) -> Option<&'static str> {
    if case.ctx.metadata_age.is_some_and(|age| age > case.ctx.grace.as_secs_f64()) {
        return Some("the metadata is old: the endpoint may have been added since");
    }
    let young = case.endpoint.and_then(|endpoint| {
        let pod = case.ctx.cluster.pod_by_ip(endpoint.ip(), case.decided)?;
        let selector = &case.vip.service.selector;
        let is_of_service = pod.key.namespace == case.vip.service.key.namespace && !selector.is_empty();
        (is_of_service && pod.deletion.is_none() && pod.matches(selector)).then_some(())
    });
    if young.is_some() {
        return Some("the Pod at this address matches the Service's selector: its EndpointSlice may be late");
    }
    if case.ctx.node_netns.is_none() {
        return Some(
            "viptrace does not know in which network namespace kube-proxy writes its rules: another program may \
                     have translated the address",
        );
    }
    (case.vip.via != Via::ClusterIp).then_some(
        "others than kube-proxy translate such addresses too: a hostPort (CNI-HOSTPORT-DNAT), a load balancer on the \
         node (N13)",
    )
}

/// When the endpoint left, if it has reset its connection since although it does not end: the Service's selector moved to other
/// Pods (blue and green), or a label was taken off, and the Pod runs on with its connections.
pub(super) fn reset_after_leaving(case: &Case<'_>) -> Option<Timestamp> {
    let (endpoint, cluster, ended) = (case.endpoint?, case.ctx.cluster, case.ended());
    let is_reset = matches!(case.outcome, Outcome::Reset(ResetBy::Endpoint | ResetBy::Unknown));
    // The RST of another endpoint, or of this node, which do not know the connection.
    let is_elsewhere = case.trouble().is_some_and(|trouble| {
        trouble.picked_up.is_some() || trouble.stack_resets.iter().any(|reset| reset.by == End::Vip)
    });
    if !is_reset || is_elsewhere {
        return None;
    }
    let Membership::Left { at, last } = cluster.membership(&case.vip, endpoint, ended) else { return None };
    let is_alive = match last.pod.filter(|_| cluster.knows(Kind::Pod)) {
        Some(listed) => cluster.pod(&listed.key, ended).is_some_and(|pod| {
            let is_same = !differ(&pod.uid, &listed.uid) && pod.ips.contains(&endpoint.ip());
            is_same && pod.deletion.is_none() && pod.holds_addresses()
        }),
        // Only its own socket shows that it is still there.
        None => case.flow.server.reset_sent().is_some(),
    };
    (is_alive && !last.conditions.terminating).then_some(at)
}

/// The gap in the record of a reset whose two ends are on other nodes.
pub(super) const UNSEEN_CLOSE: &str = "whether the endpoint had closed the connection before, as the kernel does for a process that ends: then only what \
     the client did long afterwards was reset (N9), and a trace on the client's node shows it";

/// N9 or C7.
/// Mechanism: the entry of an established connection outlives its endpoint; kube-proxy never deletes TCP entries
/// (kubernetes/kubernetes#100698). In a rolling update the Pod ends its connections within its termination grace: N9. A
/// connection that broke later left the client with a dead peer: C7. Neither is kube-proxy's fault.
/// For: NAT decided while the endpoint was listed; it left before the flow ended.
/// Against: a close before the RST, which is not observed where both ends are on other nodes.
/// Against: a RST by an endpoint whose Pod runs on: it is the application's, as that of a listed endpoint is.
pub(super) fn removed_meanwhile(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let ended = case.ended();
    // Most flows: their endpoint is what it was.
    if case.is_ready() && !case.is_ahead && case.ctx.cluster.is_constant(&case.vip, case.decided, ended) {
        return None;
    }
    let membership = case.ctx.cluster.membership(&case.vip, endpoint, ended);
    // One that is only not ready is listed still: its application or its node failed.
    let removed = membership.ending_since()?;
    // A TCP connection that is still being opened is not older than its SYN, whose choice may be wrong (C6).
    let is_known_to_be_open = !case.flow.is_tcp() || case.was_answered();
    let old_enough = case.decided <= removed || case.flow.partial && is_known_to_be_open;
    if removed == Timestamp::MIN || removed > ended || !old_enough || case.outcome == Outcome::Pending {
        return None;
    }
    let had_lost_peer = || {
        let (repeats, broke) = (case.flow.client.retransmits(), case.flow.broke().unwrap_or(ended));
        repeats.is_seen() && broke <= repeats.last.saturating_add(MAX_REPETITION)
    };
    if case.is_own_abort() && !had_lost_peer() || reset_after_leaving(case).is_some() {
        return None;
    }
    let grace = termination_grace(case, membership.state(), endpoint.ip());
    let after = ended.since(removed);
    // The Pod's grace counts from its deletion, with which the endpoint begins to terminate, not from the end of its process.
    let began = began_to_end(case, endpoint, &membership, ended).unwrap_or(removed);
    let ending = ended.since(began);
    // The kubelet counts from when it learns of the deletion, gives a preStop hook that runs too long two seconds more, and
    // the sockets end with the last process.
    let grace = grace.saturating_add(case.ctx.grace);
    // A pool that closes a connection whose endpoint has ended long ago repeats its close, and its application misses nothing.
    let ends = [&case.flow.client, &case.flow.server];
    let mut repeating = ends.into_iter().filter(|end| end.retransmits().is_seen());
    let is_closing = case.outcome == Outcome::Silent
        && repeating.all(|end| end.retransmitted_only_its_end() && end.stuck().is_none());
    let outlived = case.outlived_endpoint();
    let drained = case.outcome.is_success() || is_closing || outlived;
    let name = case.endpoint_name();
    let left = case.said(format_args!("{name} left the usable endpoints of {}", case.name()));
    let with_begin = |finding: Finding| {
        if began == removed {
            return finding;
        }
        let so_long = length(removed.since(began));
        finding
            .api(Some(began), format_args!("{endpoint} began to terminate, {so_long} before it was removed"))
    };
    if drained || ending <= grace {
        let how = match case.outcome {
            Outcome::Established => "was still open",
            Outcome::Closed => "ended normally",
            _ if is_closing => "repeated only its close",
            _ if outlived => "ended, already closed by the endpoint,",
            _ => "broke",
        };
        // Only drops show the effect of IPVS with `expire_nodest_conn=0` (C13).
        let hidden = case.is_ipvs() && case.outcome == Outcome::Silent && !case.ctx.drop_reasons;
        let sure = !case.flow.partial && !hidden;
        let mut finding = case
            .finding(
                Class::N9,
                format_args!(
                    "the flow is older than its endpoint's removal and {how} {} after it",
                    length(after)
                ),
            )
            .confidence(if sure { Confidence::High } else { Confidence::Medium })
            .severity(if drained { Severity::None } else { Severity::Low })
            .api(Some(removed), left);
        finding = with_begin(finding);
        if !drained {
            finding = finding.later(&[action::DRAIN_GRACEFULLY]);
        }
        if drained || case.is_ipvs() {
            // Without the events of its end, a connection that broke looks the same; in ipvs mode C13 does.
            finding = finding.if_nothing_was_lost();
        }
        if hidden {
            finding = finding
                .unobserved("whether IPVS dropped its packets (C13): this kernel gives no reasons for drops")
                .related(&[Class::C13]);
        }
        return Some(finding);
    }
    // Of a connection between two other hosts only the RST is observed: a FIN before it is not.
    let is_end_unseen = case.flow.is_tcp() && !case.flow.client.is_seen() && !case.flow.server.is_seen();
    let is_close_reset =
        case.flow.client.reset_received().is_some_and(|reset| reset.state == TcpState::FinWait1);
    let what = match (is_end_unseen, is_close_reset) {
        (true, _) => "a RST ended a flow",
        (_, true) => "a flow that its client closed was reset",
        _ => "an established flow broke",
    };
    let is_sure = !(case.flow.partial || is_end_unseen || is_close_reset);
    let mut finding = case
        .finding(Class::C7, format_args!("{what} {} after its endpoint was removed", length(after)))
        .confidence(if is_sure { Confidence::High } else { Confidence::Medium })
        .api(Some(removed), left);
    finding = with_begin(finding);
    if is_end_unseen {
        finding = finding.unobserved(UNSEEN_CLOSE).related(&[Class::N9]);
    }
    if is_close_reset {
        // In ipvs mode the event of the node's RST shows that it answered the close alone.
        finding = finding
            .unobserved(
                "whether data waited before the client's close: without any, the client missed nothing (N9)",
            )
            .related(&[Class::N9])
            .if_nothing_was_lost();
    }
    if case.flow.orig.protocol == Protocol::UDP {
        finding = finding.related(&[Class::C8]);
    }
    if case.flow.partial {
        // A lost decision may have been taken after the removal (C6).
        finding = finding.if_nothing_was_lost();
    }
    Some(finding)
}
