//! Operations on volumes: one at a time per volume, never interrupted.

use std::collections::HashSet;
use std::sync::Arc;

use holdfast_service::tasks::{Tasks, Unfinished};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

/// Volumes with an operation in progress.
type Busy = Arc<Mutex<HashSet<String>>>;

/// The operations on volumes.
#[derive(Debug)]
pub(super) struct VolumeOperations {
    busy: Busy,
    tasks: Tasks,
}

/// The exclusive right to work on one volume, until it is dropped.
#[derive(Debug)]
struct VolumeGuard {
    busy: Busy,
    volume: String,
}

impl Drop for VolumeGuard {
    fn drop(&mut self) {
        self.busy.lock().remove(&self.volume);
    }
}

impl VolumeOperations {
    /// Starts without operations.
    pub(super) fn new() -> Self {
        Self { busy: Busy::default(), tasks: Tasks::new() }
    }

    /// Works on a volume until `until`. Longer work continues and keeps the volume locked: a program that
    /// waits for a device cannot be interrupted, and no other may run concurrently.
    ///
    /// # Errors
    /// `ABORTED`: this or an earlier operation still runs. Otherwise the error of the work.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        volume: &str,
        until: Instant,
        work: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = self.begin(volume)?;
        let running = self.tasks.run(async move {
            let outcome = work.await;
            drop(turn);
            outcome
        });
        match timeout_at(until, running).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(Unfinished::Panicked)) => {
                Err(Status::internal("a bug of the driver ended the operation; the log has the panic"))
            }
            Ok(Err(Unfinished::Stopped)) => {
                Err(Status::unavailable("the driver stops, and the operation did not end; ask again"))
            }
            Err(_elapsed) => Err(still_runs(volume)),
        }
    }

    /// Cancels all operations at their await points and prevents new ones; does not wait for programs.
    pub(super) async fn stop(&self) {
        self.tasks.stop().await;
    }

    fn begin(&self, volume: &str) -> Result<VolumeGuard, Status> {
        if self.busy.lock().insert(volume.to_owned()) {
            Ok(VolumeGuard { busy: Arc::clone(&self.busy), volume: volume.to_owned() })
        } else {
            Err(still_runs(volume))
        }
    }
}

fn still_runs(volume: &str) -> Status {
    Status::aborted(format!("an operation on volume {volume} still runs; ask again"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tonic::Code;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_operation_that_hangs_keeps_its_volume_and_no_other() {
        let operations = VolumeOperations::new();
        let soon = || Instant::now() + Duration::from_secs(1);
        let (end, ended) = oneshot::channel::<()>();
        let hung = operations.run("a", soon(), async {
            ended.await.ok();
            Ok(())
        });
        assert_eq!(hung.await.expect_err("it hangs").code(), Code::Aborted);
        let again = operations.run("a", soon(), async { Ok(()) });
        assert_eq!(again.await.expect_err("it still hangs").code(), Code::Aborted);
        operations.run("b", soon(), async { Ok(()) }).await.expect("another volume");
        end.send(()).expect("the operation waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
        operations.run("a", soon(), async { Ok(()) }).await.expect("it has ended");
    }

    /// Regression: operations ran until the runtime ended.
    #[tokio::test]
    async fn operations_end_with_their_owner() {
        let (operations, held) = (VolumeOperations::new(), Arc::new(()));
        let until = Instant::now() + Duration::from_secs(60);
        let hangs = {
            let held = held.clone();
            operations.run("a", until, async move {
                let _held = held;
                std::future::pending::<Result<(), Status>>().await
            })
        };
        let stops = async {
            tokio::task::yield_now().await;
            operations.stop().await;
        };
        let (ended, ()) = tokio::join!(hangs, stops);
        assert_eq!(ended.expect_err("it did not end").code(), Code::Unavailable);
        assert_eq!(Arc::strong_count(&held), 1);
        let late = operations.run("a", until, async { Ok(()) }).await;
        assert_eq!(late.expect_err("none begins").code(), Code::Unavailable);
    }
}
