//! Each class, from a kernel's sightings to its verdict.

use std::sync::Arc;

use crate::{
    cluster_support::{NOT_READY, READY, Shop, TERMINATING, endpoint, pod, service, slice},
    flow_support::{CLIENT, CLIENT_NS, EP, Script, VIP, World, addr, at, fold, last_revisions},
    node_support::Rules,
};
use viptrace::{
    class::{Class, Confidence, Domain, Severity},
    cluster::{
        Via,
        model::{Labels, Object, Pod, TrafficPolicy},
    },
    node::{ProxyMode, RuleEffect},
    session::{Counts, Judged, Summary},
    sighting::{Fact, Hook, Status, TcpState},
    verdict::Verdict,
};

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

const OTHER: &str = "10.244.1.8:8080";

fn untranslated() -> Script {
    Script::new(CLIENT, VIP, None)
}

#[test]
fn a_healthy_connection() {
    let verdict = World::new().verdict(to_cart().healthy(10_000), 20_000);
    assert_eq!((verdict.class, verdict.domain), (Class::Ok, Domain::Normal));
    assert_eq!(verdict.confidence, Confidence::High);
    assert_eq!(verdict.severity, Severity::None);
    assert_eq!(verdict.flow.client, addr(CLIENT));
    assert_eq!(verdict.flow.vip, Some(addr(VIP)));
    assert_eq!(verdict.flow.endpoint, Some(addr(EP)));
    assert_eq!(verdict.flow.endpoint_pod.as_deref(), Some("shop/cart-0"));
    assert_eq!(verdict.flow.client_pod.as_deref(), Some("shop/client"));
    assert_eq!(verdict.flow.started, at(10_000));
    assert_eq!(verdict.service.unwrap().to_string(), "shop/cart:http");
    assert!(verdict.unseen.is_empty(), "{:?}", verdict.unseen);
}

#[test]
fn c6_a_stale_endpoint_of_a_dead_pod() {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    let verdict = world.verdict(to_cart().dead_pod(140_000), 160_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C6, Domain::StaleEndpoints));
    // Without a confirmation the first SYN is not observed. Its retransmission after 1 s is.
    assert!(
        verdict.root_cause.contains("left the endpoints of shop/cart:http 2 min 1 s before"),
        "{}",
        verdict.root_cause
    );
    assert_eq!(verdict.severity, Severity::High);
    assert_eq!(verdict.flow.endpoint, Some(addr(EP)));
}

/// A SYN whose entry is not confirmed is translated again: the third one reached a healthy endpoint. The client had given
/// up, or had lost three seconds.
#[test]
fn c6_names_the_attempt_that_failed() {
    let mut world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    world.shop.leaves(EP, 20_000);
    let third = |ms: u64| {
        let mut script = to_cart();
        script.out = to_cart().dead_pod(140_000).out[..5].to_vec();
        script.with_endpoint(OTHER).with_ct(0x9000).confirm(ms)
    };
    let lost = world.verdict(third(143_050).connect_failed(143_105), 160_000);
    assert_eq!((lost.class, lost.severity), (Class::C6, Severity::High));
    assert_eq!(lost.flow.endpoint, Some(addr(EP)));
    let late = world.verdict(third(143_200).established(143_201).closed(143_300), 160_000);
    assert_eq!((late.class, late.severity, late.confidence), (Class::C6, Severity::Medium, Confidence::High));
    assert_eq!(late.flow.endpoint, Some(addr(EP)));
    assert!(late.root_cause.ends_with(&format!("went to {OTHER}, which answered")), "{}", late.root_cause);
    let both = late.evidence.iter().filter(|e| e.content.contains("NAT chose endpoint")).count();
    assert_eq!(both, 2, "{:?}", late.evidence);

    // The last attempt failed for a reason of its own.
    let refused = third(143_200).no_socket(143_201).receive_reset(143_201, TcpState::SynSent);
    let refused = world.verdict(refused.connect_failed(143_202), 160_000);
    assert_eq!((refused.class, refused.flow.endpoint), (Class::C28, Some(addr(OTHER))));
    assert!(refused.cross_reference.iter().any(|class| class == "C6"), "{:?}", refused.cross_reference);

    // The same with an endpoint that the API still lists is no stale endpoint.
    let world = World::of(Shop::with_endpoints(&[EP, OTHER]));
    let late = world.verdict(third(143_200).established(143_201).closed(143_300), 160_000);
    assert_eq!((late.class, late.flow.endpoint), (Class::Ok, Some(addr(OTHER))));
}

