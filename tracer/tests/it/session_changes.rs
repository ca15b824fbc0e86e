//! The changes around a failure: each kind of change of the API's objects, which ones a failed flow lists, in which order,
//! and that nothing else about a verdict depends on them.

use std::{net::IpAddr, sync::Arc};

use crate::{
    cluster_support::{self, NOT_READY, READY, Shop, TERMINATING, endpoint, put},
    flow_support::{CLIENT, EP, Script, VIP, addr, at},
    session_support::{Text, settings},
};
use viptrace::{
    class::Class,
    cluster::{
        Cluster, Event, Key, Kind, Origin, Status, Update,
        model::{Change, Conditions, EndpointSlice, Labels, Node, Object, Phase, Pod, Service, Trimmed},
    },
    node::Snapshot,
    report::{Form, Output, Printer, Report, Verbosity},
    session::{Detail, Ending, Pipeline, Summary, WallStep},
    sighting::Hook,
    text::is_unsafe,
    verdict::{ChangeKind, NearbyChange, Verdict},
};

const SECOND: &str = "10.244.1.8:8080";

/// A trace of the shop.
struct Trace {
    pipeline: Pipeline,
    flows: u64,
}

impl Trace {
    fn new() -> Self {
        Self::of(&Shop::new(), Detail::Faults)
    }

    fn of(shop: &Shop, detail: Detail) -> Self {
        let status = Status::new(Origin::Folder { taken: Some(at(0)) });
        let cluster = Cluster { history: shop.history(), status };
        Self { pipeline: Pipeline::new(settings(detail), cluster), flows: 0 }
    }

    fn update(&mut self, ms: u64, kind: Kind, event: Event) {
        self.pipeline.absorb(Update { kind, received: at(ms), event });
    }

    fn put(&mut self, ms: u64, object: Object) {
        self.update(ms, object.kind(), Event::Changed(put(object)));
    }

    fn delete(&mut self, ms: u64, kind: Kind, name: &str) {
        let namespace = if kind == Kind::Node { "" } else { "shop" };
        self.update(ms, kind, Event::Changed(Change::Delete(kind, Key::new(namespace, name))));
    }

    fn service(&self) -> Service {
        Service::clone(
            self.pipeline
                .cluster()
                .history
                .service(&Key::new("shop", "cart"), at(u64::MAX / 2_000_000))
                .unwrap(),
        )
    }

    fn pod(&self, name: &str) -> Pod {
        Pod::clone(self.pipeline.cluster().history.pods().find(|pod| &*pod.key.name == name).unwrap())
    }

    fn node(&self, name: &str) -> Node {
        Node::clone(self.pipeline.cluster().history.nodes().find(|node| &*node.key.name == name).unwrap())
    }

    /// The verdicts after these events and enough time.
    fn verdicts(&mut self, script: Script, until_ms: u64) -> Vec<Verdict> {
        self.pipeline.observe(script.out);
        let mut judgements = self.pipeline.advance(at(until_ms));
        if self.pipeline.wants_node() {
            judgements
                .judged
                .extend(self.pipeline.node_read(Arc::default(), at(until_ms), at(until_ms)).judged);
        }
        judgements.judged.into_iter().map(|judged| judged.verdict).collect()
    }

    fn script(&mut self) -> Script {
        self.flows += 1;
        let mut script = Script::new(CLIENT, VIP, Some(EP)).with_ct(0xffff_8880_2000_0000 + self.flows * 256);
        script.client.set_port(20_000 + self.flows as u16);
        script
    }

    /// The verdict of a refused connection that begins at `ms`.
    fn fails(&mut self, ms: u64) -> Verdict {
        let script = self.script().refused(ms);
        let [verdict] = self.verdicts(script, ms + 20_000).try_into().unwrap();
        verdict
    }

    /// The changes that a connection refused at 100 s lists.
    fn listed(&mut self) -> Vec<String> {
        let verdict = self.fails(100_000);
        assert!(verdict.is_fault(), "{verdict:?}");
        assert_eq!(verdict.changes_left_out, 0);
        verdict.changes_around.iter().map(in_words).collect()
    }
}

