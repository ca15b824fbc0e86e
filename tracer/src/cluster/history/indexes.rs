//! Which objects had an address, a node port or a Service within the look-back.
//!
//! Owns the indexes and their order: the objects under one entry are in the order of their names, each once, however the
//! history came by them. Must not read times.

use std::{collections::hash_map::Entry, fmt, hash::Hash, marker::PhantomData, net::IpAddr};

use foldhash::HashMap;

use super::objects::{Named, Objects, Slot};
use crate::{
    cluster::{
        Few,
        model::{EndpointSlice, Key, Node, Pod, Service},
        timeline::Timeline,
    },
    net::Protocol,
};

/// An index from a value to the objects of one kind that had it.
pub(super) struct Index<K, T> {
    slots: HashMap<K, Few<Slot>>,
    of: PhantomData<fn() -> T>,
}

#[derive(Debug, Default)]
pub(super) struct Indexes {
    pub(super) service_ips: Index<IpAddr, Service>,
    pub(super) node_ports: Index<(u16, Protocol), Service>,
    pub(super) slices_of_service: Index<Key, EndpointSlice>,
    pub(super) pod_ips: Index<IpAddr, Pod>,
    pub(super) node_ips: Index<IpAddr, Node>,
}

impl Indexes {
    pub(super) fn add_service(&mut self, slot: Slot, service: &Service, all: &Objects<Service>) {
        for ips in [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips] {
            self.service_ips.add_all(ips, slot, all);
        }
        for port in &service.ports {
            if let Some(number) = port.node_port {
                self.node_ports.add((number, port.protocol), slot, all);
            }
        }
    }

    pub(super) fn add_slice(&mut self, slot: Slot, slice: &EndpointSlice, all: &Objects<EndpointSlice>) {
        if let Some(service) = &slice.service {
            self.slices_of_service.add(service.clone(), slot, all);
        }
    }

    pub(super) fn add_pod(&mut self, slot: Slot, pod: &Pod, all: &Objects<Pod>) {
        self.pod_ips.add_all(&pod.ips, slot, all);
    }

    pub(super) fn add_node(&mut self, slot: Slot, node: &Node, all: &Objects<Node>) {
        self.node_ips.add_all(&node.addresses, slot, all);
    }

    pub(super) fn clear(&mut self) {
        let Self { service_ips, node_ports, slices_of_service, pod_ips, node_ips } = self;
        service_ips.slots.clear();
        node_ports.slots.clear();
        slices_of_service.slots.clear();
        pod_ips.slots.clear();
        node_ips.slots.clear();
    }
}

impl<K, T> Default for Index<K, T> {
    fn default() -> Self {
        Self { slots: HashMap::default(), of: PhantomData }
    }
}

impl<K: fmt::Debug, T> fmt::Debug for Index<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(&self.slots).finish()
    }
}

impl<K: Eq + Hash, T> Index<K, T> {
    /// The histories of the objects under this entry, in the order of their names.
    pub(super) fn lines<'a>(
        &'a self,
        entry: &K,
        all: &'a Objects<T>,
    ) -> impl Iterator<Item = &'a Timeline<T>> + Clone + use<'a, K, T> {
        self.slots.get(entry).into_iter().flatten().filter_map(|slot| all.at(*slot))
    }
}

impl<K: Eq + Hash, T: Named> Index<K, T> {
    fn add(&mut self, entry: K, slot: Slot, all: &Objects<T>) {
        match self.slots.entry(entry) {
            Entry::Occupied(mut slots) => {
                if let Err(place) = slots.get().binary_search_by(|other| all.compare(*other, slot)) {
                    slots.get_mut().insert(place, slot);
                }
            }
            Entry::Vacant(place) => {
                place.insert(vec![slot].into());
            }
        }
    }
}

impl<K: Copy + Eq + Hash, T: Named> Index<K, T> {
    fn add_all(&mut self, entries: &[K], slot: Slot, all: &Objects<T>) {
        for entry in entries {
            self.add(*entry, slot, all);
        }
    }
}
