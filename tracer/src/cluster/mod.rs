//! What Kubernetes said, and when.
pub mod folder;
pub mod history;
pub mod model;
mod timeline;
pub mod trim;
