//! How long ago a line of the log was written.
//!
//! klog's own time has no year and no zone, so it needs a clock to compare with; other times are absolute.

use crate::time::Timestamp;

/// The clock of the process that wrote the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Clock {
    /// Seconds since the epoch.
    pub now: f64,
    /// The zone of klog's times in seconds east of UTC; without it UTC is assumed, which kube-proxy's images have.
    pub utc_offset: Option<i32>,
}

/// klog's times may be this much later than the clock, which was read before the log.
const SLACK_SECS: f64 = 60.0;

impl Clock {
    /// Seconds between this time of a log and the clock. `None` for another form, and for a time in the future: then
    /// the zone is another one.
    pub(crate) fn since(self, time: &str) -> Option<f64> {
        let age = match (absolute(time), klog(time)) {
            (Some(at), _) => self.now - at,
            (None, Some(time)) => {
                let offset = f64::from(self.utc_offset.unwrap_or(0));
                let year = |now: f64| jiff::Timestamp::from_second(whole(now)?).ok();
                let this = year(self.now)?.to_zoned(jiff::tz::TimeZone::UTC).year();
                let age = |year| Some(self.now - (time.in_year(year)? - offset));
                // A time later than the clock is of the year before, in January's log of December.
                age(this).filter(|age| *age > -SLACK_SECS - 86_400.0).or_else(|| age(this - 1))?
            }
            (None, None) => return None,
        };
        (age > -SLACK_SECS).then_some(age.max(0.0))
    }
}

/// A time of a log for a person: in UTC, or as the log has it where its year or zone is not known.
pub(crate) fn readable(time: &str, clock: Option<Clock>) -> String {
    let at = absolute(time).or_else(|| {
        klog(time)?;
        // An age is right to the hour with a wrong zone; a time that is called UTC is not.
        let clock = clock.filter(|clock| clock.utc_offset.is_some())?;
        Some(clock.now - clock.since(time)?)
    });
    match (at.and_then(to_the_nearest_ms), klog(time)) {
        (Some(at), _) => at.to_the_millisecond(),
        (None, Some(KlogTime { month, day, clock })) => {
            let month = month.parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?));
            month.map_or_else(|| time.to_owned(), |month| format!("{month} {day} {clock}"))
        }
        (None, None) => time.to_owned(),
    }
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Seconds of this size are exact to less than a microsecond, and the log's times have milliseconds.
fn to_the_nearest_ms(seconds: f64) -> Option<Timestamp> {
    Timestamp::from_unix_secs_f64((seconds * 1e3).round() / 1e3 + 1e-6)
}

/// RFC 3339, or the milliseconds of klog's JSON.
fn absolute(time: &str) -> Option<f64> {
    if let Ok(time) = time.parse::<jiff::Timestamp>() {
        return Some(time.as_duration().as_secs_f64());
    }
    let milliseconds = time.parse::<f64>().ok().filter(|number| *number > 1e12)?;
    Some(milliseconds / 1000.0)
}

/// `1120 23:29:18.128`: the month and day, the time of day.
struct KlogTime<'t> {
    month: &'t str,
    day: &'t str,
    clock: &'t str,
}

fn klog(time: &str) -> Option<KlogTime<'_>> {
    let (date, clock) = time.split_once(' ')?;
    let (month, day) = date.split_at_checked(2)?;
    (date.len() == 4 && clock.len() >= 8).then_some(KlogTime { month, day, clock })
}

impl KlogTime<'_> {
    /// Seconds since the epoch, as if in UTC.
    fn in_year(&self, year: i16) -> Option<f64> {
        let text = format!("{year:04}-{}-{}T{}Z", self.month, self.day, self.clock);
        Some(text.parse::<jiff::Timestamp>().ok()?.as_duration().as_secs_f64())
    }
}

#[expect(clippy::cast_possible_truncation, reason = "seconds since the epoch fit")]
fn whole(seconds: f64) -> Option<i64> {
    seconds.is_finite().then_some(seconds as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-20 23:30:00 UTC.
    const NOW: f64 = 1_795_217_400.0;

    #[test]
    fn every_form_of_a_time_has_its_age() {
        let utc = Clock { now: NOW, utc_offset: None };
        assert_eq!(utc.since("1120 23:29:18.000"), Some(42.0));
        assert_eq!(utc.since("1117 23:30:00.000"), Some(3.0 * 86_400.0));
        assert_eq!(utc.since("2026-11-21T00:29:00+01:00"), Some(60.0));
        assert_eq!(utc.since("1795217390000.0"), Some(10.0));
        assert_eq!(utc.since("yesterday"), None);
        assert_eq!(utc.since(""), None);
    }

    #[test]
    fn a_time_is_readable_and_has_no_zone_that_is_not_known() {
        let clock = Some(Clock { now: NOW, utc_offset: Some(3600) });
        assert_eq!(readable("1121 00:29:18.128", clock), "2026-11-20T23:29:18.128Z");
        assert_eq!(readable("1120 23:29:18.128", None), "Nov 20 23:29:18.128");
        let unknown = Some(Clock { now: NOW, utc_offset: None });
        assert_eq!(readable("1120 23:29:18.128", unknown), "Nov 20 23:29:18.128");
        assert_eq!(readable("1795217390128.4", None), "2026-11-20T23:29:50.128Z");
        assert_eq!(readable("2026-11-21T00:29:00.5+01:00", None), "2026-11-20T23:29:00.500Z");
        for other in ["", "yesterday", "1320 23:29:18.128", "ab20 23:29:18", "0020 23:29:18.1", "1e300", "-1"]
        {
            assert_eq!(readable(other, clock), other);
        }
    }

    #[test]
    fn the_zone_counts_and_a_wrong_one_is_noticed() {
        let east = Clock { now: NOW, utc_offset: Some(3600) };
        assert_eq!(east.since("1121 00:29:18.000"), Some(42.0));
        assert_eq!(Clock { utc_offset: None, ..east }.since("1121 00:29:18.000"), None);
    }

    #[test]
    fn a_log_of_december_read_in_january_is_of_last_year() {
        // 2027-01-01 00:00:10 UTC.
        let clock = Clock { now: 1_798_761_610.0, utc_offset: None };
        assert_eq!(clock.since("1231 23:59:50.000"), Some(20.0));
    }
}
