//! The kernel's observed actions on a flow, in words. The record sorts them by time, with the rule's own evidence.

use std::{
    fmt::{self, Display},
    net::SocketAddr,
};

use super::text::{counted, length, phrase, sentence, times};
use crate::{
    flow::{
        Decision, Dropped, End, Flow, IcmpError, IcmpMeaning, Ipvs, Occurrences, Refusal, RefusalKind,
        SocketEnd, Stage, Trouble,
    },
    sighting::{Status, TcpState},
    time::Timestamp,
    verdict::{Evidence, EvidenceType, Text},
};

/// A connection that was served and ended has six, and one or two of a rule follow.
const USUAL_EVENTS: usize = 8;

/// The events so far, each kind in its place.
struct Events<'a> {
    flow: &'a Flow,
    /// NAT chose several endpoints for it: an event names the one that it belongs to.
    has_attempts: bool,
    said: Vec<Evidence>,
}

pub(super) fn kernel_evidence(flow: &Flow, decision: Option<&Decision>) -> Vec<Evidence> {
    // Without a decision of this namespace there is nothing to compare the others with.
    let attempts = || decision.into_iter().flat_map(|decision| flow.attempts(Some(decision.netns)));
    let has_attempts = flow.decisions.len() > 1 && attempts().nth(1).is_some();
    let mut events = Events { flow, has_attempts, said: Vec::with_capacity(USUAL_EVENTS) };
    if has_attempts {
        attempts().for_each(|attempt| events.say(attempt.time, decided(attempt)));
    } else if let Some(decision) = decision {
        events.say(decision.time, decided(decision));
    }
    if let Some(ipvs) = &flow.ipvs {
        events.by_ipvs(ipvs);
    }
    events.of_end("client", &flow.client);
    events.of_end("endpoint", &flow.server);
    if let Some(trouble) = &flow.trouble {
        events.of_trouble(trouble);
    }
    events.of_entry();
    events.said
}

