//! Faults and look-alikes that have no scenario on a kernel: each from constructed sightings, beside its twin.

use std::time::Duration;

use crate::{
    cluster_support::{NOT_READY, READY, Shop, endpoint, service, slice},
    flow_support::{CLIENT, EP, NODE, Script, VIP, World, addr, fold, last_revisions},
    node_support::{Rules, iptables},
};
use viptrace::{
    class::{Class, Confidence, Domain, Severity},
    cluster::{
        Via,
        model::{Object, Pod, ProbeKind},
    },
    net::Protocol,
    node::{ProxyMode, RuleEffect, capture::Kind},
    sighting::{Fact, Status, TcpState},
    verdict::Verdict,
};

const OTHER: &str = "10.244.1.8:8080";

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

fn says(verdict: &Verdict, what: &str) -> bool {
    verdict.evidence.iter().any(|evidence| evidence.content.contains(what))
}

fn judged(world: &World, script: Script) -> Option<Verdict> {
    let flows = last_revisions(fold(script.out, 70_000).0);
    let [flow] = flows.as_slice() else { panic!("one flow expected: {flows:#?}") };
    world.judge(flow)
}

fn falls_silent(script: Script, ms: u64) -> Script {
    [0, 400, 1_200, 2_800, 6_000]
        .iter()
        .fold(script, |script, wait| script.retransmit(ms + wait, TcpState::Established))
}

#[test]
fn c5c_an_address_among_the_cluster_ips_that_no_service_has() {
    let mut world = World::new();
    let far = service("far", "10.96.200.1");
    let at_far = addr("10.244.1.9:8080");
    let endpoints = slice(&far, at_far, vec![endpoint(at_far.ip(), "far-0", READY)]);
    world.shop.put(0, Object::Service(far.into()));
    world.shop.put(0, Object::EndpointSlice(endpoints.into()));
    let to = |address: &str| Script::new(CLIENT, address, None);
    let verdict = judged(&world, to("10.96.77.77:80").silent(60_000)).unwrap();
    assert_eq!((verdict.class, verdict.confidence), (Class::C5c, Confidence::Medium));
    assert!(verdict.root_cause.contains("no Service has the address 10.96.77.77"), "{}", verdict.root_cause);
    assert_eq!((verdict.service, verdict.flow.vip), (None, Some(addr("10.96.77.77:80"))));
    // A host elsewhere, a Pod, and an address that answers.
    assert_eq!(judged(&world, to("192.0.2.7:80").silent(60_000)), None);
    assert_eq!(judged(&world, to("10.96.77.77:80").healthy(60_000)), None);
    world.node.own.push(addr("10.96.77.77:80").ip());
    assert_eq!(judged(&world, to("10.96.77.77:80").silent(60_000)), None);
}

#[test]
fn c17_an_entry_that_could_not_be_inserted() {
    // TCP, with a race (C17b).
    let dropped =
        |script: Script| script.drop_syn(10_000, "NETFILTER_DROP").retransmit(11_000, TcpState::SynSent);
    let raced = dropped(to_cart().confirm(10_000).clash(10_000)).retransmit(13_000, TcpState::SynSent);
    let verdict = World::new().verdict(raced, 30_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C17, Domain::Conntrack));
    assert!(verdict.root_cause.contains("another packet took its tuple"), "{}", verdict.root_cause);
    // Without a race (C17c): the drop comes from within the confirmation.
    let long = dropped(to_cart().confirm(10_000)).retransmit(13_000, TcpState::SynSent);
    let verdict = World::new().verdict(long, 30_000);
    assert_eq!(verdict.class, Class::C17);
    assert!(verdict.root_cause.contains("hash chain is too long"), "{}", verdict.root_cause);
    assert!(verdict.unseen.iter().any(|what| what.contains("chaintoolong")), "{verdict:#?}");
    // The drop of an answer is another packet's, and so is a drop that comes later.
    let answer = to_cart().confirm(10_000).drop_answer(10_001).client_has_no_socket(10_002, addr(EP));
    let answer = answer.retransmit(11_000, TcpState::SynSent).retransmit(13_000, TcpState::SynSent);
    assert_eq!(World::new().verdict(answer, 30_000).class, Class::C31);
    let later = to_cart().confirm(10_000).retransmit(11_000, TcpState::SynSent);
    let later = later.drop_syn(11_001, "NETFILTER_DROP").retransmit(13_000, TcpState::SynSent);
    assert_ne!(World::new().verdict(later, 30_000).class, Class::C17);
    // A policy's drop comes before: the entry never reaches the confirmation.
    let policy = dropped(to_cart()).retransmit(13_000, TcpState::SynSent);
    assert_eq!(World::new().verdict(policy, 30_000).class, Class::C30);
}

