//! Attaches of a volume that is attached according to its log, and the valid local state: real files, an
//! in-memory store.

use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use holdfast_background::{
    Acquired, AttachError, Background, Compressors, Environment, Preserved, StoreKey, Work, acquire,
};
use holdfast_engine::action::Report;
use holdfast_engine::attach::{AttachRefused, ForeignReason, LocalData, Missing, assess_local};
use holdfast_engine::durable_map::FoundMap;
use holdfast_engine::sector_map::Restore;
use holdfast_engine::settings::{AttachState, Pending};
use holdfast_format::displaced::Displaced;
use holdfast_format::snapshot::Snapshot;
use holdfast_log::{
    CreateOutcome, Creation, LogFailure, create_record, forget, provision, read_manifest, read_snapshot,
    remove, snapshot_detached, write_checkpoint,
};
use holdfast_objects::{
    CreateError, Created, MemoryStore, Page, Parts, SegmentError, StoreError, Suffix, UnfinishedUpload,
};
use holdfast_s3::S3Store;
use holdfast_types::key::ObjectKey;
use tokio::sync::Notify;

use super::*;
use crate::node::local::volume_files::AttachFiles;
use crate::node::volume::background::LocalSides;
use crate::node::volume::detach::preserve;
use crate::node::volume::device::new_device;
use crate::node::volume::table::Reserved;
use holdfast_serve::LiveMap;

/// One volume on one node, with all actions of its engine executed at once.
struct Writer {
    served: Volume<LiveMap>,
    background: Background<LocalSides, NodeTime>,
    now: u64,
    commits: u64,
    snapshots: Vec<Snapshot>,
}

impl Writer {
    fn new(dirs: &Dirs, objects: &Arc<MemoryStore>, acquired: Acquired<AttachFiles>) -> Self {
        let limits = DirtyLimits { seal_bytes: 4 << 20, max_bytes: 64 << 20, max_age_ms: 1000 };
        let setup = Setup {
            requests: 4,
            limits,
            durability: Durability::Local,
            header: acquired.header,
            header_generation: acquired.header_generation,
            unix_ms_at_zero: 0,
        };
        let AttachFiles { files, live_map: memory } = acquired.files;
        let sides = files.sides.map(Arc::new);
        let objects = Arc::clone(objects) as Arc<dyn ObjectStore>;
        let sides = LocalSides { local: dirs.local(), sides };
        let pools = Pools {
            indexes: Arc::new(Indexes::new(16, 1 << 20)),
            upload_memory: UploadMemory::new(64 << 20, PART_BYTES),
            compressors: Arc::new(Compressors::new(2)),
            merging: Arc::default(),
        };
        let background = Background::new(volume(), (StoreKey(0), objects), sides, NodeTime, pools);
        let mut actions = Vec::new();
        let Acquired { manifest, found, .. } = acquired;
        let state = AttachState { manifest, generation: found.generation() };
        let served = Volume::attach(setup, memory, state, 0, &mut actions);
        assert!(
            actions.iter().any(|action| matches!(action, Action::Report(Report::Ready))),
            "nothing is dirty"
        );
        Self { served, background, now: 0, commits: 0, snapshots: Vec::new() }
    }

