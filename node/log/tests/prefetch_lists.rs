//! Prefetch lists in the bucket: stored once, read by forks, and deleted with their snapshot.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::time::Duration;

use holdfast_format::DecodeError;
use holdfast_format::prefetch_list::PrefetchList;
use holdfast_log::sweep::{SweepMemory, SweepOptions, SweepReport, sweep};
use holdfast_log::{
    Creation, LogFailure, forget, provision, read_prefetch_list, read_source, remove, snapshot_detached,
    store_prefetch_list,
};
use holdfast_objects::{Created, MemoryStore, ObjectStore};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Block, Nonce, Seq, SnapshotName, SnapshotUid, VolumeId};

const NONCE: Nonce = Nonce([3; 16]);

fn id(name: &str) -> VolumeId {
    name.parse().unwrap()
}

fn list(snapshot: &SnapshotName, first: u64) -> PrefetchList {
    PrefetchList::new(snapshot.clone(), [Block(first), Block(0)])
}

fn key(snapshot: &SnapshotName) -> String {
    ObjectKey::PrefetchList(snapshot.volume.clone(), snapshot.seq).to_string()
}

/// Creates volume `image` with two snapshots.
async fn image() -> (MemoryStore, [SnapshotName; 2]) {
    let (store, volume) = (MemoryStore::new(), id("image"));
    provision(&store, &volume, Creation::plain(1000, NONCE, 0)).await.unwrap();
    let mut snapshots = Vec::new();
    for uid in [1, 2] {
        let taken = snapshot_detached(&store, &volume, SnapshotUid([uid; 16]), NONCE, 7).await.unwrap();
        snapshots.push(SnapshotName { volume: volume.clone(), seq: taken.seq });
    }
    (store, snapshots.try_into().unwrap())
}

async fn swept(store: &MemoryStore, grace: Duration) -> SweepReport {
    let options = SweepOptions { grace, dry_run: false, most: u64::MAX };
    sweep(store, &mut SweepMemory::default(), options).await.unwrap()
}

#[tokio::test]
async fn the_first_list_of_a_snapshot_is_read_by_its_forks() {
    let (store, [first, second]) = image().await;
    let fork = Creation { source: Some(second.clone()), ..Creation::plain(0, NONCE, 0) };
    provision(&store, &id("fork"), fork).await.unwrap();
    assert_eq!(read_source(&store, &id("fork")).await.unwrap(), Some(second.clone()));
    assert_eq!(read_source(&store, &id("image")).await.unwrap(), None);
    assert_eq!(read_prefetch_list(&store, &second).await.unwrap(), None);
    for (block, is_first) in [(7, true), (8, false)] {
        assert_eq!(store_prefetch_list(&store, &list(&second, block)).await.unwrap(), is_first);
    }
    assert_eq!(read_prefetch_list(&store, &second).await.unwrap(), Some(list(&second, 7)));
    assert_eq!(read_prefetch_list(&store, &first).await.unwrap(), None);
}

/// A bucket that was restored to an earlier state: the list alone would look like a volume without a log,
/// and block every sweep.
#[tokio::test]
async fn a_list_needs_the_root_of_its_snapshot() {
    let (store, [first, _]) = image().await;
    let later = SnapshotName { seq: Seq(99), ..first };
    let foreign = SnapshotName { volume: id("other"), seq: Seq(2) };
    let before = store.keys();
    for snapshot in [later, foreign] {
        assert!(!store_prefetch_list(&store, &list(&snapshot, 7)).await.unwrap());
    }
    assert_eq!(store.keys(), before);
}

/// The snapshot of a clone is forgotten once the clone exists.
#[tokio::test]
async fn a_forgotten_snapshot_gets_no_list() {
    let (store, [first, _]) = image().await;
    forget(&store, &id("image"), first.seq).await.unwrap();
    assert!(!store_prefetch_list(&store, &list(&first, 7)).await.unwrap());
    assert!(!store.keys().contains(&key(&first)));
}

#[tokio::test]
async fn a_sweep_deletes_a_list_with_its_snapshot() {
    let (store, snapshots) = image().await;
    for snapshot in &snapshots {
        assert!(store_prefetch_list(&store, &list(snapshot, 7)).await.unwrap());
    }
    let lists = || snapshots.iter().filter(|it| store.keys().contains(&key(it))).count();
    swept(&store, Duration::ZERO).await;
    assert_eq!(lists(), 2, "both snapshots are registered");
    forget(&store, &id("image"), snapshots[0].seq).await.unwrap();
    let young = swept(&store, Duration::from_hours(1)).await;
    assert_eq!((lists(), young.garbage.objects), (2, 0), "the mark is young");
    swept(&store, Duration::ZERO).await;
    assert!(!store.keys().contains(&key(&snapshots[0])) && lists() == 1);
    // It arrives late.
    let Created = store.create(&key(&snapshots[0]), list(&snapshots[0], 9).encode().into()).await.unwrap();
    swept(&store, Duration::ZERO).await;
    assert_eq!(lists(), 1);
}

#[tokio::test]
async fn a_removed_volume_leaves_no_list() {
    let (store, snapshots) = image().await;
    for snapshot in &snapshots {
        assert!(store_prefetch_list(&store, &list(snapshot, 7)).await.unwrap());
        forget(&store, &id("image"), snapshot.seq).await.unwrap();
    }
    remove(&store, &id("image"), NONCE, 0, None).await.unwrap();
    swept(&store, Duration::ZERO).await;
    assert!(snapshots.iter().all(|snapshot| !store.keys().contains(&key(snapshot))), "{:?}", store.keys());
    // A fork on another node stored it late.
    let Created = store.create(&key(&snapshots[1]), list(&snapshots[1], 9).encode().into()).await.unwrap();
    let report = swept(&store, Duration::ZERO).await;
    assert_eq!((report.deleted.objects, report.skipped.len()), (1, 0));
    assert!(!store.keys().contains(&key(&snapshots[1])));
}

#[tokio::test]
async fn a_damaged_or_foreign_list_is_named() {
    let (store, [first, second]) = image().await;
    let Created = store.create(&key(&first), list(&second, 7).encode().into()).await.unwrap();
    let failed = read_prefetch_list(&store, &first).await.unwrap_err();
    assert!(matches!(&failed, LogFailure::Misplaced { seq, .. } if *seq == second.seq), "{failed}");
    let Created = store.create(&key(&second), list(&second, 7).encode().into()).await.unwrap();
    store.corrupt(&key(&second), |bytes| *bytes.last_mut().unwrap() ^= 1);
    let failed = read_prefetch_list(&store, &second).await.unwrap_err();
    assert!(matches!(failed, LogFailure::Damaged { source: DecodeError::Checksum(_), .. }), "{failed}");
}
