//! Conditions that a healthy run never meets, in words for a developer (`-vv`): aya-log's debug lines.
//!
//! Their level is read-only data. Where they are not read it is 0, and the verifier removes them. Each is a function of
//! its own, so that the programs stay short, and begins with the hook's number, by which user space names it: a table
//! of names would need pointers in the object's data, which cannot be loaded.

use aya_log_ebpf::debug;
use tracer_ebpf::Hook;

/// Out of line for the verifier, too, which checks it by itself.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn no_room(hook: u32) -> u32 {
    debug!(
        (),
        "{} no room for a record in the ring buffer; this CPU counts the next ones silently", hook as u8
    );
    0
}

#[inline(never)]
pub(crate) fn unreadable(hook: Hook) {
    debug!(
        (),
        "{} the kernel's memory cannot be read at the address that the function was called with", hook as u8
    );
}

#[inline(never)]
pub(crate) fn unknown_family(hook: Hook, family: u16) {
    debug!((), "{} address family {} is neither IPv4 nor IPv6", hook as u8, family);
}

#[inline(never)]
pub(crate) fn not_begun(hook: Hook) {
    debug!((), "{} a call returned on a CPU where it had not begun", hook as u8);
}

#[inline(never)]
pub(crate) fn moved(hook: Hook) {
    debug!((), "{} a call moved to another CPU before it returned", hook as u8);
}
