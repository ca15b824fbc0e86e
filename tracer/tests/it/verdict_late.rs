//! Evidence that arrives after the verdict that it changes, and verdicts that must not be given before it.

use std::{sync::Arc, time::Duration};

use crate::{
    cluster_support::{NOT_READY, READY, Shop, TERMINATING, put, slice},
    flow_support::{CLIENT, EP, Script, VIP, World, addr, at, fold, last_revisions},
    ipvs_support::{by_ipvs, reset_by_the_node},
    node_support::{Rules, iptables},
    session_support::settings,
};
use viptrace::{
    class::{Class, Confidence},
    cluster::{
        Cluster, Origin, Status as ClusterStatus, Via,
        model::{Object, TrafficPolicy},
    },
    flow::{FlowTable, Limits, Lost, Reread},
    incident::{Found, Pathfinder},
    net::Protocol,
    node::{ProxyMode, RuleEffect, capture::Kind},
    session::{Detail, Judged, Pipeline},
    sighting::{Fact, Hook, Status, TcpState},
    verdict::Verdict,
};

const OTHER: &str = "10.244.1.8:8080";

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

/// A pipeline of the world's cluster that has read its node.
fn pipeline(world: &World) -> Pipeline {
    let status = ClusterStatus::new(Origin::None);
    Pipeline::new(settings(Detail::All), Cluster { history: world.shop.history(), status })
}

/// All verdicts of these sightings, in steps of 100 ms, with a node that is read whenever a flow waits for it.
fn verdicts(world: &World, script: Script, until_ms: u64) -> Vec<Judged> {
    let mut pipeline = pipeline(world);
    let (mut sightings, mut judged) = (script.out, Vec::new());
    sightings.sort_by_key(|sighting| sighting.time);
    let first = sightings[0].time;
    for ms in (0..=until_ms).step_by(100).filter(|ms| at(*ms) >= first) {
        let due = sightings.iter().position(|it| it.time > at(ms)).unwrap_or(sightings.len());
        pipeline.observe(sightings.drain(..due));
        judged.extend(pipeline.advance(at(ms)).judged);
        if pipeline.wants_node() {
            let node = Arc::new(world.node.snapshot(&world.shop.cart));
            judged.extend(pipeline.node_read(node, at(ms), at(ms)).judged);
        }
    }
    judged
}

fn classes(judged: &[Judged]) -> Vec<(Option<Class>, Class)> {
    judged.iter().map(|it| (it.before.as_ref().map(|before| before.class), it.verdict.class)).collect()
}

/// SYNs to `EP` at 10, 11 and 12 s; the last one goes to `OTHER`, which answers, and the connection closes at once.
fn third_time_lucky() -> Script {
    let ct = to_cart().ct;
    let script = to_cart().retransmit(11_000, TcpState::SynSent).retransmit(12_000, TcpState::SynSent);
    let script = script.with_ct(ct + 64).with_endpoint(OTHER).established(12_001).closed(12_100);
    script.with_ct(ct).with_endpoint(EP).drop_syn(13_100, "NEIGH_FAILED")
}

#[test]
fn a_connection_that_a_stale_endpoint_delayed_is_reported_once_that_is_known() {
    let mut world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    world.shop.leaves(EP, 1_000);
    let judged = verdicts(&world, third_time_lucky(), 30_000);
    // The second verdict replaces the first in every count.
    assert_eq!(classes(&judged), [(None, Class::Ok), (Some(Class::Ok), Class::C6)]);
    assert!(judged[1].verdict.root_cause.contains(&format!("a repeated packet went to {OTHER}")));
    // Both endpoints are listed: the first was slow.
    let world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    assert_eq!(classes(&verdicts(&world, third_time_lucky(), 30_000)), [(None, Class::Ok)]);
}

/// kube-proxy writes the rule of a Service without endpoints before viptrace receives the change.
#[test]
fn a_refusal_waits_for_the_change_that_explains_it() {
    let world = World::new();
    let judged = |learned: u64| {
        let script = Script::new(CLIENT, VIP, None).unreach(60_000, 3).connect_failed(60_001);
        let none = slice(&world.shop.cart, addr(EP), Vec::new());
        learning(&world, script, learned, Object::EndpointSlice(none.into()), 80_000)
    };
    let [(Class::C20, _)] = judged(60_900)[..] else { panic!("{:?}", judged(60_900)) };
    let [(Class::C4, ms)] = judged(u64::MAX)[..] else { panic!("{:?}", judged(u64::MAX)) };
    assert!(ms > 62_000, "{ms}");
}

