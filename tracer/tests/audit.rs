//! The audit of a node's rules, on what a real kube-proxy wrote: nothing is found in a healthy capture, and every edit is.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    clippy::format_push_string,
    clippy::cast_precision_loss,
    reason = "tests"
)]
#![allow(unreachable_pub, reason = "modules of one test")]

#[path = "audit/captures.rs"]
mod captures;
#[path = "audit/healthy.rs"]
mod healthy;
#[path = "audit/incidents.rs"]
mod incidents;

#[path = "../benches/audit/generate.rs"]
mod generate;
#[path = "audit/large.rs"]
mod large;
#[path = "audit/mutations.rs"]
mod mutations;
#[path = "audit/readers.rs"]
mod readers;
