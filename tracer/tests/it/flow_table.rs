//! Folding: order, copies, gaps, reuse of addresses, floods and random input.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use crate::flow_support::{CLIENT, EP, NODE, Script, VIP, World, addr, at, fold, last_revisions};
use proptest::prelude::*;
use viptrace::{
    flow::{Flow, FlowTable, IcmpMeaning, Limits, Lost, Outcome, Reread, ResetBy},
    net::{Netns, Protocol, Tuple},
    sighting::{
        Conntrack, ConntrackFact, EntryNote, Fact, Hook, IpvsFact, IpvsFlags, PacketFact, Sighting,
        SocketEvent, SocketFact, Status, Task, TcpState,
    },
    time::Timestamp,
};

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

/// Every story with its outcome, within the few milliseconds in which CPUs may disagree.
fn stories() -> Vec<(Script, Outcome)> {
    let mut masqueraded = to_cart();
    masqueraded.masquerade = Some(addr("10.244.1.1:52000"));
    let quick = |script: Script| script.established(10_000).closed(10_005);
    vec![
        (quick(to_cart()), Outcome::Closed),
        (quick(masqueraded.clone()), Outcome::Closed),
        (quick(masqueraded.clone().embryo_dropped(10_002)), Outcome::Closed),
        (to_cart().refused(10_000), Outcome::Refused),
        (masqueraded.refused(10_000), Outcome::Refused),
        (Script::new(CLIENT, VIP, None).unreach(10_000, 3).connect_failed(10_001), Outcome::Rejected),
        (
            to_cart()
                .established(10_000)
                .send_reset(10_006, true, TcpState::Established, "TCP_ABORT_ON_CLOSE")
                .receive_reset(10_007, TcpState::Established)
                .state(10_007, false, TcpState::Established, TcpState::Close),
            Outcome::Reset(ResetBy::Endpoint),
        ),
        (to_cart().drop_syn(10_000, "NEIGH_FAILED").connect_failed(10_002), Outcome::Unreachable),
        (to_cart().confirm(10_000).connect_failed(10_005), Outcome::Abandoned),
        (to_cart().udp().confirm(10_000).no_socket(10_001), Outcome::Refused),
    ]
}

