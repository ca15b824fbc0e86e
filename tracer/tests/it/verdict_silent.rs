//! Connections that worked and then fell silent: which end, and whether it is a fault at all.

use crate::{
    cluster_support::{NOT_READY, node},
    flow_support::{CLIENT, EP, Script, VIP, World, addr, at},
};
use viptrace::{
    class::{Class, Confidence, Severity},
    cluster::{Via, model::Object},
    flow::{FlowTable, Limits, Outcome, Reread},
    sighting::{Status, TcpState},
    verdict::Verdict,
};

const OUTSIDE: &str = "203.0.113.9:40000";
const NODE_PORT: &str = "192.168.1.2:30080";
/// When an end repeats what has no answer, in milliseconds.
const REPEATS: [u64; 5] = [20_000, 20_400, 21_200, 22_800, 26_000];

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

/// One end repeats a segment, of which nothing was acknowledged since.
fn repeats(script: Script, server: bool) -> Script {
    REPEATS.into_iter().fold(script, |script, ms| script.repeats_segment(ms, server, 500, (100, 200)))
}

/// The endpoint of a client elsewhere gets no answer any more.
fn unanswered_by(client: &str, vip: &str) -> Script {
    let script = Script::new(client, vip, Some(EP)).confirm(10_000);
    repeats(script.state(10_002, true, TcpState::SynRecv, TcpState::Established), true)
}

/// The same, and all that it repeats is its close.
fn close_unanswered_by(client: &str) -> Script {
    let script = Script::new(client, VIP, Some(EP)).confirm(10_000);
    let script = script.state(10_002, true, TcpState::SynRecv, TcpState::Established);
    REPEATS.into_iter().fold(script, |script, ms| script.server_retransmits(ms, TcpState::FinWait1))
}

fn doubt(verdict: &Verdict, what: &str) -> bool {
    verdict.against.iter().any(|evidence| evidence.content.contains(what))
}

/// A phone that left its network, a NAT device that forgot the connection: the endpoint is well.
#[test]
fn a_client_outside_that_vanishes_is_no_fault() {
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, NODE_PORT);
    let verdict = world.verdict(unanswered_by(OUTSIDE, NODE_PORT), 40_000);
    assert_eq!((verdict.class, verdict.severity), (Class::Ok, Severity::None), "{verdict:#?}");
    assert!(doubt(&verdict, "the client 203.0.113.9 answered no more"), "{verdict:#?}");
    // It sent a request, and the first full segment of the answer is repeated: the path's MTU looks the same.
    let request = |client, vip| {
        let script = Script::new(client, vip, Some(EP)).confirm(10_000);
        let script = script.state(10_002, true, TcpState::SynRecv, TcpState::Established);
        REPEATS.into_iter().fold(script, |script, ms| script.repeats_segment(ms, true, 1_398, (0, 120)))
    };
    let verdict = world.verdict(request(OUTSIDE, NODE_PORT), 40_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C33, Confidence::Low));
    assert!(doubt(&verdict, "left before the answer looks the same"), "{verdict:#?}");
    let mut ended = World::new();
    ended.shop.pods.get_mut(&addr(CLIENT).ip()).unwrap().node = Some("worker-2".into());
    assert_eq!(ended.verdict(request(CLIENT, VIP), 40_000).class, Class::C33);
    ended.shop.pod_ends(CLIENT, 19_000);
    assert_eq!(ended.verdict(request(CLIENT, VIP), 40_000).class, Class::Ok);
    // Its server gives up by a RST: that is no reset of a working connection.
    let given_up = || {
        let script = unanswered_by(OUTSIDE, NODE_PORT);
        script.send_reset(30_000, true, TcpState::Established, "TCP_ABORT_ON_LINGER").state(
            30_000,
            true,
            TcpState::Established,
            TcpState::Close,
        )
    };
    let verdict = world.verdict(given_up(), 40_000);
    assert_eq!(verdict.class, Class::Ok);
    assert!(doubt(&verdict, "answered no more"), "{verdict:#?}");
}

