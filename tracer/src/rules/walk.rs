//! Sends the first packet of a new connection through the rules, as netfilter would, and says what becomes of it.
//!
//! The packet passes the base chains of each hook in the order of their priorities, with what kube-proxy's rules in
//! them do: translation, marks, masquerade, refusal. A choice by chance is followed both ways, each with its weight; an
//! affinity list is followed beside, for a client that it does not know. Chains of others (a CNI plugin, a firewall)
//! are not followed, and policies of base chains are theirs. Pure.

use std::{
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use foldhash::HashMap;

use super::{
    Base, Chain, Family, HookPoint, NFTABLES_TABLE, Name, Rule, Ruleset, Step, Table, Verdict, VirtualServer,
    Writer,
};
use crate::net::Protocol;

mod machine;

use machine::{DEPTH_MAX, TRAIL_MAX};

/// Rules looked at for one packet; a walk that needs more ends and says so.
const STEPS_MAX: u32 = 2_000_000;

/// Where a connection comes from: which hooks it passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// A Pod of this node.
    Pod,
    /// The node itself, or a Pod on its network.
    Node,
    /// Another machine.
    Outside,
}

impl Origin {
    pub const ALL: [Self; 3] = [Self::Pod, Self::Node, Self::Outside];

    /// In running text: "from …".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pods",
            Self::Node => "the node",
            Self::Outside => "outside",
        }
    }
}

/// The packet that is sent through.
#[derive(Clone, Debug)]
pub struct Probe<'a> {
    pub origin: Origin,
    pub source: IpAddr,
    /// The interface on which it comes, where a rule may ask for it.
    pub interface: Option<&'a str>,
    pub destination: SocketAddr,
    pub protocol: Protocol,
    /// The destination is an address of this node (a node port).
    pub local: bool,
    /// Also finds out what would happen if an endpoint sent this packet to itself.
    pub hairpin: bool,
}

/// What becomes of the packet.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    /// The weights add up to 1.
    pub branches: Vec<Branch>,
    /// Where clients that were served before are sent.
    pub sticky: Vec<Sticky>,
    /// Conditions and targets that could not be judged on the way.
    pub unknown: Vec<Unknown>,
    /// The walk was given up: it took too many steps.
    pub cut: bool,
}

/// What could not be judged on a packet's way.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("the set {0} is missing")]
    Set(Name),
    #[error("the ipset {0} was not read")]
    Ipset(Name),
    #[error("the map {0} is missing")]
    Map(Name),
    #[error("the chain {0} is missing")]
    Chain(Name),
    #[error("the condition `{0}` cannot be judged")]
    Condition(Box<str>),
    #[error("the target {0} is not known here")]
    Target(Box<str>),
    #[error("the chains before {0} call each other more than {DEPTH_MAX} deep")]
    TooDeep(Name),
    #[error("more than {TRAIL_MAX} chains and maps lead to {0}")]
    Endless(Name),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Branch {
    /// 0 to 1.
    pub weight: f64,
    pub end: End,
    pub masquerade: bool,
    /// Whether the endpoint's own connection to itself would be masqueraded (C31). `None` where it was not asked.
    pub hairpin: Option<bool>,
    /// The affinity list that the client is put on.
    pub remembers: Option<Name>,
    /// kube-proxy's chains and maps that the packet passed, the last one decided.
    pub trail: Vec<Name>,
    /// Whose rule decided; `None` where none did.
    pub writer: Option<Writer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    Endpoint(SocketAddr),
    /// An ICMP error or a reset goes back.
    Refused,
    Dropped,
    /// No rule of kube-proxy decided: it goes on as it came.
    Passed,
}

/// Chains and maps through which the traffic of all Services goes.
const COMMON: [&str; 9] = [
    "KUBE-SERVICES",
    "KUBE-NODEPORTS",
    "KUBE-NODE-PORT",
    "services",
    "service-ips",
    "service-nodeports",
    "service-endpoints-check",
    "nodeport-endpoints-check",
    "firewall-check",
];

/// A list that keeps clients with their endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    pub list: Name,
    /// How long after the last connection; `None` where the rule or set does not limit it.
    pub seconds: Option<u32>,
    pub end: End,
    pub trail: Vec<Name>,
}

impl Fate {
    /// The chain or map that decides for this address: the first one that is not common to all.
    pub fn chain(&self) -> Option<&Name> {
        let decided = self.branches.iter().find(|branch| !branch.trail.is_empty())?;
        let own = decided.trail.iter().find(|name| !COMMON.contains(&name.as_ref()));
        own.or(decided.trail.last())
    }

