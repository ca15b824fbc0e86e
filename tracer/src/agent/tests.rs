use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::*;
use crate::{
    class::Class,
    cluster::{History, Key, Kind, model::Change, trim::trim},
    report::fixture,
    session::{Judged, NotJudged},
    verdict::ServiceRef,
};

fn verdict(service: &str, class: Class) -> Verdict {
    let mut verdict = fixture::fault();
    verdict.class = class;
    verdict.service =
        Some(ServiceRef { namespace: "shop".into(), name: service.into(), port: "http".into() });
    verdict.flow.endpoint = Some(([10, 244, 1, 11], 8080).into());
    verdict
}

fn judged(service: &str, class: Class) -> Judged {
    fixture::judged(verdict(service, class))
}

fn shared(max: usize) -> Arc<Shared> {
    Arc::new(Shared::new(Counts::new(max, true, Duration::from_mins(15))))
}

fn scrape(figures: &Arc<Shared>) -> String {
    let mut text = String::new();
    metrics::write(&mut text, &metrics::registry(Arc::clone(figures))).unwrap();
    text
}

/// The values of a metric's series.
fn values(text: &str, name: &str) -> Vec<u64> {
    let of = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    text.lines()
        .filter(|line| of(line))
        .map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
        .collect()
}

#[test]
fn hostile_names_stay_within_their_label() {
    let figures = shared(100);
    let hostile = "a\"} 7\nviptrace_ready 1 # \\ {x=\"\u{1b}[2J";
    figures.lock().judged(&judged(hostile, Class::C20));
    let text = scrape(&figures);
    assert_eq!(values(&text, "viptrace_ready"), [0]);
    assert_eq!(values(&text, "viptrace_faults_total"), [1]);
    let line = text.lines().find(|line| line.starts_with("viptrace_faults_total{")).unwrap();
    assert!(line.contains(r#"service="a\"} 7\nviptrace_ready 1 # \\ {x=\""#), "{line}");
    assert!(text.ends_with("# EOF\n"));
}

/// A page whose text is written only while nobody holds the figures.
struct Unheld<'a>(&'a Shared, usize);

impl std::fmt::Write for Unheld<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.1 += text.len();
        if self.0.is_free() { Ok(()) } else { Err(std::fmt::Error) }
    }
}

#[test]
fn the_event_loop_does_not_wait_for_a_scrape() {
    let figures = shared(100);
    figures.lock().judged(&judged("cart", Class::C20));
    let mut page = Unheld(&figures, 0);
    metrics::write(&mut page, &metrics::registry(Arc::clone(&figures))).unwrap();
    assert!(page.1 > 1000);
}

