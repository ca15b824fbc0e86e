//! What a capture says, read: one field for each reader, empty where there was nothing to read.
//!
//! Owns which text is read by whom, and the list of what is missing. Must not judge.

mod digest;
mod objects;
mod rules_seen;

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

pub use objects::{DaemonSet, Event};
pub use rules_seen::RulesSeen;

use crate::{
    cluster::{History, Kind as ObjectKind, folder},
    net::Family,
    node::{
        Health, ProxyMode,
        capture::{Artifact, Capture, Kind},
        conntrack::{self, Counters, Namespace},
        interfaces::Interfaces,
        kube_proxy::{config::Config, log::Log, metrics::Metrics, process::ProcessList},
        modules::Modules,
        sysctl::Sysctls,
    },
    rules::{Ruleset, Writer, ipset, iptables, ipvs, nftables},
    time::Timestamp,
};
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
            api_version: text(Kind::ApiVersion).and_then(objects::api_version),
            daemon_sets: text(Kind::DaemonSets).and_then(objects::daemon_sets),
            events: text(Kind::Events).and_then(objects::events),
            rules: rules_seen::rules_seen(capture),
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
            let told = |kind| capture.text(kind).map(rules_seen::kube_chains);
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
        if let (Some(only), None) = (same.next(), same.next()) {
            self.node = Some(only.key.name.to_string());
            return;
        }
        let named = self.node.as_deref().map_or("this node's name is not known".to_owned(), |node| {
            format!("the cluster has no Node {node}")
        });
        self.gaps.push(format!(
            "what is local to this node: {named}; give it as `kubectl get nodes` lists it with --node"
        ));
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
    Some(time.as_duration().as_secs_f64())
}

#[cfg(test)]
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
    fn an_empty_capture_misses_everything_and_says_so() {
        let facts = Facts::read(&Capture::default());
        assert!(!facts.covers_the_dataplane());
        let missing = facts.missing();
        assert!(missing.iter().any(|line| line.contains("kubectl get services -A -o json")), "{missing:?}");
        assert!(missing.iter().any(|line| line.contains("iptables-save -c")), "{missing:?}");
    }
}
