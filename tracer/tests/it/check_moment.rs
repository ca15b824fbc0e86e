//! Checks in the middle of a change: a fault that a second reading does not confirm is none, and one that lasts is.
use std::collections::BTreeSet;

use serde_json::Value;
use viptrace::{
    class::{Class, Confidence},
    diagnosis::triage::{CheckReport, Level, Reading, Scope},
    time::Timestamp,
};

use crate::{
    check_faults::{besides, node},
    check_neighbours::edit_items,
    check_support::{Gathered, name},
};

/// The report of two readings, five seconds apart.
fn twice(first: &Gathered, second: &Gathered) -> CheckReport {
    let scope = Scope::default();
    let (mut first, mut second) = (first.facts(), second.facts());
    first.taken = Some(Timestamp::from_unix_secs(1_795_217_106));
    second.taken = Some(Timestamp::from_unix_secs(1_795_217_111));
    let reading = Reading::of(&first, &scope);
    assert!(reading.pause().is_some(), "the first reading has nothing to confirm");
    reading.confirmed_by(Reading::of(&second, &scope))
}

/// The rules of shop/cart without one of its endpoints, as before it was added.
fn without_endpoint(node: &Gathered, endpoint: &str) {
    node.edit("node/iptables-save.txt", |text| {
        text.replace(&format!("--to-destination {endpoint}"), "--to-destination 10.244.9.9:8080")
    });
}

#[test]
fn a_difference_of_the_moment_is_a_note() {
    let skewed = node();
    without_endpoint(&skewed, "10.244.1.11:8080");
    let report = twice(&skewed, &node());
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
    let notes = report.findings.iter().filter(|finding| name(finding).ends_with("shop/cart"));
    assert!(notes.clone().count() > 0, "what was seen is reported");
    for note in notes {
        assert!(note.against.iter().any(|against| against.content.contains("5.0 s later")), "{note:#?}");
    }
}

#[test]
fn flows_that_failed_by_each_class_confirm_a_reading() {
    let broken = node();
    without_endpoint(&broken, "10.244.1.11:8080");
    let (facts, scope) = (broken.facts(), Scope::default());
    let reading = Reading::of(&facts, &scope);
    assert!(reading.pause().is_some());
    let report = Reading::of(&facts, &scope).report();
    let mut met: BTreeSet<Class> = report.findings.iter().map(|finding| finding.class).collect();
    assert!(reading.is_confirmed_by(&met));
    assert!(!reading.is_confirmed_by(&BTreeSet::new()));
    met.remove(&Class::C5e);
    assert!(!reading.is_confirmed_by(&met), "none failed by the missing endpoint");
    let found = besides(&reading.confirmed_by_flows(&met));
    assert!(found.iter().any(|name| name == "C6 shop/cart"), "{found:?}");
    assert!(!found.iter().any(|name| name == "C5e shop/cart"), "{found:?}");
}

#[test]
fn another_difference_at_each_reading_is_a_rollout() {
    let (first, second) = (node(), node());
    without_endpoint(&first, "10.244.1.11:8080");
    without_endpoint(&second, "10.244.1.12:8080");
    second.edit("node/iptables-save.txt", |text| text.replace("10.244.9.9", "10.244.9.8"));
    let report = twice(&first, &second);
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
}

#[test]
fn a_difference_that_lasts_is_a_fault() {
    let broken = node();
    without_endpoint(&broken, "10.244.1.11:8080");
    let report = twice(&broken, &broken);
    assert!(besides(&report).iter().any(|found| found.ends_with("shop/cart")), "{:#?}", report.findings);
}

/// The lists and the rules of two moments: the difference is a warning, and it may be that connections fail.
#[test]
fn the_summary_does_not_deny_a_warning() {
    let broken = node();
    without_endpoint(&broken, "10.244.1.11:8080");
    let mut facts = broken.facts();
    facts.lists_read = Some(Timestamp::from_unix_secs(1_795_217_000));
    facts.node.rules_time = Some(Timestamp::from_unix_secs(1_795_217_106));
    facts.node.report.last_queued = None;
    let scope = Scope { service: Some(viptrace::cluster::Key::new("shop", "cart")) };
    let report = Reading::of(&facts, &scope).report();
    let cart: Vec<_> = report.findings.iter().filter(|it| name(it).ends_with("shop/cart")).collect();
    assert!(!cart.is_empty() && cart.iter().all(|it| it.level == Level::Warning), "{cart:#?}");
    assert!(report.summary.starts_with("possibly broken on worker-1: shop/cart"), "{}", report.summary);
}

