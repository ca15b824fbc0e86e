//! Step 3: compares the rules with those that kube-proxy should have written (K6), and makes findings.
//!
//! Owns the meaning of a difference in the context of the other findings: its cause, its reach and the actions. The
//! audit finds the differences.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Facts, Finding, Level, Step, moment::Moment, settings};
use crate::{
    class::{Action, Class, Confidence, Domain, Severity, action},
    cluster::Key,
    diagnosis::{
        audit::{self, Aspect, Context, Discrepancy, Expected, Kind, SyncState, SyncStatus},
        finding::Say,
    },
    net::Family,
    node::ProxyMode,
    rules::Writer,
    text::count,
    time::Timestamp,
    verdict::{Evidence, EvidenceType},
};

/// The most Services of one cause that get a finding each. If there are more, the node gets one finding.
pub(super) const MAX_SERVICES: usize = 8;
/// The most differences quoted as evidence of one finding; the others are counted.
pub(super) const MAX_QUOTED: usize = 6;

/// Compares the rules with the API if both are known. Returns the reasons why it could not.
pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) -> Vec<String> {
    let Some(history) = facts.services() else { return Vec::new() };
    let known = |family: &Family| facts.node.knows_rules(*family);
    let elsewhere = facts.served_elsewhere().is_some() || facts.node.kube_proxy_elsewhere().is_some();
    if !Family::ALL.iter().any(known) || elsewhere {
        return Vec::new();
    }
    let (Some(mode), Some(node)) = (facts.node.mode, facts.known_node()) else {
        return vec!["each rule against the API: the mode or the node's name is unknown".to_owned()];
    };
    let context = context(facts, node, mode);
    let mut expected = Expected::new(history, &context);
    expected.trace_back(history, &facts.node.rules, &context);
    let mut audit = audit::audit(&expected, &facts.node.rules, &context);
    // A family whose rules were not read has no missing rule.
    audit.discrepancies.retain(|found| known(&found.family));
    // IPVS serves keepalived and others, too.
    if !super::rules::has_servers_of_services(facts) {
        audit
            .discrepancies
            .retain(|found| found.aspect != Aspect::Writer || found.writer != Some(Writer::Ipvs));
    }
    let moment = Moment::of(facts);
    audit.discrepancies.iter_mut().for_each(|found| moment.settle(found, context.sync.grace));
    take(mode, facts, &audit.discrepancies, findings);
    let gap = |gap: &String| format!("rules against the API: {gap}");
    expected.gaps.iter().chain(&audit.gaps).map(gap).collect()
}

fn context(facts: &Facts, node: &str, mode: ProxyMode) -> Context {
    let at = facts.taken.unwrap_or(Timestamp::MAX);
    let mut context = Context::new(node, mode, at);
    let be_liberal = facts
        .node
        .sysctls
        .as_ref()
        .and_then(|sysctls| sysctls.number("net/netfilter/nf_conntrack_tcp_be_liberal"));
    context.tcp_be_liberal = be_liberal.map(|value| value != 0);
    context.release = facts.node.release();
    context.oldest_release = facts.node.oldest_release();
    context.uses_terminating = facts.node.uses_terminating();
    context.settings = facts.node.config.as_ref().map(|config| settings::settings(config, facts, node, mode));
    context.tcp_be_liberal = context
        .tcp_be_liberal
        .or_else(|| facts.node.config.as_ref().and_then(|config| config.tcp_be_liberal));
    context.own_addresses = settings::own_addresses(facts);
    let listings = facts.node.listings;
    context.unread =
        Family::ALL.into_iter().filter(|family| !listings.iptables(*family).is_conclusive()).collect();
    context.sync = sync(facts, at);
    context
}

/// The time that a change may take to reach the rules: the grace of the catalogue, section 3.
pub(super) fn grace(facts: &Facts) -> Duration {
    facts.node.report.grace(SyncStatus::default().grace)
}

