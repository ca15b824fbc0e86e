//! The common ground of the kernel half and user space: the layout of records, and the hooks that make them (`hooks`).
//!
//! The kernel half copies, user space decodes: a record carries the first bytes of `struct nf_conn`,
//! `struct sock_common` or the packet's network header exactly as the kernel holds them, and user space
//! reads their fields at the offsets from this kernel's BTF. So the in-kernel path stays a handful of helper calls,
//! needs no knowledge of families, and a recording keeps the bytes that the kernel really held.
//!
//! Every record has a fixed size and a size assertion; nothing here allocates or loops.

#![no_std]
#![forbid(unsafe_code)]

mod hooks;

pub use hooks::{Attach, Cookie, Copies, HOOK_SLOTS, Hook, HookSpec, IPVS, LOST_ANY, Need};

/// Bytes of `struct nf_conn` that a record carries: zone, both tuples and status (offsets 12 to 148 on 5.10, 12 to 140
/// on 6.1 to 7.2). Where the spinlock before them is longer (`PREEMPT_RT`, lock debugging), the copy begins at the zone,
/// and they take 124 bytes.
pub const CT_HEAD_BYTES: usize = 152;
/// Bytes of `struct sock_common` that a record carries: addresses, ports, family, state and both v6 addresses.
pub const SOCK_HEAD_BYTES: usize = 88;
/// Bytes of the packet that a record carries, from its network header: IPv4 with options or IPv6, and the
/// transport header's first 20 bytes.
pub const PACKET_HEAD_BYTES: usize = 64;
/// Bytes of the message about an invalid packet that a record carries.
pub const WHY_BYTES: usize = 64;
/// Length of `task_struct.comm`.
pub const COMM_BYTES: usize = 16;

/// The beginning of every record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Header {
    /// `CLOCK_MONOTONIC`, nanoseconds (`bpf_ktime_get_ns`).
    pub time_ns: u64,
    /// Inode number of the network namespace, 0 if the hook could not read it.
    pub netns: u32,
    pub cpu: u16,
    /// A [`Hook`]'s number.
    pub hook: u8,
    /// One of [`Kind`]'s numbers: which record follows.
    pub kind: u8,
}

/// Which record follows a [`Header`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// [`ConntrackRecord`]
    Conntrack = 1,
    /// [`PacketRecord`]
    Packet = 2,
    /// [`SocketRecord`]
    Socket = 3,
    /// [`TableFullRecord`]
    TableFull = 4,
    /// [`InvalidRecord`]
    Invalid = 5,
    /// [`IpvsRecord`]
    Ipvs = 8,
}

impl Kind {
    /// The kind with this number, if there is one.
    pub const fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Self::Conntrack,
            2 => Self::Packet,
            3 => Self::Socket,
            4 => Self::TableFull,
            5 => Self::Invalid,
            8 => Self::Ipvs,
            _ => return None,
        })
    }

    /// The size of its record, bytes.
    pub const fn record_bytes(self) -> usize {
        match self {
            Self::Conntrack => size_of::<ConntrackRecord>(),
            Self::Packet => size_of::<PacketRecord>(),
            Self::Socket => size_of::<SocketRecord>(),
            Self::TableFull => size_of::<TableFullRecord>(),
            Self::Invalid => size_of::<InvalidRecord>(),
            Self::Ipvs => size_of::<IpvsRecord>(),
        }
    }
}

/// An event on a conntrack entry: confirm, NAT set-up, clash, kill, delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct ConntrackRecord {
    pub header: Header,
    /// Address of the `struct nf_conn`: an identity, never dereferenced by the program.
    pub ct: u64,
    /// `enum ip_conntrack_info` of the packet, or [`CTINFO_NONE`] where the hook has no packet.
    pub ctinfo: u32,
    /// For [`Hook::NatSetup`] `enum nf_nat_manip_type`, for [`Hook::Delete`] the netlink port id, for a
    /// [`Decision`] that was handed over its age, milliseconds, at least 1; otherwise 0.
    pub detail: u32,
    /// The current task, the sender's own only where a local process sent this very packet.
    pub pid: u32,
    /// For [`Hook::Confirm`] and [`Hook::Delete`] `nf_conn.proto.tcp.state` (`enum tcp_conntrack`), which means nothing
    /// for other protocols; [`MISSING`] where it was not read.
    pub tcp_state: u32,
    pub comm: [u8; COMM_BYTES],
    pub ct_head: [u8; CT_HEAD_BYTES],
}

