//! Verdicts: each flow joined with the state of Kubernetes and the node at that moment.
//!
//! One file for each root-cause domain, with each rule in the terms of the failure catalogue. Owns the order of the rules
//! (the catalogue's section 3: the end of a packet's path counts, not the first event) and the resulting record. Does no
//! I/O and has no clock except the flow's.

mod backend_refused;
mod behind;
mod bounded;
mod case;
mod conntrack;
mod datagrams;
mod foreign_rules;
mod hairpin;
mod health_checks;
mod host_kernel;
mod inquiry;
mod iptables_sync;
mod ipvs;
mod neighbours;
mod network_path;
mod network_policy;
mod no_endpoints;
mod normal;
mod notes;
mod probes;
mod record;
mod resets;
mod service_config;
mod sidecar;
mod stale_endpoints;
mod timeline;
mod translations;
mod withdrawal;

use std::time::Duration;

use case::Case;
use record::Ruling;

use super::finding::{Finding, Say, Words};

pub(crate) use self::{behind::cause_behind, record::service_ref};
pub use self::{
    inquiry::Inquiry,
    neighbours::other_node,
    translations::{OtherFlows, Translations},
};
use crate::{
    class::{Class, Confidence, Severity},
    cluster::{Address, History, Key, Membership, Via},
    flow::{Flow, Outcome},
    net::Netns,
    node::Snapshot,
    sighting::Hook,
    text,
    time::Timestamp,
    verdict::{Verdict, VerdictKey},
};

/// A part of a trace in which a hook was not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HookGap {
    pub hook: Hook,
    /// `None` for the beginning of the trace.
    pub from: Option<Timestamp>,
    /// `None` for the end of the trace.
    pub until: Option<Timestamp>,
}

impl HookGap {
    /// Whether an event of a flow that lived from `begin` to `end` may have been missed.
    pub fn concerns(&self, begin: Timestamp, end: Timestamp) -> bool {
        self.until.is_none_or(|until| begin < until) && self.from.is_none_or(|from| from <= end)
    }
}

/// The input of a verdict besides the flow.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub cluster: &'a History,
    pub node: &'a Snapshot,
    /// The node that the trace runs on.
    pub node_name: Option<&'a str>,
    /// The namespace in which kube-proxy writes its rules; with `None`, any namespace's decision counts.
    pub node_netns: Option<Netns>,
    /// Hooks that this kernel or this trace does not have.
    pub missing_hooks: &'a [Hook],
    /// Hooks that were not attached in a part of the trace.
    pub hook_gaps: &'a [HookGap],
    /// The kernel gives a reason for drops. Otherwise drops of established connections are not observed.
    pub drop_reasons: bool,
    /// Facts about this node's rules from other flows.
    pub translations: &'a Translations,
    /// The grace: the time that kube-proxy may take to write a change.
    pub grace: Duration,
    /// The time of the judgement: the metadata up to it is known, as far as it has arrived.
    pub now: Timestamp,
    /// Seconds since the API server last sent data; `None` without metadata.
    pub metadata_age: Option<f64>,
    /// Whether findings have sentences.
    pub words: Words,
}

/// The part of a [`Context`] that knows no other flows: the cluster and the node.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    pub cluster: &'a History,
    pub node: &'a Snapshot,
    /// As in [`Context`].
    pub node_name: Option<&'a str>,
    pub node_netns: Option<Netns>,
}

impl<'a> Surroundings<'a> {
    /// The meaning of the address that the client connected to, at a moment.
    fn address(&self, flow: &Flow, at: Timestamp) -> Address<'a> {
        self.cluster.address(flow.orig.dst.socket(), flow.orig.protocol, at)
    }

    /// Whether this namespace is known, and is not that of kube-proxy's rules.
    fn is_elsewhere(&self, netns: Netns) -> bool {
        self.node_netns.is_some_and(|node| netns != node && netns != Netns::default())
    }
}

