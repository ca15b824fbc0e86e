//! Healthy flows, and look-alikes of faults: client aborts (N4), terminating endpoints (N8).

use std::time::Duration;

use super::{
    Case, Finding, datagrams, foreign_rules,
    iptables_sync::answered_elsewhere,
    ipvs, sidecar, stale_endpoints,
    text::{length, sentence},
};
use crate::{
    class::{Class, Confidence, Severity},
    cluster::{Membership, Via},
    flow::{Flow, Outcome, ResetBy},
    sighting::Hook,
    verdict::EvidenceType,
};

/// The flow is healthy, or one of its ends broke it. `None` if the flow failed and nothing here explains it.
pub(super) fn judge(case: &Case<'_>) -> Option<Finding> {
    if is_own_service(case) {
        return Some(own_service(case));
    }
    let is_reset = matches!(case.outcome, Outcome::Reset(ResetBy::Endpoint | ResetBy::Unknown));
    let by_proxy = if is_reset { sidecar::failed(case) } else { sidecar::answered(case) };
    if by_proxy.is_some() {
        return by_proxy;
    }
    let finding = match case.outcome {
        Outcome::Pending if !case.flow.is_tcp() => datagrams::sent(case),
        Outcome::Closed | Outcome::Established | Outcome::Pending => healthy(case),
        Outcome::Reset(ResetBy::Client | ResetBy::Endpoint) if keepalive_timeout(case).is_some() => {
            idle(case)
        }
        Outcome::Reset(ResetBy::Client) if lost_a_race(case.flow) => losing_attempt(case),
        Outcome::Reset(ResetBy::Client) => {
            client_abort(case, "the client ended an answered connection with a RST")
        }
        Outcome::Abandoned if case.decision.is_some() && !case.flow.partial => {
            client_abort(case, "the connect ended within a moment, before an answer came")
                .unobserved("whether the client gave up or an ICMP error from another host ended it")
                // Without its events, a refusal looks the same (C20, C28).
                .if_nothing_was_lost()
        }
        // The dataplane carried it to the endpoint and back; only the application knows the meaning of the RST.
        Outcome::Reset(by) => {
            let reset =
                case.flow.client.reset_received().or(case.flow.server.reset_sent()).map(|reset| reset.time);
            let who = if by == ResetBy::Endpoint { "the endpoint" } else { "an end that was not observed" };
            let mut finding = healthy(case).against(
                EvidenceType::Kernel,
                reset,
                format_args!(
                    "after it was answered the connection was reset by {who}: check the application there"
                ),
            );
            if let Some(left) = stale_endpoints::reset_after_leaving(case) {
                finding = finding.api(
                    Some(left),
                    format_args!(
                        "{} left the endpoints of {}, and its Pod runs on",
                        case.endpoint_name(),
                        case.name()
                    ),
                );
            }
            if by == ResetBy::Unknown && !sees_stack_resets(case) {
                // This node's own stack, or the client's, may have sent it (C13, C15, C18).
                finding.at_most(Confidence::Medium);
                finding.note_unobserved("who sent the RST: this trace has no hook at a stack's own");
            }
            if case.flow.partial {
                finding.at_most(Confidence::Medium);
                finding.note_unobserved(
                    "the connection's beginning: one that conntrack sent to another endpoint mid-stream looks the same (C19)",
                );
            }
            finding
        }
        _ => return None,
    };
    Some(finding)
}

/// N5; N9 if the endpoint has left since.
/// Mechanism: the server closed an idle connection, or ended, and its FIN left the client's socket in `CLOSE_WAIT`, where a pool
/// keeps it until it next looks at it. What the client then sends, its own close or a request, meets a socket that is gone, an
/// entry that timed out, or a host that is gone: a RST, or no answer.
/// For: `CLOSE_WAIT` or `LAST_ACK`, which only the server's FIN leads to, in everything that failed.
/// Against: a RST of the client itself (N4); a choice that was wrong from the beginning (C6); what was repeated before the FIN was
/// lost before; a server that closes only its sending side, and goes on reading.
pub(super) fn outlived_endpoint(case: &Case<'_>) -> Option<Finding> {
    if case.is_own_abort() || !case.outlived_endpoint() || is_wrongly_chosen(case) {
        return None;
    }
    if let Some(finding) = stale_endpoints::removed_meanwhile(case) {
        return Some(finding);
    }
    let what = match case.outcome {
        Outcome::Silent if case.flow.client.retransmitted_only_its_end() => {
            "the client's own close had no answer"
        }
        Outcome::Silent => "what the client sent afterwards had no answer",
        _ => "what the client sent afterwards was reset",
    };
    let finding = case
        .finding(Class::N5, format_args!("the endpoint had closed its connection to {}: {what}", case.name()))
        .severity(Severity::Low)
        .related(&[Class::N9]);
    Some(if case.flow.server.closed.is_some() {
        finding.confidence(Confidence::High)
    } else {
        finding
            .confidence(Confidence::Medium)
            .unobserved("whether the endpoint had closed only its sending side, and was to read on")
    })
}

