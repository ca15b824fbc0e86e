//! Parses durations and sizes, as people type them in flags and configuration files.

use std::time::Duration;

use jiff::{SignedDuration, Span, SpanRelativeTo};

/// Parses `500ms`, `30s`, `5m`, `1h30m`, the units in any order. From zero to 10 years.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("{text:?} is not a duration: write a number and a unit, such as 500ms, 30s, 5m or 1h30m");
    let mut total = SignedDuration::ZERO;
    for part in parts(text.trim()) {
        let span: Span = part.trim().parse().map_err(|_| wrong())?;
        let part = span.to_duration(SpanRelativeTo::days_are_24_hours()).map_err(|_| wrong())?;
        total = total.checked_add(part).ok_or_else(wrong)?;
    }
    if total > SignedDuration::from_hours(10 * 365 * 24) {
        return Err(format!("{text:?} is longer than 10 years"));
    }
    Duration::try_from(total).map_err(|_| wrong())
}

/// A duration split before each number that follows a unit: the library requires the largest unit first.
fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let whole = rest?;
        let unit = whole.find(char::is_alphabetic).unwrap_or(whole.len());
        let number = |character: char| character.is_ascii_digit();
        let next = whole.get(unit..).and_then(|behind| behind.find(number));
        let (part, behind) = next.map_or((whole, None), |next| {
            let (part, behind) = whole.split_at(unit + next);
            (part, Some(behind))
        });
        rest = behind;
        Some(part)
    })
}

/// Like [`duration`], but greater than zero.
pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        Duration::ZERO => Err("the duration must be greater than zero".into()),
        duration => Ok(duration),
    }
}

/// Parses the size of a buffer: [`bytes`] from 4 KiB to 1 GiB.
pub(crate) fn size(text: &str) -> Result<usize, String> {
    let bytes = bytes(text)?;
    let size = usize::try_from(bytes).ok().filter(|size| (4096..=1 << 30).contains(size));
    size.ok_or_else(|| format!("{text:?} is outside 4K to 1G"))
}

/// Parses bytes: `65536`, `512K`, `8M`, `8MiB`, `1G`; all units are powers of 1024.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
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
    number.checked_mul(1 << shift).ok_or_else(wrong)
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
            ("30s1m", 90_000),
            ("5 min", 300_000),
            ("2d", 172_800_000),
            ("1.5s", 1_500),
            ("0s", 0),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for text in [
            "",
            "30",
            "s",
            "-5s",
            "5s ago",
            "1y",
            "5 parsecs",
            "99999999999999999999s",
            "999999999999d",
            "30s!",
        ] {
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
