//! Data plane operations requested by Kubernetes: one at a time for each volume, and the outcome of the last
//! one.
//!
//! Owns: the progress of each; the time until a failed one may be retried. The tasks belong to the daemon's
//! Kubernetes side as a whole.
//! Invariants: a started operation runs to completion, or until the daemon stops; its end is announced, so
//! that no caller needs to poll.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use holdfast_crds::Volume;
use holdfast_engine::settings::Durability;
use holdfast_serve::IoLimits;
use holdfast_service::tasks::Tasks;
use holdfast_types::VolumeId;
use kube::runtime::reflector::ObjectRef;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::mpsc;

use super::retry::{OperationFailure, Retry};
use crate::failure::Failure;
use crate::node::GrowTo;

/// Maximum of announcements that wait for the controller, which only queues the volume's name. A task that
/// finds the queue full waits; there is one task for each volume.
const MAX_ENDS: usize = 64;

/// Time until files of another node's volume that a check left are checked again: each check reads the log.
const CHECK_KEPT_AGAIN: Duration = Duration::from_secs(600);

/// Operation in progress on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It is being attached.
    Attaching,
    /// It is growing to this size and these limits.
    Growing(GrowTo),
    /// It is being detached.
    Detaching,
    /// Its files are being cleared: another node owns it.
    Clearing,
}

/// Outcome of the last operation on a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OperationOutcome {
    /// It was attached, or grew.
    Attached,
    /// It is attached, but did not grow to this size: this does not affect any later operation.
    NotGrown {
        /// The size and the limits.
        to: GrowTo,
        /// The reason.
        failure: OperationFailure,
    },
    /// It was detached, after its final commit.
    Detached,
    /// It was released without a final commit, because another writer had taken it over; data that was not
    /// uploaded is preserved.
    Preserve,
    /// This node's files of a volume owned by another node are cleared.
    Cleared,
    /// It failed.
    Failed(OperationFailure),
}

/// Settings requested by a spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedSettings {
    /// Point at which a FLUSH is complete.
    pub(crate) durability: Durability,
    /// Age at which data is uploaded.
    pub(crate) max_dirty_age: Duration,
    /// Limits of requests.
    pub(crate) limits: IoLimits,
}

/// Settings that could not be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unconfigured {
    /// The settings.
    pub(crate) wanted: WantedSettings,
    /// Text of the failure.
    pub(crate) why: String,
}

/// State of one volume's operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperationEntry {
    /// Operation in progress.
    pub(crate) doing: Option<Doing>,
    /// Outcome of the last operation.
    pub(crate) last: Option<OperationOutcome>,
    /// The last change of its settings, if it failed.
    pub(crate) unconfigured: Option<Unconfigured>,
    /// Time at which the status was last written.
    pub(crate) reported: Option<Instant>,
    /// Time at which a change of the spec that the operator has not observed was first seen.
    unanswered: Option<Instant>,
    failures: u32,
    not_before: Option<Instant>,
}

impl OperationEntry {
    /// Returns the time until the next operation may start.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    fn end(&mut self, ended: Result<OperationOutcome, OperationFailure>, now: Instant, random: f64) {
        let done = self.doing.take();
        match ended {
            Ok(outcome) => {
                self.failures = 0;
                // Files that are not outdated stay, and are not checked again at once.
                self.not_before = (outcome == OperationOutcome::Cleared).then(|| now + CHECK_KEPT_AGAIN);
                self.last = Some(outcome);
            }
            Err(failure) => {
                self.failures = self.failures.saturating_add(1);
                self.not_before = Some(now + failure.retry.delay(self.failures, random));
                self.last = Some(match done {
                    Some(Doing::Growing(to)) => OperationOutcome::NotGrown { to, failure },
                    Some(Doing::Attaching | Doing::Detaching | Doing::Clearing) | None => {
                        OperationOutcome::Failed(failure)
                    }
                });
            }
        }
    }
}

/// The operations of all volumes. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Operations {
    entries: Arc<Mutex<HashMap<VolumeId, OperationEntry>>>,
    ended: mpsc::Sender<ObjectRef<Volume>>,
    tasks: Tasks,
}

impl Operations {
    /// Creates an empty set, and the receiver of the ends of operations, which run as tasks of `tasks`.
    pub(crate) fn new(tasks: Tasks) -> (Self, mpsc::Receiver<ObjectRef<Volume>>) {
        let (ended, ends) = mpsc::channel(MAX_ENDS);
        (Self { entries: Arc::default(), ended, tasks }, ends)
    }

