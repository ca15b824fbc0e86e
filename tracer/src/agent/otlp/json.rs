//! The messages of OTLP in JSON: the mapping of protocol buffers, with OTLP's own rules (opentelemetry-proto 1.5,
//! `docs/specification.md`, "JSON Protobuf Encoding"): numbers of 64 bits are text, enums are numbers, names are in
//! lower camel case.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::{
    agent::{
        counts::Total,
        figures::{Figures, Signal},
    },
    time::Timestamp,
    verdict::{ServiceRef, Verdict},
};

/// The most points of one request.
const MAX_POINTS: usize = 2000;
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u32 = 2;
/// `SEVERITY_NUMBER_INFO`, `_WARN` and `_ERROR`.
const INFO: u32 = 9;
const WARN: u32 = 13;
const ERROR: u32 = 17;

fn text(key: &str, value: &str) -> Value {
    json!({"key": key, "value": {"stringValue": value}})
}

fn number(key: &str, value: u64) -> Value {
    json!({"key": key, "value": {"intValue": value.to_string()}})
}

fn nanoseconds(time: Timestamp) -> String {
    time.as_unix_ns().to_string()
}

fn resource(node: Option<&str>) -> Value {
    let mut attributes =
        vec![text("service.name", "viptrace"), text("service.version", env!("CARGO_PKG_VERSION"))];
    attributes.extend(node.map(|node| text("k8s.node.name", node)));
    json!({"attributes": attributes})
}

fn scope() -> Value {
    json!({"name": "viptrace", "version": env!("CARGO_PKG_VERSION")})
}

/// One verdict as a log record; `line` is its record as JSON.
pub(super) fn log_record(verdict: &Verdict, line: &str, now: Timestamp) -> String {
    let (number_of, name) = match (verdict.is_fault(), verdict.is_unexplained()) {
        (true, _) => (ERROR, "ERROR"),
        (false, true) => (WARN, "WARN"),
        (false, false) => (INFO, "INFO"),
    };
    let flow = &verdict.flow;
    let mut attributes = vec![
        text("viptrace.class", verdict.class.id()),
        text("viptrace.domain", verdict.domain.as_str()),
        text("viptrace.confidence", &verdict.confidence.to_string()),
        text("viptrace.severity", &verdict.severity.to_string()),
        text("network.transport", &flow.protocol.to_lowercase()),
        text("client.address", &flow.client.ip().to_string()),
        number("client.port", flow.client.port().into()),
    ];
    if let Some(server) = flow.vip.or(flow.endpoint) {
        attributes.push(text("server.address", &server.ip().to_string()));
        attributes.push(number("server.port", server.port().into()));
    }
    if let Some(service) = &verdict.service {
        attributes.push(text("k8s.namespace.name", &service.namespace));
        attributes.push(text("viptrace.service", &service.name));
        attributes.push(text("viptrace.port", &service.port));
    }
    attributes.push(text("viptrace.record", line));
    json!({
        "timeUnixNano": nanoseconds(verdict.time),
        "observedTimeUnixNano": nanoseconds(now),
        "severityNumber": number_of,
        "severityText": name,
        "body": {"stringValue": verdict.root_cause},
        "attributes": attributes,
    })
    .to_string()
}

/// `ExportLogsServiceRequest` with these records.
pub(super) fn logs(node: Option<&str>, records: &[String]) -> String {
    format!(
        r#"{{"resourceLogs":[{{"resource":{},"scopeLogs":[{{"scope":{},"logRecords":[{}]}}]}}]}}"#,
        resource(node),
        scope(),
        records.join(",")
    )
}

type Points = Vec<(Value, Total)>;

