//! C29: the endpoint is current and silent, or cannot be reached; and clients that fall silent.

use std::net::{IpAddr, SocketAddr};

use super::{
    Case, Finding,
    datagrams::unanswered_for,
    hairpin, health_checks,
    host_kernel::is_first_large,
    text::{length, word},
};
use crate::{
    class::{Class, Confidence, Severity, action},
    flow::{Dropped, IcmpError, IcmpMeaning, Outcome, SocketEnd, Stage},
    net::Protocol,
    verdict::EvidenceType,
};

/// The most interfaces whose MTU a verdict names.
const MAX_LINKS: usize = 8;

/// Mechanism: NAT worked and the SYN left; no answer arrived. On this node the Pod is gone or filtered (a
/// paused process is not silent: its kernel answers the SYN); on another node the tunnel, a security group or the node fails.
/// For: retransmitted SYNs, or an unresolved neighbour, to a listed endpoint.
/// Against: this is one client's view. A connection from the same client directly to the Pod's address settles it.
pub(super) fn silent(case: &Case<'_>) -> Option<Finding> {
    let endpoint = case.endpoint?;
    let unanswered = unanswered_for(case);
    let failed =
        matches!(case.outcome, Outcome::Stalled | Outcome::Unreachable | Outcome::Dropped | Outcome::Silent)
            || unanswered.is_some();
    let member = case.member()?;
    if !failed || only_its_close_failed(case) {
        return None;
    }
    // A program on the host's network that gets an endpoint there does not use a bridge.
    let on_host = case.ctx.node.is_own_address(endpoint.ip()) == Some(true);
    if endpoint.ip() == case.flow.orig.src.ip()
        && !on_host
        && let Some(finding) = hairpin::itself(case, endpoint.ip())
    {
        return Some(finding);
    }
    if is_client_silent(case) {
        return Some(client_silent(case));
    }
    let cluster = case.ctx.cluster;
    let is_shown = matches!(case.outcome, Outcome::Unreachable | Outcome::Dropped) && is_loss_shown(case);
    let of_pod = || cluster.pod_by_ip(endpoint.ip(), case.decided)?.node.as_deref();
    let node = member.node.or_else(of_pod);
    let local = node.is_some_and(|node| Some(node) == case.ctx.node_name);
    let dropped = case
        .trouble()
        .and_then(|trouble| trouble.drops.iter().find(|drop| drop.stage != Stage::Reply))
        .and_then(|drop| drop.reason.clone());
    let reported =
        case.trouble().and_then(|trouble| trouble.icmp_errors.iter().find(|error| error.about_request));
    let is_expired = is_expired(case);
    let what = match (case.outcome, dropped.as_deref()) {
        (Outcome::Pending, _) => {
            case.said(format_args!("did not answer within {}", length(unanswered.unwrap_or_default())))
        }
        (Outcome::Unreachable | Outcome::Dropped, _) if is_expired => {
            let who = reported.and_then(|error| error.from).map_or("a host".to_owned(), |ip| host(case, ip));
            case.said(format_args!(
                "was not reached: the packet's TTL ran out at {who}, as traceroute intends and as a routing loop causes"
            ))
        }
        (Outcome::Unreachable, None) if reported.is_some() => {
            let who = reported.and_then(|error| error.from).map_or("a host".to_owned(), |ip| host(case, ip));
            case.said(format_args!("cannot be reached: {who} reported it by ICMP"))
        }
        (Outcome::Unreachable, Some(reason)) => {
            case.said(format_args!("cannot be reached: no route to the next hop ({reason})"))
        }
        (Outcome::Dropped, Some(reason)) => {
            case.said(format_args!("was not reached: packets were dropped ({reason})"))
        }
        (Outcome::Silent, _) => "answered and then fell silent".into(),
        _ => "does not answer".into(),
    };
    let mut finding = case
        .finding(Class::C29, format_args!("{} of {} {what}", case.endpoint_name(), case.name()))
        .confidence(match case.outcome {
            // A program chooses the TTL of its datagrams.
            _ if is_expired && !case.flow.is_tcp() => Confidence::Low,
            Outcome::Unreachable if !is_expired => Confidence::High,
            _ => Confidence::Medium,
        })
        .severity(if case.outcome == Outcome::Silent || is_expired && !case.flow.is_tcp() {
            Severity::Low
        } else {
            Severity::Medium
        })
        .api(None, format_args!("{endpoint} is an endpoint of {}", case.name()));
    if finding.has_words() {
        finding = finding.fill("CONNECT", connect_command(case, endpoint));
    }
    if case.is_no_pod() {
        finding = finding.now(&[action::ASK_OUTSIDE]).later(&[action::WATCH_PATH]);
    }
    if is_expired {
        finding = finding.unobserved(
            "the TTL that the client set: `traceroute` and `mtr` set a low one; `ip route get` on each node shows a loop",
        );
    }
    if !is_shown {
        finding = finding.if_nothing_was_lost();
    }
    match node {
        Some(name) if is_down(case, name) => {
            finding = finding.api(None, format_args!("the endpoint's node {name} is not Ready"));
            finding = finding.first(action::DESCRIBE_ENDPOINT_NODE).fill("ENDPOINT_NODE", word(name));
        }
        // A packet that this node dropped reached no other one.
        Some(_) if !local && dropped.is_some() => {}
        Some(name) if !local => {
            finding = finding
                .unobserved(format_args!("whether the packet reached node {name}: a trace there shows it"));
        }
        Some(_) if case.outcome != Outcome::Unreachable => {
            let who = if case.is_no_pod() { "host" } else { "Pod" };
            finding = finding.unobserved(format_args!(
                "whether the {who} received it and did not answer: a connection from the same client to {endpoint} decides"
            ));
        }
        Some(_) => {}
        None if case.is_no_pod() => {
            finding =
                finding.unobserved("whether the packet reached that host, which is no Pod of the cluster");
        }
        None => finding = finding.unobserved("the node of the endpoint"),
    }
    if case.outcome == Outcome::Silent {
        finding = with_size(case, finding);
    }
    Some(finding)
}

