//! A node made of texts, as a capture has them: what the rules of judgement ask is answered by a real snapshot.

use std::{
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
};

use viptrace::{
    cluster::model::Service,
    net::{Family, Protocol},
    node::{
        ProxyMode, Reason, RuleEffect, Snapshot,
        capture::{Capture, Kind},
    },
};

use crate::flow_support::{EP, addr, at};

/// The content of the lists of rules.
#[derive(Clone, Debug)]
pub(crate) enum Rules {
    Unread,
    /// Every list was read, and no rule of kube-proxy is in it.
    Nothing,
    /// Rules of another Service stand; those of the VIP's family were not read.
    OtherFamily,
    /// kube-proxy's rules stand, and do this with the VIPs.
    Vip(RuleEffect),
    /// They send connections to this address to the endpoint, and name no VIP.
    At(&'static str),
    /// The lists themselves.
    Lists(Vec<(Kind, String)>),
}

/// A node, as far as the tests change it.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) mode: Option<ProxyMode>,
    pub(crate) running: Option<bool>,
    /// The process that contains kube-proxy, if it runs.
    pub(crate) program: &'static str,
    pub(crate) version: &'static str,
    /// kube-proxy's configuration and metrics; empty if they were not read.
    pub(crate) config: &'static str,
    pub(crate) metrics: &'static str,
    /// When it was read, in milliseconds of the test's day.
    pub(crate) read_ms: Option<u64>,
    /// An interface of another dataplane.
    pub(crate) interface: Option<&'static str>,
    pub(crate) rules: Rules,
    pub(crate) own: Vec<IpAddr>,
    /// `entries, limit` of conntrack.
    pub(crate) conntrack: (u64, u64),
    /// The kernel has no IPVS.
    pub(crate) no_ipvs: bool,
    /// Further settings, as `sysctl -a` prints them.
    pub(crate) sysctls: &'static str,
    /// Its interfaces, as `ip -d -j addr` prints them, and routes, as `ip route` does.
    pub(crate) ways: Option<(String, &'static str)>,
}

/// Where VIPs of IPv6 lead.
const EP6: &str = "[fd00:10:244:1::7]:8080";
/// Another Service's VIP, and where it leads.
const OTHER: (&str, &str) = ("10.96.0.99:80", "10.244.9.9:8080");

impl Node {
    /// A node with kube-proxy in iptables mode whose rules forward every VIP.
    pub(crate) fn new() -> Self {
        Self {
            mode: Some(ProxyMode::Iptables),
            running: Some(true),
            program: "kube-proxy",
            version: "v1.33.1",
            config: "",
            metrics: "",
            read_ms: None,
            interface: None,
            rules: Rules::Vip(RuleEffect::Forwards),
            own: vec![addr("10.244.1.1:0").ip(), addr("192.168.1.2:0").ip()],
            conntrack: (1000, 131_072),
            no_ipvs: false,
            sysctls: "",
            ways: None,
        }
    }

    /// The node as it is read if its rules concern this Service.
    pub(crate) fn snapshot(&self, service: &Service) -> Snapshot {
        let vips = vips(service);
        let mut capture = Capture { taken: self.read_ms.map(at), ..Capture::default() };
        let mut put = |kind: Kind, text: String| capture.put(kind, kind.file_name(), text);
        // kube-proxy's own words are in its log: a port that answers would say that it runs.
        let mut log =
            format!("I1120 23:25:04.911600 1 server.go:1] \"Version info\" version=\"{}\"\n", self.version);
        if let Some(mode) = self.mode {
            writeln!(log, "I1120 23:25:04.911600 1 server.go:1] \"Using {mode} Proxier\"").unwrap();
        }
        put(Kind::ProxyLog, log);
        put(
            Kind::Process,
            match self.running {
                Some(true) => format!("{{\"complete\": true, \"program\": \"{}\"}}", self.program),
                Some(false) => "{\"complete\": true}".to_owned(),
                None => "{\"complete\": false}".to_owned(),
            },
        );
        for (kind, text) in [(Kind::ProxyConfig, self.config), (Kind::ProxyMetrics, self.metrics)] {
            if !text.is_empty() {
                put(kind, text.to_owned());
            }
        }
        if let Some(name) = self.interface {
            put(Kind::Interfaces, format!("[{{\"ifname\": \"{name}\"}}]"));
        }
        if let Some((interfaces, routes)) = &self.ways {
            put(Kind::Interfaces, interfaces.clone());
            put(Kind::Routes, (*routes).to_owned());
        }
        let (count, max) = self.conntrack;
        put(
            Kind::Sysctls,
            format!(
                "net.netfilter.nf_conntrack_count = {count}\nnet.netfilter.nf_conntrack_max = {max}\n{}",
                self.sysctls
            ),
        );
        let mut own = self.own.clone();
        if self.mode == Some(ProxyMode::Ipvs) {
            // As kube-ipvs0 has them; node ports are at the addresses that the nodes have.
            own.extend(vips.iter().map(|(vip, _)| vip.ip()).filter(|ip| !node_addresses().contains(ip)));
        }
        put(Kind::Addresses, own.iter().map(IpAddr::to_string).collect::<Vec<_>>().join("\n"));
        for (kind, text) in self.lists(&vips) {
            put(kind, text);
        }
        if self.no_ipvs {
            capture.miss(Kind::IpvsSave, Reason::NotInKernel { part: "IPVS".to_owned() });
        }
        Snapshot::read(&capture)
    }

