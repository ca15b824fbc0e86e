//! Recordings as files for other programs: packets for Wireshark, tables for databases.
//!
//! Owns the formats and what of the recordings goes into them. Judges nothing: the verdicts are those of a replay.

mod columns;
pub(crate) mod packets;
mod pcapng;
mod sighted;
mod tables;
mod verdicts;

pub(crate) use tables::Tables;
pub(crate) use verdicts::Verdicts;
