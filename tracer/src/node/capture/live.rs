//! Takes a capture of the node that viptrace runs on: commands that list, files of the kernel, kube-proxy's own ports.
//!
//! Owns where things are found. Everything has a limit on time and bytes, nothing is changed: a command whose part of
//! the kernel is not loaded is not run, as some would load it.

use std::{
    fs::{self, File},
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;

use super::{Capture, Kind};
use crate::node::{
    Limits,
    command::{self, CommandError},
    conntrack, http,
    interfaces::Interfaces,
    ipvs,
    kube_proxy::{
        config::Config,
        process::ProcessList,
        servers::{self, Servers},
    },
    procfs, rules,
    sysctl::Sysctls,
};

/// Bytes of one log file that are kept, from its end.
const LOG_MAX_BYTES: u64 = 16 << 20;
/// Counters are read twice, with at least this between.
const BETWEEN: Duration = Duration::from_secs(1);

/// Where and how the node is looked at.
#[derive(Clone, Debug)]
pub struct LiveReader {
    pub proc: PathBuf,
    pub sys: PathBuf,
    /// `/var/log`.
    pub logs: PathBuf,
    /// `/lib/modules`.
    pub modules: PathBuf,
    /// For one listing of rules: seconds on large tables.
    pub commands: Limits,
    /// For one request to kube-proxy's ports.
    pub requests: Limits,
}

impl Default for LiveReader {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            logs: "/var/log".into(),
            modules: "/lib/modules".into(),
            commands: Limits { time: Duration::from_secs(20), bytes: 256 << 20 },
            requests: Limits { time: Duration::from_secs(3), bytes: 32 << 20 },
        }
    }
}

impl LiveReader {
    /// Looks at everything. What is missing is a gap of the capture.
    pub async fn gather(&self) -> Capture {
        let mut capture = Capture::default();
        let begun = Instant::now();
        self.counters(&mut capture, Kind::ConntrackStat, Kind::Netstat, "");
        let reader = self.clone();
        let files = tokio::task::spawn_blocking(move || {
            let mut capture = Capture::default();
            reader.files(&mut capture);
            reader.rules(&mut capture);
            capture
        });
        match files.await {
            Ok(files) => {
                capture.artifacts.extend(files.artifacts);
                capture.gaps.extend(files.gaps);
            }
            Err(error) => capture.miss(Kind::Sysctls, format!("the node could not be read: {error}")),
        }
        self.kube_proxy(&mut capture).await;
        tokio::time::sleep_until(begun + BETWEEN).await;
        let later = format!(", {:.1} s later", begun.elapsed().as_secs_f64());
        self.counters(&mut capture, Kind::ConntrackStatLater, Kind::NetstatLater, &later);
        capture
    }

    fn counters(&self, capture: &mut Capture, statistics: Kind, netstat: Kind, when: &str) {
        match conntrack::read(&self.proc, self.commands) {
            Ok((text, source)) => capture.put(statistics, format!("{source}{when}"), text),
            Err(error) => capture.miss(statistics, error.to_string()),
        }
        let path = self.proc.join("net/netstat");
        match procfs::read_text(&path) {
            Ok(text) => capture.put(netstat, format!("{}{when}", path.display()), text),
            Err(error) => capture.miss(netstat, format!("{}: {error}", path.display())),
        }
    }

    /// What the kernel's files say. Blocks.
    fn files(&self, capture: &mut Capture) {
        let place = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
        match Sysctls::read(&self.proc) {
            Ok(read) => {
                capture.put(Kind::Sysctls, self.proc.join("sys").display().to_string(), read.to_text());
            }
            Err(error) => capture.miss(Kind::Sysctls, place(&self.proc.join("sys"), error)),
        }
        match ProcessList::read(&self.proc) {
            Ok(list) => capture.put(Kind::Process, self.proc.display().to_string(), list.to_text()),
            Err(error) => capture.miss(Kind::Process, place(&self.proc, error)),
        }
        match conntrack::namespaces(&self.proc) {
            Ok(list) if list.is_empty() => {
                capture.miss(Kind::ConntrackNamespaces, "no namespace's counters can be read from here");
            }
            Ok(list) => capture.put(
                Kind::ConntrackNamespaces,
                self.proc.join("*/net/stat/nf_conntrack").display().to_string(),
                conntrack::namespaces_to_text(&list),
            ),
            Err(error) => capture.miss(Kind::ConntrackNamespaces, place(&self.proc, error)),
        }
        let modules = self.proc.join("modules");
        match procfs::read_text(&modules) {
            Ok(text) => {
                let text = text + &self.built_in().unwrap_or_default();
                capture.put(Kind::Modules, modules.display().to_string(), text);
            }
            Err(error) => capture.miss(Kind::Modules, place(&modules, error)),
        }
        match command::run("ip", &["-d", "-j", "addr", "show"], self.commands) {
            Ok(output) => capture.put(Kind::Interfaces, "ip -d -j addr show", text(&output)),
            Err(error) => match Interfaces::from_files(&self.sys, &self.proc) {
                Ok(read) => {
                    capture.put(Kind::Interfaces, self.sys.join("class/net").display().to_string(), read);
                }
                Err(other) => capture.miss(Kind::Interfaces, format!("{error}; {}", place(&self.sys, other))),
            },
        }
        self.logs(capture);
    }

