//! The objects of one kind, found by a number or by their name.
//!
//! Owns the numbers and the order of names. A number is found in a fraction of the time of a name, which takes a search
//! among texts, and takes an eighth of its memory: the indexes have numbers. Must not know kinds, indexes or clocks.

use std::{cmp::Ordering, collections::BTreeMap, ops::Bound, sync::Arc};

use crate::cluster::{
    model::{EndpointSlice, Key, Node, Pod, Service},
    timeline::Timeline,
};

/// The number of an object among those of its kind: until [`Objects::retain`] removes one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot(u32);

impl Slot {
    const fn index(self) -> usize {
        self.0 as usize
    }
}

/// An object that contains its own name.
pub(super) trait Named {
    fn key(&self) -> &Key;
}

impl Named for Service {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Named for EndpointSlice {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Named for Pod {
    fn key(&self) -> &Key {
        &self.key
    }
}

impl Named for Node {
    fn key(&self) -> &Key {
        &self.key
    }
}

#[derive(Debug)]
pub(super) struct Objects<T> {
    /// By their slots, without gaps.
    lines: Vec<Timeline<T>>,
    /// Ordered, so that the objects of a namespace are adjacent.
    slots: BTreeMap<Key, Slot>,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self { lines: Vec::new(), slots: BTreeMap::new() }
    }
}

impl<T> Objects<T> {
    pub(super) const fn len(&self) -> usize {
        self.lines.len()
    }

    pub(super) fn slot(&self, key: &Key) -> Option<Slot> {
        self.slots.get(key).copied()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Timeline<T>> {
        self.at(self.slot(key)?)
    }

    pub(super) fn get_mut(&mut self, key: &Key) -> Option<&mut Timeline<T>> {
        self.at_mut(self.slot(key)?)
    }

    pub(super) fn at(&self, slot: Slot) -> Option<&Timeline<T>> {
        self.lines.get(slot.index())
    }

    pub(super) fn at_mut(&mut self, slot: Slot) -> Option<&mut Timeline<T>> {
        self.lines.get_mut(slot.index())
    }

    /// Adds an object, or replaces the one of this name in its slot. `None` if there are no further numbers.
    pub(super) fn insert(&mut self, key: Key, line: Timeline<T>) -> Option<Slot> {
        if let Some(slot) = self.slot(&key) {
            *self.at_mut(slot)? = line;
            return Some(slot);
        }
        let slot = Slot(self.lines.len().try_into().ok()?);
        if self.lines.len() == self.lines.capacity() {
            // Doubled, half of it could stay empty in a cluster that no longer grows.
            self.lines.reserve_exact(self.lines.len() / 8 + 4);
        }
        self.lines.push(line);
        self.slots.insert(key, slot);
        Some(slot)
    }

    /// In the order of their names.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Key, &Timeline<T>)> {
        self.slots.iter().filter_map(|(key, slot)| Some((key, self.at(*slot)?)))
    }

    /// In the order of their names.
    pub(super) fn lines(&self) -> impl Iterator<Item = &Timeline<T>> {
        self.slots.values().filter_map(|slot| self.at(*slot))
    }

    /// In the order of their names.
    pub(super) fn of_namespace<'a>(
        &'a self,
        namespace: &'a Arc<str>,
    ) -> impl Iterator<Item = &'a Timeline<T>> {
        let first = Key { namespace: Arc::clone(namespace), name: "".into() };
        let from_there = self.slots.range((Bound::Included(first), Bound::Unbounded));
        let of_it = from_there.take_while(move |(key, _)| key.namespace == *namespace);
        of_it.filter_map(|(_, slot)| self.at(*slot))
    }

    /// Every version of every object, without deletions, in the order of the slots.
    pub(super) fn versions(&self) -> impl Iterator<Item = (Slot, &Arc<T>)> {
        self.lines.iter().zip(0..).flat_map(|(line, number)| {
            line.versions.iter().filter_map(move |version| Some((Slot(number), version.value.as_ref()?)))
        })
    }

    /// Removes the objects that are not to be kept. If there are any, objects have other numbers than before.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&mut Timeline<T>) -> bool) {
        let mut removed = Vec::new();
        let mut numbers = 0..;
        self.lines.retain_mut(|line| {
            let (kept, number) = (keep(line), numbers.next());
            if !kept {
                removed.extend(number.map(Slot));
            }
            kept
        });
        if removed.is_empty() {
            return;
        }
        // The others have closed the gaps.
        self.slots.retain(|_, slot| match removed.binary_search(slot) {
            Ok(_) => false,
            Err(before) => {
                slot.0 = slot.0.saturating_sub(before.try_into().unwrap_or(u32::MAX));
                true
            }
        });
        if self.lines.capacity() > 2 * self.lines.len() {
            self.lines.shrink_to_fit();
        }
    }

    /// Gives back the memory that is only of use while objects are added. A list is in the order of the names, which
    /// leaves every node of the tree half empty.
    pub(super) fn compact(&mut self) {
        self.lines.shrink_to_fit();
        self.slots = std::mem::take(&mut self.slots).into_iter().collect();
    }
}

