//! The same verdicts, asked of the real history of the fixture cluster's kind of objects.

use std::{fs, time::Duration};

use crate::flow_support::{NODE, Script, addr, at, fold, last_words};
use serde_json::{Value, json};
use viptrace::{
    class::Class,
    cluster::{
        Cluster, Source,
        model::{Change, Key, Object, ServiceType, Trimmed},
    },
    diagnosis::{Address, ClusterView, Context, Membership, Translations, UnreadNode, judge},
    net::{Netns, Protocol},
    sighting::TcpState,
    time::Timestamp,
    verdict::Verdict,
};

const CART: &str = "10.96.0.10:80";
const EMPTY: &str = "10.96.0.20:80";
const EP: &str = "10.244.1.7:8080";
const GONE: &str = "10.244.1.8:8080";

fn list(kind: &str, items: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": format!("{kind}List"), "metadata": {"resourceVersion": "1"}, "items": items})
}

fn service(name: &str, ip: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop", "uid": name},
        "spec": {"type": "ClusterIP", "clusterIP": ip, "clusterIPs": [ip], "selector": {"app": name},
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]}})
}

/// Service cart with one endpoint, Service empty without any; slice last changed at the start of the test's day.
fn cluster() -> Cluster {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, value: &Value| fs::write(dir.path().join(name), value.to_string()).unwrap();
    // As k3s publishes a Service: by the addresses of the nodes.
    let mut on_node = service("edge", "10.96.0.30");
    on_node["spec"]["externalIPs"] = json!(["192.168.1.2"]);
    write(
        "services.json",
        &list("Service", &json!([service("cart", "10.96.0.10"), service("empty", "10.96.0.20"), on_node])),
    );
    write(
        "endpointslices.json",
        &list(
            "EndpointSlice",
            &json!([{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "cart-1", "namespace": "shop", "uid": "s",
                    "labels": {"kubernetes.io/service-name": "cart"},
                    "managedFields": [{"manager": "m", "operation": "Update", "apiVersion": "discovery.k8s.io/v1",
                        "time": "2023-11-14T22:13:20Z", "fieldsType": "FieldsV1", "fieldsV1": {}}]},
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": [{"addresses": ["10.244.1.7"], "nodeName": "worker-1",
                    "conditions": {"ready": true, "serving": true, "terminating": false},
                    "targetRef": {"kind": "Pod", "namespace": "shop", "name": "cart-0", "uid": "p"}}]}]),
        ),
    );
    write(
        "pods.json",
        &list(
            "Pod",
            &json!([{"apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": "cart-0", "namespace": "shop", "uid": "p", "labels": {"app": "cart"}},
                "spec": {"nodeName": "worker-1", "containers": [{"name": "c", "image": "i",
                    "ports": [{"containerPort": 8080}],
                    "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 10, "timeoutSeconds": 1}}]},
                "status": {"phase": "Running", "podIP": "10.244.1.7", "podIPs": [{"ip": "10.244.1.7"}],
                    "conditions": [{"type": "Ready", "status": "True"}]}}]),
        ),
    );
    write(
        "nodes.json",
        &list(
            "Node",
            &json!([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "worker-1", "uid": "n"},
                "status": {"addresses": [{"type": "InternalIP", "address": "192.168.1.2"}],
                    "conditions": [{"type": "Ready", "status": "True"}]}}]),
        ),
    );
    let opened = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(Source::Folder(dir.path().to_owned()).open(Duration::from_mins(10)))
        .unwrap();
    assert!(opened.warnings.is_empty(), "{:?}", opened.warnings);
    opened.cluster
}

fn verdict(cluster: &Cluster, script: Script) -> Verdict {
    let translations = Translations::new();
    let ctx = Context {
        cluster: &cluster.history,
        node: &UnreadNode,
        node_name: Some("worker-1"),
        node_netns: Some(NODE),
        missing_hooks: &[],
        drop_reasons: true,
        translations: &translations,
        grace: Duration::from_secs(5),
        metadata_age: Some(0.0),
    };
    let flows = last_words(fold(script.out, 200_000).0);
    assert_eq!(flows.len(), 1, "{flows:#?}");
    judge(&flows[0], &ctx).unwrap()
}

#[test]
fn the_real_history_gives_the_same_verdicts() {
    let cluster = cluster();
    let client = "10.244.1.100:40000";
    let to_cart = || Script::new(client, CART, Some(EP));
    let ok = verdict(&cluster, to_cart().healthy(60_000));
    assert_eq!(ok.class, Class::Ok, "{ok:#?}");
    assert_eq!(ok.flow.endpoint_pod.as_deref(), Some("shop/cart-0"));
    assert_eq!(ok.service.unwrap().to_string(), "shop/cart:http");
    assert_eq!(verdict(&cluster, to_cart().refused(60_000)).class, Class::C28);
    assert_eq!(verdict(&cluster, to_cart().dead_pod(60_000)).class, Class::C29);

    let stale = verdict(&cluster, Script::new(client, CART, Some(GONE)).dead_pod(60_000));
    assert_eq!(stale.class, Class::C6, "{stale:#?}");
    assert!(stale.root_cause.contains("for at least"), "{}", stale.root_cause);

    let none = verdict(&cluster, Script::new(client, EMPTY, None).unreach(60_000, 3).connect_failed(60_001));
    assert_eq!(none.class, Class::C20, "{none:#?}");
    assert!(none.root_cause.contains("app=empty"), "{}", none.root_cause);

    let missing = verdict(&cluster, Script::new(client, CART, None).silent(60_000));
    assert_eq!(missing.class, Class::C5);
    let port = verdict(&cluster, Script::new(client, "10.96.0.10:81", None).silent(60_000));
    assert_eq!(port.class, Class::C5c);

    let probe = verdict(&cluster, Script::new("192.168.1.2:50000", EP, None).refused(60_000));
    assert_eq!(probe.class, Class::N1);
}

