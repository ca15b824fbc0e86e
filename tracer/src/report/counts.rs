//! Prints the events of recordings, counted by Service.

use std::{cmp::Reverse, fmt::Write as _};

use super::{
    fit::width,
    printer::{Paint, Style},
};
use crate::{
    recording::{EventCounts, OfService},
    text::safe,
};

/// The head of a column of numbers, and how to read one.
type Column = (&'static str, fn(&OfService) -> u64);

const COLUMNS: [Column; 6] = [
    ("CONNECTIONS", |it| it.translated),
    ("UNTRANSLATED", |it| it.untranslated),
    ("REJECTED", |it| it.rejected),
    ("DROPPED", |it| it.dropped),
    ("RESETS", |it| it.resets),
    ("RETRANSMITS", |it| it.retransmits),
];

/// The text for a person: the Services with the most troubles first, then the number of records of each hook, unless a
/// Service was chosen.
pub fn render(counts: &EventCounts, paint: Paint) -> String {
    let mut services: Vec<_> = counts.services().collect();
    services.sort_by_key(|(_, of)| (Reverse(of.troubles()), Reverse(of.translated)));
    let mut rows: Vec<(String, OfService)> = services
        .into_iter()
        .map(|((service, protocol), of)| (safe(&format!("{service} {protocol}")).into_owned(), *of))
        .collect();
    if counts.others != OfService::default() {
        rows.push(("no Service".to_owned(), counts.others));
    }
    let mut out = String::new();
    if !rows.is_empty() {
        table(&mut out, &rows, paint);
    }
    let mut hooks: Vec<_> = counts.hooks().collect();
    if hooks.is_empty() {
        return out;
    }
    if !rows.is_empty() {
        out.push('\n');
    }
    let head = format!("{:>12}  HOOK", "EVENTS");
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", paint.text(Style::Heading, &head));
    hooks.sort_by_key(|(hook, count)| (Reverse(*count), *hook));
    for (hook, count) in hooks {
        let _ = writeln!(out, "{count:>12}  {}", hook.symbol());
    }
    let _ = writeln!(out, "{:>12}  all", counts.events);
    out
}

fn table(out: &mut String, rows: &[(String, OfService)], paint: Paint) {
    let names = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0).max("SERVICE".len());
    let mut head = format!("{:<names$}", "SERVICE");
    for (name, _) in COLUMNS {
        let _ = write!(head, "  {name:>12}");
    }
    let _ = writeln!(out, "{}", paint.text(Style::Heading, &head));
    for (name, of) in rows {
        let pad = " ".repeat(names - width(name));
        let style = if of.troubles() > 0 { Style::Plain } else { Style::Faint };
        let numbers = COLUMNS.iter().fold(String::new(), |mut line, (_, read)| {
            let _ = write!(line, "  {:>12}", read(of));
            line
        });
        let _ = writeln!(out, "{}", paint.text(style, &format!("{name}{pad}{numbers}")));
    }
}
