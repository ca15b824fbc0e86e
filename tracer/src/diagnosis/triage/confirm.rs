//! A second reading of a live node, before a fault of the moment is reported; and the doubt where there is only one.
//!
//! The lists and the rules are read at slightly different times, and kube-proxy rewrites its rules whenever the cluster
//! changes: in the middle of a rollout a difference may be gone a second later. A difference that only one of
//! two readings has is a note.

use std::{collections::BTreeSet, time::Duration};

use super::{CheckReport, Facts, Finding, Found, Level, Scope, Step, audit, find, report};
use crate::{
    class::{Class, Confidence},
    text::length,
    time::Timestamp,
    verdict::{Evidence, EvidenceType},
};

/// The longest wait of a person for the second reading.
const MAX_PAUSE: Duration = Duration::from_secs(10);
/// A fault that began this long ago or earlier is not of the moment.
const SETTLED: Duration = Duration::from_mins(1);

/// The findings of one reading.
#[derive(Debug)]
pub struct Reading<'f> {
    facts: &'f Facts,
    scope: &'f Scope,
    found: Found,
}

impl<'f> Reading<'f> {
    pub fn of(facts: &'f Facts, scope: &'f Scope) -> Self {
        Self::without(facts, scope, &|_, _| false)
    }

    /// Without the findings of these classes by the checks of these names.
    pub(super) fn without(facts: &'f Facts, scope: &'f Scope, omits: &impl Fn(&str, Class) -> bool) -> Self {
        Self { facts, scope, found: find(facts, scope, omits) }
    }

    /// How long to wait before a second reading; `None` if there is nothing to confirm.
    pub fn pause(&self) -> Option<Duration> {
        self.of_moment().next().map(|_| audit::grace(self.facts).min(MAX_PAUSE))
    }

    /// Whether flows that failed by faults of these classes confirm each fault that a second reading would.
    pub fn is_confirmed_by(&self, met: &BTreeSet<Class>) -> bool {
        let mut faults = self.of_moment().filter(|finding| finding.level == Level::Fault);
        !met.is_empty() && faults.all(|finding| met.contains(&finding.class))
    }

    /// The findings that may be of the moment.
    fn of_moment(&self) -> impl Iterator<Item = &Finding> {
        let recent = |finding: &Finding| {
            let taken = self.facts.taken.zip(finding.said().since);
            taken.is_some_and(|(taken, since)| taken.since(since) < SETTLED)
        };
        self.found.findings.iter().filter(move |finding| match finding.step {
            Some(Step::Rules) => finding.level != Level::Note && !is_percentile(finding),
            Some(Step::KubeProxy) => finding.level == Level::Fault,
            Some(Step::Endpoints) => finding.level != Level::Note && recent(finding),
            _ => false,
        })
    }

    /// The report, if there is no second reading.
    pub fn report(mut self) -> CheckReport {
        if let Some(doubt) = Doubt::of(self.facts) {
            self.found
                .findings
                .iter_mut()
                .filter(|finding| compares(finding))
                .for_each(|finding| doubt.lower(finding));
        }
        report(self.facts, self.found, self.scope)
    }

    /// The report, if flows that failed by faults of these classes stand for a second reading: see [`Self::is_confirmed_by`].
    pub fn confirmed_by_flows(mut self, met: &BTreeSet<Class>) -> CheckReport {
        let others =
            self.found.findings.iter_mut().filter(|it| depends_on_time(it) && !met.contains(&it.class));
        for finding in others {
            demote(
                finding,
                "it was read once: connections showed the cause before a second reading".to_owned(),
            );
        }
        self.report()
    }

