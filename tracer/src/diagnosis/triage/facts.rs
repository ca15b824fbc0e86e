//! The input of a check: the node's snapshot, the cluster's history, and objects that the history does not follow.
//!
//! Owns the parsing of the cluster's texts, the node's name, and the list of missing facts. Must not judge.

mod digest;
mod objects;

use std::{fmt, panic::resume_unwind, thread, time::Duration};

pub(crate) use objects::{DaemonSet, Event};

use crate::{
    cluster::{
        History, Kind as ObjectKind,
        folder::{self, Warning},
        model::{Node, Service},
    },
    diagnosis::left_out::LeftOut,
    net::Family,
    node::{
        Gap, ProxyMode, Reason, Snapshot,
        capture::{Artifact, Capture, Kind},
        interfaces::{Dataplane, Interfaces},
        kube_proxy::metrics::{Metrics, SyncTimes},
        snapshot::Listing,
    },
    time::Timestamp,
};

/// All facts of a check.
#[derive(Debug, Default)]
pub struct Facts {
    pub taken: Option<Timestamp>,
    pub node: Snapshot,
    pub node_name: Option<String>,
    pub history: Option<History>,
    pub api_version: Option<String>,
    pub daemon_sets: Option<Vec<DaemonSet>>,
    pub events: Option<Vec<Event>>,
    /// When the first of the lists of Services and `EndpointSlices` was read, if known.
    pub lists_read: Option<Timestamp>,
    /// Texts of the cluster that could not be parsed. The snapshot has those of the node.
    gaps: Vec<Gap>,
    /// The number of unusable parts of objects.
    warnings: Vec<Warning>,
}

/// An unchecked part of the node. viptrace reports a node as healthy only if all of these parts were checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncovered {
    Services,
    Endpoints,
    Rules,
    /// Services that this program serves instead of kube-proxy.
    Dataplane(Dataplane),
    /// The node's network namespace: this one is another, and the process with this id is in one with kube-proxy.
    Namespace(u32),
}

impl fmt::Display for Uncovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Services => f.write_str("the Services"),
            Self::Endpoints => f.write_str("their endpoints"),
            Self::Rules => f.write_str("the node's rules"),
            Self::Dataplane(name) => write!(f, "the Services that {name} serves instead of kube-proxy"),
            Self::Namespace(pid) => write!(
                f,
                "the network namespace of kube-proxy, which is that of process {pid} (`nsenter -t {pid} -n viptrace check`)"
            ),
        }
    }
}

impl Facts {
    /// Parses the capture: the node's texts and the cluster's at the same time, as both can be large.
    pub fn read(capture: &Capture) -> Self {
        thread::scope(|scope| {
            let node = scope.spawn(|| Snapshot::read(capture));
            let mut facts = Self::read_cluster(capture);
            facts.node = node.join().unwrap_or_else(|panic| resume_unwind(panic));
            facts.find_node();
            facts
        })
    }

    fn read_cluster(capture: &Capture) -> Self {
        let mut facts = Self { taken: capture.taken, node_name: capture.node.clone(), ..Self::default() };
        let mut gaps = Vec::new();
        let mut kept = |gap| gaps.push(gap);
        facts.api_version = capture
            .parse(Kind::ApiVersion, objects::api_version)
            .and_then(|read| read.map_err(&mut kept).ok());
        facts.daemon_sets = capture
            .parse(Kind::DaemonSets, objects::daemon_sets)
            .and_then(|read| read.map_err(&mut kept).ok());
        facts.events =
            capture.parse(Kind::Events, objects::events).and_then(|read| read.map_err(&mut kept).ok());
        facts.gaps = gaps;
        let lists = [Kind::Services, Kind::EndpointSlices].into_iter().flat_map(|kind| capture.all(kind));
        facts.lists_read = lists.filter_map(|list| list.read).min();
        facts.read_objects(capture);
        facts
    }

