//! The summary at the end of a trace: the observed flows, the faults, the actions, and the gaps.

use std::{
    cmp::Reverse,
    fmt::{Display, Write as _},
    time::Duration,
};

use crate::{
    called::{self, as_typed},
    class::Class,
    report::{
        fit::{push_padded, width},
        outline,
        printer::{Paint, Style},
        row::{actions, changes, detail, ends, evidence, more},
    },
    session::{Cause, Connections, Counts, Ending, Latency, Pair, Summary},
    text::{self, count, measured, safe},
};

/// The maximum number of classes, Services and gaps listed; the others are counted.
const MAX_LINES: usize = 40;
/// The maximum number of Services named that have flows without a verdict.
const MAX_EVICTED: usize = 5;
/// The maximum number of pieces of evidence shown with a cause.
const MAX_EVIDENCE: usize = 6;
/// The maximum number of pages named of the classes after the first.
const MAX_PAGES: usize = 4;
/// Metadata of this age misses nothing worth a line: API servers send a bookmark about every minute.
const FRESH: Duration = Duration::from_mins(2);

/// The text, with a line end after each line. Any name may come from a peer or an API object: this function makes them
/// safe.
pub(super) fn render(summary: &Summary, ending: &Ending, paint: Paint) -> String {
    let mut out = String::new();
    overview(&mut out, paint, summary.counts(), ending);
    class_table(&mut out, paint, summary);
    service_table(&mut out, paint, summary);
    if let Some((first, rest)) = summary.causes().split_first() {
        first_cause(&mut out, paint, first);
        other_causes(&mut out, paint, first, rest);
    }
    connection_table(&mut out, paint, &summary.connections);
    latency_table(&mut out, paint, summary.latencies());
    limits(&mut out, paint, summary, ending);
    out
}

fn overview(out: &mut String, paint: Paint, counts: Counts, ending: &Ending) {
    heading(out, paint, "Summary");
    let took = text::length(ending.ended.since(ending.started));
    line(out, &format!("{} in {took}", count(counts.total(), "flow")));
    if let Some(only) = outline::only(ending) {
        line(out, &only);
    }
    let unexplained = |broken| format!("{} without an explanation", count(broken, "flow"));
    let (style, text) = match (counts.faults, counts.unexplained) {
        (0, 0) if counts.total() == 0 && ending.selected.is_some() => {
            (Style::Unknown, "none of the selected flows was observed".to_owned())
        }
        (0, 0) if counts.total() == 0 => (Style::Unknown, "no Service traffic was observed".to_owned()),
        (0, 0) if ending.lost_events + ending.uncounted_losses + ending.suppressed_events > 0 => {
            (Style::Unknown, "no fault observed, but events were lost: not proof of health".to_owned())
        }
        (0, 0) if ending.flows_evicted > 0 => {
            (Style::Unknown, "no fault observed, but flows were evicted: not proof of health".to_owned())
        }
        (0, 0) if ending.selected.is_some() => (Style::Good, "no fault in the selected flows".to_owned()),
        (0, 0) => (Style::Good, "no fault".to_owned()),
        (0, broken) => (Style::Unknown, format!("no fault observed, {}", unexplained(broken))),
        (faults, 0) => (Style::Fault, count(faults, "faulty flow")),
        (faults, broken) => {
            (Style::Fault, format!("{}, {}", count(faults, "faulty flow"), unexplained(broken)))
        }
    };
    line(out, &paint.text(style, &text));
    if ending.flows_open > 0 {
        line(out, &format!("{} still open at the end", count(ending.flows_open, "flow")));
    }
}

fn class_table(out: &mut String, paint: Paint, summary: &Summary) {
    let mut classes: Vec<_> = summary.classes().collect();
    if classes.is_empty() {
        return;
    }
    heading(out, paint, "Verdicts");
    classes.sort_by_key(|(class, count)| (class.kind(), Reverse(*count)));
    let rows = classes.iter().map(|(class, count)| {
        let failed = summary.counts().unexplained;
        let meaning = match class {
            Class::Unknown if failed == 0 => "these look healthy, and events were lost".to_owned(),
            Class::Unknown if failed < *count => format!("not explained; {failed} of them failed"),
            class => class.title().to_owned(),
        };
        [count.to_string(), class.to_string(), meaning]
    });
    table(out, rows.collect(), &[Align::Right, Align::Left, Align::Left]);
}

