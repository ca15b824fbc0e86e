//! Lookups away from a healthy connection's way: one function makes them all.
//!
//! Where a call of `bpf_map_lookup_elem` meets one map only, the verifier writes the lookup's own code in its place
//! (`do_misc_fixups`, kernel/bpf/verifier.c). For each such place it copies the program and clears and copies what it knows of
//! each instruction, a sixth of the time that one of an agent's programs takes to load. A call that meets several maps stays a
//! call, of some 30 instructions more when it runs.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    helpers::generated::bpf_map_lookup_elem,
    maps::{Array, HashMap, LruHashMap, PerCpuArray},
};

use crate::turns::opaque;

/// A map whose keys are read from packets and entries, by its own types.
pub(crate) trait Table {
    type Key;
    type Value;
}

impl<K, V> Table for HashMap<K, V> {
    type Key = K;
    type Value = V;
}

impl<K, V> Table for LruHashMap<K, V> {
    type Key = K;
    type Value = V;
}

/// A map whose keys are the numbers of its slots.
pub(crate) trait Slots {
    type Value;
}

impl<V> Slots for PerCpuArray<V> {
    type Value = V;
}

impl<V> Slots for Array<V> {
    type Value = V;
}

/// The value of a key, valid and aligned for as long as the program runs.
#[inline(always)]
pub(crate) fn look_up<T: Table>(table: &'static T, key: &T::Key) -> Option<*mut T::Value> {
    look_up_as(table, key)
}

/// The same of a slot. The key lies on the stack: the compiler would merge a constant one with a number of the same
/// value, which user space changes.
#[inline(always)]
pub(crate) fn look_up_slot<T: Slots>(table: &'static T, slot: u32) -> Option<*mut T::Value> {
    look_up_as(table, &(opaque(slot.into()) as u32))
}

#[inline(always)]
fn look_up_as<T, K, V>(table: &'static T, key: &K) -> Option<*mut V> {
    let value = look_up_any(ptr::from_ref(table).cast(), ptr::from_ref(key).cast());
    (!value.is_null()).then_some(value.cast())
}

#[inline(never)]
fn look_up_any(table: *const c_void, key: *const c_void) -> *mut c_void {
    // SAFETY: the callers pass a map, which the helper does not write, and a key of its type. The verifier checks both.
    unsafe { bpf_map_lookup_elem(table.cast_mut(), key) }
}
