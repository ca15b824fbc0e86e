//! The state of the cluster at any moment of the look-back: the versions of all Services, `EndpointSlices`, Pods and
//! Nodes, indexed by address.
//!
//! Owns the versions and simple queries. [`objects`] stores the versions, [`indexes`] finds them, [`address`] resolves an
//! address, [`endpoints`] the members of a Service, and [`reason`] the reason for missing ones. Pure: no I/O and no clock; the
//! caller passes every time. No object makes this code panic.

use std::{net::IpAddr, sync::Arc, time::Duration};

use crate::{
    cluster::{
        model::{Change, EndpointSlice, Key, Kind, Node, Object, Pod, Probe, Service, Trimmed},
        shared::Shared,
        timeline::{At, MAX_VERSIONS, Timeline, horizon},
    },
    text,
    time::Timestamp,
};

mod address;
mod changes;
mod endpoints;
mod hints;
mod indexes;
mod memo;
mod objects;
mod reason;
mod saved;
#[cfg(test)]
mod tests;

use changes::Changes;
use indexes::Indexes;
use memo::Memo;
use objects::{Objects, Slot};

pub use address::{Address, Vip};
pub(crate) use changes::Settled;
pub(crate) use endpoints::{EndpointState, Standing};
pub use endpoints::{Membership, Usable};
pub(crate) use hints::{Hints, meant_for};
pub(crate) use reason::NoEndpointsReason;
#[cfg(test)]
pub(crate) use saved::Line;
pub(crate) use saved::{SavedFacts, SavedObject};

/// The maximum number of objects of one kind; further ones are refused and counted. Well above the largest supported
/// cluster (150,000 Pods).
const MAX_OBJECTS: usize = 500_000;

/// The size of the history, and its losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub objects: usize,
    pub versions: usize,
    /// Versions removed within the look-back, because their object changed too often.
    pub forgotten: u64,
    /// Objects refused because there were too many of their kind.
    pub refused: u64,
}

#[derive(Debug, Default)]
pub struct History {
    look_back: Duration,
    services: Objects<Service>,
    slices: Objects<EndpointSlice>,
    pods: Objects<Pod>,
    nodes: Objects<Node>,
    indexes: Indexes,
    /// By [`Kind::index`]: whether the kind's objects have been listed.
    known: [bool; Kind::ALL.len()],
    forgotten: u64,
    refused: u64,
    changes: Changes,
    memo: Memo,
    /// While objects are restored.
    shared: Shared,
}

impl History {
    /// Keeps versions that were in force within `look_back` before the latest [`History::prune`].
    pub fn new(look_back: Duration) -> Self {
        Self { look_back, ..Self::default() }
    }

    /// States that all objects of this kind have been added: only then does a missing object certainly not exist.
    pub fn mark_known(&mut self, kind: Kind) {
        match kind {
            Kind::Service => self.services.compact(),
            Kind::EndpointSlice => self.slices.compact(),
            Kind::Pod => self.pods.compact(),
            Kind::Node => self.nodes.compact(),
        }
        if let Some(known) = self.known.get_mut(kind.index()) {
            *known = true;
        }
        self.changes.addresses(Timestamp::MIN);
    }

    pub fn knows(&self, kind: Kind) -> bool {
        self.known.get(kind.index()).copied().unwrap_or(false)
    }

    /// A change that came into force at `at`. An object that a complete list lacked was created then.
    pub fn apply(&mut self, at: Timestamp, change: Change) {
        match change {
            Change::Put(trimmed) => {
                let told = trimmed.created.filter(|_| !self.knows(trimmed.object.kind()));
                self.put(at, Trimmed { created: told.or(Some(at)), ..trimmed });
            }
            Change::Delete(kind, key) => {
                match kind {
                    Kind::Service | Kind::Node => self.changes.addresses(at),
                    Kind::Pod => self.changes.pods(at),
                    Kind::EndpointSlice => self.slice_changes(&key, at),
                }
                let forgotten = match kind {
                    Kind::Service => self.services.get_mut(&key).map(|line| line.push(at, None).1),
                    Kind::EndpointSlice => self.slices.get_mut(&key).map(|line| line.push(at, None).1),
                    Kind::Pod => self.pods.get_mut(&key).map(|line| line.push(at, None).1),
                    Kind::Node => self.nodes.get_mut(&key).map(|line| line.push(at, None).1),
                };
                self.forgotten += forgotten.unwrap_or(0) as u64;
            }
        }
    }

    /// An object in a list made at `listed`. The version is in force since the object's last change, if the object
    /// records it, otherwise from the beginning. An API server's clock ahead of ours does not put it into the future.
    pub fn apply_listed(&mut self, listed: Timestamp, trimmed: Trimmed) {
        let from = trimmed.changed.unwrap_or(Timestamp::MIN).min(listed);
        self.put(from, trimmed);
    }

