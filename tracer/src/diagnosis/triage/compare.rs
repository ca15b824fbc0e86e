//! Compares a check with a saved one of another node (K12).
//!
//! Owns the compared values: the facts by name, and the findings by class and Service.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::CheckReport;

/// One difference between the two checks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Difference {
    pub what: String,
    /// The value in this check; `null` if it is absent.
    pub here: Option<String>,
    /// The value in the other check.
    pub there: Option<String>,
}

/// The fields that viptrace reads from a saved check. It ignores other fields.
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
    /// Parses the JSON of `viptrace check --save` or `-o json`.
    pub fn parse(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

/// A fact that only one side has was not read on the other; this is not a difference.
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
            (key(finding.class.id(), service), &*finding.root_cause)
        })
        .collect();
    let there: BTreeMap<String, &str> = saved
        .findings
        .iter()
        .filter(|finding| finding.level != "note")
        .map(|finding| {
            let service =
                finding.service.as_ref().map(|service| format!("{}/{}", service.namespace, service.name));
            (key(&finding.class, service), &*finding.root_cause)
        })
        .collect();
    for name in here.keys().chain(there.keys()).collect::<BTreeSet<_>>() {
        // The texts may differ (counts, ages); only the presence of the finding counts.
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

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, collection::vec, option, prelude::*, sample::select};

    use super::*;
    use crate::{
        class::Class,
        cluster::Key,
        diagnosis::{
            finding::Finding,
            triage::{Facts, FindingRecord, Level, Scope, triage},
        },
    };

    fn finding() -> impl Strategy<Value = FindingRecord> {
        let levels = vec![Level::Fault, Level::Warning, Level::Note];
        let service = option::of(("[a-z]{1,3}", "[a-z]{1,3}", any::<String>()));
        (select(Class::ALL), select(levels), any::<String>(), service).prop_map(
            |(class, level, detail, service)| {
                let found = Finding::new(class, detail).level(level);
                let found = match service {
                    Some((namespace, name, port)) => found.service(&Key::new(&namespace, &name), &port),
                    None => found,
                };
                FindingRecord::of(found, None)
            },
        )
    }

    fn report(findings: Vec<FindingRecord>, facts: BTreeMap<String, String>) -> CheckReport {
        CheckReport { findings, facts, ..triage(&Facts::default(), &Scope::default()) }
    }

    proptest! {
        #[test]
        fn a_saved_check_equals_itself_and_differs_from_another(
            findings in vec(finding(), 0..6),
            facts in btree_map(any::<String>(), any::<String>(), 0..6),
            (name, value) in (any::<String>(), any::<String>()),
        ) {
            let mut report = report(findings, facts);
            let saved = Saved::parse(&serde_json::to_string(&report).unwrap()).unwrap();
            prop_assert_eq!(&saved.facts, &report.facts);
            prop_assert_eq!(saved.findings.len(), report.findings.len());
            prop_assert_eq!(differences(&report, &saved), []);
            if report.facts.insert(name.clone(), value.clone()).as_ref() != Some(&value) {
                let there = saved.facts.get(&name).cloned();
                prop_assert_eq!(differences(&report, &saved), [Difference { what: name, here: Some(value), there }]);
            }
        }

        #[test]
        fn any_text_is_a_saved_check_or_an_error(text in "(\\{|\\}|\\[|\\]|\"(node|state|findings|facts|class|level|service)\":|\"[a-z]{0,3}\"|,|null|7){0,30}") {
            if let Ok(saved) = Saved::parse(&text) {
                let _ = differences(&report(Vec::new(), BTreeMap::new()), &saved);
            }
        }
    }
}
