//! The offset between the kernel's monotonic clock and the wall clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds to add to `CLOCK_MONOTONIC` to get Unix time, as of now.
///
/// Read as wall, monotonic, wall, so that an interruption in between costs at most half that interval.
pub(super) fn monotonic_to_unix_ns() -> u64 {
    let before = unix_ns();
    let monotonic = monotonic_ns();
    let after = unix_ns();
    (before / 2 + after / 2).wrapping_sub(monotonic)
}

/// Unix time in nanoseconds.
pub(crate) fn unix_ns() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

fn monotonic_ns() -> u64 {
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
