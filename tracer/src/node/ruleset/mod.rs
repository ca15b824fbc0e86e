//! What a node's rules do with Services, whatever wrote them: iptables of either backend, nftables, IPVS.
//!
//! The readers ([`crate::node::iptables`], [`crate::node::nftables`], [`crate::node::ipvs`], [`crate::node::ipset`])
//! bring every format into this one form, and [`walk`] sends a packet through it as netfilter would. So the questions
//! "where does a new connection to this address go" and "what is wrong here" have one answer for all modes and all
//! versions of kube-proxy. Pure: no I/O (that is [`read`]), no clock, and nothing here knows what the rules should be
//! (that is `crate::audit`).

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{cluster::model::Cidr, sighting::Protocol};

pub mod frontends;
mod index;
pub mod read;
mod saved;
pub mod sources;
pub mod walk;

pub use frontends::{Frontend, Named};
pub use read::{Reader, Snapshot};
pub use sources::LocalTraffic;
pub use walk::{Branch, End, Fate, Origin, Probe};

pub type Name = Arc<str>;

/// kube-proxy's own table in nftables mode.
pub const NFTABLES_TABLE: &str = "kube-proxy";

/// Everything that was read of one network namespace. Tables, sets and servers of both families may be in it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ruleset {
    pub tables: Vec<Table>,
    pub sets: Vec<Set>,
    /// IPVS virtual servers; `None` where they were not read.
    pub servers: Option<Vec<VirtualServer>>,
    /// This namespace's own addresses; `None` where they were not read. IPVS serves a VIP only on its own address
    /// (kube-ipvs0).
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// Lines, rules or elements that were not understood, counted; the first few are kept in `oddities`.
    pub skipped: u64,
    pub oddities: Vec<String>,
}

/// Oddities kept as text; more are only counted.
const ODDITIES_MAX: usize = 16;

impl Ruleset {
    /// Adds what another reader gave.
    pub fn absorb(&mut self, other: Self) {
        self.tables.extend(other.tables);
        self.sets.extend(other.sets);
        match (&mut self.servers, other.servers) {
            (Some(servers), Some(more)) => servers.extend(more),
            (servers, more @ Some(_)) => *servers = more,
            (_, None) => {}
        }
        match (&mut self.addresses, other.addresses) {
            (Some(addresses), Some(more)) => addresses.extend(more),
            (addresses, more @ Some(_)) => *addresses = more,
            (_, None) => {}
        }
        self.skipped = self.skipped.saturating_add(other.skipped);
        let room = ODDITIES_MAX.saturating_sub(self.oddities.len());
        self.oddities.extend(other.oddities.into_iter().take(room));
    }

    pub(crate) fn odd(&mut self, what: impl FnOnce() -> String) {
        self.skipped = self.skipped.saturating_add(1);
        if self.oddities.len() < ODDITIES_MAX {
            self.oddities.push(what());
        }
    }

    pub fn table(&self, writer: Writer, family: Family, name: &str) -> Option<&Table> {
        self.tables
            .iter()
            .find(|table| table.writer == writer && table.family == family && table.name.as_ref() == name)
    }

    /// Who has rules of kube-proxy here, in this family: the chain KUBE-SERVICES, or the table `kube-proxy`. IPVS counts
    /// where there are virtual servers.
    pub fn writers(&self, family: Family) -> Vec<Writer> {
        let mut found = BTreeSet::new();
        for table in self.tables.iter().filter(|table| table.family == family) {
            let kube = match table.writer {
                Writer::Nftables => table.name.as_ref() == NFTABLES_TABLE,
                _ => table.name.as_ref() == "nat" && table.chain("KUBE-SERVICES").is_some(),
            };
            if kube {
                found.insert(table.writer);
            }
        }
        let served = |server: &VirtualServer| Family::of(server.address.ip()) == family;
        if self.servers.as_ref().is_some_and(|servers| servers.iter().any(served)) {
            found.insert(Writer::Ipvs);
        }
        found.into_iter().collect()
    }

    /// Whether kube-proxy has left anything of its own in this family.
    pub fn has_proxy_rules(&self, family: Family) -> bool {
        !self.writers(family).is_empty()
    }

    /// Only what this writer wrote. IPVS keeps its sets and the iptables rules that stand beside it.
    #[must_use]
    pub fn of(&self, writer: Writer) -> Self {
        let keeps = |table: &&Table| match writer {
            Writer::Ipvs => table.writer != Writer::Nftables,
            _ => table.writer == writer,
        };
        Self {
            tables: self.tables.iter().filter(keeps).cloned().collect(),
            sets: if writer == Writer::Nftables { Vec::new() } else { self.sets.clone() },
            servers: if writer == Writer::Ipvs { self.servers.clone() } else { None },
            addresses: self.addresses.clone(),
            skipped: self.skipped,
            oddities: self.oddities.clone(),
        }
    }

