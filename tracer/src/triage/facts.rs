//! What a capture says, read: one field for each reader, empty where there was nothing to read.
//!
//! Owns which text is read by whom, and the list of what is missing. Must not judge.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use serde_json::Value;

use crate::{
    cluster::{History, Kind as ObjectKind, folder},
    node::{
        Health, ProxyMode,
        capture::{Artifact, Capture, Kind},
        conntrack::{self, Counters, Namespace},
        interfaces::Interfaces,
        ipset, iptables, ipvs,
        kube_proxy::{config::Config, log::Log, metrics::Metrics, process::ProcessList},
        modules::Modules,
        nftables,
        ruleset::{End, Family, Origin, Probe, Ruleset, Writer, walk::Walker},
        sysctl::Sysctls,
    },
    time::Timestamp,
};

/// Events kept, at most.
const EVENTS_MAX: usize = 10_000;
/// Service ports whose rules are written into the digest, at most.
const DIGEST_MAX: usize = 5000;

/// A `DaemonSet` that may be kube-proxy's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DaemonSet {
    pub name: String,
    pub image: String,
    pub desired: u64,
    pub scheduled: u64,
    pub ready: u64,
    pub updated: u64,
}

/// An Event about kube-proxy or a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    pub object: String,
    pub reason: String,
    pub message: String,
    pub warning: bool,
    pub count: u64,
    pub last: String,
}

/// Where rules of kube-proxy were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RulesSeen {
    /// Chains KUBE-SVC-, KUBE-SEP- and the like of IPv4, by the list of each backend.
    pub iptables: Option<usize>,
    pub iptables_nft: Option<usize>,
    pub iptables_legacy: Option<usize>,
    /// Whether there is a table `ip kube-proxy` or `ip6 kube-proxy`.
    pub nftables: Option<bool>,
    /// Virtual servers.
    pub ipvs: Option<usize>,
}

impl RulesSeen {
    /// The larger count of any iptables list.
    pub fn iptables_chains(&self) -> Option<usize> {
        [self.iptables, self.iptables_nft, self.iptables_legacy].into_iter().flatten().max()
    }

    /// Whether any mode's rules are there; `None` where no list could be read.
    pub fn any(&self) -> Option<bool> {
        let found = [
            self.iptables_chains().map(|chains| chains > 0),
            self.nftables,
            self.ipvs.map(|servers| servers > 0),
        ];
        found.into_iter().flatten().reduce(|a, b| a || b)
    }
}

/// Everything that is judged.
#[derive(Debug, Default)]
pub struct Facts {
    pub taken: Option<Timestamp>,
    pub node: Option<String>,
    pub history: Option<History>,
    pub process: Option<ProcessList>,
    /// What `/proxyMode` answered.
    pub said_mode: Option<ProxyMode>,
    /// Read, or why it could not be understood.
    pub config: Option<Result<Config, String>>,
    pub log: Option<Log>,
    pub previous_log: Option<Log>,
    pub metrics: Option<Metrics>,
    pub healthz: Option<Health>,
    pub livez: Option<Health>,
    /// kube-proxy's own clock when `/healthz` answered.
    pub proxy_clock: Option<f64>,
    pub conntrack: Option<Counters>,
    pub conntrack_later: Option<Counters>,
    pub namespaces: Vec<Namespace>,
    /// `TcpExt IPReversePathFilter`, and what it was a moment later.
    pub rp_filter_drops: (Option<u64>, Option<u64>),
    pub sysctls: Option<Sysctls>,
    pub interfaces: Option<Interfaces>,
    pub modules: Option<Modules>,
    pub api_version: Option<String>,
    pub daemon_sets: Option<Vec<DaemonSet>>,
    pub events: Option<Vec<Event>>,
    pub rules: RulesSeen,
    /// The rules themselves, of every writer.
    pub ruleset: Ruleset,
    /// Kinds of text that are there, and why others are not.
    present: Vec<Kind>,
    why: BTreeMap<Kind, String>,
    /// What was there and could not be understood.
    pub gaps: Vec<String>,
}

