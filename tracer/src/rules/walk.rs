//! Sends the first packet of a new connection through the rules, as netfilter would, and returns its fate.
//!
//! The packet passes the base chains of each hook in the order of their priorities. kube-proxy's rules in them
//! translate, mark, masquerade or reject it. A random choice is followed in every direction, each with its weight. An
//! affinity list is followed for a client that is not on it; its clients are reported separately. An audit follows
//! kube-proxy's chains only. An [`Observer`] can ask for the chains of other programs (a CNI plugin, a firewall) and the
//! policies of base chains too, and note every rule on the way. Pure.

use std::{
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use foldhash::HashMap;

use super::{
    Base, Chain, Family, HookPoint, NFTABLES_TABLE, Name, Rule, Ruleset, Step, Table, Verdict, VirtualServer,
    Writer, chains,
};
use crate::net::Protocol;

mod machine;
mod trail;

use machine::{MAX_DEPTH, MAX_TRAIL};
pub use trail::{Devices, Note, Notes, Observer, Place, Unobserved, Witness};

/// The most rules evaluated for one packet. A walk that needs more ends and reports it.
const MAX_STEPS: u32 = 2_000_000;

/// The origin of a connection, which determines the hooks that it passes.
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

    /// For use in running text: "from …".
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pod => "Pods",
            Self::Node => "the node",
            Self::Outside => "outside",
        }
    }
}

/// The packet to send through the rules.
#[derive(Clone, Debug)]
pub struct Probe<'a> {
    pub origin: Origin,
    pub source: IpAddr,
    /// The incoming interface, for rules that match it.
    pub interface: Option<&'a str>,
    pub destination: SocketAddr,
    pub protocol: Protocol,
    /// The destination is an address of this node (a node port).
    pub local: bool,
    /// Also determines the result if an endpoint sent this packet to itself. An observer of everything sends that packet
    /// itself.
    pub hairpin: bool,
}

/// The fate of the packet. `T` is what an observer remembers of each branch.
#[derive(Clone, Debug, Default)]
pub struct Fate<T = ()> {
    /// The weights add up to 1, without the branches that an observer assumed.
    pub branches: Vec<Branch<T>>,
    /// The destinations of clients that an endpoint has served before.
    pub sticky: Vec<Sticky>,
    /// Conditions and targets that could not be judged on the way.
    pub unknown: Vec<Unknown>,
    /// The walk ended early: it took too many steps.
    pub cut: bool,
}

/// A condition, target or limit because of which a packet's way could not be judged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unknown {
    #[error("the set {0} is missing")]
    Set(Name),
    #[error("the ipset {0} was not read")]
    Ipset(Name),
    #[error("a part of the set {0} is not understood")]
    PartOfSet(Name),
    #[error("the map {0} is missing")]
    Map(Name),
    #[error("the chain {0} is missing")]
    Chain(Name),
    #[error("the condition `{0}` cannot be judged")]
    Condition(Box<str>),
    #[error("the target {0} is not known here")]
    Target(Box<str>),
    #[error("the chains before {0} call each other more than {MAX_DEPTH} deep")]
    TooDeep(Name),
    #[error("more than {MAX_TRAIL} chains and maps lead to {0}")]
    Endless(Name),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Branch<T = ()> {
    /// 0 to 1.
    pub weight: f64,
    pub end: End,
    pub seen: T,
    pub masquerade: bool,
    /// The packet's mark at its end.
    pub mark: u32,
    /// Whether the endpoint's own connection to itself would be masqueraded (C31). `None` if this was not requested.
    pub hairpin: Option<bool>,
    /// The affinity list that the client is added to.
    pub remembers: Option<Name>,
    /// kube-proxy's chains and maps that the packet passed. The last one decided.
    pub trail: Vec<Name>,
    /// The writer of the rule that decided; `None` if no rule did.
    pub writer: Option<Writer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum End {
    Endpoint(SocketAddr),
    /// The sender receives an ICMP error or a reset.
    Refused,
    Dropped,
    /// No rule of kube-proxy decided: the packet continues unchanged.
    Passed,
}

/// Chains and maps that the traffic of all Services passes.
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

/// A list that keeps a client at its endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sticky {
    pub list: Name,
    /// The time after the last connection; `None` if the rule or set does not limit it.
    pub seconds: Option<u32>,
    pub end: End,
    pub trail: Vec<Name>,
}

