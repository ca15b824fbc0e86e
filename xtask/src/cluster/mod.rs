//! `cargo xtask cluster`: a real Kubernetes on this machine. The control plane (etcd, API server, controller manager,
//! scheduler) runs in a network namespace, and two nodes (containerd, kubelet, kube-proxy) run in guests with plain
//! emulation.
//!
//! | file | owns |
//! |---|---|
//! | `binaries`, `source`, `hyperkube.go` | the programs of Kubernetes: given, or built from Debian's source |
//! | `root`, `disk`, `images` | a node's packages, its disk and initramfs, the container images |
//! | `network`, `pki` | the namespace with its addresses; certificates and kubeconfigs |
//! | `control_plane`, `slices` | the control plane's processes; discovery.k8s.io/v1 where the API server lacks it |
//! | `node`, `remote` | a node's guest and services; commands in it |
//! | `process`, `wait` | a long-lived program; a bounded wait |
//! | `scenarios` | `cargo xtask test --cluster` |
//!
//! Everything lies below `target/cluster` and ends with this process, however it ends. Nothing here is part of viptrace.

mod binaries;
mod control_plane;
mod disk;
mod images;
mod network;
mod node;
mod pki;
mod process;
mod remote;
mod root;
pub(crate) mod scenarios;
pub(crate) mod slices;
mod source;
mod wait;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::json;

use crate::apt;
use crate::call::Call;
use crate::kernels::{self, Kernel, Series};
use crate::place::Place;
use crate::printer::{Outcome, Printer, seconds};
use crate::setup;

use binaries::Binaries;
use control_plane::ControlPlane;
use disk::Disk;
use network::{Address, NODES, Network};
use node::{Boot, Mode, Node};
use pki::Authority;

/// The longest time from a started kubelet to a node that is ready.
const READY: Duration = Duration::from_mins(3);
/// The interval at which a running cluster is checked.
const CHECK: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) kind: Kind,
    /// The nodes' kernel
    #[arg(long, value_name = "SERIES", value_parser = kernels::parse, default_value = kernels::DEFAULT)]
    pub(crate) kernel: &'static Series,
    /// Run this command in the control plane's network, with KUBECONFIG set and kubectl on the PATH, and stop the cluster
    /// after it; without a command, the cluster runs until Ctrl-C
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Which Kubernetes to run.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Kind {
    /// A folder with the programs of Kubernetes, as upstream's server archive has them; without it, Debian's source is
    /// built once
    #[arg(long, value_name = "DIR")]
    pub(crate) kubernetes: Option<PathBuf>,
    /// kube-proxy's mode
    #[arg(long, value_name = "MODE", default_value = "iptables")]
    pub(crate) mode: Mode,
}

/// Runs a cluster and returns the exit status of the command in it.
pub(crate) fn run(printer: &Printer, options: &Options) -> Result<ExitCode> {
    let mut cluster = Cluster::start(printer, &options.kind, options.kernel)?;
    if let Some((program, arguments)) = options.command.split_first() {
        let mut command = cluster.command(program);
        let status = command
            .args(arguments)
            .status()
            .with_context(|| format!("could not start `{}`", program.display()))?;
        printer.say("==> stopping the cluster");
        // A shell's status of a program that a signal ended is above 128; here it is a failure.
        return Ok(status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .map_or(ExitCode::FAILURE, ExitCode::from));
    }
    printer
        .say(&format!("==> the cluster runs until Ctrl-C; kubeconfig: {}", cluster.kubeconfig().display()));
    printer.say(&format!(
        "    in another terminal: {} {} get nodes",
        cluster.entry().join(" "),
        cluster.binaries.kubectl().display()
    ));
    loop {
        cluster.check()?;
        thread::sleep(CHECK);
    }
}

/// A running cluster. Its parts stop in the order of these fields when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Cluster {
    nodes: Vec<Node>,
    control_plane: ControlPlane,
    network: Network,
    binaries: Binaries,
    mode: Mode,
    /// Whether a Pod of the plugin needs `CAP_SYS_ADMIN` to trace on the nodes' kernel.
    needs_sys_admin: bool,
    state: PathBuf,
    applied: AtomicU64,
    /// What a scenario left out, for the line of its result.
    notes: Vec<String>,
    /// Held as long as the cluster runs.
    _lock: File,
}

