//! C13, C14, C15 and session affinity: connections that meet an old IPVS entry, or whose entry is gone.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use viptrace_class::Class;

use crate::{
    expect::{Endpoint, Expected, Record},
    ipvs,
    traffic::{
        Attempt, Outcome, all_ended,
        client::{self, Ending, Held, Script},
        server::{self, Server},
    },
    world::{Reached, Stage},
};

const CHAT: server::Script = server::Script::Chat { request: client::REQUEST, response: client::RESPONSE };

/// The Pods of `shop/cart`. Each serves repeated exchanges on a connection.
fn cart(stage: &Stage) -> Result<[Server; 3]> {
    let serve = |pod| stage.serve(pod, 8080, CHAT);
    Ok([serve("shop/cart-1")?, serve("shop/cart-2")?, serve("shop/cart-3")?])
}

fn hold(stage: &Stage) -> Result<Held> {
    let from = stage.place("shop/client-1")?;
    client::hold(from, stage.vip("shop/cart", "http")?, Script::exchange())
}

fn expect_outcome(seen: &Outcome, wanted: &Outcome) -> Result<()> {
    if seen != wanted {
        bail!("the connection ended as {seen:?}, expected {wanted:?}");
    }
    Ok(())
}

/// Removes the real server and the endpoint while a connection to it is open.
fn remove_under(stage: &mut Stage, servers: &[Server; 3], held: &Held) -> Result<Endpoint> {
    let server = servers.iter().find(|server| server.accepted(held.client)).context("no Pod was reached")?;
    let endpoint = server.at();
    let cart = stage.vip("shop/cart", "http")?;
    stage.apply(stage.world.cluster.slice_without("shop/cart", endpoint.ip())?)?;
    ipvs::breaking(stage)?;
    ipvs::remove_real_server(&stage.world.topology.host, cart, endpoint)?;
    stage.after_grace();
    Ok(Endpoint::Is(endpoint))
}

/// `expire_nodest_conn=1`: the next packet is dropped with the entry. Its retransmission reaches the node's own stack.
pub(in super::super) fn server_removed(stage: &mut Stage) -> Result<()> {
    let servers = cart(stage)?;
    stage.watch()?;
    let mut held = hold(stage)?;
    let endpoint = remove_under(stage, &servers, &held)?;
    let seen = held.exchange(&Script::exchange());
    expect_outcome(&seen, &Outcome::Reset)?;
    let attempt = held.end(Ending::Close, seen);
    stage.expect(&[attempt], "shop/cart", Class::C13, &endpoint);
    Ok(())
}

/// `expire_nodest_conn=0`: every packet is dropped silently.
pub(in super::super) fn server_removed_in_silence(stage: &mut Stage) -> Result<()> {
    ipvs::sysctl(stage, "expire_nodest_conn", "0")?;
    let servers = cart(stage)?;
    stage.watch()?;
    let mut held = hold(stage)?;
    let endpoint = remove_under(stage, &servers, &held)?;
    let seen = held.exchange(&Script::exchange().response_limit(Duration::from_secs(6)));
    expect_outcome(&seen, &Outcome::Silent)?;
    let attempt = held.end(Ending::Reset, seen);
    stage.expect(&[attempt], "shop/cart", Class::C13, &endpoint);
    Ok(())
}

/// The connection is idle for longer than IPVS keeps its entry. The next request reaches the node's own stack.
pub(in super::super) fn entry_expires(stage: &mut Stage) -> Result<()> {
    let servers = cart(stage)?;
    ipvs::set_tcp_timeout(stage, 2)?;
    stage.watch()?;
    let mut held = hold(stage)?;
    ipvs::wait_until_deleted(&stage.world.topology.host, held.client, Duration::from_mins(1))?;
    let seen = held.exchange(&Script::exchange());
    expect_outcome(&seen, &Outcome::Reset)?;
    let attempt = held.end(Ending::Close, seen);
    let classes: Vec<(&dyn Reached, Class)> =
        servers.iter().map(|server| (server as &dyn Reached, Class::C15)).collect();
    stage.expect_by_server(&[attempt], "shop/cart", &classes)
}

