//! How sure a verdict is: the rule of `class::Confidence`, over the verdicts of recordings and of constructed flows.

use crate::{
    cluster_support::{NOT_READY, Shop, TERMINATING},
    flow_support::{CLIENT, EP, Script, VIP, World, addr, at, last_revisions},
    node_support::Rules,
    recording_corpus,
};
use viptrace::{
    class::{Class, Confidence, Kind},
    flow::{Flow, FlowTable, Limits, Lost, Reread},
    node::RuleEffect,
    sighting::{Status, TcpState},
};

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

fn untranslated() -> Script {
    Script::new(CLIENT, VIP, None)
}

fn stale() -> World {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    world
}

fn with_rules(rules: Rules) -> World {
    let mut world = World::new();
    world.node.rules = rules;
    world
}

fn of(shop: impl FnOnce(&mut Shop)) -> World {
    let mut world = World::new();
    shop(&mut world.shop);
    world
}

/// One flow of each class whose verdict can be of high confidence, and some others.
fn cases() -> Vec<(Class, World, Script)> {
    let reset = |by_server: bool, reason: &str| {
        to_cart().established(60_000).send_reset(60_500, by_server, TcpState::Established, reason).state(
            60_500,
            by_server,
            TcpState::Established,
            TcpState::Close,
        )
    };
    let full = untranslated().drop_table_full(60_000).retransmit(61_000, TcpState::SynSent);
    let filtered = to_cart().drop_syn(60_000, "IP_RPFILTER").retransmit(61_000, TcpState::SynSent);
    let by_program = to_cart().drop_syn(60_000, "TC_EGRESS").retransmit(61_000, TcpState::SynSent);
    let invalid = to_cart()
        .established(60_000)
        .invalid_answer(61_000, "SEQ is over upper bound")
        .client_has_no_socket(61_001, addr(EP))
        .endpoint_has_no_connection(61_500)
        .receive_reset(61_501, TcpState::Established);
    let direct = to_cart()
        .confirm(60_000)
        .client_has_no_socket(60_001, addr(EP))
        .retransmit(61_000, TcpState::SynSent)
        .connect_failed(64_000);
    let stale_entry = to_cart().udp().listed(60_000, 58_000);
    vec![
        (Class::C1, with_rules(Rules::Nothing), untranslated().silent(60_000)),
        (Class::C4, World::new(), untranslated().unreach(60_000, 3).connect_failed(60_001)),
        (Class::C5, with_rules(Rules::Vip(RuleEffect::Missing)), untranslated().silent(60_000)),
        (Class::C5b, World::new(), untranslated().silent(60_000)),
        (Class::C5c, World::new(), Script::new(CLIENT, "10.96.0.10:81", None).silent(60_000)),
        (Class::C6, stale(), to_cart().refused(60_000)),
        (
            Class::C7,
            of(|shop| {
                shop.leaves(EP, 20_000);
                shop.pod_is_deleted(EP, 20_000);
            }),
            to_cart()
                .established(10_000)
                .send_reset(60_000, true, TcpState::Established, "X")
                .receive_reset(60_001, TcpState::Established),
        ),
        (Class::C8, stale(), stale_entry),
        (Class::C16, World::new(), full),
        (Class::C18, World::new(), invalid),
        (
            Class::C20,
            World::of(Shop::with_endpoints(&[])),
            untranslated().unreach(60_000, 3).connect_failed(60_001),
        ),
        (Class::C28, World::new(), to_cart().refused(60_000)),
        (Class::C29, World::new(), to_cart().dead_pod(60_000)),
        (Class::C30, World::new(), by_program),
        (Class::C31, World::new(), direct),
        (Class::C32, World::new(), filtered),
        (Class::C5, of(|shop| shop.becomes(EP, TERMINATING, 59_000)), to_cart().refused(60_000)),
        (Class::C6, of(|shop| shop.becomes(EP, NOT_READY, 20_000)), to_cart().refused(60_000)),
        (
            Class::N1,
            World::new(),
            Script::new("10.244.1.1:50000", EP, None).confirm_by(60_000, 812, "kubelet").closed(60_010),
        ),
        (Class::N4, World::new(), reset(false, "TCP_ABORT_ON_DATA")),
        (Class::N5, World::new(), reset(false, "TCP_KEEPALIVE_TIMEOUT")),
        (Class::N8, of(|shop| shop.becomes(EP, TERMINATING, 5_000)), to_cart().healthy(60_000)),
        (Class::N9, of(|shop| shop.leaves(EP, 65_000)), to_cart().established(60_000).closed(70_000)),
        (
            Class::N10,
            World::new(),
            to_cart().udp().confirm(60_000).clash(60_000).delete(90_000, Status::SEEN_REPLY),
        ),
        (Class::Ok, World::new(), to_cart().healthy(60_000)),
    ]
}

