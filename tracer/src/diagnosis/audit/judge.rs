//! The state of a difference by kube-proxy's own times: in flight, not written, not received, or changed by another
//! program.

use std::collections::BTreeSet;

use super::{Aspect, Context, Discrepancy, Expected, Kind, SyncState};
use crate::{
    net::Family,
    node::ProxyMode,
    rules::{Ruleset, Writer},
};

/// The writer of kube-proxy's mode among those that have rules. Of two iptables backends, the one that names more
/// of the existing Services: kube-proxy no longer maintains the other's rules.
pub(super) fn writer_of(
    expected: &Expected,
    rules: &Ruleset,
    mode: ProxyMode,
    family: Family,
    writers: &[Writer],
) -> Option<Writer> {
    let of_mode = |writer: &&Writer| match mode {
        ProxyMode::Iptables => writer.is_iptables(),
        ProxyMode::Nftables => **writer == Writer::Nftables,
        ProxyMode::Ipvs => **writer == Writer::Ipvs,
    };
    let candidates = writers.iter().filter(of_mode).copied().collect::<Vec<_>>();
    if candidates.len() < 2 {
        return candidates.first().copied();
    }
    let known = expected.ports.iter().flat_map(|port| port.frontends.iter().map(|known| known.frontend));
    let known = known.collect::<BTreeSet<_>>();
    let named = |writer: &Writer| {
        rules.of(*writer).frontends(family).into_keys().filter(|frontend| known.contains(frontend)).count()
    };
    candidates.into_iter().max_by_key(named)
}

pub(super) fn sync_state(discrepancy: &Discrepancy, context: &Context) -> SyncState {
    let sync = context.sync;
    // Rules that kube-proxy never writes in this form cannot be in flight.
    let own = matches!(
        discrepancy.aspect,
        Aspect::Reach
            | Aspect::Refusal
            | Aspect::InternalPolicy
            | Aspect::ExternalPolicy
            | Aspect::Endpoint
            | Aspect::Frontend
            | Aspect::Affinity
            | Aspect::SourceRanges
            | Aspect::UnlistedPort
    ) && discrepancy.kind != Kind::Surplus
        || discrepancy.aspect == Aspect::Frontend;
    let Some(since) = discrepancy.since else { return SyncState::Unknown };
    if own && context.at.since(since.at_latest()) < sync.grace {
        return SyncState::InFlight;
    }
    let (Some(queued), Some(synced)) = (sync.last_queued, sync.last_synced) else {
        return SyncState::Unknown;
    };
    if queued > synced {
        let waits = context.at.since(queued);
        return if waits < sync.grace { SyncState::InFlight } else { SyncState::Failing };
    }
    // kube-proxy also writes without a change, at its period: only a change is queued (`Proxier.Sync`,
    // pkg/proxy/iptables/proxier.go).
    let is_unheard = queued < since && (own || synced < since);
    if is_unheard { SyncState::Unheard } else { SyncState::Overwritten }
}
