//! The sightings of a recording, one after the other and without a pipeline.
//!
//! Owns only the way from the file to the sightings with their records, for exports and for the tuples of connections.
//! Judges nothing: that is the [`Player`](super::Player)'s work.

use std::{
    io::{self, Read, Seek},
    sync::Arc,
};

use super::{
    header::Header,
    reader::{Block, OpenError, Reader},
};
use crate::{kernel::decode::Decoder, sighting::Sighting};

/// A recording whose sightings are read in the order in which the trace received them.
#[derive(Debug)]
pub struct Sightings<R> {
    reader: Reader<R>,
    header: Header,
    decoder: Decoder,
    block: Block,
    next: usize,
    undecodable: u64,
}

/// A sighting with the record from which it was decoded.
#[derive(Debug)]
pub struct Observed<'a> {
    pub sighting: Sighting,
    /// In the form of the kernel half.
    pub record: &'a [u8],
}

impl<R: Read + Seek> Sightings<R> {
    /// Reads the header.
    pub fn open(file: R) -> Result<Self, OpenError> {
        let (reader, header) = Reader::open(file)?;
        let decoder = Decoder::new(Arc::new(header.layout()), header.clock_offset_ns);
        Ok(Self { reader, header, decoder, block: Block::default(), next: 0, undecodable: 0 })
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
                continue;
            };
            self.next += 1;
            if let Ok(sighting) = self.decoder.decode(record) {
                let record = self.block.records.get(index).unwrap_or_default();
                return Ok(Some(Observed { sighting, record }));
            }
            self.undecodable += 1;
        }
    }
}
