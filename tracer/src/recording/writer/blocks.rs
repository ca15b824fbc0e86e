//! Assembles blocks and writes them to the file.
//!
//! Owns when a block is full, and the end of a file that cannot be written: the rest is left out, and the file is cut
//! after its last complete block.

use std::{
    fs::File,
    io::{self, Write},
};

use bytes::BufMut;

use super::{Addresses, Failure, Finished};
use crate::{
    kernel::decode::Mask,
    recording::{
        frame::{FILE_MAGIC, FRAME_HEADER_BYTES, Frame, FrameKind},
        item::{Dropped, Item, put_piece},
        records::{Packer, Records},
    },
    time::Timestamp,
};

/// Records of a block. More compress better, and take more memory to read.
const BLOCK_RECORDS: usize = 16_384;
/// Bytes of a block's other items.
const BLOCK_ITEM_BYTES: usize = 1 << 20;
/// The header is repeated after this many blocks, in case the first one is damaged.
const HEADER_EVERY: u32 = 256;
const COMPRESSION_LEVEL: i32 = 3;
/// The fewest bytes for which other codes pay.
const OWN_CODES_BYTES: usize = 1 << 10;

#[derive(Debug)]
pub(in crate::recording) struct Blocks {
    file: Option<File>,
    header: Vec<u8>,
    sequence: u32,
    items: Vec<u8>,
    mask: Mask,
    addresses: Addresses,
    packer: Packer,
    /// The number of packed records that no item reports yet.
    run: u32,
    /// The latest time among the items, and among the items in the file.
    now: Timestamp,
    outcome: Finished,
    covered: Timestamp,
}

impl Blocks {
    /// Writes the file's beginning. `header` is JSON.
    pub(in crate::recording) fn begin(
        mut file: File,
        header: Vec<u8>,
        started: Timestamp,
        mask: Mask,
        addresses: Addresses,
    ) -> io::Result<Self> {
        file.write_all(&FILE_MAGIC)?;
        let mut blocks = Self {
            file: Some(file),
            header,
            sequence: 0,
            items: Vec::new(),
            mask,
            addresses,
            packer: Packer::default(),
            run: 0,
            now: started,
            outcome: Finished { bytes: FILE_MAGIC.len() as u64, ..Finished::default() },
            covered: started,
        };
        blocks.write_header();
        match blocks.outcome.failure.take() {
            None => Ok(blocks),
            Some(failure) => Err(io::Error::other(failure.error)),
        }
    }

    pub(in crate::recording) fn outcome(&self) -> Finished {
        self.outcome.clone()
    }

    pub(in crate::recording) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.packer.len() == 0
    }

    /// Leaves `records` as they are written.
    pub(in crate::recording) fn records(&mut self, records: &mut Records) {
        self.addresses.renumber(records, |record| self.mask.apply(record));
        for record in records.iter() {
            if self.packer.len() >= BLOCK_RECORDS {
                self.flush();
            }
            if self.packer.push(record) {
                self.run += 1;
            }
        }
        self.end_run();
    }

    pub(in crate::recording) fn item(&mut self, item: &Item) {
        match item {
            Item::Advance(now) | Item::Finish(now) => self.now = self.now.max(*now),
            _ => {}
        }
        match item.encode() {
            Ok((kind, body)) => self.put(kind, &body),
            Err(error) => {
                tracing::warn!("an item is left out of the recording: {error}");
                let dropped = Dropped { others: 1, from: self.now, to: self.now, ..Dropped::default() };
                if !matches!(item, Item::Dropped(_)) {
                    self.item(&Item::Dropped(dropped));
                }
            }
        }
    }

    fn put(&mut self, kind: u8, mut body: &[u8]) {
        loop {
            if self.items.len() >= BLOCK_ITEM_BYTES {
                self.flush();
            }
            let room = BLOCK_ITEM_BYTES.saturating_sub(self.items.len()).max(1);
            let (piece, rest) = body.split_at_checked(room).unwrap_or((body, &[]));
            put_piece(&mut self.items, kind, piece, !rest.is_empty());
            if rest.is_empty() {
                return;
            }
            body = rest;
        }
    }

    fn end_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        if run > 0
            && let Ok((kind, body)) = Item::Records(run).encode()
        {
            put_piece(&mut self.items, kind, &body, false);
        }
    }

    /// Writes the current contents as one block.
    pub(in crate::recording) fn flush(&mut self) {
        self.end_run();
        if self.is_empty() {
            return;
        }
        let records = self.packer.len() as u64;
        let mut payload = Vec::new();
        payload.put_u32_le(u32::try_from(self.items.len()).unwrap_or(u32::MAX));
        payload.append(&mut self.items);
        let ends = self.packer.finish(&mut payload);
        if self.sequence.is_multiple_of(HEADER_EVERY) {
            self.write_header();
        }
        self.write_frame(FrameKind::Items, &payload, &ends);
        if self.outcome.failure.is_none() {
            self.covered = self.now;
            self.outcome.records += records;
        }
    }

    /// Writes the rest and closes the file.
    pub(in crate::recording) fn close(&mut self) -> Finished {
        self.flush();
        if let Some(file) = self.file.take()
            && let Err(error) = file.sync_all()
            // Not every file can be synced to a disk: a pipe, a device.
            && error.kind() != io::ErrorKind::InvalidInput
        {
            self.fail(&error);
        }
        self.outcome()
    }

    fn write_header(&mut self) {
        let header = std::mem::take(&mut self.header);
        self.write_frame(FrameKind::Header, &header, &[]);
        self.header = header;
    }

    /// `ends` are the places in the payload at which statistics change.
    fn write_frame(&mut self, kind: FrameKind, payload: &[u8], ends: &[usize]) {
        let sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        let Some(file) = &mut self.file else { return };
        let written = compress(payload, ends).and_then(|compressed| {
            let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            let frame = Frame::around(kind, sequence, &compressed, payload_bytes).encode();
            let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + compressed.len());
            bytes.extend(frame);
            bytes.extend(compressed);
            file.write_all(&bytes)?;
            Ok(bytes.len() as u64)
        });
        match written {
            Ok(bytes) => self.outcome.bytes += bytes,
            Err(error) => self.fail(&error),
        }
    }

    /// Handles a write error: the file ends with its last complete block.
    fn fail(&mut self, error: &io::Error) {
        if let Some(file) = self.file.take() {
            // Readers would skip a partial block as well, but would report damage.
            let _ = file.set_len(self.outcome.bytes);
        }
        self.outcome.failure = Some(Failure { covered: self.covered, error: error.to_string() });
    }
}

/// One zstd frame. It begins a block of zstd's, which has codes of its own, where the statistics change.
fn compress(payload: &[u8], ends: &[usize]) -> io::Result<Vec<u8>> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), COMPRESSION_LEVEL)?;
    let mut from = 0;
    for end in ends {
        if end.saturating_sub(from) >= OWN_CODES_BYTES
            && let Some(part) = payload.get(from..*end)
        {
            encoder.write_all(part)?;
            encoder.flush()?;
            from = *end;
        }
    }
    encoder.write_all(payload.get(from..).unwrap_or_default())?;
    encoder.finish()
}
