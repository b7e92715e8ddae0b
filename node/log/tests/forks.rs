//! Forks of snapshots, on the reference store.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::ops::Range;
use std::sync::Mutex;

use async_trait::async_trait;
use bytes::Bytes;
use futures::FutureExt;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_log::{
    CreateOutcome, Creation, LogFailure, confirm_fork, create_record, forget, provision, read_creation,
    read_manifest_to_end, remove, snapshot_detached,
};
use holdfast_objects::{
    CreateError, Created, Fault, MemoryStore, ObjectStore, Page, Parts, SegmentError, StoreError, Suffix,
    UnfinishedUpload, Verb,
};
use holdfast_types::{Epoch, Nonce, Seq, SnapshotName, SnapshotUid, VolumeId};

const NONCE: Nonce = Nonce([3; 16]);
const SECTORS: u64 = 1000;

fn id(name: &str) -> VolumeId {
    name.parse().unwrap()
}

fn named(text: &str) -> SnapshotName {
    text.parse().unwrap()
}

/// Requests `sectors` sectors; zero: the snapshot's.
fn fork_of(source: &str, sectors: u64) -> Creation {
    Creation { source: Some(named(source)), ..Creation::plain(sectors, NONCE, 0) }
}

async fn snapshot(store: &MemoryStore, volume: &str) -> String {
    let taken = snapshot_detached(store, &id(volume), SnapshotUid([1; 16]), NONCE, 7).await.unwrap();
    format!("{volume}@{}", taken.seq)
}

/// Creates volume `a` with a snapshot, `a@2`.
async fn with_snapshot() -> MemoryStore {
    let store = MemoryStore::new();
    provision(&store, &id("a"), Creation::plain(SECTORS, NONCE, 0)).await.unwrap();
    assert_eq!(snapshot(&store, "a").await, "a@2");
    store
}

async fn attach(store: &MemoryStore, volume: &str) {
    let seq = read_manifest_to_end(store, &id(volume)).await.unwrap().seq().next();
    let body = Body::Attach { sectors: SECTORS, node: "n".into(), displaced: None };
    let record = Record { volume: id(volume), seq, epoch: Epoch(1), nonce: NONCE, unix_ms: 0, body };
    assert_eq!(create_record(store, &record).await.unwrap(), CreateOutcome::Created);
}

/// Appends one record to the log of a detached volume.
async fn lengthen(store: &MemoryStore, volume: &str) {
    let seq = read_manifest_to_end(store, &id(volume)).await.unwrap().seq().next();
    let body = Body::of_snapshots(Default::default());
    let record = Record { volume: id(volume), seq, epoch: Epoch(0), nonce: NONCE, unix_ms: 0, body };
    assert_eq!(create_record(store, &record).await.unwrap(), CreateOutcome::Created);
}

async fn exists(store: &MemoryStore, volume: &str) -> bool {
    read_manifest_to_end(store, &id(volume)).await.unwrap().exists()
}

#[tokio::test]
async fn a_fork_is_two_puts_and_six_gets() {
    let store = with_snapshot().await;
    let before = store.counts();
    assert_eq!(provision(&store, &id("b"), fork_of("a@2", 0)).await.unwrap(), SECTORS);
    let after = store.counts();
    // The record that registers it, the root, and before and after them the missing mark. Neither position
    // was truncated: one marker each.
    assert_eq!((after.put - before.put, after.get - before.get, after.list - before.list), (2, 6, 0));
    let manifest = read_manifest_to_end(&store, &id("b")).await.unwrap();
    assert_eq!((manifest.sectors(), manifest.lineage().ancestors()), (SECTORS, &[id("a")][..]));
    assert_eq!(read_creation(&store, &id("b")).await.unwrap().source, Some(named("a@2")));
}

#[tokio::test]
async fn a_fork_may_be_larger_than_its_snapshot_and_not_smaller() {
    let store = with_snapshot().await;
    assert_eq!(provision(&store, &id("b"), fork_of("a@2", SECTORS + 1)).await.unwrap(), SECTORS + 1);
    let refused = provision(&store, &id("c"), fork_of("a@2", SECTORS - 1)).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "volume c would have 999 sectors, but snapshot a@2 has 1000: choose at least its size"
    );
    assert!(!exists(&store, "c").await, "nothing was changed");
}

