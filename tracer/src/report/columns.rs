//! Lays a row out: in columns of fixed width where nothing is shortened, or as wide as a terminal, with the cause below.

use std::borrow::Cow;

use crate::report::{
    Form, Output,
    fit::{Cut, fit, width},
    printer::{Paint, Style},
    row::Row,
};

/// On a narrower terminal the layout is this wide.
const MIN_WIDTH: usize = 40;
/// From this width on there are columns for both ends, or for the endpoint of flows that share a line.
const WITH_ENDS: usize = 70;
/// From this width on times have milliseconds, and flows that share a line have the column of their client.
const WITH_MILLISECONDS: usize = 100;
/// From this width on the VIP has a column.
const WITH_VIP: usize = 140;
/// A Service's name that is too long takes the space of the columns behind it, down to this width.
const MIN_CELL: usize = 8;
/// Lines of a cause in a table that is updated in place; the whole text is printed at the end.
const MAX_CAUSE_LINES: usize = 2;
/// The indentation of lines below a row.
const INDENT: usize = 4;

/// One column: its heading and width. The last one may have no width.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Column {
    field: Field,
    width: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Time,
    Verdict,
    Flows,
    Protocol,
    Service,
    Client,
    Vip,
    Endpoint,
    Node,
    Confidence,
    What,
}

impl Field {
    const fn heading(self) -> &'static str {
        match self {
            Self::Time => "TIME UTC",
            Self::Verdict => "VERDICT",
            Self::Flows => "FLOWS",
            Self::Protocol => "PROTO",
            Self::Service => "SERVICE",
            Self::Client => "CLIENT",
            Self::Vip => "VIP",
            Self::Endpoint => "ENDPOINT",
            Self::Node => "NODE",
            Self::Confidence => "CONFIDENCE",
            Self::What => "WHAT",
        }
    }

    fn of(self, row: &Row) -> Cow<'_, str> {
        let text = match self {
            Self::Time => &row.time,
            Self::Verdict => &row.verdict,
            Self::Flows => return short(row.count).into(),
            Self::Protocol => &row.wide.protocol,
            Self::Service => &row.service,
            Self::Client => &row.client,
            Self::Vip => &row.vip,
            Self::Endpoint => &row.endpoint,
            Self::Node => &row.node,
            Self::Confidence => &row.wide.confidence,
            Self::What => &row.what,
        };
        text.into()
    }
}

/// A count in at most five characters; a large one is rounded down.
fn short(count: u64) -> String {
    match count {
        0..100_000 => count.to_string(),
        100_000..10_000_000 => format!("{}k", count / 1000),
        10_000_000..10_000_000_000 => format!("{}M", count / 1_000_000),
        _ => "many".to_owned(),
    }
}

/// The columns of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    list: Vec<Column>,
    /// Spaces between columns.
    gap: usize,
    /// The terminal's width, to which cells are shortened; without it cells may overflow.
    width: Option<usize>,
}

impl Columns {
    /// For a pipe or a file: nothing is shortened.
    pub(super) fn unbounded(form: Form) -> Self {
        use Field::{Client, Confidence, Endpoint, Flows, Node, Protocol, Service, Time, Verdict, Vip, What};
        let mut fields = vec![(Time, 12), (Verdict, 10)];
        if form.output == Output::Wide {
            fields.extend([
                (Protocol, 5),
                (Service, 26),
                (Client, 40),
                (Vip, 21),
                (Endpoint, 40),
                (Node, 12),
                (Confidence, 10),
            ]);
        } else {
            fields.extend([(Flows, 5), (Service, 26), (Client, 24), (Vip, 21), (Endpoint, 24)]);
            fields.extend(form.several_nodes.then_some((Node, 12)));
        }
        fields.push((What, 0));
        let columns = fields.into_iter().map(|(field, width)| Column { field, width }).collect();
        Self { list: columns, gap: 2, width: None }
    }

