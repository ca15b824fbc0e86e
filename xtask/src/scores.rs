//! Causes and reports, counted: the rows of the scoreboard, from each source.
//!
//! It owns the counting and the file in which the guests' results wait for the scoreboard; it draws nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

use crate::event::Scenario;

/// Flows, or findings of a check, with the same cause and the same report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Score {
    pub(crate) verb: String,
    /// The class; `None`: the report has no cause.
    pub(crate) caused: Option<String>,
    /// The class; `None`: nothing was reported.
    pub(crate) found: Option<String>,
    pub(crate) count: u64,
}

/// The counts of a class from one source.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Row {
    pub(crate) class: String,
    /// `constructed`, `corpus` or `matrix`.
    pub(crate) source: String,
    /// `trace` or `check`.
    pub(crate) verb: String,
    pub(crate) mode: String,
    #[serde(default)]
    pub(crate) kernel: Option<String>,
    pub(crate) caused: u64,
    pub(crate) detected: u64,
    pub(crate) missed: u64,
    pub(crate) false_alarms: u64,
}

/// One class that was taken for another.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Confused {
    /// `nothing` where the report has no cause.
    pub(crate) caused: String,
    /// `nothing` where nothing was reported.
    pub(crate) found: String,
    pub(crate) count: u64,
    /// The case or scenario.
    pub(crate) case: String,
}

/// A rule that was removed, and what was missed without it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Mutation {
    pub(crate) rule: String,
    pub(crate) missed: Vec<String>,
}

/// Everything that the scoreboard shows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(crate) struct Scores {
    pub(crate) rows: Vec<Row>,
    #[serde(default)]
    pub(crate) confused: Vec<Confused>,
    #[serde(default)]
    pub(crate) mutations: Vec<Mutation>,
}

impl Scores {
    /// Counts the scores of a scenario on this kernel.
    fn count(&mut self, kernel: &str, name: &str, result: &Kept) {
        let mode = result.mode.as_deref().unwrap_or("any");
        for score in &result.scores {
            let Score { verb, caused, found, count } = score;
            if let Some(class) = caused {
                let row = self.row(class, verb, mode, kernel);
                row.caused += count;
                if found == caused {
                    row.detected += count;
                    continue;
                }
                row.missed += count;
            }
            if let Some(class) = found.as_deref().filter(|class| class.starts_with(['C', 'K'])) {
                self.row(class, verb, mode, kernel).false_alarms += count;
            }
            let text = |class: &Option<String>| class.clone().unwrap_or_else(|| "nothing".to_owned());
            self.confused.push(Confused {
                caused: text(caused),
                found: text(found),
                count: *count,
                case: format!("{name} on {kernel}"),
            });
        }
    }

    fn row(&mut self, class: &str, verb: &str, mode: &str, kernel: &str) -> &mut Row {
        let wanted = Row {
            class: class.to_owned(),
            source: "matrix".to_owned(),
            verb: verb.to_owned(),
            mode: mode.to_owned(),
            kernel: Some(kernel.to_owned()),
            ..Row::default()
        };
        let same = |row: &Row| {
            (&row.class, &row.verb, &row.mode, &row.kernel)
                == (&wanted.class, &wanted.verb, &wanted.mode, &wanted.kernel)
        };
        let at = self.rows.iter().position(same).unwrap_or(self.rows.len());
        if at == self.rows.len() {
            self.rows.push(wanted);
        }
        &mut self.rows[at]
    }
}

/// The last result of a scenario.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    /// The release of the guest's kernel.
    release: String,
    mode: Option<String>,
    scores: Vec<Score>,
}

/// The last results of the guests' scenarios, by kernel series and name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Results(BTreeMap<String, BTreeMap<String, Kept>>);