/// `ExportMetricsServiceRequest`s with every count. The series of a deleted object are removed, and begin again at zero if it
/// comes back: then with a start of their own, which is how a receiver knows that they were reset.
pub(super) fn metrics(
    node: Option<&str>,
    figures: &Figures,
    started: Timestamp,
    now: Timestamp,
) -> Vec<String> {
    let counts = &figures.counts;
    let of = |service: Option<&ServiceRef>| -> Vec<Value> {
        let Some(service) = service else { return Vec::new() };
        vec![
            text("namespace", &service.namespace),
            text("service", &service.name),
            text("port", &service.port),
        ]
    };
    let connections = counts.connections().map(|(key, total)| {
        let mut attributes = of(Some(&key.service));
        attributes.push(text("protocol", &key.protocol));
        attributes.extend(key.endpoint.map(|endpoint| text("endpoint", &endpoint.to_string())));
        (Value::from(attributes), total)
    });
    let faults = counts.faults().map(|(key, total)| {
        let mut attributes = of(key.service.as_ref());
        attributes.push(text("class", key.class.id()));
        attributes.push(text("domain", key.domain.as_str()));
        (Value::from(attributes), total)
    });
    let unexplained = counts.unexplained().map(|(service, total)| (Value::from(of(service)), total));
    let flows = figures
        .by_result()
        .map(|(name, count)| (json!([text("result", name)]), Total { count, since: None }));
    let all: [(&str, &str, Points); 4] = [
        ("viptrace.connections", "{connection}", connections.collect()),
        ("viptrace.faults", "{flow}", faults.collect()),
        ("viptrace.unexplained", "{flow}", unexplained.collect()),
        ("viptrace.flows", "{flow}", flows.into()),
    ];
    let time = nanoseconds(now);
    let points = all.into_iter().flat_map(|(name, unit, points)| {
        points.into_iter().map(move |(attributes, total)| (name, unit, attributes, total))
    });
    let points: Vec<_> = points.collect();
    let request = |chunk: &[(&str, &str, Value, Total)]| {
        let mut metrics: BTreeMap<(&str, &str), Vec<Value>> = BTreeMap::new();
        for (name, unit, attributes, total) in chunk {
            let start = nanoseconds(total.since.unwrap_or(started));
            metrics.entry((name, unit)).or_default().push(json!({
                "attributes": attributes, "startTimeUnixNano": start, "timeUnixNano": time,
                "asInt": total.count.to_string(),
            }));
        }
        let metrics: Vec<Value> = metrics
            .into_iter()
            .map(|((name, unit), points)| {
                let sum =
                    json!({"aggregationTemporality": CUMULATIVE, "isMonotonic": true, "dataPoints": points});
                json!({"name": name, "unit": unit, "sum": sum})
            })
            .collect();
        let scoped = json!({"scope": scope(), "metrics": metrics});
        json!({"resourceMetrics": [{"resource": resource(node), "scopeMetrics": [scoped]}]}).to_string()
    };
    points.chunks(MAX_POINTS).map(request).collect()
}

/// The number of items that the receiver's answer rejects (`partialSuccess`).
pub(super) fn rejected(signal: Signal, answer: &[u8]) -> u64 {
    let Ok(answer) = serde_json::from_slice::<Value>(answer) else { return 0 };
    let key = match signal {
        Signal::Logs => "rejectedLogRecords",
        Signal::Metrics => "rejectedDataPoints",
    };
    let count = answer.get("partialSuccess").and_then(|partial| partial.get(key));
    let of_text = |count: &Value| count.as_str().and_then(|count| count.parse().ok());
    count.and_then(|count| count.as_u64().or_else(|| of_text(count))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        agent::counts::Counts,
        class::Class,
        cluster::{History, Kind},
        report::fixture,
    };

    /// A Service that is deleted, and comes back after its series were removed.
    #[test]
    fn a_series_that_begins_again_has_a_later_start() {
        let at = Timestamp::from_unix_secs;
        let mut history = History::new(Duration::from_hours(2));
        history.mark_known(Kind::Service);
        history.mark_known(Kind::EndpointSlice);
        let mut figures = Figures { counts: Counts::new(100, true, Duration::ZERO), ..Figures::default() };
        let starts = |figures: &Figures| -> Vec<String> {
            let request: Value = serde_json::from_str(&metrics(None, figures, at(1), at(100))[0]).unwrap();
            let all = request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap();
            let points = all.iter().filter(|metric| metric["name"] != "viptrace.flows");
            let points = points.flat_map(|metric| metric["sum"]["dataPoints"].as_array().unwrap());
            points.map(|point| point["startTimeUnixNano"].as_str().unwrap().to_owned()).collect()
        };
        let count = |figures: &mut Figures| {
            figures.counts.started(&fixture::fault(), 5);
            figures.counts.failed(&fixture::fault());
        };
        count(&mut figures);
        assert_eq!(starts(&figures), ["1000000000", "1000000000"]);
        for second in [20, 30] {
            figures.counts.remove_gone(&history, at(second), at(second));
        }
        assert_eq!(figures.counts.len(), 0);
        count(&mut figures);
        assert_eq!(starts(&figures), ["30000000000", "30000000000"]);
    }

    #[test]
    fn only_a_flow_that_broke_is_a_warning() {
        let severity = |verdict: &Verdict| -> Value {
            let record: Value = serde_json::from_str(&log_record(verdict, "{}", verdict.time)).unwrap();
            record["severityText"].clone()
        };
        assert_eq!(severity(&fixture::fault()), "ERROR");
        assert_eq!(severity(&Verdict { class: Class::Unknown, ..fixture::fault() }), "WARN");
        assert_eq!(severity(&fixture::near_a_loss(40_001)), "INFO");
    }
}
