//! Two daemons, and mismatched directories.

use futures::FutureExt;
use holdfast_background::LocalState;
use holdfast_engine::durable_map::Header;
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{Epoch, Nonce, Seq};
use holdfast_ublk::DeviceState;
use tempfile::TempDir;

use super::*;
use crate::node::tests::kernel::FakeKernel;
use crate::node::{KeeperStart, TransportChoice};

struct Dirs {
    state: TempDir,
    run: TempDir,
}

impl Dirs {
    fn new() -> Self {
        Self { state: tempfile::tempdir().unwrap(), run: tempfile::tempdir_in("/dev/shm").unwrap() }
    }
}

fn config(state: &TempDir, run: &TempDir) -> NodeConfig {
    NodeConfig {
        node_name: "a".to_owned(),
        state_dir: state.path().to_owned(),
        run_dir: run.path().to_owned(),
        ring_threads: 1,
        transport: TransportChoice::Auto,
        keeper: KeeperStart::ByDaemon,
        slab_bytes: 8 << 20,
        cache_bytes: None,
        seal_bytes: 4 << 20,
        max_dirty_bytes: 64 << 20,
        upload_memory_bytes: 256 << 20,
        max_dirty_age: Duration::from_secs(30),
        memory_volumes_bytes: 0,
        memory_spill_bytes: 0,
    }
}

/// Leaves the directories in the state of an attach without a device yet.
async fn attach(dirs: &Dirs, closed_clean: bool) {
    let volume: holdfast_types::VolumeId = "disk".parse().unwrap();
    let local = Local::new(dirs.state.path(), dirs.run.path(), &volume);
    let header = Header {
        volume,
        identity: Nonce([9; 16]),
        sectors: 64,
        epoch: Epoch(1),
        writer: Nonce::default(),
        nonces: Vec::new(),
        active: Side::A,
        closed_clean,
        invalidated: SideSet::NONE,
        has_journal: false,
        seq: Seq(3),
        synced_generation: 0,
    };
    let files = local.open(64, None).await.unwrap();
    local.write_header(&files, &header, 1).await.unwrap();
    if closed_clean {
        local.forget_attached().unwrap();
    }
}

/// Found in review: after a rollback, the older daemon ended just after it had taken over, because of a field
/// that it did not know.
#[tokio::test]
async fn files_of_a_later_release_are_read() {
    let dirs = Dirs::new();
    let config = config(&dirs.state, &dirs.run);
    Owner::wait(config.clone()).await.unwrap().release().unwrap();
    for path in [dirs.run.path().join("owner"), dirs.state.path().join("run")] {
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        record["later"] = "field".into();
        std::fs::write(&path, record.to_string()).unwrap();
    }
    Owner::wait(config).await.unwrap();
}

#[tokio::test]
async fn a_second_daemon_waits_until_the_first_has_ended() {
    let (one, two) = (Dirs::new(), Dirs::new());
    for (state, run) in [(&one.state, &one.run), (&two.state, &one.run)] {
        let first = Owner::wait(config(&one.state, &one.run)).await.unwrap();
        let mut second = Box::pin(Owner::wait(config(state, run)));
        assert!((&mut second).now_or_never().is_none(), "it waits");
        first.release().unwrap();
        second.await.unwrap().release().unwrap();
    }
}

/// Regression: two daemons with one run directory removed each other's live maps.
#[tokio::test]
async fn a_run_directory_serves_one_state_directory() {
    let (one, two) = (Dirs::new(), Dirs::new());
    Owner::wait(config(&one.state, &one.run)).await.unwrap().release().unwrap();
    Owner::wait(config(&two.state, &one.run)).await.expect("nothing is attached").release().unwrap();
    Owner::wait(config(&one.state, &one.run)).await.unwrap().release().unwrap();
    attach(&one, false).await;
    let refused = Owner::wait(config(&two.state, &one.run)).await.unwrap_err();
    assert!(matches!(refused, NodeError::RunDirTaken { .. }), "{refused}");
    let message = refused.to_string();
    for part in ["node.run_dir", one.run.path().to_str().unwrap(), one.state.path().to_str().unwrap()] {
        assert!(message.contains(part), "{message}");
    }
    Owner::wait(config(&one.state, &one.run)).await.unwrap();
}

/// Found in review: after another disk was mounted there, the error named the configured path as the right
/// one.
#[tokio::test]
async fn a_state_directory_that_was_replaced_is_named() {
    let one = Dirs::new();
    Owner::wait(config(&one.state, &one.run)).await.unwrap().release().unwrap();
    attach(&one, false).await;
    std::fs::remove_file(one.state.path().join("installation")).unwrap();
    let refused = Owner::wait(config(&one.state, &one.run)).await.unwrap_err();
    assert!(matches!(refused, NodeError::StateDirReplaced(_)), "{refused}");
}

