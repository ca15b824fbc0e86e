//! Connections that worked, with an event long before their end that broke nothing.

use crate::{
    cluster_support::{Shop, TERMINATING},
    flow_support::{CLIENT, EP, SERVER_NS, Script, VIP, World, addr, at, fold, in_steps, last_revisions},
};
use viptrace::{
    class::{Class, Confidence, Severity},
    cluster::{
        Kind, Via,
        model::{Object, TrafficPolicy},
    },
    flow::{FlowTable, Limits, Reread},
    sighting::{Fact, Hook, PacketFact, Sighting, Status, TcpState},
};

const OUT_OF_WINDOW: &str = "SEQ is over upper bound %u (over the window of the receiver)";
const OUTSIDE: &str = "203.0.113.9:40000";
const NODE_PORT: &str = "192.168.1.2:30080";
const OTHER: &str = "10.244.1.8:8080";
const ESTABLISHED: TcpState = TcpState::Established;
/// An hour after the start of the test's day.
const LATER: u64 = 3_600_000;

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

/// From outside, at a node port; its server is on this node.
fn from_outside() -> Script {
    Script::new(OUTSIDE, NODE_PORT, Some(EP)).confirm(10_000).state(
        10_002,
        true,
        TcpState::SynRecv,
        ESTABLISHED,
    )
}

fn with_node_port() -> World {
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, NODE_PORT);
    world
}

/// The client ends it by a RST, as many do.
fn aborted(script: Script, ms: u64) -> Script {
    script.send_reset(ms, false, ESTABLISHED, "TCP_ABORT_ON_DATA").state(
        ms,
        false,
        ESTABLISHED,
        TcpState::Close,
    )
}

fn aborted_by_server(script: Script, ms: u64) -> Script {
    let script = script.send_reset(ms, true, ESTABLISHED, "TCP_ABORT_ON_CLOSE");
    let script = script.state(ms, true, ESTABLISHED, TcpState::Close);
    script.receive_reset(ms + 1, ESTABLISHED).state(ms + 1, false, ESTABLISHED, TcpState::Close)
}

fn falls_silent(script: Script, ms: u64, server: bool) -> Script {
    [0, 400, 1_200, 2_800, 6_000].into_iter().fold(script, |script, wait| {
        if server {
            script.server_retransmits(ms + wait, ESTABLISHED)
        } else {
            script.retransmit(ms + wait, ESTABLISHED)
        }
    })
}

fn of_agent() -> (World, Limits) {
    let mut world = World::new();
    world.missing = vec![Hook::SockEstablished, Hook::SockClosed, Hook::Delete];
    (world, Limits { reread: Reread::Datagrams, sees_closes: false, ..Limits::default() })
}

/// The classes of all verdicts, also of those that a later one withdraws.
fn all(world: &World, limits: Limits, script: Script, until: u64) -> Vec<Class> {
    let mut table = FlowTable::new(limits);
    let mut flows = in_steps(&mut table, script, until);
    table.finish(at(until));
    flows.extend(table.drain_settled());
    flows.iter().map(|flow| world.judge(flow).unwrap().class).collect()
}

/// One packet is dropped as invalid, its repetition passes, and the connection goes on for an hour.
#[test]
fn an_invalid_packet_that_was_repeated_explains_no_later_end() {
    let dropped = |script: Script| script.invalid_answer(12_000, OUT_OF_WINDOW).drop_invalid(12_000);
    let recovered = || dropped(to_cart().established(10_000)).server_retransmits(12_210, ESTABLISHED);
    let world = World::new();
    assert_eq!(world.verdict(aborted(recovered(), LATER), LATER + 10_000).class, Class::N4);
    assert_eq!(world.verdict(aborted_by_server(recovered(), LATER), LATER + 10_000).class, Class::Ok);
    let unrelated = dropped(to_cart().established(10_000)).retransmit(LATER / 2, ESTABLISHED);
    assert_eq!(world.verdict(aborted(unrelated, LATER), LATER + 10_000).class, Class::N4);
    let gone = falls_silent(dropped(from_outside()).server_retransmits(12_210, ESTABLISHED), LATER, true);
    assert_eq!(with_node_port().verdict(gone, LATER + 40_000).class, Class::Ok);
}