    fn lists(&self, vips: &[(SocketAddr, Protocol)]) -> Vec<(Kind, String)> {
        let other = (addr(OTHER.0), Protocol::TCP, addr(OTHER.1), RuleEffect::Forwards);
        match &self.rules {
            Rules::Unread => Vec::new(),
            Rules::Nothing => vec![
                (Kind::IptablesSave, "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n".to_owned()),
                (Kind::Ip6tablesSave, "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n".to_owned()),
                (Kind::NftRuleset, String::new()),
                (Kind::IpvsSave, String::new()),
            ],
            Rules::OtherFamily => list(self.mode, Family::Ipv4, &[other]),
            Rules::At(address) => list(
                self.mode,
                Family::Ipv4,
                &[other, (addr(address), Protocol::TCP, addr(EP), RuleEffect::Forwards)],
            ),
            Rules::Vip(rule) => {
                let of = |family| {
                    let vips = vips.iter().filter(move |(vip, _)| Family::of(vip.ip()) == family);
                    let endpoint = if family == Family::Ipv4 { EP } else { EP6 };
                    vips.map(|(vip, protocol)| (*vip, *protocol, addr(endpoint), *rule)).collect::<Vec<_>>()
                };
                let v4 = [vec![other], of(Family::Ipv4)].concat();
                let mut lists = list(self.mode, Family::Ipv4, &v4);
                if !of(Family::Ipv6).is_empty() {
                    lists.extend(list(self.mode, Family::Ipv6, &of(Family::Ipv6)));
                }
                lists
            }
            Rules::Lists(lists) => lists.clone(),
        }
    }
}

fn node_addresses() -> [IpAddr; 2] {
    ["192.168.1.2:0", "192.168.1.3:0"].map(|node| addr(node).ip())
}

/// Every address and port of the Service; node ports on both nodes.
fn vips(service: &Service) -> Vec<(SocketAddr, Protocol)> {
    let addresses = [&service.cluster_ips, &service.external_ips, &service.load_balancer_ips];
    let addresses: Vec<IpAddr> = addresses.into_iter().flatten().copied().collect();
    let nodes = node_addresses();
    let at = |ips: &[IpAddr], port: u16, protocol| -> Vec<(SocketAddr, Protocol)> {
        ips.iter().map(|ip| (SocketAddr::new(*ip, port), protocol)).collect()
    };
    let of_port = service.ports.iter().flat_map(|port| {
        let on_nodes = port.node_port.map(|number| at(&nodes, number, port.protocol));
        [at(&addresses, port.port, port.protocol), on_nodes.unwrap_or_default()].concat()
    });
    of_port.collect()
}

pub(crate) type Entry = (SocketAddr, Protocol, SocketAddr, RuleEffect);

/// kube-proxy's rules in this mode for these VIPs.
pub(crate) fn list(mode: Option<ProxyMode>, family: Family, entries: &[Entry]) -> Vec<(Kind, String)> {
    match mode {
        Some(ProxyMode::Nftables) => vec![(Kind::NftRuleset, nftables(family, entries))],
        Some(ProxyMode::Ipvs) => vec![(Kind::IpvsSave, ipvs(entries))],
        Some(ProxyMode::Iptables) | None => {
            let kind = if family == Family::Ipv4 { Kind::IptablesSave } else { Kind::Ip6tablesSave };
            vec![(kind, iptables("KUBE-SVC-I5LIAMPLWKMBJ54B", entries))]
        }
    }
}

/// `tcp`, as the tools write it.
fn name(protocol: Protocol) -> String {
    protocol.to_string().to_ascii_lowercase()
}

/// An `iptables-save`. Chains of the Services after the first have numbers behind `chain`.
pub(crate) fn iptables(chain: &str, entries: &[Entry]) -> String {
    let mut nat = String::from(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:KUBE-SERVICES - [0:0]\n-A PREROUTING -j KUBE-SERVICES\n\
         -A OUTPUT -j KUBE-SERVICES\n",
    );
    let mut filter = String::from(
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n\
         :KUBE-EXTERNAL-SERVICES - [0:0]\n",
    );
    for hook in ["INPUT", "FORWARD", "OUTPUT"] {
        writeln!(filter, "-A {hook} -j KUBE-EXTERNAL-SERVICES").unwrap();
    }
    for (number, (vip, protocol, endpoint, rule)) in entries.iter().rev().enumerate() {
        let chain = if number == 0 { chain.to_owned() } else { format!("{chain}{number}") };
        let end = chain.replacen("SVC", "SEP", 1);
        let protocol = name(*protocol);
        let to_vip = format!("-d {} -p {protocol} -m {protocol} --dport {}", vip.ip(), vip.port());
        match rule {
            RuleEffect::Forwards => write!(
                nat,
                ":{chain} - [0:0]\n:{end} - [0:0]\n-A KUBE-SERVICES {to_vip} -j {chain}\n-A {chain} -j {end}\n\
                 -A {end} -p {protocol} -m {protocol} -j DNAT --to-destination {endpoint}\n"
            ),
            RuleEffect::Refuses => writeln!(
                filter,
                "-A KUBE-EXTERNAL-SERVICES {to_vip} -j REJECT --reject-with icmp-port-unreachable"
            ),
            RuleEffect::Drops => writeln!(filter, "-A KUBE-EXTERNAL-SERVICES {to_vip} -j DROP"),
            RuleEffect::Missing => Ok(()),
        }
        .unwrap();
    }
    format!("{nat}COMMIT\n{filter}COMMIT\n")
}

/// `nft list table` of kube-proxy's table.
pub(crate) fn nftables(family: Family, entries: &[Entry]) -> String {
    let (table, address) = match family {
        Family::Ipv4 => ("ip", "ipv4_addr"),
        Family::Ipv6 => ("ip6", "ipv6_addr"),
    };
    let (mut forwarded, mut refused, mut chains) = (Vec::new(), Vec::new(), String::new());
    for (vip, protocol, endpoint, rule) in entries {
        let (protocol, key) =
            (name(*protocol), format!("{} . {} . {}", vip.ip(), name(*protocol), vip.port()));
        match rule {
            RuleEffect::Forwards => {
                let chain =
                    format!("service-242WI43H-{}-{}", vip.ip().to_string().replace(':', "-"), vip.port());
                forwarded.push(format!("{key} : goto {chain}"));
                write!(chains, "\tchain {chain} {{\n\t\tmeta l4proto {protocol} dnat to {endpoint}\n\t}}\n")
                    .unwrap();
            }
            RuleEffect::Refuses => refused.push(format!("{key} : goto reject-chain")),
            RuleEffect::Drops => refused.push(format!("{key} : drop")),
            RuleEffect::Missing => {}
        }
    }
    let map = |name: &str, elements: &[String]| {
        let elements = if elements.is_empty() {
            String::new()
        } else {
            format!("\t\telements = {{ {} }}\n", elements.join(", "))
        };
        format!("\tmap {name} {{\n\t\ttype {address} . inet_proto . inet_service : verdict\n{elements}\t}}\n")
    };
    format!(
        "table {table} kube-proxy {{\n{}{}\
         \tchain filter-forward {{\n\t\ttype filter hook forward priority -110; policy accept;\n\
         \t\tct state new jump service-endpoints-check\n\t}}\n\
         \tchain nat-prerouting {{\n\t\ttype nat hook prerouting priority dstnat; policy accept;\n\t\tjump services\n\t}}\n\
         \tchain service-endpoints-check {{\n\t\tip daddr . meta l4proto . th dport vmap @no-endpoint-services\n\t}}\n\
         \tchain services {{\n\t\tip daddr . meta l4proto . th dport vmap @service-ips\n\t}}\n\
         \tchain reject-chain {{\n\t\treject\n\t}}\n{chains}}}\n",
        map("no-endpoint-services", &refused),
        map("service-ips", &forwarded),
    )
}

/// `ipvsadm -Sn`; a virtual server without real servers refuses.
fn ipvs(entries: &[Entry]) -> String {
    let mut text = String::new();
    for (vip, protocol, endpoint, rule) in entries {
        let option = if *protocol == Protocol::UDP { "-u" } else { "-t" };
        if *rule != RuleEffect::Missing {
            writeln!(text, "-A {option} {vip} -s rr").unwrap();
        }
        if *rule == RuleEffect::Forwards {
            writeln!(text, "-a {option} {vip} -r {endpoint} -m -w 1").unwrap();
        }
    }
    text
}

/// kube-proxy's rules of a Service port with `loadBalancerSourceRanges`, in nftables mode: only 198.51.100.0/24 reaches
/// this element of its map.
pub(crate) fn source_ranges(element: &str, port: &str) -> String {
    format!(
        "table ip kube-proxy {{
\tmap firewall-ips {{
\t\ttype ipv4_addr . inet_proto . inet_service : verdict
\t\telements = {{ {element} : goto firewall-F4VWTUNH-{port} }}
\t}}
\tchain filter-prerouting {{
\t\ttype filter hook prerouting priority dstnat - 10; policy accept;
\t\tct state new jump firewall-check
\t}}
\tchain firewall-check {{
\t\tip daddr . meta l4proto . th dport vmap @firewall-ips
\t}}
\tchain firewall-F4VWTUNH-{port} {{
\t\tip saddr != 198.51.100.0/24 drop
\t}}
}}
"
    )
}