    fn read_objects(&mut self, capture: &Capture) {
        let kinds = [Kind::Services, Kind::EndpointSlices, Kind::Pods, Kind::Nodes, Kind::Objects];
        let lists: Vec<_> = kinds.iter().flat_map(|kind| capture.all(*kind)).collect();
        let streams: Vec<_> = capture.all(Kind::Watch).collect();
        if lists.is_empty() && streams.is_empty() {
            return;
        }
        let read = folder::from_texts(
            lists.iter().copied().map(named),
            streams.iter().copied().map(named),
            Duration::MAX,
        );
        self.history = Some(read.history);
        for warning in read.warnings {
            match warning {
                Warning::Unparsable { name, error } => {
                    let of = lists.iter().chain(&streams).find(|artifact| artifact.source == name);
                    let kind = of.map_or(Kind::Objects, |artifact| artifact.kind);
                    self.gaps.push(Gap { kind, reason: Reason::unparsable(&name, error) });
                }
                // The list of missing facts has the missing text and its reason.
                Warning::NoList { .. } => {}
                warning => self.warnings.push(warning),
            }
        }
    }

    /// Finds the node's name: from the command line, from kube-proxy's arguments, or from the Node with an address of
    /// this node.
    fn find_node(&mut self) {
        if self.node_name.is_none() {
            self.node_name = self.node.config.as_ref().and_then(|config| config.hostname_override.clone());
        }
        if !self.lacks_node() {
            return;
        }
        let Some(history) = &self.history else { return };
        let listed = self.node.interfaces.iter().flat_map(Interfaces::iter);
        let mut own: Vec<_> =
            listed.flat_map(|interface| interface.addresses.iter().map(|(address, _)| *address)).collect();
        own.extend(self.node.log.iter().flat_map(|log| &log.node_ips));
        let mut same =
            history.nodes().filter(|node| node.addresses.iter().any(|address| own.contains(address)));
        if let (Some(only), None) = (same.next(), same.next()) {
            self.node_name = Some(only.key.name.to_string());
        }
    }

    /// Whether the cluster's Nodes are known and do not include this node.
    fn lacks_node(&self) -> bool {
        let known = |history: &&History| history.knows(ObjectKind::Node);
        self.history.as_ref().filter(known).is_some_and(|history| {
            let node = self.node_name.as_deref().and_then(|name| history.node(name, Timestamp::MAX));
            node.is_none()
        })
    }

    /// The node's name, if the cluster has such a Node or its Nodes are unknown.
    pub fn known_node(&self) -> Option<&str> {
        self.node_name.as_deref().filter(|_| !self.lacks_node())
    }

    /// The history, if it has all Services and their endpoints.
    pub(super) fn services(&self) -> Option<&History> {
        self.history
            .as_ref()
            .filter(|_| self.covers(Uncovered::Services) && self.covers(Uncovered::Endpoints))
    }

    /// Whether this cluster means kube-proxy to run as Pods. `None` if its objects are unknown.
    pub(super) fn wants_proxy_pods(&self) -> Option<bool> {
        let sets = self.daemon_sets.as_ref().map(|sets| sets.iter().any(|set| set.desired > 0));
        let history = self.history.as_ref().filter(|history| history.knows(ObjectKind::Pod));
        let pods = history.map(|history| history.pods().any(|pod| super::pods::is_proxy(pod)));
        match (sets, pods) {
            (Some(true), _) | (_, Some(true)) => Some(true),
            (Some(false), Some(false)) => Some(false),
            _ => None,
        }
    }

    /// Another dataplane that serves Services here, with or without rules that kube-proxy left behind. A CNI that runs
    /// beside kube-proxy is none, whatever state kube-proxy is in.
    pub(super) fn served_elsewhere(&self) -> Option<Dataplane> {
        let other = self.node.other_dataplane.filter(|_| self.node.running != Some(true))?;
        match self.wants_proxy_pods() {
            Some(true) => None,
            // A program that may contain kube-proxy may also have written the rules.
            Some(false) if self.node.process.as_ref().is_none_or(|process| process.program.is_none()) => {
                Some(other)
            }
            Some(false) | None => self.node.served_elsewhere(),
        }
    }

