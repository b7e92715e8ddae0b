//! A node on a machine without ublk: its reports about volumes left by an earlier process without a serving
//! device, and the data that it keeps.

mod bucket;
mod devices;
mod draining;
pub(super) mod host;
pub(super) mod kernel;
#[path = "../../../serve/src/logged.rs"]
pub(super) mod logged;
mod memory;
mod rings;
mod snapshots;
mod stopped;
mod stores;
mod takeover;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::time::Instant;

use holdfast_background::{LocalState, acquire};
use holdfast_engine::action::Action;
use holdfast_engine::attach::Claim;
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::{Event, Op, RequestId};
use holdfast_engine::settings::{AttachState, Setup};
use holdfast_engine::volume::Volume;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::side::{Side, SideSet};
use holdfast_objects::{Fault, Gate, ObjectStore, ReadyParts, Verb};
use holdfast_s3::S3Credentials;
use holdfast_types::{Chunk, Epoch, Nonce, SectorRange, Seq};
use tempfile::TempDir;

use bucket::Bucket;
use holdfast_ublk::DeviceState;
use kernel::FakeKernel;

use super::clock::NodeTime;
use super::local::attached_record::{ATTACHED_VERSION, AttachedRecord};
use super::local::live_map;
use super::local::volume_files::{KEPT_LIVE_MAP, Local};
use super::volume::present::Present;
use super::volume::state::{State, StateEvent, WriterState};
use super::*;

const SECTORS: u64 = 64;
const LIMIT: Duration = Duration::from_secs(20);

/// The directories of a node; the run directory must be in a tmpfs.
struct Dirs {
    state: TempDir,
    run: TempDir,
}

impl Dirs {
    fn new() -> Self {
        Self { state: tempfile::tempdir().unwrap(), run: tempfile::tempdir_in("/dev/shm").unwrap() }
    }

    fn config(&self) -> NodeConfig {
        NodeConfig {
            node_name: "a".to_owned(),
            state_dir: self.state.path().to_owned(),
            run_dir: self.run.path().to_owned(),
            ring_threads: 1,
            transport: TransportChoice::Auto,
            keeper: KeeperStart::ByDaemon,
            slab_bytes: 8 << 20,
            cache_bytes: None,
            seal_bytes: 4 << 20,
            max_dirty_bytes: 64 << 20,
            upload_memory_bytes: 256 << 20,
            max_dirty_age: Duration::from_secs(30),
            memory_volumes_bytes: 1 << 40,
            memory_spill_bytes: 1 << 20,
        }
    }

    fn local(&self) -> Local {
        self.local_of(&volume())
    }

    fn local_of(&self, volume: &VolumeId) -> Local {
        Local::new(self.state.path(), self.run.path(), volume)
    }

    /// Returns the tag of the device of a volume's attach.
    fn tag(&self, volume: &VolumeId, epoch: u64) -> u64 {
        Installation::of(self.state.path()).unwrap().tag(volume, epoch).0
    }

    /// Returns the path where a restarted daemon finds the live map.
    fn live_map(&self) -> PathBuf {
        self.local().live_map_path()
    }

    fn durable_map(&self) -> PathBuf {
        self.local().map_path()
    }

    fn side(&self, side: Side) -> PathBuf {
        self.local().dir().join(["a.data", "b.data"][side as usize])
    }

    fn record(&self) -> PathBuf {
        self.live_map().with_file_name("attached")
    }

    /// Leaves the files of a daemon that dies before its device is added.
    async fn leave(&self) {
        let local = self.local();
        let nonce = Nonce([7; 16]);
        let header = Header {
            volume: volume(),
            identity: nonce,
            sectors: SECTORS,
            epoch: Epoch(1),
            writer: nonce,
            nonces: vec![nonce],
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(0),
            synced_generation: 0,
        };
        let files = local.open(SECTORS, None).await.unwrap();
        local.write_header(&files, &header, 1).await.unwrap();
        let mut manifest = Manifest::empty(volume());
        for (epoch, body) in [
            (0, Body::create(SECTORS)),
            (1, Body::Attach { sectors: SECTORS, node: "a".to_owned(), displaced: None }),
        ] {
            let seq = manifest.seq().next();
            let record = Record { volume: volume(), seq, epoch: Epoch(epoch), nonce, unix_ms: 0, body };
            manifest.apply(&record).unwrap();
        }
        let limits = DirtyLimits { seal_bytes: 4 << 20, max_bytes: 64 << 20, max_age_ms: 30_000 };
        let durability = Durability::Object;
        let setup =
            Setup { requests: 128, limits, durability, header, header_generation: 1, unix_ms_at_zero: 0 };
        let live_map = live_map::create(&self.live_map(), SECTORS).unwrap();
        drop(Volume::attach(setup, live_map, AttachState::in_log(manifest), 0, &mut Vec::new()));
        let record = AttachedRecord {
            version: ATTACHED_VERSION,
            tag: self.tag(&volume(), 1),
            device_id: None,
            sectors: SECTORS,
            epoch: 1,
            max_age_ms: 1000,
            durability,
            limits: None,
            displaced: None,
            detaching: false,
            store_name: "main".to_owned(),
            store: (&unreachable_store()).into(),
        };
        local.write_record(&record).unwrap();
    }
}

