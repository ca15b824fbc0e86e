//! One POST request to the receiver, with its limit.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Collected, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};

use crate::agent::{
    Context,
    config::{OtlpConfig, endpoint},
};

/// The longest answer that is read, in bytes.
const MAX_ANSWER_BYTES: usize = 64 << 10;

/// A request that was not accepted.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) why: String,
    /// Whether it may be repeated (OTLP 1.x, "Retryable Response Codes").
    pub(super) again: bool,
    /// When, if the receiver asks for a pause.
    pub(super) after: Option<Duration>,
}

impl Failed {
    fn again(why: &impl ToString) -> Self {
        Self { why: why.to_string(), again: true, after: None }
    }
}

/// Sends `body` as JSON. Returns the body of the answer.
pub(super) async fn post(
    url: &str,
    config: &OtlpConfig,
    context: &Context,
    body: Bytes,
) -> Result<Bytes, Failed> {
    let limit = config.timeout.get();
    match timeout(limit, exchange(url, config, context, body)).await {
        Ok(answer) => answer,
        Err(_) => Err(Failed::again(&format!("no answer within {} s", limit.as_secs_f64()))),
    }
}

async fn exchange(url: &str, config: &OtlpConfig, context: &Context, body: Bytes) -> Result<Bytes, Failed> {
    let uri = endpoint(url).map_err(|error| Failed::again(&error))?;
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let is_tls = uri.scheme_str() == Some("https");
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    let authority = uri.authority().map(ToString::to_string).unwrap_or_default();
    let mut request = Request::post(uri.path())
        .header(header::HOST, authority)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("viptrace/", env!("CARGO_PKG_VERSION")))
        .header(header::CONNECTION, "close")
        .body(Full::new(body))
        .map_err(|error| Failed::again(&error))?;
    for (name, value) in &config.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            request.headers_mut().insert(name, value);
        }
    }
    let stream = TcpStream::connect((host.as_str(), port)).await.map_err(|error| Failed::again(&error))?;
    if !is_tls {
        return send(stream, request).await;
    }
    let connector = context
        .outbox
        .trust
        .connector(config.ca.as_deref(), &context.log)
        .map_err(|error| Failed::again(&error))?;
    let name = ServerName::try_from(host).map_err(|error| Failed::again(&error))?;
    let stream = connector.connect(name, stream).await.map_err(|error| Failed::again(&error))?;
    send(stream, request).await
}

async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<Bytes, Failed> {
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| Failed::again(&error))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| Failed::again(&error))?;
        let status = response.status();
        let after = response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|value| value.trim().parse().ok()).map(Duration::from_secs);
        if !status.is_success() {
            let again = matches!(
                status,
                StatusCode::TOO_MANY_REQUESTS
                    | StatusCode::BAD_GATEWAY
                    | StatusCode::SERVICE_UNAVAILABLE
                    | StatusCode::GATEWAY_TIMEOUT
            );
            return Err(Failed { why: format!("HTTP {status}"), again, after });
        }
        let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect().await;
        // The receiver has accepted the request, whatever its answer is.
        Ok(body.map_or_else(|_| Bytes::new(), Collected::to_bytes))
    };
    tokio::pin!(exchange);
    tokio::select! {
        biased;
        answer = &mut exchange => answer,
        // The answer may have arrived with the end of the connection.
        _ = connection => exchange.await,
    }
}
