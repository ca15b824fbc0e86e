//! No fault: endpoints on this node and on another, TCP and UDP. Every flow is `ok`.

use std::time::Duration;

use anyhow::Result;
use viptrace_class::Class;

use crate::{
    traffic::{
        Outcome, all_ended,
        client::{self, Ending, Script},
        server::{self, EXCHANGE},
        udp::{self, Answer},
    },
    world::Stage,
};

pub(super) fn tcp(stage: &mut Stage) -> Result<()> {
    let here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let beside = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let there = stage.serve("shop/cart-3", 8080, EXCHANGE)?;
    let closes = server::Script::ServeAndClose { request: client::REQUEST, response: client::RESPONSE };
    let closing = stage.serve("shop/frontend-1", 8080, closes)?;
    stage.watch()?;

    let from = stage.place("shop/client-1")?;
    let cart = stage.vip("shop/cart", "http")?;
    let attempts = client::connect(from, cart, 30, 2, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect_by_server(
        &attempts,
        "shop/cart",
        &[(&here, Class::Ok), (&beside, Class::Ok), (&there, Class::Ok)],
    )?;

    let frontend = stage.vip("shop/frontend", "http")?;
    let script = Script::exchange().ending(Ending::CloseLast);
    let attempts = client::connect(from, frontend, 10, 1, script)?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect_by_server(&attempts, "shop/frontend", &[(&closing, Class::Ok)])
}

pub(super) fn udp(stage: &mut Stage) -> Result<()> {
    let here = stage.serve_udp("kube-system/coredns-1", 53, Answer::Echo)?;
    let there = stage.serve_udp("kube-system/coredns-2", 53, Answer::Echo)?;
    stage.watch()?;

    let from = stage.place("shop/client-1")?;
    let dns = stage.vip("kube-system/kube-dns", "dns")?;
    let attempts = udp::query(from, dns, 20, Duration::from_secs(20))?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect_by_server(&attempts, "kube-system/kube-dns", &[(&here, Class::Ok), (&there, Class::Ok)])
}
