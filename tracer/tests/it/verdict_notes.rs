//! Notes that a verdict adds to its cause, and causes behind kube-proxy's: names (C35), versions (C9), IPVS (C11), the
//! proof that new connections work (C5b), other namespaces (C16), devices (C34).

use crate::{
    cluster_support::{Shop, node},
    flow_support::{CLIENT, CLIENT_NS, EP, Script, VIP, World, addr, at, fold, last_revisions},
    node_support::{Rules, iptables},
};
use viptrace::{
    class::{Class, Confidence, Domain},
    cluster::{
        Key, Via,
        model::{Conditions, Object, ProbeKind},
    },
    net::Protocol,
    node::{ProxyMode, RuleEffect, capture::Kind},
    sighting::{Fact, Hook, TcpState},
    verdict::Verdict,
};

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

fn untranslated() -> Script {
    Script::new(CLIENT, VIP, None)
}

fn says(verdict: &Verdict, words: &str) -> bool {
    verdict.evidence.iter().any(|evidence| evidence.content.contains(words))
}

fn names(verdict: &Verdict, class: &str) -> bool {
    verdict.cross_reference.iter().any(|other| other == class)
}

#[test]
fn an_endpoint_that_is_published_before_it_is_ready_is_named() {
    const EARLY: Conditions = Conditions { ready: true, serving: false, terminating: false };
    let early = |publishes: bool| {
        let mut world = World::new();
        world.shop.cart.publish_not_ready_addresses = publishes;
        world.shop.becomes(EP, EARLY, 10_000);
        world
    };
    for (script, class) in [(to_cart().refused(60_000), Class::C28), (to_cart().silent(60_000), Class::C29)] {
        let verdict = early(true).verdict(script.clone(), 90_000);
        assert_eq!(verdict.class, class);
        assert!(says(&verdict, "publishNotReadyAddresses of shop/cart"), "{verdict:#?}");
        assert!(!says(&early(false).verdict(script, 90_000), "publishNotReadyAddresses"));
    }
    assert!(!says(&early(true).verdict(to_cart().healthy(60_000), 90_000), "publishNotReadyAddresses"));
}

/// A cloud's machine has its external address at the provider only.
#[test]
fn a_node_port_at_an_external_address_of_this_node_is_not_another_nodes() {
    let silent = |address: &str| {
        let mut world = World::new();
        world.shop.reached_by(Via::NodePort, address);
        world.node.own = vec![addr("10.0.0.2:0").ip()];
        world.verdict(Script::new(CLIENT, address, None).silent(60_000), 90_000)
    };
    let unseen = |verdict: &Verdict, words: &str| verdict.unseen.iter().any(|line| line.contains(words));
    let own = silent("192.168.1.2:30080");
    assert_eq!(own.class, Class::Unknown);
    assert!(unseen(&own, "192.168.1.2 is an address of it in the API that no interface has"), "{own:#?}");
    assert!(!unseen(&own, "kube-proxy on node"), "{own:#?}");
    assert!(unseen(&silent("192.168.1.3:30080"), "kube-proxy on node worker-2"));
}

#[test]
fn c35_a_failure_of_the_dns_service_says_that_names_do_not_resolve() {
    let dns = |port: u16| {
        let mut world = World::new();
        world.shop.cart.key = Key::new("kube-system", "kube-dns");
        world.shop.cart.ports[0].port = port;
        let vip = format!("10.96.0.10:{port}");
        world.verdict(Script::new(CLIENT, &vip, None).silent(60_000), 70_000)
    };
    let verdict = dns(53);
    assert!(verdict.class.is_fault() && names(&verdict, "C35"), "{verdict:#?}");
    assert!(says(&verdict, "names do not resolve"), "{verdict:#?}");
    // Its metrics port serves no names, and neither does another Service.
    assert!(!names(&dns(9153), "C35"));
    assert!(!names(&World::new().verdict(untranslated().silent(60_000), 70_000), "C35"));
}

