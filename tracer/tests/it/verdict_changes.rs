//! Changes of a Service at about the time of a flow: kube-proxy and viptrace learn of them at different moments.

use crate::{
    cluster_support::{NOT_READY, Shop, TERMINATING, pod},
    flow_support::{CLIENT, EP, Script, VIP, World, addr, at},
    node_support::Rules,
};
use viptrace::{
    class::{Class, Confidence, Severity},
    cluster::{
        Via,
        model::{Conditions, Object, TrafficPolicy},
    },
    node::{ProxyMode, RuleEffect},
    sighting::{Hook, TcpState},
};

const SECOND: &str = "10.244.2.8:8080";
const THIRD: &str = "10.244.1.9:8080";
const NODE_PORT: &str = "192.168.1.2:30080";
const OTHER_NODES_PORT: &str = "192.168.1.3:30080";

fn refused(to: &str) -> Script {
    Script::new(CLIENT, to, None).unreach(60_000, 3).connect_failed(60_001)
}

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

#[test]
fn kube_proxy_may_know_that_the_last_endpoint_left_before_the_api_says_so() {
    let mut world = World::new();
    world.shop.leaves(EP, 60_050);
    let verdict = world.verdict(refused(VIP), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C20, Confidence::Medium));
    let said = verdict.evidence.iter().find(|evidence| evidence.content.contains("later"));
    let said = said.unwrap_or_else(|| panic!("{:?}", verdict.evidence));
    assert!(said.content.contains("kube-proxy received the change before viptrace did"), "{}", said.content);
    // The one Pod restarts at once.
    world.shop.becomes(EP, NOT_READY, 62_000);
    world.shop.ready(EP, 63_000);
    let restarted = world.verdict(refused(VIP), 70_000);
    assert_eq!(restarted.class, Class::C20);
    assert!(restarted.evidence.iter().any(|it| it.content.contains("left 50 ms later")), "{restarted:?}");
    // IPVS takes the real server away at once.
    world.node.mode = Some(ProxyMode::Ipvs);
    let no_destination = || {
        let mut script = refused(VIP);
        script.out[0].hook = Hook::IpVsLeave;
        script
    };
    assert_eq!(world.verdict(no_destination(), 70_000).class, Class::C20);
    // An endpoint that stays, or leaves much later, explains no refusal.
    for leaves in [None, Some(69_000)] {
        let mut world = World::new();
        if let Some(ms) = leaves {
            world.shop.leaves(EP, ms);
        }
        assert_eq!(world.verdict(refused(VIP), 70_000).class, Class::C4);
        world.node.mode = Some(ProxyMode::Ipvs);
        assert_eq!(world.verdict(no_destination(), 70_000).class, Class::C12);
    }
}

#[test]
fn the_last_endpoint_of_this_node_may_have_left_first_too() {
    let with = |leaves: Option<u64>| {
        let mut shop = Shop::with_endpoints(&[EP, SECOND]);
        shop.on_node(SECOND, "worker-2");
        shop.reached_by(Via::NodePort, NODE_PORT);
        shop.cart.external_traffic_policy = TrafficPolicy::Local;
        if let Some(ms) = leaves {
            shop.leaves(EP, ms);
        }
        let mut world = World::of(shop);
        world.node.rules = Rules::Vip(RuleEffect::Drops);
        let dropped = Script::new("203.0.113.9:50000", NODE_PORT, None)
            .drop_syn(60_000, "NETFILTER_DROP")
            .drop_syn(61_000, "NETFILTER_DROP");
        let verdict = world.verdict(dropped, 70_000);
        (verdict.class, verdict.confidence)
    };
    assert_eq!(with(Some(60_050)), (Class::C21, Confidence::Medium));
    assert_eq!(with(Some(50_000)), (Class::C21, Confidence::High));
    assert_ne!(with(None).0, Class::C21);
}

