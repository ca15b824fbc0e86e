//! Waiting for conditions. It owns the only pause in the lab: every wait has a condition and a limit, and
//! says what it waited for when the limit passes.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// How often a condition that cannot wake us is looked at again.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Waits until `condition` gives a value, at most `limit`; `what` completes "waited 5 s for …".
pub fn until<T>(what: &str, limit: Duration, mut condition: impl FnMut() -> Option<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(value) = condition() {
            return Ok(value);
        }
        if started.elapsed() > limit {
            bail!("waited {:.0} s for {what}", limit.as_secs_f64());
        }
        thread::park_timeout(LOOK_AGAIN);
    }
}

/// Waits until `age` has passed since `event`: for rules of the tested program that speak of time.
pub fn until_older_than(event: Instant, age: Duration) {
    while let Some(left) = age.checked_sub(event.elapsed()) {
        if left.is_zero() {
            break;
        }
        thread::park_timeout(left);
    }
}
