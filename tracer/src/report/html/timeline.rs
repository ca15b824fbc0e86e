//! Flows over time as stacked bars, a drawing for each Service, and the changes as numbered marks on it.
//!
//! Positions across are percentages, so that a drawing is as wide as the page and its text keeps its size. Each drawing's
//! numbers are in a table, too.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "positions on a page are small and not negative"
)]

use std::fmt;

use super::{
    Page, section, table, time,
    writer::{Attributes, Html},
};
use crate::{
    incident::{Change, Chapter, Rate, Span},
    report::outline,
    text::{count, length},
    time::Timestamp,
    verdict::ServiceRef,
};

/// The most Services with a drawing.
const MAX_DRAWINGS: usize = 12;
/// The most changes in the list.
const MAX_CHANGES: usize = 200;
/// The marks stand in columns: a column is as wide as a mark on a phone.
const COLUMNS: usize = 14;
const MAX_IN_COLUMN: usize = 3;
/// Pixels: a mark's distance from the next one, and the bars.
const MARK: usize = 24;
const BARS: usize = 96;
/// The height above the bars, in which lines lead from the marks' columns to their times.
const LEAD: usize = 14;

/// The changes around all causes, each once, in the order of time.
#[derive(Debug)]
pub(super) struct Changes<'a>(Vec<&'a Change>);

impl<'a> Changes<'a> {
    pub(super) fn of(chapters: &[&'a Chapter]) -> Self {
        let mut all: Vec<&Change> = Vec::new();
        for change in chapters.iter().flat_map(|chapter| &chapter.changes) {
            if !all.iter().any(|known| is_same(known, change)) {
                all.push(change);
            }
        }
        all.sort_by_key(|change| change.change.time);
        // The latest ones, as a cause keeps the latest.
        all.drain(..all.len().saturating_sub(MAX_CHANGES));
        Self(all)
    }

    /// The number of a change in the list, from 1.
    pub(super) fn number(&self, change: &Change) -> Option<usize> {
        self.0.iter().position(|known| is_same(known, change)).map(|index| index + 1)
    }
}

/// Whether they differ only in their distance from a failure.
fn is_same(one: &Change, other: &Change) -> bool {
    let key = |change: &Change| (change.change.time, change.change.after, change.change.kind);
    key(one) == key(other) && one.node == other.node && one.change.text == other.change.text
}

/// The time across a drawing.
#[derive(Clone, Copy)]
struct Axis {
    from: Timestamp,
    to: Timestamp,
}

/// A place across a drawing.
#[derive(Clone, Copy)]
struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2}%", self.0)
    }
}

impl Axis {
    /// The observed time and all failures. Bars are cut at its ends.
    fn of(page: Page<'_>) -> Self {
        let mut axis = Self { from: page.ending.started, to: page.ending.ended };
        for chapter in page.chapters {
            axis.from = axis.from.min(chapter.began());
            axis.to = axis.to.max(chapter.last());
        }
        axis
    }

    fn at(self, time: Timestamp) -> Percent {
        let whole = self.to.since(self.from).as_secs_f64().max(1e-9);
        Percent((time.since(self.from).as_secs_f64() / whole * 100.0).min(100.0))
    }
}

pub(super) fn write(html: &mut Html, page: Page<'_>) {
    section(html, "timeline", "Timeline", |html| {
        let mut rates: Vec<(&ServiceRef, &Rate)> = Vec::new();
        for service in page.chapters.iter().filter_map(|chapter| chapter.verdict.service.as_ref()) {
            if let Some(rate) =
                page.story.rate_of(service).filter(|_| !rates.iter().any(|it| it.0 == service))
            {
                rates.push((service, rate));
            }
        }
        let hidden = rates.len().saturating_sub(MAX_DRAWINGS);
        rates.truncate(MAX_DRAWINGS);
        let axis = Axis::of(page);
        for (index, (service, rate)) in rates.iter().enumerate() {
            let drawing = Drawing { page, axis, service, rate, number: index + 1 };
            html.block("figure", &[], |html| drawing.write(html));
        }
        if hidden > 0 {
            html.leaf("p", &[], format!("{} without a drawing here", count(hidden, "further Service")));
        }
        list(html, page, axis);
    });
}

