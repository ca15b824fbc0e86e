//! The node's state as diagnosis asks for it.
//!
//! Owns the reading of facts as answers: what a mode's rules cannot tell is "not known", never "no".

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{NodeState, Observed, ProxyMode, Rules, VipRule};
use crate::{
    diagnosis::{NodeView, Rule},
    sighting::Protocol,
    time::Timestamp,
};

/// The node as it was last read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    pub state: Arc<NodeState>,
    /// A snapshot of the iptables rules of each family, where one was taken.
    pub ipv4_rules: Option<Arc<Observed<Rules>>>,
    pub ipv6_rules: Option<Arc<Observed<Rules>>>,
}

impl NodeFacts {
    fn mode(&self) -> Option<ProxyMode> {
        self.state.kube_proxy_mode.as_ref().map(|mode| mode.value)
    }

    /// The rules of this family, where they are what kube-proxy translates with.
    fn rules(&self, ip: IpAddr) -> Option<&Observed<Rules>> {
        let rules = if ip.is_ipv4() { &self.ipv4_rules } else { &self.ipv6_rules };
        let speaks = match self.mode() {
            Some(mode) => mode == ProxyMode::Iptables,
            None => rules.as_ref().is_some_and(|rules| rules.value.has_kube_chains()),
        };
        rules.as_deref().filter(|_| speaks)
    }
}

impl NodeView for NodeFacts {
    fn kube_proxy_mode(&self) -> Option<&str> {
        self.mode().map(ProxyMode::as_str)
    }

    fn kube_proxy_version(&self) -> Option<&str> {
        self.state.kube_proxy_version.as_ref().map(|version| version.value.as_str())
    }

    fn kube_proxy_running(&self) -> Option<bool> {
        self.state.kube_proxy_running.as_ref().map(|running| running.value)
    }

    fn other_dataplane(&self) -> Option<&str> {
        self.state.other_dataplane.as_ref().map(|found| found.value.as_ref())
    }

    fn has_proxy_rules(&self) -> Option<bool> {
        let families = [&self.ipv4_rules, &self.ipv6_rules].into_iter().flatten();
        let stands = |rules: &Arc<Observed<Rules>>| {
            rules.value.has_kube_chains() && rules.value.jumps() != (false, false)
        };
        match self.mode() {
            Some(ProxyMode::Iptables) => families.map(stands).reduce(|a, b| a || b),
            // Without a mode the presence of iptables rules tells; their absence only where no other mode's were found.
            None => families.map(stands).reduce(|a, b| a || b).filter(|stands| *stands).or(self
                .state
                .proxy_rules
                .as_ref()
                .map(|found| found.value)),
            Some(ProxyMode::Nftables | ProxyMode::Ipvs) => None,
        }
    }

    fn rule(&self, addr: SocketAddr, protocol: Protocol) -> Option<Rule> {
        Some(match self.rules(addr.ip())?.value.for_vip(addr, protocol) {
            VipRule::Dnat { endpoints, .. } if endpoints.is_empty() => Rule::Missing,
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
        self.state.addresses.as_ref().map(|addresses| addresses.value.contains(&ip) || ip.is_loopback())
    }

    fn read_at(&self) -> Option<Timestamp> {
        let rules = [&self.ipv4_rules, &self.ipv6_rules].into_iter().flatten().map(|rules| rules.time).max();
        rules.or(self.state.conntrack_use.as_ref().map(|used| used.time))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn facts(mode: Option<ProxyMode>, saved: &str) -> NodeFacts {
        let time = Timestamp::from_unix_secs(1);
        let state =
            NodeState { kube_proxy_mode: mode.map(|value| Observed { time, value }), ..NodeState::default() };
        let rules = Arc::new(Observed { time, value: Rules::parse(saved) });
        NodeFacts { state: Arc::new(state), ipv4_rules: Some(rules), ipv6_rules: None }
    }

    const SAVED: &str = include_str!("../../tests/data/iptables-save.txt");

    #[test]
    fn iptables_rules_speak_in_iptables_mode_only() {
        let vip: SocketAddr = "10.96.10.10:80".parse().unwrap();
        let wrong: SocketAddr = "10.96.10.10:81".parse().unwrap();
        let iptables = facts(Some(ProxyMode::Iptables), SAVED);
        assert_eq!(iptables.rule(vip, Protocol::TCP), Some(Rule::Forwards));
        assert_eq!(iptables.rule(wrong, Protocol::TCP), Some(Rule::Missing));
        assert_eq!(iptables.has_proxy_rules(), Some(true));
        assert_eq!(facts(Some(ProxyMode::Iptables), "").has_proxy_rules(), Some(false));
        assert_eq!(facts(None, "").has_proxy_rules(), None);
        assert_eq!(facts(None, SAVED).rule(vip, Protocol::TCP), Some(Rule::Forwards));
        let nftables = facts(Some(ProxyMode::Nftables), SAVED);
        assert_eq!(nftables.rule(vip, Protocol::TCP), None);
        assert_eq!(nftables.has_proxy_rules(), None);
    }
}
