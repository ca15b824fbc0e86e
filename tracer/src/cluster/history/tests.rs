//! Queries of the history, for the fixture cluster and for hand-made objects.
#![expect(clippy::needless_pass_by_value, reason = "json!() reads best in the call")]

use std::{net::SocketAddr, path::Path};

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster::{
        folder,
        model::{AddressType, ServicePort, TrafficPolicy, Via},
        trim::trim,
    },
    net::Protocol,
};

const LOOK_BACK: Duration = Duration::from_hours(1);

fn at(secs: u64) -> Timestamp {
    Timestamp::from_unix_secs(secs)
}

/// 2026-11-20T23:28:00Z, before the fixture's watch begins.
const BEFORE: u64 = 1_795_217_280;

fn fixture() -> History {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/cluster");
    folder::read(&dir, LOOK_BACK).unwrap().history
}

fn object(kind: Kind, value: Value) -> Trimmed {
    let mut odd = Vec::new();
    let trimmed = trim(kind, &value, &mut odd).unwrap();
    assert!(odd.is_empty(), "{odd:?}");
    trimmed
}

fn service(name: &str, spec: Value) -> Trimmed {
    object(Kind::Service, json!({"metadata": {"name": name, "namespace": "a"}, "spec": spec}))
}

fn web() -> Trimmed {
    let port = json!({"name": "http", "port": 80, "targetPort": "web"});
    service("web", json!({"clusterIP": "10.0.0.1", "selector": {"app": "web"}, "ports": [port]}))
}

/// A slice of `a/web` with these endpoints: address, ready, serving, terminating.
fn slice(name: &str, port: &str, endpoints: &[(&str, bool, bool, bool)]) -> Trimmed {
    let one = |(ip, ready, serving, terminating): &(&str, bool, bool, bool)| {
        let conditions = json!({"ready": ready, "serving": serving, "terminating": terminating});
        json!({"addresses": [ip], "conditions": conditions, "nodeName": "n1"})
    };
    let family = if endpoints.iter().any(|(ip, ..)| ip.contains(':')) { "IPv6" } else { "IPv4" };
    let endpoints: Vec<_> = endpoints.iter().map(one).collect();
    let labels = json!({"kubernetes.io/service-name": "web"});
    object(
        Kind::EndpointSlice,
        json!({
            "metadata": {"name": name, "namespace": "a", "labels": labels}, "addressType": family,
            "ports": [{"name": port, "port": 8080}], "endpoints": endpoints,
        }),
    )
}

fn pod(name: &str, ip: &str, ready: bool) -> Trimmed {
    let conditions = json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}]);
    object(
        Kind::Pod,
        json!({
            "metadata": {"name": name, "namespace": "a", "labels": {"app": "web"}, "uid": name},
            "spec": {"containers": []},
            "status": {"phase": "Running", "podIPs": [{"ip": ip}], "conditions": conditions},
        }),
    )
}

fn history(objects: Vec<Trimmed>) -> History {
    let mut history = History::new(LOOK_BACK);
    for object in objects {
        history.apply_listed(at(1000), object);
    }
    for kind in Kind::ALL {
        history.mark_known(kind);
    }
    history
}

fn web_port(history: &History, at: Timestamp) -> (&Service, &ServicePort) {
    let service = history.service(&Key::new("a", "web"), at).unwrap();
    (service, &service.ports[0])
}

fn membership<'h>(history: &'h History, endpoint: &str, when: u64) -> Membership<'h> {
    let (service, port) = web_port(history, at(when));
    history.membership_in(&service.key, port, endpoint.parse().unwrap(), at(when))
}

fn reason(history: &History, when: u64) -> Option<NoEndpointsReason> {
    let (service, port) = web_port(history, at(when));
    history.no_endpoints_reason(service, port, AddressType::Ipv4, at(when))
}

fn found(history: &History, ip: &str, port: u16) -> Option<(String, Via)> {
    match history.address(SocketAddr::new(ip.parse().unwrap(), port), Protocol::TCP, at(BEFORE)) {
        Address::Vip(vip) => Some((vip.to_string(), vip.via)),
        _ => None,
    }
}

