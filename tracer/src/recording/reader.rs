//! Reads a recording block by block, despite any damage.
//!
//! Owns the search for intact blocks and the account of missing ones. Memory is bounded by one compressed block, its
//! payload and its records, whatever the file contains; every byte is read a bounded number of times.

mod last;
mod narrow;

use std::io::{self, Read, Seek, SeekFrom};

use bytes::Buf;

use super::{
    frame::{self, FILE_MAGIC, FRAME_HEADER_BYTES, FRAME_MAGIC, Frame, FrameKind, MAX_PAYLOAD_BYTES},
    header::{Header, Unsuitable},
    index::Plan,
    records::{Records, unpack},
};
pub(super) use last::{has_end, last_time};
pub use narrow::Reading;

use crate::{called, error::Hint, time::Timestamp};

/// A file with another beginning is a damaged recording if a frame begins within its first bytes, otherwise it is not a
/// recording.
const FRAME_WITHIN: usize = 4 << 20;
/// The limit of checksums over bytes that are read again, in bytes. Above it a frame's length is trusted.
const AGAIN_BYTES: u64 = 256 << 20;
const READ_BYTES: usize = 256 << 10;
/// The header is smaller.
const FIRST_BYTES: usize = 16 << 10;

/// Why a recording cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is not a recording of viptrace")]
    NotARecording,
    #[error("it is damaged: no intact header was found")]
    NoHeader,
    #[error("its header cannot be read: {0}")]
    Header(serde_json::Error),
    #[error(transparent)]
    Unsuitable(#[from] Unsuitable),
}

impl Hint for OpenError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::NotARecording => Some(called::source_of_recordings()),
            Self::Unsuitable(Unsuitable::ByteOrder { .. }) => {
                Some("replay it on a machine of that byte order".to_owned())
            }
            Self::Unsuitable(_) => Some("replay it with the viptrace that wrote it".to_owned()),
            Self::Io(_) | Self::NoHeader | Self::Header(_) => None,
        }
    }
}

/// The kind of damage in a part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DamageKind {
    /// The file ends within a block.
    Truncated,
    /// No block begins at the position where one should.
    NoBlock,
    /// The checksum of a block is wrong.
    Checksum,
    /// A block has the right checksum but cannot be unpacked.
    Contents,
    /// A block that belongs to another recording or to another position.
    Foreign,
    /// Two intact blocks are adjacent, but blocks between them are missing.
    Gone,
}

impl DamageKind {
    /// In words, for use after "at byte N".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Truncated => "the file ends within a block",
            Self::NoBlock => "no block begins here",
            Self::Checksum => "a block has a wrong checksum",
            Self::Contents => "a block cannot be unpacked",
            Self::Foreign => "a block is not in its place",
            Self::Gone => "blocks are gone",
        }
    }
}

/// A damaged part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    pub kind: DamageKind,
    /// Its beginning, in bytes from the beginning of the file.
    pub offset: u64,
    /// The distance to the next intact block, in bytes.
    pub skipped: u64,
    /// The number of missing blocks, from the sequence numbers around them.
    pub blocks: u32,
}

/// An intact block.
#[derive(Debug, Default)]
pub(super) struct Block {
    /// The items, one after the other.
    pub(super) items: Vec<u8>,
    pub(super) records: Records,
    /// A block before it is missing.
    pub(super) after_damage: bool,
    /// Its records were not read, because the index names none that is wanted. Their latest time.
    pub(super) unread: Option<Timestamp>,
    /// Its sequence number, if the index led to it.
    pub(super) planned: Option<u32>,
    /// A query needs its records: one is of a wanted flow, or their order matters.
    pub(super) is_needed: bool,
}

/// A recording that is being read.
pub(super) struct Reader<R> {
    file: R,
    /// A part of the file from `base` on; everything before `at` has been processed.
    window: Vec<u8>,
    base: u64,
    at: usize,
    end_of_file: bool,
    /// The sequence number that the next block should have.
    expected: u32,
    damage: Vec<Damage>,
    damage_count: u64,
    /// The damage that is being skipped.
    open: Option<(DamageKind, u64)>,
    checked_again: u64,
    decompressor: zstd::bulk::Decompressor<'static>,
    payload: Vec<u8>,
    /// How much is read at once, at least.
    read_bytes: usize,
    /// The frames to read, and the next of them; `None` for all.
    plan: Option<(Plan, usize)>,
    reading: Reading,
}

impl<R> std::fmt::Debug for Reader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("offset", &self.offset()).finish_non_exhaustive()
    }
}

/// The number of damages kept; all are counted.
const MAX_DAMAGES: usize = 64;

