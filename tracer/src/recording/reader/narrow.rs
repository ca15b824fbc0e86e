//! Reads the frames of a file that its index names, and of the others only the items.
//!
//! Owns the check of each frame against the index: where they differ, the reader goes on without the index from there, as
//! if there were none. Damage in records that are not read is not noticed.

use std::io::{self, Read, Seek, SeekFrom};

use bytes::Buf;

use super::{Block, READ_BYTES, Reader};
use crate::{
    recording::{
        frame::{FRAME_HEADER_BYTES, Frame, FrameKind, MAX_PAYLOAD_BYTES},
        index::{Addressed, Loaded, Planned, load},
    },
    time::Timestamp,
};

/// How much of a file was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes read so far, and those of the file.
    pub bytes: u64,
    pub total_bytes: u64,
    /// Blocks with records: those unpacked so far, and those of which only the other items were read.
    pub unpacked: u64,
    pub passed: u64,
    /// Of the unpacked ones, those that an earlier reading for the same query unpacked, and that have nothing for it.
    pub barren: u64,
    /// The file has an index that cannot be used: it is damaged, or it contradicts the file.
    pub is_index_unusable: bool,
}

impl std::ops::AddAssign for Reading {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.total_bytes += other.total_bytes;
        self.unpacked += other.unpacked;
        self.passed += other.passed;
        self.barren += other.barren;
        self.is_index_unusable |= other.is_index_unusable;
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Before the first block: reads the file by its index, if it has one. `wants` decides by a frame's addresses and its
    /// latest time whether its records are read.
    pub(in crate::recording) fn narrow(
        &mut self,
        wants: impl Fn(&Addressed, Timestamp) -> bool,
    ) -> io::Result<()> {
        let loaded = load(&mut self.file, wants)?;
        match loaded {
            Loaded::Found(plan) => {
                self.reading.bytes += plan.bytes;
                self.plan = Some((plan, 0));
                self.read_bytes = 0;
            }
            Loaded::None => {}
            Loaded::Unusable => self.reading.is_index_unusable = true,
        }
        let next = self.base + self.window.len() as u64;
        self.file.seek(SeekFrom::Start(next))?;
        Ok(())
    }

    /// After [`Self::narrow`]: leaves out the records of frames that an earlier reading found to have no wanted one, by
    /// their sequence numbers.
    pub(in crate::recording) fn leave_out(&mut self, is_barren: impl Fn(u32) -> bool) {
        let frames = self.plan.iter_mut().flat_map(|(plan, _)| &mut plan.frames);
        for frame in frames.filter(|frame| frame.is_wanted && is_barren(frame.sequence)) {
            (frame.is_wanted, frame.is_barren) = (false, true);
        }
    }

    /// Whether an index leads.
    pub(in crate::recording) fn is_planned(&self) -> bool {
        self.plan.is_some()
    }

    pub(in crate::recording) fn reading(&self) -> Reading {
        self.reading
    }

    /// The next block by the index; `None` if the index cannot be used from here on.
    pub(super) fn next_planned(&mut self, block: &mut Block, with_records: bool) -> io::Result<Option<bool>> {
        let Some((plan, next)) = &mut self.plan else { return Ok(None) };
        let Some(planned) = plan.frames.get(*next).copied() else { return Ok(Some(false)) };
        *next += 1;
        let is_read = if planned.is_wanted || planned.records == 0 {
            self.whole(&planned, block, with_records)?
        } else {
            self.items(&planned, block)?
        };
        if is_read {
            return Ok(Some(true));
        }
        self.plan = None;
        self.read_bytes = READ_BYTES;
        self.reading.is_index_unusable = true;
        self.go_to(planned.offset)?;
        self.expected = planned.sequence;
        Ok(None)
    }

    /// Reads the frame; false if it is not the one that the index describes.
    fn whole(&mut self, planned: &Planned, block: &mut Block, with_records: bool) -> io::Result<bool> {
        self.go_to(planned.offset)?;
        self.fill(planned.bytes as usize)?;
        let (header, compressed) = self.window.split_at_checked(FRAME_HEADER_BYTES).unwrap_or_default();
        let Some(frame) = Frame::decode(header).filter(|frame| is_planned(frame, planned)) else {
            return Ok(false);
        };
        let payload_bytes = frame.payload_bytes as usize;
        if crc32fast::hash(compressed) != frame.checksum {
            return Ok(false);
        }
        self.payload.clear();
        self.payload.reserve(payload_bytes.min(MAX_PAYLOAD_BYTES));
        let unpacked = self.decompressor.decompress_to_buffer(compressed, &mut self.payload);
        if !matches!(unpacked, Ok(bytes) if bytes == payload_bytes)
            || self.split(block, with_records).is_none()
        {
            return Ok(false);
        }
        self.expected = planned.sequence.saturating_add(1);
        self.at = planned.bytes as usize;
        block.planned = Some(planned.sequence);
        self.count_unpacked(block);
        Ok(true)
    }

    /// Reads the frame's items; false if it is not the frame that the index describes.
    fn items(&mut self, planned: &Planned, block: &mut Block) -> io::Result<bool> {
        self.go_to(planned.offset)?;
        self.fill(FRAME_HEADER_BYTES + planned.items_bytes as usize)?;
        let (header, compressed) = self.window.split_at_checked(FRAME_HEADER_BYTES).unwrap_or_default();
        let is_planned = Frame::decode(header).is_some_and(|frame| is_planned(&frame, planned));
        if !is_planned
            || compressed.len() != planned.items_bytes as usize
            || crc32fast::hash(compressed) != planned.items_checksum
            || unpack_items(compressed, &mut block.items).is_none()
        {
            return Ok(false);
        }
        block.records.clear();
        block.unread = Some(planned.to);
        self.expected = planned.sequence.saturating_add(1);
        self.at = self.window.len();
        if planned.is_barren {
            self.reading.unpacked += 1;
            self.reading.barren += 1;
            self.reading.bytes += u64::from(planned.bytes).saturating_sub(self.window.len() as u64);
        } else {
            self.reading.passed += 1;
        }
        Ok(true)
    }
}

fn is_planned(frame: &Frame, planned: &Planned) -> bool {
    frame.kind == FrameKind::Items
        && frame.sequence == planned.sequence
        && frame.compressed_bytes as usize + FRAME_HEADER_BYTES == planned.bytes as usize
}

/// The items at the beginning of a compressed payload, of which this part ends after them.
fn unpack_items(compressed: &[u8], items: &mut Vec<u8>) -> Option<()> {
    let mut unpacked = zstd::stream::read::Decoder::with_buffer(compressed).ok()?;
    let mut length = [0; 4];
    unpacked.read_exact(&mut length).ok()?;
    let length = length.as_slice().get_u32_le();
    items.clear();
    if length as usize > MAX_PAYLOAD_BYTES {
        return None;
    }
    unpacked.take(length.into()).read_to_end(items).ok()?;
    (items.len() == length as usize).then_some(())
}
