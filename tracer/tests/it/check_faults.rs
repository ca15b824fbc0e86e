//! The check finds each fault cut into the capture of a healthy node, and nothing else.
use crate::{
    check_captures::ON_WORKER_1,
    check_support::{Gathered, faults, name, named, only, says},
};
use serde_json::{Value, json};
use viptrace::{
    class::{Class, Confidence},
    diagnosis::triage::{CheckReport, Level, compare, procedures::Outcome},
};

/// Settings of a healthy node.
const SYSCTLS: &str = "net.ipv4.ip_forward = 1\nnet.bridge.bridge-nf-call-iptables = 1\n\
    net.netfilter.nf_conntrack_max = 131072\nnet.netfilter.nf_conntrack_count = 100\n\
    net.netfilter.nf_conntrack_buckets = 32768\nnet.ipv4.conf.all.route_localnet = 1\n\
    net.ipv4.conf.all.rp_filter = 0\nnet.ipv4.conf.eth0.rp_filter = 0\nnet.ipv4.conf.eth1.rp_filter = 0\n";

const COUNTERS: &str = "entries clashres found new invalid ignore delete chainlength insert insert_failed drop early_drop icmp_error\n\
    00000064 0 0 0 0 0 0 0 0 00000000 00000000 0 0\n00000064 0 0 0 0 0 0 0 0 00000000 00000000 0 0\n";

fn interfaces() -> String {
    json!([
        {"ifname": "eth0", "flags": ["UP"], "addr_info": [{"family": "inet", "local": "192.0.2.11", "prefixlen": 24}]},
        {"ifname": "eth1", "flags": ["UP"], "addr_info": [{"family": "inet", "local": "198.51.100.11", "prefixlen": 24}]},
        {"ifname": "cni0", "flags": ["UP"], "linkinfo": {"info_kind": "bridge"},
         "addr_info": [{"family": "inet", "local": "10.244.1.1", "prefixlen": 24}]},
        {"ifname": "veth1", "flags": ["UP"], "master": "cni0", "addr_info": [],
         "linkinfo": {"info_kind": "veth", "info_slave_kind": "bridge", "info_slave_data": {"hairpin": true}}},
    ])
    .to_string()
}

/// worker-1 in iptables mode with everything that a live check reads.
pub(crate) fn node() -> Gathered {
    let node = Gathered::new(&["kube-proxy/worker-1/iptables"]);
    // This capture was made without the status.
    let health = "{\"lastUpdated\": \"2026-11-20 23:25:05.7 +0000 UTC\", \"currentTime\": \"2026-11-20 23:25:05.7 +0000 UTC m=+7.9\", \"nodeEligible\": true}\n200";
    node.write("node/healthz.txt", health);
    complete(node)
}

/// Adds what a live check reads and the capture of a node does not have.
pub(crate) fn complete(node: Gathered) -> Gathered {
    for (file, text) in [
        ("node/sysctl.txt", SYSCTLS),
        ("node/nf_conntrack.stat.txt", COUNTERS),
        ("node/nf_conntrack.stat.later.txt", COUNTERS),
        ("node/netstat.txt", "TcpExt: IPReversePathFilter\nTcpExt: 5\n"),
        ("node/netstat.later.txt", "TcpExt: IPReversePathFilter\nTcpExt: 5\n"),
        ("node/ip-addr.json", &interfaces()),
        ("node/modules.txt", "br_netfilter 36864 0 - Live 0x0\nkernel/net/x.ko\n"),
        ("node/kube-proxy.process.json", "{\"complete\": true, \"program\": \"kube-proxy\", \"cpus\": 4}"),
        ("cluster/version.json", "{\"gitVersion\": \"v1.36.2\"}"),
        ("cluster/events.json", "{\"kind\": \"EventList\", \"items\": []}"),
    ] {
        if !node.path().join(file).exists() {
            node.write(file, text);
        }
    }
    node
}

