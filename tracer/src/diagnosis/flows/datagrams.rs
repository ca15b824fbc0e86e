//! Flows without socket events: whether silence is a fault (C29), or normal for a one-way sender (N20).

use std::time::Duration;

use super::{Case, Finding, ipvs, text::length};
use crate::{
    class::{Class, Confidence},
    cluster::Membership,
    flow::{Answer, Outcome},
    net::Protocol,
    sighting::Hook,
};

/// A client has given up after this time: a resolver's timeout (resolv.conf(5)); an SCTP INIT is retransmitted after 3
/// s (RFC 9260).
const PATIENCE: Duration = Duration::from_secs(5);

/// Ports whose protocols answer every request: DNS, Kerberos, NTP, HTTP/3, STUN, SIP. Those of SNMP and RADIUS discard
/// requests of unknown clients in silence (RFC 3416, RFC 2865).
const ANSWERING_PORTS: [u16; 7] = [53, 88, 123, 443, 853, 3478, 5060];

/// The time without an expected answer. A server always accepts or refuses an association. A datagram's answer is
/// expected if this Service answered others, or if its port's protocol always answers.
pub(super) fn unanswered_for(case: &Case<'_>) -> Option<Duration> {
    if case.flow.is_tcp() || case.outcome != Outcome::Pending {
        return None;
    }
    let Answer::NotSeen { until } = case.flow.answer() else { return None };
    let waited = until.since(case.flow.first_seen);
    let expected = case.flow.orig.protocol == Protocol::SCTP
        || ANSWERING_PORTS.contains(&case.vip.port.port)
        || case.ctx.translations.answers(case.vip.addr, case.vip.port.protocol);
    (expected && waited >= PATIENCE).then_some(waited)
}

/// N20: sent, and the rest is unknown.
/// Mechanism: only the first packet of a datagram flow passes a hook; its conntrack entry shows an answer.
/// For: the entry was read, or ended, without a reply. Against: statsd, syslog and similar servers never answer: it is
/// neither a fault nor healthy.
pub(super) fn sent(case: &Case<'_>) -> Finding {
    let to = match case.endpoint {
        Some(_) => format!("{} was sent to {}", case.name(), case.endpoint_name()),
        None => format!("a datagram was sent to {}", case.name()),
    };
    let answer = case.flow.answer();
    let what = match answer {
        Answer::NotSeen { until } => {
            format!("there was no answer {} later", length(until.since(case.flow.first_seen)))
        }
        Answer::Seen | Answer::Unknown => "an answer was not observed".to_owned(),
    };
    let mut finding = case
        .finding(Class::N20, format_args!("{to}; {what}"))
        .confidence(Confidence::Low)
        .related(&[Class::C29])
        .unobserved("whether an answer is due: senders that expect none look the same");
    if answer == Answer::Unknown {
        finding = finding.unobserved(if ipvs::is_untracked(case) {
            "whether there was an answer: IPVS does not track in conntrack here (vs/conntrack=0)"
        } else if case.has_hook(Hook::EntryReread) {
            "whether there was an answer: the conntrack entry was gone before it could be read again"
        } else {
            "whether there was an answer: this trace cannot read the conntrack entry again"
        });
    }
    if matches!(case.membership, Some(Membership::Unknown | Membership::NeverSeen { .. })) {
        finding = finding.unobserved("whether the endpoint was listed at that time");
    }
    finding
}
