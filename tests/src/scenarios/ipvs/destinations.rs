//! C12, C21, C22: what IPVS does where it has no real server for a Service, or only one on another node.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::Result;

use crate::{
    expect::{Class, Endpoint},
    ipvs,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
    },
    world::Stage,
};

/// The API has three endpoints of `shop/cart`; IPVS has them at weight 0 first, then not at all.
pub(in super::super) fn without_servers(stage: &mut Stage) -> Result<()> {
    ipvs::enter(stage)?;
    stage.watch()?;
    let world = stage.world;
    let cart = world.cluster.vip("shop/cart", "http")?;
    let from = &world.pod("shop/client-1")?.place;
    let mut real_servers = Vec::new();
    for pod in ["shop/cart-1", "shop/cart-2", "shop/cart-3"] {
        real_servers.push(SocketAddrV4::new(world.pod(pod)?.place.address, 8080));
    }
    let node = &world.topology.host;
    for step in [ipvs::set_weight_0, ipvs::remove_real_server] {
        for real_server in &real_servers {
            step(node, cart, *real_server)?;
        }
        let attempts = client::connect(from, cart, 4, 1, Script::exchange())?;
        all_ended(&attempts, &Outcome::Refused)?;
        stage.expect(&attempts, "shop/cart", Class::C12, &Endpoint::Null);
    }
    Ok(())
}

/// `shop/cache` serves cluster-internally from the client's own node only, and its endpoint is on another one.
pub(in super::super) fn no_local_endpoint(stage: &mut Stage) -> Result<()> {
    ipvs::enter(stage)?;
    stage.watch()?;
    let from = &stage.world.pod("shop/client-1")?.place;
    let cache = stage.world.cluster.vip("shop/cache", "redis")?;
    let attempts = client::connect(from, cache, 3, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, "shop/cache", Class::C22, &Endpoint::Null);
    Ok(())
}

/// `shop/frontend`'s node port keeps to the node that is asked, which has no endpoint: IPVS sends to the other node without
/// masquerading, and a client from there gets its answer from an address that it never asked.
pub(in super::super) fn reply_elsewhere(stage: &mut Stage) -> Result<()> {
    ipvs::enter(stage)?;
    let _unknown_to_the_client = stage.serve("shop/frontend-1", 8080, crate::traffic::server::EXCHANGE)?;
    stage.watch()?;
    let from = &stage.world.pod("shop/cart-3")?.place;
    let node_port = SocketAddrV4::new(stage.world.topology.node.address, 30_080);
    let endpoint = SocketAddrV4::new(stage.world.pod("shop/frontend-1")?.place.address, 8080);
    let script = Script::exchange().connect_limit(Duration::from_secs(4));
    let attempts = client::connect(from, node_port, 3, 3, script)?;
    all_ended(&attempts, &Outcome::ConnectTimedOut)?;
    stage.expect(&attempts, "shop/frontend", Class::C21, &Endpoint::Is(endpoint));
    Ok(())
}
