//! The directories of a node, and its log, under conditions of a host.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use holdfast_engine::volume::Delay;
use holdfast_types::CHUNK_SECTORS;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

use super::kernel::FakeKernel;
use super::*;
use crate::node::local::volume_files::run_volumes;
use crate::readiness::Readiness;

/// Regression: a starting daemon removed every directory of the run directory whose name could be a volume's.
#[test]
fn a_start_removes_nothing_of_others() {
    run_node_test(async {
        let dirs = Dirs::new();
        let run = dirs.run.path();
        let foreign = [
            "containerd/io/state",
            "udev/data/b259:0",
            "systemd/attached",
            "volumes/pod-1/pid",
            "volumes/pod-1/attached",
            "volumes.d/pod-1/pid",
            "volumes.d/pod-2/sub/pid",
        ];
        for path in foreign.map(|path| run.join(path)) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "theirs").unwrap();
        }
        // An attach that did not reach its record.
        let left = run_volumes(run).join("disk");
        fs::create_dir(&left).unwrap();
        fs::write(left.join("map"), "ours").unwrap();
        fs::write(left.join("attached.new"), "ours").unwrap();
        let node = Node::start(dirs.config()).await.unwrap();
        assert!(node.list().is_empty());
        for path in foreign {
            assert_eq!(fs::read_to_string(run.join(path)).unwrap(), "theirs", "{path}");
        }
        assert!(!left.exists(), "what an attach left is removed");
        node.shutdown().await;
    });
}

/// Regression: an earlier version's record of an attached volume was ignored: its mounts hung, and the node
/// was ready. Vice versa, an earlier version took the directory of all volumes for a volume, and removed it.
#[test]
fn volumes_of_an_earlier_version_are_named_and_left_alone() {
    run_node_test(async {
        let dirs = Dirs::new();
        let run = dirs.run.path();
        let older = ["disk/attached", "disk/map", "volumes/other/attached", "volumes/other/map"];
        for path in older.map(|path| run.join(path)) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"HFST and more").unwrap();
        }
        let node = Node::start(dirs.config()).await.unwrap();
        let readiness = Readiness::new();
        readiness.serves(node.clone());
        let reasons = readiness.not_ready();
        for (volume, reason) in ["disk", "other"].into_iter().zip(&reasons) {
            let refused = node.attach(AttachRequest { volume: volume.parse().unwrap(), ..request() }).await;
            assert!(matches!(refused, Err(NodeError::RecoveryFailed { .. })), "{refused:?}");
            for part in [volume, "attached", "earlier version", "detach the volume, or restart the host"] {
                assert!(reason.contains(part), "{reason}");
            }
        }
        assert_eq!(reasons.len(), 2, "{reasons:?}");
        for path in older {
            assert_eq!(fs::read(run.join(path)).unwrap(), b"HFST and more", "{path}");
        }
        let own = run_volumes(run);
        let taken_for = own.file_name().unwrap().to_str().unwrap().parse::<VolumeId>();
        assert!(taken_for.is_err(), "an earlier version takes it for {taken_for:?}");
        node.shutdown().await;
    });
}

/// Regression: the ring thread wrote its log lines itself: if standard error was not read, all devices of the
/// node blocked.
#[test]
fn a_stuck_log_pipe_stops_no_ring_thread() {
    const CHILD: &str = "HOLDFAST_TEST_STUCK_LOG";
    const SERVED: i32 = 42;
    if std::env::var_os(CHILD).is_none() {
        let name = "node::tests::host::a_stuck_log_pipe_stops_no_ring_thread";
        let mut child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .env("RUST_LOG", "debug")
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let begun = std::time::Instant::now();
        let ended = loop {
            match child.try_wait().unwrap() {
                None if begun.elapsed() < 3 * LIMIT => std::thread::sleep(Duration::from_millis(20)),
                ended => break ended,
            }
        };
        child.kill().unwrap();
        child.wait().unwrap();
        return assert_eq!(ended.and_then(|status| status.code()), Some(SERVED), "the node stands still");
    }
    let telemetry = holdfast_service::telemetry::start("holdfast-node", &[]).unwrap();
    // More than the pipe and the queue hold. In a separate thread: a blocking writer would block here.
    let filling = std::thread::spawn(|| (0..20_000).for_each(|line| tracing::info!(line, "filled the pipe")));
    let begun = std::time::Instant::now();
    while !filling.is_finished() && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    run_node_test(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        leave_dirty(&dirs, &bucket, SectorRange::new(2, 3)).await;
        let present = node.resumed(&volume()).await;
        // The ring thread logs the commit.
        node.load_manifest(volume(), Arc::clone(&present));
        wait(&node, |status| status.commit.dirty_bytes == Some(0)).await;
        node.shutdown().await;
    });
    assert!(holdfast_service::logs::dropped_lines() > 0, "the pipe was not full");
    telemetry.finish();
    std::process::exit(SERVED);
}

/// A private tmpfs, visible only through its file descriptor, and gone with it.
pub(in crate::node) struct SmallTmpfs(OwnedFd);

