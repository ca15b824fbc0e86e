//! The conditions and statements of a rule.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::{Addresses, Family, Field, Name, Side, SmallSocketAddr};
use crate::net::Protocol;

/// The steps of a rule that is being read.
pub(super) type Steps = SmallVec<[Step; 8]>;

/// A text or slice behind one word: with another field it takes no more room than a name.
pub type Thin<T> = Box<Box<T>>;

#[expect(clippy::unnecessary_box_returns, reason = "the inner box takes two words")]
pub(super) fn thin<T: ?Sized>(of: impl Into<Box<T>>) -> Thin<T> {
    Box::new(of.into())
}

/// Takes 24 bytes: rare and large parts are on the heap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Step {
    // Conditions.
    Source(Addresses),
    Destination(Addresses),
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
        /// Lists packets that conntrack ignores. Not in recordings of the first version.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        untracked: bool,
    },
    Mark {
        value: u32,
        mask: u32,
        negated: bool,
    },
    /// The incoming interface; a trailing `+` or `*` matches any rest.
    Interface {
        name: Thin<str>,
        negated: bool,
    },
    /// Holds with this probability.
    Chance(f64),
    InSet(Box<InSet>),
    /// As [`Step::InSet`], for an ipset, whose type determines the fields of each side.
    InIpset(Box<InIpset>),
    /// The list contains the source, which was added at most this many seconds ago.
    Sticky(Box<Sticky>),
    /// The incoming interface, or the outgoing one, is one of these.
    Devices {
        out: bool,
        names: Thin<[Box<str>]>,
        negated: bool,
    },
    /// The destination port, or the source port, is in one of these ranges.
    Ports {
        source: bool,
        ranges: Thin<[(u16, u16)]>,
        negated: bool,
    },
    Protocols {
        protocols: Thin<[Protocol]>,
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
        kind: Thin<str>,
        negated: bool,
    },
    /// Of the TCP flags in the mask, exactly these are set.
    TcpFlags {
        mask: u8,
        set: u8,
        negated: bool,
    },
    /// The mark of the packet's conntrack entry.
    ConnMark {
        value: u32,
        mask: u32,
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
    /// As [`Step::SetMark`], for the mark of the conntrack entry.
    SetConnMark {
        clear: u32,
        toggle: u32,
    },
    /// The mark of the conntrack entry becomes `(conntrack's & !clear) ^ (packet's & keep)`.
    SaveMark {
        clear: u32,
        keep: u32,
    },
    /// The packet's mark becomes `(packet's & !clear) ^ (conntrack's & keep)`.
    RestoreMark {
        clear: u32,
        keep: u32,
    },
    Do(Verdict),
    /// Applies the map's verdict for these fields, if it has one.
    Look(Box<Look>),
    /// Chooses one of `of` numbers with equal probability. A number without a verdict continues with the next rule.
    Spread {
        of: u32,
        to: Thin<[(u32, Verdict)]>,
    },
    /// Applies the verdict for a new connection, or for an answer, if there is one.
    ByState(Box<ByState>),
    /// Conntrack and NAT ignore the packet.
    NoTrack,
    /// A statement that does not affect the destination of packets.
    Harmless,
}

impl Step {
    /// Whether it changes the packet or its way at once.
    pub const fn is_effect(&self) -> bool {
        matches!(
            self,
            Self::SetMark { .. }
                | Self::SetConnMark { .. }
                | Self::SaveMark { .. }
                | Self::RestoreMark { .. }
                | Self::Remember(_)
                | Self::Do(_)
                | Self::NoTrack
        )
    }

    /// Whether it chooses a verdict.
    pub const fn is_choice(&self) -> bool {
        matches!(self, Self::Look(_) | Self::Spread { .. } | Self::ByState(_))
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
                | Self::ConnMark { .. }
                | Self::SetConnMark { .. }
                | Self::SaveMark { .. }
                | Self::RestoreMark { .. }
                | Self::ByState(_)
                | Self::NoTrack
        )
    }

    /// Passes each name of a chain, set or list to `visit`.
    pub(super) fn visit_names(&mut self, visit: &mut impl FnMut(&mut Name)) {
        match self {
            Self::InSet(condition) => visit(&mut condition.set),
            Self::InIpset(condition) => visit(&mut condition.set),
            Self::Sticky(condition) => visit(&mut condition.list),
            Self::Remember(list) => visit(list),
            Self::Look(choice) => visit(&mut choice.map),
            Self::Do(verdict) => verdict.visit_names(visit),
            Self::Spread { to, .. } => to.iter_mut().for_each(|(_, verdict)| verdict.visit_names(visit)),
            Self::ByState(choice) => {
                let known = choice.new.iter_mut().chain(&mut choice.established);
                let verdicts = known.chain(&mut choice.untracked);
                verdicts.for_each(|verdict| verdict.visit_names(visit));
            }
            _ => {}
        }
    }
}

/// Of [`Step::InSet`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InSet {
    pub set: Name,
    pub fields: Box<[Field]>,
    pub negated: bool,
}

/// Of [`Step::InIpset`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InIpset {
    pub set: Name,
    pub sides: Box<[Side]>,
    pub negated: bool,
}

/// Of [`Step::Sticky`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sticky {
    pub list: Name,
    pub seconds: Option<u32>,
}

/// Of [`Step::Look`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    pub fields: Box<[Field]>,
    pub map: Name,
}

/// Of [`Step::ByState`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ByState {
    pub new: Option<Verdict>,
    pub established: Option<Verdict>,
    /// For a packet that conntrack ignores. Not in recordings of the first version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub untracked: Option<Verdict>,
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
    Dnat(SmallSocketAddr),
    Masquerade,
    /// An unknown target: the packet's further way is unknown.
    Unknown(Box<str>),
}

impl Verdict {
    /// Passes the name of the chain that it leads to, if any, to `visit`.
    pub(super) fn visit_names(&mut self, visit: &mut impl FnMut(&mut Name)) {
        if let Self::Jump(to) | Self::Goto(to) = self {
            visit(to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_small() {
        assert_eq!(size_of::<Step>(), 24);
        assert_eq!(size_of::<Verdict>(), 24);
    }
}
