//! What the audit knows about the node and kube-proxy besides the cluster's objects and the rules.
//!
//! Owns the meaning of kube-proxy's settings for its rules. Must not read them (that is the caller's) or judge.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use crate::{
    net::{Cidr, Family},
    node::{ProxyMode, Release},
    rules::LocalTraffic,
    time::Timestamp,
};

/// The first address of 127.0.0.0/8.
const LOOPBACK_START: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0));

/// Facts about the node and kube-proxy that the audit needs.
#[derive(Clone, Debug)]
pub struct Context {
    /// The node's name, as in `EndpointSlices`: it determines the local endpoints.
    pub node: Arc<str>,
    pub mode: ProxyMode,
    /// kube-proxy's release; `None` if it is unknown, so that the rules may be those of any release.
    pub release: Option<Release>,
    /// The oldest release that writes rules of this form; `None` if any may.
    pub oldest_release: Option<Release>,
    /// Whether kube-proxy sends to endpoints that serve while they terminate, if no other is ready; `None` if that is
    /// unknown.
    pub uses_terminating: Option<bool>,
    /// The time at which the rules were read.
    pub at: Timestamp,
    /// kube-proxy's configuration; `None` if it is unknown, so that the rules must show it.
    pub settings: Option<Settings>,
    /// The addresses of the node's interfaces, without those that serve no node port: loopback, IPv6 link-local, and
    /// those of kube-ipvs0. `None` if they were not read.
    pub own_addresses: Option<Vec<IpAddr>>,
    /// The families whose iptables rules were not read, or not from each backend.
    pub unread: Vec<Family>,
    /// Conntrack treats packets out of the window as valid (`nf_conntrack_tcp_be_liberal`), so kube-proxy writes no
    /// rule against invalid packets.
    pub tcp_be_liberal: Option<bool>,
    pub sync: SyncStatus,
}

/// The part of kube-proxy's configuration that determines its rules. The default is kube-proxy's, except that the
/// Pods' traffic is unknown.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub detect_local: DetectLocal,
    pub masquerade_all: bool,
    pub node_ports: NodePorts,
    /// `iptables.localhostNodePorts` is off.
    pub no_localhost_node_ports: bool,
    /// `bindAddress`, unless it is unspecified: the node's address in its family, instead of the Node object's.
    pub bind_address: Option<IpAddr>,
    /// `ipvs.excludeCIDRs`: the virtual servers of other programs.
    pub excluded: Vec<Cidr>,
}

/// `detectLocalMode` with its value (`getLocalDetectors` in `cmd/kube-proxy/app/server_linux.go`).
#[derive(Clone, Debug, Default)]
pub enum DetectLocal {
    /// `ClusterCIDR` and `NodeCIDR`: the first range of each family. A family without a range is not distinguished.
    Ranges(Vec<Cidr>),
    /// `BridgeInterface`, or `InterfaceNamePrefix` with a trailing `+`.
    Interface(Box<str>),
    #[default]
    Unknown,
}

/// `nodePortAddresses` (`pkg/proxy/util/nodeport_addresses.go`).
#[derive(Clone, Debug, Default)]
pub enum NodePorts {
    /// Every address of the node.
    #[default]
    All,
    /// The value `primary`, which is also the default of nftables mode (since 1.31): the node's address in each
    /// family. A family in which the node has none serves all.
    Primary,
    /// A family without a range serves all.
    Ranges(Vec<Cidr>),
}

impl Context {
    /// With nothing known about kube-proxy's configuration and times.
    pub fn new(node: &str, mode: ProxyMode, at: Timestamp) -> Self {
        Self {
            node: node.into(),
            mode,
            release: None,
            oldest_release: None,
            uses_terminating: None,
            at,
            settings: None,
            own_addresses: None,
            unread: Vec::new(),
            tcp_be_liberal: None,
            sync: SyncStatus::default(),
        }
    }

    /// Whether kube-proxy may be older than this release.
    pub(super) fn may_precede(&self, release: Release) -> bool {
        self.release.or(self.oldest_release).is_none_or(|own| own < release)
    }

    /// How kube-proxy recognises Pods' traffic in this family, by its configuration; `None` if that is unknown.
    pub(super) fn local_traffic(&self, family: Family) -> Option<LocalTraffic> {
        match &self.settings.as_ref()?.detect_local {
            DetectLocal::Ranges(ranges) => {
                let first = ranges.iter().find(|cidr| Family::of(cidr.base) == family);
                Some(first.map_or(LocalTraffic::Unmarked, |cidr| LocalTraffic::Range((*cidr).into())))
            }
            DetectLocal::Interface(name) => Some(LocalTraffic::Interface(name.clone())),
            DetectLocal::Unknown => None,
        }
    }

    /// Whether `nodePortAddresses` has ranges for this family that do not contain every address.
    pub(super) fn restricts_node_ports(&self, family: Family) -> bool {
        let Some(Settings { node_ports: NodePorts::Ranges(ranges), .. }) = &self.settings else {
            return false;
        };
        let mut of_family = ranges.iter().filter(|cidr| Family::of(cidr.base) == family).peekable();
        of_family.peek().is_some() && of_family.all(|cidr| cidr.prefix > 0)
    }

    /// Whether iptables mode serves node ports at 127.0.0.1: `localhostNodePorts`, unless `nodePortAddresses` leave
    /// loopback out (`ContainsIPv4Loopback` in `pkg/proxy/util/nodeport_addresses.go`).
    pub(super) fn serves_localhost(&self) -> bool {
        let Some(settings) = self.settings.as_ref().filter(|settings| !settings.no_localhost_node_ports)
        else {
            return false;
        };
        let is_v4 = |cidr: &&Cidr| Family::of(cidr.base) == Family::Ipv4;
        let loopback = |cidr: &Cidr| cidr.base.is_loopback() || cidr.contains(LOOPBACK_START);
        match &settings.node_ports {
            NodePorts::All => true,
            NodePorts::Primary => false,
            NodePorts::Ranges(ranges) => {
                let mut of_family = ranges.iter().filter(is_v4).peekable();
                of_family.peek().is_none() || of_family.any(loopback)
            }
        }
    }

    /// kube-proxy's own notion of the node's address in this family, if the Node has one or the configuration sets it
    /// (`detectNodeIPs` in `cmd/kube-proxy/app/server.go`).
    pub(super) fn node_ip(&self, listed: &[IpAddr], family: Family) -> Option<IpAddr> {
        let listed = || listed.iter().copied().find(|ip| Family::of(*ip) == family);
        self.bind_address(family).or_else(listed)
    }

    /// kube-proxy's `bindAddress`, if it is one of this family.
    pub(super) fn bind_address(&self, family: Family) -> Option<IpAddr> {
        let bound = self.settings.as_ref().and_then(|settings| settings.bind_address);
        bound.filter(|ip| Family::of(*ip) == family)
    }
}

/// kube-proxy's own times of its last sync and of the last queued update, and the grace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncStatus {
    /// `sync_proxy_rules_last_queued_timestamp_seconds`.
    pub last_queued: Option<Timestamp>,
    /// `sync_proxy_rules_last_timestamp_seconds`.
    pub last_synced: Option<Timestamp>,
    /// A change younger than this may still be in flight (catalogue section 3).
    pub grace: Duration,
}

impl Default for SyncStatus {
    /// Without kube-proxy's times. The grace is the catalogue's minimum, 5 s.
    fn default() -> Self {
        Self { last_queued: None, last_synced: None, grace: Duration::from_secs(5) }
    }
}
