//! The agent's data on their way out: the export by OTLP, and the metrics over TLS for the owner of a token.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver},
    },
    thread,
};

use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::{Value, json};

use crate::agent_support::{Agent, PATIENCE, recording, sum, viptrace};

/// A request as a server received it.
#[derive(Debug)]
struct Received {
    path: String,
    head: String,
    body: Value,
}

/// An HTTP server on its own thread, which answers each request with a status and a body.
fn server(
    answer: impl Fn(&Received, usize) -> (u16, String) + Send + 'static,
) -> (SocketAddr, Receiver<Received>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, received) = mpsc::channel();
    thread::spawn(move || {
        let mut number = 0;
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            while let Some(request) = read(&mut stream) {
                let (status, body) = answer(&request, number);
                number += 1;
                let head = format!(
                    "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                // First the note, then the answer: a client that has its answer finds its request noted.
                let noted = sender.send(request);
                if noted.is_err() || stream.get_mut().write_all((head + &body).as_bytes()).is_err() {
                    break;
                }
            }
        }
    });
    (address, received)
}

fn read(stream: &mut BufReader<TcpStream>) -> Option<Received> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    stream.read_exact(&mut body).ok()?;
    let path = head.split(' ').nth(1)?.to_owned();
    Some(Received { path, head, body: serde_json::from_slice(&body).unwrap_or_default() })
}

/// Values of attributes by key.
fn attribute<'a>(attributes: &'a Value, key: &str) -> Option<&'a str> {
    let found = attributes.as_array()?.iter().find(|attribute| attribute["key"] == key)?;
    found["value"]["stringValue"].as_str().or_else(|| found["value"]["intValue"].as_str())
}

