//! The cluster of a soak: the API server's lists and their changes, and the rules of the node.
//!
//! Owns the objects, their changes and the node's texts. Knows nothing of flows.

use std::sync::Arc;

use viptrace::{
    cluster::{
        Cluster, Event, Key, Kind, Origin, Status, Update,
        model::{Change, Object, Pod, Trimmed},
    },
    net::Family,
    node::{ProxyMode, RuleEffect, Snapshot},
};

use super::services::{
    BEGIN, Backend, CLIENT_PODS, Condition, Fate, NODE_IP, SECOND_IP, Service, client_ip, make, plan,
};
use crate::{
    cluster_support::{NODES, endpoint, node, pod, put, slice},
    flow_support::at,
    node_support::{Node, Rules, list},
    recording_support::Random,
};

/// The fault of the whole node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Normal,
    /// Conntrack's table is full.
    Full,
    /// Another program removed kube-proxy's rules.
    Flushed,
    /// kube-proxy does not run; its rules stand.
    Down,
}

#[derive(Clone, Debug)]
pub(crate) struct Soaked {
    pub(super) mode: ProxyMode,
    pub(super) services: Vec<Service>,
    pub(crate) end: u64,
    /// In the order of their times.
    pub(super) changes: Vec<(u64, Change)>,
    nodes: [Arc<Snapshot>; 4],
    objects: Vec<Object>,
}

impl Soaked {
    pub(super) fn new(mode: ProxyMode, random: &mut Random, length: u64) -> Self {
        let end = BEGIN + length;
        let services: Vec<Service> =
            plan().into_iter().enumerate().map(|(number, plan)| make(number, plan, random, length)).collect();
        let mut soaked =
            Self { mode, services, end, changes: vec![], nodes: Default::default(), objects: vec![] };
        soaked.list_objects();
        let phases = [Phase::Normal, Phase::Full, Phase::Flushed, Phase::Down];
        soaked.nodes = phases.map(|phase| Arc::new(soaked.read(phase)));
        soaked
    }

    /// The beginning and end of a phase.
    pub(super) fn span(&self, phase: Phase) -> (u64, u64) {
        let part = |per_cent: u64| BEGIN + (self.end - BEGIN) * per_cent / 100;
        match phase {
            Phase::Normal => (0, self.end),
            Phase::Full => (part(15), part(15) + 8_000),
            Phase::Flushed => (part(50), part(50) + 20_000),
            Phase::Down => (part(88), part(88) + 25_000),
        }
    }

    pub(super) fn phase(&self, ms: u64) -> Phase {
        let all = [Phase::Full, Phase::Flushed, Phase::Down];
        let is_now = |phase: &Phase| {
            let (from, to) = self.span(*phase);
            (from..to).contains(&ms)
        };
        all.into_iter().find(is_now).unwrap_or(Phase::Normal)
    }

    /// The node as it is read at `ms`.
    pub(crate) fn snapshot(&self, ms: u64) -> Arc<Snapshot> {
        let mut read = Snapshot::clone(&self.nodes[self.phase(ms) as usize]);
        read.rules_time = Some(at(ms));
        Arc::new(read)
    }

    /// The lists of the API server at the start of the test's day.
    pub(crate) fn cluster(&self) -> Cluster {
        let mut cluster = Cluster {
            history: viptrace::cluster::History::new(viptrace::cluster::LOOK_BACK),
            status: Status::new(Origin::ApiServer("the soak".into())),
        };
        let created = Some(at(0).saturating_sub(std::time::Duration::from_hours(24)));
        for object in &self.objects {
            let trimmed = Trimmed { object: object.clone(), created, changed: created, version: None };
            let kind = object.kind();
            cluster.absorb(Update { kind, received: at(0), event: Event::Listed(trimmed) });
        }
        for kind in Kind::ALL {
            cluster.absorb(Update { kind, received: at(0), event: Event::Synced });
        }
        cluster
    }

    fn list_objects(&mut self) {
        let mut objects: Vec<Object> = NODES.iter().map(|(name, ip)| node(name, ip)).collect();
        objects.push(node("worker-3", "192.168.1.4"));
        for number in 0..CLIENT_PODS {
            let ip = client_ip(number, false);
            let mut client: Pod = pod(&format!("client{number}-0"), ip);
            client.ips = vec![ip, client_ip(number, true)].into();
            objects.push(Object::Pod(client.into()));
        }
        let mut changes = Vec::new();
        for service in &self.services {
            objects.push(Object::Service(service.object.clone().into()));
            if service.condition == Condition::Deleted {
                changes.push((service.from, Change::Delete(Kind::Service, service.object.key.clone())));
            }
            let mut times: Vec<u64> =
                service.backends.iter().flat_map(|it| it.states.iter().map(|(ms, _)| *ms)).collect();
            times.sort_unstable();
            times.dedup();
            for ms in times {
                let slice = slice_at(service, ms);
                if ms == 0 { objects.push(slice) } else { changes.push((ms, put(slice))) }
            }
            for backend in &service.backends {
                let mut object = pod(&backend.pod, backend.addr.ip());
                object.node = Some(format!("worker-{}", backend.node).into());
                let (first, state) = backend.states[0];
                if first == 0 && state.is_some() {
                    objects.push(Object::Pod(object.into()));
                } else if let Some(ready) = backend.next_ready(0) {
                    changes.push((ready.saturating_sub(3_000), put(Object::Pod(object.into()))));
                }
                let gone = backend.states.iter().filter(|(ms, state)| *ms > 0 && state.is_none());
                if let Some((ms, _)) = gone.max_by_key(|(ms, _)| *ms) {
                    pod_ends(service.condition, backend, *ms, &mut changes);
                }
            }
        }
        changes.sort_by_key(|(ms, _)| *ms);
        (self.objects, self.changes) = (objects, changes);
    }