impl Node {
    /// Waits for the directories, then serves their volumes.
    async fn start(config: NodeConfig) -> Result<Self, NodeError> {
        Self::serve(Owner::wait(config).await?).await
    }

    /// Recovers a volume without a device, without starting its detach.
    async fn resumed(&self, volume: &VolumeId) -> Arc<Present> {
        let mut request = self.recovery(volume.clone());
        let present = self.resume(&mut request).await.unwrap().unwrap();
        present.state.apply(&StateEvent::Recovered);
        present
    }

    /// Waits for the directories, then serves their volumes with this implementation of the devices.
    async fn start_with(
        config: NodeConfig,
        devices: Arc<dyn Devices>,
        within: Duration,
    ) -> Result<Self, NodeError> {
        let owner = Owner::wait_with(config, Arc::clone(&devices)).await?;
        Self::serve_with(owner, devices, within).await
    }
}

/// Runs a test that starts a node. After a failure, the runtime is not dropped: a panic that drops a node's
/// tasks ends the process.
fn run_node_test(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    if let Err(failed) = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(test))) {
        std::mem::forget(runtime);
        std::panic::resume_unwind(failed);
    }
}

fn volume() -> VolumeId {
    "disk".parse().unwrap()
}

/// Returns a store that never responds.
fn unreachable_store() -> S3Config {
    let credentials = S3Credentials::Static {
        access_key_id: "key".to_owned(),
        secret_access_key: "secret".to_owned(),
        session_token: None,
    };
    S3Config {
        endpoint: Some("http://127.0.0.1:1".to_owned()),
        ..S3Config::new("bucket".to_owned(), "us-east-1".to_owned(), credentials)
    }
}

fn request() -> AttachRequest {
    AttachRequest {
        volume: volume(),
        store_name: "main".to_owned(),
        store: unreachable_store(),
        bytes: None,
        replaces: None,
        max_dirty_age: None,
        durability: Durability::Local,
        limits: IoLimits::NONE,
        probe: false,
        ublk_only: false,
    }
}

fn only_volume(node: &Node) -> NodeVolumeStatus {
    let [status] = node.list().try_into().unwrap();
    status
}