#[test]
fn c9_a_kube_proxy_that_is_too_old_is_named_beside_the_cause() {
    let of = |version: &'static str| {
        let mut world = World::new();
        let Object::Node(mut newest) = node("worker-2", "192.168.1.3") else { panic!("a Node") };
        std::sync::Arc::make_mut(&mut newest).kubelet_version = "v1.33.1".into();
        world.shop.put(0, Object::Node(newest));
        world.node.version = version;
        world
    };
    let judged = |version: &'static str, script: Script| {
        let mut world = of(version);
        world.shop.leaves(EP, 20_000);
        world.verdict(script, 70_000)
    };
    let verdict = judged("v1.28.4", to_cart().refused(60_000));
    assert!(verdict.class == Class::C6 && names(&verdict, "C9"), "{verdict:#?}");
    assert!(says(&verdict, "at least 5 minor versions newer, 3 are allowed"), "{verdict:#?}");
    // Within the policy, and where kube-proxy is not at fault.
    assert!(!names(&judged("v1.30.4", to_cart().refused(60_000)), "C9"));
    assert!(!names(&of("v1.28.4").verdict(to_cart().refused(60_000), 70_000), "C9"));
}

#[test]
fn c11_ipvs_mode_without_ipvs() {
    let mut world = World::new();
    world.node.mode = Some(ProxyMode::Ipvs);
    world.node.rules = Rules::Lists(Vec::new());
    world.node.no_ipvs = true;
    let verdict = world.verdict(untranslated().silent(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C11, Domain::IpvsModules));
    assert_eq!(verdict.confidence, Confidence::High);
    // In another mode a kernel without IPVS is usual.
    world.node.mode = Some(ProxyMode::Iptables);
    assert_ne!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C11);
    // With IPVS, an empty table is kube-proxy's.
    world.node.mode = Some(ProxyMode::Ipvs);
    (world.node.no_ipvs, world.node.rules) = (false, Rules::Nothing);
    assert_eq!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C1);
}

#[test]
fn c11_an_address_that_is_on_no_interface() {
    let mut world = World::new();
    // The mode is known from the configuration only, so that the node has its own addresses and no VIP.
    (world.node.mode, world.node.config) = (None, "kind: KubeProxyConfiguration\nmode: ipvs\n");
    let server = format!("-A -t {VIP} -s rr\n-a -t {VIP} -r {EP} -m -w 1\n");
    world.node.rules = Rules::Lists(vec![(Kind::IpvsSave, server)]);
    let verdict = world.verdict(untranslated().silent(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C11, Domain::IpvsModules));
    assert!(verdict.root_cause.contains("no interface has the address 10.96.0.10"), "{}", verdict.root_cause);
    world.node.own.push(addr(VIP).ip());
    assert_ne!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C11);
}

fn flow(script: Script) -> viptrace::flow::Flow {
    last_revisions(fold(script.out, 80_000).0).remove(0)
}

#[test]
fn c5b_is_certain_once_a_later_connection_is_translated() {
    let mut world = World::new();
    world.node.read_ms = Some(66_000);
    let old = || untranslated().silent(60_000);
    let verdict = world.verdict(old(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C5b, Confidence::Medium));
    // An earlier one proves nothing.
    let mut before = World::new();
    before.node.read_ms = Some(66_000);
    before.note(&flow(Script::new("10.244.1.101:40000", VIP, Some(EP)).healthy(50_000)));
    assert_eq!(before.verdict(old(), 70_000).confidence, Confidence::Medium);
    world.note(&flow(Script::new("10.244.1.101:40000", VIP, Some(EP)).healthy(62_000)));
    let verdict = world.verdict(old(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C5b, Confidence::High));
    assert!(says(&verdict, "a later connection to 10.96.0.10:80 was translated"), "{verdict:#?}");
    // One that was not translated after the rule was read: the rule does not translate.
    let mut broken = World::new();
    broken.node.read_ms = Some(66_000);
    broken.note(&flow(Script::new("10.244.1.101:40000", VIP, None).silent(67_000)));
    let verdict = broken.verdict(old(), 70_000);
    assert_eq!(verdict.class, Class::C5, "{verdict:#?}");
    assert!(!verdict.against.is_empty());
}

