//! The directories of a node, and its log, as a process meets them.

use std::io::Write;
use std::os::fd::{AsRawFd, OwnedFd};

use holdfast_engine::volume::Delay;
use holdfast_types::CHUNK_SECTORS;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

use super::*;

/// A starting daemon removed every directory of the run directory whose name could be a volume's.
#[test]
fn a_start_removes_nothing_of_others() {
    alone(async {
        let dirs = Dirs::new();
        let run = dirs.run.path();
        let foreign =
            ["containerd/io/state", "udev/data/b259:0", "volumes/pod-1/pid", "volumes/pod-2/sub/pid"];
        for path in foreign.map(|path| run.join(path)) {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "theirs").unwrap();
        }
        // An attach that never came to its record.
        let left = run.join("volumes/disk");
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

/// The ring thread wrote its log lines itself: where standard error was not read, all devices of the node stood still.
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
    let telemetry = crate::telemetry::start("a").unwrap();
    // More than the pipe and the queue hold. A thread of its own: where a writer may wait, it waits here.
    let filling = std::thread::spawn(|| (0..20_000).for_each(|line| tracing::info!(line, "filled the pipe")));
    let begun = std::time::Instant::now();
    while !filling.is_finished() && begun.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(5));
    }
    alone(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        node.create(&volume(), SECTORS * SECTOR_BYTES, "main", &bucket.config).await.unwrap();
        leave_dirty(&dirs, &bucket, SectorRange::new(2, 3)).await;
        let present = node.resume(&volume(), LIMIT).await.unwrap().unwrap();
        // The ring thread logs the commit.
        node.load_manifest(volume(), Arc::clone(&present));
        wait(&node, |status| status.dirty_bytes == Some(0)).await;
        node.shutdown().await;
    });
    assert!(crate::logs::dropped_lines() > 0, "the pipe was not full");
    telemetry.finish();
    std::process::exit(SERVED);
}

/// A tmpfs of its own; nobody sees it but through its file descriptor, with which it vanishes.
pub(in crate::node) struct SmallTmpfs(OwnedFd);

impl SmallTmpfs {
    /// Nothing, and a word on it, where the test may not mount.
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

    /// Takes all that is free.
    pub(in crate::node) fn fill(&self) {
        let mut file = File::create(self.path().join("filler")).unwrap();
        while file.write_all(&[1; 4096]).is_ok() {}
    }
}

/// A write into a full run directory hung, and the status said that it waited for the object store.
#[test]
fn writes_that_wait_for_the_run_directory_say_so() {
    let Some(tmpfs) = SmallTmpfs::mount(256 << 10) else { return };
    alone(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let config = NodeConfig { run_dir: tmpfs.path(), ..dirs.config() };
        let node = Node::start(config).await.unwrap();
        node.create(&volume(), 64 * CHUNK_SECTORS * SECTOR_BYTES, "main", &bucket.config).await.unwrap();
        let local = Local::new(dirs.state.path(), &tmpfs.path(), &volume());
        let won = win(&*bucket.objects, &volume(), &local, &claim("a", 1)).await.unwrap();
        let limits = DirtyLimits { seal_bytes: 4 << 20, most_bytes: 64 << 20, max_age_ms: 30_000 };
        let setup = Setup {
            requests: 128,
            limits,
            durability: Durability::Local,
            header: won.header,
            header_generation: won.header_generation,
            unix_ms_at_zero: 0,
        };
        let sectors = setup.header.sectors;
        let live_map = LiveMap::create(&local.live_map_path(), sectors, &[]).unwrap();
        drop(Volume::attach(setup, live_map, won.manifest, &won.found, false, 0, &mut Vec::new()));
        let record = AttachedRecord {
            version: ATTACHED_VERSION,
            tag: dirs.tag(&volume(), 1),
            device_id: None,
            sectors,
            epoch: 1,
            max_age_ms: 1000,
            durability: Durability::Local,
            detaching: false,
            store_name: "main".to_owned(),
            store: (&bucket.config).into(),
        };
        local.write_record(&record).unwrap();
        let present = node.resume(&volume(), LIMIT).await.unwrap().unwrap();
        tmpfs.fill();
        let range = SectorRange::new(CHUNK_SECTORS, 1);
        let event = Event::Request { id: RequestId(0), op: Op::Write, range };
        present.ring.send(Message::Event { key: present.key, event });
        let status = wait(&node, |status| status.delayed.is_some()).await;
        assert!(matches!(status.delayed, Some((Delay::RunDirFull, _))), "{status:?}");
        // The record of a detach still finds its place.
        present.detaching.store(true, Ordering::Release);
        present.remember().unwrap();
        assert!(local.read_record().unwrap().unwrap().detaching);
        present.detaching.store(false, Ordering::Release);
        node.shutdown().await;
    });
}

/// What another program, or a bug, had written into the file of zeros was read as zeros by every guest.
#[test]
fn the_file_of_zeros_holds_zeros_after_a_start() {
    alone(async {
        let dirs = Dirs::new();
        let zeros = dirs.state.path().join("zeros.data");
        fs::write(&zeros, [7; 8192]).unwrap();
        let node = Node::start(dirs.config()).await.unwrap();
        assert!(fs::read(&zeros).unwrap().iter().all(|byte| *byte == 0));
        node.shutdown().await;
    });
}