impl Events<'_> {
    fn say(&mut self, time: Timestamp, content: impl Into<Text>) {
        self.said.push(Evidence { r#type: EvidenceType::Kernel, time: Some(time), content: content.into() });
    }

    /// Where the packet was.
    fn way(&self, stage: Stage, endpoint: Option<SocketAddr>) -> impl Display + use<> {
        let endpoint = endpoint.filter(|_| self.has_attempts && stage != Stage::Reply);
        fmt::from_fn(move |f| match endpoint {
            Some(endpoint) => write!(f, "on the way to {endpoint}"),
            None => f.write_str(match stage {
                Stage::Before => "on the way to the Service address",
                Stage::After => "on the way to the endpoint",
                Stage::Reply => "on the way back",
            }),
        })
    }

    /// The events of IPVS's own functions. The endpoint is stated here only if no conntrack entry shows it.
    fn by_ipvs(&mut self, ipvs: &Ipvs) {
        if let Some(chosen) = &ipvs.chosen {
            let affinity = if chosen.first_of_client {
                "; a persistence template was created, which the client's next connections follow"
            } else {
                ""
            };
            let tracked = if self.flow.decision(None).is_some() {
                ""
            } else {
                "; it leaves no conntrack entry (vs/conntrack=0)"
            };
            self.say(
                chosen.time,
                phrase!(
                    "IPVS created an entry for {} with real server {} (ip_vs_conn_new){affinity}{tracked}",
                    chosen.tuple.dst,
                    chosen.destination
                ),
            );
        }
        if ipvs.unscheduled.is_seen() {
            self.say(
                ipvs.unscheduled.first,
                phrase!("IPVS chose no real server {} (ip_vs_schedule)", repeated(ipvs.unscheduled)),
            );
        }
        if ipvs.expired.is_seen() {
            let what = if ipvs.reused { "SYN" } else { "packet" };
            self.say(
                ipvs.expired.first,
                phrase!(
                    "IPVS deleted its old entry and dropped the {what} that used it {} (ip_vs_conn_expire_now)",
                    repeated(ipvs.expired)
                ),
            );
        }
    }

    fn of_end(&mut self, who: &'static str, end: &SocketEnd) {
        let is_client = who == "client";
        if let Some(time) = end.established {
            let what = if is_client {
                "the client's socket was established"
            } else {
                "the endpoint's socket was established"
            };
            self.say(time, what);
        }
        let repeats = end.syn_retransmits();
        if repeats.is_seen() {
            let what = if is_client { "SYN" } else { "SYN-ACK" };
            self.say(repeats.first, phrase!("the {who} retransmitted its {what} {}", repeated(repeats)));
        }
        let repeats = end.retransmits();
        if repeats.is_seen() {
            let stuck = fmt::from_fn(|f| match end.stuck() {
                Some(stuck) => write!(
                    f,
                    "; the last segment has {}, after {} acknowledged",
                    counted(u64::from(stuck.bytes), "byte"),
                    counted(stuck.acked, "byte")
                ),
                None => Ok(()),
            });
            self.say(repeats.first, phrase!("the {who} retransmitted data {}{stuck}", repeated(repeats)));
        }
        if let Some(reset) = end.reset_sent() {
            let reason = in_brackets(reset.reason.as_deref());
            let what = phrase!("the {who}'s socket sent a RST in state {}{reason}", state(reset.state));
            self.say(reset.time, what);
        }
        if let Some(reset) = end.reset_received() {
            self.say(
                reset.time,
                phrase!("the {who}'s socket received a RST in state {}", state(reset.state)),
            );
        }
        if let Some(closed) = end.closed {
            self.say(closed.time, ending(who, end, closed.from));
        }
    }

    fn of_trouble(&mut self, trouble: &Trouble) {
        if trouble.table_full.is_seen() {
            self.say(
                trouble.table_full.first,
                phrase!("no conntrack entry could be created: dropped {}", repeated(trouble.table_full)),
            );
        }
        if trouble.clashes.is_seen() {
            self.say(trouble.clashes.first, "two entries raced for one tuple (nf_ct_resolve_clash)");
        }
        trouble.drops.iter().for_each(|drop| self.of_drop(drop));
        if let Some(refusal) = &trouble.refusal {
            self.of_refusal(refusal);
        }
        self.of_resets(trouble);
        for invalid in &trouble.invalid {
            let which = if invalid.reply { "an answer of the endpoint" } else { "a packet of the client" };
            let why = after(": ", invalid.why.as_deref());
            self.say(
                invalid.occurrences.first,
                phrase!(
                    "conntrack called {which} invalid {}{why}, in netns {}",
                    repeated(invalid.occurrences),
                    invalid.netns.0
                ),
            );
        }
        trouble.icmp_errors.iter().for_each(|error| self.of_icmp_error(error));
        if let Some(picked_up) = &trouble.picked_up {
            let to = fmt::from_fn(|f| match picked_up.ct.endpoint() {
                Some(endpoint) => write!(f, "sent to {endpoint}"),
                None => f.write_str("not translated"),
            });
            self.say(
                picked_up.time,
                phrase!("its packets found no conntrack entry; a new one was created and {to}"),
            );
        }
        if let Some(killed) = trouble.killed {
            // A RST ends only an entry without an answer; a changed interface ends any (nf_nat_inet_fn).
            let what = if killed.status.has(Status::SEEN_REPLY) {
                "the kernel ended the answered conntrack entry (nf_ct_kill_acct)"
            } else {
                "the kernel ended the conntrack entry before an answer (nf_ct_kill_acct), as it does for a RST"
            };
            self.say(killed.time, what);
        }
    }

    fn of_drop(&mut self, drop: &Dropped) {
        let reason = drop.reason.as_deref().unwrap_or("no reason given by this kernel");
        let place = after(", in ", drop.site);
        let entry = if drop.unconfirmed { ", before its entry was confirmed" } else { "" };
        let way = self.way(drop.stage, drop.endpoint);
        self.say(
            drop.occurrences.first,
            phrase!(
                "dropped {} {way}{entry}: {reason}{place}, in netns {}",
                repeated(drop.occurrences),
                drop.netns.0
            ),
        );
    }

    fn of_refusal(&mut self, refusal: &Refusal) {
        let what = match refusal.kind {
            RefusalKind::NoDestination => phrase!(
                "IPVS found no real server {} and refused with ICMP port unreachable (ip_vs_leave), in netns {}",
                repeated(refusal.occurrences),
                refusal.netns.0
            ),
            RefusalKind::Unreachable { code } => {
                let icmp = icmp(code, self.flow.orig.dst.is_ipv4());
                self.by_rule(refusal, format_args!("ICMP {icmp}"))
            }
            RefusalKind::Reset => self.by_rule(refusal, format_args!("a forged RST")),
        };
        self.say(refusal.occurrences.first, what);
    }

    fn by_rule(&self, refusal: &Refusal, how: fmt::Arguments<'_>) -> String {
        let hook = match refusal.nf_hook {
            Some(1) => " at LOCAL_IN",
            Some(2) => " at FORWARD",
            Some(3) => " at LOCAL_OUT",
            _ => "",
        };
        phrase!(
            "a rule refused it {} with {how}{hook}, {}, in netns {}",
            times(refusal.occurrences.count),
            self.way(refusal.stage, refusal.endpoint),
            refusal.netns.0
        )
    }

    /// RSTs without a socket.
    fn of_resets(&mut self, trouble: &Trouble) {
        for reset in &trouble.stack_resets {
            let by = match reset.by {
                End::Client => "the client's stack",
                End::Vip => "the stack that received the untranslated packet",
                End::Endpoint => "the endpoint's stack",
            };
            let what =
                if reset.to_syn { "the SYN" } else { "a packet of a connection that it does not have" };
            let reason = in_brackets(reset.reason.as_deref());
            let from = if reset.untranslated { " that came from the endpoint's own address" } else { "" };
            self.say(
                reset.occurrences.first,
                phrase!("{by} answered {what}{from} with a RST{reason}, in netns {}", reset.netns.0),
            );
        }
        for reset in &trouble.transit_resets {
            let by = if reset.by == End::Client { "the client's" } else { "the endpoint's" };
            let what = if reset.to_syn { ", in answer to the SYN" } else { "" };
            self.say(
                reset.occurrences.first,
                phrase!(
                    "a RST from {by} side passed {}{what}, in netns {}",
                    repeated(reset.occurrences),
                    reset.netns.0
                ),
            );
        }
    }

    fn of_icmp_error(&mut self, error: &IcmpError) {
        let kind = if error.meaning == IcmpMeaning::TooBig {
            Text::Borrowed("fragmentation needed")
        } else if &*error.kind == "DEST_UNREACH" {
            icmp(error.code, self.flow.orig.dst.is_ipv4())
        } else {
            Text::Owned(error.kind.as_ref().to_owned())
        };
        let from = after(" from ", error.from);
        let has_attempts = self.has_attempts;
        let about = fmt::from_fn(|f| match error.endpoint {
            _ if !error.about_request => f.write_str("an answer"),
            Some(endpoint) if has_attempts => write!(f, "a packet to {endpoint}"),
            Some(_) => f.write_str("a packet to the endpoint"),
            None => f.write_str("a packet to the Service address"),
        });
        self.say(error.occurrences.first, phrase!("ICMP {kind}{from}, about {about}"));
    }

    /// The end of the conntrack entry, and its last state.
    fn of_entry(&mut self) {
        if let Some(deleted) = self.flow.deleted {
            let what = match (deleted.status.has(Status::SEEN_REPLY), deleted.deleted_by) {
                (true, None) => Text::Borrowed("the conntrack entry ended after a reply (nf_ct_delete)"),
                (false, None) => Text::Borrowed("the conntrack entry ended without a reply (nf_ct_delete)"),
                (replied, Some(port)) => {
                    let how = if replied { "after" } else { "without" };
                    let what = "the conntrack entry ended";
                    phrase!("{what} {how} a reply (nf_ct_delete), by netlink port {port}").into()
                }
            };
            self.say(deleted.time, what);
        }
        if let Some(reread) = self.flow.reread {
            let replied = if reread.status.has(Status::SEEN_REPLY) { "had seen" } else { "had not seen" };
            let offload =
                if reread.status.has(Status::OFFLOAD) { ", and was offloaded to a flowtable" } else { "" };
            self.say(reread.time, phrase!("the conntrack entry, read again, {replied} a reply{offload}"));
        }
    }
}

fn decided(decision: &Decision) -> String {
    let ct = &decision.ct;
    let (asked, endpoint) = (ct.orig.dst, ct.endpoint().map(|_| ct.reply.src));
    let what = fmt::from_fn(|f| match endpoint {
        Some(endpoint) if ct.by_ipvs() => write!(
            f,
            "IPVS chose endpoint {endpoint} for {asked} (the reply tuple changed without the DNAT bit)"
        ),
        Some(endpoint) => write!(f, "NAT chose endpoint {endpoint} for {asked}"),
        None => write!(f, "{asked} was not translated: the reply tuple still names it"),
    });
    let source = fmt::from_fn(|f| {
        if endpoint.is_none() || !ct.masqueraded() {
            return Ok(());
        }
        let source = ct.reply.dst.ip();
        write!(f, ", source masqueraded as {source}: the endpoint sees that address, not the client's (N14)")
    });
    let entry = fmt::from_fn(|f| match (decision.confirmed, decision.attempts) {
        (Some(_), 1) => Ok(()),
        (Some(_), n) => write!(f, "; confirmed at entry {n}"),
        (None, _) if ct.status.has(Status::CONFIRMED) => f.write_str("; its confirmation was not observed"),
        (None, 1) => f.write_str("; the entry was never confirmed"),
        (None, n) => write!(f, "; {n} entries were created and none was confirmed"),
    });
    let midstream =
        if decision.midstream == Some(true) { "; created mid-stream, for a segment without SYN" } else { "" };
    sentence(format_args!("{what}{source}{entry}{midstream}"))
}

fn ending(who: &str, end: &SocketEnd, from: TcpState) -> String {
    if from == TcpState::SynSent {
        return phrase!("the {who}'s connect failed");
    }
    sentence(format_args!(
        "the {who}'s socket ended from {}: {} sent and acknowledged, {} received",
        state(from),
        counted(end.bytes_acked, "byte"),
        end.bytes_received
    ))
}

/// The value with this text before it, or nothing.
fn after(before: &'static str, value: Option<impl Display>) -> impl Display {
    fmt::from_fn(move |f| match &value {
        Some(value) => write!(f, "{before}{value}"),
        None => Ok(()),
    })
}

/// ` (reason)`, or nothing.
fn in_brackets(reason: Option<&str>) -> impl Display {
    fmt::from_fn(move |f| match reason {
        Some(reason) => write!(f, " ({reason})"),
        None => Ok(()),
    })
}

fn repeated(occurrences: Occurrences) -> impl Display {
    let Occurrences { count, first, last } = occurrences;
    fmt::from_fn(move |f| {
        write!(f, "{}", times(count))?;
        if count > 1 { write!(f, " within {}", length(last.since(first))) } else { Ok(()) }
    })
}

fn icmp(code: Option<u8>, ipv4: bool) -> Text {
    match code {
        None => Text::Borrowed("unreachable"),
        Some(code) => match if ipv4 { icmp4(code) } else { icmp6(code) } {
            Some(name) => Text::Borrowed(name),
            None => phrase!("unreachable, code {code}").into(),
        },
    }
}

/// RFC 4443, destination unreachable.
const fn icmp6(code: u8) -> Option<&'static str> {
    Some(match code {
        0 => "no route",
        1 => "administratively prohibited",
        3 => "address unreachable",
        4 => "port unreachable",
        _ => return None,
    })
}

const fn icmp4(code: u8) -> Option<&'static str> {
    Some(match code {
        0 => "network unreachable",
        1 => "host unreachable",
        3 => "port unreachable",
        9 | 10 | 13 => "administratively prohibited",
        _ => return None,
    })
}

fn state(state: TcpState) -> Text {
    Text::Borrowed(match state {
        TcpState::Established => "ESTABLISHED",
        TcpState::SynSent => "SYN_SENT",
        TcpState::SynRecv | TcpState::NewSynRecv => "SYN_RECV",
        TcpState::FinWait1 => "FIN_WAIT1",
        TcpState::FinWait2 => "FIN_WAIT2",
        TcpState::TimeWait => "TIME_WAIT",
        TcpState::Close => "CLOSE",
        TcpState::CloseWait => "CLOSE_WAIT",
        TcpState::LastAck => "LAST_ACK",
        TcpState::Listen => "LISTEN",
        TcpState::Closing => "CLOSING",
        TcpState::Other(number) => return phrase!("state {number}").into(),
    })
}
