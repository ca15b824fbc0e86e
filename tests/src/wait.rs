//! Waits for conditions. It contains the lab's only pause. Every wait has a condition and a limit, and names the
//! condition when the limit passes.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// The interval between checks of a condition that cannot wake the waiting thread.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Waits at most `limit` until `condition` returns a value; `what` completes "waited 5 s for …".
pub fn until<T>(what: &str, limit: Duration, condition: impl FnMut() -> Option<T>) -> Result<T> {
    until_every(POLL_INTERVAL, what, limit, condition)
}

/// The same with this pause between two checks, for a condition whose check is costly.
pub fn until_every<T>(
    pause: Duration,
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Option<T>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if started.elapsed() > limit {
            bail!("waited {:.0} s for {what}", limit.as_secs_f64());
        }
        thread::park_timeout(pause);
    }
}

/// Waits until `age` has passed since `event`, for tested behaviour that depends on time.
pub fn until_older_than(event: Instant, age: Duration) {
    while let Some(left) = age.checked_sub(event.elapsed()) {
        if left.is_zero() {
            break;
        }
        thread::park_timeout(left);
    }
}
