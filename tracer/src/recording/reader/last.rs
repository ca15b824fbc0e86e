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

/// The latest time in the last blocks of a recording, found by the frames' headers alone; `None` if a frame is damaged.
pub(in crate::recording) fn last_time<R: Read + Seek>(mut file: R) -> Option<Timestamp> {
    let mut offset = FILE_MAGIC.len() as u64;
    let mut last = VecDeque::with_capacity(LAST_BLOCKS);
    let mut header = [0; FRAME_HEADER_BYTES];
    loop {
        file.seek(SeekFrom::Start(offset)).ok()?;
        if file.read_exact(&mut header).is_err() {
            break;
        }
        let frame = Frame::decode(&header)?;
        offset += (FRAME_HEADER_BYTES + frame.compressed_bytes as usize) as u64;
        if frame.kind == FrameKind::Items {
            if last.len() == LAST_BLOCKS {
                last.pop_front();
            }
            last.push_back((offset - u64::from(frame.compressed_bytes), frame));
        }
    }
    let mut time = None;
    for (offset, frame) in last {
        let mut compressed = vec![0; frame.compressed_bytes as usize];
        file.seek(SeekFrom::Start(offset)).ok()?;
        file.read_exact(&mut compressed).ok()?;
        let payload = zstd::bulk::decompress(&compressed, frame.payload_bytes as usize).ok()?;
        let mut rest = payload.as_slice();
        let length = rest.try_get_u32_le().ok()? as usize;
        let (mut items, mut assembler) = (rest.get(..length)?, Assembler::default());
        while let Some(item) = assembler.next(&mut items) {
            let of_item = match item {
                Ok(Item::Advance(now) | Item::Finish(now)) => Some(now),
                Ok(Item::End(end)) => Some(end.ended),
                Ok(_) | Err(_) => None,
            };
            time = time.max(of_item);
        }
    }
    time
}
