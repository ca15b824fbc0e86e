//! The end of a recording, without reading it.

use std::{
    collections::VecDeque,
    io::{Read, Seek, SeekFrom},
};

use bytes::Buf;

use crate::{
    recording::{
        frame::{FILE_MAGIC, FRAME_HEADER_BYTES, Frame, FrameKind},
        item::{Assembler, Item},
    },
    time::Timestamp,
};

/// A trace advances at least once in so many blocks at its end.
const LAST_BLOCKS: usize = 4;

/// The latest time in the last intact blocks of a recording, found by the frames' headers alone; `None` without one. What
/// follows a damaged header is not read, and a block that is cut off or damaged is left out.
pub(in crate::recording) fn last_time<R: Read + Seek>(file: R) -> Option<Timestamp> {
    times(file).1.into_iter().flatten().flatten().max()
}

/// Whether a recording has a time in its last blocks, and all of them are intact.
pub(in crate::recording) fn has_end<R: Read + Seek>(file: R) -> bool {
    let (is_whole, times) = times(file);
    is_whole && times.iter().all(Option::is_some) && times.iter().flatten().any(Option::is_some)
}

/// Whether no header is damaged, and what [`time_of`] returns for each of the last blocks.
#[expect(clippy::option_option, reason = "as of `time_of`")]
fn times<R: Read + Seek>(mut file: R) -> (bool, Vec<Option<Option<Timestamp>>>) {
    let mut offset = FILE_MAGIC.len() as u64;
    let mut last = VecDeque::with_capacity(LAST_BLOCKS);
    let mut header = [0; FRAME_HEADER_BYTES];
    let mut is_whole = true;
    while file.seek(SeekFrom::Start(offset)).is_ok() && file.read_exact(&mut header).is_ok() {
        let Some(frame) = Frame::decode(&header) else {
            is_whole = false;
            break;
        };
        offset += (FRAME_HEADER_BYTES + frame.compressed_bytes as usize) as u64;
        if frame.kind == FrameKind::Items {
            if last.len() == LAST_BLOCKS {
                last.pop_front();
            }
            last.push_back((offset - u64::from(frame.compressed_bytes), frame));
        }
    }
    let times = last.into_iter().map(|(offset, frame)| time_of(&mut file, offset, frame)).collect();
    (is_whole, times)
}

/// The latest time in the block at this offset, if it has one; `None` if the block is not intact.
#[expect(clippy::option_option, reason = "a block that is intact and has no time is no damaged one")]
fn time_of<R: Read + Seek>(mut file: R, offset: u64, frame: Frame) -> Option<Option<Timestamp>> {
    let mut compressed = vec![0; frame.compressed_bytes as usize];
    file.seek(SeekFrom::Start(offset)).ok()?;
    file.read_exact(&mut compressed).ok()?;
    let payload = zstd::bulk::decompress(&compressed, frame.payload_bytes as usize).ok()?;
    let mut rest = payload.as_slice();
    let length = rest.try_get_u32_le().ok()? as usize;
    let (mut items, mut assembler) = (rest.get(..length)?, Assembler::default());
    let mut time = None;
    while let Some(item) = assembler.next(&mut items) {
        let of_item = match item {
            Ok(Item::Advance(now) | Item::Finish(now)) => Some(now),
            Ok(Item::End(end)) => Some(end.ended),
            Ok(_) | Err(_) => None,
        };
        time = time.max(of_item);
    }
    Some(time)
}
