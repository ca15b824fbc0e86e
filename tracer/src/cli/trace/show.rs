//! What a trace and a replay show of judgements: those that are meant by the target, counted and handed to the report.

use std::time::Instant;

use super::{tally::Tally, targets};
use crate::{
    cli::{Outcome, target::Target},
    cluster::History,
    report::{Report, Summary, View},
    session::{Detail, Judgements, Pipeline},
    time::Timestamp,
};

/// The way from judgements to the report.
#[derive(Debug)]
pub(in crate::cli) struct Show {
    pub(in crate::cli) target: Option<Target>,
    tally: Tally,
}

impl Show {
    pub(in crate::cli) fn new(target: Option<Target>) -> Self {
        Self { target, tally: Tally::default() }
    }

    /// Shows what came out at `now`.
    pub(in crate::cli) fn show(
        &mut self,
        report: &mut Report,
        judgements: Judgements,
        pipeline: &Pipeline,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        let at = Instant::now();
        for judged in judgements.judged {
            if self.target.as_ref().is_some_and(|target| !targets::matches(target, &judged.verdict)) {
                continue;
            }
            self.tally.add(&judged);
            report.show((&judged).into(), at)?;
        }
        for folded in &judgements.folded {
            // Where flows are folded, a target is a Service: it is meant by all of them or by none.
            if self.target.as_ref().is_some_and(|target| !targets::matches(target, &folded.verdict)) {
                continue;
            }
            self.tally.add_folded(folded);
            report.fold(folded.into(), at);
        }
        if report.shows_status() {
            report.status(self.tally.status(pipeline, now), at);
        }
        report.tick(at)?;
        Ok(())
    }

    /// The end: `gaps` is what could not be seen, besides the metadata's own.
    pub(in crate::cli) fn summary(
        &self,
        pipeline: &Pipeline,
        started: Timestamp,
        ended: Timestamp,
        gaps: Vec<String>,
    ) -> Summary {
        self.tally.summary(pipeline, started, ended, gaps)
    }

    /// Why nothing that is meant by the target was shown; `None` where something was, or all is meant.
    pub(in crate::cli) fn nothing_meant(&self, history: &History, now: Timestamp) -> Option<String> {
        let target = self.target.as_ref().filter(|_| self.tally.is_empty())?;
        let why = match targets::check(target, history, now) {
            Err(error) => format!("{error:#}"),
            Ok(()) => "no flow of it was seen".to_owned(),
        };
        Some(format!("nothing of {target} is in the recording: {why}"))
    }

    pub(in crate::cli) fn outcome(&self) -> Outcome {
        if self.tally.has_faults() { Outcome::Faults } else { Outcome::Clean }
    }
}

/// Flows must be judged one by one where each is shown, or where the target is one end of some of them.
pub(in crate::cli) fn detail(view: View, target: Option<&Target>) -> Detail {
    match (view, target) {
        (View::All, _) | (_, Some(Target::Pod { .. } | Target::Address { .. })) => Detail::All,
        (View::Default | View::FaultsOnly, None | Some(Target::Service { .. })) => Detail::Faults,
    }
}
