//! The fault of kube-proxy behind stale rules, from its own figures.

use super::{
    Case, Finding,
    text::{counted, length},
};
use crate::{class::Class, text::phrase, time::Timestamp, verdict::Verdict};

/// The cause of stale rules, from kube-proxy's own figures, if they were read long enough after the change at `since`:
/// kube-proxy does not run (C1), has queued no update since (C2), or cannot write one (C4).
///
/// `sync_proxy_rules_last_queued_timestamp_seconds` is set when a change arrives, not by the periodic sync
/// (`Proxier.Sync`, `pkg/proxy/iptables/proxier.go`), so a kube-proxy without its API server does not advance it.
pub(super) fn with_cause(case: &Case<'_>, since: Option<Timestamp>, mut finding: Finding) -> Finding {
    let node = case.ctx.node;
    let report = &node.report;
    let read = node.read_at();
    let since = since.filter(|since| *since > Timestamp::MIN);
    let is_later =
        since.zip(read).is_some_and(|(since, read)| read > since.at_latest().saturating_add(case.ctx.grace));
    let heard = since.zip(report.last_queued).map(|(since, queued)| queued >= since);
    let waits = report.last_queued > report.last_synced;
    let behind = match (node.running, heard) {
        (Some(false), _) => Some((Class::C1, "kube-proxy does not run", "no kube-proxy process".into())),
        (Some(true), Some(false)) if is_later && !waits => {
            let ago = since.zip(report.last_queued).map(|(since, queued)| since.since(queued));
            Some((
                Class::C2,
                "kube-proxy has received no change since: it is cut off from the API server",
                case.said(format_args!(
                    "kube-proxy queued its last update {} before that change, and none since",
                    length(ago.unwrap_or_default())
                )),
            ))
        }
        (Some(true), Some(true)) if is_later && waits => Some((
            Class::C4,
            "kube-proxy cannot write its rules",
            case.said(format_args!(
                "an update waits in kube-proxy; {}",
                counted(report.failed_syncs, "rejected sync")
            )),
        )),
        _ => None,
    };
    match behind {
        Some((class, what, evidence)) => {
            finding
                .say(|said| said.detail = phrase!("{}; {what} {}", said.detail, in_brackets(class)).into());
            finding.behind = Some(class);
            finding.node(read, evidence).related(&[class])
        }
        None => finding
            .unobserved("why the rules are old: kube-proxy's log and metrics distinguish C1, C2 and C4")
            .related(&[Class::C2, Class::C4]),
    }
}

fn in_brackets(class: Class) -> String {
    format!("({class})")
}

/// kube-proxy's own fault that [`with_cause`] found behind the stale endpoint of a verdict.
pub(crate) fn cause_behind(verdict: &Verdict) -> Option<Class> {
    let is_behind = |class: &Class| verdict.root_cause.ends_with(&in_brackets(*class));
    [Class::C1, Class::C2, Class::C4].into_iter().find(is_behind)
}