#[test]
fn verdicts_and_counts_reach_an_otlp_receiver_that_first_refuses() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let faults = viptrace(&["replay", source.to_str().unwrap(), "-o", "json"]);
    let faults: Vec<Value> = String::from_utf8(faults.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (address, received) =
        server(|_, number| if number == 0 { (503, String::new()) } else { (200, "{}".to_owned()) });
    let yaml = format!(
        "sample: 1/1000000\notlp: {{endpoint: 'http://{address}/base/', headers: {{x-tenant: a}}}}\n"
    );
    let mut agent = Agent::start(folder.path(), &source, &yaml);
    let text = agent
        .until(|text| sum(text, "viptrace_otlp_exported_total", "signal=\"logs\"") >= faults.len() as u64);
    assert_eq!(sum(&text, "viptrace_otlp_failures_total", "logs"), 1);
    assert_eq!(sum(&text, "viptrace_otlp_dropped_total", ""), 0);
    assert_eq!(agent.stop(), Some(0), "{}", agent.log);

    let mut records = Vec::new();
    let mut points = Vec::new();
    while let Ok(request) = received.try_recv() {
        assert!(
            request.head.contains("x-tenant: a") && request.head.contains("content-type: application/json")
        );
        if request.path == "/base/v1/logs" {
            let resource = &request.body["resourceLogs"][0];
            assert_eq!(attribute(&resource["resource"]["attributes"], "service.name"), Some("viptrace"));
            records.push(resource["scopeLogs"][0]["logRecords"].as_array().unwrap().clone());
        } else {
            assert_eq!(request.path, "/base/v1/metrics");
            let scoped = &request.body["resourceMetrics"][0]["scopeMetrics"][0];
            points.extend(scoped["metrics"].as_array().unwrap().clone());
        }
    }
    assert_eq!(records[0], records[1], "the refused request is repeated");
    let records: Vec<Value> = records.into_iter().skip(1).flatten().collect();
    assert_eq!(records.len(), faults.len());
    for (record, fault) in records.iter().zip(&faults) {
        let attributes = &record["attributes"];
        assert_eq!(attribute(attributes, "viptrace.class"), fault["class"].as_str());
        let whole: Value = serde_json::from_str(attribute(attributes, "viptrace.record").unwrap()).unwrap();
        assert_eq!(&whole, fault);
        assert_eq!(record["body"]["stringValue"], fault["root_cause"]);
        assert!(record["timeUnixNano"].as_str().unwrap().parse::<u64>().is_ok());
        assert_eq!(record["severityNumber"], if fault["class"] == "unknown" { 13 } else { 17 });
        assert!(attribute(attributes, "client.port").unwrap().parse::<u16>().is_ok());
    }
    let faults_metric = points.iter().find(|metric| metric["name"] == "viptrace.faults").unwrap();
    let exported: u64 = faults_metric["sum"]["dataPoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| point["asInt"].as_str().unwrap().parse::<u64>().unwrap())
        .sum();
    assert_eq!(exported, sum(&text, "viptrace_faults_total", ""));
    assert_eq!(faults_metric["sum"]["aggregationTemporality"], 2);
    assert_eq!(faults_metric["sum"]["isMonotonic"], true);
}

#[test]
fn a_receiver_that_is_gone_costs_records_beyond_the_queue() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let yaml = format!("sample: 1/1\ndrain: 1s\notlp: {{endpoint: 'http://{gone}', queue: 16}}\n");
    let mut agent = Agent::start(folder.path(), &source, &yaml);
    let dropped = |text: &str| sum(text, "viptrace_otlp_dropped_total", "signal=\"logs\"");
    let text = agent.until(|text| dropped(text) > 0);
    let failed = sum(&text, "viptrace_faults_total", "") + sum(&text, "viptrace_unexplained_total", "");
    assert!(dropped(&text) >= failed.saturating_sub(16 + 512));
    assert_eq!(sum(&text, "viptrace_ready", ""), 1);
    assert_eq!(agent.stop(), Some(0), "{}", agent.log);
    assert!(agent.log.contains("warn otlp: cannot send logs to http://127.0.0.1:"), "{}", agent.log);
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

/// The status of a scrape over TLS.
fn scrape(address: SocketAddr, token: Option<&str>) -> u16 {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(data("ca.pem")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = StreamOwned::new(client, TcpStream::connect(address).unwrap());
    let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{token}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    // The server may close the connection without a notice.
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert_eq!(answer.contains("viptrace_build_info"), answer.starts_with("HTTP/1.1 200"), "{answer}");
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_metrics_require_a_token_that_the_api_server_allows() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let (api, received) = server(|request, _| {
        let spec = &request.body["spec"];
        let answer = match request.path.split('?').next().unwrap() {
            "/apis/authentication.k8s.io/v1/tokenreviews" => match spec["token"].as_str() {
                Some("broken") => return (500, "{}".to_owned()),
                Some("invented") => json!({"spec": {}, "status": {"authenticated": false}}),
                Some(name) => json!({
                    "spec": {},
                    "status": {"authenticated": true, "user": {"username": name, "groups": ["system:authenticated"]}},
                }),
                None => return (400, "{}".to_owned()),
            },
            "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
                let asked = spec["nonResourceAttributes"] == json!({"path": "/metrics", "verb": "get"})
                    && spec["groups"] == json!(["system:authenticated"]);
                json!({"spec": {}, "status": {"allowed": asked && spec["user"] == "prometheus"}})
            }
            _ => return (404, "{}".to_owned()),
        };
        (201, answer.to_string())
    });
    let kubeconfig = folder.path().join("kubeconfig");
    std::fs::write(&kubeconfig, viptrace_lab::apiserver::kubeconfig(api)).unwrap();
    let yaml = format!(
        "cluster: {{kubeconfig: '{}'}}\nmetrics:\n  listen: '127.0.0.1:0'\n  authorization: token\n  \
         tls: {{certificate: '{}', key: '{}'}}\n",
        kubeconfig.display(),
        data("server.pem").display(),
        data("server.key").display()
    );
    let mut agent = Agent::start(folder.path(), &source, &yaml);
    assert_eq!(scrape(agent.metrics, None), 401);
    assert_eq!(received.try_iter().count(), 0, "without a token there is nothing to review");
    assert_eq!(scrape(agent.metrics, Some("prometheus")), 200);
    assert_eq!(received.try_iter().count(), 2);
    assert_eq!(scrape(agent.metrics, Some("prometheus")), 200);
    assert_eq!(received.try_iter().count(), 0, "the answer is kept");
    assert_eq!(scrape(agent.metrics, Some("somebody")), 403);
    assert_eq!(scrape(agent.metrics, Some("invented")), 401);
    assert_eq!(scrape(agent.metrics, Some("broken")), 503);
    assert!(agent.wait("could not be reviewed").contains("warn metrics: "));
    assert_eq!(agent.stop(), Some(0));
    assert!(
        !agent.log.contains("broken") && !agent.log.contains("prometheus"),
        "no token is logged: {}",
        agent.log
    );
    assert!(received.recv_timeout(PATIENCE).is_ok());
}

#[test]
fn a_reload_with_an_unusable_certificate_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let source = recording(folder.path());
    let mut agent = Agent::start(folder.path(), &source, "");
    let start = "version: 1\nhealth: {listen: '127.0.0.1:0'}\nstream: {socket: 'SOCKET'}\n";
    let server = data("server.pem");
    let tls = format!("tls: {{certificate: '{}', key: /nowhere/key.pem}}", server.display());
    let otlp = "otlp: {endpoint: 'https://127.0.0.1:1', ca: /nowhere/ca.pem}";
    for (yaml, path) in [
        (format!("metrics: {{listen: '127.0.0.1:0', {tls}}}\n"), "/nowhere/key.pem"),
        (format!("metrics: {{listen: '127.0.0.1:0'}}\n{otlp}\n"), "/nowhere/ca.pem"),
    ] {
        agent.reload(&format!("{start}{yaml}"));
        let line = agent.wait("the old configuration stays");
        assert!(line.contains(&format!("cannot use the certificate {path}")), "{line}");
        // The port still speaks without TLS.
        assert_eq!(sum(&agent.scrape(), "viptrace_config_last_reload_successful", ""), 0);
    }
    agent.reload(&format!("{start}metrics: {{listen: '127.0.0.1:0'}}\n"));
    agent.wait("info config: reread");
    assert_eq!(sum(&agent.scrape(), "viptrace_config_last_reload_successful", ""), 1);
}

#[test]
fn an_unusable_certificate_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agent.yaml");
    let yaml = format!(
        "version: 1\nmetrics: {{tls: {{certificate: '{}', key: /nowhere}}}}\n",
        data("server.pem").display()
    );
    std::fs::write(&path, yaml).unwrap();
    let output = viptrace(&["agent", "--config", path.to_str().unwrap(), "--from", "/dev/null"]);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cannot use the certificate /nowhere"), "{said}");
}
