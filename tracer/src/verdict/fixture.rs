//! Verdicts for the tests of several rooms.

use super::{
    ChangeKind, Evidence, EvidenceType, FlowRef, Mitigation, NearbyChange, ServiceRef, Step, Verdict,
};
use crate::{
    class::{Class, Confidence, Domain, Safety, Severity},
    time::Timestamp,
};

pub(crate) fn fault() -> Verdict {
    Verdict {
        time: Timestamp::from_unix_ns(101_500_000_000),
        class: Class::C20,
        root_cause: "no_endpoints — the selector matches no Pod".into(),
        domain: Domain::NoEndpoints,
        confidence: Confidence::High,
        severity: Severity::High,
        service: Some(ServiceRef { namespace: "shop".into(), name: "checkout".into(), port: "http".into() }),
        flow: FlowRef {
            protocol: "TCP".into(),
            client: ([10, 244, 1, 40], 40001).into(),
            vip: Some(([10, 96, 10, 20], 80).into()),
            endpoint: None,
            client_pod: Some("shop/client".into()),
            endpoint_pod: None,
            node: Some("worker-1".into()),
            started: Timestamp::from_unix_secs(101),
        },
        evidence: vec![Evidence {
            r#type: EvidenceType::Kernel,
            time: Some(Timestamp::from_unix_secs(101)),
            content: "nf_send_unreach: port unreachable, at FORWARD".into(),
        }],
        against: vec![],
        unseen: vec!["the client's socket".into()],
        changes_around: vec![NearbyChange {
            time: Timestamp::from_unix_secs(89),
            after: None,
            seconds_before: 12.0,
            kind: ChangeKind::EndpointRemoved,
            subject: "Service shop/checkout".into(),
            text: "endpoint 10.244.1.11 left Service shop/checkout".into(),
            resource_version: Some(48_213),
        }],
        changes_left_out: 3,
        lost_events: 0,
        kube_proxy_mode: Some("iptables".into()),
        kube_proxy_version: None,
        metadata_age: Some(0.5),
        mitigation: Mitigation {
            immediate: "kubectl -n shop get pods -l app=checkout; correct the selector".into(),
            long_term: "alert on Services without endpoints".into(),
            safety: Safety::Disruptive,
            steps: vec![
                Step { text: "`kubectl -n shop get pods -l app=checkout`".into(), safety: Safety::ReadOnly },
                Step { text: "correct the selector".into(), safety: Safety::Disruptive },
            ],
        },
        cross_reference: vec!["C20".into()],
    }
}

/// A healthy flow from this client port.
pub(crate) fn ok(port: u16) -> Verdict {
    let mut verdict = fault();
    verdict.class = Class::Ok;
    verdict.root_cause = "normal — healthy".into();
    verdict.changes_around.clear();
    verdict.changes_left_out = 0;
    verdict.flow.client.set_port(port);
    verdict.flow.endpoint = Some(([10, 244, 1, 11], 8080).into());
    verdict.flow.endpoint_pod = Some("shop/cart-1".into());
    verdict
}

/// A flow that looks healthy, and of which events were lost.
pub(crate) fn near_a_loss(port: u16) -> Verdict {
    let root_cause =
        "unknown — 3 events were lost while this flow was watched; the other evidence looks healthy";
    Verdict {
        class: Class::Unknown,
        domain: Domain::Unknown,
        root_cause: root_cause.into(),
        severity: Severity::None,
        confidence: Confidence::Low,
        lost_events: 3,
        ..ok(port)
    }
}
