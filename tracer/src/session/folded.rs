//! Flows that are counted under the verdict of another one.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    cluster::{self, History},
    diagnosis,
    flow::Flow,
    time::Timestamp,
    verdict::Verdict,
};

/// Flows that share an earlier verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Folded {
    /// The verdict on a flow that was returned as [`Judged`](super::Judged). Theirs differs in the client, the times and
    /// the facts that follow from these. Of flows that failed, class, Service, endpoint, confidence and severity are equal.
    pub verdict: Arc<Verdict>,
    /// The number of flows; at least one.
    pub count: u64,
    /// Of the flows whose connect time is known, in no particular order.
    pub connect_times: Vec<Duration>,
    /// The earliest and the latest time that one of their verdicts would have. Flows are not judged in that order.
    #[serde(default = "unknown")]
    pub first: Timestamp,
    pub last: Timestamp,
    pub clients: Clients,
}

/// The earliest time in a message of an older viptrace: none.
const fn unknown() -> Timestamp {
    Timestamp::MAX
}

/// The clients of the flows that share a verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Clients {
    /// The first of them and its Pod, as in [`FlowRef::client_pod`](crate::verdict::FlowRef::client_pod).
    pub address: SocketAddr,
    pub pod: Option<Arc<str>>,
    /// All have this address and port.
    pub one_address: bool,
    /// All have this address, with whatever port. An older viptrace does not say so.
    #[serde(default = "yes")]
    pub one_ip: bool,
    /// All belong to this Pod, or none to any.
    pub one_pod: bool,
}

const fn yes() -> bool {
    true
}

impl Clients {
    /// Those of a verdict's own flow.
    pub(super) fn of(verdict: &Verdict) -> Self {
        Self {
            address: verdict.flow.client,
            pod: verdict.flow.client_pod.as_deref().map(Arc::from),
            one_address: true,
            one_ip: true,
            one_pod: true,
        }
    }

    /// Whether they are one Pod, or one address outside of the Pods.
    pub(crate) fn is_one(&self) -> bool {
        self.one_pod && (self.pod.is_some() || self.one_ip)
    }
}

/// Counts the flows that share a verdict.
#[derive(Debug)]
pub(super) struct Tally {
    verdict: Arc<Verdict>,
    clients: Clients,
    /// The client's Pod holds its address in this generation of the Pods, for flows that began later than that.
    pods: cluster::Settled,
    count: u64,
    connect_times: Vec<Duration>,
    first: Timestamp,
    last: Timestamp,
}

impl Tally {
    pub(super) fn new(verdict: Arc<Verdict>) -> Self {
        Self {
            clients: Clients::of(&verdict),
            verdict,
            pods: cluster::Settled::default(),
            count: 0,
            connect_times: Vec::new(),
            first: Timestamp::MAX,
            last: Timestamp::MIN,
        }
    }

    /// Counts a flow; true if it is the first since the last [`Self::take`].
    pub(super) fn add(&mut self, flow: &Flow, history: &History) -> bool {
        self.count += 1;
        let time = diagnosis::verdict_time(flow);
        (self.first, self.last) = (self.first.min(time), self.last.max(time));
        self.connect_times.extend(flow.connect_time());
        self.note_client(flow, history);
        self.count == 1
    }

    fn note_client(&mut self, flow: &Flow, history: &History) {
        let client = flow.orig.src.socket();
        self.clients.one_address &= client == self.clients.address;
        let same_ip = client.ip() == self.clients.address.ip();
        self.clients.one_ip &= same_ip;
        if !self.clients.one_pod {
            return;
        }
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

    /// The flows counted since the last call.
    pub(super) fn take(&mut self) -> Option<Folded> {
        let count = std::mem::take(&mut self.count);
        (count > 0).then(|| Folded {
            verdict: Arc::clone(&self.verdict),
            count,
            connect_times: std::mem::take(&mut self.connect_times),
            first: std::mem::replace(&mut self.first, Timestamp::MAX),
            last: std::mem::take(&mut self.last),
            clients: self.clients.clone(),
        })
    }
}
