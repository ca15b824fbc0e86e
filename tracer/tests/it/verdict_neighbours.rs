//! Decisions in other namespaces than that of this node's rules: those of another node on this kernel, whose flows are its
//! own to report, and those of a client's own Pod.

use crate::{
    cluster_support::{Shop, pod},
    flow_support::{CLIENT, CLIENT_NS, CT, EP, SERVER_NS, Script, VIP, World, addr, fold, last_revisions},
    node_support::Rules,
};
use viptrace::{
    class::Class, cluster::model::Object, diagnosis::other_node, flow::Flow, net::Netns, node::RuleEffect,
    sighting::TcpState,
};

const OTHER_NODE: Netns = Netns(4_026_533_000);
/// A Pod of worker-2, and the kubelet there as its Pods see it.
const THERE: &str = "10.244.2.5:40000";
const KUBELET_THERE: &str = "10.244.2.1:40000";
const EP_THERE: &str = "10.244.2.7:8080";

/// The shop on worker-1, with a client and an endpoint on worker-2.
fn world() -> World {
    let mut world = World::of(Shop::with_endpoints(&[EP]));
    for (name, address) in [("client-2", THERE), ("cart-2", EP_THERE)] {
        let mut pod = pod(name, addr(address).ip());
        pod.node = Some("worker-2".into());
        world.shop.put(0, Object::Pod(pod.into()));
    }
    world
}

/// The script's flow, with the decisions of the other node's rules.
fn decided_there(script: Script) -> Flow {
    flow(script.in_netns(OTHER_NODE))
}

fn flow(script: Script) -> Flow {
    last_revisions(fold(script.out, 70_000).0).remove(0)
}

fn owner(world: &World, flow: &Flow) -> Option<String> {
    let (history, snapshot) = (world.shop.history(), world.snapshot());
    other_node(flow, &world.context(&history, &snapshot).surroundings()).map(str::to_owned)
}

#[test]
fn a_flow_that_the_other_node_decided_is_its_own() {
    let world = world();
    let of = |client, to, endpoint| Script::new(client, to, endpoint);
    for theirs in [
        of(THERE, VIP, Some(EP)).healthy(60_000),
        of(THERE, VIP, Some(EP)).refused(60_000),
        of(THERE, VIP, None).unreach(60_000, 3).connect_failed(60_001),
        // A node port of the other node, from a client outside the cluster, and a probe by its kubelet.
        of("203.0.113.9:50000", "192.168.1.3:30080", Some(EP)).refused(60_000),
        of(KUBELET_THERE, EP_THERE, None).refused(60_000),
        of("192.168.1.3:40000", VIP, Some(EP)).refused(60_000),
    ] {
        assert_eq!(owner(&world, &decided_there(theirs)).as_deref(), Some("worker-2"));
    }
}

#[test]
fn a_flow_of_this_node_stays_its_own() {
    let world = world();
    let of = |client, to, endpoint| Script::new(client, to, endpoint);
    // Its rules decided it, wherever the client is.
    assert_eq!(owner(&world, &flow(of(THERE, "192.168.1.2:30080", Some(EP)).refused(60_000))), None);
    assert_eq!(owner(&world, &flow(of(CLIENT, VIP, Some(EP_THERE)).refused(60_000))), None);
    for ours in [
        // The client's own namespace tracks connections too, and this node's tracked nothing.
        of(CLIENT, VIP, None).unreach(60_000, 3).connect_failed(60_001),
        of(CLIENT, VIP, Some("127.0.0.1:15001")).healthy(60_000),
        // Its arrival at an endpoint of this node.
        of(THERE, EP, None).refused(60_000),
        // Neither the client's place nor the target's is known.
        of("203.0.113.9:50000", VIP, Some(EP)).refused(60_000),
    ] {
        assert_eq!(owner(&world, &decided_there(ours)), None);
    }
}

/// A virtual machine or a container in a Pod: its addresses are the Pod's own matter, and another Pod may have them.
#[test]
fn a_flow_that_a_pod_masqueraded_is_decided_here() {
    let world = world();
    let mut script = Script::new(THERE, VIP, Some(EP)).confirm(60_000);
    script.out[0].netns = CLIENT_NS;
    let masqueraded = Script::new(CLIENT, VIP, Some(EP)).confirm(60_001);
    script.out.extend(masqueraded.out);
    let mut theirs = flow(script);
    assert_eq!(theirs.decisions.len(), 1, "the two entries are two flows without their link");
    let here = flow(Script::new(CLIENT, VIP, Some(EP)).confirm(60_001)).decisions[0];
    theirs.decisions.push(here);
    assert_eq!(owner(&world, &theirs), None);
    // A target is no proof of its own where nothing elsewhere decided.
    let mut silent =
        decided_there(Script::new("172.17.0.2:40000", "192.168.1.3:30080", Some(EP)).refused(60_000));
    silent.decisions.clear();
    assert_eq!(owner(&world, &silent), None);
}

