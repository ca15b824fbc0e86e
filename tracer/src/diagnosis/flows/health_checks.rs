//! N2: a load balancer's health checks at a Service's own port.
//!
//! Owns a bounded memory of the clients outside the cluster: a health check is recognised only by its rhythm.

use std::{net::IpAddr, time::Duration};

use foldhash::HashMap;

use super::{Case, Finding, Surroundings, bounded};
use crate::{
    class::{Class, Confidence},
    cluster::{Address, Via},
    flow::Flow,
    net::TransportAddr,
    text::length,
    time::Timestamp,
};

/// The maximum number of clients kept; beyond it all are removed at once.
const MAX_CLIENTS: usize = 4096;
/// The periods of health checks: `HAProxy`'s default is 2 s, those of clouds are 5 to 30 s, at most 300 s.
const MIN_PERIOD: Duration = Duration::from_secs(1);
const MAX_PERIOD: Duration = Duration::from_mins(5);
/// So many equal intervals are a rhythm.
const MIN_INTERVALS: u32 = 4;
/// A health check gives up within seconds; other clients repeat their SYN for longer.
const MAX_SYNS: u32 = 3;

/// The connections of one client to one address.
#[derive(Clone, Copy, Debug)]
struct Visits {
    last: Timestamp,
    period: Duration,
    /// Consecutive intervals of about one length.
    intervals: u32,
}

#[derive(Debug, Default)]
pub(super) struct Visitors(HashMap<(IpAddr, TransportAddr), Visits>);

impl Visitors {
    /// Notes a connection to an address with this meaning.
    pub(super) fn note(&mut self, flow: &Flow, asked: &Address<'_>, around: &Surroundings<'_>) {
        let counts = flow.is_tcp() && !flow.partial && flow.revision <= 1;
        if !counts || !is_external(asked) || !is_from_outside(flow, around) {
            return;
        }
        let now = flow.first_seen;
        let key = (flow.orig.src.ip(), flow.orig.dst);
        let first = Visits { last: now, period: Duration::ZERO, intervals: 0 };
        let visits = bounded::entry(&mut self.0, MAX_CLIENTS, key).or_insert(first);
        let gap = now.since(visits.last);
        if !(MIN_PERIOD..=MAX_PERIOD).contains(&gap) {
            if gap > Duration::ZERO {
                *visits = first;
            }
            return;
        }
        let is_alike = gap.abs_diff(visits.period) <= visits.period / 8;
        let intervals = if is_alike && !carried_data(flow) { visits.intervals.saturating_add(1) } else { 1 };
        *visits = Visits { last: now, period: if is_alike { visits.period } else { gap }, intervals };
    }

    /// The period of this client's connections, if they have one.
    fn period(&self, flow: &Flow) -> Option<Duration> {
        let visits = self.0.get(&(flow.orig.src.ip(), flow.orig.dst))?;
        (visits.intervals >= MIN_INTERVALS).then_some(visits.period)
    }
}

/// Whether an end that was observed received application data.
fn carried_data(flow: &Flow) -> bool {
    flow.server.bytes_received > 0 || flow.client.bytes_received > 0
}

/// A connection from outside the cluster to an external address.
pub(super) fn is_outside(flow: &Flow, around: &Surroundings<'_>) -> bool {
    is_external(&around.address(flow, flow.first_seen)) && is_from_outside(flow, around)
}

fn is_external(asked: &Address<'_>) -> bool {
    matches!(asked, Address::Vip(vip) if vip.via != Via::ClusterIp)
}

fn is_from_outside(flow: &Flow, Surroundings { cluster, node, .. }: &Surroundings<'_>) -> bool {
    let client = flow.orig.src.ip();
    node.is_own_address(client) != Some(true)
        && cluster.pod_by_ip(client, flow.first_seen).is_none()
        && cluster.node_by_ip(client, flow.first_seen).is_none()
}

/// N2.
/// Mechanism: a load balancer connects to the Service's port on each node at a fixed period, and sends nothing. On a node
/// without an endpoint under a Local policy its packets are dropped, which is how it learns to send elsewhere; on other
/// nodes it ends the connection at once, often with a RST.
/// For: a client outside the cluster, at least five connections at equal intervals, no data.
/// Against: a client that retries at a fixed interval looks the same where its packets are dropped (C21): only the load
/// balancer's configuration decides.
pub(super) fn judge(case: &Case<'_>) -> Option<Finding> {
    let flow = case.flow;
    let period =
        case.ctx.translations.visitors(flow, || is_outside(flow, &case.ctx.surroundings())).period(flow)?;
    if !is_outside(flow, &case.ctx.surroundings()) || carried_data(flow) || flow.lost > 0 {
        return None;
    }
    let every = length(period);
    let client = flow.orig.src.ip();
    if flow.was_answered() {
        // Whether data passed is known only of an end that was observed.
        if !flow.server.is_seen() || case.outcome.is_open() || case.endpoint.is_none() || !case.is_ready() {
            return None;
        }
        return Some(
            case.finding(
                Class::N2,
                format_args!("{client} checks {} every {every}, and sends nothing", case.name()),
            )
            .confidence(Confidence::Medium)
            .unobserved("whether it is a load balancer: its configuration shows the source and the period")
            .related(&[Class::N17]),
        );
    }
    let drop = case.rule_drop()?;
    let local = case.usable().and_then(|usable| usable.local);
    if !case.vip.is_local()
        || case.endpoint.is_some()
        || local != Some(0)
        || drop.occurrences.count > MAX_SYNS
    {
        return None;
    }
    let port = case.vip.service.health_check_node_port;
    let mut finding = case.finding(
        Class::N2,
        format_args!(
            "{client} checks {} every {every}: this node has no endpoint, so its packets are dropped and it sends \
             elsewhere",
            case.name()
        ),
    )
    .confidence(Confidence::Medium)
    .api(None, format_args!("{} in the cluster, none of them on this node", case.usable_count()))
    .unobserved(
        "whether it is a load balancer or a client that retries (C21): the load balancer's configuration shows the source \
         and the period",
    )
    .related(&[Class::C21]);
    if let Some(port) = port {
        finding =
            finding.api(None, format_args!("a load balancer can ask healthCheckNodePort {port} instead"));
    }
    Some(finding)
}
