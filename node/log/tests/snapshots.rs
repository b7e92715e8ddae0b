//! Snapshots of a volume without a writer, on the reference store.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::time::Duration;

use bytes::Bytes;
use holdfast_format::record::{Body, Labels, Record};
use holdfast_format::snapshot::{Snapshot, SnapshotChange};
use holdfast_log::sweep::{SweepMemory, SweepOptions, sweep};
use holdfast_log::{
    CreateOutcome, Creation, LogFailure, OriginPlace, SnapshotError, create_record, forget, forgotten_of,
    provision, read_manifest_to_end, read_snapshot, read_snapshot_of, remove, snapshot_detached, snapshots,
    store_origin, write_checkpoint,
};
use holdfast_objects::{Created, ErrorKind, Fault, Gate, MemoryStore, ObjectStore, Verb};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Epoch, Nonce, Seq, SnapshotName, SnapshotUid, VolumeId};

const NONCE: Nonce = Nonce([3; 16]);
const SECTORS: u64 = 1000;
const AT_ONCE: SweepOptions = SweepOptions { grace: Duration::ZERO, dry_run: false, most: u64::MAX };

fn volume() -> VolumeId {
    "v".parse().unwrap()
}

fn uid(name: u8) -> SnapshotUid {
    SnapshotUid([name; 16])
}

async fn created() -> MemoryStore {
    let store = MemoryStore::new();
    provision(&store, &volume(), Creation::plain(SECTORS, NONCE, 0)).await.unwrap();
    store
}

async fn append(store: &MemoryStore, epoch: u64, body: Body) {
    let seq = read_manifest_to_end(store, &volume()).await.unwrap().seq().next();
    let record = Record { volume: volume(), seq, epoch: Epoch(epoch), nonce: NONCE, unix_ms: 0, body };
    assert_eq!(create_record(store, &record).await.unwrap(), CreateOutcome::Created);
}

async fn attach(store: &MemoryStore, epoch: u64) {
    append(store, epoch, Body::Attach { sectors: SECTORS, node: "n".into(), displaced: None }).await;
}

async fn take(store: &MemoryStore, name: u8) -> Result<Snapshot, SnapshotError> {
    snapshot_detached(store, &volume(), uid(name), Nonce([name; 16]), 7).await
}

async fn list(store: &MemoryStore) -> Vec<u64> {
    snapshots(store, &volume()).await.unwrap().iter().map(|known| known.seq.0).collect()
}

async fn keys(store: &MemoryStore, kind: &str) -> usize {
    store.list(&format!("volumes/v/{kind}/"), None, 100).await.unwrap().entries.len()
}

#[tokio::test]
async fn a_snapshot_of_a_detached_volume_is_two_puts() {
    let store = created().await;
    let before = store.counts();
    let taken = take(&store, 1).await.unwrap();
    assert_eq!(taken, Snapshot { seq: Seq(2), uid: uid(1), unix_ms: 7, sectors: SECTORS });
    assert_eq!(store.counts().put - before.put, 2);
    assert_eq!(snapshots(&store, &volume()).await.unwrap(), [taken]);
    let root = read_snapshot(&store, &volume(), taken.seq).await.unwrap();
    assert_eq!((root.seq(), root.sectors()), (Seq(2), SECTORS));
}

/// Unregistered roots, and the snapshots of another history, are at the same seqs.
#[tokio::test]
async fn a_snapshot_is_read_only_for_the_uid_that_it_was_taken_for() {
    let store = created().await;
    let name = |seq| SnapshotName { volume: volume(), seq };
    assert_eq!(read_snapshot_of(&store, &name(Seq(2)), uid(1)).await.unwrap(), None);
    let taken = take(&store, 1).await.unwrap();
    let root = read_snapshot_of(&store, &name(taken.seq), uid(1)).await.unwrap().unwrap();
    assert_eq!(root.seq(), taken.seq);
    assert_eq!(read_snapshot_of(&store, &name(taken.seq), uid(2)).await.unwrap(), None);
    store.delete(&[&ObjectKey::Snapshot(volume(), taken.seq).to_string()]).await.unwrap();
    assert_eq!(read_snapshot_of(&store, &name(taken.seq), uid(1)).await.unwrap(), None);
}

