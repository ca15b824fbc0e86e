//! The Services of a soak: in every condition, with the states of their endpoints over time.
//!
//! Owns the plan and its times. Knows neither lists of an API server nor rules nor flows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use viptrace::{
    cluster::{
        Via,
        model::{Conditions, ServiceType, TrafficPolicy},
    },
    net::{Cidr, Protocol},
};

use crate::{
    cluster_support::{self, NOT_READY, READY, TERMINATING},
    flow_support::addr,
    recording_support::Random,
};

/// When the first flow may begin, in milliseconds of the test's day: long after the grace of the first lists.
pub(super) const BEGIN: u64 = 120_000;
/// The margin around the grace (5 s) in which nothing is generated that depends on it.
pub(super) const BEFORE_GRACE_ENDS: u64 = 4_400;
pub(super) const AFTER_GRACE: u64 = 5_600;
/// No flow that depends on an endpoint's state lasts longer, unless it is made to.
pub(super) const CALM: u64 = 20_000;

/// The node's own addresses; the second is in no Node object.
pub(super) const NODE_IP: &str = "192.168.1.2";
pub(super) const SECOND_IP: &str = "172.20.0.2";
/// The only source that the Service with source ranges admits.
pub(super) const ADMITTED: &str = "203.0.113.7";
const BACKENDS: u8 = 5;
/// A rolling Service replaces one Pod in this time.
const TURN: u64 = 30_000;

pub(super) const CLIENT_PODS: u64 = 40;

pub(super) fn client_ip(number: u64, v6: bool) -> IpAddr {
    backend_ip(4, number as usize, v6)
}

/// The behaviour of a former endpoint's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// No host has it.
    Gone,
    /// Its Pod runs on, outside the Service.
    Serves,
    /// Another Pod got it and refuses.
    Other,
}

/// The fault of a Service, from `from` to `to` unless the condition is of its specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Healthy,
    /// Its Pods are replaced one after another.
    Rolling,
    /// An endpoint left for good at `from`; kube-proxy's rules keep it.
    Stale(Fate),
    /// The same, with session affinity.
    Pinned,
    /// No endpoint is ready.
    Empty,
    /// Its workload is scaled to zero.
    Zero,
    /// The rules refuse although there are endpoints.
    Rejecting,
    /// The rules do not name it.
    Missing,
    /// All endpoints terminate and serve.
    Draining,
    /// Its policies are Local, and its endpoints on other nodes.
    NoneLocal,
    /// Its policies are Local, with endpoints everywhere.
    SomeLocal,
    /// Its load balancer admits a few sources.
    Ranges,
    /// Another proxy serves it.
    OtherProxy,
    /// It is deleted at `from`.
    Deleted,
    /// Its node port is served at one of the node's addresses.
    OneAddress,
    /// It never answers datagrams.
    OneWay,
    /// The node has its address, as `NodeLocal DNSCache` does.
    OnNode,
    /// Rules of another proxy mode keep the endpoint that left at `from`.
    Leftover,
}

/// An endpoint, and the conditions that the slices list, each with its beginning. `None`: not listed.
#[derive(Clone, Debug)]
pub(super) struct Backend {
    pub(super) addr: SocketAddr,
    /// The number of its node: the trace runs on 1.
    pub(super) node: u8,
    pub(super) pod: String,
    pub(super) states: Vec<(u64, Option<Conditions>)>,
}

impl Backend {
    pub(super) fn state(&self, ms: u64) -> Option<Conditions> {
        self.states.iter().rev().find(|(since, _)| *since <= ms)?.1
    }

    /// Whether it is in this state from `ms` on for as long as a flow lasts.
    pub(super) fn is_calm(&self, ms: u64, state: Option<Conditions>) -> bool {
        let changes = self.states.iter().any(|(since, _)| (ms..ms + CALM).contains(since));
        self.state(ms) == state && !changes
    }

    pub(super) fn is_ready(&self, ms: u64) -> bool {
        self.state(ms) == Some(READY)
    }

    /// The time since it has the state of `ms`.
    pub(super) fn since(&self, ms: u64) -> u64 {
        self.states.iter().rev().find(|(since, _)| *since <= ms).map_or(0, |(since, _)| *since)
    }

    /// When it becomes ready next.
    pub(super) fn next_ready(&self, ms: u64) -> Option<u64> {
        self.states
            .iter()
            .find(|(since, state)| *since > ms && *state == Some(READY))
            .map(|(since, _)| *since)
    }

    /// When its state changes next.
    pub(super) fn next_change(&self, ms: u64) -> Option<u64> {
        self.states.iter().find(|(since, _)| *since > ms).map(|(since, _)| *since)
    }

