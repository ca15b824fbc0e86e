//! Verdicts: each flow joined with what Kubernetes and the node said at that moment.
//!
//! One file per root-cause domain, each rule in the words of the failure catalogue. Owns the order in which rules are
//! asked (the catalogue's section 3: the end of a packet's way counts, not the first event) and the record that comes
//! out. Does no I/O and knows no clock but the flow's.

mod backend_refused;
mod case;
mod conntrack;
mod datagrams;
mod foreign_rules;
mod hairpin;
mod iptables_sync;
mod ipvs;
mod network_path;
mod network_policy;
mod no_endpoints;
mod node;
mod normal;
mod record;
mod resets;
mod service_config;
mod stale_endpoints;
mod timeline;
mod translations;
mod view;

use std::time::Duration;

use case::{Case, Finding};

pub use self::{translations::Translations, view::NodeView};
pub use crate::node::{IpvsSettings, Rule, Ruling};
use crate::{
    class::{Class, Confidence, Domain, Safety, Severity},
    cluster::{Address, History, Key, Membership, Via},
    flow::{Flow, Outcome},
    net::Netns,
    sighting::Hook,
    text,
    time::Timestamp,
    verdict::Verdict,
};

/// The least time that kube-proxy is given to write what the API says (catalogue section 3).
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// What a verdict is reached with, besides the flow.
#[derive(Clone, Copy)]
pub struct Context<'a> {
    pub cluster: &'a History,
    pub node: &'a dyn NodeView,
    /// The node that the trace runs on.
    pub node_name: Option<&'a str>,
    /// The namespace in which kube-proxy writes its rules; `None` takes any namespace's decision for it.
    pub node_netns: Option<Netns>,
    /// Hooks that this kernel or this trace does not have.
    pub missing_hooks: &'a [Hook],
    /// The kernel says why it drops packets; one that does not leaves drops of established connections unseen.
    pub drop_reasons: bool,
    /// What other flows showed of this node's rules.
    pub translations: &'a Translations,
    /// How long kube-proxy may take to write a change.
    pub grace: Duration,
    /// Seconds since the API server was last heard from; `None` without metadata.
    pub metadata_age: Option<f64>,
}

impl std::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("node_name", &self.node_name)
            .field("grace", &self.grace)
            .finish_non_exhaustive()
    }
}

