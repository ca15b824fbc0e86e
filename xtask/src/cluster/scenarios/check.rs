//! `viptrace check` finds no fault on the nodes of a healthy cluster: neither as root on the node, nor in a Pod with the
//! permissions that `deploy/` gives it.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use serde_json::json;

use super::super::Cluster;
use super::super::node::{Mode, Node};
use super::super::remote::Finished;
use super::workload::{PODS, Workload};
use crate::printer::indented;

/// The longest time for one check under emulation.
const CHECK: Duration = Duration::from_mins(2);
/// The longest time until a changed mode's rules are written.
const CHANGE: Duration = Duration::from_mins(1);
const RBAC: &str = include_str!("../../../../deploy/rbac.yaml");

/// As root on each node, with an administrator's kubeconfig.
pub(super) fn in_guest(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    Workload::create(cluster, namespace)?;
    cluster.nodes().iter().try_for_each(|node| expect_nothing(&node.name(), &on(node, &[])?))
}

/// Runs a check as root on a node.
pub(super) fn on(node: &Node, flags: &[&str]) -> Result<Finished> {
    node.start_viptrace("check", flags)?.finish(CHECK)
}

/// The same in every mode that this kube-proxy has. The one with which the cluster started is the last one.
pub(super) fn in_every_mode(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    let (own, version) = (cluster.mode, cluster.binaries.version);
    let (has, lacks): (Vec<Mode>, Vec<Mode>) =
        Mode::ALL.into_iter().filter(|mode| *mode != own).partition(|mode| mode.check(version).is_ok());
    for mode in lacks {
        cluster.note(format!("kube-proxy {version} has no mode {}", mode.name()));
    }
    let mut wrong = Vec::new();
    for mode in has.into_iter().chain([own]) {
        let healthy = change_mode(cluster, mode).and_then(|()| {
            cluster.wait_for(
                &format!("the Service to answer in mode {}", mode.name()),
                CHANGE,
                |cluster| Ok(workload.connect(cluster).ok()),
            )?;
            cluster.nodes().iter().try_for_each(|node| expect_nothing(&node.name(), &on(node, &[])?))
        });
        if let Err(error) = healthy {
            wrong.push(format!("{}: {error:#}", mode.name()));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Changes kube-proxy's mode on both nodes, as an administrator does.
fn change_mode(cluster: &mut Cluster, mode: Mode) -> Result<()> {
    for node in cluster.nodes_mut() {
        node.stop_kube_proxy()?;
        // What the old mode wrote is removed even if the new one cannot be configured.
        let ready = node.remove_rules().and_then(|()| node.configure_kube_proxy(mode, None));
        node.start_kube_proxy()?;
        ready?;
    }
    Ok(())
}

/// In a Pod on each node.
pub(super) fn in_pod(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    Workload::create(cluster, namespace)?;
    cluster.apply(RBAC)?;
    let names: Vec<String> = cluster.nodes().iter().map(Node::name).collect();
    let done = names.iter().try_for_each(|node| check_in_pod(cluster, node));
    cluster.kubectl(["--namespace", "viptrace", "delete", "pods", "--all", "--wait=false"])?;
    done
}

fn check_in_pod(cluster: &mut Cluster, node: &str) -> Result<()> {
    let name = format!("check-{node}");
    cluster.apply(&pod(&name, node))?;
    let get = ["--namespace", "viptrace", "get", "pod", &name, "--output"];
    let status = "jsonpath={.status.containerStatuses[0].state.terminated.exitCode}";
    let exit: i32 = cluster.wait_for(&format!("the end of the Pod {name}"), PODS, |cluster| {
        let exit = cluster.kubectl(get.iter().chain(&[status]))?;
        Ok(exit.trim().parse().ok())
    })?;
    let log = cluster.kubectl(["--namespace", "viptrace", "logs", &name])?;
    expect_nothing(node, &Finished { exit, out: log, err: String::new() })
}

pub(super) fn expect_nothing(node: &str, check: &Finished) -> Result<()> {
    let Finished { exit, out, err } = check;
    if *exit != 0 {
        bail!("the check of {node} exited with status {exit}{}", indented(out.lines().chain(err.lines())));
    }
    Ok(())
}

/// A Pod with the privileges of the manifest (`deploy/viptrace.yaml`).
fn pod(name: &str, node: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "viptrace"},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "viptrace",
            "hostNetwork": true,
            "hostPID": true,
            "restartPolicy": "Never",
            "containers": [{
                "name": "check",
                "image": format!("viptrace:{version}-tools"),
                "imagePullPolicy": "IfNotPresent",
                "command": ["/usr/bin/viptrace", "check"],
                "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
                "securityContext": {
                    "privileged": false,
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "runAsUser": 0,
                    "capabilities": {"drop": ["ALL"], "add": ["BPF", "NET_ADMIN", "PERFMON"]},
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
        },
    });
    pod.to_string()
}
