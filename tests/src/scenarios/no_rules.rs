//! C1 and C5: no rule translates a Service address. Packets keep the address, leave by the default route and vanish. In
//! one story kube-proxy and all its rules are gone; in the other only the rules of one Service.

use std::{thread, time::Duration};

use anyhow::{Result, anyhow};
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

/// Enough for two retransmissions of the SYN.
const PATIENCE: Duration = Duration::from_secs(4);

pub(super) fn all(stage: &mut Stage) -> Result<()> {
    let _here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    stage.watch()?;
    stage.kube_proxy.kill();
    let flushed = stage.rules()?.without_kube_proxy();
    stage.break_rules(&flushed)?;
    expect_no_translation(stage, Class::C1)
}

/// The same without any rule of any program: the kernel has no reason to track connections in this namespace, so that no
/// conntrack hook sees them.
pub(super) fn nothing_tracked(stage: &mut Stage) -> Result<()> {
    let _here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    stage.watch()?;
    stage.kube_proxy.kill();
    let rules = stage.rules()?.clone();
    stage.break_rules(&rules.without_kube_proxy())?;
    stage.break_with(move |world| rules.clear(&world.topology.host), |_| Ok(()))?;
    expect_no_translation(stage, Class::C1)
}

/// Another program removes the rules of a kube-proxy that runs and has written them.
pub(super) fn removed(stage: &mut Stage) -> Result<()> {
    let _here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let removed = stage.rules()?.without_kube_proxy();
    stage.break_rules(&removed)?;
    expect_no_translation(stage, Class::C5e)
}

fn expect_no_translation(stage: &mut Stage, class: Class) -> Result<()> {
    let from = stage.place("shop/client-1")?;
    let script = Script::exchange().connect_limit(PATIENCE);
    let mut waiting = Vec::new();
    for (service, port) in [("shop/cart", "http"), ("shop/frontend", "http"), ("shop/payments", "grpc")] {
        let (from, vip) = (from.clone(), stage.vip(service, port)?);
        waiting.push((service, thread::spawn(move || client::connect(&from, vip, 4, 4, script))));
    }
    for (service, clients) in waiting {
        let attempts = clients.join().map_err(|_| anyhow!("the clients of {service} panicked"))??;
        all_ended(&attempts, &Outcome::ConnectTimedOut)?;
        stage.expect(&attempts, service, class, &Endpoint::Null);
    }
    Ok(())
}

pub(super) fn one(stage: &mut Stage) -> Result<()> {
    let serving = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let cart = stage.vip("shop/cart", "http")?;
    let frontend = stage.vip("shop/frontend", "http")?;
    let cut = stage.rules()?.without_service(cart);
    stage.break_rules(&cut)?;

    let from = stage.place("shop/client-1")?;
    let served = client::connect(from, frontend, 10, 1, Script::exchange())?;
    all_ended(&served, &Outcome::Done)?;
    stage.expect_by_server(&served, "shop/frontend", &[(&serving, Class::Ok)])?;
    let script = Script::exchange().connect_limit(PATIENCE);
    let lost = client::connect(from, cart, 5, 5, script)?;
    all_ended(&lost, &Outcome::ConnectTimedOut)?;
    stage.expect(&lost, "shop/cart", Class::C5, &Endpoint::Null);
    Ok(())
}
