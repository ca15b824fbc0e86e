//! Flows: all sightings of one connection or attempt, joined by conntrack identity.
//!
//! Owns the joining of sightings (both directions, before and after NAT, the client's socket and the backend's), the
//! end of flows and the bound on memory. It does no I/O and starts no timer. Its only clocks are those of the sightings
//! and the `now` that it receives. It does not judge causes: that is `diagnosis`.

mod attempts;
mod evidence;
mod fold;
mod identity;
mod ipvs;
mod key;
mod limits;
mod losses;
mod outcome;
mod queues;
mod reorder;
mod rereads;
mod room;
mod slots;
mod table;

pub(crate) use evidence::{
    Chosen, Closed, Dropped, End, Ended, IcmpError, Invalid, Ipvs, Occurrences, PickedUp, Refusal,
    RefusalKind, ResetEvent, SocketEnd, StackReset, Stage, Stuck, TransitReset, Trouble,
};
pub use evidence::{Decision, Flow, IcmpMeaning};
pub(crate) use limits::Counters;
pub use limits::{Limits, Reread};
pub use losses::{Lost, Suppressed};
pub(crate) use outcome::{Answer, MAX_REPETITION};
pub use outcome::{Outcome, ResetBy};
pub use room::Unjudged;
pub use table::FlowTable;

/// A flow that several may hold. It has no weak references, so that a change of a flow with one holder takes a load, and not
/// an atomic exchange.
pub type SharedFlow = triomphe::Arc<Flow>;
