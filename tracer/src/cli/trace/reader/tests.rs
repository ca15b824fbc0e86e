//! The reader with constructed sources: one that is slow, one that never runs dry, and one that loses events.

use std::{
    cell::Cell,
    net::{IpAddr, SocketAddr},
};

use serde_json::json;

use super::*;
use crate::{
    cluster::{Cluster, History, Kind, LOOK_BACK, Origin, Status, trim::trim},
    flow::Limits,
    net::{Netns, Protocol, Tuple},
    session::{Detail, Grace, Judgements, Pipeline, Settings},
    sighting::{self, Conntrack, ConntrackFact, EntryNote, Fact, Hook, SocketEvent, SocketFact, TcpState},
};
use viptrace_class::Class;

/// Each drain takes a second and finds the next of these times, if any.
struct Slow<'a> {
    clock: &'a Cell<u64>,
    newest: Vec<Option<Timestamp>>,
    more: bool,
    cut_short_after: usize,
}

impl Buffer for Slow<'_> {
    fn drain(&mut self) -> Drained {
        self.clock.set(self.clock.get() + 1_000);
        let is_cut_short = self.cut_short_after == 0;
        self.cut_short_after = self.cut_short_after.saturating_sub(1);
        Drained { newest: self.newest.remove(0), is_cut_short }
    }

    fn has_more(&self) -> bool {
        self.more
    }
}

fn at(ms: u64) -> Timestamp {
    Timestamp::from_unix_ns(ms * 1_000_000)
}

/// Reads from the time 5,000 ms on.
fn read(newest: &[Option<u64>], more: bool, cut_short_after: usize) -> (Timestamp, Read) {
    let clock = Cell::new(5_000);
    let newest = newest.iter().map(|ms| ms.map(at)).collect();
    read_to_end(&mut Slow { clock: &clock, newest, more, cut_short_after }, || at(clock.get()))
}

#[test]
fn what_came_while_the_buffer_was_read_may_not_have_been_read() {
    assert_eq!(read(&[None], false, 9), (at(5_000), Read::ToEnd));
    assert_eq!(read(&[Some(5_900)], false, 9), (at(5_000), Read::ToEnd));
}

#[test]
fn a_record_that_is_being_written_is_told_from_a_new_one() {
    assert_eq!(read(&[Some(4_900), Some(5_100)], true, 9), (at(5_000), Read::ToEnd));
    assert_eq!(read(&[Some(4_900), Some(4_950)], true, 9), (at(5_000), Read::HeldUp));
    assert_eq!(read(&[Some(4_900), None], true, 9), (at(5_000), Read::HeldUp));
}

#[test]
fn a_turn_that_ends_before_the_buffer_reaches_its_last_record() {
    assert_eq!(read(&[Some(4_700)], true, 0), (at(5_000), Read::UpTo(at(4_700))));
    assert_eq!(read(&[Some(4_700), Some(4_800)], true, 1), (at(5_000), Read::UpTo(at(4_800))));
}

#[test]
fn time_waits_for_a_record_that_is_being_written_and_not_for_ever() {
    let mut until = Until(at(5_000));
    assert_eq!(until.advance(at(5_100), Read::ToEnd), at(5_100));
    assert_eq!(until.advance(at(5_200), Read::HeldUp), at(5_100));
    assert_eq!(until.advance(at(6_099), Read::HeldUp), at(5_100));
    assert_eq!(until.advance(at(6_300), Read::HeldUp), at(5_300));
    assert_eq!(until.advance(at(6_400), Read::UpTo(at(5_350))), at(5_350));
    assert_eq!(until.advance(at(6_401), Read::ToEnd), at(6_401));
    assert_eq!(until.advance(at(6_200), Read::ToEnd), at(6_401));
}

const VIP: &str = "10.96.0.10:80";
const ENDPOINT: &str = "10.244.1.7:8080";
const MAX_FLOWS: usize = 2_000;