/// Records of other flows, the last of a recording, advance the time also where they are left out.
#[test]
fn a_flow_that_settles_at_the_end_settles_then_beside_flows_that_are_left_out() {
    let limits = Limits::default();
    let settled = at(10_005).saturating_add(limits.settle);
    let end = settled.saturating_add(limits.reorder / 2);
    let other = Script::new("10.244.1.9:40000", VIP, Some(EP)).confirm(0).out.remove(0);
    let finish = |leave_out: bool| {
        let mut table = FlowTable::new(limits);
        to_cart().established(10_000).closed(10_005).out.into_iter().for_each(|s| table.observe(s));
        if leave_out {
            table.pass(end);
        } else {
            table.observe(Sighting { time: end, ..other.clone() });
        }
        // A file that was cut off ends with the last time that it names, which can be before its last records.
        table.finish(at(10_100));
        table.drain_settled().find(|flow| flow.orig.src.socket() == addr(CLIENT)).unwrap().settled
    };
    assert_eq!(finish(false), Some(settled));
    assert_eq!(finish(true), finish(false));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever the order of the CPUs' records, and whichever come twice: one flow, one outcome, one verdict.
    #[test]
    fn order_and_copies_change_nothing(seed in any::<u64>()) {
        let world = World::new();
        for (script, outcome) in stories() {
            let mut state = seed | 1;
            let mut next = move || {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            };
            let mut shuffled: Vec<_> = script.out.iter().map(|s| (next(), s.clone())).collect();
            for sighting in &script.out {
                if next() % 3 == 0 {
                    shuffled.push((next(), sighting.clone()));
                }
            }
            shuffled.sort_by_key(|(key, _)| *key);
            let expected = fold(script.out.clone(), 60_000).0;
            let (flows, table) = fold(shuffled.into_iter().map(|(_, s)| s), 60_000);
            prop_assert_eq!(flows.len(), 1, "{:#?}", flows);
            prop_assert_eq!(flows[0].outcome(), outcome);
            prop_assert_eq!(expected[0].outcome(), outcome);
            prop_assert_eq!(table.counters().seen, 1);
            let (a, b) = (world.judge(&flows[0]).unwrap(), world.judge(&expected[0]).unwrap());
            prop_assert_eq!(a.class, b.class);
            prop_assert_eq!(a.flow, b.flow);
        }
    }

    /// A missing hook or a lost record never causes a panic. The number of flows for one connection is bounded by the
    /// number of its sightings, and a flow that is judged healthy has no evidence of a failure.
    #[test]
    fn a_missing_sighting_never_invents_a_fault_for_a_healthy_flow(missing in 0_usize..5) {
        let world = World::new();
        let mut script = to_cart().healthy(10_000);
        script.out.remove(missing);
        for flow in last_revisions(fold(script.out, 60_000).0) {
            if let Some(verdict) = world.judge(&flow) {
                prop_assert!(!verdict.is_fault(), "{verdict:#?}");
            }
        }
    }

    /// Random facts from few addresses, so that everything collides.
    #[test]
    fn random_facts_neither_panic_nor_grow(
        sightings in prop::collection::vec(any_sighting(), 0..300),
        max in 1_usize..20,
    ) {
        let world = World::new();
        let mut table = FlowTable::new(Limits { max_flows: max, ..Limits::default() });
        let mut out = Vec::new();
        for (n, sighting) in sightings.into_iter().enumerate() {
            table.observe(sighting.clone());
            prop_assert!(table.len() <= max);
            if n % 17 == 0 {
                table.advance(sighting.time);
                table.lost(Lost::of_unknown_hook(1, at(0), sighting.time));
            }
            out.extend(table.drain_settled());
            let c = table.counters();
            prop_assert_eq!(c.seen, c.settled + c.evicted + c.absorbed + c.open);
        }
        table.finish(at(200_000));
        out.extend(table.drain_settled());
        let c = table.counters();
        prop_assert_eq!(c.open, 0);
        prop_assert_eq!(c.seen, c.settled + c.evicted + c.absorbed);
        prop_assert!(table.is_empty());
        prop_assert!(table.next_deadline().is_none());
        for flow in &out {
            prop_assert!(flow.decisions.len() <= 10);
            if let Some(trouble) = &flow.trouble {
                prop_assert!(trouble.drops.len() <= 8 && trouble.stack_resets.len() <= 6);
            }
            let _ = world.judge(flow);
        }
        let mut ids: Vec<_> = out.iter().map(|flow| (flow.id, flow.revision)).collect();
        ids.sort_unstable();
        ids.dedup();
        prop_assert_eq!(ids.len(), out.len(), "each revision is handed out once");
    }
}

fn any_addr() -> BoxedStrategy<SocketAddr> {
    prop_oneof![
        Just(addr(CLIENT)),
        Just(addr(VIP)),
        Just(addr(EP)),
        Just(addr("127.0.0.1:1")),
        Just(addr("[::ffff:10.244.1.7]:8080")),
        Just(addr("[2001:db8::1]:0")),
        Just(addr("0.0.0.0:0")),
    ]
    .boxed()
}

fn any_tuple() -> BoxedStrategy<Tuple> {
    let protocol = prop_oneof![8 => Just(6_u8), 2 => Just(17), 1 => Just(132), 1 => any::<u8>()];
    (protocol, any_addr(), any_addr()).prop_map(|(p, src, dst)| Tuple::new(Protocol(p), src, dst)).boxed()
}

fn any_entry() -> BoxedStrategy<Conntrack> {
    (0_u64..3, 0_u16..2, any::<u32>(), any_tuple(), any_tuple())
        .prop_map(|(id, zone, status, orig, reply)| Conntrack {
            id,
            zone,
            status: Status(status),
            orig,
            reply,
        })
        .boxed()
}

