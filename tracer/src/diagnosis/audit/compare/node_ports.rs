//! The addresses at which kube-proxy serves node ports.

use std::{collections::BTreeSet, net::IpAddr};

use crate::{
    diagnosis::audit::{Context, Expected, NodePorts},
    net::Family,
    node::ProxyMode,
    rules::Ruleset,
};

/// The addresses at which node ports are tried: where one rule serves all of the node's addresses, one of them;
/// otherwise each.
pub(super) fn addresses(
    expected: &Expected,
    rules: &Ruleset,
    context: &Context,
    family: Family,
) -> Vec<IpAddr> {
    let own = own_addresses(expected, context, family);
    let is_captured = context.own_addresses.as_ref().is_some_and(|all| own.iter().all(|ip| all.contains(ip)));
    let one = || own.first().copied().into_iter().collect::<Vec<_>>();
    let all = || match context.mode {
        // IPVS has a server for each address (`GetAllLocalAddressesExcept` in pkg/proxy/ipvs/netlink_linux.go).
        ProxyMode::Ipvs if is_captured => own.clone(),
        ProxyMode::Ipvs => {
            let mut addresses = one();
            addresses.extend(servers(expected, rules, family).iter().filter(|ip| !own.starts_with(&[**ip])));
            addresses
        }
        ProxyMode::Iptables | ProxyMode::Nftables => one(),
    };
    let Some(settings) = &context.settings else {
        // The rules must show the setting.
        return match (context.mode, rules.node_port_addresses(family)) {
            (ProxyMode::Ipvs, _) => {
                let servers = servers(expected, rules, family);
                if servers.is_empty() { one() } else { servers.into_iter().collect() }
            }
            (_, Some(restricted)) => restricted.into_iter().filter(|ip| !ip.is_loopback()).collect(),
            (_, None) => one(),
        };
    };
    match &settings.node_ports {
        NodePorts::All => all(),
        NodePorts::Primary => {
            let primary = context.node_ip(&expected.node_addresses, family).filter(|ip| !ip.is_loopback());
            primary.map_or_else(all, |ip| vec![ip])
        }
        NodePorts::Ranges(_) if !context.restricts_node_ports(family) => all(),
        NodePorts::Ranges(ranges) => {
            own.iter().copied().filter(|ip| ranges.iter().any(|cidr| cidr.contains(*ip))).collect()
        }
    }
}

/// The node's addresses: those of the Node object, and those of the interfaces. An address of the Node that is on no
/// interface (the external address of a cloud's machine) is not the kernel's.
fn own_addresses(expected: &Expected, context: &Context, family: Family) -> Vec<IpAddr> {
    let of_family = |ip: &IpAddr| Family::of(*ip) == family;
    let listed = expected.node_addresses.iter().copied().filter(of_family).collect::<Vec<_>>();
    let Some(captured) = &context.own_addresses else { return listed };
    let (mut own, elsewhere): (Vec<_>, Vec<_>) = listed.iter().partition(|ip| captured.contains(ip));
    // Interfaces that have none of the Node's addresses are those of another network namespace.
    if own.is_empty() && !elsewhere.is_empty() {
        return listed;
    }
    let others = captured.iter().copied().filter(of_family).filter(|ip| !own.contains(ip));
    let others = others.collect::<BTreeSet<_>>();
    own.extend(others);
    own
}

/// The addresses of the node at which IPVS serves at least one node port.
fn servers(expected: &Expected, rules: &Ruleset, family: Family) -> BTreeSet<IpAddr> {
    let frontends = || expected.ports.iter().flat_map(|port| &port.frontends).map(|known| known.frontend);
    let addresses = frontends().filter_map(|frontend| frontend.address).collect::<BTreeSet<_>>();
    let ports = frontends().filter(|frontend| frontend.address.is_none());
    let ports = ports.map(|frontend| (frontend.protocol, frontend.port)).collect::<BTreeSet<_>>();
    let servers = rules.servers.iter().flatten();
    let servers = servers.filter(|server| ports.contains(&(server.protocol, server.address.port())));
    let found = servers.map(|server| server.address.ip());
    found.filter(|ip| Family::of(*ip) == family && !addresses.contains(ip)).collect()
}
