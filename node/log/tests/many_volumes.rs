//! Several volumes of one store: concurrent creators, removals and sweeps; damaged and foreign objects.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod stored;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use holdfast_format::record::{Body, Record};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_log::sweep::{SweepMemory, SweepOptions, SweepReport, sweep};
use holdfast_log::{
    CreateOutcome, Creation, LogFailure, create_record, forget, provision, read_manifest_to_end,
    read_snapshot, remove, snapshot_detached, truncate, write_checkpoint,
};
use holdfast_objects::{
    CreateError, Created, MemoryStore, ObjectStore, Page, Parts, ReadyParts, SegmentError, StoreError,
    Suffix, UnfinishedUpload,
};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Epoch, Nonce, Place, SegmentId, Seq, SnapshotUid, VolumeId};

use stored::{NONCE, Stored};

const SECTORS: u64 = 40_000;

fn id(name: &str) -> VolumeId {
    name.parse().unwrap()
}

fn all() -> SweepOptions {
    SweepOptions { grace: Duration::ZERO, dry_run: false, most: u64::MAX }
}

async fn swept(store: &MemoryStore) -> SweepReport {
    sweep(store, &mut SweepMemory::default(), all()).await.unwrap()
}

fn fork_of(volume: &str, seq: Seq) -> Creation {
    Creation { source: Some(format!("{volume}@{seq}").parse().unwrap()), ..Creation::plain(0, NONCE, 0) }
}

fn keys(store: &MemoryStore) -> BTreeSet<String> {
    store.keys().into_iter().collect()
}

fn segment_key(stored: &Stored, number: usize) -> String {
    ObjectKey::Segment(stored.volume.clone(), stored.segments[number].0.id).to_string()
}

async fn snapshot(store: &MemoryStore, volume: &str) -> Seq {
    snapshot_detached(store, &id(volume), SnapshotUid([1; 16]), NONCE, 7).await.unwrap().seq
}

/// Creates a volume with a commit (3) that only the snapshot (5) needs: commit 7 hides it, merge 8.
async fn with_snapshot(store: MemoryStore, volume: &str) -> (Stored, Seq) {
    let mut stored = Stored::attached(store, volume, Creation::plain(SECTORS, NONCE, 0), 2).await;
    stored.commit(3, &[(0, 0b1)]).await;
    stored.record(4, Body::Detach { root: None }).await;
    let seq = snapshot(&stored.store, volume).await;
    stored.attach(6, SECTORS).await;
    stored.commit(7, &[(0, 0b1)]).await;
    stored.merge(8, 0, 2).await;
    (stored, seq)
}

async fn overwrite(store: &MemoryStore, key: &str, with: &str) {
    let bytes = store.get(with, 1 << 20).await.unwrap();
    store.corrupt(key, |there| *there = bytes.to_vec());
}

/// The root of another snapshot under this key is damage: the true root is unknown.
#[tokio::test]
async fn a_root_of_another_snapshot_in_its_place_keeps_the_volume_whole() {
    let (a, seq) = with_snapshot(MemoryStore::new(), "a").await;
    let (_b, of_b) = with_snapshot(a.store.clone(), "b").await;
    let key = |volume: &str, seq| ObjectKey::Snapshot(id(volume), seq).to_string();
    overwrite(&a.store, &key("a", seq), &key("b", of_b)).await;
    let report = swept(&a.store).await;
    assert!(keys(&a.store).contains(&segment_key(&a, 0)), "what the snapshot held was deleted");
    assert_eq!(report.skipped.len(), 1);
}

