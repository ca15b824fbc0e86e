//! The kubelet's probes (N1), and which of two probes of one port a connection is.
//!
//! Owns a bounded memory of the connections to ports that several probes share.

use std::{collections::VecDeque, time::Duration};

use foldhash::HashMap;

use super::{
    Context, Finding, Surroundings, bounded,
    text::{count, word},
};
use crate::{
    class::{Class, Confidence, action},
    cluster::model::{Pod, Probe},
    flow::{Decision, Flow, Outcome},
    net::TransportAddr,
    sighting::Task,
    time::Timestamp,
};

/// The most ports whose connections are kept; beyond it all are removed at once.
const MAX_PORTS: usize = 1024;
/// The most connections kept for one port.
const MAX_TIMES: usize = 32;
/// How far a probe may lie from its period.
const PERIOD_SLACK: Duration = Duration::from_millis(250);

/// When connections to ports with several probes began.
#[derive(Debug, Default)]
pub(super) struct Rhythms(HashMap<TransportAddr, VecDeque<Timestamp>>);

impl Rhythms {
    pub(super) fn note(&mut self, flow: &Flow, around: &Surroundings<'_>) {
        if !flow.is_tcp() || flow.revision > 1 || flow.endpoint(around.node_netns).is_some() {
            return;
        }
        let dst = flow.orig.dst;
        let Some((_, probes)) = around.cluster.probes(dst.ip(), dst.port(), flow.first_seen) else { return };
        if probes.len() < 2 {
            return;
        }
        let times = bounded::entry(&mut self.0, MAX_PORTS, dst).or_default();
        if times.len() >= MAX_TIMES {
            times.pop_front();
        }
        times.push_back(flow.first_seen);
    }

    /// The period of the probe that this connection belongs to, if the connections before exclude the others.
    ///
    /// The kubelet probes at fixed intervals from a random beginning (`pkg/kubelet/prober/worker.go`). A connection without
    /// another one a period before it is not of that period. The probe of the shortest period makes a connection at each
    /// of its times: the only connection at such a time is its.
    fn period(&self, flow: &Flow, probes: &[&&Probe]) -> Option<Duration> {
        let times = self.0.get(&flow.orig.dst)?;
        let now = flow.first_seen;
        let at = |time: Timestamp| {
            let near = |other: &&Timestamp| other.since(time).max(time.since(**other)) <= PERIOD_SLACK;
            times.iter().filter(near).count()
        };
        let first = times.iter().min().copied()?;
        let mut periods: Vec<Duration> = probes.iter().map(|probe| probe.period).collect();
        periods.sort_unstable();
        periods.dedup();
        if periods.len() < 2 || first.saturating_add(*periods.last()?) > now.saturating_add(PERIOD_SLACK) {
            return None;
        }
        let follows = |period: &&Duration| at(now.saturating_sub(**period)) > 0;
        let possible: Vec<Duration> = periods.iter().filter(follows).copied().collect();
        match possible.as_slice() {
            [only] => Some(*only),
            [shortest, ..] if Some(shortest) == periods.first() && at(now) == 1 => Some(*shortest),
            _ => None,
        }
    }
}

/// Programs that contain the kubelet.
const KUBELETS: [&str; 8] =
    ["kubelet", "kubelite", "k3s", "k3s-server", "k3s-agent", "k0s", "rke2", "microk8s"];
/// Kernel threads in whose context a packet may be handled: they are not its sender.
const SOFTIRQ: [&str; 5] = ["swapper", "ksoftirqd", "kworker", "rcu_", "idle"];