#[test]
fn c24_affinity_keeps_a_client_at_a_dead_endpoint() {
    let mut world = World::new();
    world.shop.cart.affinity = Some(Duration::from_hours(3));
    world.shop.ready(OTHER, 0);
    world.shop.leaves(EP, 20_000);
    world.node.mode = Some(ProxyMode::Ipvs);
    let servers = format!("-A -t {VIP} -s rr -p 10800\n-a -t {VIP} -r {OTHER} -m -w 1\n");
    world.node.rules = Rules::Lists(vec![(Kind::IpvsSave, servers)]);
    let by_ipvs = || {
        let mut script = to_cart().refused(60_000);
        for sighting in &mut script.out {
            if let Fact::Conntrack(fact) = &mut sighting.fact {
                fact.ct.status.0 &= !Status::DST_NAT;
            }
        }
        script
    };
    let verdict = world.verdict(by_ipvs(), 70_000);
    assert_eq!(
        (verdict.class, verdict.domain),
        (Class::C24, Domain::ServiceConfig),
        "{}",
        verdict.root_cause
    );
    // The virtual server still sends there: the rules are stale, for every client.
    let servers = format!("-A -t {VIP} -s rr -p 10800\n-a -t {VIP} -r {EP} -m -w 1\n");
    world.node.rules = Rules::Lists(vec![(Kind::IpvsSave, servers)]);
    assert_eq!(world.verdict(by_ipvs(), 70_000).class, Class::C6);

    // A listed endpoint that refuses: the affinity explains why a retry does not help.
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    let plain = world.verdict(to_cart().refused(60_000), 70_000);
    assert!(!plain.cross_reference.contains(&"C24".into()), "{plain:#?}");
    world.shop.cart.affinity = Some(Duration::from_hours(3));
    let verdict = world.verdict(to_cart().refused(60_000), 70_000);
    assert_eq!(verdict.class, Class::C28);
    assert!(verdict.cross_reference.contains(&"C24".into()), "{verdict:#?}");
    assert!(says(&verdict, "keeps this client at the endpoint for 3 h"), "{verdict:#?}");
}

#[test]
fn c26_node_ports_at_loopback_and_at_addresses_that_no_node_lists() {
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, "192.168.1.2:30080");
    let floating = "203.0.113.50:30080";
    world.node.own.push(addr(floating).ip());
    assert_eq!(
        world.verdict(Script::new(CLIENT, floating, Some(EP)).refused(60_000), 70_000).class,
        Class::C28
    );
    assert_eq!(
        world.verdict(Script::new(CLIENT, floating, Some(EP)).healthy(60_000), 70_000).class,
        Class::Ok
    );

    // Without a translation the node's own stack answers, in its own namespace.
    let here = |mut script: Script| {
        script.out.iter_mut().for_each(|sighting| sighting.netns = NODE);
        script
    };
    let own = |port: u16| Script::new("127.0.0.1:40000", &format!("127.0.0.1:{port}"), None).confirm(60_000);
    let refused = |port| here(own(port).receive_reset(60_001, TcpState::SynSent).connect_failed(60_001));
    let answered = own(30_080).state(60_001, false, TcpState::SynSent, TcpState::Established).state(
        60_020,
        false,
        TcpState::FinWait2,
        TcpState::Close,
    );
    world.node.mode = Some(ProxyMode::Nftables);
    let verdict = world.verdict(refused(30_080), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C26, Confidence::High));
    assert!(
        verdict.root_cause.contains("nftables mode does not serve node ports at loopback"),
        "{}",
        verdict.root_cause
    );
    // A program of its own listens at this number.
    assert_eq!(judged(&world, here(answered)), None);
    // In iptables mode kube-proxy serves it.
    world.node.mode = Some(ProxyMode::Iptables);
    let served = Script::new("127.0.0.1:40000", "127.0.0.1:30080", Some(EP));
    assert_eq!(world.verdict(here(served.healthy(60_000)), 70_000).class, Class::Ok);
    // Another port at loopback is nobody's Service.
    assert_eq!(judged(&world, refused(30_081)), None);
}

