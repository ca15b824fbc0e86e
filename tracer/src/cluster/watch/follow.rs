//! Follows one kind: lists, watches from there, and starts again after an error.
//!
//! Owns the protocol (<https://kubernetes.io/docs/reference/using-api/api-concepts/>): pages, resourceVersions,
//! bookmarks, 410 Gone. Must not decide the meaning of an outage.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{AsyncReadExt as _, StreamExt as _};
use k8s_openapi::{
    api::{core::v1 as core, discovery::v1 as discovery},
    apimachinery::pkg::apis::meta::v1::ListMeta,
};
use kube::{
    Client, Resource as _,
    core::{
        Request, WatchEvent,
        params::{ListParams, WatchParams},
    },
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};

use super::{Event, Limits, Update};
use crate::cluster::{
    answer,
    model::{Change, Key, Kind, Trimmed},
    shared::Shared,
    trim::{Oddity, Source, key_of, trim},
};
use crate::kernel::{now, wall_ahead_ns};

/// The page size of a list, as in kubectl.
const PAGE: u32 = 500;

/// The requested length of a watch, in seconds; the server would close it by itself after 5 to 10 minutes.
const WATCH_SECONDS: u32 = 290;

/// The interval of requests for a refused kind, whose permission may be granted later.
const DENIED_RETRY: Duration = Duration::from_mins(1);

/// A server that no longer has the version (410 Gone) reports it as the first event of the watch. A watch counts as
/// open only if no such event arrives for this long.
const GONE_WAIT: Duration = Duration::from_secs(1);

/// Why a list or a watch ended.
enum End {
    /// The resourceVersion is too old (410): list again.
    Gone,
    /// Reopen the watch at its last version.
    Again,
    Lost(String),
    Denied(String),
    /// The receiver of the updates is gone.
    Unwanted,
}

/// A page of a list. Its items stay text until they are trimmed one by one: as trees of values they would take several
/// times the size of the page. One that violates the API must not hide the others.
#[derive(Deserialize)]
struct Page<'t> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(borrow, default)]
    items: Option<Vec<&'t RawValue>>,
}

/// Follows `kind` until the receiver is gone.
pub(super) async fn follow(
    kind: Kind,
    client: Client,
    limits: Limits,
    updates: mpsc::Sender<Update>,
    shared: Arc<Mutex<Shared>>,
) {
    let mut follower = Follower {
        kind,
        client,
        limits,
        updates,
        shared,
        known: BTreeSet::new(),
        listed: Vec::new(),
        was_listed: false,
        version: None,
    };
    let mut failures = 0;
    loop {
        let begun = Instant::now();
        let end = match follower.version.clone() {
            None => follower.list().await,
            Some(version) => follower.watch(&version).await,
        };
        let lasted = begun.elapsed() >= limits.retry_max;
        let pause = match end {
            Ok(()) => {
                failures = 0;
                continue;
            }
            Err(End::Unwanted) => return,
            // Servers close watches regularly; a server that closes them at once must not be overloaded.
            Err(End::Again) if lasted => continue,
            Err(End::Again) => None,
            Err(End::Gone) => {
                // The server answers and the next step is clear: changes made meanwhile must not wait for a back-off.
                follower.version = None;
                failures = 0;
                None
            }
            Err(End::Lost(why)) => {
                if follower.send(Event::Lost(why)).await.is_err() {
                    return;
                }
                None
            }
            Err(End::Denied(why)) => {
                if follower.send(Event::Denied(why)).await.is_err() {
                    return;
                }
                // A server that has just started refuses until it has read its roles.
                (!follower.was_listed).then_some(DENIED_RETRY.max(limits.retry_max))
            }
        };
        failures = if lasted { 0 } else { failures };
        sleep(pause.unwrap_or_else(|| backoff(limits, failures))).await;
        failures = failures.saturating_add(1);
    }
}

/// Doubles with each failure up to the limit, with up to a quarter of jitter, so that many nodes do not reconnect at
/// once.
fn backoff(limits: Limits, failures: u32) -> Duration {
    let factor = 2_u32.saturating_pow(failures);
    let pause = limits.retry.saturating_mul(factor).min(limits.retry_max);
    let spread = (now().as_unix_ns() / 1_000) % 256;
    pause.mul_f64(1.0 - f64::from(spread as u32) / 1024.0)
}

struct Follower {
    kind: Kind,
    client: Client,
    limits: Limits,
    updates: mpsc::Sender<Update>,
    shared: Arc<Mutex<Shared>>,
    /// The objects sent and not deleted, so that a later list shows which ones are gone.
    known: BTreeSet<Key>,
    /// Those of a list that is not complete.
    listed: Vec<Key>,
    /// Whether a list was complete once.
    was_listed: bool,
    /// The version to watch from; `None`: list first.
    version: Option<String>,
}

impl Follower {
    async fn send(&self, event: Event) -> Result<(), End> {
        let mut update = Update { kind: self.kind, received: now(), event };
        update.make_trace_time(wall_ahead_ns());
        self.updates.send(update).await.map_err(|_| End::Unwanted)
    }

    fn request(&self) -> Request {
        Request::new(match self.kind {
            Kind::Service => core::Service::url_path(&(), None),
            Kind::EndpointSlice => discovery::EndpointSlice::url_path(&(), None),
            Kind::Pod => core::Pod::url_path(&(), None),
            Kind::Node => core::Node::url_path(&(), None),
        })
    }

