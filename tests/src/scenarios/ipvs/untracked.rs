//! IPVS without conntrack (`vs/conntrack=0`): no entry is ever confirmed, and only IPVS's own choice shows the
//! endpoint.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Result, ensure};
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    ipvs,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
        udp::{self, Answer, UdpServer},
    },
    world::Stage,
};

pub(in super::super) fn story(stage: &mut Stage) -> Result<()> {
    ipvs::sysctl(stage, "conntrack", "0")?;
    let here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let beside = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let there = stage.serve("shop/cart-3", 8080, EXCHANGE)?;
    let first_dns = UdpServer::start(stage.place("kube-system/coredns-1")?, 53, Answer::Echo)?;
    let second_dns = UdpServer::start(stage.place("kube-system/coredns-2")?, 53, Answer::Echo)?;
    stage.watch()?;

    let from = stage.place("shop/client-1")?;
    let cart = stage.vip("shop/cart", "http")?;
    let attempts = client::connect(from, cart, 12, 2, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    let classes: [(&dyn crate::world::Reached, Class); 3] =
        [(&here, Class::Ok), (&beside, Class::Ok), (&there, Class::Ok)];
    stage.expect_by_server(&attempts, "shop/cart", &classes)?;

    let dns = stage.vip("kube-system/kube-dns", "dns")?;
    let attempts = udp::query(from, dns, 6, Duration::from_secs(20))?;
    all_ended(&attempts, &Outcome::Done)?;
    // Only a conntrack entry shows whether a datagram was answered.
    let classes: [(&dyn crate::world::Reached, Class); 2] =
        [(&first_dns, Class::N20), (&second_dns, Class::N20)];
    stage.expect_by_server(&attempts, "kube-system/kube-dns", &classes)?;

    fail(stage)
}

/// Connections that fail, with an agent's hooks: the kernel keeps what IPVS chose until then.
pub(in super::super) fn failures(stage: &mut Stage) -> Result<()> {
    ipvs::sysctl(stage, "conntrack", "0")?;
    stage.with_hooks_of_failures();
    stage.watch()?;
    fail(stage)?;
    stage.check(|_, ended| {
        let unobserved = "which endpoint a flow got is unknown";
        ensure!(!ended.stderr.contains(unobserved), "IPVS's choices are not observed: {}", ended.stderr);
        Ok(())
    });
    Ok(())
}

fn fail(stage: &mut Stage) -> Result<()> {
    let from = stage.place("shop/client-1")?;
    let api = stage.vip("shop/api", "https")?;
    let refusing = SocketAddr::new(stage.place("shop/api-1")?.address, 8443);
    let attempts = client::connect(from, api, 4, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, "shop/api", Class::C28, &Endpoint::Is(refusing));

    let checkout = stage.vip("shop/checkout", "http")?;
    let attempts = client::connect(from, checkout, 3, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Refused)?;
    stage.expect(&attempts, "shop/checkout", Class::C20, &Endpoint::Null);
    Ok(())
}
