//! Folding flows must change nothing but the cost: for any events on the network and in the cluster, the counts, causes,
//! connect times and printed lines equal those of judging every flow. A line of one cause may have the words of another
//! flow of that second.

use std::{sync::Arc, time::Instant};

use crate::{
    cluster_support::{self, NOT_READY, READY, TERMINATING, endpoint, listed, put},
    flow_support::{Script, addr, at},
    session_support::{Text, settings},
};
use proptest::prelude::*;
use viptrace::{
    class::Class,
    cluster::{
        Cluster, Event as ObjectEvent, Kind, Origin, Status, Update,
        model::{Conditions, Object},
    },
    flow::Lost,
    node::{ProxyMode, Snapshot},
    report::{Form, Output, Printer, Report, Verbosity},
    session::{Detail, Ending, Judgements, Latency, Pipeline, Summary},
    sighting::{Sighting, Status as CtStatus, TcpState},
};

const CART: &str = "10.96.0.10:80";
const DNS: &str = "10.96.0.53:53";
const ENDPOINTS: [&str; 3] = ["10.244.1.7:8080", "10.244.1.8:8080", "10.244.2.9:8080"];
const RESOLVER: &str = "10.244.1.53:5353";
const CLIENTS: [&str; 3] = ["10.244.1.100", "10.244.1.101", "192.0.2.7"];

/// The state of an endpoint; `None` if no slice lists it.
type Listed = Option<Conditions>;

fn service(name: &str, vip: &str, port: u16) -> Object {
    let mut service = cluster_support::service(name, &addr(vip).ip().to_string());
    for known in &mut service.ports {
        known.port = port;
    }
    Object::Service(service.into())
}

fn slice(name: &str, members: &[(&str, Listed)]) -> Object {
    let (service, like) = (cluster_support::service(name, "10.96.0.1"), addr(members[0].0));
    let one = |(member, listed): &(&str, Listed)| {
        listed.map(|conditions| endpoint(addr(member).ip(), &format!("{name}-{member}"), conditions))
    };
    let endpoints = members.iter().filter_map(one).collect();
    Object::EndpointSlice(cluster_support::slice(&service, like, endpoints).into())
}

fn cart(listed: [Listed; 3]) -> Object {
    slice("cart", &ENDPOINTS.into_iter().zip(listed).collect::<Vec<_>>())
}

fn cluster() -> Cluster {
    let objects = [
        service("cart", CART, 80),
        service("dns", DNS, 53),
        cart([Some(READY), Some(READY), None]),
        slice("dns", &[(RESOLVER, Some(READY))]),
    ];
    let history = listed(objects, &Kind::ALL);
    Cluster { history, status: Status::new(Origin::Folder { taken: Some(at(0)) }) }
}

/// The result of a trace.
#[derive(Debug, PartialEq)]
struct Story {
    judged: u64,
    classes: Vec<(Class, u64)>,
    services: Vec<String>,
    causes: Vec<String>,
    latencies: Vec<Latency>,
    table: String,
    wide: String,
}

/// A pipeline and all that a trace does with what comes out of it.
struct Trace {
    pipeline: Pipeline,
    summary: Summary,
    reports: [(Report, Text); 2],
    node: Arc<Snapshot>,
    folded: u64,
    judged: u64,
    now: Instant,
}

impl Trace {
    fn new(detail: Detail) -> Self {
        let reports = [Output::Table, Output::Wide].map(|output| {
            let text = Text::default();
            let printer = Printer::to(Box::new(text.clone()), Box::new(Text::default()), Verbosity::Normal);
            (Report::new(Form { output, ..Form::default() }, printer), text)
        });
        Self {
            pipeline: Pipeline::new(settings(detail), cluster()),
            summary: Summary::default(),
            reports,
            node: Arc::default(),
            folded: 0,
            judged: 0,
            now: Instant::now(),
        }
    }

