//! Tests with a kernel at the other end of a socket, which preserves message boundaries like `/dev/fuse`.
#![allow(unsafe_code)] // a pair of sockets

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use holdfast_ring::{FileSlot, RingOptions};

use super::*;
use crate::protocol::{REPLY_HEAD_BYTES, REQUEST_HEAD_BYTES};

const SECTORS: u64 = 1024;
const READ: u32 = 15;
const WRITE: u32 = 16;
const FSYNC: u32 = 20;
const FALLOCATE: u32 = 43;

#[derive(Debug)]
enum Operation {
    Fuse(FuseCommand<()>),
    Part,
}

impl From<FuseCommand<()>> for Operation {
    fn from(command: FuseCommand<()>) -> Self {
        Self::Fuse(command)
    }
}

impl RingOperation for Operation {
    fn to_word(&self) -> Option<u64> {
        None
    }

    fn from_word(word: u64) -> Self {
        unreachable!("no operation is the word {word}")
    }
}

struct Fixture {
    ring: Ring<Operation>,
    queue: FuseQueue<()>,
    kernel: File,
    side: FileSlot,
    side_file: File,
}

fn pair() -> [OwnedFd; 2] {
    let mut raw = [0; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the array has room for two numbers.
    let made = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, raw.as_mut_ptr()) };
    assert_eq!(made, 0);
    // SAFETY: file descriptors that were just made and have no other owner.
    raw.map(|raw| unsafe { OwnedFd::from_raw_fd(raw) })
}

impl Fixture {
    fn new() -> Self {
        let options = RingOptions { submission_entries: 8, completion_entries: 256, files: 8, buffers: 0 };
        let mut ring = Ring::new(&options).unwrap();
        let [ours, kernel] = pair().map(File::from);
        let connection = FuseConnection::new(ours, "volume".to_owned(), SECTORS * SECTOR_BYTES);
        let mut queue = FuseQueue::open(connection, ()).unwrap();
        queue.poll(&mut ring);
        let side_file = tempfile::tempfile().unwrap();
        let side = ring.register_file(side_file.as_fd()).unwrap();
        let mut fixture = Self { ring, queue, kernel, side, side_file };
        assert_eq!(fixture.answer(), Some((0, 7, Vec::new())), "the kernel is to send all again");
        fixture
    }