#[test]
fn every_address_of_a_service_leads_to_its_port() {
    let history = fixture();
    assert_eq!(found(&history, "10.96.10.10", 80), Some(("shop/cart:http".to_owned(), Via::ClusterIp)));
    assert_eq!(
        found(&history, "::ffff:10.96.10.10", 80),
        Some(("shop/cart:http".to_owned(), Via::ClusterIp))
    );
    assert_eq!(found(&history, "203.0.113.50", 443), Some(("shop/api:https".to_owned(), Via::ExternalIp)));
    assert_eq!(
        found(&history, "203.0.113.80", 443),
        Some(("shop/api:https".to_owned(), Via::LoadBalancerIp))
    );
    assert_eq!(found(&history, "192.0.2.12", 30080), Some(("shop/frontend:http".to_owned(), Via::NodePort)));
    assert_eq!(found(&history, "10.244.1.11", 30080), None, "a nodePort is on nodes only");
    let dns = history.address("10.96.0.10:53".parse().unwrap(), Protocol::UDP, at(BEFORE));
    assert!(matches!(dns, Address::Vip(vip) if *vip.port.name == *"dns"));
    let wrong = history.address("10.96.10.10:81".parse().unwrap(), Protocol::TCP, at(BEFORE));
    assert!(matches!(wrong, Address::UnknownPort(service) if *service.key.name == *"cart"));
    let other = history.address("10.96.77.77:80".parse().unwrap(), Protocol::TCP, at(BEFORE));
    assert_eq!(other, Address::Other);
}

#[test]
fn the_fixture_has_policies_probes_and_owners() {
    let history = fixture();
    let frontend = history.service(&Key::new("shop", "frontend"), at(BEFORE)).unwrap();
    assert_eq!(frontend.external_traffic_policy, TrafficPolicy::Local);
    assert!(history.service(&Key::new("shop", "payments"), at(BEFORE)).unwrap().affinity.is_some());
    assert!(history.service(&Key::new("shop", "db"), at(BEFORE)).unwrap().headless);
    let ip = "10.244.1.11".parse().unwrap();
    assert_eq!(*history.pod_by_ip(ip, at(BEFORE)).unwrap().key.name, *"cart-1");
    let (pod, probes) = history.probes(ip, 8080, at(BEFORE)).unwrap();
    assert!(!probes.is_empty() && probes.iter().all(|probe| probe.port == 8080));
    assert_eq!(&*pod.key.name, "cart-1");
    assert!(history.probes(ip, 8081, at(BEFORE)).is_none());
    assert_eq!(*history.node_by_ip("192.0.2.11".parse().unwrap(), at(BEFORE)).unwrap().key.name, *"worker-1");
}

#[test]
fn the_fixtures_watch_is_history() {
    let history = fixture();
    let key = Key::new("shop", "cart");
    let port = history.service(&key, at(BEFORE)).unwrap().ports[0].clone();
    let gone = "10.244.1.12:8080".parse().unwrap();
    assert!(matches!(history.membership_in(&key, &port, gone, at(BEFORE)), Membership::Member { .. }));
    let Membership::Left { at: left, last } = history.membership_in(&key, &port, gone, at(BEFORE + 60))
    else {
        panic!("cart-2 has not left");
    };
    assert!(left >= at(BEFORE + 13) && left <= at(BEFORE + 14), "{left}");
    assert_eq!(*last.pod.unwrap().key.name, *"cart-2");
    assert!(history.pod(&Key::new("shop", "cart-2"), at(BEFORE + 60)).is_none());
    assert!(history.service(&Key::new("shop", "legacy"), at(BEFORE)).is_some());
    assert!(history.service(&Key::new("shop", "legacy"), at(BEFORE + 60)).is_none());
    let slow = history.service(&Key::new("shop", "slow"), at(BEFORE)).unwrap();
    let why = |when| history.no_endpoints_reason(slow, &slow.ports[0], AddressType::Ipv4, at(when));
    assert!(
        matches!(why(BEFORE), Some(NoEndpointsReason::PodsNotReady { pods, .. }) if *pods[0].key.name == *"slow-1")
    );
    assert_eq!(why(BEFORE + 60), None, "slow-1 became ready");
    let checkout = history.service(&Key::new("shop", "checkout"), at(BEFORE)).unwrap();
    let reason =
        history.no_endpoints_reason(checkout, &checkout.ports[0], AddressType::Ipv4, at(BEFORE)).unwrap();
    assert_eq!(reason.to_string(), "its selector app=chekout matches no Pod");
}

