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
    kernel::decode::{Decoder, Mask},
    recording::{
        frame::{FILE_MAGIC, FRAME_HEADER_BYTES, Frame, FrameKind},
        index::{Census, Chapter, Contents, Described},
        item::{Dropped, Item, put_piece},
        records::{Loans, Packer, Records},
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
    /// The most records of a block.
    block_records: usize,
    /// The sequence number before which the header is not repeated.
    next_header: u32,
    items: Vec<u8>,
    mask: Mask,
    addresses: Addresses,
    packer: Packer,
    census: Census,
    /// The frames since the last index frame.
    chapter: Chapter,
    /// The number of packed records that no item reports yet.
    run: u32,
    /// Their latest time.
    newest: Option<Timestamp>,
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
        decoder: Decoder,
        addresses: Addresses,
    ) -> io::Result<Self> {
        file.write_all(&FILE_MAGIC)?;
        let mut blocks = Self {
            file: Some(file),
            header,
            sequence: 0,
            block_records: BLOCK_RECORDS,
            next_header: HEADER_EVERY,
            items: Vec::new(),
            packer: Packer::new(mask.ports().and_then(Loans::of)),
            mask,
            addresses,
            census: Census::new(decoder),
            chapter: Chapter::after(0, FILE_MAGIC.len() as u64, 0),
            run: 0,
            newest: None,
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

    /// Makes small blocks, so that a small file has many.
    #[cfg(test)]
    pub(in crate::recording) fn set_block_records(&mut self, records: usize) {
        self.block_records = records;
    }

    pub(in crate::recording) fn is_empty(&self) -> bool {
        self.items.is_empty() && self.packer.len() == 0
    }

    /// Leaves `records` as they are written.
    pub(in crate::recording) fn records(&mut self, records: &mut Records) {
        self.addresses.renumber(records, |record| self.mask.apply(record));
        for record in records.iter() {
            if self.packer.len() >= self.block_records {
                self.flush();
            }
            if self.packer.push(record) {
                self.newest = self.newest.max(self.census.record(record));
                self.run += 1;
            }
        }
        self.end_run();
    }

    pub(in crate::recording) fn item(&mut self, item: &Item) {
        match item {
            Item::Advance(now) | Item::Finish(now) => {
                self.now = self.now.max(*now);
                self.census.time(*now);
            }
            Item::Lost(_) | Item::Dropped(_) | Item::Suppressed(_) => self.census.loss(),
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
        let (run, newest) = (std::mem::take(&mut self.run), self.newest.take());
        if run > 0
            && let Ok((kind, body)) = Item::Records(run, newest).encode()
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
        let items_end = payload.len();
        let ends = self.packer.finish(&mut payload);
        if self.sequence >= self.next_header {
            self.next_header = self.sequence.saturating_add(HEADER_EVERY);
            self.write_header();
        }
        let (addressed, from, to) = self.census.take(records as usize);
        if let Some(written) = self.write_frame(FrameKind::Items, &payload, items_end, &ends) {
            self.covered = self.now;
            self.outcome.records += records;
            let Written { bytes, items_bytes, items_checksum } = written;
            let records = u32::try_from(records).unwrap_or(u32::MAX);
            let contents = Contents { items_bytes, items_checksum, records, from, to, addressed };
            self.chapter.push(Described { bytes, contents: Some(contents) });
            if self.chapter.is_full() {
                self.write_index();
            }
        }
    }

    /// Writes the rest and closes the file.
    pub(in crate::recording) fn close(&mut self) -> Finished {
        self.flush();
        if !self.chapter.is_empty() {
            self.write_index();
        }
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
        if let Some(Written { bytes, .. }) = self.write_frame(FrameKind::Header, &header, 0, &[]) {
            self.chapter.push(Described { bytes, contents: None });
        }
        self.header = header;
    }

    /// Writes the index of the frames since the last one.
    fn write_index(&mut self) {
        let at = self.outcome.bytes;
        let payload = self.chapter.encode();
        if self.write_frame(FrameKind::Index, &payload, 0, &[]).is_some() {
            self.chapter = Chapter::after(at, self.outcome.bytes, self.sequence);
        }
    }

    /// `items_end` is the end of the items in the payload, and `ends` are the places after it at which statistics change.
    /// `None` if nothing was written.
    fn write_frame(
        &mut self,
        kind: FrameKind,
        payload: &[u8],
        items_end: usize,
        ends: &[usize],
    ) -> Option<Written> {
        let sequence = self.sequence;
        self.sequence = self.sequence.wrapping_add(1);
        let file = self.file.as_mut()?;
        let written = compress(payload, items_end, ends).and_then(|(compressed, items_bytes)| {
            let payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
            let frame = Frame::around(kind, sequence, &compressed, payload_bytes).encode();
            let items_checksum = crc32fast::hash(compressed.get(..items_bytes).unwrap_or_default());
            let mut bytes = Vec::with_capacity(FRAME_HEADER_BYTES + compressed.len());
            bytes.extend(frame);
            bytes.extend(compressed);
            file.write_all(&bytes)?;
            let number = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
            Ok(Written { bytes: number(bytes.len()), items_bytes: number(items_bytes), items_checksum })
        });
        match written {
            Ok(written) => {
                self.outcome.bytes += u64::from(written.bytes);
                Some(written)
            }
            Err(error) => {
                self.fail(&error);
                None
            }
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

/// A frame in the file.
#[derive(Clone, Copy, Debug)]
struct Written {
    bytes: u32,
    /// The part of the compressed payload from which the items can be unpacked, and its checksum.
    items_bytes: u32,
    items_checksum: u32,
}

/// One zstd frame. It begins a block of zstd's, which has codes of its own, where the statistics change, and one after the
/// items. Returns the length up to there too.
fn compress(payload: &[u8], items_end: usize, ends: &[usize]) -> io::Result<(Vec<u8>, usize)> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), COMPRESSION_LEVEL)?;
    // Otherwise zstd's tables have the size for a large input, 800 KiB, for each block of an idle trace.
    encoder.set_pledged_src_size(Some(payload.len() as u64))?;
    let (items, _) = payload.split_at_checked(items_end).unwrap_or((payload, &[]));
    if !items.is_empty() {
        encoder.write_all(items)?;
        encoder.flush()?;
    }
    let (items_bytes, mut from) = (encoder.get_ref().len(), items.len());
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
    Ok((encoder.finish()?, items_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// zstd allocates for a large input unless it knows the length, and then writes it.
    #[test]
    fn a_small_block_is_compressed_with_small_tables() {
        let payload = [7; 5000];
        let (compressed, _) = compress(&payload, 100, &[3000]).unwrap();
        let length = zstd::zstd_safe::get_frame_content_size(&compressed).unwrap();
        assert_eq!(length, Some(payload.len() as u64));
        assert_eq!(zstd::bulk::decompress(&compressed, payload.len()).unwrap(), payload);
    }
}
