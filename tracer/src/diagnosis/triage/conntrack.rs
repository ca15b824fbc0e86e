//! Step 4: conntrack (K8): C16, C17, N7, and the consequences of the table's size and timeouts.
//!
//! Judges only growth between two readings, never totals since boot.

use super::{Facts, Finding, Level};
use crate::{
    class::{Class, Confidence, Severity, action},
    node::{conntrack::Growth, snapshot::ConntrackUse},
    text::count,
    verdict::EvidenceType,
};

/// In percent of the limit. A table this full will soon drop packets.
const NEARLY_FULL_PERCENT: u64 = 90;
const FILLING_PERCENT: u64 = 75;
/// The average number of entries per bucket above which chains are too long (`chaintoolong`, from 5.15).
const MAX_CHAIN: u64 = 16;

pub(super) fn judge(facts: &Facts, findings: &mut Vec<Finding>) {
    let used = facts.node.conntrack_use.map(|used| used.value);
    let grown = facts.node.conntrack.as_ref().zip(facts.node.conntrack_later.as_ref());
    let growth = |column: &str| {
        grown.and_then(|(before, after)| after.growth(before).get(column).copied()).unwrap_or_default()
    };

    if let Some(ConntrackUse { count, max }) = used.filter(|used| used.max > 0) {
        fullness(facts, count, max, growth("drop"), growth("early_drop"), findings);
        other_namespaces(facts, count, max, findings);
        wanted(facts, max, findings);
        let sysctls = facts.node.sysctls.as_ref();
        let buckets = sysctls.and_then(|sysctls| sysctls.number("net/netfilter/nf_conntrack_buckets"));
        let buckets = buckets.and_then(|buckets| u64::try_from(buckets).ok());
        if let Some(buckets) = buckets.filter(|buckets| *buckets > 0)
            && max / buckets > MAX_CHAIN
        {
            findings.push(
                Finding::new(
                    Class::C17,
                    format!(
                        "conntrack has {buckets} buckets for up to {max} entries: its chains get too long"
                    ),
                )
                .severity(Severity::Low)
                .level(Level::Warning)
                .node(None, format!("nf_conntrack_buckets {buckets}, nf_conntrack_max {max}"))
                .now(&[action::RAISE_BUCKETS])
                .fill("BUCKETS", (max / 4).to_string()),
            );
        }
    }
    lost(growth("insert_failed"), growth("drop"), growth("chainlength"), used, findings);
}

fn fullness(facts: &Facts, count: u64, max: u64, drop: Growth, early: Growth, findings: &mut Vec<Finding>) {
    let percent = count.saturating_mul(100) / max;
    let nearly = percent >= NEARLY_FULL_PERCENT;
    // At the limit a new entry is possible only if an entry without a reply can be evicted (`early_drop`).
    let evicts = early.by > 0 && drop.by == 0;
    let (level, severity, detail) = if nearly && drop.by > 0 || count >= max && !evicts {
        (
            Level::Fault,
            Severity::Critical,
            format!(
                "conntrack is full ({count} of {max}): new connections are dropped, established ones continue"
            ),
        )
    } else if nearly {
        (
            Level::Warning,
            Severity::Medium,
            format!("conntrack is nearly full: {count} of {max} entries ({percent} %)"),
        )
    } else if percent >= FILLING_PERCENT {
        (
            Level::Warning,
            Severity::Low,
            format!("conntrack is filling up: {count} of {max} entries ({percent} %)"),
        )
    } else {
        if evicts {
            findings.push(evicted(count, max, early));
        }
        return;
    };
    let mut finding = Finding::new(Class::C16, detail)
        .severity(severity)
        .level(level)
        .node(None, format!("nf_conntrack_count {count}, nf_conntrack_max {max}"));
    if drop.by > 0 {
        finding = finding
            .node(None, format!("drop grew by {} on {} CPUs between two readings", drop.by, drop.cpus));
    } else if facts.node.conntrack_later.is_some() && level == Level::Fault {
        finding = finding.against(
            EvidenceType::Node,
            None,
            "drop did not grow between two readings: there was no new connection, or entries were evicted",
        );
    }
    if early.by > 0 {
        finding = finding.node(
            None,
            format!("early_drop grew by {}: entries without a reply are evicted to make room", early.by),
        );
    }
    let wanted = facts
        .node
        .config
        .as_ref()
        .and_then(|config| config.wanted_conntrack_max(cpus(facts)?))
        .filter(|wanted| *wanted > max);
    let new = wanted.unwrap_or_else(|| max.max(count).saturating_mul(2));
    findings.push(finding.fill("MAX", new.to_string()));
}

