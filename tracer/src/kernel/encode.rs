//! Encodes entries that ctnetlink listed as records, so that a recording holds them and a replay reads them as the live
//! trace did.

use std::mem::offset_of;

use tracer_ebpf::{CT_HEAD_BYTES, CTINFO_NONE, ConntrackRecord, Header, Hook, Kind, MISSING};

use super::{
    decode::{AF_INET, AF_INET6},
    layout::Layout,
};
use crate::{
    net::{Netns, Tuple},
    sighting::ListedEntry,
};

/// The record of a listed entry: without an address, and with the seconds since its last packet as its detail. `None`
/// if the layout lacks a field.
pub(super) fn record(
    entry: &ListedEntry,
    netns: Netns,
    layout: &Layout,
    clock_offset_ns: u64,
) -> Option<[u8; size_of::<ConntrackRecord>()]> {
    let mut record = [0; size_of::<ConntrackRecord>()];
    let time_ns = entry.read_at.as_unix_ns().wrapping_sub(clock_offset_ns);
    let idle = entry
        .last_packet
        .map_or(MISSING, |last| u32::try_from(entry.read_at.since(last).as_secs()).unwrap_or(MISSING));
    put(&mut record, offset_of!(Header, time_ns), &time_ns.to_ne_bytes())?;
    put(&mut record, offset_of!(Header, netns), &netns.0.to_ne_bytes())?;
    put(&mut record, offset_of!(Header, hook), &[Hook::EntryReread as u8])?;
    put(&mut record, offset_of!(Header, kind), &[Kind::Conntrack as u8])?;
    put(&mut record, offset_of!(ConntrackRecord, ctinfo), &CTINFO_NONE.to_ne_bytes())?;
    put(&mut record, offset_of!(ConntrackRecord, detail), &idle.to_ne_bytes())?;
    put(&mut record, offset_of!(ConntrackRecord, tcp_state), &MISSING.to_ne_bytes())?;
    let mut head = [0; CT_HEAD_BYTES];
    let at = |name| layout.offset_in_entry(name);
    put(&mut head, at("OFF_CT_STATUS")?, &entry.ct.status.0.to_ne_bytes())?;
    if let Some(zone) = at("CT_ZONE") {
        put(&mut head, zone, &entry.ct.zone.to_ne_bytes())?;
    }
    put_tuple(&mut head, at("CT_ORIG")?, &entry.ct.orig, layout)?;
    put_tuple(&mut head, at("CT_REPLY")?, &entry.ct.reply, layout)?;
    put(&mut record, offset_of!(ConntrackRecord, ct_head), &head)?;
    Some(record)
}

fn put_tuple(head: &mut [u8], base: usize, tuple: &Tuple, layout: &Layout) -> Option<()> {
    let at = |name| layout.offset(name).and_then(|offset| base.checked_add(offset as usize));
    let is_ipv4 = tuple.src.is_ipv4() && tuple.dst.is_ipv4();
    let family = if is_ipv4 { AF_INET } else { AF_INET6 };
    put(head, at("TUPLE_L3NUM")?, &family.to_ne_bytes())?;
    put(head, at("TUPLE_PROTONUM")?, &[tuple.protocol.0])?;
    for (end, address, port) in
        [(tuple.src, "TUPLE_SRC", "TUPLE_SRC_PORT"), (tuple.dst, "TUPLE_DST", "TUPLE_DST_PORT")]
    {
        let octets = end.bits().to_be_bytes();
        // The last four bytes of a mapped address are the IPv4 address.
        put(head, at(address)?, octets.get(if is_ipv4 { 12 } else { 0 }..)?)?;
        put(head, at(port)?, &end.port().to_be_bytes())?;
    }
    Some(())
}

pub(super) fn put(into: &mut [u8], at: usize, bytes: &[u8]) -> Option<()> {
    into.get_mut(at..at.checked_add(bytes.len())?)?.copy_from_slice(bytes);
    Some(())
}
