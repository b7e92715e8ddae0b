//! Operations on volumes: one at a time for each, and none is interrupted.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};
use tonic::Status;

/// Volumes that are being worked on.
#[derive(Clone, Debug, Default)]
pub(super) struct Operations(Arc<Mutex<HashSet<String>>>);

/// The right to work on one volume, until it is dropped.
#[derive(Debug)]
struct Turn {
    operations: Operations,
    volume: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.operations.0.lock().remove(&self.volume);
    }
}

impl Operations {
    /// Works on a volume until `until`. Work that takes longer continues and keeps the volume for itself: a
    /// program that waits for a device cannot be interrupted, and another must not begin beside it.
    ///
    /// # Errors
    /// `ABORTED`: an operation still runs, this or an earlier one. Else the error of the work.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        volume: &str,
        until: Instant,
        work: impl Future<Output = Result<T, Status>> + Send + 'static,
    ) -> Result<T, Status> {
        let turn = self.begin(volume)?;
        let running = tokio::spawn(async move {
            let outcome = work.await;
            drop(turn);
            outcome
        });
        match timeout_at(until, running).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(panicked)) => Err(Status::internal(format!("the operation ended by a bug: {panicked}"))),
            Err(_elapsed) => Err(still_runs(volume)),
        }
    }

    fn begin(&self, volume: &str) -> Result<Turn, Status> {
        if self.0.lock().insert(volume.to_owned()) {
            Ok(Turn { operations: self.clone(), volume: volume.to_owned() })
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
        let operations = Operations::default();
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
}