fn any_state() -> BoxedStrategy<TcpState> {
    (0_u8..14).prop_map(TcpState::from_number).boxed()
}

fn any_event() -> BoxedStrategy<SocketEvent> {
    prop_oneof![
        (any_state(), any_state()).prop_map(|(old, new)| SocketEvent::State { old, new }),
        (any_state(), prop::option::of(any::<u32>()))
            .prop_map(|(state, bytes)| SocketEvent::Retransmit { state, bytes }),
        any_state().prop_map(|state| SocketEvent::SendReset { state, reason: Some("\u{1b}[2J".into()) }),
        any_state().prop_map(|state| SocketEvent::ReceiveReset { state }),
    ]
    .boxed()
}

fn any_fact() -> BoxedStrategy<Fact> {
    let task = prop::option::of(Just(Task { pid: 1, comm: "kubelet".into() }));
    let reason = prop::option::of(prop_oneof![
        Just(Arc::<str>::from("NETFILTER_DROP")),
        Just(Arc::from("NO_SOCKET")),
        Just(Arc::from("NEIGH_FAILED")),
        Just(Arc::from("\u{202e}")),
    ]);
    prop_oneof![
        (any_entry(), task.clone()).prop_map(|(ct, task)| Fact::Conntrack(ConntrackFact {
            ct,
            task,
            note: EntryNote::default()
        })),
        (
            prop::option::of(any_tuple()),
            any::<u8>(),
            prop::option::of(any_entry()),
            prop::option::of(any::<bool>()),
            reason,
            prop::option::of(any::<u8>()),
            prop::bool::weighted(0.1),
        )
            .prop_map(|(tuple, tcp_flags, ct, original_direction, reason, code, table_full)| {
                Fact::Packet(PacketFact {
                    skb: 0,
                    tuple,
                    tcp_flags,
                    ct,
                    original_direction,
                    reason,
                    site: None,
                    icmp_code: code,
                    nf_hook: code,
                    table_full,
                })
            }),
        (0_u64..3, any_tuple(), any_event(), task, any::<u64>()).prop_map(
            |(sk, tuple, event, task, bytes)| {
                Fact::Socket(SocketFact { sk, tuple, event, bytes_acked: bytes, bytes_received: bytes, task })
            }
        ),
        (any_tuple(), any_tuple(), any::<u32>()).prop_map(|(tuple, other, flags)| {
            Fact::Ipvs(IpvsFact { tuple, destination: other.dst.socket(), flags: IpvsFlags(flags) })
        }),
        any::<bool>().prop_map(|freed| Fact::TableFull { freed }),
    ]
    .boxed()
}

fn any_sighting() -> BoxedStrategy<Sighting> {
    let time =
        prop_oneof![20 => (0_u64..120_000).prop_map(at), 1 => any::<u64>().prop_map(Timestamp::from_unix_ns)];
    let netns = prop_oneof![Just(NODE), Just(Netns(0)), Just(Netns(7))];
    (time, 0_u16..4, prop::sample::select(Hook::ALL.to_vec()), netns, any_fact())
        .prop_map(|(time, cpu, hook, netns, fact)| Sighting { time, cpu, hook, netns, fact })
        .boxed()
}

#[test]
fn the_same_five_tuple_again_is_another_flow() {
    let script = to_cart()
        .healthy(10_000)
        .with_ct(0x9000)
        .healthy(12_000)
        .with_ct(0x9000)
        .refused(14_000)
        .refused(14_500);
    let flows = last_revisions(fold(script.out, 60_000).0);
    let outcomes: Vec<_> = flows.iter().map(Flow::outcome).collect();
    assert_eq!(outcomes, [Outcome::Closed, Outcome::Closed, Outcome::Refused, Outcome::Refused]);
}