impl Facts {
    /// Reads the capture.
    pub fn read(capture: &Capture) -> Self {
        let text = |kind| capture.text(kind);
        let mut facts = Self {
            taken: capture.taken,
            node: capture.node.clone(),
            process: text(Kind::Process).and_then(ProcessList::parse),
            said_mode: text(Kind::ProxyMode).and_then(ProxyMode::parse),
            config: text(Kind::ProxyConfig).map(Config::parse),
            log: log(capture, Kind::ProxyLog),
            previous_log: log(capture, Kind::ProxyLogPrevious),
            metrics: text(Kind::ProxyMetrics).map(Metrics::parse).filter(|metrics| !metrics.is_empty()),
            healthz: text(Kind::ProxyHealthz).and_then(Health::parse_saved),
            livez: text(Kind::ProxyLivez).and_then(Health::parse_saved),
            proxy_clock: text(Kind::ProxyHealthz).and_then(clock),
            conntrack: text(Kind::ConntrackStat).and_then(Counters::parse),
            conntrack_later: text(Kind::ConntrackStatLater).and_then(Counters::parse),
            namespaces: text(Kind::ConntrackNamespaces).map(conntrack::parse_namespaces).unwrap_or_default(),
            sysctls: text(Kind::Sysctls).map(Sysctls::parse).filter(|sysctls| !sysctls.is_empty()),
            interfaces: text(Kind::Interfaces).and_then(Interfaces::parse),
            modules: text(Kind::Modules).map(Modules::parse).filter(|modules| !modules.is_empty()),
            api_version: text(Kind::ApiVersion).and_then(api_version),
            daemon_sets: text(Kind::DaemonSets).and_then(daemon_sets),
            events: text(Kind::Events).and_then(events),
            rules: rules_seen(capture),
            ruleset: Ruleset::default(),
            present: capture.artifacts.iter().map(|artifact| artifact.kind).collect(),
            why: capture.gaps.iter().map(|gap| (gap.kind, gap.why.clone())).collect(),
            ..Self::default()
        };
        let drops = |kind| conntrack::netstat(text(kind)?, "TcpExt", "IPReversePathFilter");
        facts.rp_filter_drops = (drops(Kind::Netstat), drops(Kind::NetstatLater));
        facts.read_rules(capture);
        facts.read_objects(capture);
        if facts.config.is_none()
            && let Some(config) = facts.process.as_ref().and_then(Config::from_flags)
        {
            facts.config = Some(Ok(config));
        }
        if let Some(Err(why)) = &facts.config {
            facts.gaps.push(format!("kube-proxy's configuration: {why}"));
        }
        facts.find_node();
        facts.not_understood(capture);
        facts
    }

    fn read_rules(&mut self, capture: &Capture) {
        let mut rules = Ruleset::default();
        for (family, [plain, nft, legacy]) in [
            (Family::Ipv4, [Kind::IptablesSave, Kind::IptablesNftSave, Kind::IptablesLegacySave]),
            (Family::Ipv6, [Kind::Ip6tablesSave, Kind::Ip6tablesNftSave, Kind::Ip6tablesLegacySave]),
        ] {
            let mut take = |kind, writer| {
                if let Some(text) = capture.text(kind) {
                    rules.absorb(iptables::parse(text, iptables::Hint { family: Some(family), writer }));
                }
            };
            take(nft, Some(Writer::IptablesNft));
            take(legacy, Some(Writer::IptablesLegacy));
            // The plain name is one of the two backends: beside the other's list it tells something new.
            let told = |kind| capture.text(kind).map(kube_chains);
            let plain_is_legacy = told(plain) == told(legacy);
            if capture.get(nft).is_none() && (capture.get(legacy).is_none() || !plain_is_legacy) {
                take(plain, capture.get(legacy).map(|_| Writer::IptablesNft));
            }
        }
        let json = capture.text(Kind::NftRulesetJson).map(|text| nftables::parse(text.as_bytes()));
        let text = || capture.text(Kind::NftRuleset).map(|text| nftables::parse(text.as_bytes()));
        match json.filter(Result::is_ok).or_else(text) {
            Some(Ok(read)) => rules.absorb(read),
            Some(Err(why)) => self.gaps.push(format!("the nftables rules: {why}")),
            None => {}
        }
        let servers = capture.text(Kind::IpvsSave).or_else(|| capture.text(Kind::IpvsList));
        rules.servers = servers.map(ipvs::parse);
        if let Some(sets) = capture.text(Kind::IpsetSave) {
            rules.absorb(ipset::parse(sets));
        }
        let known =
            self.interfaces.as_ref().filter(|list| list.iter().all(|interface| interface.addresses_known));
        rules.addresses = known.map(|list| {
            list.iter()
                .flat_map(|interface| interface.addresses.iter().map(|(address, _)| *address))
                .collect()
        });
        self.ruleset = rules;
    }

