//! TCP sockets: their changes of state, the RSTs that they send and receive, their retransmits.

use aya_ebpf::{EbpfContext, macros::raw_tracepoint, programs::RawTracePointContext};
use tracer_ebpf::{Hook, Kind, MISSING, REASON_NONE, SocketRecord};

use crate::{
    entry::{Entry, at_entry},
    failures::{self, Failed},
    filter, globals, messages, output, packet, recorder,
};

at_entry!(sock_established, sock_established_fentry, on_established);
at_entry!(sock_closed, sock_closed_fentry, on_closed);
at_entry!(tcp_v4_send_reset, tcp_v4_send_reset_fentry, on_tcp_v4_send_reset);
at_entry!(tcp_v6_send_reset, tcp_v6_send_reset_fentry, on_tcp_v6_send_reset);

// include/net/tcp_states.h
const ESTABLISHED: u8 = 1;
const SYN_SENT: u8 = 2;
const SYN_RECV: u8 = 3;
const TIME_WAIT: u8 = 6;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
const NEW_SYN_RECV: u8 = 12;

// `BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB` (include/uapi/linux/bpf.h).
const PASSIVE_ESTABLISHED: u32 = 5;

/// `tcp_init_transfer(sk, bpf_op[, skb])`: a handshake ended well; with TCP Fast Open, the server accepted the SYN's data. The
/// server's socket changes its state later, the client's before.
#[inline(always)]
fn on_established(ctx: &impl Entry) {
    let from = if ctx.argument(1) as u32 == PASSIVE_ESTABLISHED { SYN_RECV } else { SYN_SENT };
    let change = Change { state: State::Established { from }, reason: REASON_NONE, with_task: false };
    report(ctx, Hook::SockEstablished, ctx.argument(0), &change);
}

/// `inet_unhash(sk)`: a socket closes, or could not connect. `tcp_set_state` calls it before the state changes and before
/// the port is given back.
#[inline(always)]
fn on_closed(ctx: &impl Entry) {
    let change = Change { state: State::Closed, reason: REASON_NONE, with_task: false };
    report(ctx, Hook::SockClosed, ctx.argument(0), &change);
}

/// Tracepoint `tcp:tcp_retransmit_skb(sk, skb[, err])`. Since 6.17 it also reports segments that could not be sent, with
/// the error (kernel commit "tcp: trace retransmit failures in `tcp_retransmit_skb`"): they are left out on every kernel.
#[raw_tracepoint(tracepoint = "tcp_retransmit_skb")]
pub(crate) fn tcp_retransmit(ctx: RawTracePointContext) -> i32 {
    let error = match globals::ARG_RETRANSMIT_ERROR.load() {
        MISSING => 0,
        position => output::tracepoint_argument(&ctx, position),
    };
    if error != 0 {
        return 0;
    }
    let reason = length(ctx.arg(1));
    report(&ctx, Hook::TcpRetransmit, ctx.arg(0), &Change::none(reason, false));
    0
}

/// The bytes of a packet, [`REASON_NONE`] where they are unknown.
#[inline(always)]
pub(crate) fn length(skb: u64) -> u32 {
    match globals::OFF_SKB_LEN.load() {
        MISSING => REASON_NONE,
        offset => output::read(skb.wrapping_add(u64::from(offset))).unwrap_or(REASON_NONE),
    }
}

/// Tracepoint `tcp:tcp_receive_reset(sk)`.
#[raw_tracepoint(tracepoint = "tcp_receive_reset")]
pub(crate) fn tcp_receive_reset(ctx: RawTracePointContext) -> i32 {
    report(&ctx, Hook::TcpReceiveReset, ctx.arg(0), &Change::none(REASON_NONE, false));
    0
}

/// Tracepoint `tcp:tcp_send_reset(sk, skb[, reason])`. From 6.10 it also reports RSTs without a full socket.
#[raw_tracepoint(tracepoint = "tcp_send_reset")]
pub(crate) fn tcp_send_reset(ctx: RawTracePointContext) -> i32 {
    let (sk, skb) = (ctx.arg::<u64>(0), ctx.arg::<u64>(1));
    let reason = match globals::ARG_SEND_RESET_REASON.load() {
        MISSING => REASON_NONE,
        position => output::tracepoint_argument(&ctx, position),
    };
    if is_of_packet(sk, skb) {
        packet::report(Hook::TcpSendReset, skb, reason, 0);
    } else {
        report(&ctx, Hook::TcpSendReset, sk, &Change::none(reason, true));
    }
    0
}

/// `tcp_v4_send_reset(sk, skb)`, attached only where the tracepoint is blind to RSTs without a full socket.
#[inline(always)]
fn on_tcp_v4_send_reset(ctx: &impl Entry) {
    send_reset(ctx, Hook::TcpV4SendReset);
}

