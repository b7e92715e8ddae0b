//! Memory volumes: recovery after a killed daemon, and rejected requests.

use std::os::unix::fs::MetadataExt;

use holdfast_crds::{MemoryUse, SpillUse, max_memory_bytes};
use holdfast_memory::{Codecs, PAGE_BYTES, PageCodec};
use tokio::runtime::Builder;

mod growth;

use super::*;
use crate::node::MemoryAttach;
use crate::volumes::Volumes;

const WITHIN: Duration = Duration::from_millis(500);

fn scratch() -> MemoryAttach {
    let volume = "scratch".parse().unwrap();
    MemoryAttach {
        volume,
        bytes: SECTORS * SECTOR_BYTES,
        limit_bytes: None,
        spill_bytes: None,
        codec: PageCodec::Lz4,
        epoch: 0,
        owner: None,
    }
}

/// Runs a daemon until `script` ends, then leaves the state of a killed one.
fn daemon<F: Future<Output = ()>>(dirs: &Dirs, kernel: &Arc<FakeKernel>, script: impl FnOnce(Node) -> F) {
    daemon_with(dirs.config(), kernel, script);
}

fn daemon_with<F: Future<Output = ()>>(
    config: NodeConfig,
    kernel: &Arc<FakeKernel>,
    script: impl FnOnce(Node) -> F,
) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let node = Node::start_with(config, kernel.clone(), WITHIN).await.unwrap();
        script(node.clone()).await;
        let (owner, _all_ended) = node.leave(Duration::ZERO).await;
        drop(owner.map(HeldOwner::into_owner));
    });
    kernel.end_process();
}

fn only_device(kernel: &FakeKernel) -> u32 {
    *kernel.devices().keys().next().unwrap()
}

fn files(dirs: &Dirs) -> PathBuf {
    dirs.run.path().join("memory.d/scratch")
}

fn volume_files(dirs: &Dirs) -> super::super::memory::MemoryLocal {
    let dirs = LocalDirs { state: dirs.state.path().to_owned(), run: dirs.run.path().to_owned() };
    super::super::memory::MemoryLocal::new(&dirs, &scratch().volume)
}

/// Found in review: a successor that could not read a memory volume took the node over, and the volume's
/// device stayed paused.
#[test]
fn a_memory_volume_that_cannot_be_read_stops_the_handoff() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        node.attach_memory(scratch()).await.unwrap();
    });
    check_attached(&dirs.config()).unwrap();
    let table = fs::File::options().write(true).open(files(&dirs).join("table")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&table, b"other", 0).unwrap();
    let refused = holdfast_service::chain(&check_attached(&dirs.config()).unwrap_err());
    assert!(refused.contains("memory.d/scratch/table"), "{refused}");
}

/// The next daemon serves the content of a killed one; a detach drops it.
#[test]
fn a_killed_daemon_loses_no_page_of_a_memory_volume() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    let page = [7; PAGE_BYTES].map(|byte: u8| byte);
    daemon(&dirs, &kernel, async |node| {
        let attached = node.attach_memory(scratch()).await.unwrap();
        assert_eq!(attached.transport, Transport::KernelCopy);
        assert_eq!(node.attach_memory(scratch()).await.unwrap(), attached, "again it says the same");
    });
    // Like the device's requests.
    let record = volume_files(&dirs).record().unwrap().unwrap();
    volume_files(&dirs).open(&record).unwrap().volume.write(&mut Codecs::default(), 3, &page).unwrap();
    daemon(&dirs, &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        assert_eq!(status.memory.unwrap().same_filled_pages, 1, "its page is there");
        node.detach_memory(&status.volume).await.unwrap();
        assert!(node.list().is_empty() && !files(&dirs).exists());
        assert!(kernel.devices().is_empty());
        assert!(matches!(node.detach_memory(&status.volume).await, Err(NodeError::NotAttached(_))));
    });
    daemon(&dirs, &kernel, async |node| assert!(node.list().is_empty()));
    assert_eq!(kernel.violations(), Vec::<String>::new());
}

