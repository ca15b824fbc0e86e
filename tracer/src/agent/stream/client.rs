//! The reader's side of the socket.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::Deserialize;
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
            Self::Read(_) | Self::Write(_) => None,
        }
    }
}

#[derive(Deserialize)]
struct Lost {
    lost: u64,
}

/// Requests `want` of the agent at this socket, and writes the answer to `out`. Returns the number of verdicts that this
/// reader lost.
pub(crate) async fn read(path: &Path, want: Want, out: &mut impl Write) -> Result<u64, StreamError> {
    let failed = |error| StreamError::Connect { path: path.to_owned(), error };
    let mut stream = socket::connect(path).await.map_err(failed)?;
    let mut request = serde_json::to_vec(&Wanted { viptrace: VERSION, want })
        .map_err(|error| StreamError::Read(error.into()))?;
    request.push(b'\n');
    stream.write_all(&request).await.map_err(StreamError::Read)?;
    answer(&mut stream, out).await
}

/// Writes an agent's answer to `out` until the agent ends it. Returns the number of verdicts that this reader lost.
///
/// # Errors
///
/// If the answer is not of this protocol, ends without its last frame, or is a refusal, or if `out` cannot be written.
pub async fn answer(from: &mut (impl AsyncRead + Unpin), out: &mut impl Write) -> Result<u64, StreamError> {
    let mut lost: u64 = 0;
    loop {
        let Some((kind, body)) = frame::read(from).await.map_err(StreamError::Read)? else {
            return Err(StreamError::Read(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the agent closed the connection",
            )));
        };
        match kind {
            FrameKind::Hello => {}
            FrameKind::Record => {
                out.write_all(&body).and_then(|()| out.write_all(b"\n")).map_err(StreamError::Write)?;
                out.flush().map_err(StreamError::Write)?;
            }
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