#[test]
fn c30_a_tc_or_cgroup_program_drops() {
    for (reason, who) in
        [("TC_EGRESS", "tc program at the outgoing"), ("BPF_CGROUP_EGRESS", "sender's cgroup")]
    {
        let script = to_cart().drop_syn(10_000, reason).retransmit(11_000, TcpState::SynSent);
        let verdict = World::new().verdict(script.retransmit(13_000, TcpState::SynSent), 30_000);
        assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::High));
        assert!(verdict.root_cause.contains(who), "{}", verdict.root_cause);
    }
}

#[test]
fn c32_the_nodes_kernel_drops_the_packet() {
    let dropped = |reason: &str| {
        let script = to_cart().drop_syn(10_000, reason).retransmit(11_000, TcpState::SynSent);
        World::new().verdict(script.drop_syn(11_000, reason).retransmit(13_000, TcpState::SynSent), 30_000)
    };
    let filtered = dropped("IP_RPFILTER");
    assert_eq!((filtered.class, filtered.domain), (Class::C32, Domain::HostKernel));
    assert_eq!(filtered.confidence, Confidence::High);
    let unforwarded = dropped("IP_INADDRERRORS");
    assert_eq!(unforwarded.class, Class::C32);
    assert!(unforwarded.mitigation.immediate.contains("sysctl -w net.ipv4.ip_forward=1"), "{unforwarded:#?}");
    assert_eq!(dropped("NEIGH_FAILED").class, Class::C29);
    // One packet was filtered and the next one passed.
    let delayed =
        to_cart().drop_syn(10_000, "IP_RPFILTER").retransmit(11_000, TcpState::SynSent).healthy(11_000);
    assert_eq!(World::new().verdict(delayed, 30_000).class, Class::Ok);
}

#[test]
fn c33_packets_that_are_too_big() {
    let silent = || falls_silent(to_cart().established(10_000), 20_000);
    let told = to_cart().established(10_000).icmp_error(20_000, "10.244.1.1:0", 4);
    let verdict = World::new().verdict(falls_silent(told.clone(), 20_001), 40_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C33, Domain::Mtu));
    // The sender heeds the error.
    assert_eq!(World::new().verdict(told.closed(21_000), 40_000).class, Class::Ok);
    // Nothing shows the size of what was lost.
    let verdict = World::new().verdict(silent(), 40_000);
    assert_eq!(verdict.class, Class::C29);
    assert!(verdict.cross_reference.contains(&"C33".into()), "{verdict:#?}");
    let datagram = to_cart().udp().confirm(10_000).drop_syn(10_001, "PKT_TOO_BIG");
    assert_eq!(World::new().verdict(datagram, 40_000).class, Class::C33);
}

#[test]
fn c34_a_masqueraded_connection_leaves_by_another_interface() {
    let masqueraded = || {
        let mut script = to_cart();
        script.masquerade = Some(addr("10.244.1.1:52000"));
        script.established(10_000)
    };
    let ended = |script: Script| {
        falls_silent(script.kill_answered(20_000).drop_later(20_000, "NETFILTER_DROP"), 20_200)
    };
    let verdict = World::new().verdict(ended(masqueraded()), 40_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C34, Domain::Conntrack));
    assert!(says(&verdict, "ended the answered conntrack entry"), "{verdict:#?}");
    // Not masqueraded: the kernel does not compare interfaces.
    assert_ne!(World::new().verdict(ended(to_cart().established(10_000)), 40_000).class, Class::C34);
    // Ended without a drop.
    let only_ended = falls_silent(masqueraded().kill_answered(20_000), 20_200);
    assert_ne!(World::new().verdict(only_ended, 40_000).class, Class::C34);
}