/// Regression: a memory volume stayed attached after another program removed its device, and an attach
/// returned a device whose number could be that program's.
#[test]
fn a_memory_volume_without_its_device_is_unserved() {
    for foreign in [None, Some(77)] {
        let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
        daemon(&dirs, &kernel, async |node| {
            node.attach_memory(scratch()).await.unwrap();
            let volume = scratch().volume;
            assert!(node.check_served(&volume).await.unwrap());
            let taken = kernel.remove_device(only_device(&kernel)).info.id;
            if let Some(tag) = foreign {
                kernel.add_foreign(taken, DeviceState::Live, tag);
            }
            match foreign {
                Some(_) => drop(node.attach_memory(scratch()).await.unwrap_err()),
                None => drop(node.check_served(&volume).await.unwrap_err()),
            }
            let status = wait(&node, |status| status.state == VolumeState::Unserved).await;
            assert!(status.attached.is_none() && status.message.unwrap().contains("detach it"));
            assert!(!node.check_served(&volume).await.unwrap());
            assert!(matches!(node.attach_memory(scratch()).await, Err(NodeError::Busy { .. })));
            node.detach_memory(&volume).await.unwrap();
            node.attach_memory(scratch()).await.unwrap();
            assert!(node.check_served(&volume).await.unwrap());
            if let Some(tag) = foreign {
                assert_eq!(kernel.remove_device(taken).info.tag, tag, "it is left alone");
            }
            node.detach_memory(&volume).await.unwrap();
        });
        assert_eq!(kernel.violations(), Vec::<String>::new());
    }
}

/// Regression: a failed attach whose files could not be removed no longer counted, and nothing but a restart
/// of the daemon removed them.
#[test]
fn a_detach_removes_the_remains_of_a_failed_attach() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    kernel.hold("start", None);
    kernel.refuse(&["start"]);
    daemon(&dirs, &kernel, async |node| {
        let attach = tokio::spawn({
            let node = node.clone();
            async move { node.attach_memory(scratch()).await }
        });
        until(|| !kernel.devices().is_empty()).await;
        let foreign = files(&dirs).join("foreign");
        fs::write(&foreign, "").unwrap();
        kernel.release();
        attach.await.unwrap().unwrap_err();
        let state = || node.list().first().map(|status| status.state);
        assert_eq!(state(), Some(VolumeState::Detaching));
        assert!(node.memory_use().promised_bytes > 0, "it still counts");
        let busy = node.attach_memory(scratch()).await.unwrap_err();
        assert!(busy.to_string().contains("detach it again"), "{busy}");
        node.detach_memory(&scratch().volume).await.unwrap_err();
        assert_eq!(state(), Some(VolumeState::Detaching));
        fs::remove_file(foreign).unwrap();
        node.detach_memory(&scratch().volume).await.unwrap();
        assert!(node.list().is_empty() && !files(&dirs).exists());
        kernel.refuse(&[]);
        node.attach_memory(scratch()).await.unwrap();
        node.detach_memory(&scratch().volume).await.unwrap();
    });
    assert_eq!(kernel.violations(), Vec::<String>::new());
}

/// Found in review: a failed attach whose device could not be stopped was never detached.
#[test]
fn a_detach_stops_the_device_of_a_failed_attach() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    kernel.refuse(&["start", "stop"]);
    daemon(&dirs, &kernel, async |node| {
        node.attach_memory(scratch()).await.unwrap_err();
        assert_eq!(node.list()[0].state, VolumeState::Detaching);
        kernel.refuse(&[]);
        node.detach_memory(&scratch().volume).await.unwrap();
        assert!(node.list().is_empty() && !files(&dirs).exists() && kernel.devices().is_empty());
        node.attach_memory(scratch()).await.unwrap();
        node.detach_memory(&scratch().volume).await.unwrap();
    });
    assert_eq!(kernel.violations(), Vec::<String>::new());
}

/// A release before kernel copy added a memory volume's device with user copy and longer requests: it is
/// recovered unchanged, and the next attach uses kernel copy.
#[test]
fn a_device_of_an_older_release_keeps_its_transport() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| drop(node.attach_memory(scratch()).await.unwrap()));
    let id = *kernel.devices().keys().next().unwrap();
    kernel.change(id, |known| {
        let info = &mut known.info;
        (info.transport, info.depth, info.max_io_bytes) = (Some(Transport::UserCopy), 128, 1 << 20);
    });
    daemon(&dirs, &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        assert_eq!(status.attached.unwrap().transport, Transport::UserCopy);
        node.detach_memory(&status.volume).await.unwrap();
        assert_eq!(node.attach_memory(scratch()).await.unwrap().transport, Transport::KernelCopy);
    });
    assert_eq!(kernel.violations(), Vec::<String>::new());
}

