//! A node and its cluster as texts: what commands, files, kube-proxy's ports and the API server answered.
//!
//! A snapshot is made of nothing else, so that a live node and a folder taken from it give the same one. Owns the kinds
//! of text and how each is recognised; what a text means is for its own reader.

pub mod folder;
mod kind;
mod manifest;
mod recognise;

pub use kind::Kind;
pub use manifest::Manifest;
pub(crate) use manifest::{Entry, MANIFEST};
pub use recognise::recognise;

use super::gap::{Gap, Reason};
use crate::{parse::ParseError, time::Timestamp};

/// One text of a known kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub kind: Kind,
    pub text: String,
    /// Where it comes from: a path, a command, a URL's path.
    pub source: String,
    /// When its reading began, where that is known.
    pub read: Option<Timestamp>,
}

/// All texts that were read together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    pub artifacts: Vec<Artifact>,
    /// When it was taken, where that is known.
    pub taken: Option<Timestamp>,
    /// The node's name in Kubernetes, where that is known.
    pub node: Option<String>,
    /// What was tried and failed.
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

    /// Parses the text of this kind, where there is one.
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
        self.artifacts.push(Artifact { kind, text, source: source.into(), read: None });
    }

    pub fn miss(&mut self, kind: Kind, reason: Reason) {
        self.gaps.push(Gap { kind, reason });
    }

    /// Adds what was read elsewhere.
    pub fn absorb(&mut self, other: Self) {
        self.artifacts.extend(other.artifacts);
        self.gaps.extend(other.gaps);
    }

    /// Why there is no text of this kind, or why it is of no use.
    pub fn why_missing(&self, kind: Kind) -> Option<&Reason> {
        self.gaps.iter().find(|gap| gap.kind == kind).map(|gap| &gap.reason)
    }
}
