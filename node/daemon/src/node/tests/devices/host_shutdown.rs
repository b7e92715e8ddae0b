//! Shutdown of a node together with its host.

use std::collections::BTreeSet;

use holdfast_memory::PageCodec;

use super::*;
use crate::node::local::owner::Owner;
use crate::node::run_blocking::{calls_end, run_blocking};
use crate::node::{CALLS_END_WITHIN, MemoryAttach};

const WITHIN: Duration = Duration::from_millis(300);

/// Returns the devices of the host's volumes, by state.
fn ours(host: &Host) -> Vec<DeviceState> {
    let (known, tags) = (host.kernel.devices(), ["x", "y"].map(|name| host.dirs.tag(&id(name), 1)));
    known.into_values().filter(|info| tags.contains(&info.tag)).map(|info| info.state).collect()
}

async fn end_with_the_host(node: &Node) {
    let left = node.release_all(WITHIN).await;
    node.clone().shutdown().await;
    left.stop().await;
}

/// Regression: an orderly restart of a host hung: the devices were left to a daemon that never started, and
/// their mounts waited for them.
#[test]
fn no_device_waits_for_the_next_daemon() {
    let host = &Host::new(&["x", "y"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.attach(&node, "y").await;
        let y = host.device_of(host.dirs.tag(&id("y"), 1)).unwrap().id;
        host.kernel.change(y, |known| known.is_used = true);
        end_with_the_host(&node).await;
        assert_eq!(ours(host), [DeviceState::Dead], "x is detached, the device of y is stopped");
        assert!(host.dirs.local_of(&id("x")).read_record().unwrap().is_none());
    });
    assert_eq!(host.kernel.violations(), Vec::<String>::new());
    // Another daemon on the same host, or after the reboot.
    host.daemon(|node| async move {
        for volume in ["x", "y"] {
            host.attach(&node, volume).await;
        }
        host.check(&node).await;
        host.detach_all(&node).await;
    });
}

/// Found in review: devices of memory volumes, of volumes that could not be recovered, and of those without a
/// record were left to the next daemon, and the host's shutdown waited for them.
#[test]
fn no_device_of_this_installation_waits_for_the_next_daemon() {
    let host = &Host::new(&["x", "y"]);
    host.daemon(|node| async move {
        for volume in ["x", "y"] {
            host.attach(&node, volume).await;
            let device = host.device_of(host.dirs.tag(&id(volume), 1)).unwrap().id;
            host.kernel.change(device, |known| known.is_used = true);
        }
    });
    fs::remove_file(host.dirs.run.path().join("volumes.d/x/attached")).unwrap();
    fs::write(host.dirs.local_of(&id("y")).live_map_path(), b"damaged").unwrap();
    host.daemon(|node| async move {
        let others: BTreeSet<u32> = host.kernel.devices().into_keys().collect();
        for (volume, is_used) in [("used", true), ("unused", false)] {
            node.attach_memory(in_memory(volume)).await.unwrap();
            let device = host.kernel.devices().into_keys().find(|id| !others.contains(id));
            if is_used {
                host.kernel.change(device.unwrap(), |known| known.is_used = true);
            }
        }
        end_with_the_host(&node).await;
        let waiting = host.kernel.devices().into_values().filter(|info| info.state != DeviceState::Dead);
        assert_eq!(waiting.map(|info| info.id).collect::<Vec<_>>(), [2], "it is of another installation");
    });
}

fn in_memory(volume: &str) -> MemoryAttach {
    let (bytes, codec) = (SECTORS * SECTOR_BYTES, PageCodec::Lz4);
    let (limit_bytes, spill_bytes, owner) = (None, None, None);
    MemoryAttach { volume: id(volume), bytes, limit_bytes, spill_bytes, codec, epoch: 0, owner }
}

#[test]
fn a_device_that_is_unmounted_meanwhile_is_detached() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.kernel.change(1, |known| known.is_used = true);
        let unmounted = async {
            tokio::time::sleep(WITHIN / 10).await;
            host.kernel.change(1, |known| known.is_used = false);
        };
        tokio::join!(node.release_all(LIMIT), unmounted);
        assert_eq!(ours(host), []);
        assert!(node.list().is_empty());
    });
}

/// Regression: writes of a file system in use, waiting for its limit, were lost with the host.
#[test]
fn a_host_shutdown_lifts_limits_of_volumes_in_use() {
    let host = &Host::new(&["x"]);
    let limits = IoLimits { iops: Some(10), bytes_per_second: None };
    host.daemon(|node| async move {
        node.attach(AttachRequest { limits, ..host.request("x") }).await.unwrap();
        host.kernel.change(1, |known| known.is_used = true);
        let left = node.release_all(WITHIN).await;
        assert_eq!(node.list().remove(0).delays.limits.limits, IoLimits::NONE);
        let record = host.dirs.local_of(&id("x")).read_record().unwrap().unwrap();
        assert_eq!(record.limits.map(IoLimits::from), Some(limits), "the next daemon has them");
        node.clone().shutdown().await;
        left.stop().await;
    });
}

#[test]
fn an_unresponsive_store_delays_no_shutdown() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.bucket.close("volumes/");
        end_with_the_host(&node).await;
        assert!(ours(host).iter().all(|state| *state == DeviceState::Dead), "{:?}", ours(host));
        host.bucket.open();
    });
}

/// Regression, found in review: a call on local files that never ended, such as of a hanging disk, blocked
/// the host's shutdown; and while one has not ended, no other daemon may follow.
#[test]
fn a_host_shutdown_waits_for_no_stuck_call() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let call = tokio::spawn(run_blocking(move || ends.recv().is_err()));
        while calls_end(Duration::ZERO).await {
            tokio::task::yield_now().await;
        }
        let begun = std::time::Instant::now();
        node.shutdown_with_host().await;
        assert!(begun.elapsed() < CALLS_END_WITHIN / 2, "{:?}", begun.elapsed());
        drop(end);
        assert!(call.await.unwrap());
        let next = Owner::wait_with(host.dirs.config(), host.kernel.clone());
        assert!(tokio::time::timeout(WITHIN, next).await.is_err(), "the lock is the process's until it ends");
    });
}
