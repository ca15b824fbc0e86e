//! Turns records into sightings: the one place that reads what the kernel half copied.
//!
//! Pure over byte slices and a [`Layout`], so that tests, fuzzing and recordings use the same code as a live kernel. A
//! record that cannot be read is counted and never guessed at.

mod mask;
mod rewrite;

use std::{
    mem::offset_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use bytes::Buf;
use network_types::{
    ip::{Ipv4Hdr, Ipv6Hdr},
    tcp::TcpHdr,
    udp::UdpHdr,
};
use tracer_ebpf::{
    COMM_BYTES, CT_HEAD_BYTES, CTINFO_NONE, ConntrackRecord, DropSite, FLAG_TABLE_FULL, Hook, Kind, MISSING,
    PACKET_HEAD_BYTES, REASON_NONE, SITE_SHIFT, SOCK_HEAD_BYTES, SocketRecord, WHY_BYTES,
};

use super::{encode, layout::Layout};
use crate::{
    net::{Netns, Protocol, TransportAddr, Tuple},
    sighting::{
        Comm, Conntrack, ConntrackFact, EntryNote, Fact, IpvsFact, IpvsFlags, ListedEntry, PacketFact,
        Sighting, SocketEvent, SocketFact, Status, Task, TcpState,
    },
    time::Timestamp,
};

pub use mask::Mask;
pub(crate) use mask::{Object, PortPlaces, renumber};
pub(crate) use rewrite::{Replace, Rewriter};

pub(super) const AF_INET: u16 = 2;
pub(super) const AF_INET6: u16 = 10;
/// `enum ip_conntrack_info`: values of `IP_CT_IS_REPLY` (3) and above travel against the original direction.
const IP_CT_IS_REPLY: u32 = 3;

/// Why a record could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("a record of {length} bytes is too short for its header")]
    NoHeader { length: usize },
    #[error("record kind {kind} is unknown")]
    UnknownKind { kind: u8 },
    #[error("hook number {hook} is unknown")]
    UnknownHook { hook: u8 },
    #[error("{hook} makes no record of kind {kind}")]
    WrongKind { hook: &'static str, kind: u8 },
    #[error("a record of kind {kind} has {length} bytes where {expected} belong")]
    WrongLength { kind: u8, length: usize, expected: usize },
    #[error("the layout lacks a field that this record needs, or places it outside the record")]
    Unreadable,
}

/// Turns records into sightings on one kernel's layout and clock.
#[derive(Clone, Debug)]
pub struct Decoder {
    fields: Fields,
    layout: Arc<Layout>,
    /// Nanoseconds to add to the kernel's monotonic time to get Unix time.
    clock_offset_ns: u64,
}

/// The time and the tuples of a record.
pub type Addresses = (Timestamp, [Option<Tuple>; 2]);

/// The header of a record, and what follows it.
struct Head<'r> {
    time: Timestamp,
    netns: Netns,
    cpu: u16,
    hook: Hook,
    kind: Kind,
    rest: &'r [u8],
}

/// The offsets used for each record, looked up once.
#[derive(Clone, Copy, Debug)]
struct Fields {
    orig: Option<usize>,
    reply: Option<usize>,
    zone: Option<usize>,
    status: Option<usize>,
    tuple: Option<TupleFields>,
    sock: Option<SockFields>,
}

#[derive(Clone, Copy, Debug)]
struct TupleFields {
    src: usize,
    src_port: usize,
    l3num: usize,
    dst: usize,
    dst_port: usize,
    protonum: usize,
}

#[derive(Clone, Copy, Debug)]
struct SockFields {
    family: usize,
    daddr: usize,
    saddr: usize,
    v6_daddr: Option<usize>,
    v6_saddr: Option<usize>,
    dport: usize,
    num: usize,
}

