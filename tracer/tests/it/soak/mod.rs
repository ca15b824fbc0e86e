//! A soak: many flows of one cluster at once, healthy, normal and broken at random, each with a known cause.
//!
//! The flows pass through the same path as those of a trace: sightings in the order of the CPUs' buffers, the flow
//! table with rereads of entries, the history of the cluster, and a node that is read when a verdict needs it. A random
//! seed decides everything, and a failure prints it.
//!
//! `soak_verdicts` has the tests. The benchmark of the engine and the test of its allocations judge the same flows.

mod cluster;
mod conditions;
mod faults;
mod normal;
pub(crate) mod player;
mod services;
pub(crate) mod tally;
mod traffic;
mod wire;

use viptrace::node::ProxyMode;

pub(crate) const MODES: [ProxyMode; 3] = [ProxyMode::Iptables, ProxyMode::Nftables, ProxyMode::Ipvs];
/// The flows that break by themselves, of a hundred.
pub(crate) const BROKEN: u64 = 20;
