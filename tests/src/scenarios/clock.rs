//! The wall clock is set forward and back by an hour while a trace runs. No verdict depends on it.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    sys,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

const HOUR: i64 = 3_600;

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let server = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let (frontend, api) = (stage.vip("shop/frontend", "http")?, stage.vip("shop/api", "https")?);
    let refusing = SocketAddr::new(stage.place("shop/api-1")?.address, 8443);
    for step in [0, HOUR, -2 * HOUR, HOUR] {
        if step != 0 {
            sys::step_clock(step).context("setting the clock")?;
        }
        let answered = client::connect(from, frontend, 3, 1, Script::exchange())?;
        let refused = client::connect(from, api, 2, 1, Script::exchange())?;
        all_ended(&answered, &Outcome::Done)?;
        all_ended(&refused, &Outcome::Refused)?;
        stage.expect(&answered, "shop/frontend", Class::Ok, &Endpoint::Is(server.address()));
        stage.expect(&refused, "shop/api", Class::C28, &Endpoint::Is(refusing));
        // Two steps between two turns of the trace would be one. It compares the clocks before it prints a record.
        for attempt in &refused {
            stage.record_of(attempt)?;
        }
    }
    stage.check(|_, ended| {
        for text in ["set forward by 1 h", "set back by 2 h"] {
            let text = format!("the wall clock was {text}");
            ensure!(ended.stderr.contains(&text), "the summary does not list `{text}`: {}", ended.stderr);
        }
        Ok(())
    });
    Ok(())
}