/// Regression: a restored bucket reaches seqs again whose roots it kept, and these passed for its own.
#[tokio::test]
async fn a_snapshot_passes_the_roots_of_another_history() {
    let store = created().await;
    for seq in 2..5 {
        let key = ObjectKey::Snapshot(volume(), Seq(seq)).to_string();
        let Created = store.create(&key, Bytes::from_static(b"of another history")).await.unwrap();
    }
    let taken = take(&store, 1).await.unwrap();
    assert_eq!((taken.seq, list(&store).await), (Seq(5), vec![5]));
    assert_eq!(read_snapshot(&store, &volume(), Seq(5)).await.unwrap().seq(), Seq(5));
    assert_eq!(take(&store, 1).await.unwrap(), taken);
}

/// The number of conflicting roots is the maximum that one request passes: the next request gets further.
#[tokio::test]
async fn a_snapshot_without_a_place_says_so() {
    let store = created().await;
    for seq in 2..10 {
        let key = ObjectKey::Snapshot(volume(), Seq(seq)).to_string();
        let Created = store.create(&key, Bytes::from_static(b"of another history")).await.unwrap();
    }
    let refused = take(&store, 1).await.unwrap_err();
    assert!(refused.to_string().starts_with("snapshot v@9 was not taken: the roots of other"), "{refused}");
    assert_eq!(list(&store).await, [0; 0]);
    assert_eq!(take(&store, 1).await.unwrap().seq, Seq(10));
}

#[tokio::test]
async fn the_same_uid_answers_the_same_snapshot() {
    let store = created().await;
    let taken = take(&store, 1).await.unwrap();
    assert_ne!(take(&store, 2).await.unwrap().seq, taken.seq);
    attach(&store, 1).await;
    let puts = store.counts().put;
    assert_eq!(take(&store, 1).await.unwrap(), taken);
    assert_eq!(store.counts().put, puts);
}

/// The reply to the record's create, or the request, is lost, and the caller retries.
#[tokio::test]
async fn a_lost_reply_registers_one_snapshot() {
    for fault in [Fault::LostReply, Fault::LostRequest] {
        let store = created().await;
        store.fail_next(Verb::Put, Fault::Delay(Duration::ZERO));
        store.fail_next(Verb::Put, fault);
        let _first = take(&store, 1).await;
        let taken = take(&store, 1).await.unwrap();
        assert_eq!(list(&store).await, [taken.seq.0]);
    }
}

#[tokio::test]
async fn an_attached_volume_names_the_node_to_ask() {
    let store = created().await;
    attach(&store, 1).await;
    let refused = take(&store, 1).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "volume v is attached by node n (epoch 1): take the snapshot on that node, or detach the volume there"
    );
    append(&store, 1, Body::Detach { root: None }).await;
    assert_eq!(take(&store, 1).await.unwrap().seq, Seq(4));
}

/// A node attaches between the root and the record.
#[tokio::test]
async fn a_snapshot_that_an_attach_overtook_is_not_registered() {
    let (store, gate) = (created().await, Gate::new());
    store.fail_next(Verb::Put, Fault::Delay(Duration::ZERO));
    store.fail_next(Verb::Put, Fault::Hold(gate.clone()));
    let overtaken = async {
        gate.arrival().await;
        attach(&store, 1).await;
        gate.release();
    };
    let (taken, ()) = tokio::join!(take(&store, 1), overtaken);
    assert!(matches!(taken, Err(SnapshotError::Attached { epoch: Epoch(1), .. })), "{taken:?}");
    assert_eq!((list(&store).await.len(), keys(&store, "snapshots").await), (0, 1));
    append(&store, 1, Body::Detach { root: None }).await;
    assert_eq!(take(&store, 1).await.unwrap().seq, Seq(4));
}

/// A store whose creates are not atomic confirms both, and has the record of the attach.
#[tokio::test]
async fn a_snapshot_that_an_attach_overwrote_is_not_registered() {
    let store = created().await;
    let [record, attaches, read] = [(); 3].map(|()| Gate::new());
    store.fail_next(Verb::Put, Fault::Delay(Duration::ZERO));
    store.fail_next(Verb::Put, Fault::HoldChecked(record.clone()));
    store.fail_next(Verb::Put, Fault::HoldChecked(attaches.clone()));
    let opens = async {
        attaches.arrival().await;
        store.fail_next(Verb::Get, Fault::Hold(read.clone()));
        record.release();
        read.arrival().await;
        attaches.release();
    };
    let attached = async {
        record.arrival().await;
        attach(&store, 1).await;
        read.release();
    };
    let (taken, (), ()) = tokio::join!(take(&store, 1), attached, opens);
    assert!(matches!(taken, Err(SnapshotError::Attached { epoch: Epoch(1), .. })), "{taken:?}");
}