/// Whether only the endpoint repeats its packets, to a client on another host.
fn is_client_silent(case: &Case<'_>) -> bool {
    let flow = case.flow;
    case.outcome == Outcome::Silent && !flow.client.is_unheard() && !flow.client.is_seen()
}

/// Healthy, with a note: a client that left.
/// Mechanism: the client's host ended or lost its way here (phones, NAT devices that forget a connection), its Pod ended,
/// or it left once all data had arrived: nobody misses an answer.
/// For: the endpoint's retransmits and none of the client's; a client outside the cluster, a Pod that ended, or only the
/// close was repeated. Against: the way back may have failed for all clients outside.
pub(super) fn client_left(case: &Case<'_>) -> Option<Finding> {
    let why = match departure(case)? {
        Departure::PodEnded => "its Pod ended",
        Departure::Outside => "a client outside the cluster can leave without a word",
        Departure::AfterAllData => "only the close was repeated, after all data had arrived",
    };
    let served = format_args!("{} was served by {}", case.name(), case.endpoint_name());
    Some(case.finding(Class::Ok, served).against(
        EvidenceType::Kernel,
        Some(case.flow.server.retransmits().first),
        format_args!("the client {} answered no more: {why}", client_name(case)),
    ))
}

/// The way in which a client that fell silent may have left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Departure {
    PodEnded,
    /// It is outside the cluster.
    Outside,
    /// Only the endpoint's close has no answer.
    AfterAllData,
}

/// How the silent client of this flow may have left. `None` if another end is silent too, or nothing shows it.
pub(super) fn departure(case: &Case<'_>) -> Option<Departure> {
    let endpoint = case.endpoint?;
    let (flow, cluster) = (case.flow, case.ctx.cluster);
    let ip = flow.orig.src.ip();
    if !is_client_silent(case) || ip == endpoint.ip() {
        return None;
    }
    let has_ended = cluster.pod_by_ip(ip, flow.first_seen).is_some_and(|pod| {
        let now = cluster.pod_by_ip(ip, case.ended()).filter(|now| now.uid == pod.uid);
        now.is_none_or(|now| now.deletion.is_some())
    });
    if has_ended {
        Some(Departure::PodEnded)
    } else if health_checks::is_outside(flow, &case.ctx.surroundings()) {
        Some(Departure::Outside)
    } else {
        // The data before the close is repeated in the same states.
        let is_bare = flow.server.retransmitted_only_its_end() && flow.server.stuck().is_none();
        is_bare.then_some(Departure::AfterAllData)
    }
}