    fn put(&mut self, from: Timestamp, trimmed: Trimmed) {
        let created = trimmed.created;
        let latest = created.map_or(from, |created| created.max(from));
        let stored = match trimmed.object {
            Object::Service(service) => {
                let stored = store(&mut self.services, &service.key, created, from, &service);
                if let Some(slot) = stored.changed() {
                    self.changes.addresses(latest);
                    self.indexes.add_service(slot, &service, &self.services);
                }
                stored
            }
            Object::EndpointSlice(slice) => {
                let before = self.slices.get(&slice.key).and_then(Timeline::newest).cloned();
                let stored = store(&mut self.slices, &slice.key, created, from, &slice);
                if let Some(slot) = stored.changed() {
                    // A slice can move from one Service to another.
                    self.changes.slices(before.and_then(|before| before.service.clone()).as_ref(), latest);
                    self.changes.slices(slice.service.as_ref(), latest);
                    self.indexes.add_slice(slot, &slice, &self.slices);
                }
                stored
            }
            Object::Pod(pod) => {
                let stored = store(&mut self.pods, &pod.key, created, from, &pod);
                if let Some(slot) = stored.changed() {
                    self.changes.pods(latest);
                    self.indexes.add_pod(slot, &pod, &self.pods);
                }
                stored
            }
            Object::Node(node) => {
                let stored = store(&mut self.nodes, &node.key, created, from, &node);
                if let Some(slot) = stored.changed() {
                    self.changes.addresses(latest);
                    self.indexes.add_node(slot, &node, &self.nodes);
                }
                stored
            }
        };
        match stored {
            Stored::New { forgotten, .. } => self.forgotten += forgotten as u64,
            Stored::Same => {}
            Stored::Refused => self.refused += 1,
        }
    }

    /// Removes versions that were superseded more than the look-back before `now`. Always keeps the newest version of
    /// an object that exists. It visits every version: call it about once a minute, not for each change.
    pub fn prune(&mut self, now: Timestamp) {
        let horizon = horizon(now, self.look_back);
        let mut dropped = 0;
        let mut keep = |(versions, over): (usize, bool)| {
            dropped += versions + usize::from(over);
            !over
        };
        self.services.retain(|line| keep(line.prune(horizon)));
        self.slices.retain(|line| keep(line.prune(horizon)));
        self.pods.retain(|line| keep(line.prune(horizon)));
        self.nodes.retain(|line| keep(line.prune(horizon)));
        if dropped > 0 {
            self.reindex();
        }
    }

    /// Rebuilds the indexes: they contain an address as long as a version has it.
    fn reindex(&mut self) {
        self.changes.everything();
        let Self { services, slices, pods, nodes, indexes, .. } = self;
        indexes.clear();
        for (slot, service) in services.versions() {
            indexes.add_service(slot, service, services);
        }
        for (slot, slice) in slices.versions() {
            indexes.add_slice(slot, slice, slices);
        }
        for (slot, pod) in pods.versions() {
            indexes.add_pod(slot, pod, pods);
        }
        for (slot, node) in nodes.versions() {
            indexes.add_node(slot, node, nodes);
        }
    }

    /// The number of objects of all kinds.
    pub(crate) fn objects(&self) -> usize {
        self.services.len() + self.slices.len() + self.pods.len() + self.nodes.len()
    }

    pub fn counts(&self) -> Counts {
        let versions = |lens: &mut dyn Iterator<Item = usize>| lens.sum::<usize>();
        Counts {
            objects: self.objects(),
            versions: versions(&mut self.services.lines().map(|line| line.versions.len()))
                + versions(&mut self.slices.lines().map(|line| line.versions.len()))
                + versions(&mut self.pods.lines().map(|line| line.versions.len()))
                + versions(&mut self.nodes.lines().map(|line| line.versions.len())),
            forgotten: self.forgotten,
            refused: self.refused,
        }
    }

    /// The losses of the history, one sentence for each kind of loss.
    pub(crate) fn losses(&self) -> Vec<String> {
        let refused = format!(
            "{} left out: the history keeps {MAX_OBJECTS} of each kind",
            text::count(self.refused, "object")
        );
        let forgotten = format!(
            "{} forgotten early: the history keeps {MAX_VERSIONS} of each object",
            text::count(self.forgotten, "version")
        );
        [(self.refused, refused), (self.forgotten, forgotten)]
            .into_iter()
            .filter_map(|(count, sentence)| (count > 0).then_some(sentence))
            .collect()
    }

    pub fn service(&self, key: &Key, at: Timestamp) -> Option<&Arc<Service>> {
        self.services.get(key)?.at(at).value()
    }

    /// All Services that exist in the newest version.
    pub fn services(&self) -> impl Iterator<Item = &Arc<Service>> {
        self.services.lines().filter_map(Timeline::newest)
    }

    pub(crate) fn slice(&self, key: &Key, at: Timestamp) -> Option<&Arc<EndpointSlice>> {
        self.slices.get(key)?.at(at).value()
    }

    pub fn pod(&self, key: &Key, at: Timestamp) -> Option<&Arc<Pod>> {
        self.pods.get(key)?.at(at).value()
    }

