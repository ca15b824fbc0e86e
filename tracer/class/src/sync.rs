//! kube-proxy and the rules that it writes: C1 to C10.

use crate::{
    Action,
    Domain::{
        ApiConnectivity, IptablesSync, NoEndpoints, PodCrash, ServiceConfig, StaleEndpoints, VersionSkew,
    },
    Entry,
    Seen::{Both, Check, Trace},
    Severity::{Critical, High, Low, Medium},
    action::{self, log, restart, service, slices},
};

/// Failure catalogue, section 11.
pub(crate) const RESTART_DOES_NOT_HELP: &str = "a restart of kube-proxy does not bring the rules back";
pub(crate) const ALL_NODES: &str = "all nodes lack rules";
pub(crate) const STALE_AFTER_RESTART: &str = "the rules are still stale after a restart of kube-proxy";

pub(super) const C1: Entry = Entry::fault("kube-proxy absent or crashing", &[PodCrash], Critical)
    .seen(Both)
    .now(&[
        Action::reads(
            "see why kube-proxy does not run: `kubectl -n kube-system get pods -l k8s-app=kube-proxy -o wide \
             --field-selector spec.nodeName={NODE}`",
        ),
        Action::reads(concat!("read why the last process exited: ", log!(" --previous"))),
        FIND_FLUSHER,
        Action::disrupts(concat!(
            "fix the error that the log names (configuration, RBAC, memory, kernel modules), then \
             restart kube-proxy: ",
            restart!()
        )),
        action::READ_LAST_WORDS,
        action::DESCRIBE_DAEMON_SET,
        action::DESCRIBE_PROXY_POD,
        action::LIST_PROXY_PODS,
        action::ROLLOUT_STATUS,
    ])
    .later(&[
        Action::disrupts(
            "let the DaemonSet tolerate every taint, with enough memory for the number of \
             Services",
        ),
        Action::reads("alert on its unready Pods and on absent kube-proxy metrics"),
    ])
    .escalate(&[RESTART_DOES_NOT_HELP, ALL_NODES])
    .lab(&["c1-rules-flushed", "c1-nothing-tracked", "check-kube-proxy-gone"]);

pub(super) const C2: Entry = Entry::fault("kube-proxy cannot read the API", &[ApiConnectivity], High)
    .seen(Check)
    .now(&[
        action::READ_LOG,
        Action::reads(
            "from this node, try the API server's address in kube-proxy's kubeconfig: `curl -k \
             https://ADDRESS/livez`",
        ),
        Action::disrupts(concat!(
            "if it answers, restart kube-proxy, so that it lists everything again: ",
            restart!()
        )),
        action::CHECK_CREDENTIALS,
        action::CHECK_ROLE,
        action::COMPARE_VERSIONS,
        action::COMPARE_CA,
    ])
    .later(&[Action::reads(
        "alert on the age of kube-proxy's last sync and on errors in \
         rest_client_requests_total; /healthz stays 200",
    )])
    .escalate(&[ALL_NODES, STALE_AFTER_RESTART])
    .no_scenario(
        "the lab writes the rules itself and has no kube-proxy that reads an API; captures of a real one are in \
         tests/fixtures/incidents",
    );

pub(super) const C3: Entry = Entry::fault("rules in both iptables backends", &[IptablesSync], Critical)
    .seen(Both)
    .now(&[
        Action::reads(
            "find which backend kube-proxy writes, twice within a minute: `iptables-nft-save -c -t nat | grep {VIP}`, and \
             `iptables-legacy-save -c -t nat | grep {VIP}`",
        ),
        CLEAN_UP,
    ])
    .later(&[Action::endangers("use one iptables backend on the host and in every image that writes rules")])
    .escalate(&[RESTART_DOES_NOT_HELP])
    .references(&["kubernetes/kubernetes#109811", "kubernetes/kubernetes#112477"])
    .lab(&["leftover-rules", "check-leftovers"]);

