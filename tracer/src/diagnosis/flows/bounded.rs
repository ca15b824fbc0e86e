//! Memories of bounded size: one key more than a map may hold removes all others at once.

use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasher, Hash},
};

/// The key's entry in a map of at most `max` keys.
pub(super) fn entry<K: Eq + Hash, V, S: BuildHasher>(
    map: &mut HashMap<K, V, S>,
    max: usize,
    key: K,
) -> Entry<'_, K, V> {
    if map.len() >= max && !map.contains_key(&key) {
        map.clear();
    }
    map.entry(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_map_keeps_what_it_knows_until_a_new_key_comes() {
        let mut map = HashMap::new();
        for key in [1, 2, 1, 2] {
            *entry(&mut map, 2, key).or_insert(0) += 1;
        }
        assert_eq!(map, [(1, 2), (2, 2)].into());
        entry(&mut map, 2, 3).or_insert(7);
        assert_eq!(map, [(3, 7)].into());
    }
}
