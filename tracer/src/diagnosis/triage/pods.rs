//! Steps 2 and 5: kube-proxy's Pods and `DaemonSet` (K1), the Nodes (K10), and the Events about both.

use std::time::Duration;

use super::{Facts, Finding, Level, Step};
use crate::{
    class::{Class, Confidence, Domain, Severity, action},
    cluster::{
        History,
        model::{Phase, Pod},
    },
    text::{times, to_the_millisecond, word},
    time::Timestamp,
    verdict::EvidenceType,
};

/// The most Pods and Nodes named in one finding; the others are counted.
const MAX_NAMED: usize = 5;
/// The conditions of a Node that are true in trouble: Kubernetes' own (kubernetes.io/docs/reference/node/node-status), and those of
/// node-problem-detector's configurations. Others may be true on a healthy node, as `EtcdIsVoter` of k3s and RKE2 (`pkg/etcd/etcd.go`
/// of k3s) and `NetworkingReady` of EKS' node monitoring agent.
const TROUBLES: [&str; 13] = [
    "MemoryPressure",
    "DiskPressure",
    "PIDPressure",
    "NetworkUnavailable",
    "KernelDeadlock",
    "ReadonlyFilesystem",
    "CorruptDockerOverlay2",
    "FrequentKubeletRestart",
    "FrequentDockerRestart",
    "FrequentContainerdRestart",
    "FrequentUnregisterNetDevice",
    "KubeletUnhealthy",
    "ContainerRuntimeUnhealthy",
];
/// A Pod of a `DaemonSet` is replaced within this time, unless something is wrong.
const REPLACED_WITHIN: Duration = Duration::from_mins(1);

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    if let Some(history) = &facts.history {
        proxy_pods(facts, history, findings);
        nodes(facts, history, findings);
    }
    daemon_sets(facts, findings);
    events(facts, findings);
}

/// By the labels of kubeadm and similar tools, or by its name in kube-system.
pub(super) fn is_proxy(pod: &Pod) -> bool {
    let label = |name: &str| pod.labels.get(name) == Some("kube-proxy");
    ["k8s-app", "component", "app.kubernetes.io/name", "app"].iter().any(|name| label(name))
        || *pod.key.namespace == *"kube-system" && pod.key.name.starts_with("kube-proxy-")
}

/// Why kube-proxy is away for a moment: a rollout of its `DaemonSet`, or a Pod that has just been deleted or created.
/// `None` if it stays away: a container that fails, a Pod that ends too late or does not start.
pub(super) fn is_being_replaced(facts: &Facts) -> Option<String> {
    let history = facts.history.as_ref()?;
    let node = facts.known_node()?;
    let taken = facts.taken.unwrap_or_default();
    let here: Vec<_> = history
        .pods()
        .filter(|pod| is_proxy(pod) && pod.node.as_deref() == Some(node) && pod.holds_addresses())
        .collect();
    let starts = |trouble: &str| ["ContainerCreating", "PodInitializing"].contains(&trouble);
    let fails =
        |pod: &Pod| pod.restarts > 0 || pod.trouble.as_deref().is_some_and(|trouble| !starts(trouble));
    if here.iter().any(|pod| fails(pod) && !pod.ready) {
        return None;
    }
    let rolls = facts.daemon_sets.iter().flatten().find(|set| set.updated < set.desired);
    let young = |pod: &Pod| {
        history.pod_created(&pod.key).is_some_and(|created| taken.since(created) < REPLACED_WITHIN)
    };
    for pod in &here {
        match pod.deletion {
            Some(deadline) if taken.since(deadline) < REPLACED_WITHIN => {
                return Some(format!("its Pod {} is being deleted", pod.key));
            }
            None if !pod.ready && young(pod) => {
                return Some(format!("its Pod {} has just been created", pod.key));
            }
            _ => {}
        }
    }
    match rolls {
        Some(set) if here.is_empty() => Some(format!(
            "DaemonSet {} is rolling out: {} of {} Pods are updated",
            set.name, set.updated, set.desired
        )),
        _ => None,
    }
}

