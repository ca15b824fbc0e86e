//! One flow, joined with what the cluster and the node said: what every rule looks at.
//!
//! Asks each question once, at the moment of the NAT decision. Judges nothing.

use std::{cell::OnceCell, net::SocketAddr, time::Duration};

use super::{Context, Finding};
use crate::{
    cluster::{EndpointState, Membership, Usable, Via, Vip},
    flow::{Decision, Dropped, Flow, Outcome, Stage, Trouble},
    node::{ProxyMode, Rule},
    sighting::{Hook, Status},
    text::count,
    time::Timestamp,
};

pub(super) struct Case<'a> {
    pub(super) flow: &'a Flow,
    pub(super) ctx: &'a Context<'a>,
    pub(super) outcome: Outcome,
    /// The address that the client asked for, as it was when the flow began.
    pub(super) vip: Vip<'a>,
    /// The decision in the namespace whose rules kube-proxy writes.
    pub(super) decision: Option<&'a Decision>,
    /// When NAT was decided, or the flow first seen.
    pub(super) decided: Timestamp,
    pub(super) endpoint: Option<SocketAddr>,
    /// What the endpoint was when it was chosen.
    pub(super) membership: Option<Membership>,
    usable: OnceCell<Option<Usable>>,
}

impl<'a> Case<'a> {
    pub(super) fn new(flow: &'a Flow, ctx: &'a Context<'a>, vip: Vip<'a>) -> Self {
        let decision = flow.decision(ctx.node_netns);
        // Where no entry was confirmed, each retransmit's was decided anew: the first attempt counts.
        let chosen = flow.chosen_by_ipvs(ctx.node_netns);
        let decided = decision
            .filter(|decision| decision.confirmed.is_some())
            .map(|decision| decision.time)
            .or_else(|| chosen.map(|chosen| chosen.time))
            .unwrap_or(flow.first_seen);
        let endpoint = flow.endpoint(ctx.node_netns);
        let membership = endpoint.map(|endpoint| ctx.cluster.membership(&vip, endpoint, decided));
        Self {
            flow,
            ctx,
            outcome: flow.outcome(),
            vip,
            decision,
            decided,
            endpoint,
            membership,
            usable: OnceCell::new(),
        }
    }

    /// What kube-proxy should have chosen from; `None` where the endpoints are not known. Asked when a rule needs it:
    /// it is the dearest question, and a healthy flow raises it only where its endpoint is not ready.
    pub(super) fn usable(&self) -> Option<Usable> {
        *self.usable.get_or_init(|| self.ctx.cluster.usable(&self.vip, self.ctx.node_name, self.decided))
    }

    /// When the flow's story ended, as far as it is known.
    pub(super) fn ended(&self) -> Timestamp {
        self.flow.ended.or(self.flow.settled).unwrap_or(self.flow.last_seen).max(self.flow.last_seen)
    }

    pub(super) fn failed(&self) -> bool {
        !self.outcome.is_success() && self.outcome != Outcome::Pending
    }