    /// For a terminal of this many columns. The cause is printed below, since no column is wide enough for it.
    pub(super) fn bounded(form: Form, width: usize) -> Self {
        use Field::{Client, Endpoint, Flows, Node, Service, Time, Verdict, Vip};
        let width = width.max(MIN_WIDTH);
        let (gap, time) = if width >= WITH_MILLISECONDS { (2, 12) } else { (1, 8) };
        let mut fields = vec![(Time, time), (Verdict, 10), (Flows, 5)];
        // Their parts of the remaining width.
        let mut parts = vec![(Service, 8)];
        if width >= WITH_ENDS && (!form.groups() || width >= WITH_MILLISECONDS) {
            parts.push((Client, 5));
        }
        if width >= WITH_VIP {
            parts.push((Vip, 4));
        }
        if width >= WITH_ENDS {
            parts.push((Endpoint, 5));
        }
        if width >= WITH_ENDS && form.several_nodes {
            parts.push((Node, 3));
        }
        let fixed: usize = fields.iter().map(|(_, width)| width + gap).sum();
        let left = width.saturating_sub(fixed + gap * (parts.len() - 1));
        let sum: usize = parts.iter().map(|(_, part)| part).sum();
        fields.extend(parts.iter().map(|&(field, part)| (field, left * part / sum)));
        let columns = fields.into_iter().map(|(field, width)| Column { field, width }).collect();
        Self { list: columns, gap, width: Some(width) }
    }

    /// Without the column of counts, for lines of single flows.
    pub(super) fn of_single_flows(mut self) -> Self {
        let Some(at) = self.list.iter().position(|column| column.field == Field::Flows) else { return self };
        let freed = self.list.remove(at).width + self.gap;
        if let Some(service) = self.list.iter_mut().find(|column| column.field == Field::Service) {
            service.width += freed;
        }
        self
    }

    /// The headings, without a line end.
    pub(super) fn heading(&self, paint: Paint) -> String {
        let cells = self.padded(|field| (field.heading().into(), Style::Plain));
        paint.text(Style::Heading, &Self::line(cells, Paint(false)))
    }

    /// The row and the lines below it, without line ends. `whole` shortens no cause.
    pub(super) fn row(&self, row: &Row, paint: Paint, whole: bool) -> Vec<String> {
        let mut lines = vec![Self::line(self.cells(row), paint)];
        let Some(width) = self.width else {
            lines.extend(
                row.wide.below.iter().chain(&row.wide.actions).map(|text| format!("{:INDENT$}{text}", "")),
            );
            return lines;
        };
        // A healthy connect's duration is not a cause; the scrollback has it.
        if !row.what.is_empty() && (whole || row.style != Style::Good) {
            let mut below = textwrap::wrap(&row.what, width.saturating_sub(INDENT));
            if !whole && below.len() > MAX_CAUSE_LINES {
                below.truncate(MAX_CAUSE_LINES);
                if let Some(last) = below.last_mut() {
                    *last = fit(&format!("{last} …"), width - INDENT, Cut::End).into_owned().into();
                }
            }
            lines.extend(below.iter().map(|text| format!("{:INDENT$}{text}", "")));
        }
        lines
    }

    /// The cells of a row, padded.
    pub(super) fn cells(&self, row: &Row) -> Vec<(String, Style)> {
        let style = |field| if field == Field::Verdict { row.style } else { Style::Plain };
        self.padded(|field| (field.of(row), style(field)))
    }

    fn line(cells: Vec<(String, Style)>, paint: Paint) -> String {
        let mut line = String::new();
        for (text, style) in cells {
            // Spaces have no colour, which some terminals would show.
            let end = text.trim_end().len();
            let (text, spaces) = text.split_at(end);
            line.push_str(&paint.text(style, text));
            line.push_str(spaces);
        }
        line.truncate(line.trim_end().len());
        line
    }

