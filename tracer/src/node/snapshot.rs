//! The node's state at one moment: a parsed capture.
//!
//! The same answers for a trace and a check: kube-proxy's mode, version and health, whether its rules are
//! in the kernel, and their effect on an address. An unread fact is "unknown", never "no". Owns the origin of each
//! part, and names the texts that cannot be parsed. Judges nothing.

mod effects;
mod report;
mod rules;
mod saved;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use serde::{Deserialize, Serialize};

pub(crate) use effects::WriterEffect;
pub use effects::{RuleEffect, RulesByWriter};
pub(crate) use report::ProxyReport;
pub(crate) use rules::{Listing, Listings, Presence, ProxyRules};

use super::{
    Observed, Release, Version,
    capture::{Artifact, Capture, Kind},
    conntrack::{self, Counters, Namespace},
    gap::{Gap, Reason},
    interfaces::{Dataplane, Interfaces},
    ipvs::IpvsSettings,
    kube_proxy::{Health, ProxyMode, config::Config, log::Log, metrics::Metrics, process::ProcessList},
    modules::Modules,
    routes::Routes,
    sysctl::Sysctls,
};
use crate::{parse::ParseError, rules::Ruleset, time::Timestamp};

/// Entries of the conntrack table and their limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConntrackUse {
    pub count: u64,
    pub max: u64,
}

/// The node. An empty part was not read or could not be parsed; `gaps` has the reason.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// kube-proxy's mode: from its own report, or else from its log, its configuration or its rules.
    pub mode: Option<ProxyMode>,
    /// `v1.30.5`, of kube-proxy.
    pub version: Option<Version>,
    /// Whether kube-proxy runs: an answer from its port is better proof than a process list seen from inside a
    /// container.
    pub running: Option<bool>,
    /// Another program whose interfaces exist here and that may serve Services instead of kube-proxy.
    pub other_dataplane: Option<Dataplane>,
    /// Whether rules of kube-proxy are in the kernel and packets reach them.
    pub proxy_rules: ProxyRules,
    pub conntrack_use: Option<Observed<ConntrackUse>>,
    /// Of the interfaces that lead to other machines, by name, as far as they were read.
    pub mtus: BTreeMap<String, u64>,
    pub ipvs_settings: Option<IpvsSettings>,

    /// The rules of every writer that were read, and the addresses of this network namespace.
    pub rules: Ruleset,
    /// Filled by queries.
    pub rules_by_writer: RulesByWriter,
    pub listings: Listings,
    /// When the read of the rules began.
    pub rules_time: Option<Timestamp>,

    /// kube-proxy's own reports, as far as a trace uses them.
    pub report: ProxyReport,

    /// The further facts of a check.
    pub process: Option<ProcessList>,
    /// The answer to `/proxyMode`.
    pub reported_mode: Option<ProxyMode>,
    pub config: Option<Config>,
    pub log: Option<Log>,
    pub previous_log: Option<Log>,
    pub metrics: Option<Metrics>,
    pub healthz: Option<Health>,
    pub livez: Option<Health>,
    /// kube-proxy's own clock at its answer to `/healthz`, in seconds since the epoch.
    pub proxy_clock: Option<f64>,
    /// The zone of kube-proxy's clock, in seconds east of UTC.
    pub proxy_utc_offset: Option<i32>,
    pub conntrack: Option<Counters>,
    pub conntrack_later: Option<Counters>,
    pub namespaces: Vec<Namespace>,
    /// `TcpExt IPReversePathFilter`, and its later value.
    pub rp_filter_drops: (Option<u64>, Option<u64>),
    pub sysctls: Option<Sysctls>,
    pub interfaces: Option<Interfaces>,
    pub modules: Option<Modules>,
    pub routes: Option<Routes>,

    pub gaps: Vec<Gap>,
    /// For a recording of the first version, which stored texts.
    pub recorded_gaps: Vec<String>,
}

/// A snapshot in progress.
struct Reader<'c> {
    capture: &'c Capture,
    snapshot: Snapshot,
}

