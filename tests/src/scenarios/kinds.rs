//! The kinds of Services through all their addresses: node ports, load balancer and external IPs, from Pods, from the
//! node and from outside the cluster; with `loadBalancerSourceRanges` (C23), Local policies without a local endpoint
//! (C21, C22), a port that the Service lacks (C5c), session affinity and terminating endpoints (N8).

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result, bail};
use viptrace_class::Class;

use crate::{
    dataplane::Mode,
    expect::Endpoint,
    topology::Place,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::{EXCHANGE, Server},
    },
    world::Stage,
};

/// Enough for two retransmissions of the SYN.
const PATIENCE: Duration = Duration::from_secs(4);
/// The addresses of `shop/api` in the captured cluster.
const LOAD_BALANCER: &str = "203.0.113.80:443";
const EXTERNAL: &str = "203.0.113.50:443";
/// An address in its `loadBalancerSourceRanges`.
const ADMITTED: &str = "198.51.100.7";
const NODE_PORT: u16 = 30_443;

/// A host outside the nodes that the ranges admit, and its route to the addresses outside the cluster.
fn admitted(stage: &mut Stage) -> Result<Place> {
    let node = stage.world.topology.node_at(stage.family())?.address;
    let commands = move |verb: &str| {
        vec![
            format!("address {verb} {ADMITTED}/32 dev fab0"),
            format!("route {verb} 203.0.113.0/24 via {node}"),
        ]
    };
    let (add, delete) = (commands("add"), commands("del"));
    stage.break_with(
        move |world| world.topology.fabric.ip_batch(&add),
        move |world| world.topology.fabric.ip_batch(&delete),
    )?;
    Ok(stage.world.topology.outside_at(ADMITTED.parse().context("an address")?))
}

/// This node serves `shop/api` to every client at each address. Clients outside the Pod network are masqueraded, and
/// the record reports it.
pub(super) fn addresses(stage: &mut Stage) -> Result<()> {
    let serving = stage.serve("shop/api-1", 8443, EXCHANGE)?;
    let admitted = admitted(stage)?;
    stage.watch()?;
    let topology = &stage.world.topology;
    let (node, outside) = (topology.node_at(stage.family())?, topology.outside(stage.family())?);
    let pod = stage.place("shop/client-1")?;
    let node_port = SocketAddr::new(node.address, NODE_PORT);
    let (load_balancer, external) = (LOAD_BALANCER.parse()?, EXTERNAL.parse()?);
    let targets: [(&Place, SocketAddr); 6] = [
        (outside, node_port),
        (pod, node_port),
        (node, node_port),
        (&admitted, load_balancer),
        (outside, external),
        (pod, external),
    ];
    let mut masqueraded = Vec::new();
    for (from, target) in targets {
        let attempts = client::connect(from, target, 4, 1, Script::exchange())?;
        all_ended(&attempts, &Outcome::Done).with_context(|| format!("from {} to {target}", from.address))?;
        stage.expect(&attempts, "shop/api", Class::Ok, &Endpoint::Is(serving.address()));
        if from.address == outside.address {
            masqueraded.extend(attempts.iter().map(|attempt| attempt.client.to_string()));
        }
    }
    stage.check(move |records, _| {
        for client in &masqueraded {
            let record = records.iter().find(|record| record.text("/flow/client") == client);
            let record = record.with_context(|| format!("no record of {client}"))?;
            if !record.statements().contains("not the client's (N14)") {
                bail!("the lost source of {client} is not reported: {}", record.statements());
            }
        }
        Ok(())
    });
    Ok(())
}

/// C23: clients outside the ranges are dropped, Pods as well as hosts outside.
pub(super) fn source_ranges(stage: &mut Stage) -> Result<()> {
    let _unreached = stage.serve("shop/api-1", 8443, EXCHANGE)?;
    admitted(stage)?;
    stage.watch()?;
    let places = [stage.world.topology.outside(stage.family())?, stage.place("shop/client-1")?];
    let target: SocketAddr = LOAD_BALANCER.parse()?;
    for from in places {
        let script = Script::exchange().connect_limit(PATIENCE);
        let attempts = client::connect(from, target, 3, 3, script)?;
        all_ended(&attempts, &Outcome::ConnectTimedOut)?;
        stage.expect(&attempts, "shop/api", Class::C23, &Endpoint::Null);
    }
    let chain = if stage.mode() == Mode::Nftables { "firewall-" } else { "KUBE-PROXY-FIREWALL" };
    expect_words(stage, "198.51.100.0/24");
    expect_words(stage, chain);
    Ok(())
}

