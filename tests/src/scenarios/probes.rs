//! N1: kubelet's probes from the node itself to a Pod's probe port, however they end: closed without a reset, reset
//! because the server sends first, refused because nothing listens.

use std::net::SocketAddr;

use anyhow::Result;
use viptrace_class::Class;

use crate::{
    traffic::{
        Outcome, all_ended,
        client::{self, Ending, Script},
        server::{self, EXCHANGE},
    },
    world::Stage,
};

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let _patient = stage.serve("shop/api-1", 8443, EXCHANGE)?;
    let _talkative = stage.serve("shop/payments-1", 9090, server::Script::Banner { bytes: 32 })?;
    stage.watch()?;

    let by_reset = Script::touch().ending(Ending::CloseUnread);
    let ends = [
        ("shop/api-1", 8443, Script::touch(), Outcome::Done),
        ("shop/payments-1", 9090, by_reset, Outcome::Done),
        ("shop/client-1", 8080, Script::touch(), Outcome::Refused),
    ];
    for (pod, port, script, outcome) in ends {
        let target = SocketAddr::new(stage.place(pod)?.address, port);
        let attempts = client::probe(stage.gateway()?, target, 5, script)?;
        all_ended(&attempts, &outcome)?;
        stage.expect_direct(&attempts, Class::N1);
    }
    Ok(())
}
