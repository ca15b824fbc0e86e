//! The arguments of `redact`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "Examples:
  viptrace redact incident.viptrace --out public.viptrace
  viptrace replay public.viptrace                  the same classes, other names
  viptrace redact worker-1/ worker-2/ --out public/
  viptrace replay public/ -o story                 the same incident

Each name becomes another one (pod-17), each address another one of the same
kind of range, the same wherever it occurs in these recordings. Nothing
reverses it. Recordings that are redacted one by one do not fit together.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RedactArgs {
    /// Recordings of `viptrace trace --record FILE`, segments of agents, and folders of them; of one node or of several
    #[arg(value_name = "FILE|DIR", required = true)]
    pub(crate) paths: Vec<PathBuf>,
    /// Where to write: the redacted copy of one file, or a new folder for the copies of several, one folder for each node
    #[arg(short, long, value_name = "FILE|DIR")]
    pub(crate) out: PathBuf,
    /// Overwrite an existing file; a folder has to be new or empty
    #[arg(long)]
    pub(crate) force: bool,
}