    fn padded<'a>(&self, cell: impl Fn(Field) -> (Cow<'a, str>, Style)) -> Vec<(String, Style)> {
        let cells: Vec<_> = self.list.iter().map(|column| cell(column.field)).collect();
        let widths = self.widths(&cells);
        let last = self.list.len().saturating_sub(1);
        let fitted = self.list.iter().zip(cells.iter().zip(widths)).enumerate();
        fitted
            .map(|(number, (column, ((text, style), cell_width)))| {
                let text = match (column.field, self.width) {
                    (_, None) => text.as_ref().into(),
                    (Field::Time, _) => text.get(..cell_width).unwrap_or(text).into(),
                    (Field::Verdict | Field::Flows, _) => fit(text, cell_width, Cut::End),
                    // Names are distinguished by their beginning and end.
                    _ => fit(text, cell_width, Cut::Middle),
                };
                let mut padded = String::new();
                if column.field == Field::Flows {
                    padded.extend(std::iter::repeat_n(' ', cell_width.saturating_sub(width(&text))));
                }
                padded.push_str(&text);
                if number < last {
                    let spaces = cell_width.saturating_sub(width(&padded)) + self.gap;
                    padded.extend(std::iter::repeat_n(' ', spaces));
                }
                (padded, *style)
            })
            .collect()
    }

    /// The widths of the cells of one line: a long name of a Service takes space of those behind it.
    fn widths(&self, cells: &[(Cow<'_, str>, Style)]) -> Vec<usize> {
        let mut widths: Vec<usize> = self.list.iter().map(|column| column.width).collect();
        let service = self.list.iter().position(|column| column.field == Field::Service);
        let (Some(at), Some(_)) = (service, self.width) else { return widths };
        let (until, behind) = widths.split_at_mut(at + 1);
        let (Some(own), Some((name, _))) = (until.last_mut(), cells.get(at)) else { return widths };
        for other in behind {
            let wanted = width(name).saturating_sub(*own);
            let given = wanted.min(other.saturating_sub(MIN_CELL));
            *own += given;
            *other -= given;
        }
        widths
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fit::width;

    #[test]
    fn lines_never_exceed_the_terminal() {
        let row = Row {
            time: "03:04:05.123".into(),
            verdict: "FAULT C18b".into(),
            style: Style::Fault,
            service: "a-very-long-namespace-name/a-very-long-service-name:http".into(),
            client: "shop/frontend-7d4b9c6f5-x2k9f".into(),
            vip: "[2001:db8:1234:5678::1]:65535".into(),
            endpoint: "shop/cart-7d4b9c6f5-x2k9f".into(),
            node: "ip-10-0-17-23.eu-central-1.compute.internal".into(),
            what: "no endpoint is ready: ".repeat(10) + &"x".repeat(500),
            client_name: String::new(),
            names_client: false,
            count: 123_456,
            wide: crate::report::row::Wide::default(),
        };
        let forms = [false, true].map(|several_nodes| Form { several_nodes, ..Form::default() });
        let forms = forms.into_iter().flat_map(|form| [form, Form { each: true, ..form }]);
        for (form, columns) in forms.flat_map(|form| (40..300).map(move |columns| (form, columns))) {
            let layout = Columns::bounded(form, columns);
            assert!(width(&layout.heading(Paint(false))) <= columns, "{columns}");
            for whole in [false, true] {
                let lines = layout.row(&row, Paint(false), whole);
                assert!(lines.iter().all(|line| width(line) <= columns), "{columns}: {lines:?}");
                assert_eq!(whole, lines.concat().matches('x').count() >= 500, "{columns}: {lines:?}");
            }
        }
        let lines = Columns::unbounded(Form::default()).row(&row, Paint(false), false);
        assert!(lines[0].contains(&row.service) && lines[0].contains(row.what.trim_end()));
        let lines = Columns::bounded(Form::default(), 80).row(&row, Paint(false), false);
        let at_80 = "03:04:05 FAULT C18b  123k a-very-long-namespace-…ong-service-name:http shop…k9f";
        assert_eq!(lines[0], at_80);
    }
}
