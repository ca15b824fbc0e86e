//! N9: a connection that is older than its endpoint's removal breaks, by a reset or by silence. Rolling updates cause
//! this; it is not a fault of the dataplane.

use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::stale;
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    traffic::{
        Outcome,
        client::{self, Ending, Held, Script},
        server,
    },
    world::{Reached, Stage},
};

/// Far more than needed to reach one endpoint of three.
const TRIES: usize = 60;

pub(super) fn reset(stage: &mut Stage) -> Result<()> {
    let once = server::Script::ServeOnceThenReset { request: client::REQUEST, response: client::RESPONSE };
    let leaving = stage.serve("shop/cart-2", 8080, once)?;
    break_old_flow(stage, &leaving, &Outcome::Reset, |_| Ok(()))
}

pub(super) fn stalls(stage: &mut Stage) -> Result<()> {
    let chat = server::Script::Chat { request: client::REQUEST, response: client::RESPONSE };
    let leaving = stage.serve("shop/cart-2", 8080, chat)?;
    break_old_flow(stage, &leaving, &Outcome::Silent, |stage| stale::unplug(stage, "shop/cart-2"))
}

fn break_old_flow(
    stage: &mut Stage,
    leaving: &server::Server,
    outcome: &Outcome,
    unplug: fn(&mut Stage) -> Result<()>,
) -> Result<()> {
    let here = stage.serve("shop/cart-1", 8080, server::EXCHANGE)?;
    let there = stage.serve("shop/cart-3", 8080, server::EXCHANGE)?;
    stage.watch()?;
    let mut held = hold_one_on(stage, leaving, &[&here, &there])?;

    let endpoint = stale::remove_cart_2(stage)?;
    unplug(stage)?;
    stage.after_grace();
    let seen = held.exchange(&Script::exchange().response_limit(Duration::from_secs(4)));
    if seen != *outcome {
        bail!("the old connection ended as {seen:?}, expected {outcome:?}");
    }
    let (attempt, closing) = held.close(seen)?;
    stage.expect(&[attempt], "shop/cart", Class::N9, &Endpoint::Is(endpoint));
    stage.keep(closing);
    Ok(())
}

/// Connects until the rules choose the endpoint that will leave. The other connections are closed and healthy.
fn hold_one_on(stage: &mut Stage, leaving: &server::Server, others: &[&server::Server]) -> Result<Held> {
    let from = stage.place("shop/client-1")?;
    let cart = stage.vip("shop/cart", "http")?;
    let known: Vec<(&dyn Reached, Class)> =
        others.iter().map(|server| (*server as &dyn Reached, Class::Ok)).collect();
    for _ in 0..TRIES {
        let held = client::hold(from, cart, Script::exchange())?;
        if leaving.accepted(held.client) {
            return Ok(held);
        }
        let attempt = held.end(Ending::Close, Outcome::Done);
        stage.expect_by_server(&[attempt], "shop/cart", &known)?;
    }
    None.with_context(|| format!("in {TRIES} connections the rules never chose {}", leaving.address()))
}