#[test]
fn a_drop_that_was_repeated_explains_no_later_silence() {
    let script = to_cart().established(10_000).retransmit(11_000, ESTABLISHED);
    let script = script.drop_later(12_000, "NETFILTER_DROP").retransmit(12_200, ESTABLISHED);
    assert_eq!(World::new().verdict(falls_silent(script, LATER, false), LATER + 40_000).class, Class::C29);
    let script = from_outside().server_retransmits(11_000, ESTABLISHED).drop_known_answer(12_000);
    let script = falls_silent(script.server_retransmits(12_200, ESTABLISHED), LATER, true);
    assert_eq!(with_node_port().verdict(script, LATER + 40_000).class, Class::Ok);
}

/// The SYN was lost and repeated: a delay of a second, long before the client ends the connection by a RST.
#[test]
fn a_lost_syn_explains_no_later_reset() {
    let again = |script: Script| script.retransmit(11_000, TcpState::SynSent).with_ct(77).established(11_000);
    let lost = [
        to_cart().clash(10_000).drop_syn(10_000, "NETFILTER_DROP"),
        to_cart().drop_table_full(10_000),
        to_cart().drop_syn(10_000, "IP_RPFILTER"),
    ];
    for script in lost {
        let verdict = World::new().verdict(aborted(again(script), 60_000), 70_000);
        assert_eq!(verdict.class, Class::N4, "{}", verdict.root_cause);
    }
}

/// Losses far apart at intervals that happen to grow: each time, more was acknowledged.
#[test]
fn losses_far_apart_are_no_silence() {
    let losses = [(20_000, 1_000), (30_000, 50_000), (50_000, 120_000), (100_000, 400_000)];
    let script = losses.into_iter().fold(to_cart().established(10_000), |script, (ms, acked)| {
        script.repeats_segment(ms, false, 1_398, (acked, acked))
    });
    let script = script.closed(400_000);
    assert_eq!(all(&World::new(), Limits::default(), script.clone(), 420_000), [Class::Ok]);
    let (world, limits) = of_agent();
    let mut agent = script;
    agent.out.retain(|sighting| !world.missing.contains(&sighting.hook));
    let seen = all(&world, limits, agent, 420_000);
    assert!(seen.iter().all(|class| *class == Class::Ok), "{seen:?}");
}

/// An agent sees that the first SYN was dropped behind the node's rules, and not that the second was answered.
#[test]
fn an_agent_reads_the_entry_of_a_connection_whose_syn_was_dropped() {
    let (world, limits) = of_agent();
    let mut script = to_cart().confirm(10_000);
    let packet = PacketFact {
        skb: 1,
        tuple: Some(script.behind()),
        tcp_flags: 2,
        ct: None,
        original_direction: None,
        reason: Some("CPU_BACKLOG".into()),
        site: None,
        icmp_code: None,
        nf_hook: None,
        table_full: false,
    };
    let dropped = Fact::Packet(packet);
    script.out.push(Sighting {
        time: at(10_000),
        cpu: 0,
        hook: Hook::KfreeSkb,
        netns: SERVER_NS,
        fact: dropped,
    });
    let script = script.retransmit(11_000, TcpState::SynSent);
    for (status, class) in [(Status::SEEN_REPLY | Status::ASSURED, Class::Ok), (0, Class::C29)] {
        let mut table = FlowTable::new(limits);
        script.out.iter().cloned().for_each(|sighting| table.observe(sighting));
        table.advance(at(14_100));
        assert_eq!(table.take_rereads().len(), 1);
        to_cart().reread(14_200, status).out.into_iter().for_each(|sighting| table.observe(sighting));
        table.advance(at(20_000));
        let seen: Vec<_> = table.drain_settled().map(|flow| world.judge(&flow).unwrap().class).collect();
        assert_eq!(seen, [class]);
    }
}