#[test]
fn c6_stays_c6_when_another_pod_answers() {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    world.shop.newcomer(EP, 50_000);
    let verdict = world.verdict(to_cart().healthy(140_000), 160_000);
    assert_eq!(verdict.class, Class::C6);
    assert!(verdict.against.iter().any(|e| e.content.contains("other/newcomer")), "{:?}", verdict.against);
    let refused = world.verdict(to_cart().refused(140_000), 160_000);
    assert_eq!(refused.class, Class::C6);
}

#[test]
fn c6_for_an_endpoint_that_no_slice_listed_and_one_that_no_longer_serves() {
    let world = World::of(Shop::with_endpoints(&[OTHER]));
    let verdict = world.verdict(to_cart().refused(140_000), 160_000);
    assert_eq!(verdict.class, Class::C6);
    assert_eq!(verdict.confidence, Confidence::Medium);
    assert!(verdict.unseen.iter().any(|u| u.contains("when the endpoint was removed")));

    let mut world = World::new();
    world.shop.becomes(EP, NOT_READY, 20_000);
    assert_eq!(world.verdict(to_cart().refused(140_000), 160_000).class, Class::C6);
}

/// An API object has its times in whole seconds: the change may have been almost a second later. The grace is five seconds.
#[test]
fn a_change_with_a_time_of_the_api_may_be_younger_than_it_seems() {
    for (left_ms, refused_ms, class) in
        [(20_000, 25_900, Class::C5), (20_000, 26_100, Class::C6), (20_001, 25_900, Class::C6)]
    {
        let mut world = World::new();
        world.shop.leaves(EP, left_ms);
        let verdict = world.verdict(to_cart().refused(refused_ms), 40_000);
        assert_eq!(verdict.class, class, "{left_ms} {refused_ms}: {}", verdict.root_cause);
    }
}

#[test]
fn an_endpoint_that_just_left_is_lag_if_the_connection_failed_and_nothing_otherwise() {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    let verdict = world.verdict(to_cart().refused(22_000), 60_000);
    assert_eq!((verdict.class, verdict.severity), (Class::C5, Severity::Low));
    let verdict = world.verdict(to_cart().healthy(22_000), 60_000);
    assert_eq!(verdict.class, Class::Ok);
    assert!(verdict.against.iter().any(|e| e.content.contains("had left")));
}

#[test]
fn c20_no_endpoints_with_the_reason() {
    let world = World::of(Shop::with_endpoints(&[]));
    for script in
        [untranslated().unreach(10_000, 3).connect_failed(10_001), untranslated().udp().unreach(10_000, 3)]
    {
        let verdict = world.verdict(script, 20_000);
        assert_eq!((verdict.class, verdict.domain), (Class::C20, Domain::NoEndpoints));
        assert_eq!(verdict.confidence, Confidence::High);
        assert!(verdict.root_cause.contains("matches no Pod"), "{}", verdict.root_cause);
        assert_eq!(verdict.flow.endpoint, None);
        // As the check of the same Service.
        let [compare, correct] = &verdict.mitigation.steps[..] else { panic!("{:?}", verdict.mitigation) };
        assert!(compare.text.contains("`kubectl -n shop get pods --show-labels`"), "{compare:?}");
        assert!(correct.text.contains("correct the selector, or the labels"), "{correct:?}");
    }
    let mut world = World::new();
    world.shop.becomes(EP, NOT_READY, 1_000);
    let mut pod = world.shop.pods[&addr(EP).ip()].clone();
    pod.ready = false;
    world.shop.put(1_000, Object::Pod(pod.into()));
    let verdict = world.verdict(untranslated().unreach(40_000, 3).connect_failed(40_001), 50_000);
    assert!(verdict.root_cause.contains("its Pods are not ready: shop/cart-0"), "{}", verdict.root_cause);
    let steps: Vec<&str> = verdict.mitigation.steps.iter().map(|step| &*step.text).collect();
    assert!(steps[0].contains("`kubectl -n shop describe pod cart-0`"), "{steps:?}");
    assert!(!verdict.mitigation.immediate.contains("selector"), "{steps:?}");
}