    fn read_objects(&mut self, capture: &Capture) {
        let kinds = [Kind::Services, Kind::EndpointSlices, Kind::Pods, Kind::Nodes, Kind::Objects];
        let lists: Vec<_> = kinds.iter().flat_map(|kind| capture.all(*kind)).map(named).collect();
        let streams: Vec<_> = capture.all(Kind::Watch).map(named).collect();
        if lists.is_empty() && streams.is_empty() {
            return;
        }
        let read = folder::from_texts(lists, streams, Duration::MAX);
        // A missing kind is told below, with the reason.
        self.gaps.extend(read.warnings.into_iter().filter(|warning| !warning.starts_with("no list of ")));
        self.history = Some(read.history);
    }

    /// The node's name: as it was given, as kube-proxy was told, or that of the Node with an address of this node.
    fn find_node(&mut self) {
        if self.node.is_none() {
            self.node = self.config().and_then(|config| config.hostname_override.clone());
        }
        let Some(history) = self.history.as_ref().filter(|history| history.knows(ObjectKind::Node)) else {
            return;
        };
        if self.node.as_deref().is_some_and(|node| history.node(node, Timestamp::MAX).is_some()) {
            return;
        }
        let listed = self.interfaces.iter().flat_map(Interfaces::iter);
        let mut own: Vec<_> =
            listed.flat_map(|interface| interface.addresses.iter().map(|(address, _)| *address)).collect();
        own.extend(self.log.iter().flat_map(|log| &log.node_ips));
        let mut same =
            history.nodes().filter(|node| node.addresses.iter().any(|address| own.contains(address)));
        match (same.next(), same.next()) {
            (Some(only), None) => self.node = Some(only.key.name.to_string()),
            _ => {
                let named = self.node.as_deref().map_or("this node's name is not known".to_owned(), |node| {
                    format!("the cluster has no Node {node}")
                });
                self.gaps.push(format!(
                    "what is local to this node: {named}; give it as `kubectl get nodes` lists it with --node"
                ));
            }
        }
    }

    /// Texts that are there and say nothing to their reader.
    fn not_understood(&mut self, capture: &Capture) {
        let read = [
            (Kind::Process, self.process.is_some()),
            (Kind::ProxyMode, self.said_mode.is_some()),
            (Kind::ProxyMetrics, self.metrics.is_some()),
            (Kind::ProxyHealthz, self.healthz.is_some()),
            (Kind::ProxyLivez, self.livez.is_some()),
            (Kind::ConntrackStat, self.conntrack.is_some()),
            (Kind::Sysctls, self.sysctls.is_some()),
            (Kind::Interfaces, self.interfaces.is_some()),
            (Kind::Modules, self.modules.is_some()),
            (Kind::ApiVersion, self.api_version.is_some()),
            (Kind::DaemonSets, self.daemon_sets.is_some()),
            (Kind::Events, self.events.is_some()),
        ];
        for (kind, understood) in read {
            if let (Some(artifact), false) = (capture.get(kind), understood) {
                self.gaps.push(format!(
                    "{}: {} has a form that is not known here",
                    kind.about(),
                    artifact.source
                ));
            }
        }
    }

    pub fn has(&self, kind: Kind) -> bool {
        self.present.contains(&kind)
    }

    pub fn config(&self) -> Option<&Config> {
        self.config.as_ref().and_then(|config| config.as_ref().ok())
    }

    /// kube-proxy's mode: as it says; else as its log, its configuration or its rules say.
    pub fn mode(&self) -> Option<ProxyMode> {
        let logged = || {
            let proxier = self.log.as_ref()?.proxier.as_ref()?;
            ProxyMode::parse(&proxier.to_ascii_lowercase())
        };
        let configured = || ProxyMode::parse(self.config()?.mode.as_deref()?);
        self.said_mode.or_else(logged).or_else(configured).or_else(|| self.mode_of_rules())
    }

