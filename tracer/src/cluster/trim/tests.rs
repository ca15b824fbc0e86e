//! Real objects, and objects that violate the API.
#![expect(clippy::needless_pass_by_value, reason = "json!() reads best in the call")]

use serde_json::json;

use super::*;
use crate::cluster::model::{ProbeHandler, ProbeKind};

fn trimmed(kind: Kind, value: Value) -> (Option<Trimmed>, Vec<Oddity>) {
    let mut odd = Vec::new();
    (trim(kind, &value, &mut odd), odd)
}

fn service_of(spec: Value, status: Value) -> (Arc<Service>, Vec<Oddity>) {
    let meta = json!({"name": "s", "namespace": "n"});
    match trimmed(Kind::Service, json!({"metadata": meta, "spec": spec, "status": status})) {
        (Some(Trimmed { object: Object::Service(service), .. }), odd) => (service, odd),
        other => panic!("{other:?}"),
    }
}

/// A slice with these endpoints, and its oddities.
fn slice_of(endpoints: &Value) -> (Arc<EndpointSlice>, Vec<Oddity>) {
    let slice =
        json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": null, "endpoints": endpoints});
    let (Some(Trimmed { object: Object::EndpointSlice(slice), .. }), odd) =
        trimmed(Kind::EndpointSlice, slice)
    else {
        panic!("not trimmed");
    };
    (slice, odd)
}

#[test]
fn missing_conditions_have_the_apis_defaults() {
    let endpoints =
        json!([{"addresses": ["10.0.0.1"]}, {"addresses": ["10.0.0.2"], "conditions": {"ready": false}}]);
    let (slice, odd) = slice_of(&endpoints);
    let conditions: Vec<_> = slice.endpoints.iter().map(|e| e.conditions.to_string()).collect();
    assert_eq!((conditions, odd), (vec!["ready".to_owned(), "serving".to_owned()], vec![]));
}

#[test]
fn a_version_is_a_number() {
    for (version, expected) in [
        (json!("48213"), Some(48_213)),
        (json!(""), None),
        (json!("-1"), None),
        (json!("a\u{1b}[2J"), None),
        (json!(null), None),
    ] {
        let node = json!({"metadata": {"name": "n", "resourceVersion": version}});
        assert_eq!(trimmed(Kind::Node, node).0.unwrap().version, expected);
    }
}

#[test]
fn unusable_parts_are_skipped_and_the_rest_is_kept() {
    let ports = json!([{"port": 80}, {"port": 70_000}, {"port": 81, "protocol": "QUIC"}, {"port": 0}]);
    let spec =
        json!({"clusterIPs": ["10.0.0.1", "not an ip"], "ports": ports, "externalIPs": ["::1", "256.1.1.1"]});
    let (service, odd) = service_of(spec, json!({}));
    assert_eq!((service.cluster_ips.len(), service.external_ips.len(), service.ports.len()), (1, 1, 1));
    assert_eq!(odd.len(), 5, "{odd:?}");
    assert!(odd.iter().all(|odd| odd.object == "Service n/s"));
}

#[test]
fn invalid_names_are_left_out_and_printable() {
    for name in ["a\u{1b}[2J".to_owned(), "x".repeat(100_000), String::new()] {
        let (none, odd) = trimmed(Kind::Pod, json!({"metadata": {"name": name}}));
        assert!(none.is_none());
        let text = odd.iter().map(Oddity::to_string).collect::<String>();
        assert!(!text.is_empty() && text.len() < 1_000 && !text.chars().any(char::is_control), "{text}");
    }
}

