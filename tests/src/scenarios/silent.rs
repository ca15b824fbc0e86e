//! C29: the endpoint is current, the SYN leaves for it, nothing comes back; or its node says that it cannot
//! reach the Pod.

use std::{net::SocketAddrV4, time::Duration};

use anyhow::Result;

use crate::{
    expect::{Class, Endpoint},
    topology::Pod,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::Stage,
};

/// Two retransmissions of the SYN fit in.
const PATIENCE: Duration = Duration::from_secs(4);
/// The kernel gives up a next hop after three seconds of its own.
const TOLD: Duration = Duration::from_secs(20);

/// The node has a wrong neighbour entry for the Pod: what it sends is delivered to nobody. (A rule that drops
/// would be another class.)
pub(super) fn same_node(stage: &mut Stage) -> Result<()> {
    let _unreached = stage.serve("shop/api-1", 8443, EXCHANGE)?;
    stage.watch()?;
    let pod = stage.world.pod("shop/api-1")?;
    misdeliver(stage, pod)?;

    let vip = stage.world.cluster.vip("shop/api", "https")?;
    let endpoint = SocketAddrV4::new(pod.place.address, 8443);
    expect_silence(stage, "shop/api", vip, endpoint, &Outcome::ConnectTimedOut)
}

/// Gives the Pod's node a neighbour entry that leads nowhere.
pub(crate) fn misdeliver(stage: &mut Stage, pod: &Pod) -> Result<()> {
    let address = pod.place.address;
    let wrong = [format!("neigh replace {address} lladdr 02:00:00:00:00:01 dev cni0 nud permanent")];
    let none = [format!("neigh del {address} dev cni0")];
    let (there, here) = (pod.node.clone(), pod.node.clone());
    stage.break_with(move |_| there.ip_batch(&wrong), move |_| here.ip_batch(&none))
}

/// The other node loses what goes to the Pod.
pub(super) fn other_node(stage: &mut Stage) -> Result<()> {
    let _unreached = stage.serve("shop/frontend-1", 8080, EXCHANGE)?;
    stage.watch()?;
    let pod = stage.world.pod("shop/frontend-1")?;
    let route = |verb: &str| [format!("route {verb} blackhole {}/32", pod.place.address)];
    let (add, delete) = (route("add"), route("del"));
    stage.break_with(move |_| pod.node.ip_batch(&add), move |_| pod.node.ip_batch(&delete))?;

    let vip = stage.world.cluster.vip("shop/frontend", "http")?;
    let endpoint = SocketAddrV4::new(pod.place.address, 8080);
    expect_silence(stage, "shop/frontend", vip, endpoint, &Outcome::ConnectTimedOut)
}

/// The Pod left its node without a word; the node's neighbour lookup fails and the client is told.
pub(super) fn unreachable(stage: &mut Stage) -> Result<()> {
    stage.watch()?;
    super::stale::unplug(stage, "shop/frontend-1")?;

    let vip = stage.world.cluster.vip("shop/frontend", "http")?;
    let endpoint = SocketAddrV4::new(stage.world.pod("shop/frontend-1")?.place.address, 8080);
    expect_silence(stage, "shop/frontend", vip, endpoint, &Outcome::HostUnreachable)
}

fn expect_silence(
    stage: &mut Stage,
    service: &str,
    vip: SocketAddrV4,
    endpoint: SocketAddrV4,
    outcome: &Outcome,
) -> Result<()> {
    let from = &stage.world.pod("shop/client-1")?.place;
    // A client that will be told waits for the telling, however slow the machine; silence has to end some time.
    let patience = if *outcome == Outcome::ConnectTimedOut { PATIENCE } else { TOLD };
    let attempts = client::connect(from, vip, 4, 4, Script::exchange().connect_limit(patience))?;
    all_ended(&attempts, outcome)?;
    stage.expect(&attempts, service, Class::C29, &Endpoint::Is(endpoint));
    Ok(())
}