    /// Endpoints with their weights, each once, by address.
    pub fn endpoints(&self) -> Vec<(SocketAddr, f64)> {
        let mut found: Vec<(SocketAddr, f64)> = Vec::new();
        for branch in &self.branches {
            if let End::Endpoint(endpoint) = branch.end {
                found.push((endpoint, branch.weight));
            }
        }
        found.sort_by_key(|(endpoint, _)| *endpoint);
        found.dedup_by(|(later, weight), (earlier, sum)| {
            let same = later == earlier;
            if same {
                *sum += *weight;
            }
            same
        });
        found
    }
}

/// The entry into one base chain.
#[derive(Clone, Copy, Debug)]
struct Entry {
    table: usize,
    chain: usize,
    base: Base,
}

/// A ruleset ready to be walked, in one family.
#[derive(Debug)]
pub struct Walker<'a> {
    rules: &'a Ruleset,
    family: Family,
    /// By hook, in the order of priorities; only those from which kube-proxy's rules are reached.
    entries: [Vec<Entry>; 5],
    servers: HashMap<(Protocol, SocketAddr), &'a VirtualServer>,
}

impl<'a> Walker<'a> {
    pub fn new(rules: &'a Ruleset, family: Family) -> Self {
        let mut entries: [Vec<Entry>; 5] = Default::default();
        for (table, found) in rules.tables.iter().enumerate().filter(|(_, table)| table.family == family) {
            for (chain, found) in found.chains.iter().enumerate().filter(|(_, chain)| enters(found, chain)) {
                if let Some(base) = found.base
                    && let Some(list) = entries.get_mut(base.hook as usize)
                {
                    list.push(Entry { table, chain, base });
                }
            }
        }
        for list in &mut entries {
            list.sort_by_key(|entry| entry.base.priority);
        }
        let servers = rules.servers.iter().flatten();
        let servers = servers.map(|server| ((server.protocol, server.address), server)).collect();
        Self { rules, family, entries, servers }
    }

    pub const fn family(&self) -> Family {
        self.family
    }

    /// Whether any new connection gets to kube-proxy's rules before it is routed.
    pub fn enters_any(&self) -> bool {
        [HookPoint::Prerouting, HookPoint::Output].into_iter().any(|hook| !self.entries(hook).is_empty())
    }

    /// What becomes of this packet.
    pub fn walk(&self, probe: &Probe) -> Fate {
        let mut run = machine::Run::new(self, probe);
        run.go();
        run.into_fate()
    }

    fn entries(&self, hook: HookPoint) -> &[Entry] {
        self.entries.get(hook as usize).map(Vec::as_slice).unwrap_or_default()
    }

    fn server(&self, protocol: Protocol, address: SocketAddr) -> Option<&'a VirtualServer> {
        self.servers.get(&(protocol, address)).copied()
    }

    /// Whether this is an address of the node. IPVS serves an address only if it is; where the addresses were not read,
    /// that is assumed.
    fn is_local(&self, probe: &Probe, destination: SocketAddr) -> bool {
        if probe.local && destination.ip() == probe.destination.ip() {
            return true;
        }
        match &self.rules.addresses {
            Some(addresses) => addresses.contains(&destination.ip()),
            None => self.server(probe.protocol, destination).is_some(),
        }
    }
}

/// Whether kube-proxy's rules are reached from this base chain.
fn enters(table: &Table, chain: &Chain) -> bool {
    chain.base.is_some() && chain.rules.iter().any(|rule| is_own(table, chain, rule))
}

/// Whether a rule is kube-proxy's own, or one that keeps packets from kube-proxy's rules.
fn is_own(table: &Table, chain: &Chain, rule: &Rule) -> bool {
    if chain.base.is_none() || (table.writer == Writer::Nftables && table.name.as_ref() == NFTABLES_TABLE) {
        return true;
    }
    let Some(Step::Do(verdict)) = rule.steps.last() else { return false };
    match verdict {
        Verdict::Jump(to) | Verdict::Goto(to) => to.starts_with("KUBE-"),
        Verdict::Accept | Verdict::Return | Verdict::Dnat(_) => {
            chain.base.is_some_and(|base| base.nat && base.hook != HookPoint::Postrouting)
                && !rule.steps.iter().any(|step| matches!(step, Step::Unknown(_)))
        }
        _ => false,
    }
}

/// kube-proxy's chains are listed in the trail; base chains are not.
#[derive(Debug)]
struct Link {
    name: Name,
    writer: Writer,
    /// How deep in the calls; what was called and has returned is not on the way.
    depth: usize,
    /// How many there are on the way, with this one.
    length: usize,
    before: Trail,
}

type Trail = Option<Rc<Link>>;
