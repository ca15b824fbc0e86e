//! Points in time, as the whole program counts them.

use std::{fmt, time::Duration};

use serde::Serialize;

/// Nanoseconds since the Unix epoch (UTC). The kernel's monotonic times are brought to this clock by `probe`,
/// so that sightings and API objects can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Before everything: "it was already so when we began to look".
    pub const MIN: Self = Self(0);

    /// After everything.
    pub const MAX: Self = Self(u64::MAX);

    pub const fn from_unix_ns(ns: u64) -> Self {
        Self(ns)
    }

    pub const fn from_unix_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    pub const fn as_unix_ns(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// RFC 3339 in UTC with nanoseconds: `2026-01-02T03:04:05.000000006Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(i128::from(self.0)) {
            Ok(time) => write!(f, "{time:.9}"),
            Err(_) => write!(f, "{}ns", self.0),
        }
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
