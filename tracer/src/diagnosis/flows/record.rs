//! Builds the record of a verdict from a finding.
//!
//! Owns the parts that all verdicts share: the flow's identity, the kernel's evidence, gaps, losses, and clean texts.

use std::{borrow::Cow, net::SocketAddr, sync::Arc};

use super::{Context, Finding, case::Case, resets, text::clean, timeline::kernel_evidence, verdict_time};
use crate::{
    class::{Class, Domain},
    cluster::{History, Key, Membership},
    flow::{Decision, Flow},
    sighting::Hook,
    verdict::{EvidenceType, FlowRef, Mitigation, ServiceRef, Text, Verdict},
};

/// Metadata older than this, in seconds, may lack the explanation of the flow.
const OLD_METADATA_SECS: f64 = 30.0;

pub(super) fn of(case: &Case<'_>, mut finding: Finding) -> Verdict {
    let broken = !matches!(finding.domain, Domain::Normal);
    if finding.class != Class::Ok || case.decision.is_none() {
        add_gaps(case, &mut finding);
    }
    if broken && case.flow.partial && case.decision.is_none() {
        finding.doubt();
    }
    if let Some(dataplane) = case.other_dataplane().filter(|_| finding.class.is_fault()) {
        finding.doubt();
        finding = finding.against(
            EvidenceType::Node,
            case.ctx.node.read_at(),
            format!(
                "{dataplane} may serve Services here, and the rules of judgement are those of kube-proxy"
            ),
        );
    }
    let service = service_ref(&case.vip.service.key, case.vip.port.label());
    let listed = case.membership.as_ref().and_then(Membership::state).and_then(|state| state.pod);
    let endpoint_pod = listed.map(|pod| &pod.key).or_else(|| {
        let holder = case.ctx.cluster.pod_by_ip(case.endpoint?.ip(), case.decided)?;
        Some(&holder.key)
    });
    let reference = FlowRef {
        vip: Some(case.flow.orig.dst.socket()),
        endpoint: case.endpoint,
        endpoint_pod: endpoint_pod.map(|pod| clean(pod.text())),
        ..reference(case.flow, case.ctx)
    };
    build(case.flow, case.ctx, case.decision, Some(service), reference, finding)
}

/// The verdict on a flow to a port that the Service does not have: it names the Service with the port's number.
pub(super) fn without_port(flow: &Flow, ctx: &Context<'_>, finding: Finding, service: &Key) -> Verdict {
    let service = service_ref(service, flow.orig.dst.port().to_string().into());
    not_to_a_port(flow, ctx, finding, Some(service))
}

/// The Service port as a record names it.
pub(crate) fn service_ref(Key { namespace, name }: &Key, port: Arc<str>) -> ServiceRef {
    ServiceRef { namespace: clean(Arc::clone(namespace)), name: clean(Arc::clone(name)), port: clean(port) }
}

pub(super) fn without_service(flow: &Flow, ctx: &Context<'_>, finding: Finding) -> Verdict {
    not_to_a_port(flow, ctx, finding, None)
}

fn not_to_a_port(flow: &Flow, ctx: &Context<'_>, finding: Finding, service: Option<ServiceRef>) -> Verdict {
    let decision = flow.decision(ctx.node_netns);
    let probe = finding.class == Class::N1;
    let endpoint = if probe { Some(flow.orig.dst.socket()) } else { decision.and_then(Decision::endpoint) };
    let reference = FlowRef {
        vip: (!probe).then(|| flow.orig.dst.socket()),
        endpoint,
        endpoint_pod: endpoint
            .and_then(|endpoint| ctx.cluster.pod_by_ip(endpoint.ip(), flow.first_seen))
            .map(|pod| clean(pod.key.text())),
        ..reference(flow, ctx)
    };
    build(flow, ctx, decision.filter(|_| !probe), service, reference, finding)
}

fn reference(flow: &Flow, ctx: &Context<'_>) -> FlowRef {
    FlowRef {
        protocol: flow.orig.protocol.text(),
        client: flow.orig.src.socket(),
        vip: None,
        endpoint: None,
        client_pod: client_pod(flow, ctx.cluster),
        endpoint_pod: None,
        node: ctx.node_name.map(|name| clean(name.to_owned())),
        started: flow.first_seen,
    }
}

pub(super) fn client_pod(flow: &Flow, cluster: &History) -> Option<String> {
    cluster.pod_by_ip(flow.orig.src.ip(), flow.first_seen).map(|pod| clean(pod.key.text()))
}

fn add_gap(case: &Case<'_>, finding: &mut Finding, hook: Hook, cost: &str) {
    if !case.has_hook(hook) {
        finding.unobserved.push(format!("{cost}: this trace has no hook at {}", hook.symbol()).into());
    }
}

fn add_gaps(case: &Case<'_>, finding: &mut Finding) {
    let mut gap = |hook, cost| add_gap(case, finding, hook, cost);
    gap(Hook::Confirm, "NAT's decision");
    if case.failed() {
        gap(Hook::KfreeSkb, "the place of a drop");
        gap(case.refusal_hook(), "whether a rule refused it");
        if case.is_ipvs() {
            gap(Hook::IpVsConnExpire, "whether IPVS dropped it with an old entry");
        }
        gap(Hook::TcpSendReset, "the sender of a RST");
        gap(Hook::TcpReceiveReset, "whether the client received a RST");
        gap(Hook::TcpRetransmit, "retransmitted SYNs");
    }
    if let Some(arrival) = resets::arrival(case) {
        finding.unobserved.push(arrival.into());
    }
    add_gap(case, finding, Hook::SockEstablished, "when the sockets were established");
    add_gap(case, finding, Hook::SockClosed, "when the sockets were closed");
    if case.flow.partial {
        finding
            .unobserved
            .push("the beginning of the flow: the trace began later, or its event was lost".into());
    }
}