#[test]
fn a_client_in_the_cluster_that_falls_silent_is_named_instead_of_the_endpoint() {
    let world = || {
        let mut world = World::new();
        world.shop.pods.get_mut(&addr(CLIENT).ip()).unwrap().node = Some("worker-2".into());
        world
    };
    let silent = || unanswered_by(CLIENT, VIP);
    let verdict = world().verdict(silent(), 40_000);
    assert_eq!((verdict.class, verdict.severity), (Class::C29, Severity::Low));
    let named = "the client 10.244.1.100 (Pod shop/client) of shop/cart:http fell silent";
    assert!(verdict.root_cause.contains(named), "{}", verdict.root_cause);
    assert!(verdict.mitigation.immediate.contains("trace on the client's node"), "{verdict:#?}");
    assert!(verdict.unseen.iter().any(|what| what.contains("reach node worker-2")), "{verdict:#?}");
    // Its Pod ended meanwhile, or is being deleted.
    let mut ended = world();
    ended.shop.pod_ends(CLIENT, 19_000);
    let verdict = ended.verdict(silent(), 40_000);
    assert_eq!(verdict.class, Class::Ok, "{verdict:#?}");
    assert!(doubt(&verdict, "its Pod ended"), "{verdict:#?}");
    let mut deleted = world();
    let mut pod = deleted.shop.pods[&addr(CLIENT).ip()].clone();
    pod.deletion = Some(at(49_000));
    deleted.shop.put(19_000, Object::Pod(pod.into()));
    assert_eq!(deleted.verdict(silent(), 40_000).class, Class::Ok);
    // All data arrived: only the close has no answer.
    let verdict = world().verdict(close_unanswered_by(CLIENT), 40_000);
    assert_eq!(verdict.class, Class::Ok, "{verdict:#?}");
    assert!(doubt(&verdict, "only the close was repeated"), "{verdict:#?}");
    // Data before the close is missed: a bare FIN has no bytes.
    let data = Script::new(CLIENT, VIP, Some(EP)).confirm(10_000);
    let data = data.state(10_002, true, TcpState::SynRecv, TcpState::Established);
    let data = REPEATS
        .into_iter()
        .fold(data, |script, ms| script.repeats_segment_in(ms, true, TcpState::FinWait1, 500, (100, 200)));
    assert_eq!(world().verdict(data, 40_000).class, Class::C29);
    // The client repeats too: the path is broken, and the endpoint is the one that this client misses.
    let both = repeats(repeats(to_cart().established(10_000), true), false);
    let verdict = world().verdict(both, 40_000);
    assert!(verdict.root_cause.contains("answered and then fell silent"), "{}", verdict.root_cause);
}

/// A node dies: its endpoints are not ready for minutes before they leave, and the Node's state is unknown.
#[test]
fn an_endpoint_that_is_only_not_ready_has_not_left() {
    let silent = || repeats(to_cart().established(10_000), false);
    let mut world = World::new();
    world.shop.becomes(EP, NOT_READY, 15_000);
    world.shop.on_node(EP, "worker-2");
    let mut object = node("worker-2", "192.168.1.3");
    let Object::Node(known) = &mut object else { panic!() };
    std::sync::Arc::make_mut(known).ready = None;
    world.shop.put(14_000, object);
    let verdict = world.verdict(silent(), 40_000);
    assert_eq!(verdict.class, Class::C29, "{verdict:#?}");
    let says = |what: &str| verdict.evidence.iter().any(|evidence| evidence.content.contains(what));
    assert!(says("the endpoint's node worker-2 is not Ready"), "{verdict:#?}");
    assert!(verdict.mitigation.immediate.contains("kubectl describe node worker-2"), "{verdict:#?}");
    // Its readiness probe fails, and its application resets a minute later.
    let mut world = World::new();
    world.shop.becomes(EP, NOT_READY, 15_000);
    let reset =
        to_cart().established(10_000).send_reset(75_000, true, TcpState::Established, "TCP_ABORT_ON_CLOSE");
    let reset = reset.receive_reset(75_001, TcpState::Established).state(
        75_001,
        false,
        TcpState::Established,
        TcpState::Close,
    );
    assert_eq!(world.verdict(reset, 80_000).class, Class::Ok);
}

/// The endpoint of a datagram left a moment before: there is no answer, and nothing refuses it.
#[test]
fn a_datagram_to_an_endpoint_that_just_left_is_lag() {
    let resolver = "10.96.0.53:53";
    let mut world = World::new();
    world.shop.reached_by(Via::ClusterIp, resolver);
    world.shop.ready("10.244.1.8:8080", 0);
    world.shop.leaves(EP, 9_000);
    let asked = Script::new(CLIENT, resolver, Some(EP)).udp().confirm(10_000).reread(18_400, 0);
    assert_eq!(world.verdict(asked, 50_000).class, Class::C5);
}

