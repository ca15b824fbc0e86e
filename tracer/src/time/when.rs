//! A moment in a recording, as people type it.

use std::time::Duration;

use jiff::{Timestamp as Instant, civil::DateTime, civil::Time, tz::TimeZone};

use super::Timestamp;
use crate::parse::units;

const DAY: Duration = Duration::from_hours(24);

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
    /// Parses `2026-01-02T10:00:00Z`, with any offset; `2026-01-02 10:00` and `10:00:30`, in UTC, which may be named behind
    /// them, as may an offset; `15m`, before the recording's end; or `now`, that end. The error says how to write a time.
    /// A time zone such as `[Europe/Berlin]` needs an offset beside it: viptrace has no time zone database.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        Self::parse_before(text, "so long before the recording's end")
    }

    /// As [`Self::parse`], where recordings that still grow are meant.
    pub(crate) fn parse_until_now(text: &str) -> Result<Self, String> {
        Self::parse_before(text, "so long ago")
    }

    /// `before` is what a duration means.
    fn parse_before(text: &str, before: &str) -> Result<Self, String> {
        let text = text.trim();
        if let Ok(instant) = text.parse::<Instant>() {
            return timestamp(instant).map(Self::At).ok_or_else(|| out_of_range(text));
        }
        if text == "now" {
            return Ok(Self::Before(Duration::ZERO));
        }
        let mut clock = text;
        if let Some((before, zone)) = text.split_once('[') {
            if let Some(instant) = on_a_day(text) {
                return Ok(Self::OfDay(instant.to_zoned(TimeZone::UTC).time()));
            }
            // The parsers of a time without an offset pass over the zone.
            if !is_utc(zone) {
                return Err(format!(
                    "viptrace has no time zone database to read {text:?}: write an offset such as +01:00, or Z for UTC, in \
                     place of [{zone}"
                ));
            }
            clock = before.trim_end();
        }
        let utc = ["Z", "z", "UTC", "utc"].into_iter().find_map(|zone| clock.strip_suffix(zone));
        let clock = utc.unwrap_or(clock).trim_end();
        // A bare number may as well be meant as minutes.
        let is_number = clock.bytes().all(|byte| byte.is_ascii_digit());
        // A date with a time also parses as a time of day.
        if !is_number && let Ok(civil) = clock.parse::<DateTime>() {
            let instant = TimeZone::UTC.to_timestamp(civil).ok();
            return instant.and_then(timestamp).map(Self::At).ok_or_else(|| out_of_range(text));
        }
        if !is_number && let Some(instant) = on_a_day(clock) {
            return Ok(Self::OfDay(instant.to_zoned(TimeZone::UTC).time()));
        }
        if !is_number && let Ok(time) = clock.parse::<Time>() {
            return Ok(Self::OfDay(time));
        }
        let duration = text.strip_suffix("ago").unwrap_or(text).trim().trim_start_matches('-');
        units::duration(duration).map(Self::Before).map_err(|_| {
            format!(
                "{text:?} is no time: write 2026-01-02T10:00:00Z, \"2026-01-02 10:00\" or 10:00:30 in UTC, or 15m for \
                 {before}"
            )
        })
    }

    /// The moment in a recording that ends at `end`.
    pub(crate) fn in_recording(self, end: Timestamp) -> Timestamp {
        match self {
            Self::At(time) => time,
            Self::Before(time) => end.saturating_sub(time),
            Self::OfDay(time) => {
                let same_day = on_day_of(end, time);
                if same_day > end { same_day.saturating_sub(DAY) } else { same_day }
            }
        }
    }

    /// The moment as the end of a span that begins at `from`, in a recording that ends at `end`. A time of day is the first
    /// one at or after `from`, on the next day only if the recording reaches to about that time: otherwise the span is
    /// mistaken, and ends before it begins.
    pub(crate) fn as_end(self, from: Timestamp, end: Timestamp) -> Timestamp {
        let Self::OfDay(time) = self else { return self.in_recording(end) };
        let same_day = on_day_of(from, time);
        let next_day = same_day.saturating_add(DAY);
        if same_day < from && next_day.since(end) <= DAY / 2 { next_day } else { same_day }
    }
}

/// Whether an annotation (RFC 9557), from behind its `[` on, names UTC.
fn is_utc(annotation: &str) -> bool {
    let Some(zone) = annotation.strip_suffix(']') else { return false };
    let zone = zone.strip_prefix('!').unwrap_or(zone);
    ["UTC", "Etc/UTC", "Z"].iter().any(|utc| zone.eq_ignore_ascii_case(utc))
}

/// The moment of a time of day with an offset, on some day: as a time alone it would parse too, without its offset.
fn on_a_day(time: &str) -> Option<Instant> {
    format!("2000-01-02T{time}").parse().ok()
}

