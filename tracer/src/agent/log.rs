//! The agent's own lines on standard error: one line an event, with its time, level and kind.
//!
//! Owns their rate. Lines of one kind beyond the rate are counted, and the next line of that kind states how many were
//! left out.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    config::{Level, LogConfig},
    figures::Shared,
    process,
};
use crate::text::safe;

/// The time over which lines are counted.
const WINDOW: Duration = Duration::from_mins(1);

/// Writes lines.
#[derive(Debug)]
pub(crate) struct Log {
    state: Mutex<State>,
    figures: Arc<Shared>,
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
        let state =
            State { level: config.level, per_minute: config.per_minute.get(), kinds: BTreeMap::new() };
        Self { state: Mutex::new(state), figures }
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
        // A closed standard error is not a reason to stop.
        let _ = writeln!(io::stderr().lock(), "{now} {level} {kind}: {}{before}", safe(text));
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
