//! Deadline after which a response is useless to the caller.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Request;
use tonic::metadata::MetadataMap;

/// Header with the timeout of a gRPC request.
const HEADER: &str = "grpc-timeout";
/// Timeout of a request without that header.
const DEFAULT: Duration = Duration::from_secs(60);
/// The response is sent this fraction of the timeout before its end, and at most this much earlier.
const MARGIN_DIVISOR: u32 = 10;
const MAX_MARGIN: Duration = Duration::from_secs(1);

/// Returns the time until which a request is processed: slightly before its caller stops waiting, so that the
/// caller still gets the reason for the delay.
pub(crate) fn of<T>(request: &Request<T>) -> Instant {
    let limit = header(request.metadata()).unwrap_or(DEFAULT);
    Instant::now() + limit.saturating_sub((limit / MARGIN_DIVISOR).min(MAX_MARGIN))
}

fn header(metadata: &MetadataMap) -> Option<Duration> {
    parse(metadata.get(HEADER)?.to_str().ok()?)
}

/// Parses a timeout in gRPC's format: digits and a unit.
fn parse(text: &str) -> Option<Duration> {
    let digits = text.get(..text.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok()?;
    match text.as_bytes().last()? {
        b'H' => Some(Duration::from_secs(count.checked_mul(3600)?)),
        b'M' => Some(Duration::from_secs(count.checked_mul(60)?)),
        b'S' => Some(Duration::from_secs(count)),
        b'm' => Some(Duration::from_millis(count)),
        b'u' => Some(Duration::from_micros(count)),
        b'n' => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_time_limits_of_grpc() {
        for (text, expected) in [
            ("10S", Some(Duration::from_secs(10))),
            ("2M", Some(Duration::from_secs(120))),
            ("1H", Some(Duration::from_secs(3600))),
            ("500m", Some(Duration::from_millis(500))),
            ("7u", Some(Duration::from_micros(7))),
            ("9n", Some(Duration::from_nanos(9))),
            ("10", None),
            ("S", None),
            ("", None),
        ] {
            assert_eq!(parse(text), expected, "{text}");
        }
    }
}