/// An event on a packet: dropped, rejected, answered with a RST.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PacketRecord {
    pub header: Header,
    /// Address of the `struct sk_buff`: orders the stages of one packet, nothing else.
    pub skb: u64,
    /// Address of the packet's `struct nf_conn`, 0 where it has none.
    pub ct: u64,
    /// `enum ip_conntrack_info` of the packet, or [`CTINFO_NONE`].
    pub ctinfo: u32,
    /// For [`Hook::KfreeSkb`] the drop reason, for the RST hooks the reset reason, by this kernel's numbers;
    /// for [`Hook::SendUnreach`] and [`Hook::SendUnreach6`] the code of their family's ICMP. [`REASON_NONE`] where the
    /// kernel gives none.
    pub reason: u32,
    /// `enum nf_inet_hooks` for the reject hooks, otherwise 0.
    pub nf_hook: u32,
    /// [`FLAG_TABLE_FULL`], and for [`Hook::KfreeSkb`] above [`SITE_SHIFT`] the number of a [`DropSite`], 0 for any other
    /// place.
    pub flags: u32,
    pub packet_head: [u8; PACKET_HEAD_BYTES],
    /// All zero where `ct` is 0.
    pub ct_head: [u8; CT_HEAD_BYTES],
}

/// A packet that conntrack calls invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct InvalidRecord {
    pub packet: PacketRecord,
    /// The beginning of the message's format, up to its NUL; all zero where it could not be read.
    pub why: [u8; WHY_BYTES],
}

/// An event on a socket: state change, RST sent or received, retransmit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct SocketRecord {
    pub header: Header,
    /// Address of the `struct sock`: an identity, never dereferenced by the program.
    pub sk: u64,
    /// TCP states (`include/net/tcp_states.h`); equal where the hook is not a change of state.
    pub old_state: u8,
    pub new_state: u8,
    pub protocol: u16,
    /// `enum sk_rst_reason` where the kernel gives one, for [`Hook::TcpRetransmit`] the bytes of the segment
    /// (`sk_buff.len`), else [`REASON_NONE`].
    pub reason: u32,
    /// `tcp_sock.bytes_acked`, bytes, at a close and a retransmit; 0 where unknown.
    pub bytes_acked: u64,
    /// `tcp_sock.bytes_received`, bytes, likewise.
    pub bytes_received: u64,
    pub pid: u32,
    /// `inet_sock.inet_sport`, network byte order, where `skc_num` is 0 already: of a closed socket that sends a RST
    /// (`tcp_set_state` puts the port back first). 0 where it was not read.
    pub sport: u16,
    pub reserved: u16,
    pub comm: [u8; COMM_BYTES],
    pub sock_head: [u8; SOCK_HEAD_BYTES],
}

/// The outcome of one `early_drop`: whether room was made in a full conntrack table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TableFullRecord {
    pub header: Header,
    /// 1 where an entry was evicted (pressure), 0 where none could be (the packet is dropped).
    pub freed: u32,
    pub reserved: u32,
}

/// A connection entry that IPVS makes: what `ip_vs_conn_new` was called with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct IpvsRecord {
    pub header: Header,
    /// `IP_VS_CONN_F_*`; the destination's flags are added later (`ip_vs_bind_dest`).
    pub flags: u32,
    /// `AF_INET` or `AF_INET6`: of client and virtual address, and of the real server (a tunnel's may differ).
    pub family: u16,
    pub dest_family: u16,
    /// Addresses as the kernel holds them (IPv4 in the first four bytes, the rest is meaningless).
    pub client: [u8; 16],
    pub virtual_address: [u8; 16],
    pub destination: [u8; 16],
    /// Network byte order. A client's port 0 is that of a persistence template.
    pub client_port: u16,
    pub virtual_port: u16,
    pub destination_port: u16,
    pub protocol: u16,
}