#[test]
fn n1_probes_that_share_a_port() {
    let mut world = World::new();
    let pod = world.shop.pods.get_mut(&addr(EP).ip()).unwrap();
    let mut liveness = pod.probes[0].clone();
    (liveness.kind, liveness.timeout) = (ProbeKind::Liveness, Duration::from_secs(3));
    pod.probes = pod.probes.iter().cloned().chain([liveness]).collect();
    let probe = || Script::new("10.244.1.1:50000", EP, None);
    let verdict = world.verdict(probe().healthy(10_000), 20_000);
    assert!(verdict.root_cause.contains("liveness or readiness probe"), "{}", verdict.root_cause);
    assert!(verdict.unseen.iter().any(|what| what.contains("they share the port")), "{verdict:#?}");
    // One that is not answered ends at its own timeout.
    let ended =
        |ms: u64| probe().confirm(10_000).retransmit(11_000, TcpState::SynSent).connect_failed(10_000 + ms);
    let verdict = world.verdict(ended(3_010), 20_000);
    assert!(verdict.root_cause.contains("the kubelet's liveness probe"), "{}", verdict.root_cause);
    let verdict = World::new().verdict(probe().healthy(10_000), 20_000);
    assert!(verdict.root_cause.contains("the kubelet's readiness probe"), "{}", verdict.root_cause);
}

/// `NodeLocal DNSCache` has the address of kube-dns on a dummy interface, and NOTRACK rules for it.
#[test]
fn n11_the_node_serves_the_address_itself() {
    let untracked = |script: Script| {
        let mut script = script;
        script.out.retain(|sighting| !matches!(sighting.fact, Fact::Conntrack(_)));
        script
    };
    let asked = || Script::new(CLIENT, VIP, None);
    let beginning = || untracked(asked().retransmit(9_999, TcpState::SynSent));
    let mut world = World::new();
    world.node.own.push(addr(VIP).ip());
    let served = beginning().state(10_001, false, TcpState::SynSent, TcpState::Established).state(
        10_020,
        false,
        TcpState::FinWait2,
        TcpState::Close,
    );
    let verdict = world.verdict(served.clone(), 20_000);
    assert_eq!(verdict.class, Class::N11);
    assert!(verdict.root_cause.contains("NodeLocal DNSCache"), "{}", verdict.root_cause);
    let failed = beginning().retransmit(12_000, TcpState::SynSent).connect_failed(15_000);
    let verdict = world.verdict(failed.clone(), 20_000);
    assert_eq!(verdict.class, Class::Unknown);
    assert!(verdict.root_cause.contains("NodeLocal DNSCache"), "{}", verdict.root_cause);
    // The address is not the node's, or the entry exists.
    world.node.own.pop();
    assert_eq!(world.verdict(served, 20_000).class, Class::Ok);
    world.node.own.push(addr(VIP).ip());
    assert_eq!(world.verdict(to_cart().healthy(10_000), 20_000).class, Class::Ok);
}

#[test]
fn n17_a_losing_attempt() {
    let wordless = |ms| {
        let mut script = to_cart()
            .established(10_000)
            .send_reset(ms, false, TcpState::Established, "TCP_ABORT_ON_LINGER")
            .state(ms, false, TcpState::Established, TcpState::Close);
        for sighting in &mut script.out {
            if let Fact::Socket(socket) = &mut sighting.fact {
                (socket.bytes_acked, socket.bytes_received) = (1, 0);
            }
        }
        script
    };
    assert_eq!(World::new().verdict(wordless(10_120), 20_000).class, Class::N17);
    assert_eq!(World::new().verdict(wordless(11_000), 20_000).class, Class::N4);
}

#[test]
fn the_words_fit_the_mode_and_the_evidence() {
    let world = World::of(Shop::with_endpoints(&[]));
    let script = Script::new(CLIENT, VIP, None).unreach(60_000, 3).icmp_error(60_000, "10.244.1.1:0", 3);
    let verdict = world.verdict(script.connect_failed(60_001), 70_000);
    assert!(says(&verdict, "about a packet to the Service address"), "{verdict:#?}");
    assert!(!says(&verdict, "a packet to the endpoint"), "{verdict:#?}");

    let mut world = World::new();
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    let missing = |world: &World| world.verdict(Script::new(CLIENT, VIP, None).silent(60_000), 70_000);
    assert!(missing(&world).mitigation.long_term.contains("move to nftables mode"));
    world.node.mode = Some(ProxyMode::Nftables);
    let verdict = missing(&world);
    assert_eq!(verdict.class, Class::C5);
    assert!(!verdict.mitigation.long_term.contains("move to nftables mode"), "{verdict:#?}");
    assert_eq!(verdict.flow.protocol, Protocol::TCP.to_string());
}

