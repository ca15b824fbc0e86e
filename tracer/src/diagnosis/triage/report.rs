//! The output of a check: a report with ranked findings. The names of the fields are a promise (`viptrace schema
//! check`).

use std::{borrow::Cow, collections::BTreeMap};

use schemars::JsonSchema;
use serde::Serialize;

use super::{compare::Difference, procedures::Procedure};
use crate::{
    class::{Class, Confidence, Domain, Severity},
    diagnosis::finding::{Finding, Level, Statement, Step},
    time::Timestamp,
    verdict::{Evidence, Mitigation, ServiceRef, Text},
};

/// One check of one node.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CheckReport {
    /// The time of the check: RFC 3339, UTC. 1970 if a folder does not contain it.
    #[schemars(with = "String")]
    pub time: Timestamp,
    /// The node's name in Kubernetes; `null` if unknown.
    pub node: Option<String>,
    /// `iptables`, `nftables`, `ipvs`; `null` if unknown.
    pub kube_proxy_mode: Option<String>,
    pub kube_proxy_version: Option<String>,
    /// The Service to which the check was limited, `namespace/name`.
    pub service: Option<String>,
    pub state: State,
    /// One line: whether something is broken, and what.
    pub summary: String,
    /// The most important first.
    pub findings: Vec<FindingRecord>,
    /// The runbooks' procedures, each with its steps.
    pub procedures: Vec<Procedure>,
    /// The facts that could not be checked, with the reasons.
    pub gaps: Vec<String>,
    /// The differences from the check that this one was compared with; empty without `--compare`.
    pub differences: Vec<Difference>,
    /// The node's facts as single values by name, which `--compare` compares.
    pub facts: BTreeMap<String, String>,
}

impl CheckReport {
    /// Whether there is no fault, and a warning of connections that may fail now.
    pub fn is_possibly_broken(&self) -> bool {
        self.state == State::Warnings && self.findings.iter().any(FindingRecord::is_possible_fault)
    }
}

/// The state of the node, as far as it was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// At least one fault.
    Broken,
    /// No fault, at least one warning.
    Warnings,
    /// The Services, their endpoints and the node's rules were checked, and there is no fault.
    Healthy,
    /// No fault was found, but a fact without which nothing can be called healthy could not be checked.
    Unknown,
}

impl State {
    /// As records have it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Broken => "broken",
            Self::Warnings => "warnings",
            Self::Healthy => "healthy",
            Self::Unknown => "unknown",
        }
    }
}

/// One fault or risk.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Finding")]
pub struct FindingRecord {
    /// The class of the failure catalogue (`C20`), or the check that found it if the catalogue has no class (`K10`).
    pub class: Class,
    pub level: Level,
    pub step: Step,
    pub domain: Domain,
    pub severity: Severity,
    pub confidence: Confidence,
    /// `domain — detail`.
    pub root_cause: Text,
    /// The affected Service port; `null` if the whole node or the cluster is affected. A port `*` means all ports.
    pub service: Option<ServiceRef>,
    /// The time since when it is known to exist.
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// Evidence for the finding.
    pub evidence: Vec<Evidence>,
    /// Evidence against it, or for another explanation.
    pub against: Vec<Evidence>,
    /// Facts that could not be observed and would decide.
    pub unseen: Vec<Text>,
    pub mitigation: Mitigation,
    /// References for this class: the catalogue's class and upstream issues.
    pub cross_reference: Vec<Text>,
}

impl FindingRecord {
    /// Whether connections may fail now, and only the proof is missing.
    pub(crate) fn is_possible_fault(&self) -> bool {
        self.level == Level::Warning && self.severity >= Severity::High
    }

    /// The record of a finding on the node of this name, made by a check of this step.
    pub(crate) fn of(finding: Finding, node: Option<&str>) -> Self {
        let service = finding.said().service.as_ref();
        let mitigation = finding.mitigation(|name| match name {
            "NODE" => node.map(Cow::Borrowed),
            "NAMESPACE" => service.map(|service| Cow::Borrowed(&*service.namespace)),
            "SERVICE" => service.map(|service| Cow::Borrowed(&*service.name)),
            _ => None,
        });
        let (root_cause, cross_reference) = (finding.root_cause(), finding.cross_reference());
        let Finding { class, level, step, domain, severity, confidence, .. } = finding;
        let Statement { service, since, evidence, against, unobserved, .. } = finding.into_said();
        Self {
            class,
            level,
            step: step.unwrap_or(Step::Path),
            domain,
            severity,
            confidence,
            root_cause,
            mitigation,
            cross_reference,
            service,
            since,
            evidence,
            against,
            unseen: unobserved,
        }
    }
}