/// Observed on 7.2: the kernel's task may move to another CPU between the two programs of the hook.
#[test]
fn a_repeated_confirmation_is_one_flow() {
    let script = to_cart().confirm(9_970).healthy(10_000);
    let flows = last_revisions(fold(script.out, 60_000).0);
    let outcomes: Vec<_> = flows.iter().map(Flow::outcome).collect();
    assert_eq!(outcomes, [Outcome::Closed]);
}

/// Observed on 6.1 under load: the client's ACK and its request were handled at the same time, and each created a
/// socket.
#[test]
fn a_second_socket_for_one_handshake_does_not_end_the_flow() {
    for dropped in [10_001, 10_002, 10_003, 10_900] {
        let mut script = to_cart().established(10_000).embryo_dropped(dropped).closed(20_000);
        script.out.sort_by_key(|sighting| sighting.time);
        let flows = fold(script.out, 60_000).0;
        assert_eq!(flows.len(), 1, "{dropped}: {flows:#?}");
        assert_eq!(flows[0].outcome(), Outcome::Closed);
        let [client, server] = [&flows[0].client, &flows[0].server].map(|end| end.closed.unwrap().time);
        assert_eq!((client, server), (at(20_000), at(20_001)));
    }
}

/// The accept queue was full: only the client's repeated request creates the socket.
#[test]
fn a_socket_that_is_accepted_late_belongs_to_the_flow() {
    let script = to_cart()
        .confirm(10_000)
        .state(10_001, false, TcpState::SynSent, TcpState::Established)
        .embryo_dropped(10_002)
        .retransmit(13_000, TcpState::Established)
        .state(13_001, true, TcpState::SynRecv, TcpState::Established)
        .closed(20_000);
    let flows = fold(script.out, 60_000).0;
    assert_eq!(flows.len(), 1, "{flows:#?}");
    assert_eq!((flows[0].outcome(), flows[0].server.established), (Outcome::Closed, Some(at(13_001))));
}

#[test]
fn a_refusal_again_from_the_same_port_is_another_flow_and_a_retransmit_is_not() {
    let script = Script::new(CLIENT, VIP, None);
    let again = script.clone().unreach(10_000, 3).unreach(10_300, 3);
    assert_eq!(last_revisions(fold(again.out, 60_000).0).len(), 2);
    let repeated = script.unreach(10_000, 3).unreach(11_000, 3);
    assert_eq!(last_revisions(fold(repeated.out, 60_000).0).len(), 1);
}

/// Observed on 6.1 and 6.12: the ICMP error arrives while the client's socket is busy and is ignored. The SYN is
/// retransmitted and refused again, and then the connect fails.
#[test]
fn an_ignored_refusal_belongs_to_the_same_attempt() {
    let script = Script::new(CLIENT, VIP, None)
        .unreach(10_000, 3)
        .retransmit(11_020, TcpState::SynSent)
        .with_ct(0xffff_8880_1000_2000)
        .unreach(11_021, 3)
        .connect_failed(11_023);
    let (flows, table) = fold(script.out, 20_000);
    assert_eq!(table.counters().seen, 1);
    assert_eq!(last_revisions(flows).pop().unwrap().outcome(), Outcome::Rejected);
}

/// Observed on 6.12: the first SYN waits for a dead endpoint's address, the retransmitted one gets another endpoint and
/// is served; two seconds later the first one is dropped.
#[test]
fn a_packet_that_waited_belongs_to_its_own_connection() {
    let served = Script::new(CLIENT, VIP, Some(EP))
        .retransmit(11_000, TcpState::SynSent)
        .established(11_001)
        .closed(11_010);
    let waited = Script::new(CLIENT, VIP, Some("10.244.1.12:8080"))
        .with_ct(0xffff_8880_1000_2000)
        .drop_syn(13_100, "NEIGH_FAILED");
    let (flows, table) = fold(served.out.into_iter().chain(waited.out), 20_000);
    assert_eq!(table.counters().seen, 1);
    let flow = last_revisions(flows).pop().unwrap();
    assert_eq!(flow.outcome(), Outcome::Closed);
    assert_eq!(flow.decision(None).and_then(viptrace::flow::Decision::endpoint), Some(addr(EP)));
}

