//! Step 3: whether kube-proxy writes its rules, and how fast (K5): C4, C5 and a sync that is only under way.
//!
//! `last_queued` later than `last_timestamp` means that an update waits to be written. A young one is in flight; an old
//! one fails (C4). If both are old while the API has changed, it is C2, which `proxy` reports.

use std::time::Duration;

use super::{Facts, Finding, Level, api, proxy::logged_by};
use crate::{
    class::{Action, Class, Confidence, Severity, action},
    node::kube_proxy::{
        log::{LoggedError, Trouble},
        metrics::{Metrics, SyncTimes},
    },
    text::length,
    verdict::EvidenceType,
};

/// An update that waits longer than this has failed at least once: kube-proxy tries a sync each `minSyncPeriod` (1 s), and
/// a sync of large tables takes seconds.
const IN_FLIGHT: Duration = Duration::from_secs(15);
/// The `minSyncPeriod` that it covers.
const DEFAULT_PERIOD: Duration = Duration::from_secs(1);
/// In seconds. If the 99th percentile of changes takes longer than this, rollouts suffer.
const SLOW_PROGRAMMING_SECS: f64 = 10.0;
/// In seconds. A failing sync has a younger error than this.
const REPEATED_SECS: f64 = 120.0;
const SLOW_SYNC_SECS: f64 = 5.0;
/// With fewer observations a percentile means nothing.
const MIN_OBSERVATIONS: f64 = 20.0;
/// In seconds. A normal start does not wait longer than this for the first lists.
const START_SECS: f64 = 60.0;
/// In seconds. kube-proxy writes the kernel's settings within this time of its start, and a check that reads them first
/// reads its metrics within it.
const SETTINGS_SECS: f64 = 3.0;

/// The longest wait of an update that has not failed: it may wait for one whole `minSyncPeriod` first.
pub(crate) fn in_flight_limit(min_sync_period: Option<Duration>) -> Duration {
    IN_FLIGHT.saturating_add(configured_wait(min_sync_period))
}

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let metrics = facts.node.metrics.as_ref();
    let times = metrics.map(Metrics::sync_times).unwrap_or_default();
    failing(facts, &times, findings);
    if let Some(metrics) = metrics {
        slow(metrics, facts.node.report.min_sync_period, findings);
        starting(facts, findings);
    }
    health(facts, &times, findings);
}

/// Whether an update waits to be written.
fn waiting(times: &SyncTimes) -> bool {
    times.last_queued > times.last_synced && times.last_synced > 0.0
}

fn failing(facts: &Facts, times: &[SyncTimes], findings: &mut Vec<Finding>) {
    let failures = facts.node.metrics.as_ref().map(Metrics::failures).unwrap_or_default();
    let errors: Vec<&LoggedError> = facts
        .node
        .log
        .iter()
        .flat_map(|log| &log.errors)
        .filter(|error| error.trouble.is_sync() && !error.before_restart)
        .collect();
    let pending: Vec<&SyncTimes> = times.iter().filter(|times| waiting(times)).collect();
    let age = |times: &SyncTimes| facts.now().map(|now| now - times.last_queued);
    let oldest = pending.iter().filter_map(|times| age(times)).fold(0.0, f64::max);
    let unhealthy = facts.node.healthz.as_ref().is_some_and(|health| !health.is_healthy());
    let period = facts.node.report.min_sync_period;
    let limit = in_flight_limit(period).as_secs_f64();
    let stuck = !pending.is_empty() && (oldest > limit || unhealthy);
    // Without metrics only the log is known, which does not show whether a later sync succeeded.
    let blind = times.is_empty() && !errors.is_empty();
    if !stuck && errors.is_empty() && failures.is_empty() {
        if !pending.is_empty() {
            findings.push(in_flight(&pending, oldest, period));
        }
        return;
    }
    if !stuck && !pending.is_empty() && oldest <= limit && errors.is_empty() && failures.is_empty() {
        return;
    }
    let cause = errors.iter().max_by_key(|error| error.count).map(|error| error.trouble);
    let detail = match (stuck, blind) {
        (true, _) => format!(
            "kube-proxy cannot write its rules: a change has been waiting for {oldest:.0} s{}",
            cause.map(|cause| format!("; {cause}")).unwrap_or_default()
        ),
        (false, true) => format!(
            "kube-proxy's log reports rules that it could not write: {}",
            cause.map(|cause| cause.to_string()).unwrap_or_default()
        ),
        (false, false) => {
            "kube-proxy failed to write its rules before; since then it has succeeded".to_owned()
        }
    };
    let mut finding = Finding::new(Class::C4, detail);
    for times in &pending {
        let family = if times.family.is_empty() { String::new() } else { format!(" ({})", times.family) };
        finding = finding.node(
            None,
            format!(
                "last_queued_timestamp {:.3} is later than last_timestamp {:.3}{family}",
                times.last_queued, times.last_synced
            ),
        );
    }
    for (name, count) in &failures {
        finding = finding.node(None, format!("{name} is {count:.0}"));
    }
    for error in &errors {
        finding = logged_by(facts, finding, error);
    }
    // A sync that fails is repeated each syncPeriod (30 s), with the same error.
    let over = api::clock(facts).is_some_and(|clock| {
        let ages = errors.iter().filter_map(|error| clock.since(&error.last));
        ages.reduce(f64::min).is_some_and(|age| age > REPEATED_SECS)
    });
    finding = match (stuck, blind) {
        (true, _) => finding,
        (false, true) => finding
            .confidence(Confidence::Medium)
            .level(if over { Level::Note } else { Level::Warning })
            .unobserved("whether a later sync succeeded: kube-proxy's metrics"),
        (false, false) => finding.level(Level::Note).against(
            EvidenceType::Node,
            None,
            "last_timestamp is later than last_queued: no update waits now",
        ),
    };
    findings.push(match cause.and_then(cure) {
        Some(action) => finding.now(&[action]),
        None => finding,
    });
}

