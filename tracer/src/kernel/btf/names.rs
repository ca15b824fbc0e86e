//! The index by name: a chained hash table over type ids. Knows only the number of types.
//!
//! Built in the one pass over all types, so it must cost little per type: of a kernel's 75,000 names only those are hashed
//! that begin like one that is looked up. The hash reads eight bytes per step and finds the end of the name on the way.

/// How many names are looked up of all names, at most, where only some are expected.
const ONE_IN: usize = 16;
/// The bits of [`Expected`].
const BITS: u32 = 4096;

/// The names that will be looked up, by their first four bytes. A name that is none of them is found too, by a walk through all
/// types.
#[derive(Clone, Debug)]
pub(in crate::kernel) struct Expected([u64; BITS as usize / 64]);

impl Expected {
    pub(in crate::kernel) const ALL: Self = Self([u64::MAX; BITS as usize / 64]);

    /// Names, or the beginnings of names of at least four bytes.
    pub(in crate::kernel) fn beginning<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut expected = Self([0; BITS as usize / 64]);
        for name in names {
            let (word, bit) = Self::place(beginning(name.as_bytes()));
            if let Some(word) = expected.0.get_mut(word) {
                *word |= bit;
            }
        }
        expected
    }

    fn is_all(&self) -> bool {
        self.0.iter().all(|word| *word == u64::MAX)
    }

    /// Whether a name is, or shares its place with, an expected one. `beginning`: its first four bytes, with zeros after its end.
    pub(super) fn has(&self, beginning: u32) -> bool {
        let (word, bit) = Self::place(beginning);
        self.0.get(word).is_some_and(|word| word & bit != 0)
    }

    fn place(beginning: u32) -> (usize, u64) {
        let place = beginning.wrapping_mul(0x9e37_79b1) >> (32 - BITS.trailing_zeros());
        ((place >> 6) as usize, 1 << (place & 63))
    }
}

/// The first four bytes of the name that starts `bytes` and ends at a NUL byte or where `bytes` ends, with zeros after its end.
pub(super) fn beginning(bytes: &[u8]) -> u32 {
    let four = bytes.first_chunk::<4>().copied().unwrap_or_else(|| {
        let mut four = [0; 4];
        for (to, from) in four.iter_mut().zip(bytes) {
            *to = *from;
        }
        four
    });
    match four {
        [0, ..] => 0,
        [a, 0, ..] => u32::from_le_bytes([a, 0, 0, 0]),
        [a, b, 0, _] => u32::from_le_bytes([a, b, 0, 0]),
        _ => u32::from_le_bytes(four),
    }
}

/// Chains of type ids by the hash of their name. Ids count from 0 within one BTF, base or split.
#[derive(Debug)]
pub(super) struct Names {
    /// The first link of each chain plus 1; 0 ends it. The length is a power of two.
    heads: Vec<u32>,
    links: Vec<Link>,
}

#[derive(Debug)]
struct Link {
    id: u32,
    /// The next link of the chain plus 1.
    next: u32,
}

impl Names {
    /// Room for `capacity` types, of which about one in two has a name that is looked up, if all are expected.
    pub(super) fn with_capacity(capacity: usize, expected: &Expected) -> Self {
        let capacity = if expected.is_all() { capacity } else { capacity / ONE_IN };
        let heads = (capacity / 4).max(1).next_power_of_two();
        Self { heads: vec![0; heads], links: Vec::with_capacity(capacity / 2) }
    }

    /// Adds a type, whose name has this hash.
    pub(super) fn add(&mut self, id: u32, hash: u32) {
        let mask = self.heads.len() - 1;
        if let Some(head) = self.heads.get_mut(hash as usize & mask) {
            self.links.push(Link { id, next: *head });
            *head = self.links.len() as u32;
        }
    }

    /// The types whose name may have this hash, latest first.
    pub(super) fn chain(&self, hash: u32) -> impl Iterator<Item = u32> + '_ {
        let link = |number: u32| self.links.get(number.checked_sub(1)? as usize);
        let mask = self.heads.len() - 1;
        let first = self.heads.get(hash as usize & mask).copied().and_then(link);
        // A link always leads to an earlier one, so this ends.
        std::iter::successors(first, move |before| link(before.next)).map(|link| link.id)
    }
}

/// The hash of the name that starts `bytes` and ends at a NUL byte or where `bytes` ends.
pub(super) fn hash(bytes: &[u8]) -> u32 {
    const LOW: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let mut state = 0u64;
    let mut rest = bytes;
    loop {
        let (chunk, last) = if let Some((chunk, tail)) = rest.split_first_chunk::<8>() {
            rest = tail;
            (u64::from_le_bytes(*chunk), false)
        } else {
            let mut chunk = [0; 8];
            for (to, from) in chunk.iter_mut().zip(rest) {
                *to = *from;
            }
            (u64::from_le_bytes(chunk), true)
        };
        // The lowest bit set marks the lowest zero byte (the classic strlen trick).
        let zeros = chunk.wrapping_sub(LOW) & !chunk & HIGH;
        // All the bits below that byte; everything if there is no zero byte.
        let kept = chunk & ((zeros.wrapping_sub(1) & !zeros) >> 7);
        let kept = if zeros == 0 { chunk } else { kept };
        state = (state.rotate_left(5) ^ kept).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        if zeros != 0 || last {
            return (state >> 32) as u32;
        }
    }
}
