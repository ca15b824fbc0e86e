//! Step 5: MTUs that do not fit each other on this node (C33).
//!
//! Owns the comparison of the Pods' links, the tunnels of their traffic and the interface with the Node's address. A
//! difference proves no loss: the sender may learn the smaller size, so that each finding is a warning.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use super::{Facts, Finding, Level};
use crate::{
    class::{Class, Confidence, Severity},
    cluster::model::Node,
    net::{Cidr, Family},
    node::interfaces::{Interface, Interfaces},
    rules::walk::Devices as _,
    verdict::EvidenceType,
};

/// Open vSwitch and some drivers give a tunnel an MTU that limits nothing (`vport-vxlan`: 65000); the route or the Pod's
/// interface has the real one.
const MAX_REAL_MTU: u64 = 16_000;
/// The most addresses of Pods whose routes are looked up.
const MAX_ADDRESSES: usize = 1_000;
/// Calico's devices for `WireGuard` (`WireguardInterfaceName` and `WireguardInterfaceNameV6` of felix/config). It routes
/// marked packets to them through a table of its own, so that no route of the main table leads there.
const OF_CALICO: [&str; 2] = ["wireguard.cali", "wg-v6.cali"];

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(interfaces) = &facts.node.interfaces else { return };
    let Some((uplink, mtu)) = uplink(facts, interfaces) else { return };
    let elsewhere = pods_elsewhere(facts);
    let carries = |tunnel: &&Interface| carries_pods(facts, &elsewhere, tunnel);
    for tunnel in interfaces.iter().filter(|interface| is_tunnel(interface)).filter(carries) {
        let (Some(inner), Some(overhead)) = (tunnel.mtu, overhead(facts, &tunnel.kind)) else { continue };
        if inner + overhead > mtu {
            findings.push(too_large(tunnel, inner, overhead, uplink, mtu));
        }
        let pods: Vec<&Interface> = interfaces
            .iter()
            .filter(|link| is_pods_link(link) && link.mtu.is_some_and(|mtu| mtu > inner))
            .collect();
        if let Some(link) = pods.first() {
            findings.push(larger_pods(tunnel, inner, link, pods.len()));
        }
    }
}

/// The interface with the Node's own address, and its MTU: the tunnels send through it.
fn uplink<'i>(facts: &Facts, interfaces: &'i Interfaces) -> Option<(&'i Interface, u64)> {
    let node = facts.own_node()?;
    let has_address = |interface: &&Interface| {
        interface.addresses.iter().any(|(address, _)| node.addresses.contains(address))
    };
    let found = interfaces.iter().filter(|interface| !is_tunnel(interface)).find(has_address)?;
    Some((found, found.mtu?))
}

/// Cilium gives its tunnel device the uplink's MTU and sets the smaller one on the routes of the Pods.
fn is_tunnel(interface: &Interface) -> bool {
    interface.up
        && matches!(interface.kind.as_str(), "vxlan" | "geneve" | "ipip" | "gre" | "wireguard")
        && !interface.name.starts_with("cilium")
        && interface.mtu.is_some_and(|mtu| mtu <= MAX_REAL_MTU)
}

/// Whether packets to Pods of other nodes leave through the tunnel, which may be the host's own VPN. Without the routes a
/// `WireGuard` device counts as that, and the other kinds as those of the Pods' network.
fn carries_pods(facts: &Facts, elsewhere: &BTreeSet<IpAddr>, tunnel: &Interface) -> bool {
    if OF_CALICO.contains(&tunnel.name.as_str()) {
        return true;
    }
    match &facts.node.routes {
        Some(routes) if !elsewhere.is_empty() => {
            elsewhere.iter().any(|pod| routes.device_to(*pod) == Some(tunnel.name.as_str()))
        }
        _ => tunnel.kind != "wireguard",
    }
}

