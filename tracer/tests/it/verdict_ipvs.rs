//! ipvs mode: a kernel's sightings in this mode, and their verdicts.

use crate::{
    cluster_support::Shop,
    flow_support::{CLIENT, CLIENT_NS, EP, NODE, Script, VIP, World, addr, fold, last_revisions},
    ipvs_support::{
        FIN_ACK, PSH_ACK, SYN, by_ipvs, chosen, close_that_the_node_resets, null_bound, packet,
        refused_by_ipvs, reset_by_the_node, seen,
    },
    node_support::Rules,
};
use viptrace::{
    class::{Class, Confidence, Domain},
    cluster::{Kind, Via, model::TrafficPolicy},
    flow::{Outcome, ResetBy},
    net::{Protocol, Tuple},
    node::{ProxyMode, RuleEffect},
    sighting::{
        Conntrack, Fact, Hook, IpvsFact, IpvsFlags, Sighting, SocketEvent, SocketFact, Status, TcpState,
    },
};

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

fn refused(ms: u64) -> Script {
    refused_by_ipvs(Script::new(CLIENT, VIP, None), ms)
}

fn world() -> World {
    world_of(Shop::new())
}

fn world_of(shop: Shop) -> World {
    let mut world = World::of(shop);
    world.node.mode = Some(ProxyMode::Ipvs);
    world
}

fn statements(evidence: &[viptrace::verdict::Evidence]) -> String {
    evidence.iter().map(|evidence| &*evidence.content).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_healthy_connection_needs_no_hook_of_ipvs() {
    for (mode, rules) in [(Some(ProxyMode::Ipvs), Rules::Vip(RuleEffect::Forwards)), (None, Rules::Unread)] {
        let mut world = world();
        (world.node.mode, world.node.rules) = (mode, rules);
        world.missing = vec![
            Hook::IpVsConnNew,
            Hook::IpVsLeave,
            Hook::IpVsSchedule,
            Hook::IpVsConnExpire,
            Hook::NatSetup,
        ];
        let verdict = world.verdict(by_ipvs(to_cart().healthy(10_000)), 20_000);
        assert_eq!((verdict.class, verdict.confidence), (Class::Ok, Confidence::High));
        assert_eq!(verdict.flow.endpoint, Some(addr(EP)));
        assert!(
            statements(&verdict.evidence).contains("IPVS chose endpoint 10.244.1.7:8080"),
            "{:?}",
            verdict.evidence
        );
        assert!(verdict.against.is_empty() && verdict.unseen.is_empty(), "{verdict:?}");
    }
}

#[test]
fn findings_of_other_modes_apply() {
    let mut world = world();
    assert_eq!(world.verdict(by_ipvs(to_cart().refused(10_000)), 20_000).class, Class::C28);
    // In this mode the entry is confirmed before the next hop is resolved.
    let unreachable = by_ipvs(to_cart().confirm(10_000).dead_pod(10_000));
    assert_eq!(world.verdict(unreachable, 30_000).class, Class::C29);
    assert_eq!(world.verdict(by_ipvs(to_cart().silent(10_000)), 30_000).class, Class::C29);
    world.shop.leaves(EP, 20_000);
    let verdict = world.verdict(by_ipvs(to_cart().refused(140_000)), 160_000);
    assert_eq!((verdict.class, verdict.flow.endpoint), (Class::C6, Some(addr(EP))));
    assert!(verdict.mitigation.immediate.contains("ipvsadm -Ln"), "{}", verdict.mitigation.immediate);
}

#[test]
fn the_vips_own_icmp_error_is_a_refusal_by_ipvs() {
    // Its event is missing: it was lost, or the kernel has no such symbol.
    let refused_from = |from: &str| {
        let script = Script::new(CLIENT, VIP, None).retransmit(60_000, TcpState::SynSent);
        script.icmp_error(60_001, from, 3).connect_failed(60_002)
    };
    let verdict = world().verdict(refused_from("10.96.0.10:0"), 90_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C12, Confidence::Medium), "{verdict:#?}");
    let verdict = world_of(Shop::with_endpoints(&[])).verdict(refused_from("10.96.0.10:0"), 90_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C20, Confidence::Medium), "{verdict:#?}");
    // Another host's is a rule there.
    assert_eq!(world().verdict(refused_from("192.0.2.12:0"), 90_000).class, Class::C30);
}

