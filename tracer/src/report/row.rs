//! One line of a table, made from a verdict: safe text in named cells.

use std::net::SocketAddr;

use crate::{
    class::{Class, Confidence, Kind},
    report::{Item, printer::Style},
    text::{measured, safe},
    time::Timestamp,
    verdict::{Evidence, FlowRef, Verdict},
};

/// The cells of a line. Every text is safe for a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// `03:04:05.123`, UTC.
    pub time: String,
    pub verdict: String,
    pub style: Style,
    pub service: String,
    pub client: String,
    pub vip: String,
    pub endpoint: String,
    pub what: String,
    pub wide: Wide,
}

/// What only the wide table has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wide {
    pub node: String,
    pub protocol: String,
    pub confidence: String,
    /// Whole lines below the row.
    pub below: Vec<String>,
}

impl Row {
    /// `with_addresses` adds `ip:port` to the names of Pods.
    pub(super) fn new(item: Item<'_>, with_addresses: bool) -> Self {
        let verdict = item.verdict;
        let flow = &verdict.flow;
        Self {
            time: verdict.time.clock(),
            verdict: tag(verdict.class),
            style: style(verdict.class),
            service: verdict
                .service
                .as_ref()
                .map_or_else(|| "-".into(), |it| safe(&it.to_string()).into_owned()),
            client: end(flow.client_pod.as_deref(), Some(flow.client), with_addresses),
            vip: flow.vip.map_or_else(|| "-".into(), |vip| vip.to_string()),
            endpoint: end(flow.endpoint_pod.as_deref(), flow.endpoint, with_addresses),
            what: what(item),
            wide: if with_addresses { wide(verdict) } else { Wide::default() },
        }
    }
}

/// One end of a flow: its Pod where that is known.
pub(super) fn end(pod: Option<&str>, addr: Option<SocketAddr>, with_addresses: bool) -> String {
    match (pod, addr) {
        (Some(pod), Some(addr)) if with_addresses => format!("{} ({addr})", safe(pod)),
        (Some(pod), _) => safe(pod).into_owned(),
        (None, Some(addr)) => addr.to_string(),
        (None, None) => "-".into(),
    }
}

/// `FAULT C20`, `unknown`, `normal N1`, `ok`.
fn tag(class: Class) -> String {
    match class.kind() {
        Kind::Fault => format!("FAULT {class}"),
        Kind::Normal => format!("normal {class}"),
        Kind::Ok | Kind::Unknown => class.to_string(),
    }
}

fn style(class: Class) -> Style {
    match class.kind() {
        Kind::Fault => Style::Fault,
        Kind::Unknown => Style::Unknown,
        Kind::Normal => Style::Faint,
        Kind::Ok => Style::Good,
    }
}

/// The detail of the root cause; for a healthy flow how long its connect took.
fn what(item: Item<'_>) -> String {
    match item.connect_time {
        Some(time) if item.verdict.class == Class::Ok => format!("connected in {}", measured(time)),
        _ => detail(&item.verdict.root_cause),
    }
}

/// What follows `domain — `.
pub(super) fn detail(root_cause: &str) -> String {
    let detail = root_cause.split_once(" — ").map_or(root_cause, |(_, detail)| detail);
    safe(detail).into_owned()
}

fn wide(verdict: &Verdict) -> Wide {
    let mut below = Vec::new();
    let mut add = |label: &str, evidence: &[Evidence]| {
        for piece in evidence {
            let time = piece.time.map(|time| time.clock() + " ").unwrap_or_default();
            below.push(format!("{label}: {time}{}", safe(&piece.content)));
        }
    };
    // A healthy flow needs no proof on the screen.
    if verdict.class != Class::Ok {
        add("evidence", &verdict.evidence);
        add("against", &verdict.against);
        below.extend(verdict.unseen.iter().map(|unseen| format!("not seen: {}", safe(unseen))));
        if !verdict.mitigation.immediate.is_empty() {
            below.push(format!("do: {}", safe(&verdict.mitigation.immediate)));
        }
    }
    Wide {
        node: verdict.flow.node.as_deref().map_or_else(|| "-".into(), |node| safe(node).into_owned()),
        protocol: safe(&verdict.flow.protocol).into_owned(),
        confidence: confidence(verdict.confidence).into(),
        below,
    }
}

pub(super) const fn confidence(confidence: Confidence) -> &'static str {
    match confidence {
        Confidence::Low => "low",
        Confidence::Medium => "medium",
        Confidence::High => "high",
    }
}

/// What makes two verdicts verdicts on the same flow.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowKey(String, SocketAddr, Option<SocketAddr>, Timestamp);

impl FlowKey {
    pub(super) fn new(flow: &FlowRef) -> Self {
        Self(flow.protocol.clone(), flow.client, flow.vip, flow.started)
    }
}