/// Addresses in the Pod ranges of the other nodes, and of one of each node's Pods: not every network plugin uses the
/// Node's range.
fn pods_elsewhere(facts: &Facts) -> BTreeSet<IpAddr> {
    let (Some(history), Some(own)) = (&facts.history, facts.own_node()) else { return BTreeSet::new() };
    let others = history.nodes().filter(|node| node.key != own.key);
    let ranges = others.flat_map(|node| &node.pod_cidrs).filter_map(|range| Some(Cidr::parse(range)?.base));
    let mut of_nodes: BTreeMap<&str, IpAddr> = BTreeMap::new();
    for pod in history.pods().filter(|pod| !pod.host_network) {
        if let (Some(node), Some(ip)) = (&pod.node, pod.ips.iter().next())
            && **node != *own.key.name
        {
            of_nodes.entry(node).or_insert(*ip);
        }
    }
    ranges.chain(of_nodes.into_values()).take(MAX_ADDRESSES).collect()
}

/// The bytes that the tunnel adds: the outer IP header and, by its kind, UDP, its own header and an inner Ethernet header
/// (`VXLAN_HEADROOM`, `GENEVE_BASE_HLEN`; `WireGuard` pads to 16 bytes and adds 32).
fn overhead(facts: &Facts, kind: &str) -> Option<u64> {
    let is_v6 = |node: &Node| node.addresses.iter().all(|address| Family::of(*address) == Family::Ipv6);
    let v6_only = facts.own_node().is_some_and(is_v6);
    let ip = if v6_only { 40 } else { 20 };
    Some(match kind {
        "vxlan" | "geneve" => ip + 8 + 8 + 14,
        "ipip" => ip,
        "gre" => ip + 4,
        "wireguard" => ip + 8 + 32,
        _ => return None,
    })
}

/// The node's end of a Pod's link. Docker's and libvirt's links have another bridge.
fn is_pods_link(interface: &Interface) -> bool {
    let name = interface.name.as_str();
    let routed = interface.master.is_none() && (name.starts_with("cali") || name.starts_with("veth"));
    let bridged =
        interface.master.as_deref().is_some_and(|master| master.starts_with("cni") || master == "cbr0");
    interface.up && interface.kind == "veth" && (routed || bridged)
}

fn too_large(tunnel: &Interface, inner: u64, overhead: u64, uplink: &Interface, outer: u64) -> Finding {
    Finding::new(
        Class::C33,
        format!(
            "packets of the tunnel {} do not fit into {}: {inner} + {overhead} bytes of overhead, {outer} are possible",
            tunnel.name, uplink.name
        ),
    )
    .severity(Severity::Medium)
    .level(Level::Warning)
    .confidence(Confidence::Medium)
    .node(None, format!("{} ({}) has MTU {inner}", tunnel.name, tunnel.kind))
    .node(None, format!("{}, which has the Node's address, has MTU {outer}", uplink.name))
    .against(EvidenceType::Node, None, "networks that pass fragments of the outer packets lose nothing")
    .unobserved("whether full-size packets to Pods on other nodes arrive: ping with -M do decides")
}

fn larger_pods(tunnel: &Interface, inner: u64, link: &Interface, links: usize) -> Finding {
    let mtu = link.mtu.unwrap_or_default();
    Finding::new(
        Class::C33,
        format!(
            "links of Pods have MTU {mtu}, the tunnel {} only {inner}: full-size packets to other nodes depend on ICMP",
            tunnel.name
        ),
    )
    .severity(Severity::Low)
    .level(Level::Warning)
    .confidence(Confidence::Low)
    .node(None, format!("{} and {} more links of Pods have MTU {mtu}", link.name, links.saturating_sub(1)))
    .node(None, format!("{} ({}) has MTU {inner}", tunnel.name, tunnel.kind))
    .against(EvidenceType::Node, None, "a route with a smaller MTU, or ICMP that arrives, lets the Pods learn the size")
    .unobserved("the routes in the Pods, which may have the smaller MTU")
}
