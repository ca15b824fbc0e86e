//! Actions of special cases, and those that several classes share. This is the only place with their texts and ratings,
//! so that a trace and a check cannot rate one command differently.

use crate::Action;

/// kube-proxy's Pod on this node, by the labels of kubeadm.
macro_rules! log {
    ($options:literal) => {
        concat!(
            "`kubectl -n kube-system logs $(kubectl -n kube-system get pods -l k8s-app=kube-proxy -o name \
             --field-selector spec.nodeName={NODE})",
            $options,
            "`"
        )
    };
}
macro_rules! restart {
    () => {
        "`kubectl -n kube-system delete pod -l k8s-app=kube-proxy --field-selector spec.nodeName={NODE}`"
    };
}
macro_rules! slices {
    ($($options:literal)?) => {
        concat!(
            "`kubectl -n {NAMESPACE} get endpointslices -l kubernetes.io/service-name={SERVICE}",
            $($options,)?
            "`"
        )
    };
}
macro_rules! service {
    ($options:literal) => {
        concat!("`kubectl -n {NAMESPACE} get service {SERVICE}", $options, "`")
    };
}
macro_rules! edit {
    () => {
        "`kubectl -n {NAMESPACE} edit service {SERVICE}`"
    };
}
pub(crate) use {edit, log, restart, service, slices};

// kube-proxy.
pub const READ_LOG: Action = Action::reads(concat!("read kube-proxy's log: ", log!(" --tail=200")));
pub const RESTART: Action =
    Action::disrupts(concat!("if it shows no progress, save the log and restart kube-proxy: ", restart!()));
pub const WAIT: Action = Action::reads("wait: it should end within seconds; if it does not, check again")
    .when("the change is younger than the grace");
pub const RULES_DIFFER: Action = Action::reads(concat!(
    "check again; if the difference stays, read kube-proxy's log: ",
    log!(" --tail=200")
))
.when("the node's rules differ from the API");
pub const ALERT_ON_SYNC: Action =
    Action::reads("alert on the age of kube-proxy's last sync and on failed syncs");
pub const ONE_OWNER: Action = Action::disrupts("let one program own the node's rules");
pub const MOVE_TO_NFTABLES: Action =
    Action::endangers("plan the move to nftables mode (kernel 5.13 or later), node by node");

// C1.
pub const DESCRIBE_DAEMON_SET: Action = Action::reads(
    "see which taint or selector excludes the node: `kubectl -n kube-system describe daemonset kube-proxy`; `kubectl describe \
     node {NODE}`",
)
.when("kube-proxy has no Pod on the node, and has one on others");
pub const DESCRIBE_PROXY_POD: Action = Action::reads(
    "read why it exited: `kubectl -n {POD_NAMESPACE=kube-system} logs {POD} --previous`; `kubectl -n \
     {POD_NAMESPACE=kube-system} describe pod {POD}`",
)
.when("kube-proxy's Pod fails, or was restarted");
pub const LIST_PROXY_PODS: Action =
    Action::reads("`kubectl -n kube-system get pods -o wide -l k8s-app=kube-proxy`")
        .when("kube-proxy fails on other nodes");
pub const ROLLOUT_STATUS: Action =
    Action::reads("`kubectl -n kube-system rollout status daemonset {DAEMON_SET=kube-proxy}`")
        .when("the DaemonSet has fewer ready Pods than desired");
pub const READ_LAST_WORDS: Action = Action::reads(concat!(
    "correct what the last lines of its log name, and it starts again: ",
    log!(" --previous")
))
.when("kube-proxy exits at its start");