/// The latest queued update and the oldest write of both families, and the grace.
fn sync(facts: &Facts, at: Timestamp) -> SyncStatus {
    // The age of a waiting update comes from kube-proxy's own clock, not from the time at which a folder is read.
    let clock = facts.node.proxy_clock.and_then(Timestamp::from_unix_secs_f64);
    let skew = clock.map_or(Duration::ZERO, |clock| at.since(clock));
    let waits = facts.sync_times().iter().any(|times| times.last_queued > times.last_synced);
    let report = &facts.node.report;
    SyncStatus {
        last_queued: report
            .last_queued
            .map(|queued| if waits { queued.saturating_add(skew) } else { queued }),
        last_synced: report.last_synced,
        grace: grace(facts),
    }
}

/// Every class that [`class_of`] can return.
pub(super) const GIVES: &[Class] = &[
    Class::C1,
    Class::C2,
    Class::C3,
    Class::C4,
    Class::C5,
    Class::C5c,
    Class::C5e,
    Class::C6,
    Class::C10,
    Class::C12,
    Class::C18,
    Class::C20,
    Class::C21,
    Class::C22,
    Class::C23,
    Class::C24,
    Class::C31,
];

/// A difference and its class.
type Named<'d> = (Class, &'d Discrepancy);

/// The class of a difference, from its aspect, the mode and kube-proxy's own times.
fn class_of(found: &Discrepancy, mode: ProxyMode) -> Class {
    let other_backend = mode == ProxyMode::Iptables && found.writer.is_some_and(Writer::is_iptables);
    match (found.aspect, found.kind) {
        (Aspect::Frame | Aspect::Share | Aspect::Masquerade, _) if found.sync == SyncState::InFlight => {
            Class::C5
        }
        (Aspect::Frame, _) if found.writer.is_none() => Class::C1,
        (Aspect::Frame | Aspect::Guard | Aspect::Share | Aspect::Masquerade, _) => Class::C5e,
        (Aspect::InvalidPackets, _) => Class::C18,
        (Aspect::Writer, _) if other_backend => Class::C3,
        (Aspect::Writer, _) => Class::C10,
        (Aspect::Endpoint, Kind::Stale) => Class::C6,
        (Aspect::Reach | Aspect::Endpoint, _) => match found.sync {
            // IPVS refuses for a virtual server without a real server: a trace has the same class for it.
            SyncState::Unknown | SyncState::Failing | SyncState::Overwritten
                if mode == ProxyMode::Ipvs && is_empty_server(found) =>
            {
                Class::C12
            }
            SyncState::InFlight | SyncState::Unknown => Class::C5,
            SyncState::Failing => Class::C4,
            SyncState::Unheard => Class::C2,
            SyncState::Overwritten => Class::C5e,
        },
        (Aspect::Frontend, Kind::Missing) => Class::C20,
        (Aspect::Frontend, _) => Class::C6,
        (Aspect::Refusal, _) if mode == ProxyMode::Ipvs => Class::C12,
        (Aspect::Refusal, _) => Class::C20,
        (Aspect::InternalPolicy, _) => Class::C22,
        (Aspect::ExternalPolicy, _) => Class::C21,
        (Aspect::SourceRanges, _) => Class::C23,
        (Aspect::UnlistedPort, _) => Class::C5c,
        (Aspect::Affinity, _) => Class::C24,
        (Aspect::Hairpin, _) => Class::C31,
    }
}

/// A virtual server refuses although the API has endpoints.
fn is_empty_server(found: &Discrepancy) -> bool {
    found.aspect == Aspect::Reach && found.kind == Kind::Wrong && found.place.starts_with("virtual server ")
}

/// A finding about rules, with the actions for differing rules instead of the class's usual ones.
fn of_rules(class: Class, detail: impl Say, is_in_flight: bool) -> Finding {
    let mut finding = Finding::new(class, detail);
    if class == Class::C5c {
        finding = finding.domain(Domain::IptablesSync);
    }
    let listed = |action: &&Action| class.entry().now.contains(action);
    let special =
        is_in_flight.then_some(&action::WAIT).into_iter().chain([&action::RULES_DIFFER]).find(listed);
    match special {
        Some(action) => finding.now(&[*action]),
        None => finding,
    }
}

