//! Reads the node on which viptrace runs: commands that list, files of the kernel, kube-proxy's own ports.
//!
//! The one collector of a trace, a check and a capture. Owns the origin of every text and the cost of a request.
//! Changes nothing on the node, and runs nothing that would load a part of the kernel (`loaded`). A failed read is a
//! gap of the capture, and the collection as a whole cannot fail.

mod rules;

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use crate::{
    node::{
        Limits,
        capture::{Artifact, Capture, Kind},
        command::Commands,
        conntrack,
        gap::Reason,
        http,
        interfaces::{self, Interfaces},
        kube_proxy::{
            config::Config,
            process::ProcessList,
            servers::{self, Servers},
        },
        now, procfs,
        routes::Routes,
        sysctl::Sysctls,
    },
    text,
};

/// The bytes of a log file that are kept, from its end.
const MAX_LOG_BYTES: u64 = 16 << 20;
/// The minimum time between the two reads of the counters.
const BETWEEN: Duration = Duration::from_secs(1);

/// A request.
///
/// | request | kinds | a command, a netlink dump | a request to kube-proxy |
/// |---|---|---|---|
/// | `State` | kube-proxy's process and ports, conntrack's use, IPVS's settings, addresses, names of interfaces | 5 s, 256 MiB | 2 s, 8 MiB |
/// | `Rules` | the same, the rules of every program in both families, and the routes | 5 s, 256 MiB | 2 s, 8 MiB |
/// | `Check` | every kind of one node; counters twice, a second apart | 20 s, 256 MiB | 3 s, 32 MiB |
///
/// `State` reads rules only if kube-proxy's port does not answer: then those that show its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// For every verdict of a trace.
    State,
    /// For a flow of a trace that needs the rules.
    Rules,
    Check,
}

impl Request {
    /// The limit of one command or netlink dump: a listing of a large table takes seconds.
    const fn listing(self) -> Limits {
        match self {
            Self::State | Self::Rules => Limits { time: Duration::from_secs(5), bytes: 256 << 20 },
            Self::Check => Limits { time: Duration::from_secs(20), bytes: 256 << 20 },
        }
    }

    /// The limit of one request to kube-proxy's ports.
    const fn query(self) -> Limits {
        match self {
            Self::State | Self::Rules => Limits { time: Duration::from_secs(2), bytes: 8 << 20 },
            Self::Check => Limits { time: Duration::from_secs(3), bytes: 32 << 20 },
        }
    }
}

/// The place of the node's files and commands.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    /// The root of `/proc`, `/sys`, `/var/log` and `/lib/modules`.
    pub root: PathBuf,
    /// Folders of commands, as in `PATH`; `None` uses the environment's.
    pub path: Option<OsString>,
    /// kube-proxy's ports; with `None` its process and configuration show them.
    pub servers: Option<Servers>,
}

impl Default for Collector {
    /// This node.
    fn default() -> Self {
        Self { root: "/".into(), path: None, servers: None }
    }
}

impl Collector {
    /// Reads the requested kinds. A missing one is a gap of the capture.
    pub(crate) async fn collect(&self, request: Request) -> Capture {
        let begun = Instant::now();
        let mut capture = self.off_loop(move |reading| reading.kube_proxy(request)).await;
        let servers = self.servers.unwrap_or_else(|| servers(&capture));
        let files = self.off_loop(move |reading| {
            reading.files(request);
            if request != Request::State {
                reading.rules(request);
            }
        });
        let (answers, files) = tokio::join!(ports(servers, request), files);
        capture.absorb(answers);
        capture.absorb(files);
        match request {
            Request::State if capture.get(Kind::ProxyMode).is_none() => {
                let device = capture.text(Kind::Interfaces).and_then(|text| Interfaces::parse(text).ok());
                if device.is_none_or(|interfaces| interfaces.get(interfaces::IPVS_DEVICE).is_none()) {
                    capture.absorb(self.off_loop(move |reading| reading.rules_of_mode(request)).await);
                }
            }
            Request::Check => {
                tokio::time::sleep_until(begun + BETWEEN).await;
                let later = format!(", {:.1} s later", begun.elapsed().as_secs_f64());
                let counters = move |reading: &mut Reading| {
                    reading.counters(request, Kind::ConntrackStatLater, Kind::NetstatLater, &later);
                };
                capture.absorb(self.off_loop(counters).await);
            }
            Request::State | Request::Rules => {}
        }
        capture
    }

    /// Runs the blocking part in parallel to the event loop.
    async fn off_loop(&self, read: impl FnOnce(&mut Reading) + Send + 'static) -> Capture {
        let mut reading = Reading { collector: self.clone(), capture: Capture::default() };
        let read = tokio::task::spawn_blocking(move || {
            read(&mut reading);
            reading.capture
        });
        // After a panic of the reader its kinds are missing without a reason.
        read.await.unwrap_or_default()
    }
}