#[test]
fn without_its_endpoint_a_connection_that_the_node_resets_is_uncertain() {
    let verdict = world().verdict(reset_by_the_node(Script::new(CLIENT, VIP, None), 40_000), 60_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C15, Confidence::Low), "{verdict:#?}");
    assert!(verdict.cross_reference.contains(&"C13".into()), "{:?}", verdict.cross_reference);
}

#[test]
fn a_null_binding_that_was_never_confirmed_proves_nothing() {
    let mut script = Script::new(CLIENT, VIP, None);
    script.out.push(packet(10_000, Hook::KfreeSkb, SYN, Some(null_bound(1, 0)), Some("NETFILTER_DROP")));
    let script = script.retransmit(11_000, TcpState::SynSent).connect_failed(12_000);
    let verdict = world().verdict(script, 20_000);
    assert!(![Class::C1, Class::C5].contains(&verdict.class), "{verdict:?}");
}

#[test]
fn c20_and_c12_by_what_the_api_has() {
    let mut world = world();
    world.node.rules = Rules::Vip(RuleEffect::Refuses);
    let verdict = world.verdict(refused(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C12, Domain::IptablesSync));
    assert_eq!((verdict.confidence, verdict.flow.endpoint), (Confidence::High, None));
    assert!(statements(&verdict.evidence).contains("ip_vs_leave"), "{:?}", verdict.evidence);

    let mut young = Shop::with_endpoints(&[]);
    young.ready(EP, 58_000);
    assert_eq!(world_of(young).verdict(refused(60_000), 70_000).class, Class::C5);

    world.shop.known.retain(|kind| *kind != Kind::EndpointSlice);
    let verdict = world.verdict(refused(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C12, Domain::NoEndpoints));
    assert!(verdict.unseen.iter().any(|unseen| unseen.contains("EndpointSlices")), "{:?}", verdict.unseen);

    let world = world_of(Shop::with_endpoints(&[]));
    let verdict = world.verdict(refused(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C20, Domain::NoEndpoints));
    assert_eq!(verdict.confidence, Confidence::High);
}

#[test]
fn without_its_hook_a_missing_real_server_is_only_a_drop() {
    let mut world = world();
    world.missing = vec![Hook::IpVsLeave];
    let mut script = refused(60_000);
    script.out.retain(|sighting| sighting.hook != Hook::IpVsLeave);
    let verdict = world.verdict(script, 70_000);
    assert_eq!(verdict.class, Class::Unknown);
    assert!(verdict.unseen.iter().any(|unseen| unseen.contains("ip_vs_leave")), "{:?}", verdict.unseen);
}

#[test]
fn c22_a_local_policy_is_refused_here() {
    let mut world = world();
    world.shop.cart.internal_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    let verdict = world.verdict(refused(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C22, Domain::ServiceConfig));
}

/// A Pod of a `DaemonSet` was replaced: those of the other nodes are old, and this node's virtual server waits for kube-proxy.
#[test]
fn under_a_local_policy_the_age_of_the_nodes_own_endpoint_counts() {
    let refused_at = |ready: u64| {
        let mut shop = Shop::with_endpoints(&["10.244.2.9:8080"]);
        shop.serves_elsewhere();
        shop.ready(EP, ready);
        shop.cart.internal_traffic_policy = TrafficPolicy::Local;
        world_of(shop).verdict(refused(60_000), 70_000).class
    };
    assert_eq!([refused_at(59_000), refused_at(1_000)], [Class::C5, Class::C12]);
}

