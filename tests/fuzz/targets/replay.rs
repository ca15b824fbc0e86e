//! A recording with right lengths and checksums, played to its end.
//!
//! The input is a byte of flags, and the pieces of the recording: see `pieces`.
#![no_main]

mod corpus;
mod pieces;
mod playing;

use libfuzzer_sys::fuzz_target;
use viptrace::session::Detail;

fuzz_target!(|input: &[u8]| {
    let Some((flags, pieces)) = input.split_first() else { return };
    let detail = if flags & 1 == 0 { Detail::All } else { Detail::Faults };
    playing::play(pieces::file(pieces), detail);
});
