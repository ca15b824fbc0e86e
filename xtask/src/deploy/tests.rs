//! The checks of `deploy/` that need no other program: the plain manifests, the alerts and the dashboard against the
//! documented metrics and the knowledge base.

use std::collections::BTreeSet;
use std::fmt::Debug;

use k8s_openapi::api::{apps, core, rbac, scheduling};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use viptrace_class::{Class, Domain};

use super::*;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn folder() -> Folder {
    Folder::of(&repository())
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn default_rendering() -> Rendering {
    Rendering::parse(&read(&folder().plain())).unwrap()
}

#[test]
fn by_default_the_agent_has_exactly_the_capabilities_that_it_needs() {
    let rendering = default_rendering();
    rendering.examine().unwrap();
    assert_eq!(rendering.capabilities().unwrap(), manifest::NEEDED);
    assert!(rendering.configuration().unwrap().contains("version: 1"));
}

/// The plugin leaves out the same nodes (`cluster::trim`).
#[test]
fn no_agent_waits_for_a_virtual_node() {
    let rendering = default_rendering();
    let set = rendering.0.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
    let set: apps::v1::DaemonSet = serde_json::from_value(set.clone()).unwrap();
    let affinity = set.spec.unwrap().template.spec.unwrap().affinity.unwrap().node_affinity.unwrap();
    let terms = affinity.required_during_scheduling_ignored_during_execution.unwrap().node_selector_terms;
    let [term] = terms.as_slice() else { panic!("terms are alternatives: {terms:?}") };
    let excluded: Vec<(&str, Vec<String>)> = term
        .match_expressions
        .iter()
        .flatten()
        .filter(|expression| expression.operator == "NotIn")
        .map(|expression| (expression.key.as_str(), expression.values.clone().unwrap_or_default()))
        .collect();
    let expected = [
        ("type", vec!["virtual-kubelet".to_owned(), "kwok".to_owned()]),
        ("eks.amazonaws.com/compute-type", vec!["fargate".to_owned()]),
    ];
    assert_eq!(excluded, expected);
}

/// Fields that the API's types do not have are lost on the way.
fn round_trip<T: DeserializeOwned + Serialize + Debug>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), *object);
}

#[test]
fn every_field_of_the_plain_manifests_is_one_of_the_api() {
    let rendering = default_rendering();
    for object in &rendering.0 {
        match object["kind"].as_str().unwrap() {
            "Namespace" => round_trip::<core::v1::Namespace>(object),
            "ServiceAccount" => round_trip::<core::v1::ServiceAccount>(object),
            "ConfigMap" => round_trip::<core::v1::ConfigMap>(object),
            "ClusterRole" => round_trip::<rbac::v1::ClusterRole>(object),
            "ClusterRoleBinding" => round_trip::<rbac::v1::ClusterRoleBinding>(object),
            "PriorityClass" => round_trip::<scheduling::v1::PriorityClass>(object),
            "DaemonSet" => round_trip::<apps::v1::DaemonSet>(object),
            other => panic!("{other} is not read here"),
        }
    }
    assert_eq!(rendering.core(), 7);
}

