//! The node that viptrace runs on: one collector, the texts that it captures, and the snapshot parsed from them.
//!
//! A trace and a check read the node through the same code; a trace requests less. Reads happen on demand and
//! never on the event path. Every reader has a limit on time and bytes, and a reader that fails leaves a gap with its
//! reason, not an error. viptrace changes nothing on the node: it loads no module and creates no table. The parsers are
//! pure and take any input. `diagnosis` interprets the snapshot.

pub mod capture;
pub(crate) mod collector;
pub(crate) mod command;
pub mod conntrack;
pub mod entries;
pub(crate) mod gap;
pub mod http;
pub mod interfaces;
pub mod ipvs;
pub(crate) mod kube_proxy;
mod loaded;
pub(crate) mod modules;
mod netlink;
pub mod procfs;
mod release;
pub mod routes;
pub(crate) mod snapshot;
pub(crate) mod sysctl;

use serde::{Deserialize, Serialize};

pub(crate) use collector::{Collector, Request};
pub(crate) use gap::Gap;
pub use gap::Reason;
pub(crate) use kube_proxy::Health;
pub use kube_proxy::ProxyMode;
pub use release::{Release, Version};
pub(crate) use snapshot::{Presence, WriterEffect};
pub use snapshot::{RuleEffect, RulesByWriter, Snapshot};

use crate::{kernel, time::Timestamp};

/// The clock of the trace, which stamps everything that is read.
pub fn now() -> Timestamp {
    kernel::now()
}

/// A fact and the time at which it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed<T> {
    pub time: Timestamp,
    pub value: T,
}

/// The limits of one reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the start of the read to its end, whether the other side stalls or keeps sending.
    pub time: std::time::Duration,
    /// Bytes kept; the bytes after them are not read.
    pub bytes: usize,
}