/// Whether another rule names the choice of the endpoint as a fault.
fn is_wrongly_chosen(case: &Case<'_>) -> bool {
    foreign_rules::chose(case).is_some()
        || ipvs::pinned(case).is_some()
        || stale_endpoints::stale(case).is_some()
}

/// Whether this node has the cluster IP as its own address and exempts it from conntrack, as `NodeLocal DNSCache` does with
/// the address of kube-dns on its dummy interface (cluster/addons/dns/nodelocaldns: NOTRACK in the raw table). In ipvs
/// mode kube-ipvs0 has every cluster IP.
fn is_own_service(case: &Case<'_>) -> bool {
    let node = case.ctx.node;
    case.vip.via == Via::ClusterIp
        && case.flow.decisions.is_empty()
        && case.has_hook(Hook::Confirm)
        && (!case.flow.partial || case.flow.client.established.is_some())
        && !case.is_ipvs()
        && node.mode.is_some()
        && node.is_own_address(case.vip.addr.ip()) == Some(true)
}

/// N11; unknown if the connection failed.
/// Mechanism: a program on this node serves the Service's address itself, and a rule exempts it from conntrack: no NAT, no
/// endpoint.
/// For: the address is this node's own, and the flow left no conntrack entry.
/// Against: nothing in this trace shows the program's own requests to the endpoints.
fn own_service(case: &Case<'_>) -> Finding {
    let address = case.vip.addr.ip();
    let by = format!("this node has {address} as its own address");
    if case.failed() {
        return case.finding(
            Class::Unknown,
            format_args!("{} is served on this node itself (NodeLocal DNSCache does so), and that failed", case.name()),
        )
        .confidence(Confidence::Low)
        .node(case.ctx.node.read_at(), by)
        .unobserved("why: the log of the program that listens there, `kubectl -n kube-system logs -l k8s-app=node-local-dns`");
    }
    case.finding(
        Class::N11,
        format_args!(
            "{} is served on this node itself, without NAT: NodeLocal DNSCache does so",
            case.name()
        ),
    )
    .confidence(Confidence::Medium)
    .node(case.ctx.node.read_at(), by)
    .unobserved("which endpoint the program on this node asks")
}

fn healthy(case: &Case<'_>) -> Finding {
    let endpoint = case.endpoint_name();
    let pending = case.outcome == Outcome::Pending;
    let conditions = case.member().map(|member| member.conditions);
    let terminating = conditions.is_some_and(|it| !it.ready && it.serving)
        && case.usable().is_some_and(|usable| usable.terminating);
    let mut finding = if terminating {
        case.finding(
            Class::N8,
            format_args!("{} has no ready endpoint; {endpoint} serves while it terminates", case.name()),
        )
    } else {
        let name = case.name();
        let detail = match (case.endpoint, pending) {
            (Some(_), false) => sentence(format_args!("{name} was served by {endpoint}")),
            (Some(_), true) => {
                sentence(format_args!("{name} was sent to {endpoint}, and no failure was observed"))
            }
            (None, false) => format!("{name} answered; the endpoint was not observed"),
            (None, true) => format!("no failure of a connection to {name} was observed"),
        };
        case.finding(Class::Ok, detail)
    };
    let is_cut = case.flow.was_cut_off();
    if is_cut {
        finding = finding.unobserved(
            "how the connection ended: a socket closed at once, as by a RST, and none was observed",
        );
    }
    finding = finding.confidence(match (case.endpoint, pending) {
        (Some(_), false) if is_cut => Confidence::Medium,
        (Some(_), false) => Confidence::High,
        (None, false) => Confidence::Medium,
        (_, true) => Confidence::Low,
    });
    if pending {
        finding = finding.unobserved(if case.has_hook(Hook::SockEstablished) {
            "the answer: neither end's socket was observed on this node"
        } else {
            "the answer: this trace does not follow socket states"
        });
    }
    if matches!(case.membership, Some(Membership::Unknown | Membership::NeverSeen { .. })) {
        finding = finding.unobserved("whether the endpoint was listed at that time");
    }
    if let Some(Membership::Left { at, .. }) = &case.membership {
        finding = finding.against(
            EvidenceType::Api,
            Some(*at),
            format_args!("the endpoint had left {} before: within the grace", length(case.age(*at))),
        );
    }
    if let Some(what) = answered_elsewhere(case) {
        finding = finding.against(EvidenceType::Kernel, None, what);
    }
    if let Some((time, what)) = ipvs::lost_packet(case) {
        finding = finding.against(EvidenceType::Kernel, Some(time), what).related(&[Class::C14]);
    }
    if let Some(what) = ipvs::endpoint_unseen(case) {
        finding = finding.unobserved(what);
    }
    let repeats = case.flow.client.syn_retransmits();
    if repeats.is_seen() {
        finding = finding.against(
            EvidenceType::Kernel,
            Some(repeats.first),
            format_args!(
                "the client had to retransmit its SYN: the connection began {} late",
                length(case.ended().min(repeats.last).since(case.flow.first_seen))
            ),
        );
    }
    finding
}

