//! How fresh and how complete the metadata is, per kind.
//!
//! Owns the meaning of "metadata is N s old". Knows no clock: the caller gives the time. Must not talk to a server.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    cluster::{model::Kind, trim::Oddity},
    text::list,
    time::Timestamp,
};

/// Oddities kept with their text; all are counted.
const ODDITIES_KEPT: usize = 20;

/// Where the metadata comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// An API server, by its URL.
    ApiServer(String),
    /// A folder, written at that time.
    Folder { taken: Option<Timestamp> },
    /// There is none.
    None,
}

/// What is known about one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KindStatus {
    /// All objects of this kind have been given at least once.
    pub synced: bool,
    /// A watch is open and speaks.
    pub connected: bool,
    /// When the API server last said anything about this kind: an event, a bookmark, the answer to a request.
    pub last_heard: Option<Timestamp>,
    /// Why there is no connection now.
    pub error: Option<String>,
    /// The server refuses this kind to us (RBAC), or does not serve it: what depends on it cannot be told.
    pub denied: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    pub origin: Origin,
    kinds: [KindStatus; Kind::ALL.len()],
    /// Parts of objects that could not be used.
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
            if self.odd.len() < ODDITIES_KEPT {
                self.odd.push(oddity);
            }
        }
    }

    /// Whether every kind has been given, apart from those that are refused to us.
    pub fn is_complete(&self) -> bool {
        self.kinds.iter().all(|kind| kind.synced || kind.denied) && self.kinds.iter().any(|kind| kind.synced)
    }

    /// Whether so much is refused to us that nothing can be judged: without Services no flow is known to be to one.
    pub fn is_denied(&self) -> bool {
        self.kind(Kind::Service).denied
    }

    /// How old the metadata is at `now`; `None` where there is none.
    ///
    /// Zero while every watch is open: an API server tells each change at once, and one that says nothing for longer
    /// than `Limits::silence` is asked again. Once a watch is lost, the time since it last said anything: changes since
    /// then are not known. The worst of the kinds counts, those that are refused to us apart. For a folder, the time
    /// since its oldest file was written.
    pub fn metadata_age(&self, now: Timestamp) -> Option<Duration> {
        match &self.origin {
            Origin::None => None,
            Origin::Folder { taken } => taken.map(|taken| now.since(taken)),
            Origin::ApiServer(_) => {
                let followed = self.kinds.iter().filter(|kind| kind.synced && !kind.denied);
                let age = |kind: &KindStatus| match (kind.connected, kind.last_heard) {
                    (true, _) => Duration::ZERO,
                    (false, Some(heard)) => now.since(heard),
                    (false, None) => Duration::MAX,
                };
                followed.map(age).max()
            }
        }
    }

    /// What is missing or stale now, in words: one line for the kinds that lack for the same reason.
    pub fn gaps(&self, now: Timestamp) -> Vec<String> {
        let Origin::ApiServer(server) = &self.origin else { return Vec::new() };
        let mut gaps: Vec<(Gap, &str, Vec<&'static str>)> = Vec::new();
        for kind in Kind::ALL {
            let status = self.kind(kind);
            let why = status.error.as_deref().unwrap_or("not answered yet");
            let gap = match status.last_heard {
                _ if status.denied => Gap::Denied,
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

/// How a kind lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gap {
    Denied,
    Incomplete,
    Old { seconds: u64 },
}
