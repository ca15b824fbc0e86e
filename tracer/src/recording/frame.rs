//! Frames: the layout of blocks in the file, and the search for the next one after damage.
//!
//! Owns the bytes around a block's compressed payload. Knows nothing of the payload. No input makes this code panic,
//! and a frame that claims more than [`MAX_PAYLOAD_BYTES`] is damage.

/// The first bytes of a recording: a byte above 127, the name, and line ends that a transfer as text would change.
pub(super) const FILE_MAGIC: [u8; 16] = *b"\xf1viptrace rec\r\n\x1a";
/// The first bytes of each frame.
pub(super) const FRAME_MAGIC: [u8; 8] = *b"\xf1VTBLK\r\n";
pub(super) const FRAME_HEADER_BYTES: usize = 32;
/// The largest payload, compressed or not, in bytes.
pub(crate) const MAX_PAYLOAD_BYTES: usize = 16 << 20;

/// The kind of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// The recording's header, as JSON.
    Header,
    /// Items and records.
    Items,
    /// Where what is in the frames before it.
    Index,
}

impl FrameKind {
    pub(super) const fn number(self) -> u32 {
        match self {
            Self::Header => 0,
            Self::Items => 1,
            Self::Index => 2,
        }
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) kind: FrameKind,
    /// The number of the frame, from 0: a gap gives the number of missing frames.
    pub(super) sequence: u32,
    pub(super) compressed_bytes: u32,
    pub(super) payload_bytes: u32,
    /// CRC-32 (ISO-HDLC) of the compressed payload.
    pub(super) checksum: u32,
}

impl Frame {
    /// The frame around `compressed`.
    pub(super) fn around(kind: FrameKind, sequence: u32, compressed: &[u8], payload_bytes: u32) -> Self {
        let compressed_bytes = u32::try_from(compressed.len()).unwrap_or(u32::MAX);
        Self { kind, sequence, compressed_bytes, payload_bytes, checksum: crc32fast::hash(compressed) }
    }

    pub(super) fn encode(self) -> [u8; FRAME_HEADER_BYTES] {
        let kind = self.kind.number();
        let mut bytes = [0; FRAME_HEADER_BYTES];
        let words = [kind, self.sequence, self.compressed_bytes, self.payload_bytes, self.checksum];
        let (magic, rest) = bytes.split_at_mut(FRAME_MAGIC.len());
        magic.copy_from_slice(&FRAME_MAGIC);
        for (place, word) in rest.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let (covered, own) = bytes.split_at_mut(FRAME_HEADER_BYTES - 4);
        own.copy_from_slice(&crc32fast::hash(covered).to_le_bytes());
        bytes
    }

    /// `None` if these bytes are not an intact frame header.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; FRAME_HEADER_BYTES] = bytes.get(..FRAME_HEADER_BYTES)?.try_into().ok()?;
        let word = |at: usize| {
            let word: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_le_bytes(word))
        };
        let covered = bytes.get(..FRAME_HEADER_BYTES - 4)?;
        if !bytes.starts_with(&FRAME_MAGIC) || word(28)? != crc32fast::hash(covered) {
            return None;
        }
        let kind = match word(8)? {
            0 => FrameKind::Header,
            1 => FrameKind::Items,
            2 => FrameKind::Index,
            _ => return None,
        };
        let (compressed_bytes, payload_bytes) = (word(16)?, word(20)?);
        let sane = |bytes: u32| bytes as usize <= MAX_PAYLOAD_BYTES;
        (sane(compressed_bytes) && sane(payload_bytes)).then_some(Self {
            kind,
            sequence: word(12)?,
            compressed_bytes,
            payload_bytes,
            checksum: word(24)?,
        })
    }
}

/// The position of the next frame magic at or after `from`.
pub(super) fn find(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    rest.windows(FRAME_MAGIC.len()).position(|window| window == FRAME_MAGIC).map(|at| from + at)
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    proptest! {
        #[test]
        fn frames_read_back(
            kind in prop::sample::select(vec![FrameKind::Header, FrameKind::Items, FrameKind::Index]),
            sequence: u32,
            compressed in vec(any::<u8>(), 0..300),
            payload_bytes in 0..=16_u32 << 20,
        ) {
            let frame = Frame::around(kind, sequence, &compressed, payload_bytes);
            let bytes = [frame.encode().as_slice(), &compressed].concat();
            prop_assert_eq!(Frame::decode(&bytes), Some(frame));
            prop_assert_eq!(find(&bytes, 0), Some(0));
        }

        #[test]
        fn any_bytes_are_a_frame_or_none(bytes in vec(any::<u8>(), 0..64)) {
            let bytes = [FRAME_MAGIC.as_slice(), &bytes].concat();
            if let Some(frame) = Frame::decode(&bytes) {
                prop_assert!(bytes.starts_with(&frame.encode()));
            }
        }
    }

    #[test]
    fn a_frame_reads_back_and_every_changed_bit_is_found() {
        let frame = Frame::around(FrameKind::Items, 7, b"compressed", 12345);
        let bytes = frame.encode();
        assert_eq!(Frame::decode(&bytes), Some(frame));
        for bit in 0..bytes.len() * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Frame::decode(&changed), None, "bit {bit}");
        }
        assert_eq!(Frame::decode(&bytes[..31]), None);
    }

    #[test]
    fn absurd_sizes_are_damage() {
        let mut frame = Frame::around(FrameKind::Items, 0, b"", 0);
        frame.payload_bytes = u32::try_from(MAX_PAYLOAD_BYTES).unwrap() + 1;
        assert_eq!(Frame::decode(&frame.encode()), None);
    }

    #[test]
    fn the_next_frame_is_found() {
        let mut bytes = b"garbage\xf1VTBL".to_vec();
        assert_eq!(find(&bytes, 0), None);
        bytes.extend(FRAME_MAGIC);
        assert_eq!(find(&bytes, 0), Some(12));
        assert_eq!(find(&bytes, 13), None);
        assert_eq!(find(&bytes, 1000), None);
    }
}
