//! The kinds of text that a capture holds.
//!
//! Owns their file names, which are also those of a captured folder, and how a person gets one by hand.

/// A kind of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    IptablesSave,
    IptablesLegacySave,
    IptablesNftSave,
    Ip6tablesSave,
    Ip6tablesLegacySave,
    Ip6tablesNftSave,
    NftRulesetJson,
    NftRuleset,
    IpvsSave,
    IpvsList,
    IpsetSave,
    Interfaces,
    Sysctls,
    Modules,
    ConntrackStat,
    /// The same counters a moment later.
    ConntrackStatLater,
    Netstat,
    NetstatLater,
    /// Entries by network namespace.
    ConntrackNamespaces,
    Process,
    ProxyConfig,
    ProxyLog,
    /// The log of the process before the last restart.
    ProxyLogPrevious,
    ProxyMetrics,
    ProxyHealthz,
    ProxyLivez,
    ProxyMode,
    ApiVersion,
    Services,
    EndpointSlices,
    Pods,
    Nodes,
    DaemonSets,
    Events,
    /// A list of objects of several kinds, or a single object.
    Objects,
    /// A watch stream, one event a line.
    Watch,
}

impl Kind {
    pub const ALL: [Self; 36] = [
        Self::IptablesSave,
        Self::IptablesLegacySave,
        Self::IptablesNftSave,
        Self::Ip6tablesSave,
        Self::Ip6tablesLegacySave,
        Self::Ip6tablesNftSave,
        Self::NftRulesetJson,
        Self::NftRuleset,
        Self::IpvsSave,
        Self::IpvsList,
        Self::IpsetSave,
        Self::Interfaces,
        Self::Sysctls,
        Self::Modules,
        Self::ConntrackStat,
        Self::ConntrackStatLater,
        Self::Netstat,
        Self::NetstatLater,
        Self::ConntrackNamespaces,
        Self::Process,
        Self::ProxyConfig,
        Self::ProxyLog,
        Self::ProxyLogPrevious,
        Self::ProxyMetrics,
        Self::ProxyHealthz,
        Self::ProxyLivez,
        Self::ProxyMode,
        Self::ApiVersion,
        Self::Services,
        Self::EndpointSlices,
        Self::Pods,
        Self::Nodes,
        Self::DaemonSets,
        Self::Events,
        Self::Objects,
        Self::Watch,
    ];