    /// The modules built into the running kernel, where their list is installed.
    fn built_in(&self) -> Option<String> {
        let release = procfs::read_text(&self.proc.join("sys/kernel/osrelease")).ok()?;
        procfs::read_text(&self.modules.join(release.trim()).join("modules.builtin")).ok()
    }

    /// Everything that can hold rules of kube-proxy. Blocks. A command is run only where its part of the kernel is
    /// loaded: elsewhere some would load it, and their empty answer would prove nothing.
    fn rules(&self, capture: &mut Capture) {
        let nf_tables = rules::has_nf_tables(Path::new("/"));
        for (family, names) in [("iptables", "ip_tables_names"), ("ip6tables", "ip6_tables_names")] {
            let legacy = procfs::read_text(&self.proc.join("net").join(names))
                .is_ok_and(|text| !text.trim().is_empty());
            self.iptables(capture, family, nf_tables, legacy);
        }
        if !nf_tables {
            capture.miss(Kind::NftRulesetJson, not_loaded("nf_tables"));
        } else if !self.list(capture, Kind::NftRulesetJson, "nft", &["-j", "list", "ruleset"]) {
            // An nft without JSON prints text all the same.
            self.list(capture, Kind::NftRuleset, "nft", &["list", "ruleset"]);
        }
        self.ipvs(capture);
        if self.sys.join("module/ip_set").exists() {
            self.list(capture, Kind::IpsetSave, "ipset", &["save"]);
        } else {
            capture.miss(Kind::IpsetSave, not_loaded("ip_set"));
        }
    }

    /// Each backend by its own name; images with one backend only often have the plain name alone.
    fn iptables(&self, capture: &mut Capture, family: &str, nf_tables: bool, legacy: bool) {
        let [plain, nft, old] = match family {
            "iptables" => [Kind::IptablesSave, Kind::IptablesNftSave, Kind::IptablesLegacySave],
            _ => [Kind::Ip6tablesSave, Kind::Ip6tablesNftSave, Kind::Ip6tablesLegacySave],
        };
        let mut read = false;
        for (kind, flavour, present) in [(nft, "-nft", nf_tables), (old, "-legacy", legacy)] {
            read |= present && self.list(capture, kind, &format!("{family}{flavour}-save"), &["-c"]);
        }
        if !(nf_tables || legacy) {
            capture
                .miss(plain, "neither backend of iptables is loaded in this kernel, so no command was run");
        } else if !read {
            self.list(capture, plain, &format!("{family}-save"), &["-c"]);
        }
    }

    fn ipvs(&self, capture: &mut Capture) {
        if !self.proc.join("net/ip_vs").exists() {
            capture.miss(Kind::IpvsSave, not_loaded("IPVS"));
            return;
        }
        match ipvs::read(&self.proc, self.commands) {
            Ok(list) if list.with_times => capture.put(Kind::IpvsSave, list.source, list.text),
            Ok(list) => {
                capture.miss(
                    Kind::IpvsSave,
                    "how long clients stay with their server: generic netlink needs CAP_NET_ADMIN, and there is no \
                     ipvsadm",
                );
                capture.put(Kind::IpvsList, list.source, list.text);
            }
            Err(error) => capture.miss(Kind::IpvsList, error),
        }
    }

    /// Runs a command that lists; answers whether it did.
    fn list(&self, capture: &mut Capture, kind: Kind, program: &str, arguments: &[&str]) -> bool {
        match command::run(program, arguments, self.commands) {
            Ok(output) => {
                capture.put(kind, format!("{program} {}", arguments.join(" ")), text(&output));
                return true;
            }
            Err(error @ CommandError::Missing { .. }) => capture.miss(kind, error.to_string()),
            Err(error) => {
                capture.miss(kind, format!("{error}; it needs root, or CAP_NET_ADMIN and CAP_NET_RAW"));
            }
        }
        false
    }

