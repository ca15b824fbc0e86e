//! Step 5: the kernel settings on the packet's path (K11): C14, C15, C26 (localhost), C31, C32.
//!
//! Judges a setting only if something on this node depends on it.

use std::{collections::BTreeSet, net::IpAddr, time::Duration};

use super::{Facts, Finding, Level, Step};
use crate::{
    class::{Action, Class, Confidence, Severity, action},
    net::Cidr,
    node::{
        ProxyMode,
        interfaces::{Interface, Interfaces},
        sysctl::Sysctls,
    },
    text::{count, word},
    verdict::EvidenceType,
};

/// Keepalive of two hours (the kernel's `tcp_keepalive_time`) is too late for a shorter timeout.
const LONG_IDLE: Duration = Duration::from_hours(2);

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(sysctls) = &facts.node.sysctls else { return };
    forwarding(facts, sysctls, findings);
    bridges(facts, sysctls, findings);
    reverse_path(facts, sysctls, findings);
    localhost(facts, sysctls, findings);
    ipvs(facts, sysctls, findings);
}

/// C32: without forwarding a Pod reaches only endpoints that are processes of its own node.
fn forwarding(facts: &Facts, sysctls: &Sysctls, findings: &mut Vec<Finding>) {
    // Which families the cluster has is not known without its Services: IPv4 is assumed.
    let has_services = |v6: bool| {
        facts.history.as_ref().map_or(!v6, |history| {
            let mut addresses = history.services().flat_map(|service| &service.cluster_ips).peekable();
            addresses.peek().is_none() && !v6 || addresses.any(|ip| ip.is_ipv6() == v6)
        })
    };
    for (path, v6, family) in
        [("net/ipv4/ip_forward", false, "IPv4"), ("net/ipv6/conf/all/forwarding", true, "IPv6")]
    {
        if sysctls.number(path) != Some(0) || !has_services(v6) {
            continue;
        }
        let name = path.replace('/', ".");
        findings.push(
            Finding::new(
                Class::C32,
                format!(
                    "{name} is 0: this node forwards no {family} packet, so no Pod on it reaches a Service"
                ),
            )
            .severity(Severity::Critical)
            .node(None, format!("{name} = 0"))
            .now(&[action::FORWARD])
            .fill("SETTING", name.clone()),
        );
    }
}

/// The bridges of the Pods: with an address in the node's Pod range, or a Pod's gateway.
fn pod_bridges<'a>(facts: &'a Facts, interfaces: &'a Interfaces) -> Vec<&'a Interface> {
    let Some(history) = &facts.history else { return Vec::new() };
    let node = facts.own_node();
    let ranges: Vec<Cidr> =
        node.iter().flat_map(|node| &node.pod_cidrs).filter_map(|range| Cidr::parse(range)).collect();
    let local = |pod: &crate::cluster::model::Pod| {
        pod.node.is_some() && pod.node.as_deref() == facts.node_name.as_deref() && !pod.host_network
    };
    let pods: BTreeSet<IpAddr> =
        history.pods().filter(|pod| local(pod)).flat_map(|pod| pod.ips.iter().copied()).collect();
    let holds = |(address, prefix): &(IpAddr, u8)| {
        let subnet = Cidr { base: *address, prefix: *prefix };
        // A prefix of a full address is not a subnet.
        let narrow = if address.is_ipv4() { 32 } else { 128 };
        ranges.iter().any(|range| range.contains(*address))
            || *prefix < narrow && pods.iter().any(|pod| subnet.contains(*pod))
    };
    let is_bridge = |interface: &&Interface| {
        interface.kind == "bridge" || interfaces.ports(&interface.name).next().is_some()
    };
    interfaces.iter().filter(is_bridge).filter(|interface| interface.addresses.iter().any(holds)).collect()
}

