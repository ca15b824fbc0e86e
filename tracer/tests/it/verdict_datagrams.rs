//! Datagrams whose entry outlives what they went to: later ones fail, and no hook observes the answers after the first.

use std::net::SocketAddr;

use crate::{
    flow_support::{CLIENT, CLIENT_NS, CT, EP, NODE, SERVER_NS, Script, VIP, World, addr, at, in_steps},
    ipvs_support::{by_ipvs, seen},
};
use viptrace::{
    class::{Class, Confidence, Severity},
    cluster::Via,
    flow::{Flow, FlowTable, Limits, Reread},
    net::{Netns, Protocol, Tuple},
    node::ProxyMode,
    sighting::{Conntrack, Fact, Hook, PacketFact, Status},
    verdict::Verdict,
};

const OTHER: &str = "10.244.1.8:8080";
const RESOLVER: &str = "10.96.0.53:53";
const REPLIED: u32 = Status::SEEN_REPLY | Status::ASSURED;

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP)).udp()
}

/// A sender that never gets an answer.
fn one_way() -> Script {
    to_cart().confirm(10_000).reread(15_100, 0).reread(18_100, 0)
}

/// A packet of the script's flow at one place.
fn with_packet(mut script: Script, ms: u64, hook: Hook, netns: Netns, packet: PacketFact) -> Script {
    script.out.push(seen(ms, hook, netns, Fact::Packet(packet)));
    script
}

fn packet(tuple: Tuple, ct: Option<Conntrack>, reason: &str) -> PacketFact {
    PacketFact {
        skb: 0xffff_8881_0000_0000,
        tuple: Some(tuple),
        tcp_flags: 0,
        original_direction: ct.map(|_| true),
        ct,
        reason: Some(reason.into()),
        site: None,
        icmp_code: None,
        nf_hook: None,
        table_full: false,
    }
}

/// The node drops a datagram to the endpoint. Its entry was confirmed before, and is new to conntrack as long as it has no
/// answer.
fn dropped(script: Script, ms: u64, reason: &str) -> Script {
    let packet = packet(script.behind(), Some(script.entry(Status::CONFIRMED)), reason);
    with_packet(script, ms, Hook::KfreeSkb, NODE, packet)
}

/// The stack at the endpoint's address has no socket for a datagram. The packet lost its entry on the way to the Pod.
fn no_socket(script: Script, ms: u64) -> Script {
    let packet = packet(script.behind(), None, "NO_SOCKET");
    with_packet(script, ms, Hook::KfreeSkb, SERVER_NS, packet)
}

/// The client's stack has no socket for an answer from this address.
fn answer_without_socket(script: Script, ms: u64, from: SocketAddr) -> Script {
    let packet = packet(Tuple::new(Protocol::UDP, from, script.client), None, "NO_SOCKET");
    with_packet(script, ms, Hook::KfreeSkb, CLIENT_NS, packet)
}

/// IPVS drops a datagram in `ip_vs_in_hook`, whose real server is gone.
fn dropped_by_ipvs(script: Script, ms: u64, hook: Hook) -> Script {
    let packet = packet(script.orig(), Some(script.entry(Status::CONFIRMED)), "NETFILTER_DROP");
    with_packet(script, ms, hook, NODE, packet)
}

/// The verdicts of a trace that runs along, in the order in which flows are handed out.
fn verdicts(world: &World, script: Script) -> Vec<Verdict> {
    let mut table = FlowTable::new(Limits { reread: Reread::Datagrams, ..Limits::default() });
    let mut flows = in_steps(&mut table, script, 200_000);
    table.finish(at(200_000));
    flows.extend(table.drain_settled());
    flows.iter().filter_map(|flow: &Flow| world.judge(flow)).collect()
}

fn last(world: &World, script: Script) -> Verdict {
    verdicts(world, script).pop().unwrap()
}

fn classes(world: &World, script: Script) -> Vec<Class> {
    verdicts(world, script).iter().map(|verdict| verdict.class).collect()
}

fn says(verdict: &Verdict, what: &str) -> bool {
    verdict.evidence.iter().any(|evidence| evidence.content.contains(what))
}

/// The endpoint leaves at 20 s, and its Pod ends.
fn replaced() -> World {
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    world.shop.leaves(EP, 20_000);
    world.shop.pod_ends(EP, 21_000);
    world
}