impl Cluster {
    /// Prepares what is missing, starts everything, and waits until both nodes are ready.
    pub(crate) fn start(printer: &Printer, kind: &Kind, series: &Series) -> Result<Self> {
        let place = Place::find()?;
        if !apt::is_root() {
            bail!("a cluster needs network namespaces and tap devices\nhint: run it as root");
        }
        let folder = place.target.join("cluster");
        let lock = lock(&folder)?;
        setup::tools(printer, &place, &[apt::CLUSTER, apt::IMAGE])?;
        setup::kernels(printer, &place, &[series])?;
        setup::binaries(printer, &place)?;
        let kernel = Kernel::find(&place, series)?;
        let binaries = Binaries::ensure(printer, &folder, kind.kubernetes.as_deref())?;
        let mode = kind.mode;
        mode.check(binaries.version)?;
        let prepared = Prepared::ensure(printer, &place, &folder, &binaries, &kernel)?;

        let state = folder.join("run");
        if state.exists() {
            fs::remove_dir_all(&state).with_context(|| format!("could not remove {}", state.display()))?;
        }
        fs::create_dir_all(&state).with_context(|| format!("could not create {}", state.display()))?;
        let authority = Authority::new()?;
        let parts = node::Parts {
            place: &place,
            binaries: &binaries,
            kernel: &kernel,
            disk: &prepared.disk,
            images: &[&prepared.viptrace],
            authority: &authority,
            mode,
            state: &state,
        };
        let started = Instant::now();
        let network = Network::create(&state)?;
        let mut boots = Vec::new();
        printer.step("guests", || {
            for address in NODES {
                boots.push((address, Boot::start(&network, parts, address)?));
            }
            Ok(Outcome::Done("started".to_owned()))
        })?;
        let mut control_plane = None;
        printer.step("control plane", || {
            let etcd = prepared.root.command("usr/bin/etcd");
            let parts = control_plane::Parts {
                binaries: &binaries,
                etcd: &etcd,
                authority: &authority,
                state: &state,
            };
            control_plane = Some(ControlPlane::start(&network, parts)?);
            Ok(Outcome::Done(format!("Kubernetes {} is ready", binaries.version)))
        })?;
        let control_plane = control_plane.context("the control plane was not started")?;
        let mut cluster = Self {
            nodes: Vec::new(),
            control_plane,
            network,
            binaries: binaries.clone(),
            mode,
            needs_sys_admin: !series.has_kprobe_multi(),
            state: state.clone(),
            applied: AtomicU64::new(0),
            notes: Vec::new(),
            _lock: lock,
        };
        printer.step("nodes", || {
            for (address, boot) in boots {
                cluster.nodes.push(boot.finish(printer, &cluster.network, parts, address)?);
            }
            join_all(&mut cluster.nodes, &binaries, mode)?;
            for address in NODES {
                cluster.register(address)?;
            }
            cluster.wait_for("the nodes to be ready", READY, |cluster| {
                Ok(cluster.are_nodes_ready()?.then_some(()))
            })?;
            Ok(Outcome::Done(format!("{} are ready", NODES.map(Address::name).join(" and "))))
        })?;
        printer.say(&format!("==> cluster: started in {}", seconds(started.elapsed())));
        Ok(cluster)
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        self.control_plane.kubeconfig()
    }

    /// The words before a command that runs in the control plane's network.
    fn entry(&self) -> Vec<String> {
        let mut words = self.network.entry();
        words.push("env".to_owned());
        words.push(format!("KUBECONFIG={}", self.kubeconfig().display()));
        words
    }

