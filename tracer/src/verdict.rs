//! A verdict: the result of one flow, its confidence, and the actions.
//!
//! The names of the fields are a promise (`viptrace schema`): they stay.

#[cfg(test)]
pub(crate) mod fixture;

use std::{borrow::Cow, fmt, net::SocketAddr, sync::Arc};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    class::{Class, Confidence, Domain, Safety, Severity},
    time::Timestamp,
};

/// A text of a record. Most are fixed sentences, which no verdict copies.
pub type Text = Cow<'static, str>;

/// The verdict on one flow. Absent facts are `null`, never left out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The time of the verdict: RFC 3339, UTC.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// `ok`, `unknown`, or the class of the failure catalogue: `C…` a fault, `N…` a normal look-alike.
    pub class: Class,
    /// `domain — detail`.
    pub root_cause: Text,
    pub domain: Domain,
    pub confidence: Confidence,
    /// `none` of an `unknown` flow: it looks healthy, and events were lost while it was watched.
    pub severity: Severity,
    /// The Service port of the flow; `null` if it went to a Pod directly.
    pub service: Option<ServiceRef>,
    pub flow: FlowRef,
    /// Evidence for the verdict, in the order of time.
    pub evidence: Vec<Evidence>,
    /// Evidence against it, or for another explanation.
    pub against: Vec<Evidence>,
    /// Facts that could not be observed and would have shown more.
    pub unseen: Vec<Text>,
    /// Changes in the API, of kube-proxy and on the node around the time of a failed flow: at most five, the nearest first.
    /// They are a correlation in time and no evidence: neither the class nor the confidence depends on them. Empty if the
    /// flow did not fail.
    pub changes_around: Vec<NearbyChange>,
    /// The number of further changes in that time, which the list leaves out.
    pub changes_left_out: u64,
    /// Events that the tracer lost while it watched this flow; above 0 no flow is called healthy.
    pub lost_events: u64,
    /// `iptables`, `nftables`, `ipvs`; `null` if unknown.
    pub kube_proxy_mode: Option<Text>,
    pub kube_proxy_version: Option<String>,
    /// Seconds since the API server last sent data, or the age of the object files; `null` without metadata.
    pub metadata_age: Option<f64>,
    pub mitigation: Mitigation,
    /// References for this class: the catalogue's class and upstream issues.
    pub cross_reference: Vec<Text>,
}

/// The part of a verdict by which flows are counted, which is kept for a flow that may be judged again.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VerdictKey {
    pub class: Class,
    /// [`Verdict::has_failed`]: flows of the class `unknown` may look healthy.
    pub has_failed: bool,
    pub service: Option<ServiceRef>,
    pub endpoint: Option<SocketAddr>,
}

impl Verdict {
    pub fn key(&self) -> VerdictKey {
        VerdictKey {
            class: self.class,
            has_failed: self.has_failed(),
            service: self.service.clone(),
            endpoint: self.flow.endpoint,
        }
    }

    /// Brings every time in it to another clock.
    pub(crate) fn map_times(&mut self, to: impl Fn(Timestamp) -> Timestamp) {
        self.time = to(self.time);
        self.flow.started = to(self.flow.started);
        for piece in self.evidence.iter_mut().chain(&mut self.against) {
            piece.time = piece.time.map(&to);
        }
        for change in &mut self.changes_around {
            change.time = to(change.time);
            change.after = change.after.map(&to);
        }
    }

    /// Whether a person has to act: the flow failed for a reason that is not normal.
    pub fn is_fault(&self) -> bool {
        self.class.is_fault()
    }

    /// Whether the flow broke and no rule explains it.
    pub fn is_unexplained(&self) -> bool {
        is_unexplained(self.class, self.severity)
    }

    /// Whether the flow looks healthy, but events were lost while it was watched, so that it is not called so.
    pub fn is_healthy_near_a_loss(&self) -> bool {
        self.class == Class::Unknown && self.severity == Severity::None
    }

    /// Whether the flow is a fault or broke without an explanation.
    pub(crate) fn has_failed(&self) -> bool {
        has_failed(self.class, self.severity)
    }
}

/// Whether a flow of this class and severity is a fault or broke without an explanation.
pub(crate) fn has_failed(class: Class, severity: Severity) -> bool {
    class.is_fault() || is_unexplained(class, severity)
}

