//! The same fact in another mode or release has another meaning.
use serde_json::Value;
use viptrace::{class::Class, diagnosis::triage::Level};

use crate::{
    check_faults::{besides, node},
    check_neighbours::edit_items,
    check_support::{Gathered, only},
};

#[test]
fn an_internal_policy_without_local_endpoint_refuses_in_ipvs_mode_or_has_no_effect() {
    let inside = Gathered::new(&["kube-proxy/worker-1/ipvs"]);
    let report = inside.check();
    let refused = only(&report, Class::C22);
    assert_eq!(refused.level, Level::Warning, "{refused:#?}");
    assert!(refused.root_cause.contains("are refused"), "{refused:#?}");

    let with_external = |ip: &str| {
        let outside = Gathered::new(&["kube-proxy/worker-1/ipvs"]);
        edit_items(&outside, "services", |service| {
            if service["metadata"]["name"] == "cache" {
                service["spec"]["externalIPs"] = serde_json::json!([ip]);
            }
        });
        outside.check()
    };
    // An external address of the other family opens no port of this one.
    let report = with_external("2001:db8::7");
    let refused = report.findings.iter().find(|finding| finding.class == Class::C22).unwrap();
    assert!(refused.root_cause.contains("are refused"), "{refused:#?}");
    let report = with_external("198.51.100.7");
    let ignored = report.findings.iter().find(|finding| finding.class == Class::C22).unwrap();
    assert_eq!(ignored.level, Level::Warning, "{ignored:#?}");
    assert!(ignored.root_cause.contains("go to other nodes"), "{ignored:#?}");
}

#[test]
fn an_unhealthy_answer_for_a_node_that_is_being_removed_is_no_fault() {
    let unhealthy = |body: &str, livez: Option<&str>| {
        let node = node();
        node.write(
            "node/healthz.txt",
            &format!("{{\"currentTime\": \"2026-11-20 23:25:05.7 +0000 UTC m=+7.9\"{body}}}\n503"),
        );
        node.remove("node/livez.txt");
        if let Some(status) = livez {
            node.write("node/livez.txt", &format!("{{}}\n{status}"));
        }
        node.check()
    };
    for (body, livez) in
        [(", \"nodeEligible\": false", None), (", \"nodeEligible\": false", Some("200")), ("", Some("200"))]
    {
        let report = unhealthy(body, livez);
        assert_eq!(only(&report, Class::N15).level, Level::Note, "{body}: {:#?}", report.findings);
        assert_eq!(besides(&report), [""; 0], "{body}");
    }
    for (body, livez) in
        [(", \"nodeEligible\": true", Some("503")), ("", None), (", \"nodeEligible\": false", Some("503"))]
    {
        let report = unhealthy(body, livez);
        assert_eq!(besides(&report), ["C4"], "{body}: {:#?}", report.findings);
    }
}

const EMPTY_TABLE: &str = "table ip kube-proxy {\n}\n";
const FULL_TABLE: &str = "table ip kube-proxy {\n\tchain nat-prerouting {\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t\tip daddr 10.96.10.10 tcp dport 80 dnat to 10.244.1.11:8080\n\t}\n}\n";

#[test]
fn leftovers_are_rules_of_kube_proxy_that_do_something() {
    let with = |table: &str, servers: &str| {
        let node = node();
        node.remove("node/nft-ruleset.json");
        node.write("node/nft-ruleset.txt", table);
        node.write("node/ipvsadm-save.txt", servers);
        node.check()
    };
    let found = |report: &viptrace::diagnosis::triage::CheckReport| {
        report.findings.iter().any(|finding| finding.class == Class::C10 && finding.level == Level::Fault)
    };
    let keepalived = "-A -t 192.0.2.250:443 -s wrr\n-a -t 192.0.2.250:443 -r 192.0.2.60:443 -m -w 1\n";
    let report = with(EMPTY_TABLE, keepalived);
    assert!(!found(&report), "{:#?}", report.findings);
    let report = with(FULL_TABLE, "");
    assert!(found(&report), "{:#?}", report.findings);
    let service = "-A -t 10.96.10.10:80 -s rr\n-a -t 10.96.10.10:80 -r 10.244.1.11:8080 -m -w 1\n";
    let report = with(EMPTY_TABLE, service);
    assert!(found(&report), "{:#?}", report.findings);
}

#[test]
fn the_release_of_the_node_decides_how_old_it_may_be() {
    for (kubelet, server, skewed) in [("v1.25.3", "v1.28.1", false), ("v1.24.9", "v1.27.1", true)] {
        let node = node();
        node.write("cluster/version.json", &format!("{{\"gitVersion\": \"{server}\"}}"));
        edit_items(&node, "nodes", |node| {
            node["status"]["nodeInfo"]["kubeletVersion"] = Value::from(kubelet);
        });
        let report = node.check();
        let found = report.findings.iter().any(|finding| {
            finding.class == Class::C9
                && finding.root_cause.contains("kubelet")
                && !finding.root_cause.contains("newer")
        });
        assert_eq!(found, skewed, "{kubelet} at {server}: {:#?}", report.findings);
    }
}

#[test]
fn hints_are_a_note_for_the_service_that_was_asked_about() {
    let node = node();
    edit_items(&node, "endpointslices", |slice| {
        if slice["metadata"]["labels"]["kubernetes.io/service-name"] == "payments" {
            for endpoint in slice["endpoints"].as_array_mut().unwrap() {
                let zone = if endpoint["nodeName"] == "worker-1" { "zone-a" } else { "zone-b" };
                endpoint["hints"] = serde_json::json!({"forZones": [{"name": zone}]});
            }
        }
    });
    let asked = node.check_service("shop", "payments");
    let hinted = only(&asked, Class::C25);
    assert_eq!(hinted.level, Level::Note, "{hinted:#?}");
    assert!(hinted.root_cause.contains("1 of the 2 ready endpoints"), "{hinted:#?}");
    assert!(node.check().findings.iter().all(|finding| finding.class != Class::C25));
    let other = node.check_service("shop", "cart");
    assert!(other.findings.iter().all(|finding| finding.class != Class::C25));
}