/// The verdicts of these sightings, and when each was given, if an update of the endpoint arrives at `learned`.
fn learning(world: &World, script: Script, learned: u64, update: Object, until: u64) -> Vec<(Class, u64)> {
    let mut pipeline = pipeline(world);
    let mut update = Some(update);
    let mut sightings = script.in_order().out.into_iter().peekable();
    let mut judged = Vec::new();
    for ms in (0..until).step_by(100) {
        if ms >= learned
            && let Some(object) = update.take()
        {
            pipeline.cluster_mut().history.apply(at(ms), put(object));
        }
        while let Some(sighting) = sightings.next_if(|sighting| sighting.time <= at(ms)) {
            pipeline.observe([sighting]);
        }
        let mut found = pipeline.advance(at(ms)).judged;
        if pipeline.wants_node() {
            let node = Arc::new(world.node.snapshot(&world.shop.cart));
            found.extend(pipeline.node_read(node, at(ms), at(ms)).judged);
        }
        judged.extend(found.iter().map(|found| (found.verdict.class, ms)));
    }
    judged
}

/// kube-proxy removes a real server, and IPVS its connections, before viptrace receives the change.
#[test]
fn a_connection_that_ipvs_forgot_waits_for_its_endpoints_removal() {
    let mut world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    world.node.mode = Some(ProxyMode::Ipvs);
    let script = || {
        let before = to_cart().established(10_000).delete(60_000, Status::SEEN_REPLY | Status::ASSURED);
        reset_by_the_node(by_ipvs(before), 60_100)
    };
    let mut without = World::of(Shop::with_endpoints(&[EP, OTHER]));
    without.shop.leaves(EP, 1);
    let removed = || without.shop.history().slices_at(&world.shop.cart.key, at(10)).next().unwrap().clone();
    let judged = |learned| learning(&world, script(), learned, Object::EndpointSlice(removed()), 80_000);
    for learned in [59_000, 60_000, 61_000, 64_500] {
        let [(class, ms)] = judged(learned)[..] else { panic!("one verdict: {:?}", judged(learned)) };
        assert_eq!(class, Class::C13, "{learned}");
        assert_eq!(ms < 61_000, learned < 60_100, "{learned}: {ms}");
    }
    // It had no reason to go.
    let [(Class::C15, ms)] = judged(70_000)[..] else { panic!("{:?}", judged(70_000)) };
    assert!((65_000..66_000).contains(&ms), "{ms}");
    world.shop.leaves(EP, 61_000);
    let verdict = world.verdict(script(), 80_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C13, Confidence::Medium));
    let said = |it: &viptrace::verdict::Evidence| {
        it.content.contains("kube-proxy received the change before viptrace")
    };
    assert!(verdict.evidence.iter().any(said), "{:#?}", verdict.evidence);
}

/// A Pod is evicted, and its application stops listening before viptrace learns that it ends.
#[test]
fn a_refusal_by_an_endpoint_waits_for_the_news_of_its_end() {
    let world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    let updated = |change: &dyn Fn(&mut Shop)| {
        let mut later = Shop::with_endpoints(&[EP, OTHER]);
        change(&mut later);
        let history = later.history();
        let slice = history.slices_at(&world.shop.cart.key, at(10)).next().unwrap().clone();
        Object::EndpointSlice(slice)
    };
    let terminates = || updated(&|shop| shop.becomes(EP, TERMINATING, 1));
    let leaves = || updated(&|shop| shop.leaves(EP, 1));
    let mut deleted = world.shop.pods[&addr(EP).ip()].clone();
    deleted.deletion = Some(at(90_000));
    for script in [to_cart().refused(60_000), to_cart().dead_pod(60_000)] {
        for update in [terminates(), leaves(), Object::Pod(deleted.clone().into())] {
            let judged = learning(&world, script.clone(), 60_900, update, 80_000);
            assert_eq!(judged.iter().map(|(class, _)| *class).collect::<Vec<_>>(), [Class::C5]);
            assert!(judged[0].1 < 66_000, "{judged:?}");
        }
    }
    // Nothing of the kind comes: its application is down, or only not ready.
    let not_ready = updated(&|shop| shop.becomes(EP, NOT_READY, 1));
    for (learned, update) in [(75_000, terminates()), (60_900, not_ready)] {
        let judged = learning(&world, to_cart().refused(60_000), learned, update, 80_000);
        let [(Class::C28, ms)] = judged[..] else { panic!("{judged:?}") };
        assert!((65_000..66_000).contains(&ms), "{ms}");
    }
    // The news was there before.
    let [(Class::C5, ms)] = learning(&world, to_cart().refused(60_000), 59_000, terminates(), 80_000)[..]
    else {
        panic!("one verdict")
    };
    assert!(ms < 61_000, "{ms}");
}

