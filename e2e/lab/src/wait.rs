//! Polling for conditions without an event: at short, growing intervals, with a limit.

use std::pin::pin;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::runtime::Builder;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// Waits until a user or another process requests an exit: SIGINT, as sent by Ctrl-C, or SIGTERM. Calls
/// `work` at this interval in the meantime; it should be short, because it delays the exit.
///
/// # Errors
/// If the signals cannot be awaited.
pub fn wait_exit_signal(every: Duration, mut work: impl FnMut()) -> Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("await SIGTERM")?;
        let mut interrupted = pin!(ctrl_c());
        loop {
            tokio::select! {
                interrupted = &mut interrupted => return interrupted.context("await SIGINT"),
                _ = terminate.recv() => return Ok(()),
                () = sleep(every) => work(),
            }
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
        pause = (pause * 2).min(MAX_PAUSE);
    }
}