// C2.
pub const CHECK_CREDENTIALS: Action = Action::disrupts(concat!(
    "renew kube-proxy's credentials: its ServiceAccount kube-system/kube-proxy and the token that it mounts, or the \
     kubeconfig that it was given; then ",
    restart!()
))
.when("the API server rejects kube-proxy's credentials");
pub const CHECK_ROLE: Action = Action::disrupts(
    "`kubectl auth can-i list endpointslices.discovery.k8s.io -A --as=system:serviceaccount:kube-system:kube-proxy`; \
     restore the ClusterRole system:node-proxier",
)
.when("kube-proxy may not list the objects");
pub const COMPARE_VERSIONS: Action = Action::disrupts(
    "`kubectl version`; `kubectl -n kube-system get daemonset kube-proxy -o wide`; then align the versions of kube-proxy \
     and the API server",
)
.when("the API server does not have the resource");
pub const COMPARE_CA: Action = Action::reads(
    "compare the CA in kube-proxy's kubeconfig with the API server's: `kubectl -n kube-system get configmap kube-proxy -o \
     yaml`; check the node's clock",
)
.when("the API server's certificate is not accepted");

// C4.
pub const FIND_LOCK_HOLDER: Action = Action::reads(
    "find what holds the lock: `lsof /run/xtables.lock`; firewall agents that rewrite rules \
     in a loop are the usual cause",
)
.when("another program holds the xtables lock");
pub const LOAD_WHAT_IT_NAMES: Action = Action::disrupts(
    "compare `iptables -V` on the host with the version in kube-proxy's image, and load the module that the log names: `modprobe -a \
     nf_tables ip_tables xt_comment`",
)
.when("the kernel or the tools do not support the rules");

// C5.
pub const SPEED_UP: Action =
    Action::disrupts("give kube-proxy CPU, and raise minSyncPeriod where changes come in bursts")
        .when("rules are written late");
pub const GIVE_CPU: Action = Action::disrupts("give kube-proxy CPU")
    .when("rules are written late, and minSyncPeriod is longer than 1 s");

// C5c, C27.
pub const FIND_OLD_ADDRESS: Action =
    Action::reads("find the source of the client's address: a cached name, or its configuration")
        .when("the address belonged to the Service before");
pub const REMOVE_HEADLESS_LABEL: Action = Action::disrupts(
    "let kube-proxy serve it: `kubectl -n {NAMESPACE} label service {SERVICE} service.kubernetes.io/headless-`",
)
.when("it has a ClusterIP and the label service.kubernetes.io/headless");
pub const PROBE_ENDPOINT: Action =
    Action::reads(concat!("find the way to one of its endpoints instead, which have hosts: ", slices!()))
        .when("traceroute or tracepath asks");
pub const SHOW_SERVICE: Action = Action::reads(service!(" -o yaml")).when("kube-proxy does not serve it");
// C8.
pub const LIST_OLD_ENTRIES: Action =
    Action::reads("list entries to endpoints that are gone: `conntrack -L -p udp --orig-dst {VIP}`")
        .when("kube-proxy could not clean up");
// C10.
pub const RESTART_CLEANS: Action = Action::disrupts(concat!(
    "restart kube-proxy, which removes the other mode's rules at its start: ",
    restart!()
))
.when("one of the two modes is nftables");
pub const RESTART_FOR_MODE: Action = Action::disrupts(
    "in a maintenance window: `kubectl -n kube-system rollout restart daemonset kube-proxy`",
)
.when("the configured mode differs from the mode in which kube-proxy runs");
pub const CORRECT_MODE: Action =
    Action::disrupts("set mode to nftables or iptables: `kubectl -n kube-system edit configmap kube-proxy`")
        .when("the configured mode does not exist on Linux");
// C11.
pub const LOAD_MODULE: Action =
    Action::disrupts("`modprobe {MODULE}`").when("a module is missing and kube-proxy runs");
pub const RESTORE_DEVICE: Action = Action::disrupts(concat!(
    "restart kube-proxy, which creates kube-ipvs0 and adds every address: ",
    restart!()
))
.when("kube-ipvs0, or an address on it, is missing");
// C12.
pub const LOOK_FOR_MEMORY: Action = Action::reads(
    "check for memory pressure and IPVS's overload defence: `dmesg | grep -i ip_vs`; `slabtop -o | grep ip_vs`; `sysctl \
     net.ipv4.vs.drop_packet`",
)
.when("IPVS dropped the packet without an ICMP error");
// C13.
pub const RECONNECT_FROM_ANOTHER_PORT: Action =
    Action::reads("let the client reconnect from another port").when("IPVS drops its packets silently");