/// The first that applies explains the flow.
const RULES: [fn(&Case<'_>) -> Option<Finding>; 29] = [
    conntrack::table_full,
    conntrack::insertion_failed,
    stale_endpoints::stale_entry,
    resets::after_invalid,
    resets::midstream,
    // Names the setting behind what the next one sees.
    ipvs::reply_elsewhere,
    resets::answered_directly,
    network_policy::prohibited,
    service_config::other_proxy,
    service_config::source_ranges,
    ipvs::no_destination,
    no_endpoints::refused,
    iptables_sync::refused,
    service_config::no_local_endpoint,
    ipvs::not_scheduled,
    foreign_rules::chose,
    stale_endpoints::stale,
    ipvs::dead_destination,
    ipvs::entry_expired,
    network_policy::dropped,
    no_endpoints::unanswered,
    service_config::node_port_not_here,
    iptables_sync::untranslated,
    stale_endpoints::removed_meanwhile,
    backend_refused::refused,
    resets::dropped_as_invalid,
    network_path::prohibited_there,
    network_path::silent,
    conntrack::clash_resolved,
];

/// A verdict, and how far it reaches.
#[derive(Clone, Debug)]
pub struct Judgement {
    pub verdict: Verdict,
    /// Of a flow that is healthy for reasons that do not depend on the moment: every other [plain](is_plain) flow of
    /// this outcome to this address and endpoint is so as well, as long as the cluster's history gives the same
    /// answers about its time.
    pub lasting: Option<Lasting>,
}

/// What a verdict that others share was reached about.
#[derive(Clone, Debug)]
pub struct Lasting {
    pub service: Key,
    pub via: Via,
}

/// Whether nothing was seen of this flow that could speak against its health: an endpoint can still be the wrong one.
///
/// Of a flow that got an endpoint, and had no trouble, no rule asks for anything but the endpoint: neither for the
/// node's state nor for other flows. `folding_changes_nothing_but_the_cost` in the tests holds the rules to that.
pub fn is_plain(flow: &Flow) -> bool {
    flow.trouble.is_none()
        && flow.client.trouble.is_none()
        && flow.server.trouble.is_none()
        && flow.lost == 0
        && !flow.partial
        && flow.ipvs.as_ref().is_none_or(|ipvs| !ipvs.unscheduled.is_seen())
        && matches!(flow.outcome(), Outcome::Established | Outcome::Closed | Outcome::Pending)
}

/// What happened to this flow. `None` where it is none of ours: neither a Service nor a probe was asked for.
pub fn judge(flow: &Flow, ctx: &Context<'_>) -> Option<Verdict> {
    judge_lasting(flow, ctx).map(|judgement| judgement.verdict)
}

/// As [`judge`], and tells whether the verdict is one that others can share.
pub fn judge_lasting(flow: &Flow, ctx: &Context<'_>) -> Option<Judgement> {
    let alone = |verdict| Some(Judgement { verdict, lasting: None });
    let vip = match ctx.cluster.address(flow.orig.dst, flow.orig.protocol, flow.first_seen) {
        Address::Vip(vip) => vip,
        Address::UnknownPort(service) => {
            let finding = service_config::unknown_port(flow, ctx, &service.key)?;
            return alone(record::without_port(flow, ctx, finding, &service.key));
        }
        Address::Gone { service, since } => {
            let finding = service_config::gone(flow, ctx, &service.key, since)?;
            return alone(record::without_port(flow, ctx, finding, &service.key));
        }
        Address::Other => {
            let finding = normal::probe(flow, ctx)?;
            return alone(record::without_service(flow, ctx, finding));
        }
    };
    let case = Case::new(flow, ctx, vip);
    let finding = RULES
        .iter()
        .find_map(|rule| rule(&case))
        .or_else(|| normal::judge(&case))
        .unwrap_or_else(|| unexplained(&case));
    let finding = service_config::with_hints(&case, finding);
    let lasts = finding.class == Class::Ok
        && finding.against.is_empty()
        && case.endpoint.is_some()
        && (case.is_ready() || case.membership == Some(Membership::Unknown))
        && is_plain(flow);
    let lasting = lasts.then(|| Lasting { service: vip.service.key.clone(), via: vip.via });
    Some(Judgement { verdict: record::of(&case, finding), lasting })
}

/// The flow broke and no rule explains it: what was seen is said, and what would have told.
fn unexplained(case: &Case<'_>) -> Finding {
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
    let mut finding = Finding::new(Class::Unknown, Domain::Unknown, format!("{what}; no rule explains it"))
        .confidence(Confidence::Low)
        .severity(Severity::Low)
        .action(
            format!("look at the Service by hand: {}", case.get_slices()),
            "trace again with every hook, from before the connection begins",
            Safety::ReadOnly,
        );
    if case.decision.is_none() {
        finding = finding.unseen(
            "what NAT decided: the decision was taken before the trace began, in another \
                                  namespace, or its event was not seen",
        );
    }
    if let Some(node) = case.other_nodes_port() {
        finding = finding.unseen(format!(
            "what kube-proxy on node {node} decided: its node port was asked for, which this node does not translate"
        ));
    }
    if case.endpoint.is_none() && case.rule_drop().is_some() {
        finding = finding.unseen(
            "which rule dropped it before an endpoint was chosen: loadBalancerSourceRanges (C23), or a firewall",
        );
    }
    if case.usable().is_none() {
        finding = finding.unseen("the Service's endpoints: EndpointSlices could not be read");
    }
    if case.membership == Some(Membership::Unknown) {
        finding = finding
            .unseen("whether the endpoint was listed then: the cluster's history does not reach that far");
    }
    finding
}

/// The client's Pod, as a verdict names it.
pub(crate) fn client_pod(flow: &Flow, cluster: &History) -> Option<String> {
    record::client_pod(flow, cluster)
}

/// The time that a flow's verdict bears.
pub(crate) fn verdict_time(flow: &Flow) -> Timestamp {
    flow.settled.unwrap_or(flow.last_seen)
}
