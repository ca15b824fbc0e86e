//! The time of the history's last change, so that a cached answer can be checked for validity.
//!
//! Owns a count of changes and the reach of each: a slice affects its Service, a Service or Node affects any address.

use foldhash::HashMap;

use super::History;
use crate::{
    cluster::{model::Key, timeline::Timeline},
    time::Timestamp,
};

/// The last change to an object: every answer about a moment after `since` is constant until the generation rises.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    pub generation: u64,
    /// The latest moment at which one of its versions came into force.
    pub since: Timestamp,
}

#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Rises with every change that an answer can depend on.
    generation: u64,
    /// Services, Nodes and the set of known kinds: each can change the meaning of any address.
    addresses: Settled,
    pods: Settled,
    /// No version came into force later.
    latest: Timestamp,
    /// The generation of the last change of a Service's slices.
    slices: HashMap<Key, u64>,
}

impl Changes {
    pub(super) fn addresses(&mut self, at: Timestamp) {
        self.changed(at);
        self.addresses = Settled { generation: self.generation, since: self.addresses.since.max(at) };
    }

    pub(super) fn pods(&mut self, at: Timestamp) {
        self.changed(at);
        self.pods = Settled { generation: self.generation, since: self.pods.since.max(at) };
    }

    pub(super) fn slices(&mut self, service: Option<&Key>, at: Timestamp) {
        self.changed(at);
        if let Some(service) = service {
            self.slices.insert(service.clone(), self.generation);
        }
    }

    /// Versions were removed or restored, which can change every answer.
    pub(super) fn everything(&mut self) {
        self.slices.clear();
        self.addresses(Timestamp::MIN);
        self.pods(Timestamp::MIN);
    }

    /// From this moment on, every answer is constant until the generation rises.
    pub(super) const fn latest(&self) -> Timestamp {
        self.latest
    }

    /// A version came into force at this moment.
    pub(super) fn changed(&mut self, at: Timestamp) {
        self.generation += 1;
        self.latest = self.latest.max(at);
    }
}

impl History {
    /// A number that rises with every change of the history's answers.
    pub const fn generation(&self) -> u64 {
        self.changes.generation
    }

    /// The last change that can affect a Service's addresses and endpoints.
    pub fn settled(&self, service: &Key) -> Settled {
        let Changes { addresses, slices, .. } = &self.changes;
        let slices_changed = slices.get(service).copied().unwrap_or(0);
        let changed = self.endpoints_changed(service, Timestamp::MAX).unwrap_or(Timestamp::MIN);
        Settled { generation: addresses.generation.max(slices_changed), since: addresses.since.max(changed) }
    }

    /// The last change of any Pod.
    pub const fn pods_settled(&self) -> Settled {
        self.changes.pods
    }

    /// The slice is about to change, and with it the endpoints of its current Service.
    pub(super) fn slice_changes(&mut self, slice: &Key, at: Timestamp) {
        let service =
            self.slices.get(slice).and_then(Timeline::newest).and_then(|slice| slice.service.clone());
        self.changes.slices(service.as_ref(), at);
    }
}
