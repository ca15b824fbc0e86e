//! Resets by each sender, datagrams without an answer, and conntrack's part in both.

use crate::{
    flow_support::{CLIENT, EP, Script, VIP, World, addr, at, fold, last_revisions},
    node_support::Rules,
};
use viptrace::{
    class::{Class, Confidence, Domain, Severity},
    cluster::Via,
    flow::{FlowTable, Limits, Outcome, Reread, ResetBy},
    node::RuleEffect,
    sighting::{Fact, Hook, Sighting, Status, TcpState},
    verdict::Verdict,
};

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

fn says(verdict: &Verdict, what: &str) -> bool {
    verdict.evidence.iter().any(|evidence| evidence.content.contains(what))
}

fn contradicts(verdict: &Verdict, what: &str) -> bool {
    verdict.against.iter().any(|evidence| evidence.content.contains(what))
}

const OUT_OF_WINDOW: &str = "SEQ is over upper bound %u (over the window of the receiver)";

/// An answer out of window, as 6.12 reports it: invalid on the node, a RST without a socket in the client's namespace,
/// then the endpoint's RST to the client's next segments.
fn out_of_window() -> Script {
    to_cart()
        .established(10_000)
        .invalid_answer(12_000, OUT_OF_WINDOW)
        .client_has_no_socket(12_001, addr(EP))
        .endpoint_has_no_connection(13_000)
        .receive_reset(13_001, TcpState::Established)
        .state(13_001, false, TcpState::Established, TcpState::Close)
}

#[test]
fn c18_an_untranslated_answer_makes_the_client_reset_the_endpoint() {
    let verdict = World::new().verdict(out_of_window(), 30_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C18, Domain::Conntrack));
    assert_eq!(verdict.confidence, Confidence::High);
    assert!(says(&verdict, OUT_OF_WINDOW), "{verdict:#?}");
    assert!(says(&verdict, "that came from the endpoint's own address"), "{verdict:#?}");
}

#[test]
fn c18_without_the_hook_on_invalid_packets_is_less_certain() {
    let script = to_cart()
        .established(10_000)
        .client_has_no_socket(12_001, addr(EP))
        .endpoint_has_no_connection(13_000)
        .receive_reset(13_001, TcpState::Established);
    let verdict = World::new().verdict(script, 30_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C18, Confidence::Medium));
    assert!(contradicts(&verdict, "C31"));
}

#[test]
fn a_late_answer_to_a_closed_client_is_no_c18() {
    // Translated, and to a port whose socket is gone: background noise (N16).
    let script = to_cart().healthy(10_000).client_has_no_socket(10_500, addr(VIP));
    assert_eq!(World::new().verdict(script, 30_000).class, Class::Ok);
    // Even if untranslated: the connection no longer existed.
    let script = to_cart().healthy(10_000).client_has_no_socket(10_500, addr(EP));
    assert_eq!(World::new().verdict(script, 30_000).class, Class::Ok);
}

/// A trace that begins while the client repeats its SYN.
#[test]
fn an_unanswered_client_resets_no_connection_of_its_own() {
    let mut script = to_cart().icmp_error(11_000, "10.244.1.1:0", 1);
    // The node tells the client the way on their common bridge.
    let [Sighting { fact: Fact::Packet(redirect), .. }] = script.out.as_mut_slice() else { panic!() };
    redirect.reason = Some("REDIRECT".into());
    script = script
        .client_has_no_socket(11_001, addr(EP))
        .retransmit(13_000, TcpState::SynSent)
        .client_has_no_socket(13_001, addr(EP))
        .connect_failed(14_000);
    assert_eq!(World::new().verdict(script, 30_000).class, Class::C31);
}

