//! Packets: their records, and those that a rule rejects, conntrack calls invalid or an ICMP error is about.

use core::mem::MaybeUninit;

use aya_ebpf::{
    macros::{fentry, kprobe},
    programs::{FEntryContext, ProbeContext},
};
use tracer_ebpf::{CTINFO_NONE, Hook, InvalidRecord, Kind, MISSING, PacketRecord, REASON_NONE};

use crate::{
    conntrack,
    entry::{Entry, at_entry},
    failures::{self, Failed},
    filter, globals, messages, output, recorder,
};

at_entry!(send_unreach, send_unreach_fentry, on_send_unreach);
at_entry!(send_unreach6, send_unreach6_fentry, on_send_unreach6);
at_entry!(icmp_error, icmp_error_fentry, on_icmp_error);
at_entry!(icmp_error6, icmp_error6_fentry, on_icmp_error6);
at_entry!(tcp_packet, tcp_packet_fentry, on_tcp_packet);

/// One more than the last of `enum nf_inet_hooks`.
const NF_INET_NUMHOOKS: u64 = 6;

/// `nf_send_unreach(skb_in, code, hook)`.
#[inline(always)]
fn on_send_unreach(ctx: &impl Entry) {
    report(Hook::SendUnreach, ctx.argument(0), ctx.argument(1) as u32, ctx.argument(2) as u32);
}

/// `nf_send_unreach6(net, skb_in, code, hooknum)`.
#[inline(always)]
fn on_send_unreach6(ctx: &impl Entry) {
    // An `unsigned char`: the rest of the register is undefined.
    let code = ctx.argument(2) as u32 & 0xff;
    report(Hook::SendUnreach6, ctx.argument(1), code, ctx.argument(3) as u32);
}

/// `nf_send_reset(net, sk, oldskb, hook)` since 5.11, `nf_send_reset(net, oldskb, hook)` before (kernel commit
/// "netfilter: use actual socket sk for REJECT action"), where no module has BTF that distinguishes them. The values
/// do: no packet lies at an address as low as the number of a netfilter hook.
#[kprobe]
pub(crate) fn nf_send_reset(ctx: ProbeContext) -> u32 {
    reset_by_values(&ctx, Hook::NfSendReset);
    0
}

/// `nf_send_reset6`, likewise.
#[kprobe]
pub(crate) fn nf_send_reset6(ctx: ProbeContext) -> u32 {
    reset_by_values(&ctx, Hook::NfSendReset6);
    0
}

#[inline(always)]
fn reset_by_values(ctx: &ProbeContext, hook: Hook) {
    let third = ctx.argument(2);
    let (skb, nf_hook) =
        if third < NF_INET_NUMHOOKS { (ctx.argument(1), third) } else { (third, ctx.argument(3)) };
    report(hook, skb, REASON_NONE, nf_hook as u32);
}

/// The same by fentry, where BTF confirms the order.
#[fentry]
pub(crate) fn nf_send_reset_fentry(ctx: FEntryContext) -> i32 {
    report(Hook::NfSendReset, ctx.argument(2), REASON_NONE, ctx.argument(3) as u32);
    0
}

#[fentry]
pub(crate) fn nf_send_reset6_fentry(ctx: FEntryContext) -> i32 {
    report(Hook::NfSendReset6, ctx.argument(2), REASON_NONE, ctx.argument(3) as u32);
    0
}

/// `nf_nat_icmp_reply_translation(skb, ct, ctinfo, hooknum)`: once for each NAT hook that the error passes.
#[inline(always)]
fn on_icmp_error(ctx: &impl Entry) {
    report(Hook::IcmpError, ctx.argument(0), REASON_NONE, ctx.argument(3) as u32);
}

/// `nf_nat_icmpv6_reply_translation(skb, ct, ctinfo, hooknum, hdrlen)`: the same over IPv6.
#[inline(always)]
fn on_icmp_error6(ctx: &impl Entry) {
    report(Hook::IcmpError6, ctx.argument(0), REASON_NONE, ctx.argument(3) as u32);
}

const TCP_FLAGS_BYTE: u64 = 13;
const TCP_RST: u8 = 4;

/// `nf_conntrack_tcp_packet(ct, skb, dataoff, ctinfo, state)`, entered for every packet, so in targeted traces only:
/// reports those that carry a RST. `dataoff` counts from `skb->data`, which is the network header here.
#[inline(always)]
fn on_tcp_packet(ctx: &impl Entry) {
    let (skb, dataoff) = (ctx.argument(1), ctx.argument(2) as u32);
    let network = network_header(skb);
    if network == 0 {
        return;
    }
    let flags = network.wrapping_add(u64::from(dataoff)).wrapping_add(TCP_FLAGS_BYTE);
    if output::read::<u8>(flags).unwrap_or(0) & TCP_RST != 0 {
        report(Hook::TcpPacket, skb, REASON_NONE, 0);
    }
}

/// `nf_ct_l4proto_log_invalid(skb, ct, state, fmt, …)`. Since 5.18 the message of a packet outside its window comes as
/// `"%pV"` with a `struct va_format` behind it, whose first member is the format (`nf_tcp_log_invalid`). The plan
/// excludes kernels where `fmt` is another argument (before 5.14).
///
/// A kprobe only: the verifier refuses fentry on a function with a variable number of arguments.
#[kprobe]
pub(crate) fn invalid_log(ctx: ProbeContext) -> u32 {
    let (Some(skb), Some(ct)) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1)) else { return 0 };
    let fmt = format(ctx.argument(3), ctx.argument(4));
    let ctinfo = conntrack::nfct(skb) & 7;
    let Some(packet) = Packet::concerned((Hook::InvalidLog, 0), skb, ct | ctinfo) else { return 0 };
    packet.report_invalid(fmt);
    0
}

