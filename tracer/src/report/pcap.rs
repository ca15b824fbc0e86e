//! Prints the connections of a capture: the verdict first, then where their packets were seen, what was repeated, and
//! what ended them.
//!
//! All text from the capture and the recordings is made safe for a terminal.

use std::fmt::Write as _;

use crate::{
    class::Class,
    pcap::{By, End, ExplainedFlow, PacketLine, ResetLine, SeenAs, Stage},
    report::{
        printer::{Paint, Style},
        row::actions,
    },
    text::{count, safe, times},
    time::Timestamp,
    verdict::Verdict,
};

/// The text of one connection; with `is_wide` each packet has a line, and the verdict its evidence.
pub fn text(flow: &ExplainedFlow, is_wide: bool, paint: Paint) -> String {
    let mut out = String::new();
    let mut line = |text: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "    {}", safe(text));
    };
    let (style, head) = match &flow.verdict {
        Some(verdict) => (style(verdict), label(verdict)),
        None => (Style::Faint, "NOT RECORDED".to_owned()),
    };
    match (&flow.verdict, &flow.not_recorded) {
        (Some(verdict), _) => {
            let service = verdict.service.as_ref().map(|service| format!("{service}: ")).unwrap_or_default();
            line(&format!("{service}{} (confidence {})", verdict.root_cause, verdict.confidence));
        }
        (None, Some(why)) => line(why),
        (None, None) => {}
    }
    let again = flow.sightings.saturating_sub(flow.packets);
    let mut packets = count(flow.packets, "packet");
    if let (Some(first), Some(last)) = (flow.first, flow.last)
        && flow.packets > 1
        && last.since(first).as_millis() > 0
    {
        let _ = write!(packets, " within {}", crate::text::length(last.since(first)));
    }
    if again > 0 {
        let _ = write!(packets, ", captured {}: a copy is no retransmit (N3)", times(flow.sightings));
    }
    line(&packets);
    if flow.seen_as.len() > 1 || again > 0 {
        flow.seen_as.iter().for_each(|seen| line(&seen_line(seen)));
    }
    if let Some(text) = unseen_endpoint(flow) {
        line(&text);
    }
    for text in tcp_lines(flow) {
        line(&text);
    }
    for icmp in &flow.icmp_packets {
        line(&format!("ICMP {} from {} at {}", icmp.meaning, icmp.from, clock(icmp.time)));
    }
    more(&mut line, flow.icmp_errors, flow.icmp_packets.len(), "further ICMP error");
    if is_wide {
        for packet in &flow.packet_list {
            for text in packet_lines(packet, flow.first) {
                line(&text);
            }
        }
        more(&mut line, flow.packets, flow.packet_list.len(), "further packet");
        for evidence in flow.verdict.iter().flat_map(|verdict| &verdict.evidence) {
            let time = evidence.time.map(|time| format!("{} ", time.clock())).unwrap_or_default();
            line(&format!("evidence: {time}{}", evidence.content));
        }
        if let Some(verdict) = &flow.verdict
            && verdict.has_failed()
        {
            for action in actions(&verdict.mitigation, verdict.class, Paint(false)) {
                line(&action);
            }
        }
    }
    let arrow = if flow.is_oriented { "->" } else { "<->" };
    format!(
        "{}  {}  {} {} {arrow} {}\n{out}",
        clock(flow.first),
        paint.text(style, &head),
        flow.protocol,
        flow.client,
        flow.server
    )
}

fn more(line: &mut impl FnMut(&str), all: u64, listed: usize, noun: &str) {
    if let Some(rest) = all.checked_sub(listed as u64).filter(|rest| *rest > 0) {
        line(&count(rest, noun));
    }
}

fn label(verdict: &Verdict) -> String {
    match verdict.class {
        Class::Ok => "OK".to_owned(),
        Class::Unknown => "UNKNOWN".to_owned(),
        class if class.is_fault() => format!("FAULT {class}"),
        class => format!("NORMAL {class}"),
    }
}

fn style(verdict: &Verdict) -> Style {
    match verdict.class {
        Class::Ok => Style::Good,
        Class::Unknown => Style::Unknown,
        class if class.is_fault() => Style::Fault,
        _ => Style::Plain,
    }
}

fn seen_line(seen: &SeenAs) -> String {
    let stage = match seen.stage {
        Stage::AsSent => "as sent",
        Stage::AfterDnat => "after DNAT",
        Stage::AfterMasquerade => "after masquerade",
    };
    let places = if seen.interfaces.is_empty() {
        String::new()
    } else {
        format!(" on {}", seen.interfaces.join(", "))
    };
    format!(
        "{:<16}  {} -> {}  {}{places}",
        stage,
        seen.client,
        seen.server,
        count(seen.sightings, "sighting")
    )
}