#[test]
fn a_connection_whose_reset_has_no_sender_is_less_certain() {
    let closed = |script: Script| script.state(12_001, false, TcpState::Established, TcpState::Close);
    let reset = closed(to_cart().established(10_000).receive_reset(12_000, TcpState::Established));
    let mut world = World::new();
    let verdict = world.verdict(reset.clone(), 30_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::Ok, Confidence::High));
    world.missing = vec![Hook::TcpV4SendReset];
    let verdict = world.verdict(reset, 30_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::Ok, Confidence::Medium));
    assert!(verdict.unseen.iter().any(|what| what.contains("who sent the RST")), "{:?}", verdict.unseen);
    // The RST itself may be what was not observed: no FIN ends a connection at once.
    let verdict = World::new().verdict(closed(to_cart().established(10_000)), 30_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::Ok, Confidence::Medium));
    assert!(verdict.unseen.iter().any(|what| what.contains("closed at once")), "{:?}", verdict.unseen);
}

#[test]
fn c31_the_answer_that_comes_directly() {
    let script = to_cart()
        .confirm(10_000)
        .client_has_no_socket(10_001, addr(EP))
        .retransmit(11_000, TcpState::SynSent)
        .client_has_no_socket(11_001, addr(EP))
        .retransmit(12_000, TcpState::SynSent)
        .connect_failed(14_000);
    let verdict = World::new().verdict(script, 30_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C31, Domain::Hairpin));
}

#[test]
fn c18b_invalid_packets_are_dropped_and_the_connection_falls_silent() {
    let script = to_cart()
        .established(10_000)
        .invalid_answer(12_000, OUT_OF_WINDOW)
        .drop_invalid(12_000)
        .retransmit(12_200, TcpState::Established)
        .retransmit(12_600, TcpState::Established)
        .retransmit(13_400, TcpState::Established)
        .retransmit(15_000, TcpState::Established);
    let verdict = World::new().verdict(script.clone(), 40_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C18b, Domain::Conntrack));
    // Dropped, and nothing broke: the drop prevents C18.
    let script = to_cart().established(10_000).invalid_answer(12_000, OUT_OF_WINDOW).drop_invalid(12_000);
    let verdict = World::new().verdict(script.closed(13_000), 40_000);
    assert_eq!(verdict.class, Class::Ok);
    assert!(says(&verdict, "conntrack called an answer of the endpoint invalid"));
}

const OTHER: &str = "10.244.1.8:8080";

/// A segment of an open connection makes a new entry, and its new endpoint resets it.
fn picked_up_by_other(ms: u64) -> Script {
    Script::new(CLIENT, VIP, Some(OTHER))
        .with_ct(77)
        .confirm_midstream(ms)
        .endpoint_has_no_connection(ms + 1)
        .receive_reset(ms + 2, TcpState::Established)
        .state(ms + 2, false, TcpState::Established, TcpState::Close)
}

#[test]
fn c19_a_mid_stream_pickup() {
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    let before = to_cart().established(10_000).delete_by_hand(12_000);
    let after = picked_up_by_other(13_000);
    let both: Vec<_> = before.out.iter().chain(&after.out).cloned().collect();
    let flows = last_revisions(fold(both, 30_000).0);
    let [flow] = flows.as_slice() else { panic!("one connection: {flows:#?}") };
    let verdict = world.judge(flow).unwrap();
    assert_eq!((verdict.class, verdict.domain), (Class::C19, Domain::Conntrack));
    assert_eq!((verdict.confidence, verdict.flow.endpoint), (Confidence::High, Some(addr(EP))));
    assert!(verdict.root_cause.contains(&format!("NAT chose {OTHER} mid-stream")), "{}", verdict.root_cause);
    let told = format!("led to {EP}; it was deleted through netlink (port 4242) 1.0 s before");
    assert!(says(&verdict, &told), "{verdict:#?}");

    // The client is on another node: its socket is not observed, and the pickup is a separate flow.
    world.shop.pods.get_mut(&addr(CLIENT).ip()).unwrap().node = Some("worker-2".into());
    let remote =
        |script: Script| script.out.into_iter().filter(|it| it.netns != crate::flow_support::CLIENT_NS);
    let flows = last_revisions(fold(remote(before).chain(remote(after)), 30_000).0);
    let verdicts: Vec<Verdict> = flows.iter().map(|flow| world.judge(flow).unwrap()).collect();
    let [first, second] = verdicts.as_slice() else { panic!("two flows: {verdicts:#?}") };
    assert_eq!(first.class, Class::Ok);
    assert!(says(first, "by netlink port 4242"));
    assert_eq!((second.class, second.flow.endpoint), (Class::C19, Some(addr(OTHER))));
    assert!(says(second, &format!("led to {EP}; it was deleted through netlink")), "{second:#?}");
}

