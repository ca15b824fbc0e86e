//! The hooks: one row each, with every fact about a hook except its program and the meaning of its records.
//!
//! To add one, add its row here, its program in the file of its subsystem, the meaning of its records in user space's
//! decoder, and their effect on a flow where sightings are folded.

use super::{Attach, Cookie, Copies, HookSpec, IPVS, Need};
use crate::Kind;

const ENTRY: &[&str] = &[
    "CT_ORIG",
    "CT_REPLY",
    "OFF_CT_STATUS",
    "TUPLE_SRC",
    "TUPLE_SRC_PORT",
    "TUPLE_L3NUM",
    "TUPLE_DST",
    "TUPLE_DST_PORT",
    "TUPLE_PROTONUM",
];
const SKB_ENTRY: &[&str] = &["OFF_SKB_NFCT"];
const PACKET: &[&str] = &["OFF_SKB_NFCT", "OFF_SKB_HEAD", "OFF_SKB_NETWORK_HEADER"];
const SOCKET: &[&str] =
    &["OFF_SK_FAMILY", "OFF_SK_STATE", "OFF_SK_DADDR", "OFF_SK_SADDR", "SK_DPORT", "SK_NUM"];

/// Makes [`Hook`] and its rows: the doc comment says which arguments the kernel passes and what is observed there.
macro_rules! hooks {
    ($($(#[doc = $doc:literal])+ $hook:ident = $number:literal { $($field:ident: $value:expr,)+ })+) => {
        /// The kernel function or tracepoint that made a record. The numbers are part of the recording format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Hook {
            $($(#[doc = $doc])+ $hook = $number,)+
        }

        impl Hook {
            /// Every hook, the essential ones first: the order in which they are attached and printed.
            pub const ALL: &[Self] = &[$(Self::$hook),+];

            /// The hook's row.
            pub const fn spec(self) -> &'static HookSpec {
                match self {
                    $(Self::$hook => const { &HookSpec { hook: Self::$hook, $($field: $value,)+ } },)+
                }
            }
        }
    };
}

hooks! {
    /// `__nf_conntrack_confirm(skb)`: a new conntrack entry, its NAT decided, enters the table.
    Confirm = 0 {
        symbol: "__nf_conntrack_confirm",
        attach: Attach::Entry {
            kprobe: "confirm",
            fentry: Some(Copies {
                programs: &["confirm_fentry", "confirm_fentry_2", "confirm_fentry_3"],
                unpreempted: 2,
                chosen: Some("confirm_chosen"),
            }),
            split_part: None,
            shared: None,
        },
        need: Need::Essential, module: Some("nf_conntrack"),
        arguments: &[("skb", 0)], fields: &[SKB_ENTRY, ENTRY],
        records: &[Kind::Conntrack],
        absence: "no NAT decision is observed: which endpoint a flow got, or that it got none, is unknown",
        skipped: Some("NAT decisions"),
    }

    /// Tracepoint `skb:kfree_skb(skb, location, [rx_sk,] reason)`: a packet is dropped.
    KfreeSkb = 6 {
        symbol: "kfree_skb",
        attach: Attach::TypedTracepoint { typed: "kfree_skb_typed", raw: "kfree_skb" },
        need: Need::Failure, module: None,
        arguments: &[("skb", 0)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "dropped packets are not observed: rule drops, a full table and dead next hops look like silence",
        skipped: None,
    }

    /// `nf_send_unreach(skb_in, code, hook)`: a rule rejects with an ICMP error.
    SendUnreach = 7 {
        symbol: "nf_send_unreach",
        attach: Attach::shared("send_unreach", &["send_unreach_fentry"], Cookie::rejected(0, 1, 2)),
        need: Need::Failure, module: Some("nf_reject_ipv4"),
        arguments: &[("skb_in", 0), ("code", 1), ("hook", 2)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "a REJECT looks like a DROP: a Service without endpoints is not named (C20)",
        skipped: Some("rejected packets"),
    }

    /// `nf_send_reset(net, sk, oldskb, hook)`: a rule rejects with a forged RST.
    NfSendReset = 8 {
        symbol: "nf_send_reset",
        attach: Attach::shared("nf_send_reset", &["nf_send_reset_fentry"], Cookie::rejected(2, Cookie::NONE, 3)),
        need: Need::Failure, module: Some("nf_reject_ipv4"),
        arguments: &[("oldskb", 2), ("hook", 3)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "a RST forged by a rule looks like the backend's own",
        skipped: Some("rejected packets"),
    }

    /// `nf_send_unreach6(net, skb_in, code, hooknum)`: a rule rejects with an `ICMPv6` error.
    SendUnreach6 = 15 {
        symbol: "nf_send_unreach6",
        attach: Attach::shared("send_unreach6", &["send_unreach6_fentry"], Cookie::rejected(1, 2, 3).with(Cookie::REASON_IS_BYTE)),
        need: Need::Failure, module: Some("nf_reject_ipv6"),
        arguments: &[("skb_in", 1), ("code", 2), ("hooknum", 3)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "over IPv6 a REJECT looks like a DROP: a Service without endpoints is not named (C20)",
        skipped: Some("rejected packets"),
    }

    /// `nf_send_reset6(net, sk, oldskb, hook)`: a rule rejects with a forged RST over IPv6.
    NfSendReset6 = 16 {
        symbol: "nf_send_reset6",
        attach: Attach::shared("nf_send_reset6", &["nf_send_reset6_fentry"], Cookie::rejected(2, Cookie::NONE, 3)),
        need: Need::Failure, module: Some("nf_reject_ipv6"),
        arguments: &[("oldskb", 2), ("hook", 3)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "over IPv6 a RST forged by a rule looks like the backend's own",
        skipped: Some("rejected packets"),
    }

    /// `early_drop(net, hash)`: the table is full, and the kernel looks for an unassured entry to evict.
    EarlyDrop = 5 {
        symbol: "early_drop",
        attach: Attach::Return {
            kprobe: "early_drop",
            kretprobe: "early_drop_return",
            fexit: "early_drop_fexit",
        },
        need: Need::Failure, module: Some("nf_conntrack"),
        arguments: &[("net", 0)], fields: &[&["OFF_NET_INUM"]],
        records: &[Kind::TableFull],
        absence: "a full conntrack table is not observed (C16): its victims look like rule drops",
        skipped: Some("evictions from a full conntrack table"),
    }

    /// `nf_ct_resolve_clash(skb, h, reply_hash)`: two entries raced for one tuple.
    ResolveClash = 2 {
        symbol: "nf_ct_resolve_clash",
        attach: Attach::shared("resolve_clash", &["resolve_clash_fentry"], Cookie::entry_of_packet(0)),
        need: Need::Failure, module: Some("nf_conntrack"),
        arguments: &[("skb", 0)], fields: &[SKB_ENTRY, ENTRY],
        records: &[Kind::Conntrack],
        absence: "two packets racing for one conntrack entry are not observed (C17)",
        skipped: Some("clashes of conntrack entries"),
    }

    /// `nf_ct_kill_acct(ct, ctinfo, skb)`: a RST to an unreplied SYN, or a reopened connection, kills the entry.
    KillAcct = 3 {
        symbol: "nf_ct_kill_acct",
        attach: Attach::shared("kill_acct", &["kill_acct_fentry"], Cookie::entry(0, Cookie::ZERO, 1)),
        need: Need::Failure, module: Some("nf_conntrack"),
        arguments: &[("ct", 0)], fields: &[ENTRY],
        records: &[Kind::Conntrack],
        absence: "a refused connection is observed only if its client or its backend runs on this node (C28)",
        skipped: Some("conntrack entries ended by a RST"),
    }

    /// Tracepoint `tcp:tcp_receive_reset(sk)`.
    TcpReceiveReset = 11 {
        symbol: "tcp_receive_reset",
        attach: Attach::RawTracepoint("tcp_receive_reset"),
        need: Need::Failure, module: None,
        arguments: &[("sk", 0)], fields: &[SOCKET],
        records: &[Kind::Socket],
        absence: "whether a RST reached the client is not observed",
        skipped: Some("received RSTs"),
    }

    /// Tracepoint `tcp:tcp_send_reset(sk, skb[, reason])`.
    TcpSendReset = 9 {
        symbol: "tcp_send_reset",
        attach: Attach::RawTracepoint("tcp_send_reset"),
        need: Need::Failure, module: None,
        arguments: &[("sk", 0), ("skb", 1)], fields: &[SOCKET],
        records: &[Kind::Socket, Kind::Packet],
        absence: "the sender of a RST is not observed",
        skipped: Some("sent RSTs"),
    }

    /// `tcp_v4_send_reset(sk, skb)`: where the tracepoint is blind to RSTs without a full socket (before 6.10).
    TcpV4SendReset = 10 {
        symbol: "tcp_v4_send_reset",
        attach: Attach::shared("tcp_v4_send_reset", &["tcp_v4_send_reset_fentry"], Cookie::packet(1).with(Cookie::WITHOUT_SOCKET)),
        need: Need::Failure, module: None,
        arguments: &[("sk", 0), ("skb", 1)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "a RST from a port without a listener is observed only at the client (C28)",
        skipped: Some("sent RSTs"),
    }

    /// `tcp_v6_send_reset(sk, skb)`: the same over IPv6.
    TcpV6SendReset = 14 {
        symbol: "tcp_v6_send_reset",
        attach: Attach::shared("tcp_v6_send_reset", &["tcp_v6_send_reset_fentry"], Cookie::packet(1).with(Cookie::WITHOUT_SOCKET)),
        need: Need::Failure, module: None,
        arguments: &[("sk", 0), ("skb", 1)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "over IPv6 a RST from a port without a listener is observed only at the client (C28)",
        skipped: Some("sent RSTs"),
    }

    /// Tracepoint `tcp:tcp_retransmit_skb(sk, skb, …)`.
    TcpRetransmit = 12 {
        symbol: "tcp_retransmit_skb",
        attach: Attach::RawTracepoint("tcp_retransmit"),
        need: Need::Failure, module: None,
        arguments: &[("sk", 0)], fields: &[SOCKET],
        records: &[Kind::Socket],
        absence: "a silent backend is noticed only when its client gives up (C29)",
        skipped: Some("retransmits"),
    }

    /// `tcp_init_transfer(sk, bpf_op[, skb])`: a connection is established.
    ///
    /// This and the next one, not the tracepoint `sock:inet_sock_set_state`, which runs at eleven changes of a connection's
    /// two sockets, of which four are an outcome, and reports a closed socket after it has given its port back. Softirqs run
    /// most of these calls, so that a program here is seldom preempted or nested.
    SockEstablished = 28 {
        symbol: "tcp_init_transfer",
        attach: Attach::entry("sock_established", &["sock_established_fentry"]),
        need: Need::Full, module: None,
        arguments: &[("sk", 0), ("bpf_op", 1)], fields: &[SOCKET],
        records: &[Kind::Socket],
        absence: "established connections are not observed: a flow without a fault counts as healthy",
        skipped: Some("established connections"),
    }

    /// `inet_unhash(sk)`: a TCP socket closes, or could not connect (`tcp_set_state` calls `sk_prot->unhash`).
    SockClosed = 13 {
        symbol: "inet_unhash",
        attach: Attach::entry("sock_closed", &["sock_closed_fentry"]),
        need: Need::Full, module: None,
        arguments: &[("sk", 0)], fields: &[SOCKET],
        records: &[Kind::Socket],
        absence: "closed connections are not observed: how much they carried, and that a client gave up, is unknown",
        skipped: Some("closed connections"),
    }

    /// `nf_ct_delete(ct, portid, report)`: an entry times out or is deleted by hand. Debian's 5.10 and 7.2.12+deb14
    /// have `nf_ct_delete.part.0`, which the table's own cleaning, and a flush, enter instead of `nf_ct_delete`.
    Delete = 4 {
        symbol: "nf_ct_delete",
        attach: Attach::Entry {
            kprobe: "delete",
            fentry: Some(Copies::one(&["delete_fentry"])),
            split_part: Some("nf_ct_delete.part.0"),
            shared: Some(Cookie::entry(0, 1, Cookie::NONE).with(Cookie::OF_END)),
        },
        need: Need::Full, module: Some("nf_conntrack"),
        arguments: &[("ct", 0)], fields: &[ENTRY],
        records: &[Kind::Conntrack],
        absence: "the end of a flow whose sockets are on other hosts is not observed",
        skipped: Some("ended conntrack entries"),
    }

    /// `nf_ct_l4proto_log_invalid(skb, ct, state, fmt, …)`: conntrack calls a packet invalid, and `fmt` says why.
    InvalidLog = 23 {
        symbol: "nf_ct_l4proto_log_invalid",
        attach: Attach::Entry {
            kprobe: "invalid_log",
            fentry: None,
            split_part: None,
            shared: Some(Cookie::packet(0).with(Cookie::REPORTS_INVALID)),
        },
        need: Need::Failure, module: Some("nf_conntrack"),
        arguments: &[("skb", 0), ("ct", 1)], fields: &[SKB_ENTRY, ENTRY],
        records: &[Kind::Invalid],
        absence: "why conntrack calls a packet invalid is not observed (C18, C18b)",
        skipped: Some("invalid packets"),
    }

    /// `nf_nat_icmp_reply_translation(skb, ct, ctinfo, hooknum)`: an ICMP error about a packet of this entry.
    IcmpError = 26 {
        symbol: "nf_nat_icmp_reply_translation",
        attach: Attach::shared("icmp_error", &["icmp_error_fentry"], Cookie::rejected(0, Cookie::NONE, 3)),
        need: Need::Failure, module: Some("nf_nat"),
        arguments: &[("skb", 0), ("ct", 1), ("hooknum", 3)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "an ICMP error from another node looks like silence: a refused datagram, an unreachable host",
        skipped: Some("ICMP errors"),
    }

    /// `nf_nat_icmpv6_reply_translation(skb, ct, ctinfo, hooknum, hdrlen)`: the same over IPv6.
    IcmpError6 = 27 {
        symbol: "nf_nat_icmpv6_reply_translation",
        attach: Attach::shared("icmp_error6", &["icmp_error6_fentry"], Cookie::rejected(0, Cookie::NONE, 3)),
        need: Need::Failure, module: Some("nf_nat"),
        arguments: &[("skb", 0), ("ct", 1), ("hooknum", 3)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "over IPv6 an ICMP error of another node looks like silence: a refused datagram, an unreachable host",
        skipped: Some("ICMP errors"),
    }

    /// Not an event of the kernel: user space reads a conntrack entry again (`BPF_PROG_TEST_RUN`).
    EntryReread = 25 {
        symbol: "bpf_prog_test_run",
        attach: Attach::OnDemand("reread"),
        need: Need::Failure, module: None,
        arguments: &[], fields: &[ENTRY],
        records: &[Kind::Conntrack],
        absence: "whether a datagram was answered is unknown until its entry ends",
        skipped: None,
    }

    /// `nf_conntrack_tcp_packet(ct, skb, dataoff, ctinfo, state)` with a RST: one that passes through this node.
    TcpPacket = 24 {
        symbol: "nf_conntrack_tcp_packet",
        attach: Attach::entry("tcp_packet", &["tcp_packet_fentry"]),
        need: Need::Targeted, module: Some("nf_conntrack"),
        arguments: &[("skb", 1), ("dataoff", 2)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "a RST between two other hosts is not observed when it passes",
        skipped: None,
    }

    /// `nf_nat_setup_info(ct, range, maniptype)`: NAT is being decided.
    NatSetup = 1 {
        symbol: "nf_nat_setup_info",
        attach: Attach::entry("nat_setup", &["nat_setup_fentry"]),
        need: Need::Targeted, module: Some("nf_nat"),
        arguments: &[("ct", 0), ("maniptype", 2)], fields: &[ENTRY],
        records: &[Kind::Conntrack],
        absence: "decisions are observed only once their packet leaves the node",
        skipped: None,
    }

    /// `ip_vs_leave(svc, skb, …)`: there is no real server; IPVS rejects the packet with ICMP port unreachable.
    IpVsLeave = 19 {
        symbol: "ip_vs_leave",
        attach: Attach::shared("ipvs_leave", &["ipvs_leave_fentry"], Cookie::packet(1)),
        need: Need::Failure, module: Some(IPVS),
        arguments: &[("svc", 0), ("skb", 1)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "a Service without a real server in IPVS is observed only as a drop (C12, C20 in ipvs mode)",
        skipped: Some("packets without a real server"),
    }

    /// `ip_vs_conn_expire_now(cp)` and then a drop: IPVS gave up its entry and dropped the packet, for which an old
    /// conntrack entry remained. The record is made at the drop.
    IpVsConnExpire = 20 {
        symbol: "ip_vs_conn_expire_now",
        attach: Attach::entry("ipvs_conn_expire", &["ipvs_conn_expire_fentry"]),
        need: Need::Failure, module: Some(IPVS),
        arguments: &[("cp", 0)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "a packet that IPVS drops with an old entry looks like a rule's drop (C13, C14)",
        skipped: None,
    }

    /// `ip_vs_conn_new(p, dest_af, daddr, dport, flags, dest, fwmark)`: IPVS chose a real server.
    IpVsConnNew = 17 {
        symbol: "ip_vs_conn_new",
        attach: Attach::entry("ipvs_conn_new", &["ipvs_conn_new_fentry"]),
        need: Need::Full, module: Some(IPVS),
        arguments: &[("p", 0), ("dest_af", 1), ("daddr", 2), ("dport", 3), ("flags", 4)],
        fields: &[&[
            "OFF_IPVS_PARAM_CADDR",
            "OFF_IPVS_PARAM_VADDR",
            "OFF_IPVS_PARAM_CPORT",
            "OFF_IPVS_PARAM_VPORT",
            "OFF_IPVS_PARAM_PROTOCOL",
            "OFF_IPVS_PARAM_AF",
        ]],
        records: &[Kind::Ipvs],
        absence: "if IPVS does not track in conntrack (vs/conntrack=0), which endpoint a flow got is unknown",
        skipped: Some("real servers that IPVS chose"),
    }

    /// `ip_vs_schedule(svc, skb, …)` returned NULL: no real server was chosen for this packet.
    IpVsSchedule = 18 {
        symbol: "ip_vs_schedule",
        attach: Attach::Return {
            kprobe: "ipvs_schedule",
            kretprobe: "ipvs_schedule_return",
            fexit: "ipvs_schedule_fexit",
        },
        need: Need::Targeted, module: Some(IPVS),
        arguments: &[("svc", 0), ("skb", 1)], fields: &[PACKET],
        records: &[Kind::Packet],
        absence: "a packet for which IPVS could not make an entry (memory, overload defence) looks like a rule's drop",
        skipped: None,
    }
}
