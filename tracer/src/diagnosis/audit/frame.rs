//! The frame of kube-proxy's rules: the jumps from netfilter's hooks to its chains, and the few rules that belong to no
//! Service.
//!
//! A missing jump is one fault, not one for each Service behind it; [`Frame`] records it once.

use super::{Aspect, Audit, Context, Discrepancy, Expected, Kind, SyncState};
use crate::{
    net::Family,
    node::ProxyMode,
    rules::{
        Chain,
        HookPoint::{self, Forward, Input, Output, Postrouting, Prerouting},
        Name, Origin, Rule, Ruleset, Step, Table, Verdict, Writer,
        frontends::ipset_name,
    },
};

/// Faults of the frame, which need no check for each Service.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    /// Connections from these origins do not reach the translating rules.
    pub(super) blocked: Vec<Origin>,
    /// Connections from these origins do not reach the rules that refuse and drop.
    pub(super) unfiltered: Vec<Origin>,
    pub(super) no_masquerade: bool,
    /// The rules that mark, masquerade and filter for IPVS mode were not read.
    pub(super) is_unread: bool,
}

/// The effect of a missing jump.
#[derive(Clone, Copy)]
enum Loss {
    Translation(&'static [Origin]),
    Refusal(&'static [Origin]),
    Masquerade,
    /// No effect, unless another program has a policy or rule that drops packets.
    Nothing,
}

const ROUTED: &[Origin] = &[Origin::Pod, Origin::Outside];
const NODE: &[Origin] = &[Origin::Node];

/// Table, hook, chain, loss: `pkg/proxy/iptables/proxier.go`, `iptablesJumpChains`.
const IPTABLES: [(&str, HookPoint, &str, Loss); 12] = [
    ("nat", Prerouting, "KUBE-SERVICES", Loss::Translation(ROUTED)),
    ("nat", Output, "KUBE-SERVICES", Loss::Translation(NODE)),
    ("nat", Postrouting, "KUBE-POSTROUTING", Loss::Masquerade),
    ("filter", Forward, "KUBE-SERVICES", Loss::Refusal(ROUTED)),
    ("filter", Output, "KUBE-SERVICES", Loss::Refusal(NODE)),
    ("filter", Input, "KUBE-EXTERNAL-SERVICES", Loss::Refusal(ROUTED)),
    ("filter", Forward, "KUBE-EXTERNAL-SERVICES", Loss::Refusal(ROUTED)),
    ("filter", Input, "KUBE-PROXY-FIREWALL", Loss::Nothing),
    ("filter", Forward, "KUBE-PROXY-FIREWALL", Loss::Refusal(ROUTED)),
    ("filter", Output, "KUBE-PROXY-FIREWALL", Loss::Refusal(NODE)),
    ("filter", Forward, "KUBE-FORWARD", Loss::Nothing),
    ("filter", Input, "KUBE-NODEPORTS", Loss::Nothing),
];

/// `pkg/proxy/ipvs/proxier.go`, `iptablesJumpChain`.
const IPVS: [(&str, HookPoint, &str, Loss); 9] = [
    ("nat", Prerouting, "KUBE-SERVICES", Loss::Masquerade),
    ("nat", Output, "KUBE-SERVICES", Loss::Masquerade),
    ("nat", Postrouting, "KUBE-POSTROUTING", Loss::Masquerade),
    ("filter", Input, "KUBE-IPVS-FILTER", Loss::Refusal(ROUTED)),
    ("filter", Input, "KUBE-PROXY-FIREWALL", Loss::Refusal(ROUTED)),
    ("filter", Input, "KUBE-NODE-PORT", Loss::Nothing),
    ("filter", Forward, "KUBE-FORWARD", Loss::Nothing),
    ("filter", Forward, "KUBE-PROXY-FIREWALL", Loss::Nothing),
    ("filter", Output, "KUBE-IPVS-OUT-FILTER", Loss::Nothing),
];

const FIREWALL_CHECK: &str = "firewall-check";
pub(super) const SERVICE_ENDPOINTS_CHECK: &str = "service-endpoints-check";
/// The chain of 1.29, which kubernetes/kubernetes#122614 divides.
pub(super) const ENDPOINTS_CHECK: &str = "endpoints-check";

/// `pkg/proxy/nftables/proxier.go`, `nftablesJumpChains`.
const NFTABLES: [(&str, HookPoint, &str, Loss); 14] = [
    ("kube-proxy", Prerouting, "services", Loss::Translation(ROUTED)),
    ("kube-proxy", Output, "services", Loss::Translation(NODE)),
    ("kube-proxy", Postrouting, "masquerading", Loss::Masquerade),
    ("kube-proxy", Input, "nodeport-endpoints-check", Loss::Refusal(ROUTED)),
    ("kube-proxy", Input, SERVICE_ENDPOINTS_CHECK, Loss::Nothing),
    ("kube-proxy", Forward, SERVICE_ENDPOINTS_CHECK, Loss::Refusal(ROUTED)),
    ("kube-proxy", Output, SERVICE_ENDPOINTS_CHECK, Loss::Refusal(NODE)),
    ("kube-proxy", Input, ENDPOINTS_CHECK, Loss::Refusal(ROUTED)),
    ("kube-proxy", Forward, ENDPOINTS_CHECK, Loss::Refusal(ROUTED)),
    ("kube-proxy", Output, ENDPOINTS_CHECK, Loss::Refusal(NODE)),
    ("kube-proxy", Prerouting, FIREWALL_CHECK, Loss::Refusal(ROUTED)),
    ("kube-proxy", Output, FIREWALL_CHECK, Loss::Refusal(NODE)),
    ("kube-proxy", Forward, "cluster-ips-check", Loss::Refusal(ROUTED)),
    ("kube-proxy", Output, "cluster-ips-check", Loss::Refusal(NODE)),
];

/// Checks the frame and reports its missing parts.
pub(super) fn check(
    rules: &Ruleset,
    context: &Context,
    family: Family,
    writer: Writer,
    audit: &mut Audit,
) -> Frame {
    let written = |table: &Table| table.family == family && table.chain("KUBE-SERVICES").is_some();
    let is_unread = context.unread.contains(&family) && !rules.tables.iter().any(written);
    if context.mode == ProxyMode::Ipvs && is_unread {
        audit.gaps.push(format!(
            "{family}: the iptables rules of this family were not read, so masquerading and filtering were not judged"
        ));
        return Frame { no_masquerade: true, is_unread: true, ..Frame::default() };
    }
    let ways: &[_] = match context.mode {
        ProxyMode::Iptables => &IPTABLES,
        ProxyMode::Ipvs => &IPVS,
        ProxyMode::Nftables => &NFTABLES,
    };
    let mut frame = Frame::default();
    for (table_name, hook, target, loss) in ways {
        let tables = rules.tables.iter().filter(|t| t.family == family && t.name.as_ref() == *table_name);
        let Some(table) = tables.into_iter().next() else { continue };
        // A chain that this version does not have needs no jump. The chains of all versions do.
        let vital = matches!(*target, "KUBE-SERVICES" | "KUBE-POSTROUTING" | "services" | "masquerading")
            && matches!(loss, Loss::Translation(_) | Loss::Masquerade);
        if table.chain(target).is_none() && !vital {
            continue;
        }
        // 1.29 checks the source ranges in INPUT, FORWARD and OUTPUT.
        if (*hook, *target) == (Prerouting, FIREWALL_CHECK) && is_of_1_29(table) {
            continue;
        }
        if table.chain(target).is_some() && leads(table, *hook, target) {
            continue;
        }
        let what = match loss {
            Loss::Translation(of) => {
                frame.blocked.extend_from_slice(of);
                format!("no new connection from {} is translated", names(of))
            }
            Loss::Refusal(of) => {
                frame.unfiltered.extend_from_slice(of);
                format!("connections from {} that it should refuse or drop go on", names(of))
            }
            Loss::Masquerade => {
                frame.no_masquerade = true;
                "no connection is masqueraded".to_owned()
            }
            Loss::Nothing => "no connection is touched as long as no other rule drops it".to_owned(),
        };
        let text = if table.chain(target).is_some() {
            format!("{} does not lead to {target} in table {table_name}: {what}", hook.as_str())
        } else {
            format!("the chain {target} is missing in table {table_name}: {what}")
        };
        audit.discrepancies.push(discrepancy(family, writer, (*target).into(), text));
    }
    if context.mode != ProxyMode::Nftables {
        forwarding(rules, context, family, writer, audit);
    }
    inner(rules, family, writer, context, audit);
    frame
}

/// Table, chain and target of the jumps between kube-proxy's own chains that do not depend on the Services.
const INNER: [(ProxyMode, &str, &str, &str); 3] = [
    (ProxyMode::Ipvs, "nat", "KUBE-SERVICES", "KUBE-NODE-PORT"),
    (ProxyMode::Ipvs, "nat", "KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ"),
    (ProxyMode::Ipvs, "filter", "KUBE-SOURCE-RANGES-FIREWALL", "DROP"),
];

/// Chain and map of nftables mode.
const LOOKUPS: [(&str, &str); 5] = [
    ("services", "service-ips"),
    ("services", "service-nodeports"),
    ("service-endpoints-check", "no-endpoint-services"),
    ("nodeport-endpoints-check", "no-endpoint-nodeports"),
    ("firewall-check", "firewall-ips"),
];

/// Table, chain, ipset and target of IPVS mode: a rule for each set that is not empty (`pkg/proxy/ipvs/proxier.go`,
/// `ipsetWithIptablesChain`, and the `isEmpty` tests of `writeIptablesRules`). Versions before 1.27 have other chains
/// for source ranges, so a rule is required only if this version has both of its chains.
const IPSETS: [(&str, &str, &str, &str); 14] = [
    ("nat", "KUBE-POSTROUTING", "LOOP-BACK", "MASQUERADE"),
    ("nat", "KUBE-SERVICES", "CLUSTER-IP", "KUBE-MARK-MASQ"),
    ("nat", "KUBE-SERVICES", "EXTERNAL-IP", "KUBE-MARK-MASQ"),
    ("nat", "KUBE-SERVICES", "LOAD-BALANCER", "KUBE-LOAD-BALANCER"),
    ("nat", "KUBE-LOAD-BALANCER", "LOAD-BALANCER-LOCAL", "RETURN"),
    ("nat", "KUBE-NODE-PORT", "NODE-PORT-LOCAL-TCP", "RETURN"),
    ("nat", "KUBE-NODE-PORT", "NODE-PORT-TCP", "KUBE-MARK-MASQ"),
    ("nat", "KUBE-NODE-PORT", "NODE-PORT-LOCAL-UDP", "RETURN"),
    ("nat", "KUBE-NODE-PORT", "NODE-PORT-UDP", "KUBE-MARK-MASQ"),
    ("nat", "KUBE-NODE-PORT", "NODE-PORT-LOCAL-SCTP-HASH", "RETURN"),
    ("nat", "KUBE-NODE-PORT", "NODE-PORT-SCTP-HASH", "KUBE-MARK-MASQ"),
    ("filter", "KUBE-PROXY-FIREWALL", "LOAD-BALANCER-FW", "KUBE-SOURCE-RANGES-FIREWALL"),
    ("filter", "KUBE-SOURCE-RANGES-FIREWALL", "LOAD-BALANCER-SOURCE-CIDR", "RETURN"),
    ("filter", "KUBE-SOURCE-RANGES-FIREWALL", "LOAD-BALANCER-SOURCE-IP", "RETURN"),
];

/// Whether a table of nftables mode has the form of 1.29, which has one chain for the checks of all endpoints.
pub(super) fn is_of_1_29(table: &Table) -> bool {
    table.chain(ENDPOINTS_CHECK).is_some()
}

/// Whether a rule of the chain jumps to this one.
pub(super) fn has_jump(chain: &Chain, target: &str) -> bool {
    chain.rules.iter().any(|rule| leads_to(rule, target))
}

/// Whether the rule ends with this target: a chain, or a verdict by its name in iptables.
fn leads_to(rule: &Rule, target: &str) -> bool {
    match rule.steps.last() {
        Some(Step::Do(Verdict::Jump(to) | Verdict::Goto(to))) => **to == *target,
        Some(Step::Do(Verdict::Drop)) => target == "DROP",
        Some(Step::Do(Verdict::Return)) => target == "RETURN",
        Some(Step::Do(Verdict::Masquerade)) => target == "MASQUERADE",
        _ => false,
    }
}

/// Whether the table has the target of a rule.
fn has_target(table: &Table, target: &str) -> bool {
    matches!(target, "DROP" | "RETURN" | "MASQUERADE") || table.chain(target).is_some()
}

/// The jumps between chains, and from chains to maps and sets.
fn inner(rules: &Ruleset, family: Family, writer: Writer, context: &Context, audit: &mut Audit) {
    let mode = context.mode;
    let table = |name: &str| rules.table_of(family, name);
    // With `nodePortAddresses` there is a jump for each address of the node in these ranges, or none.
    let node_ports = (ProxyMode::Iptables, "nat", "KUBE-SERVICES", "KUBE-NODEPORTS");
    let one_jump = !context.restricts_node_ports(family);
    let inner = INNER.iter().chain(one_jump.then_some(&node_ports));
    for (_, name, from, to) in inner.filter(|(of, ..)| *of == mode) {
        let Some(table) = table(name) else { continue };
        let Some(chain) = table.chain(from).filter(|_| has_target(table, to)) else { continue };
        let leads = chain.rules.iter().any(|rule| leads_to(rule, to));
        if !leads {
            let text = format!("{from} does not lead to {to} in table {name}");
            audit.discrepancies.push(discrepancy(family, writer, (*from).into(), text));
        }
    }
    if mode == ProxyMode::Nftables
        && let Some(table) = table("kube-proxy")
    {
        let refuses =
            |chain: &Chain| chain.rules.iter().any(|rule| rule.steps.contains(&Step::Do(Verdict::Reject)));
        if table.chain("reject-chain").is_some_and(|chain| !refuses(chain)) {
            let text = "reject-chain does not refuse what is sent to it".to_owned();
            audit.discrepancies.push(discrepancy(family, writer, "reject-chain".into(), text));
        }
        for (from, map) in LOOKUPS {
            let Some(chain) = table.chain(from).filter(|_| table.set(map).is_some()) else { continue };
            let looks = |step: &Step| matches!(step, Step::Look(of) if *of.map == *map);
            if !chain.rules.iter().any(|rule| rule.steps.iter().any(looks)) {
                let text = format!("{from} does not use the map {map}");
                audit.discrepancies.push(discrepancy(family, writer, from.into(), text));
            }
        }
    }
    for (name, from, set, to) in IPSETS.iter().filter(|_| mode == ProxyMode::Ipvs) {
        let set = ipset_name(set, family);
        let filled = rules.sets.iter().any(|known| *known.name == *set && !known.is_empty());
        let Some(table) = table(name).filter(|table| filled && has_target(table, to)) else { continue };
        let Some(chain) = table.chain(from) else { continue };
        let asks = |step: &Step| matches!(step, Step::InIpset(of) if *of.set == *set && !of.negated);
        if !chain.rules.iter().any(|rule| rule.steps.iter().any(asks) && leads_to(rule, to)) {
            let text = format!(
                "{from} in table {name} has no rule that sends the ipset {set}, which is not empty, to {to}"
            );
            audit.discrepancies.push(discrepancy(family, writer, (*from).into(), text));
        }
    }
}

fn names(origins: &[Origin]) -> String {
    origins.iter().map(|origin| origin.as_str()).collect::<Vec<_>>().join(" and ")
}

pub(super) fn discrepancy(family: Family, writer: Writer, place: Name, text: String) -> Discrepancy {
    Discrepancy {
        kind: Kind::Missing,
        aspect: Aspect::Frame,
        family,
        service: None,
        port: None,
        frontends: Vec::new(),
        origins: Vec::new(),
        endpoint: None,
        place,
        writer: Some(writer),
        text,
        since: None,
        sync: SyncState::Unknown,
    }
}

/// Whether a new connection reaches the chain from this hook.
pub(super) fn leads(table: &Table, hook: HookPoint, target: &str) -> bool {
    let bases = table.chains.iter().filter(|chain| chain.base.is_some_and(|base| base.hook == hook));
    bases.into_iter().any(|chain| chain.rules.iter().any(|rule| jumps(rule, target)))
}

fn jumps(rule: &Rule, target: &str) -> bool {
    let Some((Step::Do(Verdict::Jump(to) | Verdict::Goto(to)), conditions)) = rule.steps.split_last() else {
        return false;
    };
    to.as_ref() == target
        && conditions.iter().all(|step| matches!(step, Step::State { new: true, negated: false, .. }))
}

/// KUBE-FORWARD: three rules that a new connection does not need unless another rule or policy drops it.
fn forwarding(rules: &Ruleset, context: &Context, family: Family, writer: Writer, audit: &mut Audit) {
    let chain = |table: &'_ Table| table.chain("KUBE-FORWARD").cloned();
    let filter = rules.table_of(family, "filter");
    let Some(chain) = filter.and_then(chain) else { return };
    let has = |condition: fn(&Step) -> bool, verdict: &Verdict| has_rule(&chain, condition, verdict);
    let state = |step: &Step| matches!(step, Step::State { new: false, negated: false, .. });
    let mark = |step: &Step| matches!(step, Step::Mark { negated: false, .. });
    let place: Name = "KUBE-FORWARD".into();
    if !has(mark, &Verdict::Accept) {
        let text = "KUBE-FORWARD does not accept marked connections: they are lost where the policy of \
                    FORWARD is DROP";
        audit.discrepancies.push(discrepancy(family, writer, place.clone(), text.into()));
    }
    if !has(state, &Verdict::Accept) {
        let text = "KUBE-FORWARD does not accept established connections: replies are lost where the policy of FORWARD \
                    is DROP";
        audit.discrepancies.push(discrepancy(family, writer, place.clone(), text.into()));
    }
    if context.mode == ProxyMode::Iptables
        // Unknown: kube-proxy may have left the rule out on purpose.
        && context.tcp_be_liberal == Some(false)
        && !has(state, &Verdict::Drop)
    {
        let text = "KUBE-FORWARD does not drop invalid packets: a reply out of the window reaches the client with the \
                    endpoint's address, and the client resets the connection (C18); kube-proxy leaves the rule out only \
                    with nf_conntrack_tcp_be_liberal";
        audit.discrepancies.push(Discrepancy {
            aspect: Aspect::InvalidPackets,
            ..discrepancy(family, writer, place, text.into())
        });
    }
}

/// Whether a rule of the chain has a step like this, and this verdict at its end.
pub(super) fn has_rule(chain: &Chain, condition: impl Fn(&Step) -> bool, verdict: &Verdict) -> bool {
    chain.rules.iter().any(|rule| rule.steps.iter().any(&condition) && ends_with(rule, verdict))
}

pub(super) fn ends_with(rule: &Rule, verdict: &Verdict) -> bool {
    matches!(rule.steps.last(), Some(Step::Do(last)) if last == verdict)
}

/// There are no rules of kube-proxy's mode.
pub(super) fn absent(
    expected: &Expected,
    context: &Context,
    family: Family,
    others: &[Writer],
) -> Discrepancy {
    let ports = expected.ports.iter().filter(|port| port.family == family);
    let place = match context.mode {
        ProxyMode::Iptables => "KUBE-SERVICES",
        ProxyMode::Nftables => "table kube-proxy",
        ProxyMode::Ipvs => "IPVS",
    };
    let other = match others {
        [] => String::new(),
        others => format!(
            " (there are rules of {})",
            others.iter().map(|writer| writer.as_str()).collect::<Vec<_>>().join(" and ")
        ),
    };
    let text = format!(
        "no rules of kube-proxy in {} mode for {family}: none of {} Service ports is served{other}",
        context.mode,
        ports.clone().count()
    );
    Discrepancy {
        since: ports.filter_map(|port| port.changed).min(),
        writer: None,
        ..discrepancy(family, Writer::Ipvs, place.into(), text)
    }
}