/// A running collection. Its methods block.
struct Reading {
    collector: Collector,
    capture: Capture,
}

impl Reading {
    fn root(&self, path: &str) -> PathBuf {
        self.collector.root.join(path)
    }

    fn commands(&self, request: Request) -> Commands {
        Commands { path: self.collector.path.clone(), limits: request.listing() }
    }

    /// Adds a text, or the reason for its absence. `read` returns it.
    fn take<S: Into<String>>(&mut self, kind: Kind, read: impl FnOnce(&Self) -> Result<(S, String), Reason>) {
        let begun = now();
        match read(self) {
            Ok((source, text)) => {
                self.capture.put_read(kind, source, text, Some(begun));
            }
            Err(reason) => self.capture.miss(kind, reason),
        }
    }

    fn take_file(&mut self, kind: Kind, path: &Path) {
        self.take(kind, |_| {
            let text = text_of(path)?;
            Ok((path.display().to_string(), text))
        });
    }

    fn counters(&mut self, request: Request, statistics: Kind, netstat: Kind, when: &str) {
        self.take(statistics, |reading| {
            let (text, source) = conntrack::read(&reading.collector.root, request.listing())?;
            Ok((format!("{source}{when}"), text))
        });
        let path = self.root("proc/net/netstat");
        self.take(netstat, |_| {
            let text = text_of(&path)?;
            Ok((format!("{}{when}", path.display()), text))
        });
    }

    /// kube-proxy's process and configuration; for a check, first the counters that are read twice.
    fn kube_proxy(&mut self, request: Request) {
        if request == Request::Check {
            self.counters(request, Kind::ConntrackStat, Kind::Netstat, "");
        }
        let proc = self.root("proc");
        let list = ProcessList::read(&proc);
        self.take(Kind::Process, |_| match &list {
            Ok(list) => Ok((proc.display().to_string(), list.to_text())),
            Err(error) => Err(Reason::of_file(&proc, error)),
        });
        if let Some((path, read)) = list.as_ref().ok().and_then(|list| servers::config_file(list, &proc)) {
            self.take(Kind::ProxyConfig, |_| match read {
                Ok(text) => Ok((path, text)),
                Err(error) => Err(Reason::of_file(Path::new(path), &error)),
            });
        }
    }

    /// The kernel's files, and kube-proxy's log.
    fn files(&mut self, request: Request) {
        let (proc, sys) = (self.root("proc"), self.root("sys"));
        self.take(Kind::Addresses, |_| {
            let trie = proc.join("net/fib_trie");
            let text = text_of(&trie)?;
            // Without IPv6 this file does not exist.
            let inet6 = procfs::read_text(&proc.join("net/if_inet6")).unwrap_or_default();
            let lines =
                procfs::parse_addresses(&text, &inet6).into_iter().map(|address| format!("{address}\n"));
            Ok((trie.display().to_string(), lines.collect()))
        });
        self.take(Kind::Sysctls, |_| {
            let settings = proc.join("sys");
            let read =
                if request == Request::Check { Sysctls::read(&proc) } else { Sysctls::read_few(&proc) };
            let read = read.map_err(|error| Reason::of_file(&settings, &error))?;
            Ok((settings.display().to_string(), read.to_text()))
        });
        if request != Request::Check {
            self.take(Kind::Interfaces, |_| {
                let devices = proc.join("net/dev");
                let text = text_of(&devices)?;
                Ok((devices.display().to_string(), interfaces::names_to_text(&text, &sys)))
            });
            if request == Request::Rules {
                self.routes(&proc);
            }
            return;
        }
        self.take(Kind::Interfaces, |reading| {
            match reading.commands(request).run("ip", &["-d", "-j", "addr", "show"]) {
                Ok(text) => Ok(("ip -d -j addr show".to_owned(), text)),
                Err(reason) => match Interfaces::from_files(&sys, &proc) {
                    Ok(text) => Ok((sys.join("class/net").display().to_string(), text)),
                    Err(_) => Err(reason),
                },
            }
        });
        self.routes(&proc);
        self.take(Kind::ConntrackNamespaces, |_| {
            let list = conntrack::namespaces(&proc).map_err(|error| Reason::of_file(&proc, &error))?;
            let place = proc.join("*/net/stat/nf_conntrack").display().to_string();
            if list.is_empty() {
                return Err(Reason::Unreadable {
                    place,
                    error: "no namespace's counters are readable".to_owned(),
                });
            }
            Ok((place, conntrack::namespaces_to_text(&list)))
        });
        let modules = proc.join("modules");
        self.take(Kind::Modules, |reading| {
            let text = text_of(&modules)?;
            Ok((modules.display().to_string(), text + &reading.built_in().unwrap_or_default()))
        });
        self.logs();
    }

