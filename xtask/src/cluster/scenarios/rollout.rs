//! A rolling update under load is no fault: every connection succeeds, and a trace on each node reports nothing. Under
//! emulation, kube-proxy on a busy node is up to 10 s late, so that terminating Pods answer new connections.

use std::time::Duration;

use anyhow::{Result, bail};

use super::super::Cluster;
use super::super::node::Node;
use super::super::remote::{Finished, Running};
use super::workload::{PODS, Workload};
use crate::printer::indented;

/// The longest time for a trace to attach, and to end.
const TRACE: Duration = Duration::from_mins(1);
const READY_FILE: &str = "/run/trace-ready";
/// Fewer connections than this are no load.
const MIN_CONNECTIONS: u32 = 10;

pub(super) fn run(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    without_fault(cluster, &workload, |cluster| update(cluster, namespace))
}

/// Lets the client connect while `work` is done: every connection succeeds, and a trace on each node reports nothing.
pub(super) fn without_fault(
    cluster: &mut Cluster,
    workload: &Workload<'_>,
    work: impl FnOnce(&mut Cluster) -> Result<()>,
) -> Result<()> {
    let traces = traces(cluster, &[])?;
    workload.start_load(cluster)?;
    let done = work(cluster);
    let load = workload.stop_load(cluster);
    done?;
    let load = load?;
    if load.succeeded < MIN_CONNECTIONS || load.failed > 0 {
        bail!("{load:?} meanwhile");
    }
    for trace in traces {
        let node = trace.node.clone();
        let done = trace.end()?;
        if done.exit != 0 {
            let output = done.out + &done.err;
            bail!("the trace on {node} exited with status {}{}", done.exit, indented(output.lines()));
        }
    }
    Ok(())
}

/// A trace on a node. A scenario that fails leaves it before its end: it is ended then, too, so that the next scenario does
/// not meet it.
#[derive(Debug)]
pub(super) struct Trace {
    pub(super) node: String,
    running: Running,
    has_ended: bool,
}

impl Trace {
    fn new(node: String, running: Running) -> Self {
        Self { node, running, has_ended: false }
    }

    /// Ends it and returns its output.
    pub(super) fn end(mut self) -> Result<Finished> {
        self.interrupt()
    }

    fn interrupt(&mut self) -> Result<Finished> {
        self.has_ended = true;
        self.running.interrupt()?;
        self.running.wait(TRACE)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if !self.has_ended {
            // The scenario has failed already, and its own error is the one to read.
            let _ = self.interrupt();
        }
    }
}

/// Starts a trace on each node, and waits until both are attached.
pub(super) fn traces(cluster: &mut Cluster, flags: &[&str]) -> Result<Vec<Trace>> {
    let flags = [&["--ready-file", READY_FILE], flags].concat();
    for node in cluster.nodes() {
        node.run(&["rm", "-f", READY_FILE])?;
    }
    let start = |node: &Node| Ok(Trace::new(node.name(), node.start_viptrace("trace", &flags)?));
    let traces = cluster.nodes().iter().map(start).collect::<Result<_>>()?;
    cluster.wait_for("the traces to attach", TRACE, |cluster| {
        let ready = cluster.nodes().iter().all(|node| node.run(&["test", "-e", READY_FILE]).is_ok());
        Ok(ready.then_some(()))
    })?;
    Ok(traces)
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

#[cfg(test)]
mod tests {
    use super::super::super::remote::fake;
    use super::*;

    #[test]
    fn a_trace_of_a_scenario_that_fails_is_ended_and_waited_for() {
        let (_here, remote, signals) = fake::that_ends_by_a_signal();
        let start =
            || Trace::new("node1".to_owned(), remote.start(&["viptrace", "trace"], "", None).unwrap());
        let scenario = || -> Result<()> {
            let _traces = [start(), start()];
            bail!("a connection failed")
        };
        scenario().unwrap_err();
        assert_eq!(signals.try_iter().collect::<Vec<_>>(), [2, 2], "both ended before the next scenario");
        assert_eq!(start().end().unwrap().exit, 0);
        assert_eq!(signals.try_iter().collect::<Vec<_>>(), [2], "one that was ended is left alone");
    }
}
