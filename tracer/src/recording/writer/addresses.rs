//! Numbers in the place of kernel addresses.
//!
//! Owns which number an object of the kernel has in the recordings of this process. Only their equality has a meaning:
//! the same conntrack entry, the same socket. An address would reveal where the kernel keeps its data.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use foldhash::fast::RandomState;

use crate::{
    kernel::decode::{Object, renumber},
    recording::records::Records,
};

/// The most addresses used recently, and the most used before. An address that is neither gets another number when it
/// returns: its flow then looks like one whose beginning was not observed. At most 9 MiB.
const MAX_ADDRESSES: usize = 1 << 17;
/// The same for packets, which are gone within milliseconds: they must not displace what lasts.
const MAX_PACKETS: usize = 1 << 12;

/// The numbers that stand for kernel addresses. Clones share them: the segments of one agent have one numbering, so that
/// a number means the same object in all of them.
///
/// A number consists of the time at which the numbering began (Unix seconds, 32 bits) and a count from 1, so that those
/// of another process differ. No number is used again, except for an address that the kernel uses again.
#[derive(Clone, Debug)]
pub struct Addresses(Arc<Mutex<Numberings>>);

#[derive(Debug)]
struct Numberings {
    lasting: Numbers,
    packets: Numbers,
}

#[derive(Debug)]
struct Numbers {
    /// The most addresses in each of the two tables.
    most: usize,
    last: u64,
    recent: HashMap<u64, u64, RandomState>,
    before: HashMap<u64, u64, RandomState>,
}

impl Default for Addresses {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::from_unix_secs(now.as_secs() as u32)
    }
}

impl Addresses {
    /// A numbering that began at this time.
    pub fn from_unix_secs(began: u32) -> Self {
        let last = u64::from(began) << 32;
        let lasting = Numbers::after(last, MAX_ADDRESSES);
        Self(Arc::new(Mutex::new(Numberings { lasting, packets: Numbers::after(0, MAX_PACKETS) })))
    }

    /// The records with numbers for addresses, each after `change` was applied to it.
    pub(super) fn renumber(&self, records: &mut Records, change: impl Fn(&mut [u8])) {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for record in records.iter_mut() {
            change(record);
            renumber(record, |object, address| match object {
                Object::Lasting => numbers.lasting.of(address),
                Object::Packet => numbers.packets.of(address),
            });
        }
    }
}

impl Numbers {
    fn after(last: u64, most: usize) -> Self {
        Self { most, last, recent: HashMap::default(), before: HashMap::default() }
    }

    fn of(&mut self, address: u64) -> u64 {
        if let Some(number) = self.recent.get(&address) {
            return *number;
        }
        let number = self.before.remove(&address).unwrap_or_else(|| {
            self.last = self.last.wrapping_add(1);
            self.last
        });
        if self.recent.len() >= self.most {
            self.before = std::mem::take(&mut self.recent);
        }
        self.recent.insert(address, number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> Numbers {
        Numbers::after(0, MAX_ADDRESSES)
    }

    #[test]
    fn an_address_keeps_its_number_and_shares_it_with_none() {
        let mut numbers = numbers();
        assert_eq!([7, 9, 7, 8, 9].map(|address| numbers.of(address)), [1, 2, 1, 3, 2]);
    }

    #[test]
    fn what_is_used_stays_and_the_table_is_bounded() {
        let mut numbers = numbers();
        let first = numbers.of(1 << 40);
        for address in 1..5 * MAX_ADDRESSES as u64 {
            assert_ne!(numbers.of(address), first);
            if address % 1000 == 0 {
                assert_eq!(numbers.of(1 << 40), first);
            }
            assert!(numbers.recent.len() <= MAX_ADDRESSES && numbers.before.len() <= MAX_ADDRESSES);
        }
        // Not used for long, and never given to another object.
        assert_eq!(numbers.of(1), numbers.last);
        assert!(numbers.last > 5 * MAX_ADDRESSES as u64);
    }
}
