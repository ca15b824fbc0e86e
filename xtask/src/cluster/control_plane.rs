//! The control plane: etcd, the API server, the controller manager and the scheduler, as processes in the cluster's
//! network namespace. Its data lives as long as the run.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::call::Call;

use super::binaries::{Binaries, Version};
use super::network::{API_SERVICE, CLUSTER_CIDR, CONTROL_PLANE, Network, SERVICE_CIDR};
use super::pki::{Authority, Identity};
use super::process::Process;
use super::slices;
use super::wait;

/// The longest time until the API server is ready. It takes 5 s on an idle machine.
const READY: Duration = Duration::from_mins(2);
const ETCD: &str = "http://127.0.0.1:2379";
const ETCD_PEERS: &str = "http://127.0.0.1:2380";
/// The user with which the API server passes requests on to an API that another server serves.
const API_SERVER: &str = "kube-apiserver";
const FRONT_PROXY: &str = "front-proxy";

/// The running control plane.
#[derive(Debug)]
pub(crate) struct ControlPlane {
    processes: Vec<Process>,
    kubeconfig: PathBuf,
}

/// The parts from which a control plane is started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parts<'a> {
    pub(crate) binaries: &'a Binaries,
    /// etcd, with the words before it.
    pub(crate) etcd: &'a [OsString],
    pub(crate) authority: &'a Authority,
    /// The folder for its data and logs.
    pub(crate) state: &'a Path,
}

impl ControlPlane {
    /// Starts all parts and waits until the API server is ready.
    pub(crate) fn start(network: &Network, parts: Parts<'_>) -> Result<Self> {
        let Parts { binaries, etcd, authority, state } = parts;
        let files = Files { folder: state.join("pki") };
        fs::create_dir_all(&files.folder)
            .with_context(|| format!("could not create {}", files.folder.display()))?;
        files.authority(authority)?;
        let kubeconfig = state.join("kubeconfig");
        let admin = authority.issue("admin", Some("system:masters"), &[])?;
        write(&kubeconfig, &authority.kubeconfig(&admin, CONTROL_PLANE))?;

        let start = |name: &str, program: &[OsString], arguments: Vec<String>| {
            let mut command = network.command(&program[0]);
            command.args(&program[1..]).args(arguments);
            Process::start(name, command, &state.join(format!("{name}.log")))
        };
        let part = |name: &str, arguments: Vec<String>| {
            start(name, &[binaries.part(name).into_os_string()], arguments)
        };
        let mut plane = Self { processes: Vec::new(), kubeconfig };
        plane.processes.push(start("etcd", etcd, etcd_arguments(&state.join("etcd")))?);
        plane.processes.push(part(API_SERVER, api_server(&files, binaries.version, authority)?)?);
        plane.wait_until_ready(network, binaries)?;
        plane
            .processes
            .push(part("kube-controller-manager", controller_manager(&files, binaries.version, authority)?)?);
        plane.processes.push(part("kube-scheduler", scheduler(&files, authority)?)?);
        if slices::are_missing(binaries.version) {
            plane.processes.push(slices::start(network, authority, state)?);
            plane.apply(network, binaries, &files.folder.join("slices.yaml"), slices::REGISTRATION)?;
        }
        Ok(plane)
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Sends the API server a signal, by its name without `SIG`.
    pub(crate) fn signal_api_server(&self, signal: &str) -> Result<()> {
        let server = self.processes.iter().find(|process| process.name() == API_SERVER);
        let id = server.context("the API server was not started")?.id();
        // The shell's own `kill`: the program is a package of its own.
        let kill = format!("kill -s {signal} {id}");
        Call::new("signal the API server", "sh").args(["-c", &kill]).read().map(drop)
    }

    /// Fails if a part has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.processes.iter_mut().try_for_each(Process::check)
    }

    fn wait_until_ready(&mut self, network: &Network, binaries: &Binaries) -> Result<()> {
        let kubeconfig = self.kubeconfig.clone();
        wait::until("the API server", READY, || {
            self.check()?;
            let call =
                network.call("reach the API server", binaries.kubectl()).arg("--kubeconfig").arg(&kubeconfig);
            let ready = call.args(["--request-timeout=5s", "get", "--raw", "/readyz"]).read();
            Ok(ready.ok().filter(|text| text.trim() == "ok"))
        })
        .map(drop)
    }

    fn apply(&self, network: &Network, binaries: &Binaries, file: &Path, objects: &str) -> Result<()> {
        write(file, objects)?;
        let call: Call =
            network.call("register an API", binaries.kubectl()).arg("--kubeconfig").arg(&self.kubeconfig);
        call.args(["apply", "--filename"]).arg(file).read().map(drop)
    }
}

