//! Ordinary situations that look like a fault, each with the fault that it looks like.

use std::time::Duration;

use crate::{
    cluster_support::{NOT_READY, READY, Shop, TERMINATING},
    flow_support::{CLIENT, CLIENT_NS, EP, Script, VIP, World, addr, at, fold, last_revisions},
    node_support::Rules,
    session_support::settings,
};
use viptrace::{
    class::{Class, Confidence, Severity},
    cluster::{
        Cluster, Origin, Status as ClusterStatus, Via,
        model::{Labels, Object, Pod, TrafficPolicy},
    },
    flow::Limits,
    net::Netns,
    node::RuleEffect,
    session::{Detail, Grace, Pipeline},
    sighting::{Fact, Hook, Sighting, Status, TcpState},
    verdict::Verdict,
};

const OTHER: &str = "10.244.1.8:8080";
const OTHER_NODE: Netns = Netns(4_026_533_000);

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

fn says(verdict: &Verdict, what: &str) -> bool {
    verdict.evidence.iter().any(|evidence| evidence.content.contains(what))
}

/// A new Pod's endpoint is in kube-proxy's rules 300 ms before viptrace's watch reports it.
#[test]
fn an_endpoint_that_kube_proxy_knew_first_is_not_stale() {
    let mut shop = Shop::with_endpoints(&[OTHER]);
    shop.ready(EP, 60_300);
    let world = World::of(shop);
    assert_eq!(world.verdict(to_cart().healthy(60_000), 70_000).class, Class::Ok);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C28);
    assert_eq!(world.verdict(to_cart().silent(60_000), 70_000).class, Class::C29);

    // It appears after the grace: when NAT chose it, no API server can have had it.
    let mut shop = Shop::with_endpoints(&[OTHER]);
    shop.ready(EP, 66_000);
    let world = World::of(shop);
    let verdict = world.verdict(Script::new(CLIENT, VIP, Some("10.244.1.9:8080")).healthy(60_000), 70_000);
    assert_eq!(verdict.class, Class::C6);
}

/// An endpoint that was not ready for a while becomes ready, and kube-proxy hears it first.
#[test]
fn an_endpoint_that_returns_is_not_stale() {
    let mut shop = Shop::new();
    shop.becomes(EP, NOT_READY, 20_000);
    shop.ready(EP, 60_400);
    assert_eq!(World::of(shop).verdict(to_cart().healthy(60_000), 70_000).class, Class::Ok);
    let mut shop = Shop::new();
    shop.becomes(EP, NOT_READY, 20_000);
    assert_eq!(World::of(shop).verdict(to_cart().healthy(60_000), 70_000).class, Class::C6);
}

/// The live path: the verdict waits until the metadata had the grace to arrive.
#[test]
fn the_verdict_waits_for_the_metadata() {
    let pipeline = |shop: &Shop| {
        Pipeline::new(
            settings(Detail::All),
            Cluster { history: shop.history(), status: ClusterStatus::new(Origin::None) },
        )
    };
    let shop = Shop::with_endpoints(&[OTHER]);
    let mut late = pipeline(&shop);
    late.observe(to_cart().healthy(60_000).out);
    assert!(late.advance(at(61_000)).judged.is_empty());
    assert!(late.next_deadline() <= Some(at(65_000)));
    let mut grown = Shop::with_endpoints(&[OTHER]);
    grown.ready(EP, 62_000);
    late.cluster_mut().history = grown.history();
    let judged = late.advance(at(65_000)).judged;
    assert_eq!(judged.iter().map(|it| it.verdict.class).collect::<Vec<_>>(), [Class::Ok]);

    let mut stale = pipeline(&shop);
    stale.observe(to_cart().healthy(60_000).out);
    assert!(stale.advance(at(66_000)).judged.is_empty());
    // Then it waits for kube-proxy's own figures.
    assert!(stale.wants_node());
    let judged = stale.node_read(std::sync::Arc::default(), at(66_100), at(66_200)).judged;
    assert_eq!(judged[0].verdict.class, Class::C6);

    // A flow that a rule stopped waits for the rules; a SYN that was lost on the way does not.
    let listed = Shop::new();
    for (reason, class) in [("NETFILTER_DROP", Class::C30), ("NEIGH_FAILED", Class::C29)] {
        let mut stopped = pipeline(&listed);
        let script = to_cart().drop_syn(60_000, reason).connect_failed(63_000);
        stopped.observe(script.out);
        let mut judged = stopped.advance(at(70_000)).judged;
        assert_eq!(stopped.wants_node(), class == Class::C30);
        judged.extend(stopped.node_read(std::sync::Arc::default(), at(70_100), at(70_200)).judged);
        assert_eq!(judged.iter().map(|it| it.verdict.class).collect::<Vec<_>>(), [class]);
    }
}

