//! Two traces side by side on the same traffic, one attached by fentry, one by kprobes: both must report the same
//! verdict and the same events for each flow.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use serde_json::Value;
use viptrace_class::Class;

use super::{check_kernel::has_quick_links, silent};
use crate::{
    expect::{Record, events_left_out},
    invocation::Invocation,
    matrix::Skip,
    tool::{Options, Tool},
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::{GRACE, NODE, Stage},
};

const CHECK_LIMIT: Duration = Duration::from_secs(90);
const RECORDS_LIMIT: Duration = Duration::from_secs(90);
const TIERS: [&str; 2] = ["fentry", "kprobe"];
/// The largest difference between the times of one event in two traces: one program runs after the other.
const APART: Duration = Duration::from_millis(50);
/// Between the third SYN retransmit and the time at which an unanswered flow is reported (4 s).
const PATIENCE: Duration = Duration::from_millis(3_500);

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    stage.needs_viptrace()?;
    for tier in TIERS {
        reached_by(tier)?;
    }
    let _here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let _beside = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let _there = stage.serve("shop/cart-3", 8080, EXCHANGE)?;
    silent::misdeliver_payments(stage)?;
    let kubeconfig = stage.kubeconfig()?;
    let grace = format!("{}s", GRACE.as_secs());
    let mut tools = Vec::new();
    for tier in TIERS {
        let arguments = ["--grace", &grace, "-o", "json", "--all", "--attach", tier].map(str::to_owned);
        tools.push(Tool::start(&Options {
            node: NODE.to_owned(),
            kubeconfig: kubeconfig.clone(),
            arguments: arguments.into(),
            show: false,
            terminal: false,
            capabilities: None,
        })?);
    }

    let vip = |service, port| stage.world.cluster.vip(service, port);
    let from = &stage.world.pod("shop/client-1")?.place;
    let served = client::connect(from, vip("shop/cart", "http")?, 20, 2, Script::exchange())?;
    let refused = client::connect(from, vip("shop/api", "https")?, 5, 1, Script::exchange())?;
    let without = client::connect(from, vip("shop/checkout", "http")?, 5, 1, Script::exchange())?;
    let patience = Script::exchange().connect_limit(PATIENCE);
    let silent = client::connect(from, vip("shop/payments", "grpc")?, 3, 3, patience)?;
    all_ended(&served, &Outcome::Done)?;
    all_ended(&refused, &Outcome::Refused)?;
    all_ended(&without, &Outcome::Refused)?;
    all_ended(&silent, &Outcome::ConnectTimedOut)?;
    let flows = served.len() + refused.len() + without.len() + silent.len();

    let (mut traces, mut losses, mut unreached) = (Vec::new(), Vec::new(), false);
    for (tool, tier) in tools.into_iter().zip(TIERS) {
        let mut records = 0;
        let complete = tool.wait_for(RECORDS_LIMIT, |line| {
            records += usize::from(Record::parse(line).is_some());
            records >= flows
        });
        let ended = tool.stop()?;
        ensure!(complete, "by {tier}, {records} of {flows} flows have a record: {}", ended.stderr);
        traces.push(reports(&ended.records())?);
        // Only by fentry, and the summary states it.
        unreached |= ended.stderr.contains("enter nf_ct_delete.part.0 instead");
        let lines = ended.stderr.lines().filter(|line| events_left_out(line) > 0);
        losses.extend(lines.map(|line| format!("by {tier}: {}\n", line.trim())));
    }
    let [by_fentry, by_kprobe] = traces.as_slice() else { bail!("there are not two traces") };
    ensure!(by_fentry.len() == flows, "by fentry, {} of {flows} flows have a record", by_fentry.len());
    ensure!(by_kprobe.len() == flows, "by kprobe, {} of {flows} flows have a record", by_kprobe.len());
    let mut differing = Vec::new();
    for (flow, report) in by_fentry {
        let other = by_kprobe.get(flow).with_context(|| format!("by kprobe, {flow} has no record"))?;
        let mut difference = Difference::between(report, other);
        if unreached {
            difference.events.retain(|(tier, event)| *tier != "kprobe" || !event.contains("(nf_ct_delete)"));
        }
        ensure!(!difference.is_contradiction(), "the two verdicts on {flow} differ:\n{difference}");
        if !difference.is_none() {
            differing.push(format!("the two reports of {flow} differ:\n{difference}"));
        }
    }
    // A kernel that preempts or interrupts a program loses events: at most one for each flow, and only those that the
    // traces report as lost.
    let left_out: usize = losses.iter().map(|line| events_left_out(line)).sum();
    ensure!(differing.len() <= left_out, "{}{}", differing.concat(), losses.concat());
    Ok(())
}

