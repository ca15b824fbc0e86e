//! Copies of one program on one hook, so that an event is not lost while one of them is busy.
//!
//! The kernel does not run a program on a CPU that is already running it (`prog->active`): not for an interrupt in its
//! middle, and, where programs can be preempted (fentry with a preemptible kernel; also tracepoints since SRCU guards
//! them), not for any task of that CPU until the first one continues. A copy has its own count and runs then. Usually
//! all copies run, one after the other: the later ones find what the first one left.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use tracer_ebpf::{HOOK_SLOTS, Hook};

/// The last event that a copy of a hook met.
#[repr(C)]
#[derive(Clone, Copy)]
struct Met {
    key: u64,
    /// The copies that have met it, a bit each.
    by: u64,
}

#[map]
static MET: PerCpuArray<Met> = PerCpuArray::with_max_entries(HOOK_SLOTS as u32, 0);

/// Whether this copy, the number `copy` of several that run in any order, must report the event. `key` distinguishes the
/// event from others on this CPU at that moment. The next event may have the same key: a copy that has met the key meets
/// another event, because it runs once for each.
///
/// A copy that is skipped, or a program that moves to another CPU between two copies, leaves an incomplete set behind. An
/// event may then be reported twice, or, if its key equals the one that was left and only other copies run, not at all.
#[inline(always)]
pub(crate) fn is_first(hook: Hook, copies: u32, copy: u32, key: u64) -> bool {
    if copies == 1 {
        return true;
    }
    let Some(last) = MET.get_ptr_mut(hook as u32) else { return true };
    let own = 1 << copy;
    // SAFETY: a slot of a map's array: valid and aligned for as long as the program runs. A program that interrupts
    // this one may write between load and store; the kernel allows that, and the outcome is one of the two described
    // above.
    let Met { key: met, by } = unsafe { *last };
    let is_first = met != key || by & own != 0;
    let by = if is_first { own } else { by | own };
    // SAFETY: as above.
    unsafe { *last = Met { key, by } };
    is_first
}