/// Lowers a fault that ends with the rollout of kube-proxy.
pub(super) fn during_rollout(facts: &Facts, finding: Finding) -> Finding {
    match is_being_replaced(facts) {
        Some(why) => finding
            .level(Level::Warning)
            .severity(Severity::Low)
            .confidence(Confidence::Medium)
            .against(EvidenceType::Api, None, format!("{why}: this takes seconds, and the rules stay")),
        None => finding,
    }
}

fn proxy_pods(facts: &Facts, history: &History, findings: &mut Vec<Finding>) {
    let all: Vec<_> = history.pods().filter(|pod| is_proxy(pod)).collect();
    let here = |pod: &Pod| facts.node_name.is_some() && pod.node.as_deref() == facts.node_name.as_deref();
    let runs = |pod: &Pod| pod.phase == Phase::Running && pod.ready && pod.trouble.is_none();
    // An evicted Pod stays in the API beside the one that took its place.
    let is_replaced = |pod: &Pod| {
        let has_ended = matches!(pod.phase, Phase::Succeeded | Phase::Failed);
        has_ended && all.iter().any(|other| runs(other) && other.node == pod.node)
    };
    let pods: Vec<_> = all.iter().copied().filter(|pod| !is_replaced(pod)).collect();
    if let Some(node) = facts.known_node()
        && !pods.is_empty()
        && !pods.iter().any(|pod| here(pod))
    {
        let finding =
            Finding::new(Class::C1, format!("no kube-proxy Pod is on {node}; other nodes have one"))
                .severity(Severity::High)
                .api(None, format!("{} kube-proxy Pods, none with spec.nodeName {node}", pods.len()))
                .now(&[action::DESCRIBE_DAEMON_SET]);
        findings.push(if facts.node.running == Some(true) {
            finding.level(Level::Note).against(
                EvidenceType::Node,
                None,
                "kube-proxy runs on this node, but not as a Pod",
            )
        } else {
            during_rollout(facts, finding)
        });
    }
    for pod in pods.iter().filter(|pod| here(pod) && !runs(pod)) {
        let why = pod.trouble.as_deref().unwrap_or(if pod.deletion.is_some() {
            "it is being deleted"
        } else {
            "it is not ready"
        });
        let detail = format!("kube-proxy's Pod {} on this node does not run: {why}", pod.key);
        findings.push(during_rollout(
            facts,
            Finding::new(Class::C1, detail)
                .severity(Severity::High)
                .api(
                    None,
                    format!(
                        "Pod {}: phase {:?}, ready {}, {} restarts: {why}",
                        pod.key, pod.phase, pod.ready, pod.restarts
                    ),
                )
                .against(EvidenceType::Node, None, "its rules remain: unchanged Services still work")
                .now(&[action::DESCRIBE_PROXY_POD])
                .fill("POD_NAMESPACE", word(&pod.key.namespace))
                .fill("POD", word(&pod.key.name)),
        ));
    }
    let restarted: Vec<String> = pods
        .iter()
        .filter(|pod| here(pod) && runs(pod) && pod.restarts > 0)
        .map(|pod| format!("{} ({})", pod.key, pod.restarts))
        .collect();
    if !restarted.is_empty() {
        findings.push(
            Finding::new(
                Class::C1,
                format!("kube-proxy on this node was restarted: {}", restarted.join(", ")),
            )
            .severity(Severity::Low)
            .level(Level::Note)
            .api(None, format!("restarts of its containers: {}", restarted.join(", ")))
            .now(&[action::DESCRIBE_PROXY_POD]),
        );
    }
    let elsewhere: Vec<String> =
        pods.iter().filter(|pod| !here(pod) && !runs(pod)).map(|pod| pod.key.to_string()).collect();
    if !elsewhere.is_empty() {
        let named = name(&elsewhere);
        findings.push(
            Finding::new(Class::C1, format!("kube-proxy does not run on other nodes: {named}"))
                .severity(Severity::Low)
                .level(Level::Warning)
                .api(None, format!("Pods that are not ready: {named}"))
                .now(&[action::LIST_PROXY_PODS]),
        );
    }
}

