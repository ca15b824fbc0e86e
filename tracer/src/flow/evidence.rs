//! A flow and the evidence kept for it: of each sort the first, the last and how many.
//!
//! Owns plain data with a fixed bound on its size, whatever a kernel or a peer does. What the evidence amounts to is
//! in `outcome.rs`; why, in `diagnosis`.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use super::Outcome;
use crate::{
    net::{Netns, Protocol, Tuple},
    sighting::{Conntrack, Hook, IpvsFlags, Status, Task, TcpState},
    time::Timestamp,
};

/// NAT decisions kept for one flow: the node's, and those of the namespaces before and behind it.
pub(super) const MAX_DECISIONS: usize = 4;
/// Sorts of drops kept for one flow.
pub(super) const MAX_DROPS: usize = 8;
/// Sorts of RSTs without a socket kept for one flow.
pub(super) const MAX_STACK_RESETS: usize = 6;
/// Sorts of invalid packets kept for one flow.
pub(super) const MAX_INVALID: usize = 4;
/// Sorts of ICMP errors kept for one flow.
pub(super) const MAX_ICMP_ERRORS: usize = 4;

/// One connection, or one attempt at one.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Unique in its table, in the order of first sightings, from 1.
    pub id: u64,
    /// How many times it was handed out, this time included; 0 before.
    pub revision: u32,
    /// Its beginning was not seen: the trace began later, or the event was lost.
    pub partial: bool,
    pub first_seen: Timestamp,
    pub last_seen: Timestamp,
    /// When the event came that ended it; `None` while it is open or only silent.
    pub ended: Option<Timestamp>,
    /// When it was handed out last, in the sightings' time.
    pub settled: Option<Timestamp>,
    /// The namespace of its first sighting.
    pub netns: Netns,
    /// Client to the address that it asked for.
    pub orig: Tuple,
    /// The task on whose CPU time its entry was confirmed: its sender only where that is local.
    pub confirm_task: Option<Task>,
    /// What NAT decided, in each namespace and zone where it was seen; at most four.
    pub decisions: Vec<Decision>,
    /// What IPVS itself was seen to do; most often nothing, for the entry's reply tuple tells the endpoint.
    pub ipvs: Option<Box<Ipvs>>,
    /// The socket that connects.
    pub client: SocketEnd,
    /// The socket that accepts.
    pub server: SocketEnd,
    /// What went wrong on the way; a healthy flow has none.
    pub trouble: Option<Box<Trouble>>,
    /// `nf_ct_delete` saw its entry end.
    pub deleted: Option<Ended>,
    /// What its entry was when it was read again, because nothing else shows whether a datagram was answered.
    pub reread: Option<Ended>,
    /// When its last packet came, where its entry was listed and told.
    pub last_packet: Option<Timestamp>,
    /// The last flow with the same addresses and ports, where it is still known.
    pub previous: Option<Previous>,
    /// How many sightings were folded into it.
    pub sightings: u32,
    /// Events lost by the tracer while this flow was watched.
    pub lost: u64,
    pub(super) handed: Option<Outcome>,
}

/// What NAT decided for one conntrack entry, at the last time it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When it was first seen.
    pub time: Timestamp,
    pub netns: Netns,
    pub ct: Conntrack,
    /// Whether `__nf_conntrack_confirm` was entered for it (which can still fail: a clash).
    pub confirmed: Option<Timestamp>,
    /// Entries made for it; above 1 where each retransmit met a drop before its entry could be confirmed.
    pub attempts: u32,
    /// Whether the entry was made for a TCP segment without SYN: the connection went on already, and NAT chose anew
    /// (`nf_conntrack_tcp_loose`). `None` where it is not known.
    pub midstream: Option<bool>,
}

impl Decision {
    /// The chosen endpoint, where the destination was translated.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        self.ct.endpoint()
    }
}

/// What IPVS did with a flow, where its own functions were watched or something went wrong in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ipvs {
    /// The real server that it chose last.
    pub chosen: Option<Chosen>,
    /// It looked for a real server and made no entry: there is none, or no entry could be made.
    pub unscheduled: Mark,
    /// It gave its entry up and dropped the packet at hand, which still belonged to the old conntrack entry.
    pub expired: Mark,
    /// The last packet so dropped was a SYN: the client reused a port.
    pub reused: bool,
    /// The conntrack entry that such a packet belonged to: its end is not this flow's.
    pub(super) old_entry: u64,
}

/// A real server that IPVS chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chosen {
    pub time: Timestamp,
    pub netns: Netns,
    /// Client to virtual server, with the ports that IPVS knows the connection by.
    pub tuple: Tuple,
    pub destination: SocketAddr,
    pub flags: IpvsFlags,
    /// A persistence template was made with it: the first connection of this client for a while.
    pub first_of_client: bool,
}

impl Chosen {
    /// From the real server to the client.
    pub(super) fn reply(&self) -> Tuple {
        Tuple::new(self.tuple.protocol, self.destination, self.tuple.src)
    }
}

