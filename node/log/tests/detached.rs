//! A cleanly detached volume is read from the last record of its log.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod stored;

use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_log::scrub::scrub;
use holdfast_log::{
    Creation, LogFailure, read_manifest, read_manifest_to_end, remove, snapshot_detached, snapshots,
    write_checkpoint,
};
use holdfast_objects::{MemoryStore, ObjectStore, RequestCounts};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Seq, SnapshotUid, VolumeId};
use stored::{NONCE, Stored};

const SECTORS: u64 = 40_000;

fn volume() -> VolumeId {
    "v".parse().unwrap()
}

fn log_key(seq: u64) -> String {
    ObjectKey::Log(volume(), Seq(seq)).to_string()
}

/// Creates a log of a creation, an attach, `commits` commits and checkpoints as of `checkpoints`.
async fn attached(commits: u64, checkpoints: &[u64]) -> Stored {
    let mut stored = Stored::attached(MemoryStore::new(), "v", Creation::plain(SECTORS, NONCE, 0), 2).await;
    for seq in 3..3 + commits {
        stored.commit(seq, &[(0, 1)]).await;
        if checkpoints.contains(&seq) {
            checkpoint(&stored).await;
        }
    }
    stored
}

async fn checkpoint(stored: &Stored) {
    let manifest = read_manifest(&stored.store, &volume()).await.unwrap();
    let bytes = manifest.encode_checkpoint().into();
    write_checkpoint(&stored.store, &volume(), manifest.seq(), bytes).await.unwrap();
}

/// Returns the LISTs, GETs and all requests of `read`.
async fn spent<T>(store: &MemoryStore, read: impl Future<Output = T>) -> (T, [u64; 3]) {
    let of = |counts: RequestCounts| [counts.list, counts.get, counts.total()];
    let before = of(store.counts());
    let read = read.await;
    let after = of(store.counts());
    (read, [0, 1, 2].map(|kind| after[kind] - before[kind]))
}

/// Returns the state replayed from all records, without the root.
async fn replayed(stored: &Stored, upto: u64) -> Manifest {
    let mut manifest = Manifest::empty(volume());
    for seq in 1..=upto {
        let bytes = stored.store.get(&log_key(seq), u64::MAX).await.unwrap();
        manifest.apply(&Record::decode(&bytes).unwrap()).unwrap();
    }
    manifest
}

/// Before, it took each record since the newest checkpoint, and the checkpoint.
#[tokio::test]
async fn a_detached_volume_is_read_from_one_object() {
    for (commits, checkpoints) in [(1, &[][..]), (30, &[]), (30, &[9, 20])] {
        let stored = attached(commits, checkpoints).await;
        let end = 3 + commits;
        stored.detach(end).await;
        let (read, cost) = spent(&stored.store, read_manifest(&stored.store, &volume())).await;
        assert_eq!(cost, [1, 1, 2]);
        let read = read.unwrap();
        assert_eq!(read.encode_checkpoint(), replayed(&stored, end).await.encode_checkpoint());
        assert_eq!(read.checkpointed(), Seq(checkpoints.last().copied().unwrap_or(0)));
        let (_, cost) = spent(&stored.store, read_manifest_to_end(&stored.store, &volume())).await;
        assert_eq!(cost, [1, 3, 4], "and that nothing follows, nor was truncated");
    }
}

/// Otherwise each attach would restart the count: a log of short attaches would have no checkpoint.
#[tokio::test]
async fn records_are_counted_from_the_checkpoint_across_detaches() {
    let mut stored = attached(8, &[5]).await;
    for detach in [11, 14, 17] {
        stored.detach(detach).await;
        stored.attach(detach + 1, SECTORS).await;
        stored.commit(detach + 2, &[(1, 1)]).await;
        let read = read_manifest(&stored.store, &volume()).await.unwrap();
        assert_eq!((read.seq(), read.checkpointed()), (Seq(detach + 2), Seq(5)));
    }
}

/// An earlier version wrote it, or the root was too large.
#[tokio::test]
async fn a_detach_record_without_a_root_is_read_as_before() {
    let stored = attached(8, &[5]).await;
    stored.record(11, Body::Detach { root: None }).await;
    let (read, cost) = spent(&stored.store, read_manifest(&stored.store, &volume())).await;
    assert_eq!(cost, [1, 7, 8], "a checkpoint and six records");
    assert_eq!(read.unwrap().encode_checkpoint(), replayed(&stored, 11).await.encode_checkpoint());
}

#[tokio::test]
async fn what_follows_a_root_counts() {
    let stored = attached(8, &[5]).await;
    stored.detach(11).await;
    let uid = SnapshotUid([7; 16]);
    let taken = snapshot_detached(&stored.store, &volume(), uid, NONCE, 0).await.unwrap();
    assert_eq!(taken.seq, Seq(12));
    let (read, cost) = spent(&stored.store, read_manifest(&stored.store, &volume())).await;
    assert_eq!((read.unwrap().snapshots(), cost), (&[taken][..], [1, 8, 9]));
    assert_eq!(snapshots(&stored.store, &volume()).await.unwrap(), [taken]);
    let refused = remove(&stored.store, &volume(), NONCE, 0, None).await.unwrap_err();
    assert!(matches!(refused, LogFailure::HasSnapshots { .. }), "{refused}");
}

#[tokio::test]
async fn a_tombstone_behind_a_root_wins() {
    let stored = attached(3, &[]).await;
    stored.detach(6).await;
    stored.record(7, Body::Delete).await;
    let (read, cost) = spent(&stored.store, read_manifest(&stored.store, &volume())).await;
    assert_eq!((read.unwrap(), cost), (Manifest::tombstone(volume(), Seq(7)), [1, 1, 2]));
}

