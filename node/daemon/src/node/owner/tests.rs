//! Two daemons, and directories that do not belong together.

use futures::FutureExt;
use holdfast_background::LocalState;
use holdfast_engine::durable_map::Header;
use holdfast_engine::sector_map::{Side, SideSet};
use holdfast_types::{Epoch, Nonce, Seq};
use tempfile::TempDir;

use super::*;
use crate::node::TransportChoice;

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
        slab_bytes: 8 << 20,
        cache_bytes: None,
        seal_bytes: 4 << 20,
        most_dirty_bytes: 64 << 20,
        upload_memory_bytes: 256 << 20,
        max_dirty_age: Duration::from_secs(30),
    }
}

/// What an attach leaves in the directories before there is a device.
async fn attach(dirs: &Dirs, closed_clean: bool) {
    let volume: holdfast_types::VolumeId = "disk".parse().unwrap();
    let local = Local::new(dirs.state.path(), dirs.run.path(), &volume);
    let header = Header {
        volume,
        identity: Nonce([9; 16]),
        sectors: 64,
        epoch: Epoch(1),
        nonces: Vec::new(),
        active: Side::A,
        closed_clean,
        void: SideSet::NONE,
        seq: Seq(3),
        synced_generation: 0,
    };
    let files = local.open(64).await.unwrap();
    local.write_header(&files, &header, 1).await.unwrap();
    if closed_clean {
        local.forget_attached().unwrap();
    }
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

/// Two daemons with one run directory removed each other's live maps.
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

#[tokio::test]
async fn a_state_directory_keeps_its_run_directory_while_volumes_are_attached() {
    let (one, two) = (Dirs::new(), Dirs::new());
    Owner::wait(config(&one.state, &one.run)).await.unwrap().release().unwrap();
    attach(&one, false).await;
    let refused = Owner::wait(config(&one.state, &two.run)).await.unwrap_err();
    assert!(matches!(refused, NodeError::StateInUse { .. }), "{refused}");
    let message = refused.to_string();
    for part in ["node.run_dir", one.run.path().to_str().unwrap(), "restart the host"] {
        assert!(message.contains(part), "{message}");
    }
    // Detached, or the host was started again: nothing is served through the other directory.
    attach(&one, true).await;
    Owner::wait(config(&one.state, &two.run)).await.unwrap().release().unwrap();
    attach(&one, false).await;
    let last = one.state.path().join("run");
    let other_boot = LastRun { boot_id: "another".to_owned(), ..read(&last).unwrap().unwrap() };
    write(&last, &other_boot).unwrap();
    let third = Dirs::new();
    Owner::wait(config(&one.state, &third.run)).await.unwrap();
}

#[tokio::test]
async fn one_directory_cannot_be_both() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let refused = Owner::wait(config(&dir, &dir)).await.unwrap_err();
    assert!(
        refused.to_string().contains("node.run_dir") && refused.kind() == crate::node::ErrorKind::Invalid
    );
}
