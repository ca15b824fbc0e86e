//! A constructed flow with the world in which it is judged, and the builders that the groups share.

use viptrace::{
    class::{Class, Confidence},
    cluster::{History, Via},
    diagnosis::flows::judge_without,
    flow::Flow,
    node::{ProxyMode, RuleEffect, Snapshot},
    sighting::{Fact, Status, TcpState},
};

use super::{
    Ipvs,
    case::{Judged, Name, Omits},
};
use crate::{
    cluster_support::Shop,
    flow_support::{CLIENT, EP, Script, VIP, World, at, fold, last_revisions},
    ipvs_support::{by_ipvs, refused_by_ipvs},
    node_support::Rules,
};

pub(super) const OTHER: &str = "10.244.1.8:8080";
pub(super) const NODE_PORT: &str = "192.168.1.2:30080";
pub(super) const LOAD_BALANCER: &str = "203.0.113.80:80";
pub(super) const OUTSIDE: &str = "203.0.113.9:40000";

/// Flows, and what is known when they are judged.
pub(super) struct Traced {
    world: World,
    history: History,
    node: Snapshot,
    flows: Vec<Flow>,
    script: Script,
    /// When the flows are judged, in milliseconds after the last event.
    after: u64,
}

impl Traced {
    /// Half a minute after the last event.
    pub(super) fn of(world: World, script: Script) -> Self {
        Self::after(world, script, 30_000)
    }

    /// The only flow, near which events were lost.
    pub(super) fn with_losses(world: World, script: Script) -> Self {
        let mut traced = Self::of(world, script);
        traced.flows[0].lost = 3;
        traced
    }

    /// The last of several flows; the others are known when it is judged.
    pub(super) fn last_of(world: World, script: Script) -> Self {
        let mut traced = Self::of(world, script);
        let last = traced.flows.pop().unwrap();
        assert!(!traced.flows.is_empty(), "the sightings make one flow");
        traced.flows = vec![last];
        traced
    }

    /// So many milliseconds after the last event.
    pub(super) fn after(world: World, script: Script, ms: u64) -> Self {
        let flows = flows(&world, script.clone(), ms);
        assert!(!flows.is_empty(), "the sightings make no flow");
        let (history, node) = (world.shop.history(), world.snapshot());
        Self { world, history, node, flows, script, after: ms }
    }

    /// The verdicts without any one event, the loss of which is known.
    pub(super) fn found_with_a_gap(&self) -> Vec<(String, Vec<(Class, Confidence)>)> {
        let context = self.world.context(&self.history, &self.node);
        let without = |index: usize| {
            let mut script = self.script.clone();
            let missing = script.out.remove(index);
            let found = flows(&self.world, script, self.after).into_iter().filter_map(|mut flow| {
                flow.lost = 1;
                judge_without(&flow, &context, &|_, _| false)
                    .map(|verdict| (verdict.class, verdict.confidence))
            });
            (format!("{:?} at {}", missing.hook, missing.time), found.collect())
        };
        (0..self.script.out.len()).map(without).collect()
    }
}

impl Judged for Traced {
    fn found(&self, omits: Omits<'_>) -> Vec<Name> {
        let context = self.world.context(&self.history, &self.node);
        let verdicts = self.flows.iter().filter_map(|flow| judge_without(flow, &context, &omits));
        verdicts.map(|verdict| verdict.class.into()).collect()
    }
}

/// The flows of a script in the world's mode.
pub(super) fn flows(world: &World, script: Script, ms: u64) -> Vec<Flow> {
    let script = if world.node.mode == Some(Ipvs) { by_ipvs(script) } else { script };
    let last = script.out.iter().map(|sighting| sighting.time).max().unwrap_or_default();
    let until = last.since(at(0)).as_millis() as u64 + ms;
    last_revisions(fold(script.out, until).0)
}

pub(super) fn world(mode: ProxyMode) -> World {
    world_of(mode, Shop::new())
}

pub(super) fn world_of(mode: ProxyMode, shop: Shop) -> World {
    let mut world = World::of(shop);
    world.node.mode = Some(mode);
    world
}

/// The rules do this with the Service's addresses.
pub(super) fn with_rules(mut world: World, effect: RuleEffect) -> World {
    world.node.rules = Rules::Vip(effect);
    world
}

/// cart at another kind of address.
pub(super) fn reached_by(mode: ProxyMode, via: Via, address: &str) -> World {
    let mut world = world(mode);
    world.shop.reached_by(via, address);
    world
}

/// The endpoint left the slices 40 s before the connections of the groups.
pub(super) fn left(mode: ProxyMode) -> World {
    let mut world = world(mode);
    world.shop.leaves(EP, 20_000);
    world
}

/// A connection to cart that was translated.
pub(super) fn cart() -> Script {
    Script::new(CLIENT, VIP, Some(EP))
}

/// A connection to cart that was not.
pub(super) fn untranslated() -> Script {
    Script::new(CLIENT, VIP, None)
}

/// The effect of kube-proxy's rules for a Service without endpoints on a SYN.
pub(super) fn refused_by_rules(mode: ProxyMode, script: Script) -> Script {
    if mode == Ipvs {
        refused_by_ipvs(script, 60_000)
    } else {
        script.unreach(60_000, 3).connect_failed(60_001)
    }
}

/// A SYN that is dropped on the node after its endpoint was chosen. In ipvs mode its entry is confirmed before
/// (`ip_vs_confirm_conntrack`).
pub(super) fn dropped_behind(mode: ProxyMode, script: Script, ms: u64, reason: &str) -> Script {
    if mode != Ipvs {
        return script.drop_syn(ms, reason);
    }
    let mut script = script.confirm(ms).drop_syn(ms, reason);
    if let Some(Fact::Packet(packet)) = script.out.last_mut().map(|sighting| &mut sighting.fact)
        && let Some(entry) = &mut packet.ct
    {
        entry.status.0 |= Status::CONFIRMED;
    }
    script
}

/// The SYN is sent twice more, and nothing answers.
pub(super) fn unanswered(script: Script, ms: u64) -> Script {
    script.retransmit(ms + 1000, TcpState::SynSent).retransmit(ms + 3000, TcpState::SynSent)
}

/// Four retransmits of an established connection, each after about twice the time.
pub(super) fn falls_silent(script: Script, ms: u64) -> Script {
    [0, 400, 1_200, 2_800, 6_000]
        .iter()
        .fold(script, |script, wait| script.retransmit(ms + wait, TcpState::Established))
}

/// The endpoint resets the connection.
pub(super) fn reset_by_endpoint(script: Script, ms: u64) -> Script {
    script
        .send_reset(ms, true, TcpState::Established, "TCP_ABORT_ON_CLOSE")
        .receive_reset(ms + 1, TcpState::Established)
        .state(ms + 1, false, TcpState::Established, TcpState::Close)
}

/// The client resets the connection.
pub(super) fn reset_by_client(script: Script, ms: u64, reason: &str) -> Script {
    script.send_reset(ms, false, TcpState::Established, reason).state(
        ms,
        false,
        TcpState::Established,
        TcpState::Close,
    )
}