/// One end of a connection: the key of a kept [`Decision`] or [`Choice`], and of the ends that Services have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct End {
    /// Network byte order; IPv4 in the first word, the rest zero.
    pub address: [u32; 4],
    /// Network byte order.
    pub port: u16,
    /// `IPPROTO_*`. In [`map::SERVICES`] port and protocol 0 stand for all of an address.
    pub protocol: u16,
}

/// NAT's decision for one connection, kept until a failure meets the connection or newer ones need the room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Decision {
    /// When the entry was confirmed, `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// Address of the `struct nf_conn`.
    pub ct: u64,
    /// The client by which the decision is found.
    pub client: End,
    /// As in [`ConntrackRecord::tcp_state`].
    pub tcp_state: u32,
    /// Its standing with the limits of failures: 0 until one meets it.
    pub standing: u32,
    pub reserved: u32,
    /// As in [`ConntrackRecord::ct_head`]. The words that nothing reads are 0.
    pub ct_head: [u32; CT_HEAD_BYTES / 4],
}

/// Decisions whose clients have one hash: the newest takes the place of the oldest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DecisionSet {
    /// How many were kept in it; the next one's place is its remainder.
    pub kept: u64,
    pub decisions: [Decision; DECISIONS_PER_SET],
}

/// A power of two. With 8, one of a hundred decisions is given up by the time that a third of their number followed it.
pub const DECISIONS_PER_SET: usize = 8;

/// IPVS's choice of a real server for one connection, kept as a [`Decision`] is. Client and protocol are its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Choice {
    /// When IPVS made its entry, `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    /// When it made the persistence template of this choice; 0 where there is none, or it existed before.
    pub template_ns: u64,
    pub netns: u32,
    /// As in [`IpvsRecord`], like the rest.
    pub flags: u32,
    pub family: u16,
    pub dest_family: u16,
    pub virtual_port: u16,
    pub destination_port: u16,
    /// Network byte order; IPv4 in the first word, the rest zero.
    pub virtual_address: [u32; 4],
    pub destination: [u32; 4],
    /// 1 once it was reported.
    pub is_reported: u32,
    pub reserved: u32,
}

/// The connections that [`map::COUNTS`] counts together: one Service port, by its address, and one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct CountKey {
    /// The destination behind NAT; the Service's own where nothing was translated. With its port and the family it has the order of
    /// the first half of a `struct nf_conntrack_tuple`, as the Service has that of the other half: the kernel half counts by whole
    /// words of two tuples.
    pub endpoint: [u32; 4],
    /// Network byte order.
    pub endpoint_port: u16,
    /// `AF_INET` or `AF_INET6`.
    pub family: u16,
    /// The destination before NAT.
    pub service: End,
}

/// The connections of one [`CountKey`], in a place of [`map::TALLIES`] that its hash chooses: counted there without a search.
/// A pair whose place another one owns is counted in [`map::COUNTS`], and so is each pair's first connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Tally {
    /// All zero where the place is free.
    pub key: CountKey,
    pub count: u64,
}

/// The failures that share a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct BucketKey {
    /// All zero where all clients share the limit.
    pub client: [u32; 4],
    /// All zero where no end is a Service's.
    pub service: [u32; 4],
    pub netns: u32,
    /// The lower 23 bits of the record's; 0 where it has none.
    pub reason: u32,
    /// A [`Hook`]'s number.
    pub hook: u32,
}

/// A token bucket. Its unit is the time that one event costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Bucket {
    /// When an event last came, `CLOCK_MONOTONIC`, nanoseconds.
    pub time_ns: u64,
    pub credit_ns: u64,
    /// Events that were not reported.
    pub suppressed: u64,
}

/// No packet, so no `ip_conntrack_info`.
pub const CTINFO_NONE: u32 = u32::MAX;
/// The kernel gives no reason here.
pub const REASON_NONE: u32 = u32::MAX;
/// [`PacketRecord::flags`]: `early_drop` had just failed on this CPU, so this packet found the table full.
pub const FLAG_TABLE_FULL: u32 = 1;
/// [`PacketRecord::flags`]: the bits below the number of the [`DropSite`].
pub const SITE_SHIFT: u32 = 8;