/// `12 endpoint_removed Service shop/cart: text`.
fn in_words(change: &NearbyChange) -> String {
    let record = serde_json::to_value(change).unwrap();
    let kind = record["kind"].as_str().unwrap();
    format!("{} {kind} {}: {}", change.seconds_before, change.subject, change.text)
}

fn slice_of(service: &Service, name: &str, endpoints: &[(&str, Conditions)]) -> Object {
    let listed = endpoints.iter().enumerate().map(|(number, (address, conditions))| {
        endpoint(addr(address).ip(), &format!("cart-{number}"), *conditions)
    });
    let slice = cluster_support::slice(service, addr(EP), listed.collect());
    Object::EndpointSlice(EndpointSlice { key: Key::new("shop", name), ..slice }.into())
}

#[test]
fn nothing_changed_nothing_is_listed() {
    let mut trace = Trace::new();
    // The same versions again.
    let (service, pod, node) = (trace.service(), trace.pod("cart-0"), trace.node("worker-1"));
    trace.put(90_000, slice_of(&service, "cart", &[(EP, READY)]));
    trace.put(90_000, Object::Service(service.into()));
    trace.put(90_000, Object::Pod(pod.into()));
    trace.put(90_000, Object::Node(node.into()));
    assert_eq!(trace.listed(), [""; 0]);
}

#[test]
fn the_first_list_of_a_kind_is_no_change() {
    let mut shop = Shop::new();
    shop.known = vec![Kind::Service, Kind::EndpointSlice];
    let mut trace = Trace::of(&shop, Detail::Faults);
    let pod = cluster_support::pod("cart-9", addr(SECOND).ip());
    let node = cluster_support::node("worker-1", "192.168.1.2");
    for object in [Object::Pod(pod.into()), node] {
        let trimmed = Trimmed { object, created: Some(at(0)), changed: Some(at(99_000)), version: None };
        trace.update(99_500, trimmed.object.kind(), Event::Listed(trimmed));
    }
    for kind in [Kind::Pod, Kind::Node] {
        trace.update(99_600, kind, Event::Synced);
    }
    assert_eq!(trace.listed(), [""; 0]);
}

#[test]
fn services() {
    type Edit = fn(&mut Service);
    let cases: [(Edit, &str); 9] = [
        (|it| it.selector = Labels::of([("app", "kart")]), "selector from app=cart to app=kart"),
        (
            |it| it.ports.retain(|port| &*port.name == "http"),
            "ports from http 80/TCP to 8080, udp 80/UDP to 8080, sctp 80/SCTP to 8080 to http 80/TCP to 8080",
        ),
        (
            |it| it.internal_traffic_policy = viptrace::cluster::model::TrafficPolicy::Local,
            "internalTrafficPolicy from Cluster to Local",
        ),
        (
            |it| it.external_traffic_policy = viptrace::cluster::model::TrafficPolicy::Local,
            "externalTrafficPolicy from Cluster to Local",
        ),
        (
            |it| it.affinity = Some(std::time::Duration::from_hours(3)),
            "session affinity from none to ClientIP for 10800 s",
        ),
        (|it| it.external_ips = vec!["192.0.2.80".parse().unwrap()], "externalIPs from none to 192.0.2.80"),
        (
            |it| it.source_ranges = vec![viptrace::net::Cidr::parse("192.0.2.0/24").unwrap()],
            "loadBalancerSourceRanges from none to 192.0.2.0/24",
        ),
        (
            |it| it.traffic_distribution = Some("PreferClose".into()),
            "trafficDistribution from none to PreferClose",
        ),
        (|it| it.publish_not_ready_addresses = true, "publishNotReadyAddresses from false to true"),
    ];
    for (edit, expected) in cases {
        let mut trace = Trace::new();
        let mut service = trace.service();
        edit(&mut service);
        trace.put(88_000, Object::Service(service.into()));
        let text = format!("12 service_changed Service shop/cart: Service shop/cart changed its {expected}");
        assert_eq!(trace.listed(), [text]);
    }
    let mut trace = Trace::new();
    let mut service = trace.service();
    service.publish_not_ready_addresses = true;
    service.external_ips = vec![IpAddr::from([192, 0, 2, 80])];
    service.selector = Labels::default();
    service.health_check_node_port = Some(32_000);
    service.affinity = Some(std::time::Duration::from_mins(1));
    trace.put(88_000, Object::Service(service.into()));
    let [many] = &trace.listed()[..] else { panic!("one change") };
    assert!(many.ends_with("; its externalIPs from none to 192.0.2.80; and 2 other fields"), "{many}");

    let mut trace = Trace::new();
    let service = trace.service();
    trace.delete(80_000, Kind::Service, "cart");
    trace.put(88_000, Object::Service(service.clone().into()));
    trace.put(89_000, Object::Service(Service { uid: "new".into(), ..service }.into()));
    assert_eq!(
        trace.listed(),
        [
            "11 service_created Service shop/cart: Service shop/cart was deleted and created again",
            "12 service_created Service shop/cart: Service shop/cart was created",
            "20 service_deleted Service shop/cart: Service shop/cart was deleted",
        ]
    );
}

