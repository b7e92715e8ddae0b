//! Snapshots of a volume served by the node.

use bytes::Bytes;
use holdfast_format::snapshot::SnapshotChange;
use holdfast_log::{
    CreateOutcome, create_record, forget, read_manifest, read_manifest_to_end, write_checkpoint,
};
use holdfast_objects::Created;
use holdfast_types::SnapshotUid;
use holdfast_types::key::ObjectKey;

use super::*;
use crate::node::volume::snapshot::VolumeInStore;

/// Number of markers of snapshots deleted long ago: three pages of a LIST.
const OLD_MARKS: u64 = 2_100;

/// Gives the volume a log of this many records, and a marker for each but the first.
async fn with_old_marks(bucket: &Bucket) {
    let objects = &*bucket.objects;
    for seq in (2..=OLD_MARKS).map(Seq) {
        let body = Body::of_snapshots(SnapshotChange::default());
        let nonce = Nonce([9; 16]);
        let record = Record { volume: volume(), seq, epoch: Epoch(0), nonce, unix_ms: 0, body };
        assert_eq!(create_record(objects, &record).await.unwrap(), CreateOutcome::Created);
        let key = ObjectKey::Forgotten(volume(), seq).to_string();
        let Created = objects.create(&key, Bytes::new()).await.unwrap();
    }
    let manifest = read_manifest_to_end(objects, &volume()).await.unwrap();
    let checkpoint = manifest.encode_checkpoint().into();
    write_checkpoint(objects, &volume(), manifest.seq(), checkpoint).await.unwrap();
}

/// Regression: each snapshot listed all markers since the first record, with one request per thousand.
#[test]
fn a_snapshot_lists_no_marks_of_those_that_were_dropped() {
    run_node_test(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        with_old_marks(&bucket).await;
        leave_volume_dirty(&dirs, ("main", &bucket), &volume(), SectorRange::new(2, 3)).await;
        let present = node.resumed(&volume()).await;
        node.load_manifest(volume(), present);
        let take = async |name: u8| {
            let (snapshots, at) = (node.snapshots(), VolumeInStore { volume: volume(), store: None });
            let taken = snapshots.create(at, SnapshotUid([name; 16]));
            tokio::time::timeout(LIMIT, taken).await.expect("the store answers").unwrap()
        };
        take(1).await;
        for name in 2..5 {
            let before = bucket.objects.counts().list;
            let taken = take(name).await;
            assert_eq!(bucket.objects.counts().list - before, 1);
            let registered = read_manifest(&*bucket.objects, &volume()).await.unwrap().snapshots().to_vec();
            assert_eq!(registered.last(), Some(&taken));
            assert_eq!(registered.len(), if name == 2 { 2 } else { 1 }, "the deleted one is dropped");
            forget(&*bucket.objects, &volume(), registered[0].seq).await.unwrap();
            forget(&*bucket.objects, &volume(), taken.seq).await.unwrap();
        }
        node.shutdown().await;
    });
}

/// Regression, found in review: the store of such a request was ignored. A snapshot could be deleted in the
/// store of the attached volume, and a scrub reported on that one.
#[test]
fn requests_for_another_store_never_use_that_of_the_attached_volume() {
    run_node_test(async {
        let (dirs, bucket, other) = (Dirs::new(), Bucket::start().await, Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        leave_dirty(&dirs, &bucket, SectorRange::new(2, 3)).await;
        let present = node.resumed(&volume()).await;
        node.load_manifest(volume(), present);
        let taken = node.snapshots().create(in_store(None), SnapshotUid([1; 16])).await.unwrap();

        let copy = || in_store(Some(("copy", &other)));
        let scrub = |VolumeInStore { volume, store }| ScrubRequest { volume, store, repair: false };
        let refused = [
            node.snapshots().create(copy(), SnapshotUid([2; 16])).await.unwrap_err(),
            node.snapshots().list(copy()).await.unwrap_err(),
            node.snapshots().delete(copy(), taken.seq).await.unwrap_err(),
            node.scrubs().scrub(scrub(copy()), |_| {}).await.unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), FailureKind::Busy);
            assert!(
                error.to_string().starts_with("store: volume disk is attached here from store main, and")
            );
        }
        // The same place, by its own name and by another.
        for name in ["main", "alias"] {
            let same = || in_store(Some((name, &bucket)));
            assert_eq!(node.snapshots().list(same()).await.unwrap(), [taken]);
            node.scrubs().scrub(scrub(same()), |_| {}).await.unwrap();
        }
        node.shutdown().await;
    });
}

/// Returns the volume, with a store of this name.
fn in_store(store: Option<(&str, &Bucket)>) -> VolumeInStore {
    let store = store.map(|(name, bucket)| (name.to_owned(), bucket.config.clone()));
    VolumeInStore { volume: volume(), store }
}
