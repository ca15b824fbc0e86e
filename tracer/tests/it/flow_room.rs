//! A table for months: shares, deadlines and bounds. Answered flows make room for those that fail, each flow leaves in
//! the end, and a flow without a verdict is counted by its Service.

use std::{net::SocketAddr, time::Duration};

use crate::{
    cluster_support::Shop,
    flow_support::{CLIENT, CT, EP, Script, VIP, addr, at},
    session_support::settings,
};
use viptrace::{
    cluster::{Cluster, Origin, Status as ClusterStatus},
    flow::{Flow, FlowTable, Limits, Outcome, Reread},
    session::{Detail, Pipeline, Settings, Summary},
    sighting::{Sighting, Status, TcpState},
};

const RESOLVER: &str = "10.244.1.53:53";
const DNS: &str = "10.96.0.53:53";

fn lean(max_flows: usize) -> Limits {
    Limits { max_flows, reread: Reread::Datagrams, ..Limits::default() }
}

/// A client of its own for each number.
fn client(number: u32) -> SocketAddr {
    SocketAddr::from(((0x0b00_0000 + number / 40_000).to_be_bytes(), 10_000 + (number % 40_000) as u16))
}

fn connection(number: u32) -> Script {
    let mut script = Script::new(CLIENT, VIP, Some(EP)).with_ct(CT + u64::from(number) * 256);
    script.client = client(number);
    script
}

/// A query; its answer is known only from its entry.
fn query(number: u32) -> Script {
    let mut script = Script::new(CLIENT, DNS, Some(RESOLVER)).udp().with_ct(0x7000_0000 + u64::from(number));
    script.client = client(number);
    script
}

/// A connection to a backend that does not answer, in the lean set of hooks.
fn silent(number: u32, ms: u64) -> Script {
    let script = connection(10_000_000 + number).confirm(ms);
    script.retransmit(ms + 1_000, TcpState::SynSent).retransmit(ms + 3_000, TcpState::SynSent)
}

/// A lean trace of answered queries at this rate, and of these connections. Returns the flows handed out, and the most
/// flows held at once.
fn under_queries(
    table: &mut FlowTable,
    per_second: u32,
    seconds: u64,
    others: &[Script],
) -> (Vec<Flow>, usize) {
    const TURN_MS: u64 = 50;
    let mut others: Vec<Sighting> = others.iter().flat_map(|script| script.out.clone()).collect();
    others.sort_by_key(|sighting| std::cmp::Reverse(sighting.time));
    let (mut flows, mut most, mut sent) = (Vec::new(), 0, 0_u32);
    for turn in 1..=seconds * 1_000 / TURN_MS {
        let now = 10_000 + turn * TURN_MS;
        while u64::from(sent) * 1_000 < u64::from(per_second) * turn * TURN_MS {
            let ms = 10_000 + u64::from(sent) * 1_000 / u64::from(per_second);
            query(sent).confirm(ms).out.into_iter().for_each(|sighting| table.observe(sighting));
            sent += 1;
        }
        while others.last().is_some_and(|sighting| sighting.time <= at(now)) {
            table.observe(others.pop().unwrap());
        }
        table.advance(at(now));
        for entry in table.take_rereads() {
            if let Some(number) = entry.checked_sub(0x7000_0000).filter(|number| *number < u64::from(sent)) {
                let answered = query(number as u32).reread(now, Status::SEEN_REPLY);
                answered.out.into_iter().for_each(|sighting| table.observe(sighting));
            }
        }
        most = most.max(table.len());
        flows.extend(table.drain_settled());
    }
    (flows, most)
}

/// Measured before shares: none of the five connections had a record.
#[test]
fn answered_queries_do_not_evict_connections_to_a_silent_backend() {
    let mut table = FlowTable::new(lean(512));
    let failing: Vec<Script> = (0..5).map(|n| silent(n, 15_000 + u64::from(n) * 1_000)).collect();
    let (flows, most) = under_queries(&mut table, 1_100, 30, &failing);
    assert!(most <= 512);
    let stalled: Vec<&Flow> = flows.iter().filter(|flow| flow.outcome() == Outcome::Stalled).collect();
    assert_eq!(stalled.len(), 5, "{:?}", table.counters());
    for flow in stalled {
        assert_eq!(flow.decisions[0].endpoint(), Some(addr(EP)));
        assert!(!flow.partial);
    }
    let unjudged: u64 = table.take_unjudged().iter().map(|of| of.count).sum();
    assert_eq!(unjudged, table.counters().evicted);
}

/// Measured before deadlines: the default table was full after a minute.
#[test]
fn answered_queries_leave_the_default_table() {
    let mut table = FlowTable::new(lean(Limits::default().max_flows));
    let (flows, most) = under_queries(&mut table, 1_100, 40, &[]);
    assert!(most < 16_384, "{most} flows were held");
    assert_eq!(table.counters().evicted, 0);
    assert!(flows.iter().all(|flow| flow.outcome() == Outcome::Established));
    for ms in (51_000..80_000).step_by(100) {
        table.advance(at(ms));
        table.drain_settled().for_each(drop);
    }
    // The last queries, whose entries nobody read again, are kept for a late answer.
    table.advance(at(220_000));
    assert_eq!(table.len(), 0);
    assert_eq!(table.next_deadline(), None);
}

