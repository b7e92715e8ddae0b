//! Space for memory volumes in the run directory, which must fit their maximum use.
//!
//! A full tmpfs fails their writes, and blocks the live maps of other volumes and other programs.

use std::path::Path;

use holdfast_crds::ByteSize;
use holdfast_types::VolumeId;
use rustix::fs::StatVfs;

use crate::node::NodeError;
use crate::node::error::file;

/// Reciprocal of the fraction of free space that is reserved for live maps and other programs.
const RESERVE: u64 = 4;
/// Granularity of sizes in the message.
const SHOWN_BYTES: u64 = 1 << 20;

/// Fails if the run directory has no space for a volume of at most `max_bytes`, in addition to the
/// `promised_bytes` of other volumes.
///
/// # Errors
/// [`NodeError::MemoryRoom`]; an error of the filesystem.
pub(super) fn check_room(
    run_dir: &Path,
    volume: &VolumeId,
    max_bytes: u64,
    promised_bytes: u64,
) -> Result<(), NodeError> {
    let found = rustix::fs::statvfs(run_dir).map_err(|errno| file(run_dir, "measured")(errno.into()))?;
    let Some(left_bytes) = left(&found, promised_bytes) else { return Ok(()) };
    if max_bytes <= left_bytes {
        return Ok(());
    }
    Err(NodeError::MemoryRoom {
        volume: volume.clone(),
        most: ByteSize(max_bytes.next_multiple_of(SHOWN_BYTES)),
        run_dir: run_dir.to_owned(),
        left: ByteSize(left_bytes / SHOWN_BYTES * SHOWN_BYTES),
    })
}

/// Returns the bytes available to other memory volumes, in addition to `promised_bytes`; `None` if the
/// filesystem has no limit, or does not respond.
pub(super) fn room_bytes(run_dir: &Path, promised_bytes: u64) -> Option<u64> {
    left(&rustix::fs::statvfs(run_dir).ok()?, promised_bytes)
}

fn left(found: &StatVfs, promised_bytes: u64) -> Option<u64> {
    // A tmpfs mounted without a limit reports a size of 0.
    (found.f_blocks > 0).then(|| room(found.f_bavail.saturating_mul(found.f_frsize), promised_bytes))
}

/// Returns the bytes available to another memory volume.
const fn room(free_bytes: u64, promised_bytes: u64) -> u64 {
    (free_bytes - free_bytes / RESERVE).saturating_sub(promised_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_and_what_is_promised_stay() {
        assert_eq!(room(400, 0), 300);
        assert_eq!(room(400, 250), 50);
        assert_eq!(room(400, 301), 0);
    }
}
