//! What a difference means by kube-proxy's own times: on its way, not written, not heard of, or changed by somebody else.

use super::{Aspect, Context, Discrepancy, Kind, SyncState};
use crate::node::{ProxyMode, ruleset::Writer};

/// The writer of kube-proxy's mode among those that have rules; of two iptables backends the first.
pub(super) fn writer_of(mode: ProxyMode, writers: &[Writer]) -> Option<Writer> {
    writers.iter().copied().find(|writer| match mode {
        ProxyMode::Iptables => writer.is_iptables(),
        ProxyMode::Nftables => *writer == Writer::Nftables,
        ProxyMode::Ipvs => *writer == Writer::Ipvs,
    })
}

pub(super) fn judge(discrepancy: &mut Discrepancy, context: &Context) {
    discrepancy.sync = sync_state(discrepancy, context);
    // What lags, and what kube-proxy would not write, is told apart by its times.
    if discrepancy.class == "C5" {
        discrepancy.class = match discrepancy.sync {
            SyncState::InFlight | SyncState::Unknown => "C5",
            SyncState::Failing => "C4",
            SyncState::Unheard => "C2",
            SyncState::Overwritten => "C5e",
        };
    }
}

fn sync_state(discrepancy: &Discrepancy, context: &Context) -> SyncState {
    let sync = context.sync;
    // Rules that kube-proxy never writes so cannot be on their way.
    let own = matches!(
        discrepancy.aspect,
        Aspect::Reach
            | Aspect::Endpoint
            | Aspect::Frontend
            | Aspect::Affinity
            | Aspect::SourceRanges
            | Aspect::UnlistedPort
    ) && discrepancy.kind != Kind::Surplus
        || discrepancy.aspect == Aspect::Frontend;
    let Some(since) = discrepancy.since else { return SyncState::Unknown };
    if own && context.at.since(since) < sync.grace {
        return SyncState::InFlight;
    }
    let (Some(queued), Some(synced)) = (sync.last_queued, sync.last_synced) else {
        return SyncState::Unknown;
    };
    if queued > synced {
        let waits = context.at.since(queued);
        return if waits < sync.grace { SyncState::InFlight } else { SyncState::Failing };
    }
    if synced < since && queued < since { SyncState::Unheard } else { SyncState::Overwritten }
}
