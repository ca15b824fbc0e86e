//! C29: the endpoint is current, the SYN leaves for it, and nothing comes back; or the endpoint's node reports that it
//! cannot reach the Pod.

use std::{net::SocketAddr, time::Duration};

use anyhow::Result;

use super::alone::Alone;
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    topology::Pod,
    traffic::{
        Attempt, Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

/// Enough for two retransmissions of the SYN.
const PATIENCE: Duration = Duration::from_secs(4);
/// The kernel gives up a next hop after three seconds; the rest is for a slow machine.
const ERROR_LIMIT: Duration = Duration::from_secs(20);

/// The node has a wrong neighbour entry for the Pod, so no host receives its packets. (A rule that drops would be
/// another class.)
pub(super) fn same_node(stage: &mut Stage) -> Result<()> {
    let alone = Alone::new(stage)?;
    let _unreached = stage.serve(alone.pod, alone.endpoint.port(), EXCHANGE)?;
    stage.watch()?;
    misdeliver(stage, stage.world.pod(alone.pod)?)?;
    expect_silence(stage, alone.service, alone.vip, alone.endpoint, &Outcome::ConnectTimedOut)
}

/// No endpoint of `shop/payments` receives a packet.
pub(super) fn misdeliver_payments(stage: &mut Stage) -> Result<()> {
    for pod in ["shop/payments-1", "shop/payments-2"] {
        misdeliver(stage, stage.world.pod(pod)?)?;
    }
    Ok(())
}

/// As many connections to `shop/payments`, whose endpoints are [misdelivered](misdeliver_payments), and their endpoint:
/// only one, so that a retransmitted SYN cannot reach another.
pub(super) fn unanswered(stage: &mut Stage, count: usize) -> Result<(Vec<Attempt>, Endpoint)> {
    let silent = stage.place("shop/payments-1")?.address;
    let other = stage.place("shop/payments-2")?.address;
    let rules = stage.rules()?.with_endpoint_moved(other, silent);
    let payments = stage.vip("shop/payments", "grpc")?;
    stage.break_rules(&rules)?;
    let patience = Script::exchange().connect_limit(PATIENCE);
    let attempts = client::connect(stage.place("shop/client-1")?, payments, count, 3, patience)?;
    all_ended(&attempts, &Outcome::ConnectTimedOut)?;
    Ok((attempts, Endpoint::Is(SocketAddr::new(silent, 9090))))
}

/// Gives the Pod's node a wrong neighbour entry.
pub(crate) fn misdeliver(stage: &mut Stage, pod: &Pod) -> Result<()> {
    let address = stage.at(pod)?.address;
    let wrong = [format!("neigh replace {address} lladdr 02:00:00:00:00:01 dev cni0 nud permanent")];
    let none = [format!("neigh del {address} dev cni0")];
    let (there, here) = (pod.node.clone(), pod.node.clone());
    stage.break_with(move |_| there.ip_batch(&wrong), move |_| here.ip_batch(&none))
}

/// The other node drops packets to the Pod.
pub(super) fn other_node(stage: &mut Stage) -> Result<()> {
    let _unreached = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let pod = stage.world.pod("shop/frontend-1")?;
    let (address, prefix) = (stage.at(pod)?.address, stage.family().host_prefix());
    let route = |verb: &str| [format!("route {verb} blackhole {address}/{prefix}")];
    let (add, delete) = (route("add"), route("del"));
    stage.break_with(move |_| pod.node.ip_batch(&add), move |_| pod.node.ip_batch(&delete))?;

    let vip = stage.vip("shop/frontend", "http")?;
    let endpoint = SocketAddr::new(stage.at(pod)?.address, 8080);
    expect_silence(stage, "shop/frontend", vip, endpoint, &Outcome::ConnectTimedOut)
}

/// The Pod's link is down; the node's neighbour lookup fails and the client gets an error.
pub(super) fn unreachable(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    super::stale::unplug(stage, "shop/frontend-1")?;

    let vip = stage.vip("shop/frontend", "http")?;
    let endpoint = SocketAddr::new(stage.place("shop/frontend-1")?.address, 8080);
    expect_silence(stage, "shop/frontend", vip, endpoint, &Outcome::HostUnreachable)
}

fn expect_silence(
    stage: &mut Stage,
    service: &str,
    vip: SocketAddr,
    endpoint: SocketAddr,
    outcome: &Outcome,
) -> Result<()> {
    let from = stage.place("shop/client-1")?;
    // A client that expects an error waits for it, however slow the machine is. Silence needs a limit.
    let patience = if *outcome == Outcome::ConnectTimedOut { PATIENCE } else { ERROR_LIMIT };
    let attempts = client::connect(from, vip, 4, 4, Script::exchange().connect_limit(patience))?;
    all_ended(&attempts, outcome)?;
    stage.expect(&attempts, service, Class::C29, &Endpoint::Is(endpoint));
    Ok(())
}
