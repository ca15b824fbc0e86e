//! A flow and its evidence: the first and last occurrence of each kind, and the count.
//!
//! Owns plain data with a fixed bound on its size, whatever a kernel or a peer does. `outcome.rs` evaluates the
//! evidence; `diagnosis` finds the cause.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use smallvec::SmallVec;

use super::Outcome;
use crate::{
    net::{Netns, Protocol, Tuple},
    sighting::{Conntrack, Hook, IpvsFlags, Status, Task, TcpState},
    time::Timestamp,
};

/// NAT decisions kept for one flow: one for each of the seven SYNs that a client sends by default (`tcp_syn_retries`), and
/// those of the namespaces before and after the node's.
pub(super) const MAX_DECISIONS: usize = 10;
/// Kinds of drops kept for one flow.
pub(super) const MAX_DROPS: usize = 8;
/// Kinds of RSTs without a socket kept for one flow.
pub(super) const MAX_STACK_RESETS: usize = 6;
/// Kinds of invalid packets kept for one flow.
pub(super) const MAX_INVALID: usize = 4;
/// Kinds of ICMP errors kept for one flow.
pub(super) const MAX_ICMP_ERRORS: usize = 4;

/// One connection, or one attempt to connect.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Unique in its table and counted from 1 in the order of first sightings.
    pub id: u64,
    /// How many times the table handed it out, including this time; 0 before.
    pub revision: u32,
    /// Its beginning was not observed: the trace began later, or the event was lost.
    pub partial: bool,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    /// The time of the event that ended it; `None` while it is open or only silent.
    pub ended: Option<Timestamp>,
    /// When it was last handed out, on the sightings' clock.
    pub settled: Option<Timestamp>,
    /// The namespace of its first sighting.
    pub netns: Netns,
    /// From the client to the address that it connected to.
    pub orig: Tuple,
    /// The task on whose CPU its entry was confirmed. It is the sender only if the sender is local.
    pub confirm_task: Option<Task>,
    /// The NAT decisions in each namespace and zone that was observed, in order; at most ten. A packet that opens a
    /// connection and is repeated before its entry is confirmed is translated again, perhaps to another endpoint: that
    /// is another decision. Nearly every flow has only one.
    pub decisions: SmallVec<[Decision; 1]>,
    /// IPVS's own events. There are rarely any, because the entry's reply tuple shows the endpoint.
    pub ipvs: Option<Box<Ipvs>>,
    /// The socket that connects.
    pub client: SocketEnd,
    /// The socket that accepts.
    pub server: SocketEnd,
    /// Failures on the way; a healthy flow has none.
    pub trouble: Option<Box<Trouble>>,
    /// `nf_ct_delete` observed the end of its entry.
    pub deleted: Option<Ended>,
    /// Its entry when it was read again, because nothing else shows whether a datagram was answered.
    pub reread: Option<Ended>,
    /// The time of its last packet, if its entry was listed with a timeout.
    pub last_packet: Option<Timestamp>,
    /// The previous flow with the same addresses and ports, if it is still known.
    pub previous: Option<Box<Previous>>,
    /// How many sightings were folded into it.
    pub sightings: u32,
    /// Events that the tracer lost while it watched this flow, or that the kernel suppressed.
    pub lost: u64,
    /// Of these, the suppressed ones: of this flow's client, or of its Service.
    pub suppressed: u64,
    /// More may be lost: a part of the recording is damaged or missing.
    pub has_uncounted_loss: bool,
    pub(super) handed: Option<Outcome>,
    /// The number of decisions when it was last handed out.
    pub(super) handed_decisions: usize,
}

/// The NAT decision of one conntrack entry at its latest sighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When it was first observed.
    pub time: Timestamp,
    pub netns: Netns,
    pub ct: Conntrack,
    /// Whether `__nf_conntrack_confirm` was entered for it (which can still fail: a clash).
    pub confirmed: Option<Timestamp>,
    /// Entries created with this decision. More than 1 if retransmits met a drop before their entry could be confirmed,
    /// and NAT chose the same endpoint for them.
    pub attempts: u32,
    /// Whether the entry was created for a TCP segment without SYN: the connection already existed, and NAT chose again
    /// (`nf_conntrack_tcp_loose`). `None` if unknown.
    pub midstream: Option<bool>,
}

impl Decision {
    /// The chosen endpoint, if the destination was translated.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.ct.endpoint()
    }
}

