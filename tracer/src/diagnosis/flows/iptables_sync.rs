//! Rules that differ from the API: never written (C1), rejected (C4), late (C5, C5b).
//!
//! Named after the domain; applies to every proxy mode.

use std::fmt;

use super::{Case, Finding, ipvs, sidecar, text::length};
use crate::{
    class::{Class, Confidence, Severity, action},
    cluster::{Usable, Via},
    flow::Outcome,
    node::{Presence, RuleEffect, interfaces::Dataplane},
    sighting::Hook,
    time::Timestamp,
    verdict::EvidenceType,
};

/// C4, or C5 within the grace.
/// Mechanism: the rule "no endpoints" still exists although the API has some: kube-proxy's sync failed, or is late.
/// For: a refusal before any endpoint was chosen, and usable endpoints in the API.
/// Against: endpoints younger than the grace: then it is lag, which resolves itself. Excluded are a Local policy without an
/// endpoint on this node, where old releases refuse by design (C22), endpoints that the API removed right after (C20), and
/// another node's port, for which this node has no rule of kube-proxy (C30).
pub(super) fn refused(case: &Case<'_>) -> Option<Finding> {
    case.refused_before_choice()?;
    if !case.failed() || case.has_no_local_endpoint() || case.other_nodes_port().is_some() {
        return None;
    }
    let usable = case.usable().filter(|usable| usable.count > 0)?;
    let since = case.choosable_since(usable);
    if case.within_grace(since) {
        return Some(lag(
            case,
            format_args!(
                "the rules still refuse {}, which has existed with endpoints for {}",
                case.name(),
                length(case.age(since))
            ),
        ));
    }
    Some(
        case.finding(
            Class::C4,
            format_args!(
                "the rules refuse {} although it has {}: kube-proxy's sync fails",
                case.name(),
                case.usable_count()
            ),
        )
        .confidence(Confidence::Medium)
        .api(Some(usable.since), case.usable_evidence())
        .unobserved("kube-proxy's log and its sync metrics")
        .with_effect(case, RuleEffect::Refuses),
    )
}

/// C1, C5 or C5b.
/// Mechanism: the packet passed the node's NAT rules and none translated its VIP (a null binding). NAT decides once for
/// the connection, so it goes to an address that no host has.
/// For: the reply tuple still names the VIP, in the namespace of kube-proxy's rules, while the API has endpoints. Or no
/// entry at all on a node without any rule of kube-proxy: the kernel tracks connections only if a rule needs it
/// (`nf_ct_netns_get` is called for rules), so a node without kube-proxy's rules shows no decision. The class: C1 if
/// kube-proxy or all of its rules are missing, or if no Service is translated; C5b if the rule now exists; otherwise
/// C5.
/// Against: an answer, which shows that another program serves the address. Two cases are not faults of this node's
/// rules and are excluded: a node port at another node's address; a packet that a rule dropped before its translation
/// although a translating rule exists (source ranges, C23, or a firewall).
pub(super) fn untranslated(case: &Case<'_>) -> Option<Finding> {
    let node = case.ctx.node;
    let rules = node.proxy_rules.any();
    let running = node.running;
    let untracked = case.decision.is_none()
        && case.endpoint.is_none()
        && rules == Presence::Absent
        && case.has_hook(Hook::Confirm)
        && !sidecar::is_redirected(case)
        && matches!(
            case.outcome,
            Outcome::Stalled
                | Outcome::Abandoned
                | Outcome::Unreachable
                | Outcome::Dropped
                | Outcome::Refused
        );
    if !(case.untranslated() || untracked) || case.flow.was_answered() || case.other_nodes_port().is_some() {
        return None;
    }
    let usable = case.usable().filter(|usable| usable.count > 0)?;
    let rule = node.rule(case.vip.addr, case.vip.port.protocol);
    if case.within_grace(usable.since) {
        return Some(lag(
            case,
            format_args!(
                "no rule translates {} yet: it has existed with endpoints for {}",
                case.name(),
                length(case.age(usable.since))
            ),
        ));
    }
    if let Some(dataplane) = case.other_dataplane() {
        return Some(out_of_scope(case, dataplane));
    }
    if let Some(finding) = ipvs::unusable(case, usable) {
        return Some(finding);
    }
    // Several Services without a rule while kube-proxy runs and its rules stand: each lacks its own rule (C4, C5).
    let works = running == Some(true) && rules == Presence::Present;
    let elsewhere = !works && case.ctx.translations.other_services_untranslated(case.vip.addr, case.decided);
    if running == Some(true)
        && rules == Presence::Absent
        && let Some(written) = rules_were_written(case)
    {
        return Some(lowered(case, removed(case, usable, written)));
    }
    if running == Some(false) || rules == Presence::Absent || elsewhere {
        return Some(lowered(case, no_proxy(case, usable, rule, elsewhere)));
    }
    let dropped = case.rule_drop().is_some();
    if dropped
        && (rule.is_some_and(|rule| rule != RuleEffect::Missing) || case.vip.via == Via::LoadBalancerIp)
    {
        return None;
    }
    let older = if rule == Some(RuleEffect::Forwards) { before_the_rule(case) } else { None };
    if older.is_some() {
        return older;
    }
    let confidence = if rule == Some(RuleEffect::Missing) { Confidence::High } else { Confidence::Medium };
    let mut finding = case
        .finding(
            Class::C5,
            format_args!(
                "no rule on this node translates {}, although it has {}",
                case.name(),
                case.usable_count()
            ),
        )
        .confidence(confidence)
        .api(Some(usable.since), case.usable_evidence())
        .related(&[Class::C4]);
    if rule != Some(RuleEffect::Missing) {
        // Without the event of a drop or a refusal, a rule that stops the packet looks the same (C4, C21 to C23).
        finding = finding.if_nothing_was_lost();
    }
    finding = match rule {
        Some(RuleEffect::Missing) => {
            finding.node(node.read_at(), format_args!("no rule names {}", case.vip.addr))
        }
        Some(RuleEffect::Forwards) => finding.against(
            EvidenceType::Node,
            node.read_at(),
            format_args!(
                "a rule translated {} when the node was read, and not a connection after that",
                case.vip.addr
            ),
        ),
        Some(RuleEffect::Refuses | RuleEffect::Drops) => finding.against(
            EvidenceType::Node,
            node.read_at(),
            format_args!("a rule for {} existed when the node was read: it refuses or drops", case.vip.addr),
        ),
        _ => finding.unobserved(format_args!("whether a rule for {} exists now", case.vip.addr)),
    };
    Some(lowered(case, finding))
}