/// The rest of [`silent`] for a client that fell silent.
/// Mechanism: the way back fails, or the client's node does.
/// For: the endpoint's retransmits, and none of the client's. Against: a trace on the client's node decides.
fn client_silent(case: &Case<'_>) -> Finding {
    let (cluster, flow) = (case.ctx.cluster, case.flow);
    let (ip, began) = (flow.orig.src.ip(), flow.first_seen);
    let endpoint = case.endpoint_name();
    let what = format!(
        "the client {} of {} fell silent: it does not answer {endpoint}",
        client_name(case),
        case.name()
    );
    let finding = case
        .finding(Class::C29, what)
        .confidence(Confidence::Medium)
        .severity(Severity::Low)
        .if_nothing_was_lost()
        .now(&[action::TRACE_CLIENT])
        .later(&[action::WATCH_PATH]);
    let Some(node) = cluster.node_of(ip, began) else {
        let unseen = "where the client is, and whether the packets reach it";
        return with_size(case, finding.unobserved(unseen));
    };
    if is_down(case, node) {
        return finding.api(None, format_args!("the client's node {node} is not Ready"));
    }
    let arrival = format_args!("whether the packets reach node {node}: a trace there shows it");
    with_size(case, finding.unobserved(arrival))
}

/// Whether this Node was not Ready when the flow failed, or not known to be: its kubelet does not report.
fn is_down(case: &Case<'_>, node: &str) -> bool {
    case.ctx.cluster.node(node, case.ended()).is_some_and(|node| node.ready != Some(true))
}

/// The client's address, with its Pod if it has one.
fn client_name(case: &Case<'_>) -> String {
    let ip = case.flow.orig.src.ip();
    let pod = case.ctx.cluster.pod_by_ip(ip, case.flow.first_seen);
    pod.map_or_else(|| ip.to_string(), |pod| format!("{ip} (Pod {})", pod.key))
}

/// A host that reported an error, by the name that the cluster has for its address.
fn host(case: &Case<'_>, ip: IpAddr) -> String {
    let cluster = case.ctx.cluster;
    if let Some(node) = cluster.node_by_ip(ip, case.decided) {
        return format!("node {} ({ip})", node.key);
    }
    match cluster.pod_by_ip(ip, case.decided) {
        Some(pod) => format!("Pod {} ({ip})", pod.key),
        None if case.ctx.node.is_own_address(ip) == Some(true) => format!("this node ({ip})"),
        None => ip.to_string(),
    }
}

/// The command that connects to the endpoint without the Service, from the client's Pod if it has one.
pub(super) fn connect_command(case: &Case<'_>, endpoint: SocketAddr) -> String {
    let (ip, port, flow) = (endpoint.ip(), endpoint.port(), case.flow);
    let is_dns = flow.orig.dst.port() == 53;
    let command = match flow.orig.protocol {
        Protocol::UDP if is_dns => format!("nslookup -port={port} kubernetes.default.svc {ip}"),
        Protocol::UDP => format!("nc -uvw 3 {ip} {port}"),
        Protocol::SCTP => format!("ncat --sctp -vw 3 {ip} {port}"),
        _ => format!("nc -zvw 3 {ip} {port}"),
    };
    match case.ctx.cluster.pod_by_ip(flow.orig.src.ip(), flow.first_seen) {
        Some(pod) if !pod.host_network => {
            format!("kubectl -n {} exec {} -- {command}", word(&pod.key.namespace), word(&pod.key.name))
        }
        _ => command,
    }
}

/// Whether all that is known is that the packet's TTL ran out, here or on the way.
fn is_expired(case: &Case<'_>) -> bool {
    case.trouble().is_some_and(|trouble| {
        let mut errors = trouble.icmp_errors.iter().filter(|error| error.about_request).peekable();
        let mut drops = trouble.drops.iter().filter(|drop| drop.stage != Stage::Reply);
        // The reason of `ip_forward` and `ip6_forward`, where the kernel gives one.
        let is_of_forwarding = |drop: &Dropped| drop.reason.is_none() || drop.is("IP_INHDR");
        errors.peek().is_some()
            && errors.all(|error| &*error.kind == "TIME_EXCEEDED")
            && drops.all(is_of_forwarding)
    })
}