#[test]
fn series_are_bounded_and_the_sums_stay_exact() {
    let figures = shared(50);
    for number in 0..300 {
        figures.lock().judged(&judged(&format!("service-{number}"), Class::C20));
        figures.lock().judged(&judged(&format!("service-{number}"), Class::Unknown));
    }
    let text = scrape(&figures);
    assert_eq!(values(&text, "viptrace_connections_total").iter().sum::<u64>(), 600);
    assert_eq!(values(&text, "viptrace_faults_total").iter().sum::<u64>(), 300);
    assert_eq!(values(&text, "viptrace_unexplained_total").iter().sum::<u64>(), 300);
    let series = figures.lock().counts.len();
    assert!(series <= 50 + 3, "{series}");
    assert!(text.contains(r#"service="_other""#) && !text.contains("service-200"));
    assert!(values(&text, "viptrace_series_limited_total")[0] > 800);
}

/// An ingress node has more pairs of a Service and an endpoint than series. Its next fault has its Service's name all the same.
#[test]
fn connections_leave_series_to_failures() {
    let figures = shared(100);
    for number in 0..200 {
        figures.lock().judged(&judged(&format!("service-{number}"), Class::Ok));
    }
    let key = |name: &str| Key::new("shop", name);
    figures.lock().judged(&judged("cart", Class::C20));
    figures.lock().judged(&judged("checkout", Class::Unknown));
    figures.lock().counts.suppressed(&key("cart"), 7);
    figures.lock().counts.evicted(&judged("cart", Class::Ok).verdict.service.unwrap(), 3);
    let text = scrape(&figures);
    for (line, count) in [
        (
            r#"viptrace_faults_total{namespace="shop",service="cart",port="http",class="C20",domain="no_endpoints"}"#,
            1,
        ),
        (r#"viptrace_unexplained_total{namespace="shop",service="checkout",port="http"}"#, 1),
        (r#"viptrace_service_suppressed_events_total{namespace="shop",service="cart"}"#, 7),
        (r#"viptrace_service_evicted_flows_total{namespace="shop",service="cart",port="http"}"#, 3),
    ] {
        assert!(text.contains(&format!("{line} {count}\n")), "{line}: {text}");
    }
    assert_eq!(values(&text, "viptrace_connections_total").len(), 75 + 1);
    for number in 0..200 {
        figures.lock().counts.suppressed(&key(&format!("service-{number}")), 2);
    }
    let text = scrape(&figures);
    assert_eq!(values(&text, "viptrace_service_suppressed_events_total").iter().sum::<u64>(), 407);
    assert!(text.contains(r#"viptrace_service_suppressed_events_total{namespace="",service="_other"}"#));
    assert!(values(&text, "viptrace_series")[0] <= 100 + 2);
}

#[test]
fn a_healthy_flow_near_a_loss_is_unknown_and_did_not_break() {
    let figures = shared(50);
    figures.lock().judged(&fixture::judged(fixture::near_a_loss(40_001)));
    let text = scrape(&figures);
    assert!(text.contains("\nviptrace_flows_total{result=\"unknown\"} 1\n"), "{text}");
    assert_eq!(values(&text, "viptrace_unexplained_total"), Vec::<u64>::new());
    figures.lock().judged(&judged("cart", Class::Unknown));
    assert_eq!(values(&scrape(&figures), "viptrace_unexplained_total"), [1]);
}

#[test]
fn a_flow_counts_once_as_a_connection_and_a_corrected_verdict_is_counted() {
    let figures = shared(50);
    let first = judged("cart", Class::Unknown);
    let second = Judged { before: Some(Arc::new(first.verdict.key())), ..judged("cart", Class::C20) };
    figures.lock().judged(&first);
    figures.lock().judged(&second);
    let text = scrape(&figures);
    assert_eq!(values(&text, "viptrace_connections_total"), [1]);
    assert_eq!(values(&text, "viptrace_corrected_flows_total"), [1]);
    assert_eq!(values(&text, "viptrace_faults_total"), [1]);
    assert!(text.contains("\nviptrace_last_fault_timestamp_seconds 101.5\n"), "{text}");
}

#[test]
fn flows_that_are_left_to_other_nodes_are_counted_apart() {
    let figures = shared(50);
    assert_eq!(values(&scrape(&figures), "viptrace_other_nodes_flows_total"), [0]);
    figures.lock().flows_of_other_nodes = 7;
    let text = scrape(&figures);
    assert_eq!(values(&text, "viptrace_other_nodes_flows_total"), [7]);
    assert_eq!(values(&text, "viptrace_flows_total").iter().sum::<u64>(), 0);
}

/// Series of a port that its Service no longer has.
#[test]
fn the_series_of_a_renamed_port_are_removed_later_unless_they_are_counted_again() {
    let at = |minute: u64| Timestamp::from_unix_secs(minute * 60);
    let service = |port: &str| {
        let metadata = json!({"name": "cart", "namespace": "shop", "uid": "cart"});
        let ports = json!([{"name": port, "port": 80, "protocol": "TCP", "targetPort": 8080}]);
        json!({"metadata": metadata, "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": ports}})
    };
    let figures = Arc::new(Shared::new(Counts::new(100, false, Duration::from_mins(15))));
    figures.lock().judged(&judged("cart", Class::C20));
    figures.lock().counts.suppressed(&Key::new("shop", "cart"), 1);
    let mut history = History::new(Duration::from_hours(2));
    history.mark_known(Kind::Service);
    history.mark_known(Kind::EndpointSlice);
    history.apply(at(1), put(Kind::Service, &service("http")));
    let left = |history: &History, minute| {
        figures.lock().counts.remove_gone(history, at(minute), at(minute));
        let text = scrape(&figures);
        (values(&text, "viptrace_connections_total").len(), values(&text, "viptrace_faults_total").len())
    };
    assert_eq!(left(&history, 60), (1, 1));
    history.apply(at(61), put(Kind::Service, &service("web")));
    assert_eq!(left(&history, 62), (1, 1));
    // Clients still use the old name's port.
    figures.lock().judged(&judged("cart", Class::C20));
    assert_eq!(left(&history, 78), (1, 1));
    assert_eq!(values(&scrape(&figures), "viptrace_faults_total"), [2]);
    assert_eq!(left(&history, 94), (0, 0), "the port is gone for more than 15 minutes");
    assert_eq!(
        values(&scrape(&figures), "viptrace_service_suppressed_events_total"),
        [1],
        "the Service is not"
    );
    history.apply(at(95), Change::Delete(Kind::Service, Key::new("shop", "cart")));
    left(&history, 96);
    left(&history, 112);
    assert!(values(&scrape(&figures), "viptrace_service_suppressed_events_total").is_empty());
}

fn put(kind: Kind, value: &serde_json::Value) -> Change {
    Change::Put(trim(kind, value, &mut Vec::new()).unwrap())
}

#[test]
fn the_series_of_a_deleted_service_and_of_a_gone_endpoint_are_removed_later() {
    let at = |minute: u64| Timestamp::from_unix_secs(minute * 60);
    let service = |name: &str| {
        let metadata = json!({"name": name, "namespace": "shop", "uid": name});
        let ports = json!([{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]);
        json!({"metadata": metadata, "spec": {"clusterIP": "10.96.0.1", "clusterIPs": ["10.96.0.1"], "ports": ports}})
    };
    let slice = |address: &str| {
        json!({
            "metadata": {"name": "s", "namespace": "shop", "uid": "s", "labels": {"kubernetes.io/service-name": "cart"}},
            "addressType": "IPv4", "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": [{"addresses": [address], "conditions": {"ready": true}}],
        })
    };
    let figures = shared(100);
    for name in ["cart", "checkout"] {
        figures.lock().judged(&judged(name, Class::C20));
    }
    let mut history = History::new(Duration::from_hours(2));
    figures.lock().counts.remove_gone(&history, at(0), at(0));
    history.mark_known(Kind::Service);
    history.mark_known(Kind::EndpointSlice);
    history.apply(at(1), put(Kind::Service, &service("cart")));
    history.apply(at(1), put(Kind::EndpointSlice, &slice("10.244.1.11")));
    let left = |history: &History, minute| {
        figures.lock().counts.remove_gone(history, at(minute), at(minute));
        let text = scrape(&figures);
        (values(&text, "viptrace_connections_total").len(), values(&text, "viptrace_faults_total").len())
    };
    assert_eq!(left(&history, 2), (2, 2), "checkout is gone, and its last increments can still be scraped");
    assert_eq!(left(&history, 17), (2, 2));
    assert_eq!(left(&history, 18), (1, 1), "checkout is gone for more than 15 minutes");
    assert_eq!(left(&history, 100), (1, 1));
    history.apply(at(101), put(Kind::EndpointSlice, &slice("10.244.1.99")));
    assert_eq!(left(&history, 102), (1, 1));
    assert_eq!(left(&history, 118), (0, 1), "the endpoint is gone; its Service is not");
    history.apply(at(119), Change::Delete(Kind::Service, Key::new("shop", "cart")));
    figures.lock().counts.set(100, true, Duration::from_mins(1));
    assert_eq!(left(&history, 120), (0, 1));
    assert_eq!(left(&history, 122), (0, 0), "a reloaded configuration keeps it for less time");
}

#[test]
fn the_page_lists_every_metric_with_its_type_and_labels() {
    let figures = shared(100);
    {
        let mut figures = figures.lock();
        figures.judged(&judged("cart", Class::C20));
        figures.judged(&judged("cart", Class::Unknown));
        figures.counts.suppressed(&Key::new("shop", "cart"), 1);
        figures.counts.evicted(&judged("cart", Class::Ok).verdict.service.unwrap(), 1);
        figures.hooks.insert("nf_hook", true);
        let measured = Some((Duration::from_millis(3), 7));
        figures.runs.insert("nf_hook", HookRuns { skipped: 1, measured });
        figures.metadata_age = Some(Duration::ZERO);
        figures.decision_retention = Some(Duration::from_secs(8));
        figures.recorder.up = Some(true);
        figures.requests.insert(("metrics", 200), 1);
    }
    let text = scrape(&figures);
    let mut types: BTreeMap<&str, &str> = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let (name, kind) = line.split_once(' ').unwrap();
        types.insert(name, kind);
    }
    let mut served = BTreeSet::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let family = ["_total", "_info"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let labels = line.split_once('{').map_or("", |(_, rest)| rest.split_once('}').unwrap().0);
        let labels: Vec<&str> = labels
            .split(',')
            .filter(|part| !part.is_empty())
            .map(|part| part.split_once('=').unwrap().0)
            .collect();
        served.insert(format!("{name} {} {}", types[family], labels.join(" ")));
    }
    let page = include_str!("../../../docs/agent.md");
    let table = page.split("## Metrics").nth(1).unwrap().split("\n## ").next().unwrap();
    let listed: BTreeSet<String> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let labels = cells[3].replace(['`', ','], "").replace('–', "");
            format!("{} {} {}", cells[1].trim_matches('`'), cells[2], labels.trim())
        })
        .collect();
    assert_eq!(served, listed);
}

#[test]
fn a_hook_that_nothing_needs_is_neither_attached_nor_missing() {
    let line =
        |hook: &str, state| HookLine { hook: hook.into(), attach: "kprobe".into(), state, reason: None };
    let hooks = needed_hooks(&[
        line("kfree_skb", HookState::Attached),
        line("early_drop", HookState::Missing),
        line("nf_send_unreach", HookState::NotNeeded),
        line("of_another_version", HookState::Attached),
    ]);
    assert_eq!(hooks, BTreeMap::from([("early_drop", false), ("kfree_skb", true)]));
}

#[test]
fn flows_are_sampled_by_their_addresses() {
    let hashes: BTreeSet<u64> = (0..1000).map(|port| flow_hash(&fixture::ok(port))).collect();
    assert_eq!(hashes.len(), 1000);
    let config = Config::parse("version: 1\nsample: 1/10\n").unwrap();
    let sampled = hashes.iter().filter(|hash| config.sample.has(**hash)).count();
    assert!((50..200).contains(&sampled), "{sampled}");
    let every = Config::parse("version: 1\nsample: 1/1\n").unwrap();
    assert!(hashes.iter().all(|hash| every.sample.has(*hash)));
}

/// An agent without ports, and the runtime of its tasks.
fn agent(yaml: &str) -> (tokio::runtime::Runtime, Agent) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let text = format!(
        "version: 1\nmetrics: {{listen: null}}\nhealth: {{listen: null}}\nstream: {{socket: null}}\n{yaml}"
    );
    let config = Config::parse(&text).unwrap();
    let agent = {
        let _entered = runtime.enter();
        Agent::start(config, Path::new("/nowhere/agent.yaml"), None).unwrap()
    };
    (runtime, agent)
}

#[test]
fn flows_are_sampled_as_the_agent_started() {
    let (_runtime, mut agent) = agent("sample: 1/1\n");
    let mut readers = agent.context.hub.subscribe(100);
    let judged = (0..50).map(|port| fixture::judged(fixture::ok(port))).collect();
    let judgements = Judgements { judged, ..Judgements::default() };
    agent.config.send_replace(Arc::new(Config::parse("version: 1\nsample: 1/1000000\n").unwrap()));
    agent.show(&judgements).unwrap();
    assert_eq!(std::iter::from_fn(|| readers.records.try_recv().ok()).count(), 50);
}

#[test]
fn evicted_flows_and_refused_addresses_are_counted_without_a_judged_flow() {
    let (_runtime, mut agent) = agent("");
    let at = Timestamp::from_unix_secs(100);
    let of = |service: Option<&str>, count| {
        let service = service.and_then(|name| verdict(name, Class::Ok).service);
        NotJudged { service, count, first: at, last: at }
    };
    let unjudged = vec![of(Some("cart"), 3), of(None, 5)];
    agent.show(&Judgements { unjudged, ..Judgements::default() }).unwrap();
    agent.services_refused(12);
    let text = scrape(&agent.context.figures);
    assert_eq!(values(&text, "viptrace_service_evicted_flows_total"), [3]);
    assert_eq!(values(&text, "viptrace_services_refused"), [12]);
}

#[test]
fn the_probes_report_the_state() {
    let health = Health::new();
    assert!(health.healthz().0 && !health.readyz().0);
    health.waits_for(Some("nf_conntrack"));
    let (is_ready, why) = health.readyz();
    assert!(!is_ready && why.contains("module nf_conntrack") && health.healthz().0, "{why}");
    health.waits_for(None);
    assert!(health.readyz().1.starts_with("starting"));
    health.ready();
    assert!(health.healthz().0 && health.readyz().0);
    health.draining();
    assert!(health.healthz().0);
    assert_eq!(health.readyz(), (false, "draining".to_owned()));
}