/// A refusal despite endpoints is judged by a reading of the node that began after it, which has kube-proxy's pace.
#[test]
fn a_refusal_despite_endpoints_waits_for_the_node() {
    let class = |sync_period_s: u64| {
        let mut world = World::new();
        world.shop.becomes(EP, NOT_READY, 10_000);
        world.shop.becomes(EP, READY, 50_000);
        let mut pipeline = pipeline(&world);
        // As it was before.
        pipeline.node_read(Arc::new(world.node.snapshot(&world.shop.cart)), at(1_000), at(1_000));
        pipeline.observe(Script::new(CLIENT, VIP, None).unreach(60_000, 3).connect_failed(60_001).out);
        assert!(pipeline.advance(at(62_000)).judged.is_empty());
        assert!(!pipeline.wants_node(), "it waits for the metadata");
        assert!(pipeline.advance(at(70_000)).judged.is_empty());
        assert!(pipeline.wants_node());
        let mut node = world.node.snapshot(&world.shop.cart);
        node.report.min_sync_period = Some(Duration::from_secs(sync_period_s));
        let judged = pipeline.node_read(Arc::new(node), at(70_100), at(70_200)).judged;
        judged.iter().map(|it| it.verdict.class).collect::<Vec<_>>()
    };
    assert_eq!(class(1), [Class::C4]);
    assert_eq!(class(30), [Class::C5]);
}

/// What a trace with `--path` finds of these sightings, in steps of 100 ms: the class, and the number of steps of a way.
fn ways(world: &World, script: Script, until_ms: u64) -> Vec<(Class, Option<usize>)> {
    let mut pipeline = pipeline(world);
    pipeline.node_read(Arc::new(world.node.snapshot(&world.shop.cart)), at(until_ms), at(0));
    let mut pathfinder = Pathfinder::new(addr(CLIENT), Some(addr(VIP)));
    let (mut sightings, mut found) = (script.out, Vec::new());
    sightings.sort_by_key(|sighting| sighting.time);
    for ms in (0..=until_ms).step_by(100) {
        let due = sightings.iter().position(|it| it.time > at(ms)).unwrap_or(sightings.len());
        let now: Vec<_> = sightings.drain(..due).collect();
        pathfinder.observe(&now);
        pipeline.observe(now);
        let judgements = pipeline.advance(at(ms));
        found.extend(pathfinder.judged(&judgements, &pipeline, at(ms)));
    }
    let found = found.iter().map(|found| {
        let steps = if let Found::Way(trail) = found { Some(trail.steps.len()) } else { None };
        (found.verdict().class, steps)
    });
    found.collect()
}

#[test]
fn a_flow_that_is_judged_again_has_its_way_once() {
    let mut world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    world.shop.leaves(EP, 1_000);
    assert_eq!(ways(&world, third_time_lucky(), 30_000), [(Class::Ok, Some(8)), (Class::C6, None)]);
}

#[test]
fn leftover_rules_that_delay_a_connection_are_named() {
    let mut world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    world.shop.leaves(EP, 1_000);
    let table = |endpoint| {
        crate::node_support::nftables(
            viptrace::net::Family::Ipv4,
            &[(addr(VIP), Protocol::TCP, addr(endpoint), RuleEffect::Forwards)],
        )
    };
    let chains = |endpoint| {
        iptables(
            "KUBE-SVC-I5LIAMPLWKMBJ54B",
            &[(addr(VIP), Protocol::TCP, addr(endpoint), RuleEffect::Forwards)],
        )
    };
    let lists =
        |kept, left| Rules::Lists(vec![(Kind::IptablesSave, chains(kept)), (Kind::NftRuleset, table(left))]);
    world.node.rules = lists(OTHER, EP);
    let judged = verdicts(&world, third_time_lucky(), 30_000);
    assert_eq!(judged.last().map(|it| it.verdict.class), Some(Class::C10));
    // kube-proxy's own rules send there too.
    world.node.rules = lists(EP, EP);
    let judged = verdicts(&world, third_time_lucky(), 30_000);
    assert_eq!(judged.last().map(|it| it.verdict.class), Some(Class::C6));
}

