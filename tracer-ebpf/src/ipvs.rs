//! IPVS: the real server that it chooses, that it finds none, and entries that it gives up.
//!
//! A healthy connection needs none of this where IPVS tracks its connections (`vs/conntrack`): the confirmed conntrack
//! entry's reply tuple names the real server. Nothing here reads `struct ip_vs_conn`, which moved in 7.2: what is
//! chosen are arguments of `ip_vs_conn_new`, and an entry that is given up is told by the packet dropped with it.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::{kprobe, kretprobe, map},
    maps::PerCpuArray,
    programs::{ProbeContext, RetProbeContext},
};
use tracer_ebpf::{Hook, IpvsRecord, Kind, MISSING, REASON_NONE};

use crate::{
    entry::{Entry, at_entry},
    filter, globals, output, packet,
};

at_entry!(ipvs_leave, ipvs_leave_fentry, on_ipvs_leave);
at_entry!(ipvs_conn_expire, ipvs_conn_expire_fentry, on_ipvs_conn_expire);

/// `ip_vs_conn_new(p, dest_af, daddr, dport, flags, dest, fwmark)`, at entry. With persistence it is called for the
/// template (client port 0) before it is called for the connection.
#[kprobe]
pub(crate) fn ipvs_conn_new(ctx: ProbeContext) -> u32 {
    let (Some(param), Some(dest_family), Some(daddr), Some(dport), Some(flags)) =
        (ctx.arg::<u64>(0), ctx.arg::<u32>(1), ctx.arg::<u64>(2), ctx.arg::<u32>(3), ctx.arg::<u32>(4))
    else {
        return 0;
    };
    let (Some(client), Some(virtual_address), Some(family)) = (
        address_behind(param, globals::OFF_IPVS_PARAM_CADDR.load()),
        address_behind(param, globals::OFF_IPVS_PARAM_VADDR.load()),
        field::<u16>(param, globals::OFF_IPVS_PARAM_AF.load()),
    ) else {
        return 0;
    };
    let Some(destination) = output::read::<[u8; 16]>(daddr) else { return 0 };
    if filter::on()
        && !filter::wants_address(&virtual_address, family)
        && !filter::wants_address(&client, family)
        && !filter::wants_address(&destination, dest_family as u16)
    {
        return 0;
    }
    let Some(mut entry) = output::reserve::<IpvsRecord>(Hook::IpVsConnNew) else { return 0 };
    let record = entry.as_mut_ptr();
    unsafe {
        (*record).header = output::header(Hook::IpVsConnNew, Kind::Ipvs, netns(param));
        (*record).flags = flags;
        (*record).family = family;
        (*record).dest_family = dest_family as u16;
        (*record).client = client;
        (*record).virtual_address = virtual_address;
        (*record).destination = destination;
        (*record).client_port = field(param, globals::OFF_IPVS_PARAM_CPORT.load()).unwrap_or(0);
        (*record).virtual_port = field(param, globals::OFF_IPVS_PARAM_VPORT.load()).unwrap_or(0);
        (*record).destination_port = dport as u16;
        (*record).protocol = field(param, globals::OFF_IPVS_PARAM_PROTOCOL.load()).unwrap_or(0);
    }
    output::submit(entry);
    0
}

/// `ip_vs_leave(svc, skb, pd, iph)`: called only once `ip_vs_schedule` found no real server.
#[inline(always)]
fn on_ipvs_leave(ctx: &impl Entry) {
    packet::report(Hook::IpVsLeave, ctx.argument(1), REASON_NONE, 0);
}

/// How deep `ip_vs_schedule` is nested on a CPU: a task's own packet, and a softirq on top of it.
const DEPTHS: usize = 4;

