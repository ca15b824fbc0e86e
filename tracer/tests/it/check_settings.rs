//! Settings of the kernel and of interfaces that do not fit together, and those that do.
use serde_json::{Value, json};
use viptrace::{
    class::Class,
    diagnosis::triage::{CheckReport, Level},
};

use crate::{
    check_faults::{besides, node},
    check_support::{Gathered, named, only},
};

/// A node with an uplink, a tunnel and a Pod's link, whose routes were not read.
fn with_links(uplink: u64, tunnel: (&str, &str, u64), pod: (&str, u64)) -> CheckReport {
    with_routes(uplink, tunnel, pod, None)
}

fn with_routes(
    uplink: u64,
    tunnel: (&str, &str, u64),
    pod: (&str, u64),
    routes: Option<&str>,
) -> CheckReport {
    let (name, kind, mtu) = tunnel;
    let links: Value = json!([
        {"ifname": "eth0", "mtu": uplink, "flags": ["UP"],
         "addr_info": [{"family": "inet", "local": "192.0.2.11", "prefixlen": 24}]},
        {"ifname": name, "mtu": mtu, "flags": ["UP"], "linkinfo": {"info_kind": kind},
         "addr_info": [{"family": "inet", "local": "10.244.1.0", "prefixlen": 32}]},
        {"ifname": pod.0, "mtu": pod.1, "flags": ["UP"], "linkinfo": {"info_kind": "veth"}, "addr_info": []},
        {"ifname": "docker0", "mtu": 1500, "flags": ["UP"], "linkinfo": {"info_kind": "bridge"}, "addr_info": []},
        {"ifname": "vethdocker", "mtu": 1500, "flags": ["UP"], "master": "docker0", "linkinfo": {"info_kind": "veth"}, "addr_info": []},
    ]);
    let node = node();
    node.write("node/ip-addr.json", &links.to_string());
    if let Some(routes) = routes {
        node.write("node/ip-route.txt", routes);
    }
    node.check()
}

/// The Pods of worker-2 have 10.244.2.0/24.
#[test]
fn a_tunnel_counts_if_packets_to_pods_of_other_nodes_take_it() {
    let to = |pods: &str| format!("default via 192.0.2.1 dev eth0\n172.16.0.0/24 dev wg0\n{pods}\n");
    let beside = to("10.244.2.0/24 via 192.0.2.12 dev eth0");
    let through = to("10.244.2.0/24 dev wg0 scope link");
    let larger_pods = ("cali1", 1500);
    let vpn = ("wg0", "wireguard", 1420);
    for (tunnel, routes, warns) in [
        (vpn, Some(beside.as_str()), false),
        (vpn, None, false),
        (vpn, Some(&through), true),
        (("wg0", "vxlan", 1420), Some(&beside), false),
        (("wg0", "vxlan", 1420), None, true),
        (("wireguard.cali", "wireguard", 1440), Some(&beside), true),
    ] {
        let report = with_routes(1500, tunnel, larger_pods, routes);
        let has = report.findings.iter().any(|finding| finding.class == Class::C33);
        assert_eq!(has, warns, "{tunnel:?} {routes:?} {:#?}", report.findings);
    }
}

#[test]
fn mtus_that_fit_are_no_finding() {
    for (uplink, tunnel, pod) in [
        (1500, ("flannel.1", "vxlan", 1450), ("veth1", 1450)),
        (1500, ("tunl0", "ipip", 1480), ("cali1", 1480)),
        (1500, ("wireguard.cali", "wireguard", 1440), ("cali1", 1440)),
        (9001, ("flannel.1", "vxlan", 8951), ("veth1", 8951)),
        // These devices do not have the real MTU.
        (1500, ("cilium_vxlan", "vxlan", 1500), ("lxc1", 1500)),
        (1500, ("genev_sys_6081", "geneve", 65000), ("veth1", 1450)),
    ] {
        let report = with_links(uplink, tunnel, pod);
        assert!(
            report.findings.iter().all(|finding| finding.class != Class::C33),
            "{tunnel:?} {:#?}",
            report.findings
        );
    }
}