#[tokio::test]
async fn what_is_forgotten_leaves_the_list_with_the_next_snapshot() {
    let store = created().await;
    for name in 1..=3 {
        take(&store, name).await.unwrap();
    }
    forget(&store, &volume(), Seq(3)).await.unwrap();
    forget(&store, &volume(), Seq(3)).await.unwrap();
    assert_eq!(list(&store).await, [2, 4]);
    let registered = || async { read_manifest_to_end(&store, &volume()).await.unwrap().snapshots().len() };
    assert_eq!(registered().await, 3);
    // Its uid is free again.
    assert_eq!(take(&store, 2).await.unwrap().seq, Seq(5));
    assert_eq!((registered().await, list(&store).await), (3, vec![2, 4, 5]));
    forget(&store, &volume(), Seq(3)).await.unwrap();
    assert_eq!(keys(&store, "forgotten").await, 1);
}

/// Regression: marks stay permanently; those before the oldest registered snapshot, and pages of them between
/// two, were listed for each new snapshot.
#[tokio::test]
async fn marks_are_listed_for_registered_snapshots_only() {
    let store = MemoryStore::new();
    for seq in (2..5000).chain([7000, 9000]) {
        let key = ObjectKey::Forgotten(volume(), Seq(seq)).to_string();
        let Created = store.create(&key, Bytes::new()).await.unwrap();
    }
    let foreign = "volumes/v/forgotten/00000000000000008000-of-others";
    let Created = store.create(foreign, Bytes::new()).await.unwrap();
    for (registered, forgotten, lists) in [
        (&[][..], &[][..], 0),
        (&[1], &[], 1),
        (&[4900, 4901, 8000], &[4900, 4901], 1),
        (&[1500, 6000, 7000, 8000, 9000], &[1500, 7000, 9000], 2),
        (&[1, 1000, 1001, 9000, 9999], &[1000, 1001, 9000], 2),
        (&[8000, 8001], &[], 1),
    ] {
        let places = |seqs: &[u64]| seqs.iter().map(|seq| Seq(*seq)).collect::<Vec<_>>();
        let before = store.counts();
        let found = forgotten_of(&store, &volume(), &places(registered)).await.unwrap();
        assert_eq!(found.into_iter().collect::<Vec<_>>(), places(forgotten), "{registered:?}");
        assert_eq!(store.counts().list - before.list, lists, "{registered:?}");
        assert_eq!(store.counts().total() - before.total(), lists, "{registered:?}");
    }
}

/// Regression: all marks were listed to find any mark, or those of a few seqs: five LISTs each.
#[tokio::test]
async fn a_sweep_and_a_removal_list_few_marks() {
    let lists = |marks: u64| async move {
        let store = created().await;
        let taken = take(&store, 1).await.unwrap();
        for seq in taken.seq.0 + 1..=taken.seq.0 + marks {
            let key = ObjectKey::Forgotten(volume(), Seq(seq)).to_string();
            let Created = store.create(&key, Bytes::new()).await.unwrap();
        }
        let before = store.counts().list;
        let options = SweepOptions { grace: Duration::ZERO, dry_run: false, most: u64::MAX };
        sweep(&store, &mut SweepMemory::default(), options).await.unwrap();
        let swept = store.counts().list;
        forget(&store, &volume(), taken.seq).await.unwrap();
        let forgotten = store.counts().list;
        remove(&store, &volume(), NONCE, 0, None).await.unwrap();
        (swept - before, store.counts().list - forgotten)
    };
    let ((few_swept, few_removed), (swept, removed)) = (lists(1).await, lists(5000).await);
    // Six pages of all objects instead of one, which a removal leaves to the sweep, and the log begins on
    // another page.
    assert_eq!((swept - few_swept, removed - few_removed), (5 + 1, 1));
}

/// A mark for a future seq would void the snapshot taken there.
#[tokio::test]
async fn only_a_snapshot_can_be_forgotten() {
    let store = created().await;
    take(&store, 1).await.unwrap();
    for seq in [1, 3, 99] {
        let refused = forget(&store, &volume(), Seq(seq)).await.unwrap_err();
        assert!(matches!(refused, SnapshotError::NoSuchSnapshot { .. }), "{refused}");
    }
    assert_eq!(keys(&store, "forgotten").await, 0);
}

