//! The flows of a soak, each with its truth: which Service, which client, and what happens to it.
//!
//! Owns the choice. `normal` and `faults` write the scripts.

use std::net::SocketAddr;

use viptrace::{cluster::Via, net::Protocol, node::ProxyMode};

use super::{
    cluster::{Phase, Soaked},
    services::{ADMITTED, Backend, CALM, CLIENT_PODS, Condition, NODE_IP, Service, client_ip},
    wire::{Client, Draft, Planned, Truth},
};
use crate::{flow_support::Script, recording_support::Random};

/// How many Services are tried for a flow.
const TRIES: usize = 20;

pub(super) struct Traffic<'a> {
    pub(super) soaked: &'a Soaked,
    pub(super) random: Random,
    pub(super) number: u64,
    /// Of a hundred flows, so many are broken where nothing is wrong with the Service.
    pub(super) broken: u64,
}

impl<'a> Traffic<'a> {
    pub(super) const fn new(soaked: &'a Soaked, random: Random, broken: u64) -> Self {
        Self { soaked, random, number: 0, broken }
    }

    /// The flows of one event at `ms`: usually one, and none at a moment at which no truth is certain.
    pub(super) fn next(&mut self, ms: u64) -> Vec<Planned> {
        let services = &self.soaked.services;
        let mut tries = (0..TRIES).map(|_| {
            let service = &services[self.below(services.len() as u64) as usize];
            self.of(service, ms)
        });
        tries.find(|planned| !planned.is_empty()).unwrap_or_default()
    }

    fn of(&mut self, service: &'a Service, ms: u64) -> Vec<Planned> {
        let phase = self.soaked.phase(ms);
        let (_, ends) = self.soaked.span(phase);
        let coming = self.soaked.phase(ms + CALM);
        match phase {
            // A flow is judged with the rules of the time after it.
            _ if phase != Phase::Normal && ms + CALM / 2 > ends && is_about_rules(service) => {
                return vec![];
            }
            Phase::Flushed if ms + CALM / 2 > ends => return vec![],
            Phase::Flushed => return self.flushed(service, ms).into_iter().collect(),
            Phase::Full if self.chance(40) => return self.table_full(service, ms).into_iter().collect(),
            Phase::Normal if coming != phase && coming != Phase::Full && is_about_rules(service) => {
                return vec![];
            }
            _ => {}
        }
        if service.is_changing(ms) {
            return vec![];
        }
        let special = self.of_condition(service, ms, phase);
        if !special.is_empty() {
            return special;
        }
        if self.chance(self.broken) { self.broken(service, ms) } else { self.normal(service, ms) }
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit.max(1))
    }

    pub(super) fn chance(&mut self, per_cent: u64) -> bool {
        self.random.below(100) < per_cent
    }

    /// A number from `low` to `high`.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.random.below(high - low)
    }

    pub(super) fn is_ipvs(&self) -> bool {
        self.soaked.mode == ProxyMode::Ipvs
    }

    /// A ready endpoint on this node.
    pub(super) fn ready_here(&mut self, service: &'a Service, ms: u64) -> Option<&'a Backend> {
        let backend = service.ready(&mut self.random, ms)?;
        backend.is_here().then_some(backend)
    }

    /// Any client that can reach the Service.
    pub(super) fn client(&mut self, service: &Service) -> Client {
        let outside = service.outer.is_some() && self.chance(50);
        if outside && !matches!(service.condition, Condition::Ranges | Condition::SomeLocal) {
            Client::Outside
        } else if self.chance(8) && service.vip.is_ipv4() && service.condition != Condition::Leftover {
            Client::Host
        } else {
            Client::Pod
        }
    }

    /// A client's own address, with a port that no other flow has.
    pub(super) fn address_of(&mut self, client: Client, v6: bool) -> SocketAddr {
        self.number += 1;
        let port = 2_000 + (self.number % 60_000) as u16;
        let ip = match client {
            Client::Pod => client_ip(self.random.below(CLIENT_PODS), v6),
            Client::Host => NODE_IP.parse().unwrap(),
            Client::Outside if v6 => "2001:db8::77".parse().unwrap(),
            Client::Outside => std::net::Ipv4Addr::new(203, 0, 113, 10 + self.random.below(200) as u8).into(),
        };
        SocketAddr::new(ip, port)
    }

    /// A flow to the Service before anything happened, and its beginning.
    pub(super) fn to(&mut self, service: &Service, client: Client, backend: Option<&Backend>) -> Draft {
        let outer = service.outer.filter(|_| client == Client::Outside || self.random.below(100) < 30);
        let outer = outer.filter(|_| service.condition != Condition::Ranges || client == Client::Outside);
        let asked = outer.map_or(service.vip, |(_, outer)| outer);
        let mut from = self.address_of(client, service.vip.is_ipv6());
        if service.condition == Condition::Ranges && client == Client::Outside && backend.is_some() {
            from.set_ip(ADMITTED.parse().unwrap());
        }
        let mut draft = self.at(service.protocol, client, from, asked, backend);
        let is_local = service.condition == Condition::SomeLocal;
        let masquerades = outer.is_some_and(|(via, _)| via != Via::ClusterIp) && !is_local;
        if backend.is_some() && (masquerades || (client == Client::Pod && self.chance(5))) {
            masquerade(&mut draft);
        }
        draft
    }

    pub(super) fn at(
        &mut self,
        protocol: Protocol,
        client: Client,
        from: SocketAddr,
        asked: SocketAddr,
        backend: Option<&Backend>,
    ) -> Draft {
        let endpoint = backend.map(|it| it.addr.to_string());
        let mut script = Script::new(&from.to_string(), &asked.to_string(), endpoint.as_deref());
        script.protocol = protocol;
        script.ct = 0xffff_8880_0000_0000 + self.number * 320;
        let here = backend.is_some_and(Backend::is_here);
        Draft { script, client, here, answered: None, by_rules: false, number: self.number }
    }

    pub(super) fn done(&mut self, draft: Draft, truth: Truth) -> Planned {
        draft.observed(self.soaked.mode, &mut self.random, truth)
    }
}

/// Whether the verdicts on its flows depend on the node's rules or on kube-proxy.
const fn is_about_rules(service: &Service) -> bool {
    !matches!(service.condition, Condition::Healthy | Condition::Rolling)
}

/// The source that the endpoint sees is this node's.
pub(super) fn masquerade(draft: &mut Draft) {
    let gateway = if draft.script.vip.is_ipv4() { "10.244.1.1" } else { "fd00:10:244:1::1" };
    draft.script.masquerade = Some(SocketAddr::new(gateway.parse().unwrap(), draft.script.client.port()));
}
