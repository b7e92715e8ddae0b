//! Space for spill files on the state disk, which must fit their maximum use.
//!
//! Space held by other volumes' cache does not count as available. Its clean data is evicted if the disk
//! fills up, but nothing bounds the time until the rest is uploaded.

use std::path::Path;

use holdfast_crds::ByteSize;
use holdfast_types::VolumeId;

use crate::node::NodeError;
use crate::node::error::file;
use crate::node::local::file::allocated_bytes;
use crate::node::store::block_cache::slab_path;

/// Reciprocal of the fraction of the disk that is reserved for other files of the daemon, as by the cache.
const RESERVE: u64 = 64;

/// Fails if the state disk has no space for a spill file of `max_bytes`, in addition to a slab of
/// `slab_bytes` and the `promised_bytes` of other spill files.
///
/// # Errors
/// [`NodeError::MemorySpillRoom`]; an error of the filesystem.
pub(super) fn check_spill_room(
    state_dir: &Path,
    volume: &VolumeId,
    max_bytes: u64,
    slab_bytes: u64,
    promised_bytes: u64,
) -> Result<(), NodeError> {
    let left_bytes = spill_room_bytes(state_dir, slab_bytes, promised_bytes)?;
    if max_bytes <= left_bytes {
        return Ok(());
    }
    Err(NodeError::MemorySpillRoom {
        volume: volume.clone(),
        most: ByteSize(max_bytes).rounded(),
        state_dir: state_dir.to_owned(),
        left: ByteSize(left_bytes).rounded(),
    })
}

/// Returns the bytes available to other spill files, in addition to those counted by [`check_spill_room`].
///
/// # Errors
/// An error of the filesystem.
pub(super) fn spill_room_bytes(
    state_dir: &Path,
    slab_bytes: u64,
    promised_bytes: u64,
) -> Result<u64, NodeError> {
    let found = rustix::fs::statvfs(state_dir).map_err(|errno| file(state_dir, "measured")(errno.into()))?;
    let [capacity_bytes, free_bytes] =
        [found.f_blocks, found.f_bavail].map(|blocks| blocks.saturating_mul(found.f_frsize));
    let slab_bytes = slab_bytes.saturating_sub(allocated_bytes(&slab_path(state_dir))?);
    Ok(room(capacity_bytes, free_bytes, slab_bytes.saturating_add(promised_bytes)))
}

/// Returns the bytes available to another spill file, with `unfilled_bytes` promised but unused.
const fn room(capacity_bytes: u64, free_bytes: u64, unfilled_bytes: u64) -> u64 {
    free_bytes.saturating_sub(capacity_bytes / RESERVE).saturating_sub(unfilled_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_and_what_is_promised_stay_free() {
        assert_eq!(room(6400, 400, 0), 300);
        assert_eq!(room(6400, 400, 250), 50);
        assert_eq!(room(6400, 400, 301), 0);
        assert_eq!(room(6400, 99, 0), 0);
    }
}
