//! ipvs mode: what every mode must get right, on kube-proxy's captured virtual servers, and the faults that only IPVS
//! has. The node is put into the mode first and back at the end.

mod connections;
mod destinations;
mod untracked;

pub(super) use connections::{
    affinity, entry_expires, port_reused, server_removed, server_removed_in_silence,
};
pub(super) use destinations::{no_local_endpoint, reply_elsewhere, without_servers};
pub(super) use untracked::story as untracked;

use anyhow::Result;

use super::{healthy, mixed, no_endpoints, probes, refused, silent, stale};
use crate::{ipvs, world::Stage};

/// The same story as in the other modes, with IPVS in their place.
macro_rules! in_ipvs_mode {
    ($($name:ident: $story:path;)+) => {
        $(
            pub(super) fn $name(stage: &mut Stage) -> Result<()> {
                ipvs::enter(stage)?;
                $story(stage)
            }
        )+
    };
}

in_ipvs_mode! {
    healthy_tcp: healthy::tcp;
    healthy_udp: healthy::udp;
    stale_answers: stale::answers;
    no_endpoints_refused: no_endpoints::story;
    refused_same_node: refused::same_node;
    refused_other_node: refused::other_node;
    silent_same_node: silent::same_node;
    host_unreachable: silent::unreachable;
    kubelet_probes: probes::story;
    mixed_5000: mixed::story;
}