/// The folder of certificates, keys and kubeconfigs of the components.
struct Files {
    folder: PathBuf,
}

impl Files {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn flag(&self, name: &str, file: &str) -> String {
        format!("--{name}={}", self.path(file).display())
    }

    fn authority(&self, authority: &Authority) -> Result<()> {
        write(&self.path("ca.crt"), authority.certificate())
    }

    /// Writes a certificate and its key, and returns the two flags that name them.
    fn pair(&self, name: &str, flags: [&str; 2], identity: &Identity) -> Result<[String; 2]> {
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        write(&self.path(&certificate), &identity.certificate)?;
        write(&self.path(&key), &identity.key)?;
        Ok([self.flag(flags[0], &certificate), self.flag(flags[1], &key)])
    }

    /// The flags with which a component connects to the API server as this user, and checks who connects to it.
    fn client(&self, user: &str, authority: &Authority) -> Result<Vec<String>> {
        let name = format!("{user}.kubeconfig").replace(':', "-");
        let identity = authority.issue(user, None, &[])?;
        write(&self.path(&name), &authority.kubeconfig(&identity, CONTROL_PLANE))?;
        let flags = ["kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig"];
        let own = format!("--cert-dir={}", self.folder.display());
        Ok(flags.map(|flag| self.flag(flag, &name)).into_iter().chain([own]).collect())
    }
}

fn etcd_arguments(data: &Path) -> Vec<String> {
    vec![
        format!("--data-dir={}", data.display()),
        // The data does not outlive the run.
        "--unsafe-no-fsync".to_owned(),
        format!("--listen-client-urls={ETCD}"),
        format!("--advertise-client-urls={ETCD}"),
        format!("--listen-peer-urls={ETCD_PEERS}"),
        format!("--initial-advertise-peer-urls={ETCD_PEERS}"),
        format!("--initial-cluster=default={ETCD_PEERS}"),
    ]
}

fn api_server(files: &Files, version: Version, authority: &Authority) -> Result<Vec<String>> {
    let names = [
        "127.0.0.1",
        CONTROL_PLANE,
        API_SERVICE,
        "localhost",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
    ];
    let server = authority.issue("kube-apiserver", None, &names)?;
    let client = authority.issue("kube-apiserver-kubelet-client", Some("system:masters"), &[])?;
    let front_proxy = authority.issue(FRONT_PROXY, None, &[])?;
    let accounts = authority.issue("service-accounts", None, &[])?;
    let mut arguments = vec![
        format!("--etcd-servers={ETCD}"),
        "--bind-address=0.0.0.0".to_owned(),
        "--secure-port=6443".to_owned(),
        format!("--advertise-address={CONTROL_PLANE}"),
        format!("--service-cluster-ip-range={SERVICE_CIDR}"),
        "--authorization-mode=Node,RBAC".to_owned(),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        "--allow-privileged=true".to_owned(),
        // Nodes have no names in DNS.
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        files.flag("client-ca-file", "ca.crt"),
        files.flag("requestheader-client-ca-file", "ca.crt"),
        format!("--requestheader-allowed-names={FRONT_PROXY}"),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
    ];
    arguments.extend(files.pair("server", ["tls-cert-file", "tls-private-key-file"], &server)?);
    arguments.extend(files.pair(
        "kubelet-client",
        ["kubelet-client-certificate", "kubelet-client-key"],
        &client,
    )?);
    arguments.extend(files.pair(
        "front-proxy",
        ["proxy-client-cert-file", "proxy-client-key-file"],
        &front_proxy,
    )?);
    let account_flags = ["service-account-key-file", "service-account-signing-key-file"];
    arguments.extend(files.pair("accounts", account_flags, &accounts)?);
    arguments.extend(slices::feature_gates(version));
    Ok(arguments)
}

fn controller_manager(files: &Files, version: Version, authority: &Authority) -> Result<Vec<String>> {
    let mut arguments = files.client("system:kube-controller-manager", authority)?;
    arguments.extend([
        files.flag("root-ca-file", "ca.crt"),
        files.flag("service-account-private-key-file", "accounts.key"),
        "--use-service-account-credentials=true".to_owned(),
        "--leader-elect=false".to_owned(),
        // Each node has a fixed range.
        "--allocate-node-cidrs=false".to_owned(),
        format!("--cluster-cidr={CLUSTER_CIDR}"),
    ]);
    arguments.extend(slices::feature_gates(version));
    Ok(arguments)
}

fn scheduler(files: &Files, authority: &Authority) -> Result<Vec<String>> {
    let mut arguments = files.client("system:kube-scheduler", authority)?;
    arguments.push("--leader-elect=false".to_owned());
    Ok(arguments)
}

pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("could not write {}", path.display()))
}
