//! Cases of kube-proxy's own unit tests (v1.36): the objects and the configuration of a test, and the rules that
//! kube-proxy's code wrote for them, restored and listed with the real tools. `ipvsadm`'s list is converted.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use viptrace::{
    class::Class,
    diagnosis::triage::{CheckReport, Facts, FindingRecord, Level, Scope, triage},
    node::capture::{Capture, Kind, folder},
};

use super::captures::path;
use crate::check_support::{named, only};

/// One case: its name, and the faults and warnings that its objects have by design.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) by_design: &'static [&'static str],
}

const fn case(name: &'static str, by_design: &'static [&'static str]) -> Case {
    Case { name, by_design }
}

/// Cases whose rules are those that kube-proxy should write.
pub(super) const HEALTHY: [Case; 12] = [
    // TestClusterIPGeneral in ipvs mode: no Service has source ranges.
    case("B1", &[]),
    // TestLoadBalancer: the source ranges contain the node.
    case("B2-iptables", &[]),
    case("B2-nftables", &[]),
    // TestNodePortIPv6.
    case("B3-ipv6-only", &[]),
    // TestNoEndpointsReject.
    case("B3-no-endpoints", &["C20 ns1/svc1"]),
    // TestExternalTrafficPolicyLocal in ipvs mode with iptables.masqueradeAll.
    case("B4", &[]),
    // TestBadIPs: addresses with leading zeros.
    case("B5", &[]),
    // number_generated_rules_test.go: a load balancer's address that is also an external IP, with source ranges.
    case("B6-iptables", &[]),
    case("B6-nftables", &[]),
    // A source range inside the cluster CIDR, with externalTrafficPolicy: Local.
    case(
        "B7",
        &[
            "C20 a-rather-long-namespace-name-of-some-team/svc0",
            "C20 a-rather-long-namespace-name-of-some-team/svc4",
            "C20 shop/svc6",
            "C22 a-rather-long-namespace-name-of-some-team/svc4",
        ],
    ),
    // A source range around an endpoint.
    case(
        "B7-endpoints",
        &[
            "C20 default/svc1",
            "C20 default/svc10",
            "C20 default/svc11",
            "C20 default/svc11",
            "C20 shop/svc0",
            "C20 shop/svc2",
        ],
    ),
    // External and load balancer addresses of both families.
    case(
        "B8",
        &[
            "C20 a-rather-long-namespace-name-of-some-team/svc11",
            "C20 default/svc8",
            "C20 shop/svc10",
            "C21 default/svc3",
            "C22 a-rather-long-namespace-name-of-some-team/svc11",
            "C22 shop/svc9",
        ],
    ),
];

pub(super) fn capture(name: &str) -> Capture {
    let read = folder::read(&path("kube-proxy-suite").join(name), None).unwrap();
    assert!(read.warnings.is_empty(), "{name}: {:?}", read.warnings);
    read.capture
}

pub(super) fn check(capture: &Capture) -> CheckReport {
    triage(&Facts::read(capture), &Scope::default())
}

/// The capture with one text changed.
fn edited(mut capture: Capture, kind: Kind, change: impl FnOnce(&str) -> String) -> Capture {
    let artifact = capture.artifacts.iter_mut().find(|artifact| artifact.kind == kind).unwrap();
    let text = change(&artifact.text);
    assert_ne!(text, artifact.text, "the edit of {kind:?} changes nothing");
    artifact.text = text;
    capture
}

fn replaced(name: &str, kind: Kind, from: &str, to: &str) -> CheckReport {
    check(&edited(capture(name), kind, |text| text.replace(from, to)))
}

/// Without the lines that contain this text.
fn without(name: &str, kind: Kind, line: &str) -> CheckReport {
    let keep =
        |text: &str| text.lines().filter(|one| !one.contains(line)).collect::<Vec<_>>().join("\n") + "\n";
    check(&edited(capture(name), kind, keep))
}

fn lacks(name: &str, kind: Kind) -> CheckReport {
    let mut capture = capture(name);
    capture.artifacts.retain(|artifact| artifact.kind != kind);
    check(&capture)
}

fn unexpected<'r>(report: &'r CheckReport, by_design: &[&str]) -> Vec<&'r FindingRecord> {
    let new = |finding: &&FindingRecord| !by_design.contains(&crate::check_support::name(finding).as_str());
    report.findings.iter().filter(|finding| finding.level != Level::Note).filter(new).collect()
}

