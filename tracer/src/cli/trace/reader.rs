//! Reads the kernel's ring buffer in turns of bounded length, and determines the time up to which all records have been
//! read.
//!
//! Time advances for the flows only up to that time, so that no flow times out while its answer waits to be read: a
//! busy node may keep viptrace, or a program that has begun a record, from the CPU for longer than a flow waits. Where
//! records arrive as fast as they are read, a turn ends before the buffer does, so that flows are judged and a stop
//! request is noticed all the same.

use std::time::{Duration, Instant};

use anyhow::Context as _;

use crate::{
    flow::{Lost, Suppressed},
    incident::Pathfinder,
    kernel::{now, recorder::Suppressed as SuppressedFailures, tracer::Tracer},
    net::Netns,
    recording::{Recorded, Records},
    sighting::{Hook, ListedEntry, Sighting},
    time::Timestamp,
};

/// The maximum number of records read before the losses are read and the flows are processed: bounds the memory between
/// the two.
const BATCH_RECORDS: usize = 1024;
/// The maximum of one turn: the records that a burst leaves in the buffer, and the time for them.
const TURN_RECORDS: usize = 32 * BATCH_RECORDS;
const TURN: Duration = Duration::from_millis(100);
/// How far time may lag behind for a record that was begun and is not finished.
const HELD_UP: Duration = Duration::from_secs(1);
/// How often the suppressed failures are read while there are more and more of them. The kernel skips kprobes on the CPU of a
/// process that reads a hash map (`bpf_disable_instrumentation`), and a storm suppresses failures all the time.
const SUPPRESSED: Duration = Duration::from_secs(1);

/// The records of a kernel, in the order of their reservation.
pub(super) trait Source {
    /// Takes out at most `limit` finished records. `keep` receives each record that becomes a sighting. Returns how many
    /// there were.
    fn drain(&mut self, limit: usize, into: &mut Vec<Sighting>, keep: &mut dyn FnMut(&[u8])) -> usize;
    /// Whether there is more: newer records, or one that is still being written.
    fn has_more(&self) -> bool;
    /// How many events were lost since the last call, by hook: without room in the buffer, skipped by the kernel, or (then
    /// their hook is unknown) not decodable.
    fn lost(&mut self) -> anyhow::Result<Vec<(Option<Hook>, u64)>>;
    /// Whether a limit of the kernel suppressed failures since the last call of [`Self::suppressed`].
    fn has_suppressed(&mut self) -> anyhow::Result<bool>;
    /// The failures that a limit of the kernel suppressed since the last call.
    fn suppressed(&mut self) -> anyhow::Result<Vec<SuppressedFailures>>;
    /// Called before the records are read: those that come from then on wake the reader again.
    fn rearm(&mut self);
}

impl Source for Tracer {
    fn drain(&mut self, limit: usize, into: &mut Vec<Sighting>, keep: &mut dyn FnMut(&[u8])) -> usize {
        Self::drain(self, limit, into, keep)
    }

    fn has_more(&self) -> bool {
        Self::has_more(self)
    }

    fn lost(&mut self) -> anyhow::Result<Vec<(Option<Hook>, u64)>> {
        let losses = self.losses().context("cannot read how many events were lost")?;
        let undecodable = (None, self.take_undecodable());
        Ok(losses.into_iter().chain([undecodable]).collect())
    }

    fn has_suppressed(&mut self) -> anyhow::Result<bool> {
        Self::has_suppressed(self).context("cannot read how many failures were suppressed")
    }

    fn suppressed(&mut self) -> anyhow::Result<Vec<SuppressedFailures>> {
        Self::suppressed(self).context("cannot read how many failures were suppressed")
    }

    fn rearm(&mut self) {
        Self::rearm(self);
    }
}

/// Passes the records from the kernel to the flows.
#[derive(Debug)]
pub(super) struct Reader {
    sightings: Vec<Sighting>,
    /// Receives the sightings before the flows do, if ways are wanted.
    pathfinder: Option<Box<Pathfinder>>,
    /// The records of the sightings, for the recording.
    records: Records,
    /// When the losses were last read: any new ones happened since then.
    last: Timestamp,
    /// Up to when it is known which failures were suppressed.
    last_suppressed: Timestamp,
    /// When the suppressed failures were last read. `None`: the next ones are read at once.
    suppressed_read: Option<Instant>,
    /// Failures were suppressed and not read yet: the sightings wait for them.
    is_waiting: bool,
    until: Until,
    has_more: bool,
}