#[test]
fn a_pick_up_by_the_same_endpoint_breaks_nothing() {
    let script = to_cart().confirm_midstream(13_000).closed(14_000);
    let verdict = World::new().verdict(script, 30_000);
    assert_eq!(verdict.class, Class::Ok);
    assert!(says(&verdict, "mid-stream"));
}

#[test]
fn a_reset_between_two_other_hosts_names_its_sender() {
    let script = to_cart().confirm(10_000).transit_reset(11_000, false, Status::SEEN_REPLY);
    let flows = last_revisions(fold(script.clone().out, 30_000).0);
    assert_eq!(flows[0].outcome(), Outcome::Reset(ResetBy::Endpoint));
    let verdict = World::new().verdict(script, 30_000);
    assert!(says(&verdict, "a RST from the endpoint's side passed once"), "{verdict:#?}");
    assert!(contradicts(&verdict, "reset by the endpoint"));

    let by_client = to_cart().confirm(10_000).transit_reset(11_000, true, Status::SEEN_REPLY);
    assert_eq!(World::new().verdict(by_client, 30_000).class, Class::N4);
    let refused = to_cart().confirm(10_000).transit_reset(10_001, false, 0).kill(10_001);
    let verdict = World::new().verdict(refused, 30_000);
    assert_eq!(verdict.class, Class::C28);
    assert!(verdict.unseen.iter().any(|unseen| unseen.contains("whether the RST reached the client")));
}

#[test]
fn n5_an_idle_connection_is_given_up() {
    let script = to_cart()
        .established(10_000)
        .send_reset(900_000, false, TcpState::Established, "TCP_KEEPALIVE_TIMEOUT")
        .state(900_000, false, TcpState::Established, TcpState::Close);
    let verdict = World::new().verdict(script, 910_000);
    assert_eq!((verdict.class, verdict.domain), (Class::N5, Domain::Normal));
}

#[test]
fn an_icmp_error_from_another_node_refuses_a_datagram() {
    let script = to_cart().udp().confirm(10_000).icmp_error(10_010, "10.244.1.7:0", 3);
    let verdict = World::new().verdict(script, 50_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C28, Confidence::High));
    assert!(says(&verdict, "ICMP port unreachable from 10.244.1.7"), "{verdict:#?}");
}

#[test]
fn an_icmp_error_from_another_host_explains_a_failed_connect() {
    let script =
        |code| to_cart().confirm(10_000).icmp_error(10_010, "192.168.1.3:0", code).connect_failed(10_011);
    let verdict = World::new().verdict(script(1), 50_000);
    assert_eq!(verdict.class, Class::C29);
    assert!(
        verdict.root_cause.contains("node worker-2 (192.168.1.3) reported it by ICMP"),
        "{}",
        verdict.root_cause
    );
    // The command is one to type, in the client's Pod.
    let connect = "kubectl -n shop exec client -- nc -zvw 3 10.244.1.7 8080";
    assert!(verdict.mitigation.immediate.contains(connect), "{}", verdict.mitigation.immediate);
    let datagram = to_cart().udp().confirm(10_000).icmp_error(10_010, "10.244.1.100:0", 1);
    let verdict = World::new().verdict(datagram, 50_000);
    assert!(verdict.root_cause.contains("Pod shop/client (10.244.1.100) reported"), "{}", verdict.root_cause);
    assert!(verdict.mitigation.immediate.contains("nc -uvw 3 10.244.1.7 8080"), "{verdict:#?}");
    let verdict = World::new().verdict(script(13), 50_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C30, Domain::NetworkPolicy));
}

