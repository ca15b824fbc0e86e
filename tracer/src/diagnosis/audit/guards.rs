//! kube-proxy's rules beside the way of a new connection: the guard of 127.0.0.0/8, health checks, the clearing of the
//! mark, and IPVS's filter of the node's own connections.
//!
//! Owns [`Aspect::Guard`]. Must not repeat what the walked connections show.

use std::{collections::BTreeSet, net::IpAddr};

use super::{
    Aspect, Audit, Context, Discrepancy, Expected,
    frame::{discrepancy, ends_with, has_rule, leads},
};
use crate::{
    cluster::{Via, model::ServiceType},
    net::{Family, Protocol},
    node::ProxyMode,
    rules::{
        Chain, Datum, Frontend, HookPoint, NFTABLES_TABLE, Rule, Ruleset, Step, Table, Verdict, Writer,
        frontends::ipset_name,
    },
};

/// One audit of the guards of one family.
struct Guards<'a> {
    expected: &'a Expected,
    rules: &'a Ruleset,
    context: &'a Context,
    family: Family,
    writer: Writer,
}

pub(super) fn check(
    expected: &Expected,
    rules: &Ruleset,
    context: &Context,
    family: Family,
    writer: Writer,
    audit: &mut Audit,
) {
    let guards = Guards { expected, rules, context, family, writer };
    let mut missing = |place: &str, text: String| {
        audit
            .discrepancies
            .push(Discrepancy { aspect: Aspect::Guard, ..discrepancy(family, writer, place.into(), text) });
    };
    match context.mode {
        ProxyMode::Iptables => {
            guards.localnet(&mut missing);
            guards.health_checks(&mut missing);
        }
        ProxyMode::Ipvs => {
            guards.health_check_set(&mut missing);
            guards.out_filter(&mut missing);
        }
        ProxyMode::Nftables => guards.hairpins(&mut missing),
    }
    guards.clearing(&mut missing);
}

