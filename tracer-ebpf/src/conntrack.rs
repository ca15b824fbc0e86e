//! Conntrack and NAT: entries that enter the table, race, are killed or deleted, and a table that is full.

use aya_ebpf::{
    EbpfContext,
    macros::{fentry, fexit, kprobe, kretprobe, map, raw_tracepoint},
    maps::ProgramArray,
    programs::{FEntryContext, FExitContext, ProbeContext, RawTracePointContext, RetProbeContext},
};
use tracer_ebpf::{
    CT_HEAD_BYTES, CTINFO_NONE, ConntrackRecord, Hook, IP_CT_NEW, IPS_SEEN_REPLY, Kind, MISSING,
    TableFullRecord,
};

use crate::{
    calls, copies,
    entry::{Entry, at_entry},
    failures::{self, Failed},
    filter, globals, messages, output, recorder,
};

// By fentry, it is the rest of the copy that was chosen.
at_entry!(confirm, confirm_chosen, on_confirm);
at_entry!(nat_setup, nat_setup_fentry, on_nat_setup);
at_entry!(resolve_clash, resolve_clash_fentry, on_resolve_clash);
at_entry!(kill_acct, kill_acct_fentry, on_kill_acct);
at_entry!(delete, delete_fentry, on_delete);

/// The fields of a record besides the conntrack entry.
pub(crate) struct Note {
    ctinfo: u32,
    detail: u32,
    with_task: bool,
    with_tcp_state: bool,
}

impl Note {
    #[inline(always)]
    pub(crate) fn of(ctinfo: u32, detail: u32) -> Self {
        Self { ctinfo, detail, with_task: false, with_tcp_state: false }
    }

    #[inline(always)]
    pub(crate) fn with_tcp_state(self, with_tcp_state: bool) -> Self {
        Self { with_tcp_state, ..self }
    }
}

/// Unlike a kprobe's, a program of the confirmation by fentry may be preempted, so it has copies. They only choose the one that
/// reports the entry: the verifier reads a program again for each copy of it.
#[fentry]
pub(crate) fn confirm_fentry(ctx: FEntryContext) -> i32 {
    choose(&ctx, 0);
    0
}

#[fentry]
pub(crate) fn confirm_fentry_2(ctx: FEntryContext) -> i32 {
    choose(&ctx, 1);
    0
}

#[fentry]
pub(crate) fn confirm_fentry_3(ctx: FEntryContext) -> i32 {
    choose(&ctx, 2);
    0
}

/// Has [`confirm_chosen`], for which user space makes room before it attaches the copies.
#[map]
static CHOSEN: ProgramArray = ProgramArray::with_max_entries(1, 0);

/// Continues with [`confirm_chosen`] if no other copy than this one does so for the packet, which stands for its entry.
#[inline(always)]
fn choose(ctx: &FEntryContext, copy: u32) {
    if !copies::is_first(Hook::Confirm, globals::CONFIRM_COPIES.load(), copy, ctx.argument(0)) {
        return;
    }
    // SAFETY: the program there is of the same kind and for the same function, as the kernel makes sure.
    unsafe { CHOSEN.tail_call(ctx, 0) };
    // It has returned, so no program is there. On some kernels a program that calls another one has no functions of its own
    // (arm64 before 6.0).
    output::count_lost_here(Hook::Confirm as u32);
}

