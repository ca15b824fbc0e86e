//! The kernel's side of a trace: what this kernel offers, the hooks attached to it, and records turned into sightings.
//!
//! The only module that uses BPF. All facts about each hook are in `tracer_ebpf`'s table. `btf` reads the kernel's own
//! description of itself, `environment` reports what this host allows, `layout` and `plan` decide from both (through
//! `running`), `attach`, `loader` and `bpf` attach, `modules` watches for modules that come and go, `tracer` reads records,
//! `messages` reads the programs' log, and `decode` makes sightings. `allocator` bounds the memory that the C library keeps.

pub(crate) mod allocator;
pub mod attach;
mod bpf;
pub mod btf;
mod clock;
pub mod decode;
mod encode;
pub mod environment;
mod keys;
pub mod layout;
mod loader;
mod messages;
mod modules;
pub mod plan;
pub(crate) mod recorder;
pub mod running;
pub(crate) mod tracer;

pub(crate) use clock::{now, unix_ns, wall_ahead_ns};
pub(crate) use tracer::measure_runs;