#[test]
fn c20_without_the_hook_of_the_refusal() {
    let mut world = World::of(Shop::with_endpoints(&[]));
    world.missing = vec![Hook::SendUnreach];
    let script = untranslated().drop_syn(10_000, "NETFILTER_DROP").connect_failed(10_001);
    let verdict = world.verdict(script, 20_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C20, Confidence::Medium));
    assert!(verdict.unseen.iter().any(|u| u.contains("nf_send_unreach")), "{:?}", verdict.unseen);
}

#[test]
fn c4_and_c5_when_the_rules_refuse_although_there_are_endpoints() {
    let script = untranslated().unreach(60_000, 3).connect_failed(60_001);
    assert_eq!(World::new().verdict(script.clone(), 70_000).class, Class::C4);
    let mut young = Shop::with_endpoints(&[]);
    young.ready(EP, 58_000);
    let verdict = World::of(young).verdict(script, 70_000);
    assert_eq!((verdict.class, verdict.severity), (Class::C5, Severity::Low));
}

#[test]
fn c5_one_service_without_its_rule() {
    let mut world = World::new();
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    let verdict = world.verdict(untranslated().silent(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C5, Domain::IptablesSync));
    assert_eq!(verdict.confidence, Confidence::High);
    let early = world.verdict(untranslated().silent(4_000), 70_000);
    assert_eq!((early.class, early.severity), (Class::C5, Severity::Low));
    world.node.rules = Rules::Vip(RuleEffect::Forwards);
    assert_eq!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C5b);
}

#[test]
fn c1_when_kube_proxy_or_all_its_rules_are_gone() {
    let mut world = World::new();
    world.node.rules = Rules::Nothing;
    let verdict = world.verdict(untranslated().silent(60_000), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C1, Domain::PodCrash));
    assert_eq!(verdict.severity, Severity::Critical);
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    world.node.running = Some(false);
    assert_eq!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C1);
}

/// The same symptom with a kube-proxy that runs and had written its rules.
#[test]
fn c5e_when_another_program_removed_the_rules() {
    // 1,700,000,000 is the start of the test's day.
    const WRITTEN: &str = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.70000003e+09\n\
        kubeproxy_sync_proxy_rules_last_timestamp_seconds 1.70000003e+09\n";
    const NEVER_WRITTEN: &str = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.70000003e+09\n\
        kubeproxy_sync_proxy_rules_last_timestamp_seconds 0\n";
    const WRITTEN_LATER: &str = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds 1.70000007e+09\n\
        kubeproxy_sync_proxy_rules_last_timestamp_seconds 1.70000007e+09\n";
    let mut world = World::new();
    world.node.rules = Rules::Nothing;
    world.node.metrics = WRITTEN;
    let verdict = world.verdict(untranslated().silent(60_000), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C5e, Confidence::High));
    assert!(verdict.evidence.iter().any(|e| e.content == "kube-proxy has written its rules"));
    // It is starting: it has not written any yet.
    for metrics in [NEVER_WRITTEN, WRITTEN_LATER] {
        world.node.metrics = metrics;
        assert_eq!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C1, "{metrics}");
    }
    // Without metrics: the trace saw a translation before.
    world.node.metrics = "";
    let (flows, _) = fold(to_cart().healthy(30_000).out, 40_000);
    world.note(&flows[0]);
    assert_eq!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C5e);
    // kube-proxy does not run: nobody removed anything, as far as is known.
    world.node.running = Some(false);
    assert_eq!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C1);
}

/// Observed on a guest without a single rule: no conntrack hook is registered, so there is no entry and no decision.
#[test]
fn c1_on_a_node_that_tracks_nothing() {
    let mut world = World::new();
    world.node.rules = Rules::Nothing;
    let mut script = untranslated().silent(60_000);
    script.out.retain(|sighting| !matches!(sighting.fact, Fact::Conntrack(_)));
    let verdict = world.verdict(script.clone(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C1, Confidence::Medium));
    assert!(verdict.unseen.iter().any(|gap| gap.contains("no conntrack entry")), "{:?}", verdict.unseen);
    // If it is unknown whether all rules are gone, the same flow proves nothing.
    world.node.rules = Rules::Unread;
    assert_eq!(world.verdict(script, 70_000).class, Class::Unknown);
}

