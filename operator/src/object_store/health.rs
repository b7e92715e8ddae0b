//! The status of an ObjectStore: a pure function of the last probe.

use std::time::Duration;

use holdfast_crds::{
    Condition, ConditionBuilder, ConditionStatus, ObjectStoreStatus, READY, Time, find_condition,
};
use holdfast_s3::ProbeFailure;

use super::connect::ConnectError;
use crate::requeue::Requeue;

/// Time between two probes of a Ready store.
pub(crate) const PROBE_INTERVAL: Duration = Duration::from_secs(60);

/// Age at which the recorded probe time is renewed even without another change.
const MAX_RECORDED_AGE_SECONDS: i64 = 600;

/// Reasons why a store is not fit for volumes.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    /// No connection could be made.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The store fails a requirement.
    #[error("spec.{0}")]
    Probe(ProbeFailure),
}

impl From<ProbeFailure> for Unfit {
    fn from(failure: ProbeFailure) -> Self {
        Self::Probe(failure)
    }
}

impl Unfit {
    /// Returns the retry policy for the failure.
    pub(crate) fn retry(&self) -> Requeue {
        match self {
            Self::Connect(error) => error.retry(),
            // Buckets and policies are often repaired on the store's side, which causes no event here.
            Self::Probe(_) => Requeue::Later,
        }
    }

    /// Returns the message for the user. It does not vary while the fault is the same, because every new
    /// message is a write that triggers others. A server's own text contains request ids and is left out; the
    /// text of a lost connection does not, and helps with the diagnosis.
    fn message(&self) -> String {
        match self {
            Self::Probe(failure @ (ProbeFailure::Unreachable(_) | ProbeFailure::Untrusted(_))) => {
                format!("{self} ({})", root(failure))
            }
            Self::Probe(_) | Self::Connect(_) => self.to_string(),
        }
    }

    /// Returns true if the failure says nothing about the server.
    const fn is_passing(&self) -> bool {
        match self {
            Self::Connect(_) => false,
            Self::Probe(failure) => failure.is_passing(),
        }
    }

    fn reason(&self) -> &'static str {
        match self {
            Self::Connect(error) => error.reason(),
            Self::Probe(failure) => failure.reason(),
        }
    }
}

/// Returns the text of the innermost source.
fn root(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

/// Result of a probe.
pub(crate) type Health = Result<(), Unfit>;

/// Returns the status that reports `health`. A missing fence (two creates of one key succeeded) stays
/// reported while the server does not answer: otherwise nodes would attach volumes again.
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
        Err(unfit) => match unfenced(previous, generation).filter(|_| unfit.is_passing()) {
            Some(said) => (ConditionStatus::False, said.reason.as_str(), said.message.clone()),
            None => (ConditionStatus::False, unfit.reason(), unfit.message()),
        },
    };
    ObjectStoreStatus {
        observed_generation: generation,
        last_probe_time: Some(now.clone()),
        credentials_version: None,
        // Reported by another field manager.
        sweep: None,
        conditions: vec![
            ConditionBuilder { previous, observed_generation: generation, now }
                .build(READY, status, reason, message),
        ],
    }
}

/// Returns the condition in which a probe of the same spec found the server without a fence.
fn unfenced(previous: &[Condition], generation: Option<i64>) -> Option<&Condition> {
    find_condition(previous, READY).filter(|said| {
        said.observed_generation == generation && ProbeFailure::UNFENCED.contains(&said.reason.as_str())
    })
}

/// Returns true if `next` is worth a write: a visible change, or an old recorded probe time. Every write
/// triggers a look by all volumes of the store.
pub(crate) fn worth_writing(previous: Option<&ObjectStoreStatus>, next: &ObjectStoreStatus) -> bool {
    let Some(previous) = previous else { return true };
    let aged = match (&previous.last_probe_time, &next.last_probe_time) {
        (Some(old), Some(new)) => new.0.as_second() - old.0.as_second() >= MAX_RECORDED_AGE_SECONDS,
        (None, _) | (_, None) => true,
    };
    aged || previous.observed_generation != next.observed_generation
        || previous.credentials_version != next.credentials_version
        || find_condition(&previous.conditions, READY) != find_condition(&next.conditions, READY)
}

#[cfg(test)]
mod tests {
    use holdfast_cluster::store_config::StoreConfigError;
    use holdfast_objects::StoreError;

    use super::*;

    fn time(text: &str) -> Time {
        Time(text.parse().expect("a timestamp"))
    }

    fn away(cause: &str) -> Health {
        Err(ProbeFailure::Unreachable(StoreError::Unavailable(cause.into())).into())
    }

    #[test]
    fn faults_name_the_field_and_the_fix() {
        let now = time("2026-01-01T00:00:00Z");
        for (health, reason, field) in [
            (away("connection refused"), "Unreachable", "spec.endpoint: "),
            (Err(ProbeFailure::CreateOnceIgnored.into()), "CreateOnceIgnored", "spec.bucket: "),
            (Err(ProbeFailure::CreateOnceNotAtomic.into()), "CreateOnceNotAtomic", "spec.endpoint: "),
            (
                Err(ConnectError::from(StoreConfigError::TwoCaBundles).into()),
                "InvalidSpec",
                "spec.caBundleRef: ",
            ),
        ] {
            let status = status(&[], Some(2), &health, &now);
            let ready = find_condition(&status.conditions, READY).expect("ready");
            assert_eq!((ready.status.as_str(), ready.reason.as_str()), ("False", reason));
            assert!(ready.message.starts_with(field), "{}", ready.message);
            assert_eq!((status.observed_generation, ready.observed_generation), (Some(2), Some(2)));
        }
    }

    /// Regression: an outage removed the verdict, and nodes attached volumes through an unfenced server.
    #[test]
    fn an_outage_does_not_hide_that_a_fence_is_missing() {
        let now = time("2026-01-01T00:00:00Z");
        let unfenced = Err(ProbeFailure::CreateOnceNotAtomic.into());
        let first = status(&[], Some(2), &unfenced, &now);
        let reason = |generation, health: &Health| {
            let next = status(&first.conditions, Some(generation), health, &now);
            find_condition(&next.conditions, READY).expect("ready").reason.clone()
        };
        assert_eq!(reason(2, &away("connection refused")), "CreateOnceNotAtomic");
        assert_eq!(reason(3, &away("connection refused")), "Unreachable", "another spec");
        assert_eq!(reason(2, &Ok(())), "Probed");
    }

    #[test]
    fn a_finding_is_written_once_and_its_time_sometimes() {
        let first = status(&[], Some(1), &Ok(()), &time("2026-01-01T00:00:00Z"));
        assert!(worth_writing(None, &first));
        let soon = status(&first.conditions, Some(1), &Ok(()), &time("2026-01-01T00:01:00Z"));
        assert!(!worth_writing(Some(&first), &soon));
        let rotated = ObjectStoreStatus { credentials_version: Some("uid/2".to_owned()), ..soon.clone() };
        assert!(worth_writing(Some(&first), &rotated), "node daemons wait for this");
        let late = status(&first.conditions, Some(1), &Ok(()), &time("2026-01-01T00:10:00Z"));
        assert!(worth_writing(Some(&first), &late));
        let away = status(&first.conditions, Some(1), &away("x"), &time("2026-01-01T00:01:00Z"));
        assert!(worth_writing(Some(&first), &away));
        let newer = status(&first.conditions, Some(2), &Ok(()), &time("2026-01-01T00:01:00Z"));
        assert!(worth_writing(Some(&first), &newer));
    }
}
