//! IPVS: virtual servers without a real server (C12), real servers removed under a connection (C13), reused ports
//! (C14), entries that end before their connection (C15) or before its close (N5), and the effect of a Local policy (C21,
//! C22).
//!
//! A null binding has no meaning in this mode: IPVS translates after the NAT hooks and changes the reply tuple itself.
//! The other files have the rules of all modes (stale endpoints, refusing and silent backends, no endpoints).

use std::{net::SocketAddr, time::Duration};

use super::{
    Case, Finding,
    iptables_sync::lag,
    resets::removed,
    text::{count, length, word},
};
use crate::{
    class::{Class, Confidence, Domain, Severity, action},
    cluster::{Usable, Via},
    flow::{Dropped, End, Occurrences, Outcome, RefusalKind, StackReset, Stage},
    node::{ProxyMode, kube_proxy::config::Config, snapshot::Listing},
    rules::Writer,
    sighting::Hook,
    time::Timestamp,
    verdict::EvidenceType,
};

/// C12; C21 or C22 if a Local policy leaves no endpoint for this node; C5 within the grace. C20 covers a Service
/// without endpoints.
/// Mechanism: the virtual server has no real server with a weight above 0: `ip_vs_schedule` returns NULL and
/// `ip_vs_leave` answers with ICMP port unreachable, for TCP too. kube-proxy did not write the API's endpoints.
/// For: `ip_vs_leave` for this very packet, or its ICMP error, which comes from the VIP; and usable endpoints in the API for
/// longer than the grace.
/// Against: endpoints younger than the grace: then it is lag.
pub(super) fn no_destination(case: &Case<'_>) -> Option<Finding> {
    let refusal = case.trouble()?.refusal;
    let is_seen = refusal.is_some_and(|refusal| refusal.kind == RefusalKind::NoDestination);
    if !is_seen && (refusal.is_some() || !case.is_refused_by_vip()) {
        return None;
    }
    if case.endpoint.is_some() || !case.failed() || case.has_usable() == Some(false) {
        return None;
    }
    let most = if is_seen { Confidence::High } else { Confidence::Medium };
    let usable = case.usable();
    if case.vip.is_local() && usable.is_some_and(|usable| usable.local == Some(0)) {
        let mut finding = no_local_real_server(case);
        finding.at_most(most);
        return Some(finding);
    }
    let since = usable.map(|usable| case.choosable_since(usable));
    if let Some(since) = since.filter(|since| case.within_grace(*since)) {
        return Some(lag(
            case,
            format_args!(
                "IPVS has no real server for {}, which has existed with endpoints for {}",
                case.name(),
                length(case.age(since))
            ),
        ));
    }
    let (domain, confidence) = match usable {
        Some(_) => (Domain::IptablesSync, most),
        None => (Domain::NoEndpoints, Confidence::Medium),
    };
    let detail = match usable {
        Some(_) => format!(
            "IPVS has no real server for {}, although it has {}: kube-proxy's sync fails",
            case.name(),
            case.usable_count()
        ),
        None => format!("IPVS has no real server for {}", case.name()),
    };
    let mut finding = case
        .finding(Class::C12, detail)
        .domain(domain)
        .confidence(confidence)
        .fill("SERVICE_OPTION", option(case))
        .related(&[Class::C4]);
    finding = match usable {
        Some(usable) => finding.api(Some(usable.since), case.usable_evidence()).unobserved(
            "whether the virtual server has no real servers, or only some of weight 0: ipvsadm -Ln",
        ),
        None => finding.unobserved("the Service's endpoints: EndpointSlices could not be read"),
    };
    Some(finding)
}

/// C11.
/// Mechanism: kube-proxy is to use IPVS, and the kernel has none: it ends at its start and writes no rule. Or no interface
/// has the VIP (kube-ipvs0 is gone, or a network manager flushed it): the kernel routes its packets away, and IPVS never
/// sees them.
/// For: the mode, and the part of the kernel or the address that is missing. Against: nothing here; both were read.
pub(super) fn unusable(case: &Case<'_>, usable: Usable) -> Option<Finding> {
    let node = case.ctx.node;
    if node.mode != Some(ProxyMode::Ipvs) {
        return None;
    }
    let ip = case.vip.addr.ip();
    let finding = |detail: String| {
        case.finding(Class::C11, detail).api(Some(usable.since), case.usable_evidence()).related(&[Class::C1])
    };
    if node.listings.ipvs == Listing::NotInKernel {
        let detail = format!(
            "kube-proxy's mode is ipvs and the kernel has no IPVS: {} is not translated",
            case.name()
        );
        return Some(finding(detail).node(node.read_at(), "IPVS is neither loaded nor built in"));
    }
    let has_server = node.rules.servers.iter().flatten().any(|server| server.address == case.vip.addr);
    if !has_server || node.is_own_address(ip) != Some(false) {
        return None;
    }
    let detail = format!("no interface has the address {ip} of {}: IPVS never sees its packets", case.name());
    Some(
        finding(detail).severity(Severity::High).now(&[action::RESTORE_DEVICE]).node(
            node.read_at(),
            format_args!("a virtual server {} and no local address {ip}", case.vip.addr),
        ),
    )
}

