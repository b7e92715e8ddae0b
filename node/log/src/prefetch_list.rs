//! Prefetch lists of snapshots: read and stored by their forks.
//!
//! A list is created once, by the first fork that records its reads. It is needed while its snapshot is; a
//! sweep deletes it afterwards, also if it was stored late.

use holdfast_format::prefetch_list::PrefetchList;
use holdfast_format::record::Body;
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Seq, SnapshotName, VolumeId};

use crate::append::{CreatedOnce, create_once};
use crate::error::{LogFailure, store};
use crate::read::read_record;
use crate::snapshot::is_forgotten;

/// Returns the snapshot from which `volume` was forked: one GET. `None` if it is not a fork.
///
/// # Errors
/// [`LogFailure`].
pub async fn read_source(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
) -> Result<Option<SnapshotName>, LogFailure> {
    match read_record(objects, volume, Seq::FIRST).await?.body {
        Body::Create { source: Some(fork), .. } => Ok(Some(fork.snapshot)),
        Body::Create { source: None, .. }
        | Body::Attach { .. }
        | Body::Change { .. }
        | Body::Detach { .. }
        | Body::Delete => Ok(None),
    }
}

/// Reads the list of a snapshot: one GET. `None` if there is none yet.
///
/// # Errors
/// [`LogFailure::Store`], [`LogFailure::Damaged`], [`LogFailure::Misplaced`].
pub async fn read_prefetch_list(
    objects: &dyn ObjectStore,
    snapshot: &SnapshotName,
) -> Result<Option<PrefetchList>, LogFailure> {
    let SnapshotName { volume, seq } = snapshot;
    let key = ObjectKey::PrefetchList(volume.clone(), *seq).to_string();
    let bytes = match objects.get(&key, PrefetchList::MAX_ENCODED_BYTES as u64).await {
        Ok(bytes) => bytes,
        Err(StoreError::NotFound { .. }) => return Ok(None),
        Err(source) => return Err(store("read a prefetch list", volume)(source)),
    };
    match PrefetchList::decode(&bytes) {
        Ok(list) if list.snapshot == *snapshot => Ok(Some(list)),
        Ok(PrefetchList { snapshot: SnapshotName { volume, seq }, .. }) => {
            Err(LogFailure::Misplaced { key, volume, seq })
        }
        Err(source) => Err(LogFailure::Damaged { key, source }),
    }
}

/// Stores the list of a snapshot that has none: two GETs and a PUT. Returns true if this call stored it.
/// Nothing is stored for a forgotten snapshot, such as that of a clone, because it has no later forks. The
/// same applies if the root is gone: a list alone would look like a volume without a log.
///
/// # Errors
/// [`LogFailure::Store`]: the list may be stored.
pub async fn store_prefetch_list(objects: &dyn ObjectStore, list: &PrefetchList) -> Result<bool, LogFailure> {
    const WHAT: &str = "store a prefetch list";
    let SnapshotName { volume, seq } = &list.snapshot;
    if is_forgotten(objects, &list.snapshot).await? {
        return Ok(false);
    }
    let root = ObjectKey::Snapshot(volume.clone(), *seq).to_string();
    match objects.get_range(&root, 0..1).await {
        Ok(_) => {}
        Err(StoreError::NotFound { .. }) => return Ok(false),
        Err(source) => return Err(store(WHAT, volume)(source)),
    }
    let key = ObjectKey::PrefetchList(volume.clone(), *seq).to_string();
    let created = create_once(objects, WHAT, volume, &key, list.encode().into()).await?;
    Ok(created == CreatedOnce::Now)
}