/// The action, if the log names the cause.
const fn cure(trouble: Trouble) -> Option<Action> {
    match trouble {
        Trouble::XtablesLock => Some(action::FIND_LOCK_HOLDER),
        Trouble::RulesUnsupported => Some(action::LOAD_WHAT_IT_NAMES),
        _ => None,
    }
}

fn in_flight(pending: &[&SyncTimes], age: f64, period: Option<Duration>) -> Finding {
    let families: Vec<&str> =
        pending.iter().map(|times| times.family.as_str()).filter(|family| !family.is_empty()).collect();
    let what = match period.filter(|period| *period > DEFAULT_PERIOD) {
        Some(period) => format!(
            "a change has been waiting for kube-proxy's rules for {:.1} s; its minSyncPeriod is {}",
            age.max(0.0),
            length(period)
        ),
        None => format!("a sync of the rules is under way, for {:.1} s", age.max(0.0)),
    };
    Finding::new(Class::C5, what)
        .severity(Severity::None)
        .level(Level::Note)
        .node(
            None,
            format!("last_queued_timestamp is later than last_timestamp {}", families.join(", "))
                .trim()
                .to_owned(),
        )
        .now(&[action::WAIT])
}

/// The part of `minSyncPeriod` that is beyond its default. kube-proxy lets a change wait for up to a whole period before it
/// writes it (`BoundedFrequencyRunner` of `pkg/util/async/bounded_frequency_runner.go`), as the configuration requires: GKE
/// starts kube-proxy with `--iptables-min-sync-period=10s`.
fn configured_wait(min_sync_period: Option<Duration>) -> Duration {
    min_sync_period.unwrap_or_default().saturating_sub(DEFAULT_PERIOD)
}

/// C5: the rules are written, but late.
fn slow(metrics: &Metrics, min_sync_period: Option<Duration>, findings: &mut Vec<Finding>) {
    let wait = configured_wait(min_sync_period);
    let checks = [
        (
            "kubeproxy_network_programming_duration_seconds",
            SLOW_PROGRAMMING_SECS + wait.as_secs_f64(),
            "from a change of an EndpointSlice to its rules",
        ),
        ("kubeproxy_sync_proxy_rules_duration_seconds", SLOW_SYNC_SECS, "for one sync"),
        ("kubeproxy_sync_full_proxy_rules_duration_seconds", SLOW_SYNC_SECS * 4.0, "for one full sync"),
    ];
    let slow: Vec<(&str, f64, f64, &str)> = checks
        .into_iter()
        .filter_map(|(name, limit, what)| {
            let (bound, count) = metrics.quantile(name, 0.99)?;
            (count >= MIN_OBSERVATIONS && bound > limit).then_some((name, bound, count, what))
        })
        .collect();
    let Some((_, bound, _, what)) = slow.first() else { return };
    let bound_text = |bound: f64| {
        if bound.is_finite() {
            format!("up to {bound:.1} s")
        } else {
            "longer than the largest bucket".to_owned()
        }
    };
    let mut finding = Finding::new(
        Class::C5,
        format!("kube-proxy writes its rules late: {} {what} (p99)", bound_text(*bound)),
    )
    .severity(Severity::Medium)
    .level(Level::Warning);
    for (name, bound, count, _) in &slow {
        finding = finding.node(
            None,
            format!("{name}: p99 {} over {count:.0} observations since its start", bound_text(*bound)),
        );
    }
    // A longer period makes changes wait for longer.
    let speed_up = if wait.is_zero() { action::SPEED_UP } else { action::GIVE_CPU };
    findings.push(
        finding
            .against(EvidenceType::Node, None, "a percentile since the start does not show the present state")
            .now(&[speed_up]),
    );
}