/// N7: entries without a reply make room for new ones, and nothing is lost.
fn evicted(count: u64, max: u64, early: Growth) -> Finding {
    Finding::new(Class::N7, "conntrack evicts entries without a reply to make room; no packet is dropped")
        .level(Level::Note)
        .node(
            None,
            format!(
                "early_drop grew by {} on {} CPUs between two readings, drop did not",
                early.by, early.cpus
            ),
        )
        .node(None, format!("nf_conntrack_count {count}, nf_conntrack_max {max}"))
        .related(&[Class::C16])
}

/// The limit applies to each namespace, and each namespace has its own count.
fn other_namespaces(facts: &Facts, own: u64, max: u64, findings: &mut Vec<Finding>) {
    let full: Vec<_> = facts
        .node
        .namespaces
        .iter()
        .filter(|namespace| {
            namespace.entries != own && namespace.entries.saturating_mul(100) / max >= NEARLY_FULL_PERCENT
        })
        .collect();
    for namespace in full {
        findings.push(
            Finding::new(
                Class::C16,
                format!(
                    "conntrack of network namespace {} is nearly full: {} of {max} entries",
                    namespace.netns, namespace.entries
                ),
            )
            .severity(Severity::Medium)
            .level(Level::Warning)
            .node(
                None,
                format!(
                    "a process in it: {}; the limit is the node's, the count the namespace's own",
                    namespace.process
                ),
            )
            .now(&[action::RAISE_MAX])
            .fill("MAX", max.saturating_mul(2).to_string()),
        );
    }
}

fn cpus(facts: &Facts) -> Option<u64> {
    facts.node.process.as_ref()?.cpus.map(u64::from)
}

/// Whether the limit is the one that kube-proxy's configuration requires.
fn wanted(facts: &Facts, max: u64, findings: &mut Vec<Finding>) {
    let (Some(config), Some(cpus)) = (facts.node.config.as_ref(), cpus(facts)) else { return };
    let Some(wanted) = config.wanted_conntrack_max(cpus).filter(|wanted| max < *wanted) else { return };
    findings.push(
        Finding::new(
            Class::C16,
            format!(
                "nf_conntrack_max is {max}; kube-proxy's configuration requires {wanted} on {cpus} \
                 CPUs"
            ),
        )
        .severity(Severity::Low)
        .level(Level::Note)
        .node(None, format!("nf_conntrack_max {max}"))
        .node(
            None,
            format!(
                "conntrack.maxPerCore and conntrack.min of the configuration make max(32768 × CPUs, \
                 131072) unless set: {wanted}"
            ),
        )
        .now(&[action::RAISE_MAX])
        .fill("MAX", wanted.to_string()),
    );
}

/// C17, from the growth between the two readings.
fn lost(
    insert_failed: Growth,
    drop: Growth,
    chain: Growth,
    used: Option<ConntrackUse>,
    findings: &mut Vec<Finding>,
) {
    let full = used.is_some_and(|ConntrackUse { count, max }| {
        count.saturating_mul(100) / max.max(1) >= NEARLY_FULL_PERCENT
    });
    if insert_failed.by == 0 && (drop.by == 0 || full) {
        return;
    }
    let detail = match (insert_failed.by, drop.by) {
        _ if chain.by > 0 => format!(
            "conntrack's hash chains are too long: the kernel dropped {} between two readings",
            count(chain.by, "first packet")
        ),
        (0, dropped) => {
            format!(
                "conntrack dropped {} between two readings although it is not full",
                count(dropped, "packet")
            )
        }
        (failed, _) => format!(
            "conntrack could not insert {} between two readings: the kernel dropped their first packets",
            count(failed, "entry")
        ),
    };
    let mut finding =
        Finding::new(Class::C17, detail).level(Level::Warning).confidence(Confidence::Medium).node(
            None,
            format!(
                "insert_failed grew by {} on {} CPUs, drop by {} on {}",
                insert_failed.by, insert_failed.cpus, drop.by, drop.cpus
            ),
        );
    if chain.by == 0 {
        finding = finding.unobserved("whose packets were lost: the counters have no Service");
    }
    if chain.by > 0 {
        // Each of these counts one packet (`NF_CT_STAT_INC(net, chaintoolong)`, net/netfilter/nf_conntrack_core.c).
        finding = finding
            .confidence(Confidence::High)
            .node(None, format!("chainlength (chaintoolong) grew by {}", chain.by))
            .now(&[action::RAISE_BUCKETS]);
        if let Some(ConntrackUse { max, .. }) = used {
            finding = finding.fill("BUCKETS", (max / 4).to_string());
        }
    }
    findings.push(finding);
}