/// A resolver that always uses one port: each query supersedes the one before it, which was handed out.
#[test]
fn a_superseded_flow_leaves_the_table() {
    let mut table = FlowTable::new(lean(65_536));
    let mut handed = 0;
    for n in 0..200_u32 {
        let ms = 10_000 + u64::from(n) * 10_000;
        let entry = Status::SEEN_REPLY | Status::ASSURED;
        let script = Script { client: addr(CLIENT), ..query(n) }.confirm(ms).reread(ms + 5_100, entry);
        for sighting in script.out {
            table.advance(sighting.time);
            table.observe(sighting);
        }
        table.advance(at(ms + 5_500));
        handed += table.drain_settled().count();
        assert!(table.len() <= 2, "{} flows are held", table.len());
    }
    assert_eq!(handed, 200);
}

/// No end of these flows was observed: the hook is missing, or the event was lost.
#[test]
fn an_idle_flow_leaves_when_conntrack_would_forget_it() {
    let limits = Limits {
        idle_connection: Duration::from_hours(1),
        idle_datagrams: Duration::from_mins(2),
        ..lean(65_536)
    };
    let mut table = FlowTable::new(limits);
    let assured = Status::SEEN_REPLY | Status::ASSURED;
    for script in [connection(1).established(10_000), query(2).confirm(10_000).reread(15_100, assured)] {
        script.out.into_iter().for_each(|sighting| table.observe(sighting));
    }
    table.advance(at(16_000));
    assert_eq!(table.drain_settled().count(), 1, "the query was answered");
    table.advance(at(15_100 + 119_000));
    assert_eq!(table.len(), 2);
    table.advance(at(15_100 + 121_000));
    assert_eq!(table.len(), 1);
    table.advance(at(10_002 + 3_601_000));
    let flows: Vec<Flow> = table.drain_settled().collect();
    assert_eq!(flows.len(), 1, "the connection was never handed out before");
    assert_eq!(flows[0].outcome(), Outcome::Established);
    assert!(table.is_empty());
}

#[test]
fn open_connections_make_room_for_young_ones() {
    let mut table = FlowTable::new(Limits { max_flows: 160, ..Limits::default() });
    for n in 0..160 {
        connection(n).established(10_000).out.into_iter().for_each(|sighting| table.observe(sighting));
    }
    let failing: Vec<Script> = (0..40).map(|n| silent(n, 11_000)).collect();
    let mut events: Vec<Sighting> = failing.into_iter().flat_map(|script| script.out).collect();
    events.sort_by_key(|sighting| sighting.time);
    for sighting in events {
        table.observe(sighting);
    }
    table.advance(at(15_500));
    let flows: Vec<Flow> = table.drain_settled().collect();
    let of = |outcome| flows.iter().filter(|flow| flow.outcome() == outcome).count();
    assert_eq!(
        (of(Outcome::Stalled), of(Outcome::Established)),
        (40, 40),
        "the evicted ones have their outcome"
    );
    assert_eq!(table.counters().evicted, 0);
}

/// A connection has its verdict and makes room for others. Neither its next SYN nor its failed connect begins another one.
#[test]
fn a_connection_that_made_room_after_its_verdict_is_counted_once() {
    let mut table = FlowTable::new(Limits { max_flows: 100, ..Limits::default() });
    let observe = |table: &mut FlowTable, script: Script| {
        script.out.into_iter().for_each(|sighting| table.observe(sighting));
    };
    let silent_again = |n: u32| connection(10_000_000 + n);
    for n in 0..100 {
        observe(&mut table, silent(n, 10_000));
    }
    table.advance(at(15_500));
    assert_eq!(table.drain_settled().count(), 100);
    for n in 0..90 {
        observe(&mut table, connection(n).established(16_000));
    }
    for n in 0..90 {
        observe(&mut table, silent_again(n).retransmit(17_000, TcpState::SynSent));
    }
    table.advance(at(18_000));
    assert_eq!((table.counters().seen, table.counters().unmatched), (190, 90));
    for n in 0..90 {
        observe(&mut table, silent_again(n).connect_failed(24_000));
    }
    table.advance(at(25_000));
    assert_eq!((table.counters().seen, table.counters().unmatched), (190, 180));

    // One that viptrace has not seen before began before the trace.
    observe(&mut table, silent_again(100).connect_failed(25_000));
    table.advance(at(26_000));
    assert_eq!(table.counters().seen, 191);
    // After the longest wait for an answer the same ends are another connection.
    observe(&mut table, silent_again(0).connect_failed(200_000));
    table.advance(at(201_000));
    assert_eq!(table.counters().seen, 192);
}