/// `traceroute -U -p PORT`, or a routing loop: the sender's TTL is not known.
#[test]
fn a_datagram_whose_ttl_ran_out_is_no_certain_fault() {
    let expired = |script: Script| {
        let mut script = script.icmp_error(10_010, "192.168.1.3:0", 0);
        if let Some(Fact::Packet(packet)) = script.out.last_mut().map(|sighting| &mut sighting.fact) {
            packet.reason = Some("TIME_EXCEEDED".into());
        }
        script
    };
    let verdict = World::new().verdict(expired(to_cart().udp().confirm(10_000)), 50_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C29, Confidence::Low), "{verdict:#?}");
    assert_eq!(verdict.severity, Severity::Low);
    assert!(verdict.root_cause.contains("TTL ran out at node worker-2"), "{}", verdict.root_cause);
    assert!(verdict.unseen.iter().any(|it| it.starts_with("the TTL that the client set")), "{verdict:#?}");
    // This node is the first hop. Kernels before 6.1 give no reason.
    for reason in ["IP_INHDR", ""] {
        let first = World::new().verdict(expired(to_cart().udp().drop_syn(10_000, reason)), 50_000);
        assert_eq!((first.class, first.confidence), (Class::C29, Confidence::Low), "{first:#?}");
    }
    let syn = World::new().verdict(expired(to_cart().confirm(10_000)).connect_failed(10_011), 50_000);
    assert_eq!((syn.class, syn.confidence), (Class::C29, Confidence::Medium), "{syn:#?}");
}

/// `-j REJECT` answers with port unreachable by default: kube-router's policies (k3s, k0s) on the endpoint's node.
#[test]
fn port_unreachable_from_another_host_is_a_rules_refusal() {
    let there = "192.168.1.3:0";
    let refused = || to_cart().confirm(10_000).icmp_error(10_010, there, 3);
    let verdict = World::new().verdict(refused().connect_failed(10_011), 50_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::High), "{verdict:#?}");
    assert!(
        verdict.root_cause.contains("a rule of node worker-2 (192.168.1.3) refuses"),
        "{}",
        verdict.root_cause
    );
    // A busy socket keeps the error and repeats its SYN; without socket events nothing else is seen.
    let repeated = refused().retransmit(11_000, TcpState::SynSent).connect_failed(11_001);
    assert_eq!(World::new().verdict(repeated, 50_000).class, Class::C30);
    assert_eq!(World::new().verdict(refused(), 50_000).class, Class::C30);
    // A datagram's: the endpoint's own host answers from the endpoint's address.
    let datagram = |from| to_cart().udp().confirm(10_000).icmp_error(10_010, from, 3);
    let verdict = World::new().verdict(datagram(there), 50_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::Medium), "{verdict:#?}");
    assert_eq!(World::new().verdict(datagram("10.244.1.7:0"), 50_000).class, Class::C28);
    // Another node's kube-proxy refuses its node port.
    let mut world = World::new();
    world.shop.reached_by(Via::NodePort, "192.168.1.3:30080");
    let there = Script::new(CLIENT, "192.168.1.3:30080", None).confirm(10_000).icmp_error(10_010, there, 3);
    let verdict = world.verdict(there.connect_failed(10_011), 50_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C30, Confidence::Medium), "{verdict:#?}");
    assert!(verdict.cross_reference.contains(&"C4".into()), "{verdict:#?}");
}