impl SmallTmpfs {
    /// Returns `None` and logs the reason if the test may not mount.
    pub(in crate::node) fn mount(bytes: u64) -> Option<Self> {
        let mounted = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).and_then(|context| {
            fsconfig_set_string(&context, "size", bytes.to_string())?;
            fsconfig_create(&context)?;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
        });
        mounted.map(Self).map_err(|errno| println!("skipped: a tmpfs cannot be mounted: {errno}")).ok()
    }

    pub(in crate::node) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
    }

    /// Fills all free space.
    pub(in crate::node) fn fill(&self) {
        let mut file = File::create(self.path().join("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

/// Regression: a write to a full run directory hung, and the status said that it waited for the object store.
/// No volume could be detached to free space.
#[test]
fn a_full_run_directory_is_named_and_detaches_work() {
    let Some(tmpfs) = SmallTmpfs::mount(512 << 10) else { return };
    run_node_test(async {
        let (dirs, bucket, kernel) = (Dirs::new(), Bucket::start().await, Arc::new(FakeKernel::new()));
        let config = NodeConfig { run_dir: tmpfs.path(), ..dirs.config() };
        let node = Node::start_with(config, kernel.clone(), LIMIT).await.unwrap();
        let [full, other]: [VolumeId; 2] = ["full", "other"].map(|name| name.parse().unwrap());
        for volume in [&full, &other] {
            let bytes = 4 * CHUNK_SECTORS * SECTOR_BYTES;
            node.create(volume, bytes.into(), "main", &bucket.config).await.unwrap();
            let store = bucket.config.clone();
            node.attach(AttachRequest { volume: volume.clone(), store, ..request() }).await.unwrap();
        }
        assert_eq!(kernel.devices().len(), 2);
        tmpfs.fill();
        let present = node.0.volumes.present(&full).unwrap();
        let range = SectorRange::new(CHUNK_SECTORS, 1);
        let event = Event::Request { id: RequestId(0), op: Op::Write, range };
        present.ring.send(Message::Event { key: present.key, event }).await;
        let reason = async {
            loop {
                let status = node.list().into_iter().find(|status| status.volume == full).unwrap();
                if let Some((delay, _)) = status.delays.writes {
                    return (delay, status.message.unwrap());
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let (delay, message) = tokio::time::timeout(LIMIT, reason).await.expect("the status names no reason");
        assert_eq!(delay, Delay::RunDirFull);
        assert!(message.contains("node.run_dir"), "{message}");

        tokio::time::timeout(LIMIT, node.detach(&other)).await.expect("it ends").unwrap();
        assert_eq!((node.list().len(), kernel.devices().len()), (1, 1));
        node.shutdown().await;
        kernel.end_process();
    });
}

/// Regression: when others filled the state disk completely, commits and detaches of the node did not end, so
/// that nothing could be evicted.
#[test]
fn a_full_state_disk_stops_no_commit_and_no_detach() {
    let Some(tmpfs) = SmallTmpfs::mount(16 << 20) else { return };
    run_node_test(async {
        let state = tempfile::tempdir_in(tmpfs.path()).unwrap();
        let (dirs, bucket) = (Dirs { state, ..Dirs::new() }, Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        node.shutdown().await;
        leave_dirty(&dirs, &bucket, SectorRange::new(2, 3)).await;
        // Like the ring for the first write to a chunk.
        let map = File::options().write(true).open(dirs.durable_map()).unwrap();
        let (offset, length) = holdfast_engine::durable_map::chunk_extent(Chunk(0));
        rustix::fs::fallocate(&map, rustix::fs::FallocateFlags::empty(), offset, length).unwrap();
        tmpfs.fill();
        let node = Node::start(dirs.config()).await.unwrap();
        let ended = async {
            while !node.list().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = tokio::time::timeout(LIMIT, ended).await;
        assert!(ended.is_ok(), "the detach does not end: {:?}", node.list());
        let attached = bucket.objects.get("volumes/disk/log/00000000000000000004", 1 << 20).await.unwrap();
        let last = Record::decode(&attached).unwrap();
        assert!(matches!(last.body, Body::Detach { .. }), "{last:?}");
        node.shutdown().await;
    });
}

/// Regression: the eviction of a detached volume's cache, which frees space, first created a directory.
#[test]
fn directories_for_a_full_disk_are_created_ahead() {
    run_node_test(async {
        let dirs = Dirs::new();
        let node = Node::start(dirs.config()).await.unwrap();
        for name in ["trash", "fenced"] {
            assert!(dirs.state.path().join(name).is_dir(), "{name}");
        }
        assert!(fenced::list(dirs.state.path()).unwrap().is_empty());
        node.shutdown().await;
    });
}

/// Regression: bytes that another program, or a bug, had written to the file of zeros reached every client
/// that read zeros.
#[test]
fn the_file_of_zeros_accepts_no_bytes() {
    let zeros = zeros_file().unwrap();
    zeros.write_all_at(&[7; 4096], 0).unwrap_err();
    zeros.set_len(0).unwrap_err();
    let mut read = vec![1; DeviceSpec::MAX_IO_BYTES as usize];
    zeros.read_exact_at(&mut read, 0).unwrap();
    assert!(read.iter().all(|byte| *byte == 0));
}