#[test]
fn c16_the_table_of_another_namespace() {
    let full = || untranslated().drop_table_full(10_000).retransmit(11_000, TcpState::SynSent);
    let verdict = World::new().verdict(full(), 20_000);
    assert!(!verdict.root_cause.contains("netns"), "{}", verdict.root_cause);
    let mut elsewhere = full();
    for sighting in &mut elsewhere.out {
        if matches!(sighting.hook, Hook::KfreeSkb | Hook::EarlyDrop) {
            sighting.netns = CLIENT_NS;
        }
    }
    let verdict = World::new().verdict(elsewhere, 20_000);
    assert_eq!(verdict.class, Class::C16);
    assert!(verdict.root_cause.contains("netns 4026532100 is full, which is not the node's"), "{verdict:#?}");
    assert!(verdict.against.is_empty(), "the node's own table says nothing about it: {verdict:#?}");
}

#[test]
fn c34_names_the_device_that_is_known() {
    let rerouted = || {
        let mut script = to_cart();
        script.masquerade = Some(addr("192.168.1.2:52000"));
        script
            .established(10_000)
            .kill_answered(20_000)
            .drop_later(20_000, "NETFILTER_DROP")
            .send_reset(20_500, true, TcpState::Established, "X")
            .receive_reset(20_501, TcpState::Established)
    };
    let verdict = World::new().verdict(rerouted(), 40_000);
    assert_eq!(verdict.class, Class::C34, "{verdict:#?}");
    assert!(!says(&verdict, "leave by"), "{verdict:#?}");
    let mut world = World::new();
    let rules = iptables("KUBE-SVC-A", &[(addr(VIP), Protocol::TCP, addr(EP), RuleEffect::Forwards)]);
    let routes = "default via 192.168.1.1 dev eth1\n".to_owned();
    world.node.rules = Rules::Lists(vec![(Kind::IptablesSave, rules), (Kind::Routes, routes)]);
    let verdict = world.verdict(rerouted(), 40_000);
    assert!(says(&verdict, "leave by eth1 now"), "{verdict:#?}");
}

#[test]
fn n1_probes_of_one_port_are_told_apart_by_their_periods() {
    let mut world = World::of(Shop::new());
    let pod = world.shop.pods.get_mut(&addr(EP).ip()).unwrap();
    let mut liveness = pod.probes[0].clone();
    liveness.kind = ProbeKind::Liveness;
    let readiness = pod.probes[0].period;
    liveness.period = readiness * 2 + std::time::Duration::from_secs(1);
    pod.probes = pod.probes.iter().cloned().chain([liveness]).collect();
    let probe = |ms: u64, port: u16| {
        flow(
            Script::new(&format!("10.244.1.1:{port}"), EP, None)
                .confirm_by(ms, 812, "kubelet")
                .closed(ms + 5),
        )
    };
    let (short, long) = (readiness.as_millis() as u64, readiness.as_millis() as u64 * 2 + 1000);
    // The two begin three seconds apart.
    let mut times: Vec<(u64, &str)> = (0..6).map(|n| (10_000 + n * short, "readiness")).collect();
    times.extend((0..3).map(|n| (13_000 + n * long, "liveness")));
    times.sort_unstable();
    let mut judged = Vec::new();
    for (port, (ms, kind)) in (50_000_u16..).zip(times) {
        let flow = probe(ms, port);
        world.note(&flow);
        let verdict = world.judge(&flow).unwrap();
        let told = if verdict.root_cause.contains(" or ") { "either" } else { kind };
        assert!(
            told == "either" || verdict.root_cause.contains(&format!("the kubelet's {kind} probe")),
            "{ms}: {verdict:#?}"
        );
        judged.push((at(ms), told));
    }
    // The first ones have nothing before them.
    assert_eq!(judged[0].1, "either");
    let last = &judged[judged.len() - 3..];
    assert!(last.iter().all(|(_, told)| *told != "either"), "{judged:?}");
}

