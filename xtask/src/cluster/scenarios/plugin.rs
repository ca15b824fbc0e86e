//! `kubectl viptrace` from outside the nodes, with nothing installed: a Service is broken in several ways, and `why` names the
//! cause; the plugin's own failures end with a clear sentence. No Pod is left behind.

use std::fs;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use super::super::Cluster;
use super::super::binaries::Version;
use super::workload::Workload;
use crate::place::Place;

/// The longest time for one run of the plugin under emulation.
const RUN: Duration = Duration::from_mins(3);
/// The longest time until a killed plugin's Pods are gone.
const REMOVED: Duration = Duration::from_mins(1);
/// The longest time until a change has reached the rules or the kernel.
const CHANGE: Duration = Duration::from_mins(1);
/// The first release with ephemeral containers by default.
const EPHEMERAL_CONTAINERS: Version = Version::new(1, 23);
pub(super) const SELECTOR: &str = "--selector=app.kubernetes.io/managed-by=kubectl-viptrace";
/// With it a Pod of the plugin can probe every kernel.
pub(super) const SYS_ADMIN: &str = "--sys-admin";
/// The exit status with faults.
pub(super) const FAULTS: i32 = 3;

/// The result of a run of the plugin.
#[derive(Debug)]
pub(super) struct Ran {
    pub(super) exit: Option<i32>,
    out: String,
    err: String,
    /// From its start to the end of its answer, without the time until its Pods ran. `None` if none ran.
    answered_in: Option<Duration>,
    /// The same to its line with the cause that the flows show, if the checks went on then.
    so_far_in: Option<Duration>,
}

impl Ran {
    /// The times of its answer, for a note.
    fn times(&self, name: &str) -> Option<String> {
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        let so_far = self.so_far_in.map(|time| format!(" (the cause after {})", seconds(time)));
        self.answered_in.map(|time| format!("{name} {}{}", seconds(time), so_far.unwrap_or_default()))
    }

    pub(super) fn text(&self) -> String {
        format!("{}\n{}", self.out.trim(), self.err.trim())
    }
}

/// The plugin, under the name by which kubectl finds it.
fn program(cluster: &Cluster) -> Result<PathBuf> {
    let folder = cluster.state.join("plugin");
    let link = folder.join("kubectl-viptrace");
    if !link.exists() {
        fs::create_dir_all(&folder).with_context(|| format!("could not create {}", folder.display()))?;
        let binary = Place::find()?.release("viptrace");
        symlink(binary, &link).with_context(|| format!("could not create {}", link.display()))?;
    }
    Ok(link)
}

/// Runs the plugin to its end.
pub(super) fn run_plugin(cluster: &Cluster, words: &[&str]) -> Result<Ran> {
    watch(command(cluster, words)?, |_| Ok(()))
}

fn command(cluster: &Cluster, words: &[&str]) -> Result<Command> {
    let mut command = cluster.command("timeout");
    command.arg(RUN.as_secs().to_string()).arg(program(cluster)?).args(words).stdin(Stdio::null());
    if cluster.needs_sys_admin && words.first() == Some(&"why") {
        command.arg(SYS_ADMIN);
    }
    Ok(command)
}

/// The same, with a look at each line of its messages at once.
pub(super) fn run_watched(
    cluster: &Cluster,
    words: &[&str],
    mut look: impl FnMut(&Cluster, &str) -> Result<()>,
) -> Result<Ran> {
    watch(command(cluster, words)?, |line| look(cluster, line))
}

/// Runs the plugin to its end, with a look at each line of its messages.
fn watch(mut command: Command, mut look: impl FnMut(&str) -> Result<()>) -> Result<Ran> {
    let began = Instant::now();
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("could not start the plugin")?;
    let out = child.stdout.take().context("the plugin has no standard output")?;
    let out = thread::spawn(move || read_timed(out));
    let lines = BufReader::new(child.stderr.take().context("the plugin has no standard error")?).lines();
    let (mut err, mut pods, mut so_far) = (String::new(), (None, None), None);
    for line in lines {
        let line = line.context("could not read the messages of the plugin")?;
        if line.ends_with(": creating a Pod") {
            pods.0.get_or_insert_with(Instant::now);
        } else if line.ends_with(": its Pod runs") {
            pods.1 = Some(Instant::now());
        } else if line.contains("so far: ") {
            so_far = Some(Instant::now());
        }
        look(&line)?;
        err.push_str(&line);
        err.push('\n');
    }
    let status = child.wait().context("could not wait for the plugin")?;
    let out = out.join().map_err(|_| anyhow::anyhow!("the reader of the plugin's output panicked"))?;
    let (out, answered) = out.context("could not read the output of the plugin")?;
    let without_pods = |at: Instant| match pods {
        (Some(created), Some(running)) => Some(at.duration_since(running) + created.duration_since(began)),
        _ => None,
    };
    let (answered_in, so_far_in) = (without_pods(answered), so_far.and_then(without_pods));
    Ok(Ran { exit: status.code(), out, err, answered_in, so_far_in })
}