pub const SET_EXPIRE_NODEST: Action =
    Action::disrupts("set what kube-proxy sets at its start: `sysctl -w net.ipv4.vs.expire_nodest_conn=1`")
        .when("expire_nodest_conn is 0");
// C16, C17.
pub const RAISE_MAX: Action =
    Action::disrupts("raise the limit: `sysctl -w net.netfilter.nf_conntrack_max={MAX}`");
pub const RAISE_BUCKETS: Action =
    Action::disrupts("raise the buckets: `sysctl -w net.netfilter.nf_conntrack_buckets={BUCKETS}`")
        .when("the hash chains are too long");

// C20, by why there is no endpoint.
pub const COMPARE_SELECTOR: Action = Action::reads(
    "compare the selector with the Pods' labels: `kubectl -n {NAMESPACE} get pods --show-labels`",
)
.when("the selector matches no Pod");
pub const CORRECT_SELECTOR: Action = Action::disrupts(concat!(
    "correct the selector, or the labels in the workload's Pod template: ",
    edit!()
))
.when("the selector matches no Pod");
pub const MAKE_READY: Action =
    Action::disrupts("repair what keeps the Pod from being ready: it is an endpoint as soon as it is")
        .when("no Pod is ready");
pub const CORRECT_PORT_NAMES: Action =
    Action::disrupts(concat!("correct the port's name or its targetPort: ", edit!()))
        .when("the slices lack the port's name");
pub const FIND_SCALER: Action = Action::reads(
    "if it should run, find what scaled it: `kubectl -n {NAMESPACE} get deployments,statefulsets,hpa`",
)
.when("the workload is scaled to zero");
pub const DESCRIBE_POD: Action =
    Action::reads("see why the Pod is not ready: `kubectl -n {NAMESPACE} describe pod {POD}`")
        .when("no Pod is ready");
pub const READ_SLICE_CONTROLLER: Action = Action::reads(concat!(
    slices!(),
    "; then the EndpointSlice controller: `kubectl -n kube-system logs -l \
     component=kube-controller-manager --tail=200`"
))
.when("ready Pods match and no slice lists them");
pub const FIND_SLICE_WRITER: Action = Action::reads(concat!(
    slices!(" -o yaml"),
    ": a program or a person writes these slices (for default/kubernetes the API servers). If they were there before, find \
     why it stopped; else give the Service a selector"
))
.when("the Service has no selector");
pub const COMPARE_PORT_NAMES: Action =
    Action::reads(concat!("compare the port names: ", service!(" -o yaml"), "; ", slices!(" -o yaml")))
        .when("the slices lack the port's name");
pub const COMPARE_FAMILIES: Action = Action::reads(concat!(
    "compare ipFamilies with the Pods' addresses: ",
    service!(" -o yaml"),
    "; ",
    slices!()
))
.when("the slices lack the address family");

pub const FOLLOW_SUCCESSOR: Action = Action::reads(
    "see why the Pod ends, and what keeps its successor from being ready: `kubectl -n {NAMESPACE} describe pod {POD}`; \
     `kubectl -n {NAMESPACE} get pods -o wide`",
)
.when("every endpoint terminates");
pub const KEEP_SECOND_REPLICA: Action = Action::disrupts(
    "run a second replica, with a PodDisruptionBudget that keeps one ready and, in a Deployment, with maxUnavailable 0; let a \
     preStop hook keep the application listening until another endpoint is ready",
)
.when("every endpoint terminates");

pub const SHOW_SLICES: Action = Action::reads(slices!(" -o yaml")).when("there is no other evidence");

// C26.
pub const USE_OTHER_ADDRESS: Action =
    Action::reads("connect to {OTHER_ADDRESS} instead").when("nodePortAddresses exclude the address");
