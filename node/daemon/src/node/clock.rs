//! The node's clocks.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_background::Environment;
use holdfast_types::Millis;
use rustix::time::{ClockId, clock_gettime};

use crate::node::local::file::random;

/// The clock of all volumes: milliseconds since the host started, alike for every process of the host. The
/// time of day may be set back between one process and the next.
pub(crate) fn now() -> Millis {
    let since = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (since.tv_sec.unsigned_abs(), since.tv_nsec.unsigned_abs());
    seconds * 1000 + nanos / 1_000_000
}

/// Milliseconds since 1970 at which the volumes' clock began, as far as is known now.
pub(crate) fn unix_ms_at_zero() -> u64 {
    unix_ms().saturating_sub(now())
}

/// Milliseconds since 1970 by the node's clock.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The node's clock and the kernel's randomness.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeTime;

impl Environment for NodeTime {
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    fn now_ms(&self) -> u64 {
        now()
    }

    fn unix_ms(&self) -> u64 {
        unix_ms()
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        random()
    }
}
