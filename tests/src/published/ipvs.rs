//! The state that kube-proxy writes for a Service in ipvs mode (`syncProxyRules` in `pkg/proxy/ipvs/proxier.go`):
//! virtual servers, their addresses on the node, and members of the sets that its rules name.

use std::net::{IpAddr, SocketAddr};

use super::{PODS, Port, Published};
use crate::{dataplane::Family, traffic::Transport};

/// Additions to a capture.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// For `ipvsadm -R`.
    pub virtual_servers: Vec<String>,
    /// For `ipset restore`.
    pub sets: Vec<String>,
    /// For kube-ipvs0.
    pub addresses: Vec<IpAddr>,
    /// Chains and rules for the `nat` table.
    pub rules: Vec<String>,
}

impl Additions {
    /// The state that kube-proxy writes for this Service on the node with this address.
    pub fn of(service: &Published, node: IpAddr) -> Self {
        let mut added = Self { addresses: service.addresses().collect(), ..Self::default() };
        let sets = prefix(service.family);
        for address in &added.addresses {
            added.sets.push(format!("add {sets}IPVS-IPS {address}"));
        }
        for port in &service.ports {
            added.port(service, port, node);
        }
        added
    }

    fn port(&mut self, service: &Published, port: &Port, node: IpAddr) {
        let (sets, protocol, number) = (prefix(service.family), port.protocol(), port.number);
        let endpoint = service.endpoint_of(port);
        let named = [
            ("CLUSTER-IP", service.cluster_ip),
            ("EXTERNAL-IP", service.external_ip),
            ("LOAD-BALANCER", service.load_balancer_ip),
        ];
        for (set, address) in named.into_iter().filter_map(|(set, address)| Some((set, address?))) {
            self.sets.push(format!("add {sets}{set} {address},{protocol}:{number}"));
            self.virtual_server(port.protocol, SocketAddr::new(address, number), endpoint);
        }
        if let Some(number) = port.node_port {
            let (set, member, directions, hashed) = match port.protocol {
                // A bitmap of ports does not hold the protocol, so each protocol has a set. SCTP has no bitmap
                // (kubernetes/kubernetes#71341).
                Transport::Sctp => (
                    "NODE-PORT-SCTP-HASH",
                    format!("{node},sctp:{number}"),
                    "dst,dst",
                    " with hash type 'hash ip:port'",
                ),
                Transport::Tcp => ("NODE-PORT-TCP", number.to_string(), "dst", ""),
                Transport::Udp => ("NODE-PORT-UDP", number.to_string(), "dst", ""),
            };
            self.sets.push(format!("add {sets}{set} {member}"));
            self.rules.push(format!(
                "-A KUBE-NODE-PORT -p {protocol} -m comment --comment \"Kubernetes nodeport {} port for masquerade \
                 purpose{hashed}\" -m set --match-set {sets}{set} {directions} -j KUBE-MARK-MASQ",
                port.protocol.as_str()
            ));
            self.virtual_server(port.protocol, SocketAddr::new(node, number), endpoint);
        }
        if let Some(endpoint) = endpoint {
            let (ip, port) = (endpoint.ip(), endpoint.port());
            self.sets.push(format!("add {sets}LOOP-BACK {ip},{protocol}:{port},{ip}"));
        }
    }

    fn virtual_server(&mut self, protocol: Transport, at: SocketAddr, endpoint: Option<SocketAddr>) {
        let kind = match protocol {
            Transport::Tcp => "-t",
            Transport::Udp => "-u",
            Transport::Sctp => "--sctp-service",
        };
        self.virtual_servers.push(format!("-A {kind} {at} -s rr"));
        let real = endpoint.map(|endpoint| format!("-a {kind} {at} -r {endpoint} -m -w 1"));
        self.virtual_servers.extend(real);
    }
}

/// The prefix of a family's set names.
const fn prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "KUBE-",
        Family::V6 => "KUBE-6-",
    }
}

/// The same rules for IPv6, with the IPv6 sets and without rules that name an IPv4 address.
pub fn rules_of_ipv6(ipv4: &str) -> String {
    let [pods4, pods6] = PODS;
    let mut rules = String::new();
    for line in ipv4.lines() {
        let line = line
            .replace("--match-set KUBE-", &format!("--match-set {}", prefix(Family::V6)))
            .replace(pods4, pods6)
            .replace("-s 127.0.0.0/8", "-s ::1/128")
            .replace("icmp-port-unreachable", "icmp6-port-unreachable")
            // A set's name has at most 31 characters.
            .replace("KUBE-6-LOAD-BALANCER-SOURCE-CIDR", "KUBE-6-LOAD-BALANCER-SOURCE-CID");
        if !line.contains("-s 203.0.113.") {
            rules.push_str(&line);
            rules.push('\n');
        }
    }
    rules
}
