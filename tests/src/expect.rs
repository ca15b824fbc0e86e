//! Expectations: the verdict that each flow of the generator must get, compared with viptrace's records. It does the
//! comparison and reports differences. It reads records as any user of the JSON output would.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    net::SocketAddr,
};

use serde_json::Value;
use viptrace_class::{Class, Kind};

use crate::{
    console,
    score::{Scores, Verb},
    traffic::{Attempt, Transport},
};

/// The expected `endpoint` of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// NAT chose none: the record must have `null`.
    Null,
    Is(SocketAddr),
}

/// The expected content of one flow's record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    pub transport: Transport,
    pub client: SocketAddr,
    /// `None` for a flow whose destination is a Pod.
    pub vip: Option<SocketAddr>,
    pub endpoint: Endpoint,
    pub class: Class,
    /// `namespace/name`.
    pub service: Option<String>,
}

impl Expected {
    /// A flow to a Service address.
    pub fn to_service(attempt: &Attempt, service: &str, class: Class, endpoint: Endpoint) -> Self {
        Self {
            transport: attempt.protocol,
            client: attempt.client,
            vip: Some(attempt.target),
            endpoint,
            class,
            service: Some(service.to_owned()),
        }
    }

    /// A flow to a Pod's own address.
    pub fn to_pod(attempt: &Attempt, class: Class) -> Self {
        Self {
            transport: attempt.protocol,
            client: attempt.client,
            vip: None,
            endpoint: Endpoint::Is(attempt.target),
            class,
            service: None,
        }
    }

    pub fn key(&self) -> Key {
        Key { transport: self.transport.as_str().to_owned(), client: self.client }
    }
}

/// Identifies a flow of a run: the generator uses each source port once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    transport: String,
    client: SocketAddr,
}

/// One record of `viptrace trace -o json`.
#[derive(Clone, Debug)]
pub struct Record(Value);

impl Record {
    /// `None` if the line is no JSON object.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok().filter(Value::is_object).map(Self)
    }

    /// A text field by its JSON pointer; empty where it is absent, `null` or not text.
    pub fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    pub fn value(&self) -> &Value {
        &self.0
    }

    /// `None` if the record has no class, or an unknown one.
    pub fn class(&self) -> Option<Class> {
        self.text("/class").parse().ok()
    }

    /// Whether the record reports a fault, or a failure without an explanation.
    pub fn reports_failure(&self) -> bool {
        self.class().is_none_or(|class| matches!(class.kind(), Kind::Fault | Kind::Unknown))
    }

    pub fn key(&self) -> Option<Key> {
        let client = self.text("/flow/client").parse().ok()?;
        Some(Key { transport: self.text("/flow/protocol").to_owned(), client })
    }

    /// The gaps of the trace, one item a line.
    pub fn unobserved(&self) -> String {
        let list = self.0["unseen"].as_array().into_iter().flatten();
        list.filter_map(Value::as_str).flat_map(|what| [what, "\n"]).collect()
    }

    /// The root cause and all evidence as one text, for assertions about wording.
    pub fn statements(&self) -> String {
        let mut text = self.text("/root_cause").to_owned();
        for list in ["/evidence", "/against"] {
            for item in self.0.pointer(list).and_then(Value::as_array).into_iter().flatten() {
                text.push('\n');
                text.push_str(item["content"].as_str().unwrap_or_default());
            }
        }
        text
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flow = |name: &str| self.0["flow"][name].as_str().unwrap_or("null").to_owned();
        write!(
            f,
            "{} {} ({}) {} {} → {} → {}",
            self.text("/class"),
            self.text("/domain"),
            self.text("/root_cause"),
            flow("protocol"),
            flow("client"),
            flow("vip"),
            flow("endpoint"),
        )
    }
}

/// From so many flows on, each has its own port.
const MANY: usize = 100;

/// The number of disagreements that are printed in full.
const MAX_SHOWN: usize = 12;

/// Differences of a trace for which the kernel skipped tracing programs: a lost event can explain them. On an emulated CPU
/// that happens in one of some dozen runs; twice in the same scenario, it is viptrace's fault.
#[derive(Debug)]
pub struct Incomplete {
    /// As [`events_left_out`].
    pub events: usize,
    pub differences: String,
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n(the kernel skipped the programs for up to {} events)", self.differences, self.events)
    }
}

impl std::error::Error for Incomplete {}

/// How many flows may lack an event that the kernel skipped: not more than the trace's summary admits, and at most one of a
/// thousand. An emulated CPU that loses its host for a while makes a tracing program last as long.
pub fn may_be_incomplete(expected: &[Expected], summary: &str) -> usize {
    events_left_out(summary).min(expected.len() / 1000)
}