    /// Passes `event`, and all resulting events, to the engine.
    async fn handle(&mut self, event: Event) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut actions = Vec::new();
            self.served.handle(self.now, event, &mut actions);
            for action in actions {
                let work = match action {
                    Action::PrepareMap { chunk } => {
                        events.push(Event::MapPrepared { chunk, result: Ok(()) });
                        continue;
                    }
                    Action::Write { id, range, side } => {
                        let bytes = vec![
                            u8::try_from(self.now % 251).unwrap();
                            usize::try_from(range.bytes()).unwrap()
                        ];
                        self.write(side, &bytes, range);
                        events.push(Event::IoCompleted { id, result: Ok(()) });
                        continue;
                    }
                    Action::SyncSide { side } => {
                        events.push(Event::SideSynced { side, result: Ok(()) });
                        continue;
                    }
                    Action::WriteMap(writes) => {
                        for write in writes {
                            self.map_file().write_all_at(&write.bytes, write.offset).unwrap();
                        }
                        events.push(Event::MapWritten { result: Ok(()) });
                        continue;
                    }
                    Action::SyncMap => {
                        events.push(Event::MapSynced { result: Ok(()) });
                        continue;
                    }
                    Action::Report(report) => {
                        self.commits += u64::from(matches!(report, Report::Committed(_)));
                        if let Report::SnapshotTaken(taken) = report {
                            self.snapshots.push(taken);
                        }
                        continue;
                    }
                    Action::Complete { result, .. } => {
                        assert_eq!(result, Ok(()));
                        continue;
                    }
                    Action::NextTurn => {
                        events.push(Event::NextTurn);
                        continue;
                    }
                    Action::Upload { place, blocks } => Work::Upload { place, blocks },
                    Action::Merge(plan) => Work::Merge(plan),
                    Action::StoreRoot { seq, bytes } => Work::StoreRoot { seq, bytes },
                    Action::StorePending { seq, bytes } => Work::StorePending(Pending { seq, bytes }),
                    Action::CreateRecord { seq, bytes } => Work::CreateRecord { seq, bytes },
                    Action::ReadRecord { seq } => Work::ReadRecord { seq },
                    Action::WriteCheckpoint { seq, bytes } => Work::WriteCheckpoint { seq, bytes },
                    Action::Read { .. }
                    | Action::ReadCold { .. }
                    | Action::Punch { .. }
                    | Action::Evict { .. }
                    | Action::Pause
                    | Action::ReleaseMap { .. } => {
                        unreachable!("{action:?}")
                    }
                };
                let (event, _tidies_later) = self.background.perform(work).await;
                events.push(event);
            }
        }
    }

    fn map_file(&self) -> File {
        File::options().write(true).open(self.background.sides.local.map_path()).unwrap()
    }

    /// The sides are open for direct I/O, which needs aligned memory.
    fn write(&self, side: Side, bytes: &[u8], range: SectorRange) {
        let path = self.background.sides.local.dir().join(["a.data", "b.data"][side as usize]);
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(bytes, range.start.byte_offset()).unwrap();
    }

    /// Writes the same sectors, flushes and commits them.
    async fn write_and_commit(&mut self) {
        let commits = self.commits;
        self.now += 10;
        let range = SectorRange::new(2, 3);
        self.handle(Event::Request { id: RequestId(0), op: Op::Write, range }).await;
        let none = SectorRange::new(0, 0);
        self.handle(Event::Request { id: RequestId(1), op: Op::Flush, range: none }).await;
        self.now += 2000;
        self.handle(Event::Tick).await;
        assert_eq!(self.commits, commits + 1);
    }
}

async fn store_with(identity: u8) -> Arc<MemoryStore> {
    let store = Arc::new(MemoryStore::new());
    provision(&*store, &volume(), Creation::plain(SECTORS, Nonce([identity; 16]), 0)).await.unwrap();
    store
}

