//! The members of a Service port at a moment, and the history of one member.
//!
//! Owns the reading of `EndpointSlices`: ports by name, conditions, several slices for one Service. Must not judge a
//! flow.

use std::{cell::OnceCell, cmp::Reverse, collections::BTreeSet, net::SocketAddr, sync::Arc};

use smallvec::SmallVec;

use super::{History, Vip};
use crate::{
    cluster::{
        Via,
        model::{AddressType, Conditions, Endpoint, EndpointSlice, Key, Kind, PodRef, Service, ServicePort},
        timeline::{Span, Timeline},
    },
    time::Timestamp,
};

/// One endpoint of a Service port.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EndpointState<'a> {
    pub addr: SocketAddr,
    pub conditions: Conditions,
    pub node: Option<&'a str>,
    pub pod: Option<&'a PodRef>,
}

/// Whether an address and port was an endpoint of a Service port at a moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Membership<'a> {
    /// It has been in this condition since this time or longer.
    Member { state: EndpointState<'a>, since: Timestamp },
    /// It was an endpoint and left at `at`; `last` is its last state.
    Left { at: Timestamp, last: EndpointState<'a> },
    /// No slice of this Service listed it since `since`, when the known time begins. It may have left before that.
    /// `Timestamp::MIN` if the slices do not record their last change.
    NeverSeen { since: Timestamp },
    /// The moment is before the history of this Service's slices, and the earliest versions do not list it; or the
    /// slices are not known.
    Unknown,
}

/// What a [`Membership`] allows kube-proxy to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is a member that may serve.
    Serves,
    /// No slice is known to have listed it.
    NeverSeen,
    /// As [`Membership::unusable_since`].
    UnusableSince(Timestamp),
    Unknown,
}

impl<'a> Membership<'a> {
    pub(super) fn standing(&self) -> Standing {
        match self {
            Self::NeverSeen { .. } => Standing::NeverSeen,
            Self::Unknown => Standing::Unknown,
            Self::Member { .. } | Self::Left { .. } => {
                self.unusable_since().map_or(Standing::Serves, Standing::UnusableSince)
            }
        }
    }

    /// Its state, or its last state if it has left.
    pub const fn state(&self) -> Option<&EndpointState<'a>> {
        match self {
            Self::Member { state, .. } | Self::Left { last: state, .. } => Some(state),
            Self::NeverSeen { .. } | Self::Unknown => None,
        }
    }

    /// The state of a listed endpoint.
    pub const fn member(&self) -> Option<&EndpointState<'a>> {
        match self {
            Self::Member { state, .. } => Some(state),
            Self::Left { .. } | Self::NeverSeen { .. } | Self::Unknown => None,
        }
    }

    /// The time since which kube-proxy must not send to it: it left, or may not serve any more.
    pub const fn unusable_since(&self) -> Option<Timestamp> {
        match self {
            Self::Left { at, .. } => Some(*at),
            Self::Member { state, since } if !state.conditions.may_serve() => Some(*since),
            Self::Member { .. } | Self::NeverSeen { .. } | Self::Unknown => None,
        }
    }

    /// The time since which it ends: it left, or terminates. One that is only not ready may come back.
    pub const fn ending_since(&self) -> Option<Timestamp> {
        match self {
            Self::Left { at, .. } => Some(*at),
            Self::Member { state, since } if state.conditions.terminating => Some(*since),
            Self::Member { .. } | Self::NeverSeen { .. } | Self::Unknown => None,
        }
    }
}

/// The endpoints that kube-proxy should send to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usable {
    pub count: usize,
    /// Those on the node at which the traffic arrived; `None` if that node is unknown.
    pub local: Option<usize>,
    /// If there are endpoints: at least one has existed since this time or longer, and so has the Service with this address
    /// and port. Otherwise: the time of the last change of the slices.
    pub since: Timestamp,
    /// No endpoint is ready: these serve while they terminate (N8).
    pub terminating: bool,
}