    /// The name of its file in a captured folder.
    pub const fn file_name(self) -> &'static str {
        match self {
            Self::IptablesSave => "iptables-save.txt",
            Self::IptablesLegacySave => "iptables-legacy-save.txt",
            Self::IptablesNftSave => "iptables-nft-save.txt",
            Self::Ip6tablesSave => "ip6tables-save.txt",
            Self::Ip6tablesLegacySave => "ip6tables-legacy-save.txt",
            Self::Ip6tablesNftSave => "ip6tables-nft-save.txt",
            Self::NftRulesetJson => "nft-ruleset.json",
            Self::NftRuleset => "nft-ruleset.txt",
            Self::IpvsSave => "ipvsadm-save.txt",
            Self::IpvsList => "ipvsadm-list.txt",
            Self::IpsetSave => "ipset-save.txt",
            Self::Interfaces => "ip-addr.json",
            Self::Sysctls => "sysctl.txt",
            Self::Modules => "modules.txt",
            Self::ConntrackStat => "nf_conntrack.stat.txt",
            Self::ConntrackStatLater => "nf_conntrack.stat.later.txt",
            Self::Netstat => "netstat.txt",
            Self::NetstatLater => "netstat.later.txt",
            Self::ConntrackNamespaces => "nf_conntrack.namespaces.txt",
            Self::Process => "kube-proxy.process.json",
            Self::ProxyConfig => "config.yaml",
            Self::ProxyLog => "kube-proxy.log",
            Self::ProxyLogPrevious => "kube-proxy.previous.log",
            Self::ProxyMetrics => "metrics.txt",
            Self::ProxyHealthz => "healthz.txt",
            Self::ProxyLivez => "livez.txt",
            Self::ProxyMode => "proxyMode.txt",
            Self::ApiVersion => "version.json",
            Self::Services => "services.json",
            Self::EndpointSlices => "endpointslices.json",
            Self::Pods => "pods.json",
            Self::Nodes => "nodes.json",
            Self::DaemonSets => "daemonsets.json",
            Self::Events => "events.json",
            Self::Objects => "objects.json",
            Self::Watch => "objects.watch.jsonl",
        }
    }

    /// What it tells, for the line that says that it is missing.
    pub const fn about(self) -> &'static str {
        match self {
            Self::IptablesSave | Self::IptablesLegacySave | Self::IptablesNftSave => {
                "the IPv4 iptables rules"
            }
            Self::Ip6tablesSave | Self::Ip6tablesLegacySave | Self::Ip6tablesNftSave => {
                "the IPv6 iptables rules"
            }
            Self::NftRulesetJson | Self::NftRuleset => "the nftables rules",
            Self::IpvsSave | Self::IpvsList => "the IPVS table",
            Self::IpsetSave => "the IP sets",
            Self::Interfaces => "the node's interfaces and bridges",
            Self::Sysctls => "the node's sysctls",
            Self::Modules => "the kernel modules",
            Self::ConntrackStat => "conntrack's counters",
            Self::ConntrackStatLater => "whether conntrack drops now",
            Self::Netstat => "the IP stack's counters",
            Self::NetstatLater => "whether the reverse path filter drops now",
            Self::ConntrackNamespaces => "the conntrack tables of other network namespaces",
            Self::Process => "whether kube-proxy runs",
            Self::ProxyConfig => "kube-proxy's configuration",
            Self::ProxyLog => "kube-proxy's log",
            Self::ProxyLogPrevious => "kube-proxy's log before its last restart",
            Self::ProxyMetrics => "kube-proxy's metrics",
            Self::ProxyHealthz => "kube-proxy's health",
            Self::ProxyLivez => "kube-proxy's liveness",
            Self::ProxyMode => "kube-proxy's mode",
            Self::ApiVersion => "the API server's version",
            Self::Services => "the Services",
            Self::EndpointSlices => "the EndpointSlices",
            Self::Pods => "the Pods",
            Self::Nodes => "the Nodes",
            Self::DaemonSets => "the DaemonSets",
            Self::Events => "the Events",
            Self::Objects | Self::Watch => "the cluster's objects",
        }
    }

    /// How a person gets it; the output goes into a file of the name above. Empty where nobody needs to.
    pub const fn command(self) -> &'static str {
        match self {
            Self::IptablesSave => "iptables-save -c",
            Self::IptablesLegacySave => "iptables-legacy-save -c",
            Self::IptablesNftSave => "iptables-nft-save -c",
            Self::Ip6tablesSave => "ip6tables-save -c",
            Self::Ip6tablesLegacySave => "ip6tables-legacy-save -c",
            Self::Ip6tablesNftSave => "ip6tables-nft-save -c",
            Self::NftRulesetJson => "nft -j list ruleset",
            Self::NftRuleset => "nft list ruleset",
            Self::IpvsSave => "ipvsadm -Sn",
            Self::IpvsList => "ipvsadm -Ln",
            Self::IpsetSave => "ipset save",
            Self::Interfaces => "ip -d -j addr",
            Self::Sysctls => "sysctl -a",
            Self::Modules => "cat /proc/modules",
            Self::ConntrackStat => "cat /proc/net/stat/nf_conntrack",
            Self::Netstat => "cat /proc/net/netstat",
            Self::ProxyConfig => "kubectl -n kube-system get configmap kube-proxy -o json",
            Self::ProxyLog => "kubectl -n kube-system logs -l k8s-app=kube-proxy --tail=-1",
            Self::ProxyLogPrevious => "kubectl -n kube-system logs --previous POD",
            Self::ProxyMetrics => "curl -s http://127.0.0.1:10249/metrics",
            Self::ProxyHealthz => "curl -s -w '\\n%{http_code}' http://127.0.0.1:10256/healthz",
            Self::ProxyLivez => "curl -s -w '\\n%{http_code}' http://127.0.0.1:10256/livez",
            Self::ProxyMode => "curl -s http://127.0.0.1:10249/proxyMode",
            Self::ApiVersion => "kubectl version -o json",
            Self::Services => "kubectl get services -A -o json",
            Self::EndpointSlices => "kubectl get endpointslices -A -o json",
            Self::Pods => "kubectl get pods -A -o json",
            Self::Nodes => "kubectl get nodes -o json",
            Self::DaemonSets => "kubectl -n kube-system get daemonsets -o json",
            Self::Events => "kubectl -n kube-system get events -o json",
            Self::ConntrackStatLater
            | Self::NetstatLater
            | Self::ConntrackNamespaces
            | Self::Process
            | Self::Objects
            | Self::Watch => "",
        }
    }

    /// Whether it belongs to one node, so that two of the kind in one folder are of two nodes or of two moments.
    pub const fn is_of_node(self) -> bool {
        !matches!(
            self,
            Self::ApiVersion
                | Self::Services
                | Self::EndpointSlices
                | Self::Pods
                | Self::Nodes
                | Self::DaemonSets
                | Self::Events
                | Self::Objects
                | Self::Watch
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_kind_has_a_file_name_of_its_own() {
        let names: BTreeSet<_> = Kind::ALL.iter().map(|kind| kind.file_name()).collect();
        assert_eq!(names.len(), Kind::ALL.len());
    }
}