/// The same for a checkpoint.
#[tokio::test]
async fn a_checkpoint_of_another_volume_in_its_place_keeps_the_volume_whole() {
    let store = MemoryStore::new();
    let mut volumes = Vec::new();
    for name in ["a", "b"] {
        let mut stored = Stored::attached(store.clone(), name, Creation::plain(SECTORS, NONCE, 0), 2).await;
        stored.commit(3, &[(0, 0b1)]).await;
        let manifest = read_manifest_to_end(&store, &id(name)).await.unwrap();
        write_checkpoint(&store, &id(name), Seq(3), manifest.encode_checkpoint().into()).await.unwrap();
        volumes.push(stored);
    }
    let key = |volume: &str| ObjectKey::Checkpoint(id(volume), Seq(3)).to_string();
    overwrite(&store, &key("a"), &key("b")).await;
    let read = read_manifest_to_end(&store, &id("a")).await;
    let report = swept(&store).await;
    assert!(keys(&store).contains(&segment_key(&volumes[0], 0)), "the volume was deleted");
    assert_eq!(report.skipped.len(), 1);
    assert!(read.is_err(), "another volume was read");
}

/// The `gc` remedy is to restore its log from a copy of the bucket. Until then its data must be kept.
#[tokio::test]
async fn a_fork_whose_log_was_lost_keeps_what_it_reads() {
    let (a, seq) = with_snapshot(MemoryStore::new(), "a").await;
    let store = a.store.clone();
    let mut b = Stored::attached(store.clone(), "b", fork_of("a", seq), 3).await;
    b.commit(4, &[(5, 0b1)]).await;
    forget(&store, &id("a"), seq).await.unwrap();
    for key in store.keys().iter().filter(|key| key.starts_with("volumes/b/log/")) {
        store.delete(&[key]).await.unwrap();
    }
    let report = swept(&store).await;
    assert!(matches!(report.skipped[0].error, LogFailure::NoLog(_)));
    assert!(keys(&store).contains(&segment_key(&a, 0)), "the log of b cannot be restored any more");
}