/// Makes findings of the differences, and adds explained differences to the findings that explain them.
fn take(mode: ProxyMode, facts: &Facts, discrepancies: &[Discrepancy], findings: &mut Vec<Finding>) {
    let named: Vec<Named<'_>> = discrepancies.iter().map(|found| (class_of(found, mode), found)).collect();
    let (node, of_service): (Vec<_>, Vec<_>) = named.iter().partition(|(_, found)| found.service.is_none());
    whole_node(facts, &node, findings);

    let mut by_class = BTreeMap::<Class, BTreeMap<&str, Vec<&Discrepancy>>>::new();
    for (class, found) in of_service {
        if let Some(service) = &found.service {
            by_class.entry(class).or_default().entry(service).or_default().push(found);
        }
    }
    for (class, mut services) in by_class {
        if class == Class::C2 {
            unheard(&services, findings);
        }
        services.retain(|service, found| !is_explained(service, found, findings));
        if services.len() > MAX_SERVICES {
            findings.push(many(class, &services));
        } else {
            findings.extend(services.iter().map(|(service, found)| one(class, mode, service, found)));
        }
    }
    of_outage(&named, findings);
}

/// Whether it is of a lost API, which concerns the rules of all Services.
fn is_outage(finding: &Finding) -> bool {
    finding.class == Class::C2 && finding.said().service.is_none()
}

