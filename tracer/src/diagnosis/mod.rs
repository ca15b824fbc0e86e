//! From facts to causes: the questions of an operator, answered with evidence.
//!
//! [`flows`] judges one flow at its end; [`triage`] judges a node without traffic; [`audit`] compares its rules with the
//! API and reports differences; [`path`] follows one packet through the rules. Nothing here does I/O or reads a clock.

pub mod audit;
pub(crate) mod finding;
pub mod flows;
mod left_out;
pub mod path;
mod remedy;
pub mod triage;

pub use finding::Words;
pub use flows::*;
