//! The test API server's commands in containers, and its answers about permissions.
//!
//! Owns the protocol of an exec over a WebSocket (`v4.channel.k8s.io`, `v5.channel.k8s.io`): each message begins with the
//! number of its stream, and the last one is the command's status
//! (<https://github.com/kubernetes/kubernetes/blob/master/staging/src/k8s.io/kubelet/pkg/cri/streaming/remotecommand/websocket.go>).
//! A test supplies the commands' results.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use axum::{
    Json,
    body::Body,
    extract::{Path, Query, Request, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use futures::{SinkExt as _, StreamExt as _};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{self, Message, handshake::derive_accept_key, protocol::Role},
};

use super::{Shared, http::status, pods::Creation};

const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const STATUS: u8 = 3;
/// The bytes of one message.
const CHUNK_BYTES: usize = 32 << 10;

/// A command in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    pub namespace: String,
    pub pod: String,
    pub container: String,
    pub words: Vec<String>,
}

/// The result of a command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ran {
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub exit: u8,
    /// Cut the connection after so many bytes of standard output.
    pub cut_after: Option<usize>,
    /// The command goes on until the client leaves.
    pub goes_on: bool,
}

type Run = dyn Fn(&Command) -> Ran + Send + Sync;

/// What the containers do, and what nobody may.
#[derive(Default)]
pub(super) struct Container {
    pub(super) run: Option<Arc<Run>>,
    pub(super) denied: BTreeSet<String>,
    pub(super) creation: Creation,
    /// The number of Pods whose creation was requested.
    pub(super) creations: u64,
    /// Pods whose deletion is refused.
    pub(super) kept: BTreeMap<String, (u16, String)>,
}

impl fmt::Debug for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Container").field("denied", &self.denied).finish_non_exhaustive()
    }
}

/// A review of the asking user's own permission.
pub(super) async fn review(State(shared): State<Arc<Shared>>, Json(mut review): Json<Value>) -> Response {
    let text = |field: &str| {
        let field = format!("/spec/resourceAttributes/{field}");
        review.pointer(&field).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let resource = match text("subresource") {
        sub if sub.is_empty() => text("resource"),
        sub => format!("{}/{sub}", text("resource")),
    };
    let allowed = !shared.container().denied.contains(&resource);
    review["status"] = json!({"allowed": allowed});
    (StatusCode::CREATED, Json(review)).into_response()
}

/// Runs a command in a container of a Pod that exists.
pub(super) async fn exec(
    State(shared): State<Arc<Shared>>,
    Path((namespace, pod)): Path<(String, String)>,
    Query(parameters): Query<Vec<(String, String)>>,
    mut request: Request,
) -> Response {
    if shared.store().get(super::store::Resource::Pods, &namespace, &pod).is_none() {
        return status(404, "NotFound", &format!("pods \"{pod}\" not found"));
    }
    let values = |name: &str| {
        let named = parameters.iter().filter(|(own, _)| own == name);
        named.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    let container = values("container").concat();
    let command = Command { namespace, pod, container, words: values("command") };
    let Some(run) = shared.container().run.clone() else {
        return status(500, "InternalError", "no container runs commands");
    };
    let Some(accept) = accepted(request.headers()) else {
        return status(400, "BadRequest", "unable to upgrade: it is not a WebSocket of a known protocol");
    };
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(upgraded) = upgrade.await else { return };
        let socket = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, None).await;
        // The client may have gone.
        let _ = answer(socket, &run(&command)).await;
    });
    accept
}

/// The headers that accept the WebSocket, in the first protocol that the client offers.
fn accepted(headers: &HeaderMap) -> Option<Response> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let key = text(header::SEC_WEBSOCKET_KEY)?;
    let mut offered = text(header::SEC_WEBSOCKET_PROTOCOL)?.split(',').map(str::trim);
    let protocol = offered.find(|offer| matches!(*offer, "v4.channel.k8s.io" | "v5.channel.k8s.io"))?;
    let answer = [
        (header::CONNECTION, "Upgrade".to_owned()),
        (header::UPGRADE, "websocket".to_owned()),
        (header::SEC_WEBSOCKET_ACCEPT, derive_accept_key(key.as_bytes())),
        (header::SEC_WEBSOCKET_PROTOCOL, protocol.to_owned()),
    ];
    Some((StatusCode::SWITCHING_PROTOCOLS, answer, Body::empty()).into_response())
}

async fn answer(
    mut socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>,
    ran: &Ran,
) -> Result<(), tungstenite::Error> {
    let message = |stream: u8, bytes: &[u8]| {
        let mut message = vec![stream];
        message.extend_from_slice(bytes);
        Message::binary(message)
    };
    let sent = ran.stdout.get(..ran.cut_after.unwrap_or(usize::MAX)).unwrap_or(&ran.stdout);
    for chunk in sent.chunks(CHUNK_BYTES) {
        socket.send(message(STDOUT, chunk)).await?;
    }
    if ran.cut_after.is_some() {
        return Ok(());
    }
    if ran.goes_on {
        while let Some(Ok(_)) = socket.next().await {}
        return Ok(());
    }
    if !ran.stderr.is_empty() {
        socket.send(message(STDERR, ran.stderr.as_bytes())).await?;
    }
    let result = match ran.exit {
        0 => json!({"metadata": {}, "status": "Success"}),
        exit => json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": format!("command terminated with non-zero exit code: exit status {exit}"),
            "details": {"causes": [{"reason": "ExitCode", "message": exit.to_string()}]},
        }),
    };
    socket.send(message(STATUS, result.to_string().as_bytes())).await?;
    socket.close(None).await?;
    while let Some(Ok(_)) = socket.next().await {}
    Ok(())
}