/// A trace of a cluster whose only Service is `shop/cart`.
fn trace() -> Recorded {
    let service = json!({
        "metadata": {"name": "cart", "namespace": "shop", "uid": "cart"},
        "spec": {"clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "selector": {"app": "cart"},
                 "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]},
    });
    let mut history = History::new(LOOK_BACK);
    history.apply_listed(Timestamp::MIN, trim(Kind::Service, &service, &mut Vec::new()).unwrap());
    history.mark_known(Kind::Service);
    let settings = Settings {
        limits: Limits { max_flows: MAX_FLOWS, ..Limits::default() },
        node_name: None,
        node_netns: Some(Netns(1)),
        missing_hooks: Vec::new(),
        drop_reasons: true,
        grace: Grace::default(),
        detail: Detail::All,
    };
    Recorded::new(Pipeline::new(settings, Cluster { history, status: Status::new(Origin::None) }))
}

fn tuple(client: SocketAddr) -> Tuple {
    Tuple::new(Protocol::TCP, client, VIP.parse().unwrap())
}

/// The entry of a connection to the Service, when it is confirmed and when a RST ends it.
fn entry(client: SocketAddr, hook: Hook, time: Timestamp) -> Sighting {
    let nat = sighting::Status::DST_NAT | sighting::Status::DST_NAT_DONE | sighting::Status::SRC_NAT_DONE;
    let ct = Conntrack {
        id: u64::from(client.port()) << 32 | 0xffff,
        zone: 0,
        status: sighting::Status(nat | if hook == Hook::Confirm { 0 } else { sighting::Status::CONFIRMED }),
        orig: tuple(client),
        reply: Tuple::new(Protocol::TCP, ENDPOINT.parse().unwrap(), client),
    };
    let fact = Fact::Conntrack(ConntrackFact { ct, task: None, note: EntryNote::default() });
    Sighting { time, cpu: 0, hook, netns: Netns(1), fact }
}

fn state(client: SocketAddr, old: TcpState, new: TcpState, time: Timestamp) -> Sighting {
    let event = SocketEvent::State { old, new };
    let (bytes_acked, bytes_received) = (100, 200);
    let fact = SocketFact { sk: 1, tuple: tuple(client), event, bytes_acked, bytes_received, task: None };
    Sighting { time, cpu: 0, hook: Hook::SockEstablished, netns: Netns(2), fact: Fact::Socket(fact) }
}

/// A port scan that produces records at least as fast as they are read: refused connections, 10 µs apart.
struct Endless {
    time: Timestamp,
    produced: u32,
    most: usize,
}

impl Endless {
    fn new() -> Self {
        Self { time: now().saturating_sub(Duration::from_mins(10)), produced: 0, most: 0 }
    }
}

impl Source for Endless {
    fn drain(&mut self, limit: usize, into: &mut Vec<Sighting>, _: &mut dyn FnMut(&[u8])) -> usize {
        for _ in 0..limit {
            let address = (0x0b00_0000 + self.produced / 2).to_be_bytes();
            let hook = if self.produced.is_multiple_of(2) { Hook::Confirm } else { Hook::KillAcct };
            into.push(entry(SocketAddr::from((address, 40_000)), hook, self.time));
            self.time = self.time.saturating_add(Duration::from_micros(10));
            self.produced += 1;
        }
        self.most = self.most.max(into.len());
        limit
    }

    fn has_more(&self) -> bool {
        true
    }

    fn lost(&mut self) -> anyhow::Result<Vec<(Option<Hook>, u64)>> {
        Ok(Vec::new())
    }

    fn has_suppressed(&mut self) -> anyhow::Result<bool> {
        Ok(false)
    }

    fn suppressed(&mut self) -> anyhow::Result<Vec<SuppressedFailures>> {
        Ok(Vec::new())
    }

    fn rearm(&mut self) {}
}

#[test]
fn a_source_that_never_runs_dry_leaves_every_queue_bounded() {
    let (mut source, mut trace) = (Endless::new(), trace());
    let mut reader = Reader::new(source.time);
    let (mut verdicts, mut unjudged, mut last) = (0, 0, Timestamp::MIN);
    while source.produced < 100_000 {
        let before = source.produced;
        let until = reader.read(&mut source, &mut trace).unwrap();
        assert!(reader.has_more());
        assert!((source.produced - before) as usize <= TURN_RECORDS);
        assert!(until > last, "time advances with the records");
        last = until;
        let Judgements { judged, unjudged: evicted, .. } = trace.advance(until);
        assert!(judged.len() <= 256, "{} verdicts at once", judged.len());
        verdicts += judged.len() as u64;
        unjudged += evicted.iter().map(|flows| flows.count).sum::<u64>();
        let counters = trace.pipeline().counters();
        assert!(counters.open <= MAX_FLOWS as u64);
        assert!(counters.settled <= verdicts + 2 * 1024 + 256, "{counters:?}");
    }
    assert!(source.most <= BATCH_RECORDS);
    let counters = trace.pipeline().counters();
    assert_eq!(counters.evicted, unjudged);
    assert!(verdicts > 0 && unjudged > 0, "{verdicts} judged, {unjudged} evicted");
}

/// As in a trace: between two turns without a pause the loop still learns of a signal.
#[test]
fn a_stop_request_takes_effect_while_the_source_never_runs_dry() {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let mut stop = signal(SignalKind::user_defined2()).unwrap();
        let (mut source, mut trace) = (Endless::new(), trace());
        let mut reader = Reader::new(source.time);
        let mut sent: Option<Instant> = None;
        for turn in 0.. {
            tokio::select! {
                biased;
                _ = stop.recv() => break,
                () = crate::cli::stop::sleep_until(Some(Instant::now())) => {}
            }
            let until = reader.read(&mut source, &mut trace).unwrap();
            trace.advance(until);
            if turn == 2 {
                let kill = format!("kill -USR2 {}", std::process::id());
                assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
                sent = Some(Instant::now());
            }
            assert!(sent.is_none_or(|sent| sent.elapsed() < Duration::from_secs(5)), "it was not noticed");
        }
        assert!(sent.is_some());
    });
}

