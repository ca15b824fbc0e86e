//! The export by OpenTelemetry's protocol: verdicts as logs, counts as metrics, over HTTP with JSON.
//!
//! Owns the queue, its bound, and the retries. A receiver that is slow or gone costs memory up to the bound and no time of
//! the event loop. Sums are cumulative, so that a request of metrics that failed is not repeated: the next has the same.

mod http;
mod json;

use std::{
    collections::VecDeque,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};

use super::{
    Context,
    config::OtlpConfig,
    figures::{Export, Signal},
    log::Log,
    process,
    tls::{TlsError, Trust},
};
use crate::{time::Timestamp, verdict::Verdict};

/// Records wait for this long, so that they leave together.
const GATHER: Duration = Duration::from_millis(500);
/// The most records, and about the most bytes, of one request.
const MAX_RECORDS: usize = 512;
const MAX_BYTES: usize = 2 << 20;
/// The pause after the first failure, doubled after each further one, up to [`MAX_PAUSE`].
const PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_mins(1);
/// A request of logs is given up after this time.
const GIVE_UP: Duration = Duration::from_mins(5);

/// The records that wait for the receiver, and the end of the agent.
#[derive(Debug)]
pub(crate) struct Outbox {
    records: Mutex<VecDeque<String>>,
    filled: Notify,
    /// Until when the last requests may take.
    end: watch::Sender<Option<Instant>>,
    trust: Trust,
}

impl Outbox {
    pub(crate) fn new() -> Self {
        Self {
            records: Mutex::default(),
            filled: Notify::new(),
            end: watch::Sender::new(None),
            trust: Trust::default(),
        }
    }

    /// Reads the certificates that the export trusts.
    ///
    /// # Errors
    ///
    /// If there is no usable certificate in the file.
    pub(super) fn open_trust(&self, authorities: &Path, log: &Log) -> Result<(), TlsError> {
        self.trust.connector(Some(authorities), log).map(drop)
    }

    /// Queues a verdict, if logs are exported. Returns whether it was dropped.
    pub(crate) fn push(&self, verdict: &Verdict, line: &str, config: &OtlpConfig, now: Timestamp) -> bool {
        if config.endpoint.is_none() || !config.logs {
            return false;
        }
        let mut records = self.records();
        if records.len() >= config.queue.as_usize() {
            return true;
        }
        records.push_back(json::log_record(verdict, line.trim_end(), now));
        drop(records);
        self.filled.notify_one();
        false
    }

    /// The tasks send the rest and end.
    pub(crate) fn close(&self, until: Instant) {
        self.end.send_replace(Some(until));
    }

    fn records(&self) -> MutexGuard<'_, VecDeque<String>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The records of the next request.
    fn take(&self) -> Vec<String> {
        let mut records = self.records();
        let mut bytes = 0;
        let fits = |record: &&String| {
            bytes += record.len();
            bytes <= MAX_BYTES
        };
        let count = records.iter().take(MAX_RECORDS).take_while(fits).count();
        let some = if records.is_empty() { 0 } else { count.max(1) };
        records.drain(..some).collect()
    }
}

/// Starts the tasks of the export. They wait while no receiver is configured.
pub(super) fn start(context: &Arc<Context>, tasks: &mut JoinSet<()>) {
    tasks.spawn(send_logs(Arc::clone(context)));
    tasks.spawn(send_metrics(Arc::clone(context), process::wall_clock()));
}

async fn send_logs(context: Arc<Context>) {
    let outbox = &context.outbox;
    let mut end = outbox.end.subscribe();
    loop {
        let batch = outbox.take();
        if batch.is_empty() {
            if end.borrow().is_some() {
                return;
            }
            tokio::select! {
                () = outbox.filled.notified() => {}
                _ = end.changed() => continue,
            }
            tokio::select! {
                () = tokio::time::sleep(GATHER) => {}
                _ = end.changed() => {}
            }
            continue;
        }
        let count = batch.len() as u64;
        let body = json::logs(context.node.as_deref(), &batch).into();
        let sent = send_until_accepted(&context, body, &mut end).await;
        count_export(&context, Signal::Logs, |export| match sent {
            Some(rejected) => {
                export.exported += count.saturating_sub(rejected);
                export.dropped += rejected.min(count);
            }
            None => export.dropped += count,
        });
    }
}

/// Sends the request until the receiver accepts it, then returns the number of records that it rejected. `None` if the
/// request was given up.
async fn send_until_accepted(
    context: &Context,
    body: Bytes,
    end: &mut watch::Receiver<Option<Instant>>,
) -> Option<u64> {
    let begun = Instant::now();
    let mut pause = PAUSE;
    loop {
        let config = context.config.borrow().otlp.clone();
        let failed = match post(context, Signal::Logs, &config, body.clone()).await? {
            Ok(rejected) => return Some(rejected),
            Err(failed) => failed,
        };
        let over = end.borrow().is_some_and(|until| Instant::now() >= until);
        if !failed.again || over || begun.elapsed() >= GIVE_UP {
            return None;
        }
        let wait = failed.after.unwrap_or(pause).min(MAX_PAUSE);
        pause = (pause * 2).min(MAX_PAUSE);
        let ending = end.borrow().is_some();
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = end.changed(), if !ending => {}
        }
    }
}

async fn send_metrics(context: Arc<Context>, started: Timestamp) {
    let mut end = context.outbox.end.subscribe();
    loop {
        let interval = context.config.borrow().otlp.interval.get();
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            _ = end.changed() => {}
        }
        let config = context.config.borrow().otlp.clone();
        if config.metrics && config.endpoint.is_some() {
            let figures = context.figures.copy();
            let requests = json::metrics(context.node.as_deref(), &figures, started, process::wall_clock());
            for body in requests {
                let accepted =
                    matches!(post(&context, Signal::Metrics, &config, body.into()).await, Some(Ok(_)));
                count_export(&context, Signal::Metrics, |export| {
                    *(if accepted { &mut export.exported } else { &mut export.dropped }) += 1;
                });
            }
        }
        if end.borrow().is_some() {
            return;
        }
    }
}

/// Sends one request. `None` if no receiver is configured any more.
async fn post(
    context: &Context,
    signal: Signal,
    config: &OtlpConfig,
    body: Bytes,
) -> Option<Result<u64, http::Failed>> {
    let base = config.endpoint.as_deref()?;
    let url = format!("{}/v1/{}", base.trim_end_matches('/'), signal.name());
    let answer = http::post(&url, config, context, body).await;
    if let Err(failed) = &answer {
        count_export(context, signal, |export| export.failures += 1);
        context.log.warn("otlp", &format!("cannot send {} to {url}: {}", signal.name(), failed.why));
    }
    Some(answer.map(|answer| json::rejected(signal, &answer)))
}

fn count_export(context: &Context, signal: Signal, change: impl FnOnce(&mut Export)) {
    let mut figures = context.figures.lock();
    change(match signal {
        Signal::Logs => &mut figures.logs,
        Signal::Metrics => &mut figures.metrics,
    });
}