/// Polls until the volume is listed in the wanted state, because no notification exists.
async fn wait(node: &Node, wanted: impl Fn(&NodeVolumeStatus) -> bool) -> NodeVolumeStatus {
    let found = async {
        loop {
            let listed: Result<[NodeVolumeStatus; 1], _> = node.list().try_into();
            if let Ok([status]) = listed
                && wanted(&status)
            {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(LIMIT, found).await;
    found.unwrap_or_else(|_elapsed| panic!("the volume is never so: {:?}", node.list()))
}

/// The volume can be neither attached nor detached, and responses have the same message as the status.
async fn expect_refused(node: &Node, message: &str) {
    let requests = async { [node.attach(request()).await.map(drop), node.detach(&volume()).await] };
    for refused in tokio::time::timeout(LIMIT, requests).await.expect("they are refused at once") {
        let refused = refused.unwrap_err();
        assert_eq!((refused.kind(), refused.to_string().as_str()), (FailureKind::Local, message));
    }
}

fn flip_a_bit(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[40] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// Regression, found in review: such a volume was invisible, so that an attach started from scratch, without
/// its live map, on a second device.
#[test]
fn a_failed_recovery_is_reported_and_retried() {
    run_node_test(async {
        let dirs = Dirs::new();
        dirs.leave().await;
        flip_a_bit(&dirs.record());
        let live_map = fs::read(dirs.live_map()).unwrap();
        let node = Node::start(dirs.config()).await.unwrap();
        let status = only_volume(&node);
        assert_eq!((status.state, &status.attached), (VolumeState::Quiesced, &None));
        assert_eq!((status.commit.dirty_bytes, status.durability), (None, None), "unknown");
        let message = status.message.unwrap();
        assert!(message.contains("attached is damaged") && message.contains("reboot the node"), "{message}");
        expect_refused(&node, &message).await;
        assert!(fs::read(dirs.live_map()).unwrap() == live_map, "it holds what was written last");
        flip_a_bit(&dirs.record());
        // There was no device yet: it is released.
        wait(&node, |status| status.state == VolumeState::Detaching).await;
        node.shutdown().await;
    });
}

/// Regression, found in review: with an unmounted state disk, the record of a waiting device was deleted.
#[test]
fn a_volume_with_a_device_is_never_forgotten() {
    run_node_test(async {
        for missing in [Dirs::durable_map, Dirs::live_map] {
            let dirs = Dirs::new();
            dirs.leave().await;
            let record = dirs.local().read_record().unwrap().unwrap();
            let kernel = Arc::new(FakeKernel::new());
            kernel.add_left(7, DeviceState::Quiesced, record.tag);
            dirs.local().write_record(&AttachedRecord { device_id: Some(7), ..record }).unwrap();
            let spoilt = File::options().write(true).open(missing(&dirs)).unwrap();
            spoilt.write_all_at(&[0; 8192], 0).unwrap();
            let node = Node::start_with(dirs.config(), kernel.clone(), LIMIT).await.unwrap();
            assert_eq!(only_volume(&node).state, VolumeState::Quiesced);
            expect_refused(&node, &only_volume(&node).message.unwrap()).await;
            assert!(dirs.live_map().exists() && dirs.record().exists(), "nothing was removed");
            assert_eq!(kernel.devices()[&7].state, DeviceState::Quiesced);
            node.shutdown().await;
        }
    });
}

/// Regression, found in review: after an upgrade, a live map without a device was considered the remains of a
/// crashed attach, and removed with its unique data.
#[test]
fn a_live_map_of_another_version_stays() {
    run_node_test(async {
        let dirs = Dirs::new();
        dirs.leave().await;
        let known = fs::read(dirs.live_map()).unwrap();
        let set_version = |version: &[u8]| {
            File::options().write(true).open(dirs.live_map()).unwrap().write_all_at(version, 4).unwrap();
        };
        set_version(&1u32.to_le_bytes());
        let node = Node::start(dirs.config()).await.unwrap();
        let message = only_volume(&node).message.unwrap();
        assert!(message.contains("has version 1") && message.contains("run the version"), "{message}");
        assert_eq!(only_volume(&node).state, VolumeState::Quiesced);
        expect_refused(&node, &message).await;
        set_version(&known[4..8]);
        assert!(fs::read(dirs.live_map()).unwrap().starts_with(&known), "nothing else has changed");
        wait(&node, |status| status.state == VolumeState::Detaching).await;
        node.shutdown().await;
    });
}

/// Regression, found in review: the device was reported as attached, and returned to any caller.
#[test]
fn a_device_whose_recovery_failed_is_not_attached() {
    run_node_test(async {
        let dirs = Dirs::new();
        let node = Node::start(dirs.config()).await.unwrap();
        dirs.leave().await;
        let mut request = node.recovery(volume());
        let present = node.resume(&mut request).await.unwrap().unwrap();
        assert!(present.device().is_none());
        assert_eq!(only_volume(&node).state, VolumeState::Recovering);
        let held = NodeError::Busy { volume: volume(), doing: "held by another process" };
        request.failed(&held);
        let status = only_volume(&node);
        assert_eq!((status.state, status.attached), (VolumeState::Quiesced, None));
        let message = status.message.unwrap();
        assert!(
            message.contains("held by another process") && message.contains("retries every few seconds"),
            "{message}"
        );
        assert_eq!((status.commit.dirty_bytes, status.durability), (Some(0), Some(Durability::Object)));
        expect_refused(&node, &message).await;
        assert!(!present.is_detaching() && dirs.record().exists(), "a restarted daemon tries again");
        node.shutdown().await;
    });
}

/// Regression, found in review: the live map was removed although its copy had failed, and with it the only
/// record of the written sectors.
#[test]
fn fenced_state_stays_until_it_is_preserved_completely() {
    run_node_test(async {
        let dirs = Dirs::new();
        let node = Node::start(dirs.config()).await.unwrap();
        dirs.leave().await;
        let present = node.resumed(&volume()).await;
        // The last flush round failed: the durable map may be empty.
        present.published.report(WriterState::Fenced);
        present.published.report(WriterState::Preserved { complete: false });
        let in_the_way = dirs.local().dir().join(KEPT_LIVE_MAP);
        fs::create_dir(&in_the_way).unwrap();
        for _ in 0..2 {
            let failed = node.detach(&volume()).await.unwrap_err();
            assert_eq!(failed.kind(), FailureKind::Local);
            let message = holdfast_service::chain(&failed);
            assert!(message.contains("live-map could not be written"), "{message}");
            assert!(message.contains("detach it again"), "{message}");
            let status = only_volume(&node);
            assert_eq!((status.state, status.message), (VolumeState::Fenced, Some(message)));
            assert!(dirs.live_map().exists() && dirs.record().exists(), "nothing was removed");
            assert!(fenced::list(dirs.state.path()).unwrap().is_empty(), "nothing was moved");
        }
        let live_map = fs::read(dirs.live_map()).unwrap();
        fs::remove_dir(&in_the_way).unwrap();
        // A disk that cannot be read has not lost anything yet.
        let [volumes, elsewhere] = ["volumes", "elsewhere"].map(|name| dirs.state.path().join(name));
        fs::rename(&volumes, &elsewhere).unwrap();
        fs::write(&volumes, "").unwrap();
        assert_eq!(node.detach(&volume()).await.unwrap_err().kind(), FailureKind::Local);
        assert!(dirs.live_map().exists());
        fs::remove_file(&volumes).unwrap();
        fs::rename(&elsewhere, &volumes).unwrap();
        let fenced = node.detach(&volume()).await.unwrap_err();
        assert!(matches!(fenced, NodeError::Fenced(_)), "{fenced}");
        let preserved = fenced::find(dirs.state.path(), "disk-1").unwrap();
        assert_eq!(preserved.contents().unwrap().bytes(), 0);
        let copy = dirs.state.path().join("fenced/disk-1").join(KEPT_LIVE_MAP);
        assert!(fs::read(copy).unwrap() == live_map);
        assert!(node.list().is_empty() && !dirs.live_map().exists());
        node.shutdown().await;
    });
}

/// Regression, found in review: the detach of the previous process was tried once. If it failed, the volume
/// was neither served nor released until the next start of the daemon.
#[test]
fn the_detach_of_the_previous_process_is_retried() {
    run_node_test(async {
        let dirs = Dirs::new();
        let node = Node::start(dirs.config()).await.unwrap();
        dirs.leave().await;
        let present = node.resumed(&volume()).await;
        present.published.report(WriterState::Fenced);
        present.published.report(WriterState::Preserved { complete: false });
        let in_the_way = dirs.local().dir().join(KEPT_LIVE_MAP);
        fs::create_dir(&in_the_way).unwrap();
        node.detach_in_background(present);
        wait(&node, |status| {
            status.message.as_ref().is_some_and(|why| why.contains("could not be preserved"))
        })
        .await;
        fs::remove_dir(&in_the_way).unwrap();
        let released = async {
            while !node.list().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, released).await.expect("it is retried");
        assert_eq!(fenced::list(dirs.state.path()).unwrap().len(), 1);
        node.shutdown().await;
    });
}

fn claim(node: &str, fill: u8) -> Claim {
    Claim { node: node.to_owned(), nonce: Nonce([fill; 16]), unix_ms: 0, grow_to: None, replaces: None }
}

/// Writes `range` to a volume in the bucket, and leaves it like a daemon that dies during a detach.
async fn leave_dirty(dirs: &Dirs, bucket: &Bucket, range: SectorRange) {
    leave_volume_dirty(dirs, ("main", bucket), &volume(), range).await;
}

async fn leave_volume_dirty(
    dirs: &Dirs,
    (store_name, bucket): (&str, &Bucket),
    volume: &VolumeId,
    range: SectorRange,
) {
    let local = dirs.local_of(volume);
    let acquired = acquire(&*bucket.objects, volume, &local, &claim("a", 1), &NodeTime).await.unwrap();
    let limits = DirtyLimits { seal_bytes: 4 << 20, max_bytes: 64 << 20, max_age_ms: 30_000 };
    let setup = Setup {
        requests: 128,
        limits,
        durability: Durability::Local,
        header: acquired.header,
        header_generation: acquired.header_generation,
        unix_ms_at_zero: 0,
    };
    let live_map = acquired.files.live_map;
    let live_path = local.live_map_path();
    live_map::allocate_chunk(&live_map::open_file(&live_path).unwrap(), &live_path, Chunk(0)).unwrap();
    let mut actions = Vec::new();
    let state = AttachState { manifest: acquired.manifest, generation: acquired.found.generation() };
    let mut served = Volume::attach(setup, live_map, state, 0, &mut actions);
    let mut events = vec![Event::Request { id: RequestId(0), op: Op::Write, range }];
    while let Some(event) = events.pop() {
        served.handle(0, event, &mut actions);
        for action in actions.drain(..) {
            match action {
                Action::PrepareMap { chunk } => events.push(Event::MapPrepared { chunk, result: Ok(()) }),
                Action::Write { id, range, side } => {
                    let bytes = vec![5; usize::try_from(range.bytes()).unwrap()];
                    let file = File::options()
                        .write(true)
                        .open(local.dir().join(["a.data", "b.data"][side as usize]))
                        .unwrap();
                    file.write_all_at(&bytes, range.start.byte_offset()).unwrap();
                    events.push(Event::IoCompleted { id, result: Ok(()) });
                }
                Action::Complete { result, .. } => assert_eq!(result, Ok(())),
                Action::Report(_) => {}
                Action::Read { .. }
                | Action::ReadCold { .. }
                | Action::Punch { .. }
                | Action::Evict { .. }
                | Action::ReleaseMap { .. }
                | Action::SyncSide { .. }
                | Action::WriteMap(_)
                | Action::SyncMap
                | Action::NextTurn
                | Action::Pause
                | Action::Upload { .. }
                | Action::Merge(_)
                | Action::StorePending { .. }
                | Action::StoreRoot { .. }
                | Action::CreateRecord { .. }
                | Action::ReadRecord { .. }
                | Action::WriteCheckpoint { .. } => unreachable!("{action:?}"),
            }
        }
    }
    let record = AttachedRecord {
        version: ATTACHED_VERSION,
        tag: dirs.tag(volume, 1),
        device_id: None,
        sectors: SECTORS,
        epoch: 1,
        max_age_ms: 1000,
        durability: Durability::Local,
        limits: None,
        displaced: None,
        detaching: true,
        store_name: store_name.to_owned(),
        store: (&bucket.config).into(),
    };
    local.write_record(&record).unwrap();
}

/// Regression, found in review: the detach of a volume with unreadable data pending upload waited
/// indefinitely, even after another node had taken the volume over. Nothing could be exported.
#[test]
fn a_takeover_ends_a_detach_that_cannot_read_its_data() {
    run_node_test(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        leave_dirty(&dirs, &bucket, SectorRange::new(2, 3)).await;
        let present = node.resumed(&volume()).await;
        // All reads of it fail from now on.
        File::options().write(true).open(dirs.side(Side::A)).unwrap().set_len(0).unwrap();
        node.load_manifest(volume(), Arc::clone(&present));
        let detach = tokio::spawn({
            let node = node.clone();
            async move { node.detach(&volume()).await }
        });
        let stuck = wait(&node, |status| status.disk.unreadable.is_some()).await;
        assert_eq!((stuck.state, stuck.commit.dirty_bytes), (VolumeState::Detaching, Some(3 * SECTOR_BYTES)));
        let message = stuck.message.unwrap();
        for part in ["cannot read 12288 bytes from byte 8192 on", "attach --take-over", "fenced export"] {
            assert!(message.contains(part), "{message}");
        }

        let other = Dirs::new();
        let over = Claim { replaces: Some(Epoch(1)), ..claim("b", 2) };
        let taken = acquire(&*bucket.objects, &volume(), &other.local(), &over, &NodeTime).await.unwrap();
        assert_eq!(taken.header.epoch, Epoch(2));
        let ended = tokio::time::timeout(LIMIT, detach).await.expect("the detach waits without end").unwrap();
        assert!(matches!(ended, Err(NodeError::Fenced(_))), "{ended:?}");
        assert!(node.list().is_empty());
        let preserved = fenced::find(dirs.state.path(), "disk-1").unwrap();
        assert_eq!(preserved.contents().unwrap().bytes(), 3 * SECTOR_BYTES);
        // Every read there fails with EIO: no memory is mapped at low addresses.
        let side = dirs.state.path().join("fenced/disk-1/a.data");
        fs::remove_file(&side).unwrap();
        std::os::unix::fs::symlink("/proc/self/mem", &side).unwrap();
        let exported = fenced::export(&preserved, &dirs.state.path().join("disk.img"), false).unwrap();
        assert_eq!((exported.bytes, exported.unreadable_bytes), (0, 3 * SECTOR_BYTES));
        node.shutdown().await;
    });
}

/// Regression, found in review: a repair marked data as dirty that the disk was unable to read. Afterwards
/// nothing was committed, and the repair did not end.
#[test]
fn a_repair_skips_ranges_the_disk_cannot_read() {
    run_node_test(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        let range = SectorRange::new(2, 3);
        leave_dirty(&dirs, &bucket, range).await;
        let present = node.resumed(&volume()).await;
        assert_eq!(
            only_volume(&node).commit.dirty_bytes,
            Some(3 * SECTOR_BYTES),
            "it is known from the first moment on"
        );
        node.load_manifest(volume(), Arc::clone(&present));
        wait(&node, |status| status.commit.dirty_bytes == Some(0)).await;
        let segments = bucket.objects.list("volumes/disk/segments/", None, 10).await.unwrap().entries;
        let [segment] = &segments[..] else { panic!("{segments:?}") };
        let mut bytes = bucket.objects.get(&segment.key, u64::MAX).await.unwrap().to_vec();
        bytes[0] ^= 1;
        bucket.objects.delete(&[&segment.key]).await.unwrap();
        bucket.objects.put_segment(&segment.key, &mut ReadyParts::new([bytes.into()])).await.unwrap();
        // All reads of it fail from now on.
        File::options().write(true).open(dirs.side(Side::A)).unwrap().set_len(0).unwrap();

        let request = ScrubRequest { volume: volume(), store: None, repair: true };
        let scrubbed = tokio::time::timeout(LIMIT, node.scrubs().scrub(request, |_| {}))
            .await
            .expect("it ends")
            .unwrap();
        let [finding, side] = &scrubbed.findings[..] else { panic!("{scrubbed:?}") };
        assert_eq!((finding.repair, &finding.lost[..]), (ScrubRepair::Impossible, &[range][..]));
        assert!(side.fault.contains("a.data is damaged: it has 0 bytes"), "{}", side.fault);
        let status = only_volume(&node);
        assert_eq!((status.commit.dirty_bytes, status.disk.unreadable), (Some(0), None));
        node.shutdown().await;
    });
}

/// Regression: two volumes of a store that accepts no segments held both upload permits: volumes of all other
/// stores stopped committing.
#[test]
fn a_dead_store_delays_no_commit_of_another() {
    run_node_test(async {
        let (dirs, dead, live) = (Dirs::new(), Bucket::start().await, Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        let volumes = |name: &str| -> Vec<VolumeId> {
            (0..8).map(|number| format!("{name}-{number}").parse().unwrap()).collect()
        };
        let stores = [("dead", &dead, volumes("dead")), ("live", &live, volumes("live"))];
        for (name, bucket, volumes) in &stores {
            for volume in volumes {
                node.create(volume, (SECTORS * SECTOR_BYTES).into(), name, &bucket.config).await.unwrap();
                leave_volume_dirty(&dirs, (*name, *bucket), volume, SectorRange::new(2, 3)).await;
            }
        }
        let gate = Gate::new();
        dead.objects.fail_always(Verb::Put, Fault::Hold(gate.clone()));
        let mut begun = Instant::now();
        for (name, _, volumes) in &stores {
            begun = Instant::now();
            for volume in volumes {
                let present = node.resumed(volume).await;
                node.load_manifest(volume.clone(), present);
            }
            if *name == "dead" {
                for _ in 0..2 {
                    tokio::time::timeout(LIMIT, gate.arrival()).await.expect("uploads begin");
                }
            }
        }
        let dirty_in = |name: &str| -> u64 {
            let here = node.list().into_iter().filter(|status| status.volume.as_str().starts_with(name));
            here.map(|status| status.commit.dirty_bytes.unwrap_or(1)).sum()
        };
        // Their age limit, one second, was reached before they were resumed.
        while dirty_in("live") > 0 && begun.elapsed() < Duration::from_secs(6) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        println!("dead_store_other_commit_seconds {:.2}", begun.elapsed().as_secs_f64());
        assert_eq!((dirty_in("live"), dirty_in("dead")), (0, 8 * 3 * SECTOR_BYTES));
        node.shutdown().await;
    });
}
