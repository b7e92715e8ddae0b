//! Room for spill files on the state disk: what they may come to take has to fit.
//!
//! What the cache of other volumes holds is not counted as room, though its clean data gives way when the
//! disk fills up: of the rest, nothing says when the store has it.

use std::path::Path;

use holdfast_crds::ByteSize;
use holdfast_types::VolumeId;

use crate::node::NodeError;
use crate::node::error::file;
use crate::node::local::file::allocated_bytes;
use crate::node::store::block_cache::slab_path;

/// The part of the disk that is left to other files of the daemon: one in so many. The cache leaves as much.
const RESERVE: u64 = 64;

/// Fails if the state disk has no room for a spill file of `most_bytes`, in addition to a slab of
/// `slab_bytes` and to `promised_bytes` that other spill files may still take.
///
/// # Errors
/// [`NodeError::MemorySpillRoom`]; the filesystem does not answer.
pub(super) fn check_spill_room(
    state_dir: &Path,
    volume: &VolumeId,
    most_bytes: u64,
    slab_bytes: u64,
    promised_bytes: u64,
) -> Result<(), NodeError> {
    let left_bytes = spill_room_bytes(state_dir, slab_bytes, promised_bytes)?;
    if most_bytes <= left_bytes {
        return Ok(());
    }
    Err(NodeError::MemorySpillRoom {
        volume: volume.clone(),
        most: ByteSize(most_bytes).rounded(),
        state_dir: state_dir.to_owned(),
        left: ByteSize(left_bytes).rounded(),
    })
}

/// Bytes that other spill files may take, in addition to what [`check_spill_room`] counts.
///
/// # Errors
/// The filesystem does not answer.
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

/// Bytes that another spill file may take where so many are promised and not filled.
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
