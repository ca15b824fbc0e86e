//! Healthy flows, and look-alikes of faults: probes (N1), client aborts (N4), terminating endpoints (N8).

use std::time::Duration;

use super::{
    Case, Context, Finding, datagrams,
    iptables_sync::answered_elsewhere,
    text::{count, length, word},
};
use crate::{
    class::{Class, Confidence, Severity, action},
    cluster::{
        Membership, Via,
        model::{Pod, Probe},
    },
    flow::{Decision, Flow, Outcome, ResetBy},
    sighting::{Hook, Task},
    verdict::EvidenceType,
};

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
    if task.is_some_and(|task| !KUBELETS.contains(&&*task.comm)) {
        return None;
    }
    Some(probe_finding(flow, pod, &probes, task))
}

/// How far the end of a failed probe may lie from its timeout.
const TIMEOUT_SLACK: Duration = Duration::from_millis(250);

/// The names of the probes that this connection can be: a probe without an answer ends at its timeout, which excludes
/// probes with another one. (The connection of an answered probe has the same form whatever its kind.)
fn possible_kinds(flow: &Flow, probes: &[&Probe]) -> String {
    let life = flow.client.closed.map(|closed| closed.time.since(flow.first_seen));
    let unanswered = matches!(flow.outcome(), Outcome::Stalled | Outcome::Abandoned);
    let ends_in_time =
        |probe: &&&Probe| life.is_some_and(|life| life.abs_diff(probe.timeout) <= TIMEOUT_SLACK);
    let mut possible: Vec<&&Probe> =
        probes.iter().filter(|probe| unanswered && ends_in_time(probe)).collect();
    if possible.is_empty() {
        possible = probes.iter().collect();
    }
    let mut kinds: Vec<String> = possible.iter().map(|probe| probe.kind.to_string()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds.join(" or ")
}

fn probe_finding(flow: &Flow, pod: &Pod, probes: &[&Probe], task: Option<&Task>) -> Finding {
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
    let kinds = possible_kinds(flow, probes);
    let port = flow.orig.dst.port();
    let specified = if probes.len() == 1 {
        format!("Pod {key} has a {kinds} probe on port {port}")
    } else {
        format!("Pod {key} has {} on port {port}", count(probes.len(), "probe"))
    };
    let mut finding =
        Finding::new(Class::N1, format!("the kubelet's {kinds} probe of {key} connected {how}"))
            .confidence(if task.is_some() { Confidence::High } else { Confidence::Medium })
            .api(None, specified);
    if kinds.contains(" or ") {
        finding = finding.unobserved("which probe it is: they share the port");
    }
    match task {
        Some(task) => finding = finding.node(None, format!("the sender is {} (pid {})", task.comm, task.pid)),
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
    task.filter(|task| task.pid != 0 && !SOFTIRQ.iter().any(|thread| task.comm.starts_with(thread)))
}

/// The flow is healthy, or one of its ends broke it. `None` if the flow failed and nothing here explains it.
pub(super) fn judge(case: &Case<'_>) -> Option<Finding> {
    if is_own_service(case) {
        return Some(own_service(case));
    }
    let finding = match case.outcome {
        Outcome::Pending if !case.flow.is_tcp() => datagrams::sent(case),
        Outcome::Closed | Outcome::Established | Outcome::Pending => healthy(case),
        Outcome::Reset(ResetBy::Client | ResetBy::Endpoint) if keepalive_timeout(case).is_some() => {
            idle(case)
        }
        Outcome::Reset(ResetBy::Client) if lost_a_race(case.flow) => losing_attempt(case),
        Outcome::Reset(ResetBy::Client) => {
            client_abort(case, "the client ended an answered connection with a RST")
        }
        Outcome::Abandoned if case.decision.is_some() && !case.flow.partial => {
            client_abort(case, "the connect ended within a moment, before an answer came")
                .unobserved("whether the client gave up or an ICMP error from another host ended it")
        }
        // The dataplane carried it to the endpoint and back; only the application knows the meaning of the RST.
        Outcome::Reset(by) => {
            let reset =
                case.flow.client.reset_received().or(case.flow.server.reset_sent()).map(|reset| reset.time);
            let who = if by == ResetBy::Endpoint { "the endpoint" } else { "an end that was not observed" };
            healthy(case).against(
                EvidenceType::Kernel,
                reset,
                format!(
                    "after it was answered the connection was reset by {who}: check the application there"
                ),
            )
        }
        _ => return None,
    };
    Some(finding)
}

/// Whether this node has the cluster IP as its own address and exempts it from conntrack, as `NodeLocal DNSCache` does with
/// the address of kube-dns on its dummy interface (cluster/addons/dns/nodelocaldns: NOTRACK in the raw table). In ipvs
/// mode kube-ipvs0 has every cluster IP.
fn is_own_service(case: &Case<'_>) -> bool {
    let node = case.ctx.node;
    case.vip.via == Via::ClusterIp
        && case.flow.decisions.is_empty()
        && case.has_hook(Hook::Confirm)
        && !case.flow.partial
        && !case.is_ipvs()
        && node.mode.is_some()
        && node.is_own_address(case.vip.addr.ip()) == Some(true)
}

/// N11; unknown if the connection failed.
/// Mechanism: a program on this node serves the Service's address itself, and a rule exempts it from conntrack: no NAT, no
/// endpoint.
/// For: the address is this node's own, and the flow left no conntrack entry.
/// Against: nothing in this trace shows the program's own requests to the endpoints.
fn own_service(case: &Case<'_>) -> Finding {
    let address = case.vip.addr.ip();
    let by = format!("this node has {address} as its own address");
    if case.failed() {
        return Finding::new(
            Class::Unknown,
            format!("{} is served on this node itself (NodeLocal DNSCache does so), and that failed", case.name()),
        )
        .confidence(Confidence::Low)
        .node(case.ctx.node.read_at(), by)
        .unobserved("why: the log of the program that listens there, `kubectl -n kube-system logs -l k8s-app=node-local-dns`");
    }
    Finding::new(
        Class::N11,
        format!("{} is served on this node itself, without NAT: NodeLocal DNSCache does so", case.name()),
    )
    .confidence(Confidence::Medium)
    .node(case.ctx.node.read_at(), by)
    .unobserved("which endpoint the program on this node asks")
}

fn healthy(case: &Case<'_>) -> Finding {
    let endpoint = case.endpoint_name();
    let pending = case.outcome == Outcome::Pending;
    let conditions = case.member().map(|member| member.conditions);
    let terminating = conditions.is_some_and(|it| !it.ready && it.serving)
        && case.usable().is_some_and(|usable| usable.terminating);
    let mut finding = if terminating {
        Finding::new(
            Class::N8,
            format!("{} has no ready endpoint; {endpoint} serves while it terminates", case.name()),
        )
    } else {
        let detail = match (case.endpoint, pending) {
            (Some(_), false) => format!("{} was served by {endpoint}", case.name()),
            (Some(_), true) => {
                format!("{} was sent to {endpoint}, and no failure was observed", case.name())
            }
            (None, false) => format!("{} answered; the endpoint was not observed", case.name()),
            (None, true) => {
                format!("no failure of a connection to {} was observed", case.name())
            }
        };
        Finding::new(Class::Ok, detail)
    };
    finding = finding.confidence(match (case.endpoint, pending) {
        (Some(_), false) => Confidence::High,
        (None, false) => Confidence::Medium,
        (_, true) => Confidence::Low,
    });
    if pending {
        finding = finding.unobserved(if case.has_hook(Hook::SockState) {
            "the answer: neither end's socket was observed on this node"
        } else {
            "the answer: this trace does not follow socket states"
        });
    }
    if matches!(case.membership, Some(Membership::Unknown | Membership::NeverSeen { .. })) {
        finding = finding.unobserved("whether the endpoint was listed at that time");
    }
    if let Some(Membership::Left { at, .. }) = &case.membership {
        finding = finding.against(
            EvidenceType::Api,
            Some(*at),
            format!("the endpoint had left {} before: within the grace", length(case.age(*at))),
        );
    }
    if let Some(what) = answered_elsewhere(case) {
        finding = finding.against(EvidenceType::Kernel, None, what);
    }
    if let Some((time, what)) = super::ipvs::lost_packet(case) {
        finding = finding.against(EvidenceType::Kernel, Some(time), what).related(&[Class::C14]);
    }
    if let Some(what) = super::ipvs::endpoint_unseen(case) {
        finding = finding.unobserved(what);
    }
    let repeats = case.flow.client.syn_retransmits();
    if repeats.is_seen() {
        finding = finding.against(
            EvidenceType::Kernel,
            Some(repeats.first),
            format!(
                "the client had to retransmit its SYN: the connection began {} late",
                length(case.ended().min(repeats.last).since(case.flow.first_seen))
            ),
        );
    }
    finding
}

/// The kernel's name for a connection given up because keepalive probes were not answered: since 6.12 (commit
/// 0a399892a596, "tcp: rstreason: introduce `SK_RST_REASON_TCP_KEEPALIVE_TIMEOUT` for active reset"). Older kernels give
/// no reason for a RST that a socket sends of its own: the flow is N4.
const KEEPALIVE: &str = "TCP_KEEPALIVE_TIMEOUT";

/// The end that gave up an idle connection.
fn keepalive_timeout(case: &Case<'_>) -> Option<&'static str> {
    let gave_up = |end: &crate::flow::SocketEnd| {
        end.reset_sent().is_some_and(|reset| reset.reason.as_deref() == Some(KEEPALIVE))
    };
    if gave_up(&case.flow.client) { Some("client") } else { gave_up(&case.flow.server).then_some("endpoint") }
}

/// N5.
/// Mechanism: a connection was idle, its keepalive probes were not answered, and the end that sent them gave up.
/// For: the kernel's reason for the RST. Against: the RST does not show why there was no answer (a node that died, an
/// entry that timed out on the path).
fn idle(case: &Case<'_>) -> Finding {
    let who = keepalive_timeout(case).unwrap_or("client");
    Finding::new(
        Class::N5,
        format!(
            "the {who} gave up an idle connection to {}: its keepalive probes were not answered",
            case.name()
        ),
    )
    .severity(Severity::Low)
    .confidence(Confidence::High)
    .unobserved("why the other end no longer answered")
}

/// How soon a client that tries several addresses drops the losers (RFC 8305 starts the next after 250 ms).
const RACE: Duration = Duration::from_millis(300);

/// Whether the client reset a connection at once, before any byte was exchanged.
fn lost_a_race(flow: &Flow) -> bool {
    let end = &flow.client;
    // An acknowledged SYN counts as a byte.
    let wordless = end.bytes_received == 0 && end.bytes_acked <= 1;
    let life = end.closed.map(|closed| closed.time.since(flow.first_seen));
    !flow.partial && wordless && end.established.is_some() && life.is_some_and(|life| life <= RACE)
}

/// N17.
fn losing_attempt(case: &Case<'_>) -> Finding {
    Finding::new(
        Class::N17,
        format!("the client reset its connection to {} at once, before it exchanged a byte", case.name()),
    )
    .confidence(Confidence::Medium)
    .unobserved("the reason: clients that try several addresses at once drop the losers like this, and port checks end like this")
    .related(&[Class::N2])
}

/// N4.
fn client_abort(case: &Case<'_>, what: &str) -> Finding {
    let reason = case.flow.client.reset_sent().and_then(|reset| reset.reason.as_deref());
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let finding = Finding::new(Class::N4, format!("{what}{reason}"));
    let nameless = reason.is_empty() && case.flow.client.reset_sent().is_some();
    let finding = if nameless {
        finding
            .unobserved(
                "the reason of the RST, which kernels give since 6.12: keepalive may have given up (N5)",
            )
            .related(&[Class::N5])
    } else {
        finding
    };
    finding.confidence(if case.outcome == Outcome::Abandoned { Confidence::Low } else { Confidence::High })
}