fn is_unexplained(class: Class, severity: Severity) -> bool {
    class == Class::Unknown && severity != Severity::None
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct ServiceRef {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// The Service port's name, or its number if it has none; for a port that the Service lacks, the flow's port
    /// number.
    pub port: Arc<str>,
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

/// The judged flow. Addresses are `ip:port`, IPv6 in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FlowRef {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: Text,
    #[schemars(with = "String")]
    pub client: SocketAddr,
    /// The address that the client connected to; `null` if it is the endpoint's own.
    #[schemars(with = "Option<String>")]
    pub vip: Option<SocketAddr>,
    /// The endpoint that NAT chose (or that the client connected to directly); `null` if none was chosen.
    #[schemars(with = "Option<String>")]
    pub endpoint: Option<SocketAddr>,
    /// `namespace/name`; `null` for a client outside the cluster or an unknown one.
    pub client_pod: Option<String>,
    pub endpoint_pod: Option<String>,
    /// The node on which viptrace ran.
    pub node: Option<String>,
    /// The time of the first sighting.
    #[schemars(with = "String")]
    pub started: Timestamp,
}

impl FlowRef {
    /// The client's Pod, or its address without the port.
    pub(crate) fn client_name(&self) -> String {
        self.client_pod.clone().unwrap_or_else(|| self.client.ip().to_string())
    }
}

/// One piece of evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Its origin: `kernel`, `api`, `node`.
    pub r#type: EvidenceType,
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
    pub content: Text,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceType {
    /// Observed by a kernel hook.
    Kernel,
    /// Reported by the Kubernetes API.
    Api,
    /// Read from the node: rules, counters, kube-proxy.
    Node,
}

/// A change near the time of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NearbyChange {
    /// The time of the change; if `after` is not `null`, the time at which viptrace noticed it.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// For a change between two readings of the node, the time of the earlier one; for one in a gap of the API's watch, the
    /// time at which the watch last worked. The change happened between `after` and `time`. `null` if the time is known.
    #[schemars(with = "Option<String>")]
    pub after: Option<Timestamp>,
    /// Seconds from `time` to the flow's first event; negative if the change came later.
    pub seconds_before: f64,
    pub kind: ChangeKind,
    /// `Service NAMESPACE/NAME`, `Pod NAMESPACE/NAME`, `Node NAME`, `this node`, `kube-proxy`, `API server`, `viptrace`.
    pub subject: Text,
    /// The change in one sentence.
    pub text: Text,
    /// The `resourceVersion` of the API object after the change; `null` if it was deleted, and for changes of the node.
    #[serde(default)]
    pub resource_version: Option<u64>,
}

/// What changed. The values are a promise; later versions can add further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    ServiceCreated,
    ServiceDeleted,
    /// A Service's addresses, ports, selector or policies.
    ServiceChanged,
    EndpointAdded,
    EndpointRemoved,
    /// The conditions of an endpoint, or the ports of its `EndpointSlice`.
    EndpointChanged,
    /// The deletion of a Pod was requested, or the Pod is gone without a request.
    PodDeleted,
    /// A container of a Pod restarted, or a new Pod has the name of the old one.
    PodRestarted,
    /// A Pod was evicted, or all its containers ended and one of them failed.
    PodFailed,
    NodeAdded,
    NodeRemoved,
    /// A Node's conditions or addresses, or whether it takes new Pods.
    NodeChanged,
    /// Another version of kube-proxy or of the kubelet.
    Upgraded,
    /// viptrace lost its watch of the API server.
    ApiLost,
    ApiBack,
    KubeProxyStarted,
    KubeProxyStopped,
    /// kube-proxy failed to write its rules, was late, or wrote them again.
    KubeProxySync,
    /// kube-proxy's mode or a setting of it.
    KubeProxyConfig,
    /// None of kube-proxy's rules is in the kernel, or packets do not reach them.
    RulesRemoved,
    RulesBack,
    /// The conntrack table is nearly full, or no longer is.
    Conntrack,
    /// A setting of the kernel or of an interface.
    Sysctl,
    /// A hook of viptrace is lost: flows are observed with a gap since then.
    HookLost,
    HookAttached,
    ClockStepped,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mitigation {
    /// The actions for now; empty if nothing is broken.
    pub immediate: Text,
    /// The actions that prevent a recurrence.
    pub long_term: Text,
    /// The highest risk of `steps`.
    pub safety: Safety,
    /// The actions of `immediate`, one by one; empty in records of an older viptrace.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// One of the actions for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "MitigationStep")]
pub struct Step {
    /// Commands that a shell runs as printed are between backticks.
    pub text: Text,
    pub safety: Safety,
}
