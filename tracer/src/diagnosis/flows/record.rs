//! Builds the record of a verdict from a finding.
//!
//! Owns the parts that all verdicts share: the flow's identity, the kernel's evidence, gaps, losses, and clean texts.

use std::{borrow::Cow, net::SocketAddr, sync::Arc};

use super::{
    Context, Finding, Lasting, Outline, case::Case, is_plain, resets, service_config::probed_ports,
    text::clean, timeline::kernel_evidence, verdict_time,
};
use crate::{
    class::{Class, Domain},
    cluster::{History, Key, Membership},
    diagnosis::finding::Statement,
    flow::{Decision, Flow},
    sighting::Hook,
    verdict::{EvidenceType, FlowRef, Mitigation, ServiceRef, Text, Verdict, VerdictKey, has_failed},
};

/// Metadata older than this, in seconds, may lack the explanation of the flow.
const OLD_METADATA_SECS: f64 = 30.0;

/// A finding on a flow, and what the flow went to.
pub(super) struct Ruling<'a> {
    flow: &'a Flow,
    ctx: &'a Context<'a>,
    /// `None` if it went to no port of a Service.
    case: Option<Case<'a>>,
    /// It went to the address of this Service, which does not have the port.
    without_port: Option<&'a Key>,
    finding: Finding,
}

impl<'a> Ruling<'a> {
    pub(super) fn of(case: Case<'a>, finding: Finding) -> Self {
        let Case { flow, ctx, .. } = case;
        let finding = lowered(with_gaps(finding, &case), flow, ctx);
        Self { flow, ctx, case: Some(case), without_port: None, finding }
    }

    /// It names the Service with the port's number, or the numbers of a traceroute.
    pub(super) fn without_port(
        flow: &'a Flow,
        ctx: &'a Context<'a>,
        finding: Finding,
        service: &'a Key,
    ) -> Self {
        Self { flow, ctx, case: None, without_port: Some(service), finding: lowered(finding, flow, ctx) }
    }

    pub(super) fn without_service(flow: &'a Flow, ctx: &'a Context<'a>, finding: Finding) -> Self {
        Self { flow, ctx, case: None, without_port: None, finding: lowered(finding, flow, ctx) }
    }

    fn service(&self) -> Option<ServiceRef> {
        if let Some(case) = &self.case {
            return Some(service_ref(&case.vip.service.key, case.vip.port.label()));
        }
        // All that one traceroute sends is one cause.
        let probed = probed_ports(self.flow).filter(|_| self.finding.class == Class::C5c);
        let port = probed.map_or_else(|| self.flow.orig.dst.port().to_string(), ToString::to_string);
        Some(service_ref(self.without_port?, port.into()))
    }

    /// A probe goes to the endpoint itself.
    fn is_probe(&self) -> bool {
        self.finding.class == Class::N1 && self.case.is_none()
    }

    fn decision(&self) -> Option<&'a Decision> {
        match &self.case {
            Some(case) => case.decision,
            None if self.is_probe() => None,
            None => self.flow.decision(self.ctx.node_netns),
        }
    }

    fn endpoint(&self) -> Option<SocketAddr> {
        match &self.case {
            Some(case) => case.endpoint,
            None if self.is_probe() => Some(self.flow.orig.dst.socket()),
            None => self.decision().and_then(Decision::endpoint),
        }
    }

    fn endpoint_pod(&self) -> Option<String> {
        let cluster = self.ctx.cluster;
        let (listed, at) = match &self.case {
            Some(case) => (case.membership.as_ref().and_then(Membership::state), case.decided),
            None => (None, self.flow.first_seen),
        };
        let listed = listed.and_then(|state| state.pod).map(|pod| &pod.key);
        let pod = listed.or_else(|| Some(&cluster.pod_by_ip(self.endpoint()?.ip(), at)?.key));
        pod.map(|pod| clean(pod.text()))
    }

    /// The flows that can share the verdict.
    pub(super) fn lasting(&self) -> Option<Lasting> {
        let case = self.case.as_ref()?;
        let lasts = self.finding.class == Class::Ok
            && self.finding.said().against.is_empty()
            && case.endpoint.is_some()
            && !case.is_ahead
            && (case.is_ready() || case.membership == Some(Membership::Unknown))
            && is_plain(self.flow);
        lasts.then(|| Lasting { service: case.vip.service.key.clone(), via: case.vip.via })
    }

    pub(super) fn outline(&self) -> Outline {
        let Finding { class, confidence, severity, behind, .. } = self.finding;
        let has_failed = has_failed(class, severity);
        let key = VerdictKey { class, has_failed, service: self.service(), endpoint: self.endpoint() };
        Outline { key, confidence, severity, behind }
    }

    pub(super) fn verdict(self) -> Verdict {
        let Self { flow, ctx, .. } = self;
        let (decision, service, endpoint, is_probe) =
            (self.decision(), self.service(), self.endpoint(), self.is_probe());
        let endpoint_pod = self.endpoint_pod();
        let finding = self.finding.in_mode(ctx.node.mode);
        let mut mitigation = finding.mitigation(|name| value(name, flow, ctx, service.as_ref(), endpoint));
        let cross_reference = finding.cross_reference();
        let Finding { class, domain, confidence, severity, .. } = finding;
        let Statement { mut detail, evidence: of_rule, mut against, unobserved: mut unseen, .. } =
            finding.into_said();
        // The domain is our own text, and what joins it to the detail is no ASCII, for which the check is slow.
        clean_in_place(&mut detail);
        let root_cause = Finding::root_cause_of(domain, detail);
        let mut evidence = kernel_evidence(flow, decision);
        evidence.extend(of_rule);
        evidence.sort_by_key(|evidence| evidence.time);
        evidence
            .iter_mut()
            .chain(&mut against)
            .map(|evidence| &mut evidence.content)
            .chain(&mut unseen)
            .chain(mitigation.steps.iter_mut().map(|step| &mut step.text))
            .for_each(clean_in_place);
        Verdict {
            time: verdict_time(flow),
            class,
            root_cause,
            domain,
            confidence,
            severity,
            service,
            flow: FlowRef {
                protocol: flow.orig.protocol.text(),
                client: flow.orig.src.socket(),
                vip: (!is_probe).then(|| flow.orig.dst.socket()),
                endpoint,
                client_pod: client_pod(flow, ctx.cluster),
                endpoint_pod,
                node: ctx.node_name.map(|name| clean(name.to_owned())),
                started: flow.first_seen,
            },
            evidence,
            against,
            unseen,
            changes_around: Vec::new(),
            changes_left_out: 0,
            lost_events: flow.lost,
            kube_proxy_mode: ctx.node.mode.map(|mode| mode.as_str().into()),
            kube_proxy_version: ctx.node.version.as_deref().map(|version| clean(version.to_owned())),
            metadata_age: ctx.metadata_age.filter(|age| age.is_finite()),
            mitigation: Mitigation {
                immediate: clean(mitigation.immediate),
                long_term: clean(mitigation.long_term),
                ..mitigation
            },
            cross_reference,
        }
    }
}

