//! The table that grows, for pipes, files and terminals that cannot be updated in place.
//!
//! The line of flows that share one is written at the first flow, and again with the count when it has changed, at most
//! every [`INTERVAL`].

use std::time::{Duration, Instant};

use crate::report::{
    Form, Output,
    columns::Columns,
    groups::Groups,
    printer::{OutputError, Printer},
    row::Row,
};
use crate::{
    session::{Folded, Judged},
    verdict::VerdictKey,
};

/// The minimum time between two lines of the same flows.
const INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct LogTable {
    form: Form,
    columns: Columns,
    heading_written: bool,
    groups: Groups,
    /// When the changed lines are written next; `None` while none has changed.
    next: Option<Instant>,
}

impl LogTable {
    /// `width` is that of the terminal, for lines that must not wrap.
    pub(super) fn new(form: Form, width: Option<usize>) -> Self {
        let columns = match width {
            Some(width) if form.output == Output::Table => Columns::bounded(form, width),
            _ => Columns::unbounded(form),
        };
        Self { form, columns, heading_written: false, groups: Groups::default(), next: None }
    }

    pub(super) fn show(
        &mut self,
        judged: &Judged,
        now: Instant,
        printer: &mut Printer,
    ) -> Result<(), OutputError> {
        let Form { view, .. } = self.form;
        let verdict = &judged.verdict;
        if let Some(before) = &judged.before {
            self.withdraw(judged, before);
        }
        let is_shown = view.shows(verdict) || !self.form.groups() && judged.had_failed();
        if !is_shown && !view.folds(verdict) {
            return Ok(());
        }
        let row = Row::new(verdict, judged.connect_time, self.with_addresses());
        if is_shown && !self.form.groups() {
            return self.write(&row, printer);
        }
        let first = self.groups.add(judged, row.clone());
        if self.form.replayed {
            return Ok(());
        }
        if first {
            return self.write(&row, printer);
        }
        self.next = self.next.or(Some(now + INTERVAL));
        Ok(())
    }

    /// No longer counts a flow in the line of its earlier verdict.
    pub(super) fn withdraw(&mut self, judged: &Judged, before: &VerdictKey) {
        self.groups.take_back(before, judged.verdict.flow.node.as_deref());
    }

    pub(super) fn fold(&mut self, folded: &Folded, now: Instant) {
        if !self.form.view.counts(&folded.verdict) {
            return;
        }
        let first = self.groups.add_folded(folded, self.with_addresses());
        if self.form.replayed {
            return;
        }
        let due = if first { now } else { now + INTERVAL };
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
    }

    fn with_addresses(&self) -> bool {
        self.form.output == Output::Wide
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.next
    }

    pub(super) fn tick(&mut self, now: Instant, printer: &mut Printer) -> Result<(), OutputError> {
        if self.next.is_some_and(|at| now >= at) {
            self.write_rest(printer)?;
        }
        printer.flush()
    }

    /// Writes every line whose current count has not been written.
    pub(super) fn write_rest(&mut self, printer: &mut Printer) -> Result<(), OutputError> {
        self.next = None;
        let rows = if self.form.replayed { self.groups.rows() } else { self.groups.take_changed() };
        for row in rows {
            self.write(&row, printer)?;
        }
        Ok(())
    }

    fn write(&mut self, row: &Row, printer: &mut Printer) -> Result<(), OutputError> {
        let paint = printer.paint();
        let mut text = String::new();
        if !self.heading_written {
            self.heading_written = true;
            text.push_str(&self.columns.heading(paint));
            text.push('\n');
        }
        for line in self.columns.row(row, paint, true) {
            text.push_str(&line);
            text.push('\n');
        }
        printer.data(&text)
    }
}
