//! Faults after NAT's choice, where the rules worked: C28 to C35.

use crate::{
    Action,
    Domain::{
        BackendRefused, Conntrack, Hairpin, HostKernel, Mtu, NetworkPath, NetworkPolicy, ServiceConfig,
    },
    Entry,
    Seen::{Both, Trace},
    Severity::{High, Low, Medium},
    action::{self, edit, service, slices},
};

pub(super) const C28: Entry = Entry::fault("endpoint refuses connections", &[BackendRefused], Medium)
    .seen(Trace)
    .now(&[
        Action::reads(concat!(
            "compare the targetPort with what the Pod listens on: ",
            service!(" -o yaml"),
            "; ",
            slices!(),
            "; then read the Pod's log"
        )),
        Action::disrupts(concat!(
            "correct the targetPort, or the address and port on which the application listens: ",
            edit!()
        )),
        action::ASK_OUTSIDE,
    ])
    .later(&[Action::disrupts("give the Pod a readiness probe on this port")])
    .lab(&["c28-refused-same-node", "c28-refused-other-node", "c28-udp-refused", "c28-sctp-refused"]);

pub(super) const C29: Entry = Entry::fault("endpoint silent or unreachable", &[NetworkPath], Medium)
    .seen(Both)
    .now(&[
        action::DESCRIBE_ENDPOINT_NODE,
        Action::reads(
            "connect to the Pod directly from the same client: `{CONNECT=nc -zvw 3 ENDPOINT_IP PORT}`; if that fails too, look \
             at the Pod and at the path to it, not at kube-proxy",
        ),
        Action::reads(
            "see which Pod it is: `kubectl get pods -A -o wide --field-selector status.podIP={ENDPOINT_IP}`",
        ),
        action::TRACE_CLIENT,
        action::ASK_OUTSIDE,
    ])
    .later(&[
        Action::disrupts("give the Pod a readiness probe, so that a silent one leaves the endpoints"),
        action::WATCH_PATH,
    ])
    .lab(&["c29-silent-same-node", "c29-silent-other-node", "c29-host-unreachable", "c29-udp-unanswered"]);

pub(super) const C30: Entry = Entry::fault(
    "stopped by a network policy or firewall",
    &[NetworkPolicy],
    Medium,
)
.seen(Trace)
.now(&[
    Action::reads(
        "list the policies that select the endpoint's Pod: `kubectl -n {NAMESPACE} get networkpolicies`",
    ),
    Action::disrupts(
        "if this client should be admitted, correct the policy or the firewall's rule that stops it",
    ),
    action::READ_OTHER_FIREWALL,
])
.later(&[Action::reads(
    "escalate to the owner of the CNI or of the host's firewall: the rule is not kube-proxy's",
)])
.lab(&["c30-dropped-by-firewall", "c30-datagrams-dropped"]);

pub(super) const C31: Entry = Entry::fault("hairpin, or reply that bypasses NAT", &[Hairpin], Medium)
    .seen(Both)
    .now(&[
        Action::reads("judge bridges, masquerading and settings at once: `viptrace check`"),
        action::SHOW_HAIRPIN_MODE,
        action::SHOW_MASQUERADE,
        action::SHOW_BYPASS,
        action::SET_HAIRPIN_MODE,
        action::FILTER_BRIDGED,
        action::RULES_DIFFER,
    ])
    .later(&[Action::disrupts(
        "load br_netfilter at boot and keep its sysctls set; set hairpin mode in the CNI's configuration (hairpinMode: \
         true of the bridge plugin)",
    )])
    .lab(&["c31-to-itself", "c31-past-nat", "check-settings"]);

pub(super) const C32: Entry = Entry::fault("reverse path filter, or forwarding off", &[HostKernel], High)
    .seen(Both)
    .now(&[
        Action::reads("confirm it: `nstat -az TcpExtIPReversePathFilter`, twice around a failing attempt"),
        Action::disrupts(
            "correct the routes so that answers leave where requests come in, or filter loosely: `sysctl -w \
             net.ipv4.conf.all.rp_filter=2`",
        ),
        action::FORWARD,
        action::WATCH_REVERSE_PATH,
    ])
    .later(&[Action::disrupts(
        "set it in /etc/sysctl.d and find what resets it; rp_filter=2 on nodes with several interfaces",
    )])
    .lab(&["check-settings"]);

pub(super) const C33: Entry = Entry::fault("packets larger than the path MTU", &[Mtu], Medium)
    .seen(Both)
    .now(&[
        Action::reads(
            "find the path MTU from the client's Pod: `kubectl -n {NAMESPACE} exec POD -- ping -c \
             3 -M do -s 1422 {ENDPOINT_IP}`",
        ),
        Action::disrupts(
            "set the CNI's MTU to what the path carries and recreate the Pods, or let ICMP fragmentation needed and \
             packet too big pass",
        ),
    ])
    .later(&[Action::disrupts("set the CNI's MTU explicitly, and keep it equal on all nodes")])
    .references(&["kubernetes/kubernetes#88986"])
    .no_scenario(
        "the links of the lab have one MTU; tests/it/verdict_missing.rs builds the ICMP error and the drop, \
         tests/it/check_settings.rs several MTUs",
    );

pub(super) const C34: Entry = Entry::fault("masquerade interface changed", &[Conntrack], Low)
    .seen(Trace)
    .now(&[Action::reads("compare the resets with route changes: `journalctl -k --since '1 hour ago'`")])
    .later(&[Action::disrupts("pin the route, or keep the tunnel's interface up across failovers")])
    .no_scenario(
        "the lab's routes do not change while a connection lives; tests/it/verdict_missing.rs builds the end of the entry",
    );

pub(super) const C35: Entry = Entry::fault("name resolution fails", &[ServiceConfig], Medium)
    .no_rule(
        "viptrace does not read DNS messages: a trace names it beside the cause of a failed connection to the DNS Service",
    )
    .now(&[
        Action::reads("judge the path to the DNS Service: `viptrace trace kube-system/kube-dns --all`"),
        Action::reads(
            "read the resolvers' log: `kubectl -n kube-system logs -l k8s-app=kube-dns --tail=100`",
        ),
    ])
    .later(&[Action::disrupts("scale CoreDNS with the cluster, and use NodeLocal DNSCache")])
    .no_scenario("no record has it as its class; tests/it/verdict_notes.rs expects it beside the cause");
