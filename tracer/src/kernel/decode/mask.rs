//! Which bytes of a record are read: all others can be zero without changing the sighting.
//!
//! Owns only that set, which follows from the same offsets as the decoder's. The copies of kernel structures in a
//! record hold much more than the fields that are read: pointers of hash lists, hashes, timers. A recording is smaller
//! without them, and holds only the kernel addresses that distinguish objects.

use std::{mem::offset_of, ops::Range};

use tracer_ebpf::{
    CT_HEAD_BYTES, ConntrackRecord, InvalidRecord, Kind, PacketRecord, SOCK_HEAD_BYTES, SocketRecord,
};

use super::{AF_INET6, Fields, u16_at};
use crate::kernel::layout::Layout;

/// Where a record's kind stands, in bytes.
const KIND: usize = offset_of!(tracer_ebpf::Header, kind);
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
        Self { entry, socket_v4, socket_v6, family: fields.sock.map(|sock| sock.family) }
    }

    /// Zeroes the bytes that are not read. A record of an unknown kind, or too short for its kind, is not changed.
    pub fn apply(&self, record: &mut [u8]) {
        let place = |at: usize, bytes: usize| at..at + bytes;
        match record.get(KIND).and_then(|kind| Kind::from_number(*kind)) {
            Some(Kind::Conntrack) => {
                clear(record, place(offset_of!(ConntrackRecord, ct_head), CT_HEAD_BYTES), &self.entry);
            }
            Some(Kind::Packet) => {
                clear(record, place(offset_of!(PacketRecord, ct_head), CT_HEAD_BYTES), &self.entry);
            }
            Some(Kind::Invalid) => {
                let at = offset_of!(InvalidRecord, packet) + offset_of!(PacketRecord, ct_head);
                clear(record, place(at, CT_HEAD_BYTES), &self.entry);
            }
            Some(Kind::Socket) => {
                let head = place(offset_of!(SocketRecord, sock_head), SOCK_HEAD_BYTES);
                let family = record.get(head.clone()).and_then(|head| u16_at(head, self.family?));
                // Other families have no addresses to read.
                let mask = if family == Some(AF_INET6) { &self.socket_v6 } else { &self.socket_v4 };
                clear(record, head, mask);
            }
            Some(Kind::TableFull | Kind::Ipvs) | None => {}
        }
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
