//! The values of the configuration: durations, sizes and counts that carry their bounds in their type, so that an error
//! names its line and the schema has the same bounds.

use std::{borrow::Cow, fmt, time::Duration};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::parse::units;

/// A duration from `MIN` to `MAX` milliseconds, written as `500ms`, `30s`, `5m` or `24h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span<const MIN: u64, const MAX: u64>(Duration);

impl<const MIN: u64, const MAX: u64> Span<MIN, MAX> {
    pub(super) const fn of(duration: Duration) -> Self {
        Self(duration)
    }

    pub(crate) const fn get(self) -> Duration {
        self.0
    }
}

/// The shortest text of a duration in one unit.
fn duration_text(milliseconds: u64) -> String {
    match milliseconds {
        0 => "0s".to_owned(),
        ms if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        ms if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        ms if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Span<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let duration = units::duration(&text).map_err(de::Error::custom)?;
        if !(u128::from(MIN)..=u128::from(MAX)).contains(&duration.as_millis()) {
            let (min, max) = (duration_text(MIN), duration_text(MAX));
            return Err(de::Error::custom(format!("{text:?} is outside {min} to {max}")));
        }
        Ok(Self(duration))
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Span<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let ms = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        serializer.serialize_str(&duration_text(ms))
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Span<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let about = format!("a duration from {} to {}", duration_text(MIN), duration_text(MAX));
        json_schema!({"type": "string", "pattern": "^[0-9]", "format": about})
    }
}

/// A number of bytes from `MIN` to `MAX`, written as a number or as `512K`, `8M`, `1G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Size<MIN, MAX> {
    pub(super) const fn of(bytes: u64) -> Self {
        Self(bytes)
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }
}

/// The shortest text of a size in one unit.
fn size_text(bytes: u64) -> String {
    let unit = [(30, "G"), (20, "M"), (10, "K")];
    let exact = unit.into_iter().find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    exact.map_or_else(|| bytes.to_string(), |(shift, unit)| format!("{}{unit}", bytes >> shift))
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Size<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let bytes = units::bytes(&text).map_err(de::Error::custom)?;
        if !(MIN..=MAX).contains(&bytes) {
            let (min, max) = (size_text(MIN), size_text(MAX));
            return Err(de::Error::custom(format!("{text:?} is outside {min} to {max}")));
        }
        Ok(Self(bytes))
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Size<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&size_text(self.0))
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Size<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        "Size".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let about = format!("a size from {} to {}", size_text(MIN), size_text(MAX));
        json_schema!({
            "type": ["string", "integer"], "pattern": "^[0-9]+ *[KkMmGg]?[Ii]?[Bb]?$", "minimum": MIN, "maximum": MAX,
            "format": about,
        })
    }
}

/// A number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Number<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Number<MIN, MAX> {
    pub(super) const fn of(number: u64) -> Self {
        Self(number)
    }

    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// For the size of a collection. Every bound of the configuration fits.
    pub(crate) fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Number<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = u64::deserialize(deserializer)?;
        if (MIN..=MAX).contains(&number) {
            Ok(Self(number))
        } else {
            Err(de::Error::custom(format!("{number} is outside {MIN} to {MAX}")))
        }
    }
}

impl<const MIN: u64, const MAX: u64> Serialize for Number<MIN, MAX> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Number<MIN, MAX> {
    fn schema_name() -> Cow<'static, str> {
        "Number".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "integer", "minimum": MIN, "maximum": MAX})
    }
}

/// The share of healthy flows with a verdict of their own, written as `1/N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    const MAX: u32 = 1_000_000;

    pub(super) const fn one_in(count: u32) -> Self {
        Self(count)
    }

    /// The N of 1/N.
    pub(crate) const fn denominator(self) -> u32 {
        self.0
    }

    /// Whether a flow with this hash belongs to the share.
    pub(crate) fn has(self, hash: u64) -> bool {
        hash.is_multiple_of(u64::from(self.0))
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1/{}", self.0)
    }
}

impl<'de> Deserialize<'de> for Share {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let count = text.strip_prefix("1/").and_then(|count| count.trim().parse().ok());
        let count = count.filter(|count| (1..=Self::MAX).contains(count));
        let wrong = || format!("{text:?} is not a share: write 1/N with N from 1 to {}", Self::MAX);
        count.map(Self).ok_or_else(|| de::Error::custom(wrong()))
    }
}

impl Serialize for Share {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl JsonSchema for Share {
    fn schema_name() -> Cow<'static, str> {
        "Share".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string", "pattern": "^1/[1-9][0-9]{0,6}$"})
    }
}