/// The findings besides those by design.
pub(crate) fn besides(report: &CheckReport) -> Vec<String> {
    named(report).into_iter().filter(|name| !ON_WORKER_1.contains(&name.as_str())).collect()
}

#[test]
fn a_healthy_node_has_no_gap_and_only_faults_by_design() {
    let report = node().check();
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
    assert_eq!(report.gaps, [""; 0]);
}

#[test]
fn a_change_that_waits_is_in_flight_or_broken_by_its_age() {
    // kube-proxy's clock is 1795217105.7 in this capture.
    for (queued, class, level) in [
        ("1.7952171050e+09", Class::C5, Level::Note),
        ("1.7952170990e+09", Class::C5, Level::Note),
        ("1.7952170000e+09", Class::C4, Level::Fault),
    ] {
        let node = node();
        node.edit("node/metrics.txt", |text| {
            let synced = if class == Class::C4 { "1.795216990e+09" } else { "1.795217098e+09" };
            text.replace(
                "last_queued_timestamp_seconds 1.79521709812791e+09",
                &format!("last_queued_timestamp_seconds {queued}"),
            )
            .replace(
                "last_timestamp_seconds 1.7952170983640833e+09",
                &format!("last_timestamp_seconds {synced}"),
            )
        });
        let report = node.check();
        let finding = only(&report, class);
        assert_eq!(finding.level, level, "{queued}: {finding:#?}");
        assert!(says(finding, "last_queued_timestamp"), "{finding:#?}");
    }
}

#[test]
fn a_change_may_wait_for_the_whole_period_between_syncs() {
    // It has waited for 56 s in this capture.
    for (period, class, level) in
        [("1s", Class::C4, Level::Fault), ("1m", Class::C5, Level::Note), ("30s", Class::C4, Level::Fault)]
    {
        let node = node();
        node.edit("node/config.yaml", |text| {
            format!("{text}iptables: {{minSyncPeriod: {period}, syncPeriod: 5m}}\n")
        });
        node.edit("node/metrics.txt", |text| {
            text.replace(
                "last_queued_timestamp_seconds 1.79521709812791e+09",
                "last_queued_timestamp_seconds 1.7952170500e+09",
            )
            .replace(
                "last_timestamp_seconds 1.7952170983640833e+09",
                "last_timestamp_seconds 1.7952170400e+09",
            )
        });
        let report = node.check();
        let finding = only(&report, class);
        assert_eq!(finding.level, level, "{period}: {finding:#?}");
        let names_period = finding.root_cause.contains("its minSyncPeriod is 1 min");
        assert_eq!(names_period, class == Class::C5, "{period}: {finding:#?}");
    }
}

#[test]
fn a_rejected_batch_names_its_cause_while_it_lasts() {
    let node = node();
    node.edit("node/metrics.txt", |text| {
        text.replace(
            "last_queued_timestamp_seconds 1.79521709812791e+09",
            "last_queued_timestamp_seconds 1.7952170700e+09",
        )
        .replace("last_timestamp_seconds 1.7952170983640833e+09", "last_timestamp_seconds 1.7952170600e+09")
        .replace("iptables_restore_failures_total 0", "iptables_restore_failures_total 3")
    });
    node.edit("node/kube-proxy.log", |text| {
        text + "E1120 23:25:04.100000   27071 proxier.go:1533] \"Failed to execute iptables-restore\" err=\"exit status 4: Another app is currently holding the xtables lock\"\n"
    });
    let finding = only(&node.check(), Class::C4).clone();
    assert_eq!(finding.level, Level::Fault, "{finding:#?}");
    assert!(
        finding.root_cause.contains("iptables lock") && finding.mitigation.immediate.contains("xtables.lock"),
        "{finding:#?}"
    );
    assert!(says(&finding, "restore_failures_total is 3"), "{finding:#?}");
}

