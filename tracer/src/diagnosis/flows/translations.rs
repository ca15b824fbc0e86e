//! The Services that this node recently translated, and those that it did not: one Service without a rule has its own
//! fault, several at once indicate kube-proxy.
//!
//! Owns a bounded memory across flows. The trace records each flow here before it judges the flow.

use std::{collections::HashMap, net::SocketAddr, time::Duration};

use super::Context;
use crate::{
    cluster::{Address, Via, Vip},
    flow::{Decision, Flow},
    net::Protocol,
    time::Timestamp,
};

/// The maximum number of Service addresses kept; beyond it all old ones are removed at once.
const MAX_SERVICES: usize = 4096;
/// The length of "recently": two of kube-proxy's sync periods (30 s).
const RECENTLY: Duration = Duration::from_mins(1);

#[derive(Debug, Default)]
pub struct Translations {
    untranslated: HashMap<SocketAddr, Timestamp>,
    last_translated: Option<Timestamp>,
    /// Services that answered a datagram.
    answering: HashMap<(SocketAddr, Protocol), Timestamp>,
    /// When a cluster IP with endpoints was last answered without a translation here.
    served_elsewhere: Option<Timestamp>,
}

impl Translations {
    pub fn new() -> Self {
        Self::default()
    }

    /// Records NAT's decision for this flow, if the client connected to a cluster IP.
    pub fn note(&mut self, flow: &Flow, ctx: &Context<'_>) {
        let Some(decision) = flow.decision(ctx.node_netns) else {
            // If IPVS does not track in conntrack, only its own choice shows the decision.
            if let Some(chosen) = flow.chosen_by_ipvs(ctx.node_netns)
                && matches!(
                    ctx.cluster.address(flow.orig.dst, flow.orig.protocol, chosen.time),
                    Address::Vip(vip) if vip.via == Via::ClusterIp
                )
            {
                self.translated(flow.orig.dst, chosen.time);
            }
            return;
        };
        match ctx.cluster.address(flow.orig.dst, flow.orig.protocol, decision.time) {
            Address::Vip(vip) if vip.via == Via::ClusterIp => {
                if !flow.is_tcp() && flow.was_answered() {
                    self.note_answer(&vip, decision.time);
                }
                if decision.confirmed.is_some() && decision.endpoint().is_none() && flow.was_answered() {
                    self.served_elsewhere = self.served_elsewhere.max(Some(decision.time));
                }
                if decision.endpoint().is_some() {
                    self.translated(vip.addr, decision.time);
                } else {
                    self.note_untranslated(&vip, decision, ctx);
                }
            }
            _ => {}
        }
    }

    /// This cluster IP was translated at `time`.
    pub fn translated(&mut self, asked: SocketAddr, time: Timestamp) {
        self.last_translated = self.last_translated.max(Some(time));
        if !self.untranslated.is_empty() {
            self.untranslated.remove(&asked);
        }
    }

    fn note_untranslated(&mut self, vip: &Vip<'_>, decision: &Decision, ctx: &Context<'_>) {
        let usable = || ctx.cluster.usable(vip, ctx.node_name, decision.time);
        if decision.confirmed.is_some()
            && vip.service.proxy_name.is_none()
            && usable().is_some_and(|usable| usable.count > 0)
        {
            if self.untranslated.len() >= MAX_SERVICES {
                self.untranslated.clear();
            }
            self.untranslated.insert(vip.addr, decision.time);
        }
    }

    fn note_answer(&mut self, vip: &Vip<'_>, time: Timestamp) {
        if self.answering.len() >= MAX_SERVICES {
            self.answering.clear();
        }
        self.answering.insert((vip.addr, vip.port.protocol), time);
    }

    /// Whether this Service was observed to answer datagrams.
    pub(super) fn answers(&self, asked: SocketAddr, protocol: Protocol) -> bool {
        self.answering.contains_key(&(asked, protocol))
    }

    /// Whether Services answered around `at` although this node's rules did not translate them: a program that bypasses
    /// netfilter serves them.
    pub(super) fn served_elsewhere(&self, at: Timestamp) -> bool {
        let lately = at.saturating_sub(RECENTLY);
        self.served_elsewhere.is_some_and(|time| time >= lately)
            && self.last_translated.is_none_or(|time| time < lately)
    }

    /// Whether this node's rules translated no Service around `at`, and left a Service other than `vip` untranslated.
    pub(super) fn other_services_untranslated(&self, vip: SocketAddr, at: Timestamp) -> bool {
        let lately = at.saturating_sub(RECENTLY);
        self.last_translated.is_none_or(|time| time < lately)
            && self.untranslated.iter().any(|(asked, time)| *asked != vip && *time >= lately)
    }
}