/// C31: the `bridge-nf-call` settings and hairpin mode of the Pods' bridges.
fn bridges(facts: &Facts, sysctls: &Sysctls, findings: &mut Vec<Finding>) {
    let Some(interfaces) = &facts.node.interfaces else { return };
    let bridges = pod_bridges(facts, interfaces);
    for bridge in bridges {
        let ports: Vec<&Interface> = interfaces.ports(&bridge.name).collect();
        for (setting, v6) in [("bridge-nf-call-iptables", false), ("bridge-nf-call-ip6tables", true)] {
            let is_of_pods = |(address, _): &(IpAddr, u8)| match address {
                IpAddr::V4(_) => !v6,
                IpAddr::V6(ip) => v6 && !ip.is_unicast_link_local(),
            };
            if !bridge.addresses.iter().any(is_of_pods) {
                continue;
            }
            bridged(facts, sysctls, bridge, ports.len(), setting, findings);
        }
        let without: Vec<&str> =
            ports.iter().filter(|port| port.hairpin == Some(false)).map(|port| port.name.as_str()).collect();
        if !without.is_empty() && !bridge.promiscuous {
            let shown = without.iter().take(5).copied().collect::<Vec<_>>().join(", ");
            findings.push(
                Finding::new(
                    Class::C31,
                    format!(
                        "{} of {} ports of bridge {} have no hairpin mode: a Pod there cannot reach itself \
                         through its own Service",
                        without.len(),
                        ports.len(),
                        bridge.name
                    ),
                )
                .severity(Severity::Low)
                .level(Level::Warning)
                .node(None, format!("hairpin off, bridge not promiscuous: {shown}"))
                .against(EvidenceType::Node, None, "only Pods that connect to their own Service are affected")
                .now(&[action::SET_HAIRPIN_MODE])
                .fill("PORT", word(without.first().unwrap_or(&"PORT"))),
            );
        }
    }
}

fn bridged(
    facts: &Facts,
    sysctls: &Sysctls,
    bridge: &Interface,
    ports: usize,
    setting: &str,
    findings: &mut Vec<Finding>,
) {
    let value = sysctls.number(&format!("net/bridge/{setting}"));
    let absent = value.is_none() && !sysctls.has_folder("net/bridge");
    // If the settings are absent, br_netfilter is not loaded, unless a capture left them out.
    let not_loaded = absent
        && facts.node.modules.as_ref().is_some_and(|modules| modules.has("br_netfilter") == Some(false));
    if value != Some(0) && !not_loaded || ports == 0 {
        return;
    }
    let how = if not_loaded {
        "br_netfilter is not loaded".to_owned()
    } else {
        format!("net.bridge.{setting} is 0")
    };
    findings.push(
        Finding::new(
            Class::C31,
            format!(
                "{how}: between Pods on bridge {} answers of a Service bypass NAT and are reset",
                bridge.name
            ),
        )
        .severity(Severity::High)
        .node(None, how.clone())
        .node(None, format!("bridge {} has {} and the Pods' addresses", bridge.name, count(ports, "port")))
        .against(EvidenceType::Node, None, "only client and endpoint on this same node are affected")
        .now(&[action::FILTER_BRIDGED])
        .fill("SETTING", format!("net.bridge.{setting}")),
    );
}