/// The kubelet kills after the grace, and after two seconds more if a preStop hook used it up.
#[test]
fn a_pod_that_is_killed_at_the_end_of_its_grace_drains() {
    let verdict = |after: u64| {
        let mut world = World::new();
        world.shop.ready(OTHER, 0);
        world.shop.becomes(EP, TERMINATING, 20_000);
        world.verdict(aborted_by_server(to_cart().established(10_000), 20_000 + after), 90_000).class
    };
    assert_eq!([29_000, 30_300, 32_500, 36_000].map(verdict), [Class::N9, Class::N9, Class::N9, Class::C7]);
}

/// The selector moved to another version, and the Pods of the old one go on.
#[test]
fn a_client_that_ends_its_connection_to_a_former_endpoint_misses_nothing() {
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    world.shop.leaves(EP, 20_000);
    let script = to_cart().established(10_000).retransmit(15_000, ESTABLISHED);
    assert_eq!(world.verdict(aborted(script, LATER), LATER + 10_000).class, Class::N4);
}

/// The same, and an old Pod's application ends a connection that it has served since.
#[test]
fn an_application_that_resets_after_its_pod_left_the_service_is_no_stale_endpoint() {
    let left = || {
        let mut world = World::new();
        world.shop.ready(OTHER, 0);
        world.shop.leaves(EP, 20_000);
        world
    };
    let on_another_node = |script: Script| {
        let mut script = script;
        script.out.retain(|sighting| sighting.netns != SERVER_NS);
        script
    };
    for after in [5_000, 30_000, 600_000] {
        let script = || aborted_by_server(to_cart().established(10_000), 20_000 + after);
        for script in [script(), on_another_node(script())] {
            let verdict = left().verdict(script, 700_000);
            assert_eq!(verdict.class, Class::Ok, "{}", verdict.root_cause);
            assert!(verdict.against.iter().any(|it| it.content.contains("check the application")));
            let said = |it: &viptrace::verdict::Evidence| it.content.contains("its Pod runs on");
            assert!(verdict.evidence.iter().any(said), "{:#?}", verdict.evidence);
        }
    }
    let late = || aborted_by_server(to_cart().established(10_000), 620_000);
    // The Pod is being deleted, is gone, or another Pod has its address and answers with a RST.
    for ends in [Shop::pod_is_deleted, Shop::pod_ends, Shop::newcomer] {
        let mut world = left();
        ends(&mut world.shop, EP, 21_000);
        assert_eq!(world.verdict(on_another_node(late()), 700_000).class, Class::C7);
    }
    // A new Pod of a StatefulSet has the name of its predecessor.
    let mut world = left();
    let mut successor = world.shop.pods[&addr(EP).ip()].clone();
    successor.uid = "successor".into();
    world.shop.put(25_000, Object::Pod(successor.into()));
    assert_eq!(world.verdict(on_another_node(late()), 700_000).class, Class::C7);
    // Nothing answers any more.
    let silent = falls_silent(to_cart().established(10_000), 620_000, false);
    assert_eq!(left().verdict(silent, 700_000).class, Class::C7);
    // A new connection is sent there all the same.
    let begun_later = aborted_by_server(to_cart().established(60_000), 70_000);
    assert_eq!(left().verdict(begun_later, 100_000).class, Class::C6);
    // Without Pods only its own socket shows that it lives.
    let mut world = left();
    world.shop.known.retain(|kind| *kind != Kind::Pod);
    assert_eq!(world.verdict(late(), 700_000).class, Class::Ok);
    assert_eq!(world.verdict(on_another_node(late()), 700_000).class, Class::C7);
}

