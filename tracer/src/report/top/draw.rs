//! Lays the state out on the screen, whatever its size.

use std::fmt::Write as _;

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style as Look},
    text::{Line, Span},
    widgets::Paragraph,
};

use super::{Evidence, Failed, Focus, State};
use crate::{
    report::{
        columns::Columns,
        fit::{Cut, fit, push_padded, wrap},
        printer::{Paint, Style},
        row::whole,
    },
    session::Counts,
    text::{self, count, safe},
    verdict::ServiceRef,
};

/// The columns of a Service's counts.
const COUNT: usize = 9;
/// The lines for the list of Services, with its heading: no more than this part of the screen.
const SERVICES_PART: u16 = 3;
/// The lines for messages: no more than this part of the screen, but two where they fit.
const MESSAGES_PART: u16 = 6;
const LEAST_MESSAGES: u16 = 2;
/// The lines that are not for messages: the title, one of the lists, and the keys.
const OTHERS: u16 = 3;
const KEYS: &str = "↑↓ select · Enter open · Tab list · Esc back · q quit";
const KEYS_OF_EVIDENCE: &str = "↑↓ scroll · Esc back · q quit";

/// Draws the whole screen.
pub(super) fn screen(frame: &mut Frame<'_>, state: &mut State, paint: Paint) {
    let columns = usize::from(frame.area().width);
    let height = frame.area().height;
    let mut remarks = remarks(state);
    let taken = u16::try_from(remarks.len()).unwrap_or(u16::MAX);
    let room = height.saturating_sub(OTHERS).saturating_sub(taken);
    let room = room.min((height / MESSAGES_PART).max(LEAST_MESSAGES));
    remarks.extend(messages(state, columns, room.into()));
    let last = u16::try_from(remarks.len()).unwrap_or(u16::MAX).saturating_add(1);
    let [head, middle, foot] =
        Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(last)])
            .areas(frame.area());
    frame.render_widget(Line::styled(fitted(&title(state), columns), look(Style::Heading, paint)), head);
    let keys = if let Some(evidence) = &mut state.evidence {
        draw_evidence(frame, middle, evidence, paint);
        KEYS_OF_EVIDENCE
    } else {
        draw_lists(frame, middle, state, paint);
        KEYS
    };
    let mut lines: Vec<Line<'_>> =
        remarks.iter().map(|text| Line::styled(fitted(text, columns), look(Style::Unknown, paint))).collect();
    lines.push(Line::styled(fitted(keys, columns), look(Style::Faint, paint)));
    frame.render_widget(Paragraph::new(lines), foot);
}

fn fitted(text: &str, columns: usize) -> String {
    fit(text, columns, Cut::End).into_owned()
}

/// The look of a style; without colours only the weight of the text shows it.
fn look(style: Style, paint: Paint) -> Look {
    let look = Look::default();
    let colored = |color| if paint.0 { look.fg(color) } else { look };
    match style {
        Style::Plain => look,
        Style::Heading => look.add_modifier(Modifier::BOLD),
        Style::Fault => colored(Color::Red).add_modifier(Modifier::BOLD),
        Style::Unknown => colored(Color::Yellow).add_modifier(Modifier::BOLD),
        Style::Good => colored(Color::Green),
        Style::Faint => look.add_modifier(Modifier::DIM),
    }
}

/// The flows so far. Losses and the age of the metadata come first in [`remarks`].
fn title(state: &State) -> String {
    let Counts { ok, normal, faults, unknown, .. } = state.status.counts;
    let open = state.status.flows_open;
    let faults = count(faults, "fault");
    format!("{faults}, {unknown} unknown, {ok} ok, {normal} normal, {open} open | {}", state.title)
}

/// Limits of the verdicts.
fn remarks(state: &State) -> Vec<String> {
    let status = &state.status;
    let mut remarks = Vec::new();
    if status.lost_events > 0 {
        remarks.push(format!("{} LOST in the kernel", count(status.lost_events, "event")));
    }
    // A remark has the age as well.
    let old = status.metadata_age.filter(|age| age.as_secs() >= 60 && status.remark.is_none());
    remarks.extend(old.map(|age| format!("metadata is {} old", text::age(age))));
    remarks.extend(status.remark.as_deref().map(|remark| safe(remark).into_owned()));
    remarks
}

/// The messages in at most `room` lines, which count those that are not shown if there are more than two.
fn messages(state: &State, columns: usize, room: usize) -> Vec<String> {
    let (lines, left_out) = first_messages(state, columns, room);
    if left_out == 0 || room <= usize::from(LEAST_MESSAGES) {
        return lines;
    }
    let (mut lines, left_out) = first_messages(state, columns, room - 1);
    lines.push(format!("… {}", count(left_out, "more message")));
    lines
}

