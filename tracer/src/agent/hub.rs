//! Passes records to the readers of the stream, and never waits for one of them.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::mpsc;

/// The most failed flows whose records wait for a reader that connects later, and the most bytes of them.
pub(crate) const MAX_RECENT: usize = 256;
const MAX_RECENT_BYTES: usize = 1 << 20;

/// The queues of the readers, and the last records of failed flows.
#[derive(Debug, Default)]
pub(crate) struct Hub(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    queues: Vec<Queue>,
    recent: VecDeque<Arc<str>>,
    recent_bytes: usize,
}

#[derive(Debug)]
struct Queue {
    records: mpsc::Sender<Arc<str>>,
    lost: Arc<AtomicU64>,
}

/// One reader's end of its queue.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The failed flows from before, the oldest first.
    pub(crate) recent: Vec<Arc<str>>,
    pub(crate) records: mpsc::Receiver<Arc<str>>,
    lost: Arc<AtomicU64>,
}

impl Subscription {
    /// The records that this reader lost since the last call.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}

impl Hub {
    /// A queue for at most `bound` records.
    pub(crate) fn subscribe(&self, bound: usize) -> Subscription {
        let (sender, records) = mpsc::channel(bound.max(1));
        let lost = Arc::new(AtomicU64::new(0));
        let mut state = self.state();
        state.queues.push(Queue { records: sender, lost: Arc::clone(&lost) });
        Subscription { recent: state.recent.iter().cloned().collect(), records, lost }
    }

    /// Whether nobody reads.
    pub(crate) fn is_empty(&self) -> bool {
        self.state().queues.is_empty()
    }

    /// Adds the record to each queue that has room, and keeps it for later readers if its flow `failed`. Returns the
    /// number of queues without room.
    pub(crate) fn publish(&self, record: &str, failed: bool) -> u64 {
        let mut dropped = 0;
        let mut state = self.state();
        let record: Arc<str> = record.into();
        if failed {
            state.keep(Arc::clone(&record));
        }
        state.queues.retain(|queue| match queue.records.try_send(Arc::clone(&record)) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(_)) => {
                queue.lost.fetch_add(1, Ordering::Relaxed);
                dropped += 1;
                true
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
        dropped
    }

    /// Ends every queue: the readers receive the records in it, and the end.
    pub(crate) fn close(&self) {
        self.state().queues.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self, record: Arc<str>) {
        self.recent_bytes += record.len();
        self.recent.push_back(record);
        while self.recent.len() > MAX_RECENT || self.recent_bytes > MAX_RECENT_BYTES {
            let Some(oldest) = self.recent.pop_front() else { return };
            self.recent_bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_reader_loses_records_and_learns_how_many() {
        let hub = Hub::default();
        assert_eq!(hub.publish("nobody", false), 0);
        let mut slow = hub.subscribe(2);
        let mut fast = hub.subscribe(100);
        let dropped: u64 = (0..5).map(|number| hub.publish(&number.to_string(), false)).sum();
        assert_eq!(dropped, 3);
        assert_eq!(slow.lost(), 3);
        assert_eq!(slow.lost(), 0);
        assert_eq!(slow.records.try_recv().as_deref(), Ok("0"));
        assert_eq!(fast.lost(), 0);
        hub.close();
        assert_eq!(slow.records.try_recv().as_deref(), Ok("1"));
        assert_eq!(slow.records.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
        assert_eq!(std::iter::from_fn(|| fast.records.try_recv().ok()).count(), 5);
        drop(hub.subscribe(1));
        hub.publish("gone", false);
        assert!(hub.is_empty());
    }

    #[test]
    fn a_late_reader_receives_the_last_failures_within_bounds() {
        let hub = Hub::default();
        hub.publish("healthy", false);
        for number in 0..MAX_RECENT + 5 {
            hub.publish(&number.to_string(), true);
        }
        let recent = hub.subscribe(1).recent;
        assert_eq!((recent.len(), &*recent[0]), (MAX_RECENT, "5"));
        hub.publish(&"x".repeat(MAX_RECENT_BYTES - 1), true);
        assert_eq!(hub.subscribe(1).recent.len(), 1);
    }
}