/// Other connections were answered without a translation here, so a missing rule may not be the reason.
fn lowered(case: &Case<'_>, mut finding: Finding) -> Finding {
    if case.ctx.translations.served_elsewhere(case.decided) {
        finding.confidence = Confidence::Low;
        finding.severity = finding.severity.min(Severity::Medium);
        finding = finding.against(
            EvidenceType::Kernel,
            Some(case.decided),
            "other Services answered recently although this node's rules did not translate them: a program that \
             netfilter does not see serves Services here",
        );
    }
    finding
}

/// Another program serves Services here and bypasses netfilter: a missing translation proves nothing.
fn out_of_scope(case: &Case<'_>, dataplane: Dataplane) -> Finding {
    case.finding(
        Class::Unknown,
        format_args!(
            "{} was not served, and on this node {dataplane} may serve Services, not kube-proxy",
            case.name()
        ),
    )
    .confidence(Confidence::Low)
    .node(
        case.ctx.node.read_at(),
        format_args!("interfaces of {dataplane}, and no kube-proxy with rules in force"),
    )
    .unobserved(format_args!("what {dataplane} decided: it does not use the hooks that viptrace watches"))
    .now(&[action::READ_OTHER_DATAPLANE])
    .later(&[])
    .fill("DATAPLANE", dataplane.as_str())
}

/// The evidence that this kube-proxy has written its rules before: its last sync, or a translation that was observed.
fn rules_were_written(case: &Case<'_>) -> Option<(Timestamp, &'static str)> {
    let synced =
        case.ctx.node.report.last_synced.filter(|synced| Timestamp::MIN < *synced && *synced < case.decided);
    let synced = synced.map(|synced| (synced, "kube-proxy has written its rules"));
    synced.or_else(|| {
        // One that has just started removes the rules of the mode before it (`platformCleanup`).
        let own = |at: &Timestamp| case.ctx.node.report.started.is_none_or(|started| *at > started);
        let translated = case.ctx.translations.translated_before(case.decided).filter(own)?;
        Some((translated, "its rules translated connections"))
    })
}

/// C5e.
/// Mechanism: kube-proxy has written its rules and runs, and none are left: another program removed them. kube-proxy
/// notices it by its canary chain within 30 s in iptables mode (`iptables.Monitor`, `pkg/util/iptables/iptables.go`), and
/// in the other modes at its next full sync.
fn removed(case: &Case<'_>, usable: Usable, (written, how): (Timestamp, &'static str)) -> Finding {
    let node = case.ctx.node;
    let mut finding = case
        .finding(
            Class::C5e,
            format_args!(
                "another program removed the rules of kube-proxy, which runs: {} is not translated",
                case.name()
            ),
        )
        .confidence(if case.decision.is_some() { Confidence::High } else { Confidence::Medium })
        .api(Some(usable.since), case.usable_evidence())
        .node(node.read_at(), "no rules of kube-proxy in the kernel, and a running kube-proxy")
        .node(Some(written), how)
        .unobserved("which program removed them")
        .related(&[Class::C1]);
    if case.decision.is_none() {
        finding = untracked(finding);
    }
    finding
}

