//! Reports from Kubernetes with their times: the history of Services, `EndpointSlices`, Pods and Nodes.
//!
//! The trace loop owns a [`Cluster`] and feeds it from a [`Feed`]. [`history`] is pure and answers the queries of the
//! diagnosis; [`watch`] and [`folder`] do the I/O that fills it; [`trim`] converts API objects to small structs.

use std::{future::pending, path::PathBuf, time::Duration};

use tokio::{
    sync::mpsc,
    time::{Instant, timeout_at},
};

use crate::{called, error::Hint, time::Timestamp};

mod answer;
mod ends;
mod few;
pub mod folder;
pub(crate) mod history;
pub mod model;
mod proxy;
pub(crate) mod raw;
mod shared;
pub(crate) mod status;
#[cfg(test)]
mod tests;
mod timeline;
pub mod trim;
pub mod watch;

pub(crate) use answer::of_request as request_error;
pub use few::Few;
pub(crate) use folder::FolderError;
pub use history::{Address, History, Membership, Usable, Vip};
pub(crate) use history::{
    EndpointState, Hints, NoEndpointsReason, SavedFacts, SavedObject, Settled, Standing, meant_for,
};
pub use model::{Key, Kind, Via};
pub use status::{Origin, Status};
pub(crate) use watch::AccessError;
pub use watch::{Access, Event, Limits, Update};

/// The default time for which versions are kept: the longest look-back to a cause (an upgrade, catalogue section 3)
/// plus a margin.
pub const LOOK_BACK: Duration = Duration::from_mins(75);

/// The source of the cluster's objects.
#[derive(Clone, Debug)]
pub enum Source {
    /// The API server.
    Watch(Access),
    /// `--cluster-from DIR`.
    Folder(PathBuf),
    /// None: flows are followed, and verdicts report the gap.
    None,
}

#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl Hint for OpenError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Access(error) => error.hint(),
            Self::Folder(error) => error.hint(),
        }
    }
}

/// The API server stopped listing the objects, or refuses to list the Services, without which no flow can be
/// judged.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the API server {server} {}: {}",
    match limit {
        Some(limit) => format!("listed no further object for {} s", limit.as_secs_f64()),
        None => "refuses to list the Services".to_owned(),
    },
    gaps.join("; ")
)]
pub struct SyncError {
    pub server: String,
    /// The limit that passed; `None` if the server refuses.
    pub limit: Option<Duration>,
    pub gaps: Vec<String>,
}

impl Hint for SyncError {
    fn hint(&self) -> Option<String> {
        Some(if self.limit.is_none() {
            "`kubectl auth can-i list services -A` shows whether you may".to_owned()
        } else {
            let lists = called::unless_by_plugin("; --cluster-from DIR reads saved lists instead");
            format!("`kubectl get services -A` shows whether it answers{lists}")
        })
    }
}

/// The cluster's objects, and their freshness and completeness.
#[derive(Debug)]
pub struct Cluster {
    pub history: History,
    pub status: Status,
}

/// Further updates, if the source has any.
#[derive(Debug)]
pub struct Feed(Option<watch::Watcher>);

/// An opened source.
#[derive(Debug)]
pub struct Opened {
    pub cluster: Cluster,
    pub feed: Feed,
    /// The parts of a folder that could not be read.
    pub warnings: Vec<folder::Warning>,
}

impl Source {
    /// Reads the folder, or starts to watch the API server; [`Cluster::sync`] then waits for the first lists.
    pub async fn open(&self, look_back: Duration) -> Result<Opened, OpenError> {
        match self {
            Self::None => {
                let cluster = Cluster { history: History::new(look_back), status: Status::new(Origin::None) };
                Ok(Opened { cluster, feed: Feed(None), warnings: Vec::new() })
            }
            Self::Folder(dir) => {
                let read = folder::read(dir, look_back)?;
                let mut status = Status::new(Origin::Folder { taken: read.taken });
                status.oddities = read.oddities;
                for kind in Kind::ALL {
                    status.kind_mut(kind).synced = read.history.knows(kind);
                }
                let cluster = Cluster { history: read.history, status };
                Ok(Opened { cluster, feed: Feed(None), warnings: read.warnings })
            }
            Self::Watch(access) => {
                let watcher = access.connect().await?;
                let status = Status::new(Origin::ApiServer(watcher.server().to_owned()));
                let cluster = Cluster { history: History::new(look_back), status };
                Ok(Opened { cluster, feed: Feed(Some(watcher)), warnings: Vec::new() })
            }
        }
    }
}