/// With a wrong name every flow of this node would be another's.
#[test]
fn with_a_name_that_is_not_this_nodes_no_flow_is_another_nodes() {
    let theirs = || decided_there(Script::new(THERE, VIP, Some(EP)).refused(60_000));
    let mut misnamed = world();
    assert!(owner(&misnamed, &theirs()).is_some());
    misnamed.node.own = vec![addr("192.168.1.7:0").ip()];
    assert_eq!(owner(&misnamed, &theirs()), None);
    let mut elsewhere = world();
    elsewhere.node_netns = None;
    assert_eq!(owner(&elsewhere, &theirs()), None);
}

/// A service mesh: the client's own namespace redirects what it sends to a proxy there.
#[test]
fn a_sidecar_took_the_connection() {
    let redirected = |to| Script::new(CLIENT, to, Some("127.0.0.1:15001"));
    let world = World::new();
    let judge = |script: Script| world.judge(&flow(script.in_netns(CLIENT_NS))).unwrap();
    let healthy = judge(redirected(VIP).healthy(60_000));
    assert_eq!(healthy.class, Class::Ok);
    assert!(healthy.root_cause.contains("a proxy in the client's own Pod (127.0.0.1:15001)"), "{healthy:?}");
    for (script, what) in [
        (redirected(VIP).refused(60_000), "refused a connection to shop/cart:http"),
        (redirected(VIP).silent(60_000), "did not answer a connection to shop/cart:http"),
        (
            redirected(VIP).established(60_000).receive_reset(61_000, TcpState::Established),
            "ended with a RST a connection to shop/cart:http",
        ),
    ] {
        let failed = judge(script);
        assert_eq!(failed.class, Class::Unknown);
        assert!(failed.root_cause.contains(what), "{}", failed.root_cause);
        assert!(failed.unseen.iter().any(|line| line.contains("istio-proxy")), "{:?}", failed.unseen);
    }
    // Its rules are not this connection's, whatever their state.
    let mut without = World::of(Shop::with_endpoints(&[]));
    without.node.rules = Rules::Vip(RuleEffect::Missing);
    let flow = flow(redirected(VIP).refused(60_000).in_netns(CLIENT_NS));
    assert_eq!(without.judge(&flow).unwrap().class, Class::Unknown);
    let mut nothing = World::new();
    nothing.node.rules = Rules::Nothing;
    assert_eq!(nothing.judge(&flow).unwrap().class, Class::Unknown);
    // Where the node's namespace is unknown, a proxy of the whole node would look the same.
    let mut anywhere = World::new();
    anywhere.node_netns = None;
    assert!(!anywhere.judge(&flow).unwrap().root_cause.contains("proxy"));
}

/// The rules of a sidecar in the endpoint's Pod send what arrives there to its own port.
#[test]
fn a_sidecar_of_the_endpoint_that_does_not_run_refuses() {
    let world = World::new();
    let refused = |proxy: &str| {
        let mut script = Script::new(CLIENT, VIP, Some(EP)).confirm(60_000);
        let there = Script::new(CLIENT, EP, Some(proxy)).with_ct(CT + 4096).confirm(60_001).no_socket(60_001);
        script.out.extend(there.in_netns(SERVER_NS).out);
        let script = script.kill(60_002).receive_reset(60_003, TcpState::SynSent).connect_failed(60_003);
        world.judge(&flow(script)).unwrap()
    };
    for proxy in ["10.244.1.7:15006", "127.0.0.1:4143"] {
        let verdict = refused(proxy);
        assert_eq!(verdict.class, Class::C28);
        let port = addr(proxy).port();
        let what = format!("redirect them to port {port}, as those of a service mesh's sidecar do");
        assert!(verdict.root_cause.contains(&what), "{}", verdict.root_cause);
        assert!(!verdict.root_cause.contains("8080: nothing listens"), "{}", verdict.root_cause);
        assert!(verdict.unseen.iter().any(|line| line.contains("istio-proxy")), "{:?}", verdict.unseen);
    }
    // Without a sidecar the endpoint's port itself is closed.
    let bare = world.judge(&flow(Script::new(CLIENT, VIP, Some(EP)).refused(60_000))).unwrap();
    assert!(bare.root_cause.ends_with("nothing listens on port 8080"), "{}", bare.root_cause);
    assert!(!bare.unseen.iter().any(|line| line.contains("istio-proxy")), "{:?}", bare.unseen);
}
