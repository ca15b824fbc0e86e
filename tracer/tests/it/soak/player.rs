//! Plays a soak: hands the sightings of all flows to a pipeline as a trace does.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use viptrace::{
    cluster::{Event, Update, model::Change},
    flow::{Limits, Lost, Reread},
    node::ProxyMode,
    session::{Detail, Judgements, Pipeline, Settings},
    sighting::{ListedEntry, Sighting},
    time::Timestamp,
};

use super::{
    cluster::Soaked,
    services::BEGIN,
    traffic::Traffic,
    wire::{Entry, Planned, listed, reread},
};
use crate::{flow_support::at, recording_support::Random, session_support::settings};

/// Which events never reach the flows. The loss of each is reported, as the kernel half counts every record for which its
/// buffer has no room; a trace cannot know of losses that nothing counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    Nothing,
    /// Every tenth event, at random.
    Scattered,
    /// All events of every tenth read, at random.
    Bursts,
}

/// A soak's parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Soak {
    pub(crate) mode: ProxyMode,
    pub(crate) seed: u64,
    pub(crate) flows: usize,
    /// Of a hundred flows to Services in which nothing is wrong, so many are broken.
    pub(crate) broken: u64,
    pub(crate) loss: Loss,
}

/// The events that a trace receives at once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turn {
    pub(crate) ms: u64,
    pub(crate) sightings: Vec<Sighting>,
    lost: u64,
    pub(crate) changes: Vec<(u64, Change)>,
}

/// A soak that was made and not played.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) soaked: Soaked,
    pub(crate) turns: Vec<Turn>,
    /// In the order of their beginnings.
    pub(crate) flows: Vec<Planned>,
    entries: HashMap<u64, Entry>,
    /// Entries that datagrams keep alive, with the times of these.
    kept: Vec<(Entry, Vec<Timestamp>)>,
}

/// The time in which flows begin, and the time after it until the last one is over.
const LENGTH: u64 = 600_000;
pub(crate) const REST: u64 = 200_000;
/// The time whose events a trace reads at once, milliseconds.
const TURN: u64 = 100;
/// How often the node's old UDP entries are listed.
const LIST_EVERY: u64 = 15_000;

impl Soak {
    /// Makes all flows for which `wanted` returns true, and orders their sightings.
    pub(crate) fn prepare(self, wanted: impl Fn(&Planned) -> bool) -> Prepared {
        let mut random = Random(self.seed);
        let soaked = Soaked::new(self.mode, &mut random, LENGTH);
        let mut starts: Vec<u64> = (0..self.flows).map(|_| BEGIN + random.below(LENGTH)).collect();
        starts.sort_unstable();
        let mut order = Random(random.next());
        let mut traffic = Traffic::new(&soaked, random, self.broken);
        let mut flows: Vec<Planned> = Vec::new();
        for ms in starts {
            flows.extend(traffic.next(ms).into_iter().filter(&wanted));
        }
        let last = (soaked.end + REST) / TURN;
        let mut turns: Vec<Turn> = (0..=last).map(|n| Turn { ms: n * TURN, ..Turn::default() }).collect();
        // The turn after it, also of an event a few microseconds after a turn.
        let of = |time: Timestamp| {
            let turn = time.since(at(0)).as_nanos().div_ceil(u128::from(TURN) * 1_000_000);
            turn.min(u128::from(last)) as usize
        };
        let bursts: Vec<bool> = turns.iter().map(|_| order.below(10) == 0).collect();
        for flow in &mut flows {
            for sighting in std::mem::take(&mut flow.sightings) {
                let number = of(sighting.time);
                let is_lost = match self.loss {
                    Loss::Nothing => false,
                    Loss::Scattered => order.below(10) == 0,
                    Loss::Bursts => bursts[number],
                };
                if is_lost {
                    turns[number].lost += 1;
                    flow.lost.push(sighting.time);
                } else {
                    turns[number].sightings.push(sighting);
                }
            }
        }
        for change in &soaked.changes {
            turns[of(at(change.0))].changes.push(change.clone());
        }
        for turn in &mut turns {
            mix(&mut turn.sightings, &mut order);
        }
        let entries =
            flows.iter().flat_map(|flow| &flow.entries).map(|entry| (entry.ct.id, *entry)).collect();
        let kept = flows.iter().filter(|flow| !flow.datagrams.is_empty());
        let kept = kept.filter_map(|flow| Some((*flow.entries.first()?, flow.datagrams.clone()))).collect();
        Prepared { soaked, turns, flows, entries, kept }
    }
}

