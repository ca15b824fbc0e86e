//! One line of a table, made from a verdict: safe text in named cells.

use std::{borrow::Cow, net::SocketAddr, time::Duration};

use crate::{
    called::{self, as_typed},
    class::{Class, Kind},
    diagnosis::finding::Finding,
    report::printer::{Paint, Style},
    session::names_client,
    text::{count, length, measured, safe},
    time::Timestamp,
    verdict::{FlowRef, Mitigation, Step, Text, Verdict},
};

/// Before the first action; the others are aligned with it.
pub(super) const DO: &str = "do:";
/// The most actions shown; the others are counted.
const MAX_STEPS: usize = 8;

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
    /// The node that observed the flow.
    pub node: String,
    pub what: String,
    /// The client's Pod, or its address without the port.
    pub client_name: String,
    /// `what` names the client.
    pub names_client: bool,
    /// Flows that share the line.
    pub count: u64,
    pub wide: Wide,
}

/// The cells that only the wide table has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wide {
    pub protocol: String,
    pub confidence: String,
    /// Whole lines below the row.
    pub below: Vec<String>,
    /// The lines of the actions, which follow them.
    pub actions: Vec<String>,
}

impl Row {
    /// `with_addresses` adds `ip:port` to the names of Pods.
    pub(super) fn new(verdict: &Verdict, connect_time: Option<Duration>, with_addresses: bool) -> Self {
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
            node: flow.node.as_deref().map_or_else(|| "-".into(), |node| safe(node).into_owned()),
            what: what(verdict, connect_time),
            client_name: flow.client_name(),
            names_client: verdict.has_failed() && names_client(verdict),
            count: 1,
            wide: if with_addresses { wide(verdict) } else { Wide::default() },
        }
    }
}

/// One end of a flow: its Pod, if known.
pub(super) fn end(pod: Option<&str>, addr: Option<SocketAddr>, with_addresses: bool) -> String {
    match (pod, addr) {
        (Some(pod), Some(addr)) if with_addresses => format!("{} ({addr})", safe(pod)),
        (Some(pod), _) => safe(pod).into_owned(),
        (None, Some(addr)) => addr.to_string(),
        (None, None) => "-".into(),
    }
}

/// The command that prints the page of a class.
pub(super) fn more(class: Class) -> String {
    format!("{} explain {class}", called::name())
}

/// The ends of a flow: its client, the address that it asked, its endpoint.
pub(super) fn ends(flow: &FlowRef) -> Vec<String> {
    let client = end(flow.client_pod.as_deref(), Some(flow.client), true);
    let endpoint = flow.endpoint.map(|endpoint| end(flow.endpoint_pod.as_deref(), Some(endpoint), true));
    [client].into_iter().chain(flow.vip.map(|vip| vip.to_string())).chain(endpoint).collect()
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

/// The detail of the root cause; for a healthy flow the duration of its connect.
fn what(verdict: &Verdict, connect_time: Option<Duration>) -> String {
    match connect_time {
        Some(time) if verdict.class == Class::Ok => format!("connected in {}", measured(time)),
        _ => detail(&verdict.root_cause),
    }
}

/// The text after `domain — `.
pub(super) fn detail(root_cause: &str) -> String {
    safe(Finding::detail_of(root_cause)).into_owned()
}

/// A line for each piece of evidence.
pub(super) fn evidence(verdict: &Verdict) -> impl Iterator<Item = String> {
    let pieces = verdict.evidence.iter().map(|piece| ("evidence", piece));
    let pieces = pieces.chain(verdict.against.iter().map(|piece| ("against", piece)));
    pieces.map(|(label, piece)| {
        let time = piece.time.map(|time| time.beside(verdict.time) + " ").unwrap_or_default();
        format!("{label}: {time}{}", safe(&piece.content))
    })
}

/// The changes around the flow's time, below a line that says what they are.
pub(super) fn changes(verdict: &Verdict) -> Vec<String> {
    if verdict.changes_around.is_empty() {
        return Vec::new();
    }
    let mut lines = vec!["around that time (a correlation, not a cause):".to_owned()];
    lines.extend(verdict.changes_around.iter().map(|change| {
        let apart = Duration::try_from_secs_f64(change.seconds_before.abs()).unwrap_or_default();
        let when = match change.after {
            Some(after) => {
                format!("between {} and {}", after.beside(verdict.time), change.time.beside(verdict.time))
            }
            None if change.seconds_before < 0.0 => {
                let from_end = verdict.time.since(change.time);
                if from_end < apart {
                    format!("{} before its end", length(from_end))
                } else {
                    format!("{} after it began", length(apart))
                }
            }
            None => format!("{} before", length(apart)),
        };
        format!("  {when}: {}", safe(&change.text))
    }));
    if verdict.changes_left_out > 0 {
        lines.push(format!("  and {}", count(verdict.changes_left_out, "more change")));
    }
    lines
}

/// The actions for now. In a record of an older viptrace they are one.
pub(super) fn steps(mitigation: &Mitigation) -> Cow<'_, [Step]> {
    let Mitigation { immediate, safety, steps, .. } = mitigation;
    if steps.is_empty() && !immediate.is_empty() {
        return vec![Step { text: immediate.clone(), safety: *safety }].into();
    }
    steps.into()
}