impl Fields {
    fn new(layout: &Layout) -> Self {
        let at = |name| layout.offset(name).map(|offset| offset as usize);
        let tuple = || {
            Some(TupleFields {
                src: at("TUPLE_SRC")?,
                src_port: at("TUPLE_SRC_PORT")?,
                l3num: at("TUPLE_L3NUM")?,
                dst: at("TUPLE_DST")?,
                dst_port: at("TUPLE_DST_PORT")?,
                protonum: at("TUPLE_PROTONUM")?,
            })
        };
        let sock = || {
            Some(SockFields {
                family: at("OFF_SK_FAMILY")?,
                daddr: at("OFF_SK_DADDR")?,
                saddr: at("OFF_SK_SADDR")?,
                v6_daddr: at("OFF_SK_V6_DADDR"),
                v6_saddr: at("OFF_SK_V6_SADDR"),
                dport: at("SK_DPORT")?,
                num: at("SK_NUM")?,
            })
        };
        Self {
            orig: layout.offset_in_entry("CT_ORIG"),
            reply: layout.offset_in_entry("CT_REPLY"),
            zone: layout.offset_in_entry("CT_ZONE"),
            status: layout.offset_in_entry("OFF_CT_STATUS"),
            tuple: tuple(),
            sock: sock(),
        }
    }
}

/// Whether the record is an entry that was read again on request, at an address that may have been reused.
pub(crate) fn is_reread(record: &[u8]) -> bool {
    record.get(offset_of!(tracer_ebpf::Header, hook)) == Some(&(Hook::EntryReread as u8))
}

impl Decoder {
    /// A decoder for one kernel; `clock_offset_ns` converts its monotonic time to Unix time.
    pub fn new(layout: Arc<Layout>, clock_offset_ns: u64) -> Self {
        Self { fields: Fields::new(&layout), layout, clock_offset_ns }
    }

    /// The time and the hook of a record; `None` if it is too short or names no known hook.
    pub(crate) fn head(&self, record: &[u8]) -> Option<(Timestamp, Hook)> {
        let time_ns = u64::from_ne_bytes(bytes_at(record, offset_of!(tracer_ebpf::Header, time_ns))?);
        let hook = Hook::from_number(*record.get(offset_of!(tracer_ebpf::Header, hook))?)?;
        Some((Timestamp::from_unix_ns(time_ns.wrapping_add(self.clock_offset_ns)), hook))
    }

    /// Only the entry of a record of an entry.
    pub(crate) fn entry_of(&self, record: &[u8]) -> Result<Conntrack, DecodeError> {
        let kind = Kind::Conntrack as u8;
        let (length, expected) = (record.len(), Kind::Conntrack.record_bytes());
        if record.get(offset_of!(tracer_ebpf::Header, kind)) != Some(&kind) || length != expected {
            return Err(DecodeError::WrongLength { kind, length, expected });
        }
        let id = bytes_at(record, offset_of!(ConntrackRecord, ct)).ok_or(DecodeError::Unreadable)?;
        let head = record.get(offset_of!(ConntrackRecord, ct_head)..).ok_or(DecodeError::Unreadable)?;
        self.entry(u64::from_ne_bytes(id), head)
    }

    /// The time and the addresses of a record of an entry or a socket, as [`Self::decode`] has them; `None` for another
    /// kind. Costs a third of it.
    pub fn addresses(&self, record: &[u8]) -> Result<Option<Addresses>, DecodeError> {
        let Head { time, kind, .. } = self.split(record)?;
        let tuples = match kind {
            Kind::Conntrack => {
                let ct = self.entry_of(record)?;
                [Some(ct.orig), Some(ct.reply)]
            }
            Kind::Socket => {
                let ends = || {
                    let protocol = u16_at(record, offset_of!(SocketRecord, protocol))?;
                    let bound = u16::from_be_bytes(bytes_at(record, offset_of!(SocketRecord, sport))?);
                    let head = record.get(offset_of!(SocketRecord, sock_head)..)?;
                    let (src, dst) = self.socket_ends(head, bound)?;
                    Some(Tuple { protocol: Protocol(u8::try_from(protocol).ok()?), src, dst })
                };
                [Some(ends().ok_or(DecodeError::Unreadable)?), None]
            }
            Kind::Packet | Kind::Invalid | Kind::Ipvs | Kind::TableFull => return Ok(None),
        };
        Ok(Some((time, tuples)))
    }

    /// Decodes one record.
    pub fn decode(&self, record: &[u8]) -> Result<Sighting, DecodeError> {
        let mut sighting = Sighting::blank();
        self.decode_into(record, &mut sighting)?;
        Ok(sighting)
    }

