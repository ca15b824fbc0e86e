//! Healthy flows that are alike: judged once, counted from then on.
//!
//! Owns what makes two flows alike and until when that holds. A flow is folded only where the whole judgement, made
//! for an earlier flow to the same address that got the same endpoint, would be made again word for word: nothing
//! spoke against either flow ([`diagnosis::is_plain`]), the reasons do not depend on the moment
//! ([`diagnosis::Judgement::lasting`]), and the history gives the same answers about both flows' times, because what
//! they concern has not changed since before either began.

use std::{
    collections::HashMap,
    hash::{Hash, Hasher},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use foldhash::fast::RandomState;

use crate::{
    cluster::{self, History, Via},
    diagnosis::{self, Lasting},
    flow::{Flow, Outcome},
    net::Protocol,
    time::Timestamp,
    verdict::{Verdict, VerdictKey},
};

/// Verdicts kept to fold by; when there are more, all are forgotten and made anew as flows come.
const MAX_LIKES: usize = 4096;

/// Healthy flows that were not worth a verdict of their own.
#[derive(Clone, Debug)]
pub struct Folded {
    /// The verdict on one that was handed out as [`Judged`](super::Judged): on these it is the same, up to the client,
    /// the times and what follows from them.
    pub verdict: Arc<Verdict>,
    /// How many flows; at least one.
    pub count: u64,
    /// Of those of which it is known, in no particular order.
    pub connect_times: Vec<Duration>,
    /// The latest time that any of their verdicts would bear.
    pub last: Timestamp,
    pub clients: Clients,
}

/// The clients of the flows that share a verdict.
#[derive(Clone, Debug)]
pub struct Clients {
    /// The first of them and its Pod, as in [`FlowRef::client_pod`](crate::verdict::FlowRef::client_pod).
    pub address: SocketAddr,
    pub pod: Option<Arc<str>>,
    /// All have this address and port.
    pub one_address: bool,
    /// All belong to this Pod, or none to any.
    pub one_pod: bool,
}

/// What flows must have alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    asked: SocketAddr,
    endpoint: SocketAddr,
    protocol: Protocol,
    answered: bool,
}

impl Hash for Key {
    /// Few words for the keyed hash: this runs for every healthy flow.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let ports = u64::from(self.asked.port()) << 16 | u64::from(self.endpoint.port());
        state.write_u64(ports << 16 | u64::from(self.protocol.0) << 1 | u64::from(self.answered));
        for ip in [self.asked.ip(), self.endpoint.ip()] {
            match ip {
                IpAddr::V4(ip) => state.write_u64(u64::from(ip.to_bits())),
                IpAddr::V6(ip) => {
                    state.write_u64((ip.to_bits() >> 64) as u64);
                    state.write_u64(ip.to_bits() as u64);
                }
            }
        }
    }
}

impl Key {
    fn new(flow: &Flow, endpoint: SocketAddr) -> Self {
        Self {
            asked: flow.orig.dst,
            endpoint,
            protocol: flow.orig.protocol,
            answered: flow.outcome() != Outcome::Pending,
        }
    }
}

#[derive(Debug)]
struct Template {
    verdict: Arc<Verdict>,
    told: Arc<VerdictKey>,
    service: cluster::Key,
    is_cluster_ip: bool,
    /// Flows that began later are judged by the same versions of the same objects.
    since: Timestamp,
    /// The history's generation at which that was last checked.
    checked: u64,
    clients: Clients,
    /// The client's Pod holds its address in this generation of the Pods, for flows that began later than that.
    pods: cluster::Settled,
    count: u64,
    connect_times: Vec<Duration>,
    last: Timestamp,
}

/// What a folded flow's healthy like tells the pipeline.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) told: &'a Arc<VerdictKey>,
    pub(super) is_cluster_ip: bool,
}

/// The healthy flows to fold by, and those folded since they were last taken.
#[derive(Debug, Default)]
pub(super) struct HealthyFolds {
    known: HashMap<Key, Template, RandomState>,
    /// Those that have something to hand out.
    counted: Vec<Key>,
    /// Of those that are known no more.
    parted: Vec<Folded>,
}

