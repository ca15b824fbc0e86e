//! C28: the endpoint is current and its Pod exists, but nothing listens. The Pod's kernel answers the SYN with a reset.

use std::net::SocketAddr;

use anyhow::Result;

use super::alone::Alone;
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
    },
    world::Stage,
};

pub(super) fn same_node(stage: &mut Stage) -> Result<()> {
    let alone = Alone::new(stage)?;
    stage.watch()?;
    refuse(stage, alone.service, alone.vip, alone.endpoint)
}

pub(super) fn other_node(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    let vip = stage.vip("shop/frontend", "http")?;
    let endpoint = SocketAddr::new(stage.place("shop/frontend-1")?.address, 8080);
    refuse(stage, "shop/frontend", vip, endpoint)
}

fn refuse(stage: &mut Stage, service: &str, vip: SocketAddr, endpoint: SocketAddr) -> Result<()> {
    let from = stage.place("shop/client-1")?;
    let attempts = client::connect(from, vip, 10, 2, Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, service, Class::C28, &Endpoint::Is(endpoint));
    Ok(())
}
