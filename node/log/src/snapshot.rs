//! Snapshots of a volume: their roots, origins and marks, and the list of those not forgotten.
//! `take_snapshot` takes one of a detached volume; the writer of an attached one takes its own.
//!
//! A snapshot's *origin* is an object with labels: the names of the cluster objects that it was taken for, so
//! that another cluster can restore these names. It is stored after the registration; a snapshot without it
//! is still valid.
//!
//! A snapshot is *forgotten* once its mark is stored, which is never deleted, so that a late fork can see it.
//! The next snapshot of the volume removes it from the list of registered ones. Writers ignore a mark whose
//! snapshot is no longer registered; sweeps, forks and removals check it.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use holdfast_format::limit::MAX_SNAPSHOTS;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::Labels;
use holdfast_format::safeguard::{
    Safeguard::{CompareRoots, LookForMark},
    safeguard,
};
use holdfast_format::snapshot::Snapshot;
use holdfast_objects::{MAX_PAGE_ENTRIES, ObjectStore, StoreError};
use holdfast_types::key::{ObjectKey, forgotten_prefix};
use holdfast_types::{Epoch, Seq, SnapshotName, SnapshotUid, VolumeId};

use crate::append::{CreatedOnce, create_once};
use crate::error::{LogFailure, store};
use crate::limit::MAX_METADATA_BYTES;
use crate::objects::{is_present, seqs_under};
use crate::read::{decode_manifest, read_manifest_to_end, read_record};
use crate::truncate::was_truncated_after;

/// Reason why a snapshot was not taken, listed or forgotten.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The log could not be read or extended.
    #[error(transparent)]
    Log(#[from] LogFailure),
    /// The volume does not exist.
    #[error(
        "volume {0} does not exist in this object store: check its name, and the store's bucket and prefix"
    )]
    NotFound(VolumeId),
    /// The volume was deleted.
    #[error("volume {0} was deleted")]
    Deleted(VolumeId),
    /// A node has attached the volume: only that node can take its snapshots.
    #[error(
        "volume {volume} is attached by node {node} (epoch {epoch}): take the snapshot on that node, or detach the volume there"
    )]
    Attached {
        /// The volume.
        volume: VolumeId,
        /// The node that holds it.
        node: String,
        /// The writer's epoch.
        epoch: Epoch,
    },
    /// The volume has the maximum number of snapshots.
    #[error("volume {0} has {MAX_SNAPSHOTS} snapshots, the maximum: delete some of them")]
    TooMany(VolumeId),
    /// The snapshot does not exist.
    #[error("volume {volume} has no snapshot {seq}: list its snapshots")]
    NoSuchSnapshot {
        /// The volume.
        volume: VolumeId,
        /// The requested seq.
        seq: Seq,
    },
}

/// Object at the position of a snapshot's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum RootPlace {
    /// The root.
    Stored,
    /// Another root, or the mark of a forgotten one: the bucket was restored, or lost the end of the log. No
    /// snapshot may be registered there.
    Foreign,
}

/// Stores the root of the snapshot at `seq`, whose content is reproducible: a GET and a PUT, and another GET
/// if a root exists.
///
/// # Errors
/// [`LogFailure::Store`]: the state of the position is unknown; try again.
pub async fn store_root(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
    root: Bytes,
) -> Result<RootPlace, LogFailure> {
    const WHAT: &str = "store the root of a snapshot";
    let is_marked = is_forgotten(objects, &SnapshotName { volume: volume.clone(), seq }).await?;
    if is_marked && safeguard(LookForMark) {
        return Ok(RootPlace::Foreign);
    }
    let key = ObjectKey::Snapshot(volume.clone(), seq).to_string();
    if create_once(objects, WHAT, volume, &key, root.clone()).await? == CreatedOnce::Now {
        return Ok(RootPlace::Stored);
    }
    match objects.get(&key, root.len() as u64).await {
        Ok(there) if there == root || !safeguard(CompareRoots) => Ok(RootPlace::Stored),
        Ok(_) | Err(StoreError::TooLarge { .. }) => Ok(RootPlace::Foreign),
        Err(source) => Err(store(WHAT, volume)(source)),
    }
}

