//! The requests of one volume's connection: reading, handing out, answering.
//!
//! ```text
//!            read(2)                   complete: writev(2)
//!   FREE ---------------> WITH OWNER ----------------------> FREE
//! ```
//!
//! The queue reads requests when the kernel reports one waiting (`IORING_OP_POLL_ADD`): the ring itself
//! cannot read the file without blocking, so it would hand each read to a worker thread. One poll is armed at
//! a time, and after it the queue reads all waiting requests, so requests that arrive together cost one poll.
//!
//! Each tag has a buffer, laid out so that the data of a WRITE is aligned for the local disk:
//!
//! ```text
//! 0           4016                4096                    4096 + 512 KiB
//! +-----------+-------------------+-----------------------+
//! | unused    | head of a request | data                  |
//! +-----------+-------------------+-----------------------+
//! ```
//!
//! A WRITE-ZEROES of a large range is handed out in sequential pieces, and answered after the last.
//!
//! *Owns*: the tags, their buffers, the kernel's numbers of their requests.
//! *Runs on*: the ring thread. A request costs two system calls: its read and its answer.
//! *Invariants*: a request is answered once, by the server that read it last. The kernel resends an
//! unanswered one to the next server, so a write may be repeated, with the same data at the same offset,
//! before the kernel has completed it.
#![allow(unsafe_code)] // one anonymous mapping, reads into it, writes from it, entries that name it

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use holdfast_ring::{IoResult, KernelErrno, Ring, RingOperation};
use holdfast_types::SECTOR_BYTES;
use holdfast_ublk::{DeviceRequest, Operation, QueueError, RequestPart};
use io_uring::{opcode, types};

use crate::connection::FuseConnection;
use crate::limit::{DEPTH, MAX_ZEROES_BYTES};
use crate::protocol::{
    FileSpan, FuseFile, FuseMessage, FuseRequest, MAX_IO_BYTES, Malformed, WRITE_HEAD_BYTES, parse,
    reply_head, resend, written,
};

/// Offset of the data in a buffer, in bytes.
const DATA_AT: usize = 4096;
const STRIDE: usize = DATA_AT + MAX_IO_BYTES as usize;
/// Delay between a failed read of requests and the next one.
static PAUSE: types::Timespec = types::Timespec::new().nsec(20_000_000);

/// An operation of a connection in the ring. The type of the ring's operations must convert from it. Pass its
/// outcome to [`FuseQueue::on_completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseCommand<K> {
    /// The ring owner's value for the volume.
    pub owner: K,
    step: FuseStep,
}

/// Purposes of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FuseStep {
    /// Waits for requests.
    Poll,
    /// Delays the next read of requests.
    Pause,
    /// Ends the wait, or makes the owner check the queue again, for example for the next piece of a request.
    Look,
}

/// Faults of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseFault {
    /// A read of requests failed. The queue reads again after a pause, but a request may be lost.
    Read(KernelErrno),
    /// The connection ended before the queue was closed: a detach cleared the device, or the connection was
    /// aborted. No more requests arrive.
    Ended,
}

/// The requests of a volume's connection, on one ring.
#[derive(Debug)]
pub struct FuseQueue<K> {
    owner: K,
    connection: FuseConnection,
    file: FuseFile,
    /// `None` only while the queue is dropped.
    buffers: Option<FuseBuffers>,
    /// The kernel's number of each tag's request.
    uniques: Vec<u64>,
    /// Tags without a request; the last is the next to be used.
    free: Vec<u16>,
    /// The rest of each tag's WRITE-ZEROES: first sector, number of sectors.
    rests: Vec<(u64, u32)>,
    /// Tags with a next piece to hand out.
    continued: Vec<u16>,
    /// Number of the queue's own operations in the ring.
    with_kernel: u16,
    wait: FuseWait,
    /// True if the connection has ended, or the queue no longer reads it.
    is_ended: bool,
    /// A fault that was not reported to the owner yet.
    fault: Option<FuseFault>,
    draining: bool,
}

/// The wait for requests.
#[derive(Debug, Default)]
struct FuseWait {
    is_polling: bool,
    /// True if a read failed, so that the next read comes after a pause.
    must_pause: bool,
    is_pausing: bool,
}