/// Reads to the end. Returns the text and the time of its last part.
fn read_timed(mut from: impl io::Read) -> io::Result<(String, Instant)> {
    let (mut bytes, mut last) = (Vec::new(), Instant::now());
    let mut some = [0; 4096];
    loop {
        match from.read(&mut some)? {
            0 => return Ok((String::from_utf8_lossy(&bytes).into_owned(), last)),
            length => bytes.extend_from_slice(&some[..length]),
        }
        last = Instant::now();
    }
}

/// Fails if a Pod of the plugin is left.
pub(super) fn expect_no_pod(cluster: &mut Cluster) -> Result<()> {
    cluster.wait_for("the removal of the plugin's Pods", REMOVED, |cluster| {
        let pods = cluster.kubectl(["get", "pods", "--all-namespaces", SELECTOR, "--output=name"])?;
        Ok(pods.trim().is_empty().then_some(()))
    })
}

/// A way to break the Service `web`.
struct Fault {
    name: &'static str,
    /// The classes of the catalogue that name it.
    classes: &'static [&'static str],
    /// Whether the plugin connects itself; otherwise a client does.
    probes: bool,
    make: fn(&mut Cluster, &Workload<'_>, &str) -> Result<()>,
    repair: fn(&mut Cluster, &Workload<'_>, &str) -> Result<()>,
}

const FAULTS_OF_SERVICE: &[Fault] = &[
    Fault {
        name: "selector",
        classes: &["C20"],
        probes: false,
        make: |cluster, _, namespace| patch(cluster, namespace, r#"{"spec":{"selector":{"app":"nobody"}}}"#),
        repair: |cluster, _, namespace| patch(cluster, namespace, r#"{"spec":{"selector":{"app":"web"}}}"#),
    },
    Fault {
        name: "target-port",
        classes: &["C28", "C29"],
        probes: true,
        make: |cluster, _, namespace| {
            patch(cluster, namespace, r#"{"spec":{"ports":[{"port":80,"targetPort":9999}]}}"#)
        },
        repair: |cluster, _, namespace| {
            patch(cluster, namespace, r#"{"spec":{"ports":[{"port":80,"targetPort":8080}]}}"#)
        },
    },
    Fault {
        name: "readiness",
        classes: &["C20"],
        probes: true,
        make: |cluster, _, namespace| {
            in_servers(cluster, namespace, "mv /www/index.html /www/away")?;
            wait_for_endpoints(cluster, namespace, 0)
        },
        repair: |cluster, _, namespace| {
            in_servers(cluster, namespace, "mv /www/away /www/index.html")?;
            wait_for_endpoints(cluster, namespace, 2)
        },
    },
    Fault {
        name: "policy",
        classes: &["C30"],
        probes: false,
        // As an agent of network policies writes it, on the node of the endpoints.
        make: |cluster, _, _| {
            let node = &cluster.nodes()[1];
            node.run(&["iptables", "-N", "KUBE-NWPLCY-LAB"])?;
            node.run(&["iptables", "-A", "KUBE-NWPLCY-LAB", "-j", "DROP"])?;
            node.run(&["iptables", "-I", "FORWARD", "-p", "tcp", "--dport", "8080", "-j", "KUBE-NWPLCY-LAB"])
                .map(drop)
        },
        repair: |cluster, _, _| {
            let node = &cluster.nodes()[1];
            node.run(&[
                "iptables",
                "-D",
                "FORWARD",
                "-p",
                "tcp",
                "--dport",
                "8080",
                "-j",
                "KUBE-NWPLCY-LAB",
            ])?;
            node.run(&["iptables", "-F", "KUBE-NWPLCY-LAB"])?;
            node.run(&["iptables", "-X", "KUBE-NWPLCY-LAB"]).map(drop)
        },
    },
    Fault {
        name: "kube-proxy-stopped",
        classes: &["C1"],
        probes: true,
        make: |cluster, _, namespace| {
            cluster.nodes_mut()[0].stop_kube_proxy()?;
            replace_pods(cluster, namespace)
        },
        repair: |cluster, _, _| cluster.nodes_mut()[0].start_kube_proxy(),
    },
    Fault {
        name: "kube-proxy-cut-off",
        classes: &["C2"],
        probes: true,
        make: |cluster, _, namespace| {
            cluster.nodes()[0].cut_off_kube_proxy()?;
            replace_pods(cluster, namespace)
        },
        repair: |cluster, _, _| {
            cluster.nodes()[0].reconnect_kube_proxy()?;
            // Its connection would wait for its own time limits.
            cluster.nodes_mut()[0].stop_kube_proxy()?;
            cluster.nodes_mut()[0].start_kube_proxy()
        },
    },
    Fault {
        name: "local-policy",
        classes: &["C21"],
        probes: false,
        make: |cluster, _, namespace| {
            patch(cluster, namespace, r#"{"spec":{"type":"NodePort","externalTrafficPolicy":"Local"}}"#)
        },
        repair: |cluster, _, namespace| {
            patch(
                cluster,
                namespace,
                r#"{"spec":{"type":"ClusterIP","externalTrafficPolicy":null,"ports":[{"port":80,"targetPort":8080,"nodePort":null}]}}"#,
            )
        },
    },
];

/// Packets that are lost between the nodes.
const PATH: Fault = Fault {
    name: "path",
    classes: &["C29"],
    probes: false,
    make: |cluster, _, _| cluster.nodes()[0].lose_packets(true),
    repair: |cluster, _, _| cluster.nodes()[0].lose_packets(false),
};
/// Its answer has what each end observed.
const BOTH_ENDS: [&str; 3] =
    ["node1 sends connections to", "they never arrive at node2", "node2, the endpoint's node, never saw one"];

/// `why` shows a fault on the path between two nodes from both ends.
pub(super) fn path(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    let ran = with_fault(cluster, &workload, namespace, &PATH)?;
    let missing = BOTH_ENDS.iter().find(|words| !ran.out.contains(**words));
    ensure!(missing.is_none(), "the answer lacks {missing:?}:\n{}", ran.text());
    expect_no_pod(cluster)
}

/// `why` names each fault from outside, and nothing wrong before and after.
pub(super) fn why(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let workload = Workload::create(cluster, namespace)?;
    let service = format!("{namespace}/web");
    let healthy = run_plugin(cluster, &["why", &service, "--probe", "--yes"])?;
    ensure!(healthy.exit == Some(0), "a healthy Service: {:?}\n{}", healthy.exit, healthy.text());
    let mut times: Vec<_> = healthy.times("healthy").into_iter().collect();
    let mut wrong = Vec::new();
    for fault in FAULTS_OF_SERVICE {
        match with_fault(cluster, &workload, namespace, fault) {
            Ok(ran) if fault.probes => times.extend(ran.times(fault.name)),
            Ok(_) => {}
            Err(error) => wrong.push(format!("{}: {error:#}", fault.name)),
        }
        expect_no_pod(cluster)?;
    }
    cluster.note(format!("answers with a probe, without the Pods' start: {}", times.join(", ")));
    if let Err(error) = full_table(cluster, &workload, &service) {
        wrong.push(format!("table-full: {error:#}"));
    }
    ensure!(
        wrong.is_empty(),
        "{} of {} faults were not named:\n{}",
        wrong.len(),
        FAULTS_OF_SERVICE.len() + 1,
        wrong.join("\n")
    );
    Ok(())
}

/// Breaks the Service, runs `why`, and repairs the Service.
fn with_fault(cluster: &mut Cluster, workload: &Workload<'_>, namespace: &str, fault: &Fault) -> Result<Ran> {
    let service = format!("{namespace}/web");
    let judged =
        (fault.make)(cluster, workload, namespace).and_then(|()| judge(cluster, workload, &service, fault));
    (fault.repair)(cluster, workload, namespace)?;
    cluster.wait_for(&format!("the Service to answer after {}", fault.name), CHANGE, |cluster| {
        Ok(workload.connect(cluster).ok())
    })?;
    judged
}

/// Runs `why` while connections fail.
fn judge(cluster: &mut Cluster, workload: &Workload<'_>, service: &str, fault: &Fault) -> Result<Ran> {
    let mut words = vec!["why", service, "-o", "json"];
    if fault.probes {
        words.extend(["--probe", "--yes"]);
    } else {
        words.extend(["--duration", "12s"]);
        workload.start_load(cluster)?;
    }
    let outside = (fault.name == "local-policy").then(|| knock(cluster, service)).transpose()?;
    let ran = run_plugin(cluster, &words);
    if let Some(mut child) = outside {
        let _ = child.kill();
        let _ = child.wait();
    }
    if !fault.probes {
        workload.stop_load(cluster)?;
    }
    let ran = ran?;
    expect_class(&ran, fault.classes)?;
    Ok(ran)
}

/// The conntrack table of the client's node is full. A full table keeps the plugin out as well, so it becomes full when the
/// trace is there.
fn full_table(cluster: &mut Cluster, workload: &Workload<'_>, service: &str) -> Result<()> {
    const MAX: &str = "net.netfilter.nf_conntrack_max";
    workload.start_load(cluster)?;
    let words = ["why", service, "--duration", "15s", "-o", "json"];
    let ran = run_watched(cluster, &words, |cluster, line| {
        if line.contains("watches the connections") {
            cluster.nodes()[0].run(&["sysctl", "-q", "-w", &format!("{MAX}=1")])?;
        }
        Ok(())
    });
    cluster.nodes()[0].run(&["sysctl", "-q", "-w", &format!("{MAX}=65536")])?;
    cluster.wait_for("the Service to answer after table-full", CHANGE, |cluster| {
        Ok(workload.connect(cluster).ok())
    })?;
    workload.stop_load(cluster)?;
    expect_class(&ran?, &["C16"])?;
    expect_no_pod(cluster)
}

/// Fails unless `why` names one of these classes.
fn expect_class(ran: &Ran, classes: &[&str]) -> Result<()> {
    let answer: Value =
        serde_json::from_str(&ran.out).with_context(|| format!("exit {:?}: {}", ran.exit, ran.text()))?;
    let class = answer["cause"]["class"].as_str().unwrap_or("none");
    let summary = answer["summary"].as_str().unwrap_or_default();
    ensure!(
        ran.exit == Some(FAULTS) && classes.contains(&class),
        "the cause is {class}, expected {}; exit {:?}: {summary}\n{}",
        classes.join(" or "),
        ran.exit,
        ran.text()
    );
    Ok(())
}

/// Connects from outside the cluster to the node port on the node without endpoints, again and again.
fn knock(cluster: &Cluster, service: &str) -> Result<std::process::Child> {
    let (namespace, name) = service.split_once('/').context("a Service has a namespace")?;
    let get =
        ["--namespace", namespace, "get", "service", name, "--output", "jsonpath={.spec.ports[0].nodePort}"];
    let port = cluster.kubectl(get)?;
    let node = cluster.nodes()[0].ip();
    let script = format!("while :; do timeout 2 bash -c 'exec 3<>/dev/tcp/{node}/{port}'; sleep 0.5; done");
    let mut command = cluster.command("bash");
    let command =
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("could not start the client outside the cluster")
}

pub(super) fn patch(cluster: &mut Cluster, namespace: &str, patch: &str) -> Result<()> {
    cluster.kubectl(["--namespace", namespace, "patch", "service", "web", "--patch", patch]).map(drop)
}

/// Runs a command in each server.
fn in_servers(cluster: &Cluster, namespace: &str, command: &str) -> Result<()> {
    let list = ["--namespace", namespace, "get", "pods", "--selector=app=web", "--output=name"];
    for pod in cluster.kubectl(list)?.split_whitespace() {
        cluster.kubectl(["--namespace", namespace, "exec", pod, "--", "sh", "-c", command])?;
    }
    Ok(())
}

/// Waits until so many endpoints are ready.
fn wait_for_endpoints(cluster: &mut Cluster, namespace: &str, wanted: usize) -> Result<()> {
    let get = [
        "--namespace",
        namespace,
        "get",
        "endpoints",
        "web",
        "--output",
        "jsonpath={.subsets[*].addresses[*].ip}",
    ];
    cluster.wait_for(&format!("{wanted} endpoints"), CHANGE, |cluster| {
        Ok((cluster.kubectl(get)?.split_whitespace().count() == wanted).then_some(()))
    })
}

/// Replaces the servers, whose addresses change.
fn replace_pods(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    let old =
        cluster.kubectl(["--namespace", namespace, "get", "pods", "--selector=app=web", "--output=name"])?;
    cluster.kubectl([
        "--namespace",
        namespace,
        "delete",
        "pods",
        "--selector=app=web",
        "--grace-period=1",
    ])?;
    cluster.wait_for("the new Pods", CHANGE * 2, |cluster| {
        let pods = cluster.kubectl([
            "--namespace",
            namespace,
            "get",
            "pods",
            "--selector=app=web",
            "--output=name",
        ])?;
        Ok((!old.split_whitespace().any(|pod| pods.contains(pod))).then_some(()))
    })?;
    wait_for_endpoints(cluster, namespace, 2)
}

/// The plugin's own failures: each ends with a clear sentence and without a Pod.
pub(super) fn failures(cluster: &mut Cluster, namespace: &str) -> Result<()> {
    Workload::create(cluster, namespace)?;
    let service = format!("{namespace}/web");
    without_image(cluster, &service)?;
    without_permission(cluster, &service, namespace)?;
    dry_run(cluster, &service)?;
    from_client(cluster, &service, namespace)?;
    killed(cluster, &service)?;
    two_at_once(cluster, &service)
}

pub(super) fn expect(ran: &Ran, exit: i32, parts: &[&str]) -> Result<()> {
    let text = ran.text();
    if let Some(part) = parts.iter().find(|part| !text.contains(**part)) {
        bail!("the output lacks {part:?}; exit {:?}:\n{text}", ran.exit);
    }
    ensure!(ran.exit == Some(exit), "exit {:?}, expected {exit}:\n{text}", ran.exit);
    Ok(())
}

fn without_image(cluster: &mut Cluster, service: &str) -> Result<()> {
    let image = "--image=registry.invalid/viptrace:none";
    let ran = run_plugin(cluster, &["trace", service, "--duration", "5s", image])?;
    expect(&ran, 1, &["does not start", "Image", "--image NAME chooses an image"])?;
    expect_no_pod(cluster)
}

/// A user who may read everything and create nothing gets the missing roles, and nothing is created.
fn without_permission(cluster: &mut Cluster, service: &str, namespace: &str) -> Result<()> {
    let name = format!("reader-of-{namespace}");
    let bind = ["create", "clusterrolebinding", &name, "--clusterrole=view", "--user=reader"];
    cluster.kubectl(bind)?;
    let ran = run_plugin(cluster, &["trace", service, "--duration", "5s", "--as", "reader"]);
    cluster.kubectl(["delete", "clusterrolebinding", &name])?;
    expect(
        &ran?,
        1,
        &["kind: ClusterRole", "resources: [nodes]", "kind: Role", "resources: [pods/exec]", "you lack"],
    )?;
    expect_no_pod(cluster)
}

fn dry_run(cluster: &mut Cluster, service: &str) -> Result<()> {
    let ran = run_plugin(cluster, &["trace", service, "--dry-run=client", "-o", "yaml"])?;
    expect(&ran, 0, &["kind: Pod", "nodeName: node1", "nodeName: node2", "hostNetwork: true"])?;
    expect_no_pod(cluster)
}

/// A connection from inside a client, where the cluster has ephemeral containers; elsewhere a clear sentence.
fn from_client(cluster: &mut Cluster, service: &str, namespace: &str) -> Result<()> {
    let client = format!("pod/{namespace}/client");
    let ran = run_plugin(cluster, &["why", service, "--probe-from", &client, "--yes"])?;
    if cluster.binaries.version < EPHEMERAL_CONTAINERS {
        expect(&ran, 1, &["this cluster has no ephemeral containers", "--probe connects from the node"])?;
    } else {
        expect(&ran, 0, &["nothing wrong with", &format!("from {namespace}/client to"), ": established"])?;
    }
    expect_no_pod(cluster)
}

/// A plugin that is killed leaves no Pod.
fn killed(cluster: &mut Cluster, service: &str) -> Result<()> {
    let mut command = cluster.command(program(cluster)?);
    let mut child = command
        .args(["trace", service])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("could not start the plugin")?;
    let begun = cluster.wait_for("the plugin's Pods to run", RUN, |cluster| {
        let running = "jsonpath={.items[*].status.phase}";
        let phases = cluster.kubectl(["get", "pods", "--all-namespaces", SELECTOR, "--output", running])?;
        Ok((phases.matches("Running").count() == 2).then_some(()))
    });
    // SIGKILL.
    child.kill().context("could not kill the plugin")?;
    child.wait().context("could not wait for the plugin")?;
    begun?;
    expect_no_pod(cluster)
}

/// Two runs at the same time do not disturb each other.
fn two_at_once(cluster: &mut Cluster, service: &str) -> Result<()> {
    let words = ["why", service, "--probe", "--yes"];
    let (first, second) = (command(cluster, &words)?, command(cluster, &words)?);
    let first = thread::spawn(move || watch(first, |_| Ok(())));
    let second = watch(second, |_| Ok(()));
    let first = first.join().map_err(|_| anyhow::anyhow!("the thread of the first run panicked"))?;
    for ran in [first?, second?] {
        expect(&ran, 0, &["nothing wrong with"])?;
    }
    expect_no_pod(cluster)
}
