//! Durations and sizes as people type them.

use std::time::Duration;

/// Parses `500ms`, `30s`, `5m`, `1h30m`. Whole numbers with a unit each, the largest unit first or not; above zero
/// and below 10 years.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a duration: write a number and a unit, such as 500ms, 30s, 5m or 1h30m");
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let (number, after) = split_number(rest).ok_or_else(wrong)?;
        let unit_end = after.find(|character: char| character.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(unit_end);
        let seconds = |scale: u64| number.checked_mul(scale).map(Duration::from_secs);
        let part = match unit.trim() {
            "ms" => Some(Duration::from_millis(number)),
            "s" => seconds(1),
            "m" | "min" => seconds(60),
            "h" => seconds(3600),
            "d" => seconds(86_400),
            _ => return Err(wrong()),
        };
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
        rest = next;
    }
    if total > Duration::from_hours(10 * 365 * 24) {
        return Err(format!("{text:?} is longer than 10 years"));
    }
    Ok(total)
}

/// As [`duration`], above zero.
pub(super) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("it has to be longer than nothing".into()),
        duration => Ok(duration),
    }
}

/// Parses bytes: `65536`, `512K`, `8M`, `8MiB`, `1G`; all units are powers of 1024. From 4 KiB to 1 GiB.
pub(super) fn size(text: &str) -> Result<usize, String> {
    let wrong =
        || format!("{text:?} is not a size: write bytes or a number with a unit, such as 512K, 8M or 1G");
    let (number, unit) = split_number(text.trim()).ok_or_else(wrong)?;
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "ki" | "kib" => 10,
        "m" | "mb" | "mi" | "mib" => 20,
        "g" | "gb" | "gi" | "gib" => 30,
        _ => return Err(wrong()),
    };
    let bytes = number.checked_mul(1 << shift).ok_or_else(wrong)?;
    if (4096..=1 << 30).contains(&bytes) {
        usize::try_from(bytes).map_err(|_| wrong())
    } else {
        Err(format!("{text:?} is outside 4K to 1G"))
    }
}

fn split_number(text: &str) -> Option<(u64, &str)> {
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    Some((digits.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations() {
        for (text, milliseconds) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("1m 30s", 90_000),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in
            ["", "30", "s", "-5s", "1.5s", "5 parsecs", "99999999999999999999s", "999999999999d", "30s!"]
        {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(positive_duration("0s").is_err());
    }

    #[test]
    fn sizes() {
        for (text, bytes) in [("65536", 65536), ("512K", 524_288), ("8MiB", 8 << 20), ("1g", 1 << 30)] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "1", "2G", "8T", "-1M", "99999999999999999999"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_input_panics(text in any::<String>()) {
            let _ = duration(&text);
            let _ = size(&text);
        }
    }
}