impl<R: Read + Seek> Reader<R> {
    /// Finds the header and returns to the beginning.
    pub(super) fn open(file: R) -> Result<(Self, Header), OpenError> {
        let mut reader = Self {
            file,
            window: Vec::new(),
            base: 0,
            at: 0,
            end_of_file: false,
            expected: 0,
            damage: Vec::new(),
            damage_count: 0,
            open: None,
            checked_again: 0,
            decompressor: zstd::bulk::Decompressor::new()?,
            payload: Vec::new(),
            read_bytes: FIRST_BYTES,
            plan: None,
            reading: Reading::default(),
        };
        reader.reading.total_bytes = reader.file.seek(SeekFrom::End(0))?;
        reader.file.seek(SeekFrom::Start(0))?;
        let sound = reader.begin()?;
        if !sound && !reader.has_frame_nearby()? {
            return Err(OpenError::NotARecording);
        }
        let json = loop {
            match reader.frame()? {
                Some(FrameKind::Header) => break std::mem::take(&mut reader.payload),
                Some(FrameKind::Items | FrameKind::Index) => {}
                None => return Err(OpenError::NoHeader),
            }
        };
        let header: Header = serde_json::from_slice(&json).map_err(OpenError::Header)?;
        header.check()?;
        if reader.base == 0 {
            reader.at = 0;
        } else {
            reader.go_to(0)?;
        }
        (reader.expected, reader.open) = (0, None);
        reader.read_bytes = READ_BYTES;
        (reader.damage, reader.damage_count, reader.checked_again) = (Vec::new(), 0, 0);
        reader.begin()?;
        Ok((reader, header))
    }

    /// Reads the file's first bytes; false if they are not those of a recording.
    fn begin(&mut self) -> io::Result<bool> {
        self.fill(FILE_MAGIC.len())?;
        let sound = self.rest().starts_with(&FILE_MAGIC);
        if sound {
            self.at = FILE_MAGIC.len();
        }
        Ok(sound)
    }

    /// Whether a frame begins near the start of a file that does not begin as a recording.
    fn has_frame_nearby(&mut self) -> io::Result<bool> {
        self.fill(FRAME_WITHIN)?;
        let places =
            std::iter::successors(frame::find(self.rest(), 0), |at| frame::find(self.rest(), at + 1));
        Ok(places.take(1024).any(|at| Frame::decode(self.rest().get(at..).unwrap_or_default()).is_some()))
    }

    /// The first damaged parts, and the number of all.
    pub(super) fn damage(&self) -> (&[Damage], u64) {
        (&self.damage, self.damage_count)
    }

    /// Reads the next intact block into `block`; false at the end of the file.
    pub(super) fn next_block(&mut self, block: &mut Block) -> io::Result<bool> {
        self.next(block, true)
    }

    /// The same without its records, which take most of the time. [`Self::add_records`] adds them.
    pub(super) fn next_items(&mut self, block: &mut Block) -> io::Result<bool> {
        self.next(block, false)
    }

    /// Adds the records of the block that [`Self::next_items`] read last. None if they cannot be unpacked.
    pub(super) fn add_records(&mut self, block: &mut Block) {
        if block.unread.is_some() {
            return;
        }
        if self.split(block, true).is_none() {
            block.records.clear();
        }
        self.count_unpacked(block);
    }

    fn count_unpacked(&mut self, block: &Block) {
        self.reading.unpacked += u64::from(!block.records.is_empty());
    }

    /// Reads on from this place.
    fn go_to(&mut self, offset: u64) -> io::Result<()> {
        self.file.seek(SeekFrom::Start(offset))?;
        self.window.clear();
        (self.base, self.at, self.end_of_file) = (offset, 0, false);
        Ok(())
    }

    fn next(&mut self, block: &mut Block, with_records: bool) -> io::Result<bool> {
        block.after_damage = false;
        block.unread = None;
        block.planned = None;
        if self.plan.is_some()
            && let Some(found) = self.next_planned(block, with_records)?
        {
            return Ok(found);
        }
        loop {
            let before = self.damage_count;
            let kind = self.frame()?;
            block.after_damage |= self.damage_count > before;
            match kind {
                None => return Ok(false),
                Some(FrameKind::Header | FrameKind::Index) => continue,
                Some(FrameKind::Items) => {}
            }
            if self.split(block, with_records).is_some() {
                self.count_unpacked(block);
                return Ok(true);
            }
            // The checksum is right but the contents are invalid: another program wrote it.
            let offset = self.offset();
            self.note(Damage { kind: DamageKind::Contents, offset, skipped: 0, blocks: 1 });
            block.after_damage = true;
        }
    }

