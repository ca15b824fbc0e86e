//! The audit of rules that a real kube-proxy wrote: a healthy capture has no discrepancy, and every edit causes one.

mod captures;
mod healthy;
mod incidents;

#[path = "../../../benches/audit/generate.rs"]
mod generate;
mod large;
mod mutations;
mod readers;
mod releases;
mod suite;
mod suite_mutations;
