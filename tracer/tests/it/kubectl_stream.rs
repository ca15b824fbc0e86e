//! The agents' verdicts in `kubectl viptrace trace`, while connections to them are cut.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use viptrace_lab::apiserver::{ApiServer, Ran};

use crate::agent_support::faults;

/// How long something may take that happens soon.
const SOON: Duration = Duration::from_secs(30);

fn agent(name: &str) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {
            "namespace": "viptrace", "name": name,
            "labels": {"app.kubernetes.io/name": "viptrace", "app.kubernetes.io/managed-by": "Helm"},
        },
        "spec": {"nodeName": "node1", "containers": []},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]},
    })
}

/// The answer of an agent from before heartbeats.
fn older() -> Ran {
    let stderr = "error: unexpected argument '--heartbeat' found\n\nUsage: viptrace agent stream [OPTIONS]\n";
    Ran { stderr: stderr.to_owned(), exit: 2, ..Ran::default() }
}

/// An agent's announcement.
fn heartbeat(seconds: u64) -> Vec<u8> {
    format!("{}\n", json!({"heartbeat": seconds})).into_bytes()
}

/// A node whose agent, of an older version, has a first connection that is cut, and the plugin.
struct Lab {
    server: ApiServer,
    folder: tempfile::TempDir,
    /// The Pods in which the agent was read.
    read: Arc<Mutex<Vec<String>>>,
    faults: Vec<String>,
}

