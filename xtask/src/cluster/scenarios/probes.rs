//! The kubelet's own probes: those that connect to a Pod are a normal look-alike (N1), those that run a command are no
//! connection, and none is a fault.

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::super::Cluster;
use super::super::binaries::Version;
use super::rollout::traces;
use super::workload::PODS;
use crate::printer::indented;

/// The first release with gRPC probes by default.
const GRPC: Version = Version::new(1, 24);
/// The class of a probe's connection.
const PROBE: &str = "N1";

/// One kind of probe. A command under emulation takes seconds.
struct Kind {
    name: &'static str,
    probe: &'static str,
    connects: bool,
    since: Option<Version>,
}

const KINDS: &[Kind] = &[
    Kind { name: "http", probe: "httpGet: {path: /, port: 8080}", connects: true, since: None },
    Kind { name: "tcp", probe: "tcpSocket: {port: 8080}", connects: true, since: None },
    Kind { name: "exec", probe: "exec: {command: [\"true\"]}", connects: false, since: None },
    // The server speaks no gRPC: the probe connects and fails.
    Kind { name: "grpc", probe: "grpc: {port: 8080}", connects: true, since: Some(GRPC) },
];

/// A probe that never ends the container.
const POD: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: probed-KIND}
spec:
  nodeSelector: {kubernetes.io/hostname: NODE}
  terminationGracePeriodSeconds: 1
  containers:
    - name: probed
      image: docker.io/library/busybox:lab
      command: [sh, -c, "mkdir /www && touch /www/index.html && exec httpd -f -p 8080 -h /www"]
      readinessProbe: {PROBE, periodSeconds: 2, timeoutSeconds: 20}
      livenessProbe: {PROBE, periodSeconds: 3, timeoutSeconds: 20, failureThreshold: 1000}
"#;

pub(super) fn run(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let version = cluster.binaries.version;
    let (has, lacks): (Vec<&Kind>, Vec<&Kind>) =
        KINDS.iter().partition(|kind| kind.since.is_none_or(|since| version >= since));
    for kind in lacks {
        cluster.note(format!("Kubernetes {version} has no {} probes", kind.name));
    }
    let traces = traces(cluster, &["--all", "-o", "json"])?;
    let nodes = ["node1", "node2"];
    for (kind, node) in has.iter().zip(nodes.iter().cycle()) {
        cluster.apply_in(
            namespace,
            &POD.replace("KIND", kind.name).replace("NODE", node).replace("PROBE", kind.probe),
        )?;
    }
    let mut probed = Vec::new();
    for kind in &has {
        let pod = format!("probed-{}", kind.name);
        cluster.wait_for(&format!("a probe of {pod}"), PODS, |cluster| {
            has_been_probed(cluster, namespace, &pod)
        })?;
        let get = ["--namespace", namespace, "get", "pod", &pod, "--output=jsonpath={.status.podIP}"];
        probed.push((*kind, cluster.kubectl(get)?));
    }
    let mut records = Vec::new();
    for trace in traces {
        let node = trace.node.clone();
        let done = trace.end()?;
        if done.exit != 0 {
            let output = done.out + &done.err;
            bail!("the trace on {node} exited with status {}{}", done.exit, indented(output.lines()));
        }
        for line in done.out.lines() {
            let record: Value = serde_json::from_str(line)
                .with_context(|| format!("the trace on {node} printed {line:?}"))?;
            records.push(record);
        }
    }
    for (kind, ip) in probed {
        let of_pod = |record: &&Value| {
            let flow = &record["flow"];
            [&flow["endpoint"], &flow["vip"]].iter().any(|to| to.as_str() == Some(&format!("{ip}:8080")))
        };
        let seen: Vec<&Value> = records.iter().filter(of_pod).collect();
        let expected = |record: &&Value| kind.connects && record["class"] == PROBE;
        ensure!(
            seen.iter().all(expected) && seen.is_empty() != kind.connects,
            "the {} probe of {ip} was recorded as {seen:#?}",
            kind.name
        );
    }
    Ok(())
}

/// Whether the Pod is ready, or the kubelet has reported a probe that failed.
fn has_been_probed(cluster: &Cluster, namespace: &str, pod: &str) -> Result<Option<()>> {
    let ready = "--output=jsonpath={.status.containerStatuses[0].ready}";
    if cluster.kubectl(["--namespace", namespace, "get", "pod", pod, ready])? == "true" {
        return Ok(Some(()));
    }
    let selector = format!("--field-selector=reason=Unhealthy,involvedObject.name={pod}");
    let events = cluster.kubectl(["--namespace", namespace, "get", "events", &selector, "--output=name"])?;
    Ok((!events.trim().is_empty()).then_some(()))
}
