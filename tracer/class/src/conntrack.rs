//! IPVS and conntrack: C11 to C19.

use crate::{
    Action,
    Domain::{Conntrack, HostKernel, IptablesSync, IpvsModules, NoEndpoints, StaleEndpoints},
    Entry,
    Seen::{Both, Check, Trace},
    Severity::{Critical, High, Low, Medium},
    action::{self, restart, slices},
    sync::{ALL_NODES, RESTART_DOES_NOT_HELP},
};

pub(super) const C11: Entry = Entry::fault("IPVS unusable", &[IpvsModules], Critical)
    .seen(Both)
    .now(&[
        Action::disrupts(concat!(
            "load the modules and restart kube-proxy: `modprobe -a ip_vs ip_vs_rr nf_conntrack`; ",
            restart!()
        )),
        action::LOAD_MODULE,
        action::RESTORE_DEVICE,
    ])
    .later(&[
        Action::disrupts(
            "list ip_vs and the scheduler in /etc/modules-load.d; keep network managers off kube-ipvs0 (NetworkManager: \
             unmanaged-devices=interface-name:kube-ipvs0)",
        ),
        action::MOVE_TO_NFTABLES,
    ])
    .escalate(&[RESTART_DOES_NOT_HELP, ALL_NODES])
    .no_scenario(
        "every kernel of the lab has IPVS; a capture of a kernel without it is in tests/fixtures/incidents, and \
         tests/it/check_faults.rs removes the interface",
    );

// The rules where the API has endpoints, the Service where they could not be read, the kernel where IPVS dropped the
// packet without an ICMP error: memory, or its overload defence.
pub(super) const C12: Entry =
    Entry::fault("IPVS virtual server without a real server", &[IptablesSync, NoEndpoints, HostKernel], High)
        .seen(Both)
        .now(&[
            Action::reads(concat!(
                "compare the virtual server with the slices, here and on another node: `ipvsadm -Ln \
                 {SERVICE_OPTION=-t} {VIP_PORT=VIP:PORT}`; ",
                slices!()
            )),
            action::READ_LOG,
            action::RESTART,
            action::LOOK_FOR_MEMORY,
            action::RULES_DIFFER,
        ])
        .later(&[action::ALERT_ON_SYNC, action::MOVE_TO_NFTABLES])
        .escalate(&[RESTART_DOES_NOT_HELP])
        .references(&["kubernetes/kubernetes#70493"])
        .lab(&["c12-without-servers"]);

pub(super) const C13: Entry = Entry::fault("IPVS real server removed under a connection", &[StaleEndpoints], Medium)
    .seen(Both)
    .now(&[
        Action::reads("let the client reconnect; it gets another endpoint"),
        action::RECONNECT_FROM_ANOTHER_PORT,
        action::SET_EXPIRE_NODEST,
    ])
    .later(&[Action::disrupts(
        "let Pods end their connections within their termination grace: kube-proxy keeps a real server at weight 0 while \
         connections to it live",
    )])
    .references(&["kubernetes/kubernetes#71358"])
    .lab(&["c13-server-removed", "c13-server-removed-in-silence"]);

pub(super) const C14: Entry = Entry::fault("IPVS port reuse delay", &[Conntrack], Low)
    .seen(Check)
    .now(&[
        Action::reads(
            "see how many connections began late: `viptrace trace {NAMESPACE}/{SERVICE} --all -o \
             json --duration 60s`",
        ),
        Action::reads(
            "see which rule applies: `sysctl net.ipv4.vs.conn_reuse_mode net.ipv4.vs.conntrack`; \
             `uname -r`",
        ),
    ])
    .later(&[Action::disrupts(
        "reuse connections in the client, widen its port range, or use a kernel from 5.9 on",
    )])
    .references(&[
        "kubernetes/kubernetes#70747",
        "kubernetes/kubernetes#81775",
        "kubernetes/kubernetes#93297",
    ])
    .lab(&["c14-port-reused"]);

pub(super) const C15: Entry = Entry::fault("IPVS entry expired while idle", &[Conntrack], Medium)
    .seen(Both)
    .now(&[Action::reads(
        "let the client reconnect; compare how long it was idle with the timeouts: `ipvsadm -l --timeout`",
    )])
    .later(&[Action::disrupts(
        "keep idle connections alive more often than every 900 s (net.ipv4.tcp_keepalive_time=600), or raise kube-proxy's \
         ipvs.tcpTimeout",
    )])
    .lab(&["c15-entry-expires"]);

