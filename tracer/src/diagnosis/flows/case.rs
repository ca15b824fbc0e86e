//! One flow, joined with the state of the cluster and the node: the input of every rule.
//!
//! Makes each query once, for the moment of the NAT decision. Judges nothing.

use std::{
    cell::OnceCell,
    fmt::{self, Display},
    net::SocketAddr,
    time::Duration,
};

use super::{Context, Finding, Say, datagrams::unanswered_for, text::length};
use crate::{
    class::{Class, Confidence},
    cluster::{Address, EndpointState, Kind, Membership, Standing, Usable, Via, Vip},
    flow::{
        Decision, Dropped, Flow, IcmpError, IcmpMeaning, Outcome, Refusal, RefusalKind, ResetBy, Stage,
        Trouble,
    },
    net::Netns,
    node::{Presence, ProxyMode, RuleEffect, interfaces::Dataplane},
    sighting::{Hook, Status},
    text::counted,
    time::Timestamp,
    verdict::Text,
};

/// A packet that is lost precedes its first repetition by the sender's timeout: 200 ms on a short path, seconds on a long one.
pub(super) const BEFORE_SILENCE: Duration = Duration::from_secs(3);

pub(super) struct Case<'a> {
    pub(super) flow: &'a Flow,
    pub(super) ctx: &'a Context<'a>,
    pub(super) outcome: Outcome,
    /// The address that the client connected to, at the beginning of the flow.
    pub(super) vip: Vip<'a>,
    /// The decision in the namespace of kube-proxy's rules.
    pub(super) decision: Option<&'a Decision>,
    /// The time of the NAT decision, or of the first sighting.
    pub(super) decided: Timestamp,
    pub(super) endpoint: Option<SocketAddr>,
    /// The state of the endpoint when it was chosen.
    pub(super) membership: Option<Membership<'a>>,
    /// The API listed the endpoint only after it was chosen: kube-proxy received the change before viptrace did.
    pub(super) is_ahead: bool,
    /// For an attempt that the outcome is not due to: the endpoint of the one that it is due to.
    pub(super) instead: Option<SocketAddr>,
    usable: OnceCell<Option<Known>>,
}

/// The endpoints that kube-proxy should have chosen from.
#[derive(Clone, Copy, Debug)]
struct Known {
    usable: Usable,
    /// When the API removed the last of them, within the grace after a rule had stopped the flow: kube-proxy received the
    /// change before viptrace did.
    lost_at: Option<Timestamp>,
}

impl<'a> Case<'a> {
    /// The flow as this choice shows it.
    pub(super) fn of(flow: &'a Flow, ctx: &'a Context<'a>, vip: Vip<'a>, choice: Choice<'a>) -> Self {
        let Choice { decision, decided, endpoint } = choice;
        let (membership, is_ahead) = match endpoint.map(|endpoint| membership(ctx, &vip, endpoint, decided)) {
            Some((membership, is_ahead)) => (Some(membership), is_ahead),
            None => (None, false),
        };
        Self {
            flow,
            ctx,
            outcome: flow.outcome(),
            vip,
            decision,
            decided,
            endpoint,
            membership,
            is_ahead,
            instead: None,
            usable: OnceCell::new(),
        }
    }

