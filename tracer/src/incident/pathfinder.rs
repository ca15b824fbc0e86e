//! The ways of flows in a running trace.
//!
//! Owns which sightings are kept until the flow is judged, when its way is complete, and what is left out: both are
//! bounded. A way has the steps and the gaps that a replay of the same trace shows. Judges nothing.

use std::{
    collections::{BTreeSet, VecDeque},
    net::SocketAddr,
};

use super::{
    absence::Post,
    trail::{self, AROUND, Addresses, Pair, Trail},
};
use crate::{
    net::Tuple,
    recording::Header,
    session::{Judged, Judgements, Pipeline},
    sighting::{Conntrack, Fact, Sighting},
    text::count,
    time::Timestamp,
    verdict::Verdict,
};

/// The most sightings kept, some hundred bytes each. The oldest are forgotten beyond it.
const MAX_KEPT: usize = 4096;
/// The most pairs of addresses that the client's flows are known under.
const MAX_LEARNED: usize = 1024;
/// The most flows whose way is not complete yet; further ones have none.
const MAX_WAITING: usize = 8;
/// The most flows that are remembered after their way was returned.
const MAX_SHOWN: usize = 1024;

/// Follows the flows of one client's address and port.
#[derive(Debug)]
pub struct Pathfinder {
    client: SocketAddr,
    to: Option<SocketAddr>,
    /// Names the attached hooks.
    header: Option<Header>,
    /// The other addresses that the flows' entries have.
    learned: BTreeSet<Pair>,
    kept: VecDeque<Sighting>,
    /// The sightings forgotten so far, and the time of the last of them.
    forgotten: u64,
    forgotten_until: Timestamp,
    waiting: Vec<Waiting>,
    shown: BTreeSet<Flow>,
    left_out: u64,
}

/// A flow by its beginning on the clock of the trace, and the Service's address.
type Flow = (Timestamp, Option<SocketAddr>);

/// A way that lacks its sightings.
#[derive(Debug)]
struct Waiting {
    flow: Flow,
    trail: Trail,
    /// When the last of its sightings has been observed, on the clock of the trace.
    due: Timestamp,
}

/// A result about a wanted flow.
#[derive(Clone, Debug)]
pub enum Found {
    /// The way of a flow; once for each.
    Way(Box<Trail>),
    /// A flow whose way was returned has another verdict.
    Changed(Box<Verdict>),
}

impl Found {
    pub fn verdict(&self) -> &Verdict {
        match self {
            Self::Way(trail) => &trail.verdict,
            Self::Changed(verdict) => verdict,
        }
    }
}

impl Pathfinder {
    /// Of the flows of this client to `to`, the Service's address or the endpoint's; `None` for any.
    pub fn new(client: SocketAddr, to: Option<SocketAddr>) -> Self {
        Self {
            client,
            to,
            header: None,
            learned: BTreeSet::new(),
            kept: VecDeque::new(),
            forgotten: 0,
            forgotten_until: Timestamp::MIN,
            waiting: Vec::new(),
            shown: BTreeSet::new(),
            left_out: 0,
        }
    }

    /// The description of the trace, with the hooks that are attached now.
    pub fn hooks_are(&mut self, header: Header) {
        self.header = Some(header);
    }

