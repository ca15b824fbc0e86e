//! A sighting: one observation by one kernel hook, decoded.
//!
//! This is what `kernel` yields, what tests build by hand, and all that `flow` ever sees of the kernel.

use std::{borrow::Cow, fmt, net::SocketAddr, sync::Arc};

use tracer_ebpf::COMM_BYTES;
pub use tracer_ebpf::Hook;

use crate::{
    net::{Netns, TransportAddr, Tuple},
    time::Timestamp,
};

/// One observation by one kernel hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    pub time: Timestamp,
    pub cpu: u16,
    pub hook: Hook,
    /// The namespace of the event. The same flow is observed in several namespaces: the client's, the node's, the
    /// backend's.
    pub netns: Netns,
    pub fact: Fact,
}

impl Sighting {
    /// A place for a sighting, with nothing in it.
    pub(crate) const fn blank() -> Self {
        Self {
            time: Timestamp::MIN,
            cpu: 0,
            hook: Hook::EarlyDrop,
            netns: Netns(0),
            fact: Fact::TableFull { freed: false },
        }
    }

    /// Every pair of addresses in it: as the client sent it, as the answer will arrive, as the packet or socket has it.
    pub(crate) fn tuples(&self) -> impl Iterator<Item = Tuple> {
        let found = match &self.fact {
            Fact::Conntrack(fact) => [Some(fact.ct.orig), Some(fact.ct.reply), None],
            Fact::Packet(fact) => [fact.tuple, fact.ct.map(|ct| ct.orig), fact.ct.map(|ct| ct.reply)],
            Fact::Socket(fact) => [Some(fact.tuple), None, None],
            Fact::Ipvs(fact) => [Some(fact.tuple), Some(fact.reply()), None],
            Fact::TableFull { .. } => [None; 3],
        };
        found.into_iter().flatten()
    }
}

/// The observation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    Conntrack(ConntrackFact),
    Packet(PacketFact),
    Socket(SocketFact),
    /// IPVS creates a connection entry.
    Ipvs(IpvsFact),
    /// `early_drop` returned: the conntrack table is full. `freed` is whether it evicted an entry (N7) or not (C16).
    TableFull {
        freed: bool,
    },
}

/// A `struct nf_conn` at the time of the sighting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Its kernel address. Together with zone, namespace and original tuple it identifies the entry. The kernel reuses
    /// the address after the entry is gone.
    pub id: u64,
    pub zone: u16,
    pub status: Status,
    /// From the client to the VIP, as the client sent it.
    pub orig: Tuple,
    /// From the endpoint to the client (or to the masquerading node), as the reply will arrive. `reply.src` differs
    /// from `orig.dst` exactly if the destination was translated, in every proxy mode.
    pub reply: Tuple,
}

impl Conntrack {
    /// Whether IPVS translated the destination: it changes the reply tuple after the NAT hooks, which leave only a null
    /// binding, and never sets `IPS_DST_NAT` (`ip_vs_update_conntrack`).
    pub fn by_ipvs(&self) -> bool {
        self.endpoint().is_some() && !self.status.has(Status::DST_NAT)
    }

    /// The chosen endpoint, if the destination was translated.
    pub fn endpoint(&self) -> Option<SocketAddr> {
        (self.reply.src != self.orig.dst).then(|| self.reply.src.socket())
    }

    /// Whether the destination was translated to this address.
    pub(crate) fn leads_to(&self, address: TransportAddr) -> bool {
        self.reply.src == address && self.orig.dst != address
    }

    /// Whether the source was translated (masquerade).
    pub fn masqueraded(&self) -> bool {
        self.reply.dst != self.orig.src
    }
}

/// A conntrack entry in a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListedEntry {
    /// The listing does not contain its kernel address: `id` is 0.
    pub ct: Conntrack,
    pub read_at: Timestamp,
    /// The time of its last packet, to the second, from its timeout, which every packet restarts. `None` if the timeout
    /// is unknown.
    pub last_packet: Option<Timestamp>,
}

/// `enum ip_conntrack_status` bits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Status(pub u32);