#[tokio::test]
async fn a_checkpoint_of_the_detach_itself_is_read_alone() {
    let stored = attached(3, &[]).await;
    stored.detach(6).await;
    checkpoint(&stored).await;
    let (read, cost) = spent(&stored.store, read_manifest(&stored.store, &volume())).await;
    assert_eq!((read.unwrap().checkpointed(), cost), (Seq(6), [1, 1, 2]));
}

/// No other object may be read instead: another state must not pass for the volume's.
#[tokio::test]
async fn a_damaged_root_is_named_and_not_passed_over() {
    let stored = attached(3, &[4]).await;
    stored.detach(6).await;
    let length = stored.store.get(&log_key(6), u64::MAX).await.unwrap().len();
    for at in [length - 1, length / 2] {
        stored.store.corrupt(&log_key(6), |bytes| bytes[at] ^= 1);
        let damaged = read_manifest(&stored.store, &volume()).await.unwrap_err();
        assert_eq!(damaged.to_string(), format!("object {} is damaged", log_key(6)));
        stored.store.corrupt(&log_key(6), |bytes| bytes[at] ^= 1);
    }
    assert!(read_manifest(&stored.store, &volume()).await.is_ok());
}

/// Regression: a node that attached such a damaged volume ended; the next one read all records, and failed.
#[tokio::test]
async fn the_newest_root_takes_the_place_of_what_is_damaged_before_it() {
    let mut stored = attached(3, &[4]).await;
    stored.detach(6).await;
    stored.attach(7, SECTORS).await;
    stored.commit(8, &[(1, 1)]).await;
    let sound = read_manifest(&stored.store, &volume()).await.unwrap();
    let checkpoint = ObjectKey::Checkpoint(volume(), Seq(4)).to_string();
    for key in [checkpoint, log_key(5)] {
        stored.store.corrupt(&key, |bytes| bytes[50] ^= 1);
        assert_eq!(read_manifest(&stored.store, &volume()).await.unwrap(), sound);
        assert!(scrub(&stored.store, &volume(), &|_| ()).await.unwrap().is_harmless());
    }
    stored.store.delete(&[&log_key(5)]).await.unwrap();
    assert_eq!(read_manifest(&stored.store, &volume()).await.unwrap(), sound);
    for needed in [log_key(6), log_key(7), log_key(8)] {
        stored.store.corrupt(&needed, |bytes| bytes[50] ^= 1);
        assert!(matches!(
            read_manifest(&stored.store, &volume()).await,
            Err(LogFailure::Damaged { .. } | LogFailure::Broken { .. })
        ));
        assert!(!scrub(&stored.store, &volume(), &|_| ()).await.unwrap().is_harmless());
        stored.store.corrupt(&needed, |bytes| bytes[50] ^= 1);
    }
}

#[tokio::test]
async fn a_root_of_another_volume_or_place_is_named() {
    let stored = attached(3, &[]).await;
    stored.detach(6).await;
    let creation = Creation::plain(SECTORS, NONCE, 0);
    let other = Stored::attached(stored.store.clone(), "other", creation, 2).await;
    other.detach(3).await;
    for copied in ["volumes/other/log/00000000000000000003".to_owned(), log_key(6)] {
        let bytes = stored.store.get(&copied, u64::MAX).await.unwrap();
        let _ = stored.store.create(&log_key(7), bytes).await.unwrap();
        let misplaced = read_manifest(&stored.store, &volume()).await.unwrap_err();
        assert!(matches!(misplaced, LogFailure::Misplaced { .. }), "{misplaced}");
        stored.store.delete(&[&log_key(7)]).await.unwrap();
    }
}

/// These objects sort before the log, or are part of it, and are never deleted.
#[tokio::test]
async fn a_log_behind_many_objects_is_listed_with_one_request_more() {
    for (marks, attaches, lists) in [(200, 20, 1), (300, 20, 2), (0, 300, 2)] {
        let mut stored = attached(0, &[]).await;
        for mark in 0..marks {
            let key = ObjectKey::Forgotten(volume(), Seq(9_000 + mark)).to_string();
            let _ = stored.store.create(&key, "".into()).await.unwrap();
        }
        for attach in 3..3 + attaches {
            stored.attach(attach, SECTORS).await;
        }
        checkpoint(&stored).await;
        stored.commit(3 + attaches, &[(0, 1)]).await;
        let (read, cost) = spent(&stored.store, read_manifest(&stored.store, &volume())).await;
        assert_eq!((read.unwrap().seq(), cost), (Seq(3 + attaches), [lists, 2, lists + 2]));
        stored.detach(4 + attaches).await;
        let (read, cost) = spent(&stored.store, read_manifest(&stored.store, &volume())).await;
        let read = read.unwrap();
        assert_eq!((read.seq(), cost), (Seq(4 + attaches), [lists, 1, lists + 1]));
        assert_eq!(read.encode_checkpoint(), replayed(&stored, 4 + attaches).await.encode_checkpoint());
    }
}

/// Covers deletions that were denied for a long time.
#[tokio::test]
async fn the_newest_of_many_checkpoints_is_read() {
    let stored = attached(300, &(3..303).collect::<Vec<_>>()).await;
    let (read, cost) = spent(&stored.store, read_manifest(&stored.store, &volume())).await;
    let read = read.unwrap();
    assert_eq!((read.seq(), read.checkpointed(), cost), (Seq(302), Seq(302), [3, 1, 4]));
}
