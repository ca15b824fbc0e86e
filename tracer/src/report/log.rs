//! The table that grows: one line for a flow, for pipes, files and terminals that cannot be updated in place.
//!
//! Healthy flows of one Service and endpoint are folded. Their line is written at the first flow, and again with the
//! count when it has changed, at most every [`FOLD_INTERVAL`].

use std::time::{Duration, Instant};

use crate::report::{
    Output, View,
    columns::Columns,
    folds::Folds,
    printer::{OutputError, Printer},
    row::Row,
};
use crate::session::{Folded, Judged};

/// The minimum time between two lines of the same fold.
const FOLD_INTERVAL: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct LogTable {
    output: Output,
    view: View,
    columns: Columns,
    heading_written: bool,
    folds: Folds,
    /// When the changed folds are written next; `None` while none has changed.
    next_folds: Option<Instant>,
}

impl LogTable {
    pub(super) fn new(output: Output, view: View) -> Self {
        Self {
            output,
            view,
            columns: Columns::unbounded(output),
            heading_written: false,
            folds: Folds::default(),
            next_folds: None,
        }
    }

    pub(super) fn show(
        &mut self,
        judged: &Judged,
        now: Instant,
        printer: &mut Printer,
    ) -> Result<(), OutputError> {
        let row = || Row::new(&judged.verdict, judged.connect_time, self.output == Output::Wide);
        if self.view.shows(&judged.verdict) {
            let row = row();
            self.write(&row, printer)?;
        } else if self.view.folds(&judged.verdict) {
            let row = row();
            if self.folds.add(judged, row.clone()) {
                self.write(&row, printer)?;
            } else if self.next_folds.is_none() {
                self.next_folds = Some(now + FOLD_INTERVAL);
            }
        }
        Ok(())
    }

    pub(super) fn fold(&mut self, folded: &Folded, now: Instant) {
        if !self.view.folds(&folded.verdict) {
            return;
        }
        if self.folds.add_folded(folded, self.output == Output::Wide) {
            self.next_folds = Some(now);
        } else if self.next_folds.is_none() {
            self.next_folds = Some(now + FOLD_INTERVAL);
        }
    }

    pub(super) const fn deadline(&self) -> Option<Instant> {
        self.next_folds
    }

    pub(super) fn tick(&mut self, now: Instant, printer: &mut Printer) -> Result<(), OutputError> {
        if self.next_folds.is_some_and(|at| now >= at) {
            self.write_folds(printer)?;
        }
        printer.flush()
    }

    /// Writes every fold whose current count has not been written.
    pub(super) fn write_folds(&mut self, printer: &mut Printer) -> Result<(), OutputError> {
        self.next_folds = None;
        for row in self.folds.take_changed() {
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