    /// The mode that the rules are of, where they are of one only.
    pub fn mode_of_rules(&self) -> Option<ProxyMode> {
        let found = [
            (ProxyMode::Ipvs, self.rules.ipvs.is_some_and(|servers| servers > 0)),
            (ProxyMode::Nftables, self.rules.nftables == Some(true)),
            (ProxyMode::Iptables, self.rules.iptables_chains().is_some_and(|chains| chains > 0)),
        ];
        let mut found = found.into_iter().filter(|(_, there)| *there).map(|(mode, _)| mode);
        let first = found.next()?;
        found.next().is_none().then_some(first)
    }

    /// `v1.30.5`, where it is a release.
    pub fn proxy_version(&self) -> Option<&str> {
        let said = self.metrics.as_ref().and_then(Metrics::version);
        said.or_else(|| self.log.as_ref()?.version.as_deref())
    }

    /// The node's name, where the cluster has such a Node or its Nodes are not known.
    pub fn known_node(&self) -> Option<&str> {
        let node = self.node.as_deref()?;
        let unknown = self.history.as_ref().is_some_and(|history| {
            history.knows(ObjectKind::Node) && history.node(node, Timestamp::MAX).is_none()
        });
        (!unknown).then_some(node)
    }

    /// The moment that kube-proxy's times are compared with, in seconds since the epoch.
    pub fn now(&self) -> Option<f64> {
        self.proxy_clock
            .or_else(|| self.taken.map(|taken| Duration::from_nanos(taken.as_unix_ns()).as_secs_f64()))
    }