/// Regression: a memory volume had one queue, and so one processor, regardless of the node's size.
#[test]
fn ring_threads_share_the_queues_of_a_memory_volume() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    let with = |ring_threads| NodeConfig { ring_threads, ..dirs.config() };
    let shape = |id| (kernel.devices()[&id].queues, kernel.devices()[&id].depth);
    let page = [7; PAGE_BYTES];
    daemon_with(with(4), &kernel, async |node| {
        node.attach_memory(scratch()).await.unwrap();
        assert_eq!(shape(only_device(&kernel)), (3, 21), "the kernel allows three");
        node.attach_memory(MemoryAttach { volume: "spills".parse().unwrap(), ..spilling(8) }).await.unwrap();
        let spills = *kernel.devices().keys().max().unwrap();
        assert_eq!(shape(spills), (1, 64), "one queue has the order of all requests");
        node.detach_memory(&"spills".parse().unwrap()).await.unwrap();
    });
    let record = volume_files(&dirs).record().unwrap().unwrap();
    volume_files(&dirs).open(&record).unwrap().volume.write(&mut Codecs::default(), 3, &page).unwrap();
    // The next daemon has fewer threads than the device has queues, or more.
    for (ring_threads, of_device) in [(1, 3), (2, 4), (4, 3)] {
        let id = only_device(&kernel);
        kernel.change(id, |known| known.info.queues = of_device);
        daemon_with(with(ring_threads), &kernel, async |node| {
            let status = wait(&node, |status| status.state == VolumeState::Attached).await;
            assert_eq!(status.memory.unwrap().same_filled_pages, 1, "its page is there");
            assert_eq!(shape(id).0, of_device);
        });
    }
    daemon_with(with(2), &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        let rooms = || node.0.rings.reserve_shares(2, 0).unwrap().len();
        node.detach_memory(&status.volume).await.unwrap();
        assert!(node.list().is_empty() && !files(&dirs).exists() && kernel.devices().is_empty());
        assert_eq!(rooms(), 2);
    });
    assert_eq!(kernel.violations(), Vec::<String>::new());
}

/// Regression, found in review: if one thread failed to open its queues, the threads before it kept theirs,
/// and no retry was able to open the device again.
#[test]
fn no_thread_keeps_its_queues_if_one_cannot_open() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    let with = || NodeConfig { ring_threads: 3, ..dirs.config() };
    daemon_with(with(), &kernel, async |node| {
        kernel.refuse(&["queues"]);
        let refused = node.attach_memory(scratch()).await;
        assert!(matches!(refused, Err(NodeError::Queue(_))), "{refused:?}");
        assert!(node.list().is_empty() && !files(&dirs).exists() && kernel.devices().is_empty());
        kernel.refuse(&[]);
        node.attach_memory(scratch()).await.unwrap();
    });
    kernel.refuse(&["queues"]);
    daemon_with(with(), &kernel, async |node| {
        wait(&node, |status| status.state == VolumeState::Quiesced).await;
        kernel.refuse(&[]);
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        node.detach_memory(&status.volume).await.unwrap();
    });
    assert_eq!(kernel.violations(), Vec::<String>::new());
}

/// Regression: a Volume recreated under the same id was served with the content of the old one.
#[test]
fn a_recovered_memory_volume_keeps_its_owner() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    let claim = MemoryAttach { epoch: 7, owner: Some("uid".to_owned()), ..scratch() };
    let owner = |status: NodeVolumeStatus| status.memory_identity.unwrap().owner;
    daemon(&dirs, &kernel, async |node| {
        node.attach_memory(claim).await.unwrap();
        assert_eq!(owner(only_volume(&node)).as_deref(), Some("uid"));
    });
    daemon(&dirs, &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        assert_eq!(status.attached.as_ref().unwrap().epoch, 7);
        assert_eq!(owner(status).as_deref(), Some("uid"));
    });
}

/// Regression: every local user was able to read the content of a memory volume.
#[test]
fn only_the_owner_reads_the_content_of_a_memory_volume() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        node.attach_memory(scratch()).await.unwrap();
        let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!([mode(dirs.run.path().join("memory.d")), mode(files(&dirs))], [0o700; 2]);
        assert_eq!(["table", "slabs", "attached"].map(|name| mode(files(&dirs).join(name))), [0o600; 3]);
    });
}

/// A device paused because of its damaged table is never served with other content.
#[test]
fn a_damaged_table_keeps_its_device_paused() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| drop(node.attach_memory(scratch()).await.unwrap()));
    let table = files(&dirs).join("table");
    flip_a_bit(&table);
    daemon(&dirs, &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Quiesced).await;
        let message = status.message.unwrap();
        assert!(
            message.contains("scratch/table is damaged: the checksum of the table's head is wrong"),
            "{message}"
        );
        flip_a_bit(&table);
        wait(&node, |status| status.state == VolumeState::Attached).await;
    });
}