#[test]
fn an_endpoint_that_ends_is_lag_and_one_that_is_down_is_not() {
    // The last endpoint terminates and still serves (N8); then its process ends.
    let mut world = World::new();
    world.shop.becomes(EP, TERMINATING, 58_000);
    for script in [to_cart().refused(60_000), to_cart().silent(60_000)] {
        let verdict = world.verdict(script, 70_000);
        assert_eq!((verdict.class, verdict.severity), (Class::C5, Severity::Low), "{}", verdict.root_cause);
    }
    assert_eq!(world.verdict(to_cart().healthy(60_000), 70_000).class, Class::N8);
    // The API reports the termination just after the refusal.
    let mut world = World::new();
    world.shop.becomes(EP, TERMINATING, 60_500);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C5);
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    world.shop.leaves(EP, 60_500);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C5);
    // An application that is down becomes unready; nothing terminates it.
    let mut world = World::new();
    world.shop.becomes(EP, NOT_READY, 60_500);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C28);
}

#[test]
fn a_terminating_endpoint_that_is_preferred_to_ready_ones_is_stale() {
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    world.shop.becomes(EP, TERMINATING, 20_000);
    let verdict = world.verdict(to_cart().refused(60_000), 70_000);
    assert_eq!(verdict.class, Class::C6);
    assert!(verdict.root_cause.contains("others were ready, for 40.0 s"), "{}", verdict.root_cause);
    // A Pod has 30 s for its end, from when the kubelet learns of it. What it answers within them is a drain, however late
    // kube-proxy is.
    assert_eq!(world.verdict(to_cart().healthy(45_000), 55_000).class, Class::Ok);
    assert_eq!(world.verdict(to_cart().healthy(53_000), 63_000).class, Class::Ok);
    assert_eq!(world.verdict(to_cart().refused(53_000), 63_000).class, Class::C6);
    assert_eq!(world.verdict(to_cart().healthy(60_000), 70_000).class, Class::C6);
    // Within the grace it is lag, and a connection that succeeded broke nothing.
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    world.shop.becomes(EP, TERMINATING, 58_000);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C5);
    assert_eq!(world.verdict(to_cart().healthy(60_000), 70_000).class, Class::Ok);
}

/// Before 1.26 kube-proxy refuses a Service whose endpoints all terminate.
#[test]
fn an_old_kube_proxy_does_not_send_to_terminating_endpoints() {
    let mut world = World::new();
    world.shop.becomes(EP, TERMINATING, 20_000);
    let refused = || Script::new(CLIENT, VIP, None).unreach(60_000, 3).connect_failed(60_001);
    assert_eq!(world.verdict(refused(), 70_000).class, Class::C4);
    world.node.version = "v1.25.4";
    assert_eq!(world.verdict(refused(), 70_000).class, Class::C20);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C6);
}

