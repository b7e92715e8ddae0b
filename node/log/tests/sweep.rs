//! Sweeps of a store with several volumes.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod stored;

use std::collections::BTreeSet;
use std::time::Duration;

use holdfast_format::record::Body;
use holdfast_log::sweep::{SweepMemory, SweepOptions, SweepReport, sweep};
use holdfast_log::{Creation, LogFailure, forget, provision, remove, snapshot_detached};
use holdfast_objects::{Blocker, ErrorKind, Fault, Gate, MemoryStore, ObjectStore, ReadyParts, Verb};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Nonce, Place, SegmentId, Seq, SnapshotUid, VolumeId};

use stored::{NONCE, Stored};

const SECTORS: u64 = 40_000;
const DAY: Duration = Duration::from_hours(24);

fn id(name: &str) -> VolumeId {
    name.parse().unwrap()
}

/// Deletes everything at once, slightly ahead of the store's clock.
fn all() -> SweepOptions {
    SweepOptions { grace: Duration::ZERO, dry_run: false, most: u64::MAX }
}

async fn swept(store: &MemoryStore) -> SweepReport {
    sweep(store, &mut SweepMemory::default(), all()).await.unwrap()
}

/// Creates volume `a` with commits 3 and 4, merged by the record at 5, and commit 6.
async fn with_garbage() -> Stored {
    let mut stored = Stored::attached(MemoryStore::new(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
    // Block 0 of commit 3 is hidden by that of commit 4.
    stored.commit(3, &[(0, 0b1)]).await;
    stored.commit(4, &[(0, 0b1)]).await;
    stored.merge(5, 0, 2).await;
    stored.commit(6, &[(1, 0b1)]).await;
    stored
}

/// Stores a segment for `place` that no record names.
async fn leave_segment(stored: &Stored, place: u64) -> String {
    let key = ObjectKey::Segment(stored.volume.clone(), SegmentId::new(Place::until(Seq(place)), 7, [9; 10]))
        .to_string();
    stored.store.put_segment(&key, &mut ReadyParts::new([b"unnamed".to_vec().into()])).await.unwrap();
    key
}

fn segment_key(stored: &Stored, number: usize) -> String {
    ObjectKey::Segment(stored.volume.clone(), stored.segments[number].0.id).to_string()
}

async fn snapshot(stored: &Stored, seq: u64) -> Seq {
    stored.record(seq, Body::Detach { root: None }).await;
    let taken = snapshot_detached(&stored.store, &stored.volume, SnapshotUid([1; 16]), NONCE, 7).await;
    taken.unwrap().seq
}

fn fork_of(volume: &str, seq: Seq) -> Creation {
    Creation { source: Some(format!("{volume}@{seq}").parse().unwrap()), ..Creation::plain(0, NONCE, 0) }
}

fn keys(store: &MemoryStore) -> BTreeSet<String> {
    store.keys().into_iter().collect()
}

#[tokio::test]
async fn unnamed_objects_go_once_the_log_has_passed_their_place() {
    let stored = with_garbage().await;
    let (passed, ahead) = (leave_segment(&stored, 6).await, leave_segment(&stored, 7).await);
    let before = keys(&stored.store);
    let report = swept(&stored.store).await;
    let mut gone = before;
    keys(&stored.store).iter().for_each(|key| assert!(gone.remove(key)));
    assert_eq!(gone, BTreeSet::from([passed, segment_key(&stored, 0)]), "commit 3 is hidden since the merge");
    assert_eq!((report.volumes, report.garbage, report.deleted.objects), (1, report.deleted, 2));
    assert!(keys(&stored.store).contains(&ahead), "a writer may still name it");
    assert_eq!(report.kept.objects, stored.store.keys().len() as u64);
    assert_eq!((report.oldest, report.skipped.len()), (None, 0));
}

#[tokio::test]
async fn a_dry_run_deletes_nothing_and_says_what_would_go() {
    let stored = with_garbage().await;
    let before = keys(&stored.store);
    let options = SweepOptions { dry_run: true, ..all() };
    let report = sweep(&stored.store, &mut SweepMemory::default(), options).await.unwrap();
    assert_eq!((report.garbage.objects, report.deleted.objects), (1, 0));
    assert!(report.garbage.bytes > 4096 && report.oldest.is_some());
    assert_eq!(keys(&stored.store), before);
}

/// Regression, found in review: each sweep began with the lowest id, so that a volume with as much garbage as
/// the limit allows kept all volumes behind it from being swept.
#[tokio::test]
async fn a_limited_sweep_begins_behind_the_last_one() {
    let a = with_garbage().await;
    let store = a.store.clone();
    let b = Stored::attached(store.clone(), "b", Creation::plain(SECTORS, NONCE, 0), 2).await;
    leave_segment(&a, 1).await;
    leave_segment(&a, 2).await;
    let of_b = leave_segment(&b, 1).await;
    let (limited, mut memory) = (SweepOptions { most: 1, ..all() }, SweepMemory::default());
    let mut left = Vec::new();
    for _ in 0..5 {
        let report = sweep(&store, &mut memory, limited).await.unwrap();
        assert_eq!(report.volumes, 2);
        left.push((report.garbage.objects - report.deleted.objects, keys(&store).contains(&of_b)));
    }
    assert_eq!(left, [(3, true), (2, false), (1, false), (0, false), (0, false)]);
}

/// Returns the key of a segment of `volume` for `place`.
fn segment_at(volume: &str, place: u64) -> String {
    ObjectKey::Segment(id(volume), SegmentId::new(Place::until(Seq(place)), 7, [9; 10])).to_string()
}

/// Regression: parts of a killed daemon's upload stayed in the bucket permanently, and were billed.
#[tokio::test]
async fn uploads_that_a_killed_daemon_left_are_aborted() {
    let stored = with_garbage().await;
    let passed = [segment_at("a", 4), segment_at("a", 6)];
    // The next record may name it; another volume's are unknown; another program's are foreign.
    let kept = [segment_at("a", 7), segment_at("b", 1), "volumes/a/other".to_owned()];
    passed.iter().chain(&kept).for_each(|key| stored.store.leave_upload(key));
    let young = SweepOptions { grace: DAY, ..all() };
    let report = sweep(&stored.store, &mut SweepMemory::default(), young).await.unwrap();
    assert_eq!((report.uploads.abandoned, report.uploads.aborted), (0, 0));
    let dry = SweepOptions { dry_run: true, ..all() };
    let report = sweep(&stored.store, &mut SweepMemory::default(), dry).await.unwrap();
    assert_eq!((report.uploads.abandoned, report.uploads.aborted), (2, 0));
    let report = swept(&stored.store).await;
    assert_eq!((report.uploads.abandoned, report.uploads.aborted), (2, 2));
    assert!(report.uploads.failed.is_none());
    assert_eq!(stored.store.left_uploads(), kept);
    // No upload of a removed volume is useful.
    stored.record(7, Body::Detach { root: None }).await;
    remove(&stored.store, &stored.volume, NONCE, 0, None).await.unwrap();
    assert_eq!(swept(&stored.store).await.uploads.aborted, 1);
    assert_eq!(stored.store.left_uploads(), kept[1..]);
}

/// Policies of earlier versions lack the right to abort.
#[tokio::test]
async fn a_store_that_denies_an_abort_is_swept_all_the_same() {
    let stored = with_garbage().await;
    stored.store.leave_upload(&segment_at("a", 4));
    stored.store.fail_always(Verb::AbortUpload, Fault::Before(ErrorKind::Denied));
    let report = swept(&stored.store).await;
    assert_eq!((report.deleted.objects, report.uploads.aborted), (1, 0));
    let failed = report.uploads.failed.expect("it says why");
    assert_eq!(failed.kind(), ErrorKind::Denied);
    assert_eq!(stored.store.left_uploads().len(), 1);
}

#[tokio::test]
async fn young_garbage_and_what_is_over_the_limit_waits() {
    let stored = with_garbage().await;
    leave_segment(&stored, 1).await;
    let young = SweepOptions { grace: DAY, ..all() };
    let report = sweep(&stored.store, &mut SweepMemory::default(), young).await.unwrap();
    assert_eq!((report.garbage.objects, report.deleted.objects), (2, 0));
    let one = SweepOptions { most: 1, ..all() };
    for left in [1, 0] {
        let report = sweep(&stored.store, &mut SweepMemory::default(), one).await.unwrap();
        assert_eq!((report.garbage.objects, report.deleted.objects), (left + 1, 1));
        assert_eq!(report.oldest.is_some(), left > 0);
    }
}

#[tokio::test]
async fn a_snapshot_keeps_what_the_volume_no_longer_names() {
    let mut stored = Stored::attached(MemoryStore::new(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
    stored.commit(3, &[(0, 0b1)]).await;
    let seq = snapshot(&stored, 4).await;
    assert_eq!(seq, Seq(5));
    stored.attach(6, SECTORS).await;
    stored.commit(7, &[(0, 0b1)]).await;
    stored.merge(8, 0, 2).await;
    let report = swept(&stored.store).await;
    assert_eq!(report.garbage.objects, 0);
    let [(name, only)] = &report.snapshots[..] else { panic!("{report:?}") };
    assert_eq!((&name.volume, name.seq), (&stored.volume, seq));
    forget(&stored.store, &stored.volume, seq).await.unwrap();
    // Its root, and the segment that only it named.
    let deleted = swept(&stored.store).await.deleted;
    assert_eq!((deleted.objects, deleted.bytes), (2, *only));
    assert!(!keys(&stored.store).contains(&segment_key(&stored, 0)));
    assert!(keys(&stored.store).contains(&segment_key(&stored, 1)));
}

#[tokio::test]
async fn a_root_that_no_record_registers_goes() {
    let stored = with_garbage().await;
    let [passed, ahead] =
        [Seq(4), Seq(7)].map(|seq| ObjectKey::Snapshot(stored.volume.clone(), seq).to_string());
    for key in [&passed, &ahead] {
        let _created = stored.store.create(key, b"root".to_vec().into()).await.unwrap();
    }
    swept(&stored.store).await;
    assert!(!keys(&stored.store).contains(&passed) && keys(&stored.store).contains(&ahead));
}

/// Forks of forks read merged runs and segments of removed volumes; removing the last one frees everything.
#[tokio::test]
async fn removed_volumes_keep_what_forks_read_until_those_are_gone() {
    let a = with_garbage().await;
    let seq = snapshot(&a, 7).await;
    let store = a.store.clone();
    let mut b = Stored::attached(store.clone(), "b", fork_of("a", seq), 3).await;
    b.commit(4, &[(2, 0b1)]).await;
    let of_b = snapshot(&b, 5).await;
    provision(&store, &id("c"), fork_of("b", of_b)).await.unwrap();
    for (volume, seq) in [(&a.volume, seq), (&b.volume, of_b)] {
        forget(&store, volume, seq).await.unwrap();
        remove(&store, volume, Nonce::default(), 0, None).await.unwrap();
    }
    swept(&store).await;
    let left = keys(&store);
    let is_data = |key: &&String| key.contains("/segments/") || key.contains("/runs/");
    // Of a: the merged run, and the segments of commits 4 and 6. Of b: its segment.
    assert_eq!(left.iter().filter(is_data).count(), 4, "{left:?}");
    assert!(!left.iter().any(|key| key.contains("/snapshots/") || key.contains("/checkpoints/")));
    remove(&store, &id("c"), Nonce::default(), 0, None).await.unwrap();
    swept(&store).await;
    let left = keys(&store);
    let stays = ["/log/", "/truncated/", "/forgotten/"];
    assert!(left.iter().all(|key| stays.iter().any(|kind| key.contains(kind))), "{left:?}");
    assert_eq!(left.iter().filter(|key| key.contains("/log/")).count(), 6, "create and tombstone: {left:?}");
    assert_eq!(swept(&store).await.garbage.objects, 0);
}

/// A fork is created after the sweep listed the volumes, and before its snapshot is forgotten.
#[tokio::test]
async fn a_fork_that_comes_during_a_sweep_is_seen() {
    let mut a = Stored::attached(MemoryStore::new(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
    a.commit(3, &[(0, 0b1)]).await;
    let seq = snapshot(&a, 4).await;
    a.attach(6, SECTORS).await;
    a.commit(7, &[(0, 0b1)]).await;
    a.merge(8, 0, 2).await;
    let (gate, store) = (Gate::new(), a.store.clone());
    store.fail_next(Verb::Get, Fault::Hold(gate.clone()));
    let sweeping = tokio::spawn({
        let store = store.clone();
        async move { swept(&store).await }
    });
    gate.arrival().await;
    provision(&store, &id("b"), fork_of("a", seq)).await.unwrap();
    forget(&store, &a.volume, seq).await.unwrap();
    gate.release();
    let report = sweeping.await.unwrap();
    assert_eq!(report.volumes, 2);
    assert!(keys(&store).contains(&segment_key(&a, 0)), "volume b reads it");
}

#[tokio::test]
async fn what_cannot_be_read_keeps_its_objects_and_those_behind_it() {
    let a = with_garbage().await;
    let seq = snapshot(&a, 7).await;
    let store = a.store.clone();
    let b = Stored::attached(store.clone(), "b", fork_of("a", seq), 3).await;
    let other = Stored::attached(store.clone(), "other", Creation::plain(SECTORS, NONCE, 0), 2).await;
    let garbage = [leave_segment(&a, 1).await, leave_segment(&b, 1).await, leave_segment(&other, 1).await];
    let attach = ObjectKey::Log(id("b"), Seq(3)).to_string();
    store.corrupt(&attach, |bytes| bytes[40] ^= 1);
    let report = swept(&store).await;
    assert_eq!(report.skipped.iter().map(|skipped| skipped.volume.as_str()).collect::<Vec<_>>(), ["b"]);
    assert!(matches!(report.skipped[0].error, LogFailure::Damaged { .. }));
    let is_left = |key: &String| keys(&store).contains(key);
    assert_eq!(garbage.each_ref().map(is_left), [true, true, false]);
    // The ancestors of b are now unknown: any volume that has or had snapshots.
    store.corrupt(&ObjectKey::Log(id("b"), Seq::FIRST).to_string(), |bytes| bytes[40] ^= 1);
    swept(&store).await;
    assert_eq!(garbage.each_ref().map(is_left), [true, true, false]);
}

#[tokio::test]
async fn a_damaged_run_keeps_the_volume_whole() {
    let stored = with_garbage().await;
    let run = stored.store.keys().into_iter().find(|key| key.contains("/runs/")).unwrap();
    stored.store.corrupt(&run, |bytes| bytes.fill(7));
    let report = swept(&stored.store).await;
    assert_eq!((report.skipped.len(), report.garbage.objects), (1, 0));
    assert!(report.skipped[0].error.to_string().contains(&run));
}

/// Found by review: one archived object, or one with a disabled key, stopped the sweeps of its whole bucket.
#[tokio::test]
async fn an_object_that_the_store_refuses_to_send_keeps_only_its_volume() {
    for kind in [
        ErrorKind::Denied,
        ErrorKind::Blocked(Blocker::Archived),
        ErrorKind::Blocked(Blocker::Key),
        ErrorKind::Invalid,
        ErrorKind::Corrupt,
    ] {
        for part in ["/log/", "/runs/", "/snapshots/"] {
            let a = with_garbage().await;
            snapshot(&a, 7).await;
            let store = a.store.clone();
            let other = Stored::attached(store.clone(), "other", Creation::plain(SECTORS, NONCE, 0), 2).await;
            let (kept, garbage) = (leave_segment(&a, 1).await, leave_segment(&other, 1).await);
            let of_a = |key: &&String| key.starts_with("volumes/a/") && key.contains(part);
            let key = store.keys().iter().rfind(of_a).expect("there is one").clone();
            store.make_unreadable(&key, kind);
            let report = swept(&store).await;
            let skipped: Vec<&str> = report.skipped.iter().map(|skipped| skipped.volume.as_str()).collect();
            assert_eq!(skipped, ["a"], "{kind:?} {key}");
            let is_left = |key: &String| keys(&store).contains(key);
            assert_eq!([is_left(&kept), is_left(&garbage)], [true, false], "{kind:?} {key}");
        }
    }
}

/// Found in review: without the right to read, each sweep skipped all volumes and counted as done.
#[tokio::test]
async fn a_store_that_denies_all_reads_ends_the_sweep() {
    let stored = with_garbage().await;
    Stored::attached(stored.store.clone(), "other", Creation::plain(SECTORS, NONCE, 0), 2).await;
    stored.store.fail_always(Verb::Get, Fault::Before(ErrorKind::Denied));
    let error = sweep(&stored.store, &mut SweepMemory::default(), all()).await.unwrap_err();
    assert!(error.to_string().starts_with("read"), "{error}");
}

/// Only with the right to delete can a sweep do its work; the error names the missing right.
#[tokio::test]
async fn a_store_that_denies_deletes_ends_the_sweep() {
    let stored = with_garbage().await;
    stored.store.fail_always(Verb::Delete, Fault::Before(ErrorKind::Denied));
    let error = sweep(&stored.store, &mut SweepMemory::default(), all()).await.unwrap_err();
    assert!(error.to_string().starts_with("delete the objects"), "{error}");
}

#[tokio::test]
async fn a_store_that_does_not_answer_ends_the_sweep() {
    for verb in [Verb::Get, Verb::List] {
        let stored = with_garbage().await;
        let before = keys(&stored.store);
        stored.store.fail_always(verb, Fault::Before(ErrorKind::Unavailable));
        let error = sweep(&stored.store, &mut SweepMemory::default(), all()).await.unwrap_err();
        assert!(error.is_transient(), "{error}");
        stored.store.heal();
        assert_eq!(keys(&stored.store), before);
    }
}

/// A second snapshot of the same content, or a fork, shares the objects of the first.
#[tokio::test]
async fn what_two_snapshots_hold_is_of_neither_alone() {
    let mut stored = Stored::attached(MemoryStore::new(), "a", Creation::plain(SECTORS, NONCE, 0), 2).await;
    stored.commit(3, &[(0, 0b1)]).await;
    let first = snapshot(&stored, 4).await;
    let second = SnapshotUid([8; 16]);
    let taken = holdfast_log::snapshot_detached(&stored.store, &stored.volume, second, NONCE, 0).await;
    let second = taken.unwrap().seq;
    let root = |seq: Seq| ObjectKey::Snapshot(stored.volume.clone(), seq).to_string();
    let size = async |seq| stored.store.get(&root(seq), 1 << 20).await.unwrap().len() as u64;
    let (report, roots) = (swept(&stored.store).await, [size(first).await, size(second).await]);
    let only: Vec<(Seq, u64)> = report.snapshots.iter().map(|(name, only)| (name.seq, *only)).collect();
    assert_eq!(only, [(first, roots[0]), (second, roots[1])], "the volume has all else");
}

/// 1,000 snapshots cost one request each once, and none later, except for LISTs of more than a page.
#[tokio::test]
async fn a_later_sweep_asks_as_much_with_a_thousand_snapshots_as_with_one() {
    let stored = with_garbage().await;
    let mut requests = Vec::new();
    // With as many records after the newest checkpoint: one is stored per 32.
    for snapshots in [1u32, 1 + 32 * 32] {
        for number in u32::from(!requests.is_empty())..snapshots {
            if number == 0 {
                snapshot(&stored, 7).await;
                continue;
            }
            let uid = SnapshotUid(u128::from(number).to_le_bytes());
            let taken = holdfast_log::snapshot_detached(&stored.store, &stored.volume, uid, NONCE, 0).await;
            taken.unwrap();
        }
        let mut memory = SweepMemory::default();
        for _ in 0..2 {
            let before = stored.store.counts();
            sweep(&stored.store, &mut memory, all()).await.unwrap();
            let after = stored.store.counts();
            requests.push((after.get + after.list) - (before.get + before.list));
        }
    }
    let [first_of_one, _, first, second] = requests[..] else { panic!("{requests:?}") };
    println!(
        "{{\"sweep_of\":\"snapshots\",\"first_of_one\":{first_of_one},\"second_of_thousand\":{second}}}"
    );
    // One more page of the volume's objects.
    assert!(first > 1_000 && second == first_of_one + 1, "{requests:?}");
}

#[tokio::test]
async fn the_next_sweep_reads_no_root_or_run_again() {
    let stored = with_garbage().await;
    snapshot(&stored, 7).await;
    let mut memory = SweepMemory::default();
    let mut gets = Vec::new();
    for _ in 0..3 {
        let before = stored.store.counts().get;
        sweep(&stored.store, &mut memory, all()).await.unwrap();
        gets.push(stored.store.counts().get - before);
    }
    assert_eq!((gets[0] - gets[1], gets[1]), (2, gets[2]), "the run's head, and the root");
}

/// Regression: each publication of a ReadOnlyMany claim creates a fork that is removed at its end; its
/// remains bar its id. Every later sweep read it like a volume in use, and every removal of a volume that had
/// a snapshot listed it.
#[tokio::test]
async fn what_is_left_of_removed_volumes_costs_a_sweep_one_get_each() {
    const READERS: u64 = 50;
    /// Requests of a removal, whatever else is in the bucket.
    const GETS: u64 = 4;
    const LISTS: u64 = 3;
    let stored = Stored::attached(MemoryStore::new(), "v", Creation::plain(SECTORS, NONCE, 0), 2).await;
    let (store, mut memory) = (&stored.store, SweepMemory::default());
    let seq = snapshot(&stored, 3).await;
    let requests = async |memory: &mut SweepMemory| {
        let before = store.counts();
        let report = sweep(store, memory, all()).await.unwrap();
        let after = store.counts();
        (report, after.list - before.list, after.get - before.get)
    };
    requests(&mut memory).await;
    let (_, lists, gets) = requests(&mut memory).await;
    for number in 0..READERS {
        let name = format!("reader-{number}");
        let reader = Stored::attached(store.clone(), &name, fork_of("v", seq), 3).await;
        reader.detach(4).await;
        remove(store, &id(&name), NONCE, 0, None).await.unwrap();
    }
    let (first, ..) = requests(&mut memory).await;
    let (second, lists_then, gets_then) = requests(&mut memory).await;
    assert_eq!((lists_then - lists, gets_then - gets), (0, READERS));
    assert_eq!((second.volumes, second.kept), (first.volumes, first.kept));
    assert_eq!(second.volumes, READERS + 1);
    // None by the removal of their source.
    forget(store, &id("v"), seq).await.unwrap();
    let before = store.counts();
    remove(store, &id("v"), NONCE, 0, None).await.unwrap();
    let after = store.counts();
    assert_eq!((after.get - before.get, after.list - before.list), (GETS, LISTS));
}

/// A restored bucket may have a removed volume again, which reads other volumes' objects.
#[tokio::test]
async fn a_removed_volume_that_is_there_again_keeps_its_objects() {
    let mut stored = Stored::attached(MemoryStore::new(), "v", Creation::plain(SECTORS, NONCE, 0), 2).await;
    stored.commit(3, &[(0, 0b1)]).await;
    let seq = snapshot(&stored, 4).await;
    let (store, mut memory) = (stored.store.clone(), SweepMemory::default());
    let fork = Stored::attached(store.clone(), "fork", fork_of("v", seq), 3).await;
    fork.detach(4).await;
    let kept: Vec<String> = keys(&store).into_iter().filter(|key| key.starts_with("volumes/fork/")).collect();
    let mut bodies = Vec::new();
    for key in kept {
        bodies.push((key.clone(), store.get(&key, u64::MAX).await.unwrap()));
    }
    remove(&store, &id("fork"), NONCE, 0, None).await.unwrap();
    for _ in 0..2 {
        sweep(&store, &mut memory, all()).await.unwrap();
    }
    // Restored: the fork exists again, without its tombstone.
    let tombstone = ObjectKey::Log(id("fork"), Seq(5)).to_string();
    store.delete(&[&tombstone]).await.unwrap();
    for (key, body) in bodies {
        let _there = store.create(&key, body).await;
    }
    forget(&store, &id("v"), seq).await.unwrap();
    remove(&store, &id("v"), NONCE, 0, None).await.unwrap();
    sweep(&store, &mut memory, all()).await.unwrap();
    assert!(keys(&store).contains(&segment_key(&stored, 0)), "the fork reads it");
}
