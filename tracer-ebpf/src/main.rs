//! The part of viptrace that runs in the kernel: one short program per hook, each a copy into the ring buffer.
//!
//! A healthy connection meets `__nf_conntrack_confirm` once and, in a full trace, its sockets' few changes of
//! state; every other program sits on a path that only failures take. One file per subsystem (`conntrack`,
//! `packet`, `ipvs`, `tcp`, `drops`); they share `globals` (this kernel's offsets), `entry` (kprobe or fentry),
//! `filter` (a trace's target), `recorder`, `kept`, `choices` and `failures` (an agent's decisions and counts, and the
//! limits of what it reports), `shared` (an agent's programs for several hooks), `output` (records and the count of
//! lost ones), `calls` (the memory of a CPU between two programs), `copies` (events that arrive while a program
//! is busy), `cast` (loads from the kernel's memory) and `symbols` (where a function begins).
//! Conditions that a healthy run never meets are logged (`messages`).

#![no_std]
#![no_main]
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![expect(unsafe_code, reason = "kernel memory and BPF maps are reached through raw pointers")]
#![expect(
    clippy::inline_always,
    reason = "a hook and its layout are constants in each program, not arguments of calls"
)]
#![expect(clippy::needless_pass_by_value, reason = "aya's macros hand a program its context by value")]

mod calls;
mod cast;
mod choices;
mod conntrack;
mod copies;
mod drops;
mod entry;
mod failures;
mod filter;
mod globals;
mod ipvs;
mod kept;
mod lookup;
mod messages;
mod output;
mod packet;
mod recorder;
mod shared;
mod symbols;
mod tcp;
mod turns;
mod words;

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // The verifier proves that no path leads here; the language requires the function all the same.
    loop {}
}

/// Helpers such as `bpf_probe_read_kernel` are available to GPL-compatible objects only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