    fn take(&mut self, judgements: &Judgements) {
        for judged in &judgements.judged {
            self.judged += 1;
            self.summary.add(judged);
            for (report, _) in &mut self.reports {
                report.show(judged, self.now).unwrap();
            }
        }
        for folded in &judgements.folded {
            let detail = self.pipeline.settings().detail;
            assert!(folded.count > 0 && (folded.verdict.class == Class::Ok || detail == Detail::Causes));
            self.folded += folded.count;
            self.summary.add_folded(folded);
            for (report, _) in &mut self.reports {
                report.fold(folded, self.now);
            }
        }
    }

    /// All that happens until `ms`, and then time passes.
    fn until(&mut self, ms: u64, sightings: Vec<Sighting>) {
        self.pipeline.observe(sightings);
        let judgements = self.pipeline.advance(at(ms));
        self.take(&judgements);
        if self.pipeline.wants_node() {
            self.read_node(ms);
        }
    }

    fn read_node(&mut self, ms: u64) {
        let judgements = self.pipeline.node_read(Arc::clone(&self.node), at(ms), at(ms));
        self.take(&judgements);
    }

    fn change(&mut self, ms: u64, object: Object) {
        let kind = object.kind();
        self.pipeline.absorb(Update { kind, received: at(ms), event: ObjectEvent::Changed(put(object)) });
    }

    fn story(&mut self, end_ms: u64) -> Story {
        let judgements = self.pipeline.finish(at(end_ms));
        self.take(&judgements);
        while self.pipeline.has_backlog() {
            let judgements = self.pipeline.judge(at(end_ms));
            self.take(&judgements);
        }
        self.read_node(end_ms);
        let [table, wide] = self.reports.each_mut().map(|(report, text)| {
            report.finish(&Summary::default(), &Ending::default()).unwrap();
            text.text()
        });
        Story {
            judged: self.summary.counts().total(),
            classes: self.summary.classes().collect(),
            services: self.summary.services().map(|entry| format!("{entry:?}")).collect(),
            causes: (self.summary.causes().iter())
                .map(|cause| format!("{} {:?}", cause.flows, cause.verdict))
                .collect(),
            latencies: self.summary.latencies(),
            table,
            wide,
        }
    }
}

/// One thing that happens.
#[derive(Clone, Debug)]
enum Event {
    Flow {
        client: usize,
        endpoint: usize,
        kind: u8,
    },
    Cart([Listed; 3]),
    /// The Service changes in a field that affects no flow, or loses its port.
    Service {
        port: u16,
    },
    /// A change of another Service.
    Elsewhere(Listed),
    Lost,
    Prune,
    /// The node is read, and has this mode.
    Node(Option<ProxyMode>),
}

fn node(mode: Option<ProxyMode>) -> Arc<Snapshot> {
    Arc::new(Snapshot { mode, ..Snapshot::default() })
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let listed = || {
        prop_oneof![
            4 => Just(Some(READY)),
            1 => Just(Some(TERMINATING)),
            1 => Just(Some(NOT_READY)),
            1 => Just(None),
        ]
    };
    let event = prop_oneof![
        40 => (0..3_usize, 0..3_usize, 0..24_u8)
            .prop_map(|(client, endpoint, kind)| Event::Flow { client, endpoint, kind }),
        2 => [listed(), listed(), listed()].prop_map(Event::Cart),
        1 => prop_oneof![Just(80_u16), Just(81)].prop_map(|port| Event::Service { port }),
        1 => listed().prop_map(Event::Elsewhere),
        1 => Just(Event::Lost),
        1 => Just(Event::Prune),
        4 => prop_oneof![Just(None), Just(Some(ProxyMode::Iptables))].prop_map(Event::Node),
    ];
    proptest::collection::vec((0..400_u64, event), 1..120)
}