/// C22, or C21 from outside. In iptables and nftables mode such packets are dropped; here they are refused, because the
/// virtual server has no real server.
fn no_local_real_server(case: &Case<'_>) -> Finding {
    let (class, policy) = local_policy(case);
    case.finding(
        class,
        format_args!("{policy} is Local and {} has no endpoint on this node: IPVS refuses", case.name()),
    )
    .api(None, format_args!("{} in the cluster, none of them on this node", case.usable_count()))
    .related(&[Class::C12])
    .with_late_loss(case)
}

/// C12's look-alike.
/// Mechanism: IPVS drops without ICMP if it cannot create an entry (memory), or if its overload defence is active
/// (`vs/drop_packet`).
/// For: `ip_vs_schedule` returned NULL, the packet was dropped, and `ip_vs_leave` was not entered.
pub(super) fn not_scheduled(case: &Case<'_>) -> Option<Finding> {
    let unscheduled = case.flow.ipvs.as_ref()?.unscheduled;
    if !unscheduled.is_seen()
        || case.endpoint.is_some()
        || case.trouble()?.refusal.is_some()
        || !case.failed()
        || !case.has_hook(Hook::IpVsLeave)
    {
        return None;
    }
    Some(
        case.finding(
            Class::C12,
            format_args!("IPVS created no entry for {} and dropped the packet silently", case.name()),
        )
        .confidence(Confidence::Low)
        .domain(Domain::HostKernel)
        .unobserved("the reason: no memory for an entry, or a packet that IPVS ignores")
        .now(&[action::LOOK_FOR_MEMORY]),
    )
}

/// The signs that IPVS lost an established connection.
struct Lost {
    first: Timestamp,
    /// A packet was dropped with its entry.
    has_expired: bool,
    /// The connection ended at once; otherwise its packets are dropped.
    ends: bool,
    /// The entry may have ended only because the connection was idle (C15).
    may_have_idled: bool,
}

/// IPVS deletes the entry of an established TCP connection after so long without a packet (`tcp_timeouts` in
/// `ip_vs_proto_tcp.c`).
const IDLE_TIMEOUT: Duration = Duration::from_mins(15);

/// Whether the connection was old enough at that time for its entry to have timed out.
fn may_have_idled(case: &Case<'_>, at: Timestamp) -> bool {
    let configured = case.ctx.node.config.as_ref().and_then(Config::ipvs_idle_timeout);
    let flow = case.flow;
    let began = flow.client.established.or(flow.server.established);
    let began = began.or_else(|| (!flow.partial).then_some(case.decided));
    began.is_none_or(|began| at.since(began) >= configured.unwrap_or(IDLE_TIMEOUT))
}

/// The end of the entry whose packet this reset answers, as far as it was observed: IPVS deletes the conntrack entry with its
/// own.
fn ended_before(case: &Case<'_>, reset: &StackReset) -> Option<Timestamp> {
    let ended = case.flow.deleted.filter(|ended| ended.deleted_by.is_none())?;
    (ended.time <= reset.occurrences.first).then_some(ended.time)
}

/// The packets that IPVS dropped with the entry of a real server that is gone. One whose port was reused has another reason (C14).
fn dropped_with_entry(case: &Case<'_>) -> Option<Occurrences> {
    let ipvs = case.flow.ipvs.as_deref().filter(|ipvs| ipvs.expired.is_seen() && !ipvs.reused)?;
    Some(ipvs.expired)
}

