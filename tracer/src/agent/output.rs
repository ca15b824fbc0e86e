//! Records on standard output.
//!
//! Owns the account of those that it does not take: a record that finds no room in the queue, and each one after the output was
//! closed, is left out and counted.

use std::{
    io::{self, Write},
    sync::Arc,
    time::Instant,
};

use super::{
    figures::Shared,
    log::Log,
    queue::{Lost, Queue},
};
use crate::error::sentence;

/// The kind of its lines in the log.
const KIND: &str = "output";

/// The records before the thread that writes them.
#[derive(Debug)]
pub(crate) struct Lines {
    queue: Queue,
    figures: Arc<Shared>,
    log: Arc<Log>,
    /// Whether the last record found no room.
    is_full: bool,
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
        let reported = Arc::clone(&log);
        let failed = move |error: &io::Error| {
            let why = sentence(error);
            reported.error(KIND, &format!("records are no longer written to standard output: {why}"));
        };
        let counted = Arc::clone(&figures);
        let lost = move || counted.lock().output_dropped += 1;
        Ok(Self { queue: Queue::to(out, "stdout", failed, lost)?, figures, log, is_full: false })
    }

    /// Queues a record. Never waits.
    pub(crate) fn push(&mut self, record: &str) {
        match self.queue.push(record.to_owned()) {
            Ok(()) => self.is_full = false,
            Err(Lost::NoRoom) => {
                self.figures.lock().output_dropped += 1;
                if !std::mem::replace(&mut self.is_full, true) {
                    let text = "standard output takes no records: further ones are left out until it does";
                    self.log.warn(KIND, text);
                }
            }
            Err(Lost::Closed) => self.figures.lock().output_dropped += 1,
        }
    }

    /// Waits, until `limit` at the latest, for the records in the queue.
    pub(crate) fn finish(self, limit: Instant) {
        if !self.queue.close(limit) {
            self.log.warn(KIND, "standard output did not take the last records");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::agent::{config::LogConfig, counts::Counts};

    fn lines(out: impl Write + Send + 'static) -> Lines {
        let figures = Arc::new(Shared::new(Counts::default()));
        let log = Arc::new(Log::to(io::sink(), &LogConfig::default(), Arc::clone(&figures)));
        Lines::to(out, figures, log).unwrap()
    }

    #[test]
    fn records_without_room_are_counted() {
        let (_reader, writer) = io::pipe().unwrap();
        let mut lines = lines(writer);
        let record = "x".repeat(1023) + "\n";
        (0..5000).for_each(|_| lines.push(&record));
        let dropped = lines.figures.lock().output_dropped;
        assert!((1..5000).contains(&dropped), "{dropped}");
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