impl HealthyFolds {
    /// Counts the flow if its like is known; it must be handed out for the first time.
    pub(super) fn fold(&mut self, flow: &Flow, endpoint: SocketAddr, history: &History) -> Option<Found<'_>> {
        if self.known.is_empty() || !diagnosis::is_plain(flow) {
            return None;
        }
        let key = Key::new(flow, endpoint);
        if !self.known.get_mut(&key)?.holds(history) {
            self.part(&key);
            return None;
        }
        let like = self.known.get_mut(&key)?;
        if flow.first_seen <= like.since {
            return None;
        }
        if like.count == 0 {
            self.counted.push(key);
        }
        like.count += 1;
        like.last = like.last.max(diagnosis::verdict_time(flow));
        like.connect_times.extend(flow.connect_time());
        like.note_client(flow, history);
        Some(Found { told: &like.told, is_cluster_ip: like.is_cluster_ip })
    }

    /// Keeps the verdict for the flows to come, if the history has not changed since the flow began.
    pub(super) fn keep(
        &mut self,
        flow: &Flow,
        Lasting { service, via }: Lasting,
        verdict: Arc<Verdict>,
        told: Arc<VerdictKey>,
        history: &History,
    ) {
        let Some(endpoint) = verdict.flow.endpoint else { return };
        let settled = history.settled(&service);
        if flow.first_seen <= settled.since {
            return;
        }
        let key = Key::new(flow, endpoint);
        if self.known.contains_key(&key) {
            self.part(&key);
        } else if self.known.len() >= MAX_LIKES {
            self.clear();
        }
        let clients = Clients {
            address: flow.orig.src,
            pod: verdict.flow.client_pod.as_deref().map(Arc::from),
            one_address: true,
            one_pod: true,
        };
        let like = Template {
            verdict,
            told,
            service,
            is_cluster_ip: via == Via::ClusterIp,
            since: settled.since,
            checked: history.generation(),
            clients,
            pods: cluster::Settled::default(),
            count: 0,
            connect_times: Vec::new(),
            last: Timestamp::MIN,
        };
        self.known.insert(key, like);
    }

    /// Forgets all verdicts, not the counts.
    pub(super) fn clear(&mut self) {
        for key in std::mem::take(&mut self.counted) {
            self.parted.extend(self.known.get_mut(&key).and_then(Template::take));
        }
        self.known.clear();
    }

    /// What was counted since the last time.
    pub(super) fn take(&mut self) -> Vec<Folded> {
        let mut taken = std::mem::take(&mut self.parted);
        for key in self.counted.drain(..) {
            taken.extend(self.known.get_mut(&key).and_then(Template::take));
        }
        taken
    }

    fn part(&mut self, key: &Key) {
        if let Some(mut like) = self.known.remove(key)
            && let Some(folded) = like.take()
        {
            self.parted.push(folded);
            self.counted.retain(|counted| counted != key);
        }
    }
}

impl Template {
    /// Whether the history still gives the answers that the verdict was reached with.
    fn holds(&mut self, history: &History) -> bool {
        let now = history.generation();
        if self.checked != now {
            if history.settled(&self.service).generation > self.checked {
                return false;
            }
            self.checked = now;
        }
        true
    }

    fn note_client(&mut self, flow: &Flow, history: &History) {
        let client = flow.orig.src;
        self.clients.one_address &= client == self.clients.address;
        if !self.clients.one_pod {
            return;
        }
        let same_ip = client.ip() == self.clients.address.ip();
        if same_ip
            && self.pods.generation == history.pods_settled().generation
            && self.pods.since < flow.first_seen
        {
            return;
        }
        let pod = diagnosis::client_pod(flow, history);
        self.clients.one_pod = pod.as_deref() == self.clients.pod.as_deref();
        if same_ip && self.clients.one_pod && history.pods_settled().since < flow.first_seen {
            self.pods = history.pods_settled();
        }
    }

    fn take(&mut self) -> Option<Folded> {
        let count = std::mem::take(&mut self.count);
        (count > 0).then(|| Folded {
            verdict: Arc::clone(&self.verdict),
            count,
            connect_times: std::mem::take(&mut self.connect_times),
            last: std::mem::take(&mut self.last),
            clients: self.clients.clone(),
        })
    }
}
