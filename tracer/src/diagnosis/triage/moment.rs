//! Differences that are in flight: kube-proxy is writing, or the rules were read before it could.

use std::time::Duration;

use super::{Facts, sync};
use crate::{
    diagnosis::audit::{Aspect, Discrepancy, Kind, SyncState},
    time::Timestamp,
};

/// The times at which the parts were read, as far as they differ.
pub(super) struct Moment {
    rules: Option<Timestamp>,
    /// kube-proxy is writing its rules now.
    is_under_way: bool,
}

impl Moment {
    pub(super) fn of(facts: &Facts) -> Self {
        Self {
            rules: facts.node.rules_time.filter(|time| *time > Timestamp::MIN),
            is_under_way: sync::is_under_way(facts),
        }
    }

    /// A difference is in flight if its change is younger than the grace at the time when the rules were read, which
    /// may be before the end of the capture; or if its time is unknown and kube-proxy is writing now.
    pub(super) fn settle(&self, found: &mut Discrepancy, grace: Duration) {
        let own = match found.aspect {
            Aspect::Frontend => true,
            Aspect::Writer | Aspect::InvalidPackets => false,
            Aspect::Frame | Aspect::Masquerade | Aspect::Hairpin | Aspect::Share => self.is_under_way,
            _ => found.kind != Kind::Surplus,
        };
        let young = match (found.since, self.rules) {
            (Some(since), Some(rules)) => rules.since(since.at_latest()) < grace,
            _ => false,
        };
        let unknown = matches!(found.sync, SyncState::Unknown | SyncState::Failing);
        if own && (young || unknown && self.is_under_way) {
            found.sync = SyncState::InFlight;
        }
    }
}
