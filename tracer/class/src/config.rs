//! Faults in the Service's own configuration: C20 to C27.

use crate::{
    Action,
    Domain::{NoEndpoints, ServiceConfig},
    Entry,
    Seen::{Both, Check},
    Severity::{High, Low, Medium},
    action::{self, edit, service, slices},
    sync::STALE_AFTER_RESTART,
};

pub(super) const C20: Entry = Entry::fault("Service has no endpoints", &[NoEndpoints], High)
    .seen(Both)
    .now(&[
        Action::reads(concat!(
            slices!(),
            "; compare the selector with the Pods' labels and the port's name with the slices': `kubectl -n {NAMESPACE} \
             describe service {SERVICE}`"
        )),
        Action::disrupts(
            concat!("make the Pods ready, or correct the Service's selector or port name: ", edit!()),
        ),
        action::COMPARE_SELECTOR,
        action::CORRECT_SELECTOR,
        action::FIND_SCALER,
        action::DESCRIBE_POD,
        action::MAKE_READY,
        action::READ_SLICE_CONTROLLER,
        action::FIND_SLICE_WRITER,
        action::COMPARE_PORT_NAMES,
        action::CORRECT_PORT_NAMES,
        action::COMPARE_FAMILIES,
        action::SHOW_SLICES,
        action::RULES_DIFFER,
    ])
    .later(&[Action::reads("alert on Services without endpoints")])
    .references(&["kubernetes/kubernetes#97360"])
    .lab(&["c20-no-endpoints", "c20-sctp-no-endpoints"]);

/// Both Local policies.
const SHOW_ENDPOINTS: Action =
    Action::reads(concat!("see which nodes have endpoints: ", slices!(" -o yaml")));
const SPREAD: Action = Action::disrupts(
    "put the Pods behind a DaemonSet or topology spread constraints, so that each node \
     that gets traffic has an endpoint",
);

pub(super) const C21: Entry =
    Entry::fault("no local endpoint (externalTrafficPolicy Local)", &[ServiceConfig], High)
        .seen(Both)
        .now(&[
            SHOW_ENDPOINTS,
            Action::disrupts(
                "let the load balancer follow the Service's healthCheckNodePort, or send to a node \
                 with an endpoint",
            ),
            Action::disrupts(
                "or set externalTrafficPolicy: Cluster, which hides the client's address: `kubectl -n {NAMESPACE} edit \
                 service {SERVICE}`",
            ),
            action::RULES_DIFFER,
        ])
        .later(&[SPREAD])
        .references(&["kubernetes/kubernetes#121371", "kubernetes/kubernetes#97081"])
        .lab(&["c21-no-local-endpoint", "c21-reply-elsewhere"]);

pub(super) const C22: Entry =
    Entry::fault("no local endpoint (internalTrafficPolicy Local)", &[ServiceConfig], High)
        .seen(Both)
        .now(&[
            SHOW_ENDPOINTS,
            Action::disrupts("run an endpoint on this node"),
            Action::disrupts(
                "or set internalTrafficPolicy: Cluster: `kubectl -n {NAMESPACE} edit service {SERVICE}`",
            ),
            action::RULES_DIFFER,
        ])
        .later(&[SPREAD])
        .references(&["kubernetes/kubernetes#106497", "kubernetes/kubernetes#121371"])
        .lab(&["c22-no-local-endpoint-inside", "c22-no-local-endpoint"]);

pub(super) const C23: Entry = Entry::fault("source not in loadBalancerSourceRanges", &[ServiceConfig], Low)
    .seen(Both)
    .now(&[
        Action::reads(concat!("read the ranges: ", service!(" -o yaml"))),
        Action::disrupts(
            "if this source should be admitted, add it: `kubectl -n {NAMESPACE} edit service \
             {SERVICE}`",
        ),
        action::RULES_DIFFER,
    ])
    .later(&[Action::reads(
        "keep the ranges beside the load balancer's own configuration; behind a proxy the \
         source is the proxy's address",
    )])
    .lab(&["c23-source-ranges"]);

pub(super) const C24: Entry = Entry::fault("session affinity pins a dead endpoint", &[ServiceConfig], Medium)
    .seen(Both)
    .now(&[
        Action::reads(concat!("see whether the endpoint is listed, and as ready: ", slices!(" -o yaml"))),
        Action::disrupts(
            "if it is listed and dead, delete its Pod, which removes it from the slices and ends the affinity to it: \
             `kubectl -n {NAMESPACE} delete pod POD`",
        ),
        action::RULES_DIFFER,
    ])
    .later(&[Action::disrupts("give the Pods readiness probes, and shorten the affinity's timeoutSeconds")])
    .escalate(&[STALE_AFTER_RESTART])
    .lab(&["affinity", "c24-pinned-by-affinity"]);

pub(super) const C25: Entry = Entry::fault("topology hints leave endpoints out", &[ServiceConfig], Low)
    .seen(Check)
    .now(&[
        Action::reads(concat!("see the hints, zones and nodes of the endpoints: ", slices!(" -o yaml"))),
        Action::disrupts("scale each zone for its own clients, or remove the request for hints"),
    ])
    .no_scenario(
        "the lab's nodes are in no zones; tests/it/verdict_history.rs judges an endpoint that hints chose",
    );

pub(super) const C26: Entry = Entry::fault("node port unreachable", &[ServiceConfig], Low)
    .seen(Both)
    .now(&[
        Action::reads(
            "read nodePortAddresses and localhostNodePorts: `kubectl -n kube-system get configmap \
             kube-proxy -o yaml`",
        ),
        action::USE_OTHER_ADDRESS,
        action::CORRECT_NODE_PORT_ADDRESSES,
        action::SET_ROUTE_LOCALNET,
        action::READ_LOAD_BALANCER_EVENTS,
    ])
    .later(&[Action::reads(
        "give clients addresses that nodePortAddresses admit; 127.0.0.1 is served in iptables mode only",
    )])
    .references(&["kubernetes/kubernetes#90259"])
    .no_scenario(
        "the rules that the lab writes serve node ports at every address; tests/it/verdict_kinds.rs and \
         tests/it/check_faults.rs judge the settings",
    );

pub(super) const C27: Entry = Entry::fault("Service without a virtual IP", &[ServiceConfig], Low)
    .seen(Both)
    .now(&[
        Action::reads(concat!("see what it is: ", service!(" -o wide"))),
        action::FIND_OLD_ADDRESS,
        action::SHOW_SERVICE,
    ])
    .later(&[Action::reads(
        "resolve the name again for each connection: a failure is one of DNS or of the direct path to the Pods",
    )])
    .no_scenario(
        "the Service has to change under a running client; the lab's every-kind scenario asks for a headless one, and \
         tests/it/verdict_history.rs lets one become headless",
    );