/// An impossible marker or mark is damage of one volume, not a store that does not answer.
#[tokio::test]
async fn a_damaged_marker_of_one_volume_does_not_end_the_sweep_of_others() {
    let store = MemoryStore::new();
    let a = Stored::attached(store.clone(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
    let other = Stored::attached(store.clone(), "other", Creation::plain(SECTORS, NONCE, 0), 2).await;
    let key = ObjectKey::Segment(other.volume.clone(), SegmentId::new(Place::until(Seq(1)), 7, [9; 10]))
        .to_string();
    store.put_segment(&key, &mut ReadyParts::new([b"unnamed".to_vec().into()])).await.unwrap();
    let marker = ObjectKey::TruncationMarker(a.volume.clone(), Seq(64)).to_string();
    let _created = store.create(&marker, b"x".to_vec().into()).await.unwrap();
    let report = sweep(&store, &mut SweepMemory::default(), all()).await.unwrap();
    assert_eq!((report.skipped.len(), report.deleted.objects), (1, 1));
}

/// Regression: for an oversized object, the store seemed not to answer, and each sweep failed.
#[tokio::test]
async fn an_oversized_object_of_one_volume_does_not_end_the_sweep() {
    let marker = ObjectKey::TruncationMarker(id("a"), Seq(64)).to_string();
    let record = ObjectKey::Log(id("a"), Seq(2)).to_string();
    for (key, bytes) in [(marker, 2 << 10), (record, (256 << 20) + 1)] {
        let store = MemoryStore::new();
        Stored::attached(store.clone(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
        let other = Stored::attached(store.clone(), "other", Creation::plain(SECTORS, NONCE, 0), 2).await;
        let unnamed = SegmentId::new(Place::until(Seq(1)), 7, [9; 10]);
        let unnamed = ObjectKey::Segment(other.volume.clone(), unnamed).to_string();
        store.put_segment(&unnamed, &mut ReadyParts::new([b"unnamed".to_vec().into()])).await.unwrap();
        store.delete(&[&key]).await.unwrap();
        let _created = store.create(&key, vec![0; bytes].into()).await.unwrap();
        let report = swept(&store).await;
        assert_eq!((report.skipped.len(), report.deleted.objects), (1, 1), "{key}");
    }
}

/// A sweep stores the markers of a removed volume before it deletes the volume's remains.
#[tokio::test]
async fn a_damaged_marker_of_a_removed_volume_does_not_end_the_sweep() {
    for bytes in [1, 2 << 10] {
        let store = MemoryStore::new();
        let a = Stored::attached(store.clone(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
        let end = read_manifest_to_end(&store, &a.volume).await.unwrap().seq();
        for seq in end.0 + 1..70 {
            a.record(seq, Body::of_snapshots(SnapshotChange::default())).await;
        }
        a.record(70, Body::Delete).await;
        let marker = ObjectKey::TruncationMarker(a.volume.clone(), Seq(64)).to_string();
        let _created = store.create(&marker, vec![b'x'; bytes].into()).await.unwrap();
        let report = swept(&store).await;
        assert_eq!(report.skipped.len(), 1, "{bytes}");
        assert!(matches!(report.skipped[0].error, LogFailure::NotEmpty { .. }));
    }
}

/// A creator was delayed between its check of the mark and its second record; the fork was removed.
#[tokio::test]
async fn a_slow_creator_does_not_say_that_a_removed_fork_exists() {
    let (a, seq) = with_snapshot(MemoryStore::new(), "a").await;
    let script = async |inner: MemoryStore| {
        holdfast_log::confirm_fork(&inner, &id("b")).await.unwrap();
        let manifest = read_manifest_to_end(&inner, &id("b")).await.unwrap();
        assert!(!manifest.is_unconfirmed());
        remove(&inner, &id("b"), NONCE, 0, None).await.unwrap();
    };
    let slow = Before {
        inner: a.store.clone(),
        key: "volumes/b/log/00000000000000000002",
        script: Mutex::new(Some(script)),
    };
    let said = provision(&slow, &id("b"), fork_of("a", seq)).await;
    assert!(read_manifest_to_end(&a.store, &id("b")).await.unwrap().is_deleted());
    assert!(said.is_err(), "the volume was removed: {said:?}");
}

/// The same, but the fork exists: its second record was truncated, and then its snapshot was deleted.
#[tokio::test]
async fn a_slow_creator_does_not_say_that_a_fork_in_use_ended() {
    let (a, seq) = with_snapshot(MemoryStore::new(), "a").await;
    let store = a.store.clone();
    let made = provision(&store, &id("b"), fork_of("a", seq)).await.unwrap();
    let b = Stored { store: store.clone(), volume: id("b"), segments: Vec::new(), epoch: 0 };
    for seq in 3..=140 {
        b.record(seq, Body::of_snapshots(SnapshotChange::default())).await;
    }
    let manifest = read_manifest_to_end(&store, &id("b")).await.unwrap();
    let bytes: Bytes = manifest.encode_checkpoint().into();
    write_checkpoint(&store, &id("b"), Seq(140), bytes.clone()).await.unwrap();
    truncate(&store, &id("b"), Seq(139), (Seq(140), &bytes)).await.unwrap();
    forget(&store, &id("a"), seq).await.unwrap();
    // The creator of the first record continues.
    let said = holdfast_log::confirm_fork(&store, &id("b")).await;
    assert!(read_manifest_to_end(&store, &id("b")).await.unwrap().exists());
    assert!(said.is_ok(), "{made} sectors, in use: {said:?}");
}

/// A removal was suspended between reading the log and its tombstone, while the volume was used: the
/// tombstone is at a truncated position, and is not the log's end. The marker that the removal stores next
/// detects that.
#[tokio::test]
async fn a_removal_that_sleeps_through_a_truncation_begins_again() {
    for read_upto in [2, 63] {
        let store = MemoryStore::new();
        provision(&store, &id("a"), Creation::plain(SECTORS, NONCE, 0)).await.unwrap();
        let write = async |store: &MemoryStore, seqs: std::ops::RangeInclusive<u64>| {
            let a = Stored { store: store.clone(), volume: id("a"), segments: Vec::new(), epoch: 0 };
            for seq in seqs {
                a.record(seq, Body::of_snapshots(SnapshotChange::default())).await;
            }
        };
        write(&store, 2..=read_upto).await;
        let script = async |inner: MemoryStore| {
            write(&inner, read_upto + 1..=139).await;
            snapshot(&inner, "a").await;
            let manifest = read_manifest_to_end(&inner, &id("a")).await.unwrap();
            let bytes: Bytes = manifest.encode_checkpoint().into();
            write_checkpoint(&inner, &id("a"), Seq(140), bytes.clone()).await.unwrap();
            truncate(&inner, &id("a"), Seq(139), (Seq(140), &bytes)).await.unwrap();
        };
        let key: &'static str = format!("volumes/a/log/{:020}", read_upto + 1).leak();
        let slow = Before { inner: store.clone(), key, script: Mutex::new(Some(script)) };
        let said = remove(&slow, &id("a"), Nonce([8; 16]), 0, None).await;
        assert!(matches!(said, Err(LogFailure::HasSnapshots { .. })), "read up to {read_upto}: {said:?}");
        assert!(read_manifest_to_end(&store, &id("a")).await.unwrap().exists());
        assert_eq!(holdfast_log::snapshots(&store, &id("a")).await.unwrap().len(), 1);
    }
}

/// A late record is at the truncated position of the one that registered the snapshot.
#[tokio::test]
async fn a_snapshot_is_restored_whatever_stands_in_its_truncated_place() {
    let store = MemoryStore::new();
    provision(&store, &id("a"), Creation::plain(SECTORS, NONCE, 0)).await.unwrap();
    let taken = snapshot(&store, "a").await;
    let a = Stored { store: store.clone(), volume: id("a"), segments: Vec::new(), epoch: 0 };
    for seq in 3..=140 {
        a.record(seq, Body::of_snapshots(SnapshotChange::default())).await;
    }
    let manifest = read_manifest_to_end(&store, &id("a")).await.unwrap();
    let bytes: Bytes = manifest.encode_checkpoint().into();
    write_checkpoint(&store, &id("a"), Seq(140), bytes.clone()).await.unwrap();
    truncate(&store, &id("a"), Seq(139), (Seq(140), &bytes)).await.unwrap();
    // A node had read the log as of the first record: its attach is superseded, and its record stays.
    let body = Body::Attach { sectors: SECTORS, node: "late".into(), displaced: None };
    let late = Record { volume: id("a"), seq: taken, epoch: Epoch(1), nonce: NONCE, unix_ms: 0, body };
    assert_eq!(create_record(&store, &late).await.unwrap(), CreateOutcome::Created);
    assert_eq!(holdfast_log::snapshots(&store, &id("a")).await.unwrap().len(), 1);
    provision(&store, &id("b"), fork_of("a", taken)).await.unwrap();
}

/// A node was force-detached while another took over the volume, wrote to it and detached, and the volume was
/// removed. The node returns, and its snapshot record wins a position that the removal has emptied.
#[tokio::test]
async fn a_snapshot_that_came_after_the_removal_is_no_source() {
    let store = MemoryStore::new();
    let mut a = Stored::attached(store.clone(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
    a.commit(3, &[(0, 0b1)]).await;
    let mut as_cut_off = read_manifest_to_end(&store, &id("a")).await.unwrap();
    let epoch = a.epoch;
    a.attach(4, SECTORS).await;
    a.record(5, Body::Detach { root: None }).await;
    remove(&store, &id("a"), NONCE, 0, None).await.unwrap();
    let change = SnapshotChange { taken: Some(SnapshotUid([1; 16])), dropped: Vec::new() };
    let body = Body::of_snapshots(change);
    let late = Record { volume: id("a"), seq: Seq(4), epoch: Epoch(epoch), nonce: NONCE, unix_ms: 0, body };
    as_cut_off.apply(&late).unwrap();
    let root = ObjectKey::Snapshot(id("a"), Seq(4)).to_string();
    let _created = store.create(&root, as_cut_off.encode_root().into()).await.unwrap();
    assert_eq!(create_record(&store, &late).await.unwrap(), CreateOutcome::Created, "it takes it for taken");
    let forked = provision(&store, &id("b"), fork_of("a", Seq(4))).await;
    assert!(!keys(&store).contains(&segment_key(&a, 0)), "what the fork would read is gone");
    assert!(forked.is_err(), "said to stand: {forked:?}");
}

/// Creates a fork that came after the mark, whose creator then died, and which reads a merged run.
async fn with_void_fork(is_swept: bool) -> MemoryStore {
    let store = MemoryStore::new();
    let mut a = Stored::attached(store.clone(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
    a.commit(3, &[(0, 0b1)]).await;
    a.commit(4, &[(1, 0b1)]).await;
    a.merge(5, 0, 2).await;
    a.record(6, Body::Detach { root: None }).await;
    let seq = snapshot(&store, "a").await;
    let root = read_snapshot(&store, &id("a"), seq).await.unwrap();
    let source = root.fork().map(Box::new);
    forget(&store, &id("a"), seq).await.unwrap();
    if is_swept {
        remove(&store, &id("a"), NONCE, 0, None).await.unwrap();
        swept(&store).await;
    }
    let body = Body::Create { sectors: SECTORS, source, labels: Default::default() };
    let late = Record { volume: id("b"), seq: Seq(1), epoch: Epoch(0), nonce: NONCE, unix_ms: 0, body };
    assert_eq!(create_record(&store, &late).await.unwrap(), CreateOutcome::Created);
    if !is_swept {
        remove(&store, &id("a"), NONCE, 0, None).await.unwrap();
    }
    store
}

#[tokio::test]
async fn a_void_fork_keeps_nothing() {
    let store = with_void_fork(false).await;
    for _ in 0..3 {
        swept(&store).await;
    }
    let left = keys(&store);
    assert!(!left.iter().any(|key| key.contains("/segments/") || key.contains("/runs/")), "{left:?}");
}

#[tokio::test]
async fn a_void_fork_is_no_damage() {
    let store = with_void_fork(true).await;
    for _ in 0..2 {
        swept(&store).await;
    }
    let skipped = swept(&store).await.skipped;
    assert!(skipped.is_empty(), "each sweep from now on: {:?}", skipped[0].error);
}

/// Readers of a fork with a checkpoint do not need its first record; the checkpoint names its ancestors.
#[tokio::test]
async fn a_fork_without_its_own_first_record_keeps_what_it_reads() {
    for is_foreign in [false, true] {
        let (a, seq) = with_snapshot(MemoryStore::new(), "a").await;
        let store = a.store.clone();
        provision(&store, &id("b"), fork_of("a", seq)).await.unwrap();
        let manifest = read_manifest_to_end(&store, &id("b")).await.unwrap();
        let bytes = manifest.encode_checkpoint().into();
        write_checkpoint(&store, &id("b"), manifest.seq(), bytes).await.unwrap();
        let first = "volumes/b/log/00000000000000000001";
        if is_foreign {
            overwrite(&store, first, "volumes/a/log/00000000000000000001").await;
        } else {
            store.delete(&[first]).await.unwrap();
        }
        forget(&store, &id("a"), seq).await.unwrap();
        assert_eq!(read_manifest_to_end(&store, &id("b")).await.unwrap().lineage().ancestors(), [id("a")]);
        remove(&store, &id("a"), NONCE, 0, Some(Epoch(u64::MAX))).await.unwrap();
        swept(&store).await;
        assert!(keys(&store).contains(&segment_key(&a, 0)), "volume b reads it; foreign: {is_foreign}");
    }
}

/// Found by review: `b` ends while `c` is created; the deletion of the objects of `a` had listed the volumes
/// before `c` existed, and read `b` after its end.
#[tokio::test]
async fn a_fork_of_a_fork_that_ends_meanwhile_keeps_the_objects() {
    let (a, seq) = with_snapshot(MemoryStore::new(), "a").await;
    let store = a.store.clone();
    provision(&store, &id("b"), fork_of("a", seq)).await.unwrap();
    let of_b = snapshot(&store, "b").await;
    forget(&store, &id("a"), seq).await.unwrap();
    remove(&store, &id("a"), NONCE, 0, Some(Epoch(u64::MAX))).await.unwrap();
    let script = async |inner: MemoryStore| {
        provision(&inner, &id("c"), fork_of("b", of_b)).await.unwrap();
        forget(&inner, &id("b"), of_b).await.unwrap();
        remove(&inner, &id("b"), NONCE, 0, None).await.unwrap();
    };
    let meanwhile = Before { inner: store.clone(), key: "volumes/b/log/", script: Mutex::new(Some(script)) };
    sweep(&meanwhile, &mut SweepMemory::default(), all()).await.unwrap();
    assert!(read_manifest_to_end(&store, &id("c")).await.unwrap().exists());
    assert!(keys(&store).contains(&segment_key(&a, 0)), "volume c reads it");
}

/// Like a truncation marker: a mark is empty, so another server's page is not a mark.
#[tokio::test]
async fn a_page_in_the_place_of_a_mark_ends_no_fork() {
    let (a, seq) = with_snapshot(MemoryStore::new(), "a").await;
    let store = a.store.clone();
    let script = async |inner: MemoryStore| {
        let mark = ObjectKey::Forgotten(id("a"), seq).to_string();
        let _created = inner.create(&mark, b"<html>sign in</html>".to_vec().into()).await.unwrap();
    };
    let page = Before {
        inner: store.clone(),
        key: "volumes/b/log/00000000000000000001",
        script: Mutex::new(Some(script)),
    };
    provision(&page, &id("b"), fork_of("a", seq)).await.unwrap_err();
    assert!(!read_manifest_to_end(&store, &id("b")).await.unwrap().is_deleted());
}

/// The prefix of another store may be below a volume's.
#[tokio::test]
async fn a_removal_leaves_keys_that_are_not_its_own() {
    let (a, seq) = with_snapshot(MemoryStore::new(), "a").await;
    forget(&a.store, &id("a"), seq).await.unwrap();
    let of_other = "volumes/a/volumes/b/log/00000000000000000001";
    let _created = a.store.create(of_other, b"record".to_vec().into()).await.unwrap();
    remove(&a.store, &id("a"), Nonce::default(), 0, Some(Epoch(u64::MAX))).await.unwrap();
    assert!(keys(&a.store).contains(of_other));
}

/// A lost response near the end of a sweep costs one request, not every head again.
#[tokio::test]
async fn a_sweep_that_fails_remembers_what_it_read() {
    let (a, _) = with_snapshot(MemoryStore::new(), "a").await;
    let store = a.store.clone();
    let mut memory = SweepMemory::default();
    sweep(&store, &mut memory, all()).await.unwrap();
    let count = async |memory: &mut SweepMemory| {
        let before = store.counts().get;
        sweep(&store, memory, all()).await.unwrap();
        store.counts().get - before
    };
    let known = count(&mut memory).await;
    // Another volume, whose head the store does not return.
    let mut b = Stored::attached(store.clone(), "b", Creation::plain(SECTORS, NONCE, 0), 2).await;
    b.commit(3, &[(0, 0b1)]).await;
    b.commit(4, &[(0, 0b1)]).await;
    b.merge(5, 0, 2).await;
    let failing = RangeFails { inner: store.clone() };
    sweep(&failing, &mut memory, all()).await.unwrap_err();
    remove(&store, &id("b"), NONCE, 0, Some(Epoch(u64::MAX))).await.unwrap();
    let log_of_b = 2;
    assert!(count(&mut memory).await <= known + log_of_b, "the memory of volume a were read again");
}

/// The grace does not help: the segment is old, but became garbage just now.
#[tokio::test]
async fn a_scrub_takes_what_was_swept_meanwhile_for_no_damage() {
    let store = MemoryStore::new();
    let mut a = Stored::attached(store.clone(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
    a.commit(3, &[(0, 0b1)]).await;
    a.commit(4, &[(0, 0b1)]).await;
    let script = async move |inner: MemoryStore| {
        a.merge(5, 0, 2).await;
        assert_eq!(swept(&inner).await.deleted.objects, 1);
    };
    let meanwhile = Before { inner: store, key: "volumes/a/segments/", script: Mutex::new(Some(script)) };
    let report = holdfast_log::scrub::scrub(&meanwhile, &id("a"), &|_| ()).await.unwrap();
    assert!(report.findings.is_empty(), "the volume has no damage: {:?}", report.findings);
}

/// The bucket lost the end of a log, and kept the mark of the snapshot that was there.
#[tokio::test]
async fn a_snapshot_that_was_taken_counts() {
    let store = MemoryStore::new();
    provision(&store, &id("a"), Creation::plain(SECTORS, NONCE, 0)).await.unwrap();
    let seq = snapshot(&store, "a").await;
    forget(&store, &id("a"), seq).await.unwrap();
    store.delete(&[&ObjectKey::Log(id("a"), seq).to_string()]).await.unwrap();
    let taken = snapshot_detached(&store, &id("a"), SnapshotUid([2; 16]), NONCE, 8).await.unwrap();
    assert_eq!(holdfast_log::snapshots(&store, &id("a")).await.unwrap(), [taken], "it was said to be taken");
}

/// The grace protects against user mistakes, and against a LIST that does not show a new fork yet. A
/// snapshot's objects are already old when it is forgotten.
#[tokio::test]
async fn what_a_snapshot_held_waits_for_the_grace_after_its_mark() {
    let (a, seq) = with_snapshot(MemoryStore::new(), "a").await;
    tokio::time::sleep(Duration::from_millis(1500)).await;
    forget(&a.store, &id("a"), seq).await.unwrap();
    let options = SweepOptions { grace: Duration::from_secs(1), ..all() };
    let report = sweep(&a.store, &mut SweepMemory::default(), options).await.unwrap();
    assert_eq!(report.deleted.objects, 0, "the mark is a moment old");
}

#[tokio::test]
async fn a_volume_is_counted_once() {
    let (a, _) = with_snapshot(MemoryStore::new(), "a").await;
    let run = a.store.keys().into_iter().find(|key| key.contains("/runs/")).unwrap();
    a.store.corrupt(&run, |bytes| bytes.fill(7));
    assert_eq!(swept(&a.store).await.volumes, 1);
}

/// A store that runs a script before the first request for an object under `key`.
struct Before<F> {
    inner: MemoryStore,
    key: &'static str,
    script: Mutex<Option<F>>,
}

/// A store that rejects range reads of runs of volume b.
#[derive(Debug)]
struct RangeFails {
    inner: MemoryStore,
}

impl<F> std::fmt::Debug for Before<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Before").field("key", &self.key).finish_non_exhaustive()
    }
}

impl<F: AsyncFnOnce(MemoryStore)> Before<F> {
    fn pass(&self, key: &str) {
        if key.starts_with(self.key)
            && let Some(script) = self.script.lock().unwrap().take()
        {
            script(self.inner.clone()).now_or_never().unwrap();
        }
    }
}

#[async_trait]
impl<F: AsyncFnOnce(MemoryStore) + Send + Sync> ObjectStore for Before<F> {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.pass(key);
        self.inner.get(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.pass(key);
        self.inner.get_range(key, range).await
    }

    async fn get_suffix(&self, key: &str, bytes: u64) -> Result<Suffix, StoreError> {
        self.pass(key);
        self.inner.get_suffix(key, bytes).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.pass(key);
        self.inner.create(key, body).await
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        self.inner.put_segment(key, parts).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.inner.list(prefix, start_after, limit).await
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.inner.delete(keys).await
    }

    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        self.inner.unfinished_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        self.inner.abort_upload(upload).await
    }
}

#[async_trait]
impl ObjectStore for RangeFails {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.inner.get(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        if key.starts_with("volumes/b/") {
            return Err(StoreError::TimedOut { after: Duration::ZERO });
        }
        self.inner.get_range(key, range).await
    }

    async fn get_suffix(&self, key: &str, bytes: u64) -> Result<Suffix, StoreError> {
        self.inner.get_suffix(key, bytes).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.inner.create(key, body).await
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        self.inner.put_segment(key, parts).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        self.inner.list(prefix, start_after, limit).await
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.inner.delete(keys).await
    }

    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        self.inner.unfinished_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        self.inner.abort_upload(upload).await
    }
}