/// A database restarts: its Pod's entries are cleaned up, and the client's pool writes into the old connection.
#[test]
fn a_new_entry_after_the_endpoint_left_is_no_lost_entry() {
    let broken = |left: u64| {
        let mut world = World::new();
        world.shop.ready(OTHER, 0);
        world.shop.leaves(EP, left);
        let before = to_cart().established(10_000).delete_by_hand(62_000);
        let after = picked_up_by_other(63_000);
        let both: Vec<_> = before.out.iter().chain(&after.out).cloned().collect();
        let flows = last_revisions(fold(both, 90_000).0);
        world.judge(&flows[0]).unwrap()
    };
    let draining = broken(60_000);
    assert_eq!((draining.class, draining.severity), (Class::N9, Severity::Low), "{draining:#?}");
    let is_close_unseen =
        |verdict: &Verdict| verdict.unseen.iter().any(|gap| gap.contains("had closed the connection before"));
    let late = broken(20_000);
    assert_eq!(late.class, Class::C7);
    assert!(!is_close_unseen(&late), "{late:#?}");
    // The client is on another node, so that the close of the endpoint's sockets may have reached it.
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    world.shop.leaves(EP, 20_000);
    world.shop.pods.get_mut(&addr(CLIENT).ip()).unwrap().node = Some("worker-2".into());
    let both = [to_cart().established(10_000).delete_by_hand(62_000), picked_up_by_other(63_000)];
    let seen = both.into_iter().flat_map(|script| script.out);
    let remote = seen.filter(|it| it.netns != crate::flow_support::CLIENT_NS);
    let flows = last_revisions(fold(remote, 90_000).0);
    let late = world.judge(flows.last().unwrap()).unwrap();
    assert_eq!((late.class, late.confidence), (Class::C7, Confidence::Medium), "{late:#?}");
    assert!(is_close_unseen(&late) && late.cross_reference.contains(&"N9".into()), "{late:#?}");
    // The entry ended and no other one began.
    let mut world = World::new();
    world.shop.leaves(EP, 19_000);
    let idle = to_cart().established(10_000).delete_by_hand(20_000);
    let silent = [22_000, 22_400, 23_200, 24_800, 28_000]
        .into_iter()
        .fold(idle, |script, ms| script.retransmit(ms, TcpState::Established));
    assert_eq!(world.verdict(silent, 45_000).class, Class::N9);
}

#[test]
fn a_path_mtu_that_was_heeded_explains_no_later_silence() {
    let repeats = |script: Script, ms: u64| {
        [0, 400, 1_200, 2_800, 6_000]
            .iter()
            .fold(script, |script, wait| script.retransmit(ms + wait, TcpState::Established))
    };
    let told = || to_cart().established(10_000).icmp_error(10_100, "10.244.1.1:0", 4);
    assert_eq!(World::new().verdict(repeats(told(), 10_300), 40_000).class, Class::C33);
    let later = World::new().verdict(repeats(told(), 3_600_000), 3_640_000);
    assert_eq!(later.class, Class::C29, "{later:#?}");
}

#[test]
fn a_connection_that_another_program_answered_has_no_wrong_port() {
    let answered = || Script::new(CLIENT, "10.96.0.10:6443", None).established(10_000);
    let reset = answered().send_reset(12_000, true, TcpState::Established, "TCP_ABORT_ON_CLOSE").state(
        12_000,
        true,
        TcpState::Established,
        TcpState::Close,
    );
    let flows = last_revisions(fold(reset.out, 30_000).0);
    assert!(World::new().judge(&flows[0]).is_none_or(|verdict| verdict.class != Class::C5c));
    let refused =
        Script::new(CLIENT, "10.96.0.10:6443", None).confirm(10_000).retransmit(11_000, TcpState::SynSent);
    let flows = last_revisions(fold(refused.connect_failed(12_000).out, 30_000).0);
    assert_eq!(World::new().judge(&flows[0]).unwrap().class, Class::C5c);
}

/// A table that rereads the entries of quiet datagram flows.
fn rereading() -> FlowTable {
    FlowTable::new(Limits { reread: Reread::Datagrams, ..Limits::default() })
}

fn observe(table: &mut FlowTable, sightings: impl IntoIterator<Item = Sighting>) {
    for sighting in sightings {
        table.observe(sighting);
    }
}

#[test]
fn the_entry_of_a_quiet_datagram_flow_is_read_again_before_it_is_handed_out() {
    let mut table = rereading();
    observe(&mut table, to_cart().udp().confirm(10_000).out);
    table.advance(at(14_000));
    assert!(table.take_rereads().is_empty());
    table.advance(at(15_100));
    assert_eq!(table.take_rereads(), [crate::flow_support::CT]);
    assert_eq!(table.drain_settled().count(), 0);
    observe(&mut table, to_cart().udp().reread(15_200, Status::SEEN_REPLY).out);
    table.advance(at(15_300));
    let flows: Vec<_> = table.drain_settled().collect();
    assert_eq!(flows[0].outcome(), Outcome::Established);
    assert_eq!(World::new().judge(&flows[0]).unwrap().class, Class::Ok);
}

