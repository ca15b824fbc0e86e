//! The five procedures of the runbooks (K20), step by step: each check and its result.
//!
//! Owns their order and the mapping of findings to steps; other files make the findings.

use schemars::JsonSchema;
use serde::Serialize;

use super::{Facts, Finding, Level, Step};
use crate::{
    class::Class,
    cluster::model::{Service, ServiceType, TrafficPolicy},
    node::{Presence, ProxyMode},
};

/// One procedure and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Procedure {
    /// `clusterip-unreachable`, `nodeport-unreachable`, `sync-slow`, `source-ip-lost`, `conntrack-exhausted`.
    pub name: &'static str,
    /// The worst result of its steps.
    pub result: Outcome,
    pub steps: Vec<Check>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Check {
    /// The checked condition.
    pub check: &'static str,
    pub result: Outcome,
    /// The finding, or why the condition could not be checked.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Passed,
    /// It could not be checked.
    Unknown,
    /// It may be the cause.
    Suspicious,
    Failed,
}

/// Runs all five.
pub(super) fn run(facts: &Facts, findings: &[Finding]) -> Vec<Procedure> {
    let book = Book { facts, findings };
    let knows = facts.services().is_some();
    let rules = facts.node.proxy_rules.any() != Presence::Unknown;
    let sysctls = facts.node.sysctls.is_some();
    let proxy = facts.node.reported_mode.is_some()
        || facts.node.metrics.is_some()
        || facts.node.process.is_some()
        || facts.node.log.is_some();
    let common = |first: Vec<Check>| {
        let mut steps = first;
        steps.push(book.step("kube-proxy runs and reads the API", proxy, |finding| {
            finding.step == Some(Step::KubeProxy)
        }));
        steps.push(book.step("the rules exist and are of one mode and backend", rules, |finding| {
            finding.step == Some(Step::Rules)
        }));
        steps.push(book.step("conntrack has room", facts.node.conntrack.is_some() || sysctls, |finding| {
            finding.step == Some(Step::Conntrack)
        }));
        steps
    };

    let mut cluster_ip = common(vec![book.step("the Service has endpoints", knows, |finding| {
        matches!(finding.class, Class::C20 | Class::C22)
    })]);
    cluster_ip.push(book.step("the kernel forwards and bridges through the rules", sysctls, |finding| {
        finding.step == Some(Step::Path) && finding.class != Class::C26
    }));

    let mut node_port = common(vec![
        book.step("the Service has endpoints", knows, |finding| finding.class == Class::C20),
        book.step("a Local policy has a local endpoint", knows && facts.known_node().is_some(), |finding| {
            finding.class == Class::C21
        }),
        book.step("nodePortAddresses admits this node", facts.node.config.is_some(), |finding| {
            finding.class == Class::C26
        }),
    ]);
    node_port.push(
        book.step("the kernel forwards packets from outside", sysctls, |finding| finding.class == Class::C32),
    );

    let metrics = facts.node.metrics.is_some();
    let slow = vec![
        book.step("no update waits to be written", metrics, |finding| finding.class == Class::C4),
        book.step("kube-proxy writes soon after a change", metrics, |finding| finding.class == Class::C5),
        book.step(
            "no other program holds the lock or changes the rules",
            facts.node.log.is_some() || metrics,
            |finding| matches!(finding.class, Class::C3 | Class::C4),
        ),
        book.scale(),
    ];

    let exhausted = vec![
        book.step("the table has room", sysctls || facts.node.conntrack.is_some(), |finding| {
            finding.class == Class::C16
        }),
        book.step("entries are inserted without loss", facts.node.conntrack_later.is_some(), |finding| {
            finding.class == Class::C17
        }),
        book.timeouts(),
    ];

    let procedures = [
        ("clusterip-unreachable", cluster_ip),
        ("nodeport-unreachable", node_port),
        ("sync-slow", slow),
        ("source-ip-lost", book.source_ip()),
        ("conntrack-exhausted", exhausted),
    ];
    let worst = |steps: &[Check]| steps.iter().map(|step| step.result).max().unwrap_or(Outcome::Unknown);
    procedures.into_iter().map(|(name, steps)| Procedure { name, result: worst(&steps), steps }).collect()
}

struct Book<'a> {
    facts: &'a Facts,
    findings: &'a [Finding],
}