/// A mode switch from iptables to ipvs without `kube-proxy --cleanup`.
#[test]
fn c10_iptables_rules_that_translate_before_ipvs() {
    let mut world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    world.shop.leaves(EP, 1_000);
    world.node.mode = Some(ProxyMode::Ipvs);
    let chains =
        iptables("KUBE-SVC-I5LIAMPLWKMBJ54B", &[(addr(VIP), Protocol::TCP, addr(EP), RuleEffect::Forwards)]);
    let servers = |endpoint| format!("-A -t {VIP} -s rr\n-a -t {VIP} -r {endpoint} -m -w 1\n");
    world.node.rules =
        Rules::Lists(vec![(Kind::IptablesSave, chains.clone()), (Kind::IpvsSave, servers(OTHER))]);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C10);
    // IPVS sends there too: its own table is old.
    world.node.rules = Rules::Lists(vec![(Kind::IptablesSave, chains), (Kind::IpvsSave, servers(EP))]);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C6);
}

/// The client's socket was busy when the ICMP error arrived, and repeats its SYN.
#[test]
fn a_refusal_that_the_client_outlasts_is_withdrawn() {
    let passes = |script: Script| script.retransmit(11_000, TcpState::SynSent).healthy(11_001);
    let world = World::new();
    let unreachable = || to_cart().neighbour_failed(10_000);
    let rejected = || Script::new(CLIENT, VIP, None).unreach(10_000, 3);
    let withdrawn = classes(&verdicts(&world, passes(unreachable()), 30_000));
    assert_eq!(withdrawn, [(None, Class::C29), (Some(Class::C29), Class::Ok)]);
    // A refusal that may be lag waits for the cluster's metadata, and is no verdict if the client outlasts it meanwhile.
    let outlasted = classes(&verdicts(&world, passes(rejected().with_endpoint(EP)), 30_000));
    assert_eq!(outlasted, [(None, Class::Ok)]);
    // It ends the connect.
    let ended = classes(&verdicts(&world, unreachable().connect_failed(10_001), 30_000));
    assert_eq!(ended, [(None, Class::C29)]);
    assert_eq!(classes(&verdicts(&world, rejected().connect_failed(10_001), 30_000)), [(None, Class::C4)]);
}

#[test]
fn an_idle_connection_that_is_older_than_the_trace_is_no_late_segment() {
    let segment = || to_cart().confirm_midstream(20_000);
    let verdict = World::new().verdict(segment(), 30_000);
    assert_ne!(verdict.class, Class::N16, "{}", verdict.root_cause);
    // The endpoint resets it, here or on another node, and no socket has the RST.
    for stray in [
        segment().endpoint_has_no_connection(20_001),
        segment().transit_reset(20_001, false, Status::SEEN_REPLY),
    ] {
        assert_eq!(World::new().verdict(stray, 30_000).class, Class::N16);
    }
}

#[test]
fn rules_that_translate_again_were_removed_all_the_same() {
    let mut world = World::new();
    world.node.rules = Rules::Nothing;
    let untranslated = || Script::new(CLIENT, VIP, None).silent(60_000);
    let note = |world: &mut World, ms| {
        let flow = last_revisions(fold(to_cart().healthy(ms).out, ms + 10_000).0).remove(0);
        world.note(&flow);
    };
    note(&mut world, 61_000);
    assert_eq!(world.verdict(untranslated(), 70_000).class, Class::C1, "the first rules came later");
    note(&mut world, 30_000);
    note(&mut world, 62_000);
    assert_eq!(world.verdict(untranslated(), 70_000).class, Class::C5e);
}