/// N1.
/// Mechanism: the kubelet connects to the Pod from its node, and may close the connection in any way: a reset or a
/// refusal is the probe's result, not the dataplane's.
/// For: the kubelet connects from an address of this node directly to a Pod's probe port.
/// Against: a port number alone proves nothing: another program on the node may connect to it.
pub(super) fn probe(flow: &Flow, ctx: &Context<'_>) -> Option<Finding> {
    let decision = flow.decision(ctx.node_netns);
    if decision.and_then(Decision::endpoint).is_some() || !flow.is_tcp() {
        return None;
    }
    let (pod, probes) = ctx.cluster.probes(flow.orig.dst.ip(), flow.orig.dst.port(), flow.first_seen)?;
    let source = flow.orig.src.ip();
    let by_address = ctx.node.is_own_address(source);
    let by_node =
        ctx.cluster.node_by_ip(source, flow.first_seen).map(|node| Some(&*node.key.name) == ctx.node_name);
    let by_netns = (flow.client.is_seen() && ctx.node_netns.is_some())
        .then(|| Some(flow.client.netns) == ctx.node_netns);
    let from_node = by_address.or(by_node).or(by_netns)?;
    let pod_here = pod.node.as_deref().is_none_or(|node| ctx.node_name.is_none_or(|here| here == node));
    if !from_node || !pod_here {
        return None;
    }
    let task = sender(flow.client.task.as_ref()).or_else(|| sender(flow.confirm_task.as_ref()));
    if task.is_some_and(|task| !KUBELETS.contains(&&*task.comm.text())) {
        return None;
    }
    Some(probe_finding(flow, pod, &probes, ctx, task))
}

/// How far the end of a failed probe may lie from its timeout.
const TIMEOUT_SLACK: Duration = Duration::from_millis(250);

/// The names of the probes that this connection can be: a probe without an answer ends at its timeout, which excludes
/// probes with another one, and so does the rhythm of the connections before. (The connection of an answered probe has the
/// same form whatever its kind.)
fn possible_kinds(flow: &Flow, probes: &[&Probe], ctx: &Context<'_>) -> Vec<String> {
    let life = flow.client.closed.map(|closed| closed.time.since(flow.first_seen));
    let unanswered = matches!(flow.outcome(), Outcome::Stalled | Outcome::Abandoned);
    let ends_in_time =
        |probe: &&&Probe| life.is_some_and(|life| life.abs_diff(probe.timeout) <= TIMEOUT_SLACK);
    let mut possible: Vec<&&Probe> =
        probes.iter().filter(|probe| unanswered && ends_in_time(probe)).collect();
    if possible.is_empty() {
        possible = probes.iter().collect();
    }
    if probes.len() > 1
        && let Some(period) = ctx.translations.rhythms(flow.orig.dst.socket()).period(flow, &possible)
    {
        possible.retain(|probe| probe.period == period);
    }
    let mut kinds: Vec<String> = possible.iter().map(|probe| probe.kind.to_string()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

fn probe_finding(
    flow: &Flow,
    pod: &Pod,
    probes: &[&Probe],
    ctx: &Context<'_>,
    task: Option<&Task>,
) -> Finding {
    let key = &pod.key;
    let how = match flow.outcome() {
        Outcome::Closed | Outcome::Established => "and was answered".to_owned(),
        Outcome::Reset(_) => "and ended by a RST, which is how such a connection may close".to_owned(),
        Outcome::Refused => "and was refused: the Pod does not listen there (yet)".to_owned(),
        Outcome::Pending => "and its end was not observed".to_owned(),
        _ => "and was not answered".to_owned(),
    };
    let failed = !matches!(
        flow.outcome(),
        Outcome::Closed | Outcome::Established | Outcome::Reset(_) | Outcome::Pending
    );
    let possible = possible_kinds(flow, probes, ctx);
    let kinds = possible.join(" or ");
    let port = flow.orig.dst.port();
    let specified = if probes.len() == 1 {
        format!("Pod {key} has a {kinds} probe on port {port}")
    } else {
        format!("Pod {key} has {} on port {port}", count(probes.len(), "probe"))
    };
    let mut finding = ctx
        .finding(Class::N1, format_args!("the kubelet's {kinds} probe of {key} connected {how}"))
        .confidence(if task.is_some() { Confidence::High } else { Confidence::Medium })
        .api(None, specified);
    if possible.len() > 1 {
        finding = finding.unobserved("which probe it is: they share the port");
    }
    match task {
        Some(task) => {
            finding = finding.node(None, format_args!("the sender is {} (pid {})", task.comm, task.pid));
        }
        None => finding = finding.unobserved("the program that sent it"),
    }
    if failed {
        finding = finding
            .now(&[action::DESCRIBE_PROBED_POD])
            .fill("POD_NAMESPACE", word(&key.namespace))
            .fill("POD", word(&key.name));
    }
    finding
}

/// The task, unless it is a kernel thread that happened to run.
fn sender(task: Option<&Task>) -> Option<&Task> {
    task.filter(|task| {
        let name = task.comm.text();
        task.pid != 0 && !SOFTIRQ.iter().any(|thread| name.starts_with(thread))
    })
}
