//! The record and its schema: the output of `viptrace schema` describes every record, and the names are stable.
use std::process::Command;

use serde_json::{Value, json};
use viptrace::{
    class::{Class, Confidence, Domain, Safety, Severity},
    time::Timestamp,
    verdict::{
        ChangeKind, Evidence, EvidenceType, FlowRef, Mitigation, NearbyChange, ServiceRef, Step, Verdict,
    },
};

fn schema() -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_viptrace")).arg("schema").output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn full() -> Verdict {
    Verdict {
        time: Timestamp::from_unix_secs(1_700_000_000),
        class: Class::C6,
        root_cause: "stale_endpoints — 10.244.1.11:8080 left its EndpointSlice 41 s before".into(),
        domain: Domain::StaleEndpoints,
        confidence: Confidence::High,
        severity: Severity::Medium,
        service: Some(ServiceRef { namespace: "shop".into(), name: "cart".into(), port: "http".into() }),
        flow: FlowRef {
            protocol: "TCP".into(),
            client: "[2001:db8::9]:40001".parse().unwrap(),
            vip: Some("[2001:db8::10]:80".parse().unwrap()),
            endpoint: Some("[2001:db8:1::11]:8080".parse().unwrap()),
            client_pod: Some("shop/client".into()),
            endpoint_pod: Some("shop/cart-1".into()),
            node: Some("worker-1".into()),
            started: Timestamp::from_unix_secs(1_700_000_000),
        },
        evidence: vec![Evidence {
            r#type: EvidenceType::Kernel,
            time: Some(Timestamp::from_unix_secs(1_700_000_000)),
            content: "__nf_conntrack_confirm: DNAT to [2001:db8:1::11]:8080".into(),
        }],
        against: vec![],
        unseen: vec!["the endpoint's node".into()],
        changes_around: vec![NearbyChange {
            time: Timestamp::from_unix_secs(1_699_999_988),
            after: None,
            seconds_before: 12.0,
            kind: ChangeKind::EndpointRemoved,
            subject: "Service shop/cart".into(),
            text: "endpoint 10.244.1.11 left Service shop/cart".into(),
            resource_version: Some(48_213),
        }],
        changes_left_out: 3,
        lost_events: 2,
        kube_proxy_mode: Some("iptables".into()),
        kube_proxy_version: Some("v1.30.5".into()),
        metadata_age: Some(0.25),
        mitigation: Mitigation {
            immediate: "kubectl -n kube-system logs ds/kube-proxy".into(),
            long_term: "alert on the age of the last sync".into(),
            safety: Safety::ReadOnly,
            steps: vec![Step {
                text: "`kubectl -n kube-system logs ds/kube-proxy`".into(),
                safety: Safety::ReadOnly,
            }],
        },
        cross_reference: vec!["C6".into()],
    }
}

/// A verdict with as few facts as possible.
fn bare() -> Verdict {
    let mut verdict = full();
    verdict.class = Class::Unknown;
    verdict.domain = Domain::Unknown;
    verdict.service = None;
    verdict.flow.vip = None;
    verdict.flow.endpoint = None;
    verdict.flow.client_pod = None;
    verdict.flow.endpoint_pod = None;
    verdict.flow.node = None;
    verdict.evidence = vec![Evidence { r#type: EvidenceType::Node, time: None, content: "".into() }];
    verdict.changes_around.clear();
    verdict.kube_proxy_mode = None;
    verdict.kube_proxy_version = None;
    verdict.metadata_age = None;
    verdict
}

#[test]
fn records_are_valid() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    for verdict in [full(), bare()] {
        let record = serde_json::to_value(&verdict).unwrap();
        let errors: Vec<_> = validator.iter_errors(&record).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{errors:?}");
    }
}

#[test]
fn a_missing_or_misspelt_field_is_not_valid() {
    let validator = jsonschema::validator_for(&schema()).unwrap();
    let whole = serde_json::to_value(bare()).unwrap();
    for (pointer, names) in [("", top_names()), ("/flow", flow_names())] {
        for name in names {
            let mut record = whole.clone();
            record.pointer_mut(pointer).unwrap().as_object_mut().unwrap().remove(name).unwrap();
            assert!(!validator.is_valid(&record), "{pointer}/{name} is not required");
        }
    }
    let mut record = whole.clone();
    record["domain"] = json!("weather");
    assert!(!validator.is_valid(&record));
}

#[test]
fn the_names_are_the_promised_ones() {
    let record = serde_json::to_value(full()).unwrap();
    let names = |value: &Value| {
        let mut names: Vec<_> = value.as_object().unwrap().keys().cloned().collect();
        names.sort_unstable();
        names
    };
    let sorted = |mut names: Vec<&'static str>| {
        names.sort_unstable();
        names
    };
    assert_eq!(names(&record), sorted(top_names()));
    assert_eq!(names(&record["flow"]), sorted(flow_names()));
    assert_eq!(names(&record["service"]), ["name", "namespace", "port"]);
    assert_eq!(names(&record["evidence"][0]), ["content", "time", "type"]);
    let change = &record["changes_around"][0];
    assert_eq!(
        names(change),
        ["after", "kind", "resource_version", "seconds_before", "subject", "text", "time"]
    );
    assert_eq!(change["kind"], "endpoint_removed");
    assert_eq!(names(&record["mitigation"]), ["immediate", "long_term", "safety", "steps"]);
    assert_eq!(record["flow"]["client"], "[2001:db8::9]:40001");
    assert_eq!(record["time"], "2023-11-14T22:13:20.000000000Z");
}

#[test]
fn the_schema_explains_itself() {
    let schema = schema();
    assert_eq!(schema["title"], "viptrace verdict");
    for name in
        ["time", "class", "root_cause", "evidence", "unseen", "changes_around", "lost_events", "metadata_age"]
    {
        let described = schema["properties"][name].to_string().contains("description");
        assert!(described, "{name}: {}", schema["properties"][name]);
    }
}

fn top_names() -> Vec<&'static str> {
    vec![
        "time",
        "class",
        "root_cause",
        "domain",
        "confidence",
        "severity",
        "service",
        "flow",
        "evidence",
        "against",
        "unseen",
        "changes_around",
        "changes_left_out",
        "lost_events",
        "kube_proxy_mode",
        "kube_proxy_version",
        "metadata_age",
        "mitigation",
        "cross_reference",
    ]
}

fn flow_names() -> Vec<&'static str> {
    vec!["protocol", "client", "vip", "endpoint", "client_pod", "endpoint_pod", "node", "started"]
}
