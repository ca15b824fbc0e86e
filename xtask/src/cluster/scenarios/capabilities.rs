//! The plugin's Pod runs with exactly the capabilities of its manifest, not privileged, and traces. Where the kernel needs
//! more (`perf_event_paranoid` above 2 without kprobe.multi links, as Debian's 6.1 is), it says which setting forbids it,
//! and `--sys-admin` traces.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::super::Cluster;
use super::plugin::{Ran, SELECTOR, SYS_ADMIN, expect, expect_no_pod, run_watched};
use super::workload::Workload;

/// `CAP_NET_ADMIN`, `CAP_PERFMON` and `CAP_BPF` (include/uapi/linux/capability.h), as /proc/PID/status prints a set.
const CAPABILITIES: &str = "000000c000001000";
const PARANOID: &str = "kernel.perf_event_paranoid";
/// The highest value that leaves perf events to `CAP_PERFMON`.
const PERMITTED: &str = "2";
/// The capabilities of each process with this name.
const OF_PROCESSES: &str = "for process in /proc/[0-9]*; do read -r name <$process/comm || continue; \
    if [ \"$name\" = viptrace ]; then grep -E '^Cap(Prm|Eff|Bnd)' $process/status; fi; done";

pub(super) fn run(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    Workload::create(cluster, namespace)?;
    let service = format!("{namespace}/web");
    let before = cluster.nodes()[0].run(&["sysctl", "-n", PARANOID])?;
    let release = cluster.nodes()[0].run(&["uname", "-r"])?;
    let (ran, seen) = trace(cluster, &service, &[])?;
    expect_no_pod(cluster)?;
    if seen.is_some() {
        return expect(&ran, 0, &["node1: tracing"]).and_then(|()| expect_exactly(seen));
    }
    // kprobe.multi links need no perf event.
    ensure!(cluster.needs_sys_admin, "no trace on {}:\n{}", release.trim(), ran.text());
    expect(&ran, 1, &["node1", "perf_event_paranoid", SYS_ADMIN])?;
    cluster.note(format!("{} with {PARANOID}={} is refused and named", release.trim(), before.trim()));
    let (ran, seen) = trace(cluster, &service, &[SYS_ADMIN])?;
    expect(&ran, 0, &["node1: tracing"])?;
    ensure!(seen.is_some(), "no trace with {SYS_ADMIN}:\n{}", ran.text());
    set_paranoid(cluster, PERMITTED)?;
    let traced = trace(cluster, &service, &[]);
    set_paranoid(cluster, before.trim())?;
    let (ran, seen) = traced?;
    expect_no_pod(cluster)?;
    expect(&ran, 0, &["node1: tracing"])?;
    expect_exactly(seen)
}

fn set_paranoid(cluster: &Cluster, value: &str) -> Result<()> {
    cluster.nodes()[0].run(&["sysctl", "-q", "-w", &format!("{PARANOID}={value}")]).map(drop)
}

/// A trace on the first node, with the Pod and its processes' capabilities at the time when it was attached.
fn trace(cluster: &Cluster, service: &str, more: &[&str]) -> Result<(Ran, Option<(Value, String)>)> {
    let mut seen = None;
    let words = ["trace", service, "--duration", "5s", "--node", "node1", "--pod-timeout", "2m"];
    let words = [words.as_slice(), more].concat();
    let ran = run_watched(cluster, &words, |cluster, line| {
        if line.contains("node1: tracing") {
            let pods = cluster.kubectl(["get", "pods", "--all-namespaces", SELECTOR, "--output=json"])?;
            let pods: Value = serde_json::from_str(&pods).context("kubectl printed no JSON")?;
            seen = Some((pods, cluster.nodes()[0].run(&["sh", "-c", OF_PROCESSES])?));
        }
        Ok(())
    })?;
    Ok((ran, seen))
}

fn expect_exactly(seen: Option<(Value, String)>) -> Result<()> {
    let (pods, processes) = seen.context("the trace did not begin")?;
    let security = &pods["items"][0]["spec"]["containers"][0]["securityContext"];
    ensure!(security["privileged"] == false, "the Pod's container has {security}");
    let sets: Vec<&str> = processes.lines().filter_map(|line| line.split_whitespace().nth(1)).collect();
    ensure!(
        !sets.is_empty() && sets.iter().all(|set| *set == CAPABILITIES),
        "the Pod's processes have other capabilities than {CAPABILITIES}:\n{processes}"
    );
    Ok(())
}
