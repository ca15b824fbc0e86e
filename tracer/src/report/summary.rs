//! The summary at the end of a trace: what was seen, what is broken, what to do, and what could not be seen.

use std::{fmt::Write as _, time::Duration};

use crate::{
    class::{Class, Kind, Safety},
    report::{
        fit::{push_padded, width},
        latency::Latency,
        printer::{Paint, Style},
        row::{confidence, detail},
    },
    text::{self, count, measured, safe},
    time::Timestamp,
    verdict::Verdict,
};

/// Classes, Services and gaps that are listed; the rest is counted.
const MAX_LINES: usize = 40;
/// Pieces of evidence shown with a cause.
const MAX_EVIDENCE: usize = 6;

/// What the summary says. All texts may be foreign; they are made safe when printed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// When the trace was ready and when it ended.
    pub started: Timestamp,
    pub ended: Timestamp,
    pub flows_seen: u64,
    /// Flows that had no outcome yet at the end.
    pub flows_open: u64,
    /// Flows given up to keep within the memory limit; they have no verdict.
    pub flows_evicted: u64,
    /// Verdicts by class.
    pub classes: Vec<ClassCount>,
    /// Verdicts by Service.
    pub services: Vec<ServiceCount>,
    /// The causes in the order of triage, the first one first.
    pub causes: Vec<Cause>,
    /// Connect times of healthy flows.
    pub latencies: Vec<Latency>,
    /// What could not be observed: hooks that are missing, objects that may not be read, node facts.
    pub gaps: Vec<String>,
    /// Events that the kernel could not hand over.
    pub lost_events: u64,
    /// Time since the API server was last heard from, or the age of the object files; `None` without metadata.
    pub metadata_age: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassCount {
    pub class: Class,
    pub count: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCount {
    /// `namespace/name:port`, or another name for flows without one.
    pub service: String,
    pub ok: u64,
    pub normal: u64,
    pub faults: u64,
    pub unknown: u64,
}

/// A cause, and the flows that it explains.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// One flow's verdict that shows it best.
    pub verdict: Verdict,
    pub flows: u64,
}

impl Summary {
    /// Flows with a fault.
    pub fn faults(&self) -> u64 {
        self.count(Kind::Fault)
    }

    fn count(&self, kind: Kind) -> u64 {
        self.classes.iter().filter(|it| it.class.kind() == kind).map(|it| it.count).sum()
    }

    /// The text, each line ended.
    pub fn render(&self, paint: Paint) -> String {
        let mut out = String::new();
        self.overview(&mut out, paint);
        self.class_table(&mut out, paint);
        self.service_table(&mut out, paint);
        if let Some((first, rest)) = self.causes.split_first() {
            first_cause(&mut out, paint, first);
            other_causes(&mut out, paint, rest);
        }
        self.latency_table(&mut out, paint);
        self.limits(&mut out, paint);
        out
    }

    fn overview(&self, out: &mut String, paint: Paint) {
        heading(out, paint, "Summary");
        let seconds = self.ended.since(self.started).as_secs_f64();
        line(out, 1, &format!("{} in {seconds:.1} s", count(self.flows_seen, "flow")));
        let (faults, unknown) = (self.count(Kind::Fault), self.count(Kind::Unknown));
        let (style, text) = match (faults, unknown) {
            (0, 0) if self.flows_seen == 0 => (Style::Unknown, "no Service traffic was seen".to_owned()),
            (0, 0) if self.lost_events > 0 => {
                (Style::Unknown, "no fault seen, but events were lost: not proof of health".to_owned())
            }
            (0, 0) => (Style::Good, "no fault".to_owned()),
            (0, unknown) => (Style::Unknown, format!("no explained fault, {unknown} not explained")),
            (faults, 0) => (Style::Fault, count(faults, "faulty flow")),
            (faults, unknown) => {
                (Style::Fault, format!("{}, {unknown} not explained", count(faults, "faulty flow")))
            }
        };
        line(out, 1, &paint.text(style, &text));
        if self.flows_open > 0 {
            line(out, 1, &format!("{} still open at the end", self.flows_open));
        }
    }

    fn class_table(&self, out: &mut String, paint: Paint) {
        if self.classes.is_empty() {
            return;
        }
        heading(out, paint, "Verdicts");
        let mut classes: Vec<_> = self.classes.iter().collect();
        classes.sort_by_key(|it| (it.class.kind(), std::cmp::Reverse(it.count)));
        let rows = classes
            .iter()
            .map(|it| [it.count.to_string(), it.class.to_string(), it.class.title().to_owned()]);
        table(out, rows.collect(), &[Align::Right, Align::Left, Align::Left]);
    }