impl<T: Named> Objects<T> {
    /// By their names. An object without a version, which no index has, is before all others.
    pub(super) fn compare(&self, one: Slot, other: Slot) -> Ordering {
        self.key(one).cmp(&self.key(other))
    }

    fn key(&self, slot: Slot) -> Option<&Key> {
        let versions = &self.at(slot)?.versions;
        versions.iter().find_map(|version| version.value.as_ref()).map(|value| value.key())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::time::Timestamp;

    fn key(name: &str) -> Key {
        Key::new(if name < "e" { "a" } else { "b" }, name)
    }

    fn line(key: &Key) -> Timeline<Key> {
        Timeline::new(None, Timestamp::MIN, Arc::new(key.clone()))
    }

    impl Named for Key {
        fn key(&self) -> &Key {
            self
        }
    }

    fn name_of(line: &Timeline<Key>) -> Key {
        Key::clone(line.newest().unwrap())
    }

    proptest! {
        #[test]
        fn objects_are_found_by_their_names_and_numbers(
            steps in prop::collection::vec(("[a-i]", 0..4_u8), 0..60),
        ) {
            let mut objects = Objects::default();
            let mut expected = BTreeMap::new();
            for (name, kind) in steps {
                let key = key(&name);
                match kind {
                    0 => {
                        objects.retain(|line| name_of(line) != key);
                        expected.remove(&key);
                    }
                    1 => objects.compact(),
                    _ => {
                        let slot = objects.insert(key.clone(), line(&key)).unwrap();
                        prop_assert_eq!(objects.slot(&key), Some(slot));
                        expected.insert(key.clone(), key);
                    }
                }
                prop_assert_eq!(objects.len(), expected.len());
                prop_assert!(objects.iter().map(|(key, line)| (key.clone(), name_of(line))).eq(expected.clone()));
                prop_assert!(objects.lines().map(name_of).eq(expected.keys().cloned()));
                for (key, _) in objects.iter() {
                    let slot = objects.slot(key).unwrap();
                    prop_assert_eq!(&name_of(objects.at(slot).unwrap()), key);
                    for (other, _) in objects.iter() {
                        let order = objects.compare(slot, objects.slot(other).unwrap());
                        prop_assert_eq!(order, key.cmp(other));
                    }
                }
                prop_assert!(objects.versions().all(|(slot, key)| objects.slot(key) == Some(slot)));
                for namespace in ["a", "b", "c"].map(Arc::from) {
                    let of_it = expected.keys().filter(|key| key.namespace == namespace).cloned();
                    prop_assert!(objects.of_namespace(&namespace).map(name_of).eq(of_it));
                }
            }
        }
    }

    #[test]
    fn an_object_is_replaced_in_its_slot() {
        let mut objects = Objects::default();
        let (one, other) = (key("x"), key("y"));
        let slot = objects.insert(one.clone(), line(&one)).unwrap();
        assert_eq!(objects.insert(one, line(&other)), Some(slot));
        assert_eq!(name_of(objects.at(slot).unwrap()), other);
        assert_eq!(objects.len(), 1);
    }

    #[test]
    fn little_memory_is_kept_in_reserve() {
        let mut objects = Objects::default();
        for n in 0..1000 {
            let key = Key::new("a", &n.to_string());
            objects.insert(key.clone(), line(&key));
        }
        assert!(objects.lines.capacity() < 1200, "{}", objects.lines.capacity());
        objects.retain(|line| name_of(line).name.len() == 1);
        assert_eq!((objects.len(), objects.lines.capacity()), (10, 10));
    }
}
