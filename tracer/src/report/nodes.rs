//! Prints the checks of several nodes as one text.

use std::fmt::Write as _;

use super::{
    check::{style, write_finding},
    outline::only_in_wide,
    printer::{Paint, Style},
};
use crate::{
    diagnosis::triage::{
        Level, State,
        nodes::{NodesReport, SharedText, place},
    },
    text::{list, safe},
};

/// The most differences in a table; the others are counted.
const MAX_DIFFERENCES: usize = 20;

/// The text for a person. With `wide` it includes the notes, the gaps of each node and the facts in which nodes differ.
pub fn text(report: &NodesReport, paint: Paint, wide: bool) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", paint.text(style(report.state), &safe(&report.summary)));
    let scope =
        report.service.as_ref().map(|service| format!(" · only findings for {service}")).unwrap_or_default();
    let line = format!("{}{scope}", report.time.to_the_millisecond());
    let _ = writeln!(out, "{}", paint.text(Style::Faint, &safe(&line)));
    write_nodes(&mut out, report, paint);

    let checked = report.nodes.iter().filter(|node| node.state.is_some()).count();
    let with_notes = wide || report.service.is_some();
    let shown = report.findings.iter().filter(|shared| with_notes || shared.finding.level != Level::Note);
    for (number, shared) in shown.enumerate() {
        out.push('\n');
        let place = (checked > 1).then(|| place(shared, checked));
        write_finding(&mut out, number + 1, &shared.finding, place.as_deref(), paint);
    }
    let notes = report.findings.iter().filter(|shared| shared.finding.level == Level::Note).count();
    if notes > 0 && !with_notes {
        let line = only_in_wide(notes, "note", "");
        let _ = writeln!(out, "\n{}", paint.text(Style::Faint, &line));
    }
    write_differences(&mut out, report, paint, wide);
    if !report.gaps.is_empty() {
        let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "NOT CHECKED"));
        for SharedText { nodes, text } in &report.gaps {
            let on = if nodes.len() == checked { String::new() } else { format!(" (on {})", list(nodes)) };
            let _ = writeln!(out, "  {}{}", safe(text), safe(&on));
        }
    }
    out
}

/// A line for each node.
fn write_nodes(out: &mut String, report: &NodesReport, paint: Paint) {
    let word = |state: Option<State>| match state {
        Some(state) => paint.text(style(state), state.as_str()),
        None => paint.text(Style::Unknown, "NOT CHECKED"),
    };
    for node in &report.nodes {
        let proxy = match (&node.kube_proxy_mode, &node.kube_proxy_version) {
            (Some(mode), Some(version)) => format!("kube-proxy {version}, {mode}"),
            (Some(mode), None) => format!("kube-proxy, {mode}"),
            (None, Some(version)) => format!("kube-proxy {version}"),
            (None, None) if node.state.is_none() => {
                node.summary.strip_prefix("not checked: ").unwrap_or(&node.summary).to_owned()
            }
            (None, None) => "kube-proxy's mode and version are unknown".to_owned(),
        };
        let _ = writeln!(out, "  {}: {} · {}", safe(&node.node), word(node.state), safe(&proxy));
    }
}

fn write_differences(out: &mut String, report: &NodesReport, paint: Paint, wide: bool) {
    if report.differences.is_empty() {
        return;
    }
    if !wide {
        let line = format!("the nodes differ in {}", only_in_wide(report.differences.len(), "fact", ""));
        let _ = writeln!(out, "\n{}", paint.text(Style::Faint, &line));
        return;
    }
    let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "DIFFERENT BETWEEN THE NODES"));
    for fact in report.differences.iter().take(MAX_DIFFERENCES) {
        let values: Vec<String> =
            fact.values.iter().map(|value| format!("{} on {}", value.text, list(&value.nodes))).collect();
        let _ = writeln!(out, "  {}: {}", safe(&fact.what), safe(&values.join("; ")));
    }
    if let Some(more) = report.differences.len().checked_sub(MAX_DIFFERENCES).filter(|more| *more > 0) {
        let _ = writeln!(out, "  and {more} more: -o json");
    }
}
