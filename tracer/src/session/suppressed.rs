//! Events that the kernel suppressed, by the Service that their client's flows went to.

use std::{
    collections::{BTreeMap, HashMap},
    net::IpAddr,
};

use crate::{flow::Flow, verdict::ServiceRef};

/// The most clients whose Service is not known yet, and the most Services counted apart.
const MAX_CLIENTS: usize = 4096;
const MAX_SERVICES: usize = 20_000;

/// The counts so far.
#[derive(Debug, Default)]
pub(super) struct SuppressedEvents {
    pub(super) total: u64,
    /// Since the client's last flow that was judged.
    pending: HashMap<IpAddr, u64>,
    services: BTreeMap<ServiceRef, u64>,
}

impl SuppressedEvents {
    pub(super) fn add(&mut self, client: IpAddr, count: u64) {
        self.total = self.total.saturating_add(count);
        let client = client.to_canonical();
        if self.pending.len() < MAX_CLIENTS || self.pending.contains_key(&client) {
            let of = self.pending.entry(client).or_default();
            *of = of.saturating_add(count);
        }
    }

    /// A flow of the client went to this Service: the suppressed events are most likely of its like.
    pub(super) fn attribute(&mut self, flow: &Flow, service: Option<&ServiceRef>) {
        let Some(service) = service.filter(|_| flow.suppressed > 0 && !self.pending.is_empty()) else {
            return;
        };
        if self.services.len() >= MAX_SERVICES && !self.services.contains_key(service) {
            return;
        }
        if let Some(count) = self.pending.remove(&flow.orig.src.ip()) {
            *self.services.entry(service.clone()).or_default() += count;
        }
    }

    /// The events of each Service; those of no known Service are the rest of the total.
    pub(super) fn by_service(&self) -> impl Iterator<Item = (&ServiceRef, u64)> {
        self.services.iter().map(|(service, count)| (service, *count))
    }
}
