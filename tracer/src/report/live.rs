//! The table that is updated in place: a region of bounded height at the bottom of the terminal, redrawn at most ten
//! times a second, with the lines that flows share, or the latest flows with their own line, and counters.
//!
//! A shared line that has no room is counted, and printed with all others at the end. The line of a single flow that
//! leaves the region is written above it once and then belongs to the terminal's scrollback, so that no report is lost.
//! Only the region is ever erased. After a change of the terminal's size it is unknown how the terminal
//! rearranged the old lines: the region stays where it is and starts again below.

use std::{
    collections::VecDeque,
    fmt,
    fmt::Write as _,
    time::{Duration, Instant},
};

use terminal_size::{Height, Width, terminal_size_of};

use crate::{
    report::{
        Form,
        columns::Columns,
        fit::{Cut, fit},
        groups::Groups,
        printer::{OutputError, Paint, Printer, Style},
        row::{FlowKey, Row},
    },
    session::{Counts, Folded, Judged},
    text::{self, safe},
    verdict::VerdictKey,
};

/// The minimum time between two redraws.
const REDRAW_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of lines written above the region in one redraw; more are too fast to read.
const MAX_SCROLLED: usize = 1000;
/// The maximum number of lines of the region.
const MAX_LINES: usize = 24;
/// The size of a terminal that reports none.
const DEFAULT_SIZE: Size = Size { columns: 80, lines: 24 };

/// The contents of a live table's status line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    pub counts: Counts,
    pub flows_open: u64,
    pub lost_events: u64,
    /// See [`Ending::metadata_age`](crate::session::Ending::metadata_age).
    pub metadata_age: Option<Duration>,
    /// A permanent warning, such as an API server that does not answer.
    pub remark: Option<String>,
}

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub columns: usize,
    pub lines: usize,
}

pub(super) struct LiveTable {
    form: Form,
    size_of: Box<dyn Fn() -> Option<Size> + Send>,
    groups: Groups,
    /// The latest flows with their own line.
    flows: VecDeque<(FlowKey, Row)>,
    /// Rows that left the region and have not been written above it yet.
    scrolled: VecDeque<Row>,
    not_shown: u64,
    status: Status,
    /// The size at the last check, and the lines drawn then.
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
    pub(super) fn on_stdout(form: Form) -> Self {
        Self::new(form, || {
            let (Width(columns), Height(lines)) = terminal_size_of(std::io::stdout())?;
            Some(Size { columns: columns.into(), lines: lines.into() })
        })
    }

