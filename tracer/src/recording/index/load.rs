//! Finds the index of a file, and chooses the frames to read.
//!
//! Reads the end of the file and each index frame, the last one first. A file without an index at its end has none: it
//! was cut off, or an older viptrace wrote it.

use std::io::{self, Read, Seek, SeekFrom};

use super::{Addressed, Chapter, Contents, Described};
use crate::{
    recording::frame::{self, FILE_MAGIC, FRAME_HEADER_BYTES, Frame, FrameKind},
    time::Timestamp,
};

/// How far from its end a file is searched for the last index frame, step by step.
const TAILS: [u64; 3] = [4 << 10, 64 << 10, 1 << 20];
/// The most frames of one file: those of 10 billion events and more.
const MAX_PLANNED: usize = 4 << 20;

/// The index of a file.
#[derive(Debug)]
pub(in crate::recording) enum Loaded {
    Found(Plan),
    /// The file has none.
    None,
    /// It contradicts itself or is damaged.
    Unusable,
}

/// The frames of a file, and which of them to read whole.
#[derive(Debug, Default)]
pub(in crate::recording) struct Plan {
    pub(in crate::recording) frames: Vec<Planned>,
    /// The bytes read to make it.
    pub(in crate::recording) bytes: u64,
}

/// A frame of items.
#[derive(Clone, Copy, Debug)]
pub(in crate::recording) struct Planned {
    pub(in crate::recording) offset: u64,
    pub(in crate::recording) sequence: u32,
    /// With its header.
    pub(in crate::recording) bytes: u32,
    pub(in crate::recording) items_bytes: u32,
    pub(in crate::recording) items_checksum: u32,
    pub(in crate::recording) records: u32,
    /// Its latest time.
    pub(in crate::recording) to: Timestamp,
    /// Its records are wanted.
    pub(in crate::recording) is_wanted: bool,
    /// Its records were read before, and none was wanted.
    pub(in crate::recording) is_barren: bool,
}

/// Reads the index. `wants` decides by a frame's addresses and its latest time whether its records are read.
pub(in crate::recording) fn load<R: Read + Seek>(
    file: &mut R,
    wants: impl Fn(&Addressed, Timestamp) -> bool,
) -> io::Result<Loaded> {
    let mut plan = Plan::default();
    let Some((mut offset, mut frame)) = last(file, &mut plan.bytes)? else { return Ok(Loaded::None) };
    loop {
        let Some(chapter) = chapter(file, offset, frame, &mut plan.bytes)? else {
            return Ok(Loaded::Unusable);
        };
        let Some(planned) = planned(&chapter, offset, frame.sequence, &wants) else {
            return Ok(Loaded::Unusable);
        };
        // The file is read from its end.
        plan.frames.extend(planned.into_iter().rev());
        if plan.frames.len() > MAX_PLANNED {
            return Ok(Loaded::Unusable);
        }
        if chapter.previous == 0 {
            let is_whole = chapter.first == FILE_MAGIC.len() as u64 && chapter.sequence == 0;
            plan.frames.reverse();
            return Ok(if is_whole { Loaded::Found(plan) } else { Loaded::Unusable });
        }
        let before = (chapter.previous < offset).then_some(chapter.previous);
        let found = match before {
            Some(before) => frame_at(file, before, &mut plan.bytes)?,
            None => None,
        };
        let Some(found) = found.filter(|found| {
            let end = chapter.previous + whole(*found);
            found.kind == FrameKind::Index
                && end == chapter.first
                && found.sequence.checked_add(1) == Some(chapter.sequence)
        }) else {
            return Ok(Loaded::Unusable);
        };
        (offset, frame) = (chapter.previous, found);
    }
}

/// The last frame of the file, if it is an index.
fn last<R: Read + Seek>(file: &mut R, read: &mut u64) -> io::Result<Option<(u64, Frame)>> {
    let end = file.seek(SeekFrom::End(0))?;
    let mut tail = Vec::new();
    for length in TAILS {
        let length = length.min(end);
        file.seek(SeekFrom::Start(end - length))?;
        tail.clear();
        *read += file.take(length).read_to_end(&mut tail)? as u64;
        let places = std::iter::successors(frame::find(&tail, 0), |at| frame::find(&tail, at + 1));
        for at in places {
            let Some(found) = Frame::decode(tail.get(at..).unwrap_or_default()) else { continue };
            if found.kind == FrameKind::Index && at as u64 + whole(found) == tail.len() as u64 {
                return Ok(Some((end - length + at as u64, found)));
            }
        }
        if length == end {
            break;
        }
    }
    Ok(None)
}

const fn whole(frame: Frame) -> u64 {
    FRAME_HEADER_BYTES as u64 + frame.compressed_bytes as u64
}

fn frame_at<R: Read + Seek>(file: &mut R, offset: u64, read: &mut u64) -> io::Result<Option<Frame>> {
    let mut header = Vec::with_capacity(FRAME_HEADER_BYTES);
    file.seek(SeekFrom::Start(offset))?;
    *read += file.take(FRAME_HEADER_BYTES as u64).read_to_end(&mut header)? as u64;
    Ok(Frame::decode(&header))
}

/// The contents of this index frame.
fn chapter<R: Read + Seek>(
    file: &mut R,
    offset: u64,
    frame: Frame,
    read: &mut u64,
) -> io::Result<Option<Chapter>> {
    let mut compressed = Vec::with_capacity(frame.compressed_bytes as usize);
    file.seek(SeekFrom::Start(offset + FRAME_HEADER_BYTES as u64))?;
    *read += file.take(frame.compressed_bytes.into()).read_to_end(&mut compressed)? as u64;
    if compressed.len() != frame.compressed_bytes as usize || crc32fast::hash(&compressed) != frame.checksum {
        return Ok(None);
    }
    let payload = zstd::bulk::decompress(&compressed, frame.payload_bytes as usize);
    Ok(payload.ok().and_then(|payload| Chapter::decode(&payload)))
}

/// The frames of items of an index frame that lies here; `None` if they do not end where it begins.
fn planned(
    chapter: &Chapter,
    offset: u64,
    sequence: u32,
    wants: &impl Fn(&Addressed, Timestamp) -> bool,
) -> Option<Vec<Planned>> {
    let (mut at, mut number) = (chapter.first, chapter.sequence);
    let mut planned = Vec::with_capacity(chapter.frames.len());
    for Described { bytes, contents } in &chapter.frames {
        if let Some(Contents { items_bytes, items_checksum, records, to, addressed, .. }) = contents {
            planned.push(Planned {
                offset: at,
                sequence: number,
                bytes: *bytes,
                items_bytes: *items_bytes,
                items_checksum: *items_checksum,
                records: *records,
                to: *to,
                is_wanted: *records > 0 && wants(addressed, *to),
                is_barren: false,
            });
        }
        at = at.checked_add(u64::from(*bytes))?;
        number = number.checked_add(1)?;
    }
    (at == offset && number == sequence).then_some(planned)
}
