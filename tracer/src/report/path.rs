//! Prints the way of a packet: the answer first, then one line for each rule, the endpoints with their shares, the
//! reply's own way, and the conditions of the answer.
//!
//! All text from rules and objects is made safe for a terminal.

use std::{collections::BTreeSet, fmt::Write as _, io};

use crate::{
    diagnosis::path::{Journey, Outcome, Step, StepKind, Way},
    report::{
        json,
        printer::{Paint, Style},
    },
    text::{count, safe},
};

/// The most ways that a text lists; a record has them all.
const MAX_WAYS: usize = 24;

/// One JSON object in one line.
pub fn record(journey: &Journey) -> io::Result<String> {
    json::line(journey)
}

/// The text for a person.
pub fn text(journey: &Journey, paint: Paint) -> String {
    let mut out = String::new();
    let pod = journey.from.pod.as_ref().map(|pod| format!("Pod {pod} ")).unwrap_or_default();
    let service = journey.to.service.as_ref().map(|service| format!(" {service}")).unwrap_or_default();
    let line = format!(
        "{pod}{} ({}) -> {}/{}{service}",
        journey.from.address, journey.from.place, journey.to.address, journey.to.protocol
    );
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", safe(&line));
    let style = match journey.result {
        Outcome::Reaches | Outcome::Passes if journey.depends_on.is_empty() => Style::Good,
        Outcome::Reaches | Outcome::Passes | Outcome::Unknown => Style::Unknown,
        _ => Style::Fault,
    };
    let _ = writeln!(out, "{}\n", paint.text(style, &safe(&journey.verdict)));
    let mut writer = Writer { out, paint, heading: None };
    writer.steps(&journey.steps);
    writer.ways(&journey.ways);
    let Writer { mut out, .. } = writer;
    let mut part = |heading: &str, lines: &[String]| {
        for (number, line) in lines.iter().enumerate() {
            let blank = if number == 0 { "\n" } else { "" };
            let _ = writeln!(out, "{blank}{} {}", paint.text(Style::Heading, heading), safe(line));
        }
    };
    part("affinity:", journey.affinity.as_slice());
    part("reply:", &journey.reply);
    let conditions: Vec<String> = journey
        .depends_on
        .iter()
        .map(|condition| {
            let Step { hook, table, text, .. } = &condition.rule;
            let table = table.as_deref().unwrap_or_default();
            format!(
                "{hook} {table} {} {text}: {}. If it matches, {}",
                name(&condition.rule),
                condition.why,
                condition.then
            )
        })
        .collect();
    part("depends on:", &conditions);
    part("note:", &journey.notes);
    part("incomplete:", &journey.unjudged);
    let unread = if journey.unread.is_empty() { Vec::new() } else { vec![journey.unread.join("; ")] };
    part("not read:", &unread);
    out
}

/// `KUBE-SERVICES #7`
fn name(step: &Step) -> String {
    let chain = step.chain.as_deref().unwrap_or_default();
    match (step.rule, step.kind) {
        (Some(rule), _) => format!("{chain} #{rule}"),
        (None, StepKind::Ipvs) => "IPVS".to_owned(),
        (None, _) => chain.to_owned(),
    }
}

struct Writer {
    out: String,
    paint: Paint,
    /// The hook and table of the last line.
    heading: Option<(String, String)>,
}

impl Writer {
    fn steps(&mut self, steps: &[Step]) {
        // Names of one table are aligned.
        let width = steps.iter().map(|step| name(step).chars().count()).max().unwrap_or(0).min(32);
        for step in steps {
            self.step(step, width);
        }
    }

    fn step(&mut self, step: &Step, width: usize) {
        if step.kind == StepKind::Routing {
            self.heading = None;
            let _ = writeln!(self.out, "{} {}", self.paint.text(Style::Heading, "routing"), safe(&step.text));
            return;
        }
        if step.kind == StepKind::Ipvs {
            self.heading = None;
            let effect = step.effect.as_deref().unwrap_or_default();
            let line = format!("{}  => {effect}", step.text);
            let _ = writeln!(self.out, "{} {}", self.paint.text(Style::Heading, "IPVS"), safe(&line));
            return;
        }
        let heading = (step.hook.clone(), step.table.clone().unwrap_or_default());
        if self.heading.as_ref() != Some(&heading) {
            let line = format!("{} {}", heading.0, heading.1);
            let _ = writeln!(self.out, "{}", self.paint.text(Style::Heading, &safe(&line)));
            self.heading = Some(heading);
        }
        let mut line = format!("  {:width$}  {}", name(step), step.text);
        if let Some(effect) = &step.effect {
            let _ = write!(line, "  => {effect}");
        }
        let line = safe(&line).into_owned();
        let comment = step.comment.as_deref().map(|text| format!("  # {}", safe(text))).unwrap_or_default();
        let _ = writeln!(self.out, "{line}{}", self.paint.text(Style::Faint, &comment));
    }