#[derive(Clone, Copy)]
#[repr(C)]
struct Call {
    /// The packet, or for an expired entry the time.
    skb_or_time: u64,
    pid_tgid: u64,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Calls {
    depth: u32,
    reserved: u32,
    /// Calls of `ip_vs_schedule` that have not returned.
    scheduling: [Call; DEPTHS],
    /// The last `ip_vs_conn_expire_now` on this CPU.
    expired: Call,
}

#[map]
static IPVS_CALLS: PerCpuArray<Calls> = PerCpuArray::with_max_entries(1, 0);

/// `ip_vs_schedule(svc, skb, pd, ignored, iph)`; joined to its return by CPU and nesting depth.
#[kprobe]
pub(crate) fn ipvs_schedule(ctx: ProbeContext) -> u32 {
    let (Some(skb), Some(calls)) = (ctx.arg::<u64>(1), IPVS_CALLS.get_ptr_mut(0)) else { return 0 };
    unsafe {
        let depth = (*calls).depth as usize;
        if depth < DEPTHS {
            (*calls).scheduling[depth & (DEPTHS - 1)] =
                Call { skb_or_time: skb, pid_tgid: bpf_get_current_pid_tgid() };
        }
        (*calls).depth = (*calls).depth.wrapping_add(1);
    }
    0
}

#[kretprobe]
pub(crate) fn ipvs_schedule_return(ctx: RetProbeContext) -> u32 {
    let Some(calls) = IPVS_CALLS.get_ptr_mut(0) else { return 0 };
    let chosen = ctx.ret::<u64>() != 0;
    let skb = unsafe {
        let depth = (*calls).depth;
        if depth == 0 {
            return 0;
        }
        (*calls).depth = depth - 1;
        let index = (depth - 1) as usize;
        if index >= DEPTHS {
            return 0;
        }
        let call = (*calls).scheduling[index & (DEPTHS - 1)];
        if call.pid_tgid != bpf_get_current_pid_tgid() {
            // A call that migrated left this CPU's stack behind: begin again.
            (*calls).depth = 0;
            return 0;
        }
        call.skb_or_time
    };
    if !chosen {
        packet::report(Hook::IpVsSchedule, skb, REASON_NONE, 0);
    }
    0
}

/// `ip_vs_conn_expire_now(cp)`. It is noted only: where IPVS goes on with another real server nothing is lost. Where
/// the packet belongs to an old conntrack entry IPVS drops it at once, and the drop tells of the entry.
#[inline(always)]
fn on_ipvs_conn_expire(_ctx: &impl Entry) {
    if let Some(calls) = IPVS_CALLS.get_ptr_mut(0) {
        unsafe {
            (*calls).expired = Call { skb_or_time: bpf_ktime_get_ns(), pid_tgid: bpf_get_current_pid_tgid() };
        }
    }
}

/// Longest time from an entry's expiry to the drop of its packet: `ip_vs_in_hook` returns `NF_DROP` next. An emulated
/// machine may stand still in between.
const DROPPED_WITHIN_NS: u64 = 20_000_000;

/// Whether the packet being dropped on this CPU is the one whose IPVS entry was just given up.
#[inline(always)]
pub(crate) fn take_expired() -> bool {
    let Some(calls) = IPVS_CALLS.get_ptr_mut(0) else { return false };
    unsafe {
        let expired = (*calls).expired;
        if expired.skb_or_time == 0 {
            return false;
        }
        (*calls).expired.skb_or_time = 0;
        expired.pid_tgid == bpf_get_current_pid_tgid()
            && bpf_ktime_get_ns().wrapping_sub(expired.skb_or_time) < DROPPED_WITHIN_NS
    }
}

#[inline(always)]
fn field<T: Copy>(base: u64, offset: u32) -> Option<T> {
    if offset == MISSING { None } else { output::read(base.wrapping_add(u64::from(offset))) }
}

/// The address that a pointer in the structure leads to.
#[inline(always)]
fn address_behind(base: u64, offset: u32) -> Option<[u8; 16]> {
    output::read(field::<u64>(base, offset)?)
}

/// The namespace of the connection, 0 where this kernel does not tell where to look.
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