/// A function of the kernel that drops packets: the caller of `kfree_skb`. It is looked up where the kernel gives no
/// reasons. The numbers are part of the recording format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropSite {
    /// A rule's verdict, whatever program wrote it; also an entry that could not be inserted, or a packet that IPVS drops.
    NfHookSlow = 1,
    /// The next hop's address was not found, in IPv4 and in IPv6.
    ArpErrorReport = 2,
    NdiscErrorReport = 3,
    /// The next hop is known to be unreachable, or too many packets wait for its address.
    NeighEventSend = 4,
    /// The packet's route is an error.
    IpError = 5,
    IpForward = 6,
    Ip6Forward = 7,
    Ip6PktDrop = 8,
}

impl DropSite {
    pub const ALL: [Self; 8] = [
        Self::NfHookSlow,
        Self::ArpErrorReport,
        Self::NdiscErrorReport,
        Self::NeighEventSend,
        Self::IpError,
        Self::IpForward,
        Self::Ip6Forward,
        Self::Ip6PktDrop,
    ];

    /// The kernel's name of the function.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::NfHookSlow => "nf_hook_slow",
            Self::ArpErrorReport => "arp_error_report",
            Self::NdiscErrorReport => "ndisc_error_report",
            Self::NeighEventSend => "__neigh_event_send",
            Self::IpError => "ip_error",
            Self::IpForward => "ip_forward",
            Self::Ip6Forward => "ip6_forward",
            Self::Ip6PktDrop => "ip6_pkt_drop",
        }
    }

    /// The kernel half's globals with the function's first address and the one behind it.
    pub const fn globals(self) -> [&'static str; 2] {
        match self {
            Self::NfHookSlow => ["SITE_1", "SITE_1_END"],
            Self::ArpErrorReport => ["SITE_2", "SITE_2_END"],
            Self::NdiscErrorReport => ["SITE_3", "SITE_3_END"],
            Self::NeighEventSend => ["SITE_4", "SITE_4_END"],
            Self::IpError => ["SITE_5", "SITE_5_END"],
            Self::IpForward => ["SITE_6", "SITE_6_END"],
            Self::Ip6Forward => ["SITE_7", "SITE_7_END"],
            Self::Ip6PktDrop => ["SITE_8", "SITE_8_END"],
        }
    }
}

/// The slots of [`map::SUPPRESSED`]: events that a bucket refused, and connections for which [`map::COUNTS`] had no room.
pub const SUPPRESSED_EVENTS: u32 = 0;
pub const UNCOUNTED: u32 = 1;
pub const SUPPRESSED_SLOTS: u32 = 2;

/// The value of an offset or argument position that this kernel does not have.
pub const MISSING: u32 = u32::MAX;

/// `IP_CT_NEW`: the packet is the first of its entry, original direction
/// (`include/uapi/linux/netfilter/nf_conntrack_common.h`).
pub const IP_CT_NEW: u32 = 2;
/// `IPS_SEEN_REPLY`: the other side has answered.
pub const IPS_SEEN_REPLY: u32 = 1 << 1;
/// `IP_VS_CONN_F_TEMPLATE`: a persistence template (`include/uapi/linux/ip_vs.h`).
pub const IP_VS_CONN_F_TEMPLATE: u32 = 1 << 12;
/// A persistence template and its connection come from one call of `ip_vs_sched_persist`; an emulated machine may stall
/// between them.
pub const SAME_IPVS_CALL_NS: u64 = 20_000_000;
/// `IPS_CONFIRMED`: the entry is in the table.
pub const IPS_CONFIRMED: u32 = 1 << 3;

