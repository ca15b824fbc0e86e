//! Which rules can stop a packet that the kernel was observed to stop.
//!
//! Walks the rules for that packet and keeps the ways that end in a drop or a refusal. Judges no class.

use std::net::SocketAddr;

use super::{Reader, Scene, Step, StepKind, ends::From, translated, words};
use crate::{
    net::{Family, Tuple},
    rules::{
        End, Fate, NFTABLES_TABLE, chains,
        walk::{Note, Notes, Unknown, Walker},
    },
};

/// The most rules that are named as candidates.
const MAX_STOPS: usize = 4;

/// A packet that the kernel was observed to stop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crossing {
    /// From the client to the address that it connected to.
    pub(crate) orig: Tuple,
    /// The chosen endpoint, if the packet was translated.
    pub(crate) endpoint: Option<SocketAddr>,
    /// It is an answer of the endpoint.
    pub(crate) is_reply: bool,
    /// It was refused; otherwise it was dropped.
    pub(crate) is_refused: bool,
    /// `INPUT`, `FORWARD`, `OUTPUT`, if the kernel reported it.
    pub(crate) hook: Option<&'static str>,
}

/// A rule, or a policy, that stops the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// `rule 2 of cali-fw-x (iptables-nft filter, FORWARD)`.
    pub(crate) name: String,
    /// The rule, as its program lists it.
    pub(crate) text: String,
    /// Whether kube-proxy wrote it.
    pub(crate) is_kube_proxys: bool,
    /// The reason for which a rule on the way to it cannot be judged; `None` if the packet meets it for certain.
    pub(crate) depends_on: Option<String>,
}

/// The rules that can stop a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stops {
    /// Those that it meets for certain come first.
    pub(crate) by: Vec<Stop>,
    /// Candidates that are left out of `by`.
    pub(crate) more: usize,
    /// A rule hands the packet to something that cannot be judged, or the walk was given up.
    pub(crate) is_open: bool,
    /// A rule that hands it to a program for its verdict (`NFQUEUE`, `queue`), which may have dropped it.
    pub(crate) queue: Option<String>,
}

impl Stops {
    /// Whether there are such rules, and none of them is kube-proxy's.
    pub(crate) fn is_foreign(&self) -> bool {
        !self.by.is_empty() && !self.by.iter().any(|stop| stop.is_kube_proxys)
    }

    /// The only rule that can have stopped it.
    pub(crate) fn only(&self) -> Option<&Stop> {
        match self.by.as_slice() {
            [one] if one.depends_on.is_none() && !self.is_open => Some(one),
            _ => None,
        }
    }
}

impl Scene<'_> {
    /// The rules that stop this packet; `None` if there is no such packet.
    pub(crate) fn stops(&self, crossing: &Crossing) -> Option<Stops> {
        let Tuple { protocol, src, dst } = crossing.orig;
        let (src, dst) = (src.socket(), dst.socket());
        let family = Family::of(dst.ip());
        let mut packet = self.source(&From::Address(src.ip()), dst.ip(), family).ok()?;
        let fate = if crossing.is_reply {
            let walker = Walker::whole(self.rules, family);
            let local = packet.origin == crate::rules::Origin::Node;
            self.fate_of_reply(&walker, crossing.endpoint?, src, protocol, local)
        } else {
            packet.destination = dst;
            packet.protocol = protocol;
            packet.local = dst.ip().is_loopback() || self.is_own(dst.ip());
            self.fate(&packet, src.port())
        };
        Some(self.stops_on(crossing, &fate))
    }

    fn stops_on(&self, crossing: &Crossing, fate: &Fate<Notes>) -> Stops {
        let reader = Reader { rules: self.rules };
        let end = if crossing.is_refused { End::Refused } else { End::Dropped };
        let mut stops = Stops { is_open: fate.cut, ..Stops::default() };
        for branch in &fate.branches {
            let notes = branch.seen.to_vec();
            let is_its_way = crossing.is_reply || translated(self.rules, &notes) == crossing.endpoint;
            if !is_its_way {
                continue;
            }
            let assumed = branch.seen.assumed();
            stops.queue = stops.queue.take().or_else(|| queue(&reader, &notes));
            stops.is_open |= branch.seen.is_cut() || (assumed.is_none() && branch.seen.is_lost());
            if branch.end != end {
                continue;
            }
            let Some(last) = reader.steps(&notes).pop() else { continue };
            if crossing.hook.is_some_and(|hook| hook != last.hook) {
                continue;
            }
            let stop = Stop {
                name: words::decider(&last),
                text: last.text.clone(),
                is_kube_proxys: is_kube_proxys(&last),
                depends_on: assumed.map(|place| depends_on(&reader, &notes, reader.why(place))),
            };
            // A certain way to a rule makes the conditions of another way to it irrelevant.
            match stops.by.iter_mut().find(|known| known.name == stop.name) {
                Some(known) if stop.depends_on.is_none() => known.depends_on = None,
                Some(_) => {}
                None => stops.by.push(stop),
            }
        }
        stops.by.sort_by_key(|stop| stop.depends_on.is_some());
        // A packet that is dropped for certain does not need a rule that may drop it.
        if stops.by.first().is_some_and(|first| first.depends_on.is_none()) {
            stops.by.retain(|stop| stop.depends_on.is_none());
        }
        stops.more = stops.by.len().saturating_sub(MAX_STOPS);
        stops.by.truncate(MAX_STOPS);
        stops
    }
}

/// The rule that hands the packet to a program, if it leaves the rules there.
fn queue(reader: &Reader<'_>, notes: &[Note]) -> Option<String> {
    let is_queue = |note: &Note| match note {
        Note::Lost { why: Unknown::Target(target), .. } => {
            let name = target.split_whitespace().next().unwrap_or_default();
            ["QUEUE", "NFQUEUE", "queue"].contains(&name)
        }
        _ => false,
    };
    let position = notes.iter().position(is_queue)?;
    reader.rule_at(notes, position).map(|rule| words::decider(&rule))
}

/// Why a rule on the way is only assumed to match, with the rule.
fn depends_on(reader: &Reader<'_>, notes: &[Note], why: String) -> String {
    let position = notes.iter().position(|note| matches!(note, Note::Assumes { .. }));
    match position.and_then(|position| reader.rule_at(notes, position)) {
        Some(rule) => format!("{} matches, and {why}", words::decider(&rule)),
        None => why,
    }
}

pub(super) fn is_kube_proxys(step: &Step) -> bool {
    let chain = step.chain.as_deref().unwrap_or_default();
    let table = step.table.as_deref().unwrap_or_default();
    step.kind == StepKind::Ipvs
        || chains::is_kube_proxys(chain)
        || table.strip_prefix("nftables ") == Some(NFTABLES_TABLE)
}