/// The messages that have room, and the number of the others. The last one may be cut at its end.
fn first_messages(state: &State, columns: usize, room: usize) -> (Vec<String>, u64) {
    let mut lines = Vec::new();
    let mut left_out = 0;
    for message in state.messages() {
        let left = room.saturating_sub(lines.len());
        if left == 0 {
            left_out += 1;
            continue;
        }
        let wrapped = wrap(message, columns.max(1));
        let mut whole = wrapped.lines().map(ToOwned::to_owned);
        lines.extend(whole.by_ref().take(left));
        if let (Some(last), Some(_)) = (lines.last_mut(), whole.next()) {
            last.push('…');
        }
    }
    (lines, left_out)
}

fn draw_lists(frame: &mut Frame<'_>, area: Rect, state: &State, paint: Paint) {
    let services = state.services();
    let wanted = u16::try_from(services.len()).unwrap_or(u16::MAX).saturating_add(1);
    let most = (area.height / SERVICES_PART).max(2);
    let [upper, lower] =
        Layout::vertical([Constraint::Length(wanted.clamp(2, most)), Constraint::Min(1)]).areas(area);

    let columns = usize::from(area.width);
    let name_width = columns.saturating_sub(4 * (COUNT + 1));
    let line = |name: &str, counts: [String; 4]| {
        let mut line = String::new();
        push_padded(&mut line, &fit(name, name_width, Cut::Middle), name_width);
        for count in counts {
            line.push(' ');
            // Writing to a String cannot fail.
            let _ = write!(line, "{count:>COUNT$}");
        }
        line
    };
    let heading = line("SERVICE", ["FAULTS", "UNKNOWN", "NORMAL", "OK"].map(ToOwned::to_owned));
    let selected = state.selected_service(&services);
    let row = |(service, counts): &(&ServiceRef, Counts)| {
        let Counts { ok, normal, faults, unknown, .. } = *counts;
        let text = line(&safe(&service.to_string()), [faults, unknown, normal, ok].map(|it| it.to_string()));
        let style = match counts {
            Counts { faults: 1.., .. } => Style::Fault,
            Counts { unknown: 1.., .. } => Style::Unknown,
            _ => Style::Plain,
        };
        Line::styled(text, look(style, paint))
    };
    let marked = (state.focus == Focus::Services).then_some(selected);
    let empty = if state.is_played { "no flow of a Service" } else { "no flow of a Service yet" };
    list(frame, upper, &[heading], (&services, row), (selected, marked), empty, paint);

    let layout = Columns::bounded(state.form, columns).of_single_flows();
    let of = state.only.as_ref().map(|service| safe(&format!(" of {service}")).into_owned());
    let caption = format!("LATEST FAILED FLOWS{}", of.unwrap_or_default());
    let heading = [String::new(), caption, layout.heading(Paint(false))];
    let selected = state.selected_flow();
    let flows: Vec<&Failed> = state.listed().collect();
    let row = |flow: &&Failed| {
        let cells = layout.cells(&flow.row).into_iter();
        cells.map(|(text, style)| Span::styled(text, look(style, paint))).collect()
    };
    let marked = (state.focus == Focus::Flows).then_some(selected);
    list(frame, lower, &heading, (&flows, row), (selected, marked), "none", paint);
}

/// A heading and as many rows as there is room for, around the selected one. The marked one is inverted.
fn list<T>(
    frame: &mut Frame<'_>,
    area: Rect,
    heading: &[String],
    (items, row): (&[T], impl Fn(&T) -> Line<'static>),
    (selected, marked): (usize, Option<usize>),
    empty: &str,
    paint: Paint,
) {
    let mut lines: Vec<Line<'_>> =
        heading.iter().map(|text| Line::styled(text.clone(), look(Style::Heading, paint))).collect();
    let room = usize::from(area.height).saturating_sub(lines.len());
    let above = (selected + 1).saturating_sub(room);
    if items.is_empty() {
        lines.push(Line::styled(empty.to_owned(), look(Style::Faint, paint)));
    }
    lines.extend(items.iter().enumerate().skip(above).take(room).map(|(number, item)| {
        let row = row(item);
        if marked == Some(number) { row.patch_style(Modifier::REVERSED) } else { row }
    }));
    frame.render_widget(Paragraph::new(lines), area);
}

fn draw_evidence(frame: &mut Frame<'_>, area: Rect, evidence: &mut Evidence, paint: Paint) {
    let width = usize::from(area.width).max(1);
    let mut lines = Vec::new();
    for (style, text) in whole(&evidence.verdict) {
        lines.extend(
            wrap(&format!("{text}\n"), width)
                .lines()
                .map(|line| Line::styled(line.to_owned(), look(style, paint))),
        );
    }
    let most = lines.len().saturating_sub(usize::from(area.height));
    evidence.scrolled = evidence.scrolled.min(most);
    let visible = lines.into_iter().skip(evidence.scrolled).take(usize::from(area.height));
    frame.render_widget(Paragraph::new(visible.collect::<Vec<_>>()), area);
}
