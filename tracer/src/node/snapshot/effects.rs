//! The effect of the rules on new connections to an address.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use foldhash::HashMap;

use super::{Listing, ProxyMode, Snapshot};
use crate::{
    net::{Family, Protocol},
    rules::{End, Fate, LocalTraffic, Name, Origin, Probe, Ruleset, Writer, sources, walk::Walker},
};

/// The most addresses of the node that are tried for a node port.
const MAX_ADDRESSES: usize = 64;

/// The most connections whose effects are remembered; one more removes all others.
const MAX_EFFECTS: usize = 4096;

/// The effect of kube-proxy's rules on a new connection to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleEffect {
    Missing,
    Drops,
    Refuses,
    Forwards,
}

/// The effect of one writer's rules on a new connection to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriterEffect {
    pub writer: Writer,
    pub rule: RuleEffect,
    /// The chain, map or virtual server that decides; `None` if none does.
    pub chain: Option<Arc<str>>,
    /// The destinations of connections.
    pub endpoints: Vec<SocketAddr>,
}

/// The effect of the rules on new connections to an address, with details.
#[derive(Clone, Debug, PartialEq)]
pub struct VipRule {
    pub rule: RuleEffect,
    /// The chain, map or server that decides; `None` if none does.
    pub chain: Option<Name>,
    /// The destinations, with the share of each, 0 to 1.
    pub endpoints: Vec<(SocketAddr, f64)>,
    /// The writer of the rules that decide.
    pub writer: Option<Writer>,
}

/// The address, the protocol and the source of a connection.
type Connection = (SocketAddr, Protocol, IpAddr);

/// The rules of each writer by themselves, on a node that has rules of several, and their effects on connections. They are
/// split at the first query, because each diagnosis of a failed flow needs them and a node has tens of thousands of rules.
#[derive(Debug, Default)]
pub struct RulesByWriter {
    /// The effects on connections that were asked for: flows of one client and Service share them.
    effects: Mutex<HashMap<Connection, Arc<[WriterEffect]>>>,
    iptables_legacy: OnceLock<Ruleset>,
    iptables_nft: OnceLock<Ruleset>,
    iptables: OnceLock<Ruleset>,
    nftables: OnceLock<Ruleset>,
    ipvs: OnceLock<Ruleset>,
}

/// A clone splits its own rules, and remembers nothing: they may be replaced.
impl Clone for RulesByWriter {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl RulesByWriter {
    fn of(&self, writer: Writer, rules: &Ruleset) -> &Ruleset {
        let own = match writer {
            Writer::IptablesLegacy => &self.iptables_legacy,
            Writer::IptablesNft => &self.iptables_nft,
            Writer::Iptables => &self.iptables,
            Writer::Nftables => &self.nftables,
            Writer::Ipvs => &self.ipvs,
        };
        own.get_or_init(|| only(writer, rules))
    }
}

impl Snapshot {
    /// Whether there may be rules of kube-proxy that it no longer maintains (C3, C10): there are rules of several
    /// writers, or a list was not read.
    pub fn may_have_leftovers(&self, ip: IpAddr) -> bool {
        let family = Family::of(ip);
        let listings = [self.listings.iptables(family), self.listings.nftables, self.listings.ipvs];
        listings.contains(&Listing::NotTried) || self.rules.writers(family).len() > 1
    }

    /// The combined effect of all rules on a new connection to this address. `None` if the rules of kube-proxy's mode
    /// were not read.
    pub fn vip_rule(&self, addr: SocketAddr, protocol: Protocol) -> Option<VipRule> {
        let rules = &self.rules;
        let family = Family::of(addr.ip());
        let writers = rules.writers(family);
        let was_read = match self.mode {
            Some(ProxyMode::Iptables) => {
                self.listings.iptables(family) == Listing::Read || writers.iter().any(|w| w.is_iptables())
            }
            Some(ProxyMode::Nftables) => writers.contains(&Writer::Nftables),
            Some(ProxyMode::Ipvs) => rules.servers.is_some(),
            None => !writers.is_empty(),
        };
        if !was_read {
            return None;
        }
        // A rule may refuse a connection from outside and forward one from the node itself (a Local policy): forwarding
        // counts first, because netfilter translates before it filters.
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
            if best.as_ref().is_none_or(|best| found.rule > best.rule) {
                best = Some(found);
            }
        }
        best
    }

