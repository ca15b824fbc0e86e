//! The machine lines that a guest writes to its second serial port, one JSON object a line.
//!
//! This file owns their format and does not read the port.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use crate::matrix::Cell;
use crate::scores::Score;

/// One machine line.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub(crate) enum Event {
    Scenario(Scenario),
    /// A file to keep: its name and its text.
    File {
        name: String,
        data: String,
        #[serde(default)]
        encoding: Encoding,
    },
    Metric(Metric),
    /// All cells of the matrix, whether or not a scenario of this run proves them.
    Matrix {
        cells: Vec<Cell>,
    },
    /// The guest is about to power off; 0 means success.
    Done {
        exit: i64,
    },
}

/// The encoding of a file's bytes in a machine line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Encoding {
    #[default]
    Text,
    /// Two digits for each byte.
    Hex,
}

impl Encoding {
    /// The file's bytes; `None` if `data` is not hexadecimal.
    pub(crate) fn decode(self, data: &str) -> Option<Vec<u8>> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        match self {
            Self::Text => Some(data.as_bytes().to_vec()),
            Self::Hex => data
                .as_bytes()
                .chunks(2)
                .map(|pair| match pair {
                    [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
                    _ => None,
                })
                .collect(),
        }
    }
}

/// The result of one scenario.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Scenario {
    pub(crate) name: String,
    pub(crate) result: Verdict,
    #[serde(default)]
    pub(crate) detail: String,
    #[serde(default)]
    pub(crate) seconds: f64,
    /// kube-proxy's mode on the guest's node, if the scenario needs a node.
    #[serde(default)]
    pub(crate) mode: Option<String>,
    /// The cells of the matrix that it covers.
    #[serde(default)]
    pub(crate) cells: Vec<Cell>,
    #[serde(default)]
    pub(crate) scores: Vec<Score>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// One measured value.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) value: f64,
    #[serde(default)]
    pub(crate) unit: String,
    #[serde(default)]
    labels: BTreeMap<String, Value>,
}

impl Metric {
    /// A label as text, whether it was sent as text or as a number.
    pub(crate) fn label(&self, name: &str) -> Option<String> {
        match self.labels.get(name)? {
            Value::String(text) => Some(text.clone()),
            other => Some(other.to_string()),
        }
    }
}

/// Parses one line; an empty line is `None`. The error describes the fault in the line.
pub(crate) fn parse(line: &str) -> Result<Option<Event>, String> {
    let line = line.trim();
    if line.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(line).map(Some).map_err(|error| {
        let start: String = line.chars().take(120).collect();
        format!("cannot parse a machine line ({error}): {start}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read() {
        let scenario =
            r#"{"event":"scenario","name":"healthy","result":"skipped","detail":"no BTF","seconds":1.2}"#;
        let expected = Scenario {
            name: "healthy".into(),
            result: Verdict::Skipped,
            detail: "no BTF".into(),
            seconds: 1.2,
            mode: None,
            cells: Vec::new(),
            scores: Vec::new(),
        };
        assert_eq!(parse(scenario), Ok(Some(Event::Scenario(expected))));
        let file = "{\"event\":\"file\",\"name\":\"a.jsonl\",\"data\":\"x\\ny\"}\r";
        assert_eq!(
            parse(file),
            Ok(Some(Event::File { name: "a.jsonl".into(), data: "x\ny".into(), encoding: Encoding::Text }))
        );
        let file = r#"{"event":"file","name":"a","data":"00ff1A","encoding":"hex"}"#;
        let Event::File { data, encoding, .. } = parse(file).unwrap().unwrap() else { panic!("not a file") };
        assert_eq!(encoding.decode(&data), Some(vec![0, 0xff, 0x1a]));
        assert_eq!(encoding.decode("0"), None);
        assert_eq!(encoding.decode("0g"), None);
        assert_eq!(parse(r#"{"event":"done","exit":0}"#), Ok(Some(Event::Done { exit: 0 })));
        assert_eq!(parse("  "), Ok(None));
    }

    #[test]
    fn labels_may_be_numbers() {
        let line = r#"{"event":"metric","name":"crr_ns","value":231000,"unit":"ns","labels":{"tool":"lean","round":3}}"#;
        let Event::Metric(metric) = parse(line).unwrap().unwrap() else { panic!("not a metric") };
        assert_eq!(metric.label("tool").unwrap(), "lean");
        assert_eq!(metric.label("round").unwrap(), "3");
        assert_eq!(metric.label("side"), None);
    }

    #[test]
    fn an_invalid_line_is_a_short_error() {
        for line in ["{", "{\"event\":\"dance\"}", "null", "[]", "{\"event\":\"done\"}", "\u{0}\u{fffd}"] {
            assert!(parse(line).is_err(), "{line}");
        }
        assert!(parse(&"x".repeat(100_000)).unwrap_err().len() < 400);
    }
}