fn texts(report: &CheckReport) -> String {
    let lines = report.findings.iter().map(|finding| format!("{} {}", finding.class, finding.root_cause));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn rules_of_kube_proxy_are_right() {
    for Case { name, by_design } in &HEALTHY {
        let report = check(&capture(name));
        assert_eq!(named(&report), *by_design, "{name}: {:#?}", unexpected(&report, by_design));
        let skipped: Vec<_> = report.gaps.iter().filter(|gap| gap.contains("skipped")).collect();
        assert!(skipped.is_empty(), "{name}: {skipped:?}");
        let audited =
            report.gaps.iter().filter(|gap| gap.contains("rules against the API")).collect::<Vec<_>>();
        assert!(audited.is_empty(), "{name}: {audited:?}");
    }
}

/// B1: kube-proxy writes the jump to the source ranges only while a load balancer has some.
#[test]
fn a_jump_for_an_empty_set_is_not_missed_but_one_for_a_filled_set_is() {
    let jump = "--match-set KUBE-LOAD-BALANCER-FW dst,dst -j KUBE-SOURCE-RANGES-FIREWALL";
    let report = without("B8", Kind::IptablesSave, jump);
    let broken = only(&report, Class::C5e);
    assert!(broken.root_cause.contains("KUBE-LOAD-BALANCER-FW"), "{broken:#?}");
    let report = without("B8", Kind::IptablesSave, "KUBE-NODE-PORT-SCTP-HASH dst,dst -j KUBE-MARK-MASQ");
    assert!(texts(&report).contains("KUBE-NODE-PORT-SCTP-HASH"), "{}", texts(&report));
}

/// B2: the node's own load balancer addresses are admitted with the node, and only with it.
#[test]
fn a_load_balancer_admits_itself_where_the_ranges_contain_the_node() {
    let nodes = |text: &str| text.replace("192.168.0.2", "192.0.2.77");
    for name in ["B2-iptables", "B2-nftables"] {
        // The same rules on a node outside the ranges let in a source that they should not.
        let elsewhere = edited(capture(name), Kind::Nodes, nodes);
        let report = check(&edited(elsewhere, Kind::Interfaces, nodes));
        assert!(only(&report, Class::C23).root_cause.contains("1.2.3.4"), "{name}: {}", texts(&report));
    }
    // Up to 1.28 kube-proxy's own address can be the zero address, and the rule is missing (kubernetes/kubernetes#119524).
    let version = |release: &str| {
        let mut capture = capture("B2-iptables");
        let metrics = format!("kubernetes_build_info{{git_version=\"{release}\"}} 1\n");
        capture.put(Kind::ProxyMetrics, "metrics", metrics);
        check(&edited(capture, Kind::IptablesSave, |text| {
            let lines = text.lines().filter(|line| !line.contains("-s 1.2.3.4/32"));
            lines.collect::<Vec<_>>().join("\n") + "\n"
        }))
    };
    let report = version("v1.30.2");
    assert!(
        only(&report, Class::C23).root_cause.contains("load balancer's own address"),
        "{}",
        texts(&report)
    );
    let report = version("v1.28.9");
    assert!(report.findings.iter().all(|finding| finding.class != Class::C23), "{}", texts(&report));
}

/// B3: rules that only refuse are rules.
#[test]
fn rules_without_any_endpoint_are_not_absent() {
    let report = without("B3-no-endpoints", Kind::IptablesSave, "ns1/svc1");
    assert!(named(&report).contains(&"C1".to_owned()), "{}", texts(&report));
}

/// B4: `masqueradeAll` is set for ipvs mode in the section `iptables`.
#[test]
fn masquerade_all_of_ipvs_mode() {
    let report = replaced("B4", Kind::ProxyConfig, "masqueradeAll: true", "masqueradeAll: false");
    assert!(only(&report, Class::C5e).root_cause.contains("are masqueraded"), "{}", texts(&report));
}

/// B5: an address with leading zeros is the same address, and a missing rule for it is still found.
#[test]
fn addresses_with_leading_zeros_are_compared() {
    let capture =
        edited(capture("B5"), Kind::NftRulesetJson, |text| text.replace("192.168.99.22", "192.168.99.23"));
    let report = check(&capture);
    assert!(texts(&report).contains("not translated"), "{}", texts(&report));
}

/// B6: in nftables mode the source ranges count, although the address is an external IP too.
#[test]
fn source_ranges_of_an_address_in_two_roles() {
    let text = capture("B6-nftables").text(Kind::NftRulesetJson).unwrap().to_owned();
    let mut listing: Value = serde_json::from_str(&text).unwrap();
    for item in listing["nftables"].as_array_mut().unwrap() {
        if item["map"]["name"] == "firewall-ips" {
            item["map"].as_object_mut().unwrap().remove("elem");
        }
    }
    let report = check(&edited(capture("B6-nftables"), Kind::NftRulesetJson, |_| listing.to_string()));
    assert!(only(&report, Class::C23).root_cause.contains("no source range admits"), "{}", texts(&report));
    // In iptables mode every client gets in, by kube-proxy's own rules.
    let report = check(&capture("B6-iptables"));
    let note = only(&report, Class::C23);
    assert_eq!(note.level, Level::Note, "{note:#?}");
    assert!(note.root_cause.contains("keep no client from 1.2.3.4"), "{note:#?}");
}

/// B7: the rule that lets Pods through is not mistaken, and its loss is found.
#[test]
fn pods_pass_the_local_policy() {
    let report = replaced("B7", Kind::ProxyConfig, "10.0.0.0/8", "10.0.0.0/9");
    assert!(!unexpected(&report, HEALTHY[9].by_design).is_empty(), "{}", texts(&report));
}

/// B9: endpoints of the other family are not counted.
#[test]
fn only_endpoints_of_the_family_are_unready() {
    let report = check(&capture("B7"));
    let of = |finding: &&FindingRecord| finding.root_cause.contains("svc0 (IPv4)");
    let found = report.findings.iter().find(of).unwrap();
    assert!(found.root_cause.contains("none of its 2 endpoints is ready"), "{found:#?}");
}

/// M1: the interface in the configuration counts, not what is left in the rules.
#[test]
fn a_lost_rule_for_pods_by_their_interface_is_found() {
    let report = check(&capture("M1"));
    assert!(only(&report, Class::C5e).root_cause.contains("hairpin-connections"), "{}", texts(&report));
    let report = without("M1", Kind::NftRuleset, "iifname != \"cbr0\"");
    assert!(texts(&report).contains("are not masqueraded"), "{}", texts(&report));
    let prefix = |text: &str| {
        let text = text.replace("BridgeInterface", "InterfaceNamePrefix");
        text.replace("bridgeInterface: \"cbr0\"", "interfaceNamePrefix: \"veth\"")
    };
    let by_prefix = edited(capture("M1"), Kind::ProxyConfig, prefix);
    let rules = |text: &str| text.replace("iifname != \"cbr0\"", "iifname != \"veth*\"");
    let report = check(&edited(by_prefix.clone(), Kind::NftRuleset, rules));
    assert!(!texts(&report).contains("masqueraded: "), "{}", texts(&report));
    let report = check(&by_prefix);
    assert!(texts(&report).contains("masqueraded"), "{}", texts(&report));
}

/// M2: IPVS has a server for each address of the node's interfaces.
#[test]
fn a_node_port_is_served_at_each_address_of_the_node() {
    let report = check(&capture("M2"));
    let missing = only(&report, Class::C5);
    assert!(missing.evidence.iter().any(|e| e.content.contains("192.168.1.2:3001")), "{missing:#?}");
    let second = "-A -t 192.168.1.2:3001 -s rr\n-a -t 192.168.1.2:3001 -r 10.180.0.1:80 -m -w 1\n";
    let served = edited(capture("M2"), Kind::IpvsSave, |text| format!("{text}{second}"));
    let report = check(&served);
    assert!(named(&report).is_empty(), "{}", texts(&report));
    // nodePortAddresses that select one address need no server at the other.
    for (range, clean) in [("192.168.0.0/24", true), ("192.168.0.0/16", false), ("192.168.1.0/24", false)] {
        let config = |text: &str| format!("{text}nodePortAddresses: [\"{range}\"]\n");
        let report = check(&edited(capture("M2"), Kind::ProxyConfig, config));
        assert_eq!(named(&report).is_empty(), clean, "{range}: {}", texts(&report));
    }
    // Interfaces of another network namespace do not count.
    let elsewhere = |text: &str| text.replace("192.168.", "172.16.").replace("2001:db8:", "2001:db8:99:");
    let report = check(&edited(capture("M2"), Kind::Interfaces, elsewhere));
    assert!(report.findings.iter().all(|finding| finding.class != Class::C5), "{}", texts(&report));
}

/// Without kube-proxy's configuration the rules show its settings, and one gap names what this leaves open.
#[test]
fn an_unknown_configuration_is_no_fault() {
    for Case { name, by_design } in &HEALTHY {
        let report = lacks(name, Kind::ProxyConfig);
        assert_eq!(named(&report), *by_design, "{name}: {:#?}", unexpected(&report, by_design));
        let gaps =
            report.gaps.iter().filter(|gap| gap.contains("masquerading and the addresses of node ports"));
        assert_eq!(gaps.count(), 1, "{name}: {:?}", report.gaps);
    }
}

/// A family whose rules were not captured has no missing rule, in any mode.
#[test]
fn an_unread_family_is_no_fault() {
    let Case { name, by_design } = &HEALTHY[11];
    for kind in [Kind::IptablesSave, Kind::Ip6tablesSave, Kind::IpsetSave] {
        let report = lacks(name, kind);
        assert_eq!(named(&report), *by_design, "{name} {kind:?}: {:#?}", unexpected(&report, by_design));
        assert!(report.gaps.iter().any(|gap| gap.contains("rules against the API")), "{:?}", report.gaps);
    }
    let report = lacks("B3-ipv6-only", Kind::Ip6tablesSave);
    assert!(report.findings.is_empty(), "{}", texts(&report));
    assert!(report.summary.contains("the node's rules"), "{}", report.summary);
}

/// Two Services with one node port: kube-proxy's rules are those of either.
#[test]
fn services_with_one_node_port_share_its_rules() {
    let second = |text: &str| {
        with_service(text, "svc2", |spec| {
            spec["clusterIP"] = "10.20.30.42".into();
            spec["clusterIPs"] = serde_json::json!(["10.20.30.42"]);
        })
    };
    let report = check(&edited(capture("M2"), Kind::Services, second));
    // Only svc2's own address lacks its rules: it has no endpoint, so that they should refuse (C12). The node port is svc1's.
    let of_port = texts(&report).lines().filter(|line| line.contains("node port")).count();
    assert_eq!(of_port, 0, "{}", texts(&report));
    let about: BTreeSet<_> = named(&report).into_iter().collect();
    assert!(about.contains("C20 ns1/svc2"), "{about:?}");
    assert!(!about.contains("C6 ns1/svc2") && about.contains("C12 ns1/svc2"), "{}", texts(&report));
}

fn with_service(text: &str, name: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut list: Value = serde_json::from_str(text).unwrap();
    let items = list["items"].as_array_mut().unwrap();
    let mut copy = items[0].clone();
    copy["metadata"]["name"] = name.into();
    change(&mut copy["spec"]);
    items.push(copy);
    list.to_string()
}

/// The node's address within the Pods' range: kube-proxy takes the node's own connections for a Pod's.
#[test]
fn a_node_within_the_range_of_the_pods() {
    let within = |text: &str| text.replace("10.0.0.0/8", "192.168.0.0/16");
    let config = edited(capture("B3-no-endpoints"), Kind::ProxyConfig, within);
    assert_eq!(named(&check(&config)), ["C20 ns1/svc1"]);
    let rules = edited(capture("B2-iptables"), Kind::IptablesSave, within);
    let report = check(&edited(rules.clone(), Kind::ProxyConfig, within));
    assert!(named(&report).is_empty(), "{}", texts(&report));
    let report = check(&rules);
    assert!(named(&report).iter().any(|name| name.starts_with("C5e")), "{}", texts(&report));
}

/// `detectLocalMode: NodeCIDR`: the Node's range counts, and `clusterCIDR` does not.
#[test]
fn the_range_of_the_node() {
    let mode = |text: &str| {
        let text = text.replace("\"ClusterCIDR\"", "\"NodeCIDR\"");
        text.replace("clusterCIDR: \"10.0.0.0/8", "clusterCIDR: \"172.16.0.0/12")
    };
    let of_node = |ranges: &'static str| {
        let nodes = move |text: &str| {
            text.replace("\"spec\": {}", &format!("\"spec\": {{\"podCIDRs\": [{ranges}]}}"))
        };
        check(&edited(edited(capture("B2-iptables"), Kind::ProxyConfig, mode), Kind::Nodes, nodes))
    };
    let report = of_node("\"10.0.0.0/8\"");
    assert!(named(&report).is_empty(), "{}", texts(&report));
    let report = of_node("\"10.7.0.0/24\"");
    assert!(texts(&report).contains("masqueraded"), "{}", texts(&report));
    // Without a range it is unknown.
    let report = check(&edited(capture("B2-iptables"), Kind::ProxyConfig, mode));
    assert!(named(&report).is_empty(), "{}", texts(&report));
    assert!(report.gaps.iter().any(|gap| gap.contains("detectLocalMode")), "{:?}", report.gaps);
}

