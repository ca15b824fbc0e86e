//! Ordinary clusters: other programs' rules beside kube-proxy's and Services that are switched off raise no fault, and
//! the faults that look like them are found.
use serde_json::Value;
use viptrace::{
    class::Class,
    diagnosis::triage::{FindingRecord, Level},
};

use crate::{
    check_faults::{besides, node},
    check_support::{Gathered, name},
};

/// kube-router's network policies as k3s writes them, CRI-O's host ports, Calico, Flannel, portmap and Docker, at the
/// start of the base chains.
fn beside(text: &str) -> String {
    let nat = ":KUBE-HOSTPORTS - [0:0]\n:KUBE-HP-3PGXU2N5ESM3PZEV - [0:0]\n:CNI-HOSTPORT-DNAT - [0:0]\n\
        :cali-PREROUTING - [0:0]\n:DOCKER - [0:0]\n:FLANNEL-POSTRTG - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n\
        -A PREROUTING -m comment --comment \"cali:6gwbT8clXdHdC1b1\" -j cali-PREROUTING\n\
        -A PREROUTING -m comment --comment \"kube hostport portals\" -m addrtype --dst-type LOCAL -j KUBE-HOSTPORTS\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n\
        -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n\
        -A KUBE-HOSTPORTS -p tcp -m tcp --dport 30080 -j KUBE-HP-3PGXU2N5ESM3PZEV\n\
        -A KUBE-HP-3PGXU2N5ESM3PZEV -p tcp -m tcp -j DNAT --to-destination 10.244.1.99:80\n\
        -A POSTROUTING -m comment --comment \"flanneld masq\" -j FLANNEL-POSTRTG\n";
    let filter = ":KUBE-ROUTER-INPUT - [0:0]\n:KUBE-ROUTER-FORWARD - [0:0]\n:KUBE-ROUTER-OUTPUT - [0:0]\n\
        :KUBE-POD-FW-4T2XYZUJHNSYVFOA - [0:0]\n:KUBE-NWPLCY-3PGXU2N5ESM3PZEV - [0:0]\n\
        :KUBE-NWPLCY-DEFAULT - [0:0]\n:FLANNEL-FWD - [0:0]\n:KUBE-KUBELET-CANARY - [0:0]\n\
        -A INPUT -m comment --comment \"kube-router netpol - 4IA2OSFRMVNDXBVV\" -j KUBE-ROUTER-INPUT\n\
        -A FORWARD -m comment --comment \"kube-router netpol - TEMCG2JMHZYE7H7T\" -j KUBE-ROUTER-FORWARD\n\
        -A FORWARD -m comment --comment \"flanneld forward\" -j FLANNEL-FWD\n\
        -A OUTPUT -m comment --comment \"kube-router netpol - VEAAIY32XVBHCSCY\" -j KUBE-ROUTER-OUTPUT\n\
        -A KUBE-ROUTER-FORWARD -m comment --comment \"rule to jump traffic to POD name:web\" -j KUBE-POD-FW-4T2XYZUJHNSYVFOA\n\
        -A KUBE-ROUTER-OUTPUT -m comment --comment \"rule to jump traffic from POD name:web\" -j KUBE-POD-FW-4T2XYZUJHNSYVFOA\n\
        -A KUBE-POD-FW-4T2XYZUJHNSYVFOA -j KUBE-NWPLCY-3PGXU2N5ESM3PZEV\n\
        -A KUBE-POD-FW-4T2XYZUJHNSYVFOA -m comment --comment \"rule to REJECT traffic destined for POD name:web\" -j REJECT --reject-with icmp-port-unreachable\n";
    let mut out = String::new();
    for line in text.lines() {
        out += line;
        out.push('\n');
        match line {
            "*nat" => out += nat,
            "*filter" => out += filter,
            _ => {}
        }
    }
    out
}

#[test]
fn chains_of_other_programs_are_not_taken_for_kube_proxys() {
    let node = node();
    node.edit("node/iptables-save.txt", |text| beside(&text));
    let report = node.check();
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
}