    /// The report of a later reading, in which a fault or warning counts only if this one has it too.
    pub fn confirmed_by(self, mut later: Self) -> CheckReport {
        let apart = match (self.facts.taken, later.facts.taken) {
            (Some(earlier), Some(later)) => length(later.since(earlier)).to_string(),
            _ => "a moment".to_owned(),
        };
        let before = self.found.findings;
        let now = &mut later.found.findings;
        for finding in now.iter_mut().filter(|finding| depends_on_time(finding)) {
            if !before.iter().any(|other| is_same(finding, other)) {
                demote(finding, format!("a reading {apart} before did not show it: the cluster is changing"));
            }
        }
        let is_gone = |finding: &Finding| {
            finding.level == Level::Fault && !now.iter().any(|other| is_about_same(finding, other))
        };
        let mut gone: Vec<Finding> = before.into_iter().filter(is_gone).collect();
        for finding in gone.iter_mut().filter(|finding| depends_on_time(finding)) {
            demote(finding, format!("a reading {apart} later did not show it any more"));
        }
        now.append(&mut gone);
        report(later.facts, later.found, later.scope)
    }
}

/// Why a single reading may compare lists and rules of different moments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doubt {
    /// kube-proxy received a change after the lists were read.
    ChangedSince,
    /// The lists and the rules were read this far apart.
    Apart(Duration),
    /// The lists have no time.
    NoTimes,
}

impl Doubt {
    fn of(facts: &Facts) -> Option<Self> {
        let Some(read) = facts.lists_read else { return Some(Self::NoTimes) };
        if facts.node.report.last_queued.is_some_and(|queued| queued > read) {
            return Some(Self::ChangedSince);
        }
        let rules = facts.node.rules_time.filter(|time| *time > Timestamp::MIN)?;
        let apart = rules.since(read).max(read.since(rules));
        (apart > SETTLED).then_some(Self::Apart(apart))
    }

    fn lower(self, finding: &mut Finding) {
        if self != Self::NoTimes {
            finding.level = finding.level.max(Level::Warning);
            finding.confidence = Confidence::Low;
        }
        match self {
            Self::ChangedSince => {
                let why = "kube-proxy received a change after the lists were read: the rules may be newer than the lists";
                against(finding, why.to_owned());
                finding.note_unobserved("the lists and the rules of one moment: check again");
            }
            Self::Apart(apart) => {
                against(finding, format!("the lists and the rules were read {} apart", length(apart)));
                finding.note_unobserved("the lists and the rules of one moment");
            }
            Self::NoTimes => {
                finding.doubt();
                finding.note_unobserved(
                    "when the lists were read: a change between them and the rules looks the same",
                );
            }
        }
    }
}

/// Whether it comes from a comparison of a Service's rules with the lists.
fn compares(finding: &Finding) -> bool {
    finding.step == Some(Step::Rules) && finding.said().service.is_some() && finding.level != Level::Note
}

/// The duration of kube-proxy's syncs since its start, which is the same a moment later.
fn is_percentile(finding: &Finding) -> bool {
    finding.class == Class::C5 && finding.said().service.is_none() && finding.level == Level::Warning
}

/// Growth between two readings of counters, and settings, are not read again.
fn depends_on_time(finding: &Finding) -> bool {
    finding.level != Level::Note
        && !is_percentile(finding)
        && matches!(finding.step, Some(Step::Endpoints | Step::KubeProxy | Step::Rules))
}

fn demote(finding: &mut Finding, why: String) {
    finding.level = Level::Note;
    finding.doubt();
    against(finding, why);
}

fn against(finding: &mut Finding, content: String) {
    finding.note_against(EvidenceType::Node, None, content);
}

fn is_about_same(one: &Finding, other: &Finding) -> bool {
    one.class == other.class && one.said().service == other.said().service
}

/// The same fault in both readings: of a Service, at least one difference must be in both.
fn is_same(one: &Finding, other: &Finding) -> bool {
    // The place and the state of a sync, at the end, may change between two readings of one difference.
    let core = |evidence: &Evidence| evidence.content.split(" [").next().unwrap_or_default().to_owned();
    let (said, others) = (one.said(), other.said());
    is_about_same(one, other)
        && other.level != Level::Note
        && (said.service.is_none()
            || said.detail == others.detail
            || said.evidence.iter().any(|mine| others.evidence.iter().any(|its| core(mine) == core(its))))
}
