//! Conntrack and NAT: entries that enter the table, race, are killed or deleted, and a table that is full.

use aya_ebpf::{
    EbpfContext,
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    macros::{fentry, fexit, kprobe, kretprobe, map, raw_tracepoint},
    maps::{LruPerCpuHashMap, PerCpuArray},
    programs::{FEntryContext, FExitContext, ProbeContext, RawTracePointContext, RetProbeContext},
};
use aya_log_ebpf::debug;
use tracer_ebpf::{
    COMM_BYTES, CTINFO_NONE, ConntrackRecord, Hook, IP_CT_NEW, Kind, MISSING, ServiceKey, TableFullRecord,
};

use crate::{
    entry::{Entry, at_entry},
    filter, globals, output, partners,
};

/// Confirmed flows by VIP and endpoint, for sampled traces.
#[map]
static CONFIRMED: LruPerCpuHashMap<ServiceKey, u64> = LruPerCpuHashMap::with_max_entries(16384, 0);

at_entry!(nat_setup, nat_setup_fentry, on_nat_setup);
at_entry!(resolve_clash, resolve_clash_fentry, on_resolve_clash);
at_entry!(kill_acct, kill_acct_fentry, on_kill_acct);
at_entry!(delete, delete_fentry, on_delete);

/// What a record of a conntrack entry says beside the entry.
struct Note {
    ctinfo: u32,
    detail: u32,
    with_task: bool,
    with_tcp_state: bool,
}

impl Note {
    #[inline(always)]
    fn of(ctinfo: u32, detail: u32) -> Self {
        Self { ctinfo, detail, with_task: false, with_tcp_state: false }
    }
}

/// `__nf_conntrack_confirm(skb)`, at entry: the tuples are final, POSTROUTING's NAT included. It also runs for
/// ICMP errors and other related packets that carry the same entry; those are not `IP_CT_NEW`.
#[kprobe]
pub(crate) fn confirm(ctx: ProbeContext) -> u32 {
    on_confirm(&ctx, |_| true);
    0
}

/// Unlike a kprobe's, this program may be preempted, so it has partners.
#[fentry]
pub(crate) fn confirm_fentry(ctx: FEntryContext) -> i32 {
    on_confirm(&ctx, takes);
    0
}

/// Its partner.
#[fentry]
pub(crate) fn confirm_again_fentry(ctx: FEntryContext) -> i32 {
    on_confirm(&ctx, takes);
    0
}

/// The partner of both, where two are too few.
#[fentry]
pub(crate) fn confirm_thrice_fentry(ctx: FEntryContext) -> i32 {
    on_confirm(&ctx, takes);
    0
}

/// `union nf_inet_addr`, behind which an end's port is (`struct nf_conntrack_man`).
const TUPLE_ADDRESS_BYTES: u64 = 16;

/// `ct` with its three bits of state.
#[inline(always)]
fn takes(ct: u64) -> bool {
    // The next entry at this address is of another flow.
    partners::takes(Hook::Confirm, globals::CONFIRM_PROGRAMS.load(), ct, || {
        let port = u64::from(globals::OFF_CT_ORIG_SRC.load()) + TUPLE_ADDRESS_BYTES;
        output::read::<u16>((ct & !7).wrapping_add(port)).unwrap_or_default().into()
    })
}

#[inline(always)]
fn on_confirm(ctx: &impl Entry, takes: impl Fn(u64) -> bool) {
    let skb = ctx.argument(0);
    let nfct = nfct(skb);
    if nfct & 7 != u64::from(IP_CT_NEW) || !takes(nfct) {
        return;
    }
    report(
        ctx,
        Hook::Confirm,
        nfct & !7,
        &Note { with_task: true, with_tcp_state: true, ..Note::of(IP_CT_NEW, 0) },
    );
}

/// `nf_nat_setup_info(ct, range, maniptype)`: the decision as it is taken, for targeted traces only.
#[inline(always)]
fn on_nat_setup(ctx: &impl Entry) {
    let (ct, maniptype) = (ctx.argument(0), ctx.argument(2) as u32);
    report(ctx, Hook::NatSetup, ct, &Note::of(CTINFO_NONE, maniptype));
}

/// `nf_ct_resolve_clash(skb, h, reply_hash)`: this packet's entry lost a race for its tuple.
#[inline(always)]
fn on_resolve_clash(ctx: &impl Entry) {
    let skb = ctx.argument(0);
    let nfct = nfct(skb);
    let ctinfo = (nfct & 7) as u32;
    report(ctx, Hook::ResolveClash, nfct & !7, &Note::of(ctinfo, 0));
}

/// `nf_ct_kill_acct(ct, ctinfo, skb)`.
#[inline(always)]
fn on_kill_acct(ctx: &impl Entry) {
    let (ct, ctinfo) = (ctx.argument(0), ctx.argument(1) as u32);
    report(ctx, Hook::KillAcct, ct, &Note::of(ctinfo, 0));
}

