//! The outcome of a flow's evidence.
//!
//! A function only of the evidence, so that it cannot depend on the order in which the evidence arrived. It states what
//! happened, never why.

use std::{net::SocketAddr, time::Duration};

use super::{End, Flow, IcmpMeaning, Occurrences, ResetEvent, SocketEnd, Stuck, fold::is_embryo};
use crate::{
    net::Protocol,
    sighting::{Status, TcpState},
    time::Timestamp,
};

/// The outcome of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Neither an answer nor a failure was observed.
    Pending,
    /// Answered and still open.
    Established,
    /// Answered and ended without a RST.
    Closed,
    /// Answered, then ended by a RST.
    Reset(ResetBy),
    /// Answered, then one end received nothing more: its retransmits backed off.
    Silent,
    /// A RST (for datagrams: "no socket") answered the first packet.
    Refused,
    /// A rule on the path rejected it with an ICMP error or a forged RST.
    Rejected,
    /// Its first packets were dropped.
    Dropped,
    /// The next hop could not be resolved, or there is no route.
    Unreachable,
    /// The SYN was not answered, although it was retransmitted or the client waited for a while.
    Stalled,
    /// The connect ended at once without an answer: the client gave up, or got an ICMP error from another host.
    Abandoned,
}

/// The sender of the RST that ended an answered flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResetBy {
    Client,
    Endpoint,
    /// A RST was received and no sender was observed.
    Unknown,
}

/// Whether the other end answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Seen,
    /// There was no answer so far.
    NotSeen {
        until: Timestamp,
    },
    /// No observation shows it.
    Unknown,
}

impl Outcome {
    /// Whether it is not over.
    pub const fn is_open(self) -> bool {
        matches!(self, Self::Pending | Self::Established)
    }

    /// Whether the client's connection or datagram succeeded and did not break.
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Established | Self::Closed)
    }
}

/// Drop reasons that mean "no route to the next hop", by the kernel's names.
const NO_WAY: [&str; 6] =
    ["NEIGH_FAILED", "NEIGH_DEAD", "NEIGH_CREATEFAIL", "NEIGH_QUEUEFULL", "IP_OUTNOROUTES", "IP_INNOROUTES"];

/// Reasons that release copies and leftovers: a bridge's flooded frame at another Pod, a closed socket's queue.
const NOISE: [&str; 4] = ["OTHERHOST", "QUEUE_PURGE", "SKB_CONSUMED", "CONSUMED"];

/// Reasons that lie in one packet or in one moment: its size, a queue, memory.
const PASSING: [&str; 9] = [
    "PKT_TOO_BIG",
    "SOCKET_RCVBUFF",
    "SOCKET_BACKLOG",
    "PROTO_MEM",
    "CPU_BACKLOG",
    "QDISC_DROP",
    "QDISC_BURST_DROP",
    "FULL_RING",
    "NOMEM",
];

/// A client that waits at most this long did not wait for the dataplane: an answer within a cluster takes milliseconds,
/// and happy eyeballs abort the loser within 250 ms (RFC 8305).
const PATIENCE: Duration = Duration::from_millis(300);

/// A SYN without an answer for this long was retransmitted at least once (RFC 6298).
const SYN_WAIT: Duration = Duration::from_secs(3);

/// Within this time an association's four-way handshake ends, or the server refuses it.
const HANDSHAKE: Duration = Duration::from_secs(1);

/// The longest interval between two repetitions (`TCP_RTO_MAX`).
pub(crate) const MAX_REPETITION: Duration = Duration::from_mins(2);

/// After this many doublings of the interval between data retransmits, an end counts as receiving nothing: four
/// retransmits, about 3 s from the first (initial timeout 200 ms).
const SILENT_BACKOFF: u32 = 2;

impl Flow {
    pub fn outcome(&self) -> Outcome {
        if !self.was_answered() {
            return self.opening_outcome();
        }
        self.failed_later().unwrap_or_else(|| self.answered_outcome())
    }

