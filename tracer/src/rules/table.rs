//! Tables, chains and rules, of iptables and nftables alike.

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

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "saved::Table", into = "saved::Table")]
pub struct Table {
    pub writer: Writer,
    pub family: Family,
    pub name: Name,
    pub chains: Vec<Chain>,
    /// nftables only; those of iptables are ipsets and stand beside the tables.
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

    pub(super) fn position(&self, name: &str) -> Option<usize> {
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
        let known = self.sets_by_name.get(&set.name).and_then(|position| self.sets.get_mut(*position));
        if let Some(known) = known {
            known.absorb(set);
        } else {
            self.sets_by_name.insert(Arc::clone(&set.name), self.sets.len());
            self.sets.push(set);
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
    pub(super) index: Option<index::Index>,
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
