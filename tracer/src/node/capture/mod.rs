//! A node and its cluster as texts: the output of commands, files, kube-proxy's ports and the API server.
//!
//! A snapshot has no other source, so a live node and its captured folder give the same one. Owns the kinds of
//! text and their recognition; each text's reader interprets it.

pub mod folder;
pub(super) mod kind;
mod manifest;
mod recognise;

pub use kind::Kind;
pub use manifest::Manifest;
pub(crate) use manifest::{Entry, MANIFEST};
pub use recognise::recognise;

use serde::{Deserialize, Serialize};

use super::gap::{Gap, Reason};
use crate::{parse::ParseError, time::Timestamp};

/// One text of a known kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Artifact {
    pub kind: Kind,
    pub text: String,
    /// Its origin: a path, a command, a URL's path.
    pub source: String,
    /// When its read began, if known.
    pub read: Option<Timestamp>,
}

/// All texts of one collection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    pub artifacts: Vec<Artifact>,
    /// When it was taken, if known.
    pub taken: Option<Timestamp>,
    /// The node's name in Kubernetes, if known.
    pub node: Option<String>,
    /// The failed reads.
    pub gaps: Vec<Gap>,
}

impl Capture {
    /// The first text of this kind.
    pub fn get(&self, kind: Kind) -> Option<&Artifact> {
        self.artifacts.iter().find(|artifact| artifact.kind == kind)
    }

    pub fn text(&self, kind: Kind) -> Option<&str> {
        self.get(kind).map(|artifact| artifact.text.as_str())
    }

    /// Parses the text of this kind, if there is one.
    pub fn parse<T>(
        &self,
        kind: Kind,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Option<Result<T, Gap>> {
        let Artifact { text, source, .. } = self.get(kind)?;
        Some(parse(text).map_err(|error| Gap { kind, reason: Reason::unparsable(source, error) }))
    }

    pub fn all(&self, kind: Kind) -> impl Iterator<Item = &Artifact> {
        self.artifacts.iter().filter(move |artifact| artifact.kind == kind)
    }

    pub fn put(&mut self, kind: Kind, source: impl Into<String>, text: String) {
        self.put_read(kind, source, text, None);
    }

    /// With the time at which its read began.
    pub fn put_read(&mut self, kind: Kind, source: impl Into<String>, text: String, read: Option<Timestamp>) {
        self.artifacts.push(Artifact { kind, text, source: source.into(), read });
    }

    pub fn miss(&mut self, kind: Kind, reason: Reason) {
        self.gaps.push(Gap { kind, reason });
    }

    /// Adds the texts of another collection.
    pub fn absorb(&mut self, other: Self) {
        self.artifacts.extend(other.artifacts);
        self.gaps.extend(other.gaps);
    }

    /// Why the text of this kind is missing or unusable.
    pub fn why_missing(&self, kind: Kind) -> Option<&Reason> {
        self.gaps.iter().find(|gap| gap.kind == kind).map(|gap| &gap.reason)
    }
}