    /// The same flow as seen from each of its attempts that the outcome is not due to.
    pub(super) fn other_attempts(&self) -> impl Iterator<Item = Case<'a>> {
        let Self { flow, ctx, vip, endpoint: instead, .. } = *self;
        Choice::others(flow, ctx, instead)
            .map(move |choice| Case { instead, ..Case::of(flow, ctx, vip, choice) })
    }

    /// Whether the endpoint is known to have answered.
    pub(super) fn was_answered(&self) -> bool {
        self.instead.is_none() && self.flow.was_answered()
    }

    /// The endpoints that kube-proxy should have chosen from; `None` if they are unknown. Queried only when a rule
    /// needs it: it is the most expensive query, and a healthy flow needs it only if its endpoint is not ready.
    pub(super) fn usable(&self) -> Option<Usable> {
        self.known().map(|known| known.usable)
    }

    /// When the API removed the last endpoint that a rule could have chosen, if that was only after the rule had stopped the
    /// flow, and within the grace.
    pub(super) fn lost_at(&self) -> Option<Timestamp> {
        self.known()?.lost_at
    }

    fn known(&self) -> Option<Known> {
        *self.usable.get_or_init(|| {
            let then = self.usable_at(self.decided)?;
            let lost = self.may_be_ahead(then).then(|| self.first_loss()).flatten();
            let (lost_at, usable) = lost.unzip();
            Some(Known { usable: usable.unwrap_or(then), lost_at })
        })
    }

    /// Whether kube-proxy may have stopped the flow because of a change that viptrace received later.
    fn may_be_ahead(&self, then: Usable) -> bool {
        self.endpoint.is_none()
            && !has_none(&self.vip, then)
            && is_stopped_by_kube_proxy(self.flow, &self.vip)
    }

    /// The first moment after the decision, within the grace, at which there was none to choose.
    fn first_loss(&self) -> Option<(Timestamp, Usable)> {
        let until = self.decided.saturating_add(self.ctx.grace);
        let changes = self.ctx.cluster.endpoints_changes(&self.vip.service.key, self.decided, until);
        let mut states = changes.into_iter().filter_map(|at| Some((at, self.usable_at(at)?)));
        states.find(|(_, usable)| has_none(&self.vip, *usable))
    }

    fn usable_at(&self, at: Timestamp) -> Option<Usable> {
        usable_at(self.ctx, &self.vip, at)
    }

    /// Whether this kube-proxy sends to terminating endpoints that serve while no other is ready. An unknown release
    /// counts as a current one.
    pub(super) fn uses_terminating(&self) -> bool {
        uses_terminating(self.ctx)
    }

    /// The last known event of the flow.
    pub(super) fn ended(&self) -> Timestamp {
        self.flow.ended.or(self.flow.settled).unwrap_or(self.flow.last_seen).max(self.flow.last_seen)
    }

    pub(super) fn failed(&self) -> bool {
        !self.outcome.is_success() && self.outcome != Outcome::Pending
    }

    /// As [`may_have_broken`].
    pub(super) fn may_have_broken(&self, last: Timestamp) -> bool {
        may_have_broken(self.flow, last)
    }

    /// Whether the client itself ended an answered connection by a RST (N4): nothing failed that its endpoint has to do with.
    pub(super) fn is_own_abort(&self) -> bool {
        self.outcome == Outcome::Reset(ResetBy::Client)
    }

    /// Whether the endpoint had closed its side before the connection failed at its client: nothing was to come any more, and
    /// what the client sent had no taker.
    pub(super) fn outlived_endpoint(&self) -> bool {
        let (client, server) = (&self.flow.client, &self.flow.server);
        // What it repeated before may have been lost.
        let was_lost_before =
            || client.last_repeat_before_fin().is_some_and(|last| self.may_have_broken(last));
        matches!(self.outcome, Outcome::Reset(_) | Outcome::Silent)
            && client.outlived_other_end()
            && !(self.outcome == Outcome::Silent && server.is_unheard())
            && !was_lost_before()
    }

    /// The same, or an answer that was due did not come: an unanswered datagram is no failure by itself.
    pub(super) fn has_failed_or_waits(&self) -> bool {
        self.failed() || unanswered_for(self).is_some()
    }

    /// Since when there is an endpoint that a rule may choose here: under a Local policy only the node's own count.
    pub(super) fn choosable_since(&self, usable: Usable) -> Timestamp {
        choosable_since(self.ctx, &self.vip, usable, self.decided)
    }

    pub(super) fn trouble(&self) -> Option<&'a Trouble> {
        self.flow.trouble.as_deref()
    }

    /// A rule's drop, before or after NAT. On a kernel without drop reasons, a drop counts as a rule's if kube-proxy's
    /// rules must drop the packet: the policy is Local, and no endpoint is on this node.
    pub(super) fn rule_drop(&self) -> Option<&'a Dropped> {
        let mut drops = self.trouble()?.drops.iter().filter(|drop| drop.stage != Stage::Reply);
        drops.clone().find(|drop| drop.is("NETFILTER_DROP")).or_else(|| {
            let nameless =
                drops.find(|drop| drop.reason.is_none() && drop.opening && drop.stage == Stage::Before)?;
            let is_due = self.endpoint.is_none() && self.has_no_local_endpoint();
            is_due.then_some(nameless)
        })
    }

    /// Whether the flow belongs to another cluster on this machine (kind): its client is in no Pod and no Node of this
    /// cluster, and no namespace of this node's rules saw it, or no slice lists its endpoint if that namespace is unknown.
    pub(super) fn is_of_another_cluster(&self) -> bool {
        let (cluster, flow, at) = (self.ctx.cluster, self.flow, self.flow.first_seen);
        let client = flow.orig.src.ip();
        let elsewhere = match self.ctx.node_netns {
            Some(_) => {
                let is_elsewhere = |decision: &Decision| self.is_elsewhere(decision.netns);
                !flow.decisions.is_empty() && flow.decisions.iter().all(is_elsewhere)
            }
            None => matches!(self.membership, Some(Membership::NeverSeen { .. })),
        };
        let is_known = || {
            cluster.pod_by_ip(client, at).is_some()
                || cluster.node_by_ip(client, at).is_some()
                || self.ctx.node.is_own_address(client) == Some(true)
        };
        elsewhere && cluster.knows(Kind::Pod) && cluster.knows(Kind::Node) && !is_known()
    }

    /// Whether another program on this node answers at a node port's number, at an address that no Node lists.
    pub(super) fn is_another_programs_port(&self) -> bool {
        self.vip.via == Via::NodePort
            && self.endpoint.is_none()
            && (self.flow.was_answered() || !self.failed())
            && self.ctx.cluster.node_by_ip(self.vip.addr.ip(), self.flow.first_seen).is_none()
    }

    /// Whether the client is on this node, so that its socket is observed; `None` if unknown.
    pub(super) fn is_client_here(&self) -> Option<bool> {
        let client = self.flow.orig.src.ip();
        if self.flow.client.is_seen() || self.ctx.node.is_own_address(client) == Some(true) {
            return Some(true);
        }
        let pod = self.ctx.cluster.pod_by_ip(client, self.flow.first_seen)?;
        Some(pod.node.as_deref()? == self.ctx.node_name?)
    }

    /// The packet passed the node's NAT rules and no endpoint was chosen. In ipvs mode this is certain only after the
    /// entry is confirmed, because IPVS changes the reply tuple after the NAT hooks.
    pub(super) fn untranslated(&self) -> bool {
        self.endpoint.is_none()
            && self.decision.is_some_and(|decision| {
                decision.endpoint().is_none() && (decision.confirmed.is_some() || !self.is_ipvs())
            })
    }

    /// Whether IPVS decides, from the sightings of this flow, or else from the node's mode. A decision with the DNAT
    /// bit is never IPVS's, whatever the mode.
    pub(super) fn is_ipvs(&self) -> bool {
        self.flow.met_ipvs()
            || (self.ctx.node.mode == Some(ProxyMode::Ipvs)
                && self.decision.is_none_or(|decision| !decision.ct.status.has(Status::DST_NAT)))
    }

    /// The name of the other node whose node port the client connected to. Only that node's kube-proxy translates it:
    /// here the packet passes untranslated (KUBE-NODEPORTS is entered only for the node's own addresses).
    pub(super) fn other_nodes_port(&self) -> Option<String> {
        other_nodes_port(&self.vip, self.ctx, self.decided)
    }

    /// Another dataplane that may serve Services here instead of kube-proxy, whose rules may be leftovers. A program that
    /// can contain kube-proxy (k3s, RKE2, `MicroK8s`) does not prove that it runs it.
    pub(super) fn other_dataplane(&self) -> Option<Dataplane> {
        let node = self.ctx.node;
        let embedded = node.report.embedded_in.is_some();
        let by_kube_proxy = match (node.running, node.proxy_rules.any()) {
            (Some(true), _) if !embedded => true,
            // The rules of a kube-proxy that ended go on translating; leftovers under another dataplane meet no packet.
            (Some(false), _) => self.ctx.translations.translated_lately(self.decided),
            (_, rules) => rules == Presence::Present,
        };
        node.other_dataplane.filter(|_| !by_kube_proxy)
    }

    /// Whether this namespace is known, and is not that of kube-proxy's rules.
    pub(super) fn is_elsewhere(&self, netns: Netns) -> bool {
        self.ctx.surroundings().is_elsewhere(netns)
    }

    /// Whether the hook was attached as long as the flow lived.
    pub(super) fn has_hook(&self, hook: Hook) -> bool {
        let (begin, end) = (self.flow.first_seen, self.flow.ended.unwrap_or(self.ctx.now));
        let mut gaps = self.ctx.hook_gaps.iter().filter(|gap| gap.hook == hook);
        !self.ctx.missing_hooks.contains(&hook) && !gaps.any(|gap| gap.concerns(begin, end))
    }

    /// The hook that sees a rule refuse a packet of this family.
    pub(super) fn refusal_hook(&self) -> Hook {
        match (self.is_ipvs(), self.flow.orig.dst.is_ipv4()) {
            (true, _) => Hook::IpVsLeave,
            (false, true) => Hook::SendUnreach,
            (false, false) => Hook::SendUnreach6,
        }
    }

    /// Whether the API has usable endpoints; `None` if unknown.
    pub(super) fn has_usable(&self) -> Option<bool> {
        self.usable().map(|usable| usable.count > 0)
    }

    /// Whether a Local policy keeps the traffic on this node, which is known to have no endpoint.
    pub(super) fn has_no_local_endpoint(&self) -> bool {
        self.vip.is_local() && self.usable().is_some_and(|usable| usable.local == Some(0))
    }

    /// Whether the VIP itself reported that nothing listens there, before any endpoint was chosen: in ipvs mode it is this
    /// node's own address, and IPVS (`ip_vs_leave`) answers from it if it has no real server. That event may be missing.
    pub(super) fn is_refused_by_vip(&self) -> bool {
        let ip = self.vip.addr.ip();
        let is_from_vip = |error: &IcmpError| {
            error.about_request && error.meaning == IcmpMeaning::NothingListens && error.from == Some(ip)
        };
        self.endpoint.is_none()
            && self.is_ipvs()
            && self.trouble().is_some_and(|trouble| trouble.icmp_errors.iter().any(is_from_vip))
    }

    /// A rule's refusal before any endpoint was chosen.
    pub(super) fn refused_before_choice(&self) -> Option<Refusal> {
        let refusal = self.trouble()?.refusal?;
        let is_of_rule = refusal.kind != RefusalKind::NoDestination;
        (is_of_rule && refusal.stage == Stage::Before && self.endpoint.is_none()).then_some(refusal)
    }

    /// Whether the event is so recent before the decision that kube-proxy may still be processing it.
    pub(super) fn within_grace(&self, since: Timestamp) -> bool {
        since > Timestamp::MIN && self.decided <= since.at_latest().saturating_add(self.ctx.grace)
    }

    /// A finding whose texts are written if they are wanted.
    pub(super) fn finding(&self, class: Class, detail: impl Say) -> Finding {
        self.ctx.finding(class, detail)
    }

    /// A text that several parts of a finding have.
    pub(super) fn said(&self, text: fmt::Arguments<'_>) -> Text {
        self.ctx.words.of(text)
    }

    /// `1 usable endpoint`, in the API at the time of NAT's decision.
    pub(super) fn usable_count(&self) -> impl Display {
        counted(self.usable().map_or(0, |usable| usable.count) as u64, "usable endpoint")
    }

    pub(super) fn usable_evidence(&self) -> Text {
        self.said(format_args!("{} for {}", self.usable_count(), self.name()))
    }

    /// `namespace/service:port`.
    pub(super) const fn name(&self) -> &Vip<'a> {
        &self.vip
    }

    /// The endpoint's name for a person: with its Pod, if known.
    pub(super) fn endpoint_name(&self) -> impl Display {
        let listed = self.membership.as_ref().and_then(Membership::state);
        let pod = listed.and_then(|state| state.pod);
        fmt::from_fn(move |f| match (self.endpoint, pod) {
            (Some(endpoint), Some(pod)) => write!(f, "{endpoint} (Pod {})", pod.key),
            (Some(endpoint), None) => write!(f, "{endpoint}"),
            (None, _) => f.write_str("no endpoint"),
        })
    }

    /// Whether the endpoint is known to be no Pod: a person or a program wrote it into the slices, as the API servers do for
    /// default/kubernetes.
    pub(super) fn is_no_pod(&self) -> bool {
        let cluster = self.ctx.cluster;
        let is_without_pod = |endpoint: SocketAddr| cluster.pod_by_ip(endpoint.ip(), self.decided).is_none();
        cluster.knows(Kind::Pod)
            && self.member().is_some_and(|member| member.pod.is_none())
            && self.endpoint.is_some_and(is_without_pod)
    }

    /// The endpoint's state when it was chosen, if a slice listed it then.
    pub(super) fn member(&self) -> Option<&EndpointState<'a>> {
        self.membership.as_ref()?.member()
    }

    /// Whether the endpoint was ready when it was chosen.
    pub(super) fn is_ready(&self) -> bool {
        self.member().is_some_and(|member| member.conditions.ready)
    }

    pub(super) fn age(&self, since: Timestamp) -> Duration {
        self.decided.since(since)
    }
}