/// Both ends are on other nodes. The Pod's end closed the connection, and minutes later the endpoint's address answers the
/// client's close with a RST: only that passes through a hook here.
#[test]
fn a_reset_between_two_other_hosts_may_follow_a_close() {
    let reset =
        |ms: u64| to_cart().confirm(10_000).transit_reset(ms, false, Status::SEEN_REPLY | Status::ASSURED);
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    world.shop.leaves(EP, 20_000);
    world.shop.pod_ends(EP, 21_000);
    let verdict = world.verdict(reset(600_000), 610_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C7, Confidence::Medium), "{verdict:#?}");
    assert!(verdict.cross_reference.contains(&"N9".into()), "{:?}", verdict.cross_reference);
    assert!(
        verdict.unseen.iter().any(|it| it.contains("had closed the connection before")),
        "{:?}",
        verdict.unseen
    );
    assert!(!verdict.root_cause.contains("established"), "{}", verdict.root_cause);
    // The client's socket shows that nothing was closed.
    let seen = |state| reset(600_000).receive_reset(600_001, state);
    let verdict = world.verdict(seen(ESTABLISHED), 610_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C7, Confidence::High), "{verdict:#?}");
    // The client had closed: its data, or only its close, was reset.
    let verdict = world.verdict(seen(TcpState::FinWait1), 610_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C7, Confidence::Medium), "{verdict:#?}");
    assert!(verdict.unseen.iter().any(|it| it.contains("before the client's close")), "{:?}", verdict.unseen);
}

/// The endpoint closed and ended; minutes later the client's pool closes its side, which nobody answers.
#[test]
fn a_pool_that_closes_after_its_endpoint_ended_misses_nothing() {
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    world.shop.becomes(EP, TERMINATING, 20_000);
    world.shop.leaves(EP, 25_000);
    world.shop.pod_ends(EP, 26_000);
    let closing = |state: TcpState| {
        let script = to_cart().confirm(10_000).state(10_001, false, TcpState::SynSent, ESTABLISHED);
        [300_200, 300_600, 301_400, 303_000, 306_200]
            .into_iter()
            .fold(script, |script, ms| script.retransmit(ms, state))
    };
    let verdict = world.verdict(closing(TcpState::LastAck), 320_000);
    assert_eq!((verdict.class, verdict.severity), (Class::N9, Severity::None), "{}", verdict.root_cause);
    assert_eq!(world.verdict(closing(ESTABLISHED), 320_000).class, Class::C7);
}

#[test]
fn a_client_that_ends_what_was_served_broke_nothing() {
    for removed in [58_000, 48_000] {
        let mut world = World::new();
        world.shop.ready(OTHER, 0);
        world.shop.becomes(EP, TERMINATING, removed);
        assert_eq!(world.verdict(aborted(to_cart().established(60_000), 60_050), 70_000).class, Class::N4);
    }
    // Another proxy served it.
    let mut world = World::new();
    world.shop.cart.proxy_name = Some("kube-router".into());
    let served = Script::new(CLIENT, VIP, None).established(10_000);
    assert_eq!(world.verdict(aborted(served, 10_050), 20_000).class, Class::N4);
    // A hostPort at the load balancer's IP.
    let lb = "192.168.1.2:443";
    let mut world = World::new();
    world.shop.reached_by(Via::LoadBalancerIp, lb);
    let served = || Script::new(OUTSIDE, lb, Some("10.244.1.50:8443")).established(60_000);
    assert_eq!(world.verdict(aborted(served(), 61_050), 70_000).class, Class::N4);
    assert_eq!(world.verdict(aborted_by_server(served(), 61_050), 70_000).class, Class::Ok);
}

/// Antrea without its own proxy: Open vSwitch commits each connection in its zone before the node's rules see it.
#[test]
fn an_entry_of_another_zone_is_no_decision_of_the_rules() {
    let with_ovs = |mut script: Script| {
        let plain = Script { endpoint: None, out: Vec::new(), ..script.clone() };
        let mut first = plain.with_ct(77).confirm_syn(60_000).out.remove(0);
        if let Fact::Conntrack(fact) = &mut first.fact {
            (fact.ct.zone, fact.ct.status) = (65_520, Status(0));
        }
        script.out.insert(0, first);
        script
    };
    let untranslated = || Script::new(CLIENT, VIP, None);
    let refused = with_ovs(untranslated().unreach(60_000, 3).connect_failed(60_001));
    assert_eq!(World::of(Shop::with_endpoints(&[])).verdict(refused, 70_000).class, Class::C20);
    let mut world = World::new();
    world.shop.cart.internal_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    let dropped = with_ovs(untranslated().drop_syn(60_000, "NETFILTER_DROP").connect_failed(64_000));
    assert_eq!(world.verdict(dropped, 70_000).class, Class::C22);
    let healthy = with_ovs(to_cart().healthy(60_000));
    assert_eq!(World::new().verdict(healthy, 70_000).class, Class::Ok);
    // All that an agent reports of a healthy connection.
    let (world, limits) = of_agent();
    assert_eq!(all(&world, limits, with_ovs(untranslated()), 80_000), [Class::Ok]);
}

