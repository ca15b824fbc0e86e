//! An incident on two nodes whose clocks are 90 s apart and one of which is stepped: kube-proxy on one of them loses the API
//! while a rollout replaces the Pods behind a Service, with clients on both nodes. Two agents record it, and `replay` of
//! both recordings tells it on one screen.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::super::Cluster;
use super::super::node::Node;
use super::outages::with_agents;
use super::rollout::update;
use super::workload::{PODS, Workload};
use crate::place::Place;

/// A Service on the first node, and its client on the second one: connections go both ways between the nodes.
const OTHER_WAY: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata: {name: back}
spec:
  replicas: 1
  selector: {matchLabels: {app: back}}
  template:
    metadata: {labels: {app: back}}
    spec:
      nodeSelector: {kubernetes.io/hostname: node1}
      terminationGracePeriodSeconds: 1
      containers:
        - name: back
          image: docker.io/library/busybox:lab
          command: [sh, -c, "mkdir /www && hostname >/www/index.html && exec httpd -f -p 8080 -h /www"]
---
apiVersion: v1
kind: Service
metadata: {name: back}
spec:
  selector: {app: back}
  ports: [{port: 80, targetPort: 8080}]
"#;
const CLIENT: &str = r#"apiVersion: v1
kind: Pod
metadata: {name: client-2}
spec:
  nodeSelector: {kubernetes.io/hostname: node2}
  terminationGracePeriodSeconds: 1
  containers:
    - name: client
      image: docker.io/library/busybox:lab
      command: [sh, -c, "while sleep 0.5; do timeout 5 wget -q -O /dev/null http://VIP/; done"]
"#;
/// How far the second node's clock is ahead, and the step of the first one's during the incident, seconds.
const APART: i64 = 90;
const STEP: i64 = 20;
/// How long the load runs before the incident, while it lasts, and after it.
const CALM: Duration = Duration::from_secs(15);
const OUTAGE: Duration = Duration::from_secs(25);
const AFTERWARDS: Duration = Duration::from_secs(40);
/// The longest time until kube-proxy has caught up.
const RECOVERY: Duration = Duration::from_mins(2);
/// The lab has few connections: one of so many healthy ones is reported, so that some are known on both nodes.
const SAMPLE: u32 = 3;
/// The exit status with faults.
const FAULTS: i32 = 3;

pub(super) fn run(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let folder = cluster.state.join("incident");
    move_clock(&cluster.nodes()[1], APART)?;
    let recorded = record(cluster, namespace, &folder);
    move_clock(&cluster.nodes()[1], -APART)?;
    move_clock(&cluster.nodes()[0], -STEP)?;
    recorded?;
    expect_story(&folder, namespace)
}

fn record(cluster: &mut Cluster, namespace: &str, folder: &Path) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    let limit = format!("--timeout={}s", PODS.as_secs());
    let get = ["--namespace", namespace, "get", "service", "back", "--output", "jsonpath={.spec.clusterIP}"];
    cluster.apply_in(namespace, OTHER_WAY)?;
    let vip = cluster.kubectl(get)?;
    cluster.apply_in(namespace, &CLIENT.replace("VIP", &vip))?;
    cluster.kubectl(["--namespace", namespace, "rollout", "status", "deployment/back", &limit])?;
    cluster.kubectl(["--namespace", namespace, "wait", "--for=condition=Ready", "pod/client-2", &limit])?;
    with_agents(cluster, SAMPLE, |cluster| {
        let happened = happen(cluster, &workload, namespace);
        let collected = collect(cluster, folder);
        happened.and(collected)
    })
}

fn happen(cluster: &mut Cluster, workload: &Workload<'_>, namespace: &str) -> Result<()> {
    workload.start_load(cluster)?;
    thread::sleep(CALM);
    cluster.nodes()[0].cut_off_kube_proxy()?;
    let updated = update(cluster, namespace).and_then(|()| {
        move_clock(&cluster.nodes()[0], STEP)?;
        thread::sleep(OUTAGE);
        Ok(())
    });
    cluster.nodes()[0].reconnect_kube_proxy()?;
    updated?;
    cluster.wait_for("the Service to answer again", RECOVERY, |cluster| {
        let answers = (0..4).all(|_| workload.connect(cluster).is_ok());
        Ok(answers.then_some(()))
    })?;
    thread::sleep(AFTERWARDS);
    let load = workload.stop_load(cluster)?;
    ensure!(load.failed > 0 && load.succeeded > 0, "{load:?} over the incident");
    Ok(())
}

/// Copies the segments of both agents, with a folder for each node.
fn collect(cluster: &Cluster, folder: &Path) -> Result<()> {
    let pods = cluster.kubectl([
        "--namespace",
        "viptrace",
        "get",
        "pods",
        "--output",
        "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{\"\\n\"}{end}",
    ])?;
    for line in pods.lines() {
        let (pod, node) = line.split_once(' ').with_context(|| format!("kubectl printed {line:?}"))?;
        let stream = ["--namespace", "viptrace", "exec", pod, "--", "viptrace", "agent", "stream"];
        let listed = cluster.kubectl(stream.iter().chain(&["--segments"]))?;
        let of_node = folder.join(node);
        fs::create_dir_all(&of_node).with_context(|| format!("could not create {}", of_node.display()))?;
        for line in listed.lines() {
            let segment: Value =
                serde_json::from_str(line).with_context(|| format!("{pod} listed {line:?}"))?;
            let name = segment["name"].as_str().with_context(|| format!("{line:?} names no segment"))?;
            let output = cluster.command("kubectl").args(stream).args(["--segment", name]).output();
            let output = output.with_context(|| format!("could not read the segment {name} of {pod}"))?;
            ensure!(output.status.success(), "{name} of {pod}: {}", String::from_utf8_lossy(&output.stderr));
            fs::write(of_node.join(name), output.stdout)
                .with_context(|| format!("could not write {name}"))?;
        }
    }
    Ok(())
}

/// Sets the node's clock forward, or back.
fn move_clock(node: &Node, seconds: i64) -> Result<()> {
    let command = format!("date -s @$(( $(date +%s) + {seconds} ))");
    node.run(&["sh", "-c", &command]).map(drop)
}

fn expect_story(folder: &Path, namespace: &str) -> Result<()> {
    let paths: Vec<PathBuf> = ["node1", "node2"].iter().map(|node| folder.join(node)).collect();
    let viptrace = Place::find()?.release("viptrace");
    let output = Command::new(viptrace).arg("replay").args(&paths).args(["-o", "story"]).output();
    let output = output.context("could not start viptrace")?;
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let text = format!("{}\n{}", out.trim(), err.trim());
    ensure!(output.status.code() == Some(FAULTS), "exit {:?}:\n{text}", output.status.code());
    let service = format!("{namespace}/web:80");
    let client = format!("{namespace}/client");
    for expected in [
        service.as_str(),
        &client,
        "stale_endpoints",
        "node1",
        "left Service",
        "kube-proxy",
        "ended   the flow at",
    ] {
        if !out.contains(expected) {
            bail!("the story does not mention {expected:?}:\n{text}");
        }
    }
    ensure!(err.contains("the clock of node"), "no clocks were compared:\n{text}");
    ensure!(!err.contains("cannot be compared"), "the clocks were not compared:\n{text}");
    Ok(())
}