/// The Service port as a record names it.
pub(crate) fn service_ref(Key { namespace, name }: &Key, port: Arc<str>) -> ServiceRef {
    ServiceRef { namespace: clean(Arc::clone(namespace)), name: clean(Arc::clone(name)), port: clean(port) }
}

pub(super) fn client_pod(flow: &Flow, cluster: &History) -> Option<String> {
    cluster.pod_by_ip(flow.orig.src.ip(), flow.first_seen).map(|pod| clean(pod.key.text()))
}

fn add_gap(case: &Case<'_>, finding: &mut Finding, hook: Hook, cost: &str) {
    if !case.has_hook(hook) {
        finding.note_unobserved(format_args!("{cost}: this trace has no hook at {}", hook.symbol()));
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
        finding.note_unobserved(arrival);
    }
    add_gap(case, finding, Hook::SockEstablished, "when the sockets were established");
    add_gap(case, finding, Hook::SockClosed, "when the sockets were closed");
    // A connection that is not tracked begins with its socket's first change.
    if case.flow.partial && finding.class != Class::N11 {
        finding.note_unobserved("the beginning of the flow: the trace began later, or its event was lost");
    }
}

/// Names the observations that the trace does not have, and lowers the confidence where the verdict rests on them.
fn with_gaps(mut finding: Finding, case: &Case<'_>) -> Finding {
    let broken = !matches!(finding.domain, Domain::Normal);
    if finding.has_words() && (finding.class != Class::Ok || case.decision.is_none()) {
        add_gaps(case, &mut finding);
    }
    if broken && case.flow.partial && case.decision.is_none() {
        finding.doubt();
    }
    if let Some(dataplane) = case.other_dataplane().filter(|_| finding.class.is_fault()) {
        finding.doubt();
        finding.note_against(
            EvidenceType::Node,
            case.ctx.node.read_at(),
            format_args!(
                "{dataplane} may serve Services here, and the rules of judgement are those of kube-proxy"
            ),
        );
    }
    finding
}

/// Lowers the confidence by one step for each thing that the trace itself missed, and names it. What was observed stays
/// the evidence: only the confidence that nothing else happened is less. A healthy verdict rests on that alone, and so does
/// one that excludes other causes because no event shows them.
fn lowered(mut finding: Finding, flow: &Flow, ctx: &Context<'_>) -> Finding {
    debug_assert!(super::gives().any(|class| class == finding.class), "no rule declares {}", finding.class);
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
        finding.note_unobserved(lost);
    }
    match ctx.metadata_age {
        Some(age) if age > OLD_METADATA_SECS => {
            finding.note_unobserved(format_args!(
                "changes of the last {age:.0} s: the API server has sent nothing since"
            ));
            if !healthy {
                finding.doubt();
            }
        }
        Some(_) => {}
        None => {
            finding.note_unobserved("how fresh the cluster's metadata is");
            if !healthy {
                finding.doubt();
            }
        }
    }
    if ctx.node_netns.is_none() && finding.class.is_fault() {
        finding.doubt();
        finding.note_unobserved(
            "the network namespace of kube-proxy's rules: run viptrace in the node's own namespace",
        );
    }
    finding
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