impl<'a> Context<'a> {
    pub const fn surroundings(&self) -> Surroundings<'a> {
        let Self { cluster, node, node_name, node_netns, .. } = *self;
        Surroundings { cluster, node, node_name, node_netns }
    }

    fn finding(&self, class: Class, detail: impl Say) -> Finding {
        Finding::in_words(self.words, class, detail)
    }
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("node_name", &self.node_name)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// The name of a rule, which is its path, and every class that it can return.
struct Named {
    name: &'static str,
    gives: &'static [Class],
}

impl Named {
    fn admits(&self, class: Class, omits: &impl Fn(&str, Class) -> bool) -> bool {
        debug_assert!(self.gives.contains(&class), "{} does not declare {class}", self.name);
        !omits(self.name, class)
    }

    fn admit(&self, finding: Option<Finding>, omits: &impl Fn(&str, Class) -> bool) -> Option<Finding> {
        finding.filter(|finding| self.admits(finding.class, omits))
    }
}

/// A rule of the diagnosis.
struct FlowRule {
    named: Named,
    judge: fn(&Case<'_>) -> Option<Finding>,
}

impl FlowRule {
    fn apply(&self, case: &Case<'_>, omits: &impl Fn(&str, Class) -> bool) -> Option<Finding> {
        self.named.admit((self.judge)(case), omits)
    }
}

macro_rules! rule {
    ($judge:path, $gives:expr $(,)?) => {
        FlowRule { named: Named { name: stringify!($judge), gives: $gives }, judge: $judge }
    };
}

/// The first rule that applies explains the flow.
const RULES: [FlowRule; 48] = [
    rule!(conntrack::table_full, &[Class::C16]),
    rule!(conntrack::insertion_failed, &[Class::C17, Class::C17a]),
    rule!(stale_endpoints::stale_entry, &[Class::C8]),
    rule!(resets::after_invalid, &[Class::C18]),
    rule!(conntrack::rerouted, &[Class::C34]),
    rule!(normal::outlived_endpoint, &[Class::N5, Class::N9]),
    rule!(resets::stray, &[Class::N16]),
    rule!(resets::midstream, &[Class::C19, Class::N9, Class::C7]),
    rule!(resets::entry_gone, &[Class::N5, Class::C19]),
    rule!(host_kernel::reverse_path, &[Class::C32]),
    rule!(host_kernel::not_forwarded, &[Class::C32]),
    rule!(host_kernel::too_big, &[Class::C33]),
    // Names the setting behind the effect that the next rule observes.
    rule!(ipvs::reply_elsewhere, &[Class::C21]),
    rule!(resets::answered_directly, &[Class::C31]),
    // Another node's rules on this machine (kind) refuse in their own namespace, as the next rule's firewalls do.
    rule!(no_endpoints::refused, &[Class::C20, Class::N19]),
    rule!(network_policy::prohibited, &[Class::C30]),
    rule!(service_config::left_out, &[Class::C5d]),
    rule!(service_config::source_ranges, &[Class::C23]),
    rule!(ipvs::no_destination, &[Class::C12, Class::C21, Class::C22, Class::C5]),
    rule!(iptables_sync::refused, &[Class::C4, Class::C5]),
    rule!(health_checks::judge, &[Class::N2]),
    rule!(service_config::no_local_endpoint, &[Class::C21, Class::C22]),
    rule!(ipvs::not_scheduled, &[Class::C12]),
    rule!(foreign_rules::chose, &[Class::C3, Class::C10]),
    rule!(ipvs::pinned, &[Class::C24]),
    rule!(stale_endpoints::stale, &[Class::C6, Class::C5]),
    rule!(ipvs::late_close, &[Class::N5, Class::N9]),
    rule!(ipvs::dead_destination, &[Class::C13]),
    rule!(ipvs::entry_expired, &[Class::C15]),
    rule!(network_policy::dropped, &[Class::C30]),
    rule!(network_policy::dropped_without_reason, &[Class::C30]),
    rule!(network_policy::queued, &[Class::C30]),
    rule!(no_endpoints::unanswered, &[Class::C20, Class::N19]),
    rule!(service_config::node_port_not_here, &[Class::C26]),
    rule!(service_config::forwarded_by_policy, &[Class::C21]),
    rule!(
        iptables_sync::untranslated,
        &[Class::C1, Class::C5, Class::C5b, Class::C5e, Class::C11, Class::Unknown]
    ),
    rule!(stale_endpoints::departing, &[Class::C5]),
    rule!(stale_endpoints::removed_meanwhile, &[Class::N9, Class::C7]),
    rule!(backend_refused::refused, &[Class::C28]),
    rule!(resets::dropped_as_invalid, &[Class::C18b]),
    rule!(network_policy::answer_dropped, &[Class::C30]),
    rule!(network_policy::connection_dropped, &[Class::C30]),
    rule!(network_path::prohibited_there, &[Class::C30]),
    rule!(host_kernel::only_large_ones, &[Class::C33]),
    rule!(network_path::client_left, &[Class::Ok]),
    rule!(network_path::silent, &[Class::C29, Class::C31]),
    rule!(conntrack::clash_resolved, &[Class::N10]),
    rule!(
        normal::judge,
        &[Class::Ok, Class::N4, Class::N5, Class::N8, Class::N11, Class::N17, Class::N20, Class::Unknown],
    ),
];

/// The rules of a flow to an address that is not a Service port, and of an attempt before the last one.
const PROBE: Named = Named { name: "probes::probe", gives: &[Class::N1] };
const UNALLOCATED: Named = Named { name: "service_config::unallocated", gives: &[Class::C5c] };
const UNKNOWN_PORT: Named = Named { name: "service_config::unknown_port", gives: &[Class::C5c] };
const GONE: Named = Named { name: "service_config::gone", gives: &[Class::C5c, Class::C6, Class::C27] };
const STALE_ATTEMPT: Named =
    Named { name: "stale_endpoints::stale_attempt", gives: &[Class::C3, Class::C6, Class::C10] };
const WITHOUT_CASE: [&Named; 5] = [&PROBE, &UNALLOCATED, &UNKNOWN_PORT, &GONE, &STALE_ATTEMPT];

/// The name of each rule, and every class that it can return.
pub fn rules() -> impl Iterator<Item = (&'static str, &'static [Class])> {
    let named = RULES.iter().map(|rule| &rule.named).chain(WITHOUT_CASE);
    named.map(|named| (named.name, named.gives))
}

/// Every class that a verdict on a flow can have.
pub fn gives() -> impl Iterator<Item = Class> {
    rules().flat_map(|(_, gives)| gives).copied().chain([Class::Unknown])
}

/// A verdict, and the flows that can share it.
#[derive(Clone, Debug)]
pub struct Judgement {
    pub verdict: Verdict,
    /// For a flow that is healthy for reasons that do not depend on the moment: every other [plain](is_plain) flow with
    /// this outcome, address and endpoint is healthy too, as long as the cluster's history gives the same answers about
    /// its time.
    pub lasting: Option<Lasting>,
}

/// The subject of a shared verdict.
#[derive(Clone, Debug)]
pub struct Lasting {
    pub service: Key,
    pub via: Via,
}

/// The part of a verdict that distinguishes the causes of flows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Outline {
    pub key: VerdictKey,
    pub confidence: Confidence,
    pub severity: Severity,
    /// kube-proxy's own fault behind it.
    pub behind: Option<Class>,
}