    pub(super) const fn is_here(&self) -> bool {
        self.node == 1
    }
}

#[derive(Clone, Debug)]
pub(super) struct Service {
    pub(super) condition: Condition,
    pub(super) protocol: Protocol,
    pub(super) vip: SocketAddr,
    /// Its other address, and the kind of it.
    pub(super) outer: Option<(Via, SocketAddr)>,
    pub(super) backends: Vec<Backend>,
    pub(super) from: u64,
    pub(super) to: u64,
    pub(super) object: viptrace::cluster::model::Service,
}

impl Service {
    /// The endpoint that leaves, or what else the condition is about.
    pub(super) fn victim(&self) -> &Backend {
        &self.backends[0]
    }

    /// Whether the condition holds at `ms`, and until a flow that begins then is over.
    pub(super) fn is_amiss(&self, ms: u64) -> bool {
        (self.from..self.to.saturating_sub(CALM)).contains(&ms)
    }

    /// Whether the rules may or may not have changed when a flow of `ms` meets them.
    pub(super) fn is_changing(&self, ms: u64) -> bool {
        let near = |change: u64| ms + CALM > change && ms < change + AFTER_GRACE;
        match self.condition {
            Condition::Empty => near(self.from) && ms < self.from || near(self.to) && !self.is_late(ms),
            Condition::Draining => near(self.from) || near(self.to),
            Condition::Zero => near(self.from) && ms < self.from,
            Condition::Deleted => near(self.from),
            _ => false,
        }
    }

    /// Whether the condition ended so recently that the rules may lag behind.
    pub(super) fn is_late(&self, ms: u64) -> bool {
        (self.to + 100..self.to + BEFORE_GRACE_ENDS).contains(&ms)
    }

    /// An endpoint that is ready at `ms` and stays it.
    pub(super) fn ready(&self, random: &mut Random, ms: u64) -> Option<&Backend> {
        let ready: Vec<&Backend> = self.backends.iter().filter(|it| it.is_calm(ms, Some(READY))).collect();
        let at = random.below(ready.len().max(1) as u64) as usize;
        ready.get(at).copied()
    }
}

/// Condition, protocol, kind of the other address, IPv6.
pub(super) type Plan = (Condition, Protocol, Option<Via>, bool);

pub(super) fn plan() -> Vec<Plan> {
    use Condition::{
        Deleted, Draining, Empty, Healthy, Leftover, Missing, NoneLocal, OnNode, OneAddress, OneWay,
        OtherProxy, Pinned, Ranges, Rejecting, Rolling, SomeLocal, Stale, Zero,
    };
    let (tcp, udp, sctp) = (Protocol::TCP, Protocol::UDP, Protocol::SCTP);
    let (np, lb, ext) = (Some(Via::NodePort), Some(Via::LoadBalancerIp), Some(Via::ExternalIp));
    vec![
        (Healthy, tcp, None, false),
        (Healthy, tcp, None, false),
        (Healthy, tcp, None, true),
        (Healthy, tcp, np, false),
        (Healthy, tcp, lb, false),
        (Healthy, tcp, ext, false),
        (Healthy, udp, None, false),
        (Healthy, udp, None, true),
        (Healthy, udp, np, false),
        (Healthy, sctp, None, false),
        (Rolling, tcp, None, false),
        (Rolling, tcp, np, false),
        (Rolling, tcp, None, true),
        (Rolling, udp, None, false),
        (SomeLocal, tcp, np, false),
        (OneWay, udp, None, false),
        (OnNode, tcp, None, false),
        (Stale(Fate::Gone), tcp, None, false),
        (Stale(Fate::Gone), tcp, lb, false),
        (Stale(Fate::Gone), tcp, None, true),
        (Stale(Fate::Gone), udp, None, false),
        (Stale(Fate::Serves), tcp, None, false),
        (Stale(Fate::Other), tcp, None, false),
        (Stale(Fate::Other), tcp, np, false),
        (Pinned, tcp, None, false),
        (Empty, tcp, None, false),
        (Empty, tcp, np, false),
        (Empty, udp, None, false),
        (Empty, tcp, None, true),
        (Zero, tcp, None, false),
        (Rejecting, tcp, None, false),
        (Rejecting, udp, None, false),
        (Missing, tcp, None, false),
        (Missing, tcp, None, true),
        (Missing, udp, None, false),
        (Draining, tcp, None, false),
        (NoneLocal, tcp, np, false),
        (NoneLocal, tcp, lb, false),
        (Ranges, tcp, lb, false),
        (OtherProxy, tcp, None, false),
        (Deleted, tcp, None, false),
        (OneAddress, tcp, np, false),
        (Leftover, tcp, None, false),
    ]
}