/// A line for each action for now, with its risk to running traffic; none if nothing is broken.
pub(super) fn actions(mitigation: &Mitigation, class: Class, paint: Paint) -> Vec<String> {
    let steps = steps(mitigation);
    let line = |(index, Step { text, safety }): (usize, &Step)| {
        let label = if index == 0 { paint.text(Style::Heading, DO) } else { " ".repeat(DO.len()) };
        format!("{label} [{safety}] {}", safe(&as_typed(text)))
    };
    let mut lines: Vec<_> = steps.iter().take(MAX_STEPS).enumerate().map(line).collect();
    let hidden = steps.len().saturating_sub(MAX_STEPS);
    if hidden > 0 {
        lines.push(format!("{:1$} and {hidden} more: {2}", "", DO.len(), more(class)));
    }
    lines
}

fn wide(verdict: &Verdict) -> Wide {
    let (mut below, mut actions) = (Vec::new(), Vec::new());
    // A healthy flow needs no evidence on the screen.
    if verdict.class != Class::Ok {
        below.extend(evidence(verdict));
        below
            .extend(verdict.unseen.iter().map(|unseen| format!("not observed: {}", safe(&as_typed(unseen)))));
        below.extend(changes(verdict));
        actions.extend(self::actions(&verdict.mitigation, verdict.class, Paint(false)));
        if !actions.is_empty() {
            actions.push(format!("more: {}", more(verdict.class)));
        }
    }
    Wide {
        protocol: safe(&verdict.flow.protocol).into_owned(),
        confidence: verdict.confidence.to_string(),
        below,
        actions,
    }
}

/// Everything that a verdict says, in lines without a length limit.
pub(super) fn whole(verdict: &Verdict) -> Vec<(Style, String)> {
    let flow = &verdict.flow;
    let service =
        verdict.service.as_ref().map_or_else(String::new, |it| safe(&format!(" · {it}")).into_owned());
    let title = match verdict.class {
        Class::Unknown | Class::Ok => verdict.class.title().to_owned(),
        class => format!("{} {}", tag(class), class.title()),
    };
    let node = flow.node.as_deref().map_or_else(String::new, |node| format!(" on {}", safe(node)));
    let plain = |text: String| (Style::Plain, text);
    let mut lines = vec![
        (style(verdict.class), title + &service),
        plain(detail(&verdict.root_cause)),
        plain(String::new()),
        plain(format!("{} {}", safe(&verdict.flow.protocol), ends(flow).join(" → "))),
        plain(format!(
            "observed{node} from {} to {}, domain {}, confidence {}",
            flow.started.beside(verdict.time),
            verdict.time.clock(),
            verdict.domain,
            verdict.confidence
        )),
        plain(String::new()),
    ];
    lines.extend(evidence(verdict).map(plain));
    lines.extend(
        verdict.unseen.iter().map(|unseen| plain(format!("not observed: {}", safe(&as_typed(unseen))))),
    );
    lines.extend(changes(verdict).into_iter().map(plain));
    lines.push(plain(String::new()));
    let actions = actions(&verdict.mitigation, verdict.class, Paint(false));
    lines.extend(actions.into_iter().map(|action| (Style::Heading, action)));
    if !verdict.mitigation.long_term.is_empty() {
        lines.push(plain(format!("later: {}", safe(&as_typed(&verdict.mitigation.long_term)))));
    }
    lines.push((Style::Faint, format!("more: {}", more(verdict.class))));
    lines
}

/// Identifies the flow of a verdict.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowKey(Text, SocketAddr, Option<SocketAddr>, Timestamp, Option<String>);

impl FlowKey {
    pub(super) fn new(flow: &FlowRef) -> Self {
        Self(flow.protocol.clone(), flow.client, flow.vip, flow.started, flow.node.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{report::fixture, verdict::NearbyChange};

    #[test]
    fn a_change_has_its_distance_from_the_nearer_end() {
        let mut verdict = fixture::fault();
        verdict.flow.started = Timestamp::from_unix_secs(1_000);
        verdict.time = Timestamp::from_unix_secs(9_000);
        let change = verdict.changes_around[0].clone();
        let at = |secs: u64, after: Option<u64>| {
            let seconds_before = 1_000.0 - f64::from(u32::try_from(secs).unwrap());
            let after = after.map(Timestamp::from_unix_secs);
            let text = "a\u{1b}[2J".into();
            NearbyChange {
                time: Timestamp::from_unix_secs(secs),
                after,
                seconds_before,
                text,
                ..change.clone()
            }
        };
        verdict.changes_around = vec![at(988, None), at(1_002, None), at(8_993, None), at(1_002, Some(990))];
        assert_eq!(
            changes(&verdict),
            [
                "around that time (a correlation, not a cause):",
                "  12.0 s before: a\\u{1b}[2J",
                "  2.0 s after it began: a\\u{1b}[2J",
                "  7.0 s before its end: a\\u{1b}[2J",
                "  between 00:16:30.000 and 00:16:42.000: a\\u{1b}[2J",
                "  and 3 more changes",
            ]
        );
        verdict.changes_around.clear();
        assert!(changes(&verdict).is_empty());
    }
}
