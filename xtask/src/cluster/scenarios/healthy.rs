//! A healthy Service: a client reaches both of its Pods on the other node.

use std::collections::BTreeSet;

use anyhow::{Result, bail};

use super::super::Cluster;
use super::workload::Workload;

/// With two Pods chosen at random, one of them is missed by chance in one of 2^23 runs.
const CONNECTIONS: usize = 24;

pub(super) fn run(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    let mut answered = BTreeSet::new();
    for _ in 0..CONNECTIONS {
        answered.insert(workload.connect(cluster)?);
        if answered.len() == 2 {
            return Ok(());
        }
    }
    bail!("of two Pods, only {answered:?} answered {CONNECTIONS} connections")
}