/// An entry that was made anew in the middle of a connection: the one that it had is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PickedUp {
    pub time: Timestamp,
    pub netns: Netns,
    pub ct: Conntrack,
}

/// How often something was seen, first and last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark {
    pub count: u32,
    pub first: Timestamp,
    pub last: Timestamp,
}

impl Mark {
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

/// One of the two sockets, as far as it lives on this node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SocketEnd {
    /// Address of its `struct sock`; 0 where it was never seen.
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

    pub fn syn_retransmits(&self) -> Mark {
        self.trouble.as_ref().map(|trouble| trouble.syn_retransmits).unwrap_or_default()
    }

    pub fn retransmits(&self) -> Mark {
        self.trouble.as_ref().map(|trouble| trouble.retransmits).unwrap_or_default()
    }

    pub fn reset_sent(&self) -> Option<&ResetEvent> {
        self.trouble.as_ref()?.reset_sent.as_ref()
    }

    pub fn reset_received(&self) -> Option<&ResetEvent> {
        self.trouble.as_ref()?.reset_received.as_ref()
    }
}

/// The end of a socket and the state that it ended in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed {
    pub time: Timestamp,
    pub from: TcpState,
}

/// What a healthy socket has none of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EndTrouble {
    /// SYN or SYN-ACK.
    pub syn_retransmits: Mark,
    /// Data or FIN.
    pub retransmits: Mark,
    /// Data retransmits in a row whose distance about doubled: exponential backoff, which an answer ends.
    pub backoff: u32,
    pub(super) last_gap: Duration,
    pub reset_sent: Option<ResetEvent>,
    pub reset_received: Option<ResetEvent>,
}

/// The first RST that a socket sent or received.
#[derive(Clone, Debug, PartialEq)]
pub struct ResetEvent {
    pub time: Timestamp,
    pub state: TcpState,
    /// `enum sk_rst_reason` by name, on kernels that have it.
    pub reason: Option<Arc<str>>,
}

/// Where on its way a packet was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// To the address that the client asked for: not translated (yet).
    Before,
    /// To the endpoint.
    After,
    /// On the way back to the client.
    Reply,
}

/// One of the places a RST can come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Client,
    /// The address that the client asked for, untranslated.
    Vip,
    Endpoint,
}

/// What went wrong with a flow's packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trouble {
    /// Dropped packets, by reason and stage; at most eight sorts.
    pub drops: Vec<Dropped>,
    /// A rule refused it.
    pub refusal: Option<Refusal>,
    /// RSTs by a stack that has no socket for the packet; at most four sorts.
    pub stack_resets: Vec<StackReset>,
    /// `nf_ct_kill_acct`: a RST answered the SYN, or the entry was reopened.
    pub killed: Option<Ended>,
    /// `nf_ct_resolve_clash`.
    pub clashes: Mark,
    /// Dropped because no conntrack entry could be made.
    pub table_full: Mark,
    /// Packets that conntrack called invalid, by reason and direction; at most four sorts.
    pub invalid: Vec<Invalid>,
    /// ICMP errors about its packets; at most four sorts.
    pub icmp_errors: Vec<IcmpError>,
    /// RSTs seen on their way through this node, at most one a direction.
    pub transit_resets: Vec<TransitReset>,
    /// Its packets met no entry any more, and one was made from the middle of it.
    pub picked_up: Option<PickedUp>,
}

/// A packet without a place in its connection, by conntrack's measure (`nf_ct_l4proto_log_invalid`): it is not
/// translated, and goes on with the addresses that it has unless a rule drops it.
#[derive(Clone, Debug, PartialEq)]
pub struct Invalid {
    /// The format of the kernel's message; `None` where it could not be read.
    pub why: Option<Arc<str>>,
    /// Whether it came from the endpoint's side.
    pub reply: bool,
    pub netns: Netns,
    pub mark: Mark,
}

/// An ICMP error about one of the flow's packets, as NAT passed it on.
#[derive(Clone, Debug, PartialEq)]
pub struct IcmpError {
    /// The kernel's name of its type: `DEST_UNREACH`…
    pub kind: Arc<str>,
    pub code: Option<u8>,
    pub meaning: IcmpMeaning,
    /// The host that sent it.
    pub from: Option<IpAddr>,
    /// Whether it is about a packet on its way to the endpoint, not about an answer.
    pub about_request: bool,
    pub mark: Mark,
}

/// What an ICMP error says, in either family's types and codes (RFC 792, RFC 1812, RFC 4443).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpMeaning {
    /// Nothing listens: on the port, or for the protocol.
    NothingListens,
    /// A rule or a route of another host forbids it.
    Prohibited,
    /// There is no way to the host.
    NoWay,
    /// It is too long for a link on the way.
    TooBig,
    /// None of these.
    Other,
}