    /// What has to be checked before a node may be called healthy, and was not.
    pub fn uncovered(&self) -> Vec<&'static str> {
        let knows = |kind| self.history.as_ref().is_some_and(|history| history.knows(kind));
        let mut uncovered = Vec::new();
        if !knows(ObjectKind::Service) {
            uncovered.push("the Services");
        }
        if !knows(ObjectKind::EndpointSlice) {
            uncovered.push("their endpoints");
        }
        if self.rules.any().is_none() {
            uncovered.push("the node's rules");
        }
        uncovered
    }

    pub fn covers_the_dataplane(&self) -> bool {
        self.uncovered().is_empty()
    }

    /// One line for each text that is not there although the mode or the triage wants it.
    pub fn missing(&self) -> Vec<String> {
        let mode = self.mode();
        let iptables = mode.is_none_or(|mode| mode != ProxyMode::Nftables);
        let any_iptables = self.rules.iptables_chains().is_some();
        let any_six = [Kind::Ip6tablesSave, Kind::Ip6tablesNftSave, Kind::Ip6tablesLegacySave];
        let any_six = any_six.iter().any(|kind| self.has(*kind));
        let six_wanted = self.history.as_ref().is_some_and(|history| {
            history.services().any(|service| service.cluster_ips.iter().any(std::net::IpAddr::is_ipv6))
        });
        let knows = |kind| self.history.as_ref().is_some_and(|history| history.knows(kind));
        let process_tells = self.said_mode.is_some() || self.metrics.is_some() || self.healthz.is_some();
        let wanted = [
            (Kind::Services, !knows(ObjectKind::Service)),
            (Kind::EndpointSlices, !knows(ObjectKind::EndpointSlice)),
            (Kind::Pods, !knows(ObjectKind::Pod)),
            (Kind::Nodes, !knows(ObjectKind::Node)),
            (Kind::IptablesSave, iptables && !any_iptables),
            (Kind::Ip6tablesSave, iptables && six_wanted && !any_six),
            (Kind::NftRuleset, mode == Some(ProxyMode::Nftables) && self.rules.nftables.is_none()),
            (Kind::IpvsSave, mode == Some(ProxyMode::Ipvs) && self.rules.ipvs.is_none()),
            (Kind::IpsetSave, mode == Some(ProxyMode::Ipvs) && !self.has(Kind::IpsetSave)),
            (Kind::Process, !self.has(Kind::Process) && !process_tells),
            (Kind::ProxyMode, !self.has(Kind::ProxyMode)),
            (Kind::ProxyConfig, self.config.is_none()),
            (Kind::ProxyLog, !self.has(Kind::ProxyLog)),
            (Kind::ProxyMetrics, !self.has(Kind::ProxyMetrics)),
            (Kind::ProxyHealthz, !self.has(Kind::ProxyHealthz)),
            (Kind::ConntrackStat, !self.has(Kind::ConntrackStat)),
            (Kind::ConntrackStatLater, self.has(Kind::ConntrackStat) && !self.has(Kind::ConntrackStatLater)),
            (Kind::Sysctls, !self.has(Kind::Sysctls)),
            (Kind::Interfaces, !self.has(Kind::Interfaces)),
            (Kind::Modules, mode == Some(ProxyMode::Ipvs) && !self.has(Kind::Modules)),
            (Kind::ApiVersion, !self.has(Kind::ApiVersion)),
            (Kind::DaemonSets, !self.has(Kind::DaemonSets)),
            (Kind::Events, !self.has(Kind::Events)),
        ];
        let line = |kind: Kind| {
            let why = match (self.why.get(&kind), kind.command()) {
                (Some(why), _) => why.clone(),
                (None, "") => "not there".to_owned(),
                (None, command) => format!("no {} (`{command}`)", kind.file_name()),
            };
            format!("{}: {why}", kind.about())
        };
        wanted.into_iter().filter(|(_, missing)| *missing).map(|(kind, _)| line(kind)).collect()
    }

    /// What the node says as single values, for comparison with another node's.
    pub fn digest(&self) -> BTreeMap<String, String> {
        let mut facts = BTreeMap::new();
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                facts.insert(name.to_owned(), value);
            }
        };
        put("kube-proxy mode", self.mode().map(|mode| mode.to_string()));
        put("kube-proxy version", self.proxy_version().map(str::to_owned));
        put("kube-proxy healthz", self.healthz.as_ref().map(|health| health.status.to_string()));
        put(
            "rules: iptables chains of Services",
            self.rules.iptables_chains().map(|count| count.to_string()),
        );
        put("rules: nftables table kube-proxy", self.rules.nftables.map(|there| there.to_string()));
        put("rules: IPVS virtual servers", self.rules.ipvs.map(|count| count.to_string()));
        if let Some(config) = self.config() {
            put("config: mode", Some(config.mode.clone().unwrap_or_default()));
            put("config: clusterCIDR", Some(config.cluster_cidrs.join(",")));
            put("config: nodePortAddresses", Some(config.node_port_addresses.join(",")));
        }
        let node = self.known_node().and_then(|node| self.history.as_ref()?.node(node, Timestamp::MAX));
        put("kubelet version", node.map(|node| node.kubelet_version.to_string()));
        for (path, value) in self.sysctls.iter().flat_map(Sysctls::iter) {
            // What changes by itself, or belongs to one interface, says nothing about two nodes.
            let own = path.ends_with("_count") || path.contains("/conf/") && !path.contains("/conf/all/");
            if !own {
                facts.insert(format!("sysctl: {}", path.replace('/', ".")), value.to_owned());
            }
        }
        self.digest_rules(&mut facts);
        facts
    }

    /// Where the rules send a Pod's connections to each ClusterIP: nodes must not differ in it (catalogue C12).
    fn digest_rules(&self, facts: &mut BTreeMap<String, String>) {
        let Some(history) = &self.history else { return };
        if self.rules.any() != Some(true) {
            return;
        }
        let walkers = Family::ALL
            .map(|family| (Walker::new(&self.ruleset, family), self.ruleset.local_traffic(family)));
        let ports = history.services().flat_map(|service| {
            service
                .cluster_ips
                .iter()
                .flat_map(move |ip| service.ports.iter().map(move |port| (service, *ip, port)))
        });
        for (service, ip, port) in ports.take(DIGEST_MAX) {
            let [four, six] = &walkers;
            let (walker, local) = if ip.is_ipv4() { four } else { six };
            let (source, interface) = local.example(walker.family());
            let destination = SocketAddr::new(ip, port.port);
            let fate = walker.walk(&Probe {
                origin: Origin::Pod,
                source,
                interface,
                destination,
                protocol: port.protocol,
                local: false,
                hairpin: false,
            });
            let endpoints: Vec<String> =
                fate.endpoints().iter().map(|(endpoint, _)| endpoint.to_string()).collect();
            let said = match fate.branches.first().map(|branch| branch.end) {
                _ if !endpoints.is_empty() => endpoints.join(", "),
                Some(End::Refused) => "refused".to_owned(),
                Some(End::Dropped) => "dropped".to_owned(),
                _ => "no rule".to_owned(),
            };
            facts.insert(
                format!("rules: {}:{} {destination}/{}", service.key, port.label(), port.protocol),
                said,
            );
        }
    }
}