/// A resolver whose upstream is silent answers after six seconds: it is not silent.
#[test]
fn an_entry_without_a_reply_is_read_once_more_for_a_last_reading() {
    for (later, class) in [(Status::SEEN_REPLY, Class::Ok), (0, Class::C29)] {
        let mut world = World::new();
        let resolver = "10.96.0.53:53";
        world.shop.reached_by(Via::ClusterIp, resolver);
        let asked = || Script::new(CLIENT, resolver, Some(EP)).udp();
        let mut table = rereading();
        observe(&mut table, asked().confirm(10_000).out);
        table.advance(at(15_100));
        assert_eq!(table.take_rereads(), [crate::flow_support::CT]);
        observe(&mut table, asked().reread(15_200, 0).out);
        table.advance(at(17_900));
        assert!(table.take_rereads().is_empty());
        assert_eq!(table.drain_settled().count(), 0);
        table.advance(at(18_100));
        assert_eq!(table.take_rereads(), [crate::flow_support::CT]);
        observe(&mut table, asked().reread(18_200, later).out);
        table.advance(at(18_300));
        table.advance(at(30_000));
        assert!(table.take_rereads().is_empty(), "not a third time");
        let flows: Vec<_> = table.drain_settled().collect();
        assert_eq!((flows.len(), world.judge(&flows[0]).unwrap().class), (1, class));
    }
}

/// A recording from before the last reading has none: its flows do not wait for it.
#[test]
fn the_limits_of_an_old_recording_have_one_reading() {
    let old: Limits = serde_json::from_str("{}").unwrap();
    assert_eq!(old, Limits { last_reading: std::time::Duration::ZERO, ..Limits::default() });
}

#[test]
fn a_late_reader_still_asks_before_it_hands_out() {
    let mut table = rereading();
    let later = Script::new("10.244.1.100:41000", VIP, Some(EP)).udp().with_ct(78).confirm(30_000);
    observe(&mut table, to_cart().udp().confirm(10_000).out.into_iter().chain(later.out));
    table.advance(at(30_100));
    assert_eq!(table.take_rereads(), [crate::flow_support::CT]);
    assert_eq!(table.drain_settled().count(), 0);
    observe(&mut table, to_cart().udp().reread(30_200, Status::SEEN_REPLY).out);
    table.advance(at(33_000));
    let flows: Vec<_> = table.drain_settled().collect();
    assert_eq!(World::new().judge(&flows[0]).unwrap().class, Class::Ok);
}

#[test]
fn a_reread_that_yields_nothing_does_not_hold_the_flow_back() {
    let mut table = rereading();
    observe(&mut table, to_cart().udp().confirm(10_000).out);
    table.advance(at(15_100));
    assert_eq!(table.take_rereads().len(), 1);
    // Another entry lies at the address by now.
    observe(
        &mut table,
        Script::new("10.244.1.100:41000", VIP, Some(EP)).udp().reread(15_200, Status::SEEN_REPLY).out,
    );
    table.advance(at(18_000));
    let flows: Vec<_> = table.drain_settled().collect();
    let verdict = World::new().judge(&flows[0]).unwrap();
    assert_eq!(verdict.class, Class::N20);
    assert!(verdict.unseen.iter().any(|unseen| unseen.contains("whether there was an answer")));
}

#[test]
fn the_entries_of_all_open_flows_are_read_again_in_the_end() {
    let mut table = rereading();
    let two = Script::new("10.244.1.100:41000", VIP, Some(EP)).udp().with_ct(78).confirm(11_000);
    observe(&mut table, to_cart().udp().confirm(10_000).out.into_iter().chain(two.out));
    table.advance(at(12_000));
    assert_eq!(table.last_rereads(), [78, crate::flow_support::CT]);
}

