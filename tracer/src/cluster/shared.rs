//! One copy of the texts and lists that objects have in common: namespaces, nodes, zones, labels, ports, probes, and
//! the names of Pods, which slices repeat.
//!
//! Owns the pools in which a watch looks for a copy. A pool drops the entries that no object uses any more, each time
//! that it has doubled. Must not change the value of an object.

use std::{hash::Hash, sync::Arc};

use foldhash::HashSet;

use crate::cluster::model::{ContainerPort, Endpoint, Key, Label, Object, Pod, PodRef, Probe, Trimmed};

/// A pool with fewer entries is not searched for unused ones.
const MIN_ENTRIES: usize = 1024;

/// The pools of one watch of the cluster.
#[derive(Debug, Default)]
pub(super) struct Shared {
    texts: Pool<str>,
    names: Pool<[Arc<str>]>,
    labels: Pool<[Label]>,
    ports: Pool<[ContainerPort]>,
    probes: Pool<[Probe]>,
}

/// Values that are equal to no other one in the pool.
#[derive(Debug)]
struct Pool<T: ?Sized> {
    entries: HashSet<Arc<T>>,
    /// The number of entries at which the unused ones are dropped.
    full: usize,
}

impl<T: ?Sized> Default for Pool<T> {
    fn default() -> Self {
        Self { entries: HashSet::default(), full: MIN_ENTRIES }
    }
}

impl<T: ?Sized + Eq + Hash> Pool<T> {
    /// Replaces the value with the pool's copy; `fresh` completes a value of which the pool has none.
    fn share(&mut self, value: &mut Arc<T>, fresh: impl FnOnce(&mut Arc<T>)) {
        if let Some(known) = self.entries.get(value) {
            *value = Arc::clone(known);
            return;
        }
        fresh(value);
        if self.entries.len() >= self.full {
            self.entries.retain(|entry| Arc::strong_count(entry) > 1);
            self.full = (2 * self.entries.len()).max(MIN_ENTRIES);
        }
        self.entries.insert(Arc::clone(value));
    }

    fn share_whole(&mut self, value: &mut Arc<T>) {
        self.share(value, |_| ());
    }
}

impl Shared {
    /// Replaces the parts of a new object with the copies that other objects have.
    pub(super) fn share(&mut self, trimmed: &mut Trimmed) {
        // Nobody else has the object yet: nothing is copied.
        match &mut trimmed.object {
            Object::Service(service) => {
                let service = Arc::make_mut(service);
                self.key(&mut service.key);
                self.labels(&mut service.selector.0);
                service.ports.iter_mut().for_each(|port| self.texts.share_whole(&mut port.name));
            }
            Object::EndpointSlice(slice) => {
                let slice = Arc::make_mut(slice);
                self.key(&mut slice.key);
                if let Some(service) = &mut slice.service {
                    self.key(service);
                }
                slice.ports.iter_mut().for_each(|port| self.texts.share_whole(&mut port.name));
                slice.endpoints.iter_mut().for_each(|endpoint| self.endpoint(endpoint));
            }
            Object::Pod(pod) => self.pod(Arc::make_mut(pod)),
            Object::Node(node) => {
                let node = Arc::make_mut(node);
                self.key(&mut node.key);
                node.zone.iter_mut().for_each(|zone| self.texts.share_whole(zone));
                self.texts.share_whole(&mut node.kubelet_version);
                self.texts.share_whole(&mut node.kube_proxy_version);
            }
        }
    }

    fn key(&mut self, Key { namespace, name }: &mut Key) {
        self.texts.share_whole(namespace);
        self.texts.share_whole(name);
    }

    fn endpoint(&mut self, endpoint: &mut Endpoint) {
        let Endpoint { addresses: _, conditions: _, node, pod, zone, for_zones, for_nodes } = endpoint;
        node.iter_mut().chain(zone).for_each(|name| self.texts.share_whole(name));
        if let Some(PodRef { key, uid: _ }) = pod {
            self.key(key);
        }
        self.names(for_zones);
        self.names(for_nodes);
    }