    /// As [`Self::decode`], into the place of an earlier sighting. After an error, nothing is known of its contents.
    pub(crate) fn decode_into(&self, record: &[u8], into: &mut Sighting) -> Result<(), DecodeError> {
        let Head { time, netns, cpu, hook, kind, mut rest } = self.split(record)?;
        // Each kind is written to its place: one assignment for all copies the largest.
        match kind {
            Kind::Conntrack => into.fact = Fact::Conntrack(self.conntrack(hook, time, rest)?),
            Kind::Packet => into.fact = Fact::Packet(self.packet(hook, rest)?),
            Kind::Invalid => into.fact = Fact::Packet(self.invalid(hook, rest)?),
            Kind::Socket => into.fact = Fact::Socket(self.socket(hook, rest)?),
            Kind::Ipvs => into.fact = Fact::Ipvs(ipvs(rest).ok_or(DecodeError::Unreadable)?),
            Kind::TableFull => into.fact = Fact::TableFull { freed: rest.get_u32_ne() != 0 },
        }
        (into.time, into.cpu, into.hook, into.netns) = (time, cpu, hook, netns);
        Ok(())
    }

    /// The header of a record, which has the length and the hook of its kind.
    #[inline]
    fn split<'r>(&self, record: &'r [u8]) -> Result<Head<'r>, DecodeError> {
        let mut rest = record;
        let time_ns = rest.try_get_u64_ne().map_err(|_| DecodeError::NoHeader { length: record.len() })?;
        if rest.remaining() < 8 {
            return Err(DecodeError::NoHeader { length: record.len() });
        }
        let netns = Netns(rest.get_u32_ne());
        let cpu = rest.get_u16_ne();
        let hook = rest.get_u8();
        let kind = rest.get_u8();
        let hook = Hook::from_number(hook).ok_or(DecodeError::UnknownHook { hook })?;
        let kind = Kind::from_number(kind).ok_or(DecodeError::UnknownKind { kind })?;
        if !hook.spec().records.contains(&kind) {
            return Err(DecodeError::WrongKind { hook: hook.symbol(), kind: kind as u8 });
        }
        if record.len() != kind.record_bytes() {
            let (length, expected) = (record.len(), kind.record_bytes());
            return Err(DecodeError::WrongLength { kind: kind as u8, length, expected });
        }
        let time = Timestamp::from_unix_ns(time_ns.wrapping_add(self.clock_offset_ns));
        Ok(Head { time, netns, cpu, hook, kind, rest })
    }

    /// Reads the record of an entry from a listing, and returns it with the record's bytes.
    pub fn listed(&self, entry: &ListedEntry, netns: Netns) -> Option<(Sighting, impl AsRef<[u8]> + use<>)> {
        let record = encode::record(entry, netns, &self.layout, self.clock_offset_ns)?;
        self.decode(&record).ok().map(|sighting| (sighting, record))
    }

    fn conntrack(&self, hook: Hook, time: Timestamp, mut rest: &[u8]) -> Result<ConntrackFact, DecodeError> {
        let id = rest.get_u64_ne();
        rest.advance(4); // ctinfo: follows from the hook
        let detail = rest.get_u32_ne();
        let pid = rest.get_u32_ne();
        let tcp_state = u8::try_from(rest.get_u32_ne()).ok();
        let (comm, head) = rest.split_at(COMM_BYTES);
        let ct = self.entry(id, head)?;
        let note = EntryNote {
            tcp_state: tcp_state.filter(|_| {
                matches!(hook, Hook::Confirm | Hook::Delete) && ct.orig.protocol == Protocol::TCP
            }),
            deleted_by: (hook == Hook::Delete && detail != 0).then_some(detail),
            last_packet: (hook == Hook::EntryReread && id == 0 && detail != MISSING)
                .then(|| time.saturating_sub(Duration::from_secs(detail.into()))),
            handed_over: (hook == Hook::Confirm && detail != 0)
                .then(|| time.saturating_add(Duration::from_millis(detail.into()))),
        };
        Ok(ConntrackFact { ct, task: task(pid, comm), note })
    }

    /// A packet record, followed by the reason in words.
    fn invalid(&self, hook: Hook, rest: &[u8]) -> Result<PacketFact, DecodeError> {
        let (packet, why) = rest
            .len()
            .checked_sub(WHY_BYTES)
            .and_then(|at| rest.split_at_checked(at))
            .ok_or(DecodeError::Unreadable)?;
        let mut fact = self.packet(hook, packet)?;
        let end = why.iter().position(|byte| *byte == 0).unwrap_or(why.len());
        let text = String::from_utf8_lossy(why.get(..end).unwrap_or_default());
        fact.reason = (!text.trim().is_empty()).then(|| Arc::from(text.trim()));
        Ok(fact)
    }

    fn packet(&self, hook: Hook, mut rest: &[u8]) -> Result<PacketFact, DecodeError> {
        let skb = rest.get_u64_ne();
        let ct = rest.get_u64_ne();
        let ctinfo = rest.get_u32_ne();
        let reason = rest.get_u32_ne();
        let nf_hook = rest.get_u32_ne();
        let flags = rest.get_u32_ne();
        let (packet, head) = rest.split_at(PACKET_HEAD_BYTES);
        let (tuple, tcp_flags) = match packet_tuple(packet) {
            Some((tuple, flags)) => (Some(tuple), flags),
            None => (None, 0),
        };
        let icmp = if hook.is_icmp_error() { icmp_error(packet) } else { None };
        let rejects = hook.is_unreach() || hook.is_forged_reset();
        let site = DropSite::ALL.into_iter().find(|site| *site as u32 == flags >> SITE_SHIFT);
        let reason_name = match hook {
            Hook::KfreeSkb | Hook::IpVsConnExpire => self.layout.drop_reason(reason),
            Hook::TcpSendReset | Hook::TcpV4SendReset | Hook::TcpV6SendReset => {
                self.layout.reset_reason(reason)
            }
            _ => None,
        };
        Ok(PacketFact {
            skb,
            tuple,
            tcp_flags,
            ct: if ct == 0 { None } else { Some(self.entry(ct, head)?) },
            original_direction: (ctinfo != CTINFO_NONE).then_some(ctinfo < IP_CT_IS_REPLY),
            reason: match reason_name {
                Some(name) => Some(Arc::clone(name)),
                None if reason == REASON_NONE && site.is_some() => site.and_then(reason_at).map(Arc::from),
                None if icmp.is_some() => icmp.map(|(kind, _)| Arc::from(icmp_type(hook, kind))),
                None if reason == REASON_NONE || hook.is_unreach() => None,
                None => Some(Arc::from(format!("reason {reason}"))),
            },
            icmp_code: match icmp {
                Some((_, code)) => Some(code),
                None if hook.is_unreach() => u8::try_from(reason).ok(),
                None => None,
            },
            nf_hook: if rejects { u8::try_from(nf_hook).ok() } else { None },
            site: site.map(DropSite::symbol),
            table_full: flags & FLAG_TABLE_FULL != 0,
        })
    }

    fn socket(&self, hook: Hook, mut rest: &[u8]) -> Result<SocketFact, DecodeError> {
        let sk = rest.get_u64_ne();
        let old = TcpState::from_number(rest.get_u8());
        let new = TcpState::from_number(rest.get_u8());
        let protocol = Protocol(u8::try_from(rest.get_u16_ne()).map_err(|_| DecodeError::Unreadable)?);
        let reason = rest.get_u32_ne();
        let bytes_acked = rest.get_u64_ne();
        let bytes_received = rest.get_u64_ne();
        let pid = rest.get_u32_ne();
        let sport = rest.get_u16();
        rest.advance(2);
        let (comm, head) = rest.split_at(COMM_BYTES);
        let (src, dst) = self.socket_ends(head, sport).ok_or(DecodeError::Unreadable)?;
        let event = match hook {
            Hook::TcpRetransmit => {
                SocketEvent::Retransmit { state: new, bytes: (reason != REASON_NONE).then_some(reason) }
            }
            Hook::TcpReceiveReset => SocketEvent::ReceiveReset { state: new },
            Hook::TcpSendReset => SocketEvent::SendReset {
                state: new,
                reason: self.layout.reset_reason(reason).map(Arc::clone),
            },
            _ => SocketEvent::State { old, new },
        };
        Ok(SocketFact {
            sk,
            tuple: Tuple { protocol, src, dst },
            event,
            bytes_acked,
            bytes_received,
            task: task(pid, comm),
        })
    }

    fn entry(&self, id: u64, head: &[u8]) -> Result<Conntrack, DecodeError> {
        let fields = &self.fields;
        let (Some(orig), Some(reply), Some(status), Some(tuple)) =
            (fields.orig, fields.reply, fields.status, &fields.tuple)
        else {
            return Err(DecodeError::Unreadable);
        };
        let head = head.get(..CT_HEAD_BYTES).ok_or(DecodeError::Unreadable)?;
        let read = || {
            Some(Conntrack {
                id,
                zone: fields.zone.and_then(|at| u16_at(head, at)).unwrap_or(0),
                status: Status(u32::from_ne_bytes(bytes_at(head, status)?)),
                orig: tuple_at(head.get(orig..)?, tuple)?,
                reply: tuple_at(head.get(reply..)?, tuple)?,
            })
        };
        read().ok_or(DecodeError::Unreadable)
    }

    /// The local end, whose port is `bound` where the socket has none any more, and the peer.
    fn socket_ends(&self, head: &[u8], bound: u16) -> Option<(TransportAddr, TransportAddr)> {
        let fields = self.fields.sock.as_ref()?;
        let head = head.get(..SOCK_HEAD_BYTES)?;
        // skc_num is in host order, skc_dport in network order (include/net/sock.h).
        let (num, dport) = (u16_at(head, fields.num)?, u16::from_be_bytes(bytes_at(head, fields.dport)?));
        let family = u16_at(head, fields.family)?;
        let (saddr, daddr) = if family == AF_INET6 {
            (fields.v6_saddr?, fields.v6_daddr?)
        } else {
            (fields.saddr, fields.daddr)
        };
        let local = transport_addr_at(head, saddr, family, if num == 0 { bound } else { num })?;
        Some((local, transport_addr_at(head, daddr, family, dport)?))
    }
}

