use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use holdfast_ring::RingOptions;

use super::*;
use crate::{DeviceInfo, DeviceState, Expected, ForeignFeatures};

impl RingOperation for QueueCommand<()> {
    fn to_word(&self) -> Option<u64> {
        Some(self.tag.into())
    }

    fn from_word(word: u64) -> Self {
        Self { owner: (), queue_id: 0, tag: word as u16 }
    }
}

type TestRing = Ring<QueueCommand<()>>;

fn ring() -> TestRing {
    let options = RingOptions { submission_entries: 8, completion_entries: 8, files: 8, buffers: 0 };
    TestRing::new(&options).unwrap()
}

/// Creates a queue of two tags with user copy. `file` replaces the character device: its descriptors are
/// zeros, an empty read, and it refuses each command.
fn queue(ring: &mut TestRing, file: File, has_batches: bool) -> Queue<()> {
    let info = DeviceInfo {
        id: 0,
        state: DeviceState::Live,
        queues: 1,
        depth: 2,
        max_io_bytes: 4096,
        transport: Some(Transport::UserCopy),
        server_pid: -1,
        tag: 0,
        has_batches,
        foreign: ForeignFeatures::among(0),
    };
    let device = Device::of(&info, 1, &Expected { tag: 0, sectors: 1 }).unwrap();
    file.set_len(1 << 20).unwrap();
    let spec = QueueSpec { owner: (), queue_id: 0 };
    Queue::open(ring, &device, &CharDevice::of(file), spec).unwrap()
}

/// Returns the numbers of the commands that end within this time.
fn ended(ring: &mut TestRing, within: Duration) -> Vec<u16> {
    let mut completions = Vec::new();
    ring.submit_and_wait(Some(within), &mut completions).unwrap();
    completions.into_iter().map(|completion| ring.end(completion).unwrap().operation.tag).collect()
}

const FETCH: u16 = 0;
const PREPARE: u16 = 1;
const FIRST_COMMIT: u16 = 2;
const SOON: Duration = Duration::from_secs(20);

#[test]
fn answers_are_committed_together_and_end_no_wait() {
    let mut ring = ring();
    let mut queue = queue(&mut ring, tempfile::tempfile().unwrap(), true);
    queue.arm(&mut ring);
    let mut armed = ended(&mut ring, SOON);
    armed.sort_unstable();
    assert_eq!(armed, [FETCH, PREPARE]);
    let prepared = queue.on_batch_completion(&mut ring, PREPARE, IoResult(0), false);
    assert!(matches!(prepared, BatchEvent::Done), "{prepared:?}");
    // The buffer of the fetch is zeros: each piece of two bytes is tag 0.
    for _ in 0..2 {
        let fetched = queue.on_batch_completion(&mut ring, FETCH, IoResult(2), true);
        let BatchEvent::Fetched(mut tags) = fetched else { panic!("{fetched:?}") };
        let request = queue.next_fetched(&mut ring, &mut tags).unwrap();
        assert!(queue.next_fetched(&mut ring, &mut tags).is_none());
        queue.complete(&mut ring, request, Ok(()));
    }
    assert_eq!((queue.requests_with_owner(), queue.commands_with_kernel()), (0, 2), "a fetch, and a commit");
    let due = [ring.next_reminder(), ring.next_reminder()].map(|reminder| reminder.is_some());
    assert_eq!(due, [true, false], "one reminder of both answers");

    queue.commit(&mut ring);
    let (within, begin) = (Duration::from_millis(50), Instant::now());
    assert_eq!(ended(&mut ring, within), [FIRST_COMMIT]);
    assert!(begin.elapsed() >= within, "its completion ended the wait");
    let committed = queue.on_batch_completion(&mut ring, FIRST_COMMIT, IoResult(16), false);
    assert!(matches!(committed, BatchEvent::Done), "{committed:?}");
    assert_eq!(queue.commands_with_kernel(), 1);
}

/// The kernel accepts only a part of the list.
#[test]
fn a_commit_of_a_part_of_the_answers_is_a_failure() {
    let mut ring = ring();
    let mut queue = queue(&mut ring, tempfile::tempfile().unwrap(), true);
    queue.arm(&mut ring);
    for _ in 0..2 {
        let fetched = queue.on_batch_completion(&mut ring, FETCH, IoResult(2), true);
        let BatchEvent::Fetched(mut tags) = fetched else { panic!("{fetched:?}") };
        let request = queue.next_fetched(&mut ring, &mut tags).unwrap();
        queue.complete(&mut ring, request, Ok(()));
    }
    queue.commit(&mut ring);
    // The first list contains the tags.
    let failed = queue.on_batch_completion(&mut ring, FIRST_COMMIT + 1, IoResult(8), false);
    assert!(matches!(failed, BatchEvent::Failed { command: 3, errno: KernelErrno::EIO }), "{failed:?}");
}

/// Found by reading: after a fetch failed for lack of memory, its queue sent no other.
#[test]
fn a_fetch_is_sent_again_unless_the_device_stops() {
    let mut ring = ring();
    let mut queue = queue(&mut ring, tempfile::tempfile().unwrap(), true);
    queue.arm(&mut ring);
    assert_eq!(ended(&mut ring, SOON).len(), 2);
    for errno in [libc::ENOBUFS, libc::ENOMEM] {
        let fetched = queue.on_batch_completion(&mut ring, FETCH, IoResult(-errno), false);
        let BatchEvent::Fetched(mut tags) = fetched else { panic!("{fetched:?}") };
        assert!(queue.next_fetched(&mut ring, &mut tags).is_none());
        assert_eq!((ended(&mut ring, SOON), queue.commands_with_kernel()), (vec![FETCH], 2), "errno {errno}");
    }
    let stopped = queue.on_batch_completion(&mut ring, FETCH, IoResult(sys::UBLK_IO_RES_ABORT), false);
    assert!(matches!(stopped, BatchEvent::Aborted), "{stopped:?}");
    assert_eq!((ring.operations(), queue.commands_with_kernel()), (0, 1));
}

#[test]
fn tags_that_come_while_a_queue_is_draining_are_left() {
    let mut ring = ring();
    let mut queue = queue(&mut ring, tempfile::tempfile().unwrap(), true);
    queue.arm(&mut ring);
    assert_eq!(ended(&mut ring, SOON).len(), 2);
    queue.drain();
    let fetched = queue.on_batch_completion(&mut ring, FETCH, IoResult(4), true);
    let BatchEvent::Fetched(mut tags) = fetched else { panic!("{fetched:?}") };
    assert!(queue.next_fetched(&mut ring, &mut tags).is_none());
    let used_up = queue.on_batch_completion(&mut ring, FETCH, IoResult(-libc::ENOBUFS), false);
    assert!(matches!(used_up, BatchEvent::Fetched(_)), "{used_up:?}");
    assert_eq!((queue.requests_with_owner(), ring.operations()), (0, 0), "no fetch is sent again");
}

/// Regression: a queue dropped with requests leaked the character device with their memory, so that the
/// kernel quiesced the device only when the process exited.
#[test]
fn a_dropped_queue_closes_its_character_device() {
    let mut ring = ring();
    let file = tempfile::tempfile().unwrap();
    let inode = file.metadata().unwrap().ino();
    let uses = || {
        let files = fs::read_dir("/proc/self/fd").unwrap().flatten();
        files.filter(|file| fs::metadata(file.path()).is_ok_and(|data| data.ino() == inode)).count()
    };
    let mut queue = queue(&mut ring, file, false);
    queue.arm(&mut ring);
    // As the kernel completes commands whose tags have requests.
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
