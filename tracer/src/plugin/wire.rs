//! What the plugin and `viptrace node` send each other: lines of JSON on standard input and output.
//!
//! The plugin sends a [`Request`], and while a trace runs, [`Order`]s. The node answers with [`Answer`]s and ends by itself.
//! The end of its input means that nobody wants the answers any more.

use std::{io, net::SocketAddr, time::Duration};

use futures::{Stream, StreamExt as _};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::AsyncRead;
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};

use crate::{
    cluster::Update,
    node::{Gap, capture::Artifact},
    session::{Arrival, Ending, Folded, Judged, NotJudged},
    time::Timestamp,
};

/// The version of this protocol.
pub(crate) const VERSION: u32 = 1;

/// The longest line, in bytes: the rules of a large cluster are one line.
const MAX_LINE_BYTES: usize = 1 << 30;

/// The first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Request {
    /// [`VERSION`].
    pub(crate) viptrace: u32,
    pub(crate) task: Task,
}

impl Request {
    pub(crate) const fn new(task: Task) -> Self {
        Self { viptrace: VERSION, task }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Task {
    /// Trace until the input ends, a stop is ordered or the arguments' duration has passed.
    Trace {
        /// The API server whose objects follow as updates.
        server: String,
        /// The node's name in Kubernetes.
        node: String,
        /// The arguments of `viptrace trace` without those of its source and its output.
        args: Vec<String>,
    },
    /// Read everything that a check of the node reads.
    Capture,
}

/// A later line for a trace.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    Update(Box<Update>),
    /// Make one TCP connection from the node's network namespace, and close it.
    Connect(SocketAddr),
    /// End with the open flows judged.
    Stop,
}

/// A line of the node.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// The first line.
    Hello {
        viptrace: u32,
        version: String,
    },
    /// A limit of the verdicts.
    Warning(String),
    /// The trace observes everything from now on.
    Attached {
        hooks: usize,
    },
    /// The flows without an outcome and the events lost so far; once a second at most.
    Status {
        open: u64,
        lost_events: u64,
    },
    Judged(Box<Judged>),
    /// The way of a flow that was wanted with `--path`, as text without colours.
    Way {
        text: String,
        is_fault: bool,
    },
    Folded(Box<Folded>),
    Unjudged(NotJudged),
    Arrived(Arrival),
    Connected(Connection),
    /// The end of a trace.
    Ended(Box<Ending>),
    Artifact(Box<Artifact>),
    Gap(Gap),
    /// The end of a capture.
    Captured {
        taken: Timestamp,
    },
    /// The task could not be done, or not to its end.
    Failed {
        error: String,
        hint: Option<String>,
    },
}

/// The connection that a node made by order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Connection {
    pub(crate) to: SocketAddr,
    /// The local port, by which the flow is recognised; `None` if none could be reserved.
    #[serde(default)]
    pub(crate) port: Option<u16>,
    pub(crate) result: Connected,
    /// From the first packet to the result.
    pub(crate) took: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Connected {
    Established,
    Refused,
    /// There was no answer within the limit.
    TimedOut,
    /// Another error of the node's kernel, in words.
    Failed(String),
}

/// Why a line could not be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    #[error("a line is not of this protocol: {0}")]
    Unknown(#[from] serde_json::Error),
}

impl From<LinesCodecError> for WireError {
    fn from(error: LinesCodecError) -> Self {
        match error {
            LinesCodecError::MaxLineLengthExceeded => Self::TooLong,
            LinesCodecError::Io(error) => Self::Io(error),
        }
    }
}

/// The lines of a stream.
pub(crate) fn lines(from: impl AsyncRead + Unpin) -> impl Stream<Item = Result<String, WireError>> + Unpin {
    FramedRead::new(from, LinesCodec::new_with_max_length(MAX_LINE_BYTES)).map(|line| Ok(line?))
}

/// The message in a line.
pub(crate) fn message<T: DeserializeOwned>(line: &str) -> Result<T, WireError> {
    Ok(serde_json::from_str(line)?)
}

/// A message as a line with its end.
pub(crate) fn line(message: &impl Serialize) -> Result<String, WireError> {
    let mut line = serde_json::to_string(message)?;
    line.push('\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cluster::{Event, Key, Kind, model::Change},
        report,
        session::Judged,
    };

    fn sent<T: DeserializeOwned>(lines: &[String]) -> Vec<Result<T, WireError>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            super::lines(lines.concat().as_bytes()).map(|line| message(&line?)).collect().await
        })
    }

    #[test]
    fn requests_and_orders_read_back() {
        let request = Request::new(Task::Trace {
            server: "https://a".into(),
            node: "n".into(),
            args: vec!["-x".into()],
        });
        let read = sent::<Request>(&[line(&request).unwrap()]);
        assert_eq!(read.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [request]);
        let update = Update {
            kind: Kind::Pod,
            received: Timestamp::from_unix_secs(9),
            event: Event::Changed(Change::Delete(Kind::Pod, Key::new("shop", "cart-1"))),
        };
        let orders = [Order::Update(Box::new(update)), Order::Stop];
        let lines: Vec<String> = orders.iter().map(|order| line(order).unwrap()).collect();
        let read = sent::<Order>(&lines);
        assert!(
            matches!(read.as_slice(), [Ok(Order::Update(update)), Ok(Order::Stop)] if update.kind == Kind::Pod)
        );
    }

    #[test]
    fn verdicts_read_back() {
        for verdict in [report::fixture::fault(), report::fixture::ok(1)] {
            let connect_time = Some(Duration::from_micros(70));
            let judged = Judged { connect_time, ..report::fixture::judged(verdict) };
            let answer = line(&Answer::Judged(Box::new(judged.clone()))).unwrap();
            assert_eq!(answer.matches('\n').count(), 1);
            let read = sent::<Answer>(&[answer]).remove(0).unwrap();
            assert!(matches!(read, Answer::Judged(read) if read.verdict == judged.verdict));
        }
    }

    #[test]
    fn other_lines_are_refused() {
        let read = sent::<Answer>(&["bash: viptrace: not found".to_owned()]).remove(0);
        assert!(matches!(read, Err(WireError::Unknown(_))), "{read:?}");
    }
}
