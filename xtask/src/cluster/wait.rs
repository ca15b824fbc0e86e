//! Waits for conditions, each with a limit. The wait fails early if the check itself fails.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::printer::seconds;

/// The interval between two checks. A check usually starts a program.
const INTERVAL: Duration = Duration::from_millis(250);

/// Waits at most `limit` until `check` returns a value; `what` completes "waited 1 min for …". An error ends the wait.
pub(crate) fn until<T>(
    what: &str,
    limit: Duration,
    mut check: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = check()? {
            return Ok(value);
        }
        if started.elapsed() > limit {
            bail!("waited {} for {what}", seconds(limit));
        }
        thread::sleep(INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_its_condition_its_limit_or_an_error() {
        let mut checks = 0;
        let value = until("a second check", Duration::from_mins(1), || {
            checks += 1;
            Ok((checks == 2).then_some(checks))
        });
        assert_eq!(value.unwrap(), 2);
        let late = until::<()>("rain", Duration::ZERO, || Ok(None)).unwrap_err();
        assert_eq!(late.to_string(), "waited 0.0 s for rain");
        assert!(until::<()>("rain", Duration::MAX, || bail!("the cloud is gone")).is_err());
    }
}