    fn service_table(&self, out: &mut String, paint: Paint) {
        let mut broken: Vec<_> = self.services.iter().filter(|it| it.faults + it.unknown > 0).collect();
        if broken.is_empty() {
            return;
        }
        broken.sort_by_key(|it| std::cmp::Reverse((it.faults, it.unknown)));
        heading(out, paint, "Broken Services");
        let rows = broken.iter().map(|it| {
            let judged = it.ok + it.normal + it.faults + it.unknown;
            let unknown =
                if it.unknown > 0 { format!(", {} not explained", it.unknown) } else { String::new() };
            [safe(&it.service).into_owned(), format!("{} of {judged} flows failed{unknown}", it.faults)]
        });
        table(out, rows.collect(), &[Align::Left, Align::Left]);
    }

    fn latency_table(&self, out: &mut String, paint: Paint) {
        if self.latencies.is_empty() {
            return;
        }
        heading(out, paint, "Connect times of healthy flows");
        let mut latencies: Vec<_> = self.latencies.iter().collect();
        latencies.sort_by_key(|it| std::cmp::Reverse(it.p99));
        let rows = latencies.iter().map(|it| {
            [
                safe(&it.service).into_owned(),
                count(it.count, "flow"),
                format!("p50 {}", measured(it.p50)),
                format!("p99 {}", measured(it.p99)),
                format!("max {}", measured(it.max)),
            ]
        });
        table(out, rows.collect(), &[Align::Left, Align::Right, Align::Right, Align::Right, Align::Right]);
    }

    fn limits(&self, out: &mut String, paint: Paint) {
        heading(out, paint, "What could not be seen");
        let mut lines = Vec::new();
        match self.lost_events {
            0 => {}
            lost => lines.push(format!(
                "{} lost in the kernel: flows near the loss are not called healthy (a larger --buffer helps)",
                count(lost, "event")
            )),
        }
        if self.flows_evicted > 0 {
            lines.push(format!(
                "{} given up unjudged to keep within memory (--max-flows)",
                count(self.flows_evicted, "flow")
            ));
        }
        lines.extend(self.gaps.iter().map(|gap| safe(gap).into_owned()));
        if lines.is_empty() {
            lines.push("nothing known: every hook was attached and no event was lost".into());
        }
        lines.push(match self.metadata_age {
            Some(age) => format!("metadata is {} old", text::age(age)),
            None => "there was no metadata: Services and Pods are not named, endpoints not checked".into(),
        });
        let hidden = lines.len().saturating_sub(MAX_LINES);
        for text in lines.iter().take(MAX_LINES) {
            line(out, 1, text);
        }
        if hidden > 0 {
            line(out, 1, &format!("and {hidden} more"));
        }
    }
}

fn first_cause(out: &mut String, paint: Paint, cause: &Cause) {
    let verdict = &cause.verdict;
    heading(out, paint, "First cause");
    let service = verdict.service.as_ref().map_or_else(String::new, |service| format!("  {service}"));
    let title = format!("{} {}", verdict.class, verdict.class.title());
    line(out, 1, &format!("{}{}", paint.text(Style::Fault, &title), safe(&service)));
    line(out, 1, &detail(&verdict.root_cause));
    let sure = confidence(verdict.confidence);
    line(out, 1, &format!("{}, domain {}, confidence {sure}", count(cause.flows, "flow"), verdict.domain));
    let pieces = verdict.evidence.iter().map(|it| ("evidence", it));
    let pieces = pieces.chain(verdict.against.iter().map(|it| ("against", it)));
    for (label, piece) in pieces.clone().take(MAX_EVIDENCE) {
        let time = piece.time.map(|time| time.clock() + " ").unwrap_or_default();
        line(out, 1, &format!("{label}: {time}{}", safe(&piece.content)));
    }
    let hidden = pieces.count().saturating_sub(MAX_EVIDENCE);
    if hidden > 0 {
        line(out, 1, &format!("and {hidden} more pieces of evidence"));
    }
    for unseen in verdict.unseen.iter().take(MAX_EVIDENCE) {
        line(out, 1, &format!("not seen: {}", safe(unseen)));
    }
    let mitigation = &verdict.mitigation;
    let label = paint.text(Style::Heading, "do:");
    if !mitigation.immediate.is_empty() {
        line(out, 1, &format!("{label} {} [{}]", safe(&mitigation.immediate), safety(mitigation.safety)));
    }
    if !mitigation.long_term.is_empty() {
        line(out, 1, &format!("later: {}", safe(&mitigation.long_term)));
    }
}

