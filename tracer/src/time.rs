//! Points in time, in the clock of the whole program.

pub(crate) mod when;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};

/// Nanoseconds since the Unix epoch (UTC), on the clock of the trace: the Unix time of its start, continued by the
/// kernel's monotonic clock. `kernel` brings the kernel's times to this clock, and other programs' Unix times too, so that
/// sightings and API objects can be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Before every event, for state that existed before the observation began.
    pub const MIN: Self = Self(0);

    /// After every event.
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

    /// From the time of a file; `None` for a time before 1970 or after 2554.
    pub(crate) fn from_system_time(time: SystemTime) -> Option<Self> {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        u64::try_from(since.as_nanos()).ok().map(Self)
    }

    /// From seconds as a metric has them; `None` for a time before 1970 or after 2554.
    pub(crate) fn from_unix_secs_f64(secs: f64) -> Option<Self> {
        let since = Duration::try_from_secs_f64(secs).ok()?;
        u64::try_from(since.as_nanos()).ok().map(Self)
    }

    /// In seconds, exact to a microsecond.
    pub(crate) fn as_unix_secs_f64(self) -> f64 {
        Duration::from_nanos(self.0).as_secs_f64()
    }

    /// The time from `earlier` to `self`, zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The latest time of a change that an API object has with this time: an API server writes whole seconds, and cuts off the rest.
    /// On the clock of a trace they are whole within the error of reading the wall clock. Another time is of an event, and exact.
    #[must_use]
    pub(crate) const fn at_latest(self) -> Self {
        const SECOND_NS: u64 = 1_000_000_000;
        const ERROR_NS: u64 = 500_000;
        match self {
            Self::MIN | Self::MAX => self,
            Self(ns) if ns.saturating_add(ERROR_NS) % SECOND_NS <= 2 * ERROR_NS => {
                Self(ns.saturating_add(SECOND_NS - 1))
            }
            exact => exact,
        }
    }

    /// Later by this many nanoseconds, or earlier if they are negative.
    #[must_use]
    pub const fn shifted(self, ns: i64) -> Self {
        Self(self.0.saturating_add_signed(ns))
    }

    #[must_use]
    pub fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Timestamp {
    /// The time of day in UTC: `03:04:05.006`.
    pub fn clock(self) -> String {
        let text = self.to_string();
        text.get(11..23).unwrap_or(&text).to_owned()
    }

    /// The time for a person who reads of `other`: the time of day, with the date where that is another.
    pub fn beside(self, other: Self) -> String {
        const DAY_NS: u64 = 86_400_000_000_000;
        if self.0 / DAY_NS == other.0 / DAY_NS { self.clock() } else { self.to_the_millisecond() }
    }

    /// RFC 3339 in UTC to the millisecond: `2026-01-02T03:04:05.006Z`.
    pub fn to_the_millisecond(self) -> String {
        let text = self.to_string();
        text.get(..23).map_or_else(|| text.clone(), |whole| format!("{whole}Z"))
    }

    /// Parses the output of [`fmt::Display`].
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let number = |places: std::ops::Range<usize>| -> Option<u64> {
            bytes.get(places)?.iter().try_fold(0, |number, digit| {
                digit.is_ascii_digit().then(|| number * 10 + u64::from(digit - b'0'))
            })
        };
        let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
        let (hours, minutes, seconds) = (number(11..13)?, number(14..16)?, number(17..19)?);
        let days = days(year, month, day)?;
        let seconds = ((days * 24 + hours) * 60 + minutes) * 60 + seconds;
        let time = Self(seconds.checked_mul(1_000_000_000)?.checked_add(number(20..29)?)?);
        // Each time has one form, so this comparison finds every other error in the text.
        (time.to_string() == text).then_some(time)
    }
}

/// Days from 1970-01-01 to a date of the proleptic Gregorian calendar: the inverse of [`date`].
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day.checked_sub(1)?;
    (year * 365 + year / 4 - year / 100 + year / 400 + day_of_year).checked_sub(719_468)
}

/// RFC 3339 in UTC with nanoseconds: `2026-01-02T03:04:05.000000006Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (secs, nanos) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        let (year, month, day) = date(secs / 86_400);
        let mut text = *b"0000-00-00T00:00:00.000000000Z";
        let mut put = |places: std::ops::Range<usize>, mut number: u64| {
            for place in text.get_mut(places).into_iter().flatten().rev() {
                *place = b'0' + (number % 10) as u8;
                number /= 10;
            }
        };
        put(0..4, year);
        put(5..7, month);
        put(8..10, day);
        put(11..13, secs / 3600 % 24);
        put(14..16, secs / 60 % 60);
        put(17..19, secs % 60);
        put(20..29, nanos);
        f.write_str(str::from_utf8(&text).unwrap_or_default())
    }
}

/// Year, month and day of the proleptic Gregorian calendar, `days` after 1970-01-01. Counts years from March, so that a
/// leap day is the last day of its year, and eras of 400 years, after which the calendar repeats.
const fn date(days: u64) -> (u64, u64, u64) {
    // From 0000-03-01.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    // March to July, August to December, January and February: 31, 30, 31, 30, 31 days each.
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (next_year, month) = if month < 10 { (0, month + 3) } else { (1, month - 9) };
    (era * 400 + year + next_year, month, day)
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Accepts only the form that `Serialize` writes.
impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            let unexpected = serde::de::Unexpected::Str(&text);
            serde::de::Error::invalid_value(unexpected, &"a time like 2026-01-02T03:04:05.000000006Z")
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by_jiff(ns: u64) -> String {
        format!("{:.9}", jiff::Timestamp::from_nanosecond(i128::from(ns)).unwrap())
    }

    /// A trace brings the times of objects to its own clock, of which the wall clock is ahead by the error of its reading.
    #[test]
    fn a_time_of_whole_seconds_is_known_on_the_clock_of_a_trace() {
        let second = Timestamp::from_unix_secs(20);
        for ns in [0, 137, -137, 40_000, -40_000] {
            let (at, late) = (second.shifted(ns), second.shifted(ns + 999_999_999));
            assert_eq!(at.at_latest(), late, "{ns}");
        }
        let exact = second.shifted(1_000_000);
        assert_eq!(exact.at_latest(), exact);
        assert_eq!(
            [Timestamp::MIN, Timestamp::MAX].map(Timestamp::at_latest),
            [Timestamp::MIN, Timestamp::MAX]
        );
    }

    #[test]
    fn every_day_has_its_date() {
        let day = 86_400_000_000_000;
        for ns in (0..u64::MAX - day).step_by(day as usize).chain([u64::MAX]) {
            assert_eq!(Timestamp::from_unix_ns(ns).to_string(), by_jiff(ns));
        }
    }

    proptest! {
        #[test]
        fn every_moment_is_written_as_rfc_3339(ns in any::<u64>()) {
            let text = Timestamp::from_unix_ns(ns).to_string();
            prop_assert_eq!(Timestamp::parse(&text), Some(Timestamp::from_unix_ns(ns)));
            prop_assert_eq!(text, by_jiff(ns));
        }

        #[test]
        fn no_text_panics(
            text in "[0-9:TZ.+-]{0,32}\
                |[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{9}Z",
        ) {
            if let Some(time) = Timestamp::parse(&text) {
                prop_assert_eq!(time.to_string(), text);
            }
        }
    }
}