/// Whether something that was last seen at this time can have broken the flow: an answered one has recovered from what lies
/// longer before its end than it waits to repeat a packet.
pub(super) fn may_have_broken(flow: &Flow, last: Timestamp) -> bool {
    let silence = BEFORE_SILENCE.max(flow.silence_before_end());
    flow.broke().is_none_or(|broke| last.saturating_add(silence) >= broke)
}

/// Whether a rule, or IPVS, stopped the flow before an endpoint was chosen, as kube-proxy's do: they refuse with port unreachable,
/// and under a Local policy they drop.
pub(super) fn is_stopped_by_kube_proxy(flow: &Flow, vip: &Vip<'_>) -> bool {
    let Some(trouble) = flow.trouble.as_deref() else { return false };
    let is_refused = |refusal: Refusal| match refusal.kind {
        RefusalKind::NoDestination => true,
        RefusalKind::Unreachable { code } => {
            let is_before = refusal.stage == Stage::Before && refusal.endpoint.is_none();
            is_before && code.is_none_or(|code| code == port_unreachable(flow))
        }
        RefusalKind::Reset => false,
    };
    let is_dropped = |drop: &Dropped| drop.stage == Stage::Before && drop.is("NETFILTER_DROP");
    trouble.refusal.is_some_and(is_refused) || vip.is_local() && trouble.drops.iter().any(is_dropped)
}