#[test]
fn endpoints() {
    let shop = Shop::with_endpoints(&[EP, SECOND]);
    let after = |endpoints: &[(&str, Conditions)]| {
        let mut trace = Trace::of(&shop, Detail::Faults);
        let service = trace.service();
        trace.put(88_000, slice_of(&service, "cart", endpoints));
        trace.listed()
    };
    let about = |text: &str| vec![format!("12 {text}")];
    assert_eq!(
        after(&[(EP, READY)]),
        about("endpoint_removed Service shop/cart: endpoint 10.244.1.8 left Service shop/cart")
    );
    assert_eq!(
        after(&[(EP, READY), (SECOND, NOT_READY)]),
        about(
            "endpoint_changed Service shop/cart: endpoint 10.244.1.8 of Service shop/cart became not ready"
        )
    );
    assert_eq!(
        after(&[(EP, READY), (SECOND, TERMINATING)]),
        about(
            "endpoint_changed Service shop/cart: endpoint 10.244.1.8 of Service shop/cart became serving, terminating"
        )
    );
    let more = [(EP, READY), (SECOND, READY), ("10.244.1.9:8080", READY), ("10.244.2.3:8080", NOT_READY)];
    assert_eq!(
        after(&more),
        [
            "12 endpoint_added Service shop/cart: endpoint 10.244.2.3 joined Service shop/cart, not ready",
            "12 endpoint_added Service shop/cart: endpoint 10.244.1.9 joined Service shop/cart",
        ]
    );
    let mut trace = Trace::of(&shop, Detail::Faults);
    let service = trace.service();
    let many: Vec<String> = (10..60).map(|n| format!("10.244.2.{n}:8080")).collect();
    let many: Vec<_> = many.iter().map(|address| (address.as_str(), READY)).collect();
    trace.put(88_000, slice_of(&service, "cart-2", &many));
    trace.delete(90_000, Kind::EndpointSlice, "cart-2");
    assert_eq!(
        trace.listed(),
        [
            "10 endpoint_removed Service shop/cart: 50 endpoints (10.244.2.10, 10.244.2.11, 10.244.2.12…) left Service \
             shop/cart",
            "12 endpoint_added Service shop/cart: 50 endpoints (10.244.2.10, 10.244.2.11, 10.244.2.12…) joined Service \
             shop/cart",
        ]
    );
}

#[test]
fn an_endpoint_that_moves_to_another_slice_has_not_changed() {
    let mut trace = Trace::of(&Shop::with_endpoints(&[EP, SECOND]), Detail::Faults);
    let service = trace.service();
    trace.put(88_000, slice_of(&service, "cart-2", &[(SECOND, READY)]));
    trace.put(88_010, slice_of(&service, "cart", &[(EP, READY)]));
    assert_eq!(trace.listed(), [""; 0]);
}

