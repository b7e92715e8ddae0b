//! Room for memory volumes in the run directory: what they may come to take has to fit.
//!
//! A tmpfs that is full fails their writes, and stops the live maps of other volumes and other programs.

use std::path::Path;

use holdfast_crds::ByteSize;
use holdfast_types::VolumeId;
use rustix::fs::StatVfs;

use crate::node::NodeError;
use crate::node::error::file;

/// The part of the free space that is left to live maps and other programs: one in so many.
const RESERVE: u64 = 4;
/// Sizes in the message are rounded to this.
const SHOWN_BYTES: u64 = 1 << 20;

/// Fails if the run directory has no room for a volume that may take `most_bytes`, in addition to
/// `promised_bytes` that others may still take.
///
/// # Errors
/// [`NodeError::MemoryRoom`]; the filesystem does not answer.
pub(super) fn check_room(
    run_dir: &Path,
    volume: &VolumeId,
    most_bytes: u64,
    promised_bytes: u64,
) -> Result<(), NodeError> {
    let found = rustix::fs::statvfs(run_dir).map_err(|errno| file(run_dir, "measured")(errno.into()))?;
    let Some(left_bytes) = left(&found, promised_bytes) else { return Ok(()) };
    if most_bytes <= left_bytes {
        return Ok(());
    }
    Err(NodeError::MemoryRoom {
        volume: volume.clone(),
        most: ByteSize(most_bytes.next_multiple_of(SHOWN_BYTES)),
        run_dir: run_dir.to_owned(),
        left: ByteSize(left_bytes / SHOWN_BYTES * SHOWN_BYTES),
    })
}

/// Bytes that other memory volumes may take, in addition to `promised_bytes`; none where the filesystem has
/// no limit, or does not answer.
pub(super) fn room_bytes(run_dir: &Path, promised_bytes: u64) -> Option<u64> {
    left(&rustix::fs::statvfs(run_dir).ok()?, promised_bytes)
}

fn left(found: &StatVfs, promised_bytes: u64) -> Option<u64> {
    // A tmpfs that was mounted without a limit has a size of 0.
    (found.f_blocks > 0).then(|| room(found.f_bavail.saturating_mul(found.f_frsize), promised_bytes))
}

/// Bytes that another memory volume may take.
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