const _: () = {
    assert!(size_of::<Header>() == 16);
    assert!(size_of::<ConntrackRecord>() == 16 + 24 + COMM_BYTES + CT_HEAD_BYTES);
    assert!(size_of::<PacketRecord>() == 16 + 32 + PACKET_HEAD_BYTES + CT_HEAD_BYTES);
    assert!(size_of::<SocketRecord>() == 16 + 40 + COMM_BYTES + SOCK_HEAD_BYTES);
    assert!(size_of::<TableFullRecord>() == 24);
    assert!(size_of::<IpvsRecord>() == 16 + 8 + 3 * 16 + 8);
    assert!(size_of::<InvalidRecord>() == size_of::<PacketRecord>() + WHY_BYTES);
    assert!(size_of::<End>() == 20);
    assert!(size_of::<Decision>() == 48 + CT_HEAD_BYTES);
    assert!(size_of::<DecisionSet>() == 8 + DECISIONS_PER_SET * size_of::<Decision>());
    assert!(DECISIONS_PER_SET.is_power_of_two());
    assert!(size_of::<CountKey>() == 40);
    // The words of two tuples, as the kernel half compares them.
    assert!(
        core::mem::offset_of!(CountKey, endpoint_port) == 16
            && core::mem::offset_of!(CountKey, service) == 20
    );
    assert!(size_of::<Tally>() == 48 && core::mem::offset_of!(Tally, count) == size_of::<CountKey>());
    assert!(size_of::<BucketKey>() == 44);
    assert!(size_of::<Bucket>() == 24);
};

/// Asks for the address of a function.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SymbolQuery {
    /// The function's name in memory order, with zeroes behind it: at least one.
    pub name: [u64; SYMBOL_BYTES / 8],
    /// The answer.
    pub address: u64,
}

/// The longest name of a [`SymbolQuery`], and one byte. The kernel's may have 512 (`KSYM_NAME_LEN`); a hook's have fewer than 40.
pub const SYMBOL_BYTES: usize = 64;

/// In the place of a helper's number: user space puts the call of a function of the kernel there (`bpf_rdonly_cast`).
pub const CAST_CALL: u32 = 0x7fff_0001;

/// Names of the kernel half's functions that not every trace calls.
pub mod function {
    /// The program that failing tracepoints share.
    pub const SHARED_TRACEPOINT: &str = "failing_tracepoint";
    /// The program that functions with a [`super::Cookie`] share.
    pub const SHARED: &str = "failing";
    /// The program that answers a [`super::SymbolQuery`].
    pub const FIND_SYMBOL: &str = "find_symbol";
    /// The debug lines.
    pub const MESSAGES: [&str; 5] = ["no_room", "unreadable", "unknown_family", "not_begun", "moved"];
    /// The filter of a targeted trace.
    pub const OF_FILTER: [&str; 3] = ["is_target_ct", "is_target_packet", "is_target_socket"];
    /// What a recorder decides about an event, and keeps.
    pub const OF_RECORDER: [&str; 3] = ["admits_failure", "keep", "take_token"];
}

/// Names of the kernel half's maps.
pub mod map {
    /// Ring buffer of records.
    pub const EVENTS: &str = "EVENTS";
    /// Per-CPU array: records lost for lack of room, one slot per [`super::Hook`].
    pub const LOST: &str = "LOST";
    /// Hash set of addresses (16 bytes, IPv4 in its first four) that a targeted trace lets through.
    pub const TARGETS: &str = "TARGETS";
    /// Array of [`super::DecisionSet`]s, by a hash of the client's [`super::End`].
    pub const DECISIONS: &str = "DECISIONS";
    /// LRU hash: [`super::End`] of a client to [`super::Choice`].
    pub const CHOICES: &str = "CHOICES";
    /// Hash: [`super::CountKey`] to the connections started.
    pub const COUNTS: &str = "COUNTS";
    /// Array of [`super::Tally`]s, by a hash of their key.
    pub const TALLIES: &str = "TALLIES";
    /// Hash set of the places in [`TALLIES`] that a pair owns.
    pub const TALLY_OWNERS: &str = "TALLY_OWNERS";
    /// Hash set of [`super::End`]s that belong to Services.
    pub const SERVICES: &str = "SERVICES";
    /// LRU hash: [`super::BucketKey`] to [`super::Bucket`].
    pub const BUCKETS: &str = "BUCKETS";
    /// Per-CPU array of counts, at [`super::SUPPRESSED_EVENTS`] and [`super::UNCOUNTED`].
    pub const SUPPRESSED: &str = "SUPPRESSED";
    /// Array of programs: the one with which the chosen copy of several continues.
    pub const CHOSEN: &str = "CHOSEN";
    /// Ring buffer of aya-log's debug lines, each of which begins with a hook's number and a space.
    pub const MESSAGES: &str = "AYA_LOGS";
}
