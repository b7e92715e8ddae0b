//! The server of a ring: it turns each completion into the next submission. All of its state is in the ring
//! and the shared memory, so a successor continues where a killed server stopped.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use holdfast_fuse::protocol::{FuseFile, FuseRequest, parse, reply_head, retrieve, written};

use crate::load::stay_on;
use crate::memory::{
    ANSWER, ANSWER_LEN, ANSWERED, COMMIT_ID, DEPTH, HEADER_BYTES, OPERATION, PAYLOAD_BYTES, PAYLOAD_LEN,
    PAYLOAD_OFFSET, RING_FLAGS, SharedMemory, VECTORS,
};
use crate::ring::{Completion, Ring, Submission};
use crate::say;

/// Indices in the ring's table of files.
pub(crate) const DISK: i32 = 0;
pub(crate) const CONNECTION: i32 = 1;
pub(crate) const FILES: u32 = 2;

const REGISTER: u64 = 1;
const COMMIT_AND_FETCH: u64 = 2;
const ADD_QUEUE: u64 = 3;
const ADD_POOL: u64 = 4;
const QUEUE_ZERO_COPY: u64 = 1;
const ENTRY_ZERO_COPY: u64 = 1;

const OPCODE_READ: u32 = 15;
const OPCODE_WRITE: u32 = 16;
const OPCODE_FSYNC: u32 = 20;

/// Kinds of completions, in `user_data` above the number of the entry.
const FETCHED: u64 = 0 << 16;
const READ: u64 = 1 << 16;
const WRITTEN: u64 = 2 << 16;
const SYNCED: u64 = 3 << 16;

/// Maximum number of times that an entry is given again: its command always fails after the connection ended.
const GIVEN_AGAIN: u32 = 100;

/// Offset of the flags in the answer to OPEN, and `FOPEN_IO_URING_ZERO_COPY` in their second byte.
const OPEN_FLAGS: usize = 16 + 8;
const OPEN_ZERO_COPY: u8 = 1;

/// A server, or a keeper that prepares the ring for one.
pub(crate) struct RingServer {
    pub(crate) ring: Ring,
    pub(crate) memory: SharedMemory,
    file: FuseFile,
    zero_copy: bool,
    /// Number of times that each entry was given to the kernel again since its last request.
    given_again: Vec<u32>,
    /// True if requests may wait in queues that had no entry.
    must_kick: bool,
}

impl RingServer {
    /// Makes a server that has seen no completion.
    pub(crate) fn new(ring: Ring, memory: SharedMemory, file: FuseFile, zero_copy: bool) -> Self {
        Self { ring, memory, file, zero_copy, given_again: vec![0; memory.entries()], must_kick: true }
    }

    /// Creates the queues, one per processor, and gives all entries to the kernel.
    pub(crate) fn introduce(&self, connection: &File) -> io::Result<()> {
        let entries = self.memory.entries();
        self.ring.set_file(CONNECTION, connection.as_fd())?;
        if self.zero_copy {
            for queue in 0..entries / DEPTH {
                let pool = self.memory.payload(queue * DEPTH) as u64;
                let pool_bytes = (DEPTH * PAYLOAD_BYTES) as u64;
                self.order(command(ADD_QUEUE, u64::MAX, [QUEUE_ZERO_COPY, 0, queue as u64, 0, 0]))?;
                self.order(command(ADD_POOL, u64::MAX, [0, 0, queue as u64, pool, pool_bytes]))?;
            }
        }
        let mut next = self.ring.tail();
        for entry in 0..entries {
            self.show(&mut next, self.register(entry));
        }
        self.ring.submit(next);
        self.ring.enter(entries as u32, 0)
    }

    fn show(&self, next: &mut u32, submission: Submission) {
        self.ring.write(*next, submission);
        *next = next.wrapping_add(1);
    }

    /// Runs a command that completes at once.
    fn order(&self, submission: Submission) -> io::Result<()> {
        let (tail, head) = (self.ring.tail(), self.ring.head());
        self.ring.write(tail, submission);
        self.ring.submit(tail.wrapping_add(1));
        self.ring.enter(1, 0)?;
        while self.ring.end() == head {
            self.ring.enter(0, 1)?;
        }
        let result = self.ring.completion(head).result;
        self.ring.consume(head.wrapping_add(1));
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }

