use holdfast_ublk::{Device, DeviceInfo, DeviceState, Expected, ForeignFeatures, Transport};

use super::*;

pub(super) fn device() -> Device {
    let info = DeviceInfo {
        id: 7,
        state: DeviceState::Live,
        queues: 1,
        depth: 2,
        max_io_bytes: 4096,
        transport: Some(Transport::UserCopy),
        server_pid: -1,
        tag: 0,
        foreign: ForeignFeatures::among(0),
    };
    Device::of(&info, 1, &Expected { tag: 0, sectors: 1 }).unwrap()
}

fn start() -> (RingHandle, JoinHandle<()>) {
    holdfast_ring::raise_open_file_limit().unwrap();
    let file = || tempfile::tempfile().unwrap();
    spawn(0, file(), file()).unwrap()
}

/// The answer was that the ring is lost, which sends an administrator to restart the daemon for nothing.
#[tokio::test]
async fn a_volume_that_is_gone_is_no_lost_ring() {
    let (ring, thread) = start();
    let key = VolumeKey { index: 0, serial: 7 };
    let queues = Box::new(|_: &mut Ring, _| panic!("there is no volume to open them for"));
    let device = device();
    let opened = ring.call(|done| Message::Open { key, device, queues, done }).await.unwrap();
    assert!(matches!(opened, Err(RingRefusal::Gone)));
    let closed = ring.call(|done| Message::Close { key, done }).await.unwrap();
    assert!(matches!(closed, Err(RingRefusal::Gone)));
    let removed = ring.call(|done| Message::Remove { key, done }).await.unwrap();
    assert!(matches!(removed, Err(RingRefusal::Gone)));
    ring.send(Message::Leave).await;
    thread.join().unwrap();
}
