//! Copies of one program on one hook, so that an event is not lost while one of them is busy.
//!
//! The kernel does not run a program on a CPU that is already running it (`prog->active`): not for an interrupt in its
//! middle, and, where programs can be preempted (fentry with a preemptible kernel; also tracepoints since SRCU guards
//! them), not for any task of that CPU until the first one continues. A copy has its own count and runs then. Usually
//! all copies run, one after the other: the later ones find what the first one left.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use tracer_ebpf::{HOOK_SLOTS, Hook};

/// The last reported event, and how many of the copies have met it; a key of 0 for none.
#[repr(C)]
#[derive(Clone, Copy)]
struct Reported {
    key: u64,
    met: u64,
}

#[map]
static REPORTED: PerCpuArray<Reported> = PerCpuArray::with_max_entries(HOOK_SLOTS as u32, 0);

/// Whether this program, one of `copies` on the hook in any order, must report the event. `key` distinguishes the event
/// from others on this CPU at that moment, and from the next one at the same address: a program that is skipped, or
/// moves to another CPU between two copies, leaves its key behind. An event may then be reported twice, or, if its key
/// equals the one that was left, not at all.
#[inline(always)]
pub(crate) fn is_first(hook: Hook, copies: u32, key: u64) -> bool {
    if copies == 1 {
        return true;
    }
    let Some(last) = REPORTED.get_ptr_mut(hook as u32) else { return true };
    // SAFETY: a slot of a map's array: valid and aligned for as long as the program runs. A program that interrupts
    // this one may write between load and store; the kernel allows that, and the outcome is one of the two described
    // above.
    let Reported { key: reported, met } = unsafe { *last };
    let is_reported = reported == key;
    let met = if is_reported { met + 1 } else { 1 };
    let key = if met >= u64::from(copies) { 0 } else { key };
    // SAFETY: as above.
    unsafe { *last = Reported { key, met } };
    !is_reported
}
