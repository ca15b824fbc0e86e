//! A Pod is evicted and its node drained under load, which is no fault: every connection succeeds, and a trace on each node
//! reports nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use super::super::Cluster;
use super::super::binaries::Version;
use super::rollout::without_fault;
use super::workload::{PODS, Workload};

/// Only the two conditions that an eviction needs: a Pod may go elsewhere, and one always stays.
const ELSEWHERE: &str =
    r#"{"spec":{"template":{"spec":{"nodeSelector":null,"terminationGracePeriodSeconds":20}}}}"#;
/// The first release with `policy/v1`.
const POLICY_V1: Version = Version::new(1, 22);
/// The longest time for a drain: two Pods end and their successors become ready.
const DRAIN: Duration = Duration::from_mins(5);

pub(super) fn run(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    // Both Pods are on the node that is drained.
    cluster.kubectl(["cordon", "node1"])?;
    let moved = cluster
        .kubectl(["--namespace", namespace, "patch", "deployment", "web", "--patch", ELSEWHERE])
        .and_then(|_| wait_for_rollout(cluster, namespace));
    let uncordoned = cluster.kubectl(["uncordon", "node1"]);
    moved?;
    uncordoned?;
    let policy = if cluster.binaries.version < POLICY_V1 { "policy/v1beta1" } else { "policy/v1" };
    let budget = json!({
        "apiVersion": policy,
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    });
    cluster.apply_in(namespace, &budget.to_string())?;
    let drained = without_fault(cluster, &workload, |cluster| {
        evict(cluster, namespace, policy)?;
        drain(cluster)?;
        wait_for_rollout(cluster, namespace)?;
        // The last old Pods end under load, too.
        cluster.wait_for("the end of the Pods on node2", DRAIN, |cluster| {
            Ok(pods_on_node2(cluster, namespace)?.is_empty().then_some(()))
        })
    });
    let uncordoned = cluster.kubectl(["uncordon", "node2"]);
    drained?;
    uncordoned.map(drop)
}

fn wait_for_rollout(cluster: &Cluster, namespace: &str) -> Result<()> {
    let limit = format!("--timeout={}s", PODS.as_secs());
    cluster.kubectl(["--namespace", namespace, "rollout", "status", "deployment/web", &limit]).map(drop)
}

/// The servers on the second node.
fn pods_on_node2(cluster: &Cluster, namespace: &str) -> Result<Vec<String>> {
    let names = "--output=jsonpath={.items[*].metadata.name}";
    let on_node = "--field-selector=spec.nodeName=node2";
    let get = ["--namespace", namespace, "get", "pods", "--selector=app=web", on_node, names];
    Ok(cluster.kubectl(get)?.split_whitespace().map(ToOwned::to_owned).collect())
}

/// Evicts one of the servers, as an autoscaler does, and waits until its successor is ready.
fn evict(cluster: &mut Cluster, namespace: &str, policy: &str) -> Result<()> {
    let before = pods_on_node2(cluster, namespace)?;
    ensure!(before.len() >= 2, "the servers are not on node2: {before:?}");
    let eviction = json!({
        "apiVersion": policy,
        "kind": "Eviction",
        "metadata": {"name": before[0], "namespace": namespace},
    });
    let path = format!("/api/v1/namespaces/{namespace}/pods/{}/eviction", before[0]);
    cluster.create_raw(&path, &eviction.to_string())?;
    cluster.wait_for("the end of the evicted Pod", DRAIN, |cluster| {
        Ok((!pods_on_node2(cluster, namespace)?.contains(&before[0])).then_some(()))
    })?;
    wait_for_rollout(cluster, namespace)
}

fn drain(cluster: &Cluster) -> Result<()> {
    let limit = format!("--timeout={}s", DRAIN.as_secs());
    // The other scenarios' Pods have no controller.
    cluster
        .kubectl(["drain", "node2", "--ignore-daemonsets", "--force", "--delete-emptydir-data", &limit])
        .map(drop)
}