#[tokio::test]
async fn an_attached_volume_forgets_and_its_checkpoints_keep_the_rest() {
    let store = created().await;
    take(&store, 1).await.unwrap();
    attach(&store, 1).await;
    let change = SnapshotChange { taken: Some(uid(2)), dropped: vec![] };
    append(&store, 1, Body::of_snapshots(change)).await;
    let manifest = read_manifest_to_end(&store, &volume()).await.unwrap();
    let checkpoint = manifest.encode_checkpoint().into();
    write_checkpoint(&store, &volume(), manifest.seq(), checkpoint).await.unwrap();
    for seq in 1..=4u64 {
        store.delete(&[&format!("volumes/v/log/{seq:020}")]).await.unwrap();
    }
    assert_eq!(list(&store).await, [2, 4]);
    forget(&store, &volume(), Seq(2)).await.unwrap();
    assert_eq!(list(&store).await, [4]);
}

#[tokio::test]
async fn a_volume_with_snapshots_is_not_removed() {
    let store = created().await;
    for name in 1..=7 {
        take(&store, name).await.unwrap();
    }
    let refused = remove(&store, &volume(), NONCE, 0, None).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "volume v has 7 snapshots that would be lost with it (v@2, v@3, v@4, v@5, v@6, ...): delete them first"
    );
    assert!(!refused.is_transient());
    for seq in 2..=7 {
        forget(&store, &volume(), Seq(seq)).await.unwrap();
    }
    let refused = remove(&store, &volume(), NONCE, 0, None).await.unwrap_err();
    assert!(refused.to_string().contains("has a snapshot that would be lost with it (v@8)"), "{refused}");
    forget(&store, &volume(), Seq(8)).await.unwrap();
    remove(&store, &volume(), NONCE, 0, None).await.unwrap();
    let options = SweepOptions { grace: Duration::ZERO, dry_run: false, most: u64::MAX };
    sweep(&store, &mut SweepMemory::default(), options).await.unwrap();
    assert_eq!((keys(&store, "snapshots").await, keys(&store, "forgotten").await), (0, 7));
    let gone = take(&store, 9).await.unwrap_err();
    assert!(matches!(gone, SnapshotError::Deleted(_)), "{gone}");
}

/// An unreadable log does not show which roots are snapshots: each may be one.
#[tokio::test]
async fn a_damaged_volume_with_roots_is_not_removed() {
    let store = created().await;
    take(&store, 1).await.unwrap();
    attach(&store, 1).await;
    store.corrupt("volumes/v/log/00000000000000000003", |bytes| bytes[40] ^= 1);
    let refused = remove(&store, &volume(), NONCE, 0, None).await.unwrap_err();
    assert!(matches!(refused, LogFailure::Damaged { .. }), "{refused}");
    assert_eq!(keys(&store, "snapshots").await, 1);
}

#[tokio::test]
async fn a_volume_that_does_not_exist_has_no_snapshots() {
    let store = MemoryStore::new();
    let none = take(&store, 1).await.unwrap_err();
    assert!(matches!(none, SnapshotError::NotFound(_)), "{none}");
    assert!(matches!(snapshots(&store, &volume()).await, Err(SnapshotError::NotFound(_))));
    assert!(matches!(forget(&store, &volume(), Seq(1)).await, Err(SnapshotError::NotFound(_))));
    assert_eq!(store.counts().put, 0);
}

fn origin(name: &str) -> Labels {
    let mut labels = Labels::default();
    assert!(labels.insert(Labels::SNAPSHOT, name));
    labels
}

/// Regression: a bucket without the volume, or with another history of it, got an origin: a volume without a
/// log, which blocked every sweep.
#[tokio::test]
async fn an_origin_is_stored_for_a_registered_snapshot_only() {
    let name = |seq| SnapshotName { volume: volume(), seq };
    let empty = MemoryStore::new();
    let refused = store_origin(&empty, &name(Seq(2)), uid(1), &origin("a")).await;
    assert_eq!((refused.unwrap(), empty.keys().len()), (OriginPlace::NoSnapshot, 0));

    let store = created().await;
    let (first, second) = (take(&store, 1).await.unwrap().seq, take(&store, 2).await.unwrap().seq);
    forget(&store, &volume(), second).await.unwrap();
    for (seq, name_of) in [(first, 3), (second, 2), (Seq(9), 1)] {
        let stored = store_origin(&store, &name(seq), uid(name_of), &origin("a")).await;
        assert_eq!(stored.unwrap(), OriginPlace::NoSnapshot, "{seq} under {name_of}");
    }
    assert_eq!(keys(&store, "origins").await, 0);
    for (label, expected) in
        [("a", OriginPlace::Stored), ("a", OriginPlace::Stored), ("b", OriginPlace::Others)]
    {
        assert_eq!(store_origin(&store, &name(first), uid(1), &origin(label)).await.unwrap(), expected);
    }
}

