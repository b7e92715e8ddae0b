//! Waiting for something that reports no event: asked again at short, growing intervals, with a limit.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::runtime::Builder;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

/// Waits until a person or another process asks this one to end: SIGINT, as Ctrl-C sends it, or SIGTERM.
///
/// # Errors
/// If the signals cannot be awaited.
pub fn asked_to_end() -> Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build().context("start a runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("await SIGTERM")?;
        tokio::select! {
            interrupted = ctrl_c() => interrupted.context("await SIGINT"),
            _ = terminate.recv() => Ok(()),
        }
    })
}

/// Calls `ask` until it returns a value.
///
/// # Errors
/// If `ask` fails, or has returned no value after `limit`.
pub fn until<T>(what: &str, limit: Duration, mut ask: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    let mut pause = FIRST_PAUSE;
    loop {
        if let Some(value) = ask()? {
            return Ok(value);
        }
        if started.elapsed() >= limit {
            bail!("waited {} s for {what}", limit.as_secs());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