#[test]
fn c21_a_reply_that_goes_past_this_node() {
    let node_port = "192.168.1.2:30080";
    let mut world = world();
    world.shop.reached_by(Via::NodePort, node_port);
    world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    let from_outside = || Script::new("192.0.2.7:40000", node_port, Some(EP));
    let verdict = world.verdict(by_ipvs(from_outside().silent(10_000)), 30_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C21, Domain::ServiceConfig));
    // If the client is on another node, only the entry is observed.
    let verdict = world.verdict(by_ipvs(from_outside().confirm(10_000)), 90_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C21, Confidence::Medium));
    // Even if the client's stack is observed to refuse the answer, the policy is why it came from there.
    let script = from_outside().confirm(10_000).client_has_no_socket(10_001, addr(EP)).connect_failed(14_000);
    assert_eq!(world.verdict(by_ipvs(script), 30_000).class, Class::C21);
    // An answered flow, or one of a Pod on this node, whose reply returns here, is no fault.
    assert_eq!(world.verdict(by_ipvs(from_outside().healthy(10_000)), 30_000).class, Class::Ok);
    let from_here = Script::new(CLIENT, node_port, Some(EP));
    assert_eq!(world.verdict(by_ipvs(from_here.silent(10_000)), 30_000).class, Class::C29);
}

#[test]
fn c15_the_node_resets_a_connection_without_an_entry() {
    let mut script =
        by_ipvs(to_cart().established(10_000).delete(910_000, Status::SEEN_REPLY | Status::ASSURED));
    script = reset_by_the_node(script, 1_000_000);
    let verdict = world().verdict(script, 1_010_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C15, Domain::Conntrack));
    assert_eq!((verdict.confidence, verdict.flow.endpoint), (Confidence::High, Some(addr(EP))));
    assert!(statements(&verdict.evidence).contains("ended 1 min 30 s before"), "{:?}", verdict.evidence);
}

/// A client from outside closes what its server closed before, or what was idle: IPVS has forgotten the connection.
#[test]
fn a_late_close_that_the_node_resets_breaks_nothing() {
    let node_port = "192.168.1.2:30080";
    let reached = || {
        let mut world = world();
        world.shop.reached_by(Via::NodePort, node_port);
        world
    };
    let from_outside = || Script::new("192.0.2.7:40000", node_port, Some(EP));
    let gone = |script: Script| script.delete(130_000, Status::SEEN_REPLY | Status::ASSURED);
    for script in [
        from_outside(),
        from_outside().confirm(10_000),
        gone(from_outside().confirm(10_000)),
        // The client is on this node, and its server has not closed.
        gone(to_cart().established(10_000)),
    ] {
        let is_here = script.client == addr(CLIENT);
        let mut script = close_that_the_node_resets(by_ipvs(script), 140_000);
        if is_here {
            script = script.receive_reset(140_001, TcpState::FinWait1).state(
                140_001,
                false,
                TcpState::FinWait1,
                TcpState::Close,
            );
        }
        // Once its entry has ended, the close of a client elsewhere is a flow of its own.
        let last = |world: &World| {
            let flow = last_revisions(fold(script.out.clone(), 150_000).0).pop().unwrap();
            world.judge(&flow).unwrap()
        };
        let verdict = last(&if is_here { world() } else { reached() });
        assert_eq!((verdict.class, verdict.confidence), (Class::N5, Confidence::Medium), "{verdict:#?}");
        // kube-proxy deletes a drained real server only when IPVS has no connection to it.
        let mut left = if is_here { world() } else { reached() };
        left.node.sysctls = "net.ipv4.vs.expire_nodest_conn = 1\n";
        left.shop.leaves(EP, 60_000);
        let expected = if verdict.flow.endpoint.is_some() { Class::N9 } else { Class::N5 };
        assert_eq!(last(&left).class, expected);
    }
    // Data met no entry before, or goes with the FIN.
    for flags in [PSH_ACK, FIN_ACK | PSH_ACK] {
        let mut script = by_ipvs(from_outside().confirm(10_000));
        let mut data = packet(139_900, Hook::TcpSendReset, flags, None, Some("NO_SOCKET"));
        if let Fact::Packet(packet) = &mut data.fact {
            packet.tuple = Some(script.orig());
        }
        script.out.push(data);
        let verdict = reached().verdict(close_that_the_node_resets(script, 140_000), 150_000);
        assert_eq!(verdict.class, Class::C15, "{verdict:#?}");
    }
}