impl Outline {
    /// That of a verdict with words.
    pub fn of(verdict: &Verdict) -> Self {
        Self {
            key: verdict.key(),
            confidence: verdict.confidence,
            severity: verdict.severity,
            behind: cause_behind(verdict),
        }
    }
}

/// Whether no evidence speaks against this flow's health, except that its endpoint can be the wrong one.
///
/// For a flow with an endpoint and without failures, no rule queries anything but the endpoint: neither the node's
/// state nor other flows. `folding_changes_nothing_but_the_cost` in the tests checks this.
pub fn is_plain(flow: &Flow) -> bool {
    flow.trouble.is_none()
        && flow.client.trouble.is_none()
        && flow.server.trouble.is_none()
        && flow.lost == 0
        && !flow.partial
        && !flow.was_cut_off()
        && flow.ipvs.as_ref().is_none_or(|ipvs| !ipvs.unscheduled.is_seen())
        && matches!(flow.handed_outcome(), Outcome::Established | Outcome::Closed | Outcome::Pending)
}

/// Whether a [lasting](Judgement::lasting) verdict stays the same when the node is read again: it contains kube-proxy's
/// mode and version, and the node's addresses decide whether a node port is this node's. No rule queries more of the node
/// for a [plain](is_plain) flow.
pub(crate) fn lasts_over(before: &Snapshot, after: &Snapshot) -> bool {
    before.mode == after.mode
        && before.version == after.version
        && before.rules.addresses == after.rules.addresses
}

