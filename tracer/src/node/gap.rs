//! The missing facts and their reasons.
//!
//! Owns the reasons as types and their messages. A message is for a person: no decision depends on it.

use std::{fmt, io, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{error::sentence, node::capture::kind::Kind, parse::ParseError};

/// A missing or unusable text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    pub kind: Kind,
    pub reason: Reason,
}

impl fmt::Display for Gap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.about(), self.reason)
    }
}

/// Why a text is missing or unusable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Reason {
    /// A part of the kernel is absent, and reading it would load it.
    #[error("{part} is not loaded in this kernel, and reading it would load it")]
    NotInKernel { part: String },
    #[error("{place}: permission denied; it needs root, or CAP_NET_ADMIN and CAP_NET_RAW")]
    NotPermitted { place: String },
    #[error("`{command}` is not installed")]
    CommandMissing { command: String },
    #[error("`{command}` failed: {error}")]
    CommandFailed { command: String, error: String },
    #[error("{place}: no complete answer within {limit:?}")]
    TimedOut { place: String, limit: Duration },
    #[error("{place}: more than {limit_bytes} bytes")]
    TooLarge { place: String, limit_bytes: usize },
    /// The file, the connection or the socket failed.
    #[error("{place}: {error}")]
    Unreadable { place: String, error: String },
    #[error("{place} answered with status {status}")]
    Refused { place: String, status: u16 },
    #[error("{place} is unreadable at line {line}: {why}")]
    Unparsable { place: String, line: u64, why: String },
    /// One folder has several files of the kind.
    #[error(
        "{count} files could be it ({}), and none is used",
        examples.join(", ")
    )]
    Ambiguous { count: usize, examples: Vec<String> },
    #[error("{}", not_captured(*kind))]
    NotCaptured { kind: Kind },
    /// The API server's message, or that of a capture by an earlier version.
    #[error("{text}")]
    Quoted { text: String },
}

fn not_captured(kind: Kind) -> String {
    match kind.command() {
        "" => format!("no {}", kind.file_name()),
        command => format!("no {} (`{command}`)", kind.file_name()),
    }
}

impl Reason {
    pub fn unparsable(place: &str, error: ParseError) -> Self {
        Self::Unparsable { place: place.to_owned(), line: error.line, why: error.why }
    }

    /// For a file.
    pub fn of_file(path: &Path, error: &io::Error) -> Self {
        let place = path.display().to_string();
        match error.kind() {
            io::ErrorKind::PermissionDenied => Self::NotPermitted { place },
            _ => Self::Unreadable { place, error: sentence(error) },
        }
    }
}