fn lost(case: &Case<'_>) -> Option<Lost> {
    let reset = reset_by_node(case);
    // Datagrams are a connection of IPVS without an answer too.
    let is_connection = case.flow.was_answered() || !case.flow.is_tcp();
    if !is_connection || !(case.failed() || reset.is_some()) {
        return None;
    }
    let expired = dropped_with_entry(case);
    let in_hook = |drop: &&Dropped| in_hook(drop, case.flow.is_tcp());
    let dropped = case.trouble().and_then(|trouble| trouble.drops.iter().find(in_hook));
    let dropped = dropped.filter(|_| case.is_ipvs());
    let by_reset = || reset.map(|reset| ended_before(case, reset).unwrap_or(reset.occurrences.first));
    let by_drop = || dropped.map(|drop| drop.occurrences.first);
    let first = expired.map(|expired| expired.first).or_else(by_reset).or_else(by_drop)?;
    let (has_expired, is_reset) = (expired.is_some(), reset.is_some());
    let may_have_idled = is_reset && !has_expired && may_have_idled(case, first);
    Some(Lost { first, has_expired, ends: has_expired || is_reset, may_have_idled })
}

/// When the endpoint left, as far as the first sign that IPVS lost its connection can be due to that: kube-proxy may have received
/// the change before viptrace did.
fn gone_since(case: &Case<'_>, endpoint: SocketAddr, first: Timestamp) -> Option<Timestamp> {
    let gone_at = |at| case.ctx.cluster.membership(&case.vip, endpoint, at).unusable_since();
    gone_at(first).or_else(|| gone_at(first.saturating_add(case.ctx.grace)))
}

/// Until when the metadata can still show that IPVS lost a connection because its endpoint left (C13).
pub(super) fn may_have_left(case: &Case<'_>) -> Option<Timestamp> {
    let (endpoint, first) = (case.endpoint?, lost(case)?.first);
    gone_since(case, endpoint, first).is_none().then(|| first.saturating_add(case.ctx.grace))
}

/// N5; N9 if the endpoint has left since.
/// Mechanism: IPVS deletes the entry of an idle connection, and that of one that its server closed after 120 s
/// (`tcp_timeouts` in `ip_vs_proto_tcp.c`). The client's FIN finds none, and the node's own stack resets it: its application
/// has finished, and misses nothing.
/// For: the first of the client's packets that the node's stack reset is a FIN without data.
/// Against: data that was reset before (C13, C15); a client that closes only its sending side, and waits for an answer.
pub(super) fn late_close(case: &Case<'_>) -> Option<Finding> {
    let reset = reset_by_node(case).filter(|reset| reset.to_fin)?;
    if dropped_with_entry(case).is_some() || !may_have_lost_entry(case) {
        return None;
    }
    let time = reset.occurrences.first;
    let left = case.endpoint.and_then(|endpoint| Some((endpoint, removed(case, endpoint, time)?)));
    let finding = case
        .finding(
            if left.is_some() { Class::N9 } else { Class::N5 },
            format_args!(
                "IPVS no longer had an entry for a connection to {} when the client closed it: the node itself reset \
                 only that close",
                case.name()
            ),
        )
        .severity(Severity::Low)
        .confidence(Confidence::Medium)
        .unobserved("whether the client closed only its sending side, and waited for an answer")
        .related(&[Class::C15]);
    Some(match left {
        Some((endpoint, at)) => {
            finding.api(Some(at), format_args!("{endpoint} left the usable endpoints of {}", case.name()))
        }
        None => finding,
    })
}

