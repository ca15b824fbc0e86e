//! A check against another node's saved one (K12).
//!
//! Owns what is compared: the facts by name, and the findings by class and Service.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CheckReport;

/// One thing that the two checks say differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Difference {
    pub what: String,
    /// What this check says; `null` where it says nothing.
    pub here: Option<String>,
    /// What the other one says.
    pub there: Option<String>,
}

/// What is read of a saved check. Fields that are not compared are passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Saved {
    #[serde(default)]
    pub node: Option<String>,
    pub state: String,
    #[serde(default)]
    findings: Vec<SavedFinding>,
    #[serde(default)]
    facts: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct SavedFinding {
    class: String,
    level: String,
    root_cause: String,
    #[serde(default)]
    service: Option<SavedService>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
struct SavedService {
    namespace: String,
    name: String,
}

impl Saved {
    /// Parses the JSON that `viptrace check --save` or `-o json` wrote.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// What an absence means is not the same everywhere: a fact that only one side has was not read on the other.
pub fn differences(report: &CheckReport, saved: &Saved) -> Vec<Difference> {
    let mut found = Vec::new();
    let key = |class: &str, service: Option<String>| {
        format!("{class}{}", service.map(|name| format!(" {name}")).unwrap_or_default())
    };
    let here: BTreeMap<String, &str> = report
        .findings
        .iter()
        .filter(|finding| finding.level != super::Level::Note)
        .map(|finding| {
            let service =
                finding.service.as_ref().map(|service| format!("{}/{}", service.namespace, service.name));
            (key(&finding.class, service), finding.root_cause.as_str())
        })
        .collect();
    let there: BTreeMap<String, &str> = saved
        .findings
        .iter()
        .filter(|finding| finding.level != "note")
        .map(|finding| {
            let service =
                finding.service.as_ref().map(|service| format!("{}/{}", service.namespace, service.name));
            (key(&finding.class, service), finding.root_cause.as_str())
        })
        .collect();
    for name in here.keys().chain(there.keys()).collect::<BTreeSet<_>>() {
        // The words may differ (counts, ages); that both have it is what matters.
        if here.contains_key(name) != there.contains_key(name) {
            found.push(Difference {
                what: format!("finding {name}"),
                here: here.get(name).map(|text| (*text).to_owned()),
                there: there.get(name).map(|text| (*text).to_owned()),
            });
        }
    }
    for name in report.facts.keys().chain(saved.facts.keys()).collect::<BTreeSet<_>>() {
        let (here, there) = (report.facts.get(name), saved.facts.get(name));
        if here != there {
            found.push(Difference { what: name.clone(), here: here.cloned(), there: there.cloned() });
        }
    }
    found
}
