//! Retries of a read from the object store.
//!
//! Does not own: the indexes (`node/log`), fetching frames (`fetches.rs`), the storage of blocks.
//! On failure: a request is retried while the store is unreachable, rejects it, or sends an invalid response.
//! Only two findings fail a read: the store reports that the object does not exist, or the bytes are not
//! those that were written. A finding is final when a second read some seconds later confirms it. A failed
//! read makes a file system read-only, whereas bytes changed by a network, or a failover in progress, are
//! transient.

use std::error::Error;
use std::io;
use std::time::Duration;

use holdfast_format::safeguard::{Safeguard::ReadOnlyWanted, safeguard};
use holdfast_log::ObjectError;
use holdfast_types::{Mask, SectorRange};

use crate::Environment;
use crate::backoff::JobBackoff;
use crate::line_limit::{LineLimit, Rest};

/// Delay after a finding before the object is read again to confirm it.
const CONFIRM_AFTER: Duration = Duration::from_secs(3);

/// Reason why a cold read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ColdError {
    /// An object could not be read.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The fetched block could not be stored.
    #[error("the slab could not be written")]
    Slab(#[from] io::Error),
}

impl ColdError {
    /// Returns the response that fails the read once it is confirmed; `None` for responses that a retry may
    /// change.
    fn finding(&self) -> Option<String> {
        match self {
            Self::Object(error) => error.finding(),
            Self::Slab(_) => None,
        }
    }
}

/// Log lines of a volume's cold reads. Their span names the volume.
#[derive(Debug, Default)]
pub struct ColdLines {
    waits: LineLimit,
    unconfirmed: LineLimit,
}

impl ColdLines {
    /// Logs the number of suppressed lines.
    pub fn write(&self, rest: Rest) {
        if let Some(times) = self.waits.take_suppressed(rest) {
            tracing::warn!(times, "cold reads waited since the last line about them");
        }
        if let Some(times) = self.unconfirmed.take_suppressed(rest) {
            tracing::warn!(
                times,
                "cold reads failed and were retried to confirm it, since the last line about them"
            );
        }
    }
}

/// Retries a read of the whole block of `range` until the read succeeds or a finding is confirmed. After the
/// first finding, reads only `range`, which may not need the damaged part. `read` receives the sectors to
/// read.
///
/// # Errors
/// [`ColdError`]: a confirmed finding.
pub async fn retry_while_unavailable<V, F: Future<Output = Result<V, ColdError>>>(
    time: &impl Environment,
    lines: &ColdLines,
    range: SectorRange,
    read: impl Fn(Mask) -> F,
) -> Result<V, ColdError> {
    let block = range.start.block().0;
    let mut backoff = JobBackoff::of_reads();
    let mut wanted = Mask::FULL;
    let mut last_finding: Option<String> = None;
    loop {
        let error = match read(wanted).await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let Some(finding) = error.finding() else {
            if let Some(held_back) = lines.waits.admit(time.now_ms()) {
                tracing::warn!(block, error = &error as &dyn Error, held_back, "cold read waits");
            }
            backoff.wait(time).await;
            continue;
        };
        if wanted != Mask::of(range) && safeguard(ReadOnlyWanted) {
            wanted = Mask::of(range);
        } else if last_finding.as_ref() == Some(&finding) {
            return Err(error);
        } else {
            if let Some(held_back) = lines.unconfirmed.admit(time.now_ms()) {
                tracing::warn!(
                    block,
                    error = &error as &dyn Error,
                    held_back,
                    "cold read failed; retrying to confirm it"
                );
            }
            last_finding = Some(finding);
            time.sleep(CONFIRM_AFTER).await;
        }
    }
}

#[cfg(test)]
mod tests;