    /// A command in the control plane's network, with KUBECONFIG set and kubectl on the PATH.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let entry = self.entry();
        let mut command = Command::new(&entry[0]);
        command.args(&entry[1..]).arg(program).env("PATH", self.path());
        command
    }

    /// The same for a command that runs to its end.
    pub(crate) fn call(&self, what: &str, program: impl AsRef<OsStr>) -> Call {
        let entry = self.entry();
        Call::new(what, &entry[0]).args(&entry[1..]).arg(program).env("PATH", self.path())
    }

    fn path(&self) -> OsString {
        let own = self.binaries.kubectl().parent().map(Path::to_owned);
        let path = env::var_os("PATH").unwrap_or_default();
        let folders = own.into_iter().chain(env::split_paths(&path));
        env::join_paths(folders).unwrap_or(path)
    }

    /// Runs kubectl as the administrator and returns its output.
    pub(crate) fn kubectl<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<String> {
        self.call("run kubectl", self.binaries.kubectl()).args(arguments).read()
    }

    /// Applies the objects in a text of YAML.
    pub(crate) fn apply(&self, objects: &str) -> Result<()> {
        self.apply_with(&[], objects)
    }

    /// The same for objects of one namespace, which they do not name.
    pub(crate) fn apply_in(&self, namespace: &str, objects: &str) -> Result<()> {
        self.apply_with(&["--namespace", namespace], objects)
    }

    fn apply_with(&self, flags: &[&str], objects: &str) -> Result<()> {
        let number = self.applied.fetch_add(1, Ordering::Relaxed);
        let file = self.state.join(format!("applied-{number}.yaml"));
        control_plane::write(&file, objects)?;
        let words = flags.iter().chain(&["apply", "--filename"]).map(OsStr::new);
        self.kubectl(words.chain([file.as_os_str()])).map(drop)
    }

    /// Posts an object to a path of the API.
    pub(crate) fn create_raw(&self, path: &str, object: &str) -> Result<()> {
        let number = self.applied.fetch_add(1, Ordering::Relaxed);
        let file = self.state.join(format!("created-{number}.json"));
        control_plane::write(&file, object)?;
        let words = ["create", "--raw", path, "--filename"].map(OsStr::new);
        self.kubectl(words.into_iter().chain([file.as_os_str()])).map(drop)
    }

    /// Waits at most `limit` until `check` returns a value. The end of a part of the cluster ends the wait.
    pub(crate) fn wait_for<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut check: impl FnMut(&Self) -> Result<Option<T>>,
    ) -> Result<T> {
        wait::until(what, limit, || {
            self.check()?;
            check(self)
        })
    }

    /// Its name in results: the release and kube-proxy's mode.
    fn label(&self) -> String {
        format!("cluster {} {}", self.binaries.version, self.mode.name())
    }

    /// Fails if a part of the cluster has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.network.check()?;
        self.control_plane.check()?;
        self.nodes.iter_mut().try_for_each(Node::check)
    }

    /// The API server keeps its connections and answers nothing.
    pub(crate) fn pause_api_server(&self) -> Result<()> {
        self.control_plane.signal_api_server("STOP")
    }

    /// The API server goes on.
    pub(crate) fn resume_api_server(&self) -> Result<()> {
        self.control_plane.signal_api_server("CONT")
    }

    /// Notes something that a scenario leaves out on this cluster.
    pub(crate) fn note(&mut self, text: String) {
        self.notes.push(text);
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub(crate) fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// Waits until the kubelet has created its Node, and gives that the range of Pod addresses that the node's CNI
    /// configuration has.
    fn register(&mut self, address: Address) -> Result<()> {
        let (name, range) = (address.name(), address.pod_cidr());
        self.wait_for(&format!("the Node {name}"), READY, |cluster| {
            Ok(cluster.kubectl(["get", "node", &name]).ok().map(drop))
        })?;
        let patch = json!({"spec": {"podCIDR": range, "podCIDRs": [range]}}).to_string();
        self.kubectl(["patch", "node", &name, "--patch", &patch]).map(drop)
    }

    fn are_nodes_ready(&self) -> Result<bool> {
        let ready = r#"jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}"#;
        let states = self.kubectl(["get", "nodes", "--output", ready])?;
        Ok(states.split_whitespace().filter(|state| *state == "True").count() == NODES.len())
    }
}

/// The files from which a cluster is started.
struct Prepared {
    root: root::Root,
    disk: Disk,
    viptrace: PathBuf,
}

impl Prepared {
    fn ensure(
        printer: &Printer,
        place: &Place,
        folder: &Path,
        binaries: &Binaries,
        kernel: &Kernel,
    ) -> Result<Self> {
        let (mut packages, mut images, mut made) = (None, None, None);
        printer.step("packages of the nodes", || {
            let (root, outcome) = root::ensure(folder, binaries.version)?;
            packages = Some(root);
            Ok(outcome)
        })?;
        printer.step("container images", || {
            images = Some((images::busybox(folder)?, images::viptrace(place, folder)?));
            Ok(Outcome::Done(String::new()))
        })?;
        let root = packages.context("the packages were not unpacked")?;
        let (busybox, viptrace) = images.context("the images were not written")?;
        printer.step("disk of the nodes", || {
            let (disk, outcome) = disk::ensure(folder, &root, binaries, kernel, &[&busybox])?;
            made = Some(disk);
            Ok(outcome)
        })?;
        Ok(Self { root, disk: made.context("the disk was not made")?, viptrace })
    }
}

/// Only one cluster of a target folder runs at a time.
fn lock(folder: &Path) -> Result<File> {
    fs::create_dir_all(folder).with_context(|| format!("could not create {}", folder.display()))?;
    let path = folder.join("lock");
    let file = File::create(&path).with_context(|| format!("could not create {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "a cluster of this target folder runs already\nhint: stop it with Ctrl-C, or use another target folder: \
             CARGO_TARGET_DIR=FOLDER cargo xtask cluster"
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("could not lock {}", path.display()))
        }
    }
}

/// Sets up all nodes at the same time.
fn join_all(nodes: &mut [Node], binaries: &Binaries, mode: Mode) -> Result<()> {
    thread::scope(|scope| {
        let workers: Vec<_> =
            nodes.iter_mut().map(|node| scope.spawn(move || node.join(binaries.version, mode))).collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow::anyhow!("a thread that set up a node panicked"))??;
        }
        Ok(())
    })
}