fn named(artifact: &Artifact) -> (&str, &str) {
    (&artifact.source, &artifact.text)
}

fn log(capture: &Capture, kind: Kind) -> Option<Log> {
    let texts: Vec<&str> = capture.all(kind).map(|artifact| artifact.text.as_str()).collect();
    (!texts.is_empty()).then(|| Log::parse(&texts.join("\n")))
}

/// `currentTime` of `/healthz`: Go's form of 1.30 (`2026-11-20 23:25:05.7 +0000 UTC m=+7.9`), or RFC 3339.
fn clock(text: &str) -> Option<f64> {
    let body = text.trim_end();
    let body = body
        .rsplit_once('\n')
        .filter(|(_, last)| last.trim().parse::<u16>().is_ok())
        .map_or(body, |(body, _)| body);
    let value: Value = serde_json::from_str(body).ok()?;
    let said = value.get("currentTime")?.as_str()?;
    let rfc = match said.split_whitespace().collect::<Vec<_>>().as_slice() {
        [day, time, zone, ..] if zone.len() == 5 => {
            let (hours, minutes) = zone.split_at_checked(3)?;
            format!("{day}T{time}{hours}:{minutes}")
        }
        _ => said.to_owned(),
    };
    let time: jiff::Timestamp = rfc.parse().ok()?;
    Some(time.as_nanosecond() as f64 / 1e9)
}

fn api_version(text: &str) -> Option<String> {
    let value: Value = serde_json::from_str(text).ok()?;
    // The server's own answer, or `kubectl version -o json`, where the client's version stands beside.
    let version = value.pointer("/serverVersion/gitVersion").or_else(|| value.get("gitVersion"))?;
    version.as_str().map(|version| version.chars().take(80).collect())
}

fn items(text: &str) -> Option<Vec<Value>> {
    let value: Value = serde_json::from_str(text).ok()?;
    value.get("items")?.as_array().cloned()
}

fn daemon_sets(text: &str) -> Option<Vec<DaemonSet>> {
    let set = |item: &Value| {
        let name = item.pointer("/metadata/name")?.as_str()?.to_owned();
        let images = item.pointer("/spec/template/spec/containers")?.as_array()?;
        let image = images
            .iter()
            .filter_map(|container| container.get("image")?.as_str())
            .find(|image| image.contains("kube-proxy"));
        let count =
            |field: &str| item.pointer(&format!("/status/{field}")).and_then(Value::as_u64).unwrap_or(0);
        let is_it = name.contains("kube-proxy") || image.is_some();
        is_it.then(|| DaemonSet {
            image: image.unwrap_or_default().to_owned(),
            desired: count("desiredNumberScheduled"),
            scheduled: count("currentNumberScheduled"),
            ready: count("numberReady"),
            updated: count("updatedNumberScheduled"),
            name,
        })
    };
    Some(items(text)?.iter().filter_map(set).collect())
}

fn events(text: &str) -> Option<Vec<Event>> {
    let event = |item: &Value| {
        let field =
            |pointer: &str| item.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        // The older form of the API, then the newer.
        let (object, regarding) = (field("/involvedObject/name"), field("/regarding/name"));
        let last = [field("/lastTimestamp"), field("/series/lastObservedTime"), field("/eventTime")];
        Event {
            object: if object.is_empty() { regarding } else { object },
            reason: field("/reason"),
            message: if field("/message").is_empty() { field("/note") } else { field("/message") },
            warning: field("/type") == "Warning",
            count: item
                .get("count")
                .or_else(|| item.pointer("/series/count"))
                .and_then(Value::as_u64)
                .unwrap_or(1),
            last: last.into_iter().find(|time| !time.is_empty()).unwrap_or_default(),
        }
    };
    Some(items(text)?.iter().take(EVENTS_MAX).map(event).collect())
}