#[test]
fn a_node_port_at_an_address_of_this_node_alone_waits_for_the_rules_too() {
    let floating = "203.0.113.50:30080";
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, "192.168.1.2:30080");
    world.node.own.push(addr(floating).ip());
    world.node.rules = Rules::Nothing;
    let mut pipeline = pipeline(&world);
    let read = |pipeline: &mut Pipeline, world: &World, ms| {
        let node = Arc::new(world.node.snapshot(&world.shop.cart));
        pipeline.node_read(node, at(ms), at(ms)).judged
    };
    assert!(read(&mut pipeline, &world, 50_000).is_empty());
    pipeline.observe(Script::new("192.0.2.7:40000", floating, None).silent(60_000).out);
    assert!(pipeline.advance(at(75_000)).judged.is_empty(), "the rules were read before");
    assert!(pipeline.wants_node());
    world.node.rules = Rules::At("192.168.1.2:30080");
    let judged = read(&mut pipeline, &world, 76_000);
    assert_eq!(classes(&judged), [(None, Class::C26)]);
}

#[test]
fn a_remote_choice_of_ipvs_is_not_the_policys_if_an_endpoint_is_here() {
    let node_port = "192.168.1.2:30080";
    let mut world = World::new();
    world.node.mode = Some(ProxyMode::Ipvs);
    world.shop.reached_by(Via::NodePort, node_port);
    world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    let silent = || {
        let mut script = Script::new("192.0.2.7:40000", node_port, Some(EP)).silent(60_000);
        for sighting in &mut script.out {
            if let Fact::Conntrack(fact) = &mut sighting.fact {
                fact.ct.status.0 &= !Status::DST_NAT;
            }
        }
        script
    };
    assert_eq!(world.verdict(silent(), 70_000).class, Class::C21);
    world.shop.becomes(OTHER, READY, 10_000);
    assert_eq!(world.verdict(silent(), 70_000).class, Class::C29);
    world.shop.leaves(OTHER, 20_000);
    assert_eq!(world.verdict(silent(), 70_000).class, Class::C21);
}

/// The only verdict on a flow near which events were lost.
fn with_losses(world: &World, script: Script) -> Verdict {
    let mut flow = last_revisions(fold(script.out, 200_000).0).remove(0);
    flow.lost = 3;
    world.judge(&flow).unwrap()
}

#[test]
fn near_a_loss_no_cause_is_named_only_because_no_event_shows_another() {
    let mut world = World::new();
    let falls_silent = |script: Script, ms| {
        let retries = [0_u64, 400, 1_200, 2_800, 6_000];
        retries.iter().fold(script, |script, wait| script.retransmit(ms + wait, TcpState::Established))
    };
    let raced = |script: Script| {
        let script = script.drop_syn(60_000, "NETFILTER_DROP").retransmit(61_000, TcpState::SynSent);
        script.retransmit(63_000, TcpState::SynSent)
    };
    // A drop, a race or a refusal may be among what was lost.
    for (silence, class) in [
        (to_cart().silent(60_000), Class::C29),
        (falls_silent(to_cart().established(60_000), 61_000), Class::C29),
        (raced(to_cart().confirm(60_000)), Class::C17),
    ] {
        assert_eq!(world.verdict(silence.clone(), 100_000).class, class);
        let verdict = with_losses(&world, silence);
        assert_eq!((verdict.class, verdict.confidence), (Class::Unknown, Confidence::Low));
        assert!(verdict.root_cause.contains(&format!("looks like {class}")), "{}", verdict.root_cause);
        assert!(verdict.is_unexplained(), "{verdict:#?}");
        assert!(verdict.cross_reference.contains(&class.id().into()), "{verdict:#?}");
    }
    // An event shows the cause: only the confidence is less.
    for (shown, class) in [
        (to_cart().dead_pod(60_000), Class::C29),
        (raced(to_cart().confirm(60_000).clash(60_000)), Class::C17),
        (to_cart().refused(60_000), Class::C28),
    ] {
        let before = world.verdict(shown.clone(), 100_000);
        let verdict = with_losses(&world, shown);
        assert_eq!((before.class, verdict.class), (class, class));
        assert!(verdict.confidence < before.confidence, "{verdict:#?}");
    }
    // Nothing shows a failure: the event of a refusal or of a drop may be among what was lost.
    for (calm, class) in [
        (to_cart().confirm(60_000).connect_failed(60_002), Class::N4),
        (to_cart().udp().confirm(60_000).clash(60_000).reread(66_000, Status::SEEN_REPLY), Class::N10),
    ] {
        assert_eq!(world.verdict(calm.clone(), 100_000).class, class);
        let verdict = with_losses(&world, calm);
        assert_eq!(verdict.class, Class::Unknown);
        assert!(verdict.is_healthy_near_a_loss(), "{verdict:#?}");
    }
    // A connection whose beginning is unknown may have begun after its endpoint left.
    world.shop.leaves(EP, 20_000);
    let partial = falls_silent(to_cart().drop_later(70_900, "NETFILTER_DROP"), 71_000);
    assert_eq!(world.verdict(partial.clone(), 100_000).class, Class::C7);
    assert_ne!(with_losses(&world, partial).class, Class::C7);
    // An answered connection had an endpoint, also if its decision was not observed.
    assert_ne!(world.verdict(falls_silent(to_cart(), 71_000), 100_000).class, Class::C20);
}

