//! Memory volumes: what a daemon takes over from one that was killed, and what it refuses.

use holdfast_memory::{Codecs, PAGE_BYTES, PageCodec};
use tokio::runtime::Builder;

use super::*;
use crate::node::memory::MemoryAttach;
use crate::volumes::Volumes;

const WITHIN: Duration = Duration::from_millis(500);

fn scratch() -> MemoryAttach {
    let volume = "scratch".parse().unwrap();
    MemoryAttach { volume, bytes: SECTORS * SECTOR_BYTES, limit_bytes: None, codec: PageCodec::Lz4 }
}

/// Runs a daemon until `script` ends; then it is gone as after a kill.
fn daemon<F: Future<Output = ()>>(dirs: &Dirs, kernel: &Arc<FakeKernel>, script: impl FnOnce(Node) -> F) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let node = Node::start_with(dirs.config(), kernel.clone(), WITHIN).await.unwrap();
        script(node.clone()).await;
        let (owner, _all_ended) = node.leave(Duration::ZERO).await;
        drop(owner.map(HeldOwner::into_owner));
    });
    kernel.bury();
}

fn files(dirs: &Dirs) -> PathBuf {
    dirs.run.path().join("memory.d/scratch")
}

fn volume_files(dirs: &Dirs) -> super::super::memory::MemoryLocal {
    super::super::memory::MemoryLocal::new(dirs.run.path(), &scratch().volume)
}

/// The daemon is killed, and its content is what the next one serves; a detach drops it.
#[test]
fn a_killed_daemon_loses_no_page_of_a_memory_volume() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    let page = [7; PAGE_BYTES].map(|byte: u8| byte);
    daemon(&dirs, &kernel, async |node| {
        let attached = node.attach_memory(scratch()).await.unwrap();
        assert_eq!(attached.transport, Transport::UserCopy);
        assert_eq!(node.attach_memory(scratch()).await.unwrap(), attached, "again it says the same");
    });
    // As the device's requests would have.
    let record = volume_files(&dirs).record().unwrap().unwrap();
    volume_files(&dirs).open(&record).unwrap().write(&mut Codecs::default(), 3, &page).unwrap();
    daemon(&dirs, &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Attached).await;
        assert_eq!(status.memory.unwrap().same_filled_pages, 1, "its page is there");
        node.detach_memory(&status.volume).await.unwrap();
        assert!(node.list().is_empty() && !files(&dirs).exists());
        assert!(kernel.devices().is_empty());
        assert!(matches!(node.detach_memory(&status.volume).await, Err(NodeError::NotAttached(_))));
    });
    daemon(&dirs, &kernel, async |node| assert!(node.list().is_empty()));
    assert_eq!(kernel.wrong(), Vec::<String>::new());
}

/// Every local user could read the content of a memory volume.
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

/// A device that is paused because its table is damaged is never served with other content.
#[test]
fn a_damaged_table_keeps_its_device_paused() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| drop(node.attach_memory(scratch()).await.unwrap()));
    let table = files(&dirs).join("table");
    flip_a_bit(&table);
    daemon(&dirs, &kernel, async |node| {
        let status = wait(&node, |status| status.state == VolumeState::Quiesced).await;
        let message = status.message.unwrap();
        assert!(message.contains("scratch/table is damaged: the checksum of its head is wrong"), "{message}");
        flip_a_bit(&table);
        wait(&node, |status| status.state == VolumeState::Attached).await;
    });
}

/// A daemon that died in an attach left files without a device; the next attach needs their name.
#[test]
fn files_of_an_attach_that_never_ended_are_removed() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    for step in ["table", "attached"] {
        daemon(&dirs, &kernel, async |node| drop(node.attach_memory(scratch()).await.unwrap()));
        let id = *kernel.devices().keys().next().unwrap();
        kernel.take_away(id);
        if step == "table" {
            fs::remove_file(files(&dirs).join("attached")).unwrap();
        }
        daemon(&dirs, &kernel, async |node| {
            assert!(node.list().is_empty(), "{step}");
            assert!(!files(&dirs).exists(), "{step}");
        });
    }
}

/// Operations that memory volumes do not have are refused with the fix, and change nothing.
#[test]
fn what_a_memory_volume_has_not_is_refused() {
    let (dirs, kernel) = (Dirs::new(), Arc::new(FakeKernel::new()));
    daemon(&dirs, &kernel, async |node| {
        let volume = scratch().volume;
        node.attach_memory(scratch()).await.unwrap();
        let at = || VolumeInStore { volume: volume.clone(), store: None };
        let change = SettingsChange { max_dirty_age: None, durability: Some(Durability::Object) };
        let attach = AttachRequest { volume: volume.clone(), ..request() };
        let refused = [
            ("snapshots", Volumes::list_snapshots(&node, at()).await.map(drop)),
            ("growth", Volumes::grow(&node, &volume, 1 << 20).await.map(drop)),
            ("durability", Volumes::configure(&node, &volume, change).await.map(drop)),
            ("store", Volumes::attach(&node, attach).await.map(drop)),
        ];
        for (what, refused) in refused {
            let refused = refused.unwrap_err();
            assert_eq!(refused.kind, FailureKind::Invalid, "{what}");
            let begins = format!("volume_id: scratch is a memory volume of this node, which has no {what}");
            assert!(refused.message.starts_with(&begins), "{}", refused.message);
        }
        assert_eq!(node.list().len(), 1);
        let size = MemoryAttach { volume: "other".parse().unwrap(), bytes: 4097, ..scratch() };
        assert!(matches!(node.attach_memory(size).await, Err(NodeError::Size(4097))));
        assert_eq!(node.list().len(), 1, "a failed attach leaves nothing");
        Volumes::detach(&node, &volume).await.unwrap();
    });
}
