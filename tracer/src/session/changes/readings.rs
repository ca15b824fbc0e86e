//! The differences between two readings of the node, in words.
//!
//! Owns the facts that are compared: those that a recording keeps, so that a replay finds the same differences. A fact
//! that one reading lacks is compared with the last reading that had it. The first reading has no differences; a fact
//! that kube-proxy itself reports with a time needs no earlier reading.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Change, MAX_AGE, Subject};
use crate::{
    diagnosis::triage::in_flight_limit,
    node::{Observed, Presence, ProxyMode, Snapshot, ipvs::IpvsSettings},
    text,
    time::Timestamp,
    verdict::ChangeKind,
};

/// A process whose start differs by less is the same: it is known to about a second.
const SAME_START: Duration = Duration::from_secs(3);
/// The conntrack table counts as nearly full from this share on, and as normal again below the other, in percent.
const NEARLY_FULL: u64 = 90;
const NORMAL: u64 = 75;

/// A fact, and the last reading that had it.
type Known<T> = Option<Observed<T>>;

/// The facts of the last readings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Readings {
    running: Known<bool>,
    started: Known<Timestamp>,
    pid: Known<u32>,
    mode: Known<ProxyMode>,
    version: Known<String>,
    min_sync_period: Known<Duration>,
    uses_terminating: Known<bool>,
    failed_syncs: Known<u64>,
    is_late: Known<bool>,
    /// Whether kube-proxy's rules are in the kernel.
    has_rules: Known<bool>,
    conntrack_max: Known<u64>,
    nearly_full: Known<bool>,
    ipvs: Known<IpvsSettings>,
    mtus: BTreeMap<String, Observed<u64>>,
}

/// A fact that differs: its earlier value with the time of that, and its value now.
struct Difference<T> {
    since: Timestamp,
    before: T,
    after: T,
}

/// Keeps a new value, and returns it with the earlier one if they differ.
fn differs<T: Clone + PartialEq>(
    known: &mut Known<T>,
    value: Option<T>,
    time: Timestamp,
) -> Option<Difference<T>> {
    let after = value?;
    let before = known.replace(Observed { time, value: after.clone() })?;
    (before.value != after).then_some(Difference { since: before.time, before: before.value, after })
}

/// The differences of one reading.
struct Found {
    began: Timestamp,
    changes: Vec<Change>,
}

impl Found {
    fn at(&mut self, time: Timestamp, kind: ChangeKind, text: impl Into<String>) {
        self.changes.push(Change::at(time.min(self.began), kind, Subject::KubeProxy, text.into()));
    }

    fn since(&mut self, since: Timestamp, kind: ChangeKind, subject: Subject, text: impl Into<String>) {
        self.changes.push(Change::between((since, self.began), kind, subject, text.into()));
    }
}

impl Readings {
    /// The differences from the earlier readings. This one began at `began`.
    pub(super) fn differences(&mut self, snapshot: &Snapshot, began: Timestamp) -> Vec<Change> {
        let mut found = Found { began, changes: Vec::new() };
        let is_restarted = self.process(snapshot, &mut found);
        self.syncs(snapshot, is_restarted, &mut found);
        self.settings(snapshot, &mut found);
        self.kernel(snapshot, &mut found);
        found.changes
    }