async fn attach(
    dirs: &Dirs,
    store: &MemoryStore,
    claim: &Claim,
) -> Result<Acquired<AttachFiles>, AttachRefused> {
    match acquire(store, &volume(), &dirs.local(), claim, &NodeTime).await {
        Ok(acquired) => Ok(acquired),
        Err(AttachError::Refused(refused)) => Err(refused),
        Err(other) => panic!("{other}"),
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Regression: a node that returned under its name with an empty state directory attached as if nothing had
/// been flushed there.
#[test]
fn an_empty_state_directory_under_the_same_name_is_refused() {
    run_node_test(async {
        let store = store_with(9).await;
        let before = Dirs::new();
        attach(&before, &store, &claim("a", 1)).await.unwrap();
        let empty = Dirs::new();
        let refused = attach(&empty, &store, &claim("a", 2)).await.err().unwrap();
        let message = refused.to_string();
        assert!(message.contains("--take-over 1") && message.contains("force-detach=a"), "{message}");
        let AttachRefused::LocalStateMissing { epoch: Epoch(1), missing: Missing::Absent, .. } = refused
        else {
            panic!("{refused:?}")
        };
        assert!(!empty.durable_map().exists(), "a refusal changes nothing");
        // The disk is back: its own attach needs no permission.
        assert_eq!(attach(&before, &store, &claim("a", 3)).await.unwrap().displaced, None);
        // It is permanently lost.
        let accepted = Claim { replaces: Some(Epoch(2)), ..claim("a", 4) };
        let displaced = attach(&empty, &store, &accepted).await.unwrap().displaced;
        assert_eq!(displaced, Some(Displaced { epoch: Epoch(2), node: "a".to_owned(), since_unix_ms: 0 }));
    });
}

/// Regression: a disk restored to a snapshot was uploaded over later commits.
#[test]
fn a_disk_that_was_rolled_back_overwrites_no_newer_commit() {
    run_node_test(async {
        let store = store_with(9).await;
        let dirs = Dirs::new();
        let acquired = attach(&dirs, &store, &claim("a", 1)).await.unwrap();
        let mut writer = Writer::new(&dirs, &store, acquired);
        writer.write_and_commit().await;
        // In its map the first version is still dirty: the commit followed the flush round.
        let snapshot = tempfile::tempdir().unwrap();
        copy(&dirs.local().dir(), snapshot.path());
        writer.write_and_commit().await;
        writer.write_and_commit().await;
        drop(writer);
        fs::remove_dir_all(dirs.local().dir()).unwrap();
        copy(snapshot.path(), &dirs.local().dir());
        let FoundMap { pages, .. } = dirs.local().read_map().unwrap().unwrap();
        assert!(pages.holds_dirty(), "the older state has something to upload");

        let refused = attach(&dirs, &store, &claim("a", 2)).await.err().unwrap();
        let AttachRefused::LocalStateMissing { missing: Missing::Differs(ForeignReason::Older), .. } =
            refused
        else {
            panic!("{refused:?}")
        };
        let accepted = Claim { replaces: Some(Epoch(1)), ..claim("a", 3) };
        let acquired = attach(&dirs, &store, &accepted).await.unwrap();
        assert_eq!(acquired.preserved, Some(Preserved { epoch: Epoch(1), why: ForeignReason::Older }));
        assert!(acquired.found.is_empty() && acquired.displaced.is_some());
        let kept = fenced::find(dirs.state.path(), "disk-1").unwrap();
        assert_eq!(kept.contents().unwrap().bytes(), 3 * SECTOR_BYTES);
    });
}

/// Copies the current objects of `store`.
async fn backup(store: &MemoryStore) -> Arc<MemoryStore> {
    let copy = MemoryStore::new();
    for key in store.keys() {
        let bytes = store.get(&key, u64::MAX).await.unwrap();
        assert!(copy.create(&key, bytes).await.is_ok());
    }
    Arc::new(copy)
}

/// Regression: after a bucket was restored from a backup, clean data was served from older objects, and the
/// first commit broke the log.
#[test]
fn a_log_rolled_back_is_reported_and_breaks_no_log() {
    run_node_test(async {
        let store = store_with(9).await;
        let dirs = Dirs::new();
        let never_attached = backup(&store).await;
        let acquired = attach(&dirs, &store, &claim("a", 1)).await.unwrap();
        let mut writer = Writer::new(&dirs, &store, acquired);
        writer.write_and_commit().await;
        let attached = backup(&store).await;
        writer.write_and_commit().await;
        writer.write_and_commit().await;
        drop(writer);
        let AttachRefused::LocalStateMissing { missing, .. } =
            attach(&dirs, &attached, &claim("a", 2)).await.err().unwrap()
        else {
            panic!("older objects are served")
        };
        assert_eq!(missing, Missing::Differs(ForeignReason::LogRolledBack));

        let accepted = Claim { replaces: Some(Epoch(1)), ..claim("a", 3) };
        for (store, claim) in [(never_attached, claim("a", 3)), (attached, accepted)] {
            let restored = Dirs::new();
            copy(&dirs.local().dir(), &restored.local().dir());
            let acquired = attach(&restored, &store, &claim).await.unwrap();
            assert_eq!(
                acquired.preserved,
                Some(Preserved { epoch: Epoch(1), why: ForeignReason::LogRolledBack })
            );
            assert_eq!(acquired.displaced.as_ref().map(|writer| writer.epoch), claim.replaces);
            assert_eq!((acquired.header.epoch, acquired.found.is_empty()), (Epoch(2), true));
            let kept = fenced::find(restored.state.path(), "disk-1").unwrap();
            kept.contents().unwrap();
            let mut writer = Writer::new(&restored, &store, acquired);
            writer.write_and_commit().await;
            drop(writer);
            let log = read_manifest(&*store, &volume()).await.unwrap();
            assert_eq!(log.epoch(), Epoch(2));
            let after = restored.local().read_map().unwrap().unwrap();
            assert!(matches!(assess_local(&log, Some(&after)), LocalData::Ours { .. }));
        }
    });
}

/// Regression, found in review: after the bucket was restored from a backup, the detach of a volume that was
/// being served removed the only copy of the data committed since.
#[test]
fn a_detach_keeps_clean_data_that_the_log_has_lost() {
    run_node_test(async {
        let store = store_with(9).await;
        let dirs = Dirs::new();
        let acquired = attach(&dirs, &store, &claim("a", 1)).await.unwrap();
        let mut writer = Writer::new(&dirs, &store, acquired);
        writer.write_and_commit().await;
        let restored = backup(&store).await;
        writer.write_and_commit().await;
        writer.write_and_commit().await;
        let range = SectorRange::new(0, 1);
        writer.handle(Event::Request { id: RequestId(0), op: Op::Flush, range }).await;
        drop(writer);
        let replica = Dirs::new();
        copy(&dirs.local().dir(), &replica.local().dir());
        assert!(!dirs.local().read_map().unwrap().unwrap().pages.holds_dirty(), "all is committed");

        preserve(&*restored, &dirs.local(), Epoch(1), true).await.unwrap();
        let kept = fenced::find(dirs.state.path(), "disk-1").unwrap();
        kept.contents().unwrap();
        preserve(&*store, &replica.local(), Epoch(1), true).await.unwrap();
        assert!(!replica.local().dir().exists() && fenced::find(replica.state.path(), "disk-1").is_err());
    });
}

/// LIST may show an older state of a log: this alone does not justify setting data apart.
#[test]
fn a_list_that_is_behind_sets_no_log_back() {
    run_node_test(async {
        let store = store_with(9).await;
        let dirs = Dirs::new();
        let acquired = attach(&dirs, &store, &claim("a", 1)).await.unwrap();
        let mut writer = Writer::new(&dirs, &store, acquired);
        for _ in 0..3 {
            writer.write_and_commit().await;
        }
        drop(writer);
        let behind = StaleList(Arc::clone(&store));
        let seen = read_manifest(&behind, &volume()).await.unwrap();
        let found = dirs.local().read_map().unwrap().unwrap();
        assert_eq!(assess_local(&seen, Some(&found)), LocalData::Foreign(ForeignReason::LogRolledBack));
        let acquired = acquire(&behind, &volume(), &dirs.local(), &claim("a", 2), &NodeTime).await.unwrap();
        assert_eq!((acquired.preserved, acquired.header.epoch), (None, Epoch(2)));
        assert!(!acquired.found.is_empty());
    });
}

/// A store that lists only the first record of a log.
#[derive(Debug)]
struct StaleList(Arc<MemoryStore>);

#[async_trait::async_trait]
impl ObjectStore for StaleList {
    async fn get(&self, key: &str, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.0.get(key, max_bytes).await
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, StoreError> {
        self.0.get_range(key, range).await
    }

    async fn get_suffix(&self, key: &str, len: u64) -> Result<Suffix, StoreError> {
        self.0.get_suffix(key, len).await
    }

    async fn create(&self, key: &str, body: Bytes) -> Result<Created, CreateError> {
        self.0.create(key, body).await
    }

    async fn put_segment(&self, key: &str, parts: &mut dyn Parts) -> Result<(), SegmentError> {
        self.0.put_segment(key, parts).await
    }

    async fn list(&self, prefix: &str, start_after: Option<&str>, _limit: usize) -> Result<Page, StoreError> {
        let page = self.0.list(prefix, start_after, 1).await?;
        Ok(Page { more: false, ..page })
    }

    async fn delete(&self, keys: &[&str]) -> Result<(), StoreError> {
        self.0.delete(keys).await
    }

    async fn unfinished_uploads(&self, prefix: &str) -> Result<Vec<UnfinishedUpload>, StoreError> {
        self.0.unfinished_uploads(prefix).await
    }

    async fn abort_upload(&self, upload: &UnfinishedUpload) -> Result<(), StoreError> {
        self.0.abort_upload(upload).await
    }
}

/// Regression: a takeover with an ambiguous create was never reported: the next attach continued it.
#[test]
fn a_takeover_is_reported_after_a_lost_answer() {
    run_node_test(async {
        for is_doubtful in [true, false] {
            let store = store_with(9).await;
            attach(&Dirs::new(), &store, &claim("gone", 1)).await.unwrap();
            let dirs = Dirs::new();
            let over = Claim { replaces: Some(Epoch(1)), ..claim("a", 2) };
            if is_doubtful {
                store.fail_next(Verb::Put, Fault::LostReply);
                // Both records of the log are read before the record is read back.
                for _ in 0..2 {
                    store.fail_next(Verb::Get, Fault::Delay(Duration::ZERO));
                }
                store.fail_next(Verb::Get, Fault::Before(holdfast_objects::ErrorKind::Unavailable));
            }
            let first = acquire(&*store, &volume(), &dirs.local(), &over, &NodeTime).await;
            // Otherwise the process dies before it can report.
            assert_eq!(first.is_err(), is_doubtful);
            drop(first);
            let displaced = Displaced { epoch: Epoch(1), node: "gone".to_owned(), since_unix_ms: 0 };
            for turn in 3..5 {
                let again = attach(&dirs, &store, &claim("a", turn)).await.unwrap();
                assert_eq!(again.displaced.as_ref(), Some(&displaced));
            }
        }
    });
}

/// Regression: another writer's outdated files were moved away during an attach that had started meanwhile.
#[test]
fn outdated_files_are_not_moved_below_an_attach() {
    run_node_test(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        let acquired = attach(&dirs, &bucket.objects, &claim("a", 1)).await.unwrap();
        Writer::new(&dirs, &bucket.objects, acquired).write_and_commit().await;
        dirs.local().forget_attached().unwrap();
        let over = Claim { replaces: Some(Epoch(1)), ..claim("b", 2) };
        attach(&Dirs::new(), &bucket.objects, &over).await.unwrap();
        let before = fs::read(dirs.durable_map()).unwrap();

        bucket.close("log");
        let clearing = tokio::spawn({
            let (node, store) = (node.clone(), bucket.config.clone());
            async move { node.outdated().clear(&volume(), "main", &store).await }
        });
        tokio::time::timeout(LIMIT, bucket.arrival()).await.expect("the log is read");
        let Ok(Reserved::Now(attaching)) = node.0.volumes.reserve(&request()) else { panic!("it is free") };
        bucket.open();
        let refused = clearing.await.unwrap().unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Busy);
        assert!(fs::read(dirs.durable_map()).unwrap() == before);
        assert!(matches!(attaching.get(), State::Attaching { .. }));
        node.0.volumes.forget(&volume(), &attaching);
        node.outdated().clear(&volume(), "main", &bucket.config).await.unwrap();
        assert!(!dirs.durable_map().exists() && !node.0.volumes.contains(&volume()));
        node.shutdown().await;
    });
}

/// Found in review: files of an attach that failed before its first header stayed, and were checked in a
/// loop.
#[test]
fn files_without_a_header_are_removed() {
    run_node_test(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        drop(LocalState::open(&dirs.local(), SECTORS, None).await.unwrap());
        dirs.local().forget_attached().unwrap();
        assert!(node.outdated().has_unserved_files(&volume()));
        node.outdated().clear(&volume(), "main", &bucket.config).await.unwrap();
        assert!(!dirs.durable_map().exists());
        node.shutdown().await;
    });
}

