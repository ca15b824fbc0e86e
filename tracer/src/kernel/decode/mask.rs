//! Which bytes of a record are read: all others can be zero without changing the sighting.
//!
//! Owns only that set, which follows from the same offsets as the decoder's. The copies of kernel structures in a
//! record hold much more than the fields that are read: pointers of hash lists, hashes, timers. The copy of a packet may
//! hold payload. A recording is smaller without them, has no byte of a payload, and of the kernel's addresses only those
//! that distinguish objects, as numbers ([`renumber`]).

use std::{mem::offset_of, ops::Range};

use network_types::{
    ip::{Ipv4Hdr, Ipv6Hdr},
    udp::UdpHdr,
};
use tracer_ebpf::{
    COMM_BYTES, CT_HEAD_BYTES, ConntrackRecord, Hook, InvalidRecord, IpvsRecord, Kind, PACKET_HEAD_BYTES,
    PacketRecord, SOCK_HEAD_BYTES, SocketRecord, TableFullRecord, WHY_BYTES,
};

use super::{AF_INET, AF_INET6, Fields, ICMPV6, TCP_FLAGS, Transport, bytes_at, transport, u16_at};
use crate::{kernel::layout::Layout, net::Protocol};

/// Where a record's kind stands, in bytes.
const KIND: usize = offset_of!(tracer_ebpf::Header, kind);
const HOOK: usize = offset_of!(tracer_ebpf::Header, hook);
const HEAD_OF_PACKET: Range<usize> =
    offset_of!(PacketRecord, packet_head)..offset_of!(PacketRecord, packet_head) + PACKET_HEAD_BYTES;
const ENTRY_OF_PACKET: Range<usize> =
    offset_of!(PacketRecord, ct_head)..offset_of!(PacketRecord, ct_head) + CT_HEAD_BYTES;
const IPV4_BYTES: usize = 4;
/// `union nf_inet_addr`, `struct in6_addr`.
const ADDRESS_BYTES: usize = 16;

/// The bytes that [`Decoder`](super::Decoder) reads on one kernel's layout.
#[derive(Clone, Debug)]
pub struct Mask {
    entry: [u8; CT_HEAD_BYTES],
    socket_v4: [u8; SOCK_HEAD_BYTES],
    socket_v6: [u8; SOCK_HEAD_BYTES],
    family: Option<usize>,
    num: Option<usize>,
    ports: Option<PortPlaces>,
}

/// Where a connection's port stands, in bytes from the beginning of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortPlaces {
    /// The client's port in an entry's record, in network byte order.
    pub(crate) entry: usize,
    /// The other end's port in a socket's record, in network byte order.
    pub(crate) peer: usize,
    /// The socket's own port in its record, in the machine's byte order.
    pub(crate) own: usize,
}

impl PortPlaces {
    fn new(fields: &Fields) -> Option<Self> {
        let (entry, socket) = (offset_of!(ConntrackRecord, ct_head), offset_of!(SocketRecord, sock_head));
        let sock = fields.sock?;
        Some(Self {
            entry: entry.checked_add(fields.orig?)?.checked_add(fields.tuple?.src_port)?,
            peer: socket.checked_add(sock.dport)?,
            own: socket.checked_add(sock.num)?,
        })
    }
}

impl Mask {
    pub fn new(layout: &Layout) -> Self {
        let fields = Fields::new(layout);
        let mut entry = [0; CT_HEAD_BYTES];
        if let (Some(orig), Some(reply), Some(status), Some(tuple)) =
            (fields.orig, fields.reply, fields.status, &fields.tuple)
        {
            keep(&mut entry, Some(status), 4);
            keep(&mut entry, fields.zone, 2);
            for base in [orig, reply] {
                let mut field = |at: usize, bytes| keep(&mut entry, base.checked_add(at), bytes);
                field(tuple.src, ADDRESS_BYTES);
                field(tuple.dst, ADDRESS_BYTES);
                field(tuple.src_port, 2);
                field(tuple.dst_port, 2);
                field(tuple.l3num, 2);
                field(tuple.protonum, 1);
            }
        }
        let (mut socket_v4, mut socket_v6) = ([0; SOCK_HEAD_BYTES], [0; SOCK_HEAD_BYTES]);
        if let Some(sock) = &fields.sock {
            for mask in [&mut socket_v4, &mut socket_v6] {
                for at in [sock.family, sock.dport, sock.num] {
                    keep(mask, Some(at), 2);
                }
            }
            keep(&mut socket_v4, Some(sock.saddr), IPV4_BYTES);
            keep(&mut socket_v4, Some(sock.daddr), IPV4_BYTES);
            keep(&mut socket_v6, sock.v6_saddr, ADDRESS_BYTES);
            keep(&mut socket_v6, sock.v6_daddr, ADDRESS_BYTES);
        }
        let (family, num) = (fields.sock.map(|sock| sock.family), fields.sock.map(|sock| sock.num));
        Self { entry, socket_v4, socket_v6, family, num, ports: PortPlaces::new(&fields) }
    }