/// Names the MTU as a candidate (C33), unless the size of what was lost excludes it.
fn with_size(case: &Case<'_>, finding: Finding) -> Finding {
    let ends = [(true, &case.flow.client), (false, &case.flow.server)].into_iter();
    let mut ends = ends.filter_map(|(is_client, end)| Some((is_client, end.stuck()?))).peekable();
    let (seen, unseen) = if ends.peek().is_none() {
        let seen = "small packets arrived: lost full-size packets indicate the MTU (C33)";
        (seen.to_owned(), "the size of what was lost")
    } else {
        let candidate = ends.find(|(is_client, stuck)| is_first_large(stuck, *is_client));
        let Some((_, stuck)) = candidate else { return finding };
        let seen = format!(
            "the first segment of {} bytes was lost: the MTU of a link may be smaller (C33)",
            stuck.bytes
        );
        (seen, "whether a small segment would pass")
    };
    let finding = finding
        .against(EvidenceType::Kernel, None, seen)
        .unobserved(format_args!("{unseen}: `ping -M do -s 1422` from the client decides"))
        .related(&[Class::C33]);
    let mtus: Vec<String> =
        case.ctx.node.mtus.iter().take(MAX_LINKS).map(|(name, mtu)| format!("{name} {mtu}")).collect();
    if mtus.is_empty() {
        return finding;
    }
    finding.node(
        case.ctx.node.read_at(),
        format_args!("MTUs of this node's interfaces, in bytes: {}", mtus.join(", ")),
    )
}

/// Whether only a close got no answer, and the event of the entry's end may be one of those that were lost: then an idle
/// connection that outlived its entry (N5) looks the same.
fn only_its_close_failed(case: &Case<'_>) -> bool {
    let flow = case.flow;
    let retransmitted = |end: &&SocketEnd| end.retransmits().is_seen();
    case.outcome == Outcome::Silent
        && flow.lost > 0
        && flow.deleted.is_none()
        && [&flow.client, &flow.server]
            .into_iter()
            .filter(retransmitted)
            .all(SocketEnd::retransmitted_only_its_end)
}

/// Whether an event shows the loss of a packet. Otherwise the lost event of a drop, an ICMP error or an invalid packet
/// would have named another cause.
fn is_loss_shown(case: &Case<'_>) -> bool {
    case.trouble().is_some_and(|trouble| {
        let dropped = trouble.drops.iter().any(|drop| drop.stage != Stage::Reply);
        dropped || trouble.icmp_errors.iter().any(|error| error.about_request)
    })
}

/// C30 on the path: another host's rule rejected it.
/// Mechanism: a firewall or a policy on the endpoint's node or on the path answers with ICMP: "administratively prohibited",
/// or, by default, port unreachable (`REJECT` of iptables, `reject` of nftables).
/// For: the ICMP error and its sender. A kernel sends "prohibited" only for a rule, and answers a SYN to a closed port by a
/// RST. Against: that rule is unknown here; of a datagram, another host may speak for the endpoint's closed port.
pub(super) fn prohibited_there(case: &Case<'_>) -> Option<Finding> {
    // This node's IPVS answers from the VIP.
    let reported = refused_there(case).filter(|_| !case.is_refused_by_vip())?;
    let is_of_rule = reported.meaning == IcmpMeaning::Prohibited || case.flow.is_tcp();
    let who = reported.from.map_or_else(|| "a host on the way".to_owned(), |ip| host(case, ip));
    let to = match case.endpoint {
        Some(_) => format!("{} of {}", case.endpoint_name(), case.name()),
        None => case.name().to_string(),
    };
    let finding = case
        .finding(Class::C30, format_args!("a rule of {who} refuses packets to {to}"))
        .confidence(if is_of_rule && case.endpoint.is_some() { Confidence::High } else { Confidence::Medium })
        .unobserved("which rule it is: it is on another host")
        .now(&[action::READ_OTHER_FIREWALL]);
    Some(match (case.endpoint, is_of_rule) {
        (None, _) => finding
            .unobserved("whether kube-proxy's rules refuse there: then that node knows no endpoint (C4, C20)")
            .related(&[Class::C4, Class::C20]),
        (Some(_), false) => finding
            .unobserved(
                "whether the endpoint's own host answered for a closed port (C28): a trace there shows it",
            )
            .related(&[Class::C28]),
        (Some(_), true) => finding,
    })
}

/// The ICMP error by which another host than the endpoint refuses.
pub(super) fn refused_there<'a>(case: &Case<'a>) -> Option<&'a IcmpError> {
    let is_refusal = |error: &&IcmpError| match (error.meaning, case.outcome) {
        (IcmpMeaning::Prohibited, Outcome::Unreachable) => true,
        (IcmpMeaning::NothingListens, Outcome::Unreachable) => case.flow.is_tcp(),
        (IcmpMeaning::NothingListens, Outcome::Refused) => {
            error.from.is_some_and(|from| Some(from) != case.endpoint.map(|endpoint| endpoint.ip()))
        }
        _ => false,
    };
    case.trouble()?.icmp_errors.iter().filter(|error| error.about_request).find(is_refusal)
}