#[test]
fn c1_when_no_service_is_translated_any_more() {
    let mut world = World::new();
    world.node.running = None;
    world.node.rules = Rules::Unread;
    let users = service("users", "10.96.0.11");
    let user = addr("10.244.1.9:8080");
    let endpoints = slice(&users, user, vec![endpoint(user.ip(), "users-0", READY)]);
    world.shop.put(0, Object::Service(users.into()));
    world.shop.put(0, Object::EndpointSlice(endpoints.into()));
    assert_eq!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C5);

    let (flows, _) = fold(Script::new(CLIENT, "10.96.0.11:80", None).silent(59_000).out, 70_000);
    world.note(&flows[0]);
    assert_eq!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C1);
}

#[test]
fn an_untranslated_connection_in_another_namespace_is_ignored() {
    let world = World::new();
    // A Pod's own conntrack sees the VIP untranslated; the node translates it.
    let mut script = untranslated().confirm(10_000);
    script.out[0].netns = CLIENT_NS;
    script.endpoint = Some(addr(EP));
    let verdict = world.verdict(script.with_ct(7).healthy(10_001), 20_000);
    assert_eq!(verdict.class, Class::Ok);
    assert_eq!(verdict.flow.endpoint, Some(addr(EP)));
}

#[test]
fn in_ipvs_mode_an_unconfirmed_entry_does_not_show_the_choice() {
    let mut world = World::new();
    world.node.mode = Some(ProxyMode::Ipvs);
    let script = untranslated().drop_syn(60_000, "NEIGH_FAILED").connect_failed(63_000);
    assert_eq!(world.verdict(script, 70_000).class, Class::Unknown);
}

#[test]
fn c5c_a_port_that_the_service_does_not_have() {
    let verdict = World::new().verdict(Script::new(CLIENT, "10.96.0.10:81", None).silent(10_000), 20_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C5c, Domain::ServiceConfig));
    // A trace of this Service shows it.
    assert_eq!(verdict.service.as_ref().unwrap().to_string(), "shop/cart:81");
    assert!(verdict.root_cause.contains("shop/cart has no port 81/TCP"));
}

#[test]
fn c5d_a_service_of_another_proxy() {
    let mut world = World::new();
    world.shop.cart.proxy_name = Some("other".into());
    assert_eq!(world.verdict(untranslated().silent(60_000), 70_000).class, Class::C5d);
}

/// kube-proxy of 1.34 and older leaves out what has the label, and of 1.36 and newer only what has no `ClusterIP`.
#[test]
fn c5d_a_service_with_a_cluster_ip_that_is_labelled_as_headless() {
    for (version, class, confidence) in [
        ("v1.31.4", Class::C5d, Confidence::High),
        ("unknown", Class::C5d, Confidence::Medium),
        ("v1.36.0", Class::C5, Confidence::High),
    ] {
        let mut world = World::new();
        world.shop.cart.labelled_headless = true;
        world.node.version = version;
        world.node.rules = Rules::Vip(RuleEffect::Missing);
        let verdict = world.verdict(untranslated().silent(60_000), 70_000);
        assert_eq!((verdict.class, verdict.confidence), (class, confidence), "{version:?}: {verdict:#?}");
    }
}

#[test]
fn c16_the_table_is_full() {
    let mut world = World::new();
    world.node.conntrack = (131_072, 131_072);
    let script = untranslated()
        .drop_table_full(10_000)
        .retransmit(11_000, TcpState::SynSent)
        .drop_table_full(11_000)
        .retransmit(13_000, TcpState::SynSent)
        .drop_table_full(13_000);
    let verdict = world.verdict(script, 20_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C16, Domain::Conntrack));
    assert_eq!(verdict.severity, Severity::Critical);
    assert_eq!(verdict.flow.vip, Some(addr(VIP)));
    assert!(verdict.evidence.iter().any(|e| e.content.contains("131072 of 131072")));
}