/// A daemon that died during an attach left files without a device; the next attach needs their name.
#[test]
fn files_of_an_attach_that_never_ended_are_removed() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    for step in ["table", "attached"] {
        daemon(&dirs, &kernel, async |node| drop(node.attach_memory(scratch()).await.unwrap()));
        let id = *kernel.devices().keys().next().unwrap();
        kernel.remove_device(id);
        if step == "table" {
            fs::remove_file(files(&dirs).join("attached")).unwrap();
        }
        daemon(&dirs, &kernel, async |node| {
            assert!(node.list().is_empty(), "{step}");
            assert!(!files(&dirs).exists(), "{step}");
        });
    }
}

/// Regression: an attach accepted any limit, and a full run directory then failed writes of every volume.
#[test]
fn a_volume_too_large_for_the_run_directory_is_refused() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    let found = rustix::fs::statvfs(dirs.run.path()).unwrap();
    let whole = 2 * SECTOR_BYTES;
    let free = found.f_bavail * found.f_frsize / whole * whole;
    let of = |name: &str, bytes, limit_bytes| {
        let volume = name.parse().unwrap();
        MemoryAttach {
            volume,
            bytes,
            limit_bytes: Some(limit_bytes),
            spill_bytes: None,
            codec: PageCodec::Lz4,
            epoch: 0,
            owner: None,
        }
    };
    daemon(&dirs, &kernel, async |node| {
        let error = node.attach_memory(of("large", 2 * free, free)).await.unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("memory.limit_bytes: large may use "), "{message}");
        assert!(message.contains("lower limit (--memory-limit)"), "{message}");
        assert!(node.list().is_empty() && !dirs.run.path().join("memory.d/large").exists());
        // Two that fit separately but not together, although neither has written anything.
        node.attach_memory(of("one", free / 2, free / 2)).await.unwrap();
        let error = node.attach_memory(of("two", free / 2, free / 2)).await.unwrap_err();
        assert!(matches!(error, NodeError::MemoryRoom { .. }), "{error}");
        node.attach_memory(of("two", free / 2, 1 << 20)).await.unwrap();
    });
}

/// Regression: a repeated attach returned the device of another size, mistaken for the new one.
#[test]
fn an_attach_with_another_shape_is_refused_by_field() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        let attached = node.attach_memory(scratch()).await.unwrap();
        let whole = Some(u64::MAX);
        for (field, other) in [
            ("size_bytes", MemoryAttach { bytes: 2 * SECTORS * SECTOR_BYTES, ..scratch() }),
            ("limit_bytes", MemoryAttach { limit_bytes: Some(64 << 10), ..scratch() }),
            ("compression", MemoryAttach { codec: PageCodec::Zstd, ..scratch() }),
        ] {
            let message = node.attach_memory(other).await.unwrap_err().to_string();
            assert!(message.starts_with(&format!("memory.{field}: scratch is attached")), "{message}");
        }
        let same = MemoryAttach { limit_bytes: whole, ..scratch() };
        assert_eq!(node.attach_memory(same).await.unwrap(), attached, "no content needs more");
    });
}

/// Found in review: a device whose stop failed, and was completed later, was returned by the next attach.
#[test]
fn a_device_whose_stop_failed_is_not_attached_again() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        node.attach_memory(scratch()).await.unwrap();
        kernel.refuse(&["stop_unused"]);
        node.detach_memory(&scratch().volume).await.unwrap_err();
        assert_eq!(node.list()[0].state, VolumeState::Detaching);
        let busy = node.attach_memory(scratch()).await.unwrap_err();
        assert!(busy.to_string().contains("a detach failed: detach it again"), "{busy}");
        kernel.refuse(&[]);
        node.detach_memory(&scratch().volume).await.unwrap();
        assert!(node.list().is_empty() && kernel.devices().is_empty());
    });
    assert_eq!(kernel.violations(), Vec::<String>::new());
}

