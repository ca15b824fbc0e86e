//! A kernel function's entry, reached by a kprobe or by fentry: one body, two programs. So is a tracepoint, with or without
//! types of its arguments.
//!
//! It owns the difference between the contexts and nothing of what the programs do.

use core::ptr;

use aya_ebpf::{
    EbpfContext,
    programs::{BtfTracePointContext, FEntryContext, ProbeContext, RawTracePointContext},
};

use crate::output;

/// The context of a program that runs at a function's entry, or at a tracepoint.
pub(crate) trait Entry: EbpfContext {
    /// Argument `n` as passed in its register, 0 on a platform that passes none in registers.
    fn argument(&self, n: usize) -> u64;

    /// The word at an offset of the structure that argument `n` points to, 0 where it cannot be read.
    #[inline(always)]
    fn word_behind(&self, n: usize, offset: u32) -> u64 {
        output::load(self.argument(n).wrapping_add(u64::from(offset))).unwrap_or(0)
    }
}

impl Entry for ProbeContext {
    #[inline(always)]
    fn argument(&self, n: usize) -> u64 {
        self.arg(n).unwrap_or(0)
    }
}

impl Entry for RawTracePointContext {
    #[inline(always)]
    fn argument(&self, n: usize) -> u64 {
        self.arg(n)
    }
}

/// Contexts in which the verifier knows the arguments' types.
macro_rules! typed {
    ($($context:ty),+) => {
        $(
            impl Entry for $context {
                #[inline(always)]
                fn argument(&self, n: usize) -> u64 {
                    // The whole word: the verifier accepts no narrower load of a pointer, and the compiler would narrow one of a
                    // scalar.
                    // SAFETY: the context is the function's arguments, a u64 each. The verifier refuses a program that reads one
                    // that the function does not have.
                    unsafe { self.as_ptr().cast::<u64>().add(n).read_volatile() }
                }

                /// One instruction, where a probe read is a call: the verifier knows the argument's type, and the kernel makes the
                /// word 0 where the address is bad.
                #[inline(always)]
                fn word_behind(&self, n: usize, offset: u32) -> u64 {
                    let address = self.argument(n).wrapping_add(u64::from(offset)) as usize;
                    // SAFETY: the verifier refuses the load unless the structure has a number of this size at the offset.
                    unsafe { ptr::with_exposed_provenance::<u64>(address).read_volatile() }
                }
            }
        )+
    };
}

typed!(FEntryContext, BtfTracePointContext);

/// The kprobe and the fentry program around one body.
macro_rules! at_entry {
    ($kprobe:ident, $fentry:ident, $body:ident) => {
        #[::aya_ebpf::macros::kprobe]
        pub(crate) fn $kprobe(ctx: ::aya_ebpf::programs::ProbeContext) -> u32 {
            $body(&ctx);
            0
        }

        #[::aya_ebpf::macros::fentry]
        pub(crate) fn $fentry(ctx: ::aya_ebpf::programs::FEntryContext) -> i32 {
            $body(&ctx);
            0
        }
    };
}

pub(crate) use at_entry;