#[test]
fn silence_is_a_fault_where_an_answer_is_due() {
    let unanswered = || to_cart().udp().confirm(10_000).reread(15_400, 0);
    assert_eq!(World::new().verdict(unanswered(), 50_000).class, Class::N20);

    // The Service answered other clients.
    let mut world = World::new();
    let answered =
        last_revisions(fold(to_cart().udp().confirm(5_000).reread(6_000, Status::SEEN_REPLY).out, 7_000).0);
    for _ in 0..3 {
        world.note(&answered[0]);
    }
    let verdict = world.verdict(unanswered(), 50_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C29, Domain::NetworkPath));
    assert!(verdict.root_cause.contains("did not answer within 5.4 s"), "{}", verdict.root_cause);

    // A resolver always answers.
    let mut world = World::new();
    let resolver = "10.96.0.53:53";
    world.shop.reached_by(Via::ClusterIp, resolver);
    let asked = || Script::new(CLIENT, resolver, Some(EP)).udp().confirm(10_000);
    assert_eq!(world.verdict(asked().reread(15_400, 0), 50_000).class, Class::C29);
    // Right after it was sent, silence means nothing.
    assert_eq!(world.verdict(asked().reread(10_200, 0), 11_000).class, Class::N20);
}

#[test]
fn sctp_is_judged_by_its_entry() {
    let association = || to_cart().sctp().confirm(10_000);
    let class = |script| World::new().verdict(script, 50_000).class;
    assert_eq!(class(association().reread(15_400, Status::SEEN_REPLY | Status::ASSURED)), Class::Ok);
    assert_eq!(class(association().reread(15_400, Status::SEEN_REPLY)), Class::C28);
    assert_eq!(class(association().reread(15_400, 0)), Class::C29);
    assert_eq!(class(association().reread(10_100, 0)), Class::N20);
    // Of a refusal, only what it leaves in the entry is observed.
    let refused = World::new().verdict(association().reread(15_400, Status::SEEN_REPLY), 50_000);
    assert_eq!(refused.confidence, Confidence::Medium);
    assert!(refused.root_cause.contains("seems to refuse associations"), "{}", refused.root_cause);
    let is_said = refused.evidence.iter().any(|it| it.content.contains("as an ABORT leaves it"));
    assert!(is_said && refused.unseen.iter().any(|it| it.contains("the refusal itself")), "{refused:#?}");
}

#[test]
fn c8_a_stale_udp_entry_that_its_sender_keeps_alive() {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    let verdict = world.verdict(to_cart().udp().listed(60_000, 58_000), 61_000);
    assert_eq!((verdict.class, verdict.domain), (Class::C8, Domain::StaleEndpoints));
    assert_eq!(verdict.confidence, Confidence::High);
    assert!(
        verdict.root_cause.contains("a datagram went there 38.0 s after the endpoint had left"),
        "{}",
        verdict.root_cause
    );
    assert!(
        verdict
            .mitigation
            .immediate
            .contains("conntrack -D -p udp --orig-src 10.244.1.100 --orig-dst 10.96.0.10")
    );

    // The trace saw it begin, before the endpoint left.
    let verdict = world.verdict(to_cart().udp().confirm(10_000).listed(60_000, 58_000), 61_000);
    assert_eq!(verdict.class, Class::C8);
    // Nothing was sent since: the entry only waits for its timeout.
    let verdict = world.verdict(to_cart().udp().listed(30_000, 19_000), 31_000);
    assert_ne!(verdict.class, Class::C8);
    // The rules created it after the endpoint had left, so the rules are stale.
    let verdict = world.verdict(to_cart().udp().confirm(40_000).listed(60_000, 58_000), 61_000);
    assert_eq!(verdict.class, Class::C6);
}