/// With the policy Cluster no rule of kube-proxy drops, and none forges a RST.
#[test]
fn what_kube_proxy_never_does_is_not_explained_by_a_later_change() {
    for script in [
        Script::new(CLIENT, VIP, None)
            .drop_syn(60_000, "NETFILTER_DROP")
            .drop_syn(61_000, "NETFILTER_DROP")
            .connect_failed(62_000),
        Script::new(CLIENT, VIP, None).unreach(60_000, 13).connect_failed(60_001),
    ] {
        let mut world = World::new();
        let before = world.verdict(script.clone(), 70_000);
        world.shop.leaves(EP, 62_050);
        assert_eq!(world.verdict(script, 70_000).class, before.class);
        assert_ne!(before.class, Class::C20);
    }
}

#[test]
fn a_service_that_just_got_its_port_has_no_rule_yet() {
    let with = |ms| {
        let mut world = World::new();
        world.node.mode = Some(ProxyMode::Nftables);
        let mut cart = world.shop.cart.clone();
        cart.ports[0].port = 81;
        world.shop.put(ms, Object::Service(cart.into()));
        let verdict = world.verdict(refused("10.96.0.10:81"), 70_000);
        (verdict.class, verdict.severity == Severity::Low)
    };
    assert_eq!(with(58_000), (Class::C5, true));
    assert_eq!(with(10_000).0, Class::C4);
    // A change of something else does not make the port younger.
    let mut world = World::new();
    let mut cart = world.shop.cart.clone();
    cart.ports[0].node_port = Some(30_080);
    world.shop.put(58_000, Object::Service(cart.into()));
    assert_eq!(world.verdict(refused(VIP), 70_000).class, Class::C4);
}

/// Before 1.26, a Local policy drops what arrives where the only endpoint terminates (KEP-1669).
#[test]
fn an_old_kube_proxy_sends_to_no_local_endpoint_that_terminates() {
    let mut world = World::of(Shop::with_endpoints(&[EP, SECOND]));
    world.shop.on_node(SECOND, "worker-2");
    world.shop.becomes(EP, TERMINATING, 20_000);
    world.shop.reached_by(Via::NodePort, NODE_PORT);
    world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
    world.node.rules = Rules::Vip(RuleEffect::Drops);
    let dropped = || {
        Script::new("203.0.113.9:50000", NODE_PORT, None)
            .drop_syn(60_000, "NETFILTER_DROP")
            .drop_syn(61_000, "NETFILTER_DROP")
    };
    world.node.version = "v1.25.4";
    assert_eq!(world.verdict(dropped(), 70_000).class, Class::C21);
    world.node.version = "v1.30.5";
    assert_ne!(world.verdict(dropped(), 70_000).class, Class::C21);
}

#[test]
fn under_a_local_policy_only_a_ready_endpoint_of_this_node_makes_a_terminating_one_stale() {
    let with = |ready: u64| {
        let mut shop = Shop::with_endpoints(&[EP, SECOND]);
        shop.on_node(SECOND, "worker-2");
        shop.cart.internal_traffic_policy = TrafficPolicy::Local;
        shop.becomes(EP, TERMINATING, 20_000);
        shop.ready(THIRD, ready);
        World::of(shop).verdict(to_cart().refused(60_000), 70_000).class
    };
    assert_eq!(with(59_000), Class::C5);
    assert_eq!(with(30_000), Class::C6);
}

