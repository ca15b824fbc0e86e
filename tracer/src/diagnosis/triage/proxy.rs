//! Step 2: kube-proxy itself: whether it runs, its configuration and its log (K1, K3, K7).
//!
//! Owns C1, C8 (its cleanup), C11 and the mode of C10, as far as kube-proxy's own output shows them. `api` checks whether
//! it reads the API server, `sync` whether its rules are current.

use super::{Facts, Finding, Level, Step, api::clock};
use crate::{
    class::{Class, Confidence, Severity, action},
    node::{
        Presence, ProxyMode,
        kube_proxy::{
            log::{Log, LoggedError, Trouble, readable},
            servers::Servers,
        },
    },
    verdict::EvidenceType,
};

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let before = findings.len();
    config(facts, findings);
    if let Some(log) = &facts.node.log {
        ends(facts, log, findings);
        ipvs(facts, log, findings);
        cleanup(facts, log, findings);
    }
    super::api::judge(facts, findings);
    let explained =
        findings.iter().skip(before).any(|finding| matches!(finding.class, Class::C11 | Class::C9));
    absent(facts, explained, findings);
    out_of_scope(facts, findings);
}

/// C1: no process, no ports.
fn absent(facts: &Facts, explained: bool, findings: &mut Vec<Finding>) {
    if facts.node.running != Some(false) || explained || facts.served_elsewhere().is_some() {
        return;
    }
    let standing = facts.node.proxy_rules.any();
    let (severity, detail) = match standing {
        Presence::Absent => {
            (Severity::Critical, "kube-proxy is not running on this node and has left no rules")
        }
        _ => (Severity::High, "kube-proxy is not running on this node: its rules no longer change"),
    };
    let Servers { metrics, health } = facts.node.config.as_ref().map_or_else(Servers::default, Servers::of);
    let mut finding = Finding::new(Class::C1, detail)
        .severity(severity)
        .node(None, "no process of this node is kube-proxy or a program that contains it")
        .node(
            None,
            format!("kube-proxy's own servers do not answer: {metrics} (metrics), {health} (health)"),
        );
    if standing == Presence::Absent && facts.wants_proxy_pods() == Some(false) {
        finding = finding
            .severity(Severity::High)
            .confidence(Confidence::Medium)
            .against(
                EvidenceType::Api,
                None,
                "the cluster has no Pod of kube-proxy, and no DaemonSet that wants one",
            )
            .unobserved("whether another program serves Services here, which viptrace does not know");
    }
    if standing == Presence::Present {
        finding = finding.against(
            EvidenceType::Node,
            None,
            "its rules still exist: connections to unchanged Services still work",
        );
    }
    if let Some(error) = facts.node.log.as_ref().and_then(|log| {
        log.errors.iter().filter(|error| !error.before_restart).max_by(|a, b| a.last.cmp(&b.last))
    }) {
        finding = finding
            .node(None, format!("its log, at {}: {}", readable(&error.last, clock(facts)), error.text));
    }
    // Rules that are missing altogether are missing whatever happens to the process.
    findings.push(if standing == Presence::Present {
        super::pods::during_rollout(facts, finding)
    } else {
        finding
    });
}

/// K1: another dataplane serves; C10: kube-proxy's rules remain beside it.
fn out_of_scope(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(name) = facts.served_elsewhere() else { return };
    let interface = format!("interfaces of {name} exist, and kube-proxy does not run");
    let none = (facts.wants_proxy_pods() == Some(false))
        .then_some("the cluster has no Pod of kube-proxy, and no DaemonSet that wants one");
    let mut finding = Finding::new(
        Class::K1,
        format!("{name} may serve Services on this node instead of kube-proxy: its rules are not checked"),
    )
    .level(Level::Note)
    .confidence(if none.is_some() { Confidence::High } else { Confidence::Medium })
    .node(None, interface.clone())
    .fill("DATAPLANE", name.as_str());
    finding = match none {
        Some(none) => finding.api(None, none),
        None => finding.unobserved("whether the cluster wants kube-proxy: its DaemonSets and Pods"),
    };
    findings.push(finding);
    if facts.node.proxy_rules.any() == Presence::Present {
        findings.push(
            Finding::new(
                Class::C10,
                format!("rules of kube-proxy remain although {name} serves Services: nothing updates them"),
            )
            .severity(Severity::Medium)
            .level(Level::Warning)
            .confidence(Confidence::Medium)
            .node(None, interface)
            .node(None, "rules of kube-proxy are in the kernel, and packets reach them")
            .against(
                EvidenceType::Node,
                None,
                "connections that the dataplane translates before netfilter never meet them",
            ),
        );
    }
}