/// IPVS's events in a flow: present if its functions were watched or if something failed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipvs {
    /// The real server that it chose last.
    pub chosen: Option<Chosen>,
    /// It searched for a real server and created no entry: there is no real server, or the entry could not be created.
    pub unscheduled: Occurrences,
    /// It released its entry and dropped the current packet, which still belonged to the old conntrack entry.
    pub expired: Occurrences,
    /// The last such packet was a SYN: the client reused a port.
    pub reused: bool,
    /// The conntrack entry of such a packet. Its end is not the end of this flow.
    pub(super) old_entry: u64,
}

/// A real server that IPVS chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub time: Timestamp,
    pub netns: Netns,
    /// From the client to the virtual server, with the ports of IPVS's entry.
    pub tuple: Tuple,
    pub destination: SocketAddr,
    pub flags: IpvsFlags,
    /// IPVS created a persistence template with it: the first connection of this client for a while.
    pub first_of_client: bool,
}

impl Chosen {
    /// From the real server to the client.
    pub(super) fn reply(&self) -> Tuple {
        Tuple { protocol: self.tuple.protocol, src: self.destination.into(), dst: self.tuple.src }
    }
}

/// An entry that replaced a lost one in the middle of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickedUp {
    pub time: Timestamp,
    pub netns: Netns,
    pub ct: Conntrack,
}

/// The count of an event with its first and last time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Occurrences {
    pub count: u32,
    pub first: Timestamp,
    pub last: Timestamp,
}

impl Occurrences {
    pub(super) fn hit(&mut self, time: Timestamp) {
        if self.count == 0 || time < self.first {
            self.first = time;
        }
        self.last = self.last.max(time);
        self.count = self.count.saturating_add(1);
    }

    pub(super) fn once(time: Timestamp) -> Self {
        Self { count: 1, first: time, last: time }
    }

    pub fn is_seen(&self) -> bool {
        self.count > 0
    }
}

/// One of the two sockets, if it is on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SocketEnd {
    /// Address of its `struct sock`; 0 if it was never observed.
    pub sk: u64,
    pub netns: Netns,
    pub task: Option<Task>,
    pub established: Option<Timestamp>,
    pub closed: Option<Closed>,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub trouble: Option<Box<EndTrouble>>,
}

impl SocketEnd {
    pub fn is_seen(&self) -> bool {
        self.sk != 0
    }

    pub fn syn_retransmits(&self) -> Occurrences {
        self.trouble.as_ref().map(|trouble| trouble.syn_retransmits).unwrap_or_default()
    }

    pub fn retransmits(&self) -> Occurrences {
        self.trouble.as_ref().map(|trouble| trouble.retransmits).unwrap_or_default()
    }

    /// Whether it retransmitted only after it had closed its side.
    pub fn retransmitted_only_its_end(&self) -> bool {
        self.trouble
            .as_ref()
            .is_some_and(|it| it.retransmits.count > 0 && it.while_closing == it.retransmits.count)
    }

    /// Whether the other end had closed its side when this one sent a RST, received one, repeated a segment, or closed: only a
    /// FIN leads to these states.
    pub fn outlived_other_end(&self) -> bool {
        let resets = [self.reset_sent(), self.reset_received()].into_iter().flatten();
        // tcp_close with unread data closes the socket before it sends the RST.
        let closed = self.closed.map(|closed| closed.from);
        let states = resets.map(|reset| {
            if reset.state == TcpState::Close { closed.unwrap_or(TcpState::Close) } else { reset.state }
        });
        let mut states = states.peekable();
        let was_reset = states.peek().is_some();
        let repeats = self.trouble.as_ref().is_some_and(|trouble| trouble.after_fin > 0);
        states.all(follows_fin) && (was_reset || repeats || closed.is_some_and(follows_fin))
    }

    /// The last repetition before the other end closed its side.
    pub fn last_repeat_before_fin(&self) -> Option<Timestamp> {
        self.trouble.as_ref()?.before_fin
    }

    pub fn stuck(&self) -> Option<&Stuck> {
        self.trouble.as_ref()?.stuck.as_ref()
    }

    pub fn reset_sent(&self) -> Option<&ResetEvent> {
        self.trouble.as_ref()?.reset_sent.as_ref()
    }

    pub fn reset_received(&self) -> Option<&ResetEvent> {
        self.trouble.as_ref()?.reset_received.as_ref()
    }
}

/// Whether a socket gets into this state only after the other end's FIN.
pub(super) const fn follows_fin(state: TcpState) -> bool {
    matches!(state, TcpState::CloseWait | TcpState::LastAck)
}

/// The end of a socket and its last state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    pub time: Timestamp,
    pub from: TcpState,
}