/// Regression: a detach that failed after its volume had left the ring could never be retried, and an attach
/// in the meantime returned the stopped device.
#[test]
fn a_detach_that_failed_after_the_stop_is_repeated() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        let volume = scratch().volume;
        node.attach_memory(scratch()).await.unwrap();
        let foreign = files(&dirs).join("foreign");
        fs::write(&foreign, "").unwrap();
        for _ in 0..2 {
            let error = node.detach_memory(&volume).await.unwrap_err();
            assert!(error.to_string().contains("memory.d/scratch"), "{error}");
            let again = node.attach_memory(scratch()).await;
            let again = again.unwrap_err().to_string();
            assert!(again.contains("a detach failed: detach it again"), "{again}");
        }
        fs::remove_file(foreign).unwrap();
        node.detach_memory(&volume).await.unwrap();
        assert!(node.list().is_empty() && !files(&dirs).exists());
    });
}

/// Regression: a release without memory volumes attached an object store's volume under the name of one.
#[test]
fn a_name_that_another_volume_has_is_not_served_twice() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| drop(node.attach_memory(scratch()).await.unwrap()));
    let other = Local::new(dirs.state.path(), dirs.run.path(), &scratch().volume);
    let other = other.live_map_path().parent().unwrap().to_owned();
    fs::create_dir_all(&other).unwrap();
    fs::write(other.join("attached"), "{}").unwrap();
    daemon(&dirs, &kernel, async |node| {
        let listed = node.list();
        assert_eq!(listed.len(), 1, "{listed:?}");
        assert!(listed[0].memory.is_none());
        assert!(!node.is_memory(&scratch().volume));
        let refused = node.attach_memory(scratch()).await;
        assert!(matches!(refused, Err(NodeError::Busy { .. })), "{refused:?}");
        assert!(volume_files(&dirs).record().unwrap().is_some(), "its files stay");
        let states: Vec<DeviceState> = kernel.devices().values().map(|device| device.state).collect();
        assert_eq!(states, [DeviceState::Quiesced]);
        let error = node.refuse_left_memory(&scratch().volume).await.unwrap_err();
        assert!(error.to_string().starts_with("the memory volume scratch is left"), "{error}");
    });
    fs::remove_dir_all(other).unwrap();
    daemon(&dirs, &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        assert!(status.memory.is_some());
    });
}

/// Operations that do not apply to memory volumes are rejected with the alternative, and change nothing.
#[test]
fn inapplicable_operations_on_a_memory_volume_are_refused() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        let volume = scratch().volume;
        node.attach_memory(scratch()).await.unwrap();
        let at = || VolumeInStore { volume: volume.clone(), store: None };
        let change = SettingsChange { durability: Some(Durability::Object), ..SettingsChange::default() };
        let attach = AttachRequest { volume: volume.clone(), ..request() };
        let refused = [
            ("snapshots", Volumes::list_snapshots(&node, at()).await.map(drop)),
            ("durability, age of data or limits", Volumes::configure(&node, &volume, change).await.map(drop)),
            ("store", Volumes::attach(&node, attach.clone()).await.map(drop)),
        ];
        for (what, refused) in refused {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind, FailureKind::Invalid, "{what}");
            let prefix = format!("volume_id: scratch is a memory volume of this node, which has no {what}");
            assert!(refused.message.starts_with(&prefix), "{}", refused.message);
        }
        // Like an attach that checked before the memory volume was added.
        let raced = node.attach(attach).await;
        assert!(matches!(raced, Err(NodeError::MemoryVolume { what: "store", .. })), "{raced:?}");
        assert_eq!(node.list().len(), 1);
        let size = MemoryAttach { volume: "other".parse().unwrap(), bytes: 4097, ..scratch() };
        assert!(matches!(node.attach_memory(size).await, Err(NodeError::Size(4097))));
        assert_eq!(node.list().len(), 1, "a failed attach leaves nothing");
        Volumes::detach(&node, &volume).await.unwrap();
    });
}