/// Regression: each detached volume left its files, even when deleted later: a node with many short-lived
/// claims queried the API server for thousands of them, and measured them several times a second.
#[test]
fn files_of_a_deleted_volume_stay_while_dirty() {
    run_node_test(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        assert!(!node.outdated().discard(&volume()).await.unwrap(), "there is nothing");
        let acquired = attach(&dirs, &bucket.objects, &claim("a", 1)).await.unwrap();
        Writer::new(&dirs, &bucket.objects, acquired).write_and_commit().await;
        assert!(!node.outdated().discard(&volume()).await.unwrap(), "its writer has not ended");
        dirs.local().forget_attached().unwrap();
        let before = fs::read(dirs.durable_map()).unwrap();
        assert!(!node.outdated().discard(&volume()).await.unwrap(), "it was not closed clean");
        assert!(fs::read(dirs.durable_map()).unwrap() == before);

        let local = dirs.local();
        let found = LocalState::read_map(&local).await.unwrap().unwrap();
        let header = Header { closed_clean: true, ..found.header };
        let files = local.open(SECTORS, None).await.unwrap();
        local.write_header(&files, &header, found.generation + 1).await.unwrap();
        drop(files);
        dirs.local().forget_attached().unwrap();
        assert!(!node.outdated().discard(&volume()).await.unwrap(), "it was used just now");
        let map = File::options().write(true).open(dirs.durable_map()).unwrap();
        map.set_modified(SystemTime::now() - Duration::from_hours(25)).unwrap();
        let Ok(Reserved::Now(attaching)) = node.0.volumes.reserve(&request()) else { panic!("it is free") };
        assert!(!node.outdated().discard(&volume()).await.unwrap(), "an attach has begun");
        node.0.volumes.forget(&volume(), &attaching);
        assert!(node.outdated().discard(&volume()).await.unwrap());
        assert!(!dirs.durable_map().exists() && node.outdated().unserved_volumes().is_empty());
        node.shutdown().await;
    });
}

