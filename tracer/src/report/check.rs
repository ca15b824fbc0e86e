//! Prints a check as text or as one record.
//!
//! The first line states whether something is broken, and names it. The findings follow in their order, each with its
//! evidence and the command to run, and then the facts that could not be checked. All text from elsewhere is made safe
//! for a terminal.

use std::{fmt::Write as _, io};

use crate::{
    called::as_typed,
    diagnosis::triage::{CheckReport, FindingRecord, Level, State, procedures::Outcome},
    report::{
        json,
        outline::only_in_wide,
        printer::{Paint, Style},
        row::{actions, detail},
        yaml,
    },
    text::{is_unsafe, safe},
};

/// The maximum number of differences in a table; the others are counted.
const MAX_DIFFERENCES: usize = 40;

/// One JSON object in one line.
pub fn record(report: &CheckReport) -> io::Result<String> {
    json::line(report)
}

/// One YAML document.
pub fn document(report: &CheckReport) -> io::Result<String> {
    yaml::document(report)
}

/// The text for a person. With `wide` it includes the notes and every step of the procedures.
pub fn text(report: &CheckReport, paint: Paint, wide: bool) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", paint.text(style(report.state), &safe(&report.summary)));
    let proxy = match (&report.kube_proxy_mode, &report.kube_proxy_version) {
        (Some(mode), Some(version)) => format!("kube-proxy {version} in {mode} mode"),
        (Some(mode), None) => format!("kube-proxy in {mode} mode"),
        (None, Some(version)) => format!("kube-proxy {version}, mode unknown"),
        (None, None) => "kube-proxy's mode and version are unknown".to_owned(),
    };
    let scope =
        report.service.as_ref().map(|service| format!(" · only findings for {service}")).unwrap_or_default();
    let line = format!("{proxy} · {}{scope}", report.time.to_the_millisecond());
    let _ = writeln!(out, "{}", paint.text(Style::Faint, &safe(&line)));

    // A report on one Service is short, so it includes everything.
    let with_notes = wide || report.service.is_some();
    let shown = report.findings.iter().filter(|finding| with_notes || finding.level != Level::Note);
    for (number, finding) in shown.enumerate() {
        out.push('\n');
        write_finding(&mut out, number + 1, finding, None, paint);
    }
    let notes = report.findings.iter().filter(|finding| finding.level == Level::Note).count();
    if notes > 0 && !with_notes {
        let line = only_in_wide(notes, "note", "");
        let _ = writeln!(out, "\n{}", paint.text(Style::Faint, &line));
    }
    if wide {
        write_procedures(&mut out, report, paint);
    }
    write_differences(&mut out, report, paint);
    write_gaps(&mut out, report, paint);
    out
}

/// The style of a state.
pub(super) const fn style(state: State) -> Style {
    match state {
        State::Broken => Style::Fault,
        State::Warnings | State::Unknown => Style::Unknown,
        State::Healthy => Style::Good,
    }
}

fn write_differences(out: &mut String, report: &CheckReport, paint: Paint) {
    if report.differences.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "DIFFERENT IN THE SAVED CHECK"));
    for difference in report.differences.iter().take(MAX_DIFFERENCES) {
        let side = |value: &Option<String>| safe(value.as_deref().unwrap_or("none")).into_owned();
        let (here, there) = (side(&difference.here), side(&difference.there));
        let _ = writeln!(out, "  {}: here {here}, there {there}", safe(&difference.what));
    }
    if let Some(more) = report.differences.len().checked_sub(MAX_DIFFERENCES).filter(|more| *more > 0) {
        let _ = writeln!(out, "  and {more} more: -o json");
    }
}

/// The facts that could not be checked, one line for those that share a reason.
fn write_gaps(out: &mut String, report: &CheckReport, paint: Paint) {
    if report.gaps.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "NOT CHECKED"));
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for gap in &report.gaps {
        let (what, why) = gap.split_once(": ").unwrap_or((gap, ""));
        match reasons.iter_mut().find(|(other, _)| *other == why && !why.is_empty()) {
            Some((_, all)) => all.push(what),
            None => reasons.push((why, vec![what])),
        }
    }
    for (why, what) in reasons {
        let separator = if why.is_empty() { "" } else { ": " };
        let _ = writeln!(out, "  {}{separator}{}", safe(&what.join(", ")), safe(why));
    }
}

/// A finding with its evidence and action. `place`: the nodes that have it, in words.
pub(super) fn write_finding(
    out: &mut String,
    number: usize,
    finding: &FindingRecord,
    place: Option<&str>,
    paint: Paint,
) {
    let (label, style) = match finding.level {
        Level::Fault => ("FAULT", Style::Fault),
        Level::Warning => ("WARNING", Style::Unknown),
        Level::Note => ("note", Style::Faint),
    };
    let cause = detail(&finding.root_cause);
    let _ = writeln!(out, "{number}. {} {} {cause}", paint.text(style, label), finding.class);
    if let Some(place) = place {
        let _ = writeln!(out, "   where: {}", safe(place));
    }
    for evidence in &finding.evidence {
        let _ = writeln!(out, "   saw: {}", safe(&evidence.content));
    }
    for evidence in &finding.against {
        let _ = writeln!(out, "   but: {}", safe(&evidence.content));
    }
    for unseen in &finding.unseen {
        let _ = writeln!(out, "   not observed: {}", safe(&as_typed(unseen)));
    }
    if let Some(since) = finding.since {
        let _ = writeln!(out, "   since: {}", since.to_the_millisecond());
    }
    for action in actions(&finding.mitigation, finding.class, paint) {
        let _ = writeln!(out, "   {action}");
    }
}

fn write_procedures(out: &mut String, report: &CheckReport, paint: Paint) {
    let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "PROCEDURES"));
    for procedure in &report.procedures {
        let _ = writeln!(out, "  {}: {}", procedure.name, word(procedure.result, paint));
        for step in &procedure.steps {
            let _ = writeln!(
                out,
                "    {:10} {}: {}",
                word(step.result, Paint(false)),
                step.check,
                safe(&step.detail)
            );
        }
    }
}

fn word(outcome: Outcome, paint: Paint) -> String {
    match outcome {
        Outcome::Passed => paint.text(Style::Good, "passed"),
        Outcome::Unknown => paint.text(Style::Unknown, "unknown"),
        Outcome::Suspicious => paint.text(Style::Unknown, "suspicious"),
        Outcome::Failed => paint.text(Style::Fault, "failed"),
    }
}

/// Whether the text contains nothing that could trick a terminal; line ends are allowed.
pub fn is_clean(text: &str) -> bool {
    !text.replace('\n', "").contains(is_unsafe)
}
