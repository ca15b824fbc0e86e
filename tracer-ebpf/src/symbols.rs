//! Where a function of the kernel begins. The kernel tells a program at once; a link by names goes through all symbols.

use aya_ebpf::{
    EbpfContext as _, helpers::generated::bpf_kallsyms_lookup_name, macros::raw_tracepoint,
    programs::RawTracePointContext,
};
use tracer_ebpf::{SYMBOL_BYTES, SymbolQuery};

#[expect(clippy::cast_possible_wrap, reason = "it is 64")]
const NAME_BYTES: i32 = SYMBOL_BYTES as i32;

/// Never attached: user space loads it as a program of system calls (since 5.16), and runs it with a [`SymbolQuery`] as its
/// context. The name of a tracepoint stands here because a program needs one.
#[raw_tracepoint(tracepoint = "inet_sock_set_state")]
pub(crate) fn find_symbol(ctx: RawTracePointContext) -> i32 {
    let query = ctx.as_ptr().cast::<SymbolQuery>();
    // SAFETY: the context is a query, which the verifier checks by its size.
    let name = unsafe { (*query).name };
    let mut address = 0;
    // SAFETY: the helper reads the name, whose length is passed, and writes the address.
    let refused = unsafe { bpf_kallsyms_lookup_name(name.as_ptr().cast(), NAME_BYTES, 0, &raw mut address) };
    // SAFETY: as above.
    unsafe { (*query).address = address };
    refused as i32
}
