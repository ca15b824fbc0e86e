//! An agent's program for all functions that failures enter and kprobes reach, and the one for such tracepoints.
//!
//! A program learns by the cookie of its link where it runs. It has the recorder's decision, which the verifier walks through
//! in every program that calls it, once for all of them. Where links have no cookies (of kprobes before 5.15, of tracepoints
//! before 6.10), and in traces without a recorder, each hook has a program of its own, in the file of its subsystem.
//!
//! Neither asks for the filter of a targeted trace: user space attaches them only without one.

use core::{ffi::c_void, mem::MaybeUninit};

use aya_ebpf::{
    EbpfContext as _,
    helpers::generated::bpf_get_attach_cookie,
    macros::{kprobe, raw_tracepoint},
    programs::{ProbeContext, RawTracePointContext},
};
use tracer_ebpf::{Cookie, Hook, IPS_SEEN_REPLY, MISSING, REASON_NONE};

use crate::{
    conntrack::{self, Note},
    entry::Entry as _,
    failures::{self, Failed},
    globals, output,
    packet::{self, Packet},
    tcp::{self, Change},
    turns::opaque,
};

/// At the entry of each function with a [`Cookie`].
///
/// In three parts, of which two are out of line: their stacks are gone before the recorder's decision begins, or not there yet.
/// All functions of a chain of calls share 512 bytes (`MAX_BPF_STACK`).
#[kprobe]
pub(crate) fn failing(ctx: ProbeContext) -> u32 {
    // SAFETY: the helper reads the link of the running program.
    let cookie = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) };
    let hook = (cookie & Cookie::HOOK_MASK) as u32;
    // No function has this cookie: the link lacks them.
    if cookie == 0 {
        return 0;
    }
    let mut facts = MaybeUninit::uninit();
    if !find(ctx.as_ptr(), cookie, &mut facts) {
        return 0;
    }
    // SAFETY: they were found, and so written.
    let facts: &Facts = unsafe { facts.assume_init_ref() };
    let ct = facts.nfct & !7;
    let failed = if ct == 0 {
        Failed::Packet { netns: facts.netns, network: facts.network }
    } else {
        Failed::Entry { ct }
    };
    // Those of other records share a bucket whatever their reasons.
    let is_packet = cookie & (Cookie::REPORTS_ENTRY | Cookie::REPORTS_INVALID) == 0;
    if failures::admits_at(hook, if is_packet { facts.reason } else { 0 }, failed) {
        report(ctx.as_ptr(), cookie, facts);
    }
    0
}

/// What a function's arguments say.
struct Facts {
    /// The packet, or the entry.
    subject: u64,
    /// As [`conntrack::nfct`] has it.
    nfct: u64,
    /// The address of the packet's network header, 0 if it is unknown.
    network: u64,
    reason: u32,
    place: u32,
    /// The namespace of a packet without an entry.
    netns: u32,
}

/// Finds and writes them; false where there is nothing to report.
#[inline(never)]
fn find(ctx: *mut c_void, cookie: u64, facts: &mut MaybeUninit<Facts>) -> bool {
    let ctx = ProbeContext::new(ctx);
    let is = |flag| cookie & flag != 0;
    if is(Cookie::WITHOUT_SOCKET) && !tcp::is_no_full_socket(ctx.argument(0)) {
        return false;
    }
    // An agent asks only for the connections that nobody answered.
    if is(Cookie::OF_END) && conntrack::status(ctx.argument(0)) & IPS_SEEN_REPLY != 0 {
        return false;
    }
    let words = Words([
        ctx.argument(0),
        ctx.argument(1),
        ctx.argument(2),
        ctx.argument(3),
        ctx.argument(4),
        0,
        u64::from(u32::MAX),
        0,
    ]);
    let subject = words.word(cookie >> Cookie::SUBJECT_SHIFT);
    let mut reason = words.word(cookie >> Cookie::REASON_SHIFT) as u32;
    let place = words.word(cookie >> Cookie::PLACE_SHIFT) as u32;
    if is(Cookie::REASON_IS_BYTE) {
        reason &= 0xff;
    }
    let mut nfct = if is(Cookie::OF_ENTRY) { subject } else { conntrack::nfct(subject) };
    if is(Cookie::REPORTS_INVALID) {
        nfct = ctx.argument(1) | nfct & 7;
    }
    let network = if is(Cookie::REPORTS_ENTRY) { 0 } else { packet::network_header(subject) };
    let mut netns = 0;
    if nfct & !7 == 0 {
        if network == 0 {
            return false;
        }
        netns = packet::device_netns(subject);
    }
    facts.write(Facts { subject, nfct, network, reason, place, netns });
    true
}

