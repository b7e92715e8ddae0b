//! Request costs of a volume's log, and the faults it tolerates, on the reference store.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;
use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::SideSet;
use holdfast_format::snapshot::SnapshotChange;
use holdfast_format::wire::{DecodeError, ENVELOPE_BYTES, checksum};
use holdfast_log::{
    CreateOutcome, Creation, LogFailure, create_record, drop_checkpoints, list_volumes, provision,
    read_manifest, read_manifest_to_end, remove, truncate, was_truncated_after, write_checkpoint,
};
use holdfast_objects::{
    CreateError, Created, ErrorKind, Fault, Folders, MemoryStore, ObjectStore, Page, Parts, ReadyParts,
    SegmentError, StoreError, Suffix, UnfinishedUpload, Verb,
};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Epoch, Nonce, Place, SegmentId, Seq, VolumeId};

const NONCE: Nonce = Nonce([3; 16]);
/// Declares every writer lost.
const LOST: Option<Epoch> = Some(Epoch(u64::MAX));

fn volume() -> VolumeId {
    "v".parse().unwrap()
}

fn record(seq: u64, body: Body) -> Record {
    Record { volume: volume(), seq: Seq(seq), epoch: Epoch(1), nonce: NONCE, unix_ms: 0, body }
}

fn commit(seq: u64) -> Record {
    let id = SegmentId::new(Place::until(Seq(seq)), seq, [0; 10]);
    record(
        seq,
        Body::Change {
            segments: vec![SegmentRef {
                id,
                bytes: 9,
                index_offset: 0,
                index_bytes: 9,
                sectors: 5,
                chunks: ChunkRanges::around([(0, 1)]),
            }],
            chunks: ChunkSet::default(),
            invalidated: SideSet::NONE,
            generation: 1,
            merges: vec![],
            closed: Place::default(),
            snapshots: SnapshotChange::default(),
            sectors: None,
        },
    )
}

async fn log_of(records: u64) -> MemoryStore {
    let store = MemoryStore::new();
    provision(&store, &volume(), Creation::plain(1000, NONCE, 0)).await.unwrap();
    let attach = record(2, Body::Attach { sectors: 1000, node: "n".into(), displaced: None });
    assert_eq!(create_record(&store, &attach).await.unwrap(), CreateOutcome::Created);
    for seq in 3..=records {
        assert_eq!(create_record(&store, &commit(seq)).await.unwrap(), CreateOutcome::Created);
    }
    store
}

#[tokio::test]
async fn a_volume_is_created_with_one_put_and_nothing_else() {
    let store = MemoryStore::new();
    provision(&store, &volume(), Creation::plain(1000, NONCE, 0)).await.unwrap();
    let counts = store.counts();
    assert_eq!((counts.total(), counts.put), (1, 1));
    provision(&store, &volume(), Creation::plain(1000, Nonce([4; 16]), 5)).await.unwrap();
    let other = provision(&store, &volume(), Creation::plain(2000, NONCE, 0)).await.unwrap_err();
    assert!(matches!(other, LogFailure::ExistsOtherwise { sectors: 1000, .. }));
}

/// `a-b` sorts before `a/`, and a foreign object is not a volume.
#[tokio::test]
async fn every_volume_of_a_store_is_listed_once() {
    let store = MemoryStore::new();
    assert_eq!(list_volumes(&store).await.unwrap(), []);
    let _ = store.create("volumes/NOT-OURS", "x".into()).await.unwrap();
    let _ = store.create("volumes/NOT_OURS/log/1", "x".into()).await.unwrap();
    let ids: Vec<VolumeId> = ["a-b", "a", "a0", "b"].map(|id| id.parse().unwrap()).into();
    for id in &ids {
        provision(&store, id, Creation::plain(1000, NONCE, 0)).await.unwrap();
        let segment = format!("volumes/{id}/segments/00000000000000000009-00000000000000000000000001");
        let _ = store.create(&segment, "x".into()).await.unwrap();
    }
    let lists = store.counts().list;
    assert_eq!(list_volumes(&store).await.unwrap(), ids);
    assert_eq!(store.counts().list - lists, 1);
    for number in 0..1000 {
        let _ = store.create(&format!("volumes/c{number}/log/1"), "x".into()).await.unwrap();
    }
    let lists = store.counts().list;
    assert_eq!(list_volumes(&store).await.unwrap().len(), 1004);
    assert_eq!(store.counts().list - lists, 2);
}

