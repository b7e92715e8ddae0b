//! Byte sizes as users write them: a whole number with an optional quantity suffix.
//!
//! Kubernetes quantities also allow fractions, exponents and milli-units. A volume's size is a whole number of sectors,
//! so the CEL rule and this parser accept the same, smaller language: `^[0-9]+(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$`.

use crate::FieldError;

/// Largest volume, in bytes (64 TiB).
pub const MAX_SIZE_BYTES: u64 = 64 << 40;

/// Bytes in a sector; every size is a multiple of it.
const SECTOR_BYTES: u64 = 4096;

const FIX: &str =
    "write a whole number of bytes with an optional suffix, a multiple of 4096, for example `10Gi`";

/// Parses the size of a volume into bytes.
pub(crate) fn parse_volume_size(field: &'static str, text: &str) -> Result<u64, FieldError> {
    let invalid = |problem: String| FieldError::new(field, problem, FIX);
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let unit = unit_bytes(suffix).ok_or_else(|| invalid(format!("`{text}` is not a size")))?;
    let number: u64 = number.parse().map_err(|e| invalid(format!("`{text}` is not a size ({e})")))?;
    let bytes = number.checked_mul(unit).filter(|bytes| *bytes <= MAX_SIZE_BYTES);
    match bytes {
        None => Err(invalid(format!("`{text}` is above the limit of 64Ti"))),
        Some(0) => Err(invalid("a volume cannot be empty".to_owned())),
        Some(bytes) if bytes % SECTOR_BYTES != 0 => {
            Err(invalid(format!("`{text}` ({bytes} bytes) is not a multiple of 4096")))
        }
        Some(bytes) => Ok(bytes),
    }
}

fn unit_bytes(suffix: &str) -> Option<u64> {
    Some(match suffix {
        "" => 1,
        "k" => 1_000,
        "M" => 1_000_000,
        "G" => 1_000_000_000,
        "T" => 1_000_000_000_000,
        "P" => 1_000_000_000_000_000,
        "Ki" => 1 << 10,
        "Mi" => 1 << 20,
        "Gi" => 1 << 30,
        "Ti" => 1 << 40,
        "Pi" => 1 << 50,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_to_bytes() {
        for (text, bytes) in [
            ("4096", 4096),
            ("8Ki", 8192),
            ("1Gi", 1 << 30),
            ("64Gi", 64 << 30),
            ("512k", 512_000),
            ("64Ti", MAX_SIZE_BYTES),
            ("4096M", 4_096_000_000),
        ] {
            assert_eq!(parse_volume_size("spec.size", text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn bad_sizes_name_the_field_and_the_fix() {
        for text in [
            "",
            "0",
            "1",
            "4097",
            "1.5Gi",
            "-1Gi",
            "1e9",
            "1gi",
            "Gi",
            "65Ti",
            "99999999999999999999",
            "1 Gi",
        ] {
            let error = parse_volume_size("spec.size", text).expect_err(text).to_string();
            assert!(error.starts_with("spec.size: ") && error.ends_with("`10Gi`"), "{text}: {error}");
        }
    }
}
