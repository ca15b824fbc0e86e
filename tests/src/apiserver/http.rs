//! The test API server's HTTP side: paths, lists, watch streams, statuses.
//!
//! Owns the shapes of <https://kubernetes.io/docs/reference/using-api/api-concepts/>. Must not change objects.

use std::{collections::HashMap, convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    body::Body,
    extract::{Path, Query, Request, State},
    http::{StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{get, post},
};
use futures::stream;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

use super::{Shared, exec, pods, store::Resource};

type Params = Query<HashMap<String, String>>;

/// Begins the token of a page within a population. No namespace begins like this.
const POPULATION: &str = "~";

/// The length of a watch whose client sets none.
const WATCH_SECONDS: u64 = 300;

pub(super) fn router(shared: Arc<Shared>) -> Router {
    Router::new()
        .route("/version", get(version))
        .route("/readyz", get(|| async { "ok" }))
        .route("/api", get(|| async { Json(json!({"kind": "APIVersions", "versions": ["v1"]})) }))
        .route("/apis", get(groups))
        .route("/api/v1", get(|| async { resources("v1") }))
        .route("/apis/discovery.k8s.io/v1", get(|| async { resources("discovery.k8s.io/v1") }))
        .route("/api/v1/{plural}", get(core_all))
        .route("/api/v1/{plural}/{name}", get(core_unscoped))
        .route("/api/v1/namespaces/{namespace}/{plural}", get(core_namespaced).post(pods::create))
        .route("/api/v1/namespaces/{namespace}/{plural}/{name}", get(core_one).delete(pods::delete))
        .route("/api/v1/namespaces/{namespace}/pods/{name}/exec", get(exec::exec))
        .route("/api/v1/namespaces/{namespace}/pods/{name}/attach", get(exec::exec))
        .route("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", post(exec::review))
        .route("/apis/discovery.k8s.io/v1/{plural}", get(discovery_all))
        .route("/apis/discovery.k8s.io/v1/namespaces/{namespace}/{plural}", get(discovery_namespaced))
        .route("/apis/discovery.k8s.io/v1/namespaces/{namespace}/{plural}/{name}", get(discovery_one))
        .fallback(|| async { status(404, "NotFound", "the server could not find the requested resource") })
        .layer(middleware::from_fn_with_state(Arc::clone(&shared), unless_hung))
        .with_state(shared)
}

/// Delays every answer while the server hangs.
async fn unless_hung(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    awake(&mut shared.hung.subscribe()).await;
    next.run(request).await
}

async fn awake(hung: &mut watch::Receiver<bool>) {
    // The sender lives as long as the server.
    let _ = hung.wait_for(|hung| !hung).await;
}

async fn version() -> Json<Value> {
    Json(json!({"major": "1", "minor": "36", "gitVersion": "v1.36.2", "platform": "linux/amd64"}))
}

async fn groups() -> Json<Value> {
    let version = json!({"groupVersion": "discovery.k8s.io/v1", "version": "v1"});
    let group = json!({"name": "discovery.k8s.io", "versions": [version], "preferredVersion": version});
    Json(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}))
}

fn resources(api_version: &str) -> Json<Value> {
    let served = Resource::ALL.into_iter().filter(|resource| resource.api_version() == api_version);
    let describe = |resource: Resource| {
        json!({
            "name": resource.plural(), "singularName": "", "namespaced": resource.is_namespaced(),
            "kind": resource.kind(), "verbs": ["get", "list", "watch"],
        })
    };
    let resources: Vec<_> = served.map(describe).collect();
    Json(
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources}),
    )
}

async fn core_all(State(shared): State<Arc<Shared>>, Path(plural): Path<String>, query: Params) -> Response {
    collection(&shared, Resource::of_plural("v1", &plural), None, &query)
}

async fn core_unscoped(
    State(shared): State<Arc<Shared>>,
    Path((plural, name)): Path<(String, String)>,
) -> Response {
    one(&shared, Resource::of_plural("v1", &plural).filter(|resource| !resource.is_namespaced()), "", &name)
}