/// Regression: without the delete right, which volumes do not need, the VolumeSnapshot stayed Terminating.
#[tokio::test]
async fn a_snapshot_is_forgotten_without_the_right_to_delete() {
    let store = created().await;
    let taken = take(&store, 1).await.unwrap();
    let name = SnapshotName { volume: volume(), seq: taken.seq };
    assert_eq!(store_origin(&store, &name, uid(1), &origin("a")).await.unwrap(), OriginPlace::Stored);
    store.fail_always(Verb::Delete, Fault::Before(ErrorKind::Denied));
    forget(&store, &volume(), taken.seq).await.unwrap();
    assert_eq!((list(&store).await, keys(&store, "origins").await), (vec![], 1));
    store.heal();
    sweep(&store, &mut SweepMemory::default(), AT_ONCE).await.unwrap();
    assert_eq!(keys(&store, "origins").await, 0, "a sweep deletes what the request left");
}

/// Older versions forget the snapshot and leave its origin; so does one that stored it under another uid.
#[tokio::test]
async fn sweeps_delete_origins_of_no_snapshot_and_leave_the_others() {
    let store = created().await;
    let (first, second) = (take(&store, 1).await.unwrap().seq, take(&store, 2).await.unwrap().seq);
    for (seq, name) in [(first, 1), (second, 2)] {
        let place = SnapshotName { volume: volume(), seq };
        assert_eq!(store_origin(&store, &place, uid(name), &origin("a")).await.unwrap(), OriginPlace::Stored);
    }
    let foreign = ObjectKey::Origin(volume(), uid(9)).to_string();
    let Created = store.create(&foreign, origin("b").encode().into()).await.unwrap();
    let mark = ObjectKey::Forgotten(volume(), first).to_string();
    let Created = store.create(&mark, Bytes::new()).await.unwrap();
    let grace = Duration::from_hours(1);
    sweep(&store, &mut SweepMemory::default(), SweepOptions { grace, ..AT_ONCE }).await.unwrap();
    assert_eq!(keys(&store, "origins").await, 3, "all are young");
    sweep(&store, &mut SweepMemory::default(), AT_ONCE).await.unwrap();
    let left = ObjectKey::Origin(volume(), uid(2)).to_string();
    assert!(store.keys().contains(&left) && keys(&store, "origins").await == 1, "{:?}", store.keys());
    forget(&store, &volume(), second).await.unwrap();
    remove(&store, &volume(), NONCE, 0, None).await.unwrap();
    sweep(&store, &mut SweepMemory::default(), AT_ONCE).await.unwrap();
    assert_eq!(keys(&store, "origins").await, 0);
}

/// An origin has no log position: a snapshot may be taken after a sweep read the log.
#[tokio::test]
async fn a_sweep_reads_the_log_again_before_it_deletes_an_origin() {
    let store = created().await;
    take(&store, 1).await.unwrap();
    // The LISTs of volumes, roots and marks pass; the log was read before the volumes are listed again.
    for _ in 0..3 {
        store.fail_next(Verb::List, Fault::Delay(Duration::ZERO));
    }
    let lists_again = Gate::new();
    store.fail_next(Verb::List, Fault::Hold(lists_again.clone()));
    let sweeping = tokio::spawn({
        let store = store.clone();
        async move { sweep(&store, &mut SweepMemory::default(), AT_ONCE).await }
    });
    lists_again.arrival().await;
    let place = SnapshotName { volume: volume(), seq: take(&store, 2).await.unwrap().seq };
    assert_eq!(store_origin(&store, &place, uid(2), &origin("a")).await.unwrap(), OriginPlace::Stored);
    lists_again.release();
    assert_eq!(sweeping.await.unwrap().unwrap().deleted.objects, 0);
    assert_eq!(keys(&store, "origins").await, 1);
}
