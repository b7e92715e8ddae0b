//! Tasks that may outlive their caller's wait, or that no caller waits for.
//!
//! Owns: every such task, from its start to its end or to the stop of its owner.
//! Invariants: once [`Tasks::stop`] has returned, no task runs or starts. Without a stop, dropping the last
//! clone ends them.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// The running tasks; none once they are stopped. Clones share them. A task that holds a clone keeps all
/// tasks alive until the stop.
#[derive(Clone, Debug)]
pub struct Tasks(Arc<Mutex<Option<JoinSet<()>>>>);

/// A task that did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfinished {
    /// Its owner was stopped.
    #[error("the process stops")]
    Stopped,
    /// It panicked, which is a bug; the log has the details.
    #[error("a bug ended it; the log has the panic")]
    Panicked,
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

impl Tasks {
    /// Starts without tasks.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(JoinSet::new()))))
    }

    /// Runs a task to its end, or until the stop drops it at an await point: its work on a blocking thread
    /// ends by itself. After a stop, the task does not start.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.0.lock();
        let Some(running) = &mut *running else { return };
        // Frees the entries of ended tasks.
        while running.try_join_next().is_some() {}
        running.spawn(task);
    }

    /// Starts a task like [`Tasks::spawn`], and returns a future of its result. The task continues if that
    /// future is dropped.
    ///
    /// # Errors
    /// [`Unfinished`]: the task has no result.
    pub fn run<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        task: F,
    ) -> impl Future<Output = Result<T, Unfinished>> + Send + use<T, F> {
        let (ends, ended) = oneshot::channel();
        self.spawn(async move {
            // The caller may have stopped waiting.
            let _waited = ends.send(task.await);
        });
        let tasks = self.clone();
        async move {
            ended.await.map_err(
                |_dropped| {
                    if tasks.is_stopped() { Unfinished::Stopped } else { Unfinished::Panicked }
                },
            )
        }
    }

    /// Stops all tasks, and waits until they have ended. Idempotent.
    pub async fn stop(&self) {
        let running = self.0.lock().take();
        if let Some(mut running) = running {
            running.shutdown().await;
        }
    }

    fn is_stopped(&self) -> bool {
        self.0.lock().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stop_ends_every_task_and_lets_none_begin() {
        let (tasks, held) = (Tasks::new(), Arc::new(()));
        for _ in 0..3 {
            let held = held.clone();
            tasks.spawn(async move {
                let _held = held;
                std::future::pending().await
            });
        }
        assert_eq!(Arc::strong_count(&held), 4);
        let (waits, late) = (tasks.clone(), held.clone());
        let waiting = tokio::spawn(async move { waits.run(std::future::pending::<()>()).await });
        tokio::task::yield_now().await;
        tasks.stop().await;
        assert_eq!(Arc::strong_count(&held), 2, "none of them holds anything");
        assert_eq!(waiting.await.expect("it does not panic"), Err(Unfinished::Stopped));
        assert_eq!(tasks.run(async move { drop(late) }).await, Err(Unfinished::Stopped));
        tasks.stop().await;
    }

    #[tokio::test]
    async fn a_task_without_a_waiter_runs_to_its_end() {
        let tasks = Tasks::new();
        let (allow, allowed) = oneshot::channel::<()>();
        let (ends, ended) = oneshot::channel();
        let work = tasks.run(async move {
            allowed.await.expect("it is sent");
            ends.send(7).expect("it is received");
        });
        drop(work);
        allow.send(()).expect("the task waits");
        assert_eq!(ended.await, Ok(7));
        assert_eq!(tasks.run(async { 8 }).await, Ok(8));
        assert_eq!(tasks.run(async { panic!("planted") }).await, Err::<(), _>(Unfinished::Panicked));
    }
}