async fn core_namespaced(
    State(shared): State<Arc<Shared>>,
    Path((namespace, plural)): Path<(String, String)>,
    query: Params,
) -> Response {
    collection(&shared, Resource::of_plural("v1", &plural), Some(namespace), &query)
}

async fn core_one(
    State(shared): State<Arc<Shared>>,
    Path((namespace, plural, name)): Path<(String, String, String)>,
) -> Response {
    one(&shared, Resource::of_plural("v1", &plural), &namespace, &name)
}

async fn discovery_all(
    State(shared): State<Arc<Shared>>,
    Path(plural): Path<String>,
    query: Params,
) -> Response {
    collection(&shared, Resource::of_plural("discovery.k8s.io/v1", &plural), None, &query)
}

async fn discovery_namespaced(
    State(shared): State<Arc<Shared>>,
    Path((namespace, plural)): Path<(String, String)>,
    query: Params,
) -> Response {
    collection(&shared, Resource::of_plural("discovery.k8s.io/v1", &plural), Some(namespace), &query)
}

async fn discovery_one(
    State(shared): State<Arc<Shared>>,
    Path((namespace, plural, name)): Path<(String, String, String)>,
) -> Response {
    one(&shared, Resource::of_plural("discovery.k8s.io/v1", &plural), &namespace, &name)
}

fn one(shared: &Shared, resource: Option<Resource>, namespace: &str, name: &str) -> Response {
    let Some(resource) = resource else { return not_served() };
    let store = shared.store();
    if let Some((code, message)) = store.refusal(resource) {
        return refused(code, &message);
    }
    match store.get(resource, namespace, name) {
        Some(object) => Json(object).into_response(),
        None => status(404, "NotFound", &format!("{} \"{name}\" not found", resource.plural())),
    }
}

fn collection(
    shared: &Arc<Shared>,
    resource: Option<Resource>,
    namespace: Option<String>,
    query: &HashMap<String, String>,
) -> Response {
    let Some(resource) = resource else { return not_served() };
    if let Some((code, message)) = shared.store().refusal(resource) {
        return refused(code, &message);
    }
    match query.get("watch").map(String::as_str) {
        Some("1" | "true") => open_watch(shared, resource, namespace, query),
        _ => list(shared, resource, namespace.as_deref(), query),
    }
}

fn list(
    shared: &Shared,
    resource: Resource,
    namespace: Option<&str>,
    query: &HashMap<String, String>,
) -> Response {
    let mut store = shared.store();
    let limit: usize = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(0);
    let token = query.get("continue").filter(|token| !token.is_empty());
    if token.is_none() {
        store.count_list(resource);
    }
    let mut page = Page { resource, version: store.version(), items: String::new(), count: 0 };
    // The objects of a population follow the others.
    let index = token.and_then(|token| token.strip_prefix(POPULATION)?.parse().ok());
    if index.is_none() {
        let after = token.and_then(|token| token.split_once('/'));
        let after = after.map(|(ns, name)| (ns.to_owned(), name.to_owned()));
        let (items, last) = store.list(resource, namespace, after.as_ref(), limit);
        let selector = query.get("labelSelector").map_or("", String::as_str);
        for item in items.iter().filter(|item| pods::has_labels(item, selector)) {
            page.push(|text| text.push_str(&item.to_string()));
        }
        if let Some((ns, name)) = last {
            return page.into_response(&format!("{ns}/{name}"));
        }
    }
    drop(store);
    let Some(population) = shared.population().filter(|_| namespace.is_none()) else {
        return page.into_response("");
    };
    for index in index.unwrap_or(0)..population.count(resource) {
        if limit > 0 && page.count >= limit {
            return page.into_response(&format!("{POPULATION}{index}"));
        }
        page.push(|text| population.write(resource, index, text));
    }
    page.into_response("")
}

/// A page of a list, as text: a large one takes several times the memory as a tree.
struct Page {
    resource: Resource,
    version: u64,
    items: String,
    count: usize,
}

impl Page {
    fn push(&mut self, write: impl FnOnce(&mut String)) {
        self.items.push_str(if self.count > 0 { "," } else { "" });
        write(&mut self.items);
        self.count += 1;
    }