/// Found by review: the record of another volume, copied to this one's key, passed for this one's.
#[tokio::test]
async fn the_record_of_another_volume_is_no_creation() {
    let store = MemoryStore::new();
    let another = "another".parse().unwrap();
    let theirs = Record { volume: another, epoch: Epoch(0), ..record(1, Body::create(1000)) };
    let _ = store.create("volumes/v/log/00000000000000000001", theirs.encode().into()).await.unwrap();
    let refused = provision(&store, &volume(), Creation::plain(1000, NONCE, 0)).await.unwrap_err();
    assert!(matches!(refused, LogFailure::Broken { .. }), "{refused}");
}

/// The requests are one LIST, one GET of a checkpoint, and one GET per record after it.
#[tokio::test]
async fn a_long_log_is_read_from_its_newest_checkpoint() {
    let store = log_of(40).await;
    let upto = read_manifest(&store, &volume()).await.unwrap();
    write_checkpoint(&store, &volume(), upto.seq(), upto.encode_checkpoint().into()).await.unwrap();
    assert_eq!(create_record(&store, &commit(41)).await.unwrap(), CreateOutcome::Created);
    let before = store.counts();
    let manifest = read_manifest(&store, &volume()).await.unwrap();
    let after = store.counts();
    assert_eq!((manifest.seq(), manifest.checkpointed(), manifest.runs().len()), (Seq(41), Seq(40), 39));
    let spent = (after.list - before.list, after.get - before.get, after.total() - before.total());
    assert_eq!(spent, (1, 2, 3));
}

#[tokio::test]
async fn only_the_newest_checkpoints_are_kept() {
    let store = log_of(6).await;
    let manifest = read_manifest(&store, &volume()).await.unwrap();
    for seq in 2..=6 {
        write_checkpoint(&store, &volume(), Seq(seq), manifest.encode_checkpoint().into()).await.unwrap();
        drop_checkpoints(&store, &volume(), Seq(seq)).await.unwrap();
    }
    assert_eq!(store.list("volumes/v/checkpoints/", None, 100).await.unwrap().entries.len(), 2);
}

/// Found in review: with two objects of another program whose names sort last, the newest checkpoints were
/// deleted, and the log could not be read.
#[tokio::test]
async fn objects_of_other_programs_count_as_no_checkpoints() {
    let store = log_of(6).await;
    let manifest = read_manifest(&store, &volume()).await.unwrap();
    let others = [".snapshot/x", "copy.bak", "copy.orig"].map(|name| format!("volumes/v/checkpoints/{name}"));
    for key in &others {
        let Created = store.create(key, Bytes::from_static(b"x")).await.unwrap();
    }
    for seq in 2..=6 {
        write_checkpoint(&store, &volume(), Seq(seq), manifest.encode_checkpoint().into()).await.unwrap();
        let older = drop_checkpoints(&store, &volume(), Seq(seq)).await.unwrap();
        assert_eq!(older, (seq > 2).then(|| Seq(seq - 1)));
    }
    let entries = store.list("volumes/v/checkpoints/", None, 100).await.unwrap().entries;
    let left: Vec<&str> = entries.iter().map(|entry| entry.key.as_str()).collect();
    assert_eq!(left.len(), 2 + others.len(), "{left:?}");
    assert!(others.iter().all(|other| left.contains(&other.as_str())), "{left:?}");
}

/// Regression: a deletion denied by the store hid that the checkpoint was stored; after 60 records nothing
/// could be committed.
#[tokio::test]
async fn checkpoints_are_stored_while_deletions_are_denied() {
    let store = log_of(2).await;
    store.fail_always(Verb::Delete, Fault::Before(ErrorKind::Denied));
    for seq in 3..=132 {
        assert_eq!(create_record(&store, &commit(seq)).await.unwrap(), CreateOutcome::Created);
        if seq % 32 == 0 {
            let manifest = read_manifest(&store, &volume()).await.unwrap();
            let bytes = manifest.encode_checkpoint().into();
            write_checkpoint(&store, &volume(), manifest.seq(), bytes).await.unwrap();
            let dropped = drop_checkpoints(&store, &volume(), manifest.seq()).await;
            assert_eq!(dropped.is_ok(), seq <= 64, "the third replaces the first");
        }
    }
    assert_eq!(seqs_of(&store, "checkpoints").await, [32, 64, 96, 128]);
    store.heal();
    assert_eq!(drop_checkpoints(&store, &volume(), Seq(128)).await.unwrap(), Some(Seq(96)));
}

