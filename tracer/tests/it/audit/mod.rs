//! The audit of a node's rules, on what a real kube-proxy wrote: nothing is found in a healthy capture, and every edit is.

mod captures;
mod healthy;
mod incidents;

#[path = "../../../benches/audit/generate.rs"]
mod generate;
mod large;
mod mutations;
mod readers;
