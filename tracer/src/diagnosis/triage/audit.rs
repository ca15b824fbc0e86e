//! Step 3: each rule against what kube-proxy should have written (K6), as findings.
//!
//! Owns what a difference means together with what else was found: its cause, its reach and what to do. The differences
//! themselves are the audit's.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{Facts, Finding, Level, Step, knows_services};
use crate::{
    class::{Class, Confidence, Domain, Safety, Severity},
    cluster::Key,
    diagnosis::audit::{self, Aspect, Context, Discrepancy, Expected, Kind, Sync, SyncState},
    net::Cidr,
    node::kube_proxy::metrics::{Metrics, SyncTimes},
    time::Timestamp,
    verdict::EvidenceType,
};

/// Services of one cause told one by one, at most; more are one finding about the node.
const SERVICES_MAX: usize = 8;
/// Differences quoted as evidence of one finding, at most; the rest is counted.
const QUOTED_MAX: usize = 6;

/// Compares the rules with the API, where both are known. Answers what kept it from doing so.
pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) -> Vec<String> {
    let Some(history) = facts.history.as_ref().filter(|_| knows_services(facts)) else { return Vec::new() };
    if facts.rules.any().is_none() {
        return Vec::new();
    }
    let (Some(mode), Some(node)) = (facts.mode(), facts.known_node()) else {
        return vec!["each rule against the API: the mode or the node's name is not known".to_owned()];
    };
    let context = context(facts, node, mode);
    let mut expected = Expected::new(history, &context);
    expected.trace_back(history, &facts.ruleset, &context);
    let audit = audit::audit(&expected, &facts.ruleset, &context);
    take(facts, &audit.discrepancies, findings);
    let gap = |gap: &String| format!("rules against the API: {gap}");
    expected.gaps.iter().chain(&audit.gaps).map(gap).collect()
}

fn context(facts: &Facts, node: &str, mode: crate::node::ProxyMode) -> Context {
    let at = facts.taken.unwrap_or(Timestamp::MAX);
    let mut context = Context::new(node, mode, at);
    let be_liberal = facts
        .sysctls
        .as_ref()
        .and_then(|sysctls| sysctls.number("net/netfilter/nf_conntrack_tcp_be_liberal"));
    context.tcp_be_liberal = be_liberal.map(|value| value != 0);
    if let Some(config) = facts.config() {
        let ranges = |texts: &[String]| texts.iter().filter_map(|text| Cidr::parse(text)).collect::<Vec<_>>();
        context.cluster_cidrs = ranges(&config.cluster_cidrs);
        context.masquerade_all = config.masquerade_all.unwrap_or(false);
        context.node_port_addresses = ranges(&config.node_port_addresses);
        if config.node_port_addresses.iter().any(|range| range == "primary") {
            let own = facts.history.as_ref().and_then(|history| history.node(node, Timestamp::MAX));
            let whole =
                |ip: &std::net::IpAddr| Cidr { base: *ip, prefix: if ip.is_ipv4() { 32 } else { 128 } };
            context.node_port_addresses.extend(own.iter().flat_map(|node| node.addresses.iter().map(whole)));
        }
        context.tcp_be_liberal = context.tcp_be_liberal.or(config.tcp_be_liberal);
    }
    let times = facts.metrics.as_ref().map(Metrics::sync_times).unwrap_or_default();
    context.sync = sync(&times, facts, at);
    context
}