/// A `StatefulSet`'s new Pod has its predecessor's name, and here its address.
#[test]
fn a_pod_is_known_by_its_uid() {
    let mut world = World::new();
    let ip = addr(EP).ip();
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).confidence, Confidence::High);
    let successor = Pod { uid: "another".into(), ..world.shop.pods[&ip].clone() };
    world.shop.put(30_000, Object::Pod(successor.into()));
    let verdict = world.verdict(to_cart().refused(60_000), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C28, Confidence::Medium));
    assert!(
        verdict.against.iter().any(|it| it.content.contains("has the address 10.244.1.7 now")),
        "{verdict:#?}"
    );
}

/// A hostPort's entry leads to a Pod that is no endpoint of the Service with this node port.
#[test]
fn an_entry_of_another_translator_is_no_c8() {
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, "192.168.1.2:30080");
    let mapped =
        || Script::new(CLIENT, "192.168.1.2:30080", Some("10.244.1.55:53")).udp().listed(60_000, 58_000);
    assert_ne!(world.verdict(mapped(), 61_000).class, Class::C8);
    let old = || Script::new(CLIENT, VIP, Some(OTHER)).udp().listed(60_000, 58_000);
    assert_eq!(World::new().verdict(old(), 61_000).class, Class::C8);
}

/// The hostPort 80 of a Pod at 10.244.1.50, as CNI's portmap plugin writes it.
const HOST_PORT: &str = ":CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-0123456789abcdef01234 - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: cbr0\" -m multiport --dports 80,443 -j CNI-DN-0123456789abcdef01234
-A CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.1.50:80
";

/// k3s' `ServiceLB`: the load balancer's address is the node's, and a Pod of its own has the Service's port there. Without an
/// endpoint kube-proxy translates nothing, and its rule that refuses comes after the hostPort's.
#[test]
fn c20_a_host_port_takes_what_kube_proxy_would_refuse() {
    const NODE_PORT_80: &str = "192.168.1.2:80";
    let world = |effect: RuleEffect, host_port: &str| {
        let mut world = World::of(Shop::with_endpoints(&[EP]));
        world.shop.reached_by(Via::LoadBalancerIp, NODE_PORT_80);
        let entry = |vip: &str, effect| (addr(vip), Protocol::TCP, addr(EP), effect);
        let entries = [entry("10.96.0.99:80", RuleEffect::Forwards), entry(NODE_PORT_80, effect)];
        let rules = iptables("KUBE-SVC-I5LIAMPLWKMBJ54B", &entries);
        let rules = rules.replacen("COMMIT", &format!("{host_port}COMMIT"), 1);
        world.node.rules = Rules::Lists(vec![(Kind::IptablesSave, rules)]);
        world
    };
    let taken = || Script::new("203.0.113.9:50000", NODE_PORT_80, Some("10.244.1.50:80")).confirm(60_000);
    let refused = || taken().icmp_error(60_001, "10.244.1.50:0", 3);
    let mut without = world(RuleEffect::Refuses, HOST_PORT);
    without.shop.becomes(EP, NOT_READY, 20_000);
    let verdict = without.verdict(refused(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C20, Confidence::Medium), "{verdict:#?}");
    assert!(says(&verdict, "rule 1 of CNI-DN-0123456789abcdef01234"), "{verdict:#?}");
    // kube-proxy's own rule still sends there.
    let mut stale = world(RuleEffect::Forwards, HOST_PORT);
    stale.shop.becomes(EP, NOT_READY, 20_000);
    assert_eq!(
        stale.verdict(Script::new(CLIENT, NODE_PORT_80, Some(EP)).refused(60_000), 70_000).class,
        Class::C6
    );
    // No rule that was read explains the choice.
    let mut unexplained = world(RuleEffect::Refuses, "");
    unexplained.shop.becomes(EP, NOT_READY, 20_000);
    let verdict = unexplained.verdict(refused(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C6, Confidence::Low), "{verdict:#?}");
}