/// Stores a checkpoint as of the log's end, and truncates the log.
async fn checkpoint_and_truncate(store: &dyn ObjectStore) {
    let manifest = read_manifest(store, &volume()).await.unwrap();
    let bytes = Bytes::from(manifest.encode_checkpoint());
    write_checkpoint(store, &volume(), manifest.seq(), bytes.clone()).await.unwrap();
    if let Some(older) = drop_checkpoints(store, &volume(), manifest.seq()).await.unwrap() {
        truncate(store, &volume(), older, (manifest.seq(), &bytes)).await.unwrap();
    }
}

/// Creates a log of `records` with a checkpoint after every 32; two of its records are attaches.
async fn long_log(records: u64) -> MemoryStore {
    let store = log_of(2).await;
    for seq in 3..=records {
        let again = Body::Attach { sectors: 1000, node: "n".into(), displaced: None };
        let next = match seq {
            ..40 => commit(seq),
            40 => Record { epoch: Epoch(2), ..record(seq, again) },
            _ => Record { epoch: Epoch(2), ..commit(seq) },
        };
        assert_eq!(create_record(&store, &next).await.unwrap(), CreateOutcome::Created);
        if seq % 32 == 0 {
            checkpoint_and_truncate(&store).await;
        }
    }
    store
}

async fn seqs_of(store: &MemoryStore, kind: &str) -> Vec<u64> {
    let page = store.list(&format!("volumes/v/{kind}/"), None, 1000).await.unwrap();
    page.entries.iter().map(|entry| entry.key.rsplit('/').next().unwrap().parse().unwrap()).collect()
}

/// Keeps the first record, every attach, and records that readers of the last two checkpoints may need.
#[tokio::test]
async fn truncation_keeps_what_readers_and_late_creators_need() {
    let store = long_log(300).await;
    assert_eq!(seqs_of(&store, "checkpoints").await, [256, 288]);
    assert_eq!(seqs_of(&store, "truncated").await, [64, 128, 192, 256]);
    let kept: Vec<u64> = [1, 2, 40].into_iter().chain(257..=300).collect();
    assert_eq!(seqs_of(&store, "log").await, kept);
    let read = read_manifest_to_end(&store, &volume()).await.unwrap();
    assert_eq!((read.seq(), read.runs().len()), (Seq(300), 297));
    // Work continues as if nothing had been truncated.
    provision(&store, &volume(), Creation::plain(1000, NONCE, 0)).await.unwrap();
    let stale = Record { epoch: Epoch(1), ..commit(40) };
    assert_eq!(
        create_record(&store, &stale).await.unwrap(),
        CreateOutcome::Lost,
        "its attach is still there"
    );
    remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
    assert_eq!(store.keys(), left_of_removed(301));
    remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
    assert_eq!(store.keys(), left_of_removed(301), "a removal that is repeated changes nothing");
}

