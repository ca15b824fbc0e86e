//! The frame of kube-proxy's rules: the ways from netfilter's hooks into its chains, and the few rules that stand for no
//! Service.
//!
//! A way that is missing is one fault, not one for each Service behind it; [`Frame`] says which questions it has
//! already answered.

use super::{Aspect, Audit, Context, Discrepancy, Expected, Kind, SyncState};
use crate::node::{
    ProxyMode,
    ruleset::{
        Chain, Family,
        HookPoint::{self, Forward, Input, Output, Postrouting, Prerouting},
        Name, Origin, Rule, Ruleset, Step, Table, Verdict, Writer,
    },
};

/// What need not be asked for each Service any more.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    /// Connections from there do not get to the translating rules.
    pub(super) blocked: Vec<Origin>,
    /// Connections from there do not get to the rules that refuse and drop.
    pub(super) unfiltered: Vec<Origin>,
    pub(super) no_masquerade: bool,
}

/// What is lost where a way is missing.
#[derive(Clone, Copy)]
enum Loss {
    Translation(&'static [Origin]),
    Refusal(&'static [Origin]),
    Masquerade,
    /// Only under a policy or a rule of somebody else.
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

/// `pkg/proxy/nftables/proxier.go`, `nftablesJumpChains`.
const NFTABLES: [(&str, HookPoint, &str, Loss); 11] = [
    ("kube-proxy", Prerouting, "services", Loss::Translation(ROUTED)),
    ("kube-proxy", Output, "services", Loss::Translation(NODE)),
    ("kube-proxy", Postrouting, "masquerading", Loss::Masquerade),
    ("kube-proxy", Input, "nodeport-endpoints-check", Loss::Refusal(ROUTED)),
    ("kube-proxy", Input, "service-endpoints-check", Loss::Nothing),
    ("kube-proxy", Forward, "service-endpoints-check", Loss::Refusal(ROUTED)),
    ("kube-proxy", Output, "service-endpoints-check", Loss::Refusal(NODE)),
    ("kube-proxy", Prerouting, "firewall-check", Loss::Refusal(ROUTED)),
    ("kube-proxy", Output, "firewall-check", Loss::Refusal(NODE)),
    ("kube-proxy", Forward, "cluster-ips-check", Loss::Refusal(ROUTED)),
    ("kube-proxy", Output, "cluster-ips-check", Loss::Refusal(NODE)),
];

/// Checks the frame and reports what is missing of it.
pub(super) fn check(
    rules: &Ruleset,
    context: &Context,
    family: Family,
    writer: Writer,
    audit: &mut Audit,
) -> Frame {
    let ways: &[_] = match context.mode {
        ProxyMode::Iptables => &IPTABLES,
        ProxyMode::Ipvs => &IPVS,
        ProxyMode::Nftables => &NFTABLES,
    };
    let mut frame = Frame::default();
    for (table_name, hook, target, loss) in ways {
        let tables = rules.tables.iter().filter(|t| t.family == family && t.name.as_ref() == *table_name);
        let Some(table) = tables.into_iter().next() else { continue };
        // A chain that this version does not have needs no way to it; the chains that all versions have do.
        let vital = matches!(*target, "KUBE-SERVICES" | "KUBE-POSTROUTING" | "services" | "masquerading")
            && matches!(loss, Loss::Translation(_) | Loss::Masquerade);
        if table.chain(target).is_none() && !vital {
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
            format!("{} does not lead to {target} in table {table_name}: {what}", hook_name(*hook))
        } else {
            format!("the chain {target} is missing in table {table_name}: {what}")
        };
        audit.discrepancies.push(discrepancy(family, writer, (*target).into(), "C5e", text));
    }
    if context.mode != ProxyMode::Nftables {
        forwarding(rules, context, family, writer, audit);
    }
    frame
}

fn names(origins: &[Origin]) -> String {
    origins.iter().map(|origin| origin.as_str()).collect::<Vec<_>>().join(" and ")
}

const fn hook_name(hook: HookPoint) -> &'static str {
    match hook {
        Prerouting => "PREROUTING",
        Input => "INPUT",
        Forward => "FORWARD",
        Output => "OUTPUT",
        Postrouting => "POSTROUTING",
    }
}

fn discrepancy(
    family: Family,
    writer: Writer,
    place: Name,
    class: &'static str,
    text: String,
) -> Discrepancy {
    Discrepancy {
        kind: Kind::Missing,
        aspect: Aspect::Frame,
        class,
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

/// Whether a new connection gets from this hook to the chain.
fn leads(table: &Table, hook: HookPoint, target: &str) -> bool {
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

/// KUBE-FORWARD: three rules that no Service's connection shows, unless another rule or policy drops it.
fn forwarding(rules: &Ruleset, context: &Context, family: Family, writer: Writer, audit: &mut Audit) {
    let chain = |table: &'_ Table| table.chain("KUBE-FORWARD").cloned();
    let filter = rules.tables.iter().find(|t| t.family == family && t.name.as_ref() == "filter");
    let Some(chain) = filter.and_then(chain) else { return };
    let has = |condition: fn(&Step) -> bool, verdict: &Verdict| has_rule(&chain, condition, verdict);
    let state = |step: &Step| matches!(step, Step::State { new: false, negated: false, .. });
    let mark = |step: &Step| matches!(step, Step::Mark { negated: false, .. });
    let place: Name = "KUBE-FORWARD".into();
    if !has(mark, &Verdict::Accept) {
        let text = "KUBE-FORWARD does not accept marked connections: they are lost where the policy of FORWARD is DROP";
        audit.discrepancies.push(discrepancy(family, writer, place.clone(), "C5e", text.into()));
    }
    if !has(state, &Verdict::Accept) {
        let text = "KUBE-FORWARD does not accept established connections: replies are lost where the policy of FORWARD \
                    is DROP";
        audit.discrepancies.push(discrepancy(family, writer, place.clone(), "C5e", text.into()));
    }
    if context.mode == ProxyMode::Iptables
        && context.tcp_be_liberal != Some(true)
        && !has(state, &Verdict::Drop)
    {
        let text = "KUBE-FORWARD does not drop invalid packets: a reply out of the window reaches the client with the \
                    endpoint's address, and the client resets the connection (C18); kube-proxy leaves the rule out only \
                    with nf_conntrack_tcp_be_liberal";
        audit.discrepancies.push(discrepancy(family, writer, place, "C18", text.into()));
    }
}

fn has_rule(chain: &Chain, condition: fn(&Step) -> bool, verdict: &Verdict) -> bool {
    chain
        .rules
        .iter()
        .any(|rule| rule.steps.iter().any(condition) && rule.steps.last() == Some(&Step::Do(verdict.clone())))
}

/// No rules of kube-proxy's mode at all.
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
        ..discrepancy(family, Writer::Ipvs, place.into(), "C1", text)
    }
}