#[test]
fn rules_of_two_backends_or_two_modes_are_found() {
    let both = node();
    let legacy = std::fs::read_to_string(both.path().join("node/iptables-save.txt")).unwrap();
    both.write("node/iptables-legacy-save.txt", &legacy.replace("10.244.1.11", "10.244.9.9"));
    both.write("node/iptables-nft-save.txt", &legacy);
    let report = both.check();
    assert!(named(&report).contains(&"C3".to_owned()), "{:#?}", report.findings);

    let switched = node();
    switched.write("node/proxyMode.txt", "nftables");
    let report = switched.check();
    let leftover = report
        .findings
        .iter()
        .find(|finding| finding.class == Class::C10 && finding.level == Level::Fault)
        .unwrap();
    assert!(says(leftover, "left over from iptables mode"), "{leftover:#?}");
}

#[test]
fn rules_that_were_written_and_are_gone_were_flushed() {
    let node = node();
    node.edit("node/iptables-save.txt", |text| {
        text.lines().filter(|line| !line.contains("KUBE-")).collect::<Vec<_>>().join("\n") + "\n"
    });
    node.remove("node/nft-ruleset.json");
    node.remove("node/nft-ruleset.txt");
    let report = node.check();
    assert!(only(&report, Class::C5e).root_cause.contains("they are gone"), "{:#?}", report.findings);
    assert_eq!(report.findings[0].class, Class::C5e, "{:#?}", report.findings);
    // Felix of Calico's eBPF dataplane removes them.
    let names_calico = |node: &Gathered| {
        let report = node.check();
        format!("{:?}", only(&report, Class::C5e)).contains("interfaces of Calico's eBPF dataplane exist")
    };
    assert!(!names_calico(&node));
    node.write("node/ip-addr.json", "[{\"ifname\": \"eth0\"}, {\"ifname\": \"bpfin.cali\"}]");
    assert!(names_calico(&node));
}

#[test]
fn a_missing_kube_proxy_is_found_with_its_remaining_rules() {
    let node = node();
    node.write("node/kube-proxy.process.json", "{\"complete\": true}");
    node.edit("node/config.yaml", |text| text.replace("127.0.0.1:10249", "127.0.0.1:12345"));
    for file in ["proxyMode.txt", "metrics.txt", "healthz.txt", "livez.txt"] {
        node.remove(&format!("node/{file}"));
    }
    let report = node.check();
    let gone = only(&report, Class::C1);
    assert!(gone.against[0].content.contains("still exist"), "{gone:#?}");
    let asked = gone.evidence.iter().find(|item| item.content.contains("do not answer")).unwrap();
    assert!(asked.content.contains("127.0.0.1:12345 (metrics), 127.0.0.1:10256 (health)"), "{asked:#?}");
    // If not all processes are visible, the check does not claim that kube-proxy is missing.
    node.write("node/kube-proxy.process.json", "{\"complete\": false}");
    assert_eq!(besides(&node.check()), [""; 0]);
}