/// The next truncation completes a partial one.
#[tokio::test]
async fn a_failed_truncation_is_retried() {
    let store = long_log(127).await;
    let next = Record { epoch: Epoch(2), ..commit(128) };
    assert_eq!(create_record(&store, &next).await.unwrap(), CreateOutcome::Created);
    let manifest = read_manifest(&store, &volume()).await.unwrap();
    let bytes = Bytes::from(manifest.encode_checkpoint());
    write_checkpoint(&store, &volume(), Seq(128), bytes.clone()).await.unwrap();
    for seq in [20, 21] {
        let _back = store.create(&format!("volumes/v/log/{seq:020}"), "x".into()).await.unwrap();
    }
    store.fail_next(Verb::Delete, Fault::Before(ErrorKind::Unavailable));
    assert!(truncate(&store, &volume(), Seq(96), (Seq(128), &bytes)).await.is_err());
    truncate(&store, &volume(), Seq(96), (Seq(128), &bytes)).await.unwrap();
    assert_eq!(seqs_of(&store, "log").await, [1, 2, 40].into_iter().chain(65..=128).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_truncation_costs_a_few_requests_after_a_checkpoint() {
    let store = long_log(191).await;
    let next = Record { epoch: Epoch(2), ..commit(192) };
    assert_eq!(create_record(&store, &next).await.unwrap(), CreateOutcome::Created);
    let manifest = read_manifest(&store, &volume()).await.unwrap();
    let bytes = Bytes::from(manifest.encode_checkpoint());
    write_checkpoint(&store, &volume(), Seq(192), bytes.clone()).await.unwrap();
    let older = drop_checkpoints(&store, &volume(), Seq(192)).await.unwrap().unwrap();
    let before = store.counts();
    truncate(&store, &volume(), older, (Seq(192), &bytes)).await.unwrap();
    let after = store.counts();
    let spent = (after.get - before.get, after.list - before.list, after.put - before.put);
    assert_eq!(spent, (1, 1, 0), "160 lies in the stretch that was truncated already");
    let older = Seq(192);
    truncate(&store, &volume(), older, (Seq(192), &bytes)).await.unwrap();
    let last = store.counts();
    let spent = (last.get - after.get, last.list - after.list, last.put - after.put);
    assert_eq!((spent, last.total() - after.total()), ((2, 1, 1), 5));
}

/// Found by simulation: a suspended attach created its record at a truncated commit's position.
#[tokio::test]
async fn a_record_in_a_truncated_place_is_outside_the_log() {
    let store = long_log(200).await;
    let attach = record(50, Body::Attach { sectors: 1000, node: "late".into(), displaced: None });
    assert_eq!(create_record(&store, &attach).await.unwrap(), CreateOutcome::Created);
    assert!(was_truncated_after(&store, &volume(), Seq(49)).await.unwrap(), "its creator can detect it");
    assert!(!was_truncated_after(&store, &volume(), Seq(128)).await.unwrap());
    assert_eq!(read_manifest_to_end(&store, &volume()).await.unwrap().seq(), Seq(200));
    // An outdated LIST shows no checkpoint, and the log of that time.
    let all = store.keys();
    let hidden = all.into_iter().filter(|key| key.contains("checkpoints") || *key > attach_key()).collect();
    let behind = Behind { hidden, store: store.clone(), repeats: false };
    let failed = read_manifest_to_end(&behind, &volume()).await.unwrap_err();
    assert!(
        matches!(failed, LogFailure::Contended(_)),
        "a foreign record is not mistaken for the end: {failed}"
    );
    remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
    assert!(read_manifest(&store, &volume()).await.unwrap().is_deleted());
}

/// Found by simulation: the suspended creator of a fork ended it at the truncated position of its second
/// record. A reader with an older list of the log considered it removed, and a sweep would have deleted it.
#[tokio::test]
async fn a_tombstone_in_a_truncated_place_ends_nothing() {
    let store = long_log(200).await;
    let late = Record { epoch: Epoch(0), ..record(3, Body::Delete) };
    assert_eq!(create_record(&store, &late).await.unwrap(), CreateOutcome::Created);
    assert!(read_manifest_to_end(&store, &volume()).await.unwrap().exists());
    let second = "volumes/v/log/00000000000000000002";
    for last in [None, Some(second)] {
        let is_new = |key: &String| last.is_none_or(|last| key.contains("checkpoints") || **key > *last);
        let hidden = store.keys().into_iter().filter(is_new).collect();
        let behind = Behind { hidden, store: store.clone(), repeats: false };
        let failed = read_manifest_to_end(&behind, &volume()).await.unwrap_err();
        assert!(matches!(failed, LogFailure::Contended(_)), "{last:?}: {failed}");
    }
}

fn attach_key() -> String {
    "volumes/v/log/00000000000000000050".to_owned()
}

#[tokio::test]
async fn a_lost_reply_is_resolved_by_reading_the_record_back() {
    let store = log_of(2).await;
    store.fail_next(Verb::Put, Fault::LostReply);
    assert_eq!(create_record(&store, &commit(3)).await.unwrap(), CreateOutcome::Created);
    let theirs = Record { nonce: Nonce([9; 16]), ..commit(3) };
    assert_eq!(create_record(&store, &theirs).await.unwrap(), CreateOutcome::Lost);
}

/// A volume id is never used again.
#[tokio::test]
async fn removal_leaves_only_the_tombstone_and_bars_the_id() {
    let store = log_of(5).await;
    let late = ObjectKey::Segment(volume(), SegmentId::new(Place::until(Seq(6)), 7, [9; 10])).to_string();
    store.put_segment(&late, &mut ReadyParts::new(["x".into()])).await.unwrap();
    remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
    remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
    assert_eq!(store.keys(), left_of_removed(6));
    assert!(read_manifest(&store, &volume()).await.unwrap().is_deleted());
    assert_eq!(create_record(&store, &commit(6)).await.unwrap(), CreateOutcome::Lost);
}

/// Returns the keys that remain after the removal of a volume whose tombstone is at `seq`.
fn left_of_removed(seq: u64) -> Vec<String> {
    let records = [1, seq].map(|seq| format!("volumes/v/log/{seq:020}"));
    let markers = (1..=seq / 64 + 1).map(|marker| format!("volumes/v/truncated/{:020}", marker * 64));
    records.into_iter().chain(markers).collect()
}

/// A LIST to read the log and a GET of its last record if that has the root, otherwise of each since the last
/// checkpoint; the tombstone and a marker; a LIST of the objects, and a DELETE per 1,000 of them.
#[tokio::test]
async fn a_removal_costs_a_few_requests_whatever_the_volume_holds() {
    for (carries_root, gets) in [(true, 1), (false, 21)] {
        let store = log_of(20).await;
        let manifest = read_manifest(&store, &volume()).await.unwrap();
        let detach = if carries_root { Body::detach(&manifest) } else { Body::Detach { root: None } };
        assert_eq!(create_record(&store, &record(21, detach)).await.unwrap(), CreateOutcome::Created);
        for segment in 0..900 {
            let key = format!("volumes/v/segments/00000000000000000009-000000000000000000{segment:08}");
            let _ = store.create(&key, "x".into()).await.unwrap();
        }
        let before = store.counts();
        remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
        let after = store.counts();
        let spent = [
            after.list - before.list,
            after.get - before.get,
            after.put - before.put,
            after.delete - before.delete,
        ];
        assert_eq!(spent, [2, gets, 2, 1]);
        assert_eq!(store.keys().len(), 3);
    }
}

/// Regression: only the first marker stayed; a create at a later position won, and nothing disproved it.
#[tokio::test]
async fn no_place_of_a_removed_log_is_free() {
    for records in [5, 63, 64, 127, 128, 300] {
        let store = long_log(records).await;
        remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
        for known in 0..records {
            let won = create_record(&store, &commit(known + 1)).await.unwrap() == CreateOutcome::Created;
            let is_barred = !won || was_truncated_after(&store, &volume(), Seq(known)).await.unwrap();
            assert!(is_barred, "{known} of {records}");
        }
        assert_eq!(create_record(&store, &commit(records + 1)).await.unwrap(), CreateOutcome::Lost);
    }
}

/// Regression: the first position of the log was free again; a second volume was created over the first one's
/// tombstone, with success, and no node could attach it.
#[tokio::test]
async fn a_removed_id_is_not_provisioned_again() {
    for (records, sectors) in [(1, 1000), (5, 1000), (5, 2000)] {
        let store = log_of(records).await;
        remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
        let left = store.keys();
        let refused =
            provision(&store, &volume(), Creation::plain(sectors, Nonce([4; 16]), 5)).await.unwrap_err();
        assert_eq!(
            refused.to_string(),
            "volume v was deleted and its id cannot be used again: choose another id"
        );
        assert!(!refused.is_transient());
        assert_eq!(store.keys(), left);
        remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
        assert_eq!(store.keys(), left, "a removal that is repeated changes nothing");
    }
}

/// The remains of a log without its tombstone look like a new volume's.
#[tokio::test]
async fn a_removed_volume_whose_tombstone_is_not_listed_is_not_new() {
    let store = log_of(5).await;
    remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
    let behind = Behind { hidden: left_of_removed(6)[1..2].to_vec(), store: store.clone(), repeats: false };
    for answer in [
        read_manifest_to_end(&behind, &volume()).await.map(drop),
        provision(&behind, &volume(), Creation::plain(1000, Nonce([4; 16]), 5)).await.map(drop),
    ] {
        let failed = answer.unwrap_err();
        assert!(matches!(failed, LogFailure::Contended(_)), "{failed}");
    }
}

#[tokio::test]
async fn a_volume_with_a_damaged_last_record_can_be_removed() {
    let store = log_of(3).await;
    store.corrupt("volumes/v/log/00000000000000000003", |bytes| bytes[40] ^= 1);
    remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
    assert!(read_manifest(&store, &volume()).await.unwrap().is_deleted());
    assert_eq!(store.keys(), left_of_removed(4));
}

/// Regression: a record of a newer format version counted as damage, and its volume, which that version may
/// have attached, was removed.
#[tokio::test]
async fn a_volume_with_a_last_record_of_a_newer_version_is_not_removed() {
    const CHECKSUM: Range<usize> = 16..ENVELOPE_BYTES;
    let store = log_of(3).await;
    store.corrupt("volumes/v/log/00000000000000000003", |bytes| {
        bytes[4..6].copy_from_slice(&99_u16.to_le_bytes());
        let sum = checksum(&[&bytes[..CHECKSUM.start], &bytes[CHECKSUM.end..]].concat());
        bytes[CHECKSUM].copy_from_slice(&sum);
    });
    let before = store.keys();
    match remove(&store, &volume(), NONCE, 0, LOST).await {
        Err(LogFailure::Damaged { source: DecodeError::Version { found: 99, .. }, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(store.keys(), before);
}

#[tokio::test]
async fn damaged_records_are_named_and_missing_ones_break_the_log() {
    let store = log_of(4).await;
    store.delete(&["volumes/v/log/00000000000000000003"]).await.unwrap();
    let broken = read_manifest(&store, &volume()).await.unwrap_err();
    assert!(matches!(broken, LogFailure::Broken { .. }));
    let _made = store.create("volumes/v/log/00000000000000000003", "garbage".into()).await.unwrap();
    let damaged = read_manifest(&store, &volume()).await.unwrap_err();
    assert_eq!(damaged.to_string(), "object volumes/v/log/00000000000000000003 is damaged");
}

/// A store whose LIST does not show the last objects yet, or whose folder LIST always returns the first page.
#[derive(Debug)]
struct Behind {
    store: MemoryStore,
    hidden: Vec<String>,
    repeats: bool,
}

#[async_trait]
impl ObjectStore for Behind {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.store.get(key, max_bytes).await
    }
    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.store.get_range(key, range).await
    }
    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        self.store.get_suffix(key, len).await
    }
    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.store.create(key, body).await
    }
    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        self.store.put_segment(key, parts).await
    }
    async fn list(&self, prefix: &str, start_after: Option<&str>, limit: usize) -> Result<Page, StoreError> {
        let mut page = self.store.list(prefix, start_after, limit).await?;
        page.entries.retain(|entry| !self.hidden.contains(&entry.key));
        Ok(page)
    }
    async fn list_folders(
        &self,
        prefix: &str,
        from: Option<&str>,
        limit: usize,
    ) -> Result<Folders, StoreError> {
        if !self.repeats {
            return self.store.list_folders(prefix, from, limit).await;
        }
        // A different token each time.
        let next = Some(from.map_or_else(String::new, |from| format!("{from}x")));
        Ok(Folders { next, ..self.store.list_folders(prefix, None, limit).await? })
    }
    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.store.delete(keys).await
    }
    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        self.store.unfinished_uploads(prefix).await
    }
    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        self.store.abort_upload(upload).await
    }
}

