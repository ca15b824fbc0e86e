//! From facts to causes: the five questions that an operator would ask, answered with evidence.
//!
//! [`flows`] judges one flow at its end; [`triage`] judges a node without traffic; [`audit`] compares its rules with the
//! API and reports differences. Nothing here does I/O or knows a clock but the times that it is given.

pub mod audit;
pub(crate) mod finding;
pub mod flows;
pub mod triage;

pub use flows::*;
