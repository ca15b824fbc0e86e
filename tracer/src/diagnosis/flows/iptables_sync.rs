//! Rules that do not say what the API says: never written (C1), rejected (C4), late (C5, C5b).
//!
//! Named after the domain; it holds for every proxy mode.

use super::{Case, Finding, text::length};
use crate::{
    class::{Class, Confidence, Severity, action},
    cluster::{Usable, Via},
    flow::{Outcome, RefusalKind, Stage},
    node::{Presence, Rule, interfaces::Dataplane},
    sighting::Hook,
    verdict::EvidenceType,
};

/// C4, or C5 within the grace.
/// Mechanism: the rule "no endpoints" still stands although the API has some: kube-proxy's sync failed, or is late.
/// For: a refusal before any endpoint was chosen, and usable endpoints in the API.
/// Against: endpoints younger than the grace: then it is lag, which passes.
pub(super) fn refused(case: &Case<'_>) -> Option<Finding> {
    let refusal = case.trouble()?.refusal.filter(|refusal| refusal.kind != RefusalKind::NoDestination)?;
    if refusal.stage != Stage::Before || case.endpoint.is_some() || !case.failed() {
        return None;
    }
    let usable = case.usable().filter(|usable| usable.count > 0)?;
    if case.within_grace(usable.since) {
        return Some(lag(
            case,
            &format!(
                "the rules still refuse {}, which has had endpoints for {}",
                case.name(),
                length(case.age(usable.since))
            ),
        ));
    }
    Some(
        Finding::new(
            Class::C4,
            format!(
                "the rules refuse {} although it has {}: kube-proxy's sync fails",
                case.name(),
                case.usable_count()
            ),
        )
        .confidence(Confidence::Medium)
        .api(Some(usable.since), case.usable_evidence())
        .unobserved("kube-proxy's log and its sync metrics")
        .with_ruling(case, Rule::Refuses),
    )
}

/// C1, C5 or C5b.
/// Mechanism: the packet passed the node's NAT rules and none translated its VIP (a null binding), which is decided
/// once for the connection: it goes to an address that no host has.
/// For: the reply tuple still names the VIP, in the namespace of kube-proxy's rules, while the API has endpoints.
/// Or no entry at all on a node without any rule of kube-proxy's: where nothing asks for conntrack, the kernel does
/// not track (`nf_ct_netns_get` is called for rules), so a node that kube-proxy never reached shows no decision.
/// Which of them: C1 where kube-proxy or all of its rules are missing, or no Service is translated any more; C5b where
/// the rule stands by now; else C5.
/// Against: an answer all the same: then something else serves the address. No fault of this node's rules at all, and
/// none is claimed: a node port asked for on another node's address; a packet that a rule dropped before it could be
/// translated, though a rule that translates stands (source ranges, C23, or a firewall).
pub(super) fn untranslated(case: &Case<'_>) -> Option<Finding> {
    let node = case.ctx.node;
    let rules = node.proxy_rules.any();
    let running = node.running;
    let untracked = case.decision.is_none()
        && case.endpoint.is_none()
        && rules == Presence::Absent
        && case.has_hook(Hook::Confirm)
        && matches!(
            case.outcome,
            Outcome::Stalled | Outcome::Abandoned | Outcome::Unreachable | Outcome::Dropped
        );
    if !(case.untranslated() || untracked) || case.flow.was_answered() || case.other_nodes_port().is_some() {
        return None;
    }
    let usable = case.usable().filter(|usable| usable.count > 0)?;
    let rule = node.rule(case.vip.addr, case.vip.port.protocol);
    if case.within_grace(usable.since) {
        let what = format!(
            "no rule translates {} yet: it has had endpoints for {}",
            case.name(),
            length(case.age(usable.since))
        );
        return Some(lag(case, &what));
    }
    if let Some(dataplane) = node.served_elsewhere() {
        return Some(out_of_scope(case, dataplane));
    }
    let elsewhere = case.ctx.translations.other_services_untranslated(case.vip.addr, case.decided);
    if running == Some(false) || rules == Presence::Absent || elsewhere {
        return Some(lowered(case, no_proxy(case, usable, rule, elsewhere)));
    }
    let dropped = case.rule_drop().is_some();
    if dropped && (rule.is_some_and(|rule| rule != Rule::Missing) || case.vip.via == Via::LoadBalancerIp) {
        return None;
    }
    if rule == Some(Rule::Forwards) {
        return Some(before_the_rule(case));
    }
    let confidence = if rule == Some(Rule::Missing) { Confidence::High } else { Confidence::Medium };
    let mut finding = Finding::new(
        Class::C5,
        format!("no rule on this node translates {}, although it has {}", case.name(), case.usable_count()),
    )
    .confidence(confidence)
    .api(Some(usable.since), case.usable_evidence())
    .related(&[Class::C4]);
    finding = match rule {
        Some(Rule::Missing) => finding.node(node.read_at(), format!("no rule names {}", case.vip.addr)),
        Some(Rule::Refuses | Rule::Drops) => finding.against(
            EvidenceType::Node,
            node.read_at(),
            format!("a rule for {} stood when the node was read: it refuses or drops", case.vip.addr),
        ),
        _ => finding.unobserved(format!("whether a rule for {} stands now", case.vip.addr)),
    };
    Some(lowered(case, finding))
}