/// Found by review: the list of a server that ignores its own tokens never ended.
#[tokio::test]
async fn a_page_that_comes_again_is_an_error() {
    let store = log_of(6).await;
    let repeats = Behind { hidden: Vec::new(), store, repeats: true };
    let refused = list_volumes(&repeats).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Corrupt, "{refused}");
}

/// Found by simulation: a daemon that was killed and restarted mistook its own last commits for another
/// writer's.
#[tokio::test]
async fn records_that_list_does_not_show_yet_are_found() {
    let store = log_of(6).await;
    let keys = store.keys();
    let behind = Behind { hidden: keys[3..].to_vec(), store: store.clone(), repeats: false };
    assert_eq!(read_manifest_to_end(&behind, &volume()).await.unwrap().seq(), Seq(6));
    let blind = Behind { hidden: keys, store: store.clone(), repeats: false };
    assert!(read_manifest(&blind, &volume()).await.unwrap().exists(), "not reported as missing");
    remove(&store, &volume(), NONCE, 0, LOST).await.unwrap();
    assert!(read_manifest_to_end(&store, &volume()).await.unwrap().is_deleted());
}

/// A LIST that still shows a deleted checkpoint does not block a reader permanently.
#[tokio::test]
async fn a_listed_checkpoint_that_is_gone_is_a_transient_error() {
    let store = log_of(4).await;
    let gone = "volumes/v/checkpoints/00000000000000000004";
    let made = store.create(gone, "x".into()).await;
    assert!(made.is_ok());
    store.fail_always(Verb::Get, Fault::Before(ErrorKind::NotFound));
    let failed = read_manifest(&store, &volume()).await.unwrap_err();
    assert!(matches!(failed, LogFailure::Contended(_)) && failed.is_transient());
}

