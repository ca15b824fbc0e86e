//! The arguments of `redact`.

use std::path::PathBuf;

use clap::Args;

const EXAMPLES: &str = "Examples:
  viptrace redact incident.viptrace --out public.viptrace
  viptrace replay public.viptrace                  the same classes, other names

Each name becomes another one (pod-17), each address another one of the same
kind of range, the same wherever it occurs. Nothing reverses it.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RedactArgs {
    /// A recording of `viptrace trace --record FILE`, or a segment of an agent
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Where to write the redacted copy
    #[arg(short, long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
}