impl Reader {
    pub(super) fn new(started: Timestamp) -> Self {
        Self {
            sightings: Vec::new(),
            pathfinder: None,
            records: Records::default(),
            last: started,
            last_suppressed: started,
            suppressed_read: None,
            is_waiting: false,
            until: Until(started),
            has_more: false,
        }
    }

    /// The same, with the ways of flows.
    pub(super) fn with_ways(started: Timestamp, pathfinder: Option<Pathfinder>) -> Self {
        Self { pathfinder: pathfinder.map(Box::new), ..Self::new(started) }
    }

    pub(super) fn pathfinder(&mut self) -> Option<&mut Pathfinder> {
        self.pathfinder.as_deref_mut()
    }

    /// When the next way is complete.
    pub(super) fn next_way(&self) -> Option<Timestamp> {
        self.pathfinder.as_ref()?.next_due()
    }

    /// Passes on the sightings that were read.
    fn observe(&mut self, pipeline: &mut Recorded) {
        if let Some(pathfinder) = &mut self.pathfinder {
            pathfinder.observe(&self.sightings);
        }
        pipeline.observe(self.sightings.drain(..), &mut self.records);
    }

    /// Makes the next reading pass on everything that it finds, as at the end of a trace.
    pub(super) fn wait_no_longer(&mut self) {
        self.suppressed_read = None;
    }

    /// When a reading is due although no record comes.
    pub(super) fn next_reading(&self) -> Option<Instant> {
        self.suppressed_read.filter(|_| self.is_waiting).map(|read| read + SUPPRESSED)
    }

    /// Whether the last turn ended before the buffer did.
    pub(super) fn has_more(&self) -> bool {
        self.has_more
    }

    /// Reads waiting records for one turn, and before each batch of them is observed the losses and the suppressed
    /// failures, so that no flow is handed out without those of its time. Returns the time up to which all records have
    /// been read.
    pub(super) fn read(
        &mut self,
        source: &mut impl Source,
        pipeline: &mut Recorded,
    ) -> anyhow::Result<Timestamp> {
        source.rearm();
        let mut waiting = Waiting {
            reader: self,
            source,
            pipeline,
            left: TURN_RECORDS,
            end: Instant::now() + TURN,
            failure: None,
        };
        let (began, read) = read_to_end(&mut waiting, now);
        if let Some(failure) = waiting.failure {
            return Err(failure);
        }
        self.has_more = matches!(read, Read::UpTo(_));
        Ok(if self.is_waiting { self.until.0 } else { self.until.advance(began, read) })
    }

    /// Passes on the failures that were suppressed, before the time advances over them. If that was done a short time ago, and the
    /// sightings have room, these wait for the next time.
    fn suppressed(&mut self, source: &mut impl Source, pipeline: &mut Recorded) -> anyhow::Result<()> {
        let to = now();
        if !source.has_suppressed()? {
            self.is_waiting = false;
            self.last_suppressed = to;
            return Ok(());
        }
        let is_due = self.suppressed_read.is_none_or(|read| read.elapsed() >= SUPPRESSED);
        self.is_waiting = !is_due && self.sightings.len() < BATCH_RECORDS;
        if self.is_waiting {
            return Ok(());
        }
        self.suppressed_read = Some(Instant::now());
        let suppressed = source.suppressed()?;
        let (from, to) = (self.last_suppressed, now());
        self.last_suppressed = to;
        for SuppressedFailures { client, service, netns, count } in suppressed {
            pipeline.suppressed(Suppressed { client, service, netns, from, to, count });
        }
        Ok(())
    }

    /// Takes old entries as if the kernel had reported them.
    pub(super) fn listed(
        &mut self,
        entries: &[ListedEntry],
        netns: Netns,
        tracer: &Tracer,
        pipeline: &mut Recorded,
    ) {
        let (records, recording) = (&mut self.records, pipeline.is_recording());
        tracer.listed(entries, netns, &mut self.sightings, |record| {
            if recording {
                records.push(record);
            }
        });
        self.observe(pipeline);
    }
}