/// Nightly clones of clones reach the end of the chain in three months.
#[tokio::test]
async fn the_end_of_a_chain_of_forks_names_the_way_out() {
    let store = with_snapshot().await;
    let mut source = "a@2".to_owned();
    for generation in 1..=100 {
        let clone = format!("c{generation}");
        provision(&store, &id(&clone), fork_of(&source, 0)).await.unwrap();
        let manifest = read_manifest_to_end(&store, &id(&clone)).await.unwrap();
        assert_eq!(manifest.lineage().ancestors().len(), generation);
        source = snapshot(&store, &clone).await;
    }
    let refused = provision(&store, &id("d"), fork_of(&source, 0)).await.unwrap_err();
    let says = format!(
        "snapshot {source} cannot be restored as a separate volume: it has 100 ancestors, the maximum; \
         copy the content of volume c100 to a new volume that is not a fork, and take snapshots of that volume"
    );
    assert_eq!(refused.to_string(), says);
    assert!(!exists(&store, "d").await, "nothing was changed");
}

#[tokio::test]
async fn a_snapshot_that_never_was_is_no_source() {
    let store = with_snapshot().await;
    for source in ["a@1", "a@3", "x@2"] {
        let refused = provision(&store, &id("b"), fork_of(source, 0)).await.unwrap_err();
        assert!(matches!(refused, LogFailure::NoSuchSource { .. }), "{refused}");
        assert!(!exists(&store, "b").await, "nothing was changed");
    }
}

/// A writer stores the root before its record, and died in between.
#[tokio::test]
async fn a_root_that_no_record_registers_is_no_source() {
    let store = with_snapshot().await;
    let root = store.get("volumes/a/snapshots/00000000000000000002", 1 << 20).await.unwrap();
    let mut manifest = Manifest::decode_checkpoint(&root).unwrap();
    attach(&store, "a").await;
    let record = holdfast_log::read_record(&store, &id("a"), Seq(3)).await.unwrap();
    manifest.apply(&record).unwrap();
    let left = manifest.encode_root().into();
    let Created = store.create("volumes/a/snapshots/00000000000000000003", left).await.unwrap();
    let refused = provision(&store, &id("b"), fork_of("a@3", 0)).await.unwrap_err();
    assert!(matches!(refused, LogFailure::NoSuchSource { .. }), "{refused}");
}

/// The reply to the create, or the request, is lost, and the caller retries.
#[tokio::test]
async fn a_lost_reply_makes_one_fork() {
    for fault in [Fault::LostReply, Fault::LostRequest] {
        let store = with_snapshot().await;
        store.fail_next(Verb::Put, fault);
        let retried = match provision(&store, &id("b"), fork_of("a@2", 0)).await {
            Ok(sectors) => sectors,
            Err(_) => provision(&store, &id("b"), fork_of("a@2", 0)).await.unwrap(),
        };
        assert_eq!(retried, SECTORS);
        let again = Creation { nonce: Nonce([9; 16]), ..fork_of("a@2", 0) };
        assert_eq!(provision(&store, &id("b"), again).await.unwrap(), SECTORS, "by another caller");
    }
}

#[tokio::test]
async fn an_id_is_not_taken_by_a_volume_of_another_source() {
    let store = with_snapshot().await;
    provision(&store, &id("b"), Creation::plain(SECTORS, NONCE, 0)).await.unwrap();
    let refused = provision(&store, &id("b"), fork_of("a@2", 0)).await.unwrap_err();
    assert_eq!(refused.to_string(), "volume b already exists, created empty: choose another id");
    provision(&store, &id("c"), fork_of("a@2", 0)).await.unwrap();
    let refused = provision(&store, &id("c"), Creation::plain(SECTORS, NONCE, 0)).await.unwrap_err();
    assert_eq!(refused.to_string(), "volume c already exists, restored from a@2: choose another id");
}

/// The snapshot was deleted after the fork's creation, and the fork's creator retries.
#[tokio::test]
async fn a_fork_outlives_its_snapshot() {
    let store = with_snapshot().await;
    provision(&store, &id("b"), fork_of("a@2", 0)).await.unwrap();
    forget(&store, &id("a"), Seq(2)).await.unwrap();
    assert_eq!(provision(&store, &id("b"), fork_of("a@2", 0)).await.unwrap(), SECTORS);
    let late = provision(&store, &id("c"), fork_of("a@2", 0)).await.unwrap_err();
    assert!(matches!(late, LogFailure::NoSuchSource { .. }), "{late}");
    assert!(!exists(&store, "c").await && exists(&store, "b").await);
}

