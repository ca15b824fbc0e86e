//! What the node itself says: kube-proxy's mode, version and health, conntrack's counters, rules and addresses.
//!
//! Everything here is read on demand, beside the flow of events and never in it; every reader has a limit on time
//! and bytes, and a reader that fails leaves a named gap, not an error. Nothing is changed on the node: no module
//! is loaded, no table created. The parsers are pure and take any input. What the facts mean is for `diagnosis`.

pub mod capture;
pub mod command;
pub mod conntrack;
pub mod entries;
pub mod http;
pub mod interfaces;
pub mod ipvs;
pub mod kube_proxy;
pub mod modules;
mod netlink;
pub mod procfs;
pub mod rules;
mod state;
pub mod sysctl;
mod view;

use std::time::{SystemTime, UNIX_EPOCH};

pub use kube_proxy::{Health, ProxyMode};
pub use procfs::{ConntrackCounters, ConntrackUse};
pub use state::{NodeReader, NodeState, Observed};
pub use view::{IpvsSettings, NodeFacts, Rule, Ruling};

use crate::time::Timestamp;

/// The wall clock; the facts of this module are stamped with it.
pub fn now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_unix_ns(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
}

/// What one reader may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the start of the read to its end, whatever the other side does meanwhile.
    pub time: std::time::Duration,
    /// Bytes kept; what comes after them is not read.
    pub bytes: usize,
}
