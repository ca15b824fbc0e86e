//! Faults that only IPVS has, and differences of its mode. The stories of all modes are in the parent folder.

mod connections;
mod destinations;
mod untracked;

pub(super) use connections::{
    affinity, entry_expires, pinned, port_reused, server_removed, server_removed_in_silence,
};
pub(super) use destinations::{from_outside, no_local_endpoint, reply_elsewhere, without_servers};
pub(super) use untracked::{failures as untracked_failures, story as untracked};