    /// Whether kube-proxy runs, and since when. Returns whether it was restarted.
    fn process(&mut self, snapshot: &Snapshot, found: &mut Found) -> bool {
        let (report, began) = (&snapshot.report, found.began);
        let running = differs(&mut self.running, snapshot.running, began);
        let pid = differs(&mut self.pid, report.pid, began);
        let earlier_start = self.started.map(|started| started.value);
        let new_start = report.started.filter(|started| {
            let distance = |other: Timestamp| started.since(other).max(other.since(*started));
            earlier_start.is_none_or(|earlier| distance(earlier) >= SAME_START)
        });
        // The kernel's clock is read each time: the first value stays, so that many small differences do not add up.
        if let Some(started) = new_start {
            self.started = Some(Observed { time: began, value: started });
        }
        let is_new = pid.is_some() || new_start.is_some() && earlier_start.is_some();
        match (new_start, pid, running) {
            (Some(started), ..) => {
                if began.since(started) <= MAX_AGE {
                    found.at(started, ChangeKind::KubeProxyStarted, "kube-proxy was started");
                }
            }
            (None, Some(Difference { since, before, after }), _) => {
                let text = format!("kube-proxy was started again: its process {before} is now {after}");
                found.since(since, ChangeKind::KubeProxyStarted, Subject::KubeProxy, text);
            }
            (None, None, Some(Difference { since, after: true, .. })) => {
                let text = "kube-proxy runs again on this node";
                found.since(since, ChangeKind::KubeProxyStarted, Subject::KubeProxy, text);
            }
            (None, None, Some(Difference { since, after: false, .. })) => {
                let text = "kube-proxy does not run on this node any more";
                found.since(since, ChangeKind::KubeProxyStopped, Subject::KubeProxy, text);
            }
            (None, None, None) => {}
        }
        is_new
    }

    fn syncs(&mut self, snapshot: &Snapshot, is_restarted: bool, found: &mut Found) {
        let (report, began) = (&snapshot.report, found.began);
        // Without its other metrics the count of failures was not read either.
        let has_metrics = report.started.is_some() || report.last_queued.is_some();
        if is_restarted && let Some(known) = &mut self.failed_syncs {
            known.value = 0;
        }
        let failed = has_metrics.then_some(report.failed_syncs);
        if let Some(Difference { since, before, after }) = differs(&mut self.failed_syncs, failed, began)
            && after > before
        {
            let times = text::times(after - before);
            let text = format!("kube-proxy failed {times} to write its rules");
            found.since(since, ChangeKind::KubeProxySync, Subject::KubeProxy, text);
        }
        let Some((queued, synced)) = report.last_queued.zip(report.last_synced) else { return };
        let waits = synced > Timestamp::MIN && queued > synced;
        let is_late = waits && began.since(queued) >= in_flight_limit(report.min_sync_period);
        let was_late = self.is_late.is_some_and(|known| known.value);
        // While a later update waits for less than that, it is not known whether the earlier one was written.
        if is_late || !waits {
            self.is_late = Some(Observed { time: began, value: is_late });
        }
        if is_late && !was_late {
            let text = format!(
                "a change was queued for kube-proxy's rules, which it had not written {} later",
                text::length(began.since(queued))
            );
            found.at(queued, ChangeKind::KubeProxySync, text);
        } else if was_late && !waits {
            found.at(synced, ChangeKind::KubeProxySync, "kube-proxy wrote its rules again");
        }
    }

    fn settings(&mut self, snapshot: &Snapshot, found: &mut Found) {
        let (report, began) = (&snapshot.report, found.began);
        // Without kube-proxy the mode is that of any rules.
        let mode = snapshot.mode.filter(|_| snapshot.running == Some(true));
        if let Some(Difference { since, before, after }) = differs(&mut self.mode, mode, began) {
            let text = format!("kube-proxy's mode changed from {} to {}", before.as_str(), after.as_str());
            found.since(since, ChangeKind::KubeProxyConfig, Subject::KubeProxy, text);
        }
        let period = differs(&mut self.min_sync_period, report.min_sync_period, began);
        if let Some(Difference { since, before, after }) = period {
            let (before, after) = (text::length(before), text::length(after));
            let text = format!("kube-proxy's minSyncPeriod changed from {before} to {after}");
            found.since(since, ChangeKind::KubeProxyConfig, Subject::KubeProxy, text);
        }
        let gate = differs(&mut self.uses_terminating, report.uses_terminating, began);
        if let Some(Difference { since, after, .. }) = gate {
            let text = format!("kube-proxy's feature gate ProxyTerminatingEndpoints changed to {after}");
            found.since(since, ChangeKind::KubeProxyConfig, Subject::KubeProxy, text);
        }
        let version = differs(&mut self.version, snapshot.version.as_deref().map(str::to_owned), began);
        if let Some(Difference { since, before, after }) = version {
            let text = format!("kube-proxy's version changed from {before} to {after}");
            found.since(since, ChangeKind::Upgraded, Subject::KubeProxy, text);
        }
    }