/// Others were answered although nothing here translated them: that a rule is missing then need not be the reason.
fn lowered(case: &Case<'_>, mut finding: Finding) -> Finding {
    if case.ctx.translations.served_elsewhere(case.decided) {
        finding.confidence = Confidence::Low;
        finding = finding.against(
            EvidenceType::Kernel,
            Some(case.decided),
            "other Services were answered lately although this node's rules did not translate them: something that \
             netfilter does not see serves Services here",
        );
    }
    finding
}

/// Another program serves Services here, where netfilter does not see it: nothing follows from a missing translation.
fn out_of_scope(case: &Case<'_>, dataplane: Dataplane) -> Finding {
    Finding::new(
        Class::Unknown,
        format!(
            "{} was not served, and on this node {dataplane} may serve Services, not kube-proxy",
            case.name()
        ),
    )
    .confidence(Confidence::Low)
    .node(case.ctx.node.read_at(), format!("neither kube-proxy nor rules of it; interfaces of {dataplane}"))
    .unobserved(format!("what {dataplane} decided: it does not use the hooks that viptrace watches"))
    .now(&[action::READ_OTHER_DATAPLANE])
    .later(&[])
    .fill("DATAPLANE", dataplane.as_str())
}

fn no_proxy(case: &Case<'_>, usable: Usable, rule: Option<Rule>, elsewhere: bool) -> Finding {
    let running = case.ctx.node.running;
    // One family may be known to have none while the other was not read: for IPv6 that proves nothing.
    let rules = if case.vip.addr.is_ipv4() { case.ctx.node.proxy_rules.any() } else { Presence::Unknown };
    let stands = rule == Some(Rule::Forwards) && rules != Presence::Absent;
    let detail = match (running, rules) {
        (_, Presence::Absent) => "none of kube-proxy's rules stand on this node",
        (Some(false), _) if stands => {
            "kube-proxy is not running on this node, and its rules did not have this Service yet"
        }
        (Some(false), _) => "kube-proxy is not running on this node, and its rules lack this Service",
        _ => "no Service is translated on this node any more",
    };
    let certain = !stands && (running == Some(false) || rules == Presence::Absent) && case.decision.is_some();
    let mut finding = Finding::new(Class::C1, format!("{detail}: {} is not translated", case.name()))
        .confidence(if certain { Confidence::High } else { Confidence::Medium })
        .api(Some(usable.since), case.usable_evidence())
        .related(&[Class::C5e]);
    if running == Some(false) {
        finding = finding.node(case.ctx.node.read_at(), "no kube-proxy process");
    }
    if rules == Presence::Absent {
        let what = if case.is_ipvs() {
            "no virtual server in IPVS's table"
        } else {
            "no KUBE-SERVICES rules, or nothing leads to them"
        };
        finding = finding.node(case.ctx.node.read_at(), what);
    }
    if elsewhere {
        finding = finding.node(
            Some(case.decided),
            "connections to other Services were not translated either, and none was lately",
        );
    }
    if stands {
        finding = finding.against(
            EvidenceType::Node,
            case.ctx.node.read_at(),
            format!(
                "a rule translates {} now: the connection may only be older than it (C5b)",
                case.vip.addr
            ),
        );
    }
    if running == Some(true) {
        finding = finding.against(
            EvidenceType::Node,
            case.ctx.node.read_at(),
            "kube-proxy runs: it may just be starting, or something else flushed its rules (C5e)",
        );
    }
    if case.decision.is_none() {
        finding = finding
            .unobserved("a NAT decision: no conntrack entry was made, for nothing on this node asks for one");
    }
    if running.is_none() && rules == Presence::Unknown {
        finding = finding.unobserved("whether kube-proxy runs and which rules stand");
    }
    finding
}

/// C5b (kubernetes/kubernetes#48719).
fn before_the_rule(case: &Case<'_>) -> Finding {
    let vip = case.vip.addr;
    Finding::new(
        Class::C5b,
        format!(
            "the connection is older than the rule for {}: it stays untranslated, new ones work",
            case.name()
        ),
    )
    .confidence(Confidence::Medium)
    .node(case.ctx.node.read_at(), format!("a rule translates {vip} now"))
}

/// C5 within the grace: passes by itself.
pub(super) fn lag(case: &Case<'_>, what: &str) -> Finding {
    let mut finding = Finding::new(Class::C5, format!("{what}: kube-proxy has not caught up"))
        .confidence(Confidence::Medium)
        .severity(Severity::Low)
        .unobserved("kube-proxy's network programming latency")
        .now(&[action::WAIT]);
    if let Some(usable) = case.usable() {
        finding = finding.api(Some(usable.since), case.usable_evidence());
    }
    finding
}

/// What an untranslated connection that was answered tells against its health.
pub(super) fn answered_elsewhere(case: &Case<'_>) -> Option<&'static str> {
    (case.untranslated()
        && case.other_nodes_port().is_none()
        && matches!(case.outcome, Outcome::Closed | Outcome::Established | Outcome::Reset(_)))
    .then_some("this node's rules did not translate the address, yet it answered: something else serves it")
}
