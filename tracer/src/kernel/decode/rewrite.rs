//! Replaces the addresses and the task names in a record.
//!
//! Owns where they stand, by the same offsets as the decoder's. Everything else that could hold one of them is a byte
//! that the decoder does not read: [`Mask`](super::Mask) clears those first.

use std::{
    mem::offset_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use network_types::ip::{Ipv4Hdr, Ipv6Hdr};
use tracer_ebpf::{
    CT_HEAD_BYTES, ConntrackRecord, InvalidRecord, IpvsRecord, Kind, PACKET_HEAD_BYTES, PacketRecord,
    SOCK_HEAD_BYTES, SocketRecord,
};

use super::{AF_INET, AF_INET6, Fields, ip_at, u16_at};
use crate::{kernel::layout::Layout, sighting::Comm};

/// The replacements. Each must depend only on its argument.
pub(crate) trait Replace {
    fn address(&mut self, ip: IpAddr) -> IpAddr;
    /// At most 15 bytes are used.
    fn task(&mut self, name: &str) -> String;
}

/// Where one kernel's records have addresses.
#[derive(Clone, Debug)]
pub(crate) struct Rewriter {
    fields: Fields,
}

impl Rewriter {
    pub(crate) fn new(layout: &Layout) -> Self {
        Self { fields: Fields::new(layout) }
    }

    /// Changes a record that the decoder accepts.
    pub(crate) fn apply(&self, record: &mut [u8], by: &mut impl Replace) {
        let kind =
            record.get(offset_of!(tracer_ebpf::Header, kind)).and_then(|kind| Kind::from_number(*kind));
        match kind {
            Some(Kind::Conntrack) => {
                task(record, offset_of!(ConntrackRecord, comm), by);
                self.entry(record, offset_of!(ConntrackRecord, ct_head), by);
            }
            Some(Kind::Packet) => self.packet(record, 0, by),
            Some(Kind::Invalid) => self.packet(record, offset_of!(InvalidRecord, packet), by),
            Some(Kind::Socket) => {
                task(record, offset_of!(SocketRecord, comm), by);
                self.socket(record, by);
            }
            Some(Kind::Ipvs) => {
                for (at, family) in [
                    (offset_of!(IpvsRecord, client), offset_of!(IpvsRecord, family)),
                    (offset_of!(IpvsRecord, virtual_address), offset_of!(IpvsRecord, family)),
                    (offset_of!(IpvsRecord, destination), offset_of!(IpvsRecord, dest_family)),
                ] {
                    if let Some(family) = u16_at(record, family) {
                        address(record, at, family, by);
                    }
                }
            }
            Some(Kind::TableFull) | None => {}
        }
    }

    fn packet(&self, record: &mut [u8], base: usize, by: &mut impl Replace) {
        let head = base + offset_of!(PacketRecord, packet_head);
        let places: &[usize] = match record.get(head).map(|first| first >> 4) {
            Some(4) => &[offset_of!(Ipv4Hdr, src_addr), offset_of!(Ipv4Hdr, dst_addr)],
            Some(6) => &[offset_of!(Ipv6Hdr, src_addr), offset_of!(Ipv6Hdr, dst_addr)],
            _ => &[],
        };
        let family = if record.get(head).is_some_and(|first| first >> 4 == 4) { AF_INET } else { AF_INET6 };
        if let Some(packet) = record.get_mut(head..head + PACKET_HEAD_BYTES) {
            for at in places {
                address(packet, *at, family, by);
            }
        }
        self.entry(record, base + offset_of!(PacketRecord, ct_head), by);
    }

    fn entry(&self, record: &mut [u8], at: usize, by: &mut impl Replace) {
        let Some(tuple) = &self.fields.tuple else { return };
        let Some(head) = record.get_mut(at..at + CT_HEAD_BYTES) else { return };
        for base in [self.fields.orig, self.fields.reply].into_iter().flatten() {
            let Some(own) = head.get_mut(base..) else { continue };
            // An entry that is not there is all zeros.
            if let Some(family) = u16_at(own, tuple.l3num) {
                address(own, tuple.src, family, by);
                address(own, tuple.dst, family, by);
            }
        }
    }

    fn socket(&self, record: &mut [u8], by: &mut impl Replace) {
        let Some(sock) = &self.fields.sock else { return };
        let at = offset_of!(SocketRecord, sock_head);
        let Some(head) = record.get_mut(at..at + SOCK_HEAD_BYTES) else { return };
        match u16_at(head, sock.family) {
            Some(AF_INET) => {
                address(head, sock.saddr, AF_INET, by);
                address(head, sock.daddr, AF_INET, by);
            }
            Some(AF_INET6) => {
                for at in [sock.v6_saddr, sock.v6_daddr].into_iter().flatten() {
                    address(head, at, AF_INET6, by);
                }
            }
            _ => {}
        }
    }
}

fn address(bytes: &mut [u8], at: usize, family: u16, by: &mut impl Replace) {
    let Some(ip) = ip_at(bytes, at, family) else { return };
    match by.address(ip) {
        IpAddr::V4(ip) => put(bytes, at, &Ipv4Addr::octets(&ip)),
        IpAddr::V6(ip) => put(bytes, at, &Ipv6Addr::octets(&ip)),
    }
}

fn task(record: &mut [u8], at: usize, by: &mut impl Replace) {
    let Some(bytes) = record.get(at..).and_then(<[u8]>::first_chunk) else { return };
    let comm = Comm::new(*bytes);
    if !comm.is_empty() {
        put(record, at, Comm::from(&*by.task(&comm.text())).as_bytes());
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..value.len())) {
        place.copy_from_slice(value);
    }
}
