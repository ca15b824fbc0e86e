//! The recorded packets of several traces in the order of time.
//!
//! Owns the way through the files of the traces, each read once from its beginning. Each file's packets come in the order in
//! which the trace received them, which is nearly that of time. Knows no format.

use std::{collections::VecDeque, fs::File, mem::offset_of, path::PathBuf};

use tracer_ebpf::{PACKET_HEAD_BYTES, PacketRecord};

use super::packets::Census;
use crate::{
    incident::{Timeline, Track},
    recording::{Observed, Sightings, UnusableFile},
    sighting::{Fact, PacketFact, Sighting},
    time::Timestamp,
};

/// A recorded packet.
#[derive(Debug)]
pub(super) struct SightedPacket {
    /// The trace, as an index of [`Timeline::tracks`].
    pub(super) track: usize,
    pub(super) sighting: Sighting,
    /// On the clock of the export.
    pub(super) time: Timestamp,
    /// From the IP header on.
    pub(super) head: Vec<u8>,
    pub(super) original_bytes: u32,
}

impl SightedPacket {
    /// What the hook observed of it.
    pub(super) fn fact(&self) -> Option<&PacketFact> {
        match &self.sighting.fact {
            Fact::Packet(fact) => Some(fact),
            _ => None,
        }
    }
}

/// The sightings of one trace, through all its files.
#[derive(Debug)]
struct Source {
    paths: VecDeque<PathBuf>,
    file: Option<(PathBuf, Sightings<File>)>,
    next: Option<SightedPacket>,
}

/// The packets of all traces.
pub(super) struct SightedPackets<'t> {
    timeline: &'t Timeline,
    sources: Vec<Source>,
}

impl<'t> SightedPackets<'t> {
    pub(super) fn of(timeline: &'t Timeline) -> Self {
        let paths = |track: &Track| track.tape().paths().iter().cloned().collect();
        let sources =
            timeline.tracks().iter().map(|track| Source { paths: paths(track), file: None, next: None });
        Self { timeline, sources: sources.collect() }
    }

    /// Counts the records of all files.
    pub(super) fn census(mut self) -> Result<Census, UnusableFile> {
        let mut census = Census::default();
        for source in &mut self.sources {
            source.each(|observed| {
                census.add(observed);
                None::<()>
            })?;
        }
        Ok(census)
    }

    /// The next packet of which a header was recorded.
    pub(super) fn next(&mut self) -> Result<Option<SightedPacket>, UnusableFile> {
        for (track, source) in self.sources.iter_mut().enumerate().filter(|(_, source)| source.next.is_none())
        {
            let timeline = self.timeline;
            source.next = source.each(|observed| packet(timeline, track, observed))?;
        }
        let times = self.sources.iter().enumerate();
        let times = times.filter_map(|(index, source)| Some((source.next.as_ref()?.time, index)));
        let Some((_, index)) = times.min() else { return Ok(None) };
        Ok(self.sources.get_mut(index).and_then(|source| source.next.take()))
    }
}

impl Source {
    /// Reads until `take` makes something of a sighting; `None` at the end. A file that cannot be opened is left out: the
    /// replay before has named it.
    fn each<T>(
        &mut self,
        mut take: impl FnMut(&Observed<'_>) -> Option<T>,
    ) -> Result<Option<T>, UnusableFile> {
        loop {
            let Some((path, sightings)) = &mut self.file else {
                let Some(path) = self.paths.pop_front() else { return Ok(None) };
                self.file = Sightings::of(&path).map(|sightings| (path, sightings));
                continue;
            };
            match sightings.next_sighting().map_err(|error| UnusableFile::io(path, &error))? {
                Some(observed) => {
                    if let Some(taken) = take(&observed) {
                        return Ok(Some(taken));
                    }
                }
                None => self.file = None,
            }
        }
    }
}

fn packet(timeline: &Timeline, track: usize, observed: &Observed<'_>) -> Option<SightedPacket> {
    if !matches!(observed.sighting.fact, Fact::Packet(_)) {
        return None;
    }
    let (head, original_bytes) = packet_head(observed.record)?;
    Some(SightedPacket {
        track,
        sighting: observed.sighting.clone(),
        time: timeline.shown(track, observed),
        head: head.to_vec(),
        original_bytes,
    })
}

/// The packet's bytes in a record, cut to the packet's own length, and that length; `None` if they are no IP header.
pub(super) fn packet_head(record: &[u8]) -> Option<(&[u8], u32)> {
    let bytes = record.get(offset_of!(PacketRecord, packet_head)..)?.get(..PACKET_HEAD_BYTES)?;
    let length = |at: usize| {
        bytes.get(at..at + 2).map(|it| it.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
    };
    let (least, whole) = match bytes.first()? >> 4 {
        4 => (u32::from(bytes.first()? & 0xf) * 4, length(2)?),
        6 => (40, length(4)?.saturating_add(40)),
        _ => return None,
    };
    if least < 20 {
        return None;
    }
    // A packet of segmentation offload has no length in its header.
    let whole = if whole < least { bytes.len() as u32 } else { whole };
    Some((bytes.get(..whole as usize).unwrap_or(bytes), whole))
}
