//! Lays a row out: in columns of fixed width where nothing is shortened, or as wide as a terminal, with the cause below.

use crate::report::{
    Output,
    fit::{Cut, fit, push_padded},
    printer::{Paint, Style},
    row::Row,
};

/// On a narrower terminal the layout is this wide.
const MIN_WIDTH: usize = 40;
/// From this width on there are columns for both ends.
const WITH_ENDS: usize = 70;
/// From this width on times have milliseconds.
const WITH_MILLISECONDS: usize = 100;
/// From this width on the VIP has a column.
const WITH_VIP: usize = 140;
/// Lines of a cause in a table that is updated in place; the scrollback has all of them.
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

    fn of(self, row: &Row) -> &str {
        match self {
            Self::Time => &row.time,
            Self::Verdict => &row.verdict,
            Self::Protocol => &row.wide.protocol,
            Self::Service => &row.service,
            Self::Client => &row.client,
            Self::Vip => &row.vip,
            Self::Endpoint => &row.endpoint,
            Self::Node => &row.wide.node,
            Self::Confidence => &row.wide.confidence,
            Self::What => &row.what,
        }
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
    pub(super) fn unbounded(output: Output) -> Self {
        use Field::{Client, Confidence, Endpoint, Node, Protocol, Service, Time, Verdict, Vip, What};
        let fields: &[(Field, usize)] = if output == Output::Wide {
            &[
                (Time, 12),
                (Verdict, 10),
                (Protocol, 5),
                (Service, 26),
                (Client, 40),
                (Vip, 21),
                (Endpoint, 40),
                (Node, 12),
                (Confidence, 10),
                (What, 0),
            ]
        } else {
            &[(Time, 12), (Verdict, 10), (Service, 26), (Client, 24), (Vip, 21), (Endpoint, 24), (What, 0)]
        };
        let columns = fields.iter().map(|&(field, width)| Column { field, width }).collect();
        Self { list: columns, gap: 2, width: None }
    }

    /// For a terminal of this many columns. The cause is printed below, since no column is wide enough for it.
    pub(super) fn bounded(width: usize) -> Self {
        use Field::{Client, Endpoint, Service, Time, Verdict, Vip};
        let width = width.max(MIN_WIDTH);
        let (gap, time) = if width >= WITH_MILLISECONDS { (2, 12) } else { (1, 8) };
        let mut fields = vec![(Time, time), (Verdict, 10)];
        // Shares of the remaining width, in percent.
        let shares: &[(Field, usize)] = if width >= WITH_VIP {
            &[(Service, 32), (Client, 25), (Vip, 18), (Endpoint, 25)]
        } else if width >= WITH_ENDS {
            &[(Service, 44), (Client, 28), (Endpoint, 28)]
        } else {
            &[(Service, 100)]
        };
        let fixed: usize = fields.iter().map(|(_, width)| width + gap).sum();
        let left = width.saturating_sub(fixed + gap * (shares.len() - 1));
        fields.extend(shares.iter().map(|&(field, share)| (field, left * share / 100)));
        let columns = fields.into_iter().map(|(field, width)| Column { field, width }).collect();
        Self { list: columns, gap, width: Some(width) }
    }

    /// The headings, without a line end.
    pub(super) fn heading(&self, paint: Paint) -> String {
        let line = self.line(|field| (field.heading(), Style::Plain), Paint(false));
        paint.text(Style::Heading, &line)
    }

    /// The row and the lines below it, without line ends. `whole` shortens no cause.
    pub(super) fn row(&self, row: &Row, paint: Paint, whole: bool) -> Vec<String> {
        let is_folded = self.width.is_some() && row.count > 1;
        let verdict =
            if is_folded { format!("{} ×{}", row.verdict, row.count) } else { row.verdict.clone() };
        let cell = |field: Field| match field {
            Field::Verdict => (verdict.as_str(), row.style),
            field => (field.of(row), Style::Plain),
        };
        let mut lines = vec![self.line(cell, paint)];
        let Some(width) = self.width else {
            lines.extend(row.wide.below.iter().map(|text| format!("{:INDENT$}{text}", "")));
            return lines;
        };
        // A healthy connect's duration is not a cause; the scrollback has it.
        if whole || row.style != Style::Good {
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

    fn line<'a>(&self, cell: impl Fn(Field) -> (&'a str, Style), paint: Paint) -> String {
        let mut line = String::new();
        for (number, column) in self.list.iter().enumerate() {
            let (text, style) = cell(column.field);
            let text = match (column.field, self.width) {
                (_, None) => text.into(),
                (Field::Time, _) => text.get(..column.width).unwrap_or(text).into(),
                (Field::Verdict, _) => fit(text, column.width, Cut::End),
                // Names are distinguished by their beginning and end.
                _ => fit(text, column.width, Cut::Middle),
            };
            line.push_str(paint.start(style));
            let last = number + 1 == self.list.len();
            push_padded(&mut line, &text, if last { 0 } else { column.width });
            line.push_str(paint.end(style));
            if !last {
                line.extend(std::iter::repeat_n(' ', self.gap));
            }
        }
        line.truncate(line.trim_end().len());
        line
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
            what: "no endpoint is ready: ".repeat(10) + &"x".repeat(500),
            count: 1,
            wide: crate::report::row::Wide::default(),
        };
        for columns in 40..300 {
            let layout = Columns::bounded(columns);
            assert!(width(&layout.heading(Paint(false))) <= columns, "{columns}");
            for whole in [false, true] {
                let lines = layout.row(&row, Paint(false), whole);
                assert!(lines.iter().all(|line| width(line) <= columns), "{columns}: {lines:?}");
                assert_eq!(whole, lines.concat().matches('x').count() >= 500, "{columns}: {lines:?}");
            }
        }
        let lines = Columns::unbounded(Output::Table).row(&row, Paint(false), false);
        assert!(lines[0].contains(&row.service) && lines[0].contains(row.what.trim_end()));
    }
}