/// Lowers the confidence by one step for each thing that the trace itself missed, and names it. What was observed stays
/// the evidence: only the confidence that nothing else happened is less. A healthy verdict rests on that alone, and so does
/// one that excludes other causes because no event shows them.
fn lowered(mut finding: Finding, flow: &Flow, ctx: &Context<'_>) -> Finding {
    let healthy = matches!(finding.class, Class::Ok | Class::N8);
    if flow.lost > 0 {
        let lost = match flow.lost {
            _ if flow.has_uncounted_loss => {
                "an unknown number of events is missing: a part of the recording is damaged or not there"
                    .to_owned()
            }
            1 => "1 event was lost while this flow was watched".to_owned(),
            lost => format!("{lost} events were lost while this flow was watched"),
        };
        if healthy || finding.rests_on_absence {
            finding = finding.into_unknown(&lost);
        } else {
            finding.doubt();
        }
        finding.unobserved.push(lost.into());
    }
    match ctx.metadata_age {
        Some(age) if age > OLD_METADATA_SECS => {
            let missed = format!("changes of the last {age:.0} s: the API server has sent nothing since");
            finding.unobserved.push(missed.into());
            if !healthy {
                finding.doubt();
            }
        }
        Some(_) => {}
        None => {
            finding.unobserved.push("how fresh the cluster's metadata is".into());
            if !healthy {
                finding.doubt();
            }
        }
    }
    if ctx.node_netns.is_none() && finding.class.is_fault() {
        finding.doubt();
        finding.unobserved.push(
            "the network namespace of kube-proxy's rules: run viptrace in the node's own namespace".into(),
        );
    }
    finding
}

fn build(
    flow: &Flow,
    ctx: &Context<'_>,
    decision: Option<&Decision>,
    service: Option<ServiceRef>,
    reference: FlowRef,
    mut finding: Finding,
) -> Verdict {
    finding = lowered(finding, flow, ctx);
    debug_assert!(super::gives().any(|class| class == finding.class), "no rule declares {}", finding.class);
    finding = finding.in_mode(ctx.node.mode);
    let mitigation = finding.mitigation(|name| value(name, flow, ctx, service.as_ref(), reference.endpoint));
    let cross_reference = finding.cross_reference();
    // The domain is our own text, and what joins it to the detail is no ASCII, for which the check is slow.
    clean_in_place(&mut finding.detail);
    let root_cause = finding.root_cause();
    let mut evidence = kernel_evidence(flow, decision);
    evidence.append(&mut finding.evidence);
    evidence.sort_by_key(|evidence| evidence.time);
    let (mut against, mut unseen) = (finding.against, finding.unobserved);
    evidence
        .iter_mut()
        .chain(&mut against)
        .map(|evidence| &mut evidence.content)
        .chain(&mut unseen)
        .for_each(clean_in_place);
    Verdict {
        time: verdict_time(flow),
        class: finding.class,
        root_cause,
        domain: finding.domain,
        confidence: finding.confidence,
        severity: finding.severity,
        service,
        flow: reference,
        evidence,
        against,
        unseen,
        changes_around: Vec::new(),
        changes_left_out: 0,
        lost_events: flow.lost,
        kube_proxy_mode: ctx.node.mode.map(|mode| mode.as_str().into()),
        kube_proxy_version: ctx.node.version.clone().map(clean),
        metadata_age: ctx.metadata_age.filter(|age| age.is_finite()),
        mitigation: Mitigation {
            immediate: clean(mitigation.immediate),
            long_term: clean(mitigation.long_term),
            ..mitigation
        },
        cross_reference,
    }
}

/// The record's value for a placeholder of an action.
fn value<'v>(
    name: &str,
    flow: &Flow,
    ctx: &Context<'v>,
    service: Option<&'v ServiceRef>,
    endpoint: Option<SocketAddr>,
) -> Option<Cow<'v, str>> {
    let (client, asked) = (flow.orig.src, flow.orig.dst);
    Some(match name {
        "NAMESPACE" => Cow::Borrowed(&*service?.namespace),
        "SERVICE" => Cow::Borrowed(&*service?.name),
        "NODE" => Cow::Borrowed(ctx.node_name?),
        "PROTOCOL" => Cow::Owned(flow.orig.protocol.to_string().to_ascii_lowercase()),
        "VIP" => Cow::Owned(asked.ip().to_string()),
        "PORT" => Cow::Owned(asked.port().to_string()),
        "VIP_PORT" => Cow::Owned(asked.to_string()),
        "CLIENT_IP" => Cow::Owned(client.ip().to_string()),
        "CLIENT_PORT" => Cow::Owned(client.port().to_string()),
        "ENDPOINT" => Cow::Owned(endpoint?.to_string()),
        "ENDPOINT_IP" => Cow::Owned(endpoint?.ip().to_string()),
        _ => return None,
    })
}

/// A fixed sentence is clean.
fn clean_in_place(text: &mut Text) {
    if let Text::Owned(written) = text {
        *written = clean(std::mem::take(written));
    }
}
