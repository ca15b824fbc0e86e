//! The kernel's records of one block, packed: each as its difference to an earlier one, by columns.
//!
//! Owns the packing and its inverse. All it knows of a record is that it begins with its time, which bytes are equal in
//! similar records, and where ports are; `kernel::decode` interprets records. Unpacking checks everything: any bytes give records or an
//! error, never more than [`MAX_RECORDS`] times [`MAX_RECORD_BYTES`].
//!
//! The packing is worth its lines: a realistic mix takes 8.0 bytes a record, and plain zstd of the same records as the
//! kernel wrote them takes 30 (`cargo xtask bench replay` prints both).
//!
//! ```text
//! u32           count of records; the highest bit is set if records borrow ports
//! u16           count of shapes
//! per shape     u16 length of the record in bytes, u128 set of its 32-bit words that differ from the reference; the lowest
//!               bit is set if its records borrow at the first place, the next bit at the second one
//! if they do    u16 length and u8 hook of the records that lend, u16 place of their port, u16 first and second place
//! count x u16   the record's shape            (all low bytes, then all high bytes)
//! count x u16   how many records back its reference is, 0 for a record of zeros       (the same)
//! count x u32   its time less the one before it (0 before the first), zigzag; all ones: see below   (by bytes)
//! u32, u64...   count and values of the time differences that have no room in 32 bits, in order
//! per shape     if its records borrow: one byte a record, how many lenders back its lender is;
//!               for each word of its set, for each of the word's bytes: one byte a record of this shape, XORed with
//!               the reference's
//! ```
//!
//! Numbers are little-endian. The first two words of a record, its time, are never in the set.
//!
//! A connection's port is in the record of its conntrack entry and again in those of its sockets, which are of other
//! shapes: a socket's record borrows it from the entry that lately had it. The port replaces that of the reference before
//! the differences apply.

use std::{collections::HashMap, ops::Range};

use bytes::{Buf, BufMut};
use tracer_ebpf::{Hook, Kind};

use crate::kernel::decode::PortPlaces;

/// The most records in one block.
pub(crate) const MAX_RECORDS: usize = 65_535;
/// The longest record, in bytes: a set has a bit for each of its words.
pub(crate) const MAX_RECORD_BYTES: usize = 512;
/// The shortest record: a header.
const MIN_RECORD_BYTES: usize = 16;
/// Words that hold the time.
const TIME_WORDS: u128 = 0b11;
/// Set in the count of records if some of them borrow.
const BORROWS: u32 = 1 << 31;
const FAR: u32 = u32::MAX;

/// Records in the form of the ring buffer, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    bytes: Vec<u8>,
    /// The end of each record.
    ends: Vec<u32>,
}

impl Records {
    /// False if a record cannot be stored: too short for a header, or longer than any hook's.
    pub fn push(&mut self, record: &[u8]) -> bool {
        if !(MIN_RECORD_BYTES..=MAX_RECORD_BYTES).contains(&record.len()) {
            return false;
        }
        self.bytes.extend_from_slice(record);
        let Ok(end) = u32::try_from(self.bytes.len()) else {
            self.bytes.truncate(self.bytes.len() - record.len());
            return false;
        };
        self.ends.push(end);
        true
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Their size in the form of the ring buffer.
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Records one after the other; those beyond the end are left out.
    pub(super) fn range(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        let before = range.start.checked_sub(1).and_then(|before| self.ends.get(before));
        let mut start = before.map_or(0, |end| *end as usize);
        let ends = self.ends.get(range.start..range.end.min(self.ends.len())).unwrap_or_default();
        ends.iter().map_while(move |end| {
            let record = self.bytes.get(start..*end as usize)?;
            start = *end as usize;
            Some(record)
        })
    }

    pub fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)? as usize;
        let start = match index.checked_sub(1) {
            Some(before) => *self.ends.get(before)? as usize,
            None => 0,
        };
        self.bytes.get(start..end)
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).filter_map(|(start, end)| self.bytes.get(start as usize..*end as usize))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut [u8]> {
        let (mut rest, mut start) = (self.bytes.as_mut_slice(), 0);
        self.ends.iter().map_while(move |end| {
            let record = rest.split_off_mut(..(*end - start) as usize)?;
            start = *end;
            Some(record)
        })
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Which records lend their port, and where others can borrow it; places in bytes from a record's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loans {
    /// Of records of this length and hook.
    pub(crate) lender_bytes: u16,
    pub(crate) lender_hook: u8,
    /// In network byte order.
    pub(crate) lent_at: u16,
    /// In network byte order, and in that of the machine.
    pub(crate) places: [u16; 2],
}

