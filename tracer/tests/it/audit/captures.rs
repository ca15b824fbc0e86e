//! Captures: rules as listed on a node, and the cluster's objects at that time.

use std::{fs, net::IpAddr, path::PathBuf, time::Duration};

use viptrace::{
    cluster::{History, folder},
    diagnosis::audit::{self, Audit, Context, DetectLocal, Expected, Settings},
    net::{Cidr, Family},
    node::{ProxyMode, Release},
    rules::{Ruleset, ipset, iptables, ipvs, nftables},
    time::Timestamp,
};

pub(crate) fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures").join(name)
}

pub(crate) fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The lists of a folder, without its watch streams: the cluster at the time when kube-proxy wrote its rules.
pub(crate) fn cluster(dir: &str) -> History {
    let lists = tempfile::tempdir().unwrap();
    for name in ["services.json", "endpointslices.json", "nodes.json"] {
        fs::copy(path(dir).join(name), lists.path().join(name)).unwrap();
    }
    folder::read(lists.path(), Duration::from_hours(1)).unwrap().history
}

/// A moment after the time of all objects in the captures.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_unix_secs(1_795_651_200)
}

/// With the configuration of the captures.
pub(crate) fn context(node: &str, mode: ProxyMode) -> Context {
    let ranges = ["10.244.0.0/16", "fd00:10:244::/48"].map(|range| Cidr::parse(range).unwrap());
    let detect_local = DetectLocal::Ranges(ranges.to_vec());
    let settings = Settings { detect_local, ..Settings::default() };
    Context {
        settings: Some(settings),
        tcp_be_liberal: Some(false),
        release: Some(Release(1, 36)),
        uses_terminating: Some(true),
        ..Context::new(node, mode, now())
    }
}

pub(crate) fn iptables_of(text: &str) -> Ruleset {
    iptables::parse(text, iptables::Hint::default())
}

pub(crate) fn nftables_of(text: &str) -> Ruleset {
    nftables::parse(text).unwrap()
}

/// Everything that IPVS mode writes on a node.
pub(crate) struct IpvsCapture {
    pub(crate) iptables: String,
    pub(crate) ipset: String,
    pub(crate) servers: String,
    pub(crate) addresses: Vec<IpAddr>,
}

impl IpvsCapture {
    pub(crate) fn worker_1() -> Self {
        let dir = "kube-proxy/worker-1/ipvs";
        let addresses: serde_json::Value =
            serde_json::from_str(&read(&format!("{dir}/ip-addr.json"))).unwrap();
        let local =
            addresses.as_array().unwrap().iter().flat_map(|link| link["addr_info"].as_array().unwrap());
        Self {
            iptables: read(&format!("{dir}/iptables-save.txt")),
            ipset: read(&format!("{dir}/ipset-save.txt")),
            servers: read(&format!("{dir}/ipvsadm-save.txt")),
            addresses: local.map(|info| info["local"].as_str().unwrap().parse().unwrap()).collect(),
        }
    }

    pub(crate) fn rules(&self) -> Ruleset {
        let mut rules = iptables_of(&self.iptables);
        rules.absorb(ipset::parse(&self.ipset));
        rules.servers = Some(ipvs::parse(&self.servers));
        rules.addresses = Some(self.addresses.iter().copied().collect());
        rules
    }
}

pub(crate) fn audit_of(history: &History, rules: &Ruleset, context: &Context) -> Audit {
    let expected = Expected::new(history, context);
    audit::audit(&expected, rules, context)
}

/// One line for each discrepancy.
pub(crate) fn lines(audit: &Audit) -> String {
    let lines = audit.discrepancies.iter().map(|d| {
        format!(
            "{} {} {} {}:{} {:?} [{}] {}\n",
            d.kind.as_str(),
            d.aspect.as_str(),
            d.family,
            d.service.as_deref().unwrap_or("-"),
            d.port.as_deref().unwrap_or("-"),
            d.endpoint,
            d.place,
            d.text
        )
    });
    lines.chain(audit.gaps.iter().map(|gap| format!("gap: {gap}\n"))).collect()
}

/// IPv4 and IPv6 rules in one set.
pub(crate) fn both(v4: &str, v6: &str) -> Ruleset {
    let mut rules = iptables::parse(v4, iptables::Hint { family: Some(Family::Ipv4), writer: None });
    rules.absorb(iptables::parse(v6, iptables::Hint { family: Some(Family::Ipv6), writer: None }));
    rules
}