pub(super) const C16: Entry = Entry::fault("conntrack table full", &[Conntrack], Critical)
    .seen(Both)
    .now(&[
        Action::reads(
            "read use and limit: `sysctl net.netfilter.nf_conntrack_count net.netfilter.nf_conntrack_max`",
        ),
        Action::reads(
            "find what fills it: `conntrack -L | grep -oE 'src=[^ ]+' | sort | uniq -c | sort -rn | head`",
        ),
        action::RAISE_MAX,
    ])
    .later(&[Action::disrupts(
        "size conntrack.maxPerCore and conntrack.min of kube-proxy's configuration for the peak, correct the client that \
         opens too many connections, and alert at 75 %",
    )])
    .lab(&["c16-conntrack-table-full", "check-conntrack-full"]);

pub(super) const C17: Entry = Entry::fault("conntrack insertion failed", &[Conntrack], Medium)
    .seen(Both)
    .now(&[
        Action::reads("compare before and after a failure: `conntrack -S`; insert_failed that rises confirms it"),
        Action::reads("see which flows are affected: `viptrace trace --faults-only`"),
        Action::disrupts(
            "for DNS use single-request-reopen in the Pod's dnsConfig, or NodeLocal DNSCache; for many clients of one endpoint \
             use more source addresses or --random-fully masquerading",
        ),
        action::RAISE_BUCKETS,
    ])
    .later(&[Action::disrupts("give conntrack enough buckets, and reuse connections")])
    .references(&["kubernetes/kubernetes#56903"])
    .no_scenario(
        "no traffic of the lab makes two TCP connections race for one source port, and its tables are small; C17a is \
         caused",
    );

/// The variant a) of C17, which a trace tells apart: two datagrams of one socket.
pub(super) const C17a: Entry = C17.seen(Trace).lab(&["c17-insertion-failed"]);

pub(super) const C18: Entry = Entry::fault("reset after an invalid packet", &[Conntrack], High)
    .seen(Both)
    .now(&[
        Action::reads("read the present setting: `sysctl net.netfilter.nf_conntrack_tcp_be_liberal`"),
        Action::disrupts(
            "let conntrack translate packets out of window instead of classifying them as invalid (the verified fix): \
             `sysctl -w net.netfilter.nf_conntrack_tcp_be_liberal=1`",
        ),
    ])
    .later(&[Action::disrupts(
        "set kube-proxy's conntrack.tcpBeLiberal, or have its rule drop INVALID packets (iptables mode does for forwarded \
         ones, kubernetes/kubernetes#117924 for those of the host's network)",
    )])
    .references(&[
        "kubernetes/kubernetes#74839",
        "kubernetes/kubernetes#117924",
        "kubernetes/kubernetes#122663",
    ])
    .lab(&["c18-out-of-window", "c18-dropped-as-invalid"]);

pub(super) const C18b: Entry = Entry::fault("legitimate traffic dropped as invalid", &[Conntrack], Medium)
    .seen(Trace)
    .now(&[
        Action::reads(
            "compare before and after: `conntrack -S` (invalid); look for a second way between the two ends: `ip route get \
             {CLIENT_IP} from {ENDPOINT_IP} iif INTERFACE`",
        ),
        Action::disrupts(
            "make the routes symmetric, or let conntrack accept packets out of window: `sysctl -w \
             net.netfilter.nf_conntrack_tcp_be_liberal=1`",
        ),
    ])
    .later(&[Action::disrupts("keep the routes symmetric, or set kube-proxy's conntrack.tcpBeLiberal")])
    .references(&["kubernetes/kubernetes#94861"])
    .no_scenario("the lab has one path between two ends; tests/it/verdict_resets.rs judges it without a kernel");

pub(super) const C19: Entry = Entry::fault("mid-stream pickup", &[Conntrack], Medium)
    .seen(Trace)
    .now(&[Action::reads(
        "find what deletes entries (`conntrack -F`, `conntrack -D`, a restarted firewall), or what idles longer than \
         net.netfilter.nf_conntrack_tcp_timeout_established; the client must reconnect",
    )])
    .later(&[Action::reads(
        "set keepalive below the conntrack and load balancer timeouts; never run `conntrack -F` on a node in service",
    )])
    .lab(&["c19-table-flushed"]);