#[test]
fn another_nodes_refusal_on_this_machine_is_its_kube_proxys() {
    let refused =
        || Script::new(CLIENT, VIP, None).unreach(60_000, 3).connect_failed(60_001).in_netns(OTHER_NODE);
    assert_eq!(World::of(Shop::with_endpoints(&[])).verdict(refused(), 70_000).class, Class::C20);
    // With endpoints, or with a code that kube-proxy never sends, it is a firewall's.
    assert_eq!(World::new().verdict(refused(), 70_000).class, Class::C30);
    let prohibited =
        Script::new(CLIENT, VIP, None).unreach(60_000, 13).connect_failed(60_001).in_netns(OTHER_NODE);
    assert_eq!(World::of(Shop::with_endpoints(&[])).verdict(prohibited, 70_000).class, Class::C30);
}

/// Two clusters on one machine have one range of cluster IPs.
#[test]
fn the_flows_of_another_cluster_on_this_machine_get_no_verdict() {
    let theirs = |script: Script| last_revisions(fold(script.in_netns(OTHER_NODE).out, 70_000).0).remove(0);
    let foreign = || Script::new("10.99.0.5:40000", VIP, Some("10.99.0.7:8080"));
    let world = World::new();
    assert_eq!(world.judge(&theirs(foreign().healthy(60_000))), None);
    assert_eq!(world.judge(&theirs(foreign().refused(60_000))), None);
    // A client outside the cluster passes this node's own namespace.
    let outside = Script::new("10.99.0.5:40000", VIP, Some("10.99.0.7:8080")).refused(60_000);
    assert_eq!(world.verdict(outside, 70_000).class, Class::C6);
}

/// viptrace runs in a namespace of its own: a sidecar's redirection is not kube-proxy's decision.
#[test]
fn without_the_nodes_namespace_a_sidecar_is_not_stale() {
    let mut world = World::new();
    world.node_netns = None;
    let redirected = Script::new(CLIENT, VIP, Some("127.0.0.1:15001"))
        .confirm(60_000)
        .state(60_001, false, TcpState::SynSent, TcpState::Established)
        .state(60_020, false, TcpState::FinWait2, TcpState::Close);
    let redirected = redirected.in_netns(CLIENT_NS);
    assert_eq!(world.verdict(redirected, 70_000).class, Class::Ok);
    // Nor is it an attempt that went to another endpoint.
    let silent = Script::new(CLIENT, VIP, Some("127.0.0.1:15001")).silent(60_000);
    let verdict = world.verdict(silent.in_netns(CLIENT_NS), 70_000);
    assert_eq!(verdict.class, Class::Unknown, "{verdict:?}");
    world.shop.leaves(EP, 20_000);
    assert_eq!(world.verdict(to_cart().refused(60_000), 70_000).class, Class::C6);
}

fn of_users(ms: u64) -> Script {
    Script::new(CLIENT, "10.96.0.11:80", None).silent(ms)
}

fn with_users(world: &mut World) {
    let users = crate::cluster_support::service("users", "10.96.0.11");
    let user = addr("10.244.1.9:8080");
    let endpoint = crate::cluster_support::endpoint(user.ip(), "users-0", READY);
    let endpoints = crate::cluster_support::slice(&users, user, vec![endpoint]);
    world.shop.put(0, Object::Service(users.into()));
    world.shop.put(0, Object::EndpointSlice(endpoints.into()));
}

#[test]
fn two_services_without_rules_are_no_crash_while_kube_proxy_works() {
    let mut world = World::new();
    with_users(&mut world);
    let (flows, _) = fold(of_users(59_000).out, 70_000);
    world.note(&flows[0]);
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    let missing = || Script::new(CLIENT, VIP, None).silent(60_000);
    assert_eq!(world.verdict(missing(), 70_000).class, Class::C5);
    world.node.running = Some(false);
    assert_eq!(world.verdict(missing(), 70_000).class, Class::C1);
}

