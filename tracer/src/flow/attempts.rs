//! The attempts of a handshake: which NAT decision a flow's outcome is due to.
//!
//! A SYN that is dropped before its entry is confirmed takes its entry with it, so that NAT decides again for the
//! repeated SYN, perhaps for another endpoint. A failure belongs to the decision of its own packet.

use std::{net::SocketAddr, time::Duration};

use super::{Decision, End, Flow, Stage};
use crate::{
    net::Netns,
    sighting::{Conntrack, Status},
    time::Timestamp,
};

/// A SYN that follows its entry's confirmation by more than this is a repetition: its predecessor had no answer.
const REPEATED: Duration = Duration::from_millis(100);

impl Decision {
    /// Whether it is about this client and address, in this namespace and the entry's zone.
    pub(super) fn is_for(&self, ct: &Conntrack, netns: Netns) -> bool {
        self.netns == netns && self.ct.zone == ct.zone && self.ct.orig == ct.orig
    }
}

impl Flow {
    /// Whether the client repeats its packet until it is answered: each repetition is an attempt of its own. Datagrams,
    /// and the later packets of a connection, are not.
    pub(super) fn is_handshake(&self) -> bool {
        (self.is_tcp() || self.is_sctp()) && !self.was_answered()
    }

    /// The decision of this entry, or the latest decision of this namespace and zone if retransmits created several
    /// entries.
    pub(super) fn decision_for(&self, ct: &Conntrack, netns: Netns) -> Option<&Decision> {
        let here = || self.decisions.iter().filter(|decision| decision.is_for(ct, netns));
        here()
            .find(|decision| decision.ct.id == ct.id && decision.ct.reply == ct.reply)
            .or_else(|| here().next_back())
    }

    /// The decision that the outcome is due to, in this namespace: a translating one first. With `None`, in any
    /// namespace.
    pub fn decision(&self, netns: Option<Netns>) -> Option<&Decision> {
        if self.decisions.len() <= 1 {
            return self.decisions_of(netns).next();
        }
        let mut attempts = self.attempts(netns);
        match (attempts.next(), attempts.next()) {
            (Some(_), Some(_)) => self.deciding(netns),
            (Some(only), None) => Some(only),
            (None, _) => self.decisions_of(netns).next(),
        }
    }

    /// The translating decisions of one namespace, in order. Nearly every flow has one; a flow whose first packet was
    /// repeated before its entry was confirmed has one for each endpoint that NAT chose.
    pub fn attempts(&self, netns: Option<Netns>) -> impl Iterator<Item = &Decision> {
        let translating = move || self.decisions_of(netns).filter(|decision| decision.endpoint().is_some());
        let place = translating().next().map(|first| (first.netns, first.ct.zone));
        translating().filter(move |decision| place == Some((decision.netns, decision.ct.zone)))
    }

    fn decisions_of(&self, netns: Option<Netns>) -> impl Iterator<Item = &Decision> {
        let is_here =
            move |place: Netns| netns.is_none_or(|netns| place == netns || place == Netns::default());
        // An entry of another program's zone (Open vSwitch) that no NAT hook has seen is no decision of the node's rules.
        let is_of_rules =
            |ct: &Conntrack| ct.zone == 0 || ct.endpoint().is_some() || ct.status.has(Status::DST_NAT_DONE);
        self.decisions.iter().filter(move |decision| {
            is_here(decision.netns) && decision.ct.orig == self.orig && is_of_rules(&decision.ct)
        })
    }

    /// Of several attempts: the one that was answered or refused, or that the client last waited for; otherwise the one
    /// whose packet failed last.
    fn deciding(&self, netns: Option<Netns>) -> Option<&Decision> {
        let confirmed_by = |time: Timestamp| {
            self.attempts(netns)
                .filter(|attempt| attempt.confirmed.is_some_and(|confirmed| confirmed <= time))
                .max_by_key(|attempt| attempt.confirmed)
        };
        let latest = confirmed_by(Timestamp::MAX);
        if self.was_answered() {
            return latest.or_else(|| self.attempts(netns).last());
        }
        let killed = self.trouble.as_ref().and_then(|trouble| trouble.killed).map(|killed| killed.time);
        let reset = self.client.reset_received().map(|reset| reset.time);
        if let Some(refused) = killed.or(reset).and_then(confirmed_by) {
            return Some(refused);
        }
        let waited =
            |attempt: &&Decision| attempt.confirmed.is_some_and(|confirmed| self.repeated_since(confirmed));
        let failed = || {
            let endpoint = self.failed_endpoint()?;
            self.attempts(netns).find(|attempt| attempt.endpoint() == Some(endpoint))
        };
        latest.filter(waited).or_else(failed).or(latest).or_else(|| self.attempts(netns).next())
    }

    /// Whether the client repeated its packet because this confirmed one was not answered.
    fn repeated_since(&self, confirmed: Timestamp) -> bool {
        confirmed.saturating_add(REPEATED) < self.client.syn_retransmits().last
    }

    /// Whether earlier packets were stopped, and the first one that passed was not repeated yet.
    pub(super) fn awaits_answer(&self) -> bool {
        let passed = self.decisions.iter().filter_map(|decision| decision.confirmed).max();
        self.decisions.len() > 1 && passed.is_some_and(|passed| !self.repeated_since(passed))
    }

    /// The endpoint of the opening packet that failed last.
    fn failed_endpoint(&self) -> Option<SocketAddr> {
        let trouble = self.trouble.as_ref()?;
        let drops = trouble.drops.iter().filter(|drop| drop.opening && drop.stage != Stage::Reply);
        let resets = trouble.stack_resets.iter().filter(|reset| reset.to_syn && reset.by != End::Client);
        let errors = trouble.icmp_errors.iter().filter(|error| error.about_request);
        drops
            .map(|drop| (drop.endpoint, drop.occurrences.last))
            .chain(resets.map(|reset| (reset.endpoint, reset.occurrences.last)))
            .chain(errors.map(|error| (error.endpoint, error.occurrences.last)))
            .chain(trouble.refusal.map(|refusal| (refusal.endpoint, refusal.occurrences.last)))
            .filter_map(|(endpoint, last)| Some((endpoint?, last)))
            .max_by_key(|(_, last)| *last)
            .map(|(endpoint, _)| endpoint)
    }
}
