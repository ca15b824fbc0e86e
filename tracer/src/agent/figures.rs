//! The agent's figures: one state that the event loop and the servers' tasks write, and that a scrape reads.
//!
//! Owns the numbers, and no name: `metrics` names them.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{counts::Counts, recorder::RecorderFigures};
use crate::{class::Kind as Result, cluster::Kind, session::Judged, time::Timestamp, verdict::Verdict};

/// The figures behind their lock. No holder waits for anything, or writes text.
#[derive(Debug)]
pub(crate) struct Shared(Mutex<Figures>);

impl Shared {
    pub(crate) fn new(counts: Counts) -> Self {
        Self(Mutex::new(Figures { counts, ..Figures::default() }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Figures> {
        // A task that panicked while it held the lock leaves numbers, which are as good as before.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A copy, for readers that write the numbers as text: the event loop does not wait for them.
    pub(crate) fn copy(&self) -> Figures {
        self.lock().clone()
    }

    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        self.0.try_lock().is_ok()
    }
}

/// A signal of the OTLP export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Signal {
    Logs,
    Metrics,
}

impl Signal {
    pub(crate) const ALL: [Self; 2] = [Self::Logs, Self::Metrics];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Logs => "logs",
            Self::Metrics => "metrics",
        }
    }
}

/// The export of one signal.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Export {
    pub(crate) exported: u64,
    pub(crate) dropped: u64,
    pub(crate) failures: u64,
}

/// The programs of one hook, as the kernel counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HookRuns {
    /// Runs that the kernel skipped.
    pub(crate) skipped: u64,
    /// Only while the kernel measures run times.
    pub(crate) measured: Option<(Duration, u64)>,
}

/// All figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    pub(crate) counts: Counts,
    /// Whether the kernel counts the connections: then most of them have no verdict.
    pub(crate) counted_by_kernel: bool,
    pub(crate) ok: u64,
    pub(crate) normal: u64,
    pub(crate) fault: u64,
    pub(crate) unknown: u64,
    pub(crate) corrected: u64,
    pub(crate) last_fault: Option<Timestamp>,
    pub(crate) open_flows: u64,
    pub(crate) held_flows: u64,
    pub(crate) evicted_flows: u64,
    pub(crate) events: u64,
    pub(crate) flows_of_other_nodes: u64,
    pub(crate) lost_events: u64,
    pub(crate) suppressed_events: u64,
    /// Addresses and ports of Services without room in the kernel.
    pub(crate) refused_ends: u64,
    /// After how long the kernel gives up a decision, if it gives up any.
    pub(crate) decision_retention: Option<Duration>,
    /// By the hook's kernel name: whether it is attached.
    pub(crate) hooks: BTreeMap<&'static str, bool>,
    pub(crate) runs: BTreeMap<&'static str, HookRuns>,
    pub(crate) ready: bool,
    pub(crate) metadata_age: Option<Duration>,
    pub(crate) watches: [bool; Kind::ALL.len()],
    pub(crate) recorder: RecorderFigures,
    pub(crate) stream_readers: u64,
    pub(crate) stream_dropped: u64,
    pub(crate) stream_refused: u64,
    /// Records that standard output did not take.
    pub(crate) output_dropped: u64,
    pub(crate) logs: Export,
    pub(crate) metrics: Export,
    pub(crate) log_suppressed: u64,
    pub(crate) reloads: u64,
    pub(crate) failed_reloads: u64,
    pub(crate) last_reload_failed: bool,
    /// By server and status.
    pub(crate) requests: BTreeMap<(&'static str, u16), u64>,
}

impl Figures {
    /// The judged flows by their result.
    pub(crate) fn by_result(&self) -> [(&'static str, u64); 4] {
        [("ok", self.ok), ("normal", self.normal), ("fault", self.fault), ("unknown", self.unknown)]
    }

    /// Counts the results of flows of one class.
    pub(crate) fn results(&mut self, result: Result, count: u64) {
        let total = match result {
            Result::Ok => &mut self.ok,
            Result::Normal => &mut self.normal,
            Result::Fault => &mut self.fault,
            Result::Unknown => &mut self.unknown,
        };
        *total = total.saturating_add(count);
    }

    /// Counts the connections of flows with this verdict, unless the kernel did.
    pub(crate) fn started(&mut self, verdict: &Verdict, count: u64) {
        if !self.counted_by_kernel {
            self.counts.started(verdict, count);
        }
    }

    /// Counts a judged flow.
    pub(crate) fn judged(&mut self, judged: &Judged) {
        let verdict = &judged.verdict;
        self.results(verdict.class.kind(), 1);
        self.counts.failed(verdict);
        if judged.before.is_some() {
            self.corrected += 1;
        } else {
            self.started(verdict, 1);
        }
        if verdict.is_fault() {
            self.last_fault = self.last_fault.max(Some(verdict.time));
        }
    }
}