#[test]
fn a_rendering_with_too_much_is_refused() {
    let text = read(&folder().plain());
    for (from, to, reason) in [
        ("privileged: false", "privileged: true", "the container is privileged"),
        ("readOnlyRootFilesystem: true", "readOnlyRootFilesystem: false", "can be written"),
        ("drop: [ALL]", "drop: []", "are not dropped"),
        ("\"BPF\",", "\"BPF\",\"SYS_MODULE\",", "SYS_MODULE has no switch"),
        ("\"BPF\",", "", "BPF is missing"),
        ("allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "without need"),
        ("hostNetwork: true", "hostNetwork: false", "network namespace"),
        ("cpu: 200m", "ephemeral-storage: 1Gi", "no limit"),
        ("name: recordings\n          hostPath", "name: root\n          hostPath", "another folder"),
        (
            "path: /readyz\n              port: 9479",
            "path: /readyz\n              port: 9478",
            "another port",
        ),
        ("[services, pods, nodes]", "[secrets]", "a role for secrets"),
        ("verbs: [get, list, watch]", "verbs: [get, patch]", "may patch"),
        (
            "verbs: [get, list, watch]",
            "verbs: [get, create]",
            "roles may create {\"endpointslices.discovery.k8s.io\", \"nodes\"",
        ),
        (
            "listen: 127.0.0.1:9478",
            "authorization: token",
            "needs {\"subjectaccessreviews.authorization.k8s.io\"",
        ),
    ] {
        assert!(text.contains(from), "{from}");
        let changed = Rendering::parse(&text.replace(from, to)).unwrap();
        let error = changed.examine().unwrap_err().to_string();
        assert!(error.contains(reason), "{from} to {to}: {error}");
    }
}

/// Exactly an agent that requires tokens creates the two reviews of a token.
#[test]
fn only_an_agent_that_requires_tokens_creates_reviews() {
    const RULE: &str = "
  - apiGroups: [authentication.k8s.io]
    resources: [tokenreviews]
    verbs: [create]
  - apiGroups: [authorization.k8s.io]
    resources: [subjectaccessreviews]
    verbs: [create]
";
    let text = read(&folder().plain());
    let rules = text.find("\nrules:").unwrap() + "\nrules:".len();
    let with_rules = format!("{}{RULE}{}", &text[..rules], text[rules..].trim_start_matches('\n'));
    let with_token = with_rules.replace("listen: 127.0.0.1:9478", "authorization: token");
    Rendering::parse(&with_token).unwrap().examine().unwrap();
    let error = Rendering::parse(&with_rules).unwrap().examine().unwrap_err().to_string();
    assert!(error.contains("needs {}"), "{error}");
    let one = with_token.replacen("verbs: [create]", "verbs: [get]", 1);
    let error = Rendering::parse(&one).unwrap().examine().unwrap_err().to_string();
    assert!(error.contains("roles may create {\"subject"), "{error}");
    // The configuration is in a Secret: the chart grants both or none.
    let secret = |text: &str| text.replace("agent.yaml: |", "other: |");
    Rendering::parse(&secret(&with_token)).unwrap().examine().unwrap();
    Rendering::parse(&secret(&text)).unwrap().examine().unwrap();
    assert!(Rendering::parse(&secret(&one)).unwrap().examine().is_err());
}

#[test]
fn the_chart_has_the_programs_version() {
    let chart: Value = serde_saphyr::from_str(&read(&folder().chart().join("Chart.yaml"))).unwrap();
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
}

#[derive(Debug)]
struct Alert {
    name: String,
    expression: String,
    runbook: String,
}

fn alerts() -> Vec<Alert> {
    let file: Value = serde_saphyr::from_str(&read(&folder().alerts())).unwrap();
    let groups = file["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rules
        .filter(|rule| rule["alert"].is_string())
        .map(|rule| Alert {
            name: text(&rule["alert"]),
            expression: text(&rule["expr"]),
            runbook: text(&rule["annotations"]["runbook_url"]),
        })
        .collect()
}

/// An alert on a node's kube-proxy that does not name the node sends people to all of them.
#[test]
fn an_alert_on_a_nodes_kube_proxy_names_the_node() {
    let rules = read(&folder().alerts());
    for domain in [Domain::PodCrash, Domain::ApiConnectivity] {
        let alert =
            rules.split("- alert: ").find(|rule| rule.contains(&format!("{{domain=\"{domain}\"}}"))).unwrap();
        let summary = alert.lines().find(|line| line.contains("summary:")).unwrap();
        assert!(summary.contains("$labels.node"), "{summary}");
        assert!(alert.contains("viptrace:node_faults:increase10m"), "{alert}");
    }
}

#[test]
fn each_domain_of_a_fault_has_an_alert() {
    let alerts = alerts();
    let has = |part: &str| alerts.iter().filter(|alert| alert.expression.contains(part)).count();
    for domain in Domain::ALL {
        let expected = usize::from(!matches!(domain, Domain::Normal | Domain::Unknown));
        assert_eq!(has(&format!("{{domain=\"{domain}\"}}")), expected, "{domain}");
    }
    assert_eq!(has("viptrace:unexplained:"), 1);
}

/// The template in a runbook's address, filled in as Prometheus does for this class.
fn page_of(runbook: &str, class: Class) -> String {
    const TEMPLATE: &str = "{{ reReplaceAll \"^C17[a-z]$\" \"C17\" $labels.class }}";
    let variant = class.id().strip_prefix("C17").is_some_and(|rest| rest.len() == 1);
    runbook.replace(TEMPLATE, if variant { "C17" } else { class.id() })
}

#[test]
fn each_alert_links_a_page_of_this_repository() {
    const BASE: &str = "https://github.com/viptrace/viptrace/blob/main/";
    for alert in alerts() {
        for class in Class::ALL.iter().copied().filter(|class| class.is_fault()) {
            let page = page_of(&alert.runbook, class);
            let path = page.strip_prefix(BASE).unwrap_or_else(|| panic!("{alert:?}"));
            assert!(repository().join(path).is_file(), "{}: {path}", alert.name);
        }
    }
}

/// The names that begin with one of viptrace's or the process's prefixes. Recorded series have colons.
fn metrics_in(expression: &str) -> BTreeSet<&str> {
    let words =
        expression.split(|character: char| !(character.is_ascii_alphanumeric() || "_:".contains(character)));
    words
        .filter(|word| (word.starts_with("viptrace_") || word.starts_with("process_")) && !word.contains(':'))
        .collect()
}

/// The metrics of the table in docs/agent.md, each with its labels.
fn documented() -> Vec<(String, Vec<String>)> {
    let page = read(&repository().join("docs/agent.md"));
    let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = page.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    rows.filter_map(|cells| {
        let [_, name, kind, labels, ..] = cells.as_slice() else { return None };
        let name = name.trim_matches('`');
        let is_metric = ["counter", "gauge", "info", "histogram"].contains(kind);
        is_metric.then(|| (name.to_owned(), quoted(labels)))
    })
    .collect()
}

/// The expressions of the dashboard, the alerts and the recorded series.
fn expressions() -> Vec<String> {
    let dashboard = queries(&read(&folder().dashboard())).unwrap();
    let rules: Value = serde_saphyr::from_str(&read(&folder().alerts())).unwrap();
    let groups = rules["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let rules = rules.map(|rule| rule["expr"].as_str().unwrap().to_owned());
    dashboard.into_iter().map(|query| query.expression).chain(rules).collect()
}

/// The increase of a class's first series begins at its first value: without the value of new series, the first faults of
/// a Service are missing.
#[test]
fn the_first_faults_of_a_service_are_counted() {
    let mut increases = 0;
    for metric in ["viptrace_faults_total", "viptrace_unexplained_total"] {
        for expression in expressions().iter().filter(|it| it.contains(&format!("increase({metric}"))) {
            let begun = expression.split(" unless ").nth(1).unwrap_or_default();
            let of_then = begun.starts_with(metric) && begun.contains(" offset ");
            assert!(of_then, "it does not count the first value of a series: {expression}");
            increases += 1;
        }
    }
    assert_eq!(increases, 7, "three recorded series, two figures and two tables");
}

#[test]
fn alerts_and_dashboard_use_documented_metrics_and_labels() {
    let documented = documented();
    assert!(documented.len() > 30, "the table was not found");
    let mut used = BTreeSet::new();
    for expression in expressions() {
        let metrics = metrics_in(&expression);
        let labels: BTreeSet<&str> = documented
            .iter()
            .filter(|(name, _)| metrics.contains(name.as_str()))
            .flat_map(|(_, labels)| labels.iter().map(String::as_str))
            .chain(["instance", "job", "node"])
            .collect();
        for group in expression.split("by (").skip(1) {
            let grouped = group.split(')').next().unwrap().split(',').map(str::trim);
            if !metrics.is_empty() {
                for label in grouped {
                    assert!(labels.contains(label), "no metric has the label {label}: {expression}");
                }
            }
        }
        used.extend(metrics.into_iter().map(str::to_owned));
    }
    for metric in &used {
        assert!(documented.iter().any(|(name, _)| name == metric), "docs/agent.md has no {metric}");
    }
    assert!(used.len() > 20, "{used:?}");
}

#[test]
fn grafanas_variables_are_filled_in_before_promtool_reads_a_query() {
    let target = r#"{"refId": "A", "expr": "rate(a{b=~\"$namespace\"}[$__rate_interval]) < $__range_s"}"#;
    let dashboard =
        format!(r#"{{"panels": [{{"id": 1, "type": "row"}}, {{"id": 2, "targets": [{target}]}}]}}"#);
    let query =
        |name: &str, expression: &str| Query { name: name.to_owned(), expression: expression.to_owned() };
    assert_eq!(queries(&dashboard).unwrap(), [query("panel:2:A", r#"rate(a{b=~".*"}[5m]) < 300"#)]);
    assert!(queries(r#"{"panels": []}"#).is_err());
    let rules = as_rules(&[query("panel:1:A", "up")]).unwrap();
    assert_eq!(rules, r#"{"groups":[{"name":"dashboard","rules":[{"expr":"up","record":"panel:1:A"}]}]}"#);
}
