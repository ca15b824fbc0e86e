//! Any bytes as BTF, whole and as a module's on top of themselves: read or refused, never a panic or a loop.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use viptrace::probe::{btf::Btf, layout::Layout};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(btf) = Btf::parse(bytes) {
        let _ = Layout::resolve(&btf);
        let _ = btf.enum_variants("skb_drop_reason");
        let _ = btf.function("__nf_conntrack_confirm");
        let _ = btf.raw_tracepoint("kfree_skb");
        let _ = Btf::parse_split(&Arc::new(btf), bytes);
    }
});
