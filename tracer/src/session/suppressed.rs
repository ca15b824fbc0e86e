//! Events that the kernel suppressed, by Service.

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
};

use crate::{
    cluster::{Address, History, Key},
    flow::{Flow, Suppressed},
    net::Protocol,
    verdict::ServiceRef,
};

/// The most clients whose Service is not known yet, and the most Services counted apart.
const MAX_CLIENTS: usize = 4096;
const MAX_SERVICES: usize = 20_000;

/// The counts so far.
#[derive(Debug, Default)]
pub(super) struct SuppressedEvents {
    pub(super) total: u64,
    /// Of events behind NAT, since the client's last flow that was judged.
    pending: HashMap<IpAddr, u64>,
    services: BTreeMap<Key, u64>,
}

impl SuppressedEvents {
    pub(super) fn add(&mut self, suppressed: &Suppressed, history: &History) {
        let Suppressed { client, service, count, to, .. } = *suppressed;
        self.total = self.total.saturating_add(count);
        // No Service has port 0: an address of a Service is one all the same.
        let at = |ip: IpAddr| history.address(SocketAddr::new(ip, 0), Protocol::TCP, to);
        match (service.map(at), client) {
            (Some(Address::UnknownPort(service) | Address::Gone { service, .. }), _) => {
                self.count(service.key.clone(), count);
            }
            (_, Some(client)) => {
                let client = client.to_canonical();
                if self.pending.len() < MAX_CLIENTS || self.pending.contains_key(&client) {
                    let of = self.pending.entry(client).or_default();
                    *of = of.saturating_add(count);
                }
            }
            _ => {}
        }
    }

    /// A flow of the client went to this Service: the suppressed events are most likely of its like.
    pub(super) fn attribute(&mut self, flow: &Flow, service: Option<&ServiceRef>) {
        let Some(service) = service.filter(|_| flow.suppressed > 0 && !self.pending.is_empty()) else {
            return;
        };
        if let Some(count) = self.pending.remove(&flow.orig.src.ip()) {
            self.count(Key::new(&service.namespace, &service.name), count);
        }
    }

    fn count(&mut self, service: Key, count: u64) {
        if self.services.len() < MAX_SERVICES || self.services.contains_key(&service) {
            let of = self.services.entry(service).or_default();
            *of = of.saturating_add(count);
        }
    }

    /// The events of each Service; those of no known Service are the rest of the total.
    pub(super) fn by_service(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.services.iter().map(|(service, count)| (service, *count))
    }
}