impl<'a> Guards<'a> {
    fn table(&self, name: &str) -> Option<&'a Table> {
        self.rules.table_of(self.family, name)
    }

    fn chain(&self, table: &str, name: &str) -> Option<&'a Chain> {
        self.table(table)?.chain(name)
    }

    /// With `localhostNodePorts` kube-proxy sets `route_localnet`, and KUBE-FIREWALL keeps other machines from the
    /// node's 127.0.0.0/8 (kubernetes/kubernetes#90259; `pkg/proxy/iptables/proxier.go`, `kubeletFirewallChain`). A
    /// kube-proxy before 1.26 leaves the chain to the kubelet, which writes the same rule.
    fn localnet(&self, missing: &mut impl FnMut(&str, String)) {
        let wanted = self.context.serves_localhost() && self.family == Family::Ipv4;
        let Some(table) = self.table("filter").filter(|_| wanted) else { return };
        let Some(chain) = table.chain("KUBE-FIREWALL") else { return };
        let loopback = |step: &Step| match step {
            Step::Destination(to) => !to.is_negated() && to.ranges().any(|range| range.first.is_loopback()),
            _ => false,
        };
        let effect = "other machines on its network reach what listens on the node's 127.0.0.1";
        if !has_rule(chain, loopback, &Verdict::Drop) {
            missing(
                "KUBE-FIREWALL",
                format!("KUBE-FIREWALL does not drop connections to 127.0.0.0/8: {effect}"),
            );
        }
        for (hook, name) in [(HookPoint::Input, "INPUT"), (HookPoint::Output, "OUTPUT")] {
            if !leads(table, hook, "KUBE-FIREWALL") {
                missing(
                    "KUBE-FIREWALL",
                    format!("{name} does not lead to KUBE-FIREWALL in table filter: {effect}"),
                );
            }
        }
    }

    /// The health check node ports of this family's Services (`NeedsHealthCheck` in pkg/api/v1/service/util.go).
    fn health_ports(&self) -> BTreeSet<(u16, String)> {
        let ports = self.expected.ports.iter().filter(|port| port.family == self.family);
        let ports = ports.filter(|port| {
            port.service.r#type == ServiceType::LoadBalancer && port.is_local(Via::LoadBalancerIp)
        });
        let found = ports
            .filter_map(|port| Some((port.service.health_check_node_port?, port.service.key.to_string())));
        found.collect()
    }

    fn health_checks(&self, missing: &mut impl FnMut(&str, String)) {
        let Some(chain) = self.chain("filter", "KUBE-NODEPORTS") else { return };
        let accepted = chain.rules.iter().filter(|rule| ends_with(rule, &Verdict::Accept));
        let accepted: BTreeSet<u16> = accepted.filter_map(port_of).collect();
        for (port, service) in self.health_ports() {
            if !accepted.contains(&port) {
                missing("KUBE-NODEPORTS", unaccepted("KUBE-NODEPORTS", port, &service));
            }
        }
    }

    fn health_check_set(&self, missing: &mut impl FnMut(&str, String)) {
        let name = ipset_name("HEALTH-CHECK-NODE-PORT", self.family);
        let Some(set) = self.rules.ipset(&name) else { return };
        for (port, service) in self.health_ports() {
            if set.find(&[Datum::Port(port)]).is_none() {
                missing(&name, unaccepted(&name, port, &service));
            }
        }
        let Some(chain) = self.chain("filter", "KUBE-NODE-PORT").filter(|_| !set.is_empty()) else { return };
        let in_set = |step: &Step| matches!(step, Step::InIpset(of) if *of.set == *name && !of.negated);
        if !has_rule(chain, in_set, &Verdict::Accept) {
            let text = format!("KUBE-NODE-PORT in table filter does not accept the ports of {name}");
            missing("KUBE-NODE-PORT", format!("{text}: {HEALTH_CHECKS_LOST}"));
        }
    }

    /// IPVS serves the node's own connections before any input chain, so a filter at the way out keeps the node from
    /// load balancers whose source ranges exclude it (kubernetes/kubernetes#119656). A version before 1.29 lacks it.
    fn out_filter(&self, missing: &mut impl FnMut(&str, String)) {
        let Some(chain) = self.chain("filter", "KUBE-IPVS-OUT-FILTER") else { return };
        let filtered: BTreeSet<(IpAddr, &str)> = chain.rules.iter().flat_map(filtered).collect();
        let frontends = self.expected.ports.iter().filter(|port| port.family == self.family);
        let frontends = frontends.flat_map(|port| &port.frontends);
        for known in frontends.filter(|known| !known.ranges.is_empty() && known.admits_itself == Some(false))
        {
            let Frontend { address: Some(address), port, .. } = known.frontend else { continue };
            if !filtered.contains(&(address, port.to_string().as_str())) {
                let text = format!(
                    "KUBE-IPVS-OUT-FILTER does not drop the node's own connections to {}, which no source range admits",
                    known.frontend
                );
                missing("KUBE-IPVS-OUT-FILTER", text);
            }
        }
    }

    /// Since 1.35 one rule masquerades the hairpins of all local endpoints.
    fn hairpins(&self, missing: &mut impl FnMut(&str, String)) {
        let table = self.rules.table(Writer::Nftables, self.family, NFTABLES_TABLE);
        let Some(table) = table.filter(|table| table.set("hairpin-connections").is_some()) else { return };
        let in_set =
            |step: &Step| matches!(step, Step::InSet(of) if *of.set == *"hairpin-connections" && !of.negated);
        let has = |chain: &Chain| has_rule(chain, in_set, &Verdict::Masquerade);
        if table.chain("masquerading").is_some_and(|chain| !has(chain)) {
            let text = "masquerading does not use the set hairpin-connections: a Pod's connection to itself through its \
                        Service gets no answer";
            missing("masquerading", text.to_owned());
        }
    }

    /// Since 1.19 the mark is cleared before a packet is masqueraded; a chain with one rule is older.
    fn clearing(&self, missing: &mut impl FnMut(&str, String)) {
        let (table, name) = match self.writer {
            Writer::Nftables => (NFTABLES_TABLE, "masquerading"),
            _ => ("nat", "KUBE-POSTROUTING"),
        };
        let Some(chain) = self.chain(table, name) else { return };
        let steps = || chain.rules.iter().flat_map(|rule| &rule.steps);
        let current =
            self.writer == Writer::Nftables || steps().any(|step| *step == Step::Do(Verdict::Return));
        let masquerades = steps().any(|step| *step == Step::Do(Verdict::Masquerade));
        if current && masquerades && !steps().any(|step| matches!(step, Step::SetMark { .. })) {
            let text =
                "does not clear the mark: a packet that passes the node's stack twice is masqueraded twice";
            missing(name, format!("{name} {text}"));
        }
    }
}

const HEALTH_CHECKS_LOST: &str =
    "a load balancer's health checks of this node are lost where the policy of INPUT is DROP";

fn unaccepted(place: &str, port: u16, service: &str) -> String {
    format!("{place} does not accept port {port}, the healthCheckNodePort of {service}: {HEALTH_CHECKS_LOST}")
}

/// The TCP port that the rule accepts.
fn port_of(rule: &Rule) -> Option<u16> {
    let tcp = |step: &Step| matches!(step, Step::Protocol { protocol: Protocol::TCP, negated: false });
    let port = rule.steps.iter().find_map(|step| match step {
        Step::Port { first, last, negated: false } if first == last => Some(*first),
        _ => None,
    });
    port.filter(|_| rule.steps.iter().any(tcp))
}

/// The addresses and ports of `-s ADDRESS -m ipvs --vaddr ADDRESS --vport PORT -j DROP`: the match of IPVS is kept as
/// text.
fn filtered(rule: &Rule) -> Vec<(IpAddr, &str)> {
    if !ends_with(rule, &Verdict::Drop) {
        return Vec::new();
    }
    let words = rule.steps.iter().filter_map(|step| match step {
        Step::Unknown(text) => Some(text.split_ascii_whitespace()),
        _ => None,
    });
    let words: Vec<&str> = words.flatten().collect();
    let ports = words.iter().zip(words.iter().skip(1)).filter(|(name, _)| **name == "--vport");
    let ports: Vec<&str> = ports.map(|(_, port)| *port).collect();
    let ranges = rule.steps.iter().filter_map(|step| match step {
        Step::Source(from) if !from.is_negated() => Some(from.ranges()),
        _ => None,
    });
    let mut found = Vec::new();
    for address in ranges.flatten().filter_map(|range| range.as_host()) {
        found.extend(ports.iter().map(|port| (address, *port)));
    }
    found
}