impl IcmpMeaning {
    /// Of the type by the kernel's name and the code, as this hook's family has them.
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
    /// Whether it answered a SYN: nothing had come from the other side before.
    pub to_syn: bool,
    pub mark: Mark,
}

/// The end of a conntrack entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub time: Timestamp,
    pub status: Status,
    /// The netlink port of who deleted it; `None` where the kernel did of its own accord.
    pub deleted_by: Option<u32>,
}

/// What an earlier flow of the same client's end and the same address was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Previous {
    pub endpoint: SocketAddr,
    /// How its entry ended, where that was seen.
    pub ended: Option<Ended>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Dropped {
    /// The kernel's name; `None` on kernels without drop reasons.
    pub reason: Option<Arc<str>>,
    pub stage: Stage,
    pub netns: Netns,
    /// Whether the packet's entry was not confirmed yet: the drop ended it.
    pub unconfirmed: bool,
    /// Whether it was the first packet of a connection (a SYN; any datagram).
    pub opening: bool,
    pub mark: Mark,
}

impl Dropped {
    pub fn is(&self, reason: &str) -> bool {
        self.reason.as_deref() == Some(reason)
    }
}

/// A rule's refusal: an ICMP error or a forged RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: RefusalKind,
    pub stage: Stage,
    pub netns: Netns,
    /// `enum nf_inet_hooks`: 1 local in, 2 forward, 3 local out.
    pub nf_hook: Option<u8>,
    pub mark: Mark,
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
    /// Whether the packet that it answers came from the endpoint's own address: an answer that was not translated back
    /// to the address that the client asked for.
    pub untranslated: bool,
    pub mark: Mark,
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
            decisions: Vec::new(),
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
            handed: None,
        }
    }

    pub(super) fn as_previous(&self) -> Option<Previous> {
        let endpoint = self.decision(None).and_then(Decision::endpoint)?;
        Some(Previous { endpoint, ended: self.deleted })
    }

    pub fn is_tcp(&self) -> bool {
        self.orig.protocol == Protocol::TCP
    }

    /// No socket tells of it, and its client repeats what was not answered.
    pub(super) fn is_sctp(&self) -> bool {
        self.orig.protocol == Protocol::SCTP
    }

    /// The decision taken in this namespace; a translating one first, then the earliest. With `None`, in any.
    pub fn decision(&self, netns: Option<Netns>) -> Option<&Decision> {
        let here = |decision: &&Decision| {
            netns.is_none_or(|netns| decision.netns == netns || decision.netns == Netns::default())
        };
        let asked = |decision: &&Decision| decision.ct.orig == self.orig;
        self.decisions
            .iter()
            .filter(here)
            .filter(asked)
            .find(|decision| decision.endpoint().is_some())
            .or_else(|| self.decisions.iter().filter(here).find(asked))
    }

    /// The endpoint that was chosen in this namespace; with `None`, in any.
    pub fn endpoint(&self, netns: Option<Netns>) -> Option<SocketAddr> {
        let decided = self.decision(netns).and_then(Decision::endpoint);
        decided.or_else(|| self.chosen_by_ipvs(netns).map(|chosen| chosen.destination))
    }

    /// The real server that IPVS was seen to choose in this namespace; with `None`, in any.
    pub fn chosen_by_ipvs(&self, netns: Option<Netns>) -> Option<&Chosen> {
        let chosen = self.ipvs.as_ref()?.chosen.as_ref()?;
        let here = netns.is_none_or(|netns| {
            [netns, Netns::default()].contains(&chosen.netns) || netns == Netns::default()
        });
        here.then_some(chosen)
    }

    /// Whether anything shows that IPVS had this flow: a reply tuple altered without the DNAT bit, or its own functions.
    pub fn met_ipvs(&self) -> bool {
        self.ipvs.is_some()
            || self.decisions.iter().any(|decision| decision.ct.by_ipvs())
            || self.trouble.as_ref().is_some_and(|trouble| {
                trouble.refusal.is_some_and(|refusal| refusal.kind == RefusalKind::NoDestination)
            })
    }

    /// Whether the client's socket is known to be open still: what comes with its addresses belongs to this flow.
    pub(super) fn is_open(&self) -> bool {
        self.client.established.is_some() && self.client.closed.is_none()
    }

    /// The time from the first sighting to the client's handshake being complete; `None` where either was not seen.
    pub fn connect_time(&self) -> Option<Duration> {
        let established = self.client.established?;
        let from_the_start = self.decisions.iter().any(|decision| decision.time <= self.first_seen)
            || self.chosen_by_ipvs(None).is_some_and(|chosen| chosen.time <= self.first_seen);
        (!self.partial && from_the_start).then(|| established.since(self.first_seen))
    }

    pub(super) fn ipvs_mut(&mut self) -> &mut Ipvs {
        self.ipvs.get_or_insert_default()
    }

    pub(super) fn trouble_mut(&mut self) -> &mut Trouble {
        self.trouble.get_or_insert_default()
    }
}
