//! Recordings: a trace in one file, to be judged again anywhere.
//!
//! [`Recorder`] stores every input of a live trace's [`Pipeline`], in its order. [`Player`] feeds them to another
//! pipeline. A replay therefore gives the verdicts of the live trace by construction, and a later viptrace judges old
//! recordings with its newer rules. Owns the format; prints nothing and judges nothing.
//!
//! # The format, version 1
//!
//! Numbers are little-endian. Times are Unix times of the trace's clock, which a step of the wall clock does not change.
//!
//! ```text
//! file    := "\xf1viptrace rec\r\n\x1a", frame...
//! frame   := "\xf1VTBLK\r\n"          8 bytes
//!            u32 kind                 0 header, 1 items, 2 index
//!            u32 sequence             0, 1, 2, ... over all frames
//!            u32 compressed length    at most 16 MiB
//!            u32 payload length       at most 16 MiB
//!            u32 checksum             CRC-32 (ISO-HDLC) of the compressed payload
//!            u32 checksum             CRC-32 of the 28 bytes before it
//!            one zstd frame           the payload; blocks share no state. A column of the packed records begins a
//!                                     block of zstd's, with codes of its own, as far as it pays; so does what follows
//!                                     the items
//! ```
//!
//! The payload of a *header* is the JSON of [`Header`]. The first frame is a header. It is repeated from time to time,
//! in case the first one is damaged. The payload of *items* is `u32 length, items, packed records`; [`records`]
//! describes the packing. An item is `u8 kind, length (LEB128), body`; the highest bit of the kind means that the body
//! continues in the next item.
//!
//! | kind | item | body |
//! |---|---|---|
//! | 1 | records | u32: the next records of the block, in this number, were observed; u64: their latest time |
//! | 2 | advance | u64 Unix time in nanoseconds: time advanced |
//! | 3 | lost | u64 count, u64 from, u64 to: events lost between two times |
//! | 4 | prune | u64: versions older than the look-back were removed |
//! | 5 | finish | u64: the end of the flows |
//! | 6 | update | JSON: one event of a watch, objects trimmed |
//! | 7 | node | JSON: the node's state and rules as they were read |
//! | 8 | object | JSON: an object with its versions, at the beginning of the recording |
//! | 9 | start | JSON: the other metadata at that time; follows the objects |
//! | 10 | dropped | JSON: the inputs that the recorder dropped |
//! | 11 | end | JSON: the end of the trace; without it the recording was cut off |
//! | 12 | hook | JSON: a hook was attached, or is lost, since a time |
//! | 13 | suppressed | JSON: the events of one client, or of one Service, that the kernel suppressed |
//! | 14 | wall clock | JSON: how far it is ahead of the clock of the other times, from a time on |
//! | 15 | changes | JSON: the changes of the hour before, at the beginning of the recording; follows the start |
//! | 16 | node state | JSON: as 7, without rules; it only shows changes |
//! | 17 | reread | u64: the entries that flows waited for after the last advance were read again then |
//!
//! An *index* describes the frames between the index frame before it and itself: their lengths, their times, filters of the
//! addresses in their records, and the part of each from which its items can be unpacked without the records. The writer
//! adds one after at most 64 frames, and one at the end of a file that was closed. [`index`] describes it. A query reads the
//! frames with wanted addresses and times, and of the others only the items, which every verdict may need: the objects, the
//! node's readings, the losses. A file without an index at its end, because it was cut off or an older viptrace wrote it, is
//! read whole. From a frame on that differs from the index, a file is read without it. In a realistic mix the index takes
//! 0.08 bytes a record.
//!
//! A reader skips kinds that it does not know. A record has the form of the kernel half (`tracer_ebpf`'s structs:
//! `Header` and the data that follows). The header's offsets and reason names describe the copies of `struct nf_conn`
//! and `struct sock_common` in it. Of these copies, and of the copy of a packet, viptrace writes the fields that it reads
//! ([`Mask`]), and zeros for the rest: hashes, timers and pointers, most of which do not compress, and everything after a
//! packet's headers, which may be payload. In the place of the address of a conntrack entry or of a socket is a number
//! that only distinguishes it from others ([`Addresses`]). Records of other writers, with addresses and without zeros
//! there, are valid too.
//!
//! # Damage
//!
//! If a reader finds no intact frame, it searches for the magic of the next frame and counts the skipped bytes
//! ([`Damage`]). A killed writer loses its current block: at most a second, or 16,384 records. Reading takes at most 16
//! MiB for a compressed block, 16 MiB for its payload and as much again for its columns as rows, 32 MiB for its
//! records, 16 MiB for their sightings, 20 MiB for their shapes and 64 MiB for one item assembled from several blocks, in
//! addition to the history and the flows, which are bounded as in a live trace. By the index, reading also takes 64 bytes for
//! each block, and writing at most 256 KiB for the filters and 5 MiB for the addresses of one block.
//!
//! A query does not notice damage in records that it does not read.
//!
//! [`Mask`]: crate::kernel::decode::Mask
//! [`Pipeline`]: crate::session::Pipeline

mod counts;
#[cfg(test)]
pub(crate) mod fixtures;
mod frame;
mod header;
mod index;
mod item;
#[cfg(test)]
mod perturbed;
mod player;
mod reader;
mod recorded;
pub(crate) mod records;
mod redact;
mod sightings;
mod tape;
#[cfg(test)]
pub(crate) mod tests;
mod wanted;
mod writer;

pub use counts::{EventCounter, EventCounts, Lacks, OfService};
pub use header::{BYTE_ORDER, FORMAT, Header, RECORD_LAYOUT};
pub(crate) use header::{HookLine, HookState};
pub use item::{Dropped, End, NodeReading};
pub use player::{Missing, Player, Step};
pub(crate) use reader::{Damage, OpenError};
pub use reader::{DamageKind, Reading};
pub use recorded::Recorded;
pub use records::Records;
pub(crate) use redact::{RedactError, Redacted, Redaction, Substitutes};
pub use sightings::{Observed, Sightings};
pub(crate) use tape::{IndexState, PART, is_irregular};
pub use tape::{LeftOut, Tape, Tapes, UnusableFile};
pub use wanted::{Part, Wanted};
pub(crate) use writer::Failure;
pub use writer::{Addresses, CLOSE_LIMIT, CreateError, Finished, Recorder, create};
