//! Shows the judgements of a trace or replay: selects the wanted ones, counts them and passes them to the report.

use std::time::Instant;

use crate::{
    cli::{Outcome, selection::Selection, target::Target},
    report::{Form, Report, Status, View},
    session::{Connections, Detail, Ending, Judged, Judgements, Pipeline, Summary},
    time::Timestamp,
    verdict::Verdict,
};

/// Passes judgements to the report.
#[derive(Debug)]
pub(super) struct Show {
    target: Option<Target>,
    summary: Summary,
}

impl Show {
    pub(super) fn new(target: Option<Target>) -> Self {
        Self { target, summary: Summary::default() }
    }

    pub(super) fn target(&self) -> Option<&Target> {
        self.target.as_ref()
    }

    /// Shows the judgements of the time `now`.
    pub(super) fn show(
        &mut self,
        report: &mut Report,
        judgements: Judgements,
        pipeline: &Pipeline,
        now: Timestamp,
    ) -> anyhow::Result<()> {
        let at = Instant::now();
        for judged in judgements.judged {
            if self.target.as_ref().is_some_and(|target| !target.matches(&judged.verdict)) {
                continue;
            }
            self.summary.add(&judged);
            report.show(&judged, at)?;
        }
        for folded in &judgements.folded {
            // Flows are folded only if the target is a Service, so it matches all of them or none.
            if self.target.as_ref().is_some_and(|target| !target.matches(&folded.verdict)) {
                continue;
            }
            self.summary.add_folded(folded);
            report.fold(folded, at);
        }
        judgements.unjudged.iter().for_each(|flows| self.summary.add_unjudged(flows));
        if report.shows_status() {
            let status = &pipeline.cluster().status;
            report.status(Status {
                counts: self.summary.counts(),
                flows_open: pipeline.counters().open,
                lost_events: pipeline.lost_events(),
                metadata_age: status.metadata_age(now),
                remark: status.gaps(now).into_iter().next(),
            });
        }
        report.tick(at)?;
        Ok(())
    }

    /// Takes an earlier verdict back, of a flow whose new one is not wanted.
    pub(super) fn withdraw(&mut self, report: &mut Report, judged: &Judged) -> anyhow::Result<()> {
        if let Some(before) = &judged.before {
            self.summary.take_back(before, &judged.verdict.flow);
            report.withdraw(judged, before, Instant::now())?;
        }
        Ok(())
    }

    /// Counts flows with this verdict beside those shown, of the same Service: only their class keeps them out.
    pub(super) fn beside(&mut self, verdict: &Verdict, flows: u64) {
        self.summary.add_beside(verdict, flows);
    }

    /// A flow that was counted beside the others is shown now.
    pub(super) fn no_longer_beside(&mut self, verdict: &Verdict) {
        self.summary.take_beside(verdict);
    }

    /// The connections that a recorder counted.
    pub(super) fn connections(&mut self) -> &mut Connections {
        &mut self.summary.connections
    }

    /// Ends the report with the summary.
    pub(super) fn finish(&self, report: &mut Report, ending: &Ending) -> anyhow::Result<Outcome> {
        report.finish(&self.summary, ending)?;
        Ok(if self.summary.counts().faults > 0 { Outcome::Faults } else { Outcome::Clean })
    }
}

/// Shows the ways of flows instead of rows.
#[derive(Debug, Default)]
pub(super) struct Ways {
    has_any: bool,
    has_fault: bool,
}

impl Ways {
    pub(super) fn show(&mut self, text: &str, is_fault: bool, report: &mut Report) -> anyhow::Result<()> {
        let blank = if self.has_any { "\n" } else { "" };
        self.has_any = true;
        self.has_fault |= is_fault;
        Ok(report.text(&format!("{blank}{text}"))?)
    }

    /// Ends the output. Returns whether one of the flows is faulty.
    pub(super) fn finish(self, report: &mut Report) -> anyhow::Result<bool> {
        if !self.has_any {
            report
                .warn("no flow with these addresses was judged: --all instead of --path shows every flow")?;
        }
        Ok(self.has_fault)
    }
}

/// Flows must be judged one by one if each is shown, or if a condition is met by some of those that share a verdict.
pub(super) fn detail(view: View, selection: &Selection) -> Detail {
    if view == View::All || selection.needs_each_flow() { Detail::All } else { Detail::Faults }
}

/// As [`detail`], for rows of this form that nobody waits for.
pub(super) fn detail_of_rows(form: Form, selection: &Selection) -> Detail {
    match detail(form.view, selection) {
        Detail::Faults if form.groups() => Detail::Causes,
        detail => detail,
    }
}