pub(super) const C4: Entry = Entry::fault("rule sync failing", &[IptablesSync], High)
    .seen(Both)
    .now(&[
        Action::reads(concat!(
            "read the lines that were rejected: ",
            log!(" --tail=-1 | grep -A20 -e 'Failed to execute' -e 'sync failed' -e 'Failed to watch'")
        )),
        Action::reads("find what else writes rules: `journalctl -S -10min | grep -iE 'iptables|nft'`"),
        action::RESTART,
        action::FIND_LOCK_HOLDER,
        action::LOAD_WHAT_IT_NAMES,
    ])
    .later(&[
        action::ONE_OWNER,
        Action::reads(
            "alert on kubeproxy_sync_proxy_rules_iptables_restore_failures_total and on last_queued being later than \
             last_timestamp",
        ),
    ])
    .escalate(&[RESTART_DOES_NOT_HELP, ALL_NODES])
    .references(&["kubernetes/kubernetes#121362", "kubernetes/kubernetes#112477"])
    .no_scenario(
        "the lab writes the rules itself and has no sync that fails; tests/it/check_faults.rs changes a captured \
         kube-proxy's metrics and log",
    );

pub(super) const C5: Entry = Entry::fault("rule missing or late", &[IptablesSync, NoEndpoints], High)
    .seen(Both)
    .now(&[
        action::READ_LOG,
        action::RESTART,
        action::WAIT,
        action::SPEED_UP,
        action::GIVE_CPU,
        action::FOLLOW_SUCCESSOR,
    ])
    .later(&[
        Action::reads("alert on kubeproxy_network_programming_duration_seconds; let clients retry"),
        action::MOVE_TO_NFTABLES,
        action::KEEP_SECOND_REPLICA,
    ])
    .escalate(&[RESTART_DOES_NOT_HELP, ALL_NODES])
    .lab(&["c5-one-service-without-rules"]);

pub(super) const C5b: Entry = Entry::fault("connection older than its rule", &[IptablesSync], Low)
    .seen(Trace)
    .now(&[
        Action::reads("let the client reconnect"),
        Action::disrupts(
            "for a sender that never pauses, delete this one entry: `conntrack -D -p {PROTOCOL} -s {CLIENT_IP} --sport \
             {CLIENT_PORT} -d {VIP} --dport {PORT}`",
        ),
    ])
    .later(&[Action::reads("start clients after kube-proxy has synced (readiness of the node's network)")])
    .references(&["kubernetes/kubernetes#48719"])
    .no_scenario(
        "the rule has to appear between a SYN and the reading of the rules; tests/it/verdict_confounders.rs does so \
         without a kernel",
    );

// The Service if a client used the port; the rules if they do not refuse it.
pub(super) const C5c: Entry = Entry::fault("port not in the Service", &[ServiceConfig, IptablesSync], Medium)
    .seen(Both)
    .now(&[
        Action::reads(concat!("compare number and protocol of the client's port: ", service!(" -o wide"))),
        action::FIND_OLD_ADDRESS,
        action::PROBE_ENDPOINT,
        action::RULES_DIFFER,
    ])
    .later(&[Action::reads("take ports from the Service's names, and resolve its name for each connection")])
    .lab(&["c5c-wrong-port"]);

pub(super) const C5d: Entry = Entry::fault("Service left to another proxy", &[ServiceConfig], Medium)
    .seen(Both)
    .now(&[
        Action::reads(concat!("see which proxy it is left to: ", service!(" --show-labels"))),
        Action::reads(
            "see whether that runs here: `kubectl get pods -A -o wide --field-selector spec.nodeName={NODE}`",
        ),
        Action::disrupts(
            "give the Service back to kube-proxy: `kubectl -n {NAMESPACE} label service {SERVICE} \
             service.kubernetes.io/service-proxy-name-`",
        ),
        action::REMOVE_HEADLESS_LABEL,
        action::SHOW_SERVICE,
    ])
    .later(&[Action::reads("label only Services whose proxy runs on every node")])
    .no_scenario(
        "the lab has no second proxy; tests/it/verdict_classes.rs judges the label without a kernel",
    );

/// Shared with C1: without kube-proxy's times the two look alike.
const FIND_FLUSHER: Action = Action::reads(
    "find what removes the rules (firewalld, `iptables -F`, `nft flush ruleset`): `journalctl -S -15min | grep -iE \
     'firewalld|iptables|nft'`; `nft monitor ruleset`",
);

pub(super) const C5e: Entry =
    Entry::fault("rules removed or changed by another program", &[IptablesSync], Critical)
        .seen(Both)
        .now(&[
            FIND_FLUSHER,
            Action::disrupts(concat!(
                "if the rules do not return within 30 s, restart kube-proxy, which writes all of them: ",
                restart!()
            )),
            action::WAIT,
        ])
        .later(&[action::ONE_OWNER])
        .escalate(&[RESTART_DOES_NOT_HELP, ALL_NODES])
        .lab(&["check-rules-flushed", "c5e-rules-removed"]);

