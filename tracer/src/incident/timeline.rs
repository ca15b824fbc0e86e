//! The traces of several nodes, played side by side as one timeline.
//!
//! Owns the order of the traces' judgements on one clock, and the conversion of their times. The first pass over the
//! files compares the clocks, the second one plays them: memory does not depend on their length. A single trace is played
//! once, and its times are those that its wall clock showed, unless they are to be compared with each other.

use std::{num::NonZero, ops::Range, path::PathBuf, thread};

use super::clock::{Alignment, Compared, Seen};
use crate::{
    recording::{Header, LeftOut, Observed, Part, Reading, Tape, Tapes, UnusableFile},
    session::{Detail, Judgements, Showing, WallSteps},
    time::Timestamp,
};

/// Several traces on one clock.
#[derive(Debug)]
pub struct Timeline {
    tracks: Vec<Track>,
    alignment: Alignment,
    /// The first files that could not be used, the number of further ones, and that of other files in the folders.
    pub skipped: Vec<UnusableFile>,
    pub skipped_more: u64,
    /// Files that are left out as copies.
    pub copies: Vec<LeftOut>,
    pub others: u64,
    skip_until: Option<Timestamp>,
    each_since: Timestamp,
    /// The times are those of the trace's clock, which nobody steps.
    on_trace_clock: bool,
    /// The part of a single trace that is read.
    part: Part,
}

/// One trace.
#[derive(Debug)]
pub struct Track {
    tape: Tape,
    name: String,
    /// Its clock among those that are compared. Traces since one boot of a node have one clock.
    clock: usize,
    /// Nanoseconds from its own clock to that of the first trace of this boot.
    shift_ns: i64,
    /// Its next judgements, and their time on the common clock.
    next: Option<(Judgements, Timestamp)>,
    is_over: bool,
}

/// The judgements of one trace, with all times on the common clock.
#[derive(Debug)]
pub struct Moment {
    /// The trace, as an index of [`Timeline::tracks`].
    pub track: usize,
    pub judgements: Judgements,
    pub now: Timestamp,
}

impl Track {
    /// The node's name, with the time of the beginning if another trace has the same node.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    pub fn header(&self) -> &Header {
        self.tape.header()
    }
}

impl Timeline {
    /// Finds the traces and, if there are several, compares their clocks: that reads every file once.
    pub fn open(paths: &[PathBuf]) -> Result<Self, UnusableFile> {
        let Tapes { tapes, skipped, skipped_more, copies, others } = Tapes::find(paths, Detail::All)?;
        let clocks = clocks(&tapes);
        let is_single = tapes.len() == 1;
        let alignment = if is_single {
            Alignment::of(&[Seen::default()])
        } else {
            let Tapes { tapes: first, .. } = Tapes::find(paths, Detail::Faults)?;
            Alignment::of(&seen(first, &clocks)?)
        };
        let names = names(&tapes);
        let tracks = tapes.into_iter().zip(names).zip(clocks).map(|((tape, name), (clock, shift_ns))| {
            Track { tape, name, clock, shift_ns, next: None, is_over: false }
        });
        Ok(Self {
            tracks: tracks.collect(),
            alignment,
            skipped,
            skipped_more,
            copies,
            others,
            skip_until: None,
            each_since: Timestamp::MIN,
            on_trace_clock: !is_single,
            part: Part::Whole,
        })
    }

    pub fn tracks(&self) -> &[Track] {
        &self.tracks
    }

    /// The trace whose clock is the common one.
    pub fn reference(&self) -> Option<&Track> {
        self.tracks.iter().find(|track| track.clock == self.alignment.reference)
    }

    /// The comparison of this trace's clock with the common one; `None` if it is the same clock.
    pub fn compared(&self, track: usize) -> Option<&Compared> {
        let clock = self.tracks.get(track)?.clock;
        self.alignment.clocks.get(clock).filter(|_| clock != self.alignment.reference)
    }

    /// A time of this trace on the common clock. A clock that could not be compared is taken as it is.
    pub fn common(&self, track: usize, time: Timestamp) -> Timestamp {
        match self.tracks.get(track) {
            // A single trace keeps its times.
            Some(track) if self.tracks.len() > 1 => common(&self.alignment, track, time),
            Some(_) | None => time,
        }
    }

    /// The time at which a sighting of this trace is shown: on the common clock, or of a single trace by its wall clock.
    pub fn shown(&self, track: usize, observed: &Observed<'_>) -> Timestamp {
        if self.on_trace_clock { self.common(track, observed.sighting.time) } else { observed.unix }
    }

