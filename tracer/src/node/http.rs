//! A GET over plain HTTP to kube-proxy's own ports on this node, with a limit on time and bytes.
//!
//! Uses HTTP/1.0: the answer then ends with the connection and is never chunked. Not a general client: no TLS, no
//! redirects, no keep-alive.

use std::net::SocketAddr;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time,
};

use crate::{
    error::sentence,
    node::{Limits, gap::Reason},
};

/// The server's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub body: Vec<u8>,
}

/// Sends `GET http://ADDR/PATH` and reads the answer within `limits`. `path` is a constant of the program and begins
/// with `/`.
pub async fn get(addr: SocketAddr, path: &str, limits: Limits) -> Result<Response, Reason> {
    let place = || format!("http://{addr}{path}");
    match time::timeout(limits.time, exchange(addr, path, limits.bytes)).await {
        Ok(Ok(answer)) if answer.len() > limits.bytes => {
            Err(Reason::TooLarge { place: place(), limit_bytes: limits.bytes })
        }
        Ok(Ok(answer)) => parse_response(&answer)
            .ok_or_else(|| Reason::Unreadable { place: place(), error: "the answer is not HTTP".to_owned() }),
        Ok(Err(error)) => Err(Reason::Unreadable { place: place(), error: sentence(&error) }),
        Err(_) => Err(Reason::TimedOut { place: place(), limit: limits.time }),
    }
}

/// Reads the answer, at most one byte more than the limit.
async fn exchange(addr: SocketAddr, path: &str, max_bytes: usize) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(addr).await?;
    let request =
        format!("GET {path} HTTP/1.0\r\nHost: {addr}\r\nUser-Agent: viptrace\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX);
    stream.take(limit.saturating_add(1)).read_to_end(&mut answer).await?;
    Ok(answer)
}

/// Splits an HTTP/1.x answer into status and body; `None` for anything else.
pub fn parse_response(answer: &[u8]) -> Option<Response> {
    let (end, skip) =
        find(answer, b"\r\n\r\n").map(|at| (at, 4)).or_else(|| find(answer, b"\n\n").map(|at| (at, 2)))?;
    let head = answer.get(..end)?;
    let first_line = head.split(|byte| *byte == b'\n').next()?;
    let first_line = str::from_utf8(first_line).ok()?;
    let mut words = first_line.split_ascii_whitespace();
    if !words.next()?.starts_with("HTTP/1.") {
        return None;
    }
    let status = words.next()?.parse().ok()?;
    Some(Response { status, body: answer.get(end + skip..)?.to_vec() })
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::net::TcpListener;

    use super::*;

    const LIMITS: Limits = Limits { time: Duration::from_secs(5), bytes: 64 };

    /// A server that reads a little, sends `answer`, and then closes the connection or keeps it open.
    async fn serve(answer: &'static [u8], hang: bool) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 512];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(answer).await;
            if hang {
                std::future::pending::<()>().await;
            }
        });
        addr
    }

    #[tokio::test]
    async fn reads_status_and_body() {
        let addr = serve(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\niptables", false).await;
        let response = get(addr, "/proxyMode", LIMITS).await.unwrap();
        assert_eq!((response.status, response.body.as_slice()), (200, b"iptables".as_slice()));
    }

    #[tokio::test]
    async fn a_long_answer_is_refused() {
        let answer =
            b"HTTP/1.0 200 OK\r\n\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx";
        let addr = serve(answer, true).await;
        let long = get(addr, "/metrics", LIMITS).await;
        assert!(matches!(long, Err(Reason::TooLarge { limit_bytes: 64, .. })), "{long:?}");
    }

    #[tokio::test]
    async fn a_server_that_hangs_ends_at_the_limit() {
        let addr = serve(b"HTTP/1.0 200 OK\r\n\r\nhalf", true).await;
        let limits = Limits { time: Duration::from_millis(50), ..LIMITS };
        assert!(matches!(get(addr, "/", limits).await, Err(Reason::TimedOut { .. })));
    }

    #[tokio::test]
    async fn a_closed_port_and_a_foreign_protocol_are_told_apart() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        let refused = get(closed, "/", LIMITS).await.unwrap_err().to_string();
        assert!(refused.contains("refused"), "{refused}");
        let foreign = serve(b"SSH-2.0-x\r\n\r\n", false).await;
        let foreign = get(foreign, "/", LIMITS).await.unwrap_err().to_string();
        assert!(foreign.contains("not HTTP"), "{foreign}");
    }
}