impl Status {
    pub const SEEN_REPLY: u32 = 1 << 1;
    pub const ASSURED: u32 = 1 << 2;
    pub const CONFIRMED: u32 = 1 << 3;
    pub const DST_NAT: u32 = 1 << 5;
    pub const SRC_NAT_DONE: u32 = 1 << 7;
    pub const DST_NAT_DONE: u32 = 1 << 8;
    /// The flow is in a flowtable: later packets bypass the hooks (N12).
    pub const OFFLOAD: u32 = 1 << 14;

    pub const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

impl fmt::Debug for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Status({:#x})", self.0)
    }
}

/// An event on a conntrack entry. The sighting's hook gives the kind of event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConntrackFact {
    pub ct: Conntrack,
    /// The task that was running on the CPU. It is the sender only if a local process sent this packet.
    pub task: Option<Task>,
    pub note: EntryNote,
}

/// The facts that one hook reads of an entry beyond its tuples and status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryNote {
    /// `enum tcp_conntrack` (`include/uapi/linux/netfilter/nf_conntrack_tcp.h`), at an entry's confirmation and end;
    /// meaningless for other protocols.
    pub tcp_state: Option<u8>,
    /// At an entry's end: the netlink port of the process that deleted it; `None` if it timed out or was killed.
    pub deleted_by: Option<u32>,
    /// The time of the last packet of an entry that ctnetlink listed.
    pub last_packet: Option<Timestamp>,
    /// When the kernel handed over a decision that it had kept: then a failure met the decision's flow.
    pub handed_over: Option<Timestamp>,
}

impl EntryNote {
    /// `TCP_CONNTRACK_ESTABLISHED`. A connection whose beginning conntrack saw is confirmed in `SYN_SENT` (1). Only a
    /// mid-stream pickup (`nf_conntrack_tcp_loose`) starts here or later.
    const ESTABLISHED: u8 = 3;
    /// `TCP_CONNTRACK_CLOSE`.
    const CLOSE: u8 = 8;

    /// Whether the entry was created for a segment without SYN; `None` if the kernel did not report the state.
    pub fn is_midstream(&self) -> Option<bool> {
        self.tcp_state.map(|state| (Self::ESTABLISHED..Self::CLOSE).contains(&state))
    }
}

/// A task's pid (thread-group id) and comm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    pub pid: u32,
    pub comm: Comm,
}

/// A task's name as the kernel keeps it (`TASK_COMM_LEN`): 16 bytes, of which those from the first zero on mean nothing. Few
/// verdicts name a task, so that only these make a text of it.
#[derive(Clone, Copy)]
pub struct Comm([u8; COMM_BYTES]);

impl Comm {
    pub(crate) const fn new(bytes: [u8; COMM_BYTES]) -> Self {
        Self(bytes)
    }

    /// The name without what follows it.
    fn bytes(&self) -> &[u8] {
        self.0.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes().is_empty()
    }

    /// As the kernel keeps it.
    pub(crate) const fn as_bytes(&self) -> &[u8; COMM_BYTES] {
        &self.0
    }

    /// The name, with replacement characters for bytes that are not UTF-8.
    pub fn text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(self.bytes())
    }
}

impl From<&str> for Comm {
    /// Keeps the first 15 bytes, as the kernel does: the last one is always zero.
    fn from(text: &str) -> Self {
        let mut bytes = [0; COMM_BYTES];
        for (place, byte) in bytes.iter_mut().zip(text.bytes().take(COMM_BYTES - 1)) {
            *place = byte;
        }
        Self(bytes)
    }
}

impl PartialEq for Comm {
    fn eq(&self, other: &Self) -> bool {
        self.bytes() == other.bytes()
    }
}

impl Eq for Comm {}

impl fmt::Display for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text())
    }
}

impl fmt::Debug for Comm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text(), f)
    }
}

