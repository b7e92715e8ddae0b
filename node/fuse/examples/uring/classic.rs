//! The same server with `read(2)` and `writev(2)` on `/dev/fuse`, for comparison.

use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;

use holdfast_fuse::protocol::{
    FuseFile, FuseRequest, MAX_IO_BYTES, WRITE_HEAD_BYTES, parse, reply_head, resend, written,
};

use crate::memory::DEPTH;
use crate::ring::{Completion, Ring, Submission, Submitter};
use crate::server::{CONNECTION, DISK, FILES};

/// `user_data` of the poll.
const POLLED: u64 = u64::MAX;
/// Maximum number of concurrent requests.
const PLACES: usize = 2 * DEPTH;
/// Bytes before the aligned data of a request.
const HEAD_BYTES: usize = 4096;
const PLACE_BYTES: usize = HEAD_BYTES + MAX_IO_BYTES as usize;

struct ClassicServer<'a> {
    connection: File,
    file: &'a FuseFile,
    ring: Ring,
    memory: Vec<u8>,
    /// Offset of the first place in the memory.
    first: usize,
    /// `unique` and opcode of each place's request.
    requests: Vec<(u64, u8)>,
    free: Vec<usize>,
    /// The kernel may have more requests.
    is_readable: bool,
}

pub(crate) fn serve(mut connection: File, disk: &File, file: &FuseFile) -> io::Result<()> {
    let ring = Ring::new(PLACES, Submitter::Writer, connection.try_clone()?)?;
    ring.make_tables(FILES, 1)?;
    ring.set_file(DISK, disk.as_fd())?;
    ring.set_file(CONNECTION, connection.as_fd())?;
    connection.write_all(&resend())?;
    let memory = vec![0; HEAD_BYTES + PLACES * PLACE_BYTES];
    let mut server = ClassicServer {
        connection,
        file,
        ring,
        first: memory.as_ptr().align_offset(HEAD_BYTES),
        memory,
        requests: vec![(0, 0); PLACES],
        free: (0..PLACES).collect(),
        is_readable: true,
    };
    loop {
        server.step()?;
    }
}

impl ClassicServer<'_> {
    fn step(&mut self) -> io::Result<()> {
        let tail = self.ring.tail();
        let mut next = tail;
        while self.is_readable && !self.free.is_empty() {
            if let Some(submission) = self.read()? {
                self.ring.write(next, submission);
                next = next.wrapping_add(1);
            }
        }
        self.ring.submit(next);
        self.ring.enter(next.wrapping_sub(tail), 1)?;
        let (mut head, end) = (self.ring.head(), self.ring.end());
        while head != end {
            self.answer(self.ring.completion(head));
            head = head.wrapping_add(1);
        }
        self.ring.consume(end);
        Ok(())
    }

    /// Reads a request. Returns its I/O on the disk, or a poll if no request waits.
    fn read(&mut self) -> io::Result<Option<Submission>> {
        let Some(&place) = self.free.last() else { return Ok(None) };
        let data = self.first + place * PLACE_BYTES + HEAD_BYTES;
        let message = &mut self.memory[data - WRITE_HEAD_BYTES..data + MAX_IO_BYTES as usize];
        let address = message[WRITE_HEAD_BYTES..].as_mut_ptr();
        let len = match self.connection.read(message) {
            Ok(len) => len,
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {
                self.is_readable = false;
                let mut poll = Submission::on(CONNECTION, Submission::POLL_ADD, POLLED);
                poll.operation_flags = libc::POLLIN as u32;
                return Ok(Some(poll));
            }
            // The request's program was killed.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Ok(message) = parse(&message[..len]) else { return Ok(None) };
        let (opcode, span) = if let FuseRequest::Read(span) = message.request {
            (Submission::READ, Some(span))
        } else if let FuseRequest::Write(span) = message.request {
            (Submission::WRITE, Some(span))
        } else if message.request == FuseRequest::Sync {
            (Submission::FSYNC, None)
        } else {
            if let Some(answer) = self.file.answer(&message) {
                drop(self.connection.write(&answer));
            }
            return Ok(None);
        };
        let mut submission = Submission::on(DISK, opcode, place as u64);
        if let Some(span) = span {
            (submission.offset, submission.len) = (span.offset_bytes, span.len_bytes);
            submission.address = address.expose_provenance() as u64;
        }
        self.requests[place] = (message.unique, opcode);
        self.free.pop();
        Ok(Some(submission))
    }

    fn answer(&mut self, done: Completion) {
        if done.user_data == POLLED {
            self.is_readable = true;
            return;
        }
        let place = done.user_data as usize;
        let (unique, opcode) = self.requests[place];
        self.free.push(place);
        let data = self.first + place * PLACE_BYTES + HEAD_BYTES;
        let (error, len) = if done.result < 0 { (-done.result, 0) } else { (0, done.result.unsigned_abs()) };
        let count = written(len);
        let body: &[u8] = match opcode {
            _ if error != 0 => &[],
            Submission::READ => &self.memory[data..data + len as usize],
            Submission::WRITE => &count,
            _ => &[],
        };
        let head = reply_head(unique, error, body.len() as u32);
        drop(self.connection.write_vectored(&[IoSlice::new(&head), IoSlice::new(body)]));
    }
}