/// Fails unless the plan reaches every function in the requested way. If the kernel cannot, the scenario is skipped
/// with the plan's own reason.
fn reached_by(tier: &str) -> Result<()> {
    let checked = Invocation::start(&["check", "--kernel", "--attach", tier])?.end(CHECK_LIMIT)?;
    let line_of =
        |hook: &str| checked.stdout.iter().position(|line| line.split_whitespace().next() == Some(hook));
    let number = line_of("__nf_conntrack_confirm").context("the plan does not name its first hook")?;
    let line = checked.stdout.get(number).map_or("", String::as_str);
    if line.contains(" MISSING ") {
        let reason = checked.stdout.get(number + 1).map_or("", String::as_str);
        return Err(Skip(reason.trim().trim_start_matches("because ").to_owned()).into());
    }
    ensure!(line.contains(tier), "the plan does not use {tier}: {line}");
    let drop = line_of("early_drop").and_then(|number| checked.stdout.get(number)).map_or("", String::as_str);
    let way = match tier {
        "fentry" => "fexit",
        _ if has_quick_links()? => "kprobe.multi",
        _ => "kprobe+kretprobe",
    };
    ensure!(drop.contains(way), "early_drop is not reached by {way}: {drop}");
    Ok(())
}

/// The report of one flow.
#[derive(Debug)]
struct FlowReport {
    reported: Timestamp,
    evidence: Vec<Piece>,
    /// The record without its evidence and times.
    rest: Value,
}

/// One piece of evidence, without the durations in its text.
#[derive(Debug)]
struct Piece {
    time: Option<Timestamp>,
    content: String,
}

impl FlowReport {
    fn of(record: &Record) -> Result<Self> {
        let time = |text: &str| text.parse::<Timestamp>().with_context(|| format!("{text:?} is not a time"));
        let mut rest = timeless(record.value());
        rest.as_object_mut().context("a record is not an object")?.remove("evidence");
        let piece = |item: &Value| {
            let time = item["time"].as_str().map(time).transpose()?;
            let content = without_durations(item["content"].as_str().unwrap_or_default());
            anyhow::Ok(Piece { time, content })
        };
        let evidence = record.value()["evidence"].as_array().into_iter().flatten();
        Ok(Self {
            reported: time(record.text("/time"))?,
            evidence: evidence.map(piece).collect::<Result<_>>()?,
            rest,
        })
    }

    /// The evidence from before the first of the two reports, minus the difference between the two traces' clocks.
    fn before(&self, reported: Timestamp) -> impl Iterator<Item = &Piece> {
        let is_before = move |piece: &&Piece| piece.time.is_none_or(|time| time + APART < reported);
        self.evidence.iter().filter(is_before)
    }
}

/// The differences between two reports of a flow. Events of the same moment may come in either order.
#[derive(Debug)]
struct Difference {
    /// The evidence that only one trace has, with its tier.
    events: Vec<(&'static str, String)>,
    /// Other fields that differ, with both values.
    fields: Vec<(String, [Value; 2])>,
}

impl Difference {
    fn between(by_fentry: &FlowReport, by_kprobe: &FlowReport) -> Self {
        let reported = by_fentry.reported.min(by_kprobe.reported);
        let mut theirs: Vec<&Piece> = by_kprobe.before(reported).collect();
        let mut events = Vec::new();
        for ours in by_fentry.before(reported) {
            match theirs.iter().position(|theirs| theirs.content == ours.content) {
                Some(at) => {
                    theirs.remove(at);
                }
                None => events.push(("fentry", ours.content.clone())),
            }
        }
        events.extend(theirs.into_iter().map(|piece| ("kprobe", piece.content.clone())));
        let names = by_fentry.rest.as_object().into_iter().chain(by_kprobe.rest.as_object());
        let names: BTreeSet<&String> = names.flat_map(|fields| fields.keys()).collect();
        let both = |name: &str| [by_fentry.rest[name].clone(), by_kprobe.rest[name].clone()];
        let fields = names.into_iter().map(|name| (name.clone(), both(name)));
        Self { events, fields: fields.filter(|(_, [ours, theirs])| ours != theirs).collect() }
    }

    fn is_none(&self) -> bool {
        self.events.is_empty() && self.fields.is_empty()
    }