#[test]
fn load_balancer_addresses_are_those_that_kube_proxy_serves() {
    let ingress =
        json!([{"ip": "203.0.113.1"}, {"ip": "203.0.113.2", "ipMode": "Proxy"}, {"hostname": "lb.example"}]);
    let status = json!({"loadBalancer": {"ingress": ingress}});
    let (service, odd) = service_of(json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1"}), status.clone());
    assert_eq!(service.load_balancer_ips, ["203.0.113.1".parse::<IpAddr>().unwrap()]);
    assert_eq!(service.proxied_ips, ["203.0.113.2".parse::<IpAddr>().unwrap()]);
    assert!(odd.is_empty(), "{odd:?}");
    let (service, _) = service_of(json!({"type": "ClusterIP"}), status);
    assert!(service.load_balancer_ips.is_empty(), "a leftover of another type");
}

#[test]
fn probes_are_resolved_and_only_those_to_the_pod_are_kept() {
    let container = json!({
        "name": "c",
        "ports": [{"name": "web", "containerPort": 8080}],
        "livenessProbe": {"httpGet": {"port": "web"}, "periodSeconds": 5, "timeoutSeconds": 2},
        "readinessProbe": {"exec": {"command": ["true"]}},
        "startupProbe": {"tcpSocket": {"port": 9090, "host": "192.0.2.1"}},
    });
    let sidecar =
        json!({"name": "s", "restartPolicy": "Always", "readinessProbe": {"grpc": {"port": 50051}}});
    let spec = json!({"containers": [container], "initContainers": [sidecar]});
    let (Some(Trimmed { object: Object::Pod(pod), .. }), odd) =
        trimmed(Kind::Pod, json!({"metadata": {"name": "p"}, "spec": spec}))
    else {
        panic!("not trimmed");
    };
    let probes: Vec<_> = pod.probes.iter().map(|p| (p.kind, p.handler, p.port, p.period.as_secs())).collect();
    let expected = [
        (ProbeKind::Readiness, ProbeHandler::Grpc, 50051, 10),
        (ProbeKind::Liveness, ProbeHandler::HttpGet, 8080, 5),
    ];
    assert_eq!((probes.as_slice(), odd.len()), (expected.as_slice(), 0));
}

#[test]
fn a_deletion_counts_from_its_request() {
    let meta = json!({
        "name": "p", "deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30,
        "managedFields": [{"time": "2025-12-31T00:00:00Z"}],
    });
    let (object, _) = trimmed(Kind::Pod, json!({"metadata": meta}));
    assert_eq!(object.unwrap().changed.unwrap().to_string(), "2026-01-01T00:00:00.000000000Z");
}

#[test]
fn of_the_managed_fields_only_the_times_are_read() {
    let meta = json!({
        "name": "p", "labels": null,
        "managedFields": [
            {"time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {"f:x": [{}, null]}}},
            {"manager": 7, "time": null},
            {"time": "2026-01-02T00:00:00Z", "fieldsV1": "not an object"},
        ],
    });
    let (object, odd) = trimmed(Kind::Pod, json!({"metadata": meta, "spec": null}));
    assert_eq!(object.unwrap().changed.unwrap().to_string(), "2026-01-02T00:00:00.000000000Z");
    assert_eq!(odd, []);
}

#[test]
fn a_crash_loop_has_the_reason_of_its_last_end() {
    let statuses = json!([{
        "name": "c", "ready": false, "restartCount": 7, "image": "", "imageID": "",
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
    }]);
    let pod =
        json!({"metadata": {"name": "p"}, "status": {"phase": "Running", "containerStatuses": statuses}});
    let (Some(Trimmed { object: Object::Pod(pod), .. }), _) = trimmed(Kind::Pod, pod) else {
        panic!("not trimmed")
    };
    assert_eq!((pod.restarts, pod.trouble.as_deref()), (7, Some("CrashLoopBackOff after OOMKilled")));
}

#[test]
fn a_failed_pod_has_its_own_reason() {
    let trouble = |phase: &str, reason: &str| {
        let statuses = json!([{
            "name": "c", "ready": false, "restartCount": 0, "image": "", "imageID": "",
            "state": {"terminated": {"reason": "Error", "exitCode": 137}},
        }]);
        let status = json!({"phase": phase, "reason": reason, "containerStatuses": statuses});
        match trimmed(Kind::Pod, json!({"metadata": {"name": "p"}, "status": status})) {
            (Some(Trimmed { object: Object::Pod(pod), .. }), _) => pod.trouble.as_deref().map(str::to_owned),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(trouble("Failed", "Evicted").as_deref(), Some("Evicted"));
    assert_eq!(trouble("Failed", "a\u{1b}[2J").as_deref(), Some("Error"));
    assert_eq!(trouble("Running", "NodeLost").as_deref(), Some("Error"));
}

#[test]
fn a_nodes_true_conditions_are_kept() {
    let conditions = json!([
        {"type": "Ready", "status": "Unknown"}, {"type": "MemoryPressure", "status": "True"},
        {"type": "DiskPressure", "status": "False"},
    ]);
    let addresses =
        json!([{"type": "InternalIP", "address": "192.0.2.1"}, {"type": "Hostname", "address": "n"}]);
    let status = json!({"conditions": conditions, "addresses": addresses});
    let node = json!({"metadata": {"name": "n"}, "spec": {"unschedulable": true}, "status": status});
    let (Some(Trimmed { object: Object::Node(node), .. }), odd) = trimmed(Kind::Node, node) else {
        panic!("not trimmed");
    };
    assert_eq!((node.ready, node.unschedulable, node.addresses.len(), odd.len()), (None, true, 1, 0));
    assert_eq!(node.pressure, ["MemoryPressure".into()]);
}

#[test]
fn ranges_hints_and_names_are_bounded() {
    let spec = json!({
        "type": "LoadBalancer", "loadBalancerSourceRanges": ["203.0.113.0/24", " 2001:db8::/32", "10.0.0.1/33", "x"],
        "healthCheckNodePort": 32_000, "ports": [{"port": 80, "name": "p".repeat(100_000)}],
    });
    let (service, odd) = service_of(spec, json!({}));
    let [v4, v6] = service.source_ranges[..] else { panic!("{:?}", service.source_ranges) };
    assert_eq!(odd.len(), 2, "{odd:?}");
    let inside = |range: Cidr, ip: &str| range.contains(ip.parse().unwrap());
    assert!(inside(v4, "203.0.113.255") && !inside(v4, "203.0.114.0") && !inside(v4, "2001:db8::1"));
    assert!(inside(v6, "2001:db8:ffff::1") && !inside(v6, "2001:db9::"));
    assert!(inside(Cidr::parse("0.0.0.0/0").unwrap(), "192.0.2.1"));
    assert!(inside(Cidr::parse("::/0").unwrap(), "ffff::"));
    assert_eq!((service.health_check_node_port, service.ports[0].name.len()), (Some(32_000), MAX_NAME_BYTES));

    let hints = json!({"forZones": [{"name": "a"}], "forNodes": [{"name": "n"}]});
    let endpoints = json!([{"addresses": ["10.0.0.1"], "hints": hints}]);
    let slice =
        json!({"metadata": {"name": "s"}, "addressType": "IPv4", "ports": null, "endpoints": endpoints});
    let (Some(Trimmed { object: Object::EndpointSlice(slice), .. }), _) = trimmed(Kind::EndpointSlice, slice)
    else {
        panic!("not trimmed");
    };
    let endpoint = &slice.endpoints[0];
    assert_eq!((&*endpoint.for_zones[0], &*endpoint.for_nodes[0]), ("a", "n"));
}

#[test]
fn a_slice_has_at_most_the_apis_number_of_endpoints() {
    let endpoints: Vec<Value> =
        (0..1500).map(|n| json!({"addresses": [format!("10.1.{}.{}", n >> 8, n & 255)]})).collect();
    let (slice, odd) = slice_of(&json!(endpoints));
    assert_eq!(slice.endpoints.len(), MAX_SLICE_ENDPOINTS);
    assert!(odd[0].what.contains("1500 endpoints"), "{odd:?}");
}

/// The node's wall clock was an hour slow when the trace began, and was then set right: the server's times are of the
/// right clock, those of the trace of the slow one.
#[test]
fn an_objects_times_are_brought_to_the_clock_of_the_trace() {
    let value = json!({"metadata": {
        "name": "p", "creationTimestamp": "2026-01-01T02:00:00Z", "deletionTimestamp": "2026-01-01T03:00:30Z",
        "deletionGracePeriodSeconds": 30,
    }});
    let mut trimmed = trim(Kind::Pod, &value, &mut Vec::new()).unwrap();
    let Object::Pod(before) = trimmed.object.clone() else { panic!() };
    let (created, changed, deletion) =
        (trimmed.created.unwrap(), trimmed.changed.unwrap(), before.deletion.unwrap());
    trimmed.make_trace_time(3_600_000_000_000);
    let Object::Pod(after) = trimmed.object else { panic!() };
    let hour = Duration::from_hours(1);
    assert_eq!(trimmed.created, Some(created.saturating_sub(hour)));
    assert_eq!(trimmed.changed, Some(changed.saturating_sub(hour)));
    assert_eq!(after.deletion, Some(deletion.saturating_sub(hour)));
}