fn service_table(out: &mut String, paint: Paint, summary: &Summary) {
    let mut broken: Vec<_> =
        summary.services().filter(|(_, counts)| counts.faults + counts.unexplained > 0).collect();
    if broken.is_empty() {
        return;
    }
    broken.sort_by_key(|(_, counts)| Reverse((counts.faults, counts.unexplained)));
    heading(out, paint, "Affected Services");
    let rows = broken.iter().map(|(service, counts)| {
        let failed = format!("{} of {} failed", counts.faults, count(summary.total_of(service), "flow"));
        let unexplained = match counts.unexplained {
            0 => String::new(),
            broken => format!(", {broken} without an explanation"),
        };
        [safe(&service.to_string()).into_owned(), failed + &unexplained]
    });
    table(out, rows.collect(), &[Align::Left, Align::Left]);
}

/// The connections that the kernel counted, the most frequent first.
fn connection_table(out: &mut String, paint: Paint, connections: &Connections) {
    let mut pairs: Vec<_> = connections.pairs().collect();
    if pairs.is_empty() {
        return;
    }
    heading(out, paint, "Connections started");
    pairs.sort_by_key(|(_, count)| Reverse(*count));
    let row = |(pair, started): &(&Pair, u64)| {
        let endpoint = pair.endpoint.map_or_else(|| "not translated".to_owned(), |addr| addr.to_string());
        [safe(&pair.service.to_string()).into_owned(), endpoint, count(*started, "connection")]
    };
    let rows = pairs.iter().take(MAX_LINES).map(row).collect();
    table(out, rows, &[Align::Left, Align::Left, Align::Right]);
    let hidden: u64 = pairs.iter().skip(MAX_LINES).map(|(_, count)| count).sum();
    if hidden > 0 {
        line(out, &format!("and {} to others", count(hidden, "connection")));
    }
}