/// `tcp_v6_send_reset(sk, skb)`, likewise.
#[inline(always)]
fn on_tcp_v6_send_reset(ctx: &impl Entry) {
    send_reset(ctx, Hook::TcpV6SendReset);
}

#[inline(always)]
fn send_reset(ctx: &impl Entry, hook: Hook) {
    let (sk, skb) = (ctx.argument(0), ctx.argument(1));
    if is_no_full_socket(sk) {
        packet::report(hook, skb, REASON_NONE, 0);
    }
}

/// Whether the tracepoint reports no RST for this socket: not `sk_fullsock()`.
#[inline(always)]
pub(crate) fn is_no_full_socket(sk: u64) -> bool {
    sk == 0 || matches!(state(sk), TIME_WAIT | NEW_SYN_RECV)
}

/// Whether a sent RST is reported with the packet that it answers. A listener has no peer, and a half-open or lingering socket is
/// not a full one: the packet has more facts.
#[inline(always)]
pub(crate) fn is_of_packet(sk: u64, skb: u64) -> bool {
    skb != 0 && (sk == 0 || matches!(state(sk), LISTEN | TIME_WAIT | NEW_SYN_RECV))
}

#[inline(always)]
fn state(sk: u64) -> u8 {
    match globals::OFF_SK_STATE.load() {
        MISSING => 0,
        offset => output::read(sk.wrapping_add(u64::from(offset))).unwrap_or(0),
    }
}

#[inline(always)]
pub(crate) fn netns(sk: u64) -> u32 {
    match globals::OFF_SK_NET.load() {
        MISSING => 0,
        offset => output::netns_behind(sk.wrapping_add(u64::from(offset))),
    }
}

pub(crate) struct Change {
    state: State,
    reason: u32,
    with_task: bool,
}

impl Change {
    /// None, at an event with this reason.
    #[inline(always)]
    pub(crate) fn none(reason: u32, with_task: bool) -> Self {
        Self { state: State::Same, reason, with_task }
    }
}

/// The change of a socket's state at the hook.
enum State {
    /// None.
    Same,
    Established {
        from: u8,
    },
    Closed,
}

#[inline(always)]
fn report(ctx: &impl EbpfContext, hook: Hook, sk: u64, change: &Change) {
    if sk == 0 || !filter::wants_socket(sk) {
        return;
    }
    if recorder::on() && !failures::admits(hook, 0, Failed::Socket { netns: netns(sk), sk }) {
        return;
    }
    write(ctx, hook as u32, sk, change);
}

/// Writes the record of a hook by its number.
#[inline(always)]
pub(crate) fn write(ctx: &impl EbpfContext, hook: u32, sk: u64, change: &Change) {
    let Some(mut entry) = output::reserve_at::<SocketRecord>(hook, false) else { return };
    let record = entry.as_mut_ptr();
    // SAFETY: the record is the ring buffer's, of its size and alignment, and this program's alone until it is
    // submitted or discarded. Every field is written before it is submitted.
    unsafe {
        if !output::copy(&raw mut (*record).sock_head, sk) {
            messages::unreadable(hook);
            output::discard(entry);
            return;
        }
        let found = match globals::OFF_SK_STATE.load() {
            MISSING => 0,
            offset => output::byte_in(&raw const (*record).sock_head, sk, offset),
        };
        let (old, new) = match change.state {
            State::Same => (found, found),
            State::Established { from } => (from, ESTABLISHED),
            // A listener, or a socket that was closed before: known only now, by the copy, which spares the others a read.
            State::Closed if matches!(found, LISTEN | CLOSE) => {
                output::discard(entry);
                return;
            }
            State::Closed => (found, CLOSE),
        };
        let netns = match globals::OFF_SK_NET.load() {
            MISSING => 0,
            offset => output::netns_in(&raw const (*record).sock_head, sk, offset),
        };
        (*record).header = output::header_at(hook, Kind::Socket, netns);
        (*record).sk = sk;
        (*record).old_state = old;
        (*record).new_state = new;
        (*record).protocol = 6;
        (*record).reason = change.reason;
        let counts = new == CLOSE || hook == Hook::TcpRetransmit as u32;
        (*record).bytes_acked = field(counts, sk, globals::OFF_TCP_BYTES_ACKED.load());
        (*record).bytes_received = field(counts, sk, globals::OFF_TCP_BYTES_RECEIVED.load());
        (*record).sport = field(found == CLOSE, sk, globals::OFF_INET_SPORT.load());
        (*record).reserved = 0;
        (*record).pid = if change.with_task { ctx.tgid() } else { 0 };
        output::command(&raw mut (*record).comm, change.with_task);
    }
    output::submit(entry);
}

/// A field that matters only then, 0 otherwise.
#[inline(always)]
fn field<T: output::Scalar + Default>(matters: bool, sk: u64, offset: u32) -> T {
    if !matters || offset == MISSING {
        return T::default();
    }
    output::read(sk.wrapping_add(u64::from(offset))).unwrap_or_default()
}