fn backend_ip(node: u8, number: usize, v6: bool) -> IpAddr {
    let number = 10 + number as u16;
    if v6 {
        Ipv6Addr::new(0xfd00, 0x10, 0x244, u16::from(node), 0, 0, 0, number).into()
    } else {
        Ipv4Addr::new(10, 244, node, number as u8).into()
    }
}

pub(super) fn make(
    number: usize,
    (condition, protocol, via, v6): Plan,
    random: &mut Random,
    length: u64,
) -> Service {
    let name = name(number);
    let ip: IpAddr = if v6 {
        Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 10 + number as u16).into()
    } else {
        Ipv4Addr::new(10, 96, 0, 10 + number as u8).into()
    };
    let mut object = cluster_support::service(&name, &ip.to_string());
    let vip = SocketAddr::new(ip, 80);
    let node_port = 30_000 + number as u16;
    let outer = via.map(|via| {
        let outer = match via {
            Via::LoadBalancerIp => {
                object.r#type = ServiceType::LoadBalancer;
                let ip = Ipv4Addr::new(198, 51, 100, number as u8).into();
                object.load_balancer_ips = vec![ip];
                SocketAddr::new(ip, 80)
            }
            Via::ExternalIp => {
                let ip = Ipv4Addr::new(198, 51, 101, number as u8).into();
                object.external_ips = vec![ip];
                SocketAddr::new(ip, 80)
            }
            _ => {
                object.r#type = ServiceType::NodePort;
                for port in object.ports.iter_mut().filter(|port| port.protocol == protocol) {
                    port.node_port = Some(node_port);
                }
                addr(&format!("{NODE_IP}:{node_port}"))
            }
        };
        (via, outer)
    });
    match condition {
        Condition::Pinned => object.affinity = Some(std::time::Duration::from_hours(3)),
        Condition::OtherProxy => object.proxy_name = Some("mesh".into()),
        Condition::Ranges => object.source_ranges = vec![Cidr::parse(&format!("{ADMITTED}/32")).unwrap()],
        Condition::NoneLocal | Condition::SomeLocal => {
            object.external_traffic_policy = TrafficPolicy::Local;
            if condition == Condition::NoneLocal {
                object.internal_traffic_policy = TrafficPolicy::Local;
            }
        }
        _ => {}
    }
    let part = |low: u64, high: u64| BEGIN + length * (low + random.below(high - low)) / 100;
    let mut part = part;
    let (from, to) = (part(20, 40), part(62, 82));
    let backends = (0..BACKENDS)
        .map(|index| {
            let here = if condition == Condition::NoneLocal { 2 } else { 1 };
            let node = if index < 3 { here } else { 2 + index % 2 };
            Backend {
                addr: SocketAddr::new(backend_ip(node, number * 5 + usize::from(index), v6), 8080),
                node,
                pod: format!("{name}-{index}"),
                states: states(condition, index, from, to, length),
            }
        })
        .collect();
    Service { condition, protocol, vip, outer, backends, from, to, object }
}

/// A name that no other resembles: labels that differ by a slip of the pen are a cause of their own.
fn name(number: usize) -> String {
    let mut random = Random(number as u64);
    (0..8).map(|_| char::from(b'a' + random.below(26) as u8)).collect()
}

/// The conditions of an endpoint over time.
fn states(
    condition: Condition,
    index: u8,
    from: u64,
    to: u64,
    length: u64,
) -> Vec<(u64, Option<Conditions>)> {
    let ready = Some(READY);
    match condition {
        Condition::Stale(_) | Condition::Pinned | Condition::Leftover if index == 0 => {
            vec![(0, ready), (from, None)]
        }
        Condition::Empty => vec![(0, ready), (from, Some(NOT_READY)), (to, ready)],
        Condition::Zero => vec![(0, ready), (from, None)],
        Condition::Draining => vec![(0, ready), (from, Some(TERMINATING)), (to, ready)],
        Condition::Rolling => {
            // Each Pod is replaced once: 3 and 4 take over from 1 and 2.
            let turn = BEGIN + length / 10 + TURN * u64::from(index % 2);
            match index {
                0 => vec![(0, ready)],
                1 | 2 => vec![(0, ready), (turn + 2_000, Some(TERMINATING)), (turn + 9_000, None)],
                _ => vec![(0, None), (turn, ready)],
            }
        }
        _ => vec![(0, ready)],
    }
}
