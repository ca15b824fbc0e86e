//! A verdict: what happened to one flow, how sure we are, and what to do.
//!
//! The names of the fields are a promise (`viptrace schema`): they stay.

use std::{fmt, net::SocketAddr};

use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    class::{Class, Confidence, Domain, Safety, Severity},
    time::Timestamp,
};

/// The verdict on one flow. Absent facts are `null`, never left out.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Verdict {
    /// When the verdict was reached: RFC 3339, UTC.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// `ok`, `unknown`, or the class of the failure catalogue: `C…` a fault, `N…` a normal look-alike.
    pub class: Class,
    /// `domain — detail`.
    pub root_cause: String,
    pub domain: Domain,
    pub confidence: Confidence,
    pub severity: Severity,
    /// The Service port that the flow was meant for; `null` where it was sent to a Pod directly.
    pub service: Option<ServiceRef>,
    pub flow: FlowRef,
    /// What was seen that speaks for the verdict, in the order of time.
    pub evidence: Vec<Evidence>,
    /// What speaks against it, or could explain it another way.
    pub against: Vec<Evidence>,
    /// What could not be observed and would have told more.
    pub unseen: Vec<String>,
    /// Events lost by the tracer while this flow was being watched; above 0 no flow is called healthy.
    pub lost_events: u64,
    /// `iptables`, `nftables`, `ipvs`; `null` where it could not be found out.
    pub kube_proxy_mode: Option<String>,
    pub kube_proxy_version: Option<String>,
    /// Seconds since the API server was last heard from, or the age of the object files; `null` without metadata.
    pub metadata_age: Option<f64>,
    pub mitigation: Mitigation,
    /// Where this class is described: the catalogue's class and upstream issues.
    pub cross_reference: Vec<String>,
}

/// What a verdict is counted by; all that is kept of it for a flow that may be judged again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    pub class: Class,
    pub service: Option<ServiceRef>,
}

impl Verdict {
    pub fn told(&self) -> Told {
        Told { class: self.class, service: self.service.clone() }
    }

    /// Whether a person has to act: the flow failed for a reason that is not normal.
    pub fn is_fault(&self) -> bool {
        self.class.is_fault()
    }

    /// Whether the flow broke and no rule explains it.
    pub fn is_unexplained(&self) -> bool {
        self.class == Class::Unknown
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
pub struct ServiceRef {
    pub namespace: String,
    pub name: String,
    /// The Service port's name, or its number where it has none; the number asked for where it is no port of the Service.
    pub port: String,
}

impl fmt::Display for ServiceRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.name, self.port)
    }
}

/// The flow that was judged. Addresses are `ip:port`, IPv6 in brackets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FlowRef {
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    #[schemars(with = "String")]
    pub client: SocketAddr,
    /// The address that the client asked for; `null` where it went to the endpoint directly.
    #[schemars(with = "Option<String>")]
    pub vip: Option<SocketAddr>,
    /// The endpoint that NAT chose (or that was asked for directly); `null` where none was chosen.
    #[schemars(with = "Option<String>")]
    pub endpoint: Option<SocketAddr>,
    /// `namespace/name`; `null` for a client outside the cluster or not known.
    pub client_pod: Option<String>,
    pub endpoint_pod: Option<String>,
    /// The node that viptrace ran on.
    pub node: Option<String>,
    /// When the flow was first seen.
    #[schemars(with = "String")]
    pub started: Timestamp,
}

/// One piece of evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evidence {
    /// Where it comes from: `kernel`, `api`, `node`.
    pub r#type: EvidenceType,
    #[schemars(with = "Option<String>")]
    pub time: Option<Timestamp>,
    pub content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceType {
    /// Seen by a kernel hook.
    Kernel,
    /// Said by the Kubernetes API.
    Api,
    /// Read from the node: rules, counters, kube-proxy.
    Node,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Mitigation {
    /// What to do now; empty where nothing is broken.
    pub immediate: String,
    /// What keeps it from coming back.
    pub long_term: String,
    pub safety: Safety,
}
