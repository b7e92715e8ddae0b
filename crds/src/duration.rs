//! Durations as users write them: `30s`, `1m30s`, `500ms`.

use std::time::Duration;

use crate::FieldError;

/// Parses a duration and checks that it lies within `min..=max`.
pub(crate) fn parse_duration(
    field: &'static str,
    text: &str,
    min: Duration,
    max: Duration,
) -> Result<Duration, FieldError> {
    let fix = || format!("write a duration between {min:?} and {max:?}, for example `30s`");
    let parsed: kube::core::Duration = text
        .parse()
        .map_err(|e| FieldError::new(field, format!("`{text}` is not a duration ({e})"), fix()))?;
    let duration = Duration::from(parsed);
    if parsed.is_negative() || duration < min || duration > max {
        return Err(FieldError::new(field, format!("`{text}` is out of range"), fix()));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_checked_and_named() {
        let parse = |text| {
            parse_duration("spec.maxDirtyAge", text, Duration::from_secs(1), Duration::from_secs(3600))
        };
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("1m30s"), Ok(Duration::from_secs(90)));
        for text in ["", "30", "0s", "2h", "-5s", "soon"] {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.starts_with("spec.maxDirtyAge: ") && error.contains("`30s`"), "{text}: {error}");
        }
    }
}
