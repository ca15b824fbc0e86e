//! Lays cells out in columns: as wide as the terminal, or of fixed width where nothing is shortened.

use crate::report::{
    Output,
    fit::{Cut, fit, push_padded},
    printer::{Paint, Style},
    row::Row,
};

/// A table narrower than this is laid out as if it were this wide.
const MIN_WIDTH: usize = 40;
/// From this width on the VIP has a column, and times have milliseconds.
const ROOMY: usize = 140;

/// One column: its heading and width. The last one has no width of its own.
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
            Self::Time => "TIME(UTC)",
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

    const fn cut(self) -> Cut {
        match self {
            Self::Service | Self::Client | Self::Vip | Self::Endpoint | Self::Node => Cut::Middle,
            _ => Cut::End,
        }
    }
}

/// The columns of one table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    list: Vec<Column>,
    /// Blanks between columns.
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
                (Service, 22),
                (Client, 40),
                (Vip, 21),
                (Endpoint, 40),
                (Node, 12),
                (Confidence, 10),
                (What, 0),
            ]
        } else {
            &[(Time, 12), (Verdict, 10), (Service, 22), (Client, 24), (Vip, 21), (Endpoint, 24), (What, 0)]
        };
        let columns = fields.iter().map(|&(field, width)| Column { field, width }).collect();
        Self { list: columns, gap: 2, width: None }
    }

    /// For a terminal of this many columns.
    pub(super) fn bounded(width: usize) -> Self {
        use Field::{Client, Endpoint, Service, Time, Verdict, Vip, What};
        let width = width.max(MIN_WIDTH);
        let roomy = width >= ROOMY;
        let (gap, time) = if roomy { (2, 12) } else { (1, 9) };
        let mut fields = vec![(Time, time), (Verdict, 10)];
        // Shares of what is left, in percent; what remains is for the reason.
        let shares: &[(Field, usize)] = if roomy {
            &[(Service, 21), (Client, 17), (Vip, 16), (Endpoint, 17)]
        } else if width >= 70 {
            &[(Service, 22), (Client, 22), (Endpoint, 22)]
        } else {
            &[(Service, 45)]
        };
        let fixed: usize = fields.iter().map(|(_, width)| width + gap).sum();
        let left = width.saturating_sub(fixed + gap * shares.len());
        for &(field, share) in shares {
            let most = match field {
                Vip => 21,
                Service => 28,
                _ => 34,
            };
            fields.push((field, (left * share / 100).clamp(6, most)));
        }
        let used: usize = fields.iter().map(|(_, width)| width + gap).sum();
        fields.push((What, width.saturating_sub(used)));
        let columns = fields.into_iter().map(|(field, width)| Column { field, width }).collect();
        Self { list: columns, gap, width: Some(width) }
    }

    /// The headings, without a line end.
    pub(super) fn heading(&self, paint: Paint) -> String {
        let line = self.line(|field| (field.heading(), Style::Plain), Paint(false), true);
        paint.text(Style::Heading, &line)
    }

    /// The row, without a line end. `whole_reason` leaves the last column unshortened.
    pub(super) fn row(&self, row: &Row, paint: Paint, whole_reason: bool) -> String {
        let cell = |field: Field| {
            let style = if field == Field::Verdict { row.style } else { Style::Plain };
            (field.of(row), style)
        };
        self.line(cell, paint, !whole_reason)
    }

    fn line<'a>(&self, cell: impl Fn(Field) -> (&'a str, Style), paint: Paint, cut_last: bool) -> String {
        let mut line = String::new();
        for (number, column) in self.list.iter().enumerate() {
            let (text, style) = cell(column.field);
            let last = number + 1 == self.list.len();
            let text =
                if column.field == Field::Time { text.get(..column.width).unwrap_or(text) } else { text };
            let text = match self.width {
                Some(_) if !last || cut_last => fit(text, column.width, column.field.cut()),
                _ => text.into(),
            };
            line.push_str(paint.start(style));
            if last {
                line.push_str(&text);
            } else {
                push_padded(&mut line, &text, column.width);
            }
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
            verdict: "FAULT C20".into(),
            style: Style::Fault,
            service: "a-very-long-namespace-name/a-very-long-service-name:http".into(),
            client: "shop/frontend-7d4b9c6f5-x2k9f".into(),
            vip: "[2001:db8:1234:5678::1]:65535".into(),
            endpoint: "shop/cart-7d4b9c6f5-x2k9f".into(),
            what: "no endpoint is ready: ".repeat(10),
            wide: crate::report::row::Wide::default(),
        };
        for columns in 40..300 {
            let layout = Columns::bounded(columns);
            assert!(width(&layout.heading(Paint(false))) <= columns, "{columns}");
            assert!(width(&layout.row(&row, Paint(false), false)) <= columns, "{columns}");
        }
        let line = Columns::unbounded(Output::Table).row(&row, Paint(false), false);
        assert!(line.contains(&row.service) && line.contains(row.what.trim_end()));
    }
}