/// The task of a record; `None` if the hook read none.
fn task(pid: u32, comm: &[u8]) -> Option<Task> {
    let comm = Comm::new(comm.try_into().ok()?);
    (pid != 0 || !comm.is_empty()).then_some(Task { pid, comm })
}

/// The reason that later kernels give for a drop in this function (`include/net/dropreason-core.h`); `None` where it has
/// several.
const fn reason_at(site: DropSite) -> Option<&'static str> {
    match site {
        DropSite::NfHookSlow => Some("NETFILTER_DROP"),
        DropSite::ArpErrorReport | DropSite::NdiscErrorReport | DropSite::NeighEventSend => {
            Some("NEIGH_FAILED")
        }
        DropSite::IpError | DropSite::IpForward | DropSite::Ip6Forward | DropSite::Ip6PktDrop => None,
    }
}

pub(super) fn bytes_at<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes_at(bytes, at).map(u16::from_ne_bytes)
}

/// An address of this family.
pub(super) fn ip_at(bytes: &[u8], at: usize, family: u16) -> Option<IpAddr> {
    match family {
        AF_INET => Some(Ipv4Addr::from(bytes_at::<4>(bytes, at)?).into()),
        AF_INET6 => Some(Ipv6Addr::from(bytes_at::<16>(bytes, at)?).into()),
        _ => None,
    }
}

