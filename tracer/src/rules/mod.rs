//! The effect of a node's rules on Services, for every writer: iptables of either backend, nftables, IPVS.
//!
//! The parsers ([`iptables`], [`nftables`], [`ipvs`], [`ipset`]) convert every format into one form, [`Ruleset`], and
//! [`walk`] sends a packet through it as netfilter would. The destination of a new connection and the faults of the
//! rules are therefore found in the same way for all modes and all versions of kube-proxy. Pure: no I/O, no clock, and
//! no knowledge of the expected rules.

use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::net::{Family, Protocol};

mod address;
pub(crate) mod chains;
pub(crate) mod frontends;
mod index;
pub mod ipset;
pub mod iptables;
pub mod ipvs;
pub(crate) mod mark;
mod names;
pub mod nftables;
mod saved;
mod set;
pub(crate) mod sources;
mod step;
mod table;
pub mod text;
pub mod walk;

pub use address::{AddressRange, Addresses, SmallSocketAddr};
pub(crate) use frontends::{Frontend, Named};
pub use set::{Datum, Field, Side};
pub(crate) use set::{Dimension, Key, Set};
pub(crate) use sources::LocalTraffic;
pub use step::{ByState, InIpset, InSet, Look, Step, Sticky, Thin, Verdict};
pub use table::Rule;
pub(crate) use table::{Base, Chain, HookPoint, Table};
pub(crate) use walk::{End, Fate};
pub use walk::{Origin, Probe};

pub type Name = Arc<str>;

/// kube-proxy's own table in nftables mode.
pub const NFTABLES_TABLE: &str = "kube-proxy";

/// The tables that iptables writes through `nf_tables`, in the families `ip` and `ip6`.
pub(crate) const IPTABLES_TABLES: [&str; 5] = ["raw", "mangle", "nat", "filter", "security"];

/// All rules of one network namespace. May contain tables, sets and servers of both families.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Ruleset {
    pub tables: Vec<Table>,
    /// The nftables tables of programs other than kube-proxy, which only a walk of every program's rules passes.
    pub others: Vec<Table>,
    pub sets: Vec<Set>,
    /// IPVS virtual servers; `None` if they were not read.
    pub servers: Option<Vec<VirtualServer>>,
    /// This namespace's own addresses; `None` if they were not read. IPVS serves a VIP only if it is one of these
    /// (kube-ipvs0).
    pub addresses: Option<BTreeSet<IpAddr>>,
    /// The number of lines, rules or elements that could not be parsed; `oddities` has the first few.
    pub skipped: u64,
    pub oddities: Vec<String>,
}

/// The most oddities kept as text; further ones are only counted.
const MAX_ODDITIES: usize = 16;

impl Ruleset {
    /// Merges the result of another parser.
    pub fn absorb(&mut self, other: Self) {
        self.tables.extend(other.tables);
        self.others.extend(other.others);
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
        let room = MAX_ODDITIES.saturating_sub(self.oddities.len());
        self.oddities.extend(other.oddities.into_iter().take(room));
    }

    pub(crate) fn odd(&mut self, what: impl FnOnce() -> String) {
        self.skipped = self.skipped.saturating_add(1);
        if self.oddities.len() < MAX_ODDITIES {
            self.oddities.push(what());
        }
    }

    pub fn table(&self, writer: Writer, family: Family, name: &str) -> Option<&Table> {
        self.tables
            .iter()
            .find(|table| table.writer == writer && table.family == family && table.name.as_ref() == name)
    }

