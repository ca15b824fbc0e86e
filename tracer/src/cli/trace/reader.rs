//! What waits in the kernel's ring buffer, read to its end, and the time until which all has been read.
//!
//! Time passes for the flows only up to there, so that nobody is given up while an answer waits unread: a busy node
//! may keep viptrace, or a program that has begun a record, from the CPU for longer than a flow waits.

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

/// Records read before the flows get their turn: bounds the memory between the two.
const BATCH_RECORDS: usize = 8192;
/// How far time may stay behind for a record that was begun and is not finished.
const HELD_UP: Duration = Duration::from_secs(1);

/// The way of the records from the kernel to the flows.
#[derive(Debug)]
pub(super) struct Reader {
    sightings: Vec<Sighting>,
    /// What the sightings were, for the recording.
    records: Records,
    /// When the last reading ended: what is lost was lost since.
    last: Timestamp,
    until: Until,
}

impl Reader {
    pub(super) fn new(started: Timestamp) -> Self {
        Self { sightings: Vec::new(), records: Records::default(), last: started, until: Until(started) }
    }

    /// Reads all that waits, and how much was lost meanwhile. Returns the time until which nothing more can come.
    pub(super) fn read(&mut self, tracer: &mut Tracer, pipeline: &mut Recorded) -> anyhow::Result<Timestamp> {
        let before = tracer.counters();
        let (began, held_up) = read_to_end(&mut Waiting { reader: self, tracer, pipeline }, now);
        tracer.caught_up();
        let ended = now();
        // A record is lost where the buffer is full of others: nothing was read, nothing was lost.
        if tracer.counters().records > before.records {
            let losses = tracer.losses().context("cannot read how many events were lost")?;
            let lost: u64 = losses.iter().map(|(_, count)| count).sum();
            let lost = lost + (tracer.counters().undecodable - before.undecodable);
            pipeline.lost(lost, self.last, ended);
        }
        self.last = ended;
        Ok(self.until.advance(began, held_up))
    }

    /// Takes in old entries as if the kernel had told of them.
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

/// A buffer whose records come out in the order in which room was made for them.
trait Buffer {
    /// Takes out all that is finished. Returns the time of the last record.
    fn drain(&mut self) -> Option<Timestamp>;
    /// Whether there is more: newer records, or one that is still being written.
    fn has_more(&self) -> bool;
}

/// What waits in the kernel's buffer, on its way to the flows.
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

/// Reads the buffer to its end. Returns when that began, and whether a record that is still being written holds up
/// others from before.
fn read_to_end(buffer: &mut impl Buffer, clock: impl Fn() -> Timestamp) -> (Timestamp, bool) {
    let began = clock();
    buffer.drain();
    let held_up = buffer.has_more() && buffer.drain().is_none_or(|newest| newest < began);
    (began, held_up)
}

/// The time until which every record has been read. Never goes back.
#[derive(Clone, Copy, Debug)]
struct Until(Timestamp);

impl Until {
    /// A reading that began at `began` found the end of the buffer, or was `held_up` by a record that is still being
    /// written, before which others may stand.
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

    /// Each draining takes a second and finds the next of these times, if any.
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

    /// Read from the time 5,000 ms on.
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
