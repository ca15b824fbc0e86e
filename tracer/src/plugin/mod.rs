//! From a laptop to the nodes: which nodes to visit, the Pods that run viptrace there, and the talk with them.
//!
//! Owns the Pods' manifest, the permissions that the plugin needs, their removal on every way out, and the protocol between
//! the plugin and `viptrace node`. The plugin watches the cluster with its user's own credentials and relays the objects, so a
//! Pod needs no account. Judges nothing.

mod admission;
mod alive;
pub(crate) mod client_pod;
pub(crate) mod guard;
pub(crate) mod nodes;
mod output;
pub(crate) mod permissions;
pub(crate) mod pod;
pub(crate) mod relay;
pub(crate) mod segments;
pub(crate) mod visit;
pub(crate) mod wire;
