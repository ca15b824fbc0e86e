//! The kernel's side of a trace: what this kernel offers, the hooks attached to it, and records turned into sightings.
//!
//! The only module that uses BPF. All facts about each hook are in `tracer_ebpf`'s table. `btf` reads the kernel's own
//! description of itself, `environment` reports what this host allows, `layout` and `plan` decide from both (through
//! `running`), `object` makes the programs ready, `attach`, `loader` and `bpf` attach them, `modules` watches for modules that come and go, `tracer` reads records,
//! `messages` reads the programs' log, and `decode` makes sightings. `mapping` reads memory of the kernel's in place, and `allocator` bounds the memory that the C library keeps.
//!
//! The modules behind `cfg` use the running kernel. The others read what it wrote, also on another system: a recording's
//! records, and the layout in its header.

pub mod btf;
mod clock;
pub(crate) mod connections;
pub mod decode;
mod encode;
pub mod environment;
pub mod layout;
pub mod plan;
pub mod running;

#[cfg(target_os = "linux")]
pub(crate) mod allocator;
#[cfg(target_os = "linux")]
pub mod attach;
#[cfg(target_os = "linux")]
mod bpf;
#[cfg(target_os = "linux")]
mod keys;
#[cfg(target_os = "linux")]
mod loader;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
mod messages;
#[cfg(target_os = "linux")]
pub(crate) mod modules;
#[cfg(target_os = "linux")]
mod object;
#[cfg(target_os = "linux")]
pub(crate) mod recorder;
#[cfg(target_os = "linux")]
pub(crate) mod tracer;

pub(crate) use clock::{boot_id, now, unix_ns, wall_ahead_ns};
