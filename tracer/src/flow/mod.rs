//! Flows: every sighting of one connection or attempt, folded together by conntrack identity.
//!
//! Owns the joining of sightings (both directions, before and after NAT, the client's socket and the backend's),
//! the end of flows and the bound on memory. It does no I/O, starts no timer, knows no clock but the sightings' and
//! the `now` it is given, and says nothing about causes: that is `diagnosis`.

mod evidence;
mod fold;
mod identity;
mod ipvs;
mod key;
mod limits;
mod outcome;
mod reorder;
mod rereads;
mod slots;
mod table;

pub(crate) use evidence::{
    Chosen, Closed, Dropped, End, Ended, IcmpError, Invalid, Ipvs, Mark, PickedUp, Refusal, RefusalKind,
    ResetEvent, SocketEnd, StackReset, Stage, TransitReset, Trouble,
};
pub use evidence::{Decision, Flow, IcmpMeaning};
pub(crate) use limits::Counters;
pub use limits::{Limits, Reread};
pub(crate) use outcome::Answer;
pub use outcome::{Outcome, ResetBy};
pub use table::FlowTable;