/// The maximum number of endpoints whose age is determined; the oldest age counts.
const MAX_AGED: usize = 32;

/// A period in which one slice listed the endpoint in one state.
struct Stretch<'a> {
    from: Timestamp,
    known_from: Timestamp,
    to: Option<Timestamp>,
    endpoint: &'a Endpoint,
}

impl History {
    /// The state of `endpoint` in the VIP's Service port at `at`.
    pub fn membership(&self, vip: &Vip<'_>, endpoint: SocketAddr, at: Timestamp) -> Membership<'_> {
        match self.vip_at(vip, at) {
            Some(vip) if self.knows(Kind::EndpointSlice) => {
                self.membership_in(&vip.service.key, vip.port, endpoint, at)
            }
            _ => Membership::Unknown,
        }
    }

    /// What the [membership](Self::membership) of `endpoint` at `at` allows. Costs much less for a further flow.
    pub(crate) fn standing(&self, vip: &Vip<'_>, endpoint: SocketAddr, at: Timestamp) -> Standing {
        let find = || self.membership(vip, endpoint, at).standing();
        self.remembered(|known| &mut known.standings, vip, endpoint.into(), None, at, find)
    }

    /// Whether neither the VIP's Service nor any of its slices changed after `from`, up to `to`: a member at `from` is one at
    /// `to`, in the same condition. Costs much less than [`Self::membership`].
    pub(crate) fn is_constant(&self, vip: &Vip<'_>, from: Timestamp, to: Timestamp) -> bool {
        let Vip { service, port, .. } = *vip;
        let Some(line) = self.services.get(&service.key) else { return false };
        // Without this port, the VIP would have to be found by its address, in any Service.
        let has_port = || line.at(to).value().is_some_and(|service| service.ports.contains(port));
        line.is_constant(from, to)
            && has_port()
            && self.slice_lines(&service.key).all(|line| line.is_constant(from, to))
    }

    /// The state of `endpoint` in this Service port at `at`. An endpoint that moved to another slice of the same
    /// Service has not left.
    pub fn membership_in(
        &self,
        service: &Key,
        port: &ServicePort,
        endpoint: SocketAddr,
        at: Timestamp,
    ) -> Membership<'_> {
        let endpoint = SocketAddr::new(endpoint.ip().to_canonical(), endpoint.port());
        let mut stretches = SmallVec::<[Stretch<'_>; 4]>::new();
        let mut begins = Timestamp::MIN;
        let lines = self.slice_lines(service);
        for line in lines.clone() {
            begins = begins.max(line.unknown_until());
            for Span { from, known_from, to, value } in line.spans() {
                let slice = value.filter(|slice| slice.service.as_ref() == Some(service));
                if let Some(endpoint) = slice.and_then(|slice| find(slice, port, endpoint)) {
                    stretches.push(Stretch { from, known_from, to, endpoint });
                }
            }
        }
        stretches.sort_by_key(|stretch| stretch.from);
        let now = |s: &&Stretch<'_>| s.from <= at && s.to.is_none_or(|to| to > at);
        // An endpoint that is listed twice serves as long as one of the two slices states it.
        if let Some(current) = stretches.iter().filter(now).max_by_key(|s| rank(s.endpoint.conditions)) {
            // A state that is only assumed from a later version proves no membership, unless it is the only state.
            let proven = |s: &Stretch<'_>| if s.known_from <= at { s.known_from } else { s.from };
            let same =
                |s: &&Stretch<'_>| s.from <= at && s.endpoint.conditions == current.endpoint.conditions;
            let mut since = proven(current);
            for earlier in stretches.iter().rev().filter(same) {
                if earlier.to.is_none_or(|to| to >= since) {
                    since = since.min(proven(earlier));
                }
            }
            return Membership::Member { state: state(current.endpoint, endpoint), since };
        }
        let past = stretches.iter().filter_map(|s| Some((s.to.filter(|to| *to <= at)?, s.endpoint)));
        let left = past.max_by_key(|(to, _)| *to);
        match left.or_else(|| self.under_an_old_name(lines, service, port, endpoint, at)) {
            Some((at, last)) => Membership::Left { at, last: state(last, endpoint) },
            None if at < begins => Membership::Unknown,
            None => Membership::NeverSeen { since: begins },
        }
    }

    /// A renamed port changes first in the Service and a moment later in the slices. Until then no slice lists an
    /// endpoint under the new name. The endpoint was a member under the old name until the slice or the Service
    /// changed.
    fn under_an_old_name<'a>(
        &'a self,
        lines: impl Iterator<Item = &'a Timeline<EndpointSlice>>,
        service: &Key,
        port: &ServicePort,
        endpoint: SocketAddr,
        at: Timestamp,
    ) -> Option<(Timestamp, &'a Endpoint)> {
        let span = OnceCell::new();
        let span = || {
            let spans = || self.services.get(service).into_iter().flat_map(Timeline::spans);
            let known = |span: &Span<'_, _>| span.from <= at && span.value.is_some();
            *span.get_or_init(|| spans().filter(known).last().and_then(|span| Some((span.from, span.value?))))
        };
        lines
            .flat_map(Timeline::spans)
            .filter(|slice| slice.from <= at)
            .filter_map(|slice| {
                let listed = slice.value.filter(|value| value.service.as_ref() == Some(service))?;
                // The Service is looked up by its name, and of few endpoints only.
                if !listed.endpoints.iter().any(|known| known.addresses.contains(&endpoint.ip())) {
                    return None;
                }
                let (changed, current) = span()?;
                let old = listed.ports.iter().find(|old| {
                    old.port == endpoint.port()
                        && old.protocol == port.protocol
                        && !current.ports.iter().any(|known| known.name == old.name)
                })?;
                let renamed = ServicePort { name: Arc::clone(&old.name), ..port.clone() };
                let left = slice.to.filter(|to| *to <= at).unwrap_or(changed);
                find(listed, &renamed, endpoint).map(|last| (left, last))
            })
            .max_by_key(|(left, _)| *left)
    }