    /// Of a datagram flow that was answered: how a later datagram failed. No hook observes the answers after the first, but
    /// this one had none. Of drops, only a rule's counts: a full queue loses one datagram among many.
    fn failed_later(&self) -> Option<Outcome> {
        let trouble = self.trouble.as_ref()?;
        let answered = self.answer_read()?;
        let later = self.opening_outcome();
        // IPVS drops with the same reason.
        let by_rule = || {
            let of_request = |drop: &super::Dropped| drop.opening && drop.stage != super::Stage::Reply;
            let is_later = |drop: &super::Dropped| drop.occurrences.last >= answered;
            let mut drops = trouble.drops.iter().filter(|drop| drop.is("NETFILTER_DROP"));
            !self.met_ipvs() && drops.any(|drop| of_request(drop) && is_later(drop))
        };
        let is_failure = match later {
            Outcome::Refused | Outcome::Rejected | Outcome::Unreachable => true,
            Outcome::Dropped => by_rule(),
            _ => false,
        };
        is_failure.then_some(later)
    }

    /// When the entry of a UDP flow was read and had seen an answer. A listing shows only that there once was one.
    fn answer_read(&self) -> Option<Timestamp> {
        let reading = self.reread.filter(|reading| reading.status.has(Status::SEEN_REPLY))?;
        let is_listed = self.last_packet.is_some();
        (self.orig.protocol == Protocol::UDP && !is_listed).then_some(reading.time)
    }

    /// The outcome with which it was handed out.
    pub(crate) fn handed_outcome(&self) -> Outcome {
        self.handed.unwrap_or_else(|| self.outcome())
    }

    /// Whether an observation shows that the other end answered.
    pub fn was_answered(&self) -> bool {
        // An answer that a rule drops on its way to the client also leaves its mark in the entry, and the client goes on.
        let is_repeating = self.is_tcp() && self.client.syn_retransmits().is_seen();
        let replied = |status: Status| {
            if is_repeating { status.has(Status::ASSURED) } else { self.status_tells_answer(status) }
        };
        let ends = [&self.client, &self.server];
        ends.iter().any(|end| end.was_connected())
            || self.deleted.is_some_and(|ended| replied(ended.status))
            || self.reread.is_some_and(|ended| replied(ended.status))
            || self.trouble.as_ref().is_some_and(|trouble| {
                trouble.killed.is_some_and(|ended| replied(ended.status))
                    || trouble.stack_resets.iter().any(|reset| reset.by != End::Client && !reset.to_syn)
                    || trouble.transit_resets.iter().any(|reset| !reset.to_syn)
            })
    }

    /// Whether an entry with this status records an accepting answer. An SCTP ABORT, which refuses an association, is
    /// also a packet from the other side. The association is established once the entry is assured, which
    /// `nf_conntrack_sctp_packet` sets with the COOKIE ACK.
    fn status_tells_answer(&self, status: Status) -> bool {
        if self.orig.protocol == Protocol::SCTP {
            status.has(Status::ASSURED)
        } else {
            status.has(Status::SEEN_REPLY) || status.has(Status::ASSURED)
        }
    }

    /// Whether a flow without socket events was answered, as far as known: its entry shows it when the entry ends or is
    /// reread.
    pub fn answer(&self) -> Answer {
        if self.was_answered() {
            return Answer::Seen;
        }
        match self.deleted.or(self.reread) {
            Some(ended) => Answer::NotSeen { until: ended.time },
            None => Answer::Unknown,
        }
    }

    /// Whether a socket closed without a FIN of either end, as by a RST or a timeout, and the flow counts as closed all the same:
    /// the event may be missing.
    pub(crate) fn was_cut_off(&self) -> bool {
        let is_cut = |end: &SocketEnd| end.closed.is_some_and(|closed| closed.from == TcpState::Established);
        (is_cut(&self.client) || is_cut(&self.server)) && self.handed_outcome() == Outcome::Closed
    }

    /// Datagrams whose answer only the end of their entry showed.
    pub(super) fn was_answered_after_all(&self) -> bool {
        !self.is_tcp() && self.was_answered()
    }

    /// When it failed, if it did: an answered flow when it broke, any other with its beginning.
    pub(crate) fn failed_at(&self) -> Timestamp {
        self.broke().unwrap_or(self.first_seen)
    }

    /// Whether all its packets that were dropped on the way leave it open whether others passed.
    pub(super) fn may_pass_otherwise(&self) -> bool {
        let mut drops = self.trouble.as_deref().into_iter().flat_map(|trouble| &trouble.drops);
        drops.all(|drop| {
            drop.stage == super::Stage::Reply || NOISE.iter().chain(&PASSING).any(|reason| drop.is(reason))
        })
    }

