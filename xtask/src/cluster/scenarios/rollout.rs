//! A rolling update under load is no fault: every connection succeeds, and a trace on each node reports nothing. Under
//! emulation, kube-proxy on a busy node is up to 10 s late, so that terminating Pods answer new connections.

use std::time::Duration;

use anyhow::{Result, bail};

use super::super::Cluster;
use super::super::node::Node;
use super::super::remote::Running;
use super::workload::{PODS, Workload};
use crate::printer::indented;

/// The longest time for a trace to attach, and to end.
const TRACE: Duration = Duration::from_mins(1);
const READY_FILE: &str = "/run/trace-ready";
/// Fewer connections than this are no load.
const MIN_CONNECTIONS: u32 = 10;

pub(super) fn run(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    let traces: Vec<(String, Running)> = cluster.nodes().iter().map(trace).collect::<Result<_>>()?;
    cluster.wait_for("the traces to attach", TRACE, |cluster| {
        let ready = cluster.nodes().iter().all(|node| node.run(&["test", "-e", READY_FILE]).is_ok());
        Ok(ready.then_some(()))
    })?;

    workload.start_load(cluster)?;
    let updated = update(cluster, namespace);
    let load = workload.stop_load(cluster)?;
    updated?;
    if load.succeeded < MIN_CONNECTIONS || load.failed > 0 {
        bail!("{load:?} during the update");
    }
    for (node, trace) in traces {
        trace.interrupt()?;
        let done = trace.finish(TRACE)?;
        if done.exit != 0 {
            let output = done.out + &done.err;
            bail!("the trace on {node} exited with status {}{}", done.exit, indented(output.lines()));
        }
    }
    Ok(())
}

/// Starts a trace of all Services on a node.
fn trace(node: &Node) -> Result<(String, Running)> {
    Ok((node.name(), node.start_viptrace("trace", &["--ready-file", READY_FILE])?))
}

/// Replaces both Pods, and waits until the last old one has ended.
pub(super) fn update(cluster: &Cluster, namespace: &str) -> Result<()> {
    let limit = format!("--timeout={}s", PODS.as_secs());
    let in_namespace = ["--namespace", namespace];
    let old = cluster.kubectl(in_namespace.iter().chain(&[
        "get",
        "pods",
        "--selector=app=web",
        "--output=name",
    ]))?;
    cluster.kubectl(in_namespace.iter().chain(&["set", "env", "deployment/web", "GENERATION=2"]))?;
    cluster.kubectl(in_namespace.iter().chain(&["rollout", "status", "deployment/web", &limit]))?;
    let mut wait = vec!["wait", "--for=delete", &limit];
    wait.extend(old.split_whitespace());
    // A Pod that has gone already is no error of the update.
    let _ = cluster.kubectl(in_namespace.iter().chain(&wait));
    Ok(())
}