/// The server resets a connection and the client reconnects from the same port: IPVS drops the SYN with the old entry,
/// and the retransmission succeeds. A delay, not a fault.
pub(in super::super) fn port_reused(stage: &mut Stage) -> Result<()> {
    let resets = server::Script::ServeOnceThenReset { request: client::REQUEST, response: client::RESPONSE };
    let serve = |pod| stage.serve(pod, 8080, resets);
    let _servers = [serve("shop/cart-1")?, serve("shop/cart-2")?, serve("shop/cart-3")?];
    stage.watch()?;
    let mut held = hold(stage)?;
    let seen = held.exchange(&Script::exchange());
    expect_outcome(&seen, &Outcome::Reset)?;
    let first = held.end(Ending::Close, seen);
    let from = stage.place("shop/client-1")?;
    let again = client::reconnect(from, &first, Script::exchange())?;
    expect_outcome(&again.outcome, &Outcome::Done)?;
    stage.check(move |records, _| {
        let key = Expected::to_pod(&first, Class::Ok).key();
        let both: Vec<&Record> =
            records.iter().filter(|record| record.key().as_ref() == Some(&key)).collect();
        let [old, new] = both.as_slice() else {
            bail!("{} records of the two connections from {}", both.len(), first.client);
        };
        if [old, new].iter().any(|record| record.class() != Some(Class::Ok)) {
            bail!("a connection that succeeded is reported as a fault: {old}; {new}");
        }
        if old.statements().contains("C14") || !new.statements().contains("C14") {
            bail!(
                "the lost SYN is not reported for the second connection only:\\n{}\\n{}",
                old.statements(),
                new.statements()
            );
        }
        Ok(())
    });
    Ok(())
}

/// `shop/payments` has `ClientIP` affinity: every connection follows the template of the first.
pub(in super::super) fn affinity(stage: &mut Stage) -> Result<()> {
    let here = stage.serve("shop/payments-1", 9090, server::EXCHANGE)?;
    let there = stage.serve("shop/payments-2", 9090, server::EXCHANGE)?;
    // A targeted trace observes every decision when IPVS takes it, including the template's.
    stage.watch_with(&["shop/payments"])?;
    let from = stage.place("shop/client-1")?;
    let payments = stage.vip("shop/payments", "grpc")?;
    let attempts = client::connect(from, payments, 8, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    let chosen = if here.accepted_count() > 0 { &here } else { &there };
    if here.accepted_count() + there.accepted_count() != chosen.accepted_count() {
        bail!("affinity sent one client to both Pods");
    }
    stage.expect_by_server(&attempts, "shop/payments", &[(chosen, Class::Ok)])?;
    let first: Option<Attempt> = attempts.first().cloned();
    stage.check(move |records, _| {
        let first = first.context("no attempt")?;
        let key = Expected::to_pod(&first, Class::Ok).key();
        for record in records.iter().filter(|record| record.text("/service/name") == "payments") {
            let is_first = record.key().as_ref() == Some(&key);
            if record.statements().contains("persistence template") != is_first {
                bail!(
                    "the template is reported for another connection than the first: {}",
                    record.statements()
                );
            }
        }
        Ok(())
    });
    Ok(())
}

/// C24: the endpoint leaves, its real server gets weight 0, and the client's template outlives it, because
/// `expire_quiescent_template` is 0. A client without a template is sent elsewhere.
pub(in super::super) fn pinned(stage: &mut Stage) -> Result<()> {
    ipvs::sysctl(stage, "expire_quiescent_template", "0")?;
    let here = stage.serve("shop/payments-1", 9090, server::EXCHANGE)?;
    let there = stage.serve("shop/payments-2", 9090, server::EXCHANGE)?;
    stage.watch()?;
    let from = stage.place("shop/client-1")?;
    let payments = stage.vip("shop/payments", "grpc")?;
    let before = client::connect(from, payments, 1, 1, Script::exchange())?;
    all_ended(&before, &Outcome::Done)?;
    stage.expect_by_server(&before, "shop/payments", &[(&here, Class::Ok), (&there, Class::Ok)])?;
    // The server's end closes after the client's. A flow that outlives its endpoint's removal, even by milliseconds, is
    // an N9.
    for attempt in &before {
        stage.record_of(attempt)?;
    }

    let left = if here.accepted_count() > 0 { &here } else { &there };
    let endpoint = left.at();
    stage.apply(stage.world.cluster.slice_without("shop/payments", endpoint.ip())?)?;
    ipvs::breaking(stage)?;
    ipvs::set_weight_0(&stage.world.topology.host, payments, endpoint)?;
    stage.after_grace();

    let pinned = client::connect(from, payments, 3, 1, Script::exchange())?;
    all_ended(&pinned, &Outcome::Done)?;
    stage.expect(&pinned, "shop/payments", Class::C24, &Endpoint::Is(endpoint));
    let other = client::connect(stage.place("shop/slow-1")?, payments, 2, 1, Script::exchange())?;
    all_ended(&other, &Outcome::Done)?;
    let stays = if here.at() == endpoint { &there } else { &here };
    stage.expect_by_server(&other, "shop/payments", &[(stays, Class::Ok)])
}