    /// Returns the state of a volume's operations.
    pub(crate) fn of(&self, volume: &VolumeId) -> OperationEntry {
        self.entries().get(volume).cloned().unwrap_or_default()
    }

    /// Records that the status was written now.
    pub(crate) fn reported(&self, volume: &VolumeId) {
        self.entries().entry(volume.clone()).or_default().reported = Some(Instant::now());
    }

    /// Records whether the operator has observed the newest spec. Returns the time since an unobserved one
    /// was first seen.
    pub(crate) fn observed(&self, volume: &VolumeId, is_newest: bool, now: Instant) -> Option<Duration> {
        let mut entries = self.entries();
        if is_newest {
            if let Some(entry) = entries.get_mut(volume) {
                entry.unanswered = None;
            }
            return None;
        }
        let since = *entries.entry(volume.clone()).or_default().unanswered.get_or_insert(now);
        Some(now.saturating_duration_since(since))
    }

    /// Records the outcome of the last change of the volume's settings to the `wanted` ones.
    pub(crate) fn configured(&self, volume: &VolumeId, wanted: WantedSettings, ended: Result<(), Failure>) {
        let failed = ended.err().map(|failure| Unconfigured { wanted, why: failure.message });
        let mut entries = self.entries();
        let entry = entries.entry(volume.clone()).or_default();
        if entry.unconfigured != failed
            && let Some(Unconfigured { why, .. }) = &failed
        {
            tracing::warn!(%volume, why, "the settings of the volume were not changed; the node retries the change");
        }
        entry.unconfigured = failed;
    }

    /// Forgets a volume whose object was deleted.
    pub(crate) fn forget(&self, volume: &VolumeId) {
        self.entries().remove(volume);
    }

