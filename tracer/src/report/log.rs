//! The table that grows: one line a flow, for pipes, files and terminals that cannot be updated in place.
//!
//! Healthy flows of one Service and endpoint are folded; their line is written when they were first seen, and then
//! again with the count whenever it changed, at most every [`FOLD_INTERVAL`].

use std::time::{Duration, Instant};

use crate::report::{
    FoldedItem, Item, Output, View,
    columns::Columns,
    printer::{OutputError, Printer},
    row::Row,
    sink::Folds,
};

/// The least time between two lines of the same fold.
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
        item: Item<'_>,
        now: Instant,
        printer: &mut Printer,
    ) -> Result<(), OutputError> {
        let row = || Row::new(item, self.output == Output::Wide);
        if self.view.shows(item.verdict) {
            let row = row();
            self.write(&row, printer)?;
        } else if self.view.folds(item.verdict) {
            let row = row();
            if self.folds.add(item, row.clone()) {
                self.write(&row, printer)?;
            } else if self.next_folds.is_none() {
                self.next_folds = Some(now + FOLD_INTERVAL);
            }
        }
        Ok(())
    }

    pub(super) fn fold(&mut self, item: FoldedItem<'_>, now: Instant) {
        if !self.view.folds(item.verdict) {
            return;
        }
        if self.folds.add_folded(item, self.output == Output::Wide) {
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

    /// Writes every fold whose count is not on the screen yet.
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
        text.push_str(&self.columns.row(row, paint, true));
        text.push('\n');
        for below in &row.wide.below {
            text.push_str("    ");
            text.push_str(below);
            text.push('\n');
        }
        printer.data(&text)
    }
}