/// Each step of a departure is a change of its own, and none gives kube-proxy a new grace.
#[test]
fn an_endpoint_that_leaves_in_steps_is_stale_from_the_first_that_counts() {
    let ended = Conditions { ready: false, serving: false, terminating: true };
    let with = |others: bool| {
        let mut shop = if others { Shop::with_endpoints(&[EP, SECOND]) } else { Shop::new() };
        shop.becomes(EP, TERMINATING, 20_000);
        shop.becomes(EP, ended, 40_000);
        if !others {
            shop.ready(SECOND, 50_000);
        }
        shop.leaves(EP, 60_000);
        World::of(shop)
    };
    let refused = |world: &World, ms| world.verdict(to_cart().refused(ms), ms + 10_000);
    let world = with(true);
    for (ms, class) in [
        (22_000, Class::C5),
        (30_000, Class::C6),
        (42_000, Class::C6),
        (50_000, Class::C6),
        (62_000, Class::C6),
        (80_000, Class::C6),
    ] {
        assert_eq!(refused(&world, ms).class, class, "{ms}");
    }
    let verdict = refused(&world, 62_000);
    assert!(verdict.root_cause.contains("left the endpoints of shop/cart:http 2.0 s before"), "{verdict:?}");
    let said = |it: &str| verdict.evidence.iter().any(|evidence| evidence.content.contains(it));
    assert!(said("should not have chosen 10.244.1.7:8080 for 42.0 s: first"), "{:?}", verdict.evidence);
    // While no other was ready, kube-proxy was right to choose it until it served no more.
    let world = with(false);
    let alone = [
        (22_000, Class::C5),
        (30_000, Class::C5),
        (42_000, Class::C5),
        (50_000, Class::C6),
        (62_000, Class::C6),
    ];
    for (ms, class) in alone {
        assert_eq!(refused(&world, ms).class, class, "{ms}, alone");
    }
    let verdict = refused(&world, 30_000);
    assert!(
        verdict.root_cause.contains("it is the last endpoint of shop/cart:http, was terminating for 10.0 s"),
        "{}",
        verdict.root_cause
    );
    assert!(verdict.mitigation.immediate.contains("kubectl -n shop describe pod cart-0"), "{verdict:#?}");
    assert!(verdict.mitigation.long_term.contains("PodDisruptionBudget"), "{verdict:#?}");
    assert!(!verdict.mitigation.immediate.contains("wait"), "{verdict:#?}");
    // What it still answers within its Pod's end is a drain.
    let world = with(true);
    let healthy = |ms| world.verdict(to_cart().healthy(ms), ms + 10_000).class;
    assert_eq!([healthy(30_000), healthy(42_000), healthy(62_000)], [Class::Ok, Class::Ok, Class::C6]);
}

/// The kubelet counts a Pod's grace from its deletion, whatever its slices say meanwhile.
#[test]
fn a_connection_has_one_grace_for_all_steps_of_its_endpoints_end() {
    let ended = Conditions { ready: false, serving: false, terminating: true };
    let mut world = World::of(Shop::with_endpoints(&[EP, SECOND]));
    world.shop.becomes(EP, TERMINATING, 20_000);
    world.shop.becomes(EP, ended, 40_000);
    world.shop.leaves(EP, 50_000);
    let broken = |ms: u64| {
        let script = to_cart()
            .established(10_000)
            .send_reset(ms, true, TcpState::Established, "TCP_ABORT_ON_CLOSE")
            .receive_reset(ms + 1, TcpState::Established)
            .state(ms + 1, false, TcpState::Established, TcpState::Close);
        world.verdict(script, ms + 40_000)
    };
    // 30 s, and the 5 s of the trace.
    for (ms, class) in [(45_000, Class::N9), (54_000, Class::N9), (60_000, Class::C7)] {
        let verdict = broken(ms);
        assert_eq!(verdict.class, class, "{ms}: {}", verdict.root_cause);
    }
    let late = broken(60_000);
    assert!(late.root_cause.contains("10.0 s after its endpoint was removed"), "{}", late.root_cause);
    let begun = |it: &str| late.evidence.iter().any(|evidence| evidence.content.contains(it));
    assert!(begun("began to terminate, 30.0 s before it was removed"), "{:?}", late.evidence);
}

