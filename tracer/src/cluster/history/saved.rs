//! The form of the history in a recording: object by object, each with its versions.
//!
//! Owns this form and the conversion to a history, with the bounds of a live one whatever the file contains. The form
//! is part of the recording format: a new field needs a default. Does no I/O.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{History, MAX_OBJECTS, Objects};
use crate::{
    cluster::{
        model::{EndpointSlice, Key, Kind, Node, Object, Pod, Service, Trimmed},
        shared::Shared,
        timeline::Timeline,
    },
    time::Timestamp,
};

/// The kept versions of one object, the oldest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Line<T> {
    pub key: Key,
    pub created: Option<Timestamp>,
    /// The time from which each version was in force; `None` is a deletion.
    pub versions: Vec<(Timestamp, Option<Arc<T>>)>,
}

/// One object of any kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum SavedObject {
    Service(Line<Service>),
    EndpointSlice(Line<EndpointSlice>),
    Pod(Line<Pod>),
    Node(Line<Node>),
}

impl SavedObject {
    /// Its versions, without deletions.
    pub(crate) fn versions(self) -> Vec<Object> {
        fn of<T>(line: Line<T>, object: fn(Arc<T>) -> Object) -> Vec<Object> {
            line.versions.into_iter().filter_map(|(_, version)| version).map(object).collect()
        }
        match self {
            Self::Service(line) => of(line, Object::Service),
            Self::EndpointSlice(line) => of(line, Object::EndpointSlice),
            Self::Pod(line) => of(line, Object::Pod),
            Self::Node(line) => of(line, Object::Node),
        }
    }
}

/// The facts of a history besides its objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedFacts {
    /// In seconds.
    pub look_back: u64,
    /// In the order of [`Kind::ALL`]: whether all objects of the kind have been added.
    pub known: [bool; Kind::ALL.len()],
    /// See [`super::Counts`].
    pub forgotten: u64,
    pub refused: u64,
}

impl History {
    /// Everything, for [`Self::restore_object`] and [`Self::restore_facts`]. Objects are shared, not copied.
    pub fn save(&self) -> (SavedFacts, Vec<SavedObject>) {
        let services = self.services.iter().map(|(key, line)| SavedObject::Service(save(key, line)));
        let slices = self.slices.iter().map(|(key, line)| SavedObject::EndpointSlice(save(key, line)));
        let pods = self.pods.iter().map(|(key, line)| SavedObject::Pod(save(key, line)));
        let nodes = self.nodes.iter().map(|(key, line)| SavedObject::Node(save(key, line)));
        let facts = SavedFacts {
            look_back: self.look_back.as_secs(),
            known: self.known,
            forgotten: self.forgotten,
            refused: self.refused,
        };
        (facts, services.chain(slices).chain(pods).chain(nodes).collect())
    }

    /// Restores an object and replaces an existing one with its key. It can be found by its address after
    /// [`Self::restore_facts`].
    pub fn restore_object(&mut self, mut object: SavedObject) {
        let latest = match &object {
            SavedObject::Service(line) => line.latest(),
            SavedObject::EndpointSlice(line) => line.latest(),
            SavedObject::Pod(line) => line.latest(),
            SavedObject::Node(line) => line.latest(),
        };
        self.changes.changed(latest);
        object.share(&mut self.shared);
        let taken = match object {
            SavedObject::Service(line) => restore(&mut self.services, line),
            SavedObject::EndpointSlice(line) => restore(&mut self.slices, line),
            SavedObject::Pod(line) => restore(&mut self.pods, line),
            SavedObject::Node(line) => restore(&mut self.nodes, line),
        };
        self.refused += u64::from(!taken);
    }

    /// Restores the other facts and rebuilds the indexes. Call it after the objects.
    pub fn restore_facts(&mut self, facts: SavedFacts) {
        self.look_back = std::time::Duration::from_secs(facts.look_back);
        self.known = facts.known;
        self.forgotten = facts.forgotten;
        self.refused = self.refused.max(facts.refused);
        self.shared = Shared::default();
        self.reindex();
    }
}

impl SavedObject {
    /// Gives the objects one copy of what they have in common, as a watch does.
    fn share(&mut self, shared: &mut Shared) {
        match self {
            Self::Service(line) => line.share(shared, Object::Service, |object| match object {
                Object::Service(service) => Some((service.key.clone(), service)),
                _ => None,
            }),
            Self::EndpointSlice(line) => line.share(shared, Object::EndpointSlice, |object| match object {
                Object::EndpointSlice(slice) => Some((slice.key.clone(), slice)),
                _ => None,
            }),
            Self::Pod(line) => line.share(shared, Object::Pod, |object| match object {
                Object::Pod(pod) => Some((pod.key.clone(), pod)),
                _ => None,
            }),
            Self::Node(line) => line.share(shared, Object::Node, |object| match object {
                Object::Node(node) => Some((node.key.clone(), node)),
                _ => None,
            }),
        }
    }
}

