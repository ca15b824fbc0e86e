//! Cases that look like a fault of kube-proxy's rules and are none.

use crate::{
    cluster_support::Shop,
    flow_support::{CLIENT, EP, Script, VIP, World},
    node_support::Rules,
};
use viptrace::{
    class::{Class, Confidence, Domain},
    cluster::Via,
    node::{ProxyMode, RuleEffect},
};

/// A node port of shop/cart on the other node.
const NODE_PORT: &str = "192.168.1.3:30080";
const OTHER: &str = "10.244.1.8:8080";

#[test]
fn a_node_port_of_another_node_is_translated_there() {
    for rule in [RuleEffect::Forwards, RuleEffect::Missing] {
        let mut world = World::new();
        world.shop.reached_by(Via::NodePort, NODE_PORT);
        world.node.rules = Rules::Vip(rule);
        let script = Script::new(CLIENT, NODE_PORT, None);
        let verdict = world.verdict(script.clone().silent(60_000), 70_000);
        assert_eq!(verdict.class, Class::Unknown, "{}", verdict.root_cause);
        assert!(verdict.unseen.iter().any(|u| u.contains("node worker-2")), "{:?}", verdict.unseen);
        let verdict = world.verdict(script.healthy(60_000), 70_000);
        assert_eq!(verdict.class, Class::Ok);
        assert!(verdict.against.is_empty(), "{:?}", verdict.against);
    }
    // On this node's own address it is this node's fault.
    let own = "192.168.1.2:30080";
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, own);
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    assert_eq!(world.verdict(Script::new(CLIENT, own, None).silent(60_000), 70_000).class, Class::C5);
}

#[test]
fn a_drop_before_translation_is_not_a_missing_rule() {
    // KUBE-FW and KUBE-PROXY-FIREWALL do this with a source outside loadBalancerSourceRanges (C23).
    let vip = "203.0.113.7:80";
    for rules in [Rules::Vip(RuleEffect::Forwards), Rules::Vip(RuleEffect::Drops), Rules::Unread] {
        let mut world = World::new();
        world.shop.reached_by(Via::LoadBalancerIp, vip);
        world.node.rules = rules;
        let script = Script::new(CLIENT, vip, None)
            .drop_syn(60_000, "NETFILTER_DROP")
            .retransmit(61_000, viptrace::sighting::TcpState::SynSent)
            .drop_syn(61_000, "NETFILTER_DROP");
        let verdict = world.verdict(script, 70_000);
        assert_eq!(verdict.class, Class::Unknown, "{}", verdict.root_cause);
        assert!(verdict.unseen.iter().any(|u| u.contains("C23")), "{:?}", verdict.unseen);
    }
    // A firewall's drop of a packet that no rule translates does not hide the missing rule.
    let mut world = World::new();
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    let script = Script::new(CLIENT, VIP, None).drop_syn(60_000, "NETFILTER_DROP").connect_failed(61_000);
    assert_eq!(world.verdict(script, 70_000).class, Class::C5);
}

#[test]
fn another_dataplane_rules_out_a_claim() {
    let mut world = World::new();
    (world.node.running, world.node.rules, world.node.mode) = (Some(false), Rules::Nothing, None);
    let silent = Script::new(CLIENT, VIP, None).silent(60_000);
    assert_eq!(world.verdict(silent.clone(), 70_000).class, Class::C1);
    world.node.interface = Some("cilium_host");
    let verdict = world.verdict(silent.clone(), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::Unknown, Domain::Unknown));
    assert!(verdict.root_cause.contains("Cilium"), "{}", verdict.root_cause);
    // A CNI plugin next to kube-proxy changes nothing.
    world.node.running = Some(true);
    assert_eq!(world.verdict(silent, 70_000).class, Class::C1);
}

