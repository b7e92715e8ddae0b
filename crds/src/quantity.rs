//! Sizes and durations as users write them: in custom resources, in the daemon's configuration and on its
//! command line.
//!
//! A size is a whole number of bytes with an optional suffix of a Kubernetes quantity. Quantities also allow
//! fractions, exponents and milli-units; sizes do not, and the CEL rules reject them too. A duration is one
//! or more whole numbers, each with its unit.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use crate::FieldError;

/// Largest volume, in bytes (64 TiB).
pub const MAX_SIZE_BYTES: u64 = 64 << 40;

/// Bytes in a sector; a volume's size is a multiple of it.
const SECTOR_BYTES: u64 = 4096;

/// Size suffixes and their values in bytes.
const SIZE_UNITS: [(&str, u64); 11] = [
    ("", 1),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
];

/// Duration units and their values in milliseconds.
const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// A number of bytes: `67108864`, `64Mi` or `512k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// A duration with one or more units: `500ms`, `30s`, `1m30s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeSpan(pub Duration);

/// The text is not a valid size or duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; {fix}")]
pub struct InvalidQuantity {
    problem: String,
    fix: &'static str,
}

impl InvalidQuantity {
    fn size(text: &str) -> Self {
        Self {
            problem: format!("`{text}` is not a size"),
            fix: "write a whole number of bytes with an optional suffix k, M, G, T, P, Ki, Mi, Gi, Ti or Pi, such as 64Mi",
        }
    }

    fn duration(text: &str) -> Self {
        Self {
            problem: format!("`{text}` is not a duration"),
            fix: "write whole numbers, each with a unit ms, s, m or h, such as 30s or 1m30s",
        }
    }

    fn of(self, field: &'static str) -> FieldError {
        FieldError::new(field, self.problem, self.fix)
    }
}

/// Splits `text` after its leading digits.
fn split_number(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// Returns the product of a number and its unit, or `None` if either is invalid or the product overflows.
fn in_units(number: &str, unit: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (_, factor) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

impl FromStr for ByteSize {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        let (number, suffix) = split_number(text);
        in_units(number, suffix, &SIZE_UNITS).map(Self).ok_or_else(|| InvalidQuantity::size(text))
    }
}

impl fmt::Display for ByteSize {
    /// Formats the size in the largest binary unit that keeps the number whole.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")]
            .into_iter()
            .find(|(shift, _)| self.0 != 0 && self.0.trailing_zeros() >= *shift);
        match exact {
            Some((shift, suffix)) => write!(f, "{}{suffix}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

impl ByteSize {
    /// Formats the size in the largest binary unit it reaches, rounded to a tenth: for display, not for calculation.
    #[must_use]
    pub fn rounded(self) -> String {
        let unit = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
        let Some((shift, suffix)) = unit.into_iter().find(|(shift, _)| self.0 >> shift > 0) else {
            return self.0.to_string();
        };
        let tenths = (u128::from(self.0) * 10 + (1 << (shift - 1))) >> shift;
        let (whole, tenth) = (tenths / 10, tenths % 10);
        if tenth == 0 { format!("{whole}{suffix}") } else { format!("{whole}.{tenth}{suffix}") }
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = ByteSize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"64Mi\"")
            }

            fn visit_i64<E: de::Error>(self, bytes: i64) -> Result<ByteSize, E> {
                match u64::try_from(bytes) {
                    Ok(bytes) => Ok(ByteSize(bytes)),
                    Err(_negative) => Err(E::custom(InvalidQuantity::size(&bytes.to_string()))),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Size)
    }
}

impl TimeSpan {
    fn parse(text: &str) -> Option<Self> {
        let mut sum_ms = None;
        let mut rest = text;
        while !rest.is_empty() {
            let (number, units) = split_number(rest);
            let (unit, next) =
                units.split_at(units.find(|c: char| c.is_ascii_digit()).unwrap_or(units.len()));
            sum_ms = Some(in_units(number, unit, &TIME_UNITS)?.checked_add(sum_ms.unwrap_or(0))?);
            rest = next;
        }
        sum_ms.map(|ms| Self(Duration::from_millis(ms)))
    }
}

/// Formats the duration exactly, in the largest units possible, such as `1m30s`.
impl fmt::Display for TimeSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.as_millis();
        if left == 0 {
            return f.write_str("0s");
        }
        for (unit, ms) in [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)] {
            if left >= ms {
                write!(f, "{}{unit}", left / ms)?;
                left %= ms;
            }
        }
        Ok(())
    }
}

impl FromStr for TimeSpan {
    type Err = InvalidQuantity;

    fn from_str(text: &str) -> Result<Self, InvalidQuantity> {
        Self::parse(text).ok_or_else(|| InvalidQuantity::duration(text))
    }
}

impl<'de> Deserialize<'de> for TimeSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Span;
        impl Visitor<'_> for Span {
            type Value = TimeSpan;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with its unit, such as \"30s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeSpan, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Span)
    }
}