/// As [`Case::usable`], at any moment.
fn usable_at(ctx: &Context<'_>, vip: &Vip<'_>, at: Timestamp) -> Option<Usable> {
    let (cluster, node) = (ctx.cluster, ctx.node_name);
    let usable = cluster.usable(vip, node, at)?;
    if uses_terminating(ctx) {
        return Some(usable);
    }
    let is_ready_here = || cluster.local_ready_since(vip, node, at).is_some();
    let local = usable.local.map(|count| if is_ready_here() { count } else { 0 });
    let count = if usable.terminating { 0 } else { usable.count };
    Some(Usable { count, local, terminating: false, ..usable })
}

/// As [`Case::uses_terminating`].
pub(super) fn uses_terminating(ctx: &Context<'_>) -> bool {
    ctx.node.uses_terminating().unwrap_or(true)
}

/// Since when a ready endpoint exists that kube-proxy must prefer to a terminating one; `None` if there is none. Under
/// a Local policy only the node's own count.
pub(super) fn ready_since(ctx: &Context<'_>, vip: &Vip<'_>, at: Timestamp) -> Option<Timestamp> {
    let usable = usable_at(ctx, vip, at).filter(|usable| usable.count > 0 && !usable.terminating)?;
    if vip.is_local() {
        return ctx.cluster.local_ready_since(vip, ctx.node_name, at);
    }
    Some(usable.since)
}