#[test]
fn a_crashing_pod_and_an_incomplete_daemon_set_are_found() {
    let node = node();
    node.edit("cluster/pods.json", |text| {
        let mut pods: Value = serde_json::from_str(&text).unwrap();
        for pod in pods["items"].as_array_mut().unwrap() {
            if pod["metadata"]["name"] == "kube-proxy-w1" {
                pod["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
                pod["status"]["containerStatuses"] = json!([{"name": "kube-proxy", "ready": false, "restartCount": 7, "image": "", "imageID": "",
                    "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}]);
            }
        }
        pods.to_string()
    });
    let sets = json!({"kind": "DaemonSetList", "items": [{"metadata": {"name": "kube-proxy"},
        "spec": {"template": {"spec": {"containers": [{"image": "registry.k8s.io/kube-proxy:v1.36.2"}]}}},
        "status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "numberReady": 1}}]});
    node.write("cluster/daemonsets.json", &sets.to_string());
    let report = node.check();
    let details: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.class == Class::C1)
        .map(|finding| &*finding.root_cause)
        .collect();
    assert!(details.iter().any(|detail| detail.contains("CrashLoopBackOff after OOMKilled")), "{details:?}");
    assert!(details.iter().any(|detail| detail.contains("1 of 2 kube-proxy Pods are ready")), "{details:?}");
}

#[test]
fn an_evicted_pod_beside_the_one_that_took_its_place_is_no_fault() {
    let node = node();
    node.edit("cluster/pods.json", |text| {
        let mut pods: Value = serde_json::from_str(&text).unwrap();
        let items = pods["items"].as_array_mut().unwrap();
        let mut evicted =
            items.iter().find(|pod| pod["metadata"]["name"] == "kube-proxy-w1").unwrap().clone();
        evicted["metadata"]["name"] = json!("kube-proxy-old");
        evicted["metadata"]["uid"] = json!("old");
        evicted["status"] = json!({"phase": "Failed", "reason": "Evicted"});
        items.push(evicted);
        pods.to_string()
    });
    assert_eq!(besides(&node.check()), [""; 0]);
}

#[test]
fn a_version_skew_is_found_and_unknown_versions_are_not() {
    let node = node();
    node.write("cluster/version.json", "{\"gitVersion\": \"v1.35.0\"}");
    assert_eq!(besides(&node.check()), ["C9"], "the kubelet is newer; kube-proxy's build has no version");
    node.edit("node/metrics.txt", |text| {
        text.replace("git_version=\"v0.0.0-master+$Format:%H$\"", "git_version=\"v1.30.5\"")
    });
    assert_eq!(besides(&node.check()), ["C9", "C9"]);
}

#[test]
fn conntrack_is_judged_by_what_grows_and_by_its_limit() {
    for (settings, later, expected, level) in [
        (SYSCTLS.replace("count = 100", "count = 131072"), COUNTERS.to_owned(), Class::C16, Level::Fault),
        (SYSCTLS.replace("count = 100", "count = 120000"), COUNTERS.to_owned(), Class::C16, Level::Warning),
        (
            SYSCTLS.replace("count = 100", "count = 120000"),
            COUNTERS.replacen("00000000 00000000 0 0", "00000000 00000009 0 0", 1),
            Class::C16,
            Level::Fault,
        ),
        // At the limit, and each new entry evicts an old one.
        (
            SYSCTLS.replace("count = 100", "count = 131072"),
            COUNTERS.replacen("00000000 00000000 0 0", "00000000 00000000 9 0", 1),
            Class::C16,
            Level::Warning,
        ),
        (SYSCTLS.replace("count = 100", "count = 100000"), COUNTERS.to_owned(), Class::C16, Level::Warning),
        (
            SYSCTLS.to_owned(),
            COUNTERS.replacen("0 00000000 00000000 0 0", "0 00000003 00000003 0 0", 1),
            Class::C17,
            Level::Warning,
        ),
        (
            SYSCTLS.replace("buckets = 32768", "buckets = 1024"),
            COUNTERS.to_owned(),
            Class::C17,
            Level::Warning,
        ),
    ] {
        let node = node();
        node.write("node/sysctl.txt", &settings);
        node.write("node/nf_conntrack.stat.later.txt", &later);
        let report = node.check();
        assert_eq!(besides(&report), [expected.id()], "{settings}");
        assert_eq!(only(&report, expected).level, level, "{settings}");
    }
    // Evictions alone lose nothing.
    let evicting = node();
    evicting.write(
        "node/nf_conntrack.stat.later.txt",
        &COUNTERS.replacen("00000000 00000000 0 0", "00000000 00000000 9 0", 1),
    );
    let report = evicting.check();
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
    assert_eq!(only(&report, Class::N7).level, Level::Note);
    // Hash chains that are too long have a remedy of their own.
    let long = node();
    long.write(
        "node/nf_conntrack.stat.later.txt",
        &COUNTERS.replacen("0 0 00000000 00000000 0 0", "4 0 00000004 00000000 0 0", 1),
    );
    let report = long.check();
    let found = only(&report, Class::C17);
    assert!(
        found.root_cause.contains("hash chains") && found.mitigation.immediate.contains("buckets"),
        "{found:#?}"
    );
    // Totals since boot do not matter.
    let node = node();
    let old = COUNTERS.replace("0 00000000 00000000 0 0", "0 000000ff 000000ff 0 0");
    node.write("node/nf_conntrack.stat.txt", &old);
    node.write("node/nf_conntrack.stat.later.txt", &old);
    assert_eq!(besides(&node.check()), [""; 0]);
    // Another namespace has its own count but shares the limit.
    node.write(
        "node/nf_conntrack.namespaces.txt",
        "# netns entries process\n4026531840 255 systemd\n4026532000 131000 envoy\n",
    );
    assert!(says(only(&node.check(), Class::C16), "envoy"));
}

#[test]
fn settings_that_break_the_path_are_found_if_something_depends_on_them() {
    for (from, to, expected, level) in [
        ("ip_forward = 1", "ip_forward = 0", Class::C32, Level::Fault),
        ("nf-call-iptables = 1", "nf-call-iptables = 0", Class::C31, Level::Fault),
        ("eth1.rp_filter = 0", "eth1.rp_filter = 1", Class::C32, Level::Warning),
        ("all.rp_filter = 0", "all.rp_filter = 1", Class::C32, Level::Warning),
        ("route_localnet = 1", "route_localnet = 0", Class::C26, Level::Warning),
    ] {
        let node = node();
        node.write("node/sysctl.txt", &SYSCTLS.replace(from, to));
        let report = node.check();
        assert_eq!(besides(&report), [expected.id()], "{to}");
        assert_eq!(only(&report, expected).level, level, "{to}");
    }
    // The larger of the two settings counts: loose for all makes a strict interface loose.
    let loose = node();
    loose.write(
        "node/sysctl.txt",
        &SYSCTLS
            .replace("all.rp_filter = 0", "all.rp_filter = 2")
            .replace("eth1.rp_filter = 0", "eth1.rp_filter = 1"),
    );
    assert_eq!(besides(&loose.check()), [""; 0]);
    // Nothing depends on a bridge without Pods.
    let foreign = node();
    foreign.write("node/sysctl.txt", &SYSCTLS.replace("nf-call-iptables = 1", "nf-call-iptables = 0"));
    foreign.edit("node/ip-addr.json", |text| text.replace("10.244.1.1", "172.17.0.1"));
    assert_eq!(besides(&foreign.check()), [""; 0]);
    // A module that is not loaded has no settings.
    let unloaded = node();
    unloaded.write("node/sysctl.txt", &SYSCTLS.replace("net.bridge.bridge-nf-call-iptables = 1\n", ""));
    unloaded.write("node/modules.txt", "veth 1 0 - Live 0x0\nkernel/net/x.ko\n");
    assert!(only(&unloaded.check(), Class::C31).root_cause.contains("br_netfilter is not loaded"));
    let drops = node();
    drops.write("node/netstat.later.txt", "TcpExt: IPReversePathFilter\nTcpExt: 9\n");
    let report = drops.check();
    let stray = only(&report, Class::C32);
    assert!(
        stray.root_cause.contains("4 between two readings") && stray.level == Level::Warning,
        "{stray:#?}"
    );
    // With two strict uplinks answers can take another way.
    drops.write("node/sysctl.txt", &SYSCTLS.replace("all.rp_filter = 0", "all.rp_filter = 1"));
    assert_eq!(only(&drops.check(), Class::C32).level, Level::Fault);
    let hairpin = node();
    hairpin.edit("node/ip-addr.json", |text| text.replace("\"hairpin\":true", "\"hairpin\":false"));
    assert_eq!(only(&hairpin.check(), Class::C31).level, Level::Warning);
}

#[test]
fn a_node_in_ipvs_mode_needs_its_device_with_every_address() {
    let node = || Gathered::new(&["kube-proxy/worker-1/ipvs"]);
    let without = node();
    without.edit("node/ip-addr.json", |text| text.replace("10.96.10.10", "10.96.10.99"));
    let report = without.check();
    assert_eq!(besides(&report), ["C11 shop/cart"], "{:#?}", report.findings);
    let unwritten = node();
    unwritten.edit("node/ip-addr.json", |text| text.replace("10.96.10.10", "10.96.10.99"));
    for file in ["node/ipvsadm-save.txt", "node/ipvsadm-list.txt"] {
        unwritten.edit(file, |text| {
            text.lines().filter(|line| !line.contains("10.96.10.10:")).collect::<Vec<_>>().join("\n")
        });
    }
    let report = unwritten.check();
    assert!(besides(&report).iter().all(|found| !found.starts_with("C11")), "{:#?}", report.findings);
    assert!(besides(&report).iter().any(|found| found.ends_with("shop/cart")), "{:#?}", report.findings);
    let renamed = node();
    renamed.edit("node/ip-addr.json", |text| text.replace("kube-ipvs0", "kube-ipvs1"));
    assert!(only(&renamed.check(), Class::C11).root_cause.contains("kube-ipvs0 is missing"));
    // Without any address, or without the device, one finding covers all Services and their rules.
    let emptied = node();
    emptied.edit("node/ip-addr.json", |text| text.replace("10.96.", "10.98."));
    assert!(only(&emptied.check(), Class::C11).root_cause.contains("9 Services are not on kube-ipvs0"));
    for broken in [&emptied, &renamed] {
        let report = broken.check();
        let reach = |text: &&String| text.contains("C5 ") || *text == "C5";
        assert!(besides(&report).iter().find(reach).is_none(), "{:#?}", report.findings);
    }
    let unset = node();
    unset.edit("node/sysctl.txt", |text| {
        text.replace("net.ipv4.vs.expire_nodest_conn = 1", "net.ipv4.vs.expire_nodest_conn = 0")
    });
    assert_eq!(besides(&unset.check()), ["C13"]);
    let empty = node();
    empty.write("node/ipvsadm-save.txt", "");
    empty.remove("node/ipvsadm-list.txt");
    assert_eq!(besides(&empty.check()), ["C5e"]);
}

#[test]
fn node_ports_without_an_address_are_found() {
    let node = node();
    node.edit("node/config.yaml", |text| text + "nodePortAddresses: [203.0.113.0/24]\n");
    assert!(only(&node.check(), Class::C26).root_cause.contains("no node port is served here"));
    let primary = self::node();
    primary.edit("node/config.yaml", |text| text + "nodePortAddresses: [primary]\n");
    assert_eq!(besides(&primary.check()), [""; 0]);
}

#[test]
fn a_node_that_is_not_ready_is_found() {
    let node = node();
    node.edit("cluster/nodes.json", |text| {
        let mut nodes: Value = serde_json::from_str(&text).unwrap();
        for item in nodes["items"].as_array_mut().unwrap() {
            item["status"]["conditions"] =
                json!([{"type": "Ready", "status": "Unknown"}, {"type": "MemoryPressure", "status": "True"}]);
        }
        nodes.to_string()
    });
    let report = node.check();
    assert_eq!(besides(&report), ["C29", "K10", "K10"], "{:#?}", report.findings);
    assert!(says(only(&report, Class::C29), "shop/frontend"), "what its endpoints serve is named");
}

#[test]
fn the_five_procedures_end_where_the_fault_is() {
    let result = |node: &Gathered, name: &str| {
        let report = node.check();
        report.procedures.iter().find(|procedure| procedure.name == name).unwrap().result
    };
    let cart = |node: &Gathered, name: &str| {
        let report = node.check_service("shop", "cart");
        report.procedures.iter().find(|procedure| procedure.name == name).unwrap().result
    };
    assert_eq!(cart(&node(), "clusterip-unreachable"), Outcome::Passed);
    assert_eq!(cart(&node(), "nodeport-unreachable"), Outcome::Passed);
    assert_eq!(result(&node(), "sync-slow"), Outcome::Passed);
    assert_eq!(result(&node(), "source-ip-lost"), Outcome::Suspicious, "frontend has no local endpoint");
    assert_eq!(result(&node(), "conntrack-exhausted"), Outcome::Unknown, "the timeout was not read");

    let forward = node();
    forward.write("node/sysctl.txt", &SYSCTLS.replace("ip_forward = 1", "ip_forward = 0"));
    assert_eq!(cart(&forward, "clusterip-unreachable"), Outcome::Failed);
    assert_eq!(cart(&forward, "nodeport-unreachable"), Outcome::Failed);
    let slow = node();
    slow.edit("node/metrics.txt", |text| {
        text + "kubeproxy_network_programming_duration_seconds_bucket{le=\"60\"} 0\n\
            kubeproxy_network_programming_duration_seconds_bucket{le=\"120\"} 50\n\
            kubeproxy_network_programming_duration_seconds_bucket{le=\"+Inf\"} 50\n"
    });
    assert_eq!(result(&slow, "sync-slow"), Outcome::Suspicious);
    let masquerading = node();
    masquerading.edit("node/config.yaml", |text| text + "iptables: {masqueradeAll: true}\n");
    assert_eq!(cart(&masquerading, "source-ip-lost"), Outcome::Failed);
    let full = node();
    full.write("node/sysctl.txt", &SYSCTLS.replace("count = 100", "count = 131072"));
    assert_eq!(result(&full, "conntrack-exhausted"), Outcome::Failed);
}

/// kube-proxy waits for its configured `minSyncPeriod`.
#[test]
fn a_configured_wait_is_no_slow_sync() {
    let with = |period: &str, seconds: u32| {
        let node = node();
        node.edit("node/config.yaml", |text| format!("{text}iptables: {{minSyncPeriod: {period}}}\n"));
        node.edit("node/metrics.txt", |text| {
            format!(
                "{text}kubeproxy_network_programming_duration_seconds_bucket{{le=\"9\"}} 0\n\
                 kubeproxy_network_programming_duration_seconds_bucket{{le=\"{seconds}\"}} 1000\n\
                 kubeproxy_network_programming_duration_seconds_bucket{{le=\"+Inf\"}} 1000\n"
            )
        });
        node.check()
    };
    assert_eq!(besides(&with("10s", 11)), [""; 0]);
    let late = with("1s", 11);
    assert!(only(&late, Class::C5).mitigation.immediate.contains("raise minSyncPeriod"), "{late:#?}");
    let later = with("10s", 30);
    assert_eq!(only(&later, Class::C5).mitigation.immediate, "give kube-proxy CPU", "{later:#?}");
}

#[test]
fn a_kube_proxy_that_fell_back_to_iptables_has_not_exited() {
    let with = |reported: &str| {
        let node = node();
        node.edit("node/config.yaml", |text| text.replace("mode: ", "mode: ipvs #"));
        node.edit("node/kube-proxy.log", |text| {
            text + "E1120 23:25:05.950000       1 server_others.go:127] Can't use the IPVS proxier: IPVS proxier will not be used\n"
        });
        node.write("node/proxyMode.txt", reported);
        named(&node.check())
    };
    let found = with("iptables");
    assert!(found.contains(&"C10".to_owned()) && !found.contains(&"C11".to_owned()), "{found:?}");
    assert!(with("ipvs").contains(&"C11".to_owned()));
}

#[test]
fn another_nodes_check_shows_what_differs() {
    let healthy = node().check();
    let saved = compare::Saved::parse(&serde_json::to_string(&healthy).unwrap()).unwrap();
    assert_eq!(compare::differences(&healthy, &saved), []);
    let broken = node();
    broken.write("node/sysctl.txt", &SYSCTLS.replace("ip_forward = 1", "ip_forward = 0"));
    let differences = compare::differences(&broken.check(), &saved);
    let what: Vec<_> = differences.iter().map(|difference| difference.what.as_str()).collect();
    assert_eq!(what, ["finding C32", "sysctl: net.ipv4.ip_forward"]);
    assert_eq!((differences[1].here.as_deref(), differences[1].there.as_deref()), (Some("0"), Some("1")));
    assert!(compare::Saved::parse("{}").is_err() && compare::Saved::parse("[]").is_err());
}

/// kube-proxy of 1.34 and older leaves out what has the label, and of 1.36 and newer only what has no `ClusterIP`.
#[test]
fn a_service_with_a_cluster_ip_that_is_labelled_as_headless_has_no_rules_by_design() {
    const LABEL: &str = "service.kubernetes.io/headless";
    let checked = |version: &str, label: bool| {
        let node = node();
        node.edit("node/metrics.txt", |text| text.replace("v0.0.0-master+$Format:%H$", version));
        // A copy of cart that no rule has.
        for list in ["services", "endpointslices"] {
            node.edit(&format!("cluster/{list}.json"), |text| {
                let mut list: Value = serde_json::from_str(&text).unwrap();
                let items = list["items"].as_array_mut().unwrap();
                let of_cart = |item: &&Value| {
                    item["metadata"]["namespace"] == "shop"
                        && (item["metadata"]["name"] == "cart"
                            || item["metadata"]["labels"]["kubernetes.io/service-name"] == "cart")
                };
                let mut copy = items.iter().find(of_cart).unwrap().clone();
                copy["metadata"]["name"] = "copy".into();
                if copy["spec"].is_object() {
                    copy["spec"]["clusterIP"] = "10.96.77.77".into();
                    copy["spec"]["clusterIPs"] = json!(["10.96.77.77"]);
                    copy["metadata"]["labels"] = if label { json!({LABEL: ""}) } else { json!({}) };
                } else {
                    copy["metadata"]["labels"]["kubernetes.io/service-name"] = "copy".into();
                }
                items.push(copy);
                list.to_string()
            });
        }
        node
    };
    let missing = |report: &CheckReport| faults(report).contains(&"C5e shop/copy".to_owned());
    for version in ["v1.31.4", "v1.36.0"] {
        assert!(missing(&checked(version, false).check()), "{version}");
    }
    assert!(missing(&checked("v1.36.0", true).check()));
    for (version, confidence) in [("v1.31.4", Confidence::High), ("v1.35.0", Confidence::Medium)] {
        let node = checked(version, true);
        for report in [node.check(), node.check_service("shop", "copy")] {
            assert!(!faults(&report).iter().any(|name| name.contains("copy")), "{:#?}", report.findings);
            let finding = only(&report, Class::C5d);
            assert_eq!(name(finding), "C5d shop/copy");
            assert_eq!((finding.level, finding.confidence), (Level::Note, confidence), "{version}");
            assert!(says(finding, LABEL), "{finding:#?}");
        }
    }
    // Without a ClusterIP the label says what the Service is.
    let node = node();
    node.edit("cluster/services.json", |text| {
        let mut list: Value = serde_json::from_str(&text).unwrap();
        for item in list["items"].as_array_mut().unwrap() {
            if item["metadata"]["name"] == "db" {
                item["metadata"]["labels"] = json!({LABEL: ""});
            }
        }
        list.to_string()
    });
    let report = node.check_service("shop", "db");
    assert_eq!(report.findings.iter().map(name).collect::<Vec<_>>(), ["C27 shop/db"]);
}
