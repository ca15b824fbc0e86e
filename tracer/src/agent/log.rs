//! The agent's own lines on standard error: one line an event, with its time, level and kind.
//!
//! Owns their rate. Lines of one kind beyond the rate are counted, and so are those that standard error does not take; the next
//! line of that kind states how many were left out.

use std::{
    collections::BTreeMap,
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    config::{Level, LogConfig},
    figures::Shared,
    process,
    queue::Queue,
};
use crate::text::safe;

/// The time over which lines are counted.
const WINDOW: Duration = Duration::from_mins(1);

/// Writes lines.
#[derive(Debug)]
pub(crate) struct Log {
    state: Mutex<State>,
    figures: Arc<Shared>,
    /// `None` if the system has no thread for it: the lines are then written at once.
    queue: Option<Queue>,
}

#[derive(Debug)]
struct State {
    level: Level,
    per_minute: u64,
    kinds: BTreeMap<&'static str, Window>,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    lines: u64,
    left_out: u64,
}

impl Log {
    pub(crate) fn new(config: &LogConfig, figures: Arc<Shared>) -> Self {
        Self::to(io::stderr(), config, figures)
    }

    /// A log that a thread of its own writes to `out`.
    pub(super) fn to(out: impl Write + Send + 'static, config: &LogConfig, figures: Arc<Shared>) -> Self {
        let state =
            State { level: config.level, per_minute: config.per_minute.get(), kinds: BTreeMap::new() };
        let counted = Arc::clone(&figures);
        let lost = move || counted.lock().log_suppressed += 1;
        // A closed standard error is not a reason to stop, and there is no place to report it.
        let queue = Queue::to(out, "stderr", |_| {}, lost).ok();
        Self { state: Mutex::new(state), figures, queue }
    }

    /// Waits, until `limit` at the latest, for the lines in the queue. Later ones are lost.
    pub(crate) fn close(&self, limit: Instant) {
        if let Some(queue) = &self.queue {
            queue.close(limit);
        }
    }

    /// Takes a reloaded configuration.
    pub(crate) fn set(&self, config: &LogConfig) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.level, state.per_minute) = (config.level, config.per_minute.get());
    }

    pub(crate) fn error(&self, kind: &'static str, text: &str) {
        self.line(Level::Error, kind, text);
    }

    pub(crate) fn warn(&self, kind: &'static str, text: &str) {
        self.line(Level::Warn, kind, text);
    }

    pub(crate) fn info(&self, kind: &'static str, text: &str) {
        self.line(Level::Info, kind, text);
    }

    fn line(&self, level: Level, kind: &'static str, text: &str) {
        let admitted = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if level > state.level {
                return;
            }
            state.admit(kind, Instant::now())
        };
        let Some(left_out) = admitted else {
            self.figures.lock().log_suppressed += 1;
            return;
        };
        let now = process::wall_clock().to_the_millisecond();
        let level = match level {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
        };
        let before = match left_out {
            0 => String::new(),
            count => format!(" ({count} earlier lines of this kind were left out)"),
        };
        let line = format!("{now} {level} {kind}: {}{before}\n", safe(text));
        let Some(queue) = &self.queue else {
            let _ = io::stderr().lock().write_all(line.as_bytes());
            return;
        };
        if queue.push(line).is_err() {
            self.figures.lock().log_suppressed += 1;
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.lost(kind, left_out);
        }
    }
}

impl State {
    /// Whether a line of this kind is written; then the number of those left out before it.
    fn admit(&mut self, kind: &'static str, now: Instant) -> Option<u64> {
        let limit = self.per_minute;
        let window = self.kinds.entry(kind).or_insert(Window { began: now, lines: 0, left_out: 0 });
        if now.duration_since(window.began) >= WINDOW {
            (window.began, window.lines) = (now, 0);
        }
        if window.lines >= limit {
            window.left_out += 1;
            return None;
        }
        window.lines += 1;
        Some(std::mem::take(&mut window.left_out))
    }

    /// A line that was admitted is not written, nor is what it said of this many before it.
    fn lost(&mut self, kind: &'static str, left_out: u64) {
        if let Some(window) = self.kinds.get_mut(kind) {
            window.left_out += left_out + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;
    use crate::agent::counts::Counts;

    #[test]
    fn lines_of_one_kind_are_limited_and_counted() {
        let mut state = State { level: Level::Info, per_minute: 2, kinds: BTreeMap::new() };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(state.admit("a", at(0)), Some(0));
        assert_eq!(state.admit("a", at(1)), Some(0));
        assert_eq!(state.admit("a", at(2)), None);
        assert_eq!(state.admit("b", at(2)), Some(0), "another kind has a rate of its own");
        assert_eq!(state.admit("a", at(59)), None);
        assert_eq!(state.admit("a", at(61)), Some(2));
    }

    #[test]
    fn lines_that_a_full_pipe_does_not_take_cost_no_time_and_are_named_later() {
        let (mut reader, writer) = io::pipe().unwrap();
        let figures = Arc::new(Shared::new(Counts::default()));
        let config: LogConfig = serde_json::from_str(r#"{"per_minute": 6000}"#).unwrap();
        let log = Log::to(writer, &config, Arc::clone(&figures));
        let text = "x".repeat(1000);
        (0..5000).for_each(|_| log.info("a", &text));
        let lost = figures.lock().log_suppressed;
        assert!((1..5000).contains(&lost), "{lost}");
        // The reader comes back, and takes what waited in the pipe and in the queue.
        let mut bytes = vec![0; 500 * 1000];
        reader.read_exact(&mut bytes).unwrap();
        log.info("a", "again");
        assert_eq!(figures.lock().log_suppressed, lost);
        let read = std::thread::spawn(move || reader.read_to_end(&mut bytes).map(|_| bytes));
        log.close(Instant::now() + Duration::from_mins(1));
        let text = String::from_utf8(read.join().unwrap().unwrap()).unwrap();
        let end = format!("info a: again ({lost} earlier lines of this kind were left out)\n");
        assert!(text.ends_with(&end), "{end}");
        assert_eq!(text.lines().count() as u64, 5000 - lost + 1);
    }
}
