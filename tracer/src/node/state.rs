//! The node's state at one moment, gathered from all readers.
//!
//! A reader that fails leaves its field empty and a line in `gaps`; gathering as a whole cannot fail.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    io,
    net::IpAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    net::Family,
    node::{
        IpvsSettings, Limits, command, conntrack, http, ipvs,
        kube_proxy::{self, Health, ProxyMode, process::ProcessList, servers::Servers},
        now, procfs, rules,
    },
    time::Timestamp,
};

/// A row for each CPU that may be there.
const STATISTICS: Limits = Limits { time: Duration::from_secs(1), bytes: 4 << 20 };

/// A fact and when it was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed<T> {
    pub time: Timestamp,
    pub value: T,
}

/// What the node says. An empty field was not found out; `gaps` says why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeState {
    pub kube_proxy_mode: Option<Observed<ProxyMode>>,
    /// `v1.30.5`, from kube-proxy's metrics.
    pub kube_proxy_version: Option<Observed<String>>,
    /// Whether rules of kube-proxy, of any mode, were found in the kernel; looked for only where kube-proxy does not
    /// say its mode.
    pub proxy_rules: Option<Observed<bool>>,
    pub kube_proxy_running: Option<Observed<bool>>,
    /// Another program whose interfaces are here and that may serve Services in kube-proxy's place.
    pub other_dataplane: Option<Observed<Cow<'static, str>>>,
    pub kube_proxy_health: Option<Observed<Health>>,
    pub conntrack_use: Option<Observed<procfs::ConntrackUse>>,
    pub conntrack_counters: Option<Observed<procfs::ConntrackCounters>>,
    pub ipvs_settings: Option<Observed<IpvsSettings>>,
    /// Addresses of this network namespace, without loopback.
    pub addresses: Option<Observed<BTreeSet<IpAddr>>>,
    /// What could not be read, each with the reason.
    pub gaps: Vec<String>,
}

/// Where and how the node is read.
#[derive(Clone, Debug)]
pub struct NodeReader {
    /// `/proc`.
    pub proc: PathBuf,
    /// Where kube-proxy is asked; `None` where its process says that it is.
    pub servers: Option<Servers>,
    /// For one request or command.
    pub limits: Limits,
}

impl Default for NodeReader {
    /// This node, 2 s and 8 MiB a read.
    fn default() -> Self {
        Self {
            proc: PathBuf::from("/proc"),
            servers: None,
            limits: Limits { time: Duration::from_secs(2), bytes: 8 << 20 },
        }
    }
}

impl NodeReader {
    /// Reads everything, the slow readers at the same time.
    pub async fn read(&self) -> NodeState {
        let mut state = NodeState::default();
        let reader = self.clone();
        let found = tokio::task::spawn_blocking(move || reader.find_kube_proxy()).await;
        let (process, servers) = found.unwrap_or_else(|error| (Err(error.into()), Servers::default()));
        let reader = self.clone();
        let files = tokio::task::spawn_blocking(move || reader.read_files(process));
        let (mode, metrics, health, files) = tokio::join!(
            http::get(servers.metrics, "/proxyMode", self.limits),
            http::get(servers.metrics, "/metrics", self.limits),
            http::get(servers.health, "/healthz", self.limits),
            files,
        );
        let time = now();
        match files {
            Ok(facts) => state = facts,
            Err(error) => state.gaps.push(format!("the node's files: {error}")),
        }
        let answers = mode.is_ok() || metrics.is_ok() || health.is_ok();

        match mode
            .map(|response| (response.status, ProxyMode::parse(&String::from_utf8_lossy(&response.body))))
        {
            Ok((200, Some(mode))) => state.kube_proxy_mode = Some(Observed { time, value: mode }),
            Ok((status, _)) => state.gaps.push(format!(
                "kube-proxy's mode: {}/proxyMode answered {status} and no mode that is known here",
                servers.metrics
            )),
            Err(error) => state.gaps.push(format!("kube-proxy's mode from its own port: {error}")),
        }
        if state.kube_proxy_mode.is_none() {
            self.mode_from_rules(&mut state).await;
        }
        match metrics {
            Ok(response) => match kube_proxy::version(&String::from_utf8_lossy(&response.body)) {
                Some(version) => state.kube_proxy_version = Some(Observed { time, value: version }),
                None => state.gaps.push(format!(
                    "kube-proxy's version: {}/metrics has no kubernetes_build_info",
                    servers.metrics
                )),
            },
            Err(error) => state.gaps.push(format!("kube-proxy's version: {error}")),
        }
        match health {
            Ok(response) => {
                let value = Health::parse(response.status, &response.body);
                state.kube_proxy_health = Some(Observed { time, value });
            }
            Err(error) => state.gaps.push(format!("kube-proxy's health: {error}")),
        }
        // A port that answers is better proof than a process list seen from inside a container.
        if answers && state.kube_proxy_running.is_none_or(|running| !running.value) {
            state.kube_proxy_running = Some(Observed { time, value: true });
            state.gaps.retain(|gap| !gap.starts_with(PROCESS_GAP));
        }
        state
    }

