//! The tasks of a node that no caller waits for.
//!
//! Owns: every such task, from its beginning to its end or to the stop of the node.
//! Invariants: once [`Tasks::stop`] has returned, none of them runs, and none begins.

use parking_lot::Mutex;
use tokio::task::JoinSet;

/// The running tasks; none once they were stopped.
pub(super) struct Tasks(Mutex<Option<JoinSet<()>>>);

impl Tasks {
    pub(super) fn new() -> Self {
        Self(Mutex::new(Some(JoinSet::new())))
    }

    /// Runs a task to its end, or until the stop drops it at a point where it waits: what it has begun on a
    /// blocking thread ends by itself. After the stop the task does not begin.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut running = self.0.lock();
        let Some(running) = &mut *running else { return };
        // Those that ended leave their place.
        while running.try_join_next().is_some() {}
        running.spawn(task);
    }

    /// Stops all tasks, and waits until they have ended. Again it does nothing.
    pub(super) async fn stop(&self) {
        let running = self.0.lock().take();
        if let Some(mut running) = running {
            running.shutdown().await;
        }
    }
}
