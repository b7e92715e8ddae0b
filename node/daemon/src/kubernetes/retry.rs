//! The table from error kinds to condition reasons and retry intervals.

use std::time::Duration;

use holdfast_crds::{NODE_FULL, REFUSED};
use holdfast_types::{Backoff, Jitter};

use crate::failure::Failure;
use crate::node::FailureKind;

/// Reason: the volume requires ublk, but the node creates other devices.
pub(crate) const UBLK_NEEDED: &str = "UblkNeeded";
/// Reason: the log shows another node's writer as attached.
pub(crate) const HELD_ELSEWHERE: &str = "HeldElsewhere";

/// Failure of an operation on a volume, for a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OperationFailure {
    /// Reason of the condition, one CamelCase word.
    pub(crate) reason: &'static str,
    /// State, consequence and action, for a user.
    pub(crate) message: String,
    /// Its expected duration.
    pub(crate) retry: Retry,
}

/// Expected duration of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Retry {
    /// It ends without action.
    Later,
    /// A user must act.
    Rarely,
}

impl Retry {
    /// Returns the time until the next attempt, after `failures` in a row. `random` is in the range [0, 1).
    pub(crate) fn delay(self, failures: u32, random: f64) -> Duration {
        let (first, last) = match self {
            Self::Later => (Duration::from_secs(1), Duration::from_secs(15)),
            Self::Rarely => (Duration::from_secs(5), Duration::from_secs(60)),
        };
        Backoff { first, last, jitter: Jitter::Fifth }.delay(failures, random)
    }
}

impl From<Failure> for OperationFailure {
    fn from(failure: Failure) -> Self {
        let Failure { kind, message } = failure;
        let (reason, retry) = match kind {
            FailureKind::NotFound => ("NotFound", Retry::Rarely),
            FailureKind::Busy => ("Busy", Retry::Later),
            FailureKind::Full => (NODE_FULL, Retry::Later),
            FailureKind::Invalid => (REFUSED, Retry::Rarely),
            FailureKind::Fenced => ("Fenced", Retry::Rarely),
            FailureKind::HeldElsewhere => (HELD_ELSEWHERE, Retry::Later),
            FailureKind::LocalStateMissing => ("LocalStateMissing", Retry::Rarely),
            FailureKind::OtherTransport => (UBLK_NEEDED, Retry::Rarely),
            FailureKind::Corrupt => ("DataDamaged", Retry::Rarely),
            FailureKind::Unavailable => ("Unavailable", Retry::Later),
            FailureKind::Local => ("NodeFailed", Retry::Later),
        };
        Self { reason, message, retry }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_become_rarer_up_to_a_limit() {
        let delays: Vec<u64> = (1..=6).map(|n| Retry::Later.delay(n, 0.5).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 8, 15, 15]);
        assert_eq!(Retry::Rarely.delay(u32::MAX, 0.0), Duration::from_secs(48));
    }
}