/// A statsd client keeps its port while the server's Pod is replaced, and kube-proxy leaves the entry.
#[test]
fn c8_of_a_datagram_that_fails() {
    let verdict = last(&replaced(), dropped(one_way(), 60_000, "NEIGH_FAILED"));
    assert_eq!((verdict.class, verdict.confidence), (Class::C8, Confidence::High), "{verdict:#?}");
    assert!(
        verdict.root_cause.contains("a datagram failed there 40.0 s after the endpoint had left"),
        "{}",
        verdict.root_cause
    );
    // An agent's kernel keeps the decision until a datagram fails.
    let handed_over = to_cart().confirm_handed_over(10_000, 60_000);
    let verdict = last(&replaced(), dropped(handed_over, 60_000, "NEIGH_FAILED"));
    assert_eq!((verdict.class, verdict.confidence), (Class::C8, Confidence::High), "{verdict:#?}");
    // Another Pod has the address, and refuses.
    let mut reused = replaced();
    reused.shop.newcomer(EP, 50_000);
    assert_eq!(last(&reused, no_socket(one_way(), 60_000)).class, Class::C8);

    // A packet that fails for want of a next hop was sent up to three seconds before: within the grace kube-proxy is late.
    assert_eq!(last(&replaced(), dropped(one_way(), 27_000, "NEIGH_FAILED")).class, Class::C5);
    // The rules chose the endpoint after it had left.
    let later = to_cart().confirm(40_000).reread(45_100, 0).reread(48_100, 0);
    assert_eq!(last(&replaced(), dropped(later, 60_000, "NEIGH_FAILED")).class, Class::C6);
    // It is listed still.
    assert_eq!(last(&World::new(), dropped(one_way(), 60_000, "NEIGH_FAILED")).class, Class::C29);
}

/// IPVS sends on only to a real server that it has: the rules are stale, and waiting does not help.
#[test]
fn c6_of_datagrams_that_ipvs_still_sends() {
    let mut world = replaced();
    world.node.mode = Some(ProxyMode::Ipvs);
    let failed = |script, ms| last(&world, by_ipvs(dropped(script, ms, "NEIGH_FAILED")));
    let verdict = failed(one_way(), 60_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C6, Confidence::Medium), "{verdict:#?}");
    assert!(verdict.root_cause.contains("IPVS still sends to 10.244.1.7:8080"), "{}", verdict.root_cause);
    assert!(verdict.mitigation.immediate.contains("ipvsadm -Ln"), "{}", verdict.mitigation.immediate);
    assert_eq!(failed(one_way(), 27_000).class, Class::C5);
}

/// Chosen while kube-proxy was late, and kept for long after.
#[test]
fn an_entry_of_the_moment_of_the_removal_is_as_stale() {
    let chosen = || to_cart().confirm(22_000).reread(27_100, 0).reread(30_100, 0);
    let verdict = last(&replaced(), dropped(chosen(), 60_000, "NEIGH_FAILED"));
    assert_eq!(verdict.class, Class::C8, "{verdict:#?}");
}

/// Without its beginning the entry may be younger than the removal.
#[test]
fn c8_of_a_datagram_that_fails_in_a_trace_that_began_later() {
    let verdict = last(&replaced(), to_cart().icmp_error(60_000, "192.168.1.3:0", 1));
    assert_eq!((verdict.class, verdict.confidence), (Class::C8, Confidence::Medium), "{verdict:#?}");
    assert!(verdict.unseen.iter().any(|it| it.contains("when the entry was created")), "{verdict:#?}");
    assert!(verdict.cross_reference.contains(&"C6".into()), "{verdict:#?}");
}

/// A resolver that keeps one socket to its upstream, whose container restarts.
#[test]
fn a_datagram_that_fails_after_an_answer() {
    let world = World::new();
    let answered = || to_cart().confirm(10_000).reread(15_100, REPLIED);
    assert_eq!(classes(&world, no_socket(answered(), 40_000)), [Class::Ok, Class::C28]);
    let refused = answered().icmp_error(40_000, "10.244.1.7:0", 3);
    assert_eq!(classes(&world, refused), [Class::Ok, Class::C28]);
    assert_eq!(classes(&world, dropped(answered(), 40_000, "NEIGH_FAILED")), [Class::Ok, Class::C29]);
    // Its Pod was replaced in the meantime, and another one has the address.
    let mut inherited = replaced();
    inherited.shop.newcomer(EP, 50_000);
    assert_eq!(classes(&inherited, no_socket(answered(), 60_000)), [Class::Ok, Class::C8]);

    // A policy came, or the rule that accepted it went.
    let policy = last(&world, dropped(answered(), 40_000, "NETFILTER_DROP"));
    assert_eq!(policy.class, Class::C30, "{policy:#?}");
    assert!(policy.root_cause.contains("after NAT; it answered earlier ones"), "{}", policy.root_cause);
    let limited = dropped(to_cart().confirm(10_000), 10_050, "NETFILTER_DROP").reread(15_100, REPLIED);
    assert_eq!(classes(&world, limited).pop(), Some(Class::Ok));
    // Its entry leads to IPVS, which drops for reasons of its own; a queue overflows in one moment.
    let of_ipvs = by_ipvs(dropped_by_ipvs(answered(), 40_000, Hook::KfreeSkb));
    assert!(!classes(&world, of_ipvs).contains(&Class::C30));
    assert_eq!(classes(&world, dropped(answered(), 40_000, "QDISC_DROP")), [Class::Ok]);

    // The answer came after the refusal.
    let started = no_socket(to_cart().confirm(10_000), 10_001).delete(12_000, REPLIED);
    assert_eq!(classes(&world, started).pop(), Some(Class::Ok));
    // A larger datagram than the path carries shows nothing about the next one, with which the client heeds the error.
    let probe = dropped(answered(), 40_000, "PKT_TOO_BIG").icmp_error(40_000, "10.244.1.1:0", 4);
    assert_eq!(classes(&world, probe), [Class::Ok]);
}