pub const CORRECT_NODE_PORT_ADDRESSES: Action = Action::disrupts(concat!(
    "correct nodePortAddresses in kube-proxy's configuration, `kubectl -n kube-system edit configmap kube-proxy`, and \
     restart it: ",
    restart!()
))
.when("nodePortAddresses exclude every address of the node");
pub const SET_ROUTE_LOCALNET: Action = Action::disrupts(concat!(
    "use the node's address instead of 127.0.0.1, or restart kube-proxy, which sets route_localnet: ",
    restart!()
))
.when("route_localnet is 0");
pub const READ_LOAD_BALANCER_EVENTS: Action = Action::reads(
    "read the load balancer controller's events: `kubectl -n {NAMESPACE} describe service {SERVICE}`",
)
.when("the load balancer has no address that the node serves");

// C28, C29, C30.
pub const ASK_OUTSIDE: Action = Action::reads(concat!(
    "compare its address and port with those of the server that it stands for: ",
    slices!(" -o yaml"),
    "; connect to it from the same client: `{CONNECT=nc -zvw 3 ENDPOINT_IP PORT}`; if that fails too, look at that host and \
     at the path to it"
))
.when("the endpoint is no Pod");
pub const DESCRIBE_ENDPOINT_NODE: Action =
    Action::reads("`kubectl describe node {ENDPOINT_NODE}`").when("the endpoint's node is not Ready");
pub const TRACE_CLIENT: Action = Action::reads(
    "trace on the client's node too, to see whether the endpoint's packets arrive there: \
     `kubectl viptrace trace {NAMESPACE}/{SERVICE}`",
)
.when("the client fell silent");
pub const WATCH_PATH: Action = Action::reads("watch the CNI's tunnel and the nodes at its ends");
pub const READ_OTHER_FIREWALL: Action = Action::reads(
    "read the firewall rules and policies of the host that refuses; `kubectl -n {NAMESPACE} get networkpolicies`",
)
.when("another host refuses");
// C31.
pub const SHOW_HAIRPIN_MODE: Action = Action::reads("`bridge -d link show | grep hairpin`")
    .when("the bridge does not send packets back to their port");
pub const SHOW_MASQUERADE: Action = Action::reads(
    "`iptables-save -t nat | grep KUBE-MARK-MASQ`, or `nft list table ip kube-proxy | grep -A3 endpoint-`",
)
.when("the Pod's connection to itself is not masqueraded");
pub const SHOW_BYPASS: Action = Action::reads(
    "`sysctl net.bridge.bridge-nf-call-iptables`, which must be 1 where Pods share a bridge; `ip route get {CLIENT_IP} from \
     {ENDPOINT_IP}` shows the way back",
)
.when("the answer bypasses NAT");
pub const SET_HAIRPIN_MODE: Action =
    Action::disrupts("for each port: `bridge link set dev {PORT} hairpin on`")
        .when("ports have no hairpin mode");
pub const FILTER_BRIDGED: Action = Action::disrupts("`modprobe br_netfilter`; `sysctl -w {SETTING}=1`")
    .when("bridged packets bypass the rules");
// C32.
pub const FORWARD: Action = Action::disrupts("`sysctl -w {SETTING}=1`").when("forwarding is off");
pub const WATCH_REVERSE_PATH: Action =
    Action::reads("watch for drops with the reason IP_RPFILTER: `viptrace trace --faults-only`")
        .when("the filter is strict and nothing is dropped yet");

// K11.
pub const SET_TO_1: Action =
    Action::disrupts("`sysctl -w {SETTING}=1`").when("a setting that the mode needs is 0");

// N1, N9, unknown.
pub const DESCRIBE_PROBED_POD: Action = Action::reads(
    "the kubelet acts on the failed probe: `kubectl -n {POD_NAMESPACE=NAMESPACE} describe pod {POD}`",
)
.when("the probe failed");
pub const DRAIN_GRACEFULLY: Action = Action::disrupts(
    "let the Pod end its connections in its preStop hook or on SIGTERM, and the client reconnect",
)
.when("the connection broke");
pub const READ_OTHER_DATAPLANE: Action =
    Action::reads(concat!("read the Service table of {DATAPLANE}; ", slices!()))
        .when("another dataplane may serve Services");
