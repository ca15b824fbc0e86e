//! kube-proxy stops on one node: the check names it there and only there, until it runs again.

use std::time::Duration;

use anyhow::{Result, bail};

use super::super::Cluster;
use super::check;
use super::workload::Workload;
use crate::printer::indented;

/// kube-proxy absent or crashing.
const CLASS: &str = "C1";
/// The longest time until the restarted kube-proxy has written its rules.
const RECOVERY: Duration = Duration::from_mins(1);
/// The exit status of a check that found a fault.
const FAULTS: i32 = 3;

pub(super) fn run(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    Workload::create(cluster, namespace)?;
    cluster.nodes_mut()[0].stop_kube_proxy()?;
    let judged = judge(cluster);
    cluster.nodes_mut()[0].start_kube_proxy()?;
    judged?;
    cluster.wait_for("a check without findings", RECOVERY, |cluster| {
        Ok((check::on(&cluster.nodes()[0], &[])?.exit == 0).then_some(()))
    })
}

fn judge(cluster: &Cluster) -> Result<()> {
    let [stopped, other] = [0, 1].map(|number| check::on(&cluster.nodes()[number], &["-o", "json"]));
    let (stopped, other) = (stopped?, other?);
    if stopped.exit != FAULTS || !stopped.out.contains(&format!("\"{CLASS}\"")) {
        let lines = indented(stopped.out.lines().chain(stopped.err.lines()));
        bail!(
            "without kube-proxy, the check exited with status {} and not with a {CLASS}{lines}",
            stopped.exit
        );
    }
    check::expect_nothing("the other node", &other)
}
