//! The manifest of a captured folder: its texts, their times and commands, and the missing ones.

use serde::{Deserialize, Serialize};

use crate::node::gap::{Gap, Reason};

/// Its file name.
pub(crate) const MANIFEST: &str = "viptrace-capture.json";
/// The version of its format.
const FORMAT: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Always `viptrace-capture`, which identifies the file.
    pub kind: String,
    pub format: u32,
    /// Version of the program that wrote it.
    pub viptrace: String,
    /// RFC 3339, UTC.
    pub taken: String,
    /// The same as nanoseconds since the Unix epoch.
    pub taken_ns: u64,
    #[serde(default)]
    pub node: Option<String>,
    #[serde(default)]
    pub files: Vec<Entry>,
    #[serde(default)]
    pub gaps: Vec<Missing>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub name: String,
    /// The command or place of origin.
    pub source: String,
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The name that the file would have.
    pub name: String,
    /// In words.
    pub why: String,
    /// The same as a type; captures by earlier versions lack it.
    #[serde(default)]
    pub reason: Option<Reason>,
}

impl From<&Gap> for Missing {
    fn from(gap: &Gap) -> Self {
        Self {
            name: gap.kind.file_name().to_owned(),
            why: gap.reason.to_string(),
            reason: Some(gap.reason.clone()),
        }
    }
}

impl Missing {
    /// `None` for an unknown kind of text.
    pub fn gap(&self) -> Option<Gap> {
        let quoted = || Reason::Quoted { text: self.why.clone() };
        Some(Gap {
            kind: super::Kind::named(&self.name)?,
            reason: self.reason.clone().unwrap_or_else(quoted),
        })
    }
}

impl Manifest {
    pub(super) fn new(taken: crate::time::Timestamp, node: Option<String>) -> Self {
        Self {
            kind: "viptrace-capture".to_owned(),
            format: FORMAT,
            viptrace: env!("CARGO_PKG_VERSION").to_owned(),
            taken: taken.to_string(),
            taken_ns: taken.as_unix_ns(),
            node,
            files: Vec::new(),
            gaps: Vec::new(),
        }
    }

    /// `None` if the text is not a manifest of a known form.
    pub fn parse(text: &str) -> Option<Self> {
        let manifest: Self = serde_json::from_str(text).ok()?;
        (manifest.kind == "viptrace-capture" && manifest.format == FORMAT).then_some(manifest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, option, prelude::*};

    use super::*;
    use crate::time::Timestamp;

    proptest! {
        #[test]
        fn what_is_written_is_read(
            taken: u64,
            node in option::of(any::<String>()),
            files in vec((any::<String>(), any::<String>(), any::<u64>()), 0..5),
            gaps in vec((any::<String>(), any::<String>()), 0..5),
        ) {
            let mut manifest = Manifest::new(Timestamp::from_unix_ns(taken), node);
            manifest.files = files.into_iter().map(|(name, source, bytes)| Entry { name, source, bytes }).collect();
            manifest.gaps = gaps.into_iter().map(|(name, why)| Missing { name, why, reason: None }).collect();
            let text = serde_json::to_string_pretty(&manifest).unwrap();
            prop_assert_eq!(Manifest::parse(&text), Some(manifest));
        }

        #[test]
        fn any_text_is_read(text in any::<String>()) {
            let _ = Manifest::parse(&text);
        }
    }
}