/// Regression: all memory volumes together exceeded the control group's limit, which killed the daemon.
#[test]
fn memory_volumes_stay_within_the_limit_of_the_node() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    let of =
        |name: &str| MemoryAttach { volume: name.parse().unwrap(), limit_bytes: Some(1 << 20), ..scratch() };
    let limited = |limit_bytes| NodeConfig { memory_volumes_bytes: limit_bytes, ..dirs.config() };
    let one = max_memory_bytes(scratch().bytes, Some(1 << 20));
    let run = |limit_bytes, script: fn(Node, MemoryAttach, MemoryAttach, u64) -> _| {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let node = Node::start_with(limited(limit_bytes), kernel.clone(), WITHIN).await.unwrap();
            let done: std::pin::Pin<Box<dyn Future<Output = ()>>> =
                script(node.clone(), of("one"), of("two"), one);
            done.await;
            let (owner, _all_ended) = node.leave(Duration::ZERO).await;
            drop(owner.map(HeldOwner::into_owner));
        });
        kernel.end_process();
    };
    run(0, |node, one, _two, _most| {
        Box::pin(async move {
            let refused = node.attach_memory(one).await.unwrap_err();
            assert_eq!(refused.kind(), FailureKind::Full);
            let message = refused.to_string();
            assert!(message.contains("0 of data.memory_volumes (0) is left"), "{message}");
        })
    });
    run(2 * one - 1, |node, one, two, most| {
        Box::pin(async move {
            node.attach_memory(one).await.unwrap();
            assert_eq!(node.memory_use().promised_bytes, most);
            assert!(matches!(node.attach_memory(two).await, Err(NodeError::MemoryLimit { .. })));
        })
    });
    // A volume in recovery counts even before its files are open.
    run(2 * one - 1, |node, one, two, _most| {
        Box::pin(async move {
            assert!(matches!(node.attach_memory(two.clone()).await, Err(NodeError::MemoryLimit { .. })));
            wait(&node, |status| status.state == VolumeState::Attached).await;
            node.detach_memory(&one.volume).await.unwrap();
            assert_eq!(node.memory_use().promised_bytes, 0);
            node.attach_memory(two).await.unwrap();
        })
    });
}

/// Regression, found in review: a node without ublk reported room for memory volumes. Claims were bound to
/// it, and their pods waited forever.
#[test]
fn a_node_without_ublk_has_no_room_for_memory_volumes() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        let MemoryUse { limit_bytes, spill, .. } = node.memory_use();
        assert!(limit_bytes > 0, "with ublk there is room");
        assert_eq!(spill.map(|spill| spill.limit_bytes), Some(1 << 20));
        node.attach_memory(spilling(8)).await.unwrap();
        kernel.refuse(&["ublk"]);
        let MemoryUse { limit_bytes, promised_bytes, used_bytes: _, spill } = node.memory_use();
        assert!(limit_bytes == promised_bytes && promised_bytes > 0, "{limit_bytes} of {promised_bytes}");
        let none_left = SpillUse { limit_bytes: 8 << 12, promised_bytes: 8 << 12, used_bytes: 0 };
        assert_eq!(spill, Some(none_left));
        let other = MemoryAttach { volume: "other".parse().unwrap(), ..scratch() };
        assert!(matches!(node.attach_memory(other).await, Err(NodeError::MemoryNeedsUblk(_))));
        node.detach_memory(&scratch().volume).await.unwrap();
        assert_eq!(node.memory_use().limit_bytes, 0);
    });
}

/// The epoch distinguishes a Volume that was attached again, even after a restart of the daemon.
#[test]
fn a_memory_volume_keeps_the_epoch_of_its_attach() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        let attached = node.attach_memory(MemoryAttach { epoch: 7, ..scratch() }).await.unwrap();
        assert_eq!(attached.epoch, 7);
    });
    daemon(&dirs, &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        assert_eq!(status.attached.unwrap().epoch, 7);
        assert_eq!(status.holds_data, Some(false), "every page is zeros");
    });
}

/// Returns a volume with memory for 16 incompressible pages, and a spill file for `pages` more.
fn spilling(pages: u64) -> MemoryAttach {
    MemoryAttach { limit_bytes: Some(64 << 10), spill_bytes: Some(pages * SECTOR_BYTES), ..scratch() }
}

fn spill_files(dirs: &Dirs) -> PathBuf {
    dirs.state.path().join("memory.d/scratch")
}

async fn until(is_so: impl Fn() -> bool) {
    let reached = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), reached).await.expect("it comes to be");
}

/// Returns the only spill file of the volume.
fn spill_file(dirs: &Dirs) -> PathBuf {
    let mut found = fs::read_dir(spill_files(dirs)).unwrap();
    let path = found.next().unwrap().unwrap().path();
    assert!(found.next().is_none(), "an attach has one");
    path
}

/// Returns incompressible pages.
fn noise(pages: usize) -> Vec<u8> {
    let mut bits = 1_u64;
    let next = move || {
        bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (bits >> 40) as u8
    };
    std::iter::repeat_with(next).take(pages * PAGE_BYTES).collect()
}

