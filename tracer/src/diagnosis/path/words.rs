//! The answer in words: one sentence that an operator would use on the phone.

use super::{Condition, Outcome, Packet, Step, StepKind, Way};
use crate::{
    rules::{End, Origin, walk::Sticky},
    text::count,
};

impl Packet {
    /// The sender's place, in words.
    pub(super) fn place(&self) -> String {
        match (self.origin, &self.other_node) {
            (Origin::Node, _) => "this node".to_owned(),
            (Origin::Pod, _) if self.is_presumed => "a Pod's address, taken as one of this node".to_owned(),
            (Origin::Pod, _) => "a Pod of this node".to_owned(),
            (Origin::Outside, Some(node)) => format!("a Pod on {node}"),
            (Origin::Outside, None) => "outside".to_owned(),
        }
    }
}

/// The result of all ways.
pub(super) struct Summary {
    pub(super) outcome: Outcome,
    pub(super) sentence: String,
}

impl Summary {
    pub(super) fn of(
        packet: &Packet,
        trunk: &[Step],
        ways: &[Way],
        conditions: &[Condition],
        is_incomplete: bool,
    ) -> Self {
        // By outcome, in the order of the ways.
        let mut groups: Vec<(Outcome, Vec<&Way>)> = Vec::new();
        for way in ways {
            match groups.iter_mut().find(|(outcome, _)| *outcome == way.result) {
                Some((_, ways)) => ways.push(way),
                None => groups.push((way.result, vec![way])),
            }
        }
        let outcome = match groups.as_slice() {
            _ if is_incomplete => Outcome::Unknown,
            [(one, _)] => *one,
            [] => Outcome::Unknown,
            _ => Outcome::Mixed,
        };
        let single = groups.len() == 1;
        let parts: Vec<String> = groups
            .iter()
            .map(|(outcome, ways)| {
                let words = group(packet, *outcome, trunk, ways);
                let share: f64 = ways.iter().map(|way| way.share).sum();
                if single { words } else { format!("{}: {words}", percent(share)) }
            })
            .collect();
        let mut sentence = if parts.is_empty() { "no way was found".to_owned() } else { parts.join("; ") };
        if is_incomplete {
            sentence += "; the walk is incomplete";
        }
        if !conditions.is_empty() {
            sentence.push_str("; depends on ");
            sentence.push_str(&count(conditions.len(), "condition"));
        }
        Self { outcome, sentence }
    }
}

/// `33 %`, `0.1 %`.
pub(crate) fn percent(share: f64) -> String {
    let share = share * 100.0;
    if share >= 10.0 || (share - share.round()).abs() < 0.01 {
        format!("{share:.0} %")
    } else {
        format!("{share:.1} %")
    }
}

fn group(packet: &Packet, outcome: Outcome, trunk: &[Step], ways: &[&Way]) -> String {
    let last = || ways.first().and_then(|way| way.steps.last()).or(trunk.last());
    let decided = |verb: &str| match last() {
        Some(step) => format!("{verb} by {}", decider(step)),
        None => verb.to_owned(),
    };
    match outcome {
        Outcome::Refused => decided("refused"),
        Outcome::Dropped => decided("dropped"),
        Outcome::Unknown | Outcome::Mixed | Outcome::ReplyLost => match last() {
            Some(step) => {
                format!("not known: {}", step.effect.as_deref().unwrap_or("a rule cannot be judged"))
            }
            None => "not known".to_owned(),
        },
        Outcome::NotTranslated | Outcome::Passes => {
            let to = packet.destination;
            let why = match (&packet.service, &packet.remark) {
                (Some(service), _) => format!("no rule sends {to} to an endpoint of {service}"),
                (None, Some(remark)) => remark.clone(),
                (None, None) => format!("no rule translates {to}"),
            };
            if packet.local {
                format!("not translated: {why}; it reaches this node itself")
            } else {
                format!("not translated: {why}; it goes {}", onward(trunk, ways))
            }
        }
        Outcome::Reaches => reaches(packet, ways),
    }
}