impl Loans {
    /// Sockets borrow from the entries that were confirmed; `None` where a place is beyond any record.
    pub(super) fn of(PortPlaces { entry, peer, own }: PortPlaces) -> Option<Self> {
        let place = |at: usize| u16::try_from(at).ok();
        Some(Self {
            lender_bytes: place(Kind::Conntrack.record_bytes())?,
            lender_hook: Hook::Confirm as u8,
            lent_at: place(entry)?,
            places: [place(peer)?, place(own)?],
        })
    }

    /// The port of a record that lends it.
    fn lent(&self, record: &[u8]) -> Option<[u8; 2]> {
        let lends =
            record.len() == usize::from(self.lender_bytes) && record.get(HOOK) == Some(&self.lender_hook);
        if lends { two_at(record, self.lent_at) } else { None }
    }

    /// The port as it stands at the first or the second place.
    fn borrowed(port: [u8; 2], which: usize) -> [u8; 2] {
        if which == 0 { port } else { u16::from_be_bytes(port).to_ne_bytes() }
    }
}

/// Where a record's hook stands, in bytes.
const HOOK: usize = 14;

fn two_at(bytes: &[u8], at: u16) -> Option<[u8; 2]> {
    bytes.get(usize::from(at)..)?.first_chunk().copied()
}

