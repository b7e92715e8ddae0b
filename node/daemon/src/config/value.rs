//! Sizes and durations as people write them, in the configuration and on the command line.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A number of bytes: `67108864` or `64Mi`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ByteSize(pub(crate) u64);

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a size; write a whole number of bytes with an optional suffix Ki, Mi, Gi or Ti, such as 64Mi"
)]
pub(crate) struct NotASize(String);

impl FromStr for ByteSize {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, NotASize> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let unit: Option<u64> = match suffix {
            "" => Some(1),
            "Ki" => Some(1 << 10),
            "Mi" => Some(1 << 20),
            "Gi" => Some(1 << 30),
            "Ti" => Some(1 << 40),
            _ => None,
        };
        let bytes =
            number.parse().ok().zip(unit).and_then(|(number, unit): (u64, u64)| number.checked_mul(unit));
        bytes.map(Self).ok_or_else(|| NotASize(text.to_owned()))
    }
}

impl fmt::Display for ByteSize {
    /// In the largest unit that keeps the number whole.
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
                    Err(_negative) => Err(E::custom(NotASize(bytes.to_string()))),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Size)
    }
}

/// A duration with its unit: `500ms`, `30s`, `5m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimeSpan(pub(crate) Duration);

/// A text that is no duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a duration; write a whole number and a unit ms, s, m or h, such as 30s")]
pub(crate) struct NotADuration(String);

impl FromStr for TimeSpan {
    type Err = NotADuration;

    fn from_str(text: &str) -> Result<Self, NotADuration> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, suffix) = text.split_at(digits);
        let unit_ms: Option<u64> = match suffix {
            "ms" => Some(1),
            "s" => Some(1_000),
            "m" => Some(60_000),
            "h" => Some(3_600_000),
            _ => None,
        };
        let ms =
            number.parse().ok().zip(unit_ms).and_then(|(number, unit): (u64, u64)| number.checked_mul(unit));
        ms.map(|ms| Self(Duration::from_millis(ms))).ok_or_else(|| NotADuration(text.to_owned()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_printed() {
        for (text, bytes) in [("0", 0), ("4096", 4096), ("64Mi", 64 << 20), ("3Ti", 3 << 40)] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)));
        }
        for text in ["", "Mi", "64MB", "64 Mi", "-1", "1.5Gi", "99999999999Ti"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!(ByteSize(1536 << 20).to_string(), "1536Mi");
        assert_eq!(ByteSize(4097).to_string(), "4097");
        assert_eq!(ByteSize(0).to_string(), "0");
    }

    #[test]
    fn durations_are_read() {
        for (text, ms) in [("500ms", 500), ("30s", 30_000), ("5m", 300_000), ("1h", 3_600_000)] {
            assert_eq!(text.parse(), Ok(TimeSpan(Duration::from_millis(ms))));
        }
        for text in ["", "30", "s", "30sec", "1h30m", "-1s"] {
            assert!(text.parse::<TimeSpan>().is_err(), "{text}");
        }
    }
}