impl Opened {
    /// The objects that another viptrace watches on this server, as it sends them.
    pub(crate) fn relayed(server: &str, look_back: Duration, updates: mpsc::Receiver<Update>) -> Self {
        let status = Status::new(Origin::ApiServer(server.to_owned()));
        let cluster = Cluster { history: History::new(look_back), status };
        let watcher = watch::Watcher::of(server, Limits::default(), updates);
        Self { cluster, feed: Feed(Some(watcher)), warnings: Vec::new() }
    }
}

impl Feed {
    /// The next update; waits forever if there are none. Cancel-safe, as `select!` requires.
    pub async fn next(&mut self) -> Update {
        if let Some(watcher) = &mut self.0
            && let Some(update) = watcher.next().await
        {
            return update;
        }
        pending().await
    }

    /// How long to wait for the server; `None` if the source needs no waiting.
    fn limits(&self) -> Option<Limits> {
        self.0.as_ref().map(watch::Watcher::limits)
    }
}

impl Cluster {
    /// Applies one update.
    pub fn absorb(&mut self, update: Update) {
        let Update { kind, received, event } = update;
        match event {
            Event::Listed(trimmed) => {
                self.status.heard(kind, received);
                self.history.apply_listed(received, trimmed);
            }
            Event::Changed(change) => {
                self.status.heard(kind, received);
                self.history.apply(received, change);
            }
            Event::Synced => {
                self.status.heard(kind, received);
                self.status.kind_mut(kind).synced = true;
                self.history.mark_known(kind);
            }
            Event::Heard => self.status.heard(kind, received),
            Event::Lost(error) => self.status.lost(kind, error, false),
            Event::Denied(error) => self.status.lost(kind, error, true),
            Event::Odd(oddities) => self.status.odd(oddities),
        }
    }

    /// Applies updates until every kind has been listed or refused. Fails if no further object arrives for
    /// [`Limits::sync`], or at once if the server refuses the Services. Returns at once without an API server.
    pub async fn sync(&mut self, feed: &mut Feed) -> Result<(), SyncError> {
        self.sync_with(feed, |_| {}).await
    }

    /// The same, and shows each update to `see`.
    pub(crate) async fn sync_with(
        &mut self,
        feed: &mut Feed,
        mut see: impl FnMut(&Update),
    ) -> Result<(), SyncError> {
        let Some(Limits { sync: limit, .. }) = feed.limits() else { return Ok(()) };
        let mut until = Instant::now() + limit;
        let mut objects = 0;
        let in_time = loop {
            if self.status.is_complete() || self.status.is_denied() {
                break true;
            }
            let Ok(update) = timeout_at(until, feed.next()).await else { break false };
            see(&update);
            self.absorb(update);
            // The lists of a large cluster take minutes. One that is repeated from its beginning adds no object.
            if self.history.objects() > objects {
                objects = self.history.objects();
                until = Instant::now() + limit;
            }
        };
        if in_time && !self.status.is_denied() {
            return Ok(());
        }
        let server = match &self.status.origin {
            Origin::ApiServer(server) => server.clone(),
            Origin::Folder { .. } | Origin::None => String::new(),
        };
        let refused = self.status.kind(Kind::Service).error.clone().filter(|_| in_time);
        Err(match refused {
            Some(why) => SyncError { server, limit: None, gaps: vec![why] },
            None => SyncError { server, limit: Some(limit), gaps: self.status.gaps(Timestamp::MIN) },
        })
    }

    /// The age of the metadata in seconds, for a verdict's `metadata_age`: see [`Status::metadata_age`].
    pub fn metadata_age(&self, now: Timestamp) -> Option<f64> {
        self.status.metadata_age(now).map(|age| age.as_secs_f64())
    }
}
