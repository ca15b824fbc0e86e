//! The kinds of text in a capture.
//!
//! Owns their file names, which a captured folder uses too, and the commands that produce them.

use serde::{Deserialize, Serialize};

/// Declares the kinds: the name of each, the name of its file, its subject, and the command that produces it (empty if
/// a person does not need one).
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $file:literal, $about:literal, $command:literal;)*) => {
        /// A kind of text.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Kind {
            $($(#[$doc])* $kind,)*
        }

        impl Kind {
            pub const ALL: [Self; [$($file),*].len()] = [$(Self::$kind),*];

            /// The name of its file in a captured folder.
            pub const fn file_name(self) -> &'static str {
                match self {
                    $(Self::$kind => $file,)*
                }
            }

            /// Its subject, for the line that reports it as missing.
            pub const fn about(self) -> &'static str {
                match self {
                    $(Self::$kind => $about,)*
                }
            }

            /// The command that produces it; its output goes to a file of the name above. Empty if a person does not
            /// need one.
            pub const fn command(self) -> &'static str {
                match self {
                    $(Self::$kind => $command,)*
                }
            }
        }
    };
}

kinds! {
    IptablesSave: "iptables-save.txt", "the IPv4 iptables rules", "iptables-save -c";
    IptablesLegacySave: "iptables-legacy-save.txt", "the IPv4 iptables rules", "iptables-legacy-save -c";
    IptablesNftSave: "iptables-nft-save.txt", "the IPv4 iptables rules", "iptables-nft-save -c";
    Ip6tablesSave: "ip6tables-save.txt", "the IPv6 iptables rules", "ip6tables-save -c";
    Ip6tablesLegacySave: "ip6tables-legacy-save.txt", "the IPv6 iptables rules", "ip6tables-legacy-save -c";
    Ip6tablesNftSave: "ip6tables-nft-save.txt", "the IPv6 iptables rules", "ip6tables-nft-save -c";
    NftRulesetJson: "nft-ruleset.json", "the nftables rules", "nft -j list ruleset";
    NftRuleset: "nft-ruleset.txt", "the nftables rules", "nft list ruleset";
    IpvsSave: "ipvsadm-save.txt", "the IPVS table", "ipvsadm -Sn";
    IpvsList: "ipvsadm-list.txt", "the IPVS table", "ipvsadm -Ln";
    IpsetSave: "ipset-save.txt", "the IP sets", "ipset save";
    /// The tables of programs other than kube-proxy, without those of iptables: in JSON, or as text from an nft without it.
    NftOthers: "nft-others.json", "other programs' nftables rules", "";
    /// Of the main table, both families.
    Routes: "ip-route.txt", "the node's routes", "ip route show table all";
    Interfaces: "ip-addr.json", "the node's interfaces and bridges", "ip -d -j addr";
    /// One address per line, of all interfaces, without loopback.
    Addresses: "addresses.txt", "the node's own addresses", "";
    Sysctls: "sysctl.txt", "the node's sysctls", "sysctl -a";
    Modules: "modules.txt", "the kernel modules", "cat /proc/modules";
    ConntrackStat: "nf_conntrack.stat.txt", "conntrack's counters", "cat /proc/net/stat/nf_conntrack";
    /// The same counters a moment later.
    ConntrackStatLater: "nf_conntrack.stat.later.txt", "the growth of conntrack's counters", "";
    Netstat: "netstat.txt", "the IP stack's counters", "cat /proc/net/netstat";
    NetstatLater: "netstat.later.txt", "the growth of the IP stack's counters", "";
    /// Entries by network namespace.
    ConntrackNamespaces: "nf_conntrack.namespaces.txt", "the conntrack tables of other network namespaces", "";
    Process: "kube-proxy.process.json", "whether kube-proxy runs", "";
    ProxyConfig: "config.yaml", "kube-proxy's configuration",
        "kubectl -n kube-system get configmap kube-proxy -o json";
    ProxyLog: "kube-proxy.log", "kube-proxy's log", "kubectl -n kube-system logs -l k8s-app=kube-proxy --tail=-1";
    /// The log of the process before the last restart.
    ProxyLogPrevious: "kube-proxy.previous.log", "kube-proxy's log before its last restart",
        "kubectl -n kube-system logs --previous POD";
    ProxyMetrics: "metrics.txt", "kube-proxy's metrics", "curl -s http://127.0.0.1:10249/metrics";
    ProxyHealthz: "healthz.txt", "kube-proxy's health", "curl -s -w '\\n%{http_code}' http://127.0.0.1:10256/healthz";
    ProxyLivez: "livez.txt", "kube-proxy's liveness", "curl -s -w '\\n%{http_code}' http://127.0.0.1:10256/livez";
    ProxyMode: "proxyMode.txt", "kube-proxy's mode", "curl -s http://127.0.0.1:10249/proxyMode";
    ApiVersion: "version.json", "the API server's version", "kubectl version -o json";
    Services: "services.json", "the Services", "kubectl get services -A -o json";
    EndpointSlices: "endpointslices.json", "the EndpointSlices", "kubectl get endpointslices -A -o json";
    Pods: "pods.json", "the Pods", "kubectl get pods -A -o json";
    Nodes: "nodes.json", "the Nodes", "kubectl get nodes -o json";
    DaemonSets: "daemonsets.json", "the DaemonSets", "kubectl -n kube-system get daemonsets -o json";
    Events: "events.json", "the Events", "kubectl -n kube-system get events -o json";
    /// A list of objects of several kinds, or a single object.
    Objects: "objects.json", "the cluster's objects", "";
    /// A watch stream, one event per line.
    Watch: "objects.watch.jsonl", "the cluster's objects", "";
}

impl Kind {
    /// Lists of one family's rules by iptables backend; the plain name is one of the two.
    pub const IPTABLES: [Self; 3] = [Self::IptablesSave, Self::IptablesNftSave, Self::IptablesLegacySave];
    pub const IP6TABLES: [Self; 3] = [Self::Ip6tablesSave, Self::Ip6tablesNftSave, Self::Ip6tablesLegacySave];
    /// Two forms of one list.
    pub const NFTABLES: [Self; 2] = [Self::NftRulesetJson, Self::NftRuleset];
    pub const IPVS: [Self; 2] = [Self::IpvsSave, Self::IpvsList];

    /// The kind whose file has this name.
    pub fn named(file_name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.file_name() == file_name)
    }

    /// Whether it belongs to one node, so that two files of the kind come from two nodes or two times.
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