impl<T> Line<T> {
    fn share(
        &mut self,
        shared: &mut Shared,
        wrap: impl Fn(Arc<T>) -> Object,
        unwrap: impl Fn(Object) -> Option<(Key, Arc<T>)>,
    ) {
        for (_, version) in &mut self.versions {
            let Some(value) = version.take() else { continue };
            let mut trimmed = Trimmed { object: wrap(value), created: None, changed: None, version: None };
            shared.share(&mut trimmed);
            if let Some((key, value)) = unwrap(trimmed.object) {
                if key == self.key {
                    self.key = key;
                }
                *version = Some(value);
            }
        }
    }

    /// When its newest version came into force.
    fn latest(&self) -> Timestamp {
        self.versions.iter().map(|(from, _)| *from).max().unwrap_or_default()
    }
}

fn save<T>(key: &Key, line: &Timeline<T>) -> Line<T> {
    let versions = line.versions.iter().map(|version| (version.from, version.value.clone()));
    Line { key: key.clone(), created: line.created(), versions: versions.collect() }
}

/// False if there is no room, or if there is no version.
fn restore<T>(objects: &mut Objects<T>, line: Line<T>) -> bool {
    let Line { key, created, versions } = line;
    if objects.len() >= MAX_OBJECTS && objects.slot(&key).is_none() {
        return false;
    }
    Timeline::restore(created, versions).is_some_and(|line| objects.insert(key, line).is_some())
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, path::Path};

    use super::*;
    use crate::{
        cluster::{LOOK_BACK, folder},
        net::Protocol,
    };

    /// Through JSON and back.
    fn restored(history: &History) -> History {
        let (facts, objects) = history.save();
        let mut restored = History::default();
        for object in objects {
            let json = serde_json::to_string(&object).unwrap();
            restored.restore_object(serde_json::from_str(&json).unwrap());
        }
        let facts: SavedFacts = serde_json::from_str(&serde_json::to_string(&facts).unwrap()).unwrap();
        restored.restore_facts(facts);
        restored
    }

    #[test]
    fn a_restored_history_answers_as_the_saved_one() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/cluster");
        let history = folder::read(&dir, LOOK_BACK).unwrap().history;
        let again = restored(&history);
        assert_eq!(history.save(), again.save());
        assert_eq!(history.counts(), again.counts());
        assert!(again.knows(Kind::Service));
        let now = Timestamp::from_unix_secs(1_796_083_200);
        for service in history.services() {
            for ip in &service.cluster_ips {
                for port in &service.ports {
                    let vip = (*ip, port.port).into();
                    let meant = again.address(vip, Protocol::TCP, now);
                    assert_eq!(history.address(vip, Protocol::TCP, now), meant);
                    assert_eq!(
                        history.endpoints(&service.key, port, now),
                        again.endpoints(&service.key, port, now)
                    );
                }
            }
        }
        let pod: IpAddr = "10.244.1.11".parse().unwrap();
        assert!(history.pod_by_ip(pod, now).is_some());
        assert_eq!(history.pod_by_ip(pod, now), again.pod_by_ip(pod, now));
    }

    #[test]
    fn the_bounds_hold_for_any_file() {
        let key = Key::new("shop", "cart");
        let node = |from| {
            let object = Node {
                key: key.clone(),
                uid: "u".into(),
                addresses: Vec::new(),
                pod_cidrs: Vec::new(),
                ready: None,
                pressure: Vec::new(),
                kubelet_version: "".into(),
                kube_proxy_version: "".into(),
                zone: None,
                unschedulable: false,
                unfit: None,
            };
            (Timestamp::from_unix_secs(from), Some(Arc::new(object)))
        };
        let mut history = History::default();
        // Too many versions, in decreasing order of time.
        let versions = (0..1000).map(|n| node(1000 - n)).collect();
        history.restore_object(SavedObject::Node(Line { key: key.clone(), created: None, versions }));
        history.restore_object(SavedObject::Node(Line { key, created: None, versions: Vec::new() }));
        history.restore_facts(SavedFacts::default());
        assert_eq!(history.counts().versions, 256);
        assert_eq!(history.counts().refused, 1);
        let (_, objects) = history.save();
        let [SavedObject::Node(line)] = objects.as_slice() else { panic!("one node") };
        assert!(line.versions.is_sorted_by_key(|version| version.0));
    }
}