/// kube-proxy deletes the entries of datagrams to an endpoint that does not serve, listed or not.
#[test]
fn an_entry_is_stale_from_when_its_endpoint_serves_no_more() {
    let ended = Conditions { ready: false, serving: false, terminating: true };
    let mut world = World::of(Shop::with_endpoints(&[EP, SECOND]));
    world.shop.becomes(EP, TERMINATING, 15_000);
    world.shop.becomes(EP, ended, 20_000);
    world.shop.leaves(EP, 56_000);
    let old = world.verdict(to_cart().udp().confirm(10_000).listed(60_000, 58_000), 61_000);
    assert_eq!(old.class, Class::C8, "{}", old.root_cause);
    assert!(old.root_cause.contains("38.0 s after the endpoint had left"), "{}", old.root_cause);
    // The rules made it while the endpoint was listed, and served no more.
    let young = world.verdict(to_cart().udp().confirm(40_000).listed(70_000, 68_000), 71_000);
    assert_eq!(young.class, Class::C6, "{}", young.root_cause);
}

/// A copy of an `Endpoints` object lists those that are not ready without `serving`, which then counts as true.
#[test]
fn an_endpoint_that_serves_and_is_neither_ready_nor_terminating_gets_nothing() {
    let mut world = World::of(Shop::with_endpoints(&[EP, SECOND]));
    let copied = Conditions { ready: false, serving: true, terminating: false };
    world.shop.becomes(EP, copied, 20_000);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C6);
    let mut sliced = World::of(Shop::with_endpoints(&[EP, SECOND]));
    sliced.shop.becomes(EP, NOT_READY, 20_000);
    assert_eq!(sliced.verdict(to_cart().refused(60_000), 70_000).class, Class::C6);
}

/// An ingress controller on the host's network drains its connections for minutes.
#[test]
fn a_pod_on_the_hosts_network_has_its_own_grace() {
    const ON_NODE: &str = "192.168.1.2:8080";
    let with = |grace: u64| {
        let mut shop = Shop::with_endpoints(&[ON_NODE]);
        let mut ingress = pod("cart-0", addr(ON_NODE).ip());
        ingress.host_network = true;
        ingress.termination_grace = std::time::Duration::from_secs(grace);
        shop.put(0, Object::Pod(ingress.clone().into()));
        shop.leaves(ON_NODE, 20_000);
        ingress.deletion = Some(at(20_000).saturating_add(ingress.termination_grace));
        shop.put(20_000, Object::Pod(ingress.into()));
        let reset = Script::new(CLIENT, VIP, Some(ON_NODE))
            .established(10_000)
            .send_reset(100_000, true, TcpState::Established, "TCP_ABORT_ON_CLOSE")
            .receive_reset(100_001, TcpState::Established)
            .state(100_001, false, TcpState::Established, TcpState::Close);
        World::of(shop).verdict(reset, 140_000).class
    };
    assert_eq!(with(300), Class::N9);
    assert_eq!(with(30), Class::C7);
}

/// Its kube-proxy translates the port there: what stops the packet here is another program's.
#[test]
fn a_rule_that_stops_a_packet_to_another_nodes_port_is_not_kube_proxys() {
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, OTHER_NODES_PORT);
    assert_eq!(world.verdict(refused(OTHER_NODES_PORT), 70_000).class, Class::C30);
    world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    assert_eq!(world.verdict(refused(OTHER_NODES_PORT), 70_000).class, Class::C30);
    let dropped = Script::new(CLIENT, OTHER_NODES_PORT, None)
        .drop_syn(60_000, "NETFILTER_DROP")
        .drop_syn(61_000, "NETFILTER_DROP");
    let verdict = world.verdict(dropped, 70_000);
    assert!(!matches!(verdict.class, Class::C21 | Class::C4), "{:?}", verdict.class);
    // At this node's own port, it is kube-proxy's.
    let mut own = World::new();
    own.shop.reached_by(Via::NodePort, NODE_PORT);
    assert_eq!(own.verdict(refused(NODE_PORT), 70_000).class, Class::C4);
}