#[test]
fn pods() {
    let edited = |name: &str, edit: fn(&mut Pod)| {
        let mut trace = Trace::new();
        let mut pod = trace.pod(name);
        edit(&mut pod);
        trace.put(88_000, Object::Pod(pod.into()));
        if name != "client" {
            trace.delete(95_000, Kind::Pod, name);
        }
        trace.listed()
    };
    let gone = "5 pod_deleted Pod shop/cart-0: Pod shop/cart-0 was deleted";
    let crashed = edited("cart-0", |pod| (pod.restarts, pod.trouble) = (2, Some("OOMKilled".into())));
    let text =
        "12 pod_restarted Pod shop/cart-0: a container of Pod shop/cart-0 restarted 2 times (OOMKilled)";
    assert_eq!(crashed, [gone, text]);
    let evicted = edited("cart-0", |pod| (pod.phase, pod.trouble) = (Phase::Failed, Some("Evicted".into())));
    assert_eq!(evicted, ["12 pod_failed Pod shop/cart-0: Pod shop/cart-0 failed (Evicted)"]);
    let deleted = edited("cart-0", |pod| pod.deletion = Some(at(118_000)));
    assert_eq!(deleted, ["12 pod_deleted Pod shop/cart-0: the deletion of Pod shop/cart-0 was requested"]);
    let replaced = edited("cart-0", |pod| pod.uid = "new".into());
    let text = "12 pod_restarted Pod shop/cart-0: Pod shop/cart-0 was replaced by a new one of the same name";
    assert_eq!(replaced, [gone, text]);
    let of_client = edited("client", |pod| pod.restarts = 1);
    let text = "12 pod_restarted Pod shop/client: a container of Pod shop/client restarted once";
    assert_eq!(of_client, [text]);
}

#[test]
fn nodes() {
    type Edit = fn(&mut Node);
    let edited = |name: &str, edit: fn(&mut Node)| {
        let mut trace = Trace::new();
        let mut node = trace.node(name);
        edit(&mut node);
        trace.put(88_000, Object::Node(node.into()));
        trace.listed()
    };
    let cases: [(Edit, &str); 5] = [
        (|it| it.ready = Some(false), "node_changed Node worker-1: Node worker-1 became not ready"),
        (
            |it| it.ready = None,
            "node_changed Node worker-1: Node worker-1 stopped reporting: its condition Ready is Unknown",
        ),
        (
            |it| it.pressure = vec!["MemoryPressure".into(), "DiskPressure".into()],
            "node_changed Node worker-1: Node worker-1 has MemoryPressure and DiskPressure",
        ),
        (|it| it.unschedulable = true, "node_changed Node worker-1: Node worker-1 was cordoned"),
        (
            |it| it.addresses = vec![IpAddr::from([192, 168, 1, 9])],
            "node_changed Node worker-1: Node worker-1 changed its addresses from 192.168.1.2 to 192.168.1.9",
        ),
    ];
    for (edit, expected) in cases {
        assert_eq!(edited("worker-1", edit), [format!("12 {expected}")]);
    }
    let mut trace = Trace::new();
    let node = trace.node("worker-1");
    for (ms, version) in [(80_000, "v1.30.5"), (90_000, "v1.31.0")] {
        trace.put(ms, Object::Node(Node { kubelet_version: version.into(), ..node.clone() }.into()));
    }
    let text = "10 upgraded Node worker-1: the kubelet of Node worker-1 changed from v1.30.5 to v1.31.0";
    assert_eq!(trace.listed(), [text]);
    let elsewhere = edited("worker-2", |it| it.ready = Some(false));
    assert_eq!(elsewhere, [""; 0], "no end of the flow is there");

    let mut trace = Trace::new();
    let node = trace.node("worker-1");
    trace.put(80_000, Object::Node(Node { pressure: vec!["PIDPressure".into()], ..node.clone() }.into()));
    trace.put(85_000, Object::Node(node.into()));
    trace.delete(88_000, Kind::Node, "worker-1");
    trace.put(90_000, cluster_support::node("worker-1", "192.168.1.2"));
    assert_eq!(
        trace.listed(),
        [
            "10 node_added Node worker-1: Node worker-1 was added",
            "12 node_removed Node worker-1: Node worker-1 was removed",
            "15 node_changed Node worker-1: Node worker-1 no longer has PIDPressure",
            "20 node_changed Node worker-1: Node worker-1 has PIDPressure",
        ]
    );
}

