//! Any bytes as a recording, played to its end.
#![no_main]

mod playing;

use libfuzzer_sys::fuzz_target;
use viptrace::session::Detail;

fuzz_target!(|bytes: &[u8]| {
    let detail = if bytes.len().is_multiple_of(2) { Detail::All } else { Detail::Faults };
    playing::play(bytes.to_vec(), detail);
});
