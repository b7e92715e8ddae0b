//! Runs blocking work (files, control commands) on threads that may block.
//!
//! Owns: the number of these calls of each runtime. A started call continues even if its caller is dropped,
//! so an exiting daemon waits for it.

use std::collections::HashMap;
use std::sync::LazyLock;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;

use super::error::NodeError;

/// Started calls that have not ended.
static CALLS: LazyLock<Mutex<HashMap<Id, watch::Sender<usize>>>> = LazyLock::new(Mutex::default);

/// Counts as one call, or as work that may start some, until it is dropped.
pub(super) struct BlockingCall(watch::Sender<usize>);

impl BlockingCall {
    pub(super) fn begin() -> Self {
        let calls = calls();
        calls.send_modify(|running| *running += 1);
        Self(calls)
    }
}

impl Drop for BlockingCall {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

/// Returns the call counter of this runtime.
fn calls() -> watch::Sender<usize> {
    let mut calls = CALLS.lock();
    calls.entry(Handle::current().id()).or_insert_with(|| watch::Sender::new(0)).clone()
}

/// Waits until no call of this runtime is running, for at most `within`. Returns true if none remains.
pub(super) async fn calls_end(within: Duration) -> bool {
    let mut running = calls().subscribe();
    let ended = running.wait_for(|running| *running == 0);
    tokio::time::timeout(within, ended).await.is_ok()
}

/// Runs [`run_blocking`] for work that fails with a [`NodeError`].
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    run_blocking(work).await
}

/// Runs `work` on a thread that may block. It counts as a call until it has ended, or until this is dropped
/// before the start. After the runtime's shutdown, this never completes: no task waits for it any more.
pub(crate) fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> + Send {
    let call = BlockingCall::begin();
    async move {
        let work = move || {
            let _call = call;
            work()
        };
        match tokio::task::spawn_blocking(work).await.map_err(tokio::task::JoinError::try_into_panic) {
            Ok(done) => done,
            Err(Ok(panic)) => std::panic::resume_unwind(panic),
            Err(Err(_cancelled)) => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::runtime::Runtime;

    use super::*;

    /// Regression, found in a simulated story: a daemon stopped during a measurement of its cache panicked.
    #[test]
    fn work_cancelled_with_the_runtime_does_not_panic() {
        let ended = Runtime::new().unwrap();
        let handle = ended.handle().clone();
        ended.shutdown_background();
        let _inside = handle.enter();
        assert!(run_blocking(|| 1).now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_call_whose_caller_is_gone_is_waited_for() {
        let at_once = Duration::from_millis(20);
        assert!(calls_end(at_once).await, "none has begun");
        let (release, released) = std::sync::mpsc::channel::<()>();
        let call = tokio::spawn(run_blocking(move || released.recv().unwrap_or_default()));
        while calls_end(Duration::ZERO).await {
            tokio::task::yield_now().await;
        }
        call.abort();
        assert!(call.await.is_err_and(|error| error.is_cancelled()));
        assert!(!calls_end(at_once).await, "it runs");
        drop(release);
        assert!(calls_end(Duration::from_secs(30)).await);
    }
}