    /// Whether nothing is here that [`Ruleset::of`] would leave out.
    pub fn is_only_of(&self, writer: Writer) -> bool {
        let tables = self.tables.iter().all(|table| match writer {
            Writer::Ipvs => table.writer != Writer::Nftables,
            _ => table.writer == writer,
        });
        let servers = writer == Writer::Ipvs || self.servers.is_none();
        tables && servers && (writer != Writer::Nftables || self.sets.is_empty())
    }

    /// Rules, set and map elements and real servers, all together.
    pub fn size(&self) -> usize {
        let rules = |table: &Table| table.chains.iter().map(|chain| chain.rules.len()).sum::<usize>();
        let elements = |table: &Table| table.sets.iter().map(Set::len).sum::<usize>();
        self.tables.iter().map(|table| rules(table) + elements(table)).sum::<usize>()
            + self.sets.iter().map(Set::len).sum::<usize>()
            + self.servers.iter().flatten().map(|server| 1 + server.destinations.len()).sum::<usize>()
    }
}

/// Who wrote a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Writer {
    /// iptables over the kernel's `ip_tables`.
    IptablesLegacy,
    /// iptables over `nf_tables`.
    IptablesNft,
    /// iptables, and the dump does not say over which backend.
    Iptables,
    Nftables,
    Ipvs,
}

impl Writer {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::IptablesLegacy => "iptables-legacy",
            Self::IptablesNft => "iptables-nft",
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }

    pub const fn is_iptables(self) -> bool {
        matches!(self, Self::IptablesLegacy | Self::IptablesNft | Self::Iptables)
    }
}

impl fmt::Display for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub const ALL: [Self; 2] = [Self::Ipv4, Self::Ipv6];

    pub const fn of(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::Ipv4,
            IpAddr::V6(_) => Self::Ipv6,
        }
    }

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HookPoint {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "saved::Table", into = "saved::Table")]
pub struct Table {
    pub writer: Writer,
    pub family: Family,
    pub name: Name,
    pub chains: Vec<Chain>,
    /// nftables only; those of iptables are ipsets and stand beside the tables.
    pub sets: Vec<Set>,
    by_name: HashMap<Name, usize>,
    sets_by_name: HashMap<Name, usize>,
}

impl Table {
    pub fn new(writer: Writer, family: Family, name: &str) -> Self {
        Self {
            writer,
            family,
            name: name.into(),
            chains: Vec::new(),
            sets: Vec::new(),
            by_name: HashMap::new(),
            sets_by_name: HashMap::new(),
        }
    }