/// One that made room before it had a verdict gets it from its next SYN, but its failed connect alone is no connection.
#[test]
fn a_connection_that_made_room_without_a_verdict_gets_another_chance() {
    let mut table = FlowTable::new(Limits { max_flows: 100, ..Limits::default() });
    for n in 0..200 {
        connection(n).confirm(10_000).out.into_iter().for_each(|sighting| table.observe(sighting));
    }
    table.advance(at(10_500));
    assert_eq!((table.counters().seen, table.counters().evicted), (200, 100));
    let late = connection(0).connect_failed(11_000);
    late.out.into_iter().for_each(|sighting| table.observe(sighting));
    let again = connection(1).retransmit(11_000, TcpState::SynSent);
    again.out.into_iter().for_each(|sighting| table.observe(sighting));
    table.advance(at(12_000));
    assert_eq!((table.counters().seen, table.counters().unmatched), (201, 1));
}

#[test]
fn half_open_connections_leave_a_share_to_open_ones() {
    let mut table = FlowTable::new(Limits { max_flows: 160, ..Limits::default() });
    for n in 0..60 {
        connection(n).established(10_000).out.into_iter().for_each(|sighting| table.observe(sighting));
    }
    for n in 1_000..6_000 {
        connection(n).confirm(11_000).out.into_iter().for_each(|sighting| table.observe(sighting));
    }
    for n in 0..60 {
        connection(n).closed(12_000).out.into_iter().for_each(|sighting| table.observe(sighting));
    }
    table.advance(at(12_500));
    let closed: Vec<Flow> =
        table.drain_settled().filter(|flow| flow.outcome() == Outcome::Closed && !flow.partial).collect();
    assert_eq!(closed.len(), 50, "five sixteenths of the table");
}

/// Flows that end together are handed out a thousand at a time, so that none piles up behind a slow judge.
#[test]
fn the_flows_that_wait_to_be_judged_are_bounded() {
    let mut table = FlowTable::new(Limits::default());
    for n in 0..5_000 {
        connection(n).refused(10_000).out.into_iter().for_each(|sighting| table.observe(sighting));
    }
    let (mut handed, mut steps) = (0, 0);
    while table.counters().open > 0 {
        table.advance(at(12_000));
        let step = table.drain_settled().count();
        assert!((1..=1024).contains(&step), "{step} flows at once");
        (handed, steps) = (handed + step, steps + 1);
    }
    assert_eq!((handed, steps), (5_000, 5));
}

fn pipeline(limits: Limits) -> Pipeline {
    let cluster = Cluster {
        history: Shop::new().history(),
        status: ClusterStatus::new(Origin::Folder { taken: Some(at(0)) }),
    };
    Pipeline::new(Settings { limits, ..settings(Detail::All) }, cluster)
}

#[test]
fn verdicts_come_in_steps_of_bounded_size() {
    let mut pipeline = pipeline(Limits::default());
    for n in 0..3_000 {
        pipeline.observe(connection(n).refused(10_000).out);
    }
    // After the grace, for which refusals wait.
    let (mut judged, mut now) = (0, 16_000);
    loop {
        let step = pipeline.advance(at(now)).judged.len();
        assert!(step <= 256, "{step} verdicts at once");
        judged += step;
        if !pipeline.has_backlog() && pipeline.counters().open == 0 {
            break;
        }
        now += 1;
    }
    assert_eq!(judged, 3_000);
}

/// Connections without an endpoint wait for the node's rules, and are then judged in steps too.
#[test]
fn a_read_of_the_node_is_followed_by_steps_of_bounded_size() {
    let mut pipeline = pipeline(Limits::default());
    for n in 0..1_000 {
        let mut script = connection(n);
        script.endpoint = None;
        pipeline.observe(script.drop_syn(10_000, "NETFILTER_DROP").connect_failed(10_001).out);
    }
    for ms in 12_000..12_010 {
        assert!(pipeline.advance(at(ms)).judged.is_empty(), "they wait for the node");
    }
    assert_eq!((pipeline.counters().open, pipeline.has_backlog()), (0, false));
    assert!(pipeline.wants_node());
    let mut judged = pipeline.node_read(std::sync::Arc::default(), at(12_500), at(12_600)).judged.len();
    assert_eq!(judged, 256);
    while pipeline.has_backlog() {
        let step = pipeline.judge(at(12_700)).judged.len();
        assert!((1..=256).contains(&step));
        judged += step;
    }
    assert_eq!(judged, 1_000);
}

#[test]
fn evicted_flows_are_counted_by_their_service() {
    let mut pipeline = pipeline(Limits { max_flows: 100, ..Limits::default() });
    let mut summary = Summary::default();
    for n in 0..400 {
        let mut script = connection(n);
        if n % 4 == 0 {
            (script.vip, script.endpoint) = (addr("203.0.113.9:443"), None);
        }
        pipeline.observe(script.confirm(10_000).out);
    }
    let unjudged = pipeline.advance(at(10_100)).unjudged;
    for flows in &unjudged {
        summary.add_unjudged(flows);
    }
    let counts: Vec<(Option<String>, u64)> =
        summary.unjudged().map(|(service, count)| (service.map(ToString::to_string), count)).collect();
    assert_eq!(counts, [(None, 75), (Some("shop/cart:http".to_owned()), 225)]);
    assert_eq!(pipeline.counters().evicted, 300);
    assert!(unjudged.iter().all(|flows| flows.first == at(10_000) && flows.last == at(10_000)));
}
