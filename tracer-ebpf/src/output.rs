//! Records on their way out: reserve, fill, submit, and a count for each record without room.

use core::ptr;

use aya_ebpf::{
    EbpfContext, Global,
    helpers::{
        bpf_get_smp_processor_id, bpf_ktime_get_ns,
        generated::{bpf_get_current_comm, bpf_probe_read_kernel},
    },
    macros::map,
    maps::{PerCpuArray, RingBuf, ring_buf::RingBufEntry},
};
use tracer_ebpf::{COMM_BYTES, HOOK_SLOTS, Header, Hook, Kind, LOST_ANY, MISSING, REASON_NONE};

use crate::{cast, globals, lookup::look_up_slot, messages, turns::opaque};

/// `BPF_RB_AVAIL_DATA` (`include/uapi/linux/bpf.h`): the bytes that were not read yet.
const BPF_RB_AVAIL_DATA: u64 = 0;
/// `BPF_RB_FORCE_WAKEUP` (the same).
const BPF_RB_FORCE_WAKEUP: u32 = 2;

/// The size of [`EVENTS`], bytes.
#[unsafe(no_mangle)]
static EVENTS_BYTES: Global<u32> = Global::new(0);

/// Resized by user space before load; a power of two and a multiple of the page size.
#[map]
static EVENTS: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Records lost for lack of room: one slot per hook and one for all.
#[map]
static LOST: PerCpuArray<u64> = PerCpuArray::with_max_entries(HOOK_SLOTS as u32, 0);

/// Room for one record, or a count of its loss.
#[inline(always)]
pub(crate) fn reserve<T: 'static>(hook: Hook) -> Option<RingBufEntry<T>> {
    reserve_at(hook as u32, matches!(hook, Hook::Confirm | Hook::IpVsConnNew))
}

/// The same for a hook by its number. What failures write leaves a quarter to the decisions.
#[inline(always)]
pub(crate) fn reserve_at<T: 'static>(hook: u32, is_decision: bool) -> Option<RingBufEntry<T>> {
    // Noticed here, a full buffer costs no lock.
    let bytes = u64::from(EVENTS_BYTES.load());
    let room = if is_decision { bytes } else { bytes - bytes / 4 };
    if EVENTS.query(BPF_RB_AVAIL_DATA) + size_of::<T>() as u64 > room {
        count_lost(hook);
        return None;
    }
    let entry = EVENTS.reserve::<T>(0);
    if entry.is_none() {
        count_lost(hook);
    }
    entry
}

/// The verifier checks it by itself, once for all places where a record is lost.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn count_lost(hook: u32) -> u32 {
    if is_first_lost(hook, |slot| look_up_slot(&LOST, slot)) {
        messages::no_room(hook);
    }
    0
}

/// Counts a lost record without a call, and returns whether it is the hook's first.
#[inline(always)]
pub(crate) fn count_lost_here(hook: u32) -> bool {
    is_first_lost(hook, |slot| LOST.get_ptr_mut(slot))
}

#[inline(always)]
fn is_first_lost(hook: u32, slot_of: impl Fn(u32) -> Option<*mut u64>) -> bool {
    let mut is_first = false;
    for slot in [LOST_ANY as u32, hook] {
        let Some(lost) = slot_of(slot) else { continue };
        // SAFETY: a slot of a map's array, of this CPU alone: valid and aligned for as long as the program runs.
        // Nothing that counts the same hook comes between load and store; what an interrupt adds to the sum in between
        // is lost from the sum only, which is then still not the old one.
        let before = unsafe { *lost };
        // SAFETY: as above.
        unsafe { *lost = before + 1 };
        is_first = before == 0 && slot == hook;
    }
    is_first
}

#[inline(always)]
pub(crate) fn submit<T>(entry: RingBufEntry<T>) {
    entry.submit(u64::from(wake_up()));
}

/// The kernel wakes the reader only if it had caught up, so a reader that waits on purpose gets batches. It is woken once more
/// when the buffer is half full: by each record of the next eighth, since those that other CPUs submit at the same time
/// count too. The verifier checks this by itself, and not with each path that leads to a record.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn wake_up() -> u32 {
    // A power of two.
    let bytes = u64::from(EVENTS_BYTES.load());
    let beyond_half = EVENTS.query(BPF_RB_AVAIL_DATA) ^ (bytes / 2);
    if beyond_half < bytes / 8 { BPF_RB_FORCE_WAKEUP } else { 0 }
}

#[inline(always)]
pub(crate) fn discard<T>(entry: RingBufEntry<T>) {
    // A wake-up for nothing, which is rare (unreadable memory only): with BPF_RB_NO_WAKEUP the next record would not
    // wake the reader either, because the kernel notifies only for the record that the reader has reached.
    entry.discard(0);
}

/// At one place of a program, since the verifier writes code in the place of each call (`do_misc_fixups`, since 6.10): see
/// [`crate::lookup`].
#[inline(never)]
fn cpu() -> u32 {
    // SAFETY: the helper has no argument and may be called anywhere.
    unsafe { bpf_get_smp_processor_id() }
}

