//! Growth of volumes whose devices are served.

use super::*;

/// At any step at which the process may die, the device has the old size or the new one, and finally gets the
/// new one.
#[test]
fn a_volume_grows_over_the_death_of_its_daemon() {
    // add, open, start, resize
    for death in [None, Some(Death::Before(3)), Some(Death::After(3))] {
        let host = &Host::new(&["x", "y"]);
        host.kernel.die(death);
        host.daemon(|node| async move {
            host.attach(&node, "x").await;
            let grown = node.grow(&id("x"), LARGER).await.unwrap();
            assert_eq!(grown.bytes, LARGER);
            node.grow(&id("x"), LARGER).await.expect("again it changes nothing");
            host.attach(&node, "y").await;
            assert_eq!(host.sectors_of("y", 1), SECTORS);
        });
        host.daemon(|node| async move {
            host.settle(&node).await;
            until(|| host.sectors_of("x", 1) == 2 * SECTORS).await;
            until(|| node.list()[0].attached.as_ref().is_some_and(|device| device.bytes == LARGER)).await;
            host.detach_all(&node).await;
            assert_eq!(host.attach(&node, "x").await.bytes, LARGER, "it is in the log");
        });
    }
}

/// The live map and the header are ahead of the record: the daemon died in between.
#[test]
fn a_volume_that_grew_without_its_record_is_recovered() {
    let host = &Host::new(&["x"]);
    let local = host.dirs.local_of(&id("x"));
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        node.grow(&id("x"), LARGER).await.unwrap();
    });
    let record = local.read_record().unwrap().unwrap();
    assert_eq!(record.sectors, 2 * SECTORS);
    local.write_record(&AttachedRecord { sectors: SECTORS, ..record }).unwrap();
    host.kernel.change(1, |known| known.sectors = SECTORS);
    host.daemon(|node| async move {
        host.settle(&node).await;
        assert_eq!(host.sectors_of("x", 1), SECTORS);
        assert_eq!(node.grow(&id("x"), LARGER).await.unwrap().bytes, LARGER);
        assert_eq!(host.sectors_of("x", 1), 2 * SECTORS);
    });
}

#[test]
fn a_growth_that_is_refused_changes_nothing() {
    let host = &Host::new(&["x"]);
    let local = &host.dirs.local_of(&id("x"));
    host.daemon(|node| async move {
        let x = &id("x");
        assert!(matches!(node.grow(x, LARGER).await, Err(NodeError::NotAttached(_))));
        host.attach(&node, "x").await;
        let too_large = node.grow(x, (MAX_SECTORS + 1) * SECTOR_BYTES).await.unwrap_err();
        assert!(too_large.to_string().starts_with("size: "), "{too_large}");
        for wrong in [0, LARGER + 1] {
            assert!(matches!(node.grow(x, wrong).await, Err(NodeError::Size(_))));
        }
        let shrinks = node.grow(x, SECTOR_BYTES).await.unwrap_err();
        assert!(shrinks.to_string().starts_with("size: volume x has 64 sectors"), "{shrinks}");
        host.kernel.refuse(&["features"]);
        let older = node.grow(x, LARGER).await.unwrap_err();
        assert!(older.to_string().contains("Linux 6.16"), "{older}");
        assert_eq!(local.read_record().unwrap().unwrap().sectors, SECTORS);
        host.kernel.refuse(&["resize"]);
        node.grow(x, LARGER).await.unwrap_err();
        assert_eq!(node.list()[0].attached.as_ref().unwrap().bytes, SECTORS * SECTOR_BYTES, "the device's");
        host.kernel.refuse(&[]);
        assert_eq!(node.grow(x, LARGER).await.unwrap().bytes, LARGER);
        host.detach_all(&node).await;
    });
}

/// Regression, found in review: a device larger than its record was not recovered by the next daemon.
#[test]
fn a_device_does_not_grow_without_a_written_record() {
    let host = &Host::new(&["x"]);
    let local = &host.dirs.local_of(&id("x"));
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        let spare = local.live_map_path().with_file_name("attached.new");
        fs::remove_file(&spare).unwrap();
        fs::create_dir(&spare).unwrap();
        for _ in 0..2 {
            node.grow(&id("x"), LARGER).await.unwrap_err();
            assert_eq!(
                (host.sectors_of("x", 1), local.read_record().unwrap().unwrap().sectors),
                (SECTORS, SECTORS)
            );
        }
        fs::remove_dir(&spare).unwrap();
        node.grow(&id("x"), LARGER).await.unwrap();
    });
    host.daemon(|node| async move {
        host.settle(&node).await;
        assert_eq!(host.sectors_of("x", 1), 2 * SECTORS);
    });
}

/// Regression, found in review: a caller that stopped waiting left its command, which followed a larger one.
#[test]
fn a_late_resize_never_shrinks_a_device() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.kernel.hold("resize", None);
        let grow = |bytes| {
            let node = node.clone();
            tokio::spawn(async move { node.grow(&id("x"), bytes).await })
        };
        let first = grow(LARGER);
        until(|| host.dirs.local_of(&id("x")).read_record().unwrap().unwrap().sectors == 2 * SECTORS).await;
        first.abort();
        drop(first.await);
        let second = grow(2 * LARGER);
        host.kernel.release();
        assert_eq!(second.await.unwrap().unwrap().bytes, 2 * LARGER);
        assert_eq!(host.sectors_of("x", 1), 4 * SECTORS);
    });
}