/// These bytes are not packed records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the records are not as they were written: {0}")]
pub(crate) struct Unpackable(&'static str);

#[derive(Debug, Default)]
struct Shape {
    length: u16,
    words: u128,
    /// The differing words, record by record.
    values: Vec<u32>,
    /// How many lenders back the lender of each record is, if they borrow.
    loans: Vec<u8>,
}

/// Packs the records of a block.
#[derive(Debug, Default)]
pub(super) struct Packer {
    records: Records,
    shapes: Vec<Shape>,
    shape_numbers: HashMap<(u16, u128), u16>,
    of_shape: Vec<u16>,
    back: Vec<u16>,
    times: Vec<u32>,
    far_times: Vec<u64>,
    last_time: u64,
    /// The last record of the same entry, socket or packet.
    same: HashMap<(u8, u64), u32>,
    /// The last record of the same hook, in the same namespace, with the same detail.
    alike: HashMap<(u8, u32, u32), u32>,
    lending: Option<Loans>,
    /// The number of the last lender of each port, from 1.
    lenders: HashMap<[u8; 2], usize>,
    lender_count: usize,
}

impl Packer {
    /// A packer of records that lend and borrow their ports so.
    pub(super) fn new(lending: Option<Loans>) -> Self {
        Self { lending, ..Self::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// False if there is no room, or the record cannot be stored.
    pub(super) fn push(&mut self, record: &[u8]) -> bool {
        if self.len() >= MAX_RECORDS || !self.records.push(record) {
            return false;
        }
        let index = self.len() - 1;
        let (hook, kind) = (record.get(14).copied().unwrap_or(0), record.get(15).copied().unwrap_or(0));
        let word = |at: usize| record.get(at..).and_then(|mut rest| rest.try_get_u32_le().ok()).unwrap_or(0);
        // An entry, a packet's entry, a socket; a packet's reason, a socket's states, an entry's ctinfo.
        let (id, detail) = if kind == 2 { (24, word(36)) } else { (16, word(24)) };
        let id = record.get(id..).and_then(|mut rest| rest.try_get_u64_le().ok()).unwrap_or(0);
        let number = u32::try_from(index).unwrap_or(u32::MAX);
        let candidates = [
            self.same.insert((kind, id), number),
            self.alike.insert((hook, word(8), detail), number),
            index.checked_sub(1).and_then(|before| u32::try_from(before).ok()),
        ];
        let candidates = candidates.into_iter().flatten().filter_map(|candidate| {
            let reference = self.records.get(candidate as usize)?;
            (reference.len() == record.len()).then(|| (differing(record, reference), candidate))
        });
        let best = candidates.min_by_key(|(words, candidate)| (words.count_ones(), number - candidate));
        let (mut words, back) = match best {
            Some((words, candidate)) => (words, u16::try_from(number - candidate).unwrap_or(0)),
            None => (differing(record, &[]), 0),
        };
        let reference = match back {
            0 => None,
            back => self.records.get(index - usize::from(back)),
        };
        let reference = reference.unwrap_or_default();
        let loan = self.loan(record, reference, words);
        if let Some(Loan { which, word, .. }) = loan {
            words = words & !(1 << word) | 1 << which;
        }
        let length = u16::try_from(record.len()).unwrap_or(u16::MAX);
        let shapes = &mut self.shapes;
        let shape = *self.shape_numbers.entry((length, words)).or_insert_with(|| {
            shapes.push(Shape { length, words, ..Shape::default() });
            u16::try_from(shapes.len() - 1).unwrap_or(u16::MAX)
        });
        if let Some(shape) = shapes.get_mut(usize::from(shape)) {
            shape.loans.extend(loan.map(|loan| loan.back));
            let mut rest = words & !TIME_WORDS;
            while rest != 0 {
                let at = rest.trailing_zeros() as usize * 4;
                rest &= rest - 1;
                shape.values.push(word_at(record, at) ^ word_at(reference, at));
            }
        }
        if let Some(port) = self.lending.and_then(|lending| lending.lent(record)) {
            self.lender_count += 1;
            self.lenders.insert(port, self.lender_count);
        }
        self.of_shape.push(shape);
        self.back.push(back);
        let mut head = record;
        let time = head.try_get_u64_le().unwrap_or(0);
        let step = zigzag(time.wrapping_sub(self.last_time).cast_signed());
        self.last_time = time;
        match u32::try_from(step) {
            Ok(step) if step != FAR => self.times.push(step),
            _ => {
                self.times.push(FAR);
                self.far_times.push(step);
            }
        }
        true
    }

    /// The loan by which a word that differs from the reference's need not be stored.
    fn loan(&self, record: &[u8], reference: &[u8], words: u128) -> Option<Loan> {
        let Loans { lender_bytes, places, .. } = self.lending?;
        // Lenders have nothing to borrow: their own port is the one that is looked for.
        if record.len() == usize::from(lender_bytes) {
            return None;
        }
        places.into_iter().enumerate().find_map(|(which, place)| {
            let word = usize::from(place) / 4;
            if words >> word & 1 == 0 {
                return None;
            }
            // There and back is the same exchange of bytes.
            let port = Loans::borrowed(two_at(record, place)?, which);
            let back = u8::try_from(self.lender_count - self.lenders.get(&port)? + 1).ok()?;
            let mut predicted = word_at(reference, word * 4).to_le_bytes();
            let half = predicted.get_mut(usize::from(place) % 4..)?.first_chunk_mut::<2>()?;
            *half = Loans::borrowed(port, which);
            (u32::from_le_bytes(predicted) == word_at(record, word * 4)).then_some(Loan { which, word, back })
        })
    }

    /// Appends the packed records and clears the packer. Returns where columns end: each has statistics of its own.
    pub(super) fn finish(&mut self, into: &mut Vec<u8>) -> Vec<usize> {
        let mut ends = Vec::new();
        let loans = self.lending.filter(|_| self.shapes.iter().any(|shape| !shape.loans.is_empty()));
        let flag = if loans.is_some() { BORROWS } else { 0 };
        into.put_u32_le(u32::try_from(self.len()).unwrap_or(0) | flag);
        into.put_u16_le(u16::try_from(self.shapes.len()).unwrap_or(0));
        for shape in &self.shapes {
            into.put_u16_le(shape.length);
            into.put_u128_le(shape.words);
        }
        if let Some(Loans { lender_bytes, lender_hook, lent_at, places: [first, second] }) = loans {
            into.put_u16_le(lender_bytes);
            into.put_u8(lender_hook);
            for place in [lent_at, first, second] {
                into.put_u16_le(place);
            }
        }
        for column in [&self.of_shape, &self.back] {
            ends.push(into.len());
            into.extend(column.iter().map(|value| value.to_le_bytes()[0]));
            ends.push(into.len());
            into.extend(column.iter().map(|value| value.to_le_bytes()[1]));
        }
        for byte in 0..4 {
            ends.push(into.len());
            into.extend(self.times.iter().map(|time| (time >> (8 * byte)) as u8));
        }
        ends.push(into.len());
        into.put_u32_le(u32::try_from(self.far_times.len()).unwrap_or(0));
        for time in &self.far_times {
            into.put_u64_le(*time);
        }
        for shape in &self.shapes {
            if !shape.loans.is_empty() {
                into.extend(&shape.loans);
                ends.push(into.len());
            }
            let width = (shape.words & !TIME_WORDS).count_ones() as usize;
            for column in 0..width {
                for byte in 0..4 {
                    let values = shape.values.iter().skip(column).step_by(width);
                    into.extend(values.map(|value| (value >> (8 * byte)) as u8));
                    ends.push(into.len());
                }
            }
        }
        *self = Self::new(self.lending);
        ends
    }
}

/// A port that a record borrows.
#[derive(Clone, Copy, Debug)]
struct Loan {
    /// At the first or the second place.
    which: usize,
    /// The word that the port completes.
    word: usize,
    /// How many lenders back its lender is: 1 for the last one.
    back: u8,
}

/// The words in which a record differs from a reference of the same length, or from zeros, except the time's words.
fn differing(record: &[u8], reference: &[u8]) -> u128 {
    let mut words = 0;
    for at in 2..record.len().div_ceil(4).min(128) {
        words |= u128::from(word_at(record, at * 4) != word_at(reference, at * 4)) << at;
    }
    words & !TIME_WORDS
}

/// Four bytes; bytes after the end count as zeros.
fn word_at(bytes: &[u8], at: usize) -> u32 {
    let rest = bytes.get(at..).unwrap_or_default();
    match rest.first_chunk() {
        Some(word) => u32::from_le_bytes(*word),
        None => rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte)),
    }
}

const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

const fn unzigzag(value: u64) -> u64 {
    value >> 1 ^ (value & 1).wrapping_neg()
}

fn joined(low: &[u8], high: &[u8]) -> Vec<u16> {
    low.iter().zip(high).map(|(low, high)| u16::from_le_bytes([*low, *high])).collect()
}

/// A shape whose records are being unpacked.
#[derive(Debug)]
struct Rows<'p> {
    length: usize,
    /// The place at which its records borrow.
    borrows: Option<usize>,
    /// How many lenders back the lender of each record is.
    loans: &'p [u8],
    /// The position of each differing word in the record, in bytes.
    places: Vec<u16>,
    count: usize,
    /// The differing words: for each place, those of all records.
    columns: Vec<u32>,
    /// The number of records already unpacked.
    used: usize,
}