    fn kernel(&mut self, snapshot: &Snapshot, found: &mut Found) {
        let began = found.began;
        let has_rules = match snapshot.proxy_rules.any() {
            Presence::Unknown => None,
            Presence::Present => Some(true),
            Presence::Absent => Some(false),
        };
        if let Some(Difference { since, after, .. }) = differs(&mut self.has_rules, has_rules, began) {
            let (kind, text) = if after {
                (ChangeKind::RulesBack, "kube-proxy's rules are in the kernel again")
            } else {
                (ChangeKind::RulesRemoved, "kube-proxy's rules are no longer in the kernel")
            };
            found.since(since, kind, Subject::ThisNode, text);
        }
        let used = snapshot.conntrack_use.map(|used| used.value).filter(|used| used.max > 0);
        let max = differs(&mut self.conntrack_max, used.map(|used| used.max), began);
        if let Some(Difference { since, before, after }) = max {
            let text = format!("nf_conntrack_max changed from {before} to {after}");
            found.since(since, ChangeKind::Sysctl, Subject::ThisNode, text);
        }
        if let Some(used) = used {
            let percent = (u128::from(used.count) * 100 / u128::from(used.max)) as u64;
            let is_full = match percent {
                NEARLY_FULL.. => Some(true),
                0..NORMAL => Some(false),
                _ => None,
            };
            if let Some(Difference { since, .. }) = differs(&mut self.nearly_full, is_full, began) {
                let again = if percent < NORMAL { "only " } else { "" };
                let (count, max) = (used.count, used.max);
                let text =
                    format!("the conntrack table is {again}{percent} % full ({count} of {max} entries)");
                found.since(since, ChangeKind::Conntrack, Subject::ThisNode, text);
            }
        }
        if let Some(Difference { since, before, after }) =
            differs(&mut self.ipvs, snapshot.ipvs_settings, began)
        {
            let number = |set: Option<bool>| set.map(u8::from);
            let settings = [
                ("conntrack", number(before.conntrack), number(after.conntrack)),
                ("expire_nodest_conn", number(before.expire_nodest_conn), number(after.expire_nodest_conn)),
                ("conn_reuse_mode", before.conn_reuse_mode, after.conn_reuse_mode),
            ];
            for (name, before, after) in settings {
                if let (Some(before), Some(after)) = (before, after)
                    && before != after
                {
                    let text = format!("net.ipv4.vs.{name} changed from {before} to {after}");
                    found.since(since, ChangeKind::Sysctl, Subject::ThisNode, text);
                }
            }
        }
        self.mtus(snapshot, found);
    }

    /// An interface of the last reading that this one lacks is forgotten.
    fn mtus(&mut self, snapshot: &Snapshot, found: &mut Found) {
        if snapshot.mtus.is_empty() {
            return;
        }
        let now = snapshot
            .mtus
            .iter()
            .map(|(name, mtu)| (name.clone(), Observed { time: found.began, value: *mtu }));
        let before = std::mem::replace(&mut self.mtus, now.collect());
        for (name, mtu) in &snapshot.mtus {
            if let Some(known) = before.get(name).filter(|known| known.value != *mtu) {
                let text = format!("the MTU of {name} changed from {} to {mtu}", known.value);
                found.since(known.time, ChangeKind::Sysctl, Subject::ThisNode, text);
            }
        }
    }
}