/// The latest wish and the oldest write of both families; the grace window of the catalogue, section 3.
fn sync(times: &[SyncTimes], facts: &Facts, at: Timestamp) -> Sync {
    let moment = |seconds: f64| {
        Duration::try_from_secs_f64(seconds)
            .ok()
            .and_then(|since| u64::try_from(since.as_nanos()).ok())
            .map(Timestamp::from_unix_ns)
    };
    // What waits is as old as it was by kube-proxy's own clock, not by that of a folder that was read later.
    let skew = facts.proxy_clock.and_then(moment).map_or(Duration::ZERO, |clock| at.since(clock));
    let waits = times.iter().any(|times| times.last_queued > times.last_synced);
    let queued = times.iter().map(|times| times.last_queued).reduce(f64::max).and_then(moment);
    let mut sync = Sync {
        last_queued: queued.map(|queued| if waits { queued.saturating_add(skew) } else { queued }),
        last_synced: times.iter().map(|times| times.last_synced).reduce(f64::min).and_then(moment),
        ..Sync::default()
    };
    let period = facts.config().and_then(|config| config.min_sync_period).unwrap_or_default();
    let p99 = facts
        .metrics
        .as_ref()
        .and_then(|metrics| metrics.quantile("kubeproxy_network_programming_duration_seconds", 0.99));
    let p99 = p99.map(|(bound, _)| bound).filter(|bound| bound.is_finite() && *bound < 300.0);
    let p99 = p99.and_then(|bound| Duration::try_from_secs_f64(bound).ok()).unwrap_or_default();
    sync.grace = sync.grace.max(period.saturating_mul(2)).max(p99);
    sync
}

/// Makes findings of the differences, and hands those that are explained already to what explains them.
fn take(facts: &Facts, discrepancies: &[Discrepancy], findings: &mut Vec<Finding>) {
    let (node, of_service): (Vec<_>, Vec<_>) =
        discrepancies.iter().partition(|found| found.service.is_none());
    whole_node(facts, &node, findings);

    let mut groups = BTreeMap::<(Class, &Arc<str>), Vec<&Discrepancy>>::new();
    for found in of_service {
        if let Some(service) = &found.service {
            groups.entry((class_of(found), service)).or_default().push(found);
        }
    }
    let mut by_class = BTreeMap::<Class, Vec<(&Arc<str>, Vec<&Discrepancy>)>>::new();
    for ((class, service), found) in groups {
        by_class.entry(class).or_default().push((service, found));
    }
    for (class, services) in by_class {
        if class == Class::C2 {
            unheard(&services, findings);
        }
        let services: Vec<_> =
            services.into_iter().filter(|(service, found)| !is_explained(service, found, findings)).collect();
        if services.is_empty() {
            continue;
        }
        if services.len() > SERVICES_MAX {
            findings.push(many(class, &services));
            continue;
        }
        for (service, found) in &services {
            findings.push(one(class, service, found));
        }
    }
    // A cause that was only suspected is one when the rules show its effect.
    let stale = discrepancies.iter().any(|found| {
        found.sync == SyncState::Unheard || found.class == Class::C6 && found.sync != SyncState::InFlight
    });
    if stale
        && let Some(cause) =
            findings.iter_mut().find(|finding| finding.class == Class::C2 && finding.service.is_none())
    {
        cause.level = Level::Fault;
        cause.confidence = Confidence::High;
    }
}

/// A VIP that is not on kube-ipvs0 explains whatever its Service's rules do: it gets the difference as evidence.
fn is_explained(service: &str, found: &[&Discrepancy], findings: &mut [Finding]) -> bool {
    let is_cause = |finding: &&mut Finding| {
        let name = finding.service.as_ref().map(|service| format!("{}/{}", service.namespace, service.name));
        finding.class == Class::C11 && name.is_none_or(|name| name == service)
    };
    let Some(cause) = findings.iter_mut().find(is_cause) else { return false };
    if let Some(first) = found.first().filter(|_| cause.evidence.len() < QUOTED_MAX) {
        cause.evidence.push(evidence(first));
    }
    true
}

/// A change that kube-proxy never heard of is C2 at the node; at the Service it is rules that are behind.
fn class_of(found: &Discrepancy) -> Class {
    if found.class == Class::C2 && found.kind == Kind::Stale { Class::C6 } else { found.class }
}