fn other_causes(out: &mut String, paint: Paint, causes: &[Cause]) {
    if causes.is_empty() {
        return;
    }
    heading(out, paint, "Then");
    let rows = causes.iter().map(|cause| {
        let service = cause.verdict.service.as_ref().map_or_else(|| "-".into(), ToString::to_string);
        [
            cause.flows.to_string(),
            cause.verdict.class.to_string(),
            safe(&service).into_owned(),
            detail(&cause.verdict.root_cause),
        ]
    });
    table(out, rows.collect(), &[Align::Right, Align::Left, Align::Left, Align::Left]);
}

const fn safety(safety: Safety) -> &'static str {
    match safety {
        Safety::ReadOnly => "read-only",
        Safety::Disruptive => "disruptive",
        Safety::Dangerous => "dangerous",
    }
}

fn heading(out: &mut String, paint: Paint, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "\n{}", paint.text(Style::Heading, text));
}

fn line(out: &mut String, indent: usize, text: &str) {
    let _ = writeln!(out, "{:indent$}{text}", "", indent = indent * 2);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Align {
    Left,
    Right,
}

/// Rows of cells, each column as wide as its widest cell.
fn table<const N: usize>(out: &mut String, rows: Vec<[String; N]>, align: &[Align; N]) {
    let hidden = rows.len().saturating_sub(MAX_LINES);
    let rows: Vec<_> = rows.into_iter().take(MAX_LINES).collect();
    let mut widths = [0; N];
    for row in &rows {
        for (widest, cell) in widths.iter_mut().zip(row) {
            *widest = (*widest).max(width(cell));
        }
    }
    for row in &rows {
        let mut text = String::new();
        for ((cell, columns), align) in row.iter().zip(widths).zip(align) {
            if *align == Align::Right {
                text.extend(std::iter::repeat_n(' ', columns - width(cell)));
                text.push_str(cell);
            } else {
                push_padded(&mut text, cell, columns);
            }
            text.push_str("  ");
        }
        line(out, 1, text.trim_end());
    }
    if hidden > 0 {
        line(out, 1, &format!("and {hidden} more"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sink::fixture;

    #[test]
    fn the_first_cause_comes_with_evidence_and_action() {
        let summary = Summary {
            started: Timestamp::from_unix_secs(100),
            ended: Timestamp::from_unix_secs(130),
            flows_seen: 12,
            classes: vec![
                ClassCount { class: Class::Ok, count: 10 },
                ClassCount { class: Class::C20, count: 2 },
            ],
            services: vec![ServiceCount {
                service: "shop/checkout:http".into(),
                faults: 2,
                ..ServiceCount::default()
            }],
            causes: vec![Cause { verdict: fixture::fault(), flows: 2 }],
            latencies: vec![Latency {
                service: "shop/cart:http".into(),
                count: 10,
                p50: Duration::from_micros(820),
                p99: Duration::from_millis(14),
                max: Duration::from_secs(12),
            }],
            gaps: vec!["nf_ct_resolve_clash\u{1b}: not in this kernel".into()],
            metadata_age: Some(Duration::from_secs(3)),
            ..Summary::default()
        };
        let text = summary.render(Paint(false));
        for expected in [
            "12 flows in 30.0 s\n  2 faulty flows\n",
            "   2  C20  Service has no endpoints\n  10  ok   healthy\n",
            "shop/checkout:http  2 of 2 flows failed\n",
            "C20 Service has no endpoints  shop/checkout:http\n  the selector matches no Pod\n",
            "evidence: 00:01:41.000 nf_send_unreach",
            "do: kubectl -n shop get pods -l app=checkout [read-only]\n",
            "p50 0.82 ms  p99 14 ms  max 12.0 s\n",
            "  nf_ct_resolve_clash\\u{1b}: not in this kernel\n",
            "metadata is 3 s old\n",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
        assert_eq!(summary.faults(), 2);
    }

    #[test]
    fn silence_and_loss_are_not_health() {
        let text = Summary::default().render(Paint(false));
        assert!(text.contains("no Service traffic was seen"), "{text}");
        assert!(text.contains("there was no metadata"), "{text}");
        let lossy = Summary { flows_seen: 1, lost_events: 1, ..Summary::default() };
        assert!(lossy.render(Paint(false)).contains("not proof of health"));
        assert!(lossy.render(Paint(false)).contains("1 event lost in the kernel"));
    }
}