impl<K: Copy> FuseQueue<K> {
    /// Opens the queue of a connection, and makes the kernel resend requests that an earlier server
    /// read and did not answer. Next: [`poll`](Self::poll).
    ///
    /// # Errors [`QueueError::Map`]; [`QueueError::Connection`] if the connection has ended, or the kernel is
    /// older than 6.9.
    pub fn open(connection: FuseConnection, owner: K) -> Result<Self, QueueError> {
        let map = |source| QueueError::Map { what: "the buffers", queue_id: 0, source };
        let buffers = FuseBuffers::map().map_err(map)?;
        connection.write(&[&resend()]).map_err(QueueError::Connection)?;
        Ok(Self {
            owner,
            file: connection.description(),
            connection,
            buffers: Some(buffers),
            uniques: vec![0; DEPTH.into()],
            free: (0..DEPTH).rev().collect(),
            rests: vec![(0, 0); DEPTH.into()],
            continued: Vec::with_capacity(DEPTH.into()),
            with_kernel: 0,
            wait: FuseWait::default(),
            is_ended: false,
            fault: None,
            draining: false,
        })
    }

    /// Handles the outcome of a [`FuseCommand`] of this queue. Next: [`next_request`](Self::next_request),
    /// then [`poll`](Self::poll).
    pub fn on_completion(&mut self, command: FuseCommand<K>, outcome: IoResult) {
        self.with_kernel -= 1;
        match command.step {
            FuseStep::Poll => {
                self.wait.is_polling = false;
                if outcome.0 < 0 && !self.is_ended {
                    self.fail(KernelErrno::new(-outcome.0));
                }
            }
            FuseStep::Pause => (self.wait.is_pausing, self.wait.must_pause) = (false, false),
            FuseStep::Look => {}
        }
    }

    /// Returns and clears the fault of the connection since the last call.
    pub const fn take_fault(&mut self) -> Option<FuseFault> {
        self.fault.take()
    }

    /// Records a failed read and delays the next one.
    const fn fail(&mut self, errno: KernelErrno) {
        self.wait.must_pause = true;
        self.fault = Some(FuseFault::Read(errno));
    }

    const fn has_ended(&mut self) {
        self.is_ended = true;
        self.fault = Some(FuseFault::Ended);
    }

