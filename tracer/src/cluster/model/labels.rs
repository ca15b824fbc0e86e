//! Labels and selectors: sorted pairs of texts in one allocation, which objects with equal labels can share.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// One label: its name and its value.
pub(crate) type Label = (Arc<str>, Arc<str>);

/// The labels of an object, or the pairs of a selector, each name once, ordered by name. Serialised as a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Labels(pub(crate) Arc<[Label]>);

impl Labels {
    /// These pairs; the last one of each name counts.
    pub fn of<'t>(pairs: impl IntoIterator<Item = (&'t str, &'t str)>) -> Self {
        let pairs = pairs.into_iter().map(|(label, value)| (label.to_owned(), value.to_owned()));
        pairs.collect::<BTreeMap<_, _>>().into()
    }

    /// The value of the label with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(label, _)| label.as_ref().cmp(name)).ok()?;
        self.0.get(at).map(|(_, value)| value.as_ref())
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(label, value)| (label.as_ref(), value.as_ref()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<BTreeMap<String, String>> for Labels {
    fn from(map: BTreeMap<String, String>) -> Self {
        // A map is ordered, and has each name once.
        Self(map.into_iter().map(|(label, value)| (label.into(), value.into())).collect())
    }
}

impl Serialize for Labels {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Labels {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        BTreeMap::<String, String>::deserialize(deserializer).map(Into::into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_found_by_name_and_keep_their_form() {
        let json = r#"{"app":"cart","pod-template-hash":"7d9c6b8f5d","tier":""}"#;
        let labels: Labels = serde_json::from_str(json).unwrap();
        assert_eq!((labels.get("app"), labels.get("tier"), labels.get("ap")), (Some("cart"), Some(""), None));
        assert_eq!(serde_json::to_string(&labels).unwrap(), json);
        assert!(Labels::default().is_empty() && !labels.is_empty());
        let turned: Labels =
            serde_json::from_str(r#"{"tier":"","pod-template-hash":"7d9c6b8f5d","app":"cart"}"#).unwrap();
        assert_eq!(turned, labels);
    }
}