/// `nf_ct_delete(ct, portid, report)`; the port id is not 0 where a person or a controller deleted the entry.
#[inline(always)]
fn on_delete(ctx: &impl Entry) {
    let (ct, portid) = (ctx.argument(0), ctx.argument(1) as u32);
    report(ctx, Hook::Delete, ct, &Note { with_tcp_state: true, ..Note::of(CTINFO_NONE, portid) });
}

/// Never attached: run by the program with the address of an entry whose confirmation was reported, to read what became
/// of it. The memory may belong to another entry by now, which its tuples tell. A tracepoint's type, because those can
/// be run on demand since 5.10.
#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub(crate) fn look(ctx: RawTracePointContext) -> i32 {
    report(&ctx, Hook::Look, ctx.arg(0), &Note::of(CTINFO_NONE, 0));
    0
}

/// The conntrack entry of a packet with `enum ip_conntrack_info` in its low three bits, 0 where it has none.
#[inline(always)]
pub(crate) fn nfct(skb: u64) -> u64 {
    match globals::OFF_SKB_NFCT.load() {
        MISSING => 0,
        offset => output::read(skb.wrapping_add(u64::from(offset))).unwrap_or(0),
    }
}

/// The namespace of an entry.
#[inline(always)]
pub(crate) fn netns(ct: u64) -> u32 {
    match globals::OFF_CT_NET.load() {
        MISSING => 0,
        offset => output::netns_behind(ct.wrapping_add(u64::from(offset))),
    }
}

#[inline(always)]
fn report(ctx: &impl EbpfContext, hook: Hook, ct: u64, note: &Note) {
    if ct == 0 || !(matches!(hook, Hook::Look) || filter::wants_ct(ct)) || sampled_out(hook, ct) {
        return;
    }
    let Some(mut entry) = output::reserve::<ConntrackRecord>(hook) else { return };
    let record = entry.as_mut_ptr();
    unsafe {
        if !output::copy(&raw mut (*record).ct_head, ct) {
            output::discard(entry);
            return;
        }
        (*record).header = output::header(hook, Kind::Conntrack, netns(ct));
        (*record).ct = ct;
        (*record).ctinfo = note.ctinfo;
        (*record).detail = note.detail;
        (*record).tcp_state = match globals::OFF_CT_TCP_STATE.load() {
            offset if note.with_tcp_state && offset != MISSING => {
                output::read::<u8>(ct.wrapping_add(u64::from(offset))).map_or(MISSING, u32::from)
            }
            _ => MISSING,
        };
        if note.with_task {
            (*record).pid = ctx.tgid();
            (*record).comm = ctx.command().unwrap_or([0; COMM_BYTES]);
        } else {
            (*record).pid = 0;
            (*record).comm = [0; COMM_BYTES];
        }
    }
    output::submit(entry);
}

/// Counts a healthy flow and says whether its record is left out. Failures pass other hooks and are never sampled.
#[inline(always)]
fn sampled_out(hook: Hook, ct: u64) -> bool {
    let shift = globals::SAMPLE_SHIFT.load();
    if shift == 0 || shift > 31 || !matches!(hook, Hook::Confirm) {
        return false;
    }
    let (Some(src), Some(dst), Some(reply)) = (
        end_at(ct, globals::OFF_CT_ORIG_SRC.load()),
        end_at(ct, globals::OFF_CT_ORIG_DST.load()),
        end_at(ct, globals::OFF_CT_REPLY_SRC.load()),
    ) else {
        return false;
    };
    let key = ServiceKey {
        vip: dst.address,
        endpoint: reply.address,
        vip_port: dst.port,
        endpoint_port: reply.port,
        protocol: dst.after as u8,
        family: src.after as u8,
        reserved: 0,
    };
    if let Some(count) = CONFIRMED.get_ptr_mut(&key) {
        unsafe { *count += 1 };
    } else if CONFIRMED.insert(&key, 1, 0).is_err() {
        return false;
    }
    // FNV-1a over the client's end and the VIP's port: any even spread will do, no secret is at stake.
    let mut hash: u32 = 0x811c_9dc5;
    let mut i = 0;
    while i < 16 {
        hash = (hash ^ u32::from(src.address[i])).wrapping_mul(0x0100_0193);
        i += 1;
    }
    hash = (hash ^ u32::from(src.port)).wrapping_mul(0x0100_0193);
    hash = (hash ^ u32::from(dst.port)).wrapping_mul(0x0100_0193);
    hash >> (32 - shift) != 0
}