    /// Whether kube-proxy does not leave this Service out because of a label.
    pub(super) fn serves(&self, service: &Service) -> bool {
        LeftOut::of(service, self.node.release()).is_none()
    }

    fn knows(&self, kind: ObjectKind) -> bool {
        self.history.as_ref().is_some_and(|history| history.knows(kind))
    }

    /// Why a text of this kind is missing or unusable.
    pub fn why_missing(&self, kind: Kind) -> Option<&Reason> {
        self.gaps.iter().chain(&self.node.gaps).find(|gap| gap.kind == kind).map(|gap| &gap.reason)
    }

    /// The time to compare kube-proxy's times with, in seconds since the epoch.
    pub fn now(&self) -> Option<f64> {
        self.node.proxy_clock.or_else(|| self.taken.map(Timestamp::as_unix_secs_f64))
    }

    /// The times of kube-proxy's syncs, by family; empty without its metrics.
    pub(super) fn sync_times(&self) -> Vec<SyncTimes> {
        self.node.metrics.as_ref().map(Metrics::sync_times).unwrap_or_default()
    }

    /// Whether kube-proxy's metrics show that it has written no rules since its start, in any family.
    pub(super) fn never_wrote(&self) -> bool {
        let times = self.sync_times();
        !times.is_empty() && times.iter().all(|times| times.last_synced == 0.0)
    }

    /// The Node object of this node.
    pub(crate) fn own_node(&self) -> Option<&Node> {
        self.history.as_ref()?.node(self.known_node()?, Timestamp::MAX).map(|node| &**node)
    }

    /// The families in which the cluster's Services have addresses.
    pub(super) fn families(&self) -> Vec<Family> {
        let serves = |family: &Family| {
            self.history.as_ref().is_some_and(|history| {
                history
                    .services()
                    .any(|service| service.cluster_ips.iter().any(|ip| Family::of(*ip) == *family))
            })
        };
        Family::ALL.into_iter().filter(serves).collect()
    }

    fn covers(&self, part: Uncovered) -> bool {
        let whole = |object, kind| {
            let damaged = |gap: &Gap| {
                [kind, Kind::Objects].contains(&gap.kind) && matches!(gap.reason, Reason::Unparsable { .. })
            };
            self.knows(object) && !self.gaps.iter().any(damaged)
        };
        match part {
            Uncovered::Services => whole(ObjectKind::Service, Kind::Services),
            Uncovered::Endpoints => whole(ObjectKind::EndpointSlice, Kind::EndpointSlices),
            Uncovered::Dataplane(_) => self.served_elsewhere().is_none(),
            Uncovered::Namespace(_) => self.node.kube_proxy_elsewhere().is_none(),
            // These rules do not contain another dataplane's Services.
            Uncovered::Rules if self.served_elsewhere().is_some() => true,
            Uncovered::Rules => {
                let families = self.families();
                let wanted = if families.is_empty() { vec![Family::Ipv4] } else { families };
                wanted.into_iter().all(|family| self.node.knows_rules(family))
                    && !self.node.has_damaged_rules()
            }
        }
    }

    /// The unchecked parts that a healthy node requires.
    pub fn uncovered(&self) -> Vec<Uncovered> {
        let dataplane = self.served_elsewhere().map(Uncovered::Dataplane);
        let namespace = self.node.kube_proxy_elsewhere().map(Uncovered::Namespace);
        [Uncovered::Services, Uncovered::Endpoints, Uncovered::Rules]
            .into_iter()
            .chain(dataplane)
            .chain(namespace)
            .filter(|part| !self.covers(*part))
            .collect()
    }

