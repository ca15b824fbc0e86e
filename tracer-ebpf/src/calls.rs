//! The state of a CPU between two programs: calls of a function that have not returned, and an event that explains the
//! drop that follows.
//!
//! A return value is joined to its arguments by CPU and nesting depth, never by pid: the functions run in softirq on
//! top of any task. The task is a check only, for a call that moved to another CPU.

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    maps::PerCpuArray,
};
use tracer_ebpf::Hook;

use crate::messages;

/// More than a function is nested on a CPU: a task's own packet, and a softirq on top of it.
const DEPTHS: usize = 4;

/// One function's calls on one CPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Calls {
    depth: u32,
    reserved: u32,
    open: [Call; DEPTHS],
    /// The last [`note`]; its argument is the time.
    noted: Call,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Call {
    argument_or_time: u64,
    pid_tgid: u64,
}

pub(crate) type Map = PerCpuArray<Calls>;

pub(crate) const fn map() -> Map {
    PerCpuArray::with_max_entries(1, 0)
}

/// A call begins.
#[inline(always)]
pub(crate) fn begin(calls: &Map, argument: u64) {
    let Some(calls) = calls.get_ptr_mut(0) else { return };
    // SAFETY: a slot of a map's array, of this CPU alone: valid and aligned for as long as the program runs. A program
    // that interrupts this one on this CPU ends its own calls before it returns.
    unsafe {
        // The kernel may lose a return (no free instance of the kretprobe, a skipped program). Real calls are never this
        // deep, so all of these are lost ones: start over.
        let depth = if ((*calls).depth as usize) < DEPTHS { (*calls).depth as usize } else { 0 };
        (*calls).open[depth & (DEPTHS - 1)] =
            Call { argument_or_time: argument, pid_tgid: bpf_get_current_pid_tgid() };
        (*calls).depth = depth as u32 + 1;
    }
}

/// The argument of the call that ends; `None` if its beginning is not known.
#[inline(always)]
pub(crate) fn end(calls: &Map, hook: Hook) -> Option<u64> {
    let calls = calls.get_ptr_mut(0)?;
    // SAFETY: as in `begin`.
    unsafe {
        let depth = (*calls).depth;
        if depth == 0 {
            messages::not_begun(hook as u32);
            return None;
        }
        (*calls).depth = depth - 1;
        let call = (*calls).open[(depth - 1) as usize & (DEPTHS - 1)];
        if call.pid_tgid != bpf_get_current_pid_tgid() {
            messages::moved(hook as u32);
            // A call that moved away left its entry on this CPU's stack: start over.
            (*calls).depth = 0;
            return None;
        }
        Some(call.argument_or_time)
    }
}

/// Notes that the current event on this CPU explains the drop that follows.
#[inline(always)]
pub(crate) fn note(calls: &Map) {
    let Some(calls) = calls.get_ptr_mut(0) else { return };
    // SAFETY: a slot of a map's array, of this CPU alone: valid and aligned for as long as the program runs. The
    // helpers only read the clock and the current task.
    unsafe {
        (*calls).noted = Call { argument_or_time: bpf_ktime_get_ns(), pid_tgid: bpf_get_current_pid_tgid() };
    }
}

/// Whether the last note on this CPU, unless it was taken already, is this task's and no older than `within_ns`.
#[inline(always)]
pub(crate) fn take_note(calls: &Map, within_ns: u64) -> bool {
    let Some(calls) = calls.get_ptr_mut(0) else { return false };
    // SAFETY: as in `note`.
    unsafe {
        let noted = (*calls).noted;
        if noted.argument_or_time == 0 {
            return false;
        }
        (*calls).noted.argument_or_time = 0;
        noted.pid_tgid == bpf_get_current_pid_tgid()
            && bpf_ktime_get_ns().wrapping_sub(noted.argument_or_time) < within_ns
    }
}
