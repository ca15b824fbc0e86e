//! IPVS: the real server that it chooses, its failure to find one, and entries that it gives up.
//!
//! A healthy connection needs none of this where IPVS tracks its connections (`vs/conntrack`): the confirmed conntrack
//! entry's reply tuple names the real server. Nothing here reads `struct ip_vs_conn`, which moved in 7.2: the choice is
//! in the arguments of `ip_vs_conn_new`, and an entry that IPVS gives up shows in the packet dropped with it.

use aya_ebpf::{
    macros::{fexit, kprobe, kretprobe, map},
    programs::{FExitContext, ProbeContext, RetProbeContext},
};
use tracer_ebpf::{Hook, IpvsRecord, Kind, MISSING, REASON_NONE};

use crate::{
    calls, choices,
    entry::{Entry, at_entry},
    filter::{self, AF_INET, AF_INET6},
    globals, messages, output, packet, recorder,
};

at_entry!(ipvs_conn_new, ipvs_conn_new_fentry, on_ipvs_conn_new);
at_entry!(ipvs_leave, ipvs_leave_fentry, on_ipvs_leave);
at_entry!(ipvs_conn_expire, ipvs_conn_expire_fentry, on_ipvs_conn_expire);

/// `ip_vs_conn_new(p, dest_af, daddr, dport, flags, dest, fwmark)`, at entry. With persistence it is called for the
/// template (client port 0) before it is called for the connection.
#[inline(always)]
fn on_ipvs_conn_new(ctx: &impl Entry) {
    let (param, dest_family, daddr) = (ctx.argument(0), ctx.argument(1) as u32, ctx.argument(2));
    let (dport, flags) = (ctx.argument(3) as u32, ctx.argument(4) as u32);
    let (Some(client), Some(virtual_address), Some(family)) = (
        address_behind(param, globals::OFF_IPVS_PARAM_CADDR.load()),
        address_behind(param, globals::OFF_IPVS_PARAM_VADDR.load()),
        field::<u16>(param, globals::OFF_IPVS_PARAM_AF.load()),
    ) else {
        messages::unreadable(Hook::IpVsConnNew as u32);
        return;
    };
    let Some(destination) = output::read::<[u8; 16]>(daddr) else { return };
    if family != AF_INET && family != AF_INET6 {
        messages::unknown_family(Hook::IpVsConnNew as u32, family.into());
        return;
    }
    if filter::on()
        && !filter::wants_address(&virtual_address, family)
        && !filter::wants_address(&client, family)
        && !filter::wants_address(&destination, dest_family as u16)
    {
        return;
    }
    let record = IpvsRecord {
        header: output::header(Hook::IpVsConnNew, Kind::Ipvs, netns(param)),
        flags,
        family,
        dest_family: dest_family as u16,
        client,
        virtual_address,
        destination,
        client_port: field(param, globals::OFF_IPVS_PARAM_CPORT.load()).unwrap_or(0),
        virtual_port: field(param, globals::OFF_IPVS_PARAM_VPORT.load()).unwrap_or(0),
        destination_port: dport as u16,
        protocol: field(param, globals::OFF_IPVS_PARAM_PROTOCOL.load()).unwrap_or(0),
    };
    if recorder::on() {
        choices::keep(&record);
    } else if let Some(mut entry) = output::reserve::<IpvsRecord>(Hook::IpVsConnNew) {
        entry.write(record);
        output::submit(entry);
    }
}

/// `ip_vs_leave(svc, skb, pd, iph)`: called only once `ip_vs_schedule` found no real server.
#[inline(always)]
fn on_ipvs_leave(ctx: &impl Entry) {
    packet::report(Hook::IpVsLeave, ctx.argument(1), REASON_NONE, 0);
}

/// The calls of `ip_vs_schedule`. The note is of the last `ip_vs_conn_expire_now`.
#[map]
static IPVS_CALLS: calls::Map = calls::map();

/// `ip_vs_schedule(svc, skb, pd, ignored, iph)`.
#[kprobe]
pub(crate) fn ipvs_schedule(ctx: ProbeContext) -> u32 {
    if let Some(skb) = ctx.arg::<u64>(1) {
        calls::begin(&IPVS_CALLS, skb);
    }
    0
}

#[kretprobe]
pub(crate) fn ipvs_schedule_return(ctx: RetProbeContext) -> u32 {
    let is_chosen = ctx.ret::<u64>() != 0;
    if let Some(skb) = calls::end(&IPVS_CALLS, Hook::IpVsSchedule)
        && !is_chosen
    {
        packet::report(Hook::IpVsSchedule, skb, REASON_NONE, 0);
    }
    0
}

/// `ip_vs_schedule` at its return, with its arguments.
#[fexit]
pub(crate) fn ipvs_schedule_fexit(ctx: FExitContext) -> i32 {
    if ctx.ret::<u64>() == Ok(0) {
        packet::report(Hook::IpVsSchedule, ctx.arg(1), REASON_NONE, 0);
    }
    0
}

/// `ip_vs_conn_expire_now(cp)`. It is only noted: if IPVS continues with another real server, nothing is lost. If the
/// packet belongs to an old conntrack entry, IPVS drops it at once, and the drop reports the entry.
#[inline(always)]
fn on_ipvs_conn_expire(_ctx: &impl Entry) {
    calls::note(&IPVS_CALLS);
}

/// Longest time from an entry's expiry to the drop of its packet: `ip_vs_in_hook` returns `NF_DROP` next. An emulated
/// machine may stall in between.
const DROPPED_WITHIN_NS: u64 = 20_000_000;

/// Whether the packet being dropped on this CPU is the one whose IPVS entry was just given up.
#[inline(always)]
pub(crate) fn take_expired() -> bool {
    calls::take_note(&IPVS_CALLS, DROPPED_WITHIN_NS)
}

#[inline(always)]
fn field<T: output::Scalar>(base: u64, offset: u32) -> Option<T> {
    if offset == MISSING { None } else { output::read(base.wrapping_add(u64::from(offset))) }
}

/// The address that a pointer in the structure leads to.
#[inline(always)]
fn address_behind(base: u64, offset: u32) -> Option<[u8; 16]> {
    output::read(field::<u64>(base, offset)?)
}

/// The namespace of the connection, 0 if this kernel's offset of it is unknown.
#[inline(always)]
fn netns(param: u64) -> u32 {
    let net = globals::OFF_NETNS_IPVS_NET.load();
    if net == MISSING {
        return 0;
    }
    match field::<u64>(param, globals::OFF_IPVS_PARAM_IPVS.load()) {
        Some(ipvs) if ipvs != 0 => output::netns_behind(ipvs.wrapping_add(u64::from(net))),
        _ => 0,
    }
}