/// The rules show whether an outage of the API has an effect: if they do, a suspected one is certain. If they have
/// every change, a change that kube-proxy queued nothing for concerned no rule.
fn of_outage(named: &[Named<'_>], findings: &mut Vec<Finding>) {
    let unheard = named.iter().any(|(_, found)| found.sync == SyncState::Unheard);
    let stale = named.iter().any(|(class, found)| *class == Class::C6 && found.sync == SyncState::Unknown);
    if let Some(cause) = findings.iter_mut().find(|finding| is_outage(finding))
        && (unheard || stale && cause.level != Level::Note)
    {
        cause.level = Level::Fault;
        cause.confidence = Confidence::High;
    }
    if named.is_empty() {
        let only_suspected = |finding: &Finding| {
            finding.level == Level::Warning
                && finding.said().evidence.iter().all(|evidence| evidence.r#type == EvidenceType::Api)
        };
        findings.retain(|finding| !(is_outage(finding) && only_suspected(finding)));
    }
}

/// A VIP that is missing on kube-ipvs0 explains every difference of its Service: its finding gets the difference as
/// evidence.
fn is_explained(service: &str, found: &[&Discrepancy], findings: &mut [Finding]) -> bool {
    let is_cause = |finding: &&mut Finding| {
        let own = finding.said().service.as_ref();
        let name = own.map(|service| format!("{}/{}", service.namespace, service.name));
        finding.class == Class::C11 && name.is_none_or(|name| name == service)
    };
    let Some(cause) = findings.iter_mut().find(is_cause) else { return false };
    if let Some(first) = found.first().filter(|_| cause.said().evidence.len() < MAX_QUOTED) {
        cause.note(evidence(first));
    }
    true
}

/// The frame and foreign writers: an existing finding gets the audit's text as evidence.
fn whole_node(facts: &Facts, discrepancies: &[Named<'_>], findings: &mut Vec<Finding>) {
    let mut seen = BTreeSet::new();
    for &(class, found) in discrepancies {
        let is_frame = found.aspect == Aspect::Frame;
        let explains = |finding: &&mut Finding| {
            finding.said().service.is_none()
                && finding.level == Level::Fault
                && (finding.class == class
                    || is_frame && matches!(finding.class, Class::C1 | Class::C5e | Class::C11 | Class::C9)
                    // IPVS sees no packet to an address that is not on kube-ipvs0.
                    || found.aspect == Aspect::Reach && finding.class == Class::C11
                    || is_frame && matches!(finding.class, Class::C2 | Class::C5) && facts.never_wrote())
        };
        if let Some(cause) = findings.iter_mut().find(explains) {
            cause.note(evidence(found));
            continue;
        }
        if !seen.insert((class, found.text.as_str())) {
            continue;
        }
        let (level, severity) = match (found.sync, found.aspect) {
            (SyncState::InFlight, _) => (Level::Note, Severity::None),
            (_, Aspect::Frontend | Aspect::UnlistedPort) => (Level::Warning, Severity::Low),
            (_, Aspect::Guard) => (Level::Warning, Severity::Medium),
            (_, Aspect::Frame | Aspect::InvalidPackets | Aspect::Writer) => {
                (Level::Fault, Severity::Critical)
            }
            _ => (Level::Fault, Severity::High),
        };
        let mut finding = of_rules(class, found.text.clone(), found.sync == SyncState::InFlight)
            .severity(severity)
            .level(level)
            .since(found.since);
        finding.note(evidence(found));
        findings.push(finding);
    }
}

fn unheard(services: &BTreeMap<&str, Vec<&Discrepancy>>, findings: &mut Vec<Finding>) {
    if findings.iter().any(is_outage) {
        return;
    }
    let names: Vec<&str> = services.keys().take(MAX_QUOTED).copied().collect();
    findings.push(
        Finding::new(Class::C2, "kube-proxy does not receive changes: its rules no longer change")
            .step(Step::KubeProxy)
            .node(
                None,
                format!(
                    "changes of {} are older than the grace, and kube-proxy has queued nothing since",
                    names.join(", ")
                ),
            )
            .against(EvidenceType::Node, None, "its log contains no error")
            .confidence(Confidence::Medium),
    );
}

fn one(class: Class, mode: ProxyMode, service: &str, found: &[&Discrepancy]) -> Finding {
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    let key = Key::new(namespace, name);
    let ports: BTreeSet<&str> = found.iter().filter_map(|found| found.port.as_deref()).collect();
    let port = match ports.iter().next() {
        Some(only) if ports.len() == 1 => only,
        _ => "*",
    };
    let in_flight = found.iter().all(|found| found.sync == SyncState::InFlight);
    let first = found.first().map(|found| found.text.as_str()).unwrap_or_default();
    let others = match found.len() {
        0 | 1 => String::new(),
        several => format!("; and {}", count(several - 1, "more difference")),
    };
    let text = if first.contains(service) {
        format!("{first}{others}")
    } else {
        format!("{service}: {first}{others}")
    };
    let severity = found.iter().map(|found| severity(found)).max().unwrap_or(Severity::Medium);
    let mut finding = of_rules(class, text, in_flight)
        .severity(if in_flight { Severity::None } else { severity })
        .service(&key, port)
        .since(found.iter().filter_map(|found| found.since).min());
    if let Some(endpoint) = found.iter().find_map(|found| found.endpoint) {
        finding = finding.fill_rules_of(endpoint, Some(mode));
    }
    if in_flight {
        finding = finding.level(Level::Note).against(
            EvidenceType::Api,
            None,
            "the change is younger than the grace: a sync is under way",
        );
    }
    for found in found.iter().take(MAX_QUOTED) {
        finding.note(evidence(found));
    }
    if let Some(rest) = found.len().checked_sub(MAX_QUOTED).filter(|rest| *rest > 0) {
        finding = finding.node(None, format!("{} of this Service", count(rest, "more difference")));
    }
    finding
}

/// A finding for the whole node, because many Services are affected.
fn many(class: Class, services: &BTreeMap<&str, Vec<&Discrepancy>>) -> Finding {
    let named: Vec<&str> = services.keys().take(MAX_QUOTED).copied().collect();
    let detail = format!(
        "the rules of {} Services differ from the API: {} and {} more",
        services.len(),
        named.join(", "),
        services.len().saturating_sub(named.len())
    );
    let all = || services.values().flatten();
    let in_flight = all().all(|found| found.sync == SyncState::InFlight);
    let mut finding = of_rules(class, detail, in_flight)
        .severity(Severity::Critical)
        .since(all().filter_map(|found| found.since).min());
    for found in services.values().filter_map(|found| found.first()).take(MAX_QUOTED) {
        finding.note(evidence(found));
    }
    if in_flight {
        finding = finding.level(Level::Note);
    }
    finding
}

fn evidence(found: &Discrepancy) -> Evidence {
    let writer = found.writer.map(|writer| format!("{writer} ")).unwrap_or_default();
    let sync = match found.sync {
        SyncState::Unknown => String::new(),
        sync => format!(" ({sync})"),
    };
    let content =
        format!("{}: {} [{writer}{} {}]{sync}", found.kind.as_str(), found.text, found.family, found.place);
    Evidence { r#type: EvidenceType::Node, time: found.since, content: content.into() }
}

const fn severity(found: &Discrepancy) -> Severity {
    match (found.aspect, found.kind) {
        (Aspect::Frame | Aspect::InvalidPackets | Aspect::Writer, _) => Severity::Critical,
        (Aspect::Reach | Aspect::Refusal | Aspect::InternalPolicy | Aspect::ExternalPolicy, _)
        | (Aspect::Endpoint, Kind::Stale | Kind::Surplus | Kind::Wrong) => Severity::High,
        (Aspect::UnlistedPort | Aspect::Frontend, _) => Severity::Low,
        _ => Severity::Medium,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Family;

    fn found(aspect: Aspect, kind: Kind, sync: SyncState) -> Discrepancy {
        Discrepancy {
            kind,
            aspect,
            family: Family::Ipv4,
            service: None,
            port: None,
            frontends: Vec::new(),
            origins: Vec::new(),
            endpoint: None,
            place: "KUBE-SERVICES".into(),
            writer: Some(Writer::IptablesLegacy),
            text: String::new(),
            since: None,
            sync,
        }
    }

    #[test]
    fn kube_proxys_times_decide_the_class_of_a_missing_rule() {
        for (sync, class) in [
            (SyncState::InFlight, Class::C5),
            (SyncState::Unknown, Class::C5),
            (SyncState::Failing, Class::C4),
            (SyncState::Unheard, Class::C2),
            (SyncState::Overwritten, Class::C5e),
        ] {
            let missing = found(Aspect::Endpoint, Kind::Missing, sync);
            assert_eq!(class_of(&missing, ProxyMode::Iptables), class);
            let stale = found(Aspect::Endpoint, Kind::Stale, sync);
            assert_eq!(class_of(&stale, ProxyMode::Iptables), Class::C6, "an endpoint that left stays C6");
        }
    }

    #[test]
    fn the_mode_decides_the_class_of_foreign_rules_and_a_missing_refusal() {
        let foreign = found(Aspect::Writer, Kind::Surplus, SyncState::Unknown);
        assert_eq!(class_of(&foreign, ProxyMode::Iptables), Class::C3);
        assert_eq!(class_of(&foreign, ProxyMode::Nftables), Class::C10);
        let refusal = found(Aspect::Refusal, Kind::Wrong, SyncState::Unknown);
        assert_eq!(class_of(&refusal, ProxyMode::Iptables), Class::C20);
        assert_eq!(class_of(&refusal, ProxyMode::Ipvs), Class::C12);
        let server = Discrepancy {
            place: "virtual server 10.96.0.1:80".into(),
            ..found(Aspect::Reach, Kind::Wrong, SyncState::Failing)
        };
        assert_eq!(class_of(&server, ProxyMode::Ipvs), Class::C12);
        assert_eq!(class_of(&server, ProxyMode::Iptables), Class::C4);
        let frame = found(Aspect::Frame, Kind::Missing, SyncState::Unknown);
        assert_eq!(class_of(&frame, ProxyMode::Iptables), Class::C5e);
        assert_eq!(class_of(&Discrepancy { writer: None, ..frame }, ProxyMode::Iptables), Class::C1);
    }
}
