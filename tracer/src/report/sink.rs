//! The destination of verdicts: one of the tables, JSON lines or YAML documents, behind one type.

use std::time::Instant;

use thiserror::Error;
use tokio::sync::mpsc;

use crate::{
    report::{
        Form, Output, OutputError, Paint, Printer,
        fit::wrap,
        json,
        live::{LiveTable, Status},
        log::LogTable,
        summary,
        top::{Top, Weight},
        yaml,
    },
    session::{Ending, Folded, Judged, Summary},
    text::safe,
    verdict::VerdictKey,
};

/// Takes verdicts and prints them. Writes nothing between calls: the event loop calls [`Report::tick`] after each batch
/// and at [`Report::deadline`].
#[derive(Debug)]
pub struct Report {
    printer: Printer,
    sink: Sink,
    form: Form,
}

/// There is no terminal for a screen.
#[derive(Clone, Copy, Debug, Error)]
#[error("standard output is not a terminal that viptrace has for itself")]
pub struct NoScreen;

#[derive(Debug)]
enum Sink {
    Live(Box<LiveTable>),
    Log(Box<LogTable>),
    Top(Box<Top>),
    Json,
    Yaml,
}

impl Report {
    /// Chooses the sink: the table is updated in place where standard output is a terminal.
    pub fn new(form: Form, printer: Printer) -> Self {
        let sink = match form.output {
            Output::Json => Sink::Json,
            Output::Yaml => Sink::Yaml,
            Output::Table if printer.can_update_in_place() => {
                Sink::Live(Box::new(LiveTable::on_stdout(form)))
            }
            Output::Table | Output::Wide => {
                Sink::Log(Box::new(LogTable::new(form, printer.terminal_columns())))
            }
        };
        Self { printer, sink, form }
    }

    /// A screen of its own, which a person moves in; `title` names the traced flows. Once the person ends it, `stop` gets
    /// a message. Fails if standard output is no terminal, or shares it with log lines.
    pub fn top(form: Form, title: &str, printer: Printer, stop: mpsc::Sender<()>) -> Result<Self, NoScreen> {
        if !printer.can_update_in_place() {
            return Err(NoScreen);
        }
        let form = Form { output: Output::Table, each: true, ..form };
        let top = Top::new(form, safe(title).into_owned(), printer.paint(), stop);
        Ok(Self { printer, sink: Sink::Top(Box::new(top)), form })
    }

    #[cfg(test)]
    pub(super) fn live(table: LiveTable, form: Form, printer: Printer) -> Self {
        Self { printer, sink: Sink::Live(Box::new(table)), form }
    }

    /// Shows one judged flow, if the view shows it.
    pub fn show(&mut self, judged: &Judged, now: Instant) -> Result<(), OutputError> {
        // A later record says that an earlier one no longer holds.
        let is_shown = self.form.view.shows(&judged.verdict) || judged.had_failed();
        match &mut self.sink {
            Sink::Live(table) => {
                table.show(judged);
                Ok(())
            }
            Sink::Log(table) => table.show(judged, now, &mut self.printer),
            Sink::Top(top) => {
                top.show(judged);
                Ok(())
            }
            Sink::Json if is_shown => self.printer.data(&json::line(&judged.verdict)?),
            Sink::Yaml if is_shown => self.printer.data(&yaml::document(&judged.verdict)?),
            Sink::Json | Sink::Yaml => Ok(()),
        }
    }

    /// Takes back what an earlier verdict showed. The new one is shown only where each verdict has a record.
    pub fn withdraw(
        &mut self,
        judged: &Judged,
        before: &VerdictKey,
        now: Instant,
    ) -> Result<(), OutputError> {
        match &mut self.sink {
            Sink::Log(table) if self.form.groups() => table.withdraw(judged, before),
            Sink::Live(table) => table.withdraw(judged, before),
            Sink::Top(_) => {}
            Sink::Log(_) | Sink::Json | Sink::Yaml => return self.show(judged, now),
        }
        Ok(())
    }

    /// Counts flows that share a verdict. Records show each flow or none, so only tables show them.
    pub fn fold(&mut self, folded: &Folded, now: Instant) {
        match &mut self.sink {
            Sink::Live(table) => table.fold(folded),
            Sink::Log(table) => table.fold(folded, now),
            Sink::Top(top) => top.fold(folded),
            Sink::Json | Sink::Yaml => {}
        }
    }

    /// Whether the sink uses [`Report::status`].
    pub const fn shows_status(&self) -> bool {
        matches!(self.sink, Sink::Live(_) | Sink::Top(_))
    }

    /// Whether a person has ended the report.
    pub fn is_over(&self) -> bool {
        matches!(&self.sink, Sink::Top(top) if top.is_over())
    }

    /// The recording was played to its end: no flow comes any more.
    pub fn played(&mut self) {
        if let Sink::Top(top) = &mut self.sink {
            top.played();
        }
    }

    /// Takes the newest counters; only a live table shows them.
    pub fn status(&mut self, status: Status) {
        match &mut self.sink {
            Sink::Live(table) => table.status(status),
            Sink::Top(top) => top.status(status),
            Sink::Log(_) | Sink::Json | Sink::Yaml => {}
        }
    }

