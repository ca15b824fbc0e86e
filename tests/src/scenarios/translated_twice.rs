//! N3: a packet is observed before and after its translation, and a Pod that reaches itself through its Service has
//! both its addresses changed. Each connection is one flow with one record.

use anyhow::{Result, bail};

use super::alone::Alone;
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let Alone { service, pod, vip, endpoint } = Alone::new(stage)?;
    let _serving = stage.serve(pod, endpoint.port(), EXCHANGE)?;
    stage.watch()?;
    for (client, count) in [("shop/client-1", 20), (pod, 10)] {
        let from = stage.place(client)?;
        let attempts = client::connect(from, vip, count, 1, Script::exchange())?;
        all_ended(&attempts, &Outcome::Done)?;
        stage.expect(&attempts, service, Class::Ok, &Endpoint::Is(endpoint));
    }
    stage.check(move |records, _| {
        let of_endpoint =
            records.iter().filter(|record| record.text("/flow/endpoint") == endpoint.to_string()).count();
        if of_endpoint != 30 {
            bail!("30 connections to {endpoint} have {of_endpoint} records");
        }
        Ok(())
    });
    Ok(())
}
