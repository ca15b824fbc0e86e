//! Any bytes as BTF, as the kernel's and as a module's on top: parsed or refused, never a panic or an endless loop.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use viptrace::{
    kernel::{
        btf::Btf,
        layout::{FIELDS, Layout},
    },
    sighting::Hook,
};

fuzz_target!(|bytes: &[u8]| {
    let Ok(btf) = Btf::parse(bytes) else { return };
    look_up(&btf);
    if let Ok(module) = Btf::parse_split(&Arc::new(btf), bytes.to_vec()) {
        look_up(&module);
    }
});

/// Every lookup of a trace, and further types of the small kernel in the corpus.
fn look_up(btf: &Btf) {
    let _ = Layout::resolve(btf);
    for structure in FIELDS.iter().map(|field| field.structure).chain(["nf_conn", "sk_buff", "net"]) {
        let _ = btf.struct_size(structure);
    }
    for name in ["skb_drop_reason", "verdict", "wide"] {
        let _ = btf.enum_variants(name);
        let _ = btf.enum_value(name, "SMALL");
    }
    for symbol in Hook::ALL.iter().map(|hook| hook.symbol()).chain(["nf_confirm", "kfree_skb", "lonely"]) {
        let _ = btf.function(symbol);
        let _ = btf.raw_tracepoint(symbol);
    }
}