impl Book<'_> {
    /// A step whose result comes from the findings.
    fn step(&self, check: &'static str, could: bool, is_its: impl Fn(&Finding) -> bool) -> Check {
        let mut found: Vec<&Finding> =
            self.findings.iter().filter(|finding| finding.level != Level::Note && is_its(finding)).collect();
        found.sort_by_key(|finding| finding.level);
        let result = match found.first().map(|finding| finding.level) {
            Some(Level::Fault) => Outcome::Failed,
            Some(_) => Outcome::Suspicious,
            None if could => Outcome::Passed,
            None => Outcome::Unknown,
        };
        let detail = match (found.as_slice(), result) {
            ([], Outcome::Passed) => "nothing found".to_owned(),
            ([], _) => "could not be checked: see the gaps".to_owned(),
            ([only], _) => format!("{} {}", only.class, only.root_cause()),
            ([first, rest @ ..], _) => {
                format!("{} {}; and {} more", first.class, first.root_cause(), rest.len())
            }
        };
        Check { check, result, detail }
    }

    /// iptables mode gets slower with the number of Services.
    fn scale(&self) -> Check {
        let check = "the mode fits the number of Services";
        let Some(history) = self.facts.services() else {
            return Check { check, result: Outcome::Unknown, detail: "the Services are unknown".to_owned() };
        };
        let ports: usize =
            history.services().filter(|service| !service.headless).map(|service| service.ports.len()).sum();
        let mode = self.facts.node.mode;
        let detail =
            format!("{ports} Service ports in {} mode", mode.map_or("an unknown", ProxyMode::as_str));
        match mode {
            Some(ProxyMode::Iptables) if ports > 1000 => Check {
                check,
                result: Outcome::Suspicious,
                detail: format!("{detail}: nftables mode writes only changes"),
            },
            Some(_) => Check { check, result: Outcome::Passed, detail },
            None => Check { check, result: Outcome::Unknown, detail },
        }
    }

    fn timeouts(&self) -> Check {
        let check = "established entries do not stay for days";
        let path = "net/netfilter/nf_conntrack_tcp_timeout_established";
        match self.facts.node.sysctls.as_ref().and_then(|sysctls| sysctls.number(path)) {
            // kube-proxy's default is 24 h, the kernel's 5 days.
            Some(seconds) if seconds > 86_400 => Check {
                check,
                result: Outcome::Suspicious,
                detail: format!(
                    "nf_conntrack_tcp_timeout_established is {seconds} s; kube-proxy's default is 86400 s"
                ),
            },
            Some(seconds) => Check { check, result: Outcome::Passed, detail: format!("{seconds} s") },
            None => Check { check, result: Outcome::Unknown, detail: "the timeout was not read".to_owned() },
        }
    }

    /// The configurations that hide the client's address on purpose.
    fn source_ip(&self) -> Vec<Check> {
        let mut steps = Vec::new();
        let masquerade_all =
            self.facts.node.config.as_ref().map(|config| config.masquerade_all.unwrap_or(false));
        steps.push(match masquerade_all {
            Some(true) => Check {
                check: "masqueradeAll is off",
                result: Outcome::Failed,
                detail: "masqueradeAll: true: every connection to a Service gets this node's address"
                    .to_owned(),
            },
            Some(false) => Check {
                check: "masqueradeAll is off",
                result: Outcome::Passed,
                detail: "it is off".to_owned(),
            },
            None => Check {
                check: "masqueradeAll is off",
                result: Outcome::Unknown,
                detail: "kube-proxy's configuration is unknown".to_owned(),
            },
        });
        let check = "Services with traffic from outside keep its source";
        let Some(history) = self.facts.services() else {
            steps.push(Check {
                check,
                result: Outcome::Unknown,
                detail: "the Services are unknown".to_owned(),
            });
            return steps;
        };
        let outside = |service: &Service| {
            matches!(service.r#type, ServiceType::NodePort | ServiceType::LoadBalancer)
                || !service.external_ips.is_empty()
        };
        let losing: Vec<String> = history
            .services()
            .filter(|service| outside(service) && service.external_traffic_policy == TrafficPolicy::Cluster)
            .map(|service| service.key.to_string())
            .collect();
        let shown = losing.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        steps.push(if losing.is_empty() {
            Check { check, result: Outcome::Passed, detail: "none has externalTrafficPolicy: Cluster".to_owned() }
        } else {
            Check {
                check,
                result: Outcome::Suspicious,
                detail: format!(
                    "{} with externalTrafficPolicy: Cluster are masqueraded by design: {shown}; Local keeps the source",
                    losing.len()
                ),
            }
        });
        steps.push(self.step(
            "a Local policy has endpoints where the traffic arrives",
            self.facts.known_node().is_some(),
            |finding| finding.class == Class::C21,
        ));
        steps
    }
}