impl Reader<'_> {
    /// Parses the text of this kind, if there is one; a text that cannot be parsed is a gap.
    fn parse<T>(&mut self, kind: Kind, parse: impl FnOnce(&str) -> Result<T, ParseError>) -> Option<T> {
        self.capture.parse(kind, parse)?.map_err(|gap| self.snapshot.gaps.push(gap)).ok()
    }

    /// As [`Self::parse`], for a form in which any line can be missing: a text without any known line is an error.
    fn parse_lines<T>(
        &mut self,
        kind: Kind,
        wanted: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        self.parse(kind, |text| parse(text).ok_or_else(|| ParseError::nothing_in(text, wanted)))
    }

    fn log(&self, kind: Kind) -> Option<Log> {
        let texts: Vec<&str> = self.capture.all(kind).map(|artifact| artifact.text.as_str()).collect();
        (!texts.is_empty()).then(|| Log::parse(&texts.join("\n")))
    }

    /// When the text of this kind was read.
    fn time(&self, kind: Kind) -> Timestamp {
        let read = self.capture.get(kind).and_then(|artifact| artifact.read);
        read.or(self.capture.taken).unwrap_or_default()
    }

    fn kube_proxy(&mut self) {
        self.snapshot.process = self.parse(Kind::Process, ProcessList::parse);
        self.snapshot.reported_mode =
            self.parse_lines(Kind::ProxyMode, "a mode of kube-proxy on Linux", ProxyMode::parse);
        self.snapshot.config = self
            .parse(Kind::ProxyConfig, Config::parse)
            .or_else(|| self.snapshot.process.as_ref().and_then(Config::from_flags));
        self.snapshot.log = self.log(Kind::ProxyLog);
        self.snapshot.previous_log = self.log(Kind::ProxyLogPrevious);
        self.snapshot.metrics = self.parse_lines(Kind::ProxyMetrics, "a list of metrics", |text| {
            Some(Metrics::parse(text)).filter(|metrics| !metrics.is_empty())
        });
        self.snapshot.healthz =
            self.parse_lines(Kind::ProxyHealthz, "an answer of /healthz and its status", Health::parse_saved);
        self.snapshot.livez =
            self.parse_lines(Kind::ProxyLivez, "an answer of /livez and its status", Health::parse_saved);
        self.snapshot.proxy_clock = self.capture.text(Kind::ProxyHealthz).and_then(Health::clock);
        self.snapshot.proxy_utc_offset = self.capture.text(Kind::ProxyHealthz).and_then(Health::utc_offset);
        let answered = [Kind::ProxyMode, Kind::ProxyMetrics, Kind::ProxyHealthz].iter().any(|kind| {
            let refused = Some(self.capture.why_missing(*kind));
            self.capture.get(*kind).is_some()
                || matches!(refused.flatten(), Some(Reason::Refused { .. } | Reason::TooLarge { .. }))
        });
        let snapshot = &mut self.snapshot;
        snapshot.running =
            if answered { Some(true) } else { snapshot.process.as_ref().and_then(ProcessList::runs) };
        if let (Some(Artifact { source, .. }), Some(process), None) =
            (self.capture.get(Kind::Process), &snapshot.process, snapshot.running)
        {
            let error = process.why_unknown();
            let reason = Reason::Unreadable { place: source.clone(), error };
            snapshot.gaps.push(Gap { kind: Kind::Process, reason });
        }
        let reported = snapshot.metrics.as_ref().and_then(Metrics::version).map(str::to_owned);
        snapshot.version = reported.or_else(|| snapshot.log.as_ref()?.version.clone()).map(Version::from);
    }

    fn kernel(&mut self) {
        let counters = "a table of conntrack's counters";
        self.snapshot.conntrack = self.parse_lines(Kind::ConntrackStat, counters, Counters::parse);
        self.snapshot.conntrack_later = self.parse_lines(Kind::ConntrackStatLater, counters, Counters::parse);
        let drops = |kind| conntrack::netstat(self.capture.text(kind)?, "TcpExt", "IPReversePathFilter");
        self.snapshot.rp_filter_drops = (drops(Kind::Netstat), drops(Kind::NetstatLater));
        let namespaces = self.capture.text(Kind::ConntrackNamespaces);
        self.snapshot.namespaces = namespaces.map(conntrack::parse_namespaces).unwrap_or_default();
        self.snapshot.sysctls = self.parse_lines(Kind::Sysctls, "a list of settings", |text| {
            Some(Sysctls::parse(text)).filter(|sysctls| !sysctls.is_empty())
        });
        self.snapshot.interfaces = self.parse(Kind::Interfaces, Interfaces::parse);
        self.snapshot.routes = self.parse(Kind::Routes, Routes::parse);
        self.snapshot.modules = self.parse_lines(Kind::Modules, "a list of modules", |text| {
            Some(Modules::parse(text)).filter(|modules| !modules.is_empty())
        });
        let (count_time, snapshot) = (self.time(Kind::Sysctls), &mut self.snapshot);
        snapshot.mtus = snapshot.interfaces.as_ref().map(Interfaces::mtus).unwrap_or_default();
        snapshot.other_dataplane = snapshot.interfaces.as_ref().and_then(Interfaces::other_dataplane);
        let number = |name: &str| snapshot.sysctls.as_ref()?.number(name).and_then(|n| u64::try_from(n).ok());
        let counted = || snapshot.conntrack.as_ref().and_then(Counters::entries);
        let count = number("net/netfilter/nf_conntrack_count").or_else(counted);
        snapshot.conntrack_use = count
            .zip(number("net/netfilter/nf_conntrack_max"))
            .map(|(count, max)| Observed { time: count_time, value: ConntrackUse { count, max } });
        snapshot.ipvs_settings = snapshot.sysctls.as_ref().and_then(IpvsSettings::of);
    }

    /// The addresses of the network namespace, by interface if all are known.
    fn addresses(&mut self) -> Option<BTreeSet<IpAddr>> {
        let known =
            self.snapshot.interfaces.as_ref().filter(|list| list.iter().all(|one| one.addresses_known));
        let of_interfaces = known.map(|list| {
            list.iter().flat_map(|one| one.addresses.iter().map(|(address, _)| *address)).collect()
        });
        of_interfaces.or_else(|| {
            self.parse_lines(Kind::Addresses, "a list of addresses", |text| {
                text.lines().map(|line| line.trim().parse().ok()).collect()
            })
        })
    }
}