/// The sightings of the `number`th flow, which begins at `ms`. Most flows are healthy.
fn flow(number: usize, ms: u64, client: usize, endpoint: usize, kind: u8) -> Vec<Sighting> {
    let client = format!("{}:{}", CLIENTS[client], 20_000 + number);
    let ct = 0xffff_8880_1000_0000 + number as u64 * 256;
    let script = match kind {
        18 => Script::new(&client, CART, None),
        19..=21 => Script::new(&client, DNS, Some(RESOLVER)).udp(),
        _ => Script::new(&client, CART, Some(ENDPOINTS[endpoint])),
    };
    let script = script.with_ct(ct);
    match kind {
        0 => script.established(ms),
        1 => script.refused(ms),
        2 => script.silent(ms),
        3 => script.dead_pod(ms),
        4 => script.established(ms).send_reset(ms + 30, true, TcpState::Established, "x"),
        5 => script.confirm(ms).retransmit(ms + 1000, TcpState::SynSent).state(
            ms + 1001,
            false,
            TcpState::SynSent,
            TcpState::Established,
        ),
        6 => script.established(ms).closed(ms + 4000),
        7 | 19 => script.confirm(ms),
        8 => script.established(ms).closed(ms + 20).delete(ms + 500, CtStatus::SEEN_REPLY),
        9 => script.state(ms, false, TcpState::Established, TcpState::FinWait1).closed(ms + 1),
        18 => script.confirm(ms).retransmit(ms + 1000, TcpState::SynSent).connect_failed(ms + 3000),
        20 => script.confirm(ms).no_socket(ms + 40_000),
        21 => script.confirm(ms).delete(ms + 31_000, CtStatus::SEEN_REPLY),
        _ => script.healthy(ms),
    }
    .out
}

/// Runs the same events through a pipeline of this detail.
fn run(events: &[(u64, Event)], detail: Detail) -> (Story, u64) {
    let mut trace = Trace::new(detail);
    let mut sightings: Vec<Sighting> = Vec::new();
    let mut ms = 60_000;
    for (number, (pause, event)) in events.iter().enumerate() {
        ms += pause;
        let due = sightings.iter().position(|sighting| sighting.time > at(ms)).unwrap_or(sightings.len());
        let rest = sightings.split_off(due);
        trace.until(ms, std::mem::replace(&mut sightings, rest));
        match event {
            Event::Flow { client, endpoint, kind } => {
                sightings.extend(flow(number, ms, *client, *endpoint, *kind));
                sightings.sort_by_key(|sighting| sighting.time);
            }
            Event::Cart(listed) => trace.change(ms, cart(*listed)),
            Event::Service { port } => trace.change(ms, service("cart", CART, *port)),
            Event::Elsewhere(listed) => trace.change(ms, slice("other", &[(ENDPOINTS[0], *listed)])),
            Event::Lost => trace.pipeline.lost(Lost::of_unknown_hook(3, at(ms - 1), at(ms))),
            Event::Node(mode) => {
                trace.node = node(*mode);
                trace.read_node(ms);
            }
            Event::Prune => trace.pipeline.cluster_mut().history.prune(at(ms + 4_500_000)),
        }
    }
    for step in 0..70 {
        ms += 1000 * step.min(2);
        let due = sightings.iter().position(|sighting| sighting.time > at(ms)).unwrap_or(sightings.len());
        let rest = sightings.split_off(due);
        trace.until(ms, std::mem::replace(&mut sightings, rest));
    }
    (trace.story(ms + 1000), trace.folded)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn folding_changes_nothing_but_the_cost(events in events()) {
        let (whole, none) = run(&events, Detail::All);
        let (folded, _) = run(&events, Detail::Faults);
        prop_assert_eq!(none, 0);
        prop_assert_eq!(&whole, &folded);
        let (causes, _) = run(&events, Detail::Causes);
        let counted = |story: Story| Story { table: String::new(), wide: String::new(), ..story };
        prop_assert_eq!(counted(whole), counted(causes));
    }
}

/// A table without the words of its lines: the first cells, and since when the flows failed.
fn counts(table: &str) -> Vec<String> {
    let cells = |line: &str| {
        let since = line.split_once("(since").map_or("", |(_, since)| since);
        line.split_whitespace().take(6).chain([since]).collect::<Vec<_>>().join(" ")
    };
    table.lines().map(cells).collect()
}