#[test]
fn a_connection_that_the_full_table_only_delayed_is_ok() {
    let script = to_cart().drop_table_full(10_000).retransmit(11_000, TcpState::SynSent).healthy(11_000);
    let verdict = World::new().verdict(script, 20_000);
    assert_eq!(verdict.class, Class::Ok);
    assert!(verdict.against.iter().any(|e| e.content.contains("retransmit its SYN")));
    assert!(verdict.evidence.iter().any(|e| e.content.contains("no conntrack entry")));
}

#[test]
fn c17_an_entry_that_lost_its_race() {
    let script = to_cart().udp().confirm(10_000).clash(10_000).drop_syn(10_000, "NETFILTER_DROP");
    let verdict = World::new().verdict(script, 50_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C17a, Domain::Conntrack));
    // A resolved clash is not a fault.
    let script = to_cart().udp().confirm(10_000).with_ct(9).confirm(10_000).clash(10_000);
    let verdict = World::new().verdict(script.clone(), 50_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::N10, Confidence::Medium));
    let verdict = World::new().verdict(script.delete(45_000, Status::SEEN_REPLY), 50_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::N10, Confidence::High));
    // The other datagram was answered, but this one was lost.
    let script = to_cart().udp().confirm(10_000).clash(10_000).drop_syn(10_000, "NETFILTER_DROP");
    assert_eq!(World::new().verdict(script.delete(45_000, Status::SEEN_REPLY), 50_000).class, Class::C17a);
}

#[test]
fn c21_and_c22_local_policies_without_a_local_endpoint() {
    let mut world = World::new();
    world.shop.cart.internal_traffic_policy = TrafficPolicy::Local;
    world.shop.cart.external_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    let dropped =
        |script: Script| script.drop_syn(60_000, "NETFILTER_DROP").drop_syn(61_000, "NETFILTER_DROP");
    let verdict = world.verdict(dropped(untranslated()), 70_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C22, Domain::ServiceConfig));
    let balanced = "203.0.113.7:80";
    world.shop.reached_by(Via::LoadBalancerIp, balanced);
    assert_eq!(world.verdict(dropped(Script::new(CLIENT, balanced, None)), 70_000).class, Class::C21);
}

/// Before 1.24 the port counts as one without endpoints; since then the same refusal may be a rule that was left.
#[test]
fn c22_a_refusal_by_design_is_no_failed_sync() {
    let mut world = World::new();
    world.shop.cart.internal_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    world.node.rules = Rules::Vip(RuleEffect::Refuses);
    let refused = || untranslated().unreach(60_000, 3).connect_failed(60_001);
    for (version, confidence) in [("v1.23.17", Confidence::High), ("v1.30.5", Confidence::Medium)] {
        world.node.version = version;
        let verdict = world.verdict(refused(), 70_000);
        assert_eq!((verdict.class, verdict.confidence), (Class::C22, confidence), "{version}");
        assert!(verdict.root_cause.ends_with("its packets are refused"), "{}", verdict.root_cause);
    }
    world.shop.ready(OTHER, 30_000);
    assert_eq!(world.verdict(refused(), 70_000).class, Class::C4);
}

/// Linux 5.10 reports the drop without its reason.
#[test]
fn a_drop_without_a_reason_is_the_local_policys_if_it_must_drop() {
    let nameless = || {
        let mut script = untranslated().drop_syn(60_000, "").drop_syn(61_000, "");
        let asked = script.orig();
        for sighting in &mut script.out {
            if let Fact::Packet(packet) = &mut sighting.fact {
                (packet.reason, packet.tuple) = (None, Some(asked));
            }
        }
        script
    };
    let mut world = World::new();
    world.node.rules = Rules::Vip(RuleEffect::Drops);
    world.shop.cart.internal_traffic_policy = TrafficPolicy::Local;
    world.shop.serves_elsewhere();
    let verdict = world.verdict(nameless(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C22, Confidence::Medium));
    assert!(verdict.unseen.iter().any(|what| what.contains("this kernel gives none")), "{verdict:#?}");
    // With a local endpoint the policy drops nothing, and no evidence names a rule.
    world.shop.ready(OTHER, 30_000);
    assert_ne!(world.verdict(nameless(), 70_000).class, Class::C22);
    world.shop.leaves(OTHER, 40_000);
    world.shop.cart.internal_traffic_policy = TrafficPolicy::Cluster;
    assert_ne!(world.verdict(nameless(), 70_000).class, Class::C22);
}

