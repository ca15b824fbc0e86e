//! Service kinds and policies, leftovers of other modes, both families: one rule at a time, with hand-made sightings.

use crate::{
    cluster_support::Shop,
    flow_support::{CLIENT, EP, Script, VIP, World, addr},
    node_support::{Rules, iptables, nftables, source_ranges},
};
use viptrace::{
    class::{Class, Confidence, Domain},
    cluster::{Via, model::TrafficPolicy},
    net::{Cidr, Family, Protocol},
    node::{ProxyMode, RuleEffect, capture::Kind},
    sighting::TcpState,
    verdict::Verdict,
};

const LB: &str = "203.0.113.80:443";
const NODE_PORT: &str = "192.168.1.2:30080";

/// shop/cart reached by another of its addresses.
fn reached_by(via: Via, address: &str) -> World {
    let mut world = World::new();
    world.shop.reached_by(via, address);
    world
}

/// Where the endpoint of shop/cart has moved to.
const MOVED: &str = "10.244.1.8:8080";

/// The rules of one backend of iptables, which send VIP to the endpoint.
fn saved(kind: Kind, endpoint: &str) -> (Kind, String) {
    let entry = (addr(VIP), Protocol::TCP, addr(endpoint), RuleEffect::Forwards);
    (kind, iptables("KUBE-SVC-I5LIAMPLWKMBJ54B", &[entry]))
}

/// The same of nftables mode.
fn ruleset(endpoint: &str) -> (Kind, String) {
    let entry = (addr(VIP), Protocol::TCP, addr(endpoint), RuleEffect::Forwards);
    (Kind::NftRuleset, nftables(Family::Ipv4, &[entry]))
}

fn says(verdict: &Verdict, words: &str) -> bool {
    verdict.evidence.iter().any(|evidence| evidence.content.contains(words))
}

#[test]
fn a_source_outside_the_ranges_is_dropped_by_design() {
    let mut world = reached_by(Via::LoadBalancerIp, LB);
    world.shop.cart.source_ranges = vec![Cidr::parse("198.51.100.0/24").unwrap()];
    world.node.mode = Some(ProxyMode::Nftables);
    world.node.rules = Rules::Lists(vec![(
        Kind::NftRuleset,
        source_ranges("203.0.113.80 . tcp . 443", "shop/api/tcp/https"),
    )]);
    let seen = |script: Script| {
        script
            .drop_before_nat(60_000)
            .retransmit(61_000, TcpState::SynSent)
            .drop_before_nat(61_000)
            .retransmit(63_000, TcpState::SynSent)
    };
    let verdict = world.verdict(seen(Script::new(CLIENT, LB, None)), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C23, Domain::ServiceConfig));
    assert_eq!(verdict.confidence, Confidence::High);
    assert!(says(&verdict, "198.51.100.0/24"), "{:?}", verdict.evidence);
    assert!(says(&verdict, "nftables: firewall-ips drops"), "{:?}", verdict.evidence);
    // For a source that the ranges admit, the cause is another one.
    let verdict = world.verdict(seen(Script::new("198.51.100.7:40000", LB, None)), 70_000);
    assert_ne!(verdict.class, Class::C23);
    // Without an observed drop it is only the likely cause.
    let verdict = world.verdict(Script::new(CLIENT, LB, None).silent(60_000), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C23, Confidence::Medium));
    // The ranges do not apply to node ports.
    let mut world = reached_by(Via::NodePort, NODE_PORT);
    world.shop.cart.source_ranges = vec![Cidr::parse("198.51.100.0/24").unwrap()];
    let verdict = world.verdict(seen(Script::new(CLIENT, NODE_PORT, None)), 70_000);
    assert_ne!(verdict.class, Class::C23);
}

#[test]
fn a_local_policys_drop_names_its_chain() {
    for (via, address, class) in [(Via::NodePort, NODE_PORT, Class::C21), (Via::ClusterIp, VIP, Class::C22)] {
        let mut world = reached_by(via, address);
        world.shop.cart.internal_traffic_policy = TrafficPolicy::Local;
        world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
        world.shop.serves_elsewhere();
        world.node.rules = Rules::Vip(RuleEffect::Drops);
        let script = Script::new(CLIENT, address, None)
            .drop_syn(60_000, "NETFILTER_DROP")
            .retransmit(61_000, TcpState::SynSent)
            .drop_syn(61_000, "NETFILTER_DROP")
            .retransmit(63_000, TcpState::SynSent);
        let verdict = world.verdict(script, 70_000);
        assert_eq!((verdict.class, verdict.domain), (class, Domain::ServiceConfig));
        assert!(says(&verdict, "KUBE-EXTERNAL-SERVICES drops"), "{:?}", verdict.evidence);
    }
}