    /// Arms the wait for requests, after a pause if a read failed. Does nothing if it is armed, no tag is
    /// free, or the connection has ended.
    pub fn poll<T: From<FuseCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        if self.wait.is_polling
            || self.wait.is_pausing
            || self.is_ended
            || self.draining
            || self.free.is_empty()
        {
            return;
        }
        if self.wait.must_pause {
            self.wait.is_pausing = true;
            self.with_kernel += 1;
            let pause = opcode::Timeout::new(&raw const PAUSE).build();
            // SAFETY: the entry names the time of the pause, which is never freed.
            unsafe { ring.push(pause, FuseCommand { owner: self.owner, step: FuseStep::Pause }.into()) };
            return;
        }
        self.wait.is_polling = true;
        self.with_kernel += 1;
        let events = u32::from(libc::POLLIN.cast_unsigned());
        let poll = opcode::PollAdd::new(types::Fd(self.connection.file().as_raw_fd()), events).build();
        // SAFETY: the entry names no memory.
        unsafe { ring.push(poll, FuseCommand { owner: self.owner, step: FuseStep::Poll }.into()) };
    }

    /// Reads the next waiting request, and answers requests without data by itself. `None` if no request
    /// waits, no tag is free, the connection has ended, or a read failed ([`take_fault`](Self::take_fault)).
    pub fn next_request(&mut self) -> Option<DeviceRequest> {
        while !self.is_ended && !self.draining && !self.wait.must_pause {
            if let Some(tag) = self.continued.pop() {
                let (start_sector, sectors) = self.rests[usize::from(tag)];
                return Some(self.zeroes_piece(tag, start_sector, sectors));
            }
            let &tag = self.free.last()?;
            let buffers = self.buffers.as_mut().expect("there are buffers until the queue is dropped");
            buffers.prepare(tag);
            let message = buffers.message_mut(tag);
            let len = match self.connection.read(message) {
                // End of file.
                Ok(0) => {
                    self.has_ended();
                    return None;
                }
                Ok(len) => len,
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN) => return None,
                    // The request's program was killed before the read.
                    Some(libc::ENOENT | libc::EINTR) => continue,
                    Some(libc::ENODEV | libc::ECONNABORTED) => {
                        self.has_ended();
                        return None;
                    }
                    other => {
                        self.fail(other.map_or(KernelErrno::EIO, KernelErrno::new));
                        return None;
                    }
                },
            };
            // The file may grow while it is served.
            self.file.len_bytes = self.connection.len_bytes();
            let taken = take(&self.file, &message[..len]);
            match taken {
                TakenMessage::Request { unique, operation, start_sector, sectors } => {
                    self.free.pop();
                    self.uniques[usize::from(tag)] = unique;
                    if operation == Operation::WriteZeroes {
                        return Some(self.zeroes_piece(tag, start_sector, sectors));
                    }
                    return Some(DeviceRequest::new(tag, operation, start_sector, sectors));
                }
                TakenMessage::Answer(answer) => self.connection.answer(&[&answer]),
                TakenMessage::Nothing => {}
            }
        }
        None
    }

    /// Returns the next piece of a WRITE-ZEROES.
    fn zeroes_piece(&mut self, tag: u16, start_sector: u64, sectors: u32) -> DeviceRequest {
        let piece = sectors.min((MAX_ZEROES_BYTES / SECTOR_BYTES) as u32);
        self.rests[usize::from(tag)] = (start_sector + u64::from(piece), sectors - piece);
        DeviceRequest::new(tag, Operation::WriteZeroes, start_sector, piece)
    }

    /// Reads a part of a read request from a file: `operation` completes with the number of bytes moved.
    ///
    /// # Panics
    /// If the part is not inside the request.
    #[inline(never)] // inlined into a match with ublk, it would slow down requests of ublk
    pub fn read_part<T: RingOperation>(
        &self,
        ring: &mut Ring<T>,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: T,
    ) {
        let entry = opcode::Read::new(part.file.fixed(), self.address(request, part), part.len_bytes)
            .offset(part.file_offset_bytes)
            .build();
        // SAFETY: the entry names a range of this request's buffer. The buffers are unmapped only when the
        // owner has no request, else leaked.
        unsafe { ring.push(entry, operation) };
    }

    /// Writes a part of a write request to a file; otherwise like [`read_part`](Self::read_part).
    ///
    /// # Panics
    /// If the part is not inside the request.
    #[inline(never)] // inlined into a match with ublk, it would slow down requests of ublk
    pub fn write_part<T: RingOperation>(
        &self,
        ring: &mut Ring<T>,
        request: &DeviceRequest,
        part: &RequestPart,
        operation: T,
    ) {
        let entry = opcode::Write::new(part.file.fixed(), self.address(request, part), part.len_bytes)
            .offset(part.file_offset_bytes)
            .build();
        // SAFETY: as for `read_part`.
        unsafe { ring.push(entry, operation) };
    }

    fn address(&self, request: &DeviceRequest, part: &RequestPart) -> *mut u8 {
        let end = u64::from(part.request_offset_bytes) + u64::from(part.len_bytes);
        assert!(part.len_bytes > 0 && end <= request.len_bytes(), "the part lies inside the request");
        let buffers = self.buffers.as_ref().expect("there are buffers until the queue is dropped");
        buffers.data_address(request.tag(), part.request_offset_bytes, part.len_bytes)
    }

    /// Answers a request, as a whole or with an error, and waits for requests again if no tag was free. All
    /// its parts must have completed.
    #[inline(never)] // inlined into a match with ublk, it would slow down requests of ublk
    pub fn complete<T: From<FuseCommand<K>> + RingOperation>(
        &mut self,
        ring: &mut Ring<T>,
        request: DeviceRequest,
        outcome: Result<(), KernelErrno>,
    ) {
        let len_bytes = u32::try_from(request.len_bytes()).unwrap_or(u32::MAX);
        let (tag, operation, _sectors) = request.disarm();
        let unique = self.uniques[usize::from(tag)];
        match (outcome, operation) {
            (Err(errno), _) => self.connection.answer(&[&reply_head(unique, errno.number(), 0)]),
            (Ok(()), Operation::Read) => {
                let buffers = self.buffers.as_ref().expect("there are buffers until the queue is dropped");
                let data = buffers.data(tag, len_bytes);
                self.connection.answer(&[&reply_head(unique, 0, len_bytes), data]);
            }
            (Ok(()), Operation::Write) => {
                let body = written(len_bytes);
                self.connection.answer(&[&reply_head(unique, 0, body.len() as u32), &body]);
            }
            (Ok(()), Operation::WriteZeroes) if self.rests[usize::from(tag)].1 > 0 => {
                // The kernel resends the whole request to the successor.
                if !self.draining && !self.is_ended {
                    self.continued.push(tag);
                    return self.look_again(ring);
                }
            }
            (Ok(()), Operation::Flush | Operation::Discard | Operation::WriteZeroes) => {
                self.connection.answer(&[&reply_head(unique, 0, 0)]);
            }
        }
        self.free.push(tag);
        if self.is_ended {
            // Lets the owner check that all requests have come back.
            self.look_again(ring);
        }
        self.poll(ring);
    }

    /// Makes the owner check the queue again.
    fn look_again<T: From<FuseCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        self.with_kernel += 1;
        let nothing = opcode::Nop::new().build();
        // SAFETY: the entry names no memory.
        unsafe { ring.push(nothing, FuseCommand { owner: self.owner, step: FuseStep::Look }.into()) };
    }

    /// Leaves all further requests to the successor.
    pub fn drain(&mut self) {
        self.draining = true;
        self.free.append(&mut self.continued);
    }

    /// Leaves a request to the successor, to which the kernel resends it. Call it only while no part of the
    /// request is in flight.
    pub fn leave(&mut self, request: DeviceRequest) {
        self.free.push(request.tag());
        request.leave_to_successor();
    }

    /// Returns the number of requests handed out and not completed.
    #[must_use]
    pub fn requests_with_owner(&self) -> u16 {
        DEPTH - u16::try_from(self.free.len()).expect("there are fewer tags than 2^16")
    }

    /// Returns the number of the queue's own operations in the ring.
    #[must_use]
    pub const fn with_kernel(&self) -> u16 {
        self.with_kernel
    }

    /// Cancels the wait for requests; its completion comes later.
    pub fn end<T: From<FuseCommand<K>> + RingOperation>(&mut self, ring: &mut Ring<T>) {
        self.free.append(&mut self.continued);
        if std::mem::replace(&mut self.is_ended, true) || !self.wait.is_polling {
            return;
        }
        self.with_kernel += 1;
        let wait = types::CancelBuilder::fd(types::Fd(self.connection.file().as_raw_fd())).all();
        let cancel = opcode::AsyncCancel2::new(wait).build();
        // SAFETY: the entry names no memory.
        unsafe { ring.push(cancel, FuseCommand { owner: self.owner, step: FuseStep::Look }.into()) };
    }

    /// Releases the connection after [`end`](Self::end), while the ring stays in use.
    ///
    /// # Panics
    /// If the kernel has an operation or the owner a request.
    pub fn close(self) {
        assert!(self.with_kernel == 0 && self.requests_with_owner() == 0, "all have come back");
    }
}

