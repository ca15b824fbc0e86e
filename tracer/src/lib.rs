//! viptrace: which hop broke this Kubernetes Service?
//!
//! The data runs one way. A source ([`kernel`], a [`recording`] or a test) yields [`sighting`]s; [`flow`] folds them
//! into connections; [`diagnosis`] joins each flow with the [`cluster`]'s history and the [`node`]'s state and
//! yields a [`verdict`]; [`report`] prints it. `sighting`, `flow`, `diagnosis`, `verdict` and the cluster's history
//! do no I/O and know no clock but the sightings'.
//!
//! The plugin and the verbs that read files run on every system. Code that needs the Linux kernel is behind
//! `cfg(target_os = "linux")`: modules of [`kernel`] and of [`cli`].

#![cfg_attr(
    not(target_os = "linux"),
    expect(dead_code, unused_imports, reason = "the verbs that need a node's kernel use them")
)]

pub mod agent;
mod called;
pub mod cli;
pub mod cluster;
pub mod diagnosis;
pub mod error;
mod export;
pub mod flow;
pub mod incident;
pub mod kernel;
pub mod net;
pub mod node;
pub mod parse;
pub mod pcap;
mod platform;
pub mod plugin;
pub mod recording;
pub mod report;
pub mod rules;
pub mod session;
pub mod sighting;
pub mod text;
pub mod time;
pub mod verdict;

pub use viptrace_class as class;

/// The name by which the support of the integration tests knows this crate.
#[cfg(test)]
extern crate self as viptrace;
