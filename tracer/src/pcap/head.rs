//! The headers of one captured packet: its tuple, and what tells it from every other packet of its connection.
//!
//! Owns the link types that are read. Pure over the packet's bytes, which may be cut after the headers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bytes::Buf as _;
use etherparse::{EtherType, LaxNetSlice, LaxSlicedPacket, ether_type};

use super::Packet;
use crate::net::{Protocol, Tuple, flag};

/// Link types (`LINKTYPE_…`, <https://www.tcpdump.org/linktypes.html>).
mod link {
    pub(super) const NULL: u16 = 0;
    pub(super) const ETHERNET: u16 = 1;
    /// Raw IP, as some systems number it in files.
    pub(super) const RAW_BSD: u16 = 12;
    pub(super) const RAW_OPENBSD: u16 = 14;
    pub(super) const RAW: u16 = 101;
    pub(super) const LOOP: u16 = 108;
    pub(super) const LINUX_SLL: u16 = 113;
    pub(super) const IPV4: u16 = 228;
    pub(super) const IPV6: u16 = 229;
    pub(super) const LINUX_SLL2: u16 = 276;
}

/// `struct sll_header`: the packet's type first, the protocol last, bytes.
const SLL_BYTES: usize = 16;
/// `struct sll2_header`: the protocol, 2 bytes of zeros, the interface's index, and the packet's type at byte 10.
const SLL2_BYTES: usize = 20;
/// The packet type of a packet that this host sends.
const OUTGOING: u16 = 4;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// The bytes of an ICMP error before the packet that it is about.
const ICMP_HEAD_BYTES: usize = 8;
/// The bytes of payload of which the checksum distinguishes datagrams.
const HASHED_BYTES: usize = 64;

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// For an ICMP error the tuple of the packet that it is about.
    pub tuple: Tuple,
    pub interface: Place,
    /// The identification of IPv4, which NAT does not change; `None` if it is 0, and with IPv6.
    pub ip_id: Option<u16>,
    pub content: Content,
}

/// Where a packet was captured, within one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The interface's number in the file.
    pub number: usize,
    /// The kernel's index of the interface, if each packet has it (`LINUX_SLL2`).
    pub index: Option<u32>,
    /// Whether the host sent it, if each packet shows it.
    pub sent: Option<bool>,
    /// The file has one number for all interfaces (`LINUX_SLL`): two packets at one place may be one packet.
    pub is_any: bool,
}

/// The part of a packet that NAT does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    Tcp {
        flags: u8,
        seq: u32,
        ack: u32,
        /// The length of the data, as the headers have it.
        bytes: u32,
    },
    /// A datagram, or an SCTP packet.
    Datagram {
        bytes: u32,
        /// A checksum of the payload's beginning.
        hash: u32,
    },
    /// An ICMP error about a packet of the tuple.
    Icmp { from: IpAddr, kind: u8, code: u8 },
}

/// Why a packet has no [`Head`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// A link type that is not supported.
    Link(u16),
    /// Neither TCP, UDP nor SCTP over IP, and no ICMP error about one.
    Other,
    /// A fragment after the first: it has no ports.
    Fragment,
    /// More VLAN tags than are read.
    Tags,
    /// The capture has too few bytes of it.
    Cut,
}

/// Reads the headers.
pub fn head(packet: &Packet<'_>) -> Result<Head, Unread> {
    let mut place = Place { number: packet.interface, index: None, sent: None, is_any: false };
    let sliced = match packet.link {
        link::ETHERNET => LaxSlicedPacket::from_ethernet(packet.data).map_err(|_| Unread::Cut)?,
        link::RAW | link::RAW_BSD | link::RAW_OPENBSD | link::IPV4 | link::IPV6 => ip(packet.data)?,
        // The address family, in the byte order of the host or of the network, differs between systems.
        link::NULL | link::LOOP => ip(packet.data.get(4..).ok_or(Unread::Cut)?)?,
        link::LINUX_SLL => {
            let (mut head, rest) = packet.data.split_at_checked(SLL_BYTES).ok_or(Unread::Cut)?;
            place.sent = Some(head.get_u16() == OUTGOING);
            place.is_any = true;
            head.advance(12);
            of_type(head.get_u16(), rest)
        }
        link::LINUX_SLL2 => {
            let (mut head, rest) = packet.data.split_at_checked(SLL2_BYTES).ok_or(Unread::Cut)?;
            let protocol = head.get_u16();
            head.advance(2);
            place.index = Some(head.get_u32());
            head.advance(2);
            place.sent = Some(u16::from(head.get_u8()) == OUTGOING);
            of_type(protocol, rest)
        }
        other => return Err(Unread::Link(other)),
    };
    let ip = Ip::of(&sliced)?;
    let (tuple, content) = match ip.protocol {
        ICMP | ICMPV6 => icmp_error(&ip)?,
        _ => transport(&ip)?,
    };
    Ok(Head { tuple, interface: place, ip_id: ip.id, content })
}

fn ip(data: &[u8]) -> Result<LaxSlicedPacket<'_>, Unread> {
    match data.first().map(|first| first >> 4) {
        Some(4) => Ok(of_type(ether_type::IPV4.0, data)),
        Some(6) => Ok(of_type(ether_type::IPV6.0, data)),
        Some(_) => Err(Unread::Other),
        None => Err(Unread::Cut),
    }
}

fn of_type(ether_type: u16, data: &[u8]) -> LaxSlicedPacket<'_> {
    LaxSlicedPacket::from_ether_type(EtherType(ether_type), data)
}

/// Whether a further VLAN tag follows the last one that was read.
fn has_more_tags(sliced: &LaxSlicedPacket<'_>) -> bool {
    let next = sliced.ether_payload().map(|payload| payload.ether_type);
    next.is_some_and(|next| {
        [EtherType::VLAN_TAGGED_FRAME, EtherType::PROVIDER_BRIDGING, EtherType::VLAN_DOUBLE_TAGGED_FRAME]
            .contains(&next)
    })
}