fn latency_table(out: &mut String, paint: Paint, mut latencies: Vec<Latency>) {
    if latencies.is_empty() {
        return;
    }
    heading(out, paint, "Connect times of healthy flows");
    latencies.sort_by_key(|it| Reverse(it.p99));
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

/// The Services with the largest counts, as the end of a line.
fn by_service<'a, S: Display + 'a>(counts: impl Iterator<Item = (&'a S, u64)>) -> String {
    let mut known: Vec<_> = counts.collect();
    known.sort_by_key(|(_, count)| Reverse(*count));
    let name = |(service, count): &(&S, u64)| format!("{count} to {}", safe(&service.to_string()));
    let names: Vec<String> = known.iter().take(MAX_EVICTED).map(name).collect();
    match (names.len(), known.len().saturating_sub(MAX_EVICTED)) {
        (0, _) => String::new(),
        (_, 0) => format!(": {}", names.join(", ")),
        (_, hidden) => format!(": {}, and {}", names.join(", "), count(hidden, "more Service")),
    }
}

fn limits(out: &mut String, paint: Paint, summary: &Summary, ending: &Ending) {
    heading(out, paint, "Not observed");
    let mut lines = Vec::new();
    if ending.lost_events > 0 {
        let lost = count(ending.lost_events, "event");
        lines.push(format!(
            "{lost} lost in the kernel: flows near the loss are not called healthy{}",
            called::unless_by_plugin(" (a larger --buffer helps)")
        ));
    }
    if ending.uncounted_losses > 0 {
        lines.push(format!("{}: flows near them are not called healthy", outline::UNCOUNTED));
    }
    if summary.connections.uncounted > 0 {
        let uncounted = count(summary.connections.uncounted, "connection");
        lines.push(format!(
            "{uncounted} without a counter: more pairs of a Service and an endpoint than there is room for"
        ));
    }
    if ending.flows_evicted > 0 {
        let evicted = count(ending.flows_evicted, "flow");
        lines.push(format!(
            "{evicted} evicted without a verdict to limit memory{}{}",
            called::unless_by_plugin(" (a larger --max-flows helps)"),
            by_service(summary.unjudged().filter_map(|(service, count)| Some((service?, count))))
        ));
    }
    if ending.suppressed_events > 0 {
        let suppressed = count(ending.suppressed_events, "event");
        let services = ending.suppressed_by_service.iter().map(|(service, count)| (service, *count));
        lines.push(format!(
            "{suppressed} suppressed in the kernel, because a client or a Service had too many: its flows are not called \
             healthy{}",
            by_service(services)
        ));
    }
    lines.extend(ending.gaps.iter().map(|gap| safe(gap).into_owned()));
    if lines.is_empty() {
        lines.push("no gap: every hook was attached and no event was lost".into());
    }
    match ending.metadata_age {
        Some(age) if age < FRESH => {}
        Some(age) => lines.push(format!(
            "changes of Services and Pods in the last {}: the API server has sent nothing since",
            text::age(age)
        )),
        None => lines.push("no metadata: Services and Pods are not named, endpoints are not checked".into()),
    }
    let hidden = lines.len().saturating_sub(MAX_LINES);
    for text in lines.iter().take(MAX_LINES) {
        line(out, text);
    }
    if hidden > 0 {
        line(out, &format!("and {hidden} more"));
    }
}

fn first_cause(out: &mut String, paint: Paint, cause: &Cause) {
    let verdict = &cause.verdict;
    heading(out, paint, "First cause");
    let service = verdict.service.as_ref().map_or_else(String::new, |service| format!("  {service}"));
    let title = match verdict.class {
        Class::Unknown => verdict.class.title().to_owned(),
        class => format!("{class} {}", class.title()),
    };
    line(out, &format!("{}{}", paint.text(Style::Fault, &title), safe(&service)));
    line(out, &detail(&verdict.root_cause));
    for others in cause.others() {
        line(out, &format!("also {}", safe(&others)));
    }
    let flows = count(cause.flows, "flow");
    line(out, &format!("{flows}, domain {}, confidence {}", verdict.domain, verdict.confidence));
    if cause.flows > 1 {
        // A row of the table has the latest one.
        line(
            out,
            &format!("shown is the flow at {}: {}", verdict.time.clock(), ends(&verdict.flow).join(" -> ")),
        );
    }
    // Evidence for it that has no room must not displace what speaks against it.
    let (pieces, number) = (evidence(verdict).collect::<Vec<_>>(), verdict.evidence.len());
    let (for_it, against) = pieces.split_at(number.min(pieces.len()));
    let shown = for_it.iter().take(MAX_EVIDENCE).chain(against.iter().take(MAX_EVIDENCE));
    shown.for_each(|piece| line(out, piece));
    let hidden = for_it.len().saturating_sub(MAX_EVIDENCE) + against.len().saturating_sub(MAX_EVIDENCE);
    if hidden > 0 {
        line(out, &format!("and {}", outline::only_in_wide(hidden, "more piece", " of evidence")));
    }
    for unseen in verdict.unseen.iter().take(MAX_EVIDENCE) {
        line(out, &format!("not observed: {}", safe(&as_typed(unseen))));
    }
    for change in changes(verdict) {
        line(out, &change);
    }
    for action in actions(&verdict.mitigation, verdict.class, paint) {
        line(out, &action);
    }
    if !verdict.mitigation.long_term.is_empty() {
        line(out, &format!("later: {}", safe(&as_typed(&verdict.mitigation.long_term))));
    }
    pages(out, paint, [verdict.class]);
}

/// The commands that print the pages of these classes.
fn pages(out: &mut String, paint: Paint, classes: impl IntoIterator<Item = Class>) {
    let commands: Vec<_> = classes.into_iter().map(more).collect();
    if !commands.is_empty() {
        line(out, &format!("{} {}", paint.text(Style::Faint, "more:"), commands.join("; ")));
    }
}

fn other_causes(out: &mut String, paint: Paint, first: &Cause, causes: &[&Cause]) {
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
            with_others(detail(&cause.verdict.root_cause), cause),
        ]
    });
    table(out, rows.collect(), &[Align::Right, Align::Left, Align::Left, Align::Left]);
    let mut classes: Vec<Class> = Vec::new();
    for class in causes.iter().map(|cause| cause.verdict.class) {
        if class != first.verdict.class && !classes.contains(&class) && classes.len() < MAX_PAGES {
            classes.push(class);
        }
    }
    pages(out, paint, classes);
}

/// A cause's sentence with the ends that it does not name.
fn with_others(detail: String, cause: &Cause) -> String {
    match cause.others().as_slice() {
        [] => detail,
        others => format!("{detail} (also {})", safe(&others.join(", and "))),
    }
}

fn heading(out: &mut String, paint: Paint, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "\n{}", paint.text(Style::Heading, text));
}