/// Writes the record.
#[inline(never)]
fn report(ctx: *mut c_void, cookie: u64, facts: &Facts) {
    let ctx = ProbeContext::new(ctx);
    let is = |flag| cookie & flag != 0;
    let hook = (cookie & Cookie::HOOK_MASK) as u32;
    let Facts { subject, nfct, network, reason, place, .. } = *facts;
    if is(Cookie::REPORTS_ENTRY) {
        let ctinfo = if is(Cookie::OF_ENTRY) { place } else { (nfct & 7) as u32 };
        let note = Note::of(ctinfo, reason).with_tcp_state(is(Cookie::OF_END));
        conntrack::write(&ctx, hook, false, nfct & !7, &note);
        return;
    }
    let packet = Packet { skb: subject, nfct, network };
    if is(Cookie::REPORTS_INVALID) {
        packet.report_invalid(packet::format(ctx.argument(3), ctx.argument(4)));
    } else {
        packet.report(hook, reason, place);
    }
}

/// At each tracepoint that only failures meet. Its cookie is the hook's number.
#[raw_tracepoint(tracepoint = "tcp_send_reset")]
pub(crate) fn failing_tracepoint(ctx: RawTracePointContext) -> i32 {
    // SAFETY: the helper reads the link of the running program.
    let hook = unsafe { bpf_get_attach_cookie(ctx.as_ptr()) } as u32;
    let is = |wanted: Hook| hook == wanted as u32;
    // By a probe read: the kernel attaches a program that loads an argument only where there is one. Behind the arguments is the
    // stack.
    let Some([sk, mut skb]) = output::read::<[u64; 2]>(ctx.as_ptr() as u64) else { return 0 };
    let argument = |position: u32| {
        if position == MISSING {
            return None;
        }
        output::read::<u32>((ctx.as_ptr() as u64).wrapping_add(u64::from(position) * 8))
    };
    let mut reason = REASON_NONE;
    if is(Hook::TcpRetransmit) {
        if argument(globals::ARG_RETRANSMIT_ERROR.load()).unwrap_or(0) != 0 {
            return 0;
        }
        reason = tcp::length(skb);
    }
    if is(Hook::TcpSendReset) {
        reason = argument(globals::ARG_SEND_RESET_REASON.load()).unwrap_or(REASON_NONE);
    }
    if !is(Hook::TcpSendReset) || !tcp::is_of_packet(sk, skb) {
        skb = 0;
    }
    if skb == 0 && sk == 0 {
        return 0;
    }
    let (mut nfct, mut network) = (0, 0);
    if skb != 0 {
        (nfct, network) = (conntrack::nfct(skb), packet::network_header(skb));
    }
    let ct = nfct & !7;
    let failed = match (skb, ct, network) {
        (0, ..) => Failed::Socket { netns: tcp::netns(sk), sk },
        (_, 0, 0) => return 0,
        (_, 0, _) => Failed::Packet { netns: packet::device_netns(skb), network },
        _ => Failed::Entry { ct },
    };
    // A socket's failures share a bucket whatever their reasons.
    let of_bucket = if skb == 0 { 0 } else { reason };
    if !failures::admits_at(hook, of_bucket, failed) {
        return 0;
    }
    // Compared once more, so that the compiler does not copy the calls above to two places.
    if opaque(skb) == 0 {
        tcp::write(&ctx, hook, sk, &Change::none(reason, is(Hook::TcpSendReset)));
    } else {
        Packet { skb, nfct, network }.report(hook, reason, 0);
    }
    0
}

/// The words among which a cookie chooses.
struct Words([u64; Cookie::WORDS]);

impl Words {
    /// The word at a place, of which only the last bits count. By a probe read: the verifier then knows nothing of it, whichever
    /// place it came from.
    #[inline(always)]
    fn word(&self, place: u64) -> u64 {
        let base = (&raw const self.0).expose_provenance() as u64;
        output::read(base.wrapping_add((place & Cookie::WORD_MASK) * 8)).unwrap_or(0)
    }
}