#[test]
fn of_many_failed_flows_of_one_cause_one_in_a_second_has_words() {
    let played = |detail| {
        let mut trace = Trace::new(detail);
        for number in 0..1000_usize {
            let ms = 60_000 + number as u64 * 5;
            trace.until(ms, flow(number, ms, number % 3, 0, 1));
        }
        let story = trace.story(80_000);
        (trace.judged, trace.folded, story)
    };
    let (judged, folded, whole) = played(Detail::Faults);
    assert_eq!((judged, folded), (1000, 0));
    let (judged, folded, story) = played(Detail::Causes);
    assert!((2..=8).contains(&judged) && judged + folded == 1000, "{judged} and {folded}");
    assert_eq!(
        (&story.classes, &story.services, &story.causes),
        (&whole.classes, &whole.services, &whole.causes)
    );
    assert_eq!(counts(&story.table), counts(&whole.table));
    assert!(story.table.contains("(several)"), "{}", story.table);
}

fn healthy(number: usize, ms: u64) -> Vec<Sighting> {
    flow(number, ms, 0, 0, 23)
}

/// It is less certain than the others, and says why.
#[test]
fn a_connection_that_was_cut_off_shares_no_verdict() {
    let mut trace = Trace::new(Detail::Faults);
    for number in 0..3_usize {
        let ms = 60_000 + number as u64 * 5_000;
        let script = Script::new(&format!("10.244.1.100:4000{number}"), CART, Some(ENDPOINTS[0]));
        let script = script.established(ms).state(ms + 100, false, TcpState::Established, TcpState::Close);
        trace.until(ms + 4_000, script.out);
    }
    trace.story(90_000);
    assert_eq!((trace.judged, trace.folded), (3, 0));
}

#[test]
fn of_many_healthy_flows_one_is_judged() {
    let mut trace = Trace::new(Detail::Faults);
    for number in 0..1000_usize {
        let ms = 60_000 + number as u64 * 5;
        trace.until(ms, healthy(number, ms));
    }
    let story = trace.story(80_000);
    assert_eq!((trace.judged, trace.folded, story.judged), (1, 999, 1000), "{story:#?}");
    assert_eq!(story.latencies[0].count, 1000);
    assert!(story.table.contains("ok           1000  shop/cart:http"), "{}", story.table);
}

#[test]
fn an_endpoint_that_left_is_reported_with_the_next_flow() {
    let mut trace = Trace::new(Detail::Faults);
    for number in 0..10_usize {
        let ms = 60_000 + number as u64 * 100;
        trace.until(ms, healthy(number, ms));
    }
    trace.change(62_000, cart([None, Some(READY), None]));
    // Within the grace an answered connection is no fault, and each one is judged.
    trace.until(64_000, healthy(10, 63_000));
    let judged = trace.judged;
    trace.until(65_000, healthy(11, 64_000));
    assert_eq!(trace.judged, judged + 1);
    trace.until(71_000, healthy(12, 70_000));
    let story = trace.story(80_000);
    assert_eq!(story.classes, [(Class::C6, 1), (Class::Ok, 12)]);
}

#[test]
fn other_services_changes_do_not_raise_the_cost() {
    let mut trace = Trace::new(Detail::Faults);
    for number in 0..100_usize {
        let ms = 60_000 + number as u64 * 100;
        let conditions = if number % 2 == 0 { READY } else { NOT_READY };
        trace.change(ms, slice("other", &[(ENDPOINTS[0], Some(conditions))]));
        trace.until(ms, healthy(number, ms));
    }
    trace.story(80_000);
    assert_eq!((trace.judged, trace.folded), (1, 99));
}

#[test]
fn a_node_that_has_not_changed_does_not_raise_the_cost() {
    let mut trace = Trace::new(Detail::Faults);
    for number in 0..100_usize {
        let ms = 60_000 + number as u64 * 100;
        trace.until(ms, healthy(number, ms));
        trace.read_node(ms);
    }
    assert_eq!(trace.judged, 1);
    // The record contains the mode: the next flow has a verdict of its own.
    trace.node = node(Some(ProxyMode::Nftables));
    trace.read_node(71_000);
    trace.until(73_000, [healthy(100, 72_000), healthy(101, 72_500)].concat());
    trace.story(80_000);
    assert_eq!((trace.judged, trace.folded), (2, 100));
}
