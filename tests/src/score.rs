//! The score of a scenario: which class was caused, and which one viptrace reported, counted. It compares nothing.

use serde::Serialize;
use viptrace_class::Class;

/// The verb of viptrace whose report is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    Trace,
    Check,
}

/// Flows, or findings of a check, with the same cause and the same report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Score {
    pub verb: Verb,
    /// `None`: the report has no cause.
    pub caused: Option<Class>,
    /// `None`: nothing was reported.
    pub found: Option<Class>,
    pub count: u64,
}

/// The scores of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Scores(Vec<Score>);

impl Scores {
    /// Counts one flow or finding.
    pub fn count(&mut self, verb: Verb, caused: Option<Class>, found: Option<Class>) {
        let same = |score: &&mut Score| (score.verb, score.caused, score.found) == (verb, caused, found);
        match self.0.iter_mut().find(same) {
            Some(score) => score.count += 1,
            None => self.0.push(Score { verb, caused, found, count: 1 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn equal_pairs_are_counted_together() {
        let mut scores = Scores::default();
        scores.count(Verb::Trace, Some(Class::C6), Some(Class::C6));
        scores.count(Verb::Trace, Some(Class::C6), Some(Class::C6));
        scores.count(Verb::Check, Some(Class::C6), None);
        assert_eq!(
            json!(scores),
            json!([
                {"verb": "trace", "caused": "C6", "found": "C6", "count": 2},
                {"verb": "check", "caused": "C6", "found": null, "count": 1},
            ])
        );
    }
}