    /// kube-proxy's log as the kubelet or the service manager keeps it.
    fn logs(&self, capture: &mut Capture) {
        let files = pod_logs(&self.logs.join("pods"));
        let single = self.logs.join("kube-proxy.log");
        let (current, previous) = match files.as_slice() {
            [] => (single.is_file().then_some(single), None),
            [only] => (Some(only.clone()), None),
            [.., before, last] => (Some(last.clone()), Some(before.clone())),
        };
        for (kind, path) in [(Kind::ProxyLog, current), (Kind::ProxyLogPrevious, previous)] {
            match path.as_deref().map(|path| (path, tail(path))) {
                Some((path, Ok(text))) => capture.put(kind, path.display().to_string(), text),
                Some((path, Err(error))) => capture.miss(kind, format!("{}: {error}", path.display())),
                None if kind == Kind::ProxyLog => {
                    capture.miss(kind, format!("no log of kube-proxy below {}", self.logs.display()));
                }
                None => {}
            }
        }
    }

    /// kube-proxy's configuration and what its ports answer.
    async fn kube_proxy(&self, capture: &mut Capture) {
        let process = capture.text(Kind::Process).and_then(ProcessList::parse).unwrap_or_default();
        if let Some((path, read)) = servers::config_file(&process, &self.proc) {
            match read {
                Ok(text) => capture.put(Kind::ProxyConfig, path.to_owned(), text),
                Err(error) => capture
                    .miss(Kind::ProxyConfig, format!("{path}, which kube-proxy was started with: {error}")),
            }
        }
        let config = capture.text(Kind::ProxyConfig).and_then(|text| Config::parse(text).ok());
        let config = config.or_else(|| Config::from_flags(&process)).unwrap_or_default();
        let Servers { metrics, health } = Servers::of(&config);
        let requests = [
            (Kind::ProxyMode, metrics, "/proxyMode"),
            (Kind::ProxyMetrics, metrics, "/metrics"),
            (Kind::ProxyHealthz, health, "/healthz"),
            (Kind::ProxyLivez, health, "/livez"),
        ];
        for (kind, address, path) in requests {
            match http::get(address, path, self.requests).await {
                Ok(answer) => {
                    let mut body = text(&answer.body);
                    match kind {
                        Kind::ProxyHealthz | Kind::ProxyLivez => {
                            body = format!("{}\n{}", body.trim_end(), answer.status);
                        }
                        _ if answer.status != 200 => {
                            capture.miss(kind, format!("http://{address}{path} answered {}", answer.status));
                            continue;
                        }
                        _ => {}
                    }
                    capture.put(kind, format!("http://{address}{path}"), body);
                }
                Err(error) => capture.miss(kind, error.to_string()),
            }
        }
    }
}

fn not_loaded(what: &str) -> String {
    format!("{what} is not loaded in this kernel, so no command was run")
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

/// The end of a file.
fn tail(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_MAX_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(LOG_MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(text(&bytes))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_the_last_restart_is_the_current_one() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("kube-system_kube-proxy-x_1234/kube-proxy");
        fs::create_dir_all(&folder).unwrap();
        let time = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1);
        for (name, text) in [("0.log", "old"), ("1.log", "new"), ("1.log.20260101.gz", "x")] {
            fs::write(folder.join(name), text).unwrap();
            File::options().write(true).open(folder.join(name)).unwrap().set_modified(time).unwrap();
        }
        fs::create_dir_all(root.path().join("shop_cart_1/kube-proxy")).unwrap();
        let files = pod_logs(root.path());
        assert_eq!(files.len(), 2);
        assert_eq!(tail(files.last().unwrap()).unwrap(), "new");
    }

    #[tokio::test]
    async fn a_bare_machine_leaves_named_gaps_only() {
        let root = tempfile::tempdir().unwrap();
        let nowhere = |name: &str| root.path().join(name);
        let limits = Limits { time: Duration::from_secs(5), bytes: 1 << 20 };
        let reader = LiveReader {
            proc: nowhere("proc"),
            sys: nowhere("sys"),
            logs: nowhere("log"),
            modules: nowhere("modules"),
            commands: limits,
            requests: limits,
        };
        let capture = reader.gather().await;
        for kind in [Kind::Sysctls, Kind::Process, Kind::ConntrackStat, Kind::ProxyLog, Kind::IpvsSave] {
            assert!(capture.why_missing(kind).is_some(), "{kind:?}");
        }
    }
}