#[test]
fn a_stray_packet_after_a_connections_end_breaks_nothing() {
    let mut script = by_ipvs(to_cart().healthy(10_000));
    let ct = null_bound(0x2000, Status::CONFIRMED);
    script.out.push(packet(10_500, Hook::TcpSendReset, PSH_ACK, Some(ct), Some("NO_SOCKET")));
    assert_eq!(world().verdict(script, 20_000).class, Class::Ok);
}

#[test]
fn an_entry_that_ends_before_its_connection_is_not_its_end() {
    let script = to_cart().established(10_000).delete(20_000, Status::SEEN_REPLY | Status::ASSURED);
    let flows = last_revisions(fold(script.out, 60_000).0);
    assert_eq!(flows.iter().map(viptrace::flow::Flow::outcome).collect::<Vec<_>>(), [Outcome::Established]);
}

#[test]
fn c13_the_packet_that_ends_a_connection_to_a_removed_server() {
    let mut world = world();
    world.shop.leaves(EP, 20_000);
    let old = Conntrack { status: Status(0x18e), ..to_cart().entry(0) };
    let mut script = by_ipvs(to_cart().established(10_000));
    script.out.push(packet(40_000, Hook::IpVsConnExpire, PSH_ACK, Some(old), Some("NETFILTER_DROP")));
    script = by_ipvs(script.delete(40_001, Status::SEEN_REPLY)).retransmit(40_200, TcpState::Established);
    let verdict = world.verdict(reset_by_the_node(script, 40_200), 50_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C13, Domain::StaleEndpoints));
    assert_eq!((verdict.confidence, verdict.flow.endpoint), (Confidence::High, Some(addr(EP))));
}

/// Since 5.9 the entry is deleted with the real server, before any packet reaches it.
#[test]
fn c13_with_an_immediate_deletion_is_distinguished_by_the_endpoint() {
    let mut world = world();
    let script = by_ipvs(to_cart().established(10_000).delete(30_000, Status::SEEN_REPLY | Status::ASSURED));
    let script = reset_by_the_node(script, 40_000);
    assert_eq!(world.verdict(script.clone(), 50_000).class, Class::C15);
    world.shop.leaves(EP, 29_900);
    let verdict = world.verdict(script, 50_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C13, Domain::StaleEndpoints));
}

/// An entry that may have timed out ended before its endpoint left, or long after.
#[test]
fn an_idle_entry_that_ended_near_its_endpoints_removal_may_have_expired() {
    let world = |left: u64| {
        let mut world = world();
        world.node.sysctls = "net.ipv4.vs.expire_nodest_conn = 1\n";
        world.shop.leaves(EP, left);
        world
    };
    let idle = |ended: u64, ms: u64| {
        let script = to_cart().established(10_000).delete(ended, Status::SEEN_REPLY | Status::ASSURED);
        reset_by_the_node(by_ipvs(script), ms)
    };
    let after_expiry = [
        // The endpoint left 3 s after the entry's end: kube-proxy may have been ahead, and the entry was due.
        (913_000, 911_000),
        // It left before the RST, long after the entry's end.
        (930_000, 940_000),
        (943_000, 940_000),
    ];
    for (left, ms) in after_expiry {
        let verdict = world(left).verdict(idle(910_100, ms), 960_000);
        assert_eq!(verdict.class, Class::C15, "{left} {ms}: {verdict:#?}");
        let (confidence, is_near) = (verdict.confidence, left == 913_000);
        assert_eq!(confidence == Confidence::Medium, is_near, "{left} {ms}: {verdict:#?}");
        assert_eq!(verdict.cross_reference.contains(&"C13".into()), is_near, "{left} {ms}: {verdict:#?}");
    }
    // Its end was not observed.
    let unseen = reset_by_the_node(by_ipvs(to_cart().established(10_000)), 940_000);
    let verdict = world(943_000).verdict(unseen, 960_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C15, Confidence::Medium), "{verdict:#?}");
    // The endpoint had left before: the entry may have been removed with it, or have expired.
    let verdict = world(20_000).verdict(idle(910_100, 940_000), 960_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C13, Confidence::Medium), "{verdict:#?}");
    assert!(verdict.cross_reference.contains(&"C15".into()), "{verdict:#?}");
    // Too early for a timeout.
    for (left, confidence) in [(29_900, Confidence::High), (33_000, Confidence::Medium)] {
        let verdict = world(left).verdict(idle(30_000, 31_000), 60_000);
        assert_eq!((verdict.class, verdict.confidence), (Class::C13, confidence), "{left}: {verdict:#?}");
    }
    // kube-proxy's setting is longer.
    let mut longer = world(913_000);
    longer.node.config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n\
                          ipvs: {tcpTimeout: 2h0m0s}\n";
    let verdict = longer.verdict(idle(910_100, 911_000), 960_000);
    assert_eq!(verdict.class, Class::C13, "{verdict:#?}");
}