    /// Keeps the sightings that may belong to a wanted flow. Call it before these sightings are judged.
    pub fn observe<'s>(&mut self, sightings: impl IntoIterator<Item = &'s Sighting>) {
        for sighting in sightings {
            if sighting.tuples().any(|tuple| self.knows(&tuple)) {
                self.learn(&sighting.fact);
                self.keep(sighting);
            }
        }
    }

    /// Takes the judgements of the time `now`, by which all earlier events were observed. Returns what is complete then.
    pub fn judged(&mut self, judgements: &Judgements, pipeline: &Pipeline, now: Timestamp) -> Vec<Found> {
        let mut found = Vec::new();
        for Judged { verdict, before, .. } in &judgements.judged {
            if self.wants(verdict) {
                found.extend(self.wanted(verdict, before.is_some(), pipeline, now));
            }
        }
        let (due, waiting) =
            std::mem::take(&mut self.waiting).into_iter().partition(|waiting| waiting.due <= now);
        self.waiting = waiting;
        found.extend(self.complete(due, pipeline));
        found
    }

    /// At the end of the trace, the ways that lack sightings of a time after it.
    pub fn finish(&mut self, pipeline: &Pipeline) -> Vec<Found> {
        let rest = std::mem::take(&mut self.waiting);
        self.complete(rest, pipeline)
    }

    /// When the next way is complete.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }

    /// The flows without a way, because too many ended at the same time.
    pub const fn left_out(&self) -> u64 {
        self.left_out
    }

    fn wants(&self, verdict: &Verdict) -> bool {
        let flow = &verdict.flow;
        flow.client == self.client
            && self.to.is_none_or(|to| [flow.vip, flow.endpoint].into_iter().flatten().any(|it| it == to))
    }

    fn wanted(
        &mut self,
        verdict: &Verdict,
        is_again: bool,
        pipeline: &Pipeline,
        now: Timestamp,
    ) -> Option<Found> {
        let flow = (verdict.flow.started, verdict.flow.vip);
        if is_again {
            if self.shown.contains(&flow) {
                return Some(Found::Changed(Box::new(verdict.clone())));
            }
            self.waiting.retain(|waiting| waiting.flow != flow);
        }
        if self.waiting.len() >= MAX_WAITING {
            self.left_out += 1;
            return None;
        }
        let due = pipeline.own_time(verdict.time).saturating_add(AROUND).max(now);
        self.waiting.push(Waiting { flow, trail: Trail::live(pipeline, verdict.clone()), due });
        None
    }

    fn complete(&mut self, waiting: Vec<Waiting>, pipeline: &Pipeline) -> Vec<Found> {
        let mut found = Vec::new();
        for Waiting { flow, mut trail, .. } in waiting {
            self.add_steps(&mut trail, pipeline);
            if self.shown.len() >= MAX_SHOWN {
                self.shown.pop_first();
            }
            self.shown.insert(flow);
            found.push(Found::Way(Box::new(trail)));
        }
        found
    }

    fn add_steps(&self, trail: &mut Trail, pipeline: &Pipeline) {
        let (from, to) = trail::span(&trail.verdict);
        let mut addresses = Addresses::of(&trail.verdict);
        let node = trail::node_name(pipeline);
        let mut steps = Vec::new();
        for sighting in &self.kept {
            let time = pipeline.unix_then(sighting.time);
            if time < from || time > to {
                continue;
            }
            let Some(mut step) = trail::step(sighting, &mut addresses) else { continue };
            step.time = time;
            node.clone_into(&mut step.node);
            steps.push(step);
        }
        (trail.steps, trail.more) = trail::in_order(steps);
        trail.gaps.splice(0..0, trail::beyond(trail));
        if let Some(header) = &self.header {
            let mut own = trail.verdict.clone();
            own.map_times(|time| pipeline.own_time(time));
            let post = Post { node, header, pipeline };
            trail.gaps.extend(post.gaps(&own, &trail.steps, None));
        }
        if self.forgotten > 0 && pipeline.unix_then(self.forgotten_until) >= from {
            trail.gaps.push(format!(
                "{} of this client, up to {}: only the last {MAX_KEPT} are kept",
                count(self.forgotten, "earlier sighting"),
                self.forgotten_until.to_the_millisecond()
            ));
        }
    }

    fn knows(&self, tuple: &Tuple) -> bool {
        let client = self.client.into();
        tuple.src == client || tuple.dst == client || self.learned.contains(&trail::key(tuple))
    }

    /// Learns the addresses after NAT.
    fn learn(&mut self, fact: &Fact) {
        let entry = match fact {
            Fact::Conntrack(fact) => Some(fact.ct),
            Fact::Packet(fact) => fact.ct,
            Fact::Ipvs(fact) => {
                self.add(&Tuple { dst: fact.destination.into(), ..fact.tuple });
                None
            }
            Fact::Socket(_) | Fact::TableFull { .. } => None,
        };
        if let Some(Conntrack { orig, reply, .. }) = entry
            && (self.knows(&orig) || self.knows(&reply))
        {
            self.add(&reply);
            // Between DNAT and masquerading.
            self.add(&Tuple { dst: reply.src, ..orig });
        }
    }

    fn add(&mut self, tuple: &Tuple) {
        if self.learned.len() < MAX_LEARNED {
            self.learned.insert(trail::key(tuple));
        }
    }

    fn keep(&mut self, sighting: &Sighting) {
        if self.kept.len() >= MAX_KEPT
            && let Some(oldest) = self.kept.pop_front()
        {
            self.forgotten += 1;
            self.forgotten_until = self.forgotten_until.max(oldest.time);
        }
        self.kept.push_back(sighting.clone());
    }
}