    fn split(&self, block: &mut Block, with_records: bool) -> Option<()> {
        let mut payload = self.payload.as_slice();
        let items = payload.try_get_u32_le().ok()? as usize;
        let items = payload.split_off(..items)?;
        block.items.clear();
        block.items.extend_from_slice(items);
        if !with_records {
            block.records.clear();
            return Some(());
        }
        unpack(payload, &mut block.records).ok()?;
        Some(())
    }

    /// Reads the next intact frame of this recording. Its payload is in `self.payload`.
    fn frame(&mut self) -> io::Result<Option<FrameKind>> {
        loop {
            self.fill(FRAME_HEADER_BYTES)?;
            if self.rest().is_empty() {
                self.close_damage(0);
                return Ok(None);
            }
            let Some(found) = Frame::decode(self.rest()) else {
                let short = self.rest().len() < FRAME_HEADER_BYTES;
                self.resync(if short { DamageKind::Truncated } else { DamageKind::NoBlock })?;
                continue;
            };
            let length = FRAME_HEADER_BYTES + found.compressed_bytes as usize;
            self.fill(length)?;
            let Some(compressed) = self.rest().get(FRAME_HEADER_BYTES..length) else {
                self.resync(DamageKind::Truncated)?;
                continue;
            };
            if crc32fast::hash(compressed) != found.checksum {
                self.checked_again += length as u64;
                if self.checked_again > AGAIN_BYTES {
                    self.open.get_or_insert((DamageKind::Checksum, self.base + self.at as u64));
                    self.at += length;
                } else {
                    self.resync(DamageKind::Checksum)?;
                }
                continue;
            }
            if found.sequence < self.expected {
                self.open.get_or_insert((DamageKind::Foreign, self.offset()));
                self.at += length;
                continue;
            }
            let payload_bytes = found.payload_bytes as usize;
            self.payload.clear();
            self.payload.reserve(payload_bytes.min(MAX_PAYLOAD_BYTES));
            let whole = self.window.get(self.at + FRAME_HEADER_BYTES..self.at + length).unwrap_or_default();
            let unpacked = self.decompressor.decompress_to_buffer(whole, &mut self.payload);
            if !matches!(unpacked, Ok(bytes) if bytes == payload_bytes) {
                self.open.get_or_insert((DamageKind::Contents, self.offset()));
                self.at += length;
                continue;
            }
            let missing = found.sequence - self.expected;
            if missing > 0 {
                self.open.get_or_insert((DamageKind::Gone, self.offset()));
            }
            self.close_damage(missing);
            self.expected = found.sequence.saturating_add(1);
            self.at += length;
            return Ok(Some(found.kind));
        }
    }

    /// Skips to the next frame header.
    fn resync(&mut self, kind: DamageKind) -> io::Result<()> {
        self.open.get_or_insert((kind, self.offset()));
        let mut from = self.at + 1;
        loop {
            if let Some(found) = frame::find(&self.window, from) {
                self.at = found;
                return Ok(());
            }
            // The magic may begin in the last bytes read.
            let kept = FRAME_MAGIC.len() - 1;
            self.at = self.window.len().saturating_sub(kept).max(from.min(self.window.len()));
            if self.end_of_file {
                self.at = self.window.len();
                return Ok(());
            }
            self.fill(READ_BYTES)?;
            from = self.at;
        }
    }

    /// Ends the skipped part. This many blocks are missing in it.
    fn close_damage(&mut self, blocks: u32) {
        if let Some((kind, offset)) = self.open.take() {
            let skipped = self.offset() - offset;
            self.note(Damage { kind, offset, skipped, blocks });
        }
    }

    fn note(&mut self, damage: Damage) {
        self.damage_count += 1;
        if self.damage.len() < MAX_DAMAGES {
            self.damage.push(damage);
        }
    }
}

impl<R> Reader<R> {
    fn offset(&self) -> u64 {
        self.base + self.at as u64
    }

    fn rest(&self) -> &[u8] {
        self.window.get(self.at..).unwrap_or_default()
    }
}

impl<R: Read> Reader<R> {
    /// Fills the window with at least this many bytes, if the file has them.
    fn fill(&mut self, bytes: usize) -> io::Result<()> {
        if self.rest().len() >= bytes || self.end_of_file {
            return Ok(());
        }
        self.base += self.at as u64;
        self.window.drain(..self.at);
        self.at = 0;
        let wanted = bytes.max(self.read_bytes).saturating_sub(self.window.len());
        let read = (&mut self.file).take(wanted as u64).read_to_end(&mut self.window)?;
        self.reading.bytes += read as u64;
        self.end_of_file = read < wanted;
        Ok(())
    }
}
