//! A Service that a scenario adds to the captured ones: its objects, and the rules that kube-proxy writes for it in
//! each mode. It produces their texts. Module `rules` loads rules into the kernel, and the scenario starts the servers.

mod ipvs;
mod nft;
mod xtables;

use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use crate::{dataplane::Family, traffic::Transport};

pub use ipvs::{Additions, rules_of_ipv6};
pub use nft::changes;
pub use xtables::{Additions as XtablesAdditions, additions as xtables_additions};

/// The Pod network of the captured clusters, as in kube-proxy's `clusterCIDR`.
const PODS: [&str; 2] = ["10.244.0.0/16", "fd00:10:244::/48"];

/// The Service `shop/NAME`, in one family.
#[derive(Clone, Debug)]
pub struct Published {
    pub name: String,
    /// `None` for a headless Service.
    pub cluster_ip: Option<IpAddr>,
    pub external_ip: Option<IpAddr>,
    pub load_balancer_ip: Option<IpAddr>,
    pub ports: Vec<Port>,
    /// The family of the Service and of its slice.
    pub family: Family,
    /// The only endpoint, if there is one.
    pub endpoint: Option<Member>,
    /// Whether a selector chooses the endpoints; otherwise the slice is written by hand.
    pub selects: bool,
}

/// One port of a Service.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub name: &'static str,
    pub protocol: Transport,
    pub number: u16,
    pub target: u16,
    pub node_port: Option<u16>,
}

/// An endpoint: an address, and its Pod if a Pod has the address.
#[derive(Clone, Copy, Debug)]
pub struct Member {
    pub address: IpAddr,
    /// `namespace/name` of a Pod on this node.
    pub pod: Option<&'static str>,
}

impl Port {
    /// The protocol as rules and sets write it.
    fn protocol(self) -> String {
        self.protocol.as_str().to_ascii_lowercase()
    }
}

impl Published {
    /// `namespace/name`, as in records.
    pub fn key(&self) -> String {
        format!("shop/{}", self.name)
    }

    /// `namespace/name:port`, as in kube-proxy's comments.
    fn port_name(&self, port: &Port) -> String {
        format!("{}:{}", self.key(), port.name)
    }

    fn endpoint_of(&self, port: &Port) -> Option<SocketAddr> {
        self.endpoint.map(|endpoint| SocketAddr::new(endpoint.address, port.target))
    }

    /// The addresses other than the cluster IP, with their names in kube-proxy's comments.
    fn outer_addresses(&self) -> impl Iterator<Item = (IpAddr, &'static str)> {
        let external = self.external_ip.map(|ip| (ip, "external IP"));
        external.into_iter().chain(self.load_balancer_ip.map(|ip| (ip, "loadbalancer IP")))
    }

    /// All addresses of the Service.
    fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.cluster_ip.into_iter().chain(self.outer_addresses().map(|(ip, _)| ip))
    }

    fn is_reachable_from_outside(&self) -> bool {
        self.outer_addresses().next().is_some() || self.ports.iter().any(|port| port.node_port.is_some())
    }

    fn pods(&self) -> &'static str {
        let [ipv4, ipv6] = PODS;
        if self.family == Family::V4 { ipv4 } else { ipv6 }
    }

    /// The Service and its `EndpointSlice`, in the order in which they must be applied.
    pub fn objects(&self) -> [Value; 2] {
        [self.service(), self.slice()]
    }

    fn service(&self) -> Value {
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|port| {
                let mut value = json!({"name": port.name, "protocol": port.protocol.as_str(), "port": port.number,
                    "targetPort": port.target});
                if let Some(node_port) = port.node_port {
                    value["nodePort"] = json!(node_port);
                }
                value
            })
            .collect();
        let kind = match (self.load_balancer_ip, self.ports.iter().any(|port| port.node_port.is_some())) {
            (Some(_), _) => "LoadBalancer",
            (None, true) => "NodePort",
            (None, false) => "ClusterIP",
        };
        let cluster_ip = self.cluster_ip.map_or_else(|| "None".to_owned(), |ip| ip.to_string());
        let mut spec = json!({"type": kind, "clusterIP": cluster_ip, "clusterIPs": [cluster_ip],
            "ipFamilies": [self.family.as_str()], "ipFamilyPolicy": "SingleStack", "ports": ports});
        if self.selects {
            spec["selector"] = json!({"app": self.name});
        }
        if let Some(ip) = self.external_ip {
            spec["externalIPs"] = json!([ip.to_string()]);
        }
        let ingress: Vec<Value> =
            self.load_balancer_ip.iter().map(|ip| json!({"ip": ip.to_string(), "ipMode": "VIP"})).collect();
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata(&self.name), "spec": spec,
            "status": {"loadBalancer": {"ingress": ingress}}})
    }

    fn slice(&self) -> Value {
        let endpoints: Vec<Value> = self
            .endpoint
            .iter()
            .map(|member| {
                let mut endpoint = json!({"addresses": [member.address.to_string()],
                    "conditions": {"ready": true, "serving": true, "terminating": false}});
                if let Some((namespace, name)) = member.pod.and_then(|pod| pod.split_once('/')) {
                    endpoint["nodeName"] = json!(crate::world::NODE);
                    endpoint["targetRef"] = json!({"kind": "Pod", "namespace": namespace, "name": name});
                }
                endpoint
            })
            .collect();
        let ports: Vec<Value> = self
            .ports
            .iter()
            .map(|port| json!({"name": port.name, "protocol": port.protocol.as_str(), "port": port.target}))
            .collect();
        let writer = if self.selects { "endpointslice-controller.k8s.io" } else { "staff" };
        let mut metadata = metadata(&format!("{}-x", self.name));
        metadata["labels"] = json!({"kubernetes.io/service-name": self.name,
            "endpointslice.kubernetes.io/managed-by": writer});
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata,
            "addressType": self.family.as_str(), "endpoints": endpoints, "ports": ports})
    }
}

