//! Loops that stay loops.
//!
//! The compiler unrolls a loop of a few turns, and copies what it calls to several places. Programs are verified whenever they are
//! attached, and since 7.2 the verifier examines a function once more for each chain of calls that leads there with
//! a pointer to the stack (`bpf_compute_subprog_arg_access`, kernel/bpf/liveness.c): each function is called at one place.

/// The numbers below `N`, one after the other. The verifier knows them, as it must to see that the loop ends; the compiler
/// does not.
pub(crate) struct Turns<const N: u64>(u64);

#[inline(always)]
pub(crate) fn turns<const N: u64>() -> Turns<N> {
    Turns(opaque(0))
}

impl<const N: u64> Iterator for Turns<N> {
    type Item = u64;

    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let turn = self.0;
        if turn >= N {
            return None;
        }
        self.0 = opaque(turn + 1);
        Some(turn)
    }
}

/// The same number, of which the compiler knows nothing.
#[inline(always)]
pub(crate) fn opaque(number: u64) -> u64 {
    let mut number = number;
    // SAFETY: it has no instruction.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags));
    }
    number
}