impl<K> Drop for FuseQueue<K> {
    fn drop(&mut self) {
        if self.free.len() < usize::from(DEPTH) {
            // Parts of requests may be in flight, so leak their memory.
            std::mem::forget(self.buffers.take());
        }
    }
}

/// A message as the queue handles it.
#[derive(Debug)]
enum TakenMessage {
    Request { unique: u64, operation: Operation, start_sector: u64, sectors: u32 },
    Answer(Vec<u8>),
    Nothing,
}

fn take(file: &FuseFile, bytes: &[u8]) -> TakenMessage {
    let message = match parse(bytes) {
        Ok(message) => message,
        Err(Malformed::Head) => return TakenMessage::Nothing,
        Err(Malformed::Body { unique }) => return error(unique, libc::EIO),
    };
    if let Some(answer) = file.answer(&message) {
        return TakenMessage::Answer(answer);
    }
    let FuseMessage { unique, request, .. } = message;
    let ranged = |operation, offset_bytes: u64, len_bytes: u64| {
        let end = offset_bytes.checked_add(len_bytes);
        let is_whole = (offset_bytes | len_bytes).is_multiple_of(SECTOR_BYTES) && len_bytes > 0;
        match u32::try_from(len_bytes / SECTOR_BYTES) {
            Ok(sectors) if is_whole && end.is_some_and(|end| end <= file.len_bytes) => {
                TakenMessage::Request {
                    unique,
                    operation,
                    start_sector: offset_bytes / SECTOR_BYTES,
                    sectors,
                }
            }
            Ok(_) | Err(_) => error(unique, libc::EINVAL),
        }
    };
    match request {
        FuseRequest::Read(FileSpan { offset_bytes, len_bytes }) => {
            ranged(Operation::Read, offset_bytes, len_bytes.into())
        }
        FuseRequest::Write(FileSpan { offset_bytes, len_bytes }) => {
            ranged(Operation::Write, offset_bytes, len_bytes.into())
        }
        FuseRequest::Sync => {
            TakenMessage::Request { unique, operation: Operation::Flush, start_sector: 0, sectors: 0 }
        }
        // The loop driver uses only this to write zeros, so punched ranges must read as zeros.
        FuseRequest::Allocate { offset_bytes, len_bytes, mode } => match mode.cast_signed() {
            PUNCH | ZERO | ZERO_KEEP => ranged(Operation::WriteZeroes, offset_bytes, len_bytes),
            _ => error(unique, libc::EOPNOTSUPP),
        },
        FuseRequest::Init { .. }
        | FuseRequest::Lookup { .. }
        | FuseRequest::GetAttributes
        | FuseRequest::SetAttributes
        | FuseRequest::Open
        | FuseRequest::StatFs
        | FuseRequest::Acknowledge
        | FuseRequest::Silent
        | FuseRequest::Unknown => TakenMessage::Nothing,
    }
}

