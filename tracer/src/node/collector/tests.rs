//! A node of simulated files, commands and ports: the texts that the collector reads, and those that it must not read.
use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;
use crate::node::{
    Gap, ProxyMode, Snapshot,
    snapshot::{Listing, Presence},
};

/// Every command of the collector, and one that prints its backend.
const COMMANDS: [&str; 10] = [
    "ip",
    "iptables-nft-save",
    "iptables-legacy-save",
    "iptables-save",
    "ip6tables-nft-save",
    "ip6tables-legacy-save",
    "ip6tables-save",
    "nft",
    "ipvsadm",
    "ipset",
];

/// A root and a folder of commands that record their calls.
struct Node {
    dir: tempfile::TempDir,
    servers: Option<Servers>,
}

impl Node {
    fn new(commands: &[&str]) -> Self {
        let node = Self { dir: tempfile::tempdir().unwrap(), servers: None };
        fs::create_dir_all(node.path("bin")).unwrap();
        for command in commands {
            node.command(command, "");
        }
        node
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let file = self.path(path);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, text).unwrap();
    }

    /// A command that runs this script after it has recorded its call; only shell builtins are available.
    fn command(&self, name: &str, script: &str) {
        let (file, log) = (self.path("bin").join(name), self.path("calls"));
        fs::write(&file, format!("#!/bin/sh\necho \"{name} $*\" >> {}\n{script}\n", log.display())).unwrap();
        fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn module(&self, name: &str) {
        fs::create_dir_all(self.path("sys/module").join(name)).unwrap();
    }

    async fn collect(&self, request: Request) -> Capture {
        let closed = Servers { metrics: closed().await, health: closed().await };
        let servers = Some(self.servers.unwrap_or(closed));
        let path = Some(self.path("bin").into_os_string());
        Collector { root: self.dir.path().into(), path, servers }.collect(request).await
    }

    /// The calls since the last query.
    fn calls(&self) -> BTreeSet<String> {
        let log = self.path("calls");
        let calls = fs::read_to_string(&log).unwrap_or_default();
        let _ = fs::remove_file(log);
        calls.lines().map(|call| call.trim_end().to_owned()).collect()
    }
}

/// A port without a listener.
async fn closed() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

/// Both of kube-proxy's servers at one port: the path determines the answer.
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

fn set(calls: &[&str]) -> BTreeSet<String> {
    calls.iter().map(|call| (*call).to_owned()).collect()
}

fn not_in_kernel(capture: &Capture, kind: Kind) -> bool {
    matches!(capture.why_missing(kind), Some(Reason::NotInKernel { .. }))
}

#[tokio::test]
async fn nothing_is_run_that_would_load_a_part_of_the_kernel() {
    let node = Node::new(&COMMANDS);
    for (request, calls) in [
        (Request::State, set(&[])),
        (Request::Rules, set(&[])),
        // Every kernel has interfaces.
        (Request::Check, set(&["ip -d -j addr show"])),
    ] {
        let capture = node.collect(request).await;
        assert_eq!(node.calls(), calls, "{request:?}");
        for kind in [Kind::IptablesNftSave, Kind::IptablesLegacySave, Kind::NftRuleset] {
            assert!(not_in_kernel(&capture, kind), "{request:?} {kind:?}");
        }
    }
    // Conntrack without ctnetlink, and without its file: neither netlink nor a command is tried.
    node.write("proc/sys/net/netfilter/nf_conntrack_count", "7\n");
    node.write("proc/modules", "nf_conntrack 200704 3 nf_nat,xt_conntrack, Live 0x0\n");
    let capture = node.collect(Request::Check).await;
    assert!(capture.why_missing(Kind::ConntrackStat).is_some());
    // Sets belong to IPVS mode: without IPVS they are not listed.
    node.module("ip_set");
    assert!(not_in_kernel(&node.collect(Request::Rules).await, Kind::IpsetSave));
    assert_eq!(node.calls(), set(&["ip -d -j addr show"]));
}

#[tokio::test]
async fn what_is_in_the_kernel_is_listed_once() {
    let node = Node::new(&COMMANDS);
    node.module("nf_tables");
    let capture = node.collect(Request::Rules).await;
    assert_eq!(node.calls(), set(&["iptables-nft-save", "ip6tables-nft-save", "nft list tables"]));
    assert!(not_in_kernel(&capture, Kind::IptablesLegacySave) && not_in_kernel(&capture, Kind::IpvsSave));
    // The list of tables is the proof that kube-proxy has none.
    assert_eq!(capture.text(Kind::NftRuleset), Some(""));

    node.write("proc/net/ip_tables_names", "nat\n");
    node.command("nft", "[ \"$1\" = list ] && echo 'table ip nat' && echo 'table ip kube-proxy'; [ \"$1\" = -j ] && echo '{\"nftables\": []}'; true");
    let capture = node.collect(Request::Check).await;
    let calls = [
        "ip -d -j addr show",
        "ip6tables-nft-save -c",
        "iptables-legacy-save -c",
        "iptables-nft-save -c",
        "nft -j list table ip kube-proxy",
        "nft list tables",
    ];
    assert_eq!(node.calls(), set(&calls));
    let listed = capture.get(Kind::NftRulesetJson).unwrap();
    assert_eq!((listed.text.trim(), listed.source.as_str()), ("{\"nftables\": []}", calls[4]));
    assert!(listed.read.is_some());
}