    fn routes(&mut self, proc: &Path) {
        self.take(Kind::Routes, |_| {
            let route = proc.join("net/route");
            let text = text_of(&route)?;
            // Without IPv6 this file does not exist.
            let ipv6_route = procfs::read_text(&proc.join("net/ipv6_route")).unwrap_or_default();
            Ok((route.display().to_string(), Routes::lines_of(&text, &ipv6_route)))
        });
    }

    /// The modules built into the running kernel, if their list is installed.
    fn built_in(&self) -> Option<String> {
        let release = procfs::read_text(&self.root("proc/sys/kernel/osrelease")).ok()?;
        procfs::read_text(&self.root("lib/modules").join(release.trim()).join("modules.builtin")).ok()
    }

    /// kube-proxy's log from the kubelet or the service manager.
    fn logs(&mut self) {
        let logs = self.root("var/log");
        let mut files = pod_logs(&logs.join("pods"));
        let single = logs.join("kube-proxy.log");
        if files.is_empty() && single.is_file() {
            files.push(single);
        }
        let newest_first = files.into_iter().rev().zip([Kind::ProxyLog, Kind::ProxyLogPrevious]);
        for (path, kind) in newest_first {
            self.take(kind, |_| {
                let text = tail(&path).map_err(|error| Reason::of_file(&path, &error))?;
                Ok((path.display().to_string(), text))
            });
        }
        if self.capture.get(Kind::ProxyLog).is_none() && self.capture.why_missing(Kind::ProxyLog).is_none() {
            let (place, error) = (logs.display().to_string(), "no log of kube-proxy".to_owned());
            self.capture.miss(Kind::ProxyLog, Reason::Unreadable { place, error });
        }
    }
}

/// The ports of the kube-proxy process.
fn servers(capture: &Capture) -> Servers {
    let config = capture.text(Kind::ProxyConfig).and_then(|text| Config::parse(text).ok());
    let process = || capture.text(Kind::Process).and_then(|text| ProcessList::parse(text).ok());
    config
        .or_else(|| Config::from_flags(&process()?))
        .map_or_else(Servers::default, |config| Servers::of(&config))
}

/// The answers of kube-proxy's ports, requested at the same time.
async fn ports(Servers { metrics, health }: Servers, request: Request) -> Capture {
    let requests = [
        (Kind::ProxyMode, metrics, "/proxyMode"),
        (Kind::ProxyMetrics, metrics, "/metrics"),
        (Kind::ProxyHealthz, health, "/healthz"),
        (Kind::ProxyLivez, health, "/livez"),
    ];
    let wanted =
        requests.into_iter().filter(|(kind, ..)| request == Request::Check || *kind != Kind::ProxyLivez);
    let answers = wanted.map(async |(kind, address, path)| {
        let begun = now();
        let place = format!("http://{address}{path}");
        let answer = http::get(address, path, request.query()).await;
        let read = answer.and_then(|http::Response { status, body }| {
            let text = String::from_utf8_lossy(&body);
            match kind {
                // An unhealthy kube-proxy answers with another status.
                Kind::ProxyHealthz | Kind::ProxyLivez => Ok(format!("{}\n{status}", text.trim_end())),
                _ if status == 200 => Ok(text.into_owned()),
                _ => Err(Reason::Refused { place: place.clone(), status }),
            }
        });
        (kind, read.map(|text| Artifact { kind, text, source: place, read: Some(begun) }))
    });
    let mut capture = Capture::default();
    for (kind, answer) in futures::future::join_all(answers).await {
        match answer {
            Ok(artifact) => capture.artifacts.push(artifact),
            Err(reason) => capture.miss(kind, reason),
        }
    }
    capture
}

/// The kubelet's files of kube-proxy's container, the oldest first: `kube-system_kube-proxy-x_UID/kube-proxy/N.log`,
/// where N counts restarts.
fn pod_logs(pods: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for pod in fs::read_dir(pods).into_iter().flatten().flatten() {
        let name = pod.file_name();
        let Some(name) = name.to_str() else { continue };
        if !name.split('_').nth(1).is_some_and(|pod| pod.starts_with("kube-proxy")) {
            continue;
        }
        let folder = pod.path().join("kube-proxy");
        for log in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = log.path();
            let number =
                path.file_name().and_then(|name| name.to_str()?.strip_suffix(".log")?.parse::<u32>().ok());
            let modified = log.metadata().and_then(|meta| meta.modified()).ok();
            if let Some(number) = number {
                files.push((modified, number, path));
            }
        }
    }
    files.sort();
    files.into_iter().map(|(.., path)| path).collect()
}

/// The text of a file, or the reason for its absence.
fn text_of(path: &Path) -> Result<String, Reason> {
    procfs::read_text(path).map_err(|error| Reason::of_file(path, &error))
}

/// The end of a file.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(MAX_LOG_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(MAX_LOG_BYTES).read_to_end(&mut bytes)?;
    Ok(text::of_bytes(bytes))
}

#[cfg(test)]
mod tests;
