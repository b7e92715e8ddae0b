use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use io_uring::opcode;
use io_uring::types::Fd;

use crate::{
    Ended, FileRange, FileSlot, HeapBuffer, KernelErrno, ProvidedBuffer, RingError, RingOperation,
    RingOptions,
};

/// A ring whose operations are numbers.
type Ring = crate::Ring<u16>;

impl RingOperation for u16 {
    /// Returns numbers from 1,000 on as words.
    fn to_word(&self) -> Option<u64> {
        (*self >= 1000).then_some((1 << (Self::WORD_BITS - 1)) | u64::from(*self))
    }

    fn from_word(word: u64) -> Self {
        word as Self
    }
}

const SOON: Option<Duration> = Some(Duration::from_secs(20));

fn ring(submission_entries: u32) -> Ring {
    let options = RingOptions { submission_entries, completion_entries: 64, files: 4, buffers: 8 };
    Ring::new(&options).unwrap()
}

fn open(ring: &mut Ring) -> (File, FileSlot) {
    let file = tempfile::tempfile().unwrap();
    let slot = ring.register_file(file.as_fd()).unwrap();
    (file, slot)
}

fn wait_for(ring: &mut Ring, count: usize) -> Vec<Ended<u16>> {
    let mut completions = Vec::new();
    while completions.len() < count {
        let before = completions.len();
        assert!(!ring.submit_and_wait(SOON, &mut completions).unwrap(), "no wake-up");
        assert!(completions.len() > before, "{count} operations end, {before} have");
    }
    completions.into_iter().map(|completion| ring.end(completion).unwrap()).collect()
}

fn wait_for_one(ring: &mut Ring) -> Ended<u16> {
    let mut ended = wait_for(ring, 1);
    assert_eq!(ended.len(), 1);
    ended.remove(0)
}

#[test]
fn what_was_written_is_read_back_and_buffers_return() {
    let mut ring = ring(8);
    let (file, slot) = open(&mut ring);
    ring.write(slot, 8192, HeapBuffer::from_slice(&[7; 4096]), 1);
    let written = wait_for_one(&mut ring);
    assert_eq!((written.operation, written.outcome.exactly(4096)), (1, Ok(())));
    assert_eq!(written.buffer.unwrap()[..], [7; 4096]);

    ring.sync_data(slot, 2);
    assert_eq!(wait_for_one(&mut ring).outcome.exactly(0), Ok(()));

    ring.read(slot, 4096, HeapBuffer::zeroed(8192), 3);
    let read = wait_for_one(&mut ring);
    assert_eq!(read.outcome.exactly(8192), Ok(()));
    let back = read.buffer.unwrap();
    assert_eq!((&back[..4096], &back[4096..]), (&[0; 4096][..], &[7; 4096][..]));
    assert_eq!(file.metadata().unwrap().len(), 12288);
}

/// A second completion of an operation would end the next one that has its entry.
#[test]
fn a_late_completion_ends_no_other_operation() {
    let mut ring = ring(8);
    let mut completions = Vec::new();
    ring.no_operation(1);
    ring.submit_and_wait(SOON, &mut completions).unwrap();
    assert_eq!(ring.end(completions[0]).unwrap().operation, 1);
    ring.no_operation(2);
    assert!(ring.end(completions[0]).is_none());
    assert_eq!((ring.late_completions(), ring.operations()), (1, 1));
    assert_eq!(wait_for_one(&mut ring).operation, 2);
    assert_eq!((ring.max_operations(), ring.operations()), (1, 0));
}

#[test]
fn words_and_entries_of_the_table_come_back_in_order() {
    let mut ring = ring(8);
    let numbers = [1, 1000, 2, 65535];
    numbers.into_iter().for_each(|number| ring.no_operation(number));
    assert_eq!(ring.operations(), 4);
    let ended: Vec<u16> = wait_for(&mut ring, 4).iter().map(|ended| ended.operation).collect();
    assert_eq!(ended, numbers);
    assert_eq!((ring.operations(), ring.max_operations(), ring.late_completions()), (0, 4, 0));
}