#[test]
fn c28_the_backend_refuses() {
    let verdict = World::new().verdict(to_cart().refused(10_000), 20_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C28, Domain::BackendRefused));
    assert_eq!(verdict.confidence, Confidence::High);
    assert!(verdict.evidence.iter().any(|e| e.content.contains("the endpoint's stack answered the SYN")));
    let udp = World::new().verdict(to_cart().udp().confirm(10_000).no_socket(10_001), 20_000);
    assert_eq!(udp.class, Class::C28);
}

#[test]
fn c28_observed_only_at_the_client() {
    let script = to_cart().confirm(10_000).receive_reset(10_002, TcpState::SynSent).connect_failed(10_002);
    let verdict = World::new().verdict(script, 20_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C28, Confidence::Medium));
    assert!(verdict.unseen.iter().any(|u| u.contains("the sender of the RST")));
}

#[test]
fn c28_after_a_masquerade() {
    let mut script = to_cart();
    script.masquerade = Some(addr("10.244.1.1:52000"));
    assert_eq!(World::new().verdict(script.refused(10_000), 20_000).class, Class::C28);
}

#[test]
fn c29_the_backend_is_silent_or_dead() {
    let verdict = World::new().verdict(to_cart().silent(10_000), 20_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C29, Domain::NetworkPath));
    let impatient = to_cart().confirm(10_000).connect_failed(10_500);
    assert_eq!(World::new().verdict(impatient, 20_000).class, Class::C29);
    let verdict = World::new().verdict(to_cart().dead_pod(10_000), 20_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C29, Confidence::High));
    assert!(verdict.root_cause.contains("NEIGH_FAILED"), "{}", verdict.root_cause);
}

#[test]
fn c30_and_c31_after_nat() {
    let script = to_cart().drop_syn(10_000, "NETFILTER_DROP").retransmit(11_000, TcpState::SynSent);
    assert_eq!(World::new().verdict(script, 20_000).class, Class::C30);
    assert_eq!(
        World::new().verdict(to_cart().unreach(10_000, 13).connect_failed(10_001), 20_000).class,
        Class::C30
    );
    let itself = Script::new("10.244.1.7:40000", VIP, Some(EP)).silent(10_000);
    assert_eq!(World::new().verdict(itself, 20_000).class, Class::C31);
}

#[test]
fn n1_probes_with_every_end() {
    let world = World::new();
    let probe = || Script::new("10.244.1.1:50000", EP, None);
    for script in [
        probe().healthy(10_000),
        probe().refused(10_000),
        probe().established(10_000).send_reset(10_010, false, TcpState::Established, "TCP_ABORT_ON_DATA"),
        probe().confirm_by(10_000, 812, "kubelet").closed(10_010),
        probe().confirm_by(10_000, 17, "ksoftirqd/0").closed(10_010),
        probe().silent(10_000),
    ] {
        let verdict = world.verdict(script, 20_000);
        assert_eq!((verdict.class, verdict.domain), (Class::N1, Domain::Normal));
        assert_eq!(verdict.flow.vip, None);
        assert_eq!(verdict.flow.endpoint, Some(addr(EP)));
        assert_eq!(verdict.service, None);
    }
    let by_hand = last_revisions(fold(probe().confirm_by(10_000, 812, "curl").closed(10_010).out, 20_000).0);
    assert_eq!(world.judge(&by_hand[0]), None);
    let another_pod = last_revisions(fold(Script::new(CLIENT, EP, None).healthy(10_000).out, 20_000).0);
    assert_eq!(world.judge(&another_pod[0]), None);
}

