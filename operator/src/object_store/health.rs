//! The status of an ObjectStore: a pure function of the last probe.

use std::time::Duration;

use holdfast_crds::{Condition, ConditionStatus, ObjectStoreStatus, Time, condition, find_condition};
use holdfast_s3::ProbeFailure;

use super::READY;
use super::connect::ConnectError;
use crate::requeue::Retry;
use crate::volume::failure::chain;

/// How often a store that is Ready is probed.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(60);

/// Age at which a recorded probe time is renewed although nothing else changed.
const MAX_RECORDED_AGE_SECONDS: i64 = 600;

/// Why a store is not fit for volumes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    /// No connection could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The store lacks something.
    #[error("spec.{0}")]
    Probe(#[from] ProbeFailure),
}

impl Unfit {
    /// When to try again.
    pub(crate) fn retry(&self) -> Retry {
        match self {
            Self::Connect(error) => error.retry(),
            // Buckets and policies are often repaired on the store's side, which nobody tells us.
            Self::Probe(_) => Retry::Later,
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Connect(error) => error.reason(),
            Self::Probe(failure) => failure.reason(),
        }
    }
}

/// What a probe found.
pub(crate) type Health = Result<(), Unfit>;

/// The status that tells of `health`.
pub(crate) fn status(
    previous: &[Condition],
    generation: Option<i64>,
    health: &Health,
    now: &Time,
) -> ObjectStoreStatus {
    let (status, reason, message) = match health {
        Ok(()) => (
            ConditionStatus::True,
            "Probed",
            "the bucket answers, can be listed and creates a key once only".to_owned(),
        ),
        Err(unfit) => (ConditionStatus::False, unfit.reason(), chain(unfit)),
    };
    ObjectStoreStatus {
        observed_generation: generation,
        last_probe_time: Some(now.clone()),
        conditions: vec![condition(previous, READY, status, reason, message, generation, now)],
    }
}

/// Whether `next` is worth a write: it tells the user something new, or the recorded probe time is getting old. (Every
/// write makes the volumes of the store look at it.)
pub(crate) fn worth_writing(previous: Option<&ObjectStoreStatus>, next: &ObjectStoreStatus) -> bool {
    let Some(previous) = previous else { return true };
    let aged = match (&previous.last_probe_time, &next.last_probe_time) {
        (Some(old), Some(new)) => new.0.as_second() - old.0.as_second() >= MAX_RECORDED_AGE_SECONDS,
        (None, _) | (_, None) => true,
    };
    aged || previous.observed_generation != next.observed_generation
        || find_condition(&previous.conditions, READY) != find_condition(&next.conditions, READY)
}
