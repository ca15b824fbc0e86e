//! The node's facts as single values, for a comparison with another node.

use std::{collections::BTreeMap, net::SocketAddr};

use super::Facts;
use crate::{
    net::Family,
    node::{Presence, ProxyMode, sysctl::Sysctls},
    rules::{End, Origin, Probe, Writer, walk::Walker},
    time::Timestamp,
};

/// The most Service ports whose rules are part of the digest.
const MAX_DIGEST: usize = 5000;

impl Facts {
    /// The node's facts as single values, for a comparison with another node's.
    pub fn digest(&self) -> BTreeMap<String, String> {
        let mut facts = BTreeMap::new();
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                facts.insert(name.to_owned(), value);
            }
        };
        put("kube-proxy mode", self.node.mode.map(|mode| mode.to_string()));
        put("kube-proxy version", self.node.version.as_deref().map(str::to_owned));
        put("kube-proxy healthz", self.node.healthz.as_ref().map(|health| health.status.to_string()));
        let read = |mode| self.node.has_rules_of(mode) != Presence::Unknown;
        let chains = self.node.service_chains(Writer::is_iptables);
        put("rules: iptables chains of Services", read(ProxyMode::Iptables).then(|| chains.to_string()));
        let table = self.node.has_rules_of(ProxyMode::Nftables) == Presence::Present;
        put("rules: nftables table kube-proxy", read(ProxyMode::Nftables).then(|| table.to_string()));
        let servers = self.node.rules.servers.as_ref();
        put("rules: IPVS virtual servers", servers.map(|servers| servers.len().to_string()));
        if let Some(config) = &self.node.config {
            put("config: mode", Some(config.mode.clone().unwrap_or_default()));
            put("config: clusterCIDR", Some(config.cluster_cidrs.join(",")));
            put("config: nodePortAddresses", Some(config.node_port_addresses.join(",")));
        }
        let node = self.known_node().and_then(|node| self.history.as_ref()?.node(node, Timestamp::MAX));
        put("kubelet version", node.map(|node| node.kubelet_version.to_string()));
        for (path, value) in self.node.sysctls.iter().flat_map(Sysctls::iter) {
            // Values that change by themselves, or belong to one interface, cannot be compared between nodes.
            let own = path.ends_with("_count") || path.contains("/conf/") && !path.contains("/conf/all/");
            if !own {
                facts.insert(format!("sysctl: {}", path.replace('/', ".")), value.to_owned());
            }
        }
        self.digest_rules(&mut facts);
        facts
    }

    /// The destinations of a Pod's connections to each `ClusterIP`, in which nodes must not differ (catalogue C12).
    fn digest_rules(&self, facts: &mut BTreeMap<String, String>) {
        let Some(history) = &self.history else { return };
        if self.node.proxy_rules.any() != Presence::Present {
            return;
        }
        let walkers = Family::ALL
            .map(|family| (Walker::new(&self.node.rules, family), self.node.rules.local_traffic(family)));
        let ports = history.services().flat_map(|service| {
            service
                .cluster_ips
                .iter()
                .flat_map(move |ip| service.ports.iter().map(move |port| (service, *ip, port)))
        });
        for (service, ip, port) in ports.take(MAX_DIGEST) {
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