    pub(super) fn new(form: Form, size_of: impl Fn() -> Option<Size> + Send + 'static) -> Self {
        Self {
            form,
            size_of: Box::new(size_of),
            groups: Groups::default(),
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

    pub(super) fn show(&mut self, judged: &Judged) {
        let Judged { verdict, before, connect_time, .. } = judged;
        let Form { view, .. } = self.form;
        let key = FlowKey::new(&verdict.flow);
        let known = before.as_ref().and_then(|_| self.flows.iter().position(|(other, _)| *other == key));
        if let Some(before) = before {
            self.groups.take_back(before, verdict.flow.node.as_deref());
            self.dirty = true;
        }
        let row = || Row::new(verdict, *connect_time, false);
        if let Some(at) = known {
            // The line shows the current state, even if that state alone would not have been shown.
            if let Some((_, line)) = self.flows.get_mut(at) {
                *line = row();
            }
        } else if view.shows(verdict) && !self.form.groups() {
            self.flows.push_back((key, row()));
            if self.flows.len() > MAX_LINES
                && let Some((_, row)) = self.flows.pop_front()
            {
                self.scroll(row);
            }
        } else if view.shows(verdict) || view.folds(verdict) {
            self.groups.add(judged, row());
        } else {
            return;
        }
        self.dirty = true;
    }

    /// Takes back what an earlier verdict showed: the flow is not shown any more.
    pub(super) fn withdraw(&mut self, judged: &Judged, before: &VerdictKey) {
        let flow = &judged.verdict.flow;
        let key = FlowKey::new(flow);
        self.groups.take_back(before, flow.node.as_deref());
        self.flows.retain(|(other, _)| *other != key);
        self.dirty = true;
    }

    pub(super) fn fold(&mut self, folded: &Folded) {
        if self.form.view.counts(&folded.verdict) {
            self.groups.add_folded(folded, false);
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

    pub(super) fn status(&mut self, status: Status) {
        if status_lines(&self.status, DEFAULT_SIZE.columns) != status_lines(&status, DEFAULT_SIZE.columns) {
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
            // While a window is being resized, wait for its last size.
            return Ok(());
        }
        self.draw(size, printer)
    }

    fn draw(&mut self, size: Size, printer: &mut Printer) -> Result<(), OutputError> {
        let paint = printer.paint();
        let columns = Columns::bounded(self.form, size.columns);
        let status = status_lines(&self.status, size.columns);
        // The heading, the status and the cursor's line are not available for rows.
        let room = size.lines.saturating_sub(2 + status.len()).clamp(1, MAX_LINES);
        let groups = self.shared_lines(&columns, paint, room);
        let mut flows: VecDeque<_> =
            self.flows.iter().map(|(_, row)| columns.row(row, paint, false)).collect();
        let room_of_flows = room - groups.len().min(room - 1);
        while flows.len() > 1 && flows.iter().map(Vec::len).sum::<usize>() > room_of_flows {
            flows.pop_front();
            if let Some((_, row)) = self.flows.pop_front() {
                self.scroll(row);
            }
        }

        let mut out = self.erase();
        for line in self.scrolled.drain(..).flat_map(|row| columns.row(&row, paint, true)) {
            out.push_str(&line);
            out.push('\n');
        }
        if self.not_shown > 0 {
            let _ = writeln!(out, "… {} more were too fast to be shown", self.not_shown);
            self.not_shown = 0;
        }
        // Without wrapping, an overlong line stays one line.
        out.push_str("\x1b[?7l");
        let mut lines = vec![columns.heading(paint)];
        lines.extend(groups);
        lines.extend(flows.into_iter().flatten().take(room_of_flows));
        lines.extend(status.iter().map(|line| paint.text(Style::Faint, line)));
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

    /// The lines that flows share, at most `room`, of which they leave half to flows with their own line.
    fn shared_lines(&self, columns: &Columns, paint: Paint, room: usize) -> Vec<String> {
        let room = if self.flows.is_empty() { room } else { room.div_ceil(2) };
        let mut used = 0;
        let mut shown = Vec::new();
        for (place, row) in self.groups.by_urgency() {
            let lines = columns.row(&row, paint, false);
            used += lines.len();
            shown.push((place, lines));
            if used > room {
                break;
            }
        }
        let fits = used <= room;
        // The line that counts the others needs room, too.
        while used >= room && !fits {
            let Some((_, lines)) = shown.pop() else { break };
            used -= lines.len();
        }
        let hidden = self.groups.len() - shown.len();
        shown.sort_by_key(|(place, _)| *place);
        let mut lines: Vec<_> = shown.into_iter().flat_map(|(_, lines)| lines).collect();
        if lines.is_empty() {
            // The screen is lower than one line with its cause.
            let last = self.groups.rows().pop();
            lines.extend(last.into_iter().flat_map(|row| columns.row(&row, paint, false)));
            lines.truncate(room.saturating_sub(1));
        }
        if !fits {
            let hidden = text::count(u64::try_from(hidden).unwrap_or(u64::MAX), "more line");
            lines.insert(0, paint.text(Style::Faint, &format!("… {hidden}, printed at the end")));
        }
        lines
    }

    /// The sequence that erases the region and moves the cursor to its beginning.
    fn erase(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => "\r\x1b[J".into(),
            lines => format!("\r\x1b[{lines}A\x1b[J"),
        }
    }

    /// Erases the region so that other text can be written; the next redraw restores it.
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

    /// The terminal's width.
    pub(super) fn columns(&self) -> usize {
        (self.size_of)().unwrap_or(DEFAULT_SIZE).columns
    }

    /// Leaves the whole table on the screen, without the counters.
    pub(super) fn finish(&mut self, printer: &mut Printer) -> Result<(), OutputError> {
        self.make_way(printer)?;
        let size = (self.size_of)().unwrap_or(DEFAULT_SIZE);
        let columns = Columns::bounded(self.form, size.columns);
        let paint: Paint = printer.paint();
        let rows: Vec<Row> = (self.scrolled.drain(..))
            .chain(self.groups.rows())
            .chain(self.flows.drain(..).map(|(_, row)| row))
            .collect();
        let mut out = String::new();
        if !rows.is_empty() {
            out.push_str(&columns.heading(paint));
            out.push('\n');
        }
        for line in rows.iter().flat_map(|row| columns.row(row, paint, true)) {
            out.push_str(&line);
            out.push('\n');
        }
        printer.data(&out)?;
        printer.flush()
    }
}

/// The counters, the most important ones first; a permanent warning has its own line.
fn status_lines(status: &Status, columns: usize) -> Vec<String> {
    let Counts { ok, normal, faults, unknown, .. } = status.counts;
    let faults = text::count(faults, "fault");
    let mut line =
        format!("{faults}, {unknown} unknown, {ok} ok, {normal} normal, {} open", status.flows_open);
    if status.lost_events > 0 {
        let _ = write!(line, " | {} LOST", text::count(status.lost_events, "event"));
    }
    match status.metadata_age {
        Some(age) => {
            let _ = write!(line, " | metadata {} old", text::age(age));
        }
        None => line.push_str(" | no metadata"),
    }
    line.push_str(" | Ctrl-C ends");
    let remark = status.remark.as_deref().map(safe);
    let lines = remark.as_deref().into_iter().chain([line.as_str()]);
    lines.map(|line| fit(line, columns, Cut::End).into_owned()).collect()
}

#[cfg(test)]
mod tests;