    /// When a datagram to this endpoint, of a confirmed entry, was last dropped or refused.
    pub(crate) fn datagram_failed(&self, endpoint: SocketAddr) -> Option<Timestamp> {
        let trouble = self.trouble.as_deref().filter(|_| self.orig.protocol == Protocol::UDP)?;
        let drops = trouble.drops.iter().filter(|drop| {
            drop.endpoint == Some(endpoint) && drop.stage != super::Stage::Reply && !drop.unconfirmed
        });
        let errors = trouble.icmp_errors.iter();
        let errors = errors.filter(|error| error.endpoint == Some(endpoint) && error.about_request);
        drops.map(|drop| drop.occurrences.last).chain(errors.map(|error| error.occurrences.last)).max()
    }

    /// When it broke, if it was answered before: with the first RST, or with the first repetition of what had no answer.
    pub(crate) fn broke(&self) -> Option<Timestamp> {
        let ends = [&self.client, &self.server].into_iter();
        match self.outcome() {
            Outcome::Silent => ends.filter(|end| end.is_unheard()).filter_map(SocketEnd::unheard_since).min(),
            Outcome::Reset(_) => {
                let trouble = self.trouble.as_deref();
                let by_sockets = ends
                    .flat_map(|end| [end.reset_sent(), end.reset_received()])
                    .flatten()
                    .map(|reset| reset.time);
                let by_stacks = trouble.into_iter().flat_map(|it| &it.stack_resets);
                let by_stacks = by_stacks.filter(|reset| !reset.to_syn).map(|reset| reset.occurrences.first);
                let passing = trouble.into_iter().flat_map(|it| &it.transit_resets);
                let passing = passing.filter(|reset| !reset.to_syn).map(|reset| reset.occurrences.first);
                by_sockets.chain(by_stacks).chain(passing).min().or(Some(self.last_seen))
            }
            _ => None,
        }
    }

    /// How long before it broke its last packet may have been lost: an end that has no answer repeats at intervals that double.
    pub(crate) fn silence_before_end(&self) -> Duration {
        [&self.client, &self.server].into_iter().map(SocketEnd::next_repetition).max().unwrap_or_default()
    }

    fn answered_outcome(&self) -> Outcome {
        match self.reset_by() {
            Some(ResetBy::Client) if self.client.gave_up() => return Outcome::Silent,
            Some(ResetBy::Endpoint) if self.server.gave_up() => return Outcome::Silent,
            Some(by) => return Outcome::Reset(by),
            None => {}
        }
        if self.client.is_unheard() || self.server.is_unheard() {
            return Outcome::Silent;
        }
        // An entry can end before its connection: it timed out, or IPVS deleted it.
        let entry_ended =
            self.deleted.is_some() || self.trouble.as_ref().is_some_and(|trouble| trouble.killed.is_some());
        // Another socket may be accepted in place of one that was not.
        let server_closed = self.server.closed.is_some_and(|closed| !is_embryo(closed.from));
        let over = self.client.closed.is_some() || server_closed || (entry_ended && !self.is_open());
        if over { Outcome::Closed } else { Outcome::Established }
    }

    /// Whether a flow that was handed out as silent goes on after all: none of its open sockets has retransmitted for
    /// longer than the longest interval between two retransmits (`TCP_RTO_MAX`, 120 s), which only an answer ends. The
    /// caller waited that long.
    pub(super) fn has_recovered(&mut self) -> bool {
        if self.handed != Some(Outcome::Silent) || self.outcome() != Outcome::Silent {
            return false;
        }
        for end in [&mut self.client, &mut self.server] {
            if let (None, Some(trouble)) = (end.closed, &mut end.trouble) {
                trouble.backoff = 0;
            }
        }
        self.outcome() == Outcome::Established
    }

