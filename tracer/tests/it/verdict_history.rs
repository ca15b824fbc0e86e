//! The cluster at the moment of a flow: hints, released addresses, and unread objects.

use crate::{
    cluster_support::Shop,
    flow_support::{CLIENT, EP, Script, VIP, World, addr, at},
};
use viptrace::{
    class::Class,
    cluster::{
        Address, History, Kind, LOOK_BACK, Membership, Usable, Vip,
        model::{Object, ServiceType},
    },
    net::Protocol,
    verdict::Verdict,
};

fn resolve<'a>(history: &'a History, address: &str) -> Address<'a> {
    history.address(addr(address), Protocol::TCP, at(60_000))
}

fn cart(history: &History) -> Vip<'_> {
    let Address::Vip(cart) = resolve(history, VIP) else { panic!("cart is a Service") };
    cart
}

#[test]
fn hints_that_narrow_the_endpoints_are_reported_with_the_fault() {
    let elsewhere = "10.244.2.7:8080";
    let mut world = World::of(Shop::with_endpoints(&[EP, elsewhere, "10.244.2.8:8080"]));
    let history = world.shop.history();
    let cart = history.slices_at(&world.shop.cart.key, at(50_000)).next().unwrap();
    let mut slice = cart.as_ref().clone();
    for endpoint in &mut slice.endpoints[1..] {
        endpoint.for_zones = ["zone-of-worker-2".into()].into();
    }
    let failing = |endpoint| Script::new(CLIENT, VIP, Some(endpoint)).refused(60_000);
    let told =
        |verdict: &Verdict| verdict.evidence.iter().any(|said| said.content.contains("topology hints"));
    // One endpoint without a hint, and all are used.
    world.shop.put(52_000, Object::EndpointSlice(slice.clone().into()));
    assert!(!told(&world.verdict(failing(EP), 200_000)));

    slice.endpoints[0].for_zones = ["zone-of-worker-1".into()].into();
    world.shop.put(53_000, Object::EndpointSlice(slice.into()));
    let refused = world.verdict(failing(EP), 200_000);
    assert_eq!(refused.class, Class::C28);
    let said = refused.evidence.iter().find(|said| said.content.contains("topology hints")).unwrap();
    assert!(said.content.contains("1 of the 3 ready endpoints of shop/cart:http"), "{}", said.content);
    assert!(refused.cross_reference.iter().any(|reference| reference == "C25"));
    // An endpoint that hints reserve for other nodes, and one that serves.
    assert!(!told(&world.verdict(failing(elsewhere), 200_000)));
    let served = Script::new(CLIENT, VIP, Some(EP)).healthy(60_000);
    assert!(!told(&world.verdict(served, 200_000)));
}

/// The control plane is newer than this node's kube-proxy, which follows the hints for zones beside those for nodes.
#[test]
fn hints_for_nodes_are_not_an_older_kube_proxys() {
    let mut world = World::of(Shop::with_endpoints(&[EP, "10.244.1.8:8080", "10.244.1.9:8080"]));
    let history = world.shop.history();
    let mut slice = history.slices_at(&world.shop.cart.key, at(50_000)).next().unwrap().as_ref().clone();
    for (endpoint, node) in slice.endpoints.iter_mut().zip(["worker-1", "worker-2", "worker-2"]) {
        endpoint.for_zones = ["zone-of-worker-1".into()].into();
        endpoint.for_nodes = [node.into()].into();
    }
    world.shop.put(53_000, Object::EndpointSlice(slice.into()));
    for (version, follows) in [("v1.32.4", false), ("v1.33.1", false), ("v1.34.0", true), ("", true)] {
        world.node.version = version;
        let verdict = world.verdict(Script::new(CLIENT, VIP, Some(EP)).refused(60_000), 200_000);
        let told =
            verdict.evidence.iter().any(|said| said.content.contains("topology hints leave 1 of the 3"));
        assert_eq!(told, follows, "{version}: {verdict:#?}");
    }
}

#[test]
fn a_former_address_of_a_service_is_reported() {
    for (class, words, change) in [
        (Class::C27, "headless", "headless"),
        (Class::C27, "a name in DNS", "name"),
        (Class::C5c, "gave up", "another address"),
    ] {
        let mut world = World::new();
        let mut service = world.shop.cart.clone();
        service.cluster_ips.clear();
        match change {
            "headless" => service.headless = true,
            "name" => service.r#type = ServiceType::ExternalName,
            _ => service.cluster_ips.push("10.96.0.99".parse().unwrap()),
        }
        world.shop.put(20_000, Object::Service(service.into()));
        let verdict = world.verdict(Script::new(CLIENT, VIP, None).silent(60_000), 200_000);
        assert_eq!(verdict.class, class, "{change}");
        assert!(verdict.root_cause.contains(words), "{}", verdict.root_cause);
    }
}

#[test]
fn a_nodes_own_address_is_more_than_a_services() {
    let mut shop = Shop::new();
    // k3s publishes a Service at the addresses of the nodes.
    shop.cart.external_ips = vec!["192.168.1.2".parse().unwrap()];
    let history = shop.history();
    assert!(matches!(resolve(&history, "192.168.1.2:80"), Address::Vip(_)));
    assert_eq!(resolve(&history, "192.168.1.2:22"), Address::Other);
    assert!(matches!(resolve(&history, "10.96.0.10:22"), Address::UnknownPort(_)));
    // A rule for such an address still belongs to a Service.
    let rule = history.lookup(addr("192.168.1.2:22"), Protocol::TCP, at(60_000));
    assert!(matches!(rule, Address::UnknownPort(_)));
}

#[test]
fn a_name_without_a_node_does_not_show_local_endpoints() {
    let history = Shop::new().history();
    let local = |node| history.usable(&cart(&history), Some(node), at(60_000)).unwrap().local;
    assert_eq!(local("worker-1"), Some(1));
    assert_eq!(local("worker-2"), Some(0));
    assert_eq!(local("worker-1.example.org"), None);
}

#[test]
fn unread_objects_are_unknown() {
    let mut shop = Shop::new();
    let history = shop.history();
    let known = history.usable(&cart(&history), Some("worker-1"), at(60_000));
    assert_eq!(known, Some(Usable { count: 1, local: Some(1), since: at(0), terminating: false }));
    shop.known.retain(|kind| *kind != Kind::EndpointSlice);
    for (history, vip) in [(shop.history(), cart(&history)), (History::new(LOOK_BACK), cart(&history))] {
        assert_eq!(history.membership(&vip, addr(EP), at(1000)), Membership::Unknown);
        assert_eq!(history.usable(&vip, None, at(1000)), None);
    }
}

/// A flow's VIP is resolved at its beginning; the rules look its Service port up again at later moments.
#[test]
fn a_vip_is_found_again_at_another_moment() {
    let mut shop = Shop::new();
    let mut renumbered = shop.cart.clone();
    renumbered.ports[0].port = 8000;
    shop.put(20_000, Object::Service(renumbered.into()));
    let history = shop.history();
    let Address::Vip(cart) = history.address(addr(VIP), Protocol::TCP, at(10_000)) else {
        panic!("its port")
    };
    let usable = |ms| history.usable(&cart, None, at(ms)).map(|usable| usable.count);
    assert_eq!((usable(10_000), usable(30_000)), (Some(1), None), "the address has no such port any more");
    let Address::Vip(moved) = history.address(addr("10.96.0.10:8000"), Protocol::TCP, at(30_000)) else {
        panic!("its new port")
    };
    assert_eq!(moved.to_string(), "shop/cart:http");
}