impl<T> Fate<T> {
    /// The chain or map that decides for this address: the first one that not all Services share.
    pub fn chain(&self) -> Option<&Name> {
        let decided = self.branches.iter().find(|branch| !branch.trail.is_empty())?;
        let own = decided.trail.iter().find(|name| !COMMON.contains(&name.as_ref()));
        own.or(decided.trail.last())
    }

    /// The endpoints with their weights, each once, ordered by address.
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

/// A ruleset prepared for walks, in one family.
#[derive(Debug)]
pub struct Walker<'a> {
    rules: &'a Ruleset,
    family: Family,
    /// By hook, in the order of priorities.
    entries: [Vec<Entry>; 5],
    servers: HashMap<(Protocol, SocketAddr), &'a VirtualServer>,
}

impl<'a> Walker<'a> {
    /// Of the base chains that lead to kube-proxy's rules.
    pub fn new(rules: &'a Ruleset, family: Family) -> Self {
        Self::of(rules, family, rules.tables.iter(), enters)
    }

    /// Of every base chain, for an observer that follows them all.
    pub fn whole(rules: &'a Ruleset, family: Family) -> Self {
        Self::of(rules, family, rules.all_tables(), |_, chain| chain.base.is_some())
    }

    fn of(
        rules: &'a Ruleset,
        family: Family,
        tables: impl Iterator<Item = &'a Table>,
        is_entry: impl Fn(&Table, &Chain) -> bool,
    ) -> Self {
        let mut entries: [Vec<Entry>; 5] = Default::default();
        for (table, found) in tables.enumerate().filter(|(_, table)| table.family == family) {
            for (chain, found) in found.chains.iter().enumerate().filter(|(_, chain)| is_entry(found, chain))
            {
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

    /// Whether any new connection reaches kube-proxy's rules before it is routed.
    pub fn enters_any(&self) -> bool {
        [HookPoint::Prerouting, HookPoint::Output].into_iter().any(|hook| !self.entries(hook).is_empty())
    }

    /// The fate of this packet.
    pub fn walk(&self, probe: &Probe) -> Fate {
        self.observe(probe, &Unobserved)
    }

    /// The fate of this packet, with the observer's notes.
    pub fn observe<O: Observer>(&self, probe: &Probe, observer: &O) -> Fate<O::Trail> {
        let mut run = machine::Run::new(self, probe, observer);
        run.go();
        run.into_fate()
    }

    fn entries(&self, hook: HookPoint) -> &[Entry] {
        self.entries.get(hook as usize).map(Vec::as_slice).unwrap_or_default()
    }

    fn server(&self, protocol: Protocol, address: SocketAddr) -> Option<&'a VirtualServer> {
        self.servers.get(&(protocol, address)).copied()
    }

    /// Whether this is an address of the node. IPVS serves an address only if it is. If the addresses were not read,
    /// this returns true.
    pub(crate) fn is_local(&self, probe: &Probe, destination: SocketAddr) -> bool {
        if probe.local && destination.ip() == probe.destination.ip() {
            return true;
        }
        match &self.rules.addresses {
            Some(addresses) => addresses.contains(&destination.ip()),
            None => self.server(probe.protocol, destination).is_some(),
        }
    }
}

/// Whether this base chain leads to kube-proxy's rules.
fn enters(table: &Table, chain: &Chain) -> bool {
    chain.base.is_some() && chain.rules.iter().any(|rule| is_own(table, chain, rule))
}

/// Whether a rule belongs to kube-proxy, or keeps packets from kube-proxy's rules.
fn is_own(table: &Table, chain: &Chain, rule: &Rule) -> bool {
    if chain.base.is_none() || (table.writer == Writer::Nftables && table.name.as_ref() == NFTABLES_TABLE) {
        return true;
    }
    let Some(Step::Do(verdict)) = rule.steps.last() else { return false };
    match verdict {
        Verdict::Jump(to) | Verdict::Goto(to) => chains::is_kube_proxys(to),
        Verdict::Accept | Verdict::Return | Verdict::Dnat(_) => {
            chain.base.is_some_and(|base| base.nat && base.hook != HookPoint::Postrouting)
                && !rule.steps.iter().any(|step| matches!(step, Step::Unknown(_)) || step.is_foreign())
        }
        _ => false,
    }
}

/// The trail contains kube-proxy's chains, not base chains.
#[derive(Debug)]
struct Link {
    name: Name,
    writer: Writer,
    /// The depth of the calls. A chain that has returned is not part of the trail.
    depth: usize,
    /// The length of the trail including this link.
    length: usize,
    before: Trail,
}

type Trail = Option<Rc<Link>>;