    /// Sends a request as the kernel.
    fn ask(&mut self, opcode: u32, unique: u64, body: &[u8]) {
        let mut bytes = u32::try_from(REQUEST_HEAD_BYTES + body.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(opcode.to_ne_bytes());
        bytes.extend(unique.to_ne_bytes());
        bytes.extend(2u64.to_ne_bytes());
        bytes.extend([0; 16]);
        bytes.extend(body);
        self.kernel.write_all(&bytes).unwrap();
    }

    fn ask_span(&mut self, opcode: u32, unique: u64, offset: u64, data: &[u8], len: u32) {
        let head = [&[0; 8][..], &offset.to_ne_bytes(), &len.to_ne_bytes(), &[0; 20]].concat();
        self.ask(opcode, unique, &[&head, data].concat());
    }

    fn allocate(&mut self, unique: u64, offset: u64, len: u64, mode: i32) {
        let body = [&[0; 8][..], &offset.to_ne_bytes(), &len.to_ne_bytes(), &mode.to_ne_bytes(), &[0; 4]];
        self.ask(FALLOCATE, unique, &body.concat());
    }

    /// Returns the next answer: number, error, body.
    fn answer(&mut self) -> Option<(u64, i32, Vec<u8>)> {
        let mut bytes = vec![0; REPLY_HEAD_BYTES + (1 << 20)];
        let len = self.kernel.read(&mut bytes).ok()?;
        bytes.truncate(len);
        assert_eq!(bytes[0..4], u32::try_from(len).unwrap().to_ne_bytes());
        let error = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
        Some((u64::from_ne_bytes(bytes[8..16].try_into().unwrap()), error, bytes.split_off(REPLY_HEAD_BYTES)))
    }

    /// Runs one turn of the ring's thread. Returns the outcomes of parts.
    fn turn(&mut self) -> Vec<IoResult> {
        let mut completions = Vec::new();
        self.ring.submit_and_wait(Some(Duration::from_millis(200)), &mut completions).unwrap();
        let ended = completions.into_iter().map(|completion| self.ring.end(completion).unwrap());
        let ended: Vec<_> = ended.map(|ended| (ended.operation, ended.outcome)).collect();
        let mut parts = Vec::new();
        for (operation, outcome) in ended {
            match operation {
                Operation::Fuse(command) => self.queue.on_completion(command, outcome),
                Operation::Part => parts.push(outcome),
            }
        }
        parts
    }

    fn complete(&mut self, request: DeviceRequest, outcome: Result<(), KernelErrno>) {
        self.queue.complete(&mut self.ring, request, outcome);
    }

    fn whole(&self, request: &DeviceRequest) -> RequestPart {
        RequestPart {
            request_offset_bytes: 0,
            len_bytes: u32::try_from(request.len_bytes()).unwrap(),
            file: self.side,
            file_offset_bytes: request.start_sector() * SECTOR_BYTES,
        }
    }
}

#[test]
fn data_moves_between_requests_and_a_file() {
    let mut fixture = Fixture::new();
    let data: Vec<u8> = (0..8192u32).map(|at| at as u8).collect();
    fixture.ask_span(WRITE, 5, 4096, &data, 8192);
    fixture.turn();
    let request = fixture.queue.next_request().unwrap();
    assert_eq!(
        (request.operation(), request.start_sector(), request.sectors()),
        (super::Operation::Write, 1, 2)
    );
    assert!(fixture.queue.next_request().is_none());
    let whole = fixture.whole(&request);
    fixture.queue.write_part(&mut fixture.ring, &request, &whole, Operation::Part);
    assert_eq!(fixture.turn(), [IoResult(8192)]);
    let mut written = vec![0; 8192];
    fixture.side_file.read_exact_at(&mut written, 4096).unwrap();
    assert_eq!(written, data);
    fixture.complete(request, Ok(()));
    assert_eq!(fixture.answer(), Some((5, 0, [8192u32.to_ne_bytes(), [0; 4]].concat())));

    fixture.ask_span(READ, 6, 8192, &[], 4096);
    let request = fixture.queue.next_request().unwrap();
    let whole = fixture.whole(&request);
    fixture.queue.read_part(&mut fixture.ring, &request, &whole, Operation::Part);
    assert_eq!(fixture.turn(), [IoResult(4096)]);
    fixture.complete(request, Ok(()));
    assert_eq!(fixture.answer(), Some((6, 0, data[4096..].to_vec())));
    fixture.ask(FSYNC, 7, &[0; 16]);
    let request = fixture.queue.next_request().unwrap();
    assert_eq!((request.operation(), request.sectors()), (super::Operation::Flush, 0));
    fixture.complete(request, Err(KernelErrno::EIO));
    assert_eq!(fixture.answer(), Some((7, -libc::EIO, Vec::new())));
}

#[test]
fn what_is_not_of_the_device_is_refused() {
    let mut fixture = Fixture::new();
    let end = SECTORS * SECTOR_BYTES;
    for (unique, offset, len) in [
        (1, 512, 4096),
        (2, 0, 512),
        (3, end - 4096, 8192),
        (4, end, 4096),
        (5, u64::MAX - 4095, 4096),
        (6, 0, 0),
    ] {
        fixture.ask_span(READ, unique, offset, &[], len);
        assert!(fixture.queue.next_request().is_none());
        assert_eq!(fixture.answer(), Some((unique, -libc::EINVAL, Vec::new())), "{offset} {len}");
    }
    fixture.allocate(7, 0, 4096, 0);
    fixture.allocate(8, 0, u64::MAX, PUNCH);
    assert!(fixture.queue.next_request().is_none());
    assert_eq!(fixture.answer(), Some((7, -libc::EOPNOTSUPP, Vec::new())));
    assert_eq!(fixture.answer(), Some((8, -libc::EINVAL, Vec::new())));
}

/// Regression: zeros of 4 GiB took one turn of the ring thread.
#[test]
fn zeros_of_a_large_range_are_written_in_pieces() {
    let mut fixture = Fixture::new();
    fixture.queue.connection.grow(8 << 30).unwrap();
    assert_eq!(fixture.answer().map(|(unique, code, _)| (unique, code)), Some((0, 4)));
    fixture.allocate(1, 4096, (2 << 30) + 4096, PUNCH);
    for (start, sectors) in [(1, 1 << 18), (1 + (1 << 18), 1 << 18), (1 + (2 << 18), 1)] {
        fixture.turn();
        let request = fixture.queue.next_request().unwrap();
        let found = (request.operation(), request.start_sector(), request.sectors());
        assert_eq!(found, (super::Operation::WriteZeroes, start, sectors));
        assert!(fixture.queue.next_request().is_none(), "one piece at a time");
        assert_eq!((fixture.answer(), fixture.queue.requests_with_owner()), (None, 1));
        fixture.complete(request, Ok(()));
    }
    assert_eq!(fixture.answer(), Some((1, 0, Vec::new())));
    fixture.allocate(2, 0, 4 << 30, PUNCH);
    let request = fixture.queue.next_request().unwrap();
    fixture.complete(request, Err(KernelErrno::ENOSPC));
    assert_eq!(fixture.answer(), Some((2, -libc::ENOSPC, Vec::new())), "no further piece");
    assert_eq!(fixture.queue.requests_with_owner(), 0);
}

/// The kernel resends the whole request to the successor.
#[test]
fn a_draining_or_ended_queue_begins_no_further_piece() {
    for ends in [false, true] {
        let mut fixture = Fixture::new();
        fixture.queue.connection.grow(8 << 30).unwrap();
        fixture.answer();
        fixture.allocate(1, 0, 2 << 30, PUNCH);
        fixture.allocate(2, 0, 2 << 30, PUNCH);
        let [first, second] = [(); 2].map(|()| fixture.queue.next_request().unwrap());
        fixture.complete(first, Ok(()));
        if ends {
            fixture.queue.end(&mut fixture.ring);
        } else {
            fixture.queue.drain();
        }
        fixture.complete(second, Ok(()));
        assert_eq!(fixture.answer(), None);
        assert!(fixture.queue.next_request().is_none());
        assert_eq!(fixture.queue.requests_with_owner(), 0);
    }
}

/// The kernel is notified of the new size, and the queue serves requests up to it.
#[test]
fn a_grown_file_is_served_to_its_new_end() {
    let mut fixture = Fixture::new();
    let (end, grown) = (SECTORS * SECTOR_BYTES, 2 * SECTORS * SECTOR_BYTES);
    fixture.queue.connection.grow(grown).unwrap();
    let stored = [&2u64.to_ne_bytes()[..], &(grown - 1).to_ne_bytes(), &1u32.to_ne_bytes(), &[0; 5]].concat();
    assert_eq!(fixture.answer(), Some((0, 4, stored)));
    fixture.ask_span(READ, 1, end, &[], 4096);
    let request = fixture.queue.next_request().unwrap();
    assert_eq!(request.start_sector(), SECTORS);
    fixture.complete(request, Err(KernelErrno::EIO));
    assert_eq!(fixture.answer(), Some((1, -libc::EIO, Vec::new())));
    fixture.ask(3, 2, &[0; 16]);
    assert!(fixture.queue.next_request().is_none());
    let (_, _, attributes) = fixture.answer().unwrap();
    assert_eq!(attributes[24..32], grown.to_ne_bytes(), "the kernel may ask for it");
}

/// The loop driver punches a hole for zeros that may be deallocated.
#[test]
fn each_way_to_free_a_range_writes_zeros() {
    let mut fixture = Fixture::new();
    for (unique, mode) in [(1, PUNCH), (2, ZERO), (3, ZERO_KEEP)] {
        fixture.allocate(unique, 4096, 1 << 20, mode);
        let request = fixture.queue.next_request().unwrap();
        let found = (request.operation(), request.start_sector(), request.sectors());
        assert_eq!(found, (super::Operation::WriteZeroes, 1, 256));
        fixture.complete(request, Ok(()));
        assert_eq!(fixture.answer(), Some((unique, 0, Vec::new())));
    }
}

#[test]
fn requests_wait_with_the_kernel_while_no_tag_is_free() {
    let mut fixture = Fixture::new();
    let mut taken = Vec::new();
    for unique in 0..u64::from(DEPTH) {
        fixture.ask(FSYNC, unique, &[0; 16]);
        taken.push(fixture.queue.next_request().unwrap());
    }
    fixture.ask(FSYNC, 1000, &[0; 16]);
    assert!(fixture.queue.next_request().is_none());
    fixture.turn();
    fixture.queue.poll(&mut fixture.ring);
    assert_eq!(fixture.queue.with_kernel(), 0, "nothing is waited for");
    fixture.complete(taken.pop().unwrap(), Ok(()));
    assert_eq!(fixture.queue.with_kernel(), 1, "it waits again");
    fixture.turn();
    taken.push(fixture.queue.next_request().unwrap());
    for request in taken {
        fixture.complete(request, Ok(()));
    }
    assert_eq!(fixture.queue.requests_with_owner(), 0);
}

/// A program killed while its request waited, and metadata, cause no request to the owner.
#[test]
fn metadata_is_answered_without_the_owner() {
    let mut fixture = Fixture::new();
    fixture.ask(3, 1, &[0; 16]);
    fixture.ask(36, 2, &[0; 8]);
    fixture.ask(FSYNC, 3, &[0; 16]);
    let request = fixture.queue.next_request().unwrap();
    let (unique, error, attributes) = fixture.answer().unwrap();
    assert_eq!((unique, error, attributes.len()), (1, 0, 104));
    assert_eq!(fixture.answer(), None);
    fixture.complete(request, Ok(()));
    assert_eq!(fixture.answer(), Some((3, 0, Vec::new())));
}

#[test]
fn a_draining_queue_answers_what_it_has_and_takes_nothing() {
    let mut fixture = Fixture::new();
    fixture.ask(FSYNC, 1, &[0; 16]);
    fixture.ask(FSYNC, 2, &[0; 16]);
    let [first, second] = [(); 2].map(|()| fixture.queue.next_request().unwrap());
    fixture.queue.drain();
    fixture.ask(FSYNC, 3, &[0; 16]);
    assert!(fixture.queue.next_request().is_none());
    fixture.complete(first, Ok(()));
    assert_eq!(fixture.answer(), Some((1, 0, Vec::new())));
    fixture.queue.leave(second);
    assert_eq!((fixture.queue.requests_with_owner(), fixture.answer()), (0, None));
}

/// The poll of a queue that is closed before its ring would keep the file open until the ring is closed.
#[test]
fn an_ended_queue_gets_back_all_that_the_ring_has() {
    let mut fixture = Fixture::new();
    fixture.ask(FSYNC, 1, &[0; 16]);
    fixture.turn();
    let request = fixture.queue.next_request().unwrap();
    fixture.queue.poll(&mut fixture.ring);
    fixture.turn();
    fixture.queue.end(&mut fixture.ring);
    while fixture.queue.with_kernel() > 0 {
        fixture.turn();
    }
    fixture.complete(request, Ok(()));
    assert_eq!(fixture.queue.with_kernel(), 1, "the owner looks again");
    fixture.turn();
    let Fixture { queue, .. } = fixture;
    queue.close();
}

#[test]
fn the_end_of_the_connection_ends_the_queue() {
    let mut fixture = Fixture::new();
    fixture.kernel = tempfile::tempfile().unwrap();
    fixture.turn();
    assert!(fixture.queue.next_request().is_none());
    fixture.queue.poll(&mut fixture.ring);
    assert_eq!(fixture.queue.with_kernel(), 0);
    assert_eq!(fixture.queue.take_fault(), Some(FuseFault::Ended));
    assert_eq!(fixture.queue.take_fault(), None, "it is reported once");
}

/// Regression: a failed read ended the queue, and no later request was answered.
#[test]
fn requests_are_read_after_a_read_that_failed() {
    let mut fixture = Fixture::new();
    fixture.ask(FSYNC, 1, &[0; 16]);
    fixture.turn();
    // The memory of the next read is inaccessible.
    let buffers = fixture.queue.buffers.as_mut().unwrap();
    let tag = *fixture.queue.free.last().unwrap();
    buffers.prepared[usize::from(tag)] = true;
    let address = buffers.at(tag, 0, STRIDE).cast();
    // SAFETY: the range belongs to a tag without a request.
    assert_eq!(unsafe { libc::mprotect(address, STRIDE, libc::PROT_NONE) }, 0);
    assert!(fixture.queue.next_request().is_none());
    assert_eq!(fixture.queue.take_fault(), Some(FuseFault::Read(KernelErrno::new(libc::EFAULT))));
    fixture.queue.poll(&mut fixture.ring);
    assert_eq!(fixture.queue.with_kernel(), 1, "it pauses");
    // SAFETY: as above.
    assert_eq!(unsafe { libc::mprotect(address, STRIDE, libc::PROT_READ | libc::PROT_WRITE) }, 0);
    fixture.turn();
    assert!(fixture.queue.next_request().is_none(), "a socket does not give the message again");
    fixture.queue.poll(&mut fixture.ring);
    fixture.ask(FSYNC, 2, &[0; 16]);
    fixture.turn();
    let request = fixture.queue.next_request().unwrap();
    fixture.complete(request, Ok(()));
    assert_eq!(fixture.answer(), Some((2, 0, Vec::new())));
}

/// Regression: a kill while a read waited for a page caused an I/O error for the application.
#[test]
fn the_pages_of_a_buffer_are_there_before_its_first_read() {
    let mut fixture = Fixture::new();
    assert!(fixture.queue.next_request().is_none());
    let buffers = fixture.queue.buffers.as_ref().unwrap();
    let resident = |tag| {
        let mut pages = [0u8; STRIDE / 4096];
        // SAFETY: the range is in the mapping, and the array has a byte for each of its pages.
        let seen = unsafe { libc::mincore(buffers.at(tag, 0, STRIDE).cast(), STRIDE, pages.as_mut_ptr()) };
        assert_eq!(seen, 0);
        pages.iter().filter(|&&page| page & 1 == 1).count()
    };
    let next = *fixture.queue.free.last().unwrap();
    assert_eq!(resident(next), STRIDE / 4096);
    assert_eq!(resident(next + 1), 0, "a tag that was never used has no memory");
}

/// Regression, found in review: a child of the daemon shared the pages, so the kernel copied each page before
/// it wrote a request there, and a kill of the daemon meanwhile failed that request.
#[test]
fn a_child_shares_no_buffer() {
    let buffers = FuseBuffers::map().unwrap();
    let at = buffers.memory.as_ptr().addr();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let begins = |line: &str| line.starts_with(&format!("{at:x}-"));
    let mut lines = smaps.lines().skip_while(|line| !begins(line));
    let flags = lines.find_map(|line| line.strip_prefix("VmFlags:")).expect("the mapping is listed");
    assert!(flags.split_whitespace().any(|flag| flag == "dc"), "{flags}");
}
