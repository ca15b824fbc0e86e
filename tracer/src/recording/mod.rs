//! Recordings: a trace in one file, to be judged again anywhere.
//!
//! [`Recorder`] stores everything that a live trace tells its [`Pipeline`], in the order in which it tells it;
//! [`Player`] tells it to another pipeline. So a replay gives the verdicts of the live run by construction, and a later
//! viptrace judges old recordings by what it has learned. Owns the format; prints nothing and judges nothing.
//!
//! # The format, version 1
//!
//! Numbers are little-endian.
//!
//! ```text
//! file    := "\xf1viptrace rec\r\n\x1a", frame...
//! frame   := "\xf1VTBLK\r\n"          8 bytes
//!            u32 kind                 0 header, 1 items
//!            u32 sequence             0, 1, 2, ... over all frames
//!            u32 compressed length    at most 16 MiB
//!            u32 payload length       at most 16 MiB
//!            u32 checksum             CRC-32 (ISO-HDLC) of the compressed payload
//!            u32 checksum             CRC-32 of the 28 bytes before it
//!            one zstd frame           the payload; blocks share no state
//! ```
//!
//! The payload of a *header* is the JSON of [`Header`]. The first frame is one; it is repeated now and then, for who
//! finds the first one spoilt. The payload of *items* is `u32 length, items, packed records`; [`records`] has the packing.
//! An item is `u8 kind, length (LEB128), body`; the highest bit of the kind says that the body goes on in the next item.
//!
//! | kind | item | body |
//! |---|---|---|
//! | 1 | records | u32: as many of the block's records, the next ones, were observed |
//! | 2 | advance | u64 Unix time in nanoseconds: time passed |
//! | 3 | lost | u64 count, u64 from, u64 to: events lost between two times |
//! | 4 | prune | u64: what was older than the look-back was forgotten |
//! | 5 | finish | u64: the trace is over |
//! | 6 | update | JSON: one event of a watch, objects trimmed |
//! | 7 | node | JSON: the node's state and rules as they were read |
//! | 8 | object | JSON: an object with its versions, as known when the recording began |
//! | 9 | start | JSON: the rest of what was known then; comes behind the objects |
//! | 10 | dropped | JSON: what the recorder had no time for |
//! | 11 | end | JSON: the end of the trace; without it the recording was cut off |
//!
//! Kinds that a reader does not know are passed over. A record is what the kernel half wrote (`tracer_ebpf`'s structs:
//! `Header` and what follows it); the header's offsets and reason names say how to read the copies of `struct nf_conn` and
//! `struct sock_common` in it. Of these copies viptrace writes the fields that it reads ([`Mask`]) and zeros for the rest:
//! hashes, timers and pointers, which are most of what cannot be compressed. Records without zeros there are as good.
//!
//! # Damage
//!
//! A reader that finds something else than a whole frame looks for the next frame's first eight bytes, and counts what
//! it passed over ([`Damage`]). A killed writer loses the block that it had in hand: at most a second, or 16,384 records.
//! Reading takes at most 16 MiB for a compressed block, 16 MiB for its payload and as much again for its columns put
//! into rows, 32 MiB for its records, 20 MiB for their shapes and 64 MiB for one item put together from several blocks,
//! besides the history and the flows, which are bounded as in a live trace.
//!
//! [`Mask`]: crate::kernel::decode::Mask
//! [`Pipeline`]: crate::session::Pipeline

mod frame;
mod header;
mod item;
mod player;
mod reader;
mod recorded;
pub(crate) mod records;
#[cfg(test)]
mod tests;
mod writer;

pub use header::{BYTE_ORDER, FORMAT, Header, RECORD_LAYOUT};
pub(crate) use header::{HookLine, HookState};
pub use item::{Dropped, End, NodeReading};
pub use player::{Missing, Player, Step};
pub use reader::DamageKind;
pub(crate) use reader::{Damage, OpenError};
pub use recorded::Recorded;
pub use records::Records;
pub(crate) use writer::Failure;
pub use writer::{CreateError, Finished, Recorder, create};
