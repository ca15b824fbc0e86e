//! The stored segments of an agent, read in its container through the API server.
//!
//! Owns the commands, and whether an answer is whole. Chooses nothing and names no files.

use std::{io, time::Duration};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{AttachParams, AttachedProcess},
};
use serde::Deserialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    task::JoinHandle,
    time::timeout,
};

use super::{
    output::Output,
    pod::{AGENT, PROGRAM},
    visit::{BUFFER, SILENCE, VisitError, tail, within},
    wire,
};
use crate::{agent::recorder::Segment, cluster::Key};

/// The most segments of one agent that are listed.
const MAX_SEGMENTS: usize = 65_536;
/// The bytes that are read at once.
const CHUNK_BYTES: usize = 256 << 10;
/// What an agent says of a segment that it has deleted (`agent::stream`).
const GONE: &str = "there is no segment with this name";

/// Why a segment was not fetched.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error(transparent)]
    Agent(#[from] VisitError),
    #[error("the agent has deleted it meanwhile")]
    Gone,
    #[error("the connection ended after {got} of {bytes} bytes")]
    Cut { got: u64, bytes: u64 },
    #[error("it cannot be written: {0}")]
    Write(io::Error),
}

/// An agent whose segments are read.
#[derive(Clone)]
pub(crate) struct AgentSegments {
    pods: Api<Pod>,
    pod: String,
}

/// A line of `viptrace agent stream --counts`.
#[derive(Deserialize)]
struct Count {
    namespace: String,
    service: String,
    connections: u64,
}

/// A command in the agent's container.
struct Run {
    output: Output,
    error: JoinHandle<String>,
    _process: AttachedProcess,
}

impl Drop for Run {
    fn drop(&mut self) {
        self.error.abort();
    }
}

impl AgentSegments {
    pub(crate) fn of(client: Client, agent: &Key) -> Self {
        Self { pods: Api::namespaced(client, &agent.namespace), pod: agent.name.to_string() }
    }

    /// The stored segments, the oldest first. Those with another name than an agent gives them are left out.
    pub(crate) async fn list(&self) -> Result<Vec<Segment>, VisitError> {
        let mut segments = Vec::new();
        self.lines(&["--segments"], |segment: Segment| {
            if segments.len() < MAX_SEGMENTS && segment.has_own_name() {
                segments.push(segment);
            }
        })
        .await?;
        Ok(segments)
    }

    /// Whether the agent counted connections to this Service: clients of it are on the agent's node.
    pub(crate) async fn has_clients_of(&self, service: &Key) -> Result<bool, VisitError> {
        let mut found = false;
        self.lines(&["--counts"], |count: Count| {
            let is_it = *count.namespace == *service.namespace && *count.service == *service.name;
            found |= is_it && count.connections > 0;
        })
        .await?;
        Ok(found)
    }

    /// Writes the bytes of a segment, at least as many as were listed: an open segment grows. Returns their number.
    pub(crate) async fn fetch(
        &self,
        segment: &Segment,
        into: &mut (impl AsyncWrite + Unpin),
    ) -> Result<u64, FetchError> {
        let mut run = self.run(&["--segment", &segment.name]).await?;
        let mut chunk = vec![0; CHUNK_BYTES];
        let mut got = 0;
        loop {
            let read = timeout(SILENCE, run.output.read(&mut chunk)).await;
            let read = read.map_err(|_| self.silent())?;
            match read.map_err(|error| self.broken(error.to_string()))? {
                0 => break,
                read => {
                    let bytes = chunk.get(..read).unwrap_or_default();
                    into.write_all(bytes).await.map_err(FetchError::Write)?;
                    got += read as u64;
                }
            }
        }
        into.flush().await.map_err(FetchError::Write)?;
        match run.output.is_success().await {
            Some(true) if got >= segment.bytes => Ok(got),
            Some(false) => {
                let why = run.error().await;
                Err(if why.contains(GONE) { FetchError::Gone } else { self.broken(why).into() })
            }
            Some(true) | None => Err(FetchError::Cut { got, bytes: segment.bytes }),
        }
    }

    /// Passes on each line of an answer.
    async fn lines<T: for<'d> Deserialize<'d>>(
        &self,
        words: &[&str],
        mut take: impl FnMut(T),
    ) -> Result<(), VisitError> {
        let mut run = self.run(words).await?;
        {
            let mut lines = wire::lines(&mut run.output);
            loop {
                let line = timeout(SILENCE, lines.next()).await;
                let Some(line) = line.map_err(|_| self.silent())? else {
                    break;
                };
                let message = line.and_then(|line| wire::message(&line));
                take(message.map_err(|error| self.broken(error.to_string()))?);
            }
        }
        match run.output.is_success().await {
            Some(true) => Ok(()),
            Some(false) => Err(self.broken(run.error().await)),
            None => Err(self.broken("the connection was cut".to_owned())),
        }
    }

    async fn run(&self, words: &[&str]) -> Result<Run, VisitError> {
        let words = [PROGRAM, "agent", "stream"].into_iter().chain(words.iter().copied());
        let params = AttachParams::default()
            .container(AGENT)
            .stdin(false)
            .stdout(true)
            .stderr(true)
            .max_stdout_buf_size(BUFFER);
        let mut process = within(self.pods.exec(&self.pod, words, &params)).await?;
        let (Some(output), Some(error)) = (Output::take(&mut process), process.stderr()) else {
            return Err(self.broken(String::new()));
        };
        Ok(Run { output, error: tokio::spawn(tail(error)), _process: process })
    }

    fn silent(&self) -> VisitError {
        VisitError::Silent { pod: self.pod.clone(), silence: SILENCE }
    }

    fn broken(&self, why: String) -> VisitError {
        VisitError::Broken { pod: self.pod.clone(), why }
    }
}

impl Run {
    /// What the command said at last.
    async fn error(&mut self) -> String {
        let said = timeout(Duration::from_secs(1), &mut self.error).await;
        said.ok().and_then(Result::ok).unwrap_or_default()
    }
}