/// A buffer whose records leave in the order of their reservation.
trait Buffer {
    /// Takes out the finished records, as many as this turn allows.
    fn drain(&mut self) -> Drained;
    /// Whether there is more: newer records, or one that is still being written.
    fn has_more(&self) -> bool;
}

/// The result of a drain.
#[derive(Clone, Copy, Debug)]
struct Drained {
    /// The time of the newest record.
    newest: Option<Timestamp>,
    /// The turn ended before the buffer did.
    is_cut_short: bool,
}

/// How far a read came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Read {
    /// To the end of the buffer.
    ToEnd,
    /// To a record that is still being written, behind which others may wait.
    HeldUp,
    /// To this record's time: the turn was over.
    UpTo(Timestamp),
}

/// The records in the kernel's buffer, to be passed to the flows.
struct Waiting<'a, S> {
    reader: &'a mut Reader,
    source: &'a mut S,
    pipeline: &'a mut Recorded,
    /// The number of records that this turn may still read.
    left: usize,
    end: Instant,
    failure: Option<anyhow::Error>,
}

impl<S: Source> Waiting<'_, S> {
    /// Reads one batch. Returns the number of its records.
    fn batch(&mut self, limit: usize, newest: &mut Option<Timestamp>) -> anyhow::Result<usize> {
        let Reader { sightings, records, last, .. } = &mut *self.reader;
        let is_recording = self.pipeline.is_recording();
        let read = self.source.drain(limit, sightings, &mut |record| {
            if is_recording {
                records.push(record);
            }
        });
        // Also if nothing was read: the kernel may have skipped the only program that had something to report.
        let losses = self.source.lost()?;
        let (from, to) = (*last, now());
        for (hook, count) in losses {
            self.pipeline.lost(Lost { hook, count, from, to });
        }
        *last = to;
        self.reader.suppressed(self.source, self.pipeline)?;
        if !self.reader.is_waiting {
            *newest = (*newest).max(self.reader.sightings.iter().map(|sighting| sighting.time).max());
            self.reader.observe(self.pipeline);
        }
        Ok(read)
    }
}

impl<S: Source> Buffer for Waiting<'_, S> {
    fn drain(&mut self) -> Drained {
        let mut newest = None;
        loop {
            let room = BATCH_RECORDS.saturating_sub(self.reader.sightings.len()).max(1);
            let limit = self.left.min(room);
            let is_over = limit == 0 || Instant::now() >= self.end;
            if is_over || self.failure.is_some() {
                return Drained { newest, is_cut_short: true };
            }
            match self.batch(limit, &mut newest) {
                Ok(read) if read < limit => return Drained { newest, is_cut_short: false },
                Ok(read) => self.left -= read,
                Err(error) => self.failure = Some(error),
            }
        }
    }

    fn has_more(&self) -> bool {
        self.source.has_more()
    }
}

/// Reads the buffer to its end, or to that of the turn. Returns when the read began, and how far it came.
fn read_to_end(buffer: &mut impl Buffer, clock: impl Fn() -> Timestamp) -> (Timestamp, Read) {
    let began = clock();
    let first = buffer.drain();
    if first.is_cut_short {
        return (began, Read::UpTo(first.newest.unwrap_or(Timestamp::MIN)));
    }
    if !buffer.has_more() {
        return (began, Read::ToEnd);
    }
    // A newer record shows that none is being written before it.
    let second = buffer.drain();
    let read = match second.newest {
        Some(newest) if newest >= began => Read::ToEnd,
        newest if second.is_cut_short => Read::UpTo(newest.or(first.newest).unwrap_or(Timestamp::MIN)),
        _ => Read::HeldUp,
    };
    (began, read)
}

/// The time up to which every record has been read. Never decreases.
#[derive(Clone, Copy, Debug)]
struct Until(Timestamp);

impl Until {
    fn advance(&mut self, began: Timestamp, read: Read) -> Timestamp {
        let certain = match read {
            Read::ToEnd => began,
            Read::HeldUp => began.saturating_sub(HELD_UP),
            // An earlier record that comes later is within the window in which the flows sort them.
            Read::UpTo(newest) => newest.min(began),
        };
        self.0 = self.0.max(certain);
        self.0
    }
}

#[cfg(test)]
mod tests;