/// An event on a packet: dropped (`kfree_skb`), rejected (`nf_send_unreach`, `nf_send_reset`) or answered with a
/// RST (`tcp_send_reset` and `tcp_v4_send_reset` without a socket), called invalid (`nf_ct_l4proto_log_invalid`), a RST
/// on its way through (`nf_conntrack_tcp_packet`), or an ICMP error (`nf_nat_icmp_reply_translation` and the same
/// over IPv6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PacketFact {
    /// The `struct sk_buff`, whose memory the kernel reuses quickly: two sightings with one value within milliseconds are one
    /// packet. 0 if unknown.
    pub skb: u64,
    /// The packet's addresses at this stage; `None` if its headers could not be read.
    pub tuple: Option<Tuple>,
    /// The TCP flags byte (FIN 1, SYN 2, RST 4, PSH 8, ACK 16), 0 for other protocols.
    pub tcp_flags: u8,
    /// The packet's conntrack entry. The entry of a dropped packet may never be confirmed.
    pub ct: Option<Conntrack>,
    /// Whether the packet travels in its entry's original direction; `None` without an entry.
    pub original_direction: Option<bool>,
    /// The kernel's name of the drop or reset reason (`NETFILTER_DROP`, `NO_SOCKET`…), from BTF. For an invalid packet
    /// the format of the message (`SEQ is over upper bound …`), for an ICMP error its type (`DEST_UNREACH`).
    pub reason: Option<Arc<str>>,
    /// The kernel's function that dropped it, where the kernel gives no reasons and the function is known.
    pub site: Option<&'static str>,
    /// The ICMP code for `nf_send_unreach` (3 = port unreachable) and for an ICMP error.
    pub icmp_code: Option<u8>,
    /// The netfilter hook of a reject: 1 `LOCAL_IN`, 2 `FORWARD`, 3 `LOCAL_OUT`.
    pub nf_hook: Option<u8>,
    /// `early_drop` failed on this CPU just before: the packet found the conntrack table full.
    pub table_full: bool,
}

/// The arguments of `ip_vs_conn_new`: IPVS chose a real server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpvsFact {
    /// From the client to the virtual server. Client port 0 is that of a persistence template.
    pub tuple: Tuple,
    /// The real server.
    pub destination: SocketAddr,
    pub flags: IpvsFlags,
}

impl IpvsFact {
    /// Whether it is a persistence template and no connection.
    pub(crate) fn is_template(&self) -> bool {
        self.tuple.src.port() == 0 || self.flags.has(IpvsFlags::TEMPLATE)
    }

    /// From the real server to the client, as the answer will arrive.
    pub(crate) fn reply(&self) -> Tuple {
        Tuple { protocol: self.tuple.protocol, src: self.destination.into(), dst: self.tuple.src }
    }
}

/// `IP_VS_CONN_F_*` bits (`include/uapi/linux/ip_vs.h`).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct IpvsFlags(pub u32);

impl IpvsFlags {
    /// A template of a persistent service (session affinity): not a connection, but the pattern for later ones.
    pub const TEMPLATE: u32 = tracer_ebpf::IP_VS_CONN_F_TEMPLATE;

    pub const fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

impl fmt::Debug for IpvsFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IpvsFlags({:#x})", self.0)
    }
}

/// TCP states of `include/net/tcp_states.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TcpState {
    Established,
    SynSent,
    SynRecv,
    FinWait1,
    FinWait2,
    TimeWait,
    Close,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    NewSynRecv,
    Other(u8),
}

impl TcpState {
    pub const fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 => Self::SynRecv,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Close,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            12 => Self::NewSynRecv,
            other => Self::Other(other),
        }
    }
}

/// An event on a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFact {
    /// Address of the `struct sock`, which the kernel reuses after the socket is gone.
    pub sk: u64,
    /// From the socket to its peer: `src` is the local address. The peer of a client's socket is the VIP; `src` of a
    /// backend's socket is its Pod address.
    pub tuple: Tuple,
    pub event: SocketEvent,
    pub bytes_acked: u64,
    pub bytes_received: u64,
    pub task: Option<Task>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SocketEvent {
    State {
        old: TcpState,
        new: TcpState,
    },
    /// `bytes` is the length of the segment's data, if known.
    Retransmit {
        state: TcpState,
        bytes: Option<u32>,
    },
    SendReset {
        state: TcpState,
        reason: Option<Arc<str>>,
    },
    ReceiveReset {
        state: TcpState,
    },
}