fn metadata(name: &str) -> Value {
    json!({"namespace": "shop", "name": name, "uid": format!("uid-of-{name}"), "resourceVersion": "1",
        "creationTimestamp": "2025-01-01T00:00:00Z"})
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// `shop/api` of the captured cluster, without its load balancer: source ranges would change the rules.
    fn api() -> Published {
        Published {
            name: "api".to_owned(),
            cluster_ip: Some([10, 96, 10, 50].into()),
            external_ip: Some([203, 0, 113, 50].into()),
            load_balancer_ip: None,
            ports: vec![Port {
                name: "https",
                protocol: Transport::Tcp,
                number: 443,
                target: 8443,
                node_port: Some(30_443),
            }],
            family: Family::V4,
            endpoint: Some(Member { address: [10, 244, 1, 41].into(), pod: Some("shop/api-1") }),
            selects: true,
        }
    }

    /// The rules that kube-proxy wrote, without counters.
    fn captured(mode: &str, file: &str) -> Vec<String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/kube-proxy/worker-1");
        let text = fs::read_to_string(folder.join(mode).join(file)).unwrap();
        text.lines()
            .map(|line| line.split_once("] -A").map_or(line.to_owned(), |(_, rule)| format!("-A{rule}")))
            .collect()
    }

    /// Removes the hashes from names: the `length` characters after each of these words.
    fn unhashed(line: &str, words: &[&str], length: usize) -> String {
        let mut plain = line.to_owned();
        for word in words {
            for (at, _) in line.match_indices(word) {
                let start = at + word.len();
                plain.replace_range(start..start + length, &"#".repeat(length));
            }
        }
        plain.trim().to_owned()
    }

    #[test]
    fn iptables_rules_equal_those_of_kube_proxy() {
        let plain = |line: &String| unhashed(line, &["KUBE-SVC-", "KUBE-SEP-", "KUBE-EXT-"], 16);
        let written: Vec<String> = captured("iptables", "iptables-save.txt").iter().map(plain).collect();
        let added = xtables_additions(&api());
        assert_eq!((added.nat.len(), added.filter.len()), (12, 0));
        for line in added.nat.iter().map(plain) {
            assert!(written.contains(&line), "{line}");
        }
    }

    #[test]
    fn nftables_rules_equal_those_of_kube_proxy() {
        let words = ["service-", "endpoint-", "external-"];
        // Maps have names that begin like those of chains.
        let plain = |line: &str| {
            let line = line.replace("service-ips", "ips").replace("service-nodeports", "nodeports");
            unhashed(&line, &words, 8)
        };
        let written: Vec<String> = captured("nftables", "nft-ruleset.txt")
            .iter()
            .filter(|line| {
                line.contains("api/tcp") || line.contains("10.244.1.41") || line.contains("10.96.10.50")
            })
            .map(|line| plain(line))
            .collect();
        let changes = changes(&api());
        let (chains, elements) = changes.split_once("\n}\n").unwrap();
        let common = ["}", "jump mark-for-masquerade"];
        for line in chains.lines().skip(1).map(plain).filter(|line| !common.contains(&line.as_str())) {
            assert!(written.contains(&line), "{line}");
        }
        for element in elements.lines().map(plain) {
            let (_, element) = element.split_once("{ ").unwrap();
            let element = element.trim_end_matches(" }");
            let is_there = written.iter().any(|line| line.contains(element));
            let is_a_set_s = element == "10.96.10.50";
            assert!(is_there || is_a_set_s, "{element}");
        }
    }

    #[test]
    fn ipvs_state_equals_that_of_kube_proxy() {
        let added = Additions::of(&api(), [192, 0, 2, 11].into());
        let parts = [
            (&added.sets, "ipset-save.txt", 6),
            (&added.virtual_servers, "ipvsadm-save.txt", 6),
            (&added.rules, "iptables-save.txt", 1),
        ];
        for (lines, file, count) in parts {
            assert_eq!(lines.len(), count, "{lines:?}");
            let written = captured("ipvs", file);
            for line in lines {
                assert!(written.contains(line), "{line}");
            }
        }
    }

    #[test]
    fn the_other_family_has_the_same_rules_over_its_own_sets() {
        let ipv4 = captured("ipvs", "iptables-save.txt").join("\n");
        let ipv6 = rules_of_ipv6(&ipv4);
        assert!(!ipv6.contains("10.244.") && !ipv6.contains("--match-set KUBE-C"), "{ipv6}");
        let sets = captured("ipvs", "ipset-save.txt");
        for name in ipv6.lines().filter_map(|line| line.split("--match-set ").nth(1)?.split(' ').next()) {
            let create = format!("create {name} ");
            assert!(sets.iter().any(|line| line.starts_with(&create)), "{name}");
        }
    }
}