    /// Where the records that it leaves have their ports.
    pub(crate) fn ports(&self) -> Option<PortPlaces> {
        self.ports
    }

    /// Zeroes the bytes that are not read. Of a record that the decoder refuses for its kind or its length, the header
    /// stays.
    pub fn apply(&self, record: &mut [u8]) {
        let place = |at: usize, bytes: usize| at..at + bytes;
        let kind = record.get(KIND).and_then(|kind| Kind::from_number(*kind));
        match kind.filter(|kind| record.len() == kind.record_bytes()) {
            Some(Kind::Conntrack) => {
                end_text(record, place(offset_of!(ConntrackRecord, comm), COMM_BYTES));
                clear(record, place(offset_of!(ConntrackRecord, ct_head), CT_HEAD_BYTES), &self.entry);
            }
            Some(Kind::Packet) => self.apply_to_packet(record),
            Some(Kind::Invalid) => {
                end_text(record, place(offset_of!(InvalidRecord, why), WHY_BYTES));
                self.apply_to_packet(record);
            }
            Some(Kind::Socket) => {
                end_text(record, place(offset_of!(SocketRecord, comm), COMM_BYTES));
                zero(record, place(offset_of!(SocketRecord, reserved), 2));
                let head = place(offset_of!(SocketRecord, sock_head), SOCK_HEAD_BYTES);
                let family = record.get(head.clone()).and_then(|head| u16_at(head, self.family?));
                // Other families have no addresses to read.
                let mask = if family == Some(AF_INET6) { &self.socket_v6 } else { &self.socket_v4 };
                clear(record, head.clone(), mask);
                self.local_port(record, head.start);
            }
            Some(Kind::Ipvs) => {
                let client = offset_of!(IpvsRecord, client);
                let virtual_address = offset_of!(IpvsRecord, virtual_address);
                let destination = offset_of!(IpvsRecord, destination);
                let (family, of_destination) =
                    (offset_of!(IpvsRecord, family), offset_of!(IpvsRecord, dest_family));
                for (at, family) in
                    [(client, family), (virtual_address, family), (destination, of_destination)]
                {
                    if u16_at(record, family) == Some(AF_INET) {
                        zero(record, place(at + IPV4_BYTES, ADDRESS_BYTES - IPV4_BYTES));
                    }
                }
            }
            Some(Kind::TableFull) => zero(record, place(offset_of!(TableFullRecord, reserved), 4)),
            None => zero(record, size_of::<tracer_ebpf::Header>()..record.len()),
        }
    }

    /// The decoder reads the port that the socket had only if it has none any more: it is written in one place, where it
    /// equals that of the socket's earlier records.
    fn local_port(&self, record: &mut [u8], head: usize) {
        const SPORT: usize = offset_of!(SocketRecord, sport);
        let Some(num) = self.num.map(|num| head + num) else { return };
        let (Some(own), Some(sport)) = (u16_at(record, num), bytes_at::<2>(record, SPORT)) else { return };
        let port = if own == 0 { u16::from_be_bytes(sport) } else { own };
        for (at, value) in [(num, port), (SPORT, 0)] {
            if let Some(place) = record.get_mut(at..at + 2) {
                place.copy_from_slice(&value.to_ne_bytes());
            }
        }
    }

    /// A packet's record, or the one at the beginning of an invalid packet's record.
    fn apply_to_packet(&self, record: &mut [u8]) {
        let hook = record.get(HOOK).and_then(|hook| Hook::from_number(*hook));
        clear(record, ENTRY_OF_PACKET, &self.entry);
        if let Some(head) = record.get_mut(HEAD_OF_PACKET) {
            clear_payload(head, hook.is_some_and(Hook::is_icmp_error));
        }
    }
}