/// kube-proxy writes what an object with port 0 asks for; no Service can have it.
#[test]
fn a_service_with_port_0_is_not_judged() {
    let service = |text: &str| {
        with_service(text, "svc2", |spec| {
            spec["type"] = "ClusterIP".into();
            spec["clusterIP"] = "10.20.30.42".into();
            spec["clusterIPs"] = serde_json::json!(["10.20.30.42"]);
            spec["ports"] = serde_json::json!([{"name": "p", "protocol": "TCP", "port": 0}]);
        })
    };
    let sets =
        |text: &str| format!("{text}add KUBE-CLUSTER-IP 10.20.30.42,tcp:0\nadd KUBE-IPVS-IPS 10.20.30.42\n");
    let servers = |text: &str| format!("{text}-A -t 10.20.30.42:0 -s rr\n");
    let capture = edited(capture("M2"), Kind::Services, service);
    let report = check(&edited(edited(capture, Kind::IpsetSave, sets), Kind::IpvsSave, servers));
    assert!(report.findings.iter().all(|finding| finding.class != Class::C6), "{}", texts(&report));
    assert!(report.gaps.iter().any(|gap| gap.contains("port 0 is not a port number")), "{:?}", report.gaps);
}

/// An external IP that is the node's own address: ipvs mode does not assign it to kube-ipvs0.
#[test]
fn an_external_ip_of_the_node() {
    let services = |text: &str| {
        text.replace("\"type\": \"NodePort\"", "\"externalIPs\": [\"192.168.0.2\"], \"type\": \"NodePort\"")
    };
    let to_pods = |vip: &str| format!("-A -t {vip} -s rr\n-a -t {vip} -r 10.180.0.1:80 -m -w 1\n");
    let servers = |text: &str| format!("{text}{}{}", to_pods("192.168.1.2:3001"), to_pods("192.168.0.2:80"));
    let sets = |text: &str| format!("{text}add KUBE-EXTERNAL-IP 192.168.0.2,tcp:80\n");
    let jump = "-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT";
    let mark = "-A KUBE-SERVICES -m set --match-set KUBE-EXTERNAL-IP dst,dst -j KUBE-MARK-MASQ";
    let rules = |text: &str| text.replace(jump, &format!("{mark}\n{jump}"));
    let capture = edited(edited(capture("M2"), Kind::Services, services), Kind::IpvsSave, servers);
    let report = check(&edited(edited(capture, Kind::IpsetSave, sets), Kind::IptablesSave, rules));
    assert!(named(&report).is_empty(), "{}", texts(&report));
}