/// Whether kube-proxy has been started so recently that its first sync may still run. It writes in steps: in ipvs mode
/// the virtual servers come seconds before the ipsets and the iptables rules (`syncProxyRules` of
/// pkg/proxy/ipvs/proxier.go).
pub(super) fn is_starting(facts: &Facts) -> bool {
    // Its ports do not answer before the first sync begins.
    let unwritten =
        facts.node.metrics.is_none() || facts.sync_times().iter().any(|times| times.last_synced == 0.0);
    unwritten && age(facts).is_some_and(|age| age <= START_SECS)
}

/// Whether the kernel's settings may have been read before kube-proxy wrote them at its start: in ipvs mode, and for node
/// ports on 127.0.0.1, before its first sync (`NewProxier` of pkg/proxy/ipvs/proxier.go and of
/// pkg/proxy/iptables/proxier.go). They are read before its metrics, which then may show a sync.
pub(super) fn may_lack_settings(facts: &Facts) -> bool {
    is_starting(facts) || age(facts).is_some_and(|age| age <= SETTINGS_SECS)
}

/// The time since kube-proxy's start, in seconds, of its metrics or of its process.
fn age(facts: &Facts) -> Option<f64> {
    let process = || facts.node.process.as_ref()?.started.map(|secs| Duration::from_secs(secs).as_secs_f64());
    let started = facts.node.metrics.as_ref().and_then(Metrics::started).or_else(process)?;
    Some(facts.now()? - started)
}

/// Whether a sync is under way: a queued update is not written yet, and younger than one that has failed.
pub(super) fn is_under_way(facts: &Facts) -> bool {
    let limit = in_flight_limit(facts.node.report.min_sync_period).as_secs_f64();
    let young = |times: &SyncTimes| facts.now().is_some_and(|now| now - times.last_queued <= limit);
    is_starting(facts) || facts.sync_times().iter().any(|times| waiting(times) && young(times))
}

/// kube-proxy has not written its rules since it started.
fn starting(facts: &Facts, findings: &mut Vec<Finding>) {
    if !facts.never_wrote() || findings.iter().any(|finding| finding.class == Class::C2) {
        return;
    }
    let age = age(facts);
    let waits = facts.node.log.as_ref().is_some_and(|log| log.waiting_for_informers);
    let late = age.is_some_and(|age| age > START_SECS);
    let detail = match age {
        Some(age) => format!("kube-proxy has run for {age:.0} s and has never written its rules"),
        None => "kube-proxy has never written its rules since its start".to_owned(),
    };
    let mut finding = Finding::new(Class::C5, detail)
        .severity(Severity::Critical)
        .node(None, "kubeproxy_sync_proxy_rules_last_timestamp_seconds is 0");
    if waits {
        finding = finding.node(None, "its log: not syncing until Services and Endpoints have been received");
    }
    if !late {
        finding = finding
            .level(Level::Warning)
            .severity(Severity::Low)
            .against(EvidenceType::Node, None, "it may be starting")
            .now(&[action::WAIT]);
    }
    findings.push(finding);
}

fn health(facts: &Facts, times: &[SyncTimes], findings: &mut Vec<Finding>) {
    let Some(health) = facts.node.healthz.as_ref().filter(|health| !health.is_healthy()) else { return };
    if findings.iter().any(|finding| finding.class == Class::C4 && finding.level == Level::Fault) {
        return;
    }
    let lives = facts.node.livez.as_ref().map(crate::node::Health::is_healthy);
    let waits = times.iter().any(waiting);
    // Both are newer than some releases: /livez of 1.28, `nodeEligible` of the answer's body.
    let removed =
        health.node_eligible.map_or(lives == Some(true), |eligible| !eligible && lives != Some(false));
    let finding = if removed && !waits {
        Finding::new(Class::N15, "kube-proxy's /healthz reports unhealthy because the node is being removed")
            .level(Level::Note)
    } else {
        Finding::new(Class::C4, "kube-proxy reports unhealthy: a change was not written in time")
    };
    findings.push(finding.node(
        None,
        format!(
            "/healthz answers {}, last updated {}",
            health.status,
            health.last_updated.as_deref().unwrap_or("never")
        ),
    ));
}