/// Parses the size of a volume into bytes.
pub(crate) fn volume_size_bytes(field: &'static str, text: &str) -> Result<u64, FieldError> {
    let ByteSize(bytes) = text.parse().map_err(|error: InvalidQuantity| error.of(field))?;
    let problem = if bytes == 0 {
        "a volume cannot be empty".to_owned()
    } else if bytes > MAX_SIZE_BYTES {
        format!("`{text}` is above the limit of {}", ByteSize(MAX_SIZE_BYTES))
    } else if !bytes.is_multiple_of(SECTOR_BYTES) {
        format!("`{text}` ({bytes} bytes) is not a multiple of {SECTOR_BYTES}")
    } else {
        return Ok(bytes);
    };
    Err(FieldError::new(field, problem, "write a multiple of 4096 bytes up to 64Ti, such as 10Gi"))
}

/// Parses a duration that must lie within `bounds`; the error suggests `example`.
pub(crate) fn duration_within(
    field: &'static str,
    text: &str,
    bounds: RangeInclusive<Duration>,
    example: &str,
) -> Result<Duration, FieldError> {
    let TimeSpan(duration) = text.parse().map_err(|error: InvalidQuantity| error.of(field))?;
    if !bounds.contains(&duration) {
        let (min, max) = (bounds.start(), bounds.end());
        let fix = format!("write a duration between {min:?} and {max:?}, such as {example}");
        return Err(FieldError::new(field, format!("`{text}` is out of range"), fix));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: [(&str, u64); 12] = [
        ("0", 0),
        ("4096", 4096),
        ("8Ki", 8192),
        ("64Mi", 64 << 20),
        ("1Gi", 1 << 30),
        ("3Ti", 3 << 40),
        ("1Pi", 1 << 50),
        ("512k", 512_000),
        ("4096M", 4_096_000_000),
        ("2G", 2_000_000_000),
        ("1T", 1_000_000_000_000),
        ("1P", 1_000_000_000_000_000),
    ];

    const NOT_SIZES: [&str; 14] = [
        "",
        "Mi",
        "Gi",
        "64MB",
        "64 Mi",
        "1 Gi",
        "-1",
        "-1Gi",
        "1.5Gi",
        "1e9",
        "1gi",
        "1m",
        "99999999999Ti",
        "99999999999999999999",
    ];

    const DURATIONS: [(&str, u64); 8] = [
        ("0s", 0),
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("1h", 3_600_000),
        ("1m30s", 90_000),
        ("1h30m", 5_400_000),
        ("1s500ms", 1_500),
    ];

    const NOT_DURATIONS: [&str; 12] = [
        "",
        "30",
        "s",
        "30sec",
        "1m30",
        "m30s",
        "1.5h",
        "-1s",
        "-5s",
        "1 s",
        "soon",
        "99999999999999999999s",
    ];

    #[test]
    fn a_size_for_people_has_at_most_one_decimal() {
        let tenth = (12 << 20) + (8 << 20) / 10;
        let sizes =
            [(0, "0"), (1023, "1023"), (10 << 30, "10Gi"), (tenth, "12.8Mi"), ((1 << 20) - 1, "1024Ki")];
        for (bytes, text) in sizes {
            assert_eq!(ByteSize(bytes).rounded(), text);
        }
    }

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, bytes) in SIZES {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in NOT_SIZES {
            let error = text.parse::<ByteSize>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not a size; write ")), "{text}: {error}");
        }
        assert_eq!(ByteSize(1536 << 20).to_string(), "1536Mi");
        assert_eq!(ByteSize(4097).to_string(), "4097");
        assert_eq!(ByteSize(0).to_string(), "0");
    }

    #[test]
    fn durations_are_read() {
        for (text, ms) in DURATIONS {
            let span = TimeSpan(Duration::from_millis(ms));
            assert_eq!(text.parse(), Ok(span), "{text}");
            assert_eq!(span.to_string().parse(), Ok(span), "{span}");
        }
        for text in NOT_DURATIONS {
            let error = text.parse::<TimeSpan>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}` is not a duration; write ")), "{text}: {error}");
        }
    }

    /// A volume's size has the same syntax, with its own limits.
    #[test]
    fn bad_volume_sizes_name_field_and_fix() {
        for (text, bytes) in SIZES {
            let is_size = bytes != 0 && bytes <= MAX_SIZE_BYTES && bytes % SECTOR_BYTES == 0;
            assert_eq!(volume_size_bytes("spec.size", text).ok(), is_size.then_some(bytes), "{text}");
        }
        assert_eq!(volume_size_bytes("spec.size", "64Ti"), Ok(MAX_SIZE_BYTES));
        for text in NOT_SIZES.into_iter().chain(["0", "1", "4097", "1M", "65Ti", "1Pi"]) {
            let error = volume_size_bytes("spec.size", text).expect_err(text).to_string();
            assert!(error.starts_with("spec.size: ") && error.contains("; write "), "{text}: {error}");
        }
    }

    #[test]
    fn bad_ages_name_field_and_fix() {
        let within = |text| {
            let bounds = Duration::from_secs(1)..=Duration::from_secs(3600);
            duration_within("spec.maxDirtyAge", text, bounds, "30s")
        };
        for (text, ms) in DURATIONS {
            let is_within = (1_000..=3_600_000).contains(&ms);
            assert_eq!(within(text).ok(), is_within.then(|| Duration::from_millis(ms)), "{text}");
        }
        for text in NOT_DURATIONS.into_iter().chain(["0s", "500ms", "2h"]) {
            let error = within(text).expect_err(text).to_string();
            assert!(
                error.starts_with("spec.maxDirtyAge: ") && error.contains("such as 30s"),
                "{text}: {error}"
            );
        }
    }
}