/// The kind of object at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    /// A conntrack entry or a socket.
    Lasting,
    /// A packet, of which only sightings within milliseconds are joined.
    Packet,
}

/// Replaces the kernel's addresses by which a record distinguishes objects. 0, no object, stays.
pub(crate) fn renumber(record: &mut [u8], mut number: impl FnMut(Object, u64) -> u64) {
    let places: &[(usize, Object)] = match record.get(KIND).and_then(|kind| Kind::from_number(*kind)) {
        Some(Kind::Conntrack) => &[(offset_of!(ConntrackRecord, ct), Object::Lasting)],
        Some(Kind::Packet | Kind::Invalid) => &[
            (offset_of!(PacketRecord, skb), Object::Packet),
            (offset_of!(PacketRecord, ct), Object::Lasting),
        ],
        Some(Kind::Socket) => &[(offset_of!(SocketRecord, sk), Object::Lasting)],
        Some(Kind::TableFull | Kind::Ipvs) | None => &[],
    };
    for (at, object) in places {
        if let Some(address) = record.get_mut(*at..).and_then(|rest| rest.first_chunk_mut::<8>())
            && *address != [0; 8]
        {
            *address = number(*object, u64::from_ne_bytes(*address)).to_ne_bytes();
        }
    }
}

/// Keeps the fields of the network and the transport header that the decoder reads: addresses, ports, TCP flags, and
/// the type and code of an ICMP error. Everything after these headers, and everything that is no IP packet, becomes zero.
fn clear_payload(head: &mut [u8], is_icmp_error: bool) {
    let mut mask = [0; PACKET_HEAD_BYTES];
    match head.first().map_or(0, |first| first >> 4) {
        4 => {
            keep(&mut mask, Some(0), 1);
            keep(&mut mask, Some(offset_of!(Ipv4Hdr, frags)), 2);
            keep(&mut mask, Some(offset_of!(Ipv4Hdr, proto)), 1);
            keep(&mut mask, Some(offset_of!(Ipv4Hdr, src_addr)), IPV4_BYTES);
            keep(&mut mask, Some(offset_of!(Ipv4Hdr, dst_addr)), IPV4_BYTES);
        }
        6 => {
            keep(&mut mask, Some(0), 1);
            keep(&mut mask, Some(offset_of!(Ipv6Hdr, next_hdr)), 1);
            keep(&mut mask, Some(offset_of!(Ipv6Hdr, src_addr)), ADDRESS_BYTES);
            keep(&mut mask, Some(offset_of!(Ipv6Hdr, dst_addr)), ADDRESS_BYTES);
        }
        _ => {}
    }
    if let Some(Transport { protocol, at }) = transport(head) {
        match protocol {
            Protocol::TCP => {
                keep(&mut mask, Some(at + offset_of!(UdpHdr, src)), 4);
                keep(&mut mask, Some(at + TCP_FLAGS), 1);
            }
            Protocol::UDP | Protocol::SCTP => keep(&mut mask, Some(at + offset_of!(UdpHdr, src)), 4),
            Protocol::ICMP | ICMPV6 if is_icmp_error => keep(&mut mask, Some(at), 2),
            _ => {}
        }
    }
    for (byte, mask) in head.iter_mut().zip(mask) {
        *byte &= mask;
    }
}

fn zero(record: &mut [u8], range: Range<usize>) {
    if let Some(bytes) = record.get_mut(range) {
        bytes.fill(0);
    }
}

/// Zeroes what follows the first NUL of a text.
fn end_text(record: &mut [u8], range: Range<usize>) {
    if let Some(text) = record.get_mut(range)
        && let Some(end) = text.iter().position(|byte| *byte == 0)
        && let Some(rest) = text.get_mut(end..)
    {
        rest.fill(0);
    }
}

/// Bytes outside the copy are not read: the decoder refuses it.
fn keep(mask: &mut [u8], at: Option<usize>, bytes: usize) {
    let range = at.and_then(|at| Some(at..at.checked_add(bytes)?));
    if let Some(kept) = range.and_then(|range| mask.get_mut(range)) {
        kept.fill(u8::MAX);
    }
}

fn clear(record: &mut [u8], head: Range<usize>, mask: &[u8]) {
    if let Some(head) = record.get_mut(head) {
        for (byte, mask) in head.iter_mut().zip(mask) {
            *byte &= mask;
        }
    }
}
