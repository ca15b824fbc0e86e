//! C12, C21, C22: IPVS has no real server for a Service, or only one on another node.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, bail};
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    ipvs,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

/// The API has three endpoints of `shop/cart`; IPVS has them with weight 0 first, then not at all.
pub(in super::super) fn without_servers(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    let world = stage.world;
    let cart = stage.vip("shop/cart", "http")?;
    let from = stage.place("shop/client-1")?;
    let mut real_servers = Vec::new();
    for pod in ["shop/cart-1", "shop/cart-2", "shop/cart-3"] {
        real_servers.push(SocketAddr::new(stage.place(pod)?.address, 8080));
    }
    ipvs::breaking(stage)?;
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

/// `shop/cache` serves internal clients only from their own node, and its endpoint is on another node.
pub(in super::super) fn no_local_endpoint(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let cache = stage.vip("shop/cache", "redis")?;
    let attempts = client::connect(from, cache, 3, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, "shop/cache", Class::C22, &Endpoint::Null);
    Ok(())
}

/// The node port of `shop/frontend` is local to the node that receives the packet, and this node has no endpoint: IPVS
/// sends to the other node without masquerading, and the client receives an answer from an address that it did not
/// connect to.
pub(in super::super) fn reply_elsewhere(stage: &mut Stage) -> Result<()> {
    let _unknown_to_the_client = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let from = stage.place("shop/cart-3")?;
    let node_port = SocketAddr::new(stage.world.topology.node.network(stage.family())?.address, 30_080);
    let endpoint = SocketAddr::new(stage.place("shop/frontend-1")?.address, 8080);
    let script = Script::exchange().connect_limit(Duration::from_secs(4));
    let attempts = client::connect(from, node_port, 3, 3, script)?;
    all_ended(&attempts, &Outcome::ConnectTimedOut)?;
    stage.expect(&attempts, "shop/frontend", Class::C21, &Endpoint::Is(endpoint));
    Ok(())
}

/// A client on another node uses a node port and is masqueraded; a Pod of this node uses an external IP. IPVS serves
/// both.
pub(in super::super) fn from_outside(stage: &mut Stage) -> Result<()> {
    let api = stage.serve("shop/api-1", 8443, EXCHANGE)?;
    stage.watch()?;
    let node_port = SocketAddr::new(stage.world.topology.node.network(stage.family())?.address, 30_443);
    let external = SocketAddr::from(([203, 0, 113, 50], 443));
    for (client, target) in [("shop/cart-3", node_port), ("shop/client-1", external)] {
        let attempts = client::connect(stage.place(client)?, target, 4, 1, Script::exchange())?;
        all_ended(&attempts, &Outcome::Done)?;
        // The server sees the node's address instead of the client's.
        stage.expect(&attempts, "shop/api", Class::Ok, &Endpoint::Is(api.address()));
    }
    stage.check(|records, _| {
        for record in records.iter().filter(|record| record.text("/service/name") == "api") {
            if !record.statements().contains("masqueraded") {
                bail!("the masquerading is not reported: {}", record.statements());
            }
        }
        Ok(())
    });
    Ok(())
}