    /// The sender of the RST that broke an answered flow. A RST after both ends sent a FIN breaks nothing.
    fn reset_by(&self) -> Option<ResetBy> {
        let counts = |state: TcpState| {
            matches!(state, TcpState::Established | TcpState::CloseWait | TcpState::FinWait1)
        };
        let sent = |end: &SocketEnd| end.reset_sent().is_some_and(|reset| counts(reset.state));
        let received = |end: &SocketEnd| end.reset_received().is_some_and(|reset| counts(reset.state));
        let stack = |by: End| {
            self.trouble.as_ref().is_some_and(|trouble| {
                trouble.stack_resets.iter().any(|reset| reset.by == by && !reset.to_syn)
                    || trouble.transit_resets.iter().any(|reset| reset.by == by && !reset.to_syn)
            })
        };
        // tcp_send_active_reset closes the socket first on some paths: the sender's RST may come in state CLOSE.
        let active = |end: &SocketEnd| {
            end.reset_sent().is_some()
                && end.closed.is_some_and(|closed| closed.from == TcpState::Established)
        };
        if sent(&self.server) || active(&self.server) {
            Some(ResetBy::Endpoint)
        } else if sent(&self.client) || active(&self.client) {
            Some(ResetBy::Client)
        } else if received(&self.client) {
            Some(if stack(End::Endpoint) || stack(End::Vip) { ResetBy::Endpoint } else { ResetBy::Unknown })
        } else if received(&self.server) {
            Some(if stack(End::Client) { ResetBy::Client } else { ResetBy::Unknown })
        } else {
            self.transit_reset()
        }
    }

    /// Both ends are on other nodes, and a RST between them was observed. The first one counts, because it may cause
    /// another.
    fn transit_reset(&self) -> Option<ResetBy> {
        if self.client.is_seen() || self.server.is_seen() {
            return None;
        }
        let resets = &self.trouble.as_ref()?.transit_resets;
        let first =
            resets.iter().filter(|reset| !reset.to_syn).min_by_key(|reset| reset.occurrences.first)?;
        Some(if first.by == End::Client { ResetBy::Client } else { ResetBy::Endpoint })
    }

    fn opening_outcome(&self) -> Outcome {
        if let Some(trouble) = &self.trouble {
            // A later confirmed entry means that the first packet was stopped and a retransmit passed; a later answer, that a
            // datagram passed.
            let confirmed = self.decisions.iter().filter_map(|decision| decision.confirmed).max();
            let passed = confirmed.max(self.answer_read());
            let stands = |last| passed.is_none_or(|passed| last >= passed);
            let on_the_way = || {
                trouble.drops.iter().filter(|drop| {
                    drop.opening
                        && !NOISE.iter().any(|reason| drop.is(reason))
                        && drop.stage != super::Stage::Reply
                        && stands(drop.occurrences.last)
                })
            };
            if trouble.refusal.is_some_and(|refusal| stands(refusal.occurrences.last)) {
                return Outcome::Rejected;
            }
            if trouble
                .stack_resets
                .iter()
                .any(|reset| reset.by != End::Client && stands(reset.occurrences.last))
                || on_the_way().any(|drop| drop.is("NO_SOCKET"))
                // With an answer, another cause ended it (nf_nat_inet_fn after a change of the interface).
                || trouble.killed.is_some_and(|ended| stands(ended.time) && !ended.status.has(Status::SEEN_REPLY))
                || trouble.transit_resets.iter().any(|reset| reset.to_syn && stands(reset.occurrences.last))
                || self.client.reset_received().is_some()
            {
                return Outcome::Refused;
            }
            let reported = |meaning| {
                trouble.icmp_errors.iter().any(|error| {
                    error.about_request && error.meaning == meaning && stands(error.occurrences.last)
                })
            };
            // A kernel answers a SYN to a closed port by a RST: port unreachable comes from a rule on the way.
            if reported(IcmpMeaning::NothingListens) {
                return if self.is_tcp() { Outcome::Unreachable } else { Outcome::Refused };
            }
            if on_the_way().any(|drop| NO_WAY.iter().any(|reason| drop.is(reason))) {
                return Outcome::Unreachable;
            }
            if reported(IcmpMeaning::NoWay) || reported(IcmpMeaning::Prohibited) {
                return Outcome::Unreachable;
            }
            if (trouble.table_full.is_seen() && stands(trouble.table_full.last))
                || on_the_way().next().is_some()
            {
                return Outcome::Dropped;
            }
        }
        if self.client.reset_received().is_some() {
            return Outcome::Refused;
        }
        let repeats = self.client.syn_retransmits().count;
        if self.client.closed.is_some() && repeats >= 1 || repeats >= 2 && !self.awaits_answer() {
            return Outcome::Stalled;
        }
        if let Some(closed) = self.client.closed {
            let waited = closed.time.since(self.first_seen);
            return if waited > PATIENCE { Outcome::Stalled } else { Outcome::Abandoned };
        }
        // Only the ABORT that refuses an association leaves its entry unassured.
        let refused = |ended: super::Ended| {
            self.orig.protocol == Protocol::SCTP
                && ended.status.has(Status::SEEN_REPLY)
                && ended.time.since(self.first_seen) >= HANDSHAKE
        };
        if self.deleted.or(self.reread).is_some_and(refused) {
            return Outcome::Refused;
        }
        let unanswered = self.reread.is_some_and(|reread| reread.time.since(self.first_seen) >= SYN_WAIT);
        if self.is_tcp() && (self.deleted.is_some() || unanswered) {
            return Outcome::Stalled;
        }
        Outcome::Pending
    }