/// An address of this family, with this port.
fn transport_addr_at(bytes: &[u8], at: usize, family: u16, port: u16) -> Option<TransportAddr> {
    match family {
        AF_INET => Some(TransportAddr::v4(bytes_at(bytes, at)?, port)),
        AF_INET6 => Some(TransportAddr::v6(bytes_at(bytes, at)?, port)),
        _ => None,
    }
}

fn ipvs(mut rest: &[u8]) -> Option<IpvsFact> {
    let flags = IpvsFlags(rest.try_get_u32_ne().ok()?);
    let (family, dest_family) = (rest.try_get_u16_ne().ok()?, rest.try_get_u16_ne().ok()?);
    let (addresses, mut ports) = rest.split_at_checked(48)?;
    let mut port = || ports.try_get_u16().ok();
    let client = SocketAddr::new(ip_at(addresses, 0, family)?, port()?);
    let virtual_server = SocketAddr::new(ip_at(addresses, 16, family)?, port()?);
    let destination = SocketAddr::new(ip_at(addresses, 32, dest_family)?, port()?);
    let protocol = Protocol(u8::try_from(ports.try_get_u16_ne().ok()?).ok()?);
    Some(IpvsFact { tuple: Tuple::new(protocol, client, virtual_server), destination, flags })
}

fn tuple_at(bytes: &[u8], fields: &TupleFields) -> Option<Tuple> {
    let family = u16_at(bytes, fields.l3num)?;
    let port = |at: usize| bytes_at(bytes, at).map(u16::from_be_bytes);
    Some(Tuple {
        protocol: Protocol(*bytes.get(fields.protonum)?),
        src: transport_addr_at(bytes, fields.src, family, port(fields.src_port)?)?,
        dst: transport_addr_at(bytes, fields.dst, family, port(fields.dst_port)?)?,
    })
}

