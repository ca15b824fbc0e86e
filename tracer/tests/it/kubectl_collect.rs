//! `kubectl viptrace collect` against an API server whose containers have agents.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use serde_json::{Value, json};
use viptrace_lab::apiserver::{self, ApiServer, Ran};

use crate::agent_support::faults;

/// The segments of each agent's Pod: name, content, whether it is open.
type Segments = BTreeMap<String, Vec<(String, Vec<u8>, bool)>>;

fn node(name: &str) -> Value {
    json!({
        "metadata": {"name": name, "uid": name},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

fn agent(node: &str, ready: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "viptrace", "name": format!("agent-{node}"), "uid": format!("agent-{node}"),
            "labels": {"app.kubernetes.io/name": "viptrace", "app.kubernetes.io/managed-by": "Helm"},
        },
        "spec": {"nodeName": node, "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    })
}

/// Three nodes with agents, of which one is not ready, one without, and the Service `shop/cart` with an endpoint on node2.
fn objects() -> Vec<Value> {
    let list = |kind: &str, items: Vec<Value>| json!({"kind": format!("{kind}List"), "metadata": {"resourceVersion": "10"}, "items": items});
    let service = json!({
        "metadata": {"namespace": "shop", "name": "cart", "uid": "cart"},
        "spec": {"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "ports": [{"port": 80}]},
    });
    let slice = json!({
        "metadata": {"namespace": "shop", "name": "cart-1", "uid": "slice", "labels": {"kubernetes.io/service-name": "cart"}},
        "addressType": "IPv4",
        "ports": [{"port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.244.2.5"], "nodeName": "node2", "conditions": {"ready": true}}],
    });
    vec![
        list("Node", ["node1", "node2", "node3", "bare"].map(node).into()),
        list("Pod", vec![agent("node1", "True"), agent("node2", "True"), agent("node3", "False")]),
        list("Service", vec![service]),
        list("EndpointSlice", vec![slice]),
    ]
}

/// A cluster, and the folder in which the plugin runs.
struct Lab {
    server: ApiServer,
    folder: tempfile::TempDir,
    segments: Arc<Mutex<Segments>>,
    fetched: Arc<AtomicU64>,
    /// Pods whose connections are cut.
    cut: Arc<Mutex<Vec<String>>>,
}

const FIRST: &str = "00000001-20260102T100000000Z.viptrace";
const SECOND: &str = "00000002-20260102T110000000Z.viptrace";

impl Lab {
    fn new() -> Self {
        let server = ApiServer::start(([127, 0, 0, 1], 0).into(), objects()).unwrap();
        let recording = |node: &str| {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/two-nodes");
            fs::read(path.join(format!("{node}.viptrace"))).unwrap()
        };
        let segments: Segments = [
            ("agent-node1".to_owned(), vec![(FIRST.to_owned(), recording("node1"), false)]),
            (
                "agent-node2".to_owned(),
                vec![
                    (FIRST.to_owned(), recording("node2"), false),
                    (SECOND.to_owned(), b"open".to_vec(), true),
                    ("../../etc/00000009-x.viptrace".to_owned(), b"evil".to_vec(), false),
                ],
            ),
            ("agent-node3".to_owned(), Vec::new()),
        ]
        .into();
        let lab = Self {
            server,
            folder: tempfile::tempdir().unwrap(),
            segments: Arc::new(Mutex::new(segments)),
            fetched: Arc::default(),
            cut: Arc::default(),
        };
        fs::write(lab.folder.path().join("kubeconfig"), lab.server.kubeconfig()).unwrap();
        let (segments, fetched, cut) =
            (Arc::clone(&lab.segments), Arc::clone(&lab.fetched), Arc::clone(&lab.cut));
        lab.server.run_commands(move |command| {
            let ran = run(command, &segments.lock().unwrap(), &fetched);
            let is_cut =
                cut.lock().unwrap().contains(&command.pod) && command.words.contains(&"--segment".to_owned());
            Ran { cut_after: is_cut.then_some(1000), ..ran }
        });
        lab
    }

    fn collect(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        self.plugin("collect", arguments)
    }

    fn plugin(&self, verb: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
            .arg0("kubectl-viptrace")
            .args([verb, "--kubeconfig", "kubeconfig"])
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn files(&self, folder: &str) -> Vec<String> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.path(folder)).into_iter().flatten() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() {
                let inner = self.files(&format!("{folder}/{name}"));
                found.extend(inner.iter().map(|inner| format!("{name}/{inner}")));
            } else {
                found.push(name);
            }
        }
        found.sort();
        found
    }
}

/// What `viptrace agent stream` answers in the agent's container.
fn run(command: &apiserver::Command, segments: &Segments, fetched: &AtomicU64) -> Ran {
    let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
    let own = &segments[&command.pod];
    assert_eq!(command.container, "agent");
    let lines = |lines: Vec<Value>| Ran {
        stdout: lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect(),
        ..Ran::default()
    };
    match words.as_slice() {
        ["/usr/bin/viptrace", "agent", "stream", "--segments"] => lines(
            own.iter()
                .map(|(name, bytes, open)| {
                    let modified = if *open {
                        "2026-01-02T11:30:00.000000000Z"
                    } else {
                        "2026-01-02T11:00:00.000000000Z"
                    };
                    json!({"name": name, "bytes": bytes.len(), "modified": modified, "open": open})
                })
                .collect(),
        ),
        ["/usr/bin/viptrace", "agent", "stream", "--counts"] => {
            let connections = u64::from(command.pod == "agent-node1");
            let count = json!({
                "namespace": "shop", "service": "cart", "port": "", "protocol": "TCP", "endpoint": null,
                "connections": connections,
            });
            lines(vec![count])
        }
        ["/usr/bin/viptrace", "agent", "stream", "--segment", name] => {
            fetched.fetch_add(1, Ordering::Relaxed);
            match own.iter().find(|(own, ..)| own == name) {
                Some((_, bytes, _)) if bytes != b"gone" => Ran { stdout: bytes.clone(), ..Ran::default() },
                _ => {
                    let stderr = "error: the agent refuses: there is no segment with this name\n".to_owned();
                    Ran { stderr, exit: 1, ..Ran::default() }
                }
            }
        }
        // Three earlier failed flows, and one that fails now.
        ["/usr/bin/viptrace", "agent", "stream", "--heartbeat"] => {
            let faults = faults();
            let earlier = faults[..3].iter().map(|fault| fault.replacen('{', "{\"earlier\":true,", 1));
            let heartbeat = json!({"heartbeat": 10}).to_string();
            let all = [heartbeat].into_iter().chain(earlier).chain([faults[3].clone()]);
            let stdout = all.flat_map(|line| format!("{line}\n").into_bytes()).collect();
            Ran { stdout, goes_on: true, ..Ran::default() }
        }
        words => panic!("{words:?}"),
    }
}

/// A trace reports what happens now. A fault that was repaired an hour ago is in the agents' recordings.
#[test]
fn a_trace_leaves_out_what_the_agents_saw_before() {
    let lab = Lab::new();
    let (status, said, errors) = lab.plugin("trace", &["--node", "node1", "--duration", "2s", "-o", "json"]);
    let shown: Vec<&str> = said.lines().filter(|line| line.contains("\"class\"")).collect();
    assert_eq!(shown.len(), 1, "{status:?} {said}{errors}");
    let client = |line: &str| serde_json::from_str::<Value>(line).unwrap()["flow"]["client"].clone();
    assert_eq!(client(shown[0]), client(&faults()[3]));
    assert!(errors.contains("3 failed flows from before this trace left out"), "{errors}");
    // Agents go on for ever, also beside a node that has none.
    let both = ["--node", "node1", "--node", "bare", "--duration", "2s", "--pod-timeout", "1s", "-o", "json"];
    let (_, said, errors) = lab.plugin("trace", &both);
    assert!(said.contains("\"class\"") && errors.contains("bare: "), "{said}{errors}");
}

/// In a large cluster the endpoints' nodes are followed first, and the clients' nodes then: by their agents, too.
#[test]
fn the_agent_of_a_clients_node_is_read_instead_of_a_pod_there() {
    let lab = Lab::new();
    for number in 4..12 {
        let mut more = node(&format!("node{number}"));
        more["kind"] = json!("Node");
        lab.server.apply(more).unwrap();
    }
    let fault: Value = serde_json::from_str(&faults()[3]).unwrap();
    let client = fault["flow"]["client"].as_str().unwrap().rsplit_once(':').unwrap().0.to_owned();
    let pod = json!({
        "kind": "Pod",
        "metadata": {"namespace": "shop", "name": "web-0"},
        "spec": {"nodeName": "node1", "containers": []},
        "status": {"phase": "Running", "podIP": client, "podIPs": [{"ip": client}]},
    });
    lab.server.apply(pod).unwrap();
    let (_, said, errors) = lab.plugin("trace", &["shop/cart", "--duration", "3s"]);
    assert!(errors.contains("visits 1 node: node2 "), "{said}{errors}");
    assert!(errors.contains("node1: a client of the Service is there"), "{said}{errors}");
    assert!(!errors.contains("creating a Pod") && lab.server.creations() == 0, "{said}{errors}");
}

#[test]
fn the_recordings_of_all_agents_are_an_incident() {
    let lab = Lab::new();
    // A killed run left it.
    fs::create_dir_all(lab.path("incident/node1")).unwrap();
    fs::write(lab.path("incident/node1").join(format!("{FIRST}.part")), b"half").unwrap();
    let (status, said, errors) = lab.collect(&["incident"]);
    // node3 has no segment.
    assert_eq!(status, Some(4), "{said}{errors}");
    let expected = [format!("node1/{FIRST}"), format!("node2/{FIRST}"), format!("node2/{SECOND}")];
    assert_eq!(lab.files("incident"), expected, "{errors}");
    assert!(
        said.contains("incident/node1: 1 segment, ") && said.contains("incident/node2: 2 segments"),
        "{said}"
    );
    assert!(said.ends_with("next: kubectl viptrace replay incident -o story\n"), "{said}");
    for part in [
        "no agent runs on bare",
        "node3: its agent has no segment",
        "fetching 3 segments of 2 nodes",
        " are free",
    ] {
        assert!(errors.contains(part), "{part}: {errors}");
    }
    assert_eq!(lab.fetched.load(Ordering::Relaxed), 3);

    // What is whole stays; the open segment has grown.
    lab.segments.lock().unwrap().get_mut("agent-node2").unwrap()[1].1.extend(b" and more");
    let (_, said, errors) = lab.collect(&["incident"]);
    assert!(
        errors.contains("fetching 1 segment of 1 node") && errors.contains("2 more are here"),
        "{errors}"
    );
    assert_eq!(lab.fetched.load(Ordering::Relaxed), 4, "{said}");
    assert_eq!(fs::read(lab.path("incident/node2").join(SECOND)).unwrap(), b"open and more");
    fs::remove_file(lab.path("incident/node2").join(SECOND)).unwrap();

    let output = Command::new(env!("CARGO_BIN_EXE_viptrace"))
        .args(["replay", "incident", "-o", "story"])
        .current_dir(lab.folder.path())
        .output()
        .unwrap();
    let story = String::from_utf8(output.stdout).unwrap();
    assert!(story.contains("C6 stale endpoint") && story.contains("node1, node2"), "{story}");
}

#[test]
fn nodes_and_times_are_chosen() {
    let lab = Lab::new();
    let (status, said, errors) = lab.collect(&["one", "--node", "node1"]);
    assert_eq!((status, lab.files("one")), (Some(0), vec![format!("node1/{FIRST}")]), "{said}{errors}");
    let (_, _, errors) = lab.collect(&["x", "--node", "node9"]);
    assert!(errors.contains("the cluster has no Node node9"), "{errors}");
    let (status, _, errors) = lab.collect(&["x", "--node", "bare"]);
    assert!(status == Some(1) && errors.contains("bare: no agent runs there"), "{errors}");
    // The endpoint's node, and that of a client, which the agent there counted.
    let (status, said, errors) =
        lab.collect(&["service", "--service", "shop/cart", "--until", "2026-01-02T10:30:00Z"]);
    assert_eq!(status, Some(0), "{errors}");
    assert_eq!(lab.files("service"), [format!("node1/{FIRST}"), format!("node2/{FIRST}")], "{errors}");
    assert!(said.contains("next: kubectl viptrace replay service --service shop/cart -o story"), "{said}");
    let (status, _, errors) = lab.collect(&["late", "--node", "node2", "--since", "2026-01-02T11:20:00Z"]);
    assert_eq!((status, lab.files("late")), (Some(0), vec![format!("node2/{SECOND}")]), "{errors}");
    let (status, _, errors) = lab.collect(&["never", "--node", "node1", "--since", "2026-01-03T00:00:00Z"]);
    assert_eq!(status, Some(1), "{errors}");
    assert!(errors.contains("its segments cover 2026-01-02T10:00:00.000Z to 2026-01-02T11:00"), "{errors}");
}

#[test]
fn a_failed_node_is_named_and_the_others_go_on() {
    let lab = Lab::new();
    lab.cut.lock().unwrap().push("agent-node2".to_owned());
    let began = std::time::Instant::now();
    let (status, said, errors) = lab.collect(&["incident"]);
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "a cut connection is noticed at once");
    assert_eq!(status, Some(4), "{said}{errors}");
    assert_eq!(lab.files("incident"), [format!("node1/{FIRST}")], "half a file is none: {errors}");
    assert!(
        errors.contains("node2: cannot fetch 00000001-") && errors.contains("ended after 1000 of"),
        "{errors}"
    );
    assert!(errors.contains("node2: 1 segment after it were not tried"), "{errors}");
    lab.cut.lock().unwrap().clear();

    // The agent deleted a segment after it listed it.
    lab.segments.lock().unwrap().get_mut("agent-node2").unwrap()[0].1 = b"gone".to_vec();
    let (status, _, errors) = lab.collect(&["incident"]);
    assert_eq!(status, Some(4));
    assert!(errors.contains("the agent has deleted it meanwhile"), "{errors}");
    assert_eq!(lab.files("incident"), [format!("node1/{FIRST}"), format!("node2/{SECOND}")], "{errors}");
}

#[test]
fn a_missing_permission_is_a_role_and_nothing_is_fetched() {
    let lab = Lab::new();
    lab.server.deny("pods/exec");
    let (status, said, errors) = lab.collect(&["incident"]);
    assert_eq!(status, Some(1), "{errors}");
    assert!(said.contains("resources: [pods/exec]") && said.contains("namespace: viptrace"), "{said}");
    assert!(errors.contains("you lack 2 permissions") && !lab.path("incident").exists(), "{errors}");
}
