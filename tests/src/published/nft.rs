//! The rules of nftables mode (`syncProxyRules` in `pkg/proxy/nftables/proxier.go`): the Service's chains, and elements
//! of the maps that lead to them. kube-proxy's chain names contain hashes; these do not.

use std::net::SocketAddr;

use super::{Port, Published};
use crate::dataplane::Family;

/// The rules that kube-proxy writes for this Service, as commands to load after the whole ruleset.
pub fn changes(service: &Published) -> String {
    let mut chains = Vec::new();
    let mut elements = Vec::new();
    for port in &service.ports {
        match service.endpoint_of(port) {
            Some(endpoint) => served(service, port, endpoint, &mut chains, &mut elements),
            None => refused(service, port, &mut elements),
        }
    }
    elements.extend(service.cluster_ip.map(|ip| ("cluster-ips", ip.to_string())));
    let table = table(service);
    let mut changes = format!("table {table} {{\n{}}}\n", chains.concat());
    for (map, element) in elements {
        changes.extend(["add element ", table, " ", map, " { ", &element, " }\n"]);
    }
    changes
}

fn table(service: &Published) -> &'static str {
    if service.family == Family::V4 { "ip kube-proxy" } else { "ip6 kube-proxy" }
}

/// The name of a map or set, and the element to add.
type Element = (&'static str, String);

fn served(
    service: &Published,
    port: &Port,
    endpoint: SocketAddr,
    chains: &mut Vec<String>,
    elements: &mut Vec<Element>,
) {
    let (protocol, number) = (port.protocol(), port.number);
    let ip_word = if service.family == Family::V4 { "ip" } else { "ip6" };
    // A chain's name must not contain a colon.
    let at = format!("{}/{}", endpoint.ip().to_string().replace(':', "."), endpoint.port());
    let name = format!("LABLABLA-{}/{protocol}/{}", service.key(), port.name);
    let mut chain = |kind: &str, name: &str, rules: &[String]| {
        let rules = rules.join("\n\t\t");
        chains.push(format!("\tchain {kind}-{name} {{\n\t\t{rules}\n\t}}\n"));
    };
    let endpoint_chain = format!("{name}__{at}");
    chain(
        "endpoint",
        &endpoint_chain,
        &[
            format!("{ip_word} saddr {} jump mark-for-masquerade", endpoint.ip()),
            format!("meta l4proto {protocol} dnat to {endpoint}"),
        ],
    );
    let mut rules = Vec::new();
    if let Some(ip) = service.cluster_ip {
        rules.push(format!(
            "{ip_word} daddr {ip} {protocol} dport {number} {ip_word} saddr != {} jump mark-for-masquerade",
            service.pods()
        ));
        elements.push(("service-ips", format!("{ip} . {protocol} . {number} : goto service-{name}")));
    }
    rules.push(format!("numgen random mod 1 vmap {{ 0 : goto endpoint-{endpoint_chain} }}"));
    chain("service", &name, &rules);
    if service.is_reachable_from_outside() {
        let rules = ["jump mark-for-masquerade".to_owned(), format!("goto service-{name}")];
        chain("external", &name, &rules);
    }
    for (ip, _) in service.outer_addresses() {
        elements.push(("service-ips", format!("{ip} . {protocol} . {number} : goto external-{name}")));
    }
    if let Some(number) = port.node_port {
        elements.push(("service-nodeports", format!("{protocol} . {number} : goto external-{name}")));
    }
}

fn refused(service: &Published, port: &Port, elements: &mut Vec<Element>) {
    let (name, protocol) = (service.port_name(port), port.protocol());
    for ip in service.addresses() {
        let key = format!("{ip} . {protocol} . {}", port.number);
        elements.push(("no-endpoint-services", format!("{key} comment \"{name}\" : goto reject-chain")));
    }
    if let Some(number) = port.node_port {
        let key = format!("{protocol} . {number}");
        elements.push(("no-endpoint-nodeports", format!("{key} comment \"{name}\" : goto reject-chain")));
    }
}
