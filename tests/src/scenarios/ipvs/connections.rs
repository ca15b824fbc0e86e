//! C13, C14, C15 and session affinity: connections that meet what IPVS remembers of them, or does not any more.

use std::{fs, time::Duration};

use anyhow::{Context, Result, bail, ensure};
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

/// The Pods of `shop/cart`, each in one conversation after the other.
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
        bail!("the connection was expected to end as {wanted:?} and ended as {seen:?}");
    }
    Ok(())
}

/// The real server goes, with the endpoint, while a connection to it lives.
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

/// `expire_nodest_conn=1`: the next packet is dropped with the entry, its repeat meets the node's own stack.
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

/// `expire_nodest_conn=0`: every packet vanishes.
pub(in super::super) fn server_removed_in_silence(stage: &mut Stage) -> Result<()> {
    ipvs::sysctl(stage, "expire_nodest_conn", "0")?;
    let servers = cart(stage)?;
    stage.watch()?;
    let mut held = hold(stage)?;
    let endpoint = remove_under(stage, &servers, &held)?;
    let seen = held.exchange(&Script::exchange().response_limit(Duration::from_secs(6)));
    expect_outcome(&seen, &Outcome::Silent)?;
    let attempt = held.end(Ending::Reset, seen);
    if gives_drop_reasons()? {
        stage.expect(&[attempt], "shop/cart", Class::C13, &endpoint);
    } else {
        stage.expect(&[attempt], "shop/cart", Class::N9, &endpoint);
        stage.check(|records, _| {
            let hidden = |record: &Record| record.unseen().contains("whether IPVS dropped its packets (C13)");
            ensure!(records.iter().all(hidden), "that drops are hidden is not said");
            Ok(())
        });
    }
    Ok(())
}

/// Whether the kernel says why it drops packets (since 5.17): what needs that is said to be unseen elsewhere.
fn gives_drop_reasons() -> Result<bool> {
    let btf = fs::read("/sys/kernel/btf/vmlinux").context("reading the kernel's BTF")?;
    let name = b"\0skb_drop_reason\0";
    Ok(btf.windows(name.len()).any(|bytes| bytes == name))
}

/// The connection is idle for longer than IPVS remembers it; the next request meets the node's own stack.
pub(in super::super) fn entry_expires(stage: &mut Stage) -> Result<()> {
    let servers = cart(stage)?;
    ipvs::set_tcp_timeout(stage, 2)?;
    stage.watch()?;
    let mut held = hold(stage)?;
    ipvs::wait_until_forgotten(&stage.world.topology.host, held.client, Duration::from_mins(1))?;
    let seen = held.exchange(&Script::exchange());
    expect_outcome(&seen, &Outcome::Reset)?;
    let attempt = held.end(Ending::Close, seen);
    let classes: Vec<(&dyn Reached, Class)> =
        servers.iter().map(|server| (server as &dyn Reached, Class::C15)).collect();
    stage.expect_by_server(&[attempt], "shop/cart", &classes)
}

/// The server ends a connection with a reset, the client comes again from the same port: IPVS drops the SYN with the old
/// entry, and the repeat succeeds. A delay, not a fault.
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
            bail!("connections that came through are no faults: {old}; {new}");
        }
        if old.said().contains("C14") || !new.said().contains("C14") {
            bail!(
                "the lost SYN is not told of the second connection alone:\\n{}\\n{}",
                old.said(),
                new.said()
            );
        }
        Ok(())
    });
    Ok(())
}

/// `shop/payments` has `ClientIP` affinity: every connection follows the first one's template.
pub(in super::super) fn affinity(stage: &mut Stage) -> Result<()> {
    let here = stage.serve("shop/payments-1", 9090, server::EXCHANGE)?;
    let there = stage.serve("shop/payments-2", 9090, server::EXCHANGE)?;
    // Every decision is seen as it is taken, the template's too.
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
            if record.said().contains("persistence template") != is_first {
                bail!("only the first connection has a template made for it: {}", record.said());
            }
        }
        Ok(())
    });
    Ok(())
}