/// The guard of 127.0.0.0/8 belongs to `localhostNodePorts`, which `nodePortAddresses` without loopback turns off.
#[test]
fn the_guard_of_loopback_belongs_to_localhost_node_ports() {
    let report = without("B2-iptables", Kind::IptablesSave, "block incoming localnet connections");
    let missing = only(&report, Class::C5e);
    assert!(missing.level == Level::Warning && missing.root_cause.contains("127.0.0.1"), "{missing:#?}");
    let report = without("B2-iptables", Kind::IptablesSave, "-A OUTPUT -j KUBE-FIREWALL");
    assert!(only(&report, Class::C5e).root_cause.contains("OUTPUT does not lead"), "{}", texts(&report));
    let unguarded = |text: &str| {
        let keep = text.lines().filter(|line| !line.contains("localnet"));
        keep.collect::<Vec<_>>()
            .join("\n")
            .replace("-m addrtype --dst-type LOCAL -j KUBE-NODEPORTS", "-d 192.168.0.2/32 -j KUBE-NODEPORTS")
            + "\n"
    };
    for (setting, guarded) in [
        ("nodePortAddresses: [\"192.168.0.2/32\"]", false),
        ("nodePortAddresses: [primary]", false),
        ("nodePortAddresses: [\"192.168.0.2/32\", \"127.0.0.0/8\"]", true),
    ] {
        let rules = edited(capture("B2-iptables"), Kind::IptablesSave, unguarded);
        let config = |text: &str| format!("{text}{setting}\n");
        let report = check(&edited(rules, Kind::ProxyConfig, config));
        assert_eq!(
            named(&report),
            if guarded { vec!["C5e"] } else { vec![] },
            "{setting}: {}",
            texts(&report)
        );
    }
    let off = |text: &str| text.replace("localhostNodePorts: true", "localhostNodePorts: false");
    let rules = |text: &str| {
        let keep = text.lines().filter(|line| !line.contains("localnet"));
        keep.collect::<Vec<_>>().join("\n") + "\n"
    };
    let report =
        check(&edited(edited(capture("B2-iptables"), Kind::IptablesSave, rules), Kind::ProxyConfig, off));
    assert!(named(&report).is_empty(), "{}", texts(&report));
}