/// From this moment on the object is this one.
fn put(cluster: &mut Cluster, ms: u64, object: Object) {
    cluster.history.apply(at(ms), Change::Put(Trimmed { object, created: None, changed: None }));
}

#[test]
fn hints_that_narrow_the_endpoints_are_told_beside_the_fault() {
    let mut cluster = cluster();
    let key = Key::new("shop", "cart");
    let mut slice = cluster.history.slices_at(&key, at(50_000)).next().unwrap().as_ref().clone();
    let mut node = cluster.history.node("worker-1", at(50_000)).unwrap().as_ref().clone();
    node.zone = Some("a".into());
    put(&mut cluster, 51_000, Object::Node(node.into()));
    let here = slice.endpoints[0].clone();
    for (ip, zone) in [("10.244.2.7", "b"), ("10.244.2.8", "b")] {
        let mut elsewhere = here.clone();
        elsewhere.addresses = vec![ip.parse().unwrap()];
        elsewhere.for_zones = vec![zone.into()];
        slice.endpoints.push(elsewhere);
    }
    let failing = |endpoint| Script::new("10.244.1.100:40000", CART, Some(endpoint)).refused(60_000);
    let told =
        |verdict: &Verdict| verdict.evidence.iter().any(|said| said.content.contains("topology hints"));
    // One endpoint without a hint, and all are used.
    put(&mut cluster, 52_000, Object::EndpointSlice(slice.clone().into()));
    assert!(!told(&verdict(&cluster, failing(EP))));

    slice.endpoints[0].for_zones = vec!["a".into()];
    put(&mut cluster, 53_000, Object::EndpointSlice(slice.into()));
    let refused = verdict(&cluster, failing(EP));
    assert_eq!(refused.class, Class::C28);
    let said = refused.evidence.iter().find(|said| said.content.contains("topology hints")).unwrap();
    assert!(said.content.contains("1 of the 3 ready endpoints of shop/cart:http"), "{}", said.content);
    assert!(refused.cross_reference.iter().any(|reference| reference == "C25"));
    // An endpoint that hints leave to others, and one that serves.
    assert!(!told(&verdict(&cluster, failing("10.244.2.7:8080"))));
    let served = Script::new("10.244.1.100:40000", CART, Some(EP)).healthy(60_000);
    assert!(!told(&verdict(&cluster, served)));
}

#[test]
fn a_service_that_gave_its_address_up_says_why_it_has_none() {
    let (key, silent) =
        (Key::new("shop", "cart"), || Script::new("10.244.1.100:40000", CART, None).silent(60_000));
    for (class, words, change) in [
        (Class::C27, "headless", "headless"),
        (Class::C27, "a name in DNS", "name"),
        (Class::C5c, "gave up", "another address"),
    ] {
        let mut cluster = cluster();
        let mut service = cluster.history.service(&key, at(10_000)).unwrap().as_ref().clone();
        service.cluster_ips.clear();
        match change {
            "headless" => service.headless = true,
            "name" => service.r#type = ServiceType::ExternalName,
            _ => service.cluster_ips.push("10.96.0.99".parse().unwrap()),
        }
        put(&mut cluster, 20_000, Object::Service(service.into()));
        let verdict = verdict(&cluster, silent());
        assert_eq!(verdict.class, class, "{change}");
        assert!(verdict.root_cause.contains(words), "{}", verdict.root_cause);
    }
}

#[test]
fn a_nodes_own_address_is_more_than_a_services() {
    let cluster = cluster();
    let meant = |addr_text| cluster.history.address(addr(addr_text), Protocol::TCP, at(60_000));
    assert!(matches!(meant("192.168.1.2:80"), Address::Service(_)));
    assert_eq!(meant("192.168.1.2:22"), Address::Other);
    assert!(matches!(meant("10.96.0.30:22"), Address::UnknownPort { .. }));
}

#[test]
fn a_name_that_no_node_bears_tells_nothing_of_what_is_local() {
    let cluster = cluster();
    let Address::Service(cart) = cluster.history.address(addr(CART), Protocol::TCP, at(60_000)) else {
        panic!("cart is a Service")
    };
    let local = |node| ClusterView::usable(&cluster.history, &cart, Some(node), at(60_000)).unwrap().local;
    assert_eq!(local("worker-1"), Some(1));
    assert_eq!(local("worker-1.example.org"), None);
}

#[test]
fn what_was_never_read_is_not_known() {
    let history = viptrace::cluster::History::new(Duration::from_mins(1));
    let cluster = cluster();
    let Address::Service(cart) = cluster.history.address(addr(CART), Protocol::TCP, at(1000)) else {
        panic!("cart is a Service")
    };
    assert_eq!(ClusterView::membership(&history, &cart, addr(EP), at(1000)), Membership::Unknown);
    assert_eq!(ClusterView::usable(&history, &cart, None, at(1000)), None);
    assert!(
        ClusterView::usable(&cluster.history, &cart, Some("worker-1"), at(60_000)).unwrap().since
            > Timestamp::MIN
    );
    assert_ne!(NODE, Netns(0));
    assert_ne!(TcpState::Listen, TcpState::Close);
}