/// A buffer whose next record comes right after a reading, and wakes the reader only if it is armed by then.
#[derive(Default)]
struct Late {
    is_armed: bool,
    readings: usize,
    woke: bool,
}

impl Source for Late {
    fn drain(&mut self, _: usize, _: &mut Vec<Sighting>, _: &mut dyn FnMut(&[u8])) -> usize {
        self.readings += 1;
        0
    }

    fn has_more(&self) -> bool {
        false
    }

    fn lost(&mut self) -> anyhow::Result<Vec<(Option<Hook>, u64)>> {
        // The record comes now.
        self.woke = std::mem::take(&mut self.is_armed);
        Ok(Vec::new())
    }

    fn has_suppressed(&mut self) -> anyhow::Result<bool> {
        Ok(false)
    }

    fn suppressed(&mut self) -> anyhow::Result<Vec<SuppressedFailures>> {
        Ok(Vec::new())
    }

    fn rearm(&mut self) {
        // Another one would forget the record's wake-up.
        (self.is_armed, self.woke) = (true, false);
    }
}

#[test]
fn a_record_that_comes_right_after_a_reading_wakes_the_reader() {
    let (mut source, mut trace) = (Late::default(), trace());
    Reader::new(now()).read(&mut source, &mut trace).unwrap();
    assert!(source.readings > 0 && source.woke);
}

/// Batches of sightings, and the losses that the kernel counts with each.
struct Losing {
    batches: Vec<(Vec<Sighting>, u64)>,
    lost: u64,
    /// A limit of this client suppressed them.
    of_client: Option<IpAddr>,
    /// How often they were read.
    readings: usize,
}

impl Source for Losing {
    fn drain(&mut self, limit: usize, into: &mut Vec<Sighting>, _: &mut dyn FnMut(&[u8])) -> usize {
        if self.batches.is_empty() {
            return 0;
        }
        let (sightings, lost) = self.batches.remove(0);
        self.lost += lost;
        into.extend(sightings);
        limit
    }

    fn has_more(&self) -> bool {
        !self.batches.is_empty()
    }

    fn lost(&mut self) -> anyhow::Result<Vec<(Option<Hook>, u64)>> {
        Ok(if self.of_client.is_none() { vec![(None, std::mem::take(&mut self.lost))] } else { Vec::new() })
    }

    fn has_suppressed(&mut self) -> anyhow::Result<bool> {
        Ok(self.of_client.is_some() && self.lost > 0)
    }

    fn suppressed(&mut self) -> anyhow::Result<Vec<SuppressedFailures>> {
        self.readings += 1;
        let count = if self.of_client.is_some() { std::mem::take(&mut self.lost) } else { 0 };
        let of = SuppressedFailures { client: self.of_client, service: None, netns: Netns::default(), count };
        Ok(if count > 0 { vec![of] } else { Vec::new() })
    }

    fn rearm(&mut self) {}
}

const CLIENT: [u8; 4] = [10, 244, 1, 100];

/// The class of a healthy connection that settles within one reading, when these numbers of events are lost with each of
/// its batches: any events, or a client's that were suppressed.
fn class_with_losses(lost: [u64; 3], of_client: Option<[u8; 4]>) -> Class {
    let client = |port| SocketAddr::from((CLIENT, port));
    let begin = now();
    let after = |ms| begin.saturating_add(Duration::from_millis(ms));
    let first = vec![
        entry(client(1), Hook::Confirm, begin),
        state(client(1), TcpState::SynSent, TcpState::Established, after(1)),
        state(client(1), TcpState::FinWait2, TcpState::Close, after(2)),
    ];
    // It has settled when the next connection begins, a second later.
    let batches = [first, vec![entry(client(2), Hook::Confirm, after(1_000))], Vec::new()];
    let mut source = Losing {
        batches: batches.into_iter().zip(lost).collect(),
        lost: 0,
        of_client: of_client.map(IpAddr::from),
        readings: 0,
    };
    let (mut reader, mut trace) = (Reader::new(begin), trace());
    reader.read(&mut source, &mut trace).unwrap();
    let judged = trace.advance(after(1_000)).judged;
    assert_eq!(judged.len(), 1);
    judged[0].verdict.class
}

