//! NAT decisions that arrive late: the kernel keeps them and hands one over only when a failure meets its flow, with the
//! time at which it was taken. And losses that concern only one client.

use std::net::SocketAddr;

use crate::{
    cluster_support::{READY, Shop},
    flow_support::{CLIENT, EP, NODE, Script, VIP, addr, at},
    session_support::settings,
};
use viptrace::{
    class::Class,
    cluster::{Cluster, Origin, Status as ClusterStatus},
    flow::{Flow, FlowTable, Limits, Outcome, Reread, Suppressed},
    net::Netns,
    report::{Form, Output, Printer, Report, Verbosity},
    session::{Detail, Ending, Pipeline, Summary},
    sighting::{Sighting, Status, TcpState},
    verdict::Verdict,
};

const HOUR_MS: u64 = 3_600_000;
const NOW: u64 = 3 * HOUR_MS;

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

/// Events in the order of their arrival: the decision's record has an older time than the events around it.
fn arrive(table: &mut FlowTable, sightings: Vec<Sighting>) {
    for sighting in sightings {
        table.observe(sighting);
    }
}

#[test]
fn a_decision_from_hours_ago_begins_a_flow_that_waits_like_any_other() {
    let mut table = FlowTable::new(Limits::default());
    // Another connection, so that the table's clock stands at the present.
    let mut other = to_cart().with_ct(77);
    other.client = addr("10.244.1.101:40001");
    arrive(&mut table, other.established(NOW).out);
    // The connection was established at 10 s and its data goes unacknowledged three hours later.
    let late = to_cart().confirm_handed_over(10_000, NOW + 5).retransmit(NOW + 5, TcpState::Established);
    arrive(&mut table, late.retransmit(NOW + 205, TcpState::Established).out);
    table.advance(at(NOW + 300));
    assert_eq!(table.drain_settled().count(), 0, "nothing is over yet");
    let more = to_cart().retransmit(NOW + 605, TcpState::Established);
    arrive(&mut table, more.retransmit(NOW + 1_405, TcpState::Established).out);
    table.advance(at(NOW + 2_000));
    let flows: Vec<Flow> = table.drain_settled().collect();
    assert_eq!(flows.len(), 1);
    assert_eq!(flows[0].outcome(), Outcome::Silent);
    assert_eq!((flows[0].first_seen, flows[0].decisions[0].confirmed), (at(10_000), Some(at(10_000))));
    assert_eq!(flows[0].decisions[0].endpoint(), Some(addr(EP)));
    assert!(!flows[0].partial);
    assert_eq!(table.counters().unmatched, 0);
}

/// Nothing was reported for a while: healthy connections leave no event. The table's time is that of the last turn.
#[test]
fn after_a_quiet_time_a_late_decision_waits_like_any_other() {
    for decided in [10_000, NOW + 5_000, NOW + 18_500] {
        for script in [to_cart(), to_cart().udp()] {
            let mut table = FlowTable::new(Limits::default());
            table.advance(at(NOW));
            let failed = NOW + 20_000;
            arrive(
                &mut table,
                script.confirm_handed_over(decided, failed).drop_later(failed, "TC_EGRESS").out,
            );
            for ms in [100, 1_000, 1_900] {
                table.advance(at(failed + ms));
                assert_eq!(
                    table.drain_settled().count(),
                    0,
                    "decided at {decided}, {ms} ms after the failure"
                );
            }
            table.advance(at(failed + 6_000));
            let flows: Vec<Flow> = table.drain_settled().collect();
            assert_eq!((flows.len(), flows[0].first_seen), (1, at(decided)));
            assert!(flows[0].trouble.is_some());
        }
    }
}

/// The first failure of a flow is its second SYN, one second after the decision.
#[test]
fn the_decision_of_a_silent_connection_arrives_with_its_first_repeated_syn() {
    let mut table = FlowTable::new(Limits::default());
    table.advance(at(NOW));
    let silent = to_cart().confirm_handed_over(NOW, NOW + 1_000).retransmit(NOW + 1_000, TcpState::SynSent);
    table.advance(at(NOW + 1_000));
    arrive(&mut table, silent.out);
    table.advance(at(NOW + 3_000));
    assert_eq!(table.drain_settled().count(), 0);
    // The kernel hands the decision over again, because it keeps no list of those that it handed over.
    arrive(
        &mut table,
        to_cart().confirm_handed_over(NOW, NOW + 3_000).retransmit(NOW + 3_000, TcpState::SynSent).out,
    );
    table.advance(at(NOW + 6_000));
    let flows: Vec<Flow> = table.drain_settled().collect();
    assert_eq!(flows.len(), 1);
    assert_eq!((flows[0].outcome(), flows[0].first_seen), (Outcome::Stalled, at(NOW)));
    assert_eq!((flows[0].decisions.len(), flows[0].decisions[0].attempts), (1, 1));
}

