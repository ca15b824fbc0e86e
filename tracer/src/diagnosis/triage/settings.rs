//! kube-proxy's configuration and the node's interfaces in the form that the audit needs.
//!
//! Owns kube-proxy's defaults. Must not judge.

use std::net::IpAddr;

use super::Facts;
use crate::{
    diagnosis::audit::{DetectLocal, NodePorts, Settings},
    net::{Cidr, parse_address},
    node::{ProxyMode, interfaces::IPVS_DEVICE, kube_proxy::config::Config},
    time::Timestamp,
};

/// kube-proxy's settings with its defaults.
pub(super) fn settings(config: &Config, facts: &Facts, node: &str, mode: ProxyMode) -> Settings {
    let ranges = |texts: &[String]| texts.iter().filter_map(|text| Cidr::parse(text)).collect::<Vec<_>>();
    let interface = |name: &Option<String>, rest: &str| {
        name.as_ref()
            .map_or(DetectLocal::Unknown, |name| DetectLocal::Interface(format!("{name}{rest}").into()))
    };
    let detect_local = match config.detect_local_mode.as_deref() {
        None | Some("ClusterCIDR") => DetectLocal::Ranges(ranges(&config.cluster_cidrs)),
        Some("NodeCIDR") => {
            let own = facts.history.as_ref().and_then(|history| history.node(node, Timestamp::MAX));
            // kube-proxy does not start before its Node has a range.
            let ranges = own.iter().flat_map(|node| &node.pod_cidrs).filter_map(|text| Cidr::parse(text));
            let ranges: Vec<_> = ranges.collect();
            if ranges.is_empty() { DetectLocal::Unknown } else { DetectLocal::Ranges(ranges) }
        }
        Some("BridgeInterface") => interface(&config.bridge_interface, ""),
        Some("InterfaceNamePrefix") => interface(&config.interface_name_prefix, "+"),
        Some(_) => DetectLocal::Unknown,
    };
    let node_ports = match config.node_port_addresses.as_slice() {
        [] if mode == ProxyMode::Nftables => NodePorts::Primary,
        [] => NodePorts::All,
        [only] if only == "primary" => NodePorts::Primary,
        several => NodePorts::Ranges(ranges(several)),
    };
    let bound = config.bind_address.as_deref().and_then(parse_address);
    Settings {
        detect_local,
        masquerade_all: config.masquerade_all.unwrap_or(false),
        node_ports,
        no_localhost_node_ports: config.localhost_node_ports == Some(false),
        bind_address: bound.filter(|ip| !ip.is_unspecified()),
        excluded: ranges(&config.ipvs_excluded_cidrs),
    }
}

/// The addresses of the interfaces that kube-proxy serves node ports at, if all were read.
pub(super) fn own_addresses(facts: &Facts) -> Option<Vec<IpAddr>> {
    let interfaces = facts.node.interfaces.as_ref()?;
    let listed = || interfaces.iter().filter(|interface| interface.name != IPVS_DEVICE);
    // `isValidForSet` in pkg/proxy/ipvs/netlink_linux.go.
    let serves = |ip: &IpAddr| {
        let link_local = matches!(ip, IpAddr::V6(ip) if ip.is_unicast_link_local());
        !ip.is_loopback() && !link_local
    };
    let addresses = listed().flat_map(|interface| &interface.addresses).map(|(ip, _)| *ip).filter(serves);
    listed().all(|interface| interface.addresses_known).then(|| addresses.collect())
}