/// A removal needs no requests about other volumes.
#[tokio::test]
async fn a_volume_without_snapshots_is_removed_whatever_others_are_there() {
    let store = with_snapshot().await;
    provision(&store, &id("b"), Creation::plain(SECTORS, NONCE, 0)).await.unwrap();
    attach(&store, "b").await;
    store.corrupt("volumes/a/log/00000000000000000001", |bytes| bytes[40] ^= 1);
    remove(&store, &id("b"), NONCE, 0, Some(Epoch(u64::MAX))).await.unwrap();
}

/// The snapshot is forgotten, and its volume removed, between the fork's read of the root and its create.
#[tokio::test]
async fn a_fork_that_comes_after_the_mark_ends_itself() {
    let store = with_snapshot().await;
    let script = async |inner: MemoryStore| {
        forget(&inner, &id("a"), Seq(2)).await.unwrap();
        remove(&inner, &id("a"), NONCE, 0, None).await.unwrap();
    };
    let before_create =
        Before { inner: store.clone(), key: "volumes/b/log/", script: Mutex::new(Some(script)) };
    let refused = provision(&before_create, &id("b"), fork_of("a@2", 0)).await.unwrap_err();
    assert!(matches!(refused, LogFailure::NoSuchSource { .. }), "{refused}");
    assert!(!exists(&store, "b").await && !exists(&store, "a").await);
}

/// A store that runs a script before the first create under `key`.
struct Before<F> {
    inner: MemoryStore,
    key: &'static str,
    script: Mutex<Option<F>>,
}

impl<F> std::fmt::Debug for Before<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Before").field("key", &self.key).finish_non_exhaustive()
    }
}

#[async_trait]
impl<F: AsyncFnOnce(MemoryStore) + Send + Sync> ObjectStore for Before<F> {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.inner.get(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.inner.get_range(key, range).await
    }

