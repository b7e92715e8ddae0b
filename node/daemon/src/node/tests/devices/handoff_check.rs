//! Checks of a successor before it asks for a handoff.

use super::*;

/// Regression: a successor that cannot read the live map took over the node, and its devices stayed paused
/// until a user rolled back.
#[test]
fn a_live_map_of_another_version_stops_the_handoff() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    check_attached(&host.dirs.config()).unwrap();
    let path = host.dirs.local_of(&id("x")).live_map_path();
    let map = fs::File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&map, &99_u32.to_le_bytes(), 4).unwrap();
    let refused = check_attached(&host.dirs.config()).unwrap_err();
    let why = holdfast_service::chain(&refused);
    assert!(
        why.contains("live map has version 99") && why.contains("run the version that wrote it"),
        "{why}"
    );
    assert!(why.contains(path.to_str().unwrap()), "{why}");
}

/// Found in review: if another disk had been mounted over the state directory, a new pod took the devices
/// from the old one and then refused to start.
#[test]
fn another_state_directory_stops_the_handoff() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    let state = tempfile::tempdir().unwrap();
    let config = NodeConfig { state_dir: state.path().to_owned(), ..host.dirs.config() };
    let refused = check_attached(&config).unwrap_err();
    assert!(matches!(refused, NodeError::OtherInstallation(_)), "{refused}");
    fs::copy(host.dirs.state.path().join("installation"), state.path().join("installation")).unwrap();
    let refused = holdfast_service::chain(&check_attached(&config).unwrap_err());
    assert!(refused.contains(state.path().to_str().unwrap()), "it has no durable map: {refused}");
}

/// Found in review: the owner had left before its successor noticed that it could not write to the slab.
#[test]
fn a_slab_that_cannot_be_opened_stops_the_handoff() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    let slab = slab_path(host.dirs.state.path());
    fs::remove_file(&slab).unwrap();
    check_attached(&host.dirs.config()).unwrap();
    fs::create_dir(&slab).unwrap();
    let refused = holdfast_service::chain(&check_attached(&host.dirs.config()).unwrap_err());
    assert!(refused.contains(slab.to_str().unwrap()), "{refused}");
}

/// Found in review: a successor that could not read the directories' records ended just after it had taken
/// the devices from the owner.
#[test]
fn an_unreadable_record_of_the_directories_stops_the_handoff() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    for path in [host.dirs.run.path().join("owner"), host.dirs.state.path().join("run")] {
        let written = fs::read(&path).unwrap();
        fs::write(&path, "{}").unwrap();
        let refused = holdfast_service::chain(&check_attached(&host.dirs.config()).unwrap_err());
        assert!(refused.contains(path.to_str().unwrap()), "{refused}");
        fs::write(&path, written).unwrap();
    }
    check_attached(&host.dirs.config()).unwrap();
}