/// The flow of a script, during which this many events were lost.
fn flow(script: Script, lost: u64) -> Flow {
    let mut table = FlowTable::new(Limits { reread: Reread::Datagrams, ..Limits::default() });
    table.lost(Lost::of_unknown_hook(lost, at(0), at(200_000)));
    for sighting in script.out {
        table.observe(sighting);
    }
    table.advance(at(200_000));
    let mut flows: Vec<_> = table.drain_settled().collect();
    table.finish(at(200_000));
    flows.extend(table.drain_settled());
    let mut flows = last_revisions(flows);
    assert_eq!(flows.len(), 1, "{flows:#?}");
    flows.remove(0)
}

#[test]
fn with_lost_events_no_verdict_is_certain() {
    for (class, world, script) in cases() {
        let whole = world.judge(&flow(script.clone(), 0)).unwrap();
        assert_eq!(whole.class, class, "{}", whole.root_cause);
        let verdict = world.judge(&flow(script, 7)).unwrap();
        assert!(verdict.confidence < Confidence::High, "{class}: {verdict:#?}");
        assert!(
            verdict.unseen.iter().any(|what| what.contains("7 events were lost")),
            "{class}: {verdict:#?}"
        );
        assert_eq!(verdict.lost_events, 7);
        // Nothing is called healthy, and nothing else becomes a fault.
        assert!(verdict.class != Class::Ok && verdict.class != Class::N8, "{class}");
        assert!(whole.is_fault() || !verdict.is_fault(), "{class}: {verdict:#?}");
        assert_eq!(verdict.is_fault() || verdict.is_unexplained(), whole.is_fault(), "{class}: {verdict:#?}");
    }
}

#[test]
fn old_metadata_and_an_unknown_namespace_lower_a_fault() {
    for (class, mut world, script) in cases() {
        let flow = flow(script, 0);
        let fresh = world.judge(&flow).unwrap().confidence;
        for age in [Some(90.0), None] {
            world.metadata_age = age;
            let verdict = world.judge(&flow).unwrap();
            if !matches!(class.kind(), Kind::Ok) && class != Class::N8 {
                assert_eq!(verdict.confidence, fresh.lower(), "{class}, metadata {age:?}");
            }
            assert!(!verdict.unseen.is_empty(), "{class}, metadata {age:?}");
        }
        world.metadata_age = Some(0.5);
        world.node_netns = None;
        let verdict = world.judge(&flow).unwrap();
        if verdict.is_fault() {
            assert!(verdict.confidence < Confidence::High, "{class}: {verdict:#?}");
            assert!(
                verdict.unseen.iter().any(|what| what.contains("network namespace of kube-proxy")),
                "{class}"
            );
        }
    }
}

/// A verdict that is not certain names the observation that would decide, or the evidence against it.
#[test]
fn doubt_has_a_reason() {
    let constructed = cases().into_iter().map(|(_, world, script)| world.judge(&flow(script, 0)).unwrap());
    let doubtful: Vec<_> = recording_corpus::verdicts()
        .chain(constructed)
        .filter(|verdict| {
            verdict.confidence < Confidence::High && (verdict.is_fault() || verdict.is_unexplained())
        })
        .collect();
    assert!(doubtful.len() > 10, "{}", doubtful.len());
    let baseless = doubtful.iter().filter(|verdict| verdict.unseen.is_empty() && verdict.against.is_empty());
    assert_eq!(baseless.map(|verdict| &*verdict.root_cause).collect::<Vec<_>>(), Vec::<&str>::new());
}