/// As [`Case::choosable_since`].
pub(super) fn choosable_since(ctx: &Context<'_>, vip: &Vip<'_>, usable: Usable, at: Timestamp) -> Timestamp {
    let own = || ctx.cluster.local_ready_since(vip, ctx.node_name, at);
    usable.since.max(vip.is_local().then(own).flatten().unwrap_or(Timestamp::MIN))
}

/// Whether none of these endpoints is one that a rule for this address may choose.
pub(super) fn has_none(vip: &Vip<'_>, usable: Usable) -> bool {
    usable.count == 0 || vip.is_local() && usable.local == Some(0)
}

/// The code of "port unreachable": of ICMP, or of `ICMPv6`.
pub(super) const fn port_unreachable(flow: &Flow) -> u8 {
    if flow.orig.dst.is_ipv4() { 3 } else { 4 }
}

/// The name of the other node whose node port this is, as [`Case::other_nodes_port`] has it.
pub(super) fn other_nodes_port(vip: &Vip<'_>, ctx: &Context<'_>, at: Timestamp) -> Option<String> {
    let ip = vip.addr.ip();
    if vip.via != Via::NodePort {
        return None;
    }
    let node = ctx.cluster.node_by_ip(ip, at).map(|node| &*node.key.name);
    let own = ctx.node.is_own_address(ip);
    let own = own.or_else(|| Some(node? == ctx.node_name?));
    (own == Some(false)).then(|| node.map_or_else(|| ip.to_string(), str::to_owned))
}