/// Writes 20 pages like the device's requests: four of them are spilled, and a fifth was about to be when the
/// daemon was killed.
fn spill(dirs: &Dirs) {
    let data = noise(21);
    let record = volume_files(dirs).record().unwrap().unwrap();
    let volume = volume_files(dirs).open(&record).unwrap().volume;
    volume.write(&mut Codecs::default(), 0, &data[..20 * PAGE_BYTES]).unwrap();
    let spill_file = File::options().write(true).open(spill_file(dirs)).unwrap();
    spill_file.write_all_at(&data[16 * PAGE_BYTES..], 16 * SECTOR_BYTES).unwrap();
    spill_file.sync_all().unwrap();
    let mut runs = Vec::new();
    volume.take_disk_runs(&mut runs);
    assert!(matches!(runs[..], [run] if run.range() == (16..20)));
    runs.iter().for_each(|run| volume.disk_ended(run, run.pages));
}

/// The next daemon serves the spilled pages, frees those that the table does not name, and a detach leaves no
/// file.
#[test]
fn a_killed_daemon_loses_no_spilled_page() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| drop(node.attach_memory(spilling(8)).await.unwrap()));
    spill(&dirs);
    let blocks = || fs::metadata(spill_file(&dirs)).unwrap().blocks() / 8;
    assert_eq!(blocks(), 5);
    daemon(&dirs, &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        let memory = status.memory.unwrap();
        assert_eq!((memory.spilled_pages, memory.spill_limit_pages, memory.plain_pages), (4, 8, 16));
        let disk = SpillUse { limit_bytes: 1 << 20, promised_bytes: 8 << 12, used_bytes: 4 << 12 };
        assert_eq!(node.memory_use().spill, Some(disk));
        assert_eq!(blocks(), 4, "what no word names is a hole");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&spill_files(&dirs)), mode(&spill_file(&dirs))), (0o700, 0o600));
        assert_eq!(node.attach_memory(spilling(8)).await.unwrap(), status.attached.unwrap());
        let message = node.attach_memory(spilling(9)).await.unwrap_err().to_string();
        assert!(
            message.starts_with("memory.spill_bytes: scratch is attached on this node with 32Ki"),
            "{message}"
        );
        node.detach_memory(&status.volume).await.unwrap();
        assert!(!spill_files(&dirs).exists() && !files(&dirs).exists());
    });
    assert_eq!(kernel.violations(), Vec::<String>::new());
}

/// Regression: a spill file that lost some or all of its pages read as zeros.
#[test]
fn a_lost_spill_file_keeps_its_device_paused() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| drop(node.attach_memory(spilling(8)).await.unwrap()));
    spill(&dirs);
    let (path, kept) = (spill_file(&dirs), dirs.state.path().join("kept"));
    let paused = async |node: &Node, words: &str| {
        let status = wait(node, |status| status.message.as_ref().is_some_and(|it| it.contains(words))).await;
        assert_eq!(status.state, VolumeState::Quiesced);
    };
    fs::rename(&path, &kept).unwrap();
    daemon(&dirs, &kernel, async |node| {
        paused(&node, "is damaged: 4 pages of the volume are missing in it").await;
        // The file of another attach has another name.
        fs::copy(&kept, path.with_file_name("spill-0000000000000001")).unwrap();
        File::create_new(&path).unwrap().set_len((SECTORS + 1) * SECTOR_BYTES).unwrap();
        paused(&node, "is damaged: 4 pages of the volume are missing in it").await;
        File::options().write(true).open(&path).unwrap().set_len(SECTOR_BYTES).unwrap();
        paused(&node, "is damaged: it has 4096 bytes").await;
        fs::rename(&kept, &path).unwrap();
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        assert_eq!(status.memory.unwrap().spilled_pages, 4);
    });
}

/// Regression: after a restart of the host, spill files occupied the disk for the life of the node. Later
/// their deletion delayed the recovery of devices: now it starts afterwards.
#[test]
fn spill_files_without_a_volume_are_removed() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| drop(node.attach_memory(spilling(8)).await.unwrap()));
    kernel.remove_device(*kernel.devices().keys().next().unwrap());
    fs::remove_dir_all(files(&dirs)).unwrap();
    assert!(spill_file(&dirs).exists());
    // Looking up other files of these fails. Regression: this prevented the deletion of all others, too.
    for name in (0..8).map(|number| format!("bad-{number}")) {
        fs::create_dir(dirs.state.path().join("memory.d").join(&name)).unwrap();
        let loops = dirs.run.path().join("memory.d").join(&name);
        std::os::unix::fs::symlink(&loops, &loops).unwrap();
    }
    daemon(&dirs, &kernel, async |node| {
        assert!(node.list().is_empty() && !spill_files(&dirs).exists());
        let trash = dirs.state.path().join("trash");
        until(|| fs::read_dir(&trash).is_ok_and(|left| left.count() == 0)).await;
    });
}

