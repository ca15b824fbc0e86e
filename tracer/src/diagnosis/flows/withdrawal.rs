//! Since when kube-proxy's rules, or its cleanup of conntrack, should be done with an endpoint that leaves in steps: it
//! terminates and serves, it serves no more, it is removed.
//!
//! Owns the walk back over these steps. Judges nothing.

use std::{net::SocketAddr, time::Duration};

use super::{Case, Context, case, stale_endpoints::termination_grace};
use crate::{
    cluster::{Membership, Vip},
    time::Timestamp,
};

/// The most steps that are followed back; an endpoint leaves in three.
const MAX_STEPS: usize = 8;

/// Since when kube-proxy must not choose this endpoint, which is in this state at `at`; `None` if it may. Each step of its
/// departure is a change of its own, but kube-proxy had its time to write the first.
///
/// kube-proxy sends to a terminating endpoint that serves only while no other is ready (`CategorizeEndpoints`,
/// `pkg/proxy/topology.go`).
pub(super) fn withdrawn_since(
    ctx: &Context<'_>,
    vip: &Vip<'_>,
    endpoint: SocketAddr,
    state: &Membership<'_>,
    at: Timestamp,
) -> Option<Timestamp> {
    first_step(ctx, vip, endpoint, state, at, |state, at| match state {
        Membership::Member { state, since } if state.conditions.may_serve() => {
            let preferred = || preferred_since(ctx, vip, at);
            state.conditions.terminating.then(preferred).flatten().map(|preferred| preferred.max(*since))
        }
        state => state.unusable_since(),
    })
}

/// Since when an endpoint that does not serve at `at` has not: it left, or serves no more. kube-proxy deletes the entries of
/// datagrams from then on, whether the endpoint is listed or not (`CleanStaleEntries`, `pkg/proxy/conntrack/cleanup.go`, with
/// `IsServing`).
pub(super) fn unserved_since(case: &Case<'_>, endpoint: SocketAddr, at: Timestamp) -> Option<Timestamp> {
    let state = case.ctx.cluster.membership(&case.vip, endpoint, at);
    first_step(case.ctx, &case.vip, endpoint, &state, at, |state, _| known(state.unusable_since()))
}

/// Since when an endpoint that has left or terminates at `at` ends: the kubelet counts the Pod's grace from its deletion, with
/// which the slices mark it as terminating.
pub(super) fn began_to_end(
    case: &Case<'_>,
    endpoint: SocketAddr,
    state: &Membership<'_>,
    at: Timestamp,
) -> Option<Timestamp> {
    first_step(case.ctx, &case.vip, endpoint, state, at, |state, _| known(state.ending_since()))
}

/// A step before the known history has no time.
fn known(step: Option<Timestamp>) -> Option<Timestamp> {
    step.filter(|step| *step > Timestamp::MIN)
}

/// The time of the first of the steps that lead to this state at `at` without a break. `step` has the time of the step to a state
/// that the endpoint is in; `None` ends the walk, and so does a time after the beginning of that state.
fn first_step(
    ctx: &Context<'_>,
    vip: &Vip<'_>,
    endpoint: SocketAddr,
    state: &Membership<'_>,
    at: Timestamp,
    step: impl Fn(&Membership<'_>, Timestamp) -> Option<Timestamp>,
) -> Option<Timestamp> {
    let (mut state, mut at, mut first) = (*state, at, None);
    for _ in 0..MAX_STEPS {
        let (Membership::Left { at: begun, .. } | Membership::Member { since: begun, .. }) = state else {
            break;
        };
        let Some(taken) = step(&state, at) else { break };
        first = Some(taken);
        if taken > begun || begun == Timestamp::MIN {
            break;
        }
        at = begun.saturating_sub(Duration::from_nanos(1));
        let before = ctx.cluster.membership(vip, endpoint, at);
        // The same state again is one that is only assumed of the time before the first known version.
        if before.member().map(|member| member.conditions) == state.member().map(|member| member.conditions) {
            break;
        }
        state = before;
    }
    first
}

/// Since when kube-proxy must not choose a terminating endpoint that serves: since another is ready, or always if this
/// kube-proxy does not send to terminating ones.
fn preferred_since(ctx: &Context<'_>, vip: &Vip<'_>, at: Timestamp) -> Option<Timestamp> {
    if case::uses_terminating(ctx) { case::ready_since(ctx, vip, at) } else { Some(Timestamp::MIN) }
}

/// Whether an endpoint that answered had the time of its Pod's end still: kube-proxy is late, and nothing broke.
pub(super) fn is_still_ending(
    case: &Case<'_>,
    endpoint: SocketAddr,
    step: Option<Timestamp>,
    since: Timestamp,
) -> bool {
    let state = case.membership.as_ref().and_then(Membership::state);
    let Some(state) = state.filter(|state| state.conditions.terminating) else { return false };
    // The kubelet counts from when it learns of the deletion, and the slices follow the Pod's end.
    let end = since.saturating_add(termination_grace(case, Some(state), endpoint.ip()));
    // Once it serves no more, or has left, it has only the time that kube-proxy has for that step.
    let may_serve = case.member().is_some_and(|member| member.conditions.may_serve());
    case.within_grace(end) && (may_serve || step.is_some_and(|step| case.within_grace(step)))
}