/// Regression: a proxy's response to the GET of a marker made a superseded log count as the log.
#[tokio::test]
async fn a_proxys_answer_proves_nothing_about_a_marker() {
    let store = long_log(200).await;
    for kind in [ErrorKind::Unavailable, ErrorKind::Denied, ErrorKind::Invalid, ErrorKind::Corrupt] {
        store.fail_next(Verb::Get, Fault::Before(kind));
        let failed = was_truncated_after(&store, &volume(), Seq(49)).await.unwrap_err();
        assert!(matches!(failed, LogFailure::Store { .. }), "{kind:?}: {failed}");
    }
    store.corrupt("volumes/v/truncated/00000000000000000064", |marker| {
        marker.extend(b"<html>maintenance</html>")
    });
    let failed = was_truncated_after(&store, &volume(), Seq(49)).await.unwrap_err();
    assert!(matches!(failed, LogFailure::NotEmpty { .. }) && failed.is_transient(), "{failed}");
    let read = read_manifest_to_end(&store, &volume()).await;
    assert_eq!(read.unwrap().seq(), Seq(200), "the newest checkpoint is after it");
}

/// LIST may show the state at the detach, even after the log was truncated beyond it: the root must not pass
/// for the log's end.
#[tokio::test]
async fn a_root_is_not_the_end_of_a_longer_log() {
    for (records, is_found) in [(40, true), (200, false)] {
        let store = log_of(20).await;
        let manifest = read_manifest(&store, &volume()).await.unwrap();
        let detach = record(21, Body::detach(&manifest));
        let attach = Body::Attach { sectors: 1000, node: "n".into(), displaced: None };
        let again = Record { epoch: Epoch(2), ..record(22, attach) };
        for next in [&detach, &again] {
            assert_eq!(create_record(&store, next).await.unwrap(), CreateOutcome::Created);
        }
        for seq in 23..=records {
            let next = Record { epoch: Epoch(2), ..commit(seq) };
            assert_eq!(create_record(&store, &next).await.unwrap(), CreateOutcome::Created);
            if seq % 32 == 0 {
                checkpoint_and_truncate(&store).await;
            }
        }
        // The detaching writer retries its record, possibly late.
        if !is_found {
            assert_eq!(create_record(&store, &detach).await.unwrap(), CreateOutcome::Created);
        }
        let is_later = |key: &String| {
            key.contains("checkpoints") || *key > ObjectKey::Log(volume(), Seq(21)).to_string()
        };
        let hidden = store.keys().into_iter().filter(is_later).collect();
        let behind = Behind { hidden, store: store.clone(), repeats: false };
        assert_eq!(read_manifest(&behind, &volume()).await.unwrap().seq(), Seq(21), "as far as LIST shows");
        let read = read_manifest_to_end(&behind, &volume()).await;
        if is_found {
            assert_eq!(read.unwrap().seq(), Seq(records));
        } else {
            assert!(matches!(read.unwrap_err(), LogFailure::Contended(_)));
            let removed = remove(&behind, &volume(), NONCE, 0, LOST).await.unwrap_err();
            assert!(matches!(removed, LogFailure::Contended(_)), "{removed}");
            assert!(read_manifest_to_end(&store, &volume()).await.unwrap().exists(), "nothing was removed");
        }
    }
}