#[test]
fn a_missing_rule_of_kube_proxy_is_found_beside_them() {
    let node = node();
    node.edit("node/iptables-save.txt", |text| {
        let lines = text.lines().filter(|line| !line.contains("-A KUBE-SERVICES -d 10.96.10.10/32"));
        beside(&lines.collect::<Vec<_>>().join("\n"))
    });
    let report = node.check();
    let found = report.findings.iter().find(|finding| name(finding).ends_with("shop/cart"));
    assert!(found.is_some_and(|found| found.level == Level::Fault), "{:#?}", report.findings);
}

/// Changes each object of a list of the cluster.
pub(crate) fn edit_items(node: &Gathered, list: &str, change: impl Fn(&mut Value)) {
    node.edit(&format!("cluster/{list}.json"), |text| {
        let mut value: Value = serde_json::from_str(&text).unwrap();
        value["items"].as_array_mut().unwrap().iter_mut().for_each(&change);
        value.to_string()
    });
}

/// shop/cart without endpoints, as after `kubectl scale --replicas=0`.
fn without_endpoints(node: &Gathered, generation: &Value) {
    edit_items(node, "endpointslices", |slice| {
        if slice["metadata"]["labels"]["kubernetes.io/service-name"] == "cart" {
            slice["endpoints"] = Value::Null;
            slice["metadata"]["generation"] = generation.clone();
        }
    });
}

fn without_pods(node: &Gathered) {
    edit_items(node, "pods", |pod| {
        if pod["metadata"]["labels"]["app"] == "cart" {
            pod["metadata"]["labels"]["app"] = "another-workload".into();
        }
    });
}

/// The findings about the endpoints of shop/cart.
fn of_cart(node: &Gathered) -> Vec<FindingRecord> {
    let endpoints = |finding: &FindingRecord| {
        name(finding).ends_with("shop/cart") && [Class::C20, Class::N19].contains(&finding.class)
    };
    let found = node.check().findings.into_iter().filter(endpoints);
    found.filter(|finding| !finding.root_cause.contains("KUBE-")).collect()
}

#[test]
fn a_service_that_is_switched_off_is_a_note() {
    for generation in [Value::from(4), Value::Null] {
        let node = node();
        without_endpoints(&node, &generation);
        without_pods(&node);
        let found = of_cart(&node);
        let [off] = found.as_slice() else { panic!("{found:#?}") };
        assert_eq!((off.class, off.level), (Class::N19, Level::Note), "{off:#?}");
        assert!(off.unseen.iter().any(|what| what.contains("replicas")), "{off:#?}");
    }
}

#[test]
fn a_service_without_endpoints_that_is_not_switched_off_is_a_fault() {
    let is_fault = |node: &Gathered, text: &str| {
        let found = of_cart(node);
        let [broken] = found.as_slice() else { panic!("{found:#?}") };
        assert_eq!((broken.class, broken.level), (Class::C20, Level::Fault), "{broken:#?}");
        assert!(format!("{broken:?}").contains(text), "{broken:#?}");
    };
    // It never had an endpoint.
    let never = node();
    without_endpoints(&never, &Value::from(1));
    without_pods(&never);
    is_fault(&never, "its selector app=cart matches no Pod");
    // Its Pods exist, and the selector misses them by a letter.
    let slip = node();
    without_endpoints(&slip, &Value::from(4));
    edit_items(&slip, "services", |service| {
        if service["metadata"]["name"] == "cart" {
            service["spec"]["selector"]["app"] = "carrt".into();
        }
    });
    is_fault(&slip, "Pod shop/cart-1 has app=cart and belongs to no Service");
    // Its Pods are not ready.
    let unready = node();
    without_endpoints(&unready, &Value::from(4));
    edit_items(&unready, "pods", |pod| {
        if pod["metadata"]["labels"]["app"] == "cart" {
            for condition in pod["status"]["conditions"].as_array_mut().unwrap() {
                condition["status"] = "False".into();
            }
        }
    });
    is_fault(&unready, "shop/cart-1 (not ready)");
}
