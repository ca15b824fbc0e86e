//! A moment in a recording, as people type it.

use std::time::Duration;

use jiff::{Timestamp as Instant, civil::DateTime, civil::Time, tz::TimeZone};

use super::Timestamp;
use crate::parse::units;

/// A moment that may depend on the recording's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    At(Timestamp),
    /// The last time before the end at which clocks showed this, in UTC.
    OfDay(Time),
    /// Before the end.
    Before(Duration),
}

impl When {
    /// Parses `2026-01-02T10:00:00Z`, with any offset; `2026-01-02 10:00` and `10:00:30`, in UTC; or `15m`, before the
    /// recording's end. The error says how to write a time.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Ok(instant) = text.parse::<Instant>() {
            return timestamp(instant).map(Self::At).ok_or_else(|| out_of_range(text));
        }
        if let Ok(time) = text.parse::<Time>() {
            return Ok(Self::OfDay(time));
        }
        if let Ok(civil) = text.parse::<DateTime>()
            && let Ok(zoned) = TimeZone::UTC.to_timestamp(civil)
        {
            return timestamp(zoned).map(Self::At).ok_or_else(|| out_of_range(text));
        }
        let before = text.strip_suffix("ago").unwrap_or(text).trim().trim_start_matches('-');
        units::duration(before).map(Self::Before).map_err(|_| {
            format!(
                "{text:?} is no time: write 2026-01-02T10:00:00Z, \"2026-01-02 10:00\" or 10:00:30 in UTC, or 15m for \
                 so long before the recording's end"
            )
        })
    }

    /// Whether the moment depends on the end of the recording.
    pub(crate) const fn needs_end(self) -> bool {
        !matches!(self, Self::At(_))
    }

    /// The moment in a recording that ends at `end`.
    pub(crate) fn in_recording(self, end: Timestamp) -> Timestamp {
        const DAY: u64 = 86_400_000_000_000;
        match self {
            Self::At(time) => time,
            Self::Before(time) => end.saturating_sub(time),
            Self::OfDay(time) => {
                let since_midnight = time.duration_since(Time::midnight()).as_nanos();
                let since_midnight = u64::try_from(since_midnight).unwrap_or_default();
                let midnight = end.as_unix_ns() / DAY * DAY;
                let today = midnight.saturating_add(since_midnight);
                let is_later = today > end.as_unix_ns();
                Timestamp::from_unix_ns(if is_later { today.saturating_sub(DAY) } else { today })
            }
        }
    }
}

fn timestamp(instant: Instant) -> Option<Timestamp> {
    u64::try_from(instant.as_nanosecond()).ok().map(Timestamp::from_unix_ns)
}

fn out_of_range(text: &str) -> String {
    format!("{text:?} is before 1970 or after 2554")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn times_as_people_type_them() {
        let end = When::parse("2026-01-02T10:00:00Z").unwrap().in_recording(Timestamp::MAX);
        for (text, expected) in [
            ("2026-01-02T09:30:00.5Z", "2026-01-02T09:30:00.500Z"),
            ("2026-01-02T09:30:00+02:00", "2026-01-02T07:30:00.000Z"),
            ("2026-01-02 09:30", "2026-01-02T09:30:00.000Z"),
            ("2026-01-02T09:30:15", "2026-01-02T09:30:15.000Z"),
            ("2026-01-02", "2026-01-02T00:00:00.000Z"),
            ("09:30", "2026-01-02T09:30:00.000Z"),
            ("10:00", "2026-01-02T10:00:00.000Z"),
            ("23:15:30", "2026-01-01T23:15:30.000Z"),
            ("15m", "2026-01-02T09:45:00.000Z"),
            ("-15m", "2026-01-02T09:45:00.000Z"),
            ("1h30m ago", "2026-01-02T08:30:00.000Z"),
        ] {
            let when = When::parse(text).unwrap();
            assert_eq!(when.in_recording(end).to_the_millisecond(), expected, "{text}");
        }
        for text in ["", "yesterday", "25:00", "2026-13-01", "1969-01-01T00:00:00Z"] {
            let why = When::parse(text).unwrap_err();
            assert!(why.contains("is no time") || why.contains("1970"), "{text}: {why}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,40}|[0-9TZ:. +-]{0,30}", end in any::<u64>()) {
            if let Ok(when) = When::parse(&text) {
                when.in_recording(Timestamp::from_unix_ns(end));
            }
        }
    }
}