/// The verdict on this flow. `None` if it concerns neither a Service nor a probe.
pub fn judge(flow: &Flow, ctx: &Context<'_>) -> Option<Verdict> {
    judge_lasting(flow, ctx).map(|judgement| judgement.verdict)
}

/// Like [`judge`]; also returns whether other flows can share the verdict.
pub fn judge_lasting(flow: &Flow, ctx: &Context<'_>) -> Option<Judgement> {
    judge_by(flow, ctx, &|_, _| false)
}

/// The verdict if the rules of these names do not give these classes: what a rule is needed for.
pub fn judge_without(
    flow: &Flow,
    ctx: &Context<'_>,
    omits: &impl Fn(&str, Class) -> bool,
) -> Option<Verdict> {
    judge_by(flow, ctx, omits).map(|judgement| judgement.verdict)
}

/// As [`judge`], without a word: what distinguishes the causes of flows. Of a failed flow it costs a fifth.
pub fn outline(flow: &Flow, ctx: &Context<'_>) -> Option<Outline> {
    Inquiry::new(flow, &Context { words: Words::Omitted, ..*ctx }).outline()
}

fn judge_by(flow: &Flow, ctx: &Context<'_>, omits: &impl Fn(&str, Class) -> bool) -> Option<Judgement> {
    let ruling = rule(Inquiry::new(flow, ctx), omits)?;
    let lasting = ruling.lasting();
    Some(Judgement { verdict: ruling.verdict(), lasting })
}

/// The finding of the first rule that applies, and what it is about.
fn rule<'a>(inquiry: Inquiry<'a>, omits: &impl Fn(&str, Class) -> bool) -> Option<Ruling<'a>> {
    let (flow, ctx) = (inquiry.flow, inquiry.ctx);
    let mut case = match inquiry.into_case() {
        Ok(case) => case,
        Err(address) => return without_case(flow, ctx, address, omits),
    };
    if case.is_of_another_cluster() || case.is_another_programs_port() {
        return None;
    }
    let mut finding =
        RULES.iter().find_map(|rule| rule.apply(&case, omits)).unwrap_or_else(|| unexplained(&case));
    let admitted = |(_, stale): &(_, Finding)| STALE_ATTEMPT.admits(stale.class, omits);
    if let Some((attempt, stale)) = stale_endpoints::stale_attempt(&case).filter(admitted) {
        if finding.class.is_fault() {
            // The attempt that failed last has a cause of its own.
            let when = attempt.decision.map(|decision| decision.time);
            finding = finding.related(&[stale.class]).api(when, stale.into_said().detail);
        } else {
            (case, finding) = (attempt, stale);
        }
    }
    if finding.has_words() {
        finding = service_config::with_affinity(&case, service_config::with_hints(&case, finding));
        finding = notes::with_early(&case, notes::with_skew(&case, notes::with_names(&case, finding)));
    }
    Some(Ruling::of(case, finding))
}