    /// Several ways: one line for each, then the steps after it, once for all ways that continue alike.
    fn ways(&mut self, ways: &[Way]) {
        if let [way] = ways {
            self.steps(&way.steps);
            return;
        }
        if ways.is_empty() {
            return;
        }
        let _ = writeln!(self.out, "{}", self.paint.text(Style::Heading, &count(ways.len(), "way")));
        let differ = ways.iter().any(|way| way.masqueraded != ways.iter().all(|way| way.masqueraded));
        let end = |way: &Way| {
            let masquerade = if differ && way.masqueraded { ", masqueraded" } else { "" };
            format!("{}{masquerade}", end(way))
        };
        let width = ways.iter().take(MAX_WAYS).map(|way| end(way).chars().count()).max().unwrap_or(0);
        for way in ways.iter().take(MAX_WAYS) {
            let (own, _) = split(way);
            let names: Vec<String> = own.iter().map(name).filter(|name| !name.is_empty()).collect();
            let effects: BTreeSet<&str> = own
                .iter()
                .filter(|step| step.rule.is_some())
                .filter_map(|step| step.effect.as_deref())
                .filter(|effect| effect.starts_with("the client is added"))
                .collect();
            let remembers = if effects.is_empty() { "" } else { "  (remembered)" };
            let line = format!(
                "  {:>6}  {:width$}  {}{remembers}",
                crate::diagnosis::path::percent(way.share),
                end(way),
                names.join(", ")
            );
            let _ = writeln!(self.out, "{}", safe(line.trim_end()));
        }
        if ways.len() > MAX_WAYS {
            let more = count(ways.len() - MAX_WAYS, "further way");
            let _ = writeln!(self.out, "  and {more}: -o json lists them");
        }
        self.heading = None;
        let mut tails: Vec<(&[Step], Vec<&Way>)> = Vec::new();
        for way in ways {
            let (_, tail) = split(way);
            let rest = tail.split_first().map_or(tail, |(_, rest)| rest);
            match tails.iter_mut().find(|(known, _)| *known == rest) {
                Some((_, ways)) => ways.push(way),
                None => tails.push((rest, vec![way])),
            }
        }
        let several = tails.len() > 1;
        for (rest, ways) in tails.into_iter().take(MAX_WAYS) {
            self.routings(&ways, several);
            self.steps(rest);
        }
    }

    /// Where ways go that the same rules follow: one line, with the endpoints if there are several.
    fn routings(&mut self, ways: &[&Way], several: bool) {
        let mut found: Vec<(&str, Vec<&Way>)> = Vec::new();
        for way in ways {
            let Some(step) = split(way).1.first() else { continue };
            match found.iter_mut().find(|(text, _)| *text == step.text) {
                Some((_, ways)) => ways.push(way),
                None => found.push((&step.text, vec![way])),
            }
        }
        if found.is_empty() {
            return;
        }
        let name_ends = several || found.len() > 1;
        let one = |(text, ways): &(&str, Vec<&Way>)| {
            let first = ways.first().and_then(|way| way.endpoint.as_deref()).unwrap_or("no endpoint");
            let others = ways.len() - 1;
            let and = if others > 0 { format!(" and {}", count(others, "other")) } else { String::new() };
            if name_ends { format!("{text} ({first}{and})") } else { (*text).to_owned() }
        };
        let line = found.iter().map(one).collect::<Vec<_>>().join("; ");
        self.heading = None;
        let _ = writeln!(self.out, "{} {}", self.paint.text(Style::Heading, "routing"), safe(&line));
    }
}

/// The way's own steps up to the routing decision, and those from it on.
fn split(way: &Way) -> (&[Step], &[Step]) {
    let at = way.steps.iter().position(|step| step.kind == StepKind::Routing).unwrap_or(way.steps.len());
    way.steps.split_at(at)
}

/// `10.244.1.11:8080 shop/cart-1 on worker-1`, and the fate of a packet that does not reach it.
fn end(way: &Way) -> String {
    let fate = match way.result {
        Outcome::Refused => "refused",
        Outcome::Dropped => "dropped",
        Outcome::Unknown => "not known",
        Outcome::Reaches => "",
        _ => "not translated",
    };
    let Some(endpoint) = &way.endpoint else { return fate.to_owned() };
    let pod = way.pod.as_ref().map(|pod| format!(" {pod}")).unwrap_or_default();
    let node = way.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let fate = if fate.is_empty() { String::new() } else { format!(", {fate}") };
    format!("{endpoint}{pod}{node}{fate}")
}