impl Lab {
    fn new() -> Self {
        let node = json!({
            "kind": "Node",
            "metadata": {"name": "node1"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        let list = json!({"kind": "List", "items": [node, agent("agent-1")]});
        let server = ApiServer::start(([127, 0, 0, 1], 0).into(), vec![list]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("kubeconfig"), server.kubeconfig()).unwrap();
        let lab = Self { server, folder, read: Arc::default(), faults: faults() };
        let (read, faults) = (Arc::clone(&lab.read), lab.faults.clone());
        lab.server.run_commands(move |command| {
            if command.words.iter().any(|word| word == "--heartbeat") {
                return older();
            }
            let mut read = read.lock().unwrap();
            read.push(command.pod.clone());
            let earlier = |fault: &String| fault.replacen('{', "{\"earlier\":true,", 1);
            // A failure from before, and one that the trace shows. Then one of the interruption, and one after it.
            let lines = match read.len() {
                1 => vec![earlier(&faults[0]), faults[1].clone()],
                _ => [0, 1, 2]
                    .map(|number| earlier(&faults[number]))
                    .into_iter()
                    .chain([faults[3].clone()])
                    .collect(),
            };
            let stdout: Vec<u8> = lines.iter().flat_map(|line| format!("{line}\n").into_bytes()).collect();
            let cut_after = (read.len() == 1).then_some(stdout.len());
            Ran { stdout, cut_after, goes_on: true, ..Ran::default() }
        });
        lab
    }

    /// Adds a node, ready or not, that runs this system.
    fn add_node(&self, name: &str, system: &str, ready: &str) {
        let info = [
            "architecture",
            "bootID",
            "containerRuntimeVersion",
            "kernelVersion",
            "kubeProxyVersion",
            "kubeletVersion",
            "machineID",
            "osImage",
            "systemUUID",
        ];
        let mut info: serde_json::Map<_, _> =
            info.map(|field| (field.to_owned(), json!(""))).into_iter().collect();
        info.insert("operatingSystem".to_owned(), json!(system));
        let status = json!({"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": info});
        let node = json!({"kind": "Node", "metadata": {"name": name}, "status": status});
        self.server.apply(node).unwrap();
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.command(&[&["trace", "-o", "json"], arguments].concat()).spawn().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_viptrace"));
        command
            .arg0("kubectl-viptrace")
            .args(arguments)
            .args(["--kubeconfig", "kubeconfig"])
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Waits until the agent was read this often.
    fn wait_for(&self, times: usize) {
        let began = Instant::now();
        while self.read.lock().unwrap().len() < times {
            assert!(began.elapsed() < SOON, "{:?}", self.read);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn clients(&self, numbers: &[usize]) -> Vec<Value> {
        numbers.iter().map(|number| client(&self.faults[*number])).collect()
    }
}

fn client(line: &str) -> Value {
    serde_json::from_str::<Value>(line).unwrap()["flow"]["client"].clone()
}

/// The clients of the verdicts, the standard error, and the exit status.
fn ended(plugin: Child) -> (Vec<Value>, String, Option<i32>) {
    let output = plugin.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let shown = said.lines().filter(|line| line.contains("\"class\"")).map(client).collect();
    (shown, String::from_utf8(output.stderr).unwrap(), output.status.code())
}

#[test]
fn a_cut_connection_to_an_agent_is_opened_again_and_the_gap_is_reported() {
    let lab = Lab::new();
    let (shown, errors, code) = ended(lab.start(&["--duration", "12s"]));
    assert_eq!(shown, lab.clients(&[1, 2, 3]), "{errors}");
    assert_eq!((lab.read.lock().unwrap().len(), code), (2, Some(3)), "{errors}");
    for said in [
        "node1: viptrace in the Pod agent-1 ended without a result; its agent is tried again for up to 5 min",
        "node1: its agent is read again; it was not from ",
        "1 failed flow of that time came later; other flows may be missing",
        "1 failed flow from before this trace left out",
    ] {
        assert!(errors.contains(said), "{errors}");
    }
}

/// Neither end of the connection learns that it is dead: the node lost its power, or a network between was cut.
#[test]
fn an_agent_whose_heartbeat_stops_is_read_again_and_the_silence_is_not_taken_for_health() {
    let lab = Lab::new();
    let (read, faults) = (Arc::clone(&lab.read), lab.faults.clone());
    lab.server.run_commands(move |command| {
        assert_eq!(command.words[1..], ["agent", "stream", "--heartbeat"]);
        let mut read = read.lock().unwrap();
        read.push(command.pod.clone());
        // The first stream has a heartbeat once, and none after its verdict.
        let (interval, fault) = if read.len() == 1 { (1, &faults[0]) } else { (60, &faults[1]) };
        let stdout = [heartbeat(interval), format!("{fault}\n").into_bytes()].concat();
        Ran { stdout, goes_on: true, ..Ran::default() }
    });
    let (shown, errors, code) = ended(lab.start(&["--duration", "12s"]));
    assert_eq!((shown, code), (lab.clients(&[0, 1]), Some(3)), "{errors}");
    assert_eq!(lab.read.lock().unwrap().len(), 2, "{errors}");
    for said in [
        "node1: the connection to the Pod agent-1 was lost: it has been silent for 3 s; its agent is tried again",
        "node1: its agent is read again; it was not from ",
        "node1: its agent was not read from ",
    ] {
        assert!(errors.contains(said), "{said}\n{errors}");
    }
}

/// A rollout of the `DaemonSet`.
#[test]
fn the_agents_next_pod_on_the_node_is_read() {
    let lab = Lab::new();
    let plugin = lab.start(&["--duration", "15s"]);
    lab.wait_for(1);
    assert!(lab.server.delete("Pod", "viptrace", "agent-1"));
    lab.server.apply(agent("agent-2")).unwrap();
    lab.wait_for(2);
    let (shown, errors, _) = ended(plugin);
    assert_eq!(shown, lab.clients(&[1, 2, 3]), "{errors}");
    assert_eq!(*lab.read.lock().unwrap(), ["agent-1", "agent-2"], "{errors}");
}

#[test]
fn a_signal_ends_a_trace_at_once_that_waits_for_an_agent() {
    let lab = Lab::new();
    let plugin = lab.start(&[]);
    lab.wait_for(1);
    lab.server.delete("Pod", "viptrace", "agent-1");
    std::thread::sleep(Duration::from_secs(4));
    let began = Instant::now();
    assert!(Command::new("kill").args(["-INT", &plugin.id().to_string()]).status().unwrap().success());
    let (shown, errors, code) = ended(plugin);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!((shown, code), (lab.clients(&[1]), Some(3)), "{errors}");
    assert!(errors.contains("its agent was not read from ") && errors.contains("to the end"), "{errors}");
}

#[test]
fn a_windows_node_is_named_and_only_one_that_could_be_observed_makes_the_trace_partial() {
    let lab = Lab::new();
    lab.server.run_commands(|_| Ran { stdout: heartbeat(10), goes_on: true, ..Ran::default() });
    lab.add_node("win", "windows", "True");
    let code = |arguments: &[&str]| {
        let (shown, errors, code) = ended(lab.start(&[&["--duration", "2s"], arguments].concat()));
        assert!(shown.is_empty() && errors.contains("win: the node runs Windows"), "{errors}");
        code
    };
    assert_eq!(code(&["--all-nodes"]), Some(0));
    assert_eq!(code(&["--node", "node1", "--node", "win"]), Some(4), "the user named it");
    assert_eq!(code(&["--node", "win"]), Some(1), "nothing was traced");
    lab.add_node("down", "linux", "Unknown");
    assert_eq!(code(&["--all-nodes"]), Some(4));
}

#[test]
fn a_contradictory_choice_of_nodes_is_wrong_usage_before_anything_is_read() {
    let lab = Lab::new();
    for (arguments, expected) in [
        (&["node/node1", "--all-nodes"][..], "leave out one of them"),
        (&["--duration", "2h"], "--pod-deadline"),
        (&["node/node1", "-n", "shop"], "write --node node1 -n shop"),
    ] {
        let (_, errors, code) = ended(lab.start(arguments));
        assert_eq!((code, lab.server.lists_served("Node")), (Some(2), 0), "{errors}");
        assert!(errors.contains(expected), "{errors}");
    }
    for arguments in [
        &["check", "-n", "shop"][..],
        &["check", "node/node1", "-n", "shop"],
        &["capture", "d", "-n", "shop"],
        &["collect", "d", "-n", "shop"],
        &["cleanup", "-n", "shop"],
    ] {
        let output = lab.command(arguments).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), lab.server.lists_served("Node")), (Some(2), 0), "{errors}");
        assert!(errors.contains("-n has no effect here: "), "{errors}");
    }
}