    /// The endpoints of this Service port at `at`, ready or not, each once, ordered by address. Only an endpoint's
    /// first address counts, as for kube-proxy.
    pub fn endpoints(&self, service: &Key, port: &ServicePort, at: Timestamp) -> Vec<EndpointState<'_>> {
        let mut found = Vec::new();
        for slice in self.slices_at(service, at) {
            let Some(number) = slice.port_for(port) else { continue };
            found.extend(slice.endpoints.iter().filter_map(|endpoint| {
                let addr = SocketAddr::new(*endpoint.addresses.first()?, number);
                Some(state(endpoint, addr))
            }));
        }
        // Of an endpoint that is listed twice, the better state counts; of equal ones the first.
        found.sort_by_key(|endpoint| (endpoint.addr, Reverse(rank(endpoint.conditions))));
        found.dedup_by_key(|endpoint| endpoint.addr);
        found
    }

    /// The endpoints that kube-proxy should choose from for a connection to the VIP that arrives on `node`; `None` if
    /// the endpoints are not known.
    pub fn usable(&self, vip: &Vip<'_>, node: Option<&str>, at: Timestamp) -> Option<Usable> {
        self.remembered(|known| &mut known.usable, vip, (), node, at, || self.find_usable(vip, node, at))
    }

    pub(super) fn find_usable(&self, vip: &Vip<'_>, node: Option<&str>, at: Timestamp) -> Option<Usable> {
        if !self.knows(Kind::EndpointSlice) {
            return None;
        }
        let Vip { service, port, .. } = self.vip_at(vip, at)?;
        let listed = self.endpoints(&service.key, port, at);
        let all = usable_of(&listed, vip.family(), None);
        let age = |endpoint: &EndpointState<'_>| self.member_since(&service.key, port, endpoint.addr, at);
        let count = all.clone().count();
        let since = if count == 0 {
            self.endpoints_changed(&service.key, at).unwrap_or(Timestamp::MIN)
        } else {
            let oldest = all.clone().take(MAX_AGED).map(age).min().unwrap_or(at);
            oldest.max(self.served_since(vip, at).unwrap_or(Timestamp::MIN))
        };
        // A name that no Node has (a host's name may differ from its Node's) does not identify local endpoints.
        let node = node.filter(|node| !self.knows(Kind::Node) || self.node(node, at).is_some());
        let local = node.map(|node| usable_of(&listed, vip.family(), Some(node)).count());
        let terminating = count > 0 && all.clone().all(|endpoint| !endpoint.conditions.ready);
        Some(Usable { count, local, since, terminating })
    }

    /// The endpoints that kube-proxy sends to: the ready ones, or if none is ready, the serving ones that terminate
    /// (N8). `family` is that of the destination address. With `local_to` only those on that node, as under the traffic
    /// policy `Local`. (kube-proxy: `pkg/proxy/topology.go`, `CategorizeEndpoints`; topology hints are not applied
    /// here.)
    pub fn usable_endpoints(
        &self,
        service: &Key,
        port: &ServicePort,
        family: AddressType,
        local_to: Option<&str>,
        at: Timestamp,
    ) -> Vec<EndpointState<'_>> {
        usable_of(&self.endpoints(service, port, at), family, local_to).copied().collect()
    }

    /// Since when an endpoint on `node` is ready at `at`; `None` if none is.
    pub(crate) fn local_ready_since(
        &self,
        vip: &Vip<'_>,
        node: Option<&str>,
        at: Timestamp,
    ) -> Option<Timestamp> {
        let (Vip { service, port, .. }, node) = self.vip_at(vip, at).zip(node)?;
        let usable = self.usable_endpoints(&service.key, port, vip.family(), Some(node), at);
        let ready = usable.iter().filter(|endpoint| endpoint.conditions.ready).take(MAX_AGED);
        ready.map(|endpoint| self.member_since(&service.key, port, endpoint.addr, at)).min()
    }

    /// Since when the endpoint, which is listed at `at`, has been in this condition.
    fn member_since(
        &self,
        service: &Key,
        port: &ServicePort,
        endpoint: SocketAddr,
        at: Timestamp,
    ) -> Timestamp {
        match self.membership_in(service, port, endpoint, at) {
            Membership::Member { since, .. } => since,
            _ => at,
        }
    }

    /// Since when the Service has the address and port of this VIP without interruption at `at`, as far back as is known.
    fn served_since(&self, vip: &Vip<'_>, at: Timestamp) -> Option<Timestamp> {
        let Vip { addr, via, service, port } = *vip;
        let serves = |service: &Service| match via {
            Via::NodePort => service.node_port(addr.port(), port.protocol).is_some(),
            _ => {
                service.via(addr.ip().to_canonical()).is_some()
                    && service.port(addr.port(), port.protocol).is_some()
            }
        };
        let spans = self.services.get(&service.key)?.spans().take_while(|span| span.from <= at);
        spans.fold(None, |since, span| {
            let is_served = span.value.is_some_and(|service| serves(service));
            is_served.then(|| since.unwrap_or(span.from))
        })
    }

    /// The time of the last change of this Service's slices, up to `at`.
    pub fn endpoints_changed(&self, service: &Key, at: Timestamp) -> Option<Timestamp> {
        self.slice_lines(service)
            .flat_map(|line| line.versions.iter().map(|version| version.from))
            .filter(|from| *from <= at)
            .max()
    }

    /// When this Service's slices changed, after one moment and up to another, in their order.
    pub(crate) fn endpoints_changes(&self, service: &Key, after: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let versions = self.slice_lines(service).flat_map(|line| &line.versions);
        let mut changes: Vec<_> =
            versions.map(|version| version.from).filter(|from| after < *from && *from <= to).collect();
        changes.sort_unstable();
        changes.dedup();
        changes
    }

    /// Every address and port that a slice of this Service port has listed up to `at`.
    pub fn past_endpoints(&self, service: &Key, port: &ServicePort, at: Timestamp) -> BTreeSet<SocketAddr> {
        let lines = self.slice_lines(service).filter(|line| line.versions.len() > 1);
        let mut found = BTreeSet::new();
        for version in lines.flat_map(|line| &line.versions).filter(|version| version.from <= at) {
            let Some(slice) = &version.value else { continue };
            let Some(number) = slice.port_for(port) else { continue };
            let first = slice.endpoints.iter().filter_map(|endpoint| endpoint.addresses.first());
            found.extend(first.map(|ip| SocketAddr::new(*ip, number)));
        }
        found
    }

    /// The time of the last change of this Service itself, up to `at`.
    pub fn service_changed(&self, service: &Key, at: Timestamp) -> Option<Timestamp> {
        let versions = self.services.get(service)?.versions.iter();
        versions.map(|version| version.from).filter(|from| *from <= at).max()
    }

    /// The histories of the slices that were the Service's.
    pub(super) fn slice_lines<'a>(
        &'a self,
        service: &Key,
    ) -> impl Iterator<Item = &'a Timeline<EndpointSlice>> + Clone + use<'a> {
        self.indexes.slices_of_service.lines(service, &self.slices)
    }

    /// The Service's slices in force at `at`.
    pub fn slices_at<'a>(
        &'a self,
        service: &Key,
        at: Timestamp,
    ) -> impl Iterator<Item = &'a Arc<EndpointSlice>> {
        let slices = self.slice_lines(service).filter_map(move |line| line.at(at).value());
        slices.filter(move |slice| slice.service.as_ref() == Some(service))
    }

    /// Whether any slice version up to `at` listed an endpoint of this Service, and until when.
    pub(super) fn last_endpoint(&self, service: &Key, at: Timestamp) -> Option<Timestamp> {
        let spans = self.slice_lines(service).flat_map(Timeline::spans);
        let listed = spans.filter_map(|Span { from, to, value, .. }| {
            let slice = value.filter(|slice| slice.service.as_ref() == Some(service))?;
            (from <= at && !slice.endpoints.is_empty()).then_some(to.map_or(at, |to| to.min(at)))
        });
        listed.max()
    }
}

