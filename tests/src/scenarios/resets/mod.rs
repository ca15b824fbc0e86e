//! Resets by each possible sender, datagrams with and without an answer, and conntrack's part in both.

pub(super) mod conntrack;
pub(super) mod datagrams;
pub(super) mod sctp;
pub(super) mod senders;