/// Which kinds of rules are there. What they say is read elsewhere.
fn rules_seen(capture: &Capture) -> RulesSeen {
    let chains = |kind| capture.text(kind).map(kube_chains);
    let nft_json = capture
        .text(Kind::NftRulesetJson)
        .map(|text| text.contains("\"name\": \"kube-proxy\"") || text.contains("\"name\":\"kube-proxy\""));
    let nft_text = capture.text(Kind::NftRuleset).map(|text| {
        text.lines().any(|line| matches!(line.trim_end(), "table ip kube-proxy {" | "table ip6 kube-proxy {"))
    });
    let saved =
        capture.text(Kind::IpvsSave).map(|text| text.lines().filter(|line| line.starts_with("-A ")).count());
    let listed = capture.text(Kind::IpvsList).map(|text| {
        text.lines()
            .filter(|line| ["TCP ", "UDP ", "SCTP "].iter().any(|begin| line.starts_with(begin)))
            .count()
    });
    RulesSeen {
        iptables: chains(Kind::IptablesSave),
        iptables_nft: chains(Kind::IptablesNftSave),
        iptables_legacy: chains(Kind::IptablesLegacySave),
        nftables: nft_text.into_iter().chain(nft_json).reduce(|a, b| a || b),
        ipvs: saved.or(listed),
    }
}

/// Chains that kube-proxy makes for Services in iptables mode. In IPVS mode there are none of them.
fn kube_chains(saved: &str) -> usize {
    let of_service = |name: &str| {
        ["KUBE-SVC-", "KUBE-SEP-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-XLB-"]
            .iter()
            .any(|begin| name.starts_with(begin))
    };
    saved.lines().filter_map(|line| line.strip_prefix(':')).filter(|name| of_service(name)).count()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_kube_proxys_clock() {
        let old = "{\"currentTime\": \"2026-11-20 23:25:05.5 +0000 UTC m=+7.9\"}\n200";
        assert_eq!(clock(old), Some(1_795_217_105.5));
        let new = "{\"currentTime\":\"2026-11-20T23:25:05.5Z\"}";
        assert_eq!(clock(new), Some(1_795_217_105.5));
        assert_eq!(clock("ok"), None);
    }

    #[test]
    fn versions_of_the_server_in_both_forms() {
        assert_eq!(api_version("{\"gitVersion\": \"v1.33.1\"}").as_deref(), Some("v1.33.1"));
        let both = "{\"clientVersion\": {\"gitVersion\": \"v1.20.0\"}, \"serverVersion\": {\"gitVersion\": \"v1.33.1\"}}";
        assert_eq!(api_version(both).as_deref(), Some("v1.33.1"));
        assert_eq!(api_version("[]"), None);
    }

    #[test]
    fn events_in_both_forms() {
        let text = r#"{"items": [
            {"involvedObject": {"name": "kube-proxy-x"}, "reason": "BackOff", "message": "m", "type": "Warning", "count": 7, "lastTimestamp": "t"},
            {"regarding": {"name": "worker-1"}, "reason": "IPVSDeprecation", "note": "n", "eventTime": "e"}]}"#;
        let events = events(text).unwrap();
        assert_eq!(
            (events[0].object.as_str(), events[0].count, events[0].warning),
            ("kube-proxy-x", 7, true)
        );
        assert_eq!((events[1].message.as_str(), events[1].last.as_str()), ("n", "e"));
    }

    #[test]
    fn an_empty_capture_misses_everything_and_says_so() {
        let facts = Facts::read(&Capture::default());
        assert!(!facts.covers_the_dataplane());
        let missing = facts.missing();
        assert!(missing.iter().any(|line| line.contains("kubectl get services -A -o json")), "{missing:?}");
        assert!(missing.iter().any(|line| line.contains("iptables-save -c")), "{missing:?}");
    }
}