    /// The missing or unusable facts, one line each for a person.
    pub fn missing(&self) -> Vec<String> {
        let node = &self.node;
        let ipvs = node.mode == Some(ProxyMode::Ipvs);
        let iptables = node.mode.is_none_or(|mode| mode != ProxyMode::Nftables);
        let unread = |listing| listing != Listing::Read;
        let v6 = self.families().contains(&Family::Ipv6);
        let nftables = node.mode == Some(ProxyMode::Nftables);
        let wanted: [(&[Kind], bool); 23] = [
            (&[Kind::Services], !self.knows(ObjectKind::Service)),
            (&[Kind::EndpointSlices], !self.knows(ObjectKind::EndpointSlice)),
            (&[Kind::Pods], !self.knows(ObjectKind::Pod)),
            (&[Kind::Nodes], !self.knows(ObjectKind::Node)),
            (&Kind::IPTABLES, iptables && unread(node.listings.iptables_v4)),
            (&Kind::IP6TABLES, iptables && v6 && unread(node.listings.iptables_v6)),
            (&[Kind::NftRuleset, Kind::NftRulesetJson], nftables && unread(node.listings.nftables)),
            (&Kind::IPVS, ipvs && unread(node.listings.ipvs)),
            (&[Kind::IpsetSave], ipvs && unread(node.listings.ipset)),
            (&[Kind::Process], node.running.is_none()),
            (&[Kind::ProxyMode], node.reported_mode.is_none()),
            (&[Kind::ProxyConfig], node.config.is_none()),
            (&[Kind::ProxyLog], node.log.is_none()),
            (&[Kind::ProxyMetrics], node.metrics.is_none()),
            (&[Kind::ProxyHealthz], node.healthz.is_none()),
            (&[Kind::ConntrackStat], node.conntrack.is_none()),
            (&[Kind::ConntrackStatLater], node.conntrack.is_some() && node.conntrack_later.is_none()),
            (&[Kind::Sysctls], node.sysctls.is_none()),
            (&[Kind::Interfaces], node.interfaces.is_none()),
            (&[Kind::Modules], ipvs && node.modules.is_none()),
            (&[Kind::ApiVersion], self.api_version.is_none()),
            (&[Kind::DaemonSets], self.daemon_sets.is_none()),
            (&[Kind::Events], self.events.is_none()),
        ];
        // A text that cannot be parsed is reported whether it is needed or not.
        let unparsable = |gap: &Gap| matches!(gap.reason, Reason::Unparsable { .. });
        let (mut lines, gaps): (Vec<Gap>, Vec<Gap>) =
            self.gaps.iter().chain(&node.gaps).cloned().partition(unparsable);
        for (kinds, _) in wanted.into_iter().filter(|(_, missing)| *missing) {
            if lines.iter().any(|gap| kinds.contains(&gap.kind)) {
                continue;
            }
            let before = lines.len();
            lines.extend(gaps.iter().filter(|gap| kinds.contains(&gap.kind)).cloned());
            if let (true, Some(kind)) = (lines.len() == before, kinds.first().copied()) {
                lines.push(Gap { kind, reason: Reason::NotCaptured { kind } });
            }
        }
        let mut lines: Vec<String> = lines.iter().map(Gap::to_string).collect();
        lines.extend(self.warnings.iter().map(Warning::to_string));
        if self.lacks_node() {
            let named = self.node_name.as_deref().map_or("this node's name is unknown".to_owned(), |node| {
                format!("the cluster has no Node {node}")
            });
            lines.push(format!(
                "which endpoints are local: {named}; pass its name from `kubectl get nodes` with --node"
            ));
        }
        lines
    }
}

fn named(artifact: &Artifact) -> (&str, &str) {
    (&artifact.source, &artifact.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_capture_reports_everything_as_missing() {
        let facts = Facts::read(&Capture::default());
        assert_eq!(facts.uncovered(), [Uncovered::Services, Uncovered::Endpoints, Uncovered::Rules]);
        let missing = facts.missing();
        assert!(missing.iter().any(|line| line.contains("kubectl get services -A -o json")), "{missing:?}");
        assert!(missing.iter().any(|line| line.contains("iptables-save -c")), "{missing:?}");
    }
}
