//! Connections that their server closed, and that the client ends later: pools leave them in `CLOSE_WAIT`.

use std::time::Duration;

use crate::{
    flow_support::{CLIENT, CT, EP, NODE, Script, VIP, World, addr, at, in_steps},
    ipvs_support::{by_ipvs, null_bound, packet},
};
use viptrace::{
    class::{Class, Severity},
    flow::{Flow, FlowTable, Limits},
    net::Netns,
    node::ProxyMode,
    sighting::{ConntrackFact, EntryNote, Fact, Hook, Sighting, Status, TcpState},
    verdict::Verdict,
};

use TcpState::{Close, CloseWait, Established, FinWait2, LastAck};

const OTHER: &str = "10.244.1.8:8080";
const ANSWERED: u32 = Status::SEEN_REPLY | Status::ASSURED;
const PSH_ACK: u8 = 24;
/// When the client ends what the server closed a minute before.
const LATE: u64 = 80_000;

fn to_cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

/// An idle connection that its server closes.
fn closed_by_server() -> Script {
    to_cart().established(10_000).state(20_000, true, FinWait2, Close)
}

fn repeats(script: Script, state: TcpState) -> Script {
    [200, 600, 1_400, 3_000, 6_200]
        .into_iter()
        .fold(script, |script, wait| script.retransmit(LATE + wait, state))
}

fn is_reset(script: Script, state: TcpState) -> Script {
    script.receive_reset(LATE + 1, state).state(LATE + 1, false, state, Close)
}

fn plain_close(script: Script) -> Script {
    script.state(LATE, false, LastAck, Close)
}

/// `tcp_close` closes a socket with unread data before it sends the RST.
fn close_with_unread_data(script: Script) -> Script {
    script.state(LATE, false, CloseWait, Close).send_reset(LATE, false, Close, "TCP_ABORT_ON_CLOSE")
}

fn abort(script: Script) -> Script {
    script.send_reset(LATE, false, CloseWait, "TCP_ABORT_ON_LINGER").state(LATE, false, CloseWait, Close)
}

fn write_that_is_reset(script: Script) -> Script {
    is_reset(script.transit_reset(LATE + 1, false, ANSWERED), CloseWait)
}

fn write_without_answer(script: Script) -> Script {
    repeats(script, CloseWait).state(100_000, false, CloseWait, Close)
}

fn close_without_answer(script: Script) -> Script {
    repeats(script, LastAck).state(100_000, false, LastAck, Close)
}

/// The entry timed out before.
fn write_to_another_endpoint(script: Script) -> Script {
    let script = script.with_endpoint(OTHER).with_ct(CT + 64).confirm_midstream(LATE);
    is_reset(script.endpoint_has_no_connection(LATE), CloseWait)
}

/// The same in ipvs mode: the node's own stack has the address.
fn write_that_the_node_resets(mut script: Script) -> Script {
    let entry = |status| null_bound(0x2000, status);
    let confirmed = ConntrackFact { ct: entry(0), task: None, note: EntryNote::default() };
    script.out.push(seen(LATE, Hook::Confirm, NODE, Fact::Conntrack(confirmed)));
    let ct = Some(entry(Status::CONFIRMED));
    script.out.push(packet(LATE, Hook::TcpSendReset, PSH_ACK, ct, Some("NO_SOCKET")));
    is_reset(script, CloseWait)
}

fn seen(ms: u64, hook: Hook, netns: Netns, fact: Fact) -> Sighting {
    Sighting { time: at(ms), cpu: 0, hook, netns, fact }
}

/// A late end, and what it is where the connection's beginning was not observed: with its endpoint listed, and gone.
type LateEnd = (fn(Script) -> Script, [Class; 2]);

const ENDS: [LateEnd; 7] = [
    (plain_close, [Class::Ok, Class::Ok]),
    (close_with_unread_data, [Class::Ok, Class::Ok]),
    (abort, [Class::N4, Class::N4]),
    (write_that_is_reset, [Class::N5, Class::N9]),
    (write_without_answer, [Class::N5, Class::N5]),
    (close_without_answer, [Class::N5, Class::N5]),
    (write_to_another_endpoint, [Class::N5, Class::N5]),
];

fn world(endpoint_leaves: bool) -> World {
    let mut world = World::new();
    world.shop.ready(OTHER, 0);
    if endpoint_leaves {
        world.shop.leaves(EP, 30_000);
        world.shop.pod_ends(EP, 31_000);
    }
    world
}

/// All that is handed out of these sightings in steps of half a second, and the flows that are held in the end.
fn handed_out(script: Script, limits: Limits, until: u64) -> (Vec<Flow>, usize) {
    let mut table = FlowTable::new(limits);
    let flows = in_steps(&mut table, script, until);
    (flows, table.len())
}

/// Every verdict on these sightings, also those that a later one withdraws.
fn verdicts(world: &World, script: Script) -> Vec<Verdict> {
    let (flows, held) = handed_out(script, Limits::default(), 300_000);
    assert_eq!(held, 0, "{flows:#?}");
    flows.iter().filter_map(|flow| world.judge(flow)).collect()
}

fn classes(world: &World, script: Script) -> Vec<Class> {
    verdicts(world, script).iter().map(|verdict| verdict.class).collect()
}