#[test]
fn n4_the_client_aborts() {
    let script = to_cart()
        .established(10_000)
        .send_reset(10_050, false, TcpState::Established, "TCP_ABORT_ON_DATA")
        .state(10_050, false, TcpState::Established, TcpState::Close);
    assert_eq!(World::new().verdict(script, 20_000).class, Class::N4);
    assert_eq!(
        World::new().verdict(to_cart().confirm(10_000).connect_failed(10_200), 20_000).class,
        Class::N4
    );
}

#[test]
fn a_reset_by_the_backend_after_the_answer_is_the_applications() {
    let script = to_cart()
        .established(10_000)
        .send_reset(10_050, true, TcpState::Established, "TCP_ABORT_ON_CLOSE")
        .receive_reset(10_051, TcpState::Established)
        .state(10_051, false, TcpState::Established, TcpState::Close);
    let verdict = World::new().verdict(script, 20_000);
    assert_eq!(verdict.class, Class::Ok);
    assert!(verdict.against.iter().any(|e| e.content.contains("reset by the endpoint")));
}

#[test]
fn n8_an_endpoint_that_serves_while_it_terminates() {
    let mut world = World::new();
    world.shop.becomes(EP, TERMINATING, 5_000);
    assert_eq!(world.verdict(to_cart().healthy(60_000), 70_000).class, Class::N8);
}

#[test]
fn n9_and_c7_a_flow_older_than_its_endpoints_removal() {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    world.shop.pod_is_deleted(EP, 20_000);
    let reset = |ms| {
        to_cart()
            .established(10_000)
            .send_reset(ms, true, TcpState::Established, "TCP_ABORT_ON_CLOSE")
            .receive_reset(ms + 1, TcpState::Established)
            .state(ms + 1, false, TcpState::Established, TcpState::Close)
    };
    let verdict = world.verdict(reset(30_000), 40_000);
    assert_eq!((verdict.class, verdict.domain), (Class::N9, Domain::Normal));
    assert_eq!(world.verdict(reset(100_000), 140_000).class, Class::C7);
    assert_eq!(world.verdict(to_cart().established(10_000).closed(100_000), 140_000).class, Class::N9);
    assert_eq!(world.verdict(reset(15_000), 19_000).class, Class::Ok);
    let abort = to_cart()
        .established(10_000)
        .send_reset(100_000, false, TcpState::Established, "TCP_ABORT_ON_DATA")
        .state(100_000, false, TcpState::Established, TcpState::Close);
    assert_eq!(world.verdict(abort, 140_000).class, Class::N4);

    let silent = to_cart()
        .established(10_000)
        .retransmit(60_000, TcpState::Established)
        .retransmit(60_400, TcpState::Established)
        .retransmit(61_200, TcpState::Established)
        .retransmit(62_800, TcpState::Established)
        .retransmit(66_000, TcpState::Established);
    assert_eq!(world.verdict(silent, 80_000).class, Class::C7);
    // The client gives up after 4 s, within the Pod's grace.
    let impatient = to_cart()
        .established(10_000)
        .retransmit(30_200, TcpState::Established)
        .retransmit(30_600, TcpState::Established)
        .retransmit(31_400, TcpState::Established)
        .retransmit(33_000, TcpState::Established);
    let verdict = world.verdict(impatient, 34_500);
    assert_eq!(verdict.class, Class::N9);
    assert!(verdict.root_cause.contains("broke"), "{}", verdict.root_cause);
}

#[test]
fn flows_with_losses_are_never_healthy() {
    let world = World::new();
    let mut table = viptrace::flow::FlowTable::new(viptrace::flow::Limits::default());
    for sighting in to_cart().healthy(10_000).out {
        table.observe(sighting);
    }
    table.lost(viptrace::flow::Lost::of_unknown_hook(3, at(9_000), at(10_005)));
    table.lost(viptrace::flow::Lost::of_unknown_hook(5, at(30_000), at(31_000)));
    table.finish(at(40_000));
    let flow = table.drain_settled().next().unwrap();
    let verdict = world.judge(&flow).unwrap();
    assert_eq!((verdict.class, verdict.lost_events), (Class::Unknown, 3));
    assert!(verdict.root_cause.contains("3 events were lost"));
    // It is not called healthy, and it did not break.
    assert!(verdict.is_healthy_near_a_loss() && !verdict.is_unexplained(), "{verdict:#?}");
}