fn daemon_sets(facts: &Facts, findings: &mut Vec<Finding>) {
    for set in facts.daemon_sets.iter().flatten().filter(|set| set.ready < set.desired) {
        findings.push(
            Finding::new(
                Class::C1,
                format!("DaemonSet {}: {} of {} kube-proxy Pods are ready", set.name, set.ready, set.desired),
            )
            .severity(Severity::Medium)
            .level(Level::Warning)
            .api(
                None,
                format!(
                    "desired {}, scheduled {}, updated {}, ready {}, image {}",
                    set.desired, set.scheduled, set.updated, set.ready, set.image
                ),
            )
            .against(EvidenceType::Api, None, "during a rolling update this is normal for a while")
            .now(&[action::ROLLOUT_STATUS])
            .fill("DAEMON_SET", word(&set.name)),
        );
    }
}

fn nodes(facts: &Facts, history: &History, findings: &mut Vec<Finding>) {
    let mut away = Vec::new();
    for node in history.nodes() {
        let name = node.key.name.to_string();
        let here = facts.node_name.as_deref() == Some(&*name);
        if node.ready != Some(true) {
            if here {
                let detail = format!(
                    "this node is not Ready ({})",
                    if node.ready.is_none() { "its kubelet does not report" } else { "by its own report" }
                );
                findings.push(Finding::new(Class::K10, detail).step(Step::Path).api(
                    None,
                    format!("Node {name}: condition Ready is {}", node.ready.map_or("Unknown", |_| "False")),
                ));
            } else {
                away.push(name.clone());
            }
        }
        let troubles = node.pressure.iter().map(|name| &**name).filter(|name| TROUBLES.contains(name));
        let pressure = troubles.collect::<Vec<_>>().join(", ");
        if here && !pressure.is_empty() {
            findings.push(
                Finding::new(Class::K10, format!("this node is under pressure: {pressure}"))
                    .domain(Domain::HostKernel)
                    .severity(Severity::Low)
                    .step(Step::Path)
                    .level(Level::Warning)
                    .api(None, format!("Node {name}: conditions that are true: {pressure}")),
            );
        }
    }
    if away.is_empty() {
        return;
    }
    let serves = history.services().filter(|service| {
        service.ports.iter().any(|port| {
            let families =
                [crate::cluster::model::AddressType::Ipv4, crate::cluster::model::AddressType::Ipv6];
            families.iter().any(|family| {
                let usable = history.usable_endpoints(&service.key, port, *family, None, Timestamp::MAX);
                usable
                    .iter()
                    .any(|endpoint| endpoint.node.is_some_and(|node| away.iter().any(|name| name == node)))
            })
        })
    });
    let serves: Vec<String> = serves.map(|service| service.key.to_string()).collect();
    let mut finding = Finding::new(Class::C29, format!("other nodes are not Ready: {}", name(&away)))
        .step(Step::Path)
        .level(Level::Warning)
        .confidence(Confidence::Medium)
        .unobserved("whether these nodes still forward: a kubelet that is away ends no connection")
        .api(None, format!("Nodes with Ready other than True: {}", name(&away)))
        .now(&[action::DESCRIBE_ENDPOINT_NODE])
        .fill("ENDPOINT_NODE", away.first().map_or_else(String::new, |name| word(name)));
    if !serves.is_empty() {
        finding = finding.api(None, format!("endpoints there still serve {}", name(&serves)));
    }
    findings.push(finding);
}

/// The cluster's Events about kube-proxy.
fn events(facts: &Facts, findings: &mut Vec<Finding>) {
    let about =
        facts.events.iter().flatten().filter(|event| event.warning && event.object.starts_with("kube-proxy"));
    for event in about.take(MAX_NAMED) {
        findings.push(
            Finding::new(
                Class::C1,
                format!("Event of {}: {}: {}", event.object, event.reason, event.message),
            )
            .severity(Severity::Low)
            .level(Level::Note)
            .api(None, format!("{}, last at {}", times(event.count), to_the_millisecond(&event.last)))
            .now(&[action::DESCRIBE_PROXY_POD])
            .fill("POD", word(&event.object)),
        );
    }
}

fn name(names: &[String]) -> String {
    let more = names.len().saturating_sub(MAX_NAMED);
    let shown = names.iter().take(MAX_NAMED).cloned().collect::<Vec<_>>().join(", ");
    if more > 0 { format!("{shown} and {more} more") } else { shown }
}