    pub(super) fn trouble(&self) -> Option<&'a Trouble> {
        self.flow.trouble.as_deref()
    }

    /// A rule's drop, before or behind NAT. Where the kernel gives no reasons, it is taken for one where kube-proxy's
    /// rules have to drop: the policy is Local, and no endpoint is on this node.
    pub(super) fn rule_drop(&self) -> Option<&'a Dropped> {
        let mut drops = self.trouble()?.drops.iter().filter(|drop| drop.stage != Stage::Reply);
        drops.clone().find(|drop| drop.is("NETFILTER_DROP")).or_else(|| {
            let nameless =
                drops.find(|drop| drop.reason.is_none() && drop.opening && drop.stage == Stage::Before)?;
            let is_due = self.endpoint.is_none()
                && self.vip.is_local()
                && self.usable().is_some_and(|usable| usable.local == Some(0));
            is_due.then_some(nameless)
        })
    }

    /// The packet passed the node's NAT rules and no endpoint was chosen. In ipvs mode that is known only once the
    /// entry is confirmed, for IPVS changes the reply tuple behind the NAT hooks.
    pub(super) fn untranslated(&self) -> bool {
        self.endpoint.is_none()
            && self.decision.is_some_and(|decision| {
                decision.endpoint().is_none() && (decision.confirmed.is_some() || !self.is_ipvs())
            })
    }

    /// Whether IPVS decides here: by what was seen of this very flow, else by the mode that the node says. A decision
    /// with the DNAT bit is none of IPVS's, whatever the node says.
    pub(super) fn is_ipvs(&self) -> bool {
        self.flow.met_ipvs()
            || (self.ctx.node.mode == Some(ProxyMode::Ipvs)
                && self.decision.is_none_or(|decision| !decision.ct.status.has(Status::DST_NAT)))
    }

    /// The name of the other node whose node port was asked for. Only its kube-proxy translates that: here the packet
    /// passes untranslated (KUBE-NODEPORTS is entered for the node's own addresses alone).
    pub(super) fn other_nodes_port(&self) -> Option<String> {
        let ip = self.vip.addr.ip();
        if self.vip.via != Via::NodePort {
            return None;
        }
        let node = self.ctx.cluster.node_by_ip(ip, self.decided).map(|node| &*node.key.name);
        let own = self.ctx.node.is_own_address(ip);
        let own = own.or_else(|| Some(node? == self.ctx.node_name?));
        (own == Some(false)).then(|| node.map_or_else(|| ip.to_string(), str::to_owned))
    }

    pub(super) fn has_hook(&self, hook: Hook) -> bool {
        !self.ctx.missing_hooks.contains(&hook)
    }

    /// The hook that sees a rule refuse a packet of this family.
    pub(super) fn refusal_hook(&self) -> Hook {
        match (self.is_ipvs(), self.flow.orig.dst.is_ipv4()) {
            (true, _) => Hook::IpVsLeave,
            (false, true) => Hook::SendUnreach,
            (false, false) => Hook::SendUnreach6,
        }
    }

    /// Whether the API has endpoints to send to; `None` where that is not known.
    pub(super) fn has_usable(&self) -> Option<bool> {
        self.usable().map(|usable| usable.count > 0)
    }

    /// Whether something happened so short before the decision that kube-proxy may still have been at it.
    pub(super) fn within_grace(&self, since: Timestamp) -> bool {
        since > Timestamp::MIN && self.decided <= since.saturating_add(self.ctx.grace)
    }

    /// `1 usable endpoint`, as the API had them when NAT decided.
    pub(super) fn usable_count(&self) -> String {
        count(self.usable().map_or(0, |usable| usable.count), "usable endpoint")
    }

    pub(super) fn usable_evidence(&self) -> String {
        format!("{} for {}", self.usable_count(), self.name())
    }

    /// `namespace/service:port`.
    pub(super) fn name(&self) -> String {
        self.vip.to_string()
    }

    /// The endpoint as a person knows it: its Pod where that is known.
    pub(super) fn endpoint_name(&self) -> String {
        let Some(endpoint) = self.endpoint else { return "no endpoint".to_owned() };
        let pod = self.membership.as_ref().and_then(Membership::state).and_then(|state| state.pod.as_ref());
        pod.map_or_else(|| endpoint.to_string(), |pod| format!("{endpoint} (Pod {})", pod.key))
    }

    /// The endpoint's state when it was chosen, if a slice listed it then.
    pub(super) fn member(&self) -> Option<&EndpointState> {
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

impl Finding {
    /// The chain, map or virtual server that does this with the address asked for, and whose it is, where rules were
    /// read. What was read later than NAT decided is evidence for what stands, not for what stood.
    pub(super) fn with_ruling(self, case: &Case<'_>, rule: Rule) -> Self {
        let verb = match rule {
            Rule::Forwards => "forwards",
            Rule::Refuses => "refuses",
            Rule::Drops => "drops",
            Rule::Missing => return self,
        };
        let asked = case.vip.addr;
        let rulings = case.ctx.node.rulings(asked, case.vip.port.protocol, case.flow.orig.src.ip());
        let mut finding = self;
        for ruling in rulings.iter().filter(|ruling| ruling.rule == rule) {
            let chain = ruling.chain.as_deref().unwrap_or("a rule");
            let what = format!("{}: {chain} {verb} connections to {asked} ({})", ruling.writer, case.name());
            finding = finding.node(case.ctx.node.read_at(), what);
        }
        finding
    }
}
