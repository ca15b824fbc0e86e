//! The index: which flows, times and items each frame of a recording has.
//!
//! Owns the contents of an index frame and the way from the end of a file to all of them. A query reads the frames that
//! can hold what it wants, and of the others only their items. An index leads to data and replaces none: a reader checks
//! each frame against it and reads on without it where they differ.
//!
//! ```text
//! payload  := u64 offset of the index frame before this one, 0 for none
//!             u64 offset of the first frame that it describes, u32 that frame's sequence number
//!             u32 count of frames
//!             frame...
//! frame    := u8 kind, u32 length in bytes with its header
//!             of a frame of items also:
//!             u32 length of the part of the compressed payload from which its items can be unpacked
//!             u32 checksum             CRC-32 of this part
//!             u32 count of records
//!             u64 earliest, u64 latest Unix time in nanoseconds of its records and items
//!             filter                   the hosts: IP addresses, and ports below 32,768
//!             filter                   the sockets: IP addresses with a port from 32,768 on
//! filter   := u8 hashes, u16 length in bytes, bytes
//! ```
//!
//! Numbers are little-endian. A filter is a Bloom filter: it may name what a frame does not have, and never misses what
//! it has. One with 0 hashes names everything. Index frames describe all frames before them, without a gap, except each
//! other.

mod census;
mod load;

pub(super) use census::Census;
pub(super) use load::{Loaded, Plan, Planned, load};

use bytes::{Buf, BufMut};

use super::frame::{FRAME_HEADER_BYTES, FrameKind, MAX_PAYLOAD_BYTES};
use crate::{net::TransportAddr, time::Timestamp};

/// The most frames of one index frame: more fill the writer's memory, fewer cost a frame each.
const MAX_FRAMES: usize = 64;
/// The most bytes of the filters of one index frame.
const MAX_FILTERS_BYTES: usize = 256 << 10;
/// Below it are the ports of Services and servers, few of which appear in a block. Linux chooses a client's port from it
/// on (`ip_local_port_range`).
pub(super) const FIRST_CLIENT_PORT: u16 = 32_768;
/// The bits that make a filter err once in 200 times.
const ENOUGH_BITS: usize = 11;
const MAX_HASHES: u8 = 8;

/// A fact that a filter can have, as a number.
pub(super) type Element = u64;

/// `splitmix64`: it does not change between versions, as files have its results.
const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ value >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ value >> 31
}

/// An IP address, mapped if it is IPv4.
pub(super) const fn host(ip: u128) -> Element {
    mix(mix(ip as u64) ^ (ip >> 64) as u64)
}

/// A port at any address.
pub(super) const fn port(port: u16) -> Element {
    mix(1 << 32 | port as u64)
}

/// An address with its port.
pub(super) const fn socket(address: TransportAddr) -> Element {
    mix(host(address.bits()) ^ mix(2 << 32 | address.port() as u64))
}

/// The client of one of IPVS's persistence templates, which has no port.
pub(super) const fn template(ip: u128) -> Element {
    mix(host(ip) ^ mix(3 << 32))
}

/// A set of elements that never misses one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    hashes: u8,
    bits: Vec<u8>,
}

impl Filter {
    /// A filter of these elements in at most so many bytes.
    fn of(elements: impl ExactSizeIterator<Item = Element>, max_bytes: usize) -> Self {
        let count = elements.len().max(1);
        let bytes = (count * ENOUGH_BITS).div_ceil(8).min(max_bytes).clamp(1, usize::from(u16::MAX));
        // ln 2 bits an element are the best number of hashes.
        let hashes = (bytes * 8 * 69).div_ceil(count * 100).clamp(1, usize::from(MAX_HASHES)) as u8;
        let mut filter = Self { hashes, bits: vec![0; bytes] };
        for element in elements {
            for (at, bit) in filter.places(element) {
                if let Some(byte) = filter.bits.get_mut(at) {
                    *byte |= bit;
                }
            }
        }
        filter
    }

    /// It has everything.
    const fn everything() -> Self {
        Self { hashes: 0, bits: Vec::new() }
    }

