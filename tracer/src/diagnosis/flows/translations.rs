//! The Services that this node recently translated, and those that it did not: one Service without a rule has its own
//! fault, several at once indicate kube-proxy.
//!
//! Owns a bounded memory across flows. The trace records each flow here before it judges the flow.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use foldhash::HashMap;

use super::{Surroundings, bounded, health_checks::Visitors, probes::Rhythms};
use crate::{
    cluster::{Address, Via, Vip},
    diagnosis::left_out::LeftOut,
    flow::{Answer, Decision, Flow},
    net::Protocol,
    time::Timestamp,
};

/// The maximum number of Service addresses kept; beyond it all old ones are removed at once.
const MAX_SERVICES: usize = 4096;
/// The length of "recently": two of kube-proxy's sync periods (30 s).
const RECENTLY: Duration = Duration::from_mins(1);
/// So many answered flows show that a Service answers datagrams.
const MIN_ANSWERS: u32 = 3;

/// Other flows whose evidence a verdict rests on. A verdict on less than all of them can differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OtherFlows {
    /// To this address.
    To(SocketAddr),
    /// From this client to this address.
    Between(IpAddr, SocketAddr),
    /// Flows to any Service.
    Any,
}

#[derive(Debug, Default)]
pub struct Translations {
    untranslated: HashMap<SocketAddr, Timestamp>,
    /// The first and the last translation.
    first_translated: Option<Timestamp>,
    last_translated: Option<Timestamp>,
    /// When each address was last translated.
    translated: HashMap<SocketAddr, Timestamp>,
    /// How Services answered datagrams.
    answering: HashMap<(SocketAddr, Protocol), Answers>,
    /// When a cluster IP with endpoints was last answered without a translation here.
    served_elsewhere: Option<Timestamp>,
    visitors: Visitors,
    rhythms: Rhythms,
    /// The other flows that verdicts used, if a caller wants to know.
    uses: Option<Mutex<BTreeSet<OtherFlows>>>,
}

/// How many of a Service's datagram flows were answered, and how many were not although nothing was wrong.
#[derive(Clone, Copy, Debug, Default)]
struct Answers {
    seen: u32,
    missing: u32,
}

impl Answers {
    /// Whether an answer is the rule. A single one proves little: a syslog or statsd server answers a stray question and
    /// nothing else.
    const fn are_the_rule(self) -> bool {
        self.seen >= MIN_ANSWERS && self.seen / 4 >= self.missing
    }
}

impl Translations {
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes from now on what verdicts use.
    pub fn note_uses(&mut self) {
        self.uses.get_or_insert_default();
    }

    /// The other flows that verdicts used since the last call.
    pub fn take_uses(&mut self) -> BTreeSet<OtherFlows> {
        let uses = self.uses.as_mut().map(|uses| uses.get_mut().unwrap_or_else(PoisonError::into_inner));
        uses.map(std::mem::take).unwrap_or_default()
    }

    fn uses(&self, flows: OtherFlows) {
        if let Some(uses) = &self.uses {
            let mut uses = uses.lock().unwrap_or_else(PoisonError::into_inner);
            let has_room = uses.len() < MAX_SERVICES;
            uses.insert(if has_room { flows } else { OtherFlows::Any });
        }
    }

    /// The connections from this client to this address, if they can matter.
    pub(super) fn visitors(&self, of: &Flow, can_matter: impl FnOnce() -> bool) -> &Visitors {
        if self.uses.is_some() && can_matter() {
            self.uses(OtherFlows::Between(of.orig.src.ip(), of.orig.dst.socket()));
        }
        &self.visitors
    }

    /// The connections to this address.
    pub(super) fn rhythms(&self, to: SocketAddr) -> &Rhythms {
        self.uses(OtherFlows::To(to));
        &self.rhythms
    }

    /// Records the client's rhythm, and NAT's decision for this flow if the client connected to a cluster IP.
    pub fn note(&mut self, flow: &Flow, around: &Surroundings<'_>) {
        let asked = around.address(flow, flow.first_seen);
        self.visitors.note(flow, &asked, around);
        self.rhythms.note(flow, around);
        let Some(decision) = flow.decision(around.node_netns) else {
            // If IPVS does not track in conntrack, only its own choice shows the decision.
            if let Some(chosen) = flow.chosen_by_ipvs(around.node_netns)
                && matches!(around.address(flow, chosen.time), Address::Vip(vip) if vip.via == Via::ClusterIp)
            {
                self.translated(flow.orig.dst.socket(), chosen.time);
            }
            return;
        };
        // Nearly always the decision is the first sighting.
        let is_first = decision.time == flow.first_seen;
        let asked = if is_first { asked } else { around.address(flow, decision.time) };
        let Address::Vip(vip) = asked else { return };
        if vip.via != Via::ClusterIp {
            return;
        }
        if !flow.is_tcp() && flow.revision <= 1 {
            self.note_answer(&vip, flow.answer());
        }
        if decision.confirmed.is_some() && decision.endpoint().is_none() && flow.was_answered() {
            self.served_elsewhere = self.served_elsewhere.max(Some(decision.time));
        }
        if decision.endpoint().is_some() {
            self.translated(vip.addr, decision.time);
        } else {
            self.note_untranslated(&vip, decision, around);
        }
    }