#[test]
fn an_endpoints_state_depends_on_the_time() {
    let mut history = history(vec![web(), slice("s", "http", &[("10.1.0.1", true, true, false)])]);
    history.apply(at(2000), Change::Put(slice("s", "http", &[("10.1.0.1", false, true, true)])));
    history.apply(at(2010), Change::Put(slice("s", "http", &[])));
    let Membership::Member { since, state } = membership(&history, "10.1.0.1:8080", 2005) else {
        panic!("it is a member while it terminates");
    };
    assert_eq!(since, at(2000));
    assert!(state.conditions.terminating && !state.conditions.ready);
    let left = membership(&history, "10.1.0.1:8080", 2030);
    assert!(
        matches!(left, Membership::Left { at: when, last } if when == at(2010) && last.conditions.terminating)
    );
    assert_eq!(membership(&history, "10.1.0.1:9090", 1500), Membership::NeverSeen { since: Timestamp::MIN });
    assert_eq!(membership(&history, "10.1.0.7:8080", 2005), Membership::NeverSeen { since: Timestamp::MIN });
}

#[test]
fn a_renamed_port_keeps_its_endpoints_until_the_slices_follow() {
    let ready = [("10.1.0.1", true, true, false)];
    let mut history = history(vec![web(), slice("s", "http", &ready)]);
    let port = json!({"name": "www", "port": 80, "targetPort": "web"});
    let renamed = json!({"clusterIP": "10.0.0.1", "selector": {"app": "web"}, "ports": [port]});
    history.apply(at(2000), Change::Put(service("web", renamed)));
    let between = membership(&history, "10.1.0.1:8080", 2001);
    assert!(matches!(between, Membership::Left { at: when, .. } if when == at(2000)), "{between:?}");
    history.apply(at(2002), Change::Put(slice("s", "www", &ready)));
    assert!(matches!(membership(&history, "10.1.0.1:8080", 2003), Membership::Member { .. }));
    // Another address was never a member under any name.
    assert!(matches!(membership(&history, "10.1.0.9:8080", 2001), Membership::NeverSeen { .. }));
}

#[test]
fn before_the_history_begins_absence_is_unknown() {
    let mut known_since = slice("s", "http", &[("10.1.0.1", true, true, false)]);
    known_since.created = Some(at(100));
    known_since.changed = Some(at(900));
    let history = history(vec![web(), known_since]);
    assert_eq!(membership(&history, "10.1.0.2:8080", 500), Membership::Unknown);
    assert_eq!(membership(&history, "10.1.0.2:8080", 950), Membership::NeverSeen { since: at(900) });
}

#[test]
fn a_later_slice_does_not_change_the_past() {
    let mut history = history(vec![web(), slice("s1", "http", &[])]);
    history.apply(at(2000), Change::Put(slice("s2", "http", &[("10.1.0.1", true, true, false)])));
    assert_eq!(membership(&history, "10.1.0.1:8080", 1999), Membership::NeverSeen { since: Timestamp::MIN });
    let member = membership(&history, "10.1.0.1:8080", 2001);
    assert!(matches!(member, Membership::Member { since, .. } if since == at(2000)), "{member:?}");
}

#[test]
fn membership_goes_back_no_further_than_its_proof() {
    let mut listed = slice("s", "http", &[("10.1.0.1", true, true, false)]);
    listed.created = Some(at(100));
    listed.changed = Some(at(900));
    let history = history(vec![web(), listed]);
    let since = |when| match membership(&history, "10.1.0.1:8080", when) {
        Membership::Member { since, .. } => since,
        other => panic!("{other:?}"),
    };
    assert_eq!((since(1000), since(500)), (at(900), at(100)));
}