/// Whether a RST that a stack of this node sends without a socket is observed.
fn sees_stack_resets(case: &Case<'_>) -> bool {
    let of_family = if case.flow.orig.dst.is_ipv4() { Hook::TcpV4SendReset } else { Hook::TcpV6SendReset };
    case.has_hook(of_family) && case.has_hook(Hook::TcpSendReset)
}

/// The kernel's name for a connection given up because keepalive probes were not answered: since 6.12 (commit
/// 0a399892a596, "tcp: rstreason: introduce `SK_RST_REASON_TCP_KEEPALIVE_TIMEOUT` for active reset"). Older kernels give
/// no reason for a RST that a socket sends of its own: the flow is N4.
const KEEPALIVE: &str = "TCP_KEEPALIVE_TIMEOUT";

/// The end that gave up an idle connection.
fn keepalive_timeout(case: &Case<'_>) -> Option<&'static str> {
    let gave_up = |end: &crate::flow::SocketEnd| {
        end.reset_sent().is_some_and(|reset| reset.reason.as_deref() == Some(KEEPALIVE))
    };
    if gave_up(&case.flow.client) { Some("client") } else { gave_up(&case.flow.server).then_some("endpoint") }
}

/// N5.
/// Mechanism: a connection was idle, its keepalive probes were not answered, and the end that sent them gave up.
/// For: the kernel's reason for the RST. Against: the RST does not show why there was no answer (a node that died, an
/// entry that timed out on the path).
fn idle(case: &Case<'_>) -> Finding {
    let who = keepalive_timeout(case).unwrap_or("client");
    case.finding(
        Class::N5,
        format_args!(
            "the {who} gave up an idle connection to {}: its keepalive probes were not answered",
            case.name()
        ),
    )
    .severity(Severity::Low)
    .confidence(Confidence::High)
    .unobserved("why the other end no longer answered")
}

/// How soon a client that tries several addresses drops the losers (RFC 8305 starts the next after 250 ms).
const RACE: Duration = Duration::from_millis(300);

/// Whether the client reset a connection at once, before any byte was exchanged.
fn lost_a_race(flow: &Flow) -> bool {
    let end = &flow.client;
    // An acknowledged SYN counts as a byte.
    let wordless = end.bytes_received == 0 && end.bytes_acked <= 1;
    let life = end.closed.map(|closed| closed.time.since(flow.first_seen));
    !flow.partial && wordless && end.established.is_some() && life.is_some_and(|life| life <= RACE)
}

/// N17.
fn losing_attempt(case: &Case<'_>) -> Finding {
    case.finding(
        Class::N17,
        format_args!("the client reset its connection to {} at once, before it exchanged a byte", case.name()),
    )
    .confidence(Confidence::Medium)
    .unobserved("the reason: clients that try several addresses at once drop the losers like this, and port checks end like this")
    .related(&[Class::N2])
}

/// N4.
fn client_abort(case: &Case<'_>, what: &str) -> Finding {
    let reason = case.flow.client.reset_sent().and_then(|reset| reset.reason.as_deref());
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let finding = case.finding(Class::N4, format_args!("{what}{reason}"));
    let nameless = reason.is_empty() && case.flow.client.reset_sent().is_some();
    let finding = if nameless {
        finding
            .unobserved(
                "the reason of the RST, which kernels give since 6.12: keepalive may have given up (N5)",
            )
            .related(&[Class::N5])
    } else {
        finding
    };
    finding.confidence(if case.outcome == Outcome::Abandoned { Confidence::Low } else { Confidence::High })
}
