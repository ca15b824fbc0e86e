//! The notes of a walk about a packet's way, for a reader that wants every rule and not only the fate.
//!
//! Owns the form of the notes. [`Unobserved`] notes nothing and costs nothing: an audit walks with it.

use std::{
    fmt::Debug,
    net::{IpAddr, SocketAddr},
    rc::Rc,
};

use super::{Name, Unknown, Verdict};
use crate::rules::mark::Marks;

/// The most notes of one way.
const MAX_NOTES: usize = 2048;

/// A rule in a ruleset, by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub table: usize,
    pub chain: usize,
    pub rule: usize,
}

/// A step of a packet's way.
#[derive(Clone, Debug, PartialEq)]
pub enum Note {
    /// A rule's conditions hold, and its statements apply to a packet that had these marks before them.
    Matches { place: Place, marks: Marks },
    /// The map, the random number or the state in a rule gives this verdict. If the rule has other statements, they are noted
    /// before it.
    Chooses { place: Place, verdict: Verdict },
    /// It was assumed that the conditions of this rule that cannot be judged hold.
    Assumes { place: Place },
    /// The base chain has no verdict for it, and its policy drops it.
    Policy { table: usize, chain: usize },
    /// The routing decision: to this node, or out of a device if it is known.
    Routed { local: bool, device: Option<Name> },
    /// IPVS takes it. `None`: no real server takes new connections.
    Server { address: SocketAddr, real: Option<SocketAddr>, masquerade: bool },
    /// Nothing is known about its way after this.
    Lost { place: Place, why: Unknown },
}

impl Note {
    /// The rule that was applied, and the verdict that was chosen in it.
    pub(crate) const fn applied(&self) -> Option<(Place, Option<&Verdict>)> {
        match self {
            Self::Matches { place, .. } => Some((*place, None)),
            Self::Chooses { place, verdict } => Some((*place, Some(verdict))),
            _ => None,
        }
    }

    /// The rule at which it was made.
    pub(crate) const fn place(&self) -> Option<Place> {
        match self {
            Self::Matches { place, .. }
            | Self::Chooses { place, .. }
            | Self::Assumes { place }
            | Self::Lost { place, .. } => Some(*place),
            Self::Policy { .. } | Self::Routed { .. } | Self::Server { .. } => None,
        }
    }
}

/// Follows one packet's ways.
pub trait Observer {
    /// The notes of one way. Ways that branch off share their beginning.
    type Trail: Clone + Debug + Default;
    /// Whether the packet passes the chains and policies of every program, and whether a condition that cannot be
    /// judged is followed both ways.
    const WHOLE: bool;

    fn note(_trail: &mut Self::Trail, _note: impl FnOnce() -> Note) {}

    /// Begins or continues to assume that a rule's conditions hold. `false` if another rule is assumed to hold already:
    /// each assumption is followed by itself.
    fn assume(_trail: &mut Self::Trail, _place: Place) -> bool {
        false
    }

    /// The rule that is assumed to hold.
    fn assumed(_trail: &Self::Trail) -> Option<Place> {
        None
    }

    /// The device through which packets to this address leave, if it is known.
    fn device_to(&self, _address: IpAddr) -> Option<&str> {
        None
    }

    fn source_port(&self) -> Option<u16> {
        None
    }

    /// Whether IPVS hides its connections from conntrack (`vs/conntrack=0`): NAT does not masquerade them
    /// (`ip_vs_notrack` in `net/netfilter/ipvs/ip_vs_xmit.c`).
    fn ipvs_is_untracked(&self) -> bool {
        false
    }

    /// Whether the packet answers a connection that conntrack knows: NAT's chains do not see it.
    fn is_reply(&self) -> bool {
        false
    }
}

/// Notes nothing, and follows kube-proxy's rules only.
#[derive(Clone, Copy, Debug)]
pub struct Unobserved;

impl Observer for Unobserved {
    type Trail = ();
    const WHOLE: bool = false;
}

/// The notes of one way.
#[derive(Clone, Debug, Default)]
pub struct Notes {
    last: Option<Rc<Knot>>,
    length: usize,
    assumed: Option<Place>,
}

#[derive(Debug)]
struct Knot {
    note: Note,
    before: Option<Rc<Knot>>,
}

impl Notes {
    fn push(&mut self, note: Note) {
        if self.length < MAX_NOTES {
            self.length += 1;
            self.last = Some(Rc::new(Knot { note, before: self.last.take() }));
        }
    }

    /// Whether notes are missing at the end.
    pub const fn is_cut(&self) -> bool {
        self.length >= MAX_NOTES
    }

    pub const fn assumed(&self) -> Option<Place> {
        self.assumed
    }

    /// Whether the way is not known to its end: nothing follows such a note.
    pub fn is_lost(&self) -> bool {
        self.last.as_ref().is_some_and(|last| matches!(last.note, Note::Lost { .. }))
    }

    /// The notes, the first one first.
    pub fn to_vec(&self) -> Vec<Note> {
        let mut notes = Vec::with_capacity(self.length);
        let mut next = self.last.as_ref();
        while let Some(knot) = next {
            notes.push(knot.note.clone());
            next = knot.before.as_ref();
        }
        notes.reverse();
        notes
    }
}

/// Notes everything, and follows every program's rules.
#[derive(Debug, Default)]
pub struct Witness<D> {
    /// The device through which packets to an address leave.
    pub devices: D,
    pub source_port: Option<u16>,
    pub is_reply: bool,
    pub ipvs_is_untracked: bool,
}

/// Knows the device through which packets to an address leave.
pub trait Devices {
    fn device_to(&self, address: IpAddr) -> Option<&str>;
}

impl<D: Devices> Observer for Witness<D> {
    type Trail = Notes;
    const WHOLE: bool = true;

    fn note(trail: &mut Notes, note: impl FnOnce() -> Note) {
        trail.push(note());
    }

    fn assume(trail: &mut Notes, place: Place) -> bool {
        if let Some(assumed) = trail.assumed {
            return assumed == place;
        }
        trail.assumed = Some(place);
        trail.push(Note::Assumes { place });
        true
    }

    fn assumed(trail: &Notes) -> Option<Place> {
        trail.assumed
    }

    fn device_to(&self, address: IpAddr) -> Option<&str> {
        self.devices.device_to(address)
    }

    fn source_port(&self) -> Option<u16> {
        self.source_port
    }

    fn is_reply(&self) -> bool {
        self.is_reply
    }

    fn ipvs_is_untracked(&self) -> bool {
        self.ipvs_is_untracked
    }
}
