//! The arguments of `viptrace agent`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Attach;
use crate::agent::config::SOCKET;

const AGENT_EXAMPLES: &str = "Examples:
  viptrace agent --config agent.yaml                 on every node, for months
  viptrace agent --config agent.yaml --check-config  only checks the file
  viptrace agent --config agent.yaml --from x.viptrace
                                                     a recording, to try out alerts
  viptrace agent stream                              verdicts, in the agent's container

SIGHUP rereads the file; SIGTERM judges the open flows and ends.";

const STREAM_EXAMPLES: &str = "Examples:
  viptrace agent stream                              verdicts as they are made
  viptrace agent stream --counts                     connections by Service and endpoint
  viptrace agent stream --segments                   the stored segments
  viptrace agent stream --segment NAME > x.viptrace  one of them, for viptrace replay";

#[derive(Debug, Args)]
#[command(after_help = AGENT_EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct AgentArgs {
    #[command(subcommand)]
    pub(crate) verb: Option<AgentVerb>,
    /// The configuration; `viptrace schema agent` describes it
    #[arg(long, value_name = "FILE", default_value = "/etc/viptrace/agent.yaml")]
    pub(crate) config: PathBuf,
    /// Replay this recording through the agent instead of observing the node, and serve its figures until stopped
    #[arg(long, value_name = "RECORDING")]
    pub(crate) from: Option<PathBuf>,
    /// How to reach kernel functions, instead of the configuration's `attach`
    #[arg(long, value_name = "TIER", conflicts_with = "from")]
    pub(crate) attach: Option<Attach>,
    /// Only read the configuration and report its errors
    #[arg(long, conflicts_with = "from")]
    pub(crate) check_config: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AgentVerb {
    /// Read verdicts, counts and stored segments from the agent of this container
    Stream(StreamArgs),
}

#[derive(Debug, Args)]
#[command(after_help = STREAM_EXAMPLES)]
pub(crate) struct StreamArgs {
    /// Print the connections started so far by Service port and endpoint
    #[arg(long, conflicts_with_all = ["segments", "segment"])]
    pub(crate) counts: bool,
    /// List the stored segments
    #[arg(long, conflicts_with = "segment")]
    pub(crate) segments: bool,
    /// Write the bytes of this segment
    #[arg(long, value_name = "NAME")]
    pub(crate) segment: Option<String>,
    /// Print the interval of a heartbeat first, as {"heartbeat":SECONDS}, and again after each such time without a verdict
    #[arg(long, conflicts_with_all = ["counts", "segments", "segment"])]
    pub(crate) heartbeat: bool,
    /// The agent's socket
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub(crate) socket: PathBuf,
}