    /// The mode by what is found in the kernel, where kube-proxy does not say it.
    async fn mode_from_rules(&self, state: &mut NodeState) {
        let proc = self.proc.clone();
        let limits = self.limits;
        let found = tokio::task::spawn_blocking(move || -> Result<_, String> {
            let devices = procfs::read_text(&proc.join("net/dev")).unwrap_or_default();
            if procfs::has_interface(&devices, "kube-ipvs0") {
                return Ok(Some(ProxyMode::Ipvs));
            }
            let tables = || command::run("nft", &["list", "tables", "ip"], limits);
            if rules::has_nf_tables(Path::new("/"))
                && tables().is_ok_and(|output| has_kube_proxy_table(&String::from_utf8_lossy(&output)))
            {
                return Ok(Some(ProxyMode::Nftables));
            }
            let snapshot = rules::Reader { limits }.iptables_of(Family::Ipv4)?;
            Ok(snapshot.rules.has_proxy_rules(Family::Ipv4).then_some(ProxyMode::Iptables))
        });
        match found.await {
            Ok(Ok(Some(mode))) => {
                state.kube_proxy_mode = Some(Observed { time: now(), value: mode });
                state.proxy_rules = Some(Observed { time: now(), value: true });
            }
            Ok(Ok(None)) => {
                state.proxy_rules = Some(Observed { time: now(), value: false });
                state.gaps.push(
                    "kube-proxy's mode from the kernel: no rules of kube-proxy found (no kube-ipvs0, no nftables \
                     table kube-proxy, no chain KUBE-SERVICES)"
                        .into(),
                );
            }
            Ok(Err(gap)) => state.gaps.push(format!("kube-proxy's mode from the kernel: {gap}")),
            Err(error) => state.gaps.push(format!("kube-proxy's mode from the kernel: {error}")),
        }
    }

    /// Whether kube-proxy runs here, and where it is asked. Blocks shortly.
    fn find_kube_proxy(&self) -> (io::Result<ProcessList>, Servers) {
        let process = ProcessList::read(&self.proc);
        let told = || process.as_ref().ok().map(|process| Servers::find(process, &self.proc));
        let servers = self.servers.or_else(told).unwrap_or_default();
        (process, servers)
    }

    /// Everything else below `/proc`. Blocks shortly.
    fn read_files(&self, process: io::Result<ProcessList>) -> NodeState {
        let mut state = NodeState::default();
        let gaps = &mut state.gaps;
        let net = |name: &str| procfs::read_text(&self.proc.join("net").join(name));

        match procfs::conntrack_use(&self.proc) {
            Ok(value) => state.conntrack_use = Some(Observed { time: now(), value }),
            Err(error) => gaps.push(format!(
                "conntrack's use: {}/sys/net/netfilter/nf_conntrack_count and _max: {error}",
                self.proc.display()
            )),
        }
        match conntrack::read(&self.proc, STATISTICS) {
            Ok((text, _)) => match procfs::parse_conntrack_counters(&text) {
                Some(value) => state.conntrack_counters = Some(Observed { time: now(), value }),
                None => {
                    gaps.push("conntrack's counters: /proc/net/stat/nf_conntrack has another shape".into());
                }
            },
            Err(error) => gaps.push(format!("conntrack's counters: {error}")),
        }
        state.ipvs_settings = ipvs::settings(&self.proc).map(|value| Observed { time: now(), value });
        match net("fib_trie") {
            Ok(trie) => {
                let value = procfs::parse_addresses(&trie, &net("if_inet6").unwrap_or_default());
                state.addresses = Some(Observed { time: now(), value });
            }
            Err(error) => gaps.push(format!("the node's addresses: /proc/net/fib_trie: {error}")),
        }
        let devices = net("dev").unwrap_or_default();
        state.other_dataplane =
            procfs::other_dataplane(&devices).map(|name| Observed { time: now(), value: name.into() });
        match process.map(|process| process.runs()) {
            Ok(Some(value)) => state.kube_proxy_running = Some(Observed { time: now(), value }),
            Ok(None) => {
                gaps.push(format!("{PROCESS_GAP}: not all of the node's processes are visible from here"));
            }
            Err(error) => gaps.push(format!("{PROCESS_GAP}: {}: {error}", self.proc.display())),
        }
        state
    }
}

