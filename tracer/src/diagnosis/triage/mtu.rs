//! Step 5: MTUs that do not fit each other on this node (C33).
//!
//! Owns the comparison of the Pods' links, the tunnels and the interface with the Node's address. A difference proves no
//! loss: the sender may learn the smaller size, so that each finding is a warning.

use super::{Facts, Finding, Level};
use crate::{
    class::{Class, Confidence, Severity},
    cluster::model::Node,
    net::Family,
    node::interfaces::{Interface, Interfaces},
    verdict::EvidenceType,
};

/// Open vSwitch and some drivers give a tunnel an MTU that limits nothing (`vport-vxlan`: 65000); the route or the Pod's
/// interface has the real one.
const MAX_REAL_MTU: u64 = 16_000;

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(interfaces) = &facts.node.interfaces else { return };
    let Some((uplink, mtu)) = uplink(facts, interfaces) else { return };
    for tunnel in interfaces.iter().filter(|interface| is_tunnel(interface)) {
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
