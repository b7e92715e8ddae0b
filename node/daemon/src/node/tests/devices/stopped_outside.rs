//! Devices that another program stops or deletes.

use holdfast_memory::PageCodec;

use super::*;
use crate::node::MemoryAttach;

/// Regression, found in review: a volume stayed attached after another program stopped its device, or deleted
/// it: the kernel keeps such a device, with its tag, until the daemon closes it.
#[test]
fn a_volume_whose_device_was_stopped_is_unserved() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.kernel.change(1, |known| known.info.state = DeviceState::Dead);
        let gone = node.check_served(&id("x")).await.unwrap_err();
        assert!(matches!(gone, NodeError::Device(ControlError::NotFound { id: 1 })), "{gone}");
        assert_eq!(state_of(&node, "x"), Some(VolumeState::Unserved));
        assert!(!node.check_served(&id("x")).await.unwrap());
        node.detach(&id("x")).await.unwrap();
        host.attach(&node, "x").await;
        assert!(node.check_served(&id("x")).await.unwrap());
        // The next attach notices it, too.
        host.kernel.change(1, |known| known.info.state = DeviceState::Dead);
        node.attach(host.request("x")).await.unwrap_err();
        assert_eq!(state_of(&node, "x"), Some(VolumeState::Unserved));
        node.detach(&id("x")).await.unwrap();
        host.detach_all(&node).await;
    });
}

/// Regression, found in review: the same for a memory volume. Its ring thread notices the stop as well.
#[test]
fn a_memory_volume_whose_device_was_stopped_is_unserved() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        let scratch = || MemoryAttach {
            volume: id("scratch"),
            bytes: SECTORS * SECTOR_BYTES,
            limit_bytes: None,
            spill_bytes: None,
            codec: PageCodec::Lz4,
            epoch: 0,
            owner: None,
        };
        for is_noticed_by_ring in [false, true] {
            node.attach_memory(scratch()).await.unwrap();
            assert!(node.check_served(&id("scratch")).await.unwrap());
            host.kernel.change(1, |known| known.info.state = DeviceState::Dead);
            if is_noticed_by_ring {
                node.0.memory.published(&id("scratch")).unwrap().device_ended();
            } else {
                node.check_served(&id("scratch")).await.unwrap_err();
            }
            assert_eq!(state_of(&node, "scratch"), Some(VolumeState::Unserved));
            node.detach_memory(&id("scratch")).await.unwrap();
        }
        host.detach_all(&node).await;
    });
}