/// Whether `nft list tables ip` names the table that kube-proxy owns in nftables mode.
fn has_kube_proxy_table(tables: &str) -> bool {
    tables.lines().any(|line| line.trim() == "table ip kube-proxy")
}

const PROCESS_GAP: &str = "whether kube-proxy runs";

#[cfg(test)]
mod tests {
    use std::{fs, net::SocketAddr};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// kube-proxy's servers as one: answers by path.
    async fn kube_proxy() -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut request = vec![0; 1024];
                let read = stream.read(&mut request).await.unwrap();
                let request = String::from_utf8_lossy(request.get(..read).unwrap()).into_owned();
                let body = match request.split(' ').nth(1).unwrap() {
                    "/proxyMode" => "iptables",
                    "/metrics" => "kubernetes_build_info{git_version=\"v1.30.5\"} 1\n",
                    _ => "{\"lastUpdated\": \"now\"}",
                };
                stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{body}").as_bytes()).await.unwrap();
            }
        });
        addr
    }

    fn proc() -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        fs::create_dir_all(proc.path().join("net")).unwrap();
        fs::write(proc.path().join("net/fib_trie"), "|-- 192.0.2.11\n /32 host LOCAL\n").unwrap();
        proc
    }

    #[test]
    fn the_nftables_table_is_known_by_its_whole_name() {
        assert!(has_kube_proxy_table("table ip filter\ntable ip kube-proxy\n"));
        assert!(!has_kube_proxy_table("table ip kube-proxy-old\ntable ip6 kube-proxy\n"));
    }

    #[tokio::test]
    async fn a_node_with_kube_proxy() {
        let proc = proc();
        let addr = kube_proxy().await;
        let servers = Some(Servers { metrics: addr, health: addr });
        let reader = NodeReader { proc: proc.path().into(), servers, ..NodeReader::default() };
        let state = reader.read().await;
        assert_eq!(state.kube_proxy_mode.unwrap().value, ProxyMode::Iptables);
        assert_eq!(state.kube_proxy_version.unwrap().value, "v1.30.5");
        assert!(state.kube_proxy_health.unwrap().value.is_healthy());
        // The process list is empty here, but its ports answer.
        assert!(state.kube_proxy_running.unwrap().value);
        assert_eq!(state.addresses.unwrap().value.len(), 1);
        // Conntrack's two files are missing, and nothing else.
        assert_eq!(state.gaps.len(), 2, "{:?}", state.gaps);
    }

    #[tokio::test]
    async fn kube_proxy_is_asked_where_it_was_told_to_listen() {
        let proc = proc();
        let addr = kube_proxy().await;
        let process = proc.path().join("8");
        fs::create_dir_all(&process).unwrap();
        fs::write(process.join("comm"), "kube-proxy\n").unwrap();
        let flags = format!("--metrics-bind-address={addr}\0--healthz-bind-address={addr}\0");
        fs::write(process.join("cmdline"), format!("kube-proxy\0{flags}")).unwrap();
        let state = NodeReader { proc: proc.path().into(), ..NodeReader::default() }.read().await;
        assert_eq!(state.kube_proxy_version.unwrap().value, "v1.30.5");
        assert!(state.kube_proxy_health.unwrap().value.is_healthy());
    }

    #[tokio::test]
    async fn a_node_that_says_nothing_leaves_named_gaps() {
        let proc = proc();
        fs::write(proc.path().join("net/dev"), "kube-ipvs0: 0\n").unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        let servers = Some(Servers { metrics: closed, health: closed });
        let reader = NodeReader { proc: proc.path().into(), servers, ..NodeReader::default() };
        let state = reader.read().await;
        assert_eq!(state.kube_proxy_mode.unwrap().value, ProxyMode::Ipvs);
        assert_eq!(state.kube_proxy_version, None);
        assert_eq!(state.kube_proxy_running, None);
        for topic in
            ["mode from its own port", "version", "health", "whether kube-proxy runs", "conntrack's use"]
        {
            assert!(state.gaps.iter().any(|gap| gap.contains(topic)), "{topic}: {:?}", state.gaps);
        }
    }
}