/// Returns the snapshots of a volume that were not forgotten, oldest first.
///
/// # Errors
/// [`SnapshotError`].
pub async fn snapshots(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Vec<Snapshot>, SnapshotError> {
    let manifest = existing(objects, volume).await?;
    Ok(live(objects, &manifest).await?)
}

/// Forgets the snapshot at `seq`: a PUT, and a DELETE of its origin, which a sweep retries if it fails.
/// Idempotent.
///
/// # Errors
/// [`SnapshotError`].
pub async fn forget(objects: &dyn ObjectStore, volume: &VolumeId, seq: Seq) -> Result<(), SnapshotError> {
    let manifest = existing(objects, volume).await?;
    let key = mark(volume, seq);
    if let Some(known) = manifest.snapshots().iter().find(|known| known.seq == seq) {
        let (CreatedOnce::Now | CreatedOnce::Before) =
            create_once(objects, "forget a snapshot", volume, &key, Bytes::new()).await?;
        let origin = ObjectKey::Origin(volume.clone(), known.uid).to_string();
        // Credentials may lack the right to delete; the mark alone is sufficient.
        let (Ok(()) | Err(_)) = objects.delete(&[&origin]).await;
        return Ok(());
    }
    // A mark for a seq without a snapshot would void a future one.
    let snapshot = SnapshotName { volume: volume.clone(), seq };
    if is_forgotten(objects, &snapshot).await? {
        return Ok(());
    }
    Err(SnapshotError::NoSuchSnapshot { volume: volume.clone(), seq })
}

/// Returns the registered snapshots of `manifest` that were not forgotten, oldest first: a LIST if any are
/// registered.
///
/// # Errors
/// [`LogFailure::Store`].
pub async fn snapshots_of(
    objects: &dyn ObjectStore,
    manifest: &Manifest,
) -> Result<Vec<Snapshot>, LogFailure> {
    live(objects, manifest).await
}

/// Result of storing an origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum OriginPlace {
    /// Stored the labels of the request.
    Stored,
    /// Kept the labels of an earlier request, from the cluster that took the snapshot.
    Others,
    /// Stored nothing: the log does not register the snapshot under this uid, or it is forgotten.
    NoSnapshot,
}

/// Stores the labels of a snapshot that is registered under `uid` and not forgotten: the GETs that check
/// this, and a PUT. Existing labels are kept, and cost another GET. Nothing is stored for any other snapshot:
/// an origin alone would look like a volume without a log.
///
/// # Errors
/// [`LogFailure`]: call again.
pub async fn store_origin(
    objects: &dyn ObjectStore,
    snapshot: &SnapshotName,
    uid: SnapshotUid,
    labels: &Labels,
) -> Result<OriginPlace, LogFailure> {
    const WHAT: &str = "store the origin of a snapshot";
    let volume = &snapshot.volume;
    if registered(objects, snapshot).await? != Some(uid) || is_forgotten(objects, snapshot).await? {
        return Ok(OriginPlace::NoSnapshot);
    }
    let key = ObjectKey::Origin(volume.clone(), uid).to_string();
    if create_once(objects, WHAT, volume, &key, labels.encode().into()).await? == CreatedOnce::Now {
        return Ok(OriginPlace::Stored);
    }
    match read_origin(objects, volume, uid).await {
        Ok(Some(there)) if there == *labels => Ok(OriginPlace::Stored),
        Ok(_) | Err(LogFailure::Damaged { .. }) => Ok(OriginPlace::Others),
        Err(failure) => Err(failure),
    }
}

/// Reads the labels of the snapshot with this uid: one GET. Returns `None` for a snapshot from the command
/// line, or from a release that stored no labels.
///
/// # Errors
/// [`LogFailure::Store`], [`LogFailure::Damaged`].
pub async fn read_origin(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    uid: SnapshotUid,
) -> Result<Option<Labels>, LogFailure> {
    let key = ObjectKey::Origin(volume.clone(), uid).to_string();
    match objects.get(&key, Labels::MAX_ENCODED_BYTES as u64).await {
        Ok(bytes) => match Labels::decode(&bytes) {
            Ok(labels) => Ok(Some(labels)),
            Err(source) => Err(LogFailure::Damaged { key, source }),
        },
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(source) => Err(store("read the origin of a snapshot", volume)(source)),
    }
}

/// Returns true if the mark of `snapshot` exists: one GET.
pub(crate) async fn is_forgotten(
    objects: &dyn ObjectStore,
    snapshot: &SnapshotName,
) -> Result<bool, LogFailure> {
    let SnapshotName { volume, seq } = snapshot;
    let key = ObjectKey::Forgotten(volume.clone(), *seq);
    is_present(objects, "look for a forgotten snapshot", &key).await
}

/// Reads the root of the snapshot `seq`: the volume's content at that point.
///
/// # Errors
/// [`LogFailure::Store`] with [`StoreError::NotFound`] if no root is stored; [`LogFailure::Damaged`].
pub async fn read_snapshot(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
) -> Result<Manifest, LogFailure> {
    let key = ObjectKey::Snapshot(volume.clone(), seq).to_string();
    let bytes = objects.get(&key, MAX_METADATA_BYTES).await.map_err(store("read a snapshot", volume))?;
    decode_manifest(key, volume, seq, &bytes)
}

/// Reads the root of a snapshot that was taken for `uid`: two more GETs, and others if its record was
/// truncated. Returns `None` if the log does not register this uid at that seq, or the root is missing: the
/// bucket was restored, or is a different one.
///
/// # Errors
/// [`LogFailure`], except for a missing root.
pub async fn read_snapshot_of(
    objects: &dyn ObjectStore,
    name: &SnapshotName,
    uid: SnapshotUid,
) -> Result<Option<Manifest>, LogFailure> {
    if registered(objects, name).await? != Some(uid) {
        return Ok(None);
    }
    match read_snapshot(objects, &name.volume, name.seq).await {
        Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => Ok(None),
        read => read.map(Some),
    }
}