    pub(super) fn has(&self, element: Element) -> bool {
        self.places(element).all(|(at, bit)| self.bits.get(at).is_some_and(|byte| byte & bit != 0))
    }

    /// The bytes of an element, and the bit in each.
    fn places(&self, element: Element) -> impl Iterator<Item = (usize, u8)> + use<> {
        let bits = self.bits.len() as u64 * 8;
        let step = mix(element) | 1;
        (0..u64::from(self.hashes)).map(move |hash| {
            let mixed = element.wrapping_add(step.wrapping_mul(hash));
            let bit = ((u128::from(mixed) * u128::from(bits)) >> 64) as u64;
            ((bit / 8) as usize, 1 << (bit % 8))
        })
    }

    fn encode(&self, into: &mut Vec<u8>) {
        into.put_u8(self.hashes);
        into.put_u16_le(u16::try_from(self.bits.len()).unwrap_or(0));
        into.extend_from_slice(&self.bits);
    }

    fn decode(bytes: &mut &[u8]) -> Option<Self> {
        let hashes = bytes.try_get_u8().ok()?;
        let length = usize::from(bytes.try_get_u16_le().ok()?);
        let bits = bytes.split_off(..length)?.to_vec();
        (hashes <= MAX_HASHES && (hashes == 0) == bits.is_empty()).then_some(Self { hashes, bits })
    }
}

/// The addresses in a frame's records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Addressed {
    pub(super) hosts: Filter,
    pub(super) sockets: Filter,
}

/// A frame of items as the index describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Contents {
    /// The bytes after the frame's header from which the items can be unpacked, and their checksum.
    pub(super) items_bytes: u32,
    pub(super) items_checksum: u32,
    pub(super) records: u32,
    /// The earliest and the latest time.
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    pub(super) addressed: Addressed,
}

/// A frame as the index describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Described {
    /// With its header.
    pub(super) bytes: u32,
    /// `None` for a frame without items.
    pub(super) contents: Option<Contents>,
}

/// The contents of one index frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chapter {
    /// The offset of the index frame before this one; 0 for none.
    pub(super) previous: u64,
    /// The first frame: its offset and its sequence number.
    pub(super) first: u64,
    pub(super) sequence: u32,
    pub(super) frames: Vec<Described>,
    filters_bytes: usize,
}

impl Chapter {
    /// An index of the frames from this offset and sequence number on.
    pub(super) fn after(previous: u64, first: u64, sequence: u32) -> Self {
        Self { previous, first, sequence, frames: Vec::new(), filters_bytes: 0 }
    }

    pub(super) fn push(&mut self, frame: Described) {
        if let Some(Contents { addressed, .. }) = &frame.contents {
            self.filters_bytes += addressed.hosts.bits.len() + addressed.sockets.bits.len();
        }
        self.frames.push(frame);
    }

    /// Whether it has to be written.
    pub(super) fn is_full(&self) -> bool {
        self.frames.len() >= MAX_FRAMES || self.filters_bytes >= MAX_FILTERS_BYTES
    }

    /// Whether it describes no items.
    pub(super) fn is_empty(&self) -> bool {
        self.frames.iter().all(|frame| frame.contents.is_none())
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut into = Vec::with_capacity(24 + self.frames.len() * 50 + self.filters_bytes);
        into.put_u64_le(self.previous);
        into.put_u64_le(self.first);
        into.put_u32_le(self.sequence);
        into.put_u32_le(u32::try_from(self.frames.len()).unwrap_or(0));
        for Described { bytes, contents } in &self.frames {
            let kind = if contents.is_some() { FrameKind::Items } else { FrameKind::Header };
            into.put_u8(kind.number() as u8);
            into.put_u32_le(*bytes);
            let Some(contents) = contents else { continue };
            into.put_u32_le(contents.items_bytes);
            into.put_u32_le(contents.items_checksum);
            into.put_u32_le(contents.records);
            into.put_u64_le(contents.from.as_unix_ns());
            into.put_u64_le(contents.to.as_unix_ns());
            contents.addressed.hosts.encode(&mut into);
            contents.addressed.sockets.encode(&mut into);
        }
        into
    }