/// The endpoint in this slice, if the slice serves this Service port at that address.
fn find<'a>(slice: &'a EndpointSlice, port: &ServicePort, wanted: SocketAddr) -> Option<&'a Endpoint> {
    if slice.port_for(port) != Some(wanted.port()) {
        return None;
    }
    let endpoints = slice.endpoints.iter().filter(|e| e.addresses.contains(&wanted.ip()));
    endpoints.max_by_key(|e| rank(e.conditions))
}

/// Those that kube-proxy sends to: see [`History::usable_endpoints`].
fn usable_of<'l, 'h>(
    listed: &'l [EndpointState<'h>],
    family: AddressType,
    local_to: Option<&'l str>,
) -> impl Iterator<Item = &'l EndpointState<'h>> + Clone {
    let considered = listed.iter().filter(move |endpoint| {
        AddressType::of(endpoint.addr.ip()) == family
            && local_to.is_none_or(|node| endpoint.node == Some(node))
    });
    let is_any_ready = considered.clone().any(|endpoint| endpoint.conditions.ready);
    considered.filter(move |EndpointState { conditions, .. }| {
        if is_any_ready { conditions.ready } else { conditions.serving && conditions.terminating }
    })
}

fn state(endpoint: &Endpoint, addr: SocketAddr) -> EndpointState<'_> {
    let Endpoint { conditions, node, pod, .. } = endpoint;
    EndpointState { addr, conditions: *conditions, node: node.as_deref(), pod: pod.as_ref() }
}

const fn rank(conditions: Conditions) -> (bool, bool, bool) {
    (conditions.ready, conditions.serving, !conditions.terminating)
}