#[inline(always)]
pub(crate) fn header(hook: Hook, kind: Kind, netns: u32) -> Header {
    header_at(hook as u32, kind, netns)
}

/// The same for a hook by its number.
#[inline(always)]
pub(crate) fn header_at(hook: u32, kind: Kind, netns: u32) -> Header {
    Header {
        // SAFETY: the helper has no argument and may be called anywhere.
        time_ns: unsafe { bpf_ktime_get_ns() },
        netns,
        cpu: cpu() as u16,
        hook: hook as u8,
        kind: kind as u8,
    }
}

/// Reads a scalar from the kernel, `None` where the address is bad.
#[inline(always)]
pub(crate) fn read<T: Scalar>(address: u64) -> Option<T> {
    let mut value = core::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the helper writes `size_of::<T>()` bytes to `value`, which has them, and checks the address that it
    // reads.
    let rc = unsafe {
        bpf_probe_read_kernel(
            value.as_mut_ptr().cast(),
            size_of::<T>() as u32,
            ptr::with_exposed_provenance(address as usize),
        )
    };
    // SAFETY: the helper has written the whole value. Any bytes are a `Scalar`.
    (rc == 0).then(|| unsafe { value.assume_init() })
}

/// The same by a load where the kernel lets us: a bad address may also give 0.
#[inline(always)]
pub(crate) fn load<T: Scalar>(address: u64) -> Option<T> {
    match cast::typed(address) {
        // SAFETY: the kernel gives 0 for a bad address, and any bytes are a `Scalar`.
        Some(typed) => Some(unsafe { ptr::read_volatile(typed) }),
        None => read(address),
    }
}

/// Numbers and arrays of numbers.
///
/// # Safety
///
/// Any bytes must be a value of the type.
pub(crate) unsafe trait Scalar: Copy {}

// SAFETY: any bytes are a number.
unsafe impl Scalar for u8 {}
// SAFETY: likewise.
unsafe impl Scalar for u16 {}
// SAFETY: likewise.
unsafe impl Scalar for u32 {}
// SAFETY: likewise.
unsafe impl Scalar for u64 {}
// SAFETY: an array has the bytes of its elements and no others.
unsafe impl<T: Scalar, const N: usize> Scalar for [T; N] {}

/// A raw tracepoint's scalar argument at a position that differs between kernels. Loads from the context must have
/// a constant offset in the instruction itself, which a position read from `.rodata` is not: each position that a kernel
/// is known to have gets a load of its own, and the verifier removes the others. A probe read may start anywhere, and
/// takes some 70 instructions.
#[inline(always)]
pub(crate) fn tracepoint_argument(ctx: &impl EbpfContext, position: u32) -> u32 {
    match position {
        2 => third_argument(ctx),
        3 => fourth_argument(ctx),
        _ => read(ctx.as_ptr() as u64 + u64::from(position) * 8).unwrap_or(REASON_NONE),
    }
}

/// A load at this offset of a tracepoint's context, in bytes. Inline assembly, because the compiler would make one load
/// with a chosen offset of two of its own.
macro_rules! argument_at {
    ($name:ident, $position:literal, $load:literal) => {
        #[cfg(target_arch = "bpf")]
        #[inline(always)]
        fn $name(ctx: &impl EbpfContext) -> u32 {
            let value: u64;
            // SAFETY: the instruction reads the context only. The verifier refuses an offset that it does not have.
            unsafe {
                core::arch::asm!($load, value = out(reg) value, ctx = in(reg) ctx.as_ptr(), options(nostack));
            }
            value as u32
        }

        #[cfg(not(target_arch = "bpf"))]
        fn $name(ctx: &impl EbpfContext) -> u32 {
            read(ctx.as_ptr() as u64 + $position * 8).unwrap_or(REASON_NONE)
        }
    };
}

argument_at!(third_argument, 2, "{value} = *(u64 *)({ctx} + 16)");
argument_at!(fourth_argument, 3, "{value} = *(u64 *)({ctx} + 24)");

/// A pointer as a number, which the verifier's knowledge of the pointer does not follow: it accepts only numbers as
/// arguments of a function that it checks by itself.
#[inline(always)]
pub(crate) fn number(pointer: u64) -> u64 {
    read((&raw const pointer).expose_provenance() as u64).unwrap_or(0)
}

/// Leaves the numbers as they are, and lets the verifier forget its knowledge of them: it then goes one way from here, not one
/// for each that led here. False if the kernel refuses, which it never does for the stack.
#[inline(always)]
pub(crate) fn forget<T: Scalar>(numbers: &mut T) -> bool {
    let numbers = ptr::from_mut(numbers);
    // SAFETY: the helper copies the numbers onto themselves.
    let rc = unsafe {
        bpf_probe_read_kernel(
            numbers.cast(),
            size_of::<T>() as u32,
            ptr::with_exposed_provenance(numbers.expose_provenance()),
        )
    };
    rc == 0
}

