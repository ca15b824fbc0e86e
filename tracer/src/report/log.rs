//! The table that grows, for pipes, files and terminals that cannot be updated in place.
//!
//! The line of flows that share one is written at the first flow, and again with the count when it has changed, at most
//! every [`INTERVAL`].

use std::{
    borrow::Cow,
    collections::HashMap,
    time::{Duration, Instant},
};

use crate::report::{
    Form, Output,
    columns::Columns,
    groups::Groups,
    printer::{OutputError, Printer},
    row::{DO, Row},
};
use crate::{
    session::{Folded, Judged},
    verdict::VerdictKey,
};

/// The minimum time between two lines of the same flows.
const INTERVAL: Duration = Duration::from_secs(10);

/// The most causes whose actions are known as written; beyond it they are written again.
const MAX_CAUSES: usize = 1000;
/// The most variants of a cause's actions that are written: they differ in addresses.
const MAX_VARIANTS: usize = 4;

#[derive(Debug)]
pub(super) struct LogTable {
    form: Form,
    columns: Columns,
    heading_written: bool,
    groups: Groups,
    /// The actions that were written.
    advised: Advised,
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
        Self {
            form,
            columns,
            heading_written: false,
            groups: Groups::default(),
            advised: Advised::default(),
            next: None,
        }
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
        let row = self.advised.shortened(row);
        for line in self.columns.row(&row, paint, true) {
            text.push_str(&line);
            text.push('\n');
        }
        printer.data(&text)
    }
}

/// The actions that stand below an earlier row, so that a cause of many flows has them once.
#[derive(Debug, Default)]
struct Advised {
    /// By verdict and Service.
    causes: HashMap<(String, String), Vec<Written>>,
}

/// The lines of actions, and the time of the row above them.
#[derive(Debug)]
struct Written {
    actions: Vec<String>,
    time: String,
}

impl Advised {
    /// The row, with a reference in place of actions that were written before.
    fn shortened<'r>(&mut self, row: &'r Row) -> Cow<'r, Row> {
        if row.wide.actions.is_empty() {
            return Cow::Borrowed(row);
        }
        let cause = (row.verdict.clone(), row.service.clone());
        if self.causes.len() >= MAX_CAUSES && !self.causes.contains_key(&cause) {
            self.causes.clear();
        }
        let known = self.causes.entry(cause).or_default();
        let same = known.iter().find(|written| written.actions == row.wide.actions);
        let reference = match (same, known.last()) {
            (Some(Written { time, .. }), _) => format!("{DO} as for the flow at {time}"),
            (None, Some(Written { time, .. })) if known.len() >= MAX_VARIANTS => {
                format!("{DO} as for the flow at {time}, with the addresses of this one")
            }
            _ => {
                known.push(Written { actions: row.wide.actions.clone(), time: row.time.clone() });
                return Cow::Borrowed(row);
            }
        };
        let mut row = row.clone();
        row.wide.actions = vec![reference];
        Cow::Owned(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::fixture, time::Timestamp};

    #[test]
    fn the_actions_of_a_cause_are_written_once() {
        let mut advised = Advised::default();
        let mut below = |second: u64, change: &dyn Fn(&mut crate::verdict::Verdict)| {
            let mut verdict = fixture::fault();
            verdict.time = Timestamp::from_unix_secs(second);
            change(&mut verdict);
            advised.shortened(&Row::new(&verdict, None, true)).wide.actions.clone()
        };
        let whole = [
            "do: [read-only] `kubectl -n shop get pods -l app=checkout`",
            "    [disruptive] correct the selector",
            "more: viptrace explain C20",
        ];
        assert_eq!(below(1, &|_| {}), whole);
        assert_eq!(below(2, &|_| {}), ["do: as for the flow at 00:00:01.000"]);
        assert_eq!(below(3, &|verdict| verdict.service = None), whole);
        assert_eq!(below(4, &|verdict| verdict.mitigation.steps.truncate(1)), [whole[0], whole[2]]);
        assert_eq!(
            below(5, &|verdict| verdict.mitigation.steps.truncate(1)),
            ["do: as for the flow at 00:00:04.000"]
        );
        assert_eq!(below(6, &|_| {}), ["do: as for the flow at 00:00:01.000"]);
        for second in 7..100 {
            let number = second.to_string();
            let found = below(second, &|verdict| verdict.mitigation.steps[1].text = number.clone().into());
            let is_whole = second < 5 + MAX_VARIANTS as u64;
            assert_eq!(found.len() == 3, is_whole, "{found:?}");
            assert!(is_whole || found[0].ends_with(", with the addresses of this one"), "{found:?}");
        }
    }
}