/// The meaning of the address that the client connected to. A node port is also served at addresses of this node that no
/// Node object lists.
pub(super) fn address<'a>(flow: &Flow, ctx: &Context<'a>) -> Address<'a> {
    let (dst, protocol, at) = (flow.orig.dst.socket(), flow.orig.protocol, flow.first_seen);
    match ctx.cluster.address(dst, protocol, at) {
        Address::Other if ctx.node.is_own_address(dst.ip()) == Some(true) => {
            ctx.cluster.own_node_port(dst, protocol, at).map_or(Address::Other, Address::Vip)
        }
        meant => meant,
    }
}

/// Whether this redirection is a sidecar's, in its Pod: the namespace of kube-proxy's rules is unknown, and it leads to the
/// loopback address.
fn is_sidecars(decision: &Decision, node_netns: Option<Netns>) -> bool {
    node_netns.is_none() && decision.endpoint().is_some_and(|endpoint| endpoint.ip().is_loopback())
}

/// The choice of an endpoint, in the namespace of kube-proxy's rules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice<'a> {
    pub(super) decision: Option<&'a Decision>,
    /// The time of the NAT decision, or of the first sighting.
    pub(super) decided: Timestamp,
    pub(super) endpoint: Option<SocketAddr>,
}

impl<'a> Choice<'a> {
    /// The choice that the outcome is due to.
    pub(super) fn of(flow: &'a Flow, ctx: &Context<'_>) -> Self {
        let decision =
            flow.decision(ctx.node_netns).filter(|decision| !is_sidecars(decision, ctx.node_netns));
        let ipvs = flow.chosen_by_ipvs(ctx.node_netns);
        let confirmed = decision.filter(|decision| decision.confirmed.is_some());
        // If no entry was confirmed, NAT decided separately for each retransmit: the first attempt counts.
        let decided = confirmed.map(|decision| decision.time).or_else(|| Some(ipvs?.time));
        Self {
            decision,
            decided: decided.unwrap_or(flow.first_seen),
            endpoint: decision.and_then(Decision::endpoint).or_else(|| Some(ipvs?.destination)),
        }
    }

