//! Services that a cluster has beside the usual ones: half of a dual stack, addresses outside, Pods on the host's network.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster_support::{READY, Shop, endpoint, pod, slice},
    flow_support::{CLIENT, EP, Script, VIP, World, addr, fold, last_revisions},
};
use viptrace::{
    class::{Class, Severity},
    cluster::{
        Via,
        model::{Endpoint, Labels, Object, ServiceType, TrafficPolicy},
    },
    verdict::Verdict,
};

const OTHER: &str = "10.244.1.8:8080";
const OUTSIDE: &str = "203.0.113.50:41000";
const BALANCED: &str = "203.0.113.7:80";

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

fn judged(world: &World, script: Script) -> Option<Verdict> {
    let flows = last_revisions(fold(script.out, 70_000).0);
    let [flow] = flows.as_slice() else { panic!("one flow expected: {flows:#?}") };
    world.judge(flow)
}

#[test]
fn a_dual_stack_service_with_endpoints_of_one_family() {
    const VIP6: &str = "[fd00:96::10]:80";
    let mut world = World::new();
    world.shop.cart.cluster_ips.push(addr(VIP6).ip());
    let refused = Script::new("[fd00:10::9]:40000", VIP6, None).unreach(60_000, 4).connect_failed(60_001);
    let verdict = world.verdict(refused, 70_000);
    assert_eq!(verdict.class, Class::C20, "{verdict:#?}");
    assert!(verdict.root_cause.contains("its endpoints are IPv4 only, not IPv6"), "{}", verdict.root_cause);
    assert!(verdict.mitigation.immediate.contains("compare ipFamilies"), "{}", verdict.mitigation.immediate);
    assert_eq!(world.verdict(to_cart().healthy(60_000), 70_000).class, Class::Ok);
}

/// kube-proxy sends Pods of the node to every endpoint, whatever the policy for clients outside.
#[test]
fn a_local_policy_without_a_local_endpoint_and_a_pod_that_takes_the_way_from_outside() {
    let mut world = World::new();
    world.shop.reached_by(Via::LoadBalancerIp, BALANCED);
    world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    let inside = || Script::new(CLIENT, BALANCED, Some(EP));
    assert_eq!(world.verdict(inside().healthy(60_000), 70_000).class, Class::Ok);
    let refused = world.verdict(inside().refused(60_000), 70_000);
    assert_eq!(refused.class, Class::C28, "{refused:#?}");
    let silent = world.verdict(inside().silent(60_000), 70_000);
    assert_eq!(silent.class, Class::C29, "{silent:#?}");
    let outside = Script::new(OUTSIDE, BALANCED, None).drop_syn(60_000, "NETFILTER_DROP");
    let dropped = world.verdict(outside.drop_syn(61_000, "NETFILTER_DROP"), 70_000);
    assert_eq!(dropped.class, Class::C21, "{dropped:#?}");
}

/// The rules forget the endpoint, and with it the clients that were bound to it.
#[test]
fn affinity_after_the_endpoint_has_left() {
    let mut world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    world.shop.cart.affinity = Some(Duration::from_hours(3));
    world.shop.leaves(EP, 20_000);
    world.shop.pod_ends(EP, 21_000);
    assert_eq!(world.verdict(to_cart().with_endpoint(OTHER).healthy(60_000), 70_000).class, Class::Ok);
    assert_eq!(world.verdict(to_cart().established(10_000).closed(30_000), 70_000).class, Class::N9);
    let pinned = world.verdict(to_cart().dead_pod(60_000), 70_000);
    assert_eq!(pinned.class, Class::C6, "{pinned:#?}");
    assert!(pinned.cross_reference.iter().any(|class| class == "C24"), "{:?}", pinned.cross_reference);
}

