//! Loads from the kernel's memory, where the kernel lets a program give a type to an address.
//!
//! A probe read is a call: some 65 instructions for a byte, and 170 for the beginning of a conntrack entry. A load is one, and
//! six more that compare the address, which the kernel adds; the value is 0 where the address is bad. The verifier accepts loads
//! from typed memory only. `bpf_rdonly_cast` (since 6.2) gives a type to any address: here that of a structure with a long array of
//! bytes, in which a load of any size may lie anywhere.

use aya_ebpf::Global;

/// The structure's id in vmlinux's BTF; 0 where the kernel has no cast.
#[unsafe(no_mangle)]
static CAST_TYPE: Global<u32> = Global::new(0);
/// Where its array begins, and its length, bytes.
#[unsafe(no_mangle)]
static CAST_FROM: Global<u32> = Global::new(0);
#[unsafe(no_mangle)]
static CAST_BYTES: Global<u32> = Global::new(0);

/// The same address, for loads of a `T` or of its parts. They must be volatile: the verifier accepts none that the compiler joined
/// across the array's end. `None` where the kernel has no cast; the verifier knows which, and removes the comparisons.
#[inline(always)]
pub(crate) fn typed<T>(address: u64) -> Option<*const T> {
    let (id, from) = (CAST_TYPE.load(), u64::from(CAST_FROM.load()));
    if id == 0 || size_of::<T>() > CAST_BYTES.load() as usize {
        return None;
    }
    let typed = cast(address.wrapping_sub(from), id).wrapping_add(from);
    Some(core::ptr::with_exposed_provenance(typed as usize))
}

/// The same address as a pointer to the type with this id. User space puts the call of the kernel's function in the place of this
/// one, whose number no helper has.
#[cfg(target_arch = "bpf")]
#[inline(always)]
fn cast(address: u64, id: u32) -> u64 {
    let typed;
    // SAFETY: the function returns its first argument, and reads and writes no memory.
    unsafe {
        core::arch::asm!(
            "call {function}",
            function = const tracer_ebpf::CAST_CALL,
            inlateout("r1") address => _,
            inlateout("r2") u64::from(id) => _,
            lateout("r0") typed,
            lateout("r3") _, lateout("r4") _, lateout("r5") _,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    typed
}

/// The same where the programs are only checked.
#[cfg(not(target_arch = "bpf"))]
fn cast(address: u64, _id: u32) -> u64 {
    address
}