#[test]
fn moving_to_another_slice_is_not_leaving() {
    let here = [("10.1.0.1", true, true, false)];
    let mut history = history(vec![web(), slice("s1", "http", &here), slice("s2", "http", &[])]);
    history.apply(at(2000), Change::Put(slice("s2", "http", &here)));
    history.apply(at(2001), Change::Put(slice("s1", "http", &[])));
    let member = membership(&history, "10.1.0.1:8080", 2500);
    assert!(matches!(member, Membership::Member { since: Timestamp::MIN, .. }), "{member:?}");
}

#[test]
fn terminating_endpoints_serve_only_where_none_is_ready() {
    let draining = ("10.1.0.1", false, true, true);
    let mut history = history(vec![web(), slice("s", "http", &[draining, ("10.1.0.2", true, true, false)])]);
    let usable = |history: &History, node| {
        let (service, port) = web_port(history, at(3000));
        let usable = history.usable_endpoints(&service.key, port, AddressType::Ipv4, node, at(3000));
        usable.iter().map(|e| e.addr.ip().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(usable(&history, None), ["10.1.0.2"]);
    history.apply(at(2000), Change::Put(slice("s", "http", &[draining, ("10.1.0.2", false, false, true)])));
    assert_eq!(usable(&history, None), ["10.1.0.1"]);
    assert!(usable(&history, Some("n2")).is_empty(), "none is local to n2");
    assert_eq!(reason(&history, 3000), None);
}

#[test]
fn each_reason_for_missing_endpoints_is_found() {
    let ready = [("10.1.0.1", true, true, false)];
    let unready = [("10.1.0.1", false, false, false)];
    let port = history(vec![web(), slice("s", "grpc", &ready), pod("p", "10.1.0.1", true)]);
    assert!(
        matches!(reason(&port, 2000), Some(NoEndpointsReason::PortName { offered, .. }) if offered == ["grpc/TCP"])
    );
    let family = history(vec![web(), slice("s", "http", &[("fd00::1", true, true, false)])]);
    assert!(matches!(
        reason(&family, 2000),
        Some(NoEndpointsReason::AddressFamily { offered: AddressType::Ipv6, .. })
    ));
    let pods = history(vec![web(), slice("s", "http", &unready), pod("p", "10.1.0.1", false)]);
    assert!(
        matches!(reason(&pods, 2000), Some(NoEndpointsReason::PodsNotReady { pods, more: 0 }) if pods.len() == 1)
    );
    let behind = history(vec![web(), pod("p", "10.1.0.1", true)]);
    assert!(matches!(reason(&behind, 2000), Some(NoEndpointsReason::NotInSlices { .. })));
    let nothing = history(vec![web(), slice("s", "http", &[])]);
    assert!(matches!(reason(&nothing, 2000), Some(NoEndpointsReason::SelectorMatchesNothing { .. })));
    let mut scaled = history(vec![web(), slice("s", "http", &ready), pod("p", "10.1.0.1", true)]);
    scaled.apply(at(1500), Change::Put(slice("s", "http", &[])));
    scaled.apply(at(1501), Change::Delete(Kind::Pod, Key::new("a", "p")));
    assert_eq!(reason(&scaled, 2000), Some(NoEndpointsReason::ScaledToZero { last_endpoint: at(1500) }));
    let manual = service("web", json!({"clusterIP": "10.0.0.1", "ports": [{"port": 80}]}));
    assert_eq!(reason(&history(vec![manual]), 2000), Some(NoEndpointsReason::NoSelector));
    let mut blind = History::new(LOOK_BACK);
    blind.apply_listed(at(1000), web());
    blind.apply_listed(at(1000), slice("s", "http", &unready));
    assert_eq!(reason(&blind, 2000), Some(NoEndpointsReason::EndpointsNotReady { count: 1 }));
}

#[test]
fn an_address_belongs_to_its_holder_at_the_time() {
    let mut history = history(vec![pod("old", "10.1.0.1", true)]);
    let ip = "10.1.0.1".parse().unwrap();
    history.apply(at(2000), Change::Delete(Kind::Pod, Key::new("a", "old")));
    assert!(history.pod_by_ip(ip, at(2001)).is_none());
    history.apply(at(2010), Change::Put(pod("new", "10.1.0.1", true)));
    let holder = |when| history.pod_by_ip(ip, at(when)).map(|pod| pod.key.name.to_string());
    assert_eq!(holder(1999).as_deref(), Some("old"));
    assert_eq!((holder(2005), holder(2010).as_deref()), (None, Some("new")));
    let (last, since) = history.last_pod_by_ip(ip, at(2020)).unwrap();
    assert_eq!((&*last.key.name, since), ("old", at(2000)));
}

#[test]
fn the_former_service_of_an_address_is_known() {
    let mut history = history(vec![web()]);
    history.apply(at(2000), Change::Delete(Kind::Service, Key::new("a", "web")));
    let vip = "10.0.0.1:80".parse().unwrap();
    assert!(matches!(history.address(vip, Protocol::TCP, at(1999)), Address::Vip(_)));
    let gone = history.address(vip, Protocol::TCP, at(2001));
    assert!(matches!(gone, Address::Gone { since, .. } if since == at(2000)));
    history.prune(at(2000).saturating_add(LOOK_BACK));
    assert_eq!(history.address(vip, Protocol::TCP, at(9000)), Address::Other);
    assert_eq!(history.counts().objects, 0);
}

#[test]
fn pruning_forgets_the_past_and_keeps_the_present() {
    let mut history = history(vec![web(), slice("s", "http", &[("10.1.0.1", true, true, false)])]);
    history.apply(at(2000), Change::Put(slice("s", "http", &[("10.1.0.2", true, true, false)])));
    history.prune(at(2000).saturating_add(LOOK_BACK));
    assert_eq!(history.counts().versions, 2);
    assert!(matches!(membership(&history, "10.1.0.2:8080", 9000), Membership::Member { .. }));
    assert_eq!(membership(&history, "10.1.0.1:8080", 9000), Membership::NeverSeen { since: at(2000) });
}

#[test]
fn versions_forgotten_early_are_a_loss() {
    let mut history = history(vec![web()]);
    assert_eq!(history.losses(), Vec::<String>::new());
    for second in 0..300 {
        let address = format!("10.1.0.{}", second % 200 + 1);
        history.apply(at(2000 + second), Change::Put(slice("s", "http", &[(&address, true, true, false)])));
    }
    assert_eq!(history.losses(), ["44 versions forgotten early: the history keeps 256 of each object"]);
}

#[test]
fn ten_thousand_services_are_found_by_their_addresses() {
    let mut history = History::new(LOOK_BACK);
    for n in 0..10_000_u32 {
        let ip = std::net::Ipv4Addr::from(0x0a60_0000 + n);
        let spec = json!({"clusterIP": ip.to_string(), "ports": [{"port": 80}]});
        history.apply_listed(at(1), service(&format!("s{n}"), spec));
    }
    let lookups = (0..100_000_u32).filter(|n| {
        let ip = std::net::Ipv4Addr::from(0x0a60_0000 + n % 10_000);
        matches!(history.address((ip, 80).into(), Protocol::TCP, at(2)), Address::Vip(_))
    });
    assert_eq!(lookups.count(), 100_000);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
        Just(json!("10.0.0.1")),
        Just(json!("2026-11-20T23:28:13Z")),
    ];
    let names = prop_oneof![
        Just("metadata"),
        Just("name"),
        Just("namespace"),
        Just("spec"),
        Just("status"),
        Just("ports"),
        Just("port"),
        Just("clusterIP"),
        Just("clusterIPs"),
        Just("endpoints"),
        Just("addresses"),
        Just("addressType"),
        Just("labels"),
        Just("managedFields"),
        Just("time"),
        Just("containers"),
        Just("kind"),
        Just("items"),
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((names.clone(), inner), 0..6).prop_map(|fields| fields
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect()),
        ]
    })
}