/// Observed on 6.12: the connect fails with the first SYN, and three seconds later the last waiting SYN is dropped with
/// its own ICMP error.
#[test]
fn an_error_about_a_waiting_packet_is_not_a_new_attempt() {
    let failed = Script::new(CLIENT, VIP, Some(EP)).neighbour_failed(13_000).connect_failed(13_002);
    let waited = Script::new(CLIENT, VIP, Some(EP)).with_ct(0xffff_8880_1000_2000).neighbour_failed(16_071);
    let (flows, table) = fold(failed.out.into_iter().chain(waited.out), 40_000);
    assert_eq!(table.counters().seen, 1);
    assert_eq!(last_revisions(flows).pop().unwrap().outcome(), Outcome::Unreachable);
}

/// The families number the same errors differently: 4 is about a port in one and about a length in the other.
#[test]
fn an_icmp_errors_meaning_depends_on_its_family() {
    let v6 = || Script::new("[fd00:244:1::64]:40000", "[fd00:96::50]:80", Some("[fd00:244:1::a]:8080"));
    let told = |script: Script, from, code| {
        let script = if script.protocol == Protocol::UDP {
            script.confirm(10_000).icmp_error(10_001, from, code)
        } else {
            script.confirm(10_000).icmp_error(10_001, from, code).connect_failed(10_002)
        };
        let flow = last_revisions(fold(script.out, 60_000).0).remove(0);
        (flow.outcome(), flow.trouble.as_ref().unwrap().icmp_errors[0].meaning)
    };
    let (here, there) = ("10.244.1.7:0", "[fd00:244:2::7]:0");
    assert_eq!(told(to_cart().udp(), here, 3), (Outcome::Refused, IcmpMeaning::NothingListens));
    assert_eq!(told(v6().udp(), there, 4), (Outcome::Refused, IcmpMeaning::NothingListens));
    assert_eq!(told(v6(), there, 3), (Outcome::Unreachable, IcmpMeaning::NoWay));
    assert_eq!(told(v6(), there, 1), (Outcome::Unreachable, IcmpMeaning::Prohibited));
    assert_eq!(told(to_cart(), here, 13), (Outcome::Unreachable, IcmpMeaning::Prohibited));
    assert_eq!(told(to_cart().udp(), here, 4).1, IcmpMeaning::TooBig);
    assert_eq!(told(v6(), there, 77), (Outcome::Abandoned, IcmpMeaning::Other));
}

#[test]
fn a_reused_entry_address_does_not_join_two_clients() {
    let mut script = to_cart().healthy(10_000);
    script.client = addr("10.244.1.101:40001");
    let flows = last_revisions(fold(script.healthy(10_500).out, 60_000).0);
    assert_eq!(flows.len(), 2);
    assert!(flows.iter().all(|flow| flow.outcome() == Outcome::Closed && flow.sightings == 5));
}

#[test]
fn a_missed_close_does_not_swallow_the_next_connection() {
    let script = to_cart().established(10_000).with_ct(0x9000).healthy(20_000);
    let flows = last_revisions(fold(script.out, 60_000).0);
    assert_eq!(flows.iter().map(Flow::outcome).collect::<Vec<_>>(), [Outcome::Established, Outcome::Closed]);
}

#[test]
fn attempts_that_were_dropped_before_their_entry_are_one_flow() {
    let script = to_cart().dead_pod(10_000);
    let (flows, table) = fold(script.out, 60_000);
    assert_eq!(table.counters().seen, 1);
    assert_eq!(flows.len(), 1);
    assert_eq!(flows[0].outcome(), Outcome::Unreachable);
    assert_eq!(flows[0].decisions[0].attempts, 3);
    assert!(!flows[0].partial);
}