    fn register(&self, entry: usize) -> Submission {
        let payload = if self.zero_copy { (0, 0) } else { (self.memory.payload(entry), PAYLOAD_BYTES) };
        let vectors = [self.memory.header(entry), HEADER_BYTES, payload.0, payload.1];
        self.memory.set(entry, VECTORS, vectors);
        let index = if self.zero_copy { entry as u64 } else { 0 };
        let mut submission =
            command(REGISTER, FETCHED | entry as u64, [0, 0, (entry / DEPTH) as u64, index, 0]);
        submission.address = (self.memory.header(entry) + VECTORS) as u64;
        submission.len = 2;
        submission
    }

    /// Serves until the process is killed.
    pub(crate) fn serve(&mut self, disk: &File, connection: &File) -> io::Result<()> {
        self.ring.set_file(DISK, disk.as_fd())?;
        if let Some(head) = self.memory.head().unfinished(self.ring.head(), self.ring.tail()) {
            self.ring.consume(head);
        }
        // A killed server may have published submissions without waking the submitter, and may have given
        // entries again.
        let mut shown = 1;
        loop {
            let wanted = u32::from(self.ring.end() == self.ring.head() && !self.must_kick);
            self.ring.enter(shown, wanted)?;
            if self.must_kick && self.ring.all_taken() {
                self.kick(connection)?;
            } else if self.must_kick {
                std::thread::sleep(Duration::from_millis(1));
            }
            shown = self.step();
        }
    }

    /// Makes the kernel send a request on each processor. Requests that came while a queue had no entry wait
    /// until a request of that queue is answered.
    fn kick(&mut self, connection: &File) -> io::Result<()> {
        self.must_kick = false;
        for queue in 0..self.memory.entries() / DEPTH {
            // A processor that is offline has no requests. Where the file was never looked up, the kernel
            // refuses the notification, and no request waits.
            if stay_on(Some(queue)).is_ok() {
                drop(io::Write::write_all(&mut &*connection, &retrieve(1 << 62 | (queue as u64) << 1)));
            }
        }
        stay_on(None)
    }

    /// Handles all completions. Returns the number of submissions.
    fn step(&mut self) -> u32 {
        let (head, end, tail) = (self.ring.head(), self.ring.end(), self.ring.tail());
        let (mut number, mut next) = (head, tail);
        while number != end {
            if let Some(submission) = self.follow(self.ring.completion(number)) {
                self.show(&mut next, submission);
            }
            number = number.wrapping_add(1);
        }
        self.memory.head().note(head, end, next);
        self.ring.submit(next);
        self.ring.consume(end);
        next.wrapping_sub(tail)
    }

    /// Returns the next submission after a completion. A successor may handle the same completion again: this
    /// function writes nothing that it reads.
    fn follow(&mut self, completion: Completion) -> Option<Submission> {
        let Completion { user_data, result, .. } = completion;
        let entry = (user_data & 0xffff) as usize;
        match user_data & !0xffff {
            FETCHED if result < 0 => self.give_again(entry, result),
            FETCHED => {
                self.given_again[entry] = 0;
                Some(self.begin(entry))
            }
            // The keeper that submitted it has exited.
            _ if result == -libc::ECANCELED => Some(self.begin(entry)),
            kind => Some(self.end(entry, kind, result)),
        }
    }

    /// Gives an entry to the kernel again after its command failed: the keeper or connection ended.
    fn give_again(&mut self, entry: usize, result: i32) -> Option<Submission> {
        say(format_args!("entry {entry}: {}", io::Error::from_raw_os_error(-result)));
        self.given_again[entry] += 1;
        if self.given_again[entry] > GIVEN_AGAIN {
            return None;
        }
        self.must_kick = true;
        Some(self.register(entry))
    }

    /// Answers a request whose I/O is done.
    fn end(&self, entry: usize, kind: u64, result: i32) -> Submission {
        let unique: u64 = self.memory.get(entry, 8);
        let (error, len) = if result < 0 { (-result, 0) } else { (0, result.unsigned_abs()) };
        let body_bytes = match kind {
            READ => len,
            WRITTEN if error == 0 => {
                self.memory.put(self.payload(entry), &written(len));
                8
            }
            _ => 0,
        };
        self.memory.put(self.memory.header(entry), &reply_head(unique, error, body_bytes));
        self.commit(entry, body_bytes)
    }

