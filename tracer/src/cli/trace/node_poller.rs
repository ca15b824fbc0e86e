//! Reads the node in parallel to the event loop: one read at a time, with pauses between them.
//!
//! Owns when the node is read, and the result of a failed read. Judges nothing.

use std::{
    io,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use crate::{
    kernel::{now, wall_ahead_ns},
    node::{Collector, Request, Snapshot, entries},
    sighting::ListedEntry,
    time::Timestamp,
};

/// The minimum pause between two reads of the node. A pause is nine times as long as the last read, from this minimum
/// to [`MAX_PAUSE`]: listing the rules of a large cluster takes seconds, and tracing must not burden a broken node.
const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_FACTOR: u32 = 9;
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// The interval at which the node's state is read although no flow needs it: a change is dated by two readings.
const STATE: Duration = Duration::from_mins(1);

/// The pause between two lists of conntrack entries: an entry that is used although its endpoint is gone is reported
/// within 35 s of the endpoint's removal, with a grace of up to 10 s.
const LIST_PAUSE: Duration = Duration::from_secs(20);

/// Lists the UDP entries in parallel to the event loop: at the beginning, periodically, and at the end.
#[derive(Debug, Default)]
pub(super) struct EntryLister {
    asked: Option<oneshot::Receiver<io::Result<Vec<ListedEntry>>>>,
    last: Option<Instant>,
}

impl EntryLister {
    /// Starts a list if one is due and none is in progress.
    pub(super) fn want(&mut self) {
        if self.asked.is_none() && self.last.is_none_or(|last| last.elapsed() >= LIST_PAUSE) {
            self.start();
        }
    }

    /// When a list is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.asked.is_some() { None } else { self.last.map(|last| last + LIST_PAUSE) }
    }

    /// Lists the entries now.
    pub(super) async fn read(&mut self) -> io::Result<Vec<ListedEntry>> {
        self.start();
        self.answer().await
    }

    fn start(&mut self) {
        let (answer, asked) = oneshot::channel();
        tokio::task::spawn_blocking(move || {
            let _ = answer.send(entries::datagrams(Path::new("/"), entries::LIMITS));
        });
        self.asked = Some(asked);
        self.last = Some(Instant::now());
    }

    /// The requested list; waits forever if there is no request.
    pub(super) async fn answer(&mut self) -> io::Result<Vec<ListedEntry>> {
        let Some(asked) = &mut self.asked else { return std::future::pending().await };
        let answer = asked.await;
        self.asked = None;
        answer.unwrap_or_else(|_| Err(io::Error::other("the list of conntrack entries was interrupted")))
    }
}

/// Reads the node in parallel to the event loop, one read at a time.
#[derive(Debug, Default)]
pub(super) struct NodePoller {
    asked: Option<Asked>,
    last: Option<(Instant, Instant)>,
}

/// A read in progress.
#[derive(Debug)]
struct Asked {
    request: Request,
    answer: oneshot::Receiver<(Arc<Snapshot>, Timestamp)>,
}

/// A reading of the node.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) request: Request,
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) began: Timestamp,
}

impl NodePoller {
    /// Starts to read the node with its rules, unless a read is in progress.
    pub(super) fn want(&mut self) {
        if self.asked.is_none() {
            let pause = self.last.map(|(begun, ended)| {
                let pause = (ended.duration_since(begun) * PAUSE_FACTOR).clamp(PAUSE, MAX_PAUSE);
                pause.saturating_sub(ended.elapsed())
            });
            self.start(Request::Rules, pause.unwrap_or_default());
        }
    }

    /// Starts to read the node's state, if that is due and no read is in progress.
    pub(super) fn want_state(&mut self) {
        if self.deadline().is_some_and(|due| Instant::now() >= due) {
            self.start(Request::State, Duration::ZERO);
        }
    }

    /// When the node's state is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.asked.is_some() { None } else { self.last.map(|(_, ended)| ended + STATE) }
    }

    /// Reads at once.
    pub(super) async fn read(&mut self, request: Request) -> Reading {
        self.start(request, Duration::ZERO);
        self.answer().await
    }

    fn start(&mut self, request: Request, pause: Duration) {
        let (sender, answer) = oneshot::channel();
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let begun = now();
            let capture = Collector::default().collect(request).await;
            // Large rules take long to parse. If the parser panicked, the node is unknown.
            let snapshot = tokio::task::spawn_blocking(move || Snapshot::read(&capture)).await;
            let mut snapshot = snapshot.unwrap_or_default();
            snapshot.report.make_trace_time(wall_ahead_ns());
            // The trace may have ended.
            let _ = sender.send((Arc::new(snapshot), begun));
        });
        self.asked = Some(Asked { request, answer });
        let at = Instant::now() + pause;
        self.last = Some((at, at));
    }

    /// The result of the current read; waits forever if there is none.
    pub(super) async fn answer(&mut self) -> Reading {
        let Some(Asked { request, answer }) = &mut self.asked else { return std::future::pending().await };
        let (request, answer) = (*request, answer.await);
        self.asked = None;
        if let Some((_, ended)) = &mut self.last {
            *ended = Instant::now();
        }
        // If the reader panicked, the node is unknown.
        let (snapshot, began) = answer.unwrap_or_else(|_| (Arc::default(), now()));
        Reading { request, snapshot, began }
    }
}