    /// The Pod that held this address at `at`. Leaves out Pods on the host's network, which share the node's address:
    /// see [`History::node_by_ip`].
    pub fn pod_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<&Arc<Pod>> {
        let ip = ip.to_canonical();
        let holders = self.pods_at(ip, at).filter(|(pod, _)| !pod.host_network);
        // While an address moves, two Pods may claim it: it belongs to the Pod that is known to hold it then and is not
        // being deleted.
        let holder = holders.min_by_key(|(pod, assumed)| (*assumed, pod.deletion.is_some()));
        holder.map(|(pod, _)| pod)
    }

    /// The Pod that last gave up this address before `at`, and when: the Pod that a stale rule was written for (C6), or
    /// the previous owner of an address that another Pod has now.
    pub fn last_pod_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<(&Arc<Pod>, Timestamp)> {
        let ip = ip.to_canonical();
        let left = self.indexes.pod_ips.lines(&ip, &self.pods).flat_map(|line| {
            let held = |pod: &Arc<Pod>| !pod.host_network && pod.holds_addresses() && pod.ips.contains(&ip);
            let holds_now = line.at(at).value().is_some_and(held);
            let spans = line.spans().filter_map(|span| Some((span.value?, span.to?)));
            spans.filter(move |(pod, to)| !holds_now && *to <= at && held(pod))
        });
        left.max_by_key(|(_, to)| *to)
    }

    /// Pods that held the address at `at`, including those on the host's network, and whether that is assumed from a
    /// later version.
    fn pods_at(&self, ip: IpAddr, at: Timestamp) -> impl Iterator<Item = (&Arc<Pod>, bool)> {
        let lines = self.indexes.pod_ips.lines(&ip, &self.pods);
        let pods = lines.filter_map(move |line| match line.at(at) {
            At::In(pod) => Some((pod, false)),
            At::Assumed(pod) => Some((pod, true)),
            At::Gone | At::NotYet => None,
        });
        pods.filter(move |(pod, _)| pod.holds_addresses() && pod.ips.contains(&ip))
    }

    /// All Pods that exist in the newest version.
    pub fn pods(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.pods.lines().filter_map(Timeline::newest)
    }

    /// When this Pod was created, if known.
    pub fn pod_created(&self, key: &Key) -> Option<Timestamp> {
        self.pods.get(key)?.created()
    }

    /// All Nodes that exist in the newest version.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.nodes.lines().filter_map(Timeline::newest)
    }

    pub fn node(&self, name: &str, at: Timestamp) -> Option<&Arc<Node>> {
        self.nodes.get(&Key::new("", name))?.at(at).value()
    }

    /// The node that has this address.
    pub fn node_by_ip(&self, ip: IpAddr, at: Timestamp) -> Option<&Arc<Node>> {
        let ip = ip.to_canonical();
        let mut nodes = self.indexes.node_ips.lines(&ip, &self.nodes).filter_map(|line| line.at(at).value());
        nodes.find(|node| node.addresses.contains(&ip))
    }

    /// The name of the node that has this address, or whose Pod has it.
    pub(crate) fn node_of(&self, ip: IpAddr, at: Timestamp) -> Option<&Arc<str>> {
        let of_pod = self.pod_by_ip(ip, at).and_then(|pod| pod.node.as_ref());
        of_pod.or_else(|| Some(&self.node_by_ip(ip, at)?.key.name))
    }

    /// The kubelet's probes of this address and port (N1), at least one, and the Pod that held the address at `at`. For a
    /// node's address, those of a Pod on the host's network. A match is no proof: port 8080 also carries user traffic.
    pub fn probes(&self, ip: IpAddr, port: u16, at: Timestamp) -> Option<(&Arc<Pod>, Vec<&Probe>)> {
        self.pods_at(ip.to_canonical(), at).find_map(|(pod, _)| {
            let probes: Vec<_> = pod.probes.iter().filter(|probe| probe.port == port).collect();
            (!probes.is_empty()).then_some((pod, probes))
        })
    }
}

/// The result of adding an object to the history.
enum Stored {
    New {
        slot: Slot,
        forgotten: usize,
    },
    /// The object equals its last version.
    Same,
    Refused,
}

impl Stored {
    /// The slot of the object, if it has a new version.
    const fn changed(&self) -> Option<Slot> {
        match self {
            Self::New { slot, .. } => Some(*slot),
            Self::Same | Self::Refused => None,
        }
    }
}

fn store<T: PartialEq>(
    objects: &mut Objects<T>,
    key: &Key,
    created: Option<Timestamp>,
    from: Timestamp,
    value: &Arc<T>,
) -> Stored {
    if let Some(slot) = objects.slot(key) {
        return match objects.at_mut(slot).map(|line| line.push(from, Some(Arc::clone(value)))) {
            Some((true, forgotten)) => Stored::New { slot, forgotten },
            Some((false, _)) | None => Stored::Same,
        };
    }
    if objects.len() >= MAX_OBJECTS {
        return Stored::Refused;
    }
    let line = Timeline::new(created, from, Arc::clone(value));
    objects.insert(key.clone(), line).map_or(Stored::Refused, |slot| Stored::New { slot, forgotten: 0 })
}
