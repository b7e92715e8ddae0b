//! The clocks of the host.

use std::time::{SystemTime, UNIX_EPOCH};

use holdfast_types::Millis;
use rustix::time::{ClockId, clock_gettime};

/// Reads the clock that all volumes use: milliseconds since the host started, the same for every process of
/// the host. The time of day is not suitable, because it may be set back between one process and the next.
pub fn now() -> Millis {
    let since = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (since.tv_sec.unsigned_abs(), since.tv_nsec.unsigned_abs());
    seconds * 1000 + nanos / 1_000_000
}

/// Returns the time at which the volumes' clock was zero, in milliseconds since 1970, by the current time of
/// day.
pub fn unix_ms_at_zero() -> u64 {
    unix_ms().saturating_sub(now())
}

/// Returns the milliseconds since 1970 by the node's clock.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