#[test]
fn a_tunnel_that_does_not_fit_and_larger_pods_are_warnings() {
    let report = with_links(1500, ("flannel.1", "vxlan", 1500), ("veth1", 1450));
    let found = only(&report, Class::C33);
    assert_eq!(found.level, Level::Warning, "{found:#?}");
    assert!(found.root_cause.starts_with("mtu — ") && found.root_cause.contains("1500 + 50"), "{found:#?}");
    let report = with_links(1500, ("flannel.1", "vxlan", 1450), ("veth1", 1500));
    let found = only(&report, Class::C33);
    assert!(found.root_cause.contains("links of Pods have MTU 1500"), "{found:#?}");
}

/// The node in ipvs mode with these settings added.
fn in_ipvs_mode(settings: &str) -> CheckReport {
    let node = Gathered::new(&["kube-proxy/worker-1/ipvs"]);
    node.edit("node/sysctl.txt", |text| {
        let kept =
            text.lines().filter(|line| !line.contains("conn_reuse_mode") && !line.contains("osrelease"));
        kept.collect::<Vec<_>>().join("\n") + "\n" + settings
    });
    node.check()
}

#[test]
fn the_reuse_of_ports_is_judged_by_the_kernel() {
    for (mode, kernel, warns) in [
        (1, "5.4.0-150-generic", true),
        (0, "5.4.0-150-generic", false),
        (1, "6.1.0-18-amd64", false),
        (0, "6.1.0-18-amd64", true),
    ] {
        let report =
            in_ipvs_mode(&format!("net.ipv4.vs.conn_reuse_mode = {mode}\nkernel.osrelease = {kernel}\n"));
        assert_eq!(named(&report).contains(&"C14".to_owned()), warns, "{mode} on {kernel}");
    }
}

#[test]
fn the_idle_timeout_of_ipvs_is_a_note() {
    let node = Gathered::new(&["kube-proxy/worker-1/ipvs"]);
    let report = node.check();
    assert_eq!(only(&report, Class::C15).level, Level::Note);
    node.edit("node/config.yaml", |text| text.replace("mode: ", "ipvs: {tcpTimeout: 24h0m0s}\nmode: "));
    assert!(node.check().findings.iter().all(|finding| finding.class != Class::C15));
}

#[test]
fn both_backends_of_iptables_are_as_healthy() {
    for name in ["iptables-legacy-save.txt", "iptables-nft-save.txt"] {
        let node = node();
        let rules = std::fs::read_to_string(node.path().join("node/iptables-save.txt")).unwrap();
        node.remove("node/iptables-save.txt");
        node.write(&format!("node/{name}"), &rules);
        let report = node.check();
        assert_eq!(besides(&report), [""; 0], "{name}: {:#?}", report.findings);
    }
}

/// kube-proxy leaves its rule against invalid packets out where conntrack accepts them.
#[test]
fn a_missing_rule_against_invalid_packets_is_a_fault_only_if_the_setting_is_known() {
    let without_rule = |sysctl: Option<u8>| {
        let node = Gathered::new(&["kube-proxy/worker-1/iptables"]);
        for list in ["node/iptables-save.txt", "node/ip6tables-save.txt"] {
            node.edit(list, |text| {
                let kept: Vec<&str> =
                    text.lines().filter(|line| !line.contains("--ctstate INVALID")).collect();
                kept.join("\n") + "\n"
            });
        }
        if let Some(value) = sysctl {
            node.write("node/sysctl.txt", &format!("net.netfilter.nf_conntrack_tcp_be_liberal = {value}\n"));
        }
        node.check().findings.iter().any(|finding| finding.class == Class::C18)
    };
    assert!(without_rule(Some(0)));
    assert!(!without_rule(Some(1)));
    assert!(!without_rule(None));
}
