//! The rules of kube-proxy 1.36: other chain names, a set for hairpin connections, no fixed order.

use anyhow::Result;
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    kube_proxy::KubeProxy,
    rules::Rules,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let capture = stage.world.newer_capture(stage.mode());
    stage.break_rules(&Rules::read(&capture, stage.mode())?)?;
    stage.kube_proxy.kill();
    stage.kube_proxy = KubeProxy::start(&capture)?;
    let serve = |pod| stage.serve(pod, 8080, EXCHANGE);
    let servers = [serve("shop/cart-1")?, serve("shop/cart-2")?, serve("shop/cart-3")?];
    stage.watch()?;

    let from = stage.place("shop/client-1")?;
    let cart = stage.vip("shop/cart", "http")?;
    let attempts = client::connect(from, cart, 15, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    let [one, two, three] = &servers;
    let ok = Class::Ok;
    stage.expect_by_server(&attempts, "shop/cart", &[(one, ok), (two, ok), (three, ok)])?;
    // A Pod of the Service is among its clients.
    let own = client::connect(stage.place("shop/cart-1")?, cart, 9, 1, Script::exchange())?;
    all_ended(&own, &Outcome::Done)?;
    for attempt in own {
        let to_itself = !two.accepted(attempt.client) && !three.accepted(attempt.client);
        let server = if to_itself {
            one
        } else if two.accepted(attempt.client) {
            two
        } else {
            three
        };
        stage.expect(&[attempt], "shop/cart", ok, &Endpoint::Is(server.address()));
    }
    let checkout = stage.vip("shop/checkout", "http")?;
    let refused = client::connect(from, checkout, 3, 1, Script::exchange())?;
    all_ended(&refused, &Outcome::Refused)?;
    stage.expect(&refused, "shop/checkout", Class::C20, &Endpoint::Null);
    Ok(())
}