/// kube-proxy sends the connections of the node and its Pods to any endpoint: a drop of theirs may be another rule's.
#[test]
fn a_client_that_an_external_policy_exempts() {
    let verdict = |client: &str, rule| {
        let mut world = reached_by(Via::NodePort, NODE_PORT);
        world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
        world.shop.serves_elsewhere();
        world.node.rules = Rules::Vip(rule);
        let script = Script::new(client, NODE_PORT, None)
            .drop_syn(60_000, "NETFILTER_DROP")
            .drop_syn(61_000, "NETFILTER_DROP");
        world.verdict(script, 70_000)
    };
    let of = |client: &str, rule| {
        let verdict = verdict(client, rule);
        (verdict.class, verdict.confidence)
    };
    let outside = "203.0.113.9:50000";
    assert_eq!(of(outside, RuleEffect::Forwards), (Class::C21, Confidence::High));
    assert_eq!(of(CLIENT, RuleEffect::Forwards), (Class::C21, Confidence::Medium));
    assert!(verdict(CLIENT, RuleEffect::Forwards).against.iter().any(|it| it.content.contains("exempts")));
    // The rules drop its connections all the same.
    assert_eq!(of(CLIENT, RuleEffect::Drops), (Class::C21, Confidence::High));
}

#[test]
fn a_refusal_names_the_chain_that_refuses() {
    let mut world = World::of(Shop::with_endpoints(&[]));
    (world.node.mode, world.node.rules) = (Some(ProxyMode::Nftables), Rules::Vip(RuleEffect::Refuses));
    let verdict =
        world.verdict(Script::new(CLIENT, VIP, None).unreach(60_000, 3).connect_failed(60_001), 70_000);
    assert_eq!(verdict.class, Class::C20);
    assert!(says(&verdict, "nftables: no-endpoint-services refuses"), "{:?}", verdict.evidence);
}

#[test]
fn leftovers_of_another_mode_are_distinguished_from_old_rules() {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    world.node.mode = Some(ProxyMode::Nftables);
    let (kept, left) = (ruleset(MOVED), saved(Kind::IptablesNftSave, EP));
    world.node.rules = Rules::Lists(vec![left.clone(), kept.clone()]);
    let dead = || Script::new(CLIENT, VIP, Some(EP)).silent(60_000);
    let verdict = world.verdict(dead(), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C10, Domain::IptablesSync));
    assert!(verdict.root_cause.contains("iptables-nft"), "{}", verdict.root_cause);
    assert!(says(&verdict, "KUBE-SVC-I5LIAMPLWKMBJ54B"), "{:?}", verdict.evidence);
    // kube-proxy's rules send there as well: they are old, whatever other rules exist.
    world.node.rules = Rules::Lists(vec![left.clone(), ruleset(EP)]);
    assert_eq!(world.verdict(dead(), 70_000).class, Class::C6);
    // No other writer.
    world.node.rules = Rules::Lists(vec![ruleset(EP)]);
    assert_eq!(world.verdict(dead(), 70_000).class, Class::C6);
    // kube-proxy's own rules are old; another mode's leftovers do not explain them.
    world.node.mode = Some(ProxyMode::Iptables);
    world.node.rules = Rules::Lists(vec![left, kept]);
    assert_eq!(world.verdict(dead(), 70_000).class, Class::C6);
}

#[test]
fn rules_in_the_backend_that_kube_proxy_does_not_write() {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    world.node.rules =
        Rules::Lists(vec![saved(Kind::IptablesLegacySave, EP), saved(Kind::IptablesNftSave, MOVED)]);
    let verdict = world.verdict(Script::new(CLIENT, VIP, Some(EP)).silent(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C3, Domain::IptablesSync));
    assert!(verdict.root_cause.contains("iptables-legacy"), "{}", verdict.root_cause);
    // A listed endpoint is not their fault.
    let mut world = World::new();
    world.node.rules = Rules::Lists(vec![saved(Kind::IptablesLegacySave, EP)]);
    assert_eq!(world.verdict(Script::new(CLIENT, VIP, Some(EP)).healthy(60_000), 70_000).class, Class::Ok);
}

#[test]
fn an_address_that_node_port_addresses_leave_out() {
    let mut world = reached_by(Via::NodePort, NODE_PORT);
    world.node.own.push("192.0.2.9".parse().unwrap());
    world.node.rules = Rules::At("192.0.2.9:30080");
    let refused = Script::new(CLIENT, NODE_PORT, None).refused(60_000);
    let verdict = world.verdict(refused.clone(), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C26, Domain::ServiceConfig));
    assert!(verdict.mitigation.immediate.contains("192.0.2.9:30080"), "{}", verdict.mitigation.immediate);
    // No address serves it: the rule is missing.
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    assert_ne!(world.verdict(refused, 70_000).class, Class::C26);
}