/// Events of different CPUs arrive in any order within a few milliseconds.
fn mix(sightings: &mut [Sighting], random: &mut Random) {
    let late: BTreeMap<u16, u64> = (0..8).map(|cpu| (cpu, random.below(20))).collect();
    sightings.sort_by_key(|it| it.time.saturating_add(Duration::from_millis(late[&it.cpu])));
}

impl Prepared {
    /// Plays everything. `take` gets the results of each step.
    pub(crate) fn play(self, detail: Detail, take: &mut dyn FnMut(Judgements)) {
        let limits = Limits { reread: Reread::All, ..Limits::default() };
        let settings = Settings { limits, ..settings(detail) };
        let Self { soaked, turns, entries, kept, .. } = self;
        let mut run = Run { pipeline: Pipeline::new(settings, soaked.cluster()), entries, kept, take };
        // As a trace does before it attaches.
        let begin = at(BEGIN - 1_000);
        run.pipeline.node_read(soaked.snapshot(BEGIN - 1_000), begin, begin);
        for turn in turns {
            run.turn(turn, &soaked);
        }
        run.end(soaked.end + REST + 100_000, &soaked);
    }
}

struct Run<'a> {
    pipeline: Pipeline,
    entries: HashMap<u64, Entry>,
    kept: Vec<(Entry, Vec<Timestamp>)>,
    take: &'a mut dyn FnMut(Judgements),
}

impl Run<'_> {
    fn turn(&mut self, turn: Turn, soaked: &Soaked) {
        let Turn { ms, sightings, lost, changes } = turn;
        for (ms, change) in changes {
            self.pipeline.cluster_mut().absorb(update(ms, change));
        }
        self.pipeline.observe(sightings);
        let now = at(ms);
        self.pipeline.lost(Lost::of_unknown_hook(lost, at(ms.saturating_sub(TURN)), now));
        if ms.is_multiple_of(LIST_EVERY) {
            self.list_old_entries(now);
        }
        let wanted = self.pipeline.advance_clock(now);
        self.reread(&wanted, now);
        self.judge_all(now);
        // A trace reads the node at most once a second.
        if ms.is_multiple_of(1_000) && self.pipeline.wants_node() {
            let judgements = self.pipeline.node_read(soaked.snapshot(ms), now, now);
            (self.take)(judgements);
        }
    }

    fn end(&mut self, ms: u64, soaked: &Soaked) {
        let now = at(ms);
        let wanted = self.pipeline.last_rereads();
        self.reread(&wanted, now);
        let judgements = self.pipeline.finish(now);
        (self.take)(judgements);
        self.judge_all(now);
        let judgements = self.pipeline.node_read(soaked.snapshot(ms), now, now);
        (self.take)(judgements);
        self.judge_all(now);
    }

    fn judge_all(&mut self, now: Timestamp) {
        loop {
            let judgements = self.pipeline.judge(now);
            (self.take)(judgements);
            if !self.pipeline.has_backlog() {
                break;
            }
        }
    }

    fn reread(&mut self, wanted: &[u64], now: Timestamp) {
        let read = wanted.iter().filter_map(|id| self.entries.get(id)?.read(now));
        let read: Vec<Sighting> = read.map(|ct| reread(ct, now)).collect();
        self.pipeline.observe(read);
    }

    fn list_old_entries(&mut self, now: Timestamp) {
        let alive = |(entry, datagrams): &(Entry, Vec<Timestamp>)| {
            let last = datagrams.iter().copied().filter(|time| *time <= now).max()?;
            let ct = entry.read(now)?;
            Some(ListedEntry { ct, read_at: now, last_packet: Some(last) })
        };
        let entries: Vec<ListedEntry> = self.kept.iter().filter_map(alive).collect();
        let stale = self.pipeline.stale_entries(&entries);
        let listed = stale.iter().filter_map(|it| Some(listed(it.ct, it.read_at, it.last_packet?)));
        let listed: Vec<Sighting> = listed.collect();
        self.pipeline.observe(listed);
    }
}

pub(crate) fn update(ms: u64, change: Change) -> Update {
    let kind = match &change {
        Change::Put(trimmed) => trimmed.object.kind(),
        Change::Delete(kind, _) => *kind,
    };
    // A watch has the time of the event. Only objects of a list have times of whole seconds, to the half millisecond.
    let received = at(ms).saturating_add(Duration::from_millis(1));
    Update { kind, received, event: Event::Changed(change) }
}
