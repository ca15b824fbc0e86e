//! Step 3: which writers' rules exist in the kernel (C3, C10), and whether there are any (C1, C5e).
//!
//! Owns the conclusions from the presence of rules. The audit checks each rule.

use super::{
    Facts, Finding, Level,
    audit::{MAX_QUOTED, MAX_SERVICES},
    sync,
};
use crate::{
    class::{Class, Confidence, Severity, action},
    cluster::{Address, model::Service},
    node::{Presence, ProxyMode, interfaces::IPVS_DEVICE},
    rules::{VirtualServer, Writer},
    text::{count, length},
    time::Timestamp,
    verdict::EvidenceType,
};

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    // Rules that kube-proxy left behind are no longer judged.
    if facts.served_elsewhere().is_some() {
        return;
    }
    two_backends(facts, findings);
    leftovers(facts, findings);
    none(facts, findings);
    ipvs_device(facts, findings);
}

/// C3: rules of both iptables backends.
fn two_backends(facts: &Facts, findings: &mut Vec<Finding>) {
    let nft = facts.node.service_chains(|writer| writer == Writer::IptablesNft);
    let legacy = facts.node.service_chains(|writer| writer == Writer::IptablesLegacy);
    if nft == 0 || legacy == 0 {
        return;
    }
    findings.push(
        Finding::new(
            Class::C3,
            "kube-proxy's chains exist in both iptables backends: packets pass both, and one of \
             the two is stale",
        )
        .node(None, format!("iptables-nft: {}", count(nft, "Service chain")))
        .node(None, format!("iptables-legacy: {}", count(legacy, "Service chain"))),
    );
}

/// C10: rules of another mode than the one that kube-proxy runs in.
fn leftovers(facts: &Facts, findings: &mut Vec<Finding>) {
    // Only kube-proxy's own report counts: a mode guessed from the rules could not contradict them.
    let Some(mode) = facts.node.reported_mode else { return };
    let ipvs_device = facts.node.has_ipvs_device();
    let mut left = Vec::new();
    for other in ProxyMode::ALL.into_iter().filter(|other| *other != mode) {
        let rules = match other {
            ProxyMode::Iptables => {
                let chains = facts.node.service_chains(Writer::is_iptables);
                (chains > 0).then(|| format!("iptables mode: {}", count(chains, "Service chain")))
            }
            // A table without rules does nothing.
            ProxyMode::Nftables => {
                let tables = facts.node.rules.tables.iter().filter(|table| table.writer == Writer::Nftables);
                let rules: usize =
                    tables.flat_map(|table| &table.chains).map(|chain| chain.rules.len()).sum();
                (rules > 0)
                    .then(|| format!("nftables mode: the table kube-proxy with {}", count(rules, "rule")))
            }
            ProxyMode::Ipvs => {
                let servers = servers_of_services(facts);
                (servers > 0).then(|| format!("ipvs mode: {}", count(servers, "virtual server")))
            }
        };
        left.extend(rules);
        if other == ProxyMode::Ipvs && ipvs_device {
            left.push("ipvs mode: the interface kube-ipvs0 with every VIP as a local address".to_owned());
        }
    }
    if left.is_empty() {
        return;
    }
    let mut finding = Finding::new(
        Class::C10,
        format!(
            "kube-proxy runs in {mode} mode, and rules of another mode exist besides its own: {}",
            left.join("; ")
        ),
    )
    .node(None, format!("/proxyMode answers {mode}"));
    let of_nftables = mode == ProxyMode::Nftables || left.iter().any(|what| what.starts_with("nftables "));
    for what in left {
        finding = finding.node(None, format!("left over from {what}"));
    }
    finding = finding.cleaned_by_restart(of_nftables);
    findings.push(finding);
}

/// Whether kube-proxy wrote any virtual server.
pub(super) fn has_servers_of_services(facts: &Facts) -> bool {
    servers_of_services(facts) > 0
}

/// The virtual servers that kube-proxy wrote: those with an address of a Service, present or past. keepalived, kube-vip and
/// other load balancers use IPVS too. Without the Services kube-proxy's device decides.
fn servers_of_services(facts: &Facts) -> usize {
    let servers = facts.node.rules.servers.iter().flatten();
    let Some(history) = facts.services() else {
        return if facts.node.has_ipvs_device() { servers.count() } else { 0 };
    };
    let of_service = |server: &&VirtualServer| {
        history.lookup(server.address, server.protocol, Timestamp::MAX) != Address::Other
    };
    servers.filter(of_service).count()
}