/// Regression: an attach that failed for lack of space had fenced the writer that it was to replace, and
/// served nothing.
#[test]
fn an_attach_without_room_fences_no_writer() {
    run_node_test(async {
        let (dirs, bucket, kernel) = (Dirs::new(), Bucket::start().await, Arc::new(FakeKernel::new()));
        let node = Node::start_with(dirs.config(), kernel.clone(), LIMIT).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        attach(&Dirs::new(), &bucket.objects, &claim("b", 1)).await.unwrap();
        let over = || AttachRequest { store: bucket.config.clone(), replaces: Some(1), ..request() };
        let is_held = || async {
            let log = read_manifest(&*bucket.objects, &volume()).await.unwrap();
            log.attached().is_some_and(|writer| writer.node == "b")
        };

        fs::create_dir_all(dirs.live_map()).unwrap();
        let refused = node.attach(over()).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Local, "{refused}");
        assert!(is_held().await, "the live map comes first");
        fs::remove_dir(dirs.live_map()).unwrap();

        let device = new_device(Transport::UserCopy).need();
        let mut places = Vec::new();
        while let Ok((_, place)) = node.0.rings.reserve(device) {
            places.push(place);
        }
        let refused = node.attach(over()).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Full, "{refused}");
        assert!(is_held().await, "the place on a ring comes first");
        drop(places);

        let attached = node.attach(over()).await.unwrap();
        let displaced = Displaced { epoch: Epoch(1), node: "b".to_owned(), since_unix_ms: 0 };
        assert_eq!(attached.displaced.as_ref(), Some(&displaced));
        let again = node.attach(AttachRequest { replaces: None, ..over() }).await.unwrap();
        assert_eq!(again.displaced, Some(displaced), "the attach reports it, not the request");
        let known = wait(&node, |status| status.holds_data.is_some()).await;
        assert_eq!(known.holds_data, Some(true), "b may have written what is in no log");
        node.shutdown().await;
        kernel.end_process();
    });
}