/// C13.
/// Mechanism: the real server was removed from the virtual server while the connection was open. With
/// `vs/expire_nodest_conn=1`, which kube-proxy sets, the connection's entry is deleted: at once since 5.9
/// (`ip_vs_expire_nodest_conn_flush`); before that, or if a packet is faster, at the next packet, which is dropped with
/// its old conntrack entry. Later packets find no entry, and the node's own stack resets them. With 0 `ip_vs_in_hook`
/// drops every packet silently.
/// For: a packet that was dropped with the entry that IPVS deleted; or the node's reset, or drops before translation,
/// after the endpoint left its slice, or within the grace before.
/// Against: the endpoint is still listed: then kube-proxy removed an endpoint that the API has. An entry that may have timed
/// out before the endpoint left: kube-proxy keeps the real server of a TCP connection as long as IPVS has the connection
/// (`pkg/proxy/ipvs/graceful_termination.go`).
pub(super) fn dead_destination(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let Lost { first, has_expired, ends, may_have_idled } = lost(case)?;
    let gone_since = gone_since(case, endpoint, first);
    // A drop alone can have any cause, and the node also resets after an idle entry ended. Only a packet that is
    // dropped with its entry proves a removed server.
    if !has_expired && gone_since.is_none() || may_have_idled && gone_since > Some(first) {
        return None;
    }
    let is_tcp = case.flow.is_tcp();
    let how = if has_expired && !is_tcp {
        "IPVS dropped one datagram with the entry, and chooses again for the next"
    } else if has_expired {
        "IPVS ended the connection at its next packet"
    } else if ends {
        "IPVS's entry went with it, and the node itself reset the connection"
    } else {
        "IPVS drops its packets silently"
    };
    let setting = case.ctx.node.ipvs_settings.and_then(|settings| settings.expire_nodest_conn);
    let mut finding = case
        .finding(
            Class::C13,
            format_args!(
                "{} was removed from the virtual server of {} under {}: {how}",
                case.endpoint_name(),
                case.name(),
                if is_tcp { "an established connection" } else { "a sender of datagrams" }
            ),
        )
        .confidence(if has_expired || setting == Some(ends) { Confidence::High } else { Confidence::Medium })
        .severity(if ends { Severity::Low } else { Severity::Medium });
    if !ends {
        let both = [action::RECONNECT_FROM_ANOTHER_PORT, action::SET_EXPIRE_NODEST];
        finding = finding.now(if setting == Some(true) { &both[..1] } else { &both });
    }
    if may_have_idled {
        finding.at_most(Confidence::Medium);
        finding = finding
            .unobserved("whether the entry timed out while the connection was idle: ipvsadm -l --timeout")
            .related(&[Class::C15]);
    }
    finding = match gone_since {
        Some(at) if at > first => {
            finding.at_most(Confidence::Medium);
            finding.api(
                Some(at),
                format_args!(
                    "{} left the usable endpoints of {} {} later: kube-proxy received the change before viptrace did",
                    case.endpoint_name(),
                    case.name(),
                    length(at.since(first))
                ),
            )
        }
        Some(at) => finding.api(
            Some(at),
            format_args!("{} left the usable endpoints of {}", case.endpoint_name(), case.name()),
        ),
        None => finding.against(
            EvidenceType::Api,
            None,
            format_args!(
                "{endpoint} was listed at that moment: kube-proxy, or a person, removed it \
                 all the same"
            ),
        ),
    };
    finding = match setting {
        Some(set) => finding
            .node(case.ctx.node.read_at(), format_args!("net.ipv4.vs.expire_nodest_conn={}", u8::from(set))),
        None => finding.unobserved("net.ipv4.vs.expire_nodest_conn"),
    };
    Some(finding)
}

/// C24 in ipvs mode.
/// Mechanism: a persistence template keeps a client at its real server. It outlives the server's removal, or its weight of
/// 0, unless `vs/expire_quiescent_template=1`, which kube-proxy sets: new connections of this client go on to it.
/// For: session affinity, a choice that the API no longer lists, and a virtual server whose servers, read afterwards, do
/// not include it.
/// Against: the servers were read after the choice: they may have been corrected in between.
pub(super) fn pinned(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let affinity = case.vip.service.affinity?;
    let gone_since = case.membership.as_ref()?.unusable_since()?;
    if !case.is_ipvs() || case.decided <= gone_since || case.within_grace(gone_since) {
        return None;
    }
    let node = case.ctx.node;
    let effects = node.effects(case.vip.addr, case.vip.port.protocol, case.flow.orig.src.ip());
    let servers = &effects.iter().find(|effect| effect.writer == Writer::Ipvs)?.endpoints;
    if servers.is_empty() || servers.contains(&endpoint) {
        return None;
    }
    Some(
        case.finding(
            Class::C24,
            format_args!(
                "session affinity keeps this client at {}, which left {} {} before",
                case.endpoint_name(),
                case.name(),
                length(case.age(gone_since))
            ),
        )
        .confidence(Confidence::Medium)
        .api(
            Some(gone_since),
            format_args!("{endpoint} left the usable endpoints; the affinity lasts {}", length(affinity)),
        )
        .node(
            node.read_at(),
            format_args!(
                "the virtual server sends to {}, and not to it",
                count(servers.len(), "other server")
            ),
        )
        .unobserved("net.ipv4.vs.expire_quiescent_template, and the template: `ipvsadm -Lcn`")
        .related(&[Class::C6]),
    )
}