/// The endpoint that the verdict has, if the capture shows no packet after DNAT.
fn unseen_endpoint(flow: &ExplainedFlow) -> Option<String> {
    let found = &flow.verdict.as_ref()?.flow;
    let endpoint = found.endpoint.filter(|endpoint| {
        *endpoint != flow.server && flow.seen_as.iter().all(|seen| seen.server != *endpoint)
    })?;
    let pod = found.endpoint_pod.as_ref().map(|pod| format!(" (Pod {pod})")).unwrap_or_default();
    Some(format!("NAT chose {endpoint}{pod}; the capture has no packet after NAT"))
}

fn tcp_lines(flow: &ExplainedFlow) -> Vec<String> {
    let mut lines = Vec::new();
    if flow.syns > 0 {
        let mut text = format!("SYN at {}", clock(flow.syn_times.first().copied()));
        if let (Some(first), more @ 1..) = (flow.syn_times.first(), flow.syns - 1) {
            let later: Vec<String> = flow
                .syn_times
                .iter()
                .skip(1)
                .map(|time| format!("+{:.1} s", time.since(*first).as_secs_f64()))
                .collect();
            let _ = write!(text, ", repeated {} ({})", times(more), later.join(", "));
        }
        text.push_str(match flow.syn_acks {
            0 => ", no SYN-ACK in the capture",
            _ => ", answered",
        });
        lines.push(text);
    }
    let data = flow.retransmits.saturating_sub(flow.syns.saturating_sub(1));
    if data > 0 {
        lines.push(format!("{} besides the SYN", count(data, "retransmit")));
    }
    lines.extend(flow.reset_packets.iter().map(reset_line));
    if let Some(rest) = flow.resets.checked_sub(flow.reset_packets.len() as u64).filter(|rest| *rest > 0) {
        lines.push(count(rest, "further RST"));
    }
    lines
}

fn reset_line(reset: &ResetLine) -> String {
    let by = match reset.by {
        By::Client => format!("the client {}", reset.from),
        By::Endpoint => format!("the endpoint {}", reset.from),
        By::ServiceAddress => {
            format!("{}, the Service's address: the endpoint or a rule sent it", reset.from)
        }
        By::Server => format!("the server {}", reset.from),
    };
    format!("RST at {} from {by}", clock(reset.time))
}

fn packet_lines(packet: &PacketLine, first: Option<Timestamp>) -> Vec<String> {
    let from = match packet.from {
        End::Client => "client",
        End::Server => "server",
    };
    let again = if packet.is_retransmit { ", sent before" } else { "" };
    let at = packet.seen.first().and_then(|seen| seen.time);
    let at = match (at, first) {
        (Some(at), Some(first)) => format!("+{:.3} s", at.since(first).as_secs_f64()),
        _ => "no time".to_owned(),
    };
    let bytes = if packet.bytes > 0 { format!(", {}", count(packet.bytes, "byte")) } else { String::new() };
    let mut lines = vec![format!("{at}  {from}: {}{bytes}{again}", packet.what)];
    for seen in &packet.seen {
        lines.push(format!("    {}  {} -> {}  {}", clock(seen.time), seen.src, seen.dst, seen.interface));
    }
    if let Some(rest) = packet.sightings.checked_sub(packet.seen.len() as u64).filter(|rest| *rest > 0) {
        lines.push(format!("    {}", count(rest, "further sighting")));
    }
    lines
}

fn clock(time: Option<Timestamp>) -> String {
    time.map_or_else(|| "(no time)".to_owned(), Timestamp::clock)
}

/// The last line: how many connections have which verdict.
pub fn summary(flows: &[ExplainedFlow]) -> String {
    let mut counts: std::collections::BTreeMap<(u8, String), u64> = std::collections::BTreeMap::new();
    for flow in flows {
        let key = match &flow.verdict {
            Some(verdict) if verdict.is_fault() => (0, label(verdict)),
            Some(verdict) if verdict.class == Class::Unknown => (1, label(verdict)),
            Some(verdict) if verdict.class != Class::Ok => (2, label(verdict)),
            Some(verdict) => (3, label(verdict)),
            None => (4, "not recorded".to_owned()),
        };
        *counts.entry(key).or_default() += 1;
    }
    let parts: Vec<String> = counts.iter().map(|((_, name), number)| format!("{number} {name}")).collect();
    let connections = count(flows.len() as u64, "connection");
    if parts.is_empty() { connections } else { format!("{connections}: {}", parts.join(", ")) }
}