    async fn get_suffix(&self, key: &str, bytes: u64) -> Result<Suffix, StoreError> {
        self.inner.get_suffix(key, bytes).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        if key.starts_with(self.key)
            && let Some(script) = self.script.lock().unwrap().take()
        {
            // The in-memory store responds at once.
            script(self.inner.clone()).now_or_never().unwrap();
        }
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

/// Found by review: a creator was delayed between its create record and its check of the mark. Another one
/// completed the fork in the meantime, a node wrote to it, and then the snapshot was deleted.
#[tokio::test]
async fn a_fork_that_is_in_use_outlives_its_slow_creator() {
    let store = with_snapshot().await;
    let script = async |inner: MemoryStore| {
        provision(&inner, &id("b"), fork_of("a@2", 0)).await.unwrap();
        attach(&inner, "b").await;
        forget(&inner, &id("a"), Seq(2)).await.unwrap();
    };
    let slow =
        BeforeGet { inner: store.clone(), key: "volumes/a/forgotten/", script: Mutex::new(Some(script)) };
    let _said = provision(&slow, &id("b"), fork_of("a@2", 0)).await;
    assert!(exists(&store, "b").await, "the fork that a node has attached was removed");
}

/// A restored bucket reaches the same seq again, and another snapshot is taken there.
#[tokio::test]
async fn a_snapshot_of_another_uid_is_no_source() {
    let store = with_snapshot().await;
    let wanted = SnapshotUid([9; 16]);
    let of = |uid| Creation { source_uid: Some(uid), ..fork_of("a@2", 0) };
    let refused = provision(&store, &id("b"), of(wanted)).await.unwrap_err();
    let LogFailure::OtherSnapshot { found, wanted: named, .. } = refused else { panic!("{refused}") };
    assert_eq!((found, named), (SnapshotUid([1; 16]), wanted));
    assert!(!exists(&store, "b").await, "nothing was changed");
    provision(&store, &id("b"), of(found)).await.unwrap();
    assert_eq!(provision(&store, &id("b"), of(wanted)).await.unwrap(), SECTORS, "it is there already");
    for _ in 0..70 {
        lengthen(&store, "a").await;
    }
    let manifest = read_manifest_to_end(&store, &id("a")).await.unwrap();
    let (end, bytes) = (manifest.seq(), manifest.encode_checkpoint());
    holdfast_log::write_checkpoint(&store, &id("a"), end, bytes.clone().into()).await.unwrap();
    holdfast_log::truncate(&store, &id("a"), end, (end, &bytes)).await.unwrap();
    let refused = provision(&store, &id("c"), of(wanted)).await.unwrap_err();
    assert!(matches!(refused, LogFailure::OtherSnapshot { .. }), "{refused}");
    provision(&store, &id("c"), of(found)).await.unwrap();
}

/// Found by review: the create record came after the mark and the removal, and its reply was lost.
#[tokio::test]
async fn a_late_fork_with_a_lost_reply_ends_itself() {
    let store = with_snapshot().await;
    let script = async |inner: MemoryStore| {
        forget(&inner, &id("a"), Seq(2)).await.unwrap();
        remove(&inner, &id("a"), NONCE, 0, None).await.unwrap();
        inner.fail_next(Verb::Put, Fault::LostReply);
    };
    let before_create =
        Before { inner: store.clone(), key: "volumes/b/log/", script: Mutex::new(Some(script)) };
    let refused = provision(&before_create, &id("b"), fork_of("a@2", 0)).await.unwrap_err();
    assert!(matches!(refused, LogFailure::NoSuchSource { .. }), "{refused}");
    assert!(!exists(&store, "b").await, "its objects are gone, and any node can attach it");
}

/// A store that runs a script before the first GET under `key`.
struct BeforeGet<F> {
    inner: MemoryStore,
    key: &'static str,
    script: Mutex<Option<F>>,
}

/// Stores only the create record of a fork, like a creator that dies then.
async fn create_only(inner: &MemoryStore, volume: &str, source: &str) {
    let SnapshotName { volume: of, seq } = named(source);
    let root = holdfast_log::read_snapshot(inner, &of, seq).await.unwrap();
    let source = root.fork().map(Box::new);
    let body = Body::Create { sectors: SECTORS, source, labels: Default::default() };
    let record = Record { volume: id(volume), seq: Seq(1), epoch: Epoch(0), nonce: NONCE, unix_ms: 0, body };
    assert_eq!(create_record(inner, &record).await.unwrap(), CreateOutcome::Created);
}

/// Found by review: a fork whose creator died before checking the mark could be attached without its data.
#[tokio::test]
async fn a_fork_whose_creator_died_stands_or_ends_at_its_first_use() {
    for is_late in [false, true] {
        let store = with_snapshot().await;
        create_only(&store, "b", "a@2").await;
        if is_late {
            forget(&store, &id("a"), Seq(2)).await.unwrap();
        }
        for use_it in ["attach", "snapshot", "create"] {
            let used = match use_it {
                "attach" => confirm_fork(&store, &id("b")).await.map_err(|error| error.to_string()),
                "snapshot" => snapshot_detached(&store, &id("b"), SnapshotUid([1; 16]), NONCE, 7)
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string()),
                _ => provision(&store, &id("b"), fork_of("a@2", 0))
                    .await
                    .map(drop)
                    .map_err(|error| error.to_string()),
            };
            assert_eq!((used.is_err(), exists(&store, "b").await), (is_late, !is_late), "{use_it}: {used:?}");
        }
    }
}

/// Once it is confirmed, the mark is not checked again.
#[tokio::test]
async fn a_fork_stands_when_its_snapshot_is_forgotten_before_the_first_attach() {
    let store = with_snapshot().await;
    provision(&store, &id("b"), fork_of("a@2", 0)).await.unwrap();
    forget(&store, &id("a"), Seq(2)).await.unwrap();
    store.delete(&["volumes/a/snapshots/00000000000000000002"]).await.unwrap();
    assert!(!read_manifest_to_end(&store, &id("b")).await.unwrap().is_unconfirmed());
    for sectors in [0, SECTORS] {
        assert_eq!(provision(&store, &id("b"), fork_of("a@2", sectors)).await.unwrap(), SECTORS);
    }
}

impl<F> std::fmt::Debug for BeforeGet<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BeforeGet").finish_non_exhaustive()
    }
}

#[async_trait]
impl<F: AsyncFnOnce(MemoryStore) + Send + Sync> ObjectStore for BeforeGet<F> {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        if key.starts_with(self.key)
            && let Some(script) = self.script.lock().unwrap().take()
        {
            script(self.inner.clone()).now_or_never().unwrap();
        }
        self.inner.get(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
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