/// Linux 7.2: the fourth SYN was sent just before the first three were given up, and waited for three seconds more, after
/// its client had closed. No reason for the drop over IPv6, nor on kernels without drop reasons.
#[test]
fn a_packet_that_waited_for_a_neighbour_is_no_other_connection() {
    for reason in ["NOT_SPECIFIED", "NEIGH_FAILED", ""] {
        let script = to_cart().dead_pod(10_000).with_ct(0x9000).drop_syn(16_340, reason);
        let (flows, table) = fold(script.out, 60_000);
        assert_eq!((flows.len(), table.counters().seen), (1, 1), "{reason}");
    }
    // A rule's drop is another connection's, and so is one that is too late.
    for (reason, ms) in [("NETFILTER_DROP", 16_340), ("NEIGH_FAILED", 25_000)] {
        let script = to_cart().dead_pod(10_000).with_ct(0x9000).drop_syn(ms, reason);
        assert_eq!(fold(script.out, 60_000).0.len(), 2, "{reason}");
    }
}

/// A busy client ignores the first error (`tcp_v4_err`) and tries on. Seven seconds later two of its SYNs are given
/// up: the error about the first closes it, and the second belongs to it too.
#[test]
fn a_packet_that_waited_until_its_client_gave_up_is_no_other_connection() {
    let script = to_cart()
        .retransmit(11_000, TcpState::SynSent)
        .retransmit(12_000, TcpState::SynSent)
        .neighbour_failed(13_000)
        .retransmit(14_000, TcpState::SynSent)
        .retransmit(16_000, TcpState::SynSent)
        .neighbour_failed(20_000)
        .connect_failed(20_001)
        .with_ct(0x9000)
        .neighbour_failed(20_002);
    let (flows, table) = fold(script.out, 60_000);
    assert_eq!(table.counters().seen, 1);
    assert_eq!(last_revisions(flows).pop().unwrap().outcome(), Outcome::Unreachable);
}

#[test]
fn each_endpoint_of_a_repeated_syn_is_a_decision_and_has_its_own_drops() {
    let script = to_cart().dead_pod(10_000).with_endpoint("10.244.1.12:8080").with_ct(0x9000);
    let stopped = script.clone().drop_syn(13_100, "NEIGH_FAILED");
    let flows = last_revisions(fold(stopped.out, 60_000).0);
    let of =
        |flow: &Flow| flow.decisions.iter().map(|d| (d.endpoint().unwrap(), d.attempts)).collect::<Vec<_>>();
    assert_eq!(of(&flows[0]), [(addr(EP), 3), (addr("10.244.1.12:8080"), 1)]);
    // The last packet that failed.
    assert_eq!(flows[0].decision(Some(NODE)).unwrap().endpoint(), Some(addr(EP)));

    // Answered by the endpoint of the last attempt.
    let mut answered = to_cart();
    answered.out = to_cart().dead_pod(10_000).out[..5].to_vec();
    let answered =
        answered.with_endpoint("10.244.1.12:8080").with_ct(0x9000).confirm(13_200).established(13_201);
    let flows = last_revisions(fold(answered.out, 60_000).0);
    assert_eq!((flows.len(), flows[0].outcome()), (1, Outcome::Established));
    assert_eq!(flows[0].decision(Some(NODE)).unwrap().endpoint(), Some(addr("10.244.1.12:8080")));

    // Confirmed, and no answer to a repetition: the client waited for the second endpoint.
    let mut silent = to_cart();
    silent.out = to_cart().dead_pod(10_000).out[..5].to_vec();
    let silent = silent
        .with_endpoint("10.244.1.12:8080")
        .with_ct(0x9000)
        .confirm(13_200)
        .retransmit(14_200, TcpState::SynSent)
        .retransmit(16_200, TcpState::SynSent);
    let flows = last_revisions(fold(silent.out, 60_000).0);
    assert_eq!((flows.len(), flows[0].outcome(), flows[0].revision), (1, Outcome::Stalled, 1));
    assert_eq!(flows[0].decision(Some(NODE)).unwrap().endpoint(), Some(addr("10.244.1.12:8080")));
}