/// RKE2 and k3s with Cilium: the program that could contain kube-proxy runs without it.
#[test]
fn an_embedding_program_beside_another_dataplane_is_out_of_scope() {
    let mut world = World::new();
    world.node.rules = Rules::Nothing;
    world.node.mode = None;
    world.node.interface = Some("cilium_host");
    world.node.program = "rke2";
    let missing = || Script::new(CLIENT, VIP, None).silent(60_000);
    let verdict = world.verdict(missing(), 70_000);
    assert_eq!(verdict.class, Class::Unknown);
    assert!(verdict.root_cause.contains("Cilium"), "{}", verdict.root_cause);
    // kube-proxy itself runs beside Cilium: then its rules must be there.
    world.node.program = "kube-proxy";
    assert_eq!(world.verdict(missing(), 70_000).class, Class::C1);
    // Leftovers of a kube-proxy that is gone meet no packet; rules that still translate are in use.
    world.node.running = Some(false);
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    assert_eq!(world.verdict(missing(), 70_000).class, Class::Unknown);
    let (flows, _) = fold(to_cart().healthy(55_000).out, 58_000);
    world.note(&flows[0]);
    let asked = Script::new(CLIENT, "10.96.0.11:80", None).silent(60_000);
    with_users(&mut world);
    assert_eq!(world.verdict(asked, 70_000).class, Class::C1);
}

/// Four retransmits, each after about twice the time.
fn stalls(script: Script, ms: u64) -> Script {
    [0, 400, 1_200, 2_800]
        .iter()
        .fold(script, |script, wait| script.retransmit(ms + wait, TcpState::Established))
}

/// A trace of failures observes no socket that closes: one that gave up and one that goes on look alike.
#[test]
fn a_silent_connection_stays_so_where_its_end_is_not_observed() {
    let mut table = viptrace::flow::FlowTable::new(Limits { sees_closes: false, ..Limits::default() });
    let mut world = World::new();
    world.missing = vec![Hook::SockEstablished, Hook::SockClosed, Hook::Delete];
    for sighting in stalls(to_cart().confirm(10_000), 20_200).out {
        table.observe(sighting);
    }
    let mut seen = Vec::new();
    for until in [30_000, 100_000, 200_000, 300_000] {
        table.advance(at(until));
        seen.extend(table.drain_settled().map(|flow| world.judge(&flow).unwrap().class));
    }
    assert_eq!(seen.last(), Some(&Class::C29), "{seen:?}");
}

#[test]
fn a_connection_that_recovers_is_withdrawn() {
    let classes = |sightings: Vec<Sighting>, until: u64| {
        let flows = fold(sightings, until).0;
        let world = World::new();
        flows.iter().map(|flow| world.judge(flow).unwrap().class).collect::<Vec<_>>()
    };
    // Its close shows that both ends were heard.
    let blip = || stalls(to_cart().established(10_000), 20_200);
    let mut table = viptrace::flow::FlowTable::new(Limits::default());
    let world = World::new();
    let mut seen = Vec::new();
    let mut observe = |sightings: Vec<Sighting>, until: u64| {
        for sighting in sightings {
            table.observe(sighting);
        }
        table.advance(at(until));
        seen.extend(table.drain_settled().map(|flow| world.judge(&flow).unwrap().class));
    };
    observe(blip().out, 30_000);
    observe(to_cart().closed(40_000).out, 50_000);
    assert_eq!(seen.last(), Some(&Class::Ok), "{seen:?}");
    assert!(seen.contains(&Class::C29), "{seen:?}");

    // No retransmit for longer than TCP ever waits: an answer has come.
    let mut table = viptrace::flow::FlowTable::new(Limits::default());
    let mut seen = Vec::new();
    for sighting in blip().out {
        table.observe(sighting);
    }
    for until in [30_000, 100_000, 200_000, 300_000] {
        table.advance(at(until));
        seen.extend(table.drain_settled().map(|flow| world.judge(&flow).unwrap().class));
    }
    assert_eq!(seen.last(), Some(&Class::Ok), "{seen:?}");
    // A connection that stays silent goes on retransmitting, and its verdict stays.
    let silent = [26_000, 32_400, 45_200, 70_800, 122_000, 224_000]
        .iter()
        .fold(blip(), |script, ms| script.retransmit(*ms, TcpState::Established));
    assert_eq!(classes(silent.out, 300_000).last(), Some(&Class::C29));
}

