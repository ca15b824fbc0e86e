//! The test API server's Pods that a client creates and deletes.
//!
//! A test sets the status that they get, and how late a creation is answered. As on a real server, a creation goes on when its
//! client has left.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

use super::{Shared, http::status, store::Resource};

/// The fate of created Pods.
#[derive(Clone, Debug, Default)]
pub(super) struct Creation {
    /// Null: the kubelet reports nothing.
    pub(super) status: Value,
    pub(super) delay: Duration,
}

pub(super) async fn create(
    State(shared): State<Arc<Shared>>,
    Path((namespace, plural)): Path<(String, String)>,
    Json(mut pod): Json<Value>,
) -> Response {
    if plural != "pods" {
        return status(405, "MethodNotAllowed", "only Pods are created here");
    }
    let Creation { status: of_pod, delay } = {
        let mut container = shared.container();
        container.creations += 1;
        container.creation.clone()
    };
    pod["metadata"]["namespace"] = json!(namespace);
    pod["status"] = of_pod;
    let created = tokio::spawn(async move {
        tokio::time::sleep(delay).await;
        let applied = shared.store().apply(pod.clone());
        shared.wake();
        applied.map(|()| pod)
    });
    match created.await {
        Ok(Ok(pod)) => (StatusCode::CREATED, Json(pod)).into_response(),
        Ok(Err(why)) => status(422, "Invalid", &why),
        Err(_) => status(500, "InternalError", "the creation ended"),
    }
}

pub(super) async fn delete(
    State(shared): State<Arc<Shared>>,
    Path((namespace, plural, name)): Path<(String, String, String)>,
) -> Response {
    if plural != "pods" {
        return status(405, "MethodNotAllowed", "only Pods are deleted here");
    }
    if let Some((code, message)) = shared.container().kept.get(&name).cloned() {
        return status(code, "Refused", &message);
    }
    let deleted = shared.store().delete(Resource::Pods, &namespace, &name);
    shared.wake();
    if deleted {
        Json(json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})).into_response()
    } else {
        status(404, "NotFound", &format!("pods \"{name}\" not found"))
    }
}

/// Whether the object has these labels: `KEY=VALUE,…`.
pub(super) fn has_labels(object: &Value, selector: &str) -> bool {
    let mut wanted = selector.split(',').filter_map(|pair| pair.split_once('='));
    wanted.all(|(key, value)| {
        let label = object.pointer("/metadata/labels").and_then(|labels| labels.get(key));
        label.and_then(Value::as_str) == Some(value)
    })
}