/// Returns a kernel with a device in this state that serves a volume of the state directory.
fn kernel_with(dirs: &Dirs, state: DeviceState) -> Arc<FakeKernel> {
    let kernel = FakeKernel::new();
    let tag = Installation::of(dirs.state.path()).unwrap().tag(&"disk".parse().unwrap(), 1);
    kernel.add_left(3, state, tag.0);
    Arc::new(kernel)
}

/// Regression, found in review: a start with another run directory removed the spill file of a memory volume
/// whose device waited for its daemon.
#[tokio::test]
async fn a_spill_file_binds_state_and_run_directory() {
    let (one, two) = (Dirs::new(), Dirs::new());
    Owner::wait(config(&one.state, &one.run)).await.unwrap().release().unwrap();
    fs::create_dir_all(one.state.path().join("memory.d/scratch")).unwrap();
    let kernel = kernel_with(&one, DeviceState::Quiesced);
    let wait = |dirs: &Dirs| Owner::wait_with(config(&one.state, &dirs.run), kernel.clone());
    let refused = wait(&two).await.unwrap_err();
    assert!(matches!(refused, NodeError::StateInUse { .. }), "{refused}");
    wait(&one).await.unwrap();
}

#[tokio::test]
async fn attached_volumes_bind_state_and_run_directory() {
    let (one, two) = (Dirs::new(), Dirs::new());
    Owner::wait(config(&one.state, &one.run)).await.unwrap().release().unwrap();
    attach(&one, false).await;
    let kernel = kernel_with(&one, DeviceState::Quiesced);
    let wait = |dirs: &Dirs| Owner::wait_with(config(&one.state, &dirs.run), kernel.clone());
    let refused = wait(&two).await.unwrap_err();
    assert!(matches!(refused, NodeError::StateInUse { .. }), "{refused}");
    let message = refused.to_string();
    for part in ["node.run_dir", one.run.path().to_str().unwrap(), "devices [3]", "restart the host"] {
        assert!(message.contains(part), "{message}");
    }
    // Detached, or the host was rebooted: nothing is served through the other directory.
    attach(&one, true).await;
    wait(&two).await.unwrap().release().unwrap();
    attach(&one, false).await;
    let last = one.state.path().join("run");
    let other_boot = LastRun { boot_id: "another".to_owned(), ..read(&last).unwrap().unwrap() };
    write(&last, &other_boot).unwrap();
    let third = Dirs::new();
    wait(&third).await.unwrap();
}

/// Regression: when a containerized node restarts, it has the same boot id and an empty run directory: all
/// volumes of the node stayed down.
#[tokio::test]
async fn an_emptied_run_directory_without_devices_is_taken() {
    let (one, emptied) = (Dirs::new(), Dirs::new());
    Owner::wait(config(&one.state, &one.run)).await.unwrap().release().unwrap();
    attach(&one, false).await;
    // A stopped device serves no program, and devices of another installation are not ours.
    let kernel = kernel_with(&one, DeviceState::Dead);
    kernel.add_left(
        4,
        DeviceState::Live,
        Installation::of(emptied.state.path()).unwrap().tag(&"disk".parse().unwrap(), 1).0,
    );
    let owner = Owner::wait_with(config(&one.state, &emptied.run), kernel).await.unwrap();
    owner.release().unwrap();
    let last: LastRun = read(&one.state.path().join("run")).unwrap().unwrap();
    assert_eq!(last.run_dir, emptied.run.path());
}

#[tokio::test]
async fn a_volume_whose_header_is_damaged_counts_as_attached() {
    let (one, emptied) = (Dirs::new(), Dirs::new());
    Owner::wait(config(&one.state, &one.run)).await.unwrap().release().unwrap();
    attach(&one, true).await;
    let local = Local::new(one.state.path(), one.run.path(), &"disk".parse().unwrap());
    fs::write(local.map_path(), vec![0xff; 64 << 10]).unwrap();
    assert!(local.read_header().is_err());
    let wait = |kernel| Owner::wait_with(config(&one.state, &emptied.run), kernel);
    let refused = wait(kernel_with(&one, DeviceState::Quiesced)).await.unwrap_err();
    assert!(matches!(refused, NodeError::StateInUse { .. }), "{refused}");
    wait(Arc::new(FakeKernel::new())).await.unwrap();
}

#[tokio::test]
async fn one_directory_cannot_be_both() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let refused = Owner::wait(config(&dir, &dir)).await.unwrap_err();
    assert!(
        refused.to_string().contains("node.run_dir") && refused.kind() == crate::node::FailureKind::Invalid
    );
}
