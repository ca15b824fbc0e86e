//! Lines on their way to a pipe, written by a thread of their own: a pipe that nobody empties stops neither the reading of
//! events nor the end of the agent.
//!
//! Owns the bound of the queue. Does not know what the lines say: whoever loses one learns of it.

use std::{
    io::{self, Write},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::Instant,
};

/// The most lines that wait.
const QUEUE: usize = 1024;

/// The queue before the thread that writes.
#[derive(Debug)]
pub(super) struct Queue {
    /// `None` once no more are taken.
    lines: Mutex<Option<SyncSender<String>>>,
    ended: Mutex<Receiver<()>>,
    /// Whether the pipe refused a line.
    is_closed: Arc<AtomicBool>,
}

/// Why a line is not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The others wait for the pipe.
    NoRoom,
    /// The pipe refused an earlier line, or the queue was closed.
    Closed,
}

impl Queue {
    /// Starts the thread, of this name, that writes to `out`. It calls `failed` for the first line that `out` refuses, and
    /// `lost` for that one and each that was queued behind it.
    ///
    /// # Errors
    ///
    /// If the system has no thread for it.
    pub(super) fn to(
        out: impl Write + Send + 'static,
        name: &str,
        failed: impl FnOnce(&io::Error) + Send + 'static,
        lost: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let (lines, queue) = mpsc::sync_channel(QUEUE);
        let (end, ended) = mpsc::channel();
        let is_closed = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&is_closed);
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            write(out, &queue, &closed, failed, lost);
            // The agent may have ended.
            let _ = end.send(());
        })?;
        Ok(Self { lines: Mutex::new(Some(lines)), ended: Mutex::new(ended), is_closed })
    }

    /// Queues a line. Never waits.
    pub(super) fn push(&self, line: String) -> Result<(), Lost> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Lost::Closed);
        }
        let lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lines) = lines.as_ref() else { return Err(Lost::Closed) };
        lines.try_send(line).map_err(|error| match error {
            TrySendError::Full(_) => Lost::NoRoom,
            TrySendError::Disconnected(_) => Lost::Closed,
        })
    }

    /// Takes no more lines, and waits for those in the queue, until `limit` at the latest. Returns whether the thread is done
    /// with them.
    pub(super) fn close(&self, limit: Instant) -> bool {
        drop(self.lines.lock().unwrap_or_else(PoisonError::into_inner).take());
        let left = limit.saturating_duration_since(Instant::now());
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(left);
        ended != Err(RecvTimeoutError::Timeout)
    }
}

/// Writes each line at once. After a failure it only counts them.
fn write(
    mut out: impl Write,
    queue: &Receiver<String>,
    is_closed: &AtomicBool,
    failed: impl FnOnce(&io::Error),
    lost: impl Fn(),
) {
    let mut lines = queue.iter();
    for line in lines.by_ref() {
        if let Err(error) = out.write_all(line.as_bytes()).and_then(|()| out.flush()) {
            is_closed.store(true, Ordering::Relaxed);
            lost();
            failed(&error);
            break;
        }
    }
    lines.for_each(|_| lost());
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, sync::atomic::AtomicU64, time::Duration};

    use super::*;

    fn queue(out: impl Write + Send + 'static) -> (Queue, Arc<AtomicU64>) {
        let lost = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&lost);
        let count = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        (Queue::to(out, "test", |_| {}, count).unwrap(), lost)
    }

    #[test]
    fn a_pipe_that_nobody_empties_costs_lines_and_no_time() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (queue, lost) = queue(writer);
        let line = "x".repeat(1023) + "\n";
        let refused = (0..5000).filter(|_| queue.push(line.clone()) == Err(Lost::NoRoom)).count();
        assert!((1..5000).contains(&refused), "{refused}");
        assert!(!queue.close(Instant::now() + Duration::from_millis(50)));
        assert_eq!(queue.push(line), Err(Lost::Closed));
        // The reader comes back: what was queued was not lost.
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!((text.lines().count(), lost.load(Ordering::Relaxed)), (5000 - refused, 0));
    }

    #[test]
    fn each_line_that_a_closed_pipe_refuses_is_counted() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let (queue, lost) = queue(writer);
        let refused = (0..10).filter(|_| queue.push("a\n".to_owned()).is_err()).count() as u64;
        assert!(queue.close(Instant::now() + Duration::from_mins(1)));
        assert_eq!(lost.load(Ordering::Relaxed) + refused, 10);
    }
}