/// A trace that begins while a client repeats its SYN does not know when the endpoint was chosen.
#[test]
fn a_choice_from_before_the_trace_has_no_time() {
    let mut world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    world.shop.leaves(EP, 50_000);
    let unreachable = |script: Script, ms| script.icmp_error(ms, "192.0.2.12:0", 1);
    let repeats = |script: Script, ms| {
        let script = script.retransmit(ms, TcpState::SynSent).retransmit(ms + 2_000, TcpState::SynSent);
        unreachable(script, ms + 2_500).connect_failed(ms + 2_501)
    };
    // The first SYN may be older than the endpoint's removal, and no connection is.
    assert_eq!(world.verdict(repeats(to_cart(), 60_000), 90_000).class, Class::Unknown);
    let without_socket = unreachable(to_cart(), 60_000);
    assert_eq!(world.verdict(without_socket, 90_000).class, Class::Unknown);
    // No client repeats its SYN for so long; or the choice itself was observed.
    assert_eq!(world.verdict(repeats(to_cart(), 190_000), 220_000).class, Class::C6);
    assert_eq!(world.verdict(repeats(to_cart().confirm(60_000), 61_000), 90_000).class, Class::C6);
}

/// A flow that looks healthy and one that broke have the same class near a loss.
#[test]
fn a_flow_near_a_loss_that_breaks_later_has_a_second_verdict() {
    let world = World::new();
    let mut pipeline = pipeline(&world);
    pipeline.observe(to_cart().confirm(10_000).out);
    pipeline.lost(Lost::of_unknown_hook(3, at(10_000), at(10_001)));
    let mut judged = pipeline.advance(at(30_000)).judged;
    let retries = [41_000, 42_000, 44_000, 48_000];
    let silent = retries.iter().fold(to_cart(), |script, ms| script.retransmit(*ms, TcpState::SynSent));
    pipeline.observe(silent.out);
    judged.extend(pipeline.advance(at(90_000)).judged);
    assert_eq!(classes(&judged), [(None, Class::Unknown), (Some(Class::Unknown), Class::Unknown)]);
    assert_eq!(judged.iter().map(|it| it.verdict.is_unexplained()).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn a_loss_counts_if_it_can_hide_an_event_of_the_flow() {
    let lost = |script: Script, from, to| {
        let mut table = FlowTable::new(Limits::default());
        script.out.into_iter().for_each(|sighting| table.observe(sighting));
        table.lost(Lost::of_unknown_hook(5, at(from), at(to)));
        table.advance(at(30_000));
        table.drain_settled().next().unwrap().lost
    };
    // Between its end and its verdict.
    assert_eq!(lost(to_cart().healthy(10_000), 10_100, 10_150), 5);
    assert_eq!(lost(to_cart().healthy(10_000), 10_500, 10_600), 0);
    // Before its first sighting, if that shows that it had begun earlier.
    assert_eq!(lost(to_cart().healthy(10_000), 9_800, 9_900), 0);
    let repeated = || to_cart().retransmit(10_000, TcpState::SynSent).connect_failed(10_500);
    assert_eq!(lost(repeated(), 8_900, 9_000), 5);
    assert_eq!(lost(repeated(), 1_000, 2_000), 0);
}

/// On a busy node the kernel skips a hook now and then (a softirq in the middle of its program). One skipped close of a
/// TCP socket must not make every datagram, and every connection whose close was seen, uncertain.
#[test]
fn a_loss_at_a_hook_counts_for_the_flows_that_it_can_report() {
    let lost = |hook, script: Script| {
        let mut table = FlowTable::new(Limits { reread: Reread::Datagrams, ..Limits::default() });
        script.out.into_iter().for_each(|sighting| table.observe(sighting));
        table.lost(Lost { hook: Some(hook), count: 1, from: at(10_000), to: at(10_150) });
        table.finish(at(30_000));
        table.drain_settled().next().unwrap().lost
    };
    let closed = || to_cart().healthy(10_000);
    let open = || to_cart().confirm(10_000).established(10_001);
    let datagram = || to_cart().udp().confirm(10_000);
    for hook in [Hook::SockEstablished, Hook::SockClosed] {
        assert_eq!([lost(hook, closed()), lost(hook, open()), lost(hook, datagram())], [0, 1, 0], "{hook:?}");
    }
    for hook in [
        Hook::TcpRetransmit,
        Hook::TcpReceiveReset,
        Hook::TcpV4SendReset,
        Hook::NfSendReset,
        Hook::InvalidLog,
    ] {
        assert_eq!([lost(hook, closed()), lost(hook, datagram())], [1, 0], "{hook:?}");
    }
    // Both families of a hook, and hooks that report every flow.
    assert_eq!([Hook::SendUnreach, Hook::SendUnreach6].map(|hook| lost(hook, closed())), [1, 0]);
    assert_eq!([Hook::IcmpError, Hook::IcmpError6].map(|hook| lost(hook, datagram())), [1, 0]);
    assert_eq!([Hook::Confirm, Hook::KfreeSkb].map(|hook| lost(hook, closed())), [1, 1]);
}

/// Without the hook of a refusal, C20 is an inference (medium). With it, the refusal itself was observed.
fn refused(at_ms: u64) -> Script {
    Script::new(CLIENT, VIP, None).unreach(at_ms, 3).connect_failed(at_ms + 1)
}

fn dropped(at_ms: u64) -> Script {
    Script::new(CLIENT, VIP, None).drop_syn(at_ms, "NETFILTER_DROP").connect_failed(at_ms + 1)
}

/// Whether the only verdict of a flow lacks the hook of REJECT, after these changes of it.
fn lacks_the_hook(script: Script, missing: bool, changes: &[(bool, u64)]) -> bool {
    let world = World::of(Shop::with_endpoints(&[]));
    let mut pipeline = pipeline(&world);
    if missing {
        pipeline.set_missing_hooks(vec![Hook::SendUnreach]);
    }
    for (is_attached, ms) in changes {
        pipeline.hook_changed(Hook::SendUnreach, *is_attached, at(*ms));
    }
    let mut sightings = script.out;
    sightings.sort_by_key(|sighting| sighting.time);
    pipeline.observe(sightings);
    let node = Arc::new(world.node.snapshot(&world.shop.cart));
    let mut judged = pipeline.node_read(Arc::clone(&node), at(60_000), at(60_000)).judged;
    judged.extend(pipeline.finish(at(60_000)).judged);
    judged.extend(pipeline.node_read(node, at(60_000), at(60_000)).judged);
    let [judged] = judged.as_slice() else { panic!("one verdict expected: {judged:#?}") };
    judged.verdict.unseen.iter().any(|what| what.contains("nf_send_unreach"))
}

#[test]
fn a_flow_lacks_a_hook_that_was_attached_after_it() {
    assert!(lacks_the_hook(dropped(20_000), true, &[]));
    assert!(!lacks_the_hook(refused(20_000), true, &[(true, 10_000)]));
    assert!(lacks_the_hook(dropped(20_000), true, &[(true, 30_000)]));
    assert!(!lacks_the_hook(refused(20_000), false, &[]));
}

#[test]
fn a_flow_lacks_a_hook_whose_module_was_unloaded() {
    assert!(lacks_the_hook(dropped(20_000), false, &[(false, 10_000)]));
    assert!(lacks_the_hook(dropped(20_000), false, &[(false, 10_000), (true, 30_000)]));
    assert!(!lacks_the_hook(refused(20_000), false, &[(false, 10_000), (true, 15_000)]));
    assert!(!lacks_the_hook(refused(20_000), false, &[(false, 30_000)]));
    // A module that comes and goes all the time needs no more memory, and its gaps grow together.
    let often: Vec<_> = (0..400).map(|n| (n % 2 == 1, 100 * n)).collect();
    assert!(lacks_the_hook(dropped(20_050), false, &often));
    assert!(!lacks_the_hook(refused(45_000), false, &often));
}