#[test]
fn c33_only_large_segments_are_lost() {
    let stalled = |bytes: u32, counts: (u64, u64)| {
        let script = to_cart().established(10_000);
        let repeats = [10_200, 10_600, 11_400, 13_000, 16_200, 22_600];
        let script =
            repeats.into_iter().fold(script, |script, ms| script.repeats_segment(ms, true, bytes, counts));
        World::new().verdict(script, 30_000)
    };
    // The endpoint received a small request, and its answer never arrives.
    let verdict = stalled(1398, (0, 120));
    assert_eq!((verdict.class, verdict.domain), (Class::C33, Domain::Mtu));
    assert_eq!(verdict.confidence, Confidence::Medium);
    assert!(verdict.root_cause.contains("the endpoint's segments of 1398 bytes"), "{}", verdict.root_cause);
    // Full segments were acknowledged before, or a small one is lost: the path or the endpoint failed.
    let unrelated = |verdict: &Verdict| !verdict.cross_reference.iter().any(|class| class == "C33");
    for counts in [(500_000, 120), (2_800, 0), (1_398, 120)] {
        let verdict = stalled(1398, counts);
        assert!(verdict.class == Class::C29 && unrelated(&verdict), "{counts:?}: {verdict:#?}");
    }
    let verdict = stalled(120, (0, 120));
    assert!(verdict.class == Class::C29 && unrelated(&verdict), "{verdict:#?}");
    // Nothing but the handshake passed: the MTU is a candidate.
    let verdict = stalled(1398, (0, 0));
    assert!(verdict.class == Class::C29 && !unrelated(&verdict), "{verdict:#?}");
    assert!(
        verdict.unseen.iter().any(|what| what.contains("whether a small segment would pass")),
        "{verdict:#?}"
    );
}

/// A reason that no rule knows is shown as evidence.
#[test]
fn a_drop_is_evidence_whatever_its_reason() {
    for reason in
        ["SOCKET_RCVBUFF", "TCP_CSUM", "OVS_DROP_LAST_ACTION", "QDISC_DROP_OVERLIMIT", "reason 131073"]
    {
        let script =
            to_cart().confirm(10_000).drop_later(10_500, reason).retransmit(11_000, TcpState::SynSent);
        let verdict = judged(&World::new(), script.retransmit(13_000, TcpState::SynSent)).unwrap();
        assert!(says(&verdict, reason), "{reason}: {verdict:#?}");
    }
}

/// `localhost` is `::1` first on many nodes, and a Service of one family has no rule of the other.
#[test]
fn c26_a_node_port_in_a_family_that_the_service_does_not_have() {
    for (address, words) in [("[::1]:30080", "::1"), ("[fd00::2]:30080", "the Service has no IPv6 address")] {
        let mut world = World::new();
        world.shop.reached_by(Via::NodePort, address);
        world.node.own.push(addr(address).ip());
        let script = Script::new(&address.replace("30080", "40000"), address, None).confirm(10_000);
        let mut refused = script.receive_reset(10_001, TcpState::SynSent).connect_failed(10_001);
        refused.out.iter_mut().for_each(|sighting| sighting.netns = NODE);
        let verdict = world.verdict(refused, 20_000);
        assert_eq!(verdict.class, Class::C26, "{verdict:#?}");
        assert!(verdict.root_cause.contains(words), "{}", verdict.root_cause);
    }
}

/// Each of its datagrams goes to another port, and none is a client's.
#[test]
fn c5c_a_traceroute_to_a_vip_is_one_cause() {
    let sent = |port: u16| Script::new(CLIENT, &format!("10.96.0.10:{port}"), None).udp().unreach(10_000, 3);
    let verdict = |script| World::new().verdict(script, 20_000);
    let (first, last) = (verdict(sent(33_434)), verdict(sent(33_523)));
    assert_eq!(
        (first.class, first.severity, first.confidence),
        (Class::C5c, Severity::Low, Confidence::Medium)
    );
    assert_eq!((first.key(), &first.root_cause), (last.key(), &last.root_cause));
    assert_eq!(first.service.unwrap().to_string(), "shop/cart:33434-33534");
    assert_eq!(first.flow.vip, Some(addr("10.96.0.10:33434")));
    assert!(
        first.unseen.iter().any(|it| it.contains("a client that wants port 33434")),
        "{:?}",
        first.unseen
    );
    let path = verdict(sent(44_447)).service.unwrap();
    assert_eq!(path.to_string(), "shop/cart:44444-44508");
    // A client's ports are told apart, and so is TCP.
    assert_eq!(verdict(sent(5_000)).service.unwrap().to_string(), "shop/cart:5000");
    let tcp = Script::new(CLIENT, "10.96.0.10:33434", None).unreach(10_000, 3).connect_failed(10_001);
    let tcp = verdict(tcp);
    assert_eq!(
        (tcp.service.as_ref().unwrap().to_string().as_str(), tcp.severity),
        ("shop/cart:33434", Severity::Medium)
    );
}