#[test]
fn a_single_reading_without_times_is_less_certain() {
    let broken = node();
    without_endpoint(&broken, "10.244.1.11:8080");
    let report = broken.check();
    let found = report.findings.iter().find(|finding| name(finding).ends_with("shop/cart")).unwrap();
    assert_eq!((found.level, found.confidence), (Level::Fault, Confidence::Medium), "{found:#?}");
    assert!(found.unseen.iter().any(|what| what.contains("when the lists were read")), "{found:#?}");
}

#[test]
fn slow_syncs_of_the_past_are_not_read_again() {
    let (node, scope) = (Gathered::new(&["kube-proxy/worker-1/ipvs"]), Scope::default());
    assert_eq!(Reading::of(&node.facts(), &scope).pause(), None);
    node.edit("node/metrics.txt", |text| {
        let name = "kubeproxy_sync_proxy_rules_duration_seconds";
        let kept: Vec<&str> = text.lines().filter(|line| !line.contains(name)).collect();
        let slow = format!(
            "# TYPE {name} histogram\n{name}_bucket{{le=\"4\"}} 0\n{name}_bucket{{le=\"16\"}} 40\n\
             {name}_bucket{{le=\"+Inf\"}} 40\n{name}_sum 500\n{name}_count 40\n"
        );
        format!("{}\n{slow}", kept.join("\n"))
    });
    let facts = node.facts();
    let reading = Reading::of(&facts, &scope);
    assert_eq!(reading.pause(), None);
    let report = reading.report();
    let found = report.findings.iter().find(|finding| name(finding) == "C5").unwrap();
    assert!(found.root_cause.contains("writes its rules late"), "{found:#?}");
    assert_eq!(found.level, Level::Warning);
}

/// kube-proxy's times: its start, the last queued update and the last sync. Its clock is 1795217105.7.
fn times(node: &Gathered, [started, queued, synced]: [&str; 3]) {
    node.edit("node/metrics.txt", |text| {
        let kept: Vec<&str> = text
            .lines()
            .filter(|line| {
                !line.starts_with("process_start_time_seconds") && !line.contains("_timestamp_seconds ")
            })
            .collect();
        format!(
            "{}\nprocess_start_time_seconds {started}\n\
             kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds {queued}\n\
             kubeproxy_sync_proxy_rules_last_timestamp_seconds {synced}\n",
            kept.join("\n")
        )
    });
}

/// ipvs mode a few seconds after the start: virtual servers, but no rule of iptables yet.
fn half_written() -> Gathered {
    let node = Gathered::new(&["kube-proxy/worker-1/ipvs"]);
    node.write("node/iptables-save.txt", "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\nCOMMIT\n*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\nCOMMIT\n");
    node.write("node/healthz.txt", "{\"lastUpdated\": \"2026-11-20 23:25:05.7 +0000 UTC\", \"currentTime\": \"2026-11-20 23:25:05.7 +0000 UTC m=+7.9\"}\n200");
    node
}

#[test]
fn a_kube_proxy_that_is_starting_has_written_only_a_part() {
    let node = half_written();
    times(&node, ["1795217090", "1795217098", "0"]);
    let report = node.check();
    let faults: Vec<_> = besides(&report).into_iter().filter(|found| found != "C5").collect();
    assert_eq!(faults, [""; 0], "{:#?}", report.findings);
    let starting = report.findings.iter().find(|finding| name(finding) == "C5").unwrap();
    assert!(starting.level != Level::Fault, "{starting:#?}");
    let advice =
        format!("{:?}", report.findings.iter().map(|finding| &finding.mitigation).collect::<Vec<_>>());
    assert!(!advice.contains("changes kube-proxy's rules"), "{advice}");
}

#[test]
fn a_kube_proxy_that_started_long_ago_and_lacks_rules_is_broken() {
    let node = half_written();
    times(&node, ["1795210000", "1795217000", "1795217001"]);
    let report = node.check();
    assert!(
        report.findings.iter().any(|finding| finding.class == Class::C5e && finding.level == Level::Fault),
        "{:#?}",
        report.findings
    );
}

