//! Checks of captures of real nodes: the faults by design on healthy ones, the cause on broken ones.
use crate::check_support::{Gathered, faults, name, named, only, says};
use viptrace::{
    class::Class,
    diagnosis::triage::{Level, State},
};

/// The faults and warnings that this cluster has by design on every node.
pub(crate) const BY_DESIGN: [&str; 3] = ["C20 default/kubernetes", "C20 shop/checkout", "C20 shop/slow"];
/// The findings by design on worker-1: frontend and cache run only on worker-2.
pub(crate) const ON_WORKER_1: [&str; 5] =
    ["C20 default/kubernetes", "C20 shop/checkout", "C20 shop/slow", "C21 shop/frontend", "C22 shop/cache"];

#[test]
fn healthy_nodes_have_exactly_the_faults_by_design() {
    for (capture, expected) in [
        ("kube-proxy/worker-1/iptables", &ON_WORKER_1[..]),
        ("kube-proxy/worker-1/nftables", &ON_WORKER_1),
        ("kube-proxy/worker-1/ipvs", &ON_WORKER_1),
        ("kube-proxy/worker-2/iptables", &BY_DESIGN),
        ("kube-proxy/worker-2/nftables", &BY_DESIGN),
    ] {
        let report = Gathered::new(&[capture]).check();
        assert_eq!(named(&report), expected, "{capture}: {:#?}", report.findings);
        assert_eq!(report.state, State::Broken, "{capture}");
        assert_eq!(report.kube_proxy_mode.as_deref(), capture.rsplit('/').next(), "{capture}");
        assert_eq!(report.node.as_deref(), capture.split('/').nth(1), "{capture}");
    }
}

/// Whether anybody connects where a Local policy has no endpoint is not seen by a check.
#[test]
fn a_local_policy_without_a_local_endpoint_is_a_warning() {
    for mode in ["iptables", "nftables", "ipvs"] {
        let report = Gathered::new(&[&format!("kube-proxy/worker-1/{mode}")]).check();
        // Nothing shows that a client uses checkout, which never had an endpoint.
        assert_eq!(faults(&report), [BY_DESIGN[0], BY_DESIGN[2]], "{mode}: {:#?}", report.findings);
        for class in [Class::C21, Class::C22] {
            let found = only(&report, class);
            assert_eq!(found.level, Level::Warning, "{mode}: {found:#?}");
            assert!(found.unseen.iter().any(|fact| fact.starts_with("whether any client")), "{found:#?}");
        }
    }
}

#[test]
fn both_families_and_the_newer_release_are_as_healthy() {
    for capture in [
        "dualstack/kube-proxy/worker-1/iptables",
        "dualstack/kube-proxy/worker-1/nftables",
        "kube-proxy-v1.36/worker-1/iptables",
        "kube-proxy-v1.36/worker-1/nftables",
    ] {
        let gathered = Gathered::of("dualstack/cluster", &[capture]);
        let report = gathered.check();
        let mut found = named(&report);
        // A finding for each family.
        found.dedup();
        let elsewhere: Vec<_> = found.iter().filter(|name| !ON_WORKER_1.contains(&name.as_str())).collect();
        assert!(elsewhere.is_empty(), "{capture}: {elsewhere:?} {:#?}", report.findings);
        assert!(found.contains(&"C22 shop/cache".to_owned()), "{capture}: {found:?}");
    }
}

#[test]
fn the_reason_for_missing_endpoints_is_reported() {
    let report = Gathered::new(&["kube-proxy/worker-1/iptables"]).check();
    let of = |service: &str| {
        let is_it = |finding: &&viptrace::diagnosis::triage::FindingRecord| name(finding) == service;
        &report.findings.iter().find(is_it).unwrap().root_cause
    };
    assert!(
        of("C20 shop/checkout").contains("its selector app=chekout matches no Pod"),
        "{}",
        of("C20 shop/checkout")
    );
    assert!(of("C20 shop/slow").contains("shop/slow-1 (not ready)"), "{}", of("C20 shop/slow"));
    assert!(of("C20 default/kubernetes").contains("no selector"), "{}", of("C20 default/kubernetes"));
}

