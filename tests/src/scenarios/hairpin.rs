//! C31: NAT sends a Pod's connection back to the Pod over a bridge port without hairpin mode; and a bridge hides its
//! Pods' answers from iptables.

use std::time::Duration;

use anyhow::Result;

use super::alone::Alone;
use viptrace_class::Class;

use crate::{
    expect::Endpoint,
    traffic::{
        Outcome, all_ended,
        client::{self, Script},
        server::EXCHANGE,
    },
    world::{Stage, World},
};

/// Enough for two retransmissions of the SYN.
const PATIENCE: Duration = Duration::from_secs(4);

pub(super) fn to_itself(stage: &mut Stage) -> Result<()> {
    let alone = Alone::new(stage)?;
    let _unreached = stage.serve(alone.pod, alone.endpoint.port(), EXCHANGE)?;
    stage.watch()?;
    let pod = stage.world.pod(alone.pod)?;
    let hairpin = |state: &str| [format!("link set {} type bridge_slave hairpin {state}", pod.link)];
    let (off, on) = (hairpin("off"), hairpin("on"));
    stage.break_with(move |_| pod.node.ip_batch(&off), move |_| pod.node.ip_batch(&on))?;
    let script = Script::exchange().connect_limit(PATIENCE);
    let attempts = client::connect(stage.place(alone.pod)?, alone.vip, 3, 3, script)?;
    all_ended(&attempts, &Outcome::ConnectTimedOut)?;
    stage.expect(&attempts, alone.service, Class::C31, &Endpoint::Is(alone.endpoint));
    Ok(())
}

pub(super) fn past_nat(stage: &mut Stage) -> Result<()> {
    let alone = Alone::new(stage)?;
    let _answering = stage.serve(alone.pod, alone.endpoint.port(), EXCHANGE)?;
    stage.watch()?;
    stage.break_with(|world| filter_bridge(world, "0"), |world| filter_bridge(world, "1"))?;
    let script = Script::exchange().connect_limit(PATIENCE);
    let attempts = client::connect(stage.place("shop/client-1")?, alone.vip, 3, 3, script)?;
    all_ended(&attempts, &Outcome::ConnectTimedOut)?;
    stage.expect(&attempts, alone.service, Class::C31, &Endpoint::Is(alone.endpoint));
    Ok(())
}

fn filter_bridge(world: &World, value: &str) -> Result<()> {
    let host = &world.topology.host;
    host.sysctl("net.bridge.bridge-nf-call-iptables", value)?;
    host.sysctl("net.bridge.bridge-nf-call-ip6tables", value)
}