/// A health check node port is accepted in iptables and ipvs mode.
#[test]
fn a_health_check_node_port_is_accepted() {
    let service = |text: &str| {
        let text =
            text.replace("\"externalTrafficPolicy\": \"Cluster\"", "\"externalTrafficPolicy\": \"Local\"");
        text.replace(
            "\"type\": \"LoadBalancer\"",
            "\"type\": \"LoadBalancer\", \"healthCheckNodePort\": 30999",
        )
    };
    let report = check(&edited(capture("B2-iptables"), Kind::Services, service));
    assert!(texts(&report).contains("KUBE-NODEPORTS does not accept port 30999"), "{}", texts(&report));
    let accept = "-A KUBE-NODEPORTS -p tcp -m tcp --dport 30999 -j ACCEPT\nCOMMIT";
    let rules = |text: &str| text.replacen("COMMIT", accept, 1);
    let accepted = edited(edited(capture("B2-iptables"), Kind::Services, service), Kind::IptablesSave, rules);
    assert!(!texts(&check(&accepted)).contains("30999"), "{}", texts(&check(&accepted)));
}

/// B3: forwarding and filtering of IPv4 do not matter to a node of an IPv6 cluster.
#[test]
fn settings_of_a_family_without_services_are_not_judged() {
    let mut capture = capture("B3-ipv6-only");
    let settings = "net.ipv4.ip_forward = 0\nnet.ipv6.conf.all.forwarding = 1\n\
                    net.bridge.bridge-nf-call-iptables = 0\nnet.bridge.bridge-nf-call-ip6tables = 1\n";
    capture.put(Kind::Sysctls, "sysctl", settings.to_owned());
    let with_range = edited(capture, Kind::Nodes, |text| {
        let mut nodes: Value = serde_json::from_str(text).unwrap();
        nodes["items"][0]["spec"]["podCIDRs"] = json!(["fd00:10:1::/64"]);
        nodes.to_string()
    });
    let capture = edited(with_range, Kind::Interfaces, |text| {
        let mut interfaces: Value = serde_json::from_str(text).unwrap();
        let bridge = json!({
            "ifname": "cni0", "flags": ["UP"], "linkinfo": {"info_kind": "bridge"},
            "addr_info": [{"family": "inet6", "local": "fd00:10:1::1", "prefixlen": 64}],
        });
        let port = json!({
            "ifname": "veth1", "flags": ["UP"], "master": "cni0", "addr_info": [],
            "linkinfo": {"info_kind": "veth", "info_slave_kind": "bridge", "info_slave_data": {"hairpin": true}},
        });
        interfaces.as_array_mut().unwrap().extend([bridge, port]);
        interfaces.to_string()
    });
    let of = |capture: &Capture| {
        let report = check(capture);
        let classes = report.findings.iter().map(|finding| finding.class);
        classes.filter(|class| [Class::C31, Class::C32].contains(class)).collect::<Vec<_>>()
    };
    assert_eq!(of(&capture), []);
    let v6 = edited(capture, Kind::Sysctls, |text| {
        text.replace("forwarding = 1", "forwarding = 0").replace("ip6tables = 1", "ip6tables = 0")
    });
    assert_eq!(of(&v6), [Class::C32, Class::C31]);
}
