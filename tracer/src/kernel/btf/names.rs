//! The index by name: a chained hash table over type ids. Knows only the number of types.
//!
//! Built in the one pass over all types, so it must cost little per type: the hash reads eight bytes per step and finds
//! the end of the name on the way.

/// Chains of type ids by the hash of their name. Ids count from 0 within one BTF, base or split.
#[derive(Debug)]
pub(super) struct Names {
    /// First id of each chain plus 1; 0 ends it. The length is a power of two.
    heads: Vec<u32>,
    /// For each id, the next of its chain plus 1.
    next: Vec<u32>,
}

impl Names {
    /// Room for `capacity` types, of which about one in two has a name that is looked up.
    pub(super) fn with_capacity(capacity: usize) -> Self {
        let heads = (capacity / 4).max(1).next_power_of_two();
        Self { heads: vec![0; heads], next: Vec::with_capacity(capacity) }
    }

    /// Appends the next type; `hash` is that of its name, none if the name is never looked up.
    pub(super) fn push(&mut self, hash: Option<u32>) {
        let number = self.next.len() as u32 + 1;
        let mask = self.heads.len() - 1;
        let before = hash
            .and_then(|hash| self.heads.get_mut(hash as usize & mask))
            .map_or(0, |head| std::mem::replace(head, number));
        self.next.push(before);
    }

    /// The types whose name may have this hash, latest first.
    pub(super) fn chain(&self, hash: u32) -> impl Iterator<Item = u32> + '_ {
        let mask = self.heads.len() - 1;
        let first = self.heads.get(hash as usize & mask).copied().unwrap_or_default();
        // A link always leads to a smaller number, so this ends.
        std::iter::successors(first.checked_sub(1), |&id| {
            self.next.get(id as usize).and_then(|next| next.checked_sub(1))
        })
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