/// Where a packet that nobody translated goes.
fn onward(trunk: &[Step], ways: &[&Way]) -> String {
    let own = ways.first().map(|way| way.steps.as_slice()).unwrap_or_default();
    let routed = trunk.iter().chain(own).find(|step| step.kind == StepKind::Routing);
    let where_to =
        routed.map(|step| step.text.as_str()).filter(|text| text.starts_with("out of")).unwrap_or("on");
    let masqueraded = ways.iter().any(|way| way.masqueraded);
    let how = if masqueraded { "with an address of this node as its source" } else { "unchanged" };
    format!("{where_to} {how}")
}

fn reaches(packet: &Packet, ways: &[&Way]) -> String {
    let mut endpoints: Vec<&str> = ways.iter().filter_map(|way| way.endpoint.as_deref()).collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    let what = match (endpoints.as_slice(), ways.first()) {
        ([only], Some(way)) => match &way.pod {
            Some(pod) => format!("reaches {only} (Pod {pod})"),
            None => format!("reaches {only}"),
        },
        _ => format!("reaches one of {}", count(endpoints.len(), "endpoint")),
    };
    let masqueraded = ways.iter().filter(|way| way.masqueraded).count();
    let seen = if masqueraded == ways.len() {
        "the endpoint sees an address of this node as the client"
    } else if masqueraded > 0 {
        "some endpoints see an address of this node as the client"
    } else if packet.origin == Origin::Node {
        return what;
    } else {
        "the endpoint sees the client's address"
    };
    format!("{what}; {seen}")
}

/// The rule that decides, with its writer's comment.
pub(super) fn decider(step: &Step) -> String {
    let chain = step.chain.as_deref().unwrap_or_default();
    let table = step.table.as_deref().unwrap_or_default();
    let hook = &step.hook;
    match (step.kind, step.rule) {
        (StepKind::Policy, _) => format!("the policy of {chain} ({table}, {hook})"),
        (StepKind::Ipvs, _) => format!("IPVS: {}", step.text),
        (_, Some(rule)) => {
            let comment = step.comment.as_deref().map(|text| format!(": \"{text}\"")).unwrap_or_default();
            format!("rule {rule} of {chain} ({table}, {hook}){comment}")
        }
        (_, None) => step.text.clone(),
    }
}

/// The ends of a packet if a rule matches: each with whether it is masqueraded, and whether its way is not known.
pub(super) fn then(ends: &[(End, bool, bool)]) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut endpoints: Vec<_> = ends
        .iter()
        .filter_map(|(end, ..)| match end {
            End::Endpoint(endpoint) => Some(*endpoint),
            _ => None,
        })
        .collect();
    endpoints.sort_unstable();
    endpoints.dedup();
    for (end, masquerade, is_lost) in ends {
        let seen = if *masquerade { "an address of this node as the client" } else { "the client's address" };
        let part = match (end, endpoints.as_slice()) {
            _ if *is_lost => "its way is not known".to_owned(),
            (End::Endpoint(_), [only]) => format!("it reaches {only}, which sees {seen}"),
            (End::Endpoint(_), several) => {
                format!("it reaches one of {}, which sees {seen}", count(several.len(), "endpoint"))
            }
            (End::Refused, _) => "it is refused".to_owned(),
            (End::Dropped, _) => "it is dropped".to_owned(),
            (End::Passed, _) if *masquerade => {
                "it goes on with an address of this node as its source".to_owned()
            }
            (End::Passed, _) => "it goes on unchanged".to_owned(),
        };
        if !parts.contains(&part) {
            parts.push(part);
        }
    }
    parts.join(", or ")
}

/// The facts that the rules of this node alone do not show.
pub(super) fn notes(packet: &Packet) -> Vec<String> {
    let elsewhere = packet.other_node.as_ref().map(|node| {
        format!("{node} translates the packets of its own Pods: this is the way of one that arrives here untranslated")
    });
    elsewhere.into_iter().collect()
}

/// How clients return to their endpoints.
pub(super) fn affinity(lists: &[Sticky]) -> Option<String> {
    let endpoints = lists.iter().filter(|sticky| matches!(sticky.end, End::Endpoint(_))).count();
    if endpoints == 0 {
        return None;
    }
    let seconds = lists.iter().find_map(|sticky| sticky.seconds).filter(|seconds| *seconds != u32::MAX);
    let since = seconds.map(|seconds| format!(" within {seconds} s")).unwrap_or_default();
    Some(format!(
        "a client that an endpoint served{since} returns to it; the shares are those of a new client"
    ))
}
