//! Resets by whoever sends them, datagrams with and without an answer, and what conntrack has to do with both.

pub(super) mod conntrack;
pub(super) mod datagrams;
pub(super) mod sctp;
pub(super) mod senders;
