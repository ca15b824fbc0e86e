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

pub use evidence::{
    Chosen, Closed, Decision, Dropped, End, EndTrouble, Ended, Flow, IcmpError, IcmpMeaning, Invalid, Ipvs,
    Mark, PickedUp, Previous, Refusal, RefusalKind, ResetEvent, SocketEnd, StackReset, Stage, TransitReset,
    Trouble,
};
pub use limits::{Counters, Limits, Reread};
pub use outcome::{Answer, Outcome, ResetBy};
pub use table::FlowTable;