    pub fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.get(*self.by_name.get(name)?)
    }

    pub fn set(&self, name: &str) -> Option<&Set> {
        self.sets.get(*self.sets_by_name.get(name)?)
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The chain of this name, created where there is none.
    pub fn chain_mut(&mut self, name: &str) -> Option<&mut Chain> {
        let position = if let Some(position) = self.by_name.get(name) {
            *position
        } else {
            let name = Name::from(name);
            self.by_name.insert(Arc::clone(&name), self.chains.len());
            self.chains.push(Chain { name, base: None, rules: Vec::new(), index: None });
            self.chains.len() - 1
        };
        self.chains.get_mut(position)
    }

    /// Adds a set; one of the same name takes its elements.
    pub fn add_set(&mut self, set: Set) {
        match self.sets_by_name.get(&set.name).and_then(|position| self.sets.get_mut(*position)) {
            Some(known) => known.absorb(set),
            None => {
                self.sets_by_name.insert(Arc::clone(&set.name), self.sets.len());
                self.sets.push(set);
            }
        }
    }

    /// Makes long chains quick to walk. To be called when the table is complete; a table that was changed afterwards is
    /// to be sealed again.
    pub fn seal(&mut self) {
        for chain in &mut self.chains {
            chain.index = index::Index::of(&chain.rules);
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chain {
    pub name: Name,
    /// Where the kernel enters it, if it does.
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
    #[serde(skip)]
    index: Option<index::Index>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub nat: bool,
    pub hook: HookPoint,
    /// Chains of a hook run in the order of their priorities, lowest first.
    pub priority: i32,
    pub drops: bool,
}

/// One rule: conditions and statements in their order. A condition that does not hold ends the rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rule {
    pub steps: Vec<Step>,
    pub comment: Option<Box<str>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    // Conditions.
    Source {
        ranges: Box<[AddressRange]>,
        negated: bool,
    },
    Destination {
        ranges: Box<[AddressRange]>,
        negated: bool,
    },
    Protocol {
        protocol: Protocol,
        negated: bool,
    },
    /// The destination port.
    Port {
        first: u16,
        last: u16,
        negated: bool,
    },
    /// The source is one of the node's own addresses.
    SourceLocal {
        negated: bool,
    },
    DestinationLocal {
        negated: bool,
    },
    /// Conntrack's state.
    State {
        new: bool,
        translated: bool,
        negated: bool,
    },
    Mark {
        value: u32,
        mask: u32,
        negated: bool,
    },
    /// The interface on which the packet came; a trailing `+` or `*` stands for any rest.
    Interface {
        name: Box<str>,
        negated: bool,
    },
    /// Holds with this probability.
    Chance(f64),
    InSet {
        set: Name,
        fields: Box<[Field]>,
        negated: bool,
    },
    /// As [`Step::InSet`], of an ipset, whose type says what is looked up of each side.
    InIpset {
        set: Name,
        sides: Box<[Side]>,
        negated: bool,
    },
    /// The source has been sent on by this list before, at most so many seconds ago.
    Sticky {
        list: Name,
        seconds: Option<u32>,
    },
    /// A condition that cannot be judged here.
    Unknown(Box<str>),
    // Statements.
    /// Puts the source on a list for [`Step::Sticky`].
    Remember(Name),
    /// The packet's mark becomes `(mark & !clear) ^ toggle`.
    SetMark {
        clear: u32,
        toggle: u32,
    },
    Do(Verdict),
    /// Does what the map says for these fields, if it has them.
    Look {
        fields: Box<[Field]>,
        map: Name,
    },
    /// Chooses evenly among `of` numbers; a number without a verdict goes on with the next rule.
    Spread {
        of: u32,
        to: Box<[(u32, Verdict)]>,
    },
    /// A statement that does not touch where packets go.
    Harmless,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    Accept,
    Drop,
    Reject,
    Return,
    Jump(Name),
    Goto(Name),
    /// Port 0 keeps the packet's own port.
    Dnat(SocketAddr),
    Masquerade,
    /// A target that is not known here: what follows cannot be told.
    Unknown(Box<str>),
}

/// First and last address, both included, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AddressRange {
    pub first: IpAddr,
    pub last: IpAddr,
}

impl AddressRange {
    pub const fn host(ip: IpAddr) -> Self {
        Self { first: ip, last: ip }
    }

    pub fn contains(&self, ip: IpAddr) -> bool {
        // IpAddr orders IPv4 before IPv6, so a range of one family holds none of the other.
        self.first <= ip && ip <= self.last
    }

    pub fn as_host(&self) -> Option<IpAddr> {
        (self.first == self.last).then_some(self.first)
    }

    /// From `ADDRESS`, `ADDRESS/LENGTH` or `ADDRESS/MASK` (IPv4).
    pub fn parse(text: &str) -> Option<Self> {
        let Some((base, length)) = text.split_once('/') else { return text.parse().ok().map(Self::host) };
        let base: IpAddr = base.parse().ok()?;
        let length = match length.parse::<u8>() {
            Ok(length) => length,
            Err(_) => {
                let mask = u32::from(length.parse::<std::net::Ipv4Addr>().ok()?);
                (mask.leading_ones() + mask.trailing_zeros() == 32).then_some(mask.leading_ones() as u8)?
            }
        };
        Self::of(base, length)
    }

    /// `None` where the length is larger than the family's.
    pub fn of(base: IpAddr, length: u8) -> Option<Self> {
        match base {
            IpAddr::V4(base) if length <= 32 => {
                let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
                let base = base.to_bits();
                Some(Self {
                    first: IpAddr::V4((base & !host).into()),
                    last: IpAddr::V4((base | host).into()),
                })
            }
            IpAddr::V6(base) if length <= 128 => {
                let host = u128::MAX.checked_shr(length.into()).unwrap_or(0);
                let base = base.to_bits();
                Some(Self {
                    first: IpAddr::V6((base & !host).into()),
                    last: IpAddr::V6((base | host).into()),
                })
            }
            _ => None,
        }
    }
}

impl From<Cidr> for AddressRange {
    fn from(cidr: Cidr) -> Self {
        Self::of(cidr.base, cidr.prefix).unwrap_or(Self::host(cidr.base))
    }
}

/// An address, a network, or a range where it is neither.
impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = match (self.first, self.last) {
            (IpAddr::V4(first), IpAddr::V4(last)) => {
                let differ = first.to_bits() ^ last.to_bits();
                let length = differ.leading_zeros();
                (first.to_bits() & differ == 0 && differ.checked_add(1).is_none_or(u32::is_power_of_two))
                    .then_some(length)
            }
            (IpAddr::V6(first), IpAddr::V6(last)) => {
                let differ = first.to_bits() ^ last.to_bits();
                let length = differ.leading_zeros();
                (first.to_bits() & differ == 0 && differ.checked_add(1).is_none_or(u128::is_power_of_two))
                    .then_some(length)
            }
            _ => None,
        };
        match length {
            _ if self.first == self.last => write!(f, "{}", self.first),
            Some(length) => write!(f, "{}/{length}", self.first),
            None => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

/// What of a packet is looked up in a set or map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Field {
    Source,
    Destination,
    Protocol,
    /// The destination port.
    Port,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Side {
    Source,
    Destination,
}

/// A dimension of an ipset, as its type names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Dimension {
    /// `ip` or `net`.
    Address,
    /// `port` of a hash: a protocol and a port.
    ProtocolPort,
    /// `bitmap:port`: a port of any protocol.
    Port,
}

/// One part of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Datum {
    Address(IpAddr),
    Protocol(Protocol),
    Port(u16),
    Range(AddressRange),
}

