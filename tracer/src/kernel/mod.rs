//! The kernel's side of a trace: what this kernel offers, the hooks attached to it, records made sightings.
//!
//! The only room that speaks BPF. What there is to know about each hook is `tracer_ebpf`'s table. `btf` reads the kernel's
//! own description of itself, `environment` says what this host allows, `layout` and `plan` decide from them (`running` asks
//! for them), `attach` and `fentry` attach, `tracer` reads records and `messages` what programs log, `decode` makes sightings.

pub mod attach;
pub mod btf;
mod clock;
pub mod decode;
mod encode;
pub mod environment;
mod fentry;
pub mod layout;
mod messages;
pub mod plan;
pub mod running;
pub(crate) mod tracer;

pub(crate) use clock::unix_ns;