#[test]
fn what_a_client_does_after_its_server_closed_is_no_flow_of_its_own() {
    for (number, (end, _)) in ENDS.iter().enumerate() {
        for leaves in [false, true] {
            assert_eq!(classes(&world(leaves), end(closed_by_server())), [Class::Ok], "{number} {leaves}");
            // The entry of a connection in this state lives for a minute, unless kube-proxy sets an hour.
            let timed_out = closed_by_server().delete(LATE - 1_000, ANSWERED);
            assert_eq!(classes(&world(leaves), end(timed_out)), [Class::Ok], "{number} {leaves}");
        }
    }
    let mut ipvs = world(false);
    ipvs.node.mode = Some(ProxyMode::Ipvs);
    let closed = by_ipvs(closed_by_server()).delete(LATE - 1_000, ANSWERED);
    assert_eq!(classes(&ipvs, write_that_the_node_resets(closed)), [Class::Ok]);
}

/// The trace began later, or the endpoint is on another node.
#[test]
fn a_late_end_whose_beginning_was_not_observed_is_no_fault() {
    for (number, (end, expected)) in ENDS.iter().enumerate() {
        for (leaves, class) in [false, true].into_iter().zip(expected) {
            let seen = verdicts(&world(leaves), end(to_cart()));
            let first = seen.first().map(|verdict| verdict.class);
            assert_eq!(first, Some(*class), "{number} {leaves}: {seen:#?}");
            assert!(seen.iter().all(|it| !it.class.is_fault() && it.class != Class::Unknown), "{seen:#?}");
        }
    }
    let mut ipvs = world(false);
    ipvs.node.mode = Some(ProxyMode::Ipvs);
    assert_eq!(classes(&ipvs, write_that_the_node_resets(to_cart())), [Class::N5]);
    let elsewhere = || to_cart().confirm(10_000).state(10_001, false, TcpState::SynSent, Established);
    let [verdict] = &verdicts(&world(true), write_that_is_reset(elsewhere()))[..] else {
        panic!("one verdict")
    };
    assert_eq!((verdict.class, verdict.severity), (Class::N9, Severity::None), "{}", verdict.root_cause);
    assert!(verdict.root_cause.contains("already closed by the endpoint"), "{}", verdict.root_cause);
}

#[test]
fn what_failed_before_the_server_closed_is_no_late_end() {
    // Its first repetitions are older than the FIN, which came the other way.
    let lost = to_cart().confirm(10_000).state(10_001, false, TcpState::SynSent, Established);
    let lost = lost.retransmit(LATE - 100, Established);
    assert_eq!(classes(&world(false), write_without_answer(lost)), [Class::C29]);
    // It was repeated and acknowledged an hour before.
    let recovered = to_cart().retransmit(10_000, Established);
    let recovered = classes(&world(false), write_without_answer(recovered));
    assert_eq!(recovered.first(), Some(&Class::N5));
    // The rules led to a former endpoint, whose address has another owner, which closed the connection.
    let mut stale = World::new();
    stale.shop.ready(OTHER, 0);
    stale.shop.leaves(EP, 1_000);
    stale.shop.newcomer(EP, 2_000);
    let to_newcomer = to_cart().confirm(60_000).state(60_001, false, TcpState::SynSent, Established);
    assert_eq!(classes(&stale, write_that_is_reset(to_newcomer)), [Class::C6]);
}

fn pool(number: u16) -> Script {
    let mut script = closed_by_server().with_ct(CT + u64::from(number) * 256);
    script.client.set_port(number);
    for sighting in &mut script.out {
        match &mut sighting.fact {
            Fact::Conntrack(fact) => {
                (fact.ct.id, fact.ct.orig.src, fact.ct.reply.dst) =
                    (script.ct, script.client.into(), script.client.into());
            }
            Fact::Socket(fact) => {
                fact.sk += u64::from(number) << 20;
                let end = if fact.tuple.dst == addr(VIP).into() {
                    &mut fact.tuple.src
                } else {
                    &mut fact.tuple.dst
                };
                *end = script.client.into();
            }
            _ => {}
        }
    }
    script
}

#[test]
fn connections_that_no_client_closes_have_a_bound_and_a_deadline() {
    let mut all = to_cart();
    all.out = (1..=1_000).flat_map(|number| pool(20_000 + number).out).collect();
    let day = Duration::from_hours(24).as_millis() as u64;
    let limits =
        |max_flows| Limits { max_flows, idle_connection: Duration::from_mins(1), ..Limits::default() };
    // While they wait, none is judged again, and none is counted as one without a verdict.
    let (flows, held) = handed_out(all.clone(), limits(4_096), 79_000);
    assert_eq!((flows.len(), held), (1_000, 1_000));
    assert_eq!(handed_out(all.clone(), limits(4_096), 90_000).1, 0);
    // A full table forgets them first.
    let silent = Script::new("10.244.1.100:41000", VIP, Some(EP)).with_ct(7).silent(30_000);
    all.out.extend(silent.out);
    let mut table = FlowTable::new(Limits { max_flows: 256, ..Limits::default() });
    let mut stalled = 0;
    for sighting in all.in_order().out {
        table.advance(sighting.time);
        table.observe(sighting);
        stalled += table.drain_settled().filter(|flow| flow.orig.src.port() == 41_000).count();
    }
    for number in 0..2_000_u16 {
        let ms = 31_000 + u64::from(number);
        let mut script = to_cart().with_ct(0x9000_0000 + u64::from(number) * 256);
        script.client.set_port(1_000 + number);
        script.confirm(ms).out.into_iter().for_each(|sighting| table.observe(sighting));
        table.advance(at(ms));
        stalled += table.drain_settled().filter(|flow| flow.orig.src.port() == 41_000).count();
        assert!(table.len() <= 256);
    }
    table.advance(at(40_000));
    stalled += table.drain_settled().filter(|flow| flow.orig.src.port() == 41_000).count();
    assert_eq!(stalled, 1);
    table.advance(at(6 * day));
    assert_eq!(table.len(), 0);
}