#[test]
fn losses_are_known_before_the_flows_of_the_same_reading_are_handed_out() {
    for of_client in [None, Some(CLIENT)] {
        assert_ne!(class_with_losses([0, 0, 0], of_client), Class::Unknown);
        assert_eq!(class_with_losses([3, 0, 0], of_client), Class::Unknown);
        assert_eq!(class_with_losses([0, 3, 0], of_client), Class::Unknown);
    }
    assert_ne!(class_with_losses([3, 3, 3], Some([10, 244, 1, 101])), Class::Unknown);
}

/// A storm suppresses failures with each batch. They are read now and then, and the sightings of their time wait.
#[test]
fn in_a_storm_suppressed_failures_are_read_once_in_a_while() {
    let client = SocketAddr::from((CLIENT, 1));
    let begin = now();
    let after = |ms| begin.saturating_add(Duration::from_millis(ms));
    let batch = |port, at| (vec![entry(SocketAddr::from((CLIENT, port)), Hook::Confirm, at)], 1);
    let mut storm = vec![batch(1, begin)];
    storm.extend((2..20).map(|port| batch(port, after(1))));
    storm[1].0.extend([
        state(client, TcpState::SynSent, TcpState::Established, after(1)),
        state(client, TcpState::FinWait2, TcpState::Close, after(2)),
    ]);
    let mut source = Losing { batches: storm, lost: 0, of_client: Some(IpAddr::from(CLIENT)), readings: 0 };
    let (mut reader, mut trace) = (Reader::new(begin), trace());
    let until = reader.read(&mut source, &mut trace).unwrap();
    assert_eq!((source.readings, reader.sightings.len(), source.batches.len()), (1, 20, 0));
    assert!(reader.next_reading().is_some() && until <= begin, "the time waits for the suppressed failures");
    // At the end of a trace nothing waits.
    reader.wait_no_longer();
    let until = reader.read(&mut source, &mut trace).unwrap();
    assert_eq!((source.readings, reader.sightings.len()), (2, 0));
    assert!(reader.next_reading().is_none() && until > begin);
    let judged = trace.advance(after(1_000)).judged;
    assert_eq!(judged.iter().map(|judged| judged.verdict.class).collect::<Vec<_>>(), [Class::Unknown]);
}

/// The kernel skips a program instead of the connection's last record, and reports nothing else.
#[test]
fn a_loss_is_known_although_nothing_was_read() {
    let class = |lost| {
        let begin = now();
        let client = SocketAddr::from((CLIENT, 1));
        let after = |ms| begin.saturating_add(Duration::from_millis(ms));
        let batch = vec![
            entry(client, Hook::Confirm, begin),
            state(client, TcpState::SynSent, TcpState::Established, after(1)),
            state(client, TcpState::FinWait2, TcpState::Close, after(2)),
        ];
        let mut source = Losing { batches: vec![(batch, 0)], lost: 0, of_client: None, readings: 0 };
        let (mut reader, mut trace) = (Reader::new(begin), trace());
        reader.read(&mut source, &mut trace).unwrap();
        source.lost = lost;
        reader.read(&mut source, &mut trace).unwrap();
        trace.advance(after(1_000)).judged[0].verdict.class
    };
    assert_ne!(class(0), Class::Unknown);
    assert_eq!(class(1), Class::Unknown);
}

/// A way has the sightings of the turn in which its flow is judged.
#[test]
fn a_pathfinder_receives_what_the_flows_receive() {
    let client = SocketAddr::from((CLIENT, 1));
    let begin = now();
    let after = |ms| begin.saturating_add(Duration::from_millis(ms));
    let batch = vec![
        entry(client, Hook::Confirm, begin),
        entry(SocketAddr::from((CLIENT, 2)), Hook::Confirm, after(1)),
        state(client, TcpState::SynSent, TcpState::Established, after(1)),
        state(client, TcpState::FinWait2, TcpState::Close, after(2)),
    ];
    let mut source = Losing { batches: vec![(batch, 0)], lost: 0, of_client: None, readings: 0 };
    let mut reader = Reader::with_ways(begin, Some(Pathfinder::new(client, None)));
    let mut trace = trace();
    reader.read(&mut source, &mut trace).unwrap();
    let judgements = trace.advance(after(1_000));
    let pathfinder = reader.pathfinder().unwrap();
    assert_eq!(pathfinder.judged(&judgements, trace.pipeline(), after(1_000)).len(), 0);
    let due = pathfinder.next_due().unwrap();
    assert!(due > after(2_000), "later sightings of the flow may come");
    let found = pathfinder.judged(&Judgements::default(), trace.pipeline(), due);
    let [crate::incident::Found::Way(trail)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(trail.steps.len(), 3);
    assert_eq!(pathfinder.next_due(), None);
}