impl Rows<'_> {
    /// `planes` has four bytes for each word, each of them for all records.
    fn fill(&mut self, planes: &[u8]) {
        if self.count == 0 {
            return;
        }
        self.columns.reserve(self.places.len() * self.count);
        for planes in planes.chunks_exact(4 * self.count) {
            let (low, high) = planes.split_at(2 * self.count);
            let ((first, second), (third, fourth)) = (low.split_at(self.count), high.split_at(self.count));
            let words = first.iter().zip(second).zip(third.iter().zip(fourth));
            self.columns.extend(words.map(|((first, second), (third, fourth))| {
                u32::from_le_bytes([*first, *second, *third, *fourth])
            }));
        }
    }

    /// Changes a copy of the reference into the next record.
    fn apply(&mut self, record: &mut [u8]) {
        let values = self.columns.get(self.used..).unwrap_or_default().iter().step_by(self.count.max(1));
        self.used += 1;
        for (place, value) in self.places.iter().zip(values) {
            let Some(rest) = record.get_mut(usize::from(*place)..) else { continue };
            if let Some(word) = rest.first_chunk_mut::<4>() {
                *word = (u32::from_le_bytes(*word) ^ value).to_le_bytes();
            } else {
                for (byte, value) in rest.iter_mut().zip(value.to_le_bytes()) {
                    *byte ^= value;
                }
            }
        }
    }
}

