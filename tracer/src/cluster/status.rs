//! The freshness and completeness of the metadata, for each kind.
//!
//! Owns the meaning of "metadata is N s old". Has no clock: the caller passes the time. Must not connect to a server.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    cluster::{model::Kind, trim::Oddity},
    text::list,
    time::Timestamp,
};

/// The maximum number of oddities kept as text; all are counted.
const MAX_ODDITIES: usize = 20;

/// The source of the metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// An API server, by its URL.
    ApiServer(String),
    /// A folder, written at that time.
    Folder { taken: Option<Timestamp> },
    /// There is no source.
    None,
}

/// The status of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindStatus {
    /// All objects of this kind have been listed at least once.
    pub synced: bool,
    /// A watch is open and has received data.
    pub connected: bool,
    /// When the API server last sent anything about this kind: an event, a bookmark, an answer.
    pub last_heard: Option<Timestamp>,
    /// Why there is no connection now.
    pub error: Option<String>,
    /// The server refuses this kind (RBAC), or does not have it: facts that depend on it are unknown.
    pub denied: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub origin: Origin,
    kinds: [KindStatus; Kind::ALL.len()],
    /// The number of unusable parts of objects.
    pub oddities: u64,
    /// The first of them.
    pub odd: Vec<Oddity>,
}

impl Status {
    pub fn new(origin: Origin) -> Self {
        Self { origin, kinds: Default::default(), oddities: 0, odd: Vec::new() }
    }

    pub const fn kind(&self, kind: Kind) -> &KindStatus {
        match (&self.kinds, kind) {
            ([service, ..], Kind::Service) => service,
            ([_, slice, ..], Kind::EndpointSlice) => slice,
            ([_, _, pod, _], Kind::Pod) => pod,
            ([.., node], Kind::Node) => node,
        }
    }

    pub(super) const fn kind_mut(&mut self, kind: Kind) -> &mut KindStatus {
        match (&mut self.kinds, kind) {
            ([service, ..], Kind::Service) => service,
            ([_, slice, ..], Kind::EndpointSlice) => slice,
            ([_, _, pod, _], Kind::Pod) => pod,
            ([.., node], Kind::Node) => node,
        }
    }

    pub(super) fn heard(&mut self, kind: Kind, at: Timestamp) {
        let status = self.kind_mut(kind);
        status.last_heard = status.last_heard.max(Some(at));
        status.connected = true;
        status.denied = false;
        status.error = None;
    }

    pub(super) fn lost(&mut self, kind: Kind, error: String, denied: bool) {
        let status = self.kind_mut(kind);
        status.connected = false;
        status.denied = denied;
        status.error = Some(error);
    }

    pub(super) fn odd(&mut self, oddities: impl IntoIterator<Item = Oddity>) {
        for oddity in oddities {
            self.oddities += 1;
            if self.odd.len() < MAX_ODDITIES {
                self.odd.push(oddity);
            }
        }
    }

    /// Whether every kind has been listed, except refused ones.
    pub fn is_complete(&self) -> bool {
        self.kinds.iter().all(|kind| kind.synced || kind.denied) && self.kinds.iter().any(|kind| kind.synced)
    }

    /// Whether the server refuses the Services, without which no flow can be attributed.
    pub fn is_denied(&self) -> bool {
        self.kind(Kind::Service).denied
    }

    /// The age of the metadata at `now`; `None` if there is none.
    ///
    /// Zero while every watch is open: an API server sends each change at once, and a watch that is silent for longer
    /// than `Limits::silence` is reopened. After a watch is lost, the time since its last data, because later changes
    /// are unknown, whether the server is lost or refuses. The oldest kind counts, except those that it always refused. For a
    /// folder, the time since its oldest file was written.
    pub fn metadata_age(&self, now: Timestamp) -> Option<Duration> {
        match &self.origin {
            Origin::None => None,
            Origin::Folder { taken } => taken.map(|taken| now.since(taken)),
            Origin::ApiServer(_) => {
                let followed = self.kinds.iter().filter(|kind| kind.synced);
                let age = |kind: &KindStatus| match (kind.connected, kind.last_heard) {
                    (true, _) => Duration::ZERO,
                    (false, Some(heard)) => now.since(heard),
                    (false, None) => Duration::MAX,
                };
                followed.map(age).max()
            }
        }
    }

    /// The current gaps in words, with one line for the kinds that share a reason.
    pub fn gaps(&self, now: Timestamp) -> Vec<String> {
        let Origin::ApiServer(server) = &self.origin else { return Vec::new() };
        let mut gaps: Vec<(Gap, &str, Vec<&'static str>)> = Vec::new();
        for kind in Kind::ALL {
            let status = self.kind(kind);
            let why = status.error.as_deref().unwrap_or("not answered yet");
            let gap = match status.last_heard {
                _ if status.denied && !status.synced => Gap::Denied,
                _ if status.connected && status.synced => continue,
                Some(heard) if status.synced => Gap::Old { seconds: now.since(heard).as_secs() },
                _ => Gap::Incomplete,
            };
            match gaps.iter_mut().find(|(other, cause, _)| (*other, *cause) == (gap, why)) {
                Some((.., kinds)) => kinds.push(kind.plural()),
                None => gaps.push((gap, why, vec![kind.plural()])),
            }
        }
        let in_words = |(gap, why, kinds): (Gap, &str, Vec<&str>)| {
            let kinds = list(&kinds);
            match gap {
                Gap::Denied => format!("{kinds} are not known: {why}"),
                Gap::Incomplete => format!("{kinds} are not complete yet: {why}"),
                Gap::Old { seconds } => format!("{kinds} are {seconds} s old: {server}: {why}"),
            }
        };
        gaps.into_iter().map(in_words).collect()
    }
}

/// The gap of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gap {
    Denied,
    Incomplete,
    Old { seconds: u64 },
}