/// HTTP/3: once it is connected, a client sends larger and larger datagrams to find the path's MTU (RFC 8899).
#[test]
fn a_dropped_datagram_among_answered_ones() {
    for (status, class) in [(REPLIED, Class::Ok), (0, Class::C33)] {
        let mut table = FlowTable::new(Limits { reread: Reread::Datagrams, ..Limits::default() });
        let probed = dropped(to_cart().confirm(10_000), 10_050, "PKT_TOO_BIG");
        let mut flows = in_steps(&mut table, probed, 14_500);
        assert_eq!((table.take_rereads(), flows.len()), (vec![CT], 0));
        flows.extend(in_steps(&mut table, to_cart().reread(14_600, status), 18_500));
        flows.extend(in_steps(&mut table, to_cart().reread(18_600, status), 30_000));
        let classes: Vec<_> = flows.iter().map(|flow| World::new().judge(flow).unwrap().class).collect();
        assert_eq!(classes, [class]);
    }
    // A rule that drops one drops the next.
    let mut table = FlowTable::new(Limits { reread: Reread::Datagrams, ..Limits::default() });
    let flows = in_steps(&mut table, dropped(to_cart().confirm(10_000), 10_050, "NETFILTER_DROP"), 14_500);
    assert_eq!(World::new().judge(&flows[0]).unwrap().class, Class::C30);
}

/// kube-proxy deletes the real server of UDP at once, and the sender keeps its port.
#[test]
fn c13_of_datagrams() {
    let mut world = replaced();
    world.node.mode = Some(ProxyMode::Ipvs);
    let expired = |script| by_ipvs(dropped_by_ipvs(script, 30_000, Hook::IpVsConnExpire));
    for script in [one_way(), to_cart().confirm_handed_over(10_000, 30_000)] {
        let verdict = last(&world, expired(script));
        assert_eq!((verdict.class, verdict.severity), (Class::C13, Severity::Low), "{verdict:#?}");
        assert_eq!(verdict.confidence, Confidence::High);
        assert!(verdict.root_cause.contains("chooses again for the next"), "{}", verdict.root_cause);
    }
    // expire_nodest_conn=0: IPVS drops each of them.
    let silent = by_ipvs(dropped_by_ipvs(one_way(), 30_000, Hook::KfreeSkb));
    let verdict = last(&world, silent.clone());
    assert_eq!((verdict.class, verdict.severity), (Class::C13, Severity::Medium), "{verdict:#?}");
    assert!(verdict.root_cause.contains("IPVS drops its packets silently"), "{}", verdict.root_cause);
    // The endpoint is listed: a rule drops them.
    let mut listed = World::new();
    listed.node.mode = Some(ProxyMode::Ipvs);
    assert_eq!(last(&listed, silent).class, Class::C30);
}

/// "reply from unexpected source": client and resolver are on one bridge, and `br_netfilter` is not loaded.
#[test]
fn c31_of_an_answer_to_a_datagram() {
    let mut world = World::new();
    world.shop.reached_by(Via::ClusterIp, RESOLVER);
    let asked = || Script::new(CLIENT, RESOLVER, Some(EP)).udp().confirm(10_000);
    let unanswered = |script: Script| script.reread(15_100, 0).reread(18_100, 0);
    let verdict = last(&world, unanswered(answer_without_socket(asked(), 10_001, addr(EP))));
    assert_eq!((verdict.class, verdict.confidence), (Class::C31, Confidence::High), "{verdict:#?}");
    assert!(verdict.root_cause.contains("answered the client directly"), "{}", verdict.root_cause);

    // The client had closed its socket: the answer came from the Service's address.
    let closed = answer_without_socket(asked(), 13_000, addr(RESOLVER)).reread(15_100, Status::SEEN_REPLY);
    assert_eq!(last(&world, closed).class, Class::Ok);
    // It came after the end of its entry, which would have translated it.
    let late = answer_without_socket(unanswered(asked()).delete(40_000, 0), 41_000, addr(EP));
    assert_eq!(last(&world, late).class, Class::C29);
}

#[test]
fn an_entry_that_is_older_than_the_trace_was_confirmed() {
    let verdict = last(&World::new(), to_cart().icmp_error(60_000, "10.244.1.7:0", 3));
    assert!(says(&verdict, "its confirmation was not observed"), "{verdict:#?}");
    assert!(!says(&verdict, "never confirmed"), "{verdict:#?}");
}
