//! The Unix socket of the agent: verdicts live, counts, and stored segments, for `viptrace agent stream`.
//!
//! Owns the protocol (`docs/agent.md`) and the bounds of a reader. Only the socket's owner may open it: in a container
//! that is the agent's user, which `kubectl exec` becomes.

pub(crate) mod client;
mod frame;
mod socket;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{
    fs::File,
    io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Context, StartError,
    hub::Subscription,
    recorder::{Segment, segments},
};
use crate::report;
use frame::{FrameKind, encode};
use socket::{Listener, Stream};

/// The version of the protocol.
pub(crate) const VERSION: u32 = 1;
/// The longest request, and the time for it.
const MAX_REQUEST_BYTES: u64 = 4096;
const REQUEST_LIMIT: Duration = Duration::from_secs(5);
/// A reader that wants a heartbeat gets one whenever it got nothing else for this long.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// A reader that takes no byte for this long is cut off.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of a segment in one frame.
const CHUNK_BYTES: usize = 256 << 10;
/// The pause after a connection that could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The request of a reader.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// [`VERSION`].
    pub(crate) viptrace: u32,
    #[serde(flatten)]
    pub(crate) want: Want,
}

impl Wanted {
    /// Parses one line of JSON.
    pub fn parse(line: &[u8]) -> Option<Self> {
        serde_json::from_slice(line).ok()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "want", rename_all = "lowercase")]
pub(crate) enum Want {
    /// Verdicts until one of the two ends. An agent without heartbeats ignores the field, and a reader that does not
    /// know them leaves it out.
    Verdicts {
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        heartbeat: bool,
    },
    /// The connections started so far.
    Counts,
    /// The stored segments.
    Segments,
    /// The bytes of one segment.
    Segment { name: String },
}

/// Opens the socket and starts its task. Returns its path.
pub(super) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) -> Result<Option<PathBuf>, StartError> {
    let Some(path) = context.config.borrow().stream.socket.clone() else { return Ok(None) };
    let failed = |error| StartError::Listen { place: path.display().to_string(), error };
    let listener = socket::bind(&path).map_err(failed)?;
    context.log.info("start", &format!("serves verdicts on {}", path.display()));
    tasks.spawn(accept(listener, Arc::clone(context)));
    Ok(Some(path))
}

/// Counts a reader while it lives.
struct Place<'a>(&'a Context);

impl<'a> Place<'a> {
    /// `None` if there are too many readers.
    fn take(context: &'a Context) -> Option<Self> {
        let max = context.config.borrow().stream.max_readers.get();
        let mut figures = context.figures.lock();
        if figures.stream_readers >= max {
            figures.stream_refused += 1;
            return None;
        }
        figures.stream_readers += 1;
        Some(Self(context))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.figures.lock().stream_readers -= 1;
    }
}

async fn accept(listener: Listener, context: Arc<Context>) {
    // Readers end with this task.
    let mut readers = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let context = Arc::clone(&context);
                    readers.spawn(async move {
                        if let Err(error) = serve(stream, &context).await
                            && error.kind() != io::ErrorKind::BrokenPipe
                        {
                            context.log.info("stream", &format!("a reader was cut off: {error}"));
                        }
                    });
                }
                Err(error) => {
                    context.log.warn("stream", &format!("cannot accept a reader: {error}"));
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = readers.join_next() => {}
        }
    }
}

/// Writes frames to one reader.
struct Out<W>(W);

impl<W: AsyncWrite + Unpin> Out<W> {
    async fn frame(&mut self, kind: FrameKind, body: &[u8]) -> io::Result<()> {
        match timeout(WRITE_LIMIT, self.0.write_all(&encode(kind, body))).await {
            Ok(written) => written,
            Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "it took no byte for 30 s")),
        }
    }

    async fn record(&mut self, record: &impl Serialize) -> io::Result<()> {
        let line = report::record_line(record)?;
        self.frame(FrameKind::Record, line.trim_end().as_bytes()).await
    }
}