/// `__nf_conntrack_confirm(skb)`, at entry: the tuples are final, POSTROUTING's NAT included. It also runs for
/// ICMP errors and other related packets that carry the same entry; those are not `IP_CT_NEW`.
#[inline(always)]
fn on_confirm(ctx: &impl Entry) {
    let nfct = nfct_behind(ctx, 0);
    if nfct & 7 != u64::from(IP_CT_NEW) || recorder::on() && !recorder::keep(nfct & !7) {
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

/// `nf_ct_delete(ct, portid, report)`; the port id is not 0 if a person or a controller deleted the entry.
#[inline(always)]
fn on_delete(ctx: &impl Entry) {
    let (ct, portid) = (ctx.argument(0), ctx.argument(1) as u32);
    // An agent asks only for the connections that nobody answered.
    if recorder::on() && status(ct) & IPS_SEEN_REPLY != 0 {
        return;
    }
    report(ctx, Hook::Delete, ct, &Note { with_tcp_state: true, ..Note::of(CTINFO_NONE, portid) });
}

/// Never attached: user space runs it with the address of an entry whose confirmation was reported, to read its current
/// state. The memory may belong to another entry by now, which its tuples show. It has a tracepoint's type, because
/// those can be run on demand since 5.10.
#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub(crate) fn reread(ctx: RawTracePointContext) -> i32 {
    report(&ctx, Hook::EntryReread, ctx.arg(0), &Note::of(CTINFO_NONE, 0));
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

/// The same of the packet in argument `n`.
#[inline(always)]
pub(crate) fn nfct_behind(ctx: &impl Entry, n: usize) -> u64 {
    match globals::OFF_SKB_NFCT.load() {
        MISSING => 0,
        offset => ctx.word_behind(n, offset),
    }
}

/// The address of the part of an entry that records carry.
#[inline(always)]
pub(crate) fn head(ct: u64) -> u64 {
    ct.wrapping_add(u64::from(globals::OFF_CT_BASE.load()))
}

/// `enum tcp_conntrack` of an entry; without a meaning for other protocols.
#[inline(always)]
pub(crate) fn tcp_state(ct: u64) -> u32 {
    match globals::OFF_CT_TCP_STATE.load() {
        MISSING => MISSING,
        offset => output::load::<u8>(ct.wrapping_add(u64::from(offset))).map_or(MISSING, u32::from),
    }
}

/// The namespace of an entry whose beginning was copied from [`head`] to `copied`.
///
/// # Safety
///
/// `copied` must be valid for reads, and aligned to 4.
#[inline(always)]
pub(crate) unsafe fn netns_in(copied: *const [u8; CT_HEAD_BYTES], ct: u64) -> u32 {
    match globals::OFF_CT_NET.load() {
        MISSING => 0,
        offset => {
            let at = offset.wrapping_sub(globals::OFF_CT_BASE.load());
            // SAFETY: as the caller promises.
            unsafe { output::netns_in(copied, head(ct), at) }
        }
    }
}

/// The address of an entry's namespace, 0 where it is unknown.
#[inline(always)]
pub(crate) fn net(ct: u64) -> u64 {
    match globals::OFF_CT_NET.load() {
        MISSING => 0,
        offset => output::load(ct.wrapping_add(u64::from(offset))).unwrap_or(0),
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
    if ct == 0 || !(matches!(hook, Hook::EntryReread) || filter::wants_ct(ct)) {
        return;
    }
    let is_failure = !matches!(hook, Hook::Confirm | Hook::EntryReread);
    if is_failure && recorder::on() && !failures::admits(hook, 0, Failed::Entry { ct }) {
        return;
    }
    write(ctx, hook as u32, matches!(hook, Hook::Confirm), ct, note);
}

/// Writes the record of a hook by its number.
#[inline(always)]
pub(crate) fn write(ctx: &impl EbpfContext, hook: u32, is_decision: bool, ct: u64, note: &Note) {
    let Some(mut entry) = output::reserve_at::<ConntrackRecord>(hook, is_decision) else { return };
    let record = entry.as_mut_ptr();
    // SAFETY: the record is the ring buffer's, of its size and alignment, and this program's alone until it is
    // submitted or discarded. Every field is written before it is submitted.
    unsafe {
        if !output::copy(&raw mut (*record).ct_head, head(ct)) {
            messages::unreadable(hook);
            output::discard(entry);
            return;
        }
        (*record).header =
            output::header_at(hook, Kind::Conntrack, netns_in(&raw const (*record).ct_head, ct));
        (*record).ct = ct;
        (*record).ctinfo = note.ctinfo;
        (*record).detail = note.detail;
        (*record).tcp_state = if note.with_tcp_state { tcp_state(ct) } else { MISSING };
        (*record).pid = if note.with_task { ctx.tgid() } else { 0 };
        output::command(&raw mut (*record).comm, note.with_task);
    }
    output::submit(entry);
}

/// The calls of `early_drop`. A call that freed nothing is noted: its packet is dropped next.
#[map]
static EARLY_DROPS: calls::Map = calls::map();

/// `early_drop(net, hash)`.
#[kprobe]
pub(crate) fn early_drop(ctx: ProbeContext) -> u32 {
    if let Some(net) = ctx.arg::<u64>(0) {
        calls::begin(&EARLY_DROPS, net);
    }
    0
}

#[kretprobe]
pub(crate) fn early_drop_return(ctx: RetProbeContext) -> u32 {
    let freed = u32::from(ctx.ret::<u8>() != 0);
    if let Some(net) = calls::end(&EARLY_DROPS, Hook::EarlyDrop) {
        table_full(net, freed);
    }
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
    if freed == 0 {
        calls::note(&EARLY_DROPS);
    }
    let inum = match globals::OFF_NET_INUM.load() {
        MISSING => 0,
        offset => output::read(net.wrapping_add(u64::from(offset))).unwrap_or(0),
    };
    if recorder::on() && !failures::admits_netns(Hook::EarlyDrop, inum) {
        return;
    }
    let Some(mut entry) = output::reserve::<TableFullRecord>(Hook::EarlyDrop) else { return };
    let header = output::header(Hook::EarlyDrop, Kind::TableFull, inum);
    entry.write(TableFullRecord { header, freed, reserved: 0 });
    output::submit(entry);
}

/// Longest time from a failed `early_drop` to the drop of its packet, long enough for a debugger.
const FAILED_DROP_NS: u64 = 100_000_000;

/// Whether the packet being dropped on this CPU is the one that found the table full; true once per failure.
#[inline(always)]
pub(crate) fn take_table_full() -> bool {
    calls::take_note(&EARLY_DROPS, FAILED_DROP_NS)
}

/// `nf_conn.status`, 0 where it cannot be read.
#[inline(always)]
pub(crate) fn status(ct: u64) -> u32 {
    match globals::OFF_CT_STATUS.load() {
        MISSING => 0,
        offset => output::read(ct.wrapping_add(u64::from(offset))).unwrap_or(0),
    }
}