/// kube-proxy sets them before its first sync: a reading of that time may come before.
#[test]
fn the_settings_of_a_kube_proxy_that_is_starting_are_no_fault() {
    // The metrics of the third one were read after its first sync.
    for (started, synced, is_fault) in
        [("1795217090", "0", false), ("1795217090", "1795217098", true), ("1795217103", "1795217104", false)]
    {
        let node = half_written();
        times(&node, [started, "1795217098", synced]);
        node.write("node/sysctl.txt", "net.ipv4.vs.conntrack = 0\n");
        let report = node.check();
        let setting = report.findings.iter().find(|finding| name(finding).starts_with("K11"));
        assert_eq!(setting.is_some(), is_fault, "{:#?}", report.findings);
    }
}

/// Its ports answer only after that.
#[test]
fn the_settings_of_a_kube_proxy_whose_ports_do_not_answer_yet_are_no_fault() {
    for (started, is_fault) in [(1_795_217_098_u64, false), (1_795_210_000, true)] {
        let node = half_written();
        node.write("node/metrics.txt", "");
        node.write("node/sysctl.txt", "net.ipv4.vs.conntrack = 0\n");
        let process = serde_json::json!({"complete": true, "program": "kube-proxy", "started": started});
        node.write("node/kube-proxy.process.json", &process.to_string());
        let report = node.check();
        let setting = report.findings.iter().find(|finding| name(finding).starts_with("K11"));
        assert_eq!(setting.is_some(), is_fault, "{:#?}", report.findings);
    }
}

/// worker-1 without the kube-proxy process; its rules stay.
fn away() -> Gathered {
    let node = node();
    for file in ["proxyMode.txt", "metrics.txt", "healthz.txt", "livez.txt"] {
        node.remove(&format!("node/{file}"));
    }
    node.write("node/kube-proxy.process.json", "{\"complete\": true, \"cpus\": 4}");
    node
}

fn edit_proxy_pod(node: &Gathered, change: impl Fn(&mut Value)) {
    edit_items(node, "pods", |pod| {
        if pod["metadata"]["name"] == "kube-proxy-w1" {
            change(pod);
        }
    });
}

fn rolls_out(node: &Gathered) {
    let status = serde_json::json!({
        "desiredNumberScheduled": 2, "currentNumberScheduled": 1, "updatedNumberScheduled": 1, "numberReady": 1
    });
    let container = serde_json::json!({"name": "kube-proxy", "image": "registry.k8s.io/kube-proxy:v1.36.2"});
    let set = serde_json::json!({
        "metadata": {"name": "kube-proxy", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [container]}}}, "status": status
    });
    node.write(
        "cluster/daemonsets.json",
        &serde_json::json!({"kind": "DaemonSetList", "items": [set]}).to_string(),
    );
}

#[test]
fn a_rollout_of_kube_proxy_is_no_fault() {
    let rolling = away();
    rolls_out(&rolling);
    edit_proxy_pod(&rolling, |pod| pod["spec"]["nodeName"] = "worker-9".into());
    let report = rolling.check();
    let faults: Vec<_> = report.findings.iter().filter(|finding| finding.class == Class::C1).collect();
    assert!(!faults.is_empty() && faults.iter().all(|finding| finding.level != Level::Fault), "{faults:#?}");
}

#[test]
fn a_rollout_that_fails_is_a_fault() {
    let stuck = away();
    rolls_out(&stuck);
    edit_proxy_pod(&stuck, |pod| {
        pod["status"]["conditions"] = Value::Null;
        pod["status"]["containerStatuses"] = serde_json::json!([
            {"name": "kube-proxy", "restartCount": 4, "ready": false, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
        ]);
    });
    let report = stuck.check();
    assert!(
        report.findings.iter().any(|finding| finding.class == Class::C1 && finding.level == Level::Fault),
        "{:#?}",
        report.findings
    );
    // Without a rollout a missing Pod is a fault, too.
    let gone = away();
    edit_proxy_pod(&gone, |pod| pod["spec"]["nodeName"] = "worker-9".into());
    let report = gone.check();
    assert!(
        report.findings.iter().any(|finding| finding.class == Class::C1 && finding.level == Level::Fault),
        "{:#?}",
        report.findings
    );
}
