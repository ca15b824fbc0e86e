//! Any bytes as records of the kernel half, with the layout of a real kernel and with offsets out of all reason.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use viptrace::probe::{
    decode::Decoder,
    layout::{FIELDS, Layout},
};

fuzz_target!(|input: (u32, Vec<u8>)| {
    let (stride, record) = input;
    let offsets = FIELDS.iter().zip(0_u32..).map(|(field, at)| (field.name, at.wrapping_mul(stride)));
    let layout = Layout::from_parts(offsets, [(2, Arc::from("NO_SOCKET"))], []);
    let _ = Decoder::new(Arc::new(layout), u64::from(stride)).decode(&record);
});