    /// Sends all objects, then deletes the known ones that are not in the list.
    async fn list(&mut self) -> Result<(), End> {
        // Those of a list that was cut off: this one shows which of them are gone.
        self.known.extend(std::mem::take(&mut self.listed));
        let mut params = ListParams::default().limit(PAGE);
        loop {
            let request = self.request().list(&params).map_err(|error| End::Lost(error.to_string()))?;
            let page = self.within(self.text(request)).await?;
            let Page { metadata, items } = serde_json::from_str(&page)
                .map_err(|error| End::Lost(answer::of_request(&kube::Error::SerdeError(error))))?;
            self.send(Event::Heard).await?;
            for item in items.unwrap_or_default() {
                let (key, trimmed, odd) = self.trim(item);
                if let Some(trimmed) = trimmed {
                    self.send(Event::Listed(trimmed)).await?;
                }
                if !odd.is_empty() {
                    self.send(Event::Odd(odd)).await?;
                }
                self.listed.extend(key);
            }
            if let Some(token) = metadata.continue_.filter(|token| !token.is_empty()) {
                params.continue_token = Some(token);
            } else {
                self.version = Some(metadata.resource_version.unwrap_or_default());
                break;
            }
        }
        // A list is in the order of the keys: a tree that is built at once has no half-empty nodes.
        let listed = std::mem::take(&mut self.listed).into_iter().collect();
        let known = std::mem::replace(&mut self.known, listed);
        for key in known.difference(&self.known) {
            self.send(Event::Changed(Change::Delete(self.kind, key.clone()))).await?;
        }
        self.was_listed = true;
        self.send(Event::Synced).await
    }

    /// Sends the changes after `version` until the watch ends, as every watch does.
    async fn watch(&mut self, version: &str) -> Result<(), End> {
        let params = WatchParams::default().timeout(WATCH_SECONDS);
        let request = self.request().watch(&params, version).map_err(|error| End::Lost(error.to_string()))?;
        let stream = self.within(self.client.request_events::<Value>(request)).await?;
        let mut stream = pin!(stream);
        let mut heard = false;
        loop {
            let patience = if heard { self.limits.silence } else { GONE_WAIT };
            let event = match timeout(patience, stream.next()).await {
                // A quiet watch is healthy.
                Err(_) if !heard => {
                    heard = true;
                    self.send(Event::Heard).await?;
                    continue;
                }
                // Silent for too long, or closed by the server: reopening shows whether the server is alive.
                Err(_) | Ok(None) => return Err(End::Again),
                Ok(Some(Err(error))) => return Err(end_of(&error)),
                Ok(Some(Ok(event))) => event,
            };
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => self.put(object).await?,
                WatchEvent::Deleted(object) => {
                    self.advance(&object);
                    if let Some(key) = key_of(self.kind, &object) {
                        self.known.remove(&key);
                        self.send(Event::Changed(Change::Delete(self.kind, key))).await?;
                    }
                }
                WatchEvent::Bookmark(bookmark) => {
                    self.version = Some(bookmark.metadata.resource_version);
                    self.send(Event::Heard).await?;
                }
                WatchEvent::Error(status) => return Err(end_of(&kube::Error::Api(status))),
            }
        }
    }

    async fn put(&mut self, object: Value) -> Result<(), End> {
        self.advance(&object);
        let (key, trimmed, odd) = self.trim(&object);
        self.known.extend(key);
        if let Some(trimmed) = trimmed {
            self.send(Event::Changed(Change::Put(trimmed))).await?;
        }
        if odd.is_empty() { Ok(()) } else { self.send(Event::Odd(odd)).await }
    }

    /// The object's key, if it has one, the trimmed object, and its unusable parts.
    fn trim<'de>(&self, object: impl Source<'de>) -> (Option<Key>, Option<Trimmed>, Vec<Oddity>) {
        let mut odd = Vec::new();
        let Some(mut trimmed) = trim(self.kind, object, &mut odd) else {
            return (key_of(self.kind, object), None, odd);
        };
        self.shared.lock().unwrap_or_else(PoisonError::into_inner).share(&mut trimmed);
        (Some(trimmed.object.key().clone()), Some(trimmed), odd)
    }

    /// The next watch begins after this object.
    fn advance(&mut self, object: &Value) {
        if let Some(version) = object.pointer("/metadata/resourceVersion").and_then(Value::as_str) {
            self.version = Some(version.to_owned());
        }
    }

    /// The body of an answer. `Client::request_text` has it in memory three times.
    async fn text(&self, request: http::Request<Vec<u8>>) -> kube::Result<String> {
        let mut body = pin!(self.client.request_stream(request).await?);
        let mut text = String::new();
        body.read_to_string(&mut text).await.map_err(kube::Error::ReadEvents)?;
        Ok(text)
    }

    async fn within<T>(&self, request: impl Future<Output = kube::Result<T>>) -> Result<T, End> {
        match timeout(self.limits.request, request).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(end_of(&error)),
            Err(_) => Err(End::Lost(format!("no answer within {} s", self.limits.request.as_secs_f64()))),
        }
    }
}

/// The consequence of a failed request for its kind.
fn end_of(error: &kube::Error) -> End {
    let why = answer::of_request(error);
    match error {
        kube::Error::Api(status) if status.code == 410 => End::Gone,
        kube::Error::Api(status) if matches!(status.code, 403 | 404) => End::Denied(why),
        _ => End::Lost(why),
    }
}