async fn serve(mut stream: Stream, context: &Context) -> io::Result<()> {
    let place = Place::take(context);
    let (read, write) = stream.split();
    let mut out = Out(write);
    if place.is_none() {
        return out.frame(FrameKind::Error, b"too many readers").await;
    }
    let mut read = BufReader::new(read.take(MAX_REQUEST_BYTES));
    let mut line = Vec::new();
    let request = timeout(REQUEST_LIMIT, read.read_until(b'\n', &mut line)).await;
    let want = match request.ok().and_then(|_| Wanted::parse(&line)) {
        Some(Wanted { viptrace: VERSION, want }) => want,
        Some(Wanted { viptrace, .. }) => {
            let why = format!("this agent speaks version {VERSION} of the protocol, not {viptrace}");
            return out.frame(FrameKind::Error, why.as_bytes()).await;
        }
        None => return out.frame(FrameKind::Error, b"the request is not one line of JSON").await,
    };
    let mut hello = json!({"viptrace": VERSION, "version": env!("CARGO_PKG_VERSION"), "node": context.node});
    let heartbeat = (want == Want::Verdicts { heartbeat: true }).then_some(HEARTBEAT);
    if let Some(interval) = heartbeat {
        hello["heartbeat"] = interval.as_secs().into();
    }
    out.frame(FrameKind::Hello, hello.to_string().as_bytes()).await?;
    match want {
        Want::Verdicts { .. } => {
            let subscription = context.hub.subscribe(context.config.borrow().stream.queue.as_usize());
            verdicts(&mut out, read.into_inner().into_inner(), subscription, heartbeat).await?;
        }
        Want::Counts => counts(&mut out, context).await?,
        Want::Segments => {
            for segment in stored(context)? {
                out.record(&segment).await?;
            }
        }
        Want::Segment { name } => {
            if let Err(error) = segment(&mut out, &name, context).await {
                return out.frame(FrameKind::Error, error.to_string().as_bytes()).await;
            }
        }
    }
    out.frame(FrameKind::End, &[]).await
}

/// Passes on verdicts until the agent or the reader ends, with a heartbeat after each `heartbeat` in which nothing was sent.
async fn verdicts(
    out: &mut Out<impl AsyncWrite + Unpin>,
    mut read: impl AsyncRead + Unpin,
    mut subscription: Subscription,
    heartbeat: Option<Duration>,
) -> io::Result<()> {
    for record in std::mem::take(&mut subscription.recent) {
        let record = record.trim_end();
        // A JSON object, and not an empty one.
        let rest = record.strip_prefix('{').unwrap_or(record);
        out.frame(FrameKind::Record, format!("{{\"earlier\":true,{rest}").as_bytes()).await?;
    }
    let mut ignored = [0; 64];
    loop {
        let record = tokio::select! {
            record = subscription.records.recv() => record,
            // The reader went away, or sends what nobody reads.
            _ = read.read(&mut ignored) => return Err(io::ErrorKind::BrokenPipe.into()),
            () = sleep(heartbeat.unwrap_or_default()), if heartbeat.is_some() => {
                out.frame(FrameKind::Heartbeat, &[]).await?;
                continue;
            }
        };
        let lost = subscription.lost();
        if lost > 0 {
            out.frame(FrameKind::Lost, json!({"lost": lost}).to_string().as_bytes()).await?;
        }
        let Some(record) = record else { return Ok(()) };
        out.frame(FrameKind::Record, record.trim_end().as_bytes()).await?;
    }
}

async fn counts(out: &mut Out<impl AsyncWrite + Unpin>, context: &Context) -> io::Result<()> {
    let counts = context.figures.copy().counts;
    for (key, total) in counts.connections() {
        let line = json!({
            "namespace": key.service.namespace, "service": key.service.name, "port": key.service.port,
            "protocol": key.protocol, "endpoint": key.endpoint, "connections": total.count,
        });
        out.record(&line).await?;
    }
    Ok(())
}

/// The stored segments; none without a folder.
fn stored(context: &Context) -> io::Result<Vec<Segment>> {
    let Some(folder) = context.config.borrow().recorder.folder.clone() else { return Ok(Vec::new()) };
    let open = context.figures.lock().recorder.open.clone();
    segments(&folder, open.as_deref())
}

/// The bytes of the segment with this name. Only names of the list are opened.
async fn segment(out: &mut Out<impl AsyncWrite + Unpin>, name: &str, context: &Context) -> io::Result<()> {
    let folder = context.config.borrow().recorder.folder.clone();
    let known = stored(context)?.into_iter().any(|segment| segment.name == name);
    let (Some(folder), true) = (folder, known) else {
        return Err(io::Error::new(io::ErrorKind::NotFound, "there is no segment with this name"));
    };
    let mut file = File::open(folder.join(name)).await?;
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let read = file.read(&mut chunk).await?;
        if read == 0 {
            return Ok(());
        }
        out.frame(FrameKind::Bytes, chunk.get(..read).unwrap_or_default()).await?;
    }
}

#[cfg(test)]
mod tests;