#[test]
fn one_answer_does_not_make_answers_the_rule() {
    let one_way = || to_cart().udp().confirm(10_000).reread(15_400, 0);
    let flow = |script: Script| last_revisions(fold(script.out, 50_000).0).remove(0);
    let answered = flow(to_cart().udp().confirm(5_000).reread(6_000, Status::SEEN_REPLY));
    let mut syslog = World::new();
    syslog.note(&answered);
    assert_eq!(syslog.verdict(one_way(), 50_000).class, Class::N20);
    for _ in 0..5 {
        syslog.note(&flow(one_way()));
    }
    for _ in 0..3 {
        syslog.note(&answered);
    }
    assert_eq!(syslog.verdict(one_way(), 50_000).class, Class::N20, "a server that answers some requests");
    let mut resolver = World::new();
    for _ in 0..4 {
        resolver.note(&answered);
    }
    assert_eq!(resolver.verdict(one_way(), 50_000).class, Class::C29);
}

#[test]
fn an_idle_connection_whose_entry_timed_out_only_loses_its_close() {
    let gone = || to_cart().established(10_000).delete(100_000, Status::SEEN_REPLY | Status::ASSURED);
    let retries = [200, 600, 1_400, 3_000, 6_200];
    let close =
        retries.iter().fold(gone(), |script, wait| script.retransmit(200_000 + wait, TcpState::FinWait1));
    let verdict = World::new().verdict(close, 260_000);
    assert_eq!((verdict.class, verdict.severity), (Class::N5, Severity::Low), "{verdict:#?}");
    assert!(
        says(&verdict, "its conntrack entry timed out or was ended by the kernel 1 min 40 s before"),
        "{verdict:#?}"
    );
    // It still had data to send.
    let data =
        retries.iter().fold(gone(), |script, wait| script.retransmit(200_000 + wait, TcpState::Established));
    assert_eq!(World::new().verdict(data, 260_000).class, Class::C19);
    // The entry lived: the endpoint is silent.
    let data = retries.iter().fold(to_cart().established(10_000), |script, wait| {
        script.retransmit(20_000 + wait, TcpState::Established)
    });
    let later = data.delete(120_000, Status::SEEN_REPLY | Status::ASSURED);
    assert_eq!(World::new().verdict(later, 130_000).class, Class::C29);
}

#[test]
fn a_late_segment_of_an_ended_connection_is_noise() {
    let stray = || to_cart().confirm_midstream(20_000).endpoint_has_no_connection(20_001);
    assert_eq!(World::new().verdict(stray(), 30_000).class, Class::N16);
    // The client's socket received the RST: its connection was open.
    let open = stray().receive_reset(20_002, TcpState::Established);
    assert_eq!(World::new().verdict(open, 30_000).class, Class::C19);
    // On another node it may have been.
    let mut remote = Script::new("203.0.113.9:40000", VIP, Some(EP)).confirm_midstream(20_000);
    remote = remote.endpoint_has_no_connection(20_001);
    let verdict = World::new().verdict(remote, 30_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C19, Confidence::Medium));
}

