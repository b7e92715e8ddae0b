#![allow(unsafe_code)] // mmap of files of the test

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use holdfast_memory::pool::{PoolExtension, SLAB_BYTES};
use holdfast_memory::{HEAD_BYTES, MemoryGrowth, MemoryVolume, PAGE_BYTES, PageCodec, TableHead};
use holdfast_types::Epoch;
use holdfast_ublk::{DeviceRequest, Operation};
use tokio::sync::oneshot;

use super::spill_queue::QueuedRequest;
use super::*;
use crate::label::Label;
use crate::limit::MEMORY_TURN_BYTES;
use crate::published_status::ServedCounts;

const HEAD: TableHead = TableHead { pages: 256, slabs: 8, codec: PageCodec::Lz4, nonce: 1, spill_pages: 0 };

/// Opens the files in this directory, creating those that do not exist.
fn open(dir: &Path) -> (MemoryVolume<MemoryFiles>, File) {
    let file = |name: &str, len: usize| {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(false).open(dir.join(name)).unwrap();
        file.set_len(len as u64).unwrap();
        file
    };
    let table = file("table", HEAD_BYTES + 8 * 256);
    let slabs = file("slabs", 8 * SLAB_BYTES);
    let seen = slabs.try_clone().unwrap();
    // SAFETY: only this test uses the files, on a tmpfs with memory for them.
    let files = unsafe { MemoryFiles::map(&table, slabs, 8) }.unwrap();
    (MemoryVolume::open(files, &HEAD).unwrap(), seen)
}

/// The files are as a killed daemon leaves them: not synced, not closed.
#[test]
fn a_successor_finds_the_same_pages_and_holes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut codecs = Codecs::default();
    let text: Vec<u8> = (0..64 * PAGE_BYTES).map(|at| (at / 7 % 251) as u8 ^ (at / 4096) as u8).collect();
    let (volume, slabs) = open(dir.path());
    volume.write(&mut codecs, 100, &text).unwrap();
    let allocated = || slabs.metadata().unwrap().blocks() * 512;
    assert!(allocated() > 0);
    std::mem::forget(volume);
    let (volume, _) = open(dir.path());
    let mut read = vec![1; text.len()];
    volume.read(&mut codecs, 100, &mut read).unwrap();
    assert!(read == text);
    volume.discard(0, 256).unwrap();
    assert!(allocated() <= SLAB_BYTES as u64, "all but the spare slab is free");
    drop(open(dir.path()));
    assert_eq!(allocated(), 0);
}

/// Threads read and write through the previous mapping until the lock gives them the new one.
#[test]
fn a_volume_grows_while_threads_use_it() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (volume, _) = open(dir.path());
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let volume = &volume;
            scope.spawn(move || {
                let mut codecs = Codecs::default();
                let mut read = [0; 2 * PAGE_BYTES];
                for round in 0..400_u64 {
                    // No page compresses, so no sequence of overwrites needs more slabs than there are at
                    // first.
                    let byte = |at: u64| {
                        let mixed = (at + 8192 * (round + 400 * thread)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
                        ((mixed ^ mixed >> 32).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 56) as u8
                    };
                    let text: Vec<u8> = (0..2 * PAGE_BYTES as u64).map(byte).collect();
                    let first = thread * 100 + round % 50;
                    volume.write(&mut codecs, first, &text).unwrap();
                    volume.read(&mut codecs, first, &mut read).unwrap();
                    assert!(read == text[..], "thread {thread} round {round}");
                }
            });
        }
        let mut from = HEAD.slabs;
        for to in [9, 12, 40] {
            let file = |name: &str, len: usize| {
                let file = File::options().read(true).write(true).open(dir.path().join(name)).unwrap();
                file.set_len(len as u64).unwrap();
                file
            };
            let pages = HEAD.pages + u64::from(to);
            let table = file("table", HEAD_BYTES + 8 * usize::try_from(pages).unwrap());
            let slabs = file("slabs", to as usize * SLAB_BYTES);
            // SAFETY: only this test uses the files; the volume uses one mapping at a time.
            let memory = unsafe { MemoryFiles::map(&table, slabs, to) }.unwrap();
            let growth = MemoryGrowth { memory, pages, slabs: PoolExtension::new(from, to), spill_pages: 0 };
            drop(volume.grow(growth));
            from = to;
        }
    });
    assert_eq!(volume.figures().limit_bytes, 40 * SLAB_BYTES as u64);
    assert_eq!(volume.figures().content_pages(), 2 * 51);
}