/// One end of a `struct nf_conntrack_tuple`: `src` is {u3, port, l3num}, `dst` {u3, port, protonum, dir}.
#[derive(Clone, Copy)]
#[repr(C)]
struct End {
    address: [u8; 16],
    port: u16,
    after: u16,
}

#[inline(always)]
fn end_at(ct: u64, offset: u32) -> Option<End> {
    if offset == MISSING { None } else { output::read(ct.wrapping_add(u64::from(offset))) }
}

/// How deep `early_drop` is nested on a CPU: a task's own packet, and a softirq on top of it.
const DEPTHS: usize = 4;

#[derive(Clone, Copy)]
#[repr(C)]
struct EarlyDrops {
    depth: u32,
    reserved: u32,
    /// `struct net` and task of each call that has not returned.
    calls: [Call; DEPTHS],
    /// The task of the last call on this CPU that freed nothing, and when; its packet is dropped next.
    failed: Call,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Call {
    net_or_time: u64,
    pid_tgid: u64,
}

#[map]
static EARLY_DROPS: PerCpuArray<EarlyDrops> = PerCpuArray::with_max_entries(1, 0);

/// `early_drop(net, hash)`. A return value is joined to its arguments by CPU and nesting depth, never by pid:
/// the function runs in softirq on top of any task. The task is a check, for a call that moved to another CPU.
#[kprobe]
pub(crate) fn early_drop(ctx: ProbeContext) -> u32 {
    let (Some(net), Some(state)) = (ctx.arg::<u64>(0), EARLY_DROPS.get_ptr_mut(0)) else { return 0 };
    unsafe {
        let depth = (*state).depth as usize;
        if depth < DEPTHS {
            (*state).calls[depth & (DEPTHS - 1)] =
                Call { net_or_time: net, pid_tgid: bpf_get_current_pid_tgid() };
        }
        (*state).depth = (*state).depth.wrapping_add(1);
    }
    0
}

#[kretprobe]
pub(crate) fn early_drop_return(ctx: RetProbeContext) -> u32 {
    let Some(state) = EARLY_DROPS.get_ptr_mut(0) else { return 0 };
    let freed = u32::from(ctx.ret::<u8>() != 0);
    let pid_tgid = bpf_get_current_pid_tgid();
    let net = unsafe {
        let depth = (*state).depth;
        if depth == 0 {
            debug!(&ctx, "early_drop returned on a CPU where it had not begun");
            return 0;
        }
        (*state).depth = depth - 1;
        let index = (depth - 1) as usize;
        if index >= DEPTHS {
            return 0;
        }
        let call = (*state).calls[index & (DEPTHS - 1)];
        if call.pid_tgid != pid_tgid {
            // A call that migrated left this CPU's stack behind: begin again.
            (*state).depth = 0;
            return 0;
        }
        call.net_or_time
    };
    table_full(net, freed);
    0
}

/// `early_drop(net, hash)` at its return, with its arguments.
#[fexit]
pub(crate) fn early_drop_fexit(ctx: FExitContext) -> i32 {
    if let Ok(freed) = ctx.ret::<u64>() {
        table_full(ctx.arg(0), u32::from(freed as u8 != 0));
    }
    0
}

/// Reports the outcome of one `early_drop` in the namespace at `net`.
#[inline(always)]
fn table_full(net: u64, freed: u32) {
    if freed == 0
        && let Some(state) = EARLY_DROPS.get_ptr_mut(0)
    {
        let now = unsafe { bpf_ktime_get_ns() };
        unsafe { (*state).failed = Call { net_or_time: now, pid_tgid: bpf_get_current_pid_tgid() } };
    }
    let Some(mut entry) = output::reserve::<TableFullRecord>(Hook::EarlyDrop) else { return };
    let inum = match globals::OFF_NET_INUM.load() {
        MISSING => 0,
        offset => output::read(net.wrapping_add(u64::from(offset))).unwrap_or(0),
    };
    unsafe {
        let record = entry.as_mut_ptr();
        (*record).header = output::header(Hook::EarlyDrop, Kind::TableFull, inum);
        (*record).freed = freed;
        (*record).reserved = 0;
    }
    output::submit(entry);
}

/// Longest time from a failed `early_drop` to the drop of its packet, with a debugger's patience.
const FAILED_DROP_NS: u64 = 100_000_000;

/// Whether the packet being dropped on this CPU is the one that found the table full; asked once a failure.
#[inline(always)]
pub(crate) fn take_table_full() -> bool {
    let Some(state) = EARLY_DROPS.get_ptr_mut(0) else { return false };
    unsafe {
        let failed = (*state).failed;
        if failed.net_or_time == 0 {
            return false;
        }
        (*state).failed.net_or_time = 0;
        failed.pid_tgid == bpf_get_current_pid_tgid()
            && bpf_ktime_get_ns().wrapping_sub(failed.net_or_time) < FAILED_DROP_NS
    }
}