/// A packet's transport header: its protocol, and where it begins.
#[derive(Clone, Copy, Debug)]
struct Transport {
    protocol: Protocol,
    at: usize,
}

/// Fragments after the first have no transport header, and IPv6 extension headers hide it.
fn transport(packet: &[u8]) -> Option<Transport> {
    let first = *packet.first()?;
    match first >> 4 {
        4 => {
            let at = usize::from(first & 0xf) * 4;
            let fragment = u16::from_be_bytes(bytes_at(packet, offset_of!(Ipv4Hdr, frags))?) & 0x1fff;
            let protocol = Protocol(*packet.get(offset_of!(Ipv4Hdr, proto))?);
            (at >= Ipv4Hdr::LEN && fragment == 0).then_some(Transport { protocol, at })
        }
        6 => {
            let protocol = Protocol(*packet.get(offset_of!(Ipv6Hdr, next_hdr))?);
            Some(Transport { protocol, at: Ipv6Hdr::LEN })
        }
        _ => None,
    }
}

/// Addresses, ports and TCP flags of a packet, from its network header on. Fragments after the first and packets with
/// IPv6 extension headers have no ports here, and thus no tuple.
fn packet_tuple(packet: &[u8]) -> Option<(Tuple, u8)> {
    let Transport { protocol, at } = transport(packet)?;
    let transport = packet.get(at..)?;
    let (src_port, dst_port) = match protocol {
        // TCP, UDP and SCTP all begin with the two ports.
        Protocol::TCP | Protocol::UDP | Protocol::SCTP => (
            u16::from_be_bytes(bytes_at(transport, offset_of!(UdpHdr, src))?),
            u16::from_be_bytes(bytes_at(transport, offset_of!(UdpHdr, dst))?),
        ),
        _ => (0, 0),
    };
    let flags = if protocol == Protocol::TCP { transport.get(TCP_FLAGS).copied().unwrap_or(0) } else { 0 };
    let (family, src_at, dst_at) = if packet.first()? >> 4 == 4 {
        (AF_INET, offset_of!(Ipv4Hdr, src_addr), offset_of!(Ipv4Hdr, dst_addr))
    } else {
        (AF_INET6, offset_of!(Ipv6Hdr, src_addr), offset_of!(Ipv6Hdr, dst_addr))
    };
    let tuple = Tuple {
        protocol,
        src: transport_addr_at(packet, src_at, family, src_port)?,
        dst: transport_addr_at(packet, dst_at, family, dst_port)?,
    };
    Some((tuple, flags & 0x3f))
}

/// Type and code of an ICMP message of either family, from its network header on.
fn icmp_error(packet: &[u8]) -> Option<(u8, u8)> {
    let Transport { protocol, at } = transport(packet)?;
    let is_ipv4 = packet.first()? >> 4 == 4;
    (protocol == if is_ipv4 { Protocol::ICMP } else { ICMPV6 })
        .then(|| bytes_at::<2>(packet, at))?
        .map(|[kind, code]| (kind, code))
}

const ICMPV6: Protocol = Protocol(58);

/// The kernel's name of an ICMP error's type, without its prefix (`include/uapi/linux/icmp.h`, `icmpv6.h`).
const fn icmp_type(hook: Hook, kind: u8) -> &'static str {
    match (hook, kind) {
        (Hook::IcmpError, 3) | (Hook::IcmpError6, 1) => "DEST_UNREACH",
        (Hook::IcmpError, 4) => "SOURCE_QUENCH",
        (Hook::IcmpError, 5) => "REDIRECT",
        (Hook::IcmpError, 11) => "TIME_EXCEEDED",
        (Hook::IcmpError, 12) => "PARAMETERPROB",
        (Hook::IcmpError6, 2) => "PKT_TOOBIG",
        (Hook::IcmpError6, 3) => "TIME_EXCEED",
        (Hook::IcmpError6, 4) => "PARAMPROB",
        _ => "other",
    }
}

/// The flags are the second byte of the bit field after the acknowledgement number.
const TCP_FLAGS: usize = offset_of!(TcpHdr, ack_seq) + 5;
