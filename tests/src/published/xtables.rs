//! The rules of iptables mode (`syncProxyRules` in `pkg/proxy/iptables/proxier.go`). kube-proxy's chain names are
//! hashes; these are not.

use std::net::SocketAddr;

use super::{Port, Published};
use crate::dataplane::Family;

/// Lines for two tables of one family's dump.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    pub nat: Vec<String>,
    pub filter: Vec<String>,
}

/// The rules that kube-proxy writes for this Service.
pub fn additions(service: &Published) -> Additions {
    let mut added = Additions::default();
    for port in &service.ports {
        match service.endpoint_of(port) {
            Some(endpoint) => served(service, port, endpoint, &mut added.nat),
            None => refused(service, port, &mut added.filter),
        }
    }
    added
}

/// Sixteen characters, the length of kube-proxy's hashes in base 32.
fn hash(service: &Published, port: &Port) -> String {
    let text = format!("{}{}", service.name, port.protocol()).to_ascii_uppercase();
    format!("{text:A<16.16}")
}

fn served(service: &Published, port: &Port, endpoint: SocketAddr, nat: &mut Vec<String>) {
    let (name, hash, protocol) = (service.port_name(port), hash(service, port), port.protocol());
    let prefix = service.family.host_prefix();
    let to_port = |number: u16| format!("-m {protocol} --dport {number}");
    let [svc, sep, ext] = ["SVC", "SEP", "EXT"].map(|kind| format!("KUBE-{kind}-{hash}"));
    nat.extend([format!(":{svc} - [0:0]"), format!(":{sep} - [0:0]")]);
    if service.is_reachable_from_outside() {
        nat.push(format!(":{ext} - [0:0]"));
        nat.push(format!(
            "-A {ext} -m comment --comment \"masquerade traffic for {name} external destinations\" -j KUBE-MARK-MASQ"
        ));
        nat.push(format!("-A {ext} -j {svc}"));
    }
    for (ip, what) in service.outer_addresses() {
        let matched = format!("-d {ip}/{prefix} -p {protocol} -m comment --comment \"{name} {what}\"");
        nat.push(format!("-A KUBE-SERVICES {matched} {} -j {ext}", to_port(port.number)));
    }
    if let Some(number) = port.node_port {
        let matched = format!("-p {protocol} -m comment --comment \"{name}\"");
        nat.push(format!("-A KUBE-NODEPORTS {matched} {} -j {ext}", to_port(number)));
    }
    if let Some(ip) = service.cluster_ip {
        let matched = format!(
            "-d {ip}/{prefix} -p {protocol} -m comment --comment \"{name} cluster IP\" {}",
            to_port(port.number)
        );
        nat.push(format!("-A KUBE-SERVICES {matched} -j {svc}"));
        nat.push(format!("-A {svc} ! -s {} {matched} -j KUBE-MARK-MASQ", service.pods()));
    }
    nat.push(format!("-A {svc} -m comment --comment \"{name} -> {endpoint}\" -j {sep}"));
    nat.push(format!(
        "-A {sep} -s {}/{prefix} -m comment --comment \"{name}\" -j KUBE-MARK-MASQ",
        endpoint.ip()
    ));
    nat.push(format!(
        "-A {sep} -p {protocol} -m comment --comment \"{name}\" -m {protocol} -j DNAT --to-destination {endpoint}"
    ));
}

fn refused(service: &Published, port: &Port, filter: &mut Vec<String>) {
    let (name, protocol) = (service.port_name(port), port.protocol());
    let reject = match service.family {
        Family::V4 => "icmp-port-unreachable",
        Family::V6 => "icmp6-port-unreachable",
    };
    let comment = format!("-m comment --comment \"{name} has no endpoints\"");
    let refusal = |number: u16| format!("-m {protocol} --dport {number} -j REJECT --reject-with {reject}");
    let prefix = service.family.host_prefix();
    if let Some(ip) = service.cluster_ip {
        let refusal = refusal(port.number);
        filter.push(format!("-A KUBE-SERVICES -d {ip}/{prefix} -p {protocol} {comment} {refusal}"));
    }
    for (ip, _) in service.outer_addresses() {
        let refusal = refusal(port.number);
        filter.push(format!("-A KUBE-EXTERNAL-SERVICES -d {ip}/{prefix} -p {protocol} {comment} {refusal}"));
    }
    if let Some(number) = port.node_port {
        let refusal = refusal(number);
        filter.push(format!(
            "-A KUBE-EXTERNAL-SERVICES -p {protocol} {comment} -m addrtype --dst-type LOCAL {refusal}"
        ));
    }
}
