//! Packets that go no further: freed for a reason, rejected by a rule, answered with a RST.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use tracer_ebpf::{
    CTINFO_NONE, FLAG_TABLE_FULL, Hook, IP_CT_NEW, IPS_CONFIRMED, Kind, MISSING, PacketRecord, REASON_NONE,
};

use crate::{
    conntrack,
    entry::{Entry, at_entry},
    filter, globals, output,
};

at_entry!(send_unreach, send_unreach_fentry, on_send_unreach);
at_entry!(nf_send_reset, nf_send_reset_fentry, on_nf_send_reset);

/// Tracepoint `skb:kfree_skb(skb, location, [rx_sk,] reason)`: most calls are housekeeping. Reported are the
/// reasons that concern a Service, and any packet whose conntrack entry was new and never confirmed: that
/// entry tells the decision that came to nothing.
#[raw_tracepoint(tracepoint = "kfree_skb")]
pub(crate) fn kfree_skb(ctx: RawTracePointContext) -> i32 {
    let skb = ctx.arg::<u64>(0);
    let reason = match globals::ARG_KFREE_REASON.load() {
        MISSING => REASON_NONE,
        position => output::tracepoint_argument(&ctx, position),
    };
    let wanted =
        reason < 256 && globals::WANTED_REASONS.load()[(reason >> 6) as usize & 3] >> (reason & 63) & 1 == 1;
    let nfct = conntrack::nfct(skb);
    let ct = nfct & !7;
    let is_new = ct != 0 && nfct & 7 == u64::from(IP_CT_NEW);
    let never_confirmed = is_new && status(ct) & IPS_CONFIRMED == 0;
    if !wanted && !never_confirmed {
        return 0;
    }
    let Some(packet) = Packet::concerned(skb, nfct) else { return 0 };
    let Some(mut entry) = output::reserve::<PacketRecord>(Hook::KfreeSkb) else { return 0 };
    let record = entry.as_mut_ptr();
    unsafe {
        packet.fill(record, Hook::KfreeSkb, reason, 0);
        if ct == 0
            && reason == globals::REASON_NETFILTER_DROP.load()
            && conntrack::take_table_full((*record).header.time_ns)
        {
            (*record).flags = FLAG_TABLE_FULL;
        }
    }
    output::submit(entry);
    0
}

/// `nf_send_unreach(skb_in, code, hook)`.
#[inline(always)]
fn on_send_unreach(ctx: &impl Entry) {
    report(Hook::SendUnreach, ctx.argument(0), ctx.argument(1) as u32, ctx.argument(2) as u32);
}

/// `nf_send_reset(net, sk, oldskb, hook)`, the signature since 5.11; the plan leaves older kernels out.
#[inline(always)]
fn on_nf_send_reset(ctx: &impl Entry) {
    report(Hook::NfSendReset, ctx.argument(2), REASON_NONE, ctx.argument(3) as u32);
}

#[inline(always)]
pub(crate) fn report(hook: Hook, skb: u64, reason: u32, nf_hook: u32) {
    let Some(packet) = Packet::concerned(skb, conntrack::nfct(skb)) else { return };
    let Some(mut entry) = output::reserve::<PacketRecord>(hook) else { return };
    unsafe { packet.fill(entry.as_mut_ptr(), hook, reason, nf_hook) };
    output::submit(entry);
}

/// A packet that the trace wants.
struct Packet {
    skb: u64,
    nfct: u64,
    /// Address of its network header, 0 where it can't be told.
    network: u64,
}

impl Packet {
    /// The packet, if its own addresses or its entry's concern the trace.
    #[inline(always)]
    fn concerned(skb: u64, nfct: u64) -> Option<Self> {
        let network = network_header(skb);
        let ct = nfct & !7;
        if (network != 0 && filter::wants_packet(network)) || (ct != 0 && filter::wants_ct(ct)) {
            Some(Self { skb, nfct, network })
        } else {
            None
        }
    }

    #[inline(always)]
    unsafe fn fill(&self, record: *mut PacketRecord, hook: Hook, reason: u32, nf_hook: u32) {
        let ct = self.nfct & !7;
        unsafe {
            if ct == 0 {
                (*record).ct_head = [0; _];
            } else {
                output::copy(&raw mut (*record).ct_head, ct);
            }
            if self.network == 0 {
                (*record).packet_head = [0; _];
            } else {
                output::copy(&raw mut (*record).packet_head, self.network);
            }
            let netns = if ct == 0 { device_netns(self.skb) } else { conntrack::netns(ct) };
            (*record).header = output::header(hook, Kind::Packet, netns);
            (*record).skb = self.skb;
            (*record).ct = ct;
            (*record).ctinfo = if ct == 0 { CTINFO_NONE } else { (self.nfct & 7) as u32 };
            (*record).reason = reason;
            (*record).nf_hook = nf_hook;
            (*record).flags = 0;
        }
    }
}

#[inline(always)]
fn network_header(skb: u64) -> u64 {
    let (head, network) = (globals::OFF_SKB_HEAD.load(), globals::OFF_SKB_NETWORK_HEADER.load());
    if head == MISSING || network == MISSING {
        return 0;
    }
    match (
        output::read::<u64>(skb.wrapping_add(u64::from(head))),
        output::read::<u16>(skb.wrapping_add(u64::from(network))),
    ) {
        (Some(head), Some(network)) => head.wrapping_add(u64::from(network)),
        _ => 0,
    }
}

#[inline(always)]
fn device_netns(skb: u64) -> u32 {
    let (dev, net) = (globals::OFF_SKB_DEV.load(), globals::OFF_DEV_NET.load());
    if dev == MISSING || net == MISSING {
        return 0;
    }
    match output::read::<u64>(skb.wrapping_add(u64::from(dev))) {
        Some(device) if device != 0 => output::netns_behind(device.wrapping_add(u64::from(net))),
        _ => 0,
    }
}

#[inline(always)]
fn status(ct: u64) -> u32 {
    match globals::OFF_CT_STATUS.load() {
        MISSING => 0,
        offset => output::read(ct.wrapping_add(u64::from(offset))).unwrap_or(0),
    }
}