/// K3: compares its configuration with its state.
fn config(facts: &Facts, findings: &mut Vec<Finding>) {
    let Some(config) = facts.node.config.as_ref() else { return };
    let configured = config.mode.as_deref();
    if let (Some(configured), Some(said)) = (configured, facts.node.reported_mode)
        && configured != said.as_str()
    {
        findings.push(
            Finding::new(
                Class::C10,
                format!("kube-proxy runs in {said} mode, its configuration requires {configured}"),
            )
            .severity(Severity::Medium)
            .level(Level::Warning)
            .node(None, format!("/proxyMode answers {said}"))
            .node(None, format!("mode: {configured} in the configuration"))
            .against(
                EvidenceType::Node,
                None,
                "the configuration may have changed after kube-proxy started, or belong to another node",
            )
            .now(&[action::RESTART_FOR_MODE]),
        );
    }
    if let Some(unknown) = configured.filter(|mode| ProxyMode::parse(mode).is_none()) {
        findings.push(
            Finding::new(
                Class::C10,
                format!("the mode {unknown:?} of kube-proxy's configuration does not exist on Linux"),
            )
            .severity(Severity::Medium)
            .level(Level::Warning)
            .node(None, format!("mode: {unknown} in the configuration"))
            .now(&[action::CORRECT_MODE]),
        );
    }
    if facts.node.mode == Some(ProxyMode::Ipvs) {
        findings.push(
            Finding::new(Class::K3, "IPVS mode is deprecated since Kubernetes 1.35")
                .level(Level::Note)
                .node(None, "mode: ipvs"),
        );
    }
}

/// C1 by the end of its log, and a configuration that it rejects (C9 if a newer or older release wrote it).
fn ends(facts: &Facts, log: &Log, findings: &mut Vec<Finding>) {
    for (trouble, class, detail) in [
        (Trouble::ConfigRejected, Class::C9, "kube-proxy rejects its configuration and exits"),
        (Trouble::Ended, Class::C1, "kube-proxy exits with an error"),
    ] {
        let Some(error) = log.of(trouble).filter(|error| !error.before_restart) else { continue };
        // The IPVS error ends the process with the same message and has its own finding.
        if trouble == Trouble::Ended && log.of(Trouble::IpvsUnusable).is_some() {
            continue;
        }
        findings.push(
            logged_by(facts, Finding::new(class, detail).severity(Severity::Critical), error)
                .now(&[action::READ_LAST_WORDS]),
        );
    }
}

pub(super) fn logged_by(facts: &Facts, finding: Finding, error: &LoggedError) -> Finding {
    finding.node(None, format!("kube-proxy's log, {}: {}", error.when(clock(facts)), error.text))
}

/// C11: IPVS cannot be used. A kube-proxy that reports another mode has fallen back to it, as releases before 1.26 do
/// (`getProxyMode` of cmd/kube-proxy/app/server_others.go, until kubernetes/kubernetes#111806): then C10 names both modes.
fn ipvs(facts: &Facts, log: &Log, findings: &mut Vec<Finding>) {
    let Some(error) = log.of(Trouble::IpvsUnusable).filter(|error| !error.before_restart) else { return };
    if facts.node.reported_mode.is_some_and(|mode| mode != ProxyMode::Ipvs) {
        return;
    }
    let mut finding = logged_by(
        facts,
        Finding::new(
            Class::C11,
            "kube-proxy is in ipvs mode and this kernel has no IPVS: it exits; there is no fallback",
        ),
        error,
    );
    for module in missing_ipvs_modules(facts) {
        finding = finding.node(None, format!("module {module} is neither loaded nor built in"));
    }
    findings.push(finding);
}

/// The modules that IPVS mode needs and the kernel certainly lacks.
pub(super) fn missing_ipvs_modules(facts: &Facts) -> Vec<String> {
    let Some(modules) = &facts.node.modules else { return Vec::new() };
    let scheduler = facts
        .node
        .config
        .as_ref()
        .and_then(|config| config.ipvs_scheduler.clone())
        .unwrap_or_else(|| "rr".to_owned());
    let wanted = ["ip_vs".to_owned(), format!("ip_vs_{scheduler}"), "nf_conntrack".to_owned()];
    wanted.into_iter().filter(|module| modules.has(module) == Some(false)).collect()
}

/// C8: entries that it could not delete.
fn cleanup(facts: &Facts, log: &Log, findings: &mut Vec<Finding>) {
    let Some(error) = log.of(Trouble::ConntrackCleanup).filter(|error| !error.before_restart) else { return };
    findings.push(
        logged_by(
            facts,
            Finding::new(
                Class::C8,
                "kube-proxy could not clean up conntrack: UDP flows may still use endpoints that are gone",
            )
            .severity(Severity::Medium)
            .step(Step::Conntrack),
            error,
        )
        .level(Level::Warning)
        .confidence(Confidence::Medium)
        .unobserved("whether such an entry exists now, and whether a client still uses it")
        .now(&[action::LIST_OLD_ENTRIES]),
    );
}
