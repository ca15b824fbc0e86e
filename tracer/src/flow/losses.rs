//! Events that viptrace did not receive, and the flows that they make uncertain.
//!
//! Owns the intervals of losses and their bounds. A loss of unknown contents concerns every flow of its time; events of
//! one client that the kernel suppressed concern only that client's flows.

use std::{
    collections::{HashMap, VecDeque},
    net::IpAddr,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::FlowTable;
use crate::{net::Netns, time::Timestamp};

/// The number of losses kept apart; older ones are merged.
const MAX_LOSSES: usize = 64;
/// The number of clients whose suppressed events are kept apart; those of the client that has been quiet for longest then
/// count as losses of every flow.
const MAX_CLIENTS: usize = 4096;
/// The number of intervals kept apart for one client, and the pause that separates two.
const MAX_INTERVALS: usize = 4;
const PAUSE: Duration = Duration::from_secs(10);

/// Events of one client that the kernel suppressed, because there were too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppressed {
    pub client: IpAddr,
    /// The namespace of the events. It distinguishes only loopback addresses: all others mean the same host everywhere
    /// on a node.
    pub netns: Netns,
    pub from: Timestamp,
    pub to: Timestamp,
    pub count: u64,
}

#[derive(Clone, Copy, Debug)]
struct Loss {
    count: u64,
    from: Timestamp,
    to: Timestamp,
}

impl Loss {
    fn merge(&mut self, other: Self) {
        self.count = self.count.saturating_add(other.count);
        self.from = self.from.min(other.from);
        self.to = self.to.max(other.to);
    }

    fn overlaps(&self, since: Timestamp, until: Timestamp) -> bool {
        self.from <= until && self.to >= since
    }
}

/// All losses so far.
#[derive(Debug, Default)]
pub(super) struct Losses {
    of_all: VecDeque<Loss>,
    of_clients: HashMap<Client, VecDeque<Loss>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Client {
    address: IpAddr,
    scope: u32,
}

impl Client {
    fn new(address: IpAddr, netns: Netns) -> Self {
        let address = address.to_canonical();
        Self { address, scope: if address.is_loopback() { netns.0 } else { 0 } }
    }
}

impl Losses {
    fn add(&mut self, loss: Loss) {
        if self.of_all.len() >= MAX_LOSSES
            && let (Some(oldest), Some(next)) = (self.of_all.pop_front(), self.of_all.front_mut())
        {
            next.merge(oldest);
        }
        self.of_all.push_back(loss);
    }

    fn suppress(&mut self, client: Client, loss: Loss) {
        if self.of_clients.len() >= MAX_CLIENTS && !self.of_clients.contains_key(&client) {
            self.merge_quietest();
        }
        let known = self.of_clients.entry(client).or_default();
        match known.back_mut() {
            Some(last) if loss.from <= last.to.saturating_add(PAUSE) => last.merge(loss),
            _ => known.push_back(loss),
        }
        if known.len() > MAX_INTERVALS
            && let (Some(oldest), Some(next)) = (known.pop_front(), known.front_mut())
        {
            next.merge(oldest);
        }
    }

    fn merge_quietest(&mut self) {
        let last = |known: &VecDeque<Loss>| known.back().map(|loss| loss.to);
        let quietest = self.of_clients.iter().min_by_key(|(client, known)| (last(known), **client));
        let Some(client) = quietest.map(|(client, _)| *client) else { return };
        for loss in self.of_clients.remove(&client).into_iter().flatten() {
            self.add(loss);
        }
    }

    /// The number of events between two times that are missing for a client's flow: of all flows, and of this client.
    pub(super) fn of(&self, client: IpAddr, netns: Netns, since: Timestamp, until: Timestamp) -> (u64, u64) {
        let count = |losses: &VecDeque<Loss>| {
            let overlapping = losses.iter().filter(|loss| loss.overlaps(since, until));
            overlapping.fold(0, |sum: u64, loss| sum.saturating_add(loss.count))
        };
        let suppressed = self.of_clients.get(&Client::new(client, netns)).map_or(0, count);
        (count(&self.of_all), suppressed)
    }
}

impl FlowTable {
    /// The kernel half lost `count` records between `from` and `to`. Flows that were alive then carry the count.
    pub fn lost(&mut self, count: u64, from: Timestamp, to: Timestamp) {
        if count > 0 {
            self.losses.add(Loss { count, from, to });
        }
    }

    /// The kernel half suppressed events of one client. That client's flows that were alive then carry the count.
    pub fn suppressed(&mut self, Suppressed { client, netns, from, to, count }: Suppressed) {
        if count > 0 {
            self.losses.suppress(Client::new(client, netns), Loss { count, from, to });
        }
    }
}