/// kube-proxy and network plugins run on their node's network.
#[test]
fn a_pod_on_the_nodes_network_concerns_its_node() {
    let mut trace = Trace::new();
    let plugin = |node: &str, restarts| {
        let pod = cluster_support::pod("plugin-1", IpAddr::from([192, 168, 1, 2]));
        Object::Pod(Pod { host_network: true, node: Some(node.into()), restarts, ..pod }.into())
    };
    for (ms, restarts) in [(80_000, 0), (90_000, 1)] {
        trace.put(ms, plugin("worker-1", restarts));
    }
    let text = "10 pod_restarted Node worker-1: a container of Pod shop/plugin-1 restarted once";
    assert_eq!(trace.listed(), [text]);
    let mut trace = Trace::new();
    for (ms, restarts) in [(80_000, 0), (90_000, 1)] {
        trace.put(ms, plugin("worker-2", restarts));
    }
    assert_eq!(trace.listed(), [""; 0]);
}

#[test]
fn the_api_server_is_lost_and_back_once_for_all_kinds() {
    let mut trace = Trace::new();
    trace.update(10_000, Kind::Pod, Event::Lost("connection refused".to_owned()));
    for kind in Kind::ALL {
        trace.update(20_000, kind, Event::Heard);
    }
    for round in 0..3 {
        for kind in Kind::ALL {
            trace.update(80_000 + round, kind, Event::Lost("connection refused".to_owned()));
        }
    }
    for (delay, kind) in (0..).zip(Kind::ALL) {
        trace.update(90_000 + delay * 1000, kind, Event::Heard);
    }
    assert_eq!(
        trace.listed(),
        [
            "7 api_back API server: viptrace watches the API server again, after 13.0 s",
            "20 api_lost API server: viptrace lost its watch of the API server: connection refused",
        ]
    );
}

/// What a resumed watch sends at once has happened since the API server was last heard.
#[test]
fn a_change_that_was_missed_has_both_times() {
    let mut trace = Trace::new();
    trace.update(50_000, Kind::Pod, Event::Heard);
    trace.update(60_000, Kind::Pod, Event::Lost("connection refused".to_owned()));
    let pod = trace.pod("cart-0");
    for (ms, restarts) in [(90_000, 1), (94_000, 2), (95_500, 3)] {
        trace.put(ms, Object::Pod(Pod { restarts, ..pod.clone() }.into()));
    }
    let verdict = trace.fails(100_000);
    let restarts: Vec<_> = (verdict.changes_around.iter())
        .filter(|change| change.kind == ChangeKind::PodRestarted)
        .map(|change| (change.after, change.time))
        .collect();
    let missed = Some(at(50_000));
    assert_eq!(restarts, [(None, at(95_500)), (missed, at(90_000)), (missed, at(94_000))]);
}

/// The object itself shows when it changed while the API server was away.
#[test]
fn a_list_after_a_gap_shows_what_changed_meanwhile() {
    let mut trace = Trace::new();
    let mut service = trace.service();
    service.selector = Labels::default();
    let object = Object::Service(service.into());
    let trimmed = Trimmed { object, created: None, changed: Some(at(60_000)), version: None };
    trace.update(98_000, Kind::Service, Event::Listed(trimmed));
    let new = Trimmed {
        object: cluster_support::node("worker-3", "192.168.1.4"),
        created: Some(at(61_000)),
        changed: Some(at(61_000)),
        version: None,
    };
    trace.update(98_000, Kind::Node, Event::Listed(new));
    let text =
        "40 service_changed Service shop/cart: Service shop/cart changed its selector from app=cart to none";
    assert_eq!(trace.listed(), [text]);
}

#[test]
fn a_change_has_the_version_of_its_object() {
    let mut trace = Trace::of(&Shop::with_endpoints(&[EP, SECOND]), Detail::Faults);
    let service = trace.service();
    let put = |object, version| Change::Put(Trimmed { object, created: None, changed: None, version });
    let slice = put(slice_of(&service, "cart", &[(EP, READY)]), Some(48_213));
    trace.update(90_000, Kind::EndpointSlice, Event::Changed(slice));
    let renamed = Service { selector: Labels::default(), ..service };
    trace.update(91_000, Kind::Service, Event::Changed(put(Object::Service(renamed.into()), None)));
    trace.pipeline.hook_changed(Hook::KfreeSkb, false, at(92_000));
    let changes = trace.fails(100_000).changes_around;
    let versions: Vec<_> = changes.iter().map(|change| (change.kind, change.resource_version)).collect();
    assert_eq!(
        versions,
        [
            (ChangeKind::HookLost, None),
            (ChangeKind::ServiceChanged, None),
            (ChangeKind::EndpointRemoved, Some(48_213)),
        ]
    );
}