/// Reads how records borrow, if that is whole.
fn loans_at(packed: &mut &[u8]) -> Option<Loans> {
    Some(Loans {
        lender_bytes: packed.try_get_u16_le().ok()?,
        lender_hook: packed.try_get_u8().ok()?,
        lent_at: packed.try_get_u16_le().ok()?,
        places: [packed.try_get_u16_le().ok()?, packed.try_get_u16_le().ok()?],
    })
}

/// Unpacks the output of [`Packer`] and replaces the contents of `into`.
pub(super) fn unpack(mut packed: &[u8], into: &mut Records) -> Result<(), Unpackable> {
    const SHORT: Unpackable = Unpackable("they end too early");
    into.clear();
    let count = packed.try_get_u32_le().map_err(|_| SHORT)?;
    let (count, borrow) = ((count & !BORROWS) as usize, count & BORROWS != 0);
    if count > MAX_RECORDS {
        return Err(Unpackable("there are too many"));
    }
    let shape_count = packed.try_get_u16_le().map_err(|_| SHORT)?;
    let mut shapes = Vec::new();
    for _ in 0..shape_count {
        let length = usize::from(packed.try_get_u16_le().map_err(|_| SHORT)?);
        let words = packed.try_get_u128_le().map_err(|_| SHORT)?;
        let beyond = u128::MAX.checked_shl(length.div_ceil(4) as u32).unwrap_or(0);
        let borrows = match words & TIME_WORDS {
            0 => None,
            1 if borrow => Some(0),
            2 if borrow => Some(1),
            _ => return Err(Unpackable("a shape is impossible")),
        };
        if !(MIN_RECORD_BYTES..=MAX_RECORD_BYTES).contains(&length) || words & beyond != 0 {
            return Err(Unpackable("a shape is impossible"));
        }
        let places = (2..128_u16).filter(|at| words >> at & 1 == 1).map(|at| at * 4).collect();
        shapes.push(Rows { length, borrows, loans: &[], places, count: 0, columns: Vec::new(), used: 0 });
    }
    let loans = if borrow { Some(loans_at(&mut packed).ok_or(SHORT)?) } else { None };
    let mut take = |bytes: usize| packed.split_off(..bytes).ok_or(SHORT);
    let (shape_low, shape_high) = (take(count)?, take(count)?);
    let (back_low, back_high) = (take(count)?, take(count)?);
    let times = joined(take(count)?, take(count)?).into_iter().zip(joined(take(count)?, take(count)?));
    let far_count = take(4)?.get_u32_le() as usize;
    let mut far_times = take(far_count.checked_mul(8).ok_or(SHORT)?)?;
    let of_shape = joined(shape_low, shape_high);
    let back = joined(back_low, back_high);
    let mut total_bytes = 0;
    for shape in &of_shape {
        let Some(shape) = shapes.get_mut(usize::from(*shape)) else {
            return Err(Unpackable("a record has an unknown shape"));
        };
        shape.count += 1;
        total_bytes += shape.length;
    }
    for shape in &mut shapes {
        if shape.borrows.is_some() {
            shape.loans = take(shape.count)?;
        }
        let planes = take(shape.count * shape.places.len() * 4)?;
        shape.fill(planes);
    }
    if !packed.is_empty() {
        return Err(Unpackable("something follows them"));
    }

    into.bytes.reserve(total_bytes);
    into.ends.reserve(count);
    let mut last_time = 0_u64;
    // The ports of the lenders so far.
    let mut lent: Vec<[u8; 2]> = Vec::new();
    for (index, ((shape, back), (time_low, time_high))) in of_shape.iter().zip(&back).zip(times).enumerate() {
        let Some(shape) = shapes.get_mut(usize::from(*shape)) else { return Err(SHORT) };
        let start = into.bytes.len();
        match usize::from(*back) {
            0 => into.bytes.resize(start + shape.length, 0),
            back => {
                let reference = index.checked_sub(back).ok_or(Unpackable("a reference is too far back"))?;
                let end = into.ends.get(reference).copied().unwrap_or(0) as usize;
                let begin = end.saturating_sub(shape.length);
                let exact = match reference.checked_sub(1) {
                    Some(before) => into.ends.get(before).copied().unwrap_or(0) as usize == begin,
                    None => begin == 0 && end == shape.length,
                };
                if !exact {
                    return Err(Unpackable("a reference has another length"));
                }
                into.bytes.extend_from_within(begin..end);
            }
        }
        let Some(record) = into.bytes.get_mut(start..) else { return Err(SHORT) };
        if let (Some(which), Some(loans)) = (shape.borrows, &loans) {
            let back = shape.loans.get(shape.used).copied().unwrap_or(0);
            let port = lent.len().checked_sub(usize::from(back)).and_then(|at| lent.get(at));
            let place = loans.places.get(which).map_or(MAX_RECORD_BYTES, |place| usize::from(*place));
            let half = record.get_mut(place..).and_then(<[u8]>::first_chunk_mut);
            let (Some(port), Some(half)) = (port, half) else {
                return Err(Unpackable("a port is borrowed from nowhere"));
            };
            *half = Loans::borrowed(*port, which);
        }
        shape.apply(record);
        lent.extend(loans.and_then(|loans| loans.lent(record)));
        let step = match u32::from(time_high) << 16 | u32::from(time_low) {
            FAR => far_times.try_get_u64_le().map_err(|_| Unpackable("a time is missing"))?,
            near => u64::from(near),
        };
        last_time = last_time.wrapping_add(unzigzag(step));
        if let Some(time) = record.first_chunk_mut() {
            *time = last_time.to_le_bytes();
        }
        into.ends.push(u32::try_from(into.bytes.len()).unwrap_or(u32::MAX));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn pack(records: &[Vec<u8>]) -> Vec<u8> {
        let mut packer = Packer::default();
        let mut bytes = Vec::new();
        for record in records {
            assert!(packer.push(record));
        }
        packer.finish(&mut bytes);
        assert_eq!(packer.len(), 0);
        bytes
    }

    fn unpacked(packed: &[u8]) -> Result<Vec<Vec<u8>>, Unpackable> {
        let mut records = Records::default();
        unpack(packed, &mut records)?;
        Ok(records.iter().map(<[u8]>::to_vec).collect())
    }

    /// Records of few kinds that share most of their bytes, as real ones do.
    fn some_records() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let record = (0..4_u8, vec(any::<u8>(), 0..8), any::<u64>(), 0..300_usize).prop_map(
            |(kind, changed, time, at)| {
                let mut record = vec![kind; [16, 17, 208, 512][usize::from(kind)]];
                record[..8].copy_from_slice(&time.to_le_bytes());
                for (place, byte) in record.iter_mut().skip(at).zip(changed) {
                    *place = byte;
                }
                record
            },
        );
        vec(record, 0..60)
    }

    const LOANS: Loans = Loans { lender_bytes: 24, lender_hook: 7, lent_at: 20, places: [24, 26] };

    /// Records of entries, which lend, and of sockets, which have one of few ports at one of two places.
    fn borrowers() -> impl Strategy<Value = Vec<Vec<u8>>> {
        let record =
            (0..3_u8, 0..5_u16, any::<bool>(), any::<u8>()).prop_map(|(kind, port, lends, other)| {
                let port = 40_000 + port * 257;
                let (swapped, port) = (port.to_ne_bytes(), port.to_be_bytes());
                if kind == 0 {
                    let mut entry = vec![1; 24];
                    (entry[HOOK], entry[16]) = (if lends { 7 } else { 8 }, other);
                    entry[20..22].copy_from_slice(&port);
                    entry
                } else {
                    let mut socket = vec![3; 32];
                    (socket[16], socket[20]) = (other, other % 3);
                    let at = if kind == 1 { 24 } else { 26 };
                    socket[at..at + 2].copy_from_slice(&if kind == 1 { port } else { swapped });
                    socket
                }
            });
        vec(record, 0..80)
    }

    fn pack_with_loans(records: &[Vec<u8>]) -> Vec<u8> {
        let (mut packer, mut bytes) = (Packer::new(Some(LOANS)), Vec::new());
        assert!(records.iter().all(|record| packer.push(record)));
        packer.finish(&mut bytes);
        bytes
    }

    #[test]
    fn a_port_is_borrowed_and_not_stored_again() {
        let entry = |port: u16| {
            let mut entry = vec![1; 24];
            entry[HOOK] = 7;
            entry[20..22].copy_from_slice(&port.to_be_bytes());
            entry
        };
        let socket = |port: u16, at: usize| {
            let mut socket = vec![3; 32];
            let bytes = if at == 24 { port.to_be_bytes() } else { port.to_ne_bytes() };
            socket[at..at + 2].copy_from_slice(&bytes);
            socket
        };
        let ports: Vec<u16> = (0..200).map(|number| 30_000 + number * 151).collect();
        for at in [24, 26] {
            // Each socket opens after the entries of two later connections.
            let mut records: Vec<_> = ports.iter().map(|port| entry(*port)).collect();
            records.extend(ports.iter().skip(1).map(|port| socket(*port, at)));
            let packed = pack_with_loans(&records);
            assert_eq!(unpacked(&packed).unwrap(), records);
            assert!(packed.len() < pack(&records).len(), "{} bytes", packed.len());
        }
    }

    proptest! {
        #[test]
        fn borrowed_ports_read_back(records in borrowers()) {
            prop_assert_eq!(unpacked(&pack_with_loans(&records)).unwrap(), records);
        }

        #[test]
        fn changed_loans_are_records_or_an_error(
            records in borrowers(),
            spoilt in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut packed = pack_with_loans(&records);
            for (at, byte) in spoilt {
                let at = at.index(packed.len());
                packed[at] = byte;
            }
            let _ = unpacked(&packed);
        }

        #[test]
        fn records_read_back(records in some_records()) {
            prop_assert_eq!(unpacked(&pack(&records)).unwrap(), records);
        }

        #[test]
        fn no_bytes_panic(bytes in vec(any::<u8>(), 0..400)) {
            let _ = unpacked(&bytes);
        }

        #[test]
        fn changed_bytes_are_records_or_an_error(
            records in some_records(),
            spoilt in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut packed = pack(&records);
            for (at, byte) in spoilt {
                let at = at.index(packed.len());
                packed[at] = byte;
            }
            let _ = unpacked(&packed);
            let _ = unpacked(&packed[..cut.index(packed.len())]);
        }
    }

    #[test]
    fn impossible_records_are_refused() {
        let mut packer = Packer::default();
        assert!(!packer.push(&[0; 15]));
        assert!(!packer.push(&[0; 513]));
        assert_eq!(packer.len(), 0);
        assert!(packer.push(&[0; 16]));
    }

    #[test]
    fn a_block_is_bounded() {
        let mut packer = Packer::default();
        let taken = (0..MAX_RECORDS + 5).filter(|n| packer.push(&(*n as u128).to_le_bytes())).count();
        assert_eq!(taken, MAX_RECORDS);
        let mut bytes = Vec::new();
        packer.finish(&mut bytes);
        assert_eq!(unpacked(&bytes).unwrap().len(), MAX_RECORDS);
    }

    #[test]
    fn zigzag_goes_both_ways() {
        for value in [0, 1, -1, 5, i64::MAX, i64::MIN] {
            assert_eq!(unzigzag(zigzag(value)), value.cast_unsigned());
        }
    }
}