#[test]
fn a_lost_api_is_found_despite_a_healthy_healthz() {
    let gathered = Gathered::new(&["incidents/api-lost"]);
    let report = gathered.check();
    // The cause is the first finding, whatever else is broken on this node.
    let lost = &report.findings[0];
    assert_eq!(name(lost), "C2", "{:#?}", report.findings);
    assert_eq!(lost.level, Level::Fault, "{lost:#?}");
    assert!(says(lost, "shop/cart changed") && says(lost, "Unexpected EOF"), "{lost:#?}");
    assert!(lost.against.iter().any(|against| against.content.contains("/healthz answers 200")), "{lost:#?}");
    assert!(lost.root_cause.starts_with("api_connectivity — "), "{lost:#?}");
    // The effect is a finding too: the rules still send to a Pod that is gone.
    let stale = report.findings.iter().find(|finding| name(finding) == "C6 shop/cart").unwrap();
    assert!(stale.root_cause.contains("10.244.1.11"), "{stale:#?}");
    let known = [Class::C2, Class::C6, Class::C20, Class::C21, Class::C22];
    let other: Vec<_> = report
        .findings
        .iter()
        .filter(|finding| finding.level == Level::Fault && !known.contains(&finding.class))
        .collect();
    assert!(other.is_empty(), "{other:#?}");
}

#[test]
fn a_rejected_token_is_distinguished_from_a_lost_connection() {
    let report = Gathered::new(&["incidents/unauthorized"]).check();
    assert_eq!(name(&report.findings[0]), "C2", "{:#?}", report.findings);
    let refused = only(&report, Class::C2);
    assert!(
        refused.root_cause.contains("Unauthorized") && refused.root_cause.contains("never written"),
        "{refused:#?}"
    );
    assert!(says(refused, "times, first at 2026-11-20T23:29:18.128Z"), "{refused:#?}");
    assert!(refused.mitigation.immediate.contains("credentials"), "{refused:#?}");
    assert!(report.summary.starts_with("broken"), "{}", report.summary);
}

#[test]
fn a_kernel_without_ipvs_is_the_cause_and_not_the_missing_process() {
    let gathered = Gathered::new(&["incidents/ipvs-unsupported"]);
    gathered.write("node/kube-proxy.process.json", "{\"complete\": true}");
    let report = gathered.check();
    assert_eq!(name(&report.findings[0]), "C11", "{:#?}", report.findings);
    assert!(says(&report.findings[0], "Ipvs not supported"), "{:#?}", report.findings[0]);
    // Without kube-proxy's health the zone of its log is not known.
    assert!(says(&report.findings[0], "at Nov 20 23:28:36."), "{:#?}", report.findings[0]);
    assert!(report.findings.iter().all(|finding| finding.class != Class::C1), "{:#?}", report.findings);
}

#[test]
fn one_service_is_judged_alone_in_the_order_of_the_triage() {
    let gathered = Gathered::new(&["incidents/api-lost"]);
    let report = gathered.check_service("shop", "checkout");
    let order: Vec<String> =
        report.findings.iter().filter(|finding| finding.level == Level::Fault).map(name).collect();
    assert_eq!(order, ["C20 shop/checkout", "C2"], "{:#?}", report.findings);
    let report = gathered.check_service("shop", "payments");
    assert_eq!(faults(&report), ["C2"]);
}

#[test]
fn missing_files_are_named_and_never_count_as_healthy() {
    let gathered = Gathered::new(&["kube-proxy/worker-2/nftables"]);
    let whole = gathered.check();
    assert!(whole.gaps.iter().any(|gap| gap.contains("sysctl -a")), "{:?}", whole.gaps);
    gathered.remove("node/nft-ruleset.json");
    gathered.remove("node/nft-ruleset.txt");
    gathered.remove("cluster/services.json");
    let less = gathered.check();
    assert_eq!(less.state, State::Unknown, "{less:#?}");
    assert!(
        less.summary.contains("the Services") && less.summary.contains("the node's rules"),
        "{}",
        less.summary
    );
    for file in ["kubectl get services", "nft list ruleset"] {
        assert!(less.gaps.iter().any(|gap| gap.contains(file)), "{file}: {:?}", less.gaps);
    }
}
