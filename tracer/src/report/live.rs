//! The table that is updated in place: a region of bounded height at the bottom of the terminal, redrawn at most
//! ten times a second, with folded healthy flows, the latest flows that have a line of their own, and counters.
//!
//! Lines that have to leave the region are written above it once and then belong to the terminal's scrollback, so
//! nothing that was reported gets lost. Only the region is ever erased. When the terminal's size changes, how it
//! rearranged the old lines is unknown: the region is left where it is and begun anew below.

use std::{
    collections::VecDeque,
    fmt,
    fmt::Write as _,
    time::{Duration, Instant},
};

use terminal_size::{Height, Width};

use crate::{
    report::{
        FoldedItem, Item, Status, View,
        columns::Columns,
        fit::{Cut, fit},
        printer::{OutputError, Paint, Printer, Style},
        row::{FlowKey, Row},
        sink::Folds,
    },
    text::{self, safe},
};

/// The least time between two redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// Lines that are written above the region in one redraw; more come too fast to be read.
const MAX_SCROLLED: usize = 1000;
/// Lines of the region, at most.
const MAX_LINES: usize = 24;
/// The size that is taken where the terminal does not tell one.
const DEFAULT_SIZE: Size = Size { columns: 80, lines: 24 };

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub columns: usize,
    pub lines: usize,
}

pub(super) struct LiveTable {
    view: View,
    size_of: Box<dyn Fn() -> Option<Size> + Send>,
    folds: Folds,
    flows: VecDeque<(FlowKey, Row)>,
    /// Rows that left the region and are not written above it yet.
    scrolled: VecDeque<Row>,
    not_shown: u64,
    status: Status,
    /// The size at the last look, and the lines drawn then.
    size: Option<Size>,
    drawn: usize,
    dirty: bool,
    last_draw: Option<Instant>,
}

impl fmt::Debug for LiveTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveTable")
            .field("size", &self.size)
            .field("drawn", &self.drawn)
            .finish_non_exhaustive()
    }
}

impl LiveTable {
    pub(super) fn on_stdout(view: View) -> Self {
        Self::new(view, || {
            let (Width(columns), Height(lines)) = terminal_size::terminal_size_of(std::io::stdout())?;
            Some(Size { columns: columns.into(), lines: lines.into() })
        })
    }

    pub(super) fn new(view: View, size_of: impl Fn() -> Option<Size> + Send + 'static) -> Self {
        Self {
            view,
            size_of: Box::new(size_of),
            folds: Folds::default(),
            flows: VecDeque::new(),
            scrolled: VecDeque::new(),
            not_shown: 0,
            status: Status::default(),
            size: None,
            drawn: 0,
            dirty: true,
            last_draw: None,
        }
    }

    pub(super) fn show(&mut self, item: Item<'_>, _now: Instant) {
        let key = FlowKey::new(&item.verdict.flow);
        let known =
            if item.revised { self.flows.iter().position(|(candidate, _)| *candidate == key) } else { None };
        if let Some(at) = known {
            // The line says what holds now, even if it would not have been shown for that.
            if let Some((_, row)) = self.flows.get_mut(at) {
                *row = Row::new(item, false);
            }
        } else if self.view.shows(item.verdict) {
            self.flows.push_back((key, Row::new(item, false)));
            if self.flows.len() > MAX_LINES
                && let Some((_, row)) = self.flows.pop_front()
            {
                self.scroll(row);
            }
        } else if self.view.folds(item.verdict) {
            self.folds.add(item, Row::new(item, false));
        } else {
            return;
        }
        self.dirty = true;
    }

    pub(super) fn fold(&mut self, item: FoldedItem<'_>) {
        if self.view.folds(item.verdict) {
            self.folds.add_folded(item, false);
            self.dirty = true;
        }
    }

    fn scroll(&mut self, row: Row) {
        if self.scrolled.len() < MAX_SCROLLED {
            self.scrolled.push_back(row);
        } else {
            self.not_shown += 1;
        }
    }

    pub(super) fn status(&mut self, status: Status, _now: Instant) {
        if self.status_line(DEFAULT_SIZE.columns) != status_line(&status, DEFAULT_SIZE.columns) {
            self.dirty = true;
        }
        self.status = status;
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.dirty.then(|| self.last_draw.map_or_else(Instant::now, |last| last + REDRAW_INTERVAL))
    }