    /// Whether the client may still retransmit its SYN or INIT: a socket that is busy when the refusal arrives ignores
    /// it (`tcp_v4_err` keeps it as a soft error), and tries again a second later.
    pub(super) fn is_still_trying(&self) -> bool {
        let repeats = self.is_tcp() || self.orig.protocol == Protocol::SCTP;
        repeats && self.client.closed.is_none() && self.deleted.is_none() && !self.was_answered()
    }

    /// Whether the client got an answer to a repeated SYN.
    pub(super) fn is_repeated(&self) -> bool {
        self.client.syn_retransmits().is_seen() && self.client.established.is_some()
    }

    /// Whether the table may hand it out again.
    pub(crate) fn may_follow(&self) -> bool {
        self.ended.is_none() || self.is_repeated() || self.is_still_trying()
    }

    /// Whether only late evidence can follow.
    pub(super) fn is_over(&self, outcome: Outcome) -> bool {
        match outcome {
            Outcome::Closed
            | Outcome::Reset(_)
            | Outcome::Refused
            | Outcome::Rejected
            | Outcome::Unreachable
            | Outcome::Abandoned => true,
            Outcome::Stalled | Outcome::Dropped | Outcome::Pending | Outcome::Silent => {
                self.client.closed.is_some() || self.deleted.is_some()
            }
            Outcome::Established => false,
        }
    }
}

impl SocketEnd {
    /// Whether it repeats its segments at growing intervals, which the other end's answer would end.
    pub(crate) fn is_unheard(&self) -> bool {
        self.gave_up()
            || self.backs_off()
                && self.closed.is_none_or(|closed| {
                    matches!(closed.from, TcpState::Established | TcpState::FinWait1 | TcpState::CloseWait)
                })
    }

    /// About when it began to repeat: the intervals double, so that all earlier ones together are as long as the last one.
    fn unheard_since(&self) -> Option<Timestamp> {
        let trouble = self.trouble.as_ref()?;
        let Occurrences { first, last, .. } = trouble.retransmits;
        Some(first.max(last.saturating_sub(trouble.last_gap * 2)))
    }

    /// The time from its last repetition to the next one, if nothing was acknowledged since.
    pub(crate) fn next_repetition(&self) -> Duration {
        let Some(trouble) = &self.trouble else { return Duration::ZERO };
        let is_unanswered = trouble.last_acked == self.bytes_acked;
        if is_unanswered { (trouble.last_gap * 2).min(MAX_REPETITION) } else { Duration::ZERO }
    }

    /// Whether it reset the connection while its data had no answer: its application, or its kernel, did not wait longer.
    fn gave_up(&self) -> bool {
        let is_stuck = |stuck: &Stuck| stuck.acked == self.bytes_acked;
        self.backs_off() && self.reset_sent().is_some() && self.stuck().is_some_and(is_stuck)
    }

    fn backs_off(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.backoff >= SILENT_BACKOFF)
    }

    /// Whether it was connected: it was established, or did what only a connected socket does.
    pub fn was_connected(&self) -> bool {
        let was_answered = |reset: Option<&ResetEvent>| reset.is_some_and(|reset| is_answered(reset.state));
        self.established.is_some()
            || self.closed.is_some_and(|closed| is_answered(closed.from))
            || self.retransmits().is_seen()
            || was_answered(self.reset_sent())
            || was_answered(self.reset_received())
    }
}

/// The states that a socket reaches only after an answer.
const fn is_answered(state: TcpState) -> bool {
    matches!(
        state,
        TcpState::Established
            | TcpState::FinWait1
            | TcpState::FinWait2
            | TcpState::TimeWait
            | TcpState::CloseWait
            | TcpState::LastAck
            | TcpState::Closing
    )
}
