//! Tables, chains and rules of iptables and nftables.

use std::{net::SocketAddr, sync::Arc};

use foldhash::HashMap;
use serde::{Deserialize, Serialize};

use super::{AddressRange, Family, Field, Name, Set, Side, Writer, index, saved};
use crate::net::Protocol;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum HookPoint {
    Prerouting,
    Input,
    Forward,
    Output,
    Postrouting,
}

impl HookPoint {
    /// As iptables names it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Prerouting => "PREROUTING",
            Self::Input => "INPUT",
            Self::Forward => "FORWARD",
            Self::Output => "OUTPUT",
            Self::Postrouting => "POSTROUTING",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "saved::Table", into = "saved::Table")]
pub struct Table {
    pub writer: Writer,
    pub family: Family,
    pub name: Name,
    pub chains: Vec<Chain>,
    /// nftables only; iptables has ipsets, which are stored next to the tables.
    pub sets: Vec<Set>,
    pub(super) by_name: HashMap<Name, usize>,
    pub(super) sets_by_name: HashMap<Name, usize>,
}

impl Table {
    pub fn new(writer: Writer, family: Family, name: &str) -> Self {
        Self {
            writer,
            family,
            name: name.into(),
            chains: Vec::new(),
            sets: Vec::new(),
            by_name: HashMap::default(),
            sets_by_name: HashMap::default(),
        }
    }

    pub fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.get(*self.by_name.get(name)?)
    }

    pub fn set(&self, name: &str) -> Option<&Set> {
        self.sets.get(*self.sets_by_name.get(name)?)
    }

    pub(crate) fn position(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The chain of this name, which is created if it does not exist.
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

    /// Adds a set, or its elements to the set of the same name.
    pub fn add_set(&mut self, set: Set) {
        let known = self.sets_by_name.get(&set.name).and_then(|position| self.sets.get_mut(*position));
        if let Some(known) = known {
            known.absorb(set);
        } else {
            self.sets_by_name.insert(Arc::clone(&set.name), self.sets.len());
            self.sets.push(set);
        }
    }

    /// Indexes long chains. Call it when the table is complete, and again after every change.
    pub fn seal(&mut self) {
        for chain in &mut self.chains {
            chain.index = index::Index::of(&chain.rules);
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Chain {
    pub name: Name,
    /// The hook from which the kernel enters it, if any.
    pub base: Option<Base>,
    pub rules: Vec<Rule>,
    #[serde(skip)]
    pub(super) index: Option<index::Index>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    pub nat: bool,
    pub hook: HookPoint,
    /// The chains of a hook run in the order of their priorities, lowest first.
    pub priority: i32,
    pub drops: bool,
}

/// One rule: conditions and statements in their order. The rule ends at the first condition that does not hold.
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
        /// Lists the state of answers. Not in recordings of the first version.
        #[serde(default)]
        established: bool,
    },
    Mark {
        value: u32,
        mask: u32,
        negated: bool,
    },
    /// The incoming interface; a trailing `+` or `*` matches any rest.
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
    /// As [`Step::InSet`], for an ipset, whose type determines the fields of each side.
    InIpset {
        set: Name,
        sides: Box<[Side]>,
        negated: bool,
    },
    /// The list contains the source, which was added at most this many seconds ago.
    Sticky {
        list: Name,
        seconds: Option<u32>,
    },
    /// The incoming interface, or the outgoing one, is one of these.
    Devices {
        out: bool,
        names: Box<[Box<str>]>,
        negated: bool,
    },
    /// The destination port, or the source port, is in one of these ranges.
    Ports {
        source: bool,
        ranges: Box<[(u16, u16)]>,
        negated: bool,
    },
    Protocols {
        protocols: Box<[Protocol]>,
        negated: bool,
    },
    /// The packet is of this family, in a table of both.
    OfFamily {
        family: Family,
        negated: bool,
    },
    /// The type of the source or destination address other than the node's own, in lower case: `multicast`.
    AddressType {
        source: bool,
        kind: Box<str>,
        negated: bool,
    },
    /// Of the TCP flags in the mask, exactly these are set.
    TcpFlags {
        mask: u8,
        set: u8,
        negated: bool,
    },
    /// A condition that cannot be evaluated.
    Unknown(Box<str>),
    // Statements.
    /// Adds the source to a list for [`Step::Sticky`].
    Remember(Name),
    /// The packet's mark becomes `(mark & !clear) ^ toggle`.
    SetMark {
        clear: u32,
        toggle: u32,
    },
    Do(Verdict),
    /// Applies the map's verdict for these fields, if it has one.
    Look {
        fields: Box<[Field]>,
        map: Name,
    },
    /// Chooses one of `of` numbers with equal probability. A number without a verdict continues with the next rule.
    Spread {
        of: u32,
        to: Box<[(u32, Verdict)]>,
    },
    /// Applies the verdict for a new connection, or for an answer, if there is one.
    ByState {
        new: Option<Verdict>,
        established: Option<Verdict>,
    },
    /// Conntrack and NAT ignore the packet.
    NoTrack,
    /// A statement that does not affect the destination of packets.
    Harmless,
}

impl Step {
    /// Whether it changes the packet or its way at once.
    pub const fn is_effect(&self) -> bool {
        matches!(self, Self::SetMark { .. } | Self::Remember(_) | Self::Do(_) | Self::NoTrack)
    }

    /// Whether it chooses a verdict.
    pub const fn is_choice(&self) -> bool {
        matches!(self, Self::Look { .. } | Self::Spread { .. } | Self::ByState { .. })
    }

    /// Whether only rules of other programs have it. An audit does not judge them.
    pub const fn is_foreign(&self) -> bool {
        matches!(
            self,
            Self::Devices { .. }
                | Self::Ports { .. }
                | Self::Protocols { .. }
                | Self::OfFamily { .. }
                | Self::AddressType { .. }
                | Self::TcpFlags { .. }
                | Self::ByState { .. }
                | Self::NoTrack
        )
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Verdict {
    Accept,
    Drop,
    Reject,
    Return,
    Jump(Name),
    Goto(Name),
    /// Port 0 keeps the packet's port.
    Dnat(SocketAddr),
    Masquerade,
    /// An unknown target: the packet's further way is unknown.
    Unknown(Box<str>),
}