    /// Every table, those of other programs last.
    pub(crate) fn all_tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().chain(&self.others)
    }

    /// The table at this position in [`Self::all_tables`].
    pub(crate) fn table_at(&self, position: usize) -> Option<&Table> {
        let others = || self.others.get(position.checked_sub(self.tables.len())?);
        self.tables.get(position).or_else(others)
    }

    /// The first table of this family and name, of any writer.
    pub(crate) fn table_of(&self, family: Family, name: &str) -> Option<&Table> {
        self.tables.iter().find(|table| table.family == family && *table.name == *name)
    }

    /// The bits of the mark that KUBE-MARK-DROP sets in this family. KUBE-FIREWALL drops packets with this mark in INPUT
    /// and OUTPUT, and not those that the node forwards (`syncNetworkUtil` in `pkg/kubelet/kubelet_network_linux.go`
    /// until 1.27).
    pub(crate) fn drop_mark(&self, family: Family) -> Option<u32> {
        let mut nat = self.tables.iter().filter(|table| table.family == family && *table.name == *"nat");
        nat.find_map(|table| table.chain("KUBE-MARK-DROP")?.set_mark())
    }

    pub(crate) fn ipset(&self, name: &str) -> Option<&Set> {
        self.sets.iter().find(|set| *set.name == *name)
    }

    /// The writers of kube-proxy rules in this family: those with the chain KUBE-SERVICES or the table `kube-proxy`,
    /// and IPVS if it has virtual servers.
    pub fn writers(&self, family: Family) -> Vec<Writer> {
        let mut found = BTreeSet::new();
        for table in self.tables.iter().filter(|table| table.family == family) {
            let kube = match table.writer {
                Writer::Nftables => table.name.as_ref() == NFTABLES_TABLE,
                _ => is_services_table(table),
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

    /// Whether there is any rule of kube-proxy in this family.
    pub fn has_proxy_rules(&self, family: Family) -> bool {
        !self.writers(family).is_empty()
    }

    /// The rules of this writer only. IPVS keeps its sets and its iptables rules, of one backend if only one has them:
    /// the tables of the same name in the other are those of other programs.
    #[must_use]
    pub fn of(&self, writer: Writer) -> Self {
        let keeps = |table: &&Table| self.belongs(table, writer);
        Self {
            tables: self.tables.iter().filter(keeps).cloned().collect(),
            others: Vec::new(),
            sets: if writer == Writer::Nftables { Vec::new() } else { self.sets.clone() },
            servers: if writer == Writer::Ipvs { self.servers.clone() } else { None },
            addresses: self.addresses.clone(),
            skipped: self.skipped,
            oddities: self.oddities.clone(),
        }
    }

    /// Whether the table is one of this writer's.
    fn belongs(&self, table: &Table, writer: Writer) -> bool {
        if writer != Writer::Ipvs {
            return table.writer == writer;
        }
        let has_services = |of: &&Table| of.family == table.family && is_services_table(of);
        let backends: BTreeSet<Writer> =
            self.tables.iter().filter(has_services).map(|table| table.writer).collect();
        table.writer.is_iptables() && (backends.len() != 1 || backends.contains(&table.writer))
    }

    /// Whether [`Ruleset::of`] would remove nothing.
    pub fn is_only_of(&self, writer: Writer) -> bool {
        let tables = self.tables.iter().all(|table| self.belongs(table, writer));
        let servers = writer == Writer::Ipvs || self.servers.is_none();
        tables && servers && self.others.is_empty() && (writer != Writer::Nftables || self.sets.is_empty())
    }

    /// The total number of rules, set and map elements, and real servers.
    pub fn size(&self) -> usize {
        let rules = |table: &Table| table.chains.iter().map(|chain| chain.rules.len()).sum::<usize>();
        let elements = |table: &Table| table.sets.iter().map(Set::len).sum::<usize>();
        self.all_tables().map(|table| rules(table) + elements(table)).sum::<usize>()
            + self.sets.iter().map(Set::len).sum::<usize>()
            + self.servers.iter().flatten().map(|server| 1 + server.destinations.len()).sum::<usize>()
    }
}

/// Whether this is the table in which iptables and ipvs mode recognise Services.
fn is_services_table(table: &Table) -> bool {
    table.writer.is_iptables() && *table.name == *"nat" && table.chain("KUBE-SERVICES").is_some()
}

/// The writer of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Writer {
    /// iptables over the kernel's `ip_tables`.
    IptablesLegacy,
    /// iptables over `nf_tables`.
    IptablesNft,
    /// iptables over a backend that the dump does not name.
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

    /// The command that lists the rules of this iptables backend; for another writer, the command with the plain name.
    pub const fn save_command(self, family: Family) -> &'static str {
        match (self, family) {
            (Self::IptablesNft, Family::Ipv4) => "iptables-nft-save",
            (Self::IptablesNft, Family::Ipv6) => "ip6tables-nft-save",
            (Self::IptablesLegacy, Family::Ipv4) => "iptables-legacy-save",
            (Self::IptablesLegacy, Family::Ipv6) => "ip6tables-legacy-save",
            (_, Family::Ipv4) => "iptables-save",
            (_, Family::Ipv6) => "ip6tables-save",
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
    /// 0: takes no new connections. kube-proxy drains a removed endpoint in this way.
    pub weight: u32,
    /// Masquerading (`-m`); the other forwarding methods reach no Pod.
    pub masquerade: bool,
}