#[test]
fn a_pod_that_reaches_itself_and_does_not() {
    let client = "10.244.1.7:40000";
    let verdict = World::new().verdict(Script::new(client, VIP, Some(EP)).silent(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C31, Domain::Hairpin));
    assert!(verdict.root_cause.contains("not masqueraded"), "{}", verdict.root_cause);
    let mut script = Script::new(client, VIP, Some(EP));
    script.masquerade = Some(addr("10.244.1.1:50000"));
    let script = script.silent(60_000);
    let verdict = World::new().verdict(script.clone(), 70_000);
    assert!(verdict.root_cause.contains("a bridge in front of it"), "{}", verdict.root_cause);

    // What the node has between it and the Pod.
    let mut world = World::new();
    let port = |name: &str, hairpin: bool| {
        format!(
            r#"{{"ifname":"{name}","master":"cni0","linkinfo":{{"info_kind":"veth",
               "info_slave_kind":"bridge","info_slave_data":{{"hairpin":{hairpin}}}}}}}"#
        )
    };
    let mut with = |kind: &str, ports: &[String]| {
        let way = format!(r#"{{"ifname":"cni0","linkinfo":{{"info_kind":"{kind}"}}}}"#);
        let interfaces = [&[way], ports].concat().join(",");
        world.node.ways = Some((format!("[{interfaces}]"), "10.244.1.0/24 dev cni0 scope link"));
        world.verdict(script.clone(), 70_000)
    };
    let verdict = with("bridge", &[port("veth1", false), port("veth2", true)]);
    assert_eq!(verdict.class, Class::C31, "{verdict:#?}");
    assert!(verdict.root_cause.contains("hairpin mode is off"), "{}", verdict.root_cause);
    assert!(says(&verdict, "1 of 2 ports of bridge cni0 have no hairpin mode"), "{verdict:#?}");
    // The Pod's program hangs. A routed CNI has no bridge.
    assert_eq!(with("bridge", &[port("veth1", true)]).class, Class::C29);
    assert_eq!(with("veth", &[]).class, Class::C29);
}

#[test]
fn an_answer_that_bypasses_nat() {
    let script = || {
        Script::new(CLIENT, VIP, Some(EP))
            .confirm(60_000)
            .client_resets_answer(60_001)
            .retransmit(61_000, TcpState::SynSent)
            .client_resets_answer(61_001)
            .retransmit(63_000, TcpState::SynSent)
    };
    let verdict = World::new().verdict(script(), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C31, Domain::Hairpin));
    assert!(
        verdict.mitigation.immediate.contains("bridge-nf-call-iptables"),
        "{}",
        verdict.mitigation.immediate
    );
}

#[test]
fn a_masqueraded_client_is_reported() {
    let mut script = Script::new(CLIENT, VIP, Some(EP));
    script.masquerade = Some(addr("192.168.1.2:50000"));
    let verdict = World::new().verdict(script.healthy(60_000), 70_000);
    assert_eq!(verdict.class, Class::Ok);
    assert!(says(&verdict, "192.168.1.2: the endpoint sees that address"), "{:?}", verdict.evidence);
}

#[test]
fn ipv6_is_judged_as_ipv4() {
    let (client, vip, endpoint) =
        ("[fd00:10:244:1::100]:40000", "[fd00:96::8e9f]:80", "[fd00:10:244:1::11]:8080");
    let mut world = World::of(Shop::with_endpoints(&[endpoint]));
    world.shop.reached_by(Via::ClusterIp, vip);
    let script = |endpoint| Script::new(client, vip, endpoint);
    assert_eq!(world.verdict(script(Some(endpoint)).healthy(60_000), 70_000).class, Class::Ok);
    assert_eq!(world.verdict(script(Some(endpoint)).refused(60_000), 70_000).class, Class::C28);
    assert_eq!(world.verdict(script(Some(endpoint)).silent(60_000), 70_000).class, Class::C29);
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    assert_eq!(world.verdict(script(None).silent(60_000), 70_000).class, Class::C5);
    world.shop.leaves(endpoint, 20_000);
    assert_eq!(world.verdict(script(Some(endpoint)).silent(60_000), 70_000).class, Class::C6);
    // ICMPv6 code 1 is what ICMP has codes 9, 10 and 13 for; 4 is its port unreachable.
    let prohibited = world.verdict(script(None).unreach(60_000, 1).connect_failed(60_001), 70_000);
    assert_eq!(prohibited.class, Class::C30);
    let refused = world.verdict(script(None).unreach(60_000, 4).connect_failed(60_001), 70_000);
    assert_eq!(refused.class, Class::C20);
    assert!(says(&refused, "port unreachable"), "{:?}", refused.evidence);
}