fn line(out: &mut String, text: &str) {
    let _ = writeln!(out, "  {text}");
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
        line(out, text.trim_end());
    }
    if hidden > 0 {
        line(out, &format!("and {hidden} more"));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        class::Severity,
        report::fixture,
        session::Judged,
        time::Timestamp,
        verdict::{Evidence, ServiceRef, Verdict},
    };

    #[test]
    fn silence_and_loss_are_not_health() {
        let mut summary = Summary::default();
        let mut ending = Ending {
            started: Timestamp::from_unix_secs(100),
            ended: Timestamp::from_unix_secs(130),
            ..Ending::default()
        };
        fixture::snapshot("summary_of_silence", &render(&summary, &ending, Paint(false)));
        let ok = Judged { connect_time: Some(Duration::from_micros(820)), ..fixture::judged(fixture::ok(1)) };
        summary.add(&ok);
        ending.lost_events = 1;
        ending.flows_open = 1;
        ending.metadata_age = Some(Duration::from_mins(3));
        ending.gaps = vec!["nf_ct_resolve_clash\u{1b}: not in this kernel".into()];
        fixture::snapshot("summary_of_losses", &render(&summary, &ending, Paint(false)));
    }

    #[test]
    fn the_first_cause_has_its_best_evidence_and_names_its_flow() {
        let early = Verdict { unseen: vec!["why the rules are old".into()], ..fixture::fault() };
        let mut later =
            Verdict { unseen: Vec::new(), time: Timestamp::from_unix_secs(200), ..fixture::fault() };
        later.root_cause = "no_endpoints — kube-proxy cannot write its rules (C4)".into();
        later.flow.client.set_port(40_002);
        let mut summary = Summary::default();
        let shown = |summary: &Summary| render(summary, &Ending::default(), Paint(false));
        summary.add(&fixture::judged(early.clone()));
        assert!(!shown(&summary).contains("shown is the flow"), "the only one");
        for verdict in [&later, &early] {
            summary.add(&fixture::judged(verdict.clone()));
        }
        let text = shown(&summary);
        assert!(text.contains("cannot write its rules (C4)\n  3 flows,"), "{text}");
        assert!(!text.contains("not observed: why"), "{text}");
        let flow = "shown is the flow at 00:03:20.000: shop/client (10.244.1.40:40002) -> 10.96.10.20:80\n";
        assert!(text.contains(flow), "{text}");
    }

    #[test]
    fn what_speaks_against_the_first_cause_is_shown() {
        let mut verdict = fixture::fault();
        let piece = verdict.evidence[0].clone();
        verdict.evidence = vec![piece.clone(); MAX_EVIDENCE + 2];
        verdict.against = vec![Evidence { content: "the connection was answered".into(), ..piece }];
        let mut summary = Summary::default();
        summary.add(&fixture::judged(verdict));
        let text = render(&summary, &Ending::default(), Paint(false));
        assert_eq!(text.matches("\n  evidence: ").count(), MAX_EVIDENCE, "{text}");
        assert!(
            text.contains("the connection was answered\n  and 2 more pieces of evidence: -o wide"),
            "{text}"
        );
    }

    #[test]
    fn the_page_of_each_class_is_named_once() {
        let mut summary = Summary::default();
        for (class, name) in [(Class::C20, "a"), (Class::C28, "b"), (Class::C20, "c"), (Class::C28, "d")] {
            let mut verdict = Verdict { class, ..fixture::fault() };
            verdict.service = verdict.service.map(|service| ServiceRef { name: name.into(), ..service });
            summary.add(&fixture::judged(verdict));
        }
        let text = render(&summary, &Ending::default(), Paint(false));
        let pages: Vec<_> = text.lines().filter(|line| line.starts_with("  more:")).collect();
        assert_eq!(pages, ["  more: viptrace explain C20", "  more: viptrace explain C28"], "{text}");
    }

    #[test]
    fn a_healthy_flow_near_a_loss_has_not_failed() {
        let mut summary = Summary::default();
        let unknown = fixture::near_a_loss(1);
        summary.add(&fixture::judged(unknown.clone()));
        let ending = Ending { lost_events: 3, ..Ending::default() };
        let text = render(&summary, &ending, Paint(false));
        assert!(text.contains("no fault observed, but events were lost: not proof of health"), "{text}");
        assert!(text.contains("1  unknown"), "{text}");
        assert!(!text.contains("Affected Services") && !text.contains("First cause"), "{text}");
        // It fails after all, and no rule explains it.
        let broken = Verdict { severity: Severity::Low, ..unknown.clone() };
        summary.add(&Judged { before: Some(Arc::new(unknown.key())), ..fixture::judged(broken.clone()) });
        let text = render(&summary, &ending, Paint(false));
        assert!(text.contains("no fault observed, 1 flow without an explanation"), "{text}");
        assert!(text.contains("0 of 1 flow failed, 1 without an explanation"), "{text}");
        // The end of the failure leaves the other flows that failed the same way.
        summary.add(&fixture::judged(broken));
        summary.add(&Judged { before: Some(Arc::new(unknown.key())), ..fixture::judged(fixture::ok(1)) });
        assert_eq!((summary.causes()[0].flows, summary.counts().unexplained), (2, 2));
    }
}
