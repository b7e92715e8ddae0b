//! Work that blocks (files, control commands), done on threads that may.

use super::error::NodeError;

/// [`run_blocking`] for what fails as the node does.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, NodeError> + Send + 'static,
) -> Result<T, NodeError> {
    run_blocking(work).await
}

/// Runs `work` on a thread that may block. Once the runtime ends, this never does: no task waits for it any
/// more.
pub(crate) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(done) => done,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_cancelled)) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::runtime::Runtime;

    use super::*;

    /// Found by a story: a daemon that was stopped while it measured its cache died of a panic.
    #[test]
    fn work_cancelled_with_the_runtime_does_not_panic() {
        let ended = Runtime::new().unwrap();
        let handle = ended.handle().clone();
        ended.shutdown_background();
        let _inside = handle.enter();
        assert!(run_blocking(|| 1).now_or_never().is_none());
    }
}
