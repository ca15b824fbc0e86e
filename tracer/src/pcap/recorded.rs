//! What recordings have about the tuples of a capture: translations and verdicts.
//!
//! Owns which conntrack entries and verdicts are kept; their number is bounded. The pipeline of each replay judges.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    net::SocketAddr,
    time::Duration,
};

use foldhash::fast::RandomState;

use super::{
    Assembly, Tuples, canonical,
    clock::{Ahead, Beginnings},
};
use crate::{
    cluster::Address,
    net::{Protocol, Tuple},
    recording::{Observed, Sightings, Tape, UnusableFile},
    session::{Fate, Judged, Judgements},
    sighting::{Conntrack, Fact},
    text::count,
    time::Timestamp,
    verdict::Verdict,
};

/// The most translations and verdicts that are kept, over all recordings, and those of one tuple.
const MAX_TRANSLATIONS: usize = 1 << 18;
const MAX_VERDICTS: usize = 1 << 16;
const MAX_OF_ONE: usize = 256;
/// An entry is confirmed after its first packet was captured: by so much its translation applies earlier.
const BEFORE_CONFIRMED: Duration = Duration::from_millis(100);

/// What the recordings have.
#[derive(Debug, Default)]
pub struct Recorded {
    translations: HashMap<Tuple, Vec<Translation>, RandomState>,
    /// The connections of the translations, in canonical form.
    translated: HashSet<Tuple, RandomState>,
    verdicts: HashMap<Tuple, Vec<Found>, RandomState>,
    /// The tuples that went to no Service's address, with the recording's number.
    arrivals: HashMap<Tuple, Fate, RandomState>,
    /// The tuples of the capture that went to a Service's address.
    to_service: HashSet<Tuple, RandomState>,
    pub(super) recordings: Vec<Source>,
    kept_translations: usize,
    kept_verdicts: usize,
    /// Verdicts and translations beyond the limits.
    left_out: u64,
}

/// One recording: the files of a trace.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) name: String,
    pub(super) target: Option<String>,
    /// The first time that the wall clock showed during the recording, on the capture's clock.
    pub(super) started: Timestamp,
    /// The last one.
    pub(super) ended: Timestamp,
    /// How far the capture's clock is ahead of the recording's, if it is another one.
    pub(super) ahead: Option<Ahead>,
    pub(super) lost_events: u64,
    /// Only failures and a sample of the other connections were reported.
    pub(super) is_sampled: bool,
}

/// A tuple of a connection after NAT, in the client's direction, since a time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Translation {
    /// On the capture's clock.
    since: Timestamp,
    recording: usize,
    pub(super) tuple: Tuple,
    /// From the client to the VIP.
    pub(super) orig: Tuple,
}

/// A verdict, and the recording that has it.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) verdict: Verdict,
    /// When its flow began, on the capture's clock.
    pub(super) started: Timestamp,
    /// When its last event was seen, on the capture's clock.
    pub(super) last_seen: Timestamp,
    pub(super) was_answered: bool,
    pub(super) recording: usize,
}

impl Recorded {
    /// Keeps the translations and the verdicts that a recording has for the capture's tuples. Plays it to its end.
    ///
    /// # Errors
    ///
    /// If a file cannot be read. One that cannot be opened is left out, as the played tape says.
    pub(crate) fn add(&mut self, name: String, tuples: &Tuples, tape: &mut Tape) -> Result<(), UnusableFile> {
        let header = tape.header();
        self.recordings.push(Source {
            name,
            target: header.target.clone(),
            started: header.started,
            ended: Timestamp::MIN,
            ahead: None,
            lost_events: 0,
            is_sampled: false,
        });
        for path in tape.paths() {
            if let Some(mut sightings) = Sightings::of(path) {
                self.add_sightings(tuples, &mut sightings).map_err(|error| UnusableFile::io(path, &error))?;
            }
        }
        self.add_verdicts(tuples, tape)
    }