/// Without any rule that needs conntrack the kernel registers none of its hooks in a namespace
/// (`nf_ct_netns_get`, `net/netfilter/nf_conntrack_proto.c`).
fn untracked(finding: Finding) -> Finding {
    finding
        .if_nothing_was_lost()
        .unobserved("a NAT decision: there is no conntrack entry, because no rule on this node needs one")
}

fn no_proxy(case: &Case<'_>, usable: Usable, rule: Option<RuleEffect>, elsewhere: bool) -> Finding {
    let running = case.ctx.node.running;
    // If one family is known to have no rules while the other was not read, this proves nothing for IPv6.
    let rules = if case.vip.addr.is_ipv4() { case.ctx.node.proxy_rules.any() } else { Presence::Unknown };
    let stands = rule == Some(RuleEffect::Forwards) && rules != Presence::Absent;
    let detail = match (running, rules) {
        (_, Presence::Absent) => "this node has no rules of kube-proxy",
        (Some(false), _) if stands => {
            "kube-proxy is not running on this node, and its rules did not have this Service yet"
        }
        (Some(false), _) => "kube-proxy is not running on this node, and its rules lack this Service",
        _ => "this node no longer translates any Service",
    };
    let certain = !stands && (running == Some(false) || rules == Presence::Absent) && case.decision.is_some();
    let mut finding = case
        .finding(Class::C1, format_args!("{detail}: {} is not translated", case.name()))
        .confidence(if certain { Confidence::High } else { Confidence::Medium })
        .api(Some(usable.since), case.usable_evidence())
        .related(&[Class::C5e]);
    if rules != Presence::Absent {
        // Without the event of a refusal, a rule that refuses looks the same (C4).
        finding = finding.if_nothing_was_lost();
    }
    if running == Some(false) {
        finding = finding.node(case.ctx.node.read_at(), "no kube-proxy process");
    }
    if rules == Presence::Absent {
        let what = if case.is_ipvs() {
            "no virtual server in IPVS's table"
        } else {
            "no KUBE-SERVICES rules, or no jump to them"
        };
        finding = finding.node(case.ctx.node.read_at(), what);
    }
    if elsewhere {
        finding = finding.node(
            Some(case.decided),
            "connections to other Services were not translated either, and none was recently",
        );
    }
    if stands {
        finding = finding.against(
            EvidenceType::Node,
            case.ctx.node.read_at(),
            format_args!(
                "a rule translates {} now: the connection may only be older than the rule (C5b)",
                case.vip.addr
            ),
        );
    }
    if running == Some(true) {
        finding = finding.against(
            EvidenceType::Node,
            case.ctx.node.read_at(),
            "kube-proxy runs: it may be starting, or another program removed its rules (C5e)",
        );
    }
    if case.decision.is_none() {
        finding = untracked(finding);
    }
    if running.is_none() && rules == Presence::Unknown {
        finding = finding.unobserved("whether kube-proxy runs and which rules exist");
    }
    finding
}

/// C5b (kubernetes/kubernetes#48719).
/// For: the rule exists when it is read after the connection. A later connection that was translated proves that new ones
/// work. Against: one that was not, after the rule was read.
fn before_the_rule(case: &Case<'_>) -> Option<Finding> {
    let (vip, translations) = (case.vip.addr, case.ctx.translations);
    let read = case.ctx.node.read_at();
    if read.is_some_and(|read| translations.untranslated_after(vip, read).is_some()) {
        return None;
    }
    let finding = case
        .finding(
            Class::C5b,
            format_args!(
                "the connection is older than the rule for {}: it stays untranslated, new ones work",
                case.name()
            ),
        )
        .node(read, format_args!("a rule translates {vip} now"));
    Some(match translations.translated_after(vip, case.decided) {
        Some(time) => finding.kernel(Some(time), format_args!("a later connection to {vip} was translated")),
        None => finding
            .confidence(Confidence::Medium)
            .unobserved("a new connection: the rule was read after this one, and should translate it"),
    })
}

/// C5 within the grace: resolves itself.
pub(super) fn lag(case: &Case<'_>, what: fmt::Arguments<'_>) -> Finding {
    let mut finding = case
        .finding(Class::C5, format_args!("{what}: kube-proxy has not caught up"))
        .confidence(Confidence::Medium)
        .severity(Severity::Low)
        .unobserved("kube-proxy's network programming latency")
        .now(&[action::WAIT]);
    if let Some(usable) = case.usable() {
        finding = finding.api(Some(usable.since), case.usable_evidence());
    }
    finding
}

/// Evidence against the health of an untranslated connection that was answered.
pub(super) fn answered_elsewhere(case: &Case<'_>) -> Option<&'static str> {
    (case.untranslated()
        && case.other_nodes_port().is_none()
        && matches!(case.outcome, Outcome::Closed | Outcome::Established | Outcome::Reset(_)))
    .then_some("this node's rules did not translate the address, but it answered: another program serves it")
}