#[test]
fn the_grace_follows_kube_proxys_pace() {
    let mut world = World::new();
    let snapshot = |world: &World| world.node.snapshot(&world.shop.cart);
    let five = Duration::from_secs(5);
    assert_eq!(Grace::default().on(&snapshot(&world)), five);
    world.node.config = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: iptables\n\
                         iptables: {minSyncPeriod: 10s}\n";
    assert_eq!(Grace::default().on(&snapshot(&world)), Duration::from_secs(20));
    world.node.metrics = "kubeproxy_network_programming_duration_seconds_bucket{le=\"1\"} 10\n\
                          kubeproxy_network_programming_duration_seconds_bucket{le=\"40\"} 50\n\
                          kubeproxy_network_programming_duration_seconds_bucket{le=\"+Inf\"} 50\n";
    assert_eq!(Grace::default().on(&snapshot(&world)), Duration::from_secs(40));
    // The user's word is exact.
    assert_eq!(Grace::of(Some(Duration::from_secs(1))).on(&snapshot(&world)), Duration::from_secs(1));
    // A recording keeps it.
    let saved = serde_json::to_string(&snapshot(&world)).unwrap();
    let read: viptrace::node::Snapshot = serde_json::from_str(&saved).unwrap();
    assert_eq!(Grace::default().on(&read), Duration::from_secs(40));
}

/// The removal is at 1700000020; kube-proxy's figures were read a minute later.
#[test]
fn the_cause_behind_a_stale_endpoint() {
    let verdict = |metrics: &'static str, running: bool| {
        let mut world = World::new();
        world.shop.leaves(EP, 20_000);
        world.node.read_ms = Some(80_000);
        (world.node.metrics, world.node.running) = (metrics, Some(running));
        world.verdict(to_cart().refused(60_000), 70_000)
    };
    let cut_off = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.700000005e+09\n\
                   kubeproxy_sync_proxy_rules_last_timestamp_seconds 1.700000006e+09\n";
    let found = verdict(cut_off, true);
    assert_eq!(found.class, Class::C6);
    assert!(found.root_cause.ends_with("cut off from the API server (C2)"), "{}", found.root_cause);
    assert!(says(&found, "15.0 s before that change, and none since"), "{found:#?}");
    assert!(found.cross_reference.contains(&"C2".into()));
    let failing = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.7000000201e+09\n\
                   kubeproxy_sync_proxy_rules_last_timestamp_seconds 1.700000006e+09\n\
                   kubeproxy_sync_proxy_rules_iptables_restore_failures_total 3\n";
    let found = verdict(failing, true);
    assert!(found.root_cause.ends_with("cannot write its rules (C4)"), "{}", found.root_cause);
    let found = verdict("", false);
    assert!(found.root_cause.ends_with("kube-proxy does not run (C1)"), "{}", found.root_cause);
    // It wrote everything: its figures do not explain it.
    let well = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.7000000201e+09\n\
                kubeproxy_sync_proxy_rules_last_timestamp_seconds 1.7000000205e+09\n";
    let found = verdict(well, true);
    assert!(found.unseen.iter().any(|unseen| unseen.contains("why the rules are old")), "{found:#?}");
}

#[test]
fn a_service_that_was_scaled_to_zero_is_refused_by_design() {
    let refused = |ms| Script::new(CLIENT, VIP, None).unreach(ms, 3).connect_failed(ms + 1);
    let scaled = || {
        let mut shop = Shop::new();
        shop.leaves(EP, 20_000);
        shop.pod_ends(EP, 21_000);
        shop
    };
    let verdict = World::of(scaled()).verdict(refused(60_000), 70_000);
    assert_eq!((verdict.class, verdict.severity), (Class::N19, Severity::None), "{}", verdict.root_cause);
    assert!(verdict.unseen.iter().any(|what| what.contains("replicas")), "{verdict:#?}");

    // The Pod is there and crashes.
    let mut shop = Shop::new();
    shop.becomes(EP, NOT_READY, 20_000);
    let ip = addr(EP).ip();
    let crashing = Pod { ready: false, trouble: Some("CrashLoopBackOff".into()), ..shop.pods[&ip].clone() };
    shop.put(20_000, Object::Pod(crashing.into()));
    let verdict = World::of(shop).verdict(refused(60_000), 70_000);
    assert_eq!(verdict.class, Class::C20);
    assert!(verdict.root_cause.contains("CrashLoopBackOff"), "{}", verdict.root_cause);
    // Its labels changed, and the slices dropped it.
    let mut shop = Shop::new();
    shop.leaves(EP, 20_000);
    let relabelled = Pod { labels: Labels::default(), ..shop.pods[&ip].clone() };
    shop.put(19_900, Object::Pod(relabelled.into()));
    assert_eq!(World::of(shop).verdict(refused(60_000), 70_000).class, Class::C20);
    // The selector changed, and the Pods went later.
    let mut shop = scaled();
    let mut mistyped = shop.cart.clone();
    mistyped.selector = Labels::of([("app", "chart")]);
    shop.put(19_900, Object::Service(mistyped.into()));
    assert_eq!(World::of(shop).verdict(refused(60_000), 70_000).class, Class::C20);
    // It never had an endpoint.
    assert_eq!(World::of(Shop::with_endpoints(&[])).verdict(refused(60_000), 70_000).class, Class::C20);
}

