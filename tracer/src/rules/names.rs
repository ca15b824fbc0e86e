//! One copy of each text, and lists whose items are found by their names.

use std::{hash::BuildHasher as _, ops::Deref, sync::Arc};

use foldhash::{HashSet, fast::RandomState};
use hashbrown::HashTable;
use serde::{Serialize, Serializer};

use super::Name;

/// The texts of a table that is being read: most are in many of its rules.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts(HashSet<Name>);

impl Texts {
    /// Replaces a text by the copy that is known already, or else keeps it for the next one.
    pub(super) fn share(&mut self, text: &mut Name) {
        match self.0.get(text) {
            Some(known) => *text = Arc::clone(known),
            None => drop(self.0.insert(Arc::clone(text))),
        }
    }

    /// The known copy of this text, or else a new one, which is not kept.
    pub(super) fn get(&self, text: &str) -> Name {
        self.0.get(text).map_or_else(|| text.into(), Arc::clone)
    }
}

/// An item of a [`NamedList`].
pub trait Item {
    /// It never changes.
    fn name(&self) -> &Name;
}

/// A list whose items have different names, by which they are found. The names are only in the items: besides an item it
/// stores 6 to 12 bytes.
#[derive(Clone, Debug)]
pub struct NamedList<T> {
    items: Vec<T>,
    positions: HashTable<u32>,
    hasher: RandomState,
}

impl<T> Default for NamedList<T> {
    fn default() -> Self {
        Self { items: Vec::new(), positions: HashTable::new(), hasher: RandomState::default() }
    }
}

impl<T: Item> NamedList<T> {
    pub fn position(&self, name: &str) -> Option<usize> {
        let is_it = |position: &u32| self.at(*position).is_some_and(|item| **item.name() == *name);
        self.positions.find(self.hasher.hash_one(name), is_it).map(|position| *position as usize)
    }

    pub fn find(&self, name: &str) -> Option<&T> {
        self.items.get(self.position(name)?)
    }

    fn at(&self, position: u32) -> Option<&T> {
        self.items.get(position as usize)
    }

    /// The item of this name, which `make` makes if the list has none. `None` if the list is full, at 2³² items.
    pub(super) fn find_or_add(&mut self, name: &str, make: impl FnOnce() -> T) -> Option<&mut T> {
        let position = match self.position(name) {
            Some(position) => position,
            None => self.add(make())?,
        };
        self.items.get_mut(position)
    }

    fn add(&mut self, item: T) -> Option<usize> {
        let added = u32::try_from(self.items.len()).ok()?;
        let hash = self.hasher.hash_one(&**item.name());
        self.items.push(item);
        let (items, hasher) = (&self.items, &self.hasher);
        let hash_of =
            |position: &u32| items.get(*position as usize).map_or(0, |item| hasher.hash_one(&**item.name()));
        self.positions.insert_unique(hash, added, hash_of);
        Some(added as usize)
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, T> {
        self.items.iter_mut()
    }

    /// Frees the room for further items.
    pub(super) fn shrink(&mut self) {
        self.items.shrink_to_fit();
    }
}

impl<T> Deref for NamedList<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.items
    }
}

impl<'l, T> IntoIterator for &'l NamedList<T> {
    type Item = &'l T;
    type IntoIter = std::slice::Iter<'l, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.items.iter()
    }
}

/// As a list.
impl<T: Serialize> Serialize for NamedList<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.items.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbered(Name, usize);

    impl Item for Numbered {
        fn name(&self) -> &Name {
            &self.0
        }
    }

    #[test]
    fn items_are_found_by_their_names() {
        let mut list = NamedList::default();
        for number in (0..1000).chain(0..1000) {
            let name = format!("KUBE-SEP-{number}");
            let item = list.find_or_add(&name, || Numbered((*name).into(), number)).unwrap();
            assert_eq!(item.1, number);
        }
        assert_eq!(list.len(), 1000);
        assert!(list.iter().enumerate().all(|(at, item)| list.position(&item.0) == Some(at)));
        assert!(list.find("KUBE-SEP-1000").is_none());
    }

    #[test]
    fn equal_texts_become_one() {
        let mut texts = Texts::default();
        let [first, mut second]: [Name; 2] = ["shop/cart:http".into(), "shop/cart:http".into()];
        texts.share(&mut first.clone());
        texts.share(&mut second);
        assert!(Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&first, &texts.get("shop/cart:http")));
    }
}