    /// Keeps the translations in a file of the recording that was added last.
    fn add_sightings(&mut self, tuples: &Tuples, sightings: &mut Sightings<File>) -> std::io::Result<()> {
        let (mut ended, mut is_sampled) = (Timestamp::MIN, false);
        while let Some(Observed { sighting, unix, .. }) = sightings.next_sighting()? {
            ended = ended.max(unix);
            let ct = match &sighting.fact {
                Fact::Conntrack(fact) => {
                    is_sampled |= fact.note.handed_over.is_some();
                    Some(fact.ct)
                }
                Fact::Packet(fact) => fact.ct,
                Fact::Ipvs(fact) => {
                    let after = Tuple { dst: fact.destination.into(), ..fact.tuple };
                    self.translate(unix, after, fact.tuple, tuples);
                    None
                }
                Fact::Socket(_) | Fact::TableFull { .. } => None,
            };
            if let Some(ct) = ct {
                self.add_entry(unix, &ct, tuples);
            }
        }
        if let Some(source) = self.recordings.last_mut() {
            source.ended = source.ended.max(ended);
            source.is_sampled |= is_sampled;
        }
        Ok(())
    }

    fn add_entry(&mut self, time: Timestamp, ct: &Conntrack, tuples: &Tuples) {
        let after = ct.reply.reversed();
        if after == ct.orig {
            return;
        }
        self.translate(time, after, ct.orig, tuples);
        // Between DNAT and masquerading the packet has the endpoint, and still the client.
        let between = Tuple { dst: after.dst, ..ct.orig };
        if between != after && between != ct.orig {
            self.translate(time, between, ct.orig, tuples);
        }
    }

    fn translate(&mut self, since: Timestamp, tuple: Tuple, orig: Tuple, tuples: &Tuples) {
        if !tuples.has(tuple) {
            return;
        }
        let recording = self.latest();
        let known = self.translations.entry(canonical(tuple)).or_default();
        if known.iter().rev().any(|known| known.orig == orig && known.tuple == tuple) {
            return;
        }
        if self.kept_translations >= MAX_TRANSLATIONS || known.len() >= MAX_OF_ONE {
            self.left_out += 1;
            return;
        }
        self.kept_translations += 1;
        self.translated.insert(canonical(orig));
        known.push(Translation { since, recording, tuple, orig });
    }

    /// The translation in force for a packet of this tuple, in canonical form.
    pub(super) fn translation(&self, key: Tuple, time: Option<Timestamp>) -> Option<&Translation> {
        let known = self.translations.get(&key)?;
        let until = time.map_or(Timestamp::MAX, |time| time.saturating_add(BEFORE_CONFIRMED));
        let in_force = known.iter().filter(|known| known.since <= until).max_by_key(|known| known.since);
        in_force.or_else(|| known.iter().min_by_key(|known| known.since))
    }

    /// Plays the recording that was added last, and keeps the verdicts for the capture's tuples.
    fn add_verdicts(&mut self, tuples: &Tuples, tape: &mut Tape) -> Result<(), UnusableFile> {
        while let Some((judgements, _)) = tape.step()? {
            self.keep(judgements, tuples);
        }
        // A clock that is set back shows times before the beginning, and one that is set forward shows them early.
        let mut steps = Vec::new();
        tape.wall_steps(|step| steps.push(step.at))?;
        let Some(player) = tape.player() else { return Ok(()) };
        let history = &player.pipeline().cluster().history;
        let is_service = |addr: SocketAddr, protocol: Protocol| {
            history.lookup(addr, protocol, player.now()) != Address::Other
        };
        for tuple in tuples.iter() {
            if is_service(tuple.src.socket(), tuple.protocol)
                || is_service(tuple.dst.socket(), tuple.protocol)
            {
                self.to_service.insert(*tuple);
            }
        }
        if let Some(source) = self.recordings.last_mut() {
            let pipeline = player.pipeline();
            let ended = tape.end().map_or(player.now(), |end| end.ended);
            let around = steps.iter().flat_map(|at| [at.saturating_sub(Duration::from_nanos(1)), *at]);
            source.started = pipeline.unix_then(source.started);
            for shown in around.chain([ended]).map(|at| pipeline.unix_then(at)) {
                (source.started, source.ended) = (source.started.min(shown), source.ended.max(shown));
            }
            source.lost_events = player.pipeline().lost_events();
        }
        Ok(())
    }

    /// The recording that was added last.
    fn latest(&self) -> usize {
        self.recordings.len().saturating_sub(1)
    }