/// The failure's record has overtaken the decision's.
#[test]
fn a_decision_joins_a_flow_that_its_failure_has_begun() {
    let mut table = FlowTable::new(Limits::default());
    table.advance(at(NOW));
    arrive(&mut table, to_cart().retransmit(NOW + 1_000, TcpState::SynSent).out);
    table.advance(at(NOW + 1_100));
    arrive(&mut table, to_cart().confirm_handed_over(NOW, NOW + 1_001).out);
    arrive(&mut table, to_cart().retransmit(NOW + 3_000, TcpState::SynSent).out);
    table.advance(at(NOW + 6_000));
    let flows: Vec<Flow> = table.drain_settled().collect();
    assert_eq!(flows.len(), 1);
    assert_eq!(flows[0].endpoint(None), Some(addr(EP)));
    assert_eq!(flows[0].first_seen, at(NOW));
}

/// The reader is eleven seconds behind: it reads the entry again at once, and that record is the last in the buffer.
#[test]
fn a_reader_that_is_behind_waits_for_the_entry_that_it_read_again() {
    let mut table = FlowTable::new(Limits { reread: Reread::Datagrams, ..Limits::default() });
    arrive(&mut table, to_cart().udp().confirm(NOW).out);
    table.advance(at(NOW + 6_000));
    assert_eq!(table.take_rereads().len(), 1);
    table.reread_at(at(NOW + 17_000));
    for ms in [7_000, 9_000, 17_010] {
        table.advance(at(NOW + ms));
        assert_eq!(table.drain_settled().count(), 0, "{ms} ms after the decision");
    }
    arrive(&mut table, to_cart().udp().reread(NOW + 17_000, Status::CONFIRMED | Status::SEEN_REPLY).out);
    table.advance(at(NOW + 18_000));
    let flows: Vec<Flow> = table.drain_settled().collect();
    assert_eq!(flows.iter().map(Flow::outcome).collect::<Vec<_>>(), [Outcome::Established]);
}

fn pipeline(shop: &Shop) -> Pipeline {
    let status = ClusterStatus::new(Origin::Folder { taken: Some(at(0)) });
    Pipeline::new(settings(Detail::All), Cluster { history: shop.history(), status })
}

/// The verdict on a connection that was established at 10 s and falls silent three hours later, past the look-back.
fn verdict_on_an_old_connection(shop: &Shop) -> Verdict {
    let mut pipeline = pipeline(shop);
    pipeline.cluster_mut().history.prune(at(NOW));
    pipeline.advance(at(NOW));
    let times = [NOW, NOW + 200, NOW + 600, NOW + 1_400, NOW + 3_000];
    let silent = times.into_iter().fold(to_cart().confirm_handed_over(10_000, NOW), |script, ms| {
        script.retransmit(ms, TcpState::Established)
    });
    pipeline.observe(silent.out);
    let mut judged = pipeline.advance(at(NOW + 10_000)).judged;
    judged.extend(pipeline.finish(at(NOW + 10_000)).judged);
    judged.extend(pipeline.node_read(std::sync::Arc::default(), at(NOW + 10_000), at(NOW + 10_000)).judged);
    assert_eq!(judged.len(), 1);
    judged.remove(0).verdict
}

#[test]
fn an_old_decision_is_judged_by_the_endpoints_of_its_time() {
    let is_of_stale_rules = |verdict: &Verdict| matches!(verdict.class, Class::C6 | Class::C7 | Class::C8);
    let steady = Shop::new();
    let verdict = verdict_on_an_old_connection(&steady);
    assert!(!is_of_stale_rules(&verdict), "{verdict:#?}");
    // The endpoint left an hour after the decision: before the versions that are still known.
    let mut moved = Shop::with_endpoints(&[EP, "10.244.1.8:8080"]);
    moved.leaves(EP, HOUR_MS);
    let verdict = verdict_on_an_old_connection(&moved);
    assert!(!is_of_stale_rules(&verdict), "{verdict:#?}");
    // The same with every version of its time gone: the slice that listed it was deleted.
    let mut replaced = Shop::with_endpoints(&[EP]);
    replaced.leaves(EP, HOUR_MS);
    replaced.becomes("10.244.1.8:8080", READY, 2 * HOUR_MS);
    let verdict = verdict_on_an_old_connection(&replaced);
    assert!(!is_of_stale_rules(&verdict), "{verdict:#?}");
}

