//! C28: the endpoint is current, its Pod is there, nothing listens. The Pod's kernel answers the SYN with a reset.

use std::net::SocketAddrV4;

use anyhow::Result;

use crate::{
    expect::{Class, Endpoint},
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
    },
    world::Stage,
};

pub(super) fn same_node(stage: &mut Stage) -> Result<()> {
    refuse(stage, "shop/api", "https", "shop/api-1", 8443)
}

pub(super) fn other_node(stage: &mut Stage) -> Result<()> {
    refuse(stage, "shop/frontend", "http", "shop/frontend-1", 8080)
}

fn refuse(stage: &mut Stage, service: &str, port: &str, pod: &str, pod_port: u16) -> Result<()> {
    stage.watch()?;
    let vip = stage.world.cluster.vip(service, port)?;
    let endpoint = SocketAddrV4::new(stage.world.pod(pod)?.place.address, pod_port);
    let from = &stage.world.pod("shop/client-1")?.place;
    let attempts = client::connect(from, vip, 10, 2, Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, service, Class::C28, &Endpoint::Is(endpoint));
    Ok(())
}