    pub(super) fn tick(&mut self, now: Instant, printer: &mut Printer) -> Result<(), OutputError> {
        let due = self.last_draw.is_none_or(|last| now.saturating_duration_since(last) >= REDRAW_INTERVAL);
        if !self.dirty || !due {
            return Ok(());
        }
        self.last_draw = Some(now);
        let size = (self.size_of)().unwrap_or(DEFAULT_SIZE);
        if self.size.replace(size).is_some_and(|before| before != size) {
            self.drawn = 0;
            // While a window is being dragged, wait for its last size.
            return Ok(());
        }
        self.draw(size, printer)
    }

    fn draw(&mut self, size: Size, printer: &mut Printer) -> Result<(), OutputError> {
        let paint = printer.paint();
        let columns = Columns::bounded(size.columns);
        // The heading, the status line and the line that the cursor rests on are not for rows.
        let room = size.lines.saturating_sub(4).clamp(1, MAX_LINES);
        let fold_rows = self.folds.latest(if self.flows.is_empty() { room } else { room.div_ceil(2) });
        while self.flows.len() > room - fold_rows.len().min(room - 1) {
            let Some((_, row)) = self.flows.pop_front() else { break };
            self.scroll(row);
        }

        let mut out = self.erase();
        for row in self.scrolled.drain(..) {
            out.push_str(&columns.row(&row, paint, true));
            out.push('\n');
        }
        if self.not_shown > 0 {
            let _ = writeln!(out, "… {} more came too fast to be shown", self.not_shown);
            self.not_shown = 0;
        }
        // Without wrapping, a line that is too long after all stays one line.
        out.push_str("\x1b[?7l");
        let mut lines = vec![columns.heading(paint)];
        let rows = fold_rows.iter().chain(self.flows.iter().map(|(_, row)| row));
        lines.extend(rows.map(|row| columns.row(row, paint, false)));
        lines.push(paint.text(Style::Faint, &self.status_line(size.columns)));
        for line in &lines {
            out.push_str(line);
            out.push('\n');
        }
        out.push_str("\x1b[?7h");
        self.drawn = lines.len();
        self.dirty = false;
        printer.data(&out)?;
        printer.flush()
    }

    /// What takes the region off the screen and puts the cursor where it began.
    fn erase(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => "\r\x1b[J".into(),
            lines => format!("\r\x1b[{lines}A\x1b[J"),
        }
    }

    fn status_line(&self, columns: usize) -> String {
        status_line(&self.status, columns)
    }

    /// Takes the region off the screen so that something else can be written; it comes back with the next redraw.
    pub(super) fn make_way(&mut self, printer: &mut Printer) -> Result<(), OutputError> {
        if self.drawn > 0 {
            let size = (self.size_of)().unwrap_or(DEFAULT_SIZE);
            if self.size == Some(size) {
                let erase = self.erase();
                printer.data(&erase)?;
                printer.flush()?;
            }
            self.drawn = 0;
            self.dirty = true;
        }
        Ok(())
    }

    /// Leaves the whole table on the screen, without the counters.
    pub(super) fn finish(&mut self, printer: &mut Printer) -> Result<(), OutputError> {
        self.make_way(printer)?;
        let size = (self.size_of)().unwrap_or(DEFAULT_SIZE);
        let columns = Columns::bounded(size.columns);
        let paint: Paint = printer.paint();
        let rows: Vec<Row> = (self.scrolled.drain(..))
            .chain(self.folds.latest(usize::MAX))
            .chain(self.flows.drain(..).map(|(_, row)| row))
            .collect();
        let mut out = String::new();
        if !rows.is_empty() {
            out.push_str(&columns.heading(paint));
            out.push('\n');
        }
        for row in &rows {
            out.push_str(&columns.row(row, paint, true));
            out.push('\n');
        }
        printer.data(&out)?;
        printer.flush()
    }
}