    fn pod(&mut self, pod: &mut Pod) {
        self.key(&mut pod.key);
        pod.node.iter_mut().chain(&mut pod.trouble).for_each(|name| self.texts.share_whole(name));
        self.labels(&mut pod.labels.0);
        self.ports.share(&mut pod.ports, |ports| {
            for port in Arc::get_mut(ports).into_iter().flatten() {
                self.texts.share_whole(&mut port.name);
            }
        });
        self.probes.share_whole(&mut pod.probes);
    }

    fn labels(&mut self, labels: &mut Arc<[Label]>) {
        self.labels.share(labels, |labels| {
            for (name, value) in Arc::get_mut(labels).into_iter().flatten() {
                self.texts.share_whole(name);
                self.texts.share_whole(value);
            }
        });
    }

    fn names(&mut self, names: &mut Arc<[Arc<str>]>) {
        self.names.share(names, |names| {
            for name in Arc::get_mut(names).into_iter().flatten() {
                self.texts.share_whole(name);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::{model::Kind, trim::trim};

    fn object(kind: Kind, value: &Value) -> Trimmed {
        trim(kind, value, &mut Vec::new()).unwrap()
    }

    fn pod(name: &str) -> Trimmed {
        let port = json!({"name": "http", "containerPort": 8080});
        let probe = json!({"tcpSocket": {"port": 8080}});
        object(
            Kind::Pod,
            &json!({
                "metadata": {"name": name, "namespace": "shop", "labels": {"app": "cart"}},
                "spec": {"nodeName": "worker-1", "containers": [{"name": "c", "ports": [port], "readinessProbe": probe}]},
            }),
        )
    }

    fn slice() -> Trimmed {
        let endpoint = |name: &str| {
            json!({
                "addresses": ["10.0.0.1"], "nodeName": "worker-1", "zone": "a", "hints": {"forZones": [{"name": "a"}]},
                "targetRef": {"kind": "Pod", "namespace": "shop", "name": name},
            })
        };
        object(
            Kind::EndpointSlice,
            &json!({
                "metadata": {"name": "cart-x", "namespace": "shop", "labels": {"kubernetes.io/service-name": "cart"}},
                "addressType": "IPv4", "endpoints": [endpoint("cart-0"), endpoint("cart-1")],
            }),
        )
    }

    #[test]
    fn equal_parts_have_one_copy_and_values_stay() {
        let mut shared = Shared::default();
        let (mut first, mut second, mut slice_of_both) = (pod("cart-0"), pod("cart-1"), slice());
        for each in [&mut first, &mut second, &mut slice_of_both] {
            let before = each.clone();
            // The copy for the comparison is dropped before: the object must be the only one.
            let json = serde_json::to_string(&before).unwrap();
            drop(before);
            shared.share(each);
            assert_eq!(serde_json::to_string(each).unwrap(), json);
        }
        let (Object::Pod(first), Object::Pod(second), Object::EndpointSlice(slice)) =
            (&first.object, &second.object, &slice_of_both.object)
        else {
            panic!("two Pods and a slice")
        };
        assert!(Arc::ptr_eq(&first.labels.0, &second.labels.0) && Arc::ptr_eq(&first.ports, &second.ports));
        assert!(Arc::ptr_eq(&first.probes, &second.probes));
        assert!(Arc::ptr_eq(&first.key.namespace, &slice.key.namespace));
        let [one, two] = slice.endpoints.as_slice() else { panic!("two endpoints") };
        assert!(Arc::ptr_eq(&second.key.name, &two.pod.as_ref().unwrap().key.name));
        assert!(Arc::ptr_eq(first.node.as_ref().unwrap(), one.node.as_ref().unwrap()));
        assert!(Arc::ptr_eq(&one.for_zones, &two.for_zones));
        assert!(Arc::ptr_eq(one.zone.as_ref().unwrap(), &one.for_zones[0]));
    }

    #[test]
    fn the_pools_drop_the_values_of_objects_that_are_gone() {
        let mut shared = Shared::default();
        let mut kept = pod("kept");
        shared.share(&mut kept);
        for n in 0..20 * MIN_ENTRIES {
            shared.share(&mut pod(&format!("cart-{n}")));
        }
        assert!(shared.texts.entries.len() <= 2 * MIN_ENTRIES, "{}", shared.texts.entries.len());
        let mut again = pod("kept");
        shared.share(&mut again);
        assert!(Arc::ptr_eq(&again.object.key().name, &kept.object.key().name));
    }
}