/// Google's load balancer checks kube-proxy at the address that it balances; kube-proxy restarts.
#[test]
fn a_health_check_of_kube_proxy_is_no_wrong_port() {
    let lb = "198.51.100.5:80";
    let mut world = World::new();
    world.shop.reached_by(Via::LoadBalancerIp, lb);
    world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
    world.shop.cart.health_check_node_port = Some(31_234);
    let refused = |port: u16| {
        let to = format!("198.51.100.5:{port}");
        let script =
            Script::new("35.191.0.9:40000", &to, None).confirm(60_000).no_socket(60_001).kill(60_002);
        world.judge(&last_revisions(fold(script.out, 70_000).0)[0]).map(|verdict| verdict.class)
    };
    assert_eq!([31_234, 10_256, 81].map(refused), [None, None, Some(Class::C5c)]);
}

/// An operator flushes the table, and the endpoint sends first, as in a watch.
#[test]
fn an_answer_without_an_entry_is_a_lost_entry() {
    let mut script = to_cart().established(10_000).delete_by_hand(20_000);
    script.out.append(&mut Script::new(EP, CLIENT, None).with_ct(99).confirm_midstream(21_000).out);
    let verdict = World::new().verdict(script.client_has_no_socket(21_000, addr(EP)), 60_000);
    assert_eq!(verdict.class, Class::C19, "{verdict:#?}");
}

/// Without conntrack a connection's first event is that it is established.
#[test]
fn the_node_serves_the_address_itself_from_the_first_event_on() {
    let mut world = World::new();
    world.node.own.push(addr(VIP).ip());
    let script = Script::new(CLIENT, VIP, None).state(10_001, false, TcpState::SynSent, ESTABLISHED);
    let script = script.state(10_020, false, TcpState::FinWait2, TcpState::Close);
    let verdict = world.verdict(script, 20_000);
    assert_eq!(verdict.class, Class::N11);
    assert!(
        !verdict.unseen.iter().any(|what| what.contains("the trace began later")),
        "{:?}",
        verdict.unseen
    );
}

/// Its answers are dropped at intervals that double, until one end loses patience.
#[test]
fn drops_until_the_last_repetition_explain_the_end() {
    const WAITS: [u64; 8] = [0, 200, 600, 1_400, 3_000, 6_200, 12_600, 25_400];
    let invalid = || {
        WAITS.into_iter().map(|wait| 12_000 + wait).fold(to_cart().established(10_000), |script, ms| {
            let script = if ms > 12_000 { script.server_retransmits(ms, ESTABLISHED) } else { script };
            script.invalid_answer(ms, OUT_OF_WINDOW).drop_invalid(ms)
        })
    };
    let filtered = |server: bool| {
        WAITS.into_iter().map(|wait| 12_000 + wait).fold(to_cart().established(10_000), |script, ms| {
            let script = match (ms > 12_000, server) {
                (false, _) => script,
                (true, true) => script.server_retransmits(ms, ESTABLISHED),
                (true, false) => script.retransmit(ms, ESTABLISHED),
            };
            script.drop_later(ms, "IP_RPFILTER")
        })
    };
    let class = |script: Script| World::new().verdict(script, 120_000).class;
    for patience in [28_000, 30_000, 50_000] {
        let end = 12_000 + patience;
        assert_eq!(class(aborted(invalid(), end)), Class::C18b, "{patience}");
        assert_eq!(class(aborted_by_server(invalid(), end)), Class::C18b, "{patience}");
        assert_eq!(class(aborted(filtered(true), end)), Class::C32, "{patience}");
        assert_eq!(class(aborted_by_server(filtered(false), end)), Class::C32, "{patience}");
    }
}
