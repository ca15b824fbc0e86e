//! The sightings of a recording, one after the other and without a pipeline.
//!
//! Owns only the way from the file to the sightings with their records, for exports and for the tuples of connections.
//! Judges nothing: that is the [`Player`](super::Player)'s work.

use std::{
    fs::File,
    io::{self, Read, Seek},
    path::Path,
    sync::Arc,
};

use super::{
    header::Header,
    item::Assembler,
    reader::{Block, OpenError, Reader},
    wanted::Wanted,
};
use crate::{kernel::decode::Decoder, session::WallSteps, sighting::Sighting, time::Timestamp};

/// A recording whose sightings are read in the order in which the trace received them.
#[derive(Debug)]
pub struct Sightings<R> {
    reader: Reader<R>,
    header: Header,
    decoder: Decoder,
    block: Block,
    next: usize,
    assembler: Assembler,
    wall_steps: WallSteps,
    undecodable: u64,
}

/// A sighting with the record from which it was decoded.
#[derive(Debug)]
pub struct Observed<'a> {
    pub sighting: Sighting,
    /// Its time as the wall clock counted it then, with the steps that the recording noted.
    pub unix: Timestamp,
    /// In the form of the kernel half.
    pub record: &'a [u8],
}

impl Sightings<File> {
    /// Those of this file; `None` if it cannot be opened, which a replay of the same files says.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        Self::open(File::open(path).ok()?).ok()
    }
}

impl<R: Read + Seek> Sightings<R> {
    /// Reads the header.
    pub fn open(file: R) -> Result<Self, OpenError> {
        let (reader, header) = Reader::open(file)?;
        let decoder = Decoder::new(Arc::new(header.layout()), header.clock_offset_ns);
        Ok(Self {
            reader,
            header,
            decoder,
            block: Block::default(),
            next: 0,
            assembler: Assembler::default(),
            wall_steps: WallSteps::default(),
            undecodable: 0,
        })
    }

    /// Before the first sighting: leaves out blocks without these addresses, as far as the file's index shows them.
    pub fn narrow(&mut self, wanted: &Wanted) -> io::Result<()> {
        self.reader.narrow(|addressed, _| wanted.is_in(addressed))
    }

    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The records so far that could not be decoded.
    pub fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// The next sighting; `None` at the end of the file. Damaged blocks are left out, as in a replay, which names them.
    pub fn next_sighting(&mut self) -> io::Result<Option<Observed<'_>>> {
        loop {
            let index = self.next;
            let Some(record) = self.block.records.get(index) else {
                if !self.reader.next_block(&mut self.block)? {
                    return Ok(None);
                }
                self.next = 0;
                self.note_wall_steps();
                continue;
            };
            self.next += 1;
            if let Ok(sighting) = self.decoder.decode(record) {
                let record = self.block.records.get(index).unwrap_or_default();
                let unix = self.wall_steps.unix(sighting.time);
                return Ok(Some(Observed { sighting, unix, record }));
            }
            self.undecodable += 1;
        }
    }

    /// Takes the steps of the wall clock in the block.
    fn note_wall_steps(&mut self) {
        if self.block.after_damage {
            self.assembler.forget();
        }
        let mut items = self.block.items.as_slice();
        while let Some(step) = self.assembler.next_wall_step(&mut items) {
            // A replay names what cannot be read.
            let Ok(step) = step else { continue };
            self.wall_steps.note(step, self.header.started);
        }
    }
}
