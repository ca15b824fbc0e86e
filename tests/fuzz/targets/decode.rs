//! Any bytes as records of the kernel half, with the layout of a real kernel and with impossible offsets.
#![no_main]

mod corpus;

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use viptrace::kernel::{
    decode::{Decoder, Mask},
    layout::{FIELDS, Layout},
};

static REAL: LazyLock<Arc<Layout>> = LazyLock::new(|| Arc::new(corpus::layout()));

fuzz_target!(|input: &[u8]| {
    let Some((head, record)) = input.split_first_chunk::<4>() else { return };
    let stride = u32::from_le_bytes(*head);
    let layout = if stride == 0 { Arc::clone(&REAL) } else { Arc::new(strange(stride)) };
    let decode =
        |record: &[u8]| Decoder::new(Arc::clone(&layout), corpus::CLOCK_OFFSET_NS).decode(record).ok();
    // A record of a recording lacks the unread parts; the rest decodes to the same.
    let mut masked = record.to_vec();
    Mask::new(&layout).apply(&mut masked);
    assert_eq!(decode(&masked), decode(record));
});

fn strange(stride: u32) -> Layout {
    let offsets = FIELDS.iter().zip(0_u32..).map(|(field, at)| (field.name, at.wrapping_mul(stride)));
    Layout::from_parts(offsets, [(2, Arc::from("NO_SOCKET"))], [])
}
