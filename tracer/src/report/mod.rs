//! Prints verdicts: as a table that is updated in a terminal or grows on a pipe, as JSON lines, as YAML documents, and
//! as a summary at the end.
//!
//! All text that a peer, a Pod or an API object could have chosen is made safe for a terminal. `diagnosis` decides the
//! content of a verdict; this room only lays it out.

pub mod check;
mod columns;
pub mod counts;
pub(crate) mod explain;
mod fit;
#[cfg(test)]
pub(crate) mod fixture;
mod groups;
pub mod html;
mod json;
mod live;
mod log;
pub mod nodes;
mod outline;
pub(crate) mod page;
pub mod path;
pub mod pcap;
pub(crate) mod printer;
mod row;
pub(crate) mod schema;
mod sink;
pub mod story;
mod summary;
mod top;
pub mod trail;
pub mod why;
mod yaml;

pub(crate) use json::line as record_line;
pub(crate) use live::Status;
pub(crate) use printer::OutputError;
pub use printer::{Paint, Printer, Verbosity};
pub use sink::Report;
pub(crate) use yaml::document as yaml_document;

use std::io::Write as _;

use clap::ValueEnum;

use crate::{class::Class, verdict::Verdict};

/// Writes lines of [`record_line`] to standard output at once.
pub(crate) fn write_record(line: &str) -> Result<(), OutputError> {
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes())?;
    Ok(out.flush()?)
}

/// How verdicts are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// A table, or findings in the order of their rank
    #[default]
    Table,
    /// The same with all known details, never shortened
    Wide,
    /// One JSON object a record and line; `viptrace schema` describes it
    Json,
    /// One YAML document a record, with the same fields
    Yaml,
}

/// How a replay is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ReplayOutput {
    /// The verdicts as a table, and a summary
    #[default]
    Table,
    /// The same with all known details, never shortened
    Wide,
    /// One JSON object a record and line; `viptrace schema` describes it
    Json,
    /// One YAML document a record, with the same fields
    Yaml,
    /// What happened, on one screen: the cause, since when, who was hit, what changed, what to do
    Story,
    /// One HTML file for somebody who was not there: the story with a timeline, the evidence and the records
    Html,
    /// The recorded packet heads on standard output, for Wireshark; a comment at each names the hook and the verdict
    Pcapng,
    /// Parquet files of flows and changes in the folder of --out, for a database
    Parquet,
    /// Only how many events each Service and each hook has: a quick look that judges no flow
    Counts,
}

impl ReplayOutput {
    /// The form of the rows, for an output that has them.
    pub(crate) const fn rows(self) -> Output {
        match self {
            Self::Table | Self::Story | Self::Html | Self::Pcapng | Self::Parquet | Self::Counts => {
                Output::Table
            }
            Self::Wide => Output::Wide,
            Self::Json => Output::Json,
            Self::Yaml => Output::Yaml,
        }
    }
}

/// The form of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    pub output: Output,
    pub view: View,
    /// Each flow that the view shows has a line of its own. Otherwise those with one result share one.
    pub each: bool,
    /// The flows were observed on several nodes: tables have a column for them.
    pub several_nodes: bool,
    /// The flows are those of a recording: nobody waits for the first of a line, which is written once, at the end.
    pub replayed: bool,
}

impl Form {
    /// Whether the flows of one result share a line.
    pub(crate) fn groups(self) -> bool {
        !self.each && self.output == Output::Table && self.view != View::All
    }
}

/// Which flows are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Faults and unexplained flows; in tables the healthy ones folded.
    #[default]
    Default,
    /// Every flow, healthy and normal ones as well.
    All,
    /// Faults and unexplained flows only.
    FaultsOnly,
}

impl View {
    /// Whether this verdict has a line or record of its own.
    fn shows(self, verdict: &Verdict) -> bool {
        self == Self::All || verdict.has_failed()
    }

    /// Whether flows that share this verdict are counted in a line.
    fn counts(self, verdict: &Verdict) -> bool {
        self.shows(verdict) || self.folds(verdict)
    }

    /// Whether this verdict is counted in a folded line.
    fn folds(self, verdict: &Verdict) -> bool {
        self == Self::Default && (verdict.class == Class::Ok || verdict.is_healthy_near_a_loss())
    }
}