proptest! {
    #[test]
    fn no_object_makes_it_panic(
        values in prop::collection::vec((any::<prop::sample::Index>(), any_json()), 0..8),
        when in any::<u64>(),
    ) {
        let mut history = History::new(LOOK_BACK);
        for (kind, value) in values {
            let kind = *kind.get(&Kind::ALL);
            let mut odd = Vec::new();
            let given = value.as_object().is_some_and(|object| object.contains_key("metadata"));
            match trim(kind, &value, &mut odd) {
                Some(trimmed) => history.apply_listed(Timestamp::from_unix_ns(when), trimmed),
                None => prop_assert!(!odd.is_empty() || !given),
            }
        }
        history.prune(Timestamp::from_unix_ns(when));
    }

    #[test]
    fn a_saved_history_is_restored(
        steps in prop::collection::vec((0..5_u8, 0..3_u8, any::<bool>()), 0..40),
        pruned in prop::option::of(900_u64..8000),
    ) {
        let mut history = history(vec![web()]);
        for (second, (kind, which, ready)) in (1001_u64..).step_by(97).zip(steps) {
            let (name, ip) = (format!("x{which}"), format!("10.1.0.{which}"));
            let change = match kind {
                0 => Change::Put(slice(&name, "http", &[(&ip, ready, ready, !ready)])),
                1 => Change::Put(pod(&name, &ip, ready)),
                2 => Change::Put(service(
                    &name,
                    json!({"clusterIP": format!("10.0.0.{}", 7 + which), "ports": [{"port": 80}]}),
                )),
                3 => Change::Delete(Kind::EndpointSlice, Key::new("a", &name)),
                _ => Change::Delete(Kind::Pod, Key::new("a", &name)),
            };
            history.apply(at(second), change);
        }
        if let Some(second) = pruned {
            history.prune(at(second));
        }
        let (facts, objects) = history.save();
        let mut restored = History::default();
        for object in &objects {
            let json = serde_json::to_vec(object).unwrap();
            restored.restore_object(serde_json::from_slice(&json).unwrap());
        }
        restored.restore_facts(serde_json::from_slice(&serde_json::to_vec(&facts).unwrap()).unwrap());
        prop_assert_eq!(restored.save(), (facts, objects));
        prop_assert_eq!(restored.counts(), history.counts());
        for second in (900..6000).step_by(333).map(at) {
            for number in 0..3 {
                let ip = format!("10.1.0.{number}").parse().unwrap();
                prop_assert_eq!(restored.pod_by_ip(ip, second), history.pod_by_ip(ip, second));
                prop_assert_eq!(restored.last_pod_by_ip(ip, second), history.last_pod_by_ip(ip, second));
                let vip = format!("10.0.0.{}:80", 7 + number).parse().unwrap();
                let meant = restored.address(vip, Protocol::TCP, second);
                prop_assert_eq!(meant, history.address(vip, Protocol::TCP, second));
            }
        }
    }

    /// However objects came and went, and whatever was in their places before.
    #[test]
    fn an_address_leads_to_the_first_object_by_name_that_has_it(
        steps in prop::collection::vec((0..5_u8, "[a-e]", 0..3_u8), 0..60),
    ) {
        let mut history = history(Vec::new());
        for (second, (kind, name, number)) in (2000_u64..).step_by(500).zip(steps) {
            let ip = format!("10.0.0.{number}");
            match kind {
                0 => history.apply(at(second), Change::Put(pod(&name, &ip, true))),
                1 => {
                    let spec = json!({"clusterIP": ip, "ports": [{"port": 80}]});
                    history.apply(at(second), Change::Put(service(&name, spec)));
                }
                2 => history.apply(at(second), Change::Delete(Kind::Pod, Key::new("a", &name))),
                3 => history.apply(at(second), Change::Delete(Kind::Service, Key::new("a", &name))),
                _ => history.prune(at(second)),
            }
            for ip in (0..3).map(|number| IpAddr::from([10, 0, 0, number])) {
                let pod = history.pods().find(|pod| pod.ips.contains(&ip));
                prop_assert_eq!(history.pod_by_ip(ip, at(second)), pod);
                let expected = history.services().find(|service| service.cluster_ips.contains(&ip));
                let found = match history.address((ip, 80).into(), Protocol::TCP, at(second)) {
                    Address::Vip(vip) => Some(&vip.service.key),
                    _ => None,
                };
                prop_assert_eq!(found, expected.map(|service| &service.key));
            }
        }
    }

    #[test]
    fn a_remembered_answer_is_that_of_the_history(
        steps in prop::collection::vec((0..6_u8, 0..3_u8, any::<bool>()), 1..30),
    ) {
        let mut history = history(vec![web()]);
        let endpoint = "10.1.0.1:8080".parse().unwrap();
        for (second, (kind, which, ready)) in (2001_u64..).step_by(50).zip(steps) {
            let (name, ip) = (format!("x{which}"), format!("10.1.0.{which}"));
            let spec = json!({"clusterIP": "10.0.0.1", "selector": {"app": "web"},
                "ports": [{"name": if ready { "http" } else { "web" }, "port": 80}]});
            match kind {
                0 => history.apply(at(second), Change::Put(slice(&name, "http", &[(&ip, ready, ready, !ready)]))),
                1 => history.apply(at(second), Change::Put(pod(&name, &ip, ready))),
                2 => history.apply(at(second), Change::Put(service("web", spec))),
                3 => history.apply(at(second), Change::Delete(Kind::EndpointSlice, Key::new("a", &name))),
                4 => history.apply(at(second), Change::Delete(Kind::Pod, Key::new("a", &name))),
                _ => history.prune(at(second + 3000)),
            }
            for when in [second, second + 20, second - 1, second - 60, second, second + 30].map(at) {
                let Address::Vip(vip) = history.address("10.0.0.1:80".parse().unwrap(), Protocol::TCP, when)
                else {
                    continue;
                };
                for node in [Some("n1"), None, Some("n1")] {
                    prop_assert_eq!(history.usable(&vip, node, when), history.find_usable(&vip, node, when));
                }
                let why = history.find_why_no_endpoints(&vip, when);
                let known = history.why_no_endpoints(&vip, when);
                prop_assert_eq!(known.as_deref(), why.as_ref());
                let standing = history.membership(&vip, endpoint, when).standing();
                prop_assert_eq!(history.standing(&vip, endpoint, when), standing);
            }
        }
    }

    #[test]
    fn keys_are_in_the_order_of_their_texts(
        texts in prop::collection::vec(("[ab]{0,10}", "[ab\u{e9}]{0,10}"), 2..6),
    ) {
        let mut keys: Vec<Key> = texts.iter().map(|(namespace, name)| Key::new(namespace, name)).collect();
        // As the objects of a cluster, which share their namespaces.
        let shared: Vec<Key> = keys
            .iter()
            .map(|key| Key { namespace: Arc::clone(&keys[0].namespace), name: Arc::clone(&key.name) })
            .collect();
        keys.extend(shared);
        for (one, other) in keys.iter().flat_map(|one| keys.iter().map(move |other| (one, other))) {
            let texts = |key: &Key| (key.namespace.to_string(), key.name.to_string());
            prop_assert_eq!(one.cmp(other), texts(one).cmp(&texts(other)));
        }
    }

    #[test]
    fn membership_follows_the_versions(
        ready in prop::collection::vec(prop::option::of(any::<bool>()), 1..20),
        when in 0_usize..40,
    ) {
        let mut history = history(vec![web()]);
        for (n, state) in ready.iter().enumerate() {
            let endpoints: Vec<_> = state.iter().map(|ready| ("10.1.0.1", *ready, *ready, false)).collect();
            history.apply(at(2000 + n as u64), Change::Put(slice("s", "http", &endpoints)));
        }
        let expected = ready[when.min(ready.len() - 1)];
        match membership(&history, "10.1.0.1:8080", 2000 + when as u64) {
            Membership::Member { state, since } => {
                prop_assert_eq!(Some(state.conditions.ready), expected);
                prop_assert!(since <= at(2000 + when as u64));
            }
            Membership::Left { .. } => prop_assert_eq!(expected, None),
            Membership::NeverSeen { .. } => {
                prop_assert!(ready[..=when.min(ready.len() - 1)].iter().all(Option::is_none));
            }
            Membership::Unknown => prop_assert!(false, "the history begins with the first version"),
        }
    }
}
