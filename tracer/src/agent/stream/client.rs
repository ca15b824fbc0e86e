//! The reader's side of the socket.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWriteExt as _};

use super::{
    VERSION, Want, Wanted,
    frame::{self, FrameKind},
    socket,
};
use crate::{error::Hint, text::clean};

/// Why the agent could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error("cannot connect to the agent at {path}: {error}")]
    Connect { path: PathBuf, error: io::Error },
    #[error("the agent refuses: {0}")]
    Refused(String),
    #[error("the agent has no heartbeat: it is older than this viptrace")]
    NoHeartbeat,
    #[error("cannot read from the agent: {0}")]
    Read(io::Error),
    #[error(transparent)]
    Write(io::Error),
}

impl Hint for StreamError {
    fn hint(&self) -> Option<String> {
        match self {
            Self::Connect { .. } => Some(
                "run it in the agent's container, as the agent's user; --socket PATH names another socket"
                    .to_owned(),
            ),
            Self::Refused(_) => {
                Some("`viptrace agent stream --segments` lists the stored segments".to_owned())
            }
            Self::NoHeartbeat => Some("leave out --heartbeat".to_owned()),
            Self::Read(_) | Self::Write(_) => None,
        }
    }
}

#[derive(Deserialize)]
struct Lost {
    lost: u64,
}

#[derive(Default, Deserialize)]
struct Hello {
    /// The interval of the heartbeat in seconds, if one was wanted.
    heartbeat: Option<u32>,
}

/// A line for the reader: the seconds within which the next line comes at the latest. The first one announces the interval.
#[derive(Serialize, Deserialize)]
pub(crate) struct Heartbeat {
    pub(crate) heartbeat: u32,
}

/// Requests `want` of the agent at this socket, and writes the answer to `out`. Returns the number of verdicts that this
/// reader lost.
pub(crate) async fn read(path: &Path, want: Want, out: &mut impl Write) -> Result<u64, StreamError> {
    let failed = |error| StreamError::Connect { path: path.to_owned(), error };
    let mut stream = socket::connect(path).await.map_err(failed)?;
    let has_heartbeat = want == Want::Verdicts { heartbeat: true };
    let mut request = serde_json::to_vec(&Wanted { viptrace: VERSION, want })
        .map_err(|error| StreamError::Read(error.into()))?;
    request.push(b'\n');
    stream.write_all(&request).await.map_err(StreamError::Read)?;
    answer(&mut stream, out, has_heartbeat).await
}

/// Writes an agent's answer to `out` until the agent ends it; with `has_heartbeat` also its heartbeats, and first their
/// interval. Returns the number of verdicts that this reader lost.
///
/// # Errors
///
/// If the answer is not of this protocol, ends without its last frame, or is a refusal, if it has no heartbeat though one was
/// wanted, or if `out` cannot be written.
pub async fn answer(
    from: &mut (impl AsyncRead + Unpin),
    out: &mut impl Write,
    has_heartbeat: bool,
) -> Result<u64, StreamError> {
    let mut lost: u64 = 0;
    let mut heartbeat: Option<String> = None;
    loop {
        let Some((kind, body)) = frame::read(from).await.map_err(StreamError::Read)? else {
            return Err(StreamError::Read(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the agent closed the connection",
            )));
        };
        match kind {
            FrameKind::Hello if has_heartbeat => {
                let hello: Hello = serde_json::from_slice(&body).unwrap_or_default();
                let interval = hello.heartbeat.ok_or(StreamError::NoHeartbeat)?;
                let text = serde_json::to_string(&Heartbeat { heartbeat: interval })
                    .map_err(|error| StreamError::Read(error.into()))?;
                line(out, text.as_bytes())?;
                heartbeat = Some(text);
            }
            FrameKind::Heartbeat => {
                if let Some(text) = &heartbeat {
                    line(out, text.as_bytes())?;
                }
            }
            FrameKind::Hello => {}
            FrameKind::Record => line(out, &body)?,
            FrameKind::Bytes => out.write_all(&body).map_err(StreamError::Write)?,
            FrameKind::Lost => {
                let more = serde_json::from_slice::<Lost>(&body).map(|lost| lost.lost).unwrap_or_default();
                lost = lost.saturating_add(more);
            }
            FrameKind::Error => {
                return Err(StreamError::Refused(clean(String::from_utf8_lossy(&body).into_owned())));
            }
            FrameKind::End => {
                out.flush().map_err(StreamError::Write)?;
                return Ok(lost);
            }
        }
    }
}

/// Writes a line that the reader gets at once.
fn line(out: &mut impl Write, text: &[u8]) -> Result<(), StreamError> {
    out.write_all(text)
        .and_then(|()| out.write_all(b"\n"))
        .and_then(|()| out.flush())
        .map_err(StreamError::Write)
}

#[cfg(test)]
mod tests {
    use super::{super::frame::encode, *};

    async fn answered(
        frames: &[(FrameKind, &str)],
        has_heartbeat: bool,
    ) -> (Result<u64, StreamError>, String) {
        let bytes: Vec<u8> = frames.iter().flat_map(|(kind, body)| encode(*kind, body.as_bytes())).collect();
        let mut out = Vec::new();
        let lost = answer(&mut &*bytes, &mut out, has_heartbeat).await;
        (lost, String::from_utf8(out).unwrap())
    }

    #[tokio::test]
    async fn a_heartbeat_is_announced_first_and_repeated_for_a_reader_that_wants_it() {
        let frames = [
            (FrameKind::Hello, r#"{"viptrace":1,"heartbeat":10}"#),
            (FrameKind::Heartbeat, ""),
            (FrameKind::Record, r#"{"class":"C20"}"#),
            (FrameKind::Heartbeat, ""),
            (FrameKind::End, ""),
        ];
        let (lost, lines) = answered(&frames, true).await;
        let beat = r#"{"heartbeat":10}"#;
        assert_eq!(lines, format!("{beat}\n{beat}\n{{\"class\":\"C20\"}}\n{beat}\n"));
        assert_eq!(lost.unwrap(), 0);
        let (lost, lines) = answered(&frames, false).await;
        assert_eq!((lost.unwrap(), &*lines), (0, "{\"class\":\"C20\"}\n"));
    }

    #[tokio::test]
    async fn an_older_agent_is_refused_with_a_hint_that_names_the_flag() {
        let frames = [(FrameKind::Hello, r#"{"viptrace":1}"#), (FrameKind::End, "")];
        let (lost, lines) = answered(&frames, true).await;
        assert!(lost.unwrap_err().hint().unwrap().contains("--heartbeat") && lines.is_empty());
        assert!(answered(&frames, false).await.0.is_ok());
    }
}