#[test]
fn a_lean_trace_judges_a_quiet_flow_ok_with_low_confidence() {
    let mut world = World::new();
    world.missing = vec![Hook::SockEstablished, Hook::SockClosed, Hook::Delete];
    let verdict = world.verdict(to_cart().confirm(10_000), 20_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::Ok, Confidence::Low));
    assert!(verdict.unseen.iter().any(|u| u.contains("socket states")));
}

#[test]
fn a_flooded_copy_is_no_drop() {
    let mut world = World::new();
    world.missing = vec![Hook::SockEstablished, Hook::SockClosed, Hook::Delete];
    let script = to_cart().confirm(10_000).drop_syn(10_000, "OTHERHOST");
    assert_eq!(world.verdict(script, 20_000).class, Class::Ok);
}

#[test]
fn datagrams_with_and_without_an_answer() {
    let script = to_cart().udp().confirm(10_000);
    assert_eq!(
        World::new().verdict(script.clone().delete(100_000, Status::SEEN_REPLY), 101_000).class,
        Class::Ok
    );
    let one_way = World::new().verdict(script.delete(45_000, 0), 50_000);
    assert_eq!((one_way.class, one_way.confidence), (Class::N20, Confidence::Low));
    assert!(one_way.root_cause.contains("there was no answer 35.0 s later"), "{}", one_way.root_cause);
}

#[test]
fn a_flow_that_began_before_the_trace_is_not_explained() {
    let verdict = World::new()
        .verdict(to_cart().receive_reset(10_000, TcpState::SynSent).connect_failed(10_000), 20_000);
    assert_eq!((verdict.class, verdict.domain), (Class::Unknown, Domain::Unknown));
    assert!(verdict.unseen.iter().any(|u| u.contains("NAT's decision")));
}

#[test]
fn hostile_names_reach_no_terminal_and_no_shell() {
    let mut world = World::of(Shop::with_endpoints(&[]));
    world.shop.cart.key.name = "cart; rm -rf \u{1b}[2J\u{202e}".into();
    let ip = addr(EP).ip();
    let mut ringing = Pod { ready: false, trouble: Some("Pod \u{7}bell".into()), ..pod("cart-0", ip) };
    ringing.key.name = "cart-0; reboot".into();
    world.shop.pods.insert(ip, ringing);
    let verdict = world.verdict(untranslated().unreach(10_000, 3), 20_000);
    let texts = format!("{}{}{}", verdict.root_cause, verdict.mitigation.immediate, verdict.service.unwrap());
    assert!(!texts.chars().any(|c| c.is_control() || c == '\u{202e}'), "{texts:?}");
    let action = &verdict.mitigation.immediate;
    assert!(action.contains("describe pod 'cart-0; reboot'"), "{action}");
    world.shop.cart.selector = Labels::default();
    let verdict = world.verdict(untranslated().unreach(10_000, 3), 20_000);
    let action = &verdict.mitigation.immediate;
    assert!(action.contains("service-name='cart; rm -rf"), "{action}");
}

#[test]
fn the_summary_ranks_causes() {
    let mut summary = Summary::default();
    let judged = |verdict: &Verdict, before: Option<&Verdict>| Judged {
        before: before.map(|before| Arc::new(before.key())),
        ..Judged::of(verdict.clone())
    };
    let refused = World::new().verdict(to_cart().refused(10_000), 20_000);
    for _ in 0..5 {
        summary.add(&judged(&refused, None));
    }
    let empty = World::of(Shop::with_endpoints(&[]));
    summary.add(&judged(&empty.verdict(untranslated().unreach(10_000, 3), 20_000), None));
    let ok = World::new().verdict(to_cart().healthy(10_000), 20_000);
    summary.add(&judged(&ok, None));
    assert_eq!(summary.causes()[0].verdict.class, Class::C20);
    assert_eq!(summary.counts(), Counts { faults: 6, ok: 1, ..Counts::default() });
    // A flow judged again is counted once.
    summary.add(&judged(&refused, Some(&ok)));
    assert_eq!(summary.counts().total(), 7);
    assert_eq!(summary.causes()[1].flows, 6);
    assert!(summary.classes().all(|(class, _)| class != Class::Ok));
}