/// Before 5.17 the drops cannot be observed: the connection may have drained, or its packets may have been dropped.
#[test]
fn silent_c13_is_not_ruled_out_if_the_kernel_hides_drops() {
    let mut world = world();
    world.shop.leaves(EP, 20_000);
    let mut script = by_ipvs(to_cart().established(10_000));
    for ms in [25_000, 25_200, 25_600, 26_400, 28_000] {
        script = script.retransmit(ms, TcpState::Established);
    }
    let seen = world.verdict(script.clone(), 30_000);
    assert_eq!((seen.class, seen.confidence), (Class::N9, Confidence::High));
    world.drop_reasons = false;
    let hidden = world.verdict(script, 30_000);
    assert_eq!((hidden.class, hidden.confidence), (Class::N9, Confidence::Medium));
    assert!(hidden.unseen.iter().any(|unseen| unseen.contains("(C13)")), "{:?}", hidden.unseen);
}

#[test]
fn silent_c13_and_its_look_alikes() {
    let mut world = world();
    let old = Conntrack { status: Status(0x18e), ..to_cart().entry(0) };
    let mut script = by_ipvs(to_cart().established(10_000));
    for ms in [40_000, 40_200, 40_600, 41_400, 43_000] {
        script.out.push(packet(ms, Hook::KfreeSkb, PSH_ACK, Some(old), Some("NETFILTER_DROP")));
        script = script.retransmit(ms + 1, TcpState::Established);
    }
    let with_endpoint = world.verdict(script.clone(), 60_000);
    assert_ne!(with_endpoint.class, Class::C13, "a rule that drops looks alike while the endpoint is listed");
    world.shop.leaves(EP, 20_000);
    let verdict = world.verdict(script, 60_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C13, Confidence::Medium));
    assert!(
        verdict.unseen.iter().any(|unseen| unseen.contains("expire_nodest_conn")),
        "{:?}",
        verdict.unseen
    );
}

#[test]
fn c14_is_a_note_on_the_connection_that_had_to_wait() {
    let old = Conntrack { id: 0x500, status: Status(0x18e), ..to_cart().entry(0) };
    let mut script = by_ipvs(to_cart().with_ct(0x500).established(10_000))
        .receive_reset(10_100, TcpState::Established)
        .state(10_100, false, TcpState::Established, TcpState::Close);
    script.out.push(packet(10_300, Hook::IpVsConnExpire, SYN, Some(old), Some("NETFILTER_DROP")));
    // The old entry is freed, and the new one may reuse its memory.
    script = by_ipvs(script.delete(10_301, Status::SEEN_REPLY | Status::ASSURED));
    let again: Vec<Sighting> =
        by_ipvs(to_cart().with_ct(0x500).retransmit(11_300, TcpState::SynSent).healthy(11_301))
            .out
            .into_iter()
            .map(another_socket)
            .collect();
    script.out.extend(again);
    let world = world();
    let flows = last_revisions(fold(script.out, 60_000).0);
    let verdicts: Vec<_> = flows.iter().filter_map(|flow| world.judge(flow)).collect();
    let [before, after] = verdicts.as_slice() else { unreachable!("two flows expected: {flows:#?}") };
    assert_eq!((before.class, after.class), (Class::Ok, Class::Ok));
    assert!(!statements(&before.against).contains("C14"), "{:?}", before.against);
    assert!(statements(&after.against).contains("C14") && after.cross_reference.contains(&"C14".into()));
    assert_eq!(after.flow.endpoint, Some(addr(EP)));
}