    /// `None` if these bytes are not the contents of an index frame.
    pub(super) fn decode(mut bytes: &[u8]) -> Option<Self> {
        let (previous, first) = (bytes.try_get_u64_le().ok()?, bytes.try_get_u64_le().ok()?);
        let (sequence, count) = (bytes.try_get_u32_le().ok()?, bytes.try_get_u32_le().ok()?);
        let mut chapter = Self::after(previous, first, sequence);
        for _ in 0..count {
            let kind = bytes.try_get_u8().ok()?;
            let length = bytes.try_get_u32_le().ok()?;
            if !(FRAME_HEADER_BYTES..=FRAME_HEADER_BYTES + MAX_PAYLOAD_BYTES).contains(&(length as usize)) {
                return None;
            }
            let contents = match kind {
                0 => None,
                1 => Some(Contents::decode(&mut bytes, length)?),
                _ => return None,
            };
            chapter.push(Described { bytes: length, contents });
        }
        bytes.is_empty().then_some(chapter)
    }
}

impl Contents {
    fn decode(bytes: &mut &[u8], frame_bytes: u32) -> Option<Self> {
        let mut number = || bytes.try_get_u32_le().ok();
        let (items_bytes, items_checksum, records) = (number()?, number()?, number()?);
        if items_bytes as usize + FRAME_HEADER_BYTES > frame_bytes as usize {
            return None;
        }
        let mut time = || Some(Timestamp::from_unix_ns(bytes.try_get_u64_le().ok()?));
        let (from, to) = (time()?, time()?);
        let addressed = Addressed { hosts: Filter::decode(bytes)?, sockets: Filter::decode(bytes)? };
        Some(Self { items_bytes, items_checksum, records, from, to, addressed })
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::hash_set, collection::vec, prelude::*};

    use super::*;

    fn filter() -> impl Strategy<Value = Filter> {
        (hash_set(any::<u64>(), 0..40), 1..60_usize)
            .prop_map(|(elements, bytes)| Filter::of(elements.into_iter(), bytes))
    }

    fn described() -> impl Strategy<Value = Described> {
        let contents = (any::<[u32; 3]>(), any::<[u64; 2]>(), filter(), filter());
        let contents =
            contents.prop_map(|([items_bytes, items_checksum, records], [from, to], hosts, sockets)| {
                Contents {
                    items_bytes: items_bytes % 1000,
                    items_checksum,
                    records,
                    from: Timestamp::from_unix_ns(from),
                    to: Timestamp::from_unix_ns(to),
                    addressed: Addressed { hosts, sockets },
                }
            });
        (1032..1_u32 << 24, proptest::option::of(contents))
            .prop_map(|(bytes, contents)| Described { bytes, contents })
    }

    proptest! {
        #[test]
        fn a_filter_has_what_was_put_in(elements in hash_set(any::<u64>(), 0..300), bytes in 1..400_usize) {
            let filter = Filter::of(elements.iter().copied(), bytes);
            prop_assert!(filter.bits.len() <= bytes);
            prop_assert!(elements.iter().all(|element| filter.has(*element)));
        }

        #[test]
        fn what_is_written_is_read(previous: u64, first: u64, sequence: u32, frames in vec(described(), 0..6)) {
            let mut chapter = Chapter::after(previous, first, sequence);
            for frame in frames {
                chapter.push(frame);
            }
            prop_assert_eq!(Chapter::decode(&chapter.encode()), Some(chapter));
        }

        #[test]
        fn any_bytes_are_contents_or_none(bytes in vec(any::<u8>(), 0..200)) {
            if let Some(chapter) = Chapter::decode(&bytes) {
                prop_assert_eq!(chapter.encode(), bytes);
            }
        }
    }

    #[test]
    fn a_filter_rarely_has_what_was_not_put_in() {
        let filter = Filter::of((0..1000).map(mix).collect::<Vec<_>>().into_iter(), 10_000);
        let wrong = (1000..101_000).filter(|element| filter.has(mix(*element))).count();
        assert!(wrong < 1000, "{wrong} of 100,000");
        assert!(Filter::everything().has(7));
    }
}
