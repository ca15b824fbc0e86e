//! Keys of the kernel half's maps: addresses in their form, and a hash map used as a set that follows a wanted one.

use std::{borrow::BorrowMut, collections::HashSet, net::IpAddr};

use aya::maps::{HashMap, MapData};

/// An address as the kernel half has it: IPv4 in the first four bytes.
pub(super) fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, c, d] = v4.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The keys of a hash map in the kernel that is used as a set.
#[derive(Debug)]
pub(super) struct KeySet<const N: usize>(HashSet<[u8; N]>);

impl<const N: usize> Default for KeySet<N> {
    fn default() -> Self {
        Self(HashSet::new())
    }
}

impl<const N: usize> KeySet<N> {
    /// Makes these the keys of the map. Returns how many of them do not fit.
    pub(super) fn replace(
        &mut self,
        map: &mut HashMap<impl BorrowMut<MapData>, [u8; N], u8>,
        wanted: &HashSet<[u8; N]>,
    ) -> usize {
        // First, for the room.
        self.0.retain(|key| wanted.contains(key) || map.remove(key).is_err());
        for key in wanted {
            if !self.0.contains(key) && map.insert(key, 1, 0).is_ok() {
                self.0.insert(*key);
            }
        }
        wanted.difference(&self.0).count()
    }
}