/// Events that a healthy socket does not have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndTrouble {
    /// SYN or SYN-ACK.
    pub syn_retransmits: Occurrences,
    /// Data or FIN.
    pub retransmits: Occurrences,
    /// Consecutive data retransmits whose interval about doubled: exponential backoff, which an answer ends.
    pub backoff: u32,
    /// The retransmits after the socket had closed its side: of a FIN, and of data before it.
    pub while_closing: u32,
    /// The retransmits after the other end had closed its side, and the last one before.
    pub(super) after_fin: u32,
    pub(super) before_fin: Option<Timestamp>,
    pub(super) last_gap: Duration,
    /// The bytes that were acknowledged before the last retransmit.
    pub(super) last_acked: u64,
    /// The data that it retransmits and that is not acknowledged.
    pub stuck: Option<Stuck>,
    pub reset_sent: Option<ResetEvent>,
    pub reset_received: Option<ResetEvent>,
}

/// A segment that is retransmitted and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// The bytes of its data; the fewest, if the kernel split it.
    pub bytes: u32,
    /// The bytes that were acknowledged before it.
    pub acked: u64,
    /// The bytes that were received up to its last repetition.
    pub received: u64,
    pub repeats: u32,
}

/// The first RST that a socket sent or received.
#[derive(Clone, Debug, PartialEq)]
pub struct ResetEvent {
    pub time: Timestamp,
    pub state: TcpState,
    /// The name in `enum sk_rst_reason`, on kernels that have it.
    pub reason: Option<Arc<str>>,
}

/// The stage of a packet on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// To the address that the client connected to: not translated (yet).
    Before,
    /// To the endpoint.
    After,
    /// On the way back to the client.
    Reply,
}

/// A possible origin of a RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client,
    /// The untranslated address that the client connected to.
    Vip,
    Endpoint,
}

/// Failures of a flow's packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trouble {
    /// Dropped packets by reason and stage; at most eight kinds, and rarely more than one.
    pub drops: SmallVec<[Dropped; 1]>,
    /// A rule rejected it.
    pub refusal: Option<Refusal>,
    /// RSTs by a stack that has no socket for the packet; at most six kinds, and rarely more than one.
    pub stack_resets: SmallVec<[StackReset; 1]>,
    /// `nf_ct_kill_acct`: a RST answered the SYN, or a masqueraded packet left by another interface.
    pub killed: Option<Ended>,
    /// `nf_ct_resolve_clash`.
    pub clashes: Occurrences,
    /// Dropped because no conntrack entry could be created.
    pub table_full: Occurrences,
    /// In this namespace: each has its own table, and all share one limit.
    pub full_netns: Netns,
    /// Packets that conntrack classified as invalid, by reason and direction; at most four kinds.
    pub invalid: Vec<Invalid>,
    /// ICMP errors about its packets; at most four kinds.
    pub icmp_errors: Vec<IcmpError>,
    /// RSTs that passed through this node, at most one for each direction.
    pub transit_resets: Vec<TransitReset>,
    /// Its packets found no entry, and conntrack created one mid-stream. Few flows have it, and it is large.
    pub picked_up: Option<Box<PickedUp>>,
}

/// A packet that conntrack cannot assign to a connection (`nf_ct_l4proto_log_invalid`): it is not translated, and
/// continues with its current addresses unless a rule drops it.
#[derive(Clone, Debug, PartialEq)]
pub struct Invalid {
    /// The format of the kernel's message; `None` if it could not be read.
    pub why: Option<Arc<str>>,
    /// Whether the packet came from the endpoint.
    pub reply: bool,
    pub netns: Netns,
    pub occurrences: Occurrences,
}

/// An ICMP error about one of the flow's packets, as NAT forwarded it.
#[derive(Clone, Debug, PartialEq)]
pub struct IcmpError {
    /// The kernel's name of its type: `DEST_UNREACH`…
    pub kind: Arc<str>,
    pub code: Option<u8>,
    pub meaning: IcmpMeaning,
    /// The host that sent it.
    pub from: Option<IpAddr>,
    /// Whether it is about a packet to the endpoint; otherwise it is about an answer.
    pub about_request: bool,
    /// The endpoint that NAT had chosen for that packet.
    pub endpoint: Option<SocketAddr>,
    pub occurrences: Occurrences,
}

/// The meaning of an ICMP error in either family's types and codes (RFC 792, RFC 1812, RFC 4443).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpMeaning {
    /// Nothing listens on the port, or for the protocol.
    NothingListens,
    /// A rule or a route of another host prohibits it.
    Prohibited,
    /// There is no route to the host.
    NoWay,
    /// The packet is too long for a link on the path.
    TooBig,
    /// Any other error.
    Other,
}

