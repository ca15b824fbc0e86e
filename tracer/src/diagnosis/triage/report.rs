//! What a check writes: a report with ranked findings. The names of the fields are a promise (`viptrace schema check`).

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::{compare::Difference, procedures::Procedure};
use crate::{
    class::{Class, Confidence, Domain, Safety, Severity},
    cluster::Key,
    time::Timestamp,
    verdict::{Evidence, EvidenceType, Mitigation, ServiceRef},
};

/// One check of one node.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CheckReport {
    /// When the node was looked at: RFC 3339, UTC. 1970 where a folder does not say.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The node's name in Kubernetes; `null` where it could not be found out.
    pub node: Option<String>,
    /// `iptables`, `nftables`, `ipvs`; `null` where it could not be found out.
    pub kube_proxy_mode: Option<String>,
    pub kube_proxy_version: Option<String>,
    /// The Service that the check was narrowed to, `namespace/name`.
    pub service: Option<String>,
    pub state: State,
    /// One line: whether something is broken, and what.
    pub summary: String,
    /// The most important first.
    pub findings: Vec<Finding>,
    /// The runbooks' procedures, each with its steps.
    pub procedures: Vec<Procedure>,
    /// What could not be checked, and why.
    pub gaps: Vec<String>,
    /// What differs from the check that this one was compared with; empty without `--compare`.
    pub differences: Vec<Difference>,
    /// What the node says, as one value a name: what `--compare` compares.
    pub facts: BTreeMap<String, String>,
}

/// How the node is, as far as it was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// At least one fault.
    Broken,
    /// No fault, at least one warning.
    Warnings,
    /// The Services, their endpoints and the node's rules were checked, and nothing is wrong.
    Healthy,
    /// No fault was found, but something without which nothing can be called healthy could not be checked.
    Unknown,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Connections fail now, or changes are not followed.
    Fault,
    /// Connections can fail, or some do under a condition that was not seen.
    Warning,
    /// Worth knowing; nothing has to be done.
    Note,
}

/// The steps of the triage, in its order (K13).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    Endpoints,
    KubeProxy,
    Rules,
    Conntrack,
    Path,
}

/// One thing that is wrong, or could be.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Finding {
    /// The class of the failure catalogue (`C20`), or the check that found it where the catalogue has none (`K10`).
    pub class: Class,
    pub level: Level,
    pub step: Step,
    pub domain: Domain,
    pub severity: Severity,
    pub confidence: Confidence,
    /// `domain — detail`.
    pub root_cause: String,
    /// The Service port that is affected; `null` where the whole node is, or the cluster. A port `*` stands for all.
    pub service: Option<ServiceRef>,
    /// Since when, as far as it is known.
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// What speaks for it.
    pub evidence: Vec<Evidence>,
    /// What speaks against it, or could explain it another way.
    pub against: Vec<Evidence>,
    pub mitigation: Mitigation,
    /// Where this class is described: the catalogue's class and upstream issues.
    pub cross_reference: Vec<String>,
}

impl Finding {
    /// A finding of the given class: a fault of high confidence, unless said otherwise.
    pub(super) fn new(class: Class, step: Step, domain: Domain, severity: Severity, detail: &str) -> Self {
        Self {
            class,
            level: Level::Fault,
            step,
            domain,
            severity,
            confidence: Confidence::High,
            root_cause: format!("{domain} — {detail}"),
            service: None,
            since: None,
            evidence: Vec::new(),
            against: Vec::new(),
            mitigation: Mitigation {
                immediate: String::new(),
                long_term: String::new(),
                safety: Safety::ReadOnly,
            },
            cross_reference: vec![class.id().to_owned()],
        }
    }

    pub(super) fn level(mut self, level: Level) -> Self {
        self.level = level;
        self
    }

    pub(super) fn confidence(mut self, confidence: Confidence) -> Self {
        self.confidence = confidence;
        self
    }

    pub(super) fn service(mut self, key: &Key, port: &str) -> Self {
        self.service = Some(ServiceRef {
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
            port: port.to_owned(),
        });
        self
    }

    pub(super) fn since(mut self, since: Option<Timestamp>) -> Self {
        self.since = since.filter(|since| *since != Timestamp::MIN);
        self
    }

    pub(super) fn node(self, content: impl Into<String>) -> Self {
        self.saw(EvidenceType::Node, None, content.into())
    }

    pub(super) fn api(self, content: impl Into<String>) -> Self {
        self.saw(EvidenceType::Api, None, content.into())
    }

    pub(super) fn saw(mut self, r#type: EvidenceType, time: Option<Timestamp>, content: String) -> Self {
        self.evidence.push(Evidence { r#type, time, content });
        self
    }

    pub(super) fn but(mut self, r#type: EvidenceType, content: impl Into<String>) -> Self {
        self.against.push(Evidence { r#type, time: None, content: content.into() });
        self
    }

    /// What to do now, what keeps it away, and what the first can do to running traffic.
    pub(super) fn action(mut self, immediate: impl Into<String>, long_term: &str, safety: Safety) -> Self {
        self.mitigation = Mitigation { immediate: immediate.into(), long_term: long_term.to_owned(), safety };
        self
    }

    pub(super) fn refer(mut self, references: &[&str]) -> Self {
        self.cross_reference.extend(references.iter().map(|reference| (*reference).to_owned()));
        self
    }

    /// Whether it can explain a failure of this Service.
    pub(super) fn concerns(&self, key: &Key) -> bool {
        self.service
            .as_ref()
            .is_none_or(|service| *service.namespace == *key.namespace && *service.name == *key.name)
    }
}
