//! Operations of the data plane that Kubernetes asked for: one at a time for each volume, and how the last one ended.
//!
//! Owns: the tasks that attach and detach; the time until a failed one may be tried again.
//! Invariants: an operation that was begun runs to its end; its end is announced, so that nobody has to poll for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::channel::mpsc::UnboundedSender;
use holdfast_crds::Volume;
use holdfast_types::VolumeId;
use kube::runtime::reflector::ObjectRef;

use super::retry::OperationFailure;

/// What is done with a volume now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    /// It is being attached.
    Attaching,
    /// It is being detached.
    Detaching,
    /// Its files are being cleared away: another node holds it.
    Clearing,
}

/// How the last operation on a volume ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was attached.
    Attached,
    /// It was detached, after its final commit.
    Detached,
    /// It was let go without a final commit, because another writer had taken it; what was not uploaded is kept.
    SetAside,
    /// What this node had of a volume that another holds is cleared away.
    Cleared,
    /// It failed.
    Failed(OperationFailure),
}

/// What is known of one volume's operations.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    /// What is done now.
    pub(crate) doing: Option<Doing>,
    /// How the last one ended.
    pub(crate) last: Option<Outcome>,
    /// When the status was last written.
    pub(crate) reported: Option<Instant>,
    failures: u32,
    not_before: Option<Instant>,
}

impl Entry {
    /// Time until the next operation may begin.
    pub(crate) fn wait(&self, now: Instant) -> Duration {
        self.not_before.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    fn end(&mut self, ended: Result<Outcome, OperationFailure>, now: Instant, random: f64) {
        self.doing = None;
        match ended {
            Ok(outcome) => {
                self.failures = 0;
                self.not_before = None;
                self.last = Some(outcome);
            }
            Err(failure) => {
                self.failures = self.failures.saturating_add(1);
                self.not_before = Some(now + failure.retry.delay(self.failures, random));
                self.last = Some(Outcome::Failed(failure));
            }
        }
    }
}

/// The operations of all volumes. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Operations {
    entries: Arc<Mutex<HashMap<VolumeId, Entry>>>,
    ended: UnboundedSender<ObjectRef<Volume>>,
}

impl Operations {
    /// None yet; the end of each is sent to `ended`.
    pub(crate) fn new(ended: UnboundedSender<ObjectRef<Volume>>) -> Self {
        Self { entries: Arc::default(), ended }
    }

    /// What is known of a volume's operations.
    pub(crate) fn of(&self, volume: &VolumeId) -> Entry {
        self.entries().get(volume).cloned().unwrap_or_default()
    }

    /// Notes that the status was written now.
    pub(crate) fn reported(&self, volume: &VolumeId) {
        self.entries().entry(volume.clone()).or_default().reported = Some(Instant::now());
    }

    /// Forgets a volume whose object is gone.
    pub(crate) fn forget(&self, volume: &VolumeId) {
        self.entries().remove(volume);
    }

    /// Begins an operation, unless one is under way.
    pub(crate) fn begin(
        &self,
        volume: VolumeId,
        object: ObjectRef<Volume>,
        doing: Doing,
        operation: impl Future<Output = Result<Outcome, OperationFailure>> + Send + 'static,
    ) {
        {
            let mut entries = self.entries();
            let entry = entries.entry(volume.clone()).or_default();
            if entry.doing.is_some() {
                return;
            }
            entry.doing = Some(doing);
        }
        let operations = self.clone();
        tokio::spawn(async move {
            let mut guard = EndGuard { operations, volume, object, ended: None };
            let ended = operation.await;
            if let Err(failure) = &ended {
                tracing::warn!(volume = %guard.volume, ?doing, reason = failure.reason, "{}", failure.message);
            }
            guard.ended = Some(ended);
        });
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<VolumeId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes the end of an operation, also of one that panicked.
struct EndGuard {
    operations: Operations,
    volume: VolumeId,
    object: ObjectRef<Volume>,
    ended: Option<Result<Outcome, OperationFailure>>,
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        let ended = self.ended.take().unwrap_or_else(|| {
            Err(OperationFailure {
                reason: "NodeFailed",
                message: "the operation ended by a bug of the daemon; its log says more".to_owned(),
                retry: super::retry::Retry::Rarely,
            })
        });
        let mut entries = self.operations.entries();
        entries.entry(self.volume.clone()).or_default().end(ended, Instant::now(), fastrand::f64());
        drop(entries);
        // Nobody listens any more while the daemon stops.
        let _stopped = self.operations.ended.unbounded_send(self.object.clone());
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use futures::channel::mpsc;

    use super::*;
    use crate::kubernetes::retry::Retry;

    #[tokio::test]
    async fn the_end_of_an_operation_is_announced_even_if_it_panics() {
        let (sender, mut ended) = mpsc::unbounded();
        let operations = Operations::new(sender);
        let volume: VolumeId = "v".parse().unwrap();
        operations.begin(volume.clone(), ObjectRef::new("v"), Doing::Attaching, async { panic!("planted") });
        assert_eq!(ended.next().await, Some(ObjectRef::new("v")));
        let entry = operations.of(&volume);
        assert_eq!(entry.doing, None);
        assert!(matches!(entry.last, Some(Outcome::Failed(_))));
        assert!(entry.wait(Instant::now()) > Duration::ZERO);

        operations
            .begin(volume.clone(), ObjectRef::new("v"), Doing::Attaching, async { Ok(Outcome::Attached) });
        assert_eq!(ended.next().await, Some(ObjectRef::new("v")));
        let entry = operations.of(&volume);
        assert_eq!(
            (entry.last.clone(), entry.wait(Instant::now())),
            (Some(Outcome::Attached), Duration::ZERO)
        );
    }

    #[tokio::test]
    async fn one_operation_at_a_time() {
        let (sender, mut ended) = mpsc::unbounded();
        let operations = Operations::new(sender);
        let volume: VolumeId = "v".parse().unwrap();
        let (finish, finished) = tokio::sync::oneshot::channel::<()>();
        operations.begin(volume.clone(), ObjectRef::new("v"), Doing::Detaching, async {
            finished.await.unwrap();
            Ok(Outcome::Detached)
        });
        operations
            .begin(volume.clone(), ObjectRef::new("v"), Doing::Attaching, async { panic!("must not run") });
        assert_eq!(operations.of(&volume).doing, Some(Doing::Detaching));
        finish.send(()).unwrap();
        ended.next().await;
        assert_eq!(operations.of(&volume).last, Some(Outcome::Detached));
    }

    #[test]
    fn waits_grow_and_end_with_a_success() {
        let mut entry = Entry::default();
        let now = Instant::now();
        let failure = OperationFailure { reason: "Busy", message: String::new(), retry: Retry::Later };
        entry.end(Err(failure.clone()), now, 0.5);
        let first = entry.wait(now);
        entry.end(Err(failure), now, 0.5);
        assert!(entry.wait(now) > first);
        entry.end(Ok(Outcome::Attached), now, 0.5);
        assert_eq!(entry.wait(now), Duration::ZERO);
    }
}