/// After every commit, the disk's current state is the volume's newest.
#[test]
fn a_disk_as_of_its_last_commit_is_trusted() {
    run_node_test(async {
        let store = store_with(9).await;
        let dirs = Dirs::new();
        let acquired = attach(&dirs, &store, &claim("a", 1)).await.unwrap();
        let mut writer = Writer::new(&dirs, &store, acquired);
        for _ in 0..3 {
            writer.write_and_commit().await;
            let found = dirs.local().read_map().unwrap().unwrap();
            let manifest = read_manifest(&*store, &volume()).await.unwrap();
            let local_data = assess_local(&manifest, Some(&found));
            assert!(matches!(local_data, LocalData::Ours { .. }), "{local_data:?}");
        }
    });
}

/// Local files on a slow disk.
struct SlowLocal {
    local: Local,
    reached: Notify,
    resume: Notify,
}

impl LocalState for SlowLocal {
    type Error = NodeError;
    type Files = AttachFiles;

    async fn read_map(&self) -> Result<Option<FoundMap>, NodeError> {
        LocalState::read_map(&self.local).await
    }

    async fn preserve(&self, epoch: Epoch) -> Result<(), NodeError> {
        LocalState::preserve(&self.local, epoch).await
    }

    async fn discard(&self) -> Result<(), NodeError> {
        LocalState::discard(&self.local).await
    }

    async fn open(&self, sectors: u64, restore: Option<Restore>) -> Result<AttachFiles, NodeError> {
        self.local.open(sectors, restore).await
    }

    async fn write_header(
        &self,
        files: &AttachFiles,
        header: &Header,
        generation: u64,
    ) -> Result<(), NodeError> {
        self.reached.notify_one();
        self.resume.notified().await;
        LocalState::write_header(&self.local, files, header, generation).await
    }
}

/// Regression: an attach that was paused while its volume moved to another node took it back from there, and
/// fenced that node.
#[test]
fn a_paused_attach_fences_no_successor() {
    run_node_test(async {
        for permitted in [None, Some(Epoch(1))] {
            let store = store_with(9).await;
            attach(&Dirs::new(), &store, &claim("gone", 1)).await.unwrap();
            if permitted.is_none() {
                // When it read the log, the volume was not attached.
                let manifest = read_manifest(&*store, &volume()).await.unwrap();
                let detach = Record {
                    volume: volume(),
                    seq: manifest.seq().next(),
                    epoch: Epoch(1),
                    nonce: Nonce([1; 16]),
                    unix_ms: 0,
                    body: Body::Detach { root: None },
                };
                assert_eq!(create_record(&*store, &detach).await.unwrap(), CreateOutcome::Created);
            }
            let (dirs, successor) = (Dirs::new(), Dirs::new());
            let slow = SlowLocal { local: dirs.local(), reached: Notify::new(), resume: Notify::new() };
            let late_claim = Claim { replaces: permitted, ..claim("a", 2) };
            let at = volume();
            let late = acquire(&*store, &at, &slow, &late_claim, &NodeTime);
            let takes_over = async {
                slow.reached.notified().await;
                let claim = Claim { replaces: permitted, ..claim("b", 3) };
                let acquired = attach(&successor, &store, &claim).await.unwrap();
                slow.resume.notify_one();
                acquired
            };
            let (late, acquired) = tokio::join!(late, takes_over);
            assert_eq!(acquired.header.epoch, Epoch(2));
            match late.map(|acquired| acquired.header.epoch) {
                Err(AttachError::Refused(AttachRefused::AttachedElsewhere { epoch, node, .. })) => {
                    assert_eq!((permitted, epoch, node.as_str()), (None, Epoch(2), "b"));
                }
                Err(AttachError::Refused(AttachRefused::ReplacedSince { named, epoch, .. })) => {
                    assert_eq!((permitted, epoch), (Some(named), Epoch(2)));
                }
                other => panic!("{other:?}"),
            }
            let holder = read_manifest(&*store, &volume()).await.unwrap().attached().unwrap();
            assert_eq!((holder.epoch, holder.node.as_str()), (Epoch(2), "b"));
        }
    });
}

/// Time in which another writer's create is stored. Each reading of the clock advances it by four seconds,
/// and the time of day is set back by a day in between.
struct Settling {
    clock_ms: AtomicU64,
    other: Gate,
    other_attached: Notify,
    waited: parking_lot::Mutex<Duration>,
}

impl Environment for Settling {
    async fn sleep(&self, time: Duration) {
        *self.waited.lock() = time;
        self.other.release();
        self.other_attached.notified().await;
    }

    fn now_ms(&self) -> u64 {
        self.clock_ms.fetch_add(4000, Ordering::Relaxed)
    }

    fn unix_ms(&self) -> u64 {
        const DAY_MS: u64 = 24 * 3600 * 1000;
        u64::MAX - (1 + self.now_ms() / 4000) * DAY_MS
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        NodeTime.random()
    }
}

