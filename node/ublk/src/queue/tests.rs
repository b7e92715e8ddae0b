use std::fs;
use std::os::unix::fs::MetadataExt;

use holdfast_ring::RingOptions;

use super::*;
use crate::{DeviceInfo, DeviceState, Expected, ForeignFeatures};

impl RingOperation for QueueCommand<()> {
    fn to_word(&self) -> Option<u64> {
        None
    }

    fn from_word(word: u64) -> Self {
        unreachable!("no command is the word {word}")
    }
}

/// A queue that was dropped with requests kept the character device open with their memory, so that the
/// kernel quiesced the device only when the process had ended.
#[test]
fn a_dropped_queue_closes_its_character_device() {
    let options = RingOptions { submission_entries: 8, completion_entries: 8, files: 8, buffers: 0 };
    let mut ring = Ring::<QueueCommand<()>>::new(&options).unwrap();
    let info = DeviceInfo {
        id: 0,
        state: DeviceState::Live,
        queues: 1,
        depth: 2,
        max_io_bytes: 4096,
        transport: Some(Transport::UserCopy),
        server_pid: -1,
        tag: 0,
        has_batches: false,
        foreign: ForeignFeatures::among(0),
    };
    let device = Device::of(&info, 1, &Expected { tag: 0, sectors: 1 }).unwrap();
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let inode = file.metadata().unwrap().ino();
    let uses = || {
        let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
        files.filter(|file| fs::metadata(file.path()).is_ok_and(|data| data.ino() == inode)).count()
    };
    let char_device = CharDevice::of(file);
    let spec = QueueSpec { owner: (), queue_id: 0 };
    let mut queue = Queue::open(&mut ring, &device, &char_device, spec).unwrap();
    drop(char_device);
    queue.arm(&mut ring);
    // What the kernel says when it has requests; the descriptors are zeros, which is a read of nothing.
    let mut requests = (0..2).map(|tag| {
        let event = queue.on_completion(&mut ring, tag, IoResult(0));
        let QueueEvent::Request(request) = event else { panic!("{event:?}") };
        request
    });
    let (parked, moving) = (requests.next().unwrap(), requests.next().unwrap());
    drop(requests);
    queue.leave(parked);
    assert_eq!((queue.requests_with_owner(), uses()), (1, 1));
    moving.leave_to_successor();
    drop(queue);
    assert_eq!(uses(), 0);
}