/// Without conntrack only what happens to a datagram on this node is observed: a drop, or IPVS's refusal.
#[test]
fn datagrams_that_nothing_tracks() {
    let dropped = |reason: &str| {
        let mut script = untranslated().udp().drop_syn(60_000, reason);
        for sighting in &mut script.out {
            if let Fact::Packet(packet) = &mut sighting.fact {
                (packet.ct, packet.original_direction, packet.tuple) = (None, None, Some(script_orig()));
            }
        }
        script
    };
    // Its address is on no host, on no route, or nobody listens there.
    for reason in ["NEIGH_FAILED", "IP_OUTNOROUTES", "NO_SOCKET"] {
        let mut world = World::new();
        (world.node.rules, world.node.running) = (Rules::Nothing, Some(false));
        let verdict = world.verdict(dropped(reason), 70_000);
        assert_eq!(verdict.class, Class::C1, "{reason}: {verdict:#?}");
        assert!(
            verdict.unseen.iter().any(|what| what.contains("there is no conntrack entry")),
            "{verdict:#?}"
        );
        // The rules stand: then the drop has another cause.
        assert_ne!(World::new().verdict(dropped(reason), 70_000).class, Class::C1, "{reason}");
    }
    // A kube-proxy that had written its rules: another program removed them.
    let mut world = World::new();
    world.node.rules = Rules::Nothing;
    world.note(&flow(Script::new("10.244.1.101:40000", VIP, Some(EP)).healthy(50_000)));
    assert_eq!(world.verdict(dropped("NEIGH_FAILED"), 70_000).class, Class::C5e);
    // IPVS without a real server answers with ICMP.
    let mut world = World::new();
    (world.node.mode, world.node.sysctls) = (Some(ProxyMode::Ipvs), "net.ipv4.vs.conntrack = 0\n");
    let mut script = untranslated().udp().drop_syn(60_000, "NETFILTER_DROP");
    let Fact::Packet(packet) = &mut script.out[0].fact else { panic!("a packet") };
    (packet.ct, packet.original_direction, packet.reason) = (None, None, None);
    script.out[0].hook = Hook::IpVsLeave;
    assert_eq!(world.verdict(script, 70_000).class, Class::C12);
}

fn script_orig() -> viptrace::net::Tuple {
    untranslated().udp().orig()
}

#[test]
fn c29_a_connection_that_fell_silent_names_the_mtus_of_the_node() {
    let silent = || {
        let script = to_cart().established(10_000);
        let repeats = [10_200, 10_600, 11_400, 13_000, 16_200, 22_600];
        repeats.into_iter().fold(script, |script, ms| script.retransmit(ms, TcpState::Established))
    };
    let mut world = World::new();
    let verdict = world.verdict(silent(), 40_000);
    assert!(verdict.class == Class::C29 && !says(&verdict, "MTUs"), "{verdict:#?}");
    let links = "[{\"ifname\": \"eth0\", \"mtu\": 1500}, {\"ifname\": \"veth1\", \"mtu\": 1450}, \
                 {\"ifname\": \"flannel.1\", \"mtu\": 1450}]";
    world.node.rules = Rules::Lists(vec![(Kind::Interfaces, links.to_owned())]);
    let verdict = world.verdict(silent(), 40_000);
    assert!(says(&verdict, "eth0 1500, flannel.1 1450"), "{verdict:#?}");
    assert!(names(&verdict, "C33"));
}
