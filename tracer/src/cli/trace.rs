//! `viptrace trace`: attach, watch, judge, print.

use anyhow::bail;

use crate::{
    cli::{Outcome, args::TraceOptions},
    report::Printer,
};

/// Runs until the duration is over or Ctrl-C.
pub(super) fn run(_options: &TraceOptions, _printer: Printer) -> anyhow::Result<Outcome> {
    bail!("this build has no kernel half: nothing can be traced")
}