/// C32: strict reverse path filters drop packets that arrive on another interface than the route back uses.
fn reverse_path(facts: &Facts, sysctls: &Sysctls, findings: &mut Vec<Finding>) {
    let (before, after) = facts.node.rp_filter_drops;
    let grew = before.zip(after).map_or(0, |(before, after)| after.saturating_sub(before));
    let all = sysctls.number("net/ipv4/conf/all/rp_filter").unwrap_or(0);
    // The larger of the two values applies (Documentation/networking/ip-sysctl.rst).
    let strict =
        |name: &str| sysctls.number(&format!("net/ipv4/conf/{name}/rp_filter")).unwrap_or(0).max(all) == 1;
    // Tunnels and the host's ends of Pods' links have full addresses (/32) or none; bridges and dummies lead inside.
    let leads_inside = |interface: &Interface| {
        interface.master.is_some()
            || matches!(interface.kind.as_str(), "bridge" | "dummy")
            || interface.name.starts_with("cali")
    };
    let reaches_out = |interface: &&Interface| {
        let subnet =
            |(address, prefix): &(IpAddr, u8)| address.is_ipv4() && !address.is_loopback() && *prefix < 32;
        interface.up
            && interface.name != "lo"
            && !leads_inside(interface)
            && interface.addresses.iter().any(subnet)
    };
    let out: Vec<&Interface> =
        facts.node.interfaces.iter().flat_map(Interfaces::iter).filter(reaches_out).collect();
    let filtered: Vec<&str> = out
        .iter()
        .filter(|interface| strict(&interface.name))
        .map(|interface| interface.name.as_str())
        .collect();
    if grew > 0 {
        let strict_on =
            if filtered.is_empty() { "no outside interface".to_owned() } else { filtered.join(", ") };
        let finding = Finding::new(
            Class::C32,
            format!("the reverse path filter drops packets now: {grew} between two readings"),
        )
        .node(None, format!("TcpExtIPReversePathFilter grew by {grew}"))
        .node(None, format!("net.ipv4.conf.all.rp_filter = {all}; strict on: {strict_on}"))
        .confidence(Confidence::Medium)
        .unobserved("whose packets: a trace names the flows that are dropped with IP_RPFILTER");
        // On one interface no answer takes another way: the packets are strays with a wrong source.
        let asymmetric = out.len() > 1 && !filtered.is_empty();
        findings.push(if asymmetric {
            finding
        } else {
            finding.level(Level::Warning).severity(Severity::Low).now(&[action::WATCH_REVERSE_PATH])
        });
        return;
    }
    if out.len() < 2 || filtered.is_empty() {
        return;
    }
    findings.push(
        Finding::new(
            Class::C32,
            format!(
                "strict reverse path filtering on a node with {} outside interfaces: answers that \
                 leave through another one are dropped",
                out.len()
            ),
        )
        .severity(Severity::Low)
        .level(Level::Warning)
        .confidence(Confidence::Low)
        .node(None, format!("rp_filter is 1 in effect on {}", filtered.join(", ")))
        .against(EvidenceType::Node, None, "with symmetric routes nothing is dropped")
        .now(&[action::WATCH_REVERSE_PATH]),
    );
}

/// C26: node ports on 127.0.0.1 exist only in iptables mode, and need `route_localnet`.
fn localhost(facts: &Facts, sysctls: &Sysctls, findings: &mut Vec<Finding>) {
    let ports = facts.history.as_ref().is_some_and(|history| {
        history.services().any(|service| service.ports.iter().any(|port| port.node_port.is_some()))
    });
    let Some(config) = facts.node.config.as_ref() else { return };
    let wanted = config.localhost_node_ports.unwrap_or(true) && config.node_port_addresses.is_empty();
    if facts.node.mode != Some(ProxyMode::Iptables)
        || !ports
        || !wanted
        || sysctls.number("net/ipv4/conf/all/route_localnet") != Some(0)
        || super::sync::may_lack_settings(facts)
    {
        return;
    }
    findings.push(
        Finding::new(
            Class::C26,
            "net.ipv4.conf.all.route_localnet is 0: node ports do not answer on 127.0.0.1",
        )
        .level(Level::Warning)
        .node(None, "net.ipv4.conf.all.route_localnet = 0")
        .node(
            None,
            "kube-proxy is in iptables mode with localhostNodePorts on, and sets it to 1 when it starts",
        )
        .now(&[action::SET_ROUTE_LOCALNET]),
    );
}

