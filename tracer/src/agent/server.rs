//! The HTTP servers: the metrics on one port, the probes on another.
//!
//! Owns the paths, the limits of a connection, and the counts of answers. Flows are never served here.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::registry::Registry;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};

use super::{Context, StartError, access::Decision, config::Authorization, metrics};

/// The most connections of a port; further ones are closed at once.
const MAX_CONNECTIONS: usize = 64;
/// The time for a complete request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// The time of a connection, with all its requests.
const CONNECTION_LIMIT: Duration = Duration::from_mins(10);
/// The pause after a connection that could not be accepted, such as without free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The two servers.
#[derive(Clone, Debug)]
enum Server {
    Metrics(Arc<Registry>),
    Health,
}

impl Server {
    const fn name(&self) -> &'static str {
        match self {
            Self::Metrics(_) => "metrics",
            Self::Health => "health",
        }
    }
}

/// Opens the configured ports and starts their tasks.
pub(super) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) -> Result<(), StartError> {
    let config = Arc::clone(&context.config.borrow());
    let registry = Arc::new(metrics::registry(Arc::clone(&context.figures)));
    for (address, server) in
        [(config.metrics.listen, Server::Metrics(registry)), (config.health.listen, Server::Health)]
    {
        let Some(address) = address else { continue };
        let listener = listen(address)
            .map_err(|error| StartError::Listen { place: format!("{address} ({})", server.name()), error })?;
        if let Ok(address) = listener.local_addr() {
            context.log.info("start", &format!("serves {} on {address}", server.name()));
        }
        tasks.spawn(accept(listener, server, Arc::clone(context)));
    }
    Ok(())
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn accept(listener: TcpListener, server: Server, context: Arc<Context>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                context.log.warn("http", &format!("cannot accept a connection: {error}"));
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
            context
                .log
                .warn("http", &format!("more than {MAX_CONNECTIONS} connections to {}", server.name()));
            continue;
        };
        let (server, context) = (server.clone(), Arc::clone(&context));
        tokio::spawn(async move {
            let _place = place;
            // A client that is too slow, or that went away, needs no answer.
            let _ = tokio::time::timeout(CONNECTION_LIMIT, connection(stream, server, context)).await;
        });
    }
}

async fn connection(stream: TcpStream, server: Server, context: Arc<Context>) {
    let tls = match server {
        Server::Metrics(_) => context.config.borrow().metrics.tls.clone(),
        Server::Health => None,
    };
    let Some(tls) = tls else { return serve(stream, server, context).await };
    let acceptor = match context.certificate.acceptor(&tls, &context.log) {
        Ok(acceptor) => acceptor,
        Err(error) => return context.log.error("tls", &error.to_string()),
    };
    match tokio::time::timeout(REQUEST_LIMIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => serve(stream, server, context).await,
        Ok(Err(error)) => context.log.info("tls", &format!("a client was refused: {error}")),
        Err(_) => {}
    }
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, server: Server, context: Arc<Context>) {
    let service = service_fn(|request: Request<Incoming>| {
        let (server, context) = (server.clone(), Arc::clone(&context));
        async move {
            let response = answer(&request, &server, &context).await;
            let key = (server.name(), response.status().as_u16());
            *context.figures.lock().requests.entry(key).or_default() += 1;
            Ok::<_, Infallible>(response)
        }
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_LIMIT).max_buf_size(16 << 10);
    // The errors of a connection are its client's.
    let _ = http.serve_connection(TokioIo::new(stream), service).await;
}

async fn answer<B>(request: &Request<B>, server: &Server, context: &Context) -> Response<Full<Bytes>> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are allowed");
    }
    let probe = |(well, why): (bool, String)| {
        plain(if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &why)
    };
    match (server, request.uri().path()) {
        (Server::Health, "/healthz") => probe(context.health.healthz()),
        (Server::Health, "/readyz") => probe(context.health.readyz()),
        (Server::Metrics(registry), "/metrics") => match refuse(request, context).await {
            Some(refusal) => refusal,
            None => scrape(registry),
        },
        _ => plain(StatusCode::NOT_FOUND, "there is nothing at this path"),
    }
}

/// The answer to a client that may not read the metrics.
async fn refuse<B>(request: &Request<B>, context: &Context) -> Option<Response<Full<Bytes>>> {
    if context.config.borrow().metrics.authorization == Authorization::None {
        return None;
    }
    let header = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match context.reviewer.decide(header).await {
        Ok(Decision::Allowed) => None,
        Ok(Decision::Forbidden) => {
            Some(plain(StatusCode::FORBIDDEN, "the owner of the token may not get /metrics"))
        }
        Ok(Decision::Unknown) => {
            let mut response = plain(StatusCode::UNAUTHORIZED, "a valid bearer token is required");
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            Some(response)
        }
        Err(why) => {
            context.log.warn("metrics", &format!("a token could not be reviewed: {why}"));
            Some(plain(StatusCode::SERVICE_UNAVAILABLE, "the API server could not review the token"))
        }
    }
}

fn scrape(registry: &Registry) -> Response<Full<Bytes>> {
    let mut text = String::new();
    match metrics::write(&mut text, registry) {
        Ok(()) => respond(StatusCode::OK, metrics::CONTENT_TYPE, text),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written"),
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", format!("{text}\n"))
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}