    /// Starts an operation, unless one is in progress.
    pub(crate) fn begin(
        &self,
        volume: VolumeId,
        object: ObjectRef<Volume>,
        doing: Doing,
        operation: impl Future<Output = Result<OperationOutcome, OperationFailure>> + Send + 'static,
    ) {
        {
            let mut entries = self.entries();
            let entry = entries.entry(volume.clone()).or_default();
            if entry.doing.is_some() {
                return;
            }
            entry.doing = Some(doing);
        }
        let (entries, announce) = (Arc::clone(&self.entries), self.ended.clone());
        self.tasks.spawn(async move {
            let ended = AssertUnwindSafe(operation).catch_unwind().await.unwrap_or_else(|_panic| {
                Err(OperationFailure {
                    reason: "NodeFailed",
                    message: "a bug of the daemon ended the operation; the log of the daemon has the panic"
                        .to_owned(),
                    retry: Retry::Rarely,
                })
            });
            if let Err(failure) = &ended {
                tracing::warn!(%volume, ?doing, reason = failure.reason, "{}", failure.message);
            }
            entries.lock().entry(volume).or_default().end(ended, Instant::now(), fastrand::f64());
            // The controller is already gone while the daemon stops.
            let _stopped = announce.send(object).await;
        });
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<VolumeId, OperationEntry>> {
        self.entries.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_operation_that_panics_still_announces_its_end() {
        let (operations, mut ended) = Operations::new(Tasks::new());
        let volume: VolumeId = "v".parse().unwrap();
        operations.begin(volume.clone(), ObjectRef::new("v"), Doing::Attaching, async { panic!("planted") });
        assert_eq!(ended.recv().await, Some(ObjectRef::new("v")));
        let entry = operations.of(&volume);
        assert_eq!(entry.doing, None);
        assert!(matches!(entry.last, Some(OperationOutcome::Failed(_))));
        assert!(entry.wait(Instant::now()) > Duration::ZERO);

        operations.begin(volume.clone(), ObjectRef::new("v"), Doing::Attaching, async {
            Ok(OperationOutcome::Attached)
        });
        assert_eq!(ended.recv().await, Some(ObjectRef::new("v")));
        let entry = operations.of(&volume);
        assert_eq!(
            (entry.last.clone(), entry.wait(Instant::now())),
            (Some(OperationOutcome::Attached), Duration::ZERO)
        );
    }

    /// Found in review: files that a check left were checked again at once, without end.
    #[tokio::test]
    async fn files_that_stay_are_not_checked_again_at_once() {
        let (operations, mut ended) = Operations::new(Tasks::new());
        let volume: VolumeId = "v".parse().unwrap();
        let begin = |doing, outcome| {
            operations.begin(volume.clone(), ObjectRef::new("v"), doing, async { Ok(outcome) });
        };
        begin(Doing::Clearing, OperationOutcome::Cleared);
        ended.recv().await.unwrap();
        assert!(operations.of(&volume).wait(Instant::now()) > Duration::from_secs(60));
        begin(Doing::Attaching, OperationOutcome::Attached);
        ended.recv().await.unwrap();
        assert_eq!(operations.of(&volume).wait(Instant::now()), Duration::ZERO);
    }

    /// Regression: they continued to run while the node was being shut down.
    #[tokio::test]
    async fn operations_end_with_their_owner() {
        let tasks = Tasks::new();
        let (operations, _ends) = Operations::new(tasks.clone());
        let held = Arc::new(());
        let begin = |name: &str, held: Arc<()>| {
            operations.begin(name.parse().unwrap(), ObjectRef::new(name), Doing::Detaching, async move {
                let _held = held;
                std::future::pending().await
            });
        };
        begin("v", held.clone());
        begin("w", held.clone());
        tokio::task::yield_now().await;
        assert_eq!(Arc::strong_count(&held), 3);
        tasks.stop().await;
        begin("x", held.clone());
        assert_eq!(Arc::strong_count(&held), 1, "none runs, and none begins");
    }

    #[tokio::test]
    async fn one_operation_at_a_time() {
        let (operations, mut ended) = Operations::new(Tasks::new());
        let volume: VolumeId = "v".parse().unwrap();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        operations.begin(volume.clone(), ObjectRef::new("v"), Doing::Detaching, async {
            finished.await.unwrap();
            Ok(OperationOutcome::Detached)
        });
        operations
            .begin(volume.clone(), ObjectRef::new("v"), Doing::Attaching, async { panic!("must not run") });
        assert_eq!(operations.of(&volume).doing, Some(Doing::Detaching));
        finish.send(()).unwrap();
        ended.recv().await;
        assert_eq!(operations.of(&volume).last, Some(OperationOutcome::Detached));
    }

    /// Regression: the channel was unbounded.
    #[tokio::test]
    async fn ends_beyond_the_bound_wait_for_the_controller() {
        let (operations, mut ended) = Operations::new(Tasks::new());
        let volumes = (0..3 * MAX_ENDS).map(|number| format!("v{number}")).collect::<Vec<_>>();
        for name in &volumes {
            let (volume, object) = (name.parse().unwrap(), ObjectRef::new(name));
            operations.begin(volume, object, Doing::Attaching, async { Ok(OperationOutcome::Attached) });
        }
        let is_done =
            |name: &String| operations.of(&name.parse().unwrap()).last == Some(OperationOutcome::Attached);
        while !volumes.iter().all(is_done) {
            tokio::task::yield_now().await;
        }
        assert_eq!(ended.len(), MAX_ENDS);
        let mut seen = Vec::new();
        while seen.len() < volumes.len() {
            seen.push(ended.recv().await.unwrap().name);
        }
        assert!(volumes.iter().all(|name| seen.contains(name)));
    }

    #[tokio::test]
    async fn a_change_of_the_spec_waits_until_the_operator_observed_it() {
        let (operations, _ends) = Operations::new(Tasks::new());
        let volume: VolumeId = "v".parse().unwrap();
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(operations.observed(&volume, true, start), None);
        assert_eq!(operations.observed(&volume, false, start), Some(Duration::ZERO));
        assert_eq!(operations.observed(&volume, false, after(3)), Some(Duration::from_secs(3)));
        assert_eq!(operations.observed(&volume, true, after(4)), None);
        assert_eq!(operations.observed(&volume, false, after(5)), Some(Duration::ZERO));
    }

    #[test]
    fn waits_grow_and_end_with_a_success() {
        let mut entry = OperationEntry::default();
        let now = Instant::now();
        let failure = OperationFailure { reason: "Busy", message: String::new(), retry: Retry::Later };
        entry.end(Err(failure.clone()), now, 0.5);
        let first = entry.wait(now);
        entry.end(Err(failure), now, 0.5);
        assert!(entry.wait(now) > first);
        entry.end(Ok(OperationOutcome::Attached), now, 0.5);
        assert_eq!(entry.wait(now), Duration::ZERO);
    }
}