/// The numbered changes.
fn list(html: &mut Html, page: Page<'_>, axis: Axis) {
    if page.changes.0.is_empty() {
        return;
    }
    html.leaf("h3", &[("id", &"changes")], "Changes on the timeline (a correlation, not a cause)");
    html.block("ol", &[("class", &"changes")], |html| {
        for (index, change) in page.changes.0.iter().enumerate() {
            html.element("li", &[("id", &format_args!("change-{}", index + 1))], |html| {
                html.element("span", &[("class", &"mark"), ("aria-hidden", &"true")], |html| {
                    html.text(index + 1);
                });
                html.text(" ");
                if let Some(after) = change.change.after {
                    html.text("between ");
                    time(html, after, page.ending.started);
                    html.text(" and ");
                }
                time(html, change.change.time, page.ending.started);
                if change.change.time < axis.from {
                    html.text(", before the drawing begins");
                }
                html.text(": ");
                html.text(outline::change_alone(change));
            });
        }
    });
}

/// The drawing of one Service.
#[derive(Clone, Copy)]
struct Drawing<'a> {
    page: Page<'a>,
    axis: Axis,
    service: &'a ServiceRef,
    rate: &'a Rate,
    number: usize,
}

impl Drawing<'_> {
    fn write(self, html: &mut Html) {
        let most = self.most();
        html.block("figcaption", &[], |html| {
            html.element("strong", &[], |html| html.text(self.service));
            html.text(format_args!(
                ": {}; a bar is {}, the highest {}",
                outline::failed(self.rate),
                length(self.rate.span()),
                count(most, "flow")
            ));
            html.block("p", &[("class", &"legend"), ("aria-hidden", &"true")], |html| {
                html.leaf("span", &[("class", &"failed")], "failed");
                html.leaf("span", &[("class", &"others")], "other flows");
                html.leaf("span", &[("class", &"change")], "changes, with their numbers below");
            });
        });
        let marks = self.marks();
        self.draw_marks(html, &marks);
        self.draw_bars(html, &marks, most);
        self.times(html);
        self.numbers(html);
    }

    fn most(self) -> u64 {
        let all = self.rate.spans().map(|(_, span)| span.failed.saturating_add(span.others));
        all.max().unwrap_or_default()
    }

    /// The changes around this Service's causes with their numbers, by column.
    fn marks(self) -> Vec<Vec<(usize, &'static str, Timestamp)>> {
        let mut columns = vec![Vec::new(); COLUMNS];
        let chapters = self.page.chapters.iter();
        let own = chapters.filter(|chapter| chapter.verdict.service.as_ref() == Some(self.service));
        let mut marks: Vec<(usize, Timestamp)> = own
            .flat_map(|chapter| &chapter.changes)
            .filter_map(|change| Some((self.page.changes.number(change)?, change.change.time)))
            .collect();
        marks.sort_unstable();
        marks.dedup();
        for (number, time) in marks {
            let place = if time < self.axis.from { "before" } else { "inside" };
            let column = (self.axis.at(time).0 / 100.0 * COLUMNS as f64) as usize;
            if let Some(column) = columns.get_mut(column.min(COLUMNS - 1)) {
                column.push((number, place, time));
            }
        }
        columns
    }

    /// The marks link to the list. Their own drawing has no role of an image, whose contents a screen reader skips.
    fn draw_marks(self, html: &mut Html, columns: &[Vec<(usize, &'static str, Timestamp)>]) {
        let rows = columns.iter().map(|column| column.len().min(MAX_IN_COLUMN)).max().unwrap_or_default();
        if rows == 0 {
            return;
        }
        let label = format!("Changes around {}", self.service);
        let height = rows * MARK;
        let attributes: Attributes = &[
            ("class", &"marks"),
            ("role", &"group"),
            ("aria-label", &label),
            ("width", &"100%"),
            ("height", &height),
        ];
        html.block("svg", attributes, |html| {
            for (index, column) in columns.iter().enumerate() {
                let x = middle(index);
                let is_full = column.len() > MAX_IN_COLUMN;
                let shown = if is_full { MAX_IN_COLUMN - 1 } else { column.len() };
                // The column stands on the bars.
                let first = rows - column.len().min(MAX_IN_COLUMN);
                let y = |row: usize| (first + row) * MARK + MARK / 2;
                for (row, (number, place, _)) in column.iter().take(shown).enumerate() {
                    let (link, label) = (format!("#change-{number}"), format!("change {number}"));
                    html.element("a", &[("href", &link), ("aria-label", &label)], |html| {
                        html.element(
                            "circle",
                            &[("class", place), ("cx", &x), ("cy", &y(row)), ("r", &10)],
                            |_| {},
                        );
                        html.element("text", &[("x", &x), ("y", &(y(row) + 4))], |html| html.text(number));
                    });
                }
                if is_full {
                    let more = column.len() - shown;
                    let label = format!("{more} further changes");
                    html.element("a", &[("href", &"#changes"), ("aria-label", &label)], |html| {
                        let y = y(shown) + 4;
                        html.element("text", &[("x", &x), ("y", &y)], |html| {
                            html.text(format_args!("+{more}"));
                        });
                    });
                }
            }
        });
    }

    fn draw_bars(self, html: &mut Html, columns: &[Vec<(usize, &'static str, Timestamp)>], most: u64) {
        let (title, text) = (format!("drawing-{}", self.number), format!("drawing-{}-text", self.number));
        let labels = format!("{title} {text}");
        let height = LEAD + BARS + 1;
        let attributes: Attributes = &[
            ("class", &"bars"),
            ("role", &"img"),
            ("aria-labelledby", &labels),
            ("width", &"100%"),
            ("height", &height),
        ];
        html.block("svg", attributes, |html| {
            html.leaf("title", &[("id", &title)], format!("Flows of {} over time", self.service));
            html.leaf("desc", &[("id", &text)], self.described());
            let mut line = |class: &'static str, from: (Percent, usize), to: (Percent, usize)| {
                let attributes: Attributes =
                    &[("class", &class), ("x1", &from.0), ("y1", &from.1), ("x2", &to.0), ("y2", &to.1)];
                html.element("line", attributes, |_| {});
            };
            let bottom = LEAD + BARS;
            line("top", (Percent(0.0), LEAD), (Percent(100.0), LEAD));
            line("base", (Percent(0.0), bottom), (Percent(100.0), bottom));
            for (index, column) in columns.iter().enumerate() {
                for (_, _, time) in column {
                    let x = self.axis.at(*time);
                    line("change", (middle(index), 0), (x, LEAD));
                    line("change", (x, LEAD), (x, bottom));
                }
            }
            for (begin, Span { failed, others }) in self.rate.spans() {
                let (x, to) = (self.axis.at(begin), self.axis.at(begin.saturating_add(self.rate.span())));
                let width = Percent((to.0 - x.0).max(0.1));
                // The sum is rounded, and then its parts: so the whole has the right height.
                let failed_height = pixels(failed, most);
                let whole = pixels(failed.saturating_add(others), most).max(failed_height);
                let mut bar = |class: &'static str, from: f64, height: f64| {
                    if height > 0.0 {
                        let y = bottom as f64 - from - height;
                        let attributes: Attributes = &[
                            ("class", &class),
                            ("x", &x),
                            ("y", &y),
                            ("width", &width),
                            ("height", &height),
                        ];
                        html.element("rect", attributes, |_| {});
                    }
                };
                bar("others", failed_height, whole - failed_height);
                bar("failed", 0.0, failed_height);
            }
        });
    }

    /// The drawing in a sentence.
    fn described(self) -> String {
        let failed: Vec<Timestamp> =
            self.rate.spans().filter(|(_, span)| span.failed > 0).map(|(begin, _)| begin).collect();
        let when = match (failed.first(), failed.last()) {
            (Some(first), Some(last)) => format!(
                "; failures in the bars from {} to {}",
                first.beside(self.page.ending.started),
                last.beside(self.page.ending.started)
            ),
            _ => String::new(),
        };
        format!("{}{when}. The table below has the numbers.", outline::failed(self.rate))
    }

    /// The times below the bars.
    fn times(self, html: &mut Html) {
        html.block("p", &[("class", &"axis"), ("aria-hidden", &"true")], |html| {
            for at in [self.axis.from, self.axis.to] {
                html.leaf("span", &[], at.beside(self.page.ending.started));
            }
        });
    }

    fn numbers(self, html: &mut Html) {
        html.block("details", &[("class", &"numbers")], |html| {
            html.leaf("summary", &[], "The drawing as a table");
            let caption = format!("Flows of {}, by {}", self.service, length(self.rate.span()));
            table(html, &caption, &["From", "Failed", "Others"], |html| {
                for (begin, span) in self.rate.spans().filter(|(_, span)| *span != Span::default()) {
                    html.element("tr", &[], |html| {
                        html.element("th", &[("scope", &"row")], |html| {
                            time(html, begin, self.page.ending.started);
                        });
                        html.leaf("td", &[("class", &"number")], span.failed);
                        html.leaf("td", &[("class", &"number")], span.others);
                    });
                }
            });
        });
    }
}

/// The middle of a column of marks.
fn middle(column: usize) -> Percent {
    Percent((column as f64 + 0.5) / COLUMNS as f64 * 100.0)
}

/// The height of a bar, at least one pixel if it counts anything.
fn pixels(count: u64, most: u64) -> f64 {
    if count == 0 || most == 0 {
        return 0.0;
    }
    (count as f64 / most as f64 * BARS as f64).round().max(1.0)
}
