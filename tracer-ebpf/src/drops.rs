//! Packets that the kernel drops: those that may concern a Service, and what was known about them before.

use aya_ebpf::{
    macros::{btf_tracepoint, raw_tracepoint},
    programs::{BtfTracePointContext, RawTracePointContext},
};
use tracer_ebpf::{
    FLAG_TABLE_FULL, Hook, IP_CT_NEW, IPS_CONFIRMED, Kind, MISSING, PacketRecord, REASON_NONE, SITE_SHIFT,
};

use crate::{conntrack, entry::Entry, globals, ipvs, output, packet::Packet, turns::opaque};

/// Tracepoint `skb:kfree_skb(skb, location, [rx_sk,] reason)`: most calls are housekeeping. It reports the reasons that
/// concern a Service, and any packet whose conntrack entry was new and never confirmed: that entry holds the decision
/// that had no effect. Where the kernel gives no reasons, the dropping function stands for one.
#[raw_tracepoint(tracepoint = "kfree_skb")]
pub(crate) fn kfree_skb(ctx: RawTracePointContext) -> i32 {
    on_kfree_skb(&ctx);
    0
}

/// The same where the kernel knows the arguments' types: healthy connections meet it too, and a load of a packet's field
/// takes a tenth of a probe read.
#[btf_tracepoint(function = "kfree_skb")]
pub(crate) fn kfree_skb_typed(ctx: BtfTracePointContext) -> i32 {
    on_kfree_skb(&ctx);
    0
}

#[inline(always)]
fn on_kfree_skb(ctx: &impl Entry) {
    let skb = ctx.argument(0);
    let reason = match globals::ARG_KFREE_REASON.load() {
        MISSING => REASON_NONE,
        position => output::tracepoint_argument(ctx, position),
    };
    let nfct = conntrack::nfct_behind(ctx, 0);
    let site = if reason == REASON_NONE { globals::site(ctx.argument(1)) } else { 0 };
    let wanted = site != 0 || globals::is_wanted(reason);
    let by_rules = reason == REASON_NONE || reason == globals::REASON_NETFILTER_DROP.load();
    let is_new = nfct & 7 == u64::from(IP_CT_NEW);
    // The last packet of each healthy connection ends here, by one branch.
    if opaque(u64::from(wanted) | u64::from(by_rules) | u64::from(is_new)) == 0 {
        return;
    }
    let ct = nfct & !7;
    let is_new = is_new && ct != 0;
    let confirmed = ct != 0 && (is_new || by_rules) && conntrack::status(ct) & IPS_CONFIRMED != 0;
    let never_confirmed = is_new && !confirmed;
    let expired = confirmed && by_rules && ipvs::take_expired();
    // Where the kernel gives no reasons, the next packet that is freed without an entry is taken for the one that got
    // none: `nf_hook_slow` frees it as soon as `nf_conntrack_in` has returned.
    let table_full = ct == 0 && by_rules && conntrack::take_table_full();
    if !wanted && !never_confirmed && !expired && !table_full {
        return;
    }
    let hook = if expired { Hook::IpVsConnExpire } else { Hook::KfreeSkb } as u32;
    let flags = (u32::from(table_full) * FLAG_TABLE_FULL) | (site << SITE_SHIFT);
    // One way for each kind of drop ends here.
    let mut facts = [nfct, u64::from(hook) | u64::from(flags) << 32];
    if !output::forget(&mut facts) {
        return;
    }
    let [nfct, hook_and_flags] = facts;
    let (hook, flags) = (hook_and_flags as u32, (hook_and_flags >> 32) as u32);
    let Some(packet) = Packet::concerned_at((hook, reason), skb, nfct) else { return };
    let Some(mut entry) = output::reserve_at::<PacketRecord>(hook, false) else { return };
    packet.fill(&mut entry, (hook, Kind::Packet), reason, 0, flags);
    output::submit(entry);
}
