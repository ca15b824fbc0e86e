//! The node's state as diagnosis asks for it.
//!
//! Owns the reading of facts as answers: what the rules that were read cannot tell is "not known", never "no".

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{NodeState, Observed, ProxyMode, rules::Snapshot};
use crate::{
    net::{Family, Protocol},
    rules::{End, Fate, LocalTraffic, Name, Origin, Probe, Ruleset, Writer, sources, walk::Walker},
    time::Timestamp,
};

/// Addresses of the node that are tried for a node port.
const MAX_ADDRESSES: usize = 64;

/// What kube-proxy's rules do with a new connection to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    Forwards,
    Refuses,
    Drops,
    Missing,
}

/// How IPVS is set up on the node (`net.ipv4.vs`); what could not be read is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IpvsSettings {
    /// `conntrack`: IPVS tracks its connections in conntrack; kube-proxy sets it.
    pub conntrack: Option<bool>,
    /// `expire_nodest_conn`: a packet to a real server that was removed ends its connection; otherwise such packets
    /// are dropped without a word. kube-proxy sets it.
    pub expire_nodest_conn: Option<bool>,
    /// `conn_reuse_mode`: 0 follows the old entry when a client reuses a port, 1 chooses anew. kube-proxy sets 0 before
    /// Linux 5.9 and leaves the kernel's 1 since (kubernetes/kubernetes#93297).
    pub conn_reuse_mode: Option<u8>,
}

/// What one writer's rules do with a new connection to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ruling {
    /// `iptables-nft`, `iptables-legacy`, `iptables`, `nftables` or `ipvs`.
    pub writer: &'static str,
    pub rule: Rule,
    /// The chain, map or virtual server that decides; `None` where none does.
    pub chain: Option<Arc<str>>,
    /// Where it sends connections.
    pub endpoints: Vec<SocketAddr>,
}

/// The node as it was last read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    pub state: Arc<NodeState>,
    /// A snapshot of all rules, where one was taken.
    pub rules: Option<Arc<Observed<Snapshot>>>,
}

/// What the rules do with new connections to an address, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct VipRule {
    pub rule: Rule,
    /// The chain, map or server that decides; `None` where none does.
    pub chain: Option<Name>,
    /// Where they send it, with the share of each, 0 to 1.
    pub endpoints: Vec<(SocketAddr, f64)>,
    /// Whose rules decide.
    pub writer: Option<Writer>,
}

impl NodeFacts {
    fn mode(&self) -> Option<ProxyMode> {
        self.state.kube_proxy_mode.as_ref().map(|mode| mode.value)
    }

    fn ruleset(&self) -> Option<&Ruleset> {
        self.rules.as_ref().map(|rules| &rules.value.rules)
    }

    /// Who has rules of kube-proxy in this family, leftovers of another mode or backend included (C3, C10).
    pub fn writers(&self, family: Family) -> Vec<Writer> {
        self.ruleset().map(|rules| rules.writers(family)).unwrap_or_default()
    }

    /// Whether rules of kube-proxy stand that it does not keep any more (C3, C10); also where none were read yet.
    pub fn may_have_leftovers(&self, ip: IpAddr) -> bool {
        self.ruleset().is_none_or(|rules| rules.writers(Family::of(ip)).len() > 1)
    }

    /// What all the rules together do with a new connection to this address. `None` where no rules were read, or not
    /// those of the mode that kube-proxy is in.
    pub fn vip_rule(&self, addr: SocketAddr, protocol: Protocol) -> Option<VipRule> {
        let rules = self.ruleset()?;
        let family = Family::of(addr.ip());
        let writers = rules.writers(family);
        let was_read = match self.mode() {
            Some(ProxyMode::Iptables) => {
                rules.tables.iter().any(|t| t.family == family && t.writer.is_iptables())
            }
            Some(ProxyMode::Nftables) => writers.contains(&Writer::Nftables),
            Some(ProxyMode::Ipvs) => rules.servers.is_some(),
            None => !writers.is_empty(),
        };
        if !was_read {
            return None;
        }
        // What a rule refuses from outside it may forward from the node itself (a Local policy): the way that exists
        // counts first, as netfilter translates before it filters.
        let walker = Walker::new(rules, family);
        let traffic = rules.local_traffic(family);
        let (pod, interface) = traffic.example(family);
        let own = rules.addresses.as_ref().is_some_and(|addresses| addresses.contains(&addr.ip()));
        let nowhere = sources::nowhere(family, &[]);
        let mut best: Option<VipRule> = None;
        for (origin, source, interface) in
            [(Origin::Pod, pod, interface), (Origin::Outside, nowhere, None), (Origin::Node, addr.ip(), None)]
        {
            let probe =
                Probe { origin, source, interface, destination: addr, protocol, local: own, hairpin: false };
            let found = read_as(&walker.walk(&probe));
            if best.as_ref().is_none_or(|best| rank(found.rule) > rank(best.rule)) {
                best = Some(found);
            }
        }
        best
    }
}

