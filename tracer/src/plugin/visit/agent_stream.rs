//! The verdicts that a node's agent hands out, read by `viptrace agent stream` in its container.
//!
//! Owns the heartbeat: a connection can die so that neither end of it learns that, as by a node without power or a cut network,
//! and an agent without failures would be as silent. An agent of an older version has no heartbeat and refuses the flag.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::AttachedProcess};
use serde::Deserialize;

use super::{Command, Lines, SILENCE, VisitError};
use crate::{
    agent::stream::client::Heartbeat,
    cluster::Key,
    plugin::{
        alive::Alive,
        pod::{self, PROGRAM},
        wire,
    },
    verdict::Verdict,
};

/// The flag that makes an agent announce a heartbeat.
const FLAG: &str = "--heartbeat";
/// The intervals of the heartbeat after which a silent connection is a lost one.
const INTERVALS: u32 = 3;

/// A verdict that an agent hands out.
#[derive(Debug, Deserialize)]
pub(crate) struct Handed {
    /// It was made before this reader came.
    #[serde(default)]
    pub(crate) earlier: bool,
    #[serde(flatten)]
    pub(crate) verdict: Box<Verdict>,
}

/// The meaning of an agent's line.
#[derive(Debug)]
pub(crate) enum Heard {
    Verdict(Handed),
    /// It is alive, and its next line comes within this time.
    Alive {
        within: Duration,
    },
}

/// The verdicts that an agent hands out: those of failed and of sampled flows.
pub(crate) struct AgentStream {
    verdicts: Verdicts,
    _alive: Option<Alive>,
    _process: AttachedProcess,
}

impl AgentStream {
    /// Runs `viptrace agent stream` in the agent's container, and waits for its heartbeat if it has one.
    pub(crate) async fn open(client: Client, agent: &Key) -> Result<Self, VisitError> {
        let pods: Api<Pod> = Api::namespaced(client, &agent.namespace);
        let words = [PROGRAM, "agent", "stream", FLAG];
        // It reads no input.
        let start = async |words| Command::start(&pods, &agent.name, pod::AGENT, words, true).await;
        let Command { lines, mut process } = start(&words).await?;
        let alive = process.stdin().map(Alive::keep);
        if let Some(verdicts) = Verdicts::with_heartbeat(lines).await? {
            return Ok(Self { verdicts, _alive: alive, _process: process });
        }
        let without = words.strip_suffix(&[FLAG]).unwrap_or(&words);
        let Command { lines, mut process } = start(without).await?;
        let alive = process.stdin().map(Alive::keep);
        Ok(Self { verdicts: Verdicts::without(lines), _alive: alive, _process: process })
    }

    /// The next line. An agent without failures and without a heartbeat has none for any time.
    pub(crate) async fn next(&mut self) -> Result<Heard, VisitError> {
        self.verdicts.next().await
    }
}

/// The verdicts in the lines of a stream.
struct Verdicts {
    lines: Lines,
    /// A line that was read, or the error in its place.
    first: Option<Result<String, VisitError>>,
    /// The connection is lost after so long without a line; `None` for an agent that announced no heartbeat.
    silence: Option<Duration>,
}

impl Verdicts {
    /// Of a stream that was started with [`FLAG`], once its first line is there; `None` if it refuses the flag.
    async fn with_heartbeat(mut lines: Lines) -> Result<Option<Self>, VisitError> {
        match lines.line_within(SILENCE).await {
            Err(VisitError::Broken { why, .. }) if why.contains(FLAG) => Ok(None),
            // Without an announcement, an agent that hangs would be silent for ever.
            Err(silent @ VisitError::Silent { .. }) => Err(silent),
            first => Ok(Some(Self { first: Some(first), ..Self::without(lines) })),
        }
    }

    fn without(lines: Lines) -> Self {
        Self { lines, first: None, silence: None }
    }