/// C15.
/// Mechanism: IPVS deletes an idle TCP entry after 900 s unless kube-proxy is configured otherwise (`ipvs.tcpTimeout`),
/// together with the conntrack entry. A packet without SYN is not scheduled: it reaches the node's own stack, which has
/// the VIP on kube-ipvs0 and answers with a RST (`NO_SOCKET`).
/// For: an established connection, then a RST to one of its packets by the node's own stack, at the VIP.
/// Against: a deleted entry (`ipvsadm -C`, a restart with `--cleanup`) or a connection that moved here from another
/// node looks the same; so does a real server that was removed, if the endpoint left within the grace after the entry (C13).
pub(super) fn entry_expired(case: &Case<'_>) -> Option<Finding> {
    let reset = reset_by_node(case)?;
    if !may_have_lost_entry(case) {
        return None;
    }
    let trouble = case.trouble()?;
    let time = reset.occurrences.first;
    let ended = case.flow.deleted.map(|ended| ended.time).filter(|ended| *ended <= time);
    let established = case.flow.client.established.or(case.flow.server.established);
    let known_to_end = trouble.picked_up.is_some() || ended.is_some();
    let is_endpoint_known = case.endpoint.is_some();
    let mut finding = case
        .finding(
            Class::C15,
            format_args!(
                "IPVS no longer had an entry for an established connection to {}: the node itself \
             reset it",
                case.name()
            ),
        )
        .confidence(match (is_endpoint_known, known_to_end) {
            (true, true) => Confidence::High,
            (true, false) => Confidence::Medium,
            (false, _) => Confidence::Low,
        })
        .unobserved(
            "whether the entry timed out, or was removed (ipvsadm -C, kube-proxy --cleanup): \
         ipvsadm -l --timeout",
        );
    if !is_endpoint_known {
        finding = finding
            .unobserved("its endpoint: if that has left the Service, IPVS ended the connection for it (C13)")
            .related(&[Class::C13]);
    }
    if let Some(ended) = ended {
        finding = finding.node(
            Some(ended),
            format_args!(
                "its conntrack entry ended {} before the packet that was reset",
                length(time.since(ended))
            ),
        );
    }
    let left = lost(case).zip(case.endpoint);
    let left = left.and_then(|(lost, endpoint)| Some((lost.first, gone_since(case, endpoint, lost.first)?)));
    if let Some((first, at)) = left {
        finding.at_most(Confidence::Medium);
        finding = finding.related(&[Class::C13]).against(
            EvidenceType::Api,
            Some(at),
            format_args!(
                "{} left the usable endpoints of {} {} later: kube-proxy may have received the change before viptrace did, \
                 and removed the real server (C13)",
                case.endpoint_name(),
                case.name(),
                length(at.since(first))
            ),
        );
    }
    match established {
        Some(established) => {
            finding = finding.node(
                Some(time),
                format_args!(
                    "it had been established for {}, which it was idle at most",
                    length(time.since(established))
                ),
            );
        }
        None => finding = finding.unobserved("how long it was idle"),
    }
    Some(finding)
}

/// C21 in ipvs mode (kubernetes/kubernetes#97081).
/// Mechanism: a Local policy without a local endpoint does not drop here: IPVS sends to an endpoint on another node
/// without masquerading. Its reply goes directly to the client, from an address that the client did not connect to.
/// For: an external address, a Local policy, an endpoint on another node, an unmasqueraded source outside this node,
/// and no answer. Against: the client's end was not observed, so an answer may have been missed.
pub(super) fn reply_elsewhere(case: &Case<'_>) -> Option<Finding> {
    let decision = case.decision?;
    let unanswered = matches!(case.outcome, Outcome::Stalled | Outcome::Abandoned | Outcome::Pending);
    if !case.vip.is_local()
        || case.vip.via == Via::ClusterIp
        || !decision.ct.by_ipvs()
        || decision.ct.masqueraded()
        || !unanswered
        || case.flow.was_answered()
    {
        return None;
    }
    let node = case.member()?.node?;
    let here = case.ctx.node_name?;
    let client = case.flow.orig.src.ip();
    let client_here = case.ctx.node.is_own_address(client) == Some(true)
        || case
            .ctx
            .cluster
            .pod_by_ip(client, case.decided)
            .is_some_and(|pod| pod.node.as_deref() == Some(here));
    // With a local endpoint the policy does not explain a choice on another node.
    let has_local = case.usable().and_then(|usable| usable.local).is_some_and(|local| local > 0);
    if node == here || client_here || has_local {
        return None;
    }
    let (class, policy) = local_policy(case);
    let mut finding = case.finding(class, format_args!(
            "{policy} is Local and {} has no endpoint on this node: IPVS chose {} on node {node}, which answers the client \
             from an address that it did not connect to",
            case.name(),
            case.endpoint_name()
        ),
    )
    .confidence(if case.outcome == Outcome::Pending { Confidence::Medium } else { Confidence::High })
    .api(None, format_args!("the endpoint runs on node {}, the traffic arrived at {}", word(node), word(here)));
    if case.outcome == Outcome::Pending {
        finding = finding.unobserved("whether the client got an answer: none passed this node");
    }
    Some(finding)
}

