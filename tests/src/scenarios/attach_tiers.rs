//! Two traces side by side on the same traffic, one whose functions are reached by fentry, one by kprobes: they tell the
//! same story of each flow, event by event.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::silent;
use crate::{
    expect::Record,
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

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    if !stage.is_watched() {
        return Ok(());
    }
    for tier in TIERS {
        reached_by(tier)?;
    }
    let _here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let _beside = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let _there = stage.serve("shop/cart-3", 8080, EXCHANGE)?;
    for pod in ["shop/payments-1", "shop/payments-2"] {
        silent::misdeliver(stage, stage.world.pod(pod)?)?;
    }
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
        })?);
    }

    let vip = |service, port| stage.world.cluster.vip(service, port);
    let from = &stage.world.pod("shop/client-1")?.place;
    let served = client::connect(from, vip("shop/cart", "http")?, 20, 2, Script::exchange())?;
    let refused = client::connect(from, vip("shop/api", "https")?, 5, 1, Script::exchange())?;
    let without = client::connect(from, vip("shop/checkout", "http")?, 5, 1, Script::exchange())?;
    let patience = Script::exchange().connect_limit(Duration::from_secs(4));
    let silent = client::connect(from, vip("shop/payments", "grpc")?, 3, 3, patience)?;
    all_ended(&served, &Outcome::Done)?;
    all_ended(&refused, &Outcome::Refused)?;
    all_ended(&without, &Outcome::Refused)?;
    all_ended(&silent, &Outcome::ConnectTimedOut)?;
    let flows = served.len() + refused.len() + without.len() + silent.len();

    let (mut told, mut left_out) = (Vec::new(), 0);
    for (tool, tier) in tools.into_iter().zip(TIERS) {
        let mut records = 0;
        let complete = tool.wait_for(RECORDS_LIMIT, |line| {
            records += usize::from(Record::parse(line).is_some());
            records >= flows
        });
        let ended = tool.stop()?;
        ensure!(complete, "by {tier}, {records} of {flows} flows had a record: {}", ended.stderr);
        told.push(stories(&ended.records()));
        left_out += events_left_out(&ended.stderr);
    }
    let [by_fentry, by_kprobe] = told.as_slice() else { bail!("there are not two traces") };
    ensure!(by_fentry.len() == flows, "{} flows were told of, of {flows}", by_fentry.len());
    for (flow, story) in by_fentry {
        let other = by_kprobe.get(flow).with_context(|| format!("by kprobe, {flow} has no record"))?;
        // A kernel that preempts what fentry runs keeps events from it: those that the traces own up to, and no more.
        let alike = match lacking(story, other) {
            Some(count) if count <= left_out => {
                left_out -= count;
                true
            }
            _ => false,
        };
        ensure!(alike, "{flow} is told differently\nby fentry: {story:#?}\nby kprobe: {other:#?}");
    }
    ensure!(by_kprobe.len() == flows, "by kprobe, {} flows were told of, of {flows}", by_kprobe.len());
    Ok(())
}

/// Fails unless the plan reaches every function in the way that was asked for; where the kernel cannot, the plan's own
/// reason is what is skipped for.
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
    ensure!(line.contains(tier), "{tier} was asked for: {line}");
    let drop = line_of("early_drop").and_then(|number| checked.stdout.get(number)).map_or("", String::as_str);
    let way = if tier == "fentry" { "fexit" } else { "kprobe+kretprobe" };
    ensure!(drop.contains(way), "early_drop is not reached by {way}: {drop}");
    Ok(())
}

/// How many events at most a trace's summary says that the kernel kept from its programs.
fn events_left_out(summary: &str) -> usize {
    let counts = summary.split("left its programs out up to ").skip(1);
    counts.filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok()).sum()
}

/// How many pieces of evidence one of two stories has and the other has not; `None` where they differ in more.
fn lacking(story: &Value, other: &Value) -> Option<usize> {
    if story == other {
        return Some(0);
    }
    if ["class", "flow", "service"].iter().any(|field| story[field] != other[field]) {
        return None;
    }
    let evidence = |story: &Value| story["evidence"].as_array().cloned().unwrap_or_default();
    let (mut ours, mut theirs) = (evidence(story), evidence(other));
    theirs.retain(|item| match ours.iter().position(|ours| ours == item) {
        Some(at) => {
            ours.remove(at);
            false
        }
        None => true,
    });
    // What follows from a piece that is missing may differ, too; where none is, nothing may.
    Some(ours.len() + theirs.len()).filter(|count| *count > 0)
}

/// What was told of each flow, without the times.
fn stories(records: &[Record]) -> BTreeMap<String, Value> {
    let key = |record: &Record| {
        let text = |pointer| record.text(pointer).to_owned();
        format!("{} → {}", text("/flow/client"), text("/flow/vip"))
    };
    records.iter().map(|record| (key(record), timeless(record.value()))).collect()
}

/// The same without points in time and durations: the two traces stamp and wake at moments of their own.
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

/// Replaces "1.2 ms" and the like by "… ms".
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

    #[test]
    fn evidence_that_the_kernel_kept_back_is_counted_and_nothing_else_is_overlooked() {
        let story = |class: &str, evidence: &[&str]| json!({"class": class, "evidence": evidence});
        let (whole, part) = (story("C28", &["a", "b", "b"]), story("C28", &["b", "a"]));
        assert_eq!(lacking(&whole, &whole), Some(0));
        assert_eq!(lacking(&whole, &part), Some(1));
        assert_eq!(lacking(&story("C28", &["a"]), &story("C28", &["b"])), Some(2));
        assert_eq!(lacking(&whole, &story("ok", &["a", "b", "b"])), None);
        let other = json!({"class": "C28", "evidence": ["a", "b", "b"], "severity": "low"});
        assert_eq!(lacking(&whole, &other), None);
        let summary = "x: the kernel left its programs out up to 2 times, because\ny: the kernel left its programs out up to 1 times";
        assert_eq!((events_left_out(summary), events_left_out("nothing")), (3, 0));
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