/// Frame and foreign writers: what is told already gets the audit's words as evidence.
fn whole_node(facts: &Facts, discrepancies: &[&Discrepancy], findings: &mut Vec<Finding>) {
    let mut seen = BTreeSet::new();
    for found in discrepancies {
        let class = class_of(found);
        let is_frame = found.aspect == Aspect::Frame;
        let explains = |finding: &&mut Finding| {
            finding.service.is_none()
                && finding.level == Level::Fault
                && (finding.class == class
                    || is_frame && matches!(finding.class, Class::C1 | Class::C5e | Class::C11 | Class::C9)
                    || is_frame && finding.class == Class::C2 && never_written(facts))
        };
        if let Some(cause) = findings.iter_mut().find(explains) {
            cause.evidence.push(evidence(found));
            continue;
        }
        if !seen.insert((class, found.text.as_str())) {
            continue;
        }
        let (level, severity) = match (found.sync, found.aspect) {
            (SyncState::InFlight, _) => (Level::Note, Severity::None),
            (_, Aspect::Frontend | Aspect::UnlistedPort) => (Level::Warning, Severity::Low),
            (_, Aspect::Frame | Aspect::Writer) => (Level::Fault, Severity::Critical),
            _ => (Level::Fault, Severity::High),
        };
        let finding = Finding::new(class, Step::Rules, domain(class), severity, &found.text)
            .level(level)
            .since(found.since);
        let (immediate, long_term, safety) = action(class);
        let mut finding = finding.action(immediate, long_term, safety);
        finding.evidence.push(evidence(found));
        findings.push(finding);
    }
}

fn never_written(facts: &Facts) -> bool {
    let times = facts.metrics.as_ref().map(Metrics::sync_times).unwrap_or_default();
    !times.is_empty() && times.iter().all(|times| times.last_synced == 0.0)
}

fn unheard(services: &[(&Arc<str>, Vec<&Discrepancy>)], findings: &mut Vec<Finding>) {
    if findings.iter().any(|finding| finding.class == Class::C2 && finding.service.is_none()) {
        return;
    }
    let names: Vec<&str> = services.iter().take(QUOTED_MAX).map(|(service, _)| &***service).collect();
    findings.push(
        Finding::new(Class::C2, Step::KubeProxy, Domain::ApiConnectivity, Severity::High, "kube-proxy does not hear of changes: its rules are frozen as they were")
            .node(format!("changes of {} are older than the grace window, and kube-proxy has queued nothing since", names.join(", ")))
            .but(EvidenceType::Node, "its log tells of no error")
            .confidence(Confidence::Medium)
            .action("kubectl -n kube-system logs -l k8s-app=kube-proxy --tail=200; try the API server's address from this node", "alert on the age of kube-proxy's last sync", Safety::ReadOnly),
    );
}

fn one(class: Class, service: &str, found: &[&Discrepancy]) -> Finding {
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    let key = Key::new(namespace, name);
    let ports: BTreeSet<&str> = found.iter().filter_map(|found| found.port.as_deref()).collect();
    let port = match ports.iter().next() {
        Some(only) if ports.len() == 1 => only,
        _ => "*",
    };
    let in_flight = found.iter().all(|found| found.sync == SyncState::InFlight);
    let first = found.first().map(|found| found.text.as_str()).unwrap_or_default();
    let more = match found.len() {
        0 | 1 => String::new(),
        2 => "; and 1 more difference".to_owned(),
        count => format!("; and {} more differences", count - 1),
    };
    let text =
        if first.contains(service) { format!("{first}{more}") } else { format!("{service}: {first}{more}") };
    let severity = found.iter().map(|found| severity(found)).max().unwrap_or(Severity::Medium);
    let (immediate, long_term, safety) = action(class);
    let mut finding = Finding::new(
        class,
        Step::Rules,
        domain(class),
        if in_flight { Severity::None } else { severity },
        &text,
    )
    .service(&key, port)
    .since(found.iter().filter_map(|found| found.since).min())
    .action(immediate, long_term, safety);
    if in_flight {
        finding = finding
            .level(Level::Note)
            .but(EvidenceType::Api, "the change is younger than kube-proxy may take: a sync is under way");
    }
    for found in found.iter().take(QUOTED_MAX) {
        finding.evidence.push(evidence(found));
    }
    if let Some(rest) = found.len().checked_sub(QUOTED_MAX).filter(|rest| *rest > 0) {
        finding = finding.node(format!("{rest} more differences of this Service"));
    }
    finding
}