impl Snapshot {
    /// kube-proxy's release; `None` if it is unknown.
    pub(crate) fn release(&self) -> Option<Release> {
        self.version.as_ref()?.release()
    }

    /// Whether kube-proxy sends to terminating endpoints that serve while no other is ready: the feature gate
    /// `ProxyTerminatingEndpoints`, alpha and off in 1.22, on by default since 1.26, locked since 1.28
    /// (`pkg/features/kube_features.go`). `None` if neither the gate nor the release is known, and the rules do not show
    /// that it is on.
    pub(crate) fn uses_terminating(&self) -> Option<bool> {
        let by_release = || Some(self.release()? >= Release(1, 26));
        let by_rules = || (self.oldest_release()? >= Release(1, 26)).then_some(true);
        self.report.uses_terminating.or_else(by_release).or_else(by_rules)
    }

    /// The oldest release of kube-proxy that writes rules of this form; `None` if any may. nftables mode began in 1.29,
    /// KUBE-IPVS-FILTER in 1.26 (kubernetes/kubernetes#108460), and KUBE-PROXY-FIREWALL in 1.25
    /// (kubernetes/kubernetes#110289).
    pub(crate) fn oldest_release(&self) -> Option<Release> {
        let has = |chain: &str| self.rules.tables.iter().any(|table| table.chain(chain).is_some());
        match self.mode {
            Some(ProxyMode::Nftables) => Some(Release(1, 29)),
            _ if has("KUBE-IPVS-FILTER") => Some(Release(1, 26)),
            _ if has("KUBE-PROXY-FIREWALL") => Some(Release(1, 25)),
            _ => None,
        }
    }

    /// Whether kube-proxy may be older than this release, by its version, or else by the form of its rules.
    pub(crate) fn may_precede(&self, release: Release) -> bool {
        self.release().or_else(|| self.oldest_release()).is_none_or(|own| own < release)
    }

    /// Parses the texts of the node.
    pub fn read(capture: &Capture) -> Self {
        let mut reader = Reader { capture, snapshot: Self { gaps: capture.gaps.clone(), ..Self::default() } };
        reader.kube_proxy();
        reader.kernel();
        reader.rules();
        reader.snapshot.rules.addresses = reader.addresses();
        let mut snapshot = reader.snapshot;
        snapshot.mode = snapshot.find_mode();
        snapshot.proxy_rules = snapshot.find_proxy_rules();
        snapshot.report = ProxyReport::of(&snapshot);
        snapshot
    }

    fn find_mode(&self) -> Option<ProxyMode> {
        let logged = || {
            let proxier = self.log.as_ref()?.proxier.as_ref()?;
            ProxyMode::parse(&proxier.to_ascii_lowercase())
        };
        let configured = || ProxyMode::parse(self.config.as_ref()?.mode.as_deref()?);
        self.reported_mode.or_else(logged).or_else(configured).or_else(|| self.mode_of_rules())
    }

    /// Whether the address is one of this node's own, bridges included.
    pub fn is_own_address(&self, ip: IpAddr) -> Option<bool> {
        self.rules.addresses.as_ref().map(|addresses| addresses.contains(&ip) || ip.is_loopback())
    }

    /// When it was read.
    pub fn read_at(&self) -> Option<Timestamp> {
        self.rules_time.or(self.conntrack_use.map(|used| used.time))
    }

    /// The unread facts of a trace, in words, except absent parts of the kernel.
    pub fn gap_lines(&self) -> impl Iterator<Item = String> {
        let lacks = |gap: &&Gap| {
            let elsewhere = gap.kind == Kind::IpvsSave && self.listings.ipvs == Listing::Read;
            !elsewhere && !matches!(gap.reason, Reason::NotInKernel { .. })
        };
        self.recorded_gaps.iter().cloned().chain(self.gaps.iter().filter(lacks).map(Gap::to_string))
    }

    /// The process id of a kube-proxy in another network namespace, if neither a kube-proxy nor its rules are in this
    /// one.
    pub fn kube_proxy_elsewhere(&self) -> Option<u32> {
        let pid = self.process.as_ref()?.elsewhere?;
        (self.running != Some(true) && self.proxy_rules.any() != Presence::Present).then_some(pid)
    }

    /// Another dataplane that may serve Services here, if neither kube-proxy nor its rules are known to exist.
    pub fn served_elsewhere(&self) -> Option<Dataplane> {
        let by_kube_proxy = self.running == Some(true) || self.proxy_rules.any() == Presence::Present;
        self.other_dataplane.filter(|_| !by_kube_proxy)
    }
}

#[cfg(test)]
mod tests;