    fn read(&self, phase: Phase) -> Snapshot {
        let mut node = Node::new();
        node.mode = Some(self.mode);
        node.running = Some(phase != Phase::Down);
        node.read_ms = Some(self.span(phase).0.max(BEGIN));
        node.own = [NODE_IP, SECOND_IP, "10.244.1.1", "fd00:10:244:1::1", "127.0.0.1"]
            .map(|ip| ip.parse().unwrap())
            .to_vec();
        let on_node = |it: &&Service| it.condition == Condition::OnNode || self.mode == ProxyMode::Ipvs;
        node.own.extend(self.services.iter().filter(on_node).map(|it| it.vip.ip()));
        if phase == Phase::Full {
            node.conntrack = (131_072, 131_072);
        }
        node.rules = if phase == Phase::Flushed { Rules::Nothing } else { Rules::Lists(self.lists()) };
        node.snapshot(&self.services[0].object)
    }

    fn lists(&self) -> Vec<(viptrace::node::capture::Kind, String)> {
        let mut entries = Vec::new();
        for service in &self.services {
            let effect = match service.condition {
                Condition::Missing | Condition::OtherProxy => RuleEffect::Missing,
                Condition::Empty | Condition::Zero | Condition::Rejecting => RuleEffect::Refuses,
                Condition::NoneLocal if self.mode != ProxyMode::Ipvs => RuleEffect::Drops,
                _ => RuleEffect::Forwards,
            };
            let keeps = matches!(service.condition, Condition::Stale(_));
            let to = if keeps { service.victim() } else { &service.backends[1] };
            let outer = service.outer.map(|(_, outer)| outer);
            for vip in [Some(service.vip), outer].into_iter().flatten() {
                entries.push((vip, service.protocol, to.addr, effect));
            }
        }
        let mut lists = Vec::new();
        for family in Family::ALL {
            let of: Vec<_> =
                entries.iter().filter(|(vip, ..)| Family::of(vip.ip()) == family).copied().collect();
            if self.mode == ProxyMode::Iptables || family == Family::Ipv4 {
                let of = if self.mode == ProxyMode::Ipvs { &entries } else { &of };
                lists.extend(list(Some(self.mode), family, of));
            } else if self.mode == ProxyMode::Nftables {
                // One text has both families' tables.
                let more = list(Some(self.mode), family, &of);
                for ((_, text), (_, more)) in lists.iter_mut().zip(more) {
                    text.push_str(&more);
                }
            }
        }
        let left = self.services.iter().filter(|it| it.condition == Condition::Leftover);
        let left: Vec<_> =
            left.map(|it| (it.vip, it.protocol, it.victim().addr, RuleEffect::Forwards)).collect();
        let other = if self.mode == ProxyMode::Iptables { ProxyMode::Nftables } else { ProxyMode::Iptables };
        lists.extend(list(Some(other), Family::Ipv4, &left));
        lists
    }
}

/// The Pod of an endpoint that left at `ms`.
fn pod_ends(condition: Condition, backend: &Backend, ms: u64, changes: &mut Vec<(u64, Change)>) {
    if condition == Condition::Stale(Fate::Serves) {
        return;
    }
    changes.push((ms, Change::Delete(Kind::Pod, Key::new("shop", &backend.pod))));
    if condition == Condition::Stale(Fate::Other) {
        let name = format!("newcomer{}-0", backend.pod);
        let newcomer = Pod { key: Key::new("other", &name), ..pod(&name, backend.addr.ip()) };
        changes.push((ms + 1_000, put(Object::Pod(newcomer.into()))));
    }
}

fn slice_at(service: &Service, ms: u64) -> Object {
    let listed = service.backends.iter().filter_map(|backend| {
        let mut listed = endpoint(backend.addr.ip(), &backend.pod, backend.state(ms)?);
        listed.node = Some(format!("worker-{}", backend.node).into());
        Some(listed)
    });
    Object::EndpointSlice(slice(&service.object, service.backends[0].addr, listed.collect()).into())
}
