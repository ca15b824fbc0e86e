//! The hooks, as reviewable data: what each attaches to, what it needs, and what its absence costs.

use tracer_ebpf::Hook;

/// How a program reaches its hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attach {
    /// At a function's entry: by fentry where [`twin`] names a program for it and the kernel allows it, else by kprobe.
    Kprobe,
    /// At a function's return with its arguments: by fexit, else by a kprobe and a kretprobe joined by CPU and nesting
    /// depth.
    KprobePair,
    /// A tracepoint's arguments as the kernel passes them; needs no tracefs.
    RawTracepoint,
    /// Loaded, attached to nothing and run when the program asks.
    OnDemand,
}

impl Attach {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Kprobe => "kprobe",
            Self::KprobePair => "kprobe+kretprobe",
            Self::RawTracepoint => "raw tracepoint",
            Self::OnDemand => "on demand",
        }
    }
}

/// A program that sees by fentry or fexit what a hook's own programs see by kprobes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Twin {
    Entry(&'static str),
    /// Several programs that see each event: one of them is run while another is busy on that CPU. The first two are
    /// always attached, the third where programs are preempted often.
    Partners([&'static str; 3]),
    Exit(&'static str),
}

impl Twin {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Entry(_) | Self::Partners(_) => "fentry",
            Self::Exit(_) => "fexit",
        }
    }
}

/// The hook's program for fentry or fexit, if it has one.
pub const fn twin(hook: Hook) -> Option<Twin> {
    Some(match hook {
        Hook::Confirm => Twin::Partners(["confirm_fentry", "confirm_again_fentry", "confirm_thrice_fentry"]),
        Hook::NatSetup => Twin::Entry("nat_setup_fentry"),
        Hook::ResolveClash => Twin::Entry("resolve_clash_fentry"),
        Hook::KillAcct => Twin::Entry("kill_acct_fentry"),
        Hook::Delete => Twin::Entry("delete_fentry"),
        Hook::EarlyDrop => Twin::Exit("early_drop_fexit"),
        Hook::SendUnreach => Twin::Entry("send_unreach_fentry"),
        Hook::NfSendReset => Twin::Entry("nf_send_reset_fentry"),
        Hook::IcmpError => Twin::Entry("icmp_error_fentry"),
        Hook::IcmpError6 => Twin::Entry("icmp_error6_fentry"),
        Hook::TcpPacket => Twin::Entry("tcp_packet_fentry"),
        Hook::SendUnreach6 => Twin::Entry("send_unreach6_fentry"),
        Hook::NfSendReset6 => Twin::Entry("nf_send_reset6_fentry"),
        Hook::TcpV4SendReset => Twin::Entry("tcp_v4_send_reset_fentry"),
        Hook::TcpV6SendReset => Twin::Entry("tcp_v6_send_reset_fentry"),
        Hook::IpVsLeave => Twin::Entry("ipvs_leave_fentry"),
        Hook::IpVsConnExpire => Twin::Entry("ipvs_conn_expire_fentry"),
        Hook::IpVsConnNew => Twin::Entry("ipvs_conn_new_fentry"),
        Hook::IpVsSchedule => Twin::Exit("ipvs_schedule_fexit"),
        _ => return None,
    })
}

/// The part of a hook's function that is entered in its place where the compiler split it: callers in the same module
/// then make the function's first test themselves. Its arguments are the function's. Debian's 5.10 and 7.2.12+deb14 have
/// `nf_ct_delete.part.0`, by which the table's own cleaning, and a flush, pass `nf_ct_delete`.
pub const fn split_part(hook: Hook) -> Option<&'static str> {
    match hook {
        Hook::Delete => Some("nf_ct_delete.part.0"),
        _ => None,
    }
}

/// Which traces attach a hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Tracing is pointless without it.
    Essential,
    /// On a path that only failures take, so in every trace.
    Failure,
    /// On the path of healthy connections, so only in a full trace.
    Full,
    /// Each decision as it is taken: only where a target narrows the trace.
    Targeted,
}

/// One hook of the plan.
#[derive(Clone, Copy, Debug)]
pub struct HookSpec {
    pub hook: Hook,
    /// Names of the programs in the BPF object, in the order of attaching.
    pub programs: &'static [&'static str],
    pub attach: Attach,
    pub need: Need,
    /// The module that brings the function, where it usually is one.
    pub module: Option<&'static str>,
    /// Parameters by name and position that the program relies on, checked against BTF where it has the function.
    pub arguments: &'static [(&'static str, usize)],
    /// Fields of [`super::layout::FIELDS`] without which the records could not be told apart.
    pub fields: &'static [&'static str],
    /// What its absence costs, in words for an operator.
    pub cost: &'static str,
}

/// The module without which there is no virtual server, and nothing to be seen of one.
pub(super) const IPVS: &str = "ip_vs";

