//! The receiver of a trace's results: the report of `viptrace trace`, or the agent.

use std::time::{Duration, Instant};

use super::record;
use crate::{
    cli::{
        Outcome,
        args::{RecordOptions, TraceOptions},
        show::{Show, Ways},
    },
    incident::Found,
    kernel::tracer::Tracer,
    recording::{CLOSE_LIMIT, Header, Recorded},
    report::{Report, trail},
    session::{Ending, Judgements, Pair, Pipeline},
    time::Timestamp,
};

/// Receives the results of a trace.
pub(in crate::cli) trait Sink {
    /// A limit of the verdicts that the user has to know.
    fn warn(&mut self, text: &str) -> anyhow::Result<()>;

    /// The trace lacks something, which the summary repeats.
    fn gap(&mut self, _: &str) {}

    /// This kernel never reports something, which the summary repeats.
    fn limit(&mut self, _: &str) {}

    /// The kernel has no room for so many addresses and ports of Services, which `text` says.
    fn services_refused(&mut self, count: u64, text: &str) -> anyhow::Result<()> {
        if count > 0 { self.warn(text) } else { Ok(()) }
    }

    /// Every hook is attached: the trace observes everything from now on.
    fn attached(&mut self, tracer: &Tracer, header: Header) -> anyhow::Result<()>;

    /// A hook was attached later, or is lost.
    fn hook_changed(&mut self, text: &str);

    /// After such changes: the description of the trace with the hooks of now.
    fn hooks_are(&mut self, header: Header);

    /// Judgements of the time `now`.
    fn show(&mut self, judgements: Judgements, pipeline: &Pipeline, now: Timestamp) -> anyhow::Result<()>;

    /// The way of a wanted flow is complete, or its verdict has changed.
    fn way(&mut self, _: &Found) -> anyhow::Result<()> {
        Ok(())
    }

    /// The recorder counted connections of this pair; `None` if their address belongs to no Service.
    fn started(&mut self, pair: Option<Pair>, count: u64);

    /// There was no counter for so many connections.
    fn uncounted(&mut self, count: u64);

    /// How long the end waits for the disk.
    fn time_for_disk(&self) -> Duration {
        CLOSE_LIMIT
    }

    /// The end of a turn of the event loop.
    fn turned(
        &mut self,
        recorded: &mut Recorded,
        tracer: Option<&Tracer>,
        now: Timestamp,
    ) -> anyhow::Result<()>;

    /// When the sink has work without an event.
    fn deadline(&self) -> Option<Instant>;

    /// Waits until the sink has work of its own, which [`Self::turned`] then does.
    async fn wanted(&mut self);
}

/// Prints the trace.
#[derive(Debug)]
pub(super) struct Shown<'a> {
    show: Show,
    pub(super) report: Report,
    record: Option<&'a RecordOptions>,
    /// The ways that are shown instead of rows.
    ways: Option<Ways>,
}

impl<'a> Shown<'a> {
    pub(super) fn new(options: &'a TraceOptions, report: Report) -> Self {
        Self {
            show: Show::new(options.target.clone()),
            report,
            record: options.record.as_ref(),
            ways: options.path.map(|_| Ways::default()),
        }
    }

    /// Ends the output: with the summary, unless it consists of ways.
    pub(super) fn finish(mut self, ending: &Ending) -> anyhow::Result<Outcome> {
        let Some(ways) = self.ways else { return self.show.finish(&mut self.report, ending) };
        Ok(if ways.finish(&mut self.report)? { Outcome::Faults } else { Outcome::Clean })
    }
}

impl Sink for Shown<'_> {
    fn warn(&mut self, text: &str) -> anyhow::Result<()> {
        Ok(self.report.warn(text)?)
    }

    fn attached(&mut self, tracer: &Tracer, _: Header) -> anyhow::Result<()> {
        let hooks = tracer.attached().len();
        let what = self.show.target().map_or("every Service".to_owned(), ToString::to_string);
        Ok(self.report.note(&format!("tracing {what} with {hooks} hooks; Ctrl-C ends with a summary"))?)
    }

    /// The summary names it.
    fn hook_changed(&mut self, _: &str) {}

    fn hooks_are(&mut self, _: Header) {}

    fn show(&mut self, judgements: Judgements, pipeline: &Pipeline, now: Timestamp) -> anyhow::Result<()> {
        if self.ways.is_some() {
            return Ok(());
        }
        self.show.show(&mut self.report, judgements, pipeline, now)
    }

    fn way(&mut self, found: &Found) -> anyhow::Result<()> {
        let text = trail::render_found(found, self.report.paint());
        self.ways.get_or_insert_default().show(&text, found.verdict().is_fault(), &mut self.report)
    }

    fn started(&mut self, pair: Option<Pair>, count: u64) {
        self.show.connections().add(pair, count);
    }

    fn uncounted(&mut self, count: u64) {
        self.show.connections().uncounted += count;
    }

    fn turned(&mut self, recorded: &mut Recorded, _: Option<&Tracer>, _: Timestamp) -> anyhow::Result<()> {
        if let (Some(failure), Some(record)) = (recorded.failure(), self.record) {
            self.report.warn(&record::failed(&record.path, &failure))?;
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Instant> {
        self.report.deadline()
    }

    async fn wanted(&mut self) {
        std::future::pending::<()>().await;
    }
}