impl fmt::Display for Datum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(ip) => write!(f, "{ip}"),
            Self::Protocol(Protocol::TCP) => f.write_str("tcp"),
            Self::Protocol(Protocol::UDP) => f.write_str("udp"),
            Self::Protocol(Protocol::SCTP) => f.write_str("sctp"),
            Self::Protocol(Protocol(number)) => write!(f, "{number}"),
            Self::Port(port) => write!(f, "{port}"),
            Self::Range(range) => write!(f, "{range}"),
        }
    }
}

pub type Key = Box<[Datum]>;

/// A set, or a map where its elements have verdicts: of nftables, or an ipset.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Set {
    pub name: Name,
    #[serde(with = "saved::elements")]
    elements: HashMap<Key, Option<Verdict>>,
    /// Elements with a range in them, which are looked through one by one.
    ranges: Vec<(Key, Option<Verdict>)>,
    /// How long an element lives in seconds, of a set that is written by packets.
    pub timeout: Option<u32>,
    /// Of an ipset.
    pub dimensions: Box<[Dimension]>,
}

impl Set {
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            elements: HashMap::new(),
            ranges: Vec::new(),
            timeout: None,
            dimensions: Box::default(),
        }
    }

    pub fn insert(&mut self, key: Key, verdict: Option<Verdict>) {
        if key.iter().any(|datum| matches!(datum, Datum::Range(_))) {
            self.ranges.push((key, verdict));
        } else {
            self.elements.insert(key, verdict);
        }
    }

    pub fn remove(&mut self, key: &[Datum]) -> bool {
        let ranges = self.ranges.len();
        self.ranges.retain(|(known, _)| known.as_ref() != key);
        self.elements.remove(key).is_some() || self.ranges.len() < ranges
    }

    pub fn len(&self) -> usize {
        self.elements.len() + self.ranges.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every element with its verdict, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, Option<&Verdict>)> {
        let single = self.elements.iter().map(|(key, verdict)| (key, verdict.as_ref()));
        single.chain(self.ranges.iter().map(|(key, verdict)| (key, verdict.as_ref())))
    }

    /// The element that holds this key.
    pub fn find(&self, key: &[Datum]) -> Option<Option<&Verdict>> {
        if let Some(verdict) = self.elements.get(key) {
            return Some(verdict.as_ref());
        }
        let holds = |(element, datum): (&Datum, &Datum)| match (element, datum) {
            (Datum::Range(range), Datum::Address(ip)) => range.contains(*ip),
            (element, datum) => element == datum,
        };
        let found = self
            .ranges
            .iter()
            .find(|(element, _)| element.len() == key.len() && element.iter().zip(key).all(holds));
        found.map(|(_, verdict)| verdict.as_ref())
    }

    fn absorb(&mut self, other: Self) {
        self.elements.extend(other.elements);
        self.ranges.extend(other.ranges);
        self.timeout = self.timeout.or(other.timeout);
        if self.dimensions.is_empty() {
            self.dimensions = other.dimensions;
        }
    }
}

/// An IPVS virtual server with its real servers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VirtualServer {
    pub protocol: Protocol,
    pub address: SocketAddr,
    pub scheduler: Box<str>,
    /// Persistence in seconds.
    pub persistent: Option<u32>,
    pub destinations: Vec<Destination>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    pub address: SocketAddr,
    /// 0: takes no new connections; kube-proxy lets a removed endpoint drain so.
    pub weight: u32,
    /// Translated (`-m`); the other forwarding methods reach no Pod.
    pub masquerade: bool,
}