/// The moment of the day of `day` at which clocks show `time`, in UTC.
fn on_day_of(day: Timestamp, time: Time) -> Timestamp {
    let since_midnight = time.duration_since(Time::midnight()).as_nanos();
    let since_midnight = u64::try_from(since_midnight).unwrap_or_default();
    let day_ns = u64::try_from(DAY.as_nanos()).unwrap_or(u64::MAX);
    let midnight = day.as_unix_ns() / day_ns * day_ns;
    Timestamp::from_unix_ns(midnight.saturating_add(since_midnight))
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
            ("2025-12-30 09:30", "2025-12-30T09:30:00.000Z"),
            ("2026-01-02", "2026-01-02T00:00:00.000Z"),
            ("09:30", "2026-01-02T09:30:00.000Z"),
            ("10:00", "2026-01-02T10:00:00.000Z"),
            ("23:15:30", "2026-01-01T23:15:30.000Z"),
            ("15m", "2026-01-02T09:45:00.000Z"),
            ("-15m", "2026-01-02T09:45:00.000Z"),
            ("1h30m ago", "2026-01-02T08:30:00.000Z"),
            ("09:30 UTC", "2026-01-02T09:30:00.000Z"),
            ("09:30Z", "2026-01-02T09:30:00.000Z"),
            ("09:30+02:00", "2026-01-02T07:30:00.000Z"),
            ("01:30:15+02:00", "2026-01-01T23:30:15.000Z"),
            ("23:30-05:00", "2026-01-02T04:30:00.000Z"),
            ("2026-01-02 09:30 UTC", "2026-01-02T09:30:00.000Z"),
            ("now", "2026-01-02T10:00:00.000Z"),
            ("2026-01-02T09:30:00[UTC]", "2026-01-02T09:30:00.000Z"),
            ("2026-01-02T09:30:00Z[Etc/UTC]", "2026-01-02T09:30:00.000Z"),
            ("09:30[utc]", "2026-01-02T09:30:00.000Z"),
            ("2026-01-02T09:30:00+01:00[Europe/Berlin]", "2026-01-02T08:30:00.000Z"),
            ("09:30+01:00[Europe/Berlin]", "2026-01-02T08:30:00.000Z"),
        ] {
            let when = When::parse(text).unwrap();
            assert_eq!(when.in_recording(end).to_the_millisecond(), expected, "{text}");
        }
        for text in
            ["", "yesterday", "25:00", "10", "1000", "20260102", "Z", "2026-13-01", "1969-01-01T00:00:00Z"]
        {
            let why = When::parse(text).unwrap_err();
            assert!(why.contains("is no time") || why.contains("1970"), "{text}: {why}");
        }
    }

    #[test]
    fn a_time_zone_without_an_offset_is_refused() {
        for text in [
            "2026-11-23T21:17:00[Europe/Berlin]",
            "2026-11-23 21:17 [!America/New_York]",
            "2026-11-23[Europe/Berlin]",
            "21:17[Europe/Berlin]",
            "21:17[UTC",
            "21:17[]",
            "21:17[UTC][u-ca=hebrew]",
        ] {
            let why = When::parse(text).unwrap_err();
            assert!(why.contains(text) && why.contains("write an offset such as +01:00"), "{text}: {why}");
        }
    }

    #[test]
    fn a_date_that_is_out_of_range_is_no_time_of_day() {
        for text in [
            "9999-12-31T23:00",
            "9999-12-31 23:00 UTC",
            "9999-12-31T23:00-01:00",
            "-009999-01-01T10:00",
            "2555-01-01T10:00",
            "1969-12-31 23:00",
        ] {
            let why = When::parse(text).unwrap_err();
            assert!(why.contains(text) && why.contains("before 1970 or after 2554"), "{text}: {why}");
        }
        for text in ["10000-01-01T10:00", "2026-13-01T10:00", "2026-02-30 10:00", "+010000-01-01T10:00"] {
            assert!(When::parse(text).is_err_and(|why| why.contains(text)), "{text}");
        }
    }

    #[test]
    fn a_time_of_day_at_the_end_of_a_span_is_the_first_one_after_its_beginning() {
        let at = |text: &str| When::parse(text).unwrap().in_recording(Timestamp::MAX);
        for (until, from, end, expected) in [
            // Just after the recording's end, and at the end of its day.
            ("21:30", "2026-01-02 21:17", "2026-01-02 21:20", "2026-01-02 21:30"),
            ("23:59", "2026-01-02 06:10", "2026-01-02 06:20", "2026-01-02 23:59"),
            ("21:17", "2026-01-02 21:17", "2026-01-02 21:20", "2026-01-02 21:17"),
            // Over midnight.
            ("00:10", "2026-01-01 23:50", "2026-01-02 00:30", "2026-01-02 00:10"),
            ("00:10", "2026-01-01 23:50", "2026-01-01 23:58", "2026-01-02 00:10"),
            // A mistake: the recording does not reach to the next day.
            ("21:17", "2026-01-02 21:18", "2026-01-02 21:20", "2026-01-02 21:17"),
        ] {
            let found = When::parse(until).unwrap().as_end(at(from), at(end));
            assert_eq!(found, at(expected), "{until} from {from} in a recording to {end}");
        }
        let before = When::parse("10m").unwrap().as_end(Timestamp::MIN, at("2026-01-02 21:20"));
        assert_eq!(before, at("2026-01-02 21:10"));
    }

    proptest! {
        #[test]
        fn no_text_panics(
            text in ".{0,40}|[0-9TZ:. +-]{0,30}|([01][0-9]|2[0-3]):[0-5][0-9]",
            from in any::<u64>(),
            end in any::<u64>(),
        ) {
            if let Ok(when) = When::parse(&text) {
                let [from, end] = [from, end].map(Timestamp::from_unix_ns);
                when.in_recording(end);
                when.as_end(from, end);
            }
        }
    }
}
