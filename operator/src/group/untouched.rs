//! Proof that an unserved volume still has the content of its snapshot.

use holdfast_log::LogFailure;
use holdfast_objects::ObjectStore;
use holdfast_types::SnapshotName;

/// Returns true if nothing has changed the volume since the snapshot, and no attached writer could have: the
/// volume then had the snapshot's content at every moment in between.
///
/// The log is authoritative on writers. An attach that ended without a change changes nothing.
///
/// # Errors
/// A part of the log cannot be read.
pub(super) async fn is_untouched(
    objects: &dyn ObjectStore,
    snapshot: &SnapshotName,
) -> Result<bool, LogFailure> {
    let manifest = holdfast_log::read_manifest_to_end(objects, &snapshot.volume).await?;
    Ok(manifest.exists() && !manifest.is_attached() && manifest.data_seq() <= snapshot.seq)
}

#[cfg(test)]
mod tests {
    use holdfast_format::record::{Body, Record};
    use holdfast_log::Creation;
    use holdfast_objects::MemoryStore;
    use holdfast_types::{Epoch, Nonce, Seq, SnapshotUid, VolumeId};

    use super::*;

    const NODE: Nonce = Nonce([9; 16]);

    /// Creates a volume with a snapshot.
    async fn snapshot_in(store: &MemoryStore) -> SnapshotName {
        let volume: VolumeId = "v".parse().expect("an id");
        let creation = Creation::plain(64, Nonce([1; 16]), 0);
        holdfast_log::provision(store, &volume, creation).await.expect("created");
        let uid = SnapshotUid([7; 16]);
        let taken = holdfast_log::snapshot_detached(store, &volume, uid, Nonce([2; 16]), 0).await;
        SnapshotName { volume, seq: taken.expect("taken").seq }
    }

    async fn attach(store: &MemoryStore, volume: &VolumeId, seq: Seq) {
        let body = Body::Attach { sectors: 64, node: "a".to_owned(), displaced: None };
        let record = Record { volume: volume.clone(), seq, epoch: Epoch(1), nonce: NODE, unix_ms: 0, body };
        let _created = holdfast_log::create_record(store, &record).await.expect("attached");
    }

    #[tokio::test]
    async fn an_attach_after_the_snapshot_is_seen() {
        let store = MemoryStore::new();
        let snapshot = snapshot_in(&store).await;
        assert!(is_untouched(&store, &snapshot).await.expect("read"));
        attach(&store, &snapshot.volume, snapshot.seq.next()).await;
        assert!(!is_untouched(&store, &snapshot).await.expect("read"), "it may have been written to");
    }

    /// Another snapshot of the volume changes its log, but not its content.
    #[tokio::test]
    async fn another_snapshot_is_no_change() {
        let store = MemoryStore::new();
        let snapshot = snapshot_in(&store).await;
        let other = SnapshotUid([8; 16]);
        holdfast_log::snapshot_detached(&store, &snapshot.volume, other, Nonce([3; 16]), 0)
            .await
            .expect("taken");
        assert!(is_untouched(&store, &snapshot).await.expect("read"));
    }

    #[tokio::test]
    async fn a_volume_that_is_gone_is_no_proof() {
        let store = MemoryStore::new();
        let snapshot = snapshot_in(&store).await;
        let elsewhere = MemoryStore::new();
        assert!(!is_untouched(&elsewhere, &snapshot).await.unwrap_or(false));
    }
}
