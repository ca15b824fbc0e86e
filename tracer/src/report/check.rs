//! Prints a check: for a person at three in the morning, or as one record.
//!
//! The first line says whether something is broken and what; then the findings in their order, each with its evidence
//! and the command to run; then what could not be checked. Everything foreign is made safe before a terminal sees it.

use std::{fmt::Write as _, io};

use crate::{
    class::Safety,
    diagnosis::triage::{CheckReport, FindingRecord, Level, State, procedures::Outcome},
    report::{
        json,
        printer::{Paint, Style},
    },
    text::{is_unsafe, safe},
};

/// Differences shown in a table; the rest is counted.
const DIFFERENCES_MAX: usize = 40;

/// One JSON object in one line.
pub fn record(report: &CheckReport) -> io::Result<String> {
    Ok(json::line_of(report)? + "\n")
}

/// One YAML document.
pub fn document(report: &CheckReport) -> io::Result<String> {
    let text = serde_saphyr::to_string(report).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(super::yaml::guard(&text))
}

/// The text for a person. With `wide` the notes and every step of the procedures are told as well.
pub fn text(report: &CheckReport, paint: Paint, wide: bool) -> String {
    let mut out = String::new();
    let style = match report.state {
        State::Broken => Style::Fault,
        State::Warnings | State::Unknown => Style::Unknown,
        State::Healthy => Style::Good,
    };
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", paint.text(style, &safe(&report.summary)));
    let proxy = match (&report.kube_proxy_mode, &report.kube_proxy_version) {
        (Some(mode), Some(version)) => format!("kube-proxy {version} in {mode} mode"),
        (Some(mode), None) => format!("kube-proxy in {mode} mode"),
        (None, Some(version)) => format!("kube-proxy {version}, mode not known"),
        (None, None) => "kube-proxy's mode and version are not known".to_owned(),
    };
    let scope =
        report.service.as_ref().map(|service| format!(" · only what concerns {service}")).unwrap_or_default();
    let line = format!("{proxy} · {}{scope}", report.time);
    let _ = writeln!(out, "{}", paint.text(Style::Faint, &safe(&line)));

    let shown = report.findings.iter().filter(|finding| wide || finding.level != Level::Note);
    for (number, finding) in shown.enumerate() {
        out.push('\n');
        write_finding(&mut out, number + 1, finding, paint);
    }
    let notes = report.findings.iter().filter(|finding| finding.level == Level::Note).count();
    if notes > 0 && !wide {
        let _ = writeln!(out, "\n{}", paint.text(Style::Faint, &format!("{notes} more to know: -o wide")));
    }
    if wide {
        write_procedures(&mut out, report, paint);
    }
    if !report.differences.is_empty() {
        let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "DIFFERENT THERE"));
        for difference in report.differences.iter().take(DIFFERENCES_MAX) {
            let side = |value: &Option<String>| {
                value.as_deref().map_or("not known".to_owned(), |text| safe(text).into_owned())
            };
            let _ = writeln!(
                out,
                "  {}: here {}, there {}",
                safe(&difference.what),
                side(&difference.here),
                side(&difference.there)
            );
        }
        if let Some(more) = report.differences.len().checked_sub(DIFFERENCES_MAX).filter(|more| *more > 0) {
            let _ = writeln!(out, "  and {more} more: -o json");
        }
    }
    if !report.gaps.is_empty() {
        let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "NOT CHECKED"));
        for gap in &report.gaps {
            let _ = writeln!(out, "  {}", safe(gap));
        }
    }
    out
}

fn write_finding(out: &mut String, number: usize, finding: &FindingRecord, paint: Paint) {
    let (label, style) = match finding.level {
        Level::Fault => ("FAULT", Style::Fault),
        Level::Warning => ("WARNING", Style::Unknown),
        Level::Note => ("note", Style::Faint),
    };
    let _ = writeln!(
        out,
        "{number}. {} {} {}",
        paint.text(style, label),
        finding.class,
        safe(&finding.root_cause)
    );
    for evidence in &finding.evidence {
        let _ = writeln!(out, "   saw: {}", safe(&evidence.content));
    }
    for evidence in &finding.against {
        let _ = writeln!(out, "   but: {}", safe(&evidence.content));
    }
    if let Some(since) = finding.since {
        let _ = writeln!(out, "   since: {since}");
    }
    if !finding.mitigation.immediate.is_empty() {
        let rating = match finding.mitigation.safety {
            Safety::ReadOnly => "reads only",
            Safety::Disruptive => "disruptive",
            Safety::Dangerous => "dangerous",
        };
        let _ = writeln!(
            out,
            "   {} [{rating}] {}",
            paint.text(Style::Heading, "do:"),
            safe(&finding.mitigation.immediate)
        );
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
        Outcome::Unknown => paint.text(Style::Unknown, "not known"),
        Outcome::Suspicious => paint.text(Style::Unknown, "suspicious"),
        Outcome::Failed => paint.text(Style::Fault, "failed"),
    }
}

/// Whether nothing in the text could trick a terminal; line ends are its own.
pub fn is_clean(text: &str) -> bool {
    !text.replace('\n', "").contains(is_unsafe)
}