const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
const ZERO_KEEP: i32 = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;

fn error(unique: u64, errno: i32) -> TakenMessage {
    TakenMessage::Answer(reply_head(unique, errno, 0).to_vec())
}

/// One anonymous mapping with one buffer per tag. A tag's pages are allocated before its first use.
#[derive(Debug)]
struct FuseBuffers {
    memory: NonNull<u8>,
    prepared: Box<[bool]>,
}

impl FuseBuffers {
    const BYTES: usize = STRIDE * DEPTH as usize;

    fn map() -> io::Result<Self> {
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                Self::BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping made above; a kernel that ignores the advice does no harm.
        unsafe { libc::madvise(address, Self::BYTES, libc::MADV_NOHUGEPAGE) };
        // Otherwise, after a fork, the kernel would copy each page before writing a request to it, and might
        // wait for memory.
        // SAFETY: the mapping made above; the advice removes it from children only, which do not use it.
        unsafe { libc::madvise(address, Self::BYTES, libc::MADV_DONTFORK) };
        let memory = NonNull::new(address.cast()).expect("mmap does not return null");
        Ok(Self { memory, prepared: vec![false; DEPTH.into()].into() })
    }

    /// Allocates and locks the pages of a tag before a request is read into them. If a process is killed
    /// while a read waits for a page, the read fails and the kernel fails the request, so the next server
    /// never gets it.
    fn prepare(&mut self, tag: u16) {
        if std::mem::replace(&mut self.prepared[usize::from(tag)], true) {
            return;
        }
        let address = self.at(tag, 0, STRIDE);
        // SAFETY: the range is in the mapping, and only its pages are touched, not their contents.
        let locked = unsafe { libc::mlock(address.cast(), STRIDE) };
        if locked != 0 {
            // Without the right to lock memory, at least allocate the pages. If that fails too, the read
            // allocates them. SAFETY: as above.
            unsafe { libc::madvise(address.cast(), STRIDE, libc::MADV_POPULATE_WRITE) };
        }
    }

    fn at(&self, tag: u16, offset: usize, len: usize) -> *mut u8 {
        assert!(tag < DEPTH && offset + len <= STRIDE, "the range lies in the buffer of a tag");
        self.memory.as_ptr().wrapping_add(usize::from(tag) * STRIDE + offset)
    }

    /// Returns the memory for a message, in the buffer of a tag without a request.
    fn message_mut(&mut self, tag: u16) -> &mut [u8] {
        let (offset, len) = (DATA_AT - WRITE_HEAD_BYTES, WRITE_HEAD_BYTES + MAX_IO_BYTES as usize);
        let address = self.at(tag, offset, len);
        // SAFETY: the range is in the mapping, which is initialised (zeros at first), and the slice borrows
        // it. A tag without a request has no operation in flight.
        unsafe { std::slice::from_raw_parts_mut(address, len) }
    }

    fn data_address(&self, tag: u16, offset_bytes: u32, len_bytes: u32) -> *mut u8 {
        self.at(tag, DATA_AT + offset_bytes as usize, len_bytes as usize)
    }

    /// Returns the data of a tag's request. All parts of the request have completed.
    fn data(&self, tag: u16, len_bytes: u32) -> &[u8] {
        let address = self.data_address(tag, 0, len_bytes);
        // SAFETY: the range is in the mapping, which is initialised. No operation on it is in flight.
        unsafe { std::slice::from_raw_parts(address, len_bytes as usize) }
    }
}

impl Drop for FuseBuffers {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`. The queue drops it only when its owner has no request,
        // so no operation that names this memory is in flight.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), Self::BYTES) };
    }
}

#[cfg(test)]
mod tests;
