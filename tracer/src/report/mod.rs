//! Prints verdicts: as a table that lives in a terminal or grows on a pipe, as JSON lines, as YAML documents, and
//! as a summary at the end.
//!
//! Everything that a peer, a Pod or an API object could have named is made safe before a terminal sees it. What a
//! verdict says is decided in `diagnosis`; here it is only laid out.

pub mod check;
mod columns;
pub mod explain;
mod fit;
mod json;
pub mod latency;
mod live;
mod log;
pub mod page;
pub mod printer;
mod row;
pub mod schema;
mod sink;
pub mod summary;
mod yaml;

pub use printer::{OutputError, Paint, Printer, Verbosity};
pub use sink::{Report, Status};
pub use summary::Summary;

use std::{net::SocketAddr, time::Duration};

use clap::ValueEnum;

use crate::{
    class::Class,
    session::{Folded, Judged},
    time::Timestamp,
    verdict::Verdict,
};

/// How verdicts are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// One line a flow; healthy flows of one Service and endpoint fold into one line with a count
    #[default]
    Table,
    /// The table with node, ports, confidence, evidence and action, never shortened
    Wide,
    /// One JSON object a line; `viptrace schema` describes it
    Json,
    /// One YAML document a verdict, for reports that people read
    Yaml,
}

/// Which flows are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Faults and unknown flows; in tables the healthy ones folded.
    #[default]
    Default,
    /// Every flow, healthy and normal ones as well.
    All,
    /// Faults and unknown flows only.
    FaultsOnly,
}

impl View {
    /// Whether this verdict has a line or record of its own.
    fn shows(self, verdict: &Verdict) -> bool {
        self == Self::All || verdict.is_fault() || verdict.is_unexplained()
    }

    /// Whether this verdict is counted in a folded line.
    fn folds(self, verdict: &Verdict) -> bool {
        self == Self::Default && verdict.class == Class::Ok
    }
}

/// Healthy flows that share a verdict, as they are counted.
#[derive(Clone, Copy, Debug)]
pub struct FoldedItem<'a> {
    /// The verdict on a flow like them.
    pub verdict: &'a Verdict,
    pub count: u64,
    /// The longest connect time, where any was seen.
    pub slowest: Option<Duration>,
    /// The latest time of their verdicts.
    pub last: Timestamp,
    /// A client of theirs, and its Pod.
    pub client: SocketAddr,
    pub client_pod: Option<&'a str>,
    /// Whether that address is the only one, and that Pod.
    pub one_address: bool,
    pub one_pod: bool,
}

impl<'a> From<&'a Folded> for FoldedItem<'a> {
    fn from(folded: &'a Folded) -> Self {
        Self {
            verdict: &folded.verdict,
            count: folded.count,
            slowest: folded.connect_times.iter().max().copied(),
            last: folded.last,
            client: folded.clients.address,
            client_pod: folded.clients.pod.as_deref(),
            one_address: folded.clients.one_address,
            one_pod: folded.clients.one_pod,
        }
    }
}

/// One judged flow, as it is shown.
#[derive(Clone, Copy, Debug)]
pub struct Item<'a> {
    pub verdict: &'a Verdict,
    /// From the client's SYN to its established socket, where both were seen.
    pub connect_time: Option<Duration>,
    /// Whether this flow was shown before with another verdict. Its line is then replaced where that is possible;
    /// a record is written again.
    pub revised: bool,
}

impl<'a> From<&'a Judged> for Item<'a> {
    fn from(judged: &'a Judged) -> Self {
        Self { verdict: &judged.verdict, connect_time: judged.connect_time, revised: judged.before.is_some() }
    }
}
