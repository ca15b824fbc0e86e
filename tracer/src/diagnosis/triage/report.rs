//! What a check writes: a report with ranked findings. The names of the fields are a promise (`viptrace schema check`).

use std::{borrow::Cow, collections::BTreeMap};

use schemars::JsonSchema;
use serde::Serialize;

use super::{compare::Difference, procedures::Procedure};
use crate::{
    class::{Class, Confidence, Domain, Severity},
    diagnosis::finding::{Finding, Level, Step},
    time::Timestamp,
    verdict::{Evidence, Mitigation, ServiceRef},
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
    pub findings: Vec<FindingRecord>,
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

/// One thing that is wrong, or could be.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Finding")]
pub struct FindingRecord {
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

impl FindingRecord {
    /// The record of a finding on the node of this name, made by a check of this step.
    pub(super) fn of(finding: Finding, node: Option<&str>) -> Self {
        let service = finding.service.as_ref();
        let mitigation = finding.mitigation(|name| match name {
            "NODE" => node.map(Cow::Borrowed),
            "NAMESPACE" => service.map(|service| Cow::Borrowed(&*service.namespace)),
            "SERVICE" => service.map(|service| Cow::Borrowed(&*service.name)),
            _ => None,
        });
        Self {
            class: finding.class,
            level: finding.level,
            step: finding.step.unwrap_or(Step::Path),
            domain: finding.domain,
            severity: finding.severity,
            confidence: finding.confidence,
            root_cause: finding.root_cause(),
            mitigation,
            cross_reference: finding.cross_reference(),
            service: finding.service,
            since: finding.since,
            evidence: finding.evidence,
            against: finding.against,
        }
    }
}