/// C14, a note and not a fault: the client was delayed by a second (a SYN), or lost one datagram.
/// Mechanism: the client reuses a port whose old connection IPVS still has in `TIME_WAIT` or CLOSE. With
/// `conn_reuse_mode=1` it chooses again; the SYN belongs to the old conntrack entry, so it is dropped with that entry,
/// and the next one succeeds.
pub(super) fn lost_packet(case: &Case<'_>) -> Option<(Timestamp, String)> {
    let ipvs = case.flow.ipvs.as_ref().filter(|ipvs| ipvs.expired.is_seen())?;
    let what = if ipvs.reused {
        "IPVS dropped the SYN because the port's last connection was still in its table (C14, conn_reuse_mode): the client \
         had to wait for its repeat"
    } else {
        "IPVS dropped a packet with an entry whose real server is gone (C13), and continued with another"
    };
    Some((ipvs.expired.first, what.to_owned()))
}

/// The facts that are missing for an answered flow without a conntrack entry.
pub(super) fn endpoint_unseen(case: &Case<'_>) -> Option<&'static str> {
    is_untracked(case).then_some(if case.endpoint.is_some() {
        "masquerading and the entry's end: IPVS does not track in conntrack here (vs/conntrack=0)"
    } else {
        "which endpoint IPVS chose: it does not track in conntrack here (vs/conntrack=0), and this trace has no hook at \
         ip_vs_conn_new"
    })
}

/// Only IPVS can have translated it, and conntrack has no entry for it.
pub(super) fn is_untracked(case: &Case<'_>) -> bool {
    let untracked = case.ctx.node.ipvs_settings.and_then(|settings| settings.conntrack) == Some(false);
    case.decision.is_none() && untracked && case.is_ipvs()
}

/// The node's own stack, in place of the VIP, answered a connection's packet with a RST and broke the connection. A
/// stray packet after a connection's end has the same result.
fn reset_by_node<'a>(case: &Case<'a>) -> Option<&'a StackReset> {
    let here = |netns| case.ctx.node_netns.is_none_or(|node| node == netns);
    let resets = &case.trouble()?.stack_resets;
    let of_connection = |reset: &&StackReset| reset.by == End::Vip && !reset.to_syn && here(reset.netns);
    let reset = resets.iter().filter(of_connection).min_by_key(|reset| reset.occurrences.first)?;
    let end_unseen = !case.flow.client.is_seen() && case.flow.server.closed.is_none();
    (case.is_ipvs() && (matches!(case.outcome, Outcome::Reset(_)) || end_unseen)).then_some(reset)
}

/// A connection observed from its beginning that IPVS never handled has lost no entry.
fn may_have_lost_entry(case: &Case<'_>) -> bool {
    case.flow.was_answered() && (case.endpoint.is_some() || case.flow.client.established.is_none())
}

/// A packet of a known connection, dropped before it was translated. Any datagram may be the first.
fn in_hook(drop: &Dropped, is_tcp: bool) -> bool {
    let is_later = !(drop.unconfirmed || is_tcp && drop.opening);
    drop.is("NETFILTER_DROP") && drop.stage == Stage::Before && is_later
}

fn local_policy(case: &Case<'_>) -> (Class, &'static str) {
    if case.vip.via == Via::ClusterIp {
        (Class::C22, "internalTrafficPolicy")
    } else {
        (Class::C21, "externalTrafficPolicy")
    }
}

/// `ipvsadm`'s option for the virtual server's protocol.
fn option(case: &Case<'_>) -> &'static str {
    match case.vip.port.protocol {
        crate::net::Protocol::UDP => "-u",
        crate::net::Protocol::SCTP => "--sctp-service",
        _ => "-t",
    }
}