#[test]
fn late_events_of_the_old_connection_are_not_the_new_ones() {
    // The server's RST is reported a moment later, after the SYN that met the old entry.
    let old = Conntrack { id: 0x500, status: Status(0x18e), ..to_cart().entry(0) };
    for late in [10_110, 10_150, 10_151, 10_152] {
        let mut script = by_ipvs(to_cart().with_ct(0x500).established(10_000))
            .receive_reset(10_100, TcpState::Established)
            .state(10_100, false, TcpState::Established, TcpState::Close)
            .state(late, true, TcpState::Established, TcpState::Close)
            .send_reset(late, true, TcpState::Close, "TCP_STATE");
        script.out.push(packet(10_150, Hook::IpVsConnExpire, SYN, Some(old), Some("NETFILTER_DROP")));
        script = by_ipvs(script.delete(10_151, Status::SEEN_REPLY | Status::ASSURED));
        let again = by_ipvs(to_cart().with_ct(0x600).retransmit(11_163, TcpState::SynSent).healthy(11_171));
        script.out.extend(again.out.into_iter().map(another_socket));
        let flows = fold(script.out, 60_000).0;
        let [before, after] = flows.as_slice() else { unreachable!("two flows expected: {flows:#?}") };
        assert_eq!((before.outcome(), after.outcome()), (Outcome::Reset(ResetBy::Endpoint), Outcome::Closed));
    }
}

fn another_socket(mut sighting: Sighting) -> Sighting {
    if let Fact::Socket(socket) = &mut sighting.fact {
        socket.sk += 64;
    }
    sighting
}

/// `vs/conntrack=0`: no entry is confirmed; only the sockets and IPVS's own events are observed.
#[test]
fn without_conntrack_ipvs_itself_names_the_endpoint() {
    let sockets = |script: &Script| {
        let healthy = script.clone().healthy(10_000).out;
        healthy.into_iter().filter(|sighting| sighting.hook != Hook::Confirm).collect::<Vec<_>>()
    };
    let mut script = to_cart();
    script.out = vec![chosen(10_000, CLIENT, EP, 0)];
    script.out.extend(sockets(&to_cart()));
    let verdict = world().verdict(script, 20_000);
    assert_eq!((verdict.class, verdict.flow.endpoint), (Class::Ok, Some(addr(EP))));
    assert!(statements(&verdict.evidence).contains("vs/conntrack=0"), "{:?}", verdict.evidence);

    let mut refused = to_cart();
    refused.out = vec![chosen(10_000, CLIENT, EP, 0)];
    refused = refused.no_socket(10_001).receive_reset(10_002, TcpState::SynSent).connect_failed(10_002);
    assert_eq!(world().verdict(refused, 20_000).class, Class::C28);

    // Only an entry would show a datagram's answer.
    let mut datagram = to_cart().udp();
    let fact = IpvsFact { tuple: datagram.orig(), destination: addr(EP), flags: IpvsFlags(0) };
    datagram.out.push(seen(10_000, Hook::IpVsConnNew, NODE, Fact::Ipvs(fact)));
    let mut world = world();
    world.node.sysctls = "net.ipv4.vs.conntrack = 0\n";
    let verdict = world.verdict(datagram, 20_000);
    assert_eq!(verdict.class, Class::N20);
    assert!(verdict.unseen.iter().any(|unseen| unseen.contains("vs/conntrack=0")), "{:?}", verdict.unseen);

    world.shop.leaves(EP, 1_000);
    let mut stale = to_cart();
    stale.out = vec![chosen(10_000, CLIENT, EP, 0)];
    stale.out.extend(sockets(&to_cart()));
    assert_eq!(world.verdict(stale, 20_000).class, Class::C6);
}