/// cart at node port 30080, Local, with its endpoints on another node.
fn local_node_port() -> World {
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, NODE_PORT);
    world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    world
}

const NODE_PORT: &str = "192.168.1.2:30080";

/// The verdicts on connections at these times, in seconds, each of which the trace notes first.
fn visits(world: &mut World, secs: &[u64], script: impl Fn(&str, u64) -> Script) -> Vec<Verdict> {
    let one = |(number, at): (usize, &u64)| {
        let flow = last_revisions(
            fold(script(&format!("203.0.113.9:{}", 40_000 + number), at * 1000).out, at * 1000 + 60_000).0,
        );
        world.note(&flow[0]);
        world.judge(&flow[0]).unwrap()
    };
    secs.iter().enumerate().map(one).collect()
}

#[test]
fn health_checks_of_a_load_balancer_are_told_by_their_rhythm() {
    let dropped = |client: &str, ms| Script::new(client, NODE_PORT, None).drop_syn(ms, "NETFILTER_DROP");
    let classes =
        |verdicts: Vec<Verdict>| verdicts.into_iter().map(|verdict| verdict.class).collect::<Vec<_>>();
    let checks = classes(visits(&mut local_node_port(), &[60, 65, 70, 75, 80, 85], dropped));
    assert_eq!(checks[..4], [Class::C21; 4]);
    assert_eq!(checks[4..], [Class::N2, Class::N2]);
    // Clients of the Service come when they like, and repeat their SYN.
    let clients = classes(visits(&mut local_node_port(), &[60, 61, 70, 72, 90, 91, 100], dropped));
    assert_eq!(clients, [Class::C21; 7]);
    let patient = |client: &str, ms| {
        (0..5).fold(Script::new(client, NODE_PORT, None), |script, n| {
            script.drop_syn(ms + n * 1000, "NETFILTER_DROP")
        })
    };
    assert_eq!(
        classes(visits(&mut local_node_port(), &[60, 70, 80, 90, 100, 110], patient)),
        [Class::C21; 6]
    );

    // On a node with an endpoint the check resets what it opened.
    let served = |client: &str, ms| Script::new(client, NODE_PORT, Some(EP)).ended_by_server(ms);
    let silent = |client: &str, ms| {
        let mut script = served(client, ms);
        for sighting in &mut script.out {
            if let Fact::Socket(socket) = &mut sighting.fact {
                (socket.bytes_acked, socket.bytes_received) = (0, 0);
            }
        }
        script
    };
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, NODE_PORT);
    assert_eq!(classes(visits(&mut world, &[60, 65, 70, 75, 80], silent))[4], Class::N2);
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, NODE_PORT);
    assert_eq!(classes(visits(&mut world, &[60, 65, 70, 75, 80], served))[4], Class::Ok, "it carries data");
}
