//! kube-proxy waits long between two syncs (`minSyncPeriod`) on the client's node: connections to the Pods of before are late
//! rules (C5) until it writes, and neither a stale endpoint nor a failing sync. The check reports no fault.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::Cluster;
use super::check;
use super::rollout::{traces, update};
use super::workload::Workload;
use crate::printer::indented;

/// kube-proxy's `minSyncPeriod`, seconds.
const PERIOD: u32 = 60;
/// Two periods and the sync itself.
const WRITTEN: Duration = Duration::from_mins(3);
/// The longest time until a check meets an update that waits.
const WAITING: Duration = Duration::from_mins(2);
/// kube-proxy writes two changes at once before it waits (`burstSyncs` of its proxiers).
const BURST: u32 = 2;
/// Rules that lag behind the API.
const LAG: &str = "C5";

pub(super) fn run(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    restart(cluster, Some(PERIOD))?;
    let judged = judge(cluster, &workload, namespace);
    restart(cluster, None)?;
    judged
}

fn restart(cluster: &mut Cluster, seconds: Option<u32>) -> Result<()> {
    let mode = cluster.mode;
    let node = &mut cluster.nodes_mut()[0];
    node.configure_kube_proxy(mode, seconds)?;
    node.stop_kube_proxy()?;
    node.start_kube_proxy()
}

fn judge(cluster: &mut Cluster, workload: &Workload<'_>, namespace: &str) -> Result<()> {
    // The old rules answer meanwhile; the check needs kube-proxy's metrics.
    cluster.wait_for("a check without findings after kube-proxy's start", WRITTEN, |cluster| {
        let check = check::on(&cluster.nodes()[0], &[])?;
        Ok((check.exit == 0 && !check.out.contains("Connection refused")).then_some(()))
    })?;
    let mut traces = traces(cluster, &["-o", "json"])?;
    workload.start_load(cluster)?;
    let changed = change(cluster, workload, namespace);
    let load = workload.stop_load(cluster);
    let done = traces.swap_remove(0).end()?;
    for other in traces {
        other.end()?;
    }
    changed?;
    let load = load?;
    let output = || indented(done.out.lines().chain(done.err.lines()));
    ensure!(load.failed > 0, "the old rules harmed no connection: {load:?}");
    let mut classes = BTreeSet::new();
    for line in done.out.lines() {
        let record: Value =
            serde_json::from_str(line).with_context(|| format!("the trace printed {line:?}"))?;
        classes.extend(record["class"].as_str().map(ToOwned::to_owned));
    }
    let faults: Vec<&String> = classes.iter().filter(|class| class.starts_with('C')).collect();
    ensure!(
        faults == [LAG],
        "{load:?} was judged as {classes:?}, expected {LAG} and no other fault{}",
        output()
    );
    Ok(())
}

/// Replaces the Pods while the rules wait, checks the node, and waits until the rules are written.
fn change(cluster: &mut Cluster, workload: &Workload<'_>, namespace: &str) -> Result<()> {
    let mut services = 0;
    let mut expose = |cluster: &Cluster| {
        let name = format!("--name=other-{services}");
        services += 1;
        let expose = ["expose", "deployment", "web", "--port=80", "--target-port=8080", &name];
        cluster.kubectl(["--namespace", namespace].iter().chain(&expose)).map(drop)
    };
    for _ in 0..=BURST {
        expose(cluster)?;
    }
    update(cluster, namespace)?;
    cluster.wait_for("a check while an update waits", WAITING, |cluster| {
        let check = check::on(&cluster.nodes()[0], &["-o", "json"])?;
        check::expect_nothing("the node with a slow kube-proxy", &check)?;
        if check.out.contains("its minSyncPeriod is") {
            return Ok(Some(()));
        }
        // On a busy machine the period ends before the check: another change waits for the next one.
        expose(cluster)?;
        Ok(None)
    })?;
    cluster.wait_for("connections to the new Pods", WRITTEN, |cluster| {
        Ok((0..4).all(|_| workload.connect(cluster).is_ok()).then_some(()))
    })
}