#[test]
fn punching_zeroes_a_range_and_allocating_takes_space() {
    let mut ring = ring(8);
    let (file, slot) = open(&mut ring);
    file.write_all_at(&[1; 3 * 65536], 0).unwrap();
    file.sync_all().unwrap();
    ring.punch_hole(slot, FileRange { offset_bytes: 65536, len_bytes: 65536 }, 1);
    assert_eq!(wait_for_one(&mut ring).outcome.exactly(0), Ok(()));
    let mut contents = Vec::new();
    (&file).read_to_end(&mut contents).unwrap();
    assert_eq!(contents.len(), 3 * 65536);
    assert!(contents[65536..2 * 65536].iter().all(|&byte| byte == 0));
    assert!(contents[..65536].iter().chain(&contents[2 * 65536..]).all(|&byte| byte == 1));

    let before = file.metadata().unwrap().blocks();
    ring.allocate(slot, FileRange { offset_bytes: 1 << 20, len_bytes: 1 << 20 }, 2);
    assert_eq!(wait_for_one(&mut ring).outcome.exactly(0), Ok(()));
    let after = file.metadata().unwrap();
    assert!(after.blocks() >= before + 2048, "a MiB more is allocated");
    assert_eq!(after.len(), 3 * 65536, "the size stays");
}

#[test]
fn more_operations_than_the_queue_holds_all_end() {
    let mut ring = ring(4);
    let (file, slot) = open(&mut ring);
    for tag in 0..100 {
        ring.write(slot, u64::from(tag) * 512, HeapBuffer::from_slice(&[tag as u8; 512]), tag);
    }
    let mut tags: Vec<u16> = wait_for(&mut ring, 100)
        .into_iter()
        .map(|ended| {
            ended.outcome.exactly(512).unwrap();
            ended.buffer.unwrap();
            ended.operation
        })
        .collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..100).collect::<Vec<_>>());
    let mut contents = vec![0; 51200];
    file.read_exact_at(&mut contents, 0).unwrap();
    assert!(contents.chunks(512).zip(0..).all(|(chunk, tag)| chunk.iter().all(|&byte| byte == tag)));
}

#[test]
fn failed_and_short_operations_are_distinguished_from_success() {
    let mut ring = ring(8);
    let (file, slot) = open(&mut ring);
    file.write_all_at(&[9; 6000], 0).unwrap();
    ring.read(slot, 4096, HeapBuffer::zeroed(4096), 1);
    let short = wait_for_one(&mut ring);
    assert_eq!(
        (short.outcome.result(), short.outcome.exactly(4096)),
        (Ok(6000 - 4096), Err(KernelErrno::EIO))
    );

    ring.unregister_file(slot).unwrap();
    ring.read(slot, 0, HeapBuffer::zeroed(4096), 2);
    let failed = wait_for_one(&mut ring);
    assert_eq!(failed.outcome.exactly(4096), Err(KernelErrno::new(libc::EBADF)));
    assert!(failed.buffer.is_some(), "the buffer comes back from a failure too");
}

#[test]
fn another_thread_wakes_the_wait_each_time() {
    let mut ring = ring(8);
    let mut completions = Vec::new();
    for _ in 0..100 {
        let waker = ring.waker();
        let thread = std::thread::spawn(move || waker.wake());
        let begin = Instant::now();
        while !ring.submit_and_wait(SOON, &mut completions).unwrap() {
            assert!(begin.elapsed() < Duration::from_secs(20), "a wake was lost");
        }
        thread.join().unwrap();
    }
    assert_eq!(completions, [], "a wake is no completion of the owner's");
}

#[test]
fn a_wait_ends_at_its_limit() {
    let mut ring = ring(8);
    let begin = Instant::now();
    let woken = ring.submit_and_wait(Some(Duration::from_millis(30)), &mut Vec::new()).unwrap();
    assert!(!woken && begin.elapsed() >= Duration::from_millis(30));
}

#[test]
fn full_tables_are_refused_and_freed_slots_serve_again() {
    let mut ring = ring(8);
    let slots: Vec<_> = (0..4).map(|_| open(&mut ring)).collect();
    let file = tempfile::tempfile().unwrap();
    let refused = ring.register_file(file.as_fd()).unwrap_err();
    assert!(matches!(refused, RingError::FilesExhausted { capacity: 4 }));
    ring.unregister_file(slots[2].1).unwrap();
    assert_eq!(ring.register_file(file.as_fd()).unwrap(), slots[2].1);

    let range = ring.reserve_buffers(8).unwrap();
    assert!(matches!(ring.reserve_buffers(9), Err(RingError::BuffersExhausted { wanted: 9, capacity: 8 })));
    assert_eq!(ring.reserve_buffers(3).unwrap().index(0), range.index(0), "they share slots");
    ring.release_buffers(range);
}

/// Reader of a pipe into a provided buffer, piece by piece, as an operation that continues.
struct Pieces {
    ring: Ring,
    buffer: ProvidedBuffer,
    from: OwnedFd,
    pipe: File,
}

impl Pieces {
    const OPERATION: u16 = 1000;