/// The CLOSE of the first connection was lost, and the second one fails: it is not the first one's.
#[test]
fn a_syn_begins_a_connection_although_the_last_one_seems_open() {
    let mut table = FlowTable::new(Limits::default());
    arrive(&mut table, to_cart().established(10_000).out);
    let again = to_cart().with_ct(99).confirm_syn(60_000).retransmit(61_000, TcpState::SynSent);
    arrive(&mut table, again.retransmit(63_000, TcpState::SynSent).connect_failed(65_000).out);
    table.advance(at(70_000));
    let flows: Vec<Flow> = table.drain_settled().collect();
    let outcomes: Vec<Outcome> = flows.iter().map(Flow::outcome).collect();
    assert_eq!(outcomes, [Outcome::Established, Outcome::Stalled]);
    assert_eq!(flows[1].decisions[0].ct.id, 99);
    assert!(flows.iter().all(|flow| flow.trouble.is_none()), "nothing was picked up mid-stream");
}

fn client(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 244, 1, last], port))
}

fn healthy(client: SocketAddr, ms: u64) -> Script {
    let mut script = to_cart().with_ct(u64::from(client.port()) << 16);
    script.client = client;
    script.healthy(ms)
}

fn noise(address: SocketAddr, from_ms: u64, to_ms: u64, count: u64) -> Suppressed {
    Suppressed {
        client: Some(address.ip()),
        service: None,
        netns: NODE,
        from: at(from_ms),
        to: at(to_ms),
        count,
    }
}

#[test]
fn suppressed_events_make_only_their_clients_flows_uncertain() {
    let mut pipeline = pipeline(&Shop::new());
    let (noisy, quiet) = (client(66, 40_000), client(67, 40_001));
    pipeline.observe(healthy(noisy, 10_000).out);
    pipeline.observe(healthy(quiet, 10_000).out);
    pipeline.suppressed(noise(noisy, 9_000, 10_010, 500));
    // An hour later both are healthy again.
    let mut judged = pipeline.advance(at(12_000)).judged;
    pipeline.observe(healthy(client(66, 40_002), HOUR_MS).out);
    judged.extend(pipeline.advance(at(HOUR_MS + 5_000)).judged);
    let of = |port: u16| {
        let verdict = judged.iter().map(|judged| &judged.verdict).find(|it| it.flow.client.port() == port);
        verdict.unwrap().class
    };
    assert_eq!((of(40_000), of(40_001), of(40_002)), (Class::Unknown, Class::Ok, Class::Ok));
    assert_eq!((pipeline.suppressed_events(), pipeline.lost_events()), (500, 0));
    let services: Vec<(String, u64)> =
        pipeline.suppressed_by_service().map(|(service, count)| (service.to_string(), count)).collect();
    assert_eq!(services, [("shop/cart".to_owned(), 500)]);
}

#[test]
fn a_loopback_client_is_one_of_its_namespace() {
    let lost = |netns: u32| {
        let mut table = FlowTable::new(Limits::default());
        let local = addr("127.0.0.1:40000");
        table.suppressed(Suppressed { netns: Netns(netns), ..noise(local, 9_000, 11_000, 7) });
        arrive(&mut table, healthy(local, 10_000).out.into_iter().take(1).collect());
        table.finish(at(12_000));
        table.drain_settled().map(|flow| flow.suppressed).collect::<Vec<_>>()
    };
    assert_eq!((lost(NODE.0), lost(7)), (vec![7], vec![0]));
}

/// Beyond the clients that are kept apart, the oldest suppressed events could be of any flow.
#[test]
fn suppressed_events_of_too_many_clients_count_for_every_flow() {
    let mut table = FlowTable::new(Limits::default());
    for n in 0..5_000_u32 {
        let address = SocketAddr::from(((0x0b00_0000 + n).to_be_bytes(), 1));
        table.suppressed(noise(address, 10_000, 10_001 + u64::from(n), 1));
    }
    arrive(&mut table, healthy(client(67, 40_000), 10_000).out);
    table.advance(at(20_000));
    let lost: Vec<(u64, u64)> = table.drain_settled().map(|flow| (flow.lost, flow.suppressed)).collect();
    assert_eq!(lost, [(5_000 - 4_096, 0)]);
}

#[test]
fn the_summary_names_the_services_of_suppressed_events() {
    let mut pipeline = pipeline(&Shop::new());
    pipeline.observe(healthy(client(66, 40_000), 10_000).out);
    pipeline.suppressed(noise(client(66, 40_000), 9_000, 10_010, 1_500));
    pipeline.suppressed(noise(client(68, 40_000), 9_000, 10_010, 30));
    pipeline.advance(at(12_000));
    let text = crate::session_support::Text::default();
    let printer = Printer::to(Box::new(text.clone()), Box::new(text.clone()), Verbosity::Normal);
    let ending = Ending::new(&pipeline, at(0), at(20_000), Vec::new());
    Report::new(Form { output: Output::Wide, ..Form::default() }, printer)
        .finish(&Summary::default(), &ending)
        .unwrap();
    let expected = "1530 events suppressed in the kernel, because a client or a Service had too many: its flows are \
                    not called healthy: 1500 to shop/cart";
    assert!(text.text().contains(expected), "{}", text.text());
}