impl IcmpMeaning {
    /// From the kernel's name of the type and the code, in this hook's family.
    pub(super) fn of(hook: Hook, kind: &str, code: Option<u8>) -> Self {
        let v6 = hook == Hook::IcmpError6;
        match (v6, kind, code) {
            (false, "DEST_UNREACH", Some(2 | 3)) | (true, "DEST_UNREACH", Some(4)) => Self::NothingListens,
            (false, "DEST_UNREACH", Some(9 | 10 | 13)) | (true, "DEST_UNREACH", Some(1)) => Self::Prohibited,
            (false, "DEST_UNREACH", Some(0 | 1 | 5 | 6 | 7 | 11 | 12))
            | (true, "DEST_UNREACH", Some(0 | 2 | 3 | 5 | 6))
            | (false, "TIME_EXCEEDED", Some(0))
            | (true, "TIME_EXCEED", Some(0)) => Self::NoWay,
            (false, "DEST_UNREACH", Some(4)) | (true, "PKT_TOOBIG", _) => Self::TooBig,
            _ => Self::Other,
        }
    }
}

/// A RST that passed through this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransitReset {
    pub by: End,
    pub netns: Netns,
    /// Whether it answered a SYN: nothing came from the other side before.
    pub to_syn: bool,
    pub occurrences: Occurrences,
}

/// The end of a conntrack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub time: Timestamp,
    pub status: Status,
    /// The netlink port of the process that deleted it; `None` if the kernel did.
    pub deleted_by: Option<u32>,
}

/// A summary of an earlier flow from the same client address and port to the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Previous {
    pub endpoint: SocketAddr,
    /// How its entry ended, if that was observed.
    pub ended: Option<Ended>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Dropped {
    /// The kernel's name; `None` on kernels without drop reasons, unless the function that dropped it shows one.
    pub reason: Option<Arc<str>>,
    /// That function, on kernels without drop reasons.
    pub site: Option<&'static str>,
    pub stage: Stage,
    pub netns: Netns,
    /// Whether the packet's entry was not confirmed yet: the drop destroyed the entry.
    pub unconfirmed: bool,
    /// Whether it was the first packet of a connection (a SYN, or any datagram).
    pub opening: bool,
    /// Whether it was an answer from the endpoint's own address, not translated back to the address that the client
    /// connected to.
    pub untranslated: bool,
    /// The endpoint that NAT had chosen for this packet.
    pub endpoint: Option<SocketAddr>,
    pub occurrences: Occurrences,
}

impl Dropped {
    pub fn is(&self, reason: &str) -> bool {
        self.reason.as_deref() == Some(reason)
    }
}

/// A rejection by a rule: an ICMP error or a forged RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub stage: Stage,
    pub netns: Netns,
    /// `enum nf_inet_hooks`: 1 local in, 2 forward, 3 local out.
    pub nf_hook: Option<u8>,
    /// The endpoint that NAT had chosen for the first rejected packet.
    pub endpoint: Option<SocketAddr>,
    pub occurrences: Occurrences,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalKind {
    /// `nf_send_unreach` with this ICMP code (3 = port unreachable).
    Unreachable { code: Option<u8> },
    /// `nf_send_reset`.
    Reset,
    /// `ip_vs_leave`: the virtual server has no real server; ICMP port unreachable, for TCP too.
    NoDestination,
}

#[derive(Clone, Debug, PartialEq)]
pub struct StackReset {
    pub by: End,
    pub netns: Netns,
    pub reason: Option<Arc<str>>,
    /// Whether it answered a SYN.
    pub to_syn: bool,
    /// Whether it answered a FIN without data: its sender had nothing more to send.
    pub to_fin: bool,
    /// Whether the packet that it answers came from the endpoint's own address: an answer that was not translated back
    /// to the address that the client connected to.
    pub untranslated: bool,
    /// The endpoint that NAT had chosen for the packet that it answers.
    pub endpoint: Option<SocketAddr>,
    pub occurrences: Occurrences,
}

impl Flow {
    pub(super) fn new(id: u64, orig: Tuple, netns: Netns, time: Timestamp, partial: bool) -> Self {
        Self {
            id,
            revision: 0,
            partial,
            first_seen: time,
            last_seen: time,
            ended: None,
            settled: None,
            netns,
            orig,
            confirm_task: None,
            decisions: SmallVec::new(),
            ipvs: None,
            client: SocketEnd::default(),
            server: SocketEnd::default(),
            trouble: None,
            deleted: None,
            reread: None,
            last_packet: None,
            previous: None,
            sightings: 0,
            lost: 0,
            has_uncounted_loss: false,
            suppressed: 0,
            handed: None,
            handed_decisions: 0,
        }
    }