#[test]
fn both_ends_and_every_namespace_are_one_flow() {
    let mut script = to_cart();
    script.masquerade = Some(addr("10.244.1.1:52000"));
    let mut script = script.healthy(10_000);
    // The endpoint's namespace has conntrack too: there the masqueraded client connects to the endpoint directly.
    let mut inner = script.out[0].clone();
    inner.time = at(10_001);
    inner.netns = crate::flow_support::SERVER_NS;
    let behind = script.behind();
    inner.fact = Fact::Conntrack(ConntrackFact {
        ct: Conntrack { id: 5, zone: 0, status: Status(0), orig: behind, reply: behind.reversed() },
        task: None,
        note: EntryNote::default(),
    });
    script.out.insert(1, inner);
    let (flows, table) = fold(script.out, 60_000);
    assert_eq!((flows.len(), table.counters().seen), (1, 1));
    assert_eq!(flows[0].decisions.len(), 2);
    assert!(flows[0].client.is_seen() && flows[0].server.is_seen());
    assert_eq!(flows[0].connect_time(), Some(Duration::from_millis(1)));
    assert_eq!(flows[0].decision(Some(NODE)).unwrap().endpoint(), Some(addr(EP)));
}

/// The agent's hooks do not report that a connection closes: one that repeated a segment must not hide what fails later from
/// the same port. It stays, because the kernel hands its decision out only once.
#[test]
fn a_connection_whose_close_is_not_seen_ends_with_the_next_of_its_addresses() {
    let of_agent = || Limits { reread: Reread::Datagrams, sees_closes: false, ..Limits::default() };
    let repeated = || to_cart().confirm(10_000).repeats_segment(11_000, false, 500, (100, 200));
    let mut table = FlowTable::new(of_agent());
    repeated().out.into_iter().for_each(|sighting| table.observe(sighting));
    table.advance(at(12_000));
    assert_eq!(table.len(), 1);
    table.advance(at(7_000_000));
    assert_eq!(table.len(), 1, "after hours");

    // The same port again: its first packet is refused before its entry is confirmed.
    let mut table = FlowTable::new(of_agent());
    let refused =
        Script::new(&to_cart().client.to_string(), "10.96.0.10:80", None).with_ct(99).unreach(60_000, 3);
    repeated().out.into_iter().chain(refused.out).for_each(|sighting| table.observe(sighting));
    table.finish(at(70_000));
    let outcomes: Vec<_> = table.drain_settled().map(|flow| flow.outcome()).collect();
    assert!(outcomes.contains(&Outcome::Rejected), "{outcomes:?}");

    // Another socket repeats its data, of which no beginning was seen.
    let mut table = FlowTable::new(of_agent());
    let mut later = to_cart().repeats_segment(60_000, false, 500, (100, 200));
    if let Fact::Socket(socket) = &mut later.out[0].fact {
        socket.sk += 64;
    }
    repeated().out.into_iter().chain(later.out).for_each(|sighting| table.observe(sighting));
    table.advance(at(61_000));
    assert_eq!(table.counters().seen, 2);
}

#[test]
fn an_answer_after_the_timeout_is_handed_out() {
    let script = to_cart()
        .silent(10_000)
        .state(17_000, false, TcpState::SynSent, TcpState::Established)
        .closed(17_500);
    // As a trace with socket states, which reads no entry of a connection that retransmits again.
    let mut table = FlowTable::new(Limits { reread: Reread::All, ..Limits::default() });
    script.out.into_iter().for_each(|sighting| table.observe(sighting));
    table.advance(at(60_000));
    let flows: Vec<_> = table.drain_settled().collect();
    let said: Vec<_> = flows.iter().map(|flow| (flow.revision, flow.outcome().is_success())).collect();
    assert_eq!(said, [(1, false), (2, true)]);
    assert_eq!(table.counters().settled, 1);
    assert_eq!(flows[0].id, flows[1].id);
}