    /// Compares the clock of the capture with that of each recording, and brings the recordings' times to it. Returns
    /// whether any of them is another clock: then the packets are to be assembled again.
    pub(crate) fn follow_clock_of(&mut self, capture: &Assembly) -> bool {
        let captured = capture.beginnings();
        let mut recorded: Vec<Beginnings> = Vec::new();
        recorded.resize_with(self.recordings.len(), Beginnings::default);
        for (key, found) in
            self.verdicts.iter().flat_map(|(key, all)| all.iter().map(move |found| (key, found)))
        {
            if let Some(recorded) = recorded.get_mut(found.recording) {
                recorded.add(*key, found.started);
            }
        }
        for (source, recorded) in self.recordings.iter_mut().zip(&recorded) {
            source.ahead = captured.ahead_of(recorded);
            let ns = source.ahead.map_or(0, |ahead| ahead.ns);
            (source.started, source.ended) = (source.started.shifted(ns), source.ended.shifted(ns));
        }
        let shift = |recording: usize| {
            self.recordings.get(recording).and_then(|source| source.ahead).map_or(0, |ahead| ahead.ns)
        };
        for found in self.verdicts.values_mut().flatten() {
            let ns = shift(found.recording);
            (found.started, found.last_seen) = (found.started.shifted(ns), found.last_seen.shifted(ns));
        }
        for translation in self.translations.values_mut().flatten() {
            translation.since = translation.since.shifted(shift(translation.recording));
        }
        self.recordings.iter().any(|source| source.ahead.is_some())
    }

    /// Where the capture's clock is another one than a recording's, in sentences.
    pub(crate) fn clock_notes(&self) -> Vec<String> {
        let note = |source: &Source| {
            let Ahead { ns, connections } = source.ahead?;
            let direction = if ns < 0 { "behind" } else { "ahead of" };
            let apart = Duration::from_nanos(ns.unsigned_abs());
            Some(format!(
                "the clock of the capture is {:.1} s {direction} that of {}, by {} that both have; the verdict's own times \
                 are the recording's",
                apart.as_secs_f64(),
                source.name,
                count(connections as u64, "connection"),
            ))
        };
        self.recordings.iter().filter_map(note).collect()
    }

    fn keep(&mut self, judgements: Judgements, tuples: &Tuples) {
        for judged in judgements.judged {
            self.keep_verdict(judged, tuples);
        }
        for arrival in judgements.arrivals {
            for protocol in [Protocol::TCP, Protocol::UDP, Protocol::SCTP] {
                let key = canonical(Tuple::new(protocol, arrival.client, arrival.to));
                if tuples.has(key) {
                    self.arrivals.insert(key, arrival.fate);
                }
            }
        }
    }

    fn keep_verdict(&mut self, judged: Judged, tuples: &Tuples) {
        let Judged { verdict, last_seen, was_answered, .. } = judged;
        let started = verdict.flow.started;
        let flow = &verdict.flow;
        let Some(protocol) = Protocol::from_name(&flow.protocol) else { return };
        let Some(to) = flow.vip.or(flow.endpoint) else { return };
        let orig = Tuple::new(protocol, flow.client, to);
        let after = flow.endpoint.map(|endpoint| Tuple::new(protocol, flow.client, endpoint));
        if let Some(after) = after.filter(|after| *after != orig) {
            self.translate(started, after, orig, tuples);
        }
        let key = canonical(orig);
        let is_wanted = tuples.has(orig)
            || after.is_some_and(|after| tuples.has(after))
            || self.translated.contains(&key);
        if !is_wanted {
            return;
        }
        let recording = self.latest();
        let found = self.verdicts.entry(key).or_default();
        // A later verdict on the same flow replaces the earlier one.
        let earlier = found.iter_mut().find(|found| found.recording == recording && found.started == started);
        if let Some(earlier) = earlier {
            (earlier.verdict, earlier.last_seen) = (verdict, last_seen);
            earlier.was_answered |= was_answered;
        } else if self.kept_verdicts < MAX_VERDICTS && found.len() < MAX_OF_ONE {
            self.kept_verdicts += 1;
            found.push(Found { verdict, started, last_seen, was_answered, recording });
        } else {
            self.left_out += 1;
        }
    }

    /// What had no room, in words.
    pub(crate) fn remark(&self) -> Option<String> {
        (self.left_out > 0)
            .then(|| format!("{} or translations of recordings had no room", count(self.left_out, "verdict")))
    }

    /// The verdicts on connections of this tuple, in canonical form.
    pub(super) fn verdicts(&self, key: Tuple) -> &[Found] {
        self.verdicts.get(&key).map_or(&[], Vec::as_slice)
    }

    /// What became of a connection of this tuple that went to no Service's address.
    pub(super) fn arrival(&self, key: Tuple) -> Option<Fate> {
        self.arrivals.get(&key).copied()
    }

    pub(super) fn is_to_service(&self, key: Tuple) -> bool {
        self.to_service.contains(&key)
    }
}