    pub fn rule(&self, addr: SocketAddr, protocol: Protocol) -> Option<RuleEffect> {
        self.vip_rule(addr, protocol).map(|found| found.rule)
    }

    /// The effect of each writer with rules of kube-proxy in this family, including leftovers of another mode or
    /// backend, on a connection from `source`. Empty if no rules were read.
    pub fn effects(&self, addr: SocketAddr, protocol: Protocol, source: IpAddr) -> Arc<[WriterEffect]> {
        let connection = (addr, protocol, source);
        let known = || self.rules_by_writer.effects.lock().unwrap_or_else(PoisonError::into_inner);
        let remembered = known().get(&connection).map(Arc::clone);
        if let Some(effects) = remembered {
            debug_assert_eq!(*effects, *self.find_effects(addr, protocol, source), "the rules have changed");
            return effects;
        }
        let effects: Arc<[WriterEffect]> = self.find_effects(addr, protocol, source).into();
        let mut known = known();
        if known.len() >= MAX_EFFECTS {
            known.clear();
        }
        known.insert(connection, Arc::clone(&effects));
        effects
    }

    fn find_effects(&self, addr: SocketAddr, protocol: Protocol, source: IpAddr) -> Vec<WriterEffect> {
        let effect = |writer: Writer, rules: &Ruleset| {
            let found = from_source(rules, addr, protocol, source);
            WriterEffect {
                writer,
                rule: found.rule,
                chain: found.chain,
                endpoints: found.endpoints.into_iter().map(|(endpoint, _)| endpoint).collect(),
            }
        };
        match self.rules.writers(Family::of(addr.ip()))[..] {
            // Nearly every node: the rules need not be split.
            [writer] => vec![effect(writer, &self.rules)],
            ref writers => {
                let own = |writer| self.rules_by_writer.of(writer, &self.rules);
                writers.iter().map(|writer| effect(*writer, own(*writer))).collect()
            }
        }
    }

    /// Another address of this node at which its rules serve this node port; `None` also if unknown.
    pub fn serves_node_port_at(&self, port: u16, protocol: Protocol) -> Option<IpAddr> {
        let served = |ip: &&IpAddr| {
            let outside = sources::nowhere(Family::of(**ip), &[]);
            !ip.is_loopback()
                && from_source(&self.rules, SocketAddr::new(**ip, port), protocol, outside).rule
                    != RuleEffect::Missing
        };
        self.rules.addresses.as_ref()?.iter().take(MAX_ADDRESSES).find(served).copied()
    }
}

/// The rules of this writer. Those of iptables that belong to ipvs mode translate no destination (KUBE-SERVICES of
/// `pkg/proxy/ipvs/proxier.go` only marks and accepts): one that does is of another mode.
fn only(writer: Writer, rules: &Ruleset) -> Ruleset {
    let mut own = rules.of(writer);
    if writer == Writer::Ipvs {
        own.tables.retain(|table| &*table.name != "nat");
    }
    own
}

/// The effect of these rules on a connection from `source`.
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

/// The effect of the rules, from a packet's fate.
fn read_as(fate: &Fate) -> VipRule {
    let endpoints = fate.endpoints();
    let ends = |end: End| fate.branches.iter().any(|branch| branch.end == end);
    let rule = if !endpoints.is_empty() {
        RuleEffect::Forwards
    } else if ends(End::Refused) {
        RuleEffect::Refuses
    } else if ends(End::Dropped) {
        RuleEffect::Drops
    } else {
        RuleEffect::Missing
    };
    let writer = fate.branches.iter().find_map(|branch| branch.writer);
    VipRule { rule, chain: fate.chain().cloned(), endpoints, writer }
}
