//! C6: the API has removed an endpoint from its slice, and kube-proxy's rules still send to it. In one story the Pod
//! still answers and clients notice nothing. In the other the Pod is gone and the rules know no other endpoint: with
//! several endpoints a retransmitted SYN could reach another one, because no entry is confirmed.

use std::net::SocketAddr;

use anyhow::{Result, bail};
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

/// Removes `shop/cart-2` from the API; the rules keep it. Returns the stale endpoint.
pub(super) fn remove_cart_2(stage: &mut Stage) -> Result<SocketAddr> {
    let address = stage.place("shop/cart-2")?.address;
    let slice = stage.world.cluster.slice_without("shop/cart", address)?;
    stage.apply(slice)?;
    stage.delete("Pod", "shop/cart-2")?;
    Ok(SocketAddr::new(address, 8080))
}

/// Every verdict of a stale endpoint has the time since its removal.
fn check_age(stage: &mut Stage) {
    stage.check(|records, _| {
        for record in records.iter().filter(|record| record.class() == Some(Class::C6)) {
            if !record.statements().contains(" s before") {
                bail!(
                    "the verdict of a stale endpoint lacks the time since its removal: {}",
                    record.statements()
                );
            }
        }
        Ok(())
    });
}

pub(super) fn answers(stage: &mut Stage) -> Result<()> {
    let here = stage.serve("shop/cart-1", 8080, EXCHANGE)?;
    let leaving = stage.serve("shop/cart-2", 8080, EXCHANGE)?;
    let there = stage.serve("shop/cart-3", 8080, EXCHANGE)?;
    stage.watch()?;
    remove_cart_2(stage)?;
    stage.after_grace();

    let from = stage.place("shop/client-1")?;
    let cart = stage.vip("shop/cart", "http")?;
    let attempts = client::connect(from, cart, 60, 2, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    stage.expect_by_server(
        &attempts,
        "shop/cart",
        &[(&here, Class::Ok), (&leaving, Class::C6), (&there, Class::Ok)],
    )?;
    check_age(stage);
    Ok(())
}

pub(super) fn gone(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    let gone = remove_cart_2(stage)?;
    unplug(stage, "shop/cart-2")?;
    let mut old = stage.rules()?.clone();
    for other in ["shop/cart-1", "shop/cart-3"] {
        old = old.with_endpoint_moved(stage.place(other)?.address, gone.ip());
    }
    stage.break_rules(&old)?;
    stage.after_grace();

    let from = stage.place("shop/client-1")?;
    let cart = stage.vip("shop/cart", "http")?;
    let attempts = client::connect(from, cart, 6, 6, Script::exchange())?;
    all_ended(&attempts, &Outcome::HostUnreachable)?;
    stage.expect(&attempts, "shop/cart", Class::C6, &Endpoint::Is(gone));
    check_age(stage);
    Ok(())
}

/// Makes the Pod's address unreachable.
pub(super) fn unplug(stage: &mut Stage, pod: &str) -> Result<()> {
    let pod = stage.world.pod(pod)?;
    let set = |state: &str| vec![format!("link set {} {state}", pod.link), "neigh flush all".to_owned()];
    let (down, up) = (set("down"), set("up"));
    stage.break_with(move |_| pod.node.ip_batch(&down), move |_| pod.node.ip_batch(&up))
}