    /// The choices of the attempts that did not go to this endpoint.
    pub(super) fn others(
        flow: &'a Flow,
        ctx: &Context<'_>,
        endpoint: Option<SocketAddr>,
    ) -> impl Iterator<Item = Self> {
        // One decision is that of the outcome.
        let attempts = (flow.decisions.len() > 1).then(|| flow.attempts(ctx.node_netns));
        let netns = ctx.node_netns;
        let others = attempts
            .into_iter()
            .flatten()
            .filter(move |other| other.endpoint() != endpoint && !is_sidecars(other, netns));
        others.map(|decision| Self {
            decision: Some(decision),
            // NAT decided between the flow's first packet and the drop of this one, which is all that is known.
            decided: decision.confirmed.map_or(flow.first_seen, |_| decision.time),
            endpoint: decision.endpoint(),
        })
    }
}

/// The state of the endpoint when it was chosen, and whether viptrace learned it later than kube-proxy: a state in which
/// the endpoint may serve that the API reported within the grace after the choice was kube-proxy's state already.
pub(super) fn membership<'a>(
    ctx: &Context<'a>,
    vip: &Vip<'_>,
    endpoint: SocketAddr,
    decided: Timestamp,
) -> (Membership<'a>, bool) {
    let then = ctx.cluster.membership(vip, endpoint, decided);
    let may_be_wrong = matches!(then, Membership::NeverSeen { .. }) || then.unusable_since().is_some();
    let soon = decided.saturating_add(ctx.grace);
    if may_be_wrong && ctx.cluster.standing(vip, endpoint, soon) == Standing::Serves {
        return (ctx.cluster.membership(vip, endpoint, soon), true);
    }
    (then, false)
}

/// As [`membership`], if only its standing matters.
pub(super) fn standing(
    ctx: &Context<'_>,
    vip: &Vip<'_>,
    endpoint: SocketAddr,
    decided: Timestamp,
) -> Standing {
    let then = ctx.cluster.standing(vip, endpoint, decided);
    if matches!(then, Standing::Serves | Standing::Unknown) {
        return then;
    }
    let soon = ctx.cluster.standing(vip, endpoint, decided.saturating_add(ctx.grace));
    if soon == Standing::Serves { soon } else { then }
}

impl Finding {
    /// Says that the last endpoint left only after the rule had stopped the flow, if it did, which is less certain.
    pub(super) fn with_late_loss(mut self, case: &Case<'_>) -> Self {
        let Some(lost) = case.lost_at() else { return self };
        self.at_most(Confidence::Medium);
        let of_node = if case.vip.is_local() { " of this node" } else { "" };
        self.api(
            Some(lost),
            format_args!(
                "the last usable endpoint{of_node} left {} later: kube-proxy received the change before viptrace did",
                length(lost.since(case.decided))
            ),
        )
    }

    /// Adds the chain, map or virtual server that has this effect on the destination address, with its writer, if rules
    /// were read. Rules that were read after NAT's decision are evidence for the current state, not for the state at
    /// the decision.
    pub(super) fn with_effect(self, case: &Case<'_>, rule: RuleEffect) -> Self {
        let verb = match rule {
            RuleEffect::Forwards => "forwards",
            RuleEffect::Refuses => "refuses",
            RuleEffect::Drops => "drops",
            RuleEffect::Missing => return self,
        };
        if !self.has_words() {
            return self;
        }
        let asked = case.vip.addr;
        let effects = case.ctx.node.effects(asked, case.vip.port.protocol, case.flow.orig.src.ip());
        let mut finding = self;
        for effect in effects.iter().filter(|effect| effect.rule == rule) {
            let chain = effect.chain.as_deref().unwrap_or("a rule");
            finding = finding.node(
                case.ctx.node.read_at(),
                format_args!("{}: {chain} {verb} connections to {asked} ({})", effect.writer, case.name()),
            );
        }
        finding
    }
}