/// So many Services that it is the node's affair.
fn many(class: Class, services: &[(&Arc<str>, Vec<&Discrepancy>)]) -> Finding {
    let named: Vec<&str> = services.iter().take(QUOTED_MAX).map(|(service, _)| &***service).collect();
    let detail = format!(
        "the rules of {} Services are not what the API asks for: {} and {} more",
        services.len(),
        named.join(", "),
        services.len().saturating_sub(named.len())
    );
    let (immediate, long_term, safety) = action(class);
    let mut finding = Finding::new(class, Step::Rules, domain(class), Severity::Critical, &detail)
        .since(services.iter().flat_map(|(_, found)| found).filter_map(|found| found.since).min())
        .action(immediate, long_term, safety);
    for found in services.iter().filter_map(|(_, found)| found.first()).take(QUOTED_MAX) {
        finding.evidence.push(evidence(found));
    }
    if services.iter().flat_map(|(_, found)| found).all(|found| found.sync == SyncState::InFlight) {
        finding = finding.level(Level::Note);
    }
    finding
}

fn evidence(found: &Discrepancy) -> crate::verdict::Evidence {
    let writer = found.writer.map(|writer| format!("{writer} ")).unwrap_or_default();
    let sync = match found.sync {
        SyncState::Unknown => String::new(),
        sync => format!(" ({sync})"),
    };
    let content =
        format!("{}: {} [{writer}{} {}]{sync}", found.kind.as_str(), found.text, found.family, found.place);
    crate::verdict::Evidence { r#type: EvidenceType::Node, time: found.since, content }
}

const fn severity(found: &Discrepancy) -> Severity {
    match (found.aspect, found.kind) {
        (Aspect::Frame | Aspect::Writer, _) => Severity::Critical,
        (Aspect::Reach, _) | (Aspect::Endpoint, Kind::Stale | Kind::Surplus | Kind::Wrong) => Severity::High,
        (Aspect::UnlistedPort | Aspect::Frontend, _) => Severity::Low,
        _ => Severity::Medium,
    }
}

fn domain(class: Class) -> Domain {
    match class {
        Class::C2 => Domain::ApiConnectivity,
        Class::C6 | Class::C7 | Class::C8 | Class::C13 => Domain::StaleEndpoints,
        Class::C11 => Domain::IpvsModules,
        Class::C20 => Domain::NoEndpoints,
        Class::C21 | Class::C22 | Class::C23 | Class::C24 | Class::C25 | Class::C26 => Domain::ServiceConfig,
        Class::C31 => Domain::Hairpin,
        _ => Domain::IptablesSync,
    }
}

/// What to do, what keeps it away, and what the first can do to running traffic.
fn action(class: Class) -> (&'static str, &'static str, Safety) {
    match class {
        Class::C3 | Class::C10 => (
            "in a maintenance window: drain the node and reboot it, or stop kube-proxy, run kube-proxy --cleanup and start it again",
            "one mode and one iptables backend on a node",
            Safety::Dangerous,
        ),
        Class::C4 => (
            "kubectl -n kube-system logs -l k8s-app=kube-proxy | grep -A20 -e 'Failed to execute' -e 'sync failed'",
            "one owner of the node's rules",
            Safety::ReadOnly,
        ),
        Class::C5e => (
            "find who changes kube-proxy's rules (firewall agents, iptables-restore in scripts): auditctl or nft monitor; kube-proxy writes them all again at its next full sync, at once when its Pod is deleted",
            "one owner of the node's rules",
            Safety::Disruptive,
        ),
        Class::C2 | Class::C6 => (
            "see why kube-proxy does not follow: kubectl -n kube-system logs -l k8s-app=kube-proxy --tail=200; if the API is reachable from here, delete this node's kube-proxy Pod so that it lists everything anew",
            "alert on the age of kube-proxy's last sync",
            Safety::Disruptive,
        ),
        _ => (
            "check again in some seconds; if it stays, kubectl -n kube-system logs -l k8s-app=kube-proxy --tail=200",
            "alert on kube-proxy's sync latency",
            Safety::ReadOnly,
        ),
    }
}
