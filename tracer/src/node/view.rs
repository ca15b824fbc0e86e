//! The node's state and rules, as diagnosis asks for them.
//!
//! A snapshot taken on suspicion: what it says holds for the moment it was read, which verdicts quote.

use std::net::{IpAddr, SocketAddr};

use super::{NodeState, ProxyMode, VipRule, rules::Listing};
use crate::{
    diagnosis::{NodeView, Rule},
    sighting::Protocol,
    time::Timestamp,
};

/// What the node said when it was last asked.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub state: NodeState,
    /// The IPv4 rules, where they were asked for.
    pub rules: Option<Listing>,
}

impl Snapshot {
    /// What could not be read, one line each.
    pub fn gaps(&self) -> Vec<String> {
        let rules = self.rules.as_ref().and_then(|rules| rules.as_ref().err());
        self.state.gaps.iter().chain(rules).cloned().collect()
    }
}

impl NodeView for Snapshot {
    fn kube_proxy_mode(&self) -> Option<&str> {
        self.state.kube_proxy_mode.as_ref().map(|mode| mode.value.as_str())
    }

    fn kube_proxy_version(&self) -> Option<&str> {
        self.state.kube_proxy_version.as_ref().map(|version| version.value.as_str())
    }

    fn kube_proxy_running(&self) -> Option<bool> {
        self.state.kube_proxy_running.as_ref().map(|running| running.value)
    }

    fn has_proxy_rules(&self) -> Option<bool> {
        // In the other modes kube-proxy's rules are elsewhere, and iptables says nothing about them.
        if self.state.kube_proxy_mode.as_ref().is_some_and(|mode| mode.value != ProxyMode::Iptables) {
            return None;
        }
        let rules = &self.rules.as_ref()?.as_ref().ok()?.value;
        let (prerouting, output) = rules.jumps();
        Some(rules.has_kube_chains() && (prerouting || output))
    }

    fn rule(&self, addr: SocketAddr, protocol: Protocol) -> Option<Rule> {
        if !addr.is_ipv4()
            || self.state.kube_proxy_mode.as_ref().is_none_or(|mode| mode.value != ProxyMode::Iptables)
        {
            return None;
        }
        let rules = &self.rules.as_ref()?.as_ref().ok()?.value;
        Some(match rules.for_vip(addr, protocol) {
            VipRule::Dnat { .. } => Rule::Forwards,
            VipRule::Reject { .. } => Rule::Refuses,
            VipRule::Drop { .. } => Rule::Drops,
            VipRule::Missing => Rule::Missing,
        })
    }

    fn conntrack_use(&self) -> Option<(u64, u64)> {
        self.state.conntrack_use.as_ref().map(|used| (used.value.count, used.value.max))
    }

    fn is_own_address(&self, ip: IpAddr) -> Option<bool> {
        self.state.addresses.as_ref().map(|addresses| addresses.value.contains(&ip))
    }

    fn read_at(&self) -> Option<Timestamp> {
        let rules = self.rules.as_ref().and_then(|rules| rules.as_ref().ok()).map(|rules| rules.time);
        rules.or_else(|| self.state.conntrack_use.as_ref().map(|used| used.time))
    }
}
