//! Waiting for something that reports no event: asked again at short, growing intervals, with a limit.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);

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