    fn into_response(self, next: &str) -> Response {
        let Self { resource, version, items, .. } = self;
        let (kind, api_version) = (resource.kind(), resource.api_version());
        let metadata = json!({"resourceVersion": version.to_string(), "continue": next});
        let body = format!(
            r#"{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":{metadata},"items":[{items}]}}"#
        );
        ([(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

/// One open watch.
struct Watch {
    shared: Arc<Shared>,
    resource: Resource,
    namespace: Option<String>,
    /// Every change up to this version has been sent.
    version: u64,
    bookmarks: bool,
    next_bookmark: Instant,
    until: Instant,
    changed: watch::Receiver<u64>,
    cut: watch::Receiver<u64>,
    hung: watch::Receiver<bool>,
    /// An ERROR event has been sent: no event may follow it.
    over: bool,
}

fn open_watch(
    shared: &Arc<Shared>,
    resource: Resource,
    namespace: Option<String>,
    query: &HashMap<String, String>,
) -> Response {
    let mut store = shared.store();
    store.count_watch(resource);
    // A real server begins a watch without a version with the existing objects. This one begins with the next change.
    let version =
        query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(store.version());
    drop(store);
    let seconds =
        query.get("timeoutSeconds").and_then(|seconds| seconds.parse().ok()).unwrap_or(WATCH_SECONDS);
    let flag = query.get("allowWatchBookmarks").map(String::as_str);
    let now = Instant::now();
    let watch = Watch {
        shared: Arc::clone(shared),
        resource,
        namespace,
        version,
        bookmarks: matches!(flag, Some("1" | "true")),
        next_bookmark: now + shared.bookmark_period(),
        until: now + Duration::from_secs(seconds),
        changed: shared.changed.subscribe(),
        cut: shared.cut.subscribe(),
        hung: shared.hung.subscribe(),
        over: false,
    };
    let lines = stream::unfold(watch, |mut watch| async move {
        let lines = watch.next().await?;
        Some((Ok::<_, Infallible>(lines), watch))
    });
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(lines)).into_response()
}

impl Watch {
    /// The next lines; `None` at the end of the stream.
    async fn next(&mut self) -> Option<String> {
        loop {
            awake(&mut self.hung).await;
            if self.over {
                return None;
            }
            if let Some(lines) = self.pending() {
                return Some(lines);
            }
            tokio::select! {
                changed = self.changed.changed() => changed.ok()?,
                hung = self.hung.changed() => hung.ok()?,
                _ = self.cut.changed() => return None,
                () = sleep_until(self.until) => return None,
                () = sleep_until(self.next_bookmark), if self.bookmarks => {
                    if !*self.hung.borrow() {
                        return Some(self.bookmark());
                    }
                }
            }
        }
    }

    /// The events since the last lines.
    fn pending(&mut self) -> Option<String> {
        let store = self.shared.store();
        if store.is_gone(self.version) {
            self.over = true;
            let message = format!("too old resource version: {} ({})", self.version, store.version());
            return Some(line("ERROR", &status_object(410, "Expired", &message)));
        }
        let events = store.since(self.resource, self.namespace.as_deref(), self.version);
        self.version = store.version();
        let lines: String = events.iter().map(|event| line(event.what, &event.object)).collect();
        (!lines.is_empty()).then_some(lines)
    }

    fn bookmark(&mut self) -> String {
        self.next_bookmark = Instant::now() + self.shared.bookmark_period();
        line(
            "BOOKMARK",
            &json!({
                "kind": self.resource.kind(),
                "apiVersion": self.resource.api_version(),
                "metadata": {"resourceVersion": self.version.to_string()},
            }),
        )
    }
}

fn line(what: &str, object: &Value) -> String {
    let mut line = json!({"type": what, "object": object}).to_string();
    line.push('\n');
    line
}

fn not_served() -> Response {
    status(404, "NotFound", "the server could not find the requested resource")
}

fn refused(code: u16, message: &str) -> Response {
    let reason = StatusCode::from_u16(code).ok().and_then(|status| status.canonical_reason());
    status(code, &reason.unwrap_or_default().replace(' ', ""), message)
}

pub(super) fn status(code: u16, reason: &str, message: &str) -> Response {
    let status = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(status_object(code, reason, message))).into_response()
}

fn status_object(code: u16, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}