const CT: &[&str] = &[
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
const SKB_CT: &[&str] = &[
    "OFF_SKB_NFCT",
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
const PACKET: &[&str] = &["OFF_SKB_NFCT", "OFF_SKB_HEAD", "OFF_SKB_NETWORK_HEADER"];
const SOCKET: &[&str] =
    &["OFF_SK_FAMILY", "OFF_SK_STATE", "OFF_SK_DADDR", "OFF_SK_SADDR", "SK_DPORT", "SK_NUM"];

/// Every hook, the essential ones first.
pub const HOOKS: &[HookSpec] = &[
    HookSpec {
        hook: Hook::Confirm,
        programs: &["confirm"],
        attach: Attach::Kprobe,
        need: Need::Essential,
        module: Some("nf_conntrack"),
        arguments: &[("skb", 0)],
        fields: SKB_CT,
        cost: "no NAT decision is seen: which endpoint a flow got, or that it got none, stays unknown",
    },
    HookSpec {
        hook: Hook::KfreeSkb,
        programs: &["kfree_skb"],
        attach: Attach::RawTracepoint,
        need: Need::Failure,
        module: None,
        arguments: &[("skb", 0)],
        fields: PACKET,
        cost: "dropped packets are not seen: rule drops, a full table and dead next hops look like silence",
    },
    HookSpec {
        hook: Hook::SendUnreach,
        programs: &["send_unreach"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some("nf_reject_ipv4"),
        arguments: &[("skb_in", 0), ("code", 1), ("hook", 2)],
        fields: PACKET,
        cost: "a REJECT can't be told from a DROP: a Service without endpoints is not named (C20)",
    },
    HookSpec {
        hook: Hook::NfSendReset,
        programs: &["nf_send_reset"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some("nf_reject_ipv4"),
        arguments: &[("oldskb", 2), ("hook", 3)],
        fields: PACKET,
        cost: "a RST forged by a rule looks like the backend's own",
    },
    HookSpec {
        hook: Hook::SendUnreach6,
        programs: &["send_unreach6"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some("nf_reject_ipv6"),
        arguments: &[("skb_in", 1), ("code", 2), ("hooknum", 3)],
        fields: PACKET,
        cost: "over IPv6 a REJECT can't be told from a DROP: a Service without endpoints is not named (C20)",
    },
    HookSpec {
        hook: Hook::NfSendReset6,
        programs: &["nf_send_reset6"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some("nf_reject_ipv6"),
        arguments: &[("oldskb", 2), ("hook", 3)],
        fields: PACKET,
        cost: "over IPv6 a RST forged by a rule looks like the backend's own",
    },
    HookSpec {
        hook: Hook::EarlyDrop,
        programs: &["early_drop", "early_drop_return"],
        attach: Attach::KprobePair,
        need: Need::Failure,
        module: Some("nf_conntrack"),
        arguments: &[("net", 0)],
        fields: &["OFF_NET_INUM"],
        cost: "a full conntrack table is not seen (C16): its victims look like rule drops",
    },
    HookSpec {
        hook: Hook::ResolveClash,
        programs: &["resolve_clash"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some("nf_conntrack"),
        arguments: &[("skb", 0)],
        fields: SKB_CT,
        cost: "two packets racing for one conntrack entry are not seen (C17)",
    },
    HookSpec {
        hook: Hook::KillAcct,
        programs: &["kill_acct"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some("nf_conntrack"),
        arguments: &[("ct", 0)],
        fields: CT,
        cost: "a refused connection is seen only where its client or its backend runs on this node (C28)",
    },
    HookSpec {
        hook: Hook::TcpReceiveReset,
        programs: &["tcp_receive_reset"],
        attach: Attach::RawTracepoint,
        need: Need::Failure,
        module: None,
        arguments: &[("sk", 0)],
        fields: SOCKET,
        cost: "whether a RST reached the client is not seen",
    },
    HookSpec {
        hook: Hook::TcpSendReset,
        programs: &["tcp_send_reset"],
        attach: Attach::RawTracepoint,
        need: Need::Failure,
        module: None,
        arguments: &[("sk", 0), ("skb", 1)],
        fields: SOCKET,
        cost: "who sent a RST is not seen",
    },
    HookSpec {
        hook: Hook::TcpV4SendReset,
        programs: &["tcp_v4_send_reset"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: None,
        arguments: &[("sk", 0), ("skb", 1)],
        fields: PACKET,
        cost: "a RST from a port without a listener is seen only at the client (C28)",
    },
    HookSpec {
        hook: Hook::TcpV6SendReset,
        programs: &["tcp_v6_send_reset"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: None,
        arguments: &[("sk", 0), ("skb", 1)],
        fields: PACKET,
        cost: "over IPv6 a RST from a port without a listener is seen only at the client (C28)",
    },
    HookSpec {
        hook: Hook::TcpRetransmit,
        programs: &["tcp_retransmit"],
        attach: Attach::RawTracepoint,
        need: Need::Failure,
        module: None,
        arguments: &[("sk", 0)],
        fields: SOCKET,
        cost: "a silent backend is noticed only when its client gives up (C29)",
    },
    HookSpec {
        hook: Hook::SockState,
        programs: &["sock_state"],
        attach: Attach::RawTracepoint,
        need: Need::Full,
        module: None,
        arguments: &[("sk", 0), ("oldstate", 1), ("newstate", 2)],
        fields: SOCKET,
        cost: "that a connection was established and closed is not seen: a healthy flow is one of which nothing bad was seen",
    },
    HookSpec {
        hook: Hook::Delete,
        programs: &["delete"],
        attach: Attach::Kprobe,
        need: Need::Full,
        module: Some("nf_conntrack"),
        arguments: &[("ct", 0)],
        fields: CT,
        cost: "the end of a flow whose sockets are elsewhere is not seen",
    },
    HookSpec {
        hook: Hook::InvalidLog,
        programs: &["invalid_log"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some("nf_conntrack"),
        arguments: &[("skb", 0), ("ct", 1)],
        fields: SKB_CT,
        cost: "why conntrack calls a packet invalid is not seen (C18, C18b)",
    },
    HookSpec {
        hook: Hook::IcmpError,
        programs: &["icmp_error"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some("nf_nat"),
        arguments: &[("skb", 0), ("ct", 1), ("hooknum", 3)],
        fields: PACKET,
        cost: "an ICMP error from another node looks like silence: a refused datagram, a host that cannot be reached",
    },
    HookSpec {
        hook: Hook::IcmpError6,
        programs: &["icmp_error6"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some("nf_nat"),
        arguments: &[("skb", 0), ("ct", 1), ("hooknum", 3)],
        fields: PACKET,
        cost: "over IPv6 an ICMP error from another node looks like silence: a refused datagram, a host that cannot be \
               reached",
    },
    HookSpec {
        hook: Hook::Look,
        programs: &["look"],
        attach: Attach::OnDemand,
        need: Need::Failure,
        module: None,
        arguments: &[],
        fields: CT,
        cost: "whether a datagram was answered is not known before its entry ends",
    },
    HookSpec {
        hook: Hook::TcpPacket,
        programs: &["tcp_packet"],
        attach: Attach::Kprobe,
        need: Need::Targeted,
        module: Some("nf_conntrack"),
        arguments: &[("skb", 1), ("dataoff", 2)],
        fields: PACKET,
        cost: "a RST between two other hosts is not seen while it passes",
    },
    HookSpec {
        hook: Hook::NatSetup,
        programs: &["nat_setup"],
        attach: Attach::Kprobe,
        need: Need::Targeted,
        module: Some("nf_nat"),
        arguments: &[("ct", 0), ("maniptype", 2)],
        fields: CT,
        cost: "decisions are seen only once their packet leaves the node",
    },
    HookSpec {
        hook: Hook::IpVsLeave,
        programs: &["ipvs_leave"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some(IPVS),
        arguments: &[("svc", 0), ("skb", 1)],
        fields: PACKET,
        cost: "that IPVS has no real server for a Service is seen as a drop only (C12, C20 in ipvs mode)",
    },
    HookSpec {
        hook: Hook::IpVsConnExpire,
        programs: &["ipvs_conn_expire"],
        attach: Attach::Kprobe,
        need: Need::Failure,
        module: Some(IPVS),
        arguments: &[("cp", 0)],
        fields: PACKET,
        cost: "a packet that IPVS drops with an old entry looks like a rule's drop (C13, C14)",
    },
    HookSpec {
        hook: Hook::IpVsConnNew,
        programs: &["ipvs_conn_new"],
        attach: Attach::Kprobe,
        need: Need::Full,
        module: Some(IPVS),
        arguments: &[("p", 0), ("dest_af", 1), ("daddr", 2), ("dport", 3), ("flags", 4)],
        fields: &[
            "OFF_IPVS_PARAM_CADDR",
            "OFF_IPVS_PARAM_VADDR",
            "OFF_IPVS_PARAM_CPORT",
            "OFF_IPVS_PARAM_VPORT",
            "OFF_IPVS_PARAM_PROTOCOL",
            "OFF_IPVS_PARAM_AF",
        ],
        cost: "where IPVS does not track in conntrack (vs/conntrack=0), which endpoint a flow got stays unknown",
    },
    HookSpec {
        hook: Hook::IpVsSchedule,
        programs: &["ipvs_schedule", "ipvs_schedule_return"],
        attach: Attach::KprobePair,
        need: Need::Targeted,
        module: Some(IPVS),
        arguments: &[("svc", 0), ("skb", 1)],
        fields: PACKET,
        cost: "that IPVS could not make an entry for a packet (memory, overload defence) looks like a rule's drop",
    },
];
