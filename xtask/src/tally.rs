//! Counts the passed, failed and skipped tests, prints the host's checks, and formats the last line of a run.

use anyhow::Result;

use crate::event::Verdict;
use crate::printer::{Outcome, Printer};

/// The counts of one run.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    pub(crate) fn count(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Passed => self.passed += 1,
            Verdict::Failed => self.failed += 1,
            Verdict::Skipped => self.skipped += 1,
        }
    }

    /// Counts a check on the host and prints its result. A check that skips itself lacks a program.
    pub(crate) fn check(&mut self, printer: &Printer, name: &str, checked: Result<Outcome>) {
        self.count(match checked {
            Ok(Outcome::Done(_)) => {
                printer.data(&format!("passed   host  {name}"));
                Verdict::Passed
            }
            Ok(Outcome::Skipped(why)) => {
                printer.data(&format!("skipped  host  {name}: {why}"));
                Verdict::Skipped
            }
            Err(error) => {
                printer.failed(&format!("host  {name}: {error:#}"));
                Verdict::Failed
            }
        });
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Whether at least one test passed and none failed.
    pub(crate) fn is_good(self) -> bool {
        self.failed == 0 && self.passed > 0
    }

    /// The last line of a test run.
    pub(crate) fn line(self) -> String {
        let Self { passed, failed, skipped } = self;
        if skipped == 0 {
            format!("{passed} passed, {failed} failed")
        } else {
            format!("{passed} passed, {failed} failed, {skipped} skipped")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_has_a_fixed_form() {
        let mut tally = Tally::default();
        assert!(!tally.is_good(), "an empty run is not good");
        tally.count(Verdict::Passed);
        assert_eq!(tally.line(), "1 passed, 0 failed");
        assert!(tally.is_good());
        tally.count(Verdict::Skipped);
        tally.count(Verdict::Failed);
        tally.add(tally);
        assert_eq!(tally.line(), "2 passed, 2 failed, 2 skipped");
        assert!(!tally.is_good());
        let printer = Printer::quiet();
        tally.check(&printer, "a", Ok(Outcome::Done(String::new())));
        tally.check(&printer, "b", Ok(Outcome::Skipped("no program".to_owned())));
        tally.check(&printer, "c", Err(anyhow::anyhow!("wrong")));
        assert_eq!(tally.line(), "3 passed, 3 failed, 3 skipped");
    }
}