/// What these rules do with a connection from `source`.
fn from_source(rules: &Ruleset, addr: SocketAddr, protocol: Protocol, source: IpAddr) -> VipRule {
    let family = Family::of(addr.ip());
    let is_own = |ip: IpAddr| rules.addresses.as_ref().is_some_and(|addresses| addresses.contains(&ip));
    let traffic = rules.local_traffic(family);
    let (_, interface) = traffic.example(family);
    let origin = match &traffic {
        _ if is_own(source) => Origin::Node,
        LocalTraffic::Range(range) if !range.contains(source) => Origin::Outside,
        _ => Origin::Pod,
    };
    let interface = if origin == Origin::Pod { interface } else { None };
    let local = is_own(addr.ip());
    let probe = Probe { origin, source, interface, destination: addr, protocol, local, hairpin: false };
    read_as(&Walker::new(rules, family).walk(&probe))
}

/// The answer that a fate gives.
fn read_as(fate: &Fate) -> VipRule {
    let endpoints = fate.endpoints();
    let ends = |end: End| fate.branches.iter().any(|branch| branch.end == end);
    let rule = if !endpoints.is_empty() {
        Rule::Forwards
    } else if ends(End::Refused) {
        Rule::Refuses
    } else if ends(End::Dropped) {
        Rule::Drops
    } else {
        Rule::Missing
    };
    let writer = fate.branches.iter().find_map(|branch| branch.writer);
    VipRule { rule, chain: fate.chain().cloned(), endpoints, writer }
}

const fn rank(rule: Rule) -> u8 {
    match rule {
        Rule::Missing => 0,
        Rule::Drops => 1,
        Rule::Refuses => 2,
        Rule::Forwards => 3,
    }
}

impl NodeFacts {
    pub fn kube_proxy_mode(&self) -> Option<&str> {
        self.mode().map(ProxyMode::as_str)
    }

    pub fn kube_proxy_version(&self) -> Option<&str> {
        self.state.kube_proxy_version.as_ref().map(|version| version.value.as_str())
    }

    pub fn kube_proxy_running(&self) -> Option<bool> {
        self.state.kube_proxy_running.as_ref().map(|running| running.value)
    }

    pub fn other_dataplane(&self) -> Option<&str> {
        self.state.other_dataplane.as_ref().map(|found| found.value.as_ref())
    }

    pub fn has_proxy_rules(&self) -> Option<bool> {
        let Some(rules) = self.ruleset() else {
            return self.state.proxy_rules.as_ref().map(|found| found.value);
        };
        let reached = |family: Family| {
            let walker = Walker::new(rules, family);
            rules.has_proxy_rules(family) && walker.enters_any()
        };
        let stands = Family::ALL.into_iter().any(reached);
        if stands {
            return Some(true);
        }
        // That nothing was found means something only where what the mode writes was read.
        let iptables = rules.tables.iter().any(|table| table.writer.is_iptables());
        match self.mode() {
            Some(ProxyMode::Iptables) => iptables.then_some(false),
            Some(ProxyMode::Ipvs) => rules.servers.as_ref().map(|_| false),
            Some(ProxyMode::Nftables) => {
                let read = self.rules.as_ref().is_some_and(|rules| {
                    !rules.value.gaps.iter().any(|gap| gap.starts_with("nftables rules"))
                });
                read.then_some(false)
            }
            None => self.state.proxy_rules.as_ref().map(|found| found.value),
        }
    }

    pub fn rule(&self, addr: SocketAddr, protocol: Protocol) -> Option<Rule> {
        self.vip_rule(addr, protocol).map(|found| found.rule)
    }

    pub fn rulings(&self, addr: SocketAddr, protocol: Protocol, source: IpAddr) -> Vec<Ruling> {
        let Some(rules) = self.ruleset() else { return Vec::new() };
        let ruling = |writer: Writer, rules: &Ruleset| {
            let found = from_source(rules, addr, protocol, source);
            Ruling {
                writer: writer.as_str(),
                rule: found.rule,
                chain: found.chain,
                endpoints: found.endpoints.into_iter().map(|(endpoint, _)| endpoint).collect(),
            }
        };
        match rules.writers(Family::of(addr.ip()))[..] {
            // Nearly every node: nothing has to be taken apart.
            [writer] => vec![ruling(writer, rules)],
            ref writers => writers.iter().map(|writer| ruling(*writer, &rules.of(*writer))).collect(),
        }
    }

    pub fn serves_node_port_at(&self, port: u16, protocol: Protocol) -> Option<IpAddr> {
        let rules = self.ruleset()?;
        let served = |ip: &&IpAddr| {
            let outside = sources::nowhere(Family::of(**ip), &[]);
            !ip.is_loopback()
                && from_source(rules, SocketAddr::new(**ip, port), protocol, outside).rule != Rule::Missing
        };
        rules.addresses.as_ref()?.iter().take(MAX_ADDRESSES).find(served).copied()
    }

    pub fn conntrack_use(&self) -> Option<(u64, u64)> {
        self.state.conntrack_use.as_ref().map(|used| (used.value.count, used.value.max))
    }

    pub fn is_own_address(&self, ip: IpAddr) -> Option<bool> {
        self.state.addresses.as_ref().map(|addresses| addresses.value.contains(&ip) || ip.is_loopback())
    }

