//! The Pods of `kubectl viptrace` on a cluster in trouble: what the user reads, and what is left behind.

use std::{
    fs,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use viptrace_lab::apiserver::ApiServer;

/// How long something may take that happens soon.
const SOON: Duration = Duration::from_secs(30);
const SPACE: &str = "kube-system";

/// A cluster, and the folder in which the plugin runs.
struct Lab {
    server: ApiServer,
    folder: tempfile::TempDir,
}

fn node(name: &str) -> Value {
    json!({
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    })
}

impl Lab {
    /// One of these nodes.
    fn of(nodes: &[Value]) -> Self {
        let list = json!({"kind": "List", "items": nodes});
        let server = ApiServer::start(([127, 0, 0, 1], 0).into(), vec![list]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("kubeconfig"), server.kubeconfig()).unwrap();
        Self { server, folder }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_viptrace"));
        command
            .arg0("kubectl-viptrace")
            .args(arguments)
            .args(["--kubeconfig", "kubeconfig"])
            .current_dir(self.folder.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::null());
        command
    }

    /// The output and the exit status.
    fn run(&self, arguments: &[&str]) -> (String, Option<i32>) {
        let output = self.command(arguments).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(output.stdout) + &text(output.stderr), output.status.code())
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

/// Ctrl-C, and the plugin's end.
fn interrupt(plugin: &mut Child) {
    assert!(Command::new("kill").args(["-INT", &plugin.id().to_string()]).status().unwrap().success());
    plugin.wait().unwrap();
}

/// Whether this becomes true soon.
fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < SOON {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// The status of a Pod whose container of this plugin is in this state.
fn status(phase: &str, state: &Value) -> Value {
    json!({"phase": phase, "containerStatuses": [{
        "name": "viptrace", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state,
    }]})
}

#[test]
fn an_image_that_cannot_be_pulled_is_reported_with_what_to_do_however_short_the_patience() {
    let lab = Lab::of(&[node("n1")]);
    let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}});
    lab.server.start_pods(status("Pending", &waiting), Duration::ZERO);
    let (read, code) = lab.run(&["trace", "--duration", "1s", "--pod-timeout", "1s"]);
    assert!(read.contains("ErrImagePull: not found, after 1 s"), "{read}");
    assert!(read.contains("--image NAME chooses an image"), "{read}");
    assert_eq!((code, lab.server.pods(SPACE)), (Some(1), Vec::new()), "{read}");
}

/// Ctrl-C comes while the API server creates the Pod: the answer never reaches the plugin, and the Pod must not stay.
#[test]
fn a_pod_that_is_being_created_at_the_end_is_removed_too() {
    let lab = Lab::of(&[node("n1")]);
    lab.server.start_pods(Value::Null, Duration::from_secs(2));
    let mut plugin = lab.start(&["trace"]);
    assert!(soon(|| lab.server.creations() == 1));
    interrupt(&mut plugin);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(lab.server.pods(SPACE), Vec::<String>::new());
}

#[test]
fn the_pods_of_a_large_cluster_start_a_few_at_a_time() {
    let lab = Lab::of(&(0..40).map(|number| node(&format!("n{number:02}"))).collect::<Vec<_>>());
    lab.server.start_pods(Value::Null, Duration::ZERO);
    let mut plugin = lab.start(&["trace", "--all-nodes", "--pod-timeout", "20s"]);
    assert!(soon(|| lab.server.pods(SPACE).len() == 16));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(lab.server.pods(SPACE).len(), 16);
    interrupt(&mut plugin);
    assert_eq!(lab.server.pods(SPACE), Vec::<String>::new());
}

fn pod_of_the_plugin(name: &str, phase: &str) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {
            "namespace": SPACE, "name": name, "labels": {"app.kubernetes.io/managed-by": "kubectl-viptrace"},
        },
        "spec": {"containers": []},
        "status": {"phase": phase},
    })
}

#[test]
fn cleanup_leaves_the_pods_that_another_run_uses() {
    let lab = Lab::of(&[]);
    for (name, phase) in
        [("ended", "Succeeded"), ("evicted", "Failed"), ("used", "Running"), ("new", "Pending")]
    {
        lab.server.apply(pod_of_the_plugin(name, phase)).unwrap();
    }
    let (read, code) = lab.run(&["cleanup"]);
    assert_eq!(
        (code, lab.server.pods(SPACE)),
        (Some(0), vec!["new".to_owned(), "used".to_owned()]),
        "{read}"
    );
    assert!(read.contains("removed 2 Pods from kube-system: ended and evicted\n"), "{read}");
    assert!(
        read.contains("left 2 Pods that another run may use: new and used; `kubectl viptrace cleanup --all`"),
        "{read}"
    );
    let (read, _) = lab.run(&["cleanup", "--all"]);
    assert_eq!(lab.server.pods(SPACE), Vec::<String>::new(), "{read}");
}

#[test]
fn a_pod_that_cannot_be_deleted_does_not_keep_the_others() {
    let lab = Lab::of(&[]);
    for name in ["a", "b", "c"] {
        lab.server.apply(pod_of_the_plugin(name, "Succeeded")).unwrap();
    }
    lab.server.keep_pod("a", 500, "etcdserver: request timed out");
    let (read, code) = lab.run(&["cleanup"]);
    assert_eq!((code, lab.server.pods(SPACE)), (Some(1), vec!["a".to_owned()]), "{read}");
    assert!(read.contains("etcdserver: request timed out"), "{read}");
}
