//! Several programs on one hook, so that an event is not lost while one of them is busy.
//!
//! The kernel does not run a program on a CPU that is running it already (`prog->active`): not for what an interrupt
//! does in its middle, and, where programs can be preempted (fentry with a preemptible kernel; tracepoints too since
//! they are guarded by SRCU), not for any task of that CPU until the first one goes on. A partner has a count of its
//! own and runs then. Usually all run, one after the other: the later ones find the mark of the first.

use aya_ebpf::{macros::map, maps::PerCpuArray};
use tracer_ebpf::{HOOK_SLOTS, Hook};

/// The event that was taken and the programs that have met it; a key of 0 for none.
#[repr(C)]
#[derive(Clone, Copy)]
struct Mark {
    key: u64,
    met: u64,
}

#[map]
static TAKEN: PerCpuArray<Mark> = PerCpuArray::with_max_entries(HOOK_SLOTS as u32, 0);

/// Whether this program, one of `programs` on the hook in whatever order, is to report the event. `object`, the address
/// of what it happens to, tells it from others on this CPU at that moment, `ports` from what happens to the object that
/// is there next: a program that is left out, or moves to another CPU between two of them, leaves its mark behind.
/// At worst an event is reported twice.
#[inline(always)]
pub(crate) fn takes(hook: Hook, programs: u32, object: u64, ports: impl FnOnce() -> u32) -> bool {
    if programs == 1 {
        return true;
    }
    let key = object ^ u64::from(ports()) << 32;
    let Some(mark) = TAKEN.get_ptr_mut(hook as u32) else { return true };
    let Mark { key: taken, met } = unsafe { *mark };
    let is_taken = taken == key;
    let met = if is_taken { met + 1 } else { 1 };
    let key = if met >= u64::from(programs) { 0 } else { key };
    unsafe { *mark = Mark { key, met } };
    !is_taken
}
