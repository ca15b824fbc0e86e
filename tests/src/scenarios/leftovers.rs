//! C3 and C10: rules that kube-proxy no longer maintains translate an address that its own rules lack. In iptables mode
//! they are in the other backend, in nftables mode iptables wrote them.

use anyhow::Result;

use super::stale;
use viptrace_class::Class;

use crate::{
    dataplane::Mode,
    expect::Endpoint,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

pub(super) fn story(stage: &mut Stage) -> Result<()> {
    let leaving = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let elsewhere = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let gone = stale::remove_cart_2(stage)?;
    let cart = stage.vip("shop/cart", "http")?;
    let cut = stage.rules()?.without_service(cart);
    stage.break_rules(&cut)?;

    let (class, other) = match stage.mode() {
        Mode::Nftables => (Class::C10, Mode::Iptables),
        _ => (Class::C3, Mode::IptablesLegacy),
    };
    let mut old = stage.world.rules(other)?.clone();
    for pod in ["shop/cart-1", "shop/cart-3"] {
        old = old.with_endpoint_moved(stage.place(pod)?.address, gone.ip());
    }
    let cleared = old.clone();
    stage.break_with(
        move |world| old.restore(&world.topology.host),
        move |world| cleared.clear(&world.topology.host),
    )?;
    stage.after_grace();

    let from = stage.place("shop/client-1")?;
    let attempts = client::connect(from, cart, 6, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect(&attempts, "shop/cart", class, &Endpoint::Is(leaving.address()));
    // Both writers translate this address, and its endpoint is current.
    let frontend = stage.vip("shop/frontend", "http")?;
    let served = client::connect(from, frontend, 4, 1, Script::exchange())?;
    all_ended(&served, &Outcome::Done)?;
    stage.expect(&served, "shop/frontend", Class::Ok, &Endpoint::Is(elsewhere.address()));
    Ok(())
}
