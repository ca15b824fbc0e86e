//! Prints messages (steps, errors) to stderr and data (results, the guest's console, tables) to stdout.
//!
//! Nothing else in this package writes to the terminal. A closed pipe is not reported.

use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

/// The outcome of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The step did work; the text describes it and may be empty.
    Done(String),
    /// The step had nothing to do; the text gives the reason.
    Skipped(String),
}

/// The maximum number of a failure's lines that the end of a run repeats.
const REPEATED_LINES: usize = 40;

/// The only writer to stdout and stderr.
#[derive(Debug)]
pub(crate) struct Printer {
    data: io::Stdout,
    messages: io::Stderr,
    quiet: bool,
    failures: Mutex<Vec<String>>,
}

impl Printer {
    pub(crate) fn new() -> Self {
        Self { data: io::stdout(), messages: io::stderr(), quiet: false, failures: Mutex::default() }
    }

    /// A printer that prints nothing.
    #[cfg(test)]
    pub(crate) fn quiet() -> Self {
        Self { quiet: true, ..Self::new() }
    }

    /// Prints one line to stderr.
    pub(crate) fn say(&self, text: &str) {
        if !self.quiet {
            let _ = writeln!(self.messages.lock(), "{text}");
        }
    }

    /// Prints one line of data.
    pub(crate) fn data(&self, text: &str) {
        self.raw(format!("{text}\n").as_bytes());
    }

    /// Prints one line about a failure, which `failures` repeats.
    pub(crate) fn failed(&self, what: &str) {
        self.data(&format!("failed   {what}"));
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(what.to_owned());
    }

    /// Repeats the failures: with several guests at a time, a failure is a thousand lines above the end.
    pub(crate) fn failures(&self) {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.is_empty() {
            return;
        }
        self.data("failures:");
        for failure in failures.iter() {
            for line in beginning(failure) {
                self.data(&format!("    {line}"));
            }
        }
    }

    /// Prints bytes of data unchanged, without a line ending.
    pub(crate) fn raw(&self, bytes: &[u8]) {
        if self.quiet {
            return;
        }
        let mut stdout = self.data.lock();
        let _ = stdout.write_all(bytes);
        let _ = stdout.flush();
    }

    /// Prints an error with all its causes, without a backtrace.
    pub(crate) fn error(&self, error: &anyhow::Error) {
        self.say(&format!("error: {error:#}"));
    }

    /// Runs one step: prints its name, then its outcome and its duration.
    pub(crate) fn step(&self, name: &str, work: impl FnOnce() -> Result<Outcome>) -> Result<()> {
        self.say(&format!("==> {name}"));
        let started = Instant::now();
        let outcome = work();
        let took = seconds(started.elapsed());
        match outcome {
            Ok(Outcome::Done(text)) if text.is_empty() => self.say(&format!("    done in {took}")),
            Ok(Outcome::Done(text)) => self.say(&format!("    {text} ({took})")),
            Ok(Outcome::Skipped(why)) => self.say(&format!("    nothing to do: {why} ({took})")),
            Err(error) => {
                self.say(&format!("    failed after {took}"));
                return Err(error);
            }
        }
        Ok(())
    }
}

/// A failure's first lines, and the number of the other ones.
fn beginning(failure: &str) -> Vec<String> {
    let mut lines: Vec<String> = failure.lines().take(REPEATED_LINES).map(str::to_owned).collect();
    let more = failure.lines().count() - lines.len();
    lines.extend((more > 0).then(|| format!("    … and {more} more lines above")));
    lines
}

/// Indented lines to append to a message, each after a line ending.
pub(crate) fn indented<'a>(lines: impl IntoIterator<Item = &'a str>) -> String {
    lines.into_iter().fold(String::new(), |text, line| text + "\n    " + line)
}

/// A duration for a reader: with tenths of a second below a minute, in minutes and seconds above.
pub(crate) fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    if whole < 60 {
        format!("{:.1} s", duration.as_secs_f64())
    } else {
        format!("{} min {:02} s", whole / 60, whole % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_failure_is_repeated_in_part() {
        assert_eq!(beginning("6.1  c6 (2.3 s): one\n    two"), ["6.1  c6 (2.3 s): one", "    two"]);
        let long = vec!["line"; REPEATED_LINES + 2].join("\n");
        assert_eq!(beginning(&long).len(), REPEATED_LINES + 1);
        assert_eq!(beginning(&long).last().map(String::as_str), Some("    … and 2 more lines above"));
    }

    #[test]
    fn durations_read_naturally() {
        assert_eq!(seconds(Duration::from_millis(1_240)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(125)), "2 min 05 s");
    }
}