/// C21: the only endpoint of `shop/frontend` is on the other node. A client from outside is dropped, a Pod is served.
pub(super) fn no_local_endpoint_external(stage: &mut Stage) -> Result<()> {
    let serving = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let topology = &stage.world.topology;
    let target = SocketAddr::new(topology.node_at(stage.family())?.address, 30_080);
    let served = client::connect(stage.place("shop/client-1")?, target, 4, 1, Script::exchange())?;
    all_ended(&served, &Outcome::Done)?;
    stage.expect(&served, "shop/frontend", Class::Ok, &Endpoint::Is(serving.address()));
    let script = Script::exchange().connect_limit(PATIENCE);
    let lost = client::connect(topology.outside(stage.family())?, target, 4, 4, script)?;
    all_ended(&lost, &Outcome::ConnectTimedOut)?;
    stage.expect(&lost, "shop/frontend", Class::C21, &Endpoint::Null);
    Ok(())
}

/// C22: `shop/cache` has `internalTrafficPolicy: Local`, and its only endpoint is on the other node.
pub(super) fn no_local_endpoint_internal(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    let vip = stage.vip("shop/cache", "redis")?;
    let script = Script::exchange().connect_limit(PATIENCE);
    let lost = client::connect(stage.place("shop/client-1")?, vip, 4, 4, script)?;
    all_ended(&lost, &Outcome::ConnectTimedOut)?;
    stage.expect(&lost, "shop/cache", Class::C22, &Endpoint::Null);
    expect_words(stage, "no endpoint on this node");
    Ok(())
}

/// C5c: the Service has no such port. In nftables mode kube-proxy rejects the connection, in iptables mode nothing
/// answers.
pub(super) fn wrong_port(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    let target = SocketAddr::new(stage.vip("shop/cart", "http")?.ip(), 81);
    let script = Script::exchange().connect_limit(PATIENCE);
    let attempts = client::connect(stage.place("shop/client-1")?, target, 3, 3, script)?;
    let outcome = if stage.mode() == Mode::Nftables { Outcome::Refused } else { Outcome::ConnectTimedOut };
    all_ended(&attempts, &outcome)?;
    stage.expect(&attempts, "shop/cart", Class::C5c, &Endpoint::Null);
    Ok(())
}

/// `shop/payments` has session affinity: a client stays at one endpoint.
pub(super) fn affinity(stage: &mut Stage) -> Result<()> {
    let servers =
        [stage.serve("shop/payments-1", 9090, EXCHANGE)?, stage.serve("shop/payments-2", 9090, EXCHANGE)?];
    stage.watch()?;
    let vip = stage.vip("shop/payments", "grpc")?;
    let attempts = client::connect(stage.place("shop/client-1")?, vip, 12, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    let counts = servers.each_ref().map(Server::accepted_count);
    if !counts.contains(&0) {
        bail!("the client reached both endpoints: {counts:?}");
    }
    stage.expect_by_server(&attempts, "shop/payments", &[(&servers[0], Class::Ok), (&servers[1], Class::Ok)])
}

/// N8: no endpoint is ready, and the terminating ones still serve.
pub(super) fn terminating(stage: &mut Stage) -> Result<()> {
    let serve = |pod| stage.serve(pod, 8080, EXCHANGE);
    let servers = [serve("shop/cart-1")?, serve("shop/cart-2")?, serve("shop/cart-3")?];
    stage.watch()?;
    let mut slice = stage.world.cluster.slice_of("shop/cart", stage.family())?;
    for endpoint in slice["endpoints"].as_array_mut().context("the slice has no endpoints")? {
        endpoint["conditions"] = serde_json::json!({"ready": false, "serving": true, "terminating": true});
    }
    stage.apply(slice)?;
    stage.after_grace();
    let vip = stage.vip("shop/cart", "http")?;
    let attempts = client::connect(stage.place("shop/client-1")?, vip, 9, 1, Script::exchange())?;
    all_ended(&attempts, &Outcome::Done)?;
    let [one, two, three] = &servers;
    let n8 = Class::N8;
    stage.expect_by_server(&attempts, "shop/cart", &[(one, n8), (two, n8), (three, n8)])
}

/// Every verdict of a fault contains these words.
fn expect_words(stage: &mut Stage, words: &'static str) {
    stage.check(move |records, _| {
        for record in records.iter().filter(|record| record.reports_failure()) {
            if !record.statements().contains(words) {
                bail!("the record lacks {words:?}: {}", record.statements());
            }
        }
        Ok(())
    });
}