pub(super) const C6: Entry = Entry::fault("stale endpoint in the rules", &[StaleEndpoints], High)
    .seen(Both)
    .now(&[
        Action::reads(concat!("see what the API lists: ", slices!())),
        Action::reads(
            "see which rules name the endpoint: `{RULES_OF_ENDPOINT=iptables-save -t nat | grep ENDPOINT}`",
        ),
        action::READ_LOG,
        action::RESTART,
        action::WAIT,
    ])
    .later(&[Action::reads(
        "alert on kube-proxy's watch and sync failures: its /healthz stays 200 while it cannot reach the API",
    )])
    .escalate(&[STALE_AFTER_RESTART])
    .references(&["kubernetes/kubernetes#28674", "kubernetes/kubernetes#67875"])
    .lab(&["c6-stale-endpoint-answers", "c6-stale-endpoint-gone", "check-stale-endpoint"]);

pub(super) const C7: Entry = Entry::fault("established connection to a removed endpoint", &[StaleEndpoints], Low)
    .seen(Trace)
    .now(&[Action::reads(
        "let the client reconnect; kube-proxy never removes entries of established TCP connections",
    )])
    .later(&[Action::reads("set timeouts or keepalive in the client, so that it notices a dead peer")])
    .references(&["kubernetes/kubernetes#100698", "kubernetes/kubernetes#101607"])
    .no_scenario(
        "a connection has to outlive its endpoint by the termination grace of 30 s; the lab's n9-old-flow scenarios end \
         within it, and tests/it/verdict_classes.rs goes beyond it",
    );

pub(super) const C8: Entry = Entry::fault("stale UDP conntrack entry", &[StaleEndpoints], High)
    .seen(Both)
    .now(&[
        Action::disrupts(
            "delete the entry, so that the current rules translate the next datagram: `conntrack -D -p udp --orig-src \
             {CLIENT_IP} --orig-dst {VIP} --reply-src {ENDPOINT_IP}`",
        ),
        action::LIST_OLD_ENTRIES,
    ])
    .later(&[Action::disrupts(
        "upgrade kube-proxy: from 1.32 it reconciles UDP entries, and later releases also those of Services without \
         endpoints (kubernetes/kubernetes#139629) and of deleted ones (kubernetes/kubernetes#141371)",
    )])
    .references(&["kubernetes/kubernetes#112604", "kubernetes/kubernetes#127318"])
    .lab(&["c8-stale-udp-entry", "c8-stale-udp-entry-answered"]);

pub(super) const C9: Entry = Entry::fault("version skew", &[VersionSkew], Medium)
    .seen(Check)
    .now(&[
        Action::reads("`kubectl version`; `kubectl -n kube-system get daemonset kube-proxy -o wide`"),
        Action::disrupts("align the versions: upgrade the older side, one minor version at a time"),
        action::READ_LAST_WORDS,
    ])
    .later(&[Action::disrupts(
        "upgrade kube-proxy with the control plane; try a configuration on one node first",
    )])
    .no_scenario(
        "the lab has no second release of kube-proxy; tests/it/check_faults.rs changes a capture's versions",
    );

/// Shared with C3: both are rules that kube-proxy no longer writes.
const CLEAN_UP: Action = Action::endangers(
    "in a maintenance window drain the node and reboot it, or stop kube-proxy, run \
     `kube-proxy --cleanup` and start it again",
);

pub(super) const C10: Entry = Entry::fault("leftovers of another proxy mode", &[IptablesSync], Critical)
    .seen(Both)
    .now(&[
        Action::reads(
            "see the mode and which rules exist: `curl -s http://127.0.0.1:10249/proxyMode`; `iptables-save -t nat | grep -c \
             KUBE-SVC`; `nft list tables`; `ipvsadm -Ln`",
        ),
        action::RESTART_CLEANS,
        CLEAN_UP,
        action::RESTART_FOR_MODE,
        action::CORRECT_MODE,
    ])
    .later(&[Action::endangers("reboot a node when its kube-proxy changes its mode")])
    .escalate(&[RESTART_DOES_NOT_HELP])
    .references(&["kubernetes/kubernetes#102314"])
    .lab(&["leftover-rules", "check-leftovers"]);