    fn payload(&self, entry: usize) -> usize {
        if self.zero_copy {
            let offset: u32 = self.memory.get(entry, PAYLOAD_OFFSET);
            self.memory.payload(entry / DEPTH * DEPTH) + offset as usize
        } else {
            self.memory.payload(entry)
        }
    }

    /// Begins a request.
    fn begin(&self, entry: usize) -> Submission {
        let unique: u64 = self.memory.get(entry, 8);
        if self.memory.get::<u64>(entry, ANSWERED) == unique {
            return self.answer(entry);
        }
        let opcode: u32 = self.memory.get(entry, 4);
        let zero_copied = self.memory.get::<u64>(entry, RING_FLAGS) & ENTRY_ZERO_COPY != 0;
        let (operation, kind) = match (opcode, zero_copied) {
            (OPCODE_READ, true) => (Submission::READ_FIXED, READ),
            (OPCODE_READ, false) => (Submission::READ, READ),
            (OPCODE_WRITE, true) => (Submission::WRITE_FIXED, WRITTEN),
            (OPCODE_WRITE, false) => (Submission::WRITE, WRITTEN),
            (OPCODE_FSYNC, _) => (Submission::FSYNC, SYNCED),
            _ => {
                self.prepare_answer(entry, unique);
                return self.answer(entry);
            }
        };
        let mut submission = Submission::on(DISK, operation, kind | entry as u64);
        if kind != SYNCED {
            submission.offset = self.memory.get(entry, OPERATION + 8);
            submission.len = self.memory.get(entry, OPERATION + 16);
            (submission.address, submission.buffer) =
                if zero_copied { (0, entry as u16) } else { (self.payload(entry) as u64, 0) };
        }
        submission
    }

    /// Writes the answer to a request without data to memory that the kernel does not read.
    fn prepare_answer(&self, entry: usize, unique: u64) {
        let header = self.memory.header(entry);
        let len: u32 = self.memory.get(entry, 0);
        let payload_len: u32 = self.memory.get(entry, PAYLOAD_LEN);
        let mut message = self.memory.bytes(header, 40);
        message.extend(self.memory.bytes(header + OPERATION, (len - 40 - payload_len) as usize));
        message.extend(self.memory.bytes(self.payload(entry), payload_len as usize));
        let answer = parse(&message).ok().and_then(|message| {
            let mut answer = self.file.answer(&message)?;
            if message.request == FuseRequest::Open && self.zero_copy {
                // Bit 8.
                answer[OPEN_FLAGS + 1] |= OPEN_ZERO_COPY;
            }
            Some(answer)
        });
        let answer = answer.unwrap_or_else(|| reply_head(unique, libc::EIO, 0).to_vec());
        self.memory.put(header + ANSWER, &answer);
        self.memory.set(entry, ANSWER_LEN, answer.len() as u32);
        self.memory.set(entry, ANSWERED, unique);
    }

    fn answer(&self, entry: usize) -> Submission {
        let len: u32 = self.memory.get(entry, ANSWER_LEN);
        let answer = self.memory.bytes(self.memory.header(entry) + ANSWER, len as usize);
        self.memory.put(self.payload(entry), &answer[16..]);
        self.memory.put(self.memory.header(entry), &answer[..16]);
        self.commit(entry, len - 16)
    }

    fn commit(&self, entry: usize, payload_len: u32) -> Submission {
        self.memory.set(entry, PAYLOAD_LEN, payload_len);
        let id: u64 = self.memory.get(entry, COMMIT_ID);
        command(COMMIT_AND_FETCH, FETCHED | entry as u64, [0, id, (entry / DEPTH) as u64, 0, 0])
    }
}

/// Makes a command of the connection.
fn command(operation: u64, user_data: u64, request: [u64; 5]) -> Submission {
    let mut submission = Submission::on(CONNECTION, Submission::URING_CMD, user_data);
    submission.offset = operation;
    submission.command[..5].copy_from_slice(&request);
    submission
}
