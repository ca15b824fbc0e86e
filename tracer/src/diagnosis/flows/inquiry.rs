//! A flow before its verdict: until when the cluster's metadata may still change it, and whether the node's rules matter.
//!
//! Looks up each thing once, for these questions and for the verdict, whose rules are in the module above.

use std::cell::OnceCell;

use super::{
    Context, Outline,
    case::{self, Case, Choice},
    ipvs, rule, stale_endpoints, withdrawal,
};
use crate::{
    cluster::{Address, Standing},
    flow::{Flow, Outcome},
    time::Timestamp,
};

/// One flow, with what has been looked up about it so far.
pub struct Inquiry<'a> {
    pub(super) flow: &'a Flow,
    pub(super) ctx: &'a Context<'a>,
    choice: Choice<'a>,
    address: OnceCell<Address<'a>>,
    case: OnceCell<Case<'a>>,
}

impl std::fmt::Debug for Inquiry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inquiry").field("flow", &self.flow.id).finish_non_exhaustive()
    }
}

impl<'a> Inquiry<'a> {
    pub fn new(flow: &'a Flow, ctx: &'a Context<'a>) -> Self {
        let choice = Choice::of(flow, ctx);
        Self { flow, ctx, choice, address: OnceCell::new(), case: OnceCell::new() }
    }

    fn address(&self) -> Address<'a> {
        *self.address.get_or_init(|| case::address(self.flow, self.ctx))
    }

    /// The flow joined with the cluster and the node, or the meaning of its address if that is no Service port.
    pub(super) fn into_case(self) -> Result<Case<'a>, Address<'a>> {
        let address = self.address();
        let Self { flow, ctx, choice, case, .. } = self;
        match address {
            Address::Vip(vip) => Ok(case.into_inner().unwrap_or_else(|| Case::of(flow, ctx, vip, choice))),
            other => Err(other),
        }
    }

    /// Whether the client used an address of a Service, also one that only this node knows as its own.
    pub fn is_to_service(&self) -> bool {
        self.address() != Address::Other
    }

    /// Until when the cluster's metadata can still clear a [wrong choice](Self::is_choice_wrong).
    ///
    /// kube-proxy and viptrace watch the API server independently, and either can be ahead: an endpoint that no slice lists
    /// yet may have been added, one that left may have returned, and the last one may just have gone. An endpoint counts as
    /// wrong only if the metadata does not list it within the grace after it was chosen, and a refusal only if the metadata
    /// still lists some then.
    pub fn end_of_grace(&self) -> Timestamp {
        self.choice.decided.saturating_add(self.ctx.grace)
    }

    /// Whether kube-proxy should not have chosen the flow's endpoint, or that of an earlier attempt, for longer than the
    /// grace; or whether a rule stopped the flow although there have been endpoints for as long.
    pub fn is_choice_wrong(&self) -> bool {
        let Self { flow, ctx, choice, .. } = *self;
        if choice.endpoint.is_none() && flow.trouble.is_none() {
            return false;
        }
        let Address::Vip(vip) = self.address() else { return false };
        let for_long = |since: Timestamp, decided| since.at_latest().saturating_add(ctx.grace) < decided;
        if choice.endpoint.is_none() {
            let usable = || ctx.cluster.usable(&vip, ctx.node_name, choice.decided);
            return case::is_stopped_by_kube_proxy(flow, &vip)
                && case::other_nodes_port(&vip, ctx, choice.decided).is_none()
                && usable().is_some_and(|usable| {
                    let since = case::choosable_since(ctx, &vip, usable, choice.decided);
                    !case::has_none(&vip, usable) && for_long(since, choice.decided)
                });
        }
        let is_wrong = |Choice { decided, endpoint, .. }: Choice<'_>| {
            endpoint.is_some_and(|endpoint| match case::standing(ctx, &vip, endpoint, decided) {
                Standing::NeverSeen => true,
                Standing::UnusableSince(since) => {
                    let earlier = || {
                        let state = ctx.cluster.membership(&vip, endpoint, decided);
                        withdrawal::withdrawn_since(ctx, &vip, endpoint, &state, decided)
                    };
                    for_long(since, decided) || earlier().is_some_and(|since| for_long(since, decided))
                }
                Standing::Serves | Standing::Unknown => false,
            })
        };
        is_wrong(choice) || Choice::others(flow, ctx, choice.endpoint).any(is_wrong)
    }

    /// Until when the cluster's metadata can still show that the flow failed because its endpoint ended, as far as it has
    /// not shown that yet; `None` if nothing of the kind would explain it. An endpoint that ends, and kube-proxy, which
    /// removes it, may both be ahead of viptrace: as for a [wrong choice](Self::end_of_grace), the metadata has the grace to
    /// follow.
    pub fn end_of_departure(&self) -> Option<Timestamp> {
        let Self { flow, ctx, choice, .. } = *self;
        let is_healthy = flow.trouble.is_none() && flow.client.reset_received().is_none();
        // Every flow asks for this, and the rest takes look-ups.
        if is_healthy || !(flow.was_answered() || flow.outcome() == Outcome::Refused) {
            return None;
        }
        let Address::Vip(vip) = self.address() else { return None };
        let case = self.case.get_or_init(|| Case::of(flow, ctx, vip, choice));
        if stale_endpoints::may_depart(case) {
            return Some(self.end_of_grace());
        }
        ipvs::may_have_left(case)
    }

    /// The outline of the flow's verdict; `None` if it concerns neither a Service nor a probe.
    pub fn outline(self) -> Option<Outline> {
        Some(rule(self, &|_, _| false)?.outline())
    }
}
