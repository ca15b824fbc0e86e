//! An incident, from the recordings of one or several nodes.
//!
//! Brings their clocks together, plays their traces side by side as one timeline, and tells what happened: the first
//! failure, what changed before, who was hit, when it ended. Must not judge: the verdicts are those of `session`.

mod absence;
mod chapter;
pub mod clock;
mod pathfinder;
mod rate;
mod story;
mod timeline;
mod trail;

pub(crate) use chapter::APART;
pub use chapter::{Bout, Change, Chapter, Names};
pub use pathfinder::{Found, Pathfinder};
pub use rate::{Rate, Span};
pub use story::{Beside, Ended, Story};
pub use timeline::{Moment, Timeline, Track};
pub(crate) use trail::complete;
pub use trail::{RulesThen, Trail, TrailStep, Way};