/// The maximum number of events for which the kernel skipped the programs, as the trace's summary states it.
pub fn events_left_out(summary: &str) -> usize {
    let counts = summary.split("up to ").skip(1).filter_map(|rest| rest.split_once(' '));
    let missed =
        counts.filter(|(_, rest)| rest.starts_with("event") && rest.contains("missed because its programs"));
    missed.filter_map(|(count, _)| count.parse::<usize>().ok()).sum()
}

/// All differences between the traffic and the records, as one text; empty if there are none beyond those of `incomplete`
/// flows.
pub fn disagreements(expected: &[Expected], records: &[Record], incomplete: usize) -> String {
    let mut by_key: HashMap<Key, Vec<&Record>> = HashMap::new();
    let mut found = Vec::new();
    for record in records {
        match record.key() {
            Some(key) => by_key.entry(key).or_default().push(record),
            None => found.push(format!("a record without a client: {record}")),
        }
        if record.0["lost_events"].as_u64() != Some(0) {
            found.push(format!("a record reports lost events ({}): {record}", record.0["lost_events"]));
        }
    }
    let mut wanted: Vec<(Key, Vec<&Expected>)> = Vec::new();
    for want in expected {
        match wanted.iter_mut().find(|(key, _)| expected.len() < MANY && *key == want.key()) {
            Some((_, others)) => others.push(want),
            None => wanted.push((want.key(), vec![want])),
        }
    }
    let mut differing = Vec::new();
    for (key, wants) in wanted {
        let Some(&want) = wants.first() else { continue };
        let mut found = Vec::new();
        match by_key.remove(&key).as_deref() {
            // One connection that is two consecutive flows for conntrack.
            Some(records) if wants.len() > 1 && records.len() == wants.len() => {
                found.extend(wants.iter().zip(records).flat_map(|(want, record)| compare(want, record)));
            }
            None => found.push(format!("no record for {}", describe(want))),
            Some([record]) => found.extend(compare(want, record)),
            Some(several) => {
                let records: Vec<String> = several.iter().map(ToString::to_string).collect();
                found.push(format!(
                    "{} records instead of one for {}: {}",
                    records.len(),
                    describe(want),
                    records.join("; ")
                ));
            }
        }
        if !found.is_empty() {
            differing.push(found);
        }
    }
    if differing.len() > incomplete {
        found.extend(differing.into_iter().flatten());
    } else {
        for difference in differing.into_iter().flatten() {
            console::print(format!("an event was skipped: {difference}"));
        }
    }
    for record in by_key.into_values().flatten().filter(|record| record.reports_failure()) {
        found.push(format!("a fault without a cause: {record}"));
    }
    if found.is_empty() {
        return String::new();
    }
    let more = found.len().saturating_sub(MAX_SHOWN);
    found.truncate(MAX_SHOWN);
    if more > 0 {
        found.push(format!("and {more} more"));
    }
    format!(
        "{}\nexpected by class: {}\nrecorded by class: {}",
        found.join("\n"),
        tally(expected.iter().map(|want| want.class.id())),
        tally(records.iter().map(|record| record.text("/class"))),
    )
}

/// Counts the causes and the reports: each expected flow, and each reported failure that nothing caused.
pub fn count(expected: &[Expected], records: &[Record], scores: &mut Scores) {
    let mut by_key: HashMap<Key, VecDeque<&Record>> = HashMap::new();
    for record in records {
        if let Some(key) = record.key() {
            by_key.entry(key).or_default().push_back(record);
        }
    }
    for want in expected {
        let record = by_key.get_mut(&want.key()).and_then(VecDeque::pop_front);
        scores.count(Verb::Trace, Some(want.class), record.and_then(Record::class));
    }
    for record in by_key.into_values().flatten().filter(|record| record.reports_failure()) {
        scores.count(Verb::Trace, None, record.class());
    }
}

fn describe(want: &Expected) -> String {
    let vip = want.vip.map_or_else(|| "no VIP".to_owned(), |vip| vip.to_string());
    let endpoint = match want.endpoint {
        Endpoint::Null => "no endpoint".to_owned(),
        Endpoint::Is(address) => address.to_string(),
    };
    format!("{} {} → {vip} → {endpoint}, expected {}", want.transport.as_str(), want.client, want.class)
}

fn compare(want: &Expected, record: &Record) -> Vec<String> {
    let address = |address: Option<SocketAddr>| {
        address.map_or(Value::Null, |address| Value::String(address.to_string()))
    };
    let endpoint = match want.endpoint {
        Endpoint::Null => Value::Null,
        Endpoint::Is(endpoint) => address(Some(endpoint)),
    };
    let service = want.service.as_deref().and_then(|service| service.split_once('/'));
    let (namespace, name) = service.map_or((Value::Null, Value::Null), |(namespace, name)| {
        (Value::String(namespace.to_owned()), Value::String(name.to_owned()))
    });
    let fields = [
        ("/class", Value::String(want.class.to_string())),
        ("/domain", Value::String(want.class.domain().to_string())),
        ("/flow/vip", address(want.vip)),
        ("/flow/endpoint", endpoint),
        ("/service/namespace", namespace),
        ("/service/name", name),
    ];
    let is = |pointer| record.0.pointer(pointer).cloned().unwrap_or(Value::Null);
    fields
        .into_iter()
        .filter(|(pointer, value)| is(pointer) != *value)
        .map(|(pointer, value)| {
            format!(
                "{}: {pointer} is {}, expected {value}; the record: {record}",
                describe(want),
                is(pointer)
            )
        })
        .collect()
}