    /// When [`Report::tick`] is due next, if anything waits to be written.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.sink {
            Sink::Live(table) => table.deadline(),
            Sink::Log(table) => table.deadline(),
            Sink::Top(top) => top.deadline(),
            Sink::Json | Sink::Yaml => None,
        }
    }

    /// Writes due output and flushes. Call it after each batch.
    pub fn tick(&mut self, now: Instant) -> Result<(), OutputError> {
        match &mut self.sink {
            Sink::Live(table) => table.tick(now, &mut self.printer),
            Sink::Log(table) => table.tick(now, &mut self.printer),
            Sink::Top(top) => top.tick(now),
            Sink::Json | Sink::Yaml => self.printer.flush(),
        }
    }

    /// Prints a message without disturbing the table.
    pub fn note(&mut self, text: &str) -> Result<(), OutputError> {
        self.message(text, Weight::Note)
    }

    /// Like [`Report::note`], for limits of the verdicts.
    pub fn warn(&mut self, text: &str) -> Result<(), OutputError> {
        self.message(text, Weight::Warning)
    }

    fn message(&mut self, text: &str, weight: Weight) -> Result<(), OutputError> {
        match &mut self.sink {
            Sink::Top(top) => {
                if top.message(text, weight) {
                    return Ok(());
                }
            }
            Sink::Live(table) if self.printer.shares_screen() => table.make_way(&mut self.printer)?,
            Sink::Live(_) | Sink::Log(_) | Sink::Json | Sink::Yaml => {}
        }
        weight.print(text, &mut self.printer);
        Ok(())
    }

    /// How texts for [`Self::text`] are painted.
    pub(crate) fn paint(&self) -> Paint {
        self.printer.paint()
    }

    /// Prints whole lines instead of rows, at once.
    pub(crate) fn text(&mut self, text: &str) -> Result<(), OutputError> {
        self.printer.text(text)?;
        self.printer.flush()
    }

    /// Ends the output with the summary: on standard output for tables, on standard error next to records.
    pub fn finish(&mut self, summary: &Summary, ending: &Ending) -> Result<(), OutputError> {
        let text = |paint| summary::render(summary, ending, paint);
        match &mut self.sink {
            Sink::Live(table) => {
                table.finish(&mut self.printer)?;
                let text = text(self.printer.paint());
                self.printer.data(&wrap(&text, table.columns()))?;
            }
            Sink::Log(table) => {
                table.write_rest(&mut self.printer)?;
                let text = text(self.printer.paint());
                self.printer.text(&text)?;
            }
            Sink::Top(top) => {
                for message in top.leave() {
                    message.weight.print(&message.text, &mut self.printer);
                }
                let text = text(self.printer.paint());
                self.printer.text(&text)?;
            }
            Sink::Json | Sink::Yaml => {
                self.printer.flush()?;
                let text = text(self.printer.message_paint());
                self.printer.message_block(&text);
            }
        }
        self.printer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        class::Class,
        report::{
            View,
            fixture::{self, judged, printer},
        },
        verdict::Verdict,
    };

    fn run(form: Form, verdicts: &[Verdict]) -> (String, String) {
        let (printer, out, err) = printer();
        let mut report = Report::new(form, printer);
        let now = Instant::now();
        for verdict in verdicts {
            assert!(report.show(&judged(verdict.clone()), now).is_ok());
        }
        assert!(report.tick(now).is_ok());
        assert!(report.finish(&Summary::default(), &Ending::default()).is_ok());
        (out.take(), err.take())
    }

    fn form(output: Output, view: View) -> Form {
        Form { output, view, ..Form::default() }
    }

    fn mixed() -> Vec<Verdict> {
        let mut normal = fixture::ok(3);
        normal.class = Class::N1;
        normal.root_cause = "normal — kubelet probe".into();
        vec![fixture::ok(1), fixture::fault(), fixture::ok(2), normal]
    }

    #[test]
    fn the_default_view_folds_healthy_flows_on_a_pipe() {
        let (out, _) = run(form(Output::Table, View::Default), &mixed());
        let lines: Vec<_> = out.lines().take_while(|line| !line.is_empty()).collect();
        assert_eq!(lines.len(), 4, "{out}");
        assert!(lines[0].starts_with("TIME UTC"));
        assert!(lines[1].contains("ok ") && lines[1].contains("shop/cart-1"));
        assert!(lines[2].contains("FAULT C20") && lines[2].contains("the selector matches no Pod"));
        assert!(lines[3].contains("ok              2  shop/checkout:http"), "{out}");
    }

    #[test]
    fn views() {
        let count = |view| {
            let (out, _) = run(form(Output::Table, view), &mixed());
            out.lines().take_while(|line| !line.is_empty()).count() - 1
        };
        assert_eq!(count(View::All), 4);
        assert_eq!(count(View::FaultsOnly), 1);
    }

    #[test]
    fn wide_shows_evidence_and_action_below() {
        let (out, _) = run(form(Output::Wide, View::Default), &[fixture::fault()]);
        assert!(out.contains("shop/client (10.244.1.40:40001)"), "{out}");
        assert!(out.contains("\n    evidence: 00:01:41.000 nf_send_unreach"), "{out}");
        assert!(
            out.contains(
                "\n    do: [read-only] `kubectl -n shop get pods -l app=checkout`\n        [disruptive] "
            ),
            "{out}"
        );
    }

    #[test]
    fn records_are_alone_on_standard_output() {
        let (out, err) = run(form(Output::Json, View::All), &mixed());
        assert_eq!(out.lines().count(), 4);
        assert!(out.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()));
        assert!(err.contains("Summary"));
        let (out, _) = run(form(Output::Json, View::Default), &mixed());
        assert_eq!(out.lines().count(), 1);
        let (out, _) = run(form(Output::Yaml, View::Default), &mixed());
        assert_eq!(out.matches("---\n").count(), 1);
    }
}