/// A client resolves such a Service to the addresses themselves: no rule of kube-proxy takes part.
#[test]
fn services_without_an_address_concern_no_flow() {
    let mut headless = World::new();
    headless.shop.cart.headless = true;
    headless.shop.cart.cluster_ips.clear();
    assert!(judged(&headless, Script::new(CLIENT, EP, None).refused(60_000)).is_none());
    let mut name = World::of(Shop::with_endpoints(&[]));
    name.shop.cart.r#type = ServiceType::ExternalName;
    name.shop.cart.cluster_ips.clear();
    let to_it = Script::new(CLIENT, "198.51.100.9:443", None).silent(60_000);
    assert!(judged(&name, to_it).is_none());
}

/// A database outside the cluster, which a person wrote into the slices: no advice about Pods helps.
#[test]
fn an_endpoint_that_is_no_pod() {
    const DATABASE: &str = "192.0.2.9:5432";
    let with = |listed: bool| {
        let mut world = World::of(Shop::with_endpoints(&[]));
        world.shop.cart.selector = Labels::default();
        if listed {
            let outside = Endpoint { pod: None, node: None, ..endpoint(addr(DATABASE).ip(), "", READY) };
            let slice = slice(&world.shop.cart, addr(DATABASE), vec![outside]);
            world.shop.put(1_000, Object::EndpointSlice(Arc::new(slice)));
        }
        world
    };
    let world = with(true);
    let to_it = || Script::new(CLIENT, VIP, Some(DATABASE));
    assert_eq!(world.verdict(to_it().healthy(60_000), 70_000).class, Class::Ok);
    for (script, class) in [(to_it().refused(60_000), Class::C28), (to_it().silent(60_000), Class::C29)] {
        let verdict = world.verdict(script, 70_000);
        assert_eq!((verdict.class, &verdict.flow.endpoint_pod), (class, &None), "{verdict:#?}");
        let [step] = &verdict.mitigation.steps[..] else { panic!("{:#?}", verdict.mitigation) };
        assert!(step.text.contains("get endpointslices"), "{}", step.text);
        let connects = step.text.contains("`kubectl -n shop exec client -- nc -zvw 3 192.0.2.9 5432`");
        assert!(connects, "{}", step.text);
        assert!(!verdict.mitigation.long_term.contains("Pod"), "{}", verdict.mitigation.long_term);
        assert!(!verdict.unseen.iter().any(|it| it.contains("the Pod")), "{:?}", verdict.unseen);
    }
    let empty = Script::new(CLIENT, VIP, None).unreach(60_000, 3).connect_failed(60_001);
    let empty = with(false).verdict(empty, 70_000);
    assert_eq!(empty.class, Class::C20, "{empty:#?}");
    assert!(empty.mitigation.immediate.contains("a program or a person writes these slices"), "{empty:#?}");
}

/// Two Pods and the kubelet share the node's address: only the slice says which of them the endpoint is.
#[test]
fn pods_on_the_hosts_network_share_its_address() {
    const ON_NODE: &str = "192.168.1.2:8080";
    let mut shop = Shop::with_endpoints(&[ON_NODE]);
    for name in ["cart-0", "exporter-0"] {
        let mut on_host = pod(name, addr(ON_NODE).ip());
        on_host.host_network = true;
        shop.put(0, Object::Pod(on_host.into()));
    }
    let world = World::of(shop);
    let refused = world.verdict(Script::new(CLIENT, VIP, Some(ON_NODE)).refused(60_000), 70_000);
    assert_eq!((refused.class, refused.severity), (Class::C28, Severity::Medium));
    assert_eq!(refused.flow.endpoint_pod.as_deref(), Some("shop/cart-0"));
    assert!(refused.against.is_empty(), "{:?}", refused.against);
    // A process of the node is no Pod's.
    let of_node = world.verdict(Script::new("192.168.1.2:50000", VIP, Some(ON_NODE)).healthy(60_000), 70_000);
    assert_eq!((of_node.class, of_node.flow.client_pod), (Class::Ok, None));
}