/// Returns the uid of the snapshot that the log registers at the seq. A root at a seq without such a record
/// is garbage.
pub(crate) async fn registered(
    objects: &dyn ObjectStore,
    snapshot: &SnapshotName,
) -> Result<Option<SnapshotUid>, LogFailure> {
    let SnapshotName { volume, seq } = snapshot;
    match read_record(objects, volume, *seq).await {
        // A record at a truncated position is late, and not part of the log.
        Ok(record) if !was_truncated_after(objects, volume, Seq(seq.0.saturating_sub(1))).await? => {
            return Ok(record.body.snapshot_taken());
        }
        Ok(_) | Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => {}
        Err(error) => return Err(error),
    }
    let manifest = read_manifest_to_end(objects, volume).await?;
    Ok(manifest.snapshots().iter().find(|known| known.seq == *seq).map(|known| known.uid))
}

/// Returns the seqs of forgotten snapshots, from `first` on, as far as LIST shows them.
///
/// # Errors
/// [`LogFailure::Store`].
pub async fn forgotten_from(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    first: Seq,
) -> Result<BTreeSet<Seq>, LogFailure> {
    let after = Some(before_mark(volume, first));
    Ok(seqs_under(objects, volume, &forgotten_prefix(volume), after).await?.into_iter().collect())
}

/// Returns true if a snapshot of the volume was ever forgotten: one LIST of one object. Any object under the
/// prefix counts as a mark.
pub(crate) async fn has_marks(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<bool, LogFailure> {
    let page = objects.list(&forgotten_prefix(volume), None, 1).await;
    Ok(!page.map_err(store("look for marks of forgotten snapshots", volume))?.entries.is_empty())
}

/// Returns those of the ascending seqs `registered` whose snapshots are forgotten, as far as LIST shows them:
/// as many requests as `marks_of`.
///
/// # Errors
/// [`LogFailure::Store`].
pub async fn forgotten_of(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    registered: &[Seq],
) -> Result<BTreeSet<Seq>, LogFailure> {
    Ok(marks_of(objects, volume, registered).await?.into_iter().map(|(seq, _)| seq).collect())
}

/// Returns the marks, with their age by the store's clock, of those of the ascending seqs `places` whose
/// snapshots are forgotten, as far as LIST shows them. Marks are never deleted, so many more may exist: each
/// page of marks starts at a requested seq, and the next page at the next requested seq after it. That takes
/// at most one LIST per seq, and none for the marks before the oldest.
pub(crate) async fn marks_of(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    places: &[Seq],
) -> Result<Vec<(Seq, Duration)>, LogFailure> {
    debug_assert!(places.is_sorted(), "binary search needs sorted seqs");
    let prefix = forgotten_prefix(volume);
    let (mut marks, mut rest) = (Vec::new(), places);
    let mut listed = String::new();
    while let Some(next) = rest.first() {
        let after = before_mark(volume, *next).max(listed);
        let page = objects
            .list(&prefix, Some(&after), MAX_PAGE_ENTRIES)
            .await
            .map_err(store("list the marks of forgotten snapshots", volume))?;
        for entry in &page.entries {
            if let Some(ObjectKey::Forgotten(_, seq)) = ObjectKey::parse(&entry.key)
                && rest.binary_search(&seq).is_ok()
            {
                marks.push((seq, page.age(entry)));
            }
        }
        let Some(last) = page.entries.into_iter().next_back().filter(|_| page.more) else { break };
        listed = last.key;
        rest = &rest[rest.partition_point(|seq| mark(volume, *seq) <= listed)..];
    }
    Ok(marks)
}

/// Returns the key of a snapshot's mark.
fn mark(volume: &VolumeId, seq: Seq) -> String {
    ObjectKey::Forgotten(volume.clone(), seq).to_string()
}

/// Returns a key after which the mark of `seq` is the first possible one.
fn before_mark(volume: &VolumeId, seq: Seq) -> String {
    mark(volume, Seq(seq.0.saturating_sub(1)))
}

/// Returns the registered snapshots of `manifest` that were not forgotten, oldest first.
pub(crate) async fn live(
    objects: &dyn ObjectStore,
    manifest: &Manifest,
) -> Result<Vec<Snapshot>, LogFailure> {
    let forgotten = forgotten(objects, manifest).await?;
    Ok(manifest.snapshots().iter().filter(|known| !forgotten.contains(&known.seq)).copied().collect())
}

/// Returns the seqs of the registered snapshots of `manifest` that were forgotten.
pub(crate) async fn forgotten(
    objects: &dyn ObjectStore,
    manifest: &Manifest,
) -> Result<BTreeSet<Seq>, LogFailure> {
    let registered: Vec<Seq> = manifest.snapshots().iter().map(|known| known.seq).collect();
    forgotten_of(objects, manifest.volume(), &registered).await
}

/// Returns the state of an existing volume at the end of its log.
pub(crate) async fn existing(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
) -> Result<Manifest, SnapshotError> {
    let manifest = read_manifest_to_end(objects, volume).await?;
    if manifest.is_deleted() {
        return Err(SnapshotError::Deleted(volume.clone()));
    }
    if !manifest.exists() {
        return Err(SnapshotError::NotFound(volume.clone()));
    }
    Ok(manifest)
}