    /// Whether no missing event can explain the difference: it may leave a flow unexplained, but never change its class
    /// or its Service.
    fn is_contradiction(&self) -> bool {
        self.fields.iter().any(|(name, values)| match name.as_str() {
            "class" => !values.iter().any(|class| class == Class::Unknown.id()),
            name => name == "service",
        })
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (tier, event) in &self.events {
            writeln!(f, "by {tier} alone: {event}")?;
        }
        for (name, [by_fentry, by_kprobe]) in &self.fields {
            writeln!(f, "{name}: by fentry {by_fentry}, by kprobe {by_kprobe}")?;
        }
        Ok(())
    }
}

/// The report of each flow.
fn reports(records: &[Record]) -> Result<BTreeMap<String, FlowReport>> {
    let key = |record: &Record| format!("{} → {}", record.text("/flow/client"), record.text("/flow/vip"));
    records.iter().map(|record| Ok((key(record), FlowReport::of(record)?))).collect()
}

/// The text without points in time and durations: the two traces have their own timestamps and wake-ups.
fn timeless(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "time" | "started" | "metadata_age"))
            .map(|(name, value)| (name.clone(), timeless(value)))
            .collect(),
        Value::Array(items) => items.iter().map(timeless).collect(),
        Value::String(text) => Value::String(without_durations(text)),
        other => other.clone(),
    }
}

/// Replaces "1.2 ms" and similar durations by "… ms".
fn without_durations(text: &str) -> String {
    let words: Vec<&str> = text.split(' ').collect();
    let is_unit =
        |word: &str| matches!(word.trim_end_matches([',', ';', ':', ')']), "ns" | "µs" | "ms" | "s" | "min");
    let is_number = |word: &str| word.trim_start_matches('(').parse::<f64>().is_ok();
    let shown = words.iter().enumerate().map(|(at, word)| {
        let before_unit = words.get(at + 1).is_some_and(|next| is_unit(next));
        if before_unit && is_number(word) { "…" } else { word }
    });
    shown.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(class: &str, events: &[(&str, &str)]) -> FlowReport {
        let evidence = events.iter().map(|(seconds, content)| {
            json!({"type": "kernel", "time": format!("2026-01-01T00:00:{seconds}Z"), "content": content})
        });
        let record =
            json!({"time": "2026-01-01T00:00:05Z", "class": class, "evidence": evidence.collect::<Vec<_>>()});
        FlowReport::of(&Record::parse(&record.to_string()).unwrap()).unwrap()
    }

    #[test]
    fn events_of_one_trace_alone_are_counted_in_any_order() {
        let whole = report("C28", &[("01", "a"), ("02", "b"), ("02", "b")]);
        let events = |other: &FlowReport| Difference::between(&whole, other).events;
        assert_eq!(events(&report("C28", &[("02", "b"), ("01", "a"), ("02", "b")])), []);
        let one = vec![("fentry", "b".to_owned())];
        assert_eq!(events(&report("C28", &[("02", "b"), ("01", "a")])), one);
        let both = vec![("fentry", "b".to_owned()), ("kprobe", "c".to_owned())];
        assert_eq!(events(&report("C28", &[("01", "a"), ("02", "b"), ("03", "c")])), both);
    }

    #[test]
    fn events_after_the_first_report_are_not_compared() {
        let late = report("ok", &[("01", "a"), ("04.99", "b")]);
        assert!(Difference::between(&late, &report("ok", &[("01", "a")])).is_none());
        let early = report("ok", &[("01", "a"), ("04.9", "b")]);
        assert!(!Difference::between(&early, &report("ok", &[("01", "a")])).is_none());
    }

    #[test]
    fn a_differing_field_is_named_with_both_values() {
        let (whole, mut doubted) = (report("C28", &[("01", "a")]), report("C28", &[("01", "a")]));
        assert!(Difference::between(&whole, &doubted).is_none());
        doubted.rest["confidence"] = json!("low");
        let difference = Difference::between(&whole, &doubted);
        assert_eq!(difference.to_string(), "confidence: by fentry null, by kprobe \"low\"\n");
        assert!(!difference.is_none());
    }

    #[test]
    fn a_missing_event_never_changes_the_class() {
        let contradict = |ours, theirs| {
            Difference::between(&report(ours, &[("01", "a")]), &report(theirs, &[])).is_contradiction()
        };
        assert!(contradict("C28", "ok") && contradict("ok", "C28"));
        assert!(!contradict("C28", "unknown") && !contradict("C28", "C28"));
        let (whole, mut other) = (report("ok", &[("01", "a")]), report("ok", &[]));
        other.rest["service"] = json!({"name": "api"});
        assert!(Difference::between(&whole, &other).is_contradiction());
    }

    #[test]
    fn times_are_left_out_and_nothing_else() {
        let record = json!({"time": "now", "class": "C29", "evidence": [
            {"type": "kernel", "time": "then", "content": "answered after 1.2 ms (3 times)"},
        ]});
        let expected = json!({"class": "C29", "evidence": [
            {"type": "kernel", "content": "answered after … ms (3 times)"},
        ]});
        assert_eq!(timeless(&record), expected);
    }
}