#[test]
fn an_unlisted_endpoint_is_not_stale_if_the_lists_are_old() {
    let mut world = World::of(Shop::with_endpoints(&[OTHER]));
    world.metadata_age = Some(20.0);
    let script = Script::new(CLIENT, VIP, Some(EP));
    assert_eq!(world.verdict(script.clone().healthy(60_000), 70_000).class, Class::Ok);
    let verdict = world.verdict(script.clone().refused(60_000), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C6, Confidence::Low));
    assert!(verdict.against.iter().any(|e| e.content.contains("added since")), "{:?}", verdict.against);
    world.metadata_age = Some(0.0);
    assert_eq!(world.verdict(script.healthy(60_000), 70_000).class, Class::C6);
}

#[test]
fn the_command_that_shows_a_stale_endpoint_depends_on_the_mode() {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    for (mode, command) in [
        (ProxyMode::Iptables, "iptables-save -t nat | grep 10.244.1.7:8080"),
        (ProxyMode::Nftables, "nft list table ip kube-proxy | grep 10.244.1.7"),
        (ProxyMode::Ipvs, "ipvsadm -Ln | grep -F '10.244.1.7:8080'"),
    ] {
        world.node.mode = Some(mode);
        let verdict = world.verdict(Script::new(CLIENT, VIP, Some(EP)).refused(60_000), 70_000);
        assert_eq!(verdict.class, Class::C6);
        assert!(verdict.mitigation.immediate.contains(command), "{}", verdict.mitigation.immediate);
    }
}

#[test]
fn rules_of_one_family_count() {
    let vip = "[fd00:96::10]:80";
    let mut world = World::of(Shop::with_endpoints(&["[fd00:10::7]:8080"]));
    world.shop.reached_by(Via::ClusterIp, vip);
    let silent = || Script::new("[fd00:10::9]:40000", vip, None).silent(60_000);
    // kube-proxy has rules in one family: only this Service's are missing.
    world.node.rules = Rules::OtherFamily;
    assert_eq!(world.verdict(silent(), 70_000).class, Class::C5);
    // Neither family has rules.
    world.node.rules = Rules::Nothing;
    assert_eq!(world.verdict(silent(), 70_000).class, Class::C1);
}

#[test]
fn a_host_port_at_a_node_address_is_not_stale() {
    let asked = "192.168.1.2:80";
    let mut world = World::of(Shop::with_endpoints(&[OTHER]));
    world.shop.reached_by(Via::LoadBalancerIp, asked);
    let verdict = world.verdict(Script::new(CLIENT, asked, Some(EP)).healthy(60_000), 70_000);
    assert_eq!(verdict.class, Class::Ok, "{}", verdict.root_cause);
}

#[test]
fn a_refusal_by_the_new_holder_of_an_address_is_less_certain() {
    let mut world = World::new();
    world.shop.newcomer(EP, 50_000);
    let verdict = world.verdict(Script::new(CLIENT, VIP, Some(EP)).refused(60_000), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C28, Confidence::Medium));
    assert!(verdict.against.iter().any(|e| e.content.contains("other/newcomer")), "{:?}", verdict.against);
}

#[test]
fn a_client_on_the_hosts_network_is_no_hairpin() {
    let endpoint = "192.168.1.2:8080";
    let mut world = World::new();
    world.shop.ready(endpoint, 0);
    let script = Script::new("192.168.1.2:40000", VIP, Some(endpoint)).silent(60_000);
    assert_eq!(world.verdict(script, 70_000).class, Class::C29);
}

#[test]
fn the_command_against_an_old_entry_spares_the_others() {
    let world = World::new();
    let verdict = world.verdict(Script::new(CLIENT, VIP, None).silent(60_000), 70_000);
    assert_eq!(verdict.class, Class::C5b);
    let command = "conntrack -D -p tcp -s 10.244.1.100 --sport 40000 -d 10.96.0.10 --dport 80";
    assert!(verdict.mitigation.immediate.contains(command), "{}", verdict.mitigation.immediate);
}