/// The same for a flow to an address that is no Service port.
fn without_case<'a>(
    flow: &'a Flow,
    ctx: &'a Context<'a>,
    address: Address<'a>,
    omits: &impl Fn(&str, Class) -> bool,
) -> Option<Ruling<'a>> {
    match address {
        Address::UnknownPort(service) => {
            let finding = service_config::unknown_port(flow, ctx, &service.key);
            let finding = UNKNOWN_PORT.admit(finding, omits)?;
            Some(Ruling::without_port(flow, ctx, finding, &service.key))
        }
        Address::Gone { service, since } => {
            let finding = GONE.admit(service_config::gone(flow, ctx, &service.key, since), omits)?;
            Some(Ruling::without_port(flow, ctx, finding, &service.key))
        }
        Address::Vip(_) | Address::Other => {
            let unallocated = || UNALLOCATED.admit(service_config::unallocated(flow, ctx), omits);
            let finding = PROBE.admit(probes::probe(flow, ctx), omits).or_else(unallocated)?;
            Some(Ruling::without_service(flow, ctx, finding))
        }
    }
}

/// Whether a rule stopped a packet of this flow: then the node's rules show which.
pub fn is_stopped_by_rule(flow: &Flow) -> bool {
    network_policy::is_stopped(flow)
}

/// The flow broke and no rule explains it: the verdict contains the evidence and names the missing observations.
fn unexplained(case: &Case<'_>) -> Finding {
    if let Some(finding) = sidecar::failed(case) {
        return finding;
    }
    let what = match case.outcome {
        Outcome::Refused => "the connection was refused",
        Outcome::Rejected => "a rule refused the connection",
        Outcome::Dropped => "the first packets were dropped",
        Outcome::Unreachable => "the next hop could not be reached",
        Outcome::Stalled | Outcome::Pending => "the SYN was not answered",
        Outcome::Abandoned => "the client gave up before an answer",
        Outcome::Reset(_) => "the connection was reset",
        Outcome::Silent => "the connection fell silent",
        Outcome::Established | Outcome::Closed => "nothing broke",
    };
    let mut finding =
        case.finding(Class::Unknown, format_args!("{what}; no rule explains it")).confidence(Confidence::Low);
    if case.decision.is_none() {
        finding = finding.unobserved(
            "NAT's decision: it was taken before the trace began, in another \
             namespace, or its event was not seen",
        );
    }
    match case.other_nodes_port() {
        Some(node) if Some(&*node) == case.ctx.node_name => {
            finding = finding.unobserved(format_args!(
                "the way of the packets outside this node: {} is an address of it in the API that no interface has, as the \
                 external address of a cloud's machine",
                case.vip.addr.ip()
            ));
        }
        Some(node) => {
            finding = finding.unobserved(format_args!(
                "the decision of kube-proxy on node {node}: the client used its node port, which this node \
                 does not translate"
            ));
        }
        None => {}
    }
    if case.endpoint.is_none() && case.rule_drop().is_some() {
        finding = finding.unobserved(
            "which rule dropped it before an endpoint was chosen: loadBalancerSourceRanges (C23), \
             or a firewall",
        );
    }
    if case.usable().is_none() {
        finding = finding.unobserved("the Service's endpoints: EndpointSlices could not be read");
    }
    if case.membership == Some(Membership::Unknown) {
        finding = finding.unobserved(
            "whether the endpoint was listed at that time: the cluster's history does not reach that far",
        );
    }
    finding
}

/// The client's Pod, as a verdict names it.
pub(crate) fn client_pod(flow: &Flow, cluster: &History) -> Option<String> {
    record::client_pod(flow, cluster)
}

/// The time in a flow's verdict.
pub(crate) fn verdict_time(flow: &Flow) -> Timestamp {
    flow.settled.unwrap_or(flow.last_seen)
}