/// An HTTP client with a timeout resets a connection whose request had no answer.
#[test]
fn a_client_that_gives_up_by_a_reset_does_not_hide_the_silence() {
    let gives_up = |script: Script| {
        script.send_reset(30_000, false, TcpState::Established, "TCP_ABORT_ON_LINGER").state(
            30_000,
            false,
            TcpState::Established,
            TcpState::Close,
        )
    };
    let verdict = World::new().verdict(gives_up(repeats(to_cart().established(10_000), false)), 40_000);
    assert_eq!(verdict.class, Class::C29, "{verdict:#?}");
    // What it repeated was acknowledged after all: the abort is its own.
    let acknowledged = REPEATS
        .into_iter()
        .fold(to_cart().established(10_000), |script, ms| script.repeats_segment(ms, false, 500, (50, 200)));
    assert_eq!(World::new().verdict(gives_up(acknowledged), 40_000).class, Class::N4);
}

#[test]
fn a_rule_that_drops_an_open_connection_is_named() {
    let at_once = REPEATS.map(|ms| ms + 1);
    let dropped = |script: Script| {
        at_once.into_iter().fold(script, |script, ms| script.drop_later(ms, "NETFILTER_DROP")).in_order()
    };
    let cut = || dropped(repeats(to_cart().established(10_000), false));
    let verdict = World::new().verdict(cut(), 40_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::Medium), "{verdict:#?}");
    assert!(verdict.root_cause.contains("of an open connection to shop/cart:http"), "{}", verdict.root_cause);
    // One early drop that the repetition passed, or a drop of nothing that is repeated, says nothing about the silence.
    let early = repeats(to_cart().established(10_000).drop_later(12_000, "NETFILTER_DROP"), false);
    assert_eq!(World::new().verdict(early, 40_000).class, Class::C29);
    // Answers.
    let answers = repeats(to_cart().established(10_000), true);
    let answers = at_once.into_iter().fold(answers, Script::drop_known_answer).in_order();
    let verdict = World::new().verdict(answers, 40_000);
    assert_eq!(verdict.class, Class::C30, "{verdict:#?}");
    assert!(verdict.root_cause.contains("drops the answers of"), "{}", verdict.root_cause);
    // The endpoint is elsewhere: the client repeats its request.
    let answers = repeats(
        to_cart().confirm(10_000).state(10_001, false, TcpState::SynSent, TcpState::Established),
        false,
    );
    let answers = at_once.into_iter().fold(answers, Script::drop_known_answer).in_order();
    assert_eq!(World::new().verdict(answers, 40_000).class, Class::C30);
    // A close after its entry had timed out: its packets are no connection's any more (N5).
    let untranslated = Script::new(CLIENT, VIP, None);
    let late = REPEATS.into_iter().fold(untranslated, |script, ms| {
        script
            .repeats_segment_in(ms, false, TcpState::FinWait1, 0, (100, 200))
            .drop_untranslated(ms + 1, "NETFILTER_DROP")
    });
    assert_ne!(World::new().verdict(late, 40_000).class, Class::C30);
    // A tc program.
    let by_program = repeats(to_cart().established(10_000), false).drop_later(20_401, "TC_EGRESS").in_order();
    let verdict = World::new().verdict(by_program, 40_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::High));
    // One at the client's own interface meets the packets before NAT.
    let before_nat = repeats(to_cart().established(10_000), false).drop_untranslated(20_401, "TC_INGRESS");
    assert_eq!(World::new().verdict(before_nat.in_order(), 40_000).class, Class::C30);
    // Conntrack calls the packets invalid.
    let invalid = to_cart().established(10_000).invalid_answer(19_000, "SEQ is over upper bound %u");
    assert_eq!(World::new().verdict(dropped(repeats(invalid, false)), 40_000).class, Class::C18b);
}

/// The agent's hooks do not report established sockets: only the entry shows that the third SYN was answered.
#[test]
fn a_repeated_syn_that_was_answered_is_no_silence() {
    let outcome = |limits: Limits, status: u32| {
        let mut table = FlowTable::new(limits);
        let script = to_cart().silent(10_000);
        script.out.into_iter().for_each(|sighting| table.observe(sighting));
        table.advance(at(14_100));
        let requested = table.take_rereads().len();
        to_cart().reread(14_200, status).out.into_iter().for_each(|sighting| table.observe(sighting));
        table.advance(at(20_000));
        (requested, table.drain_settled().next().unwrap().outcome())
    };
    let of_agent = || Limits { reread: Reread::Datagrams, sees_closes: false, ..Limits::default() };
    let replied = Status::SEEN_REPLY | Status::ASSURED;
    assert_eq!(outcome(of_agent(), replied), (1, Outcome::Established));
    assert_eq!(outcome(of_agent(), 0), (1, Outcome::Stalled));
    // The answer came to this node, and a rule dropped it before it reached the client.
    assert_eq!(outcome(of_agent(), Status::SEEN_REPLY), (1, Outcome::Stalled));
    assert_eq!(outcome(Limits::default(), 0), (0, Outcome::Stalled));
}