/// An agent's kernel half hands a choice over with the failure that meets its connection, and a template with its choice.
#[test]
fn a_choice_from_hours_ago_belongs_to_the_flow_that_fails_now() {
    const NOW: u64 = 3 * 3_600_000;
    let template = std::net::SocketAddr::new(addr(CLIENT).ip(), 0).to_string();
    for tracked in [false, true] {
        let mut script = to_cart();
        script.out = vec![chosen(10_000, &template, EP, IpvsFlags::TEMPLATE), chosen(10_000, CLIENT, EP, 0)];
        if tracked {
            script = by_ipvs(script.confirm_handed_over(10_000, NOW));
        }
        let script = script.receive_reset(NOW + 1, TcpState::Established).state(
            NOW + 1,
            true,
            TcpState::Established,
            TcpState::Close,
        );
        let verdict = world().verdict(script, NOW + 20_000);
        assert_eq!(verdict.flow.endpoint, Some(addr(EP)), "{verdict:?}");
        assert!(statements(&verdict.evidence).contains("persistence template"), "{:?}", verdict.evidence);
    }
}

#[test]
fn the_first_connection_of_a_client_has_a_template() {
    let client = addr(CLIENT);
    let template = std::net::SocketAddr::new(client.ip(), 0).to_string();
    let mut script = to_cart();
    script.out.push(chosen(10_000, &template, EP, IpvsFlags::TEMPLATE));
    script.out.push(chosen(10_000, CLIENT, EP, 0));
    let script = by_ipvs(script.healthy(10_000));
    let verdict = world().verdict(script.clone(), 20_000);
    assert_eq!(verdict.class, Class::Ok);
    assert!(statements(&verdict.evidence).contains("persistence template"), "{:?}", verdict.evidence);
    let mut next = script;
    next.out.remove(0);
    assert!(!statements(&world().verdict(next, 20_000).evidence).contains("persistence template"));
}

#[test]
fn a_new_connection_after_a_missed_close_is_distinguished() {
    let script = by_ipvs(to_cart().established(10_000).with_ct(0x9000).healthy(20_000));
    let flows = last_revisions(fold(script.out, 60_000).0);
    let outcomes: Vec<_> = flows.iter().map(viptrace::flow::Flow::outcome).collect();
    assert_eq!(outcomes, [Outcome::Established, Outcome::Closed]);
    assert!(flows.iter().all(|flow| flow.trouble.is_none()));
}

#[test]
fn a_packet_that_got_no_entry_and_no_answer() {
    let mut script = Script::new(CLIENT, VIP, None);
    script.out.push(packet(10_000, Hook::IpVsSchedule, SYN, Some(null_bound(1, 0)), None));
    script.out.push(packet(10_000, Hook::KfreeSkb, SYN, Some(null_bound(1, 0)), Some("NETFILTER_DROP")));
    let script = script.retransmit(11_000, TcpState::SynSent).connect_failed(12_000);
    let verdict = world().verdict(script, 20_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C12, Domain::HostKernel));
    assert_eq!(verdict.confidence, Confidence::Low);
}

#[test]
fn a_socket_of_another_connection_is_not_joined_by_its_address() {
    let mut script = to_cart();
    script.out.push(chosen(10_000, CLIENT, EP, 0));
    let tuple = Tuple::new(Protocol::TCP, addr("10.244.1.100:40001"), addr(EP));
    let event = SocketEvent::State { old: TcpState::SynSent, new: TcpState::Established };
    let other = SocketFact { sk: 1, tuple, event, bytes_acked: 0, bytes_received: 0, task: None };
    script.out.push(seen(10_001, Hook::SockEstablished, CLIENT_NS, Fact::Socket(other)));
    assert_eq!(last_revisions(fold(script.out, 60_000).0).len(), 2);
}
