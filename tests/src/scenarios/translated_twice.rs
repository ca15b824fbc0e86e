//! N3: a packet is seen before and after its translation, and by a Pod that reaches itself through its Service
//! with both its addresses changed. Each connection is one flow and has one record.

use std::net::SocketAddrV4;

use anyhow::{Result, bail};

use crate::{
    expect::{Class, Endpoint},
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let _serving = stage.serve("shop/api-1", 8443, EXCHANGE)?;
    stage.watch()?;
    let vip = stage.world.cluster.vip("shop/api", "https")?;
    let endpoint = SocketAddrV4::new(stage.world.pod("shop/api-1")?.place.address, 8443);
    for (client, count) in [("shop/client-1", 20), ("shop/api-1", 10)] {
        let from = &stage.world.pod(client)?.place;
        let attempts = client::connect(from, vip, count, 1, Script::exchange())?;
        all_ended(&attempts, &Outcome::Done)?;
        stage.expect(&attempts, "shop/api", Class::Ok, &Endpoint::Is(endpoint));
    }
    stage.check(move |records, _| {
        let of_endpoint =
            records.iter().filter(|record| record.text("/flow/endpoint") == endpoint.to_string()).count();
        if of_endpoint != 30 {
            bail!("30 connections to {endpoint} made {of_endpoint} records");
        }
        Ok(())
    });
    Ok(())
}