/// The counters in one line, the most important ones first.
fn status_line(status: &Status, columns: usize) -> String {
    let mut line = format!(
        "{} faults, {} unknown, {} ok, {} normal, {} open",
        status.faults, status.unknown, status.ok, status.normal, status.flows_open
    );
    if status.lost_events > 0 {
        let _ = write!(line, " | {} EVENTS LOST", status.lost_events);
    }
    match status.metadata_age {
        Some(age) => {
            let _ = write!(line, " | metadata is {} old", text::age(age));
        }
        None => line.push_str(" | no metadata"),
    }
    if let Some(remark) = &status.remark {
        let _ = write!(line, " | {}", safe(remark));
    }
    line.push_str(" | Ctrl-C ends");
    fit(&line, columns, Cut::End).into_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::{
        class::Class,
        report::{
            Report, Summary,
            sink::{
                fixture,
                tests::{Shared, item, printer},
            },
        },
    };

    /// As much of a terminal as the table uses; it wraps long lines and keeps what scrolls off.
    struct Screen {
        columns: usize,
        visible: usize,
        /// Scrollback and screen.
        lines: Vec<Vec<char>>,
        row: usize,
        column: usize,
        wrap: bool,
    }

    impl Screen {
        fn new(columns: usize, visible: usize) -> Self {
            Self { columns, visible, lines: vec![vec![]], row: 0, column: 0, wrap: true }
        }

        fn feed(&mut self, text: &str) {
            let mut rest = text.chars();
            while let Some(character) = rest.next() {
                match character {
                    '\r' => self.column = 0,
                    '\n' => self.line_feed(),
                    '\u{1b}' => {
                        assert_eq!(rest.next(), Some('['));
                        let mut arguments = String::new();
                        let end = loop {
                            match rest.next() {
                                Some(end) if end.is_ascii_alphabetic() => break end,
                                Some(other) => arguments.push(other),
                                None => panic!("unfinished sequence"),
                            }
                        };
                        self.control(&arguments, end);
                    }
                    other => self.put(other),
                }
            }
        }

        fn control(&mut self, arguments: &str, end: char) {
            match (arguments, end) {
                ("?7", 'l') => self.wrap = false,
                ("?7", 'h') => self.wrap = true,
                ("" | "0", 'J') => {
                    self.lines.truncate(self.row + 1);
                    self.lines[self.row].truncate(self.column);
                }
                (count, 'A') => {
                    let top = self.lines.len().saturating_sub(self.visible);
                    let count: usize = count.parse().unwrap_or(1);
                    self.row = self.row.saturating_sub(count).max(top);
                }
                (_, 'm') => {}
                other => panic!("unexpected sequence {other:?}"),
            }
        }

        fn line_feed(&mut self) {
            self.row += 1;
            self.column = 0;
            if self.row == self.lines.len() {
                self.lines.push(vec![]);
            }
        }

        fn put(&mut self, character: char) {
            if self.column == self.columns {
                if !self.wrap {
                    return;
                }
                self.line_feed();
            }
            let line = &mut self.lines[self.row];
            line.truncate(self.column);
            line.push(character);
            self.column += 1;
        }

        fn text(&self) -> String {
            self.lines.iter().map(|line| line.iter().collect::<String>() + "\n").collect()
        }
    }

    struct Bench {
        report: Report,
        out: Shared,
        screen: Screen,
        now: Instant,
        columns: Arc<AtomicUsize>,
    }

    impl Bench {
        fn new(view: View, columns: usize, lines: usize) -> Self {
            let (printer, out, _) = printer();
            let shared = Arc::new(AtomicUsize::new(columns));
            let columns_now = Arc::clone(&shared);
            let table = LiveTable::new(view, move || {
                Some(Size { columns: columns_now.load(Ordering::Relaxed), lines })
            });
            let mut screen = Screen::new(columns, lines);
            screen.feed("$ viptrace trace\n");
            let report = Report::live(table, view, printer);
            Self { report, out, screen, now: Instant::now(), columns: shared }
        }

        fn tick(&mut self) -> String {
            self.now += REDRAW_INTERVAL;
            assert!(self.report.tick(self.now).is_ok());
            self.screen.feed(&self.out.take());
            self.screen.text()
        }

        fn show(&mut self, verdict: &crate::verdict::Verdict) {
            assert!(self.report.show(item(verdict), self.now).is_ok());
        }
    }

    fn fault(port: u16) -> crate::verdict::Verdict {
        let mut verdict = fixture::fault();
        verdict.flow.client_pod = None;
        verdict.flow.client.set_port(port);
        verdict
    }

    #[test]
    fn healthy_flows_stay_one_line_and_the_prompt_stays() {
        let mut bench = Bench::new(View::Default, 120, 24);
        for port in 1..200 {
            bench.show(&fixture::ok(port));
            let text = bench.tick();
            assert_eq!(text.lines().count(), 4 + usize::from(text.ends_with("\n\n")), "{text}");
        }
        let text = bench.tick();
        assert!(text.starts_with("$ viptrace trace\nTIME(UTC)"), "{text}");
        assert!(text.contains("199 flows"), "{text}");
        assert_eq!(text.matches("TIME(UTC)").count(), 1);
    }

    #[test]
    fn no_fault_is_lost_from_the_scrollback_and_none_is_doubled() {
        for lines in [5, 12, 60] {
            let mut bench = Bench::new(View::Default, 100, lines);
            for port in 1..=300 {
                bench.show(&fixture::ok(port));
                bench.show(&fault(port));
                if port % 7 == 0 {
                    bench.tick();
                }
            }
            bench.tick();
            assert!(bench.report.finish(&Summary::default()).is_ok());
            bench.screen.feed(&bench.out.take());
            let text = bench.screen.text();
            let faults = text.lines().filter(|line| line.contains("FAULT C20")).count();
            assert_eq!(faults, 300, "{lines} lines:\n{text}");
            assert!(text.contains("Summary"));
        }
    }

    #[test]
    fn redraws_are_limited_and_an_idle_table_needs_no_timer() {
        let mut bench = Bench::new(View::Default, 100, 24);
        bench.tick();
        assert_eq!(bench.report.deadline(), None);
        bench.show(&fault(1));
        assert_eq!(bench.report.deadline(), Some(bench.now + REDRAW_INTERVAL));
        assert!(bench.report.tick(bench.now).is_ok());
        assert_eq!(bench.out.take(), "");
        // The same counters again are no reason to draw.
        bench.tick();
        bench.report.status(Status::default(), bench.now);
        assert_eq!(bench.report.deadline(), None);
    }

    #[test]
    fn a_resize_erases_nothing_that_is_not_ours() {
        let mut bench = Bench::new(View::Default, 100, 24);
        bench.show(&fault(1));
        bench.tick();
        bench.columns.store(60, Ordering::Relaxed);
        bench.screen.columns = 60;
        bench.show(&fault(2));
        bench.tick();
        let text = bench.tick();
        assert!(text.starts_with("$ viptrace trace\n"), "{text}");
        assert_eq!(text.matches("TIME(UTC)").count(), 2, "{text}");
        bench.show(&fault(3));
        let text = bench.tick();
        assert_eq!(text.matches("TIME(UTC)").count(), 2, "{text}");
    }

    #[test]
    fn a_revised_flow_replaces_its_line() {
        let mut bench = Bench::new(View::Default, 140, 24);
        let mut verdict = fault(1);
        verdict.class = Class::Unknown;
        bench.show(&verdict);
        assert!(bench.tick().contains("unknown "));
        verdict.class = Class::Ok;
        let item = Item { revised: true, ..item(&verdict) };
        assert!(bench.report.show(item, bench.now).is_ok());
        let text = bench.tick();
        let row = text.lines().find(|line| line.contains("shop/checkout"));
        assert!(row.is_some_and(|row| row.contains(" ok ")), "{text}");
    }

    #[test]
    fn the_status_line_says_what_matters() {
        let status = Status {
            faults: 2,
            lost_events: 3,
            metadata_age: Some(Duration::from_mins(3)),
            remark: Some("API server does not answer\u{7}".into()),
            ..Status::default()
        };
        let line = status_line(&status, 200);
        assert!(line.starts_with("2 faults, ") && line.contains("3 EVENTS LOST"), "{line}");
        assert!(line.contains("metadata is 3 min old") && line.contains("\\u{7}"), "{line}");
    }
}