    /// This cluster IP was translated at `time`.
    pub fn translated(&mut self, asked: SocketAddr, time: Timestamp) {
        self.first_translated = Some(self.first_translated.map_or(time, |first| first.min(time)));
        self.last_translated = self.last_translated.max(Some(time));
        let latest = bounded::entry(&mut self.translated, MAX_SERVICES, asked).or_insert(time);
        *latest = time.max(*latest);
        if !self.untranslated.is_empty() {
            self.untranslated.remove(&asked);
        }
    }

    fn note_untranslated(&mut self, vip: &Vip<'_>, decision: &Decision, around: &Surroundings<'_>) {
        let usable = || around.cluster.usable(vip, around.node_name, decision.time);
        if decision.confirmed.is_some()
            && LeftOut::of(vip.service, around.node.release()).is_none()
            && usable().is_some_and(|usable| usable.count > 0)
        {
            *bounded::entry(&mut self.untranslated, MAX_SERVICES, vip.addr).or_default() = decision.time;
        }
    }

    fn note_answer(&mut self, vip: &Vip<'_>, answer: Answer) {
        let key = (vip.addr, vip.port.protocol);
        let answers = bounded::entry(&mut self.answering, MAX_SERVICES, key).or_default();
        match answer {
            Answer::Seen => answers.seen = answers.seen.saturating_add(1),
            // The first silence of a Service that always answers is a fault, not a habit.
            Answer::NotSeen { .. } if !answers.are_the_rule() => {
                answers.missing = answers.missing.saturating_add(1);
            }
            Answer::NotSeen { .. } | Answer::Unknown => {}
        }
    }

    /// Whether this Service was observed to answer datagrams.
    pub(super) fn answers(&self, asked: SocketAddr, protocol: Protocol) -> bool {
        self.uses(OtherFlows::To(asked));
        self.answering.get(&(asked, protocol)).is_some_and(|answers| answers.are_the_rule())
    }

    /// Whether Services answered around `at` although this node's rules did not translate them: a program that bypasses
    /// netfilter serves them.
    pub(super) fn served_elsewhere(&self, at: Timestamp) -> bool {
        self.uses(OtherFlows::Any);
        let lately = at.saturating_sub(RECENTLY);
        self.served_elsewhere.is_some_and(|time| time >= lately) && !self.translated_lately(at)
    }

    /// Whether this node's rules translated a Service around `at`.
    pub(super) fn translated_lately(&self, at: Timestamp) -> bool {
        self.uses(OtherFlows::Any);
        self.last_translated.is_some_and(|time| time >= at.saturating_sub(RECENTLY))
    }

    /// When a connection to this address was last translated, after `at`.
    pub(super) fn translated_after(&self, vip: SocketAddr, at: Timestamp) -> Option<Timestamp> {
        self.uses(OtherFlows::To(vip));
        self.translated.get(&vip).copied().filter(|time| *time > at)
    }

    /// When a connection to this address was last not translated, after `at`.
    pub(super) fn untranslated_after(&self, vip: SocketAddr, at: Timestamp) -> Option<Timestamp> {
        self.uses(OtherFlows::To(vip));
        self.untranslated.get(&vip).copied().filter(|time| *time > at)
    }

    /// When this node's rules translated a Service before `at`: the last time, or the first if they have done so since.
    pub(super) fn translated_before(&self, at: Timestamp) -> Option<Timestamp> {
        self.uses(OtherFlows::Any);
        [self.last_translated, self.first_translated].into_iter().flatten().find(|time| *time < at)
    }

    /// Whether this node's rules translated no Service around `at`, and left a Service other than `vip` untranslated.
    pub(super) fn other_services_untranslated(&self, vip: SocketAddr, at: Timestamp) -> bool {
        self.uses(OtherFlows::Any);
        let lately = at.saturating_sub(RECENTLY);
        !self.translated_lately(at)
            && self.untranslated.iter().any(|(asked, time)| *asked != vip && *time >= lately)
    }
}