/// Copies `N` bytes from the kernel into a record. If the address is bad, the kernel zeroes them and the result is
/// false.
///
/// # Safety
///
/// `to` must be valid for a write of `N` bytes, which may be uninitialised before.
#[inline(always)]
pub(crate) unsafe fn copy<const N: usize>(to: *mut [u8; N], address: u64) -> bool {
    // SAFETY: as the caller promises.
    unsafe { copy_bytes(to.cast(), N as u32, address) }
}

/// The same for a number of bytes that the verifier knows.
///
/// # Safety
///
/// `to` must be valid for a write of so many bytes, which may be uninitialised before.
#[inline(always)]
pub(crate) unsafe fn copy_bytes(to: *mut u8, bytes: u32, address: u64) -> bool {
    // SAFETY: the helper writes so many bytes to `to`, as the caller promises it may, and checks the address that it reads.
    unsafe { bpf_probe_read_kernel(to.cast(), bytes, ptr::with_exposed_provenance(address as usize)) == 0 }
}

/// Writes words one by one. The compiler would call a function that moves or clears bytes, which takes the verifier long.
///
/// # Safety
///
/// `to` must be valid for the write, and aligned to 4.
#[inline(always)]
pub(crate) unsafe fn write_words<const N: usize>(words: &[u32; N], to: *mut u32) {
    for (place, word) in words.iter().enumerate() {
        // SAFETY: the caller promises it.
        unsafe { to.add(place).write(*word) };
    }
}

/// Zeros of which the compiler knows nothing, for [`write_words`] and for keys.
#[inline(always)]
pub(crate) fn zeros<const N: usize>() -> [u32; N] {
    [opaque(0) as u32; N]
}

/// Writes the current task's name, or zeros. By the helper and in words: the compiler would copy an array of bytes, or
/// clear it, byte by byte.
///
/// # Safety
///
/// `to` must be valid for a write of [`COMM_BYTES`], which may be uninitialised before, and aligned to 4.
#[inline(always)]
pub(crate) unsafe fn command(to: *mut [u8; COMM_BYTES], is_wanted: bool) {
    // SAFETY: the helper writes all of `to`, zeros where there is no task, or the words are in it, as the caller promises.
    unsafe {
        if is_wanted {
            bpf_get_current_comm(to.cast(), COMM_BYTES as u32);
        } else {
            write_words(&zeros::<{ COMM_BYTES / 4 }>(), to.cast());
        }
    }
}

/// The inode number of the namespace behind a `possible_net_t` at `address`, 0 where it cannot be read.
#[inline(always)]
pub(crate) fn netns_behind(address: u64) -> u32 {
    read::<u64>(address).map_or(0, netns_at)
}

/// The same where the beginning of the structure at `base` was copied to `head`.
///
/// # Safety
///
/// As of [`net_in`].
#[inline(always)]
pub(crate) unsafe fn netns_in<const N: usize>(head: *const [u8; N], base: u64, offset: u32) -> u32 {
    // SAFETY: as the caller promises.
    netns_at(unsafe { net_in(head, base, offset) })
}

/// The pointer in a `possible_net_t` at an offset of the structure at `base`, whose beginning was copied to `head`: it is mostly
/// in the copy. 0 where it cannot be read.
///
/// # Safety
///
/// `head` must be valid for reads, and aligned to 4.
#[inline(always)]
unsafe fn net_in<const N: usize>(head: *const [u8; N], base: u64, offset: u32) -> u64 {
    let at = offset as usize;
    if at > N - size_of::<u64>() || !at.is_multiple_of(4) || cfg!(target_endian = "big") {
        return read(base.wrapping_add(u64::from(offset))).unwrap_or(0);
    }
    // SAFETY: both words lie within the copy, as was compared. The reads are volatile, because the compiler would join them to
    // one of 8 bytes, which the verifier refuses at this alignment.
    let (low, high) = unsafe {
        let words = head.cast::<u32>().add(at / 4);
        (words.read_volatile(), words.add(1).read_volatile())
    };
    u64::from(low) | u64::from(high) << 32
}

/// The byte at an offset of the structure at `base`, whose beginning was copied to `head`; 0 where it cannot be read.
///
/// # Safety
///
/// `head` must be valid for reads.
#[inline(always)]
pub(crate) unsafe fn byte_in<const N: usize>(head: *const [u8; N], base: u64, offset: u32) -> u8 {
    if offset as usize >= N {
        return read(base.wrapping_add(u64::from(offset))).unwrap_or(0);
    }
    // SAFETY: the byte lies within the copy, as was compared.
    unsafe { head.cast::<u8>().add(offset as usize).read() }
}

/// The inode number of the namespace at `net`, 0 where it cannot be read.
#[inline(always)]
pub(crate) fn netns_at(net: u64) -> u32 {
    match globals::OFF_NET_INUM.load() {
        MISSING => 0,
        inum => load(net.wrapping_add(u64::from(inum))).unwrap_or(0),
    }
}