    async fn next(&mut self) -> Result<Heard, VisitError> {
        let line = match (self.first.take(), self.silence) {
            (Some(first), _) => first?,
            (None, Some(silence)) => self.lines.line_within(silence).await?,
            (None, None) => self.lines.line().await?,
        };
        let Ok(Heartbeat { heartbeat }) = wire::message(&line) else {
            return self.lines.message(&line).map(Heard::Verdict);
        };
        let within = Duration::from_secs(heartbeat.max(1).into());
        self.silence = Some(within.saturating_mul(INTERVALS));
        Ok(Heard::Alive { within })
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncWriteExt as _, DuplexStream, duplex},
        time::{Instant, sleep},
    };

    use super::*;
    use crate::report;

    const BEAT: &str = "{\"heartbeat\":10}\n";

    /// The output of a command, whose writing end is returned, with this on standard error.
    fn command(error: &'static str) -> (Lines, DuplexStream) {
        let (output, end) = duplex(1 << 16);
        (Lines::new("agent-1", output, error.as_bytes()), end)
    }

    /// The next verdict, after any number of heartbeats.
    async fn verdict(verdicts: &mut Verdicts) -> Result<Verdict, VisitError> {
        loop {
            match verdicts.next().await? {
                Heard::Verdict(handed) => return Ok(*handed.verdict),
                Heard::Alive { within } => assert_eq!(within.as_secs(), 10),
            }
        }
    }

    fn fault() -> String {
        report::record_line(&report::fixture::fault()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn three_intervals_without_a_line_are_a_lost_connection() {
        let (lines, mut agent) = command("");
        agent.write_all(BEAT.as_bytes()).await.unwrap();
        let mut verdicts = Verdicts::with_heartbeat(lines).await.unwrap().unwrap();
        let began = Instant::now();
        let writing = tokio::spawn(async move {
            // A line in time, ten times: heartbeats, and a verdict.
            for number in 0..10 {
                sleep(Duration::from_secs(29)).await;
                let line = if number == 4 { fault() } else { BEAT.to_owned() };
                agent.write_all(line.as_bytes()).await.unwrap();
            }
            agent
        });
        assert_eq!(verdict(&mut verdicts).await.unwrap(), report::fixture::fault());
        assert_eq!(began.elapsed().as_secs(), 29 * 5);
        let error = verdict(&mut verdicts).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 29 * 10 + 30);
        let expected = "the connection to the Pod agent-1 was lost: it has been silent for 30 s";
        assert_eq!(error.to_string(), expected);
        // Neither end was closed.
        drop(writing.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn an_agent_that_announces_no_heartbeat_may_be_silent_for_any_time() {
        let (lines, mut agent) = command("");
        let first = fault();
        agent.write_all(first.as_bytes()).await.unwrap();
        let mut with_flag = Verdicts::with_heartbeat(lines).await.unwrap().unwrap();
        verdict(&mut with_flag).await.unwrap();
        let (lines, mut older) = command("");
        let mut without = Verdicts::without(lines);
        let writing = tokio::spawn(async move {
            sleep(Duration::from_hours(3)).await;
            agent.write_all(fault().as_bytes()).await.unwrap();
            older.write_all(fault().as_bytes()).await.unwrap();
            (agent, older)
        });
        verdict(&mut with_flag).await.unwrap();
        verdict(&mut without).await.unwrap();
        drop(writing.await.unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_program_that_refuses_the_flag_is_started_without_it() {
        for refusal in [
            "error: unexpected argument '--heartbeat' found\n\nUsage: viptrace agent stream [OPTIONS]\n",
            "error: the agent has no heartbeat: it is older than this viptrace\nhint: leave out --heartbeat\n",
        ] {
            let (lines, agent) = command(refusal);
            drop(agent);
            assert!(Verdicts::with_heartbeat(lines).await.unwrap().is_none());
        }
        let (lines, agent) = command("error: cannot connect to the agent at /run/viptrace/agent.sock\n");
        drop(agent);
        let mut verdicts = Verdicts::with_heartbeat(lines).await.unwrap().unwrap();
        assert!(
            verdict(&mut verdicts).await.unwrap_err().to_string().contains("cannot connect to the agent")
        );
    }

    /// The agent's process is stopped: the connection to its socket opens, and nothing answers.
    #[tokio::test(start_paused = true)]
    async fn a_stream_that_announces_nothing_is_not_waited_for() {
        let (lines, agent) = command("");
        let began = Instant::now();
        let Err(error) = Verdicts::with_heartbeat(lines).await else { panic!("it has no line") };
        assert!(matches!(error, VisitError::Silent { .. }), "{error}");
        assert_eq!(began.elapsed(), SILENCE);
        drop(agent);
    }
}
