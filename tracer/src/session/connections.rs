//! The connections that a recorder in the kernel counted, by Service port and endpoint.

use std::{collections::BTreeMap, net::SocketAddr};

use super::unjudged::service_of;
use crate::{
    cluster::History, kernel::recorder::Counted, net::Protocol, time::Timestamp, verdict::ServiceRef,
};

/// The most pairs counted apart.
const MAX_PAIRS: usize = 100_000;

/// A Service port, and the endpoint that its connections got.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    pub service: ServiceRef,
    pub protocol: Protocol,
    /// `None` if the connections were not translated.
    pub endpoint: Option<SocketAddr>,
}

impl Pair {
    /// The pair of connections that the kernel counted together; `None` if their address belongs to no Service at `at`.
    pub(crate) fn of(counted: &Counted, history: &History, at: Timestamp) -> Option<Self> {
        let Counted { service: to, endpoint, protocol } = *counted;
        let service = service_of(to, protocol, at, history)?;
        Some(Self { service, protocol, endpoint: (endpoint != to).then_some(endpoint) })
    }
}

/// Connections started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    pairs: BTreeMap<Pair, u64>,
    /// Connections that were translated, to no known Service: another program's.
    pub others: u64,
    /// Connections for which there was no counter, in the kernel or here.
    pub uncounted: u64,
}

impl Connections {
    pub(crate) fn add(&mut self, pair: Option<Pair>, count: u64) {
        let total = match pair {
            None => &mut self.others,
            Some(pair) if self.pairs.len() < MAX_PAIRS || self.pairs.contains_key(&pair) => {
                self.pairs.entry(pair).or_default()
            }
            Some(_) => &mut self.uncounted,
        };
        *total = total.saturating_add(count);
    }

    /// Each pair with its connections.
    pub fn pairs(&self) -> impl Iterator<Item = (&Pair, u64)> {
        self.pairs.iter().map(|(pair, count)| (pair, *count))
    }
}