impl Results {
    /// The results of earlier runs; none if there is no such file.
    pub(crate) fn read(file: &Path) -> Result<Self> {
        match fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("could not parse {}: delete it and test again", file.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("could not read {}", file.display())),
        }
    }

    /// Writes the results over those of earlier runs.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string(self).context("could not write the scores as JSON")?;
        fs::write(file, text).with_context(|| format!("could not write {}", file.display()))
    }

    /// Keeps the result of a scenario in place of its last one.
    pub(crate) fn keep(&mut self, series: &str, release: &str, scenario: &Scenario) {
        let kept = Kept {
            release: release.to_owned(),
            mode: scenario.mode.clone(),
            scores: scenario.scores.clone(),
        };
        self.0.entry(series.to_owned()).or_default().insert(scenario.name.clone(), kept);
    }

    /// The scores of all scenarios.
    pub(crate) fn scores(&self) -> Scores {
        let mut scores = Scores::default();
        for (series, scenarios) in &self.0 {
            for (name, kept) in scenarios {
                scores.count(series, name, kept);
            }
        }
        scores
    }

    /// The kernels, each with its releases and the number of its scenarios.
    pub(crate) fn kernels(&self) -> Vec<(String, Vec<String>, usize)> {
        let kernel = |(series, scenarios): (&String, &BTreeMap<String, Kept>)| {
            let mut releases: Vec<String> = scenarios.values().map(|kept| kept.release.clone()).collect();
            releases.sort();
            releases.dedup();
            (series.clone(), releases, scenarios.len())
        };
        self.0.iter().map(kernel).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Verdict;

    fn scenario(scores: &[(&str, &str, u64)]) -> Scenario {
        let class = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let score = |(caused, found, count): &(&str, &str, u64)| Score {
            verb: "trace".into(),
            caused: class(caused),
            found: class(found),
            count: *count,
        };
        Scenario {
            name: "c6".into(),
            result: Verdict::Passed,
            detail: String::new(),
            seconds: 1.0,
            mode: Some("ipvs".into()),
            cells: Vec::new(),
            scores: scores.iter().map(score).collect(),
        }
    }

    #[test]
    fn a_miss_and_a_false_alarm_are_counted_for_their_classes() {
        let mut results = Results::default();
        let all = [("C6", "C6", 5), ("C6", "unknown", 1), ("ok", "C30", 2), ("", "C1", 3), ("ok", "ok", 7)];
        results.keep("6.12", "6.12.1", &scenario(&all));
        let scores = results.scores();
        let of = |class: &str| {
            let row = scores.rows.iter().find(|row| row.class == class).unwrap();
            assert_eq!((row.source.as_str(), row.mode.as_str()), ("matrix", "ipvs"));
            (row.caused, row.detected, row.missed, row.false_alarms)
        };
        assert_eq!(of("C6"), (6, 5, 1, 0));
        assert_eq!(of("ok"), (9, 7, 2, 0));
        assert_eq!(of("C30"), (0, 0, 0, 2));
        assert_eq!(of("C1"), (0, 0, 0, 3));
        let confused: Vec<_> =
            scores.confused.iter().map(|pair| (pair.caused.as_str(), pair.found.as_str())).collect();
        assert_eq!(confused, [("C6", "unknown"), ("ok", "C30"), ("nothing", "C1")]);
    }

    #[test]
    fn the_last_result_of_a_scenario_counts() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("scores.json");
        let mut results = Results::read(&file).unwrap();
        results.keep("6.12", "6.12.1", &scenario(&[("C6", "C28", 5)]));
        results.keep("6.12", "6.12.2", &scenario(&[("C6", "C6", 5)]));
        results.write(&file).unwrap();
        assert_eq!(Results::read(&file).unwrap(), results);
        assert!(results.scores().confused.is_empty());
        assert_eq!(results.kernels(), [("6.12".to_owned(), vec!["6.12.2".to_owned()], 1)]);
        fs::write(&file, "{").unwrap();
        assert!(Results::read(&file).unwrap_err().to_string().contains("delete it"));
    }
}
