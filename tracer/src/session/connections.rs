//! The connections that a recorder in the kernel counted, by Service port and endpoint.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use super::unjudged::service_of;
use crate::{
    cluster::{Address, History},
    kernel::connections::Counted,
    net::Protocol,
    time::Timestamp,
    verdict::ServiceRef,
};

/// The most pairs counted apart.
const MAX_PAIRS: usize = 100_000;
/// How long connections to a deleted Service are its own: kube-proxy removes its rules at its next sync.
const SYNC: Duration = Duration::from_secs(30);
/// The most pairs that wait.
const MAX_WAITING: usize = 4_096;

/// A Service port, and the endpoint that its connections got.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    pub service: ServiceRef,
    pub protocol: Protocol,
    /// `None` if the connections were not translated.
    pub endpoint: Option<SocketAddr>,
}

impl Pair {
    /// The pair of connections that the kernel counted together between two times; `None` if their address belonged to no
    /// Service. A Service that was deleted between them, or shortly before, keeps its connections.
    fn of(counted: &Counted, history: &History, from: Timestamp, to: Timestamp) -> Option<Self> {
        let Counted { service: addr, endpoint, protocol } = *counted;
        let earliest = from.saturating_sub(SYNC);
        let deleted = match history.address(addr, protocol, to) {
            Address::Gone { since, .. } if earliest < since => {
                Some(since.saturating_sub(Duration::from_nanos(1)))
            }
            _ => None,
        };
        // A node port is no address of its Service: it is looked up at earlier times.
        let mut times = [Some(to), deleted, Some(from), Some(earliest)].into_iter().flatten();
        let service = times.find_map(|at| service_of(addr, protocol, at, history))?;
        Some(Self { service, protocol, endpoint: (endpoint != addr).then_some(endpoint) })
    }
}

/// Connections that the kernel counted, until their Service is known.
#[derive(Debug, Default)]
pub(crate) struct Attribution {
    /// Their number, and the earliest time at which the first of them began.
    waiting: BTreeMap<Counted, (u64, Timestamp)>,
}

impl Attribution {
    /// How long connections wait for their Service: kube-proxy's watch may be ahead of this one.
    pub(crate) const BEHIND: Duration = Duration::from_mins(1);

    /// Takes connections that began after `from`.
    pub(crate) fn add(&mut self, counted: Counted, count: u64, from: Timestamp) {
        let (total, _) = self.waiting.entry(counted).or_insert((0, from));
        *total = total.saturating_add(count);
    }

    /// Returns the connections whose Service is known by `now`, and those that have waited for longer than `patience`, or too
    /// many of them: they belong to no Service.
    pub(crate) fn take(
        &mut self,
        patience: Duration,
        history: &History,
        now: Timestamp,
    ) -> Vec<(Option<Pair>, u64)> {
        let is_full = self.waiting.len() > MAX_WAITING;
        let mut taken = Vec::new();
        self.waiting.retain(|counted, (count, from)| {
            let pair = Pair::of(counted, history, *from, now);
            let waits = pair.is_none() && !is_full && now.since(*from) < patience;
            if !waits {
                taken.push((pair, *count));
            }
            waits
        });
        taken
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cluster::{
        Kind,
        model::{Change, Key},
        trim::trim,
    };

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_unix_secs(1_000 + seconds)
    }

    /// `shop/task` from second 10 to second 100, at an address of its own and at a node port.
    fn history() -> History {
        let object =
            |kind, value: serde_json::Value| Change::Put(trim(kind, &value, &mut Vec::new()).unwrap());
        let ports =
            json!([{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30_080}]);
        let spec = json!({"type": "NodePort", "clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7"], "ports": ports});
        let metadata = json!({"name": "task", "namespace": "shop", "uid": "task"});
        let node = json!({"metadata": {"name": "worker-1", "uid": "node"},
            "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.11"}]}});
        let mut history = History::new(Duration::from_hours(1));
        history.apply(at(0), object(Kind::Node, node));
        for kind in [Kind::Service, Kind::Node] {
            history.mark_known(kind);
        }
        history.apply(at(10), object(Kind::Service, json!({"metadata": metadata, "spec": spec})));
        history.apply(at(100), Change::Delete(Kind::Service, Key::new("shop", "task")));
        history
    }

    #[test]
    fn connections_to_a_service_that_was_deleted_before_they_were_read_are_its_own() {
        let history = history();
        let name = |to: &str, from, until| {
            let endpoint = "10.244.1.7:8080".parse().unwrap();
            let counted = Counted { service: to.parse().unwrap(), endpoint, protocol: Protocol::TCP };
            Pair::of(&counted, &history, at(from), at(until)).map(|pair| pair.service.name.to_string())
        };
        for to in ["10.96.0.7:80", "192.0.2.11:30080"] {
            assert_eq!(name(to, 92, 97).as_deref(), Some("task"), "{to}: it exists");
            assert_eq!(name(to, 97, 102).as_deref(), Some("task"), "{to}: it was deleted after they began");
            assert_eq!(name(to, 102, 107).as_deref(), Some("task"), "{to}: its rules are still there");
            assert_eq!(name(to, 160, 165), None, "{to}: its rules are gone, and the address is nobody's");
        }
        assert_eq!(name("10.96.0.7:81", 97, 102), None, "it had no such port");
        assert_eq!(name("10.96.0.8:80", 97, 102), None);
    }

    #[test]
    fn connections_wait_until_their_service_is_known() {
        let counted = |to: &str| Counted {
            service: to.parse().unwrap(),
            endpoint: "10.244.1.7:8080".parse().unwrap(),
            protocol: Protocol::TCP,
        };
        let (task, other) = (counted("10.96.0.7:80"), counted("192.0.2.99:80"));
        let names = |taken: Vec<(Option<Pair>, u64)>| -> Vec<(Option<String>, u64)> {
            taken
                .into_iter()
                .map(|(pair, count)| (pair.map(|pair| pair.service.name.to_string()), count))
                .collect()
        };
        let of_task = |count| vec![(Some("task".to_owned()), count)];
        let (unknown, known) = (History::new(Duration::from_hours(1)), history());
        let mut attribution = Attribution::default();
        attribution.add(task, 3, at(92));
        attribution.add(other, 7, at(92));
        assert_eq!(names(attribution.take(Attribution::BEHIND, &unknown, at(97))), []);
        attribution.add(task, 2, at(97));
        // The Service was created and deleted before its objects arrived.
        assert_eq!(names(attribution.take(Attribution::BEHIND, &known, at(102))), of_task(5));
        assert_eq!(names(attribution.take(Attribution::BEHIND, &known, at(151))), []);
        assert_eq!(
            names(attribution.take(Attribution::BEHIND, &known, at(152))),
            [(None, 7)],
            "another program's"
        );
        attribution.add(other, 1, at(152));
        assert_eq!(names(attribution.take(Duration::ZERO, &known, at(157))), [(None, 1)]);
        for port in 0..=u16::try_from(MAX_WAITING).unwrap() {
            attribution.add(counted(&format!("192.0.2.99:{port}")), 1, at(157));
        }
        assert_eq!(attribution.take(Attribution::BEHIND, &known, at(158)).len(), MAX_WAITING + 1, "too many");
    }
}