/// The address of a message's format, by the format of `nf_ct_l4proto_log_invalid` and its first argument.
#[inline(always)]
pub(crate) fn format(fmt: u64, first: u64) -> u64 {
    if output::read::<[u8; 4]>(fmt) == Some(*b"%pV\0")
        && let Some(inner) = output::read::<u64>(first)
    {
        return inner;
    }
    fmt
}

/// Reports a packet, if the trace wants it.
#[inline(always)]
pub(crate) fn report(hook: Hook, skb: u64, reason: u32, nf_hook: u32) {
    let Some(packet) = Packet::concerned((hook, reason), skb, conntrack::nfct(skb)) else { return };
    packet.report(hook as u32, reason, nf_hook);
}

/// A packet that the trace wants.
pub(crate) struct Packet {
    pub(crate) skb: u64,
    pub(crate) nfct: u64,
    /// Address of its network header, 0 if it is unknown.
    pub(crate) network: u64,
}

impl Packet {
    /// The packet, if its own addresses or its entry's concern the trace, and an agent's limits let it through.
    #[inline(always)]
    pub(crate) fn concerned((hook, reason): (Hook, u32), skb: u64, nfct: u64) -> Option<Self> {
        Self::concerned_at((hook as u32, reason), skb, nfct)
    }

    /// The same at a hook by its number.
    #[inline(always)]
    pub(crate) fn concerned_at((hook, reason): (u32, u32), skb: u64, nfct: u64) -> Option<Self> {
        let network = network_header(skb);
        let ct = nfct & !7;
        if recorder::on() {
            let failed = match (ct, network) {
                (0, 0) => return None,
                (0, _) => Failed::Packet { netns: device_netns(skb), network },
                _ => Failed::Entry { ct },
            };
            return failures::admits_at(hook, reason, failed).then_some(Self { skb, nfct, network });
        }
        if (network != 0 && filter::wants_packet(network)) || (ct != 0 && filter::wants_ct(ct)) {
            Some(Self { skb, nfct, network })
        } else {
            None
        }
    }

    /// Reports it.
    #[inline(always)]
    pub(crate) fn report(&self, hook: u32, reason: u32, nf_hook: u32) {
        let Some(mut entry) = output::reserve_at::<PacketRecord>(hook, false) else { return };
        self.fill(&mut entry, (hook, Kind::Packet), reason, nf_hook, 0);
        output::submit(entry);
    }

    /// Reports an invalid packet, with the format at this address.
    #[inline(always)]
    pub(crate) fn report_invalid(&self, fmt: u64) {
        let hook = Hook::InvalidLog as u32;
        let Some(mut entry) = output::reserve_at::<InvalidRecord>(hook, false) else { return };
        let record = entry.as_mut_ptr();
        // SAFETY: the record is the ring buffer's, of its size and alignment, and this program's alone until it is
        // submitted. Both its fields are written: the first as it may be uninitialised, the second by the kernel, with
        // zeros if need be.
        unsafe {
            let head = &mut *(&raw mut (*record).packet).cast::<MaybeUninit<PacketRecord>>();
            self.fill(head, (hook, Kind::Invalid), REASON_NONE, 0, 0);
            if !output::copy(&raw mut (*record).why, fmt) {
                messages::unreadable(hook);
            }
        }
        output::submit(entry);
    }

    /// Writes every field of the record.
    #[inline(always)]
    pub(crate) fn fill(
        &self,
        record: &mut MaybeUninit<PacketRecord>,
        (hook, kind): (u32, Kind),
        reason: u32,
        nf_hook: u32,
        flags: u32,
    ) {
        let ct = self.nfct & !7;
        let record = record.as_mut_ptr();
        // SAFETY: the reference guarantees the record's memory; its fields are written without being read.
        unsafe {
            // Where there is none, the kernel writes zeros.
            output::copy(&raw mut (*record).ct_head, if ct == 0 { 0 } else { conntrack::head(ct) });
            output::copy(&raw mut (*record).packet_head, self.network);
            let netns = if ct == 0 { device_netns(self.skb) } else { conntrack::netns(ct) };
            (*record).header = output::header_at(hook, kind, netns);
            (*record).skb = self.skb;
            (*record).ct = ct;
            (*record).ctinfo = if ct == 0 { CTINFO_NONE } else { (self.nfct & 7) as u32 };
            (*record).reason = reason;
            (*record).nf_hook = nf_hook;
            (*record).flags = flags;
        }
    }
}

#[inline(always)]
pub(crate) fn network_header(skb: u64) -> u64 {
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
pub(crate) fn device_netns(skb: u64) -> u32 {
    let (dev, net) = (globals::OFF_SKB_DEV.load(), globals::OFF_DEV_NET.load());
    if dev == MISSING || net == MISSING {
        return 0;
    }
    match output::read::<u64>(skb.wrapping_add(u64::from(dev))) {
        Some(device) if device != 0 => output::netns_behind(device.wrapping_add(u64::from(net))),
        _ => 0,
    }
}