/// The network header of a packet.
struct Ip<'a> {
    src: IpAddr,
    dst: IpAddr,
    id: Option<u16>,
    protocol: u8,
    payload: &'a [u8],
    /// The length of the payload by the header. A packet that segmentation offload builds can have a length of 0 there.
    payload_bytes: u32,
}

impl<'a> Ip<'a> {
    fn of(sliced: &LaxSlicedPacket<'a>) -> Result<Self, Unread> {
        match &sliced.net {
            Some(LaxNetSlice::Ipv4(v4)) => {
                let header = v4.header();
                if header.fragments_offset().value() != 0 {
                    return Err(Unread::Fragment);
                }
                let payload = v4.payload();
                let length = usize::from(header.total_len()).checked_sub(header.slice().len());
                Ok(Self {
                    src: Ipv4Addr::from(header.source()).into(),
                    dst: Ipv4Addr::from(header.destination()).into(),
                    id: Some(header.identification()).filter(|id| *id != 0),
                    protocol: payload.ip_number.0,
                    payload: payload.payload,
                    payload_bytes: length.unwrap_or(payload.payload.len()) as u32,
                })
            }
            Some(LaxNetSlice::Ipv6(v6)) => {
                let header = v6.header();
                let payload = v6.payload();
                let extensions = v6.extensions();
                if payload.fragmented
                    && extensions.clone().into_iter().any(|extension| match extension {
                        etherparse::Ipv6ExtensionSlice::Fragment(fragment) => {
                            fragment.fragment_offset().value() != 0
                        }
                        _ => false,
                    })
                {
                    return Err(Unread::Fragment);
                }
                let length = usize::from(header.payload_length()).checked_sub(extensions.slice().len());
                Ok(Self {
                    src: Ipv6Addr::from(header.source()).into(),
                    dst: Ipv6Addr::from(header.destination()).into(),
                    id: None,
                    protocol: payload.ip_number.0,
                    payload: payload.payload,
                    payload_bytes: length.unwrap_or(payload.payload.len()) as u32,
                })
            }
            None if sliced.stop_err.is_some() => Err(Unread::Cut),
            None if has_more_tags(sliced) => Err(Unread::Tags),
            Some(LaxNetSlice::Arp(_)) | None => Err(Unread::Other),
        }
    }

    /// The tuple; all three protocols begin with the two ports.
    fn tuple(&self) -> Result<Tuple, Unread> {
        let protocol = Protocol(self.protocol);
        if ![Protocol::TCP, Protocol::UDP, Protocol::SCTP].contains(&protocol) {
            return Err(Unread::Other);
        }
        let mut ports = self.payload;
        let mut port = || ports.try_get_u16().map_err(|_| Unread::Cut);
        Ok(Tuple::new(protocol, SocketAddr::new(self.src, port()?), SocketAddr::new(self.dst, port()?)))
    }
}

fn transport(ip: &Ip<'_>) -> Result<(Tuple, Content), Unread> {
    let tuple = ip.tuple()?;
    let mut rest = ip.payload.get(4..).ok_or(Unread::Cut)?;
    if tuple.protocol == Protocol::TCP {
        let seq = rest.try_get_u32().map_err(|_| Unread::Cut)?;
        let ack = rest.try_get_u32().map_err(|_| Unread::Cut)?;
        let header_bytes = u32::from(rest.try_get_u8().map_err(|_| Unread::Cut)? >> 4) * 4;
        let flags = rest.try_get_u8().map_err(|_| Unread::Cut)? & 0x3f;
        // Without the flag the field means nothing.
        let ack = if flags & flag::ACK == 0 { 0 } else { ack };
        let bytes = ip.payload_bytes.saturating_sub(header_bytes);
        return Ok((tuple, Content::Tcp { flags, seq, ack, bytes }));
    }
    // The checksum follows the addresses: bytes 6 and 7 of UDP, 8 to 11 of SCTP.
    let (tag, data) = match tuple.protocol {
        Protocol::SCTP => (ip.payload.get(4..8), ip.payload.get(12..)),
        _ => (ip.payload.get(4..6), ip.payload.get(8..)),
    };
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(tag.unwrap_or_default());
    let data = data.unwrap_or_default();
    hasher.update(data.get(..HASHED_BYTES).unwrap_or(data));
    Ok((tuple, Content::Datagram { bytes: ip.payload_bytes.saturating_sub(8), hash: hasher.finalize() }))
}

/// An ICMP error, with the tuple of the packet that it is about.
fn icmp_error(outer: &Ip<'_>) -> Result<(Tuple, Content), Unread> {
    let (mut head, about) = outer.payload.split_at_checked(ICMP_HEAD_BYTES).ok_or(Unread::Cut)?;
    let (kind, code) = (head.get_u8(), head.get_u8());
    let is_error = match outer.protocol {
        ICMP => matches!(kind, 3 | 11 | 12),
        _ => matches!(kind, 1..=4),
    };
    if !is_error {
        return Err(Unread::Other);
    }
    let inner = Ip::of(&ip(about)?)?;
    Ok((inner.tuple()?, Content::Icmp { from: outer.src, kind, code }))
}

impl Content {
    /// Whether it is the first packet of a handshake.
    pub(super) fn opens(&self) -> bool {
        matches!(self, Self::Tcp { flags, .. } if flags & (flag::SYN | flag::ACK | flag::RST) == flag::SYN)
    }

    pub(super) fn has(&self, bit: u8) -> bool {
        matches!(self, Self::Tcp { flags, .. } if flags & bit != 0)
    }
}
