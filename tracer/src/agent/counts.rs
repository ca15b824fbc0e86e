//! Counts with the names of Services: connections started, faults, unexplained flows, and what was not judged.
//!
//! Owns their bound and their end. At most a stated number of series have a Service's name; increments beyond it are
//! added up under [`OTHER`], so that sums stay exact. Connections leave a part of them to failures. A deleted Service,
//! port or endpoint keeps its series for a stated time.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use crate::{
    class::{Class, Domain},
    cluster::{History, Key, Kind},
    session::Pair,
    time::Timestamp,
    verdict::{ServiceRef, Text, Verdict},
};

/// The name of the Service under which increments beyond the bound are counted. Kubernetes allows no such name.
pub(crate) const OTHER: &str = "_other";

/// Of the series, one in so many is out of the reach of connections: a node with many endpoints still names the Service of
/// its next fault.
const RESERVED: usize = 4;

/// Connections are counted by these. The session or the kernel supplies them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Started {
    pub(crate) service: ServiceRef,
    /// `TCP`, `UDP` or `SCTP`.
    pub(crate) protocol: Text,
    /// The endpoint that NAT chose; `None` if it chose none, or if endpoints are not counted apart.
    pub(crate) endpoint: Option<SocketAddr>,
}

/// Faults are counted by these. The Service is `None` for a flow to no Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Fault {
    pub(crate) service: Option<ServiceRef>,
    pub(crate) class: Class,
    pub(crate) domain: Domain,
}

/// The count of one series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) count: u64,
    /// Unix time of the last removal of series before this one began: it counts from then, since it may have been one of
    /// them. `None` if none was removed before.
    pub(crate) since: Option<Timestamp>,
}

/// The counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts {
    max: usize,
    endpoints: bool,
    /// How long the series of a deleted Service or endpoint stay: scrapes and alerts see the last increments.
    keep: Duration,
    connections: BTreeMap<Started, Total>,
    faults: BTreeMap<Fault, Total>,
    unexplained: BTreeMap<Option<ServiceRef>, Total>,
    /// Events that the kernel suppressed, by Service; the port is empty.
    suppressed: BTreeMap<ServiceRef, Total>,
    /// Flows without a verdict, because the table was full.
    evicted: BTreeMap<ServiceRef, Total>,
    /// Unix time of the last removal of series.
    removed: Option<Timestamp>,
    /// Increments that went to [`OTHER`].
    limited: u64,
    /// Since when a Service or its port, or one of their endpoints, is gone and was not counted again.
    gone: BTreeMap<(ServiceRef, Option<SocketAddr>), Timestamp>,
}

impl Counts {
    /// With at most `max` series that name a Service. Those of a deleted one stay for `keep`.
    pub(crate) fn new(max: usize, endpoints: bool, keep: Duration) -> Self {
        Self { max, endpoints, keep, ..Self::default() }
    }

    /// Takes reloaded bounds. Series that exist stay.
    pub(crate) fn set(&mut self, max: usize, endpoints: bool, keep: Duration) {
        (self.max, self.endpoints, self.keep) = (max, endpoints, keep);
    }

    /// Counts the connections of flows with this verdict, which is their first.
    pub(crate) fn started(&mut self, verdict: &Verdict, count: u64) {
        let Some(service) = verdict.service.clone() else { return };
        let (protocol, endpoint) = (verdict.flow.protocol.clone(), verdict.flow.endpoint);
        self.add(Started { service, protocol, endpoint }, count);
    }

    /// Counts connections that the kernel counted.
    pub(crate) fn counted(&mut self, Pair { service, protocol, endpoint }: Pair, count: u64) {
        self.add(Started { service, protocol: protocol.to_string().into(), endpoint }, count);
    }

    /// Counts connections that have no counter of their own.
    pub(crate) fn uncounted(&mut self, count: u64) {
        self.limited = self.limited.saturating_add(count);
        let key = Started { service: other(), protocol: "".into(), endpoint: None };
        add(&mut self.connections, key, count, self.removed);
    }

    fn add(&mut self, mut key: Started, count: u64) {
        key.endpoint = key.endpoint.filter(|_| self.endpoints);
        let has_room = !self.is_full() && self.connections.len() < self.max - self.max / RESERVED;
        if !self.connections.contains_key(&key) && !has_room {
            self.uncounted(count);
            return;
        }
        self.lives(&key.service, None);
        if key.endpoint.is_some() {
            // Rules that are stale still lead there.
            self.lives(&key.service, key.endpoint);
        }
        add(&mut self.connections, key, count, self.removed);
    }

    /// Counts events of this Service that the kernel suppressed.
    pub(crate) fn suppressed(&mut self, service: &Key, count: u64) {
        let (namespace, name) = (Arc::clone(&service.namespace), Arc::clone(&service.name));
        let service = ServiceRef { namespace, name, port: "".into() };
        let service = self.named(service, count, |counts, key| counts.suppressed.contains_key(key));
        add(&mut self.suppressed, service, count, self.removed);
    }

    /// Counts flows of this Service port that have no verdict.
    pub(crate) fn evicted(&mut self, service: &ServiceRef, count: u64) {
        let service = self.named(service.clone(), count, |counts, key| counts.evicted.contains_key(key));
        add(&mut self.evicted, service, count, self.removed);
    }

    /// The Service under which these are counted: [`OTHER`] if it `is_known` not yet, and there is no room.
    fn named(
        &mut self,
        service: ServiceRef,
        count: u64,
        is_known: impl Fn(&Self, &ServiceRef) -> bool,
    ) -> ServiceRef {
        if self.is_full() && !is_known(self, &service) {
            self.limited = self.limited.saturating_add(count);
            return other();
        }
        self.lives(&service, None);
        service
    }