    /// Reads words from all over its memory, and returns a number that depends on all of them.
    pub(super) fn glance(&self) -> u64 {
        let decision = self.decisions.first().map_or(0, |decision| {
            decision.ct.id ^ u64::from(decision.attempts) ^ u64::from(decision.ct.reply.src.port())
        });
        let words = [
            self.id,
            self.client.sk,
            self.client.bytes_received,
            self.server.sk,
            self.server.bytes_received,
            self.last_seen.as_unix_ns(),
            u64::from(self.sightings),
            u64::from(self.ended.is_some()),
            u64::from(self.deleted.is_some()),
            u64::from(self.trouble.is_some()),
            u64::from(self.orig.src.port()),
        ];
        // What failed flows have besides.
        let ends = [&self.client, &self.server].into_iter().filter_map(|end| end.trouble.as_ref());
        let ends = ends.fold(0, |sum, trouble| sum ^ trouble.retransmits.count ^ trouble.backoff);
        let trouble = self.trouble.as_ref().map_or(0, |trouble| {
            trouble.full_netns.0 ^ trouble.drops.first().map_or(0, |drop| drop.occurrences.count)
        });
        words.into_iter().fold(decision ^ u64::from(ends ^ trouble), |sum, word| sum ^ word)
    }

    pub(super) fn as_previous(&self) -> Option<Previous> {
        let endpoint = self.decision(None).and_then(Decision::endpoint)?;
        Some(Previous { endpoint, ended: self.deleted })
    }

    pub fn is_tcp(&self) -> bool {
        self.orig.protocol == Protocol::TCP
    }

    /// An SCTP flow has no socket events, and its client retransmits.
    pub(super) fn is_sctp(&self) -> bool {
        self.orig.protocol == Protocol::SCTP
    }

    /// The chosen endpoint in this namespace; with `None`, in any.
    pub fn endpoint(&self, netns: Option<Netns>) -> Option<SocketAddr> {
        let decided = self.decision(netns).and_then(Decision::endpoint);
        decided.or_else(|| self.chosen_by_ipvs(netns).map(|chosen| chosen.destination))
    }

    /// The real server that IPVS was observed to choose in this namespace; with `None`, in any.
    pub fn chosen_by_ipvs(&self, netns: Option<Netns>) -> Option<&Chosen> {
        let chosen = self.ipvs.as_ref()?.chosen.as_ref()?;
        let here = netns.is_none_or(|netns| {
            [netns, Netns::default()].contains(&chosen.netns) || netns == Netns::default()
        });
        here.then_some(chosen)
    }

    /// Whether IPVS handled this flow: its reply tuple changed without the DNAT bit, or IPVS's functions were observed.
    pub fn met_ipvs(&self) -> bool {
        self.ipvs.is_some()
            || self.decisions.iter().any(|decision| decision.ct.by_ipvs())
            || self.trouble.as_ref().is_some_and(|trouble| {
                trouble.refusal.is_some_and(|refusal| refusal.kind == RefusalKind::NoDestination)
            })
    }

    /// Whether the client's socket is known to be open: events with its addresses belong to this flow.
    pub(super) fn is_open(&self) -> bool {
        self.client.established.is_some() && self.client.closed.is_none()
    }

    /// Whether the server closed it by a FIN that the client's stack acknowledged, and the client's socket is still open: a
    /// pool leaves it in `CLOSE_WAIT` until it next looks at it.
    pub(super) fn is_half_closed(&self) -> bool {
        self.is_open() && self.server.closed.is_some_and(|closed| closed.from == TcpState::FinWait2)
    }

    /// The time from the first sighting to the client's complete handshake; `None` if either was not observed.
    pub fn connect_time(&self) -> Option<Duration> {
        let established = self.client.established?;
        self.is_seen_from_start().then(|| established.since(self.first_seen))
    }

    /// Whether its first sighting is that of a decision.
    pub(super) fn is_seen_from_start(&self) -> bool {
        let decided = self.decisions.iter().any(|decision| decision.time <= self.first_seen)
            || self.chosen_by_ipvs(None).is_some_and(|chosen| chosen.time <= self.first_seen);
        !self.partial && decided
    }

    pub(super) fn ipvs_mut(&mut self) -> &mut Ipvs {
        self.ipvs.get_or_insert_default()
    }

    pub(super) fn trouble_mut(&mut self) -> &mut Trouble {
        self.trouble.get_or_insert_default()
    }
}