    fn new(completion_entries: u32, len_bytes: usize) -> Self {
        let options = RingOptions { submission_entries: 4, completion_entries, files: 4, buffers: 0 };
        let mut ring = Ring::new(&options).unwrap();
        let buffer = ring.provide_buffer(len_bytes).unwrap();
        let (from, pipe) = std::io::pipe().unwrap();
        let mut pieces = Self { ring, buffer, from: from.into(), pipe: OwnedFd::from(pipe).into() };
        pieces.read();
        pieces
    }

    fn read(&mut self) {
        let read = opcode::ReadMulti::new(Fd(self.from.as_raw_fd()), 0, self.buffer.group()).build();
        // SAFETY: the entry names no memory but the provided buffer.
        unsafe { self.ring.push(read, Self::OPERATION) };
    }

    fn write(&mut self, numbers: &[u16]) {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        self.pipe.write_all(&bytes).unwrap();
    }

    /// Returns at least `count` numbers, and the number of times that the buffer was refilled.
    fn numbers(&mut self, count: usize) -> (Vec<u16>, u32) {
        let (mut numbers, mut refills) = (Vec::new(), 0);
        let mut completions = Vec::new();
        while numbers.len() < count {
            completions.clear();
            self.ring.submit_and_wait(SOON, &mut completions).unwrap();
            assert!(!completions.is_empty(), "{count} numbers come, {} have", numbers.len());
            for completion in &completions {
                let ended = self.ring.end(*completion).unwrap();
                match ended.outcome.result() {
                    Ok(bytes) => {
                        let piece = self.buffer.take(bytes);
                        numbers.extend(piece.step_by(2).map(|at| self.buffer.number_at(at)));
                    }
                    Err(errno) => {
                        assert_eq!((errno, completion.continues()), (KernelErrno::ENOBUFS, false));
                        self.buffer.refill();
                        refills += 1;
                    }
                }
                if !completion.continues() {
                    self.read();
                }
            }
        }
        (numbers, refills)
    }
}

#[test]
fn a_provided_buffer_is_filled_piece_by_piece_and_again() {
    let mut pieces = Pieces::new(64, 64);
    assert_eq!(pieces.ring.operations(), 1);
    let mut refills = 0;
    for first in (0..300).step_by(5) {
        let written: Vec<u16> = (first..first + 5).collect();
        pieces.write(&written);
        let (numbers, refilled) = pieces.numbers(5);
        assert_eq!(numbers, written);
        refills += refilled;
        assert_eq!(pieces.ring.operations(), 1, "it continues, or was sent again");
    }
    // 600 bytes in a buffer of 64.
    assert!((8..=10).contains(&refills), "{refills}");
}

#[test]
fn groups_of_withdrawn_buffers_are_used_again() {
    let mut ring = ring(8);
    let first = ring.provide_buffer(64).unwrap();
    let second = ring.provide_buffer(64).unwrap();
    assert_eq!((first.group(), second.group()), (0, 1));
    ring.withdraw_buffer(first).unwrap();
    assert_eq!(ring.provide_buffer(64).unwrap().group(), 0);
    ring.withdraw_buffer(second).unwrap();
}

#[test]
fn each_reminder_comes_once() {
    let mut ring = ring(8);
    ring.remind(1);
    ring.remind(2);
    let mut reminders = [ring.next_reminder(), ring.next_reminder()];
    reminders.sort_unstable();
    assert_eq!((reminders, ring.next_reminder()), ([Some(1), Some(2)], None));
}

/// The completion of each commit ended a wait, so that a request that came alone cost one more call of
/// `io_uring_enter`.
#[test]
fn an_operation_that_ends_at_once_ends_no_wait() {
    let mut ring = ring(8);
    let mut completions = Vec::new();
    let wait = Duration::from_millis(50);
    for (immediate, others) in [(3, 0), (2, 1)] {
        for number in 0..immediate {
            // SAFETY: the entry names no memory.
            unsafe { ring.push_immediate(opcode::Nop::new().build(), 1000 + number) };
        }
        (0..others).for_each(|_| ring.no_operation(1));
        completions.clear();
        let begin = Instant::now();
        assert!(!ring.submit_and_wait(Some(wait), &mut completions).unwrap());
        assert_eq!(completions.len(), usize::from(immediate) + others);
        assert_eq!(begin.elapsed() >= wait, others == 0);
        completions.drain(..).for_each(|completion| drop(ring.end(completion).unwrap()));
    }
    // The next wait again ends with the first completion.
    ring.no_operation(1);
    assert_eq!(wait_for_one(&mut ring).operation, 1);
}
