//! What speaks to the kernel: its type information, what this host allows, the hooks and their events.
//!
//! Only this module knows BPF. What leaves it are [`crate::sighting`]s.

pub mod btf;
pub mod environment;
