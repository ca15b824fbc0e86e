//! Records on standard output, written by a thread of its own: a pipe that nobody empties stops neither the reading of
//! events nor the end of the agent.
//!
//! Owns the queue and its bound. A record that finds no room, and each one after the output was closed, is left out and
//! counted.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError},
    },
    thread,
    time::Instant,
};

use super::{figures::Shared, log::Log};
use crate::error::sentence;

/// The most records that wait.
const QUEUE: usize = 1024;
/// The kind of its lines in the log.
const KIND: &str = "output";

/// The queue before the thread that writes.
#[derive(Debug)]
pub(crate) struct Lines {
    records: SyncSender<String>,
    ended: Receiver<()>,
    figures: Arc<Shared>,
    log: Arc<Log>,
    /// Whether the last record found no room.
    is_full: bool,
    /// Whether the output refused a record.
    is_closed: Arc<AtomicBool>,
}

impl Lines {
    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    ///
    /// If the system has no thread for it.
    pub(crate) fn to(
        out: impl Write + Send + 'static,
        figures: Arc<Shared>,
        log: Arc<Log>,
    ) -> io::Result<Self> {
        let (records, queue) = mpsc::sync_channel(QUEUE);
        let (end, ended) = mpsc::channel();
        let is_closed = Arc::new(AtomicBool::new(false));
        let writer = Writer {
            out,
            figures: Arc::clone(&figures),
            log: Arc::clone(&log),
            is_closed: Arc::clone(&is_closed),
        };
        thread::Builder::new().name("stdout".to_owned()).spawn(move || {
            writer.write(&queue);
            // The agent may have ended.
            let _ = end.send(());
        })?;
        Ok(Self { records, ended, figures, log, is_full: false, is_closed })
    }

    /// Queues a record. Never waits.
    pub(crate) fn push(&mut self, record: &str) {
        if self.is_closed.load(Ordering::Relaxed) {
            return self.figures.lock().output_dropped += 1;
        }
        match self.records.try_send(record.to_owned()) {
            Ok(()) => self.is_full = false,
            Err(TrySendError::Full(_)) => {
                self.figures.lock().output_dropped += 1;
                if !std::mem::replace(&mut self.is_full, true) {
                    let text = "standard output takes no records: further ones are left out until it does";
                    self.log.warn(KIND, text);
                }
            }
            Err(TrySendError::Disconnected(_)) => self.figures.lock().output_dropped += 1,
        }
    }

    /// Waits, until `limit` at the latest, for the records in the queue.
    pub(crate) fn finish(self, limit: Instant) {
        let Self { records, ended, log, .. } = self;
        drop(records);
        let left = limit.saturating_duration_since(Instant::now());
        if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            log.warn(KIND, "standard output did not take the last records");
        }
    }
}

/// The thread's side.
struct Writer<W> {
    out: W,
    figures: Arc<Shared>,
    log: Arc<Log>,
    is_closed: Arc<AtomicBool>,
}

impl<W: Write> Writer<W> {
    /// Writes each record at once. After a failure it only counts them.
    fn write(mut self, queue: &Receiver<String>) {
        for record in queue {
            if self.is_closed.load(Ordering::Relaxed) {
                self.figures.lock().output_dropped += 1;
                continue;
            }
            if let Err(error) = self.out.write_all(record.as_bytes()).and_then(|()| self.out.flush()) {
                self.is_closed.store(true, Ordering::Relaxed);
                self.figures.lock().output_dropped += 1;
                let why = sentence(&error);
                self.log.error(KIND, &format!("records are no longer written to standard output: {why}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read as _, time::Duration};

    use super::*;
    use crate::agent::{config::LogConfig, counts::Counts};

    fn lines(out: impl Write + Send + 'static) -> Lines {
        let figures = Arc::new(Shared::new(Counts::default()));
        let log = Arc::new(Log::new(&LogConfig::default(), Arc::clone(&figures)));
        Lines::to(out, figures, log).unwrap()
    }

    #[test]
    fn a_pipe_that_nobody_empties_costs_records_and_no_time() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut lines = lines(writer);
        let figures = Arc::clone(&lines.figures);
        let record = "x".repeat(1023) + "\n";
        (0..5000).for_each(|_| lines.push(&record));
        let dropped = figures.lock().output_dropped;
        assert!((1..5000).contains(&dropped), "{dropped}");
        lines.finish(Instant::now() + Duration::from_millis(50));
        // The reader comes back: what was queued was not lost.
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().count() as u64, 5000 - dropped);
    }

    #[test]
    fn a_closed_output_is_counted() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut lines = lines(writer);
        let figures = Arc::clone(&lines.figures);
        (0..10).for_each(|_| lines.push("a\n"));
        lines.finish(Instant::now() + Duration::from_mins(1));
        assert_eq!(figures.lock().output_dropped, 10);
    }
}
