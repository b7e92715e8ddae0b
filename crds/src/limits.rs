//! Request limits of a volume, as written in its spec.

use std::ops::RangeInclusive;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::quantity::ByteSize;
use crate::{FieldError, InvalidQuantity};

/// Valid limits for requests per second.
pub const IOPS_LIMITS: RangeInclusive<u64> = 10..=10_000_000;

/// Valid limits for bytes per second. The minimum is the size of the longest request.
pub const THROUGHPUT_LIMITS: RangeInclusive<u64> = 1 << 20..=1 << 40;

const IOPS: &str = "spec.limits.iops";
const THROUGHPUT: &str = "spec.limits.throughput";
const IOPS_FIX: &str = "write a whole number from 10 to 10000000, such as 3000";
const THROUGHPUT_FIX: &str =
    "write bytes per second from 1Mi to 1Ti, a whole number with an optional suffix, such as 125Mi";

/// Limits on a volume's requests. An absent field means no limit.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeLimits {
    /// Maximum requests (reads, writes, discards) per second: 10 to 10000000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = kube::core::Rule::new("self >= 10 && self <= 10000000")
        .message("spec.limits.iops must lie between 10 and 10000000: write for example 3000, or remove it for no limit"))]
    pub iops: Option<i64>,
    /// Maximum bytes per second moved by reads and writes: a whole number with an optional suffix (`125Mi`), from 1Mi to 1Ti.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 24))]
    #[x_kube(validation = kube::core::Rule::new("isQuantity(self) && self.matches('^[0-9]+(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$') && quantity(self).compareTo(quantity('1Mi')) >= 0 && quantity(self).compareTo(quantity('1Ti')) <= 0")
        .message("spec.limits.throughput must be bytes per second between 1Mi and 1Ti, a whole number with an optional suffix: write for example `125Mi`, or remove it for no limit"))]
    pub throughput: Option<String>,
}

impl VolumeLimits {
    /// Returns the maximum requests per second; `None` means no limit.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.limits.iops`.
    pub fn max_iops(&self) -> Result<Option<u64>, FieldError> {
        let Some(iops) = self.iops else { return Ok(None) };
        match u64::try_from(iops) {
            Ok(valid) if IOPS_LIMITS.contains(&valid) => Ok(Some(valid)),
            Ok(_) | Err(_) => Err(FieldError::new(IOPS, format!("`{iops}` is out of range"), IOPS_FIX)),
        }
    }

    /// Returns the maximum bytes per second; `None` means no limit.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.limits.throughput`.
    pub fn max_bytes_per_second(&self) -> Result<Option<u64>, FieldError> {
        let Some(text) = &self.throughput else { return Ok(None) };
        let problem = match text.parse() {
            Ok(ByteSize(bytes)) if THROUGHPUT_LIMITS.contains(&bytes) => return Ok(Some(bytes)),
            Ok(ByteSize(_)) => format!("`{text}` is out of range"),
            Err(InvalidQuantity { .. }) => format!("`{text}` is not a number of bytes"),
        };
        Err(FieldError::new(THROUGHPUT, problem, THROUGHPUT_FIX))
    }

    /// Parses `iops` from the text of a StorageClass parameter.
    ///
    /// # Errors
    /// A [`FieldError`] naming `spec.limits.iops`.
    pub fn parse_iops(text: &str) -> Result<i64, FieldError> {
        let not_a_number =
            || FieldError::new(IOPS, format!("`{text}` is not a number of requests"), IOPS_FIX);
        let iops = Some(text.parse().map_err(|_invalid| not_a_number())?);
        let most = Self { iops, throughput: None }.max_iops()?;
        most.and_then(|most| i64::try_from(most).ok()).ok_or_else(not_a_number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_or_refused_with_the_fix() {
        let bytes = |text: &str| {
            let limits = VolumeLimits { iops: None, throughput: Some(text.to_owned()) };
            limits.max_bytes_per_second().map_err(|error| error.to_string())
        };
        assert_eq!(bytes("125Mi"), Ok(Some(125 << 20)));
        assert_eq!(bytes("1Mi"), Ok(Some(1 << 20)));
        assert_eq!(bytes("1Ti"), Ok(Some(1 << 40)));
        for bad in ["0", "1048575", "1023Ki", "-5Mi", "2Ti", "fast", "1.5Mi", "125MB/s", ""] {
            let refused = bytes(bad).expect_err(bad);
            assert!(
                refused.contains("spec.limits.throughput") && refused.contains("such as 125Mi"),
                "{refused}"
            );
        }
        assert_eq!(VolumeLimits::parse_iops("3000"), Ok(3000));
        for bad in ["0", "9", "-3", "10000001", "many", "3k", "", "3000.5", "99999999999999999999"] {
            let refused = VolumeLimits::parse_iops(bad).expect_err(bad).to_string();
            assert!(refused.contains("spec.limits.iops") && refused.contains("such as 3000"), "{refused}");
        }
        let none = VolumeLimits::default();
        assert_eq!((none.max_iops(), none.max_bytes_per_second()), (Ok(None), Ok(None)));
    }
}
