//! The lean set of hooks: new connections and failures, without socket states and ends. The faults are still reported,
//! and nothing healthy is reported as a fault.

use std::net::SocketAddr;

use anyhow::Result;

use super::{silent, stale};
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
    let here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let leaving = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let there = stage.serve("shop/cart-3", 8080, EXCHANGE)?;
    stage.watch_with(&["--hooks", "lean"])?;
    stage.ends_are_unseen();
    stale::remove_cart_2(stage)?;
    silent::misdeliver_payments(stage)?;
    stage.after_grace();

    let vip = |service, port| stage.vip(service, port);
    let from = stage.place("shop/client-1")?;
    let served = client::connect(from, vip("shop/cart", "http")?, 30, 2, Script::exchange())?;
    let refused = client::connect(from, vip("shop/api", "https")?, 5, 1, Script::exchange())?;
    let without = client::connect(from, vip("shop/checkout", "http")?, 3, 1, Script::exchange())?;
    all_ended(&served, &Outcome::Done)?;
    all_ended(&refused, &Outcome::Refused)?;
    all_ended(&without, &Outcome::Refused)?;
    let (unanswered, silent) = silent::unanswered(stage, 3)?;

    let (ok, gone) = (Class::Ok, Class::C6);
    stage.expect_by_server(&served, "shop/cart", &[(&here, ok), (&leaving, gone), (&there, ok)])?;
    let refusing = SocketAddr::new(stage.place("shop/api-1")?.address, 8443);
    stage.expect(&refused, "shop/api", Class::C28, &Endpoint::Is(refusing));
    stage.expect(&without, "shop/checkout", Class::C20, &Endpoint::Null);
    stage.expect(&unanswered, "shop/payments", Class::C29, &silent);
    Ok(())
}
