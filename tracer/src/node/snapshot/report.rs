//! kube-proxy's own reports, as far as a trace's verdicts use them: small enough for each snapshot of a recording.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Snapshot;
use crate::{node::kube_proxy::metrics::Metrics, time::Timestamp};

/// A percentile above this is an accident of the past (kube-proxy was stopped during a change), not its pace.
const MAX_OBSERVED: Duration = Duration::from_mins(5);
/// With fewer observations the 99th percentile is the slowest of a start.
const MIN_OBSERVATIONS: f64 = 20.0;

/// The histograms that show kube-proxy's pace: from a change of an `EndpointSlice` to its rules, and one sync
/// (`pkg/proxy/metrics/metrics.go`; the same names from 1.14 to 1.36).
const PACE: [&str; 2] =
    ["kubeproxy_network_programming_duration_seconds", "kubeproxy_sync_proxy_rules_duration_seconds"];

/// An absent fact was not read.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProxyReport {
    /// The program that contains kube-proxy, if it is not kube-proxy itself (`k3s`, `kubelite`).
    pub embedded_in: Option<String>,
    pub min_sync_period: Option<Duration>,
    /// The slowest 99th percentile of its latencies.
    pub latency: Option<Duration>,
    /// The latest queued update of both families.
    pub last_queued: Option<Timestamp>,
    /// The latest write, or, while an update waits, the last write of the family that waits. Since 1.33 each family has its own
    /// times, and a change of one leaves the other as it is.
    pub last_synced: Option<Timestamp>,
    /// Batches of rules that were rejected since its start.
    pub failed_syncs: u64,
    /// Feature gate `ProxyTerminatingEndpoints`, if configured.
    pub uses_terminating: Option<bool>,
    /// When its process was started, exact to about a second: `process_start_time_seconds` is the kernel's boot time in
    /// whole seconds and the process's ticks since then (prometheus/procfs, `proc_stat.go`, `StartTime`).
    pub started: Option<Timestamp>,
    /// Its process id, if it has a process of its own that is visible here.
    pub pid: Option<u32>,
}

impl ProxyReport {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let metrics = snapshot.metrics.as_ref();
        let config = snapshot.config.as_ref();
        let program = snapshot.process.as_ref().and_then(|process| process.program.clone());
        let times = metrics.map(Metrics::sync_times).unwrap_or_default();
        let waiting = times.iter().filter(|times| times.last_queued > times.last_synced);
        let waiting = waiting.map(|times| times.last_synced);
        let p99 = |name: &&str| {
            let (bound, count) = metrics?.quantile(name, 0.99)?;
            let bound = Duration::try_from_secs_f64(bound).ok()?;
            (count >= MIN_OBSERVATIONS && bound < MAX_OBSERVED).then_some(bound)
        };
        let failed: f64 = metrics.iter().flat_map(|metrics| metrics.failures()).map(|(_, count)| count).sum();
        let gate = |(name, set): &(String, bool)| (name == "ProxyTerminatingEndpoints").then_some(*set);
        Self {
            embedded_in: program.filter(|program| program != "kube-proxy"),
            min_sync_period: config.and_then(|config| config.min_sync_period),
            latency: PACE.iter().filter_map(p99).max(),
            last_queued: times
                .iter()
                .map(|times| times.last_queued)
                .reduce(f64::max)
                .and_then(Timestamp::from_unix_secs_f64),
            last_synced: waiting
                .reduce(f64::min)
                .or_else(|| times.iter().map(|times| times.last_synced).reduce(f64::max))
                .and_then(Timestamp::from_unix_secs_f64),
            failed_syncs: Duration::try_from_secs_f64(failed).map_or(0, |count| count.as_secs()),
            uses_terminating: config.and_then(|config| config.feature_gates.iter().find_map(gate)),
            started: metrics.and_then(Metrics::started).and_then(Timestamp::from_unix_secs_f64),
            pid: snapshot.process.as_ref().and_then(|process| process.pid),
        }
    }

    /// Brings kube-proxy's times, which are of the wall clock, to the clock of the trace. A time of zero means "never".
    pub(crate) fn make_trace_time(&mut self, wall_ahead_ns: i64) {
        for time in [&mut self.last_queued, &mut self.last_synced, &mut self.started].into_iter().flatten() {
            if *time > Timestamp::MIN {
                *time = time.shifted(wall_ahead_ns.saturating_neg());
            }
        }
    }

    /// The grace: at least `minimum`; twice `minSyncPeriod`, because a change can wait for one period and be written in
    /// the next (`pkg/util/async/bounded_frequency_runner.go`); and kube-proxy's own latency.
    pub fn grace(&self, minimum: Duration) -> Duration {
        let period = self.min_sync_period.unwrap_or_default().saturating_mul(2);
        minimum.max(period).max(self.latency.unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::kube_proxy::process::ProcessList;

    #[test]
    fn a_process_is_known_by_its_start_and_its_id() {
        let process = r#"{"complete": true, "program": "kube-proxy", "pid": 812}"#;
        let mut snapshot = Snapshot {
            metrics: Some(Metrics::parse("process_start_time_seconds 1.79521709812e+09\n")),
            process: Some(ProcessList::parse(process).unwrap()),
            ..Snapshot::default()
        };
        let report = ProxyReport::of(&snapshot);
        assert_eq!(report.started.map(|time| time.as_unix_ns() / 1_000_000_000), Some(1_795_217_098));
        assert_eq!(report.pid, Some(812));
        snapshot.report = report;
        let saved = serde_json::to_string(&snapshot).unwrap();
        let again: Snapshot = serde_json::from_str(&saved).unwrap();
        assert_eq!(again.report, snapshot.report);
    }

    /// kubernetes/kubernetes#129173.
    #[test]
    fn a_family_that_has_nothing_to_write_is_not_behind() {
        let of = |v6_queued: u64| {
            let times = format!(
                "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{{ip_family=\"IPv4\"}} 610\n\
                 kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"IPv4\"}} 611\n\
                 kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds{{ip_family=\"IPv6\"}} {v6_queued}\n\
                 kubeproxy_sync_proxy_rules_last_timestamp_seconds{{ip_family=\"IPv6\"}} 11\n"
            );
            let report =
                ProxyReport::of(&Snapshot { metrics: Some(Metrics::parse(&times)), ..Snapshot::default() });
            [report.last_queued, report.last_synced].map(|time| time.unwrap().as_unix_ns() / 1_000_000_000)
        };
        assert_eq!(of(10), [610, 611]);
        assert_eq!(of(12), [610, 11], "IPv6 waits");
    }

    #[test]
    fn times_of_the_wall_clock_are_brought_to_the_clock_of_the_trace() {
        let at = |secs| Some(Timestamp::from_unix_secs(secs));
        let mut report =
            ProxyReport { last_queued: at(10_000), last_synced: at(0), ..ProxyReport::default() };
        report.make_trace_time(3_600_000_000_000);
        assert_eq!((report.last_queued, report.last_synced), (at(6_400), at(0)), "zero means never");
    }
}