/// Regression: a hanging state disk blocked the detach of a volume without data on it.
#[test]
fn without_a_spill_file_the_state_disk_is_unused() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        // This would be touched along with a spill file of its name.
        fs::create_dir_all(spill_files(&dirs)).unwrap();
        let request = MemoryAttach { spill_bytes: None, ..spilling(8) };
        node.attach_memory(request.clone()).await.unwrap();
        node.detach_memory(&request.volume).await.unwrap();
        assert!(spill_files(&dirs).exists() && !files(&dirs).exists());
        node.attach_memory(spilling(8)).await.unwrap();
        node.detach_memory(&request.volume).await.unwrap();
        assert!(!spill_files(&dirs).exists());
    });
}

/// Regression: all spill files together filled the disk, including the share of other volumes' cache.
#[test]
fn spill_files_stay_within_the_limit_of_the_node() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    let other = |pages| MemoryAttach { volume: "other".parse().unwrap(), ..spilling(pages) };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let start = |pages| {
        let config = NodeConfig { memory_spill_bytes: pages * SECTOR_BYTES, ..dirs.config() };
        let kernel = kernel.clone();
        async move { Node::start_with(config, kernel, WITHIN).await.unwrap() }
    };
    let refused = async |node: &Node| {
        let error = node.attach_memory(other(5)).await.unwrap_err();
        assert_eq!(error.kind(), FailureKind::Full);
        let message = error.to_string();
        assert!(message.starts_with("memory.spill_bytes: other may use 20Ki of node.state_dir"), "{message}");
        assert!(message.contains("16Ki of data.memory_spill (48Ki) is left"), "{message}");
    };
    runtime.block_on(async {
        let node = start(12).await;
        node.attach_memory(spilling(8)).await.unwrap();
        refused(&node).await;
        let (owner, _all_ended) = node.leave(Duration::ZERO).await;
        drop(owner.map(HeldOwner::into_owner));
        kernel.end_process();
        // A volume in recovery counts even before its files are open.
        let node = start(12).await;
        refused(&node).await;
        wait(&node, |status| status.state == VolumeState::Attached).await;
        node.attach_memory(other(4)).await.unwrap();
        let (owner, _all_ended) = node.leave(Duration::ZERO).await;
        drop(owner.map(HeldOwner::into_owner));
        kernel.end_process();
        // A lower limit keeps existing spill files, but promises no more.
        let node = start(0).await;
        until(|| node.list().iter().all(|status| status.state == VolumeState::Attached)).await;
        let left = SpillUse { limit_bytes: 0, promised_bytes: 12 * SECTOR_BYTES, used_bytes: 0 };
        assert_eq!(node.memory_use().spill, Some(left));
        let more = MemoryAttach { volume: "more".parse().unwrap(), ..spilling(1) };
        let message = node.attach_memory(more).await.unwrap_err().to_string();
        assert!(message.contains("0 of data.memory_spill (0) is left"), "{message}");
        assert!(message.ends_with("raise data.memory_spill (chart: node.memorySpill)"), "{message}");
        let (owner, _all_ended) = node.leave(Duration::ZERO).await;
        drop(owner.map(HeldOwner::into_owner));
    });
}

/// Regression: claims were scheduled to a node whose limit exceeded its disk, and their writes failed.
#[test]
fn spill_files_beyond_the_disk_are_neither_promised_nor_made() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    let found = rustix::fs::statvfs(dirs.state.path()).unwrap();
    let disk = (found.f_blocks * found.f_frsize).next_multiple_of(SECTOR_BYTES);
    let config = NodeConfig { memory_spill_bytes: 2 * disk, ..dirs.config() };
    let large = MemoryAttach { bytes: disk, spill_bytes: Some(disk), ..spilling(8) };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let node = Node::start_with(config, kernel.clone(), WITHIN).await.unwrap();
        let limit_bytes = node.memory_use().spill.unwrap().limit_bytes;
        assert!(limit_bytes < disk, "{limit_bytes} of {disk}");
        let error = node.attach_memory(large).await.unwrap_err();
        assert_eq!(error.kind(), FailureKind::Full);
        let words = format!("the disk of {} has ", dirs.state.path().display());
        let message = error.to_string();
        assert!(message.contains(&words) && message.contains("free for spill files"), "{message}");
        node.attach_memory(spilling(8)).await.unwrap();
        let (owner, _all_ended) = node.leave(Duration::ZERO).await;
        drop(owner.map(HeldOwner::into_owner));
    });
}
