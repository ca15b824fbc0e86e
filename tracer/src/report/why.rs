//! Prints the answer of `kubectl viptrace why`.

use std::fmt::Write as _;

use super::{
    check::style,
    outline::only_in_wide,
    printer::{Paint, Style},
    row::{actions, detail},
};
use crate::{
    called::as_typed,
    session::why::{FirstCause, Why},
    text::{count, safe},
    verdict::EvidenceType,
};

/// The text for a person. With `wide` it includes every gap.
pub fn text(why: &Why, paint: Paint, wide: bool) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", paint.text(style(why.state), &safe(&why.summary)));
    if let Some(cause) = &why.cause {
        out.push('\n');
        write_cause(&mut out, cause, paint);
    }
    if let Some(reason) = &why.no_trace {
        let _ = writeln!(out, "\n{} {}", paint.text(Style::Unknown, "trace:"), safe(reason));
    }
    if !why.probes.is_empty() {
        let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "PROBES"));
        for probe in &why.probes {
            let result = safe(&probe.result);
            let _ = writeln!(
                out,
                "  from {} to {}: {result}, {} ms",
                safe(probe.pod.as_ref().unwrap_or(&probe.node)),
                probe.to,
                probe.milliseconds
            );
        }
    }
    let flows = why.flows;
    if flows.total() > 0 {
        let _ = writeln!(
            out,
            "\n{} of the Service observed: {} ok, {} normal, {} faulty, {} unexplained{}",
            count(flows.total(), "connection"),
            flows.ok,
            flows.normal,
            flows.faults,
            flows.unexplained,
            near_a_loss(flows.unknown.saturating_sub(flows.unexplained))
        );
    }
    if !why.also.is_empty() {
        let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "ALSO"));
        for line in &why.also {
            let _ = writeln!(out, "  {}", safe(line));
        }
    }
    write_gaps(&mut out, why, paint, wide);
    out
}

/// The end of the line about flows that look healthy, and of which events were lost.
fn near_a_loss(flows: u64) -> String {
    if flows == 0 { String::new() } else { format!(", {flows} uncertain: events were lost") }
}

fn write_cause(out: &mut String, cause: &FirstCause, paint: Paint) {
    let class = paint.text(Style::Fault, &format!("FAULT {}", cause.class));
    let flows =
        if cause.flows > 0 { format!(" · {}", count(cause.flows, "connection")) } else { String::new() };
    let _ = writeln!(out, "{class} {} · confidence {}{flows}", detail(&cause.root_cause), cause.confidence);
    for others in &cause.others {
        let _ = writeln!(out, "  also: {}", safe(others));
    }
    if let Some(place) = &cause.place {
        let _ = writeln!(out, "  where: {}", safe(place));
    }
    for evidence in &cause.evidence {
        let from = match evidence.r#type {
            EvidenceType::Kernel => "kernel",
            EvidenceType::Api => "api",
            EvidenceType::Node => "node",
        };
        let time = evidence.time.map(|time| format!("{} ", time.clock())).unwrap_or_default();
        let _ = writeln!(out, "  {from}: {time}{}", safe(&evidence.content));
    }
    for evidence in &cause.against {
        let _ = writeln!(out, "  but: {}", safe(&evidence.content));
    }
    for unseen in &cause.unseen {
        let _ = writeln!(out, "  not observed: {}", safe(&as_typed(unseen)));
    }
    for action in actions(&cause.mitigation, cause.class, paint) {
        let _ = writeln!(out, "  {action}");
    }
    let _ = writeln!(out, "  {} kubectl viptrace explain {}", paint.text(Style::Faint, "more:"), cause.class);
}

fn write_gaps(out: &mut String, why: &Why, paint: Paint, wide: bool) {
    let of_check = why.check.gaps.iter().map(|gap| gap.text.as_str());
    let gaps: Vec<&str> = why.gaps.iter().map(String::as_str).chain(of_check).collect();
    if gaps.is_empty() {
        return;
    }
    if !wide {
        let line = only_in_wide(gaps.len(), "fact", " could not be observed");
        let _ = writeln!(out, "\n{}", paint.text(Style::Faint, &line));
        return;
    }
    let _ = writeln!(out, "\n{}", paint.text(Style::Heading, "NOT OBSERVED"));
    for gap in gaps {
        let _ = writeln!(out, "  {}", safe(gap));
    }
}
