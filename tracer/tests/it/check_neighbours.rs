//! Ordinary clusters: other programs' rules beside kube-proxy's and Services that are switched off raise no fault, and
//! the faults that look like them are found.
use serde_json::{Value, json};
use viptrace::{
    class::{Class, Confidence, Severity},
    diagnosis::triage::{FindingRecord, Level},
};

use crate::{
    check_faults::{besides, node},
    check_support::{Gathered, name, only},
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

/// k3s and RKE2 mark the members of their etcd, and EKS' node monitoring agent every area in which it finds no problem.
#[test]
fn a_condition_that_is_true_on_a_healthy_node_is_no_pressure() {
    let with = |names: &[&str]| {
        let node = node();
        edit_items(&node, "nodes", |node| {
            let conditions = node["status"]["conditions"].as_array_mut().unwrap();
            conditions.extend(names.iter().map(|name| json!({"type": name, "status": "True"})));
        });
        node.check()
    };
    let healthy = ["EtcdIsVoter", "KernelReady", "NetworkingReady", "StorageReady", "ContainerRuntimeReady"];
    let report = with(&healthy);
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
    for trouble in ["PIDPressure", "KernelDeadlock"] {
        let report = with(&["EtcdIsVoter", trouble]);
        let found = only(&report, Class::K10);
        assert!(found.root_cause.ends_with(&format!("is under pressure: {trouble}")), "{found:#?}");
    }
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

/// A placeholder, or a workload that starts at zero replicas: nothing shows that a client uses it.
#[test]
fn a_service_that_never_had_an_endpoint_is_a_warning_until_somebody_asks_about_it() {
    let never = |generation: u64| {
        let node = node();
        without_endpoints(&node, &Value::from(generation));
        without_pods(&node);
        node
    };
    let found = of_cart(&never(1));
    let [warning] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((warning.class, warning.level), (Class::C20, Level::Warning), "{warning:#?}");
    assert_eq!(warning.confidence, Confidence::Medium);
    assert!(warning.root_cause.contains("its selector app=cart matches no Pod"), "{warning:#?}");
    assert!(warning.unseen.iter().any(|fact| fact.starts_with("whether any client")), "{warning:#?}");
    let asked = never(1).check_service("shop", "cart");
    assert_eq!(only(&asked, Class::C20).level, Level::Fault, "{:#?}", asked.findings);
    // The same of a Service without a selector. That of the API server is no placeholder.
    let manual = |service: &str| {
        let node = never(1);
        edit_items(&node, "services", |object| {
            if object["metadata"]["name"] == "cart" {
                object["spec"]["selector"] = Value::Null;
            }
        });
        let found = node.check().findings.into_iter();
        let mut found = found.filter(|it| it.class == Class::C20 && name(it).ends_with(service));
        found.next().map(|finding| finding.level)
    };
    assert_eq!(manual("shop/cart"), Some(Level::Warning));
    assert_eq!(manual("default/kubernetes"), Some(Level::Fault));
}

/// Another proxy than those that viptrace knows: its cluster has no kube-proxy at all.
#[test]
fn without_any_kube_proxy_in_the_cluster_its_absence_is_less_certain() {
    let node = without_process("{\"complete\": true}");
    node.write("node/iptables-save.txt", NO_RULES);
    node.write("node/ip6tables-save.txt", NO_RULES);
    node.remove("node/nft-ruleset.json");
    node.remove("node/nft-ruleset.txt");
    let absent = |node: &Gathered| {
        let report = node.check();
        let found = only(&report, Class::C1);
        (found.level, found.severity, found.confidence)
    };
    assert_eq!(absent(&node), (Level::Fault, Severity::Critical, Confidence::High));
    without_kube_proxy(&node);
    assert_eq!(absent(&node), (Level::Fault, Severity::High, Confidence::Medium));
}

/// A cluster that runs no kube-proxy: no `DaemonSet` that wants one, and no Pod.
pub(crate) fn without_kube_proxy(node: &Gathered) {
    edit_items(node, "daemonsets", |set| set["status"]["desiredNumberScheduled"] = 0.into());
    node.edit("cluster/pods.json", |text| {
        let mut list: Value = serde_json::from_str(&text).unwrap();
        let pods = list["items"].as_array_mut().unwrap();
        pods.retain(|pod| pod["metadata"]["labels"]["k8s-app"] != "kube-proxy");
        list.to_string()
    });
}

/// A node on which no kube-proxy runs or answers.
fn without_process(process: &str) -> Gathered {
    let node = Gathered::new(&["kube-proxy/worker-1/iptables"]);
    for file in ["proxyMode.txt", "metrics.txt", "healthz.txt", "livez.txt", "kube-proxy.log"] {
        node.remove(&format!("node/{file}"));
    }
    node.write("node/kube-proxy.process.json", process);
    node
}

const CILIUM: &str = "[{\"ifname\": \"cilium_host\"}, {\"ifname\": \"eth0\"}]";
const NO_RULES: &str = "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n";

#[test]
fn leftovers_of_kube_proxy_beside_its_replacement_are_a_warning() {
    let node = without_process("{\"complete\": true}");
    node.write("node/ip-addr.json", CILIUM);
    without_kube_proxy(&node);
    let report = node.check();
    assert_eq!(besides(&report), ["C10"], "{:#?}", report.findings);
    let k1 = only(&report, Class::K1);
    assert_eq!(k1.level, Level::Note, "{k1:#?}");
}

#[test]
fn the_virtual_servers_of_kube_router_are_not_kube_proxys() {
    let with = |device: &str| {
        let node = without_process("{\"complete\": true}");
        without_kube_proxy(&node);
        for file in ["config.yaml", "nft-ruleset.json", "nft-ruleset.txt"] {
            node.remove(&format!("node/{file}"));
        }
        node.write("node/iptables-save.txt", NO_RULES);
        node.write("node/ip6tables-save.txt", NO_RULES);
        node.write("node/ip-addr.json", &format!("[{{\"ifname\": \"eth0\"}}{device}]"));
        let servers = "-A -t 10.96.10.10:80 -s rr\n-a -t 10.96.10.10:80 -r 10.244.1.11:8080 -m -w 1\n";
        node.write("node/ipvsadm-save.txt", servers);
        node
    };
    let of_kube_router = with(", {\"ifname\": \"kube-dummy-if\"}");
    let report = of_kube_router.check();
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
    assert!(only(&report, Class::K1).root_cause.contains("kube-router"), "{:#?}", report.findings);
    // Without the process list too, which a folder of a must-gather lacks.
    of_kube_router.remove("node/kube-proxy.process.json");
    let report = of_kube_router.check();
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
    // The servers of kube-proxy that remain beside kube-router.
    let left = with(", {\"ifname\": \"kube-dummy-if\"}, {\"ifname\": \"kube-ipvs0\"}").check();
    assert!(besides(&left).contains(&"C10".to_owned()), "{:#?}", left.findings);
}

#[test]
fn a_dead_kube_proxy_beside_a_cni_is_a_fault() {
    let node = without_process("{\"complete\": true}");
    node.write("node/ip-addr.json", CILIUM);
    for rules in [None, Some(NO_RULES)] {
        if let Some(rules) = rules {
            node.write("node/iptables-save.txt", rules);
            node.write("node/ip6tables-save.txt", rules);
        }
        let report = node.check();
        assert_eq!(only(&report, Class::C1).level, Level::Fault, "{:#?}", report.findings);
    }
}

#[test]
fn a_namespace_without_kube_proxy_is_not_a_broken_node() {
    // kind: the host's namespace, and kube-proxy in the containers that are the nodes.
    let host = without_process("{\"complete\": true, \"elsewhere\": 4711}");
    host.write("node/iptables-save.txt", NO_RULES);
    host.write("node/ip6tables-save.txt", NO_RULES);
    host.remove("node/nft-ruleset.json");
    host.remove("node/nft-ruleset.txt");
    let report = host.check();
    assert!(report.findings.iter().all(|finding| finding.class != Class::C1), "{:#?}", report.findings);
    assert!(
        report.gaps.iter().any(|gap| gap.contains("another network namespace, as process 4711")),
        "{:?}",
        report.gaps
    );
    // The same without any kube-proxy on the machine.
    host.write("node/kube-proxy.process.json", "{\"complete\": true}");
    let report = host.check();
    assert_eq!(only(&report, Class::C1).level, Level::Fault, "{:#?}", report.findings);
}

#[test]
fn a_distribution_that_contains_kube_proxy_is_judged_by_its_answers() {
    // k3s with --disable-kube-proxy and Cilium: it is no dead kube-proxy.
    let node = without_process("{\"complete\": true, \"program\": \"k3s-server\"}");
    node.write("node/ip-addr.json", CILIUM);
    node.write("node/iptables-save.txt", NO_RULES);
    node.write("node/ip6tables-save.txt", NO_RULES);
    without_kube_proxy(&node);
    let report = node.check();
    assert_eq!(besides(&report), [""; 0], "{:#?}", report.findings);
    assert_eq!(only(&report, Class::K1).level, Level::Note);
    // The same k3s with its own kube-proxy, which answers, and without rules.
    node.write("node/proxyMode.txt", "iptables");
    let report = node.check();
    assert_eq!(only(&report, Class::C1).level, Level::Fault, "{:#?}", report.findings);
}

#[test]
fn without_the_pods_a_service_without_endpoints_is_less_certain() {
    let node = node();
    without_endpoints(&node, &Value::from(4));
    node.remove("cluster/pods.json");
    let found = of_cart(&node);
    let [unclear] = found.as_slice() else { panic!("{found:#?}") };
    assert_eq!((unclear.class, unclear.confidence), (Class::C20, Confidence::Medium), "{unclear:#?}");
    assert!(unclear.unseen.iter().any(|what| what.contains("the Pods")), "{unclear:#?}");
}

/// The name of shop/cart's endpoint that has no Pod, if it is found.
fn without_pod(node: &Gathered) -> Option<FindingRecord> {
    let is_it = |finding: &FindingRecord| name(finding) == "C29 shop/cart";
    let mut facts = node.facts();
    facts.taken = Some(viptrace::time::Timestamp::from_unix_secs(1_795_217_106));
    let report = viptrace::diagnosis::triage::triage(&facts, &viptrace::diagnosis::triage::Scope::default());
    report.findings.into_iter().find(is_it)
}

#[test]
fn an_endpoint_whose_pod_is_gone_is_found_unless_it_has_just_changed() {
    assert_eq!(without_pod(&node()), None);
    let gone = |changed: &str| {
        let node = node();
        node.edit("cluster/pods.json", |text| {
            let mut list: Value = serde_json::from_str(&text).unwrap();
            list["items"].as_array_mut().unwrap().retain(|pod| pod["metadata"]["name"] != "cart-1");
            list.to_string()
        });
        edit_items(&node, "endpointslices", |slice| {
            if slice["metadata"]["labels"]["kubernetes.io/service-name"] == "cart" {
                slice["metadata"]["managedFields"] = serde_json::json!([{"time": changed}]);
            }
        });
        node
    };
    let found = without_pod(&gone("2026-11-20T23:20:00Z")).unwrap();
    assert_eq!((found.level, found.confidence), (Level::Warning, Confidence::Medium), "{found:#?}");
    assert!(format!("{found:?}").contains("Pod shop/cart-1"), "{found:#?}");
    assert_eq!(without_pod(&gone("2026-11-20T23:25:00Z")), None, "a rollout");
    // An address that nothing but a slice lists belongs to a Service without a selector.
    let written = node();
    edit_items(&written, "services", |service| {
        if service["metadata"]["name"] == "cart" {
            service["spec"]["selector"] = Value::Null;
        }
    });
    edit_items(&written, "endpointslices", |slice| {
        if slice["metadata"]["labels"]["kubernetes.io/service-name"] == "cart" {
            for endpoint in slice["endpoints"].as_array_mut().unwrap() {
                endpoint["targetRef"] = Value::Null;
            }
        }
    });
    assert!(of_cart(&written).is_empty() && without_pod(&written).is_none());
}