/// C1 or C5e: no rules of any mode.
fn none(facts: &Facts, findings: &mut Vec<Finding>) {
    let mode = facts.node.mode;
    let rules = mode.map_or_else(|| facts.node.proxy_rules.any(), |mode| facts.node.has_rules_of(mode));
    let serves = facts.services().is_none_or(|history| {
        history.services().any(|service| !service.cluster_ips.is_empty() && facts.serves(service))
    });
    // Rules of a family that were not read are not missing: an IPv6-only cluster has none in IPv4's lists.
    let families = facts.families();
    if !families.is_empty() && !families.iter().any(|family| facts.node.knows_rules(*family)) {
        return;
    }
    let told =
        |class: Class| findings.iter().any(|finding| finding.class == class && finding.level == Level::Fault);
    let elsewhere = facts.node.kube_proxy_elsewhere().is_some();
    if rules != Presence::Absent || !serves || elsewhere || sync::is_starting(facts) {
        return;
    }
    // If the cause has a finding already, or the process is missing, that finding covers the missing rules.
    let caused = told(Class::C11)
        || told(Class::C9)
        || told(Class::C1)
        || told(Class::C2) && never_wrote(facts)
        || told(Class::C5);
    if caused {
        return;
    }
    let wrote = facts
        .node
        .metrics
        .as_ref()
        .is_some_and(|metrics| metrics.sync_times().iter().any(|times| times.last_synced > 0.0));
    let mode_text = mode.map_or("any mode".to_owned(), |mode| format!("{mode} mode"));
    let (class, detail) = if wrote {
        (
            Class::C5e,
            format!(
                "kube-proxy has written its rules of {mode_text}, and they are gone: another program \
                 removed them"
            ),
        )
    } else {
        (Class::C1, format!("this node has no rules of kube-proxy in {mode_text}"))
    };
    let mut finding = Finding::new(class, detail).node(
        None,
        match mode {
            Some(ProxyMode::Iptables) => "iptables-save lists no rule that names a Service",
            Some(ProxyMode::Nftables) => "nft lists no table kube-proxy",
            Some(ProxyMode::Ipvs) => "there is no IPVS virtual server",
            None => "neither iptables chains, nor a table kube-proxy, nor IPVS virtual servers",
        },
    );
    let configured = facts.node.config.as_ref().and_then(|config| config.sync_period);
    let period = configured
        .filter(|period| !period.is_zero())
        .map_or("30 s".to_owned(), |period| length(period).to_string());
    if wrote {
        finding = finding
            .node(None, "kubeproxy_sync_proxy_rules_last_timestamp_seconds shows that they were written")
            .against(
                EvidenceType::Node,
                None,
                format!("kube-proxy notices the loss within its syncPeriod ({period}) and writes them again"),
            );
    } else {
        finding = finding
            .confidence(Confidence::Medium)
            .unobserved("whether kube-proxy has ever written them: its metrics have no time of a sync");
    }
    // Calico's removes kube-proxy's rules (`bpfKubeProxyIptablesCleanupEnabled` of Felix).
    if let Some(name) = facts.node.other_dataplane {
        let exist = format!("interfaces of {name} exist: it may serve Services instead of kube-proxy");
        finding = finding.against(EvidenceType::Node, None, exist);
    }
    findings.push(finding);
}

fn never_wrote(facts: &Facts) -> bool {
    facts
        .node
        .metrics
        .as_ref()
        .is_none_or(|metrics| metrics.sync_times().iter().all(|times| times.last_synced == 0.0))
}

/// K7: in IPVS mode each VIP is an address of kube-ipvs0. kube-proxy adds it with the VIP's virtual server (`syncService` of
/// pkg/proxy/ipvs/proxier.go); without that, the missing server is the finding, or the change is in flight.
fn ipvs_device(facts: &Facts, findings: &mut Vec<Finding>) {
    let serves = facts.node.has_rules_of(ProxyMode::Ipvs) == Presence::Present;
    if facts.node.mode != Some(ProxyMode::Ipvs) || !serves {
        return;
    }
    let Some(interfaces) = &facts.node.interfaces else { return };
    let Some(device) = interfaces.get(IPVS_DEVICE) else {
        findings.push(
            Finding::new(
                Class::C11,
                "the interface kube-ipvs0 is missing: no VIP is local, so IPVS never sees its packets",
            )
            .node(None, "ip addr lists no kube-ipvs0, and there are IPVS virtual servers")
            .now(&[action::RESTORE_DEVICE]),
        );
        return;
    };
    if !device.addresses_known {
        return;
    }
    let Some(history) = facts.services() else { return };
    let virtual_servers = facts.node.rules.servers.as_deref().unwrap_or_default();
    let lacks = |service: &Service| -> Vec<String> {
        service
            .cluster_ips
            .iter()
            .filter(|ip| virtual_servers.iter().any(|server| server.address.ip() == **ip))
            .filter(|ip| !device.addresses.iter().any(|(address, _)| address == *ip))
            .filter(|ip| ip.is_ipv4() || device.addresses.iter().any(|(address, _)| address.is_ipv6()))
            .map(ToString::to_string)
            .collect()
    };
    let services = history.services().filter(|service| !service.headless && facts.serves(service));
    let lacking: Vec<_> = services
        .map(|service| (service, lacks(service)))
        .filter(|(_, missing)| !missing.is_empty())
        .collect();
    let held = count(device.addresses.len(), "address");
    if lacking.len() > MAX_SERVICES {
        let named: Vec<String> =
            lacking.iter().take(MAX_QUOTED).map(|(service, _)| service.key.to_string()).collect();
        let detail = format!(
            "the addresses of {} Services are not on kube-ipvs0: their packets leave the node unserved: {} and {} more",
            lacking.len(),
            named.join(", "),
            lacking.len() - named.len()
        );
        let mut finding = Finding::new(Class::C11, detail).now(&[action::RESTORE_DEVICE]);
        for (service, missing) in lacking.iter().take(MAX_QUOTED) {
            let missing = missing.join(", ");
            finding = finding.node(None, format!("kube-ipvs0 has {held}, not {missing} of {}", service.key));
        }
        findings.push(finding);
        return;
    }
    for (service, missing) in lacking {
        let missing = missing.join(", ");
        findings.push(
            Finding::new(
                Class::C11,
                format!(
                    "{}: its address {missing} is not on kube-ipvs0: its packets leave the node unserved",
                    service.key
                ),
            )
            .severity(Severity::High)
            .service(&service.key, "*")
            .node(None, format!("kube-ipvs0 has {held}, not {missing}"))
            .now(&[action::RESTORE_DEVICE]),
        );
    }
}