/// Other programs' tables, of which one cannot be listed.
const OTHERS: &str = "
[ \"$1 $2\" = 'list tables' ] && printf 'table inet firewalld\\ntable ip cni\\ntable inet gone\\n' && exit 0
case \"$*\" in *gone) echo 'No such file or directory' >&2; exit 1;; esac
[ \"$1\" = -j ] && [ -n \"$NO_JSON\" ] && echo 'JSON support not compiled-in' >&2 && exit 1
";

#[tokio::test]
async fn other_programs_tables_are_listed_as_far_as_they_can_be() {
    let node = Node::new(&COMMANDS);
    node.module("nf_tables");
    let json = "echo '{\"nftables\": [{\"table\": {\"family\": \"ip\", \"name\": \"cni\", \"handle\": 1}}]}'";
    let of_cni = format!("case \"$*\" in *cni) {json};; *) echo '{{\"nftables\": []}}';; esac");
    node.command("nft", &format!("{OTHERS}{of_cni}"));
    for request in [Request::Rules, Request::Check] {
        let capture = node.collect(request).await;
        let calls = node.calls();
        assert!(calls.contains("nft -j list table inet firewalld"), "{calls:?}");
        let snapshot = Snapshot::read(&capture);
        let names: Vec<&str> = snapshot.rules.others.iter().map(|table| table.name.as_ref()).collect();
        assert_eq!(names, ["cni"], "{request:?}");
        // The one that is missing is named, and the list is not complete.
        let why = capture.why_missing(Kind::NftOthers);
        assert!(matches!(why, Some(Reason::CommandFailed { .. })), "{why:?}");
        assert_eq!(snapshot.listings.others, Listing::Failed);
    }
    // An nft without JSON prints text.
    node.command("nft", &format!("NO_JSON=1{OTHERS}echo \"table $3 $4 {{\"; echo '}}'"));
    let snapshot = Snapshot::read(&node.collect(Request::Rules).await);
    let names: BTreeSet<&str> = snapshot.rules.others.iter().map(|table| table.name.as_ref()).collect();
    assert_eq!(names, ["cni", "inet firewalld"].into());
}

#[tokio::test]
async fn a_trace_reads_the_sets_and_routes_that_rules_ask_for() {
    let node = Node::new(&COMMANDS);
    node.module("nf_tables");
    node.module("ip_set");
    node.command("iptables-nft-save", "echo '-A cali -m set --match-set cali40 src -j DROP'");
    node.write(
        "proc/net/route",
        "Iface Destination Gateway Flags RefCnt Use Metric Mask\ncali1 00000000 00000000 0001 0 0 0 00000000\n",
    );
    let capture = node.collect(Request::Rules).await;
    assert!(node.calls().contains("ipset save"));
    assert!(capture.text(Kind::Routes).unwrap().contains("dev cali1"), "{capture:?}");
    assert_eq!(node.collect(Request::State).await.get(Kind::Routes), None);
}

#[tokio::test]
async fn the_plain_name_is_run_where_its_backend_is_in_the_kernel() {
    let node = Node::new(&["iptables-save"]);
    node.write("proc/net/ip_tables_names", "nat\n");
    node.command("iptables-save", "[ \"$1\" = -V ] && echo 'iptables-save v1.8.9 (nf_tables)'; true");
    let capture = node.collect(Request::Rules).await;
    assert_eq!(node.calls(), set(&["iptables-save -V"]), "it would load nf_tables");
    let why = capture.why_missing(Kind::IptablesLegacySave);
    assert!(
        matches!(why, Some(Reason::CommandMissing { command }) if command == "iptables-legacy-save"),
        "{why:?}"
    );

    node.module("nf_tables");
    let capture = node.collect(Request::Rules).await;
    assert_eq!(node.calls(), set(&["iptables-save -V", "iptables-save"]));
    assert_eq!(capture.get(Kind::IptablesNftSave).unwrap().source, "iptables-save");
}

#[tokio::test]
async fn a_failing_command_is_told_from_a_missing_right() {
    let node = Node::new(&[]);
    node.module("nf_tables");
    node.command("nft", "echo 'Operation not permitted' >&2; exit 1");
    let failed = |capture: Capture| capture.why_missing(Kind::NftRuleset).cloned().unwrap();
    let why = failed(node.collect(Request::Rules).await);
    assert!(matches!(&why, Reason::CommandFailed { error, .. } if error.contains("not permitted")), "{why}");
    node.write("proc/self/status", "Name:\tviptrace\nCapEff:\t0000000000000000\n");
    let why = failed(node.collect(Request::Rules).await);
    assert!(matches!(why, Reason::NotPermitted { .. }), "{why}");
}

#[tokio::test]
async fn a_node_with_kube_proxy() {
    let mut node = Node::new(&[]);
    let addr = kube_proxy().await;
    node.servers = Some(Servers { metrics: addr, health: addr });
    node.write("proc/net/fib_trie", "|-- 192.0.2.11\n /32 host LOCAL\n");
    node.write("proc/net/dev", "    lo: 0 0\ncilium_host: 0 0\n");
    node.write("proc/sys/net/netfilter/nf_conntrack_count", "64\n");
    node.write("proc/sys/net/netfilter/nf_conntrack_max", "65536\n");
    let capture = node.collect(Request::State).await;
    let used = capture.get(Kind::Sysctls).unwrap().read;
    let snapshot = Snapshot::read(&capture);
    assert_eq!(snapshot.mode.unwrap().as_str(), "iptables");
    assert_eq!(snapshot.version.as_deref(), Some("v1.30.5"));
    assert!(snapshot.healthz.as_ref().unwrap().is_healthy());
    // The process list is empty here, but the ports answer.
    assert_eq!(snapshot.running, Some(true));
    assert_eq!(snapshot.is_own_address("192.0.2.11".parse().unwrap()), Some(true));
    assert_eq!(snapshot.conntrack_use.map(|used| (used.value.count, Some(used.time))), Some((64, used)));
    assert_eq!((snapshot.rules_time, snapshot.served_elsewhere()), (None, None));
    assert_eq!(snapshot.gaps, []);
}

#[tokio::test]
async fn kube_proxy_is_found_by_its_file_or_its_flags() {
    let mut node = Node::new(&[]);
    let addr = kube_proxy().await;
    node.write("proc/8/comm", "kube-proxy\n");
    let collector = Collector { root: node.dir.path().into(), path: None, servers: None };
    let flags = format!("--metrics-bind-address={addr}\0--healthz-bind-address={addr}\0");
    node.write("proc/8/cmdline", &format!("kube-proxy\0{flags}"));
    let snapshot = Snapshot::read(&collector.collect(Request::State).await);
    assert_eq!((snapshot.version.as_deref(), snapshot.reported_mode.is_some()), (Some("v1.30.5"), true));
    // As kube-proxy sees the file, inside its container.
    node.write("proc/8/cmdline", "kube-proxy\0--config=/etc/p.conf\0");
    let config = format!("kind: KubeProxyConfiguration\nmode: ipvs\nmetricsBindAddress: {addr}\n");
    node.write("proc/8/root/etc/p.conf", &config);
    let snapshot = Snapshot::read(&collector.collect(Request::State).await);
    assert_eq!((snapshot.version.as_deref(), snapshot.config.is_some()), (Some("v1.30.5"), true));
    node.servers = None;
}

#[tokio::test]
async fn the_rules_show_the_mode_where_no_port_answers() {
    let node = Node::new(&COMMANDS);
    node.module("nf_tables");
    let rules = "*nat\\n:PREROUTING ACCEPT [0:0]\\n:KUBE-SERVICES - [0:0]\\n:KUBE-SVC-A - [0:0]\\n-A PREROUTING -j KUBE-SERVICES\\nCOMMIT\\n";
    node.command("iptables-nft-save", &format!("printf '{rules}'"));
    let snapshot = Snapshot::read(&node.collect(Request::State).await);
    assert_eq!(node.calls(), set(&["nft list tables", "iptables-nft-save"]));
    assert_eq!(snapshot.mode.map(ProxyMode::as_str), Some("iptables"));
    assert_eq!(snapshot.proxy_rules.v4, Presence::Present);
    // Only the lists that show the mode were read: there may be rules of another mode.
    assert!(snapshot.may_have_leftovers("10.96.0.1".parse().unwrap()));
    // IPVS's device shows the mode without a list.
    node.write("proc/net/dev", "kube-ipvs0: 0 0\n");
    let snapshot = Snapshot::read(&node.collect(Request::State).await);
    assert_eq!((snapshot.mode.map(ProxyMode::as_str), node.calls()), (Some("ipvs"), set(&[])));
}

#[tokio::test]
async fn a_bare_machine_leaves_typed_gaps_only() {
    let node = Node::new(&[]);
    let begun = Instant::now();
    let capture = node.collect(Request::Rules).await;
    assert!(begun.elapsed() < BETWEEN, "a trace does not wait for counters to grow");
    assert_eq!(capture.artifacts, []);
    let capture = node.collect(Request::Check).await;
    for kind in [Kind::Sysctls, Kind::Process, Kind::ConntrackStat, Kind::ProxyLog, Kind::Interfaces] {
        assert!(capture.why_missing(kind).is_some(), "{kind:?}");
    }
    let lines: Vec<_> = capture.gaps.iter().map(Gap::to_string).collect();
    assert!(lines.iter().any(|line| line.starts_with("the IPVS table: IPVS is not loaded")), "{lines:?}");
}

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
    assert_eq!(tail(Path::new(files.last().unwrap())).unwrap(), "new");
}