/// Regression: a store that checks before it stores confirmed both records, and both attaches served.
#[test]
fn an_attach_whose_record_was_overwritten_does_not_serve() {
    run_node_test(async {
        let store = store_with(9).await;
        let (dirs, other_dirs) = (Dirs::new(), Dirs::new());
        let (gate, other) = (Gate::new(), Gate::new());
        store.fail_next(Verb::Put, Fault::HoldChecked(gate.clone()));
        store.fail_next(Verb::Put, Fault::HoldChecked(other.clone()));
        let (at, mine) = (volume(), claim("a", 1));
        let (clock_ms, other_attached, waited) = Default::default();
        let settling = Settling { clock_ms, other: other.clone(), other_attached, waited };
        let local = dirs.local();
        let overwritten = acquire(&*store, &at, &local, &mine, &settling);
        let overwrites = async {
            gate.arrival().await;
            let acquired = attach(&other_dirs, &store, &claim("b", 2)).await.unwrap();
            settling.other_attached.notify_one();
            acquired
        };
        let opens = async {
            other.arrival().await;
            gate.release();
        };
        let (overwritten, acquired, ()) = tokio::join!(overwritten, overwrites, opens);
        let refused = overwritten.map(|acquired| acquired.header.epoch);
        assert!(
            matches!(&refused, Err(AttachError::Refused(AttachRefused::AttachedElsewhere { node, .. })) if node == "b"),
            "{refused:?}"
        );
        assert_eq!(acquired.header.epoch, Epoch(1));
        // A create that started before this one was stored may take as long as it.
        assert_eq!(*settling.waited.lock(), Duration::from_millis(4001));
        let holder = read_manifest(&*store, &volume()).await.unwrap().attached().unwrap();
        assert_eq!((holder.epoch, holder.node.as_str()), (Epoch(1), "b"));
    });
}

/// The same with a real client and server, without manual steps: the second create is stored 100 ms after the
/// first was confirmed.
#[test]
fn one_of_two_attaches_on_a_nonatomic_server_wins() {
    run_node_test(async {
        let bucket = Bucket::with_objects(store_with(9).await).await;
        bucket.check_then_store(500);
        let connect = async || S3Store::connect(bucket.config.clone()).await.unwrap();
        let (stores, dirs) = ([connect().await, connect().await], [Dirs::new(), Dirs::new()]);
        let (at, claims) = (volume(), [claim("a", 1), claim("b", 2)]);
        let attach = async |number: usize| {
            tokio::time::sleep(Duration::from_millis(100) * u32::try_from(number).unwrap()).await;
            acquire(&stores[number], &at, &dirs[number].local(), &claims[number], &NodeTime).await.is_ok()
        };
        let (first, second) = tokio::join!(attach(0), attach(1));
        let holder = read_manifest(&*bucket.objects, &at).await.unwrap().attached().unwrap();
        assert_eq!((first, second, holder.node.as_str()), (false, true, "b"));
    });
}

/// Regression, found in review: the removal emptied the position of an attach's next record. It also deleted
/// the marker by which that attach would have detected this.
#[test]
fn a_paused_attach_does_not_acquire_a_removed_volume() {
    run_node_test(async {
        let store = store_with(9).await;
        let create = async |body: Body, epoch: u64| {
            let seq = read_manifest(&*store, &volume()).await.unwrap().seq().next();
            let nonce = Nonce([3; 16]);
            let record = Record { volume: volume(), seq, epoch: Epoch(epoch), nonce, unix_ms: 0, body };
            assert_eq!(create_record(&*store, &record).await.unwrap(), CreateOutcome::Created);
        };
        let attach = || Body::Attach { sectors: SECTORS, node: "b".to_owned(), displaced: None };
        for epoch in 1..=35 {
            create(attach(), epoch).await;
            create(Body::Detach { root: None }, epoch).await;
        }
        let manifest = read_manifest(&*store, &volume()).await.unwrap();
        let checkpoint = manifest.encode_checkpoint().into();
        write_checkpoint(&*store, &volume(), manifest.seq(), checkpoint).await.unwrap();
        let dirs = Dirs::new();
        let slow = SlowLocal { local: dirs.local(), reached: Notify::new(), resume: Notify::new() };
        let at = volume();
        let late_claim = claim("a", 2);
        let late = acquire(&*store, &at, &slow, &late_claim, &NodeTime);
        let removes = async {
            slow.reached.notified().await;
            create(attach(), 36).await;
            create(Body::Detach { root: None }, 36).await;
            remove(&*store, &volume(), Nonce([4; 16]), 0, None).await.unwrap();
            slow.resume.notify_one();
        };
        let (late, ()) = tokio::join!(late, removes);
        assert!(matches!(late, Err(AttachError::Refused(AttachRefused::Deleted(_)))), "{:?}", late.err());
        assert!(read_manifest(&*store, &volume()).await.unwrap().is_deleted());
    });
}

