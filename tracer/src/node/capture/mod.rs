//! One look at a node and its cluster, as texts: what commands, files, kube-proxy's ports and the API server answered.
//!
//! The audit reads nothing else, so that it says the same of a live node and of a folder taken from it. Owns the kinds
//! of text, how each is recognised and where it comes from; what a text means is for its own reader.

pub mod folder;
pub mod kind;
pub mod live;
mod manifest;
mod recognise;

pub use folder::{FolderError, ReadFolder};
pub use kind::Kind;
pub use manifest::{Entry, MANIFEST, Manifest};
pub use recognise::recognise;

use crate::time::Timestamp;

/// One text of a known kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub kind: Kind,
    pub text: String,
    /// Where it comes from: a path, a command, a URL's path.
    pub source: String,
}

/// Everything that one look gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Capture {
    pub artifacts: Vec<Artifact>,
    /// When it was taken, where that is known.
    pub taken: Option<Timestamp>,
    /// The node's name in Kubernetes, where that is known.
    pub node: Option<String>,
    /// What was tried and failed, each with the reason.
    pub gaps: Vec<Gap>,
}

/// A text that is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    pub kind: Kind,
    pub why: String,
}

impl Capture {
    /// The first text of this kind.
    pub fn get(&self, kind: Kind) -> Option<&Artifact> {
        self.artifacts.iter().find(|artifact| artifact.kind == kind)
    }

    pub fn text(&self, kind: Kind) -> Option<&str> {
        self.get(kind).map(|artifact| artifact.text.as_str())
    }

    pub fn all(&self, kind: Kind) -> impl Iterator<Item = &Artifact> {
        self.artifacts.iter().filter(move |artifact| artifact.kind == kind)
    }

    pub fn put(&mut self, kind: Kind, source: impl Into<String>, text: String) {
        self.artifacts.push(Artifact { kind, text, source: source.into() });
    }

    pub fn miss(&mut self, kind: Kind, why: impl Into<String>) {
        self.gaps.push(Gap { kind, why: why.into() });
    }

    /// Why there is no text of this kind.
    pub fn why_missing(&self, kind: Kind) -> Option<&str> {
        self.gaps.iter().find(|gap| gap.kind == kind).map(|gap| gap.why.as_str())
    }
}