    /// The Service port, or its endpoint, was counted: if it is gone, its series stay for a further time.
    fn lives(&mut self, service: &ServiceRef, endpoint: Option<SocketAddr>) {
        if !self.gone.is_empty() {
            self.gone.remove(&(service.clone(), endpoint));
        }
    }

    /// Counts a failed flow by its cause. Others are not counted here.
    pub(crate) fn failed(&mut self, verdict: &Verdict) {
        let service = verdict.service.clone();
        if verdict.is_unexplained() {
            let is_known =
                |counts: &Self, of: &ServiceRef| counts.unexplained.contains_key(&Some(of.clone()));
            let service = service.map(|service| self.named(service, 1, is_known));
            add(&mut self.unexplained, service, 1, self.removed);
        } else if verdict.is_fault() {
            let key = |service| Fault { service, class: verdict.class, domain: verdict.domain };
            let is_known =
                |counts: &Self, of: &ServiceRef| counts.faults.contains_key(&key(Some(of.clone())));
            let service = service.map(|service| self.named(service, 1, is_known));
            add(&mut self.faults, key(service), 1, self.removed);
        }
    }

    fn is_full(&self) -> bool {
        self.len() >= self.max
    }

    /// The number of series.
    pub(crate) fn len(&self) -> usize {
        self.connections.len()
            + self.faults.len()
            + self.unexplained.len()
            + self.suppressed.len()
            + self.evicted.len()
    }

    pub(crate) fn limited(&self) -> u64 {
        self.limited
    }

    pub(crate) fn connections(&self) -> impl Iterator<Item = (&Started, Total)> {
        self.connections.iter().map(|(key, total)| (key, *total))
    }

    pub(crate) fn faults(&self) -> impl Iterator<Item = (&Fault, Total)> {
        self.faults.iter().map(|(key, total)| (key, *total))
    }

    pub(crate) fn unexplained(&self) -> impl Iterator<Item = (Option<&ServiceRef>, Total)> {
        self.unexplained.iter().map(|(key, total)| (key.as_ref(), *total))
    }

    pub(crate) fn suppressed_by_service(&self) -> impl Iterator<Item = (&ServiceRef, u64)> {
        self.suppressed.iter().map(|(key, total)| (key, total.count))
    }

    pub(crate) fn evicted_by_service(&self) -> impl Iterator<Item = (&ServiceRef, u64)> {
        self.evicted.iter().map(|(key, total)| (key, total.count))
    }

    /// Removes the series of Services, ports and endpoints that have been found gone for longer than they are kept.
    /// Nothing is removed while the objects are not known. `unix` is the wall clock.
    pub(crate) fn remove_gone(&mut self, history: &History, now: Timestamp, unix: Timestamp) {
        if !history.knows(Kind::Service) || !history.knows(Kind::EndpointSlice) {
            return;
        }
        let mut services: BTreeMap<&ServiceRef, BTreeSet<SocketAddr>> = BTreeMap::new();
        for key in self.connections.keys() {
            services.entry(&key.service).or_default().extend(key.endpoint);
        }
        let of_faults = self.faults.keys().filter_map(|key| key.service.as_ref());
        let others = of_faults.chain(self.unexplained.keys().flatten());
        for service in others.chain(self.suppressed.keys()).chain(self.evicted.keys()) {
            services.entry(service).or_default();
        }
        let mut gone = BTreeMap::new();
        let mut note = |key: (ServiceRef, Option<SocketAddr>)| {
            let since = self.gone.get(&key).copied().unwrap_or(now);
            gone.insert(key, since);
        };
        for (service, endpoints) in services {
            if &*service.name == OTHER {
                continue;
            }
            let key = Key::new(&service.namespace, &service.name);
            let Some(object) = history.service(&key, now) else {
                note((service.clone(), None));
                continue;
            };
            let ports: Vec<_> = object.ports.iter().filter(|port| port.label() == service.port).collect();
            if ports.is_empty() && !service.port.is_empty() {
                note((service.clone(), None));
                continue;
            }
            let listed: BTreeSet<SocketAddr> = ports
                .into_iter()
                .flat_map(|port| history.endpoints(&key, port, now))
                .map(|state| state.addr)
                .collect();
            for endpoint in endpoints.difference(&listed) {
                note((service.clone(), Some(*endpoint)));
            }
        }
        let keep = self.keep;
        let is_over = |since: &Timestamp| now.since(*since) > keep;
        let stays = |service: &ServiceRef, endpoint: Option<SocketAddr>| {
            let of = |endpoint| gone.get(&(service.clone(), endpoint)).is_some_and(is_over);
            !of(None) && (endpoint.is_none() || !of(endpoint))
        };
        let before = self.len();
        self.connections.retain(|key, _| stays(&key.service, key.endpoint));
        self.faults.retain(|key, _| key.service.as_ref().is_none_or(|service| stays(service, None)));
        self.unexplained.retain(|key, _| key.as_ref().is_none_or(|service| stays(service, None)));
        self.suppressed.retain(|service, _| stays(service, None));
        self.evicted.retain(|service, _| stays(service, None));
        if self.len() < before {
            self.removed = Some(unix);
        }
        gone.retain(|_, since| !is_over(since));
        self.gone = gone;
    }
}

fn other() -> ServiceRef {
    ServiceRef { namespace: "".into(), name: OTHER.into(), port: "".into() }
}

/// Adds to a series, or begins it after the last removal.
fn add<K: Ord>(map: &mut BTreeMap<K, Total>, key: K, count: u64, removed: Option<Timestamp>) {
    let total = map.entry(key).or_insert(Total { count: 0, since: removed });
    total.count = total.count.saturating_add(count);
}