fn tally<'c>(classes: impl Iterator<Item = &'c str>) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for class in classes {
        *counts.entry(class).or_default() += 1;
    }
    let counts: Vec<String> = counts.iter().map(|(class, count)| format!("{class} {count}")).collect();
    counts.join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::traffic::Outcome;

    fn attempt() -> Attempt {
        Attempt {
            protocol: Transport::Tcp,
            client: "10.244.1.100:20000".parse().unwrap(),
            target: "10.96.10.10:80".parse().unwrap(),
            outcome: Outcome::Done,
        }
    }

    fn record(class: &str, endpoint: &str) -> Record {
        Record(json!({
            "class": class, "domain": "normal", "root_cause": "normal — served", "lost_events": 0,
            "service": {"namespace": "shop", "name": "cart", "port": "http"},
            "flow": {"protocol": "TCP", "client": "10.244.1.100:20000", "vip": "10.96.10.10:80", "endpoint": endpoint},
            "evidence": [], "against": [],
        }))
    }

    fn expected() -> Expected {
        let endpoint = Endpoint::Is("10.244.1.11:8080".parse().unwrap());
        Expected::to_service(&attempt(), "shop/cart", Class::Ok, endpoint)
    }

    #[test]
    fn equal_flows_and_records_agree() {
        assert_eq!(disagreements(&[expected()], &[record("ok", "10.244.1.11:8080")], 0), "");
    }

    #[test]
    fn a_wrong_class_and_a_wrong_endpoint_are_reported() {
        let text = disagreements(&[expected()], &[record("C28", "10.244.1.12:8080")], 0);
        assert!(text.contains("/class is \"C28\", expected \"ok\""), "{text}");
        assert!(text.contains("/flow/endpoint is \"10.244.1.12:8080\""), "{text}");
    }

    #[test]
    fn a_missing_a_duplicate_and_an_unexpected_record_are_reported() {
        assert!(disagreements(&[expected()], &[], 0).starts_with("no record for TCP"));
        let twice = [record("ok", "10.244.1.11:8080"), record("ok", "10.244.1.11:8080")];
        assert!(disagreements(&[expected()], &twice, 0).starts_with("2 records instead of one"));
        let uncaused = disagreements(&[], &[record("C6", "10.244.1.11:8080")], 0);
        assert!(uncaused.starts_with("a fault without a cause"), "{uncaused}");
        assert_eq!(disagreements(&[], &[record("ok", "10.244.1.11:8080")], 0), "");
    }

    #[test]
    fn what_was_caused_is_counted_beside_what_was_reported() {
        let mut scores = Scores::default();
        let stray = {
            let mut record = record("C6", "10.244.1.11:8080");
            record.0["flow"]["client"] = json!("10.244.1.100:20001");
            record
        };
        count(&[expected()], &[record("C28", "10.244.1.12:8080"), stray], &mut scores);
        count(&[expected()], &[], &mut scores);
        let mut wanted = Scores::default();
        wanted.count(Verb::Trace, Some(Class::Ok), Some(Class::C28));
        wanted.count(Verb::Trace, None, Some(Class::C6));
        wanted.count(Verb::Trace, Some(Class::Ok), None);
        assert_eq!(scores, wanted);
    }

    #[test]
    fn the_missed_events_of_the_summary_are_counted() {
        let missed =
            |events| format!("x: up to {events} missed because its programs were already running (y)\n");
        let summary = missed("2 events") + &missed("1 event") + "up to 5 s\n";
        assert_eq!((events_left_out(&summary), events_left_out("nothing")), (3, 0));
        let flows = vec![expected(); 2_999];
        assert_eq!(may_be_incomplete(&flows, &summary), 2);
        assert_eq!(may_be_incomplete(&flows[..999], &summary), 0);
        assert_eq!(may_be_incomplete(&flows, "nothing"), 0);
    }

    #[test]
    fn a_flow_may_lack_a_skipped_event_and_no_fault_lacks_a_cause() {
        assert_eq!(disagreements(&[expected()], &[], 1), "");
        assert!(disagreements(&[], &[record("C6", "10.244.1.11:8080")], 1).contains("without a cause"));
    }

    #[test]
    fn lost_events_are_a_disagreement() {
        let mut lossy = record("ok", "10.244.1.11:8080");
        lossy.0["lost_events"] = json!(3);
        assert!(disagreements(&[expected()], &[lossy], 0).contains("lost events (3)"));
    }
}
