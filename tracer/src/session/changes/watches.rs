//! The watches of the API server: when they are lost and back, and how precisely a change after a gap is dated.
//!
//! Owns the gaps of each kind. The first answer after a gap is followed by the changes of the meantime: a list, or the missed
//! events of the watch (<https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes>).

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Change, Subject};
use crate::{
    cluster::{Cluster, Event, Kind, Update},
    text,
    time::Timestamp,
    verdict::ChangeKind,
};

/// A resumed watch has sent the missed events within this time.
const CATCH_UP: Duration = Duration::from_secs(5);

/// A time in which changes of one kind were not received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Gap {
    /// When the API server last sent anything before.
    heard: Timestamp,
    /// When the loss was noticed.
    lost: Timestamp,
    /// `None` while the gap lasts.
    back: Option<Timestamp>,
}

/// The gaps that last, and those whose changes may still arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Watches(BTreeMap<Kind, Gap>);

impl Watches {
    fn lost(&self) -> impl Iterator<Item = Timestamp> {
        self.0.values().filter(|gap| gap.back.is_none()).map(|gap| gap.lost)
    }

    /// Takes an update before it is applied to `cluster`. Returns the loss of the first watch and the return of the last one.
    pub(super) fn update(&mut self, update: &Update, cluster: &Cluster) -> Option<Change> {
        let Update { kind, received, ref event } = *update;
        let since = self.lost().min();
        match event {
            Event::Lost(why) | Event::Denied(why) => {
                let status = cluster.status.kind(kind);
                if !status.connected {
                    return None;
                }
                let heard = status.last_heard.unwrap_or(received).min(received);
                self.0.insert(kind, Gap { heard, lost: received, back: None });
                let text = format!("viptrace lost its watch of the API server: {why}");
                let lost = Change::at(received, ChangeKind::ApiLost, Subject::ApiServer, text);
                since.is_none().then_some(lost)
            }
            Event::Odd(_) => None,
            Event::Heard | Event::Listed(_) | Event::Changed(_) | Event::Synced => {
                let gap = self.0.get_mut(&kind)?;
                let back = *gap.back.get_or_insert(received);
                // After a list the watch goes on from its version.
                if matches!(event, Event::Synced) || back.saturating_add(CATCH_UP) < received {
                    self.0.remove(&kind);
                }
                if since.is_none() || self.lost().next().is_some() {
                    return None;
                }
                let lasted = received.since(since.unwrap_or(received));
                let text = format!("viptrace watches the API server again, after {}", text::length(lasted));
                Some(Change::at(received, ChangeKind::ApiBack, Subject::ApiServer, text))
            }
        }
    }

    /// The earliest time of a change that arrives now; `None` if it arrives without delay.
    pub(super) fn earliest(&self, kind: Kind) -> Option<Timestamp> {
        self.0.get(&kind).map(|gap| gap.heard)
    }
}
