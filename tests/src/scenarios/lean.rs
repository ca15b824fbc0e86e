//! The lean set of hooks: new connections and failures, without socket states and ends. The faults are still reported,
//! and nothing healthy is reported as a fault.

use std::{net::SocketAddr, time::Duration};

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
    for pod in ["shop/payments-1", "shop/payments-2"] {
        silent::misdeliver(stage, stage.world.pod(pod)?)?;
    }
    stage.after_grace();

    let vip = |service, port| stage.vip(service, port);
    let from = stage.place("shop/client-1")?;
    let patience = Script::exchange().connect_limit(Duration::from_secs(4));
    let served = client::connect(from, vip("shop/cart", "http")?, 30, 2, Script::exchange())?;
    let refused = client::connect(from, vip("shop/api", "https")?, 5, 1, Script::exchange())?;
    let without = client::connect(from, vip("shop/checkout", "http")?, 3, 1, Script::exchange())?;
    all_ended(&served, &Outcome::Done)?;
    all_ended(&refused, &Outcome::Refused)?;
    all_ended(&without, &Outcome::Refused)?;
    // Only one endpoint, so that a retransmitted SYN cannot reach another one.
    let silent = stage.place("shop/payments-1")?.address;
    let other = stage.place("shop/payments-2")?.address;
    let rules = stage.rules()?.with_endpoint_moved(other, silent);
    let payments = stage.vip("shop/payments", "grpc")?;
    stage.break_rules(&rules)?;
    let unanswered = client::connect(from, payments, 3, 3, patience)?;
    all_ended(&unanswered, &Outcome::ConnectTimedOut)?;

    let (ok, gone) = (Class::Ok, Class::C6);
    stage.expect_by_server(&served, "shop/cart", &[(&here, ok), (&leaving, gone), (&there, ok)])?;
    let refusing = SocketAddr::new(stage.place("shop/api-1")?.address, 8443);
    stage.expect(&refused, "shop/api", Class::C28, &Endpoint::Is(refusing));
    stage.expect(&without, "shop/checkout", Class::C20, &Endpoint::Null);
    let endpoint = Endpoint::Is(SocketAddr::new(silent, 9090));
    stage.expect(&unanswered, "shop/payments", Class::C29, &endpoint);
    Ok(())
}