    /// Between which times of the trace's clock the wall clock of a single trace showed these times. Several traces have
    /// one clock, which is never stepped.
    pub fn on_trace_clock(
        &self,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<(Timestamp, Timestamp), UnusableFile> {
        let mut showing = Showing::of(from, to);
        if let [track] = self.tracks.as_slice() {
            track.tape.wall_steps(|step| showing.step(step))?;
        }
        Ok(showing.on_trace_clock())
    }

    /// Whether the times of verdicts are those of the trace's clock, which is never stepped.
    pub fn is_on_trace_clock(&self) -> bool {
        self.on_trace_clock
    }

    /// The steps of the wall clock of a single trace, before it is played.
    pub(crate) fn wall_clock(&self) -> Result<WallSteps, UnusableFile> {
        let mut steps = WallSteps::default();
        if let [track] = self.tracks.as_slice() {
            let started = track.header().started;
            track.tape.wall_steps(|step| steps.note(step, started))?;
        }
        Ok(steps)
    }

    /// A time of this trace as it is shown: of a single trace by its wall clock then, otherwise on the common clock.
    pub fn displayed(&self, track: usize, time: Timestamp) -> Timestamp {
        match self.tracks.get(track).map(Track::tape).and_then(Tape::player) {
            Some(player) if !self.on_trace_clock => player.pipeline().unix_then(time),
            _ => self.common(track, time),
        }
    }

    /// The latest end of the traces on the common clock, before they are played. Without intact last blocks, a trace's
    /// beginning stands for its end.
    pub fn last_time(&self) -> Timestamp {
        let ends = self.tracks.iter().map(|track| {
            let own = track.tape.last_time().unwrap_or(track.header().started);
            common(&self.alignment, track, own)
        });
        ends.max().unwrap_or_default()
    }

    /// A time of the common clock, as this trace counts it.
    pub fn own(&self, track: usize, time: Timestamp) -> Timestamp {
        let Some(track) = self.tracks.get(track) else { return time };
        if self.tracks.len() == 1 || time == Timestamp::MIN || time == Timestamp::MAX {
            return time;
        }
        let on_clock = match self.alignment.distance(track.clock) {
            Some(distance) => distance.to_second(time),
            None => time,
        };
        on_clock.shifted(track.shift_ns.saturating_neg())
    }

    /// Before the first step: leaves out events before this time of the common clock. The objects and the nodes are
    /// followed all the same. A flow that began before it is partial.
    pub fn skip_until(&mut self, time: Timestamp) {
        self.skip_until = Some(time);
    }

    /// Before the first step: healthy flows that were last seen before this time of the common clock may share verdicts.
    pub fn each_since(&mut self, time: Timestamp) {
        self.each_since = time;
    }

    /// Before the first step, of a single trace: observes and reads only this part, from the time on that
    /// [`Self::skip_until`] set.
    pub fn narrow(&mut self, part: Part) {
        if self.tracks.len() == 1 {
            self.part = part;
        }
    }

    /// How much of a narrowed trace was read so far.
    pub fn reading(&self) -> Option<Reading> {
        if matches!(self.part, Part::Whole) {
            return None;
        }
        Some(self.tracks.first()?.tape.reading())
    }

    /// Before the first step: the times of a single trace do not follow the steps of the wall clock, as those of several
    /// never do. Only then do they show what came first, and how much later the next one came.
    pub fn stay_on_trace_clock(&mut self) {
        self.on_trace_clock = true;
    }

    /// The pairs of traces that observed one node at the same time: a flow that both recorded is played twice.
    pub fn overlapping(&self) -> Vec<(&Track, &Track)> {
        let has_twin =
            |track: &&Track| self.tracks.iter().filter(|other| other.clock == track.clock).count() > 1;
        let span = |track| {
            let (from, to) = (Track::header(track).started, track.tape.last_time()?);
            Some((track, from.shifted(track.shift_ns)..to.shifted(track.shift_ns)))
        };
        // The end of each is read from its file once.
        let spans: Vec<_> = self.tracks.iter().filter(has_twin).filter_map(span).collect();
        let mut pairs = Vec::new();
        for (index, (one, of_one)) in spans.iter().enumerate() {
            let overlap = |(other, of_other): &&(&Track, Range<Timestamp>)| {
                one.clock == other.clock && of_one.start < of_other.end && of_other.start < of_one.end
            };
            pairs.extend(spans.iter().skip(index + 1).filter(overlap).map(|(other, _)| (*one, *other)));
        }
        pairs
    }

    /// Before the first step: how healthy flows are reported.
    pub fn set_detail(&mut self, detail: Detail) {
        self.tracks.iter_mut().for_each(|track| track.tape.set_detail(detail));
    }

    /// The next judgements in the order of time; `None` at the end.
    pub fn step(&mut self) -> Result<Option<Moment>, UnusableFile> {
        let is_single = self.tracks.len() == 1;
        let begins: Vec<_> = (0..self.tracks.len())
            .map(|track| {
                (self.skip_until.map(|time| self.own(track, time)), self.own(track, self.each_since))
            })
            .collect();
        let waiting = self.tracks.iter_mut().zip(begins);
        for (track, (begin, each_since)) in
            waiting.filter(|(track, _)| track.next.is_none() && !track.is_over)
        {
            track.tape.open(|player| {
                // All of a trace is judged at the pace of the live one: an earlier verdict could rest on less.
                if !matches!(self.part, Part::Whole) {
                    player.judge_all();
                }
                if self.on_trace_clock {
                    player.recorded().stay_on_trace_clock();
                }
                player.recorded().each_since(each_since);
                if let Some(begin) = begin {
                    player.skip_until(begin);
                }
                // A file that cannot be read fails in the first step.
                let _ = player.narrow(self.part.clone());
            });
            match track.tape.step()? {
                Some((judgements, now)) if is_single => track.next = Some((judgements, now)),
                Some((mut judgements, now)) => {
                    let to_common = |time| common(&self.alignment, track, time);
                    judgements.map_times(to_common);
                    let now = to_common(now);
                    track.next = Some((judgements, now));
                }
                None => track.is_over = true,
            }
        }
        let times = self.tracks.iter().enumerate().filter_map(|(index, track)| {
            let (_, now) = track.next.as_ref()?;
            Some((*now, index))
        });
        let Some((_, index)) = times.min() else { return Ok(None) };
        let next = self.tracks.get_mut(index).and_then(|track| track.next.take());
        Ok(next.map(|(judgements, now)| Moment { track: index, judgements, now }))
    }
}

fn common(alignment: &Alignment, track: &Track, time: Timestamp) -> Timestamp {
    if time == Timestamp::MIN || time == Timestamp::MAX {
        return time;
    }
    let on_clock = time.shifted(track.shift_ns);
    match alignment.distance(track.clock) {
        Some(distance) => distance.to_first(on_clock),
        None => on_clock,
    }
}

/// The clock of each trace, and the nanoseconds from the trace's own count to it.
fn clocks(tapes: &[Tape]) -> Vec<(usize, i64)> {
    let mut boots: Vec<&Header> = Vec::new();
    let mut clocks = Vec::new();
    for tape in tapes {
        let header = tape.header();
        let known = boots.iter().position(|first| first.boot.is_some() && first.boot == header.boot);
        let clock = known.unwrap_or_else(|| {
            boots.push(header);
            boots.len() - 1
        });
        // The kernel's clock is the same: only its distance from Unix time was measured again.
        let first = boots.get(clock).map_or(header.clock_offset_ns, |first| first.clock_offset_ns);
        clocks.push((clock, first.wrapping_sub(header.clock_offset_ns).cast_signed()));
    }
    clocks
}

/// The flows that each clock timed. Traces are played at the same time where there are processors for them.
fn seen(tapes: Vec<Tape>, clocks: &[(usize, i64)]) -> Result<Vec<Seen>, UnusableFile> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let mut seen: Vec<Seen> = Vec::new();
    seen.resize_with(clocks.iter().map(|(clock, _)| clock + 1).max().unwrap_or_default(), Seen::default);
    let mut waiting = tapes.into_iter().zip(clocks);
    loop {
        let some: Vec<_> = waiting.by_ref().take(threads).collect();
        if some.is_empty() {
            return Ok(seen);
        }
        let played: Vec<_> = thread::scope(|scope| {
            let playing: Vec<_> = some
                .into_iter()
                .map(|(tape, (clock, shift))| (clock, scope.spawn(move || crossings(tape, *shift))))
                .collect();
            playing.into_iter().map(|(clock, thread)| (clock, thread.join())).collect()
        });
        for (clock, crossings) in played {
            // A thread that panicked has no result: its clock is not compared.
            let Ok(crossings) = crossings else { continue };
            let crossings = crossings?;
            if let Some(seen) = seen.get_mut(*clock) {
                seen.absorb(crossings);
            }
        }
    }
}

/// Plays the trace to find the flows that cross to other nodes.
fn crossings(mut tape: Tape, shift_ns: i64) -> Result<Seen, UnusableFile> {
    let mut seen = Seen::default();
    tape.open(|player| player.recorded().note_crossings());
    while let Some((judgements, _)) = tape.step()? {
        for crossing in judgements.crossings {
            seen.add(crossing.shifted(shift_ns));
        }
    }
    Ok(seen)
}

fn names(tapes: &[Tape]) -> Vec<String> {
    let node = |tape: &Tape| tape.header().node_name.clone().unwrap_or_else(|| "an unnamed node".to_owned());
    let nodes: Vec<String> = tapes.iter().map(node).collect();
    let name = |(tape, node): (&Tape, &String)| {
        if nodes.iter().filter(|other| *other == node).count() > 1 {
            format!("{node} (from {})", tape.header().started.to_the_millisecond())
        } else {
            node.clone()
        }
    };
    tapes.iter().zip(&nodes).map(name).collect()
}
