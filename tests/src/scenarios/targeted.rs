//! A trace of one Service, one Pod or one address: its flows have verdicts, other flows are not recorded, and the trace
//! observes every decision of the target when NAT takes it.

use std::net::SocketAddr;

use anyhow::{Result, bail};

use super::{resets::senders, stale};
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    traffic::{
        Attempt, Outcome, all_ended,
        client::{self, REQUEST},
        server::{EXCHANGE, Script, Server},
    },
    world::Stage,
};

/// The three Pods behind `shop/cart`.
fn cart(stage: &Stage) -> Result<[Server; 3]> {
    let serve = |pod| stage.serve(pod, 8080, EXCHANGE);
    Ok([serve("shop/cart-1")?, serve("shop/cart-2")?, serve("shop/cart-3")?])
}

fn connect(stage: &Stage, client: &str, service: &str, port: &str, count: usize) -> Result<Vec<Attempt>> {
    let vip = stage.vip(service, port)?;
    client::connect(stage.place(client)?, vip, count, 2, client::Script::exchange())
}

/// The summary names every hook that could not be attached. A targeted trace needs one more hook than others.
fn check_that_no_hook_is_missing(stage: &mut Stage) {
    stage.check(|_, ended| {
        // Another line may name it too: those whose skipped runs an old kernel does not count.
        let is_gap = |line: &str| line.trim_start().starts_with("nf_nat_setup_info:");
        if ended.stderr.lines().any(is_gap) {
            bail!("the hook of the NAT decision is missing: {}", ended.stderr);
        }
        Ok(())
    });
}

pub(super) fn service(stage: &mut Stage) -> Result<()> {
    let [here, leaving, there] = cart(stage)?;
    let frontend = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch_with(&["shop/cart"])?;
    stale::remove_cart_2(stage)?;
    stage.after_grace();

    let attempts = connect(stage, "shop/client-1", "shop/cart", "http", 30)?;
    all_ended(&attempts, &Outcome::Done)?;
    let classes: [(&dyn crate::world::Reached, Class); 3] =
        [(&here, Class::Ok), (&leaving, Class::C6), (&there, Class::Ok)];
    stage.expect_by_server(&attempts, "shop/cart", &classes)?;

    let served = connect(stage, "shop/client-1", "shop/frontend", "http", 5)?;
    all_ended(&served, &Outcome::Done)?;
    let refused = connect(stage, "shop/client-1", "shop/api", "https", 5)?;
    let without_endpoints = connect(stage, "shop/client-1", "shop/checkout", "http", 3)?;
    // The Pod serves the Service, and this connection does not use the Service address.
    let past = SocketAddr::new(stage.place("shop/cart-1")?.address, 8080);
    let direct = client::connect(stage.place("shop/client-1")?, past, 2, 1, client::Script::exchange())?;
    all_ended(&direct, &Outcome::Done)?;
    for other in [served, refused, without_endpoints, direct] {
        stage.expect_unrecorded(&other);
    }
    drop(frontend);
    check_that_no_hook_is_missing(stage);
    Ok(())
}

pub(super) fn pod(stage: &mut Stage) -> Result<()> {
    let [here, beside, there] = cart(stage)?;
    stage.watch_with(&["pod/shop/client-1"])?;

    let attempts = connect(stage, "shop/client-1", "shop/cart", "http", 9)?;
    all_ended(&attempts, &Outcome::Done)?;
    let classes: [(&dyn crate::world::Reached, Class); 3] =
        [(&here, Class::Ok), (&beside, Class::Ok), (&there, Class::Ok)];
    stage.expect_by_server(&attempts, "shop/cart", &classes)?;
    let attempts = connect(stage, "shop/client-1", "shop/checkout", "http", 3)?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, "shop/checkout", Class::C20, &Endpoint::Null);

    // Another Pod connects to the same Services.
    let others = connect(stage, "shop/slow-1", "shop/cart", "http", 6)?;
    all_ended(&others, &Outcome::Done)?;
    stage.expect_unrecorded(&others);
    let others = connect(stage, "shop/slow-1", "shop/checkout", "http", 3)?;
    stage.expect_unrecorded(&others);
    check_that_no_hook_is_missing(stage);
    Ok(())
}

/// An endpoint's address, which is known only after the rules have chosen it.
pub(super) fn address(stage: &mut Stage) -> Result<()> {
    let [here, beside, there] = cart(stage)?;
    let target = here.address().to_string();
    stage.watch_with(&[&target])?;

    let attempts = connect(stage, "shop/client-1", "shop/cart", "http", 30)?;
    all_ended(&attempts, &Outcome::Done)?;
    let (chosen, others): (Vec<_>, Vec<_>) =
        attempts.into_iter().partition(|attempt| here.accepted(attempt.client));
    if chosen.is_empty() || others.is_empty() {
        bail!("of 30 connections, {} reached {target}", chosen.len());
    }
    stage.expect_by_server(&chosen, "shop/cart", &[(&here, Class::Ok)])?;
    stage.expect_unrecorded(&others);
    drop((beside, there));
    // The Pod stops listening, so the address refuses connections.
    drop(here);
    let from = stage.place("shop/slow-1")?;
    let cart = stage.vip("shop/cart", "http")?;
    let only_here = stage.rules()?.clone();
    let (first, second) = (stage.world.pod("shop/cart-2")?, stage.world.pod("shop/cart-3")?);
    let endpoint = SocketAddr::new(stage.place("shop/cart-1")?.address, 8080);
    let only_here = only_here
        .with_endpoint_moved(stage.at(first)?.address, endpoint.ip())
        .with_endpoint_moved(stage.at(second)?.address, endpoint.ip());
    stage.break_rules(&only_here)?;
    let attempts = client::connect(from, cart, 4, 1, client::Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, "shop/cart", Class::C28, &Endpoint::Is(endpoint));
    check_that_no_hook_is_missing(stage);
    Ok(())
}

/// A server as Go, Java and Node.js programs open it: an IPv6 socket on every address, whose IPv4 peers are
/// `::ffff:a.b.c.d`. A trace of its Service observes the RST that it sends.
pub(super) fn dual_stack(stage: &mut Stage) -> Result<()> {
    let server = stage.serve_dual_stack("shop/api-1", 8443, Script::ResetOnRequest { request: REQUEST })?;
    stage.watch_with(&["shop/api"])?;
    let attempts = connect(stage, "shop/client-1", "shop/api", "https", 4)?;
    all_ended(&attempts, &Outcome::Reset)?;
    stage.expect(&attempts, "shop/api", Class::Ok, &Endpoint::Is(server.address()));
    senders::check_statement(stage, "the endpoint's socket sent a RST");
    check_that_no_hook_is_missing(stage);
    Ok(())
}
