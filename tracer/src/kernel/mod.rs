//! The kernel's side of a trace: what this kernel offers, the hooks attached to it, records made sightings.
//!
//! The only module that speaks BPF. `btf` reads the kernel's own description of itself, `environment` says what
//! this host allows, `layout` and `plan` decide from them, `attached` attaches and reads, `decode` makes sightings.

pub mod attached;
pub mod btf;
mod clock;
pub mod decode;
pub mod environment;
mod fentry;
pub mod hooks;
pub mod host;
pub mod layout;
mod listed;
pub mod plan;

pub use clock::unix_ns;
