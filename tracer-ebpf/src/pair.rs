//! Two programs on one hook, so that an event is not lost while the first of them is busy.
//!
//! The kernel does not run a program on a CPU that is running it already (`prog->active`): not for what an interrupt
//! does in its middle, and, where programs can be preempted (fentry with a preemptible kernel; tracepoints too since
//! they are guarded by SRCU), not for any task of that CPU until the first one goes on. The other program of a pair has
//! a count of its own and runs then. Usually both run, one after the other: the second finds the first one's mark.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use tracer_ebpf::{HOOK_SLOTS, Hook};

/// The event that one program of the hook's pair has taken and the other has not met yet, 0 for none.
#[map]
static TAKEN: PerCpuArray<u64> = PerCpuArray::with_max_entries(HOOK_SLOTS as u32, 0);

/// Whether this program is to report the event, which `key`, never 0, tells from others on this CPU at that moment.
///
/// A mark may be left behind, by a second program that was left out or moved to another CPU. Then the same key's next
/// event is reported by the second program; at worst an event is reported twice, never not at all.
#[inline(always)]
pub(crate) fn takes(hook: Hook, key: u64) -> bool {
    let Some(taken) = TAKEN.get_ptr_mut(hook as u32) else { return true };
    let met = unsafe { *taken } == key;
    unsafe { *taken = if met { 0 } else { key } };
    !met
}
