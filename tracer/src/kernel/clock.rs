//! The clock of a trace, and the wall clock's distance from it.
//!
//! The kernel stamps its events with `CLOCK_MONOTONIC`. A trace lives on that clock, counted from the Unix time at which
//! the process first read it, so that a step of the wall clock (NTP, a resumed virtual machine) changes no interval and
//! no order. Other programs' Unix times are brought to this clock, and times are brought back for output.

use std::{
    sync::{Arc, LazyLock},
    time::{SystemTime, UNIX_EPOCH},
};

use crate::time::Timestamp;

/// Nanoseconds to add to `CLOCK_MONOTONIC` to get the time of the trace: constant in one process.
static OFFSET_NS: LazyLock<u64> = LazyLock::new(monotonic_to_unix_ns);

pub(super) fn offset_ns() -> u64 {
    *OFFSET_NS
}

/// The boot since which the kernel's clock counts (`/proc/sys/kernel/random/boot_id`, `random(4)`).
pub(crate) fn boot_id() -> Option<Arc<str>> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().into()).filter(|id: &Arc<str>| !id.is_empty())
}

/// The time of the trace.
pub(crate) fn now() -> Timestamp {
    Timestamp::from_unix_ns(monotonic_ns().wrapping_add(offset_ns()))
}

/// By how many nanoseconds the wall clock is ahead of [`now`]: 0 within microseconds, until it is stepped.
pub(crate) fn wall_ahead_ns() -> i64 {
    ahead_ns(monotonic_to_unix_ns(), offset_ns())
}

const fn ahead_ns(monotonic_to_unix_ns: u64, offset_ns: u64) -> i64 {
    monotonic_to_unix_ns.wrapping_sub(offset_ns).cast_signed()
}

/// Nanoseconds to add to `CLOCK_MONOTONIC` to get Unix time, as of now.
///
/// Read as wall, monotonic, wall, so that an interruption in between costs at most half that interval.
fn monotonic_to_unix_ns() -> u64 {
    let before = unix_ns();
    let monotonic = monotonic_ns();
    let after = unix_ns();
    (before / 2 + after / 2).wrapping_sub(monotonic)
}

/// The wall clock, for other programs and for people: Unix time in nanoseconds. The trace lives on [`now`].
pub(crate) fn unix_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// `CLOCK_MONOTONIC`.
#[cfg(target_os = "linux")]
pub(super) fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    #[expect(unsafe_code, reason = "std has no access to the raw value of CLOCK_MONOTONIC")]
    // SAFETY: `time` is valid for writes for the whole call; every Linux has this clock id.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    if rc != 0 {
        return 0;
    }
    u64::try_from(time.tv_sec)
        .unwrap_or(0)
        .saturating_mul(1_000_000_000)
        .saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// A clock that is never stepped. No kernel's events are on it.
#[cfg(not(target_os = "linux"))]
fn monotonic_ns() -> u64 {
    use std::time::Instant;

    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    u64::try_from(BEGAN.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR_NS: u64 = 3_600_000_000_000;

    #[test]
    fn a_stepped_wall_clock_is_ahead_or_behind() {
        let offset = 1_700_000_000_000_000_000;
        assert_eq!(ahead_ns(offset + HOUR_NS, offset), 3_600_000_000_000);
        assert_eq!(ahead_ns(offset - HOUR_NS, offset), -3_600_000_000_000);
        assert_eq!(ahead_ns(offset, offset), 0);
    }

    #[test]
    fn without_a_step_both_clocks_agree() {
        let (first, wall, second) = (now(), Timestamp::from_unix_ns(unix_ns()), now());
        assert!(first <= second);
        let slack = Duration::from_millis(20);
        assert!(first.saturating_sub(slack) <= wall && wall <= second.saturating_add(slack));
        assert!(wall_ahead_ns().unsigned_abs() < 20_000_000);
    }
}
