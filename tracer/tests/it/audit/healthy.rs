//! A healthy kube-proxy's rules match the API: in each mode, node, family and version.

use viptrace::{
    diagnosis::audit::{Expectation, Expected, ExpectedPort},
    node::ProxyMode,
    rules::{Origin, Ruleset},
};

use super::captures::{IpvsCapture, audit_of, both, cluster, context, iptables_of, lines, nftables_of, read};

fn is_clean(name: &str, dir: &str, node: &str, mode: ProxyMode, rules: &Ruleset) {
    let history = cluster(dir);
    let audit = audit_of(&history, rules, &context(node, mode));
    assert!(audit.checked.frontends >= 8, "{name}: {:?}", audit.checked);
    assert_eq!(lines(&audit), "", "{name}");
    assert_eq!(rules.skipped, 0, "{name}: {:?}", rules.oddities);
}

#[test]
fn iptables() {
    for node in ["worker-1", "worker-2"] {
        let dir = format!("kube-proxy/{node}/iptables");
        let v4 = read(&format!("{dir}/iptables-save.txt"));
        is_clean(&dir, "cluster", node, ProxyMode::Iptables, &iptables_of(&v4));
        let v6 = read(&format!("{dir}/ip6tables-save.txt"));
        is_clean(&dir, "cluster", node, ProxyMode::Iptables, &both(&v4, &v6));
    }
}

#[test]
fn nftables() {
    for node in ["worker-1", "worker-2"] {
        for file in ["nft-ruleset.json", "nft-ruleset.txt"] {
            let name = format!("kube-proxy/{node}/nftables/{file}");
            is_clean(&name, "cluster", node, ProxyMode::Nftables, &nftables_of(&read(&name)));
        }
    }
}

#[test]
fn ipvs() {
    let mut capture = IpvsCapture::worker_1();
    is_clean("ipvsadm -Sn", "cluster", "worker-1", ProxyMode::Ipvs, &capture.rules());
    capture.servers = read("kube-proxy/worker-1/ipvs/ipvsadm-list.txt");
    is_clean("ipvsadm -Ln", "cluster", "worker-1", ProxyMode::Ipvs, &capture.rules());
}

#[test]
fn dual_stack_and_newer() {
    for version in ["dualstack/kube-proxy", "kube-proxy-v1.36"] {
        let dir = format!("{version}/worker-1/iptables");
        let rules =
            both(&read(&format!("{dir}/iptables-save.txt")), &read(&format!("{dir}/ip6tables-save.txt")));
        is_clean(&dir, "dualstack/cluster", "worker-1", ProxyMode::Iptables, &rules);
        for file in ["nft-ruleset.json", "nft-ruleset.txt"] {
            let name = format!("{version}/worker-1/nftables/{file}");
            is_clean(&name, "dualstack/cluster", "worker-1", ProxyMode::Nftables, &nftables_of(&read(&name)));
        }
    }
}

#[test]
fn addresses_unreachable_by_design_are_expected() {
    let history = cluster("cluster");
    let context = context("worker-1", ProxyMode::Iptables);
    let expected = Expected::new(&history, &context);
    let from_outside = |port: &ExpectedPort, via| {
        port.expectation(via, Origin::Outside, Origin::Outside, ProxyMode::Iptables)
    };
    let unreachable = expected.ports.iter().flat_map(|port| {
        let known = port.frontends.iter().map(|known| (known.frontend, from_outside(port, known.via)));
        let closed =
            known.filter(|(_, wanted)| matches!(wanted, Expectation::Refused | Expectation::Dropped));
        closed
            .map(|(frontend, wanted)| format!("{wanted:?} {} {frontend}", port.service.key))
            .collect::<Vec<_>>()
    });
    assert_eq!(
        unreachable.collect::<Vec<_>>(),
        [
            "Refused default/kubernetes 10.96.0.1:443/TCP",
            "Dropped shop/cache 10.96.10.60:6379/TCP",
            "Refused shop/checkout 10.96.10.20:80/TCP",
            "Dropped shop/frontend node port 30080/TCP",
            "Refused shop/slow 10.96.10.25:80/TCP",
        ]
    );
}

#[test]
fn rules_of_another_node_differ() {
    let history = cluster("cluster");
    let rules = iptables_of(&read("kube-proxy/worker-2/iptables/iptables-save.txt"));
    let audit = audit_of(&history, &rules, &context("worker-1", ProxyMode::Iptables));
    let services = audit.discrepancies.iter().filter_map(|d| d.service.as_deref()).collect::<Vec<_>>();
    assert!(services.contains(&"shop/cache") && services.contains(&"shop/frontend"), "{}", lines(&audit));
}
