//! Reads the kernel's ring buffer to its end, and determines the time up to which all records have been read.
//!
//! Time advances for the flows only up to that time, so that no flow times out while its answer waits to be read: a
//! busy node may keep viptrace, or a program that has begun a record, from the CPU for longer than a flow waits.

use std::time::Duration;

use anyhow::Context as _;

use super::now;
use crate::{
    kernel::tracer::Tracer,
    net::Netns,
    recording::{Recorded, Records},
    sighting::{ListedEntry, Sighting},
    time::Timestamp,
};

/// The maximum number of records read before the flows are processed: bounds the memory between the two.
const BATCH_RECORDS: usize = 8192;
/// How far time may lag behind for a record that was begun and is not finished.
const HELD_UP: Duration = Duration::from_secs(1);

/// Passes the records from the kernel to the flows.
#[derive(Debug)]
pub(super) struct Reader {
    sightings: Vec<Sighting>,
    /// The records of the sightings, for the recording.
    records: Records,
    /// The end of the last read: any new losses happened since then.
    last: Timestamp,
    until: Until,
}

impl Reader {
    pub(super) fn new(started: Timestamp) -> Self {
        Self { sightings: Vec::new(), records: Records::default(), last: started, until: Until(started) }
    }

    /// Reads all waiting records, and the number of records lost meanwhile. Returns the time up to which all records
    /// have been read.
    pub(super) fn read(&mut self, tracer: &mut Tracer, pipeline: &mut Recorded) -> anyhow::Result<Timestamp> {
        let before = tracer.counters();
        let (began, held_up) = read_to_end(&mut Waiting { reader: self, tracer, pipeline }, now);
        tracer.caught_up();
        let ended = now();
        // Records are lost only when the buffer is full: if nothing was read, nothing was lost.
        if tracer.counters().records > before.records {
            let losses = tracer.losses().context("cannot read how many events were lost")?;
            let lost: u64 = losses.iter().map(|(_, count)| count).sum();
            let lost = lost + (tracer.counters().undecodable - before.undecodable);
            pipeline.lost(lost, self.last, ended);
        }
        self.last = ended;
        Ok(self.until.advance(began, held_up))
    }

    /// Takes old entries as if the kernel had reported them.
    pub(super) fn listed(
        &mut self,
        entries: &[ListedEntry],
        netns: Netns,
        tracer: &mut Tracer,
        pipeline: &mut Recorded,
    ) {
        let (records, recording) = (&mut self.records, pipeline.is_recording());
        tracer.listed(entries, netns, &mut self.sightings, |record| {
            if recording {
                records.push(record);
            }
        });
        pipeline.observe(self.sightings.drain(..), &mut self.records);
    }
}

/// A buffer whose records leave in the order of their reservation.
trait Buffer {
    /// Takes out all finished records. Returns the time of the last record.
    fn drain(&mut self) -> Option<Timestamp>;
    /// Whether there is more: newer records, or one that is still being written.
    fn has_more(&self) -> bool;
}

/// The records in the kernel's buffer, to be passed to the flows.
struct Waiting<'a> {
    reader: &'a mut Reader,
    tracer: &'a mut Tracer,
    pipeline: &'a mut Recorded,
}

impl Buffer for Waiting<'_> {
    fn drain(&mut self) -> Option<Timestamp> {
        let mut newest = None;
        let Reader { sightings, records, .. } = &mut *self.reader;
        loop {
            let recording = self.pipeline.is_recording();
            let read = self.tracer.drain(BATCH_RECORDS, sightings, |record| {
                if recording {
                    records.push(record);
                }
            });
            newest = sightings.last().map_or(newest, |sighting| Some(sighting.time));
            self.pipeline.observe(sightings.drain(..), records);
            if read < BATCH_RECORDS {
                return newest;
            }
        }
    }

    fn has_more(&self) -> bool {
        self.tracer.has_more()
    }
}

/// Reads the buffer to its end. Returns when the read began, and whether a record that is still being written holds up
/// earlier ones.
fn read_to_end(buffer: &mut impl Buffer, clock: impl Fn() -> Timestamp) -> (Timestamp, bool) {
    let began = clock();
    buffer.drain();
    let held_up = buffer.has_more() && buffer.drain().is_none_or(|newest| newest < began);
    (began, held_up)
}

/// The time up to which every record has been read. Never decreases.
#[derive(Clone, Copy, Debug)]
struct Until(Timestamp);

impl Until {
    /// A read that began at `began` reached the end of the buffer, or was `held_up` by a record that is still being
    /// written, behind which others may wait.
    fn advance(&mut self, began: Timestamp, held_up: bool) -> Timestamp {
        let certain = if held_up { began.saturating_sub(HELD_UP) } else { began };
        self.0 = self.0.max(certain);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Each drain takes a second and finds the next of these times, if any.
    struct Slow<'a> {
        clock: &'a Cell<u64>,
        newest: Vec<Option<Timestamp>>,
        more: bool,
    }

    impl Buffer for Slow<'_> {
        fn drain(&mut self) -> Option<Timestamp> {
            self.clock.set(self.clock.get() + 1_000);
            self.newest.remove(0)
        }

        fn has_more(&self) -> bool {
            self.more
        }
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_unix_ns(ms * 1_000_000)
    }

    /// Reads from the time 5,000 ms on.
    fn read(newest: &[Option<u64>], more: bool) -> (Timestamp, bool) {
        let clock = Cell::new(5_000);
        let newest = newest.iter().map(|ms| ms.map(at)).collect();
        read_to_end(&mut Slow { clock: &clock, newest, more }, || at(clock.get()))
    }

    #[test]
    fn what_came_while_the_buffer_was_read_may_not_have_been_read() {
        assert_eq!(read(&[None], false), (at(5_000), false));
        assert_eq!(read(&[Some(5_900)], false), (at(5_000), false));
    }

    #[test]
    fn a_record_that_is_being_written_is_told_from_a_new_one() {
        assert_eq!(read(&[Some(4_900), Some(5_100)], true), (at(5_000), false));
        assert_eq!(read(&[Some(4_900), Some(4_950)], true), (at(5_000), true));
        assert_eq!(read(&[Some(4_900), None], true), (at(5_000), true));
    }

    #[test]
    fn time_waits_for_a_record_that_is_being_written_and_not_for_ever() {
        let mut until = Until(at(5_000));
        assert_eq!(until.advance(at(5_100), false), at(5_100));
        assert_eq!(until.advance(at(5_200), true), at(5_100));
        assert_eq!(until.advance(at(6_099), true), at(5_100));
        assert_eq!(until.advance(at(6_300), true), at(5_300));
        assert_eq!(until.advance(at(6_301), false), at(6_301));
        assert_eq!(until.advance(at(6_200), false), at(6_301));
    }
}
