//! Time until which a request is worth answering.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Request;
use tonic::metadata::MetadataMap;

/// Header in which gRPC sends the time limit of a request.
const HEADER: &str = "grpc-timeout";
/// Time limit of a request without that header.
const DEFAULT: Duration = Duration::from_secs(60);
/// The answer is sent this part of the time limit before its end, and at most this much before.
const MARGIN_DIVISOR: u32 = 10;
const MAX_MARGIN: Duration = Duration::from_secs(1);

/// The time until which a request is worked on: a little before its caller stops waiting, so that the caller
/// hears what is still missing.
pub(crate) fn of<T>(request: &Request<T>) -> Instant {
    let limit = header(request.metadata()).unwrap_or(DEFAULT);
    Instant::now() + limit.saturating_sub((limit / MARGIN_DIVISOR).min(MAX_MARGIN))
}

fn header(metadata: &MetadataMap) -> Option<Duration> {
    parse(metadata.get(HEADER)?.to_str().ok()?)
}

/// Reads a time limit as gRPC writes it: digits and a unit.
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