/// The creator of a fork died before it checked the snapshot's marker: the attach does.
#[test]
fn an_attach_confirms_a_fork_or_refuses_it() {
    run_node_test(async {
        for is_forgotten in [false, true] {
            let store = Arc::new(MemoryStore::new());
            let source: VolumeId = "source".parse().unwrap();
            let plain = Creation::plain(SECTORS, Nonce([9; 16]), 0);
            provision(&*store, &source, plain).await.unwrap();
            let uid = holdfast_types::SnapshotUid([5; 16]);
            let taken = snapshot_detached(&*store, &source, uid, Nonce([2; 16]), 0).await.unwrap();
            let root = read_snapshot(&*store, &source, taken.seq).await.unwrap();
            let fork = root.fork().map(Box::new);
            let body = Body::Create { sectors: SECTORS, source: fork, labels: Default::default() };
            let (nonce, seq) = (Nonce([3; 16]), Seq::FIRST);
            let record = Record { volume: volume(), seq, epoch: Epoch(0), nonce, unix_ms: 0, body };
            assert_eq!(create_record(&*store, &record).await.unwrap(), CreateOutcome::Created);
            if is_forgotten {
                forget(&*store, &source, taken.seq).await.unwrap();
            }
            let dirs = Dirs::new();
            match acquire(&*store, &volume(), &dirs.local(), &claim("a", 1), &NodeTime).await {
                Ok(acquired) => assert_eq!((is_forgotten, acquired.manifest.seq()), (false, Seq(3))),
                Err(AttachError::Log(LogFailure::NoSuchSource { .. })) => assert!(is_forgotten),
                Err(other) => panic!("{other}"),
            }
            let manifest = read_manifest(&*store, &volume()).await.unwrap();
            assert_eq!((manifest.is_deleted(), manifest.is_attached()), (is_forgotten, !is_forgotten));
        }
    });
}

/// Regression: a restored bucket's log again reaches positions with existing roots, mistaken for its own.
#[test]
fn a_writer_passes_the_roots_of_another_history() {
    run_node_test(async {
        for is_dirty in [false, true] {
            let store = store_with(9).await;
            let dirs = Dirs::new();
            let acquired = attach(&dirs, &store, &claim("a", 1)).await.unwrap();
            let mut writer = Writer::new(&dirs, &store, acquired);
            writer.write_and_commit().await;
            let end = read_manifest(&*store, &volume()).await.unwrap().seq();
            for left in [end.next(), end.next().next()] {
                let key = ObjectKey::Snapshot(volume(), left).to_string();
                let Created = store.create(&key, Bytes::from_static(b"of another history")).await.unwrap();
            }
            if is_dirty {
                let range = SectorRange::new(2, 3);
                writer.handle(Event::Request { id: RequestId(0), op: Op::Write, range }).await;
            }
            let uid = holdfast_types::SnapshotUid([5; 16]);
            writer.handle(Event::Snapshot { uid, forgotten: Vec::new() }).await;
            writer.now += 2000;
            writer.handle(Event::Tick).await;
            let manifest = read_manifest(&*store, &volume()).await.unwrap();
            assert_eq!(manifest.snapshots(), writer.snapshots, "it is taken once");
            let taken = writer.snapshots[0];
            assert_eq!((taken.uid, taken.seq), (uid, Seq(end.0 + 3)));
            let root = read_snapshot(&*store, &volume(), taken.seq).await.unwrap();
            assert_eq!(root.runs().len(), if is_dirty { 2 } else { 1 });
            writer.write_and_commit().await;
        }
    });
}

/// Regression: volumes of one id in two stores shared local files: one was served and uploaded as the other.
#[test]
fn local_state_of_another_store_is_never_trusted() {
    run_node_test(async {
        let (main, other) = (store_with(1).await, store_with(2).await);
        let dirs = Dirs::new();
        let acquired = attach(&dirs, &main, &claim("a", 1)).await.unwrap();
        let mut writer = Writer::new(&dirs, &main, acquired);
        writer.write_and_commit().await;
        drop(writer);
        let acquired = attach(&dirs, &other, &claim("a", 2)).await.unwrap();
        assert!(acquired.found.is_empty());
        assert_eq!(acquired.preserved, Some(Preserved { epoch: Epoch(1), why: ForeignReason::OtherVolume }));
        let AttachRefused::LocalStateMissing { missing, .. } =
            attach(&dirs, &main, &claim("a", 3)).await.err().unwrap()
        else {
            panic!("the first volume is attached as if its data were here")
        };
        assert_eq!(missing, Missing::Differs(ForeignReason::OtherVolume));
    });
}

/// While a volume is attached, one of the same name in another store must wait: both would use the same
/// files.
#[test]
fn a_second_store_cannot_share_an_attached_volumes_files() {
    run_node_test(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        leave_dirty(&dirs, &bucket, SectorRange::new(2, 3)).await;
        node.resumed(&volume()).await;
        let elsewhere = S3Config { bucket: "another".to_owned(), ..bucket.config.clone() };
        let request = AttachRequest { store_name: "other".to_owned(), store: elsewhere, ..request() };
        let refused = node.attach(request).await.unwrap_err();
        assert_eq!(refused.kind(), FailureKind::Busy);
        let message = refused.to_string();
        assert!(message.contains("from store main") && message.contains("names other"), "{message}");
        node.shutdown().await;
    });
}
