//! A recording with right lengths and checksums, built from pieces.
//!
//! They are a sequence of `u8 kind, u24 length (little-endian), bytes`. The last piece may be shorter than its length. By
//! kind:
//!
//! | kind | piece |
//! |---|---|
//! | 0 | an item of this block: its kind and body |
//! | 1 | a record of this block, as the kernel half writes it |
//! | 2 | all records of this block, packed |
//! | 3 | the end of this block, which is repeated; the first byte is the count |
//! | 4 | a header, as JSON |
//! | 5 | bytes between two blocks |
//! | 6 | adds the first byte to the number of the next block |
//!
//! Without a header piece, a real kernel's header comes first.

use std::sync::LazyLock;

use crate::corpus;

const FILE_MAGIC: &[u8] = b"\xf1viptrace rec\r\n\x1a";
const FRAME_MAGIC: &[u8] = b"\xf1VTBLK\r\n";
const HEADER: u32 = 0;
const ITEMS: u32 = 1;
/// The limit of a file's payload in bytes, which bounds the repetitions.
const MAX_PAYLOADS_BYTES: usize = 4 << 20;
/// The sizes that the kernel half can write: from a header to as many words as a shape has bits.
const RECORD_BYTES: std::ops::RangeInclusive<usize> = 16..=512;

static REAL_HEADER: LazyLock<Vec<u8>> = LazyLock::new(|| serde_json::to_vec(&corpus::header()).unwrap());

/// The file that these pieces make.
pub fn file(pieces: &[u8]) -> Vec<u8> {
    let mut file = File::new();
    for_each(pieces, |kind, piece| file.put(kind, piece));
    file.end_block(1);
    file.bytes
}

/// Takes a sequence of pieces apart.
pub fn for_each(mut rest: &[u8], mut take: impl FnMut(u8, &[u8])) {
    while let Some(([kind, length @ ..], bytes)) = rest.split_first_chunk::<4>() {
        let [low, middle, high] = *length;
        let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
        let (piece, behind) = bytes.split_at(length.min(bytes.len()));
        take(*kind, piece);
        rest = behind;
    }
}

struct File {
    bytes: Vec<u8>,
    sequence: u32,
    has_header: bool,
    payloads_bytes: usize,
    items: Vec<u8>,
    records: Vec<Vec<u8>>,
    packed: Option<Vec<u8>>,
}

impl File {
    fn new() -> Self {
        Self {
            bytes: FILE_MAGIC.to_vec(),
            sequence: 0,
            has_header: false,
            payloads_bytes: 0,
            items: Vec::new(),
            records: Vec::new(),
            packed: None,
        }
    }

    fn put(&mut self, kind: u8, piece: &[u8]) {
        let first = piece.first().copied().unwrap_or(0);
        match kind % 7 {
            0 => {
                if let Some((kind, body)) = piece.split_first() {
                    self.item(*kind, body);
                }
            }
            1 if RECORD_BYTES.contains(&piece.len()) => {
                self.records.push(piece.to_vec());
                // This item reports one more observed record.
                self.item(1, &1_u32.to_le_bytes());
            }
            1 => {}
            2 => self.packed = Some(piece.to_vec()),
            3 => self.end_block(u32::from(first).max(1)),
            4 => {
                self.end_block(1);
                self.frame(HEADER, piece);
                self.has_header = true;
            }
            5 => {
                self.end_block(1);
                self.begin();
                self.bytes.extend(piece);
            }
            _ => {
                self.end_block(1);
                self.begin();
                self.sequence = self.sequence.wrapping_add(u32::from(first));
            }
        }
    }

    fn item(&mut self, kind: u8, body: &[u8]) {
        self.items.push(kind);
        let mut length = body.len();
        while length >= 0x80 {
            self.items.push(length as u8 | 0x80);
            length >>= 7;
        }
        self.items.push(length as u8);
        self.items.extend(body);
    }

    fn begin(&mut self) {
        if !self.has_header {
            self.has_header = true;
            self.frame(HEADER, &REAL_HEADER);
        }
    }

    fn end_block(&mut self, times: u32) {
        let (items, records) = (std::mem::take(&mut self.items), std::mem::take(&mut self.records));
        let packed = self.packed.take();
        if items.is_empty() && packed.is_none() {
            return;
        }
        self.begin();
        let mut payload = (items.len() as u32).to_le_bytes().to_vec();
        payload.extend(items);
        payload.extend(packed.unwrap_or_else(|| pack(&records)));
        for _ in 0..times {
            self.frame(ITEMS, &payload);
        }
    }

    fn frame(&mut self, kind: u32, payload: &[u8]) {
        self.payloads_bytes += payload.len();
        if self.payloads_bytes > MAX_PAYLOADS_BYTES {
            return;
        }
        let compressed = zstd::bulk::compress(payload, 1).unwrap();
        let mut header = FRAME_MAGIC.to_vec();
        let lengths = [compressed.len() as u32, payload.len() as u32];
        for word in [kind, self.sequence, lengths[0], lengths[1], crc32fast::hash(&compressed)] {
            header.extend(word.to_le_bytes());
        }
        let checksum = crc32fast::hash(&header);
        self.bytes.extend(header);
        self.bytes.extend(checksum.to_le_bytes());
        self.bytes.extend(compressed);
        self.sequence = self.sequence.wrapping_add(1);
    }
}

/// In the simplest form: a shape for each record, and all words except the time as differences from zero.
fn pack(records: &[Vec<u8>]) -> Vec<u8> {
    let records = records.get(..records.len().min(65_535)).unwrap();
    let mut packed = (records.len() as u32).to_le_bytes().to_vec();
    packed.extend((records.len() as u16).to_le_bytes());
    for record in records {
        let words = record.len().div_ceil(4);
        let set = u128::MAX.checked_shl(words as u32).map_or(u128::MAX, |beyond| !beyond) & !0b11;
        packed.extend((record.len() as u16).to_le_bytes());
        packed.extend(set.to_le_bytes());
    }
    packed.extend((0..records.len()).map(|shape| shape as u8));
    packed.extend((0..records.len()).map(|shape| (shape >> 8) as u8));
    packed.extend(vec![0; 2 * records.len()]);
    // Every time is written as a 64-bit difference from the one before.
    packed.extend(vec![0xff; 4 * records.len()]);
    packed.extend((records.len() as u32).to_le_bytes());
    let mut last = 0_u64;
    for record in records {
        let time = u64::from_le_bytes(*record.first_chunk().unwrap());
        let step = time.wrapping_sub(last).cast_signed();
        packed.extend((step << 1 ^ step >> 63).to_le_bytes());
        last = time;
    }
    for record in records {
        packed.extend(record.get(8..).unwrap());
        packed.extend(vec![0; record.len().next_multiple_of(4) - record.len()]);
    }
    packed
}
