//! The kernel's observed actions on a flow, in words and in chronological order.

use std::net::SocketAddr;

use super::text::{count, length, times};
use crate::{
    flow::{Decision, End, Flow, IcmpMeaning, Ipvs, Occurrences, RefusalKind, SocketEnd, Stage},
    sighting::{Status, TcpState},
    time::Timestamp,
    verdict::{Evidence, EvidenceType},
};

pub(super) fn kernel_evidence(flow: &Flow, decision: Option<&Decision>) -> Vec<Evidence> {
    let mut out = Vec::new();
    let mut say = |time: Timestamp, content: String| {
        out.push(Evidence { r#type: EvidenceType::Kernel, time: Some(time), content });
    };
    // Without a decision of this namespace there is nothing to compare the others with.
    let mut attempts: Vec<&Decision> =
        decision.iter().flat_map(|decision| flow.attempts(Some(decision.netns))).collect();
    if attempts.len() < 2 {
        attempts = decision.into_iter().collect();
    }
    for attempt in &attempts {
        say(attempt.time, decided(attempt));
    }
    let way = |stage: Stage, endpoint: Option<SocketAddr>| match endpoint {
        Some(endpoint) if attempts.len() > 1 && stage != Stage::Reply => format!("on the way to {endpoint}"),
        _ => on_the_way(stage).to_owned(),
    };
    if let Some(ipvs) = &flow.ipvs {
        by_ipvs(flow, ipvs, &mut say);
    }
    ends(flow, &mut say);
    if let Some(trouble) = &flow.trouble {
        if trouble.table_full.is_seen() {
            say(
                trouble.table_full.first,
                format!("no conntrack entry could be created: dropped {}", repeated(trouble.table_full)),
            );
        }
        if trouble.clashes.is_seen() {
            say(trouble.clashes.first, "two entries raced for one tuple (nf_ct_resolve_clash)".to_owned());
        }
        for drop in &trouble.drops {
            let reason = match (drop.reason.as_deref(), drop.site) {
                (reason, Some(site)) => {
                    format!("{}, in {site}", reason.unwrap_or("no reason given by this kernel"))
                }
                (Some(reason), None) => reason.to_owned(),
                (None, None) => "no reason given by this kernel".to_owned(),
            };
            let entry = if drop.unconfirmed { ", before its entry was confirmed" } else { "" };
            say(
                drop.occurrences.first,
                format!(
                    "dropped {} {}{entry}: {reason}, in netns {}",
                    repeated(drop.occurrences),
                    way(drop.stage, drop.endpoint),
                    drop.netns.0
                ),
            );
        }
        if let Some(refusal) = &trouble.refusal
            && refusal.kind == RefusalKind::NoDestination
        {
            say(
                refusal.occurrences.first,
                format!(
                    "IPVS found no real server {} and refused with ICMP port unreachable (ip_vs_leave), in netns {}",
                    repeated(refusal.occurrences),
                    refusal.netns.0
                ),
            );
        } else if let Some(refusal) = &trouble.refusal {
            let how = match refusal.kind {
                RefusalKind::Unreachable { code } => format!("ICMP {}", icmp(code, flow.orig.dst.is_ipv4())),
                RefusalKind::Reset => "a forged RST".to_owned(),
                RefusalKind::NoDestination => "ICMP port unreachable".to_owned(),
            };
            let hook = match refusal.nf_hook {
                Some(1) => " at LOCAL_IN",
                Some(2) => " at FORWARD",
                Some(3) => " at LOCAL_OUT",
                _ => "",
            };
            say(
                refusal.occurrences.first,
                format!(
                    "a rule refused it {} with {how}{hook}, {}, in netns {}",
                    times(refusal.occurrences.count),
                    way(refusal.stage, refusal.endpoint),
                    refusal.netns.0
                ),
            );
        }
        for reset in &trouble.stack_resets {
            let by = match reset.by {
                End::Client => "the client's stack",
                End::Vip => "the stack that received the untranslated packet",
                End::Endpoint => "the endpoint's stack",
            };
            let what =
                if reset.to_syn { "the SYN" } else { "a packet of a connection that it does not have" };
            let reason = reset.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            let from = if reset.untranslated { " that came from the endpoint's own address" } else { "" };
            say(
                reset.occurrences.first,
                format!("{by} answered {what}{from} with a RST{reason}, in netns {}", reset.netns.0),
            );
        }
        for reset in &trouble.transit_resets {
            let by = if reset.by == End::Client { "the client's" } else { "the endpoint's" };
            let what = if reset.to_syn { ", in answer to the SYN" } else { "" };
            say(
                reset.occurrences.first,
                format!(
                    "a RST from {by} side passed {}{what}, in netns {}",
                    repeated(reset.occurrences),
                    reset.netns.0
                ),
            );
        }
        for invalid in &trouble.invalid {
            let which = if invalid.reply { "an answer of the endpoint" } else { "a packet of the client" };
            let why = invalid.why.as_deref().map(|why| format!(": {why}")).unwrap_or_default();
            say(
                invalid.occurrences.first,
                format!(
                    "conntrack called {which} invalid {}{why}, in netns {}",
                    repeated(invalid.occurrences),
                    invalid.netns.0
                ),
            );
        }
        for error in &trouble.icmp_errors {
            let from = error.from.map(|ip| format!(" from {ip}")).unwrap_or_default();
            let about = match error.endpoint {
                _ if !error.about_request => "an answer".to_owned(),
                Some(endpoint) if attempts.len() > 1 => format!("a packet to {endpoint}"),
                Some(_) => "a packet to the endpoint".to_owned(),
                None => "a packet to the Service address".to_owned(),
            };
            let kind = if error.meaning == IcmpMeaning::TooBig {
                "fragmentation needed".to_owned()
            } else if &*error.kind == "DEST_UNREACH" {
                icmp(error.code, flow.orig.dst.is_ipv4())
            } else {
                error.kind.to_string()
            };
            say(error.occurrences.first, format!("ICMP {kind}{from}, about {about}"));
        }
        if let Some(picked_up) = trouble.picked_up {
            let to = picked_up
                .ct
                .endpoint()
                .map_or_else(|| "not translated".to_owned(), |endpoint| format!("sent to {endpoint}"));
            say(
                picked_up.time,
                format!("its packets found no conntrack entry; a new one was created and {to}"),
            );
        }
        if let Some(killed) = trouble.killed {
            // A RST ends only an entry without an answer; a changed interface ends any (nf_nat_inet_fn).
            let what = if killed.status.has(Status::SEEN_REPLY) {
                "the kernel ended the answered conntrack entry (nf_ct_kill_acct)"
            } else {
                "the kernel ended the conntrack entry before an answer (nf_ct_kill_acct), as it does for a RST"
            };
            say(killed.time, what.to_owned());
        }
    }
    if let Some(deleted) = flow.deleted {
        let replied = if deleted.status.has(Status::SEEN_REPLY) { "after" } else { "without" };
        let by = deleted.deleted_by.map(|port| format!(", by netlink port {port}")).unwrap_or_default();
        say(deleted.time, format!("the conntrack entry ended {replied} a reply (nf_ct_delete){by}"));
    }
    if let Some(reread) = flow.reread {
        let replied = if reread.status.has(Status::SEEN_REPLY) { "had seen" } else { "had not seen" };
        let offload =
            if reread.status.has(Status::OFFLOAD) { ", and was offloaded to a flowtable" } else { "" };
        say(reread.time, format!("the conntrack entry, read again, {replied} a reply{offload}"));
    }
    out.sort_by_key(|evidence| evidence.time);
    out
}

fn decided(decision: &Decision) -> String {
    let ct = &decision.ct;
    let what = match ct.endpoint() {
        Some(endpoint) if ct.by_ipvs() => {
            format!(
                "IPVS chose endpoint {endpoint} for {} (the reply tuple changed without the DNAT bit)",
                ct.orig.dst
            )
        }
        Some(endpoint) => format!("NAT chose endpoint {endpoint} for {}", ct.orig.dst),
        None => format!("{} was not translated: the reply tuple still names it", ct.orig.dst),
    };
    let source = if ct.masqueraded() && ct.endpoint().is_some() {
        format!(
            ", source masqueraded as {}: the endpoint sees that address, not the client's (N14)",
            ct.reply.dst.ip()
        )
    } else {
        String::new()
    };
    let entry = match (decision.confirmed, decision.attempts) {
        (Some(_), 1) => String::new(),
        (Some(_), n) => format!("; confirmed at entry {n}"),
        (None, 1) => "; the entry was never confirmed".to_owned(),
        (None, n) => format!("; {n} entries were created and none was confirmed"),
    };
    let midstream =
        if decision.midstream == Some(true) { "; created mid-stream, for a segment without SYN" } else { "" };
    format!("{what}{source}{entry}{midstream}")
}

/// The events of IPVS's own functions. The endpoint is stated here only if no conntrack entry shows it.
fn by_ipvs(flow: &Flow, ipvs: &Ipvs, say: &mut impl FnMut(Timestamp, String)) {
    if let Some(chosen) = &ipvs.chosen {
        let affinity = if chosen.first_of_client {
            "; a persistence template was created, which the client's next connections follow"
        } else {
            ""
        };
        let tracked = if flow.decision(None).is_some() {
            ""
        } else {
            "; it leaves no conntrack entry (vs/conntrack=0)"
        };
        say(
            chosen.time,
            format!(
                "IPVS created an entry for {} with real server {} (ip_vs_conn_new){affinity}{tracked}",
                chosen.tuple.dst, chosen.destination
            ),
        );
    }
    if ipvs.unscheduled.is_seen() {
        say(
            ipvs.unscheduled.first,
            format!("IPVS chose no real server {} (ip_vs_schedule)", repeated(ipvs.unscheduled)),
        );
    }
    if ipvs.expired.is_seen() {
        let what = if ipvs.reused { "SYN" } else { "packet" };
        say(
            ipvs.expired.first,
            format!(
                "IPVS deleted its old entry and dropped the {what} that used it {} (ip_vs_conn_expire_now)",
                repeated(ipvs.expired)
            ),
        );
    }
}

fn ends(flow: &Flow, say: &mut impl FnMut(Timestamp, String)) {
    for (who, end) in [("client", &flow.client), ("endpoint", &flow.server)] {
        if let Some(time) = end.established {
            say(time, format!("the {who}'s socket was established"));
        }
        let repeats = end.syn_retransmits();
        if repeats.is_seen() {
            let what = if who == "client" { "SYN" } else { "SYN-ACK" };
            say(repeats.first, format!("the {who} retransmitted its {what} {}", repeated(repeats)));
        }
        let repeats = end.retransmits();
        if repeats.is_seen() {
            let stuck = end.stuck().map(|stuck| {
                let bytes = count(u64::from(stuck.bytes), "byte");
                format!("; the last segment has {bytes}, after {} acknowledged", count(stuck.acked, "byte"))
            });
            let stuck = stuck.unwrap_or_default();
            say(repeats.first, format!("the {who} retransmitted data {}{stuck}", repeated(repeats)));
        }
        if let Some(reset) = end.reset_sent() {
            let reason = reset.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
            say(reset.time, format!("the {who}'s socket sent a RST in state {}{reason}", state(reset.state)));
        }
        if let Some(reset) = end.reset_received() {
            say(reset.time, format!("the {who}'s socket received a RST in state {}", state(reset.state)));
        }
        if let Some(closed) = end.closed {
            say(closed.time, ending(who, end, closed.from));
        }
    }
}

fn ending(who: &str, end: &SocketEnd, from: TcpState) -> String {
    if from == TcpState::SynSent {
        return format!("the {who}'s connect failed");
    }
    format!(
        "the {who}'s socket ended from {}: {} sent and acknowledged, {} received",
        state(from),
        count(end.bytes_acked, "byte"),
        end.bytes_received
    )
}

fn repeated(occurrences: Occurrences) -> String {
    if occurrences.count > 1 {
        format!("{} within {}", times(occurrences.count), length(occurrences.last.since(occurrences.first)))
    } else {
        times(occurrences.count)
    }
}

const fn on_the_way(stage: Stage) -> &'static str {
    match stage {
        Stage::Before => "on the way to the Service address",
        Stage::After => "on the way to the endpoint",
        Stage::Reply => "on the way back",
    }
}

fn icmp(code: Option<u8>, ipv4: bool) -> String {
    if ipv4 { icmp4(code) } else { icmp6(code) }
}

/// RFC 4443, destination unreachable.
fn icmp6(code: Option<u8>) -> String {
    match code {
        Some(0) => "no route".to_owned(),
        Some(1) => "administratively prohibited".to_owned(),
        Some(3) => "address unreachable".to_owned(),
        Some(4) => "port unreachable".to_owned(),
        Some(code) => format!("unreachable, code {code}"),
        None => "unreachable".to_owned(),
    }
}

fn icmp4(code: Option<u8>) -> String {
    match code {
        Some(0) => "network unreachable".to_owned(),
        Some(1) => "host unreachable".to_owned(),
        Some(3) => "port unreachable".to_owned(),
        Some(9 | 10 | 13) => "administratively prohibited".to_owned(),
        Some(code) => format!("unreachable, code {code}"),
        None => "unreachable".to_owned(),
    }
}

fn state(state: TcpState) -> String {
    match state {
        TcpState::Established => "ESTABLISHED".to_owned(),
        TcpState::SynSent => "SYN_SENT".to_owned(),
        TcpState::SynRecv | TcpState::NewSynRecv => "SYN_RECV".to_owned(),
        TcpState::FinWait1 => "FIN_WAIT1".to_owned(),
        TcpState::FinWait2 => "FIN_WAIT2".to_owned(),
        TcpState::TimeWait => "TIME_WAIT".to_owned(),
        TcpState::Close => "CLOSE".to_owned(),
        TcpState::CloseWait => "CLOSE_WAIT".to_owned(),
        TcpState::LastAck => "LAST_ACK".to_owned(),
        TcpState::Listen => "LISTEN".to_owned(),
        TcpState::Closing => "CLOSING".to_owned(),
        TcpState::Other(number) => format!("state {number}"),
    }
}