/// An entry that was answered once and is used on after its endpoint's end.
#[test]
fn c8_of_an_entry_that_was_answered() {
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    let entry = || to_cart().udp().confirm(10_000).reread(15_500, Status::SEEN_REPLY);
    // The Pod only left the Service: it may go on to answer.
    let verdict = world.verdict(entry().listed_answered(60_000, 58_000), 61_000);
    assert_eq!(verdict.class, Class::N9);
    world.shop.pod_ends(EP, 21_000);
    for script in [entry(), to_cart().udp()] {
        let verdict = world.verdict(script.clone().listed_answered(60_000, 58_000), 61_000);
        assert_eq!((verdict.class, verdict.confidence), (Class::C8, Confidence::High));
        assert!(verdict.unseen.iter().any(|u| u.contains("still answers")), "{:?}", verdict.unseen);
        // Nothing was sent since.
        let verdict = world.verdict(script.listed_answered(60_000, 19_000), 61_000);
        assert_ne!(verdict.class, Class::C8);
    }
    // Another Pod has the address.
    let mut world = World::new();
    world.shop.leaves(EP, 20_000);
    world.shop.newcomer(EP, 50_000);
    let verdict = world.verdict(entry().listed_answered(60_000, 58_000), 61_000);
    assert_eq!(verdict.class, Class::C8);
    // An endpoint that is still listed.
    let verdict = World::new().verdict(entry().listed_answered(60_000, 58_000), 61_000);
    assert_eq!(verdict.class, Class::Ok);
}

#[test]
fn c1_does_not_contradict_an_existing_rule() {
    let mut world = World::new();
    world.node.running = Some(false);
    let script = || Script::new(CLIENT, VIP, None).silent(60_000);
    let verdict = world.verdict(script(), 70_000);
    assert_eq!((verdict.class, verdict.confidence), (Class::C1, Confidence::Medium));
    assert!(contradicts(&verdict, "a rule translates 10.96.0.10:80 now"), "{verdict:#?}");
    assert!(!verdict.root_cause.contains("lack"), "{}", verdict.root_cause);
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    assert_eq!(world.verdict(script(), 70_000).confidence, Confidence::High);
}

#[test]
fn another_dataplane_makes_a_missing_translation_doubtful() {
    let mut world = World::new();
    world.node.rules = Rules::Vip(RuleEffect::Missing);
    world.node.mode = None;
    let served = Script::new("10.244.1.100:41000", VIP, None).healthy(55_000);
    let flows = last_revisions(fold(served.out, 58_000).0);
    world.note(&flows[0]);
    let verdict = world.verdict(Script::new(CLIENT, VIP, None).silent(60_000), 70_000);
    assert_eq!(verdict.confidence, Confidence::Low);
    assert!(contradicts(&verdict, "a program that netfilter does not see"), "{verdict:#?}");
    // It is as little a crash of kube-proxy.
    world.node.running = Some(false);
    let verdict = world.verdict(Script::new(CLIENT, VIP, None).silent(60_000), 70_000);
    assert_eq!((verdict.class, verdict.severity), (Class::C1, Severity::Medium), "{verdict:#?}");
}

/// A trace of failures has no hook at the handshake: the socket's later acts show that it was connected.
#[test]
fn c18_without_the_hook_of_the_handshake() {
    let mut world = World::new();
    world.missing = vec![Hook::SockEstablished, Hook::SockClosed, Hook::Delete];
    let script = to_cart()
        .confirm(10_000)
        .invalid_answer(12_000, OUT_OF_WINDOW)
        .client_has_no_socket(12_001, addr(EP))
        .endpoint_has_no_connection(13_000)
        .receive_reset(13_001, TcpState::Established);
    assert_eq!(world.verdict(script, 20_000).class, Class::C18);
}

/// One packet that was dropped as invalid broke nothing, and an hour later the client ends its connection with a RST.
#[test]
fn an_old_invalid_packet_does_not_explain_a_reset() {
    let aborted = |script: Script, ms: u64| {
        script.send_reset(ms, false, TcpState::Established, "TCP_ABORT_ON_LINGER").state(
            ms,
            false,
            TcpState::Established,
            TcpState::Close,
        )
    };
    let dropped = || to_cart().established(10_000).invalid_answer(12_000, OUT_OF_WINDOW).drop_invalid(12_000);
    let world = World::new();
    assert_eq!(world.verdict(aborted(dropped(), 3_600_000), 3_610_000).class, Class::N4);
    // An end that repeats into the same drop was broken by it.
    let repeats =
        dropped().retransmit(12_300, TcpState::Established).retransmit(12_700, TcpState::Established);
    assert_eq!(world.verdict(aborted(repeats, 14_000), 20_000).class, Class::C18b);
}