/// The kernel settings that IPVS mode needs and kube-proxy sets when it starts.
fn ipvs(facts: &Facts, sysctls: &Sysctls, findings: &mut Vec<Finding>) {
    if facts.node.mode != Some(ProxyMode::Ipvs) {
        return;
    }
    let mut unset = |path: &str, class: Class, level: Level, effect: &str, action: Action| {
        let name = path.replace('/', ".");
        if sysctls.number(path) == Some(0) && !super::sync::may_lack_settings(facts) {
            findings.push(
                Finding::new(class, format!("{name} is 0: {effect}"))
                    .level(level)
                    .node(None, format!("{name} = 0; kube-proxy sets it to 1 when it starts"))
                    .now(&[action])
                    .fill("SETTING", name),
            );
        }
    };
    let effect = "IPVS keeps no conntrack entries: masquerading of its connections fails";
    unset("net/ipv4/vs/conntrack", Class::K11, Level::Fault, effect, action::SET_TO_1);
    let effect = "connections to removed endpoints are dropped silently instead of being reset";
    unset("net/ipv4/vs/expire_nodest_conn", Class::C13, Level::Warning, effect, action::SET_EXPIRE_NODEST);
    port_reuse(sysctls, findings);
    idle_timeout(facts, findings);
    for module in super::proxy::missing_ipvs_modules(facts) {
        if !findings.iter().any(|finding| finding.class == Class::C11) {
            findings.push(
                Finding::new(
                    Class::C11,
                    format!(
                        "kube-proxy is in ipvs mode and the module {module} is neither loaded nor built in"
                    ),
                )
                .severity(Severity::High)
                .step(Step::KubeProxy)
                .node(None, format!("{module} is in neither list of modules"))
                .now(&[action::LOAD_MODULE])
                .fill("MODULE", word(&module)),
            );
        }
    }
}

/// Kernels from this one on reschedule a reused port without a delay (d752c3645717, "ipvs: allow rescheduling of new
/// connections when port reuse is detected"; kube-proxy's `connReuseFixedKernelVersion`).
const REUSE_FIXED: (u32, u32) = (5, 9);

/// C14: `conn_reuse_mode` decides what happens to a connection from a port that an old entry still has. kube-proxy sets it
/// to 0 before 5.9 and leaves it alone from then on (pkg/proxy/ipvs/proxier.go).
fn port_reuse(sysctls: &Sysctls, findings: &mut Vec<Finding>) {
    let Some(mode) = sysctls.number("net/ipv4/vs/conn_reuse_mode") else { return };
    let Some(release) = sysctls.get("kernel/osrelease") else { return };
    let Some(kernel) = kernel_version(release) else { return };
    let conntrack = sysctls.number("net/ipv4/vs/conntrack") != Some(0);
    let effect = if mode != 0 && kernel < REUSE_FIXED && conntrack {
        "connections from a reused port begin a second late"
    } else if mode == 0 && kernel >= REUSE_FIXED {
        "connections from a reused port go to the endpoint of the old connection, also if it has left"
    } else {
        return;
    };
    findings.push(
        Finding::new(
            Class::C14,
            format!("net.ipv4.vs.conn_reuse_mode is {mode} on Linux {release}: {effect}"),
        )
        .severity(Severity::Low)
        .level(Level::Warning)
        .confidence(Confidence::Medium)
        .node(None, format!("net.ipv4.vs.conn_reuse_mode = {mode}, kernel.osrelease = {release}"))
        .against(
            EvidenceType::Node,
            None,
            "only clients that reuse a port within two minutes are affected",
        ),
    );
}

/// `6.1.0-18-amd64`.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split('.');
    let digits = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok();
    Some((digits(parts.next()?)?, digits(parts.next()?)?))
}

/// C15: IPVS forgets an idle connection long before conntrack does (900 s against a day, unless configured).
fn idle_timeout(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(config) = facts.node.config.as_ref() else { return };
    let timeout = config.ipvs_idle_timeout();
    if timeout.is_some_and(|timeout| timeout >= LONG_IDLE) {
        return;
    }
    let limit = timeout.map_or("900 s".to_owned(), |limit| crate::text::length(limit).to_string());
    findings.push(
        Finding::new(
            Class::C15,
            format!("IPVS forgets a TCP connection that idles for {limit}: its next packet is answered with a reset"),
        )
        .severity(Severity::Low)
        .level(Level::Note)
        .confidence(Confidence::Medium)
        .node(
            None,
            timeout.map_or("ipvs.tcpTimeout is not set: the kernel's 900 s apply".to_owned(), |timeout| {
                format!("ipvs.tcpTimeout is {} s", timeout.as_secs())
            }),
        )
        .against(EvidenceType::Node, None, "only connections that idle longer, without keepalive, are affected"),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_of_kernels() {
        assert_eq!(kernel_version("6.1.0-18-amd64"), Some((6, 1)));
        assert_eq!(kernel_version("5.10-rc1"), Some((5, 10)));
        assert_eq!(kernel_version("next"), None);
    }
}