/// Two tables hand out the same places, and a message or a completion must not find the other volume.
#[test]
fn the_key_of_a_memory_volume_is_unique() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut volumes = MemoryVolumes::default();
    let options =
        holdfast_ring::RingOptions { submission_entries: 8, completion_entries: 8, files: 8, buffers: 0 };
    let mut ring = VolumeRing::new(&options).unwrap();
    let new = NewMemoryVolume {
        volume: Arc::new(open(dir.path()).0),
        share: QueueShare::ALL,
        spill_file: None,
        label: Arc::new(Label::new("scratch".parse().unwrap(), Epoch(1))),
        published: Arc::new(PublishedMemory::new(1)),
        place: Box::new(()),
    };
    let key = volumes.add(&mut ring, new).unwrap();
    let other = without_mark(key);
    assert!(is_memory(key) && !is_memory(other));
    let command = |owner| QueueCommand { owner, queue_id: 0, tag: 0 };
    assert!(!volumes.on_command(&mut ring, command(other), IoResult(0), 0));
    assert!(!volumes.on_command(&mut ring, command(key), IoResult(0), 0), "it has no queue");
    let (done, mut closed) = oneshot::channel();
    volumes.close(&mut ring, key, done);
    assert!(matches!(closed.try_recv(), Ok(Ok(()))));
    assert!(volumes.remove(&mut ring, key).is_ok());
    assert!(matches!(volumes.remove(&mut ring, key), Err(RingRefusal::Gone)));
}

/// Regression, found in review: an older kernel noticed the exit of a thread with all tags of a queue only by
/// the time-out of a request, and the requests of a memory volume waited 30 s for the next daemon.
#[test]
fn requests_are_answered_before_an_older_kernel_loses_the_thread() {
    let key = VolumeKey { index: MEMORY, serial: 1 };
    let request = |tag| {
        let request = DeviceRequest::new(tag, Operation::Write, 0, 32);
        (key, QueuedRequest { queue: 0, request, began_us: None })
    };
    for leaves_waiting in [true, false] {
        let mut volumes = MemoryVolumes::default();
        let (_, first) = volumes.turn.admit(request(0), MEMORY_TURN_BYTES).expect("it has its turn");
        first.request.leave_to_successor();
        assert!(volumes.turn.admit(request(1), 1).is_none(), "it waits for the next turn");
        volumes.drain(leaves_waiting);
        assert_eq!(volumes.is_still(), leaves_waiting);
        for (_, waiting) in volumes.turn.leave() {
            waiting.request.leave_to_successor();
        }
        assert!(volumes.is_still());
    }
}

/// Requests of a queue reached another one, and the counts of a second thread were lost.
#[test]
fn threads_share_the_queues_of_a_device_and_their_counts() {
    for (queues, threads) in [(1, 1), (4, 4), (4, 1), (4, 3), (5, 2)] {
        let shares: Vec<Vec<u16>> =
            QueueShare::each(threads).map(|share| share.queues(queues).collect()).collect();
        let mut all = shares.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..queues), "{shares:?}");
        for (share, of_thread) in QueueShare::each(threads).zip(&shares) {
            assert!(of_thread.iter().enumerate().all(|(place, queue)| share.place(*queue) == place));
        }
    }
    let published = PublishedMemory::new(2);
    for (thread, reads) in [(0, 3), (1, 4)] {
        published.show_served(thread, ServedCounts { reads, written_bytes: 1, ..ServedCounts::default() });
    }
    let counted = ServedCounts { reads: 7, written_bytes: 2, ..ServedCounts::default() };
    assert_eq!(published.served(), counted);
}
