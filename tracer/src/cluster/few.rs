//! A list that nearly always has one item, which then takes no allocation: the addresses of an endpoint, the versions of
//! an object, the keys under one entry of an index.

use std::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A list without room for further items. Serialised as a list.
#[derive(Clone, Debug)]
pub struct Few<T>(Items<T>);

#[derive(Clone, Debug)]
enum Items<T> {
    One(T),
    Others(Box<[T]>),
}

impl<T> Few<T> {
    pub(super) fn push(&mut self, item: T) {
        self.insert(self.len(), item);
    }

    /// Panics if `place` is beyond the end, as a vector does.
    pub(super) fn insert(&mut self, place: usize, item: T) {
        let mut all = self.take();
        all.reserve_exact(1);
        all.insert(place, item);
        *self = all.into();
    }

    /// Removes the first `count` items, which must exist.
    pub(super) fn drop_first(&mut self, count: usize) {
        if count > 0 {
            let mut all = self.take();
            all.drain(..count);
            *self = all.into();
        }
    }

    fn take(&mut self) -> Vec<T> {
        match std::mem::take(self).0 {
            Items::One(item) => vec![item],
            Items::Others(items) => items.into_vec(),
        }
    }
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self(Items::Others(Box::default()))
    }
}

impl<T> From<Vec<T>> for Few<T> {
    fn from(mut items: Vec<T>) -> Self {
        Self(match items.pop() {
            Some(only) if items.is_empty() => Items::One(only),
            Some(last) => {
                items.push(last);
                Items::Others(items.into())
            }
            None => Items::Others(Box::default()),
        })
    }
}

impl<T> Deref for Few<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        match &self.0 {
            Items::One(item) => std::slice::from_ref(item),
            Items::Others(items) => items,
        }
    }
}

impl<'a, T> IntoIterator for &'a Few<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<T: PartialEq> PartialEq for Few<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: Eq> Eq for Few<T> {}

impl<T: Serialize> Serialize for Few<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::deserialize(deserializer).map(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_item_takes_no_allocation() {
        assert!(matches!(Few::from(vec![1]).0, Items::One(1)));
        assert_eq!(size_of::<Few<IpAddr>>(), size_of::<Vec<IpAddr>>());
        let mut few = Few::from(vec![1, 2]);
        few.drop_first(1);
        assert!(matches!(few.0, Items::One(2)));
    }

    proptest! {
        #[test]
        fn it_is_a_list(start in prop::collection::vec(0..9_u8, 0..4), more in prop::collection::vec(0..9_u8, 0..4), dropped in 0..8_usize) {
            let (mut list, mut few) = (start.clone(), Few::from(start));
            for item in more {
                list.push(item);
                few.push(item);
                list.insert(0, item + 1);
                few.insert(0, item + 1);
            }
            let dropped = dropped.min(list.len());
            list.drain(..dropped);
            few.drop_first(dropped);
            prop_assert_eq!(&*few, list.as_slice());
            let json = serde_json::to_string(&few).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&list).unwrap());
            prop_assert_eq!(serde_json::from_str::<Few<u8>>(&json).unwrap(), few);
        }
    }
}