    pub fn ipvs_settings(&self) -> Option<IpvsSettings> {
        self.state.ipvs_settings.as_ref().map(|settings| settings.value)
    }

    pub fn read_at(&self) -> Option<Timestamp> {
        let rules = self.rules.as_ref().map(|rules| rules.time);
        rules.or(self.state.conntrack_use.as_ref().map(|used| used.time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::iptables;

    fn facts(mode: Option<ProxyMode>, saved: &str) -> NodeFacts {
        let time = Timestamp::from_unix_secs(1);
        let state =
            NodeState { kube_proxy_mode: mode.map(|value| Observed { time, value }), ..NodeState::default() };
        let rules = iptables::parse(saved, iptables::Hint::default());
        let value = Snapshot { rules, ..Snapshot::default() };
        NodeFacts { state: Arc::new(state), rules: Some(Arc::new(Observed { time, value })) }
    }

    const SAVED: &str = include_str!("../../tests/data/iptables-save.txt");

    fn vip_rule(facts: &NodeFacts, vip: &str) -> VipRule {
        facts.vip_rule(vip.parse().unwrap(), Protocol::TCP).unwrap()
    }

    #[test]
    fn a_vip_leads_to_its_endpoints() {
        let found = vip_rule(&facts(None, SAVED), "10.96.10.10:80");
        assert_eq!(found.rule, Rule::Forwards);
        assert_eq!(found.chain.as_deref(), Some("KUBE-SVC-I5LIAMPLWKMBJ54B"));
        let endpoints =
            ["10.244.1.11:8080", "10.244.1.12:8080", "10.244.2.13:8080"].map(|e| e.parse().unwrap());
        assert_eq!(found.endpoints.iter().map(|(endpoint, _)| *endpoint).collect::<Vec<_>>(), endpoints);
        assert!(found.endpoints.iter().all(|(_, share)| (share - 1.0 / 3.0).abs() < 1e-6), "{found:?}");
    }

    #[test]
    fn protocol_port_and_address_all_count() {
        let facts = facts(None, SAVED);
        let rule = |vip: &str, protocol| facts.rule(vip.parse().unwrap(), protocol);
        assert_eq!(rule("10.96.10.10:80", Protocol::UDP), Some(Rule::Missing));
        assert_eq!(rule("10.96.10.10:81", Protocol::TCP), Some(Rule::Missing));
        assert_eq!(rule("10.96.10.11:80", Protocol::TCP), Some(Rule::Missing));
        // Nothing of IPv6 was read.
        assert_eq!(rule("[2001:db8::1]:80", Protocol::TCP), None);
    }

    #[test]
    fn a_service_without_endpoints_is_refused_and_a_local_one_dropped() {
        let facts = facts(None, SAVED);
        assert_eq!(vip_rule(&facts, "10.96.10.20:80").rule, Rule::Refuses);
        assert_eq!(vip_rule(&facts, "10.96.10.60:6379").rule, Rule::Drops);
    }

    #[test]
    fn a_node_port_is_found_on_the_nodes_address() {
        let mut facts = facts(None, SAVED);
        let mut read = (**facts.rules.as_ref().unwrap()).clone();
        read.value.rules.addresses = Some(["192.0.2.11".parse().unwrap()].into());
        facts.rules = Some(Arc::new(read));
        let found = vip_rule(&facts, "192.0.2.11:30443");
        assert_eq!(found.chain.as_deref(), Some("KUBE-EXT-OTVU7MV6PRR7MW2X"));
        assert_eq!(found.endpoints, [("10.244.1.41:8443".parse().unwrap(), 1.0)]);
    }

    #[test]
    fn rules_speak_for_the_mode_that_they_are_of() {
        let vip: SocketAddr = "10.96.10.10:80".parse().unwrap();
        let iptables = facts(Some(ProxyMode::Iptables), SAVED);
        assert_eq!(iptables.rule(vip, Protocol::TCP), Some(Rule::Forwards));
        assert_eq!(iptables.has_proxy_rules(), Some(true));
        let empty = "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n";
        assert_eq!(facts(Some(ProxyMode::Iptables), empty).has_proxy_rules(), Some(false));
        assert_eq!(facts(None, empty).has_proxy_rules(), None);
        assert_eq!(facts(None, empty).rule(vip, Protocol::TCP), None);
        // The iptables rules alone say nothing of what nftables mode does.
        let nftables = facts(Some(ProxyMode::Nftables), SAVED);
        assert_eq!(nftables.rule(vip, Protocol::TCP), None);
    }

    #[test]
    fn chains_that_nothing_leads_to_are_no_rules() {
        let without = SAVED.lines().filter(|line| !line.contains("-A PREROUTING"));
        let without = without.filter(|line| !line.contains("-A OUTPUT")).collect::<Vec<_>>().join("\n");
        let without = without.replace("-A POSTROUTING", "-A NOWHERE").replace("-A FORWARD", "-A NOWHERE");
        let without = without.replace("-A INPUT", "-A NOWHERE");
        assert_eq!(facts(Some(ProxyMode::Iptables), &without).has_proxy_rules(), Some(false));
    }
}