#[test]
fn a_flow_is_handed_out_after_both_ends_had_time_to_be_observed() {
    let mut table = FlowTable::new(Limits::default());
    for sighting in to_cart().refused(10_000).out {
        table.observe(sighting);
    }
    table.advance(at(10_060));
    assert_eq!(table.drain_settled().count(), 0);
    let mut waits = 0;
    while table.counters().settled == 0 {
        let next = table.next_deadline().unwrap();
        assert!(next < at(11_000));
        table.advance(next);
        waits += 1;
        assert!(waits < 5, "each deadline has work");
    }
    assert_eq!(table.drain_settled().count(), 1);
}

#[test]
fn an_idle_table_needs_no_timer() {
    let mut table = FlowTable::new(Limits::default());
    assert_eq!(table.next_deadline(), None);
    for sighting in to_cart().established(10_000).out {
        table.observe(sighting);
    }
    table.advance(at(20_000));
    let next = table.next_deadline().unwrap();
    assert!(next > at(400_000_000), "an established flow waits for the kernel, and for days");
    assert_eq!(table.counters().open, 1);
    table.finish(at(30_000));
    assert_eq!(table.drain_settled().next().unwrap().outcome(), Outcome::Established);
}

#[test]
fn half_open_floods_do_not_push_established_flows_out() {
    let mut table = FlowTable::new(Limits { max_flows: 1000, ..Limits::default() });
    for sighting in to_cart().established(10_000).out {
        table.observe(sighting);
    }
    for n in 0..50_000_u32 {
        let mut script = to_cart();
        script.client = SocketAddr::from(((0x0b00_0000 + n).to_be_bytes(), 1234));
        script.ct = u64::from(n);
        // 50,000 SYNs in a second.
        let mut sighting = script.confirm(10_100).out.remove(0);
        sighting.time = at(10_100).saturating_add(Duration::from_micros(u64::from(n) * 20));
        table.observe(sighting);
        assert!(table.len() <= 1000);
    }
    for sighting in to_cart().closed(11_200).out {
        table.observe(sighting);
    }
    table.advance(at(11_900));
    let flows: Vec<_> = table.drain_settled().collect();
    assert_eq!(flows.len(), 1);
    assert_eq!(flows[0].outcome(), Outcome::Closed);
    assert!(!flows[0].partial);
    let counters = table.counters();
    assert_eq!(counters.evicted, 50_001 - 1000);
}

#[test]
fn intermittent_loss_is_not_silence() {
    let mut script = to_cart().established(10_000);
    for n in 0..40 {
        script = script.retransmit(20_000 + n * 3000, TcpState::Established);
    }
    let (flows, _) = fold(script.closed(200_000).out, 210_000);
    assert_eq!(flows.len(), 1);
    assert_eq!(flows[0].outcome(), Outcome::Closed);
    assert_eq!(flows[0].client.retransmits().count, 40);
}

#[test]
fn many_connections_cost_little() {
    // Not a benchmark (xtask has one): detects a scan that makes the table quadratic.
    let mut table = FlowTable::new(Limits::default());
    let mut handed = 0_u64;
    for n in 0..60_000_u64 {
        let mut script = to_cart();
        script.client = SocketAddr::from(([10, 244, (n / 30_000) as u8, 9], 10_000 + (n % 30_000) as u16));
        script.ct = n;
        for sighting in script.established(10_000 + n).closed(10_005 + n).out {
            table.observe(sighting);
        }
        handed += table.drain_settled().count() as u64;
    }
    table.finish(at(1_000_000));
    handed += table.drain_settled().count() as u64;
    assert_eq!(handed, 60_000);
    assert_eq!(table.counters().evicted, 0);
    assert_eq!(table.counters().unmatched, 0);
}