#[test]
fn hooks_and_the_wall_clock() {
    let mut trace = Trace::new();
    trace.pipeline.hook_changed(Hook::KfreeSkb, false, at(80_000));
    trace.pipeline.hook_changed(Hook::KfreeSkb, false, at(81_000));
    trace.pipeline.hook_changed(Hook::KfreeSkb, true, at(90_000));
    trace.pipeline.set_wall_clock(WallStep { at: at(95_000), ahead_ns: -3_600_000_000_000 });
    let verdict = trace.fails(100_000);
    let lines: Vec<_> = verdict.changes_around.iter().map(in_words).collect();
    assert_eq!(
        lines,
        [
            "5 clock_stepped this node: the wall clock was set back by 1 h 0 min",
            "10 hook_attached viptrace: viptrace's hook at kfree_skb was attached",
            "20 hook_lost viptrace: viptrace's hook at kfree_skb was lost",
        ]
    );
    // As all times of a verdict, theirs follow the wall clock.
    let change = &verdict.changes_around[0];
    assert_eq!(verdict.flow.started.since(change.time), std::time::Duration::from_secs(5));
}

#[test]
fn only_what_concerns_the_flow_is_listed_and_the_nearest_first() {
    let mut trace = Trace::new();
    let service = trace.service();
    for (number, ms) in (0_u64..9).map(|number| (number, 90_000 + number * 1000)) {
        let conditions = if number % 2 == 0 { NOT_READY } else { READY };
        trace.put(ms, slice_of(&service, "cart", &[(EP, conditions)]));
        let other = cluster_support::service("other", "10.96.0.99");
        trace.put(ms, slice_of(&other, "other", &[("10.244.9.9:8080", conditions)]));
        let mut elsewhere = trace.node("worker-2");
        elsewhere.unschedulable = number % 2 == 0;
        trace.put(ms, Object::Node(elsewhere.into()));
    }
    let verdict = trace.fails(100_000);
    let seconds: Vec<_> = verdict.changes_around.iter().map(|change| change.seconds_before).collect();
    assert_eq!(seconds, [2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!(verdict.changes_left_out, 4);
    assert!(verdict.changes_around.iter().all(|change| change.subject == "Service shop/cart"));
    // A later flow has an empty window, which grows to ten minutes.
    let later = trace.fails(500_000);
    assert_eq!((later.changes_around.len(), later.changes_left_out), (5, 4));
    let latest = trace.fails(800_000);
    assert_eq!((latest.changes_around.len(), latest.changes_left_out), (0, 0));
}

#[test]
fn a_change_after_the_flows_beginning_is_negative() {
    let mut trace = Trace::new();
    let service = trace.service();
    let script = trace.script().silent(100_000).connect_failed(107_000);
    trace.put(101_500, slice_of(&service, "cart", &[]));
    let verdicts = trace.verdicts(script, 140_000);
    let [change] = &verdicts[0].changes_around[..] else { panic!("{verdicts:?}") };
    assert_eq!(
        in_words(change),
        "-1.5 endpoint_removed Service shop/cart: endpoint 10.244.1.7 left Service shop/cart"
    );
}

#[test]
fn a_change_between_two_readings_of_the_node_has_both_times() {
    let mut trace = Trace::new();
    let read = |trace: &mut Trace, ms, running| {
        let node = Snapshot { running: Some(running), ..Snapshot::default() };
        trace.pipeline.node_read(node.into(), at(ms), at(ms));
    };
    read(&mut trace, 40_000, true);
    read(&mut trace, 90_000, false);
    let verdict = trace.fails(100_000);
    let [change] = &verdict.changes_around[..] else { panic!("{verdict:?}") };
    assert_eq!((change.after, change.time, change.seconds_before), (Some(at(40_000)), at(90_000), 10.0));
}

/// What no flow needed is dated by the readings in between, which change nothing else.
#[test]
fn a_reading_of_the_state_alone_shows_a_change_and_leaves_the_node_as_it_was() {
    let mut trace = Trace::new();
    let node = |running| Snapshot { running: Some(running), ..Snapshot::default() };
    trace.pipeline.node_read(node(true).into(), at(40_000), at(40_000));
    trace.pipeline.node_state(&node(true), at(80_000));
    trace.pipeline.node_state(&node(false), at(90_000));
    assert_eq!(trace.pipeline.node().running, Some(true));
    let verdict = trace.fails(100_000);
    let [change] = &verdict.changes_around[..] else { panic!("{verdict:?}") };
    assert_eq!((change.after, change.time), (Some(at(80_000)), at(90_000)));
}

/// The class, the confidence and the evidence are those without any change.
#[test]
fn healthy_flows_list_nothing_and_no_verdict_depends_on_the_list() {
    let judged = |changes: bool, detail| {
        let mut trace = Trace::of(&Shop::new(), detail);
        trace.pipeline.node_read(Arc::default(), at(0), at(0));
        if changes {
            trace.pipeline.hook_changed(Hook::IpVsConnExpire, false, at(1_000));
            trace.pipeline.hook_changed(Hook::IpVsConnExpire, true, at(2_000));
            let pod = Pod { restarts: 9, ..trace.pod("cart-0") };
            trace.put(99_000, Object::Pod(pod.into()));
        }
        let scripts = [
            trace.script().healthy(100_000),
            trace.script().healthy(100_500),
            trace.script().refused(101_000),
        ];
        let mut all = scripts.map(|script| script.out).concat();
        all.sort_by_key(|sighting| sighting.time);
        let script = Script { out: all, ..trace.script() };
        trace.verdicts(script, 130_000)
    };
    for detail in [Detail::All, Detail::Faults] {
        let (without, with) = (judged(false, detail), judged(true, detail));
        assert_eq!(without.len(), with.len());
        let mut listed = 0;
        for (before, mut after) in without.into_iter().zip(with) {
            assert_eq!(after.class == Class::Ok, after.changes_around.is_empty());
            listed += after.changes_around.len();
            after.changes_around.clear();
            assert_eq!(before, after);
        }
        assert_eq!(listed, 3);
    }
}

#[test]
fn hostile_texts_reach_neither_terminal_nor_record() {
    let mut trace = Trace::new();
    trace.update(10_000, Kind::Pod, Event::Heard);
    let hostile = "refused\u{1b}[2J\u{202e}\nforged: line".to_owned();
    let mut pod = trace.pod("cart-0");
    (pod.restarts, pod.trouble) = (1, Some(hostile.as_str().into()));
    trace.put(99_000, Object::Pod(pod.into()));
    let mut service = trace.service();
    service.selector = Labels::of([(&*hostile, &*"x".repeat(100_000))]);
    trace.put(99_000, Object::Service(service.into()));
    trace.update(99_000, Kind::Pod, Event::Lost(hostile));
    let script = trace.script().refused(100_000);
    trace.pipeline.observe(script.out);
    let judged = trace.pipeline.advance(at(120_000)).judged;
    assert_eq!(judged[0].verdict.changes_around.len(), 3);
    for change in &judged[0].verdict.changes_around {
        assert!(!change.text.contains(is_unsafe) && change.text.len() < 3000, "{change:?}");
    }
    let shown = Text::default();
    let printer = Printer::to(Box::new(shown.clone()), Box::new(Text::default()), Verbosity::Normal);
    let mut report = Report::new(Form { output: Output::Wide, ..Form::default() }, printer);
    report.show(&judged[0], std::time::Instant::now()).unwrap();
    let mut summary = Summary::default();
    summary.add(&judged[0]);
    report.finish(&summary, &Ending::default()).unwrap();
    let shown = shown.text();
    assert_eq!(shown.matches("around that time (a correlation, not a cause):").count(), 2, "{shown}");
    assert_eq!(
        shown.matches("  1.0 s before: viptrace lost its watch of the API server: refused").count(),
        2
    );
    assert!(!shown.replace('\n', "").contains(is_unsafe) && !shown.contains("\nforged"), "{shown}");
}
