//! `kubectl viptrace` while a part of the cluster is away: each run ends with a clear sentence, and no Pod is left behind.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::super::Cluster;
use super::plugin::{FAULTS, expect, expect_no_pod, patch, run_plugin, run_watched};
use super::workload::{PODS, Workload};

const AGENT: &str = include_str!("../../../../deploy/viptrace.yaml");
/// The manifest's `hostPath`.
const RECORDINGS: &str = "/var/lib/viptrace";
/// The longest time until a Node's condition has changed: the controller waits 40 s for a lease.
const CONDITION: Duration = Duration::from_mins(3);

/// Where the agent runs, `trace` reads it and creates nothing.
pub(super) fn with_agent(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    with_agents(cluster, 100, |cluster| read_agents(cluster, &workload, namespace))
}

/// Runs agents on both nodes, which sample one of so many healthy flows, while `work` is done.
pub(super) fn with_agents(
    cluster: &mut Cluster,
    sample: u32,
    work: impl FnOnce(&mut Cluster) -> Result<()>,
) -> Result<()> {
    // An earlier scenario's recordings are of other flows.
    cluster.nodes().iter().try_for_each(|node| node.run(&["rm", "-rf", RECORDINGS]).map(drop))?;
    cluster.apply(&AGENT.replace("sample: 1/100", &format!("sample: 1/{sample}")))?;
    let limit = format!("--timeout={}s", PODS.as_secs());
    let done = cluster
        .kubectl(["--namespace", "viptrace", "rollout", "status", "daemonset/viptrace", &limit])
        .and_then(|_| work(cluster));
    // The next scenario may create it again.
    cluster.kubectl(["delete", "namespace", "viptrace"])?;
    done
}

fn read_agents(cluster: &mut Cluster, workload: &Workload<'_>, namespace: &str) -> Result<()> {
    let service = format!("{namespace}/web");
    let before = started_pods(cluster)?;
    patch(cluster, namespace, r#"{"spec":{"selector":{"app":"nobody"}}}"#)?;
    workload.start_load(cluster)?;
    let ran = run_plugin(cluster, &["trace", &service, "--duration", "20s"]);
    workload.stop_load(cluster)?;
    patch(cluster, namespace, r#"{"spec":{"selector":{"app":"web"}}}"#)?;
    expect(&ran?, FAULTS, &["reads the agent on node1 and node2", "FAULT C20", "node1"])?;
    let after = started_pods(cluster)?;
    ensure!(after == before, "beside the agents, the plugin started Pods: {before:?}, then {after:?}");
    Ok(())
}

/// The names of the Pods in the plugin's namespace that have had an event.
fn started_pods(cluster: &Cluster) -> Result<BTreeSet<String>> {
    let names = "jsonpath={.items[*].involvedObject.name}";
    let pods = "--field-selector=involvedObject.kind=Pod";
    let listed = cluster.kubectl(["--namespace", "kube-system", "get", "events", pods, "--output", names])?;
    Ok(listed.split_whitespace().map(ToOwned::to_owned).collect())
}

/// A node that is not Ready, an API server that does not answer any more, and a kernel that refuses to be traced.
pub(super) fn outages(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    Workload::create(cluster, namespace)?;
    let service = format!("{namespace}/web");
    api_server_away(cluster, &service)?;
    not_ready(cluster, &service)?;
    // The guest's kernel stays as it is then.
    locked_down(cluster, &service)
}

fn api_server_away(cluster: &mut Cluster, service: &str) -> Result<()> {
    // Two emulated nodes beside others can take a minute to start a Pod.
    let words = ["trace", service, "--duration", "15s", "--pod-timeout", "2m"];
    let mut attached = 0;
    let ran = run_watched(cluster, &words, |cluster, line| {
        if line.contains("tracing ") {
            attached += 1;
            if attached == 2 {
                cluster.pause_api_server()?;
            }
        }
        Ok(())
    });
    cluster.resume_api_server()?;
    let ran = ran?;
    ensure!(attached == 2, "the trace did not begin on both nodes:\n{}", ran.text());
    // Both nodes' results are lost, which is no "nothing is broken".
    ensure!(matches!(ran.exit, Some(1 | 4)), "exit {:?}:\n{}", ran.exit, ran.text());
    for node in ["node1", "node2"] {
        ensure!(
            ran.text().contains(&format!("{node}: ")),
            "the output does not name {node}:\n{}",
            ran.text()
        );
    }
    let what = "the API server after its pause";
    cluster.wait_for(what, CONDITION, |cluster| Ok(cluster.kubectl(["get", "nodes"]).ok()))?;
    expect_no_pod(cluster)
}

fn not_ready(cluster: &mut Cluster, service: &str) -> Result<()> {
    signal_kubelet(cluster, "STOP")?;
    let ran = cluster
        .wait_for("node1 to be no longer Ready", CONDITION, |cluster| is_ready(cluster, "node1", false))
        .and_then(|()| run_plugin(cluster, &["check", service, "--all-nodes"]));
    signal_kubelet(cluster, "CONT")?;
    cluster.wait_for("node1 to be Ready again", CONDITION, |cluster| is_ready(cluster, "node1", true))?;
    expect(&ran?, 4, &["node1", "not Ready"])?;
    expect_no_pod(cluster)
}

/// Signals the first node's kubelet. The nodes have no `pkill`.
fn signal_kubelet(cluster: &Cluster, signal: &str) -> Result<()> {
    let find = "for process in /proc/[0-9]*; do read -r name <$process/comm || continue; \
        if [ \"$name\" = kubelet ]; then kill -s SIGNAL ${process#/proc/} && found=1; fi; done; [ -n \"$found\" ]";
    cluster.nodes()[0].run(&["sh", "-c", &find.replace("SIGNAL", signal)]).map(drop)
}

fn is_ready(cluster: &Cluster, node: &str, wanted: bool) -> Result<Option<()>> {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
    let status = cluster.kubectl(["get", "node", node, "--output", path])?;
    Ok(((status == "True") == wanted).then_some(()))
}

/// Kernel lockdown forbids what eBPF programs need to read the kernel.
fn locked_down(cluster: &mut Cluster, service: &str) -> Result<()> {
    let lock = "mount -t securityfs securityfs /sys/kernel/security 2>/dev/null; \
        echo confidentiality >/sys/kernel/security/lockdown";
    cluster.nodes()[1].run(&["sh", "-c", lock])?;
    // On a busy machine, the outages before can make a node late with its lease.
    let ran = cluster.wait_for("a trace of node2, which is Ready", CONDITION, |cluster| {
        if is_ready(cluster, "node2", true)?.is_none() {
            return Ok(None);
        }
        let ran = run_plugin(cluster, &["trace", service, "--duration", "5s", "--node", "node2"])?;
        Ok((!ran.text().contains("not Ready")).then_some(ran))
    })?;
    expect(&ran, 1, &["node2", "lockdown"])?;
    expect_no_pod(cluster)
}
